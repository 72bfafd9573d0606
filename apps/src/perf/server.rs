//! The end that waits for clients and receives what they send.

use super::control::{self, CONTROL, Message};
use super::drive::{Role, Silence, Step};
use super::measure::{Meter, Progress};
use super::memory;
use super::mode::Mode;
use super::pattern::Scratch;
use super::plan::Test;
use super::report::EndReport;
use super::sequence::Sequence;
use crate::Failure;
use weft::{
    Addr, Completion, ConnectionId, Endpoint, Error, MemorySlice, OperationId, ReceiveBuffer, ReceiveOptions,
};
use weft::{SendBuffer, SendOptions};
use weft_cc::{Span, Time};

/// Requests that may arrive before the first of them is read.
const CONTROL_RECEIVES: usize = 8;

/// Clients that may be being told at once that they are refused. Anybody can ask, so that refusals must be bounded.
const REFUSALS: usize = 64;

/// The reason that a client hears when its server is told to end.
const INTERRUPTED: &str = "the server was interrupted";

/// How a server behaves.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerOptions {
    /// End after one test.
    pub(super) once: bool,
    /// How long to wait for a client.
    pub(super) wait: Option<Span>,
    /// Bytes of messages that a client may make it hold.
    pub(super) memory: u64,
    /// Bytes of payload of a full packet that it sends.
    pub(super) payload: u32,
    /// Bytes of payload of the longest packet that its port takes.
    pub(super) room: u32,
    /// Silence of a client after which its test is given up.
    pub(super) patience: Span,
    /// Whether another end shares the thread.
    pub(super) shares_thread: bool,
}

/// Takes the results of a test: its plan, the client's name, and the server's figures.
pub(super) type Sink<'a> = Box<dyn FnMut(&Test, &str, EndReport) -> Result<(), Failure> + Send + 'a>;

/// The server.
pub(super) struct Server<'a> {
    options: ServerOptions,
    sink: Sink<'a>,
    session: Option<Session>,
    last_session: u32,
    /// Since when there has been no session.
    idle_since: Time,
    /// Packets of control messages from other peers than the client: they do not show that the client lives.
    foreign: u64,
    /// Connections to clients that are being told that they are refused.
    refusals: Vec<ConnectionId>,
    /// Connections of tests in whose place their clients have asked for others. As many may be closing as refusals: a
    /// client that answers nothing would take one more with each request.
    replaced: Vec<ConnectionId>,
    started: bool,
    /// A signal has come: no further test begins.
    interrupted: bool,
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
    /// The client has acknowledged that the test may begin, so it is where its request says that it is.
    answered: bool,
    /// The client has been told the result.
    reported: bool,
}

/// Memory for one message.
struct Slot {
    lane: u32,
    receive: Option<OperationId>,
}

