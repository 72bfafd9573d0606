//! Messages: segmentation on the way out, matching and placement on the way in.
//!
//! Every packet of a message carries a full standard request. So the first packet to arrive, which need not be the
//! first one sent, finds the receive it belongs to, and every payload goes straight to its final address. `atomic.rs` has
//! the arithmetic of atomic operations.
#![forbid(unsafe_code)]

mod arrivals;
mod arrived;
mod atomic;
mod by_age;
mod matching;
mod order;
mod posted;
mod receive;
mod room;
mod send;
mod senders;
mod unexpected;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use rustc_hash::FxHasher;

pub(crate) use arrived::Arrived;
pub use atomic::{apply, supports};
pub use matching::{Matching, Posted, ReceiveId, Source};
pub use order::FEW_INCOMPLETE;
pub(crate) use order::{EarlyMessage, Order};
pub use receive::{
    Cancelled, Claim, Deliveries, Delivery, LeftBehind, MessageName, Part, Receives, Refusal, Waiting,
};
pub(crate) use receive::{HAND_OVER, Placed, respond};
pub use room::Room;
pub use send::{Operation, Segment, SendMessage};

type Map<K, V, S = BuildHasherDefault<FxHasher>> = HashMap<K, V, S>;

/// Largest payload of a packet: `payload_len` of a standard request has 14 bits.
pub const MAX_SEGMENT: u32 = (1 << 14) - 1;
