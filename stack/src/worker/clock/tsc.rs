//! A clock made of a free-running counter.
//!
//! `time = base + (ticks − base ticks) · rate`. Every [`PERIOD`], whoever happens to read the clock then
//! compares it with the system's monotonic clock, measures the counter's rate since the last comparison, and
//! lets the clock run that much faster or slower that it agrees again at the next one. So it follows the
//! system's clock, adjustments by NTP included, and never goes back: the new line starts where the old one is.
//!
//! Readers take no lock and never wait for a writer. The line is kept twice: a writer changes the copy that is
//! not in use, and publishes it by counting [`Tsc::generation`] on.
//!
//! A counter that departs from the system's clock by more than such adjustments can explain, or is found behind
//! where it was at the last comparison, is not used any more: from then on the clock is the system's, going on
//! from where it was. One that goes back by less makes the clock go back by as much, once; a worker does not
//! pass that on to its endpoint.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use super::circular_ps;
use super::fitness::{self, Unfit};

/// Nanoseconds between two comparisons with the system's clock.
pub(super) const PERIOD_NS: u64 = 100_000_000;
/// How long the first measurement takes, at least: with readings that are 100 ns unsure the rate is then
/// good to 2·10⁻⁵, and the first comparison makes it better.
const FIRST: Duration = Duration::from_millis(5);
/// Readings of both clocks that lie further apart than this, nanoseconds, say nothing: the thread was
/// interrupted between them.
const UNSURE_NS: u64 = 10_000;
/// Attempts at a pair of readings that is better.
const ATTEMPTS: u32 = 8;
/// The clock runs at least at 7/8 and at most at 9/8 of real time while it catches up.
const MAX_SLEW: u64 = 8;
/// Nanoseconds of departure that are forgiven, however short the time since the last comparison.
const FORGIVEN_NS: u64 = 1_000_000;
/// Binary places of a rate.
const PLACES: u32 = 32;

/// What the clock is made of. Tests have their own.
pub(super) trait Counter {
    /// The counter. May wrap.
    fn ticks(&self) -> u64;
    /// The system's monotonic clock, nanoseconds.
    fn monotonic_ns(&self) -> u64;
    /// Lets time pass, at least `span`.
    fn wait(&self, span: Duration);
}

/// The counter of this processor, and the system's clock.
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

/// The counter of this machine, measured, if it can serve.
pub(super) fn of_this_machine() -> Result<Tsc<Hardware>, Unfit> {
    fitness::check()?;
    Tsc::measure(Hardware { origin: Instant::now() })
}

/// A clock that reads a counter.
#[derive(Debug)]
pub(super) struct Tsc<C> {
    counter: C,
    /// Ticks after which it is time for a comparison.
    period: u64,
    generation: AtomicU32,
    /// The one in use is number `generation` mod 2.
    lines: [Shared; 2],
    /// When the last comparison was, nanoseconds of the system's clock, and what this clock should have shown.
    /// Only who holds `comparing` touches them.
    compared_ns: AtomicU64,
    due_ps: AtomicU64,
    comparing: AtomicBool,
    given_up: AtomicBool,
}

/// Time as a function of ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    /// Where it begins: ticks, or nanoseconds of the system's clock if `rate` is 0.
    ticks: u64,
    /// The time there, ps.
    ps: u64,
    /// Picoseconds per tick, with [`PLACES`] binary places; 0 once the counter has been given up.
    rate: u64,
}

#[derive(Debug)]
struct Shared {
    ticks: AtomicU64,
    ps: AtomicU64,
    rate: AtomicU64,
}

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug)]
struct Pair {
    ticks: u64,
    ns: u64,
}

impl<C: Counter> Tsc<C> {
    /// A clock that shows 0 now, once its rate has been measured.
    pub(super) fn measure(counter: C) -> Result<Tsc<C>, Unfit> {
        let first = pair(&counter).ok_or(Unfit::Unmeasured)?;
        counter.wait(FIRST);
        let last = pair(&counter).ok_or(Unfit::Unmeasured)?;
        let (ticks, ns) = (last.ticks.wrapping_sub(first.ticks), last.ns.wrapping_sub(first.ns));
        let rate = rate(ticks, ns).ok_or(Unfit::Unmeasured)?;
        // From 1 MHz to 1 THz: what is beyond is no counter, or has jumped.
        let one = 1u64 << PLACES;
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
        // A counter behind the beginning of the line, on a core whose own is a little late, looks far ahead.
        if passed >= self.period || line.rate == 0 {
            return self.seldom(line, ticks);
        }
        line.at(passed)
    }

