//! The windows of a run, and the threads that live through them together.
//!
//! A packet takes at least a certain time from one node to the next, the lookahead. In a window of that
//! length no node can tell what another is doing, so the nodes can be taken one after the other, each through
//! the whole window, and by several threads (conservative parallel simulation, Chandy and Misra 1979). Node
//! after node instead of event after event is faster on one thread as well: a host's state is brought into the
//! cache once per window and not once per packet.
//!
//! A folded Clos has two sides: hosts and every second tier of switches, and the other tiers; links only
//! join one with the other. Once one side has got to a time, the other can go on to that time and the lookahead.
//! So they take turns, and each turn takes a side twice the lookahead further.
//!
//! How long windows are follows from the topology and not from the number of threads, and a window
//! depends on nothing but the one before it: any number of threads gives the same results.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use weft_cc::{Span, Time};

use super::barrier::{Barrier, Guard};
use super::build::System;
use super::faults::LinkChange;
use super::link::LinkSpec;
use super::packets::Mail;
use super::report::Progress;
use super::sample::Sampling;
use super::shard::{Samples, Shard, Side};
use super::wires::{Crossing, NEVER, Wires};

/// Which side goes on next, and how far.
struct Timetable<'a> {
    lookahead: u64,
    /// How far each side has got.
    reached: [u64; 2],
    side: Side,
    changes: &'a [(u64, LinkSpec, LinkChange)],
    sample_every: Option<u64>,
    next_sample: u64,
    last_sample: u64,
    /// The last instant that counts.
    until: u64,
}

/// What is next.
enum Turn<'a> {
    /// A side lives from `start` to before `end`.
    Window { side: Side, start: u64, end: u64 },
    /// Links change.
    Changes(&'a [(u64, LinkSpec, LinkChange)]),
    /// Samples are taken.
    Sample(u64),
    /// The run is over.
    End,
}

impl<'a> Timetable<'a> {
    fn new(system: &'a System, until: Option<Span>, sample_every: Option<Span>) -> Timetable<'a> {
        let sample_every = sample_every.map(|every| every.as_ps().max(1));
        Timetable {
            lookahead: system.lookahead,
            reached: [0, 0],
            side: Side::Even,
            changes: &system.changes,
            sample_every,
            next_sample: sample_every.unwrap_or(NEVER),
            last_sample: 0,
            until: until.map_or(NEVER, Span::as_ps).min(NEVER - 1),
        }
    }

    /// What is to be done when nothing happens before `next`.
    fn turn(&mut self, next: u64) -> Turn<'a> {
        let change = self.changes.first().map_or(NEVER, |(at, ..)| *at);
        // Both sides get there before anybody goes further.
        let stop = change.min(self.due_sample()).min(self.until + 1);
        for reached in &mut self.reached {
            *reached = next.min(stop).max(*reached);
        }
        if self.reached.iter().all(|reached| *reached >= stop) {
            return self.stop(change, next);
        }
        let side = self.side;
        let (own, other) = (side as usize, 1 - side as usize);
        self.side = if side == Side::Even { Side::Odd } else { Side::Even };
        let start = self.reached[own];
        let end = self.reached[other].saturating_add(self.lookahead).min(stop);
        self.reached[own] = end.max(start);
        Turn::Window { side, start, end }
    }

    /// Everything was done at `done`. Some nodes are further already: so that it does not depend on the windows
    /// how far, all go on to where the first can be.
    fn finish(&mut self, done: u64) {
        self.until = self.until.min(done.saturating_add(2 * self.lookahead));
    }

    /// The run ends early. One side may be further than the other, so the other still gets there.
    fn cut_short(&mut self) {
        let [even, odd] = self.reached;
        self.until = self.until.min(even.max(odd));
    }

    /// When a sample is due; one at the very end waits for what happens then, see [`Timetable::end_sample`].
    fn due_sample(&self) -> u64 {
        if self.next_sample < self.until { self.next_sample } else { NEVER }
    }

    /// When the last sample is due of a run that is over: it ends an interval that need not be a whole one.
    fn end_sample(&self) -> Option<u64> {
        let [even, odd] = self.reached;
        let end = even.max(odd).min(self.until);
        (self.sample_every.is_some() && end > self.last_sample).then_some(end)
    }

