//! Creates clients of an object store from a URL and environment variables.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use firn_model::{Error, Result, excerpt_within, redacted};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, Checksum};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path;
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig};

use super::http::Connector;
use crate::given_file;

/// The clients of one bucket. They differ in retries and time-outs.
pub(super) struct Stores {
    /// For idempotent requests.
    pub(super) retrying: Arc<dyn ObjectStore>,
    /// For the parts of a large object: they share the bandwidth, so each may take as long as the
    /// whole call.
    pub(super) patient: Arc<dyn ObjectStore>,
    /// For large reads: resumes where the body stopped until the caller stops waiting. Never
    /// reports the cause of a failure.
    pub(super) enduring: Arc<dyn ObjectStore>,
    /// For conditional puts, which the caller retries itself.
    pub(super) once: Arc<dyn ObjectStore>,
    /// Whether conditions compare generations (Google) rather than entity tags.
    pub(super) compares_generations: bool,
    pub(super) files: CredentialFiles,
    pub(super) secrets: Secrets,
}

/// Files with credentials, by the variables that name them. The clients open them without a check,
/// some again whenever a token expires.
pub(super) struct CredentialFiles(Vec<(String, PathBuf)>);

/// Longer than any caller waits: 1 GiB at 1 MiB/s takes 1,024 s.
const CALL_MAX: Duration = Duration::from_secs(3_600);

/// Retries and time-outs of one client.
struct Tuning {
    retry: RetryConfig,
    request_timeout: Duration,
    connect_timeout: Duration,
}

/// Builds a client from the bucket, the variables (names in lower case) and the tuning.
type Build = fn(&str, &[(String, String)], Tuning) -> Result<Arc<dyn ObjectStore>>;

/// Creates the clients of the bucket that `url` names; also returns the prefix of its keys.
pub(super) fn open(
    url: &str,
    variables: impl IntoIterator<Item = (String, String)>,
    give_up: Duration,
) -> Result<(Stores, Path)> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let shown = redacted(url);
    if bucket.is_empty() || shown != url {
        return Err(Error::invalid(format!(
            "{shown} names no bucket: expected {scheme}://bucket/prefix; credentials are variables \
             of the environment, such as AWS_SECRET_ACCESS_KEY"
        )));
    }
    let prefix = Path::parse(prefix.trim_matches('/'))
        .map_err(|e| Error::invalid(format!("{url}: the prefix is not a valid key")).because(e))?;
    let (build, file_variables): (Build, &[&str]) = match scheme {
        "s3" | "s3a" => (s3, &S3_FILES),
        "gs" => (google, &GOOGLE_FILES),
        "az" | "azure" => (azure, &AZURE_FILES),
        _ => {
            return Err(Error::invalid(format!(
                "{url}: unknown scheme, expected s3://, gs:// or az://"
            )));
        }
    };
    let variables: Vec<(String, String)> =
        variables.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
    check_characters(&variables)?;
    let mut files = CredentialFiles::of(&variables, file_variables);
    if scheme == "gs" {
        files.0.extend(google_default());
    }
    files.check()?;
    // Each client opens the file that the process's own environment names.
    given_file::check_authorities()?;
    let stores = Stores {
        retrying: build(bucket, &variables, Tuning::retrying(give_up))?,
        patient: build(bucket, &variables, Tuning::patient(give_up))?,
        enduring: build(bucket, &variables, Tuning::enduring(give_up))?,
        once: build(bucket, &variables, Tuning::once(give_up))?,
        compares_generations: scheme == "gs",
        files,
        secrets: Secrets::of(&variables),
    };
    Ok((stores, prefix))
}

// Beginnings of the names of variables.
const S3_VARIABLES: &[&str] = &["aws_"];
const GOOGLE_VARIABLES: &[&str] = &["google_", "service_account"];
const AZURE_VARIABLES: &[&str] = &["azure_", "identity_", "msi_"];

const S3_FILES: [&str; 2] =
    ["aws_web_identity_token_file", "aws_container_authorization_token_file"];
const GOOGLE_FILES: [&str; 5] = [
    "google_service_account",
    "google_service_account_path",
    "google_application_credentials",
    "service_account",
    "service_account_path",
];
const AZURE_FILES: [&str; 1] = ["azure_federated_token_file"];

