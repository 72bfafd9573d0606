//! The requirements on every load balancer, and those on its kind.

use crate::table;
use proptest::prelude::*;
use std::collections::VecDeque;
use weft_stack::rng::Rng;
use weft_stack::spray::registry::BALANCERS;
use weft_stack::spray::{
    Entropy, LbChoice, PathContext, PathFeedback, PathSelector, Selector, SelectorInput,
};
use weft_stack::{Span, Time};

const FEEDBACK: [PathFeedback; 4] =
    [PathFeedback::Good, PathFeedback::Ecn, PathFeedback::Nack, PathFeedback::Timeout];

fn choices() -> Vec<LbChoice> {
    let mut all: Vec<LbChoice> = BALANCERS.iter().map(|info| LbChoice::parse(info.name).unwrap()).collect();
    all.push(LbChoice::custom("boxed", |input| Box::new(LbChoice::parse("reps").unwrap().build(input))));
    all
}

fn input(paths: u16, trimming: bool, rng: Rng) -> SelectorInput {
    SelectorInput { paths, trimming, base_rtt: Span::from_us(12), rng }
}

fn only(names: &[&str]) -> Vec<LbChoice> {
    names.iter().map(|name| LbChoice::parse(name).unwrap()).collect()
}

fn packet(now: Time, sent: u64) -> PathContext {
    PathContext { now, sent, window_packets: 32, retransmission: false }
}

/// One event at a selector.
#[derive(Clone, Copy, Debug)]
enum Step {
    Send,
    Feedback { entropy: u16, kind: usize },
    Wait { us: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Send),
        3 => (0..300u16, 0..FEEDBACK.len()).prop_map(|(entropy, kind)| Step::Feedback { entropy, kind }),
        1 => (any::<u16>(), 0..FEEDBACK.len()).prop_map(|(entropy, kind)| Step::Feedback { entropy, kind }),
        1 => (0..12_000u64).prop_map(|us| Step::Wait { us }),
    ];
    prop::collection::vec(step, 0..400)
}

fn play(selector: &mut Selector, start: Time, steps: &[Step]) -> Vec<Entropy> {
    let mut now = start;
    let mut sent = Vec::new();
    for step in steps {
        match *step {
            Step::Send => sent.push(selector.next(&packet(now, sent.len() as u64))),
            Step::Feedback { entropy, kind } => selector.feedback(now, Entropy(entropy), FEEDBACK[kind]),
            Step::Wait { us } => now += Span::from_us(us),
        }
    }
    sent
}

proptest! {
    #[test]
    fn entropies_stay_in_range_and_repeat_for_a_seed(
        paths in prop_oneof![1..300u16, Just(16_384u16), Just(u16::MAX)],
        trimming in any::<bool>(),
        seed in any::<u64>(),
        start in prop_oneof![Just(0u64), Just(u64::MAX - 5_000_000_000)],
        steps in steps(),
    ) {
        for choice in choices() {
            let run = || {
                let mut selector = choice.build(input(paths, trimming, Rng::new(seed, 1)));
                play(&mut selector, Time::from_ps(start), &steps)
            };
            let sent = run();
            prop_assert!(sent.iter().all(|e| e.0 < paths), "{choice:?} left the range of {paths}: {sent:?}");
            prop_assert_eq!(&sent, &run(), "{:?} does not repeat", choice);
        }
    }

    #[test]
    fn ecmp_never_changes(seed in any::<u64>(), paths in 1..=u16::MAX, steps in steps()) {
        let mut ecmp = LbChoice::parse("ecmp").unwrap().build(input(paths, true, Rng::new(seed, 0)));
        let first = ecmp.next(&packet(Time::ZERO, 0));
        prop_assert!(play(&mut ecmp, Time::ZERO, &steps).iter().all(|e| *e == first));
    }
}

#[test]
fn zero_paths_count_as_one() {
    for choice in choices() {
        let mut selector = choice.build(input(0, true, Rng::new(0, 0)));
        for sent in 0..20 {
            assert_eq!(selector.next(&packet(Time::ZERO, sent)), Entropy(0), "{choice:?}");
        }
    }
}

#[test]
fn ecmp_differs_between_connections() {
    let ecmp = LbChoice::parse("ecmp").unwrap();
    let pick = |stream| ecmp.build(input(64, true, Rng::new(7, stream))).next(&packet(Time::ZERO, 0)).0;
    let mut used: Vec<u16> = (0..64).map(pick).collect();
    used.sort_unstable();
    used.dedup();
    assert!(used.len() > 32, "64 connections share {} entropies", used.len());
}

