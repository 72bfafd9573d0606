//! `weft run --on soft --processes`: each host a process of its own, attached to the switches in this one as to a
//! testbed.
//!
//! ```text
//!   this process: switches ◀── UDP, memif, veth ──▶ one process for each host: endpoint, its flows
//!        └────────────── pipes: begin, triggers, news, reports ──────────────┘
//! ```
//!
//! Hosts get this process's own options, so that they make the same workload, and the ports that `weft testbed` has.
//! They die with this process. Each wait has a bound, and a host that ends before its time ends the run.

mod child;
mod message;
mod paced;
mod pipe;

pub(crate) use child::be_host;

use crate::Failure;
use crate::choices::HostsBy;
use crate::interrupt::Interrupt;
use crate::live::{self, Coordinator, HostReport};
use crate::soft;
use crate::testbed::{AttachedFabric, HostFacts, Switches, directory_of_run};
use message::{FromHost, Setup, ToHost};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};
use weft_cc::Span;
use weft_stack::worker::Clock;
use weft_testbed::sim::{FaultPlan, RunConfig, RunProgress, RunReport};
use weft_testbed::soft::SoftCounters;
use weft_testbed::workload::Workload;

/// How long hosts may take to be ready, to report, and to end.
const READY: Duration = Duration::from_secs(60);
const REPORT: Duration = Duration::from_secs(30);
const END: Duration = Duration::from_secs(10);
/// From the announcement to the beginning: all hosts should have heard of it by then.
const RUN_UP: Span = Span::from_ms(100);
/// How often signals are looked for while hosts get ready.
const LOOK: Duration = Duration::from_millis(50);
/// Turns of the switches between two looks for messages of hosts.
const ATTEND: u32 = 32;

/// Runs all flows of `config`'s workload, or its program. Returns the report, and what the fabric has done.
///
/// # Errors
/// The system does not give what a run needs, a host has died, or a signal has come before the run began.
pub(crate) fn run(
    config: &RunConfig,
    faults: &FaultPlan,
    by: HostsBy,
    progress: &mut dyn FnMut(&RunProgress),
    interrupt: &Interrupt,
) -> Result<(RunReport, SoftCounters), Failure> {
    let hosts = live::hosts(config);
    if hosts.is_empty() {
        return Err(Failure::Run(format!("--on soft: {}", live::LiveError::NoFlows)));
    }
    let (owned, name) = directory_of_run()?;
    let mut carry_out = || {
        let attached = by.attach(config, faults, &hosts, &owned, &name)?;
        let mut processes = Processes::start(&attached.hosts)?;
        processes.wait_until_ready(interrupt)?;
        let mut running = Running::begin(config, attached, processes)?;
        running.run(progress, interrupt)?;
        running.finish()
    };
    let outcome = carry_out();
    let removed = owned.remove();
    let (reports, counters) = outcome?;
    removed?;
    Ok((soft::with_switches(live::run_report(config, &reports), &counters), counters))
}

/// `CLOCK_MONOTONIC`, which all processes of a machine share, ns.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A message of the host at this place in the list; `None` if it will send no more.
type News = (usize, Option<FromHost>);

/// The processes of the hosts. They are killed when this is dropped.
struct Processes {
    hosts: Vec<u32>,
    children: Vec<Child>,
    pipes: Vec<ChildStdin>,
    news: Receiver<News>,
}

impl Processes {
    fn start(hosts: &[HostFacts]) -> Result<Processes, Failure> {
        let (sender, news) = mpsc::channel();
        let mut processes = Processes { hosts: Vec::new(), children: Vec::new(), pipes: Vec::new(), news };
        let setup = Setup { hosts: hosts.to_vec() };
        for (place, facts) in hosts.iter().enumerate() {
            let failed = |error| Failure::Run(format!("host {}: no process: {error}", facts.host));
            let mut child = command(facts).spawn().map_err(failed)?;
            let (pipe, out) = (child.stdin.take(), child.stdout.take());
            processes.children.push(child);
            processes.hosts.push(facts.host);
            if let (Some(pipe), Some(out)) = (pipe, out) {
                processes.pipes.push(pipe);
                hear(place, out, sender.clone()).map_err(failed)?;
            }
            processes.tell(place, &setup)?;
        }
        Ok(processes)
    }

