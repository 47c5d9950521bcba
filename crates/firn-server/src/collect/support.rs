//! The parts of a valid `prometheus.yml` on which a server does not act: it refuses them, or they
//! have no effect. A server and `firn check config` name the same ones.

use firn_collect::config::{Alertmanagers, Config, HttpClient, RemoteWrite, ScrapeConfig};
use firn_collect::discovery::Provider;
use firn_fetch::{Bodies, Client};
use firn_model::{Budget, Error, Result};

/// The parts of a file on which a server does not act, except for discoveries that are not
/// implemented.
#[derive(Clone, Debug, Default)]
pub struct UnsupportedParts {
    /// The reasons for which a server refuses the file.
    pub refusals: Vec<String>,
    /// The jobs of which every scrape fails, with the reason.
    pub failing_jobs: Vec<String>,
    /// The keys that have no effect.
    pub keys_without_effect: Vec<String>,
}

impl UnsupportedParts {
    /// Those of `config` and of all its `jobs`. `opens_files` also tries certificates and keys.
    pub fn find(config: &Config, jobs: &[ScrapeConfig], opens_files: bool) -> UnsupportedParts {
        let bodies = Bodies::new(&Budget::unlimited());
        let check_client = |http: &HttpClient| match opens_files {
            true => Client::new(http, &bodies).map(drop).map_err(|error| error.to_string()),
            false => Ok(()),
        };
        let of_place = |place: &str, error: String| Error::invalid(format!("{place}: {error}"));
        let mut parts = UnsupportedParts {
            keys_without_effect: keys_without_effect(config, jobs.iter()),
            ..UnsupportedParts::default()
        };
        let mut checked = Vec::new();
        for job in jobs {
            let place = format!("job {:?}", job.job_name);
            checked.push(Provider::implemented(&job.discoveries, &place).map(drop));
            if let Err(error) = check_client(&job.http) {
                parts.failing_jobs.push(format!("{place}: {error}"));
            }
        }
        for settings in config.alerting.alertmanagers.iter() {
            let client = |()| check_client(&settings.http).map_err(|e| of_place("alerting", e));
            checked.push(check_alertmanagers(settings).and_then(client));
        }
        for section in config.remote_write.iter() {
            let client = |()| check_client(&section.http).map_err(|e| of_place("remote_write", e));
            checked.push(check_remote_write(section).and_then(client));
        }
        let refusals = checked.into_iter().filter_map(Result::err);
        parts.refusals = refusals.map(|error| error.to_string()).collect();
        parts
    }
}

/// # Errors
/// `Invalid` for a part that is not supported.
pub(crate) fn check_alertmanagers(settings: &Alertmanagers) -> Result<()> {
    if settings.sigv4.is_some() {
        return Err(Error::invalid("alerting: sigv4 is not supported"));
    }
    Provider::implemented(&settings.discoveries, "alerting").map(drop)
}

/// # Errors
/// `Invalid` for a part that is not supported.
pub(crate) fn check_remote_write(section: &RemoteWrite) -> Result<()> {
    for (key, is_set) in [
        ("sigv4", section.sigv4.is_some()),
        ("azuread", section.azuread.is_some()),
        ("google_iam", section.google_iam.is_some()),
    ] {
        if is_set {
            return Err(Error::invalid(format!("remote_write: {key} is not supported")));
        }
    }
    Ok(())
}

