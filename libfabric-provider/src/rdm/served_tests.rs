//! Endpoints of a server, driven turn by turn.

mod accesses;
mod lengths;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use weft::core::wire::ses::{JobId, ReturnCode};
use weft::core::worker::Waker;
use weft::core::worker::session::{SessionConfig, SessionServer};
use weft::{Endpoint, Limits, Matching, Source};

use super::backlog::Space;
use super::budgets::UNHEARD;
use super::looks::Filter;
use super::stand_in::Named;
use super::*;
use crate::abi::AppRoom;
use crate::addresses::Addresses;
use crate::keeper::Keeper;
use crate::queue::{Entry, Problem, Queue};
use crate::sys::FI_ADDR_UNSPEC;
use crate::wake::Deadline;

/// How long anything may take.
const BOUND: Duration = Duration::from_secs(60);

/// A server at a loopback address, on a thread.
struct Served {
    place: Place,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    _directory: tempfile::TempDir,
}

impl Served {
    fn start(ip: &str) -> Served {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let limits = Limits { processes: 64, ..Limits::default() };
        let builder = Endpoint::builder(format!("udp:{ip}")).limits(limits).learn_peers(false);
        let (mut worker, info, _) = builder.build_worker().unwrap();
        let waker = Waker::new().unwrap();
        let mut server = SessionServer::new(&mut worker, 64, waker.clone());
        if let Some(place) = info.place_peers() {
            server.place_peers(place);
        }
        server.listen(&socket, config(256 << 20)).unwrap();
        let thread = Some(std::thread::spawn(move || server.run(worker, |_| {})));
        let place = Place::Named(format!("serve:{}", socket.display()));
        Served { place, waker, thread, _directory: directory }
    }

    /// An endpoint with so many bytes of memory.
    fn open(&self, memory: u32) -> Side {
        self.open_as(config(memory))
    }

    fn open_as(&self, session: SessionConfig) -> Side {
        self.open_of(Kind::Rdm, session)
    }

    fn open_of(&self, kind: Kind, session: SessionConfig) -> Side {
        let Place::Named(name) = &self.place else { unreachable!() };
        let endpoint = Endpoint::builder(name).session(session).build().unwrap();
        let rdm = Arc::new(Rdm::new(endpoint, &self.place, Caps::of(kind, 0)).unwrap());
        let queue = Arc::new(Queue::new(DEPTH, true).unwrap());
        let binding = || Some(Binding { queue: queue.clone(), selective: false });
        let addresses = Some(Arc::new(Addresses::default()));
        lock(&rdm.state).unwrap().bindings =
            Bindings { transmit: binding(), receive: binding(), addresses, ..Bindings::default() };
        rdm.enable().unwrap();
        let tag = if kind == Kind::Rdm { Some(7) } else { None };
        Side { rdm, queue, tag }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.waker.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn config(memory: u32) -> SessionConfig {
    SessionConfig {
        commands: 1 << 12,
        reports: 1 << 13,
        operations: 4 * DEPTH as u32,
        connections: 512,
        memory,
        peers: 256,
        ..SessionConfig::default()
    }
}

struct Side {
    rdm: Arc<Rdm>,
    queue: Arc<Queue>,
    /// That of messages; datagrams have none.
    tag: Option<u64>,
}

impl Side {
    fn with<T>(&self, call: impl FnOnce(&mut State) -> T) -> T {
        call(&mut lock(&self.rdm.state).unwrap())
    }

    fn insert(&self, other: &Side) -> u64 {
        self.with(|state| state.bindings.addresses.as_ref().unwrap().insert(other.rdm.local).unwrap())
    }

    fn peer(&self, number: u64) -> Source {
        self.with(|state| state.peer(number).unwrap())
    }

    fn send(&self, to: u64, bytes: Bytes, context: usize) {
        let (bytes, tag, data, wanted) = (OutgoingBytes::Copied(bytes), self.tag, None, Wanted::AsBound);
        self.rdm.send(Outgoing { bytes, to, tag, data, context, wanted, more: false }).unwrap();
    }

    /// Sends a message without an entry.
    fn inject(&self, to: u64, tag: Option<u64>, more: bool) {
        let (bytes, data, wanted) = (OutgoingBytes::Copied(Bytes::from_static(&[1])), None, Wanted::Never);
        self.rdm.send(Outgoing { bytes, to, tag, data, context: 0, wanted, more }).unwrap();
    }

    fn receive(&self, room: &mut [u8], context: usize) {
        self.receive_ignoring(0, room, context);
    }

    fn receive_ignoring(&self, ignore: u64, room: &mut [u8], context: usize) {
        // SAFETY: tests keep the memory, and do not touch it until the receive has ended.
        let room = Room::One(unsafe { AppRoom::new(room.as_mut_ptr().cast(), room.len()) });
        let matching = self.tag.map_or(Matching::Untagged, |tag| Matching::Tagged { tag, ignore });
        let (from, wanted, which) = (FI_ADDR_UNSPEC, Wanted::AsBound, Which::First);
        self.rdm.receive(Incoming { room, from, matching, context, wanted, which }).unwrap();
    }

    /// The next entry, if there is one after a turn.
    fn turn(&self) -> Option<Entry> {
        self.rdm.progress().unwrap();
        if let Some((entry, _)) = self.queue.read_problem().unwrap() {
            return Some(entry);
        }
        let mut read = None;
        let _ = self.queue.read(1, |_, entry| read = Some(*entry));
        read
    }
}

/// Lets `turn` do something until it returns what is waited for.
fn until<T>(what: &str, mut turn: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(done) = turn() {
            return done;
        }
        assert!(begin.elapsed() < BOUND, "{what}");
        std::thread::yield_now();
    }
}

fn content(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 5 + (n >> 8) * 3 + (n >> 17) + seed * 17) as u8).collect()
}

