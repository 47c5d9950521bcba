//! The credentials of requests to AWS, in the order in which the SDK looks for them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use firn_model::{Budget, Error, Result, Secret};
use serde::Deserialize;

use super::{AwsCredentials, AwsRequest, AwsService, document};
use crate::config::Files;
use crate::config::discovery::Ec2Discovery;

/// The origin of credentials.
#[derive(Clone, Debug, PartialEq)]
pub enum CredentialSource {
    /// Keys of the configuration, the environment or a file.
    Keys(AwsCredentials),
    /// A token of a file that STS exchanges for credentials of a role.
    WebIdentity {
        /// The file, which is read again at each exchange.
        token_file: PathBuf,
        /// The role.
        role_arn: String,
        /// The name of the session.
        session: String,
    },
    /// The metadata service of the instance.
    Instance,
}

/// The name of sessions in the logs of AWS.
const SESSION: &str = "firndb";
const STS_VERSION: &str = "2011-06-15";

impl CredentialSource {
    /// The source for `config`, by the environment and the files of the user.
    ///
    /// # Errors
    /// `Invalid` for a profile that is missing or of a kind that is not supported, and for sources
    /// that are not supported.
    pub fn of(
        config: &Ec2Discovery,
        env: &dyn Fn(&str) -> Option<String>,
        files: &dyn Files,
    ) -> Result<CredentialSource> {
        if !config.access_key.is_empty() || !config.secret_key.expose().is_empty() {
            return Ok(CredentialSource::Keys(AwsCredentials {
                access_key: config.access_key.clone(),
                secret_key: config.secret_key.clone(),
                session_token: Secret::new(""),
            }));
        }
        let variable = |name: &str| env(name).filter(|value| !value.is_empty());
        if config.profile.is_empty() {
            let keys = variable("AWS_ACCESS_KEY_ID").zip(variable("AWS_SECRET_ACCESS_KEY"));
            if let Some((access_key, secret_key)) = keys {
                let session_token = variable("AWS_SESSION_TOKEN").unwrap_or_default();
                return Ok(CredentialSource::Keys(AwsCredentials {
                    access_key,
                    secret_key: secret_key.into(),
                    session_token: session_token.into(),
                }));
            }
            let role = variable("AWS_WEB_IDENTITY_TOKEN_FILE").zip(variable("AWS_ROLE_ARN"));
            if let Some((token_file, role_arn)) = role {
                let session = variable("AWS_ROLE_SESSION_NAME");
                return Ok(CredentialSource::WebIdentity {
                    token_file: token_file.into(),
                    role_arn,
                    session: session.unwrap_or_else(|| SESSION.to_owned()),
                });
            }
        }
        let named = Some(config.profile.clone()).filter(|profile| !profile.is_empty());
        let named = named.or_else(|| variable("AWS_PROFILE"));
        let profile = named.clone().unwrap_or_else(|| "default".to_owned());
        let keys = profile_keys(&profile, &variable, files);
        match (keys.get("aws_access_key_id"), keys.get("aws_secret_access_key")) {
            (Some(access_key), Some(secret_key)) => {
                let session_token = keys.get("aws_session_token").cloned().unwrap_or_default();
                return Ok(CredentialSource::Keys(AwsCredentials {
                    access_key: access_key.clone(),
                    secret_key: Secret::new(secret_key.as_str()),
                    session_token: session_token.into(),
                }));
            }
            _ if named.is_some() => {
                return Err(Error::invalid(format!(
                    "profile {profile:?} has no aws_access_key_id and aws_secret_access_key; \
                     other kinds of profiles are not supported"
                )));
            }
            _ => {}
        }
        let container =
            ["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"];
        if let Some(name) = container.into_iter().find(|name| variable(name).is_some()) {
            return Err(Error::invalid(format!(
                "{name} is set: credentials of containers are not supported; use access_key, \
                 AWS_WEB_IDENTITY_TOKEN_FILE, or the role of the instance"
            )));
        }
        Ok(CredentialSource::Instance)
    }
}

