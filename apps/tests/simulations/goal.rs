//! GOAL programs: `weft goal` writes them, and `weft run --workload goal:FILE` runs them and says how each rank went.

use crate::lab::{Lab, json, stderr_of};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

fn weft(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weft")).args(args).output().expect("weft starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

/// The path of a new file with `contents`.
fn file(name: &str, contents: &str) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("goal-{name}"));
    fs::write(&path, contents).expect("a scratch file");
    path.to_str().expect("UTF-8").to_owned()
}

fn workload(path: &str) -> String {
    format!("goal:{path}")
}

/// The status and the complaint of a command that fails.
fn failure(args: &[&str]) -> (i32, String) {
    let output = weft(args);
    (output.status.code().expect("no signal"), text(&output.stderr).to_owned())
}

#[test]
fn a_generated_program_runs_and_each_rank_has_its_time() {
    let path = file("ring.goal", "");
    let made = weft(&[
        "goal",
        "ring",
        "--ranks",
        "8",
        "--size",
        "64KiB",
        "--iterations",
        "2",
        "--compute",
        "5us",
        "-o",
        &path,
    ]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let on_stdout = weft(&[
        "goal",
        "ring",
        "--ranks",
        "8",
        "--size",
        "64KiB",
        "--iterations",
        "2",
        "--compute",
        "5us",
        "-o",
        "-",
    ]);
    assert_eq!(text(&on_stdout.stdout), fs::read_to_string(&path).unwrap());

    let arguments = ["run", "--workload", &workload(&path), "--ranks-per-host", "2"];
    let table = weft(&arguments);
    let table = text(&table.stdout);
    assert!(table.contains("8 ranks on 4 hosts"), "{table}");
    assert!(table.contains("ranks     8 of 8 finished; rank "), "{table}");
    assert!(table.contains("messages  112 of 112 done"), "{table}");
    let report = |more: &[&str]| -> Value {
        let output = weft(&[&arguments[..], &["--json", "-"], more].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("one JSON document")
    };
    let (alone, scaled) = (report(&[]), report(&["--compute-scale", "3", "--threads", "2"]));
    let ranks = &alone["ranks"];
    assert_eq!((ranks["total"].as_u64(), ranks["finished"].as_u64()), (Some(8), Some(8)));
    let each = ranks["each"].as_array().unwrap();
    assert_eq!(each.len(), 8);
    assert_eq!((each[3]["rank"].as_u64(), each[3]["host"].as_u64()), (Some(3), Some(1)));
    let last = |report: &Value| report["ranks"]["slowest"]["finish_us"].as_f64().unwrap();
    assert!(each.iter().all(|rank| rank["finish_us"].as_f64().unwrap() <= last(&alone)));
    assert_eq!(alone["ranks"]["finish_us"]["max"].as_f64(), Some(last(&alone)));
    // Ten microseconds more of computation between the iterations.
    assert!((last(&scaled) - last(&alone) - 10.0).abs() < 0.5, "{} {}", last(&scaled), last(&alone));
    assert_eq!(alone["config"]["ranks_per_host"].as_u64(), Some(2));
}

#[test]
fn the_example_runs_with_real_bytes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/goal/stencil.goal");
    let output = weft(&[
        "run",
        "--workload",
        &workload(path),
        "--payload",
        "real",
        "--placement",
        "round-robin",
        "--ranks-per-host",
        "2",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("4 of 4 finished"), "{}", text(&output.stdout));
}

#[test]
fn a_program_that_cannot_go_on_says_who_waits_for_what() {
    let path = file(
        "waits.goal",
        "num_ranks 2\nrank 0 {\nx: recv 8b from 1 tag 7\n}\nrank 1 {\nsend 8b to 0 tag 8\n}\n",
    );
    let (status, said) = failure(&["run", "--workload", &workload(&path)]);
    assert_eq!(status, 3, "{said}");
    assert!(said.contains("1 of 2 ranks unfinished:"), "{said}");
    let line = format!("rank 0 on host 0: `x: recv 8b from 1 tag 7` ({path}:3) waits for a message");
    assert!(said.contains(&line), "{said}");
}

#[test]
fn a_program_that_lost_packets_says_where() {
    let path = file("lost.goal", "num_ranks 2\nrank 0 {\nsend 9b to 1\n}\nrank 1 {\nrecv 9b from 0\n}\n");
    let down = ["--link-event", "0us host=1 fail", "--until", "100us"];
    let (status, said) = failure(&[&["run", "--workload", &workload(&path)], &down[..]].concat());
    assert_eq!(status, 3, "{said}");
    let line = "the last packet that message 1 from host 0 to host 1 lost was lost at ";
    assert!(
        said.contains(line) && said.contains(" by the link tor1>host1, which is down since 0.0 µs"),
        "{said}"
    );
}

#[test]
fn what_is_no_program_is_refused_with_its_line_and_word() {
    let path = file("wrong.goal", "num_ranks 2\nrank 0 {\nsend 8 to 1\n}\n");
    let (status, said) = failure(&["run", "--workload", &workload(&path)]);
    assert_eq!(
        (status, said.contains(&format!("{path}:3: `8`: expected a number of bytes"))),
        (1, true),
        "{said}"
    );
    let (status, said) = failure(&["run", "--workload", "goal:no-such-file"]);
    assert_eq!((status, said.contains("no-such-file: ")), (1, true), "{said}");
}

#[test]
fn options_without_effect_are_refused() {
    let path = workload(&file("good.goal", "num_ranks 2\nrank 0 {\n}\nrank 1 {\n}\n"));
    let with = |more: &[&str]| failure(&[&["run", "--workload", &path][..], more].concat());
    for (more, word) in [
        (&["--size", "9"][..], "--size: has no effect"),
        (&["--hosts", "9"], "--hosts: has no effect"),
        (&["--sample", "1us"], "--sample: has no effect"),
        (&["--ranks-per-host", "0"], "--ranks-per-host"),
        (&["--placement", "spiral"], "`spiral` is no placement; expected block or round-robin"),
        (&["--compute-scale", "-1"], "expected a factor"),
        (&["--memory", "1us"], "expected a time and a rate, such as 500ns,200G"),
        (&["--on", "loopback", "--compute-scale", "x"], "expected a factor"),
        (&["--on", "udp", "--slow", "2"], "--slow: has no effect"),
    ] {
        let (status, said) = with(more);
        assert_eq!((status, said.contains(word)), (2, true), "{more:?}: {said}");
    }
    let (status, said) = failure(&["run", "--workload", "permutation", "--eager", "5"]);
    assert_eq!(
        (status, said.contains("--eager: expected --workload goal:FILE with it")),
        (2, true),
        "{said}"
    );
    for (more, word) in [
        (
            &["spiral", "--ranks", "2"][..],
            "`spiral` is no pattern; expected ring, tree, recursive-doubling or all-to-all",
        ),
        (&["recursive-doubling", "--ranks", "6"], "--ranks: 6 ranks; expected a power of two"),
        (&["ring", "--ranks", "2", "--compute", "1ps"], "expected whole nanoseconds"),
    ] {
        let (status, said) = failure(&[&["goal"], more, &["--size", "1", "-o", "-"]].concat());
        assert_eq!((status, said.contains(word)), (2, true), "{more:?}: {said}");
    }
}

/// Four ranks, two of them on each host: messages within hosts and between them, any rank, any tag, and computation.
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/goal/stencil.goal");

/// All ranks of the report of a run have finished, and all bytes between hosts have arrived.
fn ranks_finish(report: &Value, on: &str) {
    let ranks = &report["ranks"];
    assert_eq!((ranks["total"].as_u64(), ranks["finished"].as_u64()), (Some(4), Some(4)), "{report}");
    let each = ranks["each"].as_array().unwrap();
    let hosts: Vec<u64> = each.iter().map(|rank| rank["host"].as_u64().unwrap()).collect();
    assert_eq!(hosts, [0, 0, 1, 1]);
    // Each computes for 20 µs twice.
    assert!(each.iter().all(|rank| rank["finish_us"].as_f64() > Some(40.0)), "{report}");
    assert_eq!(
        (report["config"]["payload"].as_str(), report["config"]["on"].as_str()),
        (Some("real"), Some(on))
    );
    assert_eq!(report["flows"]["completed"], report["flows"]["total"], "{report}");
}

#[test]
fn programs_run_with_real_bytes_on_every_platform() {
    let run = |on: &[&str]| -> Value {
        let workload = workload(EXAMPLE);
        let common = ["run", "--workload", &workload, "--ranks-per-host", "2", "--json", "-", "--on"];
        json(&Lab::new().run(&[&common, on].concat()))
    };
    ranks_finish(&run(&["udp"]), "udp");
    ranks_finish(&run(&["soft", "--processes", "--slow", "5000"]), "soft");
    if cfg!(feature = "dpdk") {
        let report = run(&["loopback"]);
        ranks_finish(&report, "loopback");
        assert!(report["config"].get("pair").is_none(), "a program has no pair of hosts: {report}");
    }
}

#[test]
fn programs_on_too_many_hosts_are_refused() {
    let path = workload(EXAMPLE);
    let (status, said) = failure(&["run", "--workload", &path, "--on", "loopback"]);
    let expected = "--on loopback: the ranks are on 4 hosts; expected at most 2, by more --ranks-per-host";
    assert_eq!((status, said.contains(expected)), (2, true), "{said}");
    let ring = file("many.goal", "");
    let made = weft(&["goal", "ring", "--ranks", "65", "--size", "1KiB", "-o", &ring]);
    assert!(made.status.success(), "{}", stderr_of(&made));
    let (status, said) = failure(&["run", "--workload", &workload(&ring), "--on", "udp"]);
    let expected = "--on udp: 65 hosts take part; expected at most 64 in one process";
    assert_eq!((status, said.contains(expected)), (2, true), "{said}");
}

#[test]
fn a_real_run_that_cannot_go_on_says_who_waits_for_what() {
    let text = "num_ranks 2\nrank 0 {\nx: recv 8b from 1 tag 7\n}\nrank 1 {\nsend 8b to 0 tag 8\n}\n";
    let path = file("waits_really.goal", text);
    for on in [&["udp"][..], &["soft", "--processes"]] {
        let common = ["run", "--workload", &workload(&path), "--until", "2s", "--on"];
        let output = Lab::new().run(&[&common, on].concat());
        let said = stderr_of(&output);
        assert_eq!(output.status.code(), Some(3), "{said}");
        let line = format!("rank 0 on host 0: `x: recv 8b from 1 tag 7` ({path}:3) waits for a message");
        assert!(said.contains("1 of 2 ranks unfinished:") && said.contains(&line), "{said}");
    }
}

/// No time is asserted but that no packet is faster than its links: that ranks take the time of the simulator is asserted
/// with a virtual clock (`testbed/tests/soft.rs`), as in real time other work makes them later by any amount.
#[test]
fn a_program_over_software_switches_is_reported_beside_its_simulation() {
    let path = file("side_by_side.goal", "");
    let shape = ["--ranks", "8", "--size", "32KiB", "--iterations", "2", "--compute", "400us"];
    let made = weft(&[&["goal", "ring"], &shape[..], &["-o", &path]].concat());
    assert!(made.status.success(), "{}", stderr_of(&made));
    let report = json(&Lab::new().run(&[
        "run",
        "--workload",
        &workload(&path),
        "--ranks-per-host",
        "2",
        "--on",
        "soft",
        "--topology",
        "leaf-spine:hosts=4,leaves=2,spines=2,link=250M",
        "--slow",
        "1000",
        "--json",
        "-",
    ]));
    let (real, simulated) = (&report["ranks"], &report["predicted"]["ranks"]);
    let finished = |ranks: &Value| (ranks["finished"].as_u64(), ranks["each"].as_array().unwrap().len());
    assert_eq!((finished(real), finished(simulated)), ((Some(8), 8), (Some(8), 8)), "{report}");
    let ratio = report["predicted"]["finish_ratio"].as_f64().unwrap();
    let last = |ranks: &Value| ranks["finish_us"]["max"].as_f64().unwrap();
    assert!((last(real) / last(simulated) - ratio).abs() < 1e-9, "{report}");
    // The simulated time is more than 3 s, beside which costs of software do not show.
    assert!(last(simulated) > 3e6, "{report}");
    assert!(ratio > 0.9, "faster than its links: {report}");
}
