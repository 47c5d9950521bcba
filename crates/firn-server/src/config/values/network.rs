//! Addresses, URLs, and the hosts, origins and paths of requests.

use std::fmt::{self, Debug, Display};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::str::FromStr;

use firn_model::{MatchOp, Matcher};
use url::{Host, Url};

use super::{ExpectedForm, SettingType, expected};

/// IP addresses and ports between commas, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses(Vec<SocketAddr>);

// Each is a socket and a task.
const ADDRESSES_MAX: usize = 16;

impl Addresses {
    /// All of them.
    pub fn all(&self) -> &[SocketAddr] {
        &self.0
    }
}

impl FromStr for Addresses {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<Addresses, ExpectedForm> {
        let addresses: Option<Vec<SocketAddr>> =
            text.split(',').map(|address| parse_address(address.trim())).collect();
        let Some(addresses) = addresses else {
            return expected(
                "an IP address and a port such as 127.0.0.1:9420 or [::1]:9420, or localhost:9420, \
                 or :9420 for all addresses, or several between commas",
            );
        };
        // Port 0 is another port each time.
        let is_twice = |idx: usize, address: &SocketAddr| {
            address.port() != 0
                && addresses.iter().skip(idx.saturating_add(1)).any(|other| other == address)
        };
        if addresses.iter().enumerate().any(|(idx, address)| is_twice(idx, address)) {
            return expected("an IP address and a port, or several between commas, each once");
        }
        match addresses.len() > ADDRESSES_MAX {
            true => expected(format!("an IP address and a port, or up to {ADDRESSES_MAX} of them")),
            false => Ok(Addresses(addresses)),
        }
    }
}

/// `localhost:9420` and `9420` are addresses of this machine only, and `:9420` is every address of
/// it.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.rsplit_once(':').unwrap_or(("localhost", text));
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    let ip = match host {
        "localhost" => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        "" => Some(unspecified()),
        _ => None,
    };
    let short = ip.zip(port.parse().ok().filter(|_| is_number)).map(SocketAddr::from);
    short.or_else(|| text.parse().ok())
}

/// Every address of this machine: of both families where there is IPv6.
fn unspecified() -> IpAddr {
    match Path::new("/proc/net/if_inet6").exists() {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    }
}

impl Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&joined(&self.0))
    }
}

/// `addresses` between commas.
pub(in crate::config) fn joined(addresses: &[SocketAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    texts.join(",")
}

impl SettingType for Addresses {
    const VALUE_NAME: &'static str = "ADDRESSES";
    const KIND: &'static str = "list of IP addresses and ports";
    const IS_LIST: bool = true;
}

/// `http://` or `https://` with a host, and maybe a path. May contain a password.
#[derive(Clone, PartialEq, Eq)]
pub struct OriginUrl {
    text: String,
    url: Url,
}

impl OriginUrl {
    /// The URL, parsed.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Identifies the origin and the user, without the user's password: a cache file contains a
    /// digest of it.
    pub fn owner(&self) -> String {
        if self.url.password().is_none() {
            return self.text.clone();
        }
        let mut url = self.url.clone();
        // Fails only for URLs without a host.
        let _ = url.set_password(None);
        url.to_string()
    }

    /// Whether it plainly is the address of a socket at `listen` on this machine. Other names of
    /// the machine are not looked up.
    pub fn is_at(&self, listen: SocketAddr) -> bool {
        let is_localhost = |name: &str| name.eq_ignore_ascii_case("localhost");
        let ip = match self.url.host() {
            Some(Host::Ipv4(ip)) => ip.into(),
            Some(Host::Ipv6(ip)) => ip.to_canonical(),
            Some(Host::Domain(name)) if is_localhost(name) && listen.ip().is_ipv6() => {
                Ipv6Addr::LOCALHOST.into()
            }
            Some(Host::Domain(name)) if is_localhost(name) => Ipv4Addr::LOCALHOST.into(),
            _ => return false,
        };
        let is_reached = ip == listen.ip()
            || listen.ip().is_unspecified() && ip.is_loopback()
            || ip.is_unspecified() && listen.ip().is_loopback();
        is_reached && self.url.port_or_known_default() == Some(listen.port())
    }

    /// Whether it contains a user or a password.
    pub fn has_credentials(&self) -> bool {
        !self.url.username().is_empty() || self.url.password().is_some()
    }
}

impl FromStr for OriginUrl {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<OriginUrl, ExpectedForm> {
        let url = Url::parse(text).ok().filter(|url| {
            matches!(url.scheme(), "http" | "https")
                && url.has_host()
                && url.query().is_none()
                && url.fragment().is_none()
        });
        let wanted = "http:// or https:// with a host, such as http://127.0.0.1:9090";
        match url {
            Some(url) => Ok(OriginUrl { text: text.to_owned(), url }),
            None => expected(wanted),
        }
    }
}

/// Without passwords, as everywhere but in requests.
impl Display for OriginUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

impl Debug for OriginUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

impl SettingType for OriginUrl {
    const VALUE_NAME: &'static str = "URL";
    const KIND: &'static str = "URL";
    const IS_SECRET: bool = true;

    fn shown(&self) -> String {
        if !self.has_credentials() {
            return self.text.clone();
        }
        let mut url = self.url.clone();
        // A user alone is a token. Both fail only for URLs without a host.
        let _ = match self.url.password() {
            Some(_) => url.set_password(Some("xxxxx")),
            None => url.set_username("xxxxx"),
        };
        url.to_string()
    }
}

/// A regular expression that matches a whole `Origin` header.
#[derive(Clone, Debug, PartialEq)]
pub struct OriginPattern(pub Matcher);

impl FromStr for OriginPattern {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<OriginPattern, ExpectedForm> {
        match Matcher::new("Origin", MatchOp::Regex, text) {
            Ok(matcher) => Ok(OriginPattern(matcher)),
            Err(error) => expected(format!("a regular expression ({error})")),
        }
    }
}

impl Display for OriginPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.value())
    }
}

