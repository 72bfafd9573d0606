//! Executes the ranks of one host over its endpoint.
//!
//! The endpoint is an argument of each verb, so that simulated hosts and hosts in real time run the same code. Messages
//! between hosts meet receives in the endpoint: each rank is a process of it, and tags are GOAL's.

use core::cmp::Reverse;
use core::fmt;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;

use weft_cc::{Span, Time};
use weft_stack::buffer::Buffer;
use weft_stack::fep::{
    CallError, Completion, ConnectOptions, ConnectionId, Failure, Fep, Receive, ReceiveError, Send, SendError,
};
use weft_stack::packet::Addr;
use weft_stack::ses::{Matching, Source};
use weft_stack::wire::pds::DeliveryMode;

use super::local::Memory;
use super::rank::{Kept, Phase, Posted, Rank};
use super::records::{MessageRecord, RankRecord, RankWait};
use super::{Action, Event, Job};
use crate::workload::{first_wrong_byte, payload};

/// Fills the memory of receives, so that bytes that were never written show.
const UNTOUCHED: u8 = 0xa5;

/// Bytes of messages that one host has at most at once where messages have bytes: those under way from it, and those of its
/// posted receives. Far more would exhaust the memory of the machine, which is known only when the process is killed.
const MOST_MEMORY: u64 = 1 << 30;

/// The ranks of one host.
pub struct HostRanks {
    job: Arc<Job>,
    host: u32,
    mode: DeliveryMode,
    /// Whether messages have bytes.
    real: bool,
    begin: Time,
    /// By process.
    ranks: Vec<Rank>,
    /// What happens now, in this order.
    agenda: VecDeque<(u16, Step)>,
    /// What happens later: time since the beginning in ps, a number that orders what happens at the same time.
    timers: BinaryHeap<Reverse<(u64, u64, Timed)>>,
    timers_set: u64,
    memory: Memory,
    /// By sending process and receiving rank.
    connections: BTreeMap<(u16, u32), Connection>,
    by_id: BTreeMap<ConnectionId, (u16, u32)>,
    /// Connections with messages to come, or not closed.
    open: usize,
    /// Sends for which there was no room, and all after them, in order: process and operation.
    put_off: VecDeque<(u16, u32)>,
    /// Messages that the endpoint has.
    under_way: u64,
    /// See [`MOST_MEMORY`].
    memory_used: u64,
    /// Messages from this host; for each process the place of its first one.
    records: Vec<MessageRecord>,
    first: Vec<u32>,
    arrived: u64,
    /// Time since the beginning in ps, and text.
    failures: Vec<(u64, String)>,
    wrong: Vec<(u64, String)>,
}

/// What happens to an operation of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// All that it waits for has happened.
    Ready(u32),
    /// Its processor has carried it out.
    Done(u32),
    /// It finishes.
    Finish(u32),
}

/// Something that happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timed {
    /// The ranks begin.
    Begin,
    /// The processor has carried out this operation.
    Done(u16, u32),
    /// The message of this send arrives at another process of the host.
    Arrival(u16, u32),
}

#[derive(Default)]
struct Connection {
    id: Option<ConnectionId>,
    /// Messages that have not ended.
    left: u32,
    is_closed: bool,
}

impl HostRanks {
    /// The ranks of `host` in `job`, which begin at `begin`. Hosts' numbers are their addresses at the endpoints. Opens a
    /// process for each rank. With `real`, messages have bytes, which are compared where they arrive.
    ///
    /// # Errors
    /// The endpoint has no such process, or it is open already.
    pub fn new(
        job: &Arc<Job>,
        host: u32,
        mode: DeliveryMode,
        real: bool,
        fep: &mut Fep,
    ) -> Result<HostRanks, CallError> {
        let programs = job.program().ranks();
        let ranks: Vec<Rank> =
            job.ranks_on(host).map(|rank| Rank::new(rank, &programs[rank as usize])).collect();
        (1..ranks.len()).try_for_each(|process| fep.open_process(process as u16))?;
        let mut host_ranks = HostRanks {
            job: Arc::clone(job),
            host,
            mode,
            real,
            begin: Time::ZERO,
            agenda: VecDeque::new(),
            timers: BinaryHeap::new(),
            timers_set: 0,
            memory: Memory::default(),
            connections: BTreeMap::new(),
            by_id: BTreeMap::new(),
            open: 0,
            put_off: VecDeque::new(),
            under_way: 0,
            memory_used: 0,
            records: Vec::new(),
            first: Vec::new(),
            arrived: 0,
            failures: Vec::new(),
            wrong: Vec::new(),
            ranks,
        };
        host_ranks.plan();
        host_ranks.set_timer(0, Timed::Begin);
        Ok(host_ranks)
    }

