//! SMaRTT, as published: "SMaRTT: Sender-based Marked Rapidly-adapting Trimmed & Timed
//! Transport", Algorithms 1 to 4 and equations 1 to 3. The variant of the UE text is
//! [`nscc`](crate::nscc).
//!
//! # Choices where the paper is open or contradicts itself
//! - Algorithm 4 line 2 adds every packet to `acked`, including trimmed ones. §III-E calls `acked` the bytes
//!   *received*, and a window set to received plus trimmed bytes would not adapt at all. Therefore only
//!   acknowledged bytes count; `count_trims` follows Algorithm 4 literally.
//! - After QuickAdapt, §III-E ignores "all the bytes that are in-flight when it comes to congestion control information".
//!   Lines 16 and 17 of Algorithm 4 take trims off the window all the same, and let them trigger QuickAdapt again: at the
//!   end of the ignore phase the window then becomes all bytes acknowledged in it, however long it was. The text is
//!   followed, because with it the results are those of the paper, and trims are ignored like timeouts. With
//!   `ignore_trims=false` the lines are (docs/decisions/0078-trims-are-ignored-after-quick-adapt.md).
//! - Algorithm 4 line 23 limits the window to one BDP, §III-J to 1.5. It is 1.5 here (`max_window_bdp`).
//! - Algorithm 4 lines 7 and 12 return before the limits of line 23. Here they hold after every call; otherwise
//!   FastIncrease would grow the window without limit.
//! - `unacked` (Algorithm 2) is the bytes in flight. A trimmed packet counts as not in flight.
//! - No case of Algorithm 1 contains an RTT equal to the target. It counts as below, where equation 3 yields 0.
//! - Equation 1 applies above the target only: an average RTT below `trtt` neither increases the window nor uses
//!   up the one decrease per base RTT.
//! - `rtt ≈ brtt` (Algorithm 3) means at most 10 % above the base RTT (`near_base`).
//! - Algorithm 3 adds `k` MTUs per ACK of one packet. An ACK here may cover several packets, so `k` times the
//!   acknowledged bytes are added, which is the same for one full packet (compare §III-G).
//! - The paper gives no gain for `avg_rtt`. It is 0.0125, as in the UE text.
//! - `fi` and `pi` are one MTU per RTT, the paper's example, in the reference network of the UE text
//!   (100 Gbit/s, 12 µs). They are scaled by BDP of the path / BDP of that network (§III-J).
//! - Without trimming (§III-E a), "RTT high and acked bytes low" means an RTT above the target (`qa_rtt`, in
//!   targets) and less than half a window acknowledged in the period (`qa_acked`).
//! - Time that packets wait in the hosts, where ports measure it, is no part of the RTT, but counts for the largest
//!   window as in [`nscc`](crate::nscc).
//! - A timeout takes its packet off the window like a trim. During the ignore phase it changes nothing.
//! - An ACK without a valid RTT counts with the average RTT.

use std::sync::Arc;

use crate::deadline::{LONGEST_TIMER_PS, elapsed_ps, reached};
use crate::settings::{BDPS, FACTOR, SHARE, settings};
use crate::{AckSample, CcParams, CcSnapshot, LossSample, NackSample, SenderCc, Span, Time, Window};

/// BDP in bytes of the reference network, in which `fi` and `pi` are packets per RTT: 100 Gbit/s and 12 µs.
const REFERENCE_BDP: f64 = 150_000.0;
/// Gain of the average of the time in hosts.
const HOST_DELAY_GAIN: f32 = 0.125;
/// Longer RTTs count as this one: 53 days.
const LONGEST_RTT_PS: u64 = 1 << 62;
/// The largest window, bytes: byte counters have 32 bits.
const LARGEST_WINDOW: f64 = ((1_u64 << 31) - 1) as f64;

