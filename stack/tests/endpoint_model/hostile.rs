//! Forged packets from a third address. They may harm the connections of that address, but no others.

use weft_stack::packet::{Addr, Class, Network, Packet, Payload};
use weft_stack::spray::Entropy;
use weft_stack::wire::class::Priority;
use weft_stack::wire::pds::{
    Ack, AckCc, AckRequest, AckTrigger, CcState, Control, ControlKind, DeliveryMode, Destination, Nack,
    NackCode, NextHeader, NsccState, PdcId, Pds, Psn, Request, RequestCc, VendorFlags,
};
use weft_stack::wire::ses::{Opcode, Placement, RequestFlags, Ses, StandardRequest};

use super::{Choices, HOSTILE, World};

const KINDS: [ControlKind; 10] = [
    ControlKind::Noop,
    ControlKind::AckRequest,
    ControlKind::ClearCommand,
    ControlKind::ClearRequest,
    ControlKind::CloseCommand,
    ControlKind::CloseRequest,
    ControlKind::Probe,
    ControlKind::Credit,
    ControlKind::CreditRequest,
    ControlKind::Negotiation,
];

/// A forged packet arrives: an invented one, or a packet of another endpoint with the wrong source address.
pub(super) fn strike(world: &mut World, choices: &mut Choices<'_>) {
    world.forged = true;
    let wire = &world.pair.wire;
    let overheard = (!wire.is_empty()).then(|| wire[choices.below(wire.len())].packet);
    let mut fep = choices.below(2);
    let mut packet = match (choices.byte() % 4, overheard) {
        (0, Some(packet)) => packet,
        (1, Some(Packet { pds: Pds::Request(request), net, .. })) => {
            fep = net.src.0 as usize;
            answer(choices, &request)
        }
        _ => forge(choices),
    };
    packet.net.src = HOSTILE;
    packet.net.dst = Addr(fep as u32);
    let payload = match (&packet.pds, packet.net.class.is_trimmed()) {
        (Pds::Request(_), false) => vec![0x66; packet.payload_len as usize % 2_048],
        _ => Vec::new(),
    };
    if !packet.net.class.is_trimmed() {
        packet.payload_len = payload.len() as u32;
    }
    world.pair.feps[fep].on_packet(world.pair.now, &packet, Payload::Bytes(&payload));
}

fn forge(choices: &mut Choices<'_>) -> Packet {
    let pds = match choices.byte() % 8 {
        0..=3 => Pds::Request(request(choices)),
        4 => Pds::Ack(ack(choices)),
        5 => Pds::Nack(nack(choices)),
        6 => Pds::Control(control(choices)),
        _ => arbitrary(choices),
    };
    let request = matches!(pds, Pds::Request(_));
    let class = if request { [Class::Data, Class::Data, Class::Trimmed] } else { [Class::Control; 3] };
    let class = choices.pick(&class);
    let ses = if request && class == Class::Data { ses(choices) } else { Ses::None };
    let entropy = Entropy(u16::from(choices.byte()));
    let net = Network {
        src: HOSTILE,
        dst: Addr(0),
        entropy,
        class,
        priority: Priority::LOWEST,
        ecn: choices.byte() & 1 == 1,
        hops: 1,
    };
    Packet { net, payload_len: number(choices), pds, ses }
}

/// An ACK or a NACK for a packet that went to another endpoint.
fn answer(choices: &mut Choices<'_>, request: &Request) -> Packet {
    let (psn, spdcid, dpdcid) = (request.psn, PdcId(1), request.spdcid);
    let pds = if choices.byte() & 1 == 0 {
        Pds::Ack(Ack { cack_psn: psn, spdcid, dpdcid, cc: None, ..ack(choices) })
    } else {
        Pds::Nack(Nack { psn, spdcid, dpdcid, rudi: false, retx: request.retx, ..nack(choices) })
    };
    let (src, dst, entropy) = (HOSTILE, Addr(0), Entropy(0));
    let net =
        Network { src, dst, entropy, class: Class::Control, priority: Priority::LOWEST, ecn: false, hops: 1 };
    Packet { net, payload_len: 0, pds, ses: Ses::None }
}

/// A number; extreme and small ones are frequent, because they find more bugs.
fn number(choices: &mut Choices<'_>) -> u32 {
    match choices.byte() % 5 {
        0 => 0,
        1 => u32::MAX,
        2 => 1 << 31,
        3 => u32::from(choices.byte()),
        _ => choices.word(),
    }
}

fn id(choices: &mut Choices<'_>) -> PdcId {
    PdcId(choices.pick(&[0, 1, 2, 3, 4, 5, u16::MAX]))
}

