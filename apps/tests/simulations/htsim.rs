//! Tests of `weft htsim` as scripts for uet-htsim see it: words by their places, refusals, exit status.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn weft(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weft")).args(args).output().expect("weft starts")
}

fn htsim(args: &[&str]) -> Output {
    weft(&[&["htsim"], args].concat())
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).expect("UTF-8")
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).expect("UTF-8")
}

fn file(name: &str, text: &str) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("htsim-{name}"));
    fs::write(&path, text).expect("the scratch directory is writable");
    path.to_str().expect("UTF-8").to_owned()
}

fn matrix(name: &str) -> String {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testbed/data/matrices");
    data.join(name).to_str().expect("UTF-8").to_owned()
}

const GRAPH: &str = "switch s\nhost h[0-1]\nlink h[0-1] s\n";

/// The lines of finished flows, as lists of words.
fn finished(output: &Output) -> Vec<Vec<&str>> {
    assert!(output.status.success(), "{}", stderr(output));
    let lines = stdout(output).lines().filter(|line| line.contains("finished"));
    lines.map(|line| line.split_whitespace().collect()).collect()
}

/// The time of a line, µs.
fn time(words: &[&str]) -> f64 {
    words[8].parse().expect("word 8 is the time")
}

#[test]
fn words_stand_where_scripts_read_them() {
    let output = htsim(&["-tm", &matrix("perm_16n_16c_2MB.cm"), "-sender_cc_only", "-paths", "128"]);
    let lines = finished(&output);
    assert_eq!(lines.len(), 16);
    assert!(lines.iter().all(|words| words[0] == "Flow" && words[9..12] == ["total", "messages", "1"]));
    assert!(lines.iter().all(|words| words[6] == "finished" && (180.0..210.0).contains(&time(words))));
    assert!(lines.is_sorted_by(|a, b| time(a) <= time(b)), "in order of time");
    let names: Vec<_> = lines.iter().filter(|words| words[1].starts_with("Uec_15_")).collect();
    assert_eq!(names.len(), 1, "word 1 is the name of the flow");
    let last = stdout(&output).lines().last().expect("a last line");
    assert!(last.starts_with("New: 7840 Rtx: ") && last.contains(" RTS: 0 Bounced: 0 ACKs: "), "{last}");
    assert!(stdout(&output).starts_with("weft run --matrix="), "the first line is the command of weft run");
    assert_eq!(stderr(&output), "");
}

#[test]
fn a_link_with_the_name_of_the_program_behaves_like_it() {
    let link = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("htsim_uec");
    _ = fs::remove_file(&link);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_weft"), &link).expect("a link can be made");
    let args = ["-tm", &matrix("one.cm"), "-end", "300"];
    let linked = Command::new(&link).args(args).output().expect("the link starts");
    assert_eq!(stdout(&linked), stdout(&htsim(&args)));
    assert_eq!(finished(&linked).len(), 1);
}

