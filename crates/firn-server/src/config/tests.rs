use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::{Args as _, Command, FromArgMatches};
use firndb::GroupBy;

use super::file::ConfigFile;
use super::load::load;
use super::reader::Sources;
use super::*;
use crate::database;

/// Settings from flags as they are typed, variables and the text of a file.
fn loaded<C: Settings>(
    flags: &[&str],
    variables: &[(&str, &str)],
    file: Option<&str>,
) -> firn_model::Result<LoadedConfig<C>> {
    let command = Flags::<C>::augment_args(Command::new("firn"));
    let matches = command.try_get_matches_from(["firn"].iter().chain(flags)).unwrap();
    let flags = Flags::<C>::from_arg_matches(&matches).unwrap();
    let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
    let file = file.map(|text| ConfigFile::parse("firn.yaml", text)).transpose()?;
    load(&Sources {
        flags: flags.texts(),
        environment: &|name| variables.get(name).map(OsString::from),
        variables: variables.keys().map(|name| (*name).to_owned()).collect(),
        file: file.as_ref(),
    })
}

fn serve(flags: &[&str]) -> ServeConfig {
    loaded(flags, &[], None).unwrap().config
}

fn refused<C: Settings>(flags: &[&str], expected: &str) {
    let error = loaded::<C>(flags, &[], None).unwrap_err();
    assert!(error.to_string().contains(expected), "{flags:?}: {error}");
}

fn check_table<C: Settings>() {
    let command = Flags::<C>::augment_args(Command::new("firn"));
    let flags: Vec<&str> = command.get_arguments().filter_map(|arg| arg.get_long()).collect();
    let names: Vec<&str> = C::TABLE.iter().map(|setting| setting.name).collect();
    assert_eq!(flags, [&["config"], &names[..]].concat(), "flags are the rows of the table");
    for setting in C::TABLE {
        let Setting { name, default, .. } = *setting;
        assert!(!name.contains('_') && setting.help.trim_end().ends_with('.'), "{name}");
        assert!(!setting.help.trim_start().contains("  "), "{name}: {:?}", setting.help);
        if !setting.has_auto {
            let text = (setting.canonical)(setting, default).unwrap();
            assert_eq!(text, default, "{name}: the default reads back");
        }
        for other in setting.only_with.iter().map(|c| c.name).chain(setting.not_with.to_vec()) {
            assert!(names.contains(&other), "{name} depends on --{other}");
        }
        // The default again, by each of the ways.
        let variable = setting.variable(C::PREFIX);
        assert_eq!(variable, format!("{}{}", C::PREFIX, name.replace('-', "_").to_uppercase()));
        let file = format!("# a comment\n{name}: {default:?}\n");
        let by_flag = loaded::<C>(&[&format!("--{name}={default}")], &[], None);
        let by_variable = loaded::<C>(&[], &[(&variable, default)], None);
        let by_file = loaded::<C>(&[], &[], Some(&file));
        let file_source = Source::File { path: "firn.yaml".into(), line: 2 };
        for (loaded, source) in [
            (by_flag, Source::Flag),
            (by_variable, Source::Variable(variable)),
            (by_file, file_source),
        ] {
            match loaded {
                Ok(loaded) => {
                    let entry = loaded.effective.iter().find(|e| e.setting.name == name).unwrap();
                    assert_eq!(entry.source, source, "{name}");
                }
                // Some have no effect with the defaults of the others.
                Err(error) => assert!(error.what().contains("has no effect without"), "{error}"),
            }
        }
    }
}

#[test]
fn every_setting_has_a_flag_a_variable_and_a_key_of_one_name() {
    check_table::<ServeConfig>();
    check_table::<CacheConfig>();
}

/// The output of `firn config print` is a file that leads to the same settings.
fn check_print<C: Settings>(flags: &[&str]) {
    let first = loaded::<C>(flags, &[], None).unwrap();
    let printed = first.print();
    let second = loaded::<C>(&[], &[], Some(&printed)).unwrap_or_else(|e| panic!("{e}\n{printed}"));
    let effective = |loaded: &LoadedConfig<C>| -> Vec<(String, String)> {
        let entries = loaded.effective.iter().filter(|entry| entry.without_effect.is_none());
        entries.map(|entry| (entry.setting.name.to_owned(), entry.value.clone())).collect()
    };
    assert_eq!(effective(&first), effective(&second), "{printed}");
    for setting in C::TABLE {
        assert!(printed.contains(&format!("{}: ", setting.name)), "{} in {printed}", setting.name);
    }
}

const ODD_VALUES: [&str; 18] = [
    "--memory=1000000000",
    "--retention=400d",
    "--fast-bytes-max=100000000",
    "--slow-bytes-max=1GiB",
    "--log-sync=1500ms",
    "--log-device=memory:/mnt/memory",
    "--log-streams=3",
    "--patches-max=1",
    "--write-lenient",
    "--external-labels=region=eu,zone=\"b\" # c",
    "--cors-origin=https?://[^,]*",
    "--allowed-hosts=db.example,10.0.0.1,::1",
    "--result-cache=0",
    "--enable-admin-api",
    "--enable-lifecycle=true",
    "--self-scrape=never",
    "--slow-tier=gs://bucket",
    "--slow-cache-bytes-max=2GiB",
];

