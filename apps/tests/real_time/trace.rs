//! `--trace` as users see it: each line is one JSON object, and lines agree with the reports of the same run.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

fn weft(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(args).env("RUST_BACKTRACE", "0");
    command
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("standard output is one JSON document and nothing else")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// The lines of a trace, each of which must be a record with a time, a host and an event.
fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("the trace is there");
    let parse =
        |line: &str| -> Value { serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}")) };
    let lines: Vec<Value> = text.lines().map(parse).collect();
    for line in &lines {
        assert_ne!(line["event"], "lost_records", "the writer keeps up with a short run");
        let is_record = line["time_ps"].is_u64() && line["host"].is_u64() && line["event"].is_string();
        assert!(is_record, "{line}");
    }
    lines
}

/// How many lines there are of each event, with retransmissions apart from other packets.
fn counts(lines: &[Value]) -> BTreeMap<&str, u64> {
    let mut counts = BTreeMap::new();
    for line in lines {
        let event = match line["retransmission"].as_bool() {
            Some(true) => "data_sent again",
            _ => line["event"].as_str().expect("a name"),
        };
        *counts.entry(event).or_default() += 1;
    }
    counts
}

/// Checks that each counter of a report is the number of its events.
fn agree(report: &Value, lines: &[Value]) {
    let counts = counts(lines);
    let count = |event| counts.get(event).copied().unwrap_or(0);
    for (counter, event) in [
        ("data", "data_sent"),
        ("retransmitted", "data_sent again"),
        ("acks", "ack_sent"),
        ("nacks", "nack_sent"),
    ] {
        assert_eq!(report["packets"][counter], count(event), "{counter}: {report}");
    }
    assert_eq!(report["timeouts"], count("timeout"), "{report}");
    assert!(count("data_sent") > 0);
}

/// A run whose queues trim, and one of whose links loses packets.
const LOSSY: &[&str] = &[
    "run",
    "--workload",
    "incast:8",
    "--size",
    "300KB",
    "--queue",
    "20KB",
    "--topology",
    "leaf-spine:hosts=16,leaves=4,spines=2",
    "--link-event",
    "0us host=3 drop=0.02",
    "--json",
    "-",
];

fn lossy(directory: &TempDir, name: &str, more: &[&str]) -> (Value, PathBuf) {
    let path = directory.path().join(name);
    let output = weft(LOSSY).args(["--trace", text(&path)]).args(more).output().expect("weft starts");
    (json(&output), path)
}

#[test]
fn a_trace_of_a_lossy_run_agrees_with_its_counters() {
    let directory = tempfile::tempdir().expect("a directory");
    let (report, path) = lossy(&directory, "all.jsonl", &[]);
    let lines = lines(&path);
    agree(&report, &lines);
    let counts = counts(&lines);
    for event in ["data_sent again", "trimmed_received", "nack_received", "pdc_opened", "pdc_closed"] {
        assert!(counts.contains_key(event), "{event}: {counts:?}");
    }
    assert_eq!(counts["pdc_opened"], counts["pdc_closed"]);
    let times: Vec<_> = lines.iter().map(|line| line["time_ps"].as_u64()).collect();
    assert!(times.is_sorted());
}

#[test]
fn any_number_of_threads_writes_the_same_bytes() {
    let directory = tempfile::tempdir().expect("a directory");
    let (_, one) = lossy(&directory, "one.jsonl", &["--threads", "1"]);
    let (_, two) = lossy(&directory, "two.jsonl", &["--threads", "2"]);
    assert!(fs::read(one).expect("a trace") == fs::read(two).expect("a trace"));
}

