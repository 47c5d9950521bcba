//! Addresses of names.

use std::net::{IpAddr, SocketAddr};

use firn_model::{Error, Result};

use crate::config::LabelSet;
use crate::config::discovery::DnsDiscovery;
use crate::pool::DiscoveredGroup;
use crate::targets::ADDRESS;

/// Lookups of names, and the meaning of their answers. Only addresses (`A`, `AAAA`) are
/// implemented, because the system's resolver returns no other records.
#[derive(Clone, Debug)]
pub struct DnsTargets {
    config: DnsDiscovery,
    is_ipv6: bool,
    port: u16,
}

impl DnsTargets {
    /// Lookups of the names of `config`, a section that [`super::Provider::all_of`] has accepted.
    pub fn new(config: DnsDiscovery) -> DnsTargets {
        let is_ipv6 = config.kind.eq_ignore_ascii_case("AAAA");
        let port = u16::try_from(config.port).unwrap_or_default();
        DnsTargets { config, is_ipv6, port }
    }

    /// # Errors
    /// `Invalid` for a type of record that is not implemented, and for a port that no address has.
    pub(super) fn check(config: &DnsDiscovery, place: &str) -> Result<()> {
        let kind = config.kind.to_uppercase();
        if !matches!(kind.as_str(), "A" | "AAAA") {
            return Err(Error::invalid(format!(
                "dns_sd_configs of {place}: type {kind} is not implemented, only A and AAAA"
            )));
        }
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

    /// The time between two lookups of a name.
    pub fn refresh_ms(&self) -> u64 {
        self.config.refresh_interval.as_ms().max(1)
    }

    /// The group of `name`, which has `addresses`.
    pub fn group(
        &self,
        name: &str,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> DiscoveredGroup {
        let mut addresses: Vec<IpAddr> =
            addresses.into_iter().filter(|address| address.is_ipv6() == self.is_ipv6).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let target = |address| {
            let address = SocketAddr::new(address, self.port).to_string();
            [(ADDRESS, address.as_str()), ("__meta_dns_name", name)].into_iter().collect()
        };
        DiscoveredGroup {
            targets: addresses.into_iter().map(target).collect(),
            labels: LabelSet::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn addresses_of_the_type_are_targets() {
        let f = |kind: &str| {
            let text = format!(
                "scrape_configs: [{{job_name: j, dns_sd_configs: \
                 [{{names: [n], type: {kind}, port: 80}}]}}]"
            );
            let loaded = Config::parse(&text, &|_| None).unwrap();
            let config = loaded.config.scrape_configs[0].discoveries.dns[0].clone();
            let found = ["10.0.0.2", "::1", "10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
            let group = DnsTargets::new(config).group("n", found);
            assert!(group.targets.iter().all(|t| t.get("__meta_dns_name") == Some("n")));
            let address = |target: &LabelSet| target.get(ADDRESS).unwrap().to_owned();
            group.targets.iter().map(address).collect::<Vec<_>>()
        };
        assert_eq!(f("a"), ["10.0.0.1:80", "10.0.0.2:80"]);
        assert_eq!(f("AAAA"), ["[::1]:80"]);
    }
}