impl SettingType for OriginPattern {
    const VALUE_NAME: &'static str = "REGEX";
    const KIND: &'static str = "regular expression";
}

/// Host names and addresses between commas, without ports; `*` stands for all, an empty text for
/// none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostNames(Vec<String>);

impl HostNames {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `host` is one of them. Case does not count.
    pub fn has(&self, host: &str) -> bool {
        self.0.iter().any(|name| name == "*" || name.eq_ignore_ascii_case(host))
    }
}

impl FromStr for HostNames {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<HostNames, ExpectedForm> {
        let names = text.split(',').map(str::trim).filter(|_| !text.is_empty());
        let names: Vec<String> = names.map(str::to_owned).collect();
        let is_name = |name: &String| {
            let is_address = name.parse::<IpAddr>().is_ok();
            let is_host_char = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            is_address || name == "*" || (!name.is_empty() && name.chars().all(is_host_char))
        };
        match names.iter().all(is_name) {
            true => Ok(HostNames(names)),
            false => expected("host names or addresses without ports between commas, or *"),
        }
    }
}

impl Display for HostNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

impl SettingType for HostNames {
    const VALUE_NAME: &'static str = "HOSTS";
    const KIND: &'static str = "list of host names";
    const IS_LIST: bool = true;

    fn is_on(&self) -> bool {
        !self.0.is_empty()
    }
}

/// Paths between commas; a final `*` stands for any rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPatterns(Vec<String>);

impl PathPatterns {
    /// Whether one of them matches `path`.
    pub fn matches(&self, path: &str) -> bool {
        self.0.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(start) => path.starts_with(start),
            None => path == pattern,
        })
    }
}

impl FromStr for PathPatterns {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<PathPatterns, ExpectedForm> {
        let patterns: Vec<String> = text.split(',').map(|path| path.trim().to_owned()).collect();
        let is_pattern = |pattern: &String| {
            let path = pattern.strip_suffix('*').unwrap_or(pattern);
            path.starts_with('/') && !path.contains(['*', '?', '#', '%', '\\'])
        };
        match patterns.iter().all(is_pattern) {
            true => Ok(PathPatterns(patterns)),
            false => expected("paths such as /api/v1/admin/* between commas"),
        }
    }
}

impl Display for PathPatterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

impl SettingType for PathPatterns {
    const VALUE_NAME: &'static str = "PATHS";
    const KIND: &'static str = "list of paths";
    const IS_LIST: bool = true;
}
