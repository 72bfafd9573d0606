//! The messages that a receive takes.

use crate::buffer::Buffer;
use crate::packet::Addr;

/// Names a posted receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReceiveId(pub u64);

/// The messages that a receive takes, apart from their sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matching {
    /// Untagged messages.
    Untagged,
    /// Tagged messages whose tag equals `tag` in the bits that `ignore` leaves.
    Tagged {
        /// The tag wanted.
        tag: u64,
        /// Bits that do not matter.
        ignore: u64,
    },
}

/// A receive: memory for one message.
#[derive(Debug)]
pub struct Posted {
    /// The name of the receive; later receives have larger ones.
    pub id: ReceiveId,
    /// Takes messages of this sender only.
    pub from: Option<Addr>,
    /// Takes these messages only.
    pub matching: Matching,
    /// Where they go.
    pub buffer: Buffer,
    /// The caller's word, handed back at completion.
    pub context: u64,
}

impl Posted {
    /// Whether it takes a message of `peer` with `tag`.
    pub(super) fn takes(&self, peer: Addr, tag: Option<u64>) -> bool {
        let matches = match (self.matching, tag) {
            (Matching::Untagged, None) => true,
            (Matching::Tagged { tag, ignore }, Some(theirs)) => (tag ^ theirs) & !ignore == 0,
            _ => false,
        };
        matches && self.from.is_none_or(|from| from == peer)
    }
}
