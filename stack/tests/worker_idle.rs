//! Workers that have nothing to do: how often they poll, and what wakes them. They would sleep for an hour here, so an
//! event that they notice within a minute must have woken them.

mod harness;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use harness::{config, content, host, worker_in_real_time};
use weft_stack::Span;
use weft_stack::buffer::Buffer;
use weft_stack::fep::{Completion, ConnectOptions, Failure, Fep, Receive, Send, SendError};
use weft_stack::packet::Addr;
use weft_stack::pdc::PdcConfig;
use weft_stack::port::Port;
use weft_stack::port::memory::{MemoryConfig, pair};
use weft_stack::port::udp::{UdpConfig, UdpPort};
use weft_stack::ses::Matching;
use weft_stack::worker::{Clock, Idle, Waker, Worker};

/// The longest wait.
const LIMIT: Duration = Duration::from_secs(60);
const HOUR: Span = Span::from_ms(3_600_000);
/// A worker sleeps as soon as it has nothing to do, for an hour at most.
const SLEEPY: Idle = Idle::Adaptive { spin: Span::ZERO, yield_for: Span::ZERO, sleep: HOUR };

fn ports() -> [UdpPort; 2] {
    let open = |n| {
        let config = UdpConfig { alias: Some(host(n, false).ip), ..UdpConfig::at([127, 0, 0, 1].into()) };
        UdpPort::open(&config.with_free_ports()).unwrap()
    };
    let (mut a, mut b) = (open(0), open(1));
    a.meet(&b.as_peer()).unwrap();
    b.meet(&a.as_peer()).unwrap();
    [a, b]
}

/// A worker that is [`SLEEPY`] and retransmits after `rto`. Its peer may be silent for 63 RTO.
fn worker<P: Port>(own: u32, port: P, rto: Span) -> Worker<P> {
    let config =
        config(true).with_zones(|zone| zone.pdc = PdcConfig { rto_init: rto, max_retries: 5, ..zone.pdc });
    let mut worker = worker_in_real_time(own, 2, port, config, Clock::new());
    worker.set_idle(SLEEPY);
    worker
}

/// Runs `job` in a thread, and sends what it returns.
fn in_a_thread<T: std::marker::Send + 'static>(
    job: impl FnOnce() -> T + std::marker::Send + 'static,
) -> Receiver<T> {
    let (done, result) = channel();
    thread::spawn(move || done.send(job()));
    result
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "{what}");
        thread::yield_now();
    }
}

/// Runs a worker until its waker is stopped, and returns it.
fn run<P: Port + std::marker::Send + 'static>(
    mut worker: Worker<P>,
    waker: &Waker,
    step: impl FnMut(&mut Fep, weft_stack::Time) -> bool + std::marker::Send + 'static,
) -> Receiver<Worker<P>> {
    let waker = waker.clone();
    in_a_thread(move || {
        worker.run(&waker, step);
        worker
    })
}

#[test]
fn an_idle_worker_sleeps() {
    let [port, _other] = ports();
    let waker = Waker::new().unwrap();
    let done = run(worker(0, port, HOUR), &waker, |_, _| false);
    wait_until("the worker falls asleep", || waker.is_asleep());
    thread::sleep(Duration::from_millis(300));
    waker.stop();
    let worker = done.recv_timeout(LIMIT).expect("stopping wakes the worker");
    // The worker needs two turns to fall asleep, and one to find out why it was woken.
    assert!(worker.counters().polls <= 4, "{} turns", worker.counters().polls);
    assert!(!waker.is_asleep());
}

#[test]
fn a_spinning_worker_never_sleeps() {
    let (port, _other) = pair(&MemoryConfig::default()).unwrap();
    let waker = Waker::new().unwrap();
    let mut worker = worker(0, port, HOUR);
    worker.set_idle(Idle::Spin);
    let turns = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&turns);
    let done = run(worker, &waker, move |_, _| {
        counter.fetch_add(1, Ordering::Relaxed);
        false
    });
    wait_until("the worker polls", || turns.load(Ordering::Relaxed) > 10_000);
    waker.stop();
    done.recv_timeout(LIMIT).unwrap();
}

#[test]
fn frames_wake_a_sleeping_worker() {
    let [left, right] = ports();
    // Timers are an hour away, so only data and the acknowledgement can wake a worker.
    let mut sender = worker(0, left, HOUR);
    let mut receiver = worker(1, right, HOUR);
    let (len, waker) = (3_000, Waker::new().unwrap());
    let buffer = Buffer::Heap(vec![0; len]);
    receiver
        .fep_mut()
        .post_receive(Receive { buffer, from: None, matching: Matching::Untagged, context: 0 })
        .unwrap();
    let (arrived, arrival) = channel();
    let done = run(receiver, &waker, move |fep, _| {
        fep.poll_completion().is_some_and(|completion| arrived.send(completion).is_ok())
    });
    wait_until("the receiver falls asleep", || waker.is_asleep());

    let sent = in_a_thread(move || {
        let now = sender.clock().now();
        let connection = sender.connect(now, Addr(1), ConnectOptions::default()).unwrap();
        let buffer = Buffer::Heap(content(1, len));
        sender
            .fep_mut()
            .post_send(connection, Send { buffer, tag: None, header_data: 0, context: 0 })
            .unwrap();
        sender.run_until(HOUR, |fep, _| {
            matches!(fep.poll_completion(), Some(Completion::Sent { result: Ok(()), .. }))
        })
    });
    let Completion::Received { buffer, .. } = arrival.recv_timeout(LIMIT).expect("data wakes the receiver")
    else {
        panic!("the receiver only receives");
    };
    assert!(buffer == Buffer::Heap(content(1, len)));
    assert_eq!(sent.recv_timeout(LIMIT).expect("the acknowledgement wakes the sender"), Ok(()));
    waker.stop();
    let receiver = done.recv_timeout(LIMIT).unwrap();
    assert!(receiver.counters().polls < 100, "{} turns", receiver.counters().polls);
}

