//! Accesses to memory of others that do not answer.

use weft::core::region::{Region, RegionSlice};
use weft::{AtomicOp, AtomicType, MemorySlice};

use super::*;
use crate::memory::Registration;

#[test]
fn accesses_to_a_peer_that_answers_none_leave_room_for_those_to_others() {
    let served = Served::start("127.40.7.93");
    let [asker, silent, other] = [(); 3].map(|()| served.open(LITTLE));
    let [to_silent, to_other] = [&silent, &other].map(|side| asker.insert(side));
    let access = |peer| {
        let what = What::Write { bytes: OutgoingBytes::Copied(Bytes::from_static(&[1])), data: None };
        let (wanted, further) = (Wanted::AsBound, Vec::new());
        asker.rdm.access(Access { peer, addr: 0, key: 5, context: 1, wanted, more: true, what, further })
    };
    assert!((0..DEPTH).all(|_| access(to_silent).is_ok()));
    assert_eq!(access(to_silent), Err(FiError::AGAIN));
    // Requests that are delivered make room for further ones, whose answers will need memory, too.
    for _ in 0..10 {
        until("all requests are delivered", || {
            assert!(asker.turn().is_none());
            asker.with(|state| state.carrier.as_ref().is_some_and(|carrier| carrier.asked().0)).then_some(())
        });
    }
    let free = asker.with(|state| state.carrier.as_ref().map(|carrier| carrier.free_pieces()));
    assert!(free > Some(0), "the silent one has taken the memory of all pieces");
    assert_eq!(access(to_other), Ok(()));
    let entry = until("the other one answers", || {
        assert!(other.turn().is_none());
        asker.turn()
    });
    // There is no memory under this key, which the other one says.
    let no_key = FiError::from(&weft::Error::Access(weft::ReadFault::Answered(ReturnCode::BAD_MKEY)));
    assert_eq!(entry.problem.map(|problem| problem.error), Some(no_key));
    // The endpoint that was silent answers when it goes on, and each access ends.
    let mut ended = 0;
    until("all accesses end", || {
        assert!(silent.turn().is_none());
        ended += usize::from(asker.turn().is_some());
        (ended == DEPTH).then_some(())
    });
    asker.with(|state| assert_eq!(state.carried_accesses.total(), 0));
}

/// The key of a count.
const COUNT: u64 = 5;

impl Side {
    /// A count that others may add to.
    fn count(&self) -> RegionSlice {
        let count = Region::allocate(8).unwrap().slice(0, 8).unwrap();
        let (bytes, rights) = (Some(count.clone()), Rights { read: true, write: true, atomic: true });
        self.rdm.expose(&Registration { key: COUNT, bytes, base: 0, rights }).unwrap();
        count
    }

    /// Adds one to the count of another one.
    fn add(&self, peer: u64, context: usize) {
        let (op, datatype, operands) = (AtomicOp::SUM, AtomicType::UINT64, 1u64.to_le_bytes().to_vec());
        let what = What::Atomic(AtomicCall { op, datatype, operands, compare: None, room: None });
        let (addr, key, wanted, further) = (0, COUNT, Wanted::AsBound, Vec::new());
        let access = Access { peer, addr, key, context, wanted, more: false, what, further };
        self.rdm.access(access).unwrap();
    }

    fn free_pieces(&self) -> usize {
        self.with(|state| state.carrier.as_ref().unwrap().free_pieces())
    }
}

fn value(count: &RegionSlice) -> u64 {
    let mut bytes = [0; 8];
    count.read(0, &mut bytes);
    u64::from_le_bytes(bytes)
}