/// The variables of `environment` as text.
///
/// # Errors
/// `Invalid` for one that a store reads and that is not UTF-8: its file could not be checked.
pub(super) fn text_variables(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Vec<(String, String)>> {
    let mut variables = Vec::new();
    for (name, value) in environment {
        let Ok(name) = name.into_string() else { continue };
        match value.into_string() {
            Ok(value) => variables.push((name, value)),
            Err(_) if is_read(&name) => {
                return Err(Error::invalid(format!("{name}: expected UTF-8")));
            }
            Err(_) => {}
        }
    }
    Ok(variables)
}

/// Whether a client of a store may read the variable.
fn is_read(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [S3_VARIABLES, GOOGLE_VARIABLES, AZURE_VARIABLES].concat().iter().any(|p| name.starts_with(p))
}

/// The clients panic on values that are no header.
fn check_characters(variables: &[(String, String)]) -> Result<()> {
    let is_bad = |(name, value): &&(String, String)| {
        is_read(name) && !name.contains("service_account") && value.contains(char::is_control)
    };
    match variables.iter().find(is_bad) {
        Some((name, _)) => {
            let name = name.to_uppercase();
            Err(Error::invalid(format!("{name}: expected a text without control characters")))
        }
        None => Ok(()),
    }
}

/// The file that Google's client reads if no variable names one.
fn google_default() -> Option<(String, PathBuf)> {
    let home = PathBuf::from(std::env::var_os("HOME")?);
    let path = home.join(".config/gcloud/application_default_credentials.json");
    Some(("the default credentials of Google".to_owned(), path))
}

impl CredentialFiles {
    fn of(variables: &[(String, String)], names: &[&str]) -> CredentialFiles {
        let files = variables
            .iter()
            .filter(|(name, value)| names.contains(&name.as_str()) && !value.is_empty());
        let file = |(name, path): &(String, String)| (name.to_uppercase(), PathBuf::from(path));
        CredentialFiles(files.map(file).collect())
    }

    /// Checks that opening and reading them does not wait.
    ///
    /// # Errors
    /// `Invalid`, naming variable and file. A missing file is none of theirs.
    pub(super) fn check(&self) -> Result<()> {
        self.0.iter().try_for_each(|(variable, path)| given_file::check(path, variable))
    }
}

impl Tuning {
    /// The last attempt starts after two thirds of the call's time and lasts up to one third, so
    /// that its cause is known before the call times out.
    fn retrying(give_up: Duration) -> Tuning {
        let backoff = BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(5),
            base: 2.0,
        };
        Tuning {
            retry: RetryConfig { backoff, max_retries: 10, retry_timeout: give_up * 2 / 3 },
            request_timeout: give_up / 3,
            connect_timeout: (give_up / 3).min(Duration::from_secs(5)),
        }
    }

    /// Relies on the caller's deadline, which depends on the number of bytes.
    fn patient(give_up: Duration) -> Tuning {
        let Tuning { retry, connect_timeout, .. } = Tuning::retrying(give_up);
        let retry = RetryConfig { retry_timeout: CALL_MAX, ..retry };
        Tuning { retry, request_timeout: CALL_MAX, connect_timeout }
    }

    /// As `patient`, but an attempt waits for a body only as long as elsewhere: a stalled read is
    /// detected, and a slow one resumes where it stopped.
    fn enduring(give_up: Duration) -> Tuning {
        let Tuning { retry, request_timeout, connect_timeout } = Tuning::retrying(give_up);
        let retry = RetryConfig { retry_timeout: CALL_MAX, max_retries: usize::MAX, ..retry };
        Tuning { retry, request_timeout, connect_timeout }
    }

    fn once(give_up: Duration) -> Tuning {
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        Tuning { retry, ..Tuning::patient(give_up) }
    }

    fn settings(&self) -> [(ClientConfigKey, String); 2] {
        let ms = |duration: Duration| format!("{} ms", duration.as_millis().max(1));
        [
            (ClientConfigKey::Timeout, ms(self.request_timeout)),
            (ClientConfigKey::ConnectTimeout, ms(self.connect_timeout)),
        ]
    }
}

