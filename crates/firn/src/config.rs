//! `firn config`: effective settings and their sources, without starting a server.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use firn_server::{CacheConfig, Flags, Result, ServeConfig, one_line};

use crate::output;

/// `firn config`.
#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Print the effective settings of a command and the source of each
    ///
    /// The output is a configuration file. A comment behind each setting names its source: default,
    /// flag, variable of the environment, or file and line. Accepts the flags of the command.
    Print {
        #[command(subcommand)]
        command: Option<Print>,
    },
    /// Check a configuration file, without flags and environment
    Check {
        /// The command that the file is for
        command: CommandName,
        /// The configuration file
        file: PathBuf,
    },
}

/// A command with the flags that it would be started with.
#[derive(Debug, Subcommand)]
pub(crate) enum Print {
    /// Settings of `firn serve` (default)
    Serve(Box<Flags<ServeConfig>>),
    /// Settings of `firn cache`
    Cache(Box<Flags<CacheConfig>>),
}

/// A command that has settings.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum CommandName {
    /// `firn serve`
    Serve,
    /// `firn cache`
    Cache,
}

/// Prints or checks settings.
///
/// # Errors
/// `Invalid`, naming the source, the setting, the expected form and the text.
pub(crate) fn config(config: &Config) -> Result<()> {
    match config {
        Config::Print { command: None } => {
            output::print(&Flags::<ServeConfig>::default().load()?.print())
        }
        Config::Print { command: Some(Print::Serve(flags)) } => {
            output::print(&flags.load()?.print())
        }
        Config::Print { command: Some(Print::Cache(flags)) } => {
            output::print(&flags.load()?.print())
        }
        Config::Check { command, file } => {
            let warnings = match command {
                CommandName::Serve => Flags::<ServeConfig>::load_file(file)?.warnings,
                CommandName::Cache => Flags::<CacheConfig>::load_file(file)?.warnings,
            };
            output::report_warnings(&warnings);
            output::print(&format!("{}: ok\n", one_line(&file.display().to_string())))
        }
    }
}
