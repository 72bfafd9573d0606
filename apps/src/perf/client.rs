//! The end that asks for a test and sends its messages.

use super::control::{self, CONTROL, Message};
use super::crawl::Crawl;
use super::drive::{Role, Silence, Step};
use super::measure::{Meter, Progress};
use super::memory;
use super::mode::Mode;
use super::pattern::Scratch;
use super::plan::{Limit, Test};
use super::report::{CongestionReport, EndReport, LatencyReport};
use super::sequence::Sequence;
use crate::Failure;
use hdrhistogram::Histogram;
use std::hash::{BuildHasher, Hasher, RandomState};
use weft::{Addr, Completion, ConnectionId, Endpoint, Error, MemorySlice, ReceiveBuffer, ReceiveOptions};
use weft::{SendBuffer, SendOptions};
use weft_cc::{Span, Time};
use weft_stack::worker::Clock;

/// The longest round trip that is told apart from longer ones, ns.
const LONGEST_RTT_NS: u64 = 100_000_000_000;

/// The client.
pub(super) struct Client {
    test: Test,
    server: Addr,
    /// The server's address, for people.
    name: String,
    clock: Clock,
    state: State,
    silence: Silence,
    control: Option<ConnectionId>,
    /// How often it has asked without a cookie, and when it did last.
    asked: (u32, Time),
    /// Which test it asks for, among those of its host.
    number: u64,
    lanes: Vec<Lane>,
    session: u32,
    posted: u64,
    done: Progress,
    /// When the measured part is to begin (tests of a duration), once messages are posted.
    begin: Option<Time>,
    /// Memory of delivered messages that go out again when another one has come back (latency).
    spare: Vec<MemorySlice>,
    scratch: Scratch,
    meter: Meter,
    round_trips: Option<Histogram<u64>>,
    pongs: Sequence,
    verified: u64,
    wrong: u64,
    wrong_messages: u64,
    server_report: Option<EndReport>,
    congestion: Option<CongestionReport>,
    crawl: Crawl,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Begin,
    /// Asks for a cookie, and waits for the server's answer to a request with one.
    Asking,
    /// Sends messages.
    Running,
    /// Waits until all messages have been delivered.
    Draining,
    /// Waits for the server's report.
    Finished,
    /// Waits for its connections to close.
    Closing,
}

/// How long a client waits for the server's answer before it asks for a cookie again: the datagram may have been lost, or the
/// cookie that came may be of somebody else.
const ASK_AGAIN: Span = Span::from_ms(100);
/// How often it asks for one at most: it then waits as for any answer.
const QUESTIONS: u32 = 30;

/// Receives for returning messages when latency is measured.
const PONGS: u64 = 2;

/// Messages that a client of `test` sends from and receives into at a time.
fn messages(test: &Test) -> u64 {
    let pongs = if test.mode == Mode::Latency { PONGS } else { 0 };
    u64::from(test.connections) * u64::from(test.depth) + pongs
}

/// Bytes of memory that the endpoint of a client of `test` should have.
pub(super) fn memory_of(test: &Test) -> usize {
    memory::size_for(messages(test), test.size)
}

/// A connection and the state of its messages.
struct Lane {
    connection: ConnectionId,
    next: u64,
    under_way: u32,
    /// When the message under way was posted (latency).
    posted_at: Time,
}

impl Client {
    /// A client that will ask the endpoint `server`, called `name`, for `test`.
    pub(super) fn new(test: Test, server: Addr, name: String, patience: Span, clock: Clock) -> Client {
        Client {
            clock,
            round_trips: (test.mode == Mode::Latency).then(histogram).flatten(),
            test,
            server,
            name,
            state: State::Begin,
            silence: Silence::new(patience, clock.now()),
            control: None,
            asked: (0, clock.now()),
            number: RandomState::new().build_hasher().finish(),
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
            crawl: Crawl::default(),
        }
    }

    /// The client's own figures.
    pub(super) fn report(&self) -> EndReport {
        EndReport {
            arrived: self.done.messages,
            wrong_messages: self.wrong_messages + self.pongs.wrong(),
            verified_bytes: self.verified,
            wrong_bytes: self.wrong,
            ..self.meter.report()
        }
    }

