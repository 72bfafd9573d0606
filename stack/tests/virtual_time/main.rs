//! Endpoints, workers and balancers in virtual time, where every run is the same: one program, because linking one for
//! each file takes longer than the tests.

#[path = "../access_model/mod.rs"]
mod access_model;
#[path = "../attached/mod.rs"]
mod attached;
#[path = "../datagram_model/mod.rs"]
mod datagram_model;
#[path = "../endpoint_model/mod.rs"]
mod endpoint_model;
#[path = "../../src/worker/session/tests/explore.rs"]
mod explore;
#[path = "../harness/mod.rs"]
mod harness;
#[path = "../../../cc/tests/table/mod.rs"]
mod table;

mod address_book;
mod datagrams;
mod dead_peers;
mod endpoint_access;
mod endpoint_closing;
mod endpoint_ends;
mod endpoint_failures;
mod endpoint_fields;
mod endpoint_forgotten;
mod endpoint_limits;
mod endpoint_liveness;
mod endpoint_losses;
mod endpoint_pair;
mod endpoint_read_windows;
mod endpoint_reads;
mod endpoint_strays;
mod endpoint_turns;
mod endpoint_windows;
mod endpoint_zones;
mod hostile_accesses;
mod matching_model;
mod matching_order;
mod scales;
mod sources;
mod spray_conformance;
mod wake_ups;
mod withheld_acks;
mod worker_transfer;
