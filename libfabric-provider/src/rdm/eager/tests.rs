//! Budgets of single peers, and endpoints that ask each other.

use std::sync::{Arc, Mutex, mpsc};

use weft::SendBuffer;

use super::super::Rdm;
use super::super::backlog::Unsent;
use super::super::operation::Operation;
use super::super::send::tests::endpoint;
use super::*;
use crate::addresses::Addresses;
use crate::error::lock;

const PEER: Source = Source { peer: weft::Addr(3), process: 4 };
const MIB: usize = 1 << 20;

fn stands(eager: &mut Eager, len: usize) -> bool {
    eager.goes(PEER, len, true) == Goes::ByStandIn
}

/// The peer has received all but so many messages and bytes of what had ended when it was asked, and grants as much as it ever does.
fn answer(eager: &mut Eager, question: u32, messages: u64, bytes: usize) {
    eager.learn(PEER, question, &Answer { messages, bytes: bytes as u64, granted: MOST });
}

/// A peer that has been asked, and has granted as much as it ever does.
fn granted() -> Eager {
    let mut eager = Eager::default();
    assert!(eager.ask(PEER));
    eager.mark(PEER, 0);
    answer(&mut eager, 0, 0, 0);
    eager
}

#[test]
fn what_a_peer_has_received_makes_room_and_what_it_keeps_does_not() {
    let mut eager = granted();
    let (mut sent, mut asks) = (Vec::new(), 0);
    for n in 0..24 {
        assert!(!stands(&mut eager, MIB), "{n}");
        let (counted, is_much) = eager.begin(PEER, MIB as u32, false);
        sent.push(counted);
        asks += u32::from(is_much && eager.ask(PEER));
    }
    assert_eq!(asks, 1, "one question is under way");
    assert!(stands(&mut eager, MIB) && !stands(&mut eager, MIDDLE));
    assert_eq!(eager.goes(PEER, MIB, false), Goes::AtOnce);
    // Twenty have been acknowledged when it is asked, and it keeps six, of which two have come since.
    (0..20).for_each(|n| assert!(!eager.end(sent[n])));
    eager.mark(PEER, 7);
    (20..22).for_each(|n| assert!(!eager.end(sent[n])));
    answer(&mut eager, 6, 0, 0);
    assert!(stands(&mut eager, MIB), "the answer to another question");
    answer(&mut eager, 7, 6, 6 * MIB);
    assert!(!stands(&mut eager, 14 * MIB) && stands(&mut eager, 14 * MIB + 1));
    // A question that has failed changes nothing, and one to a peer that is gone lets a message end as all do that are sent to it.
    eager.has_failed(PEER, FiError::OTHER);
    assert!(stands(&mut eager, 24 * MIB) && eager.take_gone(PEER).is_none());
    eager.has_failed(PEER, FiError::REFUSED);
    assert!(!stands(&mut eager, 24 * MIB));
    eager.begin(PEER, 1, false);
    assert!(!stands(&mut eager, 24 * MIB), "a short one is always sent");
    eager.begin(PEER, MIB as u32, false);
    assert!(stands(&mut eager, 24 * MIB) && eager.take_gone(PEER).is_none());
    // One that no target keeps is not sent there: its call is refused, and the next one asks again.
    eager.has_failed(PEER, FiError::TIMED_OUT);
    assert!(stands(&mut eager, 25 * MIB));
    assert_eq!([eager.take_gone(PEER), eager.take_gone(PEER)], [Some(FiError::TIMED_OUT), None]);
    assert!(stands(&mut eager, 24 * MIB));
    // One that cannot be asked is sent everything, until it has answered.
    eager.is_unasked(PEER);
    assert!(!stands(&mut eager, 99 * MIB));
    answer(&mut eager, 7, 24, 24 * MIB);
    assert!(stands(&mut eager, 99 * MIB));
}

