//! A target that exposes memory with different rights, and a peer whose bytes choose what its requests say: reads, writes
//! and atomic operations, whole and in parts, repeated, lost and out of order.
//!
//! A property test and a fuzz target share this.

use std::ops::Range;

use crate::harness::{Pair, RTO, Transit, config, untagged};
use weft_stack::buffer::Buffer;
use weft_stack::fep::{Completion, ConnectOptions, ConnectionId, Exposure, FepConfig, Limits, Rights};
use weft_stack::packet::{Addr, Packet, Payload};
use weft_stack::region::Region;
use weft_stack::ses::Source;
use weft_stack::wire::pds::{DeliveryMode, NextHeader, Pds};
use weft_stack::wire::ses::{AtomicOp, Opcode, Placement, RequestFlags, Ses, StandardRequest};

/// Bytes of all memory, most of which is exposed.
const ALL: u32 = 1024;
/// The content of what no peer may change.
const UNTOUCHED: u8 = 0xa5;

/// What is exposed: process, key, place, base, rights, and who may access it.
struct Memory {
    process: u16,
    key: u64,
    place: Range<usize>,
    base: u64,
    rights: Rights,
    from: Option<Source>,
}

fn memories() -> [Memory; 5] {
    let from = |process| Some(Source { peer: Addr(0), process });
    let write_only = Rights { read: false, write: true, atomic: true };
    let memory = |process, key, place, base, rights, from| Memory { process, key, place, base, rights, from };
    [
        memory(0, 1, 16..272, 0, Rights::ALL, None),
        memory(0, 2, 288..352, 0, Rights::READ, None),
        memory(0, 3, 368..468, 1000, Rights::ALL, from(5)),
        memory(3, 1, 480..736, u64::MAX - 300, Rights::ALL, None),
        memory(0, 4, 752..1008, 0, write_only, from(0)),
    ]
}

impl Memory {
    /// The bytes that `request`, of endpoint 0, names if it may access them like this.
    fn range(&self, request: &StandardRequest, is_allowed: impl Fn(Rights) -> bool) -> Option<Range<usize>> {
        let process = u16::try_from(request.initiator).ok().filter(|process| *process < 4096).unwrap_or(0);
        let source = Source { peer: Addr(0), process };
        let named = request.pid_on_fep == self.process && request.match_bits == self.key;
        if !named || !is_allowed(self.rights) || self.from.is_some_and(|from| from != source) {
            return None;
        }
        let start = usize::try_from(request.buffer_offset.checked_sub(self.base)?).ok()?;
        let end = start.checked_add(request.request_length as usize)?;
        (end <= self.place.len()).then(|| self.place.start + start..self.place.start + end)
    }
}

/// Decisions of one byte each. When the bytes are used up, every decision is 0.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }
}

struct World {
    pair: Pair,
    memory: Region,
    connections: Vec<ConnectionId>,
    /// Packets on their way, with their payload.
    wire: Vec<(Transit, Vec<u8>)>,
    /// The requests that have arrived.
    arrived: Vec<StandardRequest>,
}

impl World {
    fn new(choices: &mut Choices<'_>) -> World {
        let limits = Limits {
            unexpected_messages_per_peer: choices.pick(&[1000, 2]),
            response_bytes_per_peer: choices.pick(&[1 << 20, 700]),
            ..Limits::default()
        };
        let mut pair = Pair::new(&FepConfig { limits, ..config(true) });
        pair.feps[1].open_process(3).unwrap();
        let memory = Region::allocate(ALL as usize).unwrap();
        memory.slice(0, ALL).unwrap().write(0, &[UNTOUCHED; ALL as usize]);
        for Memory { process, key, place, base, rights, from } in memories() {
            let buffer = Buffer::Region(memory.slice(place.start as u64, place.len() as u32).unwrap());
            pair.feps[1].expose(process, Exposure { key, buffer, base, rights, from }).unwrap();
        }
        let connect = |mode| pair.connect_from(0, ConnectOptions::default().mode(mode));
        let connections = [DeliveryMode::Rud, DeliveryMode::Rod].map(connect).to_vec();
        World { pair, memory, connections, wire: Vec::new(), arrived: Vec::new() }
    }