fn s3(
    bucket: &str,
    variables: &[(String, String)],
    tuning: Tuning,
) -> Result<Arc<dyn ObjectStore>> {
    refuse_silent_http(variables)?;
    // The store compares the received bytes with this checksum, in addition to TLS.
    let mut builder = AmazonS3Builder::new().with_checksum_algorithm(Checksum::SHA256);
    for (key, value) in known::<AmazonS3ConfigKey>(variables, S3_VARIABLES) {
        builder = builder.with_config(key, value);
    }
    for (key, value) in tuning.settings() {
        builder = builder.with_config(AmazonS3ConfigKey::Client(key), value);
    }
    builder = builder.with_http_connector(Connector);
    let built = builder.with_bucket_name(bucket).with_retry(tuning.retry).build();
    Ok(Arc::new(built.map_err(|e| unusable("s3", bucket, ("AWS_*", variables), e))?))
}

fn google(
    bucket: &str,
    variables: &[(String, String)],
    tuning: Tuning,
) -> Result<Arc<dyn ObjectStore>> {
    let mut builder = GoogleCloudStorageBuilder::new();
    for (key, value) in known::<GoogleConfigKey>(variables, GOOGLE_VARIABLES) {
        builder = builder.with_config(key, value);
    }
    for (key, value) in tuning.settings() {
        builder = builder.with_config(GoogleConfigKey::Client(key), value);
    }
    builder = builder.with_http_connector(Connector);
    let built = builder.with_bucket_name(bucket).with_retry(tuning.retry).build();
    Ok(Arc::new(built.map_err(|e| unusable("gs", bucket, ("GOOGLE_*", variables), e))?))
}

fn azure(
    bucket: &str,
    variables: &[(String, String)],
    tuning: Tuning,
) -> Result<Arc<dyn ObjectStore>> {
    let mut builder = MicrosoftAzureBuilder::new();
    for (key, value) in known::<AzureConfigKey>(variables, AZURE_VARIABLES) {
        builder = builder.with_config(key, value);
    }
    for (key, value) in tuning.settings() {
        builder = builder.with_config(AzureConfigKey::Client(key), value);
    }
    builder = builder.with_http_connector(Connector);
    let built = builder.with_container_name(bucket).with_retry(tuning.retry).build();
    Ok(Arc::new(built.map_err(|e| unusable("az", bucket, ("AZURE_*", variables), e))?))
}

/// The variables that a client knows. Others with the same prefix belong to other programs.
fn known<K: FromStr>(
    variables: &[(String, String)],
    prefixes: &[&str],
) -> impl Iterator<Item = (K, String)> {
    let ours = variables.iter().filter(|variable| {
        prefixes.iter().any(|prefix| variable.0.starts_with(prefix)) && !variable.1.is_empty()
    });
    ours.filter_map(|(name, value)| Some((name.parse().ok()?, value.clone())))
}

/// The client would report this only at the first request, deep in a chain of causes.
fn refuse_silent_http(variables: &[(String, String)]) -> Result<()> {
    let value = |name: &str| variables.iter().find(|variable| variable.0 == name).map(|v| &*v.1);
    let endpoint = value("aws_endpoint_url").or(value("aws_endpoint")).unwrap_or_default();
    let allowed = value("aws_allow_http").is_some_and(|v| matches!(v, "true" | "1" | "TRUE"));
    if endpoint.starts_with("http://") && !allowed {
        return Err(Error::invalid(format!(
            "AWS_ENDPOINT is {}, which is not encrypted: use https, or set AWS_ALLOW_HTTP=true",
            redacted(endpoint)
        )));
    }
    Ok(())
}

fn unusable(
    scheme: &str,
    bucket: &str,
    (names, variables): (&str, &[(String, String)]),
    error: object_store::Error,
) -> Error {
    let cause = ShownCause::new(&error, &Secrets::of(variables));
    Error::invalid(format!(
        "{scheme}://{bucket}: the settings are invalid; check the variables {names}"
    ))
    .because(cause)
}

/// The credentials in the variables.
pub(super) struct Secrets(Vec<String>);

/// Shorter texts may be a part of any word.
const SECRET_BYTES_MIN: usize = 4;

