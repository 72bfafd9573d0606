//! The property that a peer can change rings, descriptors and buffers at any time, also between two reads of one call, and
//! costs the other end no more than the link. A property test and a fuzz target share it.

use std::cell::RefCell;
use std::rc::Rc;

use super::config::MemifConfig;
use super::link::{Link, Moved};
use super::meanwhile::{Meanwhile, peer_acts};
use super::pair::{MAX_FRAME, Pair, REGISTERED, RING, TO_CLIENT, config, pair};
use super::ring::Checked;
use crate::choices::Choices;
use crate::port::{Attachment, Frame, FramePool, MIN_FRAME, RxBurst, TxBurst};
use crate::region::{Region, RegionSlice};

/// Whatever the peer writes, and whenever: nothing panics; frames are as long as they may be, and their headers stay as
/// they were read; a frame is sent, refused or still there; and the client only reads its registered memory.
pub fn a_peer_that_changes_memory_at_any_time_costs_only_the_link(bytes: &[u8]) {
    // What is done, and what the peer does meanwhile.
    let (calls, changes) = bytes.split_at(bytes.len() / 4);
    let mut choices = Choices(calls);
    let [size, ends] = choices.bytes();
    let buffer_size = [104, 128, 300, MAX_FRAME as u32][usize::from(size % 4)];
    // A server writes to any memory of the client's that the descriptors name.
    let is_server_there = ends & 1 == 0;
    let Pair { mut client, mut server, memory, registered } = pair(buffer_size);
    let all = memory.slice(0, memory.len() as u32).expect("all of it");
    let peer = Rc::new(RefCell::new(Peer { changes: changes.to_vec(), next: 0, all }));
    let acting = peer.clone();
    let _meanwhile = Meanwhile::new(move || acting.borrow_mut().act());

    let pool = FramePool::heap(64, MAX_FRAME).expect("memory");
    let caps = MemifConfig { mtu: MAX_FRAME - MIN_FRAME, ..config(64) }.capabilities();
    let (mut tx, mut kept) = (TxBurst::of(pool.clone(), &caps), RxBurst::with_tails());
    let before = content(&registered);
    while let Some(choice) = choices.next() {
        let link = if is_server_there && choice & 1 == 0 { &mut server } else { &mut client };
        match choice >> 1 & 7 {
            0 | 1 => put(&mut tx, &registered, &mut choices),
            2 | 3 => transmit(link, &mut tx),
            4 => receive(link, &pool, &mut RxBurst::new()),
            5 => receive(link, &pool, &mut kept),
            6 => kept.clear(),
            _ => sleep_and_wake(link),
        }
    }
    client.take_back();
    assert!(is_server_there || content(&registered) == before, "the client has written to registered memory");
}

fn content(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; REGISTERED];
    region.slice(0, REGISTERED as u32).expect("all of it").read(0, &mut bytes);
    bytes
}

/// Puts a frame into the burst, if that has room, in one piece or with payload in registered memory.
fn put(tx: &mut TxBurst, registered: &Region, choices: &mut Choices<'_>) {
    let [style, len] = choices.bytes();
    let (head, attached) = match style % 4 {
        0 => (MIN_FRAME, 0),
        1 => (MIN_FRAME + 3 * usize::from(len), 0),
        2 => (MIN_FRAME + usize::from(len / 4), 1 + 2 * u32::from(len)),
        _ => (MIN_FRAME + 2 * usize::from(len), 100),
    };
    let Ok(mut reserved) = tx.reserve(head) else { return };
    reserved.fill(style);
    if attached > 0 {
        let slice = registered.slice(64 * u64::from(len), attached).expect("within");
        reserved.attach(Attachment::from(slice)).expect("memory that can be shared");
    }
    reserved.commit();
}

fn transmit(link: &mut Link, tx: &mut TxBurst) {
    let before = tx.len();
    let moved: Checked<Moved> = link.transmit(tx);
    match moved {
        Ok(Moved { frames, errors, .. }) => assert_eq!(before - tx.len(), frames + errors as usize),
        Err(_) => assert_eq!(tx.len(), before, "nothing is lost"),
    }
    if tx.room() == 0 {
        tx.clear();
    }
}

fn receive(link: &mut Link, pool: &FramePool, rx: &mut RxBurst) {
    let before = rx.len();
    let moved = link.receive(rx, pool, MAX_FRAME).map(|moved| moved.frames).unwrap_or(0);
    assert_eq!(rx.len() - before, moved);
    rx.iter().for_each(check);
}

fn check(frame: &Frame) {
    assert!((MIN_FRAME..=MAX_FRAME).contains(&frame.total_len()) && frame.len() <= frame.total_len());
    let head = frame.to_vec();
    peer_acts();
    assert!(**frame == head[..], "what is checked is not what is used");
    let whole = FramePool::heap(1, MAX_FRAME).ok().and_then(|pool| frame.gather(&pool)).expect("a buffer");
    assert_eq!(whole.len(), frame.total_len());
    assert!(whole.starts_with(&head));
}

