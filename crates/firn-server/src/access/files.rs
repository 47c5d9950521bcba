//! The files of one version of the web configuration, and whether a program is writing them.
//!
//! A file that is cut short can be valid: it then lacks users, or the matchers of one. So files are
//! used when they are at rest, and the beginning of the version in use only after a longer rest.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use firn_model::{Budget, Pool, Reservation, Result};

use super::line_log::InputFile;
use super::web_config::{FILE_BYTES_MAX, PemSource, TlsSettings};
use firn_env::given_file::{PEM_BYTES_MAX, read_text_of, read_text_within};

/// Length, time of the last change and number of a file; `None` if it does not exist.
pub(crate) type SeenFile = Option<(u64, SystemTime, u64)>;

/// The files of one version, as they were read.
#[derive(Debug, Default)]
pub(super) struct VersionFiles {
    files: Vec<VersionFile>,
    /// The memory of their texts, and of all that is made of certificates and keys.
    held: Option<Reservation>,
}

struct VersionFile {
    path: PathBuf,
    /// The setting or key that names it.
    setting: String,
    /// Before it was read.
    seen: SeenFile,
    /// `None` if it cannot be read.
    text: Option<String>,
}

/// It contains hashes of passwords, and may contain keys.
impl fmt::Debug for VersionFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VersionFile").field("path", &self.path).field("seen", &self.seen).finish()
    }
}

const CONFIG_SETTING: &str = "--web-config";
/// The memory of certificates and keys for each byte of their text: two texts, that of the rules
/// for clients, and the binary form.
const BYTES_PER_PEM_BYTE: u64 = 4;
/// Editors and copies write a file within this time.
const REST: Duration = Duration::from_millis(500);
/// A program that cuts a file and takes longer to write the rest.
pub(super) const CUT_REST: Duration = Duration::from_secs(10);

impl VersionFiles {
    /// No files. Their memory is a part of `budget`.
    pub(super) fn new(budget: &Budget) -> VersionFiles {
        VersionFiles { files: Vec::new(), held: Some(budget.empty(Pool::Requests)) }
    }

    /// Reads the file of `--web-config` and keeps its text.
    ///
    /// # Errors
    /// `Invalid`, naming the file; `Busy` and `TooLarge` without memory.
    pub(super) fn read_config(&mut self, path: &Path) -> Result<&str> {
        self.keep(path, CONFIG_SETTING, FILE_BYTES_MAX as u64, 1)
    }

    /// Keeps the text of a file, which is reserved `copies` times.
    fn keep(&mut self, path: &Path, setting: &str, bytes_max: u64, copies: u64) -> Result<&str> {
        self.files.push(VersionFile {
            path: path.to_owned(),
            setting: setting.to_owned(),
            seen: seen(path),
            text: None,
        });
        let reserve = |bytes: u64| hold(&mut self.held, bytes.saturating_mul(copies));
        let text = read_text_within(path, setting, bytes_max, reserve)?;
        let Some(file) = self.files.last_mut() else { return Ok("") };
        Ok(file.text.insert(text))
    }

    /// Reads the files that `tls` names.
    ///
    /// # Errors
    /// As [`VersionFiles::read_config`].
    pub(super) fn read_pems(&mut self, tls: &mut TlsSettings) -> Result<()> {
        let mut read = |source: &mut PemSource, key: &str| {
            let Some(path) = &source.path else {
                // The text in the file of `--web-config` is counted there.
                let bytes = source.text.len() as u64;
                return hold(&mut self.held, bytes.saturating_mul(BYTES_PER_PEM_BYTE));
            };
            let setting = format!("tls_server_config.{key}");
            let text = self.keep(path, &setting, PEM_BYTES_MAX, BYTES_PER_PEM_BYTE)?;
            source.text = text.to_owned();
            Ok(())
        };
        read(&mut tls.certificate, "cert_file")?;
        read(&mut tls.key, "key_file")?;
        tls.client_ca.as_mut().map_or(Ok(()), |source| read(source, "client_ca_file"))
    }

    /// Whether no file has changed since it was read, or soon before. Waits if one is new.
    pub(super) fn are_at_rest(&self) -> bool {
        let is_new = |file: &VersionFile| file.age().is_none_or(|age| age < REST);
        if self.files.iter().any(is_new) {
            std::thread::sleep(REST);
        }
        self.files.iter().all(|file| seen(&file.path) == file.seen)
    }

    /// A file that is new and only the beginning of the one in `used`.
    pub(super) fn cut_file(&self, used: &VersionFiles) -> Option<&Path> {
        let is_cut = |file: &&VersionFile| {
            // After a change of the clock an unknown age must not last for ever.
            let is_new = file.age().is_some_and(|age| age < CUT_REST);
            is_new && used.files.iter().any(|other| other.path == file.path && file.begins(other))
        };
        self.files.iter().find(is_cut).map(|file| file.path.as_path())
    }

    /// The files, each with its name.
    pub(super) fn inputs(&self) -> impl Iterator<Item = InputFile> {
        let input = |file: &VersionFile| InputFile {
            setting: file.setting.clone(),
            path: file.path.clone(),
        };
        self.files.iter().map(input)
    }

    /// The state of each file when it was read.
    pub(super) fn seen(&self) -> Vec<SeenFile> {
        self.files.iter().map(|file| file.seen).collect()
    }

    /// The present state of each file.
    pub(super) fn seen_now(&self) -> Vec<SeenFile> {
        self.files.iter().map(|file| seen(&file.path)).collect()
    }
}

fn hold(held: &mut Option<Reservation>, bytes: u64) -> Result<()> {
    held.as_mut().map_or(Ok(()), |held| held.grow(bytes))
}

impl VersionFile {
    fn begins(&self, other: &VersionFile) -> bool {
        let (Some(text), Some(other)) = (&self.text, &other.text) else { return false };
        text.len() < other.len() && other.starts_with(text)
    }

    fn age(&self) -> Option<Duration> {
        let (_, changed, _) = self.seen?;
        SystemTime::now().duration_since(changed).ok()
    }
}

/// The text of the file of `--web-config`.
///
/// # Errors
/// `Invalid`, naming the file.
pub(super) fn read_web_config(path: &Path) -> Result<String> {
    read_text_of(path, CONFIG_SETTING, FILE_BYTES_MAX as u64)
}

fn seen(path: &Path) -> SeenFile {
    let found = fs::metadata(path).ok()?;
    let seconds = Duration::from_secs(u64::try_from(found.ctime()).ok()?);
    let nanos = Duration::from_nanos(u64::try_from(found.ctime_nsec()).ok()?);
    Some((found.len(), UNIX_EPOCH + seconds + nanos, found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_changes_is_not_at_rest_and_a_beginning_is_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web.yml");
        let read = || {
            let mut files = VersionFiles::new(&Budget::unlimited());
            files.read_config(&path).unwrap();
            files
        };
        fs::write(&path, "users:\n- name: a\n- name: b\n").unwrap();
        let used = read();
        assert!(used.are_at_rest());
        assert!(read().cut_file(&used).is_none());
        for (text, is_cut) in [
            ("users:\n- name: a\n", true),
            ("", true),
            ("users:\n- name: b\n", false),
            ("users:\n- name: a\n- name: b\n- name: c\n", false),
        ] {
            fs::write(&path, text).unwrap();
            assert!(!used.are_at_rest());
            assert_eq!(read().cut_file(&used).is_some(), is_cut, "{text}");
        }
        fs::remove_file(&path).unwrap();
        assert!(!used.are_at_rest());
    }
}
