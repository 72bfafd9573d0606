//! `weft run --on udp` as its users see it.

use serde_json::Value;
use std::process::{Command, Output};

fn udp(args: &[&str]) -> Output {
    let line = [&["run", "--on", "udp"], args].concat();
    Command::new(env!("CARGO_BIN_EXE_weft")).args(line).output().expect("weft starts")
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).expect("UTF-8")
}

/// The report of a run, all of whose flows were delivered and compared.
fn report(args: &[&str]) -> Value {
    let output = udp(&[args, &["--json", "-"]].concat());
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("nothing else on standard output");
    assert_eq!(report["flows"]["completed"], report["flows"]["total"], "{args:?}");
    report
}

#[test]
fn a_permutation_of_eight_hosts_arrives() {
    let report = report(&["--workload", "permutation", "--hosts", "8", "--size", "4MiB"]);
    assert_eq!(report["flows"]["total"], 8);
    assert_eq!(report["packets"]["data"], 8 * (4 << 20) / 4096);
    assert!(report["goodput_gbps"].as_f64() > Some(0.0));
    let config = &report["config"];
    assert_eq!((&config["on"], &config["payload"]), (&Value::from("udp"), &Value::from("real")));
    assert_eq!((&config["paths"], &config["trim"]), (&Value::from(8), &Value::from(false)));
    assert_eq!(config["topology_hosts"], 8);
}

#[test]
fn an_incast_of_seven_arrives() {
    let report = report(&["--workload", "incast:7", "--size", "2MiB"]);
    assert_eq!(report["flows"]["total"], 7);
    assert!(report["packets"]["acks"].as_u64() > Some(100), "{report}");
}

#[test]
fn an_all_to_all_with_triggers_arrives() {
    let report = report(&["--workload", "all-to-all:2", "--hosts", "6", "--size", "256KiB"]);
    assert_eq!(report["flows"]["total"], 30);
}

#[test]
fn all_algorithms_balancers_and_sizes_run() {
    for cc in ["nscc", "smartt", "dctcp", "swift", "lswift", "mswift", "rccc", "nscc+rccc", "constant"] {
        report(&["--workload", "incast:3", "--size", "1MB", "--cc", cc]);
    }
    report(&["--workload", "incast:3", "--size", "1MB", "--crc"]);
    for lb in ["ecmp", "oblivious", "reps", "round-robin"] {
        report(&["--workload", "permutation", "--hosts", "3", "--size", "1MB", "--lb", lb, "--paths", "3"]);
    }
    for (size, mtu, packets) in
        [("0", "4096", 1), ("1", "64", 1), ("100000", "64", 1563), ("1MB", "9000", 112), ("1MB", "16383", 62)]
    {
        let report = report(&["--workload", "incast:1", "--size", size, "--mtu", mtu]);
        assert_eq!(report["packets"]["data"], packets, "{size} bytes in packets of {mtu}");
    }
}

#[test]
fn sixty_four_hosts_are_possible() {
    let report = report(&["--workload", "incast:63", "--size", "64KiB", "--paths", "2"]);
    assert_eq!(report["flows"]["total"], 63);
}

#[test]
fn a_matrix_runs_between_the_hosts_it_names() {
    let dir = tempfile::tempdir().expect("a directory");
    let (matrix, flows) = (dir.path().join("a.cm"), dir.path().join("flows.csv"));
    let text = "Nodes 1000\nConnections 3\nTriggers 1\n\
        7->900 id 1 start 0 size 100000 send_done_trigger 1\n\
        900->7 id 2 trigger 1 size 50000\n7->13 id 3 start 1000 size 1\ntrigger id 1 oneshot\n";
    std::fs::write(&matrix, text).expect("written");
    let path = |path: &std::path::Path| path.to_str().expect("UTF-8").to_owned();
    let report = report(&["--matrix", &path(&matrix), "--flows", &path(&flows)]);
    assert_eq!(report["config"]["topology_hosts"], 3);
    let csv = std::fs::read_to_string(flows).expect("written");
    let rows: Vec<Vec<&str>> = csv.lines().skip(1).map(|line| line.split(',').collect()).collect();
    let head: Vec<&str> = csv.lines().next().expect("a heading").split(',').collect();
    let column =
        |name: &str| head.iter().position(|&c| c == name).unwrap_or_else(|| panic!("{name}: {head:?}"));
    assert_eq!(rows.iter().map(|row| row[column("src")]).collect::<Vec<_>>(), ["7", "900", "7"]);
    let us = |row: usize, name: &str| rows[row][column(name)].parse::<f64>().expect("a number");
    assert!(us(1, "start_us") >= us(0, "end_us"), "the second waits for the first: {csv}");
}

#[test]
fn the_table_names_the_run_and_its_port() {
    let output = udp(&["--workload", "incast:2", "--size", "1MB"]);
    let text = std::str::from_utf8(&output.stdout).expect("UTF-8");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(text.starts_with("incast:2: 3 hosts over kernel UDP on 127.0.0.1 in real time, "), "{text}");
    assert!(text.contains("2 of 2 done"), "{text}");
    // There may be something to say of the system's sockets, but nothing else.
    assert!(stderr(&output).lines().all(|line| line.starts_with("weft: udp: ")), "{}", stderr(&output));
}

#[test]
fn a_run_that_is_cut_off_lists_the_waiting_flows() {
    let output = udp(&["--workload", "incast:1", "--size", "1GB", "--until", "5ms"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("1 of 1 flows unfinished") && stderr(&output).contains("PSN"));
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let cases: &[(&[&str], &str)] = &[
        (&["--link", "40G"], "--link: has no effect on kernel UDP; expected --on sim"),
        (&["--topology", "fat-tree:hosts=16"], "--topology: has no effect on kernel UDP"),
        (&["--trim", "off"], "--trim: has no effect on kernel UDP"),
        (&["--payload", "virtual"], "--payload: has no effect on kernel UDP"),
        (&["--threads", "2"], "--threads: has no effect on kernel UDP"),
        (&["--paths", "65"], "--paths: 65 source ports for each host; expected at most 64"),
        (&["--hosts", "65"], "--on udp: 65 hosts take part; expected at most 64 in one process"),
    ];
    for (options, expected) in cases {
        let output = udp(&[&["--workload", "permutation"], *options].concat());
        assert_eq!(output.status.code(), Some(2), "{options:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{options:?}: {}", stderr(&output));
    }
}
