//! A simulated switch: it forwards the packets that arrive in a window to its output ports, and the ports
//! send.
//!
//! No event at one node can affect another node within the same window. So a switch processes all arrivals of
//! a window at once, port by port and in time order. A port needs no event when a transmission ends: the port
//! catches up when the next packet arrives for it, or at the end of the window. The ports of a switch do not
//! affect each other.

use std::mem::offset_of;

use weft_stack::prefetch::prefetch_start;

use super::faults::{FaultCounters, LinkChange};
use super::link::{Link, LinkSpec};
use super::order::Sorter;
use super::packets::Transit;
use super::sample::PortSample;
use super::totals::{Changes, Journal, NoJournal, Total};
use super::wires::{Arrival, NEVER, Wires};
use crate::switch::{Backlog, EgressQueue, Enqueued, Hasher, QueueConfig, QueueCounters, Steering};
use crate::topology::{HostId, NextPorts, PortId, Router};

/// An output port of a switch. A packet that finds the port idle touches only its first cache line.
#[repr(C, align(64))]
pub(super) struct Port {
    /// Index of the queue configuration.
    pub(super) config: u8,
    pub(super) link: Link,
    pub(super) queue: EgressQueue<Transit>,
    /// The bytes that the link had sent at the last sample.
    pub(super) sampled_bytes: u64,
}

/// A switch with its output ports.
pub(super) struct Switch {
    /// The number of its first port; the switch's ports are numbered consecutively.
    pub(super) first_port: u32,
    pub(super) router: Router,
    pub(super) hasher: Hasher,
    pub(super) steering: Steering,
    pub(super) ports: Vec<Port>,
    /// Bit `i` is clear while port `i` holds no packets.
    pub(super) waiting: Vec<u64>,
    /// The index of the inbox for packets on their way here.
    pub(super) inbox: u32,
    /// Bits needed to number the links that lead here.
    pub(super) rank_bits: u32,
    /// Packets dropped by full queues and by faulty links.
    pub(super) dropped: u64,
    /// The data in all its queues, if it is measured.
    pub(super) total: Option<Total>,
}

/// Working memory and settings shared by all switches of a shard.
pub(super) struct SwitchScratch {
    pub(super) queues: Vec<QueueConfig>,
    pub(super) seed: u64,
    /// From this many packets on their way to one switch, [`INDEX_BITS`] cannot number them and
    /// [`Switch::pass_many`] takes over.
    pub(super) max_indexed: usize,
    /// Number of packets that arrived in the last window.
    pub(super) arrivals: u64,
    /// The changes of queues in the present window, if they are measured.
    pub(super) changes: Option<Changes>,
    plan: Plan,
}

/// The packets that arrive at a switch in a window, by output port. Kept between windows to reuse the memory.
#[derive(Default)]
struct Plan {
    /// Sort key and output port of each arrival, in the order of the inbox.
    routed: Vec<(u64, u32)>,
    /// Bit `i` is set if there are packets for port `i`.
    arriving: Vec<u64>,
    /// The ports with packets to take in or to send, in order.
    busy: Vec<u32>,
    /// The sort keys, port by port.
    by_port: Vec<u64>,
    /// For each busy port, the position in `by_port` behind its keys; for others 0.
    ends: Vec<u32>,
    /// Bits of the sort keys.
    key_bits: u32,
    /// Packets that arrive after the window.
    later: Vec<Arrival>,
    sorter: Sorter,
}

/// Bits of a 64-bit sort key that number the arrival. The other bits hold its time and link.
const INDEX_BITS: u32 = 24;

/// The longest window, in ps, whose arrival times fit into the sort keys of a switch with `ports` ports.
pub(super) fn longest_window(ports: u32) -> u64 {
    1 << (u64::BITS - INDEX_BITS - rank_bits(ports))
}

/// Bits needed to number `links` links.
pub(super) fn rank_bits(links: u32) -> u32 {
    u32::BITS - links.saturating_sub(1).leading_zeros()
}

impl SwitchScratch {
    pub(super) fn new(queues: Vec<QueueConfig>, seed: u64) -> SwitchScratch {
        let (max_indexed, plan) = (1 << INDEX_BITS, Plan::default());
        SwitchScratch { queues, seed, max_indexed, arrivals: 0, changes: None, plan }
    }
}

/// The index of the arrival that a sort key stands for.
#[inline]
fn index_of(key: u64) -> usize {
    (key & ((1 << INDEX_BITS) - 1)) as usize
}

impl Plan {
    /// Begins a window of a switch with `ports` ports.
    fn begin(&mut self, ports: usize) {
        self.routed.clear();
        self.arriving.clear();
        self.arriving.resize(ports.div_ceil(64), 0);
        self.ends.resize(ports.max(self.ends.len()), 0);
    }

