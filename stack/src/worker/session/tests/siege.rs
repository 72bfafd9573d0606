//! Attacks in any mix: what applications and peers do at all, words that are nearly commands, and packets that are forged in the
//! names of peers and of strangers. When they are over, and forgotten, an application that has been there all the time exchanges
//! messages with its peer, whatever the others have still, and nothing is left at the end. If the two exchange messages meanwhile,
//! each of these arrives as it was sent, and in time, also if packets are forged in their names by somebody who sees none of
//! theirs.

use std::cell::Cell;
use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::Index;

use super::explore::explore;
use super::fabric::{Fabric, Guest, MEMORY};
use super::filled::{alice_and_her_peer, limits};
use super::hostile::nearly_a_command;
use super::joint::{Step, step};
use super::*;
use crate::buffer::Buffer;
use crate::fep::{Completion, ConnectionId, FepConfig, Receive, Send};
use crate::packet::{Class, Network, Packet};
use crate::pdc::RodReceive;
use crate::spray::Entropy;
use crate::wire::class::Priority;
use crate::wire::pds::{
    Ack, AckRequest, AckTrigger, Control, ControlKind, DeliveryMode, Destination, Nack, NackCode, NextHeader,
    PdcId, Pds, Psn, Request as PdsRequest, VendorFlags,
};
use crate::wire::ses::{Opcode, Placement, RequestFlags, Ses, StandardRequest};

/// What is left of an attack is forgotten after twice the idle timeout and the time for which closed PDCs are remembered.
const IDLE: Span = Span::from_ms(20);
const TIME_WAIT: Span = Span::from_ms(2);
/// Connections whose ends disagree because somebody has forged acknowledgements are given up after this.
const BUSY: Span = Span::from_ms(20);
/// The only peer that alice has to do with. None of the attacks is by it, some are in its name.
const HER_PEER: u32 = 1;

#[derive(Clone, Debug)]
enum Attack {
    Step(Step),
    /// An application writes these words into its ring of commands.
    Words(Index, Slot),
    /// Somebody forges a packet.
    Forge([u32; 8]),
    /// The same in the name of alice's peer, or of her host to her peer, by somebody who sees none of their packets.
    ForgeName([u32; 8]),
}

fn attack() -> impl Strategy<Value = Attack> {
    prop_oneof![
        4 => step(HER_PEER + 1).prop_map(Attack::Step),
        1 => (any::<Index>(), nearly_a_command()).prop_map(|(who, words)| Attack::Words(who, words)),
        3 => any::<[u32; 8]>().prop_map(Attack::Forge),
    ]
}

/// An attack while alice and her peer exchange messages.
fn attack_meanwhile() -> impl Strategy<Value = Attack> {
    prop_oneof![8 => attack(), 3 => any::<[u32; 8]>().prop_map(Attack::ForgeName)]
}

/// Whether a command has nothing to do with alice or her peer: what others send to them is legitimate, and would only confuse
/// this test.
fn leaves_alone(words: &Slot, alice: u16) -> bool {
    let (peer, process) = match Command::decode(words) {
        Ok(Command::Connect { peer, options, .. }) => (peer, options.process),
        Ok(Command::SendDatagram { to, .. }) => (to.peer, to.process),
        _ => return true,
    };
    peer != Addr(HER_PEER) && (peer != Addr(0) || process != alice)
}

