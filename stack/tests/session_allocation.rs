//! Messages through rings cost no allocation once all has grown to what the load needs: counted, with the
//! allocator itself.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use weft_stack::cc::{CcChoice, CcParams, Delays, Rate};
use weft_stack::fep::{ConnectOptions, Fep, FepConfig};
use weft_stack::packet::{Addr, Payload};
use weft_stack::rng::Rng;
use weft_stack::ses::Matching;
use weft_stack::worker::session::{Client, ConnectionHandle, Event, Extent, Report, SessionConfig, Sessions};
use weft_stack::{Span, Time};

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

const LEN: u32 = 20_000;

/// Two endpoints with an application each, the first of which sends to the second.
struct World {
    feps: [Fep; 2],
    sessions: [Sessions; 2],
    sender: Client,
    receiver: Client,
    connection: ConnectionHandle,
    now: Time,
    packet: Vec<u8>,
}

impl World {
    fn new() -> World {
        let network = CcParams {
            mtu: 4096,
            overhead: 64,
            link_rate: Rate::from_gbps(100),
            network_rtt: Span::from_us(10),
            trimming: true,
            delays: Delays::Known,
        };
        let config = Arc::new(FepConfig::new(&CcChoice::default(), &network));
        let mut feps =
            [0, 1].map(|n| Fep::new(Addr(n), config.clone(), Rng::new(1, n.into()), Time::ZERO).unwrap());
        let mut sessions = [Sessions::new(1), Sessions::new(1)];
        let mut open = |n: usize| sessions[n].open(&mut feps[n], &SessionConfig::default(), Some(5)).unwrap();
        let (mut sender, receiver) = (open(0), open(1));
        let options = ConnectOptions { process: 5, ..ConnectOptions::default() };
        let connection = sender.connect(Addr(1), options, 0).unwrap();
        let mut world =
            World { feps, sessions, sender, receiver, connection, now: Time::ZERO, packet: vec![0; 4096] };
        world.turn();
        assert!(matches!(world.sender.poll().unwrap(), Some(Event { report: Report::Connected { .. }, .. })));
        world
    }

    fn turn(&mut self) {
        self.now += Span::from_us(1);
        for side in 0..2 {
            self.sessions[side].serve(&mut self.feps[side], self.now);
            if self.feps[side].poll_timeout().is_some_and(|at| self.now.is_at_or_after(at)) {
                self.feps[side].on_timeout(self.now);
            }
            while let Some(transmit) = self.feps[side].poll_transmit(self.now) {
                let payload = self.feps[side].payload(&transmit.payload);
                let bytes = &mut self.packet[..payload.len() as usize];
                payload.copy_to(bytes);
                self.feps[1 - side].on_packet(self.now, &transmit.packet, Payload::Bytes(bytes));
            }
            self.sessions[side].serve(&mut self.feps[side], self.now);
        }
    }

    /// Passes `count` messages.
    fn pass(&mut self, count: u64) {
        let extent = Extent { region: 0, offset: 64, len: LEN };
        for n in 0..count {
            self.receiver.receive(extent, None, Matching::Untagged, n).unwrap();
            // A message that came before its receive would be kept in a buffer of its own.
            self.turn();
            self.sender.send(self.connection, extent, None, n, n).unwrap();
            let (mut sent, mut received) = (false, false);
            while !(sent && received) {
                self.turn();
                sent |= self.sender.poll().unwrap().is_some_and(|event| {
                    matches!(event.report, Report::Sent { result: Ok(()), .. }) && event.context == n
                });
                received |= self.receiver.poll().unwrap().is_some_and(|event| {
                    matches!(event.report, Report::Received { result: Ok(()), len: LEN, .. })
                });
            }
        }
    }
}

#[test]
fn messages_through_rings_allocate_nothing() {
    let mut world = World::new();
    world.pass(3000);
    let before = ALLOCATIONS.with(Cell::get);
    world.pass(1000);
    let after = ALLOCATIONS.with(Cell::get);
    assert!(before > 0, "the counter counts");
    assert_eq!(after - before, 0, "allocations for 1000 messages");
}
