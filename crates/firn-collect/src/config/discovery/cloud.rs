//! Clouds of which the discovery is not supported: read and checked as in Prometheus.

use firn_model::Secret;

use super::super::{FilePath, HttpClient, Millis, TlsConfig, Url};
use super::{Filter, checked, client, refuse};
use firn_yaml::quoted;
use firn_yaml::{Field, Items, section, words};

words! {
    /// A service of AWS.
    pub enum AwsRole: "aws.Role" {
        Ec2 = "ec2",
        Ecs = "ecs",
        Elasticache = "elasticache",
        Lightsail = "lightsail",
        Msk = "msk",
        Rds = "rds",
    }
    fold |text| text.to_owned();
    unknown |text| format!("unknown AWS SD role {}", quoted(text.as_bytes()));
}

words! {
    /// Objects of DigitalOcean.
    pub enum DigitalOceanRole: "digitalocean.Role" {
        Droplets = "droplets",
        Databases = "databases",
    }
    fold |text| text.to_owned();
    unknown |text| format!("unknown DigitalOcean SD role {}", quoted(text.as_bytes()));
}

words! {
    /// Servers of Hetzner.
    pub enum HetznerRole: "hetzner.Role" {
        Robot = "robot",
        Hcloud = "hcloud",
    }
    fold |text| text.to_owned();
    unknown |text| format!("unknown role {}", quoted(text.as_bytes()));
}

words! {
    /// Objects of OpenStack.
    pub enum OpenstackRole: "openstack.Role" {
        Hypervisor = "hypervisor",
        Instance = "instance",
        LoadBalancer = "loadbalancer",
    }
    fold |text| text.to_owned();
    unknown |text| format!("unknown OpenStack SD role {}", quoted(text.as_bytes()));
}

words! {
    /// Servers of Scaleway.
    pub enum ScalewayRole: "scaleway.role" {
        Baremetal = "baremetal",
        Instance = "instance",
    }
    fold |text| text.to_owned();
    unknown |text| format!("unknown role {}", quoted(text.as_bytes()));
}

section! {
    /// Any service of AWS.
    pub struct AwsDiscovery: "aws.plain" {
        role: AwsRole = "role",
        region: String = "region" omit,
        endpoint: String = "endpoint" omit,
        access_key: String = "access_key" omit,
        secret_key: Secret = "secret_key" omit,
        profile: String = "profile" omit,
        role_arn: String = "role_arn" omit,
        external_id: String = "external_id" omit,
        refresh_interval: Millis = "refresh_interval" omit,
        port: i64 = "port" omit,
        filters: Items<Filter> = "filters" omit,
        clusters: Vec<String> = "clusters" omit,
    }
    inline { http: HttpClient, }
}

section! {
    /// Tasks of ECS.
    pub struct EcsDiscovery: "aws.plain" {
        region: String = "region",
        endpoint: String = "endpoint",
        access_key: String = "access_key" omit,
        secret_key: Secret = "secret_key" omit,
        profile: String = "profile" omit,
        role_arn: String = "role_arn" omit,
        external_id: String = "external_id" omit,
        clusters: Vec<String> = "clusters" omit,
        port: i64 = "port",
        refresh_interval: Millis = "refresh_interval" omit,
        request_concurrency: i64 = "request_concurrency" omit,
    }
    inline { http: HttpClient, }
}

section! {
    /// Caches of AWS.
    pub struct ElasticacheDiscovery: "aws.plain" {
        region: String = "region",
        endpoint: String = "endpoint",
        access_key: String = "access_key" omit,
        secret_key: Secret = "secret_key" omit,
        profile: String = "profile" omit,
        role_arn: String = "role_arn" omit,
        external_id: String = "external_id" omit,
        clusters: Vec<String> = "clusters" omit,
        port: i64 = "port",
        refresh_interval: Millis = "refresh_interval" omit,
        request_concurrency: i64 = "request_concurrency" omit,
    }
    inline { http: HttpClient, }
}

section! {
    /// Kafka servers of AWS.
    pub struct MskDiscovery: "aws.plain" {
        region: String = "region",
        endpoint: String = "endpoint",
        access_key: String = "access_key" omit,
        secret_key: Secret = "secret_key" omit,
        profile: String = "profile" omit,
        role_arn: String = "role_arn" omit,
        external_id: String = "external_id" omit,
        clusters: Vec<String> = "clusters" omit,
        port: i64 = "port",
        refresh_interval: Millis = "refresh_interval" omit,
        request_concurrency: i64 = "request_concurrency" omit,
    }
    inline { http: HttpClient, }
}

