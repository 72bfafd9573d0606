//! NSCC, the sender's congestion control of Ultra Ethernet, in the variant of the UE text as coded in the
//! public simulator (`uec.cpp` of uet-htsim). The variant of the SMaRTT paper is [`smartt`](crate::smartt);
//! sections (§) are those of the paper, where it describes the same mechanism.
//!
//! Delay is RTT − base RTT of the packet that triggered an ACK. An ACK falls into one of four cases
//! (`updateCwndOnAck_NSCC`; §III-I):
//!
//! | | delay < target | delay ≥ target |
//! |---|---|---|
//! | not marked | proportional increase, or fast increase when the path is idle | fair increase |
//! | marked | no change: the load balancer changes the path | multiplicative decrease, once per base RTT |
//!
//! Increases are collected in `inc` and applied every 8 MTU or network RTT (`fulfill_adjustment`; §III-G).
//! When trims, losses or extreme delay show that the window is far too large, *quick adapt* sets it to the
//! bytes that arrived in one period of base RTT + target (`quick_adapt`; §III-E).
//!
//! # Deviations from the simulator's code
//! - `inc` is a double, where the code has 32 bits that overflow at 800 Gbit/s; it is rounded only when applied.
//! - Timers that have never run are due at once, whatever the clock shows. In the code they start at zero.
//! - The largest window is at least one packet, so that a very short RTT cannot stop a flow, and it takes
//!   effect as soon as the base RTT falls, not at the next adjustment.
//! - Windows stay below 2 GiB, and byte counters saturate at 4 GiB instead of wrapping.
//! - `rcv_cwnd_pend` has the meaning of UET §3.6.13.2: 0 is no effect. The code takes it for the share of the window to
//!   keep, so that 127 is no effect.
//! - Where ports measure how long packets and acknowledgements wait in the hosts, that time is no part of the delay. The
//!   bytes that wait there are in flight nevertheless, so the largest window is 1.5 BDP of the base RTT and the average
//!   of that time together, but never more than 1.5 BDP of the network RTT. In the code hosts do not wait.
//! - An inferred loss counts like a trim inside the fabric. In the code it leaves the window unchanged.

use std::sync::Arc;

use crate::deadline::{LONGEST_TIMER_PS, elapsed_ps, passed};
use crate::settings::{BDPS, FACTOR, SHARE, SIZE, TIME, settings};
use crate::{
    AckSample, CcParams, CcSnapshot, FlowControl, LossSample, NackCause, NackSample, SenderCc, Span, Time,
    Window,
};

/// BDP in bytes of the network for which the UE text states its constants: 100 Gbit/s and 12 µs.
const REFERENCE_BDP: f64 = 150_000.0;
/// RTT of that network, picoseconds.
const REFERENCE_RTT_PS: f64 = 12e6;
/// Longer delays count as this one: 53 days.
const LONGEST_DELAY_PS: u64 = (1 << 62) - 1;
/// The average of the time in hosts takes in a new value by 1/2^this.
const HOST_DELAY_GAIN: u32 = 3;
/// The average of the time in hosts of a flow that has had no answer.
const NOT_STARTED: u16 = u16::MAX;
/// The largest window, bytes: windows have 32 bits, and an addition must not overflow them.
const LARGEST_WINDOW: u64 = (1 << 31) - 1;

settings! {
    /// The settings of `nscc`. The defaults are those of the UE text as coded.
    pub struct NsccConfig {
        target: Option<Span> = None, in TIME, "queueing delay to steer towards",
            or "0.75 of the network RTT with trimming, 1.0 without";
        alpha: f64 = 4.0, in FACTOR, "proportional increase, packets per window and 12 µs of target, at no delay";
        fi: f64 = 5.0, in FACTOR, "fair increase, packets per window";
        eta: f64 = 0.15, in FACTOR, "increase in every network RTT, packets";
        fi_scale: f64 = 0.25, in FACTOR, "fast increase: share of the newly received bytes that is added";
        idle_delay: Span = Span::from_us(1), in TIME, "delay below which fast increase may start";
        gamma: f64 = 0.8, in FACTOR, "strength of the multiplicative decrease";
        max_md_jump: f64 = 0.5, in SHARE, "least factor of one multiplicative decrease";
        delay_gain: f64 = 0.0125, in SHARE, "gain of the delay's moving average";
        qa_gate: u32 = 3, in 0..=31, "quick adapt needs fewer bytes than the largest window / 2^qa_gate";
        qa_scaling: f64 = 1.0, in FACTOR, "quick adapt: share of the achieved bytes that becomes the window";
        qa_threshold: f64 = 4.0, in FACTOR, "delay that triggers quick adapt, in targets";
        quick_adapt: bool = true, in .., "whether quick adapt is on";
        max_window_bdp: f64 = 1.5, in BDPS, "largest window in BDPs of the base RTT";
        initial_window: Option<u64> = None, in SIZE, "first window in bytes", or "the largest window";
        adjust_packets: u32 = 8, in 0..=65_535, "packets received between two adjustments";
        base_rtt_from_nack: bool = true, in ..,
            "whether NACKs may lower the base RTT; those of trimmed, shorter packets lower it slightly";
    }
}

