//! What ranks tell each other beside their flows: addresses, when to begin, triggers, results, and that they are there. Rank
//! 0 hears all and tells all, itself included, over a TCP connection to each.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use weft_testbed::workload::{Agenda, TriggerIdx, Workload};

use crate::Failure;
use crate::bootstrap::{Meeting, PATIENCE};
use crate::line::Line;
use crate::span_of;
use crate::triggers::Owners;

/// How long a process at rank 0's port may take to say who it is.
const GREETING: Duration = Duration::from_secs(5);
/// Bytes of the longest greeting.
const LONGEST_GREETING: usize = 4096;
const CONNECT: Duration = Duration::from_secs(1);

/// The first word of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) token: u64,
    pub(crate) rank: u32,
    /// What must be the same at all ranks.
    pub(crate) job: Job,
}

/// What all ranks of a job must have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) ranks: u32,
    pub(crate) matrix: u64,
    pub(crate) provider: String,
    pub(crate) verify: bool,
}

/// A word of a rank to rank 0.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToRoot {
    /// The rank is there.
    Alive,
    /// The name of the rank's endpoint.
    Address(Vec<u8>),
    /// The rank has reached all to whom it sends.
    Ready,
    /// A flow has activated this trigger.
    Activated(u32),
    /// All flows from and to the rank have ended, or the run has.
    Done(Part),
    /// The rank cannot go on.
    Failed(String),
}

/// A word of rank 0.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum ToRank {
    /// Rank 0 is there.
    Alive,
    /// The names of all endpoints.
    Addresses(Vec<Vec<u8>>),
    /// The run begins.
    Go,
    /// This flow starts.
    Start(u32),
    /// Time is up: the rank says what it has.
    Stop,
    /// The run is over.
    End,
    /// The run has failed, for this reason.
    Abort(String),
}

/// The results of a rank.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Part {
    /// The flows from the rank.
    pub(crate) sent: Vec<Sent>,
    /// Flows to the rank that arrived other than they were sent.
    pub(crate) wrong: Vec<String>,
}

/// A flow as its sender sees it: its index, and times since the sender has begun, ps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sent {
    pub(crate) flow: u32,
    pub(crate) start: Option<u64>,
    pub(crate) end: Option<u64>,
}

/// A rank's way to rank 0, and back.
pub(crate) enum Control<'w> {
    /// This is rank 0.
    Root(Root<'w>),
    Rank(Line<ToRank, ToRoot>),
}

impl<'w> Control<'w> {
    /// Meets the other ranks. `until` is when the run is over, done or not.
    pub(crate) fn meet(
        meeting: Meeting,
        own: &Hello,
        workload: &'w Workload,
        owners: &Owners,
        until: Duration,
    ) -> Result<Control<'w>, Failure> {
        match meeting {
            Meeting::There(addresses) => Ok(Control::Rank(join(&addresses, own, PATIENCE)?)),
            Meeting::Here(listener) => {
                let lines = gather(&listener, own, PATIENCE)?;
                let agenda = Agenda::new(workload, |trigger| owners.is_shared(trigger));
                Ok(Control::Root(Root::new(lines, workload, agenda, until)))
            }
        }
    }

    pub(crate) fn tell(&mut self, word: ToRoot) -> Result<(), Failure> {
        match self {
            Control::Root(root) => root.take(0, word),
            Control::Rank(line) => line.say(&word).map_err(of_root),
        }
    }

    /// The next word from rank 0.
    pub(crate) fn next(&mut self) -> Result<Option<ToRank>, Failure> {
        let word = match self {
            Control::Root(root) => root.next()?,
            Control::Rank(line) => line.next(&ToRoot::Alive).map_err(of_root)?,
        };
        match word {
            Some(ToRank::Abort(reason)) => Err(Failure::Run(reason)),
            Some(ToRank::Alive) => Ok(None),
            word => Ok(word),
        }
    }

    /// This rank cannot go on: tells the others.
    pub(crate) fn fail(&mut self, own: u32, failure: &Failure) {
        match self {
            Control::Root(root) => root.abort(&failure.to_string()),
            Control::Rank(line) => {
                let _ = line.say(&ToRoot::Failed(format!("rank {own}: {failure}")));
                line.linger();
            }
        }
    }

    /// The results of all ranks, at rank 0.
    pub(crate) fn into_parts(self) -> Option<Vec<Part>> {
        match self {
            Control::Root(root) => Some(root.parts.into_iter().flatten().collect()),
            Control::Rank(_) => None,
        }
    }
}

