//! `weft matrix` between four processes, over weft and over libfabric's own tcp, started by launchers and by hand.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use crate::common::mpi::alone;
use crate::common::{PATIENCE, Provider, beside, free_port, target};

const RANKS: usize = 4;

/// The provider, and the processors for the ranks alone, if the command `weft` was built; else says that the test is
/// skipped, or fails if `CI` is set.
fn ready(launcher: &str) -> Option<(Provider, MutexGuard<'static, ()>)> {
    let weft = beside("weft");
    if !weft.exists() {
        assert!(std::env::var_os("CI").is_none(), "{} is missing", weft.display());
        eprintln!("skipped: {} is missing; cargo build -p weft-apps builds it", weft.display());
        return None;
    }
    Some((Provider::get(launcher)?, alone()))
}

/// Every rank sends to every other one, two flows that chain over a trigger of the sender's, and a last flow waits for
/// all of them.
fn all_to_all(directory: &Path, bytes: usize) -> PathBuf {
    let mut flows = String::new();
    let (mut id, mut triggers) = (0, String::new());
    for src in 0..RANKS {
        for dst in (0..RANKS).filter(|dst| *dst != src) {
            let (first, second) = (id + 1, id + 2);
            id += 2;
            writeln!(
                flows,
                "{src}->{dst} id {first} start {} size {bytes} send_done_trigger {first}",
                10 * src
            )
            .unwrap();
            writeln!(
                flows,
                "{src}->{dst} id {second} trigger {first} size {} recv_done_trigger 1000",
                bytes / 3
            )
            .unwrap();
            writeln!(triggers, "trigger id {first} oneshot").unwrap();
        }
    }
    let chains = id / 2;
    writeln!(flows, "3->0 id 999 trigger 1000 size 0").unwrap();
    writeln!(triggers, "trigger id 1000 barrier count {chains}").unwrap();
    let header = format!("Nodes {RANKS}\nConnections {}\nTriggers {}\n", id + 1, chains + 1);
    write(directory, "all-to-all.cm", &(header + &flows + &triggers))
}

fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// The words of `weft matrix` with this provider.
fn words(matrix: &Path, provider: &str) -> Vec<String> {
    let weft = beside("weft");
    let program = Path::new(env!("CARGO_BIN_EXE_weft-matrix"));
    assert_eq!(program.parent(), weft.parent(), "weft looks for the program beside itself");
    [weft.to_str().unwrap(), "matrix", matrix.to_str().unwrap(), "--provider", provider, "--verify"]
        .map(str::to_owned)
        .to_vec()
}