fn sleep_and_wake(link: &mut Link) {
    link.listen();
    let _ = link.is_taken_in();
    link.look_out();
}

/// The other process, which can write to the memory at any time.
struct Peer {
    changes: Vec<u8>,
    next: usize,
    all: RegionSlice,
}

impl Peer {
    /// Does nothing in most cases, else changes an index, a flag or a field of a descriptor.
    fn act(&mut self) {
        let mut choices = Choices(self.changes.get(self.next..).unwrap_or_default());
        let choice = choices.byte();
        if choice & 3 == 0 {
            let [field, value] = choices.bytes();
            let ring = if choice & 4 == 0 { 0 } else { TO_CLIENT };
            let slot = ring + 128 + 16 * (u32::from(choice >> 3) % (1 << RING));
            match field % 8 {
                // The indices of client and server: often one that is possible.
                0 => self.move_index(ring + 6, value),
                1 => self.move_index(ring + 64, value),
                2 => self.write(ring + 4, &[value & 1, 0]),
                3 => self.write(slot, &[value & 1, 0]),
                4 => self.write(slot + 2, &[value % 3, 0]),
                5 => self.write(slot + 4, &[value, field >> 6, 0, if value == 255 { field } else { 0 }]),
                6 => self.write(slot + 8, &[value, field, 0, if value == 255 { field } else { 0 }]),
                // A buffer.
                _ => self.write(self.all.len() - 1 - 8 * u32::from(value), &[field]),
            }
            self.next += 2;
        }
        self.next += 1;
    }

    fn move_index(&self, at: u32, by: u8) {
        let mut index = [0; 2];
        self.all.read(at, &mut index);
        let index = u16::from_ne_bytes(index).wrapping_add_signed((by as i8 / 16).into());
        self.write(at, &index.to_ne_bytes());
    }

    fn write(&self, at: u32, bytes: &[u8]) {
        self.all.write(at, bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_peer_may_change_memory_at_any_time(bytes in prop::collection::vec(any::<u8>(), 0..800)) {
            a_peer_that_changes_memory_at_any_time_costs_only_the_link(&bytes);
        }
    }

    /// The seeds of the fuzz target: frames that a client sends and its server receives, and the reverse, while the other process
    /// does nothing, moves an index or changes a descriptor.
    #[test]
    fn the_seeds_are_transfers_with_changes_beside_them() {
        // Put in one piece and with a part in registered memory, send, receive in two ways, give back, sleep.
        let both = [0, 0, 1, 1, 50, 1, 2, 60, 5, 8, 10, 0, 1, 9, 4, 9, 11, 12, 13, 14, 15];
        let client_alone = [3, 1, 1, 0, 0, 1, 3, 9, 5, 9, 11, 13, 15];
        let seed = |calls: &[u8], changes: &[u8]| -> Vec<u8> {
            calls.iter().chain(changes.iter().cycle().take(3 * calls.len())).copied().collect()
        };
        let seeds = [
            ("both_ends", seed(&both, &[1])),
            ("a_client_alone", seed(&client_alone, &[1])),
            ("an_index_moves", seed(&both, &[1, 1, 1, 0, 0, 16, 1, 1])),
            ("a_descriptor_changes", seed(&both, &[1, 0, 6, 200, 1, 0, 5, 255, 1, 4, 3, 1])),
        ];
        let property = a_peer_that_changes_memory_at_any_time_costs_only_the_link;
        crate::seeds::check("memif_rings", &seeds, property);
    }

    /// Else little would have been tried above: between the two reads of a descriptor, and of the descriptors of one frame.
    #[test]
    fn the_peer_acts_in_the_midst_of_a_call() {
        let Pair { mut client, mut server, .. } = pair(128);
        let pool = FramePool::heap(8, MAX_FRAME).unwrap();
        let mut tx = TxBurst::of(pool.clone(), &config(64).capabilities());
        let mut reserved = tx.reserve(300).unwrap();
        reserved.fill(1);
        reserved.commit();
        assert_eq!(client.transmit(&mut tx).unwrap().frames, 1);
        let acts = Rc::new(RefCell::new(0));
        let count = acts.clone();
        let meanwhile = Meanwhile::new(move || *count.borrow_mut() += 1);
        assert_eq!(server.receive(&mut RxBurst::new(), &pool, MAX_FRAME).unwrap().frames, 1);
        // The index, and three descriptors twice, of two words each.
        assert_eq!(*acts.borrow(), 1 + 3 * 2 * 2);
        drop(meanwhile);
        server.listen();
        assert_eq!(*acts.borrow(), 13, "it acts no more");
    }
}
