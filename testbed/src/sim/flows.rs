//! Drives the workload's flows over the endpoints of one shard.
//!
//! A shard starts the flows whose sources it holds and receives those whose destinations it holds. A receive
//! is posted when the first packet of its flow is about to be handed to the endpoint, so that a flow takes no
//! memory at its receiver before it begins.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use rustc_hash::FxHasher;
use weft_cc::{Span, Time};
use weft_stack::buffer::Buffer;
use weft_stack::fep::{Completion, ConnectionId, Failure, Fep, Receive, Send, SendError};
use weft_stack::packet::Addr;
use weft_stack::ses::Matching;

use super::config::{Opening, PayloadMode, RunConfig};
use super::part::{self, ArrivingParts, LeavingParts, Parts, is_large};
use super::report::FlowFailure;
use super::sample::{FlowSample, SenderSample};
use super::wires::NEVER;
use crate::workload::{Flow, Start, TriggerBank, TriggerIdx, Workload, first_wrong_byte, payload};

type Map<K, V> = HashMap<K, V, BuildHasherDefault<FxHasher>>;

/// A message for the report, with its time and host, by which messages are sorted.
pub(super) type Note = (u64, u32, String);

/// The flows that have their source or destination in one shard.
pub(super) struct Flows {
    workload: Arc<Workload>,
    opening: Opening,
    payload: PayloadMode,
    parts: Parts,
    triggers: TriggerBank,
    /// The flows that this shard starts.
    pub(super) source_flows: Vec<SourceFlow>,
    /// The connections of a pool follow each other.
    connections: Vec<ConnectionState>,
    /// For each slot of `connections` where a pool begins, the bytes of incomplete flows on each of its connections.
    pools: Map<u32, Vec<u64>>,
    by_id: Map<(u32, ConnectionId), u32>,
    /// For each flow of the workload that ends here: 0 if no receive is posted, otherwise 1 plus the number
    /// of times it has arrived.
    arrivals: Vec<u8>,
    /// For each flow of the workload, bytes that have arrived since the last sample.
    counts: Vec<u64>,
    counted: Vec<u32>,
    /// For each host, the slots of its flows that have begun, if the run is sampled. Those that are over leave with the
    /// next sample.
    open_at: Option<BTreeMap<u32, Vec<u32>>>,
    /// Slots of [`Flows::source_flows`] that the current event starts.
    pub(super) started: Vec<u32>,
    /// What the current event will start later.
    pub(super) delayed: Vec<(u64, Begin)>,
    slots: Vec<u32>,
    /// What has arrived here of each task of the workload.
    tasks: Vec<TaskArrivals>,
    /// Flows from here that are sent in parts, by slot, and to here, by their index in the workload.
    leaving: Map<u32, LeavingParts>,
    arriving: Map<u32, ArrivingParts>,
    pub(super) done: u64,
    /// Number of connections that are not closed.
    pub(super) open: u64,
    /// When the last connection was closed, ps.
    pub(super) last_close: u64,
    pub(super) failures: Vec<Note>,
    pub(super) failed: Vec<FlowFailure>,
    pub(super) payload_errors: Vec<Note>,
}

/// Something that begins at a host at a given time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Begin(u32);

/// What a [`Begin`] stands for.
pub(super) enum Beginning {
    /// The flow in this slot starts.
    Flow(u32),
    /// A trigger is activated.
    Activation(TriggerIdx),
}

impl Begin {
    /// The bit that tells triggers from slots. Workloads have fewer than 2³¹ of either.
    const TRIGGER: u32 = 1 << 31;

    pub(super) fn flow(slot: u32) -> Begin {
        Begin(slot)
    }

    fn activation(trigger: TriggerIdx) -> Begin {
        Begin(trigger.index() as u32 | Begin::TRIGGER)
    }

    pub(super) fn what(self) -> Beginning {
        match TriggerIdx::new(self.0 & !Begin::TRIGGER) {
            Some(trigger) if self.0 & Begin::TRIGGER != 0 => Beginning::Activation(trigger),
            _ => Beginning::Flow(self.0),
        }
    }
}

