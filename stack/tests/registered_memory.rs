//! Messages from registered memory over links that lose, duplicate, reorder, delay and damage frames. Every byte
//! arrives as it was posted, although the application overwrites its memory and posts it again as soon as a message
//! completes, while frames that are held back still refer to that memory.

mod harness;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::{MTU, START, WorkerPair, config, content, worker, worker_in_real_time};
use tempfile::TempDir;
use weft_stack::Span;
use weft_stack::buffer::Buffer;
use weft_stack::fep::{Completion, ConnectOptions, ConnectionId, Fep, Receive, Send};
use weft_stack::packet::Addr;
use weft_stack::port::faulty::{FaultCounts, Faults, FaultyPort};
use weft_stack::port::memif::{MemifConfig, MemifPort, SocketName};
use weft_stack::port::{FramePool, Port, PortCaps, PortCounters, RxBurst, TxBurst};
use weft_stack::region::{Region, SharedRegion};
use weft_stack::rng::Rng;
use weft_stack::ses::Matching;
use weft_stack::wire::MAX_IPV4_HEADERS;
use weft_stack::wire::pds::DeliveryMode;
use weft_stack::worker::{Clock, LinkConfig};

const NONE: Faults =
    Faults { drop: 0.0, corrupt: 0.0, duplicate: 0.0, reorder: 0.0, delay: 0.0, delay_frames: 0 };

const ALL_BUT_DAMAGE: Faults =
    Faults { drop: 0.1, duplicate: 0.05, reorder: 0.05, delay: 0.02, delay_frames: 40, ..NONE };

/// So late that the packet has been retransmitted, and its message and others have completed; but not so late that the
/// connection is closed: the exchange takes from 150 turns on.
const MUCH_LATER: Faults = Faults { drop: 0.01, delay: 0.05, delay_frames: 100, ..NONE };

/// The faults in the frames that each end sends. The memory of the first end is registered.
const CASES: [(&str, [Faults; 2]); 8] = [
    ("1 % loss", [Faults { drop: 0.01, ..NONE }; 2]),
    ("10 % loss", [Faults { drop: 0.1, ..NONE }; 2]),
    ("5 % duplication", [Faults { duplicate: 0.05, ..NONE }; 2]),
    ("5 % reordering", [Faults { reorder: 0.05, delay: 0.02, delay_frames: 40, ..NONE }; 2]),
    ("5 % much later", [MUCH_LATER; 2]),
    ("all at once", [ALL_BUT_DAMAGE; 2]),
    ("all at once, answers damaged", [ALL_BUT_DAMAGE, Faults { corrupt: 0.02, ..ALL_BUT_DAMAGE }]),
    ("all at once, all damaged", [Faults { corrupt: 0.02, ..ALL_BUT_DAMAGE }; 2]),
];

/// Lengths around the least payload that is attached, around a packet, and beyond what is in flight at a time.
const SIZES: [u32; 8] = [1, 1023, 1024, MTU - 1, MTU, 5 * MTU + 17, 1 << 16, 200_000];

/// Messages that each end sends. Successive messages differ in length.
const MESSAGES: u64 = 40;

/// Bytes of memory for each message in flight.
const SLOT: u64 = 1 << 18;

/// The application overwrites memory with this byte when a message completes.
const SCRIBBLE: u8 = 0xee;

/// More turns than the slowest case takes, by far.
const MAX_TURNS: u32 = 2_000_000;

/// The longest wait until both ends of a link are up.
const LINK: Duration = Duration::from_secs(20);

/// Bytes of the longest headers of a data packet over IPv4.
const HEADERS: usize = 14 + MAX_IPV4_HEADERS;

/// A port that counts the received frames in two parts whose first part holds no payload: their payload is still in
/// the memory of the sender.
struct Watched {
    inner: MemifPort,
    referred: u64,
}

impl Port for Watched {
    fn receive(&mut self, burst: &mut RxBurst) -> usize {
        let before = burst.len();
        let count = self.inner.receive(burst);
        let refers = burst[before..].iter().filter(|frame| frame.is_attached() && frame.len() <= HEADERS);
        self.referred += refers.count() as u64;
        count
    }

    fn transmit(&mut self, burst: &mut TxBurst) -> usize {
        self.inner.transmit(burst)
    }

