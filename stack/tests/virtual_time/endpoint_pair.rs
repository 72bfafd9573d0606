//! Two endpoints over a channel that loses, copies, reorders and trims packets at random, and against forged packets.

use crate::endpoint_model;
use proptest::prelude::*;

use crate::explore::explore;

/// Bytes that are printed in one line.
#[derive(Clone)]
struct Bytes(Vec<u8>);

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

#[test]
fn every_message_arrives_once_over_any_channel() {
    let choices = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..300),
        prop::collection::vec(any::<u8>(), 0..3_000),
        // These bytes forge no packets, so that the check for leaks is stricter.
        prop::collection::vec(0u8..30, 0..2_000),
    ]
    .prop_map(Bytes);
    explore("ENDPOINT", 2_000, choices, |bytes: Bytes| endpoint_model::every_message_arrives_once(&bytes.0));
}

#[test]
fn every_message_ends_whatever_the_path_swallows() {
    let choices = prop::collection::vec(any::<u8>(), 30..150).prop_map(Bytes);
    explore("ENDPOINT", 1_000, choices, |bytes: Bytes| endpoint_model::every_message_ends(&bytes.0));
}

/// Swift's window had become a thousandth of a packet while round trips took milliseconds, and connections are never given up
/// for lack of progress. A packet left in some ten seconds then.
#[test]
fn pacing_after_long_round_trips_holds_no_packet_back_for_long() {
    endpoint_model::every_message_arrives_once(include_bytes!(
        "../golden/swift_after_long_round_trips.bytes"
    ));
}

/// Packets were lost for two seconds, and then one in seven. Requests for credit left every 1.6 s, so that only two came after that
/// before the target was given up, and both were lost.
#[test]
fn credit_is_asked_for_often_enough_that_some_lost_requests_end_no_message() {
    endpoint_model::every_message_ends(include_bytes!("../golden/credit_after_a_hole.bytes"));
}

/// The target of an ordered connection is busy, and its refusal seems to be that of an earlier transmission, because the
/// channel has become much faster than it ever was. The connection sent all that came behind the refused packet again and
/// again, until its timer expired.
#[test]
fn an_ordered_connection_pauses_for_a_busy_target_on_a_path_that_has_become_fast() {
    endpoint_model::every_message_arrives_once(include_bytes!("../golden/busy_ordered_path.bytes"));
}