/// Longer than what an endpoint with 8 MiB sends at once.
const LONG: usize = (2 << 20) + 77;
const LITTLE: u32 = 8 << 20;

#[test]
fn a_sender_loses_no_request_of_dozens_of_receivers_that_fetch_from_it() {
    const RECEIVERS: usize = 44;
    /// Requests that an endpoint with as much memory has without an answer. They are for longer pieces than the sender has.
    const EACH: usize = 8;
    let served = Served::start("127.40.7.1");
    let sender = served.open(LITTLE);
    let receivers: Vec<Side> = (0..RECEIVERS).map(|_| served.open(64 << 20)).collect();
    let piece = |side: &Side| side.with(|state| *state.carrier.as_mut().unwrap().long_piece());
    assert!(receivers.iter().all(|receiver| piece(receiver) > piece(&sender)));
    let mut rooms = vec![vec![0u8; LONG]; RECEIVERS];
    for (receiver, room) in receivers.iter().zip(&mut rooms) {
        receiver.insert(&sender);
        receiver.receive(room, 1);
    }
    for (n, receiver) in receivers.iter().enumerate() {
        sender.send(sender.insert(receiver), content(LONG, n).into(), n);
    }
    // All ask before any is answered.
    let memory = sender.with(|state| std::mem::take(state.carrier.as_mut().unwrap().answer_memory()));
    let asked = |sender: &Side| sender.with(|state| state.carrier.as_ref().unwrap().held());
    until("all requests", || {
        assert!(sender.turn().is_none());
        assert!(receivers.iter().all(|receiver| receiver.turn().is_none()));
        let (held, dropped) = asked(&sender);
        (held + dropped as usize == RECEIVERS * EACH).then_some(())
    });
    assert_eq!(asked(&sender), (RECEIVERS * EACH, 0));
    sender.with(|state| *state.carrier.as_mut().unwrap().answer_memory() = memory);
    let (mut sent, mut received) = (vec![false; RECEIVERS], vec![false; RECEIVERS]);
    until("all messages", || {
        if let Some(entry) = sender.turn() {
            assert_eq!((entry.problem, std::mem::replace(&mut sent[entry.context], true)), (None, false));
        }
        for (receiver, received) in receivers.iter().zip(&mut received) {
            if let Some(entry) = receiver.turn() {
                assert_eq!((entry.problem, entry.len), (None, LONG));
                assert!(!std::mem::replace(received, true));
            }
        }
        (!sent.contains(&false) && !received.contains(&false)).then_some(())
    });
    assert_eq!(asked(&sender), (0, 0));
    for (n, room) in rooms.iter().enumerate() {
        assert!(*room == content(LONG, n), "receiver {n}");
    }
}

