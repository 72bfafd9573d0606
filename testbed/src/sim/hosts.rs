//! The hosts: an endpoint each, and the workload's flows on top.

use std::sync::Arc;

use weft_cc::Time;
use weft_stack::buffer::Buffer;
use weft_stack::fep::{Completion, ConnectOptions, ConnectionId, Failure, Fep, FepConfig, Receive, Send};
use weft_stack::packet::Addr;
use weft_stack::rng::Rng;
use weft_stack::ses::Matching;
use weft_stack::wire::pds::DeliveryMode;

use super::config::{PayloadMode, RunConfig, RunError};
use super::report::FlowRecord;
use crate::workload::{Flow, Start, TriggerBank, TriggerIdx, Workload, payload};

/// The hosts and their flows.
pub(super) struct Hosts {
    pub(super) feps: Vec<Fep>,
    /// For each host the earliest wake-up on the agenda.
    pub(super) timers: Vec<Option<Time>>,
    workload: Workload,
    triggers: TriggerBank,
    connections: Vec<Connection>,
    pub(super) flows: Vec<FlowRecord>,
    received: Vec<u8>,
    pub(super) flows_done: u64,
    open: usize,
    mode: DeliveryMode,
    payload: PayloadMode,
    pub(super) failures: Vec<String>,
    pub(super) payload_errors: Vec<String>,
}

/// A connection of the workload.
#[derive(Clone, Copy)]
struct Connection {
    id: Option<ConnectionId>,
    /// Flows that are not done.
    left: u32,
}

impl Hosts {
    pub(super) fn new(config: &RunConfig) -> Result<Hosts, RunError> {
        let workload = config.workload.clone();
        let endpoint: Arc<FepConfig> = Arc::new(config.endpoint());
        let make =
            |host| Fep::new(Addr(host), endpoint.clone(), Rng::new(config.seed, u64::from(host)), Time::ZERO);
        let feps = (0..workload.hosts()).map(make).collect::<Result<Vec<_>, _>>()?;
        let mut connections = vec![Connection { id: None, left: 0 }; workload.connections().len()];
        for flow in workload.flows() {
            connections[flow.connection as usize].left += 1;
        }
        let mut hosts = Hosts {
            timers: vec![None; feps.len()],
            feps,
            triggers: TriggerBank::new(&workload),
            flows: workload.flows().iter().map(FlowRecord::new).collect(),
            received: vec![0; workload.flows().len()],
            open: connections.iter().filter(|connection| connection.left > 0).count(),
            connections,
            flows_done: 0,
            mode: config.mode,
            payload: config.payload,
            failures: Vec::new(),
            payload_errors: Vec::new(),
            workload,
        };
        hosts.post_receives();
        Ok(hosts)
    }

    /// Every flow's receive is posted before anything starts, tagged with the flow's index.
    fn post_receives(&mut self) {
        for (index, flow) in self.workload.flows().iter().enumerate() {
            let receive = Receive {
                buffer: self.empty_buffer(flow.bytes as u32),
                from: Some(Addr(flow.src.0)),
                matching: Matching::Tagged { tag: index as u64, ignore: 0 },
                context: index as u64,
            };
            if let Err(error) = self.feps[flow.dst.0 as usize].post_receive(receive) {
                self.failures.push(format!("flow {}: {error}", flow.id));
            }
        }
    }

    fn empty_buffer(&self, len: u32) -> Buffer {
        match self.payload {
            PayloadMode::Virtual => Buffer::Virtual(len),
            PayloadMode::Real => Buffer::Heap(vec![0; len as usize]),
        }
    }

