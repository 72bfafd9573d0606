//! Long messages at ports of one's own that are read by their receivers, in pieces: [notes](super::notes) on the same connection never
//! wait behind more than 16 MiB of those.

use std::collections::{HashMap, VecDeque};

use weft::{Error, OwnedBytes, ReceiveBuffer, RemoteMemory, Source};

use super::notes::{LOOKS, key_of};
use super::operation::Piece;
use super::stand_in::{Named, Untaken};
use super::{Operation, State};
use crate::error::FiError;

/// Bytes of a piece.
pub(super) const PIECE: u32 = 128 << 10;
/// Pieces that are read from one peer at a time: 16 MiB, as many bytes as a path of 100 Gbit/s and a round trip of 1.3 ms has under way.
/// It is a quarter of the answers that a target stores for a peer, whose other processes and accesses need the rest. Notes that wait
/// behind so much arrive before the peer takes this process for one that answers no questions, on paths of 30 Mbit/s and more.
pub(super) const WINDOW: usize = 128;

/// A message that is read.
#[derive(Debug)]
pub(super) struct Reading {
    named: Named,
    /// Bytes that are wanted of it, and how many of them have been asked for.
    total: u32,
    asked: u32,
    /// Pieces that have not ended.
    under_way: usize,
    /// The memory of the next piece, if there was no room for that before.
    refused: Option<ReceiveBuffer>,
    error: Option<FiError>,
}

impl Reading {
    fn has_ended(&self) -> bool {
        self.under_way == 0 && (self.error.is_some() || self.asked == self.total)
    }
}

/// A piece of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct PieceRead {
    /// The receive's operation.
    receive: usize,
    peer: Source,
    at: u32,
}

/// What is read from one peer.
#[derive(Debug, Default)]
struct Lane {
    /// The receives whose messages have further pieces, in the order in which they have met those.
    receives: VecDeque<usize>,
    /// Pieces that have not ended.
    under_way: usize,
    /// Whether there was no room for the next piece.
    is_blocked: bool,
}

/// All messages that are read.
#[derive(Debug, Default)]
pub(super) struct Readings {
    lanes: HashMap<Source, Lane>,
    /// The peers whose lanes are blocked.
    blocked: VecDeque<Source>,
}

impl Readings {
    /// Whether some are not complete.
    pub(super) fn are_waiting(&self) -> bool {
        !self.lanes.is_empty()
    }

    /// The receive whose message the next piece from `peer` is of, if there may be another one.
    fn next(&mut self, peer: Source) -> Option<usize> {
        let lane = self.lanes.get(&peer)?;
        if lane.receives.is_empty() && lane.under_way == 0 {
            self.lanes.remove(&peer);
            return None;
        }
        lane.receives.front().filter(|_| lane.under_way < WINDOW).copied()
    }
}

impl State {
    /// Reads the first `total` bytes of a message whose stand-in receive `number` has met.
    pub(super) fn begin_read(&mut self, number: usize, named: Named, total: u32) {
        let Some(operation) = self.operations.get_mut(number) else { return };
        let Some(fetched) = &mut operation.fetched else { return };
        if fetched.room.is_none() && operation.pieces.len() == 1 {
            // Straight to where it belongs, as to the room of every other receive that has no pieces.
            let room = operation.pieces.pop();
            fetched.room = room.map(|Piece(room)| OwnedBytes::divisible(room).into());
        }
        let (asked, under_way, refused, error) = (0, 0, None, None);
        fetched.reading = Some(Reading { named, total, asked, under_way, refused, error });
        self.notes.readings.lanes.entry(named.peer).or_default().receives.push_back(number);
        self.read_from(named.peer);
    }

    /// Asks `peer` for as many pieces as there may be.
    fn read_from(&mut self, peer: Source) {
        while let Some(number) = self.notes.readings.next(peer) {
            let posted = self.post_piece(number);
            let Readings { lanes, blocked } = &mut self.notes.readings;
            let Some(lane) = lanes.get_mut(&peer) else { return };
            match posted {
                Ok(is_last) => {
                    lane.under_way += 1;
                    if is_last {
                        lane.receives.pop_front();
                    }
                }
                Err(FiError::AGAIN) => {
                    if !std::mem::replace(&mut lane.is_blocked, true) {
                        blocked.push_back(peer);
                    }
                    return;
                }
                Err(error) => {
                    lane.receives.pop_front();
                    // Its entry says so, and there is nothing else to do about it here.
                    let _ = self.end_reading(number, Some(error));
                }
            }
        }
    }

