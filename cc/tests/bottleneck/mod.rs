//! A small deterministic network: senders with a link each, one bottleneck queue, one receiver.
//!
//! The queue marks between 0.2 and 0.8 BDP, at dequeue. It trims above one BDP; where trimming is off
//! it drops above five, as the UE text recommends. All flows have the same base RTT, and feedback is never queued.
//! Every sender has unlimited data, so trimmed and lost packets need no retransmission of their own.
#![allow(unreachable_pub)] // a module of a test binary has no other users

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use weft_cc::credit::{GrantLedger, SenderCredit};
use weft_cc::{
    AckSample, CcChoice, CcParams, DataSample, LossSample, NackCause, NackSample, ReceiverAlgorithm,
    ReceiverCc, SenderAlgorithm, SenderCc, SenderId, SentPacket, Span, Time, Trim,
};

const FOREVER: u64 = 1 << 40;
const RTO: Span = Span::from_us(100);

#[derive(Clone, Copy)]
struct Packet {
    flow: usize,
    sent: u64,
    scheduled: bool,
    target: Option<u32>,
}

#[derive(Clone, Copy)]
enum Event {
    /// A packet reaches the bottleneck queue.
    Arrive(Packet),
    /// The bottleneck has put a packet on the wire.
    Depart,
    /// Feedback reaches the sender, with the credit total that every message carries.
    Ack {
        packet: Packet,
        ecn: bool,
        total: Option<u32>,
    },
    Nack {
        packet: Packet,
    },
    Timeout {
        packet: Packet,
    },
    Credit {
        flow: usize,
        total: u32,
    },
    /// A sender's link is free again.
    Wake {
        flow: usize,
    },
    PollCredit,
}

/// One sender and its results.
pub struct Flow {
    pub cc: SenderAlgorithm,
    credit: Option<SenderCredit>,
    in_flight: u64,
    link_free: u64,
    waking: bool,
    active: bool,
    /// Bytes that reached the receiver whole.
    pub delivered: u64,
}

/// The network, in virtual time from zero; the algorithms see a clock that starts at `epoch`.
pub struct Bottleneck {
    params: CcParams,
    queue_limit: u64,
    now: u64,
    epoch: Time,
    sequence: u64,
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    slots: Vec<Event>,
    free: Vec<usize>,
    queue: VecDeque<Packet>,
    busy: bool,
    random: u64,
    receiver: Option<ReceiverAlgorithm>,
    ledgers: Vec<GrantLedger>,
    poll_at: Option<u64>,
    /// Share of credit messages that get lost, in 1/256.
    pub credit_loss: u64,
    pub flows: Vec<Flow>,
    /// Packets trimmed or dropped.
    pub discarded: u64,
}

impl Bottleneck {
    pub fn new(choice: &CcChoice, params: &CcParams, flows: usize, epoch: Time) -> Bottleneck {
        let prepared = choice.prepare(params);
        let flow = |_| Flow {
            cc: prepared.sender(),
            credit: prepared.sender_credit(),
            in_flight: 0,
            link_free: 0,
            waking: false,
            active: false,
            delivered: 0,
        };
        Bottleneck {
            params: *params,
            queue_limit: params.network_bdp() * if params.trimming { 1 } else { 5 },
            now: 0,
            epoch,
            sequence: 0,
            events: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            queue: VecDeque::new(),
            busy: false,
            random: 0x9E37_79B9_7F4A_7C15,
            receiver: prepared.receiver(),
            ledgers: vec![GrantLedger::new(); flows],
            poll_at: None,
            credit_loss: 0,
            flows: (0..flows).map(flow).collect(),
            discarded: 0,
        }
    }

    pub fn start(&mut self, flow: usize) {
        self.flows[flow].active = true;
        self.send(flow);
    }

    pub fn stop(&mut self, flow: usize) {
        self.flows[flow].active = false;
    }

    pub fn run_until(&mut self, until: Span) {
        while let Some(&Reverse((at, _, slot))) = self.events.peek() {
            if at > until.as_ps() {
                break;
            }
            self.events.pop();
            self.free.push(slot);
            self.now = at;
            self.handle(self.slots[slot]);
        }
        self.now = until.as_ps();
    }

