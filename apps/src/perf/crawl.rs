//! Tells a user whose test crawls because congestion control aims at a delay that the path does not have.

use weft_cc::{CcSnapshot, Span, Time};

/// Time between two looks at the congestion control.
const BETWEEN_LOOKS: Span = Span::from_ms(1_000);
/// Looks in a row that have to find the same: an incast is over by then, or has settled above one packet.
const LOOKS: u32 = 3;

/// Looks at the congestion control of a connection now and then, and speaks up once.
#[derive(Debug, Default)]
pub(super) struct Crawl {
    next_look: Option<Time>,
    crawled: u32,
}

impl Crawl {
    /// Returns a notice for the user, once, if the connection has crawled for some seconds. `congestion` returns the state of its
    /// congestion control.
    #[inline]
    pub(super) fn check(
        &mut self,
        now: Time,
        congestion: impl FnOnce() -> Option<CcSnapshot>,
    ) -> Option<String> {
        if self.crawled == LOOKS || self.next_look.is_some_and(|at| now.is_before(at)) {
            return None;
        }
        self.look(now, congestion()?)
    }

    #[cold]
    fn look(&mut self, now: Time, state: CcSnapshot) -> Option<String> {
        self.next_look = Some(now + BETWEEN_LOOKS);
        // Less than a packet is under way on average, so the delay is not the queue of this connection.
        let crawls = state.phase == "paced" && state.delay > state.target;
        self.crawled = if crawls { self.crawled + 1 } else { 0 };
        (self.crawled == LOOKS).then(|| {
            format!(
                "congestion control sends less than a packet per round trip, as packets take {} through the network, \
                 longer than its target of {}: if others' packets do not queue there, the path is longer than --rtt or \
                 base_target says (without them, the target follows what is measured)",
                state.delay, state.target
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_cc::{AckSample, CcChoice, CcParams, Delays, Rate, SenderCc};

    /// Runs a flow for 10 s over a path whose RTT is 10 ms, with the option `--rtt` set to `said`. Returns the notices, each with
    /// the time in ms at which it was given.
    fn notices(said: Option<Span>) -> Vec<(u64, String)> {
        let params = CcParams {
            mtu: 4096,
            overhead: 64,
            link_rate: Rate::from_gbps(10),
            network_rtt: said.unwrap_or(Span::from_us(100)),
            trimming: false,
            delays: said.map_or(Delays::Unknown, |_| Delays::HostsUnknown),
        };
        let mut swift = CcChoice::parse("swift").unwrap().prepare(&params).sender();
        let (mut crawl, mut notices) = (Crawl::default(), Vec::new());
        for n in 1..=1_000 {
            let now = Time::ZERO + Span::from_ms(10).times(n);
            swift.on_ack(now, &AckSample { newly_received: 4160, ..ack() });
            notices.extend(crawl.check(now, || Some(swift.snapshot())).map(|said| (n * 10, said)));
        }
        notices
    }

    fn ack() -> AckSample {
        AckSample {
            newly_received: 0,
            trigger_bytes: 4160,
            rtt: Some(Span::from_ms(10)),
            ecn: false,
            in_flight: 4160,
            out_of_order: 0,
            hosts: None,
        }
    }

    #[test]
    fn a_user_is_told_once_that_the_path_is_longer_than_said() {
        let notices = notices(Some(Span::from_ms(1)));
        assert_eq!(notices.len(), 1, "{notices:?}");
        let (at_ms, said) = &notices[0];
        assert!((3_000..4_000).contains(at_ms), "{at_ms}");
        assert!(
            said.contains("packets take 10 ms through the network, longer than its target of 2.25 ms"),
            "{said}"
        );
    }

    #[test]
    fn nothing_is_said_where_the_target_can_be_met() {
        assert_eq!(notices(Some(Span::from_ms(10))), []);
        assert_eq!(notices(None), []);
    }
}
