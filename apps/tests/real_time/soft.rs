//! `weft run --on soft` as its users see it: 16 hosts on 4 leaves and 4 spines, connection matrices from files,
//! payload compared byte by byte; with all hosts in one process, and each in its own.
//!
//! No result here depends on the speed of the machine. The fabric runs 5,000 times slower than at 100 Gbit/s, so that a thread
//! may be without its core for more than a second before a timer expires for nothing.

use crate::lab;
use crate::lab::{FABRIC, Lab, json, no_namespaces, skipped, stderr_of, until};
use serde_json::Value;
use std::fmt::Write;

const SLOW: &str = "--slow=5000";

/// `count` flows of `bytes` bytes, from and to these hosts, as a connection matrix.
fn matrix(flows: impl IntoIterator<Item = (u32, u32)>, bytes: u64) -> String {
    let flows: Vec<_> = flows.into_iter().collect();
    let mut text = format!("Nodes 16\nConnections {}\n", flows.len());
    for (id, (from, to)) in (1..).zip(&flows) {
        let _ = writeln!(text, "{from}->{to} id {id} start 0 size {bytes}");
    }
    text
}

fn incast() -> impl Iterator<Item = (u32, u32)> {
    (1..16).map(|from| (from, 0))
}

/// To a host behind another leaf each.
fn permutation() -> impl Iterator<Item = (u32, u32)> {
    (0..16).map(|from| (from, (from + 5) % 16))
}

fn all_to_all() -> impl Iterator<Item = (u32, u32)> {
    (1..16).flat_map(|step| (0..16).map(move |from| (from, (from + step) % 16)))
}

/// Runs `text` over the fabric. All of it arrived, and was compared.
fn run(lab: &Lab, text: &str, args: &[&str]) -> Value {
    let file = lab.file("flows.cm", text);
    let common = ["run", "--on", "soft", "--topology", FABRIC, "--matrix", &file, SLOW, "--json", "-"];
    let report = json(&lab.run(&[&common, args].concat()));
    assert_eq!(report["flows"]["completed"], report["flows"]["total"], "{report}");
    assert_eq!(report["predicted"]["completed"], report["flows"]["total"], "{report}");
    assert!(report["switches"]["late_max_us"].is_f64() && report["switches"]["punctual"].is_boolean());
    assert_eq!((&report["config"]["payload"], &report["config"]["slow"]), (&"real".into(), &5_000.into()));
    report
}

fn number(report: &Value, path: &str) -> u64 {
    report.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path} of {report}"))
}

/// Flows last at least as long as the busiest link needs.
fn takes_its_time(report: &Value) {
    assert!(report["slowdown_max"].as_f64() >= Some(1.0), "{report}");
}

#[test]
fn an_incast_is_trimmed_and_arrives() {
    for options in [&[][..], &["--crc"]] {
        let report = run(&Lab::new(), &matrix(incast(), 100_000), options);
        assert_eq!((number(&report, "/flows/total"), number(&report, "/packets/data")), (15, 15 * 25));
        let (trimmed, again) =
            (number(&report, "/packets/trimmed"), number(&report, "/packets/retransmitted"));
        assert!(trimmed > 0 && again >= trimmed, "{report}");
        assert!(number(&report, "/predicted/trimmed") > 0, "{report}");
        assert_eq!(number(&report, "/packets/dropped"), 0, "{report}");
        assert_eq!(number(&report, "/timeouts"), 0, "{report}");
        takes_its_time(&report);
    }
}

/// Flows within leaves, one packet at a time; the simulator agrees on how long that takes.
#[test]
fn hosts_of_a_leaf_are_a_zone() {
    let options = ["--cc", "intra=constant,inter=nscc", "--cc-set", "intra.window=5KB"];
    for processes in [&[][..], &["--processes"]] {
        let near = [(5, 6), (9, 10)];
        let report = run(&Lab::new(), &matrix(near, 50_000), &[&options, processes].concat());
        assert_eq!(report["config"]["cc"], "intra=constant,inter=nscc");
        let slowest = |path: &str| report.pointer(path).and_then(Value::as_f64).expect("a time");
        let (real, predicted) = (slowest("/fct_us/max"), slowest("/predicted/fct_us/max"));
        assert!(real > predicted * 0.8, "{real} µs, predicted {predicted}");
        assert!(report["slowdown_max"].as_f64() > Some(2.0), "{report}");
    }
}

