//! A host of a run in a process of its own.

use super::message::{FromHost, Setup, ToHost};
use super::monotonic_ns;
use super::paced::PacedPort;
use super::pipe::Lines;
use crate::Failure;
use crate::live::{self, HostReport, HostWork, LiveHost, Participants};
use crate::options::RunArgs;
use crate::port_spec::{AnyPort, PeerAddress, PeerSpec, PortOptions, PortSpec};
use crate::testbed::HostFacts;
use crate::trace::LiveTrace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use weft_cc::{Span, Time};
use weft_stack::worker::{Clock, HostAddr, Worker};
use weft_testbed::sim::RunConfig;
use weft_testbed::soft;
use weft_testbed::topology::HostId;

/// How long the fabric's end of the link may take to appear.
const LINK_WAIT: Duration = Duration::from_secs(20);
/// The least time by which a host decides ahead of its link: it may be without its core for so long at no cost.
const AHEAD: Span = Span::from_us(600);
/// How many times a host looks for frames in a round trip of the network, and the longest time between two looks. Being
/// woken by each frame, where ports can do that, would cost more than two cores have left with that many hosts.
const LOOKS: u64 = 64;
const LONGEST_SLEEP: Span = Span::from_us(500);
/// Turns of the loop after which a host that is never idle looks for messages of the parent.
const ATTEND: u32 = 64;

/// Plays host `host` of the run that `config` describes, for the process `parent`, until that ends the run.
///
/// # Errors
/// The host cannot be set up as the parent asks, or the parent is gone.
pub(crate) fn be_host(parent: u32, host: u32, config: &RunConfig, args: &RunArgs) -> Result<(), Failure> {
    crate::parent::end_with(parent, Signal::KILL)?;
    let trace = args.trace.of_host(host).begin(&args.trace_host)?;
    let mut lines = Lines::new(std::io::stdin().as_fd()).map_err(|error| gone(&error))?;
    let setup: Setup = lines.wait().map_err(|error| gone(&error))?;
    let mut this = HostProcess::new(config, host, &setup, lines)?;
    if let Some(trace) = &trace {
        this.trace(trace, &setup);
    }
    print_line(&FromHost::Ready)?;
    this.run()?;
    let traced = trace.map_or(Ok(()), LiveTrace::finish);
    let report = HostReport::new(this.number, this.work, &this.worker);
    print_line(&FromHost::Report(Box::new(report)))?;
    traced
}

fn gone(error: &std::io::Error) -> Failure {
    Failure::Run(format!("the process of the switches: {error}"))
}

fn print_line(message: &FromHost) -> Result<(), Failure> {
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line).and_then(|()| out.flush()).map_err(|error| gone(&error))
}

struct HostProcess<'a> {
    number: u32,
    worker: Worker<PacedPort<AnyPort>>,
    work: HostWork<'a>,
    lines: Lines,
    /// The longest sleep between two looks for frames.
    sleep: Span,
    /// Turns until the next look for messages of the parent; 0 if there are some.
    attend: u32,
    finished: bool,
}