#[test]
fn printed_settings_are_a_configuration_file() {
    check_print::<ServeConfig>(&[]);
    check_print::<ServeConfig>(&ODD_VALUES);
    check_print::<ServeConfig>(&["--read-only", "--slow-tier=s3://bucket", "--memory=1GiB"]);
    check_print::<CacheConfig>(&[]);
    check_print::<CacheConfig>(&["--proxy=http://localhost:9090/p", "--settle=1m"]);
    let paths = "--proxy-paths=/api/v1/admin/*,/b";
    check_print::<CacheConfig>(&["--proxy=http://localhost:9090/p", paths, "--cors-origin=.*"]);
    check_print::<CacheConfig>(&["--token-file=/a b", "--partial-bytes-min=0"]);
}

#[test]
fn printed_settings_name_sources_and_hide_passwords() {
    let first = loaded::<CacheConfig>(
        &["--proxy=http://user:hunter2@origin:9090"],
        &[("FIRN_CACHE_SIZE", "2GiB")],
        Some("memory: 64MiB\n\nsettle: 1m\n"),
    )
    .unwrap();
    let printed = first.print();
    assert!(!printed.contains("hunter2"), "{printed}");
    assert!(!format!("{first:?}").contains("hunter2"));
    for (line, source) in [
        ("proxy: \"http://user:xxxxx@origin:9090/\"", "# flag"),
        ("size: 2GiB", "# FIRN_CACHE_SIZE"),
        ("memory: 64MiB", "# firn.yaml:1"),
        ("settle: 1m", "# firn.yaml:3"),
        ("listen: 127.0.0.1:9421", "# default"),
        ("# idle: 10m", "# default; no effect with --proxy"),
    ] {
        let found = printed.lines().find(|printed| printed.starts_with(line)).unwrap();
        assert!(found.ends_with(source), "{found}");
    }
    refused::<CacheConfig>(&["--proxy=ftp://user:hunter2@origin"], "--proxy: expected http://");
    for arg in [
        "--proxy=ftp://user:hunter2@origin",
        "--proxy=user:hunter2@origin",
        "--proxy=hunter2@origin",
        "--listen=http://user:hunter2@origin",
        "--data=s3://user:hunter2@origin",
        "--size=http://origin?password=hunter2",
        "--allowed-hosts=user:hunter2@origin",
    ] {
        let error = loaded_error(&[arg]);
        assert!(!error.contains("hunter2"), "{error}");
    }
    for proxy in ["http://hunter2@origin", "http://:hunter2@origin", "http:user:hunter2@origin"] {
        let proxy = format!("--proxy={proxy}");
        let token = loaded::<CacheConfig>(&[&proxy], &[], None).unwrap();
        assert!(!format!("{token:?} {}", token.print()).contains("hunter2"), "{token:?}");
        assert!(!format!("{:?}", token.config.values()).contains("hunter2"));
    }
    for tier in ["s3://key:hunter2@bucket", "s3://key:hunter2/bucket", "s3://b?key=hunter2"] {
        let arg = format!("--slow-tier={tier}");
        let error = loaded::<ServeConfig>(&[&arg], &[], None).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("AWS_SECRET_ACCESS_KEY") && !error.contains("hunter2"), "{error}");
    }
    let command = Flags::<CacheConfig>::augment_args(Command::new("firn"));
    let matches = command.try_get_matches_from(["firn", "--proxy=http://u:hunter2@o"]).unwrap();
    let flags = Flags::<CacheConfig>::from_arg_matches(&matches).unwrap();
    assert!(!format!("{flags:?}").contains("hunter2"), "{flags:?}");
    let file = ConfigFile::parse("f", "proxy: http://u:hunter2@o").unwrap();
    assert!(!format!("{file:?}").contains("hunter2"), "{file:?}");
}

fn loaded_error(flags: &[&str]) -> String {
    loaded::<CacheConfig>(flags, &[], None).unwrap_err().to_string()
}

#[test]
fn a_flag_precedes_a_variable_which_precedes_the_file() {
    let variables = [("FIRN_RETENTION", "2d"), ("FIRN_LOOKBACK", "2m")];
    let file = "retention: 3d\nlookback: 3m\nflush-age-max: 3m\n";
    let config = loaded::<ServeConfig>(&["--retention=1d"], &variables, Some(file)).unwrap().config;
    let spans = [config.retention.get().unwrap(), config.lookback, config.flush_age_max];
    assert_eq!(spans.map(|span| span.to_string()), ["1d", "2m", "3m"]);
    assert_eq!(config.upload_age_max.to_string(), "4h");
    let switches = "write-lenient: true\nenable-lifecycle: true\n";
    let config = loaded::<ServeConfig>(&["--write-lenient=false"], &[], Some(switches)).unwrap();
    assert!(!config.config.write_lenient.is_on() && config.config.enable_lifecycle.is_on());
}

