//! `weft run`, ended by a signal: it reports what it has, and its files are whole.

use crate::lab::{FABRIC, Lab, Process, stderr_of, until};
use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Bytes of flows whose simulation takes longer than any test.
const ENDLESS: &str = "--size=4000000000";

struct Outputs {
    json: PathBuf,
    flows: PathBuf,
    samples: [PathBuf; 2],
}

impl Outputs {
    fn of(lab: &Lab) -> Outputs {
        let path = |name: &str| lab.path().join(name);
        Outputs {
            json: path("k.json"),
            flows: path("k.csv"),
            samples: [path("k.ports.parquet"), path("k.flows.parquet")],
        }
    }

    fn options(&self) -> [String; 2] {
        [format!("--json={}", self.json.display()), format!("--flows={}", self.flows.display())]
    }

    /// The report and the flows' table, which must be complete.
    fn read(&self) -> (Value, Vec<String>) {
        let report = serde_json::from_str(&fs::read_to_string(&self.json).expect("it is there"));
        let flows = fs::read_to_string(&self.flows).expect("it is there");
        (report.expect("the report is complete"), flows.lines().map(str::to_owned).collect())
    }
}

fn signal(process: &Process, name: &str) {
    let status = Command::new("kill").args([name, &process.pid().to_string()]).status();
    assert!(status.expect("there is kill").success());
}

/// Files in the directory of `lab` whose names say that they are not complete.
fn parts(lab: &Lab) -> usize {
    let names =
        fs::read_dir(lab.path()).expect("it is there").map(|entry| entry.expect("a name").file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".part")).count()
}

/// Starts a run with `options`, sends it the signal called `name` while it is under way, and checks its report.
fn interrupted(lab: &Lab, options: &[&str], name: &str, status: i32) {
    let outputs = Outputs::of(lab);
    let written = outputs.options();
    let args: Vec<&str> = ["run"]
        .into_iter()
        .chain(written.iter().map(String::as_str))
        .chain(options.iter().copied())
        .collect();
    let process = lab.start(&args);
    until("the run has begun", || parts(lab) == 2);
    std::thread::sleep(Duration::from_millis(4000));
    signal(&process, name);
    let output = process.output();
    let said = stderr_of(&output);
    assert_eq!(output.status.code(), Some(status), "{options:?}: {said}");
    let expected = format!("weft: interrupted by SIG{}; ", &name[1..]);
    assert!(said.contains(&expected) && said.contains("flows unfinished:\n"), "{options:?}: {said}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("UNFINISHED"), "{options:?}");
    let (report, flows) = outputs.read();
    assert_eq!(Some(flows.len() as u64 - 1), report["flows"]["total"].as_u64(), "{options:?}");
    assert!(report["packets"]["data"].as_u64() > Some(0), "{options:?}: it was under way: {report}");
    assert_eq!(parts(lab), 0, "{options:?}");
}

#[test]
fn a_simulation_ends_with_its_report() {
    // A hundred million packets and more: an incast of three is over in four seconds where nothing else runs.
    let endless = ["--workload=permutation", ENDLESS, "--hosts=128"];
    interrupted(&Lab::new(), &endless, "-INT", 130);
    interrupted(&Lab::new(), &[&endless[..], &["--threads=2"]].concat(), "-TERM", 143);
}

/// A connection matrix of a short flow, and one that starts after an hour.
fn late_flow(lab: &Lab) -> String {
    let text = "Nodes 4\nConnections 2\n1->0 id 1 start 0 size 100000\n1->0 id 2 start 3600000000 size 5\n";
    format!("--matrix={}", lab.file("late.cm", text))
}

#[test]
fn a_run_over_kernel_udp_ends_with_its_report() {
    let lab = Lab::new();
    interrupted(&lab, &[&late_flow(&lab), "--on=udp"], "-TERM", 143);
}

#[cfg(feature = "dpdk")]
#[test]
fn a_loopback_ends_with_its_report() {
    let lab = Lab::new();
    interrupted(&lab, &[&late_flow(&lab), "--on=loopback"], "-INT", 130);
}

#[test]
fn a_run_over_software_switches_ends_with_its_report() {
    // Short for the simulator, which comes first, and for the memory of payload; a minute at least at this speed.
    let soft = ["--workload=incast:3", "--size=2000000", "--on=soft", "--topology", FABRIC, "--slow=100000"];
    interrupted(&Lab::new(), &soft, "-INT", 130);
    interrupted(&Lab::new(), &[&soft[..], &["--processes"]].concat(), "-INT", 130);
}

#[test]
fn samples_up_to_the_signal_are_complete_files() {
    let lab = Lab::new();
    let outputs = Outputs::of(&lab);
    let prefix = format!("--sample-file={}", lab.path().join("k").display());
    let process = lab.start(&["run", "--workload=incast:15", ENDLESS, "--sample=10us", &prefix]);
    until("samples are written", || parts(&lab) == 2);
    std::thread::sleep(Duration::from_millis(500));
    signal(&process, "-INT");
    assert_eq!(process.output().status.code(), Some(130));
    for path in &outputs.samples {
        let reader =
            SerializedFileReader::new(File::open(path).expect("it is there")).expect("it is complete");
        assert!(reader.metadata().file_metadata().num_rows() > 0, "{}", path.display());
    }
    assert_eq!(parts(&lab), 0);
}

#[test]
fn a_second_signal_ends_the_run_at_once_and_keeps_earlier_results() {
    let lab = Lab::new();
    let outputs = Outputs::of(&lab);
    let written = outputs.options();
    let files: Vec<&Path> = vec![&outputs.json, &outputs.flows];
    files.iter().for_each(|path| fs::write(path, "earlier").expect("it can be written"));
    let process = lab.start(&["run", "--workload=incast:3", ENDLESS, &written[0], &written[1]]);
    until("the run has begun", || parts(&lab) == 2);
    // Stopped, it takes both at a time.
    signal(&process, "-STOP");
    signal(&process, "-INT");
    signal(&process, "-TERM");
    signal(&process, "-CONT");
    let output = process.output();
    assert!(!output.status.success(), "{}", stderr_of(&output));
    files.iter().for_each(|path| assert_eq!(fs::read_to_string(path).expect("it is there"), "earlier"));
}
