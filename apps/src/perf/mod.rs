//! `weft perf`: how fast two endpoints are, over any port.
//!
//! A client asks a server for a test over weft itself ([`control`]), sends its messages from memory of an
//! application to memory of an application, and both print what they have seen. Both are state machines
//! ([`client`], [`server`]) over a [`weft::Endpoint`] that a loop drives ([`drive`]): each in its own process, or both in
//! this one, on one thread or two.

mod args;
mod client;
mod control;
mod crawl;
mod drive;
mod measure;
mod memory;
mod mode;
mod pair;
mod pattern;
mod plan;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod properties;
mod report;
mod sequence;
mod server;
mod setup;

pub(crate) use args::{EndArgs, PerfArgs, PortArgs, ZoneArgs};
pub(crate) use setup::EndSetup;

use crate::Failure;
use crate::interrupt::Interrupt;
use crate::output::OutputFile;
use crate::port_spec::OpenPort;
use crate::trace;
use args::{ClientArgs, OutputArgs, PerfCommand, ServerArgs};
use client::Client;
use drive::End;
use plan::Test;
use report::{EndReport, Expected, Report};
use server::{Server, ServerOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft::{Addr, Memory};
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
    let interrupt = Interrupt::on_signals()?;
    let open = open(&args.port)?;
    let setup = EndSetup::new(&args.end, &args.zone.zones, &open)?;
    let strangers = if args.peers.is_empty() { Strangers::Learn } else { Strangers::Refuse };
    let peers: Vec<_> = (1..).map(Addr).zip(args.peers.iter().copied()).collect();
    let (ip, mtu) = (open.info.host.ip, open.mtu());
    let mut worker = setup.worker(open, OWN, &peers, strangers)?;
    trace::attach(trace.as_ref(), &mut worker, OWN.0);
    worker.set_idle(args.end.idle.into());
    pin(&args.end, 0)?;
    let port = args.port.spec.to_string();
    for notice in setup.notices(&worker) {
        output.say(&format!("note: {notice}\n"))?;
    }
    output.say(&format!("waiting for clients at {ip} ({port}, MTU {mtu})\n"))?;
    let options = ServerOptions {
        once: args.once,
        wait: args.wait,
        memory: args.memory,
        payload: setup.setup.payload,
        room: setup.setup.longest_payload,
        patience: args.end.patience,
        shares_thread: false,
    };
    let sink = Box::new(|test: &Test, client: &str, seen: EndReport| {
        let expected = Expected::on(setup.setup.link.known(), test, setup.setup.overhead.into());
        let report = Report { server: Some(seen), ..Report::new(test, &port, client, expected) };
        output.report(&report)?;
        // The next client's test may be a better one.
        if let Some(fault) = report.fault() {
            eprintln!("weft: {fault}");
        }
        Ok(())
    });
    let mut server = Server::new(options, sink, worker.clock().now());
    // Messages are received into memory of each test's own.
    let mut endpoint = setup::endpoint(worker, Memory::default())?;
    let outcome = match drive::run(&mut endpoint, &mut server, args.end.patience, &interrupt) {
        // A server that was not told to end after a test ends with a signal.
        Ok(End::Interrupted) if args.once => interrupt.failure("").map_or(Ok(()), Err),
        Ok(End::Interrupted | End::Complete) => Ok(()),
        Err(failure) => Err(failure),
    };
    trace::end(trace, outcome)
}

fn ask(args: &ClientArgs) -> Result<(), Failure> {
    check_cores(&args.end, 1)?;
    let mut output = Output::open(&args.output)?;
    let trace = args.trace.begin(&[])?;
    let mut open = open(&args.port)?;
    let setup = EndSetup::new(&args.end, &args.zone.zones, &open)?;
    let cc = setup.cc_towards(args.server.ip);
    let test = Test::new(&args.test, setup.setup.payload, setup.setup.longest_payload, cc)
        .map_err(Failure::Usage)?;
    let memory = setup::memory(client::memory_of(&test), &mut open.port)?;
    let patience = Duration::from_nanos(args.end.patience.as_ps() / 1000);
    open.port.wait_for_link(patience).map_err(Failure::Run)?;
    let mut worker = setup.worker(open, OWN, &[(SERVER, args.server)], Strangers::Refuse)?;
    trace::attach(trace.as_ref(), &mut worker, OWN.0);
    worker.set_idle(args.end.idle.into());
    pin(&args.end, 0)?;
    setup::reach(&mut worker, SERVER, &args.server, args.end.patience)?;
    let notices = setup.notices(&worker);
    let name = args.server.ip.to_string();
    let mut client = Client::new(test.clone(), SERVER, name.clone(), args.end.patience, worker.clock());
    let mut endpoint = setup::endpoint(worker, memory)?;
    let interrupt = Interrupt::on_signals()?;
    let end = drive::run(&mut endpoint, &mut client, args.end.patience, &interrupt)?;
    let expected = Expected::on(setup.setup.link.known(), &test, setup.setup.overhead.into());
    let report = Report {
        client: Some(client.report()),
        server: client.server_report(),
        latency: client.latency(),
        congestion: client.congestion(),
        notices,
        ..Report::new(&test, &args.port.spec.to_string(), &name, expected)
    };
    let cut = (end == End::Interrupted).then_some(&interrupt);
    trace::end(trace, conclude(&mut output, &report, &client, cut))
}

/// Prints the report of a test, if anything was measured, and says how the test went; `cut` is the signal that ended it
/// early, if one did.
fn conclude(
    output: &mut Output,
    report: &Report,
    client: &Client,
    cut: Option<&Interrupt>,
) -> Result<(), Failure> {
    let measured = client.has_measured();
    if measured {
        output.report(report)?;
    }
    if let Some(fault) = report.fault() {
        return Err(Failure::Run(fault));
    }
    let text = if measured { ": the report ends there" } else { " before anything was measured" };
    cut.and_then(|interrupt| interrupt.failure(text)).map_or(Ok(()), Err)
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
    json: Option<Json>,
    /// Whether standard output is JSON's alone.
    quiet: bool,
}

/// Where results go as JSON.
struct Json {
    path: PathBuf,
    lines: Box<dyn Write + Send>,
    /// The file until it has its first result: earlier results under its name stay until then.
    begun: Option<OutputFile>,
}

impl Output {
    /// Before the test: results that cannot be written should not cost one.
    fn open(args: &OutputArgs) -> Result<Output, Failure> {
        let quiet = args.json.as_deref() == Some(Path::new("-"));
        let json = match &args.json {
            Some(path) if quiet => {
                Some(Json { path: path.clone(), lines: Box::new(io::stdout()), begun: None })
            }
            Some(path) => Some(Json::create(path).map_err(|error| named(path, &error))?),
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
        let Some(json) = &mut self.json else { return Ok(()) };
        json.write(report).map_err(|error| named(&json.path, &error))
    }
}

impl Json {
    fn create(path: &Path) -> io::Result<Json> {
        let file = OutputFile::create(path)?;
        Ok(Json { path: path.to_owned(), lines: Box::new(file.writer()?), begun: Some(file) })
    }

    fn write(&mut self, report: &Report) -> io::Result<()> {
        let mut line = serde_json::to_vec(report).unwrap_or_default();
        line.push(b'\n');
        self.lines.write_all(&line)?;
        self.lines.flush()?;
        self.begun.take().map_or(Ok(()), OutputFile::commit)
    }
}

fn named(path: &Path, error: &io::Error) -> Failure {
    Failure::Run(format!("{}: {error}", path.display()))
}
