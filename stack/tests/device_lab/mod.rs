//! Support for tests of devices: networks of their own, other processes, and a way to skip.
#![allow(dead_code)] // Each test program uses its part.

use crate::skipped::{skipped, skipped_inside};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Environment variable with the name of the test that runs inside the process that another test has started.
const INSIDE: &str = "WEFT_TEST_INSIDE";

/// Environment variable with the task of a test's other process.
const TASK: &str = "WEFT_TEST_TASK";

/// Time limit of a test in a network of its own, seconds.
const BOUND: &str = "120";

/// Exit status of a setup whose requirements are missing on this machine.
const NOT_HERE: i32 = 77;

/// Runs `test` again in a process with a network of its own, prepared by the shell commands `setup`; returns true in
/// that process. The network disappears with the process. Prints the reason if there can be no such network.
pub(crate) fn in_own_network(test: &str, setup: &str) -> bool {
    if std::env::var_os(INSIDE).is_some_and(|name| name == test) {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let script = format!(
        "{{ ip link set lo up && {setup}; }} || exit {NOT_HERE}; {INSIDE}={test} '{}' --exact {test} --nocapture",
        program.display()
    );
    // Without a user namespace if possible, because BPF programs can only be loaded in the first one.
    let root = std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.contains("4294967295"))
        && rustix::process::geteuid().is_root();
    let own_user: &[&str] = if root { &[] } else { &["--map-root-user"] };
    let output = Command::new("timeout")
        .args(["-k", "5", BOUND, "unshare", "--net"])
        .args(own_user)
        .args(["sh", "-c", &script])
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            skipped(&format!("timeout and unshare: {error}"));
            return false;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        assert!(text.contains("1 passed"), "{text}");
        skipped_inside(&text);
    } else if output.status.code() == Some(NOT_HERE) || text.contains("unshare failed") {
        skipped(&format!("no network of its own: {text}"));
    } else {
        panic!("{}: {text}", output.status);
    }
    false
}

/// Another process of this program, which runs the ignored test `peer` with this task. Killed when dropped.
pub(crate) struct Peer(Child);

impl Peer {
    pub(crate) fn start(test: &str, task: &str) -> Peer {
        let program = std::env::current_exe().unwrap();
        let child = Command::new(program)
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env(TASK, task)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Peer(child)
    }

    /// Waits for the process to end; fails if it failed or does not end.
    pub(crate) fn ends_well(mut self) {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return assert!(status.success(), "the other process: {status}");
            }
            assert!(begin.elapsed() < Duration::from_secs(30), "the other process does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills the process without a chance to close its link.
    pub(crate) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The task of this process, if it is another one's [`Peer`].
pub(crate) fn task() -> Option<String> {
    std::env::var(TASK).ok()
}