impl<'a> Server<'a> {
    pub(super) fn new(options: ServerOptions, sink: Sink<'a>, now: Time) -> Server<'a> {
        Server {
            options,
            sink,
            session: None,
            last_session: 0,
            idle_since: now,
            foreign: 0,
            refusals: Vec::new(),
            replaced: Vec::new(),
            started: false,
            interrupted: false,
        }
    }

    fn requested(&mut self, endpoint: &mut Endpoint, now: Time, peer: Addr, test: Test) {
        let name = name_of(endpoint, peer);
        // Its client has begun anew, or knows the result already, or may not exist: anybody can ask in the name of a host.
        let unfit = self.unfit(endpoint, peer, &test);
        let makes_room = |session: &&mut Session| {
            session.peer == peer || session.reported || !session.answered && unfit.is_none()
        };
        if let Some(session) = self.session.as_mut().filter(makes_room) {
            if !session.reported {
                if self.replaced.len() == REFUSALS {
                    return;
                }
                if session.peer != peer {
                    let reason = format!("{name} has asked before it answered");
                    // If it cannot be told, it gives up by itself.
                    let _ = session.say(endpoint, Message::Refused { reason });
                }
                self.replaced.extend(session.reply);
            }
            self.end_session(endpoint, now);
        }
        if let Some(reason) = self.occupied().or(unfit) {
            self.refuse(endpoint, peer, reason);
            return;
        }
        self.last_session = self.last_session % control::LAST_SESSION + 1;
        let mut session = Session::new(self.last_session, peer, name, test, self.options, now);
        session.before = received(endpoint);
        let ready = session.open(endpoint);
        session.meter.begin(now, endpoint, Progress::default());
        self.session = Some(session);
        if let Err(error) = ready {
            self.end_session(endpoint, now);
            self.refuse(endpoint, peer, format!("it cannot: {error}"));
        }
    }

    /// Tells `peer` why its test is not run, unless others have not taken their refusals yet: then it hears nothing, and
    /// gives up by itself. Whatever peers ask for, it ends no test and takes no more connections than [`REFUSALS`].
    fn refuse(&mut self, endpoint: &mut Endpoint, peer: Addr, reason: String) {
        if self.refusals.len() == REFUSALS {
            return;
        }
        let mut connection = None;
        // A client that cannot be told gives up by itself, too.
        let _ = control::send(endpoint, peer, &mut connection, Message::Refused { reason });
        if let Some(connection) = connection {
            // It says when it has closed in any case.
            let _ = endpoint.close(connection);
            self.refusals.push(connection);
        }
    }

    /// Why no test is run now, if none is.
    fn occupied(&self) -> Option<String> {
        if self.interrupted {
            return Some(INTERRUPTED.to_owned());
        }
        self.session.as_ref().map(|session| format!("it is busy with {}", session.name))
    }

    /// Why the test that `peer` asks for is never run, if it is not.
    fn unfit(&self, endpoint: &Endpoint, peer: Addr, test: &Test) -> Option<String> {
        if let Err(reason) = test.check() {
            return Some(reason);
        }
        let (needed, memory) = (test.receive_memory(), self.options.memory);
        if needed > memory {
            return Some(format!("the test needs {needed} bytes here, of {memory} (--memory of the server)"));
        }
        let credit = uses_credit(endpoint, peer);
        if test.credit != credit {
            let uses = |credit| if credit { "uses credit" } else { "uses no credit" };
            let (client, server) = (uses(test.credit), uses(credit));
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

    fn end_session(&mut self, endpoint: &mut Endpoint, now: Time) {
        let Some(session) = self.session.take() else { return };
        for slot in &session.slots {
            if let Some(receive) = slot.receive {
                // One that a message has met comes back by itself, to be dropped.
                let _ = endpoint.cancel(receive);
            }
        }
        if let Some(reply) = session.reply {
            let _ = endpoint.close(reply);
        }
        self.idle_since = now;
    }

    /// Takes a completion that brings no message's memory.
    #[inline(never)]
    fn take(&mut self, endpoint: &mut Endpoint, now: Time, completion: Completion) -> Result<(), Failure> {
        match completion {
            Completion::Received { context: CONTROL, buffer, source, len, result, .. } => {
                control::post_receive(endpoint, None).map_err(|error| failure("the server", &error))?;
                if let (Some(source), Ok(())) = (source, result) {
                    self.told(endpoint, now, source.peer, &buffer.to_bytes(len));
                }
                Ok(())
            }
            Completion::Sent { context, result: Ok(()), .. } => {
                if let Some(session) = self.session_of(context).filter(|s| context == ready_context(s.id)) {
                    session.answered = true;
                }
                Ok(())
            }
            Completion::Closed { connection, .. } => {
                let session = self.session.as_mut();
                if let Some(session) = session.filter(|session| session.reply == Some(connection)) {
                    session.reply = None;
                }
                self.refusals.retain(|refusal| *refusal != connection);
                self.replaced.retain(|replaced| *replaced != connection);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn session_of(&mut self, context: u64) -> Option<&mut Session> {
        self.session.as_mut().filter(|session| u64::from(session.id) == context >> 32)
    }

    fn told(&mut self, endpoint: &mut Endpoint, now: Time, peer: Addr, bytes: &[u8]) {
        self.foreign += u64::from(self.session.as_ref().is_some_and(|session| session.peer != peer));
        match control::decode(bytes) {
            Ok(Message::Request(test)) => self.requested(endpoint, now, peer, test),
            Ok(Message::Finished { messages }) => {
                if let Some(session) = self.session.as_mut().filter(|session| session.peer == peer) {
                    session.announced = Some(messages);
                }
            }
            Ok(_) => {}
            Err(error) => self.refuse(endpoint, peer, error.to_string()),
        }
    }

    /// Ends what is over. Returns whether the role is.
    fn advance(&mut self, endpoint: &mut Endpoint, now: Time) -> Result<bool, Failure> {
        let Some(session) = &mut self.session else {
            return match self.options.wait {
                _ if self.interrupted => Ok(true),
                Some(wait) if now.since(self.idle_since) >= wait => {
                    Err(Failure::Run(format!("no client has come within {wait}")))
                }
                _ => Ok(false),
            };
        };
        session.measure(endpoint, now);
        let heard = received(endpoint).saturating_sub(self.foreign);
        let silent = session.silence.is_too_long(heard, now);
        if session.reported {
            if session.reply.is_none() || silent {
                self.end_session(endpoint, now);
                return Ok(self.options.once || self.interrupted);
            }
        } else if session.has_all() || (session.announced.is_some() && silent) {
            let report = session.conclude(endpoint, now);
            let told = session.say_last(endpoint, now, Message::Report(report.clone()));
            (self.sink)(&session.test, &session.name, report)?;
            if let Err(error) = told {
                self.fail(endpoint, now, &error)?;
            }
        } else if silent {
            return self.give_up(endpoint, now);
        }
        Ok(false)
    }

    fn give_up(&mut self, endpoint: &mut Endpoint, now: Time) -> Result<bool, Failure> {
        let Some(session) = &self.session else { return Ok(false) };
        let what = format!("waiting for its messages, of which {} have arrived", session.progress.messages);
        let failure = session.silence.failure(endpoint, &session.name, &what);
        self.abandon(endpoint, now, failure)?;
        Ok(false)
    }

    /// The endpoint refuses what the test needs of it, such as a connection to a client that is not there any more.
    #[cold]
    fn fail(&mut self, endpoint: &mut Endpoint, now: Time, error: &Error) -> Result<(), Failure> {
        let name = self.session.as_ref().map_or("the client", |session| session.name.as_str());
        let failure = failure(name, error);
        self.abandon(endpoint, now, failure)
    }

    /// Ends the test, which has failed, and the server only if it has no other one to wait for.
    fn abandon(&mut self, endpoint: &mut Endpoint, now: Time, failure: Failure) -> Result<(), Failure> {
        if self.options.once {
            return Err(failure);
        }
        eprintln!("weft: {failure}");
        self.end_session(endpoint, now);
        Ok(())
    }
}

/// A message that has arrived.
struct Arrived {
    slot: u32,
    memory: MemorySlice,
    seq: u64,
    /// All of it has, and it is as long as it should be.
    whole: bool,
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
            answered: false,
            reported: false,
            test,
        }
    }

    /// Posts the receives and tells the client so.
    fn open(&mut self, endpoint: &mut Endpoint) -> Result<(), Error> {
        let receives = self.test.receives();
        let count = receives * u64::from(self.test.connections);
        let mut messages = memory::messages(endpoint, count, self.test.size)?.into_iter();
        for lane in 0..u32::from(self.test.connections) {
            for message in messages.by_ref().take(receives as usize) {
                let slot = self.slots.len() as u32;
                self.slots.push(Slot { lane, receive: None });
                self.post(endpoint, slot, message)?;
            }
        }
        let ready = control::encode(Message::Ready { session: self.id });
        let options = SendOptions::default().tag(control::TAG).context(ready_context(self.id));
        control::send_to(endpoint, self.peer, &mut self.reply, ready.into(), options)
    }

    fn say(&mut self, endpoint: &mut Endpoint, message: Message) -> Result<(), Error> {
        control::send(endpoint, self.peer, &mut self.reply, message)
    }

    /// Tells the client the result, and closes the connection to it.
    fn say_last(&mut self, endpoint: &mut Endpoint, now: Time, message: Message) -> Result<(), Error> {
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
    fn post(&mut self, endpoint: &mut Endpoint, slot: u32, memory: MemorySlice) -> Result<(), Error> {
        let Some(at) = self.slots.get_mut(slot as usize) else { return Ok(()) };
        let options = ReceiveOptions::default()
            .tag(control::data_tag(self.id, at.lane))
            .from(self.peer)
            .context(u64::from(self.id) << 32 | u64::from(slot));
        match endpoint.receive_with(memory, options) {
            Ok(receive) => at.receive = Some(receive),
            Err(refused) => return Err(refused.error),
        }
        Ok(())
    }

    // Inlined always: memory that is put together and then moved is waited for.
    #[inline(always)]
    fn arrived(&mut self, endpoint: &mut Endpoint, now: Time, message: Arrived) -> Result<(), Error> {
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
            return control::send_to(endpoint, self.peer, &mut self.reply, memory.into(), options);
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
    fn measure(&mut self, endpoint: &Endpoint, now: Time) {
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

    /// Whether all that the client says it has sent is here.
    fn has_all(&self) -> bool {
        self.announced.is_some_and(|messages| self.progress.messages >= messages)
    }

    fn conclude(&mut self, endpoint: &Endpoint, now: Time) -> EndReport {
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

impl Role for Server<'_> {
    fn step(&mut self, endpoint: &mut Endpoint, now: Time) -> Result<Step, Failure> {
        let failed = |error| failure("the server", &error);
        if !self.started {
            self.started = true;
            for _ in 0..CONTROL_RECEIVES {
                control::post_receive(endpoint, None).map_err(failed)?;
            }
        }
        let mut step = Step::Idle;
        loop {
            // Matched here, where it was put together: a completion that is moved costs as much as a call.
            match endpoint.next_completion() {
                Some(Completion::Received {
                    context,
                    buffer: ReceiveBuffer::Memory(memory),
                    header_data,
                    len,
                    ref result,
                    ..
                }) => {
                    if let Some(session) = self.session_of(context) {
                        let whole = result.is_ok() && u64::from(len) == session.test.size;
                        let arrived = Arrived { slot: context as u32, memory, seq: header_data, whole };
                        if let Err(error) = session.arrived(endpoint, now, arrived) {
                            self.fail(endpoint, now, &error)?;
                        }
                    }
                }
                // An answer that failed shows as silence, which is waited for anyway.
                Some(Completion::Sent { context, buffer: SendBuffer::Memory(memory), .. }) => {
                    if let Some(session) = self.session_of(context)
                        && let Err(error) = session.post(endpoint, context as u32, memory)
                    {
                        self.fail(endpoint, now, &error)?;
                    }
                }
                Some(other) => self.take(endpoint, now, other)?,
                None => break,
            }
            step = Step::Busy;
        }
        Ok(if self.advance(endpoint, now)? { Step::Done } else { step })
    }

    #[inline]
    fn turned(&mut self, span: Span, idle: bool) {
        if let Some(session) = &mut self.session {
            session.meter.turned(span, idle);
        }
    }

    /// Reports the test that is being run, as far as it has come, and tells its client.
    fn interrupt(&mut self, endpoint: &mut Endpoint, now: Time) -> Result<(), Failure> {
        self.interrupted = true;
        let Some(session) = self.session.as_mut().filter(|session| !session.reported) else { return Ok(()) };
        let report = session.conclude(endpoint, now);
        let refused = Message::Refused { reason: INTERRUPTED.to_owned() };
        session.say_last(endpoint, now, refused).map_err(|error| failure(&session.name, &error))?;
        if report.arrived > 0 { (self.sink)(&session.test, &session.name, report) } else { Ok(()) }
    }
}

/// The context of the message that a test may begin. Those of its other messages have the number of a slot in the lower half,
/// and there are fewer.
fn ready_context(session: u32) -> u64 {
    u64::from(session) << 32 | u64::from(u32::MAX)
}

/// Data packets that the endpoint has received.
#[inline]
fn received(endpoint: &Endpoint) -> u64 {
    endpoint.worker().map_or(0, |worker| worker.fep().counters().data_received)
}

/// Whether congestion control towards `peer` uses credit.
fn uses_credit(endpoint: &Endpoint, peer: Addr) -> bool {
    endpoint.worker().is_some_and(|worker| {
        let (own, zones) = (worker.fep().addr(), &worker.fep().config().zones);
        zones.get(zones.map.zone_of(own, peer)).cc.sender_credit().is_some()
    })
}

#[cold]
#[inline(never)]
fn failure(name: &str, error: &Error) -> Failure {
    Failure::Run(format!("{name}: {error}"))
}

fn name_of(endpoint: &Endpoint, peer: Addr) -> String {
    let host = endpoint.worker().and_then(|worker| worker.book().get(peer));
    host.map_or_else(|| format!("endpoint {}", peer.0), |host| host.ip.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::plan::Limit;
    use super::*;

    const OPTIONS: ServerOptions = ServerOptions {
        once: false,
        wait: None,
        memory: 1 << 20,
        payload: 1_000,
        room: 1_000,
        patience: Span::from_ms(1_000),
        shares_thread: false,
    };

    /// A host that answers nothing sends requests that make no sense.
    #[test]
    fn refusals_that_nobody_takes_are_bounded_and_end_no_server() {
        let mut endpoint = Endpoint::builder("udp:127.84.20.1").build().unwrap();
        let peer = endpoint.peer("127.84.20.2").unwrap();
        let mut server = Server::new(OPTIONS, Box::new(|_, _, _| Ok(())), Time::ZERO);
        let ask = |server: &mut Server<'_>, endpoint: &mut Endpoint| {
            server.told(endpoint, Time::ZERO, peer, b"nonsense");
            server.refusals.len()
        };
        let most = (0..70_000).map(|_| ask(&mut server, &mut endpoint)).max();
        assert_eq!(most, Some(REFUSALS));
        // Once one of them has closed, another client can hear.
        let connection = server.refusals[0];
        let closed = Completion::Closed { connection, peer, result: Ok(()) };
        server.take(&mut endpoint, Time::ZERO, closed).unwrap();
        assert_eq!(server.refusals.len(), REFUSALS - 1);
        assert_eq!(ask(&mut server, &mut endpoint), REFUSALS);
    }
    fn a_test() -> Test {
        Test {
            mode: Mode::Throughput,
            size: 1,
            limit: Limit::Messages(1),
            warmup_us: 0,
            connections: 1,
            depth: 1,
            verify: false,
            payload: 1_000,
            room: 1_000,
            cc: "nscc".to_owned(),
            credit: false,
        }
    }

    /// A host that answers nothing asks for a test, again and again.
    #[test]
    fn a_client_that_begins_anew_all_the_time_takes_few_connections() {
        let mut endpoint = Endpoint::builder("udp:127.84.20.4").build().unwrap();
        let peers = ["127.84.20.5", "127.84.20.6"].map(|ip| endpoint.peer(ip).unwrap());
        let mut server = Server::new(OPTIONS, Box::new(|_, _, _| Ok(())), Time::ZERO);
        for _ in 0..5_000 {
            for peer in peers {
                server.requested(&mut endpoint, Time::ZERO, peer, a_test());
            }
            if let Some(session) = &mut server.session {
                session.answered = session.peer == peers[0];
            }
        }
        assert_eq!((server.replaced.len(), server.refusals.len()), (REFUSALS, REFUSALS));
        assert!(server.session.is_some());
    }

    /// A host that is not there asks for a test. The next client gets its own, and keeps it once it has answered.
    #[test]
    fn a_client_that_has_not_answered_makes_room_for_the_next_one() {
        let mut endpoint = Endpoint::builder("udp:127.84.20.7").build().unwrap();
        let mut client = Endpoint::builder("udp:127.84.20.8").build().unwrap();
        let [absent, present, late] =
            [9, 8, 10].map(|last| endpoint.peer(format!("127.84.20.{last}").as_str()).unwrap());
        client.peer("127.84.20.7").unwrap();
        let mut server = Server::new(OPTIONS, Box::new(|_, _, _| Ok(())), Time::ZERO);
        let client_of = |server: &Server<'_>| server.session.as_ref().map(|session| session.peer);
        server.requested(&mut endpoint, Time::ZERO, absent, a_test());
        assert_eq!(client_of(&server), Some(absent));
        server.requested(&mut endpoint, Time::ZERO, present, a_test());
        assert_eq!((client_of(&server), server.replaced.len()), (Some(present), 1));
        for _ in 0..1_000_000 {
            if let Some(completion) = endpoint.poll().unwrap() {
                server.take(&mut endpoint, Time::ZERO, completion).unwrap();
            }
            client.poll().unwrap();
            if server.session.as_ref().is_some_and(|session| session.answered) {
                break;
            }
        }
        server.requested(&mut endpoint, Time::ZERO, late, a_test());
        assert_eq!((client_of(&server), server.refusals.len()), (Some(present), 1));
    }

    /// The endpoint refuses a connection to a client that it does not know any more.
    #[test]
    fn a_client_that_cannot_be_told_its_result_ends_its_test_and_no_server() {
        let mut endpoint = Endpoint::builder("udp:127.84.20.3").build().unwrap();
        let test = a_test();
        for once in [false, true] {
            let options = ServerOptions { once, ..OPTIONS };
            let mut server = Server::new(options, Box::new(|_, _, _| Ok(())), Time::ZERO);
            let mut session =
                Session::new(1, Addr(4_000), "a client".to_owned(), test.clone(), options, Time::ZERO);
            session.announced = Some(0);
            server.session = Some(session);
            let over = server.advance(&mut endpoint, Time::ZERO);
            assert!(if once { over.is_err() } else { over.is_ok_and(|over| !over) }, "once: {once}");
            assert!(once || server.session.is_none(), "another client can come");
        }
    }
}
