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
pub use registry::{LbChoice, UnknownLb};
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
}

/// A balancer chosen at run time: the built-in ones by enum dispatch, a user's own in a box.
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

    /// Bytes of heap that a built-in balancer holds now, beside its own size. A user's own counts as 0.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Selector::Bitmap(bitmap) => bitmap.heap_bytes(),
            Selector::Mixed(mixed) => mixed.heap_bytes(),
            _ => 0,
        }
    }
}

impl PathSelector for Selector {
    #[inline]
    fn next(&mut self, pkt: &PathContext) -> Entropy {
        match self {
            Selector::Ecmp(s) => s.next(pkt),
            Selector::Oblivious(s) => s.next(pkt),
            Selector::RoundRobin(s) => s.next(pkt),
            Selector::Reps(s) => s.next(pkt),
            Selector::Bitmap(s) => s.next(pkt),
            Selector::Mixed(s) => s.next(pkt),
            Selector::Custom(s) => s.next(pkt),
        }
    }

    #[inline]
    fn feedback(&mut self, now: Time, entropy: Entropy, feedback: PathFeedback) {
        match self {
            Selector::Ecmp(s) => s.feedback(now, entropy, feedback),
            Selector::Oblivious(s) => s.feedback(now, entropy, feedback),
            Selector::RoundRobin(s) => s.feedback(now, entropy, feedback),
            Selector::Reps(s) => s.feedback(now, entropy, feedback),
            Selector::Bitmap(s) => s.feedback(now, entropy, feedback),
            Selector::Mixed(s) => s.feedback(now, entropy, feedback),
            Selector::Custom(s) => s.feedback(now, entropy, feedback),
        }
    }
}

impl fmt::Debug for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Selector::Ecmp(s) => s.fmt(f),
            Selector::Oblivious(s) => s.fmt(f),
            Selector::RoundRobin(s) => s.fmt(f),
            Selector::Reps(s) => s.fmt(f),
            Selector::Bitmap(s) => s.fmt(f),
            Selector::Mixed(s) => s.fmt(f),
            Selector::Custom(_) => f.write_str("Custom"),
        }
    }
}
