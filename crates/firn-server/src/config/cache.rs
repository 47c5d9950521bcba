//! The settings of `firn cache`, alone and with `--proxy`.

use std::path::Path;
use std::sync::Arc;

use firn_model::{Error, Result, Secret};

use super::declare::{SettingValue, Settings, kebab_case, settings};
use super::log_files;
use super::reader::SettingsReader;
use super::serve::CONNECTIONS_MAX;
use super::setting::{Setting, UNBOUNDED};
use super::values::{
    Addresses, ByteSize, Count, FilePath, Folder, HostNames, Measured, Or, OriginPattern,
    OriginUrl, PathPatterns, Span, Switch, Unset,
};
use crate::machine;
use firn_env::given_file::read_text_once;
use firn_env::real_path;
use firndb::OwnFolder;

use crate::access::GateOptions;
use crate::access::line_log::ForbiddenFiles;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

// Two slabs and their write buffers.
const FLASH_BYTES_MIN: u64 = 8 * MIB;
const MEMORY_BYTES_MIN: u64 = 16 * MIB;
const RESPONSE_BYTES_MAX: u64 = GIB;
// Fifty points.
const VALUE_BYTES_MIN: u64 = 1 << 10;
const VALUE_BYTES_MAX: u64 = 256 * MIB;
const VALUE_BYTES_DEFAULT: u64 = 8 * MIB;
/// A value takes several times its length while it is stored or returned; a part of the memory is
/// for that.
const VALUE_PART: u64 = 16;
const TOKEN_BYTES_MAX: usize = 1_000;

settings! {
    /// Checked settings of `firn cache`.
    pub struct CacheConfig("cache", "FIRN_CACHE_");

    section "Cache";

    /// URL of the database to put the cache in front of: http:// or https:// with a host, and a
    /// path if its API has one before /api/v1. It is compatible with Prometheus or InfluxDB 1.x.
    /// `none` runs a cache for programs that get and set points (docs/cache-protocol.md).
    proxy: Or<Unset, OriginUrl> = "none";

    /// Addresses and ports to listen on, separated by commas. Each has the same TLS and users. Port
    /// 0 selects a free one.
    listen: Addresses = "127.0.0.1:9421";

    /// Addresses and ports of further listeners with a thread of their own, for health, readiness
    /// and metrics.
    admin_listen: Or<Unset, Addresses> = "none";

    /// Folder of the cache. It is created if it is missing.
    data: Folder = "./firn-cache";

    /// Space on disk, at least 8MiB.
    size: ByteSize = "1GiB", bounds(FLASH_BYTES_MIN, UNBOUNDED);

    /// Memory for the cache's index and for points that wait for the disk, at least 16MiB. More
    /// than the memory of the machine or of the control group is reduced to it, with a warning.
    memory: ByteSize = "128MiB", bounds(MEMORY_BYTES_MIN, UNBOUNDED);

    /// Connections that have sent a request. At the limit the oldest connection between two
    /// requests is closed for a new one; without such a connection, further requests wait. Metrics
    /// are answered in any case.
    connections_max: Count = "512", unit("connections"), bounds(1, CONNECTIONS_MAX);

    /// The same for each client address, or IPv6 network of 64 bits. `auto` is half of
    /// --connections-max, and all of it for clients on this machine.
    connections_per_client_max: Or<Measured, Count> = "auto",
        unit("connections"), bounds(1, CONNECTIONS_MAX);

    /// Smallest part of a request that the cache returns. For smaller parts the client, or the
    /// database behind the proxy, computes the whole response. A get may name another size. `auto`
    /// is 512KiB, and with --proxy is measured from the response times of the database.
    partial_bytes_min: Or<Measured, ByteSize> = "auto", bounds(0, UNBOUNDED);

    /// File with TLS, users and their roles, in the format of Prometheus' --web.config.file and
    /// with keys of its own (docs/security.md). A running cache applies changes of the file within
    /// seconds, or on SIGHUP. `none` admits every client.
    web_config: Or<Unset, FilePath> = "none";

    /// Refuse to start without users or --token-file, or without TLS on an address that is not
    /// loopback.
    require_auth: Switch = "false";

    /// File that receives a JSON line for each reload, refused login and refused request. `stderr`
    /// is standard error.
    audit_log: Or<Unset, FilePath> = "none";

    /// Names and addresses by which clients reach this cache over HTTP, separated by commas, beside
    /// localhost and the address in --listen. A request with another Host header is refused, so
    /// that no web page reaches the cache under a name of its own (DNS rebinding). `*` allows every
    /// name. Without this setting a cache that does not listen on loopback allows every name.
    allowed_hosts: HostNames = "";

    section "With --proxy";

    /// Origins whose web pages may send requests and read responses: a regular expression for the
    /// whole origin. `none` allows only pages of the database itself, reached through the proxy.
    cors_origin: Or<Unset, OriginPattern> = "none", only_with("proxy", "--proxy");

    /// Further paths of the database that clients may request, with every method, separated by
    /// commas: /api/v1/admin/tsdb/snapshot, or /api/v1/admin/* with all paths below it. Without
    /// this setting clients may query, write samples, and open the pages of the database; paths and
    /// statements that administrate it are refused. `/*` forwards everything.
    proxy_paths: Or<Unset, PathPatterns> = "none", only_with("proxy", "--proxy");

    /// Age at which samples of the database no longer change. Younger samples are not cached.
    settle: Span = "10m", only_with("proxy", "--proxy");

    /// Size of a response above which it is forwarded and not cached.
    answer_bytes_max: ByteSize = "64MiB",
        bounds(1, RESPONSE_BYTES_MAX), only_with("proxy", "--proxy");

    /// File with the certificates of the authorities that may sign the origin's certificate. `none`
    /// is those of the system.
    origin_ca_file: Or<Unset, FilePath> = "none", only_with("proxy", "--proxy");

    /// File with a client certificate and its key, both in PEM form, for an origin that demands
    /// one.
    origin_identity_file: Or<Unset, FilePath> = "none", only_with("proxy", "--proxy");

    /// Time after which a database that does not respond, or stops in the middle of a response, has
    /// failed. The waits within one response may add up to this time, beside the time that its
    /// bytes need at 16 KiB/s.
    origin_timeout: Span = "5m", only_with("proxy", "--proxy");

    section "Without --proxy";

    /// File whose first line is the token that clients must send first. `none` admits every client.
    token_file: Or<Unset, FilePath> = "none", not_with(&["proxy"]);

    /// Size of the value of one set or get, from 1KiB to 1/16 of --memory. `auto` is 1/16 of
    /// --memory, at most 8MiB.
    value_bytes_max: Or<Measured, ByteSize> = "auto",
        bounds(VALUE_BYTES_MIN, VALUE_BYTES_MAX), not_with(&["proxy"]);

    /// Time after which a silent connection is closed.
    idle: Span = "10m", not_with(&["proxy"]);
}

