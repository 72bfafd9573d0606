//! Random calls between endpoints of two servers: every operation ends once, and as a model says.

use crate::common::model::games::{play_at_servers, seeds};
use crate::common::server::servers;
use crate::common::{inside, inside_with};

#[test]
fn random_calls_end_as_a_model_says_through_servers() {
    if !inside("random_calls_end_as_a_model_says_through_servers") {
        return;
    }
    assert!(play_between(31, seeds(4)) > 0);
}

/// A quarter of 1 MiB takes one of the model's longest receives. The others wait for memory.
#[test]
fn random_calls_end_as_a_model_says_while_receives_wait_for_memory() {
    let name = "random_calls_end_as_a_model_says_while_receives_wait_for_memory";
    if !inside_with(name, &[("FI_WEFT_MEMORY", "1")]) {
        return;
    }
    play_between(33, seeds(12));
}

/// Plays each seed at two servers, hosts `first` and the next one.
/// Returns how many messages receives for many have got.
fn play_between(first: u8, seeds: std::ops::Range<u64>) -> usize {
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, first);
    seeds.map(|seed| play_at_servers(seed, &servers)).sum()
}
