//! Messages that are not posted, cancelled, or fail with their connection.

use std::collections::BTreeSet;

use weft_cc::{Span, Time};

use super::{fep, message};
use crate::buffer::Buffer;
use crate::fep::Resource;
use crate::fep::{
    COMPLETED_PER_BURST, CallError, Completion, ConnectOptions, Datagram, DatagramReceive, Failure, Fep,
    Limits, Receive, Send, SendError, SendId,
};
use crate::packet::{Addr, Class, Network, Packet, Payload};
use crate::rng::Rng;
use crate::ses::Matching;
use crate::spray::Entropy;
use crate::steps;
use crate::wire::class::Priority;
use crate::wire::pds::{DeliveryMode, Nack, NackCode, NextHeader, PdcId, Pds};
use crate::wire::ses::Ses;

fn transmit_all(fep: &mut Fep) -> Vec<Packet> {
    std::iter::from_fn(|| fep.poll_transmit(Time::ZERO)).map(|transmit| transmit.packet).collect()
}

fn completions(fep: &mut Fep) -> Vec<Completion> {
    std::iter::from_fn(|| fep.poll_completion()).collect()
}

/// The NACK that closes the PDC which sent `packet`.
fn fatal_nack(packet: &Packet) -> Packet {
    let Pds::Request(request) = &packet.pds else { panic!("{packet:?} is no request") };
    let nack = Nack {
        next: NextHeader::None,
        ecn: false,
        retx: false,
        rudi: false,
        code: NackCode::EXP_FATAL,
        vendor_code: 0,
        psn: request.psn,
        spdcid: PdcId(0),
        dpdcid: request.spdcid,
        payload: 0,
        ccx: None,
    };
    let Network { src, dst, .. } = packet.net;
    let net = Network {
        src: dst,
        dst: src,
        entropy: Entropy(0),
        class: Class::Control,
        priority: Priority::LOWEST,
        ecn: false,
        hops: 0,
    };
    Packet { net, payload_len: 0, pds: Pds::Nack(nack), ses: Ses::None }
}

/// What a process leaves behind is there until it is cleared away, bit by bit.
#[test]
fn receives_of_a_process_that_is_closed_are_in_the_footprint_until_they_are_dropped() {
    const RECEIVES: u64 = 1000;
    let mut fep = fep(Limits::default());
    let empty = fep.footprint();
    fep.open_process(7).unwrap();
    for tag in 0..RECEIVES {
        let matching = Matching::Tagged { tag, ignore: 0 };
        let buffer = Buffer::Heap(vec![0; 100]);
        fep.post_receive_of(7, Receive { buffer, from: None, matching, context: 0 }).unwrap();
    }
    let posted = fep.footprint();
    assert_eq!(posted.payload - empty.payload, RECEIVES * 100);
    assert!(posted.receives - empty.receives >= RECEIVES * 32);
    fep.begin_close_process(7).unwrap();
    let left = fep.footprint();
    assert_eq!((left.payload, left.receives), (posted.payload, posted.receives));
    assert!(!fep.clear_away(7, &mut { 1 << 10 }));
    let some = fep.footprint();
    assert!(some.payload < left.payload && some.payload > empty.payload, "{some:?}");
    while !fep.clear_away(7, &mut { 1 << 10 }) {}
    let none = fep.footprint();
    assert_eq!((none.payload, none.receives), (empty.payload, empty.receives));
}