/// The constants that all flows of one endpoint share: the settings in the units of the fast path.
#[derive(Clone, Debug, PartialEq)]
pub struct NsccShared {
    target_ps: u64,
    idle_ps: u64,
    qa_threshold_ps: u64,
    /// Longest time between two adjustments: one network RTT.
    adjust_period_ps: u64,
    /// Proportional increase: a newly received byte adds this to `inc` per picosecond below the target.
    alpha: f64,
    /// Fair increase: a newly received byte adds this to `inc`.
    fi: f64,
    /// Fast increase: a newly received byte adds this to the window.
    fi_scale: f64,
    /// `1 − gamma·(avg − target)/avg` is written as `md_base + md_slope/avg`, which takes one division.
    md_base: f64,
    md_slope: f64,
    md_floor: f64,
    qa_scaling: f64,
    /// Largest window per picosecond of base RTT, bytes.
    max_window_per_ps: f64,
    delay_gain: f32,
    adjust_bytes: u32,
    eta: u32,
    min_window: u32,
    initial_window: Option<u32>,
    network_rtt: Span,
    qa_gate: u8,
    quick_adapt: bool,
    exempt_last_hop: bool,
    base_rtt_from_nack: bool,
}

impl NsccShared {
    /// Derives the constants for one endpoint. With `receiver_credit`, the receiver's credits are in force as
    /// well and answer for the last hop: packets trimmed there do not reduce the window.
    pub fn new(config: &NsccConfig, params: &CcParams, receiver_credit: bool) -> NsccShared {
        let network_rtt = params.network_rtt.as_ps().clamp(1, LONGEST_TIMER_PS / 4);
        let default_target = Span::from_ps(network_rtt).mul_f64(if params.trimming { 0.75 } else { 1.0 });
        let target = config.target.unwrap_or(default_target).as_ps().clamp(1, LONGEST_TIMER_PS / 4);
        let bytes_per_ps = params.link_rate.as_bps() as f64 / 8e12;
        // The scaling of the UE text, §III-J: a = BDP / reference BDP.
        let a = bytes_per_ps * network_rtt as f64 / REFERENCE_BDP;
        let mss = f64::from(params.mtu);
        let wire_mtu = params.wire_mtu().clamp(1, LARGEST_WINDOW);
        NsccShared {
            target_ps: target,
            idle_ps: config.idle_delay.as_ps(),
            qa_threshold_ps: (target as f64 * config.qa_threshold) as u64,
            adjust_period_ps: network_rtt,
            // alpha·MSS·a·b / target with b = target / 12 µs: the target cancels out.
            alpha: config.alpha * mss * a / REFERENCE_RTT_PS,
            fi: config.fi * mss * a,
            fi_scale: config.fi_scale * a,
            md_base: 1.0 - config.gamma,
            md_slope: config.gamma * target as f64,
            md_floor: config.max_md_jump,
            qa_scaling: config.qa_scaling,
            max_window_per_ps: config.max_window_bdp * bytes_per_ps,
            delay_gain: config.delay_gain as f32,
            adjust_bytes: (u64::from(config.adjust_packets) * wire_mtu).min(u64::from(u32::MAX)) as u32,
            eta: (config.eta * mss * a).min(LARGEST_WINDOW as f64) as u32,
            min_window: wire_mtu as u32,
            initial_window: config.initial_window.map(|w| w.min(LARGEST_WINDOW) as u32),
            network_rtt: Span::from_ps(network_rtt),
            qa_gate: config.qa_gate.min(31) as u8,
            quick_adapt: config.quick_adapt,
            exempt_last_hop: receiver_credit,
            base_rtt_from_nack: config.base_rtt_from_nack,
        }
    }

