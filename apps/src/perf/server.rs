//! The end that waits for clients and receives what they send.

mod session;

use self::session::{Arrived, Session, received};
use super::control::{self, CONTROL, COOKIE, Message};
use super::drive::{Role, Step};
use super::measure::Progress;
use super::mode::Mode;
use super::plan::Test;
use super::report::EndReport;
use crate::Failure;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use weft::{Addr, Completion, ConnectionId, Endpoint, Error, ReceiveBuffer, SendBuffer};
use weft_cc::{Span, Time};

/// Requests that may arrive in one turn: twice as many as a burst has packets.
const REQUESTS: usize = 64;

/// Clients that may be being told at once that they are refused. Anybody can ask, so that refusals must be bounded.
const REFUSALS: usize = 64;
/// Of these refusals, as many may go to hosts that have not repeated a cookie: somebody else can have asked in their names.
const UNPROVEN: usize = REFUSALS / 2;

/// How long messages of a test that is over may take to come back before they are ended: receives that no message has met do in the
/// next turn.
const LEFTOVERS: Span = Span::from_ms(50);

/// The reason that a client hears when its server is told to end.
const INTERRUPTED: &str = "the server was interrupted";

/// How a server behaves.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerOptions {
    /// End after one test.
    pub(super) once: bool,
    /// How long to wait for a client.
    pub(super) wait: Option<Span>,
    /// Bytes of messages that clients may make it hold, with those of tests that are over.
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

/// A request of a client: the test, the cookie if the client has got one, and the number that the client has drawn.
type Request = (Test, Option<u64>, u64);

/// Takes the results of a test: its plan, the client's name, and the server's figures.
pub(super) type Sink<'a> = Box<dyn FnMut(&Test, &str, EndReport) -> Result<(), Failure> + Send + 'a>;

/// The server.
pub(super) struct Server<'a> {
    options: ServerOptions,
    sink: Sink<'a>,
    session: Option<Session>,
    /// Since when there has been no session.
    idle_since: Time,
    /// Tests that are over, of which messages have not ended.
    ended: HashMap<u32, Ended>,
    /// Connections to clients that are being told that they are refused.
    refusals: Vec<ConnectionId>,
    /// Connections of tests in whose place their clients have asked for others. As many may be closing as refusals: a
    /// client that answers nothing would take one more with each request.
    replaced: Vec<ConnectionId>,
    /// The key of the hash that gives cookies. It is drawn at the start, so that nobody can compute the cookie of another host.
    secret: RandomState,
    started: bool,
    /// A signal has come: no further test begins.
    interrupted: bool,
}

/// A test that is over, of which messages have begun and not ended, or have not come back from the client's side.
#[derive(Debug)]
struct Ended {
    peer: Addr,
    /// When it was over.
    at: Time,
    /// Its messages that the endpoint has.
    messages: usize,
    /// The bytes that it needs: its memory is freed when the last message is back.
    memory: u64,
}

