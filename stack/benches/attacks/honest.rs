//! What an honest application, alice, and her peer get of the server, and how long it takes.

use weft_stack::packet::Addr;
use weft_stack::worker::session::SessionConfig;
use weft_stack::{Span, Time};

use crate::interface::{Heard, heard, session, to_process};
use crate::net::{Net, PEER, extent, tagged};

/// The longest time between two round trips of small messages, 40 µs in the mean, and how many there are.
const REST: Span = Span::from_us(80);
const PINGS: usize = 400;
/// The time after a new connection.
const PAUSE: Span = Span::from_us(100);
/// Bytes of long messages, how often the peer sends one, which is a fifth of the link's rate, and how long.
pub(crate) const LONG: u32 = 64 << 10;
const LONG_EVERY: Span = Span::from_ps(26_214_400);
const WINDOW: Span = Span::from_us(500);
const WINDOWS: usize = 20;
/// Long messages on their way; while there are so many, no further ones are sent.
const UNDER_WAY: usize = 32;
const CONNECTIONS: usize = 40;
const JOINS: usize = 48;
/// How long alice waits for a message or a connection, and how often in vain before she gives up.
pub(crate) const PATIENCE: Span = Span::from_ms(200);
const FAILURES: usize = 3;

/// A quantity that is measured of alice and her peer. It has no value if alice was refused, or waited for too long, in most of the
/// tries.
#[derive(Clone, Copy)]
pub(crate) enum What {
    /// A round trip of messages of 64 bytes, at up to 20,000 a second, µs.
    RoundTrip,
    /// The longest turn since the measurements began, µs.
    LongestTurn,
    /// Goodput of messages of 64 KiB to alice, which her peer sends at 20 Gbit/s.
    Goodput,
    /// Megabytes that the server has allocated.
    Memory,
    /// From asking for a new connection each way to a message over both, µs.
    Connection,
    /// Joins in a second, one after the other.
    Joins,
}

/// All of it, in the order in which it is measured.
pub(crate) const ALL: [What; 6] =
    [What::RoundTrip, What::LongestTurn, What::Goodput, What::Memory, What::Connection, What::Joins];

/// What goes on beside it.
pub(crate) type GoOn = fn(&mut Net);

impl What {
    /// Measures a part of it: 1 of `fraction`.
    pub(crate) fn measure(self, net: &mut Net, go_on: GoOn, fraction: usize) -> Option<f64> {
        match self {
            What::RoundTrip => round_trip(net, go_on, PINGS / fraction),
            What::LongestTurn => Some(net.longest.as_secs_f64() * 1e6),
            What::Goodput => goodput(&mut Alice(net, go_on), fraction),
            What::Memory => Some(net.megabytes()),
            What::Connection => connection(net, go_on, CONNECTIONS / fraction),
            What::Joins => joins(net, go_on, JOINS / fraction),
        }
    }
}

/// The median of what was measured so often, unless it failed as often.
pub(crate) fn median_of(count: usize, mut measure: impl FnMut() -> Option<f64>) -> Option<f64> {
    let (mut values, mut failures) = (Vec::new(), 0);
    for _ in 0..count {
        match measure() {
            Some(value) => values.push(value),
            None => failures += 1,
        }
        if failures == FAILURES {
            return None;
        }
    }
    Some(median(values))
}

/// The value in the middle. There are some.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Measures something of each server in turn, in so many parts. Returns the median of the parts of each, unless one failed.
pub(crate) fn in_parts<T>(
    servers: &mut [T],
    count: usize,
    mut measure: impl FnMut(&mut T) -> Option<f64>,
) -> Vec<Option<f64>> {
    let mut parts = vec![Some(Vec::new()); servers.len()];
    for _ in 0..count {
        for (server, parts) in servers.iter_mut().zip(&mut parts) {
            let Some(values) = parts else { continue };
            match measure(server) {
                Some(value) => values.push(value),
                None => *parts = None,
            }
        }
    }
    parts.into_iter().map(|values| values.map(median)).collect()
}

fn turns_until(net: &mut Net, go_on: GoOn, at: Time) {
    while !net.now.is_at_or_after(at) {
        go_on(net);
        net.turn();
    }
}

/// Runs turns of the server until a random time, at most [`REST`] from now. Returns that time, which lies in the last turn.
fn rest(net: &mut Net, go_on: GoOn) -> Time {
    let at = net.now + net.random(REST);
    turns_until(net, go_on, at);
    at
}

fn round_trip(net: &mut Net, go_on: GoOn, count: usize) -> Option<f64> {
    median_of(count, || {
        let begin = rest(net, go_on);
        one_round_trip(net, go_on, begin)
    })
}

/// The peer sends a message to alice, which leaves at `begin`, and she answers.
fn one_round_trip(net: &mut Net, go_on: GoOn, begin: Time) -> Option<f64> {
    let (there, back) = (net.tag(), net.tag());
    net.alice.receive(extent(64), None, tagged(there), there).ok()?;
    net.peer_receives(64, back);
    if !net.peer_sends(net.from_peer, 64, there) {
        return None;
    }
    net.honest_peer_transmits(begin);
    while net.now.since(begin) < PATIENCE {
        go_on(net);
        net.turn();
        while let Some(event) = net.alice_event() {
            match heard(&event.report) {
                Heard::Done if event.context == there => {
                    net.alice.send(net.to_peer, extent(64), Some(back), 0, back).ok()?;
                }
                Heard::Done | Heard::Connection => {}
                Heard::Limit | Heard::Failed => return None,
            }
        }
        while let Some((tag, at)) = net.peer_received() {
            if tag == back {
                return Some(at.since(begin).as_us_f64());
            }
        }
    }
    None
}