#[test]
fn the_sender_of_a_message_is_told_again_that_it_is_done_when_that_could_not_be_said() {
    let served = Served::start("127.40.7.2");
    let (sender, receiver) = (served.open(LITTLE), served.open(LITTLE));
    let (to, from) = (sender.insert(&receiver), receiver.insert(&sender));
    let peer = receiver.peer(from);
    // A receive that is too short for what stands for the message, which has all that it wants at once; and one that fetches.
    for room in [7, LONG] {
        sender.send(to, content(LONG, 3).into(), 5);
        let is_there =
            |state: &mut State| state.stand_ins.receivers().next().is_some() && !state.backlog.has_sends();
        until("the message is announced", || {
            assert!(sender.turn().is_none() && receiver.turn().is_none());
            sender.with(is_there).then_some(())
        });
        let mut room = vec![0; room];
        // All bytes come, but there is no connection for the notice.
        let mut is_refused = room.len() < LONG;
        if is_refused {
            receiver.with(|state| state.peers.beside.refuse_for_now(peer));
        }
        receiver.receive(&mut room, 6);
        let received = until("the message is received", || {
            let ended = receiver.turn();
            let (waits, (are_sent, are_all)) = receiver.with(|state| {
                let carrier = state.carrier.as_ref().unwrap();
                (carrier.waits_for(peer), carrier.asked())
            });
            if are_sent && are_all && !is_refused {
                receiver.with(|state| state.peers.beside.refuse_for_now(peer));
                is_refused = true;
            }
            if waits && is_refused {
                receiver.with(|state| state.peers.beside.give_up(peer));
            }
            if are_sent {
                assert!(sender.turn().is_none());
            }
            ended
        });
        assert_eq!((received.context, received.len), (6, room.len()));
        assert!(room == content(LONG, 3)[..room.len()]);
        until("the notice has failed", || {
            assert!(sender.turn().is_none() && receiver.turn().is_none());
            (receiver.with(|state| state.carrier.as_ref().unwrap().notices.len()) == 1).then_some(())
        });
        receiver.rdm.ask_peers().unwrap();
        let sent = until("the sender is told", || {
            assert!(receiver.turn().is_none());
            sender.turn()
        });
        assert_eq!((sent.context, sent.problem), (5, None));
    }
}

/// More kinds of receives than the server has at a time, of which each has met a message that is fetched.
#[test]
fn receives_whose_messages_are_fetched_leave_no_kind_behind() {
    let served = Served::start("127.40.7.91");
    let (sender, receiver) = (served.open(LITTLE), served.open(64 << 20));
    let (to, _) = (sender.insert(&receiver), receiver.insert(&sender));
    for n in 0..63 {
        let mut room = vec![0; LONG];
        receiver.receive_ignoring(n << 8, &mut room, 6);
        assert_eq!(receiver.with(|state| state.backlog.kinds()), 1, "the server has it, and no other");
        sender.send(to, content(LONG, n as usize).into(), 5);
        let mut left = vec![5, 6];
        until("the message arrives", || {
            for entry in [sender.turn(), receiver.turn()].into_iter().flatten() {
                assert_eq!(entry.problem, None);
                left.retain(|context| *context != entry.context);
            }
            left.is_empty().then_some(())
        });
        assert!(room == content(LONG, n as usize), "message {n}");
    }
    assert_eq!(receiver.with(|state| state.backlog.kinds()), 0);
}

/// More messages than the server has room for reports arrive while the application gets no processor.
#[test]
fn an_application_that_reads_nothing_keeps_its_receive_for_many_messages() {
    const COUNT: usize = 10_000;
    const LEN: usize = 64;
    let served = Served::start("127.40.7.92");
    let (sender, receiver) = (served.open(64 << 20), served.open(64 << 20));
    let (to, _) = (sender.insert(&receiver), receiver.insert(&sender));
    let mut all = vec![0; COUNT * LEN + 100];
    // SAFETY: it is kept, and not touched until the receive has ended.
    let room = Room::One(unsafe { AppRoom::new(all.as_mut_ptr().cast(), all.len()) });
    let (from, matching, context) = (FI_ADDR_UNSPEC, Matching::Untagged, 6);
    let (wanted, which) = (Wanted::AsBound, Which::Many);
    receiver.rdm.receive(Incoming { room, from, matching, context, wanted, which }).unwrap();
    let (mut sent, mut ended, mut received) = (0, 0, 0);
    let send = |n: usize| {
        let (bytes, tag, data) = (OutgoingBytes::Copied(content(LEN, n).into()), None, None);
        sender.rdm.send(Outgoing { bytes, to, tag, data, context: n, wanted, more: false })
    };
    let mut turn_of_sender = || {
        if let Some(entry) = sender.turn() {
            assert_eq!(entry.problem, None);
            ended += 1;
        }
        if sent < COUNT && send(sent).is_ok() {
            sent += 1;
        }
        ended
    };
    until("there is no room for entries", || (turn_of_sender() == DEPTH).then_some(()));
    for _ in 0..10_000 {
        assert_eq!(turn_of_sender(), DEPTH, "messages have been received for whose entries there is no room");
    }
    until("all messages", || {
        if let Some(entry) = receiver.turn() {
            assert_eq!((entry.problem, entry.len, entry.context), (None, LEN, 6));
            received += 1;
        }
        (turn_of_sender() == COUNT && received == COUNT).then_some(())
    });
    assert!((0..COUNT).all(|n| all[n * LEN..][..LEN] == content(LEN, n)));
}

