//! From discovered labels to a target.

use std::collections::BTreeMap;

use firn_model::{Error, Labels, Result};

use crate::config::discovery::check_target_address;
use crate::config::{LabelSet, Millis, ScrapeConfig};
use crate::relabel::LabelEditor;
use firn_yaml::quoted;

/// The label of a target's host and port.
pub const ADDRESS: &str = "__address__";
const INTERVAL: &str = "__scrape_interval__";
const TIMEOUT: &str = "__scrape_timeout__";
const METRICS_PATH: &str = "__metrics_path__";
pub(super) const SCHEME: &str = "__scheme__";
const UNIX_SOCKET: &str = "__unix_socket__";
const PARAMETER_PREFIX: &str = "__param_";
const META_PREFIX: &str = "__meta_";
// The HTTP client sends no longer one, and each scrape makes it.
const URL_BYTES_MAX: usize = (64 << 10) - 2;
const CONVERT_CLASSIC: &str = "__convert_classic_histograms_to_nhcb__";
const ALWAYS_CLASSIC: &str = "__always_scrape_classic_histograms__";
const NATIVE: &str = "__scrape_native_histograms__";

/// A target of a job. Its labels rule its scrapes: relabelling may have changed the values of the
/// job.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// All labels but `__meta_*`. Those that begin with `__` are no labels of samples.
    pub labels: Labels,
    /// The labels before relabelling.
    pub discovered: Labels,
    /// The time between scrapes. Never 0.
    pub interval: Millis,
    /// At most the interval. Never 0.
    pub timeout: Millis,
    /// Whether classic histograms become native ones with custom buckets.
    pub convert_classic_histograms: bool,
    /// Whether classic histograms are kept beside native ones.
    pub always_scrape_classic_histograms: bool,
    /// Whether native histograms are kept.
    pub scrape_native_histograms: bool,
}

impl Target {
    /// The labels before relabelling: those of the target, those of its group that it lacks, and
    /// the values of the job that both lack.
    ///
    /// # Errors
    /// `TooLarge` for very long labels.
    pub fn discovered_labels(
        job: &ScrapeConfig,
        target: &LabelSet,
        group: &LabelSet,
        editor: &mut LabelEditor,
    ) -> Result<Labels> {
        editor.reset(&Labels::empty());
        for (name, value) in target.iter() {
            editor.set(name, value)?;
        }
        for (name, value) in group.iter().filter(|(name, _)| target.get(name).is_none()) {
            editor.set(name, value)?;
        }
        let switch = |switch: Option<bool>| switch.unwrap_or_default().to_string();
        let parameters = job.params.iter().filter_map(|(name, values)| {
            Some((format!("{PARAMETER_PREFIX}{name}"), values.first()?))
        });
        let values = [
            ("job", job.job_name.clone()),
            (INTERVAL, job.scrape_interval.to_string()),
            (TIMEOUT, job.scrape_timeout.to_string()),
            (METRICS_PATH, job.metrics_path.clone()),
            (SCHEME, job.scheme.clone()),
            (CONVERT_CLASSIC, switch(job.convert_classic_histograms_to_nhcb)),
            (ALWAYS_CLASSIC, switch(job.always_scrape_classic_histograms)),
            (NATIVE, switch(job.scrape_native_histograms)),
        ];
        let values = values.into_iter().map(|(name, value)| (name.to_owned(), value));
        for (name, value) in values.chain(parameters.map(|(name, value)| (name, value.clone()))) {
            if editor.get(&name).is_empty() {
                editor.set(&name, &value)?;
            }
        }
        Ok(editor.labels())
    }

    /// The target of `discovered` labels; `None` if relabelling drops it.
    ///
    /// # Errors
    /// `Invalid` with Prometheus' text for a target that cannot be scraped.
    pub fn populate(
        job: &ScrapeConfig,
        discovered: Labels,
        editor: &mut LabelEditor,
    ) -> Result<Option<Target>> {
        editor.reset(&discovered);
        if !job.relabel_configs.rules().apply(editor)? {
            return Ok(None);
        }
        let address = editor.get(ADDRESS).to_owned();
        if address.is_empty() && editor.get(UNIX_SOCKET).is_empty() {
            return Err(Error::invalid("no address"));
        }
        check_target_address(&address).map_err(Error::invalid)?;
        let (interval, timeout) = times(editor)?;
        let convert = switch(editor, CONVERT_CLASSIC, "convert classic histograms to nhcb")?;
        let always = switch(editor, ALWAYS_CLASSIC, "always scrape classic histograms")?;
        let native = switch(editor, NATIVE, "scrape native histograms")?;
        if editor.get("instance").is_empty() {
            editor.set("instance", &address)?;
        }
        let target = Target {
            labels: editor.labels().filter(|name| !name.starts_with(META_PREFIX)),
            discovered,
            interval,
            timeout,
            convert_classic_histograms: convert,
            always_scrape_classic_histograms: always,
            scrape_native_histograms: native,
        };
        let url_bytes = target.url(job).len();
        if url_bytes > URL_BYTES_MAX {
            return Err(Error::too_large(format!(
                "the URL of a target has {url_bytes} bytes, at most {URL_BYTES_MAX} are requested"
            )));
        }
        Ok(Some(target))
    }

