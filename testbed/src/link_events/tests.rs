//! Parsing, refusals, and round trips of link events.

use proptest::prelude::*;
use weft_cc::{Rate, Span, Time};

use super::{Degradation, SlowDirection, parse_link_change, parse_link_events, write_link_event};
use crate::sim::{BlockLosses, CorrelatedLoss, GilbertElliott, LinkChange, LinkDirections, LinkEvent, Share};
use crate::topology::{HostId, PortId, Topology, TopologySpec};

fn fabric() -> Topology {
    SPEC.parse::<TopologySpec>().unwrap().build().unwrap()
}

const SPEC: &str = "leaf-spine:hosts=8,leaves=4";

#[test]
fn every_change_reaches_the_link_it_names() {
    let fabric = fabric();
    let text = "# all\n\n1us tier=0 switch=1 link=1 fail # why\n2us tier=0 switch=1 link=1 restore\n\
                3us tier=1 switch=0 link=1 rate=25G\n4us host=2 drop=0.01\n5us host=2 corrupt=1\n\
                6us host=2 drop-over=2000\n7us host=2 ber=1e-9\n8us host=2 delay=1.5ms\n\
                9us host=2 gilbert=0.001,0.25\n10us host=2 gilbert=0.001,0.25,0.9,0.01\n\
                11us host=2 block-loss=10:0.3,0.1\n12us host=2 block-loss=uno-33ms\n\
                13us host=2 trim=0.25\n";
    let events = parse_link_events("f", text, &fabric).unwrap();
    let up = fabric.link_at(0, 1, 1).unwrap();
    let top = fabric.link_at(1, 0, 1).unwrap();
    let nic = fabric.nic(HostId(2));
    let gilbert = |loss_bad, loss_good| {
        let model = GilbertElliott { to_bad: 0.001, to_good: 0.25, loss_bad, loss_good };
        LinkChange::Correlated(CorrelatedLoss::GilbertElliott(model))
    };
    let wanted = [
        (up, LinkChange::Fail),
        (up, LinkChange::Restore),
        (top, LinkChange::Degrade(Rate::from_gbps(25))),
        (nic, LinkChange::Drop(0.01)),
        (nic, LinkChange::Corrupt(1.0)),
        (nic, LinkChange::DropOver(2000)),
        (nic, LinkChange::BitErrors(1e-9)),
        (nic, LinkChange::Delay(Span::from_us(1500))),
        (nic, gilbert(1.0, 0.0)),
        (nic, gilbert(0.9, 0.01)),
        (nic, LinkChange::Correlated(CorrelatedLoss::Blocks(BlockLosses::new(10, &[0.3, 0.1]).unwrap()))),
        (nic, LinkChange::Correlated(CorrelatedLoss::Blocks(BlockLosses::uno_33ms()))),
        (nic, LinkChange::Trim(0.25)),
    ];
    assert_eq!(events.len(), wanted.len());
    for (n, (event, (port, change))) in events.iter().zip(wanted).enumerate() {
        assert_eq!(event.at, Time::ZERO + Span::from_us(n as u64 + 1));
        assert_eq!((event.link, event.change), (LinkDirections::Both(port), change));
    }
}

#[test]
fn a_direction_is_named_by_the_side_of_the_hosts() {
    let fabric = fabric();
    let nic = fabric.nic(HostId(2));
    let up = fabric.link_at(0, 1, 1).unwrap();
    let top = fabric.link_at(1, 0, 1).unwrap();
    let reverse = |port| fabric.port(port).reverse;
    for (words, sender) in [
        ("host=2 dir=up fail", nic),
        ("host=2 dir=down fail", reverse(nic)),
        ("tier=0 switch=1 link=1 dir=up fail", up),
        ("tier=0 switch=1 link=1 dir=down fail", reverse(up)),
        ("tier=1 switch=0 link=1 dir=up fail", reverse(top)),
        ("tier=1 switch=0 link=1 dir=down fail", top),
    ] {
        let expected = (LinkDirections::From(sender), LinkChange::Fail);
        assert_eq!(parse_link_change("f", words, &fabric), Ok(expected), "{words}");
    }
}

