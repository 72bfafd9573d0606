//! Peers that die, paths that swallow long packets, and targets that take nothing: every connection fails with the
//! stated error within the stated bound, whatever the number of connections, the congestion control and the switches.
//! Timers are those of production.

use std::collections::VecDeque;

use crate::harness::{MTU, Pair, Transit, fep, params};
use weft_stack::buffer::Buffer;
use weft_stack::cc::registry::all_names;
use weft_stack::cc::{CcChoice, CcParams};
use weft_stack::fep::{Completion, Failure, FepConfig, Limits, Send, SendError};
use weft_stack::pdc::PdcConfig;
use weft_stack::{Span, Time};

/// Propagation time in each direction.
const DELAY: Span = Span::from_us(2);

/// The length of each message, bytes.
const LEN: u32 = 64 * 1024;

#[derive(Clone, Copy, Debug)]
struct Case {
    cc: &'static str,
    trimming: bool,
    connections: usize,
}

/// Every algorithm with and without trimming, for each number of connections.
fn cases(connections: &[usize]) -> impl Iterator<Item = Case> {
    let with = |cc, trimming| connections.iter().map(move |&connections| Case { cc, trimming, connections });
    let names = all_names().into_iter().map(|name| &*name.leak());
    names.flat_map(move |name| [true, false].into_iter().flat_map(move |trimming| with(name, trimming)))
}

fn config(case: Case) -> FepConfig {
    let params = CcParams { trimming: case.trimming, ..params() };
    FepConfig::new(&CcChoice::parse(case.cc).unwrap(), &params)
}

/// How long a peer may be silent.
fn silence() -> Span {
    let config = PdcConfig::default();
    config.silence(config.rto_init)
}

/// Two endpoints, the packets between them with their arrival times, and when which message ended.
struct Run {
    case: Case,
    pair: Pair,
    flying: VecDeque<(Time, Transit)>,
    ended: Vec<(Time, Result<(), SendError>)>,
    /// Packets that endpoint 0 has sent.
    sent: u64,
    /// When a packet last arrived at endpoint 1 that was new to it.
    progress_at: Time,
}

impl Run {
    /// Each connection has one message to send. `target` is the configuration of its receiver, which has posted no
    /// receive.
    fn new(case: Case, target: FepConfig) -> Run {
        let feps = [fep(0, config(case), 3, Time::ZERO), fep(1, target, 3, Time::ZERO)];
        let mut pair = Pair::of(feps, Time::ZERO);
        for context in 0..case.connections as u64 {
            let connection = pair.connect();
            let send = Send { buffer: Buffer::Virtual(LEN), tag: None, header_data: 0, context };
            pair.post_send(connection, send);
        }
        let (flying, ended) = (VecDeque::new(), Vec::new());
        Run { case, pair, flying, ended, sent: 0, progress_at: Time::ZERO }
    }

    /// Runs until `over` is true, or `limit` has passed. Packets that `passes` refuses are lost, those
    /// on their way included.
    fn until(
        &mut self,
        limit: Span,
        mut passes: impl FnMut(&Transit) -> bool,
        mut over: impl FnMut(&Run) -> bool,
    ) {
        let begin = self.pair.now;
        loop {
            self.transmit();
            self.collect();
            if over(self) {
                return;
            }
            let arrival = self.flying.front().map(|(at, _)| *at);
            let Some(next) = arrival.into_iter().chain(self.pair.next_timer()).reduce(Time::earliest) else {
                return;
            };
            self.pair.now = next.latest(self.pair.now);
            let past = self.pair.now.since(begin) > limit;
            assert!(
                !past,
                "{:?} after {limit}: {:#?}",
                self.case,
                self.pair.explain().iter().take(3).collect::<Vec<_>>()
            );
            self.arrive(&mut passes);
            (0..2).for_each(|side| self.pair.feps[side].on_timeout(self.pair.now));
        }
    }

    fn transmit(&mut self) {
        for side in [0, 1] {
            while let Some(transit) = self.pair.transmit(side) {
                self.sent += u64::from(side == 0);
                self.flying.push_back((self.pair.now + DELAY, transit));
            }
        }
    }

    /// At most one packet arrives.
    fn arrive(&mut self, passes: &mut impl FnMut(&Transit) -> bool) {
        let has_arrived = self.flying.front().is_some_and(|(at, _)| self.pair.now.is_at_or_after(*at));
        if let Some((_, transit)) = has_arrived.then(|| self.flying.pop_front()).flatten() {
            let before = self.received();
            if passes(&transit) {
                self.pair.arrive(&transit);
            }
            if self.received() > before {
                self.progress_at = self.pair.now;
            }
        }
    }