section! {
    /// Databases of AWS.
    pub struct RdsDiscovery: "aws.plain" {
        region: String = "region",
        endpoint: String = "endpoint",
        access_key: String = "access_key" omit,
        secret_key: Secret = "secret_key" omit,
        profile: String = "profile" omit,
        role_arn: String = "role_arn" omit,
        external_id: String = "external_id" omit,
        clusters: Vec<String> = "clusters" omit,
        port: i64 = "port",
        refresh_interval: Millis = "refresh_interval" omit,
        filters: Items<Filter> = "filters",
        request_concurrency: i64 = "request_concurrency" omit,
    }
    inline { http: HttpClient, }
}

section! {
    /// Instances of Lightsail.
    pub struct LightsailDiscovery: "aws.plain" {
        region: String = "region",
        endpoint: String = "endpoint",
        access_key: String = "access_key" omit,
        secret_key: Secret = "secret_key" omit,
        profile: String = "profile" omit,
        role_arn: String = "role_arn" omit,
        external_id: String = "external_id" omit,
        refresh_interval: Millis = "refresh_interval" omit,
        port: i64 = "port",
    }
    inline { http: HttpClient, }
}

section! {
    /// Machines of Azure.
    pub struct AzureDiscovery: "azure.plain" {
        environment: String = "environment" omit,
        port: i64 = "port",
        subscription_id: String = "subscription_id",
        tenant_id: String = "tenant_id" omit,
        client_id: String = "client_id" omit,
        client_secret: Secret = "client_secret" omit,
        refresh_interval: Millis = "refresh_interval" omit,
        authentication_method: String = "authentication_method" omit,
        resource_group: String = "resource_group" omit,
    }
    inline { http: HttpClient, }
}

section! {
    /// Objects of DigitalOcean.
    pub struct DigitalOceanDiscovery: "digitalocean.plain" {
        refresh_interval: Millis = "refresh_interval",
        port: i64 = "port",
        role: DigitalOceanRole = "role",
    }
    inline { http: HttpClient, }
}

section! {
    /// Instances of Google.
    pub struct GceDiscovery: "gce.plain" {
        project: String = "project",
        zone: String = "zone",
        filter: String = "filter" omit,
        refresh_interval: Millis = "refresh_interval" omit,
        port: i64 = "port",
        tag_separator: String = "tag_separator" omit,
    }
}

section! {
    /// Servers of Hetzner.
    pub struct HetznerDiscovery: "hetzner.plain" {
        refresh_interval: Millis = "refresh_interval",
        port: i64 = "port",
        role: HetznerRole = "role",
        label_selector: String = "label_selector" omit,
    }
    inline { http: HttpClient, }
}

section! {
    /// Servers of IONOS.
    pub struct IonosDiscovery: "ionos.plain" {
        datacenter_id: String = "datacenter_id",
        refresh_interval: Millis = "refresh_interval",
        port: i64 = "port",
    }
    inline { http: HttpClient, }
}

section! {
    /// Instances of Linode.
    pub struct LinodeDiscovery: "linode.plain" {
        refresh_interval: Millis = "refresh_interval",
        port: i64 = "port",
        tag_separator: String = "tag_separator" omit,
        region: String = "region" omit,
    }
    inline { http: HttpClient, }
}

section! {
    /// Instances of Oracle.
    pub struct OciDiscovery: "oci.plain" {
        auth: String = "auth" omit,
        tenancy: String = "tenancy" omit,
        user: String = "user" omit,
        fingerprint: String = "fingerprint" omit,
        key_file: FilePath = "key_file" omit,
        key_passphrase: Secret = "key_passphrase" omit,
        key_passphrase_file: FilePath = "key_passphrase_file" omit,
        region: String = "region",
        compartments: Vec<String> = "compartments" omit,
        port: i64 = "port",
        refresh_interval: Millis = "refresh_interval",
    }
    inline { http: HttpClient, }
}

