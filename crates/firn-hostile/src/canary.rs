//! The data that must survive: written and acknowledged before each attack, read after it.

use std::time::Duration;

use serde_json::Value;

use crate::client::{Answer, CLOSED, TEXT, exchange_to_end, form, get, insist, post};
use crate::families::base_s;
use crate::target::{Kind, Target};
use crate::wire::{Message, series, snappy};

/// After an attack the server may be busy for this time.
const BUSY_TIME_MAX: Duration = Duration::from_secs(15);
const SERIES: usize = 3;

/// All acknowledged samples.
#[derive(Default)]
pub(crate) struct Canary {
    /// Changes after a loss, so that each loss is reported once.
    generation: usize,
    acknowledged: usize,
}

impl Canary {
    /// Writes the next samples.
    ///
    /// # Errors
    /// If the server does not acknowledge them in time.
    pub(crate) fn write(&mut self, target: &Target) -> Result<(), String> {
        let (generation, number) = (self.generation, self.acknowledged);
        let busy = target.limit(BUSY_TIME_MAX);
        let time_max = if target.is_full { Duration::ZERO } else { busy };
        let answer = match target.kind {
            Kind::Database => insist(time_max, || write_samples(target, generation, number), 204),
            Kind::Cache => insist(time_max, || set_point(target, generation, number), TEXT),
            Kind::Proxy => return Ok(()),
        };
        let is_written = match target.kind {
            Kind::Cache => answer.text().contains("STORED "),
            _ => answer.status == 204,
        };
        if target.is_full && answer.status == 503 {
            return Ok(());
        }
        if !is_written {
            return Err(format!("a regular write is not acknowledged: {}", answer.excerpt()));
        }
        self.acknowledged += 1;
        Ok(())
    }

    /// Compares all samples with those that were acknowledged.
    ///
    /// # Errors
    /// If one is missing or wrong, or the server does not answer in time.
    pub(crate) fn verify(&mut self, target: &Target) -> Result<(), String> {
        let verified = match target.kind {
            Kind::Database => self.verify_samples(target),
            Kind::Cache => self.verify_points(target),
            Kind::Proxy => verify_origin(target),
        };
        if verified.is_err() {
            self.generation += 1;
            self.acknowledged = 0;
        }
        verified
    }

    fn verify_samples(&self, target: &Target) -> Result<(), String> {
        if self.acknowledged == 0 {
            return Ok(());
        }
        let time = base_s().to_string();
        let selector = format!("canary{{generation=\"{}\"}}[1h]", self.generation);
        let query = [("query", &selector), ("time", &time)];
        let busy = target.limit(BUSY_TIME_MAX);
        let answer = insist(busy, || form("/api/v1/query", query).send(target), 200);
        let json: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let result = json["data"]["result"].as_array().map(Vec::as_slice).unwrap_or_default();
        if result.len() != SERIES {
            let excerpt = answer.excerpt();
            return Err(format!("{} canaries, expected {SERIES}: {excerpt}", result.len()));
        }
        for one in result {
            let n: usize =
                one["metric"]["n"].as_str().and_then(|n| n.parse().ok()).unwrap_or(usize::MAX);
            let found: Vec<(i64, f64)> = one["values"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|point| {
                    let value = point[1].as_str().and_then(|value| value.parse().ok());
                    (point[0].as_f64().unwrap_or(0.0) as i64, value.unwrap_or(f64::NAN))
                })
                .collect();
            let wanted: Vec<(i64, f64)> =
                (0..self.acknowledged).map(|number| canary_sample(number, n)).collect();
            if found != wanted {
                let difference = found.iter().zip(&wanted).find(|(found, wanted)| found != wanted);
                return Err(format!(
                    "acknowledged data is lost or wrong: series {n} has {} samples, expected {}; \
                     first difference {difference:?}",
                    found.len(),
                    wanted.len()
                ));
            }
        }
        Ok(())
    }

    fn verify_points(&self, target: &Target) -> Result<(), String> {
        let Some(last) = self.acknowledged.checked_sub(1) else { return Ok(()) };
        let answer = insist(
            target.limit(BUSY_TIME_MAX),
            || {
                let generation = self.generation;
                let line = format!("get canary-{generation} 0 {last} {last} json 0\r\nquit\r\n");
                exchange_to_end(target, &target.with_token(&line)).pop().unwrap_or_default()
            },
            TEXT,
        );
        let text = answer.text();
        // A cache may forget, but not change.
        let is_right = text.contains("NOT_FOUND") || text.contains(&point(last));
        if is_right { Ok(()) } else { Err(format!("a cached point is wrong: {text:?}")) }
    }
}

fn canary_sample(number: usize, n: usize) -> (i64, f64) {
    (base_s() - 3_000 + number as i64, (number * SERIES + n) as f64)
}

fn write_samples(target: &Target, generation: usize, number: usize) -> Answer {
    let request = (0..SERIES).fold(Message::default(), |request, n| {
        let (ts_s, value) = canary_sample(number, n);
        let (generation, n) = (generation.to_string(), n.to_string());
        let labels = [("__name__", "canary"), ("generation", &generation), ("n", &n)];
        request.message(1, series(&labels, &[(ts_s * 1_000, value)]))
    });
    post("/api/v1/write").body(snappy(request.0)).send(target)
}

fn point(number: usize) -> String {
    format!("[[{number},\"canary {number}\"]]")
}

fn set_point(target: &Target, generation: usize, number: usize) -> Answer {
    let point = point(number);
    let request = format!(
        "set canary-{generation} 0 {number} {number} json {}\r\n{point}\r\nquit\r\n",
        point.len()
    );
    exchange_to_end(target, &target.with_token(&request))
        .pop()
        .unwrap_or_else(|| Answer::of_status(CLOSED))
}

/// A range query through the proxy has the origin's values of this tenant.
fn verify_origin(target: &Target) -> Result<(), String> {
    let path = "/api/v1/query_range?query=canary&start=1700000000&end=1700000600&step=60";
    let send = || get(path).header("X-Scope-OrgID", "canary").send(target);
    let answer = insist(target.limit(BUSY_TIME_MAX), send, 200);
    match answer.status == 200 && answer.text().contains("\"tenant\":\"canary\"") {
        true => Ok(()),
        false => Err(format!("a query through the proxy fails: {}", answer.excerpt())),
    }
}
