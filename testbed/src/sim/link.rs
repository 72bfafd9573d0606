//! The sending end of a link: transmission times, and the faults of the link.

use weft_cc::{PS_PER_SEC, Rate, Span};
use weft_stack::packet::Class;
use weft_stack::rng::Rng;

use super::correlated::BurstState;
use super::faults::{FaultCounters, LinkChange, LinkFaults};
use super::packets::Transit;
use super::wires::{Inlet, Wires};
use crate::switch::Queued;

/// The sending end of a link. The fields that each packet needs come first and take less than a cache line.
#[repr(C)]
pub(super) struct Link {
    /// When the last bit of the last packet leaves, ps.
    pub(super) busy_until: u64,
    /// Time from the departure of the last bit to the arrival in the peer's queue, ps.
    latency: u64,
    sent_bytes: u64,
    to: Inlet,
    condition: Condition,
}

/// The rate and the faults of a link. The simulator and the software fabric share this model.
#[repr(C)]
pub(crate) struct Condition {
    /// Picoseconds per byte if that is a whole number, as at 100 Gbit/s; otherwise 0.
    ps_per_byte: u32,
    /// Whether packets can be lost, damaged, duplicated or delayed; [`LinkFaultState`] has the details.
    faulty: bool,
    /// Whether the sender trims packets at random.
    trims: bool,
    rate: Rate,
    fault_state: Option<Box<LinkFaultState>>,
}

/// The effect of a link's faults on a packet that it does not lose.
#[derive(Clone, Copy, Default)]
pub(crate) struct FaultOutcome {
    /// One bit of the packet flips.
    pub(crate) corrupt: bool,
    /// A copy of the packet arrives on time.
    pub(crate) duplicate: bool,
    /// How late the packet arrives, compared with the other packets of the link.
    pub(crate) held_up: Span,
}

/// The fault state of a link that is down or faulty, or was before.
struct LinkFaultState {
    up: bool,
    faults: LinkFaults,
    /// Number of packets for which an outcome has been drawn.
    draws: u64,
    /// Number of data packets for which it has been drawn whether they are trimmed.
    trim_draws: u64,
    counters: FaultCounters,
    bursts: BurstState,
    /// When the last packet arrives, ps, counted from the first extra delay on; packets behind it arrive later.
    last_arrival: u64,
}

/// Distinguishes the random draws for correlated losses from the others.
const BURSTS: u64 = 0x6275_7273_7473;
/// Distinguishes those for random trims.
const TRIMS: u64 = 0x74_7269_6d73;

/// The properties of a link that do not change during a run.
#[derive(Clone, Copy)]
pub(crate) struct LinkSpec {
    /// The sending port.
    pub(crate) id: u32,
    pub(crate) rate: Rate,
    /// Propagation time plus the switching latency of the peer, ps.
    pub(crate) latency: u64,
    pub(crate) faults: LinkFaults,
}

/// See [`Condition::ps_per_byte`].
fn ps_per_byte(rate: Rate) -> u32 {
    match rate.as_bps() {
        bps if bps > 0 && (8 * PS_PER_SEC).is_multiple_of(bps) => {
            u32::try_from(8 * PS_PER_SEC / bps).unwrap_or(0)
        }
        _ => 0,
    }
}

impl Condition {
    pub(crate) fn new(spec: &LinkSpec) -> Condition {
        let ps_per_byte = ps_per_byte(spec.rate);
        let trims = spec.faults.trim > 0.0;
        let mut condition =
            Condition { ps_per_byte, faulty: false, trims, rate: spec.rate, fault_state: None };
        if !spec.faults.is_none() {
            condition.fault_state(spec.faults);
        }
        condition
    }

    /// The transmission time of `bytes` bytes, ps.
    #[inline(always)]
    pub(crate) fn time_for(&self, bytes: u32) -> u64 {
        match self.ps_per_byte {
            0 => self.rate.time_for(u64::from(bytes)).as_ps(),
            ps => u64::from(ps) * u64::from(bytes),
        }
    }

    /// The bytes that are transmitted in `time`, ps.
    pub(crate) fn bytes_in(&self, time: u64) -> u64 {
        match self.ps_per_byte {
            0 => self.rate.bytes_in(Span::from_ps(time)),
            ps => time / u64::from(ps),
        }
    }

    /// Draws whether the sender, a switch, trims `packet` whatever room its queue has. `id` is the link's number, `seed` the
    /// run's.
    #[inline(always)]
    pub(crate) fn draws_trim(&mut self, id: u32, seed: u64, packet: &impl Queued) -> bool {
        self.trims && self.draws_trim_of(id, seed, packet)
    }

    #[cold]
    fn draws_trim_of(&mut self, id: u32, seed: u64, packet: &impl Queued) -> bool {
        let can_be = packet.class() == Class::Data && packet.trimmed_size() < packet.size();
        let Some(state) = self.fault_state.as_mut().filter(|_| can_be) else { return false };
        state.trim_draws += 1;
        Rng::new(seed ^ u64::from(id) << 32 ^ TRIMS, state.trim_draws).chance(state.faults.trim)
    }