    fn capabilities(&self) -> PortCaps {
        self.inner.capabilities()
    }

    fn pool(&self) -> FramePool {
        self.inner.pool()
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }

    fn register(&mut self, memory: &SharedRegion) -> bool {
        self.inner.register(memory)
    }

    fn recall(&mut self) {
        self.inner.recall();
    }
}

type Disturbed = FaultyPort<Watched>;

/// A client, whose memory is registered, and a server, with these faults in the frames that each sends.
fn link(faults: [Faults; 2]) -> (TempDir, Region, [Disturbed; 2]) {
    let directory = tempfile::tempdir().unwrap();
    let socket = SocketName::Path(directory.path().join("registered.sock"));
    let configs = [MemifConfig::client(socket.clone()), MemifConfig::server(socket)];
    let mut ports = configs.map(|config| Watched { inner: MemifPort::open(&config).unwrap(), referred: 0 });
    let memory = SharedRegion::allocate(3 * SLOT as usize).unwrap();
    assert!(ports[0].register(&memory));
    ports.iter().for_each(|port| port.inner.wait_for_link(LINK).unwrap());
    let mut disturbed = (0..)
        .zip(ports)
        .zip(faults)
        .map(|((n, port), faults)| FaultyPort::sending(port, faults, Rng::new(7, n)).unwrap());
    let ends = [disturbed.next().unwrap(), disturbed.next().unwrap()];
    (directory, memory.region().clone(), ends)
}

fn size(tag: u64) -> u32 {
    SIZES[(tag * 5 % SIZES.len() as u64) as usize]
}

/// The bytes of message `tag` of endpoint `own`.
fn bytes_of(own: u32, tag: u64) -> Vec<u8> {
    content(2 * tag + u64::from(own), size(tag) as usize)
}

fn read(memory: &Region, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    memory.slice(offset, len).unwrap().read(0, &mut bytes);
    bytes
}

/// The application at one end. It sends its messages from a few slots of memory, one after the other, and receives the
/// messages of the other end.
struct Application {
    own: u32,
    connection: ConnectionId,
    /// The slots that messages are sent from.
    memory: Region,
    /// The tag of the next message to send.
    next: u64,
    sent: u64,
    retransmissions: u64,
    /// Frames that were held back when the only message in flight completed, and so refer to memory that changes.
    stale: usize,
    slots: u64,
    landing: Region,
    arrived: Vec<bool>,
}

impl Application {
    fn new(own: u32, fep: &mut Fep, connection: ConnectionId, memory: Region, slots: u64) -> Application {
        let room = (0..MESSAGES).map(|tag| size(tag) as usize).sum();
        let landing = Region::allocate(room).unwrap();
        let arrived = vec![false; MESSAGES as usize];
        let (next, sent, retransmissions, stale) = (0, 0, 0, 0);
        let mut application = Application {
            own,
            connection,
            memory,
            next,
            sent,
            retransmissions,
            stale,
            slots,
            landing,
            arrived,
        };
        (0..MESSAGES).for_each(|tag| application.expect(fep, tag));
        (0..slots).for_each(|slot| application.post(fep, slot));
        application
    }

    /// The offset at which message `tag` arrives.
    fn place(tag: u64) -> u64 {
        (0..tag).map(|before| u64::from(size(before))).sum()
    }

    fn expect(&mut self, fep: &mut Fep, tag: u64) {
        let buffer = Buffer::Region(self.landing.slice(Self::place(tag), size(tag)).unwrap());
        let (from, matching) = (Some(Addr(1 - self.own).into()), Matching::Tagged { tag, ignore: 0 });
        fep.post_receive(Receive { buffer, from, matching, context: tag }).unwrap();
    }

    /// Posts the next message from this slot, if there is one.
    fn post(&mut self, fep: &mut Fep, slot: u64) {
        if self.next == MESSAGES {
            return;
        }
        let tag = self.next;
        self.next += 1;
        let place = self.memory.slice(slot * SLOT, size(tag)).unwrap();
        place.write(0, &bytes_of(self.own, tag));
        let send = Send { buffer: Buffer::Region(place), tag: Some(tag), header_data: !tag, context: slot };
        fep.post_send(self.connection, send).unwrap();
    }