/// The state of a flow at its source.
pub(super) struct SourceFlow {
    /// Its index in the workload.
    pub(super) flow: u32,
    /// Index of its connection.
    connection: u32,
    /// When the flow began, and when the source knew that all of it had arrived, ps; [`NEVER`] until then. An
    /// `Option` would double the size.
    start: u64,
    end: u64,
    pub(super) retransmitted: u32,
}

impl SourceFlow {
    fn new(flow: u32, connection: u32) -> SourceFlow {
        SourceFlow { flow, connection, start: NEVER, end: NEVER, retransmitted: 0 }
    }

    /// When the flow began.
    pub(super) fn start(&self) -> Option<Time> {
        (self.start != NEVER).then_some(Time::from_ps(self.start))
    }

    /// When the source knew that all of it had arrived.
    pub(super) fn end(&self) -> Option<Time> {
        (self.end != NEVER).then_some(Time::from_ps(self.end))
    }
}

/// What has arrived of the flows of a task.
#[derive(Clone, Copy, Default)]
pub(super) struct TaskArrivals {
    /// Number of flows.
    pub(super) arrived: u32,
    /// When the last one was complete, ps.
    pub(super) last: u64,
}

impl TaskArrivals {
    fn note(&mut self, now: u64) {
        self.arrived += 1;
        self.last = self.last.max(now);
    }
}

/// The message `name` with `bytes` bytes, which is the flow in `slot` or a part of it.
fn message(payload_mode: PayloadMode, name: u64, bytes: u32, slot: u32) -> Send {
    let buffer = match payload_mode {
        PayloadMode::Virtual => Buffer::Virtual(bytes),
        PayloadMode::Real => Buffer::Heap(payload(name, bytes)),
    };
    Send { buffer, tag: Some(name), header_data: name, context: u64::from(slot) }
}

/// The state of a connection of the workload. It is finished when it has no flows left and is not open.
#[derive(Clone, Copy)]
struct ConnectionState {
    /// Its identifier at the endpoint, from opening until the endpoint reports it closed.
    id: Option<ConnectionId>,
    /// Number of flows of its pool that are not complete, at the first connection of the pool.
    left: u32,
    /// The slot where its pool begins: its own, if there is no other in the pool.
    pool: u32,
}

impl Flows {
    /// The flows of `config`'s workload whose sources `is_ours` accepts.
    pub(super) fn new(config: &RunConfig, is_ours: impl Fn(u32) -> bool, sampling: bool) -> Flows {
        let workload = &config.workload;
        let own = || workload.flows().iter().zip(0..).filter(|(flow, _)| is_ours(flow.src.0));
        // Exact capacity, because there may be millions.
        let mut source_flows = Vec::with_capacity(own().count());
        let (mut connections, mut pools) = (Vec::new(), Map::<u32, Vec<u64>>::default());
        let mut connection_slots = vec![u32::MAX; workload.connections().len()];
        let triggered = !workload.triggers().is_empty();
        let mut slots = vec![u32::MAX; if triggered { workload.flows().len() } else { 0 }];
        for (flow, index) in own() {
            let connection = &mut connection_slots[flow.connection as usize];
            if *connection == u32::MAX {
                let pool = connections.len() as u32;
                *connection = pool;
                let size = usize::from(workload.connections()[flow.connection as usize].pool.get());
                connections.resize(connections.len() + size, ConnectionState { id: None, left: 0, pool });
                if size > 1 {
                    pools.insert(pool, vec![0; size]);
                }
            }
            connections[*connection as usize].left += 1;
            if triggered {
                slots[index as usize] = source_flows.len() as u32;
            }
            source_flows.push(SourceFlow::new(index, *connection));
        }
        connections.shrink_to_fit();
        Flows {
            opening: config.opening(),
            payload: config.payload,
            triggers: TriggerBank::new(workload),
            open: connections.len() as u64,
            source_flows,
            connections,
            pools,
            by_id: Map::default(),
            arrivals: vec![0; workload.flows().len()],
            counts: vec![0; if sampling { workload.flows().len() } else { 0 }],
            counted: Vec::new(),
            open_at: sampling.then(BTreeMap::new),
            tasks: vec![TaskArrivals::default(); workload.tasks().len()],
            leaving: Map::default(),
            arriving: Map::default(),
            parts: Parts::new(config.mtu),
            started: Vec::new(),
            delayed: Vec::new(),
            slots,
            done: 0,
            last_close: 0,
            failures: Vec::new(),
            failed: Vec::new(),
            payload_errors: Vec::new(),
            workload: workload.clone(),
        }
    }