    /// Number of packets that have arrived at endpoint 1.
    fn received(&self) -> u64 {
        self.pair.feps[1].counters().data_received
    }

    fn collect(&mut self) {
        for completion in self.pair.completions(0) {
            if let Completion::Sent { result, .. } = completion {
                self.ended.push((self.pair.now, result));
            }
        }
    }

    fn all_ended(&self) -> bool {
        self.ended.len() == self.case.connections
    }

    /// Checks that every message that was not delivered has failed, after a time in the range that `bounds_of` gives for
    /// its failure; the time of the last progress, `since`, may differ a little from connection to connection.
    fn check(&self, since: Time, bounds_of: impl Fn(&Failure) -> Option<[Span; 2]>) {
        assert!(self.all_ended(), "{:?}: {} have ended", self.case, self.ended.len());
        let mut failed = 0;
        for (at, result) in &self.ended {
            let Err(error) = result else { continue };
            failed += 1;
            let after = at.since(since);
            let bounds = match error {
                SendError::Failed(failure) => bounds_of(failure),
                _ => None,
            };
            let in_time = bounds
                .is_some_and(|[least, most]| after >= least.mul_f64(0.99) && after <= most.mul_f64(1.1));
            assert!(in_time, "{:?}: after {after}: {error}", self.case);
        }
        assert!(failed > 0, "{:?}: nothing was left to do", self.case);
        if failed == self.case.connections {
            assert!(self.pair.leaks(0).is_empty(), "{:?}: {:?}", self.case, self.pair.leaks(0));
        }
    }
}

fn silent(failure: &Failure) -> Option<[Span; 2]> {
    matches!(failure, Failure::NoAnswer { .. }).then(|| [silence(); 2])
}

#[test]
fn connections_to_a_peer_that_never_answers_fail_together() {
    for case in cases(&[1, 8, 64, 512]) {
        let mut run = Run::new(case, config(case));
        run.until(silence().times(2), |_| false, Run::all_ended);
        run.check(Time::ZERO, silent);
    }
}

#[test]
fn connections_to_a_peer_that_dies_fail_together() {
    for case in cases(&[1, 8, 64, 512]) {
        let mut run = Run::new(case, config(case));
        let half = case.connections as u64 * u64::from(LEN / MTU) / 2;
        run.until(Span::from_ms(100), |_| true, |run| run.received() >= half);
        let died = run.pair.now;
        run.until(silence().times(2), |_| false, Run::all_ended);
        run.check(died, silent);
    }
}

/// Long packets get lost, and short ones and the answers to them pass.
#[test]
fn a_path_that_swallows_long_packets_is_given_up_in_time() {
    for case in cases(&[1, 8]) {
        let config = config(case);
        let bound = config.busy_timeout.bound().expect("there is one by default");
        let mut run = Run::new(case, config);
        let half = case.connections as u64 * u64::from(LEN / MTU) / 2;
        run.until(Span::from_ms(100), |_| true, |run| run.received() >= half);
        let sent = run.sent;
        let short = |transit: &Transit| transit.packet.payload_len < MTU;
        run.until(bound.times(2), short, Run::all_ended);
        let since = run.progress_at;
        run.check(since, |failure| match failure {
            // Where switches trim nobody probes, so that the peer may fall silent, at once or when it has no more credit.
            Failure::NoAnswer { .. } => case.trimming.then(|| [silence(), bound]),
            Failure::NoProgress { len: MTU, .. } => Some([bound; 2]),
            _ => None,
        });
        let vain = (run.sent - sent) / case.connections as u64;
        let each = vain / u64::from(LEN / MTU);
        assert!(each < 1_000, "{case:?}: each packet sent {each} times in vain");
    }
}

/// A target whose application posts no receive takes what fits into its buffer, and refuses the rest.
#[test]
fn a_target_that_takes_nothing_is_given_up_in_time_and_with_few_packets() {
    for case in cases(&[1, 8, 64]) {
        let target = FepConfig {
            limits: Limits { unexpected_bytes_per_peer: u64::from(LEN / 2), ..Limits::default() },
            ..config(case)
        };
        let bound = target.busy_timeout.bound().expect("there is one by default");
        let mut run = Run::new(case, target);
        run.until(bound.times(2), |_| true, Run::all_ended);
        run.check(run.progress_at, |failure| {
            matches!(failure, Failure::Busy { .. } | Failure::NoCredit { .. }).then_some([bound; 2])
        });
        let each = run.sent / case.connections as u64;
        assert!(each < 500, "{case:?}: {each} packets of each connection");
    }
}
