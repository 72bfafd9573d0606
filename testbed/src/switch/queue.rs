//! The queues of one output port.

use std::hint::select_unpredictable;

use weft_stack::packet::Class;

use super::ecmp::mix;
use super::lane::Lane;
use super::occupancy::Occupancy;
use super::phantom::{Phantom, PhantomConfig};

/// The configuration of the queues of a port. Sizes are bytes on the wire.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueConfig {
    /// Size of the data queue.
    pub data_limit: u64,
    /// Size of the queue for control packets and trimmed packets.
    pub control_limit: u64,
    /// Marking begins above this length of the data queue.
    pub ecn_low: u64,
    /// Above this length every packet is marked.
    pub ecn_high: u64,
    /// Whether data packets that find no room are trimmed; otherwise they are dropped.
    pub trim: bool,
    /// While data waits, bytes of control and trimmed packets that are sent per byte of data; `None`: control
    /// always goes first.
    pub control_weight: Option<u32>,
    /// A phantom queue beside the data queue. A packet is marked if either queue marks it.
    pub phantom: Option<PhantomConfig>,
}

impl QueueConfig {
    /// Whether `packet`, which finds the queues empty and the link free, may leave at once, with the same
    /// result as if it were enqueued and dequeued.
    #[inline]
    pub fn passes(&self, packet: &impl Queued) -> bool {
        // A phantom queue must count every data packet.
        self.phantom.is_none() & (u64::from(packet.size()) <= self.limit(packet))
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

/// The queues of one output port.
#[derive(Debug)]
pub struct EgressQueue<P> {
    /// Indexed by [`DATA`] and [`CONTROL`].
    lanes: [Lane<P>; 2],
    /// Whether the link leads to a host, so that packets trimmed here are trimmed at the last hop.
    last_hop: bool,
    /// Bytes of control sent since the last data packet, if control has a weight.
    control_run: u64,
    /// State of the port's own random generator for marks, so that ports do not affect each other.
    random: u64,
    phantom: Phantom,
    counters: QueueCounters,
    /// Of the data lane.
    occupancy: Occupancy,
}

/// Indices of the lanes. The lane of a packet is hard to predict, so the code selects by index instead of
/// branching.
const DATA: usize = 0;
const CONTROL: usize = 1;

impl<P: Queued> EgressQueue<P> {
    /// Empty queues. `last_hop` says whether the link leads to a host; `seed` seeds the marks.
    pub fn new(last_hop: bool, seed: u64) -> EgressQueue<P> {
        EgressQueue {
            lanes: [Lane::new(), Lane::new()],
            last_hop,
            control_run: 0,
            random: seed,
            phantom: Phantom::default(),
            counters: QueueCounters::default(),
            occupancy: Occupancy::default(),
        }
    }

    /// Whether no packet waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.lanes[DATA].is_empty() & self.lanes[CONTROL].is_empty()
    }

    /// Bytes of waiting data packets.
    pub fn data_bytes(&self) -> u64 {
        self.lanes[DATA].bytes()
    }

    /// Bytes of waiting control packets and trimmed packets.
    pub fn control_bytes(&self) -> u64 {
        self.lanes[CONTROL].bytes()
    }

    /// The counters of the port.
    pub fn counters(&self) -> QueueCounters {
        self.counters
    }

    /// How long the data queue was over time, until `now`, ps. Packets that [pass at once](QueueConfig::passes) are not
    /// in it.
    pub fn occupancy(&self, now: u64) -> Occupancy {
        let mut occupancy = self.occupancy;
        occupancy.hold(now, self.data_bytes());
        occupancy
    }

    /// Queues, trims or drops a packet that arrives at `now`, ps.
    #[inline]
    pub fn enqueue(&mut self, config: &QueueConfig, now: u64, packet: P) -> Enqueued {
        self.occupancy.hold(now, self.lanes[DATA].bytes());
        if let Some(phantom) = &config.phantom
            && packet.class() == Class::Data
        {
            self.phantom.offer(phantom, now, packet.size());
        }
        let lane = &mut self.lanes[select_unpredictable(packet.class() == Class::Data, DATA, CONTROL)];
        if lane.bytes() + u64::from(packet.size()) > config.limit(&packet) {
            return self.overflow(config, packet);
        }
        lane.push(packet);
        Enqueued::Whole
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
        self.occupancy.hold(now, self.lanes[DATA].bytes());
        let mut packet = self.lanes[lane].pop()?;
        if lane == DATA && (self.marks(config) || self.phantom_marks(config, now)) {
            packet.mark();
            self.counters.marked += 1;
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

    /// RED on the instantaneous length that the packet leaves behind (SMaRTT §II-A, §III-J).
    #[inline]
    fn marks(&mut self, config: &QueueConfig) -> bool {
        self.draws_mark(self.data_bytes(), config.ecn_low, config.ecn_high)
    }

    /// The same decision for the phantom queue, if there is one.
    #[inline]
    fn phantom_marks(&mut self, config: &QueueConfig, now: u64) -> bool {
        let Some(PhantomConfig { low, high, .. }) = config.phantom else { return false };
        self.draws_mark(self.phantom.length(now), low.as_ps(), high.as_ps())
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
    use weft_cc::Rate;

    const CONFIG: QueueConfig = QueueConfig {
        data_limit: 10_000,
        control_limit: 200,
        ecn_low: 2_000,
        ecn_high: 8_000,
        trim: true,
        control_weight: None,
        phantom: None,
    };

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Packet {
        id: u32,
        class: Class,
        size: u32,
        marked: bool,
    }

    impl Queued for Packet {
        fn class(&self) -> Class {
            self.class
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
        Packet { id, class: Class::Data, size, marked: false }
    }

    fn control(id: u32) -> Packet {
        Packet { id, class: Class::Control, size: 64, marked: false }
    }

    fn drain(queue: &mut EgressQueue<Packet>, config: &QueueConfig) -> Vec<Packet> {
        std::iter::from_fn(|| queue.dequeue(config, 0)).collect()
    }

    #[test]
    fn a_full_data_queue_trims_and_a_full_control_queue_drops() {
        let mut queue = EgressQueue::new(false, 7);
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
        let mut queue = EgressQueue::new(true, 7);
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
            let mut queue = EgressQueue::new(false, u64::from(length));
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
            let mut queue = EgressQueue::new(false, 7);
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
        let mut queue = EgressQueue::new(false, 7);
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
        let mut queue = EgressQueue::new(false, 7);
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
}
