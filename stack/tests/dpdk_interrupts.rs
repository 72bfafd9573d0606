//! Receive interrupts of DPDK's devices: a worker that waits for a frame sleeps until it arrives, and misses none. TAP
//! devices can be made anywhere; cards are tested in guests. Workers here sleep for an hour, so a wake-up within the
//! minute of a test is never due to a timer.

mod device_lab;
mod harness;
mod skipped;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use device_lab::in_own_network;
use harness::{config_with, content, host};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use skipped::skipped;
use weft_stack::Span;
use weft_stack::buffer::Buffer;
use weft_stack::cc::CcChoice;
use weft_stack::fep::{Completion, ConnectOptions, Fep, Receive, Send};
use weft_stack::packet::Addr;
use weft_stack::port::dpdk::{DpdkPort, DpdkPortConfig, Eal, EalOptions, MbufPool, MbufPoolConfig, Notice};
use weft_stack::port::{Port, RxBurst, TxBurst};
use weft_stack::rng::Rng;
use weft_stack::ses::Matching;
use weft_stack::worker::{AddressBook, Clock, Idle, LinkConfig, Strangers, Waker, Worker};

/// The longest wait of a test.
const LIMIT: Duration = Duration::from_secs(60);
const HOUR: Span = Span::from_ms(3_600_000);
/// Sleeps at once, until there is work.
const SLEEPY: Idle = Idle::Adaptive { spin: Span::ZERO, yield_for: Span::ZERO, sleep: HOUR };
/// Bytes of a message: one packet.
const LEN: usize = 200;
const MESSAGES: u32 = 500;
/// Keeps the kernel silent on interfaces without addresses.
const QUIET: &str = "sysctl -qw net.ipv6.conf.default.disable_ipv6=1";

fn open(device: &str, interrupts: bool) -> DpdkPort {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let eal = Eal::get().unwrap_or_else(|| Eal::init(&EalOptions::default()).unwrap());
    let config = MbufPoolConfig { buffers: 4095, buffer_size: 9216, cache: 0, socket: None };
    let pool = format!("pool{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let pool = MbufPool::create(eal, &pool, &config).unwrap();
    let config = DpdkPortConfig { mtu: 1500, promiscuous: true, interrupts, ..DpdkPortConfig::default() };
    let port = DpdkPort::open(eal, device, pool, &config).unwrap();
    port.wait_for_link(LIMIT).unwrap();
    port
}

/// A TAP device, and a packet socket at the kernel's end of it.
fn link(n: u32) -> (DpdkPort, DpdkPort) {
    let tap = open(&format!("net_tap{n},iface=wtap{n}"), true);
    let socket =
        format!("net_af_packet{n},iface=wtap{n},blocksz=36864,framesz=9216,framecnt=512,qdisc_bypass=0");
    (tap, open(&socket, true))
}

/// Runs `test` if TAP devices can be made; prints the reason otherwise.
fn with_taps(name: &str, test: impl FnOnce()) {
    if !in_own_network(name, QUIET) {
        return;
    }
    match std::fs::File::options().read(true).write(true).open("/dev/net/tun") {
        Ok(_) => test(),
        Err(error) => skipped(&format!("TAP: /dev/net/tun: {error}")),
    }
}

fn unannounced(port: &DpdkPort) -> bool {
    port.notices().iter().any(|notice| matches!(notice, Notice::NoInterrupts { .. }))
}

/// Waits for a frame for at most `patience`. Returns whether one was announced.
fn wait(port: &mut DpdkPort, patience: Duration) -> bool {
    let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
    let begin = Instant::now();
    let mut announced = false;
    assert!(port.waitable().is_some());
    while !announced {
        let mut fds = [PollFd::from_borrowed_fd(port.waitable().unwrap(), PollFlags::IN)];
        // The driver has the kernel send a signal with each frame, which interrupts the wait as well.
        announced = poll(&mut fds, Some(&timeout)).unwrap_or(0) == 1;
        if begin.elapsed() >= patience {
            break;
        }
    }
    port.waited();
    announced
}

fn send(port: &mut DpdkPort) {
    let mut tx = TxBurst::new(port);
    let mut frame = tx.reserve(60).unwrap();
    frame.fill(0xff);
    // An EtherType for experiments.
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame.commit();
    assert_eq!(port.transmit(&mut tx), 1);
}

#[test]
fn frames_of_a_tap_device_are_announced() {
    with_taps("frames_of_a_tap_device_are_announced", || {
        let (mut tap, mut socket) = link(0);
        assert!(tap.facts().interrupts && !unannounced(&tap));
        assert!(!socket.facts().interrupts && unannounced(&socket) && socket.waitable().is_none());
        let mut rx = RxBurst::new();
        for round in 0..200 {
            assert!(!wait(&mut tap, Duration::ZERO), "round {round}: nothing has come");
            assert_eq!(tap.woken(), round);
            send(&mut socket);
            assert!(wait(&mut tap, LIMIT), "round {round}");
            assert_eq!(tap.woken(), round + 1);
            // The driver looks once it has received the signal, which any thread may get.
            let begin = Instant::now();
            while tap.receive(&mut rx) == 0 {
                assert!(begin.elapsed() < LIMIT, "round {round}: what was announced is there");
            }
            assert_eq!(rx.drain().count(), 1);
        }
        assert_eq!(tap.counters().rx_frames, 200);
    });
}

#[test]
fn interrupts_stay_off_unless_configured() {
    with_taps("interrupts_stay_off_unless_configured", || {
        let mut tap = open("net_tap1,iface=wtap1", false);
        assert!(!tap.facts().interrupts && unannounced(&tap) && tap.waitable().is_none());
    });
}

/// A worker whose timers never end a sleep.
fn worker(own: u32, port: DpdkPort, idle: Idle) -> Worker<DpdkPort> {
    let clock = Clock::new();
    let base = config_with(&CcChoice::default(), 1024, false);
    let config = base.with_zones(|zone| zone.pdc.rto_init = HOUR);
    let fep = Fep::new(Addr(own), Arc::new(config), Rng::new(7, u64::from(own)), clock.now()).unwrap();
    let mut book = AddressBook::new(Addr(own), host(own, false), 2, Strangers::Refuse).unwrap();
    book.insert(Addr(1 - own), host(1 - own, false)).unwrap();
    let mut worker = Worker::new(fep, port, book, LinkConfig::default(), clock).unwrap();
    worker.set_idle(idle);
    worker
}

fn post_receive(fep: &mut Fep) {
    let buffer = Buffer::Heap(vec![0; LEN]);
    fep.post_receive(Receive { buffer, from: None, matching: Matching::Untagged, context: 0 }).unwrap();
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "{what}");
        thread::yield_now();
    }
}

