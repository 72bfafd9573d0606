//! Copies in pieces, compared with copies at once.

use super::*;

/// Its messages keep their order.
const ORDERED: u16 = 3;
const MTU: u32 = 7;

#[derive(Clone, Debug)]
enum Step {
    /// A message begins, perhaps before its turn.
    Begin {
        pdc: u16,
        tag: u64,
        len: u32,
        part: prop::sample::Index,
        early: bool,
    },
    /// Another part of a message arrives.
    Part {
        message: prop::sample::Index,
        part: prop::sample::Index,
    },
    /// All that is missing of a message arrives.
    Rest {
        message: prop::sample::Index,
    },
    TakeTurn {
        message: prop::sample::Index,
    },
    Post {
        tag: u64,
        len: usize,
    },
    PostMany {
        ignore: u64,
        len: usize,
        least: u32,
        budget: i64,
    },
    ReceiveClaimed {
        tag: u64,
        len: usize,
    },
    Copy {
        budget: i64,
    },
    Cancel {
        receive: prop::sample::Index,
    },
    Abandon {
        pdc: u16,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let any = any::<prop::sample::Index>;
    prop_oneof![
        6 => (1u16..=ORDERED, 0u64..3, 1u32..60, any(), prop::bool::weighted(0.2)).prop_map(
            |(pdc, tag, len, part, early)| Step::Begin { pdc, tag, len, part, early: early && pdc != ORDERED }
        ),
        6 => (any(), any()).prop_map(|(message, part)| Step::Part { message, part }),
        5 => any().prop_map(|message| Step::Rest { message }),
        3 => any().prop_map(|message| Step::TakeTurn { message }),
        5 => (0u64..3, 0usize..70).prop_map(|(tag, len)| Step::Post { tag, len }),
        2 => (prop_oneof![Just(0), Just(3)], 0usize..200, 1u32..20, 1i64..2_000).prop_map(
            |(ignore, len, least, budget)| Step::PostMany { ignore, len, least, budget }
        ),
        2 => (0u64..3, 0usize..70).prop_map(|(tag, len)| Step::ReceiveClaimed { tag, len }),
        8 => (1i64..40).prop_map(|budget| Step::Copy { budget }),
        1 => any().prop_map(|receive| Step::Cancel { receive }),
        1 => (1u16..=ORDERED).prop_map(|pdc| Step::Abandon { pdc }),
    ]
}

struct Sent {
    pdc: u16,
    message: SendMessage,
    /// Its parts that have not arrived.
    left: Vec<(u32, u32)>,
    waits_for_turn: bool,
}

/// A message that has ended: its number, which is not known of one that ends without its first packet, its length, whether it
/// is complete, and its PDC.
type Ended = (u64, u32, bool, u16);

/// What has become of a message or, without one, of a receive that was cancelled.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct End {
    id: ReceiveId,
    message: Option<Ended>,
    is_last: bool,
}

struct World {
    all: Alone,
    ends: Vec<End>,
}

impl World {
    fn new(longest: u32) -> World {
        let mut all = Alone::new(room(1 << 20));
        all.room.limit_copies(longest);
        World { all, ends: Vec::new() }
    }

    fn end(&mut self, delivery: Delivery, sent: &[Sent]) {
        let bytes = match &delivery.buffer {
            Buffer::Heap(bytes) => &bytes[..],
            Buffer::BytesMut(bytes) => &bytes[..],
            other => panic!("{other:?}"),
        };
        let len = bytes.len().min(delivery.len as usize);
        if delivery.complete {
            let Sent { message, .. } = &sent[delivery.header_data as usize];
            assert_eq!(bytes[..len], content(message)[..len], "{delivery:?}");
        }
        let pdc = delivery.source.peer.0 as u16;
        let message = Some((delivery.header_data, delivery.len, delivery.complete, pdc));
        self.ends.push(End { id: delivery.id, message, is_last: !delivery.more });
    }

    fn end_all(&mut self, deliveries: impl IntoIterator<Item = Delivery>, sent: &[Sent]) {
        deliveries.into_iter().for_each(|delivery| self.end(delivery, sent));
    }

