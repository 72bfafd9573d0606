//! What ends the sleep of a thread that waits for entries: a signal of the system, and `fi_cq_signal`.

use std::os::unix::thread::JoinHandleExt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::fabric::{BOUND, How, Opened, Side, Wish, close, getinfo, table};
use crate::common::inside;
use weft_fi::sys;

const AGAIN: isize = -(sys::FI_EAGAIN as isize);

extern "C" fn count(_signal: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);

/// Signals are handled, and what they interrupt is not begun again.
fn handle() {
    // SAFETY: zeros are a valid action, and the handler only counts.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as extern "C" fn(libc::c_int) as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, null_mut()), 0);
    }
}

/// What the thread returns, which is signalled until it ends.
fn interrupted(thread: JoinHandle<isize>) -> isize {
    let begin = Instant::now();
    while !thread.is_finished() {
        assert!(begin.elapsed() < BOUND, "it sleeps on after {} signals", HANDLED.load(Ordering::Relaxed));
        // SAFETY: the thread has not been joined.
        unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR1) };
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(HANDLED.load(Ordering::Relaxed) > 0);
    thread.join().unwrap()
}

#[test]
fn a_signal_ends_the_wait_for_an_entry() {
    if !inside("a_signal_ends_the_wait_for_an_entry") {
        return;
    }
    handle();
    let side = Side::open(&Wish::default(), How::default());
    let cq = side.cq.0.addr();
    let waits = std::thread::spawn(move || {
        let mut entry = sys::fi_cq_tagged_entry::default();
        let cq = cq as *mut sys::fid_cq;
        table!(cq, ops.sread((&raw mut entry).cast(), 1, std::ptr::null(), -1))
    });
    assert_eq!(interrupted(waits), AGAIN);
}

#[test]
fn a_signal_ends_the_wait_for_an_event() {
    if !inside("a_signal_ends_the_wait_for_an_event") {
        return;
    }
    handle();
    let info = getinfo(&Wish::default()).unwrap_or_else(|error| panic!("{error}"));
    let opened = Opened::new(&info);
    let mut eq = null_mut();
    let mut attr = sys::fi_eq_attr { wait_obj: sys::FI_WAIT_FD, ..sys::fi_eq_attr::default() };
    assert_eq!(table!(opened.fabric, ops.eq_open(&mut attr, &mut eq, null_mut())), 0);
    let at = eq.addr();
    let waits = std::thread::spawn(move || {
        let (mut number, mut entry) = (0, sys::fi_eq_entry::default());
        let eq = at as *mut sys::fid_eq;
        let len = size_of::<sys::fi_eq_entry>();
        table!(eq, ops.sread(&mut number, (&raw mut entry).cast(), len, -1, 0))
    });
    assert_eq!(interrupted(waits), AGAIN);
    assert_eq!(close(eq.cast()), 0);
}

#[test]
fn a_call_ends_the_waits_of_all_threads() {
    const THREADS: usize = 8;
    if !inside("a_call_ends_the_waits_of_all_threads") {
        return;
    }
    let side = Side::open(&Wish::default(), How::default());
    let cq = side.cq.0.addr();
    let wait = move || {
        let mut entry = sys::fi_cq_tagged_entry::default();
        let cq = cq as *mut sys::fid_cq;
        table!(cq, ops.sread((&raw mut entry).cast(), 1, std::ptr::null(), -1))
    };
    let threads: Vec<_> = (0..THREADS).map(|_| std::thread::spawn(wait)).collect();
    // On a busy machine some begin to wait after the first call.
    let mut calls = 0;
    while !threads.iter().all(JoinHandle::is_finished) {
        assert!(calls < THREADS / 2, "each call ends few of them");
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(table!(side.cq.0, ops.signal()), 0);
        calls += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(threads.into_iter().all(|thread| thread.join().unwrap() == AGAIN));
}
