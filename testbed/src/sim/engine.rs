//! The event loop of a run: the windows of virtual time, and the threads that process them together.
//!
//! A packet takes at least a certain time from one node to the next, the lookahead. Within a window of that
//! length, no node can affect another, so each node can process the whole window independently, on any thread
//! (conservative parallel simulation, Chandy and Misra 1979). This is also faster on one thread: the state of
//! a host is loaded into the cache once per window, not once per packet.
//!
//! A folded Clos has two sides: hosts and every second tier of switches on one, the other tiers on the other.
//! Links only join one side to the other. Once one side has reached a time, the other can advance to that
//! time plus the lookahead. So the sides take turns, and each turn advances a side by twice the lookahead.
//! A graph that cannot be divided so has one side, which advances by the lookahead.
//!
//! The length of the windows follows from the topology, not from the number of threads, and a window depends
//! only on the one before it. So any number of threads gives the same results.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use weft_cc::{Span, Time};
use weft_stack::event::Record;

use super::barrier::{Barrier, Guard};
use super::build::System;
use super::faults::LinkChange;
use super::link::LinkSpec;
use super::packets::ContentMail;
use super::report::RunProgress;
use super::sample::Sampling;
use super::shard::{Samples, Shard, Side};
use super::trace::{self, Tracing};
use super::wires::{Crossing, NEVER, Wires};

/// Decides which side advances next, and how far.
struct Timetable<'a> {
    lookahead: u64,
    /// Whether all nodes are on the even side.
    one_side: bool,
    /// The time that each side has reached.
    reached: [u64; 2],
    side: Side,
    changes: &'a [(u64, LinkSpec, LinkChange)],
    sample_every: Option<u64>,
    next_sample: u64,
    last_sample: u64,
    /// Whether the run goes on after its last connection has closed.
    settles: bool,
    /// The last instant of the run.
    until: u64,
}

/// The next step of the run.
enum Turn<'a> {
    /// A side advances from `start` to just before `end`.
    Window { side: Side, start: u64, end: u64 },
    /// Links change.
    Changes(&'a [(u64, LinkSpec, LinkChange)]),
    /// Samples are taken of the interval from `since` to `at`.
    Sample { since: u64, at: u64 },
    /// The run is over.
    End,
}

impl<'a> Timetable<'a> {
    fn new(system: &'a System, until: Option<Span>, sample_every: Option<Span>) -> Timetable<'a> {
        let sample_every = sample_every.map(|every| every.as_ps().max(1));
        Timetable {
            lookahead: system.lookahead,
            one_side: system.one_side,
            reached: [0, 0],
            side: Side::Even,
            changes: &system.changes,
            sample_every,
            next_sample: sample_every.unwrap_or(NEVER),
            last_sample: 0,
            settles: system.settles,
            until: until.map_or(NEVER, Span::as_ps).min(NEVER - 1),
        }
    }

    /// The next step, given that no event happens before `next`.
    fn turn(&mut self, next: u64) -> Turn<'a> {
        let change = self.changes.first().map_or(NEVER, |(at, ..)| *at);
        // Both sides must reach `stop` before either goes further.
        let stop = change.min(self.due_sample()).min(self.until + 1);
        for reached in &mut self.reached {
            *reached = next.min(stop).max(*reached);
        }
        if self.reached.iter().all(|reached| *reached >= stop) {
            return self.stop(change, next);
        }
        if self.one_side {
            let start = self.reached[0];
            let end = start.saturating_add(self.lookahead).min(stop);
            self.reached = [end, end];
            return Turn::Window { side: Side::Even, start, end };
        }
        let side = self.side;
        let (own, other) = (side as usize, 1 - side as usize);
        self.side = side.other();
        let start = self.reached[own];
        let end = self.reached[other].saturating_add(self.lookahead).min(stop);
        self.reached[own] = end.max(start);
        Turn::Window { side, start, end }
    }