    /// The flows that start by themselves, with their times.
    pub(super) fn starts(&self) -> impl Iterator<Item = (u32, Time)> + '_ {
        self.workload.flows().iter().enumerate().filter_map(|(index, flow)| match flow.start {
            Start::At(at) => Some((index as u32, at)),
            Start::Trigger(_) => None,
        })
    }

    /// Whether every flow is done and every connection closed.
    pub(super) fn is_done(&self) -> bool {
        self.open == 0
    }

    /// Starts a flow; returns its host.
    pub(super) fn start(&mut self, now: Time, index: u32) -> u32 {
        let flow = &self.workload.flows()[index as usize];
        let (src, dst) = (flow.src.0, flow.dst.0);
        self.flows[index as usize].start = Some(now);
        let buffer = match self.payload {
            PayloadMode::Virtual => Buffer::Virtual(flow.bytes as u32),
            PayloadMode::Real => Buffer::Heap(payload(u64::from(index), flow.bytes as u32)),
        };
        let send = Send {
            buffer,
            tag: Some(u64::from(index)),
            header_data: u64::from(index),
            context: u64::from(index),
        };
        let connection = &mut self.connections[flow.connection as usize];
        let fep = &mut self.feps[src as usize];
        let options = ConnectOptions { mode: self.mode, ..ConnectOptions::default() };
        let id = match connection.id.filter(|id| fep.is_open(*id)) {
            Some(id) => Ok(id),
            None => fep.connect(now, Addr(dst), options).inspect(|id| connection.id = Some(*id)),
        };
        if let Err(error) = id.and_then(|id| fep.post_send(id, send)) {
            self.failures.push(format!("flow {}: {error}", flow.id));
            connection.left -= 1;
            if connection.left == 0 {
                self.open -= 1;
            }
        }
        src
    }

    /// Takes in the results of `host`. Flows that start because of them go to `started`.
    pub(super) fn collect(&mut self, now: Time, host: u32, started: &mut Vec<u32>) {
        while let Some(completion) = self.feps[host as usize].poll_completion() {
            match completion {
                Completion::Sent { context, retransmissions, result, .. } => {
                    self.sent(
                        now,
                        context as usize,
                        retransmissions,
                        result.err().map(|e| e.to_string()),
                        started,
                    );
                }
                Completion::Received { context, buffer, len, header_data, result, .. } => {
                    let index = context as usize;
                    self.received[index] = self.received[index].saturating_add(1);
                    let flow = self.workload.flows()[index];
                    if let Err(error) = result {
                        self.payload_errors.push(format!("flow {}: receive: {error}", flow.id));
                    }
                    self.check(index, &flow, len, header_data, &buffer);
                    self.activate(flow.on_received, started);
                }
                Completion::Closed { id, peer, result } => self.closed(host, id, peer, result.err()),
            }
        }
    }

    fn closed(&mut self, host: u32, id: ConnectionId, peer: Addr, failure: Option<Failure>) {
        let by_peer = matches!(failure, Some(Failure::ClosedByPeer { .. }));
        let ours = self.connections.iter_mut().zip(self.workload.connections());
        let mut ours = ours.filter(|(state, it)| it.src.0 == host && state.id == Some(id));
        match ours.next() {
            // Idle for long: its next flow connects anew.
            Some((connection, _)) if by_peer && connection.left > 0 => connection.id = None,
            Some(_) => self.open -= 1,
            // Another one has taken its place.
            None => {}
        }
        if let Some(failure) = failure.filter(|_| !by_peer) {
            self.failures.push(format!("host {host} to host {}: {failure}", peer.0));
        }
    }

    fn sent(&mut self, now: Time, index: usize, again: u32, error: Option<String>, started: &mut Vec<u32>) {
        let flow = self.workload.flows()[index];
        let record = &mut self.flows[index];
        record.retransmitted = u64::from(again);
        match error {
            None => {
                record.end = Some(now);
                self.flows_done += 1;
                self.activate(flow.on_sent, started);
            }
            Some(error) => self.failures.push(format!("flow {}: {error}", flow.id)),
        }
        let connection = &mut self.connections[flow.connection as usize];
        connection.left -= 1;
        if connection.left == 0
            && let Some(id) = connection.id
        {
            // Fails only where the connection has failed before, which is reported by itself.
            let _ = self.feps[flow.src.0 as usize].close(now, id);
        }
    }

    fn activate(&mut self, trigger: Option<TriggerIdx>, started: &mut Vec<u32>) {
        if let Some(trigger) = trigger {
            started.extend_from_slice(self.triggers.activate(&self.workload, trigger));
        }
    }

    fn check(&mut self, index: usize, flow: &Flow, len: u32, header_data: u64, buffer: &Buffer) {
        if self.received[index] > 1 {
            self.payload_errors.push(format!("flow {} arrived {} times", flow.id, self.received[index]));
        }
        if u64::from(len) != flow.bytes || header_data != index as u64 {
            self.payload_errors.push(format!("flow {} arrived as another message", flow.id));
        }
        if let Buffer::Heap(bytes) = buffer
            && let expected = payload(index as u64, flow.bytes as u32)
            && *bytes != expected
        {
            let at = bytes.iter().zip(&expected).position(|(a, b)| a != b);
            self.payload_errors.push(format!("flow {}: bytes differ from {at:?}", flow.id));
        }
    }

    /// Who waits for what.
    pub(super) fn explain(&self, now: Time) -> Vec<String> {
        let waiting = self.feps.iter().flat_map(|fep| fep.explain(now));
        let not_started = self.flows.iter().filter(|f| f.start.is_none());
        let not_started =
            not_started.map(|f| format!("flow {} from host {} has not been started", f.id, f.src));
        self.failures.iter().cloned().chain(waiting).chain(not_started).collect()
    }

    /// What is left in the endpoints although everything is done.
    pub(super) fn leaks(&self) -> Vec<String> {
        let mut leaks = Vec::new();
        for fep in &self.feps {
            leaks.extend(fep.leaks().map(|what| format!("endpoint {}: {what}", fep.addr().0)));
        }
        for (flow, count) in self.flows.iter().zip(&self.received) {
            if flow.end.is_some() && *count != 1 {
                leaks.push(format!("flow {} was received {count} times", flow.id));
            }
        }
        leaks
    }
}
