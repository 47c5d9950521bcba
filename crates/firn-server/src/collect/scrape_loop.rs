//! The scrapes of a server. One thread starts them, reads the answers of all targets and turns
//! those of usual size into rows; [`super::commits`] writes these. Workers do the rest, so that a
//! long body or new series delay no other scrape.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use firn_collect::config::ScrapeProtocol;
use firn_collect::pool::{Due, ScrapePool, TargetId, Work};
use firn_collect::scrape::{
    Answer, BodyFormat, FetchFailure, ScrapeScratch, Store as _, TargetScraper,
};
use firn_fetch::Response;
use firn_model::{Error, Result, Timestamp};
use firndb::WriteReport;
use tokio::runtime::Builder;

use super::collector::{Collector, ScrapeAnswer, Scraped, Scraping, TargetOutcome};
use super::families::TargetFamilies;
use super::store::{ScrapeStore, copy_of};
use crate::app::App;
use crate::net::{Stopping, stopped};
use crate::tally::{Protocol, Tally};

// A longer body takes over a millisecond, in which other scrapes would be late.
const BODY_BYTES_HERE_MAX: usize = 256 << 10;
// As text, such a body may have 64 times its length.
const PROTOBUF_BYTES_HERE_MAX: usize = 32 << 10;
// Most blocking threads wait: for names, files and lists of targets.
const BLOCKING_THREADS_MAX: usize = 16;
// The scraping thread releases freed memory this often. It is never idle for long.
const RELEASE_INTERVAL: Duration = Duration::from_secs(5);
// Memory for a list that was refused is looked for this often: reading a list of 100,000 targets
// takes a second.
const REFUSED_RETRY: Duration = Duration::from_secs(60);

/// Scrapes the jobs of the file, until the service stops.
pub(crate) async fn run(app: Arc<App>, stopping: Stopping) {
    let Some(collector) = app.collect.as_ref().map(|collect| Arc::clone(&collect.collector)) else {
        return;
    };
    if let Err(error) = start(&collector, &app, &stopping) {
        tracing::error!(%error, "targets are not scraped");
        return;
    }
    follow(app, collector, stopping).await;
}

/// Starts the threads for the open database.
fn start(collector: &Arc<Collector>, app: &Arc<App>, stopping: &Stopping) -> Result<()> {
    let Some(ready) = app.ready() else { return Ok(()) };
    let budget = ready.db.budget();
    if let Some(collect) = &app.collect {
        collect.file.limit_memory(budget);
    }
    let label_count_max = app.config.label_limits().label_count_max;
    let running = collector.open(budget, label_count_max, app.on_idle)?;
    let scraping = start_scraping(collector, app, stopping.clone())?;
    let threads = [scraping, start_committing(collector, app)?];
    running.threads.lock().extend(threads);
    Ok(())
}

/// One thread for all targets: the parts of an answer wake no other thread.
fn start_scraping(
    collector: &Arc<Collector>,
    app: &Arc<App>,
    stopping: Stopping,
) -> Result<JoinHandle<()>> {
    let cannot = |e: io::Error| Error::unavailable("cannot start the scraping thread").because(e);
    let mut builder = Builder::new_current_thread();
    builder.enable_all().max_blocking_threads(BLOCKING_THREADS_MAX);
    let runtime = builder.thread_name("firn-scrape-wait").build().map_err(cannot)?;
    let (app, collector) = (Arc::clone(app), Arc::clone(collector));
    std::thread::Builder::new()
        .name("firn-scrape".to_owned())
        .spawn(move || {
            runtime.block_on(pace(app, collector, stopping));
            // A lookup that hangs is not waited for.
            runtime.shutdown_background();
        })
        .map_err(cannot)
}

