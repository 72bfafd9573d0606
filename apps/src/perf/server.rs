//! The end that waits for clients and receives what they send.

use super::control::{self, CONTROL, Message};
use super::drive::{Role, Silence, Step};
use super::measure::{Meter, Progress};
use super::memory::Messages;
use super::pattern::Scratch;
use super::plan::{Mode, Test};
use super::report::EndReport;
use super::sequence::Sequence;
use crate::Failure;
use weft_cc::{Span, Time};
use weft_stack::buffer::Buffer;
use weft_stack::fep::{CallError, Completion, ConnectionId, Fep, Receive, ReceiveError, Send};
use weft_stack::packet::Addr;
use weft_stack::port::Port;
use weft_stack::ses::{Matching, ReceiveId};
use weft_stack::worker::Worker;

/// Requests that may arrive before the first of them is read.
const CONTROL_RECEIVES: usize = 8;

/// How a server behaves.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerOptions {
    /// End after one test.
    pub(super) once: bool,
    /// How long to wait for a client.
    pub(super) wait: Option<Span>,
    /// Bytes of messages that a client may make it hold.
    pub(super) memory: u64,
    /// Whether its congestion control uses credit.
    pub(super) credit: bool,
    /// Bytes of payload of a full packet that it sends.
    pub(super) payload: u32,
    /// Bytes of payload of the longest packet that its port takes.
    pub(super) room: u32,
    /// Silence of a client after which its test is given up.
    pub(super) patience: Span,
    /// Whether another end shares the thread.
    pub(super) shares_thread: bool,
}

/// What is done with the results of a test: its plan, the client's name, and what the server has seen.
pub(super) type Sink<'a> =
    Box<dyn FnMut(&Test, &str, EndReport) -> Result<(), Failure> + std::marker::Send + 'a>;

/// The server.
pub(super) struct Server<'a> {
    options: ServerOptions,
    sink: Sink<'a>,
    session: Option<Session>,
    last_session: u32,
    /// Since when there has been no session.
    idle_since: Time,
    /// Control messages of others than the client, each a packet: they are no sign of its life.
    foreign: u64,
    started: bool,
}

/// A test that is being run.
struct Session {
    id: u32,
    peer: Addr,
    name: String,
    test: Test,
    reply: Option<ConnectionId>,
    lanes: Vec<Sequence>,
    slots: Vec<Slot>,
    silence: Silence,
    meter: Meter,
    /// Data packets that the endpoint had received before.
    before: u64,
    /// When the measured part begins; none before the first packet.
    begin: Option<Time>,
    measuring: bool,
    last_message: Time,
    progress: Progress,
    scratch: Scratch,
    verified: u64,
    wrong_bytes: u64,
    wrong_messages: u64,
    /// Messages that the client says it has sent.
    announced: Option<u64>,
    /// The client has been told the result.
    reported: bool,
}

/// Memory for one message.
struct Slot {
    lane: u32,
    receive: Option<ReceiveId>,
}

