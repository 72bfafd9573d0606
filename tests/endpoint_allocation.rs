//! Messages through an endpoint cost no allocation once all has grown to what the load needs: counted, with the allocator
//! itself.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use weft::{Completion, ConnectionId, Endpoint, ReceiveBuffer, SendBuffer, SendOptions};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting.
struct Counting;

// SAFETY: every call is passed on as it came; the counter neither allocates nor needs a destructor. The
// methods that are not overridden call these two.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Both ends of a link, in this thread.
struct Pair {
    sender: Endpoint,
    receiver: Endpoint,
    connection: ConnectionId,
}

impl Pair {
    fn new(thread: bool) -> Pair {
        let open = |n: u8, role: &str| {
            let spec = format!("memif:@weft-allocation-{thread}-{},role={role}", std::process::id());
            let builder = Endpoint::builder(spec).ip([10, 0, 0, n].into()).memory(1 << 20);
            (if thread { builder.on_thread(None) } else { builder }).build().unwrap()
        };
        let (mut sender, receiver) = (open(1, "server"), open(2, "client"));
        let peer = sender.peer("10.0.0.2").unwrap();
        let connection = sender.connect(peer).unwrap();
        Pair { sender, receiver, connection }
    }

    /// Sends `buffer` into `room` and returns both; copies a short message as well.
    fn exchange(&mut self, buffer: SendBuffer, room: ReceiveBuffer) -> (SendBuffer, ReceiveBuffer) {
        self.receiver.receive(room).unwrap();
        self.sender.send(self.connection, buffer).unwrap();
        let (mut sent, mut received, begin) = (None, None, Instant::now());
        while sent.is_none() || received.is_none() {
            assert!(begin.elapsed() < Duration::from_secs(20));
            match self.sender.poll().unwrap() {
                Some(Completion::Sent { buffer, result, .. }) => {
                    result.unwrap();
                    sent = Some(buffer);
                }
                Some(Completion::Connected { .. }) | None => {}
                Some(other) => panic!("{other:?}"),
            }
            if let Some(Completion::Received { buffer, result, .. }) = self.receiver.poll().unwrap() {
                result.unwrap();
                received = Some(buffer);
            }
        }
        (sent.unwrap(), received.unwrap())
    }

    fn copy(&mut self, room: ReceiveBuffer) -> ReceiveBuffer {
        self.sender.send_copy(self.connection, &[7; 100], SendOptions::default()).unwrap();
        self.receiver.receive(room).unwrap();
        let (mut sent, mut received) = (false, None);
        while !sent || received.is_none() {
            sent |= matches!(self.sender.poll().unwrap(), Some(Completion::Sent { result: Ok(()), .. }));
            if let Some(Completion::Received { buffer, .. }) = self.receiver.poll().unwrap() {
                received = Some(buffer);
            }
        }
        received.unwrap()
    }
}

#[test]
fn a_steady_flow_of_messages_allocates_nothing() {
    for thread in [false, true] {
        let mut pair = Pair::new(thread);
        let mut sends = [SendBuffer::from(Bytes::from(vec![1; 9000])), vec![2; 9000].into()];
        let mut rooms = [ReceiveBuffer::from(BytesMut::zeroed(9000)), vec![0; 9000].into()];
        let slice = pair.sender.memory().allocate(9000).unwrap();
        let room = pair.receiver.memory().allocate(9000).unwrap();
        let (mut registered, mut registered_room) = (SendBuffer::from(slice), ReceiveBuffer::from(room));
        let (mut before, mut counted, begin) = (0, 0, Instant::now());
        for round in 1.. {
            // A level of the timing wheel is made when the clock first needs it: the one for a quarter of a second when that
            // time is up, the next one after 17 s.
            if counted == 0 && round > 300 && begin.elapsed() > Duration::from_millis(500) {
                before = ALLOCATIONS.with(Cell::get);
                counted = round;
            }
            if counted > 0 && round == counted + 300 {
                break;
            }
            for kind in 0..2 {
                let buffer = std::mem::replace(&mut sends[kind], SendBuffer::Copied);
                let room = std::mem::replace(&mut rooms[kind], Vec::new().into());
                (sends[kind], rooms[kind]) = pair.exchange(buffer, room);
            }
            (registered, registered_room) = pair.exchange(registered, registered_room);
            let room = std::mem::replace(&mut rooms[1], Vec::new().into());
            rooms[1] = pair.copy(room);
        }
        assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0, "with the worker on a thread: {thread}");
    }
}
