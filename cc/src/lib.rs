//! Congestion control for weft: arithmetic only.
//!
//! Nothing in this crate handles packets or sockets, reads a clock or draws random numbers. A sender's
//! algorithm implements [`SenderCc`], a receiver's credit scheduler implements [`ReceiverCc`]; time and all
//! measurements are arguments. A congestion context may run either or both: the smaller permission wins.
//!
//! - [`registry`] chooses algorithms by name, [`grammar`] puts names together; [`table`] and [`settings`](mod@settings) are what such
//!   tables are made of.
//! - [`nscc`], [`smartt`], [`dctcp`], [`swift`], [`constant`] and [`unlimited`] are senders' algorithms, [`rccc`] is a receiver's;
//!   [`median`] filters what a sender sees.
//! - [`credit`] is the arithmetic of credit on the wire.
//! - [`units`] is the grammar of rates, times and sizes.
//!
//! All byte counts include the per-packet overhead that the endpoint is configured with
//! ([`CcParams::overhead`]), so that a window limits the bytes on the wire.
#![forbid(unsafe_code)]

pub mod constant;
pub mod constant_rate;
pub mod credit;
pub mod dctcp;
mod deadline;
mod dispatch;
pub mod grammar;
pub mod median;
pub mod nscc;
pub mod rccc;
pub mod registry;
pub mod settings;
pub mod smartt;
pub mod swift;
pub mod table;
mod time;
pub mod units;
pub mod unlimited;

pub use dispatch::{ReceiverAlgorithm, SenderAlgorithm};
pub use grammar::CcNameError;
pub use registry::{CcChoice, Needs, PreparedCc};
pub use settings::SettingInfo;
pub use table::{SetError, UnknownName};
pub use time::{PS_PER_SEC, Rate, Span, Time};

/// The network and the endpoint, as an algorithm sees them when it is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CcParams {
    /// Largest payload of a packet, bytes.
    pub mtu: u32,
    /// Bytes on the wire of a data packet beyond its payload.
    pub overhead: u32,
    /// Rate of the local link.
    pub link_rate: Rate,
    /// Round-trip time of the longest path when the network is idle. The base RTT of a context starts with
    /// this value and follows the least RTT measured.
    pub network_rtt: Span,
    /// Whether switches trim packets that they have no room for; otherwise they drop them.
    pub trimming: bool,
    /// Which delays of the network and its hosts are known beforehand.
    pub delays: Delays,
}

/// Which delays are known before they are measured. Algorithms with targets of delay keep to targets that are relative to
/// what is known; what is not known they measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Delays {
    /// [`CcParams::network_rtt`], and hosts process packets when they arrive, as in simulations.
    #[default]
    Known,
    /// [`CcParams::network_rtt`]; but hosts share their processors with others, and packets wait in them.
    HostsUnknown,
    /// Neither: `network_rtt` is a guess.
    Unknown,
}

impl CcParams {
    /// Bytes on the wire of a full packet.
    pub fn wire_mtu(&self) -> u64 {
        u64::from(self.mtu) + u64::from(self.overhead)
    }

    /// Bandwidth-delay product of the network, bytes.
    pub fn network_bdp(&self) -> u64 {
        self.link_rate.bytes_in(self.network_rtt)
    }
}

/// A data packet has just left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SentPacket {
    /// Size of the packet, bytes.
    pub bytes: u64,
    /// Bytes in flight of the context, including this packet.
    pub in_flight: u64,
    /// Whether the packet was sent before.
    pub retransmission: bool,
    /// Whether the application limits the sender: nothing more waits to be sent, and the window has room for another
    /// packet. Until that changes, deliveries say little about the path.
    pub app_limited: bool,
}

