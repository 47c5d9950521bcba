//! Folders, files and object stores, and how the log is written.

use std::fmt::{self, Display};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use firn_env::{real_path, scheme_of};
use firn_model::redacted;
use firndb::{LogDevice, OwnFolder, OwnFolderKind};

use super::amount::{Count, Span};
use super::{ExpectedForm, SettingType, expected};
use crate::wire::number::unit_duration;

/// A folder of the local file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder(pub PathBuf);

impl FromStr for Folder {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<Folder, ExpectedForm> {
        local_path(text, "a folder").map(Folder)
    }
}

impl Display for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.0.display(), f)
    }
}

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl SettingType for Folder {
    const VALUE_NAME: &'static str = "FOLDER";
    const KIND: &'static str = "folder";
}

/// `text` as a path of this machine. A URL, also a mistyped one, would become a folder or file of
/// that name.
fn local_path(text: &str, what: &str) -> Result<PathBuf, ExpectedForm> {
    match text {
        "" => expected(what),
        _ if scheme_of(text).is_some() || text.contains("://") || redacted(text) != text => {
            expected(format!("{what} of this machine, not a URL; ./NAME for a name with a colon"))
        }
        _ => Ok(PathBuf::from(text)),
    }
}

/// A file of the local file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePath(pub PathBuf);

impl FromStr for FilePath {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<FilePath, ExpectedForm> {
        local_path(text, "a file").map(FilePath)
    }
}

impl Display for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.0.display(), f)
    }
}

impl SettingType for FilePath {
    const VALUE_NAME: &'static str = "FILE";
    const KIND: &'static str = "file";
}

/// A folder, or a bucket of an object store with a prefix. The store is checked when it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowTier(String);

/// The schemes of locations of the slow tier.
const SCHEMES: [&str; 6] = ["s3", "s3a", "gs", "az", "azure", "file"];

impl SlowTier {
    /// The folder `slow` inside `data`.
    pub fn below(data: &Path) -> SlowTier {
        SlowTier(data.join("slow").to_string_lossy().into_owned())
    }

    /// The folder or URL.
    pub fn location(&self) -> &str {
        &self.0
    }

    /// The slow tier, if it is a folder that is or contains `path`.
    pub(in crate::config) fn around(&self, path: &Path) -> Option<OwnFolder> {
        let folder = self.0.strip_prefix("file://").unwrap_or(&self.0);
        let folder = (!self.is_on()).then(|| real_path(Path::new(folder)))?;
        let own = OwnFolder { path: folder, kind: OwnFolderKind::Slow };
        real_path(path).starts_with(&own.path).then_some(own)
    }
}

impl FromStr for SlowTier {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<SlowTier, ExpectedForm> {
        let wanted = "a folder (./NAME for a name with a colon), or s3://, gs:// or az:// with \
                      bucket and prefix";
        match (text, text.split_once("://"), scheme_of(text)) {
            ("", ..) | (_, None, Some(_)) => expected(wanted),
            (_, Some((scheme, _)), _) if !SCHEMES.contains(&scheme) => expected(wanted),
            _ if redacted(text) != text => expected(
                "a folder, or a URL without credentials, which are variables of the environment, \
                 such as AWS_SECRET_ACCESS_KEY",
            ),
            _ => Ok(SlowTier(text.to_owned())),
        }
    }
}

impl Display for SlowTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl SettingType for SlowTier {
    const VALUE_NAME: &'static str = "LOCATION";
    const KIND: &'static str = "folder or URL";

    /// Whether it is a remote store: settings that save its requests have no effect on a folder.
    fn is_on(&self) -> bool {
        self.0.contains("://") && !self.0.starts_with("file://")
    }
}

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogSync {
    /// After it is on the device.
    Always,
    /// Before; synced at this interval.
    IntervalMs(u64),
    /// Before; synced when the operating system decides to.
    Never,
}

impl FromStr for LogSync {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<LogSync, ExpectedForm> {
        let wanted = "always, never or a duration such as 100ms";
        match text {
            "always" => Ok(LogSync::Always),
            "never" => Ok(LogSync::Never),
            _ => match text.strip_prefix("interval:").map(str::parse::<Count>) {
                Some(Ok(Count(ms))) if ms > 0 => Ok(LogSync::IntervalMs(ms)),
                Some(_) => expected("interval:MILLISECONDS"),
                None => match text.parse::<Span>() {
                    Ok(span) => Ok(LogSync::IntervalMs(span.ms().unsigned_abs())),
                    Err(_) => expected(wanted),
                },
            },
        }
    }
}

impl Display for LogSync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            LogSync::Always => f.write_str("always"),
            LogSync::Never => f.write_str("never"),
            LogSync::IntervalMs(ms) => {
                f.write_str(&unit_duration(i64::try_from(ms).unwrap_or(i64::MAX)))
            }
        }
    }
}

impl SettingType for LogSync {
    const VALUE_NAME: &'static str = "WHEN";
    const KIND: &'static str = "always, never or a duration";
}

/// Device of the log of a new database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device(pub LogDevice);

impl FromStr for Device {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<Device, ExpectedForm> {
        match text.parse() {
            Ok(device) => Ok(Device(device)),
            Err(_) => expected("file, or memory: and the absolute path of a folder"),
        }
    }
}

impl Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.0, f)
    }
}

impl SettingType for Device {
    const VALUE_NAME: &'static str = "DEVICE";
    const KIND: &'static str = "file or memory:FOLDER";
}