    /// The server's figures, if it has sent them.
    pub(super) fn server_report(&self) -> Option<EndReport> {
        self.server_report.clone()
    }

    /// Whether the measured part has begun and ended.
    pub(super) fn has_measured(&self) -> bool {
        self.meter.has_ended()
    }

    /// The state of congestion control at the end of the measured part.
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

    fn ask(&mut self, endpoint: &mut Endpoint, now: Time) -> Result<(), Error> {
        // One for the answer and one for the report; and one for an answer to an earlier client here.
        for _ in 0..3 {
            control::post_receive(endpoint, self.server, control::TAG, CONTROL)?;
        }
        Self::expect_cookie(endpoint)?;
        self.state = State::Asking;
        self.silence.restart(now);
        self.ask_for_cookie(endpoint, now)
    }

    fn ask_for_cookie(&mut self, endpoint: &mut Endpoint, now: Time) -> Result<(), Error> {
        self.asked = (self.asked.0 + 1, now);
        self.request(endpoint, None)
    }

    fn expect_cookie(endpoint: &mut Endpoint) -> Result<(), Error> {
        endpoint.receive_datagram(Vec::<u8>::new(), control::COOKIE).map_err(|refused| refused.error)?;
        Ok(())
    }

    /// A datagram has brought a cookie, which may be of somebody else: the client repeats each, as the server takes a request that it
    /// has taken before for the same one.
    fn got_cookie(&mut self, endpoint: &mut Endpoint, from: Option<Addr>, cookie: u64) -> Result<(), Error> {
        if self.state != State::Asking {
            return Ok(());
        }
        Self::expect_cookie(endpoint)?;
        if from != Some(self.server) {
            return Ok(());
        }
        self.request(endpoint, Some(cookie))
    }

    fn request(&mut self, endpoint: &mut Endpoint, cookie: Option<u64>) -> Result<(), Error> {
        let request = Message::Request { test: self.test.clone(), cookie, number: self.number };
        control::send_request(endpoint, self.server, request)
    }

    fn start(&mut self, endpoint: &mut Endpoint, now: Time, session: u32) -> Result<(), Error> {
        self.session = session;
        let mut messages = memory::messages(endpoint, messages(&self.test), self.test.size)?.into_iter();
        if self.test.mode == Mode::Latency {
            for message in messages.by_ref().take(PONGS as usize) {
                self.post_pong(endpoint, message.into())?;
            }
        }
        for lane in 0..u32::from(self.test.connections) {
            let connection = endpoint.connect(self.server)?;
            self.lanes.push(Lane { connection, next: 0, under_way: 0, posted_at: now });
            for message in messages.by_ref().take(self.test.depth as usize) {
                // Messages have content also when nobody checks it: all memory that was never written is the same page.
                self.scratch.fill(&message, lane, 0);
                self.post(endpoint, now, lane, message)?;
            }
        }
        self.state = State::Running;
        Ok(())
    }

    /// Posts the next message of a connection, unless enough have been.
    // Inlined always: memory that is put together and then moved is waited for.
    #[inline(always)]
    fn post(
        &mut self,
        endpoint: &mut Endpoint,
        now: Time,
        lane: u32,
        mut message: MemorySlice,
    ) -> Result<(), Error> {
        if matches!(self.test.limit, Limit::Messages(count) if self.posted >= count) {
            return Ok(());
        }
        let tag = control::data_tag(self.session, lane);
        let Some(state) = self.lanes.get_mut(lane as usize) else { return Ok(()) };
        if self.test.verify {
            message = fill(&mut self.scratch, message, lane, state.next);
        }
        let options = SendOptions::default().tag(tag).header_data(state.next).context(lane.into());
        if let Err(refused) = endpoint.send_with(state.connection, message, options) {
            return Err(refused.error);
        }
        state.next += 1;
        state.under_way += 1;
        state.posted_at = now;
        self.posted += 1;
        Ok(())
    }

    fn post_pong(&mut self, endpoint: &mut Endpoint, buffer: ReceiveBuffer) -> Result<(), Error> {
        let options = ReceiveOptions::default().tag(control::data_tag(self.session, 0)).from(self.server);
        endpoint.receive_with(buffer, options).map_err(|refused| refused.error)?;
        Ok(())
    }