impl Fabric {
    fn attack(&mut self, attack: Attack, alice: u16) {
        match attack {
            Attack::Step(step) => {
                // Receives have memory of their own only in applications that join when bytes are compared.
                self.compares = matches!(step, Step::Join { .. });
                if self.compares {
                    self.take(step);
                    self.compares = false;
                } else {
                    self.take(step);
                }
            }
            Attack::Words(who, words) if leaves_alone(&words, alice) => {
                if let Some(guest) = self.guest(who) {
                    let _ = guest.client.submit_words(&words);
                }
            }
            Attack::Words(..) => {}
            Attack::Forge(words) => {
                let who = words[1];
                let dst = [0, 0, 2, 3][who as usize % 4];
                let src = if dst == 0 { 1 + (who >> 8) % 12 } else { 0 };
                let heard = self.overheard.filter(|packet| packet.net.dst != Addr(HER_PEER));
                self.forge(words, (src, dst), heard, alice);
            }
            Attack::ForgeName(words) => {
                let ends = if words[1].is_multiple_of(2) { (HER_PEER, 0) } else { (0, HER_PEER) };
                self.forge(words, ends, None, alice);
            }
        }
    }

    /// A forged packet arrives: one like the last that was `overheard`, an answer to that, or an invented one between these ends.
    fn forge(&mut self, words: [u32; 8], (src, dst): (u32, u32), overheard: Option<Packet>, alice: u16) {
        let [kind, _, psn, id, flags, number, process, len] = words;
        let flag = |n: u32| flags >> n & 1 == 1;
        let psn = Psn([0, 1, u32::MAX, psn & 0xff, psn][psn as usize % 5]);
        let number = [0, 1, 1 << 31, u32::MAX, number & 0xff, number][number as usize % 6];
        let [spdcid, dpdcid] = [id, id >> 8].map(|id| PdcId([0, 1, 2, 3, 4, id as u16][id as usize % 6]));
        let destination = match flag(0) {
            true => Destination::Syn { use_reserved: false, psn_offset: number as u16 & 0xfff },
            false => Destination::Pdc(dpdcid),
        };
        let ack = |psn: Psn, dpdcid: PdcId| Ack {
            next: NextHeader::None,
            ecn: flag(1),
            retx: flag(2),
            request: [AckRequest::None, AckRequest::Clear, AckRequest::Close][flags as usize % 3],
            trigger: AckTrigger::Psn(if flag(3) { number as i16 } else { 0 }),
            cack_psn: psn,
            spdcid,
            dpdcid,
            cc: None,
        };
        let nack = |psn: Psn, dpdcid: PdcId| Nack {
            next: NextHeader::None,
            ecn: false,
            retx: flag(2),
            rudi: false,
            code: NackCode(number as u8 % 0x1c),
            vendor_code: 0,
            psn,
            spdcid,
            dpdcid,
            payload: number,
            ccx: None,
        };
        let kinds = [
            ControlKind::AckRequest,
            ControlKind::ClearCommand,
            ControlKind::CloseCommand,
            ControlKind::CloseRequest,
            ControlKind::Probe,
            ControlKind::Credit,
            ControlKind::CreditRequest,
        ];
        let request = PdsRequest {
            mode: if flag(4) { DeliveryMode::Rod } else { DeliveryMode::Rud },
            next: NextHeader::RequestStandard,
            retx: flag(2),
            ack_request: flag(5),
            clear_psn_offset: number as i16,
            psn,
            spdcid,
            destination,
            vendor: VendorFlags::NONE,
            cc: None,
        };
        let control = Control {
            kind: kinds[number as usize % kinds.len()],
            rod: flag(4),
            retx: flag(2),
            ack_request: flag(5),
            probe_opaque: number as u16,
            psn,
            spdcid,
            destination,
            payload: number,
        };
        // Of what is overheard nothing is for alice's peer.
        let back = |net: Network| if net.src == Addr(HER_PEER) { 0 } else { net.src.0 };
        let (pds, ses, dst) = match (kind % 8, overheard) {
            (0, Some(packet)) => (packet.pds, packet.ses, packet.net.dst.0),
            (1, Some(Packet { pds: Pds::Request(sent), net, .. })) => match flag(6) {
                true => (Pds::Ack(ack(sent.psn, sent.spdcid)), Ses::None, back(net)),
                false => (Pds::Nack(nack(sent.psn, sent.spdcid)), Ses::None, back(net)),
            },
            (0..=4, _) => (Pds::Request(request), self.forged_message(words, dst, alice), dst),
            (5, _) => (Pds::Ack(ack(psn, dpdcid)), Ses::None, dst),
            (6, _) => (Pds::Nack(nack(psn, dpdcid)), Ses::None, dst),
            _ => (Pds::Control(control), Ses::None, dst),
        };
        let is_request = matches!(pds, Pds::Request(_));
        let class = match is_request {
            true if process.is_multiple_of(8) => Class::Trimmed,
            true => Class::Data,
            false => Class::Control,
        };
        let payload = vec![0x66; if class == Class::Data { len as usize % 600 } else { 0 }];
        let net = Network {
            src: Addr(src),
            dst: Addr(dst),
            entropy: Entropy(number as u16 & 0xff),
            class,
            priority: Priority::LOWEST,
            ecn: flag(7),
            hops: 1,
        };
        let ses = if class == Class::Trimmed { Ses::None } else { ses };
        self.arrive(&Packet { net, payload_len: payload.len() as u32, pds, ses }, &payload);
    }

