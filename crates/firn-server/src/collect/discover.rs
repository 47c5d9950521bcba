//! The targets of a job's discoveries without a server, for `firn check service-discovery`.

use std::time::Duration;

use firn_collect::config::ScrapeConfig;
use firn_collect::discovery::Provider;
use firn_collect::pool::DiscoveredGroup;
use firn_model::{Budget, Error, Result};
use tokio::runtime::Builder;

use super::discovery::DiscoveryTasks;

/// The result of [`discover`].
#[derive(Debug, Default)]
pub struct FoundTargets {
    /// The groups of the discoveries that have answered.
    pub groups: Vec<DiscoveredGroup>,
    /// A sentence for each discovery that has failed or not answered.
    pub failures: Vec<String>,
}

// Answers of many discoveries have some megabytes.
const MEMORY_BYTES_MAX: u64 = 512 << 20;

/// Runs the discoveries of `job` other than static targets and files. Returns once each of them has
/// a list or has failed, after `timeout` at the latest.
///
/// # Errors
/// `Invalid` for an address that is not supported, `Unavailable` without a runtime.
pub fn discover(job: &ScrapeConfig, timeout: Duration) -> Result<FoundTargets> {
    let place = format!("job {:?}", job.job_name);
    let mut providers = Provider::implemented(&job.discoveries, &place)?;
    providers.retain(|one| !matches!(one, Provider::Static(_) | Provider::File(_)));
    if providers.is_empty() {
        return Ok(FoundTargets::default());
    }
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::unavailable("cannot start discoveries").because(e))?;
    let found = runtime.block_on(async {
        let tasks = DiscoveryTasks::new("check", &Budget::new(MEMORY_BYTES_MAX));
        tasks.set([(place.clone(), providers)]);
        let mut changes = tasks.changes();
        let answered =
            async { while tasks.lists(&place).is_none() && changes.changed().await.is_ok() {} };
        let is_complete = tokio::time::timeout(timeout, answered).await.is_ok();
        let mut found = FoundTargets { groups: Vec::new(), failures: tasks.failures(&place) };
        for list in tasks.known_lists(&place) {
            found.groups.extend(list.groups.iter().cloned());
        }
        if !is_complete {
            let seconds = timeout.as_secs_f64();
            found.failures.push(format!("a discovery has no answer after {seconds} s"));
        }
        found
    });
    // A lookup that hangs is not waited for.
    runtime.shutdown_background();
    Ok(found)
}