/// The packet is sent at 0, 1, 3, 7, 11, …, 59 RTO, and given up after 63 RTO. The system may wake the worker late, and
/// each 4 RTO of that cost a transmission. The network trims, so there are no probes.
#[test]
fn timers_wake_a_sleeping_worker() {
    let rto = Span::from_ms(20);
    let [port, _deaf] = ports();
    let mut worker = worker(0, port, rto);
    let now = worker.clock().now();
    let connection = worker.connect(now, Addr(1), ConnectOptions::default()).unwrap();
    let send = Send { buffer: Buffer::Heap(vec![1; 100]), tag: None, header_data: 0, context: 0 };
    worker.fep_mut().post_send(connection, send).unwrap();
    let failed = in_a_thread(move || {
        let (mut due, mut late, mut failure) = (None, Span::ZERO, None);
        let result = worker.run_until(HOUR, |fep, now| {
            let expired = due.filter(|due| now.is_at_or_after(*due));
            late = late.plus(expired.map_or(Span::ZERO, |due| now.since(due)));
            due = fep.poll_timeout();
            if let Some(Completion::Sent { result: Err(SendError::Failed(why)), .. }) = fep.poll_completion()
            {
                failure = Some(why);
            }
            failure.is_some()
        });
        let counters = worker.fep().counters();
        assert_eq!(counters.probes_sent, 0);
        let sent = counters.data_sent + counters.data_retransmitted;
        (result, worker.counters().polls, sent, late, failure)
    });
    let (result, turns, sent, late, failure) =
        failed.recv_timeout(LIMIT).expect("each timer wakes the worker");
    assert_eq!(result, Ok(()));
    let Some(Failure::NoAnswer { waited, sent: named, .. }) = failure else { panic!("{failure:?}") };
    assert!(waited >= rto.times(63), "{waited}");
    assert_eq!(u64::from(named), sent);
    let missed = late.as_ps() / rto.times(4).as_ps();
    assert!((17_u64.saturating_sub(missed)..=17).contains(&sent), "sent {sent} times, timers late by {late}");
    assert!(turns < 20 * sent, "{turns} turns for {sent} packets");
}

#[test]
fn a_waker_wakes_a_sleeping_worker_every_time() {
    let [port, _other] = ports();
    let waker = Waker::new().unwrap();
    let (asked, answered) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (question, answer) = (Arc::clone(&asked), Arc::clone(&answered));
    let done = run(worker(0, port, HOUR), &waker, move |_, _| {
        let seen = question.load(Ordering::Relaxed);
        seen != answer.swap(seen, Ordering::Relaxed)
    });
    for n in 1..=3_000 {
        asked.store(n, Ordering::Relaxed);
        waker.wake();
        wait_until("an answer", || answered.load(Ordering::Relaxed) == n);
        if n % 3 == 0 {
            wait_until("the worker falls asleep again", || waker.is_asleep());
        }
    }
    waker.stop();
    done.recv_timeout(LIMIT).unwrap();
}

#[test]
fn a_worker_polls_a_port_that_cannot_wake_it() {
    let (left, right) = pair(&MemoryConfig::default()).unwrap();
    let mut sender = worker(0, left, HOUR);
    let mut receiver = worker(1, right, HOUR);
    let (waker, heard) = (Waker::new().unwrap(), Arc::new(AtomicBool::new(false)));
    let buffer = Buffer::Heap(vec![0; 10]);
    receiver
        .fep_mut()
        .post_receive(Receive { buffer, from: None, matching: Matching::Untagged, context: 0 })
        .unwrap();
    let flag = Arc::clone(&heard);
    let done = run(receiver, &waker, move |fep, _| {
        let some = fep.poll_completion().is_some();
        flag.fetch_or(some, Ordering::Relaxed);
        some
    });
    wait_until("the receiver falls asleep", || waker.is_asleep());
    let connection = sender.connect(sender.clock().now(), Addr(1), ConnectOptions::default()).unwrap();
    let send = Send { buffer: Buffer::Heap(vec![1; 10]), tag: None, header_data: 0, context: 0 };
    sender.fep_mut().post_send(connection, send).unwrap();
    sender.poll();
    wait_until("the message is received", || heard.load(Ordering::Relaxed));
    waker.stop();
    done.recv_timeout(LIMIT).unwrap();
}
