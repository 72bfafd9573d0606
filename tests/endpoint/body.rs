//! The steps of an application with two endpoints, for any port and any place where their workers run.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use weft::{
    CallError, Completion, ConnectOptions, ConnectionId, Endpoint, Error, OperationId, ReceiveBuffer,
    ReceiveError, ReceiveOptions, SendBuffer, SendError, SendOptions, Source,
};

/// The longest time that anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// The application's endpoint. Nothing but the name says what it runs over.
pub(crate) fn open(name: &str) -> Endpoint {
    Endpoint::builder(name).memory(16 << 20).process(0).build().unwrap()
}

/// Two endpoints that can reach each other.
pub(crate) struct Pair {
    pub(crate) left: Side,
    pub(crate) right: Side,
}

/// One of them, with what it has completed.
pub(crate) struct Side {
    pub(crate) endpoint: Endpoint,
    /// Its address, as the other one names it.
    pub(crate) address: String,
    completed: Vec<Completion>,
}

impl Side {
    pub(crate) fn new(endpoint: Endpoint, address: impl Into<String>) -> Side {
        Side { endpoint, address: address.into(), completed: Vec::new() }
    }

    fn poll(&mut self) {
        while let Some(completion) = self.endpoint.poll().expect("the worker is there") {
            self.completed.push(completion);
        }
    }

    fn take(&mut self, wanted: impl Fn(&Completion) -> bool) -> Option<Completion> {
        let at = self.completed.iter().position(wanted)?;
        Some(self.completed.remove(at))
    }
}

impl Pair {
    /// Polls both until `find` finds something.
    pub(crate) fn until<T>(&mut self, what: &str, mut find: impl FnMut(&mut Pair) -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            self.left.poll();
            self.right.poll();
            if let Some(found) = find(self) {
                return found;
            }
            assert!(begin.elapsed() < PATIENCE, "{what}: {}", self.describe());
        }
    }

    fn describe(&self) -> String {
        let side =
            |side: &Side| format!("completed {:?}; waits for {:?}", side.completed, side.endpoint.explain());
        format!("left {}\nright {}", side(&self.left), side(&self.right))
    }

    /// A connection from the left to the right.
    pub(crate) fn connect(&mut self) -> ConnectionId {
        let address = self.right.address.clone();
        let peer = self.left.endpoint.peer(address.as_str()).unwrap();
        let process = self.right.endpoint.process();
        let options = ConnectOptions { process, ..ConnectOptions::default() };
        let connection = self.left.endpoint.connect_with(peer, options).unwrap();
        self.until("connected", |pair| {
            pair.left.take(
                |c| matches!(c, Completion::Connected { connection: id, peer: p } if *id == connection && *p == peer),
            )
        });
        connection
    }

    /// The buffer of message `operation`, once it has been delivered.
    pub(crate) fn sent(&mut self, operation: OperationId) -> SendBuffer {
        let (buffer, result) = self.send_ended(operation);
        result.unwrap();
        buffer
    }

    /// The buffer of message `operation`, and whether it was delivered.
    pub(crate) fn send_ended(&mut self, operation: OperationId) -> (SendBuffer, Result<(), Error>) {
        let completion = self.until("sent", |pair| {
            pair.left.take(|c| matches!(c, Completion::Sent { operation: id, .. } if *id == operation))
        });
        let Completion::Sent { result, buffer, .. } = completion else { unreachable!() };
        (buffer, result)
    }

    /// Why a connection that the left has opened was closed.
    pub(crate) fn why_closed(&mut self, connection: ConnectionId) -> Result<(), Error> {
        let closed = self.until("closed", |pair| {
            pair.left.take(|c| matches!(c, Completion::Closed { connection: id, .. } if *id == connection))
        });
        let Completion::Closed { result, .. } = closed else { unreachable!() };
        result
    }

    /// The completion of receive `operation` at the right endpoint.
    pub(crate) fn received(&mut self, operation: OperationId) -> Completion {
        self.until("received", |pair| {
            pair.right.take(|c| matches!(c, Completion::Received { operation: id, .. } if *id == operation))
        })
    }
}

/// Bytes that differ from each other and from those of other lengths.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251 + len) as u8).collect()
}

/// Everything that can be done with two endpoints that `open` opens.
pub(crate) fn exchange(pair: &mut Pair) {
    let connection = pair.connect();
    for len in [0, 1, 63, 1023, 4095, 4096, 4097, 8999, 9000, 9001, 1 << 20] {
        untagged(pair, connection, len);
    }
    every_kind_of_buffer(pair, connection);
    tagged(pair, connection);
    directed(pair, connection);
    truncated(pair, connection);
    cancelled(pair);
    closed(pair, connection);
}

