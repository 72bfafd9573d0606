//! Tests of matching and placement.

use super::*;
use crate::ses::{Matching, Operation, SendMessage};
use proptest::prelude::*;

fn receive(id: u64, matching: Matching, len: usize) -> Posted {
    Posted { id: ReceiveId(id), from: None, matching, buffer: Buffer::Heap(vec![0; len]), context: id * 10 }
}

fn room(bytes_per_peer: u64) -> Room {
    Room::new(1, (1 << 20, 1 << 40), (1 << 16, bytes_per_peer))
}

/// The receives of the only process of an endpoint.
struct Alone {
    receives: Receives,
    room: Room,
}

impl Alone {
    fn new(room: Room) -> Alone {
        Alone { receives: Receives::new(0), room }
    }

    fn post(&mut self, posted: Posted) -> Option<Delivery> {
        self.receives.post(&mut self.room, posted)
    }

    fn begin_early(&mut self, name: MessageName, source: Source, part: &Part<'_>) -> Key {
        self.receives.begin_early(name, source, part, &mut self.room)
    }

    fn place(&mut self, key: Key, part: &Part<'_>) -> Result<Option<Delivery>, Refusal> {
        self.receives.place(&mut self.room, key, part)
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
        None => receives.receives.begin(name, source, &part, &mut receives.room, false)?,
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
    assert!(receives.kept.is_empty() && receives.by_name.is_empty() && receives.newest_incomplete.is_empty());
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
            receives.kept.is_empty() && receives.by_name.is_empty() && receives.newest_incomplete.is_empty()
        );
    }
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
        assert!(receives.by_name.is_empty() && receives.newest_incomplete.is_empty());
        assert_eq!(receives.kept.len(), kept);
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
    let from = prop_oneof![1 => Just(None), 3 => any_source().prop_map(Some)];
    prop_oneof![
        8 => (from, matching).prop_map(|(from, matching)| Step::Post { from, matching }),
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
}

impl Model {
    fn post(&mut self, posted: Posted) {
        let waits = |m: &ModelMessage| m.receive.is_none() && posted.takes(source(m.source), m.tag);
        match self.messages.iter_mut().find(|m| waits(m)) {
            Some(message) => message.receive = Some(posted.id),
            None => self.posted.push(posted),
        }
    }

    fn begin(&mut self, number: u16, from: (u32, u16), tag: Option<u64>) {
        let at = self.posted.iter().position(|posted| posted.takes(source(from), tag));
        let receive = at.map(|at| self.posted.remove(at).id);
        self.messages.push(ModelMessage { number, source: from, tag, receive, complete: false });
    }

    /// The matches made since the last call: message, receive and sender.
    fn take_done(&mut self) -> Option<(u16, ReceiveId, Source)> {
        let at = self.messages.iter().position(|m| m.complete && m.receive.is_some())?;
        let done = self.messages.remove(at);
        done.receive.map(|id| (done.number, id, source(done.source)))
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
            Step::Post { from, matching } => {
                let posted = || Posted {
                    from: from.map(source),
                    buffer: Buffer::Virtual(2),
                    ..receive(n as u64, matching, 0)
                };
                model.post(posted());
                receives.post(posted())
            }
            Step::Begin { source, tag } => {
                model.begin(n as u16, source, tag);
                half(&mut receives, n as u16, source, tag, false)
            }
            Step::End { ago } => {
                let Some(message) = model.messages.iter_mut().rev().filter(|m| !m.complete).nth(ago) else {
                    continue;
                };
                message.complete = true;
                half(&mut receives, message.number, message.source, message.tag, true)
            }
            Step::Cancel { ago } => {
                let posted = ago < model.posted.len();
                let id = if posted {
                    model.posted.remove(model.posted.len() - 1 - ago).id
                } else {
                    ReceiveId(n as u64)
                };
                assert_eq!(receives.cancel(id).map(|posted| posted.id), posted.then_some(id));
                None
            }
            Step::Abandon { peer } => {
                let lost: Vec<ReceiveId> =
                    receives.abandon(PdcId(peer as u16)).iter().map(|d| d.id).collect();
                let gone = |m: &ModelMessage| m.source.0 == peer && !m.complete;
                let expected: Vec<ReceiveId> =
                    model.messages.iter().filter(|m| gone(m)).filter_map(|m| m.receive).collect();
                assert_eq!(lost, expected);
                model.messages.retain(|m| !gone(m));
                None
            }
        };
        assert_eq!(delivery.map(|d| (d.header_data as u16, d.id, d.source)), model.take_done());
        assert_eq!((receives.posted(), receives.under_way()), (model.posted.len(), model.messages.len()));
        assert_eq!(receives.unexpected(), model.messages.iter().filter(|m| m.receive.is_none()).count());
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
        steps in prop::collection::vec(any_step(), 0..150),
    ) {
        let rare = rare.into_iter().map(|(from, matching)| Step::Post { from, matching });
        let common = Step::Post { from: Some((1, 0)), matching: Matching::Untagged };
        let begin = Step::Begin { source: (1, 0), tag: None };
        let passing = [begin, Step::End { ago: 0 }, common.clone()].into_iter().cycle().take(300);
        let steps = rare.chain(vec![common; 10]).chain(passing).chain(steps);
        check_steps(steps.collect());
    }
}
