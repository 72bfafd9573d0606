//! The end that asks for a test and sends its messages.

use super::control::{self, CONTROL, Message};
use super::drive::{Role, Silence, Step};
use super::measure::{Meter, Progress};
use super::memory::Messages;
use super::pattern::Scratch;
use super::plan::{Limit, Mode, Test};
use super::report::{CongestionReport, EndReport, LatencyReport};
use super::sequence::Sequence;
use crate::Failure;
use hdrhistogram::Histogram;
use weft_cc::{Span, Time};
use weft_stack::buffer::Buffer;
use weft_stack::fep::{CallError, Completion, ConnectOptions, ConnectionId, Fep, Receive, Send};
use weft_stack::packet::Addr;
use weft_stack::port::Port;
use weft_stack::region::RegionSlice;
use weft_stack::ses::Matching;
use weft_stack::worker::Worker;

/// The longest round trip that is told apart from longer ones, ns.
const LONGEST_RTT_NS: u64 = 100_000_000_000;

/// The client.
pub(super) struct Client {
    test: Test,
    /// Messages that have not been used yet.
    memory: Messages,
    server: Addr,
    /// The server, as people know it.
    name: String,
    state: State,
    silence: Silence,
    control: Option<ConnectionId>,
    lanes: Vec<Lane>,
    session: u32,
    posted: u64,
    done: Progress,
    /// When the measured part is to begin (tests of a duration), once messages are posted.
    begin: Option<Time>,
    /// Memory of delivered messages that go out again when another one has come back (latency).
    spare: Vec<Buffer>,
    scratch: Scratch,
    meter: Meter,
    round_trips: Option<Histogram<u64>>,
    pongs: Sequence,
    verified: u64,
    wrong: u64,
    wrong_messages: u64,
    server_report: Option<EndReport>,
    congestion: Option<CongestionReport>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Begin,
    /// Has asked for the test.
    Asking,
    /// Sends.
    Running,
    /// Has sent all, and waits until it has arrived.
    Draining,
    /// Has said so, and waits for the server's report.
    Finished,
    /// Waits for its connections to close.
    Closing,
}

/// Receives for what comes back when latency is measured.
const PONGS: u64 = 2;

/// The memory that a client of `test` sends from over `port`, and receives into.
///
/// # Errors
/// There is not so much.
pub(super) fn memory(test: &Test, port: &mut impl Port) -> Result<Messages, Failure> {
    let pongs = if test.mode == Mode::Latency { PONGS } else { 0 };
    let count = u64::from(test.connections) * u64::from(test.depth) + pongs;
    Messages::registered(count, test.size, port).map_err(|error| Failure::Run(error.to_string()))
}

/// A connection and what is sent over it.
struct Lane {
    connection: ConnectionId,
    next: u64,
    under_way: u32,
    /// When the message under way was posted (latency).
    posted_at: Time,
}

impl Client {
    /// A client that will ask the endpoint `server`, called `name`, for `test`.
    pub(super) fn new(
        test: Test,
        memory: Messages,
        server: Addr,
        name: String,
        patience: Span,
        now: Time,
    ) -> Client {
        Client {
            memory,
            round_trips: (test.mode == Mode::Latency).then(histogram).flatten(),
            test,
            server,
            name,
            state: State::Begin,
            silence: Silence::new(patience, now),
            control: None,
            lanes: Vec::new(),
            session: 0,
            posted: 0,
            done: Progress::default(),
            begin: None,
            spare: Vec::new(),
            scratch: Scratch::default(),
            meter: Meter::with_cpu(),
            pongs: Sequence::default(),
            verified: 0,
            wrong: 0,
            wrong_messages: 0,
            server_report: None,
            congestion: None,
        }
    }

    /// What it has seen.
    pub(super) fn report(&self) -> EndReport {
        EndReport {
            arrived: self.done.messages,
            wrong_messages: self.wrong_messages + self.pongs.wrong(),
            verified_bytes: self.verified,
            wrong_bytes: self.wrong,
            ..self.meter.report()
        }
    }

    /// What the server has seen.
    pub(super) fn server_report(&self) -> Option<EndReport> {
        self.server_report.clone()
    }

    /// What congestion control made of the path.
    pub(super) fn congestion(&self) -> Option<CongestionReport> {
        self.congestion.clone()
    }