/// The process that a message was for is gone, and another one has got what stands for it.
#[test]
fn a_message_that_another_process_than_it_was_for_has_got_fails() {
    let served = Served::start("127.40.7.3");
    let (sender, receiver) = (served.open(LITTLE), served.open(LITTLE));
    let (to, _) = (sender.insert(&receiver), receiver.insert(&sender));
    let peer = sender.peer(to);
    let mut room = vec![0; LONG];
    for asks_first in [true, false] {
        // What the process before has said.
        sender.with(|state| state.stand_ins.believe(peer, 77));
        sender.send(to, content(LONG, 3).into(), 5);
        if !asks_first {
            // It hears of the other process before it knows that this one has got the stand-in.
            sender.with(|state| state.ask(peer)).unwrap();
        }
        let mut turns = 0;
        let failed = until("the message fails", || {
            assert!(receiver.turn().is_none());
            turns += 1;
            if asks_first && turns % 100 == 0 {
                sender.rdm.ask_peers().unwrap();
            }
            sender.turn()
        });
        let problem = Some(Problem { error: FiError::REFUSED, beyond: 0 });
        assert_eq!((failed.context, failed.problem), (5, problem));
        // Who receives what stands for it has an error, too.
        receiver.receive(&mut room, 6);
        let failed = until("the receive fails", || {
            assert!(sender.turn().is_none());
            receiver.turn()
        });
        assert_eq!(
            (failed.context, failed.problem),
            (6, Some(Problem { error: FiError::ABORTED, beyond: 0 }))
        );
    }
    // The next one is for the process that is there.
    sender.send(to, content(LONG, 4).into(), 7);
    receiver.receive(&mut room, 8);
    let mut left = vec![7, 8];
    until("the message arrives", || {
        for entry in [sender.turn(), receiver.turn()].into_iter().flatten() {
            assert_eq!(entry.problem, None);
            left.retain(|context| *context != entry.context);
        }
        left.is_empty().then_some(())
    });
    assert!(room == content(LONG, 4));
}

/// The receiver gets the question and answers, but a process of a job hears nobody outside it.
#[test]
fn long_messages_to_a_process_that_never_says_which_one_it_is_fail_and_hold_up_no_others_for_ever() {
    let served = Served::start("127.40.7.4");
    let job = JobId::new(7).unwrap();
    let (sender, receiver) = (served.open_as(SessionConfig { job, ..config(LITTLE) }), served.open(LITTLE));
    let (to, _) = (sender.insert(&receiver), receiver.insert(&sender));
    sender.send(to, content(LONG, 1).into(), 1);
    sender.send(to, content(LONG, 2).into(), 2);
    sender.send(to, content(10, 3).into(), 3);
    let mut room = [0; 10];
    receiver.receive(&mut room, 4);
    let (mut ended, mut is_received) = (Vec::new(), false);
    until("all messages end", || {
        sender.rdm.ask_peers().unwrap();
        if let Some(entry) = sender.turn() {
            ended.push((entry.context, entry.problem));
        }
        is_received |= receiver.turn().is_some();
        (ended.len() == 3 && is_received).then_some(())
    });
    let problem = Some(Problem { error: FiError::TIMED_OUT, beyond: 0 });
    assert_eq!(ended, [(1, problem), (2, problem), (3, None)]);
    assert!(room == content(10, 3)[..]);
    // Later ones do not wait as long again.
    let asked = |side: &Side| side.with(|state| state.stand_ins.next_question());
    let before = asked(&sender);
    sender.send(to, content(LONG, 4).into(), 5);
    let failed = until("the message fails", || {
        sender.rdm.ask_peers().unwrap();
        assert!(receiver.turn().is_none());
        sender.turn()
    });
    assert_eq!((failed.context, failed.problem), (5, problem));
    let questions = asked(&sender).wrapping_sub(before);
    assert!(questions < 10, "{questions} questions");
}

