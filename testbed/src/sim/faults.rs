//! What goes wrong with links.

use weft_cc::{Rate, Span, Time};

use crate::topology::PortId;

/// How a link treats packets. The probabilities are those of each packet, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct LinkFaults {
    /// It vanishes.
    pub loss: f64,
    /// A bit of it flips, which checksums find.
    pub corrupt: f64,
    /// It arrives twice.
    pub duplicate: f64,
    /// It is held up, by up to `delay`.
    pub reorder: f64,
    /// The longest hold-up.
    pub delay: Span,
}

impl LinkFaults {
    /// Whether nothing can go wrong.
    pub fn is_none(&self) -> bool {
        self.loss <= 0.0 && self.corrupt <= 0.0 && self.duplicate <= 0.0 && self.reorder <= 0.0
    }
}

/// What becomes of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LinkChange {
    /// What is sent over it is lost. Switches do not route around it: that is for the load balancer.
    Fail,
    /// It is as it was at the start of the run, whatever happened to it since.
    Restore,
    /// It slows down (or speeds up) to this rate.
    Degrade(Rate),
    /// It loses each packet with this probability, 0 to 1.
    Drop(f64),
    /// It flips a bit of each packet with this probability, 0 to 1.
    Corrupt(f64),
}

/// A link changes during the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkEvent {
    /// When.
    pub at: Time,
    /// Either port of the link; both directions change.
    pub port: PortId,
    /// What it is from then on.
    pub change: LinkChange,
}

/// A part of a whole, in millionths: above nothing, and at most all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u32);

impl Share {
    /// All.
    pub const WHOLE: Share = Share(1_000_000);

    /// So many millionths, 1 to 1,000,000; `None` for others.
    pub fn from_millionths(millionths: u64) -> Option<Share> {
        let share = u32::try_from(millionths).ok().map(Share)?;
        (share.0 > 0 && share <= Share::WHOLE).then_some(share)
    }

    /// How many millionths.
    pub fn millionths(self) -> u32 {
        self.0
    }

    /// This part of `whole`, rounded down.
    pub fn of(self, whole: u64) -> u64 {
        // At most `whole`.
        (u128::from(whole) * u128::from(self.0) / u128::from(Share::WHOLE.0)) as u64
    }
}

/// A direction of a link that is slow throughout the run, with a queue to match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowPort {
    /// The sending port.
    pub port: PortId,
    /// What is left of its rate, and of the size and the marking thresholds of its queue. The queue
    /// always has room for a packet.
    pub share: Share,
}

/// Everything that goes wrong in a run.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct FaultPlan {
    /// How all links treat packets.
    pub all_links: LinkFaults,
    /// What is slow from the start, and what [`LinkChange::Restore`] makes slow again; of those of one
    /// port the last counts.
    pub slow: Vec<SlowPort>,
    /// Changes, in any order; of those of one link at one time the later in the list counts.
    pub events: Vec<LinkEvent>,
}
