//! Matching: the messages that a receive accepts.

use crate::buffer::Buffer;
use crate::packet::Addr;

/// Identifier of a posted receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReceiveId(pub u64);

/// The messages that a receive accepts, apart from their sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matching {
    /// Untagged messages.
    Untagged,
    /// Tagged messages whose tag equals `tag` in all bits that `ignore` does not mask.
    Tagged {
        /// The tag wanted.
        tag: u64,
        /// Mask of the bits that are not compared.
        ignore: u64,
    },
}

/// A receive: memory for one message.
#[derive(Debug)]
pub struct Posted {
    /// Identifier of the receive; later receives have larger ones.
    pub id: ReceiveId,
    /// Accepts only messages of this sender; of any sender if `None`.
    pub from: Option<Addr>,
    /// Accepts only these messages.
    pub matching: Matching,
    /// Memory for the message.
    pub buffer: Buffer,
    /// The caller's value, returned at completion.
    pub context: u64,
}

impl Posted {
    /// Whether the receive accepts a message of `peer` with `tag`.
    pub(super) fn takes(&self, peer: Addr, tag: Option<u64>) -> bool {
        let matches = match (self.matching, tag) {
            (Matching::Untagged, None) => true,
            (Matching::Tagged { tag, ignore }, Some(theirs)) => (tag ^ theirs) & !ignore == 0,
            _ => false,
        };
        matches && self.from.is_none_or(|from| from == peer)
    }
}
