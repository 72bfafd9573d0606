//! Tests of clocks over counters that misbehave.

use std::cell::Cell;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::tsc::{Counter, PERIOD_NS, Tsc};
use super::*;

/// A counter and a system clock under the test's control.
#[derive(Debug)]
struct Fake {
    ticks: Cell<u64>,
    ns: Cell<u64>,
    /// Ticks per microsecond.
    rate: Cell<u64>,
    /// Duration of each reading, nanoseconds.
    cost: Cell<u64>,
}

impl Fake {
    fn pass(&self, ns: u64) {
        let ticks = u128::from(ns) * u128::from(self.rate.get()) / 1000;
        self.ticks.set(self.ticks.get().wrapping_add(ticks as u64));
        self.ns.set(self.ns.get().wrapping_add(ns));
    }
}

impl Counter for &Fake {
    fn ticks(&self) -> u64 {
        self.pass(self.cost.get());
        self.ticks.get()
    }

    fn monotonic_ns(&self) -> u64 {
        self.pass(self.cost.get());
        self.ns.get()
    }

    fn wait(&self, span: Duration) {
        self.pass(span.as_nanos() as u64);
    }
}

const MHZ: u64 = 2_500;

fn fake(ticks: u64) -> Fake {
    Fake { ticks: Cell::new(ticks), ns: Cell::new(77), rate: Cell::new(MHZ), cost: Cell::new(10) }
}

/// The error of `clock` relative to `fake` since they showed `origin` (ps, ns), in picoseconds.
fn error(fake: &Fake, clock: &Tsc<&Fake>, origin: (u64, u64)) -> i64 {
    let shown = clock.now_ps().wrapping_sub(origin.0);
    shown.wrapping_sub(circular_ps(fake.ns.get().wrapping_sub(origin.1).into())) as i64
}

#[test]
fn the_clock_goes_forward() {
    for clock in [Clock::new(), Clock::system(Time::ZERO)] {
        let first = clock.now();
        let copy = clock;
        assert!(copy.now().is_at_or_after(first));
        assert!(first.is_at_or_after(Time::ZERO));
        assert!(first.since(Time::ZERO) < Span::from_ms(60_000), "{first:?} {}", clock.source());
    }
    assert_eq!(Clock::system(Time::ZERO).source(), ClockSource::System(Unfit::NotWanted));
}

#[test]
fn copies_agree_between_threads() {
    let clock = Clock::starting_at(Time::from_ps(u64::MAX - 1_000_000));
    let ((to, from), (back, last)) = (channel::<Time>(), channel());
    let other = std::thread::spawn(move || {
        while let Ok(sent) = from.recv() {
            let now = clock.now();
            assert!(now.is_at_or_after(sent), "{sent:?} was before {now:?}");
            back.send(now).unwrap();
        }
    });
    for _ in 0..2_000 {
        to.send(clock.now()).unwrap();
        let theirs = last.recv().unwrap();
        let now = clock.now();
        assert!(now.is_at_or_after(theirs), "{theirs:?} was before {now:?}");
    }
    drop(to);
    other.join().unwrap();
}

#[test]
fn the_system_clock_survives_the_end_of_the_circle() {
    assert_eq!(circular_ps(1), 1000);
    // 2⁶⁴ ps are 18,446,744,073,709,551.616 ns.
    let circle_ns = 18_446_744_073_709_552;
    assert_eq!(circular_ps(circle_ns), 384);
    assert_eq!(circular_ps(5 * circle_ns).wrapping_sub(circular_ps(4 * circle_ns)), 384);
}

#[test]
fn a_steady_counter_keeps_time() {
    let fake = fake(123);
    let clock = Tsc::measure(&fake).unwrap();
    assert_eq!(clock.hz() / 1_000_000, MHZ);
    let origin = (clock.now_ps(), fake.ns.get());
    for _ in 0..10_000 {
        fake.pass(999_937);
        let error = error(&fake, &clock, origin);
        assert!(error.abs() < 100_000, "{error} ps");
    }
    assert_eq!(clock.given_up(), None);
}

