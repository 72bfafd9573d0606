//! Each limit filled by one holder: the others get what is reserved for them, as fast as before.

mod alice;
mod applications;
mod peers;

pub(super) use self::alice::alice_and_her_peer;
use super::fabric::{APPLICATIONS, BOOK_ROOM, Fabric, MEMORY, added_ip};
use weft_cc::{CcChoice, Rate};

use super::*;
use crate::buffer::Buffer;
use crate::fep::{ConnectionId, FepConfig, Limits, Send};
use crate::ledger::reserved_part;
use crate::packet::Packet;
use crate::pdc::RodReceive;
use crate::wire::pds::DeliveryMode;
use crate::worker::session::world::{config_at, config_with};

/// The applications.
const ALICE: usize = 0;
const HOG: usize = 1;
/// Half-open PDCs of all peers: as many as two of them may have.
const HALF_OPEN: usize = 16;
/// Packets of a window.
const WINDOW: u32 = 128;
/// A process that does not exist.
const NOBODY: u16 = 999;

/// Of connections to a peer 2 are reserved for each application, of messages that wait 10, and 10,000 bytes of them.
pub(super) fn limits() -> Limits {
    Limits {
        connections: 40,
        pdcs_per_peer: 16,
        pdcs: 60,
        half_open_pdcs: HALF_OPEN,
        half_open_pdcs_per_peer: 8,
        closed_pdcs_per_peer: 64,
        sends: 128,
        receives: 1000,
        processes: 5,
        unexpected_messages: 100,
        unexpected_bytes: 100_000,
        unexpected_messages_per_peer: 40,
        unexpected_bytes_per_peer: 40_000,
        reorder_bytes: 24_000,
        reorder_packets: 16,
        response_bytes_per_peer: 2_000,
        response_bytes: 8_000,
        control_queue: 400,
        ..Limits::default()
    }
}

/// The limits of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    /// [`limits`].
    Tight,
    /// More of most than is done in a turn. What is reserved for applications is no less.
    Roomy,
    /// As tight, with all the room for stored responses that they need.
    Responses,
    /// As tight, and receivers grant credit for a link of 100 Gbit/s.
    Credit,
    /// As tight, and the windows of PDCs, of [`WINDOW`] packets, are all that limits what is in flight.
    Window,
}

impl Room {
    const ALL: [Room; 5] = [Room::Tight, Room::Roomy, Room::Responses, Room::Credit, Room::Window];

    fn config(self) -> FepConfig {
        let limits = match self {
            Room::Tight | Room::Credit | Room::Window => limits(),
            Room::Roomy => Limits {
                connections: 400,
                pdcs_per_peer: 400,
                pdcs: 800,
                half_open_pdcs: 800,
                half_open_pdcs_per_peer: 400,
                closed_pdcs_per_peer: 400,
                sends: 20_000,
                receives: 10_000,
                unexpected_messages: 40_000,
                unexpected_bytes: 10_000_000,
                unexpected_messages_per_peer: 20_000,
                unexpected_bytes_per_peer: 5_000_000,
                ..limits()
            },
            Room::Responses => {
                Limits { response_bytes_per_peer: 100_000, response_bytes: 400_000, ..limits() }
            }
        };
        let others = match self {
            Room::Credit => config_at(&CcChoice::parse("rccc").unwrap(), Rate::from_gbps(100)),
            Room::Window => {
                let mut cc = CcChoice::parse("constant").unwrap();
                cc.set("window", "1000000").unwrap();
                config_with(&cc).with_zones(|zone| zone.pdc.mp_range = WINDOW)
            }
            _ => (*config()).clone(),
        };
        FepConfig { limits, rod_receive: RodReceive::Reorder, ..others }
    }

    /// Alice has joined, and the hog.
    fn fabric(self) -> Fabric {
        let operations = if self == Room::Roomy { 4_000 } else { 96 };
        let mut fabric = Fabric::with(self.config());
        fabric.join(16, 4);
        let hog = SessionConfig { operations, commands: 256, reports: 512, peers: 100, ..SMALL };
        fabric.join_as(SessionConfig { connections: 8, ..hog });
        fabric
    }
}

