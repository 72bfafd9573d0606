//! One endpoint by itself. The test plays the network and the peer.

use weft_stack::fep::{Completion, ConnectOptions, ConnectionId, Fep, FepConfig, Send, SendId};
use weft_stack::packet::{Addr, Packet, Payload};
use weft_stack::{Span, Time};

use super::{fep, impatient_config};

/// Endpoint 0, and a clock that starts at [`Time::ZERO`].
pub(crate) struct Alone {
    pub(crate) fep: Fep,
    pub(crate) now: Time,
}

impl Alone {
    pub(crate) fn new(config: FepConfig) -> Alone {
        Alone { fep: fep(0, config, 3, Time::ZERO), now: Time::ZERO }
    }

    /// One that gives up soon: with [`impatient_config`].
    pub(crate) fn impatient() -> Alone {
        Alone::new(impatient_config())
    }

    /// Opens a connection to endpoint 1.
    pub(crate) fn connect(&mut self) -> ConnectionId {
        self.fep.connect(self.now, Addr(1), ConnectOptions::default()).unwrap()
    }

    pub(crate) fn post_send(&mut self, connection: ConnectionId, send: Send) -> SendId {
        self.fep.post_send(connection, send).unwrap()
    }

    /// The next packet that leaves now.
    pub(crate) fn transmit(&mut self) -> Option<Packet> {
        self.fep.poll_transmit(self.now).map(|transmit| transmit.packet)
    }

    /// All packets that leave now.
    pub(crate) fn transmit_all(&mut self) -> Vec<Packet> {
        std::iter::from_fn(|| self.transmit()).collect()
    }

    /// A packet arrives now.
    pub(crate) fn arrive(&mut self, packet: &Packet, payload: &[u8]) {
        self.fep.on_packet(self.now, packet, Payload::Bytes(payload));
    }

    /// Sets the clock to `at` and lets the timers expire that are due then.
    pub(crate) fn expire_at(&mut self, at: Time) {
        self.now = at;
        self.fep.on_timeout(at);
    }

    pub(crate) fn completions(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.fep.poll_completion()).collect()
    }

    pub(crate) fn leaks(&self) -> Vec<String> {
        self.fep.leaks().collect()
    }

    /// Runs from timer to timer until none is due before `until` after [`Time::ZERO`]. Each packet that leaves is
    /// shown to `answer`, whose packet, if any, arrives 2 µs later. Returns all completions.
    pub(crate) fn run(
        &mut self,
        until: Span,
        mut answer: impl FnMut(&Packet) -> Option<Packet>,
    ) -> Vec<Completion> {
        let mut done = Vec::new();
        loop {
            while let Some(packet) = self.transmit() {
                if let Some(answer) = answer(&packet) {
                    self.now += Span::from_us(2);
                    self.arrive(&answer, &[]);
                }
            }
            done.extend(self.completions());
            let due = self.fep.poll_timeout().filter(|at| at.since(Time::ZERO) < until);
            let Some(at) = due else { return done };
            self.expire_at(at.latest(self.now));
        }
    }
}
