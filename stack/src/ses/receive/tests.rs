//! Tests of matching and placement.

mod pieces;

use core::num::NonZeroU32;
use std::collections::BTreeSet;
use std::hash::BuildHasher;

use super::*;
use crate::ses::{Matching, Operation, SendMessage};
use proptest::prelude::*;

fn receive(id: u64, matching: Matching, len: usize) -> Posted {
    let (id, context, buffer) = (ReceiveId(id), id * 10, Buffer::Heap(vec![0; len]));
    Posted { id, from: None, matching, buffer, context, many: None }
}

fn room(bytes_per_peer: u64) -> Room {
    Room::new(1, (1 << 20, 1 << 40), (1 << 16, bytes_per_peer))
}

/// The receives of the only process of an endpoint.
struct Alone {
    receives: Receives,
    room: Room,
    /// Of all PDCs: the messages are their own only.
    order: Order,
}

impl Alone {
    fn new(room: Room) -> Alone {
        Alone { receives: Receives::new(0, 0), room, order: Order::new(32_640) }
    }

    fn post(&mut self, posted: Posted) -> Option<Delivery> {
        self.receives.post(&mut self.room, posted)
    }

    fn begin_early(&mut self, name: MessageName, source: Source, part: &Part<'_>) -> Key {
        self.receives.begin_early(name, source, part, &mut self.room, &mut self.order).unwrap()
    }

    fn place(&mut self, key: Key, part: &Part<'_>) -> Result<Option<Delivery>, Refusal> {
        let Alone { receives, room, order } = self;
        if !receives.place(room, order, key, part)? {
            return Ok(None);
        }
        Ok(match receives.complete(room, order, key) {
            Placed::Whole(delivery) => Some(delivery),
            Placed::Waits | Placed::Copied { .. } => None,
        })
    }

    fn take_turn(&mut self, name: MessageName) -> Option<Delivery> {
        self.receives.take_turn(&mut self.room, name)
    }

    fn abandon(&mut self, pdc: PdcId) -> Vec<Delivery> {
        self.receives.abandon(&mut self.room, pdc)
    }
}

impl std::ops::Deref for Alone {
    type Target = Receives;

    fn deref(&self) -> &Receives {
        &self.receives
    }
}

impl std::ops::DerefMut for Alone {
    fn deref_mut(&mut self) -> &mut Receives {
        &mut self.receives
    }
}

/// Peers choose the names, and know the hash but for its seed. A table of 2¹⁷ places holds as many messages as there are numbers.
#[test]
fn names_of_messages_that_meet_in_the_table_of_one_endpoint_do_not_in_that_of_another() {
    let home = |receives: &Receives, name| receives.by_name.hasher().hash_one(packed(name)) % (1 << 17);
    let [one, other] = [1, 2].map(|seed| Receives::new(0, seed));
    let all = (1..=16).flat_map(|pdc| (0..=u16::MAX).map(move |msg_id| (PdcId(pdc), msg_id)));
    let chosen: Vec<MessageName> = all.filter(|name| home(&one, *name) < 32).collect();
    let homes: BTreeSet<u64> = chosen.iter().map(|name| home(&other, *name)).collect();
    assert!(chosen.len() > 128 && homes.len() > chosen.len() / 2, "{} of {}", homes.len(), chosen.len());
}

fn content(message: &SendMessage) -> &[u8] {
    let Buffer::Heap(bytes) = &message.buffer else { panic!("{message:?}") };
    bytes
}

fn send(len: usize, tag: Option<u64>, msg_id: u16) -> SendMessage {
    let mut message = SendMessage::new(
        Buffer::Heap((0..len).map(|i| i as u8).collect()),
        Operation::Send { tag },
        77,
        0,
        0,
    );
    message.msg_id = msg_id;
    message
}

/// A packet of a message whose turn it is arrives.
fn arrive(
    receives: &mut Alone,
    peer: u32,
    pdc: u16,
    request: &StandardRequest,
    payload: Payload<'_>,
) -> Result<Option<Delivery>, Refusal> {
    let (name, peer) = ((PdcId(pdc), request.msg_id), Addr(peer));
    let source = Source::of_message(peer, request.initiator);
    let part = Part::new(request, payload)?;
    let message = match receives.find(name) {
        Some(message) => message,
        None => {
            let Alone { receives, room, order } = receives;
            receives.begin(name, source, &part, part.is_whole(), room, order)?
        }
    };
    receives.place(message, &part)
}

