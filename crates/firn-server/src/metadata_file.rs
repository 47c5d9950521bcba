//! Metadata on disk: loaded when the database opens, saved some time after a change. Lost changes
//! come again, because senders repeat metadata.

use std::sync::Arc;
use std::time::Duration;

use firn_model::{Pool, Result};
use tokio::time::MissedTickBehavior;

use crate::app::App;
use crate::metadata::MetadataStore;
use crate::net::{Stopping, stopped};
use firndb::Db;

// Senders repeat metadata every minute; most repetitions change nothing.
const INTERVAL: Duration = Duration::from_secs(30);

/// Fills `store` with the metadata in the database's folder. A damaged file is the same as none.
pub(crate) fn load(store: &MetadataStore, db: &Db) {
    store.open(db.budget());
    let loaded = db.load_metadata().and_then(|payload| match payload {
        Some(payload) => store.decode(&payload),
        None => Ok(()),
    });
    if let Err(error) = loaded {
        tracing::warn!(
            %error,
            "types and help texts of metrics were not loaded; senders will repeat them"
        );
    }
    store.set_saved();
}

/// Saves `store` if it has changed since it was saved. Blocks on the disk.
///
/// # Errors
/// `Busy` without memory, `Unavailable` if the disk fails or is full.
pub(crate) fn save(store: &MetadataStore, db: &Db) -> Result<()> {
    store.save(|| {
        let mut held = db.budget().empty(Pool::Jobs);
        db.save_metadata(&store.encode(&mut held)?)
    })
}

/// As [`save`]; a failure is logged, because the next call tries again.
pub(crate) fn save_or_log(store: &MetadataStore, db: &Db) {
    if let Err(error) = save(store, db) {
        tracing::warn!(%error, "types and help texts of metrics were not saved");
    }
}

/// Saves after changes, until the server stops.
pub(crate) async fn keep(app: Arc<App>, mut stopping: Stopping) {
    if app.config.read_only.is_on() {
        return;
    }
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stopped(&mut stopping) => return,
            _ = ticks.tick() => {
                let Some(ready) = app.ready() else { continue };
                let (shared, db) = (Arc::clone(&app), Arc::clone(&ready.db));
                // Refused while the server is overloaded; then it is saved later.
                let _ = ready.write(move |_, _| save_or_log(&shared.metadata, &db)).await;
            }
        }
    }
}
