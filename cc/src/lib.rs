//! Congestion control for weft: arithmetic only.
//!
//! Nothing here knows packets, sockets, clocks or random numbers. A sender's algorithm implements
//! [`SenderCc`], a receiver's credit scheduler [`ReceiverCc`]; time and every measurement come in
//! as arguments. A congestion context may run either, or both: the smaller permission wins.
//!
//! All byte counts include the per-packet overhead that the endpoint is configured with
//! ([`CcParams::overhead`]), so that windows bound what is on the wire.
#![forbid(unsafe_code)]

pub mod constant;
pub mod credit;
mod deadline;
mod dispatch;
pub mod nscc;
pub mod rccc;
pub mod registry;
pub mod settings;
pub mod smartt;
pub mod table;
mod time;
pub mod units;
pub mod unlimited;

pub use dispatch::{ReceiverAlgorithm, SenderAlgorithm};
pub use registry::{CcChoice, CcSetError, PreparedCc};
pub use settings::SettingInfo;
pub use table::UnknownName;
pub use time::{PS_PER_SEC, Rate, Span, Time};

/// What an algorithm is told about its surroundings when it is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CcParams {
    /// Largest payload of a packet, bytes.
    pub mtu: u32,
    /// Bytes that every data packet costs beyond its payload.
    pub overhead: u32,
    /// Rate of the local link.
    pub link_rate: Rate,
    /// Round-trip time of the longest path of the network when idle; the context's own base RTT
    /// starts here and follows the least RTT measured.
    pub network_rtt: Span,
    /// Whether switches trim packets (or drop them).
    pub trimming: bool,
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
    /// Its size, bytes.
    pub bytes: u64,
    /// Bytes in flight of the context, this packet included.
    pub in_flight: u64,
    /// Whether this is not its first transmission.
    pub retransmission: bool,
}

/// An acknowledgement has arrived.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AckSample {
    /// Bytes that the receiver accepted since the last acknowledgement; may be zero.
    pub newly_received: u64,
    /// RTT of the packet that triggered the acknowledgement; none if that packet's timestamp is
    /// ambiguous (retransmitted more than once, or acknowledged before).
    pub rtt: Option<Span>,
    /// Whether that packet arrived with a congestion mark (CE).
    pub ecn: bool,
    /// Bytes in flight of the context, after this acknowledgement.
    pub in_flight: u64,
    /// Packets that the receiver holds beyond the first missing one.
    pub out_of_order: u16,
    /// Switches that the packet passed on its way; none if not known.
    pub hops: Option<u8>,
    /// Time the packet waited in the remote host before it was acknowledged; none if not known.
    pub remote_queueing: Option<Span>,
    /// Time the acknowledgement waited in the local host before it was processed; none if not known.
    pub local_rx_delay: Option<Span>,
    /// The receiver asks for a smaller window: the share of `newly_received` to keep, in 1/127.
    /// `None` asks for nothing. (UET: `rcv_cwnd_pend`.)
    pub receiver_window: Option<u8>,
}

/// How a negative acknowledgement came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NackCause {
    /// A switch inside the fabric trimmed the packet.
    Trimmed,
    /// The switch before the receiver trimmed the packet: the receiver's link is the bottleneck.
    TrimmedLastHop,
    /// The sender concluded from later acknowledgements that the packet is lost.
    InferredLoss,
}

/// A packet is known not to have arrived.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NackSample {
    /// Its size, bytes.
    pub bytes: u64,
    /// Why it did not arrive.
    pub cause: NackCause,
    /// Whether the trimmed packet carried a congestion mark.
    pub ecn: bool,
    /// Time from sending the packet to this news; none if ambiguous.
    pub rtt: Option<Span>,
    /// Bytes in flight of the context, without this packet.
    pub in_flight: u64,
}

/// The retransmission timer has expired for a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossSample {
    /// Its size, bytes.
    pub bytes: u64,
    /// Bytes in flight of the context, without this packet.
    pub in_flight: u64,
    /// Expiries in a row without an acknowledgement, this one included (1, 2, …).
    pub consecutive: u32,
}

/// How many bytes an algorithm allows in flight. May be less than a packet: a packet may then leave
/// when nothing is in flight, at the time that [`SenderCc::next_departure`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Window(pub u64);

impl Window {
    /// No limit.
    pub const UNLIMITED: Window = Window(u64::MAX);
}

/// An algorithm's state for traces and progress displays.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct CcSnapshot {
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// The least RTT seen.
    pub base_rtt: Span,
    /// The delay or RTT that the algorithm steers towards; zero if it has none.
    pub target: Span,
    /// Its smoothed measure of delay; zero if it has none.
    pub delay: Span,
    /// What it is doing, in a word of its own.
    pub phase: &'static str,
}

/// What a sender's algorithm sees and says. One instance serves one congestion context: a pair of
/// endpoints and a traffic class.
pub trait SenderCc {
    /// A packet has left. Call after adding it to the bytes in flight.
    fn on_send(&mut self, now: Time, pkt: &SentPacket) {
        let _ = (now, pkt);
    }
    /// An acknowledgement has arrived.
    fn on_ack(&mut self, now: Time, ack: &AckSample);
    /// A packet was trimmed, or is inferred lost.
    fn on_nack(&mut self, now: Time, nack: &NackSample);
    /// The retransmission timer has expired.
    fn on_timeout(&mut self, now: Time, lost: &LossSample);
    /// Bytes allowed in flight. Ask again after every call that takes `&mut self`.
    fn window(&self) -> Window;
    /// When the next packet may leave; `None` means at once, as far as the window allows.
    fn next_departure(&self) -> Option<Time> {
        None
    }
    /// The state, for people.
    fn snapshot(&self) -> CcSnapshot;
}

/// One sender, as a receiver's scheduler names it. Chosen by the caller; small and dense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SenderId(pub u32);

/// A data packet has arrived at the receiver.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DataSample {
    /// Its size, bytes. For a trimmed packet the size that it had.
    pub bytes: u64,
    /// Whether the sender had credit for it.
    pub scheduled: bool,
    /// Whether it arrived with a congestion mark.
    pub ecn: bool,
    /// Whether its payload was trimmed.
    pub trimmed: bool,
    /// Whether its sender reports that it holds more credit than it can use (SIRD's csn bit).
    pub congested_sender: bool,
}

/// Permission for a sender to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// Who may send.
    pub sender: SenderId,
    /// How many bytes more.
    pub bytes: u64,
}

/// What a receiver's scheduler sees and says. One instance serves all senders of one endpoint.
pub trait ReceiverCc {
    /// `sender` wants to send `bytes` more than it has credit for. Replaces its last demand.
    fn on_demand(&mut self, now: Time, sender: SenderId, bytes: u64);
    /// A data packet, whole or trimmed, has arrived.
    fn on_data(&mut self, now: Time, sender: SenderId, data: &DataSample);
    /// `sender` is gone: forget its demand and take its credit back.
    fn on_leave(&mut self, now: Time, sender: SenderId);
    /// The next credit to grant, if one is due. Call until it yields `None`, after every other
    /// verb and at [`ReceiverCc::poll_timeout`].
    fn poll_credit(&mut self, now: Time) -> Option<Credit>;
    /// When [`ReceiverCc::poll_credit`] will have something to grant; `None` if it waits for a call of another verb.
    fn poll_timeout(&self) -> Option<Time>;
    /// Credit granted to `sender` that has not come back as data, bytes.
    fn outstanding(&self, sender: SenderId) -> u64;
}