settings! {
    /// The settings of `smartt`. The defaults are those of the paper.
    pub struct SmarttConfig {
        target: f64 = 1.5, in 1.01..=1e3, "target RTT in base RTTs";
        fi: f64 = 1.0, in FACTOR, "fair increase, packets per RTT in the reference network";
        pi: f64 = 1.0, in FACTOR, "proportional increase at the base RTT, packets per RTT in the reference network";
        fair_after_proportional: bool = true, in .., "whether a fair increase follows each proportional one";
        k: f64 = 2.0, in FACTOR, "FastIncrease: bytes added per byte acknowledged";
        near_base: f64 = 0.1, in FACTOR, "an RTT up to 1 + near_base base RTTs counts as equal to the base RTT";
        md_strength: f64 = 0.8, in FACTOR, "strength of the multiplicative decrease";
        md_floor: f64 = 0.5, in SHARE, "least factor of one multiplicative decrease";
        rtt_gain: f64 = 0.0125, in SHARE, "gain of the RTT's moving average";
        qa_scaling: f64 = 1.0, in FACTOR, "QuickAdapt: share of the acknowledged bytes that becomes the window";
        qa_rtt: f64 = 1.0, in FACTOR, "without trimming: RTT in targets above which QuickAdapt may be triggered";
        qa_acked: f64 = 0.5, in FACTOR,
            "without trimming: QuickAdapt needs less than this share of a window acknowledged";
        max_window_bdp: f64 = 1.5, in BDPS, "largest window in BDPs of the base RTT";
        ignore_trims: bool = true, in ..,
            "whether trims are ignored after QuickAdapt as ACKs are (§III-E), against Algorithm 4 lines 16 and 17";
        count_trims: bool = false, in ..,
            "whether trimmed bytes count as acknowledged (Algorithm 4 line 2 to the letter)";
    }
}

/// The constants that all flows of one endpoint share.
#[derive(Clone, Debug, PartialEq)]
pub struct SmarttShared {
    target: f64,
    near_base: f64,
    /// mtu · fi · (BDP / reference BDP) per picosecond of base RTT.
    fi_per_ps: f64,
    /// mtu · pi · (BDP / reference BDP) per picosecond of base RTT.
    pi_per_ps: f64,
    k: f64,
    md_base: f64,
    md_slope: f64,
    md_floor: f64,
    qa_scaling: f64,
    qa_rtt: f64,
    qa_acked: f64,
    max_window_per_ps: f64,
    min_window: f64,
    /// `fi_per_ps`, or 0 if no fair increase follows a proportional one.
    fair_per_ps: f64,
    gain: f32,
    network_rtt_ps: u64,
    trimming: bool,
    ignore_trims: bool,
    count_trims: bool,
}

impl SmarttShared {
    /// Derives the constants for one endpoint.
    pub fn new(config: &SmarttConfig, params: &CcParams) -> SmarttShared {
        let bytes_per_ps = params.link_rate.as_bps() as f64 / 8e12;
        let mtu = params.wire_mtu() as f64;
        let target = config.target.max(1.01);
        let network_rtt_ps = params.network_rtt.as_ps().clamp(1, LONGEST_TIMER_PS / 4);
        let per_ps = mtu * bytes_per_ps / REFERENCE_BDP;
        SmarttShared {
            target,
            near_base: 1.0 + config.near_base,
            fi_per_ps: config.fi * per_ps,
            // §III-I4: at the base RTT, (trtt − rtt)/rtt is target − 1.
            pi_per_ps: config.pi / (target - 1.0) * per_ps,
            k: config.k,
            md_base: 1.0 - config.md_strength,
            md_slope: config.md_strength * target,
            md_floor: config.md_floor,
            qa_scaling: config.qa_scaling,
            qa_rtt: config.qa_rtt * target,
            qa_acked: config.qa_acked,
            // No base RTT exceeds the network's, so this limits every window.
            max_window_per_ps: (config.max_window_bdp * bytes_per_ps)
                .min(LARGEST_WINDOW / network_rtt_ps as f64),
            min_window: mtu.clamp(1.0, LARGEST_WINDOW),
            fair_per_ps: if config.fair_after_proportional { config.fi * per_ps } else { 0.0 },
            gain: config.rtt_gain as f32,
            network_rtt_ps,
            trimming: params.trimming,
            ignore_trims: config.ignore_trims,
            count_trims: config.count_trims,
        }
    }
}