    /// The last connection closed at `done`. Some nodes are already further by up to two lookaheads: all
    /// nodes advance to that bound, so that the end does not depend on the windows.
    fn finish(&mut self, done: u64) {
        self.until = self.until.min(done.saturating_add(2 * self.lookahead));
    }

    /// The end of a run that goes no further. No event is later: one side may be ahead of the other, and no time of the
    /// report may be before what has happened there.
    fn end(&self) -> u64 {
        let [even, odd] = self.reached;
        even.max(odd).min(self.until)
    }

    /// Ends the run early. One side may be further than the other, which then still catches up.
    fn cut_short(&mut self) {
        self.until = self.end();
    }

    /// When the next sample is due. A sample at the end of the run must include the events of that instant,
    /// so [`Timetable::end_sample`] takes it.
    fn due_sample(&self) -> u64 {
        if self.next_sample < self.until { self.next_sample } else { NEVER }
    }

    /// The interval of the last sample of a finished run, which may be shorter than the regular one.
    fn end_sample(&self) -> Option<(u64, u64)> {
        let end = self.end();
        let every = self.sample_every.filter(|_| end > self.last_sample)?;
        Some(((end - 1) / every * every, end))
    }

    fn stop(&mut self, change: u64, next: u64) -> Turn<'a> {
        let at = self.reached[0];
        if at == self.due_sample()
            && at < self.until
            && let Some(every) = self.sample_every
        {
            // Skips the intervals in which nothing happens.
            let idle = next.min(self.until).saturating_sub(at) / every;
            self.next_sample = at.saturating_add((idle + 1).saturating_mul(every));
            self.last_sample = at;
            return Turn::Sample { since: at.saturating_sub(every), at };
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

/// The data that the threads exchange at the end of a window. Two of these alternate, so that a thread that
/// is ahead does not overwrite data that another has not read yet.
struct Exchange {
    shards: Vec<WindowResult>,
    /// The mailbox of each sending and receiving shard.
    mailboxes: Vec<Vec<Mutex<Mail>>>,
    /// Whether the run is to end early: all threads must see the same after the same window.
    stop: AtomicBool,
}

/// The packets that go from one shard to another.
#[derive(Default)]
struct Mail {
    packets: Vec<Crossing>,
    contents: ContentMail,
}

#[derive(Default)]
struct WindowResult {
    next: AtomicU64,
    open: AtomicU64,
    events: AtomicU64,
    done: AtomicU64,
    last_close: AtomicU64,
    samples: Mutex<Samples>,
    records: Mutex<Vec<Record>>,
}

impl Exchange {
    fn new(shards: usize) -> Exchange {
        let boxes = |_| (0..shards).map(|_| Mutex::new(Mail::default())).collect();
        Exchange {
            shards: (0..shards).map(|_| WindowResult::default()).collect(),
            mailboxes: (0..shards).map(boxes).collect(),
            stop: AtomicBool::new(false),
        }
    }

    /// Publishes the results of shard `from` after a window. Nothing happens in that shard before `next`.
    fn post(&self, from: usize, shard: &mut Shard, next: u64) {
        let result = &self.shards[from];
        let Wires { outboxes, packets, .. } = &mut shard.wires;
        for ((outbox, contents), mailbox) in
            outboxes.iter_mut().zip(&mut packets.mail).zip(&self.mailboxes[from])
        {
            let mut mail = lock(mailbox);
            std::mem::swap(&mut mail.packets, outbox);
            std::mem::swap(&mut mail.contents, contents);
        }
        if let Some(recorder) = &shard.recorder {
            recorder.take_into(&mut lock(&result.records));
        }
        // The barrier that follows orders these stores.
        result.next.store(next, Ordering::Relaxed);
        result.open.store(shard.flows.open, Ordering::Relaxed);
        result.events.store(shard.events, Ordering::Relaxed);
        result.done.store(shard.flows.done, Ordering::Relaxed);
        result.last_close.store(shard.flows.last_close, Ordering::Relaxed);
    }

    /// Delivers the packets that the other shards have sent to shard `to`.
    fn collect(&self, to: usize, shard: &mut Shard) {
        for (from, mailboxes) in self.mailboxes.iter().enumerate() {
            let mut mail = lock(&mailboxes[to]);
            shard.wires.packets.receive(from, &mut mail.contents);
            shard.wires.receive(&mut mail.packets);
        }
    }

    fn next(&self) -> u64 {
        self.shards.iter().map(|result| result.next.load(Ordering::Relaxed)).min().unwrap_or(NEVER)
    }

    fn last_close(&self) -> u64 {
        self.shards.iter().map(|result| result.last_close.load(Ordering::Relaxed)).max().unwrap_or(0)
    }

    fn sum(&self, of: impl Fn(&WindowResult) -> &AtomicU64) -> u64 {
        self.shards.iter().map(|result| of(result).load(Ordering::Relaxed)).sum()
    }
}

/// Ignores poisoning: a panic in another thread ends the run, so no other thread uses the data afterwards.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The caller's callbacks during a run.
pub(super) struct Watch<'a> {
    pub(super) progress: Option<&'a mut dyn FnMut(&RunProgress)>,
    pub(super) sampling: Option<Sampling<'a>>,
    pub(super) tracing: Option<Tracing<'a>>,
    pub(super) stop: Option<&'a AtomicBool>,
    pub(super) flows_total: u64,
}

/// Events between two calls of the progress callback.
const PROGRESS_INTERVAL: u64 = 1 << 16;

impl Watch<'_> {
    fn is_to_stop(&self) -> bool {
        self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    fn look(&mut self, exchange: &Exchange, now: u64, reported: &mut u64) {
        let events = exchange.sum(|result| &result.events);
        if let Some(progress) = self.progress.as_mut().filter(|_| events >= *reported) {
            *reported = events + PROGRESS_INTERVAL;
            let flows_done = exchange.sum(|result| &result.done);
            let now = Time::from_ps(now);
            progress(&RunProgress { now, flows_done, flows_total: self.flows_total, events });
        }
    }

    /// Passes the events of the last window on.
    fn trace(&mut self, exchange: &Exchange) {
        let Some(tracing) = &mut self.tracing else { return };
        let mut all = Vec::new();
        exchange.shards.iter().for_each(|result| all.append(&mut lock(&result.records)));
        if !all.is_empty() {
            trace::sort(&mut all);
            tracing.sink.records(&all);
        }
    }

    fn sample(&mut self, exchange: &Exchange, (since, at): (u64, u64)) {
        let Some(sampling) = &mut self.sampling else { return };
        let mut all = Samples::default();
        for result in &exchange.shards {
            let mut samples = lock(&result.samples);
            all.ports.append(&mut samples.ports);
            all.flows.append(&mut samples.flows);
        }
        all.ports.sort_unstable_by_key(|sample| sample.port);
        all.flows.sort_unstable_by_key(|sample| sample.flow);
        // The receiver's half of a flow, and the sender's.
        all.flows.dedup_by(|second, first| {
            let same = first.flow == second.flow;
            if same {
                first.received_bytes += second.received_bytes;
                first.sender = first.sender.or(second.sender);
            }
            same
        });
        sampling.sink.sample(Time::from_ps(since)..Time::from_ps(at), &all.ports, &all.flows);
    }
}

/// Runs the system to its end and returns the time of the end, ps.
pub(super) fn run(system: &mut System, until: Option<Span>, watch: &mut Watch<'_>) -> u64 {
    let every = watch.sampling.as_ref().map(|sampling| sampling.every);
    let mut shards = std::mem::take(&mut system.shards);
    let system_ref = &*system;
    let next = shards.iter().map(Shard::first).min().unwrap_or(NEVER);
    let exchanges = [Exchange::new(shards.len()), Exchange::new(shards.len())];
    let barrier = Barrier::new(shards.len());
    let threads = Threads { exchanges: &exchanges, barrier: &barrier };
    let end = std::thread::scope(|scope| {
        let (first, others) = shards.split_at_mut(1);
        for (shard, number) in others.iter_mut().zip(1..) {
            let timetable = Timetable::new(system_ref, until, every);
            scope.spawn(move || threads.drive(number, shard, timetable, next, None));
        }
        let timetable = Timetable::new(system_ref, until, every);
        threads.drive(0, &mut first[0], timetable, next, Some(watch))
    });
    system.shards = shards;
    end
}

/// Data shared by the threads of a run.
#[derive(Clone, Copy)]
struct Threads<'a> {
    exchanges: &'a [Exchange; 2],
    barrier: &'a Barrier,
}

