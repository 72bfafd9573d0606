//! Peers that applications enter by address.

use core::net::IpAddr;
use std::collections::BTreeSet;

use weft_cc::Time;

use super::peer_costs::PERIOD;
use super::resolving::{PEER, Side, TURN, alone, ip, refused};
use super::served::Placing;
use super::world::Peers;
use super::*;
use crate::buffer::Buffer;
use crate::fep::{PeerRefusal, Send, Standing, Unreachable};
use crate::packet::{Addr, Packet, Payload};
use crate::port::memory::{MemoryConfig, MemoryPort, pair};
use crate::port::{Port as _, RxBurst};
use crate::wire::ethernet::MacAddr;
use crate::worker::HostAddr;

/// The lowest address that is free in a side's book.
const NEXT: Addr = Addr(3);

fn address(last: u8) -> IpAddr {
    [10, 0, 0, last].into()
}

/// Asks for a peer, and returns its address or why it is refused.
fn ask(side: &mut Side, client: &mut Client, ip: IpAddr, mac: Option<MacAddr>) -> Result<Addr, CallError> {
    ask_at(Time::ZERO, side, client, ip, mac)
}

fn ask_at(
    now: Time,
    side: &mut Side,
    client: &mut Client,
    ip: IpAddr,
    mac: Option<MacAddr>,
) -> Result<Addr, CallError> {
    client.peer(ip, mac, 7).unwrap();
    side.turn(now);
    let event = client.poll().unwrap().expect("an answer at once");
    match event.report {
        Report::Peer { addr, .. } if event.context == 7 => Ok(addr),
        _ => {
            let (context, request, error) = refused(&event);
            assert_eq!((context, request), (7, Request::Peer));
            Err(error)
        }
    }
}

#[test]
fn a_peer_has_one_address_for_all_applications() {
    let (mut side, _deaf) = alone();
    let (mut alice, mut bob) = (side.open(), side.open());
    assert_eq!(ask(&mut side, &mut alice, ip(PEER), None), Ok(PEER), "it is in the book already");
    assert_eq!(ask(&mut side, &mut alice, address(77), None), Ok(NEXT));
    assert_eq!(ask(&mut side, &mut bob, address(77), None), Ok(NEXT));
    assert_eq!(ask(&mut side, &mut bob, address(78), None), Ok(Addr(4)));
    assert_eq!(ask(&mut side, &mut alice, address(77), None), Ok(NEXT));
    drop(bob);
    side.assert_nothing_is_left(Time::ZERO, alice);
}

#[test]
fn an_application_can_add_no_more_peers_than_its_quota() {
    let (mut side, _deaf) = alone();
    let (mut glutton, mut other) = (side.open(), side.open());
    assert_eq!(ask(&mut side, &mut glutton, address(101), None), Ok(NEXT));
    assert_eq!(ask(&mut side, &mut glutton, address(102), None), Ok(Addr(4)));
    let quota = CallError::Limit { what: Resource::SessionPeers, limit: 2 };
    assert_eq!(ask(&mut side, &mut glutton, address(103), None), Err(quota));
    assert_eq!(ask(&mut side, &mut glutton, address(102), None), Ok(Addr(4)), "that one is there already");
    // Other applications keep their share, as long as the book has room.
    assert_eq!(ask(&mut side, &mut other, address(103), None), Ok(Addr(5)));
    assert_eq!(ask(&mut side, &mut other, address(104), None), Ok(Addr(6)));
    let mut third = side.open();
    assert_eq!(ask(&mut side, &mut third, address(105), None), Ok(Addr(7)));
    let full = CallError::Limit { what: Resource::Peers, limit: 8 };
    assert_eq!(ask(&mut side, &mut third, address(106), None), Err(full));
    assert_eq!(ask(&mut side, &mut third, address(101), None), Ok(NEXT));
}

/// A process that is not the server's own joins, to add so many peers.
fn join_as(side: &mut Side, tenant: u32, peers: u32) -> Client {
    let config = SessionConfig { peers, ..SMALL };
    side.sessions.join_of(side.worker.fep_mut(), Some(tenant), &config).unwrap()
}

/// One whose address book has room for so many peers of four applications, which may each have 100.
struct Book {
    side: Side,
    _deaf: MemoryPort,
    entries: usize,
    next: u8,
}

impl Book {
    fn new(room: usize) -> Book {
        let (left, deaf) = pair(&MemoryConfig::default()).unwrap();
        let entries = 3 + room;
        Book { side: Side::with_book(0, left, entries), _deaf: deaf, entries, next: 20 }
    }

    fn open(&mut self) -> Client {
        let config = SessionConfig { peers: 100, ..SMALL };
        self.side.sessions.open(self.side.worker.fep_mut(), &config, None).unwrap()
    }

    fn ask(&mut self, client: &mut Client, last: u8) -> Result<Addr, CallError> {
        ask(&mut self.side, client, address(last), None)
    }

    /// The address of a peer that is in the book.
    fn find(&self, last: u8) -> Addr {
        self.side.worker.book().find(address(last)).expect("a peer that is in the book")
    }

    /// Checks that the parts of all holders are there still. They need not be if the owner has taken entries.
    fn check(&self) {
        self.side.sessions.check_peers();
    }

    /// The error of those that ask for more than their part.
    fn full(&self) -> CallError {
        CallError::Limit { what: Resource::Peers, limit: self.entries }
    }

    /// An application adds peers until it may add no more. Returns how many.
    fn fill(&mut self, client: &mut Client) -> u32 {
        for count in 0.. {
            self.next += 1;
            match self.ask(client, self.next) {
                Ok(_) => {}
                Err(error) if error == self.full() => return count,
                Err(error) => panic!("{error}"),
            }
        }
        unreachable!()
    }
}