/// The SMaRTT state of one flow.
#[derive(Clone, Debug)]
pub struct Smartt {
    shared: Arc<SmarttShared>,
    /// Bytes, with a fraction: a large window grows by less than a byte per ACK.
    cwnd: f64,
    /// Picoseconds, a whole number.
    base_rtt: f64,
    /// End of the QuickAdapt period.
    end: Time,
    last_decrease: Time,
    avg_rtt_ps: f32,
    /// Moving average of the time that packets and acknowledgements wait in the hosts, picoseconds; no more than the base
    /// RTT lacks of the network's.
    host_delay_ps: f32,
    /// Bytes acknowledged in this QuickAdapt period.
    acked: u32,
    /// `bytes_to_ignore − bytes_ignored`, while positive.
    to_ignore: u32,
    /// Contiguous bytes without congestion.
    count: u32,
    increase: bool,
    trigger_qa: bool,
    /// Whether a first QuickAdapt period has begun (`end ≠ 0`).
    in_period: bool,
    /// Whether the timers hold instants of this clock, and no packet has waited in the hosts of late.
    usual: bool,
}

fn bytes_u32(bytes: u64) -> u32 {
    bytes.min(u64::from(u32::MAX)) as u32
}

/// The smaller of two numbers, neither of which is NaN: one instruction, unlike `f64::min`.
#[inline(always)]
fn smaller(a: f64, b: f64) -> f64 {
    if a < b { a } else { b }
}

impl Smartt {
    /// A new flow, with the base RTT of the network and the largest window.
    pub fn new(shared: Arc<SmarttShared>) -> Smartt {
        let base_rtt = shared.network_rtt_ps as f64;
        let mut flow = Smartt {
            cwnd: LARGEST_WINDOW,
            base_rtt,
            end: Time::ZERO,
            last_decrease: Time::ZERO,
            avg_rtt_ps: base_rtt as f32,
            host_delay_ps: 0.0,
            acked: 0,
            to_ignore: 0,
            count: 0,
            increase: false,
            trigger_qa: false,
            in_period: false,
            usual: false,
            shared,
        };
        flow.bound::<false>();
        flow
    }

    /// Makes all timers due: they count as if they had last run long ago.
    fn start(&mut self, now: Time) {
        // The hosts' delay is averaged after the start only.
        if !self.usual && self.host_delay_ps == 0.0 {
            let long_ago = now - Span::from_ps(LONGEST_TIMER_PS);
            (self.end, self.last_decrease) = (long_ago, long_ago);
            self.usual = true;
        }
    }

    #[inline(always)]
    fn bound<const HOSTS: bool>(&mut self) {
        let bounded = smaller(self.loop_rtt::<HOSTS>() * self.shared.max_window_per_ps, self.cwnd);
        self.cwnd = if bounded > self.shared.min_window { bounded } else { self.shared.min_window };
    }

    #[inline(always)]
    fn average_in(&mut self, rtt: f64) {
        self.avg_rtt_ps += self.shared.gain * (rtt as f32 - self.avg_rtt_ps);
    }

    /// Time of a round trip through the idle network and both hosts, picoseconds. If not `HOSTS`, no packet has waited
    /// in them of late.
    #[inline(always)]
    fn loop_rtt<const HOSTS: bool>(&self) -> f64 {
        if HOSTS { self.base_rtt + f64::from(self.host_delay_ps) } else { self.base_rtt }
    }

    fn average_in_host_delay(&mut self, waited: Span) {
        let average = self.host_delay_ps + HOST_DELAY_GAIN * (waited.as_ps() as f32 - self.host_delay_ps);
        let most = self.shared.network_rtt_ps as f64 - self.base_rtt;
        // Less than a nanosecond is none: the average alone would never end.
        self.host_delay_ps = if average < 1e3 { 0.0 } else { average.min(most as f32) };
        self.usual = self.host_delay_ps == 0.0;
    }

