//! Random calls between endpoints of two servers: every operation ends once, and as a model says.

mod common;

use common::inside;
use common::model::play_at_servers;
use common::server::servers;

#[test]
fn random_calls_end_as_a_model_says_through_servers() {
    if !inside("random_calls_end_as_a_model_says_through_servers") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 31);
    for seed in 1..=4 {
        play_at_servers(seed, &servers);
    }
}
