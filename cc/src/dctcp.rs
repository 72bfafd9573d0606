//! DCTCP: the window shrinks in proportion to the share of packets that carry congestion marks.
//!
//! Sources: Alizadeh et al., "Data Center TCP (DCTCP)", SIGCOMM 2010, and RFC 8257. It reacts to marks and losses only;
//! switches should mark above one threshold (`--ecn 0.2,0.2`). Choices where weft is no TCP:
//! - The marked share is taken of the packets that trigger ACKs, one each: a mark on an ACK says nothing of the other
//!   bytes that it acknowledges. A packet whose own ACK is lost is not counted.
//! - A window of data ends when the bytes that were in flight at its start have been received.
//! - A trimmed packet and an inferred loss count as a loss: the window is halved, once per window of data
//!   (RFC 8257 §3.5).
//! - An expiry of the timer reduces the window to one packet, and halves the threshold of slow start (RFC 5681 §3.1).
//! - The window grows only while it is full (RFC 7661). It may be as small as one packet.
//! - The first window is one BDP of the network, as in the evaluation of SIRD; `initial_window` sets another.

use std::sync::Arc;

use crate::settings::{SHARE, SIZE, settings};
use crate::{AckSample, CcParams, CcSnapshot, LossSample, NackSample, SenderCc, Span, Time, Window};

/// The largest window, bytes: byte counters have 32 bits.
const LARGEST_WINDOW: f64 = ((1_u64 << 31) - 1) as f64;

settings! {
    /// The settings of `dctcp`. The defaults are those of RFC 8257.
    pub struct DctcpConfig {
        g: f64 = 1.0 / 16.0, in SHARE, "gain of the average of the marked share (SIRD's evaluation: 0.08)";
        initial_alpha: f64 = 1.0, in SHARE, "marked share that is assumed at first";
        initial_window: Option<u64> = None, in SIZE, "first window in bytes", or "one BDP of the network";
    }
}

/// The constants that all flows of one endpoint share.
#[derive(Clone, Debug, PartialEq)]
pub struct DctcpShared {
    g: f64,
    initial_alpha: f64,
    initial_window: f64,
    /// Bytes of a full packet, which is also the smallest window.
    packet: f64,
    network_rtt: Span,
}

impl DctcpShared {
    /// Derives the constants for one endpoint.
    pub fn new(config: &DctcpConfig, params: &CcParams) -> DctcpShared {
        let packet = (params.wire_mtu() as f64).clamp(1.0, LARGEST_WINDOW);
        let initial = config.initial_window.unwrap_or(params.network_bdp());
        DctcpShared {
            g: config.g,
            initial_alpha: config.initial_alpha,
            initial_window: (initial as f64).clamp(packet, LARGEST_WINDOW),
            packet,
            network_rtt: params.network_rtt,
        }
    }
}

/// The DCTCP state of one flow.
#[derive(Clone, Debug)]
pub struct Dctcp {
    shared: Arc<DctcpShared>,
    /// Bytes, with a fraction.
    cwnd: f64,
    /// Below this window it grows by slow start.
    ssthresh: f64,
    /// Moving average of the marked share.
    alpha: f64,
    base_rtt: Span,
    /// Bytes still to be received until the current window of data ends.
    to_window_end: u32,
    /// Bytes of the packets in this window of data whose fate was reported, and of the marked ones among them.
    reported: u32,
    marked: u32,
    /// Bytes still to be received until the window may be reduced again, and grow; zero if it may.
    to_recovery_end: u32,
}

fn bytes_u32(bytes: u64) -> u32 {
    bytes.min(u64::from(u32::MAX)) as u32
}

impl Dctcp {
    /// A new flow.
    pub fn new(shared: Arc<DctcpShared>) -> Dctcp {
        Dctcp {
            cwnd: shared.initial_window,
            ssthresh: LARGEST_WINDOW,
            alpha: shared.initial_alpha,
            base_rtt: shared.network_rtt,
            to_window_end: 0,
            reported: 0,
            marked: 0,
            to_recovery_end: 0,
            shared,
        }
    }

