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

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use harness::{MTU, config_with, fep};
use steady::Stream;
use weft_stack::cc::CcChoice;
use weft_stack::wire::pds::DeliveryMode;
use weft_stack::worker::session::{Client, SessionConfig, SessionListener, Sessions};
use weft_stack::worker::{Clock, Waker};

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

/// Sockets that are silent all the time.
const SILENT: usize = 200;

/// Counts the calls of a server's turns while sockets are silent, others come and go, and an application writes to its own.
fn count_at_server() {
    if !arm() {
        return skipped::skipped("the kernel cannot catch system calls (prctl PR_SET_SYSCALL_USER_DISPATCH)");
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let config = SessionConfig::default();
    let mut listener = SessionListener::open(&path, config, Waker::new().unwrap()).unwrap();
    let clock = Clock::new();
    let fep_config = config_with(&CcChoice::default(), MTU, true);
    let mut fep = fep(0, fep_config, 11, clock.now());
    let mut sessions = Sessions::new(4);
    // 0 while the application joins, 1 while it and the others do what must cost nothing, 2 when they have done.
    let stage = AtomicU8::new(0);
    thread::scope(|scope| {
        let applications = scope.spawn(|| {
            let client = Client::join(&path, &config, None, Duration::from_secs(60)).unwrap();
            let connect = || UnixStream::connect(&path).unwrap();
            let silent: Vec<UnixStream> = (0..SILENT).map(|_| connect()).collect();
            stage.store(1, Ordering::SeqCst);
            for _ in 0..100 {
                let passing: Vec<UnixStream> = (0..4).map(|_| connect()).collect();
                // SAFETY: the descriptor is the client's, and the byte lives until the call returns.
                unsafe {
                    libc::send(client.as_fd().as_raw_fd(), [1u8].as_ptr().cast(), 1, libc::MSG_DONTWAIT)
                };
                thread::sleep(Duration::from_millis(1));
                drop(passing);
            }
            stage.store(2, Ordering::SeqCst);
            // They leave when no calls are counted any more.
            (client, silent)
        });
        let (mut turns, mut joined) = (0u64, 0);
        let mut turn = |joined: &mut usize| {
            let now = clock.now();
            *joined += usize::from(listener.attend(&mut sessions, &mut fep, now).is_some());
            sessions.serve(&mut fep, now);
        };
        // An application that fails ends both loops.
        while stage.load(Ordering::SeqCst) == 0 && !applications.is_finished() {
            turn(&mut joined);
        }
        assert_eq!(joined, 1);
        let (calls, number) = caught_in(|| {
            while stage.load(Ordering::SeqCst) == 1 && !applications.is_finished() {
                turn(&mut joined);
                turns += 1;
            }
        });
        assert_eq!(calls, 0, "system call {number} in {turns} turns");
        assert!(turns > 0);
        let (_client, _silent) = applications.join().unwrap();
    });
}

/// Runs `test` in a thread of its own, as the kernel reports calls of one thread; and no other test meanwhile, as all share the
/// selector.
fn in_its_own_thread(test: fn()) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    thread::spawn(test).join().unwrap();
}

#[test]
fn silent_sockets_and_bytes_of_applications_cost_a_server_no_system_calls() {
    in_its_own_thread(count_at_server);
}

#[test]
fn a_stream_in_its_steady_state_makes_no_system_calls() {
    in_its_own_thread(count);
}
