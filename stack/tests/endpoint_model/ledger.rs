//! The messages and reads that were posted, and their completions.

use std::collections::BTreeMap;

use weft_cc::Time;
use weft_stack::buffer::Buffer;
use weft_stack::fep::{
    Completion, ConnectionId, Exposure, Fep, Read, Receive, ReceiveError, Rights, Send, SendError, SendId,
};
use weft_stack::packet::Addr;
use weft_stack::ses::{Matching, ReceiveId};
use weft_stack::wire::ses::ReturnCode;

/// A message and the receive for it.
#[derive(Debug)]
struct Message {
    from: usize,
    len: u32,
    send: SendId,
    sent: Option<Result<(), SendError>>,
    /// The length of the receive, bytes.
    room: u32,
    receive: Option<ReceiveId>,
    received: Option<Result<(), ReceiveError>>,
}

/// A read of the memory that the other endpoint exposes.
#[derive(Debug)]
struct Reading {
    from: usize,
    offset: u32,
    len: u32,
    ended: bool,
}

/// The key of the memory that each endpoint exposes, and its length.
const KEY: u64 = 77;
pub(crate) const MEMORY: u32 = 20_000;

fn memory_of(fep: usize) -> Vec<u8> {
    bytes_of(fep + 5, MEMORY)
}

/// All messages and reads. The number of a message is its tag, its context and the complement of its header data.
#[derive(Default)]
pub(crate) struct Ledger {
    messages: Vec<Message>,
    reads: Vec<Reading>,
    closing: BTreeMap<(u32, ConnectionId), bool>,
}

fn bytes_of(number: usize, len: u32) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ (number as u32 * 7)) as u8).collect()
}

impl Ledger {
    pub(crate) fn send(&mut self, feps: &mut [Fep], from: usize, id: ConnectionId, len: u32) {
        let number = self.messages.len();
        let buffer = Buffer::Heap(bytes_of(number, len));
        let (tag, context) = (Some(number as u64), number as u64);
        let send = feps[from].post_send(id, Send { buffer, tag, header_data: !context, context }).unwrap();
        let (sent, receive, received) = (None, None, None);
        self.messages.push(Message { from, len, send, sent, room: 0, receive, received });
    }

    /// Lets each endpoint read the memory of the other.
    pub(crate) fn expose(feps: &mut [Fep]) {
        for (n, fep) in feps.iter_mut().enumerate() {
            fep.expose(
                0,
                Exposure {
                    key: KEY,
                    buffer: Buffer::Heap(memory_of(n)),
                    base: 0,
                    rights: Rights::ALL,
                    from: None,
                },
            )
            .unwrap();
        }
    }

    /// Posts a read of `len` bytes from `offset`, which lie in the memory.
    pub(crate) fn read(&mut self, fep: &mut Fep, id: ConnectionId, offset: u32, len: u32) {
        let (buffer, context) = (Buffer::Heap(vec![0; len as usize]), self.reads.len() as u64);
        fep.post_read(id, Read { buffer, key: KEY, offset: offset.into(), context }).unwrap();
        self.reads.push(Reading { from: fep.addr().0 as usize, offset, len, ended: false });
    }

    /// Posts the receive for message `which` if none is posted. A `short` one has room for half of the message.
    pub(crate) fn receive(&mut self, feps: &mut [Fep], which: usize, short: bool) {
        let count = self.messages.len().max(1);
        let number = which % count;
        let Some(message) = self.messages.get_mut(number) else { return };
        if message.receive.is_some() || message.received.is_some() {
            return;
        }
        message.room = if short { message.len / 2 } else { message.len };
        let receive = Receive {
            buffer: Buffer::Heap(vec![0xee; message.room as usize]),
            from: Some(Addr(message.from as u32).into()),
            matching: Matching::Tagged { tag: number as u64, ignore: 0 },
            context: number as u64,
        };
        message.receive = Some(feps[1 - message.from].post_receive(receive).unwrap());
    }

    pub(crate) fn receive_the_rest(&mut self, feps: &mut [Fep]) {
        for number in 0..self.messages.len() {
            self.receive(feps, number, false);
        }
    }

    pub(crate) fn cancel_send(&mut self, feps: &mut [Fep], which: usize) {
        let count = self.messages.len().max(1);
        if let Some(message) = self.messages.get(which % count) {
            let late = message.sent.is_some();
            let cancelled = feps[message.from].cancel_send(message.send).is_ok();
            assert!(!(late && cancelled), "a message that had completed was cancelled");
        }
    }

    pub(crate) fn cancel_receive(&mut self, feps: &mut [Fep], which: usize) {
        let count = self.messages.len().max(1);
        if let Some(message) = self.messages.get_mut(which % count)
            && let Some(id) = message.receive
        {
            let _ = feps[1 - message.from].cancel_receive(id);
        }
    }