    /// Memory that the flows of `workload` take at their sources and destinations whether they have begun or
    /// not, bytes. Each thread beyond the first adds its own per-flow arrays.
    pub(super) fn bytes_of(workload: &Workload) -> u64 {
        let at_destination = size_of::<u8>();
        let triggered = if workload.triggers().is_empty() { 0 } else { size_of::<u32>() };
        let each = size_of::<SourceFlow>() + at_destination + triggered;
        let tasks = workload.tasks().len() * size_of::<TaskArrivals>();
        let connections = workload.connections().iter().map(|connection| usize::from(connection.pool.get()));
        let connections = connections.sum::<usize>() * size_of::<ConnectionState>();
        (workload.flows().len() * each + connections + tasks) as u64
    }

    fn flow(&self, index: u32) -> &Flow {
        &self.workload.flows()[index as usize]
    }

    /// The flows of this shard that start at a given time: time, slot and source.
    pub(super) fn starts(&self) -> impl Iterator<Item = (u64, Begin, u32)> + '_ {
        self.source_flows.iter().zip(0..).filter_map(|(source_flow, slot)| {
            let flow = self.flow(source_flow.flow);
            match flow.start {
                Start::At(at) => Some((at.as_ps(), Begin::flow(slot), flow.src.0)),
                Start::Trigger(_) => None,
            }
        })
    }

    /// The triggers that are activated at a given time: time, trigger, and its host according to `homes`.
    pub(super) fn activations<'a>(
        &'a self,
        homes: &'a [u32],
    ) -> impl Iterator<Item = (u64, Begin, u32)> + 'a {
        let triggers = self.workload.triggers().iter().zip((0..).filter_map(TriggerIdx::new)).zip(homes);
        triggers.filter_map(|((trigger, index), home)| {
            trigger.at.map(|at| (at.as_ps(), Begin::activation(index), *home))
        })
    }

    /// The host at which something begins.
    pub(super) fn host_of(&self, begin: Begin, homes: &[u32]) -> u32 {
        match begin.what() {
            Beginning::Flow(slot) => self.source(slot),
            Beginning::Activation(trigger) => homes[trigger.index()],
        }
    }

    /// The source of the flow in `slot`.
    pub(super) fn source(&self, slot: u32) -> u32 {
        self.flow(self.source_flows[slot as usize].flow).src.0
    }

    /// Starts the flow in `slot` at its source.
    pub(super) fn start(&mut self, now: u64, slot: u32, fep: &mut Fep) {
        let source_flow = &mut self.source_flows[slot as usize];
        let index = u64::from(source_flow.flow);
        let flow = &self.workload.flows()[source_flow.flow as usize];
        source_flow.start = now;
        if let Some(loads) = self.pools.get_mut(&source_flow.connection) {
            // The first of several: connections that are open come before those that never were.
            if let Some((member, load)) = (0..).zip(loads).min_by_key(|(_, load)| **load) {
                *load += flow.bytes;
                source_flow.connection += member;
            }
        }
        if let Some(open_at) = &mut self.open_at {
            open_at.entry(flow.src.0).or_default().push(slot);
        }
        if is_large(flow.bytes) {
            let parts = LeavingParts { next: 0, under_way: 0, failed: false };
            self.leaving.insert(slot, parts);
            return self.send_parts(now, slot, fep);
        }
        let send = message(self.payload, index, flow.bytes as u32, slot);
        self.send(now, slot, send, fep);
    }

    /// Posts `send`, which is the flow in `slot` or a part of it. Returns whether the endpoint has taken it; otherwise
    /// the flow has ended unless parts of it are under way.
    fn send(&mut self, now: u64, slot: u32, send: Send, fep: &mut Fep) -> bool {
        let source_flow = &self.source_flows[slot as usize];
        let flow = &self.workload.flows()[source_flow.flow as usize];
        let flow_slot = slot;
        let slot = source_flow.connection;
        let connection = &mut self.connections[slot as usize];
        let id = match connection.id.filter(|id| fep.is_open(*id)) {
            Some(id) => Ok(id),
            None => {
                let described = &self.workload.connections()[flow.connection as usize];
                let opened = self.opening.open(described, Time::from_ps(now), Addr(flow.dst.0), fep);
                opened.inspect(|id| {
                    connection.id = Some(*id);
                    self.by_id.insert((flow.src.0, *id), slot);
                })
            }
        };
        let posted = id.and_then(|id| Ok(fep.post_send(id, send)?));
        if let Err(error) = &posted {
            self.failures.push((now, flow.src.0, format!("flow {}: {error}", flow.id)));
            if !self.leaving.contains_key(&flow_slot) {
                self.leave(now, flow_slot, fep);
            }
        }
        posted.is_ok()
    }

    /// Sends parts of the flow in `slot` until enough are under way.
    fn send_parts(&mut self, now: u64, slot: u32, fep: &mut Fep) {
        let index = self.source_flows[slot as usize].flow;
        let bytes = self.flow(index).bytes;
        while let Some(parts) = self.leaving.get_mut(&slot)
            && let Some(number) = parts.take_next(self.parts.count(bytes))
        {
            let name = part::name(index, number);
            let Some(len) = self.parts.bytes(bytes, name) else { break };
            let send = message(self.payload, name, len, slot);
            if !self.send(now, slot, send, fep)
                && let Some(parts) = self.leaving.get_mut(&slot)
            {
                parts.give_up();
            }
        }
        if self.leaving.get(&slot).is_some_and(LeavingParts::has_failed_altogether) {
            self.leaving.remove(&slot);
            self.leave(now, slot, fep);
        }
    }

    /// Takes note of the end of a part of the flow in `slot`, if that is sent in parts. Returns whether the flow goes on,
    /// or has ended with an error of another part.
    fn has_parts_left(&mut self, now: u64, slot: u32, error: Option<SendError>, fep: &mut Fep) -> bool {
        let Some(parts) = self.leaving.get_mut(&slot) else { return false };
        let failed_before = parts.failed;
        parts.end(error.is_some());
        if let Some(error) = error.filter(|_| !failed_before) {
            let index = self.source_flows[slot as usize].flow;
            let flow = *self.flow(index);
            self.failures.push((now, flow.src.0, format!("flow {}: {error}", flow.id)));
            self.failed.push(FlowFailure { flow: index, at: Time::from_ps(now), error });
        }
        self.send_parts(now, slot, fep);
        let Some(parts) = self.leaving.get(&slot) else { return true };
        if parts.under_way == 0 {
            self.leaving.remove(&slot);
            return false;
        }
        true
    }

    /// Counts the flow in `slot` as finished, and closes its connection, or those of its pool, after the last flow.
    fn leave(&mut self, now: u64, slot: u32, fep: &mut Fep) {
        let source_flow = &self.source_flows[slot as usize];
        let bytes = self.workload.flows()[source_flow.flow as usize].bytes;
        let first = self.connections[source_flow.connection as usize].pool;
        let mut size = 1;
        if let Some(loads) = self.pools.get_mut(&first) {
            loads[(source_flow.connection - first) as usize] -= bytes;
            size = loads.len();
        }
        let connection = &mut self.connections[first as usize];
        connection.left -= 1;
        if connection.left > 0 {
            return;
        }
        for connection in first as usize..first as usize + size {
            match self.connections[connection].id {
                // Fails only if the connection has failed already, which the endpoint is about to report.
                Some(id) => _ = fep.close(Time::from_ps(now), id),
                None => self.over(now),
            }
        }
    }

    /// Counts a connection as closed.
    fn over(&mut self, now: u64) {
        self.open -= 1;
        self.last_close = self.last_close.max(now);
    }

    /// Posts the receive of flow `index`, of which a packet is about to arrive, unless it is posted already.
    #[inline]
    pub(super) fn expect(&mut self, index: u64, fep: &mut Fep) {
        let flow = part::flow_of(index);
        if self.arrivals.get(flow as usize).is_some_and(|arrivals| *arrivals == 0) {
            self.post_receive(flow, index, fep);
        }
    }

    /// Posts a receive for the message `name` of flow `index`, which has more than one if it is large.
    #[cold]
    fn post_receive(&mut self, index: u32, name: u64, fep: &mut Fep) {
        let flow = *self.flow(index);
        let is_large = is_large(flow.bytes);
        let Some(bytes) = self.parts.bytes(flow.bytes, name) else { return };
        if is_large && !self.arriving.entry(index).or_default().is_news(part::number(name)) {
            return;
        }
        let buffer = match self.payload {
            PayloadMode::Virtual => Buffer::Virtual(bytes),
            PayloadMode::Real => Buffer::Heap(vec![0; bytes as usize]),
        };
        let receive = Receive {
            buffer,
            from: Some(Addr(flow.src.0).into()),
            matching: Matching::Tagged { tag: name, ignore: 0 },
            context: name,
        };
        match fep.post_receive(receive) {
            Ok(_) if is_large => self.arriving.entry(index).or_default().expect(part::number(name)),
            Ok(_) => self.arrivals[index as usize] = 1,
            // Tried again when the next packet of the flow arrives.
            Err(error) => {
                let note = (0, flow.dst.0, format!("flow {}: {error}", flow.id));
                if !self.failures.contains(&note) {
                    self.failures.push(note);
                }
            }
        }
    }

    /// Counts arrived bytes of flow `index`.
    #[inline]
    pub(super) fn count(&mut self, index: u64, bytes: u32) {
        let flow = part::flow_of(index);
        if let Some(count) = self.counts.get_mut(flow as usize) {
            if *count == 0 && bytes > 0 {
                self.counted.push(flow);
            }
            *count += u64::from(bytes);
        }
    }

    /// Appends the bytes counted since the last call.
    pub(super) fn sample(&mut self, samples: &mut Vec<FlowSample>) {
        for flow in self.counted.drain(..) {
            let received_bytes = std::mem::take(&mut self.counts[flow as usize]);
            samples.push(FlowSample { flow, received_bytes, sender: None });
        }
    }

    /// Appends the state at their sender, the endpoint `fep`, of the flows that are open there.
    pub(super) fn sample_senders(&mut self, fep: &Fep, samples: &mut Vec<FlowSample>) {
        let Some(slots) = self.open_at.as_mut().and_then(|open_at| open_at.get_mut(&fep.addr().0)) else {
            return;
        };
        slots.retain(|slot| {
            let source_flow = &self.source_flows[*slot as usize];
            let connection = self.connections[source_flow.connection as usize].id;
            let state = connection.and_then(|id| Some((fep.congestion(id)?, fep.flight(id)?)));
            let Some((cc, (in_flight, measured))) = state.filter(|_| source_flow.end == NEVER) else {
                return false;
            };
            let sender = SenderSample {
                cwnd: cc.cwnd,
                in_flight,
                rtt: measured.smoothed(),
                in_hosts: measured.in_hosts(),
                base_rtt: cc.base_rtt,
                phase: cc.phase,
            };
            samples.push(FlowSample { flow: source_flow.flow, received_bytes: 0, sender: Some(sender) });
            true
        });
    }

    /// Handles the completions of an endpoint.
    #[inline]
    pub(super) fn collect(&mut self, now: u64, fep: &mut Fep) {
        while let Some(completion) = fep.poll_completion() {
            self.complete(now, completion, fep);
        }
    }

    fn complete(&mut self, now: u64, completion: Completion, fep: &mut Fep) {
        match completion {
            Completion::Sent { context, retransmissions, result, .. } => {
                self.sent(now, context as u32, retransmissions, result.err(), fep);
            }
            Completion::Received { context, buffer, len, header_data, result, .. } => {
                let index = part::flow_of(context);
                let flow = *self.flow(index);
                if let Err(error) = result {
                    let note = format!("flow {}: receive: {error}", flow.id);
                    return self.failures.push((now, flow.dst.0, note));
                }
                self.check(now, context, &flow, (len, header_data), &buffer);
                if !self.has_arrived(context, &flow) {
                    return;
                }
                if let Some(task) = self.workload.task_of(index) {
                    self.tasks[task].note(now);
                }
                self.activate(now, flow.on_received);
            }
            Completion::Closed { id, peer, result } => self.closed(now, fep.addr().0, id, peer, result.err()),
            // Workloads consist of messages.
            Completion::Read { .. } | Completion::Accessed { .. } | Completion::Written(_) => {}
        }
    }

    fn closed(&mut self, now: u64, host: u32, id: ConnectionId, peer: Addr, failure: Option<Failure>) {
        let by_peer = matches!(failure, Some(Failure::ClosedByPeer { .. }));
        if let Some(slot) = self.by_id.remove(&(host, id))
            && let connection = &mut self.connections[slot as usize]
            // Otherwise another connection has replaced it.
            && connection.id == Some(id)
        {
            // If there are flows left, the next one opens it again.
            connection.id = None;
            let pool = connection.pool;
            if self.connections[pool as usize].left == 0 {
                self.over(now);
            }
        }
        if let Some(failure) = failure.filter(|_| !by_peer) {
            self.failures.push((now, host, format!("host {host} to host {}: {failure}", peer.0)));
        }
    }

    fn sent(&mut self, now: u64, slot: u32, again: u32, error: Option<SendError>, fep: &mut Fep) {
        let retransmitted = &mut self.source_flows[slot as usize].retransmitted;
        *retransmitted = retransmitted.saturating_add(again);
        if !self.leaving.is_empty() && self.has_parts_left(now, slot, error, fep) {
            return;
        }
        let source_flow = &mut self.source_flows[slot as usize];
        let index = source_flow.flow;
        let flow = self.workload.flows()[index as usize];
        match error {
            None => {
                source_flow.end = now;
                self.done += 1;
                self.activate(now, flow.on_sent);
            }
            Some(error) => {
                self.failures.push((now, flow.src.0, format!("flow {}: {error}", flow.id)));
                self.failed.push(FlowFailure { flow: index, at: Time::from_ps(now), error });
            }
        }
        self.leave(now, slot, fep);
    }

    /// Activates a trigger. What it starts goes to `started`, or to `delayed`.
    pub(super) fn activate(&mut self, now: u64, mut next: Option<TriggerIdx>) {
        while let Some(trigger) = next {
            let Some(fired) = self.triggers.activate(&self.workload, trigger) else { return };
            let slots = fired.flows.iter().map(|flow| self.slots[*flow as usize]);
            if fired.delay == Span::ZERO {
                self.started.extend(slots);
                next = fired.then;
            } else {
                let at = now.saturating_add(fired.delay.as_ps());
                let then = fired.then.map(Begin::activation);
                self.delayed.extend(slots.map(Begin::flow).chain(then).map(|begin| (at, begin)));
                next = None;
            }
        }
    }

    /// Counts the message `name` of `flow` as arrived. Returns whether that completes the flow.
    fn has_arrived(&mut self, name: u64, flow: &Flow) -> bool {
        let index = part::flow_of(name);
        let arrivals = &mut self.arrivals[index as usize];
        if !is_large(flow.bytes) {
            *arrivals = arrivals.saturating_add(1);
            return true;
        }
        let parts = self.arriving.entry(index).or_default();
        if parts.arrive(part::number(name)) < self.parts.count(flow.bytes) {
            return false;
        }
        self.arriving.remove(&index);
        *arrivals = 2;
        true
    }

    fn check(&mut self, now: u64, name: u64, flow: &Flow, (len, header_data): (u32, u64), buffer: &Buffer) {
        let mut errors = Vec::new();
        let times = self.arrivals[part::flow_of(name) as usize];
        if times > 1 {
            errors.push(format!("flow {} arrived {times} times", flow.id));
        }
        if Some(len) != self.parts.bytes(flow.bytes, name) || header_data != name {
            errors.push(format!("flow {} arrived as another message", flow.id));
        }
        if let Buffer::Heap(bytes) = buffer
            && let Some(at) = first_wrong_byte(name, bytes)
        {
            errors.push(format!("flow {}: bytes differ from byte {at} on", flow.id));
        }
        self.payload_errors.extend(errors.into_iter().map(|error| (now, flow.dst.0, error)));
    }

    /// What has arrived here of task `index`.
    pub(super) fn task(&self, index: usize) -> TaskArrivals {
        self.tasks[index]
    }

    /// Number of times that flow `index` has arrived here.
    pub(super) fn times_received(&self, index: u32) -> u8 {
        self.arrivals[index as usize].saturating_sub(1)
    }
}