/// Of the 32 entries that the book has for four applications, four are reserved for each.
#[test]
fn applications_that_add_all_the_peers_they_may_leave_others_their_part_of_the_book() {
    let mut book = Book::new(32);
    let mut hogs = [(); 3].map(|()| book.open());
    assert_eq!(hogs.each_mut().map(|hog| book.fill(hog)), [12, 8, 6]);
    let mut other = book.open();
    assert_eq!(book.fill(&mut other), 5, "its part, and half of what is left beside");
    book.check();
    // What somebody has in the book already takes no further entry.
    (21..33).for_each(|last| assert!(book.ask(&mut other, last).is_ok(), "{last}"));
    // Its entries count for the one that still needs them, as far as that may have them then; for others it asks again.
    drop(hogs);
    book.side.turn(Time::ZERO);
    book.side.turn(Time::ZERO);
    book.check();
    let is_held = |book: &Book, last: u8| book.side.sessions.is_held(book.find(last));
    assert!(is_held(&book, 21) && !is_held(&book, 22));
    (22..26).for_each(|last| assert!(book.ask(&mut other, last).is_ok(), "{last}"));
    assert!((21..26).all(|last| is_held(&book, last)));
    let mut third = book.open();
    let taken = book.fill(&mut third);
    assert!((4..=12).contains(&taken), "{taken}");
    book.check();
    let is_there = |last| book.side.worker.book().find(address(last)).is_some();
    (21..26).for_each(|last| assert!(is_there(last), "{last} is needed"));
    drop(third);
    book.side.assert_nothing_is_left(Time::ZERO, other);
}

#[test]
fn a_process_that_joins_over_and_over_has_one_part_of_the_book() {
    let mut book = Book::new(32);
    let mut hogs = [(); 2].map(|()| join_as(&mut book.side, 1, 100));
    assert_eq!(hogs.each_mut().map(|hog| book.fill(hog)), [12, 0]);
    let mut others = [2, 3].map(|tenant| join_as(&mut book.side, tenant, 100));
    assert_eq!(others.each_mut().map(|other| book.fill(other)), [8, 6]);
    // What two of its applications hold counts for it until both are gone.
    let [first, mut second] = hogs;
    (21..33).for_each(|last| assert!(book.ask(&mut second, last).is_ok(), "{last}"));
    drop(first);
    book.side.turn(Time::ZERO);
    book.side.turn(Time::ZERO);
    assert_eq!(book.fill(&mut second), 0);
    drop((second, others));
    book.side.turn(Time::ZERO);
    book.side.turn(Time::ZERO);
    let mut next = join_as(&mut book.side, 4, 100);
    assert_eq!(book.fill(&mut next), 12);
    book.check();
}

/// A process asks for what another one has added, which costs it nothing. Whenever that one leaves, what is left to others is no less
/// than if it had added all by itself.
#[test]
fn a_process_gets_no_more_than_its_part_of_the_book_from_others_that_leave() {
    let mut book = Book::new(32);
    let mut heir = join_as(&mut book.side, 1, 100);
    let mut inherited = Vec::new();
    for round in 0..6 {
        let mut leaver = join_as(&mut book.side, 2, 100);
        let first = book.next + 1;
        let taken = book.fill(&mut leaver);
        assert!(taken >= 4, "its part, in round {round}: {taken}");
        let all = first..book.next;
        all.clone().for_each(|last| assert!(book.ask(&mut heir, last).is_ok(), "{last}"));
        drop(leaver);
        (0..10).for_each(|_| book.side.turn(Time::ZERO));
        book.check();
        inherited.extend(all.filter(|last| book.side.sessions.is_held(book.find(*last))));
    }
    assert_eq!(inherited, (21..33).collect::<Vec<_>>(), "its part, and half of the rest");
    // Those are needed; others make room.
    let mut others = [3, 4].map(|tenant| join_as(&mut book.side, tenant, 100));
    assert_eq!(others.each_mut().map(|other| book.fill(other)), [8, 6]);
    book.check();
    inherited
        .iter()
        .for_each(|last| assert!(book.side.worker.book().find(address(*last)).is_some(), "{last}"));
    assert_eq!(book.fill(&mut heir), 0);
    drop(others);
    book.side.assert_nothing_is_left(Time::ZERO, heir);
}

/// They count for the one of its holders that has room for them, or for another application of the process.
#[test]
fn entries_of_an_application_that_leaves_count_for_another_one_that_has_room() {
    let mut book = Book::new(32);
    let mut full = join_as(&mut book.side, 1, 100);
    assert_eq!(book.fill(&mut full), 12);
    let mut leaver = join_as(&mut book.side, 2, 100);
    let mut other = join_as(&mut book.side, 3, 100);
    let kept = book.next + 1;
    assert!(book.ask(&mut leaver, kept).is_ok());
    for client in [&mut full, &mut other] {
        assert!(book.ask(client, kept).is_ok());
    }
    drop(leaver);
    (0..2).for_each(|_| book.side.turn(Time::ZERO));
    book.check();
    // Nobody gets its room: it counts for the one that had none yet.
    book.next = kept;
    assert_eq!(book.fill(&mut other), 7);
    assert!(book.find(kept) == book.ask(&mut full, kept).unwrap());
    book.check();
}

