//! Changes of the web configuration by `firn user`. The text keeps its comments and order: lines
//! are added, and the result is parsed before it replaces the file.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use firn_model::{Budget, Error, Result, excerpt};
use firn_yaml::{Document, Node, NodeValue};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

use super::files::read_web_config;
use super::login::is_equal;
use super::section::{self, KeyValue};
use super::web_config::{WebConfig, check_name};
use super::{GateOptions, load};
use crate::wire::json;

/// A web configuration that `firn user` changes.
#[derive(Clone, Debug)]
pub struct UserFile {
    path: PathBuf,
    text: String,
}

/// A user to add.
#[derive(Clone, Debug, Default)]
pub struct NewUser {
    /// Its name.
    pub name: String,
    /// From [`hash_password`]; `None` for a user with tokens only.
    pub password_hash: Option<String>,
    /// `read`, `write`, `admin`.
    pub roles: Vec<String>,
    /// A selector that all selectors of the user are joined with.
    pub matchers: Option<String>,
}

/// A user as `firn user check` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserSummary {
    /// Its name.
    pub name: String,
    /// Its roles.
    pub roles: Vec<&'static str>,
    /// Whether it has a password.
    pub has_password: bool,
    /// Its tokens.
    pub token_count: usize,
    /// Its matchers.
    pub matcher_count: usize,
}

/// As `htpasswd -B -C 10`: 70 ms of one core.
const BCRYPT_COST: u32 = 10;
/// bcrypt ignores further bytes.
const PASSWORD_BYTES_MAX: usize = 72;
const TOKEN_BYTES: usize = 32;

/// The bcrypt hash of a password.
///
/// # Errors
/// `Invalid` for an empty or too long one.
pub fn hash_password(password: &str) -> Result<String> {
    if password.is_empty() || password.len() > PASSWORD_BYTES_MAX || password.contains('\0') {
        return Err(Error::invalid(format!(
            "expected a password of 1 to {PASSWORD_BYTES_MAX} bytes, got {}",
            password.len()
        )));
    }
    bcrypt::hash(password, BCRYPT_COST)
        .map_err(|e| Error::internal("the password cannot be hashed").because(e))
}

/// The file itself, if `path` is a symbolic link.
fn file_of(path: &Path) -> Result<PathBuf> {
    match fs::canonicalize(path) {
        Ok(file) => Ok(file),
        Err(_) if fs::symlink_metadata(path).is_err() => Ok(path.to_owned()),
        Err(e) => {
            let what = format!("{} is a link that cannot be followed", path.display());
            Err(Error::invalid(what).because(e))
        }
    }
}

/// The name under which the next version of the file is written.
fn new_file_of(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".firn-new");
    path.with_file_name(name)
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Waits until no other program changes a file of the folder: the file itself is replaced, so a
/// lock on it would be one on the old file.
fn lock_folder(path: &Path) -> Result<File> {
    let folder = folder_of(path);
    let cannot =
        |e: io::Error| Error::unavailable(format!("cannot lock {}", folder.display())).because(e);
    let locked = File::open(folder).map_err(cannot)?;
    rustix::fs::flock(&locked, rustix::fs::FlockOperation::LockExclusive)
        .map_err(|e| cannot(e.into()))?;
    Ok(locked)
}

impl UserFile {
    /// Reads the file; a missing one is empty.
    ///
    /// # Errors
    /// `Invalid` for a file that cannot be read or used.
    pub fn open(path: &Path) -> Result<UserFile> {
        let text = match path.exists() {
            true => read_web_config(path)?,
            false => String::new(),
        };
        WebConfig::parse(path, &text)?;
        Ok(UserFile { path: path.to_owned(), text })
    }

    /// Applies `change` to the file and replaces it. Other programs that change it wait, so that no
    /// change is lost. The file that a symbolic link names is replaced, not the link.
    ///
    /// # Errors
    /// As [`UserFile::open`], those of `change`, and `Unavailable` when the disk fails.
    pub fn update<T>(path: &Path, change: impl FnOnce(&mut UserFile) -> Result<T>) -> Result<T> {
        let path = &file_of(path)?;
        let _locked = lock_folder(path)?;
        let mut file = UserFile::open(path)?;
        let changed = change(&mut file)?;
        file.save()?;
        Ok(changed)
    }

