//! A rank of `weft matrix`: the flows of a connection matrix as messages over any provider of libfabric.
//!
//! `weft matrix` starts this program in each process of a job, and makes a report of what that of rank 0 prints: one
//! [`Results`] as JSON. Ranks meet over TCP ([`control`]); a launcher says where ([`bootstrap`]).

mod bootstrap;
mod control;
mod fabric;
mod flows;
mod line;
mod triggers;

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bootstrap::{HostList, PATIENCE};
use clap::Parser;
use control::{Control, Hello, Job, Part, ToRank, ToRoot};
use fabric::{Event, Fabric, Word};
use flows::Flows;
use serde::Serialize;
use triggers::Owners;
use weft_cc::Span;
use weft_testbed::workload::{CmOptions, Workload, parse_cm};

/// Words of rank 0 are looked for after so many looks at the endpoint, since these have to be quick.
const LOOKS: u32 = 16;
/// Looks at an endpoint where nothing happens before other processes get the core.
const IDLE: u32 = 64;

/// A rank of `weft matrix`, which starts this program.
#[derive(Debug, Parser)]
#[command(name = "weft-matrix", version)]
struct Args {
    /// The connection matrix.
    matrix: PathBuf,
    /// The provider of libfabric.
    #[arg(long)]
    provider: String,
    /// The hosts of all ranks.
    #[arg(long, value_delimiter = ',', requires = "rank")]
    hosts: Vec<String>,
    /// This process's rank.
    #[arg(long, requires = "hosts")]
    rank: Option<u32>,
    /// The TCP port of rank 0.
    #[arg(long, default_value_t = 4794)]
    port: u16,
    /// When the run is over, done or not, milliseconds.
    #[arg(long)]
    until_ms: u64,
    /// Whether all bytes are compared.
    #[arg(long)]
    verify: bool,
    /// The process with which this one ends.
    #[arg(long)]
    parent: Option<u32>,
}

/// Why a rank has not done its part.
#[derive(Debug)]
enum Failure {
    /// The options make no sense.
    Usage(String),
    /// The run failed.
    Run(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Failure::Usage(text) | Failure::Run(text)) = self;
        f.write_str(text)
    }
}

/// The results of a run, as rank 0 prints them.
#[derive(Serialize)]
struct Results {
    /// The provider, as libfabric names it.
    provider: String,
    ranks: u32,
    /// In the order of the matrix.
    flows: Vec<Row>,
    /// Flows that arrived other than they were sent.
    wrong: Vec<String>,
}

/// A flow; times since its sender has begun, ps.
#[derive(Serialize)]
struct Row {
    id: u32,
    src: u32,
    dst: u32,
    bytes: u64,
    start: Option<u64>,
    end: Option<u64>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("weft: {failure}");
            ExitCode::from(match failure {
                Failure::Usage(_) => 2,
                Failure::Run(_) => 1,
            })
        }
    }
}

fn run(args: &Args) -> Result<(), Failure> {
    args.parent.map_or(Ok(()), end_with)?;
    let (workload, hash) = read(args)?;
    let hosts = args.rank.map(|rank| HostList::new(args.hosts.clone(), rank, args.port)).transpose()?;
    let mut launcher = bootstrap::launcher(hosts)?;
    let (rank, ranks) = (launcher.rank(), launcher.size());
    check(&workload, &args.matrix.display().to_string(), ranks)?;
    let (meeting, token) = launcher.meet()?;
    let job = Job { ranks, matrix: hash, provider: args.provider.clone(), verify: args.verify };
    let hello = Hello { token, rank, job };
    let owners = Owners::of(&workload);
    let until = Duration::from_millis(args.until_ms);
    let mut control = Control::meet(meeting, &hello, &workload, &owners, until)?;
    let mut flows = Flows::new(&workload, &owners, rank, args.verify);
    match take_part(args, rank, &mut flows, &mut control) {
        Ok(provider) => {
            if let Some(parts) = control.into_parts() {
                print(&results(provider, ranks, &workload, &parts))?;
            }
            Ok(())
        }
        Err(failure) => {
            control.fail(rank, &failure);
            Err(failure)
        }
    }
}