#[test]
fn a_flag_is_never_the_value_of_another_one() {
    let parse = |args: &[&str]| {
        let command = Flags::<ServeConfig>::augment_args(Command::new("firn"));
        command.try_get_matches_from(["firn"].iter().chain(args)).is_ok()
    };
    assert!(!parse(&["--data", "--read-only"]) && !parse(&["--data", "--listen", "[::]:1"]));
    assert!(!parse(&["--data", "-h"]) && !parse(&["--data", "-V", "--read-only"]));
    assert!(parse(&["--data", "folder", "--read-only"]) && parse(&["--shards", "-1"]));
    assert!(parse(&["--retention", "-1d"]) && parse(&["--external-labels", "-"]));
}

#[test]
fn lists_and_pairs_may_be_written_as_yaml() {
    let file = "group-by: [job, zone]\nexternal-labels:\n  region: eu\n  replica: a=b\n";
    let config = loaded::<ServeConfig>(&[], &[], Some(file)).unwrap().config;
    assert_eq!(config.group_by.0, GroupBy::labels(["job", "zone"]));
    let labels: Vec<_> = config.external_labels.0.iter().collect();
    assert_eq!(labels, [("region", "eu"), ("replica", "a=b")]);
}

#[test]
fn refusals_name_the_source_the_setting_and_the_expected_form() {
    let by_file = |text: &str| loaded::<ServeConfig>(&[], &[], Some(text)).unwrap_err();
    let by_variable = loaded::<ServeConfig>(&[], &[("FIRN_RETENTION", "15")], None).unwrap_err();
    let wanted = "expected a duration such as 15s, 1h30m or 15d or \"forever\", got \"15\"";
    assert_eq!(by_variable.what(), format!("FIRN_RETENTION: {wanted}"));
    assert_eq!(by_file("\nretention: 15\n").what(), format!("firn.yaml:2: retention: {wanted}"));
    refused::<ServeConfig>(&["--retention=15"], &format!("--retention: {wanted}"));
    assert_eq!(
        by_file("data: x\nretentoin: 15d\n").what(),
        "firn.yaml:2: retentoin: no setting of firn serve; the nearest is retention"
    );
    assert_eq!(
        by_file("log_sync: never\n").what(),
        "firn.yaml:1: log_sync: no setting of firn serve; the nearest is log-sync"
    );
    let error = by_file("# mine\nscrape_configs:\n- job_name: a\n");
    let want = "firn.yaml:2: scrape_configs: a section of Prometheus' configuration; its file is \
                the value of --prometheus-config";
    assert_eq!(error.what(), want);
    for (arg, expected) in [
        (
            "--memory=lots",
            "--memory: expected a size such as 64KiB or 4GiB or \"auto\", got \"lots\"",
        ),
        ("--memory=1MiB", "--memory: expected at least 64MiB or \"auto\", got \"1MiB\""),
        (
            "--memory=18446744073709551615",
            "--memory: expected 64MiB to 4294967296GiB or \"auto\", got \"18446744073709551615\"",
        ),
        ("--memory=99999999999999TiB", "--memory: expected 64MiB to 4294967296GiB or \"auto\""),
        ("--memory=5000000.5TiB", "--memory: expected 64MiB to 4294967296GiB or \"auto\""),
        ("--remote-write-log-max=9000000TiB", "expected at most 4294967296GiB, got"),
        ("--label-count-max=99999999999999999999", "expected 8 to 4611686018427387904, got"),
        ("--series-max=5000000000000000000", "expected at most 4611686018427387904 or \"0\", got"),
        // Before, the cache was off.
        (
            "--result-cache=0.5",
            "expected a whole number of bytes, or a size such as 1.5GiB or \"0\", got \"0.5\"",
        ),
        ("--result-cache=0.0001KiB", "expected a whole number of bytes"),
        ("--head-flush-bytes=1.5", "expected a whole number of bytes"),
        ("--head-flush-bytes=1.0b", "expected a whole number of bytes"),
        ("--memory=.", "--memory: expected a size such as"),
        ("--memory=1.2.3GiB", "--memory: expected a size such as"),
        (
            "--memory=512m",
            "--memory: expected 512MiB or 512M (m is minutes) or \"auto\", got \"512m\"",
        ),
        ("--memory=1.5 m", "--memory: expected 1.5MiB or 1.5M"),
        ("--memory=m", "--memory: expected a size such as"),
        ("--memory=+64MiB", "--memory: expected a size such as"),
        ("--connections-max=+5", "--connections-max: expected a whole number, got \"+5\""),
        ("--shards=+64", "--shards: expected a power of two"),
        ("--log-sync=interval:+5", "--log-sync: expected interval:MILLISECONDS"),
        ("--fast-bytes-max=much", "--fast-bytes-max: expected a size"),
        ("--slow-bytes-max=1KiB", "expected at least 64MiB or \"unlimited\", got \"1KiB\""),
        ("--request-bytes-max=4GiB", "expected 64KiB to 2GiB, got \"4GiB\""),
        ("--request-bytes-max=1KiB", "expected 64KiB to 2GiB, got \"1KiB\""),
        ("--body-bytes-max=65535", "--body-bytes-max: expected 64KiB to 2GiB, got \"65535\""),
        ("--label-name-bytes-max=7", "--label-name-bytes-max: expected 64 to 2GiB, got \"7\""),
        ("--label-value-bytes-max=63", "--label-value-bytes-max: expected 64 to 2GiB"),
        ("--label-count-max=7", "--label-count-max: expected at least 8, got \"7\""),
        ("--retention=59s", "--retention: expected at least 1m or \"forever\", got \"59s\""),
        ("--connections-max=0", "--connections-max: expected 1 to 1048576, got \"0\""),
        (
            "--connections-max=9223372036854775807",
            "expected 1 to 1048576, got \"9223372036854775807\"",
        ),
        ("--query-concurrency-max=1025", "--query-concurrency-max: expected 1 to 1024, got"),
        ("--connections-max=many", "--connections-max: expected a whole number, got \"many\""),
        ("--remote-read-concurrency-max=0", "--remote-read-concurrency-max: expected 1 to 1024"),
        ("--remote-read-frame-bytes=1", "expected 1KiB to 32MiB"),
        (
            "--group-by=a,,b",
            "--group-by: expected label names between commas, without brackets and quotes, or \"auto\" or \"none\", got",
        ),
        ("--query-timeout=0s", "--query-timeout: expected a duration"),
        ("--shards=12", "--shards: expected a power of two up to 32768, got \"12\""),
        ("--log-streams=17", "--log-streams: expected 1 to 16 or \"auto\", got \"17\""),
        ("--query-memory=1KiB", "--query-memory: expected at least 1MiB or \"auto\""),
        ("--patches-max=0", "--patches-max: expected 1 to 32, got \"0\""),
        ("--slow-cache-bytes-max=1KiB", "expected at least 8MiB or \"0\""),
        ("--result-cache=1MiB", "--result-cache: expected at least 8MiB or \"0\", got \"1MiB\""),
        ("--cors-origin=(", "--cors-origin: expected a regular expression"),
        ("--allowed-hosts=a,,b", "--allowed-hosts: expected host names"),
        ("--allowed-hosts=a:80", "--allowed-hosts: expected host names or addresses without ports"),
        ("--allowed-hosts=http://a", "--allowed-hosts: expected host names"),
        ("--external-labels=a=1,b", "--external-labels: expected name=value pairs"),
        ("--external-labels=a=1,a=2", "--external-labels: expected name=value pairs"),
        ("--external-labels=a=", "--external-labels: expected name=value pairs"),
        ("--external-labels={a=\"b\"}", "without braces and quotes, got \"{a="),
        ("--external-labels=a=\"b\"", "without braces and quotes, got"),
        ("--external-labels={a=b}", "without braces and quotes, got \"{a=b}\""),
        ("--external-labels= a=b", "without braces and quotes, got"),
        ("--group-by={job}", "or \"none\", got \"{job}\""),
        ("--group-by=[job,instance]", "without brackets and quotes"),
        ("--group-by=\"job\"", "without brackets and quotes"),
        ("--self-scrape=99ms", "expected at least 100ms or \"never\", got \"99ms\""),
        ("--self-scrape-job=", "--self-scrape-job: expected the value of a label"),
        ("--data=s3://bucket/x", "--data: expected a folder of this machine, not a URL"),
        ("--data=s3:/bucket/x", "--data: expected a folder of this machine, not a URL"),
        ("--data=://bucket/x", "--data: expected a folder of this machine, not a URL"),
        ("--data=a b:/c@d", "--data: expected a folder of this machine, not a URL"),
        (
            "--slow-tier=s3:/bucket",
            "s3://, gs:// or az:// with bucket and prefix or \"auto\", got \"s3:/bucket\"",
        ),
        ("--slow-tier=s3:bucket", "./NAME for a name with a colon"),
        ("--slow-tier=foo:bar", "./NAME for a name with a colon"),
        ("--slow-tier=ftp://a/b", "or s3://, gs:// or az:// with bucket"),
        ("--log-sync=interval:0", "--log-sync: expected interval:MILLISECONDS"),
        ("--log-bytes-max=1MiB", "--log-bytes-max: expected at least 16MiB"),
        ("--log-sync=sometimes", "--log-sync: expected always, never or a duration such as 100ms"),
        ("--log-device=disk", "--log-device: expected file, or memory:"),
        ("--write-lenient=yes", "--write-lenient: expected true or false, got \"yes\""),
        ("--listen=nowhere", "--listen: expected an IP address and a port such as 127.0.0.1:9420"),
        ("--listen=localhost:+1", "--listen: expected an IP address and a port"),
        ("--listen=:65536", "--listen: expected an IP address and a port"),
        ("--listen=example.org:80", "--listen: expected an IP address and a port"),
        (
            "--slow-tier=",
            "--slow-tier: expected a folder (./NAME for a name with a colon), or s3://",
        ),
    ] {
        refused::<ServeConfig>(&[arg], expected);
    }
    refused::<ServeConfig>(
        &["--memory=1GiB", "--query-memory=2GiB"],
        "expected at most --memory, 1GiB",
    );
    refused::<ServeConfig>(
        &["--log-streams=16", "--shards=8"],
        "--log-streams: expected 1 to the number of --shards, 8, got \"16\"",
    );
    refused::<ServeConfig>(
        &["--memory=64MiB", "--shards=4096"],
        "--shards: expected at most 2048 with --memory 64MiB; this number needs 96MiB",
    );
    refused::<CacheConfig>(
        &["--proxy=nowhere"],
        "--proxy: expected http:// or https:// with a host",
    );
    for paths in ["a", "/a,", "/a*/b", "/a?b", "*", "/%2e"] {
        let arg = format!("--proxy-paths={paths}");
        refused::<CacheConfig>(&["--proxy=http://x", &arg], "--proxy-paths: expected paths");
    }
    refused::<CacheConfig>(&["--connections-max=1048577"], "--connections-max: expected 1 to");
    refused::<CacheConfig>(&["--token-file=s3://b/t"], "a file of this machine, not a URL");
    assert_eq!(serve(&["--slow-tier=./foo:bar"]).slow_tier.location(), "./foo:bar");
    refused::<CacheConfig>(
        &["--value-bytes-max=1023"],
        "--value-bytes-max: expected 1KiB to 256MiB or \"auto\", got \"1023\"",
    );
    refused::<CacheConfig>(&["--size=1KiB"], "--size: expected at least 8MiB, got \"1KiB\"");
}

