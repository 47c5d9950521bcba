//! `remote_write` and `remote_read`: other storages.

use std::collections::BTreeMap;

use firn_model::Secret;

use super::http::is_reserved_header;
use super::{FilePath, HiddenText, HttpClient, LabelSet, Millis, RuleList, Url};
use firn_yaml::quoted;
use firn_yaml::{Checked, Field, section, words};

words! {
    /// The message of a remote write.
    pub enum WriteMessage: "remote.WriteMessageType" {
        /// Remote write 1.0.
        V1 = "prometheus.WriteRequest",
        /// Remote write 2.0.
        V2 = "io.prometheus.write.v2.Request",
    }
    fold |text| text.to_owned();
    unknown |text| format!(
        "invalid protobuf_message value: unknown type for remote write protobuf message {text}, \
         supported: prometheus.WriteRequest, io.prometheus.write.v2.Request"
    );
}

section! {
    /// A storage that samples are sent to.
    pub struct RemoteWrite: "config.plain" {
        /// Always set in a loaded configuration.
        url: Option<Url> = "url",
        remote_timeout: Millis = "remote_timeout" omit,
        headers: BTreeMap<String, HiddenText> = "headers" omit,
        write_relabel_configs: RuleList = "write_relabel_configs" omit,
        name: String = "name" omit,
        send_exemplars: bool = "send_exemplars" omit,
        send_native_histograms: bool = "send_native_histograms" omit,
        round_robin_dns: bool = "round_robin_dns" omit,
        protobuf_message: WriteMessage = "protobuf_message" omit,
        failed_request_logging: bool = "failed_request_logging" omit,
        queue_config: QueueConfig = "queue_config" omit,
        metadata_config: MetadataConfig = "metadata_config" omit,
        sigv4: Option<SigV4> = "sigv4" omit,
        azuread: Option<AzureAd> = "azuread" omit,
        google_iam: Option<GoogleIam> = "google_iam" omit,
    }
    inline { http: HttpClient, }
}

section! {
    /// The queue of a remote write.
    pub struct QueueConfig: "config.QueueConfig" {
        /// Samples that wait per shard.
        capacity: i64 = "capacity" omit,
        max_shards: i64 = "max_shards" omit,
        min_shards: i64 = "min_shards" omit,
        max_samples_per_send: i64 = "max_samples_per_send" omit,
        batch_send_deadline: Millis = "batch_send_deadline" omit,
        min_backoff: Millis = "min_backoff" omit,
        max_backoff: Millis = "max_backoff" omit,
        retry_on_http_429: bool = "retry_on_http_429" omit,
        /// Older samples are dropped; 0 for never.
        sample_age_limit: Millis = "sample_age_limit" omit,
    }
}

section! {
    /// Metadata in a remote write.
    pub struct MetadataConfig: "config.MetadataConfig" {
        send: bool = "send",
        send_interval: Millis = "send_interval",
        max_samples_per_send: i64 = "max_samples_per_send" omit,
    }
}

section! {
    /// A storage that queries read from.
    pub struct RemoteRead: "config.plain" {
        /// Always set in a loaded configuration.
        url: Option<Url> = "url",
        remote_timeout: Millis = "remote_timeout" omit,
        chunked_read_limit: u64 = "chunked_read_limit" omit,
        headers: BTreeMap<String, HiddenText> = "headers" omit,
        read_recent: bool = "read_recent" omit,
        name: String = "name" omit,
        required_matchers: LabelSet = "required_matchers" omit,
        filter_external_labels: bool = "filter_external_labels" omit,
    }
    inline { http: HttpClient, }
}

section! {
    /// Signatures of AWS.
    pub struct SigV4: "sigv4.plain" {
        region: String = "region" omit,
        access_key: String = "access_key" omit,
        secret_key: Secret = "secret_key" omit,
        profile: String = "profile" omit,
        role_arn: String = "role_arn" omit,
        external_id: String = "external_id" omit,
        session_name: String = "session_name" omit,
        tags: BTreeMap<String, String> = "tags" omit,
        use_fips_sts_endpoint: bool = "use_fips_sts_endpoint" omit,
        service_name: String = "service_name" omit,
    }
}

