//! The queues of one output port.

use std::hint::select_unpredictable;

use weft_stack::packet::Class;
use weft_stack::wire::class::Priority;

use super::ecmp::mix;
use super::lane::Lane;
use super::occupancy::{Meter, Occupancy};
use super::phantom::{Phantom, PhantomConfig};

/// The configuration of the queues of a port. Sizes are bytes on the wire.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueConfig {
    /// Size of the data queue of each priority.
    pub data_limit: u64,
    /// Size of the queue for control packets and trimmed packets.
    pub control_limit: u64,
    /// Marking begins above this length of a data queue.
    pub ecn_low: u64,
    /// Above this length every packet is marked.
    pub ecn_high: u64,
    /// Whether data packets that find no room are trimmed; otherwise they are dropped.
    pub trim: bool,
    /// While data waits, bytes of control and trimmed packets that are sent per byte of data; `None`: control
    /// always goes first.
    pub control_weight: Option<u32>,
    /// A phantom queue beside the data queues, for data of all priorities. A packet is marked if either queue marks it.
    pub phantom: Option<PhantomConfig>,
    /// Number of priorities, at least 1, with a data queue each. Data of a higher priority counts as of the highest.
    pub priorities: u8,
}

impl QueueConfig {
    /// Whether `packet`, which finds the queues empty and the link free, may leave at once, with the same
    /// result as if it were enqueued and dequeued.
    #[inline]
    pub fn passes(&self, packet: &impl Queued) -> bool {
        // A phantom queue must count every data packet.
        self.phantom.is_none() & (u64::from(packet.size()) <= self.limit(packet))
    }

    /// Whether a port has a phantom queue or several data queues.
    fn is_special(&self) -> bool {
        self.phantom.is_some() || self.priorities > 1
    }

    /// The size of the lane of `packet`.
    #[inline]
    fn limit(&self, packet: &impl Queued) -> u64 {
        select_unpredictable(packet.class() == Class::Data, self.data_limit, self.control_limit)
    }
}

/// The representation of a packet in a queue.
pub trait Queued: Copy {
    /// The class of the packet, given by its DSCP.
    fn class(&self) -> Class;
    /// The priority of a data packet, given by its DSCP.
    fn priority(&self) -> Priority;
    /// Bytes on the wire.
    fn size(&self) -> u32;
    /// Bytes on the wire after trimming.
    fn trimmed_size(&self) -> u32;
    /// Removes the payload and sets the class to `class`.
    fn trim(&mut self, class: Class);
    /// Sets the congestion mark.
    fn mark(&mut self);
}

/// The result of enqueueing a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// The packet was queued whole.
    Whole,
    /// The packet was trimmed and queued.
    Trimmed,
    /// The packet was dropped, as there was no room.
    Dropped,
}

/// Counters of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct QueueCounters {
    /// Number of packets that were trimmed.
    pub trimmed: u64,
    /// Number of packets that were dropped because a queue was full.
    pub dropped: u64,
    /// Number of packets that got an ECN mark.
    pub marked: u64,
}

/// The queues of one output port. The fields that each packet needs come first.
#[derive(Debug)]
#[repr(C)]
pub struct EgressQueue<P> {
    /// Indexed by [`DATA`] and [`CONTROL`]. Data here leaves before all other data.
    lanes: [Lane<P>; 2],
    /// Only of ports that need it, so that others spend no time on it.
    special: Option<Box<Special<P>>>,
    /// Bytes of control sent since the last data packet, if control has a weight.
    control_run: u64,
    /// Of the data of all priorities.
    meter: Meter,
    /// State of the port's own random generator for marks, so that ports do not affect each other.
    random: u64,
    counters: QueueCounters,
    /// Whether the link leads to a host, so that packets trimmed here are trimmed at the last hop.
    last_hop: bool,
}

/// The state of a port with a phantom queue or several priorities.
#[derive(Debug)]
struct Special<P> {
    phantom: Phantom,
    /// The priority of the packets in lane [`DATA`], the highest that waits.
    first: usize,
    /// The data that waits behind them, by priority; the lane of `first` is empty.
    behind: Vec<Lane<P>>,
    /// Of the data of each priority.
    meters: Vec<Meter>,
}

impl<P: Queued> Special<P> {
    /// Puts the lane of `priority` into `data` in place of that of `first`.
    fn bring_forward(&mut self, priority: usize, data: &mut Lane<P>) {
        std::mem::swap(data, &mut self.behind[self.first]);
        std::mem::swap(data, &mut self.behind[priority]);
        self.first = priority;
    }

