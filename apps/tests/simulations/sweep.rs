//! Tests of the command `weft sweep`: it gives the same table however often it is interrupted.

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// 200 runs that take milliseconds each.
const MANY: &str = "[run]\nworkload = 'permutation'\nhosts = 8\nsize = '16KiB'\n\
                    [vary]\ncc = ['nscc', 'smartt']\nlb = ['mixed', 'reps']\nseed = { from = 1, to = 50 }\n";
/// One run that takes minutes.
const LONG: &str = "[run]\nworkload = 'permutation'\nhosts = 128\nsize = '1GiB'\n[vary]\nseed = [1]\n";

/// A directory for one test, with a sweep file in it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, sweep: &str) -> Scratch {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("sweep-{name}"));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("the scratch directory is writable");
        fs::write(dir.join("s.toml"), sweep).expect("writable");
        Scratch(dir)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        command.arg("sweep").arg(self.0.join("s.toml")).args(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start(&self, args: &[&str]) -> Child {
        self.command(args).spawn().expect("weft starts")
    }

    fn sweep(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("weft starts")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The table of a sweep with `args` that is not interrupted.
    fn table(&self, args: &[&str]) -> String {
        let output = self.sweep(args);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        fs::read_to_string(self.path("s.jsonl")).expect("a table")
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("readable");
        let mut names: Vec<String> =
            entries.map(|e| e.expect("readable").file_name().into_string().expect("UTF-8")).collect();
        names.sort();
        names
    }
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).expect("UTF-8")
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).expect("UTF-8")
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).expect("a process"), signal).expect("it is ours");
}

/// The processes of the runs that the sweep `parent` has started and that have not ended.
fn runs_of(parent: u32) -> Vec<u32> {
    let command = format!("sweep-run\0--parent\0{parent}\0--json=-\0");
    let runs = |name: &str| {
        let line = fs::read(format!("/proc/{name}/cmdline")).ok()?;
        String::from_utf8_lossy(&line).contains(&command).then(|| name.parse().ok())?
    };
    let processes = fs::read_dir("/proc").expect("a /proc");
    processes.filter_map(|entry| runs(entry.ok()?.file_name().to_str()?)).collect()
}

/// Waits until `condition` holds.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "waited in vain until {what}");
        sleep(Duration::from_millis(2));
    }
}

/// How many runs of the sweep with the table `table` have a result file.
fn results_of(scratch: &Scratch, table: &str) -> usize {
    let Ok(entries) = fs::read_dir(scratch.path(&format!("{table}.runs"))) else { return 0 };
    entries.filter(|e| e.as_ref().is_ok_and(|e| e.path().extension().is_some_and(|e| e == "json"))).count()
}

/// How many runs have a result file.
fn results(scratch: &Scratch) -> usize {
    results_of(scratch, "s.jsonl")
}

/// A generator of random durations (xorshift; G. Marsaglia, 2003).
struct Moments(u64);

impl Moments {
    fn next(&mut self, most: Duration) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        Duration::from_nanos(self.0 % most.as_nanos() as u64)
    }
}

/// Checks that the partial table has the rows of all runs that have a result, as in the table `reference`, and that
/// `output` says so.
fn assert_partial_table(scratch: &Scratch, output: &Output, reference: &str) {
    let has_result = |run: &usize| scratch.path(&format!("s.jsonl.runs/{run}.json")).exists();
    let rows: Vec<&str> = reference.lines().collect();
    let expected: Vec<&str> = (0..rows.len()).filter(has_result).map(|run| rows[run]).collect();
    let partial = fs::read_to_string(scratch.path("s.jsonl.partial")).expect("a partial table");
    assert_eq!(partial.lines().collect::<Vec<&str>>(), expected);
    let message = format!("s.jsonl.partial has the rows of {} of {} runs", expected.len(), rows.len());
    assert!(stderr(output).contains(&message), "{}", stderr(output));
}

