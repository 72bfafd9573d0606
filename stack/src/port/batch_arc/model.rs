//! All interleavings and all values that the memory model allows, for small cases.
//!
//! The value has one cell for each share, as [`RxHeaders`](crate::port::borrowed::RxHeaders) has one place for each
//! frame. The checker reports accesses to a cell that are not ordered, values that are not freed, and uses after that.

use loom::alloc::Track;
use loom::cell::UnsafeCell;
use loom::thread;

use super::*;

/// Two shares protect a cell each. `Track` is reported if it is never dropped.
type Cells = (UnsafeCell<[u32; 2]>, UnsafeCell<[u32; 2]>, Track<()>);

fn cells() -> BatchArc<Shared> {
    BatchArc::new(Shared((UnsafeCell::new([0; 2]), UnsafeCell::new([0; 2]), Track::new(()))))
}

struct Shared(Cells);

// SAFETY: the checker watches every access to the cells.
unsafe impl Send for Shared {}
// SAFETY: the checker watches every access to the cells.
unsafe impl Sync for Shared {}

/// Adds 1 to a cell, as the holder of its share may.
fn add(cell: &UnsafeCell<[u32; 2]>) {
    // SAFETY: the checker fails if another access is not ordered with this one.
    cell.with_mut(|numbers| unsafe { (*numbers)[0] += 1 });
}

fn value(cell: &UnsafeCell<[u32; 2]>) -> u32 {
    // SAFETY: as in `add`.
    cell.with(|numbers| unsafe { (*numbers)[0] })
}

/// Access to the value under a share, which the real users have by pointers into it.
fn of(share: &Share<Shared>) -> &Shared {
    // SAFETY: the share is counted.
    unsafe { &share.0.as_ref().value }
}

/// Writes its cell under each of two shares on two other threads; the owner writes them again once all are back.
#[test]
fn the_owner_sees_the_writes_under_returned_shares() {
    loom::model(|| {
        let mut owner = cells();
        let mut batch = owner.try_share(2).1.unwrap();
        let (first, second) = (batch.split().unwrap(), batch.split().unwrap());
        drop(batch);
        let one = thread::spawn(move || {
            add(&of(&first).0.0);
            drop(first);
        });
        let two = thread::spawn(move || {
            add(&of(&second).0.1);
            drop(second);
        });
        if let (Shared((first, second, _)), Some(_again)) = owner.try_share(2) {
            add(first);
            add(second);
            assert_eq!((value(first), value(second)), (2, 2));
        }
        one.join().unwrap();
        two.join().unwrap();
        assert_eq!(owner.shares_out(), 0);
    });
}

/// Shares that come back together count as much as those that come back one by one.
#[test]
fn a_batch_that_comes_back_together_gives_everything_back() {
    loom::model(|| {
        let mut owner = cells();
        let mut batch = owner.try_share(2).1.unwrap();
        let (first, second) = (batch.split().unwrap(), batch.split().unwrap());
        let other = thread::spawn(move || {
            add(&of(&first).0.0);
            add(&of(&second).0.1);
            let mut together = Returned::default();
            together.add(first);
            together.add(second);
        });
        drop(batch);
        if let (Shared((first, second, _)), Some(_again)) = owner.try_share(1) {
            add(first);
            add(second);
        }
        other.join().unwrap();
        assert_eq!(owner.shares_out(), 0);
    });
}

/// The owner leaves while shares are out, and the last of the three frees the value, after everything that was done.
#[test]
fn the_last_reference_frees_the_value_once() {
    loom::model(|| {
        let mut owner = cells();
        let mut batch = owner.try_share(2).1.unwrap();
        let (first, second) = (batch.split().unwrap(), batch.split().unwrap());
        drop(batch);
        let one = thread::spawn(move || {
            add(&of(&first).0.0);
            drop(first);
        });
        let two = thread::spawn(move || {
            add(&of(&second).0.1);
            drop(second);
        });
        drop(owner);
        one.join().unwrap();
        two.join().unwrap();
    });
}

/// The test of the tests: the checker finds it when shares come back without a release.
#[test]
#[should_panic(expected = "Causality violation")]
fn the_checker_sees_a_share_given_back_without_release() {
    loom::model(|| {
        let mut owner = cells();
        let mut batch = owner.try_share(1).1.unwrap();
        let share = batch.split().unwrap();
        drop(batch);
        let other = thread::spawn(move || {
            add(&of(&share).0.0);
            // SAFETY: counted, and not given back a second time below.
            unsafe { share.0.as_ref() }.references.fetch_sub(1, Ordering::Relaxed);
            std::mem::forget(share);
        });
        if let (Shared((first, ..)), Some(_again)) = owner.try_share(1) {
            add(first);
        }
        other.join().unwrap();
    });
}
