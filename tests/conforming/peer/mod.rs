//! A peer that conforms to UET, written from the published layout and rules alone and sharing no code with the stack.
//!
//! It sends and receives tagged and untagged messages over one PDC each way, controls its window by NSCC, and notes
//! everything in the packets of the other side that breaks a rule ([`Peer::violations`]).

mod initiator;
mod nscc;
mod target;
pub(crate) mod wire;

use std::collections::VecDeque;

pub(crate) use initiator::Counters;
use initiator::Initiator;
pub(crate) use target::Acks;
use target::Target;
use wire::{Class, Datagram, Pds, control};

/// Picoseconds since the beginning.
pub(crate) type Ps = u64;

/// The settings of a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Largest payload of a packet, bytes.
    pub(crate) mtu: usize,
    pub(crate) base_rtt: Ps,
    /// bit/s.
    pub(crate) rate: u64,
    /// The first retransmission timeout.
    pub(crate) rto: Ps,
    /// Whether requests ask for ordered delivery (ROD).
    pub(crate) ordered: bool,
    /// Whether requests carry congestion control fields and so ask for credit. The peer does not wait for any.
    pub(crate) credit: bool,
    /// Whether packets end with a CRC-32C. That is not the peer's business but for their size.
    pub(crate) crc: bool,
    pub(crate) acks: Acks,
}

/// A message that is sent or has been received.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Message {
    pub(crate) tag: Option<u64>,
    pub(crate) header_data: u64,
    pub(crate) bytes: Vec<u8>,
}

/// What both halves of the peer produce.
#[derive(Default)]
pub(crate) struct Out {
    /// Packets that leave before any data.
    control: VecDeque<Datagram>,
    violations: Vec<String>,
}

impl Out {
    fn require(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(what());
        }
    }

    fn send(&mut self, pds: &Pds, port: u16) {
        self.control.push_back(Datagram::new(pds.encode(), port, Class::Control));
    }
}

pub(crate) struct Peer {
    pub(crate) initiator: Initiator,
    pub(crate) target: Target,
    out: Out,
}

/// Whether the header announces a response with data.
fn has_data(pds: &Pds) -> bool {
    matches!(pds.kind, wire::ACK | wire::ACK_CC) && pds.next == wire::RESPONSE_WITH_DATA
}

impl Peer {
    pub(crate) fn new(settings: Settings) -> Peer {
        let (initiator, target) = (Initiator::new(settings), Target::new(settings.acks));
        Peer { initiator, target, out: Out::default() }
    }

    /// What the other side has sent that it should not.
    pub(crate) fn violations(&self) -> &[String] {
        &self.out.violations
    }

    pub(crate) fn violation(&mut self, what: String) {
        self.out.violations.push(what);
    }

    pub(crate) fn on_datagram(&mut self, now: Ps, datagram: &Datagram) {
        if let Err(what) = self.dispatch(now, datagram) {
            self.violation(what);
        }
    }

    fn dispatch(&mut self, now: Ps, datagram: &Datagram) -> Result<(), String> {
        let (pds, rest) = Pds::decode(&datagram.bytes)?;
        let is_request = matches!(pds.kind, wire::RUD | wire::ROD | wire::RUD_CC | wire::ROD_CC);
        match datagram.class {
            Class::Control if is_request => return Err(format!("class of control packets: {pds:?}")),
            Class::Control if has_data(&pds) => return Err(format!("class of control packets: {pds:?}")),
            Class::Data if matches!(pds.kind, wire::ACK | wire::ACK_CC | wire::NACK) && !has_data(&pds) => {
                return Err(format!("class of data: {pds:?}"));
            }
            Class::Trimmed | Class::TrimmedLastHop if has_data(&pds) => {
                self.initiator.on_trimmed_response(datagram, &pds, &mut self.out);
                return Ok(());
            }
            // Only requests and responses with data are answered without their payload.
            Class::Trimmed | Class::TrimmedLastHop if !is_request => return Ok(()),
            _ => {}
        }
        let out = &mut self.out;
        // There may be no PDC that a NACK could come from.
        out.require(pds.spdcid != 0 || pds.kind == wire::NACK, || format!("PDCID 0: {pds:?}"));
        match pds.kind {
            wire::ACK | wire::ACK_CC => self.initiator.on_ack(now, &pds, rest, out),
            wire::NACK => self.initiator.on_nack(now, &pds, out),
            wire::CONTROL => {
                let may_be_rod = matches!(pds.next, control::NOOP | control::NEGOTIATION);
                out.require(pds.flags & wire::IS_ROD == 0 || may_be_rod, || format!("ISROD: {pds:?}"));
                out.require(rest.is_empty(), || format!("payload: {} bytes behind {pds:?}", rest.len()));
                match pds.next {
                    control::CLEAR_REQ | control::CLOSE_REQ | control::CREDIT => {
                        self.initiator.on_control(&pds, out);
                    }
                    control::NOOP..=control::NEGOTIATION => self.target.on_control(datagram, &pds, out),
                    _ => return Err(format!("type of control packet: {pds:?}")),
                }
            }
            _ => self.target.on_request(datagram, &pds, rest, out),
        }
        Ok(())
    }

    /// The next packet to be sent. Its class tells data from control packets.
    pub(crate) fn poll_transmit(&mut self, now: Ps) -> Option<Datagram> {
        self.out.control.pop_front().or_else(|| self.initiator.poll_transmit(now))
    }

    pub(crate) fn poll_timeout(&self) -> Option<Ps> {
        self.initiator.poll_timeout()
    }

    pub(crate) fn on_timeout(&mut self, now: Ps) {
        self.initiator.on_timeout(now, &mut self.out);
    }

    /// Asks the initiators of all open PDCs to close them.
    pub(crate) fn ask_to_close(&mut self) {
        self.target.ask_to_close(&mut self.out);
    }
}
