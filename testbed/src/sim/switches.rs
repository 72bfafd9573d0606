//! A switch: packets that arrive in a window go to output ports, and ports send what waits.
//!
//! Nothing that happens within a window at one node can matter to another within the same window. So a
//! switch takes all its arrivals of a window at once, port by port and in order of time, and a port need not
//! be told when it has finished sending a packet: what it has sent in the meantime is made up for when the
//! next packet arrives, or at the end of the window. Ports of a switch have nothing to do with each other.

use std::hint::select_unpredictable;

use weft_stack::prefetch::prefetch_start;

use super::faults::LinkChange;
use super::link::{Link, LinkSpec};
use super::order::Sorter;
use super::packets::Transit;
use super::sample::PortSample;
use super::wires::{Arrival, NEVER, Wires};
use crate::switch::{EgressQueue, Enqueued, Hasher, QueueConfig, QueueCounters};
use crate::topology::{HostId, Router};

/// An output port of a switch. A packet that finds it idle needs its first cache line only.
#[repr(C, align(64))]
pub(super) struct Port {
    /// Index of the queue configuration.
    pub(super) config: u8,
    pub(super) link: Link,
    pub(super) queue: EgressQueue<Transit>,
}

/// A switch.
pub(super) struct Switch {
    /// The number of its first port; the others follow.
    pub(super) first_port: u32,
    pub(super) router: Router,
    pub(super) hasher: Hasher,
    pub(super) ports: Vec<Port>,
    /// Bit by bit, the ports that hold packets.
    pub(super) waiting: Vec<u64>,
    /// Where packets for it are put.
    pub(super) inbox: u32,
    /// Bits that tell the links apart that lead here.
    pub(super) rank_bits: u32,
    /// Packets lost for lack of room, and on links.
    pub(super) dropped: u64,
}

/// What all switches of a shard use.
pub(super) struct Bench {
    pub(super) queues: Vec<QueueConfig>,
    pub(super) seed: u64,
    /// So many packets on their way to one switch are a crowd: too many to tell them apart by [`INDEX_BITS`].
    pub(super) crowd: usize,
    /// How many packets arrived in the last window.
    pub(super) arrivals: u64,
    /// The order of a window's arrivals; kept for its memory.
    order: Vec<u64>,
    /// The same, port by port: which arrivals.
    by_port: Vec<u32>,
    /// Port by port, where its next arrival goes in `by_port`.
    places: Vec<u32>,
    sorter: Sorter,
}

/// Bits that tell the arrivals of a window apart, of 64 that also hold their times and links.
const INDEX_BITS: u32 = 24;

/// The longest window in which the arrivals at a switch of `ports` ports can be told apart, ps.
pub(super) fn longest_window(ports: u32) -> u64 {
    1 << (u64::BITS - INDEX_BITS - rank_bits(ports))
}

/// Bits that tell so many links apart.
pub(super) fn rank_bits(links: u32) -> u32 {
    u32::BITS - links.saturating_sub(1).leading_zeros()
}

impl Bench {
    pub(super) fn new(queues: Vec<QueueConfig>, seed: u64) -> Bench {
        let crowd = 1 << INDEX_BITS;
        let (order, by_port, places) = (Vec::new(), Vec::new(), Vec::new());
        Bench { queues, seed, crowd, arrivals: 0, order, by_port, places, sorter: Sorter::default() }
    }
}

/// Drops all `arrivals` before `end`.
fn keep_from(end: u64, arrivals: &mut Vec<Arrival>) {
    let mut kept = 0;
    for index in 0..arrivals.len() {
        arrivals[kept] = arrivals[index];
        kept += usize::from(arrivals[index].at >= end);
    }
    arrivals.truncate(kept);
}

/// Which arrival a key of [`Bench::order`] stands for.
#[inline]
fn index_of(key: u64) -> usize {
    (key & ((1 << INDEX_BITS) - 1)) as usize
}

/// What ports need of the run.
#[derive(Clone, Copy)]
struct Setting<'a> {
    queues: &'a [QueueConfig],
    seed: u64,
}

/// Arrivals from the one at hand to the one whose port is fetched.
const AHEAD: usize = 4;

impl Switch {
    /// Lives through the window from `start` to before `end`. Returns when something happens next.
    pub(super) fn run(&mut self, start: u64, end: u64, bench: &mut Bench, wires: &mut Wires) -> u64 {
        let mut arrivals = wires.take(self.inbox);
        let next = match arrivals.len() < bench.crowd {
            true => self.pass(&mut arrivals, start, end, bench, wires),
            false => self.pass_crowd(&mut arrivals, end, bench, wires),
        };
        keep_from(end, &mut arrivals);
        wires.put_back(self.inbox, arrivals);
        next.min(self.send_until(end, Setting { queues: &bench.queues, seed: bench.seed }, wires))
    }

