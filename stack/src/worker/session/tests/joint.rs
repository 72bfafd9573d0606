//! Limits add up: applications and peers that do anything at all, in any order, over a channel that loses packets, have
//! together no more than the endpoint, can each have what is reserved for them, and leave nothing behind.

use core::num::NonZeroU32;
use std::cell::Cell;

use proptest::prelude::*;
use proptest::sample::Index;
use weft_cc::CcChoice;

use super::explore::explore;
use super::fabric::{APPLICATIONS, BOOK_ROOM, Fabric, Guest, MEMORY, PEERS, ROOM, added_ip};
use super::*;
use crate::buffer::Buffer;
use crate::fep::{ConnectionId, Datagram, DatagramReceive, FepConfig, Limits, Receive, Send};
use crate::ledger::reserved_part;
use crate::pdc::RodReceive;
use crate::wire::pds::DeliveryMode;
use crate::worker::session::Found;
use crate::worker::session::world::config_with;

/// Limits that a few applications and peers reach.
fn limits() -> Limits {
    Limits {
        connections: 14,
        pdcs_per_peer: 10,
        pdcs: 20,
        half_open_pdcs: 12,
        half_open_pdcs_per_peer: 6,
        closed_pdcs_per_peer: 40,
        sends: 50,
        receives: 30,
        processes: APPLICATIONS + 1,
        unexpected_messages: 600,
        unexpected_bytes: 20_000,
        unexpected_messages_per_peer: 150,
        unexpected_bytes_per_peer: 6_000,
        reorder_bytes: 8_000,
        reorder_packets: 8,
        ..Limits::default()
    }
}

/// How the endpoints of a case are configured.
#[derive(Clone, Copy, Debug)]
struct Endpoints {
    /// Whether targets keep ROD packets that arrive early.
    reorders: bool,
    /// Whether targets grant credit.
    grants: bool,
    /// Whether responses and control packets have limits that are reached, too.
    is_tight: bool,
}

impl Endpoints {
    fn any() -> impl Strategy<Value = Endpoints> {
        any::<[bool; 3]>().prop_map(|[reorders, grants, is_tight]| Endpoints { reorders, grants, is_tight })
    }

    fn config(self) -> FepConfig {
        let cc = if self.grants { CcChoice::parse("rccc").unwrap() } else { CcChoice::default() };
        let tight =
            Limits { response_bytes_per_peer: 400, response_bytes: 1_000, control_queue: 40, ..limits() };
        FepConfig {
            limits: if self.is_tight { tight } else { limits() },
            rod_receive: if self.reorders { RodReceive::Reorder } else { RodReceive::GoBackN },
            ..config_with(&cc)
        }
    }
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    /// An application of a process joins; 0 is the server's own.
    Join {
        process: u32,
        operations: u32,
        connections: u32,
        peers: u32,
        only_datagrams: bool,
    },
    Leave(Index),
    /// An application connects to a peer, or an application of its own endpoint.
    Connect(Index, u32, bool),
    /// An application asks for one of some peers that are in no address book at first.
    AddPeer(Index, u16),
    /// An application connects to a peer that it has asked for once, and that never answers.
    ConnectAdded(Index, Index),
    Send {
        application: Index,
        connection: Index,
        len: u32,
        tag: Option<u64>,
    },
    Receive {
        application: Index,
        matching: Matching,
        many: bool,
    },
    Peek {
        application: Index,
        matching: Matching,
        found: Found,
    },
    /// An application sends a datagram to a peer, or to an application of its own endpoint.
    SendDatagram {
        application: Index,
        to: Option<u32>,
        len: u32,
    },
    ReceiveDatagram(Index),
    /// A peer sends datagrams to the process of an application.
    PeerSendsDatagrams {
        peer: u32,
        application: Index,
        count: u32,
        len: u32,
    },
    PeerReceivesDatagram(u32),
    Cancel(Index, Index),
    Close {
        application: Index,
        connection: Index,
        abort: bool,
    },
    /// A peer connects to the process of an application.
    PeerConnects {
        peer: u32,
        application: Index,
        ordered: bool,
    },
    PeerSends {
        peer: u32,
        connection: Index,
        count: u32,
        len: u32,
        tag: Option<u64>,
    },
    PeerReceives(u32),
    PeerCloses {
        peer: u32,
        connection: Index,
        abort: bool,
    },
    Run {
        turns: u8,
        loses: bool,
    },
}

