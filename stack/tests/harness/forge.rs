//! Packets that a test makes up.

use weft_stack::packet::{Addr, Class, Network, Packet};
use weft_stack::spray::Entropy;
use weft_stack::wire::class::Priority;
use weft_stack::wire::pds::{
    DeliveryMode, Destination, Nack, NackCode, NextHeader, PdcId, Pds, Psn, Request, VendorFlags,
};
use weft_stack::wire::ses::{Opcode, Placement, RequestFlags, Ses, StandardRequest};

/// The NACK with `code` that answers `to`.
pub(crate) fn nack(to: &Packet, code: NackCode) -> Packet {
    let (psn, dpdcid, retx) = match &to.pds {
        Pds::Request(request) => (request.psn, request.spdcid, request.retx),
        Pds::Control(control) => (control.psn, control.spdcid, control.retx),
        other => panic!("an initiator does not send {other:?}"),
    };
    let nack = Nack {
        next: NextHeader::None,
        ecn: false,
        retx,
        rudi: false,
        code,
        vendor_code: 0,
        psn,
        spdcid: PdcId(9),
        dpdcid,
        payload: psn.0,
        ccx: None,
    };
    let net = Network { src: to.net.dst, dst: to.net.src, class: Class::Control, ..to.net };
    Packet { net, payload_len: 0, pds: Pds::Nack(nack), ses: Ses::None }
}

/// The first packet, with 100 bytes, of message `msg_id` of `len` bytes, from address `src` to address 0. It asks for a
/// PDC, and its PSN is `msg_id` as well.
pub(crate) fn syn(src: u32, pdc: u16, msg_id: u16, len: u32) -> Packet {
    let request = Request {
        mode: DeliveryMode::Rud,
        next: NextHeader::RequestStandard,
        retx: false,
        ack_request: true,
        clear_psn_offset: -1,
        psn: Psn(u32::from(msg_id)),
        spdcid: PdcId(pdc),
        destination: Destination::Syn { use_reserved: false, psn_offset: msg_id },
        vendor: VendorFlags::NONE,
        cc: None,
    };
    let ses = StandardRequest {
        opcode: Opcode::SEND,
        flags: RequestFlags::START_OF_MESSAGE,
        msg_id,
        ri_generation: 0,
        job_id: 0,
        pid_on_fep: 0,
        resource_index: 0,
        buffer_offset: 0,
        initiator: 0,
        match_bits: 0,
        placement: Placement::Start { header_data: 0 },
        request_length: len,
    };
    let (src, dst, entropy) = (Addr(src), Addr(0), Entropy(0));
    let net =
        Network { src, dst, entropy, class: Class::Data, priority: Priority::LOWEST, ecn: false, hops: 0 };
    Packet { net, payload_len: 100, pds: Pds::Request(request), ses: Ses::Standard(ses) }
}