    /// Algorithm 4, for an ACK. All calls in it are tail calls, so that it needs no stack.
    #[inline(always)]
    fn congestion_loop<const HOSTS: bool>(&mut self, now: Time, bytes: u32, ack: &AckSample, rtt: f64) {
        self.acked = self.acked.saturating_add(bytes);
        self.to_ignore = self.to_ignore.saturating_sub(bytes);
        if self.to_ignore > 0 {
            return;
        }
        if reached(now, self.end) {
            return self.at_period_end::<HOSTS>(now, bytes, ack, rtt);
        }
        if self.fast_increase(bytes, ack.ecn, rtt) {
            return self.bound::<HOSTS>();
        }
        self.core_cases::<HOSTS>(now, bytes, ack.ecn, rtt);
    }

    #[inline(never)]
    fn at_period_end<const HOSTS: bool>(&mut self, now: Time, bytes: u32, ack: &AckSample, rtt: f64) {
        if !self.shared.trimming {
            self.trigger_without_trims(rtt);
        }
        let adapted = self.quick_adapt::<HOSTS>(now, ack.in_flight);
        let increased = self.fast_increase(bytes, ack.ecn, rtt);
        if adapted || increased {
            return self.bound::<HOSTS>();
        }
        self.core_cases::<HOSTS>(now, bytes, ack.ecn, rtt);
    }

    /// Algorithm 2, at the end of a period.
    #[inline(always)]
    fn quick_adapt<const HOSTS: bool>(&mut self, now: Time, in_flight: u64) -> bool {
        let adapted = self.trigger_qa && self.in_period;
        if adapted {
            self.trigger_qa = false;
            self.cwnd = f64::from(self.acked) * self.shared.qa_scaling;
            self.to_ignore = bytes_u32(in_flight);
        }
        self.end = now + Span::from_ps((self.loop_rtt::<HOSTS>() * self.shared.target) as i64 as u64);
        self.in_period = true;
        self.acked = 0;
        adapted
    }

    /// §III-E a: without trimming, a high RTT and few acknowledged bytes trigger QuickAdapt.
    fn trigger_without_trims(&mut self, rtt: f64) {
        let high = rtt > self.base_rtt * self.shared.qa_rtt;
        let few = f64::from(self.acked) < self.cwnd * self.shared.qa_acked;
        self.trigger_qa |= self.in_period && high && few;
    }

    /// Algorithm 3.
    #[inline(always)]
    fn fast_increase(&mut self, bytes: u32, ecn: bool, rtt: f64) -> bool {
        if ecn || rtt > self.base_rtt * self.shared.near_base {
            self.count = 0;
            self.increase = false;
            return false;
        }
        self.count = self.count.saturating_add(bytes);
        self.increase |= f64::from(self.count) > self.cwnd;
        if self.increase {
            self.cwnd += self.shared.k * f64::from(bytes);
        }
        self.increase
    }

    /// Algorithm 1.
    #[inline(always)]
    fn core_cases<const HOSTS: bool>(&mut self, now: Time, bytes: u32, ecn: bool, rtt: f64) {
        let target = self.base_rtt * self.shared.target;
        if ecn {
            // Below the target the load balancer changes the path and the window stays (§III-I1).
            if rtt > target {
                self.multiplicative_decrease::<HOSTS>(now);
            }
            return self.bound::<HOSTS>();
        }
        let size = f64::from(bytes);
        // The common factor of equations 2 and 3: p.size/cwnd · mtu · (BDP / reference BDP).
        let packet = size / self.cwnd * self.base_rtt;
        if rtt > target {
            // Equation 2.
            self.cwnd += packet * self.shared.fi_per_ps;
        } else {
            // Equation 3, then equation 2.
            let proportional = (target - rtt) / rtt * packet * self.shared.pi_per_ps;
            self.cwnd += smaller(proportional, size) + packet * self.shared.fair_per_ps;
        }
        self.bound::<HOSTS>();
    }