#[test]
fn a_message_that_is_not_posted_is_handed_back() {
    let mut fep = fep(Limits { sends: 1, ..Limits::default() });
    let connection = fep.connect(Time::ZERO, Addr(1), ConnectOptions::default()).unwrap();
    let other = fep.connect(Time::ZERO, Addr(2), ConnectOptions::default()).unwrap();
    fep.close(Time::ZERO, other).unwrap();
    let refused = fep.post_send(other, message(7)).unwrap_err();
    assert_eq!((refused.error, refused.buffer), (CallError::NotOpen, Buffer::Heap(vec![1; 7])));
    fep.post_send(connection, message(1)).unwrap();
    let refused = fep.post_send(connection, message(100)).unwrap_err();
    assert_eq!(refused.to_string(), "limit of 1 messages reached");
    assert_eq!(refused.error, CallError::Limit { what: Resource::Messages, limit: 1 });
    // The caller's memory comes back with its content, and can be posted again.
    let Buffer::Heap(bytes) = &refused.buffer else { panic!("{refused:?}") };
    let (address, len) = (bytes.as_ptr(), bytes.len());
    let again = Send { buffer: refused.buffer, tag: None, header_data: 0, context: 0 };
    let refused = fep.post_send(connection, again).unwrap_err();
    let Buffer::Heap(bytes) = &refused.buffer else { panic!("{refused:?}") };
    assert_eq!((bytes.as_ptr(), bytes.len(), len), (address, 100, 100));
}

#[test]
fn messages_longer_than_the_length_field_allows_are_refused() {
    let mut fep = fep(Limits::default());
    let connection = fep.connect(Time::ZERO, Addr(1), ConnectOptions::default()).unwrap();
    // The system gives memory only to pages that are used.
    let long = || vec![0; 1 << 32];
    let kinds: [fn(Vec<u8>) -> Buffer; 2] = [Buffer::Heap, |bytes| Buffer::Bytes(Box::new(bytes.into()))];
    for of in kinds {
        let send = Send { buffer: of(long()), tag: None, header_data: 0, context: 0 };
        assert_eq!(fep.post_send(connection, send).unwrap_err().error, CallError::TooLong);
    }
    assert!(transmit_all(&mut fep).is_empty());
}

#[test]
fn a_receive_that_is_not_posted_is_handed_back() {
    let mut fep = fep(Limits { receives: 1, ..Limits::default() });
    let receive = |len| Receive {
        buffer: Buffer::Heap(vec![0; len]),
        from: None,
        matching: Matching::Untagged,
        context: 0,
    };
    fep.post_receive(receive(1)).unwrap();
    let refused = fep.post_receive(receive(2)).unwrap_err();
    assert_eq!(refused.error, CallError::Limit { what: Resource::Receives, limit: 1 });
    assert_eq!(refused.buffer, Buffer::Heap(vec![0; 2]));
    let refused = fep.post_receive_of(5, receive(3)).unwrap_err();
    assert_eq!((refused.error, refused.buffer), (CallError::ProcessNotOpen(5), Buffer::Heap(vec![0; 3])));
    fep.close_process(0).unwrap();
    let refused = fep.post_receive(receive(4)).unwrap_err();
    assert_eq!((refused.error, refused.buffer), (CallError::ProcessNotOpen(0), Buffer::Heap(vec![0; 4])));
}

/// Frames that refer to the memory of others need not be recalled.
#[test]
fn the_memory_of_a_message_that_fails_is_known() {
    let mut fep = fep(Limits::default());
    let connection = fep.connect(Time::ZERO, Addr(1), ConnectOptions::default()).unwrap();
    let [failed, other] = [(); 2].map(|()| crate::region::Region::allocate(10_000).unwrap());
    let buffer = Buffer::Region(failed.slice(0, 10_000).unwrap());
    fep.post_send(connection, Send { buffer, tag: None, header_data: 0, context: 0 }).unwrap();
    let packets = transmit_all(&mut fep);
    assert!(fep.take_abandoned_memory().is_none());
    fep.on_packet(Time::ZERO, &fatal_nack(&packets[0]), Payload::EMPTY);
    let memory = fep.take_abandoned_memory().expect("it has failed");
    assert!(memory.includes(failed.bytes(5_000, 10).unwrap()));
    assert!(!memory.includes(other.bytes(5_000, 10).unwrap()));
    assert!(fep.take_abandoned_memory().is_none());
}