section! {
    /// Objects of OpenStack.
    pub struct OpenstackDiscovery: "openstack.plain" {
        identity_endpoint: String = "identity_endpoint",
        username: String = "username",
        userid: String = "userid",
        password: Secret = "password",
        project_name: String = "project_name",
        project_id: String = "project_id",
        domain_name: String = "domain_name",
        domain_id: String = "domain_id",
        application_credential_name: String = "application_credential_name",
        application_credential_id: String = "application_credential_id",
        application_credential_secret: Secret = "application_credential_secret",
        role: OpenstackRole = "role",
        region: String = "region",
        refresh_interval: Millis = "refresh_interval",
        port: i64 = "port",
        all_tenants: bool = "all_tenants" omit,
        tls_config: TlsConfig = "tls_config" omit,
        availability: String = "availability" omit,
    }
}

section! {
    /// Machines of Outscale.
    pub struct OutscaleDiscovery: "outscale.plain" {
        endpoint: String = "endpoint" omit,
        region: String = "region",
        access_key: String = "access_key",
        secret_key: Secret = "secret_key",
        secret_key_file: FilePath = "secret_key_file",
        refresh_interval: Millis = "refresh_interval" omit,
        port: i64 = "port",
    }
    inline { http: HttpClient, }
}

section! {
    /// Servers of OVHcloud.
    pub struct OvhcloudDiscovery: "ovhcloud.plain" {
        endpoint: String = "endpoint",
        application_key: String = "application_key",
        application_secret: Secret = "application_secret",
        consumer_key: Secret = "consumer_key",
        refresh_interval: Millis = "refresh_interval",
        service: String = "service",
    }
}

section! {
    /// Servers of Scaleway.
    pub struct ScalewayDiscovery: "scaleway.plain" {
        project_id: String = "project_id",
        api_url: String = "api_url" omit,
        zone: String = "zone",
        access_key: String = "access_key",
        secret_key: Secret = "secret_key",
        secret_key_file: FilePath = "secret_key_file",
        name_filter: String = "name_filter" omit,
        tags_filter: Vec<String> = "tags_filter" omit,
        refresh_interval: Millis = "refresh_interval",
        port: i64 = "port",
        role: ScalewayRole = "role",
    }
    inline { http: HttpClient, }
}

section! {
    /// Servers of STACKIT.
    pub struct StackitDiscovery: "stackit.plain" {
        project: String = "project",
        refresh_interval: Millis = "refresh_interval" omit,
        port: i64 = "port" omit,
        region: String = "region" omit,
        endpoint: String = "endpoint" omit,
        service_account_key: Secret = "service_account_key" omit,
        private_key: Secret = "private_key" omit,
        service_account_key_path: FilePath = "service_account_key_path" omit,
        private_key_path: FilePath = "private_key_path" omit,
        credentials_file_path: FilePath = "credentials_file_path" omit,
    }
    inline { http: HttpClient, }
}

section! {
    /// Instances of Vultr.
    pub struct VultrDiscovery: "vultr.plain" {
        refresh_interval: Millis = "refresh_interval",
        port: i64 = "port",
    }
    inline { http: HttpClient, }
}

// Prometheus does not set the defaults of this section: those of the role's own section hold.
checked!(
    AwsDiscovery {} | aws | {
        match aws.role {
            AwsRole::Unset => Err("unknown AWS SD role \"\"".to_owned()),
            _ => Ok(()),
        }
    }
);

fn check_concurrency(kind: &str, concurrency: i64) -> Result<(), String> {
    match concurrency {
        ..=0 => Err(format!("{kind}_sd: request_concurrency must be positive, got {concurrency}")),
        _ => Ok(()),
    }
}

checked!(EcsDiscovery {
    port = 80;
    refresh_interval = Millis::seconds(60);
    request_concurrency = 20;
    http = client();
} |aws| {
    check_concurrency("ecs", aws.request_concurrency)?;
    aws.http.check()
});

checked!(ElasticacheDiscovery {
    port = 80;
    refresh_interval = Millis::seconds(60);
    request_concurrency = 10;
    http = client();
} |aws| {
    check_concurrency("elasticache", aws.request_concurrency)?;
    aws.http.check()
});

checked!(MskDiscovery {
    port = 80;
    refresh_interval = Millis::seconds(60);
    request_concurrency = 10;
    http = client();
} |aws| {
    check_concurrency("msk", aws.request_concurrency)?;
    aws.http.check()
});

