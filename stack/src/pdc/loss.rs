//! Loss inference at the initiator, for fabrics that drop instead of trimming: RACK-TLP (RFC 8985) with the evidence
//! that UET has.
//!
//! A packet is inferred lost if an acknowledgement that is definite about it does not name it, although it has been
//! outstanding for longer than the slowest recent answer over all paths, and a leeway for reordering
//! ([`RttEstimator::reach`](super::RttEstimator::reach)). An acknowledgement is definite about the 64 packets of its
//! SACK bitmap; and about all packets, if the target holds as many as are known here. A zero bit of an older
//! acknowledgement tells nothing: the packet may have arrived since.
//!
//! SACK does not name a read whose response is stored, and that response waits at the target and in queues that other
//! acknowledgements overtake. So reads are judged only by acknowledgements that carry data, which have waited in the same
//! queues, and no probe asks about them. Where none comes they have their retransmission timer.
//!
//! Where no acknowledgement decides, a probe asks for one that does: when a packet that others have overtaken is due,
//! and when nothing has been heard for two RTTs although packets are outstanding (tail loss). Probes travel as the data
//! do, so their answers are no sooner than those of data. They become rare while nothing arrives, but not so rare that
//! the peer could be taken for dead.
//!
//! Each packet is judged by the time of its last transmission, in the order of PSNs. First transmissions are in the
//! order of time, so a search ends at the first of them that is not due.

use weft_cc::{Span, Time};

use super::record::State;
use super::{Evidence, TxPdc, TxRecord};
use crate::wire::pds::Psn;

/// The state of loss inference of one PDC.
#[derive(Clone, Copy, Debug, Default)]
pub struct LossRecovery {
    /// No packet is due before this time.
    judge_at: Option<Time>,
    /// Send time of the packet or probe that was sent last among those that have arrived.
    newest_delivered: Option<Time>,
    /// The last probes sent.
    probes: Option<Sent>,
    next_opaque: u16,
}

/// Probes that left together.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Time,
    /// The opaque value of the first; those of the others follow.
    first: u16,
    /// Which of them wait for their answers.
    waiting: u16,
    /// How often probes were sent since a packet last arrived.
    in_vain: u8,
}

/// Packets about which the answer to one probe is definite.
pub const PROBE_REACH: u32 = 64;
/// The most probes that leave together: they cover 1,024 packets.
const MAX_PROBES: usize = 16;
/// How often the time between probes doubles while nothing arrives.
const MAX_PROBE_DOUBLINGS: u8 = 10;
/// Packets that are nearly due are left to the next search, so that there are at most this many in a reach.
const SEARCHES: u64 = 16;

/// How long to wait before packets without an answer are asked about.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// The longest that an answer takes ([`RttEstimator::reach`](super::RttEstimator::reach)).
    pub reach: Span,
    /// The time after the last packet at which an answer should have come
    /// ([`RttEstimator::probe_wait`](super::RttEstimator::probe_wait)).
    pub quiet: Span,
    /// The longest time between probes.
    pub longest_rest: Span,
}

/// Whether probes are due.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ProbesDue {
    /// They are.
    Now(Probes),
    /// Not before this time.
    At(Time),
    /// Nothing is in flight.
    Never,
}

/// Probes to send: each asks about [`PROBE_REACH`] packets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probes {
    bases: [Psn; MAX_PROBES],
    count: usize,
    opaque: u16,
}

impl Probes {
    /// The first packet that each asks about, and its opaque value.
    pub fn iter(&self) -> impl Iterator<Item = (Psn, u16)> + '_ {
        let opaque = |n: usize| self.opaque.wrapping_add(n as u16);
        self.bases[..self.count].iter().enumerate().map(move |(n, base)| (*base, opaque(n)))
    }
}

/// The result of a search for packets that are due.
#[derive(Default)]
struct Overdue {
    /// The first of each [`PROBE_REACH`] packets that has one.
    bases: [Psn; MAX_PROBES],
    count: usize,
    /// The first packet in flight, and when it was sent.
    first: Option<(Psn, Time)>,
    /// When the next overtaken packet is due.
    next: Option<Time>,
}

impl LossRecovery {
    /// A packet or a probe sent at `sent_at` has arrived.
    #[inline]
    pub(super) fn on_delivered(&mut self, sent_at: Time) {
        self.newest_delivered = Some(self.newest_delivered.map_or(sent_at, |t| t.latest(sent_at)));
    }

    /// The RTT of the probe with this opaque value; `None` if it is not outstanding.
    pub(super) fn on_probe_answer(&mut self, now: Time, opaque: u16) -> Option<Span> {
        let probes = self.probes.as_mut()?;
        let bit = 1u16.checked_shl(opaque.wrapping_sub(probes.first).into())? & probes.waiting;
        if bit == 0 {
            return None;
        }
        probes.waiting &= !bit;
        let sent_at = probes.at;
        self.on_delivered(sent_at);
        Some(now.since(sent_at))
    }

    /// When probes may leave again: after one reach, doubled for each time that they were in vain, `longest_rest` at
    /// most.
    fn rested_at(&self, patience: &Patience) -> Option<Time> {
        let probes = self.probes.as_ref()?;
        let doublings = probes.in_vain.saturating_sub(1).min(MAX_PROBE_DOUBLINGS);
        let rest = patience.reach.times(1 << doublings).min(patience.longest_rest).max(patience.reach);
        Some(probes.at + rest)
    }