    /// The moving average of the marked share.
    pub fn alpha(&self) -> f64 {
        self.alpha
    }

    /// Ends a window of data (RFC 8257 §3.3); the next one has the bytes in flight.
    fn end_window(&mut self, in_flight: u64) {
        if self.reported > 0 {
            let share = f64::from(self.marked) / f64::from(self.reported);
            self.alpha += self.shared.g * (share - self.alpha);
        }
        (self.reported, self.marked) = (0, 0);
        self.to_window_end = bytes_u32(in_flight);
    }

    /// Multiplies the window by `factor`, unless that has happened within this window of data.
    fn reduce(&mut self, factor: f64, in_flight: u64) {
        if self.to_recovery_end > 0 {
            return;
        }
        self.cwnd = (self.cwnd * factor).max(self.shared.packet);
        self.ssthresh = self.cwnd;
        // At least one byte: of an empty window the next ACK ends the recovery.
        self.to_recovery_end = bytes_u32(in_flight).max(1);
    }

    fn grow(&mut self, bytes: u32) {
        let bytes = f64::from(bytes);
        let increase = match self.cwnd < self.ssthresh {
            true => bytes,
            false => self.shared.packet * bytes / self.cwnd,
        };
        self.cwnd = (self.cwnd + increase).min(LARGEST_WINDOW);
    }

    /// Whether the window was full before `ack`: it had no room for another packet.
    fn was_full(&self, ack: &AckSample, bytes: u32) -> bool {
        ack.in_flight as f64 + f64::from(bytes) + self.shared.packet > self.cwnd
    }

    fn see(&mut self, rtt: Option<Span>) {
        self.base_rtt = rtt.map_or(self.base_rtt, |rtt| rtt.min(self.base_rtt));
    }
}

impl SenderCc for Dctcp {
    fn on_ack(&mut self, _now: Time, ack: &AckSample) {
        self.see(ack.rtt);
        let (bytes, trigger) = (ack.newly_received, ack.trigger_bytes);
        self.reported = self.reported.saturating_add(trigger);
        if ack.ecn {
            self.marked = self.marked.saturating_add(trigger);
        }
        self.to_window_end = self.to_window_end.saturating_sub(bytes);
        if self.to_window_end == 0 {
            self.end_window(ack.in_flight);
        }
        let recovering = self.to_recovery_end > 0;
        self.to_recovery_end = self.to_recovery_end.saturating_sub(bytes);
        if ack.ecn && trigger > 0 {
            self.reduce(1.0 - self.alpha / 2.0, ack.in_flight);
        } else if !recovering && self.was_full(ack, bytes) {
            self.grow(bytes);
        }
    }

    fn on_nack(&mut self, _now: Time, nack: &NackSample) {
        self.see(nack.rtt);
        self.reduce(0.5, nack.in_flight);
    }

    fn on_timeout(&mut self, _now: Time, _lost: &LossSample) {
        if self.cwnd > self.shared.packet {
            self.ssthresh = (self.cwnd / 2.0).max(2.0 * self.shared.packet);
            self.cwnd = self.shared.packet;
        }
    }

    fn window(&self) -> Window {
        Window(self.cwnd as u64)
    }

    fn expected_rtt(&self) -> Span {
        self.base_rtt
    }

    fn snapshot(&self) -> CcSnapshot {
        let phase = match (self.to_recovery_end > 0, self.cwnd < self.ssthresh) {
            (true, _) => "reduced",
            (false, true) => "slow-start",
            (false, false) => "avoidance",
        };
        CcSnapshot {
            cwnd: self.cwnd as u64,
            base_rtt: self.base_rtt,
            target: Span::ZERO,
            delay: Span::ZERO,
            phase,
        }
    }
}

#[cfg(test)]
mod tests;