/// The keys of a profile in the files of credentials and of the configuration; the first has
/// precedence.
fn profile_keys(
    profile: &str,
    variable: &dyn Fn(&str) -> Option<String>,
    files: &dyn Files,
) -> HashMap<String, String> {
    let path = |name: &str, file: &str| {
        let known = variable(name).map(PathBuf::from);
        known.or_else(|| Some(Path::new(&variable("HOME")?).join(".aws").join(file)))
    };
    let config = path("AWS_CONFIG_FILE", "config");
    let credentials = path("AWS_SHARED_CREDENTIALS_FILE", "credentials");
    let mut keys = HashMap::new();
    for path in [config, credentials].into_iter().flatten() {
        let text = files.read(&path).unwrap_or_default();
        let mut is_profile = false;
        for line in text.lines().map(str::trim) {
            if let Some(section) = line.strip_prefix('[') {
                let name = section.trim_end_matches(']').trim();
                is_profile = name.strip_prefix("profile ").unwrap_or(name).trim() == profile;
            } else if let Some((key, value)) = line.split_once('=').filter(|_| is_profile) {
                keys.insert(key.trim().to_lowercase(), value.trim().to_owned());
            }
        }
    }
    keys
}

/// The region of `config`, the environment or the user's files; `None` if only the metadata
/// service may know it.
pub fn known_region(
    config: &Ec2Discovery,
    env: &dyn Fn(&str) -> Option<String>,
    files: &dyn Files,
) -> Option<String> {
    let variable = |name: &str| env(name).filter(|value| !value.is_empty());
    let named = Some(config.region.clone()).filter(|region| !region.is_empty());
    let named = named.or_else(|| variable("AWS_REGION"));
    named.or_else(|| variable("AWS_DEFAULT_REGION")).or_else(|| {
        let profile = Some(config.profile.clone()).filter(|profile| !profile.is_empty());
        let profile = profile.or_else(|| variable("AWS_PROFILE"));
        let profile = profile.as_deref().unwrap_or("default");
        profile_keys(profile, &variable, files).remove("region")
    })
}

/// The request that exchanges a token for credentials of a role.
pub fn web_identity_request(
    token: &str,
    role_arn: &str,
    session: &str,
    region: &str,
) -> AwsRequest {
    let parameters = [
        ("Action".to_owned(), "AssumeRoleWithWebIdentity"),
        ("RoleArn".to_owned(), role_arn),
        ("RoleSessionName".to_owned(), session),
        ("WebIdentityToken".to_owned(), token),
    ];
    sts(region).request(STS_VERSION, &parameters, None, "")
}

/// The request for credentials of the role of `config`, signed with those of the caller.
pub fn role_request(
    config: &Ec2Discovery,
    credentials: &AwsCredentials,
    region: &str,
    time: &str,
) -> AwsRequest {
    let mut parameters = vec![
        ("Action".to_owned(), "AssumeRole"),
        ("RoleArn".to_owned(), config.role_arn.as_str()),
        ("RoleSessionName".to_owned(), SESSION),
    ];
    if !config.external_id.is_empty() {
        parameters.push(("ExternalId".to_owned(), &config.external_id));
    }
    sts(region).request(STS_VERSION, &parameters, Some(credentials), time)
}

fn sts(region: &str) -> AwsService<'_> {
    AwsService { name: "sts", endpoint: "", region }
}

/// The credentials of an answer of STS.
///
/// # Errors
/// `Invalid` with the reason of a refusal, and for a body that is no answer; `Busy` without memory.
pub fn role_credentials(status: &str, body: &[u8], budget: &Budget) -> Result<AwsCredentials> {
    let (answer, _held) = document(status, body, budget)?;
    let result = answer.name().replace("Response", "Result");
    let found = answer.at(&[&result, "Credentials"]);
    let text = |name: &str| found.and_then(|found| found.text(&[name])).map(str::to_owned);
    let keys = text("AccessKeyId").zip(text("SecretAccessKey")).zip(text("SessionToken"));
    let ((access_key, secret_key), session_token) =
        keys.ok_or_else(|| Error::invalid("the answer has no credentials"))?;
    let (secret_key, session_token) = (secret_key.into(), session_token.into());
    Ok(AwsCredentials { access_key, secret_key, session_token })
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InstanceCredentials {
    access_key_id: String,
    secret_access_key: String,
    token: String,
}

/// The credentials of an answer of the metadata service.
///
/// # Errors
/// `Invalid` for a body that has none.
pub fn session_credentials(body: &[u8]) -> Result<AwsCredentials> {
    let found: InstanceCredentials = crate::json::from_json(body)
        .map_err(|_| Error::invalid("the role of the instance has no credentials"))?;
    Ok(AwsCredentials {
        access_key: found.access_key_id,
        secret_key: found.secret_access_key.into(),
        session_token: found.token.into(),
    })
}