/// An address that is not held may be forgotten at any time, so none is given to one that has its part.
#[test]
fn an_application_that_has_its_part_of_the_book_gets_no_address_that_nobody_holds() {
    let mut book = Book::new(32);
    let mut leaver = book.open();
    assert!(book.ask(&mut leaver, 200).is_ok());
    drop(leaver);
    book.side.turn(Time::ZERO);
    book.side.turn(Time::ZERO);
    let (mut hog, mut other) = (book.open(), book.open());
    assert_eq!(book.fill(&mut hog), 12);
    assert!(book.side.worker.book().find(address(200)).is_some(), "nobody has needed its room");
    assert_eq!(book.ask(&mut hog, 200), Err(book.full()));
    assert_eq!(
        ask(&mut book.side, &mut hog, ip(PEER), None),
        Ok(PEER),
        "the server keeps that one for everybody"
    );
    let held = book.ask(&mut other, 200);
    assert!(held.is_ok() && book.ask(&mut hog, 200) == held, "another one holds it");
    book.check();
}

/// A process whose applications may have so many connections.
fn join_to_connect(book: &mut Book, tenant: u32, connections: u32, peers: u32) -> Client {
    let config = SessionConfig { connections, commands: 64, reports: 64, peers, ..SMALL };
    let Side { sessions, worker } = &mut book.side;
    sessions.join_of(worker.fep_mut(), Some(tenant), &config).unwrap()
}

impl Book {
    /// An application connects to a peer whose address it has from another one. Nobody answers for the peer, so that the connection
    /// is held. Returns why it is refused, if it is.
    fn connect(&mut self, client: &mut Client, peer: Addr) -> Result<ConnectionHandle, CallError> {
        let connection = client.connect(peer, ConnectOptions::default(), 3).unwrap();
        self.side.turn(Time::ZERO);
        match client.poll().unwrap() {
            None => Ok(connection),
            Some(event) => {
                let (context, request, error) = refused(&event);
                assert_eq!((context, request), (3, Request::Connect));
                Err(error)
            }
        }
    }

    /// An application aborts a connection, which ends at once.
    fn abort(&mut self, client: &mut Client, connection: ConnectionHandle) {
        client.abort(connection).unwrap();
        self.settle();
        let event = client.poll().unwrap().expect("its end");
        assert!(matches!(event.report, Report::Closed { .. }), "{event:?}");
    }

    /// Applications that have been dropped are gone.
    fn settle(&mut self) {
        (0..10).for_each(|_| self.side.turn(Time::ZERO));
        self.check();
    }

    fn peers_of(&self, client: &Client) -> u64 {
        self.side.sessions.peers_of(client.process())
    }
}

/// One process adds all that it may, another one connects to these peers without having asked for them, the first one leaves and comes
/// again. Whatever is in use counts for somebody, so that what is reserved for a third one is there.
#[test]
fn processes_that_take_turns_keep_no_more_of_the_book_by_connections_than_by_adding_peers() {
    let mut book = Book::new(32);
    let mut other = join_as(&mut book.side, 1, 100);
    let mut connected = join_to_connect(&mut book, 2, 64, 0);
    let mut added = Vec::new();
    for _ in 0..4 {
        let mut adds = join_as(&mut book.side, 3, 100);
        let first = book.next + 1;
        book.fill(&mut adds);
        let last = book.next;
        for peer in first..last {
            let addr = book.find(peer);
            assert!(book.connect(&mut connected, addr).is_ok(), "{peer} is held");
            added.push(peer);
        }
        drop(adds);
        book.settle();
    }
    assert_eq!(added.len(), 12 + 8, "what each of the two may have");
    assert_eq!((book.peers_of(&connected), book.side.sessions.left_peers()), (12, 8));
    assert!(added.iter().all(|peer| book.side.worker.book().find(address(*peer)).is_some()));
    assert_eq!(book.fill(&mut other), 6, "as if the two had added theirs themselves");
    book.check();
    drop(connected);
    book.settle();
    // Nothing is in use any more, and the part of the other process grows.
    assert_eq!(book.fill(&mut other), 12 - 6);
    assert_eq!(book.side.sessions.left_peers(), 0);
    book.side.assert_nothing_is_left(Time::ZERO, other);
}

#[test]
fn a_peer_stays_in_the_book_for_an_application_as_long_as_it_has_connections_to_it() {
    let mut book = Book::new(32);
    let mut adds = join_as(&mut book.side, 1, 100);
    let mut connected = join_to_connect(&mut book, 2, 4, 1);
    let addr = book.ask(&mut adds, 200).unwrap();
    let connections = [(); 2].map(|()| book.connect(&mut connected, addr).unwrap());
    assert_eq!(book.peers_of(&connected), 0, "it counts for the one that has added it");
    drop(adds);
    book.settle();
    assert_eq!(book.peers_of(&connected), 1);
    book.abort(&mut connected, connections[0]);
    assert_eq!(book.peers_of(&connected), 1, "it has another connection");
    // It has asked for no peer, so it still may for one.
    assert_eq!(book.ask(&mut connected, 200), Ok(addr));
    book.abort(&mut connected, connections[1]);
    assert_eq!(book.peers_of(&connected), 1, "it has asked for it");
    let further = book.connect(&mut connected, addr).unwrap();
    book.abort(&mut connected, further);
    assert_eq!(book.peers_of(&connected), 1);
    // One that has not.
    let mut second = join_to_connect(&mut book, 3, 4, 1);
    drop(connected);
    book.settle();
    let connection = book.connect(&mut second, addr).unwrap();
    assert_eq!(book.peers_of(&second), 1, "nobody held it");
    book.abort(&mut second, connection);
    assert_eq!((book.peers_of(&second), book.side.sessions.is_held(addr)), (0, false));
    book.side.assert_nothing_is_left(Time::ZERO, second);
}