#[test]
fn a_matrix_may_come_over_standard_input() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(["htsim", "-end", "100"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("weft starts");
    let text = b"Nodes 16\nConnections 1\n0->13 start 0 size 8172\n";
    child.stdin.take().expect("a pipe").write_all(text).expect("weft reads");
    let output = child.wait_with_output().expect("weft ends");
    let lines = finished(&output);
    assert_eq!((lines.len(), lines[0][1]), (1, "Uec_0_13"));
}

#[test]
fn flows_that_have_not_finished_have_no_line_and_are_no_failure() {
    let output = htsim(&["-tm", &matrix("one.cm"), "-end", "100"]);
    assert_eq!((finished(&output).len(), stderr(&output)), (0, ""));
}

#[test]
fn a_reused_connection_has_one_line_that_counts_its_messages() {
    let messages = "0->1 id 1 msg start 0 size 4086\n".repeat(10);
    let text = format!("Nodes 2\nConnections 10\nTriggers 0\n{messages}");
    let file = file("reuse.cm", &text);
    let output = htsim(&["-tm", &file, "-conn_reuse"]);
    let lines = finished(&output);
    assert_eq!(
        (lines.len(), &lines[0][9..15]),
        (1, &["total", "messages", "10", "total", "packets", "10"][..])
    );
    let refused = htsim(&["-tm", &file]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("-tm: flow 1 is a message"), "{}", stderr(&refused));
}

#[test]
fn the_printed_command_makes_the_same_run() {
    let permutation = matrix("perm_16n_16c_2MB.cm");
    for more in [
        &["-failed", "3", "-paths", "16", "-q", "60", "-ecn", "10", "40"][..],
        &["-tiers", "2", "-nodes", "128", "-hop_latency", "0.5", "-linkspeed", "200000", "-failed", "1"],
        &["-receiver_cc", "-enable_accurate_base_rtt", "-cwnd", "20", "-load_balancing_algo", "reps"],
        &["-strat", "ecmp_ar", "-ar_granularity", "flow", "-ar_sticky_delta", "4"],
        &["-disable_trim", "-sender_cc_algo", "dctcp", "-strat", "ecmp_host_ecn", "-sack_threshold", "4000"],
    ] {
        // 128 hosts are a full fabric of two tiers, 16 one of three.
        let wide =
            file("wide.cm", "Nodes 128\nConnections 2\n0->9 start 0 size 900000\n17->9 start 3 size 70000\n");
        let file = if more.contains(&"-tiers") { &wide } else { &permutation };
        let output = htsim(&[&["-tm", file, "-end", "2000"], more].concat());
        let lines = finished(&output);
        let command = stdout(&output).lines().next().expect("a first line");
        let words: Vec<&str> = command.split(' ').skip(1).chain(["--json=-"]).collect();
        let report = weft(&words);
        assert!(report.status.success(), "{command}: {}", stderr(&report));
        let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
        let last = report["fct_us"]["max"].as_f64().expect("a number");
        let same = lines.iter().any(|words| (time(words) - last).abs() < 0.01 * last.max(1.0));
        assert!(same, "{command}: {last} µs, but {lines:?}");
        assert_eq!(report["flows"]["completed"].as_u64(), Some(lines.len() as u64), "{command}");
        let sent = format!("New: {} ", report["packets"]["data"]);
        assert!(stdout(&output).lines().last().is_some_and(|last| last.starts_with(&sent)), "{command}");
    }
}

/// Scripts write any number there: `htsim_uec` reads it and does not use it.
#[test]
fn prio_has_no_effect_whatever_its_number() {
    let output = |prio: [&str; 2]| {
        let [a, b] = prio;
        let flows = format!("0->1 id 1 start 0 size 4096 {a}\n2->1 id 2 start 0 size 400000 {b}\n");
        // The name is part of the printed command.
        let file = file("prio.cm", &format!("Nodes 4\nConnections 2\n{flows}"));
        let output = htsim(&["-tm", &file, "-nodes", "4"]);
        assert_eq!(finished(&output).len(), 2, "{prio:?}");
        let command = stdout(&output).lines().next().expect("a first line");
        let words: Vec<&str> = command.split(' ').skip(1).chain(["--json=-"]).collect();
        let report = weft(&words);
        assert!(report.status.success(), "{command}: {}", stderr(&report));
        let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
        (stdout(&output).to_owned(), report["fct_us"].clone())
    };
    let without = output(["", ""]);
    for prio in [["prio 1", "prio 1"], ["prio 7", "prio 0"], ["prio 9", "prio 2000000"]] {
        assert_eq!(output(prio), without, "{prio:?}");
    }
}

#[test]
fn slow_links_are_one_way_in_three_tiers_and_both_ways_in_two() {
    let command = |args: &[&str]| {
        let output = htsim(args);
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output).lines().next().expect("a first line").to_owned()
    };
    let one = matrix("one.cm");
    let three = command(&["-tm", &one, "-failed", "3", "-end", "1"]);
    // k = 4: two aggregation switches in a pod, with two links up each.
    let slow = "--degrade=tier=1,switch=0,links=2,dir=down,rate=25% --degrade=tier=1,switch=1,links=1,dir=down,rate=25%";
    assert!(three.ends_with(slow), "{three}");
    let wide = file("two-tiers.cm", "Nodes 8\nConnections 1\n0->7 start 0 size 4086\n");
    let two = command(&["-tm", &wide, "-tiers", "2", "-failed", "1", "-end", "1"]);
    assert!(two.ends_with("--degrade=tier=0,links=1,rate=25%"), "{two}");
}

