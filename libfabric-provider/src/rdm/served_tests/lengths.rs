//! How long a message may be that is sent at once: what its receiver has memory for, or else it is asked, or fetches the message.

use super::*;

/// Longer than what is ever sent at once, and no longer than what memory holds.
const LONGEST: usize = (49 << 20) + 5;

#[test]
fn a_message_that_is_longer_than_what_a_server_keeps_beside_others_is_fetched_though_memory_holds_it() {
    let served = Served::start("127.40.7.10");
    let (sender, receiver) = (served.open(256 << 20), served.open(LITTLE));
    let (to, _) = (sender.insert(&receiver), receiver.insert(&sender));
    assert!(sender.with(|state| !state.backlog.never_holds(LONGEST)));
    // It is the first, and nothing is before it.
    sender.send(to, content(LONGEST, 3).into(), 5);
    until("something stands for it", || {
        assert!(sender.turn().is_none() && receiver.turn().is_none());
        sender.with(|state| !state.backlog.has_sends()).then_some(())
    });
    assert!(sender.with(|state| state.stand_ins.are_waiting()), "it was sent at once");
    let mut room = vec![0; LONGEST];
    receiver.receive(&mut room, 6);
    let mut left = vec![5, 6];
    until("it arrives", || {
        for entry in [sender.turn(), receiver.turn()].into_iter().flatten() {
            assert_eq!(entry.problem, None);
            left.retain(|context| *context != entry.context);
        }
        left.is_empty().then_some(())
    });
    assert!(room == content(LONGEST, 3));
}

/// Longer than what an endpoint with 8 MiB can take of what its server has kept, and no longer than what one with 64 MiB sends at once.
const TOO_LONG: usize = (3 << 20) + 9;

/// Sends a message, posts a receive for it that waits for memory, and lets both end.
fn pass(sender: &Side, to: u64, receiver: &Side, len: usize) {
    sender.send(to, content(len, len).into(), 1);
    // So long that the receive waits, and claims the message.
    let mut room = vec![0; LITTLE as usize + 1];
    receiver.receive(&mut room, 2);
    let mut left = vec![1, 2];
    until("the message arrives", || {
        for entry in [sender.turn(), receiver.turn()].into_iter().flatten() {
            assert_eq!(entry.problem, None);
            assert!(entry.context == 1 || entry.len == len);
            left.retain(|context| *context != entry.context);
        }
        left.is_empty().then_some(())
    });
    assert!(room[..len] == content(len, len));
}

#[test]
fn messages_to_a_receiver_with_less_memory_than_their_sender_are_no_longer_than_it_holds_or_are_fetched() {
    let served = Served::start("127.40.7.14");
    for tag in [Some(7), None] {
        let [mut sender, mut receiver] = [64 << 20, LITTLE].map(|memory| served.open(memory));
        (sender.tag, receiver.tag) = (tag, tag);
        let (to, _) = (sender.insert(&receiver), receiver.insert(&sender));
        let peer = sender.peer(to);
        // Of the first one the sender does not know that it is too long, of the second it does.
        assert!(sender.with(|state| state.budgets.may_be_too_long(peer, TOO_LONG)));
        pass(&sender, to, &receiver, TOO_LONG);
        assert!(sender.with(|state| state.budgets.is_too_long(peer, TOO_LONG)));
        pass(&sender, to, &receiver, TOO_LONG);
        // A message that fits the receiver's memory is sent before there is a receive for it.
        let most = LITTLE as usize / 4;
        sender.send(to, content(most, 1).into(), 1);
        let sent = until("it is sent", || sender.turn());
        assert_eq!((sent.context, sent.problem), (1, None));
        let mut room = vec![0; LITTLE as usize + 1];
        receiver.receive(&mut room, 2);
        let received = until("it is received", || receiver.turn());
        assert_eq!((received.context, received.problem, received.len), (2, None, most));
        assert!(room[..most] == content(most, 1));
    }
}

/// Nothing but the message asks, as [`Rdm::ask_peers`] is not called.
#[test]
fn a_first_message_that_may_be_too_long_asks_its_receiver_one_question() {
    let served = Served::start("127.40.7.17");
    for (tag, memory) in [(Some(7), LITTLE), (None, LITTLE), (Some(7), 64 << 20), (None, 64 << 20)] {
        let [mut sender, mut receiver] = [64 << 20, memory].map(|memory| served.open(memory));
        (sender.tag, receiver.tag) = (tag, tag);
        let (to, _) = (sender.insert(&receiver), receiver.insert(&sender));
        let asked = || sender.with(|state| state.stand_ins.coming_question());
        let before = asked();
        pass(&sender, to, &receiver, TOO_LONG);
        assert_eq!(asked().wrapping_sub(before), 1, "{tag:?}, {memory} bytes");
    }
}