    /// Takes in those of `arrivals` that arrive from `start` to just before `end`. `route` computes the index of the
    /// output port of a packet. Of packets that arrive at the same instant, the one from the lower link comes first.
    #[inline(always)]
    fn fill(
        &mut self,
        arrivals: &[Arrival],
        (start, end): (u64, u64),
        rank_bits: u32,
        route: impl Fn(&Transit) -> u32,
    ) {
        for (arrival, index) in arrivals.iter().zip(0..) {
            if arrival.at >= end {
                self.later.push(*arrival);
                continue;
            }
            let time_and_link = (arrival.at - start) << rank_bits | u64::from(arrival.rank);
            let port = route(&arrival.transit);
            self.routed.push((time_and_link << INDEX_BITS | index, port));
            self.ends[port as usize] += 1;
            self.arriving[port as usize / 64] |= 1 << (port % 64);
        }
        self.key_bits = u64::BITS - (end - start).leading_zeros() + rank_bits + INDEX_BITS;
    }

    /// Lists the busy ports, those in `waiting` among them, and groups the keys by port.
    fn group(&mut self, waiting: &[u64]) {
        self.busy.clear();
        let mut sum = 0;
        for ((arriving, waiting), first) in self.arriving.iter().zip(waiting).zip((0..).step_by(64)) {
            let mut bits = arriving | waiting;
            while bits != 0 {
                let port = first + bits.trailing_zeros();
                self.busy.push(port);
                let end = &mut self.ends[port as usize];
                sum += std::mem::replace(end, sum);
                bits &= bits - 1;
            }
        }
        self.by_port.resize(self.routed.len(), 0);
        for (key, port) in &self.routed {
            let end = &mut self.ends[*port as usize];
            self.by_port[*end as usize] = *key;
            *end += 1;
        }
    }
}

/// What ports need besides their own state.
struct PortEnv<'a, J> {
    queues: &'a [QueueConfig],
    seed: u64,
    journal: &'a mut J,
    wires: &'a mut Wires,
    /// Packets dropped by full queues and by faulty links.
    dropped: u64,
}

/// Bytes at the start of a port that a packet needs if it waits.
const HOT: usize = 192;
const _: () = assert!(offset_of!(Port, queue) + EgressQueue::<Transit>::HOT <= HOT);

impl Switch {
    /// Processes the window from `start` to just before `end`. Returns the time of the next event here.
    pub(super) fn run(
        &mut self,
        start: u64,
        end: u64,
        scratch: &mut SwitchScratch,
        wires: &mut Wires,
    ) -> u64 {
        let Some(mut changes) = scratch.changes.take() else {
            return self.run_noting(start, end, scratch, &mut NoJournal, wires);
        };
        let next = self.run_noting(start, end, scratch, &mut changes, wires);
        if let Some(total) = &mut self.total {
            total.apply(&mut changes);
        }
        scratch.changes = Some(changes);
        next
    }

    /// Does the same and notes the changes of queues in `journal`.
    fn run_noting<J: Journal>(
        &mut self,
        start: u64,
        end: u64,
        scratch: &mut SwitchScratch,
        journal: &mut J,
        wires: &mut Wires,
    ) -> u64 {
        let mut arrivals = wires.take(self.inbox);
        let plan = &mut scratch.plan;
        let mut env = PortEnv { queues: &scratch.queues, seed: scratch.seed, journal, wires, dropped: 0 };
        plan.begin(self.ports.len());
        match matches!(self.steering, Steering::Ecmp) & (arrivals.len() < scratch.max_indexed) {
            true => self.route(&arrivals, (start, end), plan),
            false => self.pass_many(&mut arrivals, end, plan, &mut env),
        }
        let next = self.run_ports(&arrivals, end, plan, &mut env);
        self.dropped += env.dropped;
        let next = plan.later.iter().fold(next, |next, arrival| next.min(arrival.at));
        scratch.arrivals = (arrivals.len() - plan.later.len()) as u64;
        arrivals.clear();
        arrivals.append(&mut plan.later);
        wires.put_back(self.inbox, arrivals);
        next
    }

