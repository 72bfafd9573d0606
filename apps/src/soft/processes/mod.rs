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
mod flows;
mod message;
mod paced;
mod pipe;

pub(crate) use child::be_host;

use crate::Failure;
use crate::choices::HostsBy;
use crate::live;
use crate::testbed::{Bed, HostFacts, Owned, Switches, directory_of_run};
use message::{FromHost, HostReport, Setup, ToHost};
use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};
use weft_cc::{Span, Time};
use weft_stack::fep::Footprint;
use weft_testbed::sim::{FaultPlan, FlowRecord, PacketCounters, RunProgress, RunConfig, RunReport};
use weft_testbed::soft::SoftCounters;
use weft_testbed::workload::{Start, TriggerBank, TriggerIdx};

/// How long hosts may take to be ready, to report, and to end.
const READY: Duration = Duration::from_secs(60);
const REPORT: Duration = Duration::from_secs(30);
const END: Duration = Duration::from_secs(10);
/// From the word to the beginning: all hosts should have heard of it by then.
const RUN_UP: Duration = Duration::from_millis(100);
/// Without a packet delivered or news of a host for so long, a run is given up.
const SILENCE: Duration = Duration::from_secs(10);
/// How often signals are looked for while there is nothing else to do.
const LOOK: Duration = Duration::from_millis(50);
/// Turns of the switches between two looks for news.
const ATTEND: u32 = 32;

/// Runs all flows of `config`'s workload. Returns the report, and what the fabric has done.
///
/// # Errors
/// What the system does not give, or a host that has died.
pub(crate) fn run(
    config: &RunConfig,
    faults: &FaultPlan,
    by: HostsBy,
    progress: &mut dyn FnMut(&RunProgress),
) -> Result<(RunReport, SoftCounters), Failure> {
    let hosts = live::hosts(&config.workload);
    if hosts.is_empty() {
        return Err(Failure::Run(format!("--on soft: {}", live::LiveError::NoFlows)));
    }
    let (owned, name) = directory_of_run()?;
    let interrupted = interruption()?;
    let outcome = run_in(config, faults, by, &hosts, &owned, &name, interrupted, progress);
    let removed = owned.remove();
    let (reports, counters) = outcome?;
    removed?;
    Ok((report(config, &hosts, reports, &counters), counters))
}

fn run_in(
    config: &RunConfig,
    faults: &FaultPlan,
    by: HostsBy,
    hosts: &[u32],
    owned: &Owned,
    name: &str,
    interrupted: Arc<AtomicBool>,
    progress: &mut dyn FnMut(&RunProgress),
) -> Result<(Vec<HostReport>, SoftCounters), Failure> {
    let bed = by.attach(config, faults, hosts, owned, name)?;
    let mut processes = Processes::start(&bed.hosts, interrupted)?;
    processes.wait_until_ready()?;
    let (switches, begin) = processes.begin(bed, config)?;
    let mut conductor = Conductor::new(config, switches, processes, begin);
    conductor.run(progress)?;
    conductor.finish()
}

/// Signals do not end this process at once: there are hosts to be ended and namespaces to be removed.
fn interruption() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, flag.clone())
            .map_err(|error| Failure::Run(format!("signals: {error}")))?;
    }
    Ok(flag)
}

/// `CLOCK_MONOTONIC`, which all processes of a machine share, ns.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What is heard of a host, by its place: a line, or that there will be none any more.
type News = (usize, Option<FromHost>);

/// The processes of the hosts. They are killed when this is dropped.
struct Processes {
    hosts: Vec<u32>,
    children: Vec<Child>,
    pipes: Vec<ChildStdin>,
    news: Receiver<News>,
    interrupted: Arc<AtomicBool>,
}