/// Before, 10,000 idle threads took four times the memory of the database, which refused every
/// write.
#[test]
fn threads_take_a_part_of_the_memory() {
    let f = |flags: &[&str], expected: &str| {
        refused::<ServeConfig>(&[&["--memory=64MiB"], flags].concat(), expected);
    };
    f(
        &["--query-concurrency-max=115"],
        "--query-concurrency-max: expected at most 114 with --memory 64MiB: threads of queries, \
         remote reads and rules, 129 together, take up to 64KiB each and an eighth of the memory \
         in all, got \"115\"",
    );
    f(
        &["--remote-read-concurrency-max=200"],
        "--remote-read-concurrency-max: expected at most 104 with --memory 64MiB",
    );
    f(&["--rule-concurrency-max=256"], "--rule-concurrency-max: expected at most 98 with");
    let counts = ["--query-concurrency-max=100", "--remote-read-concurrency-max=100"];
    f(&counts, "-concurrency-max: expected at most 24 with");
    assert_eq!(serve(&["--memory=64MiB"]).query_concurrency_max, Count(20));
    assert_eq!(serve(&["--memory=64MiB", counts[0]]).query_concurrency_max, Count(100));
    let most = ["--query-concurrency-max=1024", "--remote-read-concurrency-max=1024"];
    serve(&[&["--memory=1152MiB", "--rule-concurrency-max=256"], &most[..]].concat());
}