/// The part of `len` bytes from `offset` of a message arrives from endpoint 1.
fn part(
    receives: &mut Alone,
    pdc: u16,
    message: &SendMessage,
    offset: u32,
    len: u32,
) -> Result<Option<Delivery>, Refusal> {
    arrive(receives, 1, pdc, &message.request(0, offset, len), message.buffer.payload(offset, len))
}

/// Delivers `message` in packets of `mtu` bytes, last packet first.
fn deliver(receives: &mut Alone, message: &SendMessage, mtu: u32) -> Result<Vec<Delivery>, Refusal> {
    let len = message.buffer.len();
    let mut done = Vec::new();
    for offset in (0..len.max(1)).step_by(mtu as usize).rev() {
        done.extend(part(receives, 1, message, offset, mtu.min(len - offset))?);
    }
    Ok(done)
}

#[test]
fn expected_messages_land_in_their_receive() {
    let mut receives = Alone::new(room(1 << 20));
    receives.post(receive(1, Matching::Untagged, 100));
    receives.post(receive(2, Matching::Tagged { tag: 0x12, ignore: 0xf }, 100));
    let message = send(100, Some(0x15), 3);
    let done = deliver(&mut receives, &message, 30).unwrap();
    assert_eq!(done.len(), 1);
    assert_eq!((done[0].id, done[0].context, done[0].header_data), (ReceiveId(2), 20, 77));
    assert_eq!(done[0].buffer, message.buffer);
    assert_eq!((receives.posted(), receives.under_way()), (1, 0));
}

#[test]
fn unexpected_messages_wait_and_are_limited_by_sender() {
    let mut receives = Alone::new(room(300));
    let message = send(200, None, 1);
    assert!(deliver(&mut receives, &message, 30).unwrap().is_empty());
    let refused = send(200, None, 2);
    let refusal = deliver(&mut receives, &refused, 30).unwrap_err();
    assert_eq!(refusal, Refusal::Busy(NackCode::NO_PKT_BUFFER));
    assert_eq!(receives.unexpected(), 2, "it keeps its place");
    let done = receives.post(receive(5, Matching::Untagged, 200)).unwrap();
    assert_eq!(done.buffer, message.buffer);
    assert!(deliver(&mut receives, &refused, 30).is_ok(), "the quota is available again");
}

#[test]
fn a_message_whose_payload_is_refused_keeps_its_place() {
    let mut receives = Alone::new(Room { messages_per_peer: 2, ..room(100) });
    let messages = [send(200, None, 1), send(90, None, 2), send(0, None, 3)];
    assert_eq!(
        deliver(&mut receives, &messages[0], 200).unwrap_err(),
        Refusal::Busy(NackCode::NO_PKT_BUFFER)
    );
    assert!(deliver(&mut receives, &messages[1], 90).unwrap().is_empty());
    assert_eq!(
        deliver(&mut receives, &messages[2], 1).unwrap_err(),
        Refusal::Busy(NackCode::NO_SES_MSG_AVAIL)
    );
    assert!(receives.post(receive(1, Matching::Untagged, 200)).is_none(), "the first message takes it");
    let done = deliver(&mut receives, &messages[0], 200).unwrap();
    assert_eq!((done[0].id, &done[0].buffer), (ReceiveId(1), &messages[0].buffer));
    assert_eq!(receives.post(receive(2, Matching::Untagged, 90)).unwrap().buffer, messages[1].buffer);
    assert!(deliver(&mut receives, &messages[2], 1).unwrap().is_empty(), "there is room again");
    assert!(receives.post(receive(3, Matching::Untagged, 0)).is_some());
    assert!(
        receives.kept.peers() == 0
            && receives.by_name.is_empty()
            && receives.room.newest_incomplete.is_empty()
    );
}

#[test]
fn an_early_message_meets_its_receive_in_its_turn() {
    for quota in [0, 60] {
        let mut receives = Alone::new(room(quota));
        receives.post(receive(1, Matching::Untagged, 60));
        let message = send(60, None, 7);
        let request = message.request(1, 0, 60);
        let early = Part::new(&request, message.buffer.payload(0, 60)).unwrap();
        let key = receives.begin_early((PdcId(1), 7), Addr(1).into(), &early);
        assert_eq!(receives.place(key, &early).is_ok(), quota > 0);
        assert_eq!((receives.posted(), receives.unexpected(), receives.under_way()), (1, 0, 1));
        let done = receives.take_turn((PdcId(1), 7)).or_else(|| receives.place(key, &early).unwrap());
        assert_eq!(done.unwrap().buffer, message.buffer);
        assert_eq!((receives.posted(), receives.under_way()), (0, 0));
        assert!(
            receives.kept.peers() == 0
                && receives.by_name.is_empty()
                && receives.room.newest_incomplete.is_empty()
        );
    }
}

