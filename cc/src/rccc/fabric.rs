//! The share of the line rate at which credit is granted while a bottleneck inside the fabric limits the senders.
//!
//! Credit at line rate controls the receiver's own link. Where the fabric has less capacity than its hosts, its queues
//! mark and trim. The receiver sees this on the packets that arrive. Once per period, a little longer than
//! an RTT, it takes the share of packets that were trimmed inside the fabric off the rate, and lowers the rate in
//! proportion to the smoothed share of marked packets beyond a target. While neither asks for less the rate grows: by
//! a constant step in a period with marks, by steps that double in periods without.
//!
//! Source: `OversubscribedCC` of uet-htsim, with its constants. Deviations:
//! - Marks are ignored in a period in which data fills the receiver's own link, because then the queue of that link has
//!   set them. In the code the last hop does not mark.
//! - All periods have the same length. In the code it varies at random, so that receivers do not act in step.

use super::RcccConfig;
use crate::deadline::{elapsed_ps, reached};
use crate::{CcParams, DataSample, Span, Time, Trim};

/// Length of a period, in RTTs of the idle network: the effect of a change is seen after one.
const PERIOD_RTTS: f64 = 1.5;
/// Share of marked packets up to which the rate is not lowered.
const TARGET: f64 = 0.3;
/// The least rate, as a share of what the fabric can carry for each host, and of the line rate.
const LEAST: (f64, f64) = (0.9, 0.01);
/// Share of the link's capacity in a period from which on the receiver's own link counts as the bottleneck.
const FULL: f64 = 0.9;
/// Steps of an increase double this often: then one of them restores the whole rate.
const MOST_DOUBLINGS: u32 = 7;

/// What has arrived in a period.
#[derive(Clone, Copy, Debug, Default)]
struct Arrivals {
    packets: u32,
    marked: u32,
    trimmed_in_fabric: u32,
    trimmed_at_last_hop: u32,
    bytes: u64,
}

/// The control of one endpoint.
#[derive(Clone, Debug)]
pub(super) struct FabricShare {
    share: f64,
    least: f64,
    /// Moving average of the share of marked packets.
    marked: f64,
    gain: f64,
    decrease: f64,
    increase: f64,
    calm_periods: u32,
    arrivals: Arrivals,
    /// End of the period; none before the first packet.
    until: Option<Time>,
    period: Span,
    /// Bytes from which on the receiver's own link counts as full in a period.
    full: u64,
    /// Bytes on the wire of a trimmed packet.
    header: u64,
}

impl FabricShare {
    pub(super) fn new(params: &CcParams, config: &RcccConfig) -> FabricShare {
        let period = Span::from_ps((params.network_rtt.as_ps() as f64 * PERIOD_RTTS).max(1.0) as u64);
        FabricShare {
            share: 1.0,
            least: (LEAST.0 / config.oversubscription).max(LEAST.1),
            marked: 0.0,
            gain: config.fabric_gain,
            decrease: config.fabric_decrease,
            increase: config.fabric_increase,
            calm_periods: 0,
            arrivals: Arrivals::default(),
            until: None,
            period,
            full: (params.link_rate.bytes_in(period) as f64 * FULL) as u64,
            header: u64::from(params.overhead),
        }
    }

    /// The rate of credit, as a share of the line rate.
    #[inline]
    pub(super) fn get(&self) -> f64 {
        self.share
    }

    pub(super) fn on_data(&mut self, now: Time, data: &DataSample) {
        self.end_period(now);
        let arrivals = &mut self.arrivals;
        arrivals.packets += 1;
        match data.trimmed {
            None => {
                arrivals.marked += u32::from(data.ecn);
                arrivals.bytes += data.bytes;
            }
            Some(Trim::InFabric) => arrivals.trimmed_in_fabric += 1,
            Some(Trim::LastHop) => arrivals.trimmed_at_last_hop += 1,
        }
        if data.trimmed.is_some() {
            arrivals.bytes += self.header;
        }
    }

    /// Ends the period if it is over. Later periods without a packet are calm.
    fn end_period(&mut self, now: Time) {
        let Some(until) = self.until else {
            self.until = Some(now + self.period);
            return;
        };
        if !reached(now, until) {
            return;
        }
        self.judge();
        self.arrivals = Arrivals::default();
        let empty = elapsed_ps(now, until) / self.period.as_ps();
        for _ in 0..empty.min(u64::from(MOST_DOUBLINGS) + 1) {
            self.judge();
        }
        self.until = Some(if empty == 0 { until + self.period } else { now + self.period });
    }