/// The receiver gets the questions and answers, but a process of a job hears nobody outside it.
#[test]
fn a_first_message_that_may_be_too_long_is_sent_when_its_receiver_has_answered_none_of_four_questions() {
    let served = Served::start("127.40.7.18");
    let job = JobId::new(7).unwrap();
    for tag in [Some(7), None] {
        let [of_a_job, of_none] = [SessionConfig { job, ..config(64 << 20) }, config(64 << 20)];
        let (mut sender, mut receiver) = (served.open_as(of_a_job), served.open_as(of_none));
        (sender.tag, receiver.tag) = (tag, tag);
        let (to, _) = (sender.insert(&receiver), receiver.insert(&sender));
        let peer = sender.peer(to);
        let asked = || sender.with(|state| state.stand_ins.coming_question());
        let before = asked();
        sender.send(to, content(TOO_LONG, 1).into(), 1);
        // Each question but the first is asked 2 s after another one.
        let mut ticks = 0;
        until("the message is sent", || {
            assert!(receiver.turn().is_none());
            if let Some(sent) = sender.turn() {
                assert_eq!((sent.context, sent.problem), (1, None));
                return Some(());
            }
            let waits = sender.with(|state| state.budgets.may_be_too_long(peer, TOO_LONG));
            if waits && !sender.rdm.is_asking().unwrap() {
                sender.rdm.ask_peers().unwrap();
                ticks += 1;
            }
            None
        });
        assert_eq!((asked().wrapping_sub(before), ticks), (UNHEARD, UNHEARD - 1), "{tag:?}");
    }
}

#[test]
fn a_first_message_without_a_tag_that_only_the_reserve_holds_arrives() {
    let served = Served::start("127.40.7.16");
    let [mut sender, mut receiver] = [(); 2].map(|()| served.open(LITTLE));
    (sender.tag, receiver.tag) = (None, None);
    let (to, _) = (sender.insert(&receiver), receiver.insert(&sender));
    let most = LITTLE as usize / 4;
    assert!(sender.with(|state| state.backlog.never_holds(most)));
    pass(&sender, to, &receiver, most);
    pass(&sender, to, &receiver, most);
}

#[test]
fn a_first_message_that_may_be_too_long_fails_if_its_receiver_is_gone_or_of_another_job() {
    let served = Served::start("127.40.7.15");
    let job = JobId::new(7).unwrap();
    let of_a_job = SessionConfig { job, ..config(LITTLE) };
    let refused = weft::Error::Send(weft::SendError::Answered(ReturnCode::BAD_JOB_ID));
    for tag in [Some(7), None] {
        let mut sender = served.open(64 << 20);
        sender.tag = tag;
        let [gone, stranger] = [served.open(LITTLE), served.open_as(of_a_job)];
        let numbers = [&gone, &stranger].map(|side| sender.insert(side));
        drop(gone);
        for (context, to) in numbers.into_iter().enumerate() {
            sender.send(to, content(TOO_LONG, 1).into(), context);
            let failed = until("it fails", || {
                sender.rdm.ask_peers().unwrap();
                assert!(stranger.turn().is_none());
                sender.turn()
            });
            let error = [FiError::REFUSED, FiError::from(&refused)][context];
            assert_eq!((failed.context, failed.problem), (context, Some(Problem { error, beyond: 0 })));
        }
    }
}

#[test]
fn a_message_that_is_never_sent_at_once_fails_if_it_is_for_a_process_of_another_job() {
    let served = Served::start("127.40.7.11");
    let job = JobId::new(7).unwrap();
    let sender = served.open(256 << 20);
    let receiver = served.open_as(SessionConfig { job, ..config(LITTLE) });
    let to = sender.insert(&receiver);
    sender.send(to, content(LONGEST, 1).into(), 1);
    let failed = until("it fails", || {
        sender.rdm.ask_peers().unwrap();
        assert!(receiver.turn().is_none());
        sender.turn()
    });
    let error = FiError::from(&weft::Error::Send(weft::SendError::Answered(ReturnCode::BAD_JOB_ID)));
    assert_eq!((failed.context, failed.problem), (1, Some(Problem { error, beyond: 0 })));
}