/// Before, lines were appended to the configuration, and the next start failed.
#[test]
fn a_log_is_not_the_file_of_another_setting() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(at("file"), "").unwrap();
    std::fs::hard_link(at("file"), at("log")).unwrap();
    fn f<C: Settings>(log: &str, names: [&str; 2], other: &str) {
        let [log_name, other_name] = names;
        let flags = [format!("--{log_name}={log}"), format!("--{other_name}={other}")];
        let wanted =
            format!("--{log_name}: expected a file of its own, not that of --{other_name}");
        refused::<C>(&flags.each_ref().map(String::as_str), &wanted);
    }
    // Of one file, and of one that does not exist yet.
    for (log, other) in [("log", "file"), ("new", "x/../new")] {
        let (log, other) = (at(log), at(other));
        for log_name in ["audit-log", "query-log"] {
            f::<ServeConfig>(&log, [log_name, "web-config"], &other);
            f::<ServeConfig>(&log, [log_name, "prometheus-config"], &other);
        }
        f::<CacheConfig>(&log, ["audit-log", "web-config"], &other);
        f::<CacheConfig>(&log, ["audit-log", "token-file"], &other);
    }
    let error = loaded::<CacheConfig>(&["--audit-log=./firn.yaml"], &[], Some("size: 1GiB\n"));
    assert!(error.unwrap_err().to_string().contains("not that of --config"));
    let logs = ["--audit-log=stderr", "--query-log=stderr", "--web-config=web.yml"];
    serve(&logs);
    serve(&["--audit-log=log", "--query-log=log", "--web-config=web.yml"]);
}

/// Before, lines were appended to the slabs of the cache.
#[test]
fn a_log_is_not_among_the_files_of_a_cache() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let flags = |log: &str| [format!("--data={}", at("data")), format!("--audit-log={}", at(log))];
    for log in ["data/keys/slabs", "data/x", "x/../data/log", "data"] {
        let flags = flags(log);
        let wanted = format!("expected a file of its own, not one in --data, {}", at("data"));
        refused::<CacheConfig>(&flags.each_ref().map(String::as_str), &wanted);
    }
    for log in ["log", "data.log"] {
        loaded::<CacheConfig>(&flags(log).each_ref().map(String::as_str), &[], None).unwrap();
    }
}