#[test]
fn a_permutation_arrives() {
    let report = run(&Lab::new(), &matrix(permutation(), 200_000), &[]);
    assert_eq!((number(&report, "/flows/total"), number(&report, "/packets/data")), (16, 16 * 49));
    assert_eq!(number(&report, "/packets/dropped"), 0, "{report}");
    takes_its_time(&report);
}

#[test]
fn all_to_all_arrives() {
    let report = run(&Lab::new(), &matrix(all_to_all(), 20_000), &[]);
    assert_eq!((number(&report, "/flows/total"), number(&report, "/packets/data")), (240, 240 * 5));
    assert_eq!(number(&report, "/packets/dropped"), 0, "{report}");
    takes_its_time(&report);
}

#[test]
fn flows_survive_a_link_that_fails_and_heals() {
    let events = [
        "--link-event",
        "20ms tier=0 switch=1 link=2 fail",
        "--link-event",
        "200ms tier=0 switch=1 link=2 restore",
    ];
    let report = run(&Lab::new(), &matrix(permutation(), 500_000), &events);
    assert!(number(&report, "/packets/dropped") > 0, "{report}");
    assert!(number(&report, "/packets/retransmitted") > 0, "{report}");
}

#[test]
fn flows_survive_links_that_lose_and_damage_packets() {
    let events = ["--link-event", "0us host=0 drop=0.1", "--link-event", "0us host=4 corrupt=0.1"];
    for processes in [&[][..], &["--processes"]] {
        let report = run(&Lab::new(), &matrix(permutation(), 100_000), &[&events, processes].concat());
        assert!(number(&report, "/packets/dropped") > 0, "{report}");
    }
}

#[test]
fn an_incast_between_hosts_in_processes_arrives() {
    let kinds =
        if cfg!(feature = "dpdk") { &["--processes=udp", "--processes=memif"][..] } else { &["--processes"] };
    for kind in kinds {
        let lab = Lab::new();
        let report = run(&lab, &matrix(incast(), 60_000), &[kind]);
        assert_eq!((number(&report, "/flows/total"), number(&report, "/packets/data")), (15, 15 * 15));
        assert!(number(&report, "/packets/trimmed") > 0, "{kind}: {report}");
        takes_its_time(&report);
        let left = std::fs::read_dir(lab.runtime()).expect("it is there").count();
        assert_eq!(left, 0, "nothing is left behind");
    }
}

#[test]
fn flows_between_hosts_in_processes_wait_for_their_triggers() {
    let text = "Nodes 16\nConnections 4\nTriggers 2\n\
                1->2 id 1 start 0 size 50000 send_done_trigger 1\n\
                2->9 id 2 trigger 1 size 40000 recv_done_trigger 2\n\
                9->1 id 3 trigger 2 size 30000\n\
                1->2 id 4 start 5000 size 0\n\
                trigger id 1 oneshot\ntrigger id 2 oneshot\n";
    let lab = Lab::new();
    let csv = lab.path().join("flows.csv").display().to_string();
    let report = run(&lab, text, &["--processes", "--flows", &csv]);
    assert_eq!((number(&report, "/flows/total"), number(&report, "/packets/data")), (4, 13 + 10 + 8 + 1));
    let rows = std::fs::read_to_string(&csv).expect("it was written");
    let column =
        |name: &str| rows.lines().next().unwrap().split(',').position(|n| n == name).expect("a column");
    let (start, end) = (column("start_us"), column("end_us"));
    let times: Vec<(f64, f64)> = rows
        .lines()
        .skip(1)
        .map(|row| row.split(',').collect::<Vec<_>>())
        .map(|row| (row[start].parse().expect("a time"), row[end].parse().expect("a time")))
        .collect();
    assert!(times[1].0 >= times[0].1 && times[2].0 >= times[1].0, "{rows}");
    assert!(times[3].0 >= 5.0, "{rows}");
}

#[test]
fn an_incast_between_hosts_in_namespaces_arrives() {
    if !cfg!(feature = "dpdk") {
        return;
    }
    if let Some(why) = no_namespaces() {
        return skipped(&why);
    }
    let report = run(&Lab::new(), &matrix((1..4).map(|from| (4 * from, 0)), 100_000), &["--processes=veth"]);
    assert_eq!((number(&report, "/flows/total"), number(&report, "/packets/data")), (3, 3 * 25));
}

