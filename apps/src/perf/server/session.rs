//! A test that the server runs: what its client sends, and the figures.

use super::ServerOptions;
use crate::perf::control::{self, Message};
use crate::perf::drive::Silence;
use crate::perf::measure::{Meter, Progress};
use crate::perf::memory;
use crate::perf::mode::Mode;
use crate::perf::pattern::Scratch;
use crate::perf::plan::Test;
use crate::perf::report::EndReport;
use crate::perf::sequence::Sequence;
use weft::{Addr, ConnectionId, Endpoint, Error, MemorySlice, OperationId, ReceiveOptions, SendOptions};
use weft_cc::{Span, Time};

/// A test that is being run.
pub(super) struct Session {
    pub(super) id: u32,
    pub(super) peer: Addr,
    pub(super) name: String,
    pub(super) test: Test,
    /// The number that the client has drawn.
    pub(super) number: u64,
    /// The receive for the client's last word.
    pub(super) finished: Option<OperationId>,
    pub(super) reply: Option<ConnectionId>,
    lanes: Vec<Sequence>,
    pub(super) slots: Vec<Slot>,
    pub(super) silence: Silence,
    /// The time within which a message has to be there after the one before.
    stall: Span,
    /// When the test has to be over.
    due: Time,
    pub(super) meter: Meter,
    /// Data packets that the endpoint had received before.
    pub(super) before: u64,
    /// When the measured part begins; none before the first packet.
    begin: Option<Time>,
    measuring: bool,
    pub(super) last_message: Time,
    pub(super) progress: Progress,
    scratch: Scratch,
    verified: u64,
    wrong_bytes: u64,
    wrong_messages: u64,
    /// Messages that the client says it has sent.
    pub(super) announced: Option<u64>,
    /// The client has been told the result.
    pub(super) reported: bool,
}

/// Memory for one message.
pub(super) struct Slot {
    lane: u32,
    /// The receive that the endpoint has for it, or the last one, if the memory is on its way back to the client.
    pub(super) lent: Option<OperationId>,
}

/// A message that has arrived.
pub(super) struct Arrived {
    pub(super) slot: u32,
    pub(super) memory: MemorySlice,
    pub(super) seq: u64,
    /// All of it has, and it is as long as it should be.
    pub(super) whole: bool,
}

impl Session {
    pub(super) fn new(
        id: u32,
        peer: Addr,
        name: String,
        test: Test,
        options: ServerOptions,
        now: Time,
    ) -> Session {
        let stall = options.patience + test.slowest();
        Session {
            id,
            peer,
            name,
            number: 0,
            finished: None,
            reply: None,
            lanes: (0..test.connections).map(|_| Sequence::default()).collect(),
            slots: Vec::new(),
            silence: Silence::new(options.patience, now),
            stall,
            due: now + stall + options.patience + test.longest(),
            meter: if options.shares_thread { Meter::without_cpu() } else { Meter::with_cpu() },
            before: 0,
            begin: None,
            measuring: false,
            last_message: now,
            progress: Progress::default(),
            scratch: Scratch::default(),
            verified: 0,
            wrong_bytes: 0,
            wrong_messages: 0,
            announced: None,
            reported: false,
            test,
        }
    }

    /// Posts the receives and tells the client so.
    pub(super) fn open(&mut self, endpoint: &mut Endpoint) -> Result<(), Error> {
        let receives = self.test.receives();
        let count = receives * u64::from(self.test.connections);
        let mut messages = memory::messages(endpoint, count, self.test.size)?.into_iter();
        for lane in 0..u32::from(self.test.connections) {
            for message in messages.by_ref().take(receives as usize) {
                let slot = self.slots.len() as u32;
                self.slots.push(Slot { lane, lent: None });
                self.post(endpoint, slot, message)?;
            }
        }
        let context = u64::from(self.id) << 32 | u64::from(u32::MAX);
        let finished = control::post_receive(endpoint, self.peer, control::finished_tag(self.id), context)?;
        self.finished = Some(finished);
        self.say(endpoint, Message::Ready { session: self.id })
    }

    pub(super) fn say(&mut self, endpoint: &mut Endpoint, message: Message) -> Result<(), Error> {
        control::send(endpoint, self.peer, &mut self.reply, control::TAG, message)
    }

    /// Tells the client the result, and closes the connection to it.
    pub(super) fn say_last(
        &mut self,
        endpoint: &mut Endpoint,
        now: Time,
        message: Message,
    ) -> Result<(), Error> {
        self.say(endpoint, message)?;
        if let Some(reply) = self.reply {
            let _ = endpoint.close(reply);
        }
        self.reported = true;
        self.silence.restart(now);
        Ok(())
    }

