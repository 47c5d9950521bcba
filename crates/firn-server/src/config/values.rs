//! Types of settings. Each reads the text of a flag, variable or file key and writes text that
//! reads back to the same value.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::fmt::{self, Debug, Display};
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use firn_env::scheme_of;
use firn_model::{Labels, MatchOp, Matcher, redacted};
use firndb::LogDevice;
use reqwest::Url;

use crate::wire::number::{parse_unit_duration_ms, unit_duration};

/// The form that a refused text should have: a noun phrase that completes "expected ...".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedForm(pub String);

impl Display for ExpectedForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn expected<T>(what: impl Into<String>) -> Result<T, ExpectedForm> {
    Err(ExpectedForm(what.into()))
}

/// A type that a setting can have.
pub trait SettingType: Debug + Display + FromStr<Err = ExpectedForm> {
    /// Placeholder of the value in the help.
    const VALUE_NAME: &'static str;
    /// Kind of value, as the reference page names it.
    const KIND: &'static str;
    /// The flag may be typed without a value, which then is `true`.
    const IS_SWITCH: bool = false;
    /// The text may contain a password: errors omit a text that may have one.
    const IS_SECRET: bool = false;
    /// A word that is a value beside those of the kind.
    const WORD: Option<&'static str> = None;

    /// The number that the bounds of the setting apply to, if there is one.
    fn amount(&self) -> Option<u64> {
        None
    }

    /// A bound, as it is written in this type.
    fn bound(amount: u64) -> String {
        amount.to_string()
    }

    /// Whether the value turns something on that other settings refine.
    fn is_on(&self) -> bool {
        true
    }

    /// The value without passwords, which `Display` hides too where there may be one.
    fn shown(&self) -> String {
        self.to_string()
    }
}

/// A number of bytes: `4GiB`, `512MB`, `1g`, `1000`. Units are multiples of 1024 unless they end in
/// `B` without `i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// As a length in memory.
    pub fn to_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl FromStr for ByteSize {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<ByteSize, ExpectedForm> {
        let bytes = parse_bytes(text).map(ByteSize);
        bytes.map_or_else(|| expected("a size such as 64KiB or 4GiB"), Ok)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a float below 1e18 is converted")]
fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    let unit = unit.trim_start().to_ascii_lowercase();
    let factor: u64 = match unit.as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    };
    match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(factor),
        Err(_) => {
            let bytes = number.parse::<f64>().ok()? * factor as f64;
            (bytes.is_finite() && bytes < 1e18).then_some(bytes as u64)
        }
    }
}

/// In the largest unit that divides it.
#[expect(clippy::arithmetic_side_effects, reason = "no unit is 0 bytes")]
impl Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        let bytes = self.0;
        match UNITS.iter().find(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit)) {
            Some((name, unit)) => write!(f, "{}{name}", bytes / unit),
            None => write!(f, "{bytes}"),
        }
    }
}

impl SettingType for ByteSize {
    const VALUE_NAME: &'static str = "SIZE";
    const KIND: &'static str = "size";

    fn amount(&self) -> Option<u64> {
        Some(self.0)
    }

    fn bound(amount: u64) -> String {
        ByteSize(amount).to_string()
    }

    fn is_on(&self) -> bool {
        self.0 > 0
    }
}

/// A length of time above zero: `15s`, `1h30m`, `15d`. Millisecond resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    ms: i64,
}

impl Span {
    /// Milliseconds.
    pub fn ms(self) -> i64 {
        self.ms
    }

    /// For timers.
    pub fn duration(self) -> Duration {
        Duration::from_millis(self.ms.unsigned_abs())
    }
}

impl FromStr for Span {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<Span, ExpectedForm> {
        match parse_unit_duration_ms(text) {
            Some(ms) if ms > 0 => Ok(Span { ms }),
            _ => expected("a duration such as 15s, 1h30m or 15d"),
        }
    }
}

impl Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&unit_duration(self.ms))
    }
}

impl SettingType for Span {
    const VALUE_NAME: &'static str = "DURATION";
    const KIND: &'static str = "duration";
}

/// A whole number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub u64);

