//! Records of names.

use std::net::IpAddr;

use firn_model::{Error, Result};

use super::api::host_port;
use crate::config::LabelSet;
use crate::config::discovery::DnsDiscovery;
use crate::pool::DiscoveredGroup;
use crate::targets::ADDRESS;

/// A type of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DnsKind {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
    /// Mail servers.
    Mx,
    /// Name servers.
    Ns,
    /// Hosts and ports of a service.
    Srv,
}

/// A record. Names are absolute: they end with a dot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DnsRecord {
    /// Of type `A` or `AAAA`.
    Address(IpAddr),
    /// Of type `MX`.
    MailServer(String),
    /// Of type `NS`.
    NameServer(String),
    /// Of type `SRV`.
    Service {
        /// The host.
        target: String,
        /// Its port.
        port: u16,
    },
}

/// Lookups of names, and the meaning of their answers.
#[derive(Clone, Debug)]
pub struct DnsTargets {
    config: DnsDiscovery,
    kind: DnsKind,
}

impl DnsTargets {
    /// Lookups of the names of `config`.
    pub fn new(config: DnsDiscovery) -> DnsTargets {
        let kind = match config.kind.to_uppercase().as_str() {
            "A" => DnsKind::A,
            "AAAA" => DnsKind::Aaaa,
            "MX" => DnsKind::Mx,
            "NS" => DnsKind::Ns,
            _ => DnsKind::Srv,
        };
        DnsTargets { config, kind }
    }

    /// # Errors
    /// `Invalid` for a port that no address has.
    pub(super) fn check(config: &DnsDiscovery, place: &str) -> Result<()> {
        match u16::try_from(config.port) {
            Ok(_) => Ok(()),
            Err(_) => {
                let port = config.port;
                Err(Error::invalid(format!("dns_sd_configs of {place}: {port} is not a port")))
            }
        }
    }

    /// The names to look up.
    pub fn names(&self) -> &[String] {
        &self.config.names
    }

    /// The type of records to look up.
    pub fn kind(&self) -> DnsKind {
        self.kind
    }

    /// The time between two lookups of a name.
    pub fn refresh_ms(&self) -> u64 {
        self.config.refresh_interval.as_ms().max(1)
    }

    /// The group of `name`, which has `records`.
    pub fn group(&self, name: &str, mut records: Vec<DnsRecord>) -> DiscoveredGroup {
        // Servers rotate their answers.
        records.sort_unstable();
        records.dedup();
        let target = |record: &DnsRecord| self.target(name, record);
        DiscoveredGroup {
            targets: records.iter().map(target).collect(),
            labels: LabelSet::default(),
        }
    }

    fn target(&self, name: &str, record: &DnsRecord) -> LabelSet {
        let port = self.config.port;
        let host = |target: &str| host_port(target.trim_end_matches('.'), port);
        let mut labels = vec![("__meta_dns_name", name.to_owned())];
        let address = match record {
            DnsRecord::Address(address) => host_port(&address.to_string(), port),
            DnsRecord::MailServer(target) => {
                labels.push(("__meta_dns_mx_record_target", target.clone()));
                host(target)
            }
            DnsRecord::NameServer(target) => {
                labels.push(("__meta_dns_ns_record_target", target.clone()));
                host(target)
            }
            DnsRecord::Service { target, port } => {
                labels.push(("__meta_dns_srv_record_target", target.clone()));
                labels.push(("__meta_dns_srv_record_port", port.to_string()));
                host_port(target.trim_end_matches('.'), port)
            }
        };
        labels.push((ADDRESS, address));
        labels.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn targets(keys: &str) -> DnsTargets {
        let text =
            format!("scrape_configs: [{{job_name: j, dns_sd_configs: [{{names: [n], {keys}}}]}}]");
        let loaded = Config::parse(&text, &|_| None).unwrap();
        DnsTargets::new(loaded.config.scrape_configs[0].discoveries.dns[0].clone())
    }

    fn labels(keys: &str, records: Vec<DnsRecord>) -> Vec<String> {
        let group = targets(keys).group("n", records);
        let text = |target: &LabelSet| {
            let labels = target.iter().map(|(name, value)| format!("{name}={value}"));
            labels.collect::<Vec<_>>().join(" ")
        };
        group.targets.iter().map(text).collect()
    }

    #[test]
    fn the_type_may_be_in_any_case_and_is_srv_by_default() {
        for (keys, want) in [
            ("type: a, port: 1", DnsKind::A),
            ("type: AAAA, port: 1", DnsKind::Aaaa),
            ("type: Mx, port: 1", DnsKind::Mx),
            ("type: ns, port: 1", DnsKind::Ns),
            ("refresh_interval: 1s", DnsKind::Srv),
        ] {
            assert_eq!(targets(keys).kind(), want, "{keys}");
        }
    }

    #[test]
    fn records_are_targets() {
        let addresses = ["10.0.0.2", "::1", "10.0.0.1", "10.0.0.2"];
        let addresses = addresses.map(|ip| DnsRecord::Address(ip.parse().unwrap())).to_vec();
        assert_eq!(
            labels("type: A, port: 80", addresses),
            [
                "__address__=10.0.0.1:80 __meta_dns_name=n",
                "__address__=10.0.0.2:80 __meta_dns_name=n",
                "__address__=[::1]:80 __meta_dns_name=n",
            ]
        );
        let service = |target: &str| DnsRecord::Service { target: target.to_owned(), port: 9090 };
        assert_eq!(
            labels("port: 1", vec![service("b.example."), service("a.example.")]),
            [
                "__address__=a.example:9090 __meta_dns_name=n __meta_dns_srv_record_port=9090 \
                 __meta_dns_srv_record_target=a.example.",
                "__address__=b.example:9090 __meta_dns_name=n __meta_dns_srv_record_port=9090 \
                 __meta_dns_srv_record_target=b.example.",
            ]
        );
        assert_eq!(
            labels("type: MX, port: 25", vec![DnsRecord::MailServer("m.example.".to_owned())]),
            ["__address__=m.example:25 __meta_dns_mx_record_target=m.example. __meta_dns_name=n"]
        );
        assert_eq!(
            labels("type: NS, port: 53", vec![DnsRecord::NameServer("ns1.example.".to_owned())]),
            ["__address__=ns1.example:53 __meta_dns_name=n \
                 __meta_dns_ns_record_target=ns1.example."]
        );
    }
}