impl<'a> Server<'a> {
    pub(super) fn new(options: ServerOptions, sink: Sink<'a>, now: Time) -> Server<'a> {
        Server {
            options,
            sink,
            session: None,
            idle_since: now,
            ended: HashMap::new(),
            refusals: Vec::new(),
            replaced: Vec::new(),
            secret: RandomState::new(),
            started: false,
            interrupted: false,
        }
    }

    /// The cookie that a client at the host of `peer` has to repeat. Only that host gets it, in a datagram: who asks in its name
    /// from elsewhere cannot know it, and makes the server keep nothing.
    /// `None` if the address book has no IP address of the peer: all of those would have one cookie.
    fn cookie(&self, endpoint: &Endpoint, peer: Addr) -> Option<u64> {
        let ip = endpoint.worker()?.book().ip(peer)?;
        Some(self.secret.hash_one(ip))
    }

    /// A client asks for a test: it gets one, or a refusal, if it has repeated its cookie.
    fn asked(&mut self, endpoint: &mut Endpoint, now: Time, peer: Addr, (test, cookie, number): Request) {
        let Some(expected) = self.cookie(endpoint, peer) else { return };
        if cookie == Some(expected) {
            self.requested(endpoint, now, peer, test, number);
        } else {
            // If it does not leave, its client asks again.
            let _ = endpoint.send_datagram(peer, Vec::<u8>::new(), expected, COOKIE);
        }
    }

    fn requested(&mut self, endpoint: &mut Endpoint, now: Time, peer: Addr, test: Test, number: u64) {
        if self.session.as_ref().is_some_and(|session| (session.peer, session.number) == (peer, number)) {
            // It has been told that it may begin.
            return;
        }
        let name = name_of(endpoint, peer);
        // Its client has begun anew, or knows the result already.
        let makes_room = |session: &&mut Session| session.peer == peer || session.reported;
        if let Some(session) = self.session.as_mut().filter(makes_room) {
            if !session.reported {
                if self.replaced.len() == REFUSALS {
                    return;
                }
                self.replaced.extend(session.reply);
            }
            self.end_session(endpoint, now);
        }
        if let Some(reason) = self.occupied().or_else(|| self.unfit(endpoint, peer, &test)) {
            self.refuse(endpoint, peer, reason, REFUSALS);
            return;
        }
        if self.held().saturating_add(test.receive_memory()) > self.options.memory {
            // Its client asks again. Until then what is left of earlier tests ends.
            self.end_leftovers(endpoint, now);
            return;
        }
        let mut session = Session::new(session_number(), peer, name, test, self.options, now);
        session.number = number;
        session.before = received(endpoint);
        let ready = session.open(endpoint);
        session.meter.begin(now, endpoint, Progress::default());
        self.session = Some(session);
        if let Err(error) = ready {
            self.end_session(endpoint, now);
            self.refuse(endpoint, peer, format!("it cannot: {error}"), REFUSALS);
        }
    }

    /// Bytes of tests that are over.
    fn held(&self) -> u64 {
        self.ended.values().map(|ended| ended.memory).sum()
    }

    /// Ends messages of tests that are over, so that their memory comes back: their clients send them to nobody.
    #[cold]
    fn end_leftovers(&self, endpoint: &mut Endpoint, now: Time) {
        let Some(worker) = endpoint.worker_mut() else { return };
        for ended in self.ended.values().filter(|ended| now.since(ended.at) >= LEFTOVERS) {
            worker.fep_mut().give_up_peer(now, ended.peer, Span::ZERO);
        }
    }

    /// A message of the session in `context` is over, and its memory with it.
    #[cold]
    fn came_back(&mut self, context: u64) {
        let id = (context >> 32) as u32;
        let Some(ended) = self.ended.get_mut(&id) else { return };
        ended.messages -= 1;
        if ended.messages == 0 {
            self.ended.remove(&id);
        }
    }

    /// Tells `peer` why its test is not run, unless `most` others have not taken their refusals yet: then it hears nothing, and
    /// gives up by itself. Whatever peers ask for, it ends no test and takes no more connections than [`REFUSALS`].
    fn refuse(&mut self, endpoint: &mut Endpoint, peer: Addr, reason: String, most: usize) {
        if self.refusals.len() >= most {
            return;
        }
        let mut connection = None;
        // A client that cannot be told gives up by itself, too.
        let _ = control::send(endpoint, peer, &mut connection, control::TAG, Message::Refused { reason });
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
        Self::no_credit(endpoint, peer, test).or_else(|| self.too_long(test))
    }

    /// Why the two ends do not agree about credit, if they do not.
    fn no_credit(endpoint: &Endpoint, peer: Addr, test: &Test) -> Option<String> {
        let credit = uses_credit(endpoint, peer);
        (test.credit != credit).then(|| {
            let uses = |credit| if credit { "uses credit" } else { "uses no credit" };
            let (client, server) = (uses(test.credit), uses(credit));
            format!("the client's --cc {} {client}, and the server's {server}", test.cc)
        })
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
        let lent = session.slots.iter().filter_map(|slot| slot.lent).chain(session.finished);
        let mut messages = 0;
        for receive in lent {
            // One that a message has met comes back by itself, to be dropped.
            let _ = endpoint.cancel(receive);
            messages += 1;
        }
        if messages > 0 {
            let memory = session.test.receive_memory();
            self.ended.insert(session.id, Ended { peer: session.peer, at: now, messages, memory });
        }
        if let Some(reply) = session.reply {
            // The last answer is delivered before the connection closes. Any other answer is not needed any more.
            let _ = if session.reported { endpoint.close(reply) } else { endpoint.abort(reply) };
        }
        self.idle_since = now;
    }

    /// Takes a completion that brings no message's memory.
    #[inline(never)]
    fn take(&mut self, endpoint: &mut Endpoint, now: Time, completion: Completion) -> Result<(), Failure> {
        match completion {
            Completion::Received { context: CONTROL, buffer, source, len, result, .. } => {
                control::post_request_receive(endpoint).map_err(|error| failure("the server", &error))?;
                if let (Some(source), Ok(())) = (source, result) {
                    self.told(endpoint, now, source.peer, &buffer.to_bytes(len));
                }
                Ok(())
            }
            Completion::Received { context, buffer, len, result, .. } => {
                let Some(session) = self.session_of(context) else {
                    self.came_back(context);
                    return Ok(());
                };
                session.finished = None;
                if let (Ok(()), Ok(Message::Finished { messages })) =
                    (result, control::decode(&buffer.to_bytes(len)))
                {
                    session.announced = Some(messages);
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
        match control::decode(bytes) {
            Ok(Message::Request { test, cookie, number }) => {
                self.asked(endpoint, now, peer, (test, cookie, number));
            }
            Ok(_) => {}
            Err(error) => self.refuse(endpoint, peer, error.to_string(), UNPROVEN),
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
        let silent = session.silence.is_too_long(received(endpoint), now);
        let late = session.is_late(now);
        if session.reported {
            if session.reply.is_none() || silent {
                self.end_session(endpoint, now);
                return Ok(self.options.once || self.interrupted);
            }
        } else if session.has_all() || (session.announced.is_some() && (silent || late)) {
            let report = session.conclude(endpoint, now);
            let told = session.say_last(endpoint, now, Message::Report(report.clone()));
            (self.sink)(&session.test, &session.name, report)?;
            if let Err(error) = told {
                self.fail(endpoint, now, &error)?;
            }
        } else if silent {
            return self.give_up(endpoint, now);
        } else if late {
            let reason =
                format!("the test takes too long; {} messages have arrived", session.progress.messages);
            let failure = Failure::Run(format!("{}: {reason}", session.name));
            // A client that cannot be told will hear nothing.
            let _ = session.say_last(endpoint, now, Message::Refused { reason });
            self.abandon(endpoint, now, failure)?;
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

impl Role for Server<'_> {
    fn step(&mut self, endpoint: &mut Endpoint, now: Time) -> Result<Step, Failure> {
        let failed = |error| failure("the server", &error);
        if !self.started {
            self.started = true;
            for _ in 0..REQUESTS {
                control::post_request_receive(endpoint).map_err(failed)?;
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
                    } else {
                        self.came_back(context);
                    }
                }
                // An answer that failed shows as silence, which is waited for anyway.
                Some(Completion::Sent { context, buffer: SendBuffer::Memory(memory), .. }) => {
                    if let Some(session) = self.session_of(context) {
                        if let Err(error) = session.post(endpoint, context as u32, memory) {
                            self.fail(endpoint, now, &error)?;
                        }
                    } else {
                        self.came_back(context);
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

/// The number of a new test. Only its client hears it: others cannot send messages of the test.
fn session_number() -> u32 {
    let drawn = RandomState::new().build_hasher().finish();
    (drawn % u64::from(control::LAST_SESSION)) as u32 + 1
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
pub(super) mod tests;