    fn overtakes(&self, record: &TxRecord) -> bool {
        self.newest_delivered.is_some_and(|newest| record.sent_at.is_before(newest))
    }
}

impl TxPdc {
    /// Infers losses from the `evidence` in an acknowledgement of something whose RTT is known. Answers take up to `reach`.
    /// Calls `lost` for every packet that it moves to the retransmission queue.
    pub fn infer_losses(
        &mut self,
        now: Time,
        evidence: Evidence,
        reach: Span,
        mut lost: impl FnMut(Psn, &TxRecord),
    ) {
        if self.recovery.judge_at.is_some_and(|at| now.is_before(at)) {
            return;
        }
        let Evidence { definite, on_reads } = evidence;
        let (una, end) = (self.first_unacknowledged(), self.next_psn());
        let mut psn = if definite.0.is_before(una) { una } else { definite.0 };
        let last = if end.is_before(definite.1) { end } else { definite.1 };
        let mut due = None;
        while psn.is_before(last) {
            if let Some(record) = self.record(psn).filter(|r| r.state == State::InFlight).copied() {
                let late_at = record.sent_at + record.reach(reach);
                let late = now.is_at_or_after(late_at);
                if late && (on_reads || !record.is_read()) {
                    self.mark_lost(psn);
                    lost(psn, &record);
                } else {
                    due = Some(due.map_or(late_at, |due: Time| due.earliest(late_at)));
                    if record.transmissions == 1 && !late {
                        break;
                    }
                }
            }
            psn = psn.plus(1);
        }
        if definite.0.distance(una) <= 0 && !definite.1.is_before(end) {
            let pause = now + Span::from_ps(reach.as_ps() / SEARCHES);
            self.recovery.judge_at = due.map(|due| due.latest(pause));
        }
    }

    /// A packet has arrived: probes need not back off.
    pub fn on_news(&mut self) {
        if let Some(probes) = &mut self.recovery.probes {
            probes.in_vain = 0;
        }
    }

    /// A time before which no probe will be due, found without a search; `None` while all packets are acknowledged.
    #[inline]
    pub fn probe_not_before(&self, patience: &Patience) -> Option<Time> {
        let first = self.record(self.first_unacknowledged())?;
        let overtaken = first.state == State::InFlight && self.recovery.overtakes(first);
        let at = match overtaken {
            true => first.sent_at + first.reach(patience.reach),
            false => self.newest_sent()? + patience.quiet,
        };
        Some(self.recovery.rested_at(patience).map_or(at, |rested| rested.latest(at)))
    }

    /// Looks for packets that probes should ask about, and records the probes as sent now.
    pub fn poll_probes(&mut self, now: Time, patience: &Patience) -> ProbesDue {
        let overdue = match self.find_overdue(now, patience.reach) {
            Overdue { first: None, .. } => return ProbesDue::Never,
            Overdue { count: 0, first: Some((first, sent_at)), next, .. } => {
                // Nothing is overtaken and due: is the end of what was sent lost?
                let spoke = self.newest_sent().map_or(sent_at, |newest| newest.latest(sent_at));
                let at = spoke + patience.quiet;
                if now.is_before(at) {
                    return ProbesDue::At(next.map_or(at, |next| next.earliest(at)));
                }
                Overdue { bases: [first; MAX_PROBES], count: 1, ..Overdue::default() }
            }
            overdue => overdue,
        };
        if let Some(at) = self.recovery.rested_at(patience).filter(|at| now.is_before(*at)) {
            return ProbesDue::At(at);
        }
        ProbesDue::Now(self.note_probes(now, &overdue))
    }

    /// The packets that are due and overtaken by others.
    fn find_overdue(&self, now: Time, reach: Span) -> Overdue {
        let mut found = Overdue::default();
        let (mut psn, end) = (self.first_unacknowledged(), self.next_psn());
        while psn.is_before(end) && found.count < MAX_PROBES {
            let mut step = 1;
            if let Some(record) = self.record(psn).filter(|record| record.state == State::InFlight) {
                let late_at = record.sent_at + record.reach(reach);
                found.first.get_or_insert((psn, record.sent_at));
                let late = now.is_at_or_after(late_at);
                let overtaken = self.recovery.overtakes(record) && !record.is_read();
                if overtaken && late {
                    found.bases[found.count] = psn;
                    found.count += 1;
                    step = PROBE_REACH;
                } else {
                    if overtaken {
                        found.next = Some(found.next.map_or(late_at, |next| next.earliest(late_at)));
                    }
                    if record.transmissions == 1 && !(late && record.is_read()) {
                        break;
                    }
                }
            }
            psn = psn.plus(step);
        }
        found
    }

    fn note_probes(&mut self, now: Time, overdue: &Overdue) -> Probes {
        let in_vain = self.probes_in_vain().saturating_add(1);
        let (first, count) = (self.recovery.next_opaque, overdue.count);
        let waiting = u16::MAX >> (MAX_PROBES - count);
        self.recovery.probes = Some(Sent { at: now, first, waiting, in_vain });
        self.recovery.next_opaque = first.wrapping_add(count as u16);
        Probes { bases: overdue.bases, count, opaque: first }
    }

    /// How often probes were sent since a packet last arrived.
    pub fn probes_in_vain(&self) -> u8 {
        self.recovery.probes.map_or(0, |probes| probes.in_vain)
    }
}

#[cfg(test)]
mod tests;
