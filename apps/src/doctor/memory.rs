//! Checks of memory: huge pages, NUMA nodes, and the limit of locked memory.

use super::finding::Finding;
use super::root::Root;

const HUGE: &str = "sys/kernel/mm/hugepages";
/// Huge pages that a DPDK port with its buffers needs, MiB.
const ENOUGH_MIB: u64 = 512;

pub(super) fn check(root: &Root, has_nics: bool) -> Vec<Finding> {
    let mut findings = vec![huge_pages(root, has_nics), transparent(root)];
    findings.extend(numa(root));
    findings.extend(locked(root, has_nics));
    findings
}

fn huge_pages(root: &Root, has_nics: bool) -> Finding {
    let mut free_mib = 0;
    let mut kinds = Vec::new();
    for name in root.names(HUGE) {
        let Some(kib) =
            name.strip_prefix("hugepages-").and_then(|n| n.strip_suffix("kB")?.parse::<u64>().ok())
        else {
            continue;
        };
        let count = |file: &str| root.value::<u64>(&format!("{HUGE}/{name}/{file}")).unwrap_or(0);
        let (all, free) = (count("nr_hugepages"), count("free_hugepages"));
        free_mib += free.saturating_mul(kib) / 1024;
        kinds.push(format!("{free} of {all} pages of {} MiB free", kib / 1024));
    }
    if kinds.is_empty() {
        return Finding::warn(
            "hugepages",
            "this kernel has none: PCI devices under DPDK need them",
            "use a kernel with CONFIG_HUGETLBFS",
        );
    }
    let seen = kinds.join(", ");
    if free_mib >= ENOUGH_MIB {
        return Finding::ok("hugepages", seen);
    }
    let mend = "echo 1024 | sudo tee /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    if has_nics {
        return Finding::warn(
            "hugepages",
            format!("{seen}: network cards under DPDK need {ENOUGH_MIB} MiB"),
            mend,
        );
    }
    Finding::ok("hugepages", format!("{seen}: ring, memif and udp do without"))
}

fn transparent(root: &Root) -> Finding {
    let text = root.text("sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    match text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']')) {
        Some("never") => Finding::warn(
            "thp",
            "transparent huge pages are off: simulations take an eighth more time",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        Some(mode) => Finding::ok("thp", format!("transparent huge pages: {mode}")),
        None => Finding::ok("thp", "this kernel has no transparent huge pages"),
    }
}

fn numa(root: &Root) -> Vec<Finding> {
    let nodes: Vec<String> =
        root.names("sys/devices/system/node").into_iter().filter(|name| is_numbered(name, "node")).collect();
    if nodes.len() < 2 {
        return vec![Finding::ok("numa", "one node")];
    }
    let cores =
        |node: &str| root.text(&format!("sys/devices/system/node/{node}/cpulist")).unwrap_or_default();
    let list: Vec<String> = nodes.iter().map(|node| format!("{node} with cores {}", cores(node))).collect();
    let mut findings = vec![Finding::ok("numa", format!("{} nodes: {}", nodes.len(), list.join("; ")))];
    for nic in super::devices::nics(root) {
        if let Some(node) = nic.node {
            findings.push(Finding::ok(
                "numa",
                format!(
                    "{} is at node{node}: pin its workers to cores {}",
                    nic.address,
                    cores(&format!("node{node}"))
                ),
            ));
        }
    }
    findings
}

/// Whether `name` is `kind` followed by a number, as in `node7` or `cpu0`.
pub(super) fn is_numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

fn locked(root: &Root, has_nics: bool) -> Option<Finding> {
    let limits = root.text("proc/self/limits")?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    let soft = line.split_whitespace().next()?;
    let enough = soft == "unlimited" || soft.parse::<u64>().is_ok_and(|bytes| bytes >= ENOUGH_MIB << 20);
    if enough || !has_nics {
        return Some(Finding::ok("memlock", format!("{soft} bytes may be locked")));
    }
    Some(Finding::warn(
        "memlock",
        format!("{soft} bytes may be locked: VFIO maps a card's buffers only if they all may"),
        "ulimit -l unlimited    (for good: a line `* - memlock unlimited` in /etc/security/limits.conf)",
    ))
}
