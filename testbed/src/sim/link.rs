//! The sending end of a link: how long packets take, and what the link does to them.

use weft_cc::{PS_PER_SEC, Rate, Span};
use weft_stack::rng::Rng;

use super::faults::{LinkChange, LinkFaults};
use super::packets::Transit;
use super::wires::{Inlet, Wires};
use crate::switch::Queued;

/// The sending end of a link. What each packet needs comes first and is less than a cache line.
#[repr(C)]
pub(super) struct Link {
    /// When the last packet's last bit leaves.
    pub(super) busy_until: u64,
    /// Time from the last bit's departure to the arrival in the peer's queue.
    latency: u64,
    sent_bytes: u64,
    to: Inlet,
    condition: Condition,
    /// Of the bytes sent, how many the last sample had seen.
    sampled_bytes: u64,
}

/// How fast a link is, and how well it carries packets: the same in virtual and in real time.
#[repr(C)]
pub(crate) struct Condition {
    /// Picoseconds that each byte takes, where that is a whole number, as at 100 Gbit/s; else 0.
    ps_per_byte: u32,
    /// Whether packets may come to harm: [`LinkFaultState`] tells how.
    faulty: bool,
    rate: Rate,
    fault_state: Option<Box<LinkFaultState>>,
}

/// What becomes of a packet that a link does not lose.
#[derive(Clone, Copy, Default)]
pub(crate) struct FaultOutcome {
    /// A bit of it flips.
    pub(crate) corrupt: bool,
    /// It arrives once more, in time.
    pub(crate) duplicate: bool,
    /// How much later than it should it arrives.
    pub(crate) held_up: Span,
}

/// What does not go well with a link, or did not.
struct LinkFaultState {
    up: bool,
    faults: LinkFaults,
    /// Draws of chance so far.
    draws: u64,
}

/// What is fixed about a link, and needed when something happens to it.
#[derive(Clone, Copy)]
pub(crate) struct LinkSpec {
    /// The sending port.
    pub(crate) id: u32,
    pub(crate) rate: Rate,
    /// Propagation, and the time that the peer takes to switch, ps.
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
        let mut condition = Condition { ps_per_byte, faulty: false, rate: spec.rate, fault_state: None };
        if !spec.faults.is_none() {
            condition.fault_state(spec.faults);
        }
        condition
    }

    /// How long so many bytes take to leave, ps.
    #[inline(always)]
    pub(crate) fn time_for(&self, bytes: u32) -> u64 {
        match self.ps_per_byte {
            0 => self.rate.time_for(u64::from(bytes)).as_ps(),
            ps => u64::from(ps) * u64::from(bytes),
        }
    }

    /// What becomes of the next packet; `None` if it is lost. `id` is the link's, `seed` the run's.
    #[inline]
    pub(crate) fn draw_outcome(&mut self, id: u32, seed: u64) -> Option<FaultOutcome> {
        match &mut self.fault_state {
            Some(fault_state) if self.faulty => fault_state.draw_outcome(id, seed),
            _ => Some(FaultOutcome::default()),
        }
    }

    /// Something becomes of the link.
    pub(crate) fn change(&mut self, spec: &LinkSpec, change: LinkChange) {
        match change {
            LinkChange::Degrade(rate) => return self.set_rate(rate),
            LinkChange::Restore => self.set_rate(spec.rate),
            LinkChange::Fail | LinkChange::Drop(_) | LinkChange::Corrupt(_) => {}
        }
        let fault_state = self.fault_state(spec.faults);
        match change {
            LinkChange::Fail => fault_state.up = false,
            LinkChange::Restore => (fault_state.up, fault_state.faults) = (true, spec.faults),
            LinkChange::Drop(loss) => fault_state.faults.loss = loss,
            LinkChange::Corrupt(corrupt) => fault_state.faults.corrupt = corrupt,
            LinkChange::Degrade(_) => {}
        }
        self.faulty = !fault_state.up || !fault_state.faults.is_none();
    }

    fn set_rate(&mut self, rate: Rate) {
        (self.rate, self.ps_per_byte) = (rate, ps_per_byte(rate));
    }

    fn fault_state(&mut self, faults: LinkFaults) -> &mut LinkFaultState {
        self.faulty = true;
        self.fault_state.get_or_insert_with(|| Box::new(LinkFaultState { up: true, faults, draws: 0 }))
    }
}

impl Link {
    pub(super) fn new(spec: &LinkSpec, to: Inlet) -> Link {
        Link {
            busy_until: 0,
            latency: spec.latency,
            sent_bytes: 0,
            to,
            condition: Condition::new(spec),
            sampled_bytes: 0,
        }
    }

    /// Something becomes of the link.
    pub(super) fn change(&mut self, spec: &LinkSpec, change: LinkChange) {
        self.condition.change(spec, change);
    }

    /// Puts a packet on the link, which must be free at `now`. If it is lost there, counts it in `dropped`.
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

    /// Bytes sent since this was last asked for.
    pub(super) fn take_sent_bytes(&mut self) -> u64 {
        let before = std::mem::replace(&mut self.sampled_bytes, self.sent_bytes);
        self.sent_bytes - before
    }
}

impl LinkFaultState {
    /// As [`Link::launch`], over a link that is down or misbehaves. False if the packet is lost.
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
        let Some(outcome) = self.draw_outcome(id, seed) else {
            wires.packets.remove(&transit);
            return false;
        };
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

    /// As [`Condition::draw_outcome`].
    #[cold]
    fn draw_outcome(&mut self, id: u32, seed: u64) -> Option<FaultOutcome> {
        let faults = self.faults;
        // A generator for each link and draw: links do not disturb each other.
        self.draws += 1;
        let mut rng = Rng::new(seed ^ u64::from(id) << 32, self.draws);
        if !self.up || rng.chance(faults.loss) {
            return None;
        }
        let corrupt = rng.chance(faults.corrupt);
        let duplicate = rng.chance(faults.duplicate);
        let held_up = if rng.chance(faults.reorder) { rng.below(1 << 16) } else { 0 };
        Some(FaultOutcome {
            corrupt,
            duplicate,
            held_up: faults.delay.mul_f64(f64::from(held_up) / 65_536.0),
        })
    }
}