    /// Takes a message back that has been delivered.
    // Inlined always: memory that is put together and then moved is waited for.
    #[inline(always)]
    fn sent(
        &mut self,
        endpoint: &mut Endpoint,
        now: Time,
        lane: u32,
        message: MemorySlice,
    ) -> Result<(), Error> {
        let Some(state) = self.lanes.get_mut(lane as usize) else { return Ok(()) };
        state.under_way -= 1;
        if self.test.mode == Mode::Latency {
            // The next one leaves when this one has come back.
            self.spare.push(message);
            return Ok(());
        }
        self.delivered(endpoint, now);
        if self.state == State::Running { self.post(endpoint, now, lane, message) } else { Ok(()) }
    }

    #[inline]
    fn delivered(&mut self, endpoint: &Endpoint, now: Time) {
        self.done.messages += 1;
        self.done.bytes += self.test.size;
        if matches!(self.test.limit, Limit::Messages(count) if count == self.done.messages) {
            self.end_of_measure(endpoint, now);
        }
    }

    /// A message has come back.
    fn returned(
        &mut self,
        endpoint: &mut Endpoint,
        now: Time,
        seq: u64,
        len: u32,
        message: MemorySlice,
    ) -> Result<(), Error> {
        let arrived = self.clock.now().latest(now);
        let Some(lane) = self.lanes.first() else { return Ok(()) };
        let rtt = arrived.since(lane.posted_at);
        let due = self.pongs.arrived(seq) && seq + 1 == lane.next;
        if !due || u64::from(len) != self.test.size {
            self.wrong_messages += 1;
            return self.post_pong(endpoint, message.into());
        }
        if self.test.verify {
            self.verified += u64::from(len);
            self.wrong += self.scratch.wrong_bytes(&message, 0, seq);
        }
        let measured = self.meter.began().is_some() && !self.meter.has_ended();
        if let Some(histogram) = self.round_trips.as_mut().filter(|_| measured) {
            histogram.saturating_record(rtt.as_ps() / 1000);
        }
        self.delivered(endpoint, now);
        self.post_pong(endpoint, message.into())?;
        if self.state == State::Running {
            let ping = match self.spare.pop() {
                Some(message) => message,
                // The one before has come back, but its acknowledgement has not.
                None => memory::one(endpoint, self.test.size)?,
            };
            // Not the time of the turn: the work before in it does not belong to the network.
            let now = self.clock.now().latest(now);
            self.post(endpoint, now, 0, ping)?;
        }
        Ok(())
    }