/// Before, lines were appended to files of the database.
#[test]
fn a_log_is_not_among_the_files_of_a_database() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let f = |log: &str, is_right: bool| {
        for name in ["audit-log", "query-log"] {
            let flags = [
                format!("--data={}", at("data")),
                format!("--slow-tier={}", at("tier")),
                format!("--{name}={}", at(log)),
            ];
            let flags = flags.each_ref().map(String::as_str);
            match is_right {
                true => drop(serve(&flags)),
                false => refused::<ServeConfig>(&flags, "expected a file of its own, not one in"),
            }
        }
    };
    for log in
        ["data/fast/LOCK", "data/slow/log", "data/snapshots/log", "data/log-device", "tier/x"]
    {
        f(log, false);
    }
    for log in ["data/log", "data/fast.log", "log", "other/fast/log"] {
        f(log, true);
    }
    std::fs::create_dir_all(at("other/fast/manifest")).unwrap();
    f("other/fast/log", false);
    refused::<CacheConfig>(&[&format!("--audit-log={}", at("other/fast/log"))], "not one in");
}

#[test]
fn the_folder_of_a_cache_is_not_among_the_files_of_a_database() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir_all(data.join("fast/manifest")).unwrap();
    let f = |name: &str| {
        let flag = format!("--data={}", data.join(name).display());
        loaded::<CacheConfig>(&[&flag], &[], None).unwrap().config.check_folder()
    };
    for name in ["fast", "fast/cache", "slow/x", "snapshots"] {
        let error = f(name).unwrap_err().to_string();
        let database = format!("of the database in {};", data.display());
        assert!(error.starts_with("--data: ") && error.contains(&database), "{error}");
    }
    f("cache").unwrap();
}

/// Before, one query through such a proxy became hundreds in a second.
#[test]
fn a_proxy_is_not_in_front_of_itself() {
    let f = |listen: &str, proxy: &str, is_right: bool| {
        for flag in ["listen", "admin-listen"] {
            let flags = [format!("--{flag}={listen}"), format!("--proxy={proxy}")];
            let flags = flags.each_ref().map(String::as_str);
            match is_right {
                true => drop(loaded::<CacheConfig>(&flags, &[], None).unwrap()),
                false => refused::<CacheConfig>(&flags, "--proxy: expected the address of the"),
            }
        }
    };
    f("127.0.0.1:9000", "http://127.0.0.1:9000", false);
    f("127.0.0.1:9000", "https://user:secret@localhost:9000/path", false);
    f("127.0.0.1:9001,[::1]:9000", "http://localhost:9000", false);
    f("10.0.0.1:80", "http://10.0.0.1", false);
    f("0.0.0.0:9000", "http://127.0.0.1:9000", false);
    f("[::]:9000", "http://127.0.0.1:9000", false);
    f("[::]:9000", "http://LocalHost:9000", false);
    f("127.0.0.1:9000", "http://0.0.0.0:9000", false);
    f("127.0.0.1:9000", "http://[::ffff:127.0.0.1]:9000", false);
    f("127.0.0.1:9000", "http://127.0.0.1:9001", true);
    f("127.0.0.1:9000", "http://127.0.0.2:9000", true);
    f("10.0.0.1:9000", "http://localhost:9000", true);
    f("127.0.0.1:9000", "http://database:9000", true);
    f("127.0.0.1:0", "http://127.0.0.1:9000", true);
}

#[test]
fn a_setting_without_effect_is_refused_with_the_other_one() {
    let with_proxy =
        ["--settle=1m", "--answer-bytes-max=1MiB", "--cors-origin=a", "--proxy-paths=/a"];
    for arg in with_proxy {
        refused::<CacheConfig>(&[arg], "has no effect without --proxy");
    }
    for arg in ["--idle=1m", "--value-bytes-max=1MiB", "--token-file=t"] {
        refused::<CacheConfig>(&[arg, "--proxy=http://x"], "has no effect with --proxy");
    }
    let follows = |arg: &str| refused::<ServeConfig>(&["--read-only", arg], "with --read-only");
    for arg in ["--restore", "--flush-age-max=1s", "--upload-age-max=1s", "--result-cache=1GiB"] {
        follows(arg);
    }
    refused::<ServeConfig>(
        &["--slow-bytes-max=1GiB", "--result-cache=1GiB"],
        "--result-cache: has no effect with --slow-bytes-max",
    );
    refused::<ServeConfig>(
        &["--slow-tier=/a/folder", "--slow-cache-bytes-max=1GiB"],
        "--slow-cache-bytes-max: has no effect without a remote --slow-tier",
    );
    let file = "read-only: true\n\nfuture-max: 1h\n";
    let error = loaded::<ServeConfig>(&[], &[], Some(file)).unwrap_err();
    let label = "firn.yaml:3: future-max: has no effect with --read-only; ";
    assert!(error.what().starts_with(label), "{error}");
    // Switching off a thing that is off contradicts nothing.
    let config = serve(&["--read-only", "--self-scrape=never", "--result-cache=0"]);
    assert!(config.self_scrape_interval().is_none() && config.result_cache_bytes().is_none());
    assert!(serve(&["--read-only"]).self_scrape_interval().is_none());
    let limited = serve(&["--slow-bytes-max=1GiB"]);
    assert!(limited.result_cache_bytes().is_none() && limited.drops_result_cache());
    for args in [&["--slow-bytes-max=1GiB", "--result-cache=0"][..], &["--read-only"], &[]] {
        assert!(!serve(args).drops_result_cache(), "{args:?}");
    }
}