/// The keys with values that a server reads, checks and does not act on.
pub(crate) fn keys_without_effect<'j>(
    config: &Config,
    jobs: impl Iterator<Item = &'j ScrapeConfig>,
) -> Vec<String> {
    let defaults = Config::default();
    let mut keys = Vec::new();
    for (key, is_set) in [
        ("remote_read", !config.remote_read.is_empty()),
        ("storage", config.storage != defaults.storage),
        ("tracing", config.tracing.is_some()),
        ("otlp", config.otlp != defaults.otlp),
        ("runtime", config.runtime != defaults.runtime),
    ] {
        if is_set {
            keys.push(key.to_owned());
        }
    }
    for job in jobs {
        for (key, is_set) in [
            ("scrape_native_histograms", job.scrape_native_histograms == Some(true)),
            (
                "convert_classic_histograms_to_nhcb",
                job.convert_classic_histograms_to_nhcb == Some(true),
            ),
            ("native_histogram_bucket_limit", job.native_histogram_bucket_limit > 0),
            ("native_histogram_min_bucket_factor", job.native_histogram_min_bucket_factor > 0.0),
        ] {
            if is_set {
                keys.push(format!("{key} of job {:?}", job.job_name));
            }
        }
    }
    for section in config.remote_write.iter() {
        for (key, is_set) in [
            ("send_exemplars", section.send_exemplars),
            ("send_native_histograms", section.send_native_histograms),
            ("round_robin_dns", section.round_robin_dns),
            ("failed_request_logging", section.failed_request_logging),
        ] {
            if is_set {
                let url = section.url.as_ref().map(ToString::to_string).unwrap_or_default();
                keys.push(format!("{key} of remote_write {url:?}"));
            }
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(text: &str) -> UnsupportedParts {
        let config = Config::parse(text, &|_| None).unwrap().config;
        UnsupportedParts::find(&config, &config.scrape_configs, true)
    }

    #[test]
    fn keys_without_effect_are_named() {
        let text = "global: {query_log_file: q.log}\n\
                    remote_write: [{url: 'http://u:p@h/w', send_exemplars: true, \
                    failed_request_logging: true}]\n\
                    remote_read: [{url: 'http://h/r'}]\n\
                    storage: {tsdb: {out_of_order_time_window: 1h}}\n\
                    scrape_configs: [{job_name: a, scrape_native_histograms: true}]";
        assert_eq!(
            find(text).keys_without_effect,
            [
                "remote_read",
                "storage",
                "scrape_native_histograms of job \"a\"",
                "send_exemplars of remote_write \"http://u:xxxxx@h/w\"",
                "failed_request_logging of remote_write \"http://u:xxxxx@h/w\"",
            ]
        );
        let none = find("scrape_configs: [{job_name: a}]\nremote_write: [{url: 'http://h/w'}]");
        assert_eq!(none.keys_without_effect, [""; 0]);
        assert_eq!(none.refusals, [""; 0]);
    }

    /// Before, a check accepted these, and a server did not start with them.
    #[test]
    fn refusals_are_those_of_the_parts() {
        let old = "tls_config: {min_version: TLS10, max_version: TLS11}";
        let alertmanager = |keys: &str| format!("alerting: {{alertmanagers: [{{{keys}}}]}}");
        let remote = |keys: &str| format!("remote_write: [{{url: 'http://h/w', {keys}}}]");
        let job = |keys: &str| format!("scrape_configs: [{{job_name: a, {keys}}}]");
        for (text, want) in [
            (alertmanager("sigv4: {region: eu}"), "alerting: sigv4 is not supported"),
            (alertmanager(old), "alerting: tls_config: versions of TLS before 1.2 are not"),
            (remote("sigv4: {region: eu}"), "remote_write: sigv4 is not supported"),
            (remote("google_iam: {credentials_file: x}"), "remote_write: google_iam is not"),
            (remote(old), "remote_write: tls_config: versions of TLS before 1.2 are not"),
            (remote("tls_config: {ca_file: /none.pem}"), "remote_write: "),
            (job("consul_sd_configs: [{scheme: ftp}]"), "consul_sd_configs of job \"a\": scheme"),
            // The other discovery does not hide it.
            (
                job("nomad_sd_configs: [{}], docker_sd_configs: [{host: 'ssh://h'}]"),
                "docker_sd_configs of job \"a\": host",
            ),
        ] {
            let parts = find(&text);
            assert_eq!(parts.refusals.len(), 1, "{text}: {parts:?}");
            assert!(parts.refusals[0].starts_with(want), "{text}: {parts:?}");
        }
        let failing = find(&job(old));
        assert_eq!(failing.refusals, [""; 0]);
        let want = "job \"a\": tls_config: versions of TLS before 1.2 are not supported";
        assert_eq!(failing.failing_jobs, [want]);
    }
}