    /// The round-trip times, if they were what the test was for.
    pub(super) fn latency(&self) -> Option<LatencyReport> {
        let histogram = self.round_trips.as_ref().filter(|histogram| !histogram.is_empty())?;
        let us = |quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        Some(LatencyReport {
            samples: histogram.len(),
            min_us: histogram.min() as f64 / 1000.0,
            mean_us: histogram.mean() / 1000.0,
            p50_us: us(0.5),
            p90_us: us(0.9),
            p99_us: us(0.99),
            p999_us: us(0.999),
            max_us: histogram.max() as f64 / 1000.0,
        })
    }

    fn ask(&mut self, fep: &mut Fep, now: Time) -> Result<(), CallError> {
        // One for the answer and one for the report; and one for an answer to an earlier client here.
        for _ in 0..3 {
            control::post_receive(fep, Some(self.server))?;
        }
        self.say(fep, now, Message::Request(self.test.clone()))?;
        self.state = State::Asking;
        self.silence.restart(now);
        Ok(())
    }

    fn say(&mut self, fep: &mut Fep, now: Time, message: Message) -> Result<(), CallError> {
        let connection = control::connection(fep, now, self.server, self.control)?;
        self.control = Some(connection);
        control::send(fep, connection, message)
    }

    fn start(&mut self, fep: &mut Fep, now: Time, session: u32) -> Result<(), CallError> {
        self.session = session;
        if self.test.mode == Mode::Latency {
            for _ in 0..PONGS {
                let message = self.memory.take()?;
                self.post_pong(fep, message)?;
            }
        }
        for lane in 0..u32::from(self.test.connections) {
            let connection = fep.connect(now, self.server, ConnectOptions::default())?;
            self.lanes.push(Lane { connection, next: 0, under_way: 0, posted_at: now });
            for _ in 0..self.test.depth {
                let message = self.memory.take()?;
                // What is sent without a check has content too: memory that was never written is one page.
                self.scratch.fill(&message, lane, 0);
                self.post(fep, now, lane, Buffer::Region(message))?;
            }
        }
        self.state = State::Running;
        Ok(())
    }

    /// Posts the next message of a connection, unless enough have been.
    // Inlined always: memory that is put together and then moved is waited for.
    #[inline(always)]
    fn post(&mut self, fep: &mut Fep, now: Time, lane: u32, buffer: Buffer) -> Result<(), CallError> {
        if matches!(self.test.limit, Limit::Messages(count) if self.posted >= count) {
            return Ok(());
        }
        let tag = Some(control::data_tag(self.session, lane));
        let verify = self.test.verify;
        let Some(state) = self.lanes.get_mut(lane as usize) else { return Ok(()) };
        if let Buffer::Region(message) = &buffer
            && verify
        {
            // A clone: what is named by reference is kept in memory, for all.
            self.scratch.fill(&message.clone(), lane, state.next);
        }
        let send = Send { buffer, tag, header_data: state.next, context: lane.into() };
        fep.post_send(state.connection, send)?;
        state.next += 1;
        state.under_way += 1;
        state.posted_at = now;
        self.posted += 1;
        Ok(())
    }

    fn post_pong(&mut self, fep: &mut Fep, message: RegionSlice) -> Result<(), CallError> {
        let matching = Matching::Tagged { tag: control::data_tag(self.session, 0), ignore: 0 };
        let buffer = Buffer::Region(message);
        fep.post_receive(Receive { buffer, from: Some(self.server), matching, context: 0 })?;
        Ok(())
    }

    /// Takes a message back that has been delivered.
    #[inline]
    fn sent<P: Port>(
        &mut self,
        worker: &mut Worker<P>,
        now: Time,
        lane: u32,
        buffer: Buffer,
    ) -> Result<(), CallError> {
        let Some(state) = self.lanes.get_mut(lane as usize) else { return Ok(()) };
        state.under_way -= 1;
        if self.test.mode == Mode::Latency {
            // The next one leaves when this one has come back.
            self.spare.push(buffer);
            return Ok(());
        }
        self.delivered(worker, now);
        if self.state == State::Running { self.post(worker.fep_mut(), now, lane, buffer) } else { Ok(()) }
    }