/// They are stopped, or hold what they are asked for, and keep no memory that others wait for. Nothing is done twice.
#[test]
fn owners_that_do_not_answer_stop_no_accesses_to_others() {
    const OWNERS: usize = 6;
    const EACH: usize = 8;
    let served = Served::start("127.40.7.12");
    // With memory for two pieces, and for more than the silent ones may keep.
    for memory in [1 << 20, LITTLE] {
        let asker = served.open(memory);
        let owners: Vec<Side> = (0..OWNERS).map(|_| served.open(LITTLE)).collect();
        let to: Vec<u64> = owners.iter().map(|owner| asker.insert(owner)).collect();
        let counts: Vec<RegionSlice> = owners.iter().map(Side::count).collect();
        let all = asker.free_pieces();
        // Those with odd numbers take turns, but have no memory for answers.
        let answers = |owner: &Side| {
            owner.with(|state| std::mem::take(state.carrier.as_mut().unwrap().answer_memory()))
        };
        let mut taken: Vec<Vec<MemorySlice>> = owners.iter().map(answers).collect();
        let give = |owner: usize, memory: Vec<MemorySlice>| {
            owners[owner].with(|state| state.carrier.as_mut().unwrap().answer_memory().extend(memory));
        };
        let mut ended = [0; OWNERS];
        let (last, gone) = (OWNERS - 1, OWNERS - 2);
        give(last, std::mem::take(&mut taken[last]));
        (0..last).for_each(|owner| (0..EACH).for_each(|_| asker.add(to[owner], owner)));
        until("all memory is in use", || {
            assert!(asker.turn().is_none());
            (asker.free_pieces() == 0).then_some(())
        });
        asker.add(to[last], last);
        let mut turns = 0;
        let mut turn = |is_there: &[bool; OWNERS], failed: Option<FiError>| {
            turns += 1;
            if turns % 100 == 0 {
                asker.rdm.ask_peers().unwrap();
            }
            for (owner, side) in owners.iter().enumerate().filter(|(owner, _)| is_there[*owner]) {
                assert!(side.turn().is_none(), "owner {owner}");
            }
            let entry = asker.turn()?;
            assert_eq!(entry.problem.map(|problem| problem.error), failed);
            ended[entry.context] += 1;
            Some((entry.context, ended[entry.context]))
        };
        let mut is_there = std::array::from_fn(|owner| owner == last || owner % 2 == 1);
        let first = until("the access to the last one is done", || turn(&is_there, None));
        assert_eq!((first, value(&counts[last])), ((last, 1), 1), "{memory} bytes");
        // Each of the others goes on while those behind it do not.
        for owner in 0..gone {
            is_there[owner] = true;
            give(owner, std::mem::take(&mut taken[owner]));
            for n in 1..=EACH {
                let end = until("the accesses to the next one are done", || turn(&is_there, None));
                assert_eq!(end, (owner, n), "{memory} bytes");
            }
            assert_eq!(value(&counts[owner]), EACH as u64);
        }
        // One is gone, and with it all that it owes.
        let owner = asker.peer(to[gone]);
        for n in 1..=EACH {
            let end = until("the accesses to the last but one fail", || {
                asker.with(|state| state.fail_asks_of(owner, FiError::REFUSED)).unwrap();
                turn(&is_there, Some(FiError::REFUSED))
            });
            assert_eq!(end, (gone, n), "{memory} bytes");
        }
        assert_eq!(asker.free_pieces(), all);
    }
}

/// There is memory for two pieces, of which owners that do not answer have one, in turns.
#[test]
fn an_owner_that_does_not_answer_leaves_a_turn_to_others_that_have_not_answered() {
    let served = Served::start("127.40.7.13");
    let asker = served.open(1 << 20);
    assert_eq!(asker.free_pieces(), 2);
    let [silent, late, other] = [(); 3].map(|()| served.open(LITTLE));
    let [to_silent, to_late, to_other] = [&silent, &late, &other].map(|side| asker.insert(side));
    let [_, count, _] = [&silent, &late, &other].map(Side::count);
    for (to, context) in [(to_silent, 1), (to_late, 2), (to_late, 3), (to_other, 4)] {
        asker.add(to, context);
    }
    let mut turns = 0;
    let mut turn = |there: &Side| {
        turns += 1;
        if turns % 100 == 0 {
            asker.rdm.ask_peers().unwrap();
        }
        assert!(there.turn().is_none());
        asker.turn().map(|entry| (entry.context, entry.problem.map(|problem| problem.error)))
    };
    assert_eq!(until("the other one answers", || turn(&other)), (4, None));
    // The access that `late` has not answered fails. It still answers the next one.
    let peer = asker.peer(to_late);
    asker.with(|state| state.fail_asks_of(peer, FiError::REFUSED)).unwrap();
    assert_eq!(until("the first access fails", || turn(&other)), (2, Some(FiError::REFUSED)));
    assert_eq!(until("the second one is done", || turn(&late)), (3, None));
    assert_eq!(value(&count), 2, "the first one was done, too");
}