    /// Finds the output ports of the packets of a window.
    #[inline(always)]
    fn route(&self, arrivals: &[Arrival], window: (u64, u64), plan: &mut Plan) {
        let (hasher, first) = (self.hasher, self.first_port);
        let pick = |ports: NextPorts<'_>, transit: &Transit| {
            ports.pick(|count| hasher.choose(transit.flow_hash, count)).0 - first
        };
        match &self.router {
            Router::Clos(router) => plan.fill(arrivals, window, self.rank_bits, |transit| {
                pick(router.next_ports(HostId(transit.dst)), transit)
            }),
            Router::Graph(router) => plan.fill(arrivals, window, self.rank_bits, |transit| {
                pick(router.next_ports(HostId(transit.dst)), transit)
            }),
        }
    }

    /// Takes the packets of a window one by one, with the same result, for any number of packets and any routing.
    #[cold]
    #[inline(never)]
    fn pass_many<J: Journal>(
        &mut self,
        arrivals: &mut [Arrival],
        end: u64,
        plan: &mut Plan,
        env: &mut PortEnv<'_, J>,
    ) {
        // The sort is stable: packets of one link that arrive at the same instant keep the order of sending.
        arrivals.sort_by_key(|arrival| (arrival.at, arrival.rank));
        let (due, later) = arrivals.split_at(arrivals.partition_point(|arrival| arrival.at < end));
        for arrival in due {
            let mut arrival = *arrival;
            let port = self.steer(arrival.at, &mut arrival.transit, env);
            self.run_port(port, [&arrival].into_iter(), arrival.at + 1, env);
        }
        plan.later.extend_from_slice(later);
    }

    /// The index of the output port of a packet that arrives at `now`, by any routing.
    fn steer<J: Journal>(&mut self, now: u64, transit: &mut Transit, env: &mut PortEnv<'_, J>) -> usize {
        let Switch { router, hasher, steering, ports, first_port, .. } = self;
        let index = |PortId(id)| (id - *first_port) as usize;
        let choices = router.next_ports(HostId(transit.dst));
        if choices.len() == 1 {
            return index(choices.nth(0));
        }
        let packet = *transit;
        let backlogs = choices.iter().map(|id| {
            let port = &mut ports[index(id)];
            // As for a packet that is forwarded: those that leave before `now` do not wait any more.
            port.run(id.0, true, [].into_iter(), now, env);
            let waiting = port.queue.bytes_ahead_of(&packet);
            let data_limit = env.queues[usize::from(port.config)].data_limit;
            Backlog { bytes: waiting + port.link.unsent(now), data_limit }
        });
        let choice = steering.choose(*hasher, now, &mut transit.flow_hash, choices.len(), backlogs);
        index(choices.nth(choice))
    }

    /// Lets all ports take in their packets of a window and send what leaves before `end`. Returns the time at which the
    /// next waiting packet leaves.
    #[inline(always)]
    fn run_ports<J: Journal>(
        &mut self,
        arrivals: &[Arrival],
        end: u64,
        plan: &mut Plan,
        env: &mut PortEnv<'_, J>,
    ) -> u64 {
        plan.group(&self.waiting);
        let (mut next, mut begin) = (NEVER, 0);
        for (i, port) in plan.busy.iter().enumerate() {
            if let Some(following) = plan.busy.get(i + 1) {
                prefetch_start(&self.ports[*following as usize], HOT);
            }
            let end_of_keys = std::mem::take(&mut plan.ends[*port as usize]) as usize;
            let keys = &mut plan.by_port[begin..end_of_keys];
            begin = end_of_keys;
            plan.sorter.sort(keys, plan.key_bits);
            let packets = keys.iter().map(|key| &arrivals[index_of(*key)]);
            next = next.min(self.run_port(*port as usize, packets, end, env));
        }
        next
    }

    #[inline(always)]
    fn may_wait(&self, port: usize) -> bool {
        self.waiting[port / 64] >> (port % 64) & 1 != 0
    }

    /// Runs a port as [`Port::run`] does. Returns the time at which its next waiting packet leaves.
    #[inline(always)]
    fn run_port<'p, J: Journal>(
        &mut self,
        index: usize,
        packets: impl Iterator<Item = &'p Arrival>,
        end: u64,
        env: &mut PortEnv<'_, J>,
    ) -> u64 {
        let may_wait = self.may_wait(index);
        let port = &mut self.ports[index];
        let waits = port.run(self.first_port + index as u32, may_wait, packets, end, env);
        let word = &mut self.waiting[index / 64];
        *word = *word & !(1 << (index % 64)) | u64::from(waits) << (index % 64);
        if waits { port.link.busy_until } else { NEVER }
    }

    /// Applies a change to the link of a port.
    pub(super) fn change(&mut self, spec: &LinkSpec, change: LinkChange) {
        self.ports[(spec.id - self.first_port) as usize].link.change(spec, change);
    }

    /// The counters of all its ports.
    pub(super) fn counters(&self) -> impl Iterator<Item = QueueCounters> {
        self.ports.iter().map(|port| port.queue.counters())
    }

    /// Numbers of packets that faults of the links from its ports have met.
    pub(super) fn faults(&self) -> FaultCounters {
        self.ports.iter().map(|port| port.link.faults()).sum()
    }

    pub(super) fn sample(&mut self, samples: &mut Vec<PortSample>) {
        let fits = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        for (port, id) in self.ports.iter_mut().zip(self.first_port..) {
            let sample = PortSample {
                port: id,
                data_bytes: fits(port.queue.data_bytes()),
                control_bytes: fits(port.queue.control_bytes()),
                sent_bytes: port.link.take_sent_bytes(&mut port.sampled_bytes),
            };
            if (sample.data_bytes, sample.control_bytes, sample.sent_bytes) != (0, 0, 0) {
                samples.push(sample);
            }
        }
    }
}