checked!(RdsDiscovery {
    port = 80;
    refresh_interval = Millis::seconds(60);
    request_concurrency = 10;
    http = client();
} |aws| {
    check_concurrency("rds", aws.request_concurrency)?;
    aws.http.check()
});

checked!(LightsailDiscovery {
    port = 80;
    refresh_interval = Millis::seconds(60);
    http = client();
} |aws| {
    aws.http.check()
});

checked!(VultrDiscovery {
    port = 80;
    refresh_interval = Millis::seconds(60);
    http = client();
} |vultr| {
    vultr.http.check()
});

checked!(AzureDiscovery {
    port = 80;
    refresh_interval = Millis::seconds(300);
    environment = "AzurePublicCloud".to_owned();
    authentication_method = "OAuth".to_owned();
    http = client();
} |azure| {
    let require = |is_absent: bool, key: &str| {
        refuse(is_absent, &format!("azure SD configuration requires a {key}"))
    };
    require(azure.subscription_id.is_empty(), "subscription_id")?;
    match azure.authentication_method.as_str() {
        "OAuth" => {
            require(azure.tenant_id.is_empty(), "tenant_id")?;
            require(azure.client_id.is_empty(), "client_id")?;
            require(azure.client_secret.is_zero(), "client_secret")?;
        }
        "ManagedIdentity" | "SDK" | "WorkloadIdentity" => {}
        other => {
            let other = quoted(other.as_bytes());
            return Err(format!(
                "unknown authentication_type {other}. Supported types are \"OAuth\", \
                 \"ManagedIdentity\", \"SDK\" or \"WorkloadIdentity\""
            ));
        }
    }
    azure.http.check()
});

checked!(DigitalOceanDiscovery {
    port = 80;
    refresh_interval = Millis::seconds(60);
    http = client();
    role = DigitalOceanRole::Droplets;
} |ocean| {
    refuse(
        ocean.role == DigitalOceanRole::Unset,
        "role missing (one of: droplets, databases)",
    )?;
    ocean.http.check()
});

checked!(GceDiscovery {
    port = 80;
    refresh_interval = Millis::seconds(60);
    tag_separator = ",".to_owned();
} |gce| {
    refuse(gce.project.is_empty(), "GCE SD configuration requires a project")?;
    refuse(gce.zone.is_empty(), "GCE SD configuration requires a zone")
});

checked!(HetznerDiscovery {
    port = 80;
    refresh_interval = Millis::seconds(60);
    http = client();
} |hetzner| {
    let has_role = hetzner.role != HetznerRole::Unset;
    refuse(!has_role, "role missing (one of: robot, hcloud)")?;
    hetzner.http.check()
});

checked!(IonosDiscovery {
    port = 80;
    refresh_interval = Millis::seconds(60);
    http = client();
} |ionos| {
    refuse(ionos.datacenter_id.is_empty(), "datacenter id can't be empty")?;
    ionos.http.check()
});

checked!(LinodeDiscovery {
    port = 80;
    refresh_interval = Millis::seconds(60);
    http = client();
    tag_separator = ",".to_owned();
} |linode| {
    linode.http.check()
});

checked!(OciDiscovery {
    port = 80;
    refresh_interval = Millis::seconds(60);
    http = client();
    auth = "api_key".to_owned();
} |oci| {
    refuse(oci.region.is_empty(), "oci_sd: region is required")?;
    let (has_phrase, has_phrase_file) =
        (!oci.key_passphrase.is_zero(), !oci.key_passphrase_file.is_empty());
    match oci.auth.as_str() {
        "api_key" => {
            refuse(oci.tenancy.is_empty(), "oci_sd: api_key auth requires tenancy")?;
            refuse(oci.user.is_empty(), "oci_sd: api_key auth requires user")?;
            refuse(oci.fingerprint.is_empty(), "oci_sd: api_key auth requires fingerprint")?;
            refuse(oci.key_file.is_empty(), "oci_sd: api_key auth requires key_file")?;
            refuse(
                has_phrase && has_phrase_file,
                "oci_sd: at most one of key_passphrase and key_passphrase_file must be configured",
            )?;
        }
        "instance_principal" => {
            let has_key = !oci.tenancy.is_empty()
                || !oci.user.is_empty()
                || !oci.fingerprint.is_empty()
                || !oci.key_file.is_empty();
            refuse(
                has_key || has_phrase || has_phrase_file,
                "oci_sd: instance_principal auth must not have tenancy, user, fingerprint, \
                 key_file, key_passphrase, or key_passphrase_file set",
            )?;
        }
        other => {
            let other = quoted(other.as_bytes());
            return Err(format!(
                "oci_sd: unknown auth method {other}, expected \"api_key\" or \
                 \"instance_principal\""
            ));
        }
    }
    if let Some(idx) = oci.compartments.iter().position(String::is_empty) {
        return Err(format!("oci_sd: compartments[{idx}] must not be empty"));
    }
    let interval = oci.refresh_interval;
    refuse(
        interval.is_zero(),
        &format!("oci_sd: refresh_interval must be positive, got {interval}"),
    )?;
    oci.http.check()
});

