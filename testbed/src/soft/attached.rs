//! The fabric's end of the link to a host.

use std::collections::VecDeque;

use weft_stack::port::{BURST, Frame, Port, RxBurst, TxBurst};

/// Maximum number of frames kept for a host that does not take them. The fabric reserves as many buffers per
/// host, so that a host that is gone takes none from other hosts.
pub(super) const MAX_WAITING: usize = 512;

/// A host attached to the fabric.
pub(super) struct AttachedHost<P> {
    pub(super) port: P,
    /// Frames that the host has sent and that wait for its link.
    waiting: VecDeque<Frame>,
    /// The frame on its link. Its buffer returns to the host when transmission ends.
    leaving: Option<Frame>,
    /// Frames that have arrived and that the port has not taken.
    arrived: VecDeque<Frame>,
    tx: TxBurst,
}

impl<P: Port> AttachedHost<P> {
    pub(super) fn new(port: P) -> AttachedHost<P> {
        let tx = TxBurst::new(&port);
        AttachedHost { port, waiting: VecDeque::new(), leaving: None, arrived: VecDeque::new(), tx }
    }

    /// Receives frames from the host's port. Returns whether there were any.
    pub(super) fn pull(&mut self, scratch: &mut RxBurst) -> bool {
        if self.waiting.len() >= BURST {
            return false;
        }
        let some = self.port.receive(scratch) > 0;
        self.waiting.extend(scratch.drain());
        some
    }

    /// Takes the next frame when the link is free. The frame is kept until the link is free again.
    pub(super) fn next(&mut self) -> Option<&Frame> {
        self.leaving = self.waiting.pop_front();
        self.leaving.as_ref()
    }

    /// Queues a frame for the host. Returns false, and drops the frame, if the host's queue is full.
    pub(super) fn deliver(&mut self, frame: Frame) -> bool {
        let room = self.arrived.len() < MAX_WAITING;
        if room {
            self.arrived.push_back(frame);
        }
        room
    }

    /// Sends the arrived frames to the host, as many as its port takes. Returns whether there were any.
    pub(super) fn push(&mut self) -> bool {
        let mut some = false;
        loop {
            while self.tx.room() > 0
                && let Some(frame) = self.arrived.pop_front()
            {
                // Fails only if the frame is longer than the port can send; all hosts have the same MTU.
                drop(self.tx.push(frame));
            }
            if self.tx.is_empty() || self.port.transmit(&mut self.tx) == 0 {
                return some;
            }
            some = true;
        }
    }
}
