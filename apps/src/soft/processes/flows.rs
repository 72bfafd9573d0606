//! The flows from and to one host.

use super::message::{FromHost, Sent};
use std::collections::{BTreeMap, VecDeque};
use weft_cc::{Span, Time};
use weft_stack::buffer::Buffer;
use weft_stack::fep::{
    CallError, Completion, ConnectOptions, ConnectionId, Failure, Fep, Receive, Send, SendError,
};
use weft_stack::packet::Addr;
use weft_stack::ses::Matching;
use weft_testbed::sim::RunConfig;
use weft_testbed::workload::{Flow, Start, Workload, payload};

/// What receivers' memory holds: what is never written shows.
const UNTOUCHED: u8 = 0xa5;

/// The flows of a run from and to one host, which others start and end with their own.
pub(super) struct HostFlows<'a> {
    workload: &'a Workload,
    begin: Time,
    /// What the endpoint calls each host.
    addresses: BTreeMap<u32, Addr>,
    /// Flows from here, by index.
    outgoing: BTreeMap<u32, Outgoing>,
    /// Flows to here, by index: how often each has arrived, and what.
    incoming: BTreeMap<u32, (u32, Option<Buffer>)>,
    /// By the workload's index.
    connections: BTreeMap<u32, Connection>,
    by_id: BTreeMap<ConnectionId, u32>,
    /// Flows from here that have a time; the next one is the last.
    waiting: Vec<(Span, u32)>,
    options: ConnectOptions,
    news: VecDeque<FromHost>,
    said_done: bool,
    pub(super) failures: Vec<String>,
    wrong: Vec<String>,
}

struct Outgoing {
    record: Sent,
    /// Made before the clock starts.
    payload: Option<Buffer>,
}

#[derive(Default)]
struct Connection {
    id: Option<ConnectionId>,
    /// Flows that have not ended.
    left: u32,
}

