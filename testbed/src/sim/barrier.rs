//! The barrier at which the threads of a run wait for each other.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A barrier for a fixed number of threads.
pub(super) struct Barrier {
    threads: usize,
    waiting: AtomicUsize,
    turn: AtomicUsize,
    /// A thread has panicked and will never arrive.
    broken: AtomicBool,
}

/// Polls of the barrier before a thread yields its processor: some microseconds.
const SPINS: u32 = 128;

impl Barrier {
    pub(super) fn new(threads: usize) -> Barrier {
        Barrier {
            threads,
            waiting: AtomicUsize::new(0),
            turn: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
        }
    }

    /// Waits until all threads have arrived. Returns false if one of them has panicked.
    pub(super) fn wait(&self) -> bool {
        let turn = self.turn.load(Ordering::Acquire);
        if self.waiting.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.waiting.store(0, Ordering::Release);
            self.turn.fetch_add(1, Ordering::Release);
            return true;
        }
        let mut spins = 0;
        while self.turn.load(Ordering::Acquire) == turn {
            if self.broken.load(Ordering::Relaxed) {
                return false;
            }
            spins += 1;
            match spins < SPINS {
                true => std::hint::spin_loop(),
                false => std::thread::yield_now(),
            }
        }
        true
    }
}

/// Breaks the barrier when its thread panics, so that the other threads do not wait for it.
pub(super) struct Guard<'a>(pub(super) &'a Barrier);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.broken.store(true, Ordering::Relaxed);
        }
    }
}
