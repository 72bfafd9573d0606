//! The flows of a run: when they start, what becomes of them.

use super::memory::Memory;
use std::collections::BTreeMap;
use weft_cc::Time;
use weft_stack::buffer::Buffer;
use weft_stack::fep::{CallError, Completion, ConnectOptions, ConnectionId, Failure, Receive, Send};
use weft_stack::packet::Addr;
use weft_stack::port::Port;
use weft_stack::ses::Matching;
use weft_stack::worker::Worker;
use weft_testbed::sim::{FlowRecord, RunConfig};
use weft_testbed::workload::{Flow, Start, TriggerBank, TriggerIdx, Workload};

/// All flows between the ends of a run.
pub(super) struct Flows<'a> {
    workload: &'a Workload,
    /// In the order of the workload.
    parts: Vec<Part>,
    records: Vec<FlowRecord>,
    memory: Memory,
    /// By the index of a flow in the workload: its place in `parts`, if it takes part.
    places: Vec<Option<u32>>,
    /// By the workload's index.
    connections: Vec<Connection>,
    /// By the end that opened it.
    by_id: BTreeMap<(u32, ConnectionId), u32>,
    /// Connections that are not settled.
    open: usize,
    triggers: TriggerBank,
    /// Flows with a time, not started; the next one is the last.
    waiting: Vec<(Time, u32)>,
    /// What has been triggered since flows were last started.
    triggered: Vec<u32>,
    options: ConnectOptions,
    completed: u64,
    failures: Vec<String>,
    payload_errors: Vec<String>,
}

/// A flow that takes part.
#[derive(Clone, Copy)]
struct Part {
    /// Its index in the workload, which is also its tag.
    index: u32,
    /// The ends that it leads from and to.
    from: u32,
    to: u32,
    /// How often it has arrived.
    arrivals: u32,
}

#[derive(Default)]
struct Connection {
    id: Option<ConnectionId>,
    /// Flows that are not done.
    left: u32,
    settled: bool,
}

/// What is to be said when it is over.
pub(super) struct Outcome {
    pub(super) records: Vec<FlowRecord>,
    /// What went wrong with flows and connections.
    pub(super) failures: Vec<String>,
    pub(super) payload_errors: Vec<String>,
}