    fn max_window(&self, base_rtt_ps: u64) -> u32 {
        // A double holds every base RTT below 2^53 ps (2.5 hours) exactly.
        let bytes = (base_rtt_ps as f64 * self.max_window_per_ps).min(LARGEST_WINDOW as f64);
        (bytes as u32).max(self.min_window)
    }
}

/// The NSCC state of one flow.
// The order of the fields matters: the enum of algorithms keeps its discriminant in the unused values of the
// flag `fast_increase`, so that sending a packet reads one cache line, with the window and the discriminant.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Nscc {
    window: u32,
    fast_increase: bool,
    trigger_qa: bool,
    /// Moving average of the time that packets and acknowledgements wait in the hosts, in 1/2^16 of the network RTT;
    /// `NOT_STARTED` until the first answer. So one comparison tells that the flow has begun and no packet has waited.
    host_delay: u16,
    shared: Arc<NsccShared>,
    /// Collected increase, bytes²: it is divided by the window when it is applied.
    inc: f64,
    base_rtt_ps: u64,
    /// End of the current period of quick adapt.
    qa_end: Time,
    last_decrease: Time,
    last_adjust: Time,
    /// Moving average of half the delay, picoseconds. Half a delay fits a signed integer, whose conversion to
    /// floating point takes one instruction.
    avg_half_delay: f32,
    /// Bytes received since the flow began; wraps.
    received: u32,
    /// `received` at the start of the current period of quick adapt.
    received_at_period: u32,
    /// `received` at the last adjustment.
    received_at_adjust: u32,
    /// Bytes received in a row with a delay below `idle_delay`.
    idle_bytes: u32,
    /// Bytes whose ECN marks are still to be ignored after quick adapt.
    to_ignore: u32,
    /// The window when the receiver's penalty began; 0 if there is none to restore.
    saved_window: u32,
    /// The largest window. It follows from the base RTT and the time in hosts.
    max_window: u32,
}

fn bytes_u32(bytes: u64) -> u32 {
    bytes.min(u64::from(u32::MAX)) as u32
}

impl Nscc {
    /// A new flow, with the base RTT of the network and the first window that the settings say.
    pub fn new(shared: Arc<NsccShared>) -> Nscc {
        let base_rtt_ps = shared.network_rtt.as_ps();
        let max_window = shared.max_window(base_rtt_ps);
        let initial = shared.initial_window.unwrap_or(max_window);
        Nscc {
            window: initial.clamp(shared.min_window, max_window),
            base_rtt_ps,
            shared,
            inc: 0.0,
            qa_end: Time::ZERO,
            last_decrease: Time::ZERO,
            last_adjust: Time::ZERO,
            avg_half_delay: 0.0,
            received: 0,
            received_at_period: 0,
            received_at_adjust: 0,
            idle_bytes: 0,
            to_ignore: 0,
            saved_window: 0,
            max_window,
            fast_increase: false,
            trigger_qa: false,
            host_delay: NOT_STARTED,
        }
    }

    /// Whether this answer is the flow's first. Makes the timers due then: they count as if they had last run long ago.
    fn start(&mut self, now: Time) -> bool {
        let first = self.host_delay == NOT_STARTED;
        if first {
            let long_ago = now - Span::from_ps(LONGEST_TIMER_PS);
            (self.last_decrease, self.last_adjust) = (long_ago, long_ago);
            self.host_delay = 0;
        }
        first
    }

    fn avg_delay_ps(&self) -> f64 {
        f64::from(self.avg_half_delay) * 2.0
    }

    fn bound(&mut self) {
        self.window = self.window.max(self.shared.min_window).min(self.max_window);
    }

    fn shrink(&mut self, bytes: u64) {
        self.window = self.window.saturating_sub(bytes_u32(bytes)).max(self.shared.min_window);
    }