    /// Passes what arrives before `end` on. Returns when the first packet arrives after that.
    #[inline(always)]
    fn pass(
        &mut self,
        arrivals: &mut [Arrival],
        start: u64,
        end: u64,
        bench: &mut Bench,
        wires: &mut Wires,
    ) -> u64 {
        let next = self.plan(arrivals, start, end, bench);
        let setting = Setting { queues: &bench.queues, seed: bench.seed };
        let order = &bench.by_port[..];
        for (i, index) in order.iter().enumerate() {
            if let Some(later) = order.get(i + AHEAD) {
                let port = (arrivals[*later as usize].rank - self.first_port) as usize;
                prefetch_start(&self.ports[port], 128);
            }
            let Arrival { at, ref transit, rank: port } = arrivals[*index as usize];
            self.forward(at, transit, port, setting, wires);
        }
        bench.arrivals = order.len() as u64;
        next
    }

    /// As [`Switch::pass`] and with the same result, however many packets there are.
    #[cold]
    #[inline(never)]
    fn pass_crowd(
        &mut self,
        arrivals: &mut [Arrival],
        end: u64,
        bench: &mut Bench,
        wires: &mut Wires,
    ) -> u64 {
        // Stable: packets of one link that arrive at once keep the order in which they were sent.
        arrivals.sort_by_key(|arrival| (arrival.at, arrival.rank));
        let (due, later) = arrivals.split_at(arrivals.partition_point(|arrival| arrival.at < end));
        let setting = Setting { queues: &bench.queues, seed: bench.seed };
        for Arrival { at, transit, .. } in due {
            self.forward(*at, transit, self.way(transit), setting, wires);
        }
        bench.arrivals = due.len() as u64;
        later.first().map_or(NEVER, |arrival| arrival.at)
    }

    /// Finds the order and the ways of what arrives before `end`: in place of the rank, which the order has taken
    /// in, each gets the number of its port. Returns when the first packet arrives after that.
    fn plan(&self, arrivals: &mut [Arrival], start: u64, end: u64, bench: &mut Bench) -> u64 {
        bench.order.resize(arrivals.len(), 0);
        bench.places.clear();
        bench.places.resize(self.ports.len(), 0);
        let (mut count, mut next) = (0, NEVER);
        for (arrival, index) in arrivals.iter_mut().zip(0..) {
            // Without branches: what is due and what is not comes in no order.
            let due = arrival.at < end;
            let time_and_link = arrival.at.wrapping_sub(start) << self.rank_bits | u64::from(arrival.rank);
            let port = self.way(&arrival.transit);
            bench.order[count] = time_and_link << INDEX_BITS | index;
            bench.places[(port - self.first_port) as usize] += u32::from(due);
            arrival.rank = select_unpredictable(due, port, arrival.rank);
            next = next.min(select_unpredictable(due, NEVER, arrival.at));
            count += usize::from(due);
        }
        bench.order.truncate(count);
        let time_bits = u64::BITS - (end - start).leading_zeros();
        bench.sorter.sort(&mut bench.order, time_bits + self.rank_bits + INDEX_BITS);
        self.group(arrivals, bench);
        next
    }

    /// Puts the arrivals of each port together, in their order: the next packet is more often of the kind and
    /// meets the state that the processor expects.
    fn group(&self, arrivals: &[Arrival], bench: &mut Bench) {
        let mut sum = 0;
        for place in &mut bench.places {
            sum += std::mem::replace(place, sum);
        }
        bench.by_port.resize(bench.order.len(), 0);
        for key in &bench.order {
            let index = index_of(*key);
            let place = &mut bench.places[(arrivals[index].rank - self.first_port) as usize];
            bench.by_port[*place as usize] = index as u32;
            *place += 1;
        }
    }

    /// The port that a packet goes to.
    #[inline]
    fn way(&self, transit: &Transit) -> u32 {
        let choices = self.router.next_ports(HostId(transit.dst));
        let choice = match choices.count {
            1 => 0,
            count => self.hasher.choose(transit.flow_hash, count),
        };
        choices.nth(choice).0
    }