/// Its number is that of a message which was turned away before its turn.
#[test]
fn a_message_that_has_had_its_turn_has_no_further_one() {
    let mut receives = Alone::new(room(1 << 20));
    let message = send(60, None, 1);
    assert!(part(&mut receives, 1, &message, 0, 30).unwrap().is_none());
    assert!(receives.take_turn((PdcId(1), 1)).is_none());
    assert_eq!(receives.receives.check(&receives.room), (1, 60));
    assert_eq!(receives.unexpected(), 1);
    assert!(receives.post(receive(1, Matching::Untagged, 60)).is_none());
    assert_eq!(part(&mut receives, 1, &message, 30, 30).unwrap().unwrap().buffer, message.buffer);
    assert_eq!(receives.receives.check(&receives.room), (0, 0));
}

#[test]
fn a_receive_posted_during_a_message_gets_both_halves() {
    let mut receives = Alone::new(room(1 << 20));
    let message = send(60, None, 1);
    assert!(part(&mut receives, 1, &message, 30, 30).unwrap().is_none());
    assert!(receives.post(receive(1, Matching::Untagged, 60)).is_none());
    let done = part(&mut receives, 1, &message, 0, 30).unwrap().unwrap();
    assert_eq!(done.buffer, message.buffer);
}

/// Delivers all packets of 30 bytes but the first.
fn begin(receives: &mut Alone, pdc: u16, message: &SendMessage) {
    for offset in (30..message.buffer.len()).step_by(30) {
        let len = 30.min(message.buffer.len() - offset);
        assert!(part(receives, pdc, message, offset, len).unwrap().is_none());
    }
}

fn finish(receives: &mut Alone, pdc: u16, message: &SendMessage) -> Option<Delivery> {
    part(receives, pdc, message, 0, 30).unwrap()
}

#[test]
fn closing_a_pdc_abandons_only_its_incomplete_messages() {
    // Every choice of messages that complete before the close, from either end of the list or the middle.
    for completed in 0..1u16 << 5 {
        let mut receives = Alone::new(room(1 << 20));
        for id in 1..=4 {
            receives.post(receive(id, Matching::Tagged { tag: id, ignore: 0 }, 60));
        }
        // Message 5 of PDC 1 matches no receive.
        let messages: Vec<_> = (1..=5).map(|id| send(60, Some(id), id as u16)).collect();
        let stranger = send(60, Some(9), 1);
        for message in &messages {
            begin(&mut receives, 1, message);
        }
        begin(&mut receives, 2, &stranger);
        let (done, left): (Vec<usize>, Vec<usize>) = (0..5).partition(|&i| completed >> i & 1 == 1);
        for &i in &done {
            assert_eq!(finish(&mut receives, 1, &messages[i]).is_some(), i < 4);
        }
        let abandoned: Vec<u64> = receives.abandon(PdcId(1)).iter().map(|lost| lost.id.0).collect();
        let expected: Vec<u64> = left.iter().filter(|&&i| i < 4).map(|&i| i as u64 + 1).collect();
        assert_eq!(abandoned, expected, "{completed:#b}");
        let kept = usize::from(done.contains(&4));
        assert_eq!((receives.under_way(), receives.unexpected()), (1 + kept, 1 + kept));
        assert!(receives.abandon(PdcId(1)).is_empty());
        // The other PDC's message is unchanged, and the numbers of the abandoned ones are free again.
        assert!(finish(&mut receives, 2, &stranger).is_none());
        let whole = receives.post(receive(9, Matching::Tagged { tag: 9, ignore: 0 }, 60)).unwrap();
        assert_eq!(whole.buffer, stranger.buffer);
        begin(&mut receives, 1, &messages[0]);
        assert!(receives.abandon(PdcId(1)).is_empty(), "it has matched no receive");
        assert_eq!(receives.under_way(), kept);
        assert!(receives.by_name.is_empty() && receives.room.newest_incomplete.is_empty());
        assert_eq!(receives.kept.peers(), kept);
    }
}