impl Processes {
    fn start(hosts: &[HostFacts], interrupted: Arc<AtomicBool>) -> Result<Processes, Failure> {
        let (sender, news) = mpsc::channel();
        let mut processes =
            Processes { hosts: Vec::new(), children: Vec::new(), pipes: Vec::new(), news, interrupted };
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

    /// How the host at `place` has ended, which was not to end.
    fn died(&mut self, place: usize) -> Failure {
        let host = self.hosts[place];
        match ended(&mut self.children[place], Instant::now() + END) {
            Some(status) => Failure::Run(format!("host {host}: its process ended: {}", describe(status))),
            None => Failure::Run(format!("host {host}: its process does not answer")),
        }
    }

    /// Whether the user wants an end.
    fn check(&self) -> Result<(), Failure> {
        match self.interrupted.load(Ordering::Relaxed) {
            true => Err(Failure::Interrupted { text: "interrupted".to_owned(), status: 130 }),
            false => Ok(()),
        }
    }

    /// The next news until `limit`.
    fn hear(&self, limit: Instant) -> Result<Option<News>, Failure> {
        while Instant::now() < limit {
            self.check()?;
            if let Ok(news) = self.news.recv_timeout(LOOK) {
                return Ok(Some(news));
            }
        }
        Ok(None)
    }

    fn wait_until_ready(&mut self) -> Result<(), Failure> {
        let limit = Instant::now() + READY;
        let mut waiting: Vec<bool> = self.hosts.iter().map(|_| true).collect();
        while let Some(place) = waiting.iter().position(|waits| *waits) {
            match self.hear(limit)? {
                Some((place, Some(FromHost::Ready))) => waiting[place] = false,
                Some((place, _)) => return Err(self.died(place)),
                None => {
                    let (host, s) = (self.hosts[place], READY.as_secs());
                    return Err(Failure::Run(format!("host {host}: not ready after {s} s")));
                }
            }
        }
        Ok(())
    }

    /// Tells all hosts when the run begins, and waits until then.
    fn begin(&mut self, bed: Bed, config: &RunConfig) -> Result<(Switches, Instant), Failure> {
        let begin = Instant::now() + RUN_UP;
        let at = monotonic_ns() + RUN_UP.as_nanos() as u64;
        for place in 0..self.hosts.len() {
            self.tell(place, &ToHost::Begin(at))?;
        }
        thread::sleep(begin.saturating_duration_since(Instant::now()));
        Ok((Switches::new(bed, config), begin))
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// This program once more, as the host that `facts` are about.
fn command(facts: &HostFacts) -> Command {
    // Even if its file has been replaced; and where another program starts it.
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
    command.args(["run-host", "--parent", &parent, "--host", &facts.host.to_string()]);
    // Those of `weft run`.
    command.args(std::env::args_os().skip(2));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Passes on what a host says.
fn hear(place: usize, out: impl std::io::Read + Send + 'static, news: Sender<News>) -> std::io::Result<()> {
    let read = move || {
        for line in BufReader::new(out).lines() {
            let Some(message) = line.ok().and_then(|line| serde_json::from_str(&line).ok()) else { break };
            if news.send((place, Some(message))).is_err() {
                return;
            }
        }
        // Nobody listens when the run is over.
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

/// Turns the switches, and passes on what hosts have to hear from each other.
struct Conductor<'a> {
    config: &'a RunConfig,
    switches: Switches,
    processes: Processes,
    triggers: TriggerBank,
    begin: Instant,
    /// By place: whether all flows from the host have ended.
    done: Vec<bool>,
    delivered: u64,
    last_news: Instant,
    frames: u64,
}

impl<'a> Conductor<'a> {
    fn new(config: &'a RunConfig, switches: Switches, processes: Processes, begin: Instant) -> Conductor<'a> {
        Conductor {
            triggers: TriggerBank::new(&config.workload),
            done: processes.hosts.iter().map(|_| false).collect(),
            config,
            switches,
            processes,
            begin,
            delivered: 0,
            last_news: Instant::now(),
            frames: 0,
        }
    }

    /// Until all flows have ended, time is up, or nothing moves any more.
    fn run(&mut self, progress: &mut dyn FnMut(&RunProgress)) -> Result<(), Failure> {
        let limit = self.config.until.map(|until| Duration::from_nanos(until.as_ps() / 1_000));
        while self.done.contains(&false) {
            (0..ATTEND).for_each(|_| self.switches.turn());
            self.processes.check()?;
            while let Ok((place, news)) = self.processes.news.try_recv() {
                let Some(news) = news else { return Err(self.processes.died(place)) };
                self.last_news = Instant::now();
                self.take_in(place, &news)?;
            }
            let frames = self.switches.counters().delivered;
            if std::mem::replace(&mut self.frames, frames) != frames {
                self.last_news = Instant::now();
            }
            let cut_off = limit.is_some_and(|limit| self.begin.elapsed() >= limit);
            if cut_off || self.last_news.elapsed() >= SILENCE {
                return Ok(());
            }
            progress(&self.progress());
        }
        Ok(())
    }

    fn take_in(&mut self, place: usize, news: &FromHost) -> Result<(), Failure> {
        let flow = |index: u32| self.config.workload.flows().get(index as usize);
        match *news {
            FromHost::Sent(index) => {
                self.delivered += 1;
                self.activate(flow(index).and_then(|flow| flow.on_sent))
            }
            FromHost::Received(index) => self.activate(flow(index).and_then(|flow| flow.on_received)),
            FromHost::Done => {
                self.done[place] = true;
                Ok(())
            }
            FromHost::Ready | FromHost::Report(_) => Err(self.processes.died(place)),
        }
    }

    /// Starts what has waited for this trigger.
    fn activate(&mut self, trigger: Option<TriggerIdx>) -> Result<(), Failure> {
        let Some(trigger) = trigger else { return Ok(()) };
        let workload = &self.config.workload;
        for index in self.triggers.activate(workload, trigger) {
            let flow = &workload.flows()[*index as usize];
            debug_assert!(matches!(flow.start, Start::Trigger(_)), "it waits");
            let place = self.processes.hosts.iter().position(|host| *host == flow.src.0);
            if let Some(place) = place {
                self.processes.tell(place, &ToHost::Start(*index))?;
            }
        }
        Ok(())
    }

    fn progress(&self) -> RunProgress {
        RunProgress {
            now: Time::ZERO + Span::from_ns(self.begin.elapsed().as_nanos() as u64),
            flows_done: self.delivered,
            flows_total: self.config.workload.flows().len() as u64,
            events: self.frames,
        }
    }

    /// Has all hosts report and end.
    fn finish(mut self) -> Result<(Vec<HostReport>, SoftCounters), Failure> {
        let counters = self.switches.counters();
        let count = self.processes.hosts.len();
        for place in 0..count {
            self.processes.tell(place, &ToHost::Finish)?;
        }
        let mut reports: BTreeMap<usize, HostReport> = BTreeMap::new();
        let limit = Instant::now() + REPORT;
        while reports.len() < count {
            match self.processes.hear(limit)? {
                Some((place, Some(FromHost::Report(report)))) => {
                    reports.insert(place, *report);
                }
                Some((place, None)) if !reports.contains_key(&place) => {
                    return Err(self.processes.died(place));
                }
                // What it had to say before it heard that it is over, or the end after its report.
                Some(_) => {}
                None => {
                    let silent = (0..count).find(|place| !reports.contains_key(place)).unwrap_or(0);
                    return Err(self.processes.died(silent));
                }
            }
        }
        let limit = Instant::now() + END;
        for place in 0..count {
            match ended(&mut self.processes.children[place], limit) {
                Some(status) if status.success() => {}
                _ => return Err(self.processes.died(place)),
            }
        }
        Ok((reports.into_values().collect(), counters))
    }
}

/// One report of those of all hosts.
fn report(config: &RunConfig, hosts: &[u32], reports: Vec<HostReport>, counters: &SoftCounters) -> RunReport {
    let workload = &config.workload;
    let mut flows: Vec<FlowRecord> = workload.flows().iter().map(FlowRecord::new).collect();
    let mut arrived = vec![false; flows.len()];
    for sent in reports.iter().flat_map(|report| &report.sent) {
        let Some(record) = flows.get_mut(sent.flow as usize) else { continue };
        let at = |ps: u64| Time::ZERO + Span::from_ps(ps);
        (record.start, record.end) = (sent.start.map(at), sent.end.map(at));
        record.retransmitted = sent.retransmitted;
    }
    for index in reports.iter().flat_map(|report| &report.received) {
        arrived[*index as usize] = true;
    }
    let lines = |of: fn(&HostReport) -> &Vec<String>| {
        let line = |(host, report): (&u32, &HostReport)| -> Vec<String> {
            of(report).iter().map(|line| format!("host {host}: {line}")).collect()
        };
        hosts.iter().zip(&reports).flat_map(line).collect::<Vec<String>>()
    };
    let mut payload_errors = lines(|report| &report.wrong);
    let lost = flows.iter().zip(&arrived).filter(|(flow, arrived)| flow.end.is_some() && !**arrived);
    payload_errors.extend(lost.map(|(flow, _)| format!("flow {} never arrived", flow.id)));
    let idle = flows.iter().filter(|flow| flow.start.is_none());
    let idle: Vec<String> =
        idle.map(|flow| format!("flow {} from host {} has not been started", flow.id, flow.src)).collect();
    let stuck = lines(|report| &report.failures).into_iter().chain(lines(|report| &report.waits)).chain(idle);
    let mut packets = PacketCounters::default();
    for PacketCounters { data, retransmitted, dropped, acks, nacks, .. } in
        reports.iter().map(|report| report.packets.into())
    {
        packets.data += data;
        packets.retransmitted += retransmitted;
        packets.dropped += dropped;
        packets.acks += acks;
        packets.nacks += nacks;
    }
    packets.trimmed = counters.trimmed;
    packets.ecn_marked = counters.marked;
    packets.dropped += counters.missing();
    let end = flows.iter().filter_map(|flow| flow.end).reduce(Time::latest).unwrap_or(Time::ZERO);
    RunReport {
        packets,
        timeouts: reports.iter().map(|report| report.timeouts).sum(),
        events: reports.iter().map(|report| report.frames).sum(),
        end,
        endpoints: hosts.len() as u32,
        footprint: reports.iter().map(|report| Footprint::from(report.footprint)).sum(),
        // In this process; each host's has those of its own flows besides.
        plan: workload.bytes() + (size_of_val(&flows[..]) + size_of_val(&arrived[..])) as u64,
        // As in one process: the simulation's is put in its place.
        bound: (Span::ZERO, String::new()),
        stuck: stuck.collect(),
        leaks: lines(|report| &report.leaks),
        payload_errors,
        flows,
    }
}
