//! Tests of the web configuration.

use super::*;

const HASH: &str = "$2y$10$mDwo.lAisC94iLAyP81MCesa29IzH37oigHC/42V2pdJlUprsJPze";

fn parse(text: &str) -> Result<WebConfig> {
    WebConfig::parse(Path::new("/etc/firn/web.yml"), text)
}

#[test]
fn the_matchers_of_all_users_share_one_bound() {
    let user = |name: usize, count: usize| {
        let list: Vec<String> = (0..count).map(|idx| format!("a=~\"x.*{idx}\"")).collect();
        let list = list.join(",");
        format!("- name: u{name}\n  roles: [read]\n  matchers: '{{{list}}}'\n")
    };
    let users = |count: usize| format!("users:\n{}{}", user(0, count), user(1, count));
    let scopes = parse(&users(3)).unwrap();
    let scopes = scopes.accounts.iter().flat_map(|account| account.scope.iter());
    assert_eq!(scopes.filter(|one| one.regex().is_some()).count(), 6, "compiled at load");
    refusal(&users(600), "over 1000 regular expressions");
    let states = "users:\n- name: u\n  roles: [read]\n  matchers: '{a=~\"\\\\pL{1000}\"}'\n";
    refusal(states, "it compiles to over 8388608 bytes");
}

fn refusal(text: &str, wanted: &str) {
    let error = parse(text).unwrap_err().to_string();
    assert!(error.contains(wanted), "{text}\n{error}");
}

#[test]
fn prometheus_files_are_read_as_they_are() {
    let config = parse(&format!(
        "tls_server_config:\n  cert_file: server.crt\n  key_file: /keys/server.key\n  \
         client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n  \
         client_allowed_sans: [prom.example]\n  min_version: TLS13\n  cipher_suites:\n  \
         - TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256\n  prefer_server_cipher_suites: false\n  \
         curve_preferences: [X25519]\nhttp_server_config:\n  http2: true\n  headers:\n    \
         X-Frame-Options: deny\nbasic_auth_users:\n  alice: {HASH}\nrate_limit:\n  \
         interval: \"1s\"\n  burst: 20\n"
    ))
    .unwrap();
    let tls = config.tls.unwrap();
    assert!(tls.certificate.path.as_deref() == Some(Path::new("/etc/firn/server.crt")));
    assert_eq!(tls.key.path.as_deref(), Some(Path::new("/keys/server.key")));
    assert_eq!((tls.client_auth, tls.prefers_server_order), (ClientAuth::Required, false));
    assert_eq!(tls.versions, TlsVersions { has_12: false, has_13: true });
    assert_eq!(config.headers.len(), 1);
    assert_eq!(config.rate, Some(RateLimit { per_second: 1.0, burst: 20 }));
    assert_eq!(config.warnings, ["http_server_config.http2: this server speaks HTTP/1.1 only"]);
    let [alice] = &config.accounts[..] else { panic!("one user") };
    assert_eq!((alice.name.as_str(), alice.roles), ("alice", Roles::ALL));
    let empty = parse("").unwrap();
    assert!(empty.tls.is_none() && empty.accounts.is_empty());
    assert!(parse("tls_server_config:\nbasic_auth_users:\n").unwrap().tls.is_none());
}

#[test]
fn users_have_roles_tokens_matchers_and_limits() {
    let digest = "ab".repeat(32);
    let config = parse(&format!(
        "basic_auth_users: {{grafana: {HASH}}}\nusers:\n- name: grafana\n  roles: [read]\n  \
         matchers: '{{team=\"a\"}}'\n  limits:\n    queries_at_once: 3\n    \
         samples_per_query: 10\n    new_series_per_second: 5\n    requests_per_second: 7\n\
         - name: agent\n  roles: write\n  tokens:\n  - sha256:{digest}\n"
    ))
    .unwrap();
    let [grafana, agent] = &config.accounts[..] else { panic!("two users") };
    assert!(grafana.password.is_some() && grafana.scope.len() == 1);
    assert_eq!(grafana.roles.names(), ["read"]);
    assert_eq!(grafana.limits.queries_max, Some(3));
    assert_eq!(grafana.limits.requests_per_second_max, Some(7));
    assert_eq!((agent.roles.names(), agent.tokens[0]), (vec!["write"], [0xab; 32]));
}