    /// Reads on where there was no room, from a few peers in one turn.
    pub(super) fn read_on(&mut self) {
        for _ in 0..self.notes.readings.blocked.len().min(LOOKS) {
            let Readings { lanes, blocked } = &mut self.notes.readings;
            let Some(peer) = blocked.pop_front() else { return };
            if let Some(lane) = lanes.get_mut(&peer) {
                lane.is_blocked = false;
            }
            self.read_from(peer);
        }
    }

    /// Reads the next piece of the message of receive `number`. Returns whether it is the last one.
    fn post_piece(&mut self, number: usize) -> Result<bool, FiError> {
        let State { endpoint, peers, operations, .. } = self;
        let endpoint = endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        let fetched = operations.get_mut(number).and_then(|operation| operation.fetched.as_mut());
        let fetched = fetched.ok_or(FiError::OTHER)?;
        let reading = fetched.reading.as_mut().ok_or(FiError::OTHER)?;
        let Reading { named, total, asked: at, .. } = *reading;
        let len = (total - at).min(PIECE);
        let mut buffer = reading.refused.take().or_else(|| match &mut fetched.room {
            Some(ReceiveBuffer::Owned(room)) => room.split_to(len as usize).map(ReceiveBuffer::from),
            Some(_) => None,
            // To be copied to several pieces of memory.
            None => Some(vec![0; len as usize].into()),
        });
        let read = PieceRead { receive: number, peer: named.peer, at };
        let piece = operations.insert(Operation { reads: Some(read), ..Operation::default() });
        let memory = RemoteMemory {
            key: key_of(named.tag, named.header_data, named.end.unwrap_or(0)),
            offset: at.into(),
        };
        let posted = peers.beside.post(endpoint, named.peer, |endpoint, connection| {
            let taken = buffer.take().ok_or(Error::Completed)?;
            endpoint.read(connection, taken, memory, piece as u64).map_err(|refused| {
                buffer = Some(refused.buffer);
                refused.error
            })
        });
        if posted.is_err() {
            operations.remove(piece);
        }
        let fetched = operations.get_mut(number).and_then(|operation| operation.fetched.as_mut());
        let reading = fetched.and_then(|fetched| fetched.reading.as_mut()).ok_or(FiError::OTHER)?;
        match posted {
            Ok(_) => {
                (reading.asked, reading.under_way) = (at + len, reading.under_way + 1);
                Ok(reading.asked == total)
            }
            Err(error) => {
                reading.refused = buffer;
                Err(error)
            }
        }
    }

    /// A piece of a message was read, or cannot be.
    pub(super) fn piece_ended(
        &mut self,
        read: PieceRead,
        buffer: &ReceiveBuffer,
        result: Result<(), Error>,
    ) -> Result<(), FiError> {
        let PieceRead { receive, peer, at } = read;
        if let Some(lane) = self.notes.readings.lanes.get_mut(&peer) {
            lane.under_way = lane.under_way.saturating_sub(1);
            if result.is_err() {
                lane.receives.retain(|other| *other != receive);
            }
        }
        let error = result.as_ref().err().map(FiError::from);
        let mut ended = Ok(());
        if let Some(operation) = self.operations.get_mut(receive) {
            if result.is_ok() {
                operation.scatter_from(buffer.as_slice().unwrap_or(&[]), at as usize);
            }
            let reading = operation.fetched.as_mut().and_then(|fetched| fetched.reading.as_mut());
            if let Some(reading) = reading {
                reading.under_way = reading.under_way.saturating_sub(1);
                reading.error = reading.error.or(error);
                ended = self.end_reading(receive, None);
            }
        }
        if let Some(error) = error.filter(|error| error.says_that_the_peer_is_gone()) {
            return ended.and(self.fail_readings_of(peer, error));
        }
        self.read_from(peer);
        ended
    }