/// However short they are: what a target keeps is bounded by their number, and what stands for longer ones is as short.
#[test]
fn so_many_messages_are_sent_that_a_target_keeps_them_and_the_next_ones_are_refused() {
    let mut eager = granted();
    let (mut sent, mut asks, mut bytes) = (Vec::new(), 0, 0);
    for n in 0..MESSAGES {
        // Long ones as long as there is room, and short ones and stand-ins of the greatest lengths.
        let len = [MIDDLE, 1_023][n as usize % 2];
        let goes = eager.goes(PEER, len, len >= UNIT as usize);
        assert!(goes != Goes::Not, "message {n}");
        let len = if goes == Goes::ByStandIn { 1_039 } else { len as u32 };
        bytes += u64::from(len);
        let (counted, is_much) = eager.begin(PEER, len, goes == Goes::ByStandIn);
        sent.push(counted);
        asks += u32::from(is_much && eager.ask(PEER));
    }
    assert!(asks == 1 && bytes <= 98 << 20, "{asks} questions, {bytes} bytes");
    assert_eq!([0, 5_000].map(|len| eager.goes(PEER, len, len > 0)), [Goes::Not; 2]);
    assert_eq!(eager.goes(PEER, 5_000, false), Goes::Not);
    let ends = sent.into_iter().filter(|counted| eager.end(*counted)).count();
    assert_eq!(ends, 1, "the last one");
    eager.mark(PEER, 1);
    answer(&mut eager, 1, MESSAGES - 1, 1 << 20);
    assert_eq!(eager.goes(PEER, 0, false), Goes::AtOnce);
    eager.begin(PEER, 0, false);
    assert_eq!(eager.goes(PEER, 0, false), Goes::Not);
    // A peer that is gone refuses messages itself. The answer to a question about it is not trusted for long.
    eager.has_failed(PEER, FiError::REFUSED);
    assert_eq!(eager.goes(PEER, 0, false), Goes::AtOnce);
    eager.get(PEER).unwrap().gone = Some((FiError::REFUSED, ago(GONE)));
    assert_eq!(eager.goes(PEER, 0, false), Goes::Not);
}

#[test]
fn nothing_is_kept_of_peers_that_are_gone_once_their_messages_have_ended() {
    let (mut eager, peer) = (Eager::default(), |host| Source { peer: weft::Addr(host), process: 1 });
    let one = peer(1);
    assert_eq!(eager.goes(one, 0, false), Goes::AtOnce);
    let counted = [MIB, 7].map(|len| eager.begin(one, len as u32, false).0);
    eager.is_unasked(one);
    eager.refuse(one, 7);
    assert!(!eager.end(counted[0]));
    for n in 2..1_000 {
        assert_eq!(eager.goes(peer(n), 0, false), Goes::AtOnce);
        let (counted, _) = eager.begin(peer(n), 7, false);
        assert!(!eager.end(counted));
        eager.keep(|peer| peer == one);
        assert_eq!((eager.all.len(), eager.of.len()), (2, 1), "{n}");
    }
    // Somebody waits for one, and is told.
    for n in 1..=WAKES {
        assert_eq!(eager.keep(|_| false), [one]);
        assert!(eager.callers().next().is_none() && eager.wakes(one), "{n}");
    }
    // Of one with a message under way its budget is kept, and is nobody else's.
    assert!(eager.of.len() == 1 && eager.keep(|_| false).is_empty() && eager.of.is_empty());
    assert_eq!((eager.all.len(), &eager.free), (2, &vec![1]));
    // The same name is another process's now, which is not taken for blind.
    assert_eq!(eager.goes(one, 49 * MIB, true), Goes::ByStandIn);
    assert_eq!((eager.of[&one], eager.free.len()), (1, 0));
    let (other, _) = eager.begin(one, 7, false);
    assert!(!eager.end(counted[1]) && eager.free == [0]);
    let all = Amount { messages: 1, bytes: 7 };
    assert_eq!((eager.all[1].sent, eager.all[1].ended), (all, Amount::default()));
    assert!(!eager.end(other) && eager.all[1].ended == all && eager.free == [0]);
}

#[test]
fn a_process_that_takes_the_place_of_one_that_answered_no_questions_is_asked() {
    let mut eager = granted();
    eager.is_unasked(PEER);
    for (why, goes) in [(FiError::TIMED_OUT, Goes::AtOnce), (FiError::REFUSED, Goes::ByStandIn)] {
        eager.has_failed(PEER, why);
        eager.take_gone(PEER);
        assert_eq!(eager.goes(PEER, 49 * MIB, true), goes, "{why:?}");
    }
}

