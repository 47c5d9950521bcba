//! The requests to EC2, and to the services that have regions and credentials.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::HeaderName;
use firn_collect::config::HttpClient;
use firn_collect::config::discovery::Ec2Discovery;
use firn_collect::discovery::{
    AwsCredentials, AwsRequest, CredentialSource, Ec2Targets, ZoneIds, known_region, metadata_url,
    role_credentials, role_request, session_credentials, web_identity_request,
};
use firn_collect::pool::DiscoveredGroup;
use firn_env::given_file;
use firn_fetch::{Client, Connections, Content, Request, Response};
use firn_model::{Budget, Reservation};
use tokio::task::spawn_blocking;

use super::{ANSWER_BYTES_MAX, LocalFiles, Run, USER_AGENT, not_read};
use crate::wire::number::rfc3339;

#[cfg(test)]
mod tests;

/// The variables of the environment.
pub(super) type Env = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

// Temporary credentials are valid for longer: those of an instance for at least five minutes.
const CREDENTIALS_MAX: Duration = Duration::from_secs(240);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
// The metadata service is on the same machine, or missing.
const METADATA_TIMEOUT: Duration = Duration::from_secs(5);
// Zones, credentials and a region are short, and kept beside the budget.
const SHORT_BYTES_MAX: u64 = 256 << 10;
const METADATA_TOKEN_SECONDS: &str = "60";
// Pages of a thousand instances.
const PAGES_MAX: usize = 1_000;

/// A discovery with its clients and the state that later refreshes use.
struct Ec2Refresher {
    config: Ec2Discovery,
    env: Env,
    budget: Budget,
    client: Client,
    connections: Connections,
    metadata: Client,
    region: Option<String>,
    zones: Option<Arc<ZoneIds>>,
    credentials: Option<(AwsCredentials, Instant)>,
}

impl Run {
    /// Lists the instances each refresh interval.
    pub(super) async fn ec2(self, config: Ec2Discovery) {
        self.refresh_instances(config, Arc::new(|name: &str| std::env::var(name).ok())).await;
    }

    pub(super) async fn refresh_instances(self, config: Ec2Discovery, env: Env) {
        let refresh = Duration::from_millis(config.refresh_interval.as_ms().max(1));
        let mut refresher = None;
        loop {
            let start = Instant::now();
            match self.instances(&mut refresher, &config, &env).await {
                Ok((group, held)) => self.publish(vec![group], held),
                Err(error) => self.failed(&firn_model::redacted(&error)),
            }
            self.refreshed(start);
            tokio::time::sleep(refresh).await;
        }
    }

    async fn instances(
        &self,
        refresher: &mut Option<Ec2Refresher>,
        config: &Ec2Discovery,
        env: &Env,
    ) -> Result<(DiscoveredGroup, Reservation), String> {
        let refresher = match refresher {
            Some(refresher) => refresher,
            None => {
                let client = |http| {
                    Client::new(http, &self.shared.bodies).map_err(|error| error.to_string())
                };
                refresher.insert(Ec2Refresher {
                    config: config.clone(),
                    env: Arc::clone(env),
                    budget: self.shared.budget.clone(),
                    client: client(&config.http)?,
                    connections: Connections::default(),
                    metadata: client(&HttpClient::default())?,
                    region: None,
                    zones: None,
                    credentials: None,
                })
            }
        };
        let found = refresher.refresh().await;
        if found.is_err() {
            // They may have been withdrawn.
            refresher.credentials = None;
        }
        found
    }
}

