//! Messages that arrive other than they were sent.

use std::sync::Arc;

use weft_cc::Time;
use weft_stack::buffer::Buffer;
use weft_stack::fep::{Completion, Fep, Receive};
use weft_stack::packet::Addr;
use weft_stack::rng::Rng;
use weft_stack::ses::{Matching, Source};
use weft_stack::wire::pds::DeliveryMode;

use crate::goal::{Costs, HostRanks, Job, Placement, parse_goal};
use crate::sim::RunConfig;
use crate::topology::TopologySpec;
use crate::workload::{Workload, payload};

const PROGRAM: &str = "num_ranks 3\nrank 0 {\nsend 9b to 1\n}\nrank 1 {\nx: recv 9b from -1\n}\n\
    rank 2 {\nsend 9b to 1\nsend 9b to 0\n}\n";

/// The complaint about message number `number` of `source` with these bytes, which meets the receive of rank 1.
fn complaint(source: u32, number: u64, len: u32, bytes: Vec<u8>) -> Option<String> {
    let program = parse_goal("a.goal", PROGRAM).unwrap();
    let job = Arc::new(Job::new("a.goal", program, 1, Placement::Block, Costs::default()).unwrap());
    let topology = "fat-tree:hosts=4".parse::<TopologySpec>().unwrap().build().unwrap();
    let none = Workload::new(4, Vec::new(), Vec::new(), Vec::new(), Vec::new()).unwrap();
    let config = RunConfig::new(topology, none).endpoint();
    let mut fep = Fep::new(Addr(1), config.into(), Rng::new(1, 1), Time::ZERO).unwrap();
    let mut ranks = HostRanks::new(&job, 1, DeliveryMode::Rud, true, &mut fep).unwrap();
    ranks.on_timeout(Time::ZERO, &mut fep);
    let id = fep.post_receive(Receive {
        buffer: Buffer::Virtual(0),
        from: None,
        matching: Matching::Tagged { tag: 1, ignore: 0 },
        context: 0,
    });
    let completion = Completion::Received {
        id: id.unwrap(),
        context: 0,
        source: Some(Source { peer: Addr(source), process: 0 }),
        tag: Some(0),
        header_data: number,
        len,
        buffer: Buffer::Heap(bytes),
        more: false,
        result: Ok(()),
    };
    ranks.on_completion(Time::ZERO, completion, &mut fep);
    ranks.wrong().first().map(|(_, text)| text.clone())
}

#[test]
fn what_arrives_other_than_it_was_sent_is_noticed() {
    assert_eq!(complaint(0, 0, 9, payload(0, 9)), None);
    assert_eq!(complaint(2, 1, 9, payload(1, 9)), None);
    let named = |what: &str| Some(format!("rank 1 on host 1: `x: recv 9b from -1` (a.goal:6): {what}"));
    let mut damaged = payload(0, 9);
    damaged[8] ^= 1;
    assert_eq!(complaint(0, 0, 9, damaged), named("the bytes that arrived are not those sent"));
    assert_eq!(complaint(0, 0, 9, payload(1, 9)), named("the bytes that arrived are not those sent"));
    let other = named("another message arrived than was sent");
    assert_eq!(complaint(2, 0, 9, payload(0, 9)), other, "of another rank");
    assert_eq!(complaint(0, 0, 8, payload(0, 9)), other, "of another length");
    assert_eq!(complaint(2, 2, 9, payload(2, 9)), other, "for another rank");
    assert_eq!(complaint(0, 3, 9, payload(3, 9)), other, "that nobody sends");
}
