//! Attacks in any mix: what applications and peers do at all, words that are nearly commands, and packets that are forged in the
//! names of peers and of strangers. When they are over, and forgotten, an application that has been there all the time exchanges
//! messages with its peer, whatever the others have still, and nothing is left at the end.

use proptest::prelude::*;
use proptest::sample::Index;

use super::explore::explore;
use super::fabric::{Fabric, Guest};
use super::filled::{alice_and_her_peer, limits};
use super::hostile::nearly_a_command;
use super::joint::{Step, step};
use super::*;
use crate::fep::FepConfig;
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
}

fn attack() -> impl Strategy<Value = Attack> {
    prop_oneof![
        4 => step(HER_PEER + 1).prop_map(Attack::Step),
        1 => (any::<Index>(), nearly_a_command()).prop_map(|(who, words)| Attack::Words(who, words)),
        3 => any::<[u32; 8]>().prop_map(Attack::Forge),
    ]
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
            Attack::Forge(words) => self.forge(words, alice),
        }
    }

    /// A forged packet arrives: one like the last that was sent, an answer to that, or an invented one.
    fn forge(&mut self, words: [u32; 8], alice: u16) {
        let [kind, who, psn, id, flags, number, process, len] = words;
        let dst = [0, 0, 2, 3][who as usize % 4];
        let src = if dst == 0 { 1 + (who >> 8) % 12 } else { 0 };
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
        let overheard = self.overheard.filter(|packet| packet.net.dst != Addr(HER_PEER));
        let (pds, ses, mut dst) = match (kind % 8, overheard) {
            (0, Some(packet)) => (packet.pds, packet.ses, packet.net.dst.0),
            (1, Some(Packet { pds: Pds::Request(sent), net, .. })) => match flag(6) {
                true => (Pds::Ack(ack(sent.psn, sent.spdcid)), Ses::None, net.src.0),
                false => (Pds::Nack(nack(sent.psn, sent.spdcid)), Ses::None, net.src.0),
            },
            (0..=4, _) => (Pds::Request(request), self.forged_message(words, alice), dst),
            (5, _) => (Pds::Ack(ack(psn, dpdcid)), Ses::None, dst),
            (6, _) => (Pds::Nack(nack(psn, dpdcid)), Ses::None, dst),
            _ => (Pds::Control(control), Ses::None, dst),
        };
        if dst == HER_PEER {
            dst = 0;
        }
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

    /// The header of a message, or a part of one, that is for any process but alice's.
    fn forged_message(&self, words: [u32; 8], alice: u16) -> Ses {
        let [kind, _, _, id, flags, number, process, len] = words;
        let processes = self.guests.iter().map(|guest| guest.client.process()).chain([0, 999]);
        let processes: Vec<u16> = processes.filter(|process| *process != alice).collect();
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

#[test]
fn after_any_mix_of_attacks_an_application_and_its_peer_go_on() {
    let attacks = prop::collection::vec(attack(), 0..400);
    explore("SIEGE", 200, attacks, |attacks| {
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
        let alice: Guest = fabric.guests.remove(1);
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