    /// A part arrives. The message waits for those of its PDC, if that has an order.
    fn arrive(&mut self, number: usize, (offset, end): (u32, u32), begins_early: bool, sent: &[Sent]) {
        let Sent { pdc, message, .. } = &sent[number];
        let (pdc, len) = (*pdc, end - offset);
        let (request, payload) = (message.request(0, offset, len), message.buffer.payload(offset, len));
        let delivery = if begins_early {
            let (part, source) = (Part::new(&request, payload).unwrap(), Addr(pdc.into()).into());
            let key = self.all.begin_early((PdcId(pdc), number as u16), source, &part);
            self.all.place(key, &part).unwrap()
        } else {
            arrive(&mut self.all, pdc.into(), pdc, &request, payload).unwrap()
        };
        let Alone { receives, room, .. } = &mut self.all;
        let delivery = match delivery {
            Some(delivery) if pdc == ORDERED => receives.queue_up(room, PdcId(pdc), delivery),
            delivery => delivery,
        };
        self.end_all(delivery, sent);
    }

    fn copy(&mut self, mut budget: i64, sent: &[Sent]) {
        let (given, mut deliveries) = (budget, Vec::new());
        let Alone { receives, room, .. } = &mut self.all;
        let copied = crate::steps::of(|| deliveries = receives.copy(room, &mut budget));
        assert!(copied <= given as u64, "{copied} bytes of {given}");
        assert!(budget <= 0 || !receives.is_copying());
        self.end_all(deliveries, sent);
    }

    fn check(&self) {
        let Alone { receives, room, .. } = &self.all;
        receives.check(room);
        assert_eq!(room.copies, receives.copies.as_ref().map_or(0, |copies| copies.len() as u64));
    }

    /// The messages of the PDC with order that have ended, as they did.
    fn in_order(&self) -> Vec<Ended> {
        self.ends.iter().filter_map(|end| end.message).filter(|message| message.3 == ORDERED).collect()
    }

    /// The messages that have ended, in any order, and the receives that have. The last end of each receive says so.
    fn result(&self) -> (Vec<(ReceiveId, Ended)>, Vec<ReceiveId>) {
        let mut messages: Vec<_> = self.ends.iter().filter_map(|end| Some((end.id, end.message?))).collect();
        messages.sort();
        let mut ended: Vec<ReceiveId> = Vec::new();
        for end in &self.ends {
            assert!(!ended.contains(&end.id), "{:?} ends twice: {:?}", end.id, self.ends);
            ended.extend(end.is_last.then_some(end.id));
        }
        ended.sort();
        (messages, ended)
    }
}