checked!(OpenstackDiscovery {
    port = 80;
    refresh_interval = Millis::seconds(60);
    availability = "public".to_owned();
} |openstack| {
    if !matches!(openstack.availability.as_str(), "public" | "internal" | "admin") {
        return Err(format!(
            "unknown availability {}, must be one of admin, internal or public",
            openstack.availability
        ));
    }
    let has_role = openstack.role != OpenstackRole::Unset;
    refuse(!has_role, "role missing (one of: instance, hypervisor, loadbalancer)")?;
    refuse(openstack.region.is_empty(), "openstack SD configuration requires a region")
});

checked!(OutscaleDiscovery {
    port = 80;
    refresh_interval = Millis::seconds(60);
    http = client();
    region = "eu-west-2".to_owned();
} |outscale| {
    refuse(outscale.region.is_empty(), "outscale SD configuration requires a region")?;
    refuse(outscale.access_key.is_empty(), "outscale SD configuration requires access_key")?;
    check_secret_key(&outscale.secret_key, &outscale.secret_key_file)?;
    if outscale.endpoint.is_empty() {
        outscale.endpoint = format!("https://api.{}.outscale.com/api/v1", outscale.region);
    }
    outscale.http.check()
});

fn check_secret_key(key: &Secret, file: &FilePath) -> Result<(), String> {
    match (key.is_zero(), file.is_empty()) {
        (true, true) => Err("one of secret_key & secret_key_file must be configured".to_owned()),
        (false, false) => {
            Err("at most one of secret_key & secret_key_file must be configured".to_owned())
        }
        _ => Ok(()),
    }
}

checked!(OvhcloudDiscovery {
    endpoint = "ovh-eu".to_owned();
    refresh_interval = Millis::seconds(60);
} |ovh| {
    refuse(ovh.endpoint.is_empty(), "endpoint can not be empty")?;
    refuse(ovh.application_key.is_empty(), "application key can not be empty")?;
    refuse(ovh.application_secret.is_zero(), "application secret can not be empty")?;
    refuse(ovh.consumer_key.is_zero(), "consumer key can not be empty")?;
    match ovh.service.as_str() {
        "dedicated_server" | "vps" => Ok(()),
        other => Err(format!("unknown service: {other}")),
    }
});

checked!(ScalewayDiscovery {
    port = 80;
    refresh_interval = Millis::seconds(60);
    http = client();
    zone = "fr-par-1".to_owned();
    api_url = "https://api.scaleway.com".to_owned();
} |scaleway| {
    let has_role = scaleway.role != ScalewayRole::Unset;
    refuse(!has_role, "role missing (one of: instance, baremetal)")?;
    refuse(scaleway.project_id.is_empty(), "project_id is mandatory")?;
    check_secret_key(&scaleway.secret_key, &scaleway.secret_key_file)?;
    refuse(scaleway.access_key.is_empty(), "access_key is mandatory")?;
    scaleway.http.check()
});

checked!(StackitDiscovery {
    port = 80;
    refresh_interval = Millis::seconds(60);
    http = client();
    region = "eu01".to_owned();
} |stackit| {
    let has_place = !stackit.endpoint.is_empty() || !stackit.region.is_empty();
    refuse(!has_place, "stackit_sd: endpoint and region missing")?;
    Url::parse(&stackit.endpoint).map_err(|error| {
        let endpoint = quoted(Url::shown(&stackit.endpoint).as_bytes());
        format!("stackit_sd: invalid endpoint {endpoint}: {error}")
    })?;
    stackit.http.check()
});
