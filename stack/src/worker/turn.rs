//! One turn of the loop.

use weft_cc::{Span, Time};

use super::codec::{ReadError, WriteError};
use super::{AddressBook, BookError, Codec, Worker, WorkerCounters};
use crate::fep::{Abandoned, Fep, PayloadRef};
use crate::occurrences::{crosses_power_of_ten, is_logged};
use crate::packet::{Packet, Payload};
use crate::port::{BURST, Frame, Port, Reservation};
use crate::prefetch::prefetch;
use crate::wire::pds::Pds;

/// How long frames wait for a port that takes none: longer than a scheduler keeps the other end from running.
const STANDSTILL: Span = Span::from_ms(1_000);

/// The result of one turn of the loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnResult {
    /// Number of frames that arrived, and of packets from the endpoint itself.
    pub received: usize,
    /// Number of frames that the port took, and of packets to the endpoint itself.
    pub sent: usize,
    /// Whether a timer was due.
    pub timers: bool,
}

impl TurnResult {
    /// Whether nothing happened.
    pub fn is_idle(&self) -> bool {
        *self == TurnResult::default()
    }
}

/// How many frames ahead of the one being read the headers are fetched. A frame takes a few hundred nanoseconds, so
/// three cover the latency of a line from memory.
const AHEAD: usize = 3;

/// Bytes of headers worth fetching: Ethernet, IP, UDP, PDS and most of SES.
const HEADERS: usize = 128;

/// Payload of this many bytes or more is sent by reference if the port can. Copying a shorter one is faster than
/// preparing a second buffer that refers to it.
const WORTH_ATTACHING: u32 = 1024;

/// Packets that leave in a turn at most.
pub const PACKETS_PER_TURN: usize = 4 * BURST;

impl<P: Port> Worker<P> {
    /// One turn of the loop, at the time of the clock.
    #[inline]
    pub fn poll(&mut self) -> TurnResult {
        let now = self.now();
        self.poll_at(now)
    }

    /// One turn of the loop at `now`, a time that its clock has just shown and not before that of an earlier turn.
    pub fn poll_at(&mut self, now: Time) -> TurnResult {
        self.counters.polls += 1;
        let mut received = self.receive(now);
        if self.loopback.len() > 0 {
            received += self.loopback.deliver(&mut self.fep, now);
        }
        let timers = self.fep.poll_timeout().is_some_and(|at| now.is_at_or_after(at));
        if timers {
            self.fep.on_timeout(now);
        }
        let asked = self.neighbours.is_due(now);
        if asked {
            self.neighbours.ask(now, &mut self.book, &mut self.tx);
        }
        let sent = self.transmit(now) + self.loopback.len();
        if let Some(memory) = self.fep.take_abandoned_memory()
            && !memory.is_nothing()
        {
            self.recall_from(&memory);
        }
        TurnResult { received, sent, timers: timers | asked }
    }

    /// The time of the clock, but never less than the time before.
    #[inline]
    pub(super) fn now(&mut self) -> Time {
        self.shown = self.clock.now().latest(self.shown);
        self.shown
    }

    /// When the worker next has something to do even if nothing arrives.
    pub(super) fn next_timer(&self) -> Option<Time> {
        [self.fep.poll_timeout(), self.neighbours.poll_timeout()].into_iter().flatten().reduce(Time::earliest)
    }

    #[inline]
    fn receive(&mut self, now: Time) -> usize {
        // What an earlier turn has left comes first.
        if self.rx.is_empty() {
            if self.port.receive(&mut self.rx) == 0 {
                return 0;
            }
            self.rx_at = now;
        }
        self.fep.prefetch();
        self.fep.begin_burst();
        self.rx.iter().take(AHEAD).for_each(prefetch_headers);
        // Zero, unless an earlier turn has left them.
        let kept = now.since(self.rx_at);
        let mut count = self.rx.len();
        for at in 0..self.rx.len() {
            if self.fep.completes_many() {
                count = at;
                break;
            }
            if let Some(ahead) = self.rx.get(at + AHEAD) {
                prefetch_headers(ahead);
            }
            if self.rx[at].is_attached() && self.receive_with_tail(now, at, kept) {
                continue;
            }
            let (next, frame, packet) = (&self.expected, &self.rx[at], &mut self.arrived);
            match self.codec.read_expected(&self.book, next, frame, packet) {
                Some(payload) => {
                    let waited = frame.waited().plus(kept);
                    self.fep.on_packet_after(now, waited, &self.arrived, Payload::Bytes(payload));
                }
                None => self.receive_any(now, at, kept),
            }
        }
        // Only then: the clock is read once for a turn otherwise.
        let took = if self.fep.owes_acknowledgements() { self.now().since(now) } else { Span::ZERO };
        self.fep.end_burst(now, took);
        if count == self.rx.len() {
            self.rx.clear();
        } else {
            self.rx.drop_first(count);
        }
        count
    }