/// Two endpoints, the addresses that the first one knows, and the number of the second one's among them.
fn acquainted() -> ([Rdm; 2], Arc<Addresses>, u64) {
    let [a, b] = [endpoint(), endpoint()];
    let addresses = lock(&a.state).unwrap().bindings.addresses.clone().unwrap();
    let number = addresses.insert(b.local()).unwrap();
    ([a, b], addresses, number)
}

/// The address is removed while a message is under way.
#[test]
fn what_is_known_of_a_peer_leaves_with_its_address() {
    let ([a, b], addresses, first) = acquainted();
    let with_a = |call: &mut dyn FnMut(&mut State)| call(&mut lock(&a.state).unwrap());
    let mut under_way = None;
    with_a(&mut |state| {
        let peer = state.peer(first).unwrap();
        under_way = Some(state.eager.begin(peer, 7, false).0);
        state.eager.is_unasked(peer);
        assert_eq!(state.eager.goes(peer, 49 * MIB, true), Goes::AtOnce);
    });
    addresses.insert(a.local()).unwrap();
    a.progress().unwrap();
    with_a(&mut |state| assert_eq!(state.eager.of.len(), 1, "an address was inserted"));
    addresses.remove(first).unwrap();
    a.progress().unwrap();
    with_a(&mut |state| assert!(state.eager.of.is_empty() && state.eager.free.is_empty()));
    let again = addresses.insert(b.local()).unwrap();
    with_a(&mut |state| {
        let peer = state.peer(again).unwrap();
        assert_eq!(state.eager.goes(peer, 49 * MIB, true), Goes::ByStandIn);
        assert!(!state.eager.end(under_way.unwrap()));
        assert_eq!((state.eager.all.len(), state.eager.free.len()), (2, 1));
    });
}

/// It is the same process, and keeps what it has not received. Whoever waits for room there finds that its address is gone.
#[test]
fn what_a_peer_keeps_counts_when_its_address_is_removed_and_inserted_again() {
    let ([a, b], addresses, first) = acquainted();
    let with_a = |call: &mut dyn FnMut(&mut State)| call(&mut lock(&a.state).unwrap());
    let mut peer = PEER;
    with_a(&mut |state| {
        peer = state.peer(first).unwrap();
        fill(&mut state.eager, peer);
        state.eager.refuse(peer, 7);
        assert!(state.eager.to_wake().is_empty());
    });
    addresses.remove(first).unwrap();
    a.ask_peers().unwrap();
    with_a(&mut |state| {
        assert!(state.eager.to_wake() == [peer] && state.eager.callers().next().is_none());
    });
    let again = addresses.insert(b.local()).unwrap();
    a.progress().unwrap();
    with_a(&mut |state| {
        assert_eq!(state.peer(again), Ok(peer));
        assert_eq!(state.eager.goes(peer, 0, false), Goes::Not);
        state.eager.refuse(peer, 7);
        assert!(!state.eager.wakes(peer) && state.eager.callers().eq([peer]));
    });
}

#[test]
fn as_much_as_makes_a_sender_ask_is_remembered_of_a_peer_whose_address_is_removed() {
    for (messages, len, is_known) in
        [(ASK_MESSAGES, 1, false), (ASK_MESSAGES + 1, 1, true), (9, MIB as u32, true)]
    {
        for is_blind in [false, true] {
            let mut eager = Eager::default();
            for _ in 0..messages {
                let (counted, _) = eager.begin(PEER, len, false);
                eager.end(counted);
            }
            if is_blind {
                eager.is_unasked(PEER);
            }
            assert!(eager.keep(|_| false).is_empty());
            // Of one that answers no questions nothing is ever known to be received.
            assert_eq!(eager.of.len(), usize::from(is_known && !is_blind), "{messages} of {len} bytes");
        }
    }
}

