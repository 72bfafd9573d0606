//! Load balancing: which entropy value the next packet carries.
//!
//! Switches hash the entropy (over UDP: the source port) together with the addresses, so a different
//! entropy probably takes a different path. A [`PathSelector`] chooses it and learns from feedback.

#![forbid(unsafe_code)]

pub mod bitmap;
pub mod ecmp;
pub mod mixed;
pub mod oblivious;
pub mod registry;
pub mod reps;
mod round;
pub mod round_robin;

pub use bitmap::Bitmap;
pub use ecmp::Ecmp;
pub use mixed::Mixed;
pub use oblivious::Oblivious;
pub use registry::LbChoice;
pub use reps::Reps;
pub use round_robin::RoundRobin;

use core::fmt;
use weft_cc::Time;

/// An entropy value: an index below the number of paths that the selector was made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Entropy(pub u16);

/// What is known about the packet that asks for an entropy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathContext {
    /// When it leaves.
    pub now: Time,
    /// Packets that the context has sent before this one.
    pub sent: u64,
    /// The congestion window in whole packets.
    pub window_packets: u32,
    /// Whether it is a retransmission.
    pub retransmission: bool,
}

/// What happened to a packet that carried an entropy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathFeedback {
    /// It arrived without a congestion mark, or was trimmed at the last hop without one: the path is not to blame.
    Good,
    /// It arrived with a congestion mark.
    Ecn,
    /// It was trimmed inside the fabric, or is inferred lost.
    Nack,
    /// Its retransmission timer expired.
    Timeout,
}

/// Chooses entropies for one congestion context.
pub trait PathSelector {
    /// The entropy of the next packet.
    fn next(&mut self, pkt: &PathContext) -> Entropy;
    /// What happened to a packet sent with `entropy`.
    fn feedback(&mut self, now: Time, entropy: Entropy, feedback: PathFeedback);
    /// Bytes of heap that it holds now, beside its own size. For reports of memory use.
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// A balancer chosen at run time: the built-in ones by enum dispatch, a user's own in a box. A new one gets
/// an arm here and a line in the macro below.
pub enum Selector {
    /// One entropy for ever.
    Ecmp(Ecmp),
    /// Even spraying.
    Oblivious(Oblivious),
    /// The entropies in order.
    RoundRobin(RoundRobin),
    /// Recycled entropies, with freezing.
    Reps(Reps),
    /// Even spraying around penalised entropies.
    Bitmap(Bitmap),
    /// Recycled entropies, else as the bitmap.
    Mixed(Mixed),
    /// A user's own.
    Custom(Box<dyn PathSelector + Send>),
}

impl Selector {
    /// Whether it looks at [`PathContext::window_packets`]: no built-in one does.
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