    fn tell(&mut self, place: usize, message: &impl serde::Serialize) -> Result<(), Failure> {
        let mut line = serde_json::to_vec(message).unwrap_or_default();
        line.push(b'\n');
        match self.pipes[place].write_all(&line) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.died(place)),
        }
    }

    /// The failure of a run whose host at `place` has ended too early, or does not answer.
    fn died(&mut self, place: usize) -> Failure {
        let host = self.hosts[place];
        match ended(&mut self.children[place], Instant::now() + END) {
            Some(status) => Failure::Run(format!("host {host}: its process ended: {}", describe(status))),
            None => Failure::Run(format!("host {host}: its process does not answer")),
        }
    }

    /// The next news until `limit`.
    fn hear(&self, limit: Instant) -> Option<News> {
        self.news.recv_timeout(limit.saturating_duration_since(Instant::now())).ok()
    }

    fn wait_until_ready(&mut self, interrupt: &Interrupt) -> Result<(), Failure> {
        let limit = Instant::now() + READY;
        let mut waiting = vec![true; self.hosts.len()];
        while let Some(place) = waiting.iter().position(|waits| *waits) {
            if let Some(failure) = interrupt.failure(" before the run began") {
                return Err(failure);
            }
            match self.hear(limit.min(Instant::now() + LOOK)) {
                Some((place, Some(FromHost::Ready))) => waiting[place] = false,
                Some((place, _)) => return Err(self.died(place)),
                None if Instant::now() >= limit => {
                    let (host, s) = (self.hosts[place], READY.as_secs());
                    return Err(Failure::Run(format!("host {host}: not ready after {s} s")));
                }
                None => {}
            }
        }
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.children {
            // The process may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The command that starts this program once more, as the host that `facts` describe.
fn command(facts: &HostFacts) -> Command {
    // This works even if the file of the program has been replaced, and where `ip` starts it.
    let myself = format!("/proc/{}/exe", std::process::id());
    let mut command = match &facts.namespace {
        Some(namespace) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", namespace, &myself]);
            command
        }
        None => Command::new(myself),
    };
    let parent = std::process::id().to_string();
    command.args(["run-host", "--parent", &parent, "--number", &facts.host.to_string()]);
    // The options of this `weft run`.
    command.args(std::env::args_os().skip(2));
    // Outside this process's group: Ctrl-C in a terminal ends the run, but its hosts still have to report.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
    command
}

/// Passes on the messages of a host.
fn hear(place: usize, out: impl std::io::Read + Send + 'static, news: Sender<News>) -> std::io::Result<()> {
    let read = move || {
        for line in BufReader::new(out).lines() {
            let Some(message) = line.ok().and_then(|line| serde_json::from_str(&line).ok()) else { break };
            if news.send((place, Some(message))).is_err() {
                return;
            }
        }
        // The receiver is gone when the run is over.
        let _ = news.send((place, None));
    };
    thread::Builder::new().name("weft-host".to_owned()).spawn(read).map(drop)
}

/// Waits for the end of a process until `limit`.
fn ended(child: &mut Child, limit: Instant) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < limit => thread::sleep(Duration::from_millis(5)),
            _ => return None,
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("killed by signal {signal}"),
        (None, code) => format!("exit status {}", code.unwrap_or_default()),
    }
}

/// A run that has begun.
struct Running<'a> {
    coordinator: Coordinator<'a>,
    workload: &'a Workload,
    clock: Clock,
    switches: Switches,
    processes: Processes,
}

impl<'a> Running<'a> {
    /// Tells all hosts when the run begins, and waits until then.
    fn begin(
        config: &'a RunConfig,
        attached: AttachedFabric,
        mut processes: Processes,
    ) -> Result<Running<'a>, Failure> {
        let workload = &config.workload;
        let clock = Clock::new();
        let flows = config.job.as_ref().map_or(workload.flows().len(), |job| job.messages().len());
        let mut coordinator = Coordinator::new(config, processes.hosts.len(), flows as u64);
        coordinator.begin(clock.now() + RUN_UP);
        let begin = monotonic_ns() + RUN_UP.as_ps() / 1_000;
        for place in 0..processes.hosts.len() {
            processes.tell(place, &ToHost::Begin(begin))?;
        }
        thread::sleep(Duration::from_nanos(begin.saturating_sub(monotonic_ns())));
        Ok(Running { coordinator, workload, clock, switches: Switches::new(attached, config), processes })
    }

    /// Turns the switches and carries word between hosts until all flows have ended, time is up, nothing moves any more,
    /// or a signal has come.
    fn run(&mut self, progress: &mut dyn FnMut(&RunProgress), interrupt: &Interrupt) -> Result<(), Failure> {
        while !interrupt.has_arrived() {
            (0..ATTEND).for_each(|_| self.switches.turn());
            let now = self.clock.now();
            while let Ok((place, news)) = self.processes.news.try_recv() {
                let Some(FromHost::News(news)) = news else { return Err(self.processes.died(place)) };
                for flow in self.coordinator.take_in(now, news) {
                    self.start(flow)?;
                }
            }
            for flow in self.coordinator.due(now) {
                self.start(flow)?;
            }
            let frames = self.switches.counters().delivered;
            if self.coordinator.is_over(now, frames) {
                break;
            }
            progress(&self.coordinator.progress(now, frames));
        }
        Ok(())
    }

    /// Has the source of a flow start it.
    fn start(&mut self, flow: u32) -> Result<(), Failure> {
        let source = self.workload.flows()[flow as usize].src.0;
        match self.processes.hosts.iter().position(|host| *host == source) {
            Some(place) => self.processes.tell(place, &ToHost::Start(flow)),
            None => Ok(()),
        }
    }

    /// Has all hosts report and end.
    fn finish(mut self) -> Result<(Vec<HostReport>, SoftCounters), Failure> {
        let counters = self.switches.counters();
        let processes = &mut self.processes;
        let count = processes.hosts.len();
        for place in 0..count {
            processes.tell(place, &ToHost::Finish)?;
        }
        let mut reports: BTreeMap<usize, HostReport> = BTreeMap::new();
        let limit = Instant::now() + REPORT;
        while reports.len() < count {
            match processes.hear(limit) {
                Some((place, Some(FromHost::Report(report)))) => {
                    reports.insert(place, *report);
                }
                Some((place, None)) if !reports.contains_key(&place) => return Err(processes.died(place)),
                // It said this before it heard that the run is over; or it has ended after its report.
                Some(_) => {}
                None => {
                    let silent = (0..count).find(|place| !reports.contains_key(place)).unwrap_or(0);
                    return Err(processes.died(silent));
                }
            }
        }
        let limit = Instant::now() + END;
        for place in 0..count {
            match ended(&mut processes.children[place], limit) {
                Some(status) if status.success() => {}
                _ => return Err(processes.died(place)),
            }
        }
        Ok((reports.into_values().collect(), counters))
    }
}