    fn lower_base_rtt(&mut self, rtt: Span) {
        if rtt.as_ps() < self.base_rtt_ps {
            self.base_rtt_ps = rtt.as_ps();
            self.limit();
        }
    }

    /// The time of a round trip through the idle network and both hosts. If not `HOSTS`, no packet has waited in
    /// them of late.
    #[inline(always)]
    fn loop_ps<const HOSTS: bool>(&self) -> u64 {
        if !HOSTS {
            return self.base_rtt_ps;
        }
        let network = self.shared.network_rtt.as_ps();
        let in_hosts = (u128::from(network) * u128::from(self.host_delay)) >> 16;
        (self.base_rtt_ps + in_hosts as u64).min(network)
    }

    /// Sets the largest window anew.
    fn limit(&mut self) {
        self.max_window = self.shared.max_window(self.loop_ps::<true>());
        self.bound();
    }

    fn average_in_host_delay(&mut self, waited: Span) {
        let network = self.shared.network_rtt.as_ps();
        let share = (u128::from(waited.as_ps().min(network)) << 16) / u128::from(network);
        let (waited, before) = (share.min(u128::from(NOT_STARTED - 1)) as i32, i32::from(self.host_delay));
        self.host_delay = (before + ((waited - before) >> HOST_DELAY_GAIN)) as u16;
        self.limit();
    }

    #[inline(always)]
    fn average_in(&mut self, delay_ps: u64) {
        let half = (delay_ps >> 1) as i64 as f32;
        self.avg_half_delay += self.shared.delay_gain * (half - self.avg_half_delay);
    }

    /// `update_delay`.
    #[inline(always)]
    fn count_delay(&mut self, delay: u64, ecn: bool) {
        // Marks are set at dequeue, so they are more recent than the delay (§III-B): without a mark the queue
        // has drained since, and the path counts as nearly idle.
        let counted = if !ecn && delay > self.shared.target_ps { self.base_rtt_ps / 4 } else { delay };
        self.average_in(counted);
    }

    /// Handles any ACK; if not `HOSTS`, one whose hosts report nothing, and have not of late. All calls in it are tail
    /// calls, so that no registers have to be saved.
    #[inline(always)]
    fn react<const HOSTS: bool>(&mut self, now: Time, ack: &AckSample, bytes: u32, delay_ps: u64) {
        self.received = self.received.wrapping_add(bytes);
        self.to_ignore = self.to_ignore.saturating_sub(bytes);
        if ack.ecn && self.to_ignore > 0 {
            return self.forget_increases();
        }
        if passed(now, self.qa_end) {
            return self.react_at_period_end::<HOSTS>(now, ack, bytes, delay_ps);
        }
        self.core_cases::<HOSTS>(now, ack, bytes, delay_ps);
    }

    /// Drops the collected increases and starts to count the bytes for the next adjustment.
    #[inline(always)]
    fn forget_increases(&mut self) {
        self.inc = 0.0;
        self.received_at_adjust = self.received;
    }

    /// As `react`, for the first ACK after a period of quick adapt.
    #[inline(never)]
    fn react_at_period_end<const HOSTS: bool>(
        &mut self,
        now: Time,
        ack: &AckSample,
        bytes: u32,
        delay_ps: u64,
    ) {
        let far_off = self.trigger_qa || delay_ps > self.shared.qa_threshold_ps;
        if self.quick_adapt::<HOSTS>(now, far_off, ack.in_flight) {
            return self.forget_increases();
        }
        self.core_cases::<HOSTS>(now, ack, bytes, delay_ps);
    }

    /// Ends a period of quick adapt; true if the window was set (`quick_adapt`; §III-E).
    #[inline(always)]
    fn quick_adapt<const HOSTS: bool>(&mut self, now: Time, far_off: bool, in_flight: u64) -> bool {
        let achieved = self.received.wrapping_sub(self.received_at_period);
        let gate = self.max_window >> self.shared.qa_gate;
        let adapt = far_off && achieved < gate && self.shared.quick_adapt;
        if adapt {
            self.window = (f64::from(achieved) * self.shared.qa_scaling) as u32;
            self.bound();
            self.to_ignore = bytes_u32(in_flight);
            self.trigger_qa = false;
        }
        self.begin_period::<HOSTS>(now, self.received);
        adapt
    }