fn untagged(pair: &mut Pair, connection: ConnectionId, len: usize) {
    let message = pattern(len);
    let options = SendOptions::default().header_data(len as u64).context(7);
    let receive = pair.right.endpoint.receive(vec![0; len + 10]).unwrap();
    let send = pair.left.endpoint.send_with(connection, message.clone(), options).unwrap();
    assert!(matches!(pair.sent(send), SendBuffer::Vec(bytes) if bytes == message), "{len}");
    let received = pair.received(receive);
    assert_eq!(received.message().unwrap(), message, "{len}");
    let Completion::Received { tag, header_data, len: told, buffer, .. } = received else { unreachable!() };
    assert_eq!((tag, header_data, told as usize, buffer.len()), (None, len as u64, len, len + 10));
}

fn every_kind_of_buffer(pair: &mut Pair, connection: ConnectionId) {
    let mut kinds: Vec<(SendBuffer, Vec<u8>)> = vec![
        (Bytes::from(pattern(5001)).slice(1..).into(), pattern(5001)[1..].to_vec()),
        (BytesMut::from(&pattern(5002)[..]).into(), pattern(5002)),
        (b"static".into(), b"static".to_vec()),
        (pattern(5003).into(), pattern(5003)),
    ];
    let registered = pair.left.endpoint.memory().size() > 0;
    if registered {
        let mut slice = pair.left.endpoint.memory().allocate(5000).unwrap();
        slice.write(0, &pattern(5000));
        slice.truncate(4999);
        kinds.push((slice.into(), pattern(5000)[..4999].to_vec()));
    }
    for (buffer, expected) in kinds {
        let mut room: Vec<ReceiveBuffer> = vec![BytesMut::zeroed(6000).into(), vec![0; 6000].into()];
        if registered {
            room.push(pair.right.endpoint.memory().allocate(6000).unwrap().into());
        }
        let mut buffer = buffer;
        for room in room {
            let receive = pair.right.endpoint.receive(room).unwrap();
            let send = pair.left.endpoint.send(connection, buffer).unwrap();
            buffer = pair.sent(send);
            let received = pair.received(receive);
            assert_eq!(received.message().unwrap(), expected);
            if let Completion::Received { buffer: ReceiveBuffer::Memory(slice), .. } = received {
                pair.right.endpoint.memory().free(slice).unwrap();
            }
        }
        if let SendBuffer::Memory(slice) = buffer {
            pair.left.endpoint.memory().free(slice).unwrap();
        }
    }
    let receive = pair.right.endpoint.receive(vec![0; 4096]).unwrap();
    let message = pattern(4096);
    let send = pair.left.endpoint.send_copy(connection, &message, SendOptions::default()).unwrap();
    assert!(matches!(pair.sent(send), SendBuffer::Copied));
    assert_eq!(pair.received(receive).message().unwrap(), message);
    let error = pair.left.endpoint.send_copy(connection, &[0; 4097], SendOptions::default()).unwrap_err();
    assert_eq!(error, Error::TooLongToCopy { len: 4097, most: 4096 });
}

fn tagged(pair: &mut Pair, connection: ConnectionId) {
    let exact = ReceiveOptions::default().tag(0x77);
    let masked = ReceiveOptions::default().tags(0x1200, 0xff).context(9);
    let masked = pair.right.endpoint.receive_with(vec![0; 10], masked).unwrap();
    let untagged = pair.right.endpoint.receive(vec![0; 10]).unwrap();
    let exact = pair.right.endpoint.receive_with(vec![0; 10], exact).unwrap();
    for (tag, text) in [(Some(0x77), &b"exact"[..]), (None, b"none"), (Some(0x1234), b"masked")] {
        let options = tag.map_or(SendOptions::default(), |tag| SendOptions::default().tag(tag));
        let send = pair.left.endpoint.send_with(connection, text.to_vec(), options).unwrap();
        pair.sent(send);
    }
    for (receive, tag, text) in
        [(exact, Some(0x77), "exact"), (untagged, None, "none"), (masked, Some(0x1234), "masked")]
    {
        let received = pair.received(receive);
        assert_eq!(received.message().unwrap(), text);
        let Completion::Received { tag: told, context, .. } = received else { unreachable!() };
        assert_eq!((told, context), (tag, if tag == Some(0x1234) { 9 } else { 0 }));
    }
}

