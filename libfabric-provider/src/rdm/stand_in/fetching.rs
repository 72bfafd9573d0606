//! Long messages at their receivers: what stands for one has met a receive, and the bytes are fetched.

use weft::{ReceiveBuffer, Source};

use super::super::readings::Reading;
use super::super::{Bindings, State, report};
use super::{Named, stand_in_len};
use crate::error::FiError;
use crate::queue::{Entry, Problem};
use crate::sys;

/// A message that is fetched for a receive, which has met its stand-in.
#[derive(Debug)]
pub(in super::super) struct Fetched {
    /// The entry when all is there.
    entry: Entry,
    /// Memory of the receive that has not several pieces.
    pub(in super::super) room: Option<ReceiveBuffer>,
    /// How far it has come, if it is read.
    pub(in super::super) reading: Option<Reading>,
}

impl Fetched {
    /// Where bytes of the message belong, from byte `at` on.
    pub(in super::super) fn room(&mut self, at: u32, len: u32) -> Option<&mut [u8]> {
        match self.room.as_mut()? {
            ReceiveBuffer::Owned(bytes) => {
                let (begin, end) = (at as usize, at as usize + len as usize);
                bytes.as_mut_slice().get_mut(begin..end)
            }
            _ => None,
        }
    }
}

impl State {
    /// Receive `number` has met the stand-in of a message of `whole` bytes, which is in the first `len` bytes of `buffer`.
    pub(in super::super) fn fetch(
        &mut self,
        number: usize,
        named: Named,
        whole: u32,
        buffer: ReceiveBuffer,
        source: Option<u64>,
    ) {
        let Some(operation) = self.operations.get_mut(number) else { return };
        operation.id = None;
        self.backlog.end_receive(operation.memory.take(), operation.many);
        self.backlog.end_kind(operation.kind.take());
        let len = stand_in_len(whole);
        let beginning = len - 1;
        let (mut room, mut total) = (None, 0);
        if operation.pieces.is_empty() && matches!(buffer, ReceiveBuffer::Owned(_)) {
            total = buffer.len();
            room = Some(buffer);
        } else {
            total += operation.pieces.iter().map(|piece| piece.0.as_ref().len()).sum::<usize>();
            operation.scatter(&buffer, beginning as usize);
            self.backlog.take_received(buffer);
        }
        let beyond = (whole as usize).saturating_sub(total);
        let total = u32::try_from(total).map_or(whole, |total| total.min(whole));
        let problem = (beyond > 0).then_some(Problem { error: FiError::TRUNCATED, beyond });
        let mut entry = operation.entry(problem);
        entry.len = total as usize;
        entry.take_envelope(Some(named.tag).filter(|_| entry.flags & sys::FI_TAGGED != 0), named.header_data);
        entry.source = source.unwrap_or(entry.source);
        operation.fetched = Some(Box::new(Fetched { entry, room, reading: None }));
        match self.carrier {
            Some(_) => self.begin_fetch(number, named, beginning.min(total), total),
            None => self.begin_read(number, named, total),
        }
    }

    /// A message was fetched, or cannot be.
    pub(in super::super) fn end_fetch(
        &mut self,
        number: usize,
        error: Option<FiError>,
    ) -> Result<(), FiError> {
        let Some(operation) = self.operations.remove(number) else { return Ok(()) };
        self.receives = self.receives.saturating_sub(1);
        let Some(fetched) = operation.fetched else { return Ok(()) };
        let mut entry = fetched.entry;
        if let Some(error) = error {
            // As of a message whose sender was lost in the middle of it.
            let error = if error == FiError::GONE { error } else { FiError::ABORTED };
            (entry.len, entry.problem) = (0, Some(Problem { error, beyond: 0 }));
        }
        let Bindings { receive, received, .. } = &self.bindings;
        report(receive, received, operation.reported, entry)
    }

    /// What the stand-in in the first `len` bytes of `buffer` says, or its beginning if that is less.
    pub(in super::super) fn named(
        peer: Source,
        tag: Option<u64>,
        header_data: u64,
        buffer: &ReceiveBuffer,
        len: u32,
    ) -> Named {
        let mut bytes = [0; 16];
        let read = |at: u32| match buffer {
            ReceiveBuffer::Memory(slice) => slice.read(at, &mut bytes) == bytes.len(),
            other => {
                let end = other.as_slice().and_then(|all| all.get(at as usize..len as usize));
                end.filter(|end| end.len() == 16).is_some_and(|end| {
                    bytes.copy_from_slice(end);
                    true
                })
            }
        };
        let is_whole = len.checked_sub(16).is_some_and(read);
        let end = is_whole.then(|| u128::from_le_bytes(bytes));
        Named::new(peer, tag, header_data, end)
    }
}