#[test]
fn a_fabric_that_is_oversubscribed_beyond_the_least_rate_of_receivers_runs() {
    let topo = "Nodes 512\nTiers 2\nPodsize 512\n\nTier 0\nDownlink_speed_Gbps 100\nRadix_Down 256\nRadix_Up 1\n\
                Downlink_Latency_ns 1000\nOversubscribed 256\nSwitch_Latency_ns 0\n\n\
                Tier 1\nDownlink_speed_Gbps 100\nRadix_Down 2\nDownlink_Latency_ns 1000\nSwitch_Latency_ns 0\n";
    let topo = file("256to1.topo", topo);
    let one = file("256to1.cm", "Nodes 512\nConnections 1\n0->300 start 0 size 4086\n");
    let output = htsim(&["-tm", &one, "-topo", &topo, "-receiver_cc_only"]);
    assert_eq!(finished(&output).len(), 1);
    assert!(stdout(&output).contains("--cc-set=oversubscription=100\n"), "{}", stdout(&output));
}

#[test]
fn what_makes_no_sense_is_refused_in_one_line() {
    let one = matrix("one.cm");
    let topo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testbed/data/topologies/leaf_spine_tiny.topo");
    let topo = topo.to_str().expect("UTF-8");
    let odd = file("odd.cm", "Nodes 12\nConnections 1\n0->7 start 0 size 4086\n");
    let pair = file("pair.cm", "Nodes 2\nConnections 1\n0->1 start 0 size 4086\n");
    let graph = file("pair.graph", GRAPH);
    let cases: &[(&[&str], &str)] = &[
        (&["-tm", &one, "-turbo"], "unknown option '-turbo' (see weft htsim --help)"),
        (&["-tm", &one, "-strat", "ecmp_rr"], "-strat: `ecmp_rr`: switches here do not take ports in turn"),
        (&["-tm", &pair, "-topo", &graph, "-failed", "1"], "-failed: `1`, but "),
        (&["-tm", &one, "-nodes", "17"], "-nodes: `17`, but the matrix has 16 hosts"),
        (&["-tm", &odd, "-tiers", "2"], "-tiers: 12 hosts; expected K²/2"),
        (&["-tm", &one, "-topo", topo], "-topo: "),
        (&["-tm", &one, "-ecn", "9", "900"], "-ecn: every packet is marked from 900 packets on"),
        (&["-tm", &one, "-Ai", "0.1"], "-Ai: has no effect without"),
        (&["-tm"], "-tm: expected a file after it"),
    ];
    for (args, expected) in cases {
        let output = htsim(args);
        let message = stderr(&output);
        assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""), "{args:?}: {message}");
        assert!(message.starts_with(&format!("weft: {expected}")), "{args:?}: {message}");
        assert_eq!(message.lines().count(), 1, "{args:?}: {message}");
    }
    let missing = htsim(&["-tm", "no-such-file.cm"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(stderr(&missing).contains("no-such-file.cm"), "{}", stderr(&missing));
}

#[test]
fn options_that_change_nothing_are_noted() {
    let one = matrix("one.cm");
    let output = htsim(&["-tm", &one, "-o", "x.dat", "-receiver_cc_only", "-cwnd", "50"]);
    assert_eq!(finished(&output).len(), 1);
    let notes: Vec<&str> = stderr(&output).lines().collect();
    assert_eq!(notes[0], "weft: -o: no log is written");
    assert!(notes[1].starts_with("weft: -cwnd: senders have no window"), "{notes:?}");
}

#[test]
fn help_lists_the_options() {
    for words in [&["htsim", "--help"][..], &["htsim", "-h"]] {
        let output = weft(words);
        assert!(output.status.success() && stderr(&output).is_empty());
        assert!(stdout(&output).contains("-load_balancing_algo NAME"), "{}", stdout(&output));
    }
}
