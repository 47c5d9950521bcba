use std::path::{Path, PathBuf};

use super::*;

/// Files in memory.
struct Folder(BTreeMap<PathBuf, &'static str>);

impl Folder {
    fn new(files: &[(&str, &'static str)]) -> Folder {
        Folder(files.iter().map(|(path, text)| (PathBuf::from(path), *text)).collect())
    }
}

impl Files for Folder {
    fn read(&self, path: &Path) -> std::io::Result<String> {
        let text = self.0.get(path).ok_or(std::io::ErrorKind::NotFound)?;
        Ok((*text).to_owned())
    }

    fn list(&self, folder: &Path) -> std::io::Result<Vec<String>> {
        let inside = self.0.keys().filter(|path| path.parent() == Some(folder));
        Ok(inside.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect())
    }
}

fn parse(text: &str) -> Result<Config> {
    Ok(Config::parse(text, &|_| None)?.config)
}

fn error(text: &str) -> String {
    parse(text).expect_err(text).to_string()
}

fn load(files: &[(&str, &'static str)]) -> Result<Vec<ScrapeConfig>> {
    let folder = Folder::new(files);
    let options = LoadOptions { env: &|_| None, is_agent: false };
    let loaded = Config::load(Path::new("/c/p.yml"), &folder, &options)?;
    loaded.config.scrape_configs(&folder)
}

#[test]
fn an_empty_file_has_the_defaults() {
    for text in ["", "# nothing", "global:", "~", "{}", "runtime:\nstorage:\n"] {
        assert_eq!(parse(text).unwrap(), parse("").unwrap(), "{text:?}");
    }
    let config = parse("").unwrap();
    assert_eq!(config.global.scrape_interval.to_string(), "1m");
    assert_eq!(config.global.scrape_timeout.to_string(), "10s");
    assert_eq!(config.global.metric_name_escaping_scheme.get(), Escaping::AllowUtf8);
    assert_eq!(config.runtime.log_level, LogLevel::Info);
}

#[test]
fn wrong_keys_and_types_are_reported_together() {
    let text = "global: {a: 1, scrape_interval: 1m, scrape_interval: 2m}\n\
                remote_write:\n- url: http://a\n  queue_config: {capacity: many}\nb:\n";
    assert_eq!(
        error(text),
        "yaml: unmarshal errors:\n  \
         line 1: field a not found in type config.plain\n  \
         line 1: field scrape_interval already set in type config.plain\n  \
         line 4: cannot unmarshal !!str `many` into int\n  \
         line 5: field b not found in type config.plain"
    );
}

#[test]
fn violations_have_a_line() {
    let text = "scrape_configs:\n- job_name: a\n- metrics_path: /\n";
    assert_eq!(error(text), "job_name is empty (line 3)");
    let text = "global:\n  scrape_interval: 1x\n";
    assert_eq!(error(text), "unknown unit \"x\" in duration \"1x\" (line 2)");
}

#[test]
fn aliases_and_merge_keys_work_within_a_bound() {
    let text = "global: &g {scrape_interval: 5s}\nscrape_configs:\n\
                - &job {job_name: a, <<: *g}\n- {<<: *job, job_name: b}\n";
    let config = parse(text).unwrap();
    let jobs: Vec<_> = config.scrape_configs.iter().map(|job| job.job_name.as_str()).collect();
    assert_eq!(jobs, ["a", "b"]);
    assert_eq!(config.scrape_configs[1].scrape_interval.to_string(), "5s");
    let mut bomb = "x0: &x0 [a, a, a, a, a, a, a, a, a, a]\n".to_owned();
    for level in 1..10 {
        let items = vec![format!("*x{}", level - 1); 10].join(", ");
        bomb.push_str(&format!("x{level}: &x{level} [{items}]\n"));
    }
    let claims = "scrape_configs:\n- job_name: a\n  oauth2: {claims: {a: *x9}}\n";
    assert!(error(&format!("{bomb}{claims}")).contains("over 4000000 values"));
    let mut merges = "x0: &x0 {job_name: a}\n".to_owned();
    for level in 1..26 {
        let below = level - 1;
        merges.push_str(&format!("x{level}: &x{level} {{<<: [*x{below}, *x{below}]}}\n"));
    }
    let job = "scrape_configs:\n- {<<: *x25}\n";
    assert!(error(&format!("{merges}{job}")).contains("over 4000000 values"));
}

#[test]
fn external_labels_are_expanded() {
    let text = "global:\n  external_labels:\n    a: x${A}y$A-$$B\n    b: ${NONE}\n    \
                c: $ ${} ${ $é\n    d: $1\n";
    let env = |name: &str| (name == "A").then(|| "1".to_owned());
    let loaded = Config::parse(text, &env).unwrap();
    let labels: Vec<_> = loaded.config.global.external_labels.iter().collect();
    assert_eq!(labels, [("a", "x1y1-$B"), ("b", ""), ("c", "$   $é"), ("d", "")]);
    assert_eq!(loaded.unset_variables, ["NONE", "1"]);
}

#[test]
fn jobs_inherit() {
    let text = "global: {scrape_interval: 5s, sample_limit: 3, body_size_limit: 1KB, \
                scrape_failure_log_file: f, metric_name_validation_scheme: legacy, \
                metric_name_escaping_scheme: dots}\n\
                scrape_configs:\n\
                - job_name: a\n\
                - {job_name: b, sample_limit: 0, scrape_native_histograms: true, \
                metric_name_validation_scheme: utf8}\n\
                - {job_name: c, metric_name_validation_scheme: ''}\n";
    let config = parse(text).unwrap();
    let [a, b, c] = &config.scrape_configs[..] else { panic!("three jobs") };
    assert_eq!((a.scrape_interval.as_ms(), a.scrape_timeout.as_ms()), (5_000, 5_000));
    assert_eq!((a.sample_limit, b.sample_limit), (3, 3));
    assert_eq!(a.scrape_failure_log_file.as_str(), "f");
    assert_eq!(a.metric_name_escaping_scheme.get(), Escaping::Dots);
    assert_eq!(b.metric_name_escaping_scheme.get(), Escaping::AllowUtf8);
    assert_eq!(c.metric_name_validation_scheme, NameScheme::Legacy);
    assert_eq!(b.scrape_protocols, Some(ScrapeProtocol::default_with_histograms()));
}

/// As in Prometheus. Before, the file was refused.
#[test]
fn the_address_of_tokens_may_be_any_text() {
    let job = |url: &str| {
        let oauth2 = format!("{{client_id: a, client_secret: b, token_url: {url}}}");
        parse(&format!("scrape_configs: [{{job_name: j, oauth2: {oauth2}}}]"))
    };
    let config = job("'http://a/%z'").unwrap();
    let oauth2 = config.scrape_configs[0].http.oauth2.as_ref().unwrap();
    assert_eq!(oauth2.token_url.as_str(), "http://a/%z");
    assert!(config.to_yaml().contains("token_url: http://a/%z\n"), "{}", config.to_yaml());
    assert!(job("''").unwrap_err().to_string().contains("oauth2 token_url must be configured"));
}

#[test]
fn included_files_add_jobs() {
    let main = "global: {scrape_interval: 7s}\nscrape_configs: [{job_name: a}]\n\
                scrape_config_files: ['sub/*.yml', none.yml]\n";
    let included = "scrape_configs: [{job_name: b, bearer_token_file: t, \
                    file_sd_configs: [{files: [d.json]}]}]\n";
    let jobs = load(&[("/c/p.yml", main), ("/c/sub/x.yml", included)]).unwrap();
    assert_eq!(jobs[1].scrape_interval.to_string(), "7s");
    let token = &jobs[1].http.authorization.as_ref().unwrap().credentials_file;
    assert_eq!(token.as_str(), "/c/sub/t");
    assert_eq!(jobs[1].discoveries.file[0].files[0].as_str(), "/c/sub/d.json");
    for (text, want) in [
        ("scrape_configs: [{job_name: a}]", "name \"a\", first found in main config file"),
        (
            "global: {}",
            "\"/c/sub/x.yml\": yaml: unmarshal errors:\n  line 1: field global not found",
        ),
        ("scrape_configs: [~]", "\"/c/sub/x.yml\": empty or null scrape config section"),
        ("scrape_configs: [{job_name: b}, {job_name: b}]", "first found in \"/c/sub/x.yml\""),
    ] {
        let error = load(&[("/c/p.yml", main), ("/c/sub/x.yml", text)]).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
    let error = load(&[]).unwrap_err().to_string();
    assert_eq!(error, "open /c/p.yml: no such file or directory");
}

#[test]
fn secrets_are_never_shown() {
    let text = "remote_write:\n\
                - url: http://u:hunter2@h/\n  \
                basic_auth: {username: u, password: hunter2}\n  \
                proxy_url: http://u:hunter2@p/\n  \
                proxy_connect_header: {a: [hunter2]}\n  \
                tls_config: {cert: c, key: hunter2}\n  \
                http_headers: {x: {secrets: [hunter2]}}\n\
                - url: http://h/\n  \
                bearer_token: hunter2\n\
                - url: http://h/\n  \
                oauth2: {client_id: a, client_secret: hunter2, token_url: t}\n\
                - url: http://h/\n  \
                sigv4: {access_key: a, secret_key: hunter2}\n  \
                headers: {X-Token: hunter2}\n\
                - url: http://h/\n  \
                oauth2: {client_id: a, client_secret: b, token_url: 'http://u:hunter2@h/', \
                endpoint_params: {password: hunter2}}\n\
                remote_read: [{url: 'http://h/', headers: {x: hunter2, y: ''}}]\n\
                tracing: {endpoint: e, headers: {x: hunter2}}\n\
                scrape_configs:\n\
                - job_name: a\n  \
                consul_sd_configs: [{token: hunter2, password: hunter2}]\n  \
                ec2_sd_configs: [{secret_key: hunter2}]\n  \
                http_sd_configs: [{url: 'http://u:hunter2@h/'}]\n";
    let config = parse(text).unwrap();
    let (printed, debug) = (config.to_yaml(), format!("{config:?}"));
    assert!(!printed.contains("hunter2"), "{printed}");
    assert!(!debug.contains("hunter2"), "{debug}");
    assert!(printed.contains("password: <secret>"), "{printed}");
    assert!(printed.contains("url: http://u:xxxxx@h/"), "{printed}");
    assert!(printed.contains("X-Token: <secret>"), "{printed}");
    assert!(printed.contains("x: <secret>\n    \"y\": \"\""), "{printed}");
    // A shown section is a right one, as in Prometheus.
    let config = parse("remote_write: [{url: 'http://h/', headers: {x: a, y: ''}}]").unwrap();
    let printed = config.to_yaml();
    assert_eq!(parse(&printed).unwrap().to_yaml(), printed);
}

// Prometheus accepts such targets, and relabelling turns them into parameters.
#[test]
fn passwords_of_addresses_are_printed_nowhere() {
    let text = "scrape_configs:\n\
                - job_name: a\n  \
                params: {target: ['http://u:hunter2@h/']}\n  \
                static_configs: [{targets: ['u:hunter2@h:1', 'http://u:hunter2@h/'], \
                labels: {a: 'http://u:hunter2@h/'}}]\n  \
                relabel_configs: [{target_label: a, replacement: 'u:hunter2@$1'}]\n\
                alerting: {alertmanagers: [{relabel_configs: [{target_label: a}], \
                static_configs: [{targets: ['u:hunter2@h:1']}]}]}\n";
    let printed = parse(text).unwrap().to_yaml();
    assert!(!printed.contains("hunter2"), "{printed}");
    assert_eq!(printed.matches("xxxxx@h").count(), 5, "{printed}");
}

#[test]
fn a_printed_configuration_is_read_back() {
    let text = "global: {scrape_interval: 15s, external_labels: {a: 'yes', b: '1'}}\n\
                scrape_configs:\n\
                - job_name: a\n  params: {x: ['1', b]}\n  \
                static_configs: [{targets: ['h:1'], labels: {c: d}}]\n  \
                kubernetes_sd_configs: [{role: pod}]\n  \
                relabel_configs: [{source_labels: [a], regex: '(.+): (\\d)', target_label: x}]\n\
                remote_write: [{url: 'http://h/x', queue_config: {capacity: 5}}]\n\
                tracing: {endpoint: e}\n\
                otlp: {promote_resource_attributes: [' a ']}\n";
    let config = parse(text).unwrap();
    let printed = config.to_yaml();
    assert_eq!(parse(&printed).unwrap(), config, "{printed}");
    assert!(printed.contains("scrape_interval: 15s"), "{printed}");
}

/// A document with `value` at `path`.
fn document_of(path: &[&str], value: &str) -> String {
    match path {
        [] => value.to_owned(),
        ["[]", rest @ ..] => format!("[{}]", document_of(rest, value)),
        ["{}", rest @ ..] => format!("{{x: {}}}", document_of(rest, value)),
        [key, rest @ ..] => format!("{{{key}: {}}}", document_of(rest, value)),
    }
}

// Each secret, and each list and section around it, in place of which an operator may write it.
#[test]
fn no_error_shows_a_secret() {
    let paths = Config::secret_paths();
    for known in [
        "/scrape_configs/[]/basic_auth/password",
        "/scrape_configs/[]/http_headers/{}/secrets/[]",
        "/scrape_configs/[]/consul_sd_configs/[]/token",
        "/alerting/alertmanagers/[]/proxy_connect_header/{}/[]",
        "/remote_write/[]/sigv4/secret_key",
        "/remote_read/[]/oauth2/client_secret",
    ] {
        assert!(paths.iter().any(|path| path == known), "{known}");
    }
    let mut error_count = 0;
    for path in &paths {
        let path: Vec<&str> = path.split('/').skip(1).collect();
        for len in 0..=path.len() {
            for value in [
                "hunter2",
                "!!int hunter2",
                "!!float hunter2",
                "!!bool hunter2",
                "!!null hunter2",
                "!!timestamp hunter2",
                "!!binary hunter2",
                "!!binary aHVudGVyMv8=",
                "[hunter2]",
                "[[hunter2]]",
                "{a: hunter2}",
                "{a: {b: hunter2}}",
                "*hunter2",
                "hunter2: {",
                "\"hunter2",
            ] {
                let text = document_of(&path[..len], value);
                let Err(error) = parse(&text) else { continue };
                error_count += 1;
                let error = error.to_string();
                assert!(!error.contains("hunter"), "{text}: {error}");
            }
        }
    }
    assert!(error_count > 10 * paths.len(), "{error_count}");
}

/// Before, 10 MB of such a file took more than 1 GiB.
#[test]
fn a_client_file_is_read_within_memory() {
    let budget = Budget::unlimited().part(8 << 20);
    let path = Path::new("/c/client.yml");
    let text = format!("{{{}}}", "a,".repeat(100_000));
    let error = HttpClient::parse_file(&text, path, &budget).unwrap_err().to_string();
    assert!(error.contains("takes more than 8388608 bytes of memory"), "{error}");
    assert!(HttpClient::parse_file("basic_auth: {username: u}", path, &budget).is_ok());
}