#[test]
fn the_defaults_are_those_of_the_library() {
    let config = serve(&[]);
    assert_eq!(config.listen.to_string(), "127.0.0.1:9420");
    assert_eq!(config.slow_tier.location(), "./firn-data/slow");
    assert_eq!(config.group_by.0, GroupBy::Auto);
    assert_eq!((config.log_sync, config.log_streams), (LogSync::Always, Count(1)));
    assert_eq!(config.query_memory.0, config.memory.0 / 4);
    assert!(config.cors_origin.get().is_none() && config.allowed_hosts.is_empty());
    assert_eq!(config.self_scrape_job.0, "firndb-self");
    assert!(!config.enable_admin_api.is_on() && !config.enable_lifecycle.is_on());
    let (options, library) = (database::options(&config, || ()), firndb::Options::default());
    assert_eq!(config.patches_max.to_usize(), library.tree.patches_max);
    assert_eq!(options.flush_age_ms_max, library.flush_age_ms_max);
    assert_eq!(options.restart_ms_max, library.restart_ms_max);
    assert_eq!(options.future_ms_max, library.future_ms_max);
    assert_eq!(options.index.limits, library.index.limits);
    assert_eq!(options.tree.retention_ms, None);
    let (ours, library) = (config.label_limits(), firn_model::LabelLimits::default());
    assert_eq!(format!("{ours:?}"), format!("{library:?}"));
}

#[test]
fn a_mistyped_variable_is_a_warning_with_the_nearest_name() {
    let variables = [
        ("FIRN_RETENTOIN", "15d"),
        ("FIRN_RETENTION", "16d"),
        ("FIRN_CONFIG", "of another test"),
        ("FIRN_CACHE_SIZE", "1GiB"),
        ("FIRN_CACHE_TOKEN", "t"),
        ("FIRN_TOKEN", "t"),
        ("FIRN_SERVICE_HOST", "10.0.0.1"),
        ("FIRN_PORT_9420_TCP", "tcp://10.0.0.1:9420"),
        ("OTHER", "x"),
    ];
    let serve = loaded::<ServeConfig>(&[], &variables, None).unwrap();
    let warning =
        "FIRN_RETENTOIN: no setting has this variable; the nearest is FIRN_RETENTION".to_owned();
    assert_eq!(serve.warnings, [warning.as_str()]);
    assert!(serve.print().contains(&format!("\n# warning: {warning}\n")), "{}", serve.print());
    assert_eq!(loaded::<CacheConfig>(&[], &variables, None).unwrap().warnings, [""; 0]);
    let cache = loaded::<CacheConfig>(&[], &[("FIRN_CACHE_MEMORIES", "1GiB")], None).unwrap();
    assert!(cache.warnings[0].ends_with("the nearest is FIRN_CACHE_MEMORY"), "{cache:?}");
}

#[test]
fn more_memory_than_the_machine_has_is_reduced_with_a_warning() {
    let serve = loaded::<ServeConfig>(&["--memory=900TiB"], &[], None).unwrap();
    let [warning] = &serve.warnings[..] else { panic!("{:?}", serve.warnings) };
    assert!(warning.starts_with("--memory: 921600GiB is more than"), "{warning}");
    let options = database::options(&serve.config, || ());
    let machine = crate::machine::memory_bytes();
    assert_eq!(options.memory_bytes_max, machine);
    assert_eq!(serve.config.query_memory.0, machine / 4);
    let cache = loaded::<CacheConfig>(&["--memory=900TB"], &[], None).unwrap();
    assert_eq!((cache.warnings.len(), cache.config.memory_bytes()), (1, machine));
}

#[test]
fn hot_and_pinned_memory_follow_the_limit() {
    for (memory, part) in [("64MiB", 8 << 20), ("8GiB", 1 << 30)] {
        let config = serve(&[&format!("--memory={memory}")]);
        let options = database::options(&config, || ());
        assert_eq!((options.head.hot_bytes_max, options.head.cooling_bytes_max), (part, part));
        assert!(options.head.hot_bytes_max + options.head_bytes_max < options.memory_bytes_max);
    }
}

#[test]
fn the_memory_of_rules_names_its_setting() {
    let budget = serve(&["--rule-memory=8MiB"]).rule_options(|| ()).budget;
    let error = budget.reserve(firn_model::Pool::Query, 9 << 20).unwrap_err().to_string();
    assert!(error.ends_with("raise --rule-memory"), "{error}");
}