fn start_committing(collector: &Arc<Collector>, app: &Arc<App>) -> Result<JoinHandle<()>> {
    let (app, collector) = (Arc::clone(app), Arc::clone(collector));
    let commit = move || {
        let (Some(running), Some(ready)) = (collector.running.get(), app.opened()) else {
            return;
        };
        running.commits.run(
            |rows, generation| ready.db.write_known(rows, generation),
            |row_count, written, scrapes| committed(running, &app, row_count, written, scrapes),
            app.on_idle,
        );
    };
    let thread = std::thread::Builder::new().name("firn-commit".to_owned()).spawn(commit);
    thread.map_err(|e| Error::unavailable("cannot start the committing thread").because(e))
}

/// Sets jobs and targets whenever the file or a list changes.
async fn follow(app: Arc<App>, collector: Arc<Collector>, mut stopping: Stopping) {
    let mut wanted = collector.wanted.subscribe();
    let Some(mut lists) = collector.state().map(|state| state.tasks.changes()) else { return };
    loop {
        let (app, shared) = (Arc::clone(&app), Arc::clone(&collector));
        let setting = tokio::task::spawn_blocking(move || set_targets(&shared, &app));
        if setting.await.is_err() {
            tracing::error!("a list of targets panicked, which is a bug");
        }
        // Other work may have released memory for a list that was refused.
        let is_refused = |(_, pool): (&str, &ScrapePool)| pool.refused().is_some();
        let retries = collector.state().is_some_and(|state| state.pools.pools().any(is_refused));
        tokio::select! {
            () = stopped(&mut stopping) => return,
            _ = wanted.changed() => {}
            _ = lists.changed() => {}
            () = tokio::time::sleep(REFUSED_RETRY), if retries => {}
        }
    }
}

/// Sets the jobs of the file and the targets of each job whose lists have changed. Needs the
/// context of the runtime.
fn set_targets(collector: &Collector, app: &App) {
    let Some(running) = collector.running.get() else { return };
    let Some(file) = collector.wanted.borrow().clone() else { return };
    if !running.has_jobs_of(&file) {
        running.failures.set(&file.jobs, &app.forbidden_files());
        running.set_jobs(&file, now(app));
    }
    for job in &file.jobs {
        if let Some(lists) = running.new_lists(&job.job_name) {
            running.set_targets(job, lists, &|| now(app));
        }
    }
    running.state.lock().forget_gone();
    running.wake.notify_one();
}

/// Starts the work that is due, at its time.
async fn pace(app: Arc<App>, collector: Arc<Collector>, mut stopping: Stopping) {
    let Some(running) = collector.running.get() else { return };
    let mut released = Instant::now();
    loop {
        let (due, sleep_ms) = running.take_due(now(&app));
        for due in due {
            tokio::spawn(work(Arc::clone(&app), Arc::clone(&collector), due));
        }
        if released.elapsed() >= RELEASE_INTERVAL {
            released = Instant::now();
            (app.on_idle)();
        }
        let sleep = tokio::time::sleep(Duration::from_millis(sleep_ms));
        tokio::select! {
            () = stopped(&mut stopping) => return,
            () = running.wake.notified() => {}
            () = sleep => {}
        }
    }
}

/// The database's clock, which stamps samples.
fn now(app: &App) -> Timestamp {
    app.opened().map_or(0, |ready| ready.db.now_ms())
}

