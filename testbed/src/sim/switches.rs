//! A simulated switch: it forwards the packets that arrive in a window to its output ports, and the ports
//! send.
//!
//! No event at one node can affect another node within the same window. So a switch processes all arrivals of
//! a window at once, port by port and in time order. A port needs no event when a transmission ends: the port
//! catches up when the next packet arrives for it, or at the end of the window. The ports of a switch do not
//! affect each other.

use std::hint::select_unpredictable;

use weft_stack::prefetch::prefetch_start;

use super::faults::{FaultCounters, LinkChange};
use super::link::{Link, LinkSpec};
use super::order::Sorter;
use super::packets::Transit;
use super::sample::PortSample;
use super::totals::{Changes, Total};
use super::wires::{Arrival, NEVER, Wires};
use crate::switch::{Backlog, EgressQueue, Enqueued, Hasher, QueueConfig, QueueCounters, Steering};
use crate::topology::{HostId, PortId, Router};

/// An output port of a switch. A packet that finds the port idle touches only its first cache line.
#[repr(C, align(64))]
pub(super) struct Port {
    /// Index of the queue configuration.
    pub(super) config: u8,
    pub(super) link: Link,
    pub(super) queue: EgressQueue<Transit>,
}

/// A switch with its output ports.
pub(super) struct Switch {
    /// The number of its first port; the switch's ports are numbered consecutively.
    pub(super) first_port: u32,
    pub(super) router: Router,
    pub(super) hasher: Hasher,
    pub(super) steering: Steering,
    pub(super) ports: Vec<Port>,
    /// Bit `i` is set while port `i` holds packets.
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
    pub(super) changes: Changes,
    /// Sort keys of the arrivals of a window. Kept between windows to reuse the memory.
    order: Vec<u64>,
    /// Indices of the arrivals, grouped by output port.
    by_port: Vec<u32>,
    /// For each port, the position in `by_port` of its next arrival.
    offsets: Vec<u32>,
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
        let max_indexed = 1 << INDEX_BITS;
        let (order, by_port, offsets) = (Vec::new(), Vec::new(), Vec::new());
        SwitchScratch {
            queues,
            seed,
            max_indexed,
            arrivals: 0,
            changes: Changes::default(),
            order,
            by_port,
            offsets,
            sorter: Sorter::default(),
        }
    }
}

/// Removes all `arrivals` before `end`.
fn keep_from(end: u64, arrivals: &mut Vec<Arrival>) {
    let mut kept = 0;
    for index in 0..arrivals.len() {
        arrivals[kept] = arrivals[index];
        kept += usize::from(arrivals[index].at >= end);
    }
    arrivals.truncate(kept);
}

/// The index of the arrival that a key of [`SwitchScratch::order`] stands for.
#[inline]
fn index_of(key: u64) -> usize {
    (key & ((1 << INDEX_BITS) - 1)) as usize
}

/// Settings of the run that ports need.
#[derive(Clone, Copy)]
struct PortEnv<'a> {
    queues: &'a [QueueConfig],
    seed: u64,
}

/// How many arrivals ahead a port is prefetched.
const AHEAD: usize = 4;

impl Switch {
    /// Processes the window from `start` to just before `end`. Returns the time of the next event here.
    pub(super) fn run(
        &mut self,
        start: u64,
        end: u64,
        scratch: &mut SwitchScratch,
        wires: &mut Wires,
    ) -> u64 {
        let mut arrivals = wires.take(self.inbox);
        let fast = matches!(self.steering, Steering::Ecmp) & (arrivals.len() < scratch.max_indexed);
        let next = match fast {
            true => self.pass(&mut arrivals, start, end, scratch, wires),
            false => self.pass_many(&mut arrivals, end, scratch, wires),
        };
        keep_from(end, &mut arrivals);
        wires.put_back(self.inbox, arrivals);
        let env = PortEnv { queues: &scratch.queues, seed: scratch.seed };
        let next = next.min(self.send_until(end, env, &mut scratch.changes, wires));
        if let Some(total) = &mut self.total {
            total.apply(&mut scratch.changes);
        }
        next
    }