#[test]
fn texts_become_the_values_they_name() {
    let config = serve(&[
        "--memory=1.5g",
        "--fast-bytes-max=512MB",
        "--slow-bytes-max=2g",
        "--log-sync=interval:100",
        "--series-max=0",
        "--remote-read-samples-max=0",
        "--body-bytes-max=100000",
    ]);
    assert_eq!(config.memory.0, 3 << 29);
    assert_eq!(config.fast_bytes_max.get(), Some(ByteSize(512_000_000)));
    assert_eq!(config.slow_bytes_max.get(), Some(ByteSize(2 << 30)));
    assert_eq!(config.log_sync, LogSync::IntervalMs(100));
    assert_eq!((config.series_max.get(), config.series_limits().series_max), (None, None));
    assert_eq!(config.remote_read_samples_max.get(), None);
    assert_eq!(config.body_bytes_max.to_usize(), 100_000);
    assert_eq!(config.storage_retention(), "2GiB");
}

#[test]
fn sizes_have_units_of_both_kinds() {
    let f = |text: &str, bytes: u64| assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
    f("1000", 1_000);
    f("1000b", 1_000);
    for (unit, bytes) in [
        ("k", 1 << 10),
        ("K", 1 << 10),
        ("KiB", 1 << 10),
        ("kB", 1_000),
        ("M", 1 << 20),
        ("MiB", 1 << 20),
        ("mib", 1 << 20),
        ("MB", 1_000_000),
        ("g", 1 << 30),
        ("TiB", 1 << 40),
    ] {
        f(&format!("5{unit}"), 5 * bytes);
        f(&format!("5 {unit}"), 5 * bytes);
        f(&format!("1.5{unit}"), 3 * bytes / 2);
        f(&format!("0.0{unit}"), 0);
    }
}

#[test]
fn the_yaml_has_external_labels_where_prometheus_has_them() {
    let config = serve(&["--external-labels=region=eu,zone=b\"", "--self-scrape=90s"]);
    let yaml = config.yaml();
    let global = "global:\n  scrape_interval: 1m30s\n  external_labels:\n    \
                  \"region\": \"eu\"\n    \"zone\": \"b\\\"\"\n\
                  firn:\n  data: \"./firn-data\"\n";
    assert!(yaml.starts_with(global), "{yaml}");
    assert!(yaml.contains("\n  label-value-bytes-max: \"4KiB\"\n"), "{yaml}");
}

#[test]
fn an_address_has_short_forms() {
    let f = |text: &str, want: &str| {
        let addresses = text.parse::<Addresses>().unwrap();
        assert_eq!(addresses.to_string(), want, "{text}");
        assert_eq!(addresses.to_string().parse(), Ok(addresses));
    };
    f("localhost:9420, [::1]:9420,9421", "127.0.0.1:9420,[::1]:9420,127.0.0.1:9421");
    f("127.0.0.1:0,127.0.0.1:0", "127.0.0.1:0,127.0.0.1:0");
    f("localhost:9420", "127.0.0.1:9420");
    f("9420", "127.0.0.1:9420");
    f("127.0.0.1:0", "127.0.0.1:0");
    f("[::1]:9420", "[::1]:9420");
    let everywhere = ":9420".parse::<Addresses>().unwrap().all()[0];
    assert!(everywhere.ip().is_unspecified() && everywhere.port() == 9420);
    let refused = |text: &str, want: &str| {
        let ExpectedForm(expected) = text.parse::<Addresses>().unwrap_err();
        assert!(expected.contains(want), "{text}: {expected}");
    };
    for malformed in ["", ",", "9420,", "none", "127.0.0.1:9420 127.0.0.1:9421"] {
        refused(malformed, "several between commas");
    }
    refused("localhost:9420,9420", "each once");
    refused(&"0,".repeat(16).replace(',', ",0,")[..33], "up to 16");
}

/// As Prometheus' `--web.listen-address`: flags replace the file's list and add to each other.
#[test]
fn a_flag_of_a_list_may_be_repeated() {
    let config = serve(&["--listen=9420", "--listen", "9421,9422", "--admin-listen=1"]);
    assert_eq!(config.listen.to_string(), "127.0.0.1:9420,127.0.0.1:9421,127.0.0.1:9422");
    let config = serve(&["--external-labels=a=b", "--external-labels=c=d"]);
    assert_eq!(config.external_labels.to_string(), "a=b,c=d");
    let parse = |flags: &[&str]| {
        let command = Flags::<ServeConfig>::augment_args(Command::new("firn"));
        command.try_get_matches_from(["firn"].iter().chain(flags)).is_ok()
    };
    assert!(!parse(&["--retention=1d", "--retention=2d"]));
    assert!(parse(&["--listen=1", "--listen=2"]));
    refused::<ServeConfig>(
        &["--admin-listen=none", "--admin-listen=1"],
        "--admin-listen: expected",
    );
}
