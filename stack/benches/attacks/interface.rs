//! What the benchmark needs of the interfaces of the stack, apart, so that it can be built over those of an earlier state.

use std::sync::Arc;

use weft_stack::cc::{CcChoice, CcParams, Delays};
use weft_stack::fep::{CallError, ConnectOptions, FepConfig, Limits};
use weft_stack::packet::{Addr, Class, Network, Packet};
use weft_stack::spray::Entropy;
use weft_stack::wire::class::Priority;
use weft_stack::wire::pds::{DeliveryMode, Destination, NextHeader, PdcId, Pds, Psn, Request, VendorFlags};
use weft_stack::wire::ses::{Opcode, Placement, RequestFlags, Ses, StandardRequest};
use weft_stack::worker::session::{Report, SessionConfig};
use weft_stack::{Rate, Span};

pub(crate) use weft_stack::worker::session::{ConnectionHandle, OperationHandle};

/// The time from one end of the network to the other.
pub(crate) const HALF_RTT: Span = Span::from_us(5);

/// An endpoint's configuration, with limits as `change` makes them of the default ones.
pub(crate) fn config(change: fn(&mut Limits)) -> Arc<FepConfig> {
    let network = CcParams {
        mtu: 4096,
        overhead: 64,
        link_rate: Rate::from_gbps(100),
        network_rtt: HALF_RTT.times(2),
        trimming: true,
        delays: Delays::Known,
    };
    let mut config = FepConfig::new(&CcChoice::default(), &network);
    change(&mut config.limits);
    Arc::new(config)
}

/// A session with a little memory.
pub(crate) fn session(operations: u32, connections: u32) -> SessionConfig {
    SessionConfig { operations, connections, memory: 1 << 20, ..SessionConfig::default() }
}

/// The most connections that an application may ask for.
pub(crate) const MOST_CONNECTIONS: u32 = 512;

/// An ordinary connection to a process.
pub(crate) fn to_process(process: u16) -> ConnectOptions {
    ConnectOptions::default().process(process)
}

/// An ordered connection to a process.
pub(crate) fn ordered(process: u16) -> ConnectOptions {
    ConnectOptions { mode: DeliveryMode::Rod, process, ..ConnectOptions::default() }
}

/// What an application has heard.
pub(crate) enum Heard {
    /// A message has been sent or received.
    Done,
    /// A connection is open or closed.
    Connection,
    /// A command was refused, as there is too little of something.
    Limit,
    /// Something has failed, or was refused for another reason.
    Failed,
}

pub(crate) fn heard(report: &Report) -> Heard {
    match report {
        Report::Received { result: Ok(()), .. } | Report::Sent { result: Ok(()), .. } => Heard::Done,
        Report::Connected { .. } | Report::Closed { result: Ok(()), .. } => Heard::Connection,
        Report::Refused { error: CallError::Limit { .. }, .. } => Heard::Limit,
        _ => Heard::Failed,
    }
}

/// Where a forged packet comes from, and what it is part of.
pub(crate) struct Forged {
    pub src: u32,
    pub pdc: u16,
    pub psn: u32,
    /// Packets of the PDC before it.
    pub before: u16,
    pub process: u16,
    pub tag: u64,
    /// The length of the message; of the packet, the bytes from this offset.
    pub len: u32,
    pub offset: u32,
    pub payload: u32,
}

impl Forged {
    /// Of nobody.
    pub(crate) const NONE: Forged =
        Forged { src: 0, pdc: 0, psn: 0, before: 0, process: 0, tag: 0, len: 0, offset: 0, payload: 0 };
}

/// A packet with SYN that says that it is of a tagged message.
pub(crate) fn forged(of: &Forged) -> Packet {
    let request = Request {
        mode: DeliveryMode::Rud,
        next: NextHeader::RequestStandard,
        retx: false,
        ack_request: true,
        clear_psn_offset: -1,
        psn: Psn(of.psn),
        spdcid: PdcId(of.pdc),
        destination: Destination::Syn { use_reserved: false, psn_offset: of.before },
        vendor: VendorFlags::NONE,
        cc: None,
    };
    let is_first = of.before == 0;
    let ses = StandardRequest {
        opcode: Opcode::TAGGED_SEND,
        flags: if is_first { RequestFlags::START_OF_MESSAGE } else { RequestFlags::NONE },
        msg_id: 0,
        ri_generation: 0,
        job_id: 0,
        pid_on_fep: of.process,
        resource_index: 0,
        buffer_offset: 0,
        initiator: 0,
        match_bits: of.tag,
        placement: if is_first {
            Placement::Start { header_data: 0 }
        } else {
            Placement::Continue { payload_len: of.payload as u16, msg_offset: of.offset }
        },
        request_length: of.len,
    };
    let (src, dst, entropy) = (Addr(of.src), Addr(0), Entropy(0));
    let net =
        Network { src, dst, entropy, class: Class::Data, priority: Priority::LOWEST, ecn: false, hops: 0 };
    Packet { net, payload_len: of.payload, pds: Pds::Request(request), ses: Ses::Standard(ses) }
}