impl<'a> Flows<'a> {
    /// The flows of `config`'s workload between `hosts`, each of which is the end of its place in the list.
    pub(super) fn new(config: &'a RunConfig, hosts: &[u32]) -> Flows<'a> {
        let workload = &config.workload;
        let ends: BTreeMap<u32, u32> = hosts.iter().copied().zip(0..).collect();
        let part = |(index, flow): (u32, &Flow)| {
            let (from, to) = (*ends.get(&flow.src.0)?, *ends.get(&flow.dst.0)?);
            Some(Part { index, from, to, arrivals: 0 })
        };
        let parts: Vec<Part> = (0..).zip(workload.flows()).filter_map(part).collect();
        let mut places = vec![None; workload.flows().len()];
        for (place, part) in (0..).zip(&parts) {
            places[part.index as usize] = Some(place);
        }
        let flows = || parts.iter().map(|part| &workload.flows()[part.index as usize]);
        let connections = connections(workload, flows());
        let sizes = parts.iter().zip(flows()).map(|(part, flow)| (u64::from(part.index), flow.bytes as u32));
        Flows {
            records: flows().map(FlowRecord::new).collect(),
            memory: Memory::new(sizes),
            open: connections.iter().filter(|connection| !connection.settled).count(),
            waiting: starts(workload, &places, flows()),
            workload,
            parts,
            places,
            connections,
            by_id: BTreeMap::new(),
            triggers: TriggerBank::new(workload),
            triggered: Vec::new(),
            options: ConnectOptions { mode: config.mode, ..ConnectOptions::default() },
            completed: 0,
            failures: Vec::new(),
            payload_errors: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.parts.len()
    }

    /// What all flows take in memory whether they have begun or not, with the workload and without payload.
    pub(super) fn bytes(&self) -> u64 {
        let Flows { workload, parts, records, memory, places, connections, waiting, .. } = self;
        let lists = size_of_val(&parts[..])
            + size_of_val(&records[..])
            + size_of_val(&places[..])
            + size_of_val(&connections[..])
            + waiting.capacity() * size_of::<(Time, u32)>();
        workload.bytes() + memory.bytes() + lists as u64
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// How many have been delivered.
    pub(super) fn completed(&self) -> u64 {
        self.completed
    }

    /// Whether every flow has ended, well or not, and every connection is closed.
    pub(super) fn are_done(&self) -> bool {
        self.open == 0
    }

    /// The workload's times count from `now`.
    pub(super) fn begin(&mut self, now: Time) {
        for (at, _) in &mut self.waiting {
            *at = now + at.since(Time::ZERO);
        }
    }

    /// Starts the flows whose time has come. Returns whether there are some that have a time, started or not.
    pub(super) fn start_due<P: Port>(&mut self, now: Time, ends: &mut [Worker<P>]) -> bool {
        let some = !self.waiting.is_empty();
        while let Some((_, place)) = self.waiting.pop_if(|(at, _)| now.is_at_or_after(*at)) {
            self.start(now, place, ends);
        }
        some
    }

    fn flow(&self, place: u32) -> &'a Flow {
        &self.workload.flows()[self.parts[place as usize].index as usize]
    }

    fn start<P: Port>(&mut self, now: Time, place: u32, ends: &mut [Worker<P>]) {
        self.records[place as usize].start = Some(now);
        if let Err(error) = self.post(now, place, ends) {
            self.failures.push(format!("flow {}: {error}", self.flow(place).id));
            self.done_with(now, place, ends);
        }
    }

    /// Posts both ends of a flow: the receive first, so that it is there when the message arrives.
    fn post<P: Port>(&mut self, now: Time, place: u32, ends: &mut [Worker<P>]) -> Result<(), CallError> {
        let (part, flow) = (self.parts[place as usize], self.flow(place));
        let (tag, bytes) = (u64::from(part.index), flow.bytes as u32);
        let to = ends[part.to as usize].fep_mut();
        to.post_receive(Receive {
            buffer: self.memory.take_room(place as usize, bytes),
            from: Some(Addr(part.from)),
            matching: Matching::Tagged { tag, ignore: 0 },
            context: u64::from(place),
        })?;
        let fep = ends[part.from as usize].fep_mut();
        let connection = &mut self.connections[flow.connection as usize];
        let id = match connection.id.filter(|id| fep.is_open(*id)) {
            Some(id) => id,
            None => {
                let id = fep.connect(now, Addr(part.to), self.options)?;
                connection.id = Some(id);
                self.by_id.insert((part.from, id), flow.connection);
                id
            }
        };
        let buffer = self.memory.take_payload(place as usize, tag, bytes);
        fep.post_send(id, Send { buffer, tag: Some(tag), header_data: tag, context: u64::from(place) })?;
        Ok(())
    }

    /// A flow has ended. Closes its connection if it was the last one.
    fn done_with<P: Port>(&mut self, now: Time, place: u32, ends: &mut [Worker<P>]) {
        let from = self.parts[place as usize].from as usize;
        let slot = self.flow(place).connection;
        let connection = &mut self.connections[slot as usize];
        connection.left -= 1;
        if connection.left > 0 {
            return;
        }
        match connection.id {
            // Fails only where the connection has failed before, which is reported by itself.
            Some(id) => drop(ends[from].fep_mut().close(now, id)),
            None => self.settle(slot),
        }
    }

    fn settle(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        if connection.left == 0 && connection.id.is_none() && !connection.settled {
            connection.settled = true;
            self.open -= 1;
        }
    }

    /// Takes in what the endpoints report, and starts what that triggers. Returns whether there was anything.
    pub(super) fn collect<P: Port>(&mut self, now: Time, ends: &mut [Worker<P>]) -> bool {
        let mut some = false;
        for end in 0..ends.len() {
            while let Some(completion) = ends[end].fep_mut().poll_completion() {
                some = true;
                self.take_in(now, end as u32, completion, ends);
            }
        }
        for place in std::mem::take(&mut self.triggered) {
            self.start(now, place, ends);
        }
        some
    }

    fn take_in<P: Port>(&mut self, now: Time, end: u32, completion: Completion, ends: &mut [Worker<P>]) {
        match completion {
            Completion::Sent { context, retransmissions, buffer, result, .. } => {
                let place = context as u32;
                let record = &mut self.records[place as usize];
                record.retransmitted = u64::from(retransmissions);
                match result {
                    Ok(()) => {
                        record.end = Some(now);
                        self.completed += 1;
                        self.memory.sent(place as usize, buffer);
                        self.activate(self.flow(place).on_sent);
                    }
                    Err(error) => self.failures.push(format!("flow {}: {error}", record.id)),
                }
                self.done_with(now, place, ends);
            }
            Completion::Received { context, buffer, len, header_data, result, .. } => {
                let failed = result.err().map(|error| format!("receive: {error}"));
                self.arrived(context as u32, len, header_data, buffer, failed);
            }
            Completion::Closed { id, result, .. } => self.closed(end, id, result.err()),
        }
    }

    fn arrived(&mut self, place: u32, len: u32, header_data: u64, buffer: Buffer, failed: Option<String>) {
        let flow = self.flow(place);
        let part = &mut self.parts[place as usize];
        part.arrivals += 1;
        let (index, bytes, arrivals) = (u64::from(part.index), flow.bytes as u32, part.arrivals);
        let mut wrong = |what: &str| self.payload_errors.push(format!("flow {}: {what}", flow.id));
        if arrivals > 1 {
            wrong(&format!("arrived {arrivals} times"));
        }
        if len != bytes || header_data != index {
            wrong("arrived as another message");
        }
        match failed {
            Some(error) => wrong(&error),
            None if self.memory.received(place as usize, index, bytes, buffer) => wrong(OTHER_BYTES),
            None => {}
        }
        self.activate(flow.on_received);
    }

    fn closed(&mut self, end: u32, id: ConnectionId, failure: Option<Failure>) {
        // A connection that was idle for long is opened anew when its next flow starts.
        if let Some(failure) = failure.filter(|failure| !matches!(failure, Failure::ClosedByPeer { .. })) {
            self.failures.push(failure.to_string());
        }
        let Some(slot) = self.by_id.remove(&(end, id)) else { return };
        let connection = &mut self.connections[slot as usize];
        if connection.id == Some(id) {
            connection.id = None;
        }
        self.settle(slot);
    }

    fn activate(&mut self, trigger: Option<TriggerIdx>) {
        let Some(trigger) = trigger else { return };
        let places = self.triggers.activate(self.workload, trigger).iter();
        let places = places.filter_map(|index| self.places[*index as usize]);
        // What was not kept waiting has started already.
        let waiting = places.filter(|place| self.records[*place as usize].start.is_none());
        self.triggered.extend(waiting);
    }

    /// What there is to say. What has arrived is compared with what was sent.
    pub(super) fn into_outcome(mut self) -> Outcome {
        for place in self.memory.wrong() {
            self.payload_errors.push(format!("flow {}: {OTHER_BYTES}", self.records[place].id));
        }
        let delivered = self.parts.iter().zip(&self.records).filter(|(_, record)| record.end.is_some());
        let lost = delivered.filter(|(part, _)| part.arrivals == 0);
        self.payload_errors.extend(lost.map(|(_, record)| format!("flow {} never arrived", record.id)));
        Outcome { records: self.records, failures: self.failures, payload_errors: self.payload_errors }
    }
}

const OTHER_BYTES: &str = "its bytes are not those sent";

fn connections<'w>(workload: &Workload, flows: impl Iterator<Item = &'w Flow>) -> Vec<Connection> {
    let new = || Connection { settled: true, ..Connection::default() };
    let mut connections: Vec<Connection> = workload.connections().iter().map(|_| new()).collect();
    for flow in flows {
        let connection = &mut connections[flow.connection as usize];
        connection.left += 1;
        connection.settled = false;
    }
    connections
}

/// When flows start that do not wait for others, by place; the earliest last.
fn starts<'w>(
    workload: &Workload,
    places: &[Option<u32>],
    flows: impl Iterator<Item = &'w Flow>,
) -> Vec<(Time, u32)> {
    let kept = kept(workload, places);
    let at = |flow: &Flow| match flow.start {
        Start::At(time) => Some(time),
        Start::Trigger(trigger) => (!kept[trigger.index()]).then_some(Time::ZERO),
    };
    let mut starts: Vec<_> = flows.zip(0..).filter_map(|(flow, place)| Some((at(flow)?, place))).collect();
    starts.sort_by_key(|&(time, place)| std::cmp::Reverse((time.since(Time::ZERO), place)));
    starts
}

/// Which triggers are kept: those that only flows that take part activate.
fn kept(workload: &Workload, places: &[Option<u32>]) -> Vec<bool> {
    let mut kept = vec![true; workload.triggers().len()];
    let absent = workload.flows().iter().zip(places).filter(|(_, place)| place.is_none());
    for trigger in absent.flat_map(|(flow, _)| [flow.on_sent, flow.on_received]).flatten() {
        kept[trigger.index()] = false;
    }
    kept
}