#[test]
fn drift_is_followed_without_going_back() {
    for (label, mhz) in [("5 % faster", MHZ * 105 / 100), ("5 % slower", MHZ * 95 / 100)] {
        let fake = fake(0);
        let clock = Tsc::measure(&fake).unwrap();
        let origin = (clock.now_ps(), fake.ns.get());
        fake.rate.set(mhz);
        let (mut last, mut worst) = (clock.now_ps(), 0);
        for step in 0..5_000 {
            fake.pass(1_000_003);
            let error = error(&fake, &clock, origin).abs();
            let now = clock.now_ps();
            assert!(now.wrapping_sub(last) < u64::MAX / 2, "{label}: back at step {step}");
            last = now;
            worst = worst.max(error);
            assert!(step < 1_000 || error < 1_000_000, "{label}: {error} ps off at step {step}");
        }
        assert!(
            worst > 1_000_000_000,
            "{label}: expected an error of 5 % of a period, found at most {worst} ps"
        );
        assert_eq!(clock.given_up(), None, "{label}");
    }
}

#[test]
fn counters_of_cores_that_are_slightly_behind_are_tolerated() {
    let fake = fake(1_000);
    let clock = Tsc::measure(&fake).unwrap();
    let first = clock.now_ps();
    fake.ticks.set(fake.ticks.get() - 50 * MHZ);
    fake.pass(10_000);
    assert!(clock.now_ps() <= first, "40 µs behind the beginning of the line");
    fake.pass(100_000);
    assert!(clock.now_ps() > first);
    assert_eq!(clock.given_up(), None);
}

#[test]
fn a_counter_that_jumps_is_abandoned_and_time_goes_on() {
    let hour = 3_600_000_000 * MHZ;
    for (label, jump) in
        [("back", hour.wrapping_neg()), ("ahead", hour), ("to zero", (5 * hour).wrapping_neg())]
    {
        let fake = fake(5 * hour);
        let clock = Tsc::measure(&fake).unwrap();
        let origin = (clock.now_ps(), fake.ns.get());
        fake.pass(5 * PERIOD_NS);
        clock.now_ps();
        fake.pass(PERIOD_NS / 2);
        let mut last = clock.now_ps();
        fake.ticks.set(fake.ticks.get().wrapping_add(jump));
        for step in 0..1_000 {
            fake.pass(1_000_003);
            let error = error(&fake, &clock, origin);
            let now = clock.now_ps();
            assert!(now.wrapping_sub(last) < u64::MAX / 2, "{label}: back at step {step}");
            // Time shown just before the jump, at most one period ahead, is not taken back.
            let ahead = PERIOD_NS as i64 * 1_000;
            assert!((-1_000_000_000..ahead).contains(&error), "{label}: {error} ps off at step {step}");
            last = now;
        }
        assert_eq!(clock.given_up(), Some(Unfit::Departed), "{label}");
    }
}

#[test]
fn a_pause_of_all_clocks_is_not_a_jump() {
    // A clock that is not read for a day, and a machine that is suspended and resumed.
    let fake = fake(u64::MAX - 1_000_000_000);
    let clock = Tsc::measure(&fake).unwrap();
    let origin = (clock.now_ps(), fake.ns.get());
    for _ in 0..300 {
        // 300 days: both the counter and the circle of time wrap.
        fake.pass(86_400_000_000_000);
        let error = error(&fake, &clock, origin);
        // A day at the rate of the last comparison, which was wrong by a few parts in 10⁹.
        assert!(error.abs() < 10_000_000_000, "{error} ps");
    }
    assert_eq!(clock.given_up(), None);
}

#[test]
fn unusable_counters_are_refused() {
    let still = fake(9);
    still.rate.set(0);
    assert_eq!(Tsc::measure(&still).err(), Some(Unfit::Unmeasured));
    let interrupted = fake(9);
    interrupted.cost.set(5_000);
    assert_eq!(Tsc::measure(&interrupted).err(), Some(Unfit::Unmeasured), "readings take too long");
}

#[test]
fn a_busy_machine_skips_comparisons() {
    let fake = fake(9);
    let clock = Tsc::measure(&fake).unwrap();
    let origin = (clock.now_ps(), fake.ns.get());
    fake.cost.set(5_000);
    for _ in 0..50 {
        fake.pass(PERIOD_NS);
        let error = error(&fake, &clock, origin);
        assert!(error.abs() < 100_000_000, "{error} ps");
    }
    assert_eq!(clock.given_up(), None);
}