impl<'a> HostFlows<'a> {
    /// The flows of `config`'s workload from and to `host`; `hosts` are all hosts, in the order of their addresses.
    pub(super) fn new(config: &'a RunConfig, host: u32, hosts: &[u32]) -> HostFlows<'a> {
        let workload = &config.workload;
        let addresses: BTreeMap<u32, Addr> = hosts.iter().copied().zip((0..).map(Addr)).collect();
        let (mut outgoing, mut incoming) = (BTreeMap::new(), BTreeMap::new());
        let mut connections: BTreeMap<u32, Connection> = BTreeMap::new();
        let mut waiting = Vec::new();
        for (index, flow) in (0..).zip(workload.flows()) {
            if flow.src.0 == host {
                let record = Sent { flow: index, start: None, end: None, retransmitted: 0 };
                let bytes = payload(u64::from(index), flow.bytes as u32);
                outgoing.insert(index, Outgoing { record, payload: Some(Buffer::Heap(bytes)) });
                connections.entry(flow.connection).or_default().left += 1;
                if let Start::At(time) = flow.start {
                    waiting.push((time.since(Time::ZERO), index));
                }
            }
            if flow.dst.0 == host {
                incoming.insert(index, (0, None));
            }
        }
        waiting.sort_by_key(|&entry| std::cmp::Reverse(entry));
        HostFlows {
            workload,
            begin: Time::ZERO,
            addresses,
            outgoing,
            incoming,
            connections,
            by_id: BTreeMap::new(),
            waiting,
            options: ConnectOptions { mode: config.mode, ..ConnectOptions::default() },
            news: VecDeque::new(),
            said_done: false,
            failures: Vec::new(),
            wrong: Vec::new(),
        }
    }

    /// Makes room for what is to arrive, before anything can.
    pub(super) fn post_receives(&mut self, fep: &mut Fep) -> Result<(), CallError> {
        for index in self.incoming.keys() {
            let flow = &self.workload.flows()[*index as usize];
            fep.post_receive(Receive {
                buffer: Buffer::Heap(vec![UNTOUCHED; flow.bytes as usize]),
                from: self.addresses.get(&flow.src.0).copied(),
                matching: Matching::Tagged { tag: u64::from(*index), ignore: 0 },
                context: u64::from(*index),
            })?;
        }
        Ok(())
    }

    /// The workload's times count from `begin`.
    pub(super) fn begin(&mut self, begin: Time) {
        self.begin = begin;
    }

    /// When the next flow starts by itself.
    pub(super) fn next_start(&self) -> Option<Time> {
        self.waiting.last().map(|(at, _)| self.begin + *at)
    }

    /// Starts the flows whose time has come.
    pub(super) fn start_due(&mut self, now: Time, fep: &mut Fep) {
        while let Some((_, index)) = self.waiting.pop_if(|(at, _)| now.is_at_or_after(self.begin + *at)) {
            self.start(now, index, fep);
        }
    }

    /// Starts a flow from here; others do not concern this host.
    pub(super) fn start(&mut self, now: Time, index: u32, fep: &mut Fep) {
        let since = now.since(self.begin).as_ps();
        let Some(outgoing) = self.outgoing.get_mut(&index) else { return };
        let (None, Some(buffer)) = (outgoing.record.start, outgoing.payload.take()) else { return };
        outgoing.record.start = Some(since);
        let flow = &self.workload.flows()[index as usize];
        if let Err(error) = self.post(now, index, flow, buffer, fep) {
            self.failures.push(format!("flow {}: {error}", flow.id));
            self.done_with(now, flow, fep);
        }
    }

    fn post(
        &mut self,
        now: Time,
        index: u32,
        flow: &Flow,
        buffer: Buffer,
        fep: &mut Fep,
    ) -> Result<(), CallError> {
        let connection = self.connections.entry(flow.connection).or_default();
        let id = match connection.id.filter(|id| fep.is_open(*id)) {
            Some(id) => id,
            None => {
                let to = self.addresses.get(&flow.dst.0).copied().unwrap_or(Addr(u32::MAX));
                let id = fep.connect(now, to, self.options)?;
                connection.id = Some(id);
                self.by_id.insert(id, flow.connection);
                id
            }
        };
        let tag = u64::from(index);
        fep.post_send(id, Send { buffer, tag: Some(tag), header_data: tag, context: tag })?;
        Ok(())
    }

    /// A flow from here has ended. Closes its connection if it was the last one.
    fn done_with(&mut self, now: Time, flow: &Flow, fep: &mut Fep) {
        let Some(connection) = self.connections.get_mut(&flow.connection) else { return };
        connection.left -= 1;
        if let (0, Some(id)) = (connection.left, connection.id) {
            // Fails only where the connection has failed before, which is reported by itself.
            let _ = fep.close(now, id);
        }
    }

    /// Takes in what the endpoint reports. Returns whether there was anything.
    pub(super) fn collect(&mut self, now: Time, fep: &mut Fep) -> bool {
        let mut some = false;
        while let Some(completion) = fep.poll_completion() {
            some = true;
            match completion {
                Completion::Sent { context, retransmissions, result, .. } => {
                    self.sent(now, context as u32, retransmissions, result.err(), fep);
                }
                Completion::Received { context, buffer, len, header_data, result, .. } => {
                    let failed = result.err().map(|error| format!("receive: {error}"));
                    self.received(context as u32, len, header_data, buffer, failed);
                }
                Completion::Closed { id, result, .. } => self.closed(id, result.err()),
            }
        }
        let over = |connection: &Connection| connection.left == 0 && connection.id.is_none();
        if !self.said_done && self.connections.values().all(over) {
            self.said_done = true;
            self.news.push_back(FromHost::Done);
        }
        some
    }

    /// What the others must hear of.
    pub(super) fn poll_news(&mut self) -> Option<FromHost> {
        self.news.pop_front()
    }

    fn sent(&mut self, now: Time, index: u32, again: u32, error: Option<SendError>, fep: &mut Fep) {
        let since = now.since(self.begin).as_ps();
        let Some(outgoing) = self.outgoing.get_mut(&index) else { return };
        let flow = &self.workload.flows()[index as usize];
        outgoing.record.retransmitted = u64::from(again);
        match error {
            None => {
                outgoing.record.end = Some(since);
                self.news.push_back(FromHost::Sent(index));
            }
            Some(error) => self.failures.push(format!("flow {}: {error}", flow.id)),
        }
        self.done_with(now, flow, fep);
    }

    fn received(&mut self, index: u32, len: u32, header_data: u64, buffer: Buffer, failed: Option<String>) {
        let flow = &self.workload.flows()[index as usize];
        let Some((arrivals, kept)) = self.incoming.get_mut(&index) else { return };
        *arrivals += 1;
        let mut wrong = |what: &str| self.wrong.push(format!("flow {}: {what}", flow.id));
        if *arrivals > 1 {
            wrong(&format!("arrived {arrivals} times"));
        }
        if u64::from(len) != flow.bytes || header_data != u64::from(index) {
            wrong("arrived as another message");
        }
        match failed {
            Some(error) => wrong(&error),
            None => *kept = Some(buffer),
        }
        if flow.on_received.is_some() {
            self.news.push_back(FromHost::Received(index));
        }
    }

    fn closed(&mut self, id: ConnectionId, failure: Option<Failure>) {
        // A connection that was idle for long is opened anew when its next flow starts.
        if let Some(failure) = failure.filter(|failure| !matches!(failure, Failure::ClosedByPeer { .. })) {
            self.failures.push(failure.to_string());
        }
        let slot = self.by_id.remove(&id);
        let connection = slot.and_then(|slot| self.connections.get_mut(&slot));
        if let Some(connection) = connection.filter(|connection| connection.id == Some(id)) {
            connection.id = None;
        }
    }

    /// Whether all flows from here have ended, and their connections are closed.
    pub(super) fn are_done(&self) -> bool {
        self.said_done
    }

    /// The flows from here, those to here that have arrived, and what arrived other than it was sent.
    pub(super) fn into_outcome(self) -> (Vec<Sent>, Vec<u32>, Vec<String>) {
        let mut wrong = self.wrong;
        for (index, (_, buffer)) in &self.incoming {
            let flow = &self.workload.flows()[*index as usize];
            let sent = || Buffer::Heap(payload(u64::from(*index), flow.bytes as u32));
            if buffer.as_ref().is_some_and(|buffer| *buffer != sent()) {
                wrong.push(format!("flow {}: its bytes are not those sent", flow.id));
            }
        }
        let arrived = self.incoming.iter().filter(|(_, (arrivals, _))| *arrivals > 0);
        let arrived = arrived.map(|(index, _)| *index).collect();
        (self.outgoing.into_values().map(|outgoing| outgoing.record).collect(), arrived, wrong)
    }
}