/// Processes that `pid` has started.
fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// The number of the host that the process `pid` plays.
fn host_of(pid: u32) -> Option<String> {
    let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
    let mut words = line.split('\0').skip_while(|word| *word != "--number");
    words.nth(1).map(str::to_owned)
}

fn kill(pid: u32) {
    let status = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status();
    assert!(status.expect("there is kill").success());
}

/// A run that takes longer than any test, with its hosts' processes.
fn endless(lab: &Lab) -> (lab::Process, Vec<u32>) {
    let file = lab.file("flows.cm", &matrix((1..4).map(|from| (from, 0)), 50_000_000));
    let args = ["run", "--on", "soft", "--topology", FABRIC, "--matrix", &file, SLOW, "--processes"];
    let process = lab.start(&args);
    until("all hosts run", || children(process.pid()).iter().filter_map(|pid| host_of(*pid)).count() == 4);
    let hosts = children(process.pid());
    (process, hosts)
}

#[test]
fn a_host_that_dies_is_named() {
    let lab = Lab::new();
    let (process, hosts) = endless(&lab);
    let third = hosts.iter().find(|pid| host_of(**pid).as_deref() == Some("3")).expect("there is host 3");
    kill(*third);
    let output = process.output();
    assert_eq!(output.status.code(), Some(1), "{}", stderr_of(&output));
    assert!(
        stderr_of(&output).contains("host 3: its process ended: killed by signal 9"),
        "{}",
        stderr_of(&output)
    );
    for pid in hosts {
        assert!(host_of(pid).is_none(), "the others end with the run");
    }
}

#[test]
fn a_run_that_is_interrupted_leaves_nothing() {
    let lab = Lab::new();
    let (process, hosts) = endless(&lab);
    let status = std::process::Command::new("kill").args(["-INT", &process.pid().to_string()]).status();
    assert!(status.expect("there is kill").success());
    let output = process.output();
    assert_eq!(output.status.code(), Some(130), "{}", stderr_of(&output));
    assert!(hosts.iter().all(|pid| host_of(*pid).is_none()), "the hosts end with the run");
    assert_eq!(std::fs::read_dir(lab.runtime()).expect("it is there").count(), 0);
}

#[test]
fn hosts_die_with_the_run_and_the_next_one_cleans_up() {
    let lab = Lab::new();
    let (mut process, hosts) = endless(&lab);
    let directory = lab.runtime().join(format!("p{}", process.pid()));
    assert!(directory.exists());
    process.kill();
    drop(process);
    until("all hosts are gone", || hosts.iter().all(|pid| host_of(*pid).is_none()));
    run(&lab, &matrix([(1, 2)], 1_000), &["--processes"]);
    assert!(!directory.exists(), "the next run removes what was left");
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let lab = Lab::new();
    let refusal = |args: &[&str]| {
        let output = lab.run(&[&["run", "--workload", "permutation"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{}", stderr_of(&output));
        stderr_of(&output).to_owned()
    };
    assert!(refusal(&["--processes"]).contains("--processes: expected --on soft with it"));
    assert!(refusal(&["--on", "soft", "--processes=pigeon"]).contains("pigeon"));
    assert!(
        refusal(&["--on", "soft", "--processes", "--paths", "64"]).contains("--paths: expected at most 16")
    );
    assert!(refusal(&["--on", "udp", "--slow", "2"]).contains("--slow: has no effect on kernel UDP"));
    assert!(
        refusal(&["--on", "soft", "--threads", "2"])
            .contains("--threads: has no effect on software switches")
    );
}

/// Both flows pass the slow link between the switches.
#[test]
fn flows_over_a_graph_arrive() {
    let lab = Lab::new();
    let file = lab.file("flows.cm", &matrix([(0, 8), (9, 1), (2, 15)], 50_000));
    let fabric = "dumbbell:hosts=8,bottleneck=10G,delay=10us";
    let report = json(&lab.run(&[
        "run",
        "--on",
        "soft",
        "--topology",
        fabric,
        "--matrix",
        &file,
        SLOW,
        "--json",
        "-",
    ]));
    assert_eq!(
        (number(&report, "/flows/completed"), number(&report, "/predicted/completed")),
        (3, 3),
        "{report}"
    );
    takes_its_time(&report);
}
