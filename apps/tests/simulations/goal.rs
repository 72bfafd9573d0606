//! GOAL programs: `weft goal` writes them, and `weft run --workload goal:FILE` runs them and says how each rank went.

use crate::lab::{Lab, json, stderr_of};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

/// Four ranks, two of them on each host: messages within hosts and between them, any rank, any tag, and computation.
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/goal/stencil.goal");

/// A program whose rank 0 waits for a message that rank 1 does not send.
const NEVER_ENDS: &str =
    "num_ranks 2\nrank 0 {\nx: recv 8b from 1 tag 7\n}\nrank 1 {\nsend 8b to 0 tag 8\n}\n";

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

/// The path of a new file with a program for ranks in a ring; `shape` are the options of its generator.
fn ring(name: &str, shape: &[&str]) -> String {
    let path = file(name, "");
    let made = weft(&[&["goal", "ring"], shape, &["-o", &path]].concat());
    assert!(made.status.success(), "{}", stderr_of(&made));
    path
}

/// Checks that `output` is that of a command that has failed with this exit status, and has said all of this.
fn fails(output: &Output, status: i32, words: &[impl AsRef<str>]) {
    let said = stderr_of(output);
    assert_eq!(output.status.code(), Some(status), "{said}");
    for word in words.iter().map(AsRef::as_ref) {
        assert!(said.contains(word), "`{word}` is not in: {said}");
    }
}

/// What a run says of [`NEVER_ENDS`] in the file `path`.
fn who_waits(path: &str) -> [String; 2] {
    let line = format!("rank 0 on host 0: `x: recv 8b from 1 tag 7` ({path}:3) waits for a message");
    ["1 of 2 ranks unfinished:".into(), line]
}

#[test]
fn a_generated_program_runs_and_each_rank_has_its_time() {
    let shape = ["--ranks", "8", "--size", "64KiB", "--iterations", "2", "--compute", "5us"];
    let path = ring("ring.goal", &shape);
    let on_stdout = weft(&[&["goal", "ring"], &shape[..], &["-o", "-"]].concat());
    assert_eq!(text(&on_stdout.stdout), fs::read_to_string(&path).unwrap());

    let arguments = ["run", "--workload", &workload(&path), "--ranks-per-host", "2"];
    let table = weft(&arguments);
    let table = text(&table.stdout);
    assert!(table.contains("8 ranks on 4 hosts"), "{table}");
    assert!(table.contains("ranks     8 of 8 finished; rank "), "{table}");
    assert!(table.contains("messages  112 of 112 done"), "{table}");
    let report = |more: &[&str]| json(&weft(&[&arguments[..], &["--json", "-"], more].concat()));
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
    let places = ["--payload", "real", "--placement", "round-robin", "--ranks-per-host", "2"];
    let output = weft(&[&["run", "--workload", &workload(EXAMPLE)], &places[..]].concat());
    assert!(output.status.success(), "{}", stderr_of(&output));
    assert!(text(&output.stdout).contains("4 of 4 finished"), "{}", text(&output.stdout));
}

#[test]
fn a_program_that_cannot_go_on_says_who_waits_for_what() {
    let path = file("waits.goal", NEVER_ENDS);
    fails(&weft(&["run", "--workload", &workload(&path)]), 3, &who_waits(&path));
}

#[test]
fn a_program_that_lost_packets_says_where() {
    let path = file("lost.goal", "num_ranks 2\nrank 0 {\nsend 9b to 1\n}\nrank 1 {\nrecv 9b from 0\n}\n");
    let down = ["--link-event", "0us host=1 fail", "--until", "100us"];
    let line = "the last packet that message 1 from host 0 to host 1 lost was lost at ";
    let link = " by the link tor1>host1, which is down since 0.0 µs";
    fails(&weft(&[&["run", "--workload", &workload(&path)], &down[..]].concat()), 3, &[line, link]);
}

#[test]
fn what_is_no_program_is_refused_with_its_line_and_word() {
    let path = file("wrong.goal", "num_ranks 2\nrank 0 {\nsend 8 to 1\n}\n");
    let line = format!("{path}:3: `8`: expected a number of bytes");
    fails(&weft(&["run", "--workload", &workload(&path)]), 1, &[line]);
    fails(&weft(&["run", "--workload", "goal:no-such-file"]), 1, &["no-such-file: "]);
}

#[test]
fn options_without_effect_are_refused() {
    let path = workload(&file("good.goal", "num_ranks 2\nrank 0 {\n}\nrank 1 {\n}\n"));
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
        fails(&weft(&[&["run", "--workload", &path][..], more].concat()), 2, &[word]);
    }
    let without = weft(&["run", "--workload", "permutation", "--eager", "5"]);
    fails(&without, 2, &["--eager: expected --workload goal:FILE with it"]);
    for (more, word) in [
        (
            &["spiral", "--ranks", "2"][..],
            "`spiral` is no pattern; expected ring, tree, recursive-doubling or all-to-all",
        ),
        (&["recursive-doubling", "--ranks", "6"], "--ranks: 6 ranks; expected a power of two"),
        (&["ring", "--ranks", "2", "--compute", "1ps"], "expected whole nanoseconds"),
    ] {
        fails(&weft(&[&["goal"], more, &["--size", "1", "-o", "-"]].concat()), 2, &[word]);
    }
}

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
    let refused = weft(&["run", "--workload", &path, "--on", "loopback"]);
    let why = "--on loopback: the ranks are on 4 hosts; expected at most 2, by more --ranks-per-host";
    fails(&refused, 2, &[why]);
    let many = ring("many.goal", &["--ranks", "65", "--size", "1KiB"]);
    let refused = weft(&["run", "--workload", &workload(&many), "--on", "udp"]);
    fails(&refused, 2, &["--on udp: 65 hosts take part; expected at most 64 in one process"]);
}

#[test]
fn a_real_run_that_cannot_go_on_says_who_waits_for_what() {
    let path = file("waits_really.goal", NEVER_ENDS);
    for on in [&["udp"][..], &["soft", "--processes"]] {
        let common = ["run", "--workload", &workload(&path), "--until", "2s", "--on"];
        fails(&Lab::new().run(&[&common, on].concat()), 3, &who_waits(&path));
    }
}

/// No time is asserted but that no packet is faster than its links: that ranks take the time of the simulator is asserted
/// with a virtual clock (`testbed/tests/soft.rs`), as in real time other work makes them later by any amount.
#[test]
fn a_program_over_software_switches_is_reported_beside_its_simulation() {
    let shape = ["--ranks", "8", "--size", "32KiB", "--iterations", "2", "--compute", "400us"];
    let path = ring("side_by_side.goal", &shape);
    let places = ["run", "--workload", &workload(&path), "--ranks-per-host", "2"];
    let fabric = ["--topology", "leaf-spine:hosts=4,leaves=2,spines=2,link=250M", "--slow", "1000"];
    let report = json(&Lab::new().run(&[&places[..], &["--on", "soft", "--json", "-"], &fabric].concat()));
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
