//! `.graph` files.

use proptest::prelude::*;
use weft_cc::{Rate, Span};

use crate::topology::{Node, PortId, Reach, Topology, TopologySpec, parse_graph, write_graph};

/// The example of docs/topologies.md.
const TWO_SITES: &str = include_str!("../../../data/topologies/two_sites.graph");

const SMALL: &str = "\
# Two racks and a slow link.
default rate=25G latency=500ns switch-latency=100ns
switch left group=west
switch right[0-1] latency=0 group=east   # two switches
host a
host b[0-1]
link a left
link b[0-1] right0
default rate=100G
link left right[0-1] latency=2ms class=wan/back queue=1MiB ecn=256KiB,768KiB
link right0 right1 count=3 queue=64kB/128kB
";

#[test]
fn a_file_says_everything_about_nodes_and_links() {
    let fabric = parse_graph("small.graph", SMALL).unwrap();
    assert_eq!((fabric.name(), fabric.hosts(), fabric.switches()), ("small.graph", 3, 3));
    let node = |name| fabric.node_named(name).unwrap();
    let switch = |name| match node(name) {
        Node::Switch(switch) => switch,
        Node::Host(_) => panic!("a switch"),
    };
    assert_eq!(fabric.switch_latency(switch("left")), Span::from_ns(100));
    assert_eq!(fabric.switch_latency(switch("right1")), Span::ZERO);
    assert_eq!(fabric.host_rate(), Rate::from_gbps(25));
    let port = |name: &str| fabric.link_named(name).unwrap().port;
    let class = |name: &str| fabric.classes()[fabric.class_of(port(name)).unwrap()];
    assert_eq!([class("left>right1"), class("right1>left"), class("left>a")], ["wan", "back", "host"]);
    assert_eq!(class("right0>right1:2"), "switch");
    assert_eq!(
        (fabric.queue_of(port("left>right0")), fabric.queue_of(port("left>a"))),
        (Some(1 << 20), None)
    );
    assert_eq!(fabric.ecn_of(port("right0>left")), Some((256 << 10, 768 << 10)));
    let queue = |name: &str| fabric.queue_of(port(name)).unwrap();
    assert_eq!((queue("right0>right1:0"), queue("right1>right0:0")), (64_000, 128_000));
    assert_eq!(fabric.port(port("left>right1")).latency, Span::from_ms(2));
    assert_eq!(fabric.port(port("left>right1")).rate, Rate::from_gbps(100));
    assert_eq!(
        (fabric.reach_of(port("left>right0")), fabric.reach_of(port("right1>right0:1"))),
        (Reach::Network, Reach::Group)
    );
    assert_eq!(fabric.ports().len(), 2 * (3 + 2 + 3));
}

