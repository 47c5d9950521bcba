//! Finds the text of each setting in the flags, the environment, the configuration file and the
//! defaults, in this order of precedence, and remembers the source.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::Path;

use firn_model::{Error, Result, excerpt, redacted};

use super::file::ConfigFile;
use super::setting::Setting;
use super::source::Source;
use super::values::{ExpectedForm, SettingType};

/// The places that are searched for the text of a setting.
pub(super) struct Sources<'a> {
    /// Flags by name.
    pub(super) flags: &'a BTreeMap<String, String>,
    /// Variables of the environment by name.
    pub(super) environment: &'a dyn Fn(&str) -> Option<OsString>,
    /// Names of all variables, for those that no setting has.
    pub(super) variables: Vec<String>,
    pub(super) file: Option<&'a ConfigFile>,
}

/// Reads the settings of one command.
pub struct SettingsReader<'a> {
    table: &'static [Setting],
    prefix: &'static str,
    sources: &'a Sources<'a>,
}

impl fmt::Debug for SettingsReader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SettingsReader").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl<'a> SettingsReader<'a> {
    /// For the settings of `table`, whose variables begin with `prefix`.
    pub(super) fn new(
        table: &'static [Setting],
        prefix: &'static str,
        sources: &'a Sources<'a>,
    ) -> SettingsReader<'a> {
        SettingsReader { table, prefix, sources }
    }

    /// The value of the setting `name`.
    ///
    /// # Errors
    /// `Invalid`, naming the source, the setting, the expected form and the text.
    pub(super) fn value<T: SettingType>(&self, name: &str) -> Result<T> {
        let setting = self.setting(name)?;
        let (text, source) = self.find(setting)?;
        setting.parse(&text).map_err(|expected| refusal(setting, &source, &expected, &text))
    }

    /// The same; `None` if it is `auto`.
    pub(super) fn value_unless_auto<T: SettingType>(&self, name: &str) -> Result<Option<T>> {
        let (text, _) = self.find(self.setting(name)?)?;
        if text == "auto" { Ok(None) } else { self.value(name).map(Some) }
    }

    /// The configuration file.
    pub(super) fn config_file(&self) -> Option<&Path> {
        self.sources.file.map(ConfigFile::path)
    }

    /// The error for a setting that others do not allow.
    pub(super) fn refuse(&self, name: &str, expected: impl Into<String>) -> Error {
        let refused = self.setting(name).and_then(|setting| {
            let (text, source) = self.find(setting)?;
            Ok(refusal(setting, &source, &ExpectedForm(expected.into()), &text))
        });
        refused.unwrap_or_else(|error| error)
    }

    fn setting(&self, name: &str) -> Result<&'static Setting> {
        let found = self.table.iter().find(|setting| setting.name == name);
        found.ok_or_else(|| Error::internal(format!("the table has no setting --{name}")))
    }

    /// The text with the highest precedence.
    pub(super) fn find(&self, setting: &Setting) -> Result<(String, Source)> {
        if let Some(text) = self.sources.flags.get(setting.name) {
            return Ok((text.clone(), Source::Flag));
        }
        let variable = setting.variable(self.prefix);
        if let Some(text) = (self.sources.environment)(&variable) {
            let text = text.into_string().map_err(|text| {
                let got = text.to_string_lossy();
                Error::invalid(format!("{variable}: expected UTF-8, got {:?}", redacted(&got)))
            })?;
            return Ok((text, Source::Variable(variable)));
        }
        let file = self.sources.file.and_then(|file| file.get(setting.name));
        Ok(file.unwrap_or_else(|| (setting.default.to_owned(), Source::Default)))
    }
}

fn refusal(setting: &Setting, source: &Source, expected: &ExpectedForm, text: &str) -> Error {
    // A mistyped URL may have its password in any place.
    let got = match setting.is_secret {
        true => String::new(),
        false => format!(", got {:?}", excerpt(&redacted(text))),
    };
    Error::invalid(format!("{}: expected {expected}{got}", source.label(setting)))
}
