//! Memory that this process may use, and memory that it uses: from control groups and `/proc`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use firn_model::{Error, Result};

use crate::config::ByteSize;

/// Assumed if neither `/proc/meminfo` nor a control group can be read: a small machine.
const UNKNOWN_BYTES: u64 = 2 << 30;
// Control groups of version 1 report a number near this without a limit: the largest multiple of a
// page.
const NO_LIMIT_BYTES: u64 = 1 << 62;

/// Memory that this process may use, in bytes: that of the machine, or the smallest limit of its
/// control groups.
pub(crate) fn memory_bytes() -> u64 {
    known_memory_bytes().unwrap_or(UNKNOWN_BYTES)
}

/// The part of a memory limit of `bytes` that this process can use.
pub(crate) fn usable(bytes: u64) -> u64 {
    bytes.min(known_memory_bytes().unwrap_or(u64::MAX))
}

/// A warning if `memory`, a setting, exceeds the memory that this process may use.
pub(crate) fn warn_of(memory: ByteSize) -> Option<String> {
    let usable_mib = usable(memory.0) >> 20;
    (usable(memory.0) < memory.0).then(|| {
        format!(
            "--memory: {memory} is more than this machine or its control group has; the limit is \
             {usable_mib}MiB, all of it, and other programs may run out of memory: set less"
        )
    })
}

/// `None` where neither the machine's memory nor a limit can be read.
fn known_memory_bytes() -> Option<u64> {
    memory_bytes_of(&|path| fs::read_to_string(path).ok())
}

// Its stack, the stack of its signal handlers, and a guard page below each.
const THREAD_MAPPINGS: usize = 4;
/// Mappings that are left to the allocator and to files.
const SPARE_MAPPINGS: usize = 1_024;

/// Checks that the system has mappings of memory for `count` further threads. A thread that starts
/// without room for its signal stack would abort the process.
pub(crate) fn check_thread_mappings(count: usize) -> Result<()> {
    let read = |path| fs::read_to_string(path).ok();
    let maximum = read("/proc/sys/vm/max_map_count").and_then(|text| text.trim().parse().ok());
    let used = read("/proc/self/maps").map(|text| text.lines().count());
    match maximum.zip(used) {
        Some((maximum, used)) => check_mappings(count, maximum, used),
        // A system without these files has no such limit, or hides it.
        None => Ok(()),
    }
}

fn check_mappings(count: usize, maximum: usize, used: usize) -> Result<()> {
    let needed = count.saturating_mul(THREAD_MAPPINGS).saturating_add(SPARE_MAPPINGS);
    match maximum.saturating_sub(used) >= needed {
        true => Ok(()),
        false => Err(Error::unavailable(format!(
            "{count} threads need {needed} mappings of memory, and {used} of {maximum} are in use; \
             raise vm.max_map_count"
        ))),
    }
}

/// Resident anonymous memory of this process, in bytes. It excludes pages of files, which the
/// kernel reclaims by itself.
pub(crate) fn anonymous_bytes() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = statm.split_ascii_whitespace().skip(1).map(str::parse::<u64>);
    let (resident, of_files) = (pages.next()?.ok()?, pages.next()?.ok()?);
    Some(resident.saturating_sub(of_files) * rustix::param::page_size() as u64)
}

/// Warns of data that other users of the machine can read, as older versions created it. The modes
/// are not changed, because a backup may rely on them. `inner` is a folder in `folder`.
pub(crate) fn warn_if_readable(folder: &Path, inner: &str) {
    let is_open = |path: &Path| fs::metadata(path).is_ok_and(|found| found.mode() & 0o077 != 0);
    if is_open(folder) && is_open(&folder.join(inner)) {
        let folder = folder.display();
        tracing::warn!(
            "other users of this machine can read {folder}; if no program of theirs needs it, run: \
             chmod 700 {folder}"
        );
    }
}

fn memory_bytes_of(read: &dyn Fn(&str) -> Option<String>) -> Option<u64> {
    let machine = read("/proc/meminfo").and_then(|text| {
        let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        kib.trim().trim_end_matches(" kB").parse::<u64>().ok()?.checked_mul(1_024)
    });
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let limits = groups.lines().flat_map(|line| limits_of(line, read));
    machine.into_iter().chain(limits).min()
}

