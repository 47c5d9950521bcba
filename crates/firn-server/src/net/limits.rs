//! The limits of a service's connections, which the limit on open files may reduce.

/// Connections that are not admitted: those before their first request, and those whose request
/// waits for admission or needs none. Fewer if the process may have few open files.
pub(super) const PENDING_MAX: usize = 128;
// Tables, log segments and index files that are open at the same time, with room for a merge.
const DATABASE_FILES: u64 = 256;

/// Limits of a service's connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    pub(crate) connections_max: usize,
    pub(crate) pending_max: usize,
    /// Connections of one client: an address, or an IPv6 network of 64 bits.
    pub(crate) per_client_max: usize,
    /// The same for clients on this machine.
    pub(crate) per_local_client_max: usize,
}

impl ConnectionLimits {
    /// Without `per_client_max` a client may have half of the connections, and one on this machine
    /// all of them.
    pub(crate) fn new(connections_max: usize, per_client_max: Option<usize>) -> ConnectionLimits {
        ConnectionLimits {
            connections_max,
            pending_max: PENDING_MAX,
            per_client_max: per_client_max.unwrap_or(connections_max.div_ceil(2)),
            per_local_client_max: per_client_max.unwrap_or(connections_max),
        }
    }

    /// The same, reduced to the connections that the limit on open files allows beside the files of
    /// a database.
    pub(crate) fn within_open_files(
        connections_max: usize,
        per_client_max: Option<usize>,
    ) -> ConnectionLimits {
        ConnectionLimits::within(firn_env::open_files_max(), connections_max, per_client_max)
    }

    /// The database keeps its files, at most half of all. Connections have the rest, a quarter of
    /// which may be pending.
    fn within(
        files: u64,
        connections_max: usize,
        per_client_max: Option<usize>,
    ) -> ConnectionLimits {
        let usable = files.saturating_sub(DATABASE_FILES).max(files / 2);
        let usable = usize::try_from(usable).unwrap_or(usize::MAX);
        let pending_max = (usable / 4).clamp(1, PENDING_MAX);
        let admitted_max = connections_max.min(usable.saturating_sub(pending_max)).max(1);
        ConnectionLimits { pending_max, ..ConnectionLimits::new(admitted_max, per_client_max) }
    }

    /// Requests that wait for admission; further ones are refused at once. The other pending
    /// connections are left to requests that need no admission.
    pub(super) fn waiting_max(&self) -> usize {
        self.pending_max / 2
    }

    /// Evicted connections that still have their descriptors. Their tasks close them at once, but a
    /// flood would be accepted faster.
    pub(super) fn closing_max(&self) -> usize {
        (self.pending_max / 4).max(1)
    }
}

/// Raises this process's limit on open files as far as the system allows. Returns a warning if that
/// is too few for `connections_max` connections, pending ones and the files of a database.
pub fn raise_open_files(connections_max: u64) -> Option<String> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If it fails, the current limit holds.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    // `None` is no limit.
    let files = getrlimit(Resource::Nofile).current?;
    let wanted = connections_max.saturating_add(PENDING_MAX as u64).saturating_add(DATABASE_FILES);
    (files < wanted).then(|| {
        let wanted_max = usize::try_from(connections_max).unwrap_or(usize::MAX);
        let usable = ConnectionLimits::within(files, wanted_max, None).connections_max;
        format!(
            "{files} files may be open, and --connections-max={connections_max} needs {wanted}: \
             the limit is {usable} connections; raise that on files (ulimit -n, LimitNOFILE)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_the_database() {
        let within = |files| {
            let limits = ConnectionLimits::within(files, 512, None);
            (limits.connections_max, limits.pending_max)
        };
        assert_eq!(within(u64::MAX), (512, PENDING_MAX));
        assert_eq!(within(1_024), (512, PENDING_MAX));
        // 444 in all, then 100 and 32.
        assert_eq!(within(700), (333, 111));
        assert_eq!(within(200), (75, 25));
        assert_eq!(within(64), (24, 8));
        assert_eq!(within(0), (1, 1));
    }
}