#[test]
fn messages_longer_than_their_receive_are_truncated_and_reported() {
    let mut receives = Alone::new(room(1 << 20));
    receives.post(receive(1, Matching::Untagged, 40));
    let done = deliver(&mut receives, &send(100, None, 1), 30).unwrap();
    assert!(done[0].is_truncated());
    assert_eq!((done[0].len, done[0].buffer.len()), (100, 40));
}

/// Two packets of a PDC with the same bytes do not make up for bytes that were never sent.
#[test]
fn bytes_that_arrive_twice_count_once() {
    let mut receives = Alone::new(room(1 << 20));
    receives.post(receive(1, Matching::Untagged, 10));
    let message = send(10, None, 1);
    let mut arrive = |offset: u32, len: u32| part(&mut receives, 1, &message, offset, len);
    assert!(arrive(0, 5).unwrap().is_none());
    for (offset, len) in [(0, 5), (0, 4), (4, 6), (3, 5)] {
        assert!(matches!(arrive(offset, len), Err(Refusal::Malformed(_))), "{offset}");
    }
    assert!(arrive(5, 5).unwrap().is_some_and(|done| done.complete));
}

#[test]
fn contradictory_headers_are_refused() {
    let mut receives = Alone::new(Room::new(1, (1, 1 << 40), (1 << 16, 1 << 20)));
    let message = send(100, None, 1);
    let payload = message.buffer.payload(30, 30);
    let good = message.request(1, 30, 30);
    arrive(&mut receives, 1, 1, &good, payload).unwrap();
    let mut bad = good;
    bad.request_length = 99;
    assert!(matches!(arrive(&mut receives, 1, 1, &bad, payload), Err(Refusal::Malformed(_))));
    let mut bad = good;
    bad.placement = Placement::Continue { payload_len: 30, msg_offset: u32::MAX - 3 };
    assert!(matches!(arrive(&mut receives, 1, 1, &bad, payload), Err(Refusal::Malformed(_))));
    let other = arrive(&mut receives, 1, 2, &good, payload).unwrap_err();
    assert_eq!(other, Refusal::Busy(NackCode::NO_SES_MSG_AVAIL));
    let mut read = good;
    read.opcode = Opcode::READ;
    let refusal = arrive(&mut receives, 1, 1, &read, Payload::EMPTY).unwrap_err();
    assert_eq!(refusal, Refusal::Unsupported(ReturnCode::UNSUPPORTED_OP));
}

/// A message of which the first packet has not arrived is not shown: its header data is not known. Nor are those behind it,
/// which a receive would not get.
#[test]
fn messages_are_seen_once_their_first_packet_is_there_whether_their_payload_is_kept_or_not() {
    for quota in [0, 1 << 20] {
        let mut receives = Alone::new(room(quota));
        let (long, short) = (send(60, None, 1), send(0, None, 2));
        let kept = part(&mut receives, 1, &long, 30, 30);
        assert_eq!(kept.is_err(), quota == 0);
        part(&mut receives, 1, &short, 0, 0).unwrap();
        assert_eq!(receives.peek(None, Matching::Untagged), None);
        let kept = part(&mut receives, 1, &long, 0, 30);
        assert_eq!(kept.is_err(), quota == 0);
        let found = receives.peek(None, Matching::Untagged).unwrap();
        assert_eq!((found.len, found.header_data, found.source), (60, 77, Addr(1).into()));
    }
}

/// Its sender is told that it has arrived, whatever is left of it.
#[test]
fn the_rest_of_a_discarded_message_is_accepted_and_takes_no_room() {
    let mut receives = Alone::new(room(60));
    let (first, second) = (send(60, None, 1), send(60, None, 2));
    part(&mut receives, 1, &first, 0, 30).unwrap();
    let (claim, _) = receives.claim(None, Matching::Untagged).unwrap();
    let Alone { receives: all, room, .. } = &mut receives;
    assert!(all.discard(room, claim));
    assert!(deliver(&mut receives, &second, 30).unwrap().is_empty(), "there is room for another");
    assert_eq!(receives.under_way(), 2);
    assert!(part(&mut receives, 1, &first, 30, 30).unwrap().is_none());
    assert_eq!((receives.under_way(), receives.unexpected()), (1, 1));
    assert!(receives.by_name.is_empty() && receives.room.newest_incomplete.is_empty());
}

