//! Random cases that are the same in every run.

use std::cell::Cell;
use std::env;
use std::fmt::Debug;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Runs `property` on many cases, which are the same in every run, and returns their number. `WEFT_<name>_CASES` sets it,
/// `WEFT_<name>_SEED` draws others. The property returns how many packets, and bytes of payload, have arrived.
pub(super) fn explore<T: Debug>(
    name: &str,
    default: u32,
    choices: impl Strategy<Value = T>,
    property: impl Fn(T) -> (u64, u64),
) -> u32 {
    let number = |what: &str| {
        let variable = format!("WEFT_{name}_{what}");
        env::var(&variable).ok().map(|text| text.parse::<u32>().expect(&variable))
    };
    let cases = number("CASES").unwrap_or(default);
    let config = Config { cases, failure_persistence: None, max_shrink_time: 30_000, ..Config::default() };
    let mut seed = [5; 32];
    if let Some(number) = number("SEED") {
        seed[..4].copy_from_slice(&number.to_le_bytes());
    }
    let (packets, payload) = (Cell::new(0), Cell::new(0));
    let run = |choice| {
        let arrived = property(choice);
        packets.set(packets.get() + arrived.0);
        payload.set(payload.get() + arrived.1);
        Ok(())
    };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
        .run(&choices, run)
        .unwrap_or_else(|error| panic!("{error}"));
    // For scripts/soak.sh.
    println!("{cases} cases: {} packets, {} bytes", packets.get(), payload.get());
    cases
}