    // Inlined always: memory that is put together and then moved is waited for.
    #[inline(always)]
    pub(super) fn post(
        &mut self,
        endpoint: &mut Endpoint,
        slot: u32,
        memory: MemorySlice,
    ) -> Result<(), Error> {
        let Some(at) = self.slots.get_mut(slot as usize) else { return Ok(()) };
        let options = ReceiveOptions::default()
            .tag(control::data_tag(self.id, at.lane))
            .from(self.peer)
            .context(u64::from(self.id) << 32 | u64::from(slot));
        match endpoint.receive_with(memory, options) {
            Ok(receive) => at.lent = Some(receive),
            Err(refused) => {
                at.lent = None;
                return Err(refused.error);
            }
        }
        Ok(())
    }

    // Inlined always: memory that is put together and then moved is waited for.
    #[inline(always)]
    pub(super) fn arrived(
        &mut self,
        endpoint: &mut Endpoint,
        now: Time,
        message: Arrived,
    ) -> Result<(), Error> {
        let Arrived { slot, mut memory, seq, whole } = message;
        let Some(lane) = self.slots.get(slot as usize).map(|slot| slot.lane) else { return Ok(()) };
        let new = self.lanes.get_mut(lane as usize).is_some_and(|sequence| sequence.arrived(seq));
        if !whole || !new {
            self.wrong_messages += 1;
            return self.post(endpoint, slot, memory);
        }
        if self.test.verify {
            memory = self.verify(memory, lane, seq);
        }
        self.progress.messages += 1;
        self.progress.bytes += self.test.size;
        self.last_message = now;
        if self.test.mode == Mode::Latency {
            let options = SendOptions::default()
                .tag(control::data_tag(self.id, lane))
                .header_data(seq)
                .context(u64::from(self.id) << 32 | u64::from(slot));
            let sent = control::send_to(endpoint, self.peer, &mut self.reply, memory.into(), options);
            if sent.is_err()
                && let Some(at) = self.slots.get_mut(slot as usize)
            {
                at.lent = None;
            }
            return sent;
        }
        self.post(endpoint, slot, memory)
    }

    /// Compares the content of a message. By value: a buffer that is lent stays in memory on all paths, and not in
    /// registers.
    #[inline(never)]
    fn verify(&mut self, memory: MemorySlice, lane: u32, seq: u64) -> MemorySlice {
        self.verified += u64::from(memory.len());
        self.wrong_bytes += self.scratch.wrong_bytes(&memory, lane, seq);
        memory
    }

    /// Begins the measured part when its time has come: with the first packet, or after the warm-up.
    #[inline]
    pub(super) fn measure(&mut self, endpoint: &Endpoint, now: Time) {
        if self.measuring {
            return;
        }
        if self.begin.is_none() && received(endpoint) > self.before {
            self.begin = Some(now + self.test.warmup());
        }
        if !self.begin.is_some_and(|begin| now.is_at_or_after(begin)) {
            return;
        }
        if self.test.warmup() == Span::ZERO {
            // The messages of the first packets count.
            self.meter.begins_at(now);
        } else {
            self.meter.begin(now, endpoint, self.progress);
        }
        self.measuring = true;
    }

    /// Whether the client makes too little progress, or its test takes longer than it has said. Packets that complete no message do not
    /// count: they may be of anybody.
    #[inline]
    pub(super) fn is_late(&self, now: Time) -> bool {
        !self.reported && (now.since(self.last_message) >= self.stall || now.is_at_or_after(self.due))
    }

    /// Whether all that the client says it has sent is here.
    pub(super) fn has_all(&self) -> bool {
        self.announced.is_some_and(|messages| self.progress.messages >= messages)
    }

    pub(super) fn conclude(&mut self, endpoint: &Endpoint, now: Time) -> EndReport {
        if let Some(began) = self.meter.began() {
            self.meter.end(self.last_message.latest(began).earliest(now), endpoint, self.progress);
        }
        let missing = self.announced.unwrap_or(0).saturating_sub(self.progress.messages);
        EndReport {
            arrived: self.progress.messages,
            wrong_messages: self.wrong_messages + missing,
            verified_bytes: self.verified,
            wrong_bytes: self.wrong_bytes,
            ..self.meter.report()
        }
    }
}

/// Data packets that the endpoint has received.
#[inline]
pub(super) fn received(endpoint: &Endpoint) -> u64 {
    endpoint.worker().map_or(0, |worker| worker.fep().counters().data_received)
}