/// Interrupts a sweep with each of `signals` in turn, then lets it end. Returns the table and the number of
/// interruptions. `reference` is the table of the same sweep without interruptions.
fn interrupted(scratch: &Scratch, seed: u64, signals: &[Signal], reference: &str) -> (String, usize) {
    let mut moments = Moments(seed);
    let mut hits = 0;
    for how in signals {
        let child = scratch.start(&["--jobs", "2"]);
        // Not before its first result, or a machine on which starting takes long would never make progress.
        let before = results(scratch);
        until("a run has ended", || results(scratch) > before || scratch.path("s.jsonl").exists());
        sleep(moments.next(Duration::from_millis(25)));
        signal(child.id(), *how);
        let output = child.wait_with_output().expect("it ends");
        if output.status.success() {
            break;
        }
        hits += 1;
        assert!(!scratch.path("s.jsonl").exists() || results(scratch) == 200, "a table before its time");
        if *how == Signal::KILL {
            assert_eq!(output.status.signal(), Some(9));
        } else {
            assert_eq!(output.status.code(), Some(128 + how.as_raw()), "{}", stderr(&output));
            assert!(stderr(&output).contains("the same command goes on"), "{}", stderr(&output));
            assert_partial_table(scratch, &output, reference);
        }
    }
    (scratch.table(&[]), hits)
}

#[test]
fn a_table_that_is_not_a_regular_file_is_refused() {
    let scratch = Scratch::new("device", MANY);
    std::os::unix::fs::symlink("/dev/zero", scratch.path("s.jsonl")).expect("links are possible");
    for args in [&[][..], &["--force"]] {
        let output = scratch.sweep(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(stderr(&output).contains("s.jsonl is not a regular file; "), "{}", stderr(&output));
        assert_eq!(scratch.names(), ["s.jsonl", "s.toml"]);
    }
}

#[test]
fn an_interrupted_sweep_ends_with_the_same_table() {
    let reference = Scratch::new("reference", MANY).table(&["--jobs", "1"]);
    assert_eq!(reference.lines().count(), 200);
    let kinds: [(&str, &[Signal]); 3] = [
        ("int", &[Signal::INT; 5]),
        ("kill", &[Signal::KILL; 5]),
        ("both", &[Signal::KILL, Signal::INT, Signal::KILL, Signal::TERM]),
    ];
    for (name, signals) in kinds {
        let seed = u64::from(std::process::id()) * 3 + 1;
        let scratch = Scratch::new(name, MANY);
        let (table, hits) = interrupted(&scratch, seed, signals, &reference);
        assert!(hits >= 2, "{name}: {hits} interruptions are too few to mean anything");
        assert!(table == reference, "{name}, seed {seed}: another table after {hits} interruptions");
        assert_eq!(scratch.names(), ["s.jsonl", "s.toml"]);
    }
}

#[test]
fn a_second_signal_ends_the_sweep_at_once_and_leaves_the_earlier_partial_table() {
    let scratch = Scratch::new("second-signal", MANY);
    let start = |more: usize| {
        let before = results(&scratch);
        let child = scratch.start(&["--jobs", "1"]);
        until("runs have ended", || results(&scratch) >= before + more);
        child
    };
    let child = start(5);
    signal(child.id(), Signal::INT);
    assert_eq!(child.wait_with_output().expect("it ends").status.code(), Some(130));
    let earlier = fs::read(scratch.path("s.jsonl.partial")).expect("a partial table");

    // A pipe in the place of the draft: without a reader, the sweep cannot even open it.
    let draft = scratch.path("s.jsonl.runs/partial.new");
    mknodat(CWD, &draft, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("pipes are possible");
    let mut child = start(5);
    signal(child.id(), Signal::INT);
    sleep(Duration::from_millis(500));
    assert!(child.try_wait().expect("it is ours").is_none(), "the partial table has been written elsewhere");
    signal(child.id(), Signal::INT);
    assert_eq!(child.wait().expect("it ends").signal(), Some(2));
    assert_eq!(fs::read(scratch.path("s.jsonl.partial")).expect("a partial table"), earlier);
    assert_eq!(scratch.table(&[]).lines().count(), 200);
    assert_eq!(scratch.names(), ["s.jsonl", "s.toml"]);
}

#[test]
fn interrupted_shards_write_one_partial_table() {
    let scratch = Scratch::new("interrupted-shards", MANY);
    let reference = scratch.table(&[]);
    fs::remove_file(scratch.path("s.jsonl")).expect("removable");
    let children = ["1/2", "2/2"].map(|shard| scratch.start(&["--shard", shard, "--jobs", "1"]));
    until("both have made runs", || {
        [0, 1].iter().all(|run| scratch.path(&format!("s.jsonl.runs/{run}.json")).exists())
    });
    let outputs = children.map(|child| {
        signal(child.id(), Signal::TERM);
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(143), "{}", stderr(&output));
        output
    });
    // The second one has found the results of the first one too.
    assert_partial_table(&scratch, &outputs[1], &reference);
    for shard in ["1/2", "2/2"] {
        assert!(scratch.sweep(&["--shard", shard]).status.success());
    }
    assert_eq!(scratch.table(&["--merge"]), reference);
    assert_eq!(scratch.names(), ["s.jsonl", "s.toml"]);
}

#[test]
fn a_partial_table_that_cannot_be_written_does_not_change_the_exit_status() {
    let scratch = Scratch::new("no-partial", MANY);
    let child = scratch.start(&["--jobs", "1"]);
    until("runs have ended", || results(&scratch) > 3);
    fs::create_dir(scratch.path("s.jsonl.runs/partial.new")).expect("writable");
    signal(child.id(), Signal::TERM);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(143), "{}", stderr(&output));
    assert!(stderr(&output).contains("partial.new: Is a directory"), "{}", stderr(&output));
    assert!(!scratch.path("s.jsonl.partial").exists());
}

