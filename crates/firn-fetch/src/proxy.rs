//! Which proxy a request takes.

use std::net::IpAddr;

use firn_collect::config::ProxyConfig;
use firn_model::Secret;
use hyper::Uri;

use crate::FetchError;
use crate::credentials::{basic, unescape};

/// The proxies of a client.
#[derive(Debug)]
pub(crate) struct Proxies {
    http: Option<Proxy>,
    https: Option<Proxy>,
    bypass: Bypass,
    /// Headers of a request for a tunnel.
    pub(crate) connect_headers: Vec<(String, Secret)>,
}

/// A proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proxy {
    pub(crate) kind: ProxyKind,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) user: Option<(String, Secret)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProxyKind {
    Http,
    Https,
    Socks5,
}

/// The hosts that are reached without a proxy, by the rules of Go's `httpproxy`.
#[derive(Debug, Default)]
struct Bypass {
    /// Loopback addresses are reached directly. Not so where only `proxy_url` is set.
    local: bool,
    all: bool,
    rules: Vec<Rule>,
}

#[derive(Debug)]
enum Rule {
    Net(IpAddr, u32),
    Ip(IpAddr, Option<u16>),
    /// The name with a leading dot; `true` if the name without the dot matches as well.
    Domain(String, bool, Option<u16>),
}

impl Proxies {
    /// # Errors
    /// For an address of a proxy that is not supported.
    pub(crate) fn new(
        config: &ProxyConfig,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Proxies, FetchError> {
        let variable = |name: &str| {
            let value = env(name).filter(|value| !value.is_empty());
            value.or_else(|| env(&name.to_ascii_lowercase())).unwrap_or_default()
        };
        let headers = config.proxy_connect_header.iter();
        let connect_headers = headers
            .flat_map(|(name, values)| values.iter().map(|value| (name.clone(), value.clone())))
            .collect();
        if config.proxy_from_environment {
            return Ok(Proxies {
                http: Proxy::parse(&variable("HTTP_PROXY"))?,
                https: Proxy::parse(&variable("HTTPS_PROXY"))?,
                bypass: Bypass::parse(&variable("NO_PROXY"), true),
                connect_headers,
            });
        }
        let proxy = match &config.proxy_url {
            Some(url) => Proxy::parse(url.as_str())?,
            None => None,
        };
        let has_rules = !config.no_proxy.is_empty();
        let bypass = Bypass::parse(&config.no_proxy, has_rules);
        Ok(Proxies { http: proxy.clone(), https: proxy, bypass, connect_headers })
    }

    /// The proxy for `uri`.
    pub(crate) fn of(&self, uri: &Uri) -> Option<&Proxy> {
        let is_tls = uri.scheme_str() == Some("https");
        let proxy = if is_tls { &self.https } else { &self.http };
        let proxy = proxy.as_ref()?;
        let host = uri.host().unwrap_or_default();
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        (!self.bypass.covers(host, port)).then_some(proxy)
    }
}

impl Proxies {
    /// Whether the proxy for `uri` is reached over TLS.
    pub(crate) fn uses_tls(&self, uri: &Uri) -> bool {
        self.of(uri).is_some_and(|proxy| proxy.kind == ProxyKind::Https)
    }
}

impl Proxy {
    fn parse(text: &str) -> Result<Option<Proxy>, FetchError> {
        if text.is_empty() {
            return Ok(None);
        }
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let (kind, default_port) = match scheme.to_ascii_lowercase().as_str() {
            "http" => (ProxyKind::Http, 80),
            "https" => (ProxyKind::Https, 443),
            "socks5" | "socks5h" => (ProxyKind::Socks5, 1080),
            other => {
                let shown = firn_model::excerpt(other);
                return Err(FetchError::Credentials(format!(
                    "proxy_url: scheme {shown:?} is not supported; use http, https or socks5"
                )));
            }
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (user, place) = match authority.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, authority),
        };
        let invalid =
            || FetchError::Credentials("proxy_url: expected scheme://host:port".to_owned());
        let parsed: hyper::http::uri::Authority = place.parse().map_err(|_| invalid())?;
        let user = user.map(|user| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            (unescape(name), Secret::new(unescape(password)))
        });
        let port = match parsed.port() {
            Some(port) => port.as_u16(),
            // An authority may have any digits as a port that is then left out.
            None if parsed.as_str().trim_end_matches(':') != parsed.host() => return Err(invalid()),
            None => default_port,
        };
        Ok(Some(Proxy { kind, host: parsed.host().to_owned(), port, user }))
    }

    /// The value of `Proxy-Authorization`.
    pub(crate) fn authorization(&self) -> Option<String> {
        self.user.as_ref().map(|(name, password)| basic(name, password.expose()))
    }
}