    /// A peer is gone: no further pieces of its messages are read. A connection for those of the next message would be as long in failing
    /// as that of the first. Messages of which pieces are under way end with the last of these.
    pub(super) fn fail_readings_of(&mut self, peer: Source, error: FiError) -> Result<(), FiError> {
        let Some(lane) = self.notes.readings.lanes.get_mut(&peer) else { return Ok(()) };
        let receives = std::mem::take(&mut lane.receives);
        let ended = receives.into_iter().try_for_each(|receive| self.end_reading(receive, Some(error)));
        self.read_from(peer);
        ended
    }

    /// The message of receive `number` was read if all of its pieces have ended, or cannot be. While one is under way its memory is not the
    /// application's.
    fn end_reading(&mut self, number: usize, error: Option<FiError>) -> Result<(), FiError> {
        let fetched = self.operations.get_mut(number).and_then(|operation| operation.fetched.as_mut());
        let Some(reading) = fetched.and_then(|fetched| fetched.reading.as_mut()) else { return Ok(()) };
        reading.error = reading.error.or(error);
        if !reading.has_ended() {
            return Ok(());
        }
        let (named, error) = (reading.named, reading.error);
        // Nor need its sender wait for a receive that has failed; also not if it has only stood still, and seems to be gone.
        self.tell_by_note(Named { untaken: error.map(|_| Untaken::Aborted), ..named });
        self.end_fetch(number, error)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use bytes::Bytes;
    use weft::{Found, Matching, SendOptions};

    use super::super::receive::{Incoming, Room, Which};
    use super::super::send::tests::endpoint;
    use super::super::{Attended, Outgoing, OutgoingBytes, Peek, Rdm, Wanted};
    use super::*;
    use crate::abi::AppRoom;
    use crate::error::lock;
    use crate::sys::FI_ADDR_UNSPEC;

    const PEER: Source = Source { peer: weft::Addr(1), process: 1 };
    const TAG: u64 = 5;
    const MATCHING: Matching = Matching::Tagged { tag: TAG, ignore: 0 };

    #[test]
    fn pieces_of_one_peer_are_few_at_a_time_and_those_of_one_message_after_the_other() {
        let mut readings = Readings::default();
        assert_eq!(readings.next(PEER), None);
        readings.lanes.entry(PEER).or_default().receives.extend([4, 5]);
        assert_eq!([readings.next(PEER), readings.next(PEER)], [Some(4); 2]);
        readings.lanes.get_mut(&PEER).unwrap().under_way = WINDOW;
        assert_eq!(readings.next(PEER), None);
        let other = Source { process: 2, ..PEER };
        readings.lanes.entry(other).or_default().receives.push_back(6);
        assert_eq!(readings.next(other), Some(6));
        let lane = readings.lanes.get_mut(&PEER).unwrap();
        (lane.under_way, lane.receives) = (0, VecDeque::new());
        assert!(readings.next(PEER).is_none() && readings.lanes.len() == 1);
    }

    /// A receive at `rdm`, with context 2, of messages that [`send_stand_in`] sends.
    fn receive(rdm: &Rdm, room: &mut [u8]) {
        // SAFETY: the room outlives the receive, and nobody else uses it meanwhile.
        let room = Room::One(unsafe { AppRoom::new(room.as_mut_ptr().cast(), room.len()) });
        let (from, wanted, which) = (FI_ADDR_UNSPEC, Wanted::Always, Which::First);
        rdm.receive(Incoming { room, from, matching: MATCHING, context: 2, wanted, which }).unwrap();
    }

    /// Sends what stands for a message of 5,000 bytes, with context 1.
    fn send_stand_in(from: &Rdm, to: &Rdm) {
        let mut state = lock(&from.state).unwrap();
        let to = state.bindings.addresses.as_ref().unwrap().insert(to.local()).unwrap();
        let peer = state.peer(to).unwrap();
        state.stand_ins.believe(peer, 1);
        let operation = Operation { context: 1, reported: true, ..Operation::default() };
        let number = state.operations.insert(operation);
        let options = SendOptions::default().tag(TAG).context(number as u64);
        state.post_stand_in(number, peer, Bytes::from(vec![9u8; 5_000]), options).unwrap();
    }

    #[test]
    fn a_message_that_cannot_be_read_fails_at_both_ends() {
        let (a, b) = (endpoint(), endpoint());
        let mut room = vec![0u8; 5_000];
        receive(&b, &mut room);
        send_stand_in(&a, &b);
        {
            // Nobody reads the bytes under their key, though the message has not ended.
            let mut state = lock(&a.state).unwrap();
            for key in state.stand_ins.lent_keys() {
                state.take_back_lent(key);
            }
        }
        let queue = |rdm: &Rdm, transmits: bool| {
            let state = lock(&rdm.state).unwrap();
            let bindings = &state.bindings;
            let binding = if transmits { &bindings.transmit } else { &bindings.receive };
            binding.as_ref().unwrap().queue.clone()
        };
        let (sent, received) = (queue(&a, true), queue(&b, false));
        let begin = Instant::now();
        while !sent.has_entries().unwrap() || !received.has_entries().unwrap() {
            a.progress().unwrap();
            b.progress().unwrap();
            assert!(begin.elapsed() < Duration::from_secs(60), "one of them has not ended");
        }
        for (queue, context) in [(sent, 1), (received, 2)] {
            let ended = queue.read_problem().unwrap().map(|(entry, problem)| (entry.context, problem.error));
            assert_eq!(ended, Some((context, FiError::ABORTED)));
        }
    }

    /// No other call lets the endpoint work.
    #[test]
    fn what_a_call_has_to_send_leaves_while_another_thread_sleeps() {
        type Call = fn(&Rdm, &mut [u8], u64);
        let receives = |rdm: &Rdm, room: &mut [u8], _: u64| receive(rdm, room);
        let drops = |rdm: &Rdm, _: &mut [u8], _: u64| {
            let (from, found, wanted) = (FI_ADDR_UNSPEC, Found::IsDiscarded, Wanted::Always);
            rdm.peek(Peek { from, matching: MATCHING, found, context: 2, wanted }).unwrap();
        };
        let sends = |rdm: &Rdm, _: &mut [u8], to: u64| {
            let (bytes, tag, data) = (OutgoingBytes::Copied(Bytes::new()), Some(TAG), None);
            let (context, wanted, more) = (2, Wanted::AsBound, true);
            rdm.send(Outgoing { bytes, to, tag, data, context, wanted, more }).unwrap();
        };
        let calls: [(&str, Call); 3] =
            [("fi_trecv", receives), ("FI_PEEK with FI_DISCARD", drops), ("FI_MORE", sends)];
        for (name, call) in calls {
            let (a, b) = (endpoint(), Arc::new(endpoint()));
            let to_a =
                lock(&b.state).unwrap().bindings.addresses.as_ref().unwrap().insert(a.local()).unwrap();
            send_stand_in(&a, &b);
            let (begin, mut room) = (Instant::now(), vec![0u8; 5_000]);
            let until = |what: &str, is_so: &dyn Fn() -> bool| {
                while !is_so() {
                    a.progress().unwrap();
                    assert!(begin.elapsed() < Duration::from_secs(60), "{name}: {what}");
                }
            };
            // The packets that it has received and sent, and whether there are some to send.
            let packets = || {
                let state = lock(&b.state).unwrap();
                let fep = state.endpoint.as_ref().unwrap().worker().unwrap().fep();
                (fep.counters().data_received, fep.counters().data_sent, fep.wants_to_transmit())
            };
            until("the stand-in arrives", &|| {
                b.progress().unwrap();
                packets().0 > 0
            });
            let _attended = Attended::new(b.clone());
            until("the endpoint has nothing to do", &|| b.arm().unwrap());
            let (_, before, _) = packets();
            call(&b, &mut room, to_a);
            let (_, after, has_more) = packets();
            assert!(after > before && !has_more && b.is_armed().unwrap(), "{name}");
        }
    }
}
