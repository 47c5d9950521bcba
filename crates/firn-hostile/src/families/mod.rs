//! The tables, one file per family, and the values that they share.

pub(crate) mod origin;
pub(crate) mod peer;

mod alertmanagers;
mod browsers;
mod cache_protocol;
mod collecting;
mod connections;
mod deletes;
mod discovery;
mod discovery_apis;
mod files;
mod framing;
mod idle_clients;
mod json_bodies;
mod labels;
mod large_answers;
mod logins;
mod logs;
mod metadata;
mod neighbours;
mod proxies;
mod queries;
mod receivers;
mod regexes;
mod rows;
mod rules;
mod scrapes;
mod slow_clients;
mod tls;
mod writes;

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::attack::Family;
use crate::client::{Request, form, post};
use crate::target::Target;
use crate::wire::{Message, series, snappy};

/// Every family, in the order in which they run.
pub(crate) const ALL: &[fn() -> Family] = &[
    writes::family,
    rows::of_few_series,
    rows::of_many_members,
    rows::late,
    rows::old,
    deletes::family,
    neighbours::family,
    queries::family,
    large_answers::family,
    labels::family,
    regexes::family,
    metadata::family,
    json_bodies::family,
    framing::family,
    slow_clients::family,
    idle_clients::family,
    browsers::family,
    cache_protocol::family,
    cache_protocol::with_token,
    proxies::family,
    tls::family,
    logins::family,
    logs::family,
    files::full_disk,
    files::folders,
    scrapes::family,
    discovery::family,
    discovery_apis::family,
    rules::family,
    alertmanagers::family,
    receivers::family,
    connections::family,
];

/// The time at which this program started, seconds. The load ends here, and queries are evaluated
/// here.
pub(crate) fn base_s() -> i64 {
    static BASE: OnceLock<i64> = OnceLock::new();
    *BASE.get_or_init(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.as_secs().cast_signed()
    })
}

/// A remote write of this message.
pub(crate) fn write(message: Message) -> Request {
    post("/api/v1/write").body(snappy(message.0))
}

/// A remote write of a large message.
pub(crate) fn write_made(make: impl Fn() -> Message + Send + Sync + 'static) -> Request {
    post("/api/v1/write").make(move || snappy(make().0))
}

/// A JSON body.
pub(crate) fn json(path: &str, text: impl Into<String>) -> Request {
    post(path).header("Content-Type", "application/json").body(text.into())
}

/// An instant query of the load.
pub(crate) fn query(text: impl AsRef<str>) -> Request {
    form("/api/v1/query", [("query", text.as_ref()), ("time", &base_s().to_string())])
}

/// A range query over the last hour in steps.
pub(crate) fn range(text: impl AsRef<str>, steps: i64) -> Request {
    let step = (3_600.0 / steps as f64).to_string();
    let (start, end) = ((base_s() - 3_600).to_string(), base_s().to_string());
    let pairs = [("query", text.as_ref()), ("start", &start), ("end", &end), ("step", &step)];
    form("/api/v1/query_range", pairs)
}

/// Writes the series `load{instance,job,path}`, 20 samples each.
///
/// # Errors
/// If the server refuses them.
pub(crate) fn load(target: &Target, count: usize) -> Result<(), String> {
    const BATCH: usize = 1_000;
    for first in (0..count).step_by(BATCH) {
        let mut request = Message::default();
        for n in first..(first + BATCH).min(count) {
            let (instance, path) = (format!("host-{:03}", n % 100), format!("/path/{n}"));
            let labels =
                [("__name__", "load"), ("instance", &instance), ("job", "load"), ("path", &path)];
            let samples: Vec<(i64, f64)> = (0..20)
                .map(|idx| ((base_s() - 285 + 15 * idx) * 1_000, (n as i64 * idx) as f64))
                .collect();
            request = request.message(1, series(&labels, &samples));
        }
        let answer = write(request).send(target);
        if answer.status != 204 {
            return Err(format!("cannot write the load: {}", answer.excerpt()));
        }
    }
    Ok(())
}

/// The labels of one series of the load, as JSON.
pub(crate) fn load_labels() -> String {
    r#"{"__name__":"load","instance":"host-000","job":"load","path":"/path/0"}"#.to_owned()
}
