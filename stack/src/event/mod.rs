//! Every observable event of an endpoint, declared once.
//!
//! Counters are derived from the events, and so are the traces, captures and test snapshots that a [`Subscriber`]
//! makes of them. Without a subscriber an event costs its counter and one branch.
//!
//! A [`Recorder`] keeps events in memory; [`json`] writes them as the lines of a trace.
#![forbid(unsafe_code)]

pub mod json;
mod record;

pub use record::{Record, Recorder, Selection};

use weft_cc::{Span, Time};

use crate::packet::Addr;
use crate::spray::Entropy;
use crate::wire::pds::{ControlKind, NackCode, PdcId, Psn};

/// Something that happened in an endpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// A data packet left.
    DataSent {
        /// The initiator's PDCID.
        pdc: PdcId,
        /// The PSN of the packet.
        psn: Psn,
        /// Length of the payload, bytes.
        len: u32,
        /// The entropy that it carries.
        entropy: Entropy,
        /// Whether it had been sent before.
        retransmission: bool,
    },
    /// A data packet arrived complete and was new.
    DataReceived {
        /// Address of the packet's sender.
        peer: Addr,
        /// The target's PDCID.
        pdc: PdcId,
        /// The PSN of the packet.
        psn: Psn,
        /// Whether it carried a congestion mark.
        ecn: bool,
    },
    /// A data packet arrived that had arrived before.
    DuplicateReceived {
        /// Address of the packet's sender.
        peer: Addr,
        /// The target's PDCID.
        pdc: PdcId,
        /// The PSN of the packet.
        psn: Psn,
    },
    /// A data packet arrived without its payload.
    TrimmedReceived {
        /// Address of the packet's sender.
        peer: Addr,
        /// The target's PDCID; 0 if there is none.
        pdc: PdcId,
        /// The PSN of the packet.
        psn: Psn,
    },
    /// An acknowledgement left.
    AckSent {
        /// Address of the packet's receiver.
        peer: Addr,
        /// The target's PDCID.
        pdc: PdcId,
        /// All packets up to this PSN have arrived.
        cack: Psn,
    },
    /// An acknowledgement arrived.
    AckReceived {
        /// The initiator's PDCID.
        pdc: PdcId,
        /// All packets up to this PSN have arrived.
        cack: Psn,
        /// The RTT of the packet that triggered it, if it is unambiguous.
        rtt: Option<Span>,
        /// The part of `rtt` between the arrival of the packet at the other host and its acknowledgement, as that host
        /// says; zero if it says nothing.
        remote: Span,
        /// The part of `rtt` between the arrival of the acknowledgement and its processing; zero if the port does not
        /// measure it.
        local: Span,
        /// Whether the acknowledged packet carried a congestion mark.
        ecn: bool,
    },
    /// A NACK left.
    NackSent {
        /// Address of the packet's receiver.
        peer: Addr,
        /// The PDCID of this end; 0 if there is none.
        pdc: PdcId,
        /// The packet that is refused.
        psn: Psn,
        /// The NACK's reason code.
        code: NackCode,
    },
    /// A NACK arrived.
    NackReceived {
        /// The initiator's PDCID.
        pdc: PdcId,
        /// The packet that is refused.
        psn: Psn,
        /// The NACK's reason code.
        code: NackCode,
    },
    /// A control packet left.
    ControlSent {
        /// Address of the packet's receiver.
        peer: Addr,
        /// The PDCID of this end; 0 if there is none.
        pdc: PdcId,
        /// The type of the control packet.
        kind: ControlKind,
    },
    /// An acknowledgement, NACK or control packet was dropped before it left: the queue of such packets was full, or had no room for
    /// more of this peer ([`Limits::control_queue`](crate::fep::Limits::control_queue)). It counts as sent as well.
    ControlDropped {
        /// Address of the packet's receiver.
        peer: Addr,
    },
    /// A packet is inferred lost from later acknowledgements.
    LossInferred {
        /// The initiator's PDCID.
        pdc: PdcId,
        /// The PSN of the packet.
        psn: Psn,
    },
    /// A packet that was taken for lost had not been lost: the answer to an earlier transmission has come.
    SpuriousLoss {
        /// The initiator's PDCID.
        pdc: PdcId,
        /// The PSN of the packet.
        psn: Psn,
    },
    /// A retransmission timer expired.
    Timeout {
        /// The PDC whose packet was not acknowledged.
        pdc: PdcId,
        /// The packet that was not acknowledged.
        psn: Psn,
        /// Expiries of this packet so far.
        count: u8,
    },
    /// A PDC was opened for sending.
    PdcOpened {
        /// Address of the target.
        peer: Addr,
        /// The initiator's PDCID.
        pdc: PdcId,
        /// The number of its congestion context, which other PDCs may share; used again when the last of them is closed.
        context: u32,
    },
    /// A PDC that was open for sending was removed.
    PdcClosed {
        /// Address of the target.
        peer: Addr,
        /// The initiator's PDCID.
        pdc: PdcId,
    },
    /// A datagram left.
    DatagramSent {
        /// Address of its receiver.
        peer: Addr,
        /// Length of the payload, bytes.
        len: u32,
        /// The entropy that it carries.
        entropy: Entropy,
    },
    /// A datagram arrived, and met a receive.
    DatagramReceived {
        /// Address of its sender.
        peer: Addr,
        /// Length of the payload, bytes.
        len: u32,
    },
    /// A datagram arrived and was dropped: there was no receive for it, or its payload had been cut off.
    DatagramDropped {
        /// Address of its sender.
        peer: Addr,
        /// The reason, as text for people.
        why: &'static str,
    },
    /// A packet arrived that has no meaning here, and was dropped.
    Ignored {
        /// Address of the packet's sender.
        peer: Addr,
        /// The reason, as text for people.
        why: &'static str,
    },
}