#[test]
fn the_table_has_the_order_of_the_grid_and_the_figures_of_the_reports() {
    let scratch = Scratch::new("figures", MANY);
    let table = scratch.table(&[]);
    let rows: Vec<Value> = table.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    let seeds: Vec<u64> = rows.iter().map(|row| row["seed"].as_u64().expect("a seed")).collect();
    assert_eq!(seeds, (0..200).map(|i| i % 50 + 1).collect::<Vec<u64>>());
    assert_eq!((&rows[99]["cc"], &rows[99]["lb"]), (&Value::from("nscc"), &Value::from("reps")));

    let single = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["run", "--workload", "permutation", "--hosts", "8", "--size", "16KiB"])
        .args(["--cc", "smartt", "--lb", "mixed", "--seed", "7", "--json", "-"])
        .output()
        .expect("weft starts");
    let report: Value = serde_json::from_slice(&single.stdout).expect("a report");
    let row = &rows[106];
    for (column, pointer) in [
        ("fct_us_p99", "/fct_us/p99"),
        ("fct_us_mean", "/fct_us/mean"),
        ("slowdown_max", "/slowdown_max"),
        ("jain", "/jain"),
        ("goodput_gbps", "/goodput_gbps"),
        ("packets_acks", "/packets/acks"),
        ("flows_completed", "/flows/completed"),
    ] {
        assert!(row[column].is_number() && Some(&row[column]) == report.pointer(pointer), "{column}: {row}");
    }
    assert!(!table.contains("cpu_s") && !table.contains("max_rss"), "costs differ from run to run");

    let again = scratch.sweep(&[]);
    assert!(again.status.success() && stdout(&again).contains("is finished: 200 runs"), "{}", stdout(&again));
    assert_eq!(table, scratch.table(&["--force", "--jobs", "3"]));
}

#[test]
fn a_kill_just_before_the_results_are_removed_does_no_harm() {
    let scratch = Scratch::new("late-kill", MANY);
    let table = scratch.table(&[]);
    let mut child =
        scratch.start(&["--out", scratch.path("u.jsonl").to_str().expect("UTF-8"), "--jobs", "1"]);
    until("runs have ended", || results_of(&scratch, "u.jsonl") > 5);
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    fs::rename(scratch.path("u.jsonl.runs"), scratch.path("s.jsonl.runs")).expect("movable");
    assert_eq!(scratch.table(&[]), table);
    assert_eq!(scratch.names(), ["s.jsonl", "s.toml"]);
}

#[test]
fn shards_make_the_same_table() {
    let scratch = Scratch::new("shards", MANY);
    let reference = scratch.table(&[]);
    fs::remove_file(scratch.path("s.jsonl")).expect("removable");
    let children = ["1/3", "3/3"].map(|shard| scratch.start(&["--shard", shard, "--jobs", "1"]));
    for child in children {
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{}", stderr(&output));
    }
    let early = scratch.sweep(&["--merge"]);
    assert_eq!(early.status.code(), Some(1));
    assert!(stderr(&early).contains("67 of 200 runs are not done yet"), "{}", stderr(&early));
    assert!(scratch.sweep(&["--shard", "2/3"]).status.success());
    assert_eq!(scratch.table(&["--merge"]), reference);
    assert_eq!(scratch.names(), ["s.jsonl", "s.toml"]);
}

