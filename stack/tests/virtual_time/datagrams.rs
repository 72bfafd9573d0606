//! Datagrams: over a channel that does its worst, and beside messages; what a flood of them costs.

use crate::datagram_model;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn datagrams_arrive_at_most_as_often_as_their_packets(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        datagram_model::datagrams_arrive_at_most_as_often_as_their_packets(&bytes);
    }

    #[test]
    fn all_datagrams_arrive_where_nothing_is_lost(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        datagram_model::all_datagrams_arrive_where_nothing_is_lost(&bytes);
    }
}

#[test]
fn datagrams_and_messages_take_turns() {
    datagram_model::datagrams_and_messages_take_turns();
}

#[test]
fn a_process_that_receives_only_datagrams_answers_messages_with_bad_pid() {
    datagram_model::a_process_that_receives_only_datagrams_answers_messages();
}

#[test]
fn a_flood_of_datagrams_takes_no_memory_and_causes_no_packet() {
    datagram_model::a_flood_takes_no_memory_and_causes_no_packet();
}