/// A message that came back unsent waits for a connection, and is cancelled, or given up.
#[test]
fn a_message_that_waits_and_is_not_sent_any_more_is_not_under_way() {
    type End = fn(&mut State, usize);
    let ends: [End; 3] = [
        |state, number| state.cancel_waiting(number).unwrap(),
        |state, _| state.fail_first(PEER, FiError::TIMED_OUT).unwrap(),
        |state, _| state.fail_waiting(FiError::OTHER).unwrap(),
    ];
    for end in ends {
        let mut state = State::new(None);
        state.stand_ins.by_notes = true;
        let number = state.operations.insert(Operation::default());
        state.count_sent(number, PEER, 7, false);
        let (buffer, options) = (SendBuffer::from(vec![1; 7]), weft::SendOptions::default());
        state.wait_again(Unsent { number, peer: PEER, buffer, options, order: 0 }).unwrap();
        assert!(state.eager.all[0].ended != state.eager.all[0].sent);
        end(&mut state, number);
        assert!(state.operations.get_mut(number).is_none());
        assert_eq!(state.eager.all[0].ended, state.eager.all[0].sent);
        state.eager.keep(|_| false);
        assert_eq!(state.eager.free, [0]);
    }
}

fn ago(span: Duration) -> Instant {
    Instant::now().checked_sub(span).unwrap()
}

#[test]
fn a_process_that_was_stopped_for_long_relies_on_no_grant_though_it_has_seen_no_tick() {
    let mut eager = granted();
    assert!(!stands(&mut eager, MIB));
    eager.get(PEER).unwrap().granted_at = Some(ago(VALID_FOR));
    assert!(stands(&mut eager, MIB) && !stands(&mut eager, FIRST as usize));
}

/// As many messages as may be sent have arrived, and none is known to have been received.
fn fill(eager: &mut Eager, peer: Source) {
    for _ in 0..MESSAGES {
        let (counted, _) = eager.begin(peer, 7, false);
        eager.end(counted);
    }
    assert_eq!(eager.goes(peer, 0, false), Goes::Not);
}

#[test]
fn a_peer_that_receives_nothing_is_asked_less_and_less_often_and_wakes_nobody() {
    let mut eager = granted();
    fill(&mut eager, PEER);
    assert!(eager.ask(PEER) && eager.callers_without_room().is_empty());
    eager.refuse(PEER, 7);
    let mut pauses = Vec::new();
    for question in 1..10 {
        eager.mark(PEER, question);
        answer(&mut eager, question, MESSAGES, 0);
        assert!(!eager.ask(PEER) && !eager.wakes(PEER) && eager.to_wake().is_empty());
        let budget = eager.get(PEER).unwrap();
        pauses.push(budget.pause.as_millis());
        budget.rests_until = Some(Instant::now());
        assert!(eager.callers_without_room() == [PEER] && eager.ask(PEER) && !eager.ask(PEER));
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 100, 100]);
    // A question that fails is not repeated at once either.
    eager.has_failed(PEER, FiError::OTHER);
    assert!(!eager.ask(PEER) && !eager.wakes(PEER));
    eager.get(PEER).unwrap().rests_until = Some(Instant::now());
    assert!(eager.ask(PEER));
    eager.mark(PEER, 10);
    answer(&mut eager, 10, MESSAGES - 1, 0);
    assert!(eager.callers_without_room().is_empty() && eager.wakes(PEER) && eager.to_wake() == [PEER]);
    assert_eq!(eager.get(PEER).unwrap().pause, Duration::ZERO);
}

/// The application sleeps, and nothing of its own is under way. Its question was acknowledged, and the answer was lost.
#[test]
fn a_peer_is_asked_again_for_a_call_that_was_refused_when_its_answer_was_lost() {
    let sides = [endpoint(), endpoint()];
    let [a, b] = &sides;
    let with_a = |call: &mut dyn FnMut(&mut State)| call(&mut lock(&a.state).unwrap());
    let insert = |at: &Rdm, other: &Rdm| {
        lock(&at.state).unwrap().bindings.addresses.as_ref().unwrap().insert(other.local()).unwrap()
    };
    let to = insert(a, b);
    insert(b, a);
    let mut peer = PEER;
    with_a(&mut |state| {
        peer = state.peer(to).unwrap();
        fill(&mut state.eager, peer);
        state.stand_ins.believe(peer, 1);
        assert!(state.eager.ask(peer));
        state.eager.mark(peer, u32::MAX);
        assert!(!state.eager.has_asked(peer));
        state.eager.refuse(peer, 7);
    });
    // As every 2 s.
    a.ask_peers().unwrap();
    let (begin, mut is_woken) = (Instant::now(), false);
    while !is_woken {
        sides.iter().for_each(|side| side.progress().unwrap());
        with_a(&mut |state| is_woken = state.eager.to_wake() == [peer]);
        assert!(begin.elapsed() < Duration::from_secs(60), "nobody is woken");
    }
    with_a(&mut |state| assert_eq!(state.eager.goes(peer, 0, false), Goes::AtOnce));
}