/// The process of an application that joins: the server's own, or another one.
fn process() -> impl Strategy<Value = u32> {
    prop_oneof![2 => Just(0u32), 2 => Just(1u32), 1 => Just(2u32)]
}

/// A step of any application, or of a peer from number `first` on.
pub(super) fn step(first: u32) -> impl Strategy<Value = Step> {
    let index = any::<Index>;
    let peer = move || first..=PEERS as u32;
    let tag = || prop::option::of(0u64..3);
    let len = || prop_oneof![4 => 0u32..100, 2 => 0u32..3000, 1 => Just(MEMORY)];
    let matching = || {
        let tagged = (0u64..3, prop_oneof![Just(0u64), Just(1), Just(u64::MAX)]);
        let tagged = tagged.prop_map(|(tag, ignore)| Matching::Tagged { tag, ignore });
        prop_oneof![1 => Just(Matching::Untagged), 2 => tagged]
    };
    let found = prop_oneof![Just(Found::Stays), Just(Found::IsClaimed), Just(Found::IsDiscarded)];
    prop_oneof![
        4 => (process(), 1u32..30, 1u32..8, 0u32..12, prop::bool::weighted(0.2)).prop_map(
            |(process, operations, connections, peers, only_datagrams)| {
                Step::Join { process, operations, connections, peers, only_datagrams }
            }
        ),
        8 => (index(), 0u16..40).prop_map(|(application, number)| Step::AddPeer(application, number)),
        2 => (index(), index()).prop_map(|(application, added)| Step::ConnectAdded(application, added)),
        6 => (index(), prop::option::of(peer()), len()).prop_map(|(application, to, len)| {
            Step::SendDatagram { application, to, len }
        }),
        4 => index().prop_map(Step::ReceiveDatagram),
        4 => (peer(), index(), 1u32..5, len()).prop_map(|(peer, application, count, len)| {
            Step::PeerSendsDatagrams { peer, application, count, len }
        }),
        2 => peer().prop_map(Step::PeerReceivesDatagram),
        1 => index().prop_map(Step::Leave),
        10 => (index(), peer(), prop::bool::weighted(0.2)).prop_map(|(a, peer, own)| Step::Connect(a, peer, own)),
        12 => (index(), index(), len(), tag()).prop_map(|(application, connection, len, tag)| {
            Step::Send { application, connection, len, tag }
        }),
        4 => (index(), matching(), prop::bool::weighted(0.2)).prop_map(|(application, matching, many)| {
            Step::Receive { application, matching, many }
        }),
        2 => (index(), matching(), found).prop_map(|(application, matching, found)| {
            Step::Peek { application, matching, found }
        }),
        2 => (index(), index()).prop_map(|(application, operation)| Step::Cancel(application, operation)),
        2 => (index(), index(), any::<bool>()).prop_map(|(application, connection, abort)| {
            Step::Close { application, connection, abort }
        }),
        6 => (peer(), index(), any::<bool>()).prop_map(|(peer, application, ordered)| {
            Step::PeerConnects { peer, application, ordered }
        }),
        16 => (peer(), index(), prop_oneof![3 => Just(1u32), 2 => 1u32..150], len(), tag()).prop_map(
            |(peer, connection, count, len, tag)| {
                let len = if count > 1 { len % 10 } else { len };
                Step::PeerSends { peer, connection, count, len, tag }
            }
        ),
        1 => peer().prop_map(Step::PeerReceives),
        2 => (peer(), index(), any::<bool>()).prop_map(|(peer, connection, abort)| {
            Step::PeerCloses { peer, connection, abort }
        }),
        12 => (1u8..30, any::<bool>()).prop_map(|(turns, loses)| Step::Run { turns, loses }),
    ]
}

