//! Loss inference at the initiator, for fabrics that drop instead of trimming.
//!
//! The rules are those of the UE text's sender-side loss estimation, as implemented in public code: packets are
//! inferred lost when the target holds more than 1.5 windows beyond a gap, or when a probe finds the queues empty and
//! the packets still missing.
//!
//! Deviation: only packets sent before one that has arrived are inferred lost (as in RACK, RFC 8985). Public code also
//! resends packets that may still be in flight.

use weft_cc::Time;

use super::record::State;
use super::{TxPdc, TxRecord};
use crate::wire::pds::Psn;

/// The state of loss inference of one PDC.
#[derive(Clone, Copy, Debug, Default)]
pub struct LossRecovery {
    /// Recovery lasts until this packet is acknowledged.
    until: Option<Psn>,
    /// When this recovery began: packets sent since then are not judged in it.
    began: Time,
    /// Send time of the packet that was sent last among those that have arrived.
    newest_delivered: Option<Time>,
    /// The outstanding probe.
    probe: Option<Probe>,
    probes: u16,
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    opaque: u16,
    sent_at: Time,
}

/// Number of windows beyond a gap that make it a loss.
const WINDOWS_BEYOND_GAP: f64 = 1.5;
/// Least number of packets beyond a gap that make it a loss.
const MIN_BEYOND_GAP: f64 = 5.0;

impl LossRecovery {
    pub(super) fn on_delivered(&mut self, sent_at: Time) {
        self.newest_delivered = Some(self.newest_delivered.map_or(sent_at, |t| t.latest(sent_at)));
    }
}

impl TxPdc {
    /// Infers losses from an acknowledgement after which the target holds `out_of_order` packets beyond the first
    /// missing one, with a window of `window` packets. Calls `lost` for every packet that it moves to the
    /// retransmission queue.
    pub fn infer_losses(
        &mut self,
        now: Time,
        out_of_order: u16,
        window: f64,
        lost: impl FnMut(Psn, &TxRecord),
    ) {
        if self.recovery.until.is_some_and(|until| !self.first_unacknowledged().is_before(until)) {
            self.recovery.until = None;
        }
        let threshold = (window * WINDOWS_BEYOND_GAP).max(MIN_BEYOND_GAP);
        let until = match self.recovery.until {
            Some(until) => until,
            None if f64::from(out_of_order) < threshold || self.has_lost() => return,
            None => {
                self.recovery.until = Some(self.next_psn());
                self.recovery.began = now;
                self.next_psn()
            }
        };
        let reach = self.first_unacknowledged().plus(window.max(1.0) as u32);
        self.lose(if reach.is_before(until) { reach } else { until }, lost);
    }

    /// Records a probe that is sent now; returns its opaque value.
    pub fn send_probe(&mut self, now: Time) -> u16 {
        self.recovery.probes = self.recovery.probes.wrapping_add(1);
        self.recovery.probe = Some(Probe { opaque: self.recovery.probes, sent_at: now });
        self.recovery.probes
    }

    /// The send time of the probe `opaque`, if it is the outstanding one, which is then forgotten.
    pub fn take_probe(&mut self, opaque: u16) -> Option<Time> {
        let probe = self.recovery.probe.take_if(|probe| probe.opaque == opaque)?;
        Some(probe.sent_at)
    }

    /// A probe sent at `sent_at` has found empty queues: packets sent before it that are still missing are lost.
    pub fn lose_before_probe(&mut self, now: Time, sent_at: Time, lost: impl FnMut(Psn, &TxRecord)) {
        self.recovery.on_delivered(sent_at);
        self.recovery.until = Some(self.next_psn());
        self.recovery.began = now;
        self.lose(self.next_psn(), lost);
    }

    fn lose(&mut self, end: Psn, mut lost: impl FnMut(Psn, &TxRecord)) {
        let Some(newest) = self.recovery.newest_delivered else { return };
        let before = newest.earliest(self.recovery.began);
        let mut psn = self.first_unacknowledged();
        while psn.is_before(end) {
            let record =
                self.record(psn).filter(|r| r.state == State::InFlight && r.sent_at.is_before(before));
            if let Some(record) = record.copied() {
                self.mark_lost(psn);
                lost(psn, &record);
            }
            psn = psn.plus(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Addr;
    use crate::pdc::{PacketKind, PdcConfig};
    use crate::spray::Entropy;
    use crate::wire::pds::{
        Ack, AckCc, AckRequest, AckTrigger, CcState, DeliveryMode, NextHeader, NsccState, PdcId,
    };
    use weft_cc::Span;

    fn sent(packets: u32) -> TxPdc {
        let mut pdc = TxPdc::new(&PdcConfig::default(), Addr(1), PdcId(1), DeliveryMode::Rud, Psn(0));
        for i in 0..packets {
            let kind = PacketKind::Data { send: 0, offset: 0, len: 1 };
            pdc.send_new(Time::from_ps(u64::from(i)), kind, 100, Entropy(0));
        }
        pdc
    }

    fn sack(pdc: &mut TxPdc, bits: u64) {
        let ack = Ack {
            next: NextHeader::None,
            ecn: false,
            retx: false,
            request: AckRequest::None,
            trigger: AckTrigger::Probe(0),
            cack_psn: Psn(u32::MAX),
            spdcid: PdcId(1),
            dpdcid: PdcId(1),
            cc: Some(AckCc {
                flags: 0,
                mpr: 0,
                sack_psn_offset: 1,
                sack_bitmap: bits,
                state: CcState::Nscc(NsccState::default()),
            }),
        };
        pdc.on_ack(Time::ZERO + Span::from_us(1), &ack, |_| ()).unwrap();
    }

    fn inferred(pdc: &mut TxPdc, out_of_order: u16, window: f64) -> Vec<u32> {
        let mut lost = Vec::new();
        pdc.infer_losses(Time::from_ps(50), out_of_order, window, |psn, _| lost.push(psn.0));
        lost
    }

    #[test]
    fn a_gap_becomes_a_loss_at_one_and_a_half_windows() {
        let mut pdc = sent(10);
        sack(&mut pdc, 0b01_1111_1010);
        assert_eq!(inferred(&mut pdc, 7, 5.0), [] as [u32; 0]);
        assert_eq!(inferred(&mut pdc, 8, 5.0), [0, 2], "9 was sent after all packets that arrived");
        assert_eq!(inferred(&mut pdc, 8, 5.0), [] as [u32; 0], "each once");
    }

    #[test]
    fn an_answered_probe_marks_earlier_missing_packets_as_lost() {
        let mut pdc = sent(4);
        sack(&mut pdc, 0b0001);
        let opaque = pdc.send_probe(Time::from_ps(3));
        assert_eq!(pdc.take_probe(opaque.wrapping_add(1)), None);
        let sent_at = pdc.take_probe(opaque).unwrap();
        let mut lost = Vec::new();
        pdc.lose_before_probe(Time::from_ps(50), sent_at, |psn, _| lost.push(psn.0));
        assert_eq!(lost, [1, 2]);
        assert_eq!(pdc.take_probe(opaque), None);
    }
}