#[test]
fn errors_name_the_line_and_the_word_and_say_what_was_expected() {
    for (text, message) in [
        ("", "g:1: 0 hosts; expected 2 to 1048576"),
        ("\nswich a", "g:2: `swich`: expected switch, host, link or default"),
        ("switch", "g:1: `switch`: expected the name of a switch behind it"),
        ("switch 1a", "g:1: `1a`: expected a name: a letter, then letters, digits, `_` and `.`"),
        ("switch a[3-1]", "g:1: `a[3-1]`: expected a range such as [0-15], with the lower number first"),
        (
            "switch a[0-99999999999]",
            "g:1: `a[0-99999999999]`: expected a range such as [0-15], with the lower number first",
        ),
        ("switch a delay=1us", "g:1: `delay=1us`: expected latency=…, group=… or the end of the line"),
        (
            "switch a latency=1",
            "g:1: `latency=1`: expected a time in whole picoseconds with its unit (ps, ns, us, ms or s, such as 10us or 1.5ms)",
        ),
        ("switch a\nhost a", "g:2: `a`: expected a name that no other host or switch has"),
        ("switch a\nhost b x", "g:2: expected the end of the line behind a host's name"),
        ("switch a\nlink a", "g:2: `link`: expected the names of two nodes behind it"),
        ("switch a\nlink a b", "g:2: `b`: expected a host or switch that an earlier line declares"),
        (
            "switch a[0-1]\nlink a0 a1 rate=0G",
            "g:2: `rate=0G`: expected a rate above zero with its unit (k, M, G or T, such as 100G or 2.5Gbps)",
        ),
        ("switch a[0-1]\nlink a0 a1 count=0", "g:2: `count=0`: expected a number above zero"),
        (
            "switch a[0-1]\nlink a0 a1 ecn=2kB,1kB",
            "g:2: `ecn=2kB,1kB`: expected LOW,HIGH in bytes with LOW not above HIGH, such as 256KiB,768KiB",
        ),
        ("switch a[0-1]\nlink a0 a1 rate=1G rate=2G", "g:2: `rate=2G`: expected rate once"),
        ("switch a[0-9999]\nlink a[0-9999] a[0-9999] count=1000", "g:2: more than 8388608 links"),
        ("default", "g:1: `default`: expected rate=…, latency=… or switch-latency=… behind it"),
        ("switch s\nhost a\nhost b\nlink a s\nlink a s", "g:5: host `a` has two links; expected one"),
        (
            "switch s\nhost a\nhost b # lonely\nlink a s",
            "g:3: host `b` has no link; expected one to a switch",
        ),
        (
            "switch s[0-1]\nhost a\nhost b\nlink a s0\nlink b s1",
            "g:3: there is no path between hosts `a` and `b`",
        ),
        ("switch s\nhost a\nlink a s\nlink s s", "g:4: 1 hosts; expected 2 to 1048576"),
    ] {
        let error = parse_graph("g", text).map(|t| t.hosts()).expect_err(text).to_string();
        // The last line stands for the whole file.
        assert_eq!(error, message, "{text}");
    }
}

/// The graph that the text of `fabric`'s graph describes.
fn rewritten(fabric: &Topology) -> Topology {
    let mut text = String::new();
    write_graph(&fabric.to_graph(), &mut text).unwrap();
    parse_graph(fabric.name(), &text).unwrap()
}

#[test]
fn a_graph_survives_being_written() {
    let small = parse_graph("small.graph", SMALL).unwrap();
    assert_eq!(rewritten(&small), small);
    let sites = parse_graph("two_sites.graph", TWO_SITES).unwrap();
    assert_eq!((sites.hosts(), sites.switches(), rewritten(&sites)), (8, 5, sites.clone()));
    for spec in ["two-dc:k=4,hosts=7", "dumbbell:hosts=2,delay=3ms", "parking-lot:hops=2,bottleneck=10G"] {
        let fabric = spec.parse::<TopologySpec>().unwrap().build().unwrap();
        assert_eq!(rewritten(&fabric), fabric, "{spec}");
    }
    let clos = super::bundled();
    let graph = rewritten(&clos);
    assert_eq!(graph, Topology::from_graph(clos.name(), clos.to_graph()).unwrap());
    assert!(
        (0..clos.ports().len() as u32).map(PortId).all(|port| graph.queue_of(port) == clos.queue_of(port))
    );
}

proptest! {
    #[test]
    fn arbitrary_files_never_panic(
        lines in prop::collection::vec(
            "(switch|host|link|default|) ?[ab](\\[[0-9]{1,2}-[0-9]{1,3}\\])? ?[ab]?(\\[[0-9]-[0-9]\\])?\
             ( (rate|latency|count|group|class|queue|ecn)=[0-9a-z/,]{0,6}(us|G)?){0,3}\\PC{0,3}",
            0..8,
        ),
    ) {
        let text = lines.join("\n");
        match parse_graph("fuzz", &text) {
            Ok(fabric) => prop_assert_eq!(rewritten(&fabric), fabric),
            Err(error) => prop_assert!(error.line <= text.lines().count().max(1)),
        }
    }
}
