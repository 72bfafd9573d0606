//! Load balancing: which entropy value the next packet carries.
//!
//! Switches hash the entropy (over UDP: the source port) together with the addresses, so a different
//! entropy probably takes a different path. A [`PathSelector`] chooses it and learns from feedback.

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
