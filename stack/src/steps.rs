//! Steps that tests count, where time must not depend on how much there is: no test measures time.

use std::cell::Cell;

thread_local!(static STEPS: Cell<u64> = const { Cell::new(0) });

/// This many entries have been looked at, one after the other.
pub(crate) fn count(steps: usize) {
    STEPS.set(STEPS.get() + steps as u64);
}

/// The steps that `action` takes in this thread.
pub(crate) fn of(action: impl FnOnce()) -> u64 {
    let before = STEPS.get();
    action();
    STEPS.get() - before
}