    /// Why the system's clock is used instead, if it is.
    pub(super) fn given_up(&self) -> Option<Unfit> {
        self.given_up.load(Ordering::Relaxed).then_some(Unfit::Departed)
    }

    /// Ticks per second.
    pub(super) fn hz(&self) -> u64 {
        (u128::from(self.period) * 1_000_000_000 / u128::from(PERIOD_NS)) as u64
    }

    /// The line in use, and the counter, read while it was.
    #[inline]
    fn read(&self) -> (Line, u64) {
        loop {
            let generation = self.generation.load(Ordering::Acquire);
            let line = self.lines[(generation & 1) as usize].load();
            let ticks = self.counter.ticks();
            fence(Ordering::Acquire);
            // Another one was published meanwhile, which happens ten times a second.
            if self.generation.load(Ordering::Relaxed) == generation {
                return (line, ticks);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn seldom(&self, line: Line, ticks: u64) -> u64 {
        if line.rate == 0 {
            return self.system_ps(&line);
        }
        if line.is_little_ahead_of(ticks, self.period) {
            return line.ps;
        }
        let free = self.comparing.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if !free {
            // Should the counter have jumped, the other thread is about to notice: this one does not show it.
            return line.at(line.forward(ticks).min(self.period));
        }
        self.compare();
        self.comparing.store(false, Ordering::Release);
        let (line, ticks) = self.read();
        if line.rate == 0 { self.system_ps(&line) } else { line.at(line.forward(ticks)) }
    }

    /// The time once the counter has been given up.
    fn system_ps(&self, line: &Line) -> u64 {
        let passed = self.counter.monotonic_ns().wrapping_sub(line.ticks);
        line.ps.wrapping_add(circular_ps(passed.into()))
    }

    /// Compares with the system's clock, and publishes a new line. The caller holds `comparing`, so the line
    /// in use stays.
    fn compare(&self) {
        let (line, _) = self.read();
        let Some(pair) = pair(&self.counter) else { return };
        let passed = line.forward(pair.ticks);
        let went_back = passed == 0 && !line.is_little_ahead_of(pair.ticks, self.period);
        if line.rate == 0 || passed < self.period && !went_back {
            // Another thread has done it just now.
            return;
        }
        let since_ns = pair.ns.wrapping_sub(self.compared_ns.load(Ordering::Relaxed));
        let due = self.due_ps.load(Ordering::Relaxed).wrapping_add(circular_ps(since_ns.into()));
        let shown = line.at(passed);
        // Negative if this clock is early.
        let late = due.wrapping_sub(shown) as i64;
        let forgiven = (FORGIVEN_NS + since_ns / MAX_SLEW).saturating_mul(1000);
        let measured = rate(passed, since_ns).filter(|_| !went_back && late.unsigned_abs() <= forgiven);
        let next = match measured {
            Some(rate) => Line { ticks: pair.ticks, ps: shown, rate: slewed(rate, late) },
            None => {
                self.given_up.store(true, Ordering::Relaxed);
                // The system's clock is right, but what was shown before the counter jumped stays shown.
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
        // Who sees any of what follows in this copy, sees that the other one is in use.
        fence(Ordering::Release);
        self.lines[(generation.wrapping_add(1) & 1) as usize].store(line);
        self.generation.store(generation.wrapping_add(1), Ordering::Release);
    }
}

impl Line {
    #[inline]
    fn at(&self, passed: u64) -> u64 {
        let ps = (u128::from(passed) * u128::from(self.rate)) >> PLACES;
        self.ps.wrapping_add(ps as u64)
    }

    /// Whether the counter is behind the beginning of the line by no more than the counters of two cores, or
    /// readings out of order, may differ.
    fn is_little_ahead_of(&self, ticks: u64, period: u64) -> bool {
        self.ticks.wrapping_sub(ticks) <= period / 1000
    }

    /// Ticks since the line began; 0 if the counter is behind that.
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

/// Picoseconds per tick, if `ticks` pass in `ns` nanoseconds and there is such a number.
fn rate(ticks: u64, ns: u64) -> Option<u64> {
    let rate = ((u128::from(ns) * 1000) << PLACES).checked_div(u128::from(ticks))?;
    u64::try_from(rate).ok().filter(|rate| *rate > 0)
}

/// `rate`, changed so that a clock that is `late` ps late is right after [`PERIOD_NS`].
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
        if width < best.map_or(UNSURE_NS, |(width, _)| width) {
            best = Some((width, Pair { ticks: middle, ns }));
        }
    }
    best.map(|(_, pair)| pair)
}
