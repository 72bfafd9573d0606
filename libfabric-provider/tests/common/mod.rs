//! The provider as libfabric loads it.

#![allow(dead_code, reason = "not every test program uses all of it")]

pub(crate) mod fabric;
pub(crate) mod lossy;
pub(crate) mod model;
pub(crate) mod mpi;
pub(crate) mod processes;
pub(crate) mod random;
pub(crate) mod server;
pub(crate) mod stand_ins;

use std::net::TcpListener;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Seconds that a program may take on a machine that is busy with other tests.
pub(crate) const PATIENCE: &str = "120";

/// A directory that holds the provider and nothing else.
pub(crate) struct Provider {
    directory: tempfile::TempDir,
}

impl Provider {
    /// The provider, if there is the program `needed`; else says that the test is skipped, or fails if `CI` is set.
    pub(crate) fn get(needed: &str) -> Option<Provider> {
        if Command::new("which").arg(needed).output().is_ok_and(|found| found.status.success()) {
            return Some(Provider::new());
        }
        assert!(std::env::var_os("CI").is_none(), "{needed} is missing: run scripts/setup.sh");
        eprintln!("skipped: {needed} is missing; scripts/setup.sh installs it");
        None
    }

    pub(crate) fn new() -> Provider {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(library(), directory.path().join("libweft-fi.so")).unwrap();
        Provider { directory }
    }

    /// The library, with the name that libfabric looks for.
    pub(crate) fn file(&self) -> PathBuf {
        self.directory.path().join("libweft-fi.so")
    }

    /// A program that finds the provider.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("FI_PROVIDER_PATH", self.directory.path());
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("FI_WEFT_"))
        {
            command.env_remove(name);
        }
        command
    }

    pub(crate) fn output(&self, words: &[&str]) -> Output {
        self.command(words[0]).args(&words[1..]).output().unwrap()
    }

    /// The standard output of a program that succeeds.
    pub(crate) fn run(&self, words: &[&str]) -> String {
        let output = self.output(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// How a line begins that says what messages a test has exchanged.
pub(crate) const PAYLOAD: &str = "payload: ";
/// The variable that tells a test that it runs with the provider.
const INSIDE: &str = "WEFT_FI_TEST";

/// The name with which the program runs the test `name` of the caller's file alone: each file is a module.
#[track_caller]
pub(crate) fn full_name(name: &str) -> String {
    let file = Path::new(Location::caller().file());
    format!("{}::{name}", file.file_stem().unwrap().to_str().unwrap())
}

/// Runs the test `name` of the caller's file in a process that finds the provider: libfabric looks for it only once.
/// Returns whether this is that process.
#[track_caller]
pub(crate) fn inside(name: &str) -> bool {
    inside_with(name, &[])
}

/// As [`inside`], with these variables.
#[track_caller]
pub(crate) fn inside_with(name: &str, variables: &[(&str, &str)]) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let provider = Provider::new();
    let mut command = provider.command("timeout");
    command.arg("300").arg(std::env::current_exe().unwrap()).args([
        &full_name(name),
        "--exact",
        "--nocapture",
    ]);
    let output = command.envs(variables.iter().copied()).env(INSIDE, "1").output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said} {errors}");
    // The soak counts what was exchanged.
    said.lines().filter(|line| line.starts_with(PAYLOAD)).for_each(|line| println!("{line}"));
    false
}

/// As [`inside_with`], for a test with several processes: the further ones that it starts call `other` with their number.
/// Returns whether this is the first process.
#[track_caller]
pub(crate) fn first(name: &str, variables: &[(&str, &str)], other: impl FnOnce(usize)) -> bool {
    if !inside_with(name, variables) {
        return false;
    }
    processes::number().map(other).is_none()
}

/// Cargo's target directory.
pub(crate) fn target() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests.ancestors().nth(3).unwrap().to_owned()
}

/// A program that cargo has built with the same profile.
pub(crate) fn beside(program: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests.ancestors().nth(2).unwrap().join(program)
}

/// The command `weft`, if it was built; else says that the test is skipped, or fails if `CI` is set.
pub(crate) fn weft() -> Option<PathBuf> {
    let weft = beside("weft");
    if !weft.exists() {
        assert!(std::env::var_os("CI").is_none(), "{} is missing", weft.display());
        eprintln!("skipped: {} is missing; cargo build -p weft-apps builds it", weft.display());
        return None;
    }
    Some(weft)
}

/// The library, which cargo builds beside the tests.
fn library() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let library = tests.parent().unwrap().join("libweft_fi.so");
    assert!(library.exists(), "{} is missing", library.display());
    library
}

/// A TCP port that nobody has just now.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Stops the process; returns when it does nothing any more.
pub(crate) fn stop(process: &processes::Process) {
    let id = process.child.id();
    // SAFETY: it is the number of a process that has not been waited for.
    assert_eq!(unsafe { libc::kill(id as i32, libc::SIGSTOP) }, 0);
    let begin = std::time::Instant::now();
    let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap().contains(") T ")
    };
    while !std::fs::read_dir(format!("/proc/{id}/task")).unwrap().all(is_stopped) {
        assert!(begin.elapsed() < fabric::BOUND, "it does not stop");
        std::thread::yield_now();
    }
}
