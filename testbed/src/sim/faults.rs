//! Link faults: probabilities, changes during the run, and links that are slow from the start.

use weft_cc::{Rate, Span, Time};

use crate::topology::PortId;

/// The random faults of a link. Probabilities are per packet, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct LinkFaults {
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Probability that one bit of a packet flips, which checksums detect.
    pub corrupt: f64,
    /// Probability that a packet arrives twice.
    pub duplicate: f64,
    /// Probability that a packet is delayed by up to `delay`, and so possibly overtaken.
    pub reorder: f64,
    /// The longest such delay.
    pub delay: Span,
}

impl LinkFaults {
    /// Whether all probabilities are zero.
    pub fn is_none(&self) -> bool {
        self.loss <= 0.0 && self.corrupt <= 0.0 && self.duplicate <= 0.0 && self.reorder <= 0.0
    }
}

/// A change of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LinkChange {
    /// The link loses all packets. Switches do not route around it: that is left to the load balancer.
    Fail,
    /// The link returns to its state at the start of the run.
    Restore,
    /// The link slows down (or speeds up) to this rate.
    Degrade(Rate),
    /// The link loses each packet with this probability, 0 to 1.
    Drop(f64),
    /// The link flips a bit of each packet with this probability, 0 to 1.
    Corrupt(f64),
}

/// A change of a link at a time during the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkEvent {
    /// Time of the change.
    pub at: Time,
    /// Either port of the link. Both directions change.
    pub port: PortId,
    /// The new state or rate of the link.
    pub change: LinkChange,
}

/// A fraction above 0 and at most 1, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u32);

impl Share {
    /// A share of 1: everything.
    pub const WHOLE: Share = Share(1_000_000);

    /// The fraction of `millionths` millionths, 1 to 1,000,000; `None` outside that range.
    pub fn from_millionths(millionths: u64) -> Option<Share> {
        let share = u32::try_from(millionths).ok().map(Share)?;
        (share.0 > 0 && share <= Share::WHOLE).then_some(share)
    }

    /// The fraction in millionths.
    pub fn millionths(self) -> u32 {
        self.0
    }

    /// This part of `whole`, rounded down.
    pub fn of(self, whole: u64) -> u64 {
        // The result is at most `whole`, so it fits.
        (u128::from(whole) * u128::from(self.0) / u128::from(Share::WHOLE.0)) as u64
    }
}

/// A direction of a link that is slow throughout the run, with a queue to match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowPort {
    /// The sending port.
    pub port: PortId,
    /// The fraction that remains of its rate, and of its queue's size and marking thresholds. The queue
    /// always has room for one packet.
    pub share: Share,
}

/// All faults of a run.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct FaultPlan {
    /// The random faults of every link.
    pub all_links: LinkFaults,
    /// Links that are slow from the start; [`LinkChange::Restore`] makes them as slow again. The last entry
    /// of a port counts.
    pub slow: Vec<SlowPort>,
    /// Changes during the run, in any order. Of several changes of one link at one time, the last in the list
    /// counts.
    pub events: Vec<LinkEvent>,
}
