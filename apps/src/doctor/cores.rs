//! Checks of CPU cores: isolation, clock source, frequency governor, and hardware counters.

use super::finding::Finding;
use super::root::Root;
use weft_stack::worker::Clock;

const CLOCK: &str = "sys/devices/system/clocksource/clocksource0";

pub(super) fn check(root: &Root) -> Vec<Finding> {
    let mut findings = vec![isolated(root), clock(root)];
    findings.extend(governor(root));
    findings.extend(counters(root));
    if root.is_real() {
        findings.push(Finding::ok("clock", format!("weft reads the {}", Clock::new().source())));
    }
    findings
}

/// The number of cores in a list such as `0-3,8`.
fn count(list: &str) -> usize {
    let range = |part: &str| -> Option<usize> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        Some((last + 1).saturating_sub(first))
    };
    list.split(',').filter_map(range).sum()
}

fn isolated(root: &Root) -> Finding {
    let list = |file: &str| root.text(&format!("sys/devices/system/cpu/{file}")).unwrap_or_default();
    let (online, isolated) = (list("online"), list("isolated"));
    let cores = count(&online);
    if !isolated.is_empty() {
        let tick = list("nohz_full");
        let tick = if tick.is_empty() || tick == "(null)" { "none" } else { &tick };
        let seen =
            format!("{} of {cores} cores isolated ({isolated}), without ticks: {tick}", count(&isolated));
        return Finding::ok("cores", seen);
    }
    if cores < 2 {
        return Finding::warn(
            "cores",
            "one core: a worker that spins leaves nothing for the application",
            "use --idle adaptive",
        );
    }
    let last = cores - 1;
    let set = if last > 1 { format!("1-{last}") } else { last.to_string() };
    Finding::warn(
        "cores",
        format!("none of {cores} cores is isolated: the scheduler and its ticks disturb workers"),
        format!(
            "on the kernel's command line: isolcpus=managed_irq,domain,{set} nohz_full={set} rcu_nocbs={set}"
        ),
    )
}

fn clock(root: &Root) -> Finding {
    let current = root.text(&format!("{CLOCK}/current_clocksource")).unwrap_or_else(|| "unknown".to_owned());
    if matches!(current.as_str(), "tsc" | "arch_sys_counter") {
        return Finding::ok("clock", format!("the kernel's clock source is {current}"));
    }
    let available = root.text(&format!("{CLOCK}/available_clocksource")).unwrap_or_default();
    let seen = format!("the kernel's clock source is {current}: reading the time is slower");
    if available.split_whitespace().any(|name| name == "tsc") {
        return Finding::warn("clock", seen, format!("echo tsc | sudo tee /{CLOCK}/current_clocksource"));
    }
    Finding::warn(
        "clock",
        seen,
        "sudo dmesg | grep -i tsc    (says why the kernel does not trust the counter)",
    )
}

fn governor(root: &Root) -> Option<Finding> {
    let governor = root.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")?;
    Some(if governor == "performance" {
        Finding::ok("frequency", "the governor is performance")
    } else {
        let seen = format!("the governor is {governor}: cores slow down between bursts");
        Finding::warn("frequency", seen, "sudo cpupower frequency-set -g performance")
    })
}

fn counters(root: &Root) -> Option<Finding> {
    let level: i32 = root.value("proc/sys/kernel/perf_event_paranoid")?;
    let hardware = root.exists("sys/bus/event_source/devices/cpu")
        || root
            .names("sys/bus/event_source/devices")
            .iter()
            .any(|name| name.starts_with("cpu") || name.contains("pmu"));
    if !hardware {
        return Some(Finding::warn(
            "counters",
            "no hardware counters (as in most virtual machines): weft perf cannot count instructions",
            "on the host, give the guest a PMU, or measure on bare metal",
        ));
    }
    Some(if level <= 2 {
        Finding::ok(
            "counters",
            format!("perf_event_paranoid is {level}: weft perf counts cycles and instructions"),
        )
    } else {
        let seen = format!("perf_event_paranoid is {level}: only root may count cycles and instructions");
        Finding::warn("counters", seen, "sudo sysctl -w kernel.perf_event_paranoid=2")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_in_lists_are_counted() {
        for (list, cores) in [("0", 1), ("0-3", 4), ("0-3,8", 5), ("", 0), ("1-", 0), ("5-2", 0)] {
            assert_eq!(count(list), cores, "{list:?}");
        }
    }
}