#[test]
fn mistakes_are_refused_by_name() {
    refusal("tls_config: {}\n", "web.yml:1: tls_config: unknown key");
    refusal("tls_server_config: {cert: x, key_fil: y}\n", "key_fil");
    refusal("tls_server_config: {cert: x}\n", "tls_server_config.key_file: missing");
    refusal("tls_server_config: {cert: x, cert_file: y, key: z}\n", "remove one");
    let tls = "tls_server_config: {cert: x, key: y, ";
    refusal(&format!("{tls}client_auth_type: RequireAnyClientCert}}\n"), "no authority");
    refusal(&format!("{tls}client_ca_file: z}}\n"), "needs client_auth_type");
    refusal(&format!("{tls}client_auth_type: VerifyClientCertIfGiven}}\n"), "client_ca_file");
    refusal(&format!("{tls}client_allowed_sans: [a]}}\n"), "needs client_auth_type");
    refusal(&format!("{tls}max_version: TLS11}}\n"), "max_version");
    refusal(&format!("{tls}min_version: SSL3}}\n"), "expected TLS12 or TLS13");
    refusal("http_server_config: {headers: {X-Other: y}}\n", "X-Other: unknown key");
    refusal("basic_auth_users: {a: secret}\n", "expected a bcrypt hash");
    refusal("basic_auth_users: {a: [x]}\n", "expected NAME: BCRYPT_HASH");
    refusal(
        &format!("basic_auth_users: {{'a:b': {HASH}}}\n"),
        "expected a name of 1 to 100 bytes without \":\"",
    );
    let costly = HASH.replace("$10$", "$31$");
    refusal(&format!("basic_auth_users: {{a: {costly}}}\n"), "cost 4 to 15");
    refusal("users: {a: b}\n", "users: expected a list");
    refusal("users: [{roles: [read]}]\n", "no name");
    refusal("users: [{name: a}]\n", "needs one");
    refusal("users: [{name: a, roles: [king]}]\n", "expected read, write or admin");
    refusal("users: [{name: a, roles: [read], colour: x}]\n", "users.colour: unknown key");
    refusal("users: [{name: a, roles: [read], tokens: [abc]}]\n", "expected sha256:");
    refusal("users: [{name: a, roles: [read], matchers: 'team='}]\n", "expected a selector");
    let both = "users: [{name: a, roles: [read, write], matchers: '{t=\"a\"}'}]\n";
    refusal(both, "without matchers");
    refusal("users: [{name: a, roles: [read]}, {name: a, roles: [read]}]\n", "listed twice");
    let twice = format!(
        "basic_auth_users: {{a: {HASH}}}\nusers: [{{name: a, roles: [read], password: {HASH}}}]\n"
    );
    refusal(&twice, "remove one");
    let zero = "users: [{name: a, roles: [read], limits: {queries_at_once: 0}}]\n";
    refusal(zero, "expected a whole number above 0");
    refusal("rate_limit: {interval: soon}\n", "expected a duration");
    // Promtool refuses these, too.
    for headers in ["X-Frame-Options: DENY", "X-Frame-Options: ''", "X-Content-Type-Options: x"] {
        let file = format!("http_server_config: {{headers: {{{headers}}}}}\n");
        refusal(&file, "invalid value; expected one of");
    }
    let good = "http_server_config: {headers: {X-Frame-Options: deny, X-XSS-Protection: x}}\n";
    assert_eq!(parse(good).unwrap().headers.len(), 2);
}

/// As promtool. Before, unknown curves were a warning, and names were not checked without a
/// certificate.
#[test]
fn ciphers_and_curves_have_the_names_of_go() {
    refusal(
        "tls_server_config:\n  cipher_suites:\n  - TLS_AES_128_GCM_SHA256\n  \
         - TLS_RSA_WITH_RC4_128_SHA\n",
        "web.yml:4: tls_server_config.cipher_suites: unknown cipher: TLS_RSA_WITH_RC4_128_SHA",
    );
    refusal(
        "tls_server_config: {curve_preferences: [X25519, P256]}\n",
        "web.yml:1: tls_server_config.curve_preferences: unknown curve: P256",
    );
    let names = format!(
        "cipher_suites: [{}], curve_preferences: [{}]",
        CIPHERS.join(", "),
        CURVES.join(", ")
    );
    assert!(parse(&format!("tls_server_config: {{{names}}}\n")).unwrap().tls.is_none());
    let tls = parse(&format!("tls_server_config: {{cert: x, key: y, {names}}}\n")).unwrap().tls;
    let tls = tls.unwrap();
    assert_eq!(tls.cipher_suites, CIPHERS);
    assert_eq!(tls.curves, CURVES);
}

/// Before, a user whose matchers were forgotten saw all series.
#[test]
fn users_have_no_key_without_a_value_and_no_common_token() {
    for keys in ["matchers: ", "matchers: ~", "limits: null", "limits: {queries_at_once: ~}"] {
        let file = format!("users:\n- name: a\n  roles: [read]\n  {keys}\n");
        refusal(&file, "has no value; remove the key or set it");
    }
    let token = format!("sha256:{}", "ab".repeat(32));
    let user = |name: &str| format!("- {{name: {name}, roles: [read], tokens: ['{token}']}}\n");
    refusal(&format!("users:\n{}{}", user("a"), user("b")), "listed already");
}