/// Arranges that this process ends when `parent`, which has started it, does.
fn end_with(parent: u32) -> Result<(), Failure> {
    // SAFETY: it takes a number.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(Failure::Run(format!("prctl: {}", std::io::Error::last_os_error())));
    }
    // The parent may have ended before the call above.
    if std::os::unix::process::parent_id() == parent {
        return Ok(());
    }
    Err(Failure::Run(format!("process {parent}, which has started this one, has ended")))
}

/// The workload, and a number that depends on every byte of its file.
fn read(args: &Args) -> Result<(Workload, u64), Failure> {
    let name = args.matrix.display().to_string();
    let text =
        std::fs::read_to_string(&args.matrix).map_err(|error| Failure::Run(format!("{name}: {error}")))?;
    let workload =
        parse_cm(&name, &text, CmOptions::default()).map_err(|error| Failure::Run(error.to_string()))?;
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    Ok((workload, hasher.finish()))
}

/// Refuses workloads that no provider of libfabric can do, and jobs of another size.
fn check(workload: &Workload, name: &str, ranks: u32) -> Result<(), Failure> {
    let refuse = |what: String| Err(Failure::Run(format!("{name}: {what}")));
    if workload.hosts() != ranks {
        let nodes = workload.hosts();
        return refuse(format!(
            "the matrix has {nodes} nodes, and the job {ranks} ranks; expected a rank for each node"
        ));
    }
    if workload.priorities() > 1 || !workload.backgrounds().is_empty() || !workload.failures().is_empty() {
        return refuse("`prio`, `rate` and failed links are not for messages of libfabric".to_owned());
    }
    if workload.connections().iter().any(|connection| connection.pool.get() > 1) {
        return refuse("`pool` is not for messages of libfabric".to_owned());
    }
    let most = weft_testbed::workload::MAX_MESSAGE_BYTES;
    match workload.flows().iter().find(|flow| flow.bytes > most) {
        Some(flow) => refuse(format!("flow {} has {} bytes; expected at most {most}", flow.id, flow.bytes)),
        None => Ok(()),
    }
}

/// The part of this rank, from the opening of its endpoint to the end of the run. Returns the provider's name.
fn take_part<'w>(
    args: &Args,
    rank: u32,
    flows: &mut Flows<'w>,
    control: &mut Control<'w>,
) -> Result<String, Failure> {
    let longest = flows.longest();
    let mut fabric = Fabric::open(&args.provider, flows.arriving(), flows.leaving(), longest)?;
    flows.prepare(&mut fabric)?;
    control.tell(ToRoot::Address(fabric.name()?))?;
    let mut rank = Rank { rank, fabric, flows, control, begun: None };
    rank.meet_peers()?;
    rank.send_flows()?;
    Ok(rank.fabric.provider())
}

/// A rank at work.
struct Rank<'a, 'w> {
    rank: u32,
    fabric: Fabric,
    flows: &'a mut Flows<'w>,
    control: &'a mut Control<'w>,
    begun: Option<Instant>,
}

impl Rank<'_, '_> {
    /// Gets to know all ranks, and reaches those to whom flows go: providers connect when they first send, and addresses
    /// that do not work show before the run. Returns when the run begins.
    fn meet_peers(&mut self) -> Result<(), Failure> {
        let end = Instant::now() + PATIENCE;
        let mut missing: Option<BTreeSet<u32>> = None;
        let mut told = false;
        while self.begun.is_none() {
            match self.control.next()? {
                Some(ToRank::Addresses(names)) => {
                    self.fabric.know(&names)?;
                    let destinations = self.flows.destinations();
                    for peer in &destinations {
                        self.fabric.say(*peer, Word::Hello(self.rank))?;
                    }
                    missing = Some(destinations);
                }
                Some(ToRank::Go) => self.begun = Some(Instant::now()),
                _ => {}
            }
            // Nobody may be answered whose address is not known yet.
            let Some(missing) = &mut missing else { continue };
            match self.fabric.poll()? {
                Some(Event::Word(Word::Hello(peer))) => self.fabric.say(peer, Word::Here(self.rank))?,
                Some(Event::Word(Word::Here(peer))) => drop(missing.remove(&peer)),
                Some(Event::Failed(to, what)) => return Err(failed(to, &what)),
                // Its sender has heard of the beginning first.
                Some(Event::Received(tag, bytes)) if told => {
                    let begun = Instant::now();
                    self.begun = Some(begun);
                    self.flows.received(tag, &bytes, || span_of(begun.elapsed()), &mut self.fabric)?;
                }
                Some(Event::Word(Word::Arrived(_)) | Event::Received(..)) => {
                    return Err(Failure::Run("a flow has arrived before the run".to_owned()));
                }
                None => std::thread::yield_now(),
            }
            if missing.is_empty() && !told {
                told = true;
                self.control.tell(ToRoot::Ready)?;
            }
            if Instant::now() > end && !told {
                let names: Vec<String> = missing.iter().map(u32::to_string).collect();
                let (names, s) = (names.join(", "), PATIENCE.as_secs());
                return Err(Failure::Run(format!("rank(s) {names} do not answer within {s} s")));
            }
        }
        Ok(())
    }

