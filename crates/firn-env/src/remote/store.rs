//! Creates clients of an object store from a URL and environment variables.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use firn_model::{Error, Result, redacted};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, Checksum};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path;
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig};

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
}

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
    let build: Build = match scheme {
        "s3" | "s3a" => s3,
        "gs" => google,
        "az" | "azure" => azure,
        _ => {
            return Err(Error::invalid(format!(
                "{url}: unknown scheme, expected s3://, gs:// or az://"
            )));
        }
    };
    let variables: Vec<(String, String)> =
        variables.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
    let stores = Stores {
        retrying: build(bucket, &variables, Tuning::retrying(give_up))?,
        patient: build(bucket, &variables, Tuning::patient(give_up))?,
        enduring: build(bucket, &variables, Tuning::enduring(give_up))?,
        once: build(bucket, &variables, Tuning::once(give_up))?,
        compares_generations: scheme == "gs",
    };
    Ok((stores, prefix))
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
    for (key, value) in known::<AmazonS3ConfigKey>(variables, &["aws_"]) {
        builder = builder.with_config(key, value);
    }
    for (key, value) in tuning.settings() {
        builder = builder.with_config(AmazonS3ConfigKey::Client(key), value);
    }
    let built = builder.with_bucket_name(bucket).with_retry(tuning.retry).build();
    Ok(Arc::new(built.map_err(|e| unusable("s3", bucket, ("AWS_*", variables), e))?))
}

fn google(
    bucket: &str,
    variables: &[(String, String)],
    tuning: Tuning,
) -> Result<Arc<dyn ObjectStore>> {
    let mut builder = GoogleCloudStorageBuilder::new();
    for (key, value) in known::<GoogleConfigKey>(variables, &["google_", "service_account"]) {
        builder = builder.with_config(key, value);
    }
    for (key, value) in tuning.settings() {
        builder = builder.with_config(GoogleConfigKey::Client(key), value);
    }
    let built = builder.with_bucket_name(bucket).with_retry(tuning.retry).build();
    Ok(Arc::new(built.map_err(|e| unusable("gs", bucket, ("GOOGLE_*", variables), e))?))
}

fn azure(
    bucket: &str,
    variables: &[(String, String)],
    tuning: Tuning,
) -> Result<Arc<dyn ObjectStore>> {
    let mut builder = MicrosoftAzureBuilder::new();
    for (key, value) in known::<AzureConfigKey>(variables, &["azure_", "identity_", "msi_"]) {
        builder = builder.with_config(key, value);
    }
    for (key, value) in tuning.settings() {
        builder = builder.with_config(AzureConfigKey::Client(key), value);
    }
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
    let mut cause = ShownCause::new(&error);
    // A client that cannot read a variable may quote it.
    const QUOTED_BYTES_MIN: usize = 4;
    let is_secret = |name: &str| {
        ["key", "secret", "token", "password", "credential"].iter().any(|part| name.contains(part))
    };
    for (_, value) in variables.iter().filter(|variable| is_secret(&variable.0)) {
        if value.len() >= QUOTED_BYTES_MIN {
            cause.0 = cause.0.replace(value.as_str(), "xxxxx");
        }
    }
    Error::invalid(format!(
        "{scheme}://{bucket}: the settings are invalid; check the variables {names}"
    ))
    .because(cause)
}

/// The text of a store's error and its causes, without the credentials of the URLs in it.
#[derive(Debug)]
pub(super) struct ShownCause(String);

impl ShownCause {
    pub(super) fn new(error: &object_store::Error) -> ShownCause {
        ShownCause(redacted(&error.to_string()).into_owned())
    }
}

impl fmt::Display for ShownCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ShownCause {}