/// Sends a message and waits until it is acknowledged.
fn send_message(sender: &mut Worker<DpdkPort>, connection: weft_stack::fep::ConnectionId, n: u32) {
    let send = Send { buffer: Buffer::Heap(content(n.into(), LEN)), tag: None, header_data: 0, context: 0 };
    sender.fep_mut().post_send(connection, send).unwrap();
    let done = sender.run_until(Span::from_ms(LIMIT.as_millis() as u64), |fep, _| {
        matches!(fep.poll_completion(), Some(Completion::Sent { result: Ok(()), .. }))
    });
    done.unwrap_or_else(|error| panic!("message {n} is slept through: {error}"));
}

#[test]
fn workers_that_sleep_over_a_tap_device_miss_no_frame() {
    with_taps("workers_that_sleep_over_a_tap_device_miss_no_frame", || {
        let (tap, socket) = link(2);
        let mut receiver = worker(1, tap, SLEEPY);
        let mut sender = worker(0, socket, Idle::Spin);
        let waker = Waker::new().unwrap();
        post_receive(receiver.fep_mut());
        let (done, result) = channel();
        let stop = waker.clone();
        thread::spawn(move || {
            let mut arrived = 0;
            receiver.run(&stop, |fep, _| match fep.poll_completion() {
                Some(Completion::Received { buffer, result, .. }) => {
                    assert!(result.is_ok() && buffer == Buffer::Heap(content(arrived, LEN)));
                    arrived += 1;
                    post_receive(fep);
                    true
                }
                other => other.is_some(),
            });
            done.send((receiver, arrived)).unwrap();
        });
        wait_for("it falls asleep", || waker.is_asleep());
        let now = sender.clock().now();
        let connection = sender.connect(now, Addr(1), ConnectOptions::default()).unwrap();
        let mut rng = Rng::new(8, 0);
        for n in 0..MESSAGES {
            // While it sleeps, while it falls asleep, and at all moments in between.
            if n % 2 == 0 {
                wait_for("it falls asleep again", || waker.is_asleep());
            }
            (0..rng.below(20_000)).for_each(|_| std::hint::spin_loop());
            send_message(&mut sender, connection, n);
        }
        wait_for("it falls asleep at last", || waker.is_asleep());
        waker.stop();
        let (receiver, arrived) = result.recv_timeout(LIMIT).unwrap();
        assert_eq!(arrived, u64::from(MESSAGES));
        assert!(receiver.port().woken() > 0 && sender.port().woken() == 0);
    });
}

#[test]
fn a_worker_over_a_tap_device_rarely_polls() {
    with_taps("a_worker_over_a_tap_device_rarely_polls", || {
        let (tap, _socket) = link(3);
        let mut worker = worker(0, tap, SLEEPY);
        let waker = Waker::new().unwrap();
        let (done, result) = channel();
        let stop = waker.clone();
        thread::spawn(move || {
            worker.run(&stop, |_, _| false);
            done.send(worker).unwrap();
        });
        wait_for("it falls asleep", || waker.is_asleep());
        thread::sleep(Duration::from_millis(300));
        waker.stop();
        let worker = result.recv_timeout(LIMIT).expect("stopping wakes it");
        // Two turns to fall asleep, and one after being woken.
        assert!(worker.counters().polls <= 4, "{} turns", worker.counters().polls);
        assert_eq!((worker.port().woken(), worker.port().counters().rx_frames), (0, 0));
    });
}
