//! Long messages that receives come for: where the endpoint copies no more than so much at once, what had arrived of such a message
//! before is copied in pieces, and the message completes with the last of them.
//!
//! What arrives after the receive goes where it belongs: behind all that had arrived before, straight to the receive; between the
//! parts of that, to the memory where they are. A message is copied when all of it is there, so that nothing arrives for it
//! meanwhile.

use std::collections::VecDeque;

use super::{Deliveries, Delivery, Destination, Incoming, Kept, Receives};
use crate::buffer::Buffer;
use crate::heap;
use crate::ses::{Map, ReceiveId, Room};
use crate::wire::pds::PdcId;

/// The most messages of a PDC with order that are copied, or wait for one that is. Further ones are refused for a while.
const MOST_IN_LINE: u32 = 256;

/// What it counts for in bytes touched that a message ends which has waited for others.
const IN_LINE: u64 = if cfg!(test) { 256 } else { 2 << 10 };

/// The receive that a message has met when a long part of it had arrived.
#[derive(Debug)]
pub(super) struct Partly {
    pub(super) id: ReceiveId,
    pub(super) context: u64,
    /// The memory of the receive.
    pub(super) buffer: Buffer,
    /// The memory that the message had before.
    pub(super) kept: Buffer,
    /// What has arrived before the receive came lies before this place in the message.
    pub(super) end: u32,
}

impl Partly {
    /// Where a part of the message goes that begins at `offset`. No part lies on both sides of the end: the byte before that has
    /// arrived.
    #[cold]
    pub(super) fn place_of(&mut self, offset: u32) -> &mut Buffer {
        if offset < self.end { &mut self.kept } else { &mut self.buffer }
    }
}

/// A message that has arrived, and completes when it is copied; or one that waits for others, with nothing to copy.
#[derive(Debug)]
struct Copying {
    pdc: PdcId,
    delivery: Delivery,
    from: Buffer,
    /// What is left to copy.
    at: u32,
    end: u32,
    /// Bytes that count for its sender until it is copied.
    kept: u64,
}

/// Messages of a process that are copied, and those that wait for them, in their order.
#[derive(Debug, Default)]
pub(super) struct Copies {
    queue: VecDeque<Copying>,
    /// How many of them each PDC has.
    of_pdcs: Map<PdcId, u32>,
}

impl Copies {
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    fn of(&self, pdc: PdcId) -> u32 {
        self.of_pdcs.get(&pdc).copied().unwrap_or(0)
    }

    fn push(&mut self, copying: Copying) {
        *self.of_pdcs.entry(copying.pdc).or_default() += 1;
        self.queue.push_back(copying);
    }

    fn pop(&mut self) -> Option<Copying> {
        let first = self.queue.pop_front()?;
        if let Some(count) = self.of_pdcs.get_mut(&first.pdc) {
            *count -= 1;
            if *count == 0 {
                self.of_pdcs.remove(&first.pdc);
            }
        }
        Some(first)
    }

    /// Copies of the first message as much as `budget` permits, which it takes from that. Returns how much that was, and whether
    /// nothing is left of it.
    fn copy_first(&mut self, budget: i64) -> Option<(u32, bool)> {
        let first = self.queue.front_mut()?;
        let piece = (first.end - first.at).min(u32::try_from(budget).unwrap_or(u32::MAX));
        #[cfg(test)]
        crate::steps::count(piece as usize);
        first.delivery.buffer.place(first.at, first.from.payload(first.at, piece));
        first.at += piece;
        Some((piece, first.at == first.end))
    }

    /// The bytes that count for the senders of messages until these are copied.
    #[cfg(test)]
    pub(super) fn kept(&self) -> impl Iterator<Item = u64> {
        self.queue.iter().map(|copying| copying.kept)
    }

    pub(super) fn heap_bytes(&self) -> u64 {
        size_of::<Copies>() as u64 + heap::of_deque(&self.queue) + heap::of_map(&self.of_pdcs)
    }

    pub(super) fn payload_bytes(&self) -> u64 {
        let bytes =
            |copying: &Copying| heap::of_buffer(&copying.delivery.buffer) + heap::of_buffer(&copying.from);
        self.queue.iter().map(bytes).sum()
    }
}

