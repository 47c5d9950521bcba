//! The command line: flags of a command, made from its table.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command};
use firn_model::{Error, Result};

use super::declare::Settings;
use super::file::{ConfigFile, distance};
use super::load::{LoadedConfig, load, reader, unknown_variables};
use super::reader::Sources;
use super::serve::ServeConfig;
use super::setting::Setting;
use super::values::{Folder, SlowTier};

const CONFIG: &str = "config";
// Edits of a mistyped name: two letters exchanged are two.
const NEAR_DISTANCE: usize = 2;

/// The flags of a command as they were typed. With `#[command(flatten)]` they are part of a parser
/// that clap derives.
#[derive(Clone)]
pub struct Flags<C> {
    texts: BTreeMap<String, String>,
    file: Option<PathBuf>,
    config: PhantomData<C>,
}

/// Without the texts, which may be passwords.
impl<C> fmt::Debug for Flags<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.texts.keys().collect();
        f.debug_struct("Flags").field("names", &names).field("file", &self.file).finish()
    }
}

/// No flags.
impl<C> Default for Flags<C> {
    fn default() -> Flags<C> {
        Flags { texts: BTreeMap::new(), file: None, config: PhantomData }
    }
}

impl<C: Settings> Flags<C> {
    /// Reads flags, environment, configuration file and defaults, and checks them.
    ///
    /// # Errors
    /// `Invalid`, naming the source, the setting, the expected form and the text.
    pub fn load(&self) -> Result<LoadedConfig<C>> {
        let file = self.config_file()?;
        self.with_sources(file.as_ref(), load)
    }

    /// The flags by name.
    #[cfg(test)]
    pub(super) fn texts(&self) -> &BTreeMap<String, String> {
        &self.texts
    }

    /// The file that the flag or its variable names.
    fn config_file(&self) -> Result<Option<ConfigFile>> {
        let name = file_variable::<C>();
        let variable = || std::env::var_os(&name).map(PathBuf::from);
        if self.file.is_none() && variable().is_some_and(|path| path.as_os_str().is_empty()) {
            let what = format!("{name}: expected a file, got \"\"; unset it to use none");
            return Err(Error::invalid(what));
        }
        self.file.clone().or_else(variable).as_deref().map(ConfigFile::read).transpose()
    }