#[test]
fn runs_end_promptly_with_their_sweep() {
    for how in [Signal::INT, Signal::TERM, Signal::KILL] {
        let scratch = Scratch::new(&format!("long-{}", how.as_raw()), LONG);
        let child = scratch.start(&[]);
        let sweep = child.id();
        until("a run is in progress", || !runs_of(sweep).is_empty());
        let asked = Instant::now();
        signal(sweep, how);
        let status = child.wait_with_output().expect("it ends").status;
        until("its run has ended", || runs_of(sweep).is_empty());
        assert!(asked.elapsed() < Duration::from_secs(2), "{how:?}: {:?}", asked.elapsed());
        let expected = if how == Signal::KILL { None } else { Some(128 + how.as_raw()) };
        assert_eq!(status.code(), expected);
        if how != Signal::KILL {
            assert_eq!(scratch.names(), ["s.toml"], "nothing was done, so nothing is left");
        }
    }
}

#[test]
fn a_second_sweep_on_the_same_table_is_refused() {
    let refused = |first: &[&str], others: &[&[&str]]| {
        let scratch = Scratch::new(&format!("busy-{}", first.len()), LONG);
        let mut child = scratch.start(first);
        until("a run is in progress", || !runs_of(child.id()).is_empty());
        for args in others {
            let second = scratch.sweep(args);
            assert_eq!(second.status.code(), Some(1), "{args:?} beside {first:?}");
            assert!(stderr(&second).contains("another weft sweep is at work on this table"), "{args:?}");
        }
        let beside = scratch.sweep(&["--shard", "2/2"]);
        assert_eq!(beside.status.success(), first.contains(&"--shard"), "{}", stderr(&beside));
        child.kill().expect("it runs");
        child.wait().expect("it ends");
    };
    refused(&[], &[&[], &["--merge"], &["--force"], &["--slurm", "--dry-run"]]);
    refused(&["--shard", "1/2"], &[&[], &["--merge"], &["--force"], &["--shard", "1/2"]]);
}

#[test]
fn a_run_that_dies_gets_a_row_with_its_error_and_is_tried_again() {
    // The first run takes minutes unless it is killed; the others take milliseconds.
    let text = "[run]\nworkload = 'permutation'\nhosts = 128\n[vary]\nsize = ['1GiB', '1KiB', '2KiB']\n";
    let scratch = Scratch::new("dies", text);
    let child = scratch.start(&["--jobs", "1"]);
    until("a run is in progress", || !runs_of(child.id()).is_empty());
    signal(runs_of(child.id())[0], Signal::KILL);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("run 1 of 3: size=1GiB: killed by signal 9"), "{}", stderr(&output));
    assert!(stderr(&output).contains("1 of 3 runs failed"), "{}", stderr(&output));
    let table = fs::read_to_string(scratch.path("s.jsonl")).expect("a table all the same");
    let rows: Vec<Value> = table.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    assert_eq!((&rows[0]["size"], &rows[0]["error"]), (&"1GiB".into(), &"killed by signal 9".into()));
    assert!(rows[1..].iter().all(|row| row["flows_completed"] == 128 && row["error"].is_null()), "{table}");

    let child = scratch.start(&[]);
    until("it is tried again", || !runs_of(child.id()).is_empty());
    assert_eq!(runs_of(child.id()).len(), 1, "only that one");
    signal(child.id(), Signal::INT);
    let output = child.wait_with_output().expect("it ends");
    assert!(stderr(&output).contains("0 of 1 runs were done"), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("has the rows of 3 of 3 runs, 1 of which failed"),
        "{}",
        stderr(&output)
    );
    let kept = |name: &str| fs::read_to_string(scratch.path(name)).expect("a table");
    assert_eq!([kept("s.jsonl"), kept("s.jsonl.partial")], [table.clone(), table]);
}