/// Goes on until the events of a turn, or what it has come to, are those that are waited for.
fn until(fabric: &mut Fabric, what: &str, mut is_so: impl FnMut(&mut Fabric) -> bool) {
    for _ in 0..100_000 {
        fabric.go_on();
        if is_so(fabric) {
            return;
        }
    }
    panic!("{what} never comes: {:?}", fabric.explain());
}

/// As [`until`], from timer to timer while nothing is to be sent.
fn until_late(fabric: &mut Fabric, what: &str, mut is_so: impl FnMut(&mut Fabric) -> bool) {
    until(fabric, what, |fabric| {
        let is_so = is_so(fabric);
        if !is_so {
            fabric.skip_to_next_timer();
        }
        is_so
    });
}

/// The reports that came to an application in the last turn.
fn reports(fabric: &Fabric, guest: usize) -> impl Iterator<Item = Report> {
    fabric.events.iter().filter(move |(n, _)| *n == guest).map(|(_, event)| event.report)
}

/// A connection of `peer` to the process of an application, or another one.
fn connect_to(fabric: &mut Fabric, peer: usize, process: u16, mode: DeliveryMode) -> ConnectionId {
    let options = ConnectOptions { process, mode, ..ConnectOptions::default() };
    let id = fabric.feps[peer].connect(fabric.now, Addr(0), options).unwrap();
    fabric.connections[peer].push(id);
    id
}

fn post(fabric: &mut Fabric, peer: usize, id: ConnectionId, len: u32, tag: Option<u64>) {
    let send = Send { buffer: Buffer::Virtual(len), tag, header_data: 0, context: 0 };
    fabric.feps[peer].post_send(id, send).unwrap();
}

fn process_of(fabric: &Fabric, guest: usize) -> u16 {
    fabric.guests[guest].client.process()
}

fn run(fabric: &mut Fabric, turns: u32) {
    (0..turns).for_each(|_| fabric.go_on());
}

/// How one holder fills a limit.
struct Fill {
    what: &'static str,
    room: Room,
    fill: fn(&mut Fabric),
}

fn fill(what: &'static str, fill: fn(&mut Fabric)) -> Fill {
    Fill { what, room: Room::Tight, fill }
}

impl Fill {
    fn with(self, room: Room) -> Fill {
        Fill { room, ..self }
    }
}

/// What shows that a row of the table of limits leaves others their part.
enum Shown {
    /// Each of these leaves alice and her peer theirs.
    By(Vec<Fill>),
    /// A test of this name in a file of the repository, as no endpoint with applications alone shows it.
    In(&'static str, &'static str),
}

