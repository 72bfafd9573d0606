//! uet-htsim's own validation, experiment by experiment, through `weft htsim`.
//!
//! `apps/suites/htsim.toml` has the experiments and their limits, and names the lines that weft misses. The experiments of
//! 1024 hosts run only on request:
//!
//! ```text
//! cargo test --release -p weft-apps --no-default-features --test htsim_validation -- --include-ignored --nocapture
//! ```

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Deserialize)]
struct Suite {
    file: Vec<SuiteFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SuiteFile {
    name: String,
    experiment: Vec<Experiment>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Experiment {
    name: String,
    matrix: String,
    arguments: String,
    tail_us: f64,
    #[serde(default)]
    flows: BTreeMap<String, f64>,
    /// Why weft misses a limit, if it does.
    missed: Option<String>,
}

/// One limit and how it was met.
struct Verdict {
    what: String,
    /// Whether it is the limit of the last flow, the only one that experiments are known to miss.
    is_tail: bool,
    passed: bool,
}

fn suite() -> Vec<SuiteFile> {
    let text = include_str!("../suites/htsim.toml");
    toml::from_str::<Suite>(text).expect("the suite is valid").file
}

fn data(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testbed/data").join(kind)
}

/// Number of flows that the header of a matrix states, which is that of `validate.py`.
fn connections(matrix: &Path) -> u64 {
    let text = std::fs::read_to_string(matrix).expect("a matrix of testbed/data");
    let stated = text.lines().find_map(|line| line.strip_prefix("Connections "));
    stated.and_then(|number| number.trim().parse().ok()).expect("`Connections N`")
}

fn run(experiment: &Experiment) -> Vec<Verdict> {
    let matrix = data("matrices").join(&experiment.matrix);
    let mut words = experiment.arguments.split_whitespace();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.arg("htsim").arg("-tm").arg(&matrix);
    while let Some(word) = words.next() {
        command.arg(word);
        if word == "-topo" {
            command.arg(data("topologies").join(words.next().expect("a topology")));
        }
    }
    let output = command.output().expect("weft starts");
    assert!(output.status.success(), "{}: {}", experiment.name, String::from_utf8_lossy(&output.stderr));
    judge(experiment, connections(&matrix), &String::from_utf8(output.stdout).expect("UTF-8"))
}

/// Reads the output by position, like `validate.py`.
fn judge(experiment: &Experiment, expected: u64, output: &str) -> Vec<Verdict> {
    let (mut verdicts, mut tail, mut messages) = (Vec::new(), 0.0, 0);
    for line in output.lines().filter(|line| line.contains("finished")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(&words[9..11], ["total", "messages"], "{line}");
        tail = words[8].parse().expect("a time");
        messages += words[11].parse::<u64>().expect("a number");
        if let Some(limit) = experiment.flows.get(words[1]) {
            verdicts.push(Verdict {
                what: format!("{} {tail} of {limit} µs", words[1]),
                is_tail: false,
                passed: tail <= *limit,
            });
        }
    }
    let limit = experiment.tail_us;
    let what = format!("tail {tail} of {limit} µs");
    verdicts.push(Verdict { what, is_tail: true, passed: tail <= limit });
    let what = format!("{messages} of {expected} flows");
    verdicts.push(Verdict { what, is_tail: false, passed: messages == expected });
    verdicts
}

/// The verdicts that are not what they should be: all limits hold, except that of the last flow where it is known to be
/// missed, which does not.
fn surprises(verdicts: &[Verdict], tail_missed: bool) -> impl Iterator<Item = String> {
    verdicts.iter().filter(move |verdict| verdict.passed == (tail_missed && verdict.is_tail)).map(|verdict| {
        let known = if verdict.passed { "not missed any more" } else { "missed" };
        format!("{}: {known}", verdict.what)
    })
}

/// Runs the experiments that `chosen` accepts, and expects what [`surprises`] does.
fn validate(chosen: impl Fn(&Experiment) -> bool) {
    let (mut lines, mut passed, mut wrong) = (0, 0, Vec::new());
    for file in suite() {
        for experiment in file.experiment.iter().filter(|experiment| chosen(experiment)) {
            let verdicts = run(experiment);
            for Verdict { what, passed: pass, .. } in &verdicts {
                let verdict = if *pass { "PASS" } else { "FAIL" };
                println!("[{verdict}] {}: {}: {what}", file.name, experiment.name);
            }
            lines += verdicts.len();
            passed += verdicts.iter().filter(|verdict| verdict.passed).count();
            let surprises = surprises(&verdicts, experiment.missed.is_some());
            wrong.extend(surprises.map(|what| format!("{}: {}: {what}", file.name, experiment.name)));
        }
    }
    println!("{passed} of {lines} lines passed");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn is_large(experiment: &Experiment) -> bool {
    experiment.matrix.contains("1024")
}

#[test]
fn the_suite_is_the_whole_validation() {
    let files = suite();
    let experiments = || files.iter().flat_map(|file| &file.experiment);
    assert_eq!((files.len(), experiments().count()), (8, 95));
    assert_eq!(experiments().map(|experiment| 2 + experiment.flows.len()).sum::<usize>(), 193);
}

#[test]
fn an_experiment_that_is_known_to_miss_its_last_flow_may_not_miss_another_limit() {
    let verdicts = |flow, tail| {
        [(false, flow), (true, tail), (false, true)].map(|(is_tail, passed)| Verdict {
            what: String::new(),
            is_tail,
            passed,
        })
    };
    let count = |flow, tail, missed| surprises(&verdicts(flow, tail), missed).count();
    assert_eq!((count(true, true, false), count(true, false, true)), (0, 0));
    assert_eq!((count(false, false, true), count(true, true, true), count(true, false, false)), (1, 1, 1));
}

#[test]
fn experiments_of_up_to_128_hosts_meet_the_limits_of_uet_htsim() {
    validate(|experiment| !is_large(experiment));
}

#[test]
#[ignore = "takes minutes of CPU: 56 experiments of 1024 hosts"]
fn experiments_of_1024_hosts_meet_the_limits_of_uet_htsim() {
    validate(is_large);
}