    /// The header of a message, or a part of one, that is for any process but alice's, or that of her peer.
    fn forged_message(&self, words: [u32; 8], dst: u32, alice: u16) -> Ses {
        let [kind, _, _, id, flags, number, process, len] = words;
        let processes = self.guests.iter().map(|guest| guest.client.process()).chain([0, 999]);
        let is_attacked = |process: &u16| *process != alice && (dst != HER_PEER || *process != 0);
        let processes: Vec<u16> = processes.filter(is_attacked).collect();
        let len = len % 600;
        let starts = kind & 0x100 == 0;
        Ses::Standard(StandardRequest {
            opcode: [Opcode::SEND, Opcode::TAGGED_SEND, Opcode::READ, Opcode::WRITE][flags as usize >> 8 & 3],
            flags: (RequestFlags::START_OF_MESSAGE.only_if(starts))
                .with(RequestFlags::END_OF_MESSAGE.only_if(kind & 0x200 == 0)),
            msg_id: id as u16 & 7,
            ri_generation: 0,
            job_id: 0,
            pid_on_fep: processes[process as usize / 8 % processes.len()],
            resource_index: 0,
            buffer_offset: 0,
            initiator: 0,
            match_bits: u64::from(number & 3),
            placement: match starts {
                true => Placement::Start { header_data: 0 },
                false => Placement::Continue { payload_len: len as u16, msg_offset: number },
            },
            request_length: if kind & 0x400 == 0 { len } else { number },
        })
    }
}

fn fabric() -> (Fabric, Guest) {
    let config = FepConfig {
        limits: limits(),
        rod_receive: RodReceive::Reorder,
        idle_timeout: IDLE,
        time_wait: TIME_WAIT,
        busy_timeout: BUSY.into(),
        ..(*config()).clone()
    };
    let mut fabric = Fabric::with(config);
    // Alice gets another number than 1, which forged messages to nobody in particular have.
    fabric.join(1, 1);
    fabric.join(16, 4);
    let alice = fabric.guests.remove(1);
    (fabric, alice)
}

#[test]
fn after_any_mix_of_attacks_an_application_and_its_peer_go_on() {
    let attacks = prop::collection::vec(attack(), 0..400);
    explore("SIEGE", 200, attacks, |attacks| {
        let (mut fabric, alice) = fabric();
        for attack in attacks {
            fabric.attack(attack, alice.client.process());
            fabric.check();
        }
        fabric.obey_all();
        fabric.rest(IDLE + IDLE + TIME_WAIT + IDLE);
        fabric.guests.insert(0, alice);
        fabric.check();
        alice_and_her_peer(&mut fabric);
        fabric.check();
        fabric.end();
        fabric.arrived
    });
}