/// Others are asked for pieces while senders that have announced messages do not answer.
#[test]
fn senders_that_do_not_answer_keep_no_pieces_that_others_wait_for() {
    const SILENT: usize = 4;
    let served = Served::start("127.40.7.9");
    let receiver = served.open(LITTLE);
    let senders: Vec<Side> = (0..=SILENT).map(|_| served.open(LITTLE)).collect();
    let mut rooms = vec![vec![0; LONG]; SILENT + 1];
    for (n, (sender, room)) in senders.iter().zip(&mut rooms).enumerate() {
        receiver.insert(sender);
        sender.send(sender.insert(&receiver), content(LONG, n).into(), n);
        let is_there =
            |state: &mut State| state.stand_ins.receivers().next().is_some() && !state.backlog.has_sends();
        until("the message is announced", || {
            assert!(sender.turn().is_none() && receiver.turn().is_none());
            sender.with(is_there).then_some(())
        });
        receiver.receive(room, n);
    }
    // All but the last take no turn.
    let free = |side: &Side| side.with(|state| state.carrier.as_ref().unwrap().free_pieces());
    until("all pieces are asked for", || {
        assert!(receiver.turn().is_none());
        (free(&receiver) == 0).then_some(())
    });
    let last = &senders[SILENT];
    let (mut sent, mut received, mut turns) = (None, None, 0);
    until("the message of the last sender arrives", || {
        turns += 1;
        if turns % 100 == 0 {
            receiver.rdm.ask_peers().unwrap();
        }
        sent = sent.take().or(last.turn());
        received = received.take().or(receiver.turn());
        (sent.is_some() && received.is_some()).then_some(())
    });
    assert_eq!(sent.map(|entry| (entry.context, entry.problem)), Some((SILENT, None)));
    assert_eq!(received.map(|entry| (entry.context, entry.problem)), Some((SILENT, None)));
    assert!(rooms[SILENT] == content(LONG, SILENT));
    // Those of the others do when they go on.
    let mut left: Vec<(bool, usize)> = (0..SILENT).flat_map(|n| [(false, n), (true, n)]).collect();
    until("all messages arrive", || {
        turns += 1;
        if turns % 100 == 0 {
            receiver.rdm.ask_peers().unwrap();
        }
        let sent = senders.iter().filter_map(Side::turn).map(|entry| (false, entry));
        for (is_received, entry) in sent.chain(receiver.turn().map(|entry| (true, entry))) {
            assert_eq!(entry.problem, None);
            left.retain(|other| *other != (is_received, entry.context));
        }
        left.is_empty().then_some(())
    });
    for (n, room) in rooms.iter().enumerate() {
        assert!(*room == content(LONG, n), "sender {n}");
    }
}

/// It is stopped, for example, and keeps as many as it may have.
/// The receiver has no room for a byte of the message's number, so its notice says only what many messages have.
#[test]
fn an_endpoint_that_is_closed_says_once_more_that_a_message_is_done() {
    let served = Served::start("127.40.7.6");
    let (sender, receiver) = (served.open(LITTLE), served.open(LITTLE));
    let (to, from) = (sender.insert(&receiver), receiver.insert(&sender));
    let peer = receiver.peer(from);
    sender.send(to, content(LONG, 3).into(), 5);
    until("the message is announced", || {
        assert!(sender.turn().is_none() && receiver.turn().is_none());
        let is_there =
            |state: &mut State| state.stand_ins.receivers().next().is_some() && !state.backlog.has_sends();
        sender.with(is_there).then_some(())
    });
    receiver.with(|state| state.peers.beside.refuse_for_now(peer));
    let mut room = [0; 7];
    receiver.receive(&mut room, 6);
    until("the notice has failed", || {
        receiver.turn();
        receiver.with(|state| {
            if state.carrier.as_ref().unwrap().waits_for(peer) {
                state.peers.beside.give_up(peer);
            }
            (state.carrier.as_ref().unwrap().notices.len() == 1).then_some(())
        })
    });
    receiver.rdm.close(&Memories::default()).unwrap();
    let sent = until("the sender is told", || sender.turn());
    assert_eq!((sent.context, sent.problem), (5, None));
}

/// A message that its receiver does not fetch keeps the endpoint for a second. The program may have freed the contexts of its receives, and
/// others use the queue.
#[test]
fn receives_of_an_endpoint_that_is_being_closed_end_without_entries() {
    let served = Served::start("127.40.7.98");
    let (closed, other) = (served.open(LITTLE), served.open(LITTLE));
    let (to, from) = (closed.insert(&other), other.insert(&closed));
    closed.send(to, content(LONG, 3).into(), 5);
    until("the message is announced", || {
        assert!(closed.turn().is_none() && other.turn().is_none());
        let is_there =
            |state: &mut State| state.stand_ins.receivers().next().is_some() && !state.backlog.has_sends();
        closed.with(is_there).then_some(())
    });
    let mut room = [0; 8];
    closed.receive(&mut room, 6);
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| closed.rdm.close(&Memories::default()).unwrap());
        other.send(from, Bytes::from_static(&[7; 8]), 8);
        let sent = until("the message has met the receive", || other.turn());
        assert_eq!((sent.context, sent.problem), (8, None));
        closing.join().unwrap();
    });
    assert_eq!(room, [7; 8]);
    assert!(closed.turn().is_none());
}