    /// The labels of samples and of the list of targets: those that do not begin with `__`.
    pub fn public_labels(&self) -> Labels {
        self.labels.filter(|name| !name.starts_with("__"))
    }

    /// The path of the Unix socket that serves the target, if it is not reached over TCP.
    pub fn unix_socket(&self) -> Option<&str> {
        self.labels.get(UNIX_SOCKET)
    }

    /// The address of a scrape. The parameters are those of `job` in order of names; a label
    /// `__param_x` replaces the first value of `x`.
    pub fn url(&self, job: &ScrapeConfig) -> String {
        let mut parameters: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, values) in &job.params {
            parameters.insert(name, values.iter().map(String::as_str).collect());
        }
        for (label, value) in self.labels.iter() {
            let Some(name) = label.strip_prefix(PARAMETER_PREFIX) else { continue };
            let values = parameters.entry(name).or_default();
            match values.first_mut() {
                Some(first) => *first = value,
                None => values.push(value),
            }
        }
        let label = |name: &str| self.labels.get(name).unwrap_or("");
        let mut url = String::new();
        if !label(SCHEME).is_empty() {
            url.push_str(label(SCHEME));
            url.push(':');
        }
        url.push_str("//");
        // Only a target behind a Unix socket may be without one.
        url.push_str(self.labels.get(ADDRESS).unwrap_or("localhost"));
        let path = label(METRICS_PATH);
        if !path.is_empty() && !path.starts_with('/') {
            url.push('/');
        }
        escape(path, "-_.~$&+,/:;=@", &mut url);
        let mut separator = '?';
        for (name, values) in parameters {
            for value in values {
                url.push(separator);
                separator = '&';
                escape(name, "-_.~ ", &mut url);
                url.push('=');
                escape(value, "-_.~ ", &mut url);
            }
        }
        url
    }
}

/// Interval and timeout.
fn times(editor: &LabelEditor) -> Result<(Millis, Millis)> {
    let time = |label: &str, name: &str| {
        let time: Millis = editor
            .get(label)
            .parse()
            .map_err(|error| Error::invalid(format!("error parsing scrape {name}: {error}")))?;
        match time.as_ms() {
            0 => Err(Error::invalid(format!("scrape {name} cannot be 0"))),
            _ => Ok(time),
        }
    };
    let interval = time(INTERVAL, "interval")?;
    let timeout = time(TIMEOUT, "timeout")?;
    if timeout > interval {
        let text = |label: &str| quoted(editor.get(label).as_bytes());
        return Err(Error::invalid(format!(
            "scrape timeout cannot be greater than scrape interval ({} > {})",
            text(TIMEOUT),
            text(INTERVAL)
        )));
    }
    Ok((interval, timeout))
}

/// A switch in one of Go's spellings; an absent label is off.
fn switch(editor: &LabelEditor, label: &str, name: &str) -> Result<bool> {
    match editor.get(label) {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "" | "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        other => {
            let other = quoted(other.as_bytes());
            Err(Error::invalid(format!(
                "error parsing {name}: strconv.ParseBool: parsing {other}: invalid syntax"
            )))
        }
    }
}

