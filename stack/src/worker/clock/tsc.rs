//! A clock derived from a free-running counter.
//!
//! `time = base + (ticks − base ticks) · rate`. Every [`PERIOD_NS`], the thread that happens to read the clock
//! compares it with the system's monotonic clock, measures the counter's rate since the last comparison, and adjusts
//! the rate so that the two agree again at the next comparison. The clock thus follows the system's clock, including
//! adjustments by NTP, and never goes back: the new line starts where the old one ends.
//!
//! Readers take no lock and never wait for a writer. There are two copies of the line: a writer changes the copy that
//! is not in use, and publishes it by incrementing [`Tsc::generation`].
//!
//! The counter is abandoned if it departs from the system's clock by more than such adjustments can explain, or is
//! found behind its value at the last comparison. From then on the clock is the system's, continuing from the time
//! shown. A counter that goes back by less makes the clock go back as much, once; a worker does not pass that on to
//! its endpoint.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use super::circular_ps;
use super::fitness::{self, Unfit};

/// Nanoseconds between two comparisons with the system's clock.
pub(super) const PERIOD_NS: u64 = 100_000_000;
/// Least duration of the first measurement: if readings are uncertain by 100 ns, the error of the rate is then at most
/// 2·10⁻⁵, and the first comparison improves it.
const FIRST_MEASUREMENT: Duration = Duration::from_millis(5);
/// Greatest difference between readings of the two clocks, nanoseconds. Readings further apart are discarded: the
/// thread was interrupted between them.
const MAX_READING_GAP_NS: u64 = 10_000;
/// Number of attempts at a pair of readings that is close enough.
const ATTEMPTS: u32 = 8;
/// The clock runs at 7/8 to 9/8 of real time while it catches up.
const MAX_SLEW: u64 = 8;
/// Departure from the system's clock that is always tolerated, nanoseconds.
const TOLERATED_NS: u64 = 1_000_000;
/// Fractional bits of a rate.
const FRACTION_BITS: u32 = 32;

/// The clocks behind a [`Tsc`]; tests substitute their own.
pub(super) trait Counter {
    /// The counter's value, which may wrap.
    fn ticks(&self) -> u64;
    /// The system's monotonic clock, nanoseconds.
    fn monotonic_ns(&self) -> u64;
    /// Waits for at least `span`.
    fn wait(&self, span: Duration);
}

/// This processor's counter and the system's clock.
#[derive(Debug)]
pub(super) struct Hardware {
    origin: Instant,
}

impl Counter for Hardware {
    #[inline]
    #[cfg_attr(
        target_arch = "x86_64",
        expect(unsafe_code, reason = "there is no safe way to read the counter")
    )]
    fn ticks(&self) -> u64 {
        #[cfg(target_arch = "x86_64")]
        {
            // SAFETY: the instruction has no operands and touches no memory. Systems can forbid it, but where
            // they do their own clock does not use it either, and `fitness::check` has seen that it does.
            unsafe { core::arch::x86_64::_rdtsc() }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self.monotonic_ns()
        }
    }

    fn monotonic_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    fn wait(&self, span: Duration) {
        std::thread::sleep(span);
    }
}

/// A measured clock over this machine's counter, if that is fit.
pub(super) fn of_this_machine() -> Result<Tsc<Hardware>, Unfit> {
    fitness::check()?;
    Tsc::measure(Hardware { origin: Instant::now() })
}

/// A clock that reads a counter.
#[derive(Debug)]
pub(super) struct Tsc<C> {
    counter: C,
    /// Ticks between two comparisons.
    period: u64,
    generation: AtomicU32,
    /// Two copies of the line; the one in use is number `generation` mod 2.
    lines: [Shared; 2],
    /// Time of the last comparison, nanoseconds of the system's clock, and the time this clock should have shown then.
    /// Only the holder of `comparing` accesses them.
    compared_ns: AtomicU64,
    due_ps: AtomicU64,
    comparing: AtomicBool,
    given_up: AtomicBool,
}

/// Time as a function of ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    /// Start of the line: ticks, or nanoseconds of the system's clock if `rate` is 0.
    ticks: u64,
    /// The time at the start, ps.
    ps: u64,
    /// Picoseconds per tick, with [`FRACTION_BITS`] fractional bits; 0 once the counter has been abandoned.
    rate: u64,
}

#[derive(Debug)]
struct Shared {
    ticks: AtomicU64,
    ps: AtomicU64,
    rate: AtomicU64,
}

