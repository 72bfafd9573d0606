//! The queues of one output port.

use std::collections::VecDeque;

use weft_stack::packet::Class;

use super::ecmp::mix;

/// How the queues of a port behave. Sizes in bytes on the wire.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueConfig {
    /// Room for data.
    pub data_limit: u64,
    /// Room for control packets and trimmed ones.
    pub control_limit: u64,
    /// Marks begin above this length of the data queue.
    pub ecn_low: u64,
    /// Above this everything is marked.
    pub ecn_high: u64,
    /// Whether data that finds no room is trimmed; else it is dropped.
    pub trim: bool,
    /// After so many control packets in a row one data packet goes, if one waits; `None`: control always goes first.
    pub control_weight: Option<u32>,
}

/// What became of an arriving packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued<P> {
    /// It waits, as it came.
    Whole,
    /// It waits without its payload; the caller cuts it, and sets this class.
    Trimmed(Class),
    /// There was no room.
    Dropped(P),
}

/// A packet that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure<P> {
    /// Which.
    pub packet: P,
    /// Its size on the wire, bytes.
    pub size: u32,
    /// Whether it gets a congestion mark.
    pub mark: bool,
}

/// What a port has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct QueueCounters {
    /// Packets trimmed.
    pub trimmed: u64,
    /// Packets dropped for lack of room.
    pub dropped: u64,
    /// Packets marked.
    pub marked: u64,
}

#[derive(Debug)]
struct Lane<P> {
    packets: VecDeque<(P, u32)>,
    bytes: u64,
}

impl<P> Lane<P> {
    fn new() -> Lane<P> {
        Lane { packets: VecDeque::new(), bytes: 0 }
    }

    fn push(&mut self, packet: P, size: u32) {
        self.packets.push_back((packet, size));
        self.bytes += u64::from(size);
    }

    fn pop(&mut self) -> Option<(P, u32)> {
        let (packet, size) = self.packets.pop_front()?;
        self.bytes -= u64::from(size);
        Some((packet, size))
    }
}

/// The queues of one output port.
#[derive(Debug)]
pub struct EgressQueue<P> {
    control: Lane<P>,
    data: Lane<P>,
    /// Whether the link leads to a host: what is trimmed here is trimmed at the last hop.
    last_hop: bool,
    control_run: u32,
    /// A generator of its own for marks, so that no port disturbs another.
    random: u64,
    counters: QueueCounters,
}

impl<P> EgressQueue<P> {
    /// Empty queues. `last_hop`: whether the link leads to a host.
    pub fn new(last_hop: bool, seed: u64) -> EgressQueue<P> {
        EgressQueue {
            control: Lane::new(),
            data: Lane::new(),
            last_hop,
            control_run: 0,
            random: seed,
            counters: QueueCounters::default(),
        }
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.control.packets.is_empty() && self.data.packets.is_empty()
    }

    /// Bytes of data that wait.
    pub fn data_bytes(&self) -> u64 {
        self.data.bytes
    }

    /// Bytes of control packets and trimmed ones that wait.
    pub fn control_bytes(&self) -> u64 {
        self.control.bytes
    }

    /// What it has done so far.
    pub fn counters(&self) -> QueueCounters {
        self.counters
    }

    /// A packet of `size` bytes arrives, which would have `trimmed_size` without its payload.
    pub fn enqueue(
        &mut self,
        config: &QueueConfig,
        packet: P,
        class: Class,
        size: u32,
        trimmed_size: u32,
    ) -> Enqueued<P> {
        if class != Class::Data {
            return self.enqueue_control(config, packet, size, Enqueued::Whole);
        }
        if self.data.bytes + u64::from(size) <= config.data_limit {
            self.data.push(packet, size);
            return Enqueued::Whole;
        }
        if !config.trim || trimmed_size >= size {
            self.counters.dropped += 1;
            return Enqueued::Dropped(packet);
        }
        let class = if self.last_hop { Class::TrimmedLastHop } else { Class::Trimmed };
        let result = self.enqueue_control(config, packet, trimmed_size, Enqueued::Trimmed(class));
        self.counters.trimmed += u64::from(matches!(result, Enqueued::Trimmed(_)));
        result
    }

    /// The packet that leaves next.
    pub fn dequeue(&mut self, config: &QueueConfig) -> Option<Departure<P>> {
        let data_waits = !self.data.packets.is_empty();
        let data_turn = data_waits && config.control_weight.is_some_and(|weight| self.control_run >= weight);
        if !data_turn && let Some((packet, size)) = self.control.pop() {
            self.control_run = if data_waits { self.control_run + 1 } else { 0 };
            return Some(Departure { packet, size, mark: false });
        }
        self.control_run = 0;
        let (packet, size) = self.data.pop()?;
        let mark = self.marks(config);
        self.counters.marked += u64::from(mark);
        Some(Departure { packet, size, mark })
    }