/// Appends `text` with the bytes beyond letters, digits and `kept` as `%XX`; a kept space is a plus
/// sign, as in queries.
fn escape(text: &str, kept: &str, out: &mut String) {
    let digit = |value: u8| char::from_digit(u32::from(value), 16).map(|c| c.to_ascii_uppercase());
    for byte in text.bytes() {
        let is_kept = kept.as_bytes().contains(&byte);
        match char::from(byte) {
            ' ' if is_kept => out.push('+'),
            c if is_kept || c.is_ascii_alphanumeric() => out.push(c),
            _ => {
                out.push('%');
                out.extend([digit(byte >> 4), digit(byte & 15)].into_iter().flatten());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn job(keys: &str) -> ScrapeConfig {
        let text = format!("scrape_configs: [{{job_name: j, {keys}}}]");
        let loaded = Config::parse(&text, &|_| None).unwrap();
        loaded.config.scrape_configs[0].clone()
    }

    fn populate(
        job: &ScrapeConfig,
        target: &[(&str, &str)],
        group: &[(&str, &str)],
    ) -> Result<Option<Target>> {
        let mut editor = LabelEditor::default();
        let set = |pairs: &[(&str, &str)]| pairs.iter().copied().collect::<LabelSet>();
        let discovered =
            Target::discovered_labels(job, &set(target), &set(group), &mut editor).unwrap();
        Target::populate(job, discovered, &mut editor)
    }

    #[test]
    fn targets_have_labels_of_target_group_and_job() {
        let job = job("scrape_interval: 30s, params: {a: [x, y], b: []}");
        let target = [("__address__", "h:1"), ("a", "1"), ("empty", ""), ("__meta_x", "m")];
        let group = [("a", "2"), ("b", "3"), ("empty", "4"), ("__param_c", "z")];
        let target = populate(&job, &target, &group).unwrap().unwrap();
        let public = target.public_labels().to_string();
        assert_eq!(public, r#"{a="1",b="3",instance="h:1",job="j"}"#);
        assert_eq!(target.discovered.get("__meta_x"), Some("m"));
        assert_eq!(target.labels.get("__meta_x"), None);
        assert_eq!(
            (target.interval, target.timeout.to_string()),
            (Millis::seconds(30), "10s".into())
        );
        assert_eq!(target.url(&job), "http://h:1/metrics?a=x&a=y&c=z");
    }

    #[test]
    fn relabelling_rules_the_scrape() {
        let job = job("params: {a: [x, y]}, relabel_configs: [\
            {target_label: __param_a, replacement: 'p q/é'}, \
            {target_label: __metrics_path__, replacement: 'm?x!'}, \
            {target_label: __scheme__, replacement: https}, \
            {target_label: __scrape_native_histograms__, replacement: T}, \
            {target_label: instance, replacement: i}, \
            {source_labels: [drop], regex: y, action: drop}]");
        let target = populate(&job, &[("__address__", "h")], &[]).unwrap().unwrap();
        assert_eq!(target.url(&job), "https://h/m%3Fx%21?a=p+q%2F%C3%A9&a=y");
        assert_eq!(target.labels.get("instance"), Some("i"));
        assert!(target.scrape_native_histograms);
        assert_eq!(populate(&job, &[("__address__", "h"), ("drop", "y")], &[]).unwrap(), None);
    }

    /// Before, each scrape made and refused an address of megabytes, on the thread of all scrapes.
    #[test]
    fn a_target_with_a_url_that_cannot_be_sent_fails() {
        let job = job("params: {}");
        let with = |len: usize| {
            let value = "é".repeat(len);
            populate(&job, &[("__address__", "h:1"), ("__param_x", &value)], &[])
        };
        assert_eq!(with(5_000).unwrap().unwrap().url(&job).len(), 21 + 30_000);
        let error = with(11_000).unwrap_err().to_string();
        assert!(error.contains("has 66021 bytes"), "{error}");
    }

    /// Was refused.
    #[test]
    fn a_target_behind_a_unix_socket_needs_no_address() {
        let labels = [("__unix_socket__", "/run/a.sock"), ("a", "b")];
        let target = populate(&job("params: {}"), &labels, &[]).unwrap().unwrap();
        assert_eq!(target.url(&job("params: {}")), "http://localhost/metrics");
        assert_eq!(target.unix_socket(), Some("/run/a.sock"));
        assert_eq!(target.public_labels().to_string(), r#"{a="b",job="j"}"#);
    }

    #[test]
    fn targets_that_cannot_be_scraped_are_errors() {
        let job = job("relabel_configs: [{source_labels: [a], target_label: b}]");
        for (labels, want) in [
            (&[][..], "no address"),
            (&[("__address__", "http://h")], "\"http://h\" is not a valid hostname"),
            (&[("__address__", "http://u:p@h/a")], "\"http://xxxxx@h/a\" is not a valid hostname"),
            (&[("__address__", "h"), ("__scrape_timeout__", "0")], "scrape timeout cannot be 0"),
            (&[("__address__", "h"), ("__scrape_interval__", "1s")], "(\"10s\" > \"1s\")"),
            (
                &[("__address__", "h"), ("__always_scrape_classic_histograms__", "yes")],
                "error parsing always scrape classic histograms: strconv.ParseBool: parsing \"yes\"",
            ),
        ] {
            let error = populate(&job, labels, &[]).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }
}