    fn heard(&mut self, endpoint: &mut Endpoint, now: Time, message: Message) -> Result<(), Failure> {
        match (self.state, message) {
            (State::Asking, Message::Ready { session }) => {
                self.start(endpoint, now, session).map_err(|error| self.refused_call(&error))
            }
            (State::Asking, Message::Refused { reason }) => {
                let reason = printable(&reason);
                Err(Failure::Run(format!("{} will not run the test: {reason}", self.name)))
            }
            (State::Finished, Message::Report(report)) => {
                self.server_report = Some(report);
                self.close(endpoint, now);
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

    fn close(&mut self, endpoint: &mut Endpoint, now: Time) {
        let all = self.lanes.iter().map(|lane| lane.connection).chain(self.control);
        for connection in all.collect::<Vec<_>>() {
            // One that has closed by itself is closed.
            let _ = endpoint.close(connection);
        }
        self.state = State::Closing;
        self.silence.restart(now);
    }

    /// Takes a completion that brings no message's memory.
    #[inline(never)]
    fn take(&mut self, endpoint: &mut Endpoint, now: Time, completion: Completion) -> Result<(), Failure> {
        match completion {
            // All has been delivered and reported: whether the server has acknowledged the last word too does not matter.
            Completion::Sent { .. } if self.state == State::Closing => Ok(()),
            // A request that has not left comes again.
            Completion::Sent { context: control::COOKIE, .. } => Ok(()),
            Completion::Sent { result, .. } => result.map_err(|error| self.failure(&error)),
            Completion::Received { context: control::COOKIE, source, header_data, .. } => {
                let from = source.map(|source| source.peer);
                self.got_cookie(endpoint, from, header_data).map_err(|error| self.refused_call(&error))
            }
            Completion::Received { result: Err(error), .. } => Err(self.failure(&error)),
            Completion::Received { context: CONTROL, buffer, len, .. } => {
                let message = control::decode(&buffer.to_bytes(len)).map_err(|error| self.failure(&error))?;
                self.heard(endpoint, now, message)
            }
            Completion::Closed { connection, result, .. } => {
                self.lanes.retain(|lane| lane.connection != connection || self.state != State::Closing);
                if self.control == Some(connection) {
                    self.control = None;
                }
                match result {
                    Err(error) if self.lanes.iter().any(|lane| lane.connection == connection) => {
                        Err(self.failure(&error))
                    }
                    // The control connection closes by itself when nothing is said for long.
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    #[cold]
    #[inline(never)]
    fn failure(&self, error: &impl std::fmt::Display) -> Failure {
        Failure::Run(format!("{}: {error}", self.name))
    }

    #[cold]
    #[inline(never)]
    fn refused_call(&self, error: &Error) -> Failure {
        Failure::Run(format!("the endpoint cannot run the test: {error}"))
    }

    /// Enters the next state when its time has come.
    fn advance(&mut self, endpoint: &mut Endpoint, now: Time) -> Result<(), Failure> {
        if let Some(lane) = self.lanes.first()
            && let Some(notice) = self.crawl.check(now, || endpoint.congestion(lane.connection))
        {
            eprintln!("weft: {}: {notice}", self.name);
        }
        match self.state {
            State::Begin => self.ask(endpoint, now).map_err(|error| self.refused_call(&error))?,
            State::Running => {
                self.watch_the_clock(endpoint, now);
                let all = matches!(self.test.limit, Limit::Messages(count) if self.posted >= count);
                if all || self.meter.has_ended() {
                    self.state = State::Draining;
                }
            }
            State::Draining if self.done.messages == self.posted => {
                self.state = State::Finished;
                let finished = Message::Finished { messages: self.posted };
                let tag = control::finished_tag(self.session);
                control::send(endpoint, self.server, &mut self.control, tag, finished)
                    .map_err(|error| self.refused_call(&error))?;
            }
            State::Asking => {
                let (count, at) = self.asked;
                if count < QUESTIONS && now.since(at) >= ASK_AGAIN {
                    self.ask_for_cookie(endpoint, now).map_err(|error| self.refused_call(&error))?;
                }
            }
            State::Draining | State::Finished | State::Closing => {}
        }
        Ok(())
    }

    /// Begins and ends the measured part.
    fn watch_the_clock(&mut self, endpoint: &Endpoint, now: Time) {
        let Limit::Microseconds(us) = self.test.limit else {
            if self.meter.began().is_none() {
                self.meter.begin(now, endpoint, Progress::default());
            }
            return;
        };
        let begin = *self.begin.get_or_insert_with(|| now + self.test.warmup());
        match self.meter.began() {
            // From when it really begins: the system may have had the processor until now.
            Some(began) if now.is_at_or_after(began + Span::from_ps(us * 1_000_000)) => {
                self.end_of_measure(endpoint, now);
            }
            None if now.is_at_or_after(begin) => self.meter.begin(now, endpoint, self.done),
            Some(_) | None => {}
        }
    }

    fn end_of_measure(&mut self, endpoint: &Endpoint, now: Time) {
        self.meter.end(now, endpoint, self.done);
        let first = self.lanes.first();
        let snapshot = first.and_then(|lane| endpoint.congestion(lane.connection));
        self.congestion = snapshot.as_ref().map(CongestionReport::of);
    }

    fn waits_for(&self) -> String {
        match self.state {
            State::Begin | State::Asking => "waiting for its answer to the request".to_owned(),
            State::Running | State::Draining => {
                let left = self.posted - self.done.messages;
                let what = if self.test.mode == Mode::Latency { "come back" } else { "be delivered" };
                format!("waiting for {left} of {} messages to {what}", self.posted)
            }
            State::Finished => "waiting for its report".to_owned(),
            State::Closing => "waiting for the connections to close".to_owned(),
        }
    }
}

impl Role for Client {
    fn step(&mut self, endpoint: &mut Endpoint, now: Time) -> Result<Step, Failure> {
        let mut step = Step::Idle;
        loop {
            // Matched here, where it was put together: a completion that is moved costs as much as a call.
            match endpoint.next_completion() {
                Some(Completion::Sent {
                    context,
                    buffer: SendBuffer::Memory(message),
                    result: Ok(()),
                    ..
                }) => {
                    if let Err(error) = self.sent(endpoint, now, context as u32, message) {
                        return Err(self.refused_call(&error));
                    }
                }
                Some(Completion::Received {
                    header_data,
                    len,
                    buffer: ReceiveBuffer::Memory(message),
                    result: Ok(()),
                    ..
                }) => {
                    if let Err(error) = self.returned(endpoint, now, header_data, len, message) {
                        return Err(self.refused_call(&error));
                    }
                }
                Some(other) => self.take(endpoint, now, other)?,
                None => break,
            }
            step = Step::Busy;
        }
        self.advance(endpoint, now)?;
        let silent = self.silence.is_too_long(heard(endpoint), now);
        if self.state == State::Closing {
            let closed = self.lanes.is_empty() && self.control.is_none();
            // The test is over: what the server says about its end does not matter.
            if closed || silent {
                return Ok(Step::Done);
            }
        } else if silent {
            return Err(self.silence.failure(endpoint, &self.name, &self.waits_for()));
        }
        Ok(step)
    }

    #[inline]
    fn turned(&mut self, span: Span, idle: bool) {
        self.meter.turned(span, idle);
    }

    /// Ends the measured part, if it has begun. Messages under way are delivered, and the server is asked for its report.
    fn interrupt(&mut self, endpoint: &mut Endpoint, now: Time) -> Result<(), Failure> {
        match self.state {
            // There is nothing to report, and nobody to wait for.
            State::Begin | State::Asking => {
                self.control = None;
                self.state = State::Closing;
            }
            State::Running | State::Draining => {
                if self.meter.began().is_some() && !self.meter.has_ended() {
                    self.end_of_measure(endpoint, now);
                }
                self.state = State::Draining;
            }
            State::Finished | State::Closing => {}
        }
        Ok(())
    }
}

/// Packets that show that the server lives.
#[inline]
fn heard(endpoint: &Endpoint) -> u64 {
    endpoint.worker().map_or(0, |worker| {
        let counters = worker.fep().counters();
        counters.data_received + counters.acks_received + counters.duplicates_received
    })
}

/// Writes the content of a message. By value: a buffer that is lent stays in memory on all paths, and not in registers.
#[inline(never)]
fn fill(scratch: &mut Scratch, message: MemorySlice, lane: u32, seq: u64) -> MemorySlice {
    scratch.fill(&message, lane, seq);
    message
}

/// Round-trip times from 1 ns to 100 s, to three digits.
fn histogram() -> Option<Histogram<u64>> {
    Histogram::new_with_bounds(1, LONGEST_RTT_NS, 3).ok()
}

/// Text of a peer, without characters that would move the cursor of a terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::server::tests::a_test;

    /// The cookies that come may be of somebody else.
    #[test]
    fn a_client_asks_for_a_cookie_as_long_as_it_has_no_answer_whatever_cookies_it_has() {
        let mut endpoint = Endpoint::builder("udp:127.84.20.12").build().unwrap();
        let server = endpoint.peer("127.84.20.13").unwrap();
        let clock = Clock::new();
        let mut client = Client::new(a_test(), server, "a server".to_owned(), Span::from_ms(10_000), clock);
        let mut now = Time::ZERO;
        client.advance(&mut endpoint, now).unwrap();
        for n in 1..2 * QUESTIONS {
            assert_eq!(client.asked.0, n.min(QUESTIONS));
            client.got_cookie(&mut endpoint, Some(server), n.into()).unwrap();
            now += ASK_AGAIN.minus(Span::from_ps(1));
            client.advance(&mut endpoint, now).unwrap();
            assert_eq!(client.asked.0, n.min(QUESTIONS), "not before its time");
            now += Span::from_ps(1);
            client.advance(&mut endpoint, now).unwrap();
        }
    }
}