    /// Puts a packet into the queue of port `id`.
    #[inline(always)]
    fn forward(&mut self, now: u64, transit: &Transit, id: u32, setting: Setting<'_>, wires: &mut Wires) {
        let index = (id - self.first_port) as usize;
        let bit = 1 << (index % 64);
        let idle = self.waiting[index / 64] & bit == 0;
        let port = &mut self.ports[index];
        let config = &setting.queues[usize::from(port.config)];
        // One branch instead of three: which way it goes is hard to foresee.
        if idle & (port.link.busy_until <= now) & config.passes(transit) {
            return port.link.launch(now, id, setting.seed, transit, wires, &mut self.dropped);
        }
        // What left before; a packet that arrives when the link becomes free is in time to be chosen.
        port.send_between(0, now, id, config, setting.seed, wires, &mut self.dropped);
        if port.queue.enqueue(config, now, *transit) == Enqueued::Dropped {
            self.dropped += 1;
            wires.packets.remove(transit);
        }
        port.send_between(now, now + 1, id, config, setting.seed, wires, &mut self.dropped);
        match port.queue.is_empty() {
            true => self.waiting[index / 64] &= !bit,
            false => self.waiting[index / 64] |= bit,
        }
    }

    /// Lets all ports send what leaves before `end`. Returns when the next packet leaves.
    fn send_until(&mut self, end: u64, setting: Setting<'_>, wires: &mut Wires) -> u64 {
        let mut next = NEVER;
        for word in 0..self.waiting.len() {
            let mut bits = self.waiting[word];
            while bits != 0 {
                let index = word * 64 + bits.trailing_zeros() as usize;
                let port = &mut self.ports[index];
                let config = &setting.queues[usize::from(port.config)];
                let id = self.first_port + index as u32;
                port.send_between(0, end, id, config, setting.seed, wires, &mut self.dropped);
                match port.queue.is_empty() {
                    true => self.waiting[word] &= !(bits & bits.wrapping_neg()),
                    false => next = next.min(port.link.busy_until),
                }
                bits &= bits - 1;
            }
        }
        next
    }

    /// Something becomes of the link of port `id`.
    pub(super) fn change(&mut self, spec: &LinkSpec, change: LinkChange) {
        self.ports[(spec.id - self.first_port) as usize].link.change(spec, change);
    }

    /// What its ports have done.
    pub(super) fn counters(&self) -> impl Iterator<Item = QueueCounters> {
        self.ports.iter().map(|port| port.queue.counters())
    }

    pub(super) fn sample(&mut self, samples: &mut Vec<PortSample>) {
        for (port, id) in self.ports.iter_mut().zip(self.first_port..) {
            let sample = PortSample {
                port: id,
                data_bytes: port.queue.data_bytes() as u32,
                control_bytes: port.queue.control_bytes() as u32,
                sent_bytes: port.link.take_sent_bytes(),
            };
            if (sample.data_bytes, sample.control_bytes, sample.sent_bytes) != (0, 0, 0) {
                samples.push(sample);
            }
        }
    }
}

impl Port {
    /// Sends what begins to leave at `from` or later, before `end`. Counts those in `dropped` that are lost on
    /// the link.
    #[inline(always)]
    #[expect(
        clippy::too_many_arguments,
        reason = "inlined, like all that a packet passes; a struct would be taken apart"
    )]
    fn send_between(
        &mut self,
        from: u64,
        end: u64,
        id: u32,
        config: &QueueConfig,
        seed: u64,
        wires: &mut Wires,
        dropped: &mut u64,
    ) {
        // One branch instead of two: which way they go is hard to foresee.
        while (self.link.busy_until < end) & !self.queue.is_empty() {
            // A packet that waits leaves as soon as the one before it has left.
            let now = self.link.busy_until.max(from);
            let Some(transit) = self.queue.dequeue(config, now) else { break };
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

    /// A run in which so many packets on their way to one switch are a crowd.
    fn run(config: &RunConfig, crowd: Option<usize>) -> RunReport {
        let all_links =
            LinkFaults { duplicate: 0.05, reorder: 0.1, delay: Span::from_us(3), ..LinkFaults::default() };
        let faults = FaultPlan { all_links, ..FaultPlan::default() };
        let mut system = build::build(config, &faults, 1, false).unwrap();
        for shard in &mut system.shards {
            shard.bench.crowd = crowd.unwrap_or(shard.bench.crowd);
        }
        let mut watch = Watch { progress: None, sampling: None, stop: None, flows_total: 0 };
        let end = engine::run(&mut system, config.until, &mut watch);
        report::report(config, &system, end)
    }

    #[test]
    fn a_crowd_passes_in_the_same_order() {
        let topology = "leaf-spine:hosts=32,leaves=4,oversub=2".parse::<TopologySpec>().unwrap();
        let workload: WorkloadSpec = "incast:24".parse().unwrap();
        let workload = workload.build(Some(32), 200_000, &mut Rng::new(1, 1)).unwrap();
        let config = RunConfig::new(topology.build().unwrap(), workload);
        let plain = run(&config, None);
        assert!(plain.is_complete() && plain.packets.trimmed > 0, "{:?}", plain.packets);
        for crowd in [0, 20] {
            assert_eq!(run(&config, Some(crowd)), plain, "{crowd} packets are a crowd");
        }
    }
}