impl Bypass {
    fn parse(text: &str, local: bool) -> Bypass {
        let mut bypass = Bypass { local, ..Bypass::default() };
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let item = item.to_ascii_lowercase();
            if item == "*" {
                bypass.all = true;
                continue;
            }
            if let Some((ip, bits)) = item.split_once('/')
                && let (Ok(ip), Ok(bits)) = (ip.parse(), bits.parse())
            {
                bypass.rules.push(Rule::Net(ip, bits));
                continue;
            }
            let (host, port) = split_port(&item);
            if let Ok(ip) = host.parse() {
                bypass.rules.push(Rule::Ip(ip, port));
                continue;
            }
            let host = host.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(host);
            bypass.rules.push(match host.starts_with('.') {
                true => Rule::Domain(host.to_owned(), false, port),
                false => Rule::Domain(format!(".{host}"), true, port),
            });
        }
        bypass
    }

    fn covers(&self, host: &str, port: u16) -> bool {
        let host = host.to_ascii_lowercase();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let ip: Option<IpAddr> = host.parse().ok();
        if self.all {
            return true;
        }
        if self.local && (host == "localhost" || ip.is_some_and(|ip| ip.is_loopback())) {
            return true;
        }
        let same_port = |wanted: &Option<u16>| wanted.is_none_or(|wanted| wanted == port);
        self.rules.iter().any(|rule| match rule {
            Rule::Net(net, bits) => ip.is_some_and(|ip| in_net(ip, *net, *bits)),
            Rule::Ip(wanted, port) => ip == Some(*wanted) && same_port(port),
            Rule::Domain(domain, matches_host, port) => {
                let is_host = *matches_host && domain.get(1..) == Some(host);
                (is_host || host.ends_with(domain.as_str())) && same_port(port)
            }
        })
    }
}

/// Host and port of `host:port`; an address of IPv6 is in brackets.
fn split_port(text: &str) -> (&str, Option<u16>) {
    if let Some((host, port)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return (host, port.strip_prefix(':').and_then(|port| port.parse().ok()));
    }
    match text.split_once(':') {
        Some((host, port)) if !port.contains(':') => (host, port.parse().ok()),
        _ => (text, None),
    }
}

fn in_net(ip: IpAddr, net: IpAddr, bits: u32) -> bool {
    let prefix = |ip: u128, width: u32| ip.checked_shr(width.saturating_sub(bits)).unwrap_or(0);
    match (ip, net) {
        (IpAddr::V4(ip), IpAddr::V4(net)) => {
            prefix(u32::from(ip).into(), 32) == prefix(u32::from(net).into(), 32)
        }
        (IpAddr::V6(ip), IpAddr::V6(net)) => prefix(ip.into(), 128) == prefix(net.into(), 128),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_config::client_config;

    fn config(no_proxy: &str) -> ProxyConfig {
        let keys = format!("proxy_url: 'http://u:p%40@proxy:3128', no_proxy: '{no_proxy}'");
        client_config(&keys).proxy
    }

    #[test]
    fn a_port_above_65535_is_refused() {
        for (url, port) in [("http://h:99999", None), ("h:", Some(80)), ("[::1]:81/", Some(81))] {
            let found = Proxy::parse(url).ok().flatten().map(|proxy| proxy.port);
            assert_eq!(found, port, "{url}");
        }
    }

    // Item 44: proxy_url, no_proxy.
    #[test]
    fn hosts_of_no_proxy_are_reached_directly() {
        let proxies = Proxies::new(
            &config("10.0.0.0/8, a.org, .b.org, *.c.org, 1.2.3.4:80, d:81, ::1/128"),
            &|_| None,
        )
        .unwrap();
        let f = |uri: &str, want: bool| {
            assert_eq!(proxies.of(&uri.parse().unwrap()).is_some(), want, "{uri}");
        };
        for direct in [
            "http://10.1.2.3:90/",
            "http://a.org/",
            "https://x.A.org/",
            "http://x.b.org/",
            "http://x.c.org/",
            "http://1.2.3.4/",
            "http://d:81/",
            "http://localhost:9/",
            "http://127.0.0.1/",
            "http://[::1]/",
        ] {
            f(direct, false);
        }
        for proxied in [
            "http://11.0.0.1/",
            "http://b.org/",
            "http://1.2.3.4:81/",
            "http://d/",
            "http://xa.org/",
        ] {
            f(proxied, true);
        }
    }

    #[test]
    fn a_proxy_without_exceptions_serves_loopback_addresses_too() {
        let proxies = Proxies::new(&config(""), &|_| None).unwrap();
        let proxy = proxies.of(&"http://127.0.0.1/".parse().unwrap()).unwrap();
        assert_eq!((proxy.host.as_str(), proxy.port), ("proxy", 3128));
        // u:p@
        assert_eq!(proxy.authorization().unwrap(), "Basic dTpwQA==");
        assert!(!format!("{proxies:?}").contains("p@"));
    }

    #[test]
    fn proxies_of_the_environment_are_by_scheme() {
        let config = client_config("proxy_from_environment: true").proxy;
        let env = |name: &str| match name {
            "http_proxy" => Some("proxy".to_owned()),
            "HTTPS_PROXY" => Some("socks5://s".to_owned()),
            "NO_PROXY" => Some("x".to_owned()),
            _ => None,
        };
        let proxies = Proxies::new(&config, &env).unwrap();
        let of = |uri: &str| proxies.of(&uri.parse().unwrap()).map(|proxy| proxy.port);
        assert_eq!(of("http://h/"), Some(80));
        assert_eq!(of("https://h/"), Some(1080));
        assert_eq!((of("http://x/"), of("http://localhost/")), (None, None));
        let error = Proxies::new(&config, &|_| Some("ftp://x".to_owned())).unwrap_err();
        assert!(error.to_string().contains("\"ftp\" is not supported"), "{error}");
    }
}