    fn with_sources<T>(
        &self,
        file: Option<&ConfigFile>,
        read: impl FnOnce(&Sources<'_>) -> Result<T>,
    ) -> Result<T> {
        let environment = |name: &str| std::env::var_os(name);
        let variables = variable_names();
        read(&Sources { flags: &self.texts, environment: &environment, variables, file })
    }

    fn read_matches(&mut self, matches: &ArgMatches, is_read: impl Fn(&str) -> bool) {
        for setting in C::TABLE.iter().filter(|setting| is_read(setting.name)) {
            if let Some(texts) = matches.get_many::<String>(setting.name) {
                let texts: Vec<&str> = texts.map(String::as_str).collect();
                self.texts.insert(setting.name.to_owned(), texts.join(","));
            }
        }
        if let Some(path) = matches.get_one::<PathBuf>(CONFIG) {
            self.file = Some(path.clone());
        }
    }

    /// Reads and checks a configuration file alone, without flags and environment.
    ///
    /// # Errors
    /// As [`Flags::load`].
    pub fn load_file(path: &Path) -> Result<LoadedConfig<C>> {
        let file = ConfigFile::read(path)?;
        let flags = BTreeMap::new();
        let variables = Vec::new();
        load(&Sources { flags: &flags, environment: &|_| None, variables, file: Some(&file) })
    }
}

/// Checked settings of `flags`, whatever the environment is.
#[cfg(test)]
pub(crate) fn from_flags<C: Settings>(flags: &[(&str, &str)]) -> Result<C> {
    let flags = flags.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    let flags = flags.collect();
    let variables = Vec::new();
    let sources = Sources { flags: &flags, environment: &|_| None, variables, file: None };
    load(&sources).map(|loaded| loaded.config)
}

/// Names of the variables of this process; one that is not UTF-8 is no setting's.
fn variable_names() -> Vec<String> {
    std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect()
}

/// Name of the variable that names the configuration file.
pub(super) fn file_variable<C: Settings>() -> String {
    format!("{}CONFIG", C::PREFIX)
}

impl<C: Settings> clap::FromArgMatches for Flags<C> {
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<Flags<C>, clap::Error> {
        let mut flags = Flags::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(
        &mut self,
        matches: &ArgMatches,
    ) -> std::result::Result<(), clap::Error> {
        self.read_matches(matches, |_| true);
        Ok(())
    }
}

impl<C: Settings> clap::Args for Flags<C> {
    fn augment_args(command: Command) -> Command {
        let args = C::TABLE.iter().map(arg::<C>);
        command.next_line_help(true).arg(file_arg::<C>()).args(args)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// The flags by which other commands find a database that `firn serve` wrote: `--data`,
/// `--slow-tier`, and the configuration file that may contain them.
#[derive(Clone, Debug)]
pub struct DatabaseFlags(Flags<ServeConfig>);

impl DatabaseFlags {
    const NAMES: [&'static str; 2] = ["data", "slow-tier"];

    /// The folder of the database, and its slow tier unless that is `auto`.
    ///
    /// # Errors
    /// As [`Flags::load`].
    pub fn load(&self) -> Result<(PathBuf, Option<String>)> {
        let file = self.0.config_file()?;
        self.0.with_sources(file.as_ref(), |sources| {
            let reader = reader::<ServeConfig>(sources)?;
            let folder: Folder = reader.value("data")?;
            let slow_tier: Option<SlowTier> = reader.value_unless_auto("slow-tier")?;
            Ok((folder.0, slow_tier.map(|slow_tier| slow_tier.to_string())))
        })
    }

    /// Mistakes in the environment that do not stop the command, one sentence each: variables that
    /// nearly name one of these settings. Other ones are for `firn serve`.
    pub fn warnings(&self) -> Vec<String> {
        let mut names = variable_names();
        let is_near = |name: &String| {
            let settings = ServeConfig::TABLE.iter().filter(|row| Self::NAMES.contains(&row.name));
            let mut variables = settings.map(|row| row.variable(ServeConfig::PREFIX));
            variables.any(|variable| distance(name, &variable) <= NEAR_DISTANCE)
        };
        names.retain(is_near);
        unknown_variables(ServeConfig::TABLE, ServeConfig::PREFIX, &names)
    }
}

impl clap::FromArgMatches for DatabaseFlags {
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<DatabaseFlags, clap::Error> {
        let mut flags = DatabaseFlags(Flags::default());
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(
        &mut self,
        matches: &ArgMatches,
    ) -> std::result::Result<(), clap::Error> {
        self.0.read_matches(matches, |name| Self::NAMES.contains(&name));
        Ok(())
    }
}

impl clap::Args for DatabaseFlags {
    fn augment_args(command: Command) -> Command {
        let rows = ServeConfig::TABLE.iter().filter(|row| Self::NAMES.contains(&row.name));
        let args = rows.map(|row| arg::<ServeConfig>(row).help_heading(None::<&str>));
        let file = file_arg::<ServeConfig>().help_heading(None::<&str>);
        command.next_line_help(true).args(args).arg(file)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn file_arg<C: Settings>() -> Arg {
    Arg::new(CONFIG)
        .long(CONFIG)
        .value_name("FILE")
        .value_parser(clap::value_parser!(PathBuf))
        .help_heading("Configuration file")
        .help(format!(
            "YAML file of settings; its keys are the names of the flags. Flags override variables \
             of the environment, which override the file (docs/settings.md).\n[env: {}]",
            file_variable::<C>()
        ))
}

fn arg<C: Settings>(setting: &'static Setting) -> Arg {
    let variable = setting.variable(C::PREFIX);
    let default = match setting.default {
        _ if setting.is_switch => String::new(),
        "" => "[default: empty] ".to_owned(),
        default => format!("[default: {default}] "),
    };
    let arg = Arg::new(setting.name)
        .long(setting.name)
        .value_name(setting.value_name)
        .help_heading(setting.section)
        .help(format!("{}\n{default}[env: {variable}]", setting.help.trim_start()));
    match setting.is_switch {
        // `--write-lenient` and `--write-lenient=false`, which overrides the file.
        true => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        // A value such as `-1d` gets the setting's own error.
        false => {
            let action = if setting.is_list { ArgAction::Append } else { ArgAction::Set };
            arg.action(action).allow_hyphen_values(true).value_parser(not_a_flag)
        }
    }
}

/// A flag is never the value of another one: `--data --read-only` lacks a folder.
fn not_a_flag(text: &str) -> std::result::Result<String, String> {
    let is_flag = text.len() > 2 && text.starts_with("--") || matches!(text, "-h" | "-V");
    match is_flag {
        true => Err("the value is missing before the next flag".to_owned()),
        false => Ok(text.to_owned()),
    }
}
