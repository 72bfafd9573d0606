//! A model of ordered matching, searched exhaustively: see docs/decisions/0048-messages-match-in-order.md.
//!
//! One sender has three messages of one or two packets for one receiver. Every packet names its message. The network
//! loses packets and delivers them in any order; the sender sends again what was lost or refused. The receiver posts
//! its receives one after the other, each once the ones before have completed but for a few.
//!
//! From the start, all states that can be reached are visited. In each of them
//!
//! - no message has met another receive than in a network that keeps the order,
//! - what is kept for messages without a receive is within its limits, and
//! - the end, where every message is in its receive, can still be reached: there is no deadlock.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

const MESSAGES: usize = 3;
/// Packets of a message, at most.
const PACKETS: usize = 2;

/// What the target does with messages whose turn has not come, or for which it has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    /// As decided.
    Decided,
    /// Matches messages as they arrive.
    Arrival,
    /// A message whose payload is refused leaves nothing behind.
    NoEnvelopes,
    /// Early messages take room without regard to those before them.
    NoReserve,
}

/// One run of the model.
#[derive(Clone, Copy, Debug)]
struct Case {
    policy: Policy,
    /// Number of packets of each message.
    packets: [usize; MESSAGES],
    tags: [u8; MESSAGES],
    /// The tag that each receive asks for, or any.
    receives: [Option<u8>; MESSAGES],
    /// Number of receives that are posted and not complete, at most.
    slots: usize,
    /// Number of messages without a receive that the target knows, at most.
    known: usize,
    /// Number of messages without a receive whose payload the target keeps, at most.
    kept: usize,
    /// The packets that may leave before the first of them is acknowledged.
    window: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Packet {
    Unsent,
    InFlight,
    /// Lost or refused.
    Waiting,
    Accepted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Message {
    /// No packet of it has arrived.
    Unknown,
    /// Some messages before it are unknown.
    Early {
        kept: bool,
    },
    /// In order, but no receive takes it so far.
    Unexpected {
        kept: bool,
    },
    Matched {
        receive: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    packets: [[Packet; PACKETS]; MESSAGES],
    messages: [Message; MESSAGES],
    /// The first message that is not in order: all before it have begun.
    next: usize,
    /// Receives posted so far.
    posted: usize,
}

impl State {
    fn start(case: &Case) -> State {
        let mut packets = [[Packet::Accepted; PACKETS]; MESSAGES];
        for (message, count) in packets.iter_mut().zip(case.packets) {
            message[..count].fill(Packet::Unsent);
        }
        State { packets, messages: [Message::Unknown; MESSAGES], next: 0, posted: 0 }
    }

    fn is_complete(&self, message: usize) -> bool {
        let all = self.packets[message].iter().all(|packet| *packet == Packet::Accepted);
        all && matches!(self.messages[message], Message::Matched { .. })
    }

    fn is_end(&self) -> bool {
        (0..MESSAGES).all(|message| self.is_complete(message))
    }

    fn count(&self, which: impl Fn(Message) -> bool) -> usize {
        self.messages.iter().filter(|message| which(**message)).count()
    }

    fn kept(&self) -> usize {
        self.count(|m| matches!(m, Message::Early { kept: true } | Message::Unexpected { kept: true }))
    }

    fn unexpected(&self) -> usize {
        self.count(|m| matches!(m, Message::Unexpected { .. }))
    }

    /// Places taken by early messages, and with them by all before them that are still unknown.
    fn reserved(&self, case: &Case) -> usize {
        let is_early = |m: &Message| matches!(m, Message::Early { .. });
        match case.policy {
            Policy::Decided => {
                self.messages.iter().rposition(is_early).map_or(0, |last| last + 1 - self.next)
            }
            _ => self.count(|m| is_early(&m)),
        }
    }

    /// The first posted receive that takes `message` and has none.
    fn find_receive(&self, case: &Case, message: usize) -> Option<usize> {
        let is_free = |receive: &usize| !self.messages.contains(&Message::Matched { receive: *receive });
        let takes = |receive: &usize| case.receives[*receive].is_none_or(|tag| tag == case.tags[message]);
        (0..self.posted).filter(is_free).find(takes)
    }

    /// Matches messages whose turn has come.
    fn take_turns(&mut self, case: &Case) {
        while self.next < MESSAGES
            && let Message::Early { kept } = self.messages[self.next]
        {
            self.messages[self.next] = match self.find_receive(case, self.next) {
                Some(receive) => Message::Matched { receive },
                None => Message::Unexpected { kept },
            };
            self.next += 1;
        }
    }

    /// A packet of an unknown message arrives. Returns whether it is accepted.
    fn begin(&mut self, case: &Case, message: usize) -> bool {
        let kept = self.kept() < case.kept;
        let leaves_trace = kept || case.policy != Policy::NoEnvelopes;
        let in_turn = message == self.next || case.policy == Policy::Arrival;
        let (unexpected, reserved) = (self.unexpected(), self.reserved(case));
        if !in_turn {
            let needed = match case.policy {
                Policy::Decided => reserved.max(message + 1 - self.next),
                _ => reserved + 1,
            };
            if unexpected + needed > case.known || !leaves_trace {
                return false;
            }
            self.messages[message] = Message::Early { kept };
            return kept;
        }
        let accepted = match self.find_receive(case, message) {
            Some(receive) => {
                self.messages[message] = Message::Matched { receive };
                true
            }
            None => {
                let has_place = case.policy == Policy::Decided && reserved > 0;
                if !leaves_trace || !has_place && unexpected + reserved >= case.known {
                    return false;
                }
                self.messages[message] = Message::Unexpected { kept };
                kept
            }
        };
        self.next = message + 1;
        self.take_turns(case);
        accepted
    }

    /// A packet arrives. Returns whether it is accepted.
    fn arrive(&mut self, case: &Case, message: usize) -> bool {
        let room = self.kept() < case.kept;
        match &mut self.messages[message] {
            Message::Unknown => self.begin(case, message),
            Message::Early { kept } | Message::Unexpected { kept } => {
                *kept |= room;
                *kept
            }
            Message::Matched { .. } => true,
        }
    }

    /// All states that can follow.
    fn successors(&self, case: &Case) -> Vec<State> {
        let mut all = Vec::new();
        let complete = (0..MESSAGES).filter(|message| self.is_complete(*message)).count();
        if self.posted < MESSAGES && self.posted - complete < case.slots {
            all.push(self.post(case));
        }
        let sequence: Vec<_> =
            (0..MESSAGES).flat_map(|m| (0..case.packets[m]).map(move |packet| (m, packet))).collect();
        let is = |at: &(usize, usize), packet| self.packets[at.0][at.1] == packet;
        let acknowledged = sequence.iter().take_while(|at| is(at, Packet::Accepted)).count();
        let unsent = sequence.iter().position(|at| is(at, Packet::Unsent));
        let with = |(m, packet): (usize, usize), value| {
            let mut state = *self;
            state.packets[m][packet] = value;
            state
        };
        for (psn, at) in sequence.into_iter().enumerate() {
            match self.packets[at.0][at.1] {
                Packet::Unsent if Some(psn) == unsent && psn < acknowledged + case.window => {
                    all.push(with(at, Packet::InFlight));
                }
                Packet::Waiting => all.push(with(at, Packet::InFlight)),
                Packet::InFlight => {
                    all.push(with(at, Packet::Waiting));
                    let mut state = *self;
                    let accepted = state.arrive(case, at.0);
                    state.packets[at.0][at.1] = if accepted { Packet::Accepted } else { Packet::Waiting };
                    all.push(state);
                }
                _ => {}
            }
        }
        all
    }

    /// The next receive is posted. It gets the first message that waits for it.
    fn post(&self, case: &Case) -> State {
        let receive = self.posted;
        let takes = |message: &usize| {
            let waits = matches!(self.messages[*message], Message::Unexpected { .. });
            waits && case.receives[receive].is_none_or(|tag| tag == case.tags[*message])
        };
        let mut state = State { posted: receive + 1, ..*self };
        if let Some(message) = (0..MESSAGES).find(takes) {
            state.messages[message] = Message::Matched { receive };
        }
        state
    }
}

impl Case {
    /// The receive that each message meets where the network keeps the order: each takes the first message that is
    /// left. None if a receive is left over.
    fn expected(&self) -> Option<[usize; MESSAGES]> {
        let mut meets = [usize::MAX; MESSAGES];
        for (receive, wanted) in self.receives.iter().enumerate() {
            let is_left =
                |m: &usize| meets[*m] == usize::MAX && wanted.is_none_or(|tag| tag == self.tags[*m]);
            meets[(0..MESSAGES).find(is_left)?] = receive;
        }
        Some(meets)
    }

    /// How many messages without a receive the receiver has before it when it waits for another, at most.
    fn overtaken(&self) -> usize {
        let meets = self.expected().expect("receives that all get a message");
        let before = |message: usize| (0..message).filter(|m| meets[*m] > meets[message]).count();
        (0..MESSAGES).map(before).max().unwrap_or(0)
    }
}

/// A way in which a case breaks its promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A message has met the wrong receive.
    Order,
    /// More is kept than there is room for.
    Memory,
    /// The end cannot be reached any more.
    Deadlock,
}

/// Visits all states of a case. Returns their number.
fn explore(case: &Case) -> Result<usize, (Fault, State)> {
    let expected = case.expected().expect("receives that all get a message");
    let start = State::start(case);
    let mut numbers = FxHashMap::from_iter([(start, 0)]);
    let (mut states, mut to_visit) = (vec![start], VecDeque::from([0]));
    let mut predecessors: Vec<Vec<usize>> = vec![Vec::new()];
    while let Some(number) = to_visit.pop_front() {
        let state = states[number];
        let is_wrong = |(m, expected): (&Message, usize)| matches!(m, Message::Matched { receive } if *receive != expected);
        if state.messages.iter().zip(expected).any(is_wrong) {
            return Err((Fault::Order, state));
        }
        if state.kept() > case.kept || state.unexpected() + state.reserved(case) > case.known {
            return Err((Fault::Memory, state));
        }
        for next in state.successors(case) {
            let next_number = *numbers.entry(next).or_insert_with(|| {
                states.push(next);
                predecessors.push(Vec::new());
                to_visit.push_back(states.len() - 1);
                states.len() - 1
            });
            predecessors[next_number].push(number);
        }
    }
    // Backwards from the end.
    let mut ends_well: Vec<bool> = states.iter().map(State::is_end).collect();
    let mut to_visit: Vec<usize> = (0..states.len()).filter(|number| ends_well[*number]).collect();
    while let Some(number) = to_visit.pop() {
        for &before in &predecessors[number] {
            if !std::mem::replace(&mut ends_well[before], true) {
                to_visit.push(before);
            }
        }
    }
    match ends_well.iter().position(|well| !well) {
        Some(number) => Err((Fault::Deadlock, states[number])),
        None => Ok(states.len()),
    }
}

const TAGS: [[u8; MESSAGES]; 4] = [[1, 1, 1], [1, 1, 2], [1, 2, 1], [1, 2, 3]];

/// All sequences of receives, each for a tag or for any, that take messages with these tags.
fn receives(tags: [u8; MESSAGES]) -> Vec<[Option<u8>; MESSAGES]> {
    let wanted = [None, Some(1), Some(2), Some(3)];
    let all = wanted.iter().flat_map(|a| wanted.iter().flat_map(|b| wanted.iter().map(|c| [*a, *b, *c])));
    all.filter(|receives| Case { tags, receives: *receives, ..BASE }.expected().is_some()).collect()
}

const BASE: Case = Case {
    policy: Policy::Decided,
    packets: [1; MESSAGES],
    tags: [1; MESSAGES],
    receives: [None; MESSAGES],
    slots: 1,
    known: 0,
    kept: 0,
    window: MESSAGES * PACKETS,
};

const LENGTHS: [[usize; MESSAGES]; 4] = [[1, 1, 1], [2, 1, 1], [1, 2, 1], [2, 2, 2]];

fn cases(policy: Policy) -> impl Iterator<Item = Case> {
    TAGS.into_iter().flat_map(move |tags| {
        receives(tags).into_iter().flat_map(move |receives| {
            LENGTHS.into_iter().flat_map(move |packets| {
                (1..=2).flat_map(move |slots| {
                    (0..=2).map(move |kept| {
                        let case = Case { policy, packets, tags, receives, slots, kept, ..BASE };
                        Case { known: case.overtaken().max(kept), ..case }
                    })
                })
            })
        })
    })
}

/// Whether a policy has a fault in some case.
fn has(policy: Policy, fault: Fault) -> bool {
    cases(policy).any(|case| explore(&case).is_err_and(|(found, _)| found == fault))
}

#[test]
fn messages_match_in_order_within_memory_and_without_deadlock() {
    let mut visited = 0;
    for case in cases(Policy::Decided) {
        match explore(&case) {
            Ok(states) => visited += states,
            Err((fault, state)) => panic!("{fault:?} in {case:?}: {state:?}"),
        }
    }
    assert!(visited > 100_000, "only {visited} states");
}

/// Each part of the decision is needed: the search finds what goes wrong without it.
#[test]
fn without_a_part_of_the_decision_the_search_finds_its_fault() {
    assert!(has(Policy::Arrival, Fault::Order));
    assert!(has(Policy::NoEnvelopes, Fault::Deadlock));
    assert!(has(Policy::NoReserve, Fault::Deadlock));
}

/// Both limits of the promise are real: fewer places than the receiver leaves unmatched, or a window that ends before
/// the message that it waits for.
#[test]
fn beyond_its_limits_the_promise_does_not_hold() {
    let last_first = Case {
        packets: [2, 1, 2],
        tags: [1, 2, 3],
        receives: [Some(3), Some(2), Some(1)],
        known: 2,
        window: 5,
        ..BASE
    };
    assert!(explore(&last_first).is_ok());
    let fault = |case| explore(&case).map_err(|(fault, _)| fault);
    assert_eq!(fault(Case { known: 1, ..last_first }), Err(Fault::Deadlock));
    assert_eq!(fault(Case { window: 4, ..last_first }), Err(Fault::Deadlock));
}
