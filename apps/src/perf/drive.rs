//! The loops that drive ends of a test, and what they have in common.

use crate::Failure;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use weft_cc::{Span, Time};
use weft_stack::port::Port;
use weft_stack::worker::Worker;

/// How often the other end's first retransmission timeout it may need to notice that an answer was lost, and to ask
/// again: once more than one, as timers are not exact.
const TIMEOUTS: u64 = 2;
/// Lines of what waits for what that are shown.
const LISTED_LINES: usize = 8;

/// One end of a test.
pub(super) trait Role {
    /// Takes what a turn of the worker's loop has brought, and gives it what to do next.
    ///
    /// # Errors
    /// The test has failed.
    fn step<P: Port>(&mut self, worker: &mut Worker<P>, now: Time) -> Result<Step, Failure>;

    /// A turn took `span`, and there was something to do in it or not.
    fn turned(&mut self, span: Span, idle: bool);
}

/// What a step has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// There was something to do.
    Busy,
    /// There was nothing to do.
    Idle,
    /// The role is over.
    Done,
}

/// The signal that has asked this process to end, 0 before. One that ended it at once would leave sockets behind.
#[derive(Debug, Default)]
pub(super) struct Stop(Arc<AtomicUsize>);

impl Stop {
    /// Takes SIGINT and SIGTERM from now on. A second one ends the process at once, whatever it waits for.
    pub(super) fn on_signals() -> Result<Stop, Failure> {
        let (stop, again) = (Stop::default(), Arc::new(AtomicBool::new(false)));
        let register = |signal| {
            // In the order in which they are to act.
            flag::register_conditional_default(signal, Arc::clone(&again))?;
            flag::register(signal, Arc::clone(&again))?;
            flag::register_usize(signal, Arc::clone(&stop.0), signal as usize)
        };
        for signal in [SIGINT, SIGTERM] {
            register(signal).map_err(|error| Failure::Run(format!("signals: {error}")))?;
        }
        Ok(stop)
    }

    fn check(&self) -> Result<(), Failure> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            // What a shell reports of a command that a signal has ended.
            signal => {
                Err(Failure::Interrupted { text: "interrupted".to_owned(), status: 128 + signal as u8 })
            }
        }
    }
}

/// Drives one end until its role is over, and the other end needs nothing more from it; that takes no longer than
/// `patience`.
///
/// # Errors
/// The test has failed, or `stop` came.
pub(super) fn run<P: Port>(
    worker: &mut Worker<P>,
    role: &mut impl Role,
    patience: Span,
    stop: &Stop,
) -> Result<(), Failure> {
    let mut now = worker.clock().now();
    let mut idle = false;
    loop {
        let last = now;
        now = worker.clock().now().latest(now);
        role.turned(now.since(last), idle);
        let progress = worker.poll_at(now);
        let step = role.step(worker, now)?;
        stop.check()?;
        if step == Step::Done {
            farewell(worker, now, patience, stop);
            worker.rise(None);
            return Ok(());
        }
        idle = step == Step::Idle && progress.is_idle();
        worker.rest(now, !idle, None);
    }
}

/// Drives both ends in turn until both roles are over: then neither needs anything from the other.
pub(super) fn run_both<P: Port>(
    workers: &mut [Worker<P>; 2],
    first: &mut impl Role,
    second: &mut impl Role,
) -> Result<(), Failure> {
    let clock = workers[0].clock();
    let mut now = clock.now();
    let (mut idle, mut steps) = (false, [Step::Idle; 2]);
    while steps != [Step::Done; 2] {
        let last = now;
        now = clock.now().latest(now);
        first.turned(now.since(last), idle);
        idle = true;
        for worker in workers.iter_mut() {
            idle &= worker.poll_at(now).is_idle();
        }
        if steps[0] != Step::Done {
            steps[0] = first.step(&mut workers[0], now)?;
        }
        if steps[1] != Step::Done {
            steps[1] = second.step(&mut workers[1], now)?;
        }
        idle &= !steps.contains(&Step::Busy);
    }
    Ok(())
}

/// Answers what the other end still has to say. Its last messages have arrived, but it may not know that, if an
/// acknowledgement was lost: it has a PDC open then, and sends again. When its last PDC is closed, that may be what it
/// does not know.
fn farewell<P: Port>(worker: &mut Worker<P>, begin: Time, patience: Span, stop: &Stop) {
    let quiet = worker.fep().config().pdc.rto_init.times(TIMEOUTS);
    let (mut now, mut last_frame) = (begin, begin);
    while now.since(begin) < patience
        && stop.check().is_ok()
        && (worker.fep().open_targets() > 0 || now.since(last_frame) < quiet)
    {
        now = worker.clock().now().latest(now);
        let progress = worker.poll_at(now);
        if progress.received > 0 {
            last_frame = now;
        }
        while worker.fep_mut().poll_completion().is_some() {}
        worker.rest(now, !progress.is_idle(), None);
    }
}

/// Notices when nothing is heard of the other end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    patience: Span,
    last: Time,
    seen: u64,
}

impl Silence {
    /// Begins to listen.
    pub(super) fn new(patience: Span, now: Time) -> Silence {
        Silence { patience, last: now, seen: 0 }
    }

    /// Whether nothing has been heard for too long; `heard` counts what has been, from the beginning.
    #[inline]
    pub(super) fn is_too_long(&mut self, heard: u64, now: Time) -> bool {
        if heard != self.seen {
            self.seen = heard;
            self.last = now;
        }
        now.since(self.last) >= self.patience
    }

    /// Listens anew.
    pub(super) fn restart(&mut self, now: Time) {
        self.last = now;
    }

    /// That `peer` has fallen silent while `what`, and what waits for it.
    pub(super) fn failure<P: Port>(&self, worker: &Worker<P>, now: Time, peer: &str, what: &str) -> Failure {
        let mut text = format!("nothing heard of {peer} for {} while {what}", self.patience);
        let counters = worker.counters();
        let reasons = [
            worker
                .last_write_error()
                .map(|e| format!("{} packets were not sent: {e}", counters.unsendable + counters.unresolved)),
            worker.last_read_error().map(|e| format!("the last frame dropped on arrival: {e}")),
        ];
        let waits = worker.fep().explain(now);
        for line in waits.into_iter().take(LISTED_LINES).chain(reasons.into_iter().flatten()) {
            text += "\n  ";
            text += &line;
        }
        Failure::Run(text)
    }
}

#[cfg(test)]
mod tests;
