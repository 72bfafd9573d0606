//! Tests of topologies that are no folded Clos, as users of the command see them.

use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

fn weft(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weft")).args(args).output().expect("weft starts")
}

fn run(args: &[&str]) -> Output {
    weft(&[&["run"], args].concat())
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

fn summary(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).to_owned()
}

fn report(args: &[&str]) -> Value {
    let output = run(&[args, &["--json", "-"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

fn scratch(name: &str, content: &str) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("topologies-{name}"));
    fs::write(&path, content).expect("a file");
    path.to_str().expect("UTF-8").to_owned()
}

/// A megabyte from one side of a dumbbell to the other.
const ACROSS: &str = "Nodes 4\nConnections 1\n0->2 id 1 start 0 size 1000000\n";

/// A bottleneck a tenth as fast as the hosts.
const BELL: &str = "dumbbell:hosts=2,bottleneck=10G,delay=50us";

#[test]
fn a_run_over_a_dumbbell_names_its_bottleneck_and_what_happens_to_it() {
    let matrix = scratch("bell.cm", ACROSS);
    let bell = ["--matrix", &matrix, "--topology", BELL, "--cc", "constant"];
    let said = summary(&bell);
    // 245 packets with 122 bytes of overhead each take 823.9 µs at 10 Gbit/s.
    assert!(said.contains("823.9 µs set by the link left>right;"), "{said}");
    assert!(said.contains("busiest left>right "), "{said}");
    let idle = report(&bell);
    let slow = report(&[&bell[..], &["--link-event", "1us link=left>right rate=5G"]].concat());
    let other = report(&[&bell[..], &["--link-event", "1us link=right>left rate=5G"]].concat());
    let fct = |report: &Value| report["fct_us"]["mean"].as_f64().expect("a time");
    // All of the flow takes twice as long to cross the link; acknowledgements take little of it.
    assert!(fct(&slow) > fct(&idle) + 700.0, "{} {}", fct(&slow), fct(&idle));
    assert!((fct(&other) - fct(&idle)).abs() < 100.0, "{} {}", fct(&other), fct(&idle));
}

#[test]
fn classes_of_ports_have_queues_of_their_own_and_the_report_has_them() {
    let matrix = scratch("classes.cm", ACROSS);
    let bell = ["--matrix", &matrix, "--topology", BELL, "--cc", "constant"];
    let options = ["--queue", "64KiB,bottleneck=1MiB", "--ecn", "bottleneck=256KiB,768KiB"];
    let classes = report(&[&bell[..], &options].concat());
    let rows = classes["config"]["port_classes"].as_array().expect("a row for each class");
    let names: Vec<&Value> = rows.iter().map(|row| &row["class"]).collect();
    assert_eq!(names, ["host", "bottleneck"]);
    assert_eq!(rows[0]["queue_bytes"], 65_536);
    assert_eq!(
        rows[1],
        json!({
            "class": "bottleneck",
            "queue_bytes": 1_048_576,
            "ecn_low_bytes": 262_144,
            "ecn_high_bytes": 786_432,
            "phantom_drain": null,
            "phantom_low_bytes": null,
            "phantom_high_bytes": null,
        })
    );
    // The queue sizes differ between ports: none is that of all.
    assert_eq!(classes["config"]["queue_bytes"], Value::Null);
    // The flow is shorter than the large queue and longer than the small one.
    let trimmed = |report: &Value| report["packets"]["trimmed"].as_u64().expect("a number");
    assert_eq!(trimmed(&classes), 0, "{classes}");
    let small = report(&[&bell[..], &["--queue", "1MiB,bottleneck=64KiB"]].concat());
    assert!(trimmed(&small) > 0, "{small}");
    let leaves = "leaf-spine:hosts=4,leaves=2";
    let plain = report(&["--workload", "permutation", "--size", "10KB", "--topology", leaves]);
    assert!(plain["config"].get("port_classes").is_none(), "{plain}");
}

#[test]
fn a_graph_file_is_a_topology_and_its_errors_name_the_line() {
    let sites = concat!(env!("CARGO_MANIFEST_DIR"), "/../testbed/data/topologies/two_sites.graph");
    let far = "poisson:load=0.01,intra=0,flows=20";
    let report = report(&["--workload", far, "--size", "10KB", "--topology", sites]);
    assert_eq!(report["config"]["topology_hosts"], 8);
    assert_eq!(report["flows"]["completed"], 20);
    // All flows leave their site over the links of 2 ms.
    assert!(report["fct_us"]["min"].as_f64().is_some_and(|us| us > 4_000.0), "{}", report["fct_us"]);
    let broken = scratch("broken.graph", "switch s\nhost a\nhost b\nlink a s\nlink b t\n");
    let output = run(&["--workload", "permutation", "--topology", &broken]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let expected = format!("{broken}:5: `t`: expected a host or switch that an earlier line declares");
    assert!(text(&output.stderr).contains(&expected), "{}", text(&output.stderr));
}

#[test]
fn what_a_graph_does_not_have_is_refused() {
    let permutation = "permutation";
    for (workload, option, value, expected) in [
        (
            permutation,
            "--queue",
            "border=1MiB",
            "--queue: there are no ports of class 'border'; expected one of: host, bottleneck",
        ),
        (permutation, "--queue", "host=1000", "--queue: 1000 bytes never hold a packet"),
        (permutation, "--degrade", "tier=0,links=1", "--degrade: `tier=0`: expected a folded Clos"),
        (
            permutation,
            "--link-event",
            "1us tier=0 switch=0 link=0 fail",
            "`tier=0`: expected link=A-B or host=N",
        ),
        (
            permutation,
            "--link-event",
            "1us link=left-top fail",
            "expected a node of the topology instead of `top`",
        ),
        (
            "poisson:load=0.5,of=core,flows=3",
            "--seed",
            "1",
            "of: a graph has no tier that counts as its core; expected host",
        ),
    ] {
        let output = run(&["--workload", workload, "--topology", "dumbbell:hosts=2", option, value]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{option} {value}: {said}");
        assert!(said.contains(expected), "{option} {value}: {said}");
    }
}

#[test]
fn the_list_of_topologies_has_every_generator_with_its_keys() {
    let output = weft(&["list", "topologies"]);
    let said = text(&output.stdout);
    for word in
        ["FILE.graph", "two-dc:", "border-links=N", "rtt-ratio=R", "dumbbell:hosts=N", "parking-lot:hops=N"]
    {
        assert!(said.contains(word), "{word}: {said}");
    }
}

#[test]
fn software_switches_carry_a_flow_over_a_link_of_100_ms() {
    let matrix = scratch("far.cm", ACROSS);
    let far = "dumbbell:hosts=2,link=1G,delay=100ms";
    let report = report(&["--on", "soft", "--slow", "1", "--matrix", &matrix, "--topology", far]);
    assert_eq!(report["flows"]["completed"], 1, "{report}");
    // A round trip, and 8.2 ms for the bytes; threads on busy processors take longer.
    let us = report["fct_us"]["mean"].as_f64().expect("a time");
    assert!(us > 208_000.0 && us < 5_000_000.0, "{us}");
}