#[test]
fn unfinished_flows_are_results() {
    let text = "[run]\nworkload = 'incast:4'\nsize = '100KB'\n[vary]\nuntil = ['20us', '1ms']\n";
    let scratch = Scratch::new("unfinished", text);
    let output = scratch.sweep(&[]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("in 1 not all flows have completed"), "{}", stdout(&output));
    let table = fs::read_to_string(scratch.path("s.jsonl")).expect("a table");
    let rows: Vec<Value> = table.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    let completed: Vec<&Value> = rows.iter().map(|row| &row["flows_completed"]).collect();
    assert_eq!(completed, [0, 4]);
    assert!(rows[0]["slowdown_max"].is_null() && rows[0]["flows_total"] == 4);
}

#[test]
fn invalid_options_are_refused_before_any_run_starts() {
    let cases = [
        (
            "[run]\nworkload = 'permutation'\n[vary]\nlb = ['mixed',\n'conga']\n",
            "s.toml:5: --lb: unknown load balancer 'conga'",
        ),
        (
            "[run]\nworkload = 'permutation'\nhosts = 8\nhostz = 9\n",
            "s.toml:4: weft run has no option 'hostz'",
        ),
        ("[run]\nworkload = 'permutation'\nhosts = 8 9\n", "s.toml:3: "),
        (
            "[run]\nworkload = 'incast:9'\n[vary]\nhosts = [16, 8]\n",
            "s.toml:4: --hosts: incast:9 needs at least",
        ),
        ("[run]\nmatrix = 'absent.cm'\n", "s.toml:2: absent.cm: No such file"),
        (
            "[run]\nworkload = 'permutation'\nflows = 'absent/f.parquet'\n",
            "s.toml:3: 'flows' is 'absent/f.parquet', but there is no directory 'absent'",
        ),
        (
            "[run]\nworkload = 'permutation'\nsample = '1us'\nsample-file = 'absent/s'\n",
            "s.toml:4: 'sample-file' is 'absent/s', but there is no directory 'absent'",
        ),
        ("[run]\nworkload = 'permutation'\nuntil = 5\n", "s.toml:3: invalid value '5' for '--until <TIME>'"),
    ];
    for (index, (text, expected)) in cases.into_iter().enumerate() {
        let scratch = Scratch::new(&format!("refused-{index}"), text);
        let output = scratch.sweep(&[]);
        let message = stderr(&output);
        assert_eq!((output.status.code(), message.lines().count()), (Some(2), 1), "{message}");
        assert!(message.contains(expected), "{message}");
        assert_eq!(scratch.names(), ["s.toml"]);
    }
    // Only the engine can tell that this cannot be made.
    let scratch = Scratch::new("refused-late", "[run]\nmatrix = 'broken.cm'\n");
    let failure = "failure switch_type AGG switch_id 99 link_id 0";
    let matrix = format!("Nodes 4\nConnections 1\nFailures 1\n0->1 id 1 start 0 size 50\n{failure}\n");
    fs::write(scratch.path("broken.cm"), matrix).expect("writable");
    let output = scratch.sweep(&[]);
    assert_eq!(output.status.code(), Some(2));
    let expected = "s.toml: no link 0 at switch 99 of tier 1 (run 1 of 1)\n";
    assert!(stderr(&output).ends_with(expected), "{}", stderr(&output));
}

#[test]
fn files_of_another_sweep_are_not_touched() {
    let scratch = Scratch::new("foreign", MANY);
    let mut child = scratch.start(&["--jobs", "1"]);
    until("runs have ended", || results(&scratch) > 3);
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    let kept = results(&scratch);
    fs::write(scratch.path("s.toml"), MANY.replace("16KiB", "17KiB")).expect("writable");
    let refused = |expected: &str| {
        let output = scratch.sweep(&[]);
        assert_eq!(output.status.code(), Some(1));
        assert!(
            stderr(&output).contains(expected) && stderr(&output).contains("--force"),
            "{}",
            stderr(&output)
        );
    };
    refused("s.jsonl.runs: it is of a sweep with other options");
    assert_eq!(results(&scratch), kept);
    fs::remove_dir_all(scratch.path("s.jsonl.runs")).expect("removable");
    fs::write(scratch.path("s.jsonl"), "precious\n").expect("writable");
    refused("s.jsonl is there already, and not of this sweep");
    assert_eq!(fs::read(scratch.path("s.jsonl")).expect("a file"), b"precious\n");
    assert!(scratch.table(&["--force"]).lines().count() == 200);

    fs::remove_file(scratch.path("s.jsonl")).expect("removable");
    fs::write(scratch.path("s.jsonl.partial"), "precious\n").expect("writable");
    refused("s.jsonl.partial is there already, and not of this sweep");
    assert_eq!(fs::read(scratch.path("s.jsonl.partial")).expect("a file"), b"precious\n");
    assert_eq!(scratch.names(), ["s.jsonl.partial", "s.toml"]);
    assert!(scratch.table(&["--force"]).lines().count() == 200);
    assert_eq!(scratch.names(), ["s.jsonl", "s.toml"]);
}