impl Count {
    /// As a length in memory.
    pub fn to_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl FromStr for Count {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<Count, ExpectedForm> {
        text.parse().map_or_else(|_| expected("a whole number"), |count| Ok(Count(count)))
    }
}

impl Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.0, f)
    }
}

impl SettingType for Count {
    const VALUE_NAME: &'static str = "COUNT";
    const KIND: &'static str = "number";

    fn amount(&self) -> Option<u64> {
        Some(self.0)
    }
}

/// A number of shards: a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardCount(usize);

impl ShardCount {
    /// The number.
    pub fn get(self) -> usize {
        self.0
    }
}

// A group id has room for this number.
const SHARDS_MAX: usize = 1 << 15;

impl FromStr for ShardCount {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<ShardCount, ExpectedForm> {
        match text.parse::<usize>() {
            Ok(shards) if shards.is_power_of_two() && shards <= SHARDS_MAX => {
                Ok(ShardCount(shards))
            }
            _ => expected(format!("a power of two up to {SHARDS_MAX}")),
        }
    }
}

impl Display for ShardCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.0, f)
    }
}

impl SettingType for ShardCount {
    const VALUE_NAME: &'static str = "COUNT";
    const KIND: &'static str = "power of two";
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch(pub bool);

impl Switch {
    /// Whether it is on.
    pub fn is_on(self) -> bool {
        self.0
    }
}

impl FromStr for Switch {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<Switch, ExpectedForm> {
        text.parse().map_or_else(|_| expected("true or false"), |is_on| Ok(Switch(is_on)))
    }
}

impl Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.0, f)
    }
}

impl SettingType for Switch {
    const VALUE_NAME: &'static str = "true|false";
    const KIND: &'static str = "true or false";
    const IS_SWITCH: bool = true;

    fn is_on(&self) -> bool {
        self.0
    }
}

/// An IP address and a port. `localhost:9420` and `9420` are addresses of this machine only, and
/// `:9420` is every address of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(pub SocketAddr);

impl FromStr for Address {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<Address, ExpectedForm> {
        let (host, port) = text.rsplit_once(':').unwrap_or(("localhost", text));
        let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
        let ip = match host {
            "localhost" => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            "" => Some(unspecified()),
            _ => None,
        };
        let short = ip.zip(port.parse().ok().filter(|_| is_number)).map(SocketAddr::from);
        short.or_else(|| text.parse().ok()).map(Address).ok_or_else(|| {
            ExpectedForm(
                "an IP address and a port such as 127.0.0.1:9420 or [::1]:9420, or localhost:9420, \
                 or :9420 for all addresses"
                    .to_owned(),
            )
        })
    }
}

/// Every address of this machine: of both families where there is IPv6.
fn unspecified() -> IpAddr {
    match Path::new("/proc/net/if_inet6").exists() {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    }
}

impl Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.0, f)
    }
}

impl SettingType for Address {
    const VALUE_NAME: &'static str = "ADDRESS";
    const KIND: &'static str = "IP address and port";
}

/// A folder of the local file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder(pub PathBuf);

impl FromStr for Folder {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<Folder, ExpectedForm> {
        local_path(text, "a folder").map(Folder)
    }
}

impl Display for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.0.display(), f)
    }
}

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl SettingType for Folder {
    const VALUE_NAME: &'static str = "FOLDER";
    const KIND: &'static str = "folder";
}

/// `text` as a path of this machine. A URL, also a mistyped one, would become a folder or file of
/// that name.
fn local_path(text: &str, what: &str) -> Result<PathBuf, ExpectedForm> {
    match text {
        "" => expected(what),
        _ if scheme_of(text).is_some() => {
            expected(format!("{what} of this machine, not a URL; ./NAME for a name with a colon"))
        }
        _ => Ok(PathBuf::from(text)),
    }
}

/// A file of the local file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePath(pub PathBuf);

impl FromStr for FilePath {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<FilePath, ExpectedForm> {
        local_path(text, "a file").map(FilePath)
    }
}

impl Display for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.0.display(), f)
    }
}

impl SettingType for FilePath {
    const VALUE_NAME: &'static str = "FILE";
    const KIND: &'static str = "file";
}

/// A folder, or a bucket of an object store with a prefix. The store is checked when it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowTier(String);

/// Of locations of the slow tier.
const SCHEMES: [&str; 6] = ["s3", "s3a", "gs", "az", "azure", "file"];

