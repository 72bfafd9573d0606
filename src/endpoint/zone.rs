//! Settings towards peers of one zone.

use weft_stack::cc::{CcChoice, CcParams, Span};
use weft_stack::fep::Zone;
use weft_stack::pdc::PdcConfig;
use weft_stack::spray::LbChoice;

use super::setup::{GUESSED_RTT, Settings, delays};
use crate::port::PortFacts;

/// How an endpoint works towards the peers of one zone: those whose IP addresses begin with a prefix
/// ([`Settings::zones`]).
#[derive(Clone)]
pub struct ZoneSettings {
    /// Congestion control. Default: `nscc`. Both ends need the same one if it uses credit.
    pub cc: CcChoice,
    /// Load balancing. Default: `mixed`.
    pub lb: LbChoice,
    /// Whether the switches on the way to these peers trim packets. Default: false.
    pub trimming: bool,
    /// The round-trip time to these peers when the network is idle. Default: as to peers in no zone. A connection to
    /// these peers may have six times the bytes in flight that the link carries in this time, at most 32,640 packets
    /// and no fewer than [`Settings::mp_range`] says.
    pub rtt: Option<Span>,
    /// The first retransmission timeout. Default: that of peers in no zone, or twice [`ZoneSettings::rtt`] if that is
    /// longer.
    pub rto: Option<Span>,
}

impl Default for ZoneSettings {
    fn default() -> ZoneSettings {
        let Settings { cc, lb, trimming, rtt, .. } = Settings::default();
        ZoneSettings { cc, lb, trimming, rtt, rto: None }
    }
}

impl ZoneSettings {
    /// The zone of an endpoint with `settings`, whose zone of other peers is `others`.
    pub(super) fn zone(&self, settings: &Settings, port: &PortFacts, others: &Zone) -> Zone {
        let rtt = self.rtt.or(settings.rtt);
        let network_rtt = rtt.unwrap_or(GUESSED_RTT);
        let params =
            CcParams { network_rtt, trimming: self.trimming, delays: delays(rtt), ..*others.cc.params() };
        let packets = (params.network_bdp() * 6 / params.wire_mtu()).min(32_640) as u32;
        let base = Zone::new(&self.cc, &params);
        let pdc = PdcConfig {
            rto_init: self.rto.unwrap_or(others.pdc.rto_init.max(network_rtt.times(2))),
            mp_range: (packets / 128 * 128).max(settings.mp_range),
            infer_loss: base.pdc.infer_loss,
            ..others.pdc
        };
        Zone { lb: self.lb.clone(), paths: port.paths, pdc, ..base }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Endpoint;
    use crate::cc::SenderCc;
    use weft_stack::fep::{ConnectOptions, Windows};
    use weft_stack::packet::Addr;
    use weft_stack::spray::LbChoice;

    #[test]
    fn peers_of_a_prefix_are_treated_as_their_zone_says() {
        let cc = CcChoice::parse("constant").unwrap();
        let rtt = Span::from_ms(30);
        let far = ZoneSettings {
            cc,
            rtt: Some(rtt),
            lb: LbChoice::parse("ecmp").unwrap(),
            ..ZoneSettings::default()
        };
        let builder = Endpoint::builder("udp:127.44.1.1").windows(Windows::Flow);
        let builder = builder.zone("127.44.2.0/24".parse().unwrap(), far);
        let (mut worker, _, setup) = builder.peer("127.44.1.2").peer("127.44.2.2").build_worker().unwrap();
        let now = worker.clock().now();
        let mut cwnd = |peer| {
            let id = worker.fep_mut().connect(now, Addr(peer), ConnectOptions::default()).unwrap();
            worker.fep().congestion(id).unwrap().cwnd
        };
        let params = *setup.config.zones.default.cc.params();
        let near = CcChoice::default().sender(&params).window().0;
        let one_bdp = CcParams { network_rtt: rtt, ..params }.network_bdp();
        assert_eq!((cwnd(1), cwnd(2)), (near, one_bdp));
        assert_eq!(setup.config.windows, Windows::Flow);
        let far = setup.config.zones.iter().nth(1).unwrap();
        assert_eq!(far.pdc.mp_range, 32_640, "100 Gbit/s and 30 ms are more than all there can be");
        assert_eq!(far.pdc.rto_init, setup.config.zones.default.pdc.rto_init);
    }
}
