//! Two endpoints that send each other datagrams and messages over a channel that a string of bytes controls: it delivers
//! packets in any order, drops, copies and trims them, and forges datagrams of a third address.
//!
//! A property test and a fuzz target share this.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::harness::{self, Pair, Transit, params};
use weft_stack::buffer::Buffer;
use weft_stack::cc::{CcChoice, CcParams};
use weft_stack::fep::{
    CallError, Completion, ConnectOptions, ConnectionId, Datagram, DatagramReceive, FepConfig, Limits,
    Receive, ReceiveError, Send, SendError, SendId,
};
use weft_stack::packet::{Addr, Class, Network, Packet, Payload};
use weft_stack::ses::{Matching, ReceiveId, Source};
use weft_stack::spray::Entropy;
use weft_stack::wire::class::Priority;
use weft_stack::wire::pds::{NextHeader, Pds, Uud};
use weft_stack::wire::ses::{Opcode, Placement, RequestFlags, ReturnCode, Ses, StandardRequest};
use weft_stack::{Span, Time};

const MTU: u32 = 200;
/// The processes of both endpoints.
const PROCESSES: [u16; 2] = [0, 5];
/// The source address of forged packets.
const HOSTILE: Addr = Addr(2);
/// The header data of messages, and the contexts of everything that has to do with messages, have this bit; those of
/// datagrams do not.
const MESSAGE: u64 = 1 << 40;

/// Decisions of one byte each. When the bytes are used up, every decision is 0.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n.max(1)
    }
}

/// A datagram that was posted.
struct Sent {
    from: usize,
    source: u16,
    to: u16,
    bytes: Vec<u8>,
    id: SendId,
    ended: bool,
    cancelled: bool,
    /// Packets of it that the channel has delivered whole.
    copies: u32,
    delivered: u32,
}

struct World {
    pair: Pair,
    sent: Vec<Sent>,
    /// Receives of datagrams by their contexts: the endpoint, the process, the length, and the name until it has ended.
    receives: Vec<(usize, u16, u32, Option<ReceiveId>)>,
    connections: [ConnectionId; 2],
    /// Messages posted, and messages sent and received.
    messages: u64,
    messages_done: [u64; 2],
    /// How often each endpoint has completed a datagram receive.
    received: [u64; 2],
}

/// What a datagram with this number has in it.
fn content(number: usize, len: u32) -> Vec<u8> {
    (0..len).map(|at| (number as u32).wrapping_mul(31).wrapping_add(at) as u8).collect()
}

impl World {
    fn new() -> World {
        let cc = CcChoice::default();
        let config = FepConfig::new(&cc, &CcParams { mtu: MTU, ..params() });
        let limits = Limits { sends: 40, receives: 12, ..Limits::default() };
        let config = Arc::new(FepConfig { limits, ..config });
        let feps = [0, 1].map(|n| harness::fep(n, config.clone(), 9, Time::ZERO));
        let mut pair = Pair::of(feps, Time::ZERO);
        for fep in &mut pair.feps {
            fep.open_process(PROCESSES[1]).unwrap();
        }
        let connections = [0, 1].map(|from| pair.connect_from(from, ConnectOptions::default()));
        World {
            pair,
            sent: Vec::new(),
            receives: Vec::new(),
            connections,
            messages: 0,
            messages_done: [0; 2],
            received: [0; 2],
        }
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.byte() % 16 {
            0..=2 => self.send(choices),
            3..=4 => self.receive(choices),
            5..=6 => {
                let fep = choices.below(2);
                self.pair.put_on_wire(fep);
            }
            7..=9 => self.deliver(choices),
            10 => self.disturb(choices),
            11 => self.cancel(choices),
            12 => self.message(choices),
            13 => self.strike(choices),
            14 => self.pair.now += Span::from_us(u64::from(choices.byte())),
            _ => self.pair.feps.iter_mut().for_each(|fep| fep.on_timeout(self.pair.now)),
        }
        self.collect();
    }