/// Two messages land in one buffer; the last one gets less than it has.
#[test]
fn a_receive_for_many_messages_gets_them_one_behind_the_other() {
    let mut receives = Alone::new(room(1 << 20));
    let mut bytes = bytes::BytesMut::zeroed(100);
    bytes.fill(0xff);
    let posted = Posted {
        buffer: Buffer::BytesMut(Box::new(bytes)),
        many: NonZeroU32::new(20),
        ..receive(1, Matching::Untagged, 0)
    };
    let Alone { receives: all, room, .. } = &mut receives;
    all.post_many(posted);
    assert!(all.gather(room, &mut { 1 }).is_empty() && !all.is_gathering());
    let mut parts = Vec::new();
    for (id, len, more) in [(1, 30, true), (2, 0, true), (3, 50, true), (4, 40, false)] {
        let message = send(len, None, id);
        let done = deliver(&mut receives, &message, 30).unwrap().pop().unwrap();
        assert_eq!((done.more, done.is_truncated()), (more, id == 4), "{id}");
        let Buffer::BytesMut(part) = done.buffer else { panic!() };
        assert_eq!(part[..], *content(&message).split_at(part.len()).0);
        parts.push(part);
    }
    let whole = parts.into_iter().reduce(|mut all, part| {
        all.unsplit(*part);
        all
    });
    assert_eq!(whole.unwrap().len(), 100, "they are neighbours");
    assert_eq!(receives.posted(), 0);
}

/// The messages of all slots but the last have met receives before.
#[test]
fn slots_without_a_message_count_when_what_is_left_behind_is_dropped() {
    const MANY: u16 = 100;
    let mut receives = Alone::new(room(1 << 20));
    for id in 1..=MANY {
        assert!(deliver(&mut receives, &send(1, Some(id.into()), id), 1).unwrap().is_empty());
    }
    for id in 1..MANY {
        let matching = Matching::Tagged { tag: id.into(), ignore: 0 };
        assert!(receives.post(receive(id.into(), matching, 1)).is_some());
    }
    let Alone { receives, mut room, .. } = receives;
    let mut left = receives.close();
    let calls = (1..).find(|_| left.drop_some(&mut room, &mut { 640 }, |_| {})).unwrap();
    assert_eq!(calls, 10 + 2, "of ten slots each, and those in which the memory of the table goes back");
}

/// A step of the comparison with the model.
#[derive(Clone, Debug)]
enum Step {
    Post {
        from: Option<(u32, u16)>,
        matching: Matching,
    },
    /// The first of the two packets of a message arrives.
    Begin {
        source: (u32, u16),
        tag: Option<u64>,
    },
    /// The second packet arrives of a message that began some steps ago.
    End {
        ago: usize,
    },
    Cancel {
        ago: usize,
    },
    /// The PDC of a peer closes.
    Abandon {
        peer: u32,
    },
    /// A receive for as many messages of two bytes as there is room for while so many bytes are left.
    PostMany {
        from: Option<(u32, u16)>,
        matching: Matching,
        room: u32,
        least: u32,
        /// What it may touch at a time of messages that wait.
        budget: i64,
        /// A message that begins before it has looked at all of them.
        meanwhile: Option<((u32, u16), Option<u64>)>,
        /// What the next receive accepts, for which nothing is left of what may be touched.
        next: Option<Matching>,
    },
    /// A receive like this is going to be posted, and looks at some messages before.
    LookAhead {
        from: Option<(u32, u16)>,
        matching: Matching,
        /// What it may touch at a time of messages that wait.
        budget: i64,
        /// Messages of one sender that begin before it has looked at all of them.
        meanwhile: ((u32, u16), Vec<Option<u64>>),
    },
    Peek {
        from: Option<(u32, u16)>,
        matching: Matching,
    },
    Claim {
        from: Option<(u32, u16)>,
        matching: Matching,
    },
    /// A message that was claimed some claims ago is received.
    ReceiveClaimed {
        ago: usize,
    },
    Discard {
        ago: usize,
    },
}

fn tags() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![1 => Just(None), 4 => (0u64..4).prop_map(Some)]
}

fn any_matching() -> impl Strategy<Value = Matching> {
    let masks = prop_oneof![4 => Just(0u64), 1 => Just(1), 1 => Just(2), 1 => Just(u64::MAX)];
    (tags(), masks).prop_map(|(tag, ignore)| match tag {
        None => Matching::Untagged,
        Some(tag) => Matching::Tagged { tag, ignore },
    })
}

/// Two processes of each of three endpoints.
fn any_source() -> impl Strategy<Value = (u32, u16)> {
    (1u32..4, 0u16..2)
}

fn source((peer, process): (u32, u16)) -> Source {
    Source { peer: Addr(peer), process }
}