    /// Takes everything out, for a link that fails.
    pub fn drain(&mut self) -> impl Iterator<Item = P> + '_ {
        self.control.bytes = 0;
        self.data.bytes = 0;
        self.control.packets.drain(..).chain(self.data.packets.drain(..)).map(|(packet, _)| packet)
    }

    fn enqueue_control(
        &mut self,
        config: &QueueConfig,
        packet: P,
        size: u32,
        done: Enqueued<P>,
    ) -> Enqueued<P> {
        if self.control.bytes + u64::from(size) > config.control_limit {
            self.counters.dropped += 1;
            return Enqueued::Dropped(packet);
        }
        self.control.push(packet, size);
        done
    }

    /// RED on the instantaneous length that the packet leaves behind (SMaRTT §II-A, §III-J).
    fn marks(&mut self, config: &QueueConfig) -> bool {
        let length = self.data.bytes;
        if length <= config.ecn_low {
            return false;
        }
        if length > config.ecn_high {
            return true;
        }
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let draw = mix(self.random) >> 32;
        let span = config.ecn_high - config.ecn_low;
        u128::from(draw) * u128::from(span) < u128::from(length - config.ecn_low) << 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: QueueConfig = QueueConfig {
        data_limit: 10_000,
        control_limit: 200,
        ecn_low: 2_000,
        ecn_high: 8_000,
        trim: true,
        control_weight: None,
    };

    fn queue() -> EgressQueue<u32> {
        EgressQueue::new(false, 7)
    }

    #[test]
    fn a_full_data_queue_trims_and_a_full_control_queue_drops() {
        let mut queue = queue();
        for i in 0..10 {
            assert_eq!(queue.enqueue(&CONFIG, i, Class::Data, 1_000, 64), Enqueued::Whole);
        }
        for i in 10..13 {
            assert_eq!(queue.enqueue(&CONFIG, i, Class::Data, 1_000, 64), Enqueued::Trimmed(Class::Trimmed));
        }
        assert_eq!(queue.enqueue(&CONFIG, 13, Class::Data, 1_000, 64), Enqueued::Dropped(13));
        assert_eq!((queue.data_bytes(), queue.control_bytes()), (10_000, 192));
        assert_eq!(queue.counters(), QueueCounters { trimmed: 3, dropped: 1, marked: 0 });
        let order: Vec<u32> = std::iter::from_fn(|| queue.dequeue(&CONFIG)).map(|d| d.packet).collect();
        assert_eq!(order, [10, 11, 12, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert!(queue.is_empty());
    }

    #[test]
    fn the_last_hop_says_so_and_small_packets_are_not_trimmed() {
        let mut queue = EgressQueue::new(true, 7);
        let config = QueueConfig { data_limit: 0, ..CONFIG };
        assert_eq!(queue.enqueue(&config, 1, Class::Data, 65, 64), Enqueued::Trimmed(Class::TrimmedLastHop));
        assert_eq!(queue.enqueue(&config, 2, Class::Data, 64, 64), Enqueued::Dropped(2));
        let dropping = QueueConfig { trim: false, ..config };
        assert_eq!(queue.enqueue(&dropping, 3, Class::Data, 65, 64), Enqueued::Dropped(3));
    }

    #[test]
    fn marks_follow_the_length_that_is_left() {
        let marked = |length: u64| {
            let mut marks = 0;
            let mut queue = EgressQueue::<u32>::new(false, length);
            for _ in 0..1_000 {
                queue.data.push(0, length as u32);
                queue.data.push(0, 1);
                queue.data.packets.swap(0, 1);
                marks += u32::from(queue.dequeue(&CONFIG).unwrap().mark);
                queue.drain().for_each(drop);
            }
            marks
        };
        assert_eq!(marked(2_000), 0);
        assert_eq!(marked(8_001), 1_000);
        assert!((420..580).contains(&marked(5_000)), "half way, five standard deviations");
    }

    #[test]
    fn weight_lets_data_through() {
        let mut queue = queue();
        let config = QueueConfig { control_weight: Some(2), control_limit: 10_000, ..CONFIG };
        for i in 0..5 {
            queue.enqueue(&config, i, Class::Control, 64, 64);
        }
        queue.enqueue(&config, 10, Class::Data, 1_000, 64);
        queue.enqueue(&config, 11, Class::Data, 1_000, 64);
        let order: Vec<u32> = std::iter::from_fn(|| queue.dequeue(&config)).map(|d| d.packet).collect();
        assert_eq!(order, [0, 1, 10, 2, 3, 11, 4]);
    }
}
