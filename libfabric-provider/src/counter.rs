//! A counter of operations of endpoints that have ended.

use std::sync::{Arc, Mutex};

use crate::endpoints::Endpoints;
use crate::error::{FiError, lock};
use crate::wake::{Deadline, Event};

#[derive(Debug)]
pub(crate) struct Counter {
    endpoints: Endpoints,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    now: Counts,
    /// As the application has seen them last.
    seen: Counts,
    /// An application sleeps on the descriptor, or is about to, and wants to be woken by the next change.
    awaited: bool,
    /// Those of threads that sleep in [`Counter::wait`]. Each has its own: a value is not taken from a counter as an entry is from
    /// a queue, so that one that is woken cannot tell whether others have seen it.
    sleepers: Vec<Arc<Event>>,
}

/// How many operations have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
}

impl Counter {
    /// A counter at 0; `waits` says whether anybody may sleep until it changes.
    pub(crate) fn new(waits: bool) -> Result<Counter, FiError> {
        Ok(Counter { endpoints: Endpoints::new(waits)?, state: Mutex::default() })
    }

    /// The endpoints whose operations are counted.
    pub(crate) fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// Adds what has ended, or what an application wants to be added, and wakes those who sleep.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Counts)) -> Result<(), FiError> {
        let mut state = lock(&self.state)?;
        change(&mut state.now);
        if std::mem::take(&mut state.awaited)
            && let Ok(wake) = self.endpoints.wake()
        {
            wake.wake();
        }
        state.sleepers.iter().for_each(|sleeper| sleeper.set());
        Ok(())
    }

    /// How many operations have ended.
    pub(crate) fn now(&self) -> Result<Counts, FiError> {
        Ok(lock(&self.state)?.now)
    }

    /// Lets the endpoints work, and tells how many operations have succeeded. Endpoints that cannot work have counted theirs as
    /// failed.
    pub(crate) fn succeeded(&self) -> Result<u64, FiError> {
        let _ = self.endpoints.progress();
        let mut state = lock(&self.state)?;
        state.seen.succeeded = state.now.succeeded;
        Ok(state.now.succeeded)
    }

    /// As [`Counter::succeeded`], for operations that have failed.
    pub(crate) fn failed(&self) -> Result<u64, FiError> {
        let _ = self.endpoints.progress();
        let mut state = lock(&self.state)?;
        state.seen.failed = state.now.failed;
        Ok(state.now.failed)
    }

    /// Sleeps until so many operations have succeeded.
    ///
    /// # Errors
    /// [`FiError::ERROR_ENTRY`] if one has failed meanwhile, [`FiError::TIMED_OUT`] at the deadline; or an endpoint cannot work, and
    /// has counted all of its operations.
    pub(crate) fn wait(&self, threshold: u64, deadline: Deadline) -> Result<(), FiError> {
        let wake = self.endpoints.wake()?;
        let mut event = None;
        let failed = lock(&self.state)?.now.failed;
        let is_over = |now: Counts| now.succeeded >= threshold || now.failed != failed;
        let mut worked = self.endpoints.progress();
        loop {
            let now = lock(&self.state)?.now;
            if is_over(now) {
                return if now.succeeded >= threshold { Ok(()) } else { Err(FiError::ERROR_ENTRY) };
            }
            worked?;
            let left = deadline.left().map_err(|_| FiError::TIMED_OUT)?;
            let attended = self.endpoints.attend()?;
            let armed = self.endpoints.arm();
            if armed != Ok(true) {
                worked = armed.map(|_| ());
                continue;
            }
            let event = match &event {
                Some(event) => event,
                None => event.insert(Arc::new(Event::new()?)),
            };
            event.clear();
            {
                let mut state = lock(&self.state)?;
                if is_over(state.now) {
                    continue;
                }
                state.sleepers.push(event.clone());
            }
            wake.sleep_with(event, left);
            drop(attended);
            lock(&self.state)?.sleepers.retain(|other| !Arc::ptr_eq(other, event));
        }
    }

    /// Prepares for a sleep on the descriptor. Returns whether the caller may sleep: not if there is something that it has not
    /// seen, which it has after this.
    ///
    /// # Errors
    /// Nobody may sleep, or there is nothing new and an endpoint cannot work.
    pub(crate) fn try_wait(&self) -> Result<bool, FiError> {
        let wake = self.endpoints.wake()?;
        let armed = self.endpoints.arm();
        let mut state = lock(&self.state)?;
        if state.now != state.seen || !armed? {
            state.seen = state.now;
            return Ok(false);
        }
        wake.rest();
        state.awaited = true;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn add(counter: &Counter, succeeded: u64, failed: u64) {
        counter
            .change(|counts| {
                counts.succeeded += succeeded;
                counts.failed += failed;
            })
            .unwrap();
    }

    #[test]
    fn waits_end_at_the_threshold_at_a_failure_and_at_the_deadline() {
        let counter = Counter::new(true).unwrap();
        let wait = |threshold, ms| counter.wait(threshold, Deadline::after(ms));
        assert_eq!(
            (wait(0, 0), wait(1, 0), wait(1, 20)),
            (Ok(()), Err(FiError::TIMED_OUT), Err(FiError::TIMED_OUT))
        );
        let begin = Instant::now();
        std::thread::scope(|scope| {
            let sleepers = [7, 1000].map(|threshold| scope.spawn(move || wait(threshold, 60_000)));
            for _ in 0..8 {
                std::thread::sleep(Duration::from_millis(2));
                add(&counter, 1, 0);
            }
            let [seven, more] = sleepers;
            assert_eq!(seven.join().unwrap(), Ok(()));
            add(&counter, 0, 1);
            // It may have begun to wait only then.
            while !more.is_finished() {
                add(&counter, 0, 1);
                std::thread::yield_now();
            }
            assert_eq!(more.join().unwrap(), Err(FiError::ERROR_ENTRY));
        });
        assert!(begin.elapsed() < MINUTE);
        assert_eq!((counter.succeeded(), wait(8, 0)), (Ok(8), Ok(())));
    }

    #[test]
    fn no_change_is_overlooked_by_those_who_sleep() {
        const ROUNDS: u64 = 1_000;
        let counter = Counter::new(true).unwrap();
        let reached = |wanted: u64| {
            while counter.succeeded().unwrap() < wanted {
                if counter.try_wait().unwrap() {
                    let begin = Instant::now();
                    counter.endpoints().wake().unwrap().sleep(Some(MINUTE));
                    assert!(begin.elapsed() < MINUTE, "nobody has woken it");
                }
            }
        };
        std::thread::scope(|scope| {
            // Each changes it for the other in turn.
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    add(&counter, 1, 0);
                    counter.wait(2 * round + 2, Deadline::after(60_000)).unwrap();
                }
            });
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    reached(2 * round + 1);
                    add(&counter, 1, 0);
                }
            });
        });
        assert_eq!(counter.succeeded(), Ok(2 * ROUNDS));
    }

    /// The thread that sleeps on the descriptor may not have seen yet that it was woken.
    #[test]
    fn a_thread_sleeps_while_the_descriptor_is_readable_for_another_one() {
        const BOUND: Duration = Duration::from_millis(20);
        let counter = Counter::new(true).unwrap();
        assert_eq!(counter.try_wait(), Ok(true));
        add(&counter, 1, 0);
        let (wake, event, begin) =
            (counter.endpoints().wake().unwrap(), Event::new().unwrap(), Instant::now());
        wake.sleep(Some(MINUTE));
        assert!(begin.elapsed() < MINUTE, "nobody has woken it");
        let begin = Instant::now();
        wake.sleep_with(&event, Some(BOUND));
        assert!(begin.elapsed() >= BOUND);
    }

    #[test]
    fn a_counter_without_a_descriptor_is_read_only() {
        let counter = Counter::new(false).unwrap();
        add(&counter, 3, 2);
        assert_eq!((counter.succeeded(), counter.failed()), (Ok(3), Ok(2)));
        assert_eq!(counter.wait(1, Deadline::after(0)), Err(FiError::NOT_THERE));
        assert_eq!(counter.try_wait(), Err(FiError::NOT_THERE));
    }
}
