//! Real threads over a memory port: two workers, two applications.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::port::Port;
use crate::port::memory::{MemoryConfig, pair};
use crate::wire::ethernet::MacAddr;
use crate::worker::{AddressBook, Clock, HostAddr, LinkConfig, Strangers, Worker};

const MESSAGES: u64 = 300;
/// Bytes of the longest message.
const LONGEST: usize = 20_000;
/// Far longer than it takes.
const LIMIT: Duration = Duration::from_secs(120);

fn worker<P: Port>(own: u32, port: P, clock: Clock) -> Worker<P> {
    let host =
        |n: u32| HostAddr { mac: MacAddr([2, 0, 0, 0, 0, n as u8]), ip: [10, 0, 0, n as u8 + 1].into() };
    // A thread may be kept from running for far longer than a network takes.
    let config = (*config()).clone().with_zones(|zone| zone.pdc.rto_init = Span::from_ms(200));
    let config = Arc::new(config);
    let fep = Fep::new(Addr(own), config, Rng::new(3, own.into()), clock.now()).unwrap();
    let mut book = AddressBook::new(Addr(own), host(own), 2, Strangers::Refuse).unwrap();
    book.insert(Addr(1 - own), host(1 - own)).unwrap();
    Worker::new(fep, port, book, LinkConfig::default(), clock).unwrap()
}

fn length(sender: u32, message: u64) -> usize {
    match message % 5 {
        0 => 0,
        1 => 1,
        2 => 1024,
        _ => {
            (content(message, 4).iter().fold(0, |all, &byte| all << 8 | usize::from(byte)) + sender as usize)
                % LONGEST
        }
    }
}

fn bytes_of(sender: u32, message: u64) -> Vec<u8> {
    content(message << 1 | u64::from(sender), length(sender, message))
}

/// Sends all messages to the other side and takes as many, with eight of each under way.
fn application(mut client: Client, own: u32, peer_process: u16) {
    const WAYS: u64 = 8;
    let options = ConnectOptions { process: peer_process, ..ConnectOptions::default() };
    let place = |message: u64, incoming: bool| {
        let at = (message % WAYS) * 2 + u64::from(incoming);
        at * (LONGEST as u64 + 1)
    };
    let started = Instant::now();
    let connection = client.connect(Addr(1 - own), options, u64::MAX).unwrap();
    let (mut sent, mut received, mut to_send, mut to_receive) = (0, 0, 0, 0);
    // Where packets are lost, messages end out of order: the place of one is free only once it has ended itself.
    let (mut sending, mut receiving) = (BTreeSet::new(), BTreeSet::new());
    let is_free =
        |under_way: &BTreeSet<u64>, message| under_way.first().is_none_or(|first| message < first + WAYS);
    while sent < MESSAGES || received < MESSAGES {
        assert!(started.elapsed() < LIMIT, "{sent} sent, {received} received");
        if to_receive < MESSAGES && is_free(&receiving, to_receive) {
            let room = extent(place(to_receive, true), LONGEST as u32);
            let matching = Matching::Tagged { tag: to_receive, ignore: 0 };
            match client.receive(room, None, matching, to_receive) {
                Ok(_) => {
                    receiving.insert(to_receive);
                    to_receive += 1;
                }
                Err(error) => assert_eq!(error, ClientError::Full),
            }
        }
        if to_send < MESSAGES && is_free(&sending, to_send) {
            let bytes = bytes_of(own, to_send);
            client.write(place(to_send, false), &bytes).unwrap();
            let from = extent(place(to_send, false), bytes.len() as u32);
            match client.send(connection, from, Some(to_send), !to_send, to_send) {
                Ok(_) => {
                    sending.insert(to_send);
                    to_send += 1;
                }
                Err(error) => assert_eq!(error, ClientError::Full),
            }
        }
        match client.poll().unwrap() {
            None => client.wait(Duration::from_millis(1)).unwrap(),
            Some(Event { report: Report::Connected { .. }, .. }) => {}
            Some(Event { context, report: Report::Sent { result: Ok(()), .. } }) => {
                sending.remove(&context);
                sent += 1;
            }
            Some(Event { context, report: Report::Received { len, header_data, result: Ok(()), .. } }) => {
                let expected = bytes_of(1 - own, context);
                assert_eq!((len as usize, header_data), (expected.len(), !context));
                let mut bytes = vec![0; expected.len()];
                client.read(place(context, true), &mut bytes).unwrap();
                assert!(bytes == expected, "message {context} has changed");
                receiving.remove(&context);
                received += 1;
            }
            Some(other) => panic!("{other:?}"),
        }
    }
    client.close(connection).unwrap();
    loop {
        match client.poll().unwrap() {
            Some(Event { report: Report::Closed { result: Ok(()), .. }, .. }) => return,
            Some(other) => panic!("{other:?}"),
            None => client.wait(Duration::from_millis(1)).unwrap(),
        }
    }
}

#[test]
fn two_applications_exchange_messages_through_workers_on_threads() {
    let clock = Clock::new();
    let (left, right) = pair(&MemoryConfig::default()).unwrap();
    // Sends and receives together: as many operations as can be under way at once.
    let config = SessionConfig { operations: 32, memory: 16 * (LONGEST as u32 + 1), ..SMALL };
    let done = AtomicBool::new(false);
    let mut workers = [worker(0, left, clock), worker(1, right, clock)];
    let mut sessions = [Sessions::new(1), Sessions::new(1)];
    let mut open = |side: usize| sessions[side].open(workers[side].fep_mut(), &config, Some(9)).unwrap();
    let clients = [open(0), open(1)];
    thread::scope(|scope| {
        let serve = |mut worker: Worker<_>, mut sessions: Sessions| {
            while !done.load(Ordering::Acquire) || !sessions.is_empty() {
                let now = worker.clock().now();
                let progress = worker.poll_at(now);
                if sessions.serve(&mut worker, now) == 0 && progress.is_idle() {
                    thread::yield_now();
                }
            }
        };
        for (worker, sessions) in workers.into_iter().zip(sessions) {
            scope.spawn(move || serve(worker, sessions));
        }
        let applications = clients
            .into_iter()
            .zip(0..)
            .map(|(client, own)| scope.spawn(move || application(client, own, 9)));
        let outcomes: Vec<_> =
            applications.collect::<Vec<_>>().into_iter().map(|thread| thread.join()).collect();
        done.store(true, Ordering::Release);
        assert!(outcomes.iter().all(Result::is_ok));
    });
}