#[test]
fn hosts_and_pdcs_are_selected() {
    let directory = tempfile::tempdir().expect("a directory");
    let (_, path) = lossy(&directory, "some.jsonl", &["--trace-host", "3,5", "--trace-pdc", "1"]);
    let lines = lines(&path);
    assert!(!lines.is_empty());
    assert!(lines.iter().all(|line| [3, 5].contains(&line["host"].as_u64().unwrap()) && line["pdc"] == 1));
    let refused =
        weft(LOSSY).args(["--trace", "/dev/null", "--trace-host", "99"]).output().expect("weft starts");
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(error.contains("--trace-host: there is no host 99; expected 0 to"), "{error}");
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn a_run_over_udp_is_traced() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("udp.jsonl");
    let line = [
        "run",
        "--on",
        "udp",
        "--workload",
        "incast:3",
        "--size",
        "200KB",
        "--json",
        "-",
        "--trace",
        text(&path),
    ];
    let report = json(&weft(&line).output().expect("weft starts"));
    let lines = lines(&path);
    agree(&report, &lines);
    // Peers are named as the workload names hosts.
    let pairs = |event: &str| {
        let of_event = lines.iter().filter(|line| line["event"] == event);
        let mut pairs: Vec<_> = of_event.map(|line| (line["host"].as_u64(), line["peer"].as_u64())).collect();
        pairs.sort_unstable();
        pairs.dedup();
        pairs
    };
    let opened = pairs("pdc_opened");
    let received: Vec<_> = pairs("data_received").into_iter().map(|(host, peer)| (peer, host)).collect();
    assert_eq!(opened.len(), 3);
    assert!(received.iter().all(|pair| opened.contains(pair)), "{opened:?} {received:?}");
}

#[test]
fn hosts_in_processes_of_their_own_write_traces_of_their_own() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("soft.jsonl");
    let line = [
        "run",
        "--on",
        "soft",
        "--processes=udp",
        "--workload",
        "incast:2",
        "--size",
        "50KB",
        "--json",
        "-",
        "--trace",
        text(&path),
    ];
    let report = json(&weft(&line).output().expect("weft starts"));
    let mut all = Vec::new();
    let mut files = 0;
    for entry in fs::read_dir(directory.path()).expect("a directory") {
        let path = entry.expect("an entry").path();
        let of_host = lines(&path);
        let host = format!("soft.host{}.jsonl", of_host[0]["host"]);
        assert!(path.ends_with(&host), "{path:?} has events of {host}");
        all.extend(of_host);
        files += 1;
    }
    assert_eq!(files, 3);
    agree(&report, &all);
}

#[test]
fn both_ends_of_a_pair_are_traced() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pair.jsonl");
    let line = [
        "perf",
        "pair",
        "--count",
        "20",
        "--size",
        "40KB",
        "--patience",
        "20000ms",
        "--json",
        "-",
        "--trace",
        text(&path),
    ];
    let report = json(&weft(&line).output().expect("weft starts"));
    assert_eq!(report["server"]["arrived"], 20);
    let lines = lines(&path);
    for (event, host) in [("data_sent", 0), ("data_received", 1), ("ack_sent", 1), ("ack_received", 0)] {
        let count = lines.iter().filter(|line| line["event"] == event && line["host"] == host).count();
        assert!(count >= 20, "{count} {event} at host {host}");
    }
}

#[test]
fn a_process_that_is_killed_leaves_its_trace() {
    let directory = tempfile::tempdir().expect("a directory");
    let (of_server, of_client) =
        (directory.path().join("server.jsonl"), directory.path().join("client.jsonl"));
    let (port, here) = ("udp:127.94.1.1", "udp:127.94.1.2");
    let line = ["perf", "server", "--port", port, "--wait", "60000ms", "--trace", text(&of_server)];
    let mut server = weft(&line).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("weft starts");
    let line = [
        "perf",
        "client",
        "127.94.1.1",
        "--port",
        here,
        "--patience",
        "20000ms",
        "--count",
        "10",
        "--json",
        "-",
        "--trace",
        text(&of_client),
    ];
    let outcome = weft(&line).output().expect("weft starts");
    let written = || lines(&of_server).iter().filter(|line| line["event"] == "data_received").count();
    let limit = Instant::now() + Duration::from_secs(20);
    while outcome.status.success() && written() < 10 && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(20));
    }
    server.kill().expect("it is a child");
    server.wait().expect("it is a child");
    json(&outcome);
    assert!(written() >= 10, "the lines until shortly before its end");
    assert!(lines(&of_client).iter().any(|line| line["event"] == "ack_received" && line["rtt_ps"].is_u64()));
}
