//! The sending end of a link: how long packets take, and what the link does to them.

use weft_cc::{PS_PER_SEC, Rate};
use weft_stack::rng::Rng;

use super::faults::{LinkChange, LinkFaults};
use super::packets::Transit;
use super::wires::{Inlet, Wires};
use crate::switch::Queued;

/// The sending end of a link.
pub(super) struct Link {
    /// When the last packet's last bit leaves.
    pub(super) busy_until: u64,
    /// Time from the last bit's departure to the arrival in the peer's queue.
    latency: u64,
    rate: LinkRate,
    to: Inlet,
    /// Whether packets may come to harm: [`Trouble`] tells how.
    troubled: bool,
    trouble: Option<Box<Trouble>>,
    /// Bytes sent, and how many of them the last sample had seen.
    sent_bytes: u64,
    sampled_bytes: u64,
}

/// What does not go well with a link, or did not.
struct Trouble {
    up: bool,
    faults: LinkFaults,
    /// Draws of chance so far.
    draws: u64,
}

/// What is fixed about a link, and needed when something happens to it.
#[derive(Clone, Copy)]
pub(super) struct LinkSpec {
    /// The sending port.
    pub(super) id: u32,
    pub(super) rate: Rate,
    /// Propagation, and the time that the peer takes to switch.
    pub(super) latency: u64,
    pub(super) faults: LinkFaults,
}

/// How long bytes take.
#[derive(Clone, Copy)]
enum LinkRate {
    /// So many picoseconds for each byte, exactly, as at 100 Gbit/s.
    PerByte(u64),
    /// Not a whole number of them.
    Other(Rate),
}

impl LinkRate {
    fn new(rate: Rate) -> LinkRate {
        match rate.as_bps() {
            bps if bps > 0 && (8 * PS_PER_SEC).is_multiple_of(bps) => LinkRate::PerByte(8 * PS_PER_SEC / bps),
            _ => LinkRate::Other(rate),
        }
    }

    #[inline]
    fn time_for(self, bytes: u32) -> u64 {
        match self {
            LinkRate::PerByte(ps) => ps * u64::from(bytes),
            LinkRate::Other(rate) => rate.time_for(u64::from(bytes)).as_ps(),
        }
    }
}

impl Link {
    pub(super) fn new(spec: &LinkSpec, to: Inlet) -> Link {
        let mut link = Link {
            busy_until: 0,
            latency: spec.latency,
            rate: LinkRate::new(spec.rate),
            to,
            troubled: false,
            trouble: None,
            sent_bytes: 0,
            sampled_bytes: 0,
        };
        if !spec.faults.is_none() {
            link.trouble(spec.faults);
        }
        link
    }

    /// Something becomes of the link.
    pub(super) fn change(&mut self, spec: &LinkSpec, change: LinkChange) {
        match change {
            LinkChange::Degrade(rate) => return self.rate = LinkRate::new(rate),
            LinkChange::Restore => self.rate = LinkRate::new(spec.rate),
            LinkChange::Fail | LinkChange::Drop(_) | LinkChange::Corrupt(_) => {}
        }
        let trouble = self.trouble(spec.faults);
        match change {
            LinkChange::Fail => trouble.up = false,
            LinkChange::Restore => (trouble.up, trouble.faults) = (true, spec.faults),
            LinkChange::Drop(loss) => trouble.faults.loss = loss,
            LinkChange::Corrupt(corrupt) => trouble.faults.corrupt = corrupt,
            LinkChange::Degrade(_) => {}
        }
        self.troubled = !trouble.up || !trouble.faults.is_none();
    }

    fn trouble(&mut self, faults: LinkFaults) -> &mut Trouble {
        self.troubled = true;
        self.trouble.get_or_insert_with(|| Box::new(Trouble { up: true, faults, draws: 0 }))
    }

    /// Puts a packet on the link, which must be free at `now`. False if it is lost.
    #[inline(always)]
    pub(super) fn launch(
        &mut self,
        now: u64,
        id: u32,
        seed: u64,
        transit: &Transit,
        wires: &mut Wires,
    ) -> bool {
        self.busy_until = now + self.rate.time_for(transit.size());
        self.sent_bytes += u64::from(transit.size());
        let at = self.busy_until + self.latency;
        if self.troubled
            && let Some(trouble) = &mut self.trouble
        {
            return trouble.launch(self.to, at, id, seed, *transit, wires);
        }
        wires.send(self.to, at, transit);
        true
    }

    /// Bytes sent since this was last asked for.
    pub(super) fn take_sent_bytes(&mut self) -> u64 {
        let before = std::mem::replace(&mut self.sampled_bytes, self.sent_bytes);
        self.sent_bytes - before
    }
}

impl Trouble {
    /// As [`Link::launch`], over a link that is down or misbehaves.
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
        let faults = self.faults;
        // A generator for each link and draw: links do not disturb each other.
        self.draws += 1;
        let mut rng = Rng::new(seed ^ u64::from(id) << 32, self.draws);
        if !self.up || rng.chance(faults.loss) {
            wires.packets.remove(&transit);
            return false;
        }
        if rng.chance(faults.corrupt) {
            transit.corrupt();
        }
        if rng.chance(faults.duplicate) {
            wires.packets.copied(&transit);
            wires.send(to, at, &transit);
        }
        let held_up = if rng.chance(faults.reorder) { rng.below(1 << 16) } else { 0 };
        let extra = faults.delay.mul_f64(f64::from(held_up) / 65_536.0);
        wires.send(to, at + extra.as_ps(), &transit);
        true
    }
}