    /// The priority that `packet` counts as.
    fn priority_of(&self, packet: &P) -> usize {
        usize::from(packet.priority().number()).min(self.behind.len() - 1)
    }

    /// Bytes that wait in the lane of `priority`.
    fn bytes_of(&self, priority: usize, data: &Lane<P>) -> u64 {
        if priority == self.first { data.bytes() } else { self.behind[priority].bytes() }
    }

    /// Bytes that wait in the lanes of lower priorities than that of `packet`.
    fn bytes_below(&self, packet: &P, data: &Lane<P>) -> u64 {
        (0..self.priority_of(packet)).map(|priority| self.bytes_of(priority, data)).sum()
    }

    /// The lane of `priority`, for a packet that joins it.
    fn lane_of<'a>(&'a mut self, priority: usize, data: &'a mut Lane<P>) -> &'a mut Lane<P> {
        if data.is_empty() || priority > self.first {
            self.bring_forward(priority, data);
        }
        if priority == self.first { data } else { &mut self.behind[priority] }
    }

    /// Fills lane [`DATA`] again if its last packet has left.
    fn refill(&mut self, data: &mut Lane<P>) {
        if data.is_empty()
            && let Some(next) = self.behind.iter().rposition(|lane| !lane.is_empty())
        {
            self.bring_forward(next, data);
        }
    }

    fn bytes_behind(&self) -> u64 {
        self.behind.iter().map(Lane::bytes).sum()
    }
}

/// Indices of the lanes. The lane of a packet is hard to predict, so the code selects by index instead of
/// branching.
const DATA: usize = 0;
const CONTROL: usize = 1;

#[inline]
fn lane_of(packet: &impl Queued) -> usize {
    usize::from(packet.class() != Class::Data)
}

impl<P: Queued> EgressQueue<P> {
    /// Bytes at the start of the queues that each packet that waits needs.
    pub(crate) const HOT: usize = core::mem::offset_of!(EgressQueue<P>, random);

    /// Empty queues for `config`, which may change later, but for the presence of a phantom queue and the number of
    /// priorities. `last_hop` says whether the link leads to a host; `seed` seeds the marks.
    pub fn new(config: &QueueConfig, last_hop: bool, seed: u64) -> EgressQueue<P> {
        let priorities = config.priorities.max(1);
        let special = || {
            let behind = (0..priorities).map(|_| Lane::new()).collect();
            let meters = vec![Meter::default(); priorities.into()];
            Box::new(Special { phantom: Phantom::default(), first: 0, behind, meters })
        };
        EgressQueue {
            lanes: [Lane::new(), Lane::new()],
            meter: Meter::default(),
            random: seed,
            counters: QueueCounters::default(),
            special: config.is_special().then(special),
            control_run: 0,
            last_hop,
        }
    }