impl Event {
    /// The name of the event in traces.
    pub fn name(&self) -> &'static str {
        match self {
            Event::DataSent { .. } => "data_sent",
            Event::DataReceived { .. } => "data_received",
            Event::DuplicateReceived { .. } => "duplicate_received",
            Event::TrimmedReceived { .. } => "trimmed_received",
            Event::AckSent { .. } => "ack_sent",
            Event::AckReceived { .. } => "ack_received",
            Event::NackSent { .. } => "nack_sent",
            Event::NackReceived { .. } => "nack_received",
            Event::ControlSent { .. } => "control_sent",
            Event::ControlDropped { .. } => "control_dropped",
            Event::LossInferred { .. } => "loss_inferred",
            Event::SpuriousLoss { .. } => "spurious_loss",
            Event::Timeout { .. } => "timeout",
            Event::PdcOpened { .. } => "pdc_opened",
            Event::PdcClosed { .. } => "pdc_closed",
            Event::DatagramSent { .. } => "datagram_sent",
            Event::DatagramReceived { .. } => "datagram_received",
            Event::DatagramDropped { .. } => "datagram_dropped",
            Event::Ignored { .. } => "ignored",
        }
    }

    /// The PDC to which the event belongs, by its number at the host of the event.
    #[inline]
    pub fn pdc(&self) -> Option<PdcId> {
        let pdc = match self {
            Event::DataSent { pdc, .. }
            | Event::DataReceived { pdc, .. }
            | Event::DuplicateReceived { pdc, .. }
            | Event::TrimmedReceived { pdc, .. }
            | Event::AckSent { pdc, .. }
            | Event::NackSent { pdc, .. }
            | Event::ControlSent { pdc, .. }
            | Event::AckReceived { pdc, .. }
            | Event::NackReceived { pdc, .. }
            | Event::LossInferred { pdc, .. }
            | Event::SpuriousLoss { pdc, .. }
            | Event::Timeout { pdc, .. }
            | Event::PdcOpened { pdc, .. }
            | Event::PdcClosed { pdc, .. } => *pdc,
            Event::ControlDropped { .. }
            | Event::DatagramSent { .. }
            | Event::DatagramReceived { .. }
            | Event::DatagramDropped { .. }
            | Event::Ignored { .. } => PdcId(0),
        };
        (pdc != PdcId(0)).then_some(pdc)
    }

    /// The peer that the event names, for a caller that numbers hosts differently from the endpoint.
    pub fn peer_mut(&mut self) -> Option<&mut Addr> {
        match self {
            Event::DataReceived { peer, .. }
            | Event::DuplicateReceived { peer, .. }
            | Event::TrimmedReceived { peer, .. }
            | Event::AckSent { peer, .. }
            | Event::NackSent { peer, .. }
            | Event::ControlSent { peer, .. }
            | Event::ControlDropped { peer }
            | Event::PdcOpened { peer, .. }
            | Event::PdcClosed { peer, .. }
            | Event::DatagramSent { peer, .. }
            | Event::DatagramReceived { peer, .. }
            | Event::DatagramDropped { peer, .. }
            | Event::Ignored { peer, .. } => Some(peer),
            Event::DataSent { .. }
            | Event::AckReceived { .. }
            | Event::NackReceived { .. }
            | Event::LossInferred { .. }
            | Event::SpuriousLoss { .. }
            | Event::Timeout { .. } => None,
        }
    }
}