impl Ec2Refresher {
    async fn refresh(&mut self) -> Result<(DiscoveredGroup, Reservation), String> {
        let region = self.region().await?;
        let credentials = self.credentials(&region).await?;
        let targets = Arc::new(Ec2Targets::new(self.config.clone(), region));
        let zones = match &self.zones {
            Some(zones) => Arc::clone(zones),
            None => self.zones(&targets, &credentials).await,
        };
        let (mut group, mut held) = Ec2Targets::group(&self.budget);
        let mut next = String::new();
        for _ in 0..PAGES_MAX {
            let request = targets.instances_request(&next, &credentials, &now());
            let response = self.send(request, ANSWER_BYTES_MAX).await?;
            let (targets, zones) = (Arc::clone(&targets), Arc::clone(&zones));
            let budget = self.budget.clone();
            let reading = spawn_blocking(move || {
                let status = response.status_text();
                let answer = (status.as_str(), &*response.body);
                let next = targets.add_page(&mut group, &mut held, &zones, answer, &budget);
                let next = next.map_err(|error| response.without_secrets(error));
                (group, held, next)
            });
            let read = reading.await.map_err(|e| not_read("the instances", &e))?;
            (group, held) = (read.0, read.1);
            next = read.2.map_err(|error| format!("could not describe instances: {error}"))?;
            if next.is_empty() {
                return Ok((group, held));
            }
        }
        Err(format!("the instances have over {PAGES_MAX} pages"))
    }

    /// The identifiers of zones. Without them their label is missing until the next refresh.
    async fn zones(&mut self, targets: &Ec2Targets, credentials: &AwsCredentials) -> Arc<ZoneIds> {
        let request = targets.zones_request(credentials, &now());
        let zones = self.send(request, SHORT_BYTES_MAX).await.and_then(|response| {
            let status = response.status_text();
            Ec2Targets::zones(&status, &response.body, &self.budget)
                .map_err(|error| response.without_secrets(error))
        });
        match zones {
            Ok(zones) => Arc::clone(self.zones.insert(Arc::new(zones))),
            Err(error) => {
                tracing::debug!(error, "availability zones cannot be described");
                Arc::default()
            }
        }
    }

    async fn send(&mut self, request: AwsRequest, body_bytes_max: u64) -> Result<Response, String> {
        let headers = [("user-agent", USER_AGENT), ("accept-encoding", "gzip")];
        let headers = headers.map(|(name, text)| (HeaderName::from_static(name), text.to_owned()));
        let secrets = request.headers.into_iter();
        let request = Request {
            url: request.url,
            unix_socket: None,
            headers: headers.to_vec(),
            authorization: request.authorization,
            secrets: secrets.map(|(name, text)| (HeaderName::from_static(name), text)).collect(),
            content: Some(Content {
                is_put: false,
                // The form contains the token of a web identity.
                is_secret: true,
                media_type: request.media_type.to_owned(),
                bytes: request.form.into(),
            }),
            body_bytes_max,
            timeout: ANSWER_TIMEOUT,
        };
        let sent = self.client.send(&request, &mut self.connections).await;
        sent.map_err(|error| error.to_string())
    }

    async fn region(&mut self) -> Result<String, String> {
        if let Some(region) = &self.region {
            return Ok(region.clone());
        }
        let (config, env, files) = self.sources();
        let reading = spawn_blocking(move || known_region(&config, &*env, &files));
        let known = reading.await.map_err(|e| not_read("the region", &e))?;
        let region = match known {
            Some(region) => region,
            None => {
                let found = self.metadata("placement/region").await;
                let required = |error| format!("EC2 SD configuration requires a region: {error}");
                let found = found.map_err(required)?;
                String::from_utf8_lossy(&found).trim().to_owned()
            }
        };
        Ok(self.region.insert(region).clone())
    }

    async fn credentials(&mut self, region: &str) -> Result<AwsCredentials, String> {
        if let Some((credentials, since)) = &self.credentials
            && since.elapsed() < CREDENTIALS_MAX
        {
            return Ok(credentials.clone());
        }
        let mut found = self.own_credentials(region).await?;
        if !self.config.role_arn.is_empty() {
            let request = role_request(&self.config, &found, region, &now());
            found = self.role_credentials(request).await?;
        }
        self.credentials = Some((found.clone(), Instant::now()));
        Ok(found)
    }