/// Otherwise it could keep entries that are reserved for others.
#[test]
fn an_application_whose_process_has_its_part_connects_to_no_peer_that_nobody_holds() {
    let mut book = Book::new(32);
    let mut leaver = join_as(&mut book.side, 1, 100);
    let [left, in_use] = [200, 201].map(|last| book.ask(&mut leaver, last).unwrap());
    let mut hog = join_to_connect(&mut book, 2, 4, 100);
    book.fill(&mut hog);
    assert!(book.connect(&mut hog, in_use).is_ok(), "another one holds it");
    drop(leaver);
    book.settle();
    assert_eq!(book.connect(&mut hog, left), Err(book.full()));
    assert_eq!(
        book.connect(&mut hog, in_use),
        Err(book.full()),
        "it has its part and a connection to this one"
    );
    assert!(book.connect(&mut hog, PEER).is_ok(), "the server keeps that one for everybody");
    let own = book.find(21);
    assert!(book.connect(&mut hog, own).is_ok());
    // Who may have one more holds it instead.
    let mut other = join_to_connect(&mut book, 3, 4, 0);
    assert_eq!(book.side.sessions.left_peers(), 1);
    assert!(book.connect(&mut other, in_use).is_ok());
    assert_eq!((book.side.sessions.left_peers(), book.peers_of(&other)), (0, 1));
    assert!(book.connect(&mut hog, in_use).is_ok());
    book.check();
}

/// Its peer has opened a PDC to another application, which it may name at any time.
#[test]
fn an_entry_that_may_come_into_use_counts_for_the_account_that_had_it() {
    let mut book = Book::new(32);
    let mut leaver = join_as(&mut book.side, 1, 100);
    let other = join_as(&mut book.side, 2, 100);
    let peer = book.ask(&mut leaver, 200).unwrap();
    let syn = first_packet(peer, other.process());
    let fep = book.side.worker.fep_mut();
    fep.on_packet(Time::ZERO, &syn, Payload::Virtual(syn.payload_len));
    assert_eq!(fep.standing(peer), Standing::Unasked);
    drop(leaver);
    book.settle();
    assert_eq!(book.side.sessions.left_peers(), 1);
}

/// 64 entries that nobody holds are looked at in a turn to find one that is not in use any more. Another one may be behind them.
#[test]
fn a_request_for_a_peer_waits_until_all_entries_that_nobody_holds_have_been_looked_at() {
    let mut book = Book::new(300);
    let mut hog = join_to_connect(&mut book, 1, 100, 200);
    book.fill(&mut hog);
    let mut leaver = join_as(&mut book.side, 2, 200);
    let first = book.next + 1;
    book.fill(&mut leaver);
    let taken: Vec<Addr> = (first..book.next).map(|last| book.find(last)).collect();
    let connections: Vec<_> =
        taken.iter().map(|peer| book.connect(&mut hog, *peer).expect("it is held")).collect();
    drop(leaver);
    book.settle();
    let left = book.side.sessions.left_peers() as usize;
    assert!(left == taken.len() && (65..128).contains(&left), "{left}");
    // The process that left comes again, and these entries count for it.
    let _others = [3, 4].map(|tenant| join_as(&mut book.side, tenant, 200));
    let mut asks = join_as(&mut book.side, 2, 200);
    assert_eq!(book.peers_of(&asks), left as u64);

    // The book itself is looked through in five turns, and the request waits no longer than that.
    asks.peer(address(255), None, 7).unwrap();
    for _ in 0..4 {
        book.side.turn(Time::ZERO);
        assert_eq!(asks.poll(), Ok(None));
    }
    book.side.turn(Time::ZERO);
    assert_eq!(refused(&asks.poll().unwrap().expect("an answer")), (7, Request::Peer, book.full()));

    // A look goes on where the one before has ended, so that the entry that was looked at last is not among the next ones. Each of
    // the three applications that joined has had 64 entries looked at, too.
    let last = (64 * (3 + 5) - 1) % left;
    book.abort(&mut hog, connections[last]);
    asks.peer(address(255), None, 7).unwrap();
    book.side.turn(Time::ZERO);
    assert_eq!(asks.poll(), Ok(None), "the entry is looked at in the next turn");
    book.side.turn(Time::ZERO);
    let event = asks.poll().unwrap().expect("an answer");
    assert!(matches!(event.report, Report::Peer { .. }), "{event:?}");
    assert_eq!((book.side.sessions.left_peers(), book.peers_of(&asks)), (left as u64 - 1, left as u64));
    book.check();
}

/// The first packet that the endpoint `from` sends to `process` of endpoint 0.
fn first_packet(from: Addr, process: u16) -> Packet {
    let mut fep = Fep::new(from, config(), Rng::new(1, 0), Time::ZERO).unwrap();
    let connection =
        fep.connect(Time::ZERO, Addr(0), ConnectOptions { process, ..ConnectOptions::default() }).unwrap();
    let message = Send { buffer: Buffer::Virtual(8), tag: None, header_data: 0, context: 0 };
    fep.post_send(connection, message).unwrap();
    fep.poll_transmit(Time::ZERO).expect("a message has been posted").packet
}

/// Entries that a process leaves in use count for its account. When another process gets the account, they are taken of the rest,
/// which is reserved for nobody.
#[test]
fn a_process_gets_its_part_of_the_book_though_what_the_one_before_it_had_is_in_use() {
    let mut book = Book::new(32);
    let mut hog = join_to_connect(&mut book, 1, 32, 0);
    // The hog inherits what it may, and then nothing.
    leave_in_use(&mut book, 2, &mut hog);
    leave_in_use(&mut book, 3, &mut hog);
    let left = book.side.sessions.left_peers();
    assert_eq!((book.peers_of(&hog), left), (12, 8));
    // The first one gets the account to which none count, and the second one that of the eight.
    let first = join_to_connect(&mut book, 4, 1, 0);
    let _second = join_to_connect(&mut book, 5, 1, 0);
    let mut third = join_as(&mut book.side, 6, 100);
    assert_eq!((book.peers_of(&third), book.side.sessions.left_peers()), (0, 8));
    assert_eq!(book.fill(&mut third), 4, "its part, as nothing else is left");
    book.check();
    drop((hog, first));
    book.settle();
    assert_eq!(book.fill(&mut third), 12 - 4);
    assert_eq!(book.side.sessions.left_peers(), 0);
}