fn destination(choices: &mut Choices<'_>) -> Destination {
    if choices.byte() & 1 == 0 {
        Destination::Pdc(id(choices))
    } else {
        let psn_offset = choices.pick(&[0, 1, 100, 0xfff, u16::MAX]);
        Destination::Syn { use_reserved: choices.byte() & 1 == 0, psn_offset }
    }
}

fn request(choices: &mut Choices<'_>) -> Request {
    Request {
        mode: choices.pick(&[DeliveryMode::Rud, DeliveryMode::Rod]),
        next: NextHeader::RequestStandard,
        retx: choices.byte() & 1 == 1,
        ack_request: choices.byte() & 1 == 1,
        clear_psn_offset: number(choices) as i16,
        psn: Psn(number(choices)),
        spdcid: id(choices),
        destination: destination(choices),
        vendor: choices.pick(&[
            VendorFlags::NONE,
            VendorFlags::NONE,
            VendorFlags::DELAY_ECHO,
            VendorFlags::CODED,
        ]),
        cc: (choices.byte() & 1 == 0)
            .then(|| RequestCc { ccc_id: choices.byte(), credit_target: number(choices) & 0xff_ffff }),
    }
}

fn ack(choices: &mut Choices<'_>) -> Ack {
    let state = NsccState {
        service_time: number(choices) as u16,
        restore_cwnd: false,
        rcv_cwnd_pend: choices.byte() & 0x7f,
        rcvd_bytes: number(choices) & 0xff_ffff,
        ooo_count: number(choices) as u16,
    };
    Ack {
        next: NextHeader::None,
        ecn: choices.byte() & 1 == 1,
        retx: choices.byte() & 1 == 1,
        request: choices.pick(&[AckRequest::None, AckRequest::Clear, AckRequest::Close]),
        trigger: if choices.byte() & 1 == 0 {
            AckTrigger::Psn(number(choices) as i16)
        } else {
            AckTrigger::Probe(number(choices) as u16)
        },
        cack_psn: Psn(number(choices)),
        spdcid: id(choices),
        dpdcid: id(choices),
        cc: (choices.byte() & 1 == 0).then(|| AckCc {
            flags: 0,
            mpr: choices.byte(),
            sack_psn_offset: number(choices) as i16,
            sack_bitmap: u64::from(number(choices)) << 32 | u64::from(number(choices)),
            state: CcState::Nscc(state),
        }),
    }
}

fn nack(choices: &mut Choices<'_>) -> Nack {
    Nack {
        next: NextHeader::None,
        ecn: false,
        retx: choices.byte() & 1 == 1,
        rudi: choices.byte().is_multiple_of(8),
        code: NackCode(choices.byte()),
        vendor_code: 0,
        psn: Psn(number(choices)),
        spdcid: id(choices),
        dpdcid: id(choices),
        payload: number(choices),
        ccx: None,
    }
}

fn control(choices: &mut Choices<'_>) -> Control {
    Control {
        kind: choices.pick(&KINDS),
        rod: choices.byte() & 1 == 1,
        retx: choices.byte() & 1 == 1,
        ack_request: choices.byte() & 1 == 1,
        probe_opaque: number(choices) as u16,
        psn: Psn(number(choices)),
        spdcid: id(choices),
        destination: destination(choices),
        payload: number(choices),
    }
}

/// Any header that can be decoded from bytes.
fn arbitrary(choices: &mut Choices<'_>) -> Pds {
    let bytes: Vec<u8> = (0..48).map(|_| choices.byte()).collect();
    Pds::decode(&bytes).map_or_else(|_| Pds::Control(control(choices)), |(pds, _)| pds)
}

fn ses(choices: &mut Choices<'_>) -> Ses {
    if choices.byte().is_multiple_of(8) {
        return Ses::None;
    }
    let start = choices.byte() & 1 == 0;
    Ses::Standard(StandardRequest {
        opcode: choices.pick(&[Opcode::SEND, Opcode::TAGGED_SEND, Opcode::READ]),
        flags: RequestFlags::START_OF_MESSAGE.only_if(start),
        msg_id: u16::from(choices.byte() % 4),
        ri_generation: 0,
        job_id: 0,
        pid_on_fep: 0,
        resource_index: 0,
        buffer_offset: 0,
        initiator: 0,
        match_bits: u64::from(choices.byte() % 8),
        placement: if start {
            Placement::Start { header_data: 0 }
        } else {
            Placement::Continue { payload_len: number(choices) as u16, msg_offset: number(choices) }
        },
        request_length: number(choices),
    })
}