fn of_root(what: String) -> Failure {
    Failure::Run(format!("rank 0 {what}"))
}

/// Rank 0's part for all ranks.
pub(crate) struct Root<'w> {
    /// To the ranks from 1 on.
    lines: Vec<Line<ToRoot, ToRank>>,
    workload: &'w Workload,
    /// The triggers that several ranks share.
    agenda: Agenda<'w>,
    own: VecDeque<ToRank>,
    addresses: Vec<Option<Vec<u8>>>,
    ready: usize,
    parts: Vec<Option<Part>>,
    begun: Option<Instant>,
    until: Duration,
    stopped: bool,
}

impl<'w> Root<'w> {
    fn new(
        lines: Vec<Line<ToRoot, ToRank>>,
        workload: &'w Workload,
        agenda: Agenda<'w>,
        until: Duration,
    ) -> Root<'w> {
        let ranks = lines.len() + 1;
        Root {
            lines,
            workload,
            agenda,
            own: VecDeque::new(),
            addresses: vec![None; ranks],
            ready: 0,
            parts: vec![None; ranks],
            begun: None,
            until,
            stopped: false,
        }
    }

    fn next(&mut self) -> Result<Option<ToRank>, Failure> {
        for rank in 1..=self.lines.len() {
            // Ranks that are done close their connections when they hear so.
            if self.parts.iter().all(Option::is_some) {
                break;
            }
            let word = self.lines[rank - 1].next(&ToRank::Alive);
            match word.map_err(|what| Failure::Run(format!("rank {rank} {what}"))) {
                Ok(None) => {}
                Ok(Some(word)) => self.take(rank, word)?,
                Err(failure) => {
                    self.abort(&failure.to_string());
                    return Err(failure);
                }
            }
        }
        if let Some(begun) = self.begun {
            for flow in self.agenda.due(span_of(begun.elapsed())) {
                self.start(flow)?;
            }
            if begun.elapsed() > self.until && !self.stopped {
                self.stopped = true;
                self.tell_all(&ToRank::Stop)?;
            }
        }
        Ok(self.own.pop_front())
    }

    fn take(&mut self, rank: usize, word: ToRoot) -> Result<(), Failure> {
        match word {
            ToRoot::Alive => Ok(()),
            ToRoot::Address(address) => {
                self.addresses[rank] = Some(address);
                let all: Option<Vec<Vec<u8>>> = self.addresses.iter().cloned().collect();
                all.map_or(Ok(()), |all| self.tell_all(&ToRank::Addresses(all)))
            }
            ToRoot::Ready => {
                self.ready += 1;
                if self.ready < self.parts.len() {
                    return Ok(());
                }
                self.begun = Some(Instant::now());
                self.tell_all(&ToRank::Go)
            }
            ToRoot::Activated(index) => {
                let since = span_of(self.begun.map_or(Duration::ZERO, |begun| begun.elapsed()));
                let trigger =
                    TriggerIdx::new(index).filter(|trigger| trigger.index() < self.workload.triggers().len());
                let flows = trigger.map_or(Vec::new(), |trigger| self.agenda.activate(since, trigger));
                flows.into_iter().try_for_each(|flow| self.start(flow))
            }
            ToRoot::Done(part) => {
                self.parts[rank] = Some(part);
                if self.parts.iter().any(Option::is_none) {
                    return Ok(());
                }
                self.tell_all(&ToRank::End)?;
                self.lines.iter_mut().for_each(Line::linger);
                Ok(())
            }
            ToRoot::Failed(reason) => {
                self.abort(&reason);
                Err(Failure::Run(reason))
            }
        }
    }

    fn start(&mut self, flow: u32) -> Result<(), Failure> {
        let source = self.workload.flows()[flow as usize].src.0 as usize;
        self.tell_one(source, ToRank::Start(flow))
    }

    fn tell_one(&mut self, rank: usize, word: ToRank) -> Result<(), Failure> {
        if rank == 0 {
            self.own.push_back(word);
            return Ok(());
        }
        self.lines[rank - 1].say(&word).map_err(|what| Failure::Run(format!("rank {rank} {what}")))
    }

    fn tell_all(&mut self, word: &ToRank) -> Result<(), Failure> {
        (0..self.parts.len()).try_for_each(|rank| self.tell_one(rank, word.clone()))
    }

    fn abort(&mut self, reason: &str) {
        for line in &mut self.lines {
            // One of them may be the reason.
            let _ = line.say(&ToRank::Abort(reason.to_owned()));
        }
        self.lines.iter_mut().for_each(Line::linger);
    }
}