/// A process adds all the peers it may, and leaves once another one has connected to these.
fn leave_in_use(book: &mut Book, tenant: u32, hog: &mut Client) {
    let mut leaver = join_as(&mut book.side, tenant, 100);
    let first = book.next + 1;
    book.fill(&mut leaver);
    for peer in first..book.next {
        let addr = book.find(peer);
        assert!(book.connect(hog, addr).is_ok(), "{peer}");
    }
    drop(leaver);
    book.settle();
}

/// Processes leave so many entries in use that the rest, which is reserved for nobody, is used up. Others can join once these entries
/// are not in use any more.
#[test]
fn a_process_that_would_not_have_its_part_of_the_book_is_refused_when_it_joins() {
    let mut book = Book::new(32);
    let mut hog = join_to_connect(&mut book, 1, 200, 0);
    let try_to_join = |book: &mut Book, tenant: u32, peers: u32| {
        let config = SessionConfig { peers, ..SMALL };
        let Side { sessions, worker } = &mut book.side;
        sessions.join_of(worker.fep_mut(), Some(tenant), &config)
    };
    let part = 32 / 2 / 4;
    let mut others: Vec<Client> = Vec::new();
    let error = (2..100).find_map(|tenant| {
        leave_in_use(&mut book, tenant, &mut hog);
        // Two that want no peers take accounts for a while, so that all of them are used.
        others = (0..2).map(|n| try_to_join(&mut book, 1000 + 3 * tenant + n, 0).unwrap()).collect();
        let outcome: Result<Client, OpenError> = try_to_join(&mut book, 1000 + 3 * tenant + 2, 100);
        others.clear();
        let error = outcome.map(drop).err();
        book.settle();
        error
    });
    let error = error.expect("one is refused");
    assert!(
        matches!(error, OpenError::PeersInUse { part: of_part, left } if of_part == part && left < part),
        "{error}"
    );
    assert!(try_to_join(&mut book, 9000, 0).is_ok(), "it wants none");
    assert!(book.side.sessions.left_peers() > 0);
    drop(hog);
    book.settle();
    (0..32).for_each(|_| book.side.turn(Time::ZERO));
    let mut next = try_to_join(&mut book, 9001, 100).expect("nothing is in use any more");
    assert_eq!(u64::from(book.fill(&mut next)), 12);
}

/// The book looks at 64 of its peers in a turn to find one that makes room. Another one may be behind them.
#[test]
fn a_peer_is_refused_when_the_whole_book_has_been_looked_through() {
    let mut world = World::new();
    world.peers[0] = Peers::with_book(3, 300);
    let [mut asks, mut other] = [(); 2].map(|()| world.open(0));
    for (in_vain, is_added) in [(4, true), (5, false), (0, true)] {
        world.peers[0].look_in_vain(in_vain);
        asks.peer(address(100 + in_vain as u8), None, 7).unwrap();
        asks.peer(address(2), None, 8).unwrap();
        // Only commands of the same application wait, and not for ever.
        for _ in 0..in_vain.min(4) {
            other.peer(address(2), None, 9).unwrap();
            world.serve(0);
            assert!(other.poll().unwrap().is_some_and(|event| event.context == 9));
            assert_eq!(asks.poll(), Ok(None));
            assert!(!world.sessions[0].may_sleep(&world.feps[0]), "there is something to do");
            world.sessions[0].woken();
        }
        world.serve(0);
        let event = asks.poll().unwrap().expect("an answer");
        match event.report {
            Report::Peer { .. } => assert!(is_added && event.context == 7),
            _ => {
                let full = CallError::Limit { what: Resource::Peers, limit: 304 };
                assert_eq!((refused(&event), is_added), ((7, Request::Peer, full), false));
            }
        }
        let next = asks.poll().unwrap().expect("an answer in the same turn");
        assert!(next.context == 8 && matches!(next.report, Report::Peer { addr: Addr(1), .. }), "{next:?}");
    }
}

/// Half of the entries that applications had are the owner's now.
#[test]
fn parts_of_the_book_follow_what_the_owner_leaves_of_it() {
    let mut book = Book::new(32);
    let (mut hog, mut other) = (book.open(), book.open());
    assert_eq!(book.fill(&mut hog), 12);
    for last in 200..216 {
        let addr = book.side.worker.free_addr().unwrap();
        book.side.worker.meet(addr, address(last), None).unwrap();
    }
    assert_eq!(book.fill(&mut other), 2, "what is reserved for it");
    assert_eq!(book.fill(&mut hog), 0);
}

#[test]
fn addresses_of_no_single_host_are_refused_and_cost_nothing() {
    let (mut side, _deaf) = alone();
    let mut client = side.open();
    let mut refusal = |ip: IpAddr, mac| ask(&mut side, &mut client, ip, mac);
    for _ in 0..3 {
        let version = Err(CallError::Peer(PeerRefusal::IpVersion));
        assert_eq!(refusal("fd00::1".parse().unwrap(), None), version);
        let not_unicast = Err(CallError::Peer(PeerRefusal::NotUnicast));
        assert_eq!(refusal([224, 0, 0, 1].into(), None), not_unicast);
        assert_eq!(refusal([0, 0, 0, 0].into(), None), not_unicast);
        assert_eq!(refusal(address(50), Some(MacAddr([1, 0, 0, 0, 0, 1]))), not_unicast);
    }
    assert_eq!(refusal(address(50), None), Ok(NEXT));
}