impl Secrets {
    fn of(variables: &[(String, String)]) -> Secrets {
        let is_secret = |name: &str| {
            let parts = ["key", "secret", "token", "password", "credential", "header"];
            let is_named = parts.iter().any(|part| name.contains(part));
            is_named && is_read(name) && !name.ends_with("_id") && !name.ends_with("_file")
        };
        let is_long = |value: &str| value.len() >= SECRET_BYTES_MIN;
        let secrets = variables.iter().filter(|(name, value)| is_secret(name) && is_long(value));
        Secrets(secrets.map(|(_, value)| value.clone()).collect())
    }

    /// `text` without them: a store may repeat a request in its error, and a client that cannot
    /// read a variable may quote it.
    fn hide(&self, text: String) -> String {
        let text = self.0.iter().fold(text, |text, secret| text.replace(secret.as_str(), HIDDEN));
        LEASED_MARKS.iter().fold(text, |text, mark| hide_behind(text, mark))
    }
}

/// In place of a secret.
const HIDDEN: &str = "xxxxx";
/// The beginnings of credentials that no variable has: those that a service lends to the machine.
/// S3 quotes an expired token in `<Token-0>`.
const LEASED_MARKS: [&str; 4] =
    ["bearer ", "x-amz-security-token: ", "x-amz-security-token=", "<token-0>"];

/// `text` without the word behind each `mark`, which is in lower case.
fn hide_behind(text: String, mark: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let mut shown = String::new();
    let mut shown_to: usize = 0;
    for (at, _) in lower.match_indices(mark) {
        let start = at.saturating_add(mark.len());
        let Some(rest) = text.get(start..).filter(|_| at >= shown_to) else { continue };
        let is_end = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '&' | '\\');
        let word_len = rest.find(is_end).unwrap_or(rest.len());
        shown.push_str(text.get(shown_to..start).unwrap_or_default());
        shown.push_str(HIDDEN);
        shown_to = start.saturating_add(word_len);
    }
    shown.push_str(text.get(shown_to..).unwrap_or_default());
    shown
}

/// The text of a store's error and its causes, without credentials.
#[derive(Debug)]
pub(super) struct ShownCause {
    text: String,
    /// Whether a retry can succeed: wrong credentials, for example, stay wrong.
    pub(super) is_transient: bool,
}

/// Room for several causes, each with an XML error of the store.
const CAUSE_BYTES_MAX: usize = 2_048;

impl ShownCause {
    pub(super) fn new(error: &object_store::Error, secrets: &Secrets) -> ShownCause {
        let mut text = error.to_string();
        let mut next = std::error::Error::source(error);
        while let Some(cause) = next {
            let cause_text = cause.to_string();
            // Some errors repeat their cause.
            if !text.contains(&cause_text) {
                text.push_str(": ");
                text.push_str(&cause_text);
            }
            next = cause.source();
        }
        let is_transient = matches!(error, object_store::Error::Generic { .. });
        // A store may quote in its error as much as it likes.
        let text = secrets.hide(redacted(&text).into_owned());
        let text = excerpt_within(&text, CAUSE_BYTES_MAX).into_owned();
        ShownCause { text, is_transient }
    }
}

impl fmt::Display for ShownCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for ShownCause {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Credentials of a role are in no variable; S3 quotes an expired one.
    #[test]
    fn credentials_that_are_lent_to_the_machine_stay_hidden() {
        let secrets = Secrets(Vec::new());
        for (text, want) in [
            ("", ""),
            ("Bearer", "Bearer"),
            ("no token", "no token"),
            (
                "<Code>ExpiredToken</Code><Token-0>abc/d+e=</Token-0>",
                "<Code>ExpiredToken</Code><Token-0>xxxxx</Token-0>",
            ),
            ("X-Amz-Security-Token: abc\r\nhost: h", "X-Amz-Security-Token: xxxxx\r\nhost: h"),
            ("?X-Amz-Security-Token=abc&X-Amz-Date=1", "?X-Amz-Security-Token=xxxxx&X-Amz-Date=1"),
            ("{\"a\": \"Bearer ya29.x\"} bearer y", "{\"a\": \"Bearer xxxxx\"} bearer xxxxx"),
            ("bearer bearer é", "bearer xxxxx é"),
        ] {
            assert_eq!(secrets.hide(text.to_owned()), want);
        }
    }
}
