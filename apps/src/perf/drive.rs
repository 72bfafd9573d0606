//! The loops that drive the ends of a test, and what both ends have in common.

use crate::Failure;
use crate::interrupt::Interrupt;
use weft::Endpoint;
use weft_cc::{Span, Time};
use weft_stack::worker::Clock;

/// How many of the other end's first retransmission timeouts it may need to notice that an answer was lost, and to ask
/// again: one more than one, as timers are not exact.
const TIMEOUTS: u64 = 2;
/// How long an end that a signal has interrupted waits for messages under way and for the other end's report.
const GRACE: Span = Span::from_ms(1000);
/// Lines of an explanation that are shown.
const LISTED_LINES: usize = 8;

/// One end of a test.
pub(super) trait Role {
    /// Takes the completions that a turn of the worker's loop has brought, and posts what comes next.
    ///
    /// # Errors
    /// The test has failed.
    fn step(&mut self, endpoint: &mut Endpoint, now: Time) -> Result<Step, Failure>;

    /// A turn took `span`, and there was something to do in it or not.
    fn turned(&mut self, span: Span, idle: bool);

    /// Begins to end the test early, with a report of what there is. The role is over in a later step.
    ///
    /// # Errors
    /// There is nobody to report to.
    fn interrupt(&mut self, endpoint: &mut Endpoint, now: Time) -> Result<(), Failure>;
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// There was something to do.
    Busy,
    /// There was nothing to do.
    Idle,
    /// The role is over.
    Done,
}

/// How a role has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// By itself.
    Complete,
    /// Because of a signal.
    Interrupted,
}

/// When a signal came, if one did.
#[derive(Clone, Copy, Debug, Default)]
struct Cut(Option<Time>);

impl Cut {
    /// Tells `role` of a signal that has just come.
    #[inline]
    fn check(
        &mut self,
        interrupt: &Interrupt,
        role: &mut impl Role,
        endpoint: &mut Endpoint,
        now: Time,
    ) -> Result<(), Failure> {
        if !interrupt.has_arrived() || self.0.is_some() {
            return Ok(());
        }
        self.0 = Some(now);
        role.interrupt(endpoint, now)
    }

    /// The result of a step of a role, which is over when it takes too long after a signal, or fails then.
    #[inline]
    fn apply(self, step: Result<Step, Failure>, now: Time) -> Result<Step, Failure> {
        match self.0 {
            Some(at) if step.is_err() || now.since(at) >= GRACE => Ok(Step::Done),
            _ => step,
        }
    }

    fn end(self) -> End {
        if self.0.is_some() { End::Interrupted } else { End::Complete }
    }
}

/// The clock that the endpoint's worker reads.
pub(super) fn clock(endpoint: &Endpoint) -> Clock {
    endpoint.worker().map_or_else(Clock::new, |worker| worker.clock())
}

/// Drives one end until its role is over, and the other end needs nothing more from it; that takes no longer than
/// `patience`, or [`GRACE`] after a signal.
///
/// # Errors
/// The test has failed.
pub(super) fn run(
    endpoint: &mut Endpoint,
    role: &mut impl Role,
    patience: Span,
    interrupt: &Interrupt,
) -> Result<End, Failure> {
    let clock = clock(endpoint);
    let mut now = clock.now();
    let (mut idle, mut cut) = (false, Cut::default());
    loop {
        let last = now;
        now = clock.now().latest(now);
        role.turned(now.since(last), idle);
        let turn = endpoint.turn_at(now);
        let step = cut.apply(role.step(endpoint, now), now)?;
        if step == Step::Done {
            let end = cut.end();
            if end == End::Complete {
                farewell(endpoint, now, patience, interrupt);
            }
            rise(endpoint);
            return Ok(end);
        }
        cut.check(interrupt, role, endpoint, now)?;
        idle = step == Step::Idle && turn.is_idle();
        rest(endpoint, now, !idle);
    }
}