/// An application cannot divert the packets of other applications for good: the worker asks the host itself.
#[test]
fn an_ethernet_address_given_by_an_application_is_used_until_the_host_answers() {
    let (left, right) = pair(&MemoryConfig::default()).unwrap();
    let mut side = Side::new(0, left);
    let (mut liar, mut other) = (side.open(), side.open());
    let claimed = MacAddr([2, 0, 0, 0, 0, 0x66]);
    assert_eq!(ask(&mut side, &mut liar, ip(PEER), Some(claimed)), Ok(PEER));
    assert_eq!(side.worker.book().get(PEER), Some(&HostAddr { mac: claimed, ip: ip(PEER) }));
    connect_at_once(&mut side, &mut liar, PEER);
    other.connect(PEER, ConnectOptions::default(), 1).unwrap();
    side.turn(Time::ZERO);
    assert_eq!(other.poll(), Ok(None), "it waits for the host");
    let contradiction = Err(CallError::Peer(PeerRefusal::OtherMac));
    assert_eq!(ask(&mut side, &mut other, ip(PEER), Some(MacAddr([2, 0, 0, 0, 0, 0x67]))), contradiction);

    // The host is there, and answers.
    let mut host = Side::new(1, right);
    let mut now = Time::ZERO;
    for _ in 0..30_000 {
        now += TURN;
        side.turn(now);
        host.turn(now);
    }
    let own = host.worker.book().own_host().mac;
    assert_eq!(side.worker.book().get(PEER).unwrap().mac, own);
    let event = other.poll().unwrap().unwrap();
    assert!(matches!(event.report, Report::Connected { .. }), "{event:?}");
    assert_eq!(ask(&mut side, &mut liar, ip(PEER), Some(claimed)), contradiction);
    assert_eq!(ask(&mut side, &mut other, ip(PEER), Some(own)), Ok(PEER));
}

/// A peer that does not answer, and two Ethernet addresses that applications name for it.
const SILENT: u8 = 66;
const WRONG: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x66]);
const RIGHT: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x67]);

fn connect_at_once(side: &mut Side, client: &mut Client, peer: Addr) {
    client.connect(peer, ConnectOptions::default(), 1).unwrap();
    side.turn(Time::ZERO);
    let event = client.poll().unwrap().expect("an answer at once");
    assert!(matches!(event.report, Report::Connected { .. }), "{event:?}");
}

/// The owner of the Ethernet address could read the messages of the others, and answer them, for as long as no host answers: the peer
/// may be down, or behind a router.
#[test]
fn an_ethernet_address_is_used_only_for_applications_that_have_named_it() {
    for is_added_first in [false, true] {
        let (mut side, mut deaf) = alone();
        let (mut liar, mut other) = (side.open(), side.open());
        let name = |side: &mut Side, client: &mut Client, mac| ask(side, client, address(SILENT), mac);
        if is_added_first {
            assert_eq!(name(&mut side, &mut other, None), Ok(NEXT));
        }
        assert_eq!(name(&mut side, &mut liar, Some(WRONG)), Ok(NEXT));
        assert_eq!(name(&mut side, &mut other, None), Ok(NEXT));
        let extent = Extent { region: 0, offset: 0, len: 8 };
        let connection = other.connect(NEXT, ConnectOptions::default(), 10).unwrap();
        other.send(connection, extent, None, 0, 11).unwrap();
        other.send_datagram(NEXT.into(), extent, 0, 12).unwrap();
        let mut now = Time::ZERO;
        let why = Unreachable::NoAnswer { hop: address(SILENT) };
        let error = CallError::Unreachable { peer: NEXT, why };
        let expected = [(10, Request::Connect), (11, Request::Send), (12, Request::SendDatagram)];
        let refusals = expected.map(|_| {
            let (context, request, reason) = refused(&side.event(&mut now, &mut other));
            assert_eq!(reason, error);
            (context, request)
        });
        assert!(expected.iter().all(|refusal| refusals.contains(refusal)), "{refusals:?}");
        let mut frames = RxBurst::new();
        deaf.receive(&mut frames);
        assert!(frames.iter().all(|frame| frame[12..14] == [8, 6]), "questions, and no packets");

        // Applications that name the same address send there.
        connect_at_once(&mut side, &mut liar, NEXT);
        let mut third = side.open();
        assert_eq!(name(&mut side, &mut third, Some(WRONG)), Ok(NEXT));
        connect_at_once(&mut side, &mut third, NEXT);
    }
}

#[test]
fn an_ethernet_address_is_forgotten_when_the_last_application_has_left_that_has_named_it() {
    let (mut side, _deaf) = alone();
    let (mut liar, mut accomplice, mut other) = (side.open(), side.open(), side.open());
    let name = |side: &mut Side, client: &mut Client, mac| ask(side, client, address(SILENT), mac);
    for client in [&mut liar, &mut accomplice] {
        for _ in 0..2 {
            assert_eq!(name(&mut side, client, Some(WRONG)), Ok(NEXT));
        }
    }
    // That it needs the peer keeps the entry, and not the address.
    assert_eq!(name(&mut side, &mut other, None), Ok(NEXT));
    let contradiction = Err(CallError::Peer(PeerRefusal::OtherMac));
    drop(liar);
    side.turn(Time::ZERO);
    assert_eq!(name(&mut side, &mut other, Some(RIGHT)), contradiction, "one has named the other one still");
    drop(accomplice);
    side.turn(Time::ZERO);
    assert_eq!(side.worker.book().get(NEXT), None);
    assert_eq!(name(&mut side, &mut other, Some(RIGHT)), Ok(NEXT));
    assert_eq!(side.worker.book().get(NEXT), Some(&HostAddr { mac: RIGHT, ip: address(SILENT) }));
    connect_at_once(&mut side, &mut other, NEXT);
}