    pub fn clear_counts(&mut self) {
        self.flows.iter_mut().for_each(|f| f.delivered = 0);
        self.discarded = 0;
    }

    /// Share of the bottleneck that was used for whole packets in the last `span`.
    pub fn utilisation(&self, span: Span) -> f64 {
        let delivered: u64 = self.flows.iter().map(|f| f.delivered).sum();
        delivered as f64 / self.params.link_rate.bytes_in(span) as f64
    }

    /// Jain's index over what was delivered.
    pub fn fairness(&self) -> f64 {
        let x: Vec<f64> = self.flows.iter().map(|f| f.delivered as f64).collect();
        let (sum, squares) = (x.iter().sum::<f64>(), x.iter().map(|v| v * v).sum::<f64>());
        sum * sum / (x.len() as f64 * squares)
    }

    fn at(&self, ps: u64) -> Time {
        self.epoch + Span::from_ps(ps)
    }

    fn schedule(&mut self, at: u64, event: Event) {
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot] = event;
                slot
            }
            None => {
                self.slots.push(event);
                self.slots.len() - 1
            }
        };
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, slot)));
    }

    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 32
    }

    fn one_way(&self) -> u64 {
        (self.params.network_rtt.as_ps() - self.packet_time() * 2) / 2
    }

    fn packet_time(&self) -> u64 {
        self.params.link_rate.time_for(self.params.wire_mtu()).as_ps()
    }

    fn send(&mut self, index: usize) {
        let bytes = self.params.wire_mtu();
        let packet_time = self.packet_time();
        let arrival = self.now + packet_time + self.one_way();
        let now = self.at(self.now);
        let flow = &mut self.flows[index];
        if !flow.active || flow.waking || !allowed(flow, bytes) {
            return;
        }
        if flow.link_free > self.now {
            flow.waking = true;
            let at = flow.link_free;
            return self.schedule(at, Event::Wake { flow: index });
        }
        flow.in_flight += bytes;
        flow.link_free = self.now + packet_time;
        let cwnd = flow.cc.window().0;
        let (scheduled, target) = match &mut flow.credit {
            None => (false, None),
            Some(credit) => {
                let scheduled = !credit.is_speculating();
                credit.on_send(bytes);
                (scheduled, Some(credit.credit_target(FOREVER, 0, Some(cwnd), 0)))
            }
        };
        flow.cc.on_send(
            now,
            &SentPacket { bytes, in_flight: flow.in_flight, retransmission: false, app_limited: false },
        );
        let packet = Packet { flow: index, sent: self.now, scheduled, target };
        self.schedule(arrival, Event::Arrive(packet));
        self.send(index);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrive(packet) => self.arrive(packet),
            Event::Depart => self.depart(),
            Event::Ack { packet, ecn, total } => self.ack(packet, ecn, total),
            Event::Nack { packet } => self.nack(packet),
            Event::Timeout { packet } => self.timeout(packet),
            Event::Credit { flow, total } => {
                if let Some(credit) = &mut self.flows[flow].credit {
                    credit.on_credit_total(total);
                }
                self.send(flow);
            }
            Event::Wake { flow } => {
                self.flows[flow].waking = false;
                self.send(flow);
            }
            Event::PollCredit => {
                self.poll_at = None;
                self.poll_credit();
            }
        }
    }

    fn arrive(&mut self, packet: Packet) {
        let bytes = self.params.wire_mtu();
        if (self.queue.len() as u64 + 1) * bytes > self.queue_limit {
            self.discarded += 1;
            if self.params.trimming {
                self.receive(packet, true);
                let at = self.now + self.one_way();
                self.schedule(at, Event::Nack { packet });
            } else {
                self.schedule(packet.sent + RTO.as_ps(), Event::Timeout { packet });
            }
            return;
        }
        self.queue.push_back(packet);
        if !self.busy {
            self.busy = true;
            self.schedule(self.now + self.packet_time(), Event::Depart);
        }
    }

    fn depart(&mut self) {
        let Some(packet) = self.queue.pop_front() else { return };
        let (bdp, queued) =
            (self.params.network_bdp() as f64, self.queue.len() as u64 * self.params.wire_mtu());
        let chance = (queued as f64 / bdp - 0.2) / 0.6;
        let ecn = (self.random() % 4096) as f64 / 4096.0 < chance;
        self.flows[packet.flow].delivered += self.params.wire_mtu();
        self.receive(packet, false);
        let total = self.receiver.as_ref().map(|_| self.ledgers[packet.flow].total());
        self.schedule(self.now + self.one_way(), Event::Ack { packet, ecn, total });
        self.busy = !self.queue.is_empty();
        if self.busy {
            self.schedule(self.now + self.packet_time(), Event::Depart);
        }
    }

    fn receive(&mut self, packet: Packet, trimmed: bool) {
        let now = self.at(self.now);
        let (Some(receiver), Some(target)) = (&mut self.receiver, packet.target) else { return };
        let id = SenderId(packet.flow as u32);
        let (bytes, scheduled) = (self.params.wire_mtu(), packet.scheduled);
        receiver.on_data(
            now,
            id,
            &DataSample {
                bytes,
                scheduled,
                ecn: false,
                trimmed: trimmed.then_some(Trim::LastHop),
                congested_sender: false,
            },
        );
        receiver.on_demand(now, id, self.ledgers[packet.flow].on_target(target));
        self.poll_credit();
    }

    fn poll_credit(&mut self) {
        let now = self.at(self.now);
        while let Some(grant) = self.receiver.as_mut().and_then(|r| r.poll_credit(now)) {
            let flow = grant.sender.0 as usize;
            let total = self.ledgers[flow].on_grant(grant.bytes);
            if self.random() % 256 >= self.credit_loss {
                self.schedule(self.now + self.one_way(), Event::Credit { flow, total });
            }
        }
        let due = self.receiver.as_ref().and_then(|r| r.poll_timeout());
        let due = due.map(|t| self.now + t.since(now).as_ps());
        if let Some(at) = due.filter(|&at| self.poll_at.is_none_or(|pending| at < pending)) {
            self.poll_at = Some(at);
            self.schedule(at, Event::PollCredit);
        }
    }

    fn ack(&mut self, packet: Packet, ecn: bool, total: Option<u32>) {
        let now = self.at(self.now);
        let bytes = self.params.wire_mtu();
        let flow = &mut self.flows[packet.flow];
        flow.in_flight -= bytes;
        if let (Some(credit), Some(total)) = (&mut flow.credit, total) {
            credit.on_credit_total(total);
        }
        flow.cc.on_ack(now, &sample(bytes, Span::from_ps(self.now - packet.sent), ecn, flow.in_flight));
        self.send(packet.flow);
    }

    fn nack(&mut self, packet: Packet) {
        let now = self.at(self.now);
        let bytes = self.params.wire_mtu();
        let flow = &mut self.flows[packet.flow];
        flow.in_flight -= bytes;
        if let Some(credit) = &mut flow.credit {
            credit.on_feedback();
        }
        let in_flight = flow.in_flight;
        flow.cc
            .on_nack(now, &NackSample { bytes, cause: NackCause::Trimmed, ecn: true, rtt: None, in_flight });
        self.send(packet.flow);
    }

    fn timeout(&mut self, packet: Packet) {
        let now = self.at(self.now);
        let bytes = self.params.wire_mtu();
        let flow = &mut self.flows[packet.flow];
        flow.in_flight -= bytes;
        flow.cc.on_timeout(now, &LossSample { bytes, in_flight: flow.in_flight, expiries: 1 });
        self.send(packet.flow);
    }
}

fn allowed(flow: &Flow, bytes: u64) -> bool {
    let fits = flow.in_flight + bytes <= flow.cc.window().0 || flow.in_flight == 0;
    fits && flow.credit.as_ref().is_none_or(SenderCredit::may_send)
}

/// An ordinary ACK.
pub fn sample(bytes: u64, rtt: Span, ecn: bool, in_flight: u64) -> AckSample {
    AckSample {
        newly_received: bytes.try_into().unwrap(),
        trigger_bytes: bytes.try_into().unwrap(),
        rtt: Some(rtt),
        ecn,
        in_flight,
        out_of_order: 0,
        hosts: None,
    }
}