    /// Handles completions. `held` is the number of held-back frames that refer to the application's memory.
    fn go_on(&mut self, fep: &mut Fep, held: usize) {
        while let Some(completion) = fep.poll_completion() {
            match completion {
                Completion::Sent { context: slot, result: Ok(()), retransmissions, .. } => {
                    self.sent += 1;
                    self.retransmissions += u64::from(retransmissions);
                    self.stale += if self.slots == 1 { held } else { 0 };
                    let all = self.memory.slice(slot * SLOT, SLOT as u32).unwrap();
                    all.write(0, &[SCRIBBLE; SLOT as usize]);
                    self.post(fep, slot);
                }
                Completion::Received {
                    context, tag: Some(tag), header_data, len, result: Ok(()), ..
                } => {
                    assert_eq!((context, header_data, len), (tag, !tag, size(tag)));
                    let before = std::mem::replace(&mut self.arrived[tag as usize], true);
                    assert!(!before, "message {tag} has arrived twice");
                    self.check(tag);
                }
                // Peers close connections that are idle for long.
                Completion::Closed { .. } if self.is_done() => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn check(&self, tag: u64) {
        let seen = read(&self.landing, Self::place(tag), size(tag));
        assert!(seen == bytes_of(1 - self.own, tag), "message {tag} to {} is not what was sent", self.own);
    }

    fn is_done(&self) -> bool {
        self.sent == MESSAGES && self.arrived.iter().all(|arrived| *arrived)
    }
}

/// Runs both applications until they are done, and then as long as frames may be held back.
fn exchange(
    name: &str,
    pair: &mut WorkerPair<Disturbed, Disturbed>,
    mut applications: [Application; 2],
) -> [Application; 2] {
    let (mut turns, mut after) = (0, 0);
    while after < 2 * MUCH_LATER.delay_frames {
        pair.turn();
        let held = [pair.a.port().held_attached(), pair.b.port().held_attached()];
        for (application, held) in applications.iter_mut().zip(held) {
            application.go_on(pair.fep(application.own), held);
        }
        (turns, after) =
            (turns + 1, if applications.iter().all(Application::is_done) { after + 1 } else { 0 });
        assert!(turns < MAX_TURNS, "{name}: {:?}", pair.a.fep().explain(pair.now));
    }
    applications.iter().for_each(|application| (0..MESSAGES).for_each(|tag| application.check(tag)));
    applications
}

fn survives(name: &str, faults: [Faults; 2], slots: u64, mode: DeliveryMode) {
    let (_directory, registered, [a, b]) = link(faults);
    let config = config(false).with_zones(|zone| zone.paths = 64);
    let side = |own, port| worker(own, port, &config, LinkConfig::default(), false);
    let mut pair = WorkerPair::new(side(0, a), side(1, b));
    // Only clients can register memory.
    let memories = [registered, Region::allocate((slots * SLOT) as usize).unwrap()];
    let mut applications = (0..).zip(memories).map(|(own, memory)| {
        let connection = pair.connect(own, mode);
        Application::new(own, pair.fep(own), connection, memory, slots)
    });
    let applications = [applications.next().unwrap(), applications.next().unwrap()];
    let name = format!("{name}, {slots} at a time, {mode:?}");
    let applications = exchange(&name, &mut pair, applications);
    let struck = [pair.a.port().fault_counts(), pair.b.port().fault_counts()];
    (0..2).for_each(|own| assert_faults_struck(&name, struck[own], faults[own]));
    assert_sent_from_where_it_was(&name, &pair, faults);
    let lost = faults[0].drop > 0.0;
    assert!(!lost || applications[0].retransmissions > 0, "{name}: lost packets are retransmitted");
    let is_late = faults[0].delay_frames == MUCH_LATER.delay_frames;
    if is_late {
        assert!(pair.b.fep().counters().duplicates_received > 0, "{name}: some late frame must arrive");
        let changed = slots > 1 || applications[0].stale > 0;
        assert!(changed, "{name}: some frame must refer to memory that has changed");
    }
}

/// Checks that frames of the client refer to its registered memory, unless faults could damage it, and that frames of
/// the server, whose memory is not registered, never do.
fn assert_sent_from_where_it_was(name: &str, pair: &WorkerPair<Disturbed, Disturbed>, faults: [Faults; 2]) {
    let attached = [pair.a.counters().attached, pair.b.counters().attached];
    let referred = [pair.b.port().inner().referred, pair.a.port().inner().referred];
    for own in [0, 1] {
        assert_eq!(attached[own] > 0, faults[own].corrupt == 0.0, "{name}: end {own}, {attached:?}");
    }
    assert_eq!(referred[0] > 0, faults[0].corrupt == 0.0, "{name}: {referred:?}");
    assert_eq!(referred[1], 0, "{name}");
    let FaultCounts { dropped, duplicated, .. } = pair.a.port().fault_counts();
    let arrived = attached[0].saturating_sub(dropped)..=attached[0] + duplicated;
    assert!(attached[0] == 0 || arrived.contains(&referred[0]), "{name}: {referred:?} of {attached:?}");
}

/// Checks that each fault of the case has struck, since otherwise the case would show nothing.
fn assert_faults_struck(name: &str, struck: FaultCounts, faults: Faults) {
    for (p, struck) in [
        (faults.drop, struck.dropped),
        (faults.corrupt, struck.corrupted),
        (faults.duplicate, struck.duplicated),
        (faults.reorder, struck.reordered),
        (faults.delay, struck.delayed),
    ] {
        assert_eq!(p > 0.0, struck > 0, "{name}: probability {p}, {struck} times");
    }
}

#[test]
fn registered_memory_arrives_as_it_was_posted_although_it_is_used_again() {
    for (name, faults) in CASES {
        for (slots, mode) in [(1, DeliveryMode::Rud), (3, DeliveryMode::Rud), (3, DeliveryMode::Rod)] {
            survives(name, faults, slots, mode);
        }
    }
}

/// The message completes with an error. Its receiver still waits for the rest, and would accept late frames.
#[test]
fn a_failed_message_leaves_no_frame_that_refers_to_its_memory() {
    let (_directory, registered, [a, b]) = link([NONE; 2]);
    // The peer is given up after 63 RTO: long before the frames that are held back would be released.
    let config = config(false).with_zones(|zone| zone.pdc.max_retries = 5);
    let side = |own, port| worker(own, port, &config, LinkConfig::default(), false);
    let mut pair = WorkerPair::new(side(0, a), side(1, b));
    let len = SLOT as u32;
    let message: Vec<u8> = content(1, len as usize).into_iter().map(|byte| byte & 0x7f).collect();
    let (place, landing) = (registered.slice(0, len).unwrap(), Region::allocate(len as usize).unwrap());
    let post = |pair: &mut WorkerPair<_, _>, connection, tag| {
        let (matching, buffer) = (Matching::Tagged { tag, ignore: 0 }, landing.slice(0, len).unwrap());
        let buffer = Buffer::Region(buffer);
        let receive = Receive { buffer, from: Some(Addr(0).into()), matching, context: tag };
        pair.fep(1).post_receive(receive).unwrap();
        place.write(0, &message);
        let buffer = Buffer::Region(place.clone());
        pair.fep(0)
            .post_send(connection, Send { buffer, tag: Some(tag), header_data: 0, context: tag })
            .unwrap();
    };
    let connection = pair.connect(0, DeliveryMode::Rud);
    post(&mut pair, connection, 1);
    let faults = |pair: &mut WorkerPair<Disturbed, _>, faults| pair.a.port_mut().set_faults(faults).unwrap();
    let until = |pair: &mut WorkerPair<Disturbed, _>, enough: fn(&WorkerPair<Disturbed, _>) -> bool| {
        for _ in 0..MAX_TURNS {
            if enough(pair) {
                return;
            }
            pair.turn();
        }
        panic!("{:?}", pair.a.fep().explain(pair.now));
    };
    until(&mut pair, |pair| pair.b.fep().counters().data_received >= 5);
    // Some frames are held back, and no other frame arrives any more.
    faults(&mut pair, Faults { delay: 1.0, delay_frames: 100_000, ..NONE });
    until(&mut pair, |pair| pair.a.port().held_attached() >= 8);
    faults(&mut pair, Faults { drop: 1.0, ..NONE });
    let mut held = 0;
    let failed = loop {
        pair.turn();
        if let Some(completion) = pair.fep(0).poll_completion() {
            break completion;
        }
        held = pair.a.port().held_attached();
        assert!(pair.now.since(START) < Span::from_ms(60_000));
    };
    assert!(matches!(failed, Completion::Sent { context: 1, result: Err(_), .. }), "{failed:?}");
    assert!(held >= 8, "frames were held back until the message failed");
    place.write(0, &vec![SCRIBBLE; len as usize]);
    faults(&mut pair, NONE);
    // Time advances evenly here, so that the receiver does not give up first.
    for _ in 0..110_000 {
        pair.a.poll_at(pair.now);
        pair.b.poll_at(pair.now);
        pair.now += Span::from_us(1);
    }
    let seen = read(&landing, 0, len);
    assert!(
        seen.iter().zip(&message).all(|(seen, sent)| [0, *sent].contains(seen)),
        "bytes of another message"
    );
    assert!(seen.contains(&0), "the message must not have arrived completely");

    // The link and the memory still work.
    pair.a.port().inner().inner.wait_for_link(LINK).unwrap();
    let connection = pair.connect(0, DeliveryMode::Rud);
    post(&mut pair, connection, 2);
    let mut turns = 0;
    loop {
        pair.turn();
        turns += 1;
        assert!(turns < MAX_TURNS);
        match pair.fep(1).poll_completion() {
            Some(Completion::Received { tag: Some(2), result: Ok(()), .. }) => break,
            // The receiver gives up waiting for the rest of the first message.
            Some(Completion::Received { context: 1, result: Err(_), .. }) | None => {}
            Some(other) => panic!("{other:?}"),
        }
    }
    assert!(read(&landing, 0, len) == message);
}

/// The same in real time with a thread for each end, which shows data races between writing and reading.
#[test]
fn registered_memory_arrives_between_threads_in_real_time() {
    for drop in [0.01, 0.1] {
        let faults = Faults { drop, duplicate: 0.05, reorder: 0.05, delay: 0.02, delay_frames: 300, ..NONE };
        let (_directory, registered, ports) = link([faults; 2]);
        let memories = [registered, Region::allocate(3 * SLOT as usize).unwrap()];
        let clock = Clock::new();
        let done = [const { AtomicBool::new(false) }; 2];
        let run = |(own, (port, memory))| run_in_real_time(own, port, memory, clock, &done);
        let counts = std::thread::scope(|scope| {
            let ends = (0..).zip(ports.into_iter().zip(memories));
            let threads: Vec<_> = ends.map(|end| scope.spawn(move || run(end))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        for ((attached, retransmissions, struck), own) in counts.into_iter().zip(0..) {
            assert_faults_struck(&format!("end {own}"), struck, faults);
            assert!(attached > 0 && retransmissions > 0, "end {own}: {attached}, {retransmissions}");
        }
    }
}

/// Runs one end until both are done. Returns the counts of attached packets, of retransmissions and of faults.
fn run_in_real_time(
    own: u32,
    port: Disturbed,
    memory: Region,
    clock: Clock,
    done: &[AtomicBool; 2],
) -> (u64, u64, FaultCounts) {
    // A thread that waits for its processor must not cause failures.
    let config = config(false).with_zones(|zone| zone.pdc.rto_init = Span::from_ms(5));
    let mut worker = worker_in_real_time(own, 2, port, config, clock);
    let connection = worker.fep_mut().connect(clock.now(), Addr(1 - own), ConnectOptions::default()).unwrap();
    let mut application = Application::new(own, worker.fep_mut(), connection, memory, 3);
    let begin = Instant::now();
    while !done.iter().all(|done| done.load(Ordering::Acquire)) {
        if worker.poll().is_idle() {
            std::thread::yield_now();
        }
        application.go_on(worker.fep_mut(), 0);
        // The other end may still wait for an acknowledgement.
        done[own as usize].store(application.is_done(), Ordering::Release);
        assert!(
            begin.elapsed() < Duration::from_secs(120),
            "end {own}: {:?}",
            worker.fep().explain(clock.now())
        );
    }
    (0..MESSAGES).for_each(|tag| application.check(tag));
    (worker.counters().attached, application.retransmissions, worker.port().fault_counts())
}