#[test]
fn a_connection_to_an_added_peer_is_held_until_the_peer_answers() {
    let (left, right) = pair(&MemoryConfig::default()).unwrap();
    let (mut side, mut host) = (Side::new(0, left), Side::new(4, right));
    let mut client = side.open();
    let addr = ask(&mut side, &mut client, ip(Addr(4)), None).unwrap();
    assert_eq!(addr, NEXT);
    client.connect(addr, ConnectOptions::default(), 1).unwrap();
    let mut now = Time::ZERO;
    side.turn(now);
    assert_eq!(client.poll(), Ok(None));
    for _ in 0..4 {
        now += TURN;
        side.turn(now);
        host.turn(now);
    }
    let event = side.event(&mut now, &mut client);
    assert!(matches!(event.report, Report::Connected { .. }), "{event:?}");
}

/// Applications that come, add as many peers as they may and leave fill the address book no more than those that are there.
#[test]
fn peers_of_applications_that_have_left_make_room_for_those_of_others() {
    let (mut side, _deaf) = alone();
    let mut other = side.open();
    let own = ask(&mut side, &mut other, address(200), None).unwrap();
    let mut former = BTreeSet::new();
    let mut now = Time::ZERO;
    for n in 0..60 {
        now += PERIOD;
        let mut guest = side.open();
        let mut add = |last| ask_at(now, &mut side, &mut guest, address(last), None).unwrap();
        let (first, second) = (add(20 + 2 * n), add(21 + 2 * n));
        assert!(former.insert(first) && former.insert(second), "no address is used twice");
        drop(guest);
        side.turn(now);
    }
    assert_eq!(ask_at(now, &mut side, &mut other, address(200), None), Ok(own), "it is still needed");
    assert_eq!(side.worker.book().find(ip(PEER)), Some(PEER), "those of the owner stay");

    // Addresses of peers that were forgotten reach nobody, whoever uses them.
    let gone = *former.first().unwrap();
    let error = CallError::Unreachable { peer: gone, why: Unreachable::Unknown(gone) };
    other.connect(gone, ConnectOptions::default(), 1).unwrap();
    side.turn(now);
    assert_eq!(refused(&other.poll().unwrap().unwrap()), (1, Request::Connect, error));
    let extent = Extent { region: 0, offset: 0, len: 8 };
    other.receive(extent, Some(gone.into()), Matching::Untagged, 2).unwrap();
    side.turn(now);
    assert_eq!(refused(&other.poll().unwrap().unwrap()), (2, Request::Receive, error));
}

/// The peer of an application that leaves while it has a connection stays until that is closed.
#[test]
fn a_peer_with_a_connection_makes_no_room() {
    let (mut side, _deaf) = alone();
    let (mut leaver, mut other) = (side.open(), side.open());
    let claimed = Some(MacAddr([2, 0, 0, 0, 0, 0x50]));
    let busy = ask(&mut side, &mut leaver, address(80), claimed).unwrap();
    let connection = leaver.connect(busy, ConnectOptions::default(), 1).unwrap();
    leaver.send(connection, Extent { region: 0, offset: 0, len: 8 }, None, 0, 2).unwrap();
    let mut now = Time::ZERO;
    side.turn(now);
    now += TURN;
    side.turn(now);
    drop(leaver);
    side.turn(now);
    for n in 0..2 {
        ask(&mut side, &mut other, address(90 + n), None).unwrap();
    }
    let (mut third, mut fourth) = (side.open(), side.open());
    ask(&mut side, &mut third, address(92), None).unwrap();
    ask(&mut side, &mut fourth, address(93), None).unwrap();
    let full = CallError::Limit { what: Resource::Peers, limit: 8 };
    assert_eq!(ask(&mut side, &mut fourth, address(94), None), Err(full), "the connection is being closed");
    assert_eq!(side.worker.book().find(address(80)), Some(busy));
}

/// The addresses that an application asks for one after the other.
fn addresses() -> impl Iterator<Item = IpAddr> {
    (1..=255).flat_map(|third| (1..=254).map(move |last| [10, 1, third, last].into()))
}

/// A server with a port that refuses all peers, and the time.
struct Refusing {
    side: Side,
    _deaf: MemoryPort,
    now: Time,
    place: PlacePeer<MemoryPort>,
}

impl Refusing {
    fn new(refusal: PeerRefusal) -> Refusing {
        let (side, deaf) = alone();
        let place = Box::new(move |_: &mut _, _| Err(refusal));
        Refusing { side, _deaf: deaf, now: Time::ZERO + PERIOD, place }
    }

    /// Why `client` gets no peer.
    fn ask(&mut self, client: &mut Client) -> CallError {
        client.peer(address(50), None, 7).unwrap();
        let Refusing { side, place, now, .. } = self;
        side.sessions.serve(&mut Placing { worker: &mut side.worker, place }, *now);
        refused(&client.poll().unwrap().unwrap()).2
    }

    /// An application joins, asks once, and leaves.
    fn come_and_go(&mut self) -> CallError {
        let mut client = self.side.open();
        let error = self.ask(&mut client);
        drop(client);
        self.side.turn(self.now);
        error
    }
}

/// The error of a process that has made the worker ask for as many peers as it may in a [`PERIOD`].
const COSTS: CallError = CallError::Limit { what: Resource::SessionPeers, limit: 256 };