/// An acknowledgement has arrived.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AckSample {
    /// Bytes that the receiver has accepted since the last acknowledgement; may be zero. A PDC's packets under way are
    /// never as many as 32 bits can say.
    pub newly_received: u32,
    /// Size of the packet that triggered the acknowledgement, which `rtt` and `ecn` are about, bytes. Zero if no packet
    /// did, or if it was known to have arrived.
    pub trigger_bytes: u32,
    /// RTT of that packet, less its [time in hosts](HostReport); none if it is ambiguous, because the packet was
    /// retransmitted or had been acknowledged before.
    pub rtt: Option<Span>,
    /// Whether that packet arrived with a congestion mark (CE).
    pub ecn: bool,
    /// Bytes in flight of the context after this acknowledgement.
    pub in_flight: u64,
    /// Packets that the receiver holds beyond the first missing one.
    pub out_of_order: u16,
    /// What the two hosts add to that; none if they measure no time and the receiver requests nothing, as is usual.
    pub hosts: Option<HostReport>,
}

/// What the two hosts of an acknowledged packet have to say about themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HostReport {
    /// Time from the arrival of the packet at the remote host to its acknowledgement; zero if unknown.
    pub remote_queueing: Span,
    /// Time from the arrival of the acknowledgement at the local host to its processing; zero if unknown.
    pub local_rx_delay: Span,
    /// The receiver's request to send less, because the host itself cannot keep up.
    pub flow_control: FlowControl,
}

impl HostReport {
    /// This report, or none if it says nothing.
    #[inline]
    pub fn if_any(self) -> Option<HostReport> {
        (self != HostReport::default()).then_some(self)
    }

    /// Time that the packet and its acknowledgement waited in the hosts, as far as their ports measure it.
    #[inline]
    pub fn delay(&self) -> Span {
        self.remote_queueing.plus(self.local_rx_delay)
    }
}

/// A receiver's request concerning the window of its sender (destination flow control, UET §3.6.13.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FlowControl {
    /// No request (`rcv_cwnd_pend` = 0).
    #[default]
    Off,
    /// The window becomes the bytes in flight, less this share of the newly received bytes, in 1/128
    /// (`rcv_cwnd_pend`, 1 to 127): 64 in all acknowledgements of an RTT halves the window, 127 leaves one packet.
    Penalty(u8),
    /// The penalty is over (`rcv_cwnd_pend` = 0 with `rc`): the window may be again what it was before.
    Restore,
}

impl FlowControl {
    /// Whether the receiver holds the window down.
    #[inline]
    pub fn is_penalty(self) -> bool {
        matches!(self, FlowControl::Penalty(_))
    }
}

/// The reason for which a packet counts as not received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NackCause {
    /// A switch inside the fabric trimmed the packet.
    Trimmed,
    /// The last switch before the receiver trimmed the packet: the receiver's link is the bottleneck.
    TrimmedLastHop,
    /// The sender inferred the loss from later acknowledgements.
    InferredLoss,
}

/// A packet was trimmed or is inferred to be lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NackSample {
    /// Size of the packet, bytes.
    pub bytes: u64,
    /// The reason for which it counts as not received.
    pub cause: NackCause,
    /// Whether the trimmed packet carried a congestion mark.
    pub ecn: bool,
    /// Time from the transmission of the packet to this notification; none if ambiguous.
    pub rtt: Option<Span>,
    /// Bytes in flight of the context, not including this packet.
    pub in_flight: u64,
}

/// The retransmission timer of a PDC has expired.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossSample {
    /// Size of all its packets that have expired, bytes.
    pub bytes: u64,
    /// Bytes in flight of the context, not including these packets.
    pub in_flight: u64,
    /// Number of rounds of expiries without an acknowledgement in between, including this one (1, 2, …). PDCs of one
    /// context whose timers expire in the same round have the same number.
    pub expiries: u32,
}

/// The bytes that an algorithm allows in flight. The window may be smaller than a packet: a packet may then
/// leave when nothing is in flight, at the time given by [`SenderCc::next_departure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Window(pub u64);

impl Window {
    /// A window without a limit.
    pub const UNLIMITED: Window = Window(u64::MAX);
}

/// The state of an algorithm for traces and progress displays.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct CcSnapshot {
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// The least RTT measured.
    pub base_rtt: Span,
    /// The delay or RTT that the algorithm steers towards; zero if it has no target.
    pub target: Span,
    /// The smoothed delay or RTT; zero if the algorithm does not average.
    pub delay: Span,
    /// The phase that the algorithm is in; the words are its own.
    pub phase: &'static str,
}