    fn judge(&mut self) {
        let Arrivals { packets, marked, trimmed_in_fabric, trimmed_at_last_hop, bytes } = self.arrivals;
        let whole = packets - trimmed_in_fabric - trimmed_at_last_hop;
        let marked = if bytes >= self.full { 0 } else { marked };
        let fraction = if whole == 0 { 0.0 } else { f64::from(marked) / f64::from(whole) };
        self.marked += (fraction - self.marked) * self.gain;
        let before = self.share;
        if trimmed_in_fabric > 0 {
            self.share -= f64::from(trimmed_in_fabric) / f64::from(packets);
        }
        if self.marked > TARGET {
            self.share *= 1.0 - (self.marked - TARGET) * self.decrease;
        }
        if self.share < before {
            self.calm_periods = 0;
        } else {
            let doublings = if marked == 0 { self.calm_periods } else { 0 };
            self.share += self.increase * f64::from(1 << doublings);
            self.calm_periods = (self.calm_periods + 1).min(MOST_DOUBLINGS);
        }
        self.share = self.share.clamp(self.least, 1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rate;

    const RTT: Span = Span::from_us(10);
    const PERIOD: Span = Span::from_us(15);

    fn control() -> FabricShare {
        FabricShare::new(
            &CcParams {
                mtu: 4_000,
                overhead: 64,
                link_rate: Rate::from_gbps(100),
                network_rtt: RTT,
                trimming: true,
                delays: crate::Delays::Known,
            },
            &RcccConfig { oversubscription: 100.0, ..RcccConfig::default() },
        )
    }

    fn packet(ecn: bool, trimmed: Option<Trim>) -> DataSample {
        DataSample { bytes: 1_000, scheduled: true, ecn, trimmed, congested_sender: false }
    }

    /// Ten packets in each of `periods` periods; the first `n` of them are `packet`, the others unmarked.
    fn periods(cc: &mut FabricShare, now: &mut Time, periods: u32, n: u32, packet_: DataSample) {
        for _ in 0..periods {
            for i in 0..10 {
                let sample = if i < n { packet_ } else { packet(false, None) };
                cc.on_data(*now, &sample);
            }
            *now += PERIOD;
        }
        cc.end_period(*now);
    }

    #[test]
    fn marks_up_to_the_target_leave_the_rate_alone() {
        let (mut cc, mut now) = (control(), Time::from_ps(u64::MAX - 20_000_000));
        periods(&mut cc, &mut now, 20, 3, packet(true, None));
        assert_eq!(cc.get(), 1.0);
    }

    #[test]
    fn marks_beyond_the_target_lower_the_rate_in_proportion() {
        let (mut cc, mut now) = (control(), Time::ZERO);
        periods(&mut cc, &mut now, 1, 10, packet(true, None));
        // The average of 0 and 1 is 0.5: 0.2 beyond the target.
        assert!((cc.get() - 0.9).abs() < 1e-12, "{}", cc.get());
        periods(&mut cc, &mut now, 1, 10, packet(true, None));
        assert!((cc.get() - 0.9 * (1.0 - 0.45 * 0.5)).abs() < 1e-12, "{}", cc.get());
    }

    #[test]
    fn trims_inside_the_fabric_come_off_the_rate_and_those_at_the_last_hop_do_not() {
        let (mut cc, mut now) = (control(), Time::ZERO);
        periods(&mut cc, &mut now, 1, 4, packet(false, Some(Trim::LastHop)));
        assert_eq!(cc.get(), 1.0);
        periods(&mut cc, &mut now, 1, 4, packet(false, Some(Trim::InFabric)));
        assert!((cc.get() - 0.6).abs() < 1e-12, "{}", cc.get());
    }

    #[test]
    fn the_rate_recovers_in_steps_that_double_and_never_falls_below_its_floor() {
        let (mut cc, mut now) = (control(), Time::ZERO);
        periods(&mut cc, &mut now, 3, 10, packet(false, Some(Trim::InFabric)));
        assert_eq!(cc.get(), 0.01);
        for expected in [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0] {
            periods(&mut cc, &mut now, 1, 0, packet(false, None));
            assert!((cc.get() - expected).abs() < 1e-12, "{} instead of {expected}", cc.get());
        }
    }

    #[test]
    fn a_silence_restores_the_rate() {
        let (mut cc, mut now) = (control(), Time::ZERO);
        periods(&mut cc, &mut now, 3, 10, packet(false, Some(Trim::InFabric)));
        cc.on_data(now + PERIOD.times(20), &packet(false, None));
        assert_eq!(cc.get(), 1.0);
    }

    #[test]
    fn marks_do_not_count_while_the_receivers_own_link_is_full() {
        let (mut cc, mut now) = (control(), Time::ZERO);
        // 15 µs at 100 Gbit/s are 187,500 bytes.
        let large = DataSample { bytes: 18_000, ..packet(true, None) };
        periods(&mut cc, &mut now, 10, 10, large);
        assert_eq!(cc.get(), 1.0);
    }
}
