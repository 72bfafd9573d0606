//! The weft protocol stack: wire formats, packet delivery contexts (PDCs), load balancing, messages,
//! the fabric endpoint, and the ports through which its packets enter and leave.
//!
//! Everything but [`port`] and [`worker`] is sans-I/O: time comes in as an argument, randomness as a
//! seeded generator, packets as header structs with a payload beside them.

#[cfg(not(target_os = "linux"))]
compile_error!("weft needs Linux: it uses its shared memory, event descriptors and sockets");

// Under its own name, for what unit tests and integration tests share.
#[cfg(test)]
extern crate self as weft_stack;

pub mod buffer;
#[cfg(any(test, feature = "fuzzing"))]
mod choices;
pub mod event;
pub mod fep;
#[cfg(test)]
#[path = "../tests/harness/mod.rs"]
mod harness;
mod heap;
mod ledger;
mod occurrences;
pub mod packet;
pub mod pdc;
pub mod port;
pub mod prefetch;
pub mod region;
pub mod rng;
#[cfg(test)]
mod seeds;
pub mod ses;
#[cfg(test)]
#[path = "../tests/skipped/mod.rs"]
mod skipped;
pub mod spray;
#[cfg(test)]
mod steps;
pub mod table;
pub mod wire;
pub mod worker;

pub use weft_cc as cc;
pub use weft_cc::{Rate, Span, Time};