#[test]
fn errors_point_at_the_wrong_word() {
    let fabric = fabric();
    for (line, column, word) in [
        ("5 host=0 fail", 1, "5"),
        ("0 host=0 fail", 1, "0"),
        ("1us host=9999 fail", 5, "host=9999"),
        ("1us host=0", 11, ""),
        ("1us tier=9 switch=0 link=0 fail", 5, "tier=9"),
        ("1us tier=0 switch=999 link=0 fail", 12, "switch=999"),
        ("1us tier=0 switch=0 link=999 fail", 21, "link=999"),
        ("1us host=0 drop=1.5", 12, "drop=1.5"),
        ("1us host=0 drop=NaN", 12, "drop=NaN"),
        ("1us host=0 corrupt=-0.1", 12, "corrupt=-0.1"),
        ("1us host=0 rate=0G", 12, "rate=0G"),
        ("1us host=0 drop-over=-1", 12, "drop-over=-1"),
        ("1us host=0 drop-over=1.5", 12, "drop-over=1.5"),
        ("1us host=0 ber=2", 12, "ber=2"),
        ("1us host=0 trim=1.1", 12, "trim=1.1"),
        ("1us host=0 delay=5", 12, "delay=5"),
        ("1us host=0 delay=3601s", 12, "delay=3601s"),
        ("1us host=0 gilbert=0.1", 12, "gilbert=0.1"),
        ("1us host=0 gilbert=0.1,2", 12, "gilbert=0.1,2"),
        ("1us host=0 gilbert=0,0,0,0,0", 12, "gilbert=0,0,0,0,0"),
        ("1us host=0 block-loss=uno", 12, "block-loss=uno"),
        ("1us host=0 block-loss=0:0.1", 12, "block-loss=0:0.1"),
        ("1us host=0 block-loss=+9:0.1", 12, "block-loss=+9:0.1"),
        ("1us host=0 block-loss=10:0.6,0.6", 12, "block-loss=10:0.6,0.6"),
        ("1us host=0 dir=left fail", 12, "dir=left"),
        ("1us host=0 dir=up", 18, ""),
        ("1us dir=up host=0 fail", 5, "dir=up"),
        ("1µs host=0 break", 12, "break"),
        ("1us host=0 fail now", 17, "now"),
    ] {
        let error = parse_link_events("f", &format!("\n{line}\n"), &fabric).unwrap_err();
        assert_eq!((error.line, error.column, error.word.as_str()), (2, column, word), "{line}");
    }
}

#[test]
fn errors_state_the_valid_range_of_links() {
    let fabric = fabric();
    for (words, expected) in [
        ("tier=9 switch=0 link=0 fail", "a tier below 2"),
        ("tier=300 switch=0 link=0 fail", "a tier below 2"),
        ("tier=0 switch=4 link=0 fail", "a switch of tier 0 below 4"),
        ("tier=1 switch=2 link=0 fail", "a switch of tier 1 below 2"),
        ("tier=0 switch=3 link=2 fail", "a link up from switch 3 of tier 0 below 2"),
        ("tier=1 switch=0 link=4 fail", "a link down from switch 0 of tier 1 below 4"),
        ("host=8 fail", "a host below 8"),
    ] {
        assert_eq!(parse_link_change("f", words, &fabric).unwrap_err().expected, expected, "{words}");
    }
}

#[test]
fn a_line_without_a_time_is_a_change_that_happens_now() {
    let fabric = fabric();
    let nic = LinkDirections::Both(fabric.nic(HostId(2)));
    assert_eq!(parse_link_change("f", "host=2 fail", &fabric), Ok((nic, LinkChange::Fail)));
    assert_eq!(parse_link_change("f", "host=2 down", &fabric), Ok((nic, LinkChange::Fail)));
    assert_eq!(parse_link_change("f", "host=2 up", &fabric), Ok((nic, LinkChange::Restore)));
    let up = LinkDirections::Both(fabric.link_at(0, 1, 1).unwrap());
    let slow = LinkChange::Degrade(Rate::from_gbps(25));
    assert_eq!(parse_link_change("f", " tier=0 switch=1  link=1 rate=25G ", &fabric), Ok((up, slow)));
    for (text, column, word) in
        [("1us host=2 fail", 1, "1us"), ("host=2", 7, ""), ("host=2 fail now", 13, "now"), ("", 1, "")]
    {
        let error = parse_link_change("f", text, &fabric).unwrap_err();
        assert_eq!((error.line, error.column, error.word.as_str()), (1, column, word), "{text}");
    }
    let error = parse_link_change("f", "host=2 broken", &fabric).unwrap_err();
    assert_eq!(
        error.expected,
        "fail or down, restore or up, rate=R, delay=TIME, drop=P, drop-over=BYTES, ber=P, corrupt=P, \
         gilbert=P,R[,BAD[,GOOD]], block-loss=N:P1[,P2…], or trim=P"
    );
}

