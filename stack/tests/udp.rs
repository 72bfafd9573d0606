//! Endpoints over kernel UDP on loopback, and the errors of a UDP port that cannot work.

mod harness;

use harness::{Results, WorkerPair, config, content, host, worker};
use weft_stack::port::TxBurst;
use weft_stack::port::faulty::{Faults, FaultyPort};
use weft_stack::port::udp::{UdpConfig, UdpPort};
use weft_stack::rng::Rng;
use weft_stack::wire::pds::DeliveryMode;
use weft_stack::worker::LinkConfig;

fn ports(v6: bool) -> [UdpPort; 2] {
    let address = if v6 { "::1" } else { "127.0.0.1" }.parse().unwrap();
    let open = |n| {
        let config = UdpConfig { alias: Some(host(n, v6).ip), ..UdpConfig::at(address) };
        UdpPort::open(&config.with_free_ports()).unwrap()
    };
    let (mut a, mut b) = (open(0), open(1));
    a.meet(&b.as_peer()).unwrap();
    b.meet(&a.as_peer()).unwrap();
    [a, b]
}

fn transfer(v6: bool, faults: Faults) {
    let [a, b] = ports(v6);
    let config = config(false).with_zones(|zone| zone.paths = a.entropies());
    let side = |n: u32, port| {
        let port = FaultyPort::new(port, faults, Rng::new(7, u64::from(n))).unwrap();
        worker(n, port, &config, LinkConfig::default(), v6)
    };
    let mut pair = WorkerPair::new(side(0, a), side(1, b));
    let connections = [pair.connect(0, DeliveryMode::Rud), pair.connect(1, DeliveryMode::Rod)];
    let sizes = [0, 1, 4095, 4096, 4097, 1 << 20];
    for side in [0, 1] {
        for (tag, len) in (0..).zip(sizes) {
            pair.post_receive(1 - side, tag, len);
            pair.post_send(side, connections[side as usize], tag, content(tag, len));
        }
    }
    let (mut results, mut turns) = (Results::default(), 0);
    while results.sent.len() + results.received.len() < 4 * sizes.len() {
        pair.turn();
        results.collect(&mut pair);
        turns += 1;
        assert!(turns < 2_000_000, "{} of {} arrived", results.received.len(), 2 * sizes.len());
    }
    assert!(results.sent.iter().all(|(.., result)| result.is_ok()), "{:?}", results.sent);
    for (_, tag, _, bytes) in &results.received {
        assert!(*bytes == content(*tag, sizes[*tag as usize]), "message {tag}");
    }
    let struck = pair.a.port().fault_counts();
    assert_eq!(struck.dropped > 0, faults.drop > 0.0);
    assert_eq!(pair.a.counters().malformed + pair.a.counters().misdirected + pair.a.counters().strangers, 0);
}

#[test]
fn messages_arrive_as_sent() {
    transfer(false, Faults::default());
    transfer(true, Faults::default());
}

#[test]
fn losses_duplicates_swaps_and_damage_are_repaired() {
    let faults = Faults { drop: 0.05, corrupt: 0.02, duplicate: 0.05, reorder: 0.05, ..Faults::default() };
    transfer(false, faults);
    transfer(true, faults);
}

#[test]
fn a_port_in_use_is_named() {
    let [a, _] = ports(false);
    let config = UdpConfig { port: a.local().port(), first_source: 0, ..UdpConfig::at(a.local().ip()) };
    let error = UdpPort::open(&config).unwrap_err().to_string();
    assert!(error.contains(&a.local().to_string()) && error.contains("bound to it"), "{error}");
}

#[test]
fn frames_that_are_no_datagrams_are_counted_and_dropped() {
    use weft_stack::port::Port;
    let [mut a, _] = ports(false);
    let mut tx = TxBurst::new(&a);
    let mut frame = tx.reserve(60).unwrap();
    frame.fill(0);
    frame.commit();
    assert_eq!(a.transmit(&mut tx), 1);
    assert_eq!((a.counters().tx_errors, a.counters().tx_frames), (1, 0));
}