    fn content(&self) -> Vec<u8> {
        let mut bytes = vec![0; ALL as usize];
        self.memory.slice(0, ALL).unwrap().read(0, &mut bytes);
        bytes
    }

    /// A packet of an ordinary message leaves, and is given another header and other content.
    fn ask(&mut self, choices: &mut Choices<'_>) {
        let connection = choices.pick(&self.connections);
        if self.pair.feps[0].post_send(connection, untagged(vec![1; 8], 0)).is_err() {
            return;
        }
        let Some(mut transit) = self.pair.transmit(0) else { return };
        let payload: Vec<u8> = match choices.byte() {
            0..128 => (0..choices.byte() % 64).map(|_| choices.byte()).collect(),
            head => {
                let op = AtomicOp(head % 20);
                let mut bytes = vec![op.0, choices.byte() % 16, 0, 0];
                bytes.extend((0..choices.byte() % 48).map(|_| choices.byte()));
                bytes
            }
        };
        if let Ses::Standard(header) = &mut transit.packet.ses {
            draw(header, choices, payload.len() as u16);
        }
        transit.packet.payload_len = payload.len() as u32;
        self.wire.push((transit, payload));
    }

    /// A packet arrives at the target, which changes nothing but the bytes that the packet names and may change.
    fn arrive(&mut self, packet: &Packet, payload: &[u8]) {
        let before = self.content();
        self.pair.feps[1].on_packet(self.pair.now, packet, Payload::Bytes(payload));
        let after = self.content();
        let mut allowed = None;
        if let Ses::Standard(request) = packet.ses {
            let is_allowed = |rights: Rights| match request.opcode {
                Opcode::WRITE => rights.write,
                Opcode::ATOMIC => rights.atomic,
                Opcode::FETCHING_ATOMIC => rights.atomic && rights.read,
                _ => false,
            };
            allowed = memories().iter().find_map(|memory| memory.range(&request, is_allowed));
            self.arrived.push(request);
        }
        for (at, (new, old)) in after.iter().zip(&before).enumerate() {
            let may_change = allowed.as_ref().is_some_and(|range| range.contains(&at));
            assert!(new == old || may_change, "byte {at} has changed by {packet:?}");
        }
    }

    /// What the target sends: data of memory only as a request that arrived may read it.
    fn answer(&mut self, choices: &mut Choices<'_>) {
        let is_lost = choices.byte() & 7 == 7;
        while let Some(transmit) = self.pair.feps[1].poll_transmit(self.pair.now) {
            let packet = transmit.packet;
            let payload = self.pair.feps[1].payload(&transmit.payload);
            let mut bytes = vec![0; payload.len() as usize];
            match payload {
                Payload::Bytes(of) => bytes.copy_from_slice(of),
                Payload::Region(of) => of.copy_to(&mut bytes),
                Payload::Virtual(_) => panic!("there is no such memory"),
            }
            if matches!(&packet.pds, Pds::Ack(ack) if ack.next == NextHeader::ResponseData) {
                self.check_response(&bytes);
            }
            if !is_lost {
                self.pair.feps[0].on_packet(self.pair.now, &packet, Payload::Bytes(&bytes));
            }
        }
        self.pair.completions(0);
    }