/// The longest messages that alice and her peer exchange, bytes: two packets each.
const LONGEST: u32 = 1500;
/// Places in alice's memory for messages that she sends, followed by those for messages that she receives.
const PLACES: [u64; 2] = [2, 3];
const _: () = assert!((PLACES[0] + PLACES[1]) * LONGEST as u64 <= MEMORY as u64);
/// Turns that a message may take. Without attacks none takes more than 8.
const IN_TIME: u64 = 16;

/// Alice and her peer, who exchange messages all the time.
struct Pair {
    alice: Guest,
    /// From alice, and to her: an unordered connection and an ordered one each.
    connections: ([ConnectionHandle; 2], [ConnectionId; 2]),
    turn: u64,
    /// The numbers of messages from alice, and to her, that have not arrived, and the turn in which each was posted.
    under_way: [BTreeMap<u64, u64>; 2],
    /// How many messages have arrived from alice, and at her.
    arrived: [u64; 2],
    /// Places of alice's that are free for messages that she sends, and receives.
    free: [Vec<u64>; 2],
    /// The most turns that a message took.
    longest: u64,
}

fn is_of_the_pair(packet: &Packet) -> bool {
    let ends = [packet.net.src, packet.net.dst];
    ends.contains(&Addr(0)) && ends.contains(&Addr(HER_PEER))
}

fn length_of(number: u64) -> u32 {
    number as u32 * 37 % LONGEST + 1
}

impl Pair {
    /// The two have their connections, and have exchanged some messages.
    fn new(fabric: &mut Fabric, mut alice: Guest) -> Pair {
        fabric.spared = is_of_the_pair;
        let modes = [DeliveryMode::Rud, DeliveryMode::Rod];
        let from = modes.map(|mode| {
            let options = ConnectOptions { mode, ..ConnectOptions::default() };
            alice.client.connect(Addr(HER_PEER), options, 0).unwrap()
        });
        let process = alice.client.process();
        let to = modes.map(|mode| {
            let options = ConnectOptions { process, mode, ..ConnectOptions::default() };
            fabric.feps[HER_PEER as usize].connect(fabric.now, Addr(0), options).unwrap()
        });
        fabric.connections[HER_PEER as usize].extend(to);
        let free = [(0..PLACES[0]).collect(), (PLACES[0]..PLACES[0] + PLACES[1]).collect()];
        let under_way = [BTreeMap::new(), BTreeMap::new()];
        let mut pair =
            Pair { alice, connections: (from, to), turn: 0, under_way, arrived: [0; 2], free, longest: 0 };
        while pair.arrived.iter().any(|arrived| *arrived < 10) {
            pair.go_on(fabric, false);
        }
        pair
    }

    /// A turn, in which they post what they can.
    fn go_on(&mut self, fabric: &mut Fabric, loses: bool) {
        self.post(fabric);
        self.end_turn(fabric, loses);
    }

    /// A turn, in which they hear of messages.
    fn end_turn(&mut self, fabric: &mut Fabric, loses: bool) {
        fabric.turn(loses);
        self.turn += 1;
        for (_, completion) in fabric.completions.iter().filter(|(n, _)| *n == HER_PEER as usize) {
            match completion {
                Completion::Sent { result: Ok(()), .. } => {}
                Completion::Received {
                    result: Ok(()),
                    header_data,
                    len,
                    buffer: Buffer::Heap(bytes),
                    ..
                } => {
                    let bytes = &bytes[..*len as usize];
                    self.note(0, *header_data, bytes);
                }
                other => panic!("{other:?}"),
            }
        }
        while let Some(Event { context: place, report }) = self.alice.client.poll().unwrap() {
            match report {
                Report::Connected { .. } => {}
                Report::Sent { result: Ok(()), .. } => self.free[0].push(place),
                Report::Received { result: Ok(()), header_data, len, .. } => {
                    let mut bytes = vec![0; len as usize];
                    self.alice.client.read(place * u64::from(LONGEST), &mut bytes).unwrap();
                    self.note(1, header_data, &bytes);
                    self.free[1].push(place);
                }
                other => panic!("{other:?}"),
            }
        }
        for (way, messages) in self.under_way.iter().enumerate() {
            let late = messages.iter().find(|(_, posted)| self.turn - **posted > IN_TIME);
            assert!(late.is_none(), "{late:?} of way {way}, turn {}: {:?}", self.turn, fabric.explain());
        }
    }

