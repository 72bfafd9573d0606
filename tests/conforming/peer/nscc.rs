//! NSCC as UET §3.6.13 describes it, in floating point: the window of the conforming initiator.

use super::Ps;

/// An initiator's congestion window. Sizes are nominal bytes, times ps.
pub(crate) struct Nscc {
    mtu: f64,
    rate: f64,
    config_base_rtt: f64,
    /// The least RTT seen.
    base_rtt: f64,
    cwnd: f64,
    /// The window when the receiver's flow control began.
    saved: f64,
    /// Increases since the last adjustment, times the window, and the bytes received since then.
    increases: f64,
    received: f64,
    last_adjust: Ps,
    avg_delay: f64,
    last_decrease: Ps,
    /// Bytes acknowledged in a row without delay.
    undelayed: f64,
    fast_increase: bool,
    /// The period of quick adapt: its end, the bytes received in it, and whether it saw a trimmed packet.
    period_end: Ps,
    achieved: f64,
    trimmed: bool,
    /// Bytes in flight at the last quick adapt that have not left the network. Their marks say nothing new.
    to_ignore: f64,
}

/// The NSCC part of an acknowledgement.
pub(crate) struct Feedback {
    pub(crate) newly_received: u64,
    /// The RTT of the packet that triggered it, if it is unambiguous.
    pub(crate) rtt: Option<Ps>,
    pub(crate) marked: bool,
    /// `rcv_cwnd_pend`: 0 has no effect.
    pub(crate) penalty: u8,
    /// `rc`.
    pub(crate) restore: bool,
    /// Without what is newly received.
    pub(crate) in_flight: u64,
}

const US: f64 = 1e6;
/// Quick adapt looks for less than an eighth of the largest window.
const QA_GATE: f64 = 8.0;

impl Nscc {
    /// For packets of `mtu` nominal bytes and a link rate in bit/s.
    pub(crate) fn new(mtu: u64, base_rtt: Ps, rate: u64) -> Nscc {
        let mut nscc = Nscc {
            mtu: mtu as f64,
            rate: rate as f64 / 8e12,
            config_base_rtt: base_rtt as f64,
            base_rtt: base_rtt as f64,
            cwnd: 0.0,
            saved: 0.0,
            increases: 0.0,
            received: 0.0,
            last_adjust: 0,
            avg_delay: 0.0,
            last_decrease: 0,
            undelayed: 0.0,
            fast_increase: false,
            period_end: 0,
            achieved: 0.0,
            trimmed: false,
            to_ignore: 0.0,
        };
        nscc.cwnd = nscc.largest();
        nscc
    }

    /// Bytes.
    pub(crate) fn window(&self) -> u64 {
        self.cwnd as u64
    }

    fn largest(&self) -> f64 {
        1.5 * self.rate * self.base_rtt
    }

    fn target(&self) -> f64 {
        0.75 * self.config_base_rtt
    }

    /// The BDP in units of that for which the constants are stated, 100 Gbit/s and 12 µs.
    fn scale(&self) -> f64 {
        self.rate * self.config_base_rtt / 150_000.0
    }

    pub(crate) fn on_ack(&mut self, now: Ps, feedback: &Feedback) {
        let newly = feedback.newly_received as f64;
        self.to_ignore -= newly;
        self.received += newly;
        self.achieved += newly;
        let limited = self.obey_receiver(feedback, newly);
        if let Some(rtt) = feedback.rtt {
            self.base_rtt = self.base_rtt.min(rtt as f64);
            let delay = rtt as f64 - self.base_rtt;
            self.note_delay(delay, feedback.marked);
            if !self.quick_adapt(now, feedback.marked, delay, feedback.in_flight) {
                self.react(now, feedback.marked, delay, newly, limited);
            }
        }
        self.clamp();
    }