    /// Forwards the packets that arrive before `end`. Returns the time of the first later arrival.
    #[inline(always)]
    fn pass(
        &mut self,
        arrivals: &mut [Arrival],
        start: u64,
        end: u64,
        scratch: &mut SwitchScratch,
        wires: &mut Wires,
    ) -> u64 {
        let next = self.plan(arrivals, start, end, scratch);
        let env = PortEnv { queues: &scratch.queues, seed: scratch.seed };
        let order = &scratch.by_port[..];
        for (i, index) in order.iter().enumerate() {
            if let Some(later) = order.get(i + AHEAD) {
                let port = (arrivals[*later as usize].rank - self.first_port) as usize;
                prefetch_start(&self.ports[port], 128);
            }
            let Arrival { at, ref transit, rank: port } = arrivals[*index as usize];
            self.forward(at, transit, port, env, &mut scratch.changes, wires);
        }
        scratch.arrivals = order.len() as u64;
        next
    }

    /// Does the same as [`Switch::pass`], with the same result, for any number of packets and any routing.
    #[cold]
    #[inline(never)]
    fn pass_many(
        &mut self,
        arrivals: &mut [Arrival],
        end: u64,
        scratch: &mut SwitchScratch,
        wires: &mut Wires,
    ) -> u64 {
        // The sort is stable: packets of one link that arrive at the same instant keep the order of sending.
        arrivals.sort_by_key(|arrival| (arrival.at, arrival.rank));
        let (due, later) = arrivals.split_at(arrivals.partition_point(|arrival| arrival.at < end));
        let env = PortEnv { queues: &scratch.queues, seed: scratch.seed };
        for Arrival { at, transit, .. } in due {
            let mut transit = *transit;
            let port = self.steer(*at, &mut transit, env, &mut scratch.changes, wires);
            self.forward(*at, &transit, port, env, &mut scratch.changes, wires);
        }
        scratch.arrivals = due.len() as u64;
        later.first().map_or(NEVER, |arrival| arrival.at)
    }

    /// Orders and routes the packets that arrive before `end`. The sort key takes over the rank of each
    /// arrival, and the rank field is replaced by the number of the output port. Returns the time of the
    /// first later arrival.
    fn plan(&self, arrivals: &mut [Arrival], start: u64, end: u64, scratch: &mut SwitchScratch) -> u64 {
        scratch.order.resize(arrivals.len(), 0);
        scratch.offsets.clear();
        scratch.offsets.resize(self.ports.len(), 0);
        let (mut count, mut next) = (0, NEVER);
        for (arrival, index) in arrivals.iter_mut().zip(0..) {
            // Branch-free: due and later arrivals are mixed, so a branch would be mispredicted.
            let due = arrival.at < end;
            let time_and_link = arrival.at.wrapping_sub(start) << self.rank_bits | u64::from(arrival.rank);
            let port = self.route(&arrival.transit);
            scratch.order[count] = time_and_link << INDEX_BITS | index;
            scratch.offsets[(port - self.first_port) as usize] += u32::from(due);
            arrival.rank = select_unpredictable(due, port, arrival.rank);
            next = next.min(select_unpredictable(due, NEVER, arrival.at));
            count += usize::from(due);
        }
        scratch.order.truncate(count);
        let time_bits = u64::BITS - (end - start).leading_zeros();
        scratch.sorter.sort(&mut scratch.order, time_bits + self.rank_bits + INDEX_BITS);
        self.group(arrivals, scratch);
        next
    }

    /// Groups the arrivals by port, in order. Branch prediction is better when consecutive packets meet the
    /// same port.
    fn group(&self, arrivals: &[Arrival], scratch: &mut SwitchScratch) {
        let mut sum = 0;
        for offset in &mut scratch.offsets {
            sum += std::mem::replace(offset, sum);
        }
        scratch.by_port.resize(scratch.order.len(), 0);
        for key in &scratch.order {
            let index = index_of(*key);
            let offset = &mut scratch.offsets[(arrivals[index].rank - self.first_port) as usize];
            scratch.by_port[*offset as usize] = index as u32;
            *offset += 1;
        }
    }

    /// The output port of a packet.
    #[inline]
    fn route(&self, transit: &Transit) -> u32 {
        self.router.route(HostId(transit.dst), |count| self.hasher.choose(transit.flow_hash, count)).0
    }

