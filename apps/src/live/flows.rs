//! The flows from and to one host: when they start, and what becomes of them.
//!
//! The host's endpoint is an argument of each verb, so that a thread can own many hosts, or a process one. Events that
//! matter to other hosts leave as [`News`], which a [`super::Coordinator`] takes in.

use super::Participants;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use weft_cc::{Span, Time};
use weft_stack::buffer::Buffer;
use weft_stack::fep::{CallError, Completion, ConnectionId, Failure, Fep, Receive, Send, SendError};
use weft_stack::packet::Addr;
use weft_stack::ses::Matching;
use weft_testbed::sim::{Opening, RunConfig};
use weft_testbed::workload::{Flow, Start, Workload, first_wrong_byte, payload};

/// Fills the memory of receives, so that bytes that were never written show.
const UNTOUCHED: u8 = 0xa5;

/// An event at one host that matters to other hosts. Flows are named by their index in the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum News {
    /// This flow from the host has been delivered.
    Sent(u32),
    /// This flow to the host has arrived, and activates a trigger.
    Received(u32),
    /// So many further messages of the host's ranks have been delivered.
    Delivered(u64),
    /// Ranks of the host compute until this time since the beginning, ps: no packet need arrive before.
    Computing(u64),
    /// All flows from the host have ended, or all its ranks have finished, and their connections are closed.
    Done,
}

/// A flow as its sender sees it; times since the beginning of the run, ps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SendRecord {
    /// The flow's index in the workload.
    pub(crate) flow: u32,
    /// When it started, if it did.
    pub(crate) start: Option<u64>,
    /// When the sender knew that all of it had arrived, if it did.
    pub(crate) end: Option<u64>,
    /// Packets sent again.
    pub(crate) retransmitted: u64,
}

/// The flows of a run from and to one host.
pub(crate) struct HostFlows<'a> {
    workload: &'a Workload,
    /// The flows' times count from here; nothing starts before it is known.
    begin: Option<Time>,
    /// Flows from this host, in the order of the workload.
    sends: Vec<SendFlow>,
    /// Flows to this host, in the order of the workload.
    receives: Vec<ReceiveFlow>,
    /// By the workload's index.
    connections: BTreeMap<u32, Connection>,
    by_id: BTreeMap<ConnectionId, u32>,
    /// Connections with flows that have not ended, or not closed.
    open: usize,
    /// Flows from here that start at a time; the next one is the last.
    timed: Vec<(Span, u32)>,
    opening: Opening,
    /// Whether payload is made before the run and compared after it.
    ahead: bool,
    news: VecDeque<News>,
    completions: u64,
    failures: Vec<String>,
    wrong: Vec<String>,
}

/// A flow from this host.
struct SendFlow {
    to: Addr,
    /// Made before the run, if there is memory for all of it.
    payload: Option<Buffer>,
    record: SendRecord,
}

/// A flow to this host.
struct ReceiveFlow {
    /// The flow's index in the workload.
    flow: u32,
    from: Addr,
    /// Memory to receive it in, until that is posted; then what has arrived, until that is compared.
    buffer: Option<Buffer>,
    arrivals: u32,
}

#[derive(Default)]
struct Connection {
    id: Option<ConnectionId>,
    /// Flows that have not ended.
    left: u32,
    closed: bool,
}

/// The results of a host's flows.
pub(super) struct Outcome {
    pub(super) sent: Vec<SendRecord>,
    /// Flows that have arrived, by their index in the workload.
    pub(super) received: Vec<u32>,
    /// Flows and connections that failed.
    pub(super) failures: Vec<String>,
    /// Flows that arrived other than they were sent.
    pub(super) wrong: Vec<String>,
}