/// Peers that random steps ask for, those that are asked for before others connect to them, and those that are asked for at the end.
const ANY: u8 = 1;
const MORE: u8 = 2;
const LAST: u8 = 3;

impl Fabric {
    pub(super) fn take(&mut self, step: Step) {
        match step {
            Step::Join { process, operations, connections, peers, only_datagrams } => {
                let config = SessionConfig { operations, connections, peers, only_datagrams, ..SMALL };
                self.join_of(process, config);
            }
            Step::PeerSendsDatagrams { peer, application, count, len } => {
                let process = self.guest(application).map_or(1, |guest| guest.client.process());
                for _ in 0..count {
                    let seed = self.new_seed();
                    let buffer = Buffer::Heap(content(seed, len as usize));
                    let datagram = Datagram { buffer, peer: Addr(0), process, header_data: seed, context: 0 };
                    let _ = self.feps[peer as usize].post_datagram_of(0, datagram);
                }
            }
            Step::PeerReceivesDatagram(peer) => {
                let receive = DatagramReceive { buffer: Buffer::Heap(vec![0; 10]), context: 0 };
                let _ = self.feps[peer as usize].post_datagram_receive_of(0, receive);
            }
            Step::Leave(index) if !self.guests.is_empty() => {
                self.guests.remove(index.index(self.guests.len()));
            }
            Step::PeerConnects { peer, application, ordered } => {
                self.peer_connects(peer, application, ordered)
            }
            Step::PeerSends { peer, connection, count, len, tag } => {
                let connection = self.connection_of(peer, connection);
                for id in connection.into_iter().cycle().take(count as usize) {
                    let seed = self.new_seed();
                    let buffer = Buffer::Heap(content(seed, len as usize));
                    let send = Send { buffer, tag, header_data: seed, context: 0 };
                    let _ = self.feps[peer as usize].post_send(id, send);
                }
            }
            Step::PeerReceives(peer) => {
                let buffer = || Buffer::Heap(vec![0; 10]);
                let receive = |matching| Receive { buffer: buffer(), from: None, matching, context: 0 };
                for matching in [Matching::Untagged, Matching::Tagged { tag: 0, ignore: u64::MAX }] {
                    let _ = self.feps[peer as usize].post_receive(receive(matching));
                }
            }
            Step::PeerCloses { peer, connection, abort } => {
                if let Some(id) = self.connection_of(peer, connection) {
                    let fep = &mut self.feps[peer as usize];
                    let _ = if abort { fep.abort(self.now, id) } else { fep.close(self.now, id) };
                }
            }
            Step::Run { turns, loses } => (0..turns).for_each(|_| self.turn(loses)),
            _ => self.command(step),
        }
    }

    fn peer_connects(&mut self, peer: u32, application: Index, ordered: bool) {
        let process = self.guest(application).map_or(1, |guest| guest.client.process());
        let mode = if ordered { DeliveryMode::Rod } else { DeliveryMode::Rud };
        let options = ConnectOptions { process, mode, ..ConnectOptions::default() };
        let opened = self.feps[peer as usize].connect(self.now, Addr(0), options);
        self.connections[peer as usize].extend(opened);
    }

    fn connection_of(&self, peer: u32, index: Index) -> Option<ConnectionId> {
        let all = &self.connections[peer as usize];
        (!all.is_empty()).then(|| all[index.index(all.len())])
    }