/// A sender's algorithm. One instance serves one congestion context.
pub trait SenderCc {
    /// A packet has left. Call this after it has been added to the bytes in flight.
    fn on_send(&mut self, now: Time, pkt: &SentPacket) {
        let _ = (now, pkt);
    }
    /// A packet has passed `hops` switches, and the acknowledgement that says so is about to be reported. Only for
    /// algorithms that [need](registry::Needs::hops) it.
    fn on_hops(&mut self, hops: u8) {
        let _ = hops;
    }
    /// An acknowledgement has arrived.
    fn on_ack(&mut self, now: Time, ack: &AckSample);
    /// A packet was trimmed or is inferred to be lost.
    fn on_nack(&mut self, now: Time, nack: &NackSample);
    /// The retransmission timer of a PDC has expired.
    fn on_timeout(&mut self, now: Time, lost: &LossSample);
    /// Bytes allowed in flight. Every call that takes `&mut self` may change them.
    fn window(&self) -> Window;
    /// The RTT that the algorithm expects while the network is no more congested than it permits: the base RTT and the
    /// queueing delay that it steers towards, or the base RTT alone if it has no such target. The protocol judges by it
    /// how long an answer may take; the [snapshot](SenderCc::snapshot) is for people only.
    fn expected_rtt(&self) -> Span;
    /// The time at which the next packet may leave; none if it may leave as soon as the window allows.
    fn next_departure(&self) -> Option<Time> {
        None
    }
    /// The state, for traces and displays. Its words and figures are the algorithm's own.
    fn snapshot(&self) -> CcSnapshot;
}

/// The number of a sender at a receiver's scheduler. The caller assigns numbers densely from 0, because the
/// scheduler indexes by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SenderId(pub u32);

/// The number of a peer, which may be several senders, at a receiver's scheduler. The caller assigns numbers densely from 0,
/// and gives that of a peer without senders to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// Where a switch has trimmed a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trim {
    /// Inside the fabric, or at a last hop that does not say so.
    InFabric,
    /// At the last switch before the receiver: the receiver's own link is the bottleneck.
    LastHop,
}

/// A data packet has arrived at the receiver.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DataSample {
    /// Size of the packet, bytes. For a trimmed packet the size before trimming.
    pub bytes: u64,
    /// Whether the sender had credit for the packet.
    pub scheduled: bool,
    /// Whether the packet arrived with a congestion mark.
    pub ecn: bool,
    /// Where the payload was trimmed; none if the packet is whole.
    pub trimmed: Option<Trim>,
    /// Whether the sender reports that it holds more credit than it can use (SIRD's csn bit).
    pub congested_sender: bool,
}

/// Permission for a sender to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// The sender that receives the credit.
    pub sender: SenderId,
    /// Additional bytes that it may send.
    pub bytes: u64,
}

/// A receiver's credit scheduler. One instance serves all senders of one endpoint.
pub trait ReceiverCc {
    /// `sender`, of which nothing has been said before or since it left, is one of the senders that `peer` is. A scheduler
    /// may share credit among peers first, so that one does not get more of it by being more senders.
    fn on_join(&mut self, now: Time, sender: SenderId, peer: PeerId) {
        let _ = (now, sender, peer);
    }
    /// `sender` wants to send `bytes` more than it has credit for. This replaces its previous demand.
    fn on_demand(&mut self, now: Time, sender: SenderId, bytes: u64);
    /// A data packet has arrived, whole or trimmed.
    fn on_data(&mut self, now: Time, sender: SenderId, data: &DataSample);
    /// `sender` is gone: its demand and its outstanding credit are dropped.
    fn on_leave(&mut self, now: Time, sender: SenderId);
    /// The next credit to grant, if one is due. Call this until it returns none, after every call of another
    /// verb and at the time given by [`ReceiverCc::poll_timeout`].
    fn poll_credit(&mut self, now: Time) -> Option<Credit>;
    /// The time at which [`ReceiverCc::poll_credit`] will have credit to grant; none if that depends on a call of
    /// another verb.
    fn poll_timeout(&self) -> Option<Time>;
    /// Credit granted to `sender` for which no data has arrived yet, bytes.
    fn outstanding(&self, sender: SenderId) -> u64;
}