    fn send(&mut self, choices: &mut Choices<'_>) {
        let from = choices.below(2);
        let [source, to] = [0; 2].map(|_| PROCESSES[choices.below(2)]);
        let len = [0, 1, u32::from(choices.byte()) % MTU, MTU, MTU + 1][choices.below(5)];
        let number = self.sent.len();
        let datagram = Datagram {
            buffer: Buffer::Heap(content(number, len)),
            peer: Addr(1 - from as u32),
            process: to,
            header_data: number as u64,
            context: number as u64,
        };
        match self.pair.feps[from].post_datagram_of(source, datagram) {
            Ok(id) => self.sent.push(Sent {
                from,
                source,
                to,
                bytes: content(number, len),
                id,
                ended: false,
                cancelled: false,
                copies: 0,
                delivered: 0,
            }),
            Err(refused) if len > MTU => {
                assert_eq!(refused.error, CallError::DatagramTooLong { most: MTU });
            }
            Err(refused) => assert!(matches!(refused.error, CallError::Limit { limit: 40, .. })),
        }
    }

    fn receive(&mut self, choices: &mut Choices<'_>) {
        let (fep, process) = (choices.below(2), PROCESSES[choices.below(2)]);
        let len = if choices.byte().is_multiple_of(4) { 50 } else { MTU };
        let context = self.receives.len() as u64;
        let receive = DatagramReceive { buffer: Buffer::Heap(vec![0; len as usize]), context };
        match self.pair.feps[fep].post_datagram_receive_of(process, receive) {
            Ok(id) => self.receives.push((fep, process, len, Some(id))),
            Err(refused) => assert!(matches!(refused.error, CallError::Limit { limit: 12, .. })),
        }
    }

    /// A message and a receive for one, which have nothing to do with datagrams.
    fn message(&mut self, choices: &mut Choices<'_>) {
        let fep = choices.below(2);
        if choices.byte() & 1 == 0 {
            let (buffer, header_data) = (Buffer::Heap(vec![0xee; 300]), MESSAGE | self.messages);
            let send = Send { buffer, tag: None, header_data, context: MESSAGE };
            if self.pair.feps[fep].post_send(self.connections[fep], send).is_ok() {
                self.messages += 1;
            }
        } else {
            let buffer = Buffer::Heap(vec![0; 400]);
            let receive = Receive { buffer, from: None, matching: Matching::Untagged, context: MESSAGE };
            // Refused once too many wait.
            let _ = self.pair.feps[fep].post_receive(receive);
        }
    }

    fn deliver(&mut self, choices: &mut Choices<'_>) {
        if !self.pair.wire.is_empty() {
            let transit = self.pair.wire.remove(choices.below(self.pair.wire.len()));
            self.arrive(&transit);
        }
    }

    fn arrive(&mut self, transit: &Transit) {
        if let Some(number) = number_of(&transit.packet)
            && !transit.packet.net.class.is_trimmed()
        {
            self.sent[number].copies += 1;
        }
        self.pair.arrive(transit);
    }

    /// Drops, copies or trims a packet.
    fn disturb(&mut self, choices: &mut Choices<'_>) {
        let wire = &mut self.pair.wire;
        if wire.is_empty() {
            return;
        }
        let at = choices.below(wire.len());
        match choices.byte() % 4 {
            0 => drop(wire.remove(at)),
            1 => wire.push(wire[at].duplicate()),
            2 => wire[at].mark(),
            _ if wire[at].is_data() || number_of(&wire[at].packet).is_some() => {
                wire[at].trim([Class::Trimmed, Class::TrimmedLastHop][choices.below(2)]);
            }
            _ => {}
        }
    }

    fn cancel(&mut self, choices: &mut Choices<'_>) {
        if choices.byte() & 1 == 0 && !self.sent.is_empty() {
            let at = choices.below(self.sent.len());
            let Sent { from, id, .. } = self.sent[at];
            match self.pair.feps[from].cancel_send(id) {
                Ok(()) => self.sent[at].cancelled = true,
                Err(error) => assert_eq!(error, CallError::TooLate),
            }
        } else if !self.receives.is_empty() {
            let at = choices.below(self.receives.len());
            if let (fep, .., Some(id)) = self.receives[at] {
                self.pair.feps[fep].cancel_receive(id).expect("it has met nothing");
            }
        }
    }