/// Waits for all other ranks at `listener`.
fn gather(
    listener: &TcpListener,
    own: &Hello,
    patience: Duration,
) -> Result<Vec<Line<ToRoot, ToRank>>, Failure> {
    let failed = |error: std::io::Error| Failure::Run(format!("the port of rank 0: {error}"));
    listener.set_nonblocking(true).map_err(failed)?;
    let end = Instant::now() + patience;
    let mut lines: Vec<Option<Line<ToRoot, ToRank>>> = (1..own.job.ranks).map(|_| None).collect();
    while lines.iter().any(Option::is_none) {
        // However many connect that are none of this job.
        let is_over = Instant::now() >= end;
        match listener.accept() {
            Ok((stream, _)) if !is_over => {
                let Some((rank, stream)) = greet(stream, own, end)? else { continue };
                let place = &mut lines[rank as usize - 1];
                if place.replace(Line::new(stream).map_err(failed)?).is_some() {
                    return Err(Failure::Run(format!("two processes say that they are rank {rank}")));
                }
            }
            Err(_) if !is_over => std::thread::sleep(Duration::from_millis(2)),
            _ => {
                let missing: Vec<String> = (1..)
                    .zip(&lines)
                    .filter(|(_, line)| line.is_none())
                    .map(|(rank, _): (u32, _)| rank.to_string())
                    .collect();
                let (missing, s) = (missing.join(", "), patience.as_secs());
                return Err(Failure::Run(format!("rank(s) {missing} have not come within {s} s")));
            }
        }
    }
    Ok(lines.into_iter().flatten().collect())
}

/// Hears who has connected. None if it is nobody of this job.
fn greet(stream: TcpStream, own: &Hello, end: Instant) -> Result<Option<(u32, TcpStream)>, Failure> {
    let Some(hello) = exchange(&stream, own, end) else { return Ok(None) };
    if hello.token != own.token {
        return Ok(None);
    }
    let (rank, ranks) = (hello.rank, own.job.ranks);
    if hello.job != own.job {
        let (theirs, ours) = (describe(&hello.job), describe(&own.job));
        return Err(Failure::Run(format!("rank {rank} was started with {theirs}, rank 0 with {ours}")));
    }
    if rank == 0 || rank >= ranks {
        return Err(Failure::Run(format!(
            "a process says that it is rank {rank}; expected 1 to {}",
            ranks - 1
        )));
    }
    Ok(Some((rank, stream)))
}

fn describe(job: &Job) -> String {
    let Job { ranks, matrix, provider, verify } = job;
    let verify = if *verify { " --verify" } else { "" };
    format!("{ranks} ranks, --provider {provider}{verify} and a matrix whose hash is {matrix:x}")
}

/// Both ends say who they are. None if the other one does not, soon and before `end`.
fn exchange(stream: &TcpStream, own: &Hello, end: Instant) -> Option<Hello> {
    stream.set_nonblocking(false).ok()?;
    let end = end.min(Instant::now() + GREETING);
    let mut line = serde_json::to_vec(own).ok()?;
    line.push(b'\n');
    (&mut &*stream).write_all(&line).ok()?;
    serde_json::from_slice(&hear(stream, end)?).ok()
}