    fn delivered<P: Port>(&mut self, worker: &Worker<P>, now: Time) {
        self.done.messages += 1;
        self.done.bytes += self.test.size;
        if self.test.limit == Limit::Messages(self.done.messages) {
            self.end_of_measure(worker, now);
        }
    }

    /// A message has come back.
    fn returned<P: Port>(
        &mut self,
        worker: &mut Worker<P>,
        now: Time,
        seq: u64,
        len: u32,
        message: RegionSlice,
    ) -> Result<(), CallError> {
        let arrived = worker.clock().now().latest(now);
        let Some(lane) = self.lanes.first() else { return Ok(()) };
        let rtt = arrived.since(lane.posted_at);
        let due = self.pongs.arrived(seq) && seq + 1 == lane.next;
        if !due || u64::from(len) != self.test.size {
            self.wrong_messages += 1;
            return self.post_pong(worker.fep_mut(), message);
        }
        if self.test.verify {
            self.verified += u64::from(len);
            self.wrong += self.scratch.wrong_bytes(&message, 0, seq);
        }
        let measured = self.meter.began().is_some() && !self.meter.has_ended();
        if let Some(histogram) = self.round_trips.as_mut().filter(|_| measured) {
            histogram.saturating_record(rtt.as_ps() / 1000);
        }
        self.delivered(worker, now);
        self.post_pong(worker.fep_mut(), message)?;
        if self.state == State::Running {
            let ping = match self.spare.pop() {
                Some(buffer) => buffer,
                // The one before has come back, but its acknowledgement has not.
                None => Buffer::Region(Messages::new(1, self.test.size)?.take()?),
            };
            // Not the time of the turn: what came before in it is not the network's.
            let now = worker.clock().now().latest(now);
            self.post(worker.fep_mut(), now, 0, ping)?;
        }
        Ok(())
    }

    fn heard(&mut self, fep: &mut Fep, now: Time, message: Message) -> Result<(), Failure> {
        match (self.state, message) {
            (State::Asking, Message::Ready { session }) => {
                self.start(fep, now, session).map_err(|error| self.refused_call(&error))
            }
            (State::Asking, Message::Refused { reason }) => {
                let reason = printable(&reason);
                Err(Failure::Run(format!("{} will not run the test: {reason}", self.name)))
            }
            (State::Finished, Message::Report(report)) => {
                self.server_report = Some(report);
                self.close(fep, now);
                Ok(())
            }
            (_, Message::Refused { reason }) => {
                let reason = printable(&reason);
                Err(Failure::Run(format!("{} has ended the test: {reason}", self.name)))
            }
            // An answer to an earlier client at this address.
            _ => Ok(()),
        }
    }

    fn close(&mut self, fep: &mut Fep, now: Time) {
        let all = self.lanes.iter().map(|lane| lane.connection).chain(self.control);
        for connection in all.collect::<Vec<_>>() {
            // One that has closed by itself is closed.
            let _ = fep.close(now, connection);
        }
        self.state = State::Closing;
        self.silence.restart(now);
    }

    fn take<P: Port>(
        &mut self,
        worker: &mut Worker<P>,
        now: Time,
        completion: Completion,
    ) -> Result<(), Failure> {
        match completion {
            // All has been delivered and reported: whether the server said so of the last word too does not matter.
            Completion::Sent { .. } if self.state == State::Closing => Ok(()),
            Completion::Sent { context, buffer, result, .. } => {
                result.map_err(|error| self.failure(&error))?;
                if context == CONTROL {
                    return Ok(());
                }
                self.sent(worker, now, context as u32, buffer).map_err(|error| self.refused_call(&error))
            }
            Completion::Received {
                context: CONTROL,
                buffer: Buffer::Heap(bytes),
                len,
                result: Ok(()),
                ..
            } => {
                let message =
                    control::decode(&bytes[..len as usize]).map_err(|error| self.failure(&error))?;
                self.heard(worker.fep_mut(), now, message)
            }
            Completion::Received {
                header_data,
                len,
                buffer: Buffer::Region(message),
                result: Ok(()),
                ..
            } => {
                let taken = self.returned(worker, now, header_data, len, message);
                taken.map_err(|error| self.refused_call(&error))
            }
            Completion::Received { result: Err(error), .. } => Err(self.failure(&error)),
            Completion::Received { .. } => Ok(()),
            Completion::Closed { id, result, .. } => {
                self.lanes.retain(|lane| lane.connection != id || self.state != State::Closing);
                if self.control == Some(id) {
                    self.control = None;
                }
                match result {
                    Err(error) if self.lanes.iter().any(|lane| lane.connection == id) => {
                        Err(self.failure(&error))
                    }
                    // The control connection closes by itself when nothing is said for long.
                    _ => Ok(()),
                }
            }
        }
    }