    fn send_flows(&mut self) -> Result<(), Failure> {
        let begun = self.begun.unwrap_or_else(Instant::now);
        let since = || span_of(begun.elapsed());
        let (mut looks, mut idle, mut told) = (0u32, 0u32, false);
        loop {
            let busy = self.flows.start_due(since, &mut self.fabric)? | self.look(since)?;
            while let Some(trigger) = self.flows.next_activated() {
                self.control.tell(ToRoot::Activated(trigger.index() as u32))?;
            }
            if self.flows.are_done() && !told {
                told = true;
                self.control.tell(ToRoot::Done(self.flows.part()))?;
            }
            looks += 1;
            idle = if busy { 0 } else { idle + 1 };
            if idle >= IDLE {
                std::thread::yield_now();
            }
            if looks.is_multiple_of(LOOKS) || idle >= IDLE {
                match self.control.next()? {
                    Some(ToRank::Start(flow)) => self.flows.start(flow, since, &mut self.fabric)?,
                    Some(ToRank::Stop) if !told => {
                        told = true;
                        self.control.tell(ToRoot::Done(self.flows.part()))?;
                    }
                    Some(ToRank::End) => return Ok(()),
                    _ => {}
                }
            }
        }
    }

    /// Takes in what has happened at the endpoint. Returns whether anything has.
    fn look(&mut self, since: impl Fn() -> Span) -> Result<bool, Failure> {
        let Some(event) = self.fabric.poll()? else { return Ok(false) };
        match event {
            Event::Received(tag, bytes) => self.flows.received(tag, &bytes, since, &mut self.fabric)?,
            Event::Word(Word::Arrived(flow)) => self.flows.arrived(flow, since, &mut self.fabric)?,
            Event::Word(Word::Hello(peer)) => self.fabric.say(peer, Word::Here(self.rank))?,
            Event::Word(Word::Here(_)) => {}
            Event::Failed(to, what) => return Err(failed(to, &what)),
        }
        Ok(true)
    }
}

fn failed(to: Option<u32>, what: &str) -> Failure {
    let subject = to.map_or_else(|| "a receive or a word".to_owned(), |to| format!("a message to rank {to}"));
    Failure::Run(format!("{subject}: {what}"))
}

fn results(provider: String, ranks: u32, workload: &Workload, parts: &[Part]) -> Results {
    let mut flows: Vec<Row> = workload
        .flows()
        .iter()
        .map(|flow| Row {
            id: flow.id,
            src: flow.src.0,
            dst: flow.dst.0,
            bytes: flow.bytes,
            start: None,
            end: None,
        })
        .collect();
    for sent in parts.iter().flat_map(|part| &part.sent) {
        if let Some(row) = flows.get_mut(sent.flow as usize) {
            (row.start, row.end) = (sent.start, sent.end);
        }
    }
    Results { provider, ranks, flows, wrong: parts.iter().flat_map(|part| part.wrong.clone()).collect() }
}

fn print(results: &Results) -> Result<(), Failure> {
    let out = std::io::stdout().lock();
    serde_json::to_writer(out, results).map_err(|error| Failure::Run(format!("standard output: {error}")))
}

fn span_of(duration: Duration) -> Span {
    Span::from_ps(duration.as_nanos().saturating_mul(1000).min(u128::from(u64::MAX)) as u64)
}