/// One scrape, or the end of a target.
async fn work(app: Arc<App>, collector: Arc<Collector>, due: Due) {
    let Some(running) = collector.running.get() else { return };
    let Due { id, mut scraper, work } = due;
    let begun = Instant::now();
    let is_scrape = matches!(work, Work::Scrape { .. });
    if is_scrape {
        running.totals.begun(&mut scraper, begun);
    }
    let fetched = match &work {
        Work::Scrape { refused: Some(refused), .. } => {
            Some(Err(FetchFailure::Other(refused.to_string())))
        }
        Work::Scrape { refused: None, .. } => Some(running.scrape(id, &scraper, begun).await),
        Work::End { .. } => None,
    };
    if let (Work::Scrape { ts, .. }, Some(fetched)) = (&work, &fetched)
        && is_usual(&scraper, fetched)
    {
        let reading = || read(running, &app, (id, scraper), (*ts, fetched), begun);
        if catch_unwind(AssertUnwindSafe(reading)).is_err() {
            running.lost(id, "reading an answer panicked, which is a bug", now(&app));
        }
        return;
    }
    let shared = Arc::clone(&app);
    let done = running.workers.run(move |scratch| {
        let ready = shared.opened()?;
        let mut store = ScrapeStore::new(&ready.db, shared.config.label_limits());
        Some(write(&shared, scraper, (&work, fetched), begun, &mut store, scratch))
    });
    match done.await {
        Ok(Some(outcome)) => {
            if is_scrape {
                running.failures.add(&outcome.scraper);
            }
            running.done(id, outcome, now(&app));
        }
        // The server stops.
        Ok(None) => {}
        Err(_) if app.ready().is_none() => {}
        Err(error) => running.lost(id, &error.to_string(), now(&app)),
    }
}

/// Whether turning an answer into rows takes a fraction of a millisecond: it fails, or most of its
/// lines are known.
fn is_usual(scraper: &TargetScraper, fetched: &ScrapeAnswer) -> bool {
    match fetched {
        Ok(response) => {
            let fallback = scraper.job().fallback_scrape_protocol.as_ref();
            let bytes_max = body_bytes_here_max(response.content_type(), fallback);
            scraper.is_steady() && response.body.len() <= bytes_max
        }
        Err(_) => true,
    }
}

/// The longest body of a type that is read by the scraping thread.
fn body_bytes_here_max(content_type: Option<&str>, fallback: Option<&ScrapeProtocol>) -> usize {
    match BodyFormat::of(content_type, fallback) {
        Ok(BodyFormat::Protobuf) => PROTOBUF_BYTES_HERE_MAX,
        _ => BODY_BYTES_HERE_MAX,
    }
}

/// The answer as a scraper reads it. `status` is the text of its status.
fn answer_of<'a>(
    fetched: &'a ScrapeAnswer,
    status: &'a str,
) -> std::result::Result<Answer<'a>, FetchFailure> {
    match fetched {
        Ok(response) => {
            Ok(Answer { status, content_type: response.content_type(), body: &response.body })
        }
        Err(failure) => Err(failure.clone()),
    }
}

fn status_of(fetched: &ScrapeAnswer) -> String {
    fetched.as_ref().map(Response::status_text).unwrap_or_default()
}

/// Hides the credentials that a target repeats in its body from the error that quotes it.
fn hide_secrets(scraper: &mut TargetScraper, fetched: &ScrapeAnswer) {
    if let Ok(response) = fetched {
        scraper.hide_in_error(|error| response.without_secrets(error));
    }
}

/// Turns an answer into rows, which wait for the next commit.
fn read(
    running: &Scraping,
    app: &App,
    (id, mut scraper): (TargetId, Box<TargetScraper>),
    (ts, fetched): (Timestamp, &ScrapeAnswer),
    begun: Instant,
) {
    let Some(ready) = app.opened() else { return };
    let mut store = ScrapeStore::new(&ready.db, app.config.label_limits());
    let mut scratch = running.scratch.lock();
    let status = status_of(fetched);
    let answer = answer_of(fetched, &status);
    let elapsed = || begun.elapsed();
    let reported = scraper.read(ts, answer, &elapsed, &mut store, &mut scratch);
    hide_secrets(&mut scraper, fetched);
    running.failures.add(&scraper);
    let families = account(app, &scraper, &mut store);
    running.state.lock().families.put(id, families);
    let scraped = Scraped { id, scraper, reported };
    let added = running.commits.add(scraped, scratch.rows(), store.generation());
    if let Err((scraped, error)) = added {
        committed(running, app, scratch.rows().len(), &Err(error), &mut vec![scraped]);
    }
    scratch.clear();
}