#[test]
fn ecmp_takes_the_entropy_that_it_is_given() {
    let mut ecmp = LbChoice::parse("ecmp").unwrap();
    ecmp.set("entropy", "70").unwrap();
    for (paths, expected) in [(128, 70), (64, 6), (1, 0), (0, 0)] {
        let mut selector = ecmp.build(input(paths, true, Rng::new(7, 1)));
        assert_eq!(selector.next(&packet(Time::ZERO, 0)), Entropy(expected), "of {paths}");
    }
}

/// Number of packets on each path if no feedback ever arrives.
fn without_feedback(choice: &LbChoice, paths: u16, packets: usize) -> Vec<usize> {
    let mut selector = choice.build(input(paths, true, Rng::new(11, 3)));
    let mut count = vec![0; usize::from(paths)];
    for sent in 0..packets {
        count[usize::from(selector.next(&packet(Time::ZERO, sent as u64)).0)] += 1;
    }
    count
}

#[test]
fn balancers_with_rounds_spray_exactly_evenly_without_feedback() {
    for choice in only(&["oblivious", "round-robin", "bitmap", "mixed"]) {
        for paths in [1, 4, 63, 64, 100, 256] {
            let count = without_feedback(&choice, paths, usize::from(paths) * 50);
            assert!(count.iter().all(|n| *n == 50), "{choice:?} over {paths}: {count:?}");
        }
    }
}

#[test]
fn reps_sprays_evenly_within_chance_without_feedback() {
    for paths in [4u16, 63, 64] {
        let count = without_feedback(&only(&["reps"])[0], paths, usize::from(paths) * 400);
        // 400 ± 5 standard deviations.
        assert!(count.iter().all(|n| (300..=500).contains(n)), "over {paths}: {count:?}");
    }
}

/// A fabric on the level of paths. Feedback arrives a window later; one path may be bad. One acknowledgement in
/// ten is marked although its path is good; otherwise balancers that recycle would never explore.
struct Fabric {
    selector: Selector,
    in_flight: VecDeque<Entropy>,
    noise: Rng,
    now: Time,
    sent: u64,
}

const PATHS: u16 = 16;
const WINDOW: usize = 32;
const PACKET_TIME: Span = Span::from_us(1);

impl Fabric {
    fn new(choice: &LbChoice, trimming: bool) -> Fabric {
        let selector = choice.build(input(PATHS, trimming, Rng::new(21, 0)));
        Fabric { selector, in_flight: VecDeque::new(), noise: Rng::new(22, 0), now: Time::ZERO, sent: 0 }
    }

    /// Sends `packets` and returns the number of packets on each path.
    fn run(&mut self, packets: usize, bad: Option<(Entropy, PathFeedback)>) -> Vec<usize> {
        let mut count = vec![0; usize::from(PATHS)];
        for _ in 0..packets {
            let entropy = self.selector.next(&packet(self.now, self.sent));
            count[usize::from(entropy.0)] += 1;
            self.sent += 1;
            self.now += PACKET_TIME;
            self.in_flight.push_back(entropy);
            if self.in_flight.len() >= WINDOW {
                self.answer(bad);
            }
        }
        count
    }

    fn answer(&mut self, bad: Option<(Entropy, PathFeedback)>) {
        let entropy = self.in_flight.pop_front().expect("a full window");
        let innocent = if self.noise.chance(0.1) { PathFeedback::Ecn } else { PathFeedback::Good };
        let feedback = bad.filter(|(e, _)| *e == entropy).map_or(innocent, |(_, feedback)| feedback);
        self.selector.feedback(self.now, entropy, feedback);
    }
}

#[test]
fn balancers_with_feedback_avoid_a_bad_path_and_return_when_it_heals() {
    let bad = Entropy(5);
    // The part of a fair share that may still use the bad path: bitmap uses it again after as many rounds as the
    // feedback gave points (1, 4, 15).
    let limits = [(PathFeedback::Ecn, 0.75), (PathFeedback::Nack, 0.35), (PathFeedback::Timeout, 0.2)];
    for choice in only(&["reps", "bitmap", "mixed"]) {
        for (news, limit) in limits {
            for trimming in [true, false] {
                let case = format!("{choice:?}, {news:?}, trimming {trimming}");
                let mut fabric = Fabric::new(&choice, trimming);
                fabric.run(1_000, Some((bad, news)));
                let ill = fabric.run(40_000, Some((bad, news)))[usize::from(bad.0)];
                let fair = 40_000.0 / f64::from(PATHS);
                assert!((ill as f64) < limit * fair, "{case}: {ill} packets, fair were {fair}");

                fabric.run(20_000, None);
                let healed = fabric.run(40_000, None)[usize::from(bad.0)];
                assert!(
                    healed as f64 > 0.5 * fair,
                    "{case}: {healed} packets after healing, fair were {fair}"
                );
            }
        }
    }
}