/// An application that sleeps is woken late if it is taken for asked until the next of the questions that come every 2 s.
#[test]
fn a_peer_whose_question_was_refused_is_asked_again_and_answers_the_one_before() {
    // No endpoint takes the question.
    let mut state = State::new(None);
    state.stand_ins.by_notes = true;
    fill(&mut state.eager, PEER);
    assert!(state.eager.ask(PEER));
    let posted = state.stand_ins.coming_question().wrapping_sub(1);
    state.eager.mark(PEER, posted);
    state.stand_ins.expect_life(PEER);
    assert!(state.ask(PEER).is_err());
    answer(&mut state.eager, posted, MESSAGES - 1, 0);
    assert_eq!(state.eager.goes(PEER, 0, false), Goes::AtOnce, "the answer to the question that was posted");
    assert!(state.ask(PEER).is_err());
    assert!(state.eager.ask(PEER), "no question is under way");
}

#[test]
fn a_peer_that_has_granted_nothing_for_long_is_sent_little_before_it_is_asked() {
    let mut eager = Eager::default();
    let first = FIRST as usize;
    for begin in [0, VALID] {
        assert!(!stands(&mut eager, first) && stands(&mut eager, first + 1), "at {begin}");
        let (counted, asks) = eager.begin(PEER, (first / 2) as u32, false);
        assert!(!asks && stands(&mut eager, first / 2 + 1) && !stands(&mut eager, first / 2));
        let (_, asks) = eager.begin(PEER, 1, false);
        assert!(asks && eager.ask(PEER));
        eager.end(counted);
        eager.end(Counted { len: 1, ..counted });
        eager.mark(PEER, begin as u32);
        answer(&mut eager, begin as u32, 0, 0);
        for n in 0..VALID {
            assert!(!stands(&mut eager, 48 * MIB) && stands(&mut eager, 48 * MIB + 1), "{n}");
            eager.tick();
        }
    }
    // Less is granted to one of many.
    assert!(eager.ask(PEER));
    eager.mark(PEER, 99);
    eager.learn(PEER, 99, &Answer { granted: 1 << 20, ..Answer::default() });
    assert!(!stands(&mut eager, MIB) && stands(&mut eager, MIB + 1));
    let (counted, asks) = eager.begin(PEER, MIB as u32, false);
    assert!(asks && eager.end(counted) && stands(&mut eager, UNIT as usize));
}

#[test]
fn an_application_is_woken_again_until_it_has_called() {
    let mut eager = Eager::default();
    assert!(!eager.wakes(PEER) && stands(&mut eager, 49 * MIB));
    eager.refuse(PEER, 49 * MIB);
    assert!(eager.to_wake().is_empty(), "the peer has not answered");
    for n in 1..=WAKES {
        assert!(eager.wakes(PEER), "{n}");
        assert_eq!(eager.to_wake(), if n < WAKES { vec![PEER] } else { Vec::new() });
    }
    assert!(!eager.wakes(PEER));
    for stands_in in [true, false] {
        eager.refuse(PEER, 49 * MIB);
        assert!(eager.wakes(PEER));
        eager.begin(PEER, 16, false);
        assert!(!eager.to_wake().is_empty(), "that was another one");
        eager.begin(PEER, if stands_in { 16 } else { UNIT }, stands_in);
        assert!(!eager.wakes(PEER) && eager.to_wake().is_empty());
    }
}