#[test]
fn a_sender_that_answers_with_less_than_a_piece_fails_its_message() {
    let served = Served::start("127.40.7.8");
    let (sender, receiver) = (served.open(LITTLE), served.open(LITTLE));
    let (to, _) = (sender.insert(&receiver), receiver.insert(&sender));
    let piece =
        |len: u32| sender.with(|state| std::mem::replace(state.carrier.as_mut().unwrap().long_piece(), len));
    for least in [(32 << 10) - 1, 1, 0] {
        let usual = piece(least);
        let mut room = vec![0; LONG];
        sender.send(to, content(LONG, 9).into(), 5);
        receiver.receive(&mut room, 6);
        let (mut sent, mut received) = (None, None);
        until("both end", || {
            sent = sent.take().or(sender.turn());
            received = received.take().or(receiver.turn());
            (sent.is_some() && received.is_some()).then_some(())
        });
        // Nor has its receiver the message.
        let failed = Some(Problem { error: FiError::ABORTED, beyond: 0 });
        assert_eq!([sent, received].map(|entry| entry.unwrap().problem), [failed, failed]);
        piece(usual);
    }
}

/// Each endpoint's parts of its memory are there at the same time.
#[test]
fn the_parts_of_the_memory_are_no_more_than_there_is() {
    let served = Served::start("127.40.7.7");
    for mib in [1, 8, 12, 13, 21, 22, 56, 57, 256] {
        let side = served.open(mib << 20);
        let (parts, carried) =
            side.with(|state| (state.backlog.bytes_of_parts(), state.carrier.as_ref().unwrap().bytes));
        let all = parts + carried;
        assert!(all <= u64::from(mib << 20) && all > u64::from(mib << 20) * 9 / 10, "{mib} MiB: {all}");
    }
}

/// They wait behind those that their sender has not answered, until the server is gone.
#[test]
fn thousands_of_fetches_that_fail_together_end_one_after_the_other() {
    const FETCHES: usize = 20_000;
    let served = Served::start("127.40.7.95");
    let (receiver, sender) = (served.open(LITTLE), served.open(LITTLE));
    let peer = receiver.peer(receiver.insert(&sender));
    receiver.with(|state| {
        for context in 0..FETCHES {
            let number = state.operations.insert(Operation { context, ..Operation::default() });
            state.begin_fetch(number, Named::new(peer, Some(7), 0, None), 0, 100);
        }
    });
    drop(served);
    // The stack has no room for a call within a call for each of them.
    let ends = move || {
        until("all fetches end", || {
            let _ = receiver.rdm.progress();
            receiver.with(|state| state.operations.iter().next().is_none()).then_some(())
        });
    };
    std::thread::Builder::new().stack_size(1 << 20).spawn(ends).unwrap().join().unwrap();
}

#[test]
fn all_long_messages_to_a_host_that_does_not_answer_fail_at_once() {
    let served = Served::start("127.40.7.5");
    let (sender, receiver) = (served.open(LITTLE), served.open(LITTLE));
    let (to, _) = (sender.insert(&receiver), receiver.insert(&sender));
    let peer = sender.peer(to);
    let fails = |error| Some(Problem { error, beyond: 0 });
    // The receiver takes no turn, so that its life is not said.
    (1..=3).for_each(|context| sender.send(to, content(LONG, context).into(), context));
    sender.with(|state| state.fail_stand_ins_of(peer, FiError::TIMED_OUT)).unwrap();
    let failed = [1, 2, 3].map(|_| sender.turn().map(|entry| (entry.context, entry.problem)));
    assert_eq!(failed, [1, 2, 3].map(|context| Some((context, fails(FiError::TIMED_OUT)))));
    // If there is another process in the place of one that is gone, it gets those behind the first.
    (4..=5).for_each(|context| sender.send(to, content(LONG, context).into(), context));
    sender.with(|state| state.fail_stand_ins_of(peer, FiError::REFUSED)).unwrap();
    let failed = sender.turn().unwrap();
    assert_eq!((failed.context, failed.problem), (4, fails(FiError::REFUSED)));
    let mut room = vec![0; LONG];
    receiver.receive(&mut room, 6);
    let mut left = vec![5, 6];
    until("the message behind it arrives", || {
        for entry in [sender.turn(), receiver.turn()].into_iter().flatten() {
            assert_eq!(entry.problem, None);
            left.retain(|context| *context != entry.context);
        }
        left.is_empty().then_some(())
    });
    assert!(room == content(LONG, 5));
}