    /// Handles frame `at` of the burst, whose headers are not as predicted. `kept` is how long this host has had the burst.
    #[inline(never)]
    fn receive_any(&mut self, now: Time, at: usize, kept: Span) {
        let (next, packet) = (&mut self.expected, &mut self.arrived);
        let known = self.book.changes();
        match self.codec.read_any(&mut self.book, next, &self.rx[at], packet) {
            Ok(payload) => {
                if self.book.changes() != known {
                    Worker::welcome(&mut self.port, &mut self.fep, &self.book, self.arrived.net.src);
                }
                let waited = self.rx[at].waited().plus(kept);
                self.fep.on_packet_after(now, waited, &self.arrived, Payload::Bytes(payload));
            }
            Err(error) => self.refuse(now, at, kept, error),
        }
    }

    /// Handles frame `at` of the burst, which goes on elsewhere, or copies it into one buffer. `kept` is how long this host has had the
    /// burst. Returns whether the frame is done with.
    #[inline]
    fn receive_with_tail(&mut self, now: Time, at: usize, kept: Span) -> bool {
        let (next, packet) = (&self.expected, &mut self.arrived);
        if let Some(payload) = self.codec.read_with_tail(&self.book, next, &self.rx[at], packet) {
            let waited = self.rx[at].waited().plus(kept);
            self.fep.on_packet_after(now, waited, &self.arrived, Payload::Region(payload));
            return true;
        }
        let Some(whole) = self.rx[at].gather(&self.whole) else {
            self.lack_buffer();
            return true;
        };
        self.counters.gathered += 1;
        self.rx[at] = whole;
        false
    }

    /// Handles frame `at` of the burst, which is no packet for the endpoint.
    #[cold]
    fn refuse(&mut self, now: Time, at: usize, kept: Span, error: ReadError) {
        if matches!(error, ReadError::Stranger(BookError::Full { .. })) && self.make_room() {
            return self.receive_any(now, at, kept);
        }
        let frame = &self.rx[at];
        if matches!(error, ReadError::Malformed(_))
            && self.neighbours.on_frame(now, frame, &mut self.book, &mut self.tx)
        {
            self.counters.neighbours += 1;
            return;
        }
        let count = self.counters.count(&error);
        if is_logged(count) {
            tracing::warn!(count, %error, "a frame was dropped on arrival");
        }
        self.last_read_error = Some(error);
    }

    /// Drops the frames that wait and whose payload is elsewhere, as that memory is about to be reused: for callers whose memory
    /// may vanish once they have it back. Packets that are still needed are sent again when their timers expire.
    #[cold]
    pub fn recall(&mut self) {
        self.tx.drop_attached();
        self.port.recall();
    }

    /// The same for frames whose payload may be in `memory`, after each turn in which a message has failed: those of other
    /// applications stay.
    #[cold]
    fn recall_from(&mut self, memory: &Abandoned) {
        self.tx.drop_attached_to(|bytes| memory.includes(bytes));
        self.port.recall();
    }

    /// Sends what the endpoint has to send, until the port takes no more, or the turn has sent its share: a few acknowledgements may
    /// open the windows of many connections.
    #[inline]
    fn transmit(&mut self, now: Time) -> usize {
        let mut sent = 0;
        for _ in 0..PACKETS_PER_TURN / BURST {
            let more = self.fill(now);
            sent += self.port.transmit(&mut self.tx);
            if !self.tx.is_empty() {
                self.mind_standstill(now, sent);
                return sent;
            }
            if !more {
                break;
            }
        }
        self.stuck_since = None;
        sent
    }