    /// Every user, in the order of the file.
    ///
    /// # Errors
    /// Those of the file.
    pub fn users(&self) -> Result<Vec<UserSummary>> {
        summaries(&self.path, &self.text)
    }

    /// Checks the file as a server does, with the certificates that it names; returns warnings.
    ///
    /// # Errors
    /// Those of a start.
    pub fn check(&self) -> Result<Vec<String>> {
        let config = WebConfig::parse(&self.path, &self.text)?;
        let options = GateOptions { file: Some(self.path.clone()), ..GateOptions::default() };
        load(&options, &Budget::unlimited()).1?;
        Ok(config.warnings)
    }

    /// Whether `secret` is the password or a token of a user.
    ///
    /// # Errors
    /// Those of the file; `NotFound` for an unknown user.
    pub fn is_secret_of(&self, name: &str, secret: &str) -> Result<bool> {
        let config = WebConfig::parse(&self.path, &self.text)?;
        let account = config.accounts.iter().find(|account| account.name == name);
        let account = account.ok_or_else(|| self.unknown(name))?;
        let token = digest(&SHA256, secret.as_bytes());
        let is_token = account.tokens.iter().any(|known| is_equal(known, token.as_ref()));
        let hash = account.password.as_ref();
        Ok(is_token || hash.is_some_and(|hash| bcrypt::verify(secret, &hash.0).unwrap_or(false)))
    }

    /// Adds a user.
    ///
    /// # Errors
    /// `Invalid` for a user that is there already, and for a file that must be changed by hand.
    pub fn add(&mut self, user: &NewUser) -> Result<()> {
        check_name(&user.name).map_err(Error::invalid)?;
        let document = self.document()?;
        let users = users_of(&document);
        if find_user(users, &user.name).is_some() {
            let what = format!("{}: user {:?} exists", self.path.display(), excerpt(&user.name));
            return Err(Error::invalid(what));
        }
        let mut fields = vec![format!("name: {}", quoted(&user.name))];
        fields.push(format!("roles: [{}]", user.roles.join(", ")));
        fields.extend(user.password_hash.iter().map(|hash| format!("password: {}", quoted(hash))));
        fields.extend(user.matchers.iter().map(|text| format!("matchers: {}", quoted(text))));
        let lines = |indent: usize| {
            let first = format!("{:indent$}- {}\n", "", fields[0]);
            let rest = fields[1..].iter().map(|field| format!("{:indent$}  {field}\n", ""));
            std::iter::once(first).chain(rest).collect::<String>()
        };
        let changed = match users {
            Some(users) => match self.indent_below(users) {
                Some(indent) => self.with_lines(users.line, &lines(indent)),
                None => return Err(self.by_hand("users", &lines(2))),
            },
            None => {
                let mut text = self.text.clone();
                if !text.is_empty() && !text.ends_with('\n') {
                    text.push('\n');
                }
                text + "users:\n" + &lines(2)
            }
        };
        // Its own refusal, such as that of matchers with a role that writes.
        summaries(Path::new("the new user"), &format!("users:\n{}", lines(2)))?;
        self.change(changed, "users", &lines(2), |before, after| {
            let is_new = |one: &UserSummary| before.iter().all(|other| other.name != one.name);
            let is_known = before.iter().any(|one| one.name == user.name);
            after.len() == before.len() + usize::from(!is_known)
                && after.iter().filter(|one| is_new(one)).all(|one| one.name == user.name)
        })
    }

