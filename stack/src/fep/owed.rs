//! Acknowledgements that packets read together share.
//!
//! An algorithm that steers by delay has every packet acknowledged, and a worker reads packets in bursts. Each PDC then owes
//! one acknowledgement for what the burst has brought: that of the last packet, which names the others as well. Swift's own
//! stack does the same (Swift §3.6: acknowledgements are not delayed, but packets that are processed in a batch share one).

use weft_cc::{Span, Time};

use super::Fep;
use super::core::Core;
use super::target::Target;
use super::target_pdc::{Cause, TargetPdc};
use crate::heap;
use crate::packet::{Network, Packet};
use crate::wire::pds::{PdcId, Psn, Request};

/// When so many operations have completed, or packets are sent again for a refusal, no further packet of a burst is to be read. To
/// complete as many messages takes some 300 µs.
pub const COMPLETED_PER_BURST: usize = if cfg!(test) { 64 } else { 2048 };

/// An acknowledgement that a PDC owes.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwedAck {
    /// The target's PDCID.
    pdc: PdcId,
    /// The packet that triggers it: the last one.
    pub(super) psn: Psn,
    pub(super) net: Network,
    pub(super) cause: Cause,
    /// How long that packet had waited in this host when it was read.
    pub(super) waited: Span,
    /// The first and the last, in order of PSNs, of the packets for which it stands.
    span: (Psn, Psn),
}

/// The acknowledgements that are owed for the packets of a burst, in the order in which their first packets came. PDCs owe
/// one each, and further ones for packets that one cannot name.
#[derive(Debug, Default)]
pub(super) struct Owed {
    acks: Vec<OwedAck>,
}

impl Owed {
    /// Forgets what PDC `pdc` owes: it is gone.
    #[inline]
    pub(super) fn forget(&mut self, pdc: PdcId) {
        self.acks.retain(|owed| owed.pdc != pdc);
    }

    /// Bytes of heap held.
    pub(super) fn heap_bytes(&self) -> u64 {
        heap::of_vec(&self.acks)
    }
}

/// Puts off the acknowledgement of the new packet `packet` of `pdc`, just accepted, to the end of the burst. False if it has
/// to leave by itself: it answers a packet that was marked or sent before, or whose sender wants each acknowledgement.
#[inline(never)]
pub(super) fn owe(core: &mut Core, pdc: &TargetPdc, packet: &Packet, request: &Request) -> bool {
    let Some(cause) = Cause::plain(packet, request) else { return false };
    let (id, psn) = (pdc.rx.id, request.psn);
    let owed = OwedAck { pdc: id, psn, net: packet.net, cause, waited: core.waited, span: (psn, psn) };
    // The last one of a PDC names its latest packets. There are no more of them than packets in a burst.
    match core.owed.acks.iter_mut().rfind(|other| other.pdc == id) {
        Some(other) if pdc.rx.names(psn, other.span) => {
            let (first, last) = other.span;
            let span = (
                if psn.is_before(first) { psn } else { first },
                if last.is_before(psn) { psn } else { last },
            );
            *other = OwedAck { span, ..owed };
        }
        _ => core.owed.acks.push(owed),
    }
    true
}

impl Target {
    /// Queues the acknowledgements that are owed.
    #[inline(never)]
    fn acknowledge_owed(&mut self, core: &mut Core, now: Time, took: Span) {
        let mut acks = std::mem::take(&mut core.owed.acks);
        for mut owed in acks.drain(..) {
            owed.waited = owed.waited.plus(took);
            if let Some((_, pdc)) = self.pdcs.find(owed.pdc) {
                pdc.acknowledge_owed(core, now, &owed);
            }
        }
        // Kept for its memory.
        core.owed.acks = acks;
    }
}

impl Fep {
    /// The packets of the following calls of [`Fep::on_packet_after`] were read together, until [`Fep::end_burst`]: those
    /// of one PDC may share an acknowledgement if their sender asks for echoes of delay. Others are acknowledged as ever.
    #[inline]
    pub fn begin_burst(&mut self) {
        self.core.in_burst = true;
        // There are no more completions than operations, which have names of 32 bits.
        self.core.burst_ends_at = (self.core.completions.len() + COMPLETED_PER_BURST) as u32;
    }

    /// Whether the burst has completed [`COMPLETED_PER_BURST`] operations: one acknowledgement may be that of a window of messages. The
    /// burst should end then, and the rest be read later.
    #[inline]
    pub fn completes_many(&self) -> bool {
        self.core.completions.len() >= self.core.burst_ends_at as usize
    }

    /// Whether packets of the burst share an acknowledgement that has not been made yet.
    #[inline]
    pub fn owes_acknowledgements(&self) -> bool {
        !self.core.owed.acks.is_empty()
    }

    /// All packets that were read together have been handed over. That took so long since they were read, which shared
    /// acknowledgements report as time in this host. [`Fep::poll_transmit`] ends a burst, too, without that time.
    #[inline]
    pub fn end_burst(&mut self, now: Time, took: Span) {
        self.core.in_burst = false;
        if self.owes_acknowledgements() {
            self.target.acknowledge_owed(&mut self.core, now, took);
        }
    }
}