    /// Lists messages and connections.
    fn plan(&mut self) {
        for process in 0..self.ranks.len() {
            let rank = self.ranks[process].number;
            self.first.push(self.records.len() as u32);
            for number in self.job.first_message(rank)..self.job.first_message(rank + 1) {
                let Some(message) = self.job.message(number) else { continue };
                self.connections.entry((process as u16, message.to)).or_default().left += 1;
                self.records.push(MessageRecord {
                    message: number as u32,
                    start: None,
                    end: None,
                    retransmitted: 0,
                });
            }
        }
        self.records.shrink_to_fit();
        self.open = self.connections.len();
    }

    /// Times count from `begin`; by default from [`Time::ZERO`].
    pub fn begin_at(&mut self, begin: Time) {
        self.begin = begin;
    }

    /// Whether all ranks have finished, and their connections are closed.
    pub fn is_done(&self) -> bool {
        self.open == 0 && self.ranks.iter().all(|rank| rank.end.is_some())
    }

    /// Messages from this host to others that have arrived.
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Memory that the ranks take at the least, bytes.
    pub fn bytes(&self) -> u64 {
        let connections = self.connections.len() * size_of::<((u16, u32), Connection)>();
        let records = self.records.capacity() * size_of::<MessageRecord>();
        self.ranks.iter().map(Rank::bytes).sum::<u64>() + (connections + records) as u64
    }

    /// Messages from this host to others.
    pub fn records(&self) -> &[MessageRecord] {
        &self.records
    }

