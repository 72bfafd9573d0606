//! The source of a message is a process of an endpoint: receives can ask for it, and completions tell it. See
//! docs/decisions/0049-the-source-is-a-process.md.

use crate::harness::{Pair, Transit, config, content};
use weft_stack::buffer::Buffer;
use weft_stack::fep::{
    CallError, Completion, ConnectOptions, ConnectionId, MAX_PROCESS, PostError, Receive, Send,
};
use weft_stack::packet::Addr;
use weft_stack::ses::{Matching, Source};
use weft_stack::wire::ses::Ses;

const TAG: u64 = 9;

fn pair() -> Pair {
    Pair::new(&config(true))
}

fn process(process: u16) -> Source {
    Source { peer: Addr(0), process }
}

fn connect(pair: &mut Pair, process: u16) -> ConnectionId {
    pair.feps[0].connect_of(process, pair.now, Addr(1), ConnectOptions::default()).unwrap()
}

fn message(bytes: Vec<u8>) -> Send {
    Send { buffer: Buffer::Heap(bytes), tag: Some(TAG), header_data: 0, context: 0 }
}

fn receive(from: Option<Source>, context: u64) -> Receive {
    let matching = Matching::Tagged { tag: TAG, ignore: 0 };
    Receive { buffer: Buffer::Heap(vec![0; 20_000]), from, matching, context }
}

fn post(pair: &mut Pair, from: Option<Source>, context: u64) {
    pair.feps[1].post_receive(receive(from, context)).unwrap();
}

/// The receives of endpoint 1 that have completed: context, sender and bytes.
fn received(pair: &mut Pair) -> Vec<(u64, Source, Vec<u8>)> {
    let mut all: Vec<_> = pair
        .completions(1)
        .into_iter()
        .filter_map(|completion| match completion {
            Completion::Received {
                context, source, len, buffer: Buffer::Heap(mut bytes), result, ..
            } => {
                assert_eq!(result, Ok(()));
                bytes.truncate(len as usize);
                Some((context, source.expect("a message has come"), bytes))
            }
            _ => None,
        })
        .collect();
    all.sort_unstable();
    all
}

/// Messages of one packet and of several, which take different ways through the target.
const LENGTHS: [usize; 2] = [100, 15_000];

#[test]
fn processes_of_one_endpoint_are_told_apart_though_their_tags_are_equal() {
    for len in LENGTHS {
        let mut pair = pair();
        // The receive that was posted first is for the process that sends last.
        for (context, from) in [(0, Some(process(4))), (1, Some(process(3))), (2, None)] {
            post(&mut pair, from, context);
        }
        for (from, seed) in [(3, 30), (3, 31), (4, 40)] {
            let connection = connect(&mut pair, from);
            pair.post_send(connection, message(content(seed, len)));
            pair.exchange();
        }
        let expected = [(0, process(4), 40), (1, process(3), 30), (2, process(3), 31)];
        assert_eq!(received(&mut pair), expected.map(|(n, from, seed)| (n, from, content(seed, len))));
    }
}

#[test]
fn a_receive_takes_the_unexpected_message_of_the_process_that_it_names() {
    for len in LENGTHS {
        let mut pair = pair();
        for from in [5, 0, MAX_PROCESS] {
            let connection = connect(&mut pair, from);
            pair.post_send(connection, message(content(from.into(), len)));
            pair.exchange();
        }
        let order = [MAX_PROCESS, 6, 0, 5];
        for (context, from) in (0..).zip(order) {
            post(&mut pair, Some(process(from)), context);
        }
        let expected = [(0, MAX_PROCESS), (2, 0), (3, 5)];
        assert_eq!(
            received(&mut pair),
            expected.map(|(n, from)| (n, process(from), content(from.into(), len))),
            "process 6 has sent nothing"
        );
    }
}

/// A connection without a number is that of process 0, and so is a receive for an endpoint.
#[test]
fn an_endpoint_stands_for_its_process_0() {
    let mut pair = pair();
    post(&mut pair, Some(Addr(0).into()), 0);
    for (connection, byte) in [(connect(&mut pair, 1), 1), (pair.connect(), 2)] {
        pair.post_send(connection, message(vec![byte]));
        pair.exchange();
    }
    assert_eq!(received(&mut pair), [(0, process(0), vec![2])]);
}

/// Puts `initiator` where an endpoint has put its process.
fn claim(transit: &mut Transit, initiator: u32) {
    match &mut transit.packet.ses {
        Ses::Standard(header) => header.initiator = initiator,
        other => panic!("a data packet, not {other:?}"),
    }
}

/// What another implementation puts into `initiator` may be a number, or anything else, such as an address.
#[test]
fn messages_of_other_implementations_match_whatever_their_initiator_is() {
    let of_a_peer = [
        (0, 0),
        (1, 1),
        (u32::from(MAX_PROCESS), MAX_PROCESS),
        (u32::from(MAX_PROCESS) + 1, 0),
        (0x0001_0003, 0),
        (0xc000_0201, 0),
        (u32::MAX, 0),
    ];
    for (initiator, number) in of_a_peer {
        for from in [None, Some(process(number))] {
            for len in LENGTHS {
                let mut pair = pair();
                post(&mut pair, from, 7);
                let connection = connect(&mut pair, 2);
                pair.post_send(connection, message(content(1, len)));
                while pair.put_on_wire(0) {}
                for mut transit in std::mem::take(&mut pair.wire) {
                    claim(&mut transit, initiator);
                    pair.arrive(&transit);
                }
                assert_eq!(received(&mut pair), [(7, process(number), content(1, len))], "{initiator:#x}");
            }
        }
    }
}

#[test]
fn a_process_has_twelve_bits() {
    let (mut pair, beyond) = (pair(), MAX_PROCESS + 1);
    let none = CallError::NoSuchProcess(beyond);
    let connected = pair.feps[0].connect_of(beyond, pair.now, Addr(1), ConnectOptions::default());
    assert_eq!(connected, Err(none));
    let posted = pair.feps[1].post_receive(receive(Some(process(beyond)), 0));
    assert!(matches!(posted, Err(PostError { error, .. }) if error == none));
    assert_eq!(pair.leaks(1), [""; 0]);
}
