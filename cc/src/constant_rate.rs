//! A rate that never changes, whatever becomes of the packets. Background traffic of experiments sends so; it is not
//! congestion control, so the [registry](crate::registry) does not list it.

use crate::constant::Constant;
use crate::{
    AckSample, CcParams, CcSnapshot, LossSample, NackSample, PS_PER_SEC, Rate, SenderCc, SentPacket, Span,
    Time, Window,
};

/// How many packets may leave at once to make up for a delay at the sender. Longer pauses are not made up for.
const MAKES_UP: u64 = 4;

/// Packets leave at a constant rate of payload as long as there is something to send, with no limit on what is in flight.
/// What is sent again is part of the rate.
#[derive(Clone, Copy, Debug)]
pub struct ConstantRate {
    /// Tracks the RTT, for the timers.
    window: Constant,
    rate: Rate,
    /// Bytes of a packet beyond its payload.
    overhead: u64,
    /// The longest delay that is made up for.
    longest_delay: Span,
    /// When the next packet is due; `None` before the first.
    next: Option<Time>,
    /// What is missing to `next` for lack of fractions of a picosecond, in units of one picosecond over the rate.
    rest: u64,
}

impl ConstantRate {
    /// A flow of `rate`, payload in bits per second.
    pub fn new(rate: Rate, params: &CcParams) -> ConstantRate {
        ConstantRate {
            window: Constant::fixed(Window::UNLIMITED, "constant-rate", params),
            rate,
            overhead: u64::from(params.overhead),
            longest_delay: rate.time_for(MAKES_UP * u64::from(params.mtu)),
            next: None,
            rest: 0,
        }
    }
}

impl SenderCc for ConstantRate {
    fn on_send(&mut self, now: Time, pkt: &SentPacket) {
        let due = self.next.filter(|next| now.since(*next) <= self.longest_delay).unwrap_or(now);
        let payload = u128::from(pkt.bytes.saturating_sub(self.overhead));
        // Fractions of a picosecond are kept, because rounding them would add up.
        let time = payload * 8 * u128::from(PS_PER_SEC) + u128::from(self.rest);
        let bps = u128::from(self.rate.as_bps().max(1));
        self.rest = (time % bps) as u64;
        self.next = Some(due + Span::from_ps(u64::try_from(time / bps).unwrap_or(u64::MAX)));
    }

    fn on_ack(&mut self, now: Time, ack: &AckSample) {
        self.window.on_ack(now, ack);
    }

    fn on_nack(&mut self, now: Time, nack: &NackSample) {
        self.window.on_nack(now, nack);
    }

    fn on_timeout(&mut self, now: Time, lost: &LossSample) {
        self.window.on_timeout(now, lost);
    }

    fn window(&self) -> Window {
        self.window.window()
    }

    fn next_departure(&self) -> Option<Time> {
        self.next
    }

    fn expected_rtt(&self) -> Span {
        self.window.expected_rtt()
    }

    fn snapshot(&self) -> CcSnapshot {
        self.window.snapshot()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At 30 Gbit/s a packet of 4,096 bytes takes 1,092,266 ⅔ ps.
    fn flow() -> ConstantRate {
        let params = CcParams {
            mtu: 4096,
            overhead: 64,
            link_rate: Rate::from_gbps(100),
            network_rtt: Span::from_us(12),
            trimming: true,
            delays: crate::Delays::Known,
        };
        ConstantRate::new(Rate::from_gbps(30), &params)
    }

    fn send(flow: &mut ConstantRate, now: Time) {
        let sent = SentPacket { bytes: 4160, in_flight: 4160, retransmission: false, app_limited: false };
        flow.on_send(now, &sent);
    }

    #[test]
    fn packets_leave_at_the_rate_to_the_picosecond() {
        let mut flow = flow();
        for _ in 0..3_000 {
            let now = flow.next_departure().unwrap_or(Time::ZERO);
            send(&mut flow, now);
        }
        assert_eq!(flow.next_departure(), Some(Time::from_ps(3_276_800_000)));
        flow.on_timeout(Time::ZERO, &LossSample { bytes: 4160, in_flight: 0, expiries: 3 });
        assert_eq!(
            (flow.window(), flow.next_departure()),
            (Window::UNLIMITED, Some(Time::from_ps(3_276_800_000)))
        );
    }

    #[test]
    fn short_delays_are_made_up_for_and_pauses_are_not() {
        let mut flow = flow();
        send(&mut flow, Time::ZERO);
        send(&mut flow, Time::from_ps(4_000_000));
        assert_eq!(flow.next_departure(), Some(Time::from_ps(2_184_533)), "as if it had left in time");
        send(&mut flow, Time::from_ps(9_000_000));
        assert_eq!(
            flow.next_departure(),
            Some(Time::from_ps(10_092_267)),
            "too late: the rate counts from here"
        );
    }
}