impl<'a> HostProcess<'a> {
    fn new(
        config: &'a RunConfig,
        number: u32,
        setup: &Setup,
        lines: Lines,
    ) -> Result<HostProcess<'a>, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::Run(error.to_string());
        let clock = Clock::new();
        let own = setup.hosts.iter().position(|facts| facts.host == number);
        let own = own.ok_or_else(|| Failure::Run("not one of the hosts".to_owned()))?;
        let (port, places) = open(own, &setup.hosts)?;
        port.port.wait_for_link(LINK_WAIT).map_err(Failure::Run)?;
        let numbers: Vec<u32> = setup.hosts.iter().map(|facts| facts.host).collect();
        let endpoint = soft::endpoint(config, numbers.iter().copied().map(HostId));
        let endpoint = endpoint.with_zones(|zone| zone.paths = zone.paths.min(port.info.paths));
        let endpoint = Arc::new(endpoint);
        let rate = config.topology.host_rate();
        let ahead = 1 + AHEAD.as_ps().div_ceil(rate.time_for(config.wire_mtu()).as_ps().max(1)).clamp(1, 15);
        let port = PacedPort::new(port.port, rate, ahead as usize, clock).map_err(|error| failed(&error))?;
        let host = LiveHost { number, host: places[own], port };
        let mut worker = live::endpoint(config.seed, &endpoint, host, own as u32, &places, clock)
            .map_err(|error| failed(&error))?;
        let participants = Participants::new(&config.workload, &numbers);
        let mut work =
            HostWork::new(config, &participants, number, worker.fep_mut()).map_err(|error| failed(&error))?;
        if let Some(flows) = work.flows() {
            // A host does not hear when a flow to it starts elsewhere.
            flows.expect_all(worker.fep_mut()).map_err(|error| failed(&error))?;
        }
        let sleep = Span::from_ps(config.network_rtt().as_ps() / LOOKS).min(LONGEST_SLEEP);
        Ok(HostProcess { number, worker, work, lines, sleep, attend: 0, finished: false })
    }

    /// Turns the loop until the parent ends the run.
    fn run(&mut self) -> Result<(), Failure> {
        while !self.finished {
            if self.attend == 0 {
                self.listen()?;
                self.attend = ATTEND;
            }
            self.attend -= 1;
            let mut idle = live::drive(&mut self.worker);
            let now = self.worker.clock().now();
            while let Some(flow) = self.work.next_due(now) {
                self.start(now, flow);
            }
            idle &= !self.work.collect(now, self.worker.fep_mut());
            while let Some(news) = self.work.poll_news() {
                print_line(&FromHost::News(news))?;
            }
            if idle {
                self.rest();
            }
        }
        Ok(())
    }

    fn start(&mut self, now: Time, flow: u32) {
        if let Some(flows) = self.work.flows() {
            flows.start(now, flow, self.worker.fep_mut());
        }
    }

    fn trace(&mut self, trace: &LiveTrace, setup: &Setup) {
        let numbers = Some(setup.hosts.iter().map(|facts| facts.host).collect());
        if let Some(subscriber) = trace.subscriber(self.number, &numbers) {
            self.worker.fep_mut().subscribe(subscriber);
        }
    }

    /// Carries out the parent's messages.
    fn listen(&mut self) -> Result<(), Failure> {
        while let Some(message) = self.lines.next().map_err(|error| gone(&error))? {
            let now = self.worker.clock().now();
            match message {
                ToHost::Begin(at) => {
                    self.work.begin(now + Span::from_ns(at.saturating_sub(monotonic_ns())));
                }
                ToHost::Start(flow) => self.start(now, flow),
                ToHost::Finish => self.finished = true,
            }
        }
        Ok(())
    }

    /// Sleeps until something is due, a message of the parent arrives, or it is time to look for frames.
    fn rest(&mut self) {
        let now = self.worker.clock().now();
        let fep = self.worker.fep();
        let buffer = if fep.wants_to_transmit() { self.worker.port().next_free() } else { None };
        let due = [fep.poll_timeout(), buffer, self.work.next_timer()];
        let due = match due.into_iter().flatten().reduce(Time::earliest) {
            Some(at) if now.is_at_or_after(at) => return,
            Some(at) => at.since(now),
            None => self.sleep,
        };
        let mut fds = [PollFd::new(&self.lines, PollFlags::IN)];
        let ns = (due.min(self.sleep).as_ps() / 1_000) as i64;
        let timeout = Timespec { tv_sec: 0, tv_nsec: ns };
        // A signal ends it early, which is harmless.
        if poll(&mut fds, Some(&timeout)).unwrap_or(0) > 0 {
            self.attend = 0;
        }
    }
}

/// Opens the port of the host at `own`, and resolves the addresses of all hosts.
fn open(own: usize, hosts: &[HostFacts]) -> Result<(crate::port_spec::OpenPort, Vec<HostAddr>), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Run(error.to_string());
    let facts = &hosts[own];
    let spec: PortSpec = facts.port.parse().map_err(|error| failed(&error))?;
    let mtu = u16::try_from(facts.mtu).ok();
    let options = PortOptions { ip: facts.ip, mtu, ..PortOptions::default() };
    let mut port = options.open(&spec).map_err(Failure::Run)?;
    let mut places = Vec::new();
    for (place, facts) in hosts.iter().enumerate() {
        if place == own {
            places.push(port.info.host);
            continue;
        }
        let peer: PeerSpec = facts.called.parse().map_err(|error| failed(&error))?;
        match port.meet(&peer).map_err(|error| failed(&error))? {
            PeerAddress::Known(known) => places.push(known),
            PeerAddress::ToBeAsked(ip) => {
                return Err(Failure::Run(format!("nobody knows the Ethernet address of {ip}")));
            }
        }
    }
    Ok((port, places))
}
