//! What goes wrong with links.

use weft_cc::{Span, Time};

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

/// Whether a link carries anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// It does.
    Up,
    /// What is sent over it is lost. Switches do not route around it: that is for the load balancer.
    Down,
}

/// A link fails or heals during the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkEvent {
    /// When.
    pub at: Time,
    /// Either port of the link.
    pub port: PortId,
    /// What it is from then on, in both directions.
    pub state: LinkState,
}

/// Everything that goes wrong in a run.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct FaultPlan {
    /// How all links treat packets.
    pub all_links: LinkFaults,
    /// Failures and repairs.
    pub events: Vec<LinkEvent>,
}