    /// Adds a token to a user and returns it. The file contains only its digest.
    ///
    /// # Errors
    /// `NotFound` for an unknown user; as [`UserFile::add`].
    pub fn add_token(&mut self, name: &str) -> Result<String> {
        let mut random = [0; TOKEN_BYTES];
        SystemRandom::new()
            .fill(&mut random)
            .map_err(|_| Error::unavailable("the random number generator of the system failed"))?;
        let token = format!("firn_{}", hexadecimal(&random));
        let hash = format!("sha256:{}", hexadecimal(digest(&SHA256, token.as_bytes()).as_ref()));
        let document = self.document()?;
        let users = users_of(&document);
        let Some(user) = find_user(users, name) else {
            let is_basic = self.users()?.iter().any(|one| one.name == name);
            return Err(match is_basic {
                true => Error::invalid(format!(
                    "user {name:?} is in basic_auth_users only; add roles by `firn user add \
                     {name} --no-password`, it keeps its password"
                )),
                false => self.unknown(name),
            });
        };
        let indent = user.column.saturating_sub(1);
        let by_hand = format!("    tokens:\n      - {hash}\n");
        let changed = match section::find(user, "tokens") {
            Some(tokens) => {
                let Some(indent) = self.indent_below(tokens) else {
                    return Err(self.by_hand(name, &by_hand));
                };
                self.with_lines(tokens.line, &format!("{:indent$}- {hash}\n", ""))
            }
            None => {
                let is_block = self.line(user.line).as_bytes().get(indent) != Some(&b'{');
                let Some(named) = section::find(user, "name").filter(|_| is_block) else {
                    return Err(self.by_hand(name, &by_hand));
                };
                let lines = format!("{:indent$}tokens:\n{:indent$}  - {hash}\n", "", "");
                self.with_lines(named.line, &lines)
            }
        };
        self.change(changed, name, &by_hand, |before, after| {
            let count = |all: &[UserSummary]| {
                all.iter().find(|one| one.name == name).map_or(0, |one| one.token_count)
            };
            after.len() == before.len() && count(after) == count(before) + 1
        })?;
        Ok(token)
    }

    /// Replaces the file, which only its owner can read, or its group if it could before.
    fn save(&self) -> Result<()> {
        let cannot = |e: io::Error| {
            Error::unavailable(format!("cannot write {}", self.path.display())).because(e)
        };
        let new = new_file_of(&self.path);
        // Left by a run that was killed. No other run is between these lines: they hold the lock.
        match fs::remove_file(&new) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(cannot(e)),
            _ => {}
        }
        let saved = self.write_new(&new).and_then(|()| fs::rename(&new, &self.path));
        saved.map_err(|e| {
            let _ = fs::remove_file(&new);
            cannot(e)
        })
    }

    /// Writes the text to a file that does not exist yet.
    fn write_new(&self, new: &Path) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new)?;
        file.write_all(self.text.as_bytes())?;
        let mut mode = 0o600;
        if let Ok(before) = fs::metadata(&self.path) {
            mode = before.mode() & 0o640 | 0o600;
            // A server that runs as another user must be able to read it. Only root may change the
            // owner; others keep their own file.
            let owner = (before.uid(), before.gid());
            let _ = std::os::unix::fs::fchown(&file, Some(owner.0), Some(owner.1));
        }
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.sync_all()
    }

    fn change(
        &mut self,
        text: String,
        place: &str,
        lines: &str,
        is_right: impl FnOnce(&[UserSummary], &[UserSummary]) -> bool,
    ) -> Result<()> {
        let before = self.users()?;
        match summaries(&self.path, &text) {
            Ok(after) if is_right(&before, &after) => {
                self.text = text;
                Ok(())
            }
            _ => Err(self.by_hand(place, lines)),
        }
    }

    fn document(&self) -> Result<Document> {
        section::parse(&self.path.display().to_string(), &self.text, &Budget::unlimited())
    }

    fn line(&self, line: usize) -> &str {
        self.text.lines().nth(line.saturating_sub(1)).unwrap_or_default()
    }

    /// The column of the dashes of a list below a key; `None` if it is not a list of lines.
    fn indent_below(&self, entry: KeyValue<'_>) -> Option<usize> {
        let key_line = self.line(entry.line);
        let ends_there =
            key_line.split('#').next().is_some_and(|key| key.trim_end().ends_with(':'));
        let column = key_line.len() - key_line.trim_start_matches([' ', '-']).len();
        match &entry.value.value {
            _ if !ends_there => None,
            NodeValue::Null => Some(column + 2),
            NodeValue::List(items) => {
                let line = self.line(items.first()?.line);
                let indent = line.len() - line.trim_start().len();
                line.trim_start().starts_with('-').then_some(indent)
            }
            _ => None,
        }
    }

    /// The text with `lines` after a line.
    fn with_lines(&self, after: usize, lines: &str) -> String {
        let mut text = String::new();
        for (idx, line) in self.text.split_inclusive('\n').enumerate() {
            text.push_str(line);
            if idx + 1 == after {
                if !line.ends_with('\n') {
                    text.push('\n');
                }
                text.push_str(lines);
            }
        }
        text
    }

    fn by_hand(&self, place: &str, lines: &str) -> Error {
        let path = self.path.display();
        Error::invalid(format!(
            "{path} has a layout that this command does not change; add to {place} by hand:\n{lines}"
        ))
    }

    fn unknown(&self, name: &str) -> Error {
        let name = excerpt(name);
        Error::not_found(format!("{} has no user {name:?}", self.path.display()))
    }
}

