//! The fast path makes no system calls. The kernel reports each call of the thread before it acts on it (Syscall User
//! Dispatch, Linux 5.11).
//!
//! A thread that makes no system call does not wait for a lock either, because waiting means sleeping in the kernel.
//! This test cannot see locks that are free. The fast path has none: ports and pools are lock-free queues, one thread
//! owns the endpoint, and readers of the clock take no lock.
#![cfg(target_arch = "x86_64")]

mod harness;
mod skipped;
mod steady;

use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::thread;

use steady::Stream;
use weft_stack::cc::CcChoice;
use weft_stack::wire::pds::DeliveryMode;

const PR_SET_SYSCALL_USER_DISPATCH: libc::c_int = 59;
const PR_SYS_DISPATCH_ON: libc::c_ulong = 1;
const ALLOW: u8 = 0;
const BLOCK: u8 = 1;

/// The kernel reads this when the thread under test makes a system call.
static SELECTOR: AtomicU8 = AtomicU8::new(ALLOW);
static CAUGHT: AtomicU64 = AtomicU64::new(0);
static LAST: AtomicI64 = AtomicI64::new(-1);

/// Counts the system call, and allows it and all later ones.
extern "C" fn caught(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    SELECTOR.store(ALLOW, Ordering::Relaxed);
    CAUGHT.fetch_add(1, Ordering::Relaxed);
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: with SA_SIGINFO the kernel passes the context of what was interrupted, which is this thread's.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    LAST.store(registers[libc::REG_RAX as usize], Ordering::Relaxed);
    // The kernel has cancelled the call but not moved back to its instruction, which has two bytes.
    registers[libc::REG_RIP as usize] -= 2;
}

/// Asks the kernel to report system calls of the calling thread while [`SELECTOR`] is [`BLOCK`]. Returns whether the
/// kernel can.
fn arm() -> bool {
    // SAFETY: all zeroes are a valid action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = caught as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler only stores to atomics and changes the context that it is given.
    assert_eq!(unsafe { libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut()) }, 0);
    // SAFETY: the selector is static; no range of addresses is excepted.
    0 == unsafe {
        libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, 0_u64, 0_u64, SELECTOR.as_ptr())
    }
}

/// Whether `action` makes a system call (1, or 0), and the number of the first one.
fn caught_in(action: impl FnOnce()) -> (u64, i64) {
    let before = CAUGHT.load(Ordering::Relaxed);
    SELECTOR.store(BLOCK, Ordering::SeqCst);
    action();
    SELECTOR.store(ALLOW, Ordering::SeqCst);
    (CAUGHT.load(Ordering::Relaxed) - before, LAST.load(Ordering::Relaxed))
}

fn count() {
    if !arm() {
        return skipped::skipped("the kernel cannot catch system calls (prctl PR_SET_SYSCALL_USER_DISPATCH)");
    }
    let (calls, number) = caught_in(|| {
        // SAFETY: takes and changes nothing.
        unsafe { libc::getppid() };
    });
    assert_eq!((calls, number), (1, libc::SYS_getppid), "the kernel reports system calls");

    for (mode, packets) in [(DeliveryMode::Rud, 64), (DeliveryMode::Rod, 64), (DeliveryMode::Rud, 1)] {
        let mut stream = Stream::new(&CcChoice::default(), mode, false, packets);
        let mut sent = 0;
        let (calls, number) = caught_in(|| sent = stream.run(100));
        assert_eq!(calls, 0, "system call {number} in {sent} packets, {mode:?}, {packets} a message");
        assert!(sent > 0);
    }
    for packets in [64, 1] {
        let mut stream = Stream::over_memif(packets);
        let mut sent = 0;
        let (calls, number) = caught_in(|| sent = stream.run(100));
        assert_eq!(calls, 0, "system call {number} in {sent} packets over memif, {packets} a message");
        assert!(sent > 0);
    }
}

#[test]
fn a_stream_in_its_steady_state_makes_no_system_calls() {
    // The kernel reports calls of one thread, so the test needs its own.
    thread::spawn(count).join().unwrap();
}
