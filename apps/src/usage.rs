//! CPU time and memory that the process has used so far.

use rustix::time::{ClockId, clock_gettime};
use std::fs;

/// CPU time of the whole process, user and system, seconds.
pub(crate) fn cpu_seconds() -> f64 {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

/// The most memory that the process has ever held (resident set), 10⁶ bytes. 0 where the kernel does not tell.
pub(crate) fn max_rss_mb() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    high_water_kib(&status).unwrap_or(0) as f64 * 1024.0 / 1e6
}

fn high_water_kib(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read() {
        assert_eq!(high_water_kib("VmPeak:\t  99 kB\nVmHWM:\t    1234 kB\n"), Some(1234));
        assert_eq!(high_water_kib("VmPeak: 99 kB\n"), None);
        assert!(max_rss_mb() > 0.5, "{}", max_rss_mb());
        let before = cpu_seconds();
        while cpu_seconds() - before < 0.001 {}
    }
}
