//! Helpers for tests of real-time runs: the command, temporary directories, and waits with a time limit.
#![allow(dead_code, unused_imports, reason = "each test file uses some of it")]

#[path = "../../../stack/tests/skipped/mod.rs"]
mod skipped;

use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(crate) use skipped::skipped;

/// Longer than anything here takes on a machine that is busy with other things.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// 4 leaves, 4 spines, 16 hosts.
pub(crate) const FABRIC: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../testbed/data/topologies/leaf_spine_16.topo");

/// A runtime directory of a test's own.
pub(crate) struct Lab(tempfile::TempDir);

impl Lab {
    pub(crate) fn new() -> Lab {
        Lab(tempfile::tempdir().expect("there is room for a directory"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Where testbeds of this lab keep what they have.
    pub(crate) fn runtime(&self) -> PathBuf {
        self.path().join("weft")
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        command.args(args).env("XDG_RUNTIME_DIR", self.path()).env("RUST_BACKTRACE", "0");
        command
    }

    /// Runs `weft` with `args` to its end, which must come.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.start(args).output()
    }

    pub(crate) fn start(&self, args: &[&str]) -> Process {
        Process::start(self.command(args))
    }

    /// A file of the test's own.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.path().join(name);
        std::fs::write(&path, text).expect("it can be written");
        path.display().to_string()
    }
}

/// A process that does not outlive its test.
pub(crate) struct Process(Option<Child>);

impl Process {
    pub(crate) fn start(mut command: Command) -> Process {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Process(Some(child.expect("it starts")))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.as_ref().expect("it runs").id()
    }

    /// As `kill -9` does it.
    pub(crate) fn kill(&mut self) {
        self.0.as_mut().expect("it runs").kill().expect("it can be killed");
    }

    /// The output of the process once it has ended. If it does not end in time, it is killed and the test fails.
    pub(crate) fn output(mut self) -> Output {
        let child = self.0.as_mut().expect("it runs");
        let (out, err) = (collect(child.stdout.take()), collect(child.stderr.take()));
        let limit = Instant::now() + PATIENCE;
        let status = loop {
            match child.try_wait().expect("it is ours") {
                Some(status) => break Some(status),
                None if Instant::now() < limit => std::thread::sleep(Duration::from_millis(5)),
                None => {
                    child.kill().expect("it can be killed");
                    break None;
                }
            }
        };
        let (stdout, stderr) = (out.join().expect("it was read"), err.join().expect("it was read"));
        match status {
            Some(status) => Output { status, stdout, stderr },
            None => panic!("it does not end: {}", String::from_utf8_lossy(&stderr)),
        }
    }
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.expect("it was asked for").read_to_end(&mut bytes).expect("a pipe can be read");
        bytes
    })
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(crate) fn stderr_of(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).expect("UTF-8")
}

/// The JSON document that a command has printed, which went well.
pub(crate) fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr_of(output));
    serde_json::from_slice(&output.stdout).expect("standard output is one JSON document and nothing else")
}

/// Waits until `what` is so.
pub(crate) fn until(why: &str, mut what: impl FnMut() -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !what() {
        assert!(Instant::now() < limit, "{why}: not within {} s", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Why no network namespaces can be made here.
pub(crate) fn no_namespaces() -> Option<String> {
    let name = format!("weft-try{}", std::process::id());
    let ip = |args: &[&str]| match Command::new("ip").args(args).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("ip: {error}")),
    };
    ip(&["netns", "add", &name]).or_else(|| ip(&["netns", "delete", &name]))
}