/// Receives that wait in the provider have their places at the server in the order of their calls, as others end.
#[test]
fn receives_that_wait_are_handed_to_the_server_in_their_order() {
    const FURTHER: usize = 3;
    let served = Served::start("127.40.7.41");
    let side = served.open(LITTLE);
    let mut rooms = vec![[0u8; 1]; DEPTH + FURTHER];
    for (n, room) in rooms.iter_mut().enumerate() {
        side.receive(room, n);
    }
    let waiting = |side: &Side| {
        side.with(|state| {
            let all: Vec<usize> = state.backlog.takers.iter().map(|taker| taker.number).collect();
            all.into_iter()
                .map(|number| state.operations.get_mut(number).unwrap().context)
                .collect::<Vec<_>>()
        })
    };
    let at_the_server = DEPTH + FURTHER - waiting(&side).len();
    assert!(at_the_server < DEPTH, "receives for many messages have places");
    assert!(waiting(&side).into_iter().eq(at_the_server..DEPTH + FURTHER));
    // Each one that ends makes room for the first that waits.
    for n in 0..FURTHER {
        side.rdm.cancel(n).unwrap();
        let ended = until("the receive ends", || side.turn());
        assert_eq!((ended.context, ended.problem.map(|why| why.error)), (n, Some(FiError::CANCELED)));
        until("the next one is handed over", || {
            assert!(side.turn().is_none());
            waiting(&side).into_iter().eq(at_the_server + n + 1..DEPTH + FURTHER).then_some(())
        });
    }
}

/// A server may have no operation left though it has room for a receive. The look that is next stays the next one.
#[test]
fn a_receive_that_the_server_refuses_for_now_is_the_first_again_and_its_look_is_not_repeated() {
    const OPERATIONS: usize = 300;
    const WAITING: usize = 3;
    let served = Served::start("127.40.7.42");
    let side = served.open_as(SessionConfig { operations: OPERATIONS as u32, ..config(LITTLE) });
    side.with(|state| {
        let filter =
            |tag: usize| Filter { from: None, matching: Matching::Tagged { tag: tag as u64, ignore: 0 } };
        let mut posted = 0;
        let refused = loop {
            let endpoint = state.endpoint.as_mut().unwrap();
            match endpoint.receive_with(vec![0; 1], filter(WAITING).options().context(LOOK - 1)) {
                Ok(_) => posted += 1,
                Err(refused) => break refused.error,
            }
            assert!(posted <= OPERATIONS, "there is no bound");
        };
        assert!(posted > 0 && refused.is_back_pressure(), "{refused}");
        let numbers: Vec<usize> =
            (0..WAITING).map(|_| state.operations.insert(Operation::default())).collect();
        for (tag, number) in numbers.iter().enumerate() {
            state.receives += 1;
            state.backlog.defer_receive(*number, filter(tag), Space::Several(1));
        }
        let all = |state: &State| state.backlog.takers.iter().map(|taker| taker.number).collect::<Vec<_>>();
        let next = |state: &mut State| state.backlog.next_look();
        assert_eq!([next(state), next(state)], [Some(numbers[0]), Some(numbers[1])]);
        assert!(!state.lacks_room(filter(0), 1));
        state.resume_receives().unwrap();
        assert_eq!(all(state), numbers);
        assert_eq!([next(state), next(state)], [Some(numbers[2]), None]);
        // Nor are others left out when none was looked for.
        state.backlog.next = 0;
        state.resume_receives().unwrap();
        assert!(std::iter::from_fn(|| next(state)).eq(numbers.iter().copied()));
    });
}

/// Posts a receive for `side`, which its server has when this returns.
fn receive_at_the_server(side: &Side, to: u64, peer: &Side, room: &mut [u8]) {
    let (mut other, mut unused) = ([0; 1], [0; 1]);
    peer.receive(&mut other, 9);
    // A datagram that is sent before the server has the receive is lost.
    peer.receive(&mut unused, 10);
    assert_eq!(peer.with(|state| state.cancel(10)), Ok(()));
    let entry = until("a receive is taken back", || peer.turn());
    assert_eq!((entry.context, entry.problem.map(|why| why.error)), (10, Some(FiError::CANCELED)));
    side.receive(room, 6);
    side.inject(to, side.tag, false);
    let entry = until("the peer has what was sent after the receive", || peer.turn());
    assert_eq!((entry.context, entry.problem), (9, None));
    until("nothing is under way", || {
        assert!(side.turn().is_none());
        side.with(|state| state.sends == 0).then_some(())
    });
}