    fn stop(&mut self, change: u64, next: u64) -> Turn<'a> {
        let at = self.reached[0];
        if at == self.due_sample()
            && at < self.until
            && let Some(every) = self.sample_every
        {
            // The next one at which there can be anything to see.
            let idle = next.min(self.until).saturating_sub(at) / every;
            self.next_sample = at.saturating_add((idle + 1).saturating_mul(every));
            self.last_sample = at;
            return Turn::Sample(at);
        }
        if at == change && at <= self.until {
            let due = self.changes.iter().take_while(|(other, ..)| *other == at).count();
            let (changes, later) = self.changes.split_at(due);
            self.changes = later;
            return Turn::Changes(changes);
        }
        Turn::End
    }
}

/// What the threads tell each other at the end of a window. Two of these take turns, so that a thread that
/// is ahead does not overwrite what another has not read.
struct Board {
    shards: Vec<Notice>,
    /// From shard to shard.
    mail: Vec<Vec<Mutex<Letters>>>,
    /// Whether the run is to end early: all threads must see the same after the same window.
    stop: AtomicBool,
}

/// What goes from one shard to another.
#[derive(Default)]
struct Letters {
    packets: Vec<Crossing>,
    contents: Mail,
}

#[derive(Default)]
struct Notice {
    next: AtomicU64,
    open: AtomicU64,
    events: AtomicU64,
    done: AtomicU64,
    last_close: AtomicU64,
    samples: Mutex<Samples>,
}

impl Board {
    fn new(shards: usize) -> Board {
        let boxes = |_| (0..shards).map(|_| Mutex::new(Letters::default())).collect();
        Board {
            shards: (0..shards).map(|_| Notice::default()).collect(),
            mail: (0..shards).map(boxes).collect(),
            stop: AtomicBool::new(false),
        }
    }

    /// Puts up what shard number `from` has to tell after a window, after which nothing happens before `next`.
    fn post(&self, from: usize, shard: &mut Shard, next: u64) {
        let notice = &self.shards[from];
        let Wires { outboxes, packets, .. } = &mut shard.wires;
        for ((outbox, contents), mail) in outboxes.iter_mut().zip(&mut packets.mail).zip(&self.mail[from]) {
            let mut letters = lock(mail);
            std::mem::swap(&mut letters.packets, outbox);
            std::mem::swap(&mut letters.contents, contents);
        }
        // The barrier that follows orders these.
        notice.next.store(next, Ordering::Relaxed);
        notice.open.store(shard.flows.open, Ordering::Relaxed);
        notice.events.store(shard.events, Ordering::Relaxed);
        notice.done.store(shard.flows.done, Ordering::Relaxed);
        notice.last_close.store(shard.flows.last_close, Ordering::Relaxed);
    }

    /// Takes in what the others have sent to shard number `to`.
    fn collect(&self, to: usize, shard: &mut Shard) {
        for (from, mail) in self.mail.iter().enumerate() {
            let mut letters = lock(&mail[to]);
            shard.wires.packets.receive(from, &mut letters.contents);
            shard.wires.receive(&mut letters.packets);
        }
    }

    fn next(&self) -> u64 {
        self.shards.iter().map(|notice| notice.next.load(Ordering::Relaxed)).min().unwrap_or(NEVER)
    }

    fn last_close(&self) -> u64 {
        self.shards.iter().map(|notice| notice.last_close.load(Ordering::Relaxed)).max().unwrap_or(0)
    }

    fn sum(&self, of: impl Fn(&Notice) -> &AtomicU64) -> u64 {
        self.shards.iter().map(|notice| of(notice).load(Ordering::Relaxed)).sum()
    }
}

/// A panic elsewhere leaves nothing behind that could be misread: it ends the run.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the caller of a run wants to see while it goes on.
pub(super) struct Watch<'a> {
    pub(super) progress: Option<&'a mut dyn FnMut(&Progress)>,
    pub(super) sampling: Option<Sampling<'a>>,
    pub(super) stop: Option<&'a AtomicBool>,
    pub(super) flows_total: u64,
}

/// Events between two calls of the progress callback.
const PROGRESS_INTERVAL: u64 = 1 << 16;

