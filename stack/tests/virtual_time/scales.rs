//! Windows, timers and counters hold for much data, long paths and fast links.

use std::collections::VecDeque;

use crate::harness::fep;
use weft_stack::buffer::{Buffer, MAX_MESSAGE};
use weft_stack::cc::{CcChoice, CcParams, Delays};
use weft_stack::fep::{Completion, ConnectOptions, Fep, FepConfig, Receive, Send};
use weft_stack::packet::{Addr, Packet, Payload};
use weft_stack::ses::Matching;
use weft_stack::{Rate, Span, Time};

/// The largest payload whose packets, with all headers, fit into jumbo frames of 16 KiB.
const MTU: u32 = 16_000;

/// A sender, a link that carries packets one after another, and a receiver whose answers take no time but the path's.
struct Flow {
    /// What the endpoints know of the path.
    params: CcParams,
    /// The path's round-trip time.
    path_rtt: Span,
    feps: [Fep; 2],
    now: Time,
    /// When the link has carried the last packet given to it.
    link_free: Time,
    /// Packets on their way to each endpoint, in the order in which they arrive.
    under_way: [VecDeque<(Time, Packet)>; 2],
    /// Largest window seen, bytes.
    largest_window: u64,
}

impl Flow {
    fn new(cc: &str, link_rate: Rate, network_rtt: Span) -> Flow {
        let params = CcParams {
            mtu: MTU,
            overhead: 64,
            link_rate,
            network_rtt,
            trimming: true,
            delays: Delays::Known,
        };
        Flow::over(network_rtt, cc, params)
    }

    /// A flow over a path whose RTT may differ from that in `params`.
    fn over(path_rtt: Span, cc: &str, params: CcParams) -> Flow {
        let config = FepConfig::new(&CcChoice::parse(cc).unwrap(), &params).with_zones(|zone| {
            (zone.pdc.rto_init, zone.pdc.mp_range) = (path_rtt.times(2), 32_640);
        });
        Flow {
            params,
            path_rtt,
            feps: [0, 1].map(|n| fep(n, config.clone(), 1, Time::ZERO)),
            now: Time::ZERO,
            link_free: Time::ZERO,
            under_way: [VecDeque::new(), VecDeque::new()],
            largest_window: 0,
        }
    }

    fn one_way(&self) -> Span {
        Span::from_ps(self.path_rtt.as_ps() / 2)
    }

    /// Sends `bytes` in as few messages as possible over one connection. Returns the time until the last byte is
    /// acknowledged.
    fn transfer(&mut self, bytes: u64) -> Span {
        let began = self.now;
        let connection = self.feps[0].connect(self.now, Addr(1), ConnectOptions::default()).unwrap();
        let lengths =
            (0..bytes.div_ceil(MAX_MESSAGE)).map(|n| (bytes - n * MAX_MESSAGE).min(MAX_MESSAGE) as u32);
        let mut expected: VecDeque<u32> = lengths.collect();
        for (context, &len) in (0..).zip(&expected) {
            let buffer = Buffer::Virtual(len);
            let receive = Receive { buffer, from: None, matching: Matching::Untagged, context };
            self.feps[1].post_receive(receive).unwrap();
            let send = Send { buffer: Buffer::Virtual(len), tag: None, header_data: 0, context };
            self.feps[0].post_send(connection, send).unwrap();
        }
        let mut unsent = expected.len();
        while unsent > 0 || !expected.is_empty() {
            self.step();
            self.largest_window = self.largest_window.max(self.feps[0].congestion(connection).unwrap().cwnd);
            while let Some(completion) = self.feps[0].poll_completion() {
                let Completion::Sent { result, retransmissions, .. } = completion else {
                    panic!("{completion:?}")
                };
                assert_eq!((result, retransmissions), (Ok(()), 0));
                unsent -= 1;
            }
            while let Some(completion) = self.feps[1].poll_completion() {
                let Completion::Received { len, result, .. } = completion else { panic!("{completion:?}") };
                assert_eq!((result, Some(len)), (Ok(()), expected.pop_front()));
            }
        }
        let took = self.now.since(began);
        self.feps[0].close(self.now, connection).unwrap();
        while !self.under_way.iter().all(VecDeque::is_empty) || self.feps[0].wants_to_transmit() {
            self.step();
        }
        took
    }

    /// Goes to the next event.
    fn step(&mut self) {
        while self.now.is_at_or_after(self.link_free)
            && let Some(packet) = self.next_packet(0)
        {
            let bytes = u64::from(packet.payload_len + self.params.overhead);
            self.link_free = self.now + self.params.link_rate.time_for(bytes);
            self.under_way[1].push_back((self.link_free + self.one_way(), packet));
        }
        while let Some(packet) = self.next_packet(1) {
            self.under_way[0].push_back((self.now + self.one_way(), packet));
        }
        let arrivals = self.under_way.iter().filter_map(|packets| packets.front().map(|(at, _)| *at));
        let link = self.now.is_before(self.link_free).then_some(self.link_free);
        let timers = self.feps.iter().filter_map(Fep::poll_timeout);
        let next = arrivals.chain(link).chain(timers).reduce(Time::earliest).expect("something is under way");
        self.now = next.latest(self.now);
        for side in 0..2 {
            let has_arrived = |(at, _): &(Time, Packet)| self.now.is_at_or_after(*at);
            while self.under_way[side].front().is_some_and(has_arrived)
                && let Some((_, packet)) = self.under_way[side].pop_front()
            {
                self.feps[side].on_packet(self.now, &packet, Payload::Virtual(packet.payload_len));
            }
            self.feps[side].on_timeout(self.now);
        }
    }