impl Port {
    /// Takes in `packets`, which are in the order of arrival, and sends those whose transmission begins before `end`.
    /// `may_wait` is false if no packet waits. Returns whether one waits afterwards.
    #[inline(always)]
    fn run<'p, J: Journal>(
        &mut self,
        id: u32,
        may_wait: bool,
        mut packets: impl Iterator<Item = &'p Arrival>,
        end: u64,
        env: &mut PortEnv<'_, J>,
    ) -> bool {
        let config = &env.queues[usize::from(self.config)];
        let mut waits = may_wait && !self.queue.is_empty();
        let mut last = 0;
        loop {
            let packet = packets.next();
            // A packet that arrives when the link becomes free takes part in the choice of what leaves then, but not in
            // a choice that the packet before it has brought about.
            let until = packet.map_or(end, |packet| packet.at.max(last + 1));
            // One branch instead of two, as both would be hard to predict.
            while waits & (self.link.busy_until < until) {
                // A packet that waits leaves as soon as the one before it has left.
                let now = self.link.busy_until.max(last);
                let Some(transit) = self.queue.dequeue(config, now) else { break };
                waits = !self.queue.is_empty();
                env.journal.left(now, &transit);
                self.link.launch(now, id, env.seed, &transit, env.wires, &mut env.dropped);
            }
            let Some(Arrival { at, transit, .. }) = packet else { return waits };
            last = *at;
            let is_trimmed = self.link.draws_trim(id, env.seed, transit);
            // Again one branch.
            if !waits & (self.link.busy_until <= last) & config.passes(transit) & !is_trimmed {
                self.link.launch(last, id, env.seed, transit, env.wires, &mut env.dropped);
                continue;
            }
            let enqueued = match is_trimmed {
                false => self.queue.enqueue(config, last, *transit),
                true => self.queue.enqueue_trimmed(config, last, *transit),
            };
            match enqueued {
                Enqueued::Whole => env.journal.joined(last, transit),
                Enqueued::Trimmed => {}
                Enqueued::Dropped => {
                    env.dropped += 1;
                    env.wires.packets.lose(transit, last, id);
                }
            }
            waits = !self.queue.is_empty();
        }
    }
}

#[cfg(test)]
mod tests {
    use weft_cc::Span;
    use weft_stack::rng::Rng;

    use super::super::engine::{self, Watch};
    use super::super::faults::{FaultPlan, LinkFaults};
    use super::super::{RunConfig, RunReport, build, report};
    use crate::topology::TopologySpec;
    use crate::workload::WorkloadSpec;

    /// Runs `config` with another limit for indexed arrivals.
    fn run(config: &RunConfig, max_indexed: Option<usize>) -> RunReport {
        let all_links =
            LinkFaults { duplicate: 0.05, reorder: 0.1, delay: Span::from_us(3), ..LinkFaults::default() };
        let faults = FaultPlan { all_links, ..FaultPlan::default() };
        let mut system = build::build(config, &faults, 1, false).unwrap();
        for shard in &mut system.shards {
            shard.scratch.max_indexed = max_indexed.unwrap_or(shard.scratch.max_indexed);
        }
        let mut watch = Watch { progress: None, sampling: None, stop: None, tracing: None, flows_total: 0 };
        let end = engine::run(&mut system, config.until, &mut watch);
        report::report(config, &system, end)
    }

    #[test]
    fn more_packets_than_can_be_indexed_pass_in_the_same_order() {
        let topology = "leaf-spine:hosts=32,leaves=4,oversub=2".parse::<TopologySpec>().unwrap();
        let workload: WorkloadSpec = "incast:24".parse().unwrap();
        let workload = workload.build(Some(32), 200_000, &mut Rng::new(1, 1)).unwrap();
        let config = RunConfig::new(topology.build().unwrap(), workload);
        let plain = run(&config, None);
        assert!(plain.is_complete() && plain.packets.trimmed > 0, "{:?}", plain.packets);
        for max_indexed in [0, 20] {
            assert_eq!(run(&config, Some(max_indexed)), plain, "indexed if fewer than {max_indexed}");
        }
    }
}