    /// UET §3.6.13.2: whether the receiver holds the window down.
    fn obey_receiver(&mut self, feedback: &Feedback, newly: f64) -> bool {
        if feedback.penalty > 0 {
            if self.saved == 0.0 {
                self.saved = self.cwnd;
            }
            self.cwnd =
                self.cwnd.min(feedback.in_flight as f64) - f64::from(feedback.penalty) * newly / 128.0;
        } else if feedback.restore && self.saved > 0.0 {
            self.cwnd = self.saved;
            self.saved = 0.0;
        }
        feedback.penalty > 0
    }

    fn note_delay(&mut self, delay: f64, marked: bool) {
        // A queue that is no longer marked is draining.
        let sample = if !marked && delay > self.target() { self.base_rtt / 4.0 } else { delay };
        self.avg_delay += 0.0125 * (sample - self.avg_delay);
    }

    fn react(&mut self, now: Ps, marked: bool, delay: f64, newly: f64, limited: bool) {
        let (target, scale) = (self.target(), self.scale());
        match (marked, delay >= target) {
            (false, _) if limited => {}
            (false, true) => self.increases += 5.0 * self.mtu * scale * newly,
            (false, false) => {
                self.undelayed = if delay < US { self.undelayed + newly } else { 0.0 };
                self.fast_increase = delay < US && (self.fast_increase || self.undelayed > self.cwnd);
                if self.fast_increase {
                    self.cwnd += newly * 0.25 * scale;
                } else {
                    let alpha = 4.0 * self.mtu * scale / (12.0 * US);
                    self.increases += alpha * newly * (target - delay);
                }
            }
            (true, false) => {}
            (true, true) => self.decrease(now),
        }
        let due = (now - self.last_adjust) as f64 >= self.config_base_rtt;
        if due || self.received > 8.0 * self.mtu {
            self.cwnd += self.increases / self.cwnd;
            (self.increases, self.received) = (0.0, 0.0);
        }
        if due {
            self.cwnd += 0.15 * self.mtu * scale;
            self.last_adjust = now;
        }
    }

    /// Once per base RTT.
    fn decrease(&mut self, now: Ps) {
        (self.fast_increase, self.undelayed) = (false, 0.0);
        let above = self.avg_delay - self.target();
        if above > 0.0 && (now - self.last_decrease) as f64 > self.base_rtt {
            self.cwnd *= (1.0 - 0.8 * above / self.avg_delay).max(0.5);
            self.last_decrease = now;
        }
    }

    /// At the end of a period with trimmed packets or much delay, the window becomes what has arrived in it if that was
    /// little. Whether this took the place of another reaction.
    fn quick_adapt(&mut self, now: Ps, marked: bool, delay: f64, in_flight: u64) -> bool {
        let mut done = marked && self.to_ignore > 0.0;
        if !done && now >= self.period_end {
            let bad = self.trimmed || delay > 4.0 * self.target();
            done = self.period_end > 0 && bad && self.achieved < self.largest() / QA_GATE;
            if done {
                (self.cwnd, self.to_ignore, self.trimmed) = (self.achieved, in_flight as f64, false);
            }
            self.period_end = now + (self.base_rtt + self.target()) as Ps;
            self.achieved = 0.0;
        }
        if done {
            (self.increases, self.received) = (0.0, 0.0);
        }
        done
    }

    /// A packet of `size` bytes was trimmed; `in_flight` is without it.
    pub(crate) fn on_trim(&mut self, now: Ps, size: u64, in_flight: u64) {
        self.avg_delay += 0.0125 * (self.config_base_rtt - self.avg_delay);
        self.to_ignore -= size as f64;
        self.trimmed = true;
        if !self.quick_adapt(now, true, 0.0, in_flight) {
            self.cwnd -= size as f64;
        }
        self.clamp();
    }

    /// A packet of `size` bytes is believed lost.
    pub(crate) fn on_loss(&mut self, size: u64) {
        self.to_ignore -= size as f64;
        self.cwnd -= size as f64;
        self.clamp();
    }

    fn clamp(&mut self) {
        self.cwnd = self.cwnd.min(self.largest()).max(self.mtu);
    }
}
