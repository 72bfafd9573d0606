//! Swift: windows that keep the delay of the fabric, and that of the hosts, at their targets; and LSwift.
//!
//! Sources: Kumar et al., "Swift: Delay is Simple and Effective for Congestion Control in the Datacenter", SIGCOMM 2020
//! (Algorithm 1, §3); for `lswift` MSwift, which takes it as its baseline. Choices where the papers are open, or cannot be
//! followed to the letter:
//! - Algorithm 1 notes the time of a decrease where the window is not greater than before (line 27). Then each ACK over the
//!   target would put off the next decrease by an RTT. Here the window must be smaller.
//! - A window is measured in packets and has a fraction. ACKs count the packets that their bytes make up.
//! - An ACK without an unambiguous RTT changes nothing.
//! - The RTT that has to pass between two decreases is that of the last ACK. htsim's Swift program takes the smoothed RTT.
//! - The paper has no numbers for targets that follow the network. `base_target` is 1.25 RTTs of the idle network and
//!   `fs_range` one, unless they are set; the target does not grow with the path unless `per_hop` is set. The network's RTT
//!   is that of its longest path.
//! - A hole in what the receiver holds counts as a loss ("Fast Recovery") once three packets have arrived beyond it, as in
//!   TCP, and then not again until what was in flight has been received. LSwift ignores holes.
//! - A trimmed packet and an inferred loss are losses. A trimmed one says nothing of hosts, so only the window of the fabric
//!   shrinks. LSwift acts on the fifth loss within an RTT: Lazy TCP waits for successive delayed packets, and a sprayed
//!   flow has no order in which they could be successive.
//! - The hosts' delay is averaged over ACKs, but not while windows are below one packet. ACKs are then RTTs apart: the average
//!   would remember one long delay, such as that of a host whose processor the system took away, for the whole time in which
//!   it shrinks the window further, down to the smallest.
//! - `RETX_RESET_THRESHOLD` counts rounds of expiries, not packets.
//! - Where nobody has said what delays the network or its hosts have ([`Delays`]), their targets are at least what is
//!   measured while nothing of the flow queues (`attainable`), and windows are not below one packet. The paper's
//!   targets are those of networks and hosts that somebody knows. One that cannot be met, such as 100 µs in a host whose
//!   system takes the processor away for milliseconds, would shrink the window to a thousandth of a packet.
//! - The endpoint does not apply the gaps of windows below one packet to a packet whose timer has expired, and shortens
//!   those that come near the time after which it gives a connection up.

mod attainable;
mod target;

use std::sync::Arc;

use crate::deadline::elapsed_ps;
use crate::settings::{FACTOR, SHARE, SIZE, TIME, settings};
use crate::{
    AckSample, CcParams, CcSnapshot, Delays, LossSample, NackCause, NackSample, SenderCc, SentPacket, Span,
    Time, Window,
};
use attainable::Attainable;
use target::Target;

/// The largest window, bytes: byte counters have 32 bits.
const LARGEST_WINDOW: f64 = ((1_u64 << 31) - 1) as f64;
/// Packets beyond a hole that make it a loss.
const REORDERING: u16 = 3;