/// Scrapes with `row_count` samples in all were written, or are lost.
fn committed(
    running: &Scraping,
    app: &App,
    row_count: usize,
    written: &Result<WriteReport>,
    scrapes: &mut Vec<Scraped>,
) {
    let mut tally = Tally::of(row_count as u64);
    running.totals.out_of_bounds(tally.add_outcome(written));
    let why = written.as_ref().map_or_else(ToString::to_string, |report| why_refused(app, report));
    app.telemetry.tally(Protocol::Scrape, &tally, &why);
    let scrapers: Vec<(TargetId, Box<TargetScraper>)> = scrapes
        .drain(..)
        .map(|Scraped { id, mut scraper, reported }| {
            let written = written.as_ref().map(|_| 0).map_err(copy_of);
            scraper.written(&written);
            running.totals.finished(&scraper, &reported.and(written.map(|_| ())));
            (id, scraper)
        })
        .collect();
    running.bring_back(scrapers, now(app));
}

/// Counts the refused and stored samples of a scrape, and keeps its metadata.
fn account(app: &App, scraper: &TargetScraper, store: &mut ScrapeStore<'_>) -> TargetFamilies {
    let target = scraper.public_labels();
    let why = store.refusal.as_ref().map_or_else(String::new, |why| format!("{target}: {why}"));
    app.telemetry.tally(Protocol::Scrape, &store.tally, &why);
    let families = TargetFamilies::of(store.metadata.entries());
    app.metadata.put(&mut store.metadata);
    families
}

/// The reason why samples of a commit were left out, if any were.
fn why_refused(app: &App, report: &WriteReport) -> String {
    let refused = report.refused_ts.zip(app.ready()).and_then(|(ts, ready)| {
        let times = ready.db.accepted_times();
        times.refusal(ts).map(|refusal| times.explain(ts, refusal).to_string())
    });
    refused.unwrap_or_default()
}

/// Turns the answer into rows and writes them.
fn write(
    app: &App,
    mut scraper: Box<TargetScraper>,
    (work, fetched): (&Work, Option<ScrapeAnswer>),
    begun: Instant,
    store: &mut ScrapeStore<'_>,
    scratch: &mut ScrapeScratch,
) -> TargetOutcome {
    let written = match work {
        Work::Scrape { ts, .. } => {
            let none = || Err(FetchFailure::Other(String::new()));
            let fetched = fetched.unwrap_or_else(none);
            let status = status_of(&fetched);
            let answer = answer_of(&fetched, &status);
            let written = scraper.finish(*ts, answer, &|| begun.elapsed(), store, scratch);
            hide_secrets(&mut scraper, &fetched);
            written
        }
        Work::End { ts, alive } => {
            scraper.end(*ts, &|series| alive.contains(&series), store, scratch)
        }
    };
    let families = account(app, &scraper, store);
    TargetOutcome { scraper, families, written }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Before, protobuf bodies of 200 KB, which are 13 MB as text, were read by the scraping
    /// thread: 100 such targets made most scrapes of others time out.
    #[test]
    fn the_scraping_thread_reads_shorter_protobuf_bodies() {
        let proto = Some("application/vnd.google.protobuf; encoding=delimited");
        let fallback = Some(&ScrapeProtocol::PrometheusProto);
        for (content_type, fallback, want) in [
            (Some("text/plain; version=0.0.4"), fallback, BODY_BYTES_HERE_MAX),
            (None, None, BODY_BYTES_HERE_MAX),
            (proto, None, PROTOBUF_BYTES_HERE_MAX),
            (None, fallback, PROTOBUF_BYTES_HERE_MAX),
        ] {
            assert_eq!(body_bytes_here_max(content_type, fallback), want, "{content_type:?}");
        }
    }
}