    /// A forged packet arrives, most often a datagram that is well-formed.
    fn strike(&mut self, choices: &mut Choices<'_>) {
        let (fep, len) = (choices.below(2), choices.below(MTU as usize) as u32);
        let odd = |choices: &mut Choices<'_>| choices.byte().is_multiple_of(8);
        let start = !odd(choices);
        let net = Network {
            src: HOSTILE,
            dst: Addr(fep as u32),
            entropy: Entropy(0),
            class: [Class::Data, Class::Data, Class::Trimmed, Class::Control][choices.below(4)],
            priority: Priority::LOWEST,
            ecn: false,
            hops: 0,
        };
        let ses = Ses::Standard(StandardRequest {
            opcode: if odd(choices) { Opcode::SEND } else { Opcode::DATAGRAM_SEND },
            flags: RequestFlags::START_OF_MESSAGE
                .only_if(start)
                .with(RequestFlags::END_OF_MESSAGE.only_if(!odd(choices))),
            msg_id: choices.byte().into(),
            ri_generation: 0,
            job_id: choices.byte().into(),
            pid_on_fep: [0, 5, 6, 0xfff][choices.below(4)],
            resource_index: choices.byte().into(),
            buffer_offset: choices.byte().into(),
            initiator: if odd(choices) { u32::MAX } else { 0 },
            match_bits: 0,
            placement: match start {
                true => Placement::Start { header_data: u64::MAX },
                false => Placement::Continue { payload_len: len as u16, msg_offset: choices.byte().into() },
            },
            request_length: if odd(choices) { u32::MAX } else { len },
        });
        let ses = if odd(choices) { Ses::None } else { ses };
        let pds = Pds::Uud(Uud { next: NextHeader::RequestStandard });
        let packet = Packet { net, payload_len: len, pds, ses };
        let payload = if net.class.is_trimmed() { Vec::new() } else { vec![0x66; len as usize] };
        self.pair.feps[fep].on_packet(self.pair.now, &packet, Payload::Bytes(&payload));
    }

    fn collect(&mut self) {
        for fep in 0..2 {
            for completion in self.pair.completions(fep) {
                self.note(fep, completion);
            }
        }
    }

    fn note(&mut self, fep: usize, completion: Completion) {
        match completion {
            Completion::Sent { context: MESSAGE, result, .. } => {
                result.expect("messages arrive");
                self.messages_done[0] += 1;
            }
            Completion::Sent { context, buffer, retransmissions, result, .. } => {
                let sent = &mut self.sent[context as usize];
                assert!(sent.from == fep && !sent.ended && retransmissions == 0);
                sent.ended = true;
                assert_eq!(buffer, Buffer::Heap(sent.bytes.clone()), "the buffer comes back");
                let expected = if sent.cancelled { Err(SendError::Cancelled) } else { Ok(()) };
                assert_eq!(result, expected);
            }
            Completion::Received { context: MESSAGE, header_data, len, result, .. } => {
                assert!(header_data & MESSAGE != 0 && len == 300 && result.is_ok());
                self.messages_done[1] += 1;
            }
            Completion::Received { context, source, tag, header_data, len, buffer, more, result, .. } => {
                let (at, process, room, name) = &mut self.receives[context as usize];
                assert!(*at == fep && name.take().is_some() && tag.is_none() && !more);
                let Buffer::Heap(bytes) = buffer else { panic!("another buffer") };
                assert_eq!(bytes.len(), *room as usize);
                let Some(source) = source else {
                    return assert_eq!(result, Err(ReceiveError::Cancelled));
                };
                let kept = len.min(*room);
                match len > *room {
                    true => assert_eq!(result, Err(ReceiveError::Truncated { len, room: *room })),
                    false => assert_eq!(result, Ok(())),
                }
                self.received[fep] += 1;
                if source.peer == HOSTILE {
                    assert_eq!(header_data, 0, "forged datagrams say that they have none");
                    return assert!(bytes[..kept as usize].iter().all(|byte| *byte == 0x66));
                }
                let sent = &mut self.sent[header_data as usize];
                let from = Source { peer: Addr(sent.from as u32), process: sent.source };
                assert_eq!((source, *process, len as usize), (from, sent.to, sent.bytes.len()));
                assert_eq!(bytes[..kept as usize], sent.bytes[..kept as usize]);
                sent.delivered += 1;
                assert!(sent.delivered <= sent.copies, "no datagram is delivered more often than it arrives");
            }
            other => panic!("{other:?}"),
        }
    }