/// Counts of events since the endpoint was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Data packets sent for the first time.
    pub data_sent: u64,
    /// Data packets sent again.
    pub data_retransmitted: u64,
    /// New data packets received.
    pub data_received: u64,
    /// Data packets received with a congestion mark.
    pub ecn_received: u64,
    /// Data packets received again.
    pub duplicates_received: u64,
    /// Trimmed packets received.
    pub trimmed_received: u64,
    /// Acknowledgements sent.
    pub acks_sent: u64,
    /// Acknowledgements received.
    pub acks_received: u64,
    /// NACKs sent.
    pub nacks_sent: u64,
    /// NACKs received.
    pub nacks_received: u64,
    /// Control packets sent.
    pub control_sent: u64,
    /// Acknowledgements, NACKs and control packets dropped because their queue was full.
    pub control_dropped: u64,
    /// Probes sent: control packets that ask what has arrived.
    pub probes_sent: u64,
    /// Packets inferred lost.
    pub losses_inferred: u64,
    /// Packets taken for lost, by inference or a timer, that had not been lost.
    pub losses_spurious: u64,
    /// Retransmission timer expiries.
    pub timeouts: u64,
    /// Packets dropped because they had no meaning here.
    pub ignored: u64,
    /// Datagrams sent.
    pub datagrams_sent: u64,
    /// Datagrams received that met a receive.
    pub datagrams_received: u64,
    /// Datagrams dropped on arrival, because there was no receive for them or they had been trimmed.
    pub datagrams_dropped: u64,
}

impl Counters {
    #[inline(always)]
    fn count(&mut self, event: &Event) {
        let counter = match event {
            Event::DataSent { retransmission: false, .. } => &mut self.data_sent,
            Event::DataSent { retransmission: true, .. } => &mut self.data_retransmitted,
            Event::DataReceived { ecn, .. } => {
                self.ecn_received += u64::from(*ecn);
                &mut self.data_received
            }
            Event::DuplicateReceived { .. } => &mut self.duplicates_received,
            Event::TrimmedReceived { .. } => &mut self.trimmed_received,
            Event::AckSent { .. } => &mut self.acks_sent,
            Event::AckReceived { .. } => &mut self.acks_received,
            Event::NackSent { .. } => &mut self.nacks_sent,
            Event::NackReceived { .. } => &mut self.nacks_received,
            Event::ControlSent { kind, .. } => {
                self.probes_sent += u64::from(*kind == ControlKind::Probe);
                &mut self.control_sent
            }
            Event::ControlDropped { .. } => &mut self.control_dropped,
            Event::LossInferred { .. } => &mut self.losses_inferred,
            Event::SpuriousLoss { .. } => &mut self.losses_spurious,
            Event::Timeout { .. } => &mut self.timeouts,
            Event::Ignored { .. } => &mut self.ignored,
            Event::DatagramSent { .. } => &mut self.datagrams_sent,
            Event::DatagramReceived { .. } => &mut self.datagrams_received,
            Event::DatagramDropped { .. } => &mut self.datagrams_dropped,
            Event::PdcOpened { .. } | Event::PdcClosed { .. } => return,
        };
        *counter += 1;
    }
}

/// Receives every event of an endpoint.
pub trait Subscriber {
    /// `event` happened at `now`.
    fn on_event(&mut self, now: Time, event: &Event);
}

/// Distributes an endpoint's events to its counters and its subscriber.
// The subscriber is next to the counters of data packets: together they take one cache line.
#[derive(Default)]
#[repr(C)]
pub struct Events {
    subscriber: Option<Box<dyn Subscriber + Send>>,
    counters: Counters,
}

impl Events {
    /// Counts `event` and passes it on.
    // Always inlined: each caller emits one kind of event, so that little is left but to increase its counter.
    #[inline(always)]
    pub fn emit(&mut self, now: Time, event: Event) {
        self.counters.count(&event);
        if self.subscriber.is_some() {
            self.pass_on(now, event);
        }
    }

    #[inline(never)]
    fn pass_on(&mut self, now: Time, event: Event) {
        if let Some(subscriber) = &mut self.subscriber {
            subscriber.on_event(now, &event);
        }
    }

    /// The counts so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Sends all later events to `subscriber`, which replaces an earlier one.
    pub fn subscribe(&mut self, subscriber: Box<dyn Subscriber + Send>) {
        self.subscriber = Some(subscriber);
    }
}