    fn check_response(&self, bytes: &[u8]) {
        let content = self.content();
        let fits = |request: &StandardRequest| {
            let reads = |rights: Rights| rights.read;
            let range = memories().iter().find_map(|memory| memory.range(request, reads));
            match request.opcode {
                Opcode::READ => range.is_some_and(|range| content[range] == *bytes),
                // What it fetched was there at the time.
                Opcode::FETCHING_ATOMIC => range.is_some_and(|range| range.len() == bytes.len()),
                _ => false,
            }
        };
        assert!(self.arrived.iter().any(fits), "nothing that arrived asks for {bytes:?}");
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.byte() % 8 {
            0..=3 => self.ask(choices),
            // Any packet on the wire, and perhaps again later.
            kind @ (4 | 5) if !self.wire.is_empty() => {
                let at = usize::from(choices.byte()) % self.wire.len();
                let (transit, payload) = &self.wire[at];
                let (packet, payload) = (transit.packet, payload.clone());
                self.arrive(&packet, &payload);
                if kind == 4 {
                    self.wire.remove(at);
                }
            }
            6 => {
                self.pair.now += RTO;
                self.pair.feps.iter_mut().for_each(|fep| fep.on_timeout(self.pair.now));
                // What is sent again is an ordinary message.
                while let Some(transit) = self.pair.transmit(0) {
                    self.wire.push((transit, vec![1; 8]));
                }
            }
            _ => self.answer(choices),
        }
        for completion in self.pair.completions(1) {
            let Completion::Written(written) = completion else { continue };
            let of = |memory: &&Memory| (memory.process, memory.key) == (written.process, written.key);
            let memory = memories();
            let memory = memory.iter().find(of).expect("memory that is exposed");
            let offset = written.offset.checked_sub(memory.base).expect("within");
            assert!(memory.rights.write && offset + u64::from(written.len) <= memory.place.len() as u64);
        }
    }
}

/// Fields of a request that nearly make sense.
fn draw(header: &mut StandardRequest, choices: &mut Choices<'_>, len: u16) {
    header.opcode = match choices.byte() {
        250.. => Opcode(choices.byte()),
        n => [Opcode::WRITE, Opcode::READ, Opcode::ATOMIC, Opcode::FETCHING_ATOMIC][usize::from(n) % 4],
    };
    header.msg_id = u16::from(choices.byte() % 4);
    header.pid_on_fep = choices.pick(&[0, 0, 0, 3, 4]);
    header.match_bits = u64::from(choices.byte() % 6);
    header.initiator = choices.pick(&[0, 5, 5, 4096, u32::MAX]);
    let base = choices.pick(&[0, 0, 1000, u64::MAX - 300, u64::MAX - 60]);
    header.buffer_offset = base.wrapping_add(u64::from(choices.byte()));
    header.request_length = match choices.byte() {
        0..100 => u32::from(len),
        n @ 100..200 => u32::from(n - 100),
        200..240 => u32::from(choices.byte()) * 2,
        _ => u32::MAX - u32::from(choices.byte()),
    };
    let flags = choices.byte();
    header.flags = RequestFlags::HEADER_DATA
        .only_if(flags & 1 != 0)
        .with(RequestFlags::START_OF_MESSAGE.only_if(flags & 6 != 0))
        .with(RequestFlags::END_OF_MESSAGE.only_if(flags & 24 != 0));
    header.placement = if header.flags.has(RequestFlags::START_OF_MESSAGE) {
        Placement::Start { header_data: u64::from(flags) }
    } else {
        Placement::Continue { payload_len: len, msg_offset: u32::from(choices.byte()) }
    };
}

/// Whatever a peer's requests say, memory changes only where they may change it, and is shown only where they may read it;
/// nothing panics, and the endpoint goes on.
pub(crate) fn hostile_accesses_stay_inside(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let mut world = World::new(&mut choices);
    while !choices.0.is_empty() {
        world.step(&mut choices);
    }
    let after = world.content();
    let exposed: Vec<_> =
        memories().into_iter().filter(|memory| memory.rights.write).map(|memory| memory.place).collect();
    let kept = |at: &usize| !exposed.iter().any(|place| place.contains(at));
    assert!((0..after.len()).filter(kept).all(|at| after[at] == UNTOUCHED));
}
