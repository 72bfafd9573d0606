//! The responses of one PDC that must reach its initiator: kept at the target until the initiator clears them.

use std::collections::VecDeque;

use crate::buffer::Buffer;
use crate::table::Key;
use crate::wire::pds::Psn;
use crate::wire::ses::{Response, ResponseWithData};

/// A response that must reach the initiator (guaranteed delivery): kept until the initiator clears it.
#[derive(Debug, PartialEq)]
pub struct StoredResponse {
    /// PSN of the request that it answers.
    pub psn: Psn,
    /// The response itself.
    pub answer: Answer,
}

/// What a stored response says.
#[derive(Debug, PartialEq)]
pub enum Answer {
    /// A result without data.
    Plain(Response),
    /// Bytes of exposed memory. They are read when the response leaves, each time.
    Memory {
        /// The header, which tells the number of bytes.
        header: ResponseWithData,
        /// The memory, as numbered by the endpoint.
        memory: Key,
        /// Offset of the bytes in the memory.
        offset: u32,
    },
    /// Bytes that a fetching atomic operation has found. They are the response's own: the memory has changed since.
    Fetched {
        /// The header, which tells the number of bytes.
        header: ResponseWithData,
        /// The bytes.
        data: Box<Buffer>,
    },
}

impl Answer {
    /// Bytes that one without data counts for.
    pub const PLAIN_COST: u64 = size_of::<StoredResponse>() as u64;

    /// Bytes that it counts for against its initiator's quota: its own, and the payload that it promises.
    pub fn cost(&self) -> u64 {
        let data = match self {
            Answer::Plain(_) => 0,
            Answer::Memory { header, .. } | Answer::Fetched { header, .. } => header.payload_len.into(),
        };
        Answer::PLAIN_COST + data
    }
}

/// The stored responses of a PDC, in order of PSNs.
// In a box: most PDCs never store a response, and this is a third of the size of what it holds.
#[expect(clippy::box_collection, reason = "every PDC has one, and nearly all are empty")]
#[derive(Debug, Default)]
pub(super) struct Responses(Option<Box<VecDeque<StoredResponse>>>);

impl Responses {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|stored| stored.is_empty())
    }

    fn stored(&self) -> impl Iterator<Item = &StoredResponse> {
        self.0.iter().flat_map(|stored| stored.iter())
    }

    /// The PSN of the first one.
    pub(super) fn first(&self) -> Option<Psn> {
        self.stored().next().map(|response| response.psn)
    }

    pub(super) fn insert(&mut self, psn: Psn, answer: Answer) {
        let stored = self.0.get_or_insert_default();
        let at = stored.partition_point(|other| other.psn.is_before(psn));
        stored.insert(at, StoredResponse { psn, answer });
    }

    pub(super) fn get(&self, psn: Psn) -> Option<&StoredResponse> {
        let stored = self.0.as_deref()?;
        stored.get(place(stored, psn)?)
    }

    /// Forgets those up to `psn`. Returns the bytes that they counted for.
    #[cold]
    pub(super) fn clear(&mut self, psn: Psn) -> u64 {
        let Some(stored) = self.0.as_deref_mut() else { return 0 };
        let mut freed = 0;
        while let Some(response) = stored.front().filter(|response| !psn.is_before(response.psn)) {
            freed += response.answer.cost();
            stored.pop_front();
        }
        crate::heap::give_back(stored);
        freed
    }

    /// Bytes that all of them count for.
    pub(super) fn cost(&self) -> u64 {
        self.stored().map(|response| response.answer.cost()).sum()
    }

    /// The bits of a bitmap that begins at `base` that stand for requests with a stored response.
    #[cold]
    pub(super) fn mask(&self, base: Psn) -> u64 {
        let Some(stored) = self.0.as_deref() else { return 0 };
        let first = stored.partition_point(|response| response.psn.is_before(base));
        let bits = stored.range(first..).map(|response| response.psn.distance(base));
        bits.take_while(|bit| *bit < 64).fold(0, |mask, bit| mask | 1 << bit)
    }

    /// Bytes of heap allocated.
    pub(super) fn heap_bytes(&self) -> u64 {
        let data = self.stored().map(|response| match &response.answer {
            Answer::Fetched { data, .. } => size_of::<Buffer>() as u64 + crate::heap::of_buffer(data),
            Answer::Plain(_) | Answer::Memory { .. } => 0,
        });
        let data = data.sum::<u64>();
        data + self
            .0
            .as_deref()
            .map_or(0, |stored| size_of_val(stored) as u64 + crate::heap::of_deque(stored))
    }
}

/// The place of the response for `psn`.
fn place(stored: &VecDeque<StoredResponse>, psn: Psn) -> Option<usize> {
    let at = stored.partition_point(|response| response.psn.is_before(psn));
    stored.get(at).is_some_and(|response| response.psn == psn).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ses::{List, Response, ReturnCode};

    #[test]
    fn responses_that_are_cleared_give_their_memory_back() {
        let mut responses = Responses::default();
        let response = Response {
            list: List::Expected,
            opcode: 1,
            version: 0,
            return_code: ReturnCode::TOO_LONG,
            msg_id: 1,
            ri_generation: 0,
            job_id: 0,
            modified_length: 0,
        };
        (0..2_000).for_each(|n| responses.insert(Psn(n), Answer::Plain(response)));
        let most = responses.heap_bytes();
        assert_eq!(responses.clear(Psn(1_990)), 1_991 * Answer::PLAIN_COST);
        assert!(responses.heap_bytes() * 20 < most, "{} of {most} bytes", responses.heap_bytes());
        assert_eq!(responses.get(Psn(1_991)).map(|response| response.psn), Some(Psn(1_991)));
    }
}