#[test]
fn the_journal_of_an_earlier_version_is_refused() {
    let scratch = Scratch::new("journal", MANY);
    fs::write(scratch.path("s.jsonl.journal"), "{\"journal\":1}\n").expect("writable");
    for args in [&[][..], &["--force"], &["--shard", "1/2"], &["--merge"], &["--slurm", "--dry-run"]] {
        let output = scratch.sweep(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let expected = "s.jsonl.journal: an earlier version of weft began this sweep";
        assert!(stderr(&output).contains(expected), "{args:?}: {}", stderr(&output));
        assert_eq!(scratch.names(), ["s.jsonl.journal", "s.toml"], "{args:?}");
    }
    fs::remove_file(scratch.path("s.jsonl.journal")).expect("removable");
    assert_eq!(scratch.table(&[]).lines().count(), 200);
}

#[test]
fn named_files_are_found_beside_the_sweep_file_and_belong_to_its_identity() {
    let scratch = Scratch::new("files", "[run]\nmatrix = 'pair.cm'\n[vary]\nseed = [1, 2]\n");
    let matrix = |bytes| format!("Nodes 2\nConnections 1\n0->1 id 1 start 0 size {bytes}\n");
    fs::write(scratch.path("pair.cm"), matrix(5000)).expect("writable");
    assert_eq!(scratch.table(&[]).lines().count(), 2);
    fs::write(scratch.path("pair.cm"), matrix(6000)).expect("writable");
    let output = scratch.sweep(&[]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(stderr(&output).contains("not of this sweep"), "{}", stderr(&output));
}

#[test]
fn the_example_runs() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/sweeps/first.toml");
    let text = fs::read_to_string(example).expect("the example");
    assert_eq!(Scratch::new("example", &text).table(&[]).lines().count(), 30);
}

#[test]
fn the_slurm_script_is_valid_shell() {
    let scratch = Scratch::new("slurm script", MANY);
    let output = scratch.sweep(&["--slurm", "--dry-run", "--tasks", "7", "--sbatch=--time=1:00"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let script = stdout(&output);
    for part in
        ["--array=1-7", "--shard \"$SLURM_ARRAY_TASK_ID/7\"", "afterany", "--merge", " --time=1:00 <<"]
    {
        assert!(script.contains(part), "no {part} in:\n{script}");
    }
    let checked = Command::new("sh").args(["-n", "-c", script]).status().expect("sh");
    assert!(checked.success(), "{script}");
    assert_eq!(scratch.names(), ["s.toml"]);
}

#[test]
fn a_sweep_that_grows_makes_only_its_new_runs() {
    let few = "[run]\nworkload = 'permutation'\nhosts = 8\nsize = '16KiB'\n[vary]\ncc = ['nscc', 'smartt']\nseed = { from = 1, to = 2 }\n";
    let scratch = Scratch::new("grows", few);
    scratch.table(&[]);
    let more = few.replace("to = 2", "to = 3");
    fs::write(scratch.path("s.toml"), &more).expect("writable");
    let output = scratch.sweep(&[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("6 runs, 2 of them made now"), "{said}");
    assert!(said.contains("cc      fct_us_mean") && said.contains(" ± "), "means over the seeds: {said}");
    let grown = fs::read_to_string(scratch.path("s.jsonl")).expect("a table");
    assert_eq!(Scratch::new("grown", &more).table(&[]), grown, "the same bytes as at once");
    let row: Value = serde_json::from_str(grown.lines().next().expect("a row")).expect("JSON");
    assert_eq!((&row["hosts"], &row["size"], &row["cc"]), (&8.into(), &"16KiB".into(), &"nscc".into()));
    // A smaller sweep has no place for all rows, which must not be lost.
    fs::write(scratch.path("s.toml"), few).expect("writable");
    let output = scratch.sweep(&[]);
    assert!(stderr(&output).contains("not of this sweep"), "{}", stderr(&output));
}

/// 20 runs with flows and samples.
const LONG_TABLES: &str = "[run]\nworkload = 'permutation'\nhosts = 8\nsize = '64KiB'\nflows = 'f.parquet'\nsample = '2us'\n\
                           [vary]\ncc = ['nscc', 'smartt']\nmtu = [2048, 4096]\nseed = { from = 1, to = 5 }\n";
/// The tables that they make, besides that of the results.
const LONG_NAMES: [&str; 3] = ["f.parquet", "s.flows.parquet", "s.ports.parquet"];

/// The bytes of all tables.
fn tables(scratch: &Scratch) -> Vec<Vec<u8>> {
    let names = LONG_NAMES.iter().chain(&["s.jsonl"]);
    names.map(|name| fs::read(scratch.path(name)).expect(name)).collect()
}

/// The rows of the Parquet file `path`, each value with the name of its column.
fn parquet_rows(path: &Path) -> Vec<Vec<(String, Field)>> {
    let reader = SerializedFileReader::new(fs::File::open(path).expect("a file")).expect("Parquet");
    let rows = reader.get_row_iter(None).expect("rows");
    rows.map(|row| row.expect("a row").into_columns()).collect()
}

/// One run of [`LONG_TABLES`] with `more` options.
fn single_run(cc: &str, mtu: &str, seed: &str, more: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["run", "--workload", "permutation", "--hosts", "8", "--size", "64KiB", "--sample", "2us"])
        .args(["--cc", cc, "--mtu", mtu, "--seed", seed])
        .args(more)
        .output()
        .expect("weft starts");
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn long_tables_have_the_rows_of_each_run_behind_its_varied_options() {
    let scratch = Scratch::new("long", LONG_TABLES);
    let table = scratch.table(&[]);
    let mut names = [&LONG_NAMES[..], &["s.jsonl", "s.toml"]].concat();
    names.sort_unstable();
    assert_eq!(scratch.names(), names);
    let results: Vec<Value> = table.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    assert_eq!((&results[0]["sample"], results[0].get("flows")), (&"2us".into(), None));

    let long = LONG_NAMES.map(|name| parquet_rows(&scratch.path(name)));
    let one = scratch.path("one");
    let path = |name: &str| one.with_extension(name).to_str().expect("UTF-8").to_owned();
    let (flows, samples) = (path("flows-table.parquet"), path(""));
    let mut at = [0; 3];
    for (run, result) in results.iter().enumerate() {
        let word = |column: &str| result[column].to_string().replace('"', "");
        single_run(&word("cc"), &word("mtu"), &word("seed"), &["--flows", &flows, "--sample-file", &samples]);
        let expected = ["flows-table.parquet", "flows.parquet", "ports.parquet"];
        for (((name, long), at), single) in LONG_NAMES.iter().zip(&long).zip(&mut at).zip(expected) {
            let single = parquet_rows(Path::new(&path(single)));
            assert!(!single.is_empty(), "{name}");
            let rows = &long[*at..*at + single.len()];
            *at += single.len();
            for (row, single) in rows.iter().zip(&single) {
                let keys: Vec<String> =
                    row[..4].iter().map(|(key, value)| format!("{key}:{value}")).collect();
                let [cc, mtu, seed, id] =
                    ["cc", "mtu", "seed", "run"].map(|key| format!("{key}:{}", result[key]));
                assert_eq!(keys, [cc, mtu, seed, id], "run {run} in {name}");
                assert_eq!(&row[4..], single, "run {run} in {name}");
            }
            if run + 1 == results.len() {
                assert_eq!(*at, long.len(), "{name}");
            }
        }
    }
    assert_eq!(at[0], 20 * 8);
}

#[test]
fn long_tables_are_the_same_however_the_runs_are_made() {
    let reference = Scratch::new("long-reference", LONG_TABLES);
    reference.table(&["--jobs", "3"]);

    let scratch = Scratch::new("long-parts", LONG_TABLES);
    for how in [Signal::KILL, Signal::INT] {
        let before = results(&scratch);
        let child = scratch.start(&["--jobs", "2"]);
        until("a run has ended", || results(&scratch) > before);
        signal(child.id(), how);
        child.wait_with_output().expect("it ends");
        assert!(!scratch.path("f.parquet").exists(), "a table before its time");
    }
    // Rows that are lost are made again.
    let lost =
        (0..20).find(|run| scratch.path(&format!("s.jsonl.runs/{run}.json")).exists()).expect("a result");
    fs::remove_file(scratch.path(&format!("s.jsonl.runs/{lost}.samples.ports.parquet"))).expect("removable");
    for shard in ["1/2", "2/2"] {
        assert!(scratch.sweep(&["--shard", shard, "--jobs", "1"]).status.success());
    }
    scratch.table(&["--merge"]);
    assert!(tables(&scratch) == tables(&reference), "shards and interruptions change no byte");
    assert_eq!(scratch.names(), reference.names());
    let again = scratch.sweep(&[]);
    assert!(stdout(&again).contains("is finished: 20 runs"), "{}", stdout(&again));

    let grown = Scratch::new("long-grown", &LONG_TABLES.replace("to = 5", "to = 3"));
    grown.table(&[]);
    fs::write(grown.path("s.toml"), LONG_TABLES).expect("writable");
    let output = grown.sweep(&[]);
    assert!(
        stdout(&output).contains("20 runs, 8 of them made now"),
        "{}{}",
        stdout(&output),
        stderr(&output)
    );
    assert!(tables(&grown) == tables(&reference), "a sweep that has grown has the same bytes");
    assert_eq!(grown.names(), reference.names());
}

/// A run that was killed between its rows and its result leaves rows that no result says to be whole.
#[test]
fn rows_that_a_killed_run_of_another_sweep_left_are_made_again() {
    let text = |size: &str, tables: &str| {
        format!(
            "[run]\nworkload = 'permutation'\nhosts = 4\nsize = '{size}'\n{tables}[vary]\nseed = [1, 2]\n"
        )
    };
    let long = "flows = 'f.parquet'\nsample = '1us'\n";
    let scratch = Scratch::new("long-stale", &text("16KiB", long));
    let shard = || {
        let output = scratch.sweep(&["--shard", "1/2"]);
        assert!(output.status.success(), "{}", stderr(&output));
    };
    shard();
    fs::remove_file(scratch.path("s.jsonl.runs/0.json")).expect("a result");
    fs::write(scratch.path("s.toml"), text("64KiB", "sample = '1us'\n")).expect("writable");
    shard();
    fs::write(scratch.path("s.toml"), text("64KiB", long)).expect("writable");
    scratch.table(&[]);
    let reference = Scratch::new("long-stale-reference", &text("64KiB", long));
    reference.table(&[]);
    assert!(tables(&scratch) == tables(&reference), "rows of another sweep");
}

#[test]
fn a_finished_sweep_gets_its_long_tables_when_they_are_asked_for() {
    let scratch = Scratch::new("long-later", &LONG_TABLES.replace("flows = 'f.parquet'\n", ""));
    scratch.table(&[]);
    fs::write(scratch.path("s.toml"), LONG_TABLES).expect("writable");
    let output = scratch.sweep(&[]);
    assert!(
        stdout(&output).contains("20 runs, 20 of them made now"),
        "{}{}",
        stdout(&output),
        stderr(&output)
    );
    let all = tables(&scratch);
    fs::remove_file(scratch.path("s.flows.parquet")).expect("removable");
    let output = scratch.sweep(&[]);
    assert!(stdout(&output).contains("20 of them made now"), "{}{}", stdout(&output), stderr(&output));
    assert!(tables(&scratch) == all);

    // Files of others stay.
    for contents in [b"my notes".as_slice(), &all[1]] {
        fs::write(scratch.path("f.parquet"), contents).expect("writable");
        let smaller = LONG_TABLES.replace("to = 5", "to = 2").replace("sample = '2us'\n", "");
        fs::write(scratch.path("s.toml"), smaller).expect("writable");
        let output = scratch.sweep(&["--out", scratch.path("u.jsonl").to_str().expect("UTF-8")]);
        assert!(
            stderr(&output).contains("f.parquet is there already, and not of this sweep"),
            "{}",
            stderr(&output)
        );
        assert_eq!(fs::read(scratch.path("f.parquet")).expect("readable"), contents);
    }
    let same = LONG_TABLES.replace("f.parquet", "s.flows.parquet");
    fs::write(scratch.path("s.toml"), same).expect("writable");
    let output = scratch.sweep(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("expected different names"), "{}", stderr(&output));
}