/// Messages that wait, that are under way, and the one that is both: each ends once.
#[test]
fn every_message_of_a_connection_that_fails_ends_once() {
    let mut fep = fep(Limits::default());
    let connection = fep.connect(Time::ZERO, Addr(1), ConnectOptions::default()).unwrap();
    let other = fep.connect(Time::ZERO, Addr(2), ConnectOptions::default()).unwrap();
    let posted: BTreeSet<SendId> = (0..40)
        .flat_map(|_| [1, 3_000, 1, 10_000])
        .map(|len| fep.post_send(connection, message(len)).unwrap())
        .collect();
    let packets = transmit_all(&mut fep);
    let spared = fep.post_send(other, message(1)).unwrap();
    assert!(packets.len() > 3 && packets.len() < 100, "{} packets", packets.len());
    assert!(!fep.take_abandoned());
    fep.on_packet(Time::ZERO, &fatal_nack(&packets[2]), Payload::EMPTY);
    assert!(fep.take_abandoned() && !fep.take_abandoned());
    let mut ended = completions(&mut fep);
    let closed = ended.pop();
    let refused = |failure: &Failure| matches!(failure, Failure::Refused { peer: Addr(1), .. });
    assert!(
        matches!(closed, Some(Completion::Closed { id, result: Err(failure), .. }) if id == connection && refused(&failure))
    );
    let failed: Vec<SendId> = ended
        .into_iter()
        .map(|completion| match completion {
            Completion::Sent { id, result: Err(SendError::Failed(failure)), .. } if refused(&failure) => id,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!((failed.len(), BTreeSet::from_iter(failed)), (posted.len(), posted));
    fep.cancel_send(spared).unwrap();
    fep.close(Time::ZERO, other).unwrap();
    assert_eq!(transmit_all(&mut fep).len(), 0);
    assert_eq!(fep.leaks().collect::<Vec<_>>(), [""; 0]);
}

/// Where failures are spread, the messages that wait end bit by bit, and their connection after them. They cannot be cancelled
/// meanwhile: the place of their connection may be that of another one.
#[test]
fn the_messages_of_a_connection_that_has_failed_end_when_they_are_told_to() {
    let mut fep = fep(Limits::default());
    fep.spread_failures();
    let connect = |fep: &mut Fep| fep.connect(Time::ZERO, Addr(1), ConnectOptions::default()).unwrap();
    let failing = connect(&mut fep);
    let posted: Vec<SendId> = (0..200).map(|_| fep.post_send(failing, message(3_000)).unwrap()).collect();
    let packets = transmit_all(&mut fep);
    fep.on_packet(Time::ZERO, &fatal_nack(&packets[0]), Payload::EMPTY);
    assert!(!fep.is_open(failing));
    let begun = completions(&mut fep).len();
    assert!((1..150).contains(&begun), "{begun} messages had left");
    // The context has gone with the connection.
    let next = connect(&mut fep);
    assert_eq!(next.0.index, failing.0.index);
    let spared = fep.post_send(next, message(10)).unwrap();
    assert_eq!(fep.cancel_send(posted[199]), Err(CallError::TooLate));
    fep.check_accounts();
    fep.cancel_send(spared).unwrap();
    assert_eq!(completions(&mut fep).len(), 1);
    // A part of the first one has left, so that it has ended already: it takes next to nothing.
    let mut budget = 2 * crate::fep::abort::COST;
    assert_eq!(fep.cancel_aborted(Time::ZERO, &mut budget), 3);
    let ended = completions(&mut fep).len();
    assert_eq!(ended, 2);
    while fep.cancel_aborted(Time::ZERO, &mut { 10_000 }) > 0 {}
    let mut rest = completions(&mut fep);
    assert!(matches!(rest.pop(), Some(Completion::Closed { id, result: Err(_), .. }) if id == failing));
    assert_eq!(rest.len(), posted.len() - begun - ended);
    let failed =
        |done: &Completion| matches!(done, Completion::Sent { result: Err(SendError::Failed(_)), .. });
    assert!(rest.iter().all(failed), "{rest:?}");
    fep.close(Time::ZERO, next).unwrap();
    assert_eq!(fep.leaks().collect::<Vec<_>>(), [""; 0]);
}

/// Messages that were cancelled before an abort, or while it goes on, take next to nothing of what it may touch. Those before it
/// have left gaps in the queue.
#[test]
fn messages_that_are_cancelled_cost_an_abort_next_to_nothing() {
    use crate::fep::abort::{COST, GONE};
    const COUNT: usize = 40;
    const LEFT: i64 = 10;
    for earlier in [true, false] {
        let mut fep = fep(Limits::default());
        let connection = fep.connect(Time::ZERO, Addr(1), ConnectOptions::default()).unwrap();
        fep.hold(connection).unwrap();
        let sends: Vec<SendId> = (0..COUNT).map(|_| fep.post_send(connection, message(1)).unwrap()).collect();
        let cancel = |fep: &mut Fep| {
            sends[5..COUNT - 5].iter().for_each(|id| fep.cancel_send(*id).unwrap());
            assert_eq!(completions(fep).len(), COUNT - LEFT as usize);
        };
        if earlier {
            cancel(&mut fep);
        }
        fep.begin_abort(Time::ZERO, connection).unwrap();
        let gone = if earlier {
            0
        } else {
            cancel(&mut fep);
            COUNT as i64 - LEFT
        };
        let mut budget = LEFT * COST + gone * GONE;
        while budget > 0 && fep.has_aborted() {
            fep.cancel_aborted(Time::ZERO, &mut budget);
        }
        assert_eq!((fep.has_aborted(), budget), (false, 0));
        assert_eq!(completions(&mut fep).len() as i64, LEFT + 1, "each, and the connection");
        assert_eq!(fep.leaks().collect::<Vec<_>>(), [""; 0]);
    }
}

/// The same for datagrams that a process leaves behind.
#[test]
fn datagrams_that_are_cancelled_cost_next_to_nothing_when_their_process_is_closed() {
    use crate::fep::abort::{COST, GONE};
    const COUNT: usize = 40;
    const LEFT: i64 = 10;
    for earlier in [true, false] {
        let mut fep = fep(Limits::default());
        fep.open_process(7).unwrap();
        let post = |_| {
            let buffer = Buffer::Virtual(1);
            let datagram = Datagram { buffer, peer: Addr(1), process: 0, header_data: 0, context: 0 };
            fep.post_datagram_of(7, datagram).unwrap()
        };
        let sends: Vec<SendId> = (0..COUNT).map(post).collect();
        let cancel = |fep: &mut Fep| {
            sends[5..COUNT - 5].iter().for_each(|id| fep.cancel_send(*id).unwrap());
            assert_eq!(completions(fep).len(), COUNT - LEFT as usize);
        };
        if earlier {
            cancel(&mut fep);
        }
        fep.begin_close_process(7).unwrap();
        let gone = if earlier {
            0
        } else {
            cancel(&mut fep);
            COUNT as i64 - LEFT
        };
        // One byte is left, with which it finds that there are no more.
        let mut budget = LEFT * COST + gone * GONE + 1;
        assert!(fep.clear_away(7, &mut budget));
        assert_eq!(completions(&mut fep).len() as i64, LEFT);
        assert_eq!(fep.leaks().collect::<Vec<_>>(), [""; 0]);
    }
}

#[test]
fn a_cancelled_message_leaves_all_remaining_messages_in_order() {
    let mut fep = fep(Limits::default());
    let connections =
        [1, 2].map(|peer| fep.connect(Time::ZERO, Addr(peer), ConnectOptions::default()).unwrap());
    let mut post = |connection: usize, len| fep.post_send(connections[connection], message(len)).unwrap();
    let cancelled = [post(0, 10), post(0, 11), post(1, 20), post(0, 12), post(1, 21)][1];
    fep.cancel_send(cancelled).unwrap();
    assert_eq!(fep.cancel_send(cancelled), Err(CallError::TooLate));
    let sent = transmit_all(&mut fep);
    let of = |peer| {
        let packets = sent.iter().filter(move |packet| packet.net.dst == Addr(peer));
        packets.map(|packet| packet.payload_len).collect::<Vec<_>>()
    };
    assert_eq!((of(1), of(2)), (vec![10, 12], vec![20, 21]));
    assert!(!fep.take_abandoned(), "nothing of it had left");
    let ended = completions(&mut fep);
    let [Completion::Sent { id, buffer, result: Err(SendError::Cancelled), .. }] = &ended[..] else {
        panic!("{ended:?}")
    };
    assert_eq!((*id, buffer.len()), (cancelled, 11));
}

#[test]
fn messages_cancelled_in_any_order_leave_the_others_in_theirs() {
    let mut rng = Rng::new(5, 5);
    for _ in 0..100 {
        let mut fep = fep(Limits::default());
        let connection = fep.connect(Time::ZERO, Addr(1), ConnectOptions::default()).unwrap();
        fep.hold(connection).unwrap();
        let mut waiting: Vec<(SendId, u32)> = Vec::new();
        for len in 1..300usize {
            waiting.push((fep.post_send(connection, message(len)).unwrap(), len as u32));
            if waiting.len() > 20 || rng.next_u64().is_multiple_of(3) {
                let (id, _) = waiting.remove(rng.next_u64() as usize % waiting.len());
                fep.cancel_send(id).unwrap();
                assert_eq!(fep.cancel_send(id), Err(CallError::TooLate));
            }
        }
        completions(&mut fep);
        fep.release(connection);
        let sent: Vec<u32> = transmit_all(&mut fep).iter().map(|packet| packet.payload_len).collect();
        let left: Vec<u32> = waiting.iter().map(|(_, len)| *len).collect();
        assert_eq!(sent, left);
    }
}

/// The places of cancelled messages are not kept, even between two that wait.
#[test]
fn cancelled_messages_leave_no_memory_behind() {
    let mut fep = fep(Limits::default());
    let connection = fep.connect(Time::ZERO, Addr(1), ConnectOptions::default()).unwrap();
    fep.hold(connection).unwrap();
    fep.post_send(connection, message(1)).unwrap();
    let mut last = fep.post_send(connection, message(1)).unwrap();
    let before = fep.footprint().connections;
    for _ in 0..10_000 {
        let next = fep.post_send(connection, message(1)).unwrap();
        fep.cancel_send(std::mem::replace(&mut last, next)).unwrap();
        fep.poll_completion();
    }
    let after = fep.footprint().connections;
    assert!(after < before + 4_096, "{before} bytes before, {after} after");
}

/// What a cancel looks at does not depend on how many messages or receives wait: the oldest eight receives, and places that
/// each cancelled message and receive pays for with a few steps.
#[test]
fn a_quarter_of_a_million_messages_and_receives_are_cancelled_in_any_order() {
    const COUNT: usize = 1 << 18;
    let orders: [fn(usize) -> usize; 4] =
        [|n| n, |n| COUNT - 1 - n, |n| n.wrapping_mul(0x9e37_79b1) % COUNT, |n| n / 2 + n % 2 * (COUNT / 2)];
    for order in orders {
        let mut fep = fep(Limits { receives: COUNT, ..Limits::default() });
        let connection = fep.connect(Time::ZERO, Addr(1), ConnectOptions::default()).unwrap();
        fep.hold(connection).unwrap();
        let sends: Vec<_> = (0..COUNT).map(|_| fep.post_send(connection, message(1)).unwrap()).collect();
        let receive = |n: usize| Receive {
            buffer: Buffer::Virtual(1),
            from: None,
            matching: Matching::Tagged { tag: n as u64 % 1_000, ignore: 0 },
            context: 0,
        };
        let receives: Vec<_> = (0..COUNT).map(|n| fep.post_receive(receive(n)).unwrap()).collect();
        let datagram = |_| {
            let buffer = Buffer::Virtual(1);
            let datagram = Datagram { buffer, peer: Addr(1), process: 0, header_data: 0, context: 0 };
            fep.post_datagram_of(0, datagram).unwrap()
        };
        let datagrams: Vec<_> = (0..COUNT).map(datagram).collect();
        let room = |_| {
            let receive = DatagramReceive { buffer: Buffer::Virtual(1), context: 0 };
            fep.post_datagram_receive_of(0, receive).unwrap()
        };
        let rooms: Vec<_> = (0..COUNT).map(room).collect();
        let steps = steps::of(|| {
            for n in (0..COUNT).map(order) {
                fep.cancel_send(sends[n]).unwrap();
                fep.cancel_receive(receives[n]).unwrap();
                fep.cancel_send(datagrams[n]).unwrap();
                fep.cancel_receive(rooms[n]).unwrap();
            }
        });
        let each = steps as f64 / COUNT as f64;
        assert!((1.0..24.0).contains(&each), "{each} steps for each cancel");
        assert_eq!(completions(&mut fep).len(), 4 * COUNT);
        assert_eq!(transmit_all(&mut fep).len(), 0);
    }
}

/// Connections of one process wait for the window to their peer, alone or beside one of another process, and their only messages
/// are cancelled.
#[test]
fn a_cancel_at_the_gate_takes_no_longer_where_hundreds_of_connections_wait() {
    const COUNT: usize = 512;
    for beside in [false, true] {
        let mut fep = fep(Limits::default());
        let connect = |fep: &mut Fep, process| {
            fep.connect_of(process, Time::ZERO, Addr(1), ConnectOptions::default()).unwrap()
        };
        let other = beside.then(|| connect(&mut fep, 1));
        let connections: Vec<_> = (0..COUNT).map(|_| connect(&mut fep, 0)).collect();
        // These fill the window, and wait for it from now on.
        for connection in other.iter().chain(&connections[..1]) {
            fep.post_send(*connection, message(1 << 20)).unwrap();
        }
        let sends: Vec<_> =
            connections[1..].iter().map(|id| fep.post_send(*id, message(1_000)).unwrap()).collect();
        transmit_all(&mut fep);
        let waiting = fep.initiator.contexts.iter().map(|(_, context)| context.blocked.len()).sum::<usize>();
        assert!(waiting > COUNT / 2, "{waiting} wait");
        let mut cancelled = 0;
        let steps = steps::of(|| {
            cancelled = sends.iter().rev().filter(|id| fep.cancel_send(**id).is_ok()).count();
        });
        assert!(steps <= 10 * COUNT as u64, "{steps} steps, beside another process: {beside}");
        assert!(cancelled > COUNT / 2, "{cancelled} are cancelled");
        let waiting = fep.initiator.contexts.iter().map(|(_, context)| context.blocked.len()).sum::<usize>();
        assert!(waiting <= 2, "{waiting} wait still");
    }
}

/// A process with many datagrams, nearly half of them cancelled, does not make the cancels of another one dear.
#[test]
fn what_a_cancel_of_a_datagram_looks_at_does_not_depend_on_those_of_other_processes() {
    const COUNT: usize = 10_000;
    let mut fep = fep(Limits::default());
    fep.open_process(1).unwrap();
    fep.open_process(2).unwrap();
    let post = |fep: &mut Fep, process| {
        let buffer = Buffer::Virtual(1);
        let datagram = Datagram { buffer, peer: Addr(1), process: 0, header_data: 0, context: 0 };
        fep.post_datagram_of(process, datagram).unwrap()
    };
    let many: Vec<_> = (0..COUNT).map(|_| post(&mut fep, 1)).collect();
    many[..COUNT / 2].iter().for_each(|id| fep.cancel_send(*id).unwrap());
    for _ in 0..10 {
        let one = post(&mut fep, 2);
        let steps = steps::of(|| fep.cancel_send(one).unwrap());
        assert!((1..4).contains(&steps), "{steps} steps");
    }
    assert_eq!(completions(&mut fep).len(), COUNT / 2 + 10);
    assert_eq!(transmit_all(&mut fep).len(), COUNT / 2);
}

/// Messages that are to be cancelled do not leave: no credit is asked for them, and congestion control does not take them for
/// something that waits to be sent.
#[test]
fn messages_of_an_abort_that_goes_on_are_not_in_the_backlog() {
    let mut fep = fep(Limits::default());
    let connect = |fep: &mut Fep| fep.connect(Time::ZERO, Addr(1), ConnectOptions::default()).unwrap();
    let (aborted, other) = (connect(&mut fep), connect(&mut fep));
    let backlog = |fep: &Fep| fep.initiator.contexts.iter().map(|(_, context)| context.backlog).sum::<u64>();
    fep.post_send(other, message(3_000)).unwrap();
    let others = backlog(&fep);
    for len in 1..200 {
        fep.post_send(aborted, message(len * 7)).unwrap();
    }
    transmit_all(&mut fep);
    let (before, left) = (backlog(&fep), others - 3_000 - 3 * 64);
    assert!(before > left + 100_000, "{before} and {left}");
    fep.begin_abort(Time::ZERO, aborted).unwrap();
    assert_eq!(backlog(&fep), 0);
    fep.post_send(other, message(1_000)).unwrap();
    while fep.cancel_aborted(Time::ZERO, &mut { 10_000 }) > 0 {}
    assert_eq!(backlog(&fep), 1_064);
}

/// A refusal of a packet that has others sent again with it takes as long as these are many; another one does not.
#[test]
fn only_a_refusal_that_has_many_packets_sent_again_ends_a_burst() {
    let mut fep = fep(Limits::default());
    let options = ConnectOptions { mode: DeliveryMode::Rod, ..ConnectOptions::default() };
    let connection = fep.connect(Time::ZERO, Addr(1), options).unwrap();
    (0..100).for_each(|_| _ = fep.post_send(connection, message(1)).unwrap());
    let sent = transmit_all(&mut fep);
    let last = sent.last().unwrap();
    let (Pds::Request(first), Pds::Request(refused)) = (sent[0].pds, last.pds) else { unreachable!() };
    assert!(refused.psn.distance(first.psn) as usize >= COMPLETED_PER_BURST);
    let refusal = |code| {
        let mut packet = fatal_nack(last);
        let Pds::Nack(nack) = &mut packet.pds else { unreachable!() };
        (nack.code, nack.payload) = (code, first.psn.0);
        packet
    };
    let ends = |fep: &mut Fep, packet: &Packet| {
        fep.begin_burst();
        fep.on_packet(Time::ZERO, packet, Payload::EMPTY);
        let ends = fep.completes_many();
        fep.end_burst(Time::ZERO, Span::ZERO);
        ends
    };
    assert!(!ends(&mut fep, &refusal(NackCode::RCVD_SES_PROCG)));
    assert!(ends(&mut fep, &refusal(NackCode::ROD_OOO)));
    // Its copies find the packet lost already.
    assert!((0..32).all(|_| !ends(&mut fep, &refusal(NackCode::ROD_OOO))));
}

/// No packet has left, so that there is no timer.
#[test]
fn messages_that_are_cancelled_on_a_held_connection_leave_no_memory_behind() {
    const MESSAGES: u64 = 10_000;
    let mut fep = fep(Limits::default());
    let connection = fep.connect(Time::ZERO, Addr(1), ConnectOptions::default()).unwrap();
    fep.hold(connection).unwrap();
    let before = fep.footprint().connections;
    let sends: Vec<SendId> = (0..MESSAGES).map(|_| fep.post_send(connection, message(1)).unwrap()).collect();
    assert!(fep.footprint().connections >= before + 8 * MESSAGES);
    for send in sends {
        fep.cancel_send(send).unwrap();
    }
    assert!(fep.footprint().connections <= before + 1_000);
}