    /// An application asks for something. What it may not have is refused, by its client or in a report.
    fn command(&mut self, step: Step) {
        let process = self.guests.first().map_or(0, |guest| guest.client.process());
        let guest = match step {
            Step::Connect(index, ..)
            | Step::AddPeer(index, _)
            | Step::ConnectAdded(index, _)
            | Step::Cancel(index, _)
            | Step::ReceiveDatagram(index) => self.guest(index),
            Step::Send { application, .. }
            | Step::SendDatagram { application, .. }
            | Step::Receive { application, .. }
            | Step::Peek { application, .. }
            | Step::Close { application, .. } => self.guest(application),
            _ => None,
        };
        let Some(guest) = guest else { return };
        match step {
            Step::Receive { matching, many: false, .. } => return guest.receive(matching),
            Step::ReceiveDatagram(_) => return guest.receive_datagram(),
            Step::Receive { matching, .. } => {
                return guest.receive_many(matching, NonZeroU32::new(ROOM).unwrap());
            }
            _ => {}
        }
        let Guest { client, connections, operations, added, seed, .. } = guest;
        match step {
            Step::Connect(_, peer, own) => {
                let (peer, process) = if own { (0, process) } else { (peer, 0) };
                let options = ConnectOptions { process, ..ConnectOptions::default() };
                connections.extend(client.connect(Addr(peer), options, 0));
            }
            Step::AddPeer(_, number) => operations.extend(client.peer(added_ip(ANY, number), None, 0)),
            Step::ConnectAdded(_, peer) if !added.is_empty() => {
                let peer = added[peer.index(added.len())];
                connections.extend(client.connect(peer, ConnectOptions::default(), 0));
            }
            Step::Send { connection, len, tag, .. } if !connections.is_empty() => {
                let connection = connections[connection.index(connections.len())];
                operations.extend(client.send(connection, extent(0, len), tag, *seed, 0));
            }
            Step::SendDatagram { to, len, .. } => {
                let to = to.map_or((0, process), |peer| (peer, 0));
                let to = Source { peer: Addr(to.0), process: to.1 };
                operations.extend(client.send_datagram(to, extent(0, len), *seed, 0));
            }
            Step::Peek { matching, found, .. } => drop(client.peek(None, matching, found, 0)),
            Step::Cancel(_, operation) if !operations.is_empty() => {
                let _ = client.cancel(operations[operation.index(operations.len())]);
            }
            Step::Close { connection, abort, .. } if !connections.is_empty() => {
                let connection = connections[connection.index(connections.len())];
                let _ = if abort { client.abort(connection) } else { client.close(connection) };
            }
            _ => {}
        }
    }
}

/// All applications but the last one add the peers that they may. All but the first one connect to peers that somebody has added, as
/// many as they may, and the first one leaves.
fn connect_to_added_peers(fabric: &mut Fabric) {
    let mut numbers = 0..;
    for n in 0..fabric.guests.len().saturating_sub(1) {
        for number in &mut numbers {
            fabric.guests[n].client.peer(added_ip(MORE, number), None, 0).expect("all operations have ended");
            match fabric.next_report(n) {
                Report::Peer { .. } => {}
                Report::Refused { error: CallError::Limit { .. }, .. } => break,
                other => panic!("{other:?} instead of peer {number}"),
            }
        }
    }
    let added: Vec<Addr> = fabric.guests.iter().flat_map(|guest| guest.added.clone()).collect();
    for n in 1..fabric.guests.len() {
        for peer in &added {
            let Guest { client, connections, .. } = &mut fabric.guests[n];
            connections.extend(client.connect(*peer, ConnectOptions::default(), 0));
            fabric.turn(false);
            fabric.check();
        }
    }
    if !fabric.guests.is_empty() {
        fabric.guests.remove(0);
    }
    for _ in 0..1_000 {
        let has_left = fabric.sessions.len() == fabric.guests.len();
        if has_left && fabric.events.is_empty() && fabric.sessions.have_obeyed() {
            return;
        }
        fabric.turn(false);
        fabric.check();
    }
    panic!("something never ends: {:?}", fabric.explain());
}

