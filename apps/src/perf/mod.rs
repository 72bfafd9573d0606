//! `weft perf`: how fast two endpoints are, over any port.
//!
//! A client asks a server for a test over weft itself ([`control`]), sends its messages from memory of an
//! application to memory of an application, and both print what they have seen. Both are state machines
//! ([`client`], [`server`]) that a loop drives ([`drive`]): each in its own process, or both in this one,
//! on one thread or two.

mod args;
mod client;
mod control;
mod drive;
mod endpoint;
mod measure;
mod memory;
mod pair;
mod pattern;
mod plan;
mod report;
mod sequence;
mod server;

pub(crate) use args::{EndArgs, PerfArgs, PortArgs};
pub(crate) use endpoint::Endpoint;

use crate::Failure;
use crate::port_spec::OpenPort;
use crate::trace;
use args::{ClientArgs, OutputArgs, PerfCommand, ServerArgs};
use client::Client;
use drive::Stop;
use plan::Test;
use report::{EndReport, Expected, Report};
use server::{Server, ServerOptions};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft_stack::packet::Addr;
use weft_stack::worker::{Strangers, pin_to};

/// The endpoints' own addresses in their books.
const OWN: Addr = Addr(0);
const SERVER: Addr = Addr(1);

/// Does what `args` say.
pub(crate) fn perf(args: &PerfArgs) -> Result<(), Failure> {
    match &args.command {
        PerfCommand::Server(args) => serve(args),
        PerfCommand::Client(args) => ask(args),
        PerfCommand::Pair(args) => pair::run(args),
    }
}

fn serve(args: &ServerArgs) -> Result<(), Failure> {
    check_cores(&args.end, 1)?;
    let mut output = Output::open(&args.output)?;
    let trace = args.trace.begin(&[])?;
    // Before there is a socket that would be left behind.
    let stop = Stop::on_signals()?;
    let open = open(&args.port)?;
    let endpoint = Endpoint::new(&args.end, &open)?;
    let strangers = if args.peers.is_empty() { Strangers::Learn } else { Strangers::Refuse };
    let peers: Vec<_> = (1..).map(Addr).zip(args.peers.iter().copied()).collect();
    let (ip, mtu) = (open.info.host.ip, open.mtu());
    let mut worker = endpoint.worker(open, OWN, &peers, strangers)?;
    trace::attach(trace.as_ref(), &mut worker, OWN.0);
    worker.set_idle(args.end.idle.into());
    pin(&args.end, 0)?;
    let port = args.port.spec.to_string();
    for notice in endpoint.notices(&worker) {
        output.say(&format!("note: {notice}\n"))?;
    }
    output.say(&format!("waiting for clients at {ip} ({port}, MTU {mtu})\n"))?;
    let options = ServerOptions {
        once: args.once,
        wait: args.wait,
        memory: args.memory,
        credit: endpoint.cc.uses_credit(),
        payload: endpoint.setup.payload,
        room: endpoint.setup.longest_payload,
        patience: args.end.patience,
        shares_thread: false,
    };
    let sink = Box::new(|test: &Test, client: &str, seen: EndReport| {
        let expected = Expected::on(endpoint.setup.link.known(), test, endpoint.setup.overhead.into());
        let report = Report { server: Some(seen), ..Report::new(test, &port, client, expected) };
        output.report(&report)?;
        // The next client's test may be a better one.
        if let Some(fault) = report.fault() {
            eprintln!("weft: {fault}");
        }
        Ok(())
    });
    let now = worker.clock().now();
    let outcome =
        match drive::run(&mut worker, &mut Server::new(options, sink, now), args.end.patience, &stop) {
            // How a server ends that was not told when to.
            Err(Failure::Interrupted { .. }) if !args.once => Ok(()),
            outcome => outcome,
        };
    trace::end(trace, outcome)
}