/// Declares the configuration of one variant, which acts on loss number `$losses` within an RTT.
macro_rules! config {
    ($(#[$doc:meta])* $name:ident, $losses:literal) => {
        settings! {
            $(#[$doc])*
            pub struct $name {
                ai: f64 = 1.0, in FACTOR, "additive increase of a window per RTT, packets";
                beta: f64 = 0.8, in FACTOR, "gain of the multiplicative decrease";
                max_mdf: f64 = 0.5, in SHARE, "largest share that one decrease takes off a window";
                base_target: Option<Span> = None, in TIME, "target of the fabric's delay before it is scaled",
                    or "1.25 RTTs of the network";
                per_hop: Option<Span> = None, in TIME, "what each switch on the way adds to the target", or "nothing";
                flow_scaling: bool = true, in .., "whether the target grows as the window shrinks";
                fs_range: Option<Span> = None, in TIME, "the most that a small window adds to the target",
                    or "one RTT of the network";
                fs_min_cwnd: f64 = 0.1, in PACKETS, "window of the largest target, packets";
                fs_max_cwnd: f64 = 100.0, in PACKETS, "window above which the target is not scaled, packets";
                endpoint_window: bool = true, in .., "whether the hosts' delay has a target and a window of its own, or counts as delay of the fabric";
                endpoint_target: Option<Span> = None, in TIME, "target of the hosts' delay", or "100 µs";
                endpoint_gain: f64 = 0.125, in SHARE, "gain of the average of the hosts' delay";
                retx_reset_threshold: u32 = 5, in 1..=1000,
                    "rounds of expired timers in a row that reduce the window to the smallest";
                losses: u32 = $losses, in 1..=1000, "losses within an RTT that reduce a window";
                min_cwnd: Option<f64> = None, in 0.001..=1.0, "smallest window, packets",
                    or "0.001, or 1 if the network's RTT is not known";
                max_window: Option<u64> = None, in SIZE, "largest window, bytes",
                    or "what the link carries in twice the largest target";
                initial_window: Option<u64> = None, in SIZE, "first window, bytes", or "one BDP of the network";
            }
        }

        impl $name {
            /// Derives the constants for one endpoint.
            pub fn shared(&self, params: &CcParams, variant: Variant) -> SwiftShared {
                let packet = (params.wire_mtu() as f64).clamp(1.0, LARGEST_WINDOW);
                let base = self.base_target.unwrap_or(params.network_rtt.mul_f64(1.25));
                let range = self.fs_range.unwrap_or(params.network_rtt);
                let longest = params.link_rate.bytes_in(base.plus(range).mul_f64(2.0));
                let initial = self.initial_window.unwrap_or(params.network_bdp());
                let most = (self.max_window.unwrap_or(longest) as f64).min(LARGEST_WINDOW) / packet;
                let knows_rtt = params.delays != Delays::Unknown;
                let knows_hosts = params.delays == Delays::Known;
                let smallest = if knows_rtt { 0.001 } else { 1.0 };
                let scaling = self.flow_scaling.then_some((range, self.fs_min_cwnd, self.fs_max_cwnd));
                SwiftShared {
                    ai: self.ai,
                    beta: self.beta,
                    least_factor: 1.0 - self.max_mdf,
                    base_target: base,
                    target: Target::new(self.per_hop.unwrap_or(Span::ZERO), scaling),
                    endpoint_window: self.endpoint_window,
                    endpoint_target: self.endpoint_target.unwrap_or(Span::from_us(100)),
                    measures: !(knows_rtt && knows_hosts),
                    measures_fabric: self.base_target.is_none() && !knows_rtt,
                    measures_hosts: self.endpoint_target.is_none() && !knows_hosts,
                    endpoint_gain: self.endpoint_gain,
                    retx_reset_threshold: self.retx_reset_threshold,
                    losses: self.losses,
                    holes_are_losses: variant == Variant::Swift,
                    // A byte at least.
                    least: self.min_cwnd.unwrap_or(smallest).max(1.0 / packet),
                    most: most.max(1.0),
                    initial: initial as f64 / packet,
                    packet,
                    network_rtt: params.network_rtt,
                }
            }
        }
    };
}

/// A window in packets.
const PACKETS: std::ops::RangeInclusive<f64> = 1e-3..=1e6;

config! {
    /// The settings of `swift`. The defaults are those of the paper, and where it has none, of public simulators.
    SwiftConfig, 1
}

config! {
    /// The settings of `lswift`: those of `swift`, but for its patience with losses.
    LswiftConfig, 5
}

/// The members of the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Holes in what the receiver holds are losses.
    Swift,
    /// They are not: paths of different delay make them.
    Lswift,
}

/// The constants that all flows of one endpoint share. Windows are in packets.
#[derive(Clone, Debug, PartialEq)]
pub struct SwiftShared {
    ai: f64,
    beta: f64,
    /// The least factor of a decrease.
    least_factor: f64,
    base_target: Span,
    target: Target,
    /// Without it one window keeps the end-to-end delay at the target: the paper's Swift-v0 (§5.4).
    endpoint_window: bool,
    endpoint_target: Span,
    /// Whether something is not known: one question for every ACK, instead of two.
    measures: bool,
    /// Whether the target of the fabric's delay, and that of the hosts' delay, are at least what is unavoidable.
    measures_fabric: bool,
    measures_hosts: bool,
    endpoint_gain: f64,
    retx_reset_threshold: u32,
    losses: u32,
    holes_are_losses: bool,
    least: f64,
    most: f64,
    initial: f64,
    /// Bytes of a full packet.
    packet: f64,
    network_rtt: Span,
}

/// One of the two windows: Algorithm 1 but for the pacing.
#[derive(Clone, Copy, Debug)]
struct Cwnd {
    /// Packets, with a fraction.
    packets: f64,
    decreased_at: Option<Time>,
}

impl Cwnd {
    fn set(&mut self, now: Time, packets: f64, shared: &SwiftShared) {
        let packets = packets.clamp(shared.least, shared.most);
        if packets < self.packets {
            self.decreased_at = Some(now);
        }
        self.packets = packets;
    }

    /// Whether the last decrease was an RTT ago.
    fn can_decrease(&self, now: Time, rtt: Span) -> bool {
        self.decreased_at.is_none_or(|at| elapsed_ps(now, at) >= rtt.as_ps())
    }

    /// Lines 4 to 14: `acked` packets were received, and their delay was `delay`.
    fn on_delay(
        &mut self,
        now: Time,
        delay: Span,
        target: Span,
        acked: f64,
        rtt: Span,
        shared: &SwiftShared,
    ) {
        if delay < target {
            let window = self.packets.max(1.0);
            self.set(now, self.packets + shared.ai * acked / window, shared);
        } else if self.can_decrease(now, rtt) {
            let excess = delay.minus(target).as_ps() as f64 / delay.as_ps().max(1) as f64;
            let factor = (1.0 - shared.beta * excess).max(shared.least_factor);
            self.set(now, self.packets * factor, shared);
        }
    }

    /// Lines 20 and 24: a timer has expired, or a packet is lost.
    fn on_loss(&mut self, now: Time, rtt: Span, shared: &SwiftShared) {
        if self.can_decrease(now, rtt) {
            self.set(now, self.packets * shared.least_factor, shared);
        }
    }
}

/// The Swift state of one flow.
#[derive(Clone, Debug)]
pub struct Swift {
    shared: Arc<SwiftShared>,
    fabric: Cwnd,
    endpoint: Cwnd,
    /// The last delay of the fabric, and the last RTT, which has the hosts' delay besides.
    fabric_delay: Span,
    rtt: Span,
    /// The average of the hosts' delay, ps.
    endpoint_delay: f64,
    base_rtt: Span,
    /// The base of the target of the fabric's delay, and the target of the hosts' delay.
    fabric_target: Attainable,
    endpoint_target: Attainable,
    /// Switches on the way of the last packet whose number is known.
    hops: u8,
    /// Losses since `lost_since` that have not reduced a window yet.
    lost: u32,
    lost_since: Time,
    /// Bytes still to be received until a hole counts as a loss again; zero if it does.
    to_recovery_end: u32,
    last_sent: Option<Time>,
}

impl Swift {
    /// A new flow.
    pub fn new(shared: Arc<SwiftShared>) -> Swift {
        let packets = shared.initial.clamp(shared.least.max(1.0), shared.most);
        let first = Cwnd { packets, decreased_at: None };
        Swift {
            fabric: first,
            // The ceiling: nothing is known of hosts before they report.
            endpoint: Cwnd { packets: shared.most, ..first },
            fabric_delay: Span::ZERO,
            rtt: shared.network_rtt,
            endpoint_delay: 0.0,
            base_rtt: shared.network_rtt,
            fabric_target: Attainable::new(shared.base_target),
            endpoint_target: Attainable::new(shared.endpoint_target),
            hops: 0,
            lost: 0,
            lost_since: Time::ZERO,
            to_recovery_end: 0,
            last_sent: None,
            shared,
        }
    }

    /// The window in packets: the smaller one rules (§3.3).
    fn cwnd(&self) -> f64 {
        self.fabric.packets.min(self.endpoint.packets)
    }

    /// The target of the fabric's delay (§3.5).
    fn target(&self) -> Span {
        self.shared.target.of(self.fabric_target.target(), self.fabric.packets, self.hops)
    }

    /// Takes note of what is unavoidable of the delay of the fabric and of that of the hosts.
    #[cold]
    fn measure(&mut self, in_fabric: Span, in_hosts: Span) {
        let is_alone = self.cwnd() < 2.0;
        if self.shared.measures_fabric {
            self.fabric_target.sample(self.shared.base_target, in_fabric, is_alone);
        }
        if self.shared.measures_hosts {
            self.endpoint_target.sample(self.shared.endpoint_target, in_hosts, is_alone);
        }
    }

    /// A packet is lost, as far as windows are concerned; `in_fabric` says that no host has dropped it.
    fn lose(&mut self, now: Time, in_fabric: bool) {
        if self.lost == 0 || elapsed_ps(now, self.lost_since) >= self.rtt.as_ps() {
            (self.lost, self.lost_since) = (0, now);
        }
        self.lost += 1;
        if self.lost < self.shared.losses {
            return;
        }
        self.lost = 0;
        self.fabric.on_loss(now, self.rtt, &self.shared);
        if !in_fabric {
            self.endpoint.on_loss(now, self.rtt, &self.shared);
        }
    }

    /// Takes note of holes in what the receiver holds.
    fn look_for_holes(&mut self, now: Time, ack: &AckSample) {
        self.to_recovery_end = self.to_recovery_end.saturating_sub(ack.newly_received);
        if ack.out_of_order >= REORDERING && self.to_recovery_end == 0 {
            // At least one byte: of an empty window the next ACK ends the recovery.
            self.to_recovery_end = ack.in_flight.clamp(1, u64::from(u32::MAX)) as u32;
            self.lose(now, false);
        }
    }

    /// The time between two packets while the window is below one packet (lines 29 to 32).
    fn pacing_delay(&self) -> Option<Span> {
        let cwnd = self.cwnd();
        (cwnd < 1.0).then(|| self.rtt.mul_f64(1.0 / cwnd))
    }
}

impl SenderCc for Swift {
    fn on_send(&mut self, now: Time, _packet: &SentPacket) {
        self.last_sent = Some(now);
    }

    fn on_hops(&mut self, hops: u8) {
        self.hops = hops;
    }

    fn on_ack(&mut self, now: Time, ack: &AckSample) {
        if let Some(delay) = ack.rtt {
            let in_hosts = ack.hosts.map_or(Span::ZERO, |hosts| hosts.delay());
            let (delay, in_hosts) = match self.shared.endpoint_window {
                true => (delay, in_hosts),
                false => (delay.plus(in_hosts), Span::ZERO),
            };
            if self.shared.measures {
                self.measure(delay, in_hosts);
            }
            let shared = &*self.shared;
            self.fabric_delay = delay;
            self.rtt = delay.plus(in_hosts);
            self.base_rtt = self.base_rtt.min(delay);
            let gain = if self.cwnd() < 1.0 { 1.0 } else { shared.endpoint_gain };
            self.endpoint_delay += gain * (in_hosts.as_ps() as f64 - self.endpoint_delay);
            let (rtt, acked) = (self.rtt, f64::from(ack.newly_received) / shared.packet);
            let target = shared.target.of(self.fabric_target.target(), self.fabric.packets, self.hops);
            self.fabric.on_delay(now, delay, target, acked, rtt, shared);
            let delay = Span::from_ps(self.endpoint_delay as u64);
            let target = self.endpoint_target.target();
            self.endpoint.on_delay(now, delay, target, acked, rtt, shared);
        }
        if self.shared.holes_are_losses {
            self.look_for_holes(now, ack);
        }
    }

    fn on_nack(&mut self, now: Time, nack: &NackSample) {
        self.lose(now, nack.cause != NackCause::InferredLoss);
    }

    fn on_timeout(&mut self, now: Time, lost: &LossSample) {
        let shared = &*self.shared;
        for cwnd in [&mut self.fabric, &mut self.endpoint] {
            match lost.expiries >= shared.retx_reset_threshold {
                true => cwnd.set(now, shared.least, shared),
                false => cwnd.on_loss(now, self.rtt, shared),
            }
        }
    }

    fn window(&self) -> Window {
        Window(((self.cwnd() * self.shared.packet) as u64).max(1))
    }

    fn expected_rtt(&self) -> Span {
        self.target().max(self.base_rtt)
    }

    fn next_departure(&self) -> Option<Time> {
        Some(self.last_sent? + self.pacing_delay()?)
    }

    fn snapshot(&self) -> CcSnapshot {
        let phase = match (self.cwnd() < 1.0, self.endpoint.packets < self.fabric.packets) {
            (true, _) => "paced",
            (false, true) => "endpoint",
            (false, false) => "fabric",
        };
        CcSnapshot {
            cwnd: self.window().0,
            base_rtt: self.base_rtt,
            target: self.target(),
            delay: self.fabric_delay,
            phase,
        }
    }
}

#[cfg(test)]
mod tests;
