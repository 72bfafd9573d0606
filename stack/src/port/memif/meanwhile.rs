//! What a peer does to the shared memory between two reads of it, step by step as a test says: threads that write all the
//! time meet the same moment once in millions of tries.
#![forbid(unsafe_code)]

use std::cell::RefCell;

type Peer = Box<dyn FnMut()>;

thread_local! {
    static PEER: RefCell<Option<Peer>> = const { RefCell::new(None) };
}

/// A peer that acts from now on, before each read of a ring by this thread, until this is dropped.
pub(super) struct Meanwhile(());

impl Meanwhile {
    pub(super) fn new(peer: impl FnMut() + 'static) -> Meanwhile {
        PEER.set(Some(Box::new(peer)));
        Meanwhile(())
    }
}

impl Drop for Meanwhile {
    fn drop(&mut self) {
        PEER.take();
    }
}

/// The peer acts, if there is one.
pub(super) fn peer_acts() {
    PEER.with_borrow_mut(|peer| peer.as_mut().map(|act| act()));
}