fn ask(args: &ClientArgs) -> Result<(), Failure> {
    check_cores(&args.end, 1)?;
    let mut output = Output::open(&args.output)?;
    let trace = args.trace.begin(&[])?;
    let mut open = open(&args.port)?;
    let endpoint = Endpoint::new(&args.end, &open)?;
    let test = Test::new(&args.test, endpoint.setup.payload, endpoint.setup.longest_payload, &endpoint.cc)
        .map_err(Failure::Usage)?;
    let memory = client::memory(&test, &mut open.port)?;
    let patience = Duration::from_nanos(args.end.patience.as_ps() / 1000);
    open.port.wait_for_link(patience).map_err(Failure::Run)?;
    let mut worker = endpoint.worker(open, OWN, &[(SERVER, args.server)], Strangers::Refuse)?;
    trace::attach(trace.as_ref(), &mut worker, OWN.0);
    worker.set_idle(args.end.idle.into());
    pin(&args.end, 0)?;
    endpoint::reach(&mut worker, SERVER, &args.server, args.end.patience)?;
    let name = args.server.ip.to_string();
    let now = worker.clock().now();
    let mut client = Client::new(test.clone(), memory, SERVER, name.clone(), args.end.patience, now);
    drive::run(&mut worker, &mut client, args.end.patience, &Stop::on_signals()?)?;
    let expected = Expected::on(endpoint.setup.link.known(), &test, endpoint.setup.overhead.into());
    let report = Report {
        client: Some(client.report()),
        server: client.server_report(),
        latency: client.latency(),
        congestion: client.congestion(),
        notices: endpoint.notices(&worker),
        ..Report::new(&test, &args.port.spec.to_string(), &name, expected)
    };
    output.report(&report)?;
    trace::end(trace, report.fault().map_or(Ok(()), |fault| Err(Failure::Run(fault))))
}

pub(crate) fn open(args: &PortArgs) -> Result<OpenPort, Failure> {
    args.options.open(&args.spec).map_err(Failure::Run)
}

/// Refuses more cores than there are workers.
fn check_cores(args: &EndArgs, workers: usize) -> Result<(), Failure> {
    let cores = args.cores.len();
    if cores > workers {
        return Err(Failure::Usage(format!("--core: {cores} cores are named; expected at most {workers}")));
    }
    Ok(())
}

/// Pins the calling thread to the `nth` of the cores that were named, if it was.
pub(crate) fn pin(args: &EndArgs, nth: usize) -> Result<(), Failure> {
    match args.cores.get(nth) {
        Some(core) => pin_to(*core).map_err(|error| Failure::Run(format!("--core {core}: {error}"))),
        None => Ok(()),
    }
}

/// Where results go.
struct Output {
    json: Option<(PathBuf, Box<dyn Write + Send>)>,
    /// Whether standard output is JSON's alone.
    quiet: bool,
}

impl Output {
    /// Before the test: results that cannot be written should not cost one.
    fn open(args: &OutputArgs) -> Result<Output, Failure> {
        let quiet = args.json.as_deref() == Some(Path::new("-"));
        let json: Option<(PathBuf, Box<dyn Write + Send>)> = match &args.json {
            Some(path) if quiet => Some((path.clone(), Box::new(io::stdout()))),
            Some(path) => {
                let file =
                    File::create(path).map_err(|e| Failure::Run(format!("{}: {e}", path.display())))?;
                Some((path.clone(), Box::new(file)))
            }
            None => None,
        };
        Ok(Output { json, quiet })
    }

    fn say(&self, text: &str) -> Result<(), Failure> {
        if self.quiet {
            return Ok(());
        }
        crate::print(text.as_bytes()).map_err(|error| Failure::Run(format!("standard output: {error}")))
    }

    fn report(&mut self, report: &Report) -> Result<(), Failure> {
        self.say(&report.text())?;
        let Some((path, out)) = &mut self.json else { return Ok(()) };
        let mut line = serde_json::to_vec(report).unwrap_or_default();
        line.push(b'\n');
        let written = out.write_all(&line).and_then(|()| out.flush());
        written.map_err(|error| Failure::Run(format!("{}: {error}", path.display())))
    }
}