/// Readings of both clocks at the same moment.
#[derive(Clone, Copy, Debug)]
struct Pair {
    ticks: u64,
    ns: u64,
}

impl<C: Counter> Tsc<C> {
    /// A clock that shows 0 now, after measuring the counter's rate.
    pub(super) fn measure(counter: C) -> Result<Tsc<C>, Unfit> {
        let first = pair(&counter).ok_or(Unfit::Unmeasured)?;
        counter.wait(FIRST_MEASUREMENT);
        let last = pair(&counter).ok_or(Unfit::Unmeasured)?;
        let (ticks, ns) = (last.ticks.wrapping_sub(first.ticks), last.ns.wrapping_sub(first.ns));
        let rate = rate(ticks, ns).ok_or(Unfit::Unmeasured)?;
        // A rate outside 1 MHz to 1 THz means that this is no counter, or that it has jumped.
        let one = 1u64 << FRACTION_BITS;
        if !(one..=one * 1_000_000).contains(&rate) {
            return Err(Unfit::Unmeasured);
        }
        let line = Line { ticks: last.ticks, ps: 0, rate };
        Ok(Tsc {
            counter,
            period: (u128::from(ticks) * u128::from(PERIOD_NS) / u128::from(ns)) as u64,
            generation: AtomicU32::new(0),
            lines: [Shared::new(line), Shared::new(line)],
            compared_ns: AtomicU64::new(last.ns),
            due_ps: AtomicU64::new(0),
            comparing: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
        })
    }

    /// The time, ps; wraps.
    #[inline]
    pub(super) fn now_ps(&self) -> u64 {
        let (line, ticks) = self.read();
        let passed = ticks.wrapping_sub(line.ticks);
        // A counter behind the start of the line, read on a core whose counter is slightly late, looks far ahead.
        if passed >= self.period || line.rate == 0 {
            return self.now_ps_slow(line, ticks);
        }
        line.at(passed)
    }

    /// Why the system's clock is used instead, if it is.
    pub(super) fn given_up(&self) -> Option<Unfit> {
        self.given_up.load(Ordering::Relaxed).then_some(Unfit::Departed)
    }

    /// The counter's frequency, Hz.
    pub(super) fn hz(&self) -> u64 {
        (u128::from(self.period) * 1_000_000_000 / u128::from(PERIOD_NS)) as u64
    }

