//! A `weft serve` for each host of a testbed, where any number of programs join (`weft testbed up --serve`).

use super::attach::HostFacts;
use super::rundir::Owned;
use crate::Failure;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long a server may take until applications can join, on a machine that is busy.
const START: Duration = Duration::from_secs(60);
/// How long a server may take to say goodbye to its peers: a second, and some more on a machine that is busy.
const END: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How often it is checked whether servers are there.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// The servers' processes. They end when this is dropped, and when this process ends.
pub(super) struct Servers {
    all: Vec<Server>,
    checked: Instant,
}

struct Server {
    host: u32,
    child: Child,
    socket: PathBuf,
}

impl Servers {
    /// Starts a server for each of `hosts`, with the options `end` for their endpoints, and notes in `hosts` where it listens.
    ///
    /// # Errors
    /// One does not start.
    pub(super) fn start(hosts: &mut [HostFacts], end: &str, owned: &Owned) -> Result<Servers, Failure> {
        let mut servers = Servers { all: Vec::new(), checked: Instant::now() };
        for facts in hosts {
            let socket = owned.dir.path().join(format!("serve{}", facts.host));
            let child = command(facts, &socket, end).spawn().map_err(|error| failed(facts.host, &error))?;
            servers.all.push(Server { host: facts.host, child, socket: socket.clone() });
            facts.serve = Some(socket);
        }
        Ok(servers)
    }

    /// Waits until applications can join. `meanwhile` is called over and over.
    ///
    /// # Errors
    /// A server has ended, or takes too long.
    pub(super) fn wait(&mut self, mut meanwhile: impl FnMut()) -> Result<(), Failure> {
        let begin = Instant::now();
        for server in &mut self.all {
            while !server.socket.exists() {
                if let Ok(Some(status)) = server.child.try_wait() {
                    return Err(failed(server.host, &status));
                }
                if begin.elapsed() > START {
                    return Err(failed(server.host, &"it does not listen"));
                }
                meanwhile();
                thread::sleep(POLL_INTERVAL);
            }
        }
        Ok(())
    }

    /// The first server that has ended, and how; to be called often, as it seldom asks the system.
    pub(super) fn ended(&mut self) -> Option<Failure> {
        if self.checked.elapsed() < CHECK_INTERVAL {
            return None;
        }
        self.checked = Instant::now();
        self.all.iter_mut().find_map(|server| match server.child.try_wait() {
            Ok(Some(status)) => Some(failed(server.host, &status)),
            _ => None,
        })
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for server in &self.all {
            if let Some(pid) = Pid::from_raw(server.child.id() as i32) {
                // It may have ended by itself.
                let _ = kill_process(pid, Signal::TERM);
            }
        }
        let begin = Instant::now();
        for server in &mut self.all {
            while begin.elapsed() < END && matches!(server.child.try_wait(), Ok(None)) {
                thread::sleep(POLL_INTERVAL);
            }
            let _ = server.child.kill();
            let _ = server.child.wait();
        }
    }
}

fn failed(host: u32, why: &dyn std::fmt::Display) -> Failure {
    Failure::Run(format!("testbed: the server of host {host}: {why}"))
}

/// This program again, as `weft serve` at a host.
fn command(facts: &HostFacts, socket: &Path, end: &str) -> Command {
    let mut words: Vec<OsString> = Vec::new();
    if let Some(name) = &facts.namespace {
        words.extend(["ip", "netns", "exec", name].map(OsString::from));
    }
    // In a namespace `/proc/self` is the program that enters it.
    let program = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
    words.extend([program.into(), "serve".into(), "--socket".into(), socket.into()]);
    words.extend(facts.port_options().split(' ').map(OsString::from));
    words.extend(end.split(' ').map(OsString::from));
    words.extend(["--with-parent".into(), std::process::id().to_string().into()]);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null());
    command
}