/// The limits in one line of `/proc/self/cgroup`, `number:controllers:path`: of that group and of
/// all above it.
///
/// In a container the path is usually `/`, or a path of the machine outside that is not visible
/// inside. The files of the container's own group are then at the top of the mount, which is read
/// last.
fn limits_of<'a>(
    line: &'a str,
    read: &'a dyn Fn(&str) -> Option<String>,
) -> impl Iterator<Item = u64> + 'a {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next().unwrap_or(""), fields.next().unwrap_or("/"));
    // Version 2 has one hierarchy, without controllers; `memory.high` slows a process down until it
    // hardly moves.
    let (mount, files): (&str, &[&str]) = if controllers.is_empty() {
        ("/sys/fs/cgroup", &["memory.max", "memory.high"])
    } else if controllers.split(',').any(|controller| controller == "memory") {
        ("/sys/fs/cgroup/memory", &["memory.limit_in_bytes"])
    } else {
        ("", &[])
    };
    let parents = std::iter::successors(Some(path.trim_end_matches('/')), |path| {
        path.rsplit_once('/').map(|(parent, _)| parent)
    });
    let paths = parents
        .flat_map(move |group| files.iter().map(move |file| format!("{mount}{group}/{file}")));
    // `max` is not a number and is skipped.
    paths
        .filter_map(|path| read(&path)?.trim().parse().ok())
        .filter(|&bytes| bytes < NO_LIMIT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)], expected: impl Into<Option<u64>>) {
        let read = |path: &str| {
            files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned())
        };
        assert_eq!(memory_bytes_of(&read), expected.into(), "{files:?}");
    }

    #[test]
    fn the_smallest_limit_counts() {
        let machine = ("/proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\n");
        check(&[], None);
        check(&[machine], 16 << 20);
        // Version 2, a service in a slice: the slice's limit is the smaller one.
        let own = ("/proc/self/cgroup", "0::/system.slice/firn.service\n");
        let own_max = ("/sys/fs/cgroup/system.slice/firn.service/memory.max", "8388608\n");
        check(&[machine, own, own_max], 8 << 20);
        check(
            &[machine, own, own_max, ("/sys/fs/cgroup/system.slice/memory.max", "4194304\n")],
            4 << 20,
        );
        check(
            &[machine, own, ("/sys/fs/cgroup/system.slice/firn.service/memory.max", "max\n")],
            16 << 20,
        );
        check(
            &[
                machine,
                own,
                own_max,
                ("/sys/fs/cgroup/system.slice/firn.service/memory.high", "2097152\n"),
            ],
            2 << 20,
        );
        // A container sees itself at the top, whatever its path outside.
        let container = ("/proc/self/cgroup", "0::/../../kubepods/pod-1\n");
        check(&[machine, container, ("/sys/fs/cgroup/memory.max", "1048576\n")], 1 << 20);
        check(
            &[machine, ("/proc/self/cgroup", "0::/\n"), ("/sys/fs/cgroup/memory.max", "1048576\n")],
            1 << 20,
        );
        // Version 1.
        let first = ("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/1\n0::/\n");
        let limit = ("/sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "3145728\n");
        check(&[machine, first, limit], 3 << 20);
        let none = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        check(&[machine, first, none], 16 << 20);
        // A group may be allowed more than the machine has.
        check(&[machine, own, ("/sys/fs/cgroup/memory.max", "1099511627776\n")], 16 << 20);
    }

    /// Before, the process aborted without a word about its settings.
    #[test]
    fn threads_without_mappings_are_refused() {
        check_mappings(1_024, 65_530, 1_000).unwrap();
        check_mappings(10, 2_064, 1_000).unwrap();
        let error = check_mappings(10, 2_063, 1_000).unwrap_err().to_string();
        assert!(
            error.contains("10 threads need 1064") && error.contains("max_map_count"),
            "{error}"
        );
        assert!(check_mappings(usize::MAX, 65_530, 1_000).is_err());
        check_thread_mappings(1).unwrap();
        assert!(check_thread_mappings(1 << 40).is_err());
    }

    #[test]
    fn more_memory_than_there_is_is_reduced_with_a_warning() {
        let machine = known_memory_bytes().expect("/proc is there");
        assert_eq!((usable(1 << 20), usable(u64::MAX)), (1 << 20, machine));
        assert_eq!(warn_of(ByteSize(machine)), None);
        let warning = warn_of(ByteSize(machine + 1)).expect("a warning");
        let limit = format!("the limit is {}MiB", machine >> 20);
        assert!(warning.starts_with("--memory: ") && warning.contains(&limit), "{warning}");
    }

    #[test]
    fn anonymous_memory_follows_allocations() {
        let before = anonymous_bytes().expect("/proc is there");
        let held = std::hint::black_box(vec![1u8; 64 << 20]);
        let after = anonymous_bytes().expect("/proc is there");
        assert!(after >= before + (48 << 20), "{before} and {after}");
        drop(held);
    }
}