    /// The line in use, and the counter, read while that line was in use.
    #[inline]
    fn read(&self) -> (Line, u64) {
        loop {
            let generation = self.generation.load(Ordering::Acquire);
            let line = self.lines[(generation & 1) as usize].load();
            let ticks = self.counter.ticks();
            fence(Ordering::Acquire);
            // Another line was published meanwhile, which happens ten times a second.
            if self.generation.load(Ordering::Relaxed) == generation {
                return (line, ticks);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn now_ps_slow(&self, line: Line, ticks: u64) -> u64 {
        if line.rate == 0 {
            return self.system_ps(&line);
        }
        if line.is_little_ahead_of(ticks, self.period) {
            return line.ps;
        }
        let free = self.comparing.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if !free {
            // If the counter has jumped, the other thread is about to notice; this one does not show the jump.
            return line.at(line.forward(ticks).min(self.period));
        }
        self.compare();
        self.comparing.store(false, Ordering::Release);
        let (line, ticks) = self.read();
        if line.rate == 0 { self.system_ps(&line) } else { line.at(line.forward(ticks)) }
    }

    /// The time after the counter has been abandoned.
    fn system_ps(&self, line: &Line) -> u64 {
        let passed = self.counter.monotonic_ns().wrapping_sub(line.ticks);
        line.ps.wrapping_add(circular_ps(passed.into()))
    }

    /// Compares the clock with the system's, and publishes a new line. The caller holds `comparing`, so the line in
    /// use does not change.
    fn compare(&self) {
        let (line, _) = self.read();
        let Some(pair) = pair(&self.counter) else { return };
        let passed = line.forward(pair.ticks);
        let went_back = passed == 0 && !line.is_little_ahead_of(pair.ticks, self.period);
        if line.rate == 0 || passed < self.period && !went_back {
            // Another thread has just compared.
            return;
        }
        let since_ns = pair.ns.wrapping_sub(self.compared_ns.load(Ordering::Relaxed));
        let due = self.due_ps.load(Ordering::Relaxed).wrapping_add(circular_ps(since_ns.into()));
        let shown = line.at(passed);
        // Negative if this clock is ahead.
        let late = due.wrapping_sub(shown) as i64;
        let tolerated = (TOLERATED_NS + since_ns / MAX_SLEW).saturating_mul(1000);
        let measured = rate(passed, since_ns).filter(|_| !went_back && late.unsigned_abs() <= tolerated);
        let next = match measured {
            Some(rate) => Line { ticks: pair.ticks, ps: shown, rate: slewed(rate, late) },
            None => {
                self.given_up.store(true, Ordering::Relaxed);
                // The system's clock is right, but time shown before the counter jumped is not taken back.
                let shown = line.at(passed.min(self.period));
                let late = due.wrapping_sub(shown) as i64;
                Line { ticks: pair.ns, ps: if late > 0 { due } else { shown }, rate: 0 }
            }
        };
        self.compared_ns.store(pair.ns, Ordering::Relaxed);
        self.due_ps.store(due, Ordering::Relaxed);
        self.publish(next);
    }

    fn publish(&self, line: Line) {
        let generation = self.generation.load(Ordering::Relaxed);
        // A reader that sees any of the following writes to this copy also sees that the other copy is in use.
        fence(Ordering::Release);
        self.lines[(generation.wrapping_add(1) & 1) as usize].store(line);
        self.generation.store(generation.wrapping_add(1), Ordering::Release);
    }
}

impl Line {
    #[inline]
    fn at(&self, passed: u64) -> u64 {
        let ps = (u128::from(passed) * u128::from(self.rate)) >> FRACTION_BITS;
        self.ps.wrapping_add(ps as u64)
    }

    /// Whether the counter is behind the start of the line by no more than the difference between two cores' counters,
    /// or between readings out of order.
    fn is_little_ahead_of(&self, ticks: u64, period: u64) -> bool {
        self.ticks.wrapping_sub(ticks) <= period / 1000
    }

    /// Ticks since the start of the line; 0 if the counter is behind that.
    fn forward(&self, ticks: u64) -> u64 {
        let passed = ticks.wrapping_sub(self.ticks);
        if passed > u64::MAX / 2 { 0 } else { passed }
    }
}

impl Shared {
    fn new(line: Line) -> Shared {
        Shared { ticks: line.ticks.into(), ps: line.ps.into(), rate: line.rate.into() }
    }

    #[inline]
    fn load(&self) -> Line {
        Line {
            ticks: self.ticks.load(Ordering::Relaxed),
            ps: self.ps.load(Ordering::Relaxed),
            rate: self.rate.load(Ordering::Relaxed),
        }
    }

    fn store(&self, line: Line) {
        self.ticks.store(line.ticks, Ordering::Relaxed);
        self.ps.store(line.ps, Ordering::Relaxed);
        self.rate.store(line.rate, Ordering::Relaxed);
    }
}

/// Picoseconds per tick, if `ticks` pass in `ns` nanoseconds; `None` if the rate cannot be represented.
fn rate(ticks: u64, ns: u64) -> Option<u64> {
    let rate = ((u128::from(ns) * 1000) << FRACTION_BITS).checked_div(u128::from(ticks))?;
    u64::try_from(rate).ok().filter(|rate| *rate > 0)
}

/// `rate`, adjusted so that a clock that is `late` ps late is right after [`PERIOD_NS`].
fn slewed(rate: u64, late: i64) -> u64 {
    let period = i128::from(PERIOD_NS) * 1000;
    let limit = period / i128::from(MAX_SLEW);
    let late = i128::from(late).clamp(-limit, limit);
    (i128::from(rate) * (period + late) / period) as u64
}

/// Reads both clocks, the system's between two readings of the counter.
fn pair<C: Counter>(counter: &C) -> Option<Pair> {
    let mut best = None;
    for _ in 0..ATTEMPTS {
        let (ns_before, before) = (counter.monotonic_ns(), counter.ticks());
        let ns = counter.monotonic_ns();
        let (after, ns_after) = (counter.ticks(), counter.monotonic_ns());
        let width = ns_after.wrapping_sub(ns_before);
        let middle = before.wrapping_add(after.wrapping_sub(before) / 2);
        if width < best.map_or(MAX_READING_GAP_NS, |(width, _)| width) {
            best = Some((width, Pair { ticks: middle, ns }));
        }
    }
    best.map(|(_, pair)| pair)
}