    /// Cancels the receives of messages that were cancelled, which nothing else would complete.
    pub(crate) fn cancel_the_rest(&mut self, feps: &mut [Fep]) {
        for message in &self.messages {
            if message.sent == Some(Err(SendError::Cancelled))
                && let Some(id) = message.receive
            {
                feps[1 - message.from]
                    .cancel_receive(id)
                    .expect("the cancelled message cannot have matched it");
            }
        }
    }

    pub(crate) fn close(&mut self, fep: &mut Fep, now: Time, id: ConnectionId) {
        self.closing.insert((fep.addr().0, id), false);
        fep.close(now, id).expect("the connection is open, since only the test closes it");
    }

    pub(crate) fn collect(&mut self, feps: &mut [Fep]) {
        for fep in feps {
            while let Some(completion) = fep.poll_completion() {
                self.complete(fep.addr().0, completion);
            }
        }
    }

    fn complete(&mut self, at: u32, completion: Completion) {
        match completion {
            Completion::Sent { id, context, buffer, result, .. } => {
                let message = &mut self.messages[context as usize];
                assert_eq!(
                    (message.send, message.from as u32, message.sent),
                    (id, at, None),
                    "a message completes once, at its sender"
                );
                assert_eq!(
                    buffer,
                    Buffer::Heap(bytes_of(context as usize, message.len)),
                    "the sender gets its memory back unchanged"
                );
                message.sent = Some(result);
            }
            Completion::Received { id, context, result: Err(ReceiveError::Cancelled), .. } => {
                let message = &mut self.messages[context as usize];
                assert_eq!(message.receive.take(), Some(id));
            }
            Completion::Received { id, context, source, tag, header_data, len, buffer, result, .. } => {
                let message = &mut self.messages[context as usize];
                let number = context as usize;
                assert_eq!(
                    (message.receive, message.received),
                    (Some(id), None),
                    "a message is received once"
                );
                assert_eq!((1 - message.from as u32, source), (at, Some(Addr(message.from as u32).into())));
                assert_eq!((tag, header_data, len), (Some(context), !context, message.len));
                let expected = bytes_of(number, message.len)[..message.room as usize].to_vec();
                assert_eq!(buffer, Buffer::Heap(expected), "message {number} is not what was sent");
                message.received = Some(result);
            }
            Completion::Read { context, buffer, result, .. } => {
                let read = &mut self.reads[context as usize];
                assert_eq!((result, read.ended, read.from as u32), (Ok(()), false, at), "{read:?}");
                let memory = memory_of(1 - read.from);
                let expected = memory[read.offset as usize..(read.offset + read.len) as usize].to_vec();
                assert_eq!(buffer, Buffer::Heap(expected), "{read:?} brought other bytes");
                read.ended = true;
            }
            Completion::Accessed { .. } | Completion::Written(_) => panic!("nothing was written"),
            Completion::Closed { id, result, .. } => {
                assert_eq!(result, Ok(()));
                assert_eq!(
                    self.closing.insert((at, id), true),
                    Some(false),
                    "a connection closes once, when it was asked to"
                );
            }
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.closing.values().all(|closed| *closed)
            && self.messages.iter().all(Message::is_done)
            && self.reads.iter().all(|read| read.ended)
    }

    /// The messages and reads that have not completed.
    pub(crate) fn open(&self) -> Vec<String> {
        let open = self.messages.iter().enumerate().filter(|(_, message)| !message.is_done());
        let reads = self.reads.iter().filter(|read| !read.ended).map(|read| format!("{read:?}"));
        open.map(|(number, message)| format!("{number}: {message:?}")).chain(reads).collect()
    }

    pub(crate) fn check(&self) {
        for (number, message) in self.messages.iter().enumerate() {
            let (len, room) = (message.len, message.room);
            let received = if room < len { Err(ReceiveError::Truncated { len, room }) } else { Ok(()) };
            match message.sent {
                Some(Err(SendError::Cancelled)) => {
                    assert_eq!(message.received, None, "message {number} was cancelled and has arrived");
                    continue;
                }
                Some(Ok(())) => {}
                Some(Err(SendError::Answered(ReturnCode::TOO_LONG))) => {
                    assert!(room < len, "message {number}")
                }
                other => panic!("message {number}: {other:?}"),
            }
            assert_eq!(message.received, Some(received), "message {number}");
        }
    }
}

impl Message {
    fn is_done(&self) -> bool {
        match self.sent {
            Some(Err(SendError::Cancelled)) => true,
            Some(_) => self.received.is_some(),
            None => false,
        }
    }
}