/// A short message is refused only for the number. Nobody waits for anything any more once it is sent, unless the call for a longer
/// one was refused, too.
#[test]
fn a_call_for_a_short_message_that_was_refused_wakes_nobody_once_it_is_repeated() {
    for lens in [&[16][..], &[16, 4 * MIB], &[4 * MIB, 16]] {
        let mut eager = granted();
        fill(&mut eager, PEER);
        lens.iter().for_each(|len| eager.refuse(PEER, *len));
        eager.mark(PEER, 1);
        answer(&mut eager, 1, 0, 0);
        assert!(eager.wakes(PEER) && eager.to_wake() == [PEER]);
        assert_eq!(eager.goes(PEER, 16, false), Goes::AtOnce);
        eager.begin(PEER, 16, false);
        let awaits_more = lens.len() > 1;
        assert_eq!(eager.callers().count(), usize::from(awaits_more), "{lens:?}");
        assert_eq!((eager.to_wake().is_empty(), eager.wakes(PEER)), (!awaits_more, awaits_more));
        eager.begin(PEER, 4 << 20, false);
        assert!(eager.callers().next().is_none() && !eager.wakes(PEER), "{lens:?}");
        // Calls that were refused before the last message was sent do not count any more.
        eager.refuse(PEER, 16);
        eager.begin(PEER, 16, false);
        assert!(eager.callers().next().is_none(), "{lens:?}");
    }
}

/// One thread is woken, and sends its message before the other one sleeps.
#[test]
fn a_thread_whose_call_was_refused_is_woken_though_another_one_has_sent_its_message() {
    for len in [16, UNIT] {
        let mut eager = granted();
        fill(&mut eager, PEER);
        // A thread that calls again and again is one.
        (0..9).for_each(|_| eager.refuse(PEER, len as usize));
        let eager = Mutex::new(eager);
        let ((refused, is_refused), (go_on, goes_on)) = (mpsc::channel(), mpsc::channel());
        std::thread::scope(|scope| {
            let other = &eager;
            scope.spawn(move || {
                other.lock().unwrap().refuse(PEER, len as usize);
                refused.send(()).unwrap();
                goes_on.recv_timeout(Duration::from_secs(60)).unwrap();
                other.lock().unwrap().begin(PEER, len, false);
            });
            is_refused.recv_timeout(Duration::from_secs(60)).unwrap();
            let mut eager = eager.lock().unwrap();
            eager.mark(PEER, 1);
            answer(&mut eager, 1, 0, 0);
            assert!(eager.wakes(PEER));
            (0..9).for_each(|_| _ = eager.begin(PEER, len, false));
            assert!(eager.to_wake() == [PEER] && eager.wakes(PEER), "{len} bytes");
            go_on.send(()).unwrap();
        });
        let mut eager = eager.into_inner().unwrap();
        assert!(eager.to_wake().is_empty() && !eager.wakes(PEER), "{len} bytes");
    }
}

/// Each message that is received in time is sent at once, up to what a target keeps.
#[test]
fn one_message_beyond_the_budget_is_sent_at_once_when_all_before_it_were_received() {
    let mut eager = granted();
    for question in 1..4 {
        assert!(!stands(&mut eager, 48 * MIB) && stands(&mut eager, 49 * MIB), "{question}");
        let (counted, _) = eager.begin(PEER, 48 << 20, false);
        assert!(stands(&mut eager, UNIT as usize), "{question}");
        // Only a question that is asked when it has arrived says that it was received.
        assert!(eager.end(counted) && eager.ask(PEER), "{question}");
        eager.mark(PEER, question);
        answer(&mut eager, question, 0, 0);
    }
    let (counted, _) = eager.begin(PEER, 4 << 20, false);
    assert!(!eager.end(counted), "too little to be asked for");
}

#[test]
fn a_peer_that_acknowledges_questions_and_answers_none_is_sent_everything() {
    let mut eager = Eager::default();
    for n in 1..=UNHEARD {
        assert!(stands(&mut eager, 50 * MIB) && eager.ask(PEER) && !eager.ask(PEER), "{n}");
        // One in between that has failed does not count.
        eager.has_failed(PEER, FiError::OTHER);
        assert!(!eager.has_asked(PEER) && eager.ask(PEER), "{n}");
        assert_eq!(eager.has_asked(PEER), n == UNHEARD);
        // The time for an answer is over.
        eager.has_failed(PEER, FiError::OTHER);
    }
    assert!(!stands(&mut eager, 50 * MIB));
}