// Each secret, and each list and section around it, in place of which an operator may write it.
#[test]
fn no_error_shows_a_secret() {
    let mut error_count = 0;
    for place in [
        "@",
        "tls_server_config: @",
        "tls_server_config: {cert: x, key: @}",
        "http_server_config: @",
        "http_server_config: {headers: @}",
        "http_server_config: {headers: {X-Frame-Options: @}}",
        "basic_auth_users: @",
        "basic_auth_users: {a: @}",
        "users: @",
        "users: [@]",
        "users: [{name: a, roles: [read], password: @}]",
        "users: [{name: a, roles: [read], tokens: @}]",
        "users: [{name: a, roles: [read], tokens: [@]}]",
    ] {
        for value in [
            "hunter2",
            "!!int hunter2",
            "!!float hunter2",
            "!!binary aHVudGVyMv8=",
            "[hunter2]",
            "[[hunter2]]",
            "{a: hunter2}",
            "*hunter2",
            "\"hunter2\\n\"",
        ] {
            let text = place.replace('@', value);
            let Err(error) = parse(&text) else { continue };
            error_count += 1;
            let error = error.to_string();
            assert!(!error.contains("hunter"), "{text}: {error}");
        }
    }
    assert!(error_count > 100, "{error_count}");
}

// Lists and mappings that fill a file: each is refused with the name of a limit, or read, in one
// pass and within the memory.
#[test]
fn large_files_are_within_the_memory() {
    const BUDGET_BYTES: u64 = 80 << 20;
    let fill = |head: &str, line: &dyn Fn(usize) -> String, tail: &str| {
        let mut text = head.to_owned();
        for idx in 0.. {
            let line = line(idx);
            if text.len() + line.len() + tail.len() > FILE_BYTES_MAX {
                break;
            }
            text.push_str(&line);
        }
        text + tail
    };
    let a_comma = |_| "a,".to_owned();
    let user = "users:\n- {name: u, roles: [read], ";
    for (text, wanted) in [
        (fill(&format!("{user}tokens: ["), &a_comma, "]}"), "more bytes"),
        (fill("users:\n- name: u\n  tokens:\n", &|_| "  - a\n".into(), ""), "at most 1000"),
        (fill(&format!("{user}roles: ["), &a_comma, "]}"), "more bytes"),
        (fill("tls_server_config: {cipher_suites: [", &a_comma, "]}"), "more bytes"),
        (fill("x: ", &|_| "[],".into(), ""), "yaml: line 1"),
        (fill("users:\n", &|idx| format!("- name: u{idx}\n"), ""), "at most 10000 are"),
        (fill("", &|idx| format!("k{idx}: 1\n"), ""), "k0: unknown key"),
        (fill("", &|_| "users:\n".into(), ""), ":2: users: set twice"),
        (
            fill("http_server_config:\n  headers:\n", &|idx| format!("    X-{idx}: y\n"), ""),
            "X-0: unknown key",
        ),
        (fill("basic_auth_users:\n", &|idx| format!(" u{idx}: {HASH}\n"), ""), "at most 10000"),
        (fill(&format!("{user}matchers: '{{"), &|_| "a=\"b\",".into(), "}'}"), "more bytes"),
        (format!("# {}", " ".repeat(FILE_BYTES_MAX)), "longer than 1048576 bytes"),
    ] {
        let budget = Budget::new(BUDGET_BYTES);
        let read = WebConfig::parse_within(Path::new("web.yml"), &text, &budget);
        let error = read.unwrap_err().to_string();
        assert!(error.contains(wanted) && error.len() < 500, "{}: {error}", &text[..80]);
        assert_eq!(budget.usage().used_bytes, 0);
    }
}

#[test]
fn users_hold_their_memory() {
    let user = |idx| format!("- name: u{idx}\n  roles: [read]\n  matchers: '{{a=\"b\"}}'\n");
    let text = format!("users:\n{}", (0..9_000).map(user).collect::<String>());
    let budget = Budget::new(256 << 20);
    let config = WebConfig::parse_within(Path::new("web.yml"), &text, &budget).unwrap();
    assert_eq!(config.accounts.len(), 9_000);
    // Ten users are named.
    assert_eq!(config.warnings.len(), 11);
    assert_eq!(config.warnings[10], "8990 further users have neither password nor token");
    let (used, peak) = (budget.usage().used_bytes, budget.usage().peak_bytes);
    assert!(used > 9_000 * size_of::<Account>() as u64 + text.len() as u64, "{used}");
    assert!(used < peak * 2 / 3, "the document is released: {used} {peak}");
    drop(config);
    assert_eq!(budget.usage().used_bytes, 0);
    // Matchers and users need memory of their own.
    let budget = Budget::new(peak);
    let error = WebConfig::parse_within(Path::new("web.yml"), &text, &budget).unwrap_err();
    assert_eq!(budget.usage().used_bytes, 0, "{error}");
}

#[test]
fn tokens_and_matchers_are_bounded() {
    let user = |idx: u64| {
        let tokens = (0..900).map(|token| format!("  - sha256:{:064x}\n", idx << 32 | token));
        let tokens: String = tokens.collect();
        format!("- name: u{idx}\n  roles: [read]\n  tokens:\n{tokens}")
    };
    let text: String = (0..12).map(user).collect();
    refusal(&format!("users:\n{text}"), "all users may have 10000");
    let matchers = "a=\"b\",".repeat(1_001);
    let text = format!("users:\n- {{name: u, roles: [read], matchers: '{{{matchers}}}'}}\n");
    refusal(&text, "a selector has over 1000 matchers");
}
