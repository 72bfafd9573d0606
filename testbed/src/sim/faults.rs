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
    /// It is as the topology has it again, whatever happened to it before.
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

/// Everything that goes wrong in a run.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct FaultPlan {
    /// How all links treat packets.
    pub all_links: LinkFaults,
    /// Changes, in any order; of those of one link at one time the later in the list counts.
    pub events: Vec<LinkEvent>,
}