    /// Nothing is lost any more: everything that was posted ends, and nothing is left.
    fn finish(&mut self) {
        for transit in std::mem::take(&mut self.pair.wire) {
            self.arrive(&transit);
        }
        self.collect();
        for _ in 0..self.messages {
            for fep in 0..2 {
                let buffer = Buffer::Heap(vec![0; 400]);
                let receive = Receive { buffer, from: None, matching: Matching::Untagged, context: MESSAGE };
                // Refused once too many wait.
                let _ = self.pair.feps[fep].post_receive(receive);
            }
            self.run();
        }
        for (fep, .., name) in self.receives.clone() {
            if let Some(id) = name {
                self.pair.feps[fep].cancel_receive(id).expect("it has met nothing");
            }
        }
        self.run();
        assert!(self.sent.iter().all(|sent| sent.ended), "every datagram ends");
        assert!(self.receives.iter().all(|(.., name)| name.is_none()), "every receive ends");
        assert_eq!(self.messages_done, [self.messages; 2]);
        for (at, fep) in self.pair.feps.iter().enumerate() {
            let counters = fep.counters();
            assert_eq!(counters.datagrams_received, self.received[at]);
            let left = self.sent.iter().filter(|sent| sent.from == at && !sent.cancelled).count();
            assert_eq!(counters.datagrams_sent, left as u64, "each leaves once");
        }
    }

    /// Lets packets arrive and timers expire until nothing more is to be done.
    fn run(&mut self) {
        for _ in 0..100 {
            while self.pair.put_on_wire(0) | self.pair.put_on_wire(1) {}
            if self.pair.wire.is_empty() && self.messages_done[0] == self.messages {
                break;
            }
            for transit in std::mem::take(&mut self.pair.wire) {
                self.arrive(&transit);
            }
            self.collect();
            if self.pair.wire.is_empty()
                && let Some(at) = self.pair.next_timer()
            {
                self.pair.now = at.latest(self.pair.now);
                self.pair.feps.iter_mut().for_each(|fep| fep.on_timeout(self.pair.now));
            }
        }
        self.collect();
    }
}

/// The number of the datagram that a packet is; `None` of any other packet, and of a datagram that was trimmed.
fn number_of(packet: &Packet) -> Option<usize> {
    match (&packet.pds, &packet.ses) {
        (Pds::Uud(_), Ses::Standard(StandardRequest { placement: Placement::Start { header_data }, .. })) => {
            Some(*header_data as usize)
        }
        _ => None,
    }
}

/// Whatever the channel does: every datagram that is delivered was sent to that process, has its bytes, its sender and its
/// length, and is delivered at most as often as it arrives; each ends once, and none meets a receive of messages.
pub(crate) fn datagrams_arrive_at_most_as_often_as_their_packets(bytes: &[u8]) {
    let (mut world, mut choices) = (World::new(), Choices(bytes));
    while !choices.0.is_empty() {
        world.step(&mut choices);
    }
    world.finish();
}

/// A channel that loses nothing, and receives that are there before: all datagrams arrive, once each, and no packet is sent in
/// return.
pub(crate) fn all_datagrams_arrive_where_nothing_is_lost(bytes: &[u8]) {
    let (mut world, mut choices) = (World::new(), Choices(bytes));
    let mut expected = BTreeMap::new();
    while !choices.0.is_empty() {
        for fep in 0..2 {
            for process in PROCESSES {
                while world.receives.iter().filter(|r| (r.0, r.1) == (fep, process) && r.3.is_some()).count()
                    < 12
                {
                    world.receive(&mut Choices(&[fep as u8, u8::from(process != 0), 1]));
                }
            }
        }
        for _ in 0..=choices.byte() % 10 {
            world.send(&mut choices);
        }
        while world.pair.put_on_wire(0) | world.pair.put_on_wire(1) {}
        let mut wire = std::mem::take(&mut world.pair.wire);
        while !wire.is_empty() {
            let transit = wire.remove(choices.below(wire.len()));
            let number = number_of(&transit.packet).expect("nothing leaves but datagrams");
            assert_eq!(expected.insert(number, ()), None, "each leaves once");
            world.arrive(&transit);
        }
        world.collect();
    }
    assert_eq!(expected.len(), world.sent.len());
    assert!(world.sent.iter().all(|sent| sent.ended && (sent.delivered, sent.copies) == (1, 1)));
    assert!(!world.pair.put_on_wire(0) && !world.pair.put_on_wire(1));
}

