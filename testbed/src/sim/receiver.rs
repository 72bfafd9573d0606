//! The time that hosts take to process what they receive.

use std::collections::VecDeque;

use weft_cc::{Rate, Span};

use super::host::HostEvent;
use super::packets::Transit;
use super::wires::NEVER;
use crate::switch::Queued;

/// How a host processes the packets that it receives: one after the other, in the order of arrival, each for the time that
/// its bytes take at `rate` and for `per_packet` besides. This is a NIC's queue and a stack's core behind it, as Swift
/// (SIGCOMM 2020, §3.2) has them at a receiver. Packets that the host sends cost nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostModel {
    /// The rate at which a host processes bytes on the wire; `None`: bytes cost nothing.
    pub rate: Option<Rate>,
    /// The time that each packet costs besides, ACKs and trimmed packets included.
    pub per_packet: Span,
    /// Size of the queue, bytes on the wire, the packet in process included. A packet that does not fit is dropped, unless
    /// the queue is empty.
    pub queue_bytes: u64,
}

impl HostModel {
    /// The size of the queue where nothing is said.
    pub const QUEUE_BYTES: u64 = 1 << 20;

    /// The time that a packet of `bytes` bytes on the wire costs.
    pub fn cost(&self, bytes: u64) -> Span {
        self.per_packet + self.rate.map_or(Span::ZERO, |rate| rate.time_for(bytes))
    }

    /// The time that a full queue of packets of `bytes` bytes takes.
    pub fn longest_wait(&self, bytes: u64) -> Span {
        let packets = (self.queue_bytes / bytes.max(1)).max(1);
        Span::from_ps(self.cost(bytes).as_ps().saturating_mul(packets))
    }

    /// The same host in slow motion: all takes `times` as long.
    pub fn slowed(self, times: u32) -> HostModel {
        let rate = self.rate.map(|rate| Rate::from_bps((rate.as_bps() / u64::from(times)).max(1)));
        HostModel { rate, per_packet: self.per_packet.times(u64::from(times)), ..self }
    }
}

/// What the receive queues of all hosts have met in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HostCounters {
    /// Packets that were processed.
    pub processed: u64,
    /// Packets that found no room.
    pub dropped: u64,
    /// The greatest length of a queue, bytes, the packet in process included.
    pub queue_max_bytes: u64,
    /// The time from arrival to the end of processing, summed over all packets, ps, and the longest.
    pub waited_ps: u128,
    /// The longest of these times.
    pub waited_max: Span,
}

impl HostCounters {
    /// The mean time from arrival to the end of processing; zero if there was no packet.
    pub fn waited_mean(&self) -> Span {
        let mean = self.waited_ps / u128::from(self.processed.max(1));
        // A mean is no longer than the longest, which fits.
        Span::from_ps(mean as u64)
    }
}

impl core::iter::Sum for HostCounters {
    fn sum<I: Iterator<Item = HostCounters>>(all: I) -> HostCounters {
        all.fold(HostCounters::default(), |sum, each| HostCounters {
            processed: sum.processed + each.processed,
            dropped: sum.dropped + each.dropped,
            queue_max_bytes: sum.queue_max_bytes.max(each.queue_max_bytes),
            waited_ps: sum.waited_ps + each.waited_ps,
            waited_max: sum.waited_max.max(each.waited_max),
        })
    }
}

/// The receive queue of a host.
pub(super) struct Receiver {
    model: HostModel,
    /// Packets with their times of arrival, ps. The first is in process.
    queue: VecDeque<(u64, Transit)>,
    bytes: u64,
    /// When the first packet has been processed, ps; [`NEVER`] if there is none.
    done_at: u64,
    pub(super) counters: HostCounters,
}

impl Receiver {
    pub(super) fn new(model: HostModel) -> Receiver {
        let (queue, counters) = (VecDeque::new(), HostCounters::default());
        Receiver { model, queue, bytes: 0, done_at: NEVER, counters }
    }

    /// The end of processing as the next event, or `next` if that is earlier.
    #[cold]
    pub(super) fn or_before(&self, next: (u64, HostEvent)) -> (u64, HostEvent) {
        if self.done_at <= next.0 { (self.done_at, HostEvent::Processed) } else { next }
    }

    /// Queues a packet that arrives at `now`, ps. Returns false if there is no room for it.
    pub(super) fn arrive(&mut self, now: u64, transit: &Transit) -> bool {
        let bytes = self.bytes + u64::from(transit.size());
        if !self.queue.is_empty() && bytes > self.model.queue_bytes {
            self.counters.dropped += 1;
            return false;
        }
        self.bytes = bytes;
        self.counters.queue_max_bytes = self.counters.queue_max_bytes.max(bytes);
        self.queue.push_back((now, *transit));
        if self.queue.len() == 1 {
            self.begin(now);
        }
        true
    }

    /// Takes the packet that has been processed at `now`, ps, with the time since its arrival.
    pub(super) fn finish(&mut self, now: u64) -> Option<(Span, Transit)> {
        let (arrived, transit) = self.queue.pop_front()?;
        self.bytes -= u64::from(transit.size());
        self.begin(now);
        let waited = now - arrived;
        self.counters.processed += 1;
        self.counters.waited_ps += u128::from(waited);
        self.counters.waited_max = self.counters.waited_max.max(Span::from_ps(waited));
        Some((Span::from_ps(waited), transit))
    }

    /// Begins with the first packet at `now`, ps, if there is one.
    fn begin(&mut self, now: u64) {
        self.done_at = self.queue.front().map_or(NEVER, |(_, transit)| {
            now.saturating_add(self.model.cost(u64::from(transit.size())).as_ps())
        });
    }
}