/// Who sends long messages, and who receives them.
pub(crate) trait Stream {
    fn now(&self) -> Time;
    /// A message of [`LONG`] bytes leaves, for which there is a receive. `None` if it may not.
    fn send_long(&mut self) -> Option<()>;
    /// A turn of the server. Returns how many of the messages have arrived. `None` if one was refused or has failed.
    fn turn(&mut self) -> Option<usize>;
}

/// Alice and her peer, beside what goes on.
struct Alice<'a>(&'a mut Net, GoOn);

impl Stream for Alice<'_> {
    fn now(&self) -> Time {
        self.0.now
    }

    fn send_long(&mut self) -> Option<()> {
        let Alice(net, _) = self;
        let tag = net.tag();
        net.alice.receive(extent(LONG), None, tagged(tag), tag).ok()?;
        net.peer_sends(net.from_peer, LONG, tag).then_some(())
    }

    fn turn(&mut self) -> Option<usize> {
        let Alice(net, go_on) = self;
        go_on(net);
        net.turn();
        while net.peer_received().is_some() {}
        let (mut arrived, mut has_failed) = (0, false);
        while let Some(event) = net.alice_event() {
            match heard(&event.report) {
                Heard::Done => arrived += 1,
                Heard::Connection => {}
                Heard::Limit | Heard::Failed => has_failed = true,
            }
        }
        (!has_failed).then_some(arrived)
    }
}

/// The goodput of messages of 64 KiB that are sent at 20 Gbit/s.
pub(crate) fn goodput(stream: &mut impl Stream, fraction: usize) -> Option<f64> {
    let (mut next, mut under_way) = (stream.now(), 0);
    let mut rates = Vec::new();
    for _ in 0..WINDOWS / fraction {
        let (begin, mut received) = (stream.now(), 0);
        while stream.now().since(begin) < WINDOW {
            while stream.now().is_at_or_after(next) && under_way < UNDER_WAY {
                stream.send_long()?;
                under_way += 1;
                next += LONG_EVERY;
            }
            next = next.latest(stream.now() - LONG_EVERY.times(UNDER_WAY as u64));
            let arrived = stream.turn()?;
            received += arrived;
            under_way = under_way.saturating_sub(arrived);
        }
        rates.push(received as f64 * f64::from(LONG) * 8.0 / stream.now().since(begin).as_secs_f64() / 1e9);
    }
    let rate = median(rates);
    // The rest arrives before anything else is measured.
    let begin = stream.now();
    while under_way > 0 && stream.now().since(begin) < PATIENCE {
        under_way = under_way.saturating_sub(stream.turn().unwrap_or(0));
    }
    (rate > 0.0).then_some(rate)
}

fn connection(net: &mut Net, go_on: GoOn, count: usize) -> Option<f64> {
    median_of(count, || {
        let of_peer = rest(net, go_on);
        let result = one_connection(net, go_on, of_peer);
        turns_until(net, go_on, net.now + PAUSE);
        while net.alice_event().is_some() {}
        result.map(Span::as_us_f64)
    })
}

/// Alice opens a connection to her peer now, and the peer opened one to her at `of_peer`, each for a message. Returns the longer one of
/// the times that these take.
fn one_connection(net: &mut Net, go_on: GoOn, of_peer: Time) -> Option<Span> {
    let (begin, there, back) = (net.now, net.tag(), net.tag());
    let from_alice = net.alice.connect(Addr(PEER), to_process(0), back).ok()?;
    let to_alice = net.peers[0].connect(begin, Addr(0), to_process(net.alice.process())).ok()?;
    net.peer_receives(64, back);
    let mut posted = net.alice.receive(extent(64), None, tagged(there), there).is_ok()
        && net.alice.send(from_alice, extent(64), Some(back), 0, back).is_ok();
    posted &= net.peer_sends(to_alice, 64, there);
    net.honest_peer_transmits(of_peer);
    let (mut to_peer, mut to_her) = (None, None);
    while posted && (to_peer.is_none() || to_her.is_none()) && net.now.since(begin) < PATIENCE {
        go_on(net);
        net.turn();
        while let Some(event) = net.alice_event() {
            match heard(&event.report) {
                Heard::Done if event.context == there => to_her = Some(net.now.since(of_peer)),
                Heard::Done | Heard::Connection => {}
                Heard::Limit | Heard::Failed => posted = false,
            }
        }
        while let Some((tag, at)) = net.peer_received() {
            to_peer = to_peer.or((tag == back).then(|| at.since(begin)));
        }
    }
    let took = to_peer.zip(to_her).filter(|_| posted).map(|(to_peer, to_her)| to_peer.max(to_her));
    let _ = if took.is_some() { net.alice.close(from_alice) } else { net.alice.abort(from_alice) };
    let _ = net.peers[0].close(net.now, to_alice);
    took
}

fn joins(net: &mut Net, go_on: GoOn, count: usize) -> Option<f64> {
    let config = SessionConfig { memory: 1 << 16, ..session(1024, 64) };
    median_of(count, || {
        let begin = net.now;
        let (client, _) = net.join(&config)?;
        drop(client);
        go_on(net);
        net.turn();
        Some(1.0 / net.now.since(begin).as_secs_f64())
    })
}