fn any_step() -> impl Strategy<Value = Step> {
    let matching = any_matching();
    let from = || prop_oneof![1 => Just(None), 3 => any_source().prop_map(Some)];
    let wanted = || (from(), any_matching());
    let budgets = prop_oneof![1i64..200, 1i64..2000];
    let next = prop::option::of(any_matching());
    prop_oneof![
        2 => (wanted(), 0u32..12, 1u32..6, budgets, prop::option::of((any_source(), tags())), next).prop_map(
            |((from, matching), room, least, budget, meanwhile, next)| {
                Step::PostMany { from, matching, room, least, budget, meanwhile, next }
            }
        ),
        2 => (wanted(), 1i64..200, any_source(), prop::collection::vec(tags(), 0..3)).prop_map(
            |((from, matching), budget, source, tags)| {
                Step::LookAhead { from, matching, budget, meanwhile: (source, tags) }
            }
        ),
        2 => wanted().prop_map(|(from, matching)| Step::Peek { from, matching }),
        2 => wanted().prop_map(|(from, matching)| Step::Claim { from, matching }),
        1 => (0usize..3).prop_map(|ago| Step::ReceiveClaimed { ago }),
        1 => (0usize..3).prop_map(|ago| Step::Discard { ago }),
        8 => (from(), matching).prop_map(|(from, matching)| Step::Post { from, matching }),
        8 => (any_source(), tags()).prop_map(|(source, tag)| Step::Begin { source, tag }),
        5 => (0usize..20).prop_map(|ago| Step::End { ago }),
        2 => (0usize..40).prop_map(|ago| Step::Cancel { ago }),
        1 => (1u32..4).prop_map(|peer| Step::Abandon { peer }),
    ]
}

/// A model of [`Receives`] that searches linearly.
#[derive(Default)]
struct Model {
    posted: Vec<Posted>,
    messages: Vec<ModelMessage>,
}

struct ModelMessage {
    number: u16,
    source: (u32, u16),
    tag: Option<u64>,
    receive: Option<ReceiveId>,
    complete: bool,
    claim: Option<Claim>,
    /// It was discarded: what is left of it goes nowhere.
    is_unwanted: bool,
}

impl ModelMessage {
    fn waits(&self) -> bool {
        self.receive.is_none() && self.claim.is_none() && !self.is_unwanted
    }
}

/// Bytes of each message.
const LEN: u32 = 2;

/// Whether a receive is used up by another message of two bytes, which it gets.
fn is_used_up(posted: &mut Posted) -> bool {
    let (Some(least), Buffer::Virtual(room)) = (posted.many, &mut posted.buffer) else { return true };
    match room.checked_sub(LEN) {
        Some(left) if left >= least.get() => {
            *room = left;
            false
        }
        _ => true,
    }
}

impl Model {
    fn post(&mut self, mut posted: Posted) {
        while let Some(message) =
            self.messages.iter_mut().find(|m| m.waits() && posted.takes(source(m.source), m.tag))
        {
            message.receive = Some(posted.id);
            if is_used_up(&mut posted) {
                return;
            }
        }
        self.posted.push(posted);
    }

    fn begin(&mut self, number: u16, from: (u32, u16), tag: Option<u64>) {
        let at = self.posted.iter().position(|posted| posted.takes(source(from), tag));
        let receive = at.map(|at| {
            let id = self.posted[at].id;
            if is_used_up(&mut self.posted[at]) {
                self.posted.remove(at);
            }
            id
        });
        let (complete, claim, is_unwanted) = (false, None, false);
        self.messages.push(ModelMessage { number, source: from, tag, receive, complete, claim, is_unwanted });
    }

    /// The first message that waits for a receive like this.
    fn first(&mut self, from: Option<(u32, u16)>, matching: Matching) -> Option<&mut ModelMessage> {
        let from = from.map(source);
        self.messages.iter_mut().find(|m| m.waits() && matching.takes(from, source(m.source), m.tag))
    }

    fn goes_on(&self, id: ReceiveId) -> bool {
        self.posted.iter().any(|posted| posted.id == id)
            || self.messages.iter().any(|message| message.receive == Some(id))
    }

    /// The matches made since the last call: message, receive and sender, and whether the receive goes on.
    fn take_done(&mut self) -> Vec<(u16, ReceiveId, Source, bool)> {
        self.messages.retain(|message| !(message.is_unwanted && message.complete));
        let mut all = Vec::new();
        while let Some(at) = self.messages.iter().position(|m| m.complete && m.receive.is_some()) {
            let done = self.messages.remove(at);
            let id = done.receive.unwrap();
            all.push((done.number, id, source(done.source), self.goes_on(id)));
        }
        all
    }
}

