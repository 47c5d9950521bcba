//! Discovery of targets: the sections `static_configs` and `*_sd_configs`.
//!
//! Nine kinds are supported. The others of Prometheus are read and checked, so that a file has the
//! same errors, and [`Discoveries::unsupported`] names them.

mod cloud;
mod kubernetes;
mod main_kinds;
mod service;

pub use cloud::*;
pub use kubernetes::{
    AttachMetadata, KubernetesDiscovery, KubernetesRole, NamespaceSelection, Selector,
};
pub use main_kinds::{
    ConsulDiscovery, DnsDiscovery, DockerDiscovery, Ec2Discovery, FileDiscovery, Filter,
    HttpDiscovery, SwarmDiscovery, SwarmFilter, TargetGroup,
};
pub use service::*;

use super::HttpClient;
use super::url::Url;
use firn_model::redacted;
use firn_yaml::quoted;
use firn_yaml::{Checked, Items, section};

/// Implements the defaults and the checks of a section.
macro_rules! checked {
    ($name:ident {
        $( $( $field:ident ).+ = $value:expr; )*
    } $check:expr) => {
        impl firn_yaml::Checked for $name {
            fn start(&mut self) {
                *self = firn_yaml::Field::zero();
                $( self.$($field).+ = $value; )*
            }

            fn check(&mut self) -> Result<(), String> {
                let check: fn(&mut $name) -> Result<(), String> = $check;
                check(self)
            }
        }
    };
}
use checked;

/// Declares the kinds: a field, its key, and its section, in order of keys. A kind that is marked
/// with `other` is not supported.
macro_rules! kinds {
    ($( $field:ident: $ty:ty = $key:literal $($other:ident)?, )*) => {
        section! {
            /// All discoveries of a job or of a set of Alertmanagers.
            pub struct Discoveries: "discovery.Configs" {
                $( $field: Items<$ty> = $key omit, )*
            }
        }

        impl Discoveries {
            /// # Errors
            /// The first key with a null in its list.
            pub(in crate::config) fn check_nulls(&self) -> Result<(), String> {
                $(
                    if self.$field.has_null() {
                        return Err(concat!("empty or null section in ", $key).to_owned());
                    }
                )*
                Ok(())
            }

            /// The keys of discoveries that are valid but not supported, in order.
            pub fn unsupported(&self) -> impl Iterator<Item = &'static str> {
                [$( ($key, stringify!($($other)?) == "other" && !self.$field.is_empty()), )*]
                    .into_iter()
                    .filter_map(|(key, is_listed)| is_listed.then_some(key))
            }
        }
    };
}

kinds! {
    aws: AwsDiscovery = "aws_sd_configs" other,
    azure: AzureDiscovery = "azure_sd_configs" other,
    consul: ConsulDiscovery = "consul_sd_configs",
    digitalocean: DigitalOceanDiscovery = "digitalocean_sd_configs" other,
    dns: DnsDiscovery = "dns_sd_configs",
    docker: DockerDiscovery = "docker_sd_configs",
    dockerswarm: SwarmDiscovery = "dockerswarm_sd_configs",
    ec2: Ec2Discovery = "ec2_sd_configs",
    ecs: EcsDiscovery = "ecs_sd_configs" other,
    elasticache: ElasticacheDiscovery = "elasticache_sd_configs" other,
    eureka: EurekaDiscovery = "eureka_sd_configs" other,
    file: FileDiscovery = "file_sd_configs",
    gce: GceDiscovery = "gce_sd_configs" other,
    hetzner: HetznerDiscovery = "hetzner_sd_configs" other,
    http: HttpDiscovery = "http_sd_configs",
    ionos: IonosDiscovery = "ionos_sd_configs" other,
    kubernetes: KubernetesDiscovery = "kubernetes_sd_configs",
    kuma: KumaDiscovery = "kuma_sd_configs" other,
    lightsail: LightsailDiscovery = "lightsail_sd_configs" other,
    linode: LinodeDiscovery = "linode_sd_configs" other,
    marathon: MarathonDiscovery = "marathon_sd_configs" other,
    msk: MskDiscovery = "msk_sd_configs" other,
    nerve: NerveDiscovery = "nerve_sd_configs" other,
    nomad: NomadDiscovery = "nomad_sd_configs" other,
    oci: OciDiscovery = "oci_sd_configs" other,
    openstack: OpenstackDiscovery = "openstack_sd_configs" other,
    outscale: OutscaleDiscovery = "outscale_sd_configs" other,
    ovhcloud: OvhcloudDiscovery = "ovhcloud_sd_configs" other,
    puppetdb: PuppetdbDiscovery = "puppetdb_sd_configs" other,
    rds: RdsDiscovery = "rds_sd_configs" other,
    scaleway: ScalewayDiscovery = "scaleway_sd_configs" other,
    serverset: ServersetDiscovery = "serverset_sd_configs" other,
    stackit: StackitDiscovery = "stackit_sd_configs" other,
    static_groups: TargetGroup = "static_configs",
    triton: TritonDiscovery = "triton_sd_configs" other,
    uyuni: UyuniDiscovery = "uyuni_sd_configs" other,
    vultr: VultrDiscovery = "vultr_sd_configs" other,
}

impl Checked for Discoveries {}

impl Discoveries {
    /// Targets are hosts, not addresses with a scheme or a path.
    pub(super) fn check_static_targets(&self) -> Result<(), String> {
        self.static_groups
            .iter()
            .flat_map(|group| &group.targets)
            .try_for_each(|target| check_target_address(target))
    }
}

/// # Errors
/// `address` has a slash.
pub(crate) fn check_target_address(address: &str) -> Result<(), String> {
    if !address.contains('/') {
        return Ok(());
    }
    // A URL in its place may have a password. Other texts are as Prometheus shows them.
    let shown = if address.contains('@') { redacted(address) } else { address.into() };
    Err(format!("{} is not a valid hostname", quoted(shown.as_bytes())))
}

/// `Err(text)` if `is_wrong`.
fn refuse(is_wrong: bool, text: &str) -> Result<(), String> {
    if is_wrong { Err(text.to_owned()) } else { Ok(()) }
}

/// Checks the address of an HTTP server.
fn check_http_url(url: &Url) -> Result<(), String> {
    refuse(url.as_str().is_empty(), "URL is missing")?;
    let is_http = matches!(url.scheme(), "http" | "https");
    refuse(!is_http, "URL scheme must be 'http' or 'https'")?;
    refuse(url.host().is_empty(), "host is missing in URL")
}

/// A client with the defaults.
fn client() -> HttpClient {
    HttpClient::default()
}