/// Starts all ranks by hand.
fn start(provider: &Provider, words: &[String], more: impl Fn(usize) -> Vec<String>) -> Vec<Child> {
    let (port, hosts) = (free_port().to_string(), ["127.0.0.1"; RANKS].join(","));
    let start = |rank: usize| {
        let mut command = provider.command(&words[0]);
        command.args(&words[1..]).args([
            "--hosts",
            &hosts,
            "--rendezvous",
            &port,
            "--rank",
            &rank.to_string(),
        ]);
        command.args(more(rank)).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    // Rank 0 is not the first one there.
    (0..RANKS).rev().map(start).collect::<Vec<_>>().into_iter().rev().collect()
}

fn ended(child: Child) -> Output {
    child.wait_with_output().unwrap()
}

fn succeeded(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The report of rank 0 says that all flows have arrived, and so does each line of the table of flows.
fn check(json: &str, flows: &Path, provider: &str) {
    let report: serde_json::Value =
        serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"));
    let total = 2 * RANKS * (RANKS - 1) + 1;
    assert_eq!(report["flows"]["total"], total);
    assert_eq!(report["flows"]["completed"], total);
    assert_eq!(report["config"]["hosts"], RANKS);
    let name = report["config"]["provider"].as_str().unwrap();
    assert!(name.starts_with(provider), "{name}");
    for key in
        ["/fct_us/min", "/fct_us/mean", "/fct_us/p50", "/fct_us/p99", "/fct_us/max", "/jain", "/goodput_gbps"]
    {
        assert!(report.pointer(key).and_then(serde_json::Value::as_f64).unwrap() > 0.0, "{key}");
    }
    let table = std::fs::read_to_string(flows).unwrap();
    let rows: Vec<Vec<&str>> = table.lines().skip(1).map(|line| line.split(',').collect()).collect();
    assert_eq!(rows.len(), total);
    let start =
        |id: usize| -> f64 { rows.iter().find(|row| row[0] == id.to_string()).unwrap()[4].parse().unwrap() };
    // By the clock of one rank: its flows start no earlier than they should, and chains in their order.
    for row in &rows {
        assert!(row[6].parse::<f64>().unwrap() > 0.0 && row[7].is_empty(), "{row:?}");
    }
    assert!(start(19) >= 30.0 && start(20) > start(19) && start(999) > start(20), "{table}");
}

fn by_hand(name: &str) {
    let Some((provider, _alone)) = ready("true") else { return };
    let directory = tempfile::tempdir().unwrap();
    let matrix = all_to_all(directory.path(), 300_000);
    let flows = directory.path().join("flows.csv");
    let more = |rank: usize| match rank {
        0 => ["--json", "-", "--flows", flows.to_str().unwrap()].map(str::to_owned).to_vec(),
        _ => Vec::new(),
    };
    let outputs: Vec<Output> = start(&provider, &words(&matrix, name), more).into_iter().map(ended).collect();
    let said: Vec<String> = outputs.iter().map(succeeded).collect();
    check(&said[0], &flows, name);
    assert!(said[1..].iter().all(String::is_empty));
}

#[test]
fn four_processes_started_by_hand_run_a_matrix_over_weft() {
    by_hand("weft");
}

#[test]
fn four_processes_started_by_hand_run_a_matrix_over_tcp() {
    by_hand("tcp");
}

/// Runs the matrix under a launcher of jobs.
fn launched(launcher: &str, adapt: impl Fn(&mut Command)) {
    let Some((provider, _alone)) = ready(launcher) else { return };
    for name in ["weft", "tcp"] {
        let directory = tempfile::tempdir().unwrap();
        let matrix = all_to_all(directory.path(), 300_000);
        let flows = directory.path().join("flows.csv");
        let mut command = provider.command("timeout");
        adapt(command.args([PATIENCE, launcher, "-n", "4"]));
        command.args(words(&matrix, name)).args(["--json", "-", "--flows", flows.to_str().unwrap()]);
        check(&succeeded(&command.output().unwrap()), &flows, name);
    }
}

#[test]
fn ranks_of_open_mpis_launcher_meet_by_pmix() {
    launched("mpirun.openmpi", |command| {
        command.args(["--oversubscribe", "-x", "FI_PROVIDER_PATH"]);
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    });
}

#[test]
fn ranks_of_mpichs_launcher_meet_by_pmi_1() {
    launched(target().join("mpich/bin/mpiexec").to_str().unwrap(), |_| ());
}

/// Starts ranks by hand and kills one of them, or the process that it has started, when the flows are under way.
fn one_dies(name: &str) {
    let Some((provider, _alone)) = ready("true") else { return };
    let directory = tempfile::tempdir().unwrap();
    // The second flow starts after a minute, so that all ranks still wait when one dies.
    let text = "Nodes 4\nConnections 4\n0->1 id 1 start 0 size 1000\n2->3 id 2 start 60000000 size 1000\n\
        1->2 id 3 start 60000000 size 1000\n3->0 id 4 start 0 size 1000\n";
    let matrix = write(directory.path(), "late.cm", text);
    let mut ranks = start(&provider, &words(&matrix, name), |_| Vec::new());
    // The last one has ended its flows by now, or is about to begin: it dies in either case.
    std::thread::sleep(Duration::from_secs(3));
    let mut dead = ranks.remove(3);
    dead.kill().unwrap();
    dead.wait().unwrap();
    let begin = Instant::now();
    for (rank, child) in ranks.into_iter().enumerate() {
        let output = ended(child);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "rank {rank}: {errors}");
        assert!(errors.contains("rank 3"), "rank {rank}: {errors}");
    }
    assert!(begin.elapsed() < Duration::from_secs(40), "ranks have waited for one that is dead");
}

#[test]
fn all_ranks_say_which_one_has_died_over_weft() {
    one_dies("weft");
}

#[test]
fn all_ranks_say_which_one_has_died_over_tcp() {
    one_dies("tcp");
}

#[test]
fn a_run_ends_when_its_time_is_up_and_names_the_flows_that_are_unfinished() {
    let Some((provider, _alone)) = ready("true") else { return };
    let directory = tempfile::tempdir().unwrap();
    let text = "Nodes 4\nConnections 2\n0->1 id 1 start 0 size 1000\n2->3 id 2 start 60000000 size 1000\n";
    let matrix = write(directory.path(), "late.cm", text);
    let until = |_| ["--until", "1s"].map(str::to_owned).to_vec();
    let outputs: Vec<Output> =
        start(&provider, &words(&matrix, "weft"), until).into_iter().map(ended).collect();
    let errors = String::from_utf8_lossy(&outputs[0].stderr);
    assert_eq!(outputs[0].status.code(), Some(3), "{errors}");
    assert!(errors.contains("1 of 2 flows unfinished"), "{errors}");
    assert!(errors.contains("flow 2 from rank 2 to rank 3 has not started"), "{errors}");
    outputs[1..].iter().for_each(|output| drop(succeeded(output)));
}

#[test]
fn jobs_that_do_not_fit_the_matrix_are_refused() {
    let Some((provider, _alone)) = ready("true") else { return };
    let directory = tempfile::tempdir().unwrap();
    let matrix = write(directory.path(), "two.cm", "Nodes 2\nConnections 1\n0->1 id 1 start 0 size 1\n");
    let outputs: Vec<Output> =
        start(&provider, &words(&matrix, "weft"), |_| Vec::new()).into_iter().map(ended).collect();
    for output in outputs {
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains("two.cm: the matrix has 2 nodes, and the job 4 ranks"), "{errors}");
    }
    let words = words(&matrix, "no-such-provider");
    let alone = provider.command(&words[0]).args(&words[1..]).output().unwrap();
    let errors = String::from_utf8_lossy(&alone.stderr);
    assert_eq!(alone.status.code(), Some(2), "{errors}");
    assert!(errors.contains("--hosts and --rank"), "{errors}");
}
