//! The server scrapes itself, so that a newcomer has data to look at from the first second. The way
//! of these samples is that of an import.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::app::App;
use crate::http::serve::stopped;
use crate::telemetry::{Kind, MetricsText};
use crate::wire::exposition::ExtraLabels;

/// Scrapes every `interval`, at once for the first time, until `stop` says true.
pub(crate) async fn run(app: Arc<App>, interval: Duration, mut stop: watch::Receiver<bool>) {
    let instance = app.listen.to_string();
    let extra =
        ExtraLabels(vec![("job".to_owned(), "firn".to_owned()), ("instance".to_owned(), instance)]);
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stopped(&mut stop) => return,
            _ = ticks.tick() => scrape(&app, &extra).await,
        }
    }
}

async fn scrape(app: &Arc<App>, extra: &ExtraLabels) {
    let Some(ready) = app.ready() else { return };
    let begun = Instant::now();
    let ts = ready.db.now_ms();
    let mut text = app.metrics();
    text.push_str(&about(&text, begun.elapsed()));
    let (shared, extra) = (Arc::clone(app), extra.clone());
    let written = ready.write(move |ingest, scratch| {
        ingest.exposition(text.as_bytes(), ts, &extra, scratch, &shared.metadata)
    });
    match written.await.and_then(|written| written) {
        Ok(outcome) => app.telemetry.written.samples_import.add(outcome.samples_written),
        Err(error) => {
            app.telemetry.self_scrape_failures.add(1);
            tracing::warn!(%error, "the server could not scrape itself");
        }
    }
}

/// What Prometheus adds to a scrape (specs/exposition.md 30).
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