    /// Draws the outcome for the next packet, which takes `size` bytes on the wire; `None` if the link loses it.
    /// `id` is the link's number, `seed` the run's.
    #[inline]
    pub(crate) fn draw_outcome(&mut self, id: u32, seed: u64, size: u32) -> Option<FaultOutcome> {
        match &mut self.fault_state {
            Some(fault_state) if self.faulty => fault_state.draw_outcome(id, seed, size),
            _ => Some(FaultOutcome::default()),
        }
    }

    /// When a packet arrives that would arrive at `at`, ps, without extra delay. To be called for each packet that the link
    /// does not lose, in the order of sending.
    #[inline]
    pub(crate) fn on_time(&mut self, at: u64) -> u64 {
        match &mut self.fault_state {
            Some(fault_state) if self.faulty => fault_state.on_time(at),
            _ => at,
        }
    }

    /// Applies a change to the link.
    pub(crate) fn change(&mut self, spec: &LinkSpec, change: LinkChange) {
        match change {
            LinkChange::Degrade(rate) => return self.set_rate(rate),
            LinkChange::Restore => self.set_rate(spec.rate),
            LinkChange::Fail
            | LinkChange::Drop(_)
            | LinkChange::DropOver(_)
            | LinkChange::BitErrors(_)
            | LinkChange::Corrupt(_)
            | LinkChange::Correlated(_)
            | LinkChange::Delay(_)
            | LinkChange::Trim(_) => {}
        }
        let fault_state = self.fault_state(spec.faults);
        match change {
            LinkChange::Fail => fault_state.up = false,
            LinkChange::Restore => (fault_state.up, fault_state.faults) = (true, spec.faults),
            LinkChange::Drop(loss) => fault_state.faults.loss = loss,
            LinkChange::DropOver(bytes) => fault_state.faults.drop_over = Some(bytes),
            LinkChange::BitErrors(rate) => fault_state.faults.bit_error_rate = rate,
            LinkChange::Corrupt(corrupt) => fault_state.faults.corrupt = corrupt,
            LinkChange::Correlated(model) => {
                (fault_state.faults.correlated, fault_state.bursts) = (Some(model), BurstState::default());
            }
            LinkChange::Delay(delay) => fault_state.faults.extra_delay = delay,
            LinkChange::Trim(trim) => fault_state.faults.trim = trim,
            LinkChange::Degrade(_) => {}
        }
        // Once there was an extra delay, packets under way must not be overtaken when it shrinks.
        let faulty = !fault_state.up || !fault_state.faults.is_none() || fault_state.last_arrival > 0;
        (self.faulty, self.trims) = (faulty, fault_state.faults.trim > 0.0);
    }

    fn set_rate(&mut self, rate: Rate) {
        (self.rate, self.ps_per_byte) = (rate, ps_per_byte(rate));
    }

    fn fault_state(&mut self, faults: LinkFaults) -> &mut LinkFaultState {
        self.faulty = true;
        self.fault_state.get_or_insert_with(|| {
            Box::new(LinkFaultState {
                up: true,
                faults,
                draws: 0,
                trim_draws: 0,
                counters: FaultCounters::default(),
                bursts: BurstState::default(),
                last_arrival: 0,
            })
        })
    }
}

impl Link {
    pub(super) fn new(spec: &LinkSpec, to: Inlet) -> Link {
        Link { busy_until: 0, latency: spec.latency, sent_bytes: 0, to, condition: Condition::new(spec) }
    }

    /// Applies a change to the link.
    pub(super) fn change(&mut self, spec: &LinkSpec, change: LinkChange) {
        self.condition.change(spec, change);
    }

    /// Puts a packet on the link, which must be free at `now`. Adds the packet to `dropped` if the link loses
    /// it.
    #[inline(always)]
    pub(super) fn launch(
        &mut self,
        now: u64,
        id: u32,
        seed: u64,
        transit: &Transit,
        wires: &mut Wires,
        dropped: &mut u64,
    ) {
        self.busy_until = now + self.condition.time_for(transit.size());
        self.sent_bytes += u64::from(transit.size());
        let at = self.busy_until + self.latency;
        if self.condition.faulty
            && let Some(fault_state) = &mut self.condition.fault_state
        {
            *dropped += u64::from(!fault_state.launch(self.to, at, id, seed, *transit, wires));
        } else {
            wires.send(self.to, at, transit);
        }
    }

    /// See [`Condition::draws_trim`].
    #[inline(always)]
    pub(super) fn draws_trim(&mut self, id: u32, seed: u64, packet: &Transit) -> bool {
        self.condition.draws_trim(id, seed, packet)
    }

    /// Numbers of packets that the link's faults have met.
    pub(super) fn faults(&self) -> FaultCounters {
        self.condition.fault_state.as_ref().map_or(FaultCounters::default(), |state| state.counters)
    }

    /// Bytes of the packet in transmission that have not left at `now`, ps.
    pub(super) fn unsent(&self, now: u64) -> u64 {
        self.condition.bytes_in(self.busy_until.saturating_sub(now))
    }