    /// Whether no packet waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.lanes[DATA].is_empty() & self.lanes[CONTROL].is_empty()
    }

    /// Bytes of waiting data packets.
    pub fn data_bytes(&self) -> u64 {
        self.lanes[DATA].bytes() + self.special.as_ref().map_or(0, |special| special.bytes_behind())
    }

    /// Bytes of waiting control packets and trimmed packets.
    pub fn control_bytes(&self) -> u64 {
        self.lanes[CONTROL].bytes()
    }

    /// Bytes that wait and would leave before data packet `packet` if it were queued now: data of lower priorities does not
    /// count. For other packets all bytes count: by their weight, they share the link with data of any priority.
    pub fn bytes_ahead_of(&self, packet: &P) -> u64 {
        let all = self.data_bytes() + self.control_bytes();
        match &self.special {
            Some(special) if packet.class() == Class::Data => {
                all - special.bytes_below(packet, &self.lanes[DATA])
            }
            _ => all,
        }
    }

    /// The counters of the port.
    pub fn counters(&self) -> QueueCounters {
        self.counters
    }

    /// How much data waited over time, until `now`, ps. Packets that [pass at once](QueueConfig::passes) are not
    /// in it.
    pub fn occupancy(&self, now: u64) -> Occupancy {
        self.meter.read(now, self.data_bytes())
    }

    /// The same for the data of each priority by itself, from 0; nothing where there is one priority.
    pub fn occupancies(&self, now: u64) -> impl Iterator<Item = Occupancy> {
        let special = self.special.as_ref().filter(|special| special.meters.len() > 1);
        let meters = special
            .into_iter()
            .flat_map(|special| special.meters.iter().zip(0..).map(move |of| (special, of)));
        meters.map(move |(special, (meter, priority))| {
            meter.read(now, special.bytes_of(priority, &self.lanes[DATA]))
        })
    }

    /// Queues, trims or drops a packet that arrives at `now`, ps.
    #[inline]
    pub fn enqueue(&mut self, config: &QueueConfig, now: u64, packet: P) -> Enqueued {
        if self.special.is_some() {
            return self.enqueue_special(config, now, packet);
        }
        let lane = &mut self.lanes[lane_of(&packet)];
        if lane.bytes() + u64::from(packet.size()) > config.limit(&packet) {
            return self.overflow(config, packet);
        }
        lane.push(packet);
        let data = select_unpredictable(packet.class() == Class::Data, packet.size(), 0);
        self.meter.join(now, u64::from(data), self.lanes[DATA].bytes());
        Enqueued::Whole
    }

    /// The same for a port with a phantom queue or several priorities.
    #[inline(never)]
    fn enqueue_special(&mut self, config: &QueueConfig, now: u64, packet: P) -> Enqueued {
        let [data, control] = &mut self.lanes;
        let size = u64::from(packet.size());
        match &mut self.special {
            Some(special) if packet.class() == Class::Data => {
                if let Some(phantom) = &config.phantom {
                    special.phantom.offer(phantom, now, packet.size());
                }
                let priority = special.priority_of(&packet);
                if special.bytes_of(priority, data) + size > config.data_limit {
                    return self.overflow(config, packet);
                }
                let lane = special.lane_of(priority, data);
                lane.push(packet);
                let length = lane.bytes();
                special.meters[priority].join(now, size, length);
            }
            _ if control.bytes() + size > config.control_limit => return self.overflow(config, packet),
            _ => control.push(packet),
        }
        let data = if packet.class() == Class::Data { size } else { 0 };
        self.meter.join(now, data, self.data_bytes());
        Enqueued::Whole
    }

    /// Trims a data packet that arrives at `now`, ps, whatever room there is for it, and queues it; drops it if there is none
    /// for what is left.
    #[cold]
    pub fn enqueue_trimmed(&mut self, config: &QueueConfig, now: u64, packet: P) -> Enqueued {
        if let (Some(special), Some(phantom)) = (&mut self.special, &config.phantom) {
            special.phantom.offer(phantom, now, packet.size());
        }
        self.overflow(config, packet)
    }

    /// Trims or drops a packet that finds no room in its lane.
    fn overflow(&mut self, config: &QueueConfig, mut packet: P) -> Enqueued {
        let trims = config.trim && packet.class() == Class::Data && packet.trimmed_size() < packet.size();
        let room = config.control_limit.saturating_sub(self.control_bytes());
        if !trims || u64::from(packet.trimmed_size()) > room {
            self.counters.dropped += 1;
            return Enqueued::Dropped;
        }
        packet.trim(if self.last_hop { Class::TrimmedLastHop } else { Class::Trimmed });
        self.lanes[CONTROL].push(packet);
        self.counters.trimmed += 1;
        Enqueued::Trimmed
    }

    /// Takes the packet that leaves next, at `now`, ps, and marks it if necessary.
    #[inline]
    pub fn dequeue(&mut self, config: &QueueConfig, now: u64) -> Option<P> {
        let lane = match config.control_weight {
            None => select_unpredictable(self.lanes[CONTROL].is_empty(), DATA, CONTROL),
            Some(weight) => self.weigh(weight),
        };
        if self.special.is_some() {
            return self.dequeue_special(config, now, lane);
        }
        let mut packet = self.lanes[lane].pop()?;
        let data = select_unpredictable(lane == DATA, packet.size(), 0);
        self.meter.leave(now, u64::from(data), self.lanes[DATA].bytes());
        if lane == DATA && self.marks(config) {
            packet.mark();
            self.counters.marked += 1;
        }
        Some(packet)
    }

    /// The same for a port with a phantom queue or several priorities, and the lane that is served next.
    #[inline(never)]
    fn dequeue_special(&mut self, config: &QueueConfig, now: u64, lane: usize) -> Option<P> {
        let mut packet = self.lanes[lane].pop()?;
        let data = if lane == DATA { u64::from(packet.size()) } else { 0 };
        self.meter.leave(now, data, self.data_bytes());
        if lane == DATA {
            if self.marks(config) || self.phantom_marks(config, now) {
                packet.mark();
                self.counters.marked += 1;
            }
            if let Some(special) = &mut self.special {
                special.meters[special.first].leave(now, data, self.lanes[DATA].bytes());
                special.refill(&mut self.lanes[DATA]);
            }
        }
        Some(packet)
    }

    /// The lane to serve next if control has a weight.
    fn weigh(&mut self, weight: u32) -> usize {
        let [data, control] = self.lanes.each_ref().map(Lane::front);
        let (lane, run) = match (data, control) {
            (_, None) => (DATA, 0),
            (None, Some(_)) => (CONTROL, 0),
            (Some(data), Some(_)) if self.control_run >= u64::from(weight) * u64::from(data.size()) => {
                (DATA, 0)
            }
            (Some(_), Some(control)) => (CONTROL, self.control_run + u64::from(control.size())),
        };
        self.control_run = run;
        lane
    }

    /// RED on the instantaneous length that the packet leaves behind in its queue (SMaRTT §II-A, §III-J).
    #[inline]
    fn marks(&mut self, config: &QueueConfig) -> bool {
        self.draws_mark(self.lanes[DATA].bytes(), config.ecn_low, config.ecn_high)
    }

    /// The same decision for the phantom queue, if there is one.
    #[inline]
    fn phantom_marks(&mut self, config: &QueueConfig, now: u64) -> bool {
        let (Some(PhantomConfig { low, high, .. }), Some(special)) = (config.phantom, &self.special) else {
            return false;
        };
        let length = special.phantom.length(now);
        self.draws_mark(length, low.as_ps(), high.as_ps())
    }

    /// Returns true with a probability that grows from 0 at `low` to 1 at `high`.
    #[inline]
    fn draws_mark(&mut self, length: u64, low: u64, high: u64) -> bool {
        if length <= low {
            return false;
        }
        if length > high {
            return true;
        }
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let draw = mix(self.random) >> 32;
        u128::from(draw) * u128::from(high - low) < u128::from(length - low) << 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_cc::Rate;

    const CONFIG: QueueConfig = QueueConfig {
        data_limit: 10_000,
        control_limit: 200,
        ecn_low: 2_000,
        ecn_high: 8_000,
        trim: true,
        control_weight: None,
        phantom: None,
        priorities: 1,
    };

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Packet {
        id: u32,
        class: Class,
        priority: Priority,
        size: u32,
        marked: bool,
    }

    impl Queued for Packet {
        fn class(&self) -> Class {
            self.class
        }
        fn priority(&self) -> Priority {
            self.priority
        }
        fn size(&self) -> u32 {
            self.size
        }
        fn trimmed_size(&self) -> u32 {
            64
        }
        fn trim(&mut self, class: Class) {
            (self.class, self.size) = (class, 64);
        }
        fn mark(&mut self) {
            self.marked = true;
        }
    }

    fn data(id: u32, size: u32) -> Packet {
        Packet { id, class: Class::Data, priority: Priority::LOWEST, size, marked: false }
    }

    fn control(id: u32) -> Packet {
        Packet { class: Class::Control, ..data(id, 64) }
    }

    fn drain(queue: &mut EgressQueue<Packet>, config: &QueueConfig) -> Vec<Packet> {
        std::iter::from_fn(|| queue.dequeue(config, 0)).collect()
    }

    #[test]
    fn a_packet_is_trimmed_on_demand_although_there_is_room() {
        let mut queue = EgressQueue::new(&CONFIG, true, 7);
        let results = [1, 2, 3, 4].map(|id| queue.enqueue_trimmed(&CONFIG, 0, data(id, 1_000)));
        assert_eq!(results, [Enqueued::Trimmed, Enqueued::Trimmed, Enqueued::Trimmed, Enqueued::Dropped]);
        assert_eq!(queue.counters(), QueueCounters { trimmed: 3, dropped: 1, marked: 0 });
        let left = drain(&mut queue, &CONFIG);
        assert!(left.iter().all(|p| (p.class, p.size) == (Class::TrimmedLastHop, 64)) && left.len() == 3);
    }

    #[test]
    fn a_full_data_queue_trims_and_a_full_control_queue_drops() {
        let mut queue = EgressQueue::new(&CONFIG, false, 7);
        for id in 0..10 {
            assert_eq!(queue.enqueue(&CONFIG, 0, data(id, 1_000)), Enqueued::Whole);
        }
        for id in 10..13 {
            assert_eq!(queue.enqueue(&CONFIG, 0, data(id, 1_000)), Enqueued::Trimmed);
        }
        assert_eq!(queue.enqueue(&CONFIG, 0, data(13, 1_000)), Enqueued::Dropped);
        assert_eq!((queue.data_bytes(), queue.control_bytes()), (10_000, 192));
        assert_eq!(queue.counters(), QueueCounters { trimmed: 3, dropped: 1, marked: 0 });
        let order = drain(&mut queue, &CONFIG);
        let ids: Vec<u32> = order.iter().map(|p| p.id).collect();
        assert_eq!(ids, [10, 11, 12, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert!(order[..3].iter().all(|p| (p.class, p.size, p.marked) == (Class::Trimmed, 64, false)));
        assert!(queue.is_empty());
    }

    #[test]
    fn the_last_hop_trims_to_its_own_class_and_small_packets_are_not_trimmed() {
        let mut queue = EgressQueue::new(&CONFIG, true, 7);
        let config = QueueConfig { data_limit: 0, ..CONFIG };
        assert_eq!(queue.enqueue(&config, 0, data(1, 65)), Enqueued::Trimmed);
        assert_eq!(queue.enqueue(&config, 0, data(2, 64)), Enqueued::Dropped);
        let dropping = QueueConfig { trim: false, ..config };
        assert_eq!(queue.enqueue(&dropping, 0, data(3, 65)), Enqueued::Dropped);
        assert_eq!(drain(&mut queue, &config)[0].class, Class::TrimmedLastHop);
    }

    #[test]
    fn marking_depends_on_the_queue_that_the_packet_leaves_behind() {
        let marked = |length: u32| {
            let mut queue = EgressQueue::new(&CONFIG, false, u64::from(length));
            queue.lanes[DATA].push(data(0, length));
            let marks = (0..1_000).filter(|_| {
                // The queue is as long as before when the first of the two has left.
                queue.lanes[DATA].push(data(0, length));
                queue.dequeue(&CONFIG, 0).unwrap().marked
            });
            marks.count()
        };
        assert_eq!(marked(2_000), 0);
        assert_eq!(marked(8_001), 1_000);
        assert!(
            (420..580).contains(&marked(5_000)),
            "half way between the thresholds, within five standard deviations"
        );
    }

    #[test]
    fn passing_at_once_equals_enqueueing_and_dequeueing() {
        for packet in [data(1, 1_000), data(2, 10_001), control(3), data(4, 10_000)] {
            let mut queue = EgressQueue::new(&CONFIG, false, 7);
            for config in [CONFIG, QueueConfig { control_limit: 63, ..CONFIG }] {
                let waited = queue.enqueue(&config, 0, packet) == Enqueued::Whole;
                let left = queue.dequeue(&config, 0);
                assert_eq!(config.passes(&packet), waited && left == Some(packet));
                assert!(queue.is_empty());
                assert_eq!(queue.control_run, 0, "an empty queue keeps no state");
            }
        }
    }

    #[test]
    fn a_phantom_queue_marks_although_no_packet_waits() {
        // 1,000 bytes take 80 ns to leave and 100 ns to drain from the phantom queue.
        let link = Rate::from_gbps(100);
        let phantom = PhantomConfig::new(link, 0.8, (4_000, 8_000));
        let config = QueueConfig { phantom: Some(phantom), ..CONFIG };
        assert!(!config.passes(&data(0, 1_000)), "it counts all data");
        let mut queue = EgressQueue::new(&config, false, 7);
        let mut marked_at = |now: u64| {
            queue.enqueue(&config, now, data(1, 1_000));
            queue.enqueue(&config, now, control(2));
            assert_eq!(queue.dequeue(&config, now), Some(control(2)), "control is not counted");
            let packet = queue.dequeue(&config, now).unwrap();
            assert!(queue.is_empty());
            packet.marked
        };
        // At line rate it grows by 20 ns per packet: it exceeds 400 ns after 16 packets and 800 ns after 36.
        let marks: Vec<bool> = (0..60).map(|packet| marked_at(packet * 80_000)).collect();
        assert!(marks[..16].iter().all(|marked| !marked), "{marks:?}");
        assert!(marks[16..36].iter().any(|marked| *marked), "{marks:?}");
        assert!(marks[36..].iter().all(|marked| *marked), "{marks:?}");
        assert!(!marked_at(10_000_000), "it has drained");
        assert_eq!(queue.counters().marked, marks.iter().filter(|marked| **marked).count() as u64);
    }

    #[test]
    fn a_control_weight_lets_data_through() {
        let mut queue = EgressQueue::new(&CONFIG, false, 7);
        let config = QueueConfig { control_weight: Some(2), control_limit: 10_000, ..CONFIG };
        for id in 0..9 {
            queue.enqueue(&config, 0, control(id));
        }
        queue.enqueue(&config, 0, data(10, 64));
        queue.enqueue(&config, 0, data(11, 128));
        // 2 headers of 64 B for a packet of 64 B, 4 for one of 128 B.
        let ids: Vec<u32> = drain(&mut queue, &config).iter().map(|p| p.id).collect();
        assert_eq!(ids, [0, 1, 10, 2, 3, 4, 5, 11, 6, 7, 8]);
    }

    fn urgent(id: u32, priority: u8, size: u32) -> Packet {
        Packet { priority: Priority::new(priority).unwrap(), ..data(id, size) }
    }

    const FOUR: QueueConfig = QueueConfig { priorities: 4, ..CONFIG };

    #[test]
    fn data_of_a_higher_priority_leaves_first_and_each_priority_keeps_its_order() {
        let mut queue = EgressQueue::new(&FOUR, false, 7);
        for (id, priority) in [(0, 0), (1, 2), (2, 0), (3, 3), (4, 2), (5, 1), (6, 3), (7, 7)] {
            assert_eq!(queue.enqueue(&FOUR, 0, urgent(id, priority, 1_000)), Enqueued::Whole);
        }
        queue.enqueue(&FOUR, 0, control(8));
        assert_eq!(queue.data_bytes(), 8_000);
        // There are four priorities: 7 counts as 3.
        let ids: Vec<u32> = drain(&mut queue, &FOUR).iter().map(|p| p.id).collect();
        assert_eq!(ids, [8, 3, 6, 7, 1, 4, 5, 0, 2]);
        assert!(queue.is_empty() && queue.data_bytes() == 0);
    }

    #[test]
    fn data_waits_for_that_of_its_own_and_of_higher_priorities_and_for_control() {
        let mut queue = EgressQueue::new(&FOUR, false, 7);
        queue.enqueue(&FOUR, 0, control(0));
        let control_size = queue.control_bytes();
        for (id, priority, size) in [(1, 1, 100), (2, 3, 2_000), (3, 1, 300), (4, 2, 4_000)] {
            assert_eq!(queue.enqueue(&FOUR, 0, urgent(id, priority, size)), Enqueued::Whole);
        }
        let ahead = |queue: &EgressQueue<Packet>| {
            [0, 1, 2, 3, 7]
                .map(|priority| queue.bytes_ahead_of(&urgent(9, priority, 50)) - queue.control_bytes())
        };
        assert_eq!(ahead(&queue), [6_400, 6_400, 6_000, 2_000, 2_000]);
        assert_eq!(
            queue.bytes_ahead_of(&control(9)),
            control_size + 6_400,
            "control shares the link with all data"
        );
        // The highest priority that waits changes when its last packet leaves.
        let leaves = [0, 2, 4].map(|_| queue.dequeue(&FOUR, 0).unwrap().id);
        assert_eq!((leaves, ahead(&queue)), ([0, 2, 4], [400, 400, 0, 0, 0]));
    }

    #[test]
    fn each_priority_has_a_queue_of_its_own_size_and_marks_by_its_own_length() {
        let mut queue = EgressQueue::new(&FOUR, false, 7);
        for id in 0..10 {
            assert_eq!(queue.enqueue(&FOUR, 0, urgent(id, 0, 1_000)), Enqueued::Whole);
        }
        assert_eq!(queue.enqueue(&FOUR, 0, urgent(10, 0, 1_000)), Enqueued::Trimmed);
        assert_eq!(queue.enqueue(&FOUR, 0, urgent(11, 1, 1_000)), Enqueued::Whole);
        assert_eq!(
            queue.enqueue(&FOUR, 0, urgent(12, 1, 20_000)),
            Enqueued::Trimmed,
            "longer than its queue"
        );
        assert_eq!(
            queue.enqueue(&FOUR, 0, urgent(13, 3, 20_000)),
            Enqueued::Trimmed,
            "with none of its priority"
        );
        let order = drain(&mut queue, &FOUR);
        let marked: Vec<u32> = order.iter().filter(|p| p.marked).map(|p| p.id).collect();
        assert_eq!(order[..5].iter().map(|p| p.id).collect::<Vec<_>>(), [10, 12, 13, 11, 0]);
        // Above 8,000 bytes behind it every packet is marked; up to 2,000 none.
        assert!(
            marked.contains(&0) && !marked.contains(&11) && marked.iter().all(|id| *id < 8),
            "{marked:?}"
        );
    }

    #[test]
    fn a_control_weight_compares_control_with_the_data_that_leaves_next() {
        let config = QueueConfig { control_weight: Some(1), control_limit: 10_000, ..FOUR };
        let mut queue = EgressQueue::new(&config, false, 7);
        queue.enqueue(&config, 0, urgent(10, 0, 64));
        queue.enqueue(&config, 0, urgent(11, 3, 192));
        (0..6).for_each(|id| _ = queue.enqueue(&config, 0, control(id)));
        let ids: Vec<u32> = drain(&mut queue, &config).iter().map(|p| p.id).collect();
        assert_eq!(ids, [0, 1, 2, 11, 3, 10, 4, 5]);
    }

    /// Which packet leaves next of those that wait, in the words of strict priority.
    fn next_of(waiting: &[Packet]) -> Option<usize> {
        let rank = |p: &Packet| if p.class == Class::Data { p.priority.number().min(2) } else { u8::MAX };
        let first = waiting.iter().map(rank).max()?;
        waiting.iter().position(|p| rank(p) == first)
    }

    proptest! {
        /// Three priorities, limits that are reached, trimming: the queue does what a list of all packets says.
        #[test]
        fn many_priorities_behave_like_a_sorted_list(
            steps in prop::collection::vec(prop::option::weighted(0.6, (0u8..9, 1u32..6_000)), 0..300),
            phantom in any::<bool>(),
        ) {
            let phantom = phantom.then(|| PhantomConfig::new(Rate::from_gbps(100), 0.9, (1 << 40, 1 << 41)));
            let config = QueueConfig { priorities: 3, control_limit: 400, ecn_low: 1 << 40, ecn_high: 1 << 41, phantom, ..CONFIG };
            let mut queue = EgressQueue::new(&config, false, 7);
            let mut waiting: Vec<Packet> = Vec::new();
            for (step, id) in steps.into_iter().zip(0..) {
                match step {
                    Some((kind, size)) => {
                        let packet = if kind == 8 { control(id) } else { urgent(id, kind, size) };
                        let alike = |p: &&Packet| match packet.class {
                            Class::Data => p.class == Class::Data && p.priority.min(Priority::new(2).unwrap()) == packet.priority.min(Priority::new(2).unwrap()),
                            _ => p.class != Class::Data,
                        };
                        let bytes = |alike: &dyn Fn(&&Packet) -> bool| -> u32 { waiting.iter().filter(|p| alike(p)).map(|p| p.size).sum() };
                        let small = bytes(&|p| p.class != Class::Data);
                        let limit = if packet.class == Class::Data { 10_000 } else { 400 };
                        let expected = match () {
                            _ if bytes(&alike) + packet.size <= limit => Enqueued::Whole,
                            _ if packet.class == Class::Data && packet.size > 64 && small + 64 <= 400 => Enqueued::Trimmed,
                            _ => Enqueued::Dropped,
                        };
                        prop_assert_eq!(queue.enqueue(&config, 0, packet), expected);
                        match expected {
                            Enqueued::Whole => waiting.push(packet),
                            Enqueued::Trimmed => waiting.push(Packet { class: Class::Trimmed, size: 64, ..packet }),
                            Enqueued::Dropped => {}
                        }
                    }
                    None => {
                        let expected = next_of(&waiting).map(|at| waiting.remove(at));
                        prop_assert_eq!(queue.dequeue(&config, 0), expected);
                    }
                }
                prop_assert_eq!(queue.is_empty(), waiting.is_empty());
                let data: u32 = waiting.iter().filter(|p| p.class == Class::Data).map(|p| p.size).sum();
                prop_assert_eq!(queue.data_bytes(), u64::from(data));
            }
        }
    }
}