section! {
    /// Tokens of Azure.
    pub struct AzureAd: "azuread.plain" {
        managed_identity: Option<AzureManagedIdentity> = "managed_identity" omit,
        workload_identity: Option<AzureWorkloadIdentity> = "workload_identity" omit,
        oauth: Option<AzureOAuth> = "oauth" omit,
        sdk: Option<AzureSdk> = "sdk" omit,
        certificate: Option<AzureCertificate> = "certificate" omit,
        cloud: String = "cloud" omit,
        scope: String = "scope" omit,
    }
}

section! {
    /// An identity that Azure manages.
    pub struct AzureManagedIdentity: "azuread.ManagedIdentityConfig" {
        client_id: String = "client_id" omit,
    }
}

section! {
    /// An identity of a workload.
    pub struct AzureWorkloadIdentity: "azuread.WorkloadIdentityConfig" {
        client_id: String = "client_id" omit,
        tenant_id: String = "tenant_id" omit,
        token_file_path: FilePath = "token_file_path" omit,
    }
}

section! {
    /// An application of Azure.
    pub struct AzureOAuth: "azuread.OAuthConfig" {
        client_id: String = "client_id" omit,
        client_secret: Secret = "client_secret" omit,
        tenant_id: String = "tenant_id" omit,
    }
}

section! {
    /// The defaults of Azure's library.
    pub struct AzureSdk: "azuread.SDKConfig" {
        tenant_id: String = "tenant_id" omit,
    }
}

section! {
    /// An application of Azure with a certificate.
    pub struct AzureCertificate: "azuread.CertificateConfig" {
        client_id: String = "client_id" omit,
        tenant_id: String = "tenant_id" omit,
        certificate_path: FilePath = "certificate_path" omit,
        certificate_key_path: FilePath = "certificate_key_path" omit,
        certificate_password: Secret = "certificate_password" omit,
        send_certificate_chain: bool = "send_certificate_chain" omit,
    }
}

section! {
    /// Credentials of Google.
    pub struct GoogleIam: "googleiam.Config" {
        credentials_file: FilePath = "credentials_file" omit,
    }
}

impl Checked for MetadataConfig {}
impl Checked for AzureManagedIdentity {}
impl Checked for AzureWorkloadIdentity {}
impl Checked for AzureOAuth {}
impl Checked for AzureSdk {}
impl Checked for AzureCertificate {}
impl Checked for GoogleIam {}

impl Checked for RemoteWrite {
    fn start(&mut self) {
        *self = RemoteWrite {
            remote_timeout: Millis::seconds(30),
            protobuf_message: WriteMessage::V1,
            queue_config: QueueConfig {
                capacity: 10_000,
                max_shards: 50,
                min_shards: 1,
                max_samples_per_send: 2_000,
                batch_send_deadline: Millis::seconds(5),
                min_backoff: Millis::new(30),
                max_backoff: Millis::seconds(5),
                ..QueueConfig::zero()
            },
            metadata_config: MetadataConfig {
                send: true,
                send_interval: Millis::seconds(60),
                max_samples_per_send: 2_000,
            },
            http: HttpClient { enable_http2: false, ..HttpClient::default() },
            ..RemoteWrite::zero()
        };
    }

