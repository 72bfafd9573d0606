//! A stream of messages over a link in its steady state: all buffers have grown to the size that they keep, and the
//! memory of messages is used again and again.
#![allow(dead_code, reason = "each test program uses a part of this module")]

use std::hint::black_box;
use std::time::Duration;

use weft_stack::buffer::Buffer;
use weft_stack::cc::CcChoice;
use weft_stack::fep::{Completion, ConnectionId, FepConfig, Receive, Send};
use weft_stack::packet::Addr;
use weft_stack::port::Port;
use weft_stack::port::memif::{MemifConfig, MemifPort, SocketName};
use weft_stack::port::memory::{MemoryConfig, MemoryPort, pair};
use weft_stack::region::Region;
use weft_stack::region::SharedRegion;
use weft_stack::ses::Matching;
use weft_stack::wire::pds::DeliveryMode;
use weft_stack::worker::LinkConfig;

use crate::harness::{MTU, WorkerPair, config_with, worker};

/// Messages in flight at a time.
const DEPTH: usize = 4;

/// A stream, and the link that it uses.
pub(crate) struct Stream<P = MemoryPort> {
    pub(crate) pair: WorkerPair<P, P>,
    connection: ConnectionId,
    memory: Vec<Buffer>,
    packets: usize,
}

impl Stream {
    /// A stream of messages of `packets` full packets each over a link in memory, in its steady state.
    pub(crate) fn new(cc: &CcChoice, mode: DeliveryMode, infer_loss: bool, packets: usize) -> Stream {
        Stream::over(pair(&MemoryConfig::default()).unwrap(), cc, mode, infer_loss, packets)
    }
}

impl Stream<MemifPort> {
    /// A stream from the memory of a region over memif.
    pub(crate) fn over_memif(packets: usize) -> Stream<MemifPort> {
        Stream::of_region(memif(None), &CcChoice::default(), DeliveryMode::Rud, packets)
    }
}

/// A client of memif and its server. The client registers `memory` with the link.
pub(crate) fn memif(memory: Option<&SharedRegion>) -> (MemifPort, MemifPort) {
    let directory = tempfile::tempdir().unwrap();
    let socket = SocketName::Path(directory.path().join("steady.sock"));
    let open = |config| MemifPort::open(&config).unwrap();
    let mut client = open(MemifConfig::client(socket.clone()));
    assert!(memory.is_none_or(|memory| client.register(memory)));
    let ports = (client, open(MemifConfig::server(socket)));
    for port in [&ports.0, &ports.1] {
        port.wait_for_link(Duration::from_secs(20)).unwrap();
    }
    ports
}

/// The bytes of memory that a stream needs if its messages have `packets` packets.
pub(crate) fn memory_of(packets: usize) -> usize {
    2 * DEPTH * packets * MTU as usize
}

impl<P: Port> Stream<P> {
    /// A stream over the link between these ports.
    pub(crate) fn over(
        ports: (P, P),
        cc: &CcChoice,
        mode: DeliveryMode,
        infer_loss: bool,
        packets: usize,
    ) -> Stream<P> {
        let memory = (0..2 * DEPTH).map(|n| Buffer::Heap(vec![n as u8; packets * MTU as usize]));
        let link = LinkConfig::default();
        Stream::with_memory(ports, link, config(cc, infer_loss), mode, packets, memory.collect())
    }

    /// A stream over the link between these ports, with messages in a region.
    pub(crate) fn of_region(ports: (P, P), cc: &CcChoice, mode: DeliveryMode, packets: usize) -> Stream<P> {
        let region = Region::allocate(memory_of(packets)).unwrap();
        let memory = messages(&region, packets);
        Stream::with_memory(ports, LinkConfig::default(), config(cc, false), mode, packets, memory)
    }

    /// A stream with messages in `region`, which has as many bytes as [`memory_of`] returns.
    pub(crate) fn in_region(ports: (P, P), link: LinkConfig, region: &Region, packets: usize) -> Stream<P> {
        let config = config(&CcChoice::default(), false);
        Stream::with_memory(ports, link, config, DeliveryMode::Rud, packets, messages(region, packets))
    }

    fn with_memory(
        (left, right): (P, P),
        link: LinkConfig,
        config: FepConfig,
        mode: DeliveryMode,
        packets: usize,
        memory: Vec<Buffer>,
    ) -> Stream<P> {
        let side = |own, port| worker(own, port, &config, link, false);
        let mut pair = WorkerPair::new(side(0, left), side(1, right));
        let connection = pair.connect(0, mode);
        let mut stream = Stream { pair, connection, memory, packets };
        stream.run(100);
        stream
    }

    /// Sends [`DEPTH`] messages at a time, `rounds` times. Returns how many packets those were, and checks that none
    /// was sent twice.
    pub(crate) fn run(&mut self, rounds: u32) -> u64 {
        let before = self.pair.a.fep().counters().data_sent;
        (0..rounds).for_each(|_| self.round());
        let sent = self.pair.a.fep().counters().data_sent - before;
        assert_eq!(sent, u64::from(rounds) * (DEPTH * self.packets) as u64);
        sent
    }

    fn round(&mut self) {
        for _ in 0..DEPTH {
            let buffer = self.memory.pop().unwrap();
            let receive =
                Receive { buffer, from: Some(Addr(0).into()), matching: Matching::Untagged, context: 0 };
            self.pair.fep(1).post_receive(receive).unwrap();
            let buffer = self.memory.pop().unwrap();
            let send = Send { buffer, tag: None, header_data: 0, context: 0 };
            self.pair.fep(0).post_send(self.connection, send).unwrap();
        }
        let mut turns = 0;
        while self.memory.len() < 2 * DEPTH {
            // The time of the pair is virtual, but the cost of reading the clock counts.
            black_box(self.pair.a.clock().now());
            self.pair.turn();
            turns += 1;
            assert!(turns < 100_000, "the messages do not arrive");
            for side in [0, 1] {
                while let Some(completion) = self.pair.fep(side).poll_completion() {
                    self.memory.push(returned(completion));
                }
            }
        }
    }
}

fn config(cc: &CcChoice, infer_loss: bool) -> FepConfig {
    config_with(cc, MTU, true).with_zones(|zone| zone.pdc.infer_loss = infer_loss)
}

fn messages(region: &Region, packets: usize) -> Vec<Buffer> {
    let len = packets * MTU as usize;
    let message = |n| Buffer::Region(region.slice((n * len) as u64, len as u32).unwrap());
    (0..2 * DEPTH).map(message).collect()
}

fn returned(completion: Completion) -> Buffer {
    match completion {
        Completion::Sent { buffer, result: Ok(()), .. }
        | Completion::Received { buffer, result: Ok(()), .. } => buffer,
        other => panic!("{other:?}"),
    }
}