impl<'a> Server<'a> {
    pub(super) fn new(options: ServerOptions, sink: Sink<'a>, now: Time) -> Server<'a> {
        Server { options, sink, session: None, last_session: 0, idle_since: now, foreign: 0, started: false }
    }

    fn requested<P: Port>(
        &mut self,
        worker: &mut Worker<P>,
        now: Time,
        peer: Addr,
        test: Test,
    ) -> Result<(), Failure> {
        let name = name_of(worker, peer);
        let fep = worker.fep_mut();
        // Its client has begun anew, or knows the result already.
        if self.session.as_ref().is_some_and(|session| session.peer == peer || session.reported) {
            self.end_session(fep, now);
        }
        if let Some(reason) = self.objection(&test) {
            return refuse(fep, now, peer, reason).map_err(|error| failure(&name, &error));
        }
        self.last_session = self.last_session % control::LAST_SESSION + 1;
        let mut session = Session::new(self.last_session, peer, name, test, self.options, now);
        session.before = fep.counters().data_received;
        let ready = session.open(fep, now);
        session.meter.begin(now, worker, Progress::default());
        let fep = worker.fep_mut();
        let name = session.name.clone();
        self.session = Some(session);
        if let Err(error) = ready {
            self.end_session(fep, now);
            let refused = refuse(fep, now, peer, format!("it cannot: {error}"));
            return refused.map_err(|error| failure(&name, &error));
        }
        Ok(())
    }

    /// Why a test is not run, if it is not.
    fn objection(&self, test: &Test) -> Option<String> {
        if let Some(session) = &self.session {
            return Some(format!("it is busy with {}", session.name));
        }
        if let Err(reason) = test.check() {
            return Some(reason);
        }
        let (needed, memory) = (test.receive_memory(), self.options.memory);
        if needed > memory {
            return Some(format!("the test needs {needed} bytes here, of {memory} (--memory of the server)"));
        }
        if test.credit != self.options.credit {
            let uses = |credit| if credit { "uses credit" } else { "uses no credit" };
            let (client, server) = (uses(test.credit), uses(self.options.credit));
            return Some(format!("the client's --cc {} {client}, and the server's {server}", test.cc));
        }
        self.too_long(test)
    }

    /// Which packets of the one end the other one's port does not take, if there are any: they would be lost in silence.
    fn too_long(&self, test: &Test) -> Option<String> {
        let ServerOptions { payload, room, .. } = self.options;
        let refusal = |sends: &str, payload: u32, takes: &str, room: u32| {
            format!(
                "packets of the {sends} carry {payload} bytes, and the {takes}'s port takes packets with {room}: \
                 start the {sends} with --payload {room}, or both with the same --port-mtu"
            )
        };
        // Only when latency is measured do messages go back.
        let back = if test.mode == Mode::Latency { u64::from(payload).min(test.size) } else { 0 };
        if test.payload > room {
            Some(refusal("client", test.payload, "server", room))
        } else if back > test.room.into() {
            Some(refusal("server", payload, "client", test.room))
        } else {
            None
        }
    }

    fn end_session(&mut self, fep: &mut Fep, now: Time) {
        let Some(session) = self.session.take() else { return };
        for slot in &session.slots {
            if let Some(receive) = slot.receive {
                // One that a message has met comes back by itself, to be dropped.
                let _ = fep.cancel_receive(receive);
            }
        }
        if let Some(reply) = session.reply {
            let _ = fep.close(now, reply);
        }
        self.idle_since = now;
    }

    fn take<P: Port>(
        &mut self,
        worker: &mut Worker<P>,
        now: Time,
        completion: Completion,
    ) -> Result<(), Failure> {
        match completion {
            Completion::Received {
                context: CONTROL, buffer: Buffer::Heap(bytes), peer, len, result, ..
            } => {
                control::post_receive(worker.fep_mut(), None)
                    .map_err(|error| failure("the server", &error))?;
                if let (Some(peer), Ok(())) = (peer, result) {
                    self.told(worker, now, peer, &bytes[..len as usize])?;
                }
                Ok(())
            }
            Completion::Received { context, buffer, header_data, len, result, .. } if context != CONTROL => {
                let Some(session) = self.session_of(context) else { return Ok(()) };
                let arrived = Arrived { slot: context as u32, buffer, seq: header_data, len, result };
                let taken = session.arrived(worker.fep_mut(), now, arrived);
                taken.map_err(|error| failure(&session.name, &error))
            }
            // An answer that failed shows as silence, which is waited for anyway.
            Completion::Sent { context, buffer, .. } if context != CONTROL => {
                let Some(session) = self.session_of(context) else { return Ok(()) };
                let posted = session.post(worker.fep_mut(), context as u32, buffer);
                posted.map_err(|error| failure(&session.name, &error))
            }
            Completion::Closed { id, .. } => {
                if let Some(session) = self.session.as_mut().filter(|session| session.reply == Some(id)) {
                    session.reply = None;
                }
                Ok(())
            }
            Completion::Received { .. } | Completion::Sent { .. } => Ok(()),
        }
    }

    fn session_of(&mut self, context: u64) -> Option<&mut Session> {
        self.session.as_mut().filter(|session| u64::from(session.id) == context >> 32)
    }

    fn told<P: Port>(
        &mut self,
        worker: &mut Worker<P>,
        now: Time,
        peer: Addr,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        self.foreign += u64::from(self.session.as_ref().is_some_and(|session| session.peer != peer));
        match control::decode(bytes) {
            Ok(Message::Request(test)) => self.requested(worker, now, peer, test),
            Ok(Message::Finished { messages }) => {
                if let Some(session) = self.session.as_mut().filter(|session| session.peer == peer) {
                    session.announced = Some(messages);
                }
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(error) => {
                let name = name_of(worker, peer);
                refuse(worker.fep_mut(), now, peer, error.to_string()).map_err(|error| failure(&name, &error))
            }
        }
    }

    /// Ends what is over. Returns whether the role is.
    fn advance<P: Port>(&mut self, worker: &mut Worker<P>, now: Time) -> Result<bool, Failure> {
        let Some(session) = &mut self.session else {
            return match self.options.wait {
                Some(wait) if now.since(self.idle_since) >= wait => {
                    Err(Failure::Run(format!("no client has come within {wait}")))
                }
                _ => Ok(false),
            };
        };
        session.measure(worker, now);
        let heard = worker.fep().counters().data_received.saturating_sub(self.foreign);
        let silent = session.silence.is_too_long(heard, now);
        if session.reported {
            if session.reply.is_none() || silent {
                self.end_session(worker.fep_mut(), now);
                return Ok(self.options.once);
            }
            return Ok(false);
        }
        if session.has_all() || (session.announced.is_some() && silent) {
            let report = session.conclude(worker, now);
            let sent = session.send(worker.fep_mut(), now, Message::Report(report.clone()));
            sent.map_err(|error| failure(&session.name, &error))?;
            if let Some(reply) = session.reply {
                let _ = worker.fep_mut().close(now, reply);
            }
            session.reported = true;
            session.silence.restart(now);
            (self.sink)(&session.test, &session.name, report)?;
        } else if silent {
            return self.give_up(worker, now);
        }
        Ok(false)
    }

    fn give_up<P: Port>(&mut self, worker: &mut Worker<P>, now: Time) -> Result<bool, Failure> {
        let Some(session) = &self.session else { return Ok(false) };
        let what = format!("waiting for its messages, of which {} have arrived", session.progress.messages);
        let failure = session.silence.failure(worker, now, &session.name, &what);
        if self.options.once {
            return Err(failure);
        }
        eprintln!("weft: {failure}");
        self.end_session(worker.fep_mut(), now);
        Ok(false)
    }
}

/// A message that has arrived.
struct Arrived {
    slot: u32,
    buffer: Buffer,
    seq: u64,
    len: u32,
    result: Result<(), ReceiveError>,
}

impl Session {
    fn new(id: u32, peer: Addr, name: String, test: Test, options: ServerOptions, now: Time) -> Session {
        Session {
            id,
            peer,
            name,
            reply: None,
            lanes: (0..test.connections).map(|_| Sequence::default()).collect(),
            slots: Vec::new(),
            silence: Silence::new(options.patience, now),
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
    fn open(&mut self, fep: &mut Fep, now: Time) -> Result<(), CallError> {
        let receives = self.test.receives();
        let mut memory = Messages::new(receives * u64::from(self.test.connections), self.test.size)?;
        for lane in 0..u32::from(self.test.connections) {
            for _ in 0..receives {
                let memory = memory.take()?;
                let slot = self.slots.len() as u32;
                self.slots.push(Slot { lane, receive: None });
                self.post(fep, slot, Buffer::Region(memory))?;
            }
        }
        let session = self.id;
        self.send(fep, now, Message::Ready { session })
    }

    fn send(&mut self, fep: &mut Fep, now: Time, message: Message) -> Result<(), CallError> {
        let connection = control::connection(fep, now, self.peer, self.reply)?;
        self.reply = Some(connection);
        control::send(fep, connection, message)
    }

    // Inlined always: memory that is put together and then moved is waited for.
    #[inline(always)]
    fn post(&mut self, fep: &mut Fep, slot: u32, buffer: Buffer) -> Result<(), CallError> {
        let Some(at) = self.slots.get_mut(slot as usize) else { return Ok(()) };
        let matching = Matching::Tagged { tag: control::data_tag(self.id, at.lane), ignore: 0 };
        let context = u64::from(self.id) << 32 | u64::from(slot);
        let receive = Receive { buffer, from: Some(self.peer), matching, context };
        at.receive = Some(fep.post_receive(receive)?);
        Ok(())
    }

    #[inline]
    fn arrived(&mut self, fep: &mut Fep, now: Time, message: Arrived) -> Result<(), CallError> {
        let Some(lane) = self.slots.get(message.slot as usize).map(|slot| slot.lane) else { return Ok(()) };
        let whole = message.result.is_ok() && u64::from(message.len) == self.test.size;
        let new = self.lanes.get_mut(lane as usize).is_some_and(|sequence| sequence.arrived(message.seq));
        if !whole || !new {
            self.wrong_messages += 1;
            return self.post(fep, message.slot, message.buffer);
        }
        if let Buffer::Region(memory) = &message.buffer
            && self.test.verify
        {
            self.verified += u64::from(message.len);
            // A clone: what is named by reference is kept in memory, for all.
            self.wrong_bytes += self.scratch.wrong_bytes(&memory.clone(), lane, message.seq);
        }
        self.progress.messages += 1;
        self.progress.bytes += self.test.size;
        self.last_message = now;
        if self.test.mode != Mode::Latency {
            return self.post(fep, message.slot, message.buffer);
        }
        let connection = control::connection(fep, now, self.peer, self.reply)?;
        self.reply = Some(connection);
        let send = Send {
            buffer: message.buffer,
            tag: Some(control::data_tag(self.id, lane)),
            header_data: message.seq,
            context: u64::from(self.id) << 32 | u64::from(message.slot),
        };
        fep.post_send(connection, send)?;
        Ok(())
    }

    /// Begins the measured part when its time has come: with the first packet, or after the warm-up.
    #[inline]
    fn measure<P: Port>(&mut self, worker: &Worker<P>, now: Time) {
        if self.measuring {
            return;
        }
        if self.begin.is_none() && worker.fep().counters().data_received > self.before {
            self.begin = Some(now + self.test.warmup());
        }
        if !self.begin.is_some_and(|begin| now.is_at_or_after(begin)) {
            return;
        }
        if self.test.warmup() == Span::ZERO {
            // What the first packets brought counts.
            self.meter.begins_at(now);
        } else {
            self.meter.begin(now, worker, self.progress);
        }
        self.measuring = true;
    }

    /// Whether all that the client says it has sent is here.
    fn has_all(&self) -> bool {
        self.announced.is_some_and(|messages| self.progress.messages >= messages)
    }

    fn conclude<P: Port>(&mut self, worker: &Worker<P>, now: Time) -> EndReport {
        if let Some(began) = self.meter.began() {
            self.meter.end(self.last_message.latest(began).earliest(now), worker, self.progress);
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

impl Role for Server<'_> {
    fn step<P: Port>(&mut self, worker: &mut Worker<P>, now: Time) -> Result<Step, Failure> {
        if !self.started {
            self.started = true;
            for _ in 0..CONTROL_RECEIVES {
                let posted = control::post_receive(worker.fep_mut(), None);
                posted.map_err(|error| failure("the server", &error))?;
            }
        }
        let mut step = Step::Idle;
        while let Some(completion) = worker.fep_mut().poll_completion() {
            step = Step::Busy;
            self.take(worker, now, completion)?;
        }
        Ok(if self.advance(worker, now)? { Step::Done } else { step })
    }

    #[inline]
    fn turned(&mut self, span: Span, idle: bool) {
        if let Some(session) = &mut self.session {
            session.meter.turned(span, idle);
        }
    }
}

/// Tells `peer` why its test is not run.
fn refuse(fep: &mut Fep, now: Time, peer: Addr, reason: String) -> Result<(), CallError> {
    let connection = control::connection(fep, now, peer, None)?;
    control::send(fep, connection, Message::Refused { reason })?;
    fep.close(now, connection)
}

fn failure(name: &str, error: &CallError) -> Failure {
    Failure::Run(format!("{name}: {error}"))
}

fn name_of<P: Port>(worker: &Worker<P>, peer: Addr) -> String {
    worker.book().get(peer).map_or_else(|| format!("endpoint {}", peer.0), |host| host.ip.to_string())
}
