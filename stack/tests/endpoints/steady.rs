//! A stream of messages over a link that has come to its steady state: all buffers have grown to
//! what it needs, and the memory of messages is used again.

use std::hint::black_box;
#[cfg(target_os = "linux")]
use std::time::Duration;

use weft_stack::buffer::Buffer;
use weft_stack::cc::CcChoice;
use weft_stack::fep::{Completion, ConnectionId, FepConfig, Receive, Send};
use weft_stack::packet::Addr;
use weft_stack::pdc::PdcConfig;
use weft_stack::port::Port;
#[cfg(target_os = "linux")]
use weft_stack::port::memif::{MemifConfig, MemifPort, SocketName};
use weft_stack::port::memory::{MemoryConfig, MemoryPort, pair};
use weft_stack::ses::Matching;
use weft_stack::wire::pds::DeliveryMode;
use weft_stack::worker::LinkConfig;
use weft_stack::worker::ring::Region;

use super::{MTU, Pair, config_with, worker};

/// Messages under way at a time.
const DEPTH: usize = 4;

/// The stream, and the link.
pub(crate) struct Stream<P = MemoryPort> {
    pub(crate) pair: Pair<P, P>,
    connection: ConnectionId,
    memory: Vec<Buffer>,
    packets: usize,
}

impl Stream {
    /// Messages of `packets` full packets each over a link in memory, under way for long enough.
    pub(crate) fn new(cc: &CcChoice, mode: DeliveryMode, infer_loss: bool, packets: usize) -> Stream {
        Stream::over(pair(&MemoryConfig::default()).unwrap(), cc, mode, infer_loss, packets)
    }
}

#[cfg(target_os = "linux")]
impl Stream<MemifPort> {
    /// A stream of a region's memory between two ends of memif.
    #[allow(dead_code, reason = "not every program that uses this module has such ports")]
    pub(crate) fn over_memif(packets: usize) -> Stream<MemifPort> {
        let directory = tempfile::tempdir().unwrap();
        let socket = SocketName::Path(directory.path().join("steady.sock"));
        let open = |config| MemifPort::open(&config).unwrap();
        let ports = (open(MemifConfig::client(socket.clone())), open(MemifConfig::server(socket)));
        for port in [&ports.0, &ports.1] {
            port.wait_for_link(Duration::from_secs(20)).unwrap();
        }
        Stream::of_region(ports, &CcChoice::default(), DeliveryMode::Rud, packets)
    }
}

impl<P: Port> Stream<P> {
    /// The same over the link between these ports.
    pub(crate) fn over(
        ports: (P, P),
        cc: &CcChoice,
        mode: DeliveryMode,
        infer_loss: bool,
        packets: usize,
    ) -> Stream<P> {
        let memory = (0..2 * DEPTH).map(|n| Buffer::Heap(vec![n as u8; packets * MTU as usize]));
        Stream::with_memory(ports, cc, mode, infer_loss, packets, memory.collect())
    }

    /// The same with messages in a region.
    pub(crate) fn of_region(ports: (P, P), cc: &CcChoice, mode: DeliveryMode, packets: usize) -> Stream<P> {
        let len = packets * MTU as usize;
        let region = Region::allocate(2 * DEPTH * len).unwrap();
        let message = |n| Buffer::Region(region.slice((n * len) as u64, len as u32).unwrap());
        Stream::with_memory(ports, cc, mode, false, packets, (0..2 * DEPTH).map(message).collect())
    }

    fn with_memory(
        (left, right): (P, P),
        cc: &CcChoice,
        mode: DeliveryMode,
        infer_loss: bool,
        packets: usize,
        memory: Vec<Buffer>,
    ) -> Stream<P> {
        let base = config_with(cc, MTU, true);
        let config = FepConfig { pdc: PdcConfig { infer_loss, ..base.pdc }, ..base };
        let side = |own, port| worker(own, port, &config, LinkConfig::default(), false);
        let mut pair = Pair::new(side(0, left), side(1, right));
        let connection = pair.connect(0, mode);
        let mut stream = Stream { pair, connection, memory, packets };
        stream.run(100);
        stream
    }

    /// Sends `rounds` times as many messages as are under way at a time. Returns how many packets those were,
    /// none of which was sent twice.
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
            let receive = Receive { buffer, from: Some(Addr(0)), matching: Matching::Untagged, context: 0 };
            self.pair.fep(1).post_receive(receive).unwrap();
            let buffer = self.memory.pop().unwrap();
            let send = Send { buffer, tag: None, header_data: 0, context: 0 };
            self.pair.fep(0).post_send(self.connection, send).unwrap();
        }
        let mut turns = 0;
        while self.memory.len() < 2 * DEPTH {
            // The time of the pair is virtual, but what reading the clock takes counts too.
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

fn returned(completion: Completion) -> Buffer {
    match completion {
        Completion::Sent { buffer, result: Ok(()), .. }
        | Completion::Received { buffer, result: Ok(()), .. } => buffer,
        other => panic!("{other:?}"),
    }
}
