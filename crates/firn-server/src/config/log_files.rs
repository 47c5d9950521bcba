//! Files of logs. Lines are appended to them, so a log must not be the file of another setting, nor
//! one of a database.

use std::path::Path;

use firn_env::is_same_file;
use firn_model::Result;

use super::reader::SettingsReader;
use super::values::{FilePath, Or, Unset};
use crate::access::line_log::{InputFile, is_stderr};

/// Settings with their values.
pub(super) type NamedFiles<'a> = [(&'a str, &'a Or<Unset, FilePath>)];

/// The files of `settings` that are set, each with its flag.
pub(super) fn input_files(settings: &NamedFiles<'_>) -> Vec<InputFile> {
    let input = |(name, path): &(&str, &Or<Unset, FilePath>)| {
        Some(InputFile { setting: format!("--{name}"), path: path.get()?.0 })
    };
    settings.iter().filter_map(input).collect()
}

/// Checks the files `logs` against the files `inputs` of other settings and the folders of
/// databases and caches, which `own` finds.
///
/// # Errors
/// `Invalid`, naming both settings or the folder.
pub(super) fn check(
    reader: &SettingsReader<'_>,
    logs: &NamedFiles<'_>,
    inputs: &NamedFiles<'_>,
    own: impl Fn(&Path) -> Option<String>,
) -> Result<()> {
    for (name, log) in logs {
        let Some(FilePath(log)) = log.get().filter(|log| !is_stderr(&log.0)) else { continue };
        let named = inputs.iter().filter_map(|(input, file)| Some((*input, file.get()?.0)));
        let config = reader.config_file().map(|path| ("config", path.to_owned()));
        let same = named.chain(config).find(|(_, input)| is_same_file(&log, input));
        if let Some((input, _)) = same {
            let expected = format!("a file of its own, not that of --{input}");
            return Err(reader.refuse(name, expected));
        }
        if let Some(own) = own(&log) {
            let expected = format!("a file of its own, not one in {own}");
            return Err(reader.refuse(name, expected));
        }
    }
    Ok(())
}
