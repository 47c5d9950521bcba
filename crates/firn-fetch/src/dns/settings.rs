//! The settings of `resolv.conf`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use firn_env::given_file;

use crate::FetchError;

/// Name servers, and the domains in which short names are searched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsSettings {
    /// Name servers, in the order of queries.
    pub servers: Vec<SocketAddr>,
    /// Domains that are appended to names.
    pub search: Vec<String>,
    /// A name with this many dots is first looked up as it is.
    pub dots_min: usize,
    /// The time limit of a query.
    pub timeout: Duration,
    /// Queries to each server, at most.
    pub attempts: u32,
}

const PORT: u16 = 53;

// Bounds of one lookup: names times servers times attempts.
const SERVERS_MAX: usize = 8;
const SEARCH_MAX: usize = 16;
const DOTS_MAX: u32 = 15;
const TIMEOUT_S_MAX: u32 = 30;
const ATTEMPTS_MAX: u32 = 5;

impl DnsSettings {
    /// Those of `/etc/resolv.conf`.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn of_system() -> Result<DnsSettings, FetchError> {
        let text = given_file::read_text(Path::new("/etc/resolv.conf"), "resolver")
            .map_err(|error| FetchError::Transport(error.to_string()))?;
        Ok(DnsSettings::parse(&text))
    }

    /// Reads a text in the format of resolv.conf(5). Unknown lines have no effect.
    pub fn parse(text: &str) -> DnsSettings {
        let mut settings = DnsSettings {
            servers: Vec::new(),
            search: Vec::new(),
            dots_min: 1,
            timeout: Duration::from_secs(5),
            attempts: 2,
        };
        for line in text.lines() {
            let line = line.split(['#', ';']).next().unwrap_or_default();
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    let server = words.next().and_then(server);
                    settings
                        .servers
                        .extend(server.filter(|_| settings.servers.len() < SERVERS_MAX));
                }
                Some("domain") => settings.search = words.take(1).map(str::to_owned).collect(),
                Some("search") => {
                    settings.search = words.take(SEARCH_MAX).map(str::to_owned).collect();
                }
                Some("options") => words.for_each(|option| settings.set(option)),
                _ => {}
            }
        }
        if settings.servers.is_empty() {
            settings.servers.push((Ipv4Addr::LOCALHOST, PORT).into());
        }
        settings
    }

    fn set(&mut self, option: &str) {
        let Some((name, value)) = option.split_once(':') else { return };
        let Ok(value) = value.parse::<u32>() else { return };
        match name {
            "ndots" => self.dots_min = value.min(DOTS_MAX) as usize,
            "timeout" => self.timeout = Duration::from_secs(value.clamp(1, TIMEOUT_S_MAX).into()),
            "attempts" => self.attempts = value.clamp(1, ATTEMPTS_MAX),
            _ => {}
        }
    }

    /// The absolute names to look up for `name`, in order.
    pub(super) fn candidates(&self, name: &str) -> Vec<String> {
        if name.ends_with('.') {
            return vec![name.to_owned()];
        }
        let has_dots = name.matches('.').count() >= self.dots_min;
        let absolute = format!("{name}.");
        let in_domain = |domain: &String| match domain.trim_matches('.') {
            "" => absolute.clone(),
            domain => format!("{name}.{domain}."),
        };
        let mut names: Vec<String> = self.search.iter().map(in_domain).collect();
        names.retain(|name| *name != absolute);
        names.insert(if has_dots { 0 } else { names.len() }, absolute);
        names
    }
}

/// An address, perhaps with a zone.
fn server(text: &str) -> Option<SocketAddr> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some((ip, PORT).into());
    }
    // A numeric zone, as the standard library reads it.
    format!("[{text}]:{PORT}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_by_the_c_library() {
        let settings = DnsSettings::parse(
            "# comment\nnameserver 10.0.0.1\nnameserver fe80::1%2 ; zone\nnameserver x\n\
             domain a.example\nsearch b.example c.example. # two\n\
             options ndots:2 timeout:0 attempts:99 rotate ndots:x\nunknown 1\n",
        );
        assert_eq!(settings.servers.len(), 2);
        assert_eq!(settings.servers[0], "10.0.0.1:53".parse().unwrap());
        assert_eq!(settings.servers[1], "[fe80::1%2]:53".parse().unwrap());
        assert_eq!(settings.search, ["b.example", "c.example."]);
        assert_eq!((settings.dots_min, settings.attempts), (2, ATTEMPTS_MAX));
        assert_eq!(settings.timeout, Duration::from_secs(1));
        let settings = DnsSettings::parse("");
        assert_eq!(settings.servers, ["127.0.0.1:53".parse().unwrap()]);
        assert_eq!((settings.dots_min, settings.attempts), (1, 2));
        let many = DnsSettings::parse(&"nameserver 10.0.0.1\n".repeat(100));
        assert_eq!(many.servers.len(), SERVERS_MAX);
    }

    #[test]
    fn short_names_are_searched_first() {
        let settings = DnsSettings::parse("search a.example b.example. .\noptions ndots:2");
        let f = |name: &str| settings.candidates(name).join(" ");
        assert_eq!(f("x."), "x.");
        assert_eq!(f("x"), "x.a.example. x.b.example. x.");
        assert_eq!(f("x.y"), "x.y.a.example. x.y.b.example. x.y.");
        assert_eq!(f("x.y.z"), "x.y.z. x.y.z.a.example. x.y.z.b.example.");
        assert_eq!(DnsSettings::parse("").candidates("x"), ["x."]);
    }
}