/// One of the two packets of message `number`.
fn half(
    receives: &mut Alone,
    number: u16,
    (peer, process): (u32, u16),
    tag: Option<u64>,
    second: bool,
) -> Option<Delivery> {
    let mut message = SendMessage::new(Buffer::Virtual(2), Operation::Send { tag }, u64::from(number), 0, 0);
    message.msg_id = number;
    let request = message.request(process, u32::from(second), 1);
    arrive(receives, peer, peer as u16, &request, Payload::Virtual(1)).unwrap()
}

fn check_steps(steps: Vec<Step>) {
    let (mut receives, mut model) = (Alone::new(room(1 << 20)), Model::default());
    for (n, step) in steps.into_iter().enumerate() {
        let delivery = match step {
            Step::PostMany { from, matching, room, least, budget, meanwhile, next } => {
                let posted = || Posted {
                    from: from.map(source),
                    buffer: Buffer::Virtual(room),
                    many: NonZeroU32::new(least),
                    ..receive(n as u64, matching, 0)
                };
                model.post(posted());
                receives.post_many(posted());
                let mut done = Vec::new();
                // Each time it looks at some of them, or is given one.
                let mut calls = 6 + 2 * model.messages.len();
                let mut gather = |receives: &mut Alone| {
                    let (Alone { receives, room, .. }, mut left) = (receives, budget);
                    done.extend(receives.gather(room, &mut left));
                    if let Some(next) = next.filter(|_| receives.is_gathering()) {
                        receives.look_ahead(None, next, &mut left.min(0));
                    }
                    calls = calls.checked_sub(1).expect("it comes to an end");
                    receives.is_gathering()
                };
                gather(&mut receives);
                if let Some((source, tag)) = meanwhile {
                    let number = 1000 + n as u16;
                    model.begin(number, source, tag);
                    assert!(half(&mut receives, number, source, tag, false).is_none());
                }
                while gather(&mut receives) {}
                done
            }
            Step::LookAhead { from, matching, budget, meanwhile: (sender, tags) } => {
                let look = |receives: &mut Alone| {
                    let mut left = budget;
                    let is_over = receives.look_ahead(from.map(source), matching, &mut left);
                    assert!(is_over || left <= 0);
                    is_over
                };
                let mut is_over = look(&mut receives);
                let mut done = Vec::new();
                for (number, tag) in (2000 + 3 * n as u16..).zip(tags) {
                    model.begin(number, sender, tag);
                    done.extend(half(&mut receives, number, sender, tag, false));
                    is_over = look(&mut receives);
                }
                for _ in 0..model.messages.len() {
                    is_over = is_over || look(&mut receives);
                }
                assert!(is_over);
                done
            }
            Step::Peek { from, matching } => {
                let expected = model.first(from, matching).map(|m| (m.number, source(m.source), m.tag));
                let found = receives.peek(from.map(source), matching);
                assert!(found.is_none_or(|found| found.len == LEN));
                assert_eq!(found.map(|found| (found.header_data as u16, found.source, found.tag)), expected);
                continue;
            }
            Step::Claim { from, matching } => {
                let claimed = receives.claim(from.map(source), matching);
                let expected = model.first(from, matching);
                assert_eq!(
                    claimed.map(|(_, found)| found.header_data as u16),
                    expected.as_ref().map(|m| m.number)
                );
                if let (Some((claim, _)), Some(message)) = (claimed, expected) {
                    message.claim = Some(claim);
                }
                continue;
            }
            Step::ReceiveClaimed { ago } => {
                let posted = receive(n as u64, Matching::Untagged, LEN as usize);
                let message = model.messages.iter_mut().rev().filter(|m| m.claim.is_some()).nth(ago);
                let Alone { receives, room, .. } = &mut receives;
                let Some(message) = message else {
                    let never = Claim::from_bits(1 << 40 | n as u64);
                    assert!(receives.receive_claimed(room, never, posted).is_err());
                    continue;
                };
                message.receive = Some(posted.id);
                let claim = message.claim.take().unwrap();
                let delivery = receives.receive_claimed(room, claim, posted).unwrap();
                assert!(!receives.discard(room, claim), "it is not claimed any more");
                Vec::from_iter(delivery)
            }
            Step::Discard { ago } => {
                let message = model.messages.iter_mut().rev().filter(|m| m.claim.is_some()).nth(ago);
                let Some(message) = message else { continue };
                message.is_unwanted = true;
                let claim = message.claim.take().unwrap();
                let Alone { receives, room, .. } = &mut receives;
                assert!(receives.discard(room, claim) && !receives.discard(room, claim));
                Vec::new()
            }
            Step::Post { from, matching } => {
                let posted = || Posted {
                    from: from.map(source),
                    buffer: Buffer::Virtual(2),
                    ..receive(n as u64, matching, 0)
                };
                model.post(posted());
                Vec::from_iter(receives.post(posted()))
            }
            Step::Begin { source, tag } => {
                model.begin(n as u16, source, tag);
                Vec::from_iter(half(&mut receives, n as u16, source, tag, false))
            }
            Step::End { ago } => {
                let Some(message) = model.messages.iter_mut().rev().filter(|m| !m.complete).nth(ago) else {
                    continue;
                };
                message.complete = true;
                Vec::from_iter(half(&mut receives, message.number, message.source, message.tag, true))
            }
            Step::Cancel { ago } => {
                let posted = ago < model.posted.len();
                let id = if posted {
                    model.posted.remove(model.posted.len() - 1 - ago).id
                } else {
                    ReceiveId(n as u64)
                };
                match receives.cancel(id) {
                    Cancelled::Unused(unused) => assert!(posted && unused.id == id && !model.goes_on(id)),
                    Cancelled::Ends => assert!(posted && model.goes_on(id)),
                    Cancelled::TooLate => assert!(!posted),
                }
                Vec::new()
            }
            Step::Abandon { peer } => {
                let lost: Vec<(ReceiveId, bool)> =
                    receives.abandon(PdcId(peer as u16)).iter().map(|d| (d.id, d.more)).collect();
                let gone = |m: &ModelMessage| m.source.0 == peer && !m.complete;
                let mut expected = Vec::new();
                while let Some(at) = model.messages.iter().position(gone) {
                    let receive = model.messages.remove(at).receive;
                    expected.extend(receive.map(|id| (id, model.goes_on(id))));
                }
                assert_eq!(lost, expected);
                Vec::new()
            }
        };
        let done: Vec<_> = delivery.iter().map(|d| (d.header_data as u16, d.id, d.source, d.more)).collect();
        assert_eq!(done, model.take_done());
        assert_eq!((receives.posted(), receives.under_way()), (model.posted.len(), model.messages.len()));
        assert_eq!(receives.unexpected(), model.messages.iter().filter(|m| m.waits()).count());
        let kept = receives.receives.kept.check();
        let known = kept.values().map(|kept| u64::from(kept.unexpected)).sum::<u64>();
        let keeping = model.messages.iter().filter(|m| m.waits() || m.claim.is_some()).count();
        assert_eq!(known, keeping as u64);
    }
}