    /// The output port of a packet that arrives at `now`, by any routing.
    fn steer(
        &mut self,
        now: u64,
        transit: &mut Transit,
        env: PortEnv<'_>,
        changes: &mut Changes,
        wires: &mut Wires,
    ) -> u32 {
        let Switch { router, hasher, steering, ports, first_port, dropped, .. } = self;
        let choices = router.next_ports(HostId(transit.dst));
        if choices.len() == 1 {
            return choices.nth(0).0;
        }
        let backlogs = choices.iter().map(|PortId(id)| {
            let port = &mut ports[(id - *first_port) as usize];
            let config = &env.queues[usize::from(port.config)];
            // As for a packet that is forwarded: those that leave before `now` do not wait any more.
            port.send_between(0, now, id, config, env.seed, changes, wires, dropped);
            let waiting = port.queue.data_bytes() + port.queue.control_bytes();
            Backlog { bytes: waiting + port.link.unsent(now), data_limit: config.data_limit }
        });
        let choice = steering.choose(*hasher, now, &mut transit.flow_hash, choices.len(), backlogs);
        choices.nth(choice).0
    }

    /// Enqueues a packet at port `id`, or sends it at once if the port is idle.
    #[inline(always)]
    fn forward(
        &mut self,
        now: u64,
        transit: &Transit,
        id: u32,
        env: PortEnv<'_>,
        changes: &mut Changes,
        wires: &mut Wires,
    ) {
        let index = (id - self.first_port) as usize;
        let bit = 1 << (index % 64);
        let idle = self.waiting[index / 64] & bit == 0;
        let port = &mut self.ports[index];
        let config = &env.queues[usize::from(port.config)];
        // One branch instead of three, as each of them would be hard to predict.
        if idle & (port.link.busy_until <= now) & config.passes(transit) {
            return port.link.launch(now, id, env.seed, transit, wires, &mut self.dropped);
        }
        // Packets that leave before `now`. A packet that arrives when the link becomes free still takes part
        // in the choice.
        port.send_between(0, now, id, config, env.seed, changes, wires, &mut self.dropped);
        match port.queue.enqueue(config, now, *transit) {
            Enqueued::Whole => changes.joined(now, transit),
            Enqueued::Trimmed => {}
            Enqueued::Dropped => {
                self.dropped += 1;
                wires.packets.lose(transit, now, id);
            }
        }
        port.send_between(now, now + 1, id, config, env.seed, changes, wires, &mut self.dropped);
        match port.queue.is_empty() {
            true => self.waiting[index / 64] &= !bit,
            false => self.waiting[index / 64] |= bit,
        }
    }

    /// Sends the packets that leave before `end` at all ports. Returns the time at which the next one leaves.
    fn send_until(&mut self, end: u64, env: PortEnv<'_>, changes: &mut Changes, wires: &mut Wires) -> u64 {
        let mut next = NEVER;
        for word in 0..self.waiting.len() {
            let mut bits = self.waiting[word];
            while bits != 0 {
                let index = word * 64 + bits.trailing_zeros() as usize;
                let port = &mut self.ports[index];
                let config = &env.queues[usize::from(port.config)];
                let id = self.first_port + index as u32;
                port.send_between(0, end, id, config, env.seed, changes, wires, &mut self.dropped);
                match port.queue.is_empty() {
                    true => self.waiting[word] &= !(bits & bits.wrapping_neg()),
                    false => next = next.min(port.link.busy_until),
                }
                bits &= bits - 1;
            }
        }
        next
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
                sent_bytes: port.link.take_sent_bytes(),
            };
            if (sample.data_bytes, sample.control_bytes, sample.sent_bytes) != (0, 0, 0) {
                samples.push(sample);
            }
        }
    }
}

impl Port {
    /// Sends the packets whose transmission begins at `from` or later and before `end`. Adds those that the
    /// link loses to `dropped`.
    #[inline(always)]
    #[expect(
        clippy::too_many_arguments,
        reason = "inlined, like all code on the packet path; a struct of arguments would cost copies"
    )]
    fn send_between(
        &mut self,
        from: u64,
        end: u64,
        id: u32,
        config: &QueueConfig,
        seed: u64,
        changes: &mut Changes,
        wires: &mut Wires,
        dropped: &mut u64,
    ) {
        // One branch instead of two, as both would be hard to predict.
        while (self.link.busy_until < end) & !self.queue.is_empty() {
            // A packet that waits leaves as soon as the one before it has left.
            let now = self.link.busy_until.max(from);
            let Some(transit) = self.queue.dequeue(config, now) else { break };
            changes.left(now, &transit);
            self.link.launch(now, id, seed, &transit, wires, dropped);
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