/// Each application asks for peers that are not in the address book until its process has its part of that, or the application as
/// many as it may have. It gets all of them. Returns how many. Before, all that they had to do has ended; or some have connections to
/// peers that another one has added, which is gone.
fn all_get_their_parts_of_the_book(fabric: &mut Fabric, are_connected: bool) -> u64 {
    let part = reserved_part(BOOK_ROOM as u64, APPLICATIONS as u64);
    fabric.calm_down();
    if are_connected {
        connect_to_added_peers(fabric);
    }
    let mut next = 0;
    for n in 0..fabric.guests.len() {
        let process = fabric.guests[n].client.process();
        while fabric.sessions.peers_of(process) < part {
            fabric.guests[n].client.peer(added_ip(LAST, next), None, 0).expect("all operations have ended");
            match fabric.next_report(n) {
                Report::Peer { .. } => next += 1,
                Report::Refused { error: CallError::Limit { what: Resource::SessionPeers, .. }, .. } => break,
                other => panic!("{other:?} instead of peer {next}"),
            }
            fabric.check();
        }
    }
    next.into()
}

/// Receives for many messages that last over several turns, messages and datagrams whose bytes are compared, datagrams that
/// were received, joins that were refused because others need the place, connections that were refused to one of two applications
/// of a process, peers that were added, and refused because others may need the place, those that complete a part of the address
/// book at the end, and those that are in use then and that no application has; steps with early ROD packets at the endpoint,
/// packets of credit, and control packets that were dropped: what as many cases as this reach together at least.
/// They reach some four times as much of most. A search lasts so long in one case of a hundred only.
const CASES: u32 = 400;
const REACHED: [u64; 12] = [20, 1_000, 300, 20, 4, 600, 10, 100, 5, 1_000, 500, 300];

#[test]
fn whatever_applications_and_peers_do_limits_add_up_and_nothing_is_left() {
    let joins = prop::collection::vec((process(), 1u32..15, 1u32..5), 0..4);
    let steps = prop::collection::vec(step(1), 0..250);
    let reached = Cell::new([0; 12]);
    let cases = (joins, steps, any::<bool>(), Endpoints::any());
    let cases = explore("JOINT", CASES, cases, |(joins, steps, are_connected, endpoints)| {
        let mut fabric = Fabric::with(endpoints.config());
        fabric.compares = true;
        for (process, operations, connections) in joins {
            fabric.join_of(process, SessionConfig { operations, connections, ..SMALL });
        }
        let mut early = 0;
        for step in steps {
            fabric.take(step);
            fabric.check();
            early +=
                u64::from((1..=PEERS as u32).any(|peer| fabric.feps[0].keeps_early_packets_of(Addr(peer))));
        }
        fabric.obey_all();
        let parts = all_get_their_parts_of_the_book(&mut fabric, are_connected);
        let left = fabric.sessions.left_peers();
        let received: u64 = fabric.feps.iter().map(|fep| fep.counters().datagrams_received).sum();
        let Fabric { unfinished, compared, joins_refused, connections_refused, .. } = fabric;
        let Fabric { peers_added, peers_refused, credits, .. } = fabric;
        let control_dropped = fabric.feps.iter().map(|fep| fep.counters().control_dropped).sum();
        let here = [
            unfinished,
            compared,
            received,
            joins_refused,
            connections_refused,
            peers_added,
            peers_refused,
            parts,
            left,
            early,
            credits,
            control_dropped,
        ];
        let before = reached.get();
        reached.set(std::array::from_fn(|n| before[n] + here[n]));
        fabric.end();
        fabric.arrived
    });
    let reached = reached.get();
    println!("reached: {reached:?}");
    let least = REACHED.map(|least| least * u64::from(cases / CASES));
    assert!(reached.iter().zip(least).all(|(&reached, least)| reached >= least), "{reached:?}");
}