impl<'a> HostFlows<'a> {
    /// The flows between `host` and the other participants.
    pub(crate) fn new(config: &'a RunConfig, participants: &Participants, host: u32) -> HostFlows<'a> {
        let workload = &config.workload;
        let ahead = participants.ahead;
        let mut flows = HostFlows {
            workload,
            begin: None,
            sends: Vec::new(),
            receives: Vec::new(),
            connections: BTreeMap::new(),
            by_id: BTreeMap::new(),
            open: 0,
            timed: Vec::new(),
            opening: config.opening(),
            ahead,
            news: VecDeque::new(),
            completions: 0,
            failures: Vec::new(),
            wrong: Vec::new(),
        };
        for (index, flow) in (0..).zip(workload.flows()) {
            let Some((from, to)) = participants.ends(flow) else { continue };
            if flow.src.0 == host {
                flows.connections.entry(flow.connection).or_default().left += 1;
                flows.timed.extend(participants.start_of(flow).map(|at| (at, index)));
                let payload = ahead.then(|| payload_of(index, flow));
                let record = SendRecord { flow: index, start: None, end: None, retransmitted: 0 };
                flows.sends.push(SendFlow { to, payload, record });
            }
            if flow.dst.0 == host {
                let buffer = ahead.then(|| room_for(flow));
                flows.receives.push(ReceiveFlow { flow: index, from, buffer, arrivals: 0 });
            }
        }
        flows.sends.shrink_to_fit();
        flows.receives.shrink_to_fit();
        flows.timed.shrink_to_fit();
        flows.timed.sort_by_key(|&entry| Reverse(entry));
        flows.open = flows.connections.len();
        if flows.open == 0 {
            flows.news.push_back(News::Done);
        }
        flows
    }

    /// How many flows start here.
    pub(crate) fn len(&self) -> usize {
        self.sends.len()
    }

    /// Memory that the flows take whether they have started or not, without payload, bytes.
    pub(super) fn bytes(&self) -> u64 {
        let lists = self.sends.capacity() * size_of::<SendFlow>()
            + self.receives.capacity() * size_of::<ReceiveFlow>()
            + self.connections.len() * size_of::<(u32, Connection)>()
            + self.timed.capacity() * size_of::<(Span, u32)>();
        lists as u64
    }

    /// Messages and connections that have ended so far, well or not.
    pub(super) fn completions(&self) -> u64 {
        self.completions
    }

    /// Whether all flows from here have ended, and their connections are closed.
    pub(super) fn are_done(&self) -> bool {
        self.open == 0
    }

    /// The flows' times count from `begin`.
    pub(crate) fn begin(&mut self, begin: Time) {
        self.begin = Some(begin);
    }

    /// When the next flow starts by itself.
    pub(crate) fn next_start(&self) -> Option<Time> {
        self.begin.zip(self.timed.last()).map(|(begin, (at, _))| begin + *at)
    }

    /// Takes the next flow whose time has come, which [`HostFlows::start`] then starts.
    pub(crate) fn next_due(&mut self, now: Time) -> Option<u32> {
        let due = self.next_start().is_some_and(|at| now.is_at_or_after(at));
        due.then(|| self.timed.pop()).flatten().map(|(_, flow)| flow)
    }

    /// Posts a receive for each flow to this host.
    ///
    /// # Errors
    /// The endpoint refuses a receive.
    pub(crate) fn expect_all(&mut self, fep: &mut Fep) -> Result<(), CallError> {
        (0..self.receives.len()).try_for_each(|slot| self.post_receive(slot, fep))
    }

    /// Posts the receive for flow `index`.
    ///
    /// # Errors
    /// The endpoint refuses it.
    pub(super) fn expect(&mut self, index: u32, fep: &mut Fep) -> Result<(), CallError> {
        match self.receives.binary_search_by_key(&index, |receive| receive.flow) {
            Ok(slot) => self.post_receive(slot, fep),
            Err(_) => Ok(()),
        }
    }

    fn post_receive(&mut self, slot: usize, fep: &mut Fep) -> Result<(), CallError> {
        let receive = &mut self.receives[slot];
        let flow = &self.workload.flows()[receive.flow as usize];
        fep.post_receive(Receive {
            buffer: receive.buffer.take().unwrap_or_else(|| room_for(flow)),
            from: Some(receive.from.into()),
            matching: Matching::Tagged { tag: u64::from(receive.flow), ignore: 0 },
            context: slot as u64,
        })?;
        Ok(())
    }

    /// Whether flow `index` starts here and has not started yet.
    pub(super) fn is_waiting(&self, index: u32) -> bool {
        self.slot(index).is_some_and(|slot| self.sends[slot].record.start.is_none())
    }

    fn slot(&self, index: u32) -> Option<usize> {
        self.sends.binary_search_by_key(&index, |send| send.record.flow).ok()
    }

    /// Starts flow `index`, unless it starts elsewhere or has started.
    pub(crate) fn start(&mut self, now: Time, index: u32, fep: &mut Fep) {
        let Some(slot) = self.slot(index).filter(|slot| self.sends[*slot].record.start.is_none()) else {
            return;
        };
        self.sends[slot].record.start = Some(self.since_begin(now));
        if let Err(error) = self.post_send(now, slot, fep) {
            self.fail(now, slot, error, fep);
        }
    }

    /// Ends flow `index`, which cannot start because of `error`.
    pub(super) fn refuse(&mut self, now: Time, index: u32, error: CallError, fep: &mut Fep) {
        let Some(slot) = self.slot(index) else { return };
        self.sends[slot].record.start = Some(self.since_begin(now));
        self.fail(now, slot, error, fep);
    }

    fn fail(&mut self, now: Time, slot: usize, error: CallError, fep: &mut Fep) {
        let flow = self.flow(slot);
        self.failures.push(format!("flow {}: {error}", flow.id));
        self.done_with(now, flow, fep);
    }

    fn flow(&self, slot: usize) -> &'a Flow {
        &self.workload.flows()[self.sends[slot].record.flow as usize]
    }