fn users_of(document: &Document) -> Option<KeyValue<'_>> {
    section::find(document.root.as_deref()?, "users")
}

fn find_user<'a>(users: Option<KeyValue<'a>>, name: &str) -> Option<&'a Node> {
    let NodeValue::List(items) = &users?.value.value else { return None };
    let is_it = |item: &&Node| {
        let named = section::find(item, "name");
        named.and_then(|entry| section::scalar(entry.value)) == Some(name)
    };
    items.iter().map(AsRef::as_ref).find(is_it)
}

fn summaries(path: &Path, text: &str) -> Result<Vec<UserSummary>> {
    let summary = |account: &std::sync::Arc<super::account::Account>| UserSummary {
        name: account.name.clone(),
        roles: account.roles.names(),
        has_password: account.password.is_some(),
        token_count: account.tokens.len(),
        matcher_count: account.scope.len(),
    };
    Ok(WebConfig::parse(path, text)?.accounts.iter().map(summary).collect())
}

/// A text as YAML: a JSON string is one.
fn quoted(text: &str) -> String {
    let mut quoted = Vec::new();
    json::push_string(text, &mut quoted);
    String::from_utf8_lossy(&quoted).into_owned()
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str, role: &str) -> NewUser {
        let hash = bcrypt::hash("secret", 4).unwrap();
        let roles = vec![role.to_owned()];
        NewUser { name: name.to_owned(), password_hash: Some(hash), roles, matchers: None }
    }

    fn file(text: &str) -> UserFile {
        UserFile { path: "/nowhere/web.yml".into(), text: text.to_owned() }
    }

    #[test]
    fn users_and_tokens_are_added_and_comments_stay() {
        for text in [
            "",
            "# TLS comes later\nhttp_server_config: {http2: false}",
            "users:\n",
            "users: # people\n# the first\n- name: eve\n  roles: [read]\nrate_limit: {burst: 1}\n",
            "users:\n    - roles: [read]\n      name: eve\n      tokens:\n",
        ] {
            let mut changed = file(text);
            changed.add(&user("al \"x\"", "read")).unwrap();
            changed
                .add(&NewUser { matchers: Some("{a=\"b\"}".into()), ..user("bob", "read") })
                .unwrap();
            let tokens = [(); 2].map(|()| changed.add_token("bob").unwrap());
            assert!(changed.is_secret_of("bob", &tokens[0]).unwrap(), "{}", changed.text);
            assert!(changed.is_secret_of("bob", &tokens[1]).unwrap());
            assert!(changed.is_secret_of("al \"x\"", "secret").unwrap());
            assert!(!changed.is_secret_of("bob", "firn_0").unwrap());
            assert!(!changed.text.contains(&tokens[0]));
            if text.contains("eve") {
                changed.add_token("eve").unwrap();
            }
            for line in text.lines() {
                assert!(changed.text.lines().any(|kept| kept == line), "{line}\n{}", changed.text);
            }
            let bob = changed.users().unwrap().into_iter().find(|one| one.name == "bob").unwrap();
            assert_eq!((bob.token_count, bob.matcher_count, bob.roles), (2, 1, vec!["read"]));
            let twice = changed.add(&user("bob", "read")).unwrap_err().to_string();
            assert!(twice.contains("exists"), "{twice}");
        }
    }

    #[test]
    fn other_layouts_are_left_alone() {
        for text in
            ["users: [{name: bob, roles: [read]}]\n", "{users: [{name: bob, roles: [read]}]}\n"]
        {
            let mut flow = file(text);
            let error = flow.add(&user("eve", "read")).unwrap_err().to_string();
            assert!(error.contains("by hand") && error.contains("eve"), "{error}");
            assert!(flow.add_token("bob").unwrap_err().to_string().contains("by hand"));
            assert_eq!(flow.text, text);
        }
        let mut empty = file("");
        assert!(empty.add_token("eve").unwrap_err().to_string().contains("no user"));
    }

    /// Before, in a file with users, the refusal was that the file's layout is not changed.
    #[test]
    fn a_refused_user_is_at_fault_and_not_the_file() {
        for text in ["", "users:\n- name: bob\n  roles: [read]\nrate_limit: {burst: 1}\n"] {
            let mut file = file(text);
            let mut error_of = |new: NewUser| {
                let error = file.add(&new).unwrap_err().to_string();
                assert_eq!(file.text, text);
                error
            };
            let too_long = "é".repeat(51);
            for name in ["", "a:b", "a\nb", &too_long] {
                let error = error_of(user(name, "read"));
                let wanted = format!(
                    "user {:?}: expected a name of 1 to 100 bytes without \":\", which ends the \
                     name in a login, and without control characters, which would break lines of \
                     logs",
                    excerpt(name)
                );
                assert_eq!(error, wanted);
            }
            assert!(error_of(user("eve", "king")).contains("roles: expected read, write or admin"));
            let scoped = NewUser { matchers: Some("{a=\"b\"}".into()), ..user("eve", "admin") };
            assert!(error_of(scoped).contains("matchers: are for users with role read only"));
        }
    }

    /// A run that is killed leaves the file that it writes.
    #[test]
    fn the_file_of_a_killed_run_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["web.yml", "other"].map(|name| folder.path().join(name));
        fs::write(&other, "kept").unwrap();
        let new = new_file_of(&path);
        let left: [&dyn Fn(); 2] = [&|| fs::write(&new, "users:\n- na").unwrap(), &|| {
            std::os::unix::fs::symlink(&other, &new).unwrap();
        }];
        for (id, leave) in left.into_iter().enumerate() {
            leave();
            UserFile::update(&path, |file| file.add(&user(&format!("u{id}"), "read"))).unwrap();
            assert_eq!(UserFile::open(&path).unwrap().users().unwrap().len(), id + 1);
        }
        let names = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!((names, fs::read_to_string(&other).unwrap().as_str()), (2, "kept"));
    }

    #[test]
    fn changes_at_once_are_all_kept_and_links_stay() {
        let folder = tempfile::tempdir().unwrap();
        let [path, link, broken] =
            ["web.yml", "link.yml", "broken.yml"].map(|name| folder.path().join(name));
        fs::write(&path, "").unwrap();
        std::os::unix::fs::symlink("web.yml", &link).unwrap();
        std::os::unix::fs::symlink("missing.yml", &broken).unwrap();
        std::thread::scope(|scope| {
            for id in 0..8 {
                let target = if id % 2 == 0 { &path } else { &link };
                let new = user(&format!("u{id}"), "read");
                scope.spawn(move || UserFile::update(target, |file| file.add(&new)).unwrap());
            }
        });
        assert_eq!(UserFile::open(&path).unwrap().users().unwrap().len(), 8);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let error = UserFile::update(&broken, |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("is a link that cannot be followed"), "{error}");
    }

    #[test]
    fn a_saved_file_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web.yml");
        UserFile::update(&path, |file| file.add(&user("bob", "read"))).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        UserFile::update(&path, |file| file.add_token("bob")).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        assert_eq!(UserFile::open(&path).unwrap().users().unwrap()[0].token_count, 1);
        assert!(hash_password("").is_err() && hash_password(&"x".repeat(73)).is_err());
    }
}