    fn check(&mut self) -> Result<(), String> {
        if self.url.is_none() {
            return Err("url for remote_write is empty".to_owned());
        }
        if self.write_relabel_configs.has_null() {
            return Err("empty or null relabeling rule in remote write config".to_owned());
        }
        check_headers(&self.headers)?;
        if self.protobuf_message == WriteMessage::Unset {
            "".parse::<WriteMessage>()?;
        }
        self.http.check()?;
        self.queue_config.check_numbers()?;
        let kinds = [
            ("basic_auth", self.http.basic_auth.is_some()),
            ("authorization", self.http.authorization.is_some()),
            ("oauth2", self.http.oauth2.is_some()),
            ("sigv4", self.sigv4.is_some()),
            ("azuread", self.azuread.is_some()),
            ("google_iam", self.google_iam.is_some()),
        ];
        let set: Vec<&str> = kinds.iter().filter(|kind| kind.1).map(|kind| kind.0).collect();
        match set.len() {
            0 | 1 => Ok(()),
            _ => Err(format!(
                "at most one of basic_auth, authorization, oauth2, sigv4, azuread or google_iam \
                 must be configured. Currently configured: [{}]",
                set.join(" ")
            )),
        }
    }
}

/// A queue that is absent has the defaults of its storage; one that is null fails its checks.
impl Checked for QueueConfig {}

impl QueueConfig {
    fn check_numbers(&self) -> Result<(), String> {
        let text = if self.max_shards <= 0 {
            "max_shards must be positive"
        } else if self.min_shards <= 0 {
            "min_shards must be positive"
        } else if self.min_shards > self.max_shards {
            "min_shards must not be greater than max_shards"
        } else if self.max_samples_per_send <= 0 {
            "max_samples_per_send must be positive"
        } else if self.capacity <= 0 {
            "capacity must be positive"
        } else if self.max_backoff < self.min_backoff {
            "max_backoff must not be less than min_backoff"
        } else {
            return Ok(());
        };
        Err(format!("remote write queue {text}"))
    }
}

impl Checked for RemoteRead {
    fn start(&mut self) {
        *self = RemoteRead {
            remote_timeout: Millis::seconds(60),
            chunked_read_limit: 50_000_000,
            filter_external_labels: true,
            http: HttpClient::default(),
            ..RemoteRead::zero()
        };
    }

    fn check(&mut self) -> Result<(), String> {
        if self.url.is_none() {
            return Err("url for remote_read is empty".to_owned());
        }
        check_headers(&self.headers)?;
        self.http.check()
    }
}

fn check_headers(headers: &BTreeMap<String, HiddenText>) -> Result<(), String> {
    for name in headers.keys() {
        if name.eq_ignore_ascii_case("authorization") {
            return Err("authorization header must be changed via the basic_auth, authorization, \
                        oauth2, sigv4, azuread or google_iam parameter"
                .to_owned());
        }
        if is_reserved_header(name) {
            return Err(format!("{name} is a reserved header. It must not be changed"));
        }
    }
    Ok(())
}

impl Checked for SigV4 {
    fn start(&mut self) {
        *self = SigV4::zero();
    }

    fn check(&mut self) -> Result<(), String> {
        let has_role = !self.role_arn.is_empty();
        let is_session_name = |name: &str| {
            (2..=64).contains(&name.len())
                && name.chars().all(|c| c.is_ascii_alphanumeric() || "_+=,.@-".contains(c))
        };
        let text = if self.access_key.is_empty() != self.secret_key.is_zero() {
            "must provide a AWS SigV4 Access key and Secret Key if credentials are specified in \
             the SigV4 config"
        } else if !self.external_id.is_empty() && !has_role {
            "external_id can only be used with role_arn"
        } else if !self.session_name.is_empty() && !has_role {
            "session_name can only be used with role_arn"
        } else if !self.session_name.is_empty() && !is_session_name(&self.session_name) {
            r"session_name must match ^[\w+=,.@-]{2,64}$ (2-64 alphanumeric and +=,.@- characters)"
        } else if !self.tags.is_empty() && !has_role {
            "tags can only be used with role_arn"
        } else if self.tags.contains_key("") {
            "tag key must not be empty"
        } else {
            let too_long = |(key, value): &(&String, &String)| key.len() > 128 || value.len() > 256;
            let Some((key, _)) = self.tags.iter().find(too_long) else { return Ok(()) };
            let part = if key.len() > 128 { "key" } else { "value for key" };
            let limit = if key.len() > 128 { 128 } else { 256 };
            let key = quoted(key.as_bytes());
            return Err(format!("tag {part} {key} exceeds maximum length of {limit}"));
        };
        Err(text.to_owned())
    }
}

