//! The memory that this process may use: that of the host, or less where a control group that it is in has a limit.

use std::fs;
use std::path::Path;

/// The memory that this process may use, bytes; no limit where the system does not tell.
pub(super) fn of_host() -> u64 {
    of_host_in(Path::new("/"))
}

/// The same of a system whose files are in `root`.
fn of_host_in(root: &Path) -> u64 {
    memory_in(&read(&root.join("proc/meminfo"))).min(limit_of_groups(root))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The memory that the host has according to `info`, which is in the format of `/proc/meminfo`.
fn memory_in(info: &str) -> u64 {
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    total.and_then(|kb| kb.parse::<u64>().ok()).map_or(u64::MAX, |kb| kb.saturating_mul(1024))
}

/// The least limit of the control groups that this process is in, bytes.
fn limit_of_groups(root: &Path) -> u64 {
    let of_line = |line: &str| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, group) = rest.split_once(':')?;
        // Version 2 has one hierarchy, without names of controllers; where version 1 is in use as well, it is mounted elsewhere.
        let (mounts, file): (&[&str], _) = match controllers {
            "" => (&["sys/fs/cgroup", "sys/fs/cgroup/unified"], "memory.max"),
            _ if controllers.split(',').any(|one| one == "memory") => {
                (&["sys/fs/cgroup/memory"], "memory.limit_in_bytes")
            }
            _ => return None,
        };
        mounts.iter().map(|mount| least_limit(&root.join(mount), group, file)).min()
    };
    read(&root.join("proc/self/cgroup")).lines().filter_map(of_line).min().unwrap_or(u64::MAX)
}

/// The least limit of `group` and of the groups above it, as far as they are below `mount`: in a container the first one there may
/// be the container's own, and the name that of a group outside.
fn least_limit(mount: &Path, group: &str, file: &str) -> u64 {
    let is_outside = group.split('/').any(|name| name == "..");
    let group = Path::new(if is_outside { "" } else { group.trim_start_matches('/') });
    let limits =
        group.ancestors().filter_map(|group| read(&mount.join(group).join(file)).trim().parse().ok());
    limits.min().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_the_host_is_what_the_system_says() {
        assert_eq!(memory_in("MemTotal:       24684096 kB\nMemFree:        6223044 kB\n"), 24_684_096 << 10);
        assert_eq!(memory_in("MemFree: 3 kB\n"), u64::MAX, "no limit where the system does not tell");
    }

    const HOST: u64 = 1 << 34;

    /// The bytes of memory that a process may use on a host of 16 GiB whose control groups have these files, with these contents.
    fn of_host_with(files: &[(&str, &str)]) -> u64 {
        let root = tempfile::tempdir().unwrap();
        let memory = format!("MemTotal: {} kB\n", HOST >> 10);
        for (path, text) in [("proc/meminfo", memory.as_str())].iter().chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        of_host_in(root.path())
    }

    #[test]
    fn the_least_limit_of_the_control_groups_of_this_process_is_a_limit() {
        assert_eq!(of_host_with(&[]), HOST);
        let own = ("proc/self/cgroup", "0::/jobs.slice/job_7\n");
        assert_eq!(of_host_with(&[own]), HOST);
        let of_job = ("sys/fs/cgroup/jobs.slice/job_7/memory.max", "2147483648\n");
        assert_eq!(of_host_with(&[own, of_job]), 2 << 30);
        // A group may have less than the one below it.
        let of_job_without = ("sys/fs/cgroup/jobs.slice/job_7/memory.max", "max\n");
        let of_slice = ("sys/fs/cgroup/jobs.slice/memory.max", "1073741824\n");
        assert_eq!(of_host_with(&[own, of_job_without, of_slice]), 1 << 30);
        assert_eq!(of_host_with(&[own, of_job, of_slice]), 1 << 30);
        assert_eq!(of_host_with(&[own, of_job_without]), HOST);
        // The limits of other control groups do not count.
        assert_eq!(of_host_with(&[own, ("sys/fs/cgroup/other.slice/memory.max", "4096\n")]), HOST);
        // A host may have more than its groups may use, or less.
        assert_eq!(of_host_with(&[own, ("sys/fs/cgroup/jobs.slice/memory.max", "999999999999\n")]), HOST);
    }

    /// The limit of the container is that of the first group that it sees, whatever the name of its own is.
    #[test]
    fn the_limit_of_a_container_is_a_limit() {
        let of_container = ("sys/fs/cgroup/memory.max", "536870912\n");
        for own in ["0::/\n", "0::/../../system.slice\n", "0::/docker/8f2c/task\n"] {
            assert_eq!(of_host_with(&[("proc/self/cgroup", own), of_container]), 512 << 20, "{own}");
        }
    }

    #[test]
    fn limits_of_control_groups_of_version_1_are_limits() {
        let own = ("proc/self/cgroup", "12:cpu,cpuacct:/a\n5:memory:/jobs/7\n1:name=systemd:/b\n0::/c\n");
        let none = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(of_host_with(&[own, none]), HOST);
        let of_job = ("sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes", "4294967296\n");
        assert_eq!(of_host_with(&[own, none, of_job]), 4 << 30);
        // Both versions may be in use.
        let unified = ("sys/fs/cgroup/unified/c/memory.max", "2147483648\n");
        assert_eq!(of_host_with(&[own, none, of_job, unified]), 2 << 30);
        assert_eq!(
            of_host_with(&[own, none, ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4096\n")]),
            HOST
        );
    }
}
