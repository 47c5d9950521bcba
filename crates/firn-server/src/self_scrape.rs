//! The server scrapes itself, so that a newcomer has data to look at from the first second. These
//! samples are written as an import.

use std::sync::Arc;
use std::time::{Duration, Instant};

use firn_model::{Error, Result, Timestamp};
use tokio::time::MissedTickBehavior;

use crate::app::{App, Ready};
use crate::metadata::MetadataBatch;
use crate::metrics_text::{Kind, MetricsText};
use crate::net::{Stopping, stopped};
use crate::tally::Protocol;
use crate::target::{Scrape, Target};
use crate::wire::exposition::ExtraLabels;

/// Scrapes at once and then at the configured interval, until `stop` is true.
pub(crate) async fn run(app: Arc<App>, mut stop: Stopping) {
    let Some(target) = &app.target else { return };
    let labels = [("job", target.job.clone()), ("instance", target.address.to_string())];
    let extra = ExtraLabels(labels.map(|(name, value)| (name.to_owned(), value)).to_vec());
    let mut ticks = tokio::time::interval(target.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stopped(&mut stop) => return,
            _ = ticks.tick() => scrape(&app, target, &extra).await,
        }
    }
}

async fn scrape(app: &Arc<App>, target: &Target, extra: &ExtraLabels) {
    let Some(ready) = app.ready() else { return };
    let (ts, begun) = (ready.db.now_ms(), Instant::now());
    let timeout = target.timeout();
    let written = tokio::time::timeout(timeout, write(app, ready, extra, ts))
        .await
        .unwrap_or_else(|_| Err(Error::unavailable(format!("not written within {timeout:?}"))));
    let error = written.err().map(|error| error.to_string());
    app.telemetry.self_scrape_failures.add(u64::from(error.is_some()));
    let scrape = Scrape { ts, took: begun.elapsed(), error };
    if let Some((error, count)) = target.scraped(scrape) {
        tracing::warn!(error, count, "the server could not scrape itself");
    }
}

async fn write(app: &Arc<App>, ready: &Ready, extra: &ExtraLabels, ts: Timestamp) -> Result<()> {
    let (shared, extra) = (Arc::clone(app), extra.clone());
    let written = ready.write(move |ingest, scratch| {
        let Some(target) = &shared.target else { return Ok(()) };
        let begun = Instant::now();
        let mut text = shared.metrics();
        text.push_str(&about(&text, begun.elapsed()));
        let told = &target.metadata;
        let outcome = ingest.own_exposition(text.as_bytes(), ts, &extra, scratch, told)?;
        shared.telemetry.tallies.add(Protocol::SelfScrape, &outcome.tally);
        let mut all = MetadataBatch::default();
        told.visit(None, usize::MAX, |name, metadata| {
            all.push(name, metadata.clone(), usize::MAX);
            Ok(())
        })?;
        shared.metadata.put(&mut all);
        outcome.error.map_or(Ok(()), Err)
    });
    written.await?
}

/// The series that Prometheus adds to a scrape, such as `up` and `scrape_duration_seconds`.
fn about(scraped: &str, took: Duration) -> String {
    let samples =
        scraped.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count() as f64;
    let mut text = MetricsText::default();
    for (name, help, value) in [
        ("up", "Whether the last scrape succeeded.", 1.0),
        ("scrape_duration_seconds", "How long the last scrape took.", took.as_secs_f64()),
        ("scrape_samples_scraped", "Samples of the last scrape.", samples),
    ] {
        text.family(name, Kind::Gauge, help);
        text.sample(name, &[], value);
    }
    text.finish()
}
