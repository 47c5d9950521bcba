//! `firn user`: users of the web configuration.

use std::io::{BufRead, IsTerminal, Read, Write};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use firn_server::{Error, NewUser, Result, UserFile, hash_password, one_line};

use crate::output;

/// `firn user`.
#[derive(Debug, Subcommand)]
pub(crate) enum User {
    /// Add a user with a password and roles
    ///
    /// The password is read from standard input, without echo on a terminal. The file is created if
    /// it is missing; comments in it stay. A running server reads the change by itself.
    Add(Add),
    /// Make a token for a user and print it, once
    ///
    /// The file contains only its digest. Clients send the header `Authorization: Bearer TOKEN`.
    Token(Named),
    /// Check the file as a server does, and list its users
    ///
    /// With NAME it reads a password or token from standard input and fails if that is wrong.
    Check(Checked),
}

#[derive(Debug, Args)]
struct FileArgument {
    /// The file of --web-config
    #[arg(long, env = "FIRN_WEB_CONFIG", value_name = "FILE")]
    web_config: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Add {
    #[command(flatten)]
    file: FileArgument,

    /// Name of the user
    name: String,

    /// Role of the user; may be repeated
    #[arg(long, value_name = "ROLE", default_value = "read", value_delimiter = ',',
        value_parser = ["read", "write", "admin"])]
    role: Vec<String>,

    /// Series that the user may read, as a selector: '{team="a"}'
    #[arg(long, value_name = "SELECTOR")]
    matchers: Option<String>,

    /// Add no password: the user logs in with tokens, or has one in basic_auth_users
    #[arg(long)]
    no_password: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Named {
    #[command(flatten)]
    file: FileArgument,

    /// Name of the user
    name: String,
}

#[derive(Debug, Args)]
pub(crate) struct Checked {
    #[command(flatten)]
    file: FileArgument,

    /// Name of a user whose password or token is checked
    name: Option<String>,
}

/// Changes or checks the file.
///
/// # Errors
/// `Invalid` for a file, a user or a secret that is refused; `Unavailable` when the disk fails.
pub(crate) fn user(user: &User) -> Result<()> {
    match user {
        User::Add(add) => {
            let mut new = NewUser {
                name: add.name.clone(),
                password_hash: None,
                roles: add.role.clone(),
                matchers: add.matchers.clone(),
            };
            // Mistakes are reported before the password is read.
            UserFile::open(&add.file.web_config)?.add(&new)?;
            if !add.no_password {
                new.password_hash = Some(hash_password(&new_secret()?)?);
            }
            UserFile::update(&add.file.web_config, |file| file.add(&new))?;
            let path = add.file.web_config.display().to_string();
            output::print(&format!("{}: added {:?}\n", one_line(&path), add.name))?;
        }
        User::Token(named) => {
            let change = |file: &mut UserFile| file.add_token(&named.name);
            let token = UserFile::update(&named.file.web_config, change)?;
            output::print(&format!("{token}\n"))?;
        }
        User::Check(checked) => check(checked)?,
    }
    Ok(())
}

fn check(checked: &Checked) -> Result<()> {
    let path = checked.file.web_config.display().to_string();
    if !checked.file.web_config.exists() {
        return Err(Error::not_found(format!("{path} does not exist")));
    }
    let file = UserFile::open(&checked.file.web_config)?;
    if let Some(name) = &checked.name {
        return match file.is_secret_of(name, &secret("Password or token: ")?)? {
            true => {
                let shown = one_line(&path);
                output::print(&format!("{shown}: correct password or token for {name:?}\n"))
            }
            false => Err(Error::invalid(format!("{path}: wrong password or token for {name:?}"))),
        };
    }
    let mut text = String::new();
    for warning in file.check()? {
        text += &format!("warning: {}\n", one_line(&warning));
    }
    for user in file.users()? {
        let password = if user.has_password { "a password" } else { "no password" };
        let scope = if user.matcher_count > 0 { ", matchers" } else { "" };
        text += &format!(
            "{:?}: {}, {password}, {} tokens{scope}\n",
            user.name,
            user.roles.join("+"),
            user.token_count
        );
    }
    output::print(&format!("{text}{}: ok\n", one_line(&path)))
}

/// A new password; typed twice on a terminal.
fn new_secret() -> Result<String> {
    let password = secret("Password: ")?;
    if std::io::stdin().is_terminal() && secret("Again: ")? != password {
        return Err(Error::invalid("the two passwords differ"));
    }
    Ok(password)
}

/// The longest password or token.
const SECRET_BYTES_MAX: u64 = 4_096;

/// A line of standard input; without echo on a terminal.
fn secret(prompt: &str) -> Result<String> {
    use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
    let cannot = |e: std::io::Error| Error::unavailable("cannot read standard input").because(e);
    let input = std::io::stdin();
    let before = input.is_terminal().then(|| tcgetattr(&input).ok()).flatten();
    if let Some(before) = &before {
        let _ = write!(std::io::stderr(), "{prompt}");
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(&input, OptionalActions::Flush, &silent).map_err(|e| cannot(e.into()))?;
    }
    let mut line = String::new();
    let read = input.lock().take(SECRET_BYTES_MAX + 1).read_line(&mut line);
    if let Some(before) = &before {
        let _ = tcsetattr(&input, OptionalActions::Now, before);
        let _ = writeln!(std::io::stderr());
    }
    if read.map_err(cannot)? as u64 > SECRET_BYTES_MAX {
        return Err(Error::invalid(format!(
            "standard input: expected a line of at most {SECRET_BYTES_MAX} bytes"
        )));
    }
    let line = line.strip_suffix('\n').unwrap_or(&line);
    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
}