    async fn own_credentials(&mut self, region: &str) -> Result<AwsCredentials, String> {
        let (config, env, files) = self.sources();
        let reading = spawn_blocking(move || {
            let source = CredentialSource::of(&config, &*env, &files)?;
            let token = match &source {
                CredentialSource::WebIdentity { token_file, .. } => {
                    given_file::read_text(token_file, "AWS_WEB_IDENTITY_TOKEN_FILE")?
                }
                _ => String::new(),
            };
            Ok::<_, firn_model::Error>((source, token))
        });
        let source = reading.await.map_err(|e| not_read("credentials", &e))?;
        match source.map_err(|error| error.to_string())? {
            (CredentialSource::Keys(keys), _) => Ok(keys),
            (CredentialSource::WebIdentity { role_arn, session, .. }, token) => {
                let request = web_identity_request(token.trim(), &role_arn, &session, region);
                self.role_credentials(request).await
            }
            (CredentialSource::Instance, _) => {
                let roles = "iam/security-credentials/";
                let failed = |error| format!("no credentials: {error}");
                let role = self.metadata(roles).await.map_err(failed)?;
                let role = String::from_utf8_lossy(&role);
                let role = role.lines().next().unwrap_or_default();
                let found = self.metadata(&format!("{roles}{role}")).await.map_err(failed)?;
                session_credentials(&found).map_err(|error| error.to_string())
            }
        }
    }

    async fn role_credentials(&mut self, request: AwsRequest) -> Result<AwsCredentials, String> {
        let response = self.send(request, SHORT_BYTES_MAX).await?;
        role_credentials(&response.status_text(), &response.body, &self.budget).map_err(|error| {
            let error = response.without_secrets(error);
            format!("could not assume the role: {error}")
        })
    }

    fn sources(&self) -> (Ec2Discovery, Env, LocalFiles) {
        let files = LocalFiles { budget: self.budget.clone() };
        (self.config.clone(), Arc::clone(&self.env), files)
    }

    /// A value of the metadata service, version 2.
    async fn metadata(&mut self, path: &str) -> Result<Vec<u8>, String> {
        let is_disabled = (self.env)("AWS_EC2_METADATA_DISABLED");
        if is_disabled.is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Err("AWS_EC2_METADATA_DISABLED is set".to_owned());
        }
        let base = metadata_url(&*self.env);
        let seconds = ("x-aws-ec2-metadata-token-ttl-seconds", METADATA_TOKEN_SECONDS.to_owned());
        let token = self.fetch_metadata(format!("{base}/latest/api/token"), seconds, true).await?;
        let token = String::from_utf8_lossy(&token).trim().to_owned();
        let token = ("x-aws-ec2-metadata-token", token);
        self.fetch_metadata(format!("{base}/latest/meta-data/{path}"), token, false).await
    }

    async fn fetch_metadata(
        &mut self,
        url: String,
        (name, text): (&'static str, String),
        is_put: bool,
    ) -> Result<Vec<u8>, String> {
        let content = is_put.then(|| Content {
            is_put,
            is_secret: false,
            media_type: "text/plain".to_owned(),
            bytes: Default::default(),
        });
        let request = Request {
            url,
            unix_socket: None,
            headers: Vec::new(),
            authorization: None,
            secrets: vec![(HeaderName::from_static(name), text.into())],
            content,
            body_bytes_max: SHORT_BYTES_MAX,
            timeout: METADATA_TIMEOUT,
        };
        let response = self.metadata.send(&request, &mut Connections::default()).await;
        let response = response.map_err(|error| format!("metadata service: {error}"))?;
        match response.status {
            200 => Ok(response.body.to_vec()),
            _ => Err(format!("metadata service: HTTP status {}", response.status_text())),
        }
    }
}

/// The time of a signature, as in `20150830T123600Z`.
fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let ms = i64::try_from(since.as_secs()).unwrap_or(0).saturating_mul(1_000);
    rfc3339(ms).chars().filter(|c| !matches!(c, '-' | ':')).collect()
}