    /// Begins a period of quick adapt, in which all bytes after the first `received` count.
    #[inline(always)]
    fn begin_period<const HOSTS: bool>(&mut self, now: Time, received: u32) {
        self.received_at_period = received;
        self.qa_end = now + Span::from_ps(self.loop_ps::<HOSTS>() + self.shared.target_ps);
    }

    /// The four cases of the table in the module's documentation (§III-I).
    #[inline(always)]
    fn core_cases<const HOSTS: bool>(&mut self, now: Time, ack: &AckSample, bytes: u32, delay_ps: u64) {
        let room = self.shared.target_ps.wrapping_sub(delay_ps) as i64;
        let below_target = room > 0;
        match (ack.ecn, below_target) {
            // The window does not grow while the receiver holds it down.
            (false, _) if HOSTS && ack.hosts.is_some_and(|hosts| hosts.flow_control.is_penalty()) => {}
            (false, true) => {
                if !self.fast_increase(bytes, delay_ps) {
                    self.proportional_increase(bytes, room);
                }
            }
            (false, false) => self.fair_increase(bytes),
            (true, true) => {} // §III-I1: the load balancer changes the path.
            (true, false) => return self.multiplicative_decrease::<HOSTS>(now),
        }
        self.adjust_if_due(now);
    }

    /// §III-I4. `room`: picoseconds below the target.
    #[inline(always)]
    fn proportional_increase(&mut self, bytes: u32, room: i64) {
        self.inc += self.shared.alpha * f64::from(bytes) * room as f64;
    }

    /// §III-C and §III-I3.
    #[inline(always)]
    fn fair_increase(&mut self, bytes: u32) {
        self.inc += self.shared.fi * f64::from(bytes);
    }

    /// §III-F. True if fast increase is active and has added these bytes to the window.
    #[inline(always)]
    fn fast_increase(&mut self, bytes: u32, delay_ps: u64) -> bool {
        if delay_ps >= self.shared.idle_ps {
            self.idle_bytes = 0;
            self.fast_increase = false;
            return false;
        }
        self.idle_bytes = self.idle_bytes.saturating_add(bytes);
        self.fast_increase |= self.idle_bytes > self.window;
        if self.fast_increase {
            let grown = f64::from(self.window) + f64::from(bytes) * self.shared.fi_scale;
            let largest = f64::from(self.max_window);
            self.window = if grown < largest { grown as u32 } else { self.max_window };
        }
        self.fast_increase
    }

    /// §III-I2.
    #[inline(never)]
    fn multiplicative_decrease<const HOSTS: bool>(&mut self, now: Time) {
        self.fast_increase = false;
        self.idle_bytes = 0;
        let avg = self.avg_delay_ps();
        if avg > self.shared.target_ps as f64 && elapsed_ps(now, self.last_decrease) > self.loop_ps::<HOSTS>()
        {
            let factor = (self.shared.md_base + self.shared.md_slope / avg).max(self.shared.md_floor);
            let shrunk = (f64::from(self.window) * factor) as u32;
            self.window = shrunk.max(self.shared.min_window);
            self.last_decrease = now;
        }
        self.adjust_if_due(now);
    }

    #[inline(always)]
    fn adjust_if_due(&mut self, now: Time) {
        let received = self.received.wrapping_sub(self.received_at_adjust);
        let elapsed = elapsed_ps(now, self.last_adjust);
        if received > self.shared.adjust_bytes || elapsed > self.shared.adjust_period_ps {
            self.adjust(now, elapsed);
        }
    }

    /// Applies the collected increases (`fulfill_adjustment`).
    #[inline(never)]
    fn adjust(&mut self, now: Time, elapsed: u64) {
        self.window = self.window.saturating_add((self.inc / f64::from(self.window)) as u32);
        if elapsed >= self.shared.adjust_period_ps {
            self.window = self.window.saturating_add(self.shared.eta);
            self.last_adjust = now;
        }
        self.forget_increases();
        self.bound();
    }

