//! All settings of a command, read and checked together.

use firn_model::{Error, Result};

use super::declare::Settings;
use super::file::distance;
use super::reader::{SettingsReader, Sources};
use super::setting::Setting;
use super::source::Source;

/// The effective value of a setting and its source.
#[derive(Clone, Debug)]
pub struct EffectiveSetting {
    /// The row of the table.
    pub setting: &'static Setting,
    /// Without passwords; otherwise it reads back to the same value.
    pub value: String,
    /// The origin of the value.
    pub source: Source,
    /// Why it has no effect: `without --proxy`.
    pub without_effect: Option<String>,
}

/// Checked settings of a command, with their sources.
#[derive(Clone, Debug)]
pub struct LoadedConfig<C> {
    /// The settings.
    pub config: C,
    /// Each of them, in the order of the table.
    pub effective: Vec<EffectiveSetting>,
    /// Mistakes that do not stop the command, one sentence each.
    pub warnings: Vec<String>,
}

/// Reads and checks the settings of a command.
///
/// # Errors
/// `Invalid`, naming the source, the setting, the expected form and the text.
pub(super) fn load<C: Settings>(sources: &Sources<'_>) -> Result<LoadedConfig<C>> {
    let reader = reader::<C>(sources)?;
    let config = C::read(&reader)?;
    let values = config.values();
    let is_on = |name: &str| {
        let row = C::TABLE.iter().zip(&values).find(|(setting, _)| setting.name == name);
        row.is_some_and(|(_, value)| value.is_on)
    };
    let mut effective = Vec::new();
    for (setting, value) in C::TABLE.iter().zip(&values) {
        let (_, source) = reader.find(setting)?;
        let missing = setting.only_with.filter(|condition| !is_on(condition.name));
        let blocking = setting.not_with.iter().find(|name| is_on(name));
        let without_effect = match (missing, blocking) {
            (Some(condition), _) => Some(format!("without {}", condition.phrase)),
            (None, Some(name)) => Some(format!("with --{name}")),
            (None, None) => None,
        };
        if let Some(reason) = without_effect.as_ref().filter(|_| source != Source::Default)
            && value.is_on
        {
            return Err(Error::invalid(format!(
                "{}: has no effect {reason}; remove this setting or change the other one",
                source.label(setting)
            )));
        }
        let value = value.shown.clone();
        effective.push(EffectiveSetting { setting, value, source, without_effect });
    }
    config.check(&reader)?;
    let mut warnings = unknown_variables(C::TABLE, C::PREFIX, &sources.variables);
    warnings.extend(config.warnings());
    Ok(LoadedConfig { config, effective, warnings })
}

/// A warning for each variable that looks like one of the command and is none. It is no error:
/// other programs set variables too.
pub(super) fn unknown_variables(
    table: &[Setting],
    prefix: &str,
    variables: &[String],
) -> Vec<String> {
    let names = table.iter().map(|setting| setting.variable(prefix));
    let known: Vec<String> = names.chain([format!("{prefix}CONFIG")]).collect();
    let is_other = |rest: &str| {
        // Variables of the other command and of clients; those of Kubernetes for a service named
        // `firn`.
        (prefix == "FIRN_" && rest.starts_with("CACHE_"))
            || rest == "TOKEN"
            || ["SERVICE_", "PORT_"].iter().any(|start| rest.starts_with(start))
    };
    let unknown = variables.iter().filter(|name| {
        name.strip_prefix(prefix).is_some_and(|rest| !is_other(rest)) && !known.contains(name)
    });
    let warn = |name: &String| {
        let nearest = known.iter().min_by_key(|known| distance(name, known));
        let nearest = nearest.map(String::as_str).unwrap_or_default();
        format!("{name}: no setting has this variable; the nearest is {nearest}")
    };
    unknown.map(warn).collect()
}

/// Reads single settings of a command.
///
/// # Errors
/// `Invalid` for a key of the file that is no setting of the command.
pub(super) fn reader<'a, C: Settings>(sources: &'a Sources<'a>) -> Result<SettingsReader<'a>> {
    if let Some(file) = sources.file {
        file.check_keys(C::TABLE, C::COMMAND)?;
    }
    Ok(SettingsReader::new(C::TABLE, C::PREFIX, sources))
}