    /// A message has arrived.
    fn note(&mut self, way: usize, number: u64, bytes: &[u8]) {
        let posted = self.under_way[way].remove(&number).expect("each message arrives once");
        assert_eq!(bytes.len(), length_of(number) as usize);
        assert!(bytes == content(2 * number + way as u64, bytes.len()), "message {number} has changed");
        self.arrived[way] += 1;
        self.longest = self.longest.max(self.turn - posted);
    }

    /// Each posts a message if there is a place for it. Commands may have to wait for the next turn.
    fn post(&mut self, fabric: &mut Fabric) {
        let (from, to) = self.connections;
        let next = [0, 1].map(|way| self.arrived[way] + self.under_way[way].len() as u64);
        let peer = &mut fabric.feps[HER_PEER as usize];
        if let Some(place) = self.free[0].pop() {
            let (number, at) = (next[0], place * u64::from(LONGEST));
            let len = length_of(number);
            self.alice.client.write(at, &content(2 * number, len as usize)).unwrap();
            let connection = from[number as usize % 2];
            match self.alice.client.send(connection, extent(at, len), None, number, place) {
                Err(ClientError::Full) => self.free[0].push(place),
                sent => {
                    sent.unwrap();
                    self.under_way[0].insert(number, self.turn);
                    let buffer = Buffer::Heap(vec![0; LONGEST as usize]);
                    let receive = Receive { buffer, from: None, matching: Matching::Untagged, context: 0 };
                    peer.post_receive(receive).unwrap();
                }
            }
        }
        if let Some(place) = self.free[1].pop() {
            let at = extent(place * u64::from(LONGEST), LONGEST);
            match self.alice.client.receive(at, None, Matching::Untagged, place) {
                Err(ClientError::Full) => self.free[1].push(place),
                receive => {
                    receive.unwrap();
                    let number = next[1];
                    let buffer = Buffer::Heap(content(2 * number + 1, length_of(number) as usize));
                    let send = Send { buffer, tag: None, header_data: number, context: 0 };
                    peer.post_send(to[number as usize % 2], send).unwrap();
                    self.under_way[1].insert(number, self.turn);
                }
            }
        }
    }
}

#[test]
fn in_any_mix_of_attacks_an_application_and_its_peer_get_on() {
    let attacks = prop::collection::vec(attack_meanwhile(), 0..400);
    let longest = Cell::new(0);
    explore("SIEGE", 200, attacks, |attacks| {
        let (mut fabric, alice) = fabric();
        let process = alice.client.process();
        let mut pair = Pair::new(&mut fabric, alice);
        for attack in attacks {
            match attack {
                Attack::Step(Step::Run { turns, loses }) => {
                    (0..turns).for_each(|_| pair.go_on(&mut fabric, loses));
                }
                attack => {
                    fabric.attack(attack, process);
                    pair.go_on(&mut fabric, false);
                }
            }
            fabric.check();
        }
        while pair.under_way.iter().any(|messages| !messages.is_empty()) {
            pair.end_turn(&mut fabric, false);
        }
        longest.set(longest.get().max(pair.longest));
        let Pair { alice, turn, arrived, .. } = pair;
        assert!(arrived.iter().all(|arrived| *arrived >= turn / 20), "{arrived:?} messages in {turn} turns");
        fabric.guests.insert(0, alice);
        fabric.obey_all();
        fabric.end();
        fabric.arrived
    });
    println!("the longest message took {} turns", longest.get());
}