fn fat_tree() -> Topology {
    "fat-tree:k=4,hosts=14".parse::<TopologySpec>().unwrap().build().unwrap()
}

fn any_change() -> impl Strategy<Value = LinkChange> {
    prop_oneof![
        Just(LinkChange::Fail),
        Just(LinkChange::Restore),
        (1..=u64::MAX, 0..13u32).prop_map(|(bps, zeros)| {
            let unit = 10u64.pow(zeros);
            LinkChange::Degrade(Rate::from_bps((bps / unit).max(1).saturating_mul(unit)))
        }),
        (0.0..=1.0f64).prop_map(LinkChange::Drop),
        (0.0..=1.0f64).prop_map(LinkChange::Corrupt),
        (0.0..=1.0f64).prop_map(LinkChange::BitErrors),
        (0.0..=1.0f64).prop_map(LinkChange::Trim),
        any::<u32>().prop_map(LinkChange::DropOver),
        (0..=3_600_000_000_000_000u64).prop_map(|ps| LinkChange::Delay(Span::from_ps(ps))),
        [0.0..=1.0f64, 0.0..=1.0, 0.0..=1.0, 0.0..=1.0].prop_map(|[to_bad, to_good, loss_bad, loss_good]| {
            let model = GilbertElliott { to_bad, to_good, loss_bad, loss_good };
            LinkChange::Correlated(CorrelatedLoss::GilbertElliott(model))
        }),
        (1..=64u8, prop::collection::vec(0.0..=0.125f64, 0..=8)).prop_filter_map(
            "a block has as many packets as losses",
            |(packets, chances)| {
                let blocks = BlockLosses::new(packets, &chances)?;
                Some(LinkChange::Correlated(CorrelatedLoss::Blocks(blocks)))
            }
        ),
    ]
}

proptest! {
    #[test]
    fn written_events_parse_to_the_same_events(
        three_tiers: bool,
        events in prop::collection::vec((0..=u64::MAX / 2, 0..15u32, any::<prop::sample::Index>(), any::<bool>(), any_change()), 1..20),
    ) {
        let fabric = if three_tiers { fat_tree() } else { fabric() };
        let mut text = String::new();
        let mut written = Vec::new();
        for (ps, zeros, port, one_way, change) in events {
            let unit = 10u64.pow(zeros);
            let at = Time::ZERO + Span::from_ps(ps / unit * unit);
            let port = PortId(port.index(fabric.ports().len()) as u32);
            let link = if one_way { LinkDirections::From(port) } else { LinkDirections::Both(port) };
            let event = LinkEvent { at, link, change };
            write_link_event(&event, &fabric, &mut text).unwrap();
            text.push('\n');
            written.push(event);
        }
        let read = parse_link_events("f", &text, &fabric).unwrap();
        prop_assert_eq!(read.len(), written.len());
        for (read, written) in read.into_iter().zip(written) {
            prop_assert_eq!((read.at, read.change), (written.at, written.change));
            match (read.link, written.link) {
                // Either end identifies the link.
                (LinkDirections::Both(read), LinkDirections::Both(written)) => {
                    prop_assert!(read == written || fabric.port(read).reverse == written);
                }
                (read, written) => prop_assert_eq!(read, written),
            }
            let mut again = String::new();
            write_link_event(&read, &fabric, &mut again).unwrap();
            prop_assert_eq!(parse_link_events("f", &again, &fabric), Ok(vec![read]));
        }
    }

    #[test]
    fn written_degradations_parse_to_the_same_degradations(
        tier: u8,
        switch: Option<u32>,
        links: u32,
        direction in 0..3usize,
        millionths in 1..=1_000_000u64,
    ) {
        let share = Share::from_millionths(millionths).unwrap();
        let direction = [SlowDirection::Both, SlowDirection::Up, SlowDirection::Down][direction];
        let degradation = Degradation { tier, switch, links, direction, share };
        prop_assert_eq!(degradation.to_string().parse(), Ok(degradation));
    }
}