    /// Equation 1, once per base RTT.
    #[inline(always)]
    fn multiplicative_decrease<const HOSTS: bool>(&mut self, now: Time) {
        let avg = f64::from(self.avg_rtt_ps);
        let rested = elapsed_ps(now, self.last_decrease) >= self.loop_rtt::<HOSTS>() as i64 as u64;
        if rested && avg > self.base_rtt * self.shared.target {
            // 1 − s·(avg − trtt)/avg is (1 − s) + s·trtt/avg.
            let factor = self.shared.md_base + self.shared.md_slope * self.base_rtt / avg;
            self.cwnd *= factor.max(self.shared.md_floor);
            self.last_decrease = now;
        }
    }

    /// Handles an ACK that is the flow's first one, lowers the base RTT, has no RTT, or comes from hosts that measure how
    /// long packets wait in them.
    #[cold]
    fn on_rare_ack(&mut self, now: Time, ack: &AckSample) {
        self.start(now);
        let rtt = match ack.rtt {
            Some(rtt) => {
                let rtt = rtt.as_ps().clamp(1, LONGEST_RTT_PS) as f64;
                self.base_rtt = self.base_rtt.min(rtt);
                self.average_in(rtt);
                rtt
            }
            None => f64::from(self.avg_rtt_ps),
        };
        self.average_in_host_delay(ack.hosts.unwrap_or_default().delay());
        self.bound::<true>();
        self.congestion_loop::<true>(now, ack.newly_received, ack, rtt);
    }
}

impl SenderCc for Smartt {
    #[inline]
    fn on_ack(&mut self, now: Time, ack: &AckSample) {
        // The order of these tests is the one for which the compiler needs the fewest instructions.
        if !self.usual || ack.hosts.is_some() {
            return self.on_rare_ack(now, ack);
        }
        let Some(rtt) = ack.rtt else { return self.on_rare_ack(now, ack) };
        // As a signed number a huge RTT is negative, so that one comparison finds both.
        let rtt = rtt.as_ps() as i64 as f64;
        if rtt < self.base_rtt {
            return self.on_rare_ack(now, ack);
        }
        self.average_in(rtt);
        self.congestion_loop::<false>(now, ack.newly_received, ack, rtt);
    }

    /// Algorithm 4, for a trim.
    fn on_nack(&mut self, now: Time, nack: &NackSample) {
        self.start(now);
        let bytes = bytes_u32(nack.bytes);
        if self.shared.count_trims {
            self.acked = self.acked.saturating_add(bytes);
        }
        self.to_ignore = self.to_ignore.saturating_sub(bytes);
        if self.to_ignore > 0 && self.shared.ignore_trims {
            return;
        }
        self.cwnd -= f64::from(bytes);
        self.trigger_qa = true;
        if self.to_ignore == 0 && reached(now, self.end) {
            self.quick_adapt::<true>(now, nack.in_flight);
        }
        self.bound::<true>();
    }

    fn on_timeout(&mut self, _now: Time, lost: &LossSample) {
        let bytes = bytes_u32(lost.bytes);
        self.to_ignore = self.to_ignore.saturating_sub(bytes);
        if self.to_ignore == 0 {
            self.cwnd -= f64::from(bytes);
        }
        self.bound::<true>();
    }

    #[inline]
    fn window(&self) -> Window {
        Window(self.cwnd as u64)
    }

    fn expected_rtt(&self) -> Span {
        Span::from_ps((self.base_rtt * self.shared.target) as u64)
    }

    fn snapshot(&self) -> CcSnapshot {
        let phase = match (self.to_ignore > 0, self.increase) {
            (true, _) => "ignore",
            (false, true) => "fast-increase",
            (false, false) => "core",
        };
        CcSnapshot {
            cwnd: self.cwnd as u64,
            base_rtt: Span::from_ps(self.base_rtt as u64),
            target: self.expected_rtt(),
            delay: Span::from_ps(self.avg_rtt_ps as u64),
            phase,
        }
    }
}

#[cfg(test)]
mod tests;