impl SlowTier {
    /// The folder `slow` inside `data`.
    pub fn below(data: &Path) -> SlowTier {
        SlowTier(data.join("slow").to_string_lossy().into_owned())
    }

    /// The folder or URL.
    pub fn location(&self) -> &str {
        &self.0
    }
}

impl FromStr for SlowTier {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<SlowTier, ExpectedForm> {
        let wanted = "a folder (./NAME for a name with a colon), or s3://, gs:// or az:// with \
                      bucket and prefix";
        match (text, text.split_once("://"), scheme_of(text)) {
            ("", ..) | (_, None, Some(_)) => expected(wanted),
            (_, Some((scheme, _)), _) if !SCHEMES.contains(&scheme) => expected(wanted),
            _ if redacted(text) != text => expected(
                "a folder, or a URL without credentials, which are variables of the environment, \
                 such as AWS_SECRET_ACCESS_KEY",
            ),
            _ => Ok(SlowTier(text.to_owned())),
        }
    }
}

impl Display for SlowTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl SettingType for SlowTier {
    const VALUE_NAME: &'static str = "LOCATION";
    const KIND: &'static str = "folder or URL";

    /// Whether it is a remote store: settings that save its requests have no effect on a folder.
    fn is_on(&self) -> bool {
        self.0.contains("://") && !self.0.starts_with("file://")
    }
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

/// Label names between commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelNames(pub Vec<String>);

impl FromStr for LabelNames {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<LabelNames, ExpectedForm> {
        let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
        match names.iter().all(|name| is_label_name(name)) {
            true => Ok(LabelNames(names)),
            false => expected("label names between commas, without brackets and quotes"),
        }
    }
}

impl Display for LabelNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

impl SettingType for LabelNames {
    const VALUE_NAME: &'static str = "LABELS";
    const KIND: &'static str = "list of label names";
}

/// Whether a name is not empty and contains no punctuation of PromQL or YAML: `{job` is a mistake.
fn is_label_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(|c: char| "{}[]()\"'`=~!,".contains(c) || c.is_whitespace())
}

/// `name=value` pairs between commas; empty for none.
#[derive(Clone, Debug, PartialEq)]
pub struct LabelPairs(pub Labels);

impl FromStr for LabelPairs {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<LabelPairs, ExpectedForm> {
        let pairs = text.split(',').filter(|_| !text.is_empty()).map(|pair| {
            pair.split_once('=').filter(|(name, value)| {
                let is_quoted = value.starts_with('"') && value.ends_with('"');
                is_label_name(name) && !value.is_empty() && !is_quoted
            })
        });
        let labels = pairs.collect::<Option<Vec<_>>>().and_then(|pairs| {
            // Fails for a repeated name.
            Labels::from_pairs(pairs).ok()
        });
        match labels {
            Some(labels) => Ok(LabelPairs(labels)),
            None => expected(
                "name=value pairs between commas, each name once, without braces and quotes",
            ),
        }
    }
}

impl Display for LabelPairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (idx, (name, value)) in self.0.iter().enumerate() {
            write!(f, "{}{name}={value}", if idx == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl SettingType for LabelPairs {
    const VALUE_NAME: &'static str = "LABELS";
    const KIND: &'static str = "name=value pairs";

    fn is_on(&self) -> bool {
        !self.0.is_empty()
    }
}

/// The value of a label: any text but an empty one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelValue(pub String);

impl FromStr for LabelValue {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<LabelValue, ExpectedForm> {
        match text {
            "" => expected("the value of a label, not an empty one"),
            _ if text.len() > LABEL_VALUE_BYTES_MAX => {
                expected(format!("the value of a label of at most {LABEL_VALUE_BYTES_MAX} bytes"))
            }
            _ => Ok(LabelValue(text.to_owned())),
        }
    }
}

// A name that is typed; labels of series have a setting.
const LABEL_VALUE_BYTES_MAX: usize = 256;

impl Display for LabelValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl SettingType for LabelValue {
    const VALUE_NAME: &'static str = "NAME";
    const KIND: &'static str = "text";
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
}

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogSync {
    /// After it is on the device.
    Always,
    /// Before; synced at this interval.
    IntervalMs(u64),
    /// Before; synced when the operating system decides to.
    Never,
}

impl FromStr for LogSync {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<LogSync, ExpectedForm> {
        let wanted = "always, never or a duration such as 100ms";
        match text {
            "always" => Ok(LogSync::Always),
            "never" => Ok(LogSync::Never),
            _ => match text.strip_prefix("interval:").map(str::parse) {
                Some(Ok(ms)) if ms > 0 => Ok(LogSync::IntervalMs(ms)),
                Some(_) => expected("interval:MILLISECONDS"),
                None => match text.parse::<Span>() {
                    Ok(span) => Ok(LogSync::IntervalMs(span.ms.unsigned_abs())),
                    Err(_) => expected(wanted),
                },
            },
        }
    }
}

impl Display for LogSync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            LogSync::Always => f.write_str("always"),
            LogSync::Never => f.write_str("never"),
            LogSync::IntervalMs(ms) => {
                f.write_str(&unit_duration(i64::try_from(ms).unwrap_or(i64::MAX)))
            }
        }
    }
}