impl Incoming {
    /// The copy of a complete message, and what it counts for; `None` if there is nothing to copy in pieces.
    fn into_copying(mut self) -> Option<Copying> {
        let Destination::Partly(partly) = &mut self.destination else { return None };
        let (from, end) = (std::mem::replace(&mut partly.kept, Buffer::Virtual(0)), partly.end);
        let (pdc, kept) = (self.name.0, self.total.into());
        let delivery = self.into_delivery()?;
        let end = end.min(delivery.buffer.len());
        Some(Copying { pdc, delivery, from, at: 0, end, kept })
    }
}

impl Receives {
    /// Whether messages are being [copied](Receives::copy).
    #[inline]
    pub fn is_copying(&self) -> bool {
        self.copies.is_some()
    }

    /// Whether no further message of `pdc`, which has an order, may end before others have been copied: there are too many
    /// that wait already.
    #[cold]
    pub(crate) fn is_line_full(&self, pdc: PdcId) -> bool {
        self.copies.as_ref().is_some_and(|copies| copies.of(pdc) >= MOST_IN_LINE)
    }

    /// Returns `delivery`, of `pdc`, unless messages of the PDC are being copied: then it waits for them.
    #[cold]
    pub(crate) fn queue_up(&mut self, room: &mut Room, pdc: PdcId, delivery: Delivery) -> Option<Delivery> {
        let Some(copies) = self.copies.as_mut().filter(|copies| copies.of(pdc) > 0) else {
            return Some(delivery);
        };
        if delivery.more {
            // Its receive does not end before it.
            self.many.resume(delivery.id);
        }
        copies.push(Copying { pdc, delivery, from: Buffer::Virtual(0), at: 0, end: 0, kept: 0 });
        room.copies += 1;
        None
    }

    /// A message is complete that is copied in pieces.
    #[cold]
    pub(super) fn begin_copy(&mut self, room: &mut Room, message: Incoming) {
        if let Some(copying) = message.into_copying() {
            self.copies.get_or_insert_default().push(copying);
            room.copies += 1;
        }
    }

    /// Copies messages to their receives until that has touched `budget` bytes, which are taken from it. Returns those that are
    /// complete now.
    pub fn copy(&mut self, room: &mut Room, budget: &mut i64) -> Deliveries {
        let mut deliveries = Vec::new();
        while let Some(copies) = self.copies.as_mut().filter(|_| *budget > 0) {
            let Some((piece, is_done)) = copies.copy_first(*budget) else { break };
            let mut touched = u64::from(piece);
            if is_done {
                let Some((mut delivery, cost)) = self.take_first_copy(room) else { break };
                touched += cost;
                delivery.more = self.many.conclude(delivery.id);
                deliveries.push(delivery);
            }
            room.touched += touched;
            *budget -= touched as i64;
        }
        deliveries
    }

    /// As [`Receives::copy`], which may touch `arrived` bytes more. They are spent first.
    pub(super) fn copy_with(&mut self, room: &mut Room, budget: &mut i64, arrived: &mut u64) -> Deliveries {
        if !self.is_copying() {
            return Vec::new();
        }
        let before = (*budget).max(0).saturating_add_unsigned(*arrived);
        let mut left = before;
        let deliveries = self.copy(room, &mut left);
        let spent = (before - left) as u64;
        let paid = spent.min(*arrived);
        *arrived -= paid;
        *budget -= (spent - paid) as i64;
        deliveries
    }

    /// Takes out the first message that is copied, or waits for others, and gives its memory back. Returns it, and what the
    /// latter costs, in bytes touched.
    pub(super) fn take_first_copy(&mut self, room: &mut Room) -> Option<(Delivery, u64)> {
        let copies = self.copies.as_mut()?;
        let first = copies.pop()?;
        if copies.queue.is_empty() {
            self.copies = None;
        }
        room.copies -= 1;
        let Copying { delivery, kept, end, .. } = first;
        self.release(room, delivery.source, Kept { unexpected: 0, bytes: kept });
        Some((delivery, if kept == 0 { IN_LINE } else { (kept / 16).saturating_sub(end.into()) }))
    }
}