/// `docs/limits.md` says the same. A new row has to get an arm here.
fn shown(row: LimitRow) -> Shown {
    const LISTENER: &str = "stack/src/worker/session/tests/listener.rs";
    Shown::By(match row {
        LimitRow::Applications => vec![fill("applications", applications::applications)],
        LimitRow::Joining => {
            return Shown::In(LISTENER, "a_process_that_asks_over_and_over_keeps_no_other_one_from_joining");
        }
        LimitRow::WaitingForMemory => {
            return Shown::In(LISTENER, "a_process_that_waits_for_memory_keeps_no_other_one_from_joining");
        }
        LimitRow::Operations => {
            vec![
                fill("operations", applications::operations),
                fill("held datagrams", applications::held_datagrams),
            ]
        }
        LimitRow::SessionMemory => vec![fill("memory", applications::memory)],
        LimitRow::Connections => vec![fill("connections", applications::connections)],
        LimitRow::PeerConnections => {
            vec![fill("connections to one peer", applications::connections_to_alices_peer)]
        }
        LimitRow::PacketsInFlight => {
            vec![fill("packets in flight", applications::packets_in_flight).with(Room::Window)]
        }
        LimitRow::Peers => vec![
            fill("added peers", applications::added_peers),
            fill("peers kept by connections", applications::peers_kept_by_connections),
        ],
        LimitRow::PeerCosts => vec![fill("peers in a period", applications::peers_in_a_period)],
        LimitRow::ReceiveKinds => vec![fill("kinds of receives", applications::kinds_of_receives)],
        LimitRow::UnexpectedMessages => vec![
            fill("unexpected messages", peers::unexpected_messages),
            fill("processes for datagrams only", peers::processes_for_datagrams),
        ],
        LimitRow::UnexpectedMessagesOfPeer => {
            vec![fill("unexpected messages of one peer", peers::unexpected_messages_of_a_peer)]
        }
        LimitRow::UnexpectedBytes => vec![fill("bytes of unexpected messages", peers::unexpected_bytes)],
        LimitRow::UnexpectedBytesOfPeer => {
            vec![fill("bytes of unexpected messages of one peer", peers::unexpected_bytes_of_a_peer)]
        }
        LimitRow::IncompleteMessages => vec![fill("incomplete messages", peers::incomplete_messages)],
        LimitRow::Pdcs => vec![fill("PDCs that peers open", peers::pdcs_of_a_peer)],
        LimitRow::HalfOpenPdcs => vec![
            fill("half-open PDCs of one peer", peers::half_open_pdcs),
            fill("half-open PDCs", peers::half_open_pdcs_of_all),
        ],
        LimitRow::CreditSenders => {
            vec![fill("requests for credit", peers::requests_for_credit).with(Room::Credit)]
        }
        LimitRow::RememberedPdcs => vec![fill("PDCs open or remembered", peers::remembered_pdcs)],
        LimitRow::EarlyPackets => vec![fill("early ROD packets of one PDC", peers::early_packets)],
        LimitRow::EarlyBytes => vec![fill("bytes of early ROD packets", peers::bytes_of_early_packets)],
        LimitRow::RefusedNotes => {
            vec![fill("notes of refused messages", peers::refused_notes).with(Room::Responses)]
        }
        LimitRow::ResponseBytes => vec![
            fill("bytes of stored responses", peers::stored_responses),
            fill("answers to long messages", peers::short_receives),
        ],
        LimitRow::ControlQueue => vec![fill("control packets", peers::control_packets)],
        LimitRow::Timers => vec![fill("timers", applications::timers)],
        LimitRow::Cancels => vec![fill("cancels", applications::cancels).with(Room::Roomy)],
        LimitRow::CommandsPerTurn => vec![fill("commands", applications::commands).with(Room::Roomy)],
        LimitRow::BytesPerTurn => vec![fill("searches", applications::searches).with(Room::Roomy)],
        LimitRow::PacketsPerTurn => {
            const WORKER: &str = "stack/src/worker/tests.rs";
            return Shown::In(
                WORKER,
                "what_leaves_in_a_turn_has_a_bound_and_the_rest_leaves_in_the_next_ones",
            );
        }
        LimitRow::CompletedPerTurn => {
            const WORKER: &str = "stack/src/worker/tests.rs";
            return Shown::In(WORKER, "acknowledgements_of_many_packets_are_read_in_several_turns");
        }
        LimitRow::UnsentPerTurn => {
            vec![fill("unsent messages", applications::unsent_messages).with(Room::Roomy)]
        }
        LimitRow::TimersPerTurn => {
            vec![fill("failing connections", applications::failing_connections).with(Room::Roomy)]
        }
        LimitRow::LetGoPerTurn => {
            vec![fill("held connections", applications::held_connections).with(Room::Roomy)]
        }
        LimitRow::PdcsPerTurn => vec![fill("PDCs of a silent peer", peers::silent_pdcs).with(Room::Roomy)],
        LimitRow::QuestionsPerTurn => vec![fill("questions", peers::questions).with(Room::Roomy)],
        LimitRow::ReportsPerTurn => {
            vec![fill("unread reports", applications::unread_reports).with(Room::Roomy)]
        }
        LimitRow::JoinRate => {
            return Shown::In(LISTENER, "of_applications_that_have_asked_one_is_let_in_at_a_time");
        }
    })
}

fn all_fills() -> impl Iterator<Item = Fill> {
    LimitRow::ALL.iter().flat_map(|row| match shown(*row) {
        Shown::By(fills) => fills,
        Shown::In(..) => Vec::new(),
    })
}

