//! A link in virtual time between two nodes, each a worker of weft or the conforming peer. Ethernet frames travel on it, as
//! bytes; it serialises, delays, loses, repeats, reorders and trims them.

use std::collections::BTreeMap;

use weft::core::Rng;

use super::frame::{is_data, mark, trim};
use super::peer::{Message, Ps};

/// bit/s.
pub(crate) const RATE: u64 = 100_000_000_000;
pub(crate) const DELAY: Ps = 5_000_000;
/// Preamble, frame check sequence and gap.
const FRAMING: usize = 24;

/// Something at one end of the link.
pub(crate) trait Node {
    fn receive(&mut self, now: Ps, frame: &[u8]);
    /// The frame that is to leave next. Called when the link is free.
    fn transmit(&mut self, now: Ps) -> Option<Vec<u8>>;
    fn poll_timeout(&self) -> Option<Ps>;
    fn on_timeout(&mut self, now: Ps);

    fn post(&mut self, now: Ps, message: Message);
    /// Makes room for a message of `len` bytes with a tag.
    fn expect(&mut self, tag: u64, len: usize);
    /// The messages that have arrived.
    fn received(&self) -> &[Message];
    /// Whether all posted messages have been acknowledged.
    fn is_done(&self) -> bool;
    /// The sender's window whenever it changed, bytes.
    fn trace(&self) -> &[(Ps, u64)];
}

/// What happens to frames on the way: probabilities, and a switch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Path {
    pub(crate) lose: f64,
    pub(crate) duplicate: f64,
    /// 15 µs later than others.
    pub(crate) reorder: f64,
    /// Frames of the data class only, as the next.
    pub(crate) trim: f64,
    pub(crate) mark: f64,
    /// The rate at which a switch forwards data, bit/s, if that is less than the link's.
    pub(crate) bottleneck: Option<u64>,
}

/// One direction of the link.
#[derive(Default)]
struct Direction {
    free_at: Ps,
    /// When the switch on the way has sent the data that it has.
    drained_at: Ps,
    /// Frames under way, by the time of their arrival, then in the order in which they left.
    flying: BTreeMap<(Ps, u64), Vec<u8>>,
}

pub(crate) struct Net<A, B> {
    pub(crate) a: A,
    pub(crate) b: B,
    pub(crate) now: Ps,
    pub(crate) path: Path,
    rng: Rng,
    directions: [Direction; 2],
    frames: u64,
}

impl<A: Node, B: Node> Net<A, B> {
    pub(crate) fn new(a: A, b: B) -> Net<A, B> {
        Net::over(a, b, Path::default(), 0)
    }

    pub(crate) fn over(a: A, b: B, path: Path, seed: u64) -> Net<A, B> {
        Net { a, b, now: 0, path, rng: Rng::new(seed, 5), directions: Default::default(), frames: 0 }
    }

    /// Lets time pass until `done`.
    pub(crate) fn run(&mut self, mut done: impl FnMut(&mut Net<A, B>) -> bool) {
        let end = self.now + 2_000_000_000_000;
        loop {
            self.take_turns();
            if done(self) {
                return;
            }
            assert!(self.now < end, "nothing comes to an end within two seconds");
            self.advance();
        }
    }

    /// Everything that happens now.
    fn take_turns(&mut self) {
        let now = self.now;
        let [to_b, to_a] = &mut self.directions;
        for frame in arrived(&mut to_a.flying, now) {
            self.a.receive(now, &frame);
        }
        for frame in arrived(&mut to_b.flying, now) {
            self.b.receive(now, &frame);
        }
        if self.a.poll_timeout().is_some_and(|at| at <= now) {
            self.a.on_timeout(now);
        }
        if self.b.poll_timeout().is_some_and(|at| at <= now) {
            self.b.on_timeout(now);
        }
        if self.directions[0].free_at <= now
            && let Some(frame) = self.a.transmit(now)
        {
            self.launch(0, frame);
        }
        if self.directions[1].free_at <= now
            && let Some(frame) = self.b.transmit(now)
        {
            self.launch(1, frame);
        }
    }

    /// Lets time go on to the next event.
    fn advance(&mut self) {
        let arrivals = self.directions.iter().filter_map(|d| d.flying.first_key_value().map(|(at, _)| at.0));
        let free = self.directions.iter().map(|d| d.free_at).filter(|at| *at > self.now);
        let timers = [self.a.poll_timeout(), self.b.poll_timeout()].into_iter().flatten();
        let next = arrivals.chain(free).chain(timers).min().expect("somebody waits for something");
        self.now = next.max(self.now + 1);
    }

    fn happens(&mut self, probability: f64) -> bool {
        (self.rng.next_u64() as f64) < probability * u64::MAX as f64
    }

    fn launch(&mut self, direction: usize, mut frame: Vec<u8>) {
        let end = self.now + serialisation(&frame, RATE);
        self.directions[direction].free_at = end;
        if self.happens(self.path.lose) {
            return;
        }
        let later = if self.happens(self.path.reorder) { 3 * DELAY } else { 0 };
        if is_data(&frame) && self.happens(self.path.trim) {
            trim(&mut frame);
        }
        if is_data(&frame) && self.happens(self.path.mark) {
            mark(&mut frame);
        }
        if self.happens(self.path.duplicate) {
            self.fly(direction, end + 2 * DELAY, frame.clone());
        }
        let end = match self.path.bottleneck {
            Some(rate) if is_data(&frame) => self.queue(direction, end, rate, &mut frame),
            _ => end,
        };
        self.fly(direction, end + DELAY + later, frame);
    }

    /// A frame of data comes to the switch at `at`, which trims from one BDP on and marks from a fifth of that to four
    /// fifths. Returns when it has left.
    fn queue(&mut self, direction: usize, at: Ps, rate: u64, frame: &mut Vec<u8>) -> Ps {
        let drained_at = self.directions[direction].drained_at.max(at);
        let backlog = (drained_at - at) as f64 / (2 * DELAY) as f64;
        if backlog > 1.0 {
            trim(frame);
            return at;
        }
        if self.happens((backlog - 0.2) / 0.6) {
            mark(frame);
        }
        let drained_at = drained_at + serialisation(frame, rate);
        self.directions[direction].drained_at = drained_at;
        drained_at
    }

    fn fly(&mut self, direction: usize, at: Ps, frame: Vec<u8>) {
        self.frames += 1;
        self.directions[direction].flying.insert((at, self.frames), frame);
    }
}

/// How long a frame occupies a link of `rate` bit/s.
fn serialisation(frame: &[u8], rate: u64) -> Ps {
    ((frame.len() + FRAMING) * 8) as u64 * 1_000_000_000_000 / rate
}

fn arrived(flying: &mut BTreeMap<(Ps, u64), Vec<u8>>, now: Ps) -> Vec<Vec<u8>> {
    let later = flying.split_off(&(now + 1, 0));
    std::mem::replace(flying, later).into_values().collect()
}