    fn since_begin(&self, now: Time) -> u64 {
        now.since(self.begin.unwrap_or(now)).as_ps()
    }

    fn post_send(&mut self, now: Time, slot: usize, fep: &mut Fep) -> Result<(), CallError> {
        let flow = self.flow(slot);
        let send = &mut self.sends[slot];
        let connection = self.connections.entry(flow.connection).or_default();
        let id = match connection.id.filter(|id| fep.is_open(*id)) {
            Some(id) => id,
            None => {
                let described = &self.workload.connections()[flow.connection as usize];
                let id = self.opening.open(described, now, send.to, fep)?;
                connection.id = Some(id);
                self.by_id.insert(id, flow.connection);
                id
            }
        };
        let index = send.record.flow;
        let (tag, context) = (u64::from(index), slot as u64);
        let buffer = send.payload.take().unwrap_or_else(|| payload_of(index, flow));
        fep.post_send(id, Send { buffer, tag: Some(tag), header_data: tag, context })?;
        Ok(())
    }

    /// A flow from here has ended. Closes its connection after the last one.
    fn done_with(&mut self, now: Time, flow: &Flow, fep: &mut Fep) {
        let Some(connection) = self.connections.get_mut(&flow.connection) else { return };
        connection.left -= 1;
        match connection.id {
            // Fails only where the connection has failed before, which is reported by itself.
            Some(id) if connection.left == 0 => drop(fep.close(now, id)),
            _ => self.settle(flow.connection),
        }
    }

    /// Counts a connection as closed if nothing is left of it.
    fn settle(&mut self, slot: u32) {
        let Some(connection) = self.connections.get_mut(&slot) else { return };
        if connection.left == 0 && connection.id.is_none() && !connection.closed {
            connection.closed = true;
            self.open -= 1;
            if self.open == 0 {
                self.news.push_back(News::Done);
            }
        }
    }

    /// Takes in what the endpoint reports. Returns whether there was anything.
    pub(crate) fn collect(&mut self, now: Time, fep: &mut Fep) -> bool {
        let before = self.completions;
        while let Some(completion) = fep.poll_completion() {
            self.completions += 1;
            match completion {
                Completion::Sent { context, retransmissions, result, .. } => {
                    self.sent(now, context as usize, retransmissions, result.err(), fep);
                }
                Completion::Received { context, buffer, len, header_data, result, .. } => {
                    let failed = result.err().map(|error| format!("receive: {error}"));
                    self.received(context as usize, len, header_data, buffer, failed);
                }
                Completion::Closed { id, result, .. } => self.closed(id, result.err()),
                // Workloads consist of messages.
                Completion::Read { .. } | Completion::Accessed { .. } | Completion::Written(_) => {}
            }
        }
        self.completions != before
    }

    /// The next event for the coordinator; `None` when it has heard of all.
    pub(crate) fn poll_news(&mut self) -> Option<News> {
        self.begin.and_then(|_| self.news.pop_front())
    }