#[test]
fn each_limit_filled_by_one_holder_leaves_the_others_their_part_and_their_speed() {
    let turns_of = |fabric: &mut Fabric| alice::alice_adds_peers(fabric) + alice_and_her_peer(fabric);
    let expected = Room::ALL.map(|room| {
        let mut calm = room.fabric();
        let turns = turns_of(&mut calm);
        calm.end();
        turns
    });
    let mut slow = Vec::new();
    for Fill { what, room, fill } in all_fills() {
        let expected = expected[room as usize];
        let mut fabric = room.fabric();
        fill(&mut fabric);
        fabric.check();
        let turns = turns_of(&mut fabric);
        println!("{what}: {turns} turns, {expected} without");
        if turns * 10 > expected * 11 {
            slow.push((what, turns, expected));
        }
        fabric.check();
        fabric.end();
    }
    assert_eq!(slow, [], "turns with it, and without");
}

/// The hog sends the process that alice sends to as many messages, or bytes, as it may, which nobody receives.
#[test]
fn an_application_that_fills_a_peer_s_process_leaves_room_there_to_others_of_its_host() {
    for len in [1, 2000] {
        let mut fabric = Room::Tight.fabric();
        let mut connect = |guest: usize| {
            let client = &mut fabric.guests[guest].client;
            let connection = client.connect(Addr(1), ConnectOptions::default(), 0).unwrap();
            until(&mut fabric, "a connection", |fabric| {
                reports(fabric, guest).any(|report| matches!(report, Report::Connected { .. }))
            });
            connection
        };
        let connections = [ALICE, HOG].map(&mut connect);
        let mut posted = 0;
        until(&mut fabric, "a refusal", |fabric| {
            let client = &mut fabric.guests[HOG].client;
            if posted < 60 && client.send(connections[HOG], extent(0, len), Some(9), 0, 0).is_ok() {
                posted += 1;
            }
            posted == 60 && fabric.feps[1].counters().nacks_sent > 0
        });
        run(&mut fabric, 300);
        for n in 0..2 {
            let client = &mut fabric.guests[ALICE].client;
            client.send(connections[ALICE], extent(0, len), Some(5), n, 0).unwrap();
        }
        let mut sent = 0;
        until(&mut fabric, "the last of alice's messages", |fabric| {
            for report in reports(fabric, ALICE) {
                assert!(matches!(report, Report::Sent { result: Ok(()), .. }), "{report:?}");
                sent += 1;
            }
            sent == 2
        });
        let tagged = Matching::Tagged { tag: 5, ignore: 0 };
        assert!(fabric.feps[1].peek(0, None, tagged).unwrap().is_some_and(|found| found.len == len));
        fabric.check();
    }
}

/// The rows of a table of a document, which begins with these words, as cells.
fn rows<'a>(document: &'a str, header: &str) -> Vec<Vec<&'a str>> {
    let lines = document.lines().skip_while(|line| !line.starts_with(header)).skip(2);
    let rows = lines.take_while(|line| line.starts_with('|'));
    rows.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// What a text has in backticks.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn each_row_of_the_documented_table_names_what_fills_it() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |name: &str| std::fs::read_to_string(root.join(name)).expect(name);
    let document = read("docs/limits.md");
    let benchmark =
        ["cases.rs", "main.rs"].map(|file| read(&format!("stack/benches/attacks/{file}"))).concat();
    let is_file = |name: &str| root.join("stack/src/worker").join(name).exists() || root.join(name).exists();
    let limits = rows(&document, "| resource | of the endpoint | holder | reserved");
    let filled = rows(&document, "| row | filled");
    for table in [&limits, &filled] {
        let named: Vec<_> = table.iter().map(|row| row[0]).collect();
        let expected: Vec<_> = LimitRow::ALL.iter().map(|row| row.name()).collect();
        assert_eq!(named, expected, "both tables have each row, in the same order");
    }
    for (row, cells) in LimitRow::ALL.iter().zip(&filled) {
        let named: Vec<_> = names(cells[1]).filter(|name| !is_file(name)).collect();
        match shown(*row) {
            Shown::By(fills) => {
                assert_eq!(named, fills.iter().map(|fill| fill.what).collect::<Vec<_>>(), "{cells:?}");
            }
            Shown::In(file, test) => {
                assert!(read(file).contains(&format!("fn {test}(")), "{file} has no {test}");
                let is_named = names(cells[1]).any(|name| file.ends_with(name));
                assert!(is_named && named.is_empty(), "{cells:?} names {file}");
            }
        }
        for name in names(cells[2]) {
            assert!(benchmark.contains(&format!("\"{name}\"")), "the benchmark has no {name}");
        }
    }
}