/// The line that the other end says, if all of it comes before `end`. Nothing behind it is taken.
fn hear(mut stream: &TcpStream, end: Instant) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    while line.len() < LONGEST_GREETING {
        let left = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        stream.set_read_timeout(Some(left)).ok()?;
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return None,
        }
        if byte == *b"\n" {
            return Some(line);
        }
        line.extend(byte);
    }
    None
}

/// Connects to rank 0, which is at one of `addresses`, soon.
fn join(addresses: &[SocketAddr], own: &Hello, patience: Duration) -> Result<Line<ToRank, ToRoot>, Failure> {
    let end = Instant::now() + patience;
    let mut last = "no address".to_owned();
    while Instant::now() < end {
        for address in addresses {
            let stream = match TcpStream::connect_timeout(address, CONNECT) {
                Ok(stream) => stream,
                Err(error) => {
                    last = format!("{address}: {error}");
                    continue;
                }
            };
            match exchange(&stream, own, end) {
                Some(hello) if hello.token == own.token && hello.rank == 0 => {
                    return Line::new(stream).map_err(|error| Failure::Run(error.to_string()));
                }
                _ => last = format!("{address}: another program answers"),
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(Failure::Run(format!("rank 0 cannot be reached within {} s: {last}", patience.as_secs())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(rank: u32, ranks: u32, matrix: u64) -> Hello {
        Hello { token: 7, rank, job: Job { ranks, matrix, provider: "tcp".to_owned(), verify: false } }
    }

    fn listen() -> (TcpListener, Vec<SocketAddr>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, vec![address])
    }

    #[test]
    fn ranks_that_do_not_come_are_named() {
        let (listener, addresses) = listen();
        let joined = std::thread::spawn(move || join(&addresses, &hello(2, 4, 1), Duration::from_secs(60)));
        let missing = gather(&listener, &hello(0, 4, 1), Duration::from_secs(1));
        assert_eq!(missing.unwrap_err().to_string(), "rank(s) 1, 3 have not come within 1 s");
        assert!(joined.join().unwrap().is_ok());
    }

    #[test]
    fn a_rank_with_another_matrix_is_an_error() {
        let (listener, addresses) = listen();
        let joined = std::thread::spawn(move || join(&addresses, &hello(1, 2, 8), Duration::from_secs(60)));
        let refused = gather(&listener, &hello(0, 2, 1), Duration::from_secs(60)).unwrap_err().to_string();
        assert!(refused.contains("rank 1") && refused.contains("hash is 8"), "{refused}");
        drop(joined.join());
    }

    #[test]
    fn strangers_who_say_nothing_do_not_delay_the_end_of_patience() {
        let (listener, addresses) = listen();
        let silent: Vec<_> = (0..20).map(|_| TcpStream::connect(addresses[0]).unwrap()).collect();
        let missing = gather(&listener, &hello(0, 2, 1), Duration::from_millis(300));
        assert!(missing.unwrap_err().to_string().starts_with("rank(s) 1 have not come"));
        let heard = silent.iter().filter(|stream| {
            stream.set_nonblocking(true).unwrap();
            stream.peek(&mut [0]).is_ok_and(|bytes| bytes > 0)
        });
        assert_eq!(heard.count(), 1, "after the end of patience nobody is greeted");
    }

    #[test]
    fn strangers_are_not_let_in() {
        let (listener, addresses) = listen();
        let stranger = Hello { token: 8, ..hello(1, 2, 1) };
        let to = addresses.clone();
        let refused = std::thread::spawn(move || join(&to, &stranger, Duration::from_secs(1)));
        let joined = std::thread::spawn(move || join(&addresses, &hello(1, 2, 1), Duration::from_secs(60)));
        assert_eq!(gather(&listener, &hello(0, 2, 1), Duration::from_secs(60)).unwrap().len(), 1);
        assert!(refused.join().unwrap().is_err());
        assert!(joined.join().unwrap().is_ok());
    }
}