/// Drives both ends in turn until both roles are over: then neither needs anything from the other. A signal interrupts
/// the first one, which tells the second one.
pub(super) fn run_both(
    endpoints: &mut [Endpoint; 2],
    first: &mut impl Role,
    second: &mut impl Role,
    interrupt: &Interrupt,
) -> Result<End, Failure> {
    // Each worker has a clock of its own, and its turn begins when that is read.
    let clocks = [clock(&endpoints[0]), clock(&endpoints[1])];
    let mut now = [clocks[0].now(), clocks[1].now()];
    let (mut idle, mut cut, mut steps) = (false, Cut::default(), [Step::Idle; 2]);
    while steps != [Step::Done; 2] {
        let last = now[0];
        let mut quiet = true;
        for at in 0..2 {
            now[at] = clocks[at].now().latest(now[at]);
            if at == 0 {
                first.turned(now[0].since(last), idle);
            }
            quiet &= endpoints[at].turn_at(now[at]).is_idle();
        }
        idle = quiet;
        if steps[0] != Step::Done {
            steps[0] = cut.apply(first.step(&mut endpoints[0], now[0]), now[0])?;
            cut.check(interrupt, first, &mut endpoints[0], now[0])?;
        }
        if steps[1] != Step::Done {
            // `cut` was set at a time of the first clock, so it is compared with that clock.
            steps[1] = cut.apply(second.step(&mut endpoints[1], now[1]), now[0])?;
        }
        idle &= !steps.contains(&Step::Busy);
    }
    Ok(cut.end())
}

#[inline]
fn rest(endpoint: &mut Endpoint, now: Time, busy: bool) {
    if let Some(worker) = endpoint.worker_mut() {
        worker.rest(now, busy, None);
    }
}

fn rise(endpoint: &mut Endpoint) {
    if let Some(worker) = endpoint.worker_mut() {
        worker.rise(None);
    }
}

/// Answers the other end's last packets. Its messages have arrived, but it does not know that if an acknowledgement
/// was lost: it has a PDC open then, and sends again. The same holds for the packet that closes its last PDC.
fn farewell(endpoint: &mut Endpoint, begin: Time, patience: Span, interrupt: &Interrupt) {
    let clock = clock(endpoint);
    let (mut now, mut last_frame) = (begin, begin);
    while now.since(begin) < patience && !interrupt.has_arrived() {
        let Some(worker) = endpoint.worker() else { return };
        let quiet = worker.fep().config().zones.longest_rto().times(TIMEOUTS);
        if worker.fep().open_targets() == 0 && now.since(last_frame) >= quiet {
            return;
        }
        now = clock.now().latest(now);
        let before = dropped(endpoint);
        let turn = endpoint.turn_at(now);
        if turn.received as u64 > dropped(endpoint) - before {
            last_frame = now;
        }
        while endpoint.next_completion().is_some() {}
        rest(endpoint, now, !turn.is_idle());
    }
}

/// Frames that the worker has dropped on arrival: nobody waits for an answer to them.
fn dropped(endpoint: &Endpoint) -> u64 {
    let counters = endpoint.worker().map(|worker| worker.counters());
    counters.map_or(0, |counters| counters.malformed + counters.misdirected + counters.strangers)
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

    /// The failure of a test with `peer`, which was silent while `what`; it lists what the endpoint waits for.
    pub(super) fn failure(&self, endpoint: &Endpoint, peer: &str, what: &str) -> Failure {
        let mut text = format!("nothing heard of {peer} for {} while {what}", self.patience);
        let reasons = endpoint.worker().map_or([None, None], |worker| {
            let unsent = worker.counters().unsendable + worker.counters().unresolved;
            let sending = worker.last_write_error().map(|e| format!("{unsent} packets were not sent: {e}"));
            let reading = worker.last_read_error().map(|e| format!("the last frame dropped on arrival: {e}"));
            [sending, reading]
        });
        let mut waits = endpoint.explain();
        if waits.is_empty() {
            // So the transport has nothing to give up, and this is the only bound on the wait.
            waits.push("no message to it waits for an acknowledgement".to_owned());
        }
        for line in waits.into_iter().take(LISTED_LINES).chain(reasons.into_iter().flatten()) {
            text += "\n  ";
            text += &line;
        }
        Failure::Run(text)
    }
}

#[cfg(test)]
mod tests;
