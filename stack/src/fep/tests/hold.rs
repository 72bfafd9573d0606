//! Connections that are held.

use weft_cc::{Span, Time};

use super::{fep, message};
use crate::fep::{CallError, Completion, ConnectOptions, Fep, Limits, SendError};
use crate::packet::Addr;

#[test]
fn messages_of_a_held_connection_leave_when_it_is_released() {
    let mut fep = fep(Limits::default());
    let [held, other] =
        [1, 2].map(|peer| fep.connect(Time::ZERO, Addr(peer), ConnectOptions::default()).unwrap());
    fep.hold(held).unwrap();
    let message_id = fep.post_send(held, message(3000)).unwrap();
    fep.post_send(held, message(3000)).unwrap();
    fep.post_send(other, message(3000)).unwrap();
    let sent_to = |fep: &mut Fep| {
        let sent = std::iter::from_fn(|| fep.poll_transmit(Time::ZERO));
        sent.map(|transmit| transmit.packet.net.dst.0).collect::<Vec<_>>()
    };
    assert_eq!(sent_to(&mut fep), [2, 2, 2]);
    assert!(fep.explain(Time::ZERO)[0].contains("until there is a way to the peer"));
    // Neither is a reason to send.
    fep.cancel_send(message_id).unwrap();
    fep.close(Time::ZERO, held).unwrap();
    fep.on_timeout(Time::ZERO + Span::from_us(1));
    assert_eq!(sent_to(&mut fep), [0; 0]);
    fep.release(held);
    assert_eq!(sent_to(&mut fep), [1, 1, 1]);
}

#[test]
fn a_held_connection_that_is_closed_ends_with_its_last_message() {
    let mut fep = fep(Limits::default());
    let held = fep.connect(Time::ZERO, Addr(1), ConnectOptions::default()).unwrap();
    fep.hold(held).unwrap();
    let messages = [(); 2].map(|()| fep.post_send(held, message(3000)).unwrap());
    fep.close(Time::ZERO, held).unwrap();
    let completions = |fep: &mut Fep| {
        assert!(fep.poll_transmit(Time::ZERO).is_none());
        std::iter::from_fn(|| fep.poll_completion()).collect::<Vec<_>>()
    };
    for message in messages {
        assert_eq!(completions(&mut fep).len(), 0, "it waits with its messages");
        fep.cancel_send(message).unwrap();
        let cancelled = fep.poll_completion();
        assert!(matches!(cancelled, Some(Completion::Sent { result: Err(SendError::Cancelled), .. })));
    }
    let closed = completions(&mut fep);
    assert!(
        matches!(closed[..], [Completion::Closed { id, result: Ok(()), .. }] if id == held),
        "{closed:?}"
    );
    assert_eq!(fep.leaks().collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn only_an_open_connection_without_messages_can_be_held() {
    let mut fep = fep(Limits::default());
    let connect = |fep: &mut Fep| fep.connect(Time::ZERO, Addr(1), ConnectOptions::default()).unwrap();
    let (posted, closed) = (connect(&mut fep), connect(&mut fep));
    fep.post_send(posted, message(3000)).unwrap();
    assert_eq!(fep.hold(posted), Err(CallError::TooLate));
    while fep.poll_transmit(Time::ZERO).is_some() {}
    assert_eq!(fep.hold(posted), Err(CallError::TooLate));
    fep.close(Time::ZERO, closed).unwrap();
    assert_eq!(fep.hold(closed), Err(CallError::NotOpen));
    // Nothing to release.
    fep.release(closed);
    fep.release(posted);
    assert!(!fep.wants_to_transmit());
}