    /// The ranks by their processes.
    pub fn ranks(&self) -> impl Iterator<Item = RankRecord> + '_ {
        self.ranks.iter().map(|rank| RankRecord {
            rank: rank.number,
            host: self.host,
            end: rank.end.map(Span::from_ps),
        })
    }

    /// What the ranks wait for that have not finished.
    pub fn waits(&self) -> impl Iterator<Item = RankWait<'_>> {
        let job = &*self.job;
        self.ranks.iter().flat_map(move |rank| {
            rank.active().map(move |(index, phase)| RankWait { job, rank: rank.number, index, phase })
        })
    }

    /// Messages between ranks of this host that no receive has taken.
    pub fn leaks(&self) -> impl Iterator<Item = String> + '_ {
        let left = self.ranks.iter().filter(|rank| !rank.kept.is_empty());
        left.map(|rank| {
            let count = rank.kept.len();
            format!(
                "rank {} on host {}: {count} messages of its host that no receive took",
                rank.number, self.host
            )
        })
    }

    /// What went wrong: time since the beginning in ps, and text.
    pub fn failures(&self) -> &[(u64, String)] {
        &self.failures
    }

    /// Messages that arrived other than they were sent: time since the beginning in ps, and text.
    pub fn wrong(&self) -> &[(u64, String)] {
        &self.wrong
    }

    /// When [`HostRanks::on_timeout`] is to be called next.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.peek().map(|Reverse((at, ..))| self.begin + Span::from_ps(*at))
    }

    /// Does what is due. Call it at the time of [`HostRanks::poll_timeout`], or at any other.
    pub fn on_timeout(&mut self, now: Time, fep: &mut Fep) {
        let since = now.since(self.begin).as_ps();
        while let Some(Reverse((at, ..))) = self.timers.peek()
            && *at <= since
        {
            let Some(Reverse((.., timed))) = self.timers.pop() else { break };
            match timed {
                Timed::Begin => self.start(since),
                Timed::Done(process, index) => self.agenda.push_back((process, Step::Done(index))),
                Timed::Arrival(process, index) => self.local_arrival(now, process, index, fep),
            }
            self.work(now, fep);
        }
    }

    /// Takes in what the endpoint has completed.
    pub fn on_completion(&mut self, now: Time, completion: Completion, fep: &mut Fep) {
        match completion {
            Completion::Sent { context, retransmissions, result, .. } => {
                self.sent(now, context as usize, retransmissions, result.err(), fep);
            }
            Completion::Received { context, buffer, len, header_data, source, result, .. } => {
                let (process, index) = ((context >> 32) as u16, context as u32);
                self.release(self.action(process, index).bytes());
                // A message of this host has met the receive.
                if result == Err(ReceiveError::Cancelled) {
                    return;
                }
                self.ranks[usize::from(process)].forget_posted(index);
                match result {
                    Ok(()) => self.check(now, (process, index), source, header_data, len, &buffer),
                    Err(error) => {
                        let text = format!("{}: {error}", self.name(process, index));
                        return self.fail(now, text);
                    }
                }
                self.queue(now, process, index);
            }
            Completion::Closed { id, result, .. } => self.closed(now, id, result.err()),
            // Programs have no reads.
            Completion::Read { .. } | Completion::Accessed { .. } | Completion::Written(_) => {}
        }
        self.work(now, fep);
    }

    fn name(&self, process: u16, index: u32) -> impl fmt::Display + '_ {
        self.job.name(self.ranks[usize::from(process)].number, index)
    }

    fn fail(&mut self, now: Time, text: String) {
        self.failures.push((now.since(self.begin).as_ps(), text));
    }

    /// Counts the memory of a message, if messages have bytes. Returns false if the host has no room for it.
    fn reserve(&mut self, bytes: u32) -> bool {
        let used = self.memory_used + u64::from(bytes);
        if self.real && used > MOST_MEMORY {
            return false;
        }
        self.memory_used = used;
        true
    }

    fn release(&mut self, bytes: u32) {
        self.memory_used -= u64::from(bytes);
    }

    fn fail_for_memory(&mut self, now: Time, process: u16, index: u32) {
        let bytes = self.action(process, index).bytes();
        let text = format!(
            "{}: {bytes} bytes, and {} of other messages under way and posted receives; expected at most {MOST_MEMORY} \
             bytes at one host where messages have bytes",
            self.name(process, index),
            self.memory_used
        );
        self.fail(now, text);
    }

    fn set_timer(&mut self, at: u64, timed: Timed) {
        self.timers.push(Reverse((at, self.timers_set, timed)));
        self.timers_set += 1;
    }

    fn start(&mut self, since: u64) {
        for (process, rank) in (0u16..).zip(&mut self.ranks) {
            rank.settle(since);
            self.agenda.extend(rank.free().into_iter().map(|index| (process, Step::Ready(index))));
        }
    }

    /// Does everything that happens now.
    fn work(&mut self, now: Time, fep: &mut Fep) {
        while let Some((process, step)) = self.agenda.pop_front() {
            match step {
                Step::Ready(index) => match self.action(process, index) {
                    Action::Recv { .. } => self.post(now, process, index, fep),
                    Action::Calc { .. } | Action::Send { .. } => self.queue(now, process, index),
                },
                Step::Done(index) => {
                    let cpu = self.cpu(process, index);
                    self.ranks[usize::from(process)].release(cpu);
                    match self.action(process, index) {
                        Action::Send { .. } => self.send(now, process, index, fep),
                        Action::Calc { .. } | Action::Recv { .. } => self.finish(now, process, index),
                    }
                    self.run_cpu(now, process, cpu);
                }
                Step::Finish(index) => self.finish(now, process, index),
            }
        }
    }

    fn action(&self, process: u16, index: u32) -> Action {
        self.job.operation(self.ranks[usize::from(process)].number, index).action
    }

    fn cpu(&self, process: u16, index: u32) -> u16 {
        self.job.operation(self.ranks[usize::from(process)].number, index).cpu
    }

    /// An operation needs its processor.
    fn queue(&mut self, now: Time, process: u16, index: u32) {
        let cpu = self.cpu(process, index);
        self.ranks[usize::from(process)].queue(index, cpu);
        self.run_cpu(now, process, cpu);
    }

    /// Lets a processor begin its next operation, if it is idle.
    fn run_cpu(&mut self, now: Time, process: u16, cpu: u16) {
        let Some(index) = self.ranks[usize::from(process)].next_on(cpu) else { return };
        let action = self.action(process, index);
        let time = match action {
            Action::Calc { ns } => self.job.costs().compute.of_ns(ns),
            Action::Send { .. } | Action::Recv { .. } => self.job.costs().overhead.as_ps(),
        };
        if !matches!(action, Action::Recv { .. }) {
            self.happens(process, index, Event::Start);
        }
        if time == 0 {
            return self.agenda.push_back((process, Step::Done(index)));
        }
        let at = now.since(self.begin).as_ps().saturating_add(time);
        self.set_timer(at, Timed::Done(process, index));
    }

    /// Operations that wait for `event` may start.
    fn happens(&mut self, process: u16, index: u32, event: Event) {
        let rank = &mut self.ranks[usize::from(process)];
        let program = &self.job.program().ranks()[rank.number as usize];
        let released = rank.released_by(program, index, event);
        self.agenda.extend(released.into_iter().map(|index| (process, Step::Ready(index))));
    }

    fn finish(&mut self, now: Time, process: u16, index: u32) {
        let since = now.since(self.begin).as_ps();
        self.ranks[usize::from(process)].finish(index, since);
        self.happens(process, index, Event::Finish);
    }

    /// A receive starts.
    fn post(&mut self, now: Time, process: u16, index: u32, fep: &mut Fep) {
        self.happens(process, index, Event::Start);
        let job = Arc::clone(&self.job);
        let Action::Recv { bytes, from, tag } = self.action(process, index) else { return };
        let is_local = from.map(|rank| job.host_of(rank) == self.host);
        let rank = &mut self.ranks[usize::from(process)];
        rank.enter(index, Phase::Posted);
        if is_local != Some(false)
            && let Some(kept) = rank.take_kept(index, &job)
        {
            return self.take_local(now, process, index, kept);
        }
        let mut posted = Posted { operation: index, at_endpoint: None };
        if is_local != Some(true) {
            if !self.reserve(bytes) {
                return self.fail_for_memory(now, process, index);
            }
            let buffer = match self.real {
                false => Buffer::Virtual(bytes),
                true => Buffer::Heap(vec![UNTOUCHED; bytes as usize]),
            };
            let source = |rank| Source { peer: Addr(job.host_of(rank)), process: job.process_of(rank) };
            let matching = match tag {
                Some(tag) => Matching::Tagged { tag: u64::from(tag), ignore: 0 },
                None => Matching::Tagged { tag: 0, ignore: u64::MAX },
            };
            let context = u64::from(process) << 32 | u64::from(index);
            let receive = Receive { buffer, from: from.map(source), matching, context };
            match fep.post_receive_of(process, receive) {
                Ok(id) => posted.at_endpoint = Some(id),
                Err(error) => {
                    self.release(bytes);
                    let text = format!("{}: {error}", self.name(process, index));
                    return self.fail(now, text);
                }
            }
        }
        if is_local != Some(false) {
            self.ranks[usize::from(process)].posted.push_back(posted);
        }
    }

    /// Hands a message to the endpoint, or copies it to a rank of this host.
    fn send(&mut self, now: Time, process: u16, index: u32, fep: &mut Fep) {
        let job = Arc::clone(&self.job);
        let Action::Send { bytes, to, .. } = self.action(process, index) else { return };
        let rank = &mut self.ranks[usize::from(process)];
        rank.enter(index, Phase::Leaving);
        let Some(message) = job.number_of(rank.number, index) else {
            let since = now.since(self.begin).as_ps();
            let at = self.memory.copy(since, (process, job.process_of(to)), bytes, job.costs());
            self.set_timer(at, Timed::Arrival(process, index));
            return self.finish_eager(process, index, bytes);
        };
        // Messages of one connection leave in the order of their sends.
        if !self.put_off.is_empty() || !self.send_now(now, process, message, fep) {
            self.put_off.push_back((process, index));
        }
    }

    /// Sends what was put off, until there is no room again.
    fn send_put_off(&mut self, now: Time, fep: &mut Fep) {
        while let Some((process, index)) = self.put_off.front().copied() {
            let message = self.job.number_of(self.ranks[usize::from(process)].number, index);
            if message.is_some_and(|message| !self.send_now(now, process, message, fep)) {
                return;
            }
            self.put_off.pop_front();
        }
    }

    /// Hands message number `number` to the endpoint. Returns false if there is no room for it, but will be when another
    /// one has ended.
    fn send_now(&mut self, now: Time, process: u16, number: usize, fep: &mut Fep) -> bool {
        let Some(message) = self.job.message(number) else { return true };
        let (bytes, index) = (message.bytes, message.operation);
        let has_memory = self.reserve(bytes);
        let posted = if has_memory { self.post_send(now, process, number, fep) } else { Ok(()) };
        if has_memory && posted.is_ok() {
            self.finish_eager(process, index, bytes);
            return true;
        }
        if has_memory {
            self.release(bytes);
        }
        match posted {
            // Normal back-pressure.
            Ok(()) | Err(CallError::Limit { .. }) if self.under_way > 0 => return false,
            Ok(()) => self.fail_for_memory(now, process, index),
            Err(error) => self.fail(now, format!("{}: {error}", self.name(process, index))),
        }
        self.leave(now, process, message.to, fep);
        true
    }

    fn finish_eager(&mut self, process: u16, index: u32, bytes: u32) {
        if self.is_eager(bytes) {
            self.agenda.push_back((process, Step::Finish(index)));
        }
    }

    fn is_eager(&self, bytes: u32) -> bool {
        u64::from(bytes) < self.job.costs().eager
    }

    /// Posts message number `number` at the endpoint.
    fn post_send(&mut self, now: Time, process: u16, number: usize, fep: &mut Fep) -> Result<(), CallError> {
        let Some(message) = self.job.message(number) else { return Ok(()) };
        let key = (process, message.to);
        let connection = self.connections.entry(key).or_default();
        let id = match connection.id.filter(|id| fep.is_open(*id)) {
            Some(id) => id,
            None => {
                let options = ConnectOptions { mode: self.mode, ..ConnectOptions::default() };
                let options = options.process(self.job.process_of(message.to));
                let peer = Addr(self.job.host_of(message.to));
                let id = fep.connect_of(process, now, peer, options)?;
                self.by_id.insert(id, key);
                *connection.id.insert(id)
            }
        };
        let buffer = match self.real {
            false => Buffer::Virtual(message.bytes),
            true => Buffer::Heap(payload(number as u64, message.bytes)),
        };
        let place = self.place_of(process, number);
        let tag = Some(u64::from(message.tag));
        fep.post_send(id, Send { buffer, tag, header_data: number as u64, context: place as u64 })?;
        self.records[place].start = Some(now.since(self.begin).as_ps());
        self.under_way += 1;
        Ok(())
    }

    /// The place of a message in [`HostRanks::records`].
    fn place_of(&self, process: u16, number: usize) -> usize {
        let rank = self.ranks[usize::from(process)].number;
        self.first[usize::from(process)] as usize + number - self.job.first_message(rank)
    }

    /// A message has left the endpoint, one way or the other.
    fn sent(&mut self, now: Time, place: usize, again: u32, error: Option<SendError>, fep: &mut Fep) {
        self.under_way -= 1;
        let record = &mut self.records[place];
        record.retransmitted = again;
        let Some(message) = self.job.message(record.message as usize) else { return };
        let process = self.job.process_of(message.from);
        self.memory_used -= u64::from(message.bytes);
        match error {
            Some(error) => self.fail(now, format!("{}: {error}", self.name(process, message.operation))),
            None => {
                record.end = Some(now.since(self.begin).as_ps());
                self.arrived += 1;
                if !self.is_eager(message.bytes) {
                    self.agenda.push_back((process, Step::Finish(message.operation)));
                }
            }
        }
        self.leave(now, process, message.to, fep);
        self.send_put_off(now, fep);
    }

    /// A message to `to` has ended. Closes its connection after the last one.
    fn leave(&mut self, now: Time, process: u16, to: u32, fep: &mut Fep) {
        let Some(connection) = self.connections.get_mut(&(process, to)) else { return };
        connection.left -= 1;
        match connection.id {
            // Fails only if the connection has failed already, which the endpoint is about to report.
            Some(id) if connection.left == 0 => drop(fep.close(now, id)),
            _ => self.settle((process, to)),
        }
    }

    /// Counts a connection as closed if nothing is left of it.
    fn settle(&mut self, key: (u16, u32)) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        if connection.left == 0 && connection.id.is_none() && !connection.is_closed {
            connection.is_closed = true;
            self.open -= 1;
        }
    }

    fn closed(&mut self, now: Time, id: ConnectionId, failure: Option<Failure>) {
        // A connection that was idle for long is opened anew for the next message.
        if let Some(failure) = failure.filter(|failure| !matches!(failure, Failure::ClosedByPeer { .. })) {
            self.fail(now, format!("host {}: {failure}", self.host));
        }
        let Some(key) = self.by_id.remove(&id) else { return };
        let connection = self.connections.get_mut(&key);
        if let Some(connection) = connection.filter(|connection| connection.id == Some(id)) {
            connection.id = None;
        }
        self.settle(key);
    }

    /// The copy of a message to a rank of this host is done.
    fn local_arrival(&mut self, now: Time, process: u16, index: u32, fep: &mut Fep) {
        let job = Arc::clone(&self.job);
        let Action::Send { bytes, to, tag } = self.action(process, index) else { return };
        let kept = Kept { from: self.ranks[usize::from(process)].number, tag, bytes };
        let receiver = job.process_of(to);
        if let Some(receive) = self.ranks[usize::from(receiver)].meet(kept, &job, fep) {
            self.take_local(now, receiver, receive, kept);
        }
        if !self.is_eager(bytes) {
            self.agenda.push_back((process, Step::Finish(index)));
        }
    }

    /// A receive meets a message of this host.
    fn take_local(&mut self, now: Time, process: u16, index: u32, message: Kept) {
        let Action::Recv { bytes: room, .. } = self.action(process, index) else { return };
        if message.bytes > room {
            let error = ReceiveError::Truncated { len: message.bytes, room };
            return self.fail(now, format!("{}: {error}", self.name(process, index)));
        }
        self.queue(now, process, index);
    }

    /// Compares a message that a receive has met with what was sent.
    fn check(
        &mut self,
        now: Time,
        (process, index): (u16, u32),
        source: Option<Source>,
        number: u64,
        len: u32,
        buffer: &Buffer,
    ) {
        let message = usize::try_from(number).ok().and_then(|number| self.job.message(number));
        let is_right = message.is_some_and(|message| {
            let from = Source {
                peer: Addr(self.job.host_of(message.from)),
                process: self.job.process_of(message.from),
            };
            let is_for_us = message.to == self.ranks[usize::from(process)].number;
            is_for_us && message.bytes == len && source == Some(from)
        });
        let bytes_differ = match buffer {
            Buffer::Heap(bytes) => {
                first_wrong_byte(number, &bytes[..bytes.len().min(len as usize)]).is_some()
            }
            _ => false,
        };
        let text = match (is_right, bytes_differ) {
            (false, _) => "another message arrived than was sent",
            (true, true) => "the bytes that arrived are not those sent",
            (true, false) => return,
        };
        let text = format!("{}: {text}", self.name(process, index));
        self.wrong.push((now.since(self.begin).as_ps(), text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goal::{Costs, Placement, parse_goal};
    use crate::sim::RunConfig;
    use crate::topology::TopologySpec;
    use crate::workload::Workload;
    use weft_stack::rng::Rng;

    /// The ranks of host 0, whose messages have bytes, and endpoints of it that have room for so many messages.
    fn host<const N: usize>(text: &str, per_host: u32, sends: [usize; N]) -> (HostRanks, [Fep; N]) {
        let program = parse_goal("a.goal", text).unwrap();
        let job = Job::new("a.goal", program, per_host, Placement::Block, Costs::default()).unwrap();
        let topology = "fat-tree:hosts=4".parse::<TopologySpec>().unwrap().build().unwrap();
        let none = Workload::new(4, Vec::new(), Vec::new(), Vec::new(), Vec::new()).unwrap();
        let config = RunConfig::new(topology, none).endpoint();
        let mut feps = sends.map(|sends| {
            let mut config = config.clone();
            config.limits.sends = sends;
            Fep::new(Addr(0), config.into(), Rng::new(1, 1), Time::ZERO).unwrap()
        });
        let ranks = HostRanks::new(&Arc::new(job), 0, DeliveryMode::Rud, true, &mut feps[0]).unwrap();
        (ranks, feps)
    }

    fn started(ranks: &HostRanks) -> Vec<bool> {
        ranks.records().iter().map(|record| record.start.is_some()).collect()
    }

    #[test]
    fn sends_that_were_put_off_are_not_overtaken() {
        let text = "num_ranks 2\nrank 0 {\nsend 1b to 1\nsend 2b to 1\nsend 3b to 1\nsend 4b to 1\n\
            send 5b to 1\n}\nrank 1 {\n}\n";
        let (mut ranks, [mut full, mut roomy]) = host(text, 1, [2, 9]);
        ranks.on_timeout(Time::ZERO, &mut full);
        assert_eq!(started(&ranks), [true, true, false, false, false]);
        // One more is refused, and keeps its place.
        ranks.sent(Time::ZERO, 0, 0, None, &mut full);
        assert_eq!(ranks.put_off, [(0, 2), (0, 3), (0, 4)]);
        // A later one waits for those before it, although the endpoint has room by now.
        ranks.put_off.pop_back();
        ranks.send(Time::ZERO, 0, 4, &mut roomy);
        assert_eq!(ranks.put_off, [(0, 2), (0, 3), (0, 4)]);
        ranks.sent(Time::ZERO, 1, 0, None, &mut roomy);
        assert!(ranks.put_off.is_empty() && ranks.failures().is_empty(), "{:?}", ranks.failures());
        assert_eq!(started(&ranks), [true; 5]);
        assert_eq!((ranks.memory_used, ranks.under_way), (3 + 4 + 5, 3));
    }

    #[test]
    fn memory_of_messages_is_bounded() {
        let text = "num_ranks 2\nrank 0 {\nx: recv 1073741825b from 1\ny: send 2000000000b to 1\n\
            recv 9b from 1\n}\nrank 1 {\n}\n";
        let (mut ranks, [mut fep]) = host(text, 1, [9]);
        ranks.on_timeout(Time::ZERO, &mut fep);
        assert_eq!(ranks.memory_used, 9, "of the receive that fits");
        let bound = "expected at most 1073741824 bytes at one host where messages have bytes";
        let said: Vec<&str> = ranks.failures().iter().map(|(_, text)| text.as_str()).collect();
        let expected = [
            format!(
                "rank 0 on host 0: `x: recv 1073741825b from 1` (a.goal:3): 1073741825 bytes, and 0 of other messages \
                 under way and posted receives; {bound}"
            ),
            format!(
                "rank 0 on host 0: `y: send 2000000000b to 1` (a.goal:4): 2000000000 bytes, and 9 of other messages \
                 under way and posted receives; {bound}"
            ),
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn a_rank_computes_while_others_of_its_host_go_on() {
        let hour = 3_600_000_000_000u64;
        let text = format!(
            "num_ranks 3\nrank 0 {{\ncalc {hour}\n}}\nrank 1 {{\nsend 9b to 2\nrecv 9b from 2\n}}\n\
             rank 2 {{\nr: recv 9b from 1\ns: send 9b to 1\ns requires r\n}}\n"
        );
        let (mut ranks, [mut fep]) = host(&text, 3, [9]);
        let end = Time::from_ps(hour * 1_000);
        while let Some(at) = ranks.poll_timeout().filter(|at| *at != end) {
            assert!(at.since(Time::ZERO) < Span::from_us(10), "{at:?}");
            ranks.on_timeout(at, &mut fep);
        }
        let finished = |ranks: &HostRanks| ranks.ranks().map(|rank| rank.end.is_some()).collect::<Vec<_>>();
        assert_eq!(finished(&ranks), [false, true, true]);
        ranks.on_timeout(end, &mut fep);
        assert_eq!(finished(&ranks), [true; 3]);
        assert!(ranks.is_done());
    }
}