    /// Bytes sent since the start of the run.
    pub(super) fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Bytes sent since the last call, at which `sampled` had been sent.
    pub(super) fn take_sent_bytes(&self, sampled: &mut u64) -> u64 {
        self.sent_bytes - std::mem::replace(sampled, self.sent_bytes)
    }
}

impl LinkFaultState {
    /// Does the same as [`Link::launch`] over a link that is down or faulty. Returns false if the packet is
    /// lost.
    #[cold]
    fn launch(
        &mut self,
        to: Inlet,
        at: u64,
        id: u32,
        seed: u64,
        mut transit: Transit,
        wires: &mut Wires,
    ) -> bool {
        let Some(outcome) = self.draw_outcome(id, seed, transit.size()) else {
            wires.packets.lose(&transit, at, id);
            return false;
        };
        let at = self.on_time(at);
        if outcome.corrupt {
            transit.corrupt();
        }
        if outcome.duplicate {
            wires.packets.copied(&transit);
            wires.send(to, at, &transit);
        }
        wires.send(to, at + outcome.held_up.as_ps(), &transit);
        true
    }

    /// See [`Condition::on_time`].
    fn on_time(&mut self, at: u64) -> u64 {
        let extra = self.faults.extra_delay.as_ps();
        if extra == 0 && self.last_arrival == 0 {
            return at;
        }
        // Later by something: of packets that arrive at one instant, nothing says which was sent first.
        self.last_arrival = at.saturating_add(extra).max(self.last_arrival.saturating_add(1));
        self.last_arrival
    }

    /// See [`Condition::draw_outcome`].
    #[cold]
    fn draw_outcome(&mut self, id: u32, seed: u64, size: u32) -> Option<FaultOutcome> {
        let faults = self.faults;
        // Each link and draw has its own generator, so that links do not affect each other's outcomes.
        self.draws += 1;
        let mut rng = Rng::new(seed ^ u64::from(id) << 32, self.draws);
        // Each packet counts for the model of bursts, whatever else happens to it.
        let in_burst = self.loses_in_burst(id, seed);
        if in_burst || !self.up || rng.chance(faults.loss_of(size)) {
            self.counters.lost += 1;
            return None;
        }
        let corrupt = rng.chance(faults.corrupt);
        let duplicate = rng.chance(faults.duplicate);
        let held_up = if rng.chance(faults.reorder) { rng.below(1 << 16) } else { 0 };
        self.counters.corrupted += u64::from(corrupt);
        self.counters.duplicated += u64::from(duplicate);
        self.counters.delayed += u64::from(held_up > 0);
        Some(FaultOutcome {
            corrupt,
            duplicate,
            held_up: faults.delay.mul_f64(f64::from(held_up) / 65_536.0),
        })
    }

    /// Whether the next packet is lost by the model of correlated losses. Its draws do not disturb those of other faults.
    fn loses_in_burst(&mut self, id: u32, seed: u64) -> bool {
        let Some(model) = self.faults.correlated else { return false };
        self.bursts.loses(&model, &mut Rng::new(seed ^ u64::from(id) << 32 ^ BURSTS, self.draws))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::correlated::{CorrelatedLoss, GilbertElliott};

    #[test]
    fn packets_keep_their_order_when_the_extra_delay_shrinks() {
        let spec =
            LinkSpec { id: 3, rate: Rate::from_gbps(100), latency: 1_000, faults: LinkFaults::default() };
        let mut condition = Condition::new(&spec);
        assert_eq!(condition.on_time(5), 5);
        condition.change(&spec, LinkChange::Delay(Span::from_ps(100)));
        assert_eq!([10, 20].map(|at| condition.on_time(at)), [110, 120]);
        condition.change(&spec, LinkChange::Delay(Span::from_ps(30)));
        assert_eq!([40, 89, 95].map(|at| condition.on_time(at)), [121, 122, 125]);
        condition.change(&spec, LinkChange::Restore);
        assert_eq!([100, 127].map(|at| condition.on_time(at)), [126, 127]);
    }

    #[test]
    fn packets_that_are_lost_otherwise_count_for_bursts_as_well() {
        let spec =
            LinkSpec { id: 3, rate: Rate::from_gbps(100), latency: 1_000, faults: LinkFaults::default() };
        let mut condition = Condition::new(&spec);
        // Bad, good, bad, …
        let model = GilbertElliott { to_bad: 1.0, to_good: 1.0, loss_bad: 1.0, loss_good: 0.0 };
        condition.change(&spec, LinkChange::Correlated(CorrelatedLoss::GilbertElliott(model)));
        let mut is_lost = || condition.draw_outcome(3, 1, 1_000).is_none();
        assert_eq!([is_lost(), is_lost()], [true, false]);
        condition.change(&spec, LinkChange::Drop(1.0));
        assert!(condition.draw_outcome(3, 1, 1_000).is_none());
        condition.change(&spec, LinkChange::Drop(0.0));
        assert!(condition.draw_outcome(3, 1, 1_000).is_some(), "the packet before was the bad one");
    }
}
