//! The fabric's end of a host's link.

use std::collections::VecDeque;

use weft_stack::port::{BURST, Frame, Port, RxBurst, TxBurst};

/// Frames that are kept for a host that does not take them. The fabric has buffers for as many, so that one host
/// that is gone costs the others none.
pub(super) const MAX_WAITING: usize = 512;

/// A host, as the fabric sees it.
pub(super) struct AttachedHost<P> {
    pub(super) port: P,
    /// What the host has sent and its link has not begun to carry.
    waiting: VecDeque<Frame>,
    /// What its link carries now. The host has the buffer back when that is over.
    leaving: Option<Frame>,
    /// What has arrived and the port has not taken.
    arrived: VecDeque<Frame>,
    tx: TxBurst,
}

impl<P: Port> AttachedHost<P> {
    pub(super) fn new(port: P) -> AttachedHost<P> {
        let tx = TxBurst::new(&port);
        AttachedHost { port, waiting: VecDeque::new(), leaving: None, arrived: VecDeque::new(), tx }
    }

    /// Takes in what the host has sent. Returns whether there was anything.
    pub(super) fn pull(&mut self, scratch: &mut RxBurst) -> bool {
        if self.waiting.len() >= BURST {
            return false;
        }
        let some = self.port.receive(scratch) > 0;
        self.waiting.extend(scratch.drain());
        some
    }

    /// The link is free: the frame that it carries next stays with it until the link is free again.
    pub(super) fn next(&mut self) -> Option<&Frame> {
        self.leaving = self.waiting.pop_front();
        self.leaving.as_ref()
    }

    /// A frame has arrived. False if it is dropped, because the host takes none.
    pub(super) fn deliver(&mut self, frame: Frame) -> bool {
        let room = self.arrived.len() < MAX_WAITING;
        if room {
            self.arrived.push_back(frame);
        }
        room
    }

    /// Hands the host what has arrived, as much as its port takes. Returns whether that was anything.
    pub(super) fn push(&mut self) -> bool {
        let mut some = false;
        loop {
            while self.tx.room() > 0
                && let Some(frame) = self.arrived.pop_front()
            {
                // Refused only where it is longer than the port sends; hosts have one MTU.
                drop(self.tx.push(frame));
            }
            if self.tx.is_empty() || self.port.transmit(&mut self.tx) == 0 {
                return some;
            }
            some = true;
        }
    }
}