    fn next_packet(&mut self, from: usize) -> Option<Packet> {
        self.feps[from].poll_transmit(self.now).map(|transmit| transmit.packet)
    }

    /// Part of the link's time that `bytes` need, of `took`.
    fn share(&self, bytes: u64, took: Span) -> f64 {
        let wire = bytes + bytes.div_ceil(MTU.into()) * u64::from(self.params.overhead);
        self.params.link_rate.time_for(wire).as_ps() as f64 / took.as_ps() as f64
    }
}

#[test]
fn a_flow_of_100_gb_fills_a_link_of_800_gbits() {
    let mut flow = Flow::new("nscc", Rate::from_gbps(800), Span::from_us(12));
    let took = flow.transfer(100_000_000_000);
    let share = flow.share(100_000_000_000, took);
    assert!(share > 0.999, "{share} of the link's time");
    let counters = flow.feps[0].counters();
    assert_eq!((counters.data_retransmitted, counters.timeouts), (0, 0));
    assert!(flow.largest_window <= flow.params.network_bdp() * 3 / 2, "{}", flow.largest_window);
}

/// The algorithms that send at the rate of an idle path.
const ALGORITHMS: [&str; 6] = ["nscc", "smartt", "dctcp", "constant", "rccc", "nscc+rccc"];

#[test]
fn every_algorithm_fills_a_link_of_800_gbits() {
    for cc in ALGORITHMS {
        let mut flow = Flow::new(cc, Rate::from_gbps(800), Span::from_us(12));
        let took = flow.transfer(1_000_000_000);
        let share = flow.share(1_000_000_000, took);
        let least = match cc {
            // One BDP is under way, of which each acknowledgement that waits for a second packet keeps one idle.
            "constant" => 0.97,
            // Credit is granted at 0.99 of the line rate.
            "rccc" | "nscc+rccc" => 0.98,
            _ => 0.99,
        };
        assert!(share > least, "{cc}: {share} of the link's time");
        assert_eq!(flow.feps[0].counters().data_retransmitted, 0, "{cc}");
    }
}

#[test]
fn every_algorithm_fills_a_path_with_a_round_trip_time_of_100_ms() {
    for cc in ALGORITHMS {
        let mut flow = Flow::new(cc, Rate::from_gbps(10), Span::from_ms(100));
        let took = flow.transfer(4_000_000_000);
        let share = flow.share(4_000_000_000, took);
        // A round trip goes by after the last byte has left, and the first 4,096 packets are half a BDP.
        assert!(share > 0.94, "{cc}: {share} of the link's time");
        let counters = flow.feps[0].counters();
        assert_eq!((counters.data_retransmitted, counters.timeouts), (0, 0), "{cc}");
    }
}

/// Packets per RTT of 16 kB that grow by one with each RTT, as Swift's do below the target, up to `most`: the RTTs that
/// `bytes` take.
fn rtts_of_growth(bytes: u64, most: f64) -> u64 {
    let mut left = bytes as f64 / f64::from(MTU);
    let rtts = (1..).take_while(|rtt| {
        let goes_on = left > 0.0;
        left -= f64::from(*rtt).min(most);
        goes_on
    });
    rtts.count() as u64
}

#[test]
fn a_path_of_10_ms_is_used_though_nobody_has_said_its_rtt() {
    for cc in ["swift", "lswift", "mswift"] {
        let params = CcParams {
            mtu: MTU,
            overhead: 64,
            link_rate: Rate::from_gbps(10),
            network_rtt: Span::from_us(100),
            trimming: false,
            delays: Delays::Unknown,
        };
        let path_rtt = Span::from_ms(10);
        let mut flow = Flow::over(path_rtt, cc, params);
        let took = flow.transfer(50_000_000);
        // The largest window is what the link carries in twice the largest target, 125 and 100 µs, of the guessed RTT.
        let most = params.link_rate.bytes_in(Span::from_us(450)) as f64 / params.wire_mtu() as f64;
        let least = path_rtt.times(rtts_of_growth(50_000_000, most));
        let share = least.as_ps() as f64 / took.as_ps() as f64;
        assert!(
            (0.9..=1.05).contains(&share),
            "{cc}: {took}, {share} of what growth by a packet per RTT allows"
        );
        let counters = flow.feps[0].counters();
        assert_eq!((counters.data_retransmitted, counters.timeouts), (0, 0), "{cc}");
    }
}