/// Neither of them waits for all of the others.
#[allow(dead_code, reason = "the fuzz target has no use for it")]
pub(crate) fn datagrams_and_messages_take_turns() {
    let mut world = World::new();
    let send =
        Send { buffer: Buffer::Heap(vec![1; 2_000]), tag: None, header_data: MESSAGE, context: MESSAGE };
    world.pair.feps[0].post_send(world.connections[0], send).unwrap();
    for _ in 0..5 {
        world.send(&mut Choices(&[0, 0, 0, 0, 1]));
    }
    let left = std::iter::from_fn(|| world.pair.transmit(0));
    let kinds: Vec<bool> = left.map(|transit| number_of(&transit.packet).is_some()).collect();
    let first: Vec<bool> = (0..10).map(|at| at % 2 == 0).collect();
    assert_eq!(kinds[..10], first[..], "{kinds:?}");
    assert_eq!(kinds.iter().filter(|is_datagram| **is_datagram).count(), 5);
}

/// Datagrams for which there is no receive.
#[allow(dead_code, reason = "the fuzz target has no use for it")]
pub(crate) fn a_flood_takes_no_memory_and_causes_no_packet() {
    let mut world = World::new();
    world.strike(&mut Choices(&[1, 100, 1, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1]));
    let before = world.pair.feps[1].footprint();
    for _ in 0..10_000 {
        world.strike(&mut Choices(&[1, 100, 1, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1]));
    }
    let fep = &mut world.pair.feps[1];
    assert_eq!(fep.footprint(), before);
    assert_eq!((fep.counters().datagrams_dropped, fep.counters().ignored), (10_001, 0));
    assert!(!fep.wants_to_transmit() && fep.poll_completion().is_none());
}

/// A process that receives datagrams and nothing else.
#[allow(dead_code, reason = "the fuzz target has no use for it")]
pub(crate) fn a_process_that_receives_only_datagrams_answers_messages() {
    const PROCESS: u16 = PROCESSES[1];
    let mut pair = World::new().pair;
    pair.feps[1].receive_only_datagrams(PROCESS).unwrap();
    assert_eq!(pair.feps[1].receive_only_datagrams(PROCESS), Err(CallError::ProcessNotOpen(PROCESS)));
    assert_eq!(pair.feps[1].open_process(PROCESS), Err(CallError::ProcessOpen(PROCESS)));
    let receive = DatagramReceive { buffer: Buffer::Heap(vec![0; 8]), context: 1 };
    pair.feps[1].post_datagram_receive_of(PROCESS, receive).unwrap();
    let connection = pair.connect_from(0, ConnectOptions::default().process(PROCESS));
    for len in [10, 10_000] {
        let message = Send { buffer: Buffer::Heap(vec![3; len]), tag: None, header_data: 0, context: 2 };
        pair.post_send(connection, message);
        let end = pair.now + Span::from_ms(1);
        let done = pair.run(end, |_| Some(Span::from_us(1)));
        pair.now = end;
        let refused = Err(SendError::Answered(ReturnCode::BAD_PID));
        let [(_, Completion::Sent { result, .. })] = &done[..] else { panic!("{len} bytes: {done:?}") };
        assert_eq!(*result, refused, "{len} bytes");
    }
    let (peer, process) = (Addr(1), PROCESS);
    let datagram =
        Datagram { buffer: Buffer::Heap(b"datagram".to_vec()), peer, process, header_data: 0, context: 4 };
    let posted = pair.feps[0].post_datagram_of(0, datagram);
    assert!(posted.is_ok());
    pair.run(pair.now + Span::from_ms(1), |_| Some(Span::from_us(1)));
    let done = pair.completions(1);
    let arrived = done.iter().find_map(|done| match done {
        Completion::Received { buffer: Buffer::Heap(bytes), context: 1, .. } => Some(bytes.clone()),
        _ => None,
    });
    assert_eq!(arrived.as_deref(), Some(&b"datagram"[..]), "{done:?}");
}