impl CacheConfig {
    /// Checks the bounds that concern several settings.
    fn check_together(&self, reader: &SettingsReader<'_>) -> Result<()> {
        let value_bytes_max = self.memory.0 / VALUE_PART;
        if self.value_bytes_max.get().is_some_and(|size| size.0 > value_bytes_max) {
            let expected = format!("at most 1/{VALUE_PART} of --memory, {}", self.memory);
            return Err(reader.refuse("value-bytes-max", expected));
        }
        let logs = [("audit-log", &self.audit_log)];
        log_files::check(reader, &logs, &self.inputs(), self.own_folders())?;
        let admin = self.admin_listen.get();
        let listens = [Some(&self.listen), admin.as_ref()].into_iter().flatten();
        if let Some(origin) = self.proxy.get()
            && listens.flat_map(Addresses::all).any(|listen| origin.is_at(*listen))
        {
            let expected = "the address of the database, not one of --listen or --admin-listen";
            return Err(reader.refuse("proxy", expected));
        }
        Ok(())
    }

    /// Checks that the folder is not among the files of a database.
    ///
    /// # Errors
    /// `Invalid`, naming the database.
    pub(crate) fn check_folder(&self) -> Result<()> {
        let refuse = |own| {
            let data = &self.data;
            Err(Error::invalid(format!("--data: {data} is in {own}; choose another folder")))
        };
        OwnFolder::around(&self.data, None).map_or(Ok(()), refuse)
    }

    /// The size of the largest value of a set or get.
    pub(crate) fn value_bytes_max(&self) -> u64 {
        let default = VALUE_BYTES_DEFAULT.min(self.memory_bytes() / VALUE_PART);
        self.value_bytes_max.get().map_or(default, |size| size.0)
    }

    /// The settings of files that are read.
    fn inputs(&self) -> [(&'static str, &Or<Unset, FilePath>); 4] {
        [
            ("web-config", &self.web_config),
            ("token-file", &self.token_file),
            ("origin-ca-file", &self.origin_ca_file),
            ("origin-identity-file", &self.origin_identity_file),
        ]
    }

    /// Finds the folder of the cache or of a database that a file is in.
    fn own_folders(&self) -> impl Fn(&Path) -> Option<String> + Send + Sync + use<> {
        let data = self.data.clone();
        move |path| {
            let is_own = real_path(path).starts_with(real_path(&data));
            let own = is_own.then(|| format!("--data, {data}"));
            own.or_else(|| OwnFolder::around(path, None).map(|own| own.to_string()))
        }
    }

    /// Users and TLS of the listener.
    pub(crate) fn gate_options(&self, token: Option<Secret>) -> GateOptions {
        let path = |setting: &Or<Unset, FilePath>| setting.get().map(|path| path.0);
        GateOptions {
            file: path(&self.web_config),
            audit_log: path(&self.audit_log),
            requires_auth: self.require_auth.is_on(),
            token,
            forbidden: ForbiddenFiles {
                inputs: log_files::input_files(&self.inputs()),
                own: Some(Arc::new(self.own_folders())),
            },
            is_http: true,
            refuses_matchers: true,
        }
    }

    /// Settings that take effect otherwise than they are typed.
    fn warnings(&self) -> Vec<String> {
        machine::warn_of(self.memory).into_iter().collect()
    }

    /// The memory limit that is in force: at most the memory of the machine.
    pub fn memory_bytes(&self) -> u64 {
        machine::usable(self.memory.0)
    }

    /// Reads the token that clients must send, if there is one: the first line of the file,
    /// trimmed.
    ///
    /// # Errors
    /// `Invalid` when the file cannot be read or contains no token.
    pub fn read_token(&self) -> Result<Option<Secret>> {
        let Some(path) = self.token_file.get() else { return Ok(None) };
        let text = read_text_once(&path.0, "--token-file")?;
        let token = text.lines().next().unwrap_or_default().trim().to_owned();
        let is_word = token.bytes().all(|byte| byte.is_ascii_graphic());
        if token.is_empty() || token.len() > TOKEN_BYTES_MAX || !is_word {
            return Err(Error::invalid(format!(
                "--token-file {path}: expected a token of 1 to {TOKEN_BYTES_MAX} printable \
                 characters without blanks in its first line"
            )));
        }
        Ok(Some(Secret::new(token)))
    }
}
