//! Whether the time-stamp counter can serve as a clock.

use std::fs;

/// Why the time-stamp counter is not used as a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The caller asked for the system's clock.
    #[error("it was asked for")]
    NotWanted,
    /// The processor has no time-stamp counter, or one that weft cannot read.
    #[error("this processor has no counter that is known here")]
    Architecture,
    /// The counter's rate varies with the processor's frequency, or it stops while the processor sleeps.
    #[error("the counter's rate is not constant: the processor lacks {0}")]
    NotInvariant(&'static str),
    /// The kernel does not offer the counter as a clock source, for example because the counters of two cores differ.
    #[error("the kernel does not trust the counter: tsc is not in {CLOCKS}")]
    Untrusted,
    /// The counter's rate could not be measured: it stood still, or the machine was too busy.
    #[error("the counter could not be measured")]
    Unmeasured,
    /// The counter was in use, and departed from the system's clock by more than an adjustment of that clock explains.
    #[error("the counter departed from the system's clock")]
    Departed,
}

const PROCESSORS: &str = "/proc/cpuinfo";
const CLOCKS: &str = "/sys/devices/system/clocksource/clocksource0/available_clocksource";

/// Checks this machine's processors and the kernel's clock sources.
pub(super) fn check() -> Result<(), Unfit> {
    if !cfg!(target_arch = "x86_64") {
        return Err(Unfit::Architecture);
    }
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    judge(&read(PROCESSORS), &read(CLOCKS))
}

/// Judges the contents of [`PROCESSORS`] and [`CLOCKS`].
fn judge(processors: &str, clocks: &str) -> Result<(), Unfit> {
    for flag in ["constant_tsc", "nonstop_tsc"] {
        let lacks = |line: &str| line.split_whitespace().all(|word| word != flag);
        let mut flags = processors.lines().filter(|line| line.starts_with("flags")).peekable();
        if flags.peek().is_none() || flags.any(lacks) {
            return Err(Unfit::NotInvariant(flag));
        }
    }
    match clocks.split_whitespace().any(|clock| clock == "tsc") {
        true => Ok(()),
        false => Err(Unfit::Untrusted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "processor\t: 0\nflags\t\t: fpu constant_tsc nonstop_tsc\n";

    #[test]
    fn the_counter_is_used_only_if_all_processors_and_the_kernel_agree() {
        assert_eq!(judge(GOOD, "tsc hpet acpi_pm\n"), Ok(()));
        let other = "processor\t: 1\nflags\t\t: fpu constant_tsc\n";
        assert_eq!(judge(&format!("{GOOD}{other}"), "tsc"), Err(Unfit::NotInvariant("nonstop_tsc")));
        assert_eq!(judge("flags : nonstop_tsc", "tsc"), Err(Unfit::NotInvariant("constant_tsc")));
        assert_eq!(judge("", "tsc"), Err(Unfit::NotInvariant("constant_tsc")));
        assert_eq!(judge(GOOD, "hpet tsc-early"), Err(Unfit::Untrusted));
        assert_eq!(judge(GOOD, ""), Err(Unfit::Untrusted));
    }
}