impl Threads<'_> {
    /// Drives one shard to the end of the run, and returns the time of the end, ps.
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
        let mut exchanges = self.exchanges.iter().cycle();
        let mut over = false;
        while next != NEVER {
            match timetable.turn(next) {
                Turn::Window { side, start, end } => {
                    let Some(exchange) = exchanges.next() else { break };
                    let own_next = shard.run(side, start, end);
                    exchange.post(number, shard, own_next);
                    if let Some(watch) = &watch {
                        exchange.stop.store(watch.is_to_stop(), Ordering::Relaxed);
                    }
                    if !self.barrier.wait() {
                        return end;
                    }
                    exchange.collect(number, shard);
                    next = exchange.next();
                    if let Some(watch) = &mut watch {
                        watch.look(exchange, end, &mut reported);
                        watch.trace(exchange);
                    }
                    if exchange.stop.load(Ordering::Relaxed) {
                        timetable.cut_short();
                    }
                    if !over && !timetable.settles && exchange.sum(|result| &result.open) == 0 {
                        over = true;
                        timetable.finish(exchange.last_close());
                    }
                }
                Turn::Changes(changes) => {
                    changes.iter().for_each(|(_, spec, change)| shard.change(spec, *change));
                }
                Turn::Sample { since, at } => {
                    if !self.sample(number, shard, exchanges.next(), (since, at), watch.as_deref_mut()) {
                        return at;
                    }
                }
                Turn::End => break,
            }
        }
        if let Some(interval) = timetable.end_sample() {
            self.sample(number, shard, exchanges.next(), interval, watch);
        }
        timetable.end()
    }

    /// Takes a sample of one shard, of the interval between two times; the thread with `watch` passes the samples of all shards on. Returns
    /// false if a thread has panicked.
    fn sample(
        self,
        number: usize,
        shard: &mut Shard,
        exchange: Option<&Exchange>,
        interval: (u64, u64),
        watch: Option<&mut Watch<'_>>,
    ) -> bool {
        let Some(exchange) = exchange else { return false };
        shard.sample(&mut lock(&exchange.shards[number].samples));
        let together = self.barrier.wait();
        if let Some(watch) = watch.filter(|_| together) {
            watch.sample(exchange, interval);
        }
        together
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_does_not_end_before_what_the_side_ahead_has_done() {
        let mut timetable = Timetable {
            lookahead: 100,
            one_side: false,
            reached: [0, 0],
            side: Side::Even,
            changes: &[],
            sample_every: None,
            next_sample: NEVER,
            last_sample: 0,
            settles: false,
            until: 1_000,
        };
        let mut next = 0;
        for _ in 0..5 {
            let Turn::Window { start, end, .. } = timetable.turn(next) else { panic!("a window") };
            assert!(
                end > start && end <= timetable.end(),
                "events up to {end} ps, end {} ps",
                timetable.end()
            );
            next = start;
        }
        // Nor after the last instant that is simulated.
        while let Turn::Window { start, .. } = timetable.turn(next) {
            next = start;
        }
        assert_eq!(timetable.end(), 1_000);
    }
}