impl SettingType for LogSync {
    const VALUE_NAME: &'static str = "WHEN";
    const KIND: &'static str = "always, never or a duration";
}

/// Device of the log of a new database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device(pub LogDevice);

impl FromStr for Device {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<Device, ExpectedForm> {
        match text.parse() {
            Ok(device) => Ok(Device(device)),
            Err(_) => expected("file, or memory: and the absolute path of a folder"),
        }
    }
}

impl Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.0, f)
    }
}

impl SettingType for Device {
    const VALUE_NAME: &'static str = "DEVICE";
    const KIND: &'static str = "file or memory:FOLDER";
}

/// A value, or one word that means the absence of one: `forever`, `unlimited`, `never`, `0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Or<W, T> {
    value: Option<T>,
    word: PhantomData<W>,
}

/// The word of an [`Or`].
pub trait Word: Debug {
    /// How it is typed.
    const TEXT: &'static str;
}

/// The word.
impl<W, T> Default for Or<W, T> {
    fn default() -> Or<W, T> {
        Or { value: None, word: PhantomData }
    }
}

impl<W: Word, T: Clone> Or<W, T> {
    /// The value; `None` for the word.
    pub fn get(&self) -> Option<T> {
        self.value.clone()
    }
}

impl<W: Word, T: SettingType> FromStr for Or<W, T> {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<Or<W, T>, ExpectedForm> {
        let value = match text {
            text if text == W::TEXT => None,
            text => match text.parse::<T>() {
                // `0MiB` is 0 as well.
                Ok(value) if W::TEXT == "0" && value.amount() == Some(0) => None,
                Ok(value) => Some(value),
                Err(ExpectedForm(what)) => return expected(format!("{what} or {:?}", W::TEXT)),
            },
        };
        Ok(Or { value, word: PhantomData })
    }
}

impl<W: Word, T: SettingType> Display for Or<W, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => Display::fmt(value, f),
            None => f.write_str(W::TEXT),
        }
    }
}

impl<W: Word, T: SettingType> SettingType for Or<W, T> {
    const VALUE_NAME: &'static str = T::VALUE_NAME;
    const KIND: &'static str = T::KIND;
    const IS_SECRET: bool = T::IS_SECRET;
    const WORD: Option<&'static str> = Some(W::TEXT);

    fn amount(&self) -> Option<u64> {
        self.value.as_ref().and_then(T::amount)
    }

    fn bound(amount: u64) -> String {
        T::bound(amount)
    }

    fn is_on(&self) -> bool {
        self.value.is_some()
    }

    fn shown(&self) -> String {
        self.value.as_ref().map_or_else(|| W::TEXT.to_owned(), T::shown)
    }
}

macro_rules! words {
    ($($(#[$doc:meta])* $word:ident = $text:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $word;

        impl Word for $word {
            const TEXT: &'static str = $text;
        }
    )*};
}

words! {
    /// No end of time.
    Forever = "forever";
    /// No limit of size.
    Unlimited = "unlimited";
    /// Switched off.
    Never = "never";
    /// Absent.
    Unset = "none";
    /// Measured at run time.
    Measured = "auto";
    /// No limit, or switched off.
    Zero = "0";
}