fn check_steps(longest: u32, steps: Vec<Step>, leaves: bool) {
    let mut worlds = [World::new(u32::MAX), World::new(longest)];
    let (mut sent, mut receives) = (Vec::<Sent>::new(), 0);
    for step in steps {
        let unfinished: Vec<usize> = (0..sent.len()).filter(|n| !sent[*n].left.is_empty()).collect();
        match step {
            Step::Begin { pdc, tag, len, part, early } => {
                let (number, begins) = (sent.len(), (0..len).step_by(MTU as usize));
                let bytes = (0..len).map(|i| (i * 3 + number as u32 * 17) as u8).collect();
                let operation = Operation::Send { tag: Some(tag) };
                let mut message = SendMessage::new(Buffer::Heap(bytes), operation, number as u64, 0, 0);
                message.msg_id = number as u16;
                let mut left: Vec<_> = begins.map(|offset| (offset, len.min(offset + MTU))).collect();
                let part = left.swap_remove(part.index(left.len()));
                sent.push(Sent { pdc, message, left, waits_for_turn: early });
                worlds.iter_mut().for_each(|world| world.arrive(number, part, early, &sent));
            }
            Step::Part { message, part } if !unfinished.is_empty() => {
                let number = unfinished[message.index(unfinished.len())];
                let left = &mut sent[number].left;
                let part = left.swap_remove(part.index(left.len()));
                worlds.iter_mut().for_each(|world| world.arrive(number, part, false, &sent));
            }
            Step::Rest { message } if !unfinished.is_empty() => {
                let number = unfinished[message.index(unfinished.len())];
                for part in std::mem::take(&mut sent[number].left) {
                    worlds.iter_mut().for_each(|world| world.arrive(number, part, false, &sent));
                }
            }
            Step::TakeTurn { message } => {
                let early: Vec<usize> = (0..sent.len()).filter(|n| sent[*n].waits_for_turn).collect();
                if early.is_empty() {
                    continue;
                }
                let number = early[message.index(early.len())];
                sent[number].waits_for_turn = false;
                for world in &mut worlds {
                    let delivery = world.all.take_turn((PdcId(sent[number].pdc), number as u16));
                    world.end_all(delivery, &sent);
                }
            }
            Step::Post { tag, len } => {
                receives += 1;
                for world in &mut worlds {
                    world.copy(i64::MAX, &sent);
                    let posted = receive(receives, Matching::Tagged { tag, ignore: 0 }, len);
                    let delivery = world.all.post(posted);
                    world.end_all(delivery, &sent);
                }
            }
            Step::PostMany { ignore, len, least, budget } => {
                receives += 1;
                for (world, budget) in worlds.iter_mut().zip([i64::MAX, budget]) {
                    world.copy(i64::MAX, &sent);
                    let buffer = Buffer::BytesMut(Box::new(bytes::BytesMut::zeroed(len)));
                    let (matching, many) = (Matching::Tagged { tag: 0, ignore }, NonZeroU32::new(least));
                    world.all.post_many(Posted { buffer, many, ..receive(receives, matching, 0) });
                    for _ in 0..10_000 {
                        let Alone { receives, room, .. } = &mut world.all;
                        let deliveries = receives.gather(room, &mut { budget });
                        world.end_all(deliveries, &sent);
                        if !world.all.is_gathering() {
                            break;
                        }
                    }
                    assert!(!world.all.is_gathering());
                }
            }
            Step::ReceiveClaimed { tag, len } => {
                let matching = Matching::Tagged { tag, ignore: 0 };
                let claims = worlds.each_mut().map(|world| world.all.claim(None, matching));
                assert_eq!(claims[0].map(|claim| claim.1), claims[1].map(|claim| claim.1));
                receives += 1;
                for (world, claim) in worlds.iter_mut().zip(claims) {
                    let Some((claim, _)) = claim else { continue };
                    world.copy(i64::MAX, &sent);
                    let Alone { receives: all, room, .. } = &mut world.all;
                    let delivery =
                        all.receive_claimed(room, claim, receive(receives, matching, len)).unwrap();
                    world.end_all(delivery, &sent);
                }
            }
            Step::Copy { budget } => worlds.iter_mut().for_each(|world| world.copy(budget, &sent)),
            Step::Cancel { receive } if receives > 0 => {
                let id = ReceiveId(receive.index(receives as usize) as u64 + 1);
                for world in &mut worlds {
                    if let Cancelled::Unused(_) = world.all.cancel(id) {
                        world.ends.push(End { id, message: None, is_last: true });
                    }
                }
            }
            Step::Abandon { pdc } => {
                for world in &mut worlds {
                    let lost = world.all.abandon(PdcId(pdc));
                    world.end_all(lost, &sent);
                }
                for number in 0..sent.len() {
                    if sent[number].pdc != pdc {
                        continue;
                    }
                    // What is complete has its turn.
                    if sent[number].left.is_empty() && sent[number].waits_for_turn {
                        for world in &mut worlds {
                            let delivery = world.all.take_turn((PdcId(pdc), number as u16));
                            world.end_all(delivery, &sent);
                        }
                    }
                    sent[number].waits_for_turn = false;
                    sent[number].left.clear();
                }
            }
            Step::Part { .. } | Step::Rest { .. } | Step::Cancel { .. } => continue,
        }
        assert!(!worlds[0].all.is_copying());
        worlds.iter().for_each(World::check);
    }
    if leaves {
        for World { all: Alone { receives, mut room, .. }, .. } in worlds {
            let most = 100 + receives.under_way() * 100 + receives.posted();
            let mut left = receives.close();
            assert!((0..most).any(|_| left.drop_some(&mut room, &mut { 100 }, |_| {})), "it comes to an end");
            left.messages().check(&room);
            assert_eq!((room.used(), room.copies), ((0, 0, 0), 0));
        }
        return;
    }
    worlds[1].copy(i64::MAX, &sent);
    worlds[1].check();
    assert_eq!(worlds[0].in_order(), worlds[1].in_order());
    assert_eq!(worlds[0].result(), worlds[1].result());
    let left = |world: &World| (world.all.under_way(), world.all.posted(), world.all.unexpected());
    assert_eq!(left(&worlds[0]), left(&worlds[1]));
}

proptest! {
    #[test]
    fn messages_that_are_copied_in_pieces_end_as_those_that_are_copied_at_once(
        longest in 0u32..30,
        steps in prop::collection::vec(step(), 0..200),
        leaves in prop::bool::weighted(0.2),
    ) {
        check_steps(longest, steps, leaves);
    }
}
