//! The source of the text of a setting.

use std::fmt::{self, Display};

use super::setting::Setting;

/// The origin of the text of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// It was left out.
    Default,
    /// A line of a configuration file.
    File {
        /// The file, as it was named.
        path: String,
        /// Counted from 1.
        line: usize,
    },
    /// A variable of the environment.
    Variable(String),
    /// The command line.
    Flag,
}

impl Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("default"),
            Source::File { path, line } => write!(f, "{path}:{line}"),
            Source::Variable(name) => f.write_str(name),
            Source::Flag => f.write_str("flag"),
        }
    }
}

impl Source {
    /// How a message names the setting: `--retention`, `FIRN_RETENTION`, `firn.yaml:12: retention`.
    pub(super) fn label(&self, setting: &Setting) -> String {
        match self {
            Source::Default | Source::Flag => format!("--{}", setting.name),
            Source::Variable(name) => name.clone(),
            Source::File { .. } => format!("{self}: {}", setting.name),
        }
    }
}