    /// Handles an ACK that is the flow's first one, lowers the base RTT, has no RTT, carries the receiver's flow control,
    /// or comes from hosts that measure how long packets wait in them.
    #[cold]
    fn on_rare_ack(&mut self, now: Time, ack: &AckSample) {
        let first = self.start(now);
        let hosts = ack.hosts.unwrap_or_default();
        self.average_in_host_delay(hosts.delay());
        self.obey_receiver(hosts.flow_control, ack.in_flight, ack.newly_received);
        let delay_ps = match ack.rtt {
            Some(rtt) => {
                self.lower_base_rtt(rtt);
                let delay = (rtt.as_ps() - self.base_rtt_ps).min(LONGEST_DELAY_PS);
                self.count_delay(delay, ack.ecn);
                delay
            }
            None => self.avg_delay_ps() as u64,
        };
        if first {
            self.begin_period::<true>(now, self.received.wrapping_add(ack.newly_received));
        }
        self.react::<true>(now, ack, ack.newly_received, delay_ps);
    }

    /// The receiver's flow control (`apply_cwnd_penalty`, UET §3.6.13.6).
    fn obey_receiver(&mut self, request: FlowControl, in_flight: u64, bytes: u32) {
        match request {
            FlowControl::Off => {}
            FlowControl::Penalty(share) => {
                if self.saved_window == 0 {
                    self.saved_window = self.window;
                }
                self.window = self.window.min(bytes_u32(in_flight));
                self.shrink((u64::from(bytes) * u64::from(share.min(127))) >> 7);
            }
            FlowControl::Restore => {
                self.window = match core::mem::take(&mut self.saved_window) {
                    0 => self.window,
                    saved => saved.min(self.max_window),
                };
            }
        }
    }
}

impl SenderCc for Nscc {
    #[inline]
    fn on_ack(&mut self, now: Time, ack: &AckSample) {
        // The order of these tests is the one for which the compiler needs the fewest instructions.
        if self.host_delay != 0 || ack.hosts.is_some() {
            return self.on_rare_ack(now, ack);
        }
        let Some(rtt) = ack.rtt else { return self.on_rare_ack(now, ack) };
        // An RTT below the base RTT wraps to a huge delay, so that one comparison finds both.
        let delay_ps = rtt.as_ps().wrapping_sub(self.base_rtt_ps);
        if delay_ps >> 62 != 0 {
            return self.on_rare_ack(now, ack);
        }
        self.count_delay(delay_ps, ack.ecn);
        self.react::<false>(now, ack, ack.newly_received, delay_ps);
    }

    fn on_nack(&mut self, now: Time, nack: &NackSample) {
        let first = self.start(now);
        if self.shared.base_rtt_from_nack {
            nack.rtt.into_iter().for_each(|rtt| self.lower_base_rtt(rtt));
        }
        if first {
            self.begin_period::<true>(now, self.received);
        }
        self.to_ignore = self.to_ignore.saturating_sub(bytes_u32(nack.bytes));
        // The trimmed packet found a full queue, whose delay is taken to be one network RTT.
        self.average_in(self.shared.network_rtt.as_ps());
        self.trigger_qa = true;
        // The packet was still in flight when it was trimmed.
        let in_flight = nack.in_flight.saturating_add(nack.bytes);
        if self.to_ignore > 0 || (passed(now, self.qa_end) && self.quick_adapt::<true>(now, true, in_flight))
        {
            return self.forget_increases();
        }
        // Congestion of the receiver's own link is left to its credits.
        if !(self.shared.exempt_last_hop && nack.cause == NackCause::TrimmedLastHop) {
            self.shrink(nack.bytes);
        }
    }

    fn on_timeout(&mut self, _now: Time, lost: &LossSample) {
        self.shrink(lost.bytes);
    }

    #[inline]
    fn window(&self) -> Window {
        Window(u64::from(self.window))
    }

    fn expected_rtt(&self) -> Span {
        Span::from_ps(self.base_rtt_ps + self.shared.target_ps)
    }

    fn snapshot(&self) -> CcSnapshot {
        let phase = match (self.to_ignore > 0, self.fast_increase) {
            (true, _) => "ignore",
            (false, true) => "fast-increase",
            (false, false) => "core",
        };
        CcSnapshot {
            cwnd: u64::from(self.window),
            base_rtt: Span::from_ps(self.base_rtt_ps),
            target: Span::from_ps(self.shared.target_ps),
            delay: Span::from_ps(self.avg_delay_ps() as u64),
            phase,
        }
    }
}

#[cfg(test)]
mod tests;