/// A receive for one sender takes its messages. One for another endpoint does not, nor one for another process.
fn directed(pair: &mut Pair, connection: ConnectionId) {
    let address = pair.left.address.clone();
    let left = pair.right.endpoint.peer(address.as_str()).unwrap();
    let left = Source { peer: left, process: pair.left.endpoint.process() };
    let elsewhere = Source { peer: weft::Addr(left.peer.0 + 17), ..left };
    let neighbour = Source { process: left.process ^ 1, ..left };
    let [elsewhere, neighbour, ours] = [elsewhere, neighbour, left].map(|source| {
        let options = ReceiveOptions::default().tag(5).from(source);
        pair.right.endpoint.receive_with(vec![0; 10], options).unwrap()
    });
    let send = pair.left.endpoint.send_with(connection, b"from here", SendOptions::default().tag(5)).unwrap();
    pair.sent(send);
    let Completion::Received { source, .. } = pair.received(ours) else { unreachable!() };
    assert_eq!(source, Some(left));
    for other in [elsewhere, neighbour] {
        pair.right.endpoint.cancel(other).unwrap();
        assert_cancelled(pair.received(other));
    }
}

fn truncated(pair: &mut Pair, connection: ConnectionId) {
    let receive = pair.right.endpoint.receive(vec![0; 3]).unwrap();
    let send = pair.left.endpoint.send(connection, b"abcdef").unwrap();
    // The sender is told that the message was too long, unless that was not known yet when it arrived.
    assert!(matches!(pair.send_ended(send).1, Ok(()) | Err(Error::Send(SendError::Answered(_)))));
    let Completion::Received { buffer: ReceiveBuffer::Vec(bytes), len, result, .. } = pair.received(receive)
    else {
        panic!("the buffer comes back as it was given");
    };
    let truncated = ReceiveError::Truncated { len: 6, room: 3 };
    assert_eq!((&bytes[..], len, result), (&b"abc"[..], 6, Err(truncated.into())));
}

fn cancelled(pair: &mut Pair) {
    let receive = pair.right.endpoint.receive(vec![5; 10]).unwrap();
    pair.right.endpoint.cancel(receive).unwrap();
    assert_cancelled(pair.received(receive));
}

fn assert_cancelled(completion: Completion) {
    let Completion::Received { buffer, result, source, .. } = completion else { unreachable!() };
    assert_eq!((buffer.len(), result, source), (10, Err(ReceiveError::Cancelled.into()), None));
}

fn closed(pair: &mut Pair, connection: ConnectionId) {
    let receive = pair.right.endpoint.receive(vec![0; 10]).unwrap();
    let send = pair.left.endpoint.send(connection, b"last").unwrap();
    pair.left.endpoint.close(connection).unwrap();
    assert_eq!(pair.why_closed(connection), Ok(()));
    pair.sent(send);
    assert_eq!(pair.received(receive).message().unwrap(), &b"last"[..]);
    let refused = pair.left.endpoint.send(connection, b"too late".to_vec()).unwrap_err();
    assert_eq!(refused.error, Error::Refused(CallError::NotOpen));
    assert!(matches!(refused.buffer, SendBuffer::Vec(bytes) if bytes == b"too late"));
}

/// Posts more messages than there is room for: the buffer that does not fit comes back, and goes out later.
pub(crate) fn back_pressure(pair: &mut Pair) {
    let connection = pair.connect();
    let mut posted = Vec::new();
    let (refused, buffer) = loop {
        match pair.left.endpoint.send(connection, pattern(1000 + posted.len())) {
            Ok(operation) => posted.push(operation),
            Err(refused) => break (refused.error, refused.buffer),
        }
        assert!(posted.len() < 100_000, "there is a limit");
    };
    assert!(refused.is_back_pressure(), "{refused}");
    assert_eq!(buffer.len(), 1000 + posted.len());
    let receives: Vec<_> = (0..=posted.len()).map(|_| receive(pair, vec![0; 200_000])).collect();
    let mut waiting = Some(buffer);
    let last = pair.until("room for the last message", |pair| {
        match pair.left.endpoint.send(connection, waiting.take()?) {
            Ok(operation) => Some(operation),
            Err(refused) => {
                waiting = Some(refused.buffer);
                None
            }
        }
    });
    posted.push(last);
    for (n, (send, receive)) in posted.into_iter().zip(receives).enumerate() {
        let expected = pattern(1000 + n);
        assert!(matches!(pair.sent(send), SendBuffer::Vec(bytes) if bytes == expected));
        // Messages may overtake each other.
        assert!(pair.received(receive).message().is_some());
    }
}

/// Posts a receive, later if there is no room for it now.
fn receive(pair: &mut Pair, buffer: Vec<u8>) -> OperationId {
    let mut buffer = Some(ReceiveBuffer::from(buffer));
    // Both ends are polled: a session whose reports are not taken has its commands left alone.
    pair.until("room for a receive", |pair| match pair.right.endpoint.receive(buffer.take()?) {
        Ok(operation) => Some(operation),
        Err(refused) => {
            buffer = Some(refused.buffer);
            None
        }
    })
}
