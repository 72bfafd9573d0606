//! Topology files and descriptions: a topology that parses is wired consistently, and its routes work.
#![no_main]

use weft_testbed::topology::{HostId, Node, Topology, TopologySpec, parse_graph, parse_topo, write_graph};

fn check(fabric: &Topology) {
    for port in fabric.ports() {
        let back = fabric.port(port.reverse);
        assert_eq!((back.owner, back.peer), (port.peer, port.owner));
    }
    let (first, last) = (HostId(0), HostId(fabric.hosts() - 1));
    let (mut at, mut hops) = (fabric.port(fabric.nic(first)).peer, 1);
    while let (Node::Switch(switch), true) = (at, first != last) {
        at = fabric.port(fabric.next_ports(switch, last).nth(0)).peer;
        hops += 1;
    }
    assert!(first == last || (at, hops) == (Node::Host(last), fabric.path_hops(first, last)));
}

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(fabric) = parse_topo("fuzz", text) {
        check(&fabric);
    }
    if let Ok(fabric) = parse_graph("fuzz", text) {
        check(&fabric);
        let mut written = String::new();
        write_graph(&fabric.to_graph(), &mut written).expect("writing to a string");
        assert_eq!(parse_graph("fuzz", &written).as_ref(), Ok(&fabric));
    }
    if let Ok(spec) = text.parse::<TopologySpec>() {
        assert_eq!(spec.to_string().parse(), Ok(spec));
        if let Ok(fabric) = spec.build() {
            check(&fabric);
        }
    }
});