#[test]
fn events_are_written_in_the_largest_unit_that_is_exact() {
    let fabric = fabric();
    for line in [
        "100us tier=0 switch=1 link=1 rate=25G",
        "1500ns tier=1 switch=0 link=3 rate=2500M",
        "1ps host=7 rate=8bps",
        "2s host=0 drop=0.01",
        "3ms host=0 fail",
        "4ms host=0 dir=down drop-over=1500",
        "5ms tier=1 switch=0 link=3 dir=down ber=0.000000001",
        "6ms host=0 dir=up delay=30ms",
        "7ms host=0 gilbert=0.001,0.25,1,0",
        "8ms host=0 block-loss=10:0.3,0,0.1",
        "9ms host=0 block-loss=10:0",
    ] {
        let events = parse_link_events("f", line, &fabric).unwrap();
        let mut written = String::new();
        write_link_event(&events[0], &fabric, &mut written).unwrap();
        assert_eq!(written, line);
    }
}

#[test]
fn degradations_slow_the_first_uplinks_of_every_switch() {
    let fabric = fat_tree();
    let degradation: Degradation = "tier=1,links=1,rate=12.5%".parse().unwrap();
    let slow = degradation.ports(&fabric).unwrap();
    assert_eq!(slow.len(), 2 * fabric.switches_in(1) as usize);
    assert!(slow.iter().all(|slow| slow.share.of(1000) == 125));
    for switch in 0..fabric.switches_in(1) {
        let up = fabric.link_at(1, switch, 0).unwrap();
        for port in [up, fabric.port(up).reverse] {
            assert!(slow.iter().any(|slow| slow.port == port), "{port:?}");
        }
    }
    assert_eq!("tier=0,links=0".parse::<Degradation>().unwrap().ports(&fabric), Ok(Vec::new()));
    let quarter: Degradation = "links=2,tier=0".parse().unwrap();
    assert_eq!(quarter.to_string(), "tier=0,links=2,rate=25%");
}

#[test]
fn a_degradation_slows_one_switch_and_one_direction_if_it_says_so() {
    let fabric = fat_tree();
    let up = fabric.link_at(1, 3, 0).unwrap();
    let slow = |text: &str| {
        let ports = text.parse::<Degradation>().unwrap().ports(&fabric).unwrap();
        ports.iter().map(|slow| slow.port).collect::<Vec<_>>()
    };
    assert_eq!(slow("tier=1,switch=3,links=1,dir=up"), [up]);
    assert_eq!(slow("tier=1,switch=3,links=1,dir=down"), [fabric.port(up).reverse]);
    assert_eq!(slow("tier=1,switch=3,links=1"), [up, fabric.port(up).reverse]);
    assert_eq!(slow("tier=1,links=1,dir=down").len(), fabric.switches_in(1) as usize);
}

#[test]
fn invalid_degradations_are_refused() {
    for (text, word) in [
        ("", ""),
        ("tier=0", "tier=0"),
        ("tier=0,links=1,rate=0%", "rate=0%"),
        ("tier=0,links=1,rate=100.0001%", "rate=100.0001%"),
        ("tier=0,links=1,rate=0.00001%", "rate=0.00001%"),
        ("tier=0,links=1,rate=25G", "rate=25G"),
        ("tier=0,links=-1", "links=-1"),
        ("tier=0,links=+1", "links=+1"),
        ("tier=256,links=1", "tier=256"),
        ("tier=0,links=1,tier=1", "tier=1"),
        ("tier=0,links=1,", ""),
        ("tier=0,links=1,dir=both", "dir=both"),
        ("tier=0,links=1,switch=a", "switch=a"),
    ] {
        assert_eq!(text.parse::<Degradation>().unwrap_err().word, word, "{text}");
    }
    let fabric = fat_tree();
    let refusal = |text: &str| text.parse::<Degradation>().unwrap().ports(&fabric).unwrap_err().to_string();
    assert_eq!(refusal("tier=2,links=1"), "`tier=2`: expected a tier below 2, the top");
    assert_eq!(
        refusal("tier=0,switch=8,links=1"),
        "`switch=8`: expected a switch below 8, the number of switches of tier 0"
    );
    assert_eq!(
        refusal("tier=0,links=3"),
        "`links=3`: expected at most 2, the number of uplinks of a switch of tier 0"
    );
}