    fn sent(&mut self, now: Time, slot: usize, again: u32, error: Option<SendError>, fep: &mut Fep) {
        let (flow, since) = (self.flow(slot), self.since_begin(now));
        let record = &mut self.sends[slot].record;
        record.retransmitted = u64::from(again);
        match error {
            None => {
                record.end = Some(since);
                self.news.push_back(News::Sent(record.flow));
            }
            Some(error) => self.failures.push(format!("flow {}: {error}", flow.id)),
        }
        self.done_with(now, flow, fep);
    }

    fn received(&mut self, slot: usize, len: u32, header_data: u64, buffer: Buffer, failed: Option<String>) {
        let receive = &mut self.receives[slot];
        let (index, flow) = (receive.flow, &self.workload.flows()[receive.flow as usize]);
        receive.arrivals += 1;
        let mut wrong = |what: &str| self.wrong.push(format!("flow {}: {what}", flow.id));
        if receive.arrivals > 1 {
            wrong(&format!("arrived {} times", receive.arrivals));
        }
        if u64::from(len) != flow.bytes || header_data != u64::from(index) {
            wrong("arrived as another message");
        }
        match failed {
            Some(error) => wrong(&error),
            None if self.ahead => receive.buffer = Some(buffer),
            None if is_wrong(index, &buffer) => wrong(OTHER_BYTES),
            None => {}
        }
        if flow.on_received.is_some() {
            self.news.push_back(News::Received(index));
        }
    }

    fn closed(&mut self, id: ConnectionId, failure: Option<Failure>) {
        // A connection that was idle for long is opened anew when its next flow starts.
        if let Some(failure) = failure.filter(|failure| !matches!(failure, Failure::ClosedByPeer { .. })) {
            self.failures.push(failure.to_string());
        }
        let Some(slot) = self.by_id.remove(&id) else { return };
        let connection = self.connections.get_mut(&slot);
        if let Some(connection) = connection.filter(|connection| connection.id == Some(id)) {
            connection.id = None;
        }
        self.settle(slot);
    }

    /// The results. Compares what has arrived with what was sent, if that was not done on arrival.
    pub(super) fn into_outcome(self) -> Outcome {
        let mut wrong = self.wrong;
        let arrived = || self.receives.iter().filter(|receive| receive.arrivals > 0);
        for receive in arrived() {
            if receive.buffer.as_ref().is_some_and(|buffer| is_wrong(receive.flow, buffer)) {
                let flow = &self.workload.flows()[receive.flow as usize];
                wrong.push(format!("flow {}: {OTHER_BYTES}", flow.id));
            }
        }
        Outcome {
            received: arrived().map(|receive| receive.flow).collect(),
            sent: self.sends.into_iter().map(|send| send.record).collect(),
            failures: self.failures,
            wrong,
        }
    }
}

const OTHER_BYTES: &str = "its bytes are not those sent";

fn payload_of(index: u32, flow: &Flow) -> Buffer {
    Buffer::Heap(payload(u64::from(index), flow.bytes as u32))
}

fn room_for(flow: &Flow) -> Buffer {
    Buffer::Heap(vec![UNTOUCHED; flow.bytes as usize])
}

fn is_wrong(index: u32, buffer: &Buffer) -> bool {
    match buffer {
        Buffer::Heap(bytes) => first_wrong_byte(u64::from(index), bytes).is_some(),
        Buffer::Virtual(_)
        | Buffer::Region(_)
        | Buffer::Bytes(_)
        | Buffer::BytesMut(_)
        | Buffer::Owned(_) => true,
    }
}

impl Participants {
    /// When `flow` starts by itself; `None` if it waits for other flows.
    fn start_of(&self, flow: &Flow) -> Option<Span> {
        match flow.start {
            Start::At(time) => Some(time.since(Time::ZERO)),
            Start::Trigger(trigger) => (!self.kept[trigger.index()]).then_some(Span::ZERO),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_bytes_must_be_those_of_the_flow() {
        let right = payload(7, 100);
        let mut wrong = right.clone();
        wrong[99] ^= 1;
        assert!(!is_wrong(7, &Buffer::Heap(right.clone())));
        for other in [Buffer::Heap(wrong), Buffer::Heap(vec![UNTOUCHED; 100]), Buffer::Virtual(100)] {
            assert!(is_wrong(7, &other), "{other:?}");
        }
        assert!(is_wrong(9, &Buffer::Heap(right)), "another flow's");
    }
}