/// Each peer that the port refuses has cost the worker system calls: they count for as long as they would if the application
/// had stayed.
#[test]
fn an_application_that_leaves_and_comes_again_can_ask_for_no_more_peers_that_the_port_refuses() {
    let mut port = Refusing::new(PeerRefusal::Port);
    for _ in 0..2 {
        (0..256).for_each(|n| assert_eq!(port.come_and_go(), CallError::Peer(PeerRefusal::Port), "{n}"));
        assert_eq!(port.come_and_go(), COSTS);
        port.now += PERIOD;
    }
    // Those that cost nothing do not count.
    let mut port = Refusing::new(PeerRefusal::IpVersion);
    (0..300).for_each(|_| assert_eq!(port.come_and_go(), CallError::Peer(PeerRefusal::IpVersion)));
}

/// What a process has made the worker do has nothing to do with how many peers one of its applications may have.
#[test]
fn peers_that_the_port_has_refused_take_nothing_from_the_quota_of_an_application() {
    let mut port = Refusing::new(PeerRefusal::Port);
    let mut client = port.side.open();
    for _ in 0..3 {
        assert_eq!(port.ask(&mut client), CallError::Peer(PeerRefusal::Port));
    }
    let now = port.now;
    for last in 60..62 {
        assert!(ask_at(now, &mut port.side, &mut client, address(last), None).is_ok());
    }
    let quota = CallError::Limit { what: Resource::SessionPeers, limit: 2 };
    assert_eq!(ask_at(now, &mut port.side, &mut client, address(62), None), Err(quota));
}

/// Peers that it adds make room when it leaves, so that the address book never fills up; each has cost the worker system calls, and
/// questions on the link.
#[test]
fn an_application_that_leaves_and_comes_again_can_add_no_more_peers_than_if_it_had_stayed() {
    let (mut side, _deaf) = alone();
    let mut next = addresses();
    let add_to =
        |side: &mut Side, now, client: &mut Client, ip| ask_at(now, side, client, ip, None).map(|_| ());
    let add = |side: &mut Side, now, ip| {
        let mut client = side.open();
        let added = add_to(side, now, &mut client, ip);
        drop(client);
        side.turn(now);
        added
    };
    let early = Time::ZERO + PERIOD;
    let mut last = address(20);
    for _ in 0..256 {
        last = next.next().unwrap();
        assert_eq!(add(&mut side, early, last), Ok(()));
    }
    let [further, another] = [(); 2].map(|()| next.next().unwrap());
    assert_eq!(add(&mut side, early, further), Err(COSTS));
    assert_eq!(add(&mut side, early, last), Ok(()), "that one is there already");
    assert_eq!(add(&mut side, early + PERIOD, further), Ok(()));

    // Those of one that was there for long have cost nothing lately. An application of another process has an account of its own.
    let late = early + PERIOD.times(3);
    let mut client = side.open();
    assert_eq!(add_to(&mut side, late, &mut client, another), Ok(()));
    drop(client);
    let late = late + PERIOD;
    side.turn(late);
    for ip in next.by_ref().take(256) {
        assert_eq!(add(&mut side, late, ip), Ok(()));
    }
    let ip = next.next().unwrap();
    assert_eq!(add(&mut side, late, ip), Err(COSTS));
    let mut stranger = join_as(&mut side, 1, SMALL.peers);
    assert_eq!(add_to(&mut side, late, &mut stranger, ip), Ok(()));
}

/// A process with several endpoints adds the peers of all of them when it begins.
#[test]
fn sessions_of_a_process_can_all_add_their_peers_at_once_and_no_more_by_leaving_and_coming_again() {
    let (left, _deaf) = pair(&MemoryConfig::default()).unwrap();
    let mut side = Side::with_book(0, left, 3 + 2_000);
    side.sessions = Sessions::new(8);
    let mut next = addresses();
    let limit = |limit| Err(CallError::Limit { what: Resource::SessionPeers, limit });
    let mut add = |side: &mut Side, client: &mut Client| {
        ask_at(Time::ZERO + PERIOD, side, client, next.next().unwrap(), None).map(|_| ())
    };
    let [mut first, mut second] = [(); 2].map(|()| join_as(&mut side, 1, 256));
    for client in [&mut first, &mut second] {
        (0..256).for_each(|n| assert_eq!(add(&mut side, client), Ok(()), "{n}"));
        assert_eq!(add(&mut side, client), limit(256), "what the session may have");
    }
    drop(second);
    (0..2).for_each(|_| side.turn(Time::ZERO + PERIOD));
    let mut second = join_as(&mut side, 1, 256);
    assert_eq!(add(&mut side, &mut second), limit(512), "what both may have together");
    // One more can add its own.
    let mut third = join_as(&mut side, 1, 2);
    (0..2).for_each(|_| assert_eq!(add(&mut side, &mut third), Ok(())));
    assert_eq!(add(&mut side, &mut second), limit(514));
}

/// Those that an earlier process has made the worker ask for long ago count no more when an account is chosen.
#[test]
fn a_process_gets_the_account_to_which_the_fewest_peers_have_counted_lately() {
    let mut port = Refusing::new(PeerRefusal::Port);
    port.side.sessions = Sessions::new(2);
    let [mut early, mut late] = [(); 2].map(|()| port.side.open());
    for _ in 0..3 {
        assert_eq!(port.ask(&mut early), CallError::Peer(PeerRefusal::Port));
    }
    port.now += PERIOD;
    assert_eq!(port.ask(&mut late), CallError::Peer(PeerRefusal::Port));
    drop((early, late));
    port.side.turn(port.now);
    port.side.turn(port.now);
    // It could ask for one peer fewer with the other one.
    let mut other = join_as(&mut port.side, 1, SMALL.peers);
    (0..256).for_each(|n| assert_eq!(port.ask(&mut other), CallError::Peer(PeerRefusal::Port), "{n}"));
    assert_eq!(port.ask(&mut other), COSTS);
}
