//! Lookups of names.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use firn_collect::discovery::{DnsTargets, heap_bytes};
use firn_collect::pool::DiscoveredGroup;
use firn_fetch::FetchError;
use firn_fetch::dns::{self, DnsSettings};
use firn_model::{Pool, Reservation};
use tokio::task::JoinSet;

use super::Run;

// Names of one discovery that are looked up at the same time.
const LOOKUPS_MAX: usize = 8;

/// The last records of each name, with their memory.
type FoundGroups = BTreeMap<String, (DiscoveredGroup, Reservation)>;

impl Run {
    /// Looks up all names each refresh interval. A name whose lookup fails keeps its records.
    pub(super) async fn dns(
        self,
        targets: DnsTargets,
        settings: impl Fn() -> Result<DnsSettings, FetchError>,
    ) {
        let refresh = Duration::from_millis(targets.refresh_ms());
        let mut groups = FoundGroups::new();
        loop {
            let start = Instant::now();
            match settings() {
                Ok(settings) => self.look_up(&targets, &Arc::new(settings), &mut groups).await,
                Err(error) => self.failed_in_part(&error.to_string()),
            }
            let bytes = groups.values().map(|(_, held)| held.bytes()).sum::<u64>();
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            let copies = || groups.values().map(|(group, _)| group.clone()).collect();
            self.publish_copy(bytes, copies);
            self.refreshed(start);
            tokio::time::sleep(refresh).await;
        }
    }

    async fn look_up(
        &self,
        targets: &DnsTargets,
        settings: &Arc<DnsSettings>,
        groups: &mut FoundGroups,
    ) {
        let kind = targets.kind();
        let mut names = targets.names().iter().cloned();
        let mut lookups = JoinSet::new();
        loop {
            while lookups.len() < LOOKUPS_MAX
                && let Some(name) = names.next()
            {
                let settings = Arc::clone(settings);
                lookups.spawn(async move {
                    let found = dns::records(&name, kind, &settings).await;
                    (name, found)
                });
            }
            let looked_up = lookups.join_next().await;
            if let Some(found) = &looked_up {
                let is_good = matches!(found, Ok((_, Ok(_))));
                self.shared.counts.add_lookup(is_good);
            }
            match looked_up {
                Some(Ok((name, Ok(records)))) => {
                    // Answers are short: a few of them exist before their memory is reserved.
                    let group = targets.group(&name, records);
                    let bytes = heap_bytes(std::slice::from_ref(&group));
                    match self.shared.budget.reserve(Pool::Cache, bytes as u64) {
                        Ok(held) => drop(groups.insert(name, (group, held))),
                        Err(error) => self.failed_in_part(&format!("{name}: {error}")),
                    }
                }
                Some(Ok((name, Err(error)))) => self.failed_in_part(&format!("{name}: {error}")),
                Some(Err(error)) => self.failed_in_part(&error.to_string()),
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use firn_collect::config::Config;

    use super::super::tests::test_run;
    use super::*;

    fn targets(keys: &str) -> DnsTargets {
        let text = format!("scrape_configs: [{{job_name: j, {keys}}}]");
        let loaded = Config::parse(&text, &|_| None).unwrap();
        DnsTargets::new(loaded.config.scrape_configs[0].discoveries.dns[0].clone())
    }

    /// A name server: `a.` has a service, `b.` fails at first, all other names are unknown.
    async fn name_server() -> SocketAddr {
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        tokio::spawn(async move {
            let mut query = [0; 512];
            let mut is_first = true;
            while let Ok((_, client)) = socket.recv_from(&mut query).await {
                // The question: a name of one letter.
                let mut answer = query[..19].to_vec();
                let code = match query[13] {
                    b'a' => 0,
                    b'b' if is_first => 2,
                    b'b' => 0,
                    _ => 3,
                };
                let count = u8::from(code == 0);
                answer[2..12].copy_from_slice(&[0x81, 0x80 | code, 0, 1, 0, count, 0, 0, 0, 0]);
                if code == 0 {
                    answer.extend_from_slice(b"\xc0\x0c\0\x21\0\x01\0\0\0\x09\0\x0b\0\0\0\0\0\x50");
                    answer.extend_from_slice(&[1, query[13], 1, b'h', 0]);
                }
                is_first &= query[13] != b'b';
                socket.send_to(&answer, client).await.unwrap();
            }
        });
        address
    }

    #[tokio::test]
    async fn names_are_looked_up_and_a_failure_keeps_the_others() {
        let servers = vec![name_server().await];
        let settings = DnsSettings { servers, attempts: 1, ..DnsSettings::parse("") };
        let keys = "dns_sd_configs: [{names: [a., b., c.], refresh_interval: 20ms}]";
        let targets = targets(keys);
        let (run, task) = test_run("dns", 1 << 20);
        let work = tokio::spawn(run.dns(targets, move || Ok(settings.clone())));
        task.wait_for(&["a.h:80", "b.h:80"]).await;
        assert_eq!(task.failures("dns"), 1);
        assert_eq!(task.metric("dns_lookup_failures_total{name=\"scrape\"}"), 1.0);
        // Two rounds of three names.
        assert!(task.metric("dns_lookups_total{name=\"scrape\"}") >= 6.0);
        work.abort();
    }

    /// Before, records were held without a reservation, and copied before there was one.
    #[tokio::test]
    async fn records_without_memory_are_a_failed_lookup() {
        let servers = vec![name_server().await];
        let settings = DnsSettings { servers, attempts: 1, ..DnsSettings::parse("") };
        let keys = "dns_sd_configs: [{names: [a.], refresh_interval: 20ms}]";
        let targets = targets(keys);
        let (run, task) = test_run("dns", 100);
        let work = tokio::spawn(run.dns(targets, move || Ok(settings.clone())));
        task.wait_for_failures("dns", 2).await;
        task.wait_for(&[]).await;
        work.abort();
    }

    #[tokio::test]
    async fn settings_that_cannot_be_read_are_a_failed_refresh() {
        let keys = "dns_sd_configs: [{names: [a., b.], refresh_interval: 20ms}]";
        let targets = targets(keys);
        let (run, task) = test_run("dns", 1 << 20);
        let work = tokio::spawn(run.dns(targets, || Err(FetchError::Timeout)));
        task.wait_for(&[]).await;
        task.wait_for_failures("dns", 2).await;
        work.abort();
    }
}