/// Nobody but the thread that sleeps lets the endpoint work when the message is there.
#[test]
fn a_thread_that_sleeps_is_woken_by_a_message_after_a_call_of_another_thread() {
    let served = Served::start("127.40.7.94");
    for kind in [Kind::Rdm, Kind::Datagram] {
        let mut unused = [0; 1];
        let [side, peer] = [(); 2].map(|()| served.open_of(kind, config(LITTLE)));
        let (to, from) = (side.insert(&peer), peer.insert(&side));
        side.queue.endpoints().attach(&side.rdm).unwrap();
        let other_tag = side.tag.map(|tag| tag + 1);
        // A receive that is posted last is behind the one that is awaited, and would be before later ones.
        for name in ["fi_inject", "fi_sendmsg with FI_MORE", "fi_av_insert", "fi_recv"] {
            let mut call = || match name {
                "fi_inject" => side.inject(to, other_tag, false),
                "fi_sendmsg with FI_MORE" => side.inject(to, other_tag, true),
                "fi_av_insert" => {
                    let host = SocketAddr::from(([127, 40, 7, 250], 1));
                    side.with(|state| _ = state.bindings.addresses.as_ref().unwrap().insert(host).unwrap());
                    side.rdm.meet().unwrap();
                }
                _ => side.receive(&mut unused, 7),
            };
            let mut room = [0; 1];
            receive_at_the_server(&side, to, &peer, &mut room);
            std::thread::scope(|scope| {
                let sleeper = scope.spawn(|| {
                    let mut context = 0;
                    let read = |_: usize, entry: &Entry| context = entry.context;
                    (side.queue.read_within(Deadline::after(-1), 1, read), context)
                });
                until("the thread sleeps", || {
                    (side.rdm.attention().1 && side.rdm.is_armed().unwrap()).then_some(())
                });
                call();
                peer.send(from, Bytes::from_static(&[2]), 5);
                let begin = Instant::now();
                while !sleeper.is_finished() {
                    std::thread::sleep(Duration::from_millis(1));
                    if begin.elapsed() > BOUND {
                        // A thread that nobody has woken ends without an entry.
                        side.queue.wake_all().unwrap();
                    }
                }
                assert_eq!(sleeper.join().unwrap(), (Ok(1), 6), "{kind:?}: {name}");
            });
            let sent = until("the message has ended", || peer.turn());
            assert_eq!((sent.context, sent.problem, room), (5, None, [2]));
        }
    }
}

/// The endpoints have no threads of their own here, which would make up for a message that wakes nobody.
#[test]
fn programs_that_sleep_on_the_descriptors_of_their_queues_are_woken_by_every_message() {
    const ROUNDS: usize = 500;
    let served = Served::start("127.40.7.19");
    let sides = [(); 2].map(|()| served.open(LITTLE));
    let to = [sides[0].insert(&sides[1]), sides[1].insert(&sides[0])];
    // Some are fetched.
    let message = |round: usize| content(if round % 50 == 49 { LONG } else { 8 }, round);
    let exchange = |own: usize| {
        let side = &sides[own];
        side.queue.endpoints().attach(&side.rdm).unwrap();
        let await_both = |contexts: [usize; 2]| {
            let mut left = contexts.to_vec();
            while !left.is_empty() {
                if let Some(entry) = side.turn() {
                    assert_eq!(entry.problem, None);
                    left.retain(|context| *context != entry.context);
                } else if side.queue.try_wait().unwrap() {
                    let begin = Instant::now();
                    side.queue.endpoints().wake().unwrap().sleep(Some(BOUND));
                    assert!(begin.elapsed() < BOUND, "nobody has woken it");
                }
            }
        };
        for round in 0..ROUNDS {
            let mut room = vec![0; message(round).len()];
            side.receive(&mut room, 1);
            side.send(to[own], message(round).into(), 2);
            await_both([1, 2]);
            assert!(room == message(round), "round {round}");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| exchange(1));
        exchange(0);
    });
}

/// As after a call that has found more to do than it could.
#[test]
fn the_thread_of_an_endpoint_works_for_those_who_sleep_while_nothing_wakes_them() {
    let served = Served::start("127.40.7.97");
    let [side, peer] = [(); 2].map(|()| served.open_of(Kind::Datagram, config(LITTLE)));
    let (to, from) = (side.insert(&peer), peer.insert(&side));
    let mut room = [0; 1];
    receive_at_the_server(&side, to, &peer, &mut room);
    let _attended = Attended::new(side.rdm.clone());
    let _keeper = Keeper::start(&side.rdm).unwrap();
    peer.send(from, Bytes::from_static(&[2]), 5);
    let entry = until("the message is received", || {
        let mut read = None;
        let _ = side.queue.read(1, |_, entry| read = Some(*entry));
        read
    });
    assert_eq!((entry.context, entry.problem, room), (6, None, [2]));
}

#[test]
fn a_look_that_a_server_makes_ends_as_if_nobody_had_cancelled_it() {
    let served = Served::start("127.40.7.96");
    let side = served.open(LITTLE);
    let (from, matching) = (FI_ADDR_UNSPEC, Matching::Tagged { tag: 7, ignore: 0 });
    let (found, context, wanted) = (weft::Found::Stays, 3, Wanted::AsBound);
    side.with(|state| {
        state.peek(Peek { from, matching, found, context, wanted }, false).unwrap();
        assert_eq!((state.cancel(3), state.cancel(4)), (Ok(()), Err(FiError::NO_ENTRY)));
    });
    let entry = until("the look ends", || side.turn());
    assert_eq!((entry.context, entry.problem.map(|why| why.error)), (3, Some(FiError::NO_MESSAGE)));
}