#[test]
fn balancers_without_feedback_keep_spraying_evenly() {
    for choice in only(&["oblivious", "round-robin"]) {
        let count = Fabric::new(&choice, true).run(16_000, Some((Entropy(5), PathFeedback::Timeout)));
        assert!(count.iter().all(|n| *n == 1_000), "{choice:?}: {count:?}");
    }
}

#[test]
fn a_frozen_reps_does_not_explore() {
    let bad = Some((Entropy(9), PathFeedback::Nack));
    let mut fabric = Fabric::new(&only(&["reps"])[0], true);
    fabric.run(2_000, None);
    let exploring = fabric.run(5_000, bad);
    assert!(exploring[9] > 0, "one packet in ten takes a random path: {exploring:?}");

    fabric.selector.feedback(fabric.now, Entropy(9), PathFeedback::Timeout);
    // The window in flight may still use the bad path; after that, no packet does.
    fabric.run(2 * WINDOW, bad);
    let frozen = fabric.run(9_500, bad);
    assert_eq!(frozen[9], 0, "{frozen:?}");
    let thawed = fabric.run(5_000, bad);
    assert!(thawed[9] > 0, "no exploration 10 ms later: {thawed:?}");
}

#[test]
fn balancers_have_little_state() {
    assert!(size_of::<Selector>() <= 96, "{} bytes", size_of::<Selector>());
    const MANY: u16 = 16_384;
    for choice in choices() {
        let mut selector = choice.build(input(MANY, true, Rng::new(1, 1)));
        for sent in 0..100_000 {
            selector.next(&packet(Time::ZERO, sent));
        }
        assert_eq!(selector.heap_bytes(), 0, "{choice:?} allocates without feedback");

        for i in 0..200_000u32 {
            let entropy = Entropy((i % u32::from(MANY)) as u16);
            selector.feedback(Time::ZERO, entropy, FEEDBACK[i as usize % FEEDBACK.len()]);
        }
        for _ in 0..200_000 {
            selector.feedback(Time::ZERO, Entropy(3), PathFeedback::Good);
        }
        // Per entropy half a byte of penalty and two bytes of queue, whose growth may double its capacity.
        let limit = usize::from(MANY) / 2 + usize::from(MANY) * 4;
        assert!(selector.heap_bytes() <= limit, "{choice:?}: {} bytes", selector.heap_bytes());
    }
}

#[test]
fn settings_are_checked_and_reach_the_balancer() {
    let mut reps = LbChoice::parse("reps").unwrap();
    reps.set("ring", "16").unwrap();
    let mut selector = reps.build(input(64, true, Rng::new(1, 1)));
    selector.feedback(Time::ZERO, Entropy(3), PathFeedback::Good);
    assert_eq!(selector.heap_bytes(), 32);
    let refused = |key, value| reps.clone().set(key, value).unwrap_err().to_string();
    assert_eq!(
        refused("rings", "4"),
        "reps has no parameter 'rings' (to set to '4'); it has: ring, freeze, explore"
    );
    assert_eq!(
        refused("ring", "0"),
        "reps: ring is '0', expected a whole number from 1 to 64; parameters are: ring, freeze, explore"
    );
    assert!(
        LbChoice::parse("oblivious")
            .unwrap()
            .set("ring", "4")
            .unwrap_err()
            .to_string()
            .ends_with("it has: none")
    );
}

#[test]
fn the_table_is_well_formed() {
    table::check_rows(BALANCERS);
    for row in BALANCERS {
        table::check_settings(row.part);
        assert_eq!(LbChoice::parse(row.name).unwrap().name(), row.name);
    }
    let error = LbChoice::parse("REPS2").unwrap_err();
    assert_eq!(
        error.to_string(),
        "unknown load balancer 'REPS2'; there are: ecmp, oblivious, random, round-robin, plb, reps, bitmap, mixed"
    );
    assert_eq!(LbChoice::default().name(), "mixed");
}