impl Checked for AzureAd {
    fn start(&mut self) {
        *self = AzureAd::zero();
    }

    fn check(&mut self) -> Result<(), String> {
        if self.cloud.is_empty() {
            "AzurePublic".clone_into(&mut self.cloud);
        }
        if !matches!(self.cloud.as_str(), "AzurePublic" | "AzureGovernment" | "AzureChina") {
            return Err("must provide a cloud in the Azure AD config".to_owned());
        }
        let kinds = [
            self.managed_identity.is_some(),
            self.workload_identity.is_some(),
            self.oauth.is_some(),
            self.sdk.is_some(),
            self.certificate.is_some(),
        ];
        match kinds.iter().filter(|is_set| **is_set).count() {
            0 => {
                return Err("must provide an Azure Managed Identity, Azure Workload Identity, \
                            Azure OAuth, Azure Certificate or Azure SDK in the Azure AD config"
                    .to_owned());
            }
            1 => {}
            _ => {
                return Err(
                    "cannot provide multiple authentication methods in the Azure AD config"
                        .to_owned(),
                );
            }
        }
        if let Some(managed) = &self.managed_identity
            && !managed.client_id.is_empty()
        {
            check_uuid("Managed Identity", "client_id", &managed.client_id)?;
        }
        if let Some(workload) = &mut self.workload_identity {
            let kind = "Workload Identity";
            check_present(kind, "client_id", workload.client_id.is_empty())?;
            check_present(kind, "tenant_id", workload.tenant_id.is_empty())?;
            check_uuid(kind, "client_id", &workload.client_id)?;
            check_uuid(kind, "tenant_id", &workload.tenant_id)?;
            if workload.token_file_path.is_empty() {
                workload.token_file_path =
                    "/var/run/secrets/azure/tokens/azure-identity-token".into();
            }
        }
        if let Some(oauth) = &self.oauth {
            check_present("OAuth", "client_id", oauth.client_id.is_empty())?;
            check_present("OAuth", "client_secret", oauth.client_secret.is_zero())?;
            check_present("OAuth", "tenant_id", oauth.tenant_id.is_empty())?;
            check_uuid("OAuth", "client_id", &oauth.client_id)?;
        }
        if let Some(certificate) = &self.certificate {
            let kind = "Certificate";
            check_present(kind, "client_id", certificate.client_id.is_empty())?;
            check_present(kind, "tenant_id", certificate.tenant_id.is_empty())?;
            check_present(kind, "certificate_path", certificate.certificate_path.is_empty())?;
            check_uuid(kind, "client_id", &certificate.client_id)?;
        }
        let is_scope =
            |c: char| c.is_ascii_alphanumeric() || c.is_whitespace() || "_:/.-".contains(c);
        match self.scope.chars().all(is_scope) {
            true => Ok(()),
            false => Err("the provided scope contains invalid characters".to_owned()),
        }
    }
}

fn check_present(kind: &str, key: &str, is_absent: bool) -> Result<(), String> {
    match is_absent {
        true => Err(format!("must provide an Azure {kind} {key} in the Azure AD config")),
        false => Ok(()),
    }
}

/// 32 digits, with or without dashes, braces or a prefix.
fn check_uuid(kind: &str, key: &str, text: &str) -> Result<(), String> {
    let text = text.strip_prefix("urn:uuid:").unwrap_or(text);
    let text = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or(text);
    let parts: Vec<usize> = text.split('-').map(str::len).collect();
    let is_uuid = matches!(parts.as_slice(), [32] | [8, 4, 4, 4, 12])
        && text.bytes().all(|c| c == b'-' || c.is_ascii_hexdigit());
    match is_uuid {
        true => Ok(()),
        false => Err(format!("the provided Azure {kind} {key} is invalid")),
    }
}
