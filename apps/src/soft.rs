//! `weft run --on soft`: the workload between endpoints in this process, over a fabric of software switches
//! that trims, marks, delays and fails as the simulated one does; real payload, compared byte by byte, in real
//! time.
//!
//! One thread drives the fabric, another all endpoints; see docs/testbed.md.

pub(crate) mod processes;

use crate::Failure;
use crate::backoff::Backoff;
use crate::interrupt::Interrupt;
use crate::live::{self, Live, LiveHost};
use crate::trace::LiveTrace;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use weft_cc::Time;
use weft_stack::port::memory::MemoryPort;
use weft_stack::wire::ethernet::MacAddr;
use weft_stack::worker::{Clock, HostAddr};
use weft_testbed::sim::{self, FaultPlan, PayloadMode, RunConfig, RunProgress, RunReport};
use weft_testbed::soft::{self, HostPort, SoftCounters, SoftFabric, SoftOptions, host_link};
use weft_testbed::topology::{HostId, Topology};

/// The default fabric.
pub(crate) const DEFAULT_TOPOLOGY: &str = "leaf-spine:hosts=16,leaves=4,spines=4";
/// The hosts of that fabric.
pub(crate) const DEFAULT_HOSTS: u32 = 16;
/// Payload bytes of a full packet by default.
pub(crate) const DEFAULT_MTU: u32 = 4_096;
/// The rate, bit/s, at which all hosts together may send full packets of [`DEFAULT_MTU`] for two cores to carry them with
/// time to spare: 95,000 packets a second between threads of a process, and 24,000 between processes, where each packet costs
/// four system calls and their share of as many changes of process. Shorter packets cost as much each.
const TWO_CORES: u64 = 3_200_000_000;
const TWO_CORES_PROCESSES: u64 = 800_000_000;

/// Packets that an endpoint may keep ahead of its link: the one that is leaving, and one for the time until the
/// endpoint's next turn.
const AHEAD: usize = 2;

/// How many times slower than described a fabric must run for two cores to carry it, with hosts in threads of a process
/// or in processes of their own.
pub(crate) fn slow_motion(topology: &Topology, mtu: u32, processes: bool) -> u32 {
    let two_cores = if processes { TWO_CORES_PROCESSES } else { TWO_CORES };
    let sent = u128::from(topology.host_rate().as_bps()) * u128::from(topology.hosts());
    let carried = u128::from(two_cores) * u128::from(mtu.min(DEFAULT_MTU)) / u128::from(DEFAULT_MTU);
    u32::try_from(sent.div_ceil(carried.max(1))).unwrap_or(u32::MAX).clamp(1, 1_000_000)
}

/// Runs all flows of `config`'s workload, or its program. Returns the report, and what the fabric has done.
///
/// # Errors
/// A configuration that cannot work.
pub(crate) fn run(
    config: &RunConfig,
    faults: &FaultPlan,
    trace: Option<&LiveTrace>,
    progress: &mut dyn FnMut(&RunProgress),
    interrupt: &Interrupt,
) -> Result<(RunReport, SoftCounters), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Run(format!("--on soft: {error}"));
    let mut fabric =
        SoftFabric::new(config, faults, SoftOptions::default(), Time::ZERO).map_err(|e| failed(&e))?;
    let numbers = live::hosts(config);
    let endpoints = Arc::new(soft::endpoint(config, numbers.iter().copied().map(HostId)));
    let attach = |host| attach(config, &mut fabric, host);
    let hosts: Result<Vec<_>, _> = numbers.into_iter().map(attach).collect();
    let mut live = Live::new(config, &endpoints, hosts?).map_err(|e| failed(&e))?;
    live.trace(trace);
    let counters = drive(&mut fabric, || live.run(progress, interrupt));
    Ok((with_switches(live.into_report(), &counters), counters))
}

/// The report of the endpoints, with what the switches have counted.
pub(crate) fn with_switches(mut report: RunReport, counters: &SoftCounters) -> RunReport {
    report.packets.trimmed = counters.trimmed;
    report.packets.ecn_marked = counters.marked;
    report.packets.dropped += counters.missing();
    (report.faults.lost, report.faults.corrupted) = (counters.lost, counters.corrupted);
    report
}

/// Simulates the same run.
///
/// # Errors
/// A configuration that cannot work, or a signal that has come meanwhile.
pub(crate) fn predict(
    config: &RunConfig,
    faults: &FaultPlan,
    interrupt: &Interrupt,
) -> Result<RunReport, Failure> {
    let config = RunConfig { payload: PayloadMode::Virtual, ..config.clone() };
    let options =
        sim::Options { faults: faults.clone(), stop: Some(interrupt.flag()), ..sim::Options::default() };
    let report = sim::run_with(&config, options)
        .map_err(|error| Failure::Run(format!("--on soft: the simulation: {error}")))?;
    interrupt.failure(" before the run began").map_or(Ok(report), Err)
}

/// Connects a host to the fabric.
fn attach(
    config: &RunConfig,
    fabric: &mut SoftFabric<MemoryPort>,
    host: u32,
) -> Result<LiveHost<HostPort>, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Run(format!("--on soft: host {host}: {error}"));
    let address = address(host);
    let (port, inner) =
        host_link(config.longest_packet(), address.mac.0, AHEAD).map_err(|error| failed(&error))?;
    fabric.attach(HostId(host), address.ip, inner).map_err(|error| failed(&error))?;
    Ok(LiveHost { number: host, host: address, port })
}

/// The addresses of a host in frames. There are at most 2²⁰ hosts.
fn address(host: u32) -> HostAddr {
    let [_, b, c, d] = (host + 1).to_be_bytes();
    HostAddr { mac: MacAddr([2, 0, 0, b, c, d]), ip: IpAddr::V4(Ipv4Addr::new(10, b, c, d)) }
}

/// Drives the fabric in a thread of its own while `work` lasts. Its time begins with that.
fn drive(fabric: &mut SoftFabric<MemoryPort>, work: impl FnOnce()) -> SoftCounters {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let switches = scope.spawn(|| {
            let (clock, mut backoff) = (Clock::new(), Backoff::default());
            fabric.begin(clock.now());
            while !done.load(Ordering::Relaxed) {
                if !fabric.poll(clock.now()) {
                    // The endpoints' thread may need this core.
                    backoff.give_way();
                }
            }
            fabric.counters()
        });
        {
            let _ends = AtEnd(&done);
            work();
        }
        switches.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Ends the fabric's thread, even if this one panics.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Notes on how punctual the fabric was, and on frames that it had no buffers for.
pub(crate) fn notes(counters: &SoftCounters) -> Vec<String> {
    let mean = counters.lateness.as_us_f64() / counters.events.max(1) as f64;
    let latest = counters.latest.as_us_f64();
    let mut notes =
        vec![format!("the switches were {mean:.0} µs behind their time on average, {latest:.0} µs at most")];
    if counters.starved > 0 {
        notes.push(format!("{} frames were lost for want of buffers", counters.starved));
    }
    notes
}

#[cfg(test)]
mod tests;