    fn failure(&self, error: &impl std::fmt::Display) -> Failure {
        Failure::Run(format!("{}: {error}", self.name))
    }

    fn refused_call(&self, error: &CallError) -> Failure {
        Failure::Run(format!("the endpoint cannot run the test: {error}"))
    }

    /// Goes on when its time has come.
    fn advance<P: Port>(&mut self, worker: &mut Worker<P>, now: Time) -> Result<(), Failure> {
        match self.state {
            State::Begin => self.ask(worker.fep_mut(), now).map_err(|error| self.refused_call(&error))?,
            State::Running => {
                self.watch_the_clock(worker, now);
                let all = matches!(self.test.limit, Limit::Messages(count) if self.posted >= count);
                if all || self.meter.has_ended() {
                    self.state = State::Draining;
                }
            }
            State::Draining if self.done.messages == self.posted => {
                self.state = State::Finished;
                let finished = Message::Finished { messages: self.posted };
                self.say(worker.fep_mut(), now, finished).map_err(|error| self.refused_call(&error))?;
            }
            State::Asking | State::Draining | State::Finished | State::Closing => {}
        }
        Ok(())
    }

    /// Begins and ends the measured part.
    fn watch_the_clock<P: Port>(&mut self, worker: &Worker<P>, now: Time) {
        let Limit::Microseconds(us) = self.test.limit else {
            if self.meter.began().is_none() {
                self.meter.begin(now, worker, Progress::default());
            }
            return;
        };
        let begin = *self.begin.get_or_insert_with(|| now + self.test.warmup());
        match self.meter.began() {
            // From when it really begins: the system may have had the processor until now.
            Some(began) if now.is_at_or_after(began + Span::from_ps(us * 1_000_000)) => {
                self.end_of_measure(worker, now);
            }
            None if now.is_at_or_after(begin) => self.meter.begin(now, worker, self.done),
            Some(_) | None => {}
        }
    }

    fn end_of_measure<P: Port>(&mut self, worker: &Worker<P>, now: Time) {
        self.meter.end(now, worker, self.done);
        let first = self.lanes.first();
        let snapshot = first.and_then(|lane| worker.fep().congestion(lane.connection));
        self.congestion = snapshot.as_ref().map(CongestionReport::of);
    }

    fn waits_for(&self) -> String {
        match self.state {
            State::Begin | State::Asking => "waiting for its answer to the request".to_owned(),
            State::Running | State::Draining => {
                let left = self.posted - self.done.messages;
                format!("waiting for {left} of {} messages to be delivered", self.posted)
            }
            State::Finished => "waiting for its report".to_owned(),
            State::Closing => "waiting for the connections to close".to_owned(),
        }
    }
}

impl Role for Client {
    fn step<P: Port>(&mut self, worker: &mut Worker<P>, now: Time) -> Result<Step, Failure> {
        let mut step = Step::Idle;
        while let Some(completion) = worker.fep_mut().poll_completion() {
            step = Step::Busy;
            self.take(worker, now, completion)?;
        }
        self.advance(worker, now)?;
        let counters = worker.fep().counters();
        let heard = counters.data_received + counters.acks_received + counters.duplicates_received;
        let silent = self.silence.is_too_long(heard, now);
        if self.state == State::Closing {
            let closed = self.lanes.is_empty() && self.control.is_none();
            // The test is over: what the server says about its end does not matter.
            if closed || silent {
                return Ok(Step::Done);
            }
        } else if silent {
            return Err(self.silence.failure(worker, now, &self.name, &self.waits_for()));
        }
        Ok(step)
    }

    #[inline]
    fn turned(&mut self, span: Span, idle: bool) {
        self.meter.turned(span, idle);
    }
}

/// Round-trip times from 1 ns to 100 s, to three digits.
fn histogram() -> Option<Histogram<u64>> {
    Histogram::new_with_bounds(1, LONGEST_RTT_NS, 3).ok()
}

/// What a peer says, without what would move the cursor of a terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
