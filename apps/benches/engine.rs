//! How fast the virtual-time engine is, in data packets per second of CPU, and how much memory it takes.
//!
//! `cargo bench -p weft-apps --bench engine` measures the standard cases in one run, each in a process of its
//! own, best of a few; `-- --huge` adds 65,536 hosts.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const TOPOLOGIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../testbed/data/topologies");

/// A case with its goals.
struct Case {
    name: &'static str,
    topology: &'static str,
    size: &'static str,
    rounds: u32,
    /// Data packets per CPU second, at least.
    packets_per_s: Option<f64>,
    /// CPU seconds, at most.
    cpu_s: Option<f64>,
    /// Peak memory, at most, 10⁶ bytes.
    memory_mb: Option<f64>,
}

const NO_GOAL: Case = Case {
    name: "",
    topology: "leaf_spine_1024_oversub_8-1.topo",
    size: "2MiB",
    rounds: 1,
    packets_per_s: None,
    cpu_s: None,
    memory_mb: None,
};
const OVERSUBSCRIBED: Case =
    Case { name: "1024 hosts, two tiers 8:1, 2 MiB", rounds: 10, packets_per_s: Some(1.2e6), ..NO_GOAL };
const LONG: Case =
    Case { name: "1024 hosts, two tiers 8:1, 32 MiB", size: "32MiB", rounds: 2, cpu_s: Some(8.5), ..NO_GOAL };
const THREE_TIERS: Case = Case {
    name: "1024 hosts, three tiers 1:1, 2 MiB",
    topology: "fat_tree_1024_1os.topo",
    rounds: 10,
    cpu_s: Some(1.2),
    ..NO_GOAL
};
const LARGE: Case = Case {
    name: "8192 hosts, two tiers 1:1, 2 MiB",
    topology: "leaf_spine_8192_100g.topo",
    rounds: 3,
    cpu_s: Some(10.0),
    memory_mb: Some(400.0),
    ..NO_GOAL
};
const HUGE: Case = Case {
    name: "65,536 hosts, three tiers 1:1, 256 KiB",
    topology: "fat-tree:k=64,hosts=65536,link=100G,latency=1us",
    size: "256KiB",
    ..NO_GOAL
};

/// The report of a run and the time that the run took.
struct Cost {
    report: Value,
    wall: Duration,
}

impl Cost {
    fn number(&self, group: &str, name: &str) -> f64 {
        self.report[group][name].as_f64().unwrap_or(f64::NAN)
    }

    /// The report without what differs from run to run.
    fn results(mut self) -> Value {
        let engine = self.report["engine"].as_object_mut().expect("what the run cost");
        engine.retain(|what, _| what == "events");
        self.report
    }
}

fn run(case: &Case, threads: &str) -> Cost {
    let topology = match case.topology.contains(':') {
        true => case.topology.to_owned(),
        false => Path::new(TOPOLOGIES).join(case.topology).display().to_string(),
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(["run", "--workload", "permutation", "--mtu", "4096", "--wire-overhead", "64"]);
    command.args(["--paths", "128", "--size", case.size, "--topology", &topology, "--threads", threads]);
    command.args(["--json", "-"]).stderr(Stdio::inherit());
    let clock = Instant::now();
    let output = command.output().expect("weft runs");
    let wall = clock.elapsed();
    assert!(output.status.success(), "{}: weft run failed", case.name);
    Cost { report: serde_json::from_slice(&output.stdout).expect("a report"), wall }
}

/// The quickest of several runs of a case.
fn best(case: &Case, threads: &str) -> Cost {
    let runs = (0..case.rounds).map(|_| run(case, threads));
    runs.reduce(|a, b| if b.wall < a.wall { b } else { a }).expect("at least one round")
}

fn verdict(value: f64, least: Option<f64>, most: Option<f64>) -> &'static str {
    match (least, most) {
        (None, None) => "",
        _ if least.is_none_or(|least| value >= least) && most.is_none_or(|most| value <= most) => "(met)",
        _ => "(MISSED)",
    }
}

fn show(case: &Case, cost: &Cost) {
    let packets = cost.number("packets", "data");
    let (cpu_s, memory) = (cost.number("engine", "cpu_s"), cost.number("engine", "max_rss_mb"));
    let rate = packets / cpu_s;
    println!(
        "{:<40} {packets:>9} packets  {cpu_s:>7.3} CPU-s {:<8}  {:>5.2} M packets/CPU-s {:<8}  {memory:>6.0} MB {}",
        case.name,
        verdict(cpu_s, None, case.cpu_s),
        rate / 1e6,
        verdict(rate, case.packets_per_s, None),
        verdict(memory, None, case.memory_mb),
    );
}

/// One thread against two: the same results, sooner.
fn compare_threads(case: &Case) {
    let (one, two) = (best(case, "1"), best(case, "2"));
    let (wall_one, wall_two) = (one.wall.as_secs_f64(), two.wall.as_secs_f64());
    let speedup = wall_one / wall_two;
    let same = if one.results() == two.results() { "the same results" } else { "OTHER RESULTS" };
    println!(
        "{:<40} {wall_one:.2} s with one thread, {wall_two:.2} s with two: {speedup:.2} times as fast {}, {same}",
        case.name,
        verdict(speedup, Some(1.6), None),
    );
}

fn main() {
    for case in [OVERSUBSCRIBED, LONG, THREE_TIERS, LARGE] {
        show(&case, &best(&case, "1"));
    }
    compare_threads(&LARGE);
    if std::env::args().any(|argument| argument == "--huge") {
        show(&HUGE, &run(&HUGE, "1"));
    }
}