proptest! {
    #[test]
    fn messages_match_receives_as_in_a_linear_search(
        steps in prop::collection::vec(any_step(), 0..250),
    ) {
        check_steps(steps);
    }

    /// Many receives before the first message, so that most are found through the index.
    #[test]
    fn receives_are_found_by_the_index_as_in_a_linear_search(
        posts in prop::collection::vec(any_step().prop_filter("posts", |s| matches!(s, Step::Post { .. })), 20..60),
        steps in prop::collection::vec(any_step(), 0..150),
    ) {
        check_steps([posts, steps].concat());
    }

    /// Receives that many messages pass by before their own arrive.
    #[test]
    fn receives_that_wait_for_long_are_found_as_in_a_linear_search(
        rare in prop::collection::vec((prop::option::weighted(0.7, (2u32..4, 0u16..2)), any_matching()), 1..9),
        // With one of them and eight rare ones the index is empty whenever a message has passed the rare ones.
        common in 1usize..=10,
        steps in prop::collection::vec(any_step(), 0..150),
    ) {
        let rare = rare.into_iter().map(|(from, matching)| Step::Post { from, matching });
        let post = Step::Post { from: Some((1, 0)), matching: Matching::Untagged };
        let begin = Step::Begin { source: (1, 0), tag: None };
        let passing = [begin, Step::End { ago: 0 }, post.clone()].into_iter().cycle().take(300);
        let steps = rare.chain(vec![post; common]).chain(passing).chain(steps);
        check_steps(steps.collect());
    }
}