    /// Drops frames that the port has not taken for too long. The endpoint considers them sent: only if they are lost
    /// do its retransmission timers count them, and give up in the end.
    #[cold]
    fn mind_standstill(&mut self, now: Time, sent: usize) {
        let since = *self.stuck_since.get_or_insert(now);
        if sent > 0 {
            self.stuck_since = Some(now);
        } else if now.since(since) > STANDSTILL {
            let before = self.counters.not_taken;
            self.counters.not_taken += self.tx.len() as u64;
            if crosses_power_of_ten(before, self.counters.not_taken) {
                let count = self.counters.not_taken;
                tracing::warn!(count, "frames were dropped that the port did not take for a second");
            }
            self.tx.clear();
            self.stuck_since = None;
        }
    }

    /// Fills the burst. Returns whether there may be more than it holds.
    #[inline]
    fn fill(&mut self, now: Time) -> bool {
        let mut payload = PayloadRef::NONE;
        while self.fep.wants_to_transmit() {
            if self.tx.room() == 0 {
                return true;
            }
            // The buffer comes first: a packet that the endpoint has handed out needs one.
            let Ok(mut frame) = self.tx.reserve(self.longest) else {
                self.lack_buffer();
                return false;
            };
            if !self.fep.poll_transmit_into(now, &mut self.scratch, &mut payload) {
                return false;
            }
            if self.scratch.net.dst == self.book.own() {
                drop(frame);
                self.loopback.push(&self.scratch, self.fep.payload(&payload));
                if self.loopback.is_full() {
                    return false;
                }
                continue;
            }
            let written = if self.attaches && payload.len() >= WORTH_ATTACHING {
                write_by_reference(&self.fep, &self.codec, &self.book, &self.scratch, &payload, &mut frame)
            } else {
                self.codec.write(&self.book, &self.scratch, self.fep.payload(&payload), &mut frame)
            };
            match written {
                Ok(()) => {
                    self.counters.attached += u64::from(frame.is_attached());
                    frame.commit();
                }
                Err(error) => {
                    drop(frame);
                    self.lose(now, error);
                }
            }
        }
        false
    }

    /// Counts that the port's pool had no buffer.
    #[cold]
    fn lack_buffer(&mut self) {
        self.counters.pool_empty += 1;
        if is_logged(self.counters.pool_empty) {
            tracing::warn!(count = self.counters.pool_empty, "the port's pool has no buffer left");
        }
    }

    /// Notes why a packet was not written. It is lost for the endpoint, whose timers retransmit it; a datagram is cancelled.
    #[cold]
    fn lose(&mut self, now: Time, error: WriteError) {
        if matches!(self.scratch.pds, Pds::Uud(_)) {
            self.fep.lose_datagram();
        }
        let counter = match error {
            WriteError::Unresolved { peer, .. } => {
                self.neighbours.want(now, peer);
                &mut self.counters.unresolved
            }
            _ => &mut self.counters.unsendable,
        };
        *counter += 1;
        if is_logged(*counter) {
            tracing::warn!(count = *counter, %error, "a packet was not sent");
        }
        self.last_write_error = Some(error);
    }
}

/// Writes the headers, and puts the payload behind them without reading it: by reference, if its memory can be
/// shared.
#[inline]
fn write_by_reference(
    fep: &Fep,
    codec: &Codec,
    book: &AddressBook,
    packet: &Packet,
    payload: &PayloadRef,
    frame: &mut Reservation<'_>,
) -> Result<(), WriteError> {
    let Some(shared) = fep.share_payload(payload) else {
        return codec.write(book, packet, fep.payload(payload), frame);
    };
    codec.write_headers(book, packet, shared.len(), frame)?;
    let needed = frame.len() + shared.len() as usize;
    frame.attach(shared.into()).map_err(|_| WriteError::TooLong { needed, room: needed })
}

#[inline]
fn prefetch_headers(frame: &Frame) {
    match frame.first_chunk::<HEADERS>() {
        Some(headers) => prefetch(headers),
        None => {
            frame.first().inspect(|first| prefetch(*first));
        }
    }
}

impl WorkerCounters {
    /// Counts a frame that was dropped because of `error`, and returns how many there have been of its kind.
    fn count(&mut self, error: &ReadError) -> u64 {
        let counter = match error {
            ReadError::Malformed(_) => &mut self.malformed,
            ReadError::Misdirected(_) | ReadError::Own(_) => &mut self.misdirected,
            ReadError::Stranger(_) => &mut self.strangers,
        };
        *counter += 1;
        *counter
    }
}
