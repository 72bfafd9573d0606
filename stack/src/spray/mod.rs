//! Load balancing: the choice of the entropy value that the next packet carries.
//!
//! Switches hash the entropy (over UDP: the source port) together with the addresses, so a different
//! entropy probably takes a different path. A [`PathSelector`] chooses the entropy and learns from feedback.

#![forbid(unsafe_code)]

pub mod bitmap;
pub mod ecmp;
pub mod mixed;
pub mod oblivious;
pub mod plb;
pub mod random;
pub mod registry;
pub mod reps;
mod round;
pub mod round_robin;

pub use bitmap::Bitmap;
pub use ecmp::Ecmp;
pub use mixed::Mixed;
pub use oblivious::Oblivious;
pub use plb::Plb;
pub use random::Random;
pub use registry::{LbChoice, SelectorInput};
pub use reps::Reps;
pub use round_robin::RoundRobin;

use core::fmt;
use weft_cc::Time;

/// An entropy value: an index below the number of paths of its selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Entropy(pub u16);

/// The packet that needs an entropy, as selectors see it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathContext {
    /// The time at which the packet leaves.
    pub now: Time,
    /// Packets that the context has sent before this one.
    pub sent: u64,
    /// The congestion window in whole packets.
    pub window_packets: u32,
    /// Whether the packet is a retransmission.
    pub retransmission: bool,
}

/// The fate of a packet, as feedback about its entropy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathFeedback {
    /// The packet arrived without a congestion mark. A packet that was trimmed at the last hop without a mark counts
    /// as good too, because its path is not to blame.
    Good,
    /// The packet arrived with a congestion mark.
    Ecn,
    /// The packet was trimmed inside the fabric, or is inferred to be lost.
    Nack,
    /// The retransmission timer of the packet expired.
    Timeout,
}

/// Chooses entropies for one congestion context.
pub trait PathSelector {
    /// The entropy of the next packet.
    fn next(&mut self, pkt: &PathContext) -> Entropy;
    /// Learns the fate of a packet that was sent with `entropy`.
    fn feedback(&mut self, now: Time, entropy: Entropy, feedback: PathFeedback);
    /// Bytes of heap that the selector holds now, for reports of memory use.
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// A balancer chosen at run time: the built-in ones by enum dispatch, a user's own in a box. A new one gets
/// an arm here and a line in the macro below.
pub enum Selector {
    /// One entropy for the whole connection.
    Ecmp(Ecmp),
    /// Even spraying.
    Oblivious(Oblivious),
    /// Random spraying.
    Random(Random),
    /// One entropy until its path is congested.
    Plb(Box<Plb>),
    /// The entropies in order.
    RoundRobin(RoundRobin),
    /// Recycled entropies, with freezing.
    Reps(Reps),
    /// Even spraying around penalised entropies.
    Bitmap(Bitmap),
    /// Recycled entropies; the bitmap when there are none.
    Mixed(Mixed),
    /// A user's own.
    Custom(Box<dyn PathSelector + Send>),
}

impl Selector {
    /// Whether the balancer may read [`PathContext::window_packets`]. No built-in one does.
    #[inline]
    pub fn wants_window(&self) -> bool {
        matches!(self, Selector::Custom(_))
    }
}

/// Calls the balancer behind a [`Selector`]; with a second call, that one if it is a user's own.
macro_rules! each_selector {
    ($self:expr, $lb:ident => $call:expr) => {
        each_selector!($self, $lb => $call, $lb => $call)
    };
    ($self:expr, $lb:ident => $call:expr, $own:ident => $call_own:expr) => {
        match $self {
            Selector::Ecmp($lb) => $call,
            Selector::Oblivious($lb) => $call,
            Selector::Random($lb) => $call,
            Selector::Plb($lb) => $call,
            Selector::RoundRobin($lb) => $call,
            Selector::Reps($lb) => $call,
            Selector::Bitmap($lb) => $call,
            Selector::Mixed($lb) => $call,
            Selector::Custom($own) => $call_own,
        }
    };
}

impl PathSelector for Selector {
    #[inline]
    fn next(&mut self, pkt: &PathContext) -> Entropy {
        each_selector!(self, lb => lb.next(pkt))
    }

    #[inline]
    fn feedback(&mut self, now: Time, entropy: Entropy, feedback: PathFeedback) {
        each_selector!(self, lb => lb.feedback(now, entropy, feedback))
    }

    fn heap_bytes(&self) -> usize {
        each_selector!(self, lb => lb.heap_bytes())
    }
}

impl fmt::Debug for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        each_selector!(self, lb => lb.fmt(f), _own => f.write_str("Custom"))
    }
}