impl Watch<'_> {
    fn is_to_stop(&self) -> bool {
        self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    fn look(&mut self, board: &Board, now: u64, reported: &mut u64) {
        let events = board.sum(|notice| &notice.events);
        if let Some(progress) = self.progress.as_mut().filter(|_| events >= *reported) {
            *reported = events + PROGRESS_INTERVAL;
            let flows_done = board.sum(|notice| &notice.done);
            let now = Time::from_ps(now);
            progress(&Progress { now, flows_done, flows_total: self.flows_total, events });
        }
    }

    fn sample(&mut self, board: &Board, at: u64) {
        let Some(sampling) = &mut self.sampling else { return };
        let mut all = Samples::default();
        for notice in &board.shards {
            let mut samples = lock(&notice.samples);
            all.ports.append(&mut samples.ports);
            all.flows.append(&mut samples.flows);
        }
        all.ports.sort_unstable_by_key(|sample| sample.port);
        all.flows.sort_unstable_by_key(|sample| sample.flow);
        sampling.sink.sample(Time::from_ps(at), &all.ports, &all.flows);
    }
}

/// Runs the system to its end and returns the time at which it ends.
pub(super) fn run(system: &mut System, until: Option<Span>, watch: &mut Watch<'_>) -> u64 {
    let every = watch.sampling.as_ref().map(|sampling| sampling.every);
    let mut shards = std::mem::take(&mut system.shards);
    let system_ref = &*system;
    let next = shards.iter().map(Shard::first).min().unwrap_or(NEVER);
    let boards = [Board::new(shards.len()), Board::new(shards.len())];
    let barrier = Barrier::new(shards.len());
    let team = Team { boards: &boards, barrier: &barrier };
    let end = std::thread::scope(|scope| {
        let (first, others) = shards.split_at_mut(1);
        for (shard, number) in others.iter_mut().zip(1..) {
            let timetable = Timetable::new(system_ref, until, every);
            scope.spawn(move || team.drive(number, shard, timetable, next, None));
        }
        let timetable = Timetable::new(system_ref, until, every);
        team.drive(0, &mut first[0], timetable, next, Some(watch))
    });
    system.shards = shards;
    end
}

/// What the threads of a run share.
#[derive(Clone, Copy)]
struct Team<'a> {
    boards: &'a [Board; 2],
    barrier: &'a Barrier,
}

impl Team<'_> {
    /// Drives one shard to the end of the run, and returns when that was.
    fn drive(
        self,
        number: usize,
        shard: &mut Shard,
        mut timetable: Timetable<'_>,
        mut next: u64,
        mut watch: Option<&mut Watch<'_>>,
    ) -> u64 {
        let _guard = Guard(self.barrier);
        let mut reported = 0;
        let mut boards = self.boards.iter().cycle();
        let mut over = false;
        while next != NEVER {
            match timetable.turn(next) {
                Turn::Window { side, start, end } => {
                    let Some(board) = boards.next() else { break };
                    let own_next = shard.run(side, start, end);
                    board.post(number, shard, own_next);
                    if let Some(watch) = &watch {
                        board.stop.store(watch.is_to_stop(), Ordering::Relaxed);
                    }
                    if !self.barrier.wait() {
                        return end;
                    }
                    board.collect(number, shard);
                    next = board.next();
                    if let Some(watch) = &mut watch {
                        watch.look(board, end, &mut reported);
                    }
                    if board.stop.load(Ordering::Relaxed) {
                        timetable.cut_short();
                    }
                    if !over && board.sum(|notice| &notice.open) == 0 {
                        over = true;
                        timetable.finish(board.last_close());
                    }
                }
                Turn::Changes(changes) => {
                    changes.iter().for_each(|(_, spec, change)| shard.change(spec, *change));
                }
                Turn::Sample(at) => {
                    if !self.sample(number, shard, boards.next(), at, watch.as_deref_mut()) {
                        return at;
                    }
                }
                Turn::End => break,
            }
        }
        if let Some(at) = timetable.end_sample() {
            self.sample(number, shard, boards.next(), at, watch);
        }
        timetable.reached[0].min(timetable.until)
    }

    /// Takes a sample of one shard, and hands those of all on to who watches. False if a thread has panicked.
    fn sample(
        self,
        number: usize,
        shard: &mut Shard,
        board: Option<&Board>,
        at: u64,
        watch: Option<&mut Watch<'_>>,
    ) -> bool {
        let Some(board) = board else { return false };
        shard.sample(&mut lock(&board.shards[number].samples));
        let together = self.barrier.wait();
        if let Some(watch) = watch.filter(|_| together) {
            watch.sample(board, at);
        }
        together
    }
}
