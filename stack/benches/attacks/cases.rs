//! The attacks, and limits that one holder has filled.

use core::num::NonZeroU32;

use weft_stack::Span;
use weft_stack::buffer::Buffer;
use weft_stack::fep::{Limits, Receive};
use weft_stack::packet::{Addr, Packet};
use weft_stack::ses::Matching;
use weft_stack::wire::pds::Pds;
use weft_stack::wire::ses::{Placement, RequestFlags, Ses};

use crate::interface::{Forged, MOST_CONNECTIONS, forged, ordered, session, to_process};
use crate::net::{HOSTILE, Hog, Net, PEER, SILENT, extent, tagged, virtual_send};

/// An application or a peer that wants to harm the others.
pub(crate) struct Case {
    pub name: &'static str,
    /// What it does.
    pub what: &'static str,
    /// The limits for it, where those of an endpoint are too high to fill.
    pub limits: fn(&mut Limits),
    /// Prepares it, as far as that takes.
    pub begin: fn(&mut Net),
    /// What it does in each turn.
    pub go_on: fn(&mut Net),
    /// Whether it comes to an end: then it is prepared anew for each measurement.
    pub ends: bool,
    pub beside: Beside,
}

/// What an attack is compared with, a tenth of which it may cost more.
#[derive(Clone, Copy)]
pub(crate) enum Beside {
    /// The same without it.
    Nothing,
    /// A row of senders that are honest and give the server as much to do: an application that always has commands, or one or a peer
    /// that sends as many packets in a second.
    Row(&'static str),
    /// It is such a row itself.
    Itself,
}

impl Beside {
    /// As in the list of attacks.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Beside::Nothing => "-",
            Beside::Row(name) => name,
            Beside::Itself => "=",
        }
    }
}

impl Case {
    const fn new(name: &'static str, what: &'static str, begin: fn(&mut Net), go_on: fn(&mut Net)) -> Case {
        Case { name, what, limits: |_| {}, begin, go_on, ends: false, beside: Beside::Nothing }
    }

    const fn with(self, limits: fn(&mut Limits)) -> Case {
        Case { limits, ..self }
    }

    const fn beside(self, row: &'static str) -> Case {
        Case { beside: Beside::Row(row), ..self }
    }

    /// No attack.
    const fn honest(self) -> Case {
        Case { beside: Beside::Itself, ..self }
    }

    const fn once(self) -> Case {
        Case { ends: true, ..self }
    }
}

/// An application that gives the worker something to do in each turn, to compare with those that do so too.
const BUSY: &str = "busy-application";
const MANY_BUSY: &str = "busy-applications";
/// Applications that do the same.
const MANY: usize = 31;
/// A peer that sends as many packets as attacks do, and an application that does.
const PACKETS: &str = "packets-of-a-peer";
const MESSAGES: &str = "messages-to-a-peer";

/// Every such time a packet of an attack arrives: 100,000 a second.
const RATE: Span = Span::from_us(10);
/// A process that does not exist.
const NOBODY: u16 = 999;
/// The length of a message that is lost.
const LOST: u32 = 777;

pub(crate) const CASES: [Case; 32] = [
    Case::new("unreceived-messages", "16 peers leave as many messages as they may", unreceived, |_| {}),
    Case::new("unreceived-by-alice", "they do so with alice", unreceived_of_alice, |_| {}),
    Case::new("unreceived-bytes", "16 peers leave as many bytes as they may", unreceived_bytes, |_| {})
        .with(|limits| limits.unexpected_bytes = 256 << 20),
    Case::new(
        "idle-applications",
        "a peer leaves as many bytes as it may with 16 applications",
        idle,
        |_| {},
    )
    .with(|limits| limits.unexpected_bytes = 256 << 20),
    Case::new("applications", "16 more applications do nothing", applications, |_| {}),
    Case::new(
        "all-applications",
        "61 more applications do nothing, so that one place is left",
        places,
        |_| {},
    ),
    Case::new("syns", "100,000 SYNs a second, in the names of 50 hosts", first_syns, syns).beside(PACKETS),
    Case::new("replaced-pdcs", "the same, each for the PDC of the one before", first_replaced, replaced)
        .beside(PACKETS),
    Case::new(
        "forged-syns",
        "1,000 SYNs a second in the name of alice's peer, for its PDCs",
        |_| {},
        forged_syns,
    ),
    Case::new(
        "taken-names",
        "320 SYNs a second in the name of alice's peer, for its next PDCs",
        first_taken_names,
        taken_names,
    ),
    Case::new("bytes-twice", "messages of which half is sent twice, and the other half never", |_| {}, twice)
        .beside(PACKETS),
    Case::new("kinds-of-receives", "all kinds of receives, and a message every 10 µs", kinds, hostile_send)
        .beside(PACKETS),
    Case::new("connections", "all connections to alice's peer, with a byte every 10 µs", connections, a_byte)
        .beside(MESSAGES),
    Case::new(
        "operations",
        "16 applications post all that they may to a peer that is silent",
        operations,
        |_| {},
    ),
    Case::new("peer-pdcs", "a peer opens as many PDCs as it may", peer_pdcs, |_| {}),
    Case::new("all-pdcs", "16 peers do so", all_pdcs, |_| {}),
    Case::new("remembered-pdcs", "a peer opens and closes PDCs", |_| {}, remembered)
        .with(|limits| limits.closed_pdcs_per_peer = 1 << 10)
        .beside(PACKETS),
    Case::new("early-packets", "all early ROD packets that a peer may have", early, |_| {})
        .with(|limits| limits.reorder_bytes = 4 << 20),
    Case::new("stored-responses", "all responses that may be stored for a peer", responses, |_| {})
        .with(|limits| limits.response_bytes_per_peer = 1 << 20),
    Case::new("refused-messages", "the beginnings of messages for nobody", notes, a_note).beside(PACKETS),
    Case::new(PACKETS, "no attack: a peer sends an application a byte every 10 µs", receiver, a_packet)
        .honest(),
    Case::new(MESSAGES, "no attack: an application sends a peer a byte every 10 µs", sender, a_message)
        .honest(),
    Case::new(BUSY, "no attack: an application that always has messages to send", |_| {}, sends).honest(),
    Case::new(
        MANY_BUSY,
        "no attack: 31 applications that always have messages to send",
        join_many,
        many_send,
    )
    .honest(),
    Case::new("cancels", "60,000 receives, which are cancelled and posted again", receives, cancels)
        .beside(BUSY),
    Case::new("cancels-of-many", "31 applications do so with 3,000 each", many_receives, many_cancels)
        .beside(MANY_BUSY),
    Case::new("masked-receives", "receives that fit none of 60,000 messages that wait", waiting, masked)
        .beside(BUSY),
    Case::new("receive-for-many", "a receive takes 100,000 messages that have waited", many, take_many)
        .beside(BUSY),
    Case::new("long-messages", "receives for 32 messages of 2 MiB that have waited", long, take_long)
        .once()
        .beside(BUSY),
    Case::new("left-behind", "an application leaves for which 100,000 messages wait", many, leave)
        .beside(BUSY),
    Case::new(
        "joins",
        "an application joins with 65,536 operations and leaves, over and over",
        joins,
        Net::attend,
    )
    .with(|limits| limits.sends = 64 << 16),
    Case::new(
        "silent-joins",
        "200 sockets say nothing, each replaced when it is closed",
        silent,
        Net::attend,
    ),
];

/// Hostile peers send `each` messages to a hog.
fn leave_waiting(net: &mut Net, peers: u32, hog: usize, each: u32, len: u32) {
    leave_with(net, peers, net.hogs[hog].client.process(), each, len);
}

/// Hostile peers send `each` messages to a process.
fn leave_with(net: &mut Net, peers: u32, process: u16, each: u32, len: u32) {
    for at in 1..=peers as usize {
        let connection = net.peers[at].connect(net.now, Addr(0), to_process(process)).expect("it has none");
        for tag in 0..each {
            let send = virtual_send(len, Some(1 << 40 | u64::from(tag) << 8));
            net.peers[at].post_send(connection, send).expect("it has room");
        }
    }
}

fn unreceived(net: &mut Net) {
    leave_waiting(net, HOSTILE, 0, 70_000, 1);
    net.until_full(5_000);
}

/// With `alice` herself, who waits for messages with other tags.
fn unreceived_of_alice(net: &mut Net) {
    leave_with(net, HOSTILE, net.alice.process(), 70_000, 1);
    net.until_full(5_000);
}

fn unreceived_bytes(net: &mut Net) {
    leave_waiting(net, HOSTILE, 0, (256 << 20 >> 16) / HOSTILE * 2, 64 << 10);
    net.until_full(20_000);
}

fn applications(net: &mut Net) {
    (0..16).for_each(|_| assert!(net.hog(64, 8), "there is room"));
}

fn places(net: &mut Net) {
    (0..61).for_each(|_| assert!(net.hog(64, 8), "there is room"));
}

fn idle(net: &mut Net) {
    applications(net);
    for hog in 1..=16 {
        leave_waiting(net, 1, hog, 65 << 20 >> 16, 64 << 10);
    }
    net.until_full(20_000);
}

/// A packet with SYN, made up of a number: its sender, the PDCID there and the PSN.
fn syn(net: &mut Net, of: fn(u32) -> (u32, u16, u32)) {
    net.count = net.count.wrapping_add(1);
    let (src, pdc, psn) = of(net.count);
    let process = net.hogs[0].client.process();
    let one = Forged { src, pdc, psn, before: 0, process, tag: 0, len: 1, offset: 0, payload: 1 };
    net.forge(forged(&one));
}

fn a_stranger(n: u32) -> (u32, u16, u32) {
    (SILENT + n % 50, n as u16, 0)
}

fn the_same(n: u32) -> (u32, u16, u32) {
    (SILENT, 1, n.wrapping_mul(1 << 20))
}

/// So many at once, as the attack has gone on for some time.
fn many_syns(net: &mut Net, count: u32, of: fn(u32) -> (u32, u16, u32)) {
    for _ in 0..count / 32 {
        (0..32).for_each(|_| syn(net, of));
        net.turn();
    }
    net.wait(Span::from_ms(50));
}

fn first_syns(net: &mut Net) {
    many_syns(net, 65_536, a_stranger);
}

fn syns(net: &mut Net) {
    if net.is_time(RATE) {
        syn(net, a_stranger);
    }
}

fn first_replaced(net: &mut Net) {
    many_syns(net, 1_000_000, the_same);
}

fn replaced(net: &mut Net) {
    if net.is_time(RATE) {
        syn(net, the_same);
    }
}

fn forged_syns(net: &mut Net) {
    if net.is_time(RATE.times(100)) {
        syn(net, |n| (PEER, n as u16 % 8, n.wrapping_mul(1 << 20)));
    }
}

/// SYNs for the first names that alice's peer has not used, each of them behind the one before.
fn taken_names(net: &mut Net) {
    if !net.is_time(RATE.times(312)) {
        return;
    }
    net.count = net.count.wrapping_add(1);
    let (pdc, before) = (2 + (net.count % 16) as u16, (net.count / 16 % 2_048) as u16);
    let process = net.hogs[0].client.process();
    let psn = 77_000_000 + u32::from(before);
    let one = Forged { src: PEER, pdc, psn, before, process, tag: 0, len: 1, offset: 0, payload: 1 };
    let mut packet = forged(&one);
    if let Ses::Standard(ses) = &mut packet.ses {
        ses.flags = RequestFlags::START_OF_MESSAGE;
        ses.placement = Placement::Start { header_data: 0 };
        ses.msg_id = before;
    }
    net.forge(packet);
}

fn first_taken_names(net: &mut Net) {
    let end = net.now + Span::from_ms(150);
    while !net.now.is_at_or_after(end) {
        taken_names(net);
        net.turn();
    }
}

/// Two packets of a message of ten bytes, with the same five.
fn twice(net: &mut Net) {
    if !net.is_time(RATE.times(2)) {
        return;
    }
    net.count = net.count.wrapping_add(1);
    let (pdc, process) = (net.count as u16, net.hogs[0].client.process());
    for before in [0, 1] {
        let part = Forged {
            src: SILENT,
            pdc,
            psn: u32::from(before),
            before,
            process,
            tag: 0x13,
            len: 10,
            offset: 0,
            payload: 5,
        };
        net.forge(forged(&part));
    }
    let _ = net.hogs[0].client.receive(extent(10), None, tagged(0x13), 0);
}

fn hostile_connection(net: &mut Net) {
    let to_hog = to_process(net.hogs[0].client.process());
    net.hostile.extend(net.peers[1].connect(net.now, Addr(0), to_hog));
}

fn kinds(net: &mut Net) {
    let mut kind = 0;
    net.hog_does(0, |hog| {
        let matching = Matching::Tagged { tag: u64::MAX, ignore: kind | 1 << 63 };
        hog.client.receive(extent(1), None, matching, 0).map(|_| {
            kind += 1;
            kind == 65_000
        })
    });
    net.wait(Span::from_us(100));
    hostile_connection(net);
}

fn hostile_send(net: &mut Net) {
    if net.is_time(RATE)
        && let Some(connection) = net.hostile.first()
    {
        let _ = net.peers[1].post_send(*connection, virtual_send(1, Some(0x55)));
    }
}

fn connections(net: &mut Net) {
    for hog in 0..8 {
        if hog > 0 && !net.hog(1 << 10, MOST_CONNECTIONS) {
            break;
        }
        let mut count = 0;
        net.hog_does(hog, |hog| {
            let connection = hog.client.connect(Addr(PEER), to_process(0), 0)?;
            // A message is what opens a PDC.
            hog.client.send(connection, extent(1), Some(1), 0, 0)?;
            hog.connections.push(connection);
            count += 1;
            Ok(count == MOST_CONNECTIONS)
        });
    }
    for context in 0..60_000 {
        let receive = Receive { buffer: Buffer::Virtual(1), from: None, matching: tagged(1), context };
        net.peers[0].post_receive(receive).expect("it has room");
    }
    net.wait(Span::from_ms(3));
}

fn a_byte(net: &mut Net) {
    if net.is_time(RATE) {
        net.count = net.count.wrapping_add(1);
        let at = net.count as usize % net.hogs.len();
        let hog = &mut net.hogs[at];
        let connection = hog.connections[net.count as usize / 8 % hog.connections.len()];
        let _ = hog.client.send(connection, extent(1), Some(1), 0, 0);
    }
}

fn operations(net: &mut Net) {
    for hog in 0..16 {
        if hog > 0 && !net.hog(1 << 16, 8) {
            break;
        }
        let client = &mut net.hogs[hog].client;
        let connection = client.connect(Addr(SILENT), to_process(0), 0).expect("it has none");
        net.hog_does(hog, |hog| hog.client.send(connection, extent(1), None, 0, 0).map(|_| false));
    }
    net.wait(Span::from_us(100));
}

/// Hostile peers open PDCs, until they are refused.
fn open_pdcs(net: &mut Net, peers: u32) {
    let to_hog = to_process(net.hogs[0].client.process());
    for at in 1..=peers as usize {
        for _ in 0..4_200 {
            let connection = net.peers[at].connect(net.now, Addr(0), to_hog).expect("it has room");
            net.peers[at].post_send(connection, virtual_send(0, Some(7))).expect("it has room");
        }
    }
    net.until_full(u64::from(peers) * 200);
    net.wait(Span::from_ms(5));
}

fn peer_pdcs(net: &mut Net) {
    open_pdcs(net, 1);
}

fn all_pdcs(net: &mut Net) {
    open_pdcs(net, HOSTILE);
}

fn remembered(net: &mut Net) {
    if net.is_time(RATE.times(2)) {
        let to_hog = to_process(net.hogs[0].client.process());
        if let Ok(connection) = net.peers[1].connect(net.now, Addr(0), to_hog) {
            let _ = net.peers[1].post_send(connection, virtual_send(0, Some(7)));
            let _ = net.peers[1].close(net.now, connection);
        }
        let _ = net.hogs[0].client.receive(extent(1), None, tagged(7), 0);
    }
}

/// The first message of each of some ordered connections is lost again and again; those behind it are kept.
fn early(net: &mut Net) {
    net.is_lost = |packet: &Packet| matches!(&packet.ses, Ses::Standard(ses) if ses.request_length == LOST);
    let to_hog = ordered(net.hogs[0].client.process());
    for _ in 0..20 {
        let connection = net.peers[1].connect(net.now, Addr(0), to_hog).expect("it has room");
        for n in 0..256 {
            let len = if n == 0 { LOST } else { 1000 };
            net.peers[1].post_send(connection, virtual_send(len, Some(7))).expect("it has room");
        }
    }
    net.until_full(100);
}

/// Nothing gets through to a peer that sends messages to a process that does not exist.
fn responses(net: &mut Net) {
    net.is_lost_by_peer = |packet: &Packet| packet.net.dst == Addr(PEER + 1);
    for _ in 0..64 {
        let connection = net.peers[1].connect(net.now, Addr(0), to_process(NOBODY)).expect("it has room");
        for _ in 0..1000 {
            net.peers[1].post_send(connection, virtual_send(0, Some(7))).expect("it has room");
        }
    }
    net.until_full(100);
}

/// A peer sends the beginnings of messages to a process that does not exist, and never the rest.
fn notes(net: &mut Net) {
    net.is_lost = |packet: &Packet| {
        let is_request = matches!(packet.pds, Pds::Request(_));
        packet.net.src == Addr(PEER + 1)
            && is_request
            && matches!(&packet.ses, Ses::Standard(ses)
                if matches!(ses.placement, Placement::Continue { .. }))
    };
    for _ in 0..64 {
        net.hostile.push(net.peers[1].connect(net.now, Addr(0), to_process(NOBODY)).expect("it has room"));
    }
    for n in 0..6_400 {
        let connection = net.hostile[n % 64];
        net.peers[1].post_send(connection, virtual_send(5_000, Some(7))).expect("it has room");
    }
    net.wait(Span::from_ms(3));
}

fn a_note(net: &mut Net) {
    if net.is_time(RATE) {
        net.count = net.count.wrapping_add(1);
        let connection = net.hostile[net.count as usize % net.hostile.len()];
        let _ = net.peers[1].post_send(connection, virtual_send(5_000, Some(7)));
    }
}

/// Receives that an ordinary application has posted.
const AHEAD: usize = 64;

/// An ordinary application receives what an ordinary peer sends it.
fn receiver(net: &mut Net) {
    let mut count = 0;
    net.hog_does(0, |hog| {
        hog.client.receive(extent(1), None, tagged(1), 0)?;
        count += 1;
        Ok(count == AHEAD)
    });
    net.wait(Span::from_us(100));
    hostile_connection(net);
}

fn a_packet(net: &mut Net) {
    if net.is_time(RATE) {
        net.peers[1].post_send(net.hostile[0], virtual_send(1, Some(1))).expect("it has room");
        net.hogs[0].client.receive(extent(1), None, tagged(1), 0).expect("it has room");
    }
}

/// An ordinary application sends an ordinary peer what that has posted receives for.
fn sender(net: &mut Net) {
    let hog = &mut net.hogs[0];
    hog.connections.push(hog.client.connect(Addr(PEER + 2), to_process(0), 0).expect("it has none"));
    for _ in 0..AHEAD {
        net.peers[2].post_receive(of_a_byte()).expect("it has room");
    }
}

fn a_message(net: &mut Net) {
    if net.is_time(RATE) {
        let hog = &mut net.hogs[0];
        hog.client.send(hog.connections[0], extent(1), Some(1), 0, 0).expect("it has room");
        net.peers[2].post_receive(of_a_byte()).expect("it has room");
    }
}

fn of_a_byte() -> Receive {
    Receive { buffer: Buffer::Virtual(1), from: None, matching: tagged(1), context: 0 }
}

/// An ordinary application that sends small messages as fast as it can.
fn sends(net: &mut Net) {
    send_many(net, 0);
}

fn many_send(net: &mut Net) {
    (0..net.hogs.len()).for_each(|hog| send_many(net, hog));
}

/// One of them sends to a peer.
fn send_many(net: &mut Net, n: usize) {
    let (hog, peer) = (&mut net.hogs[n], 2 + n as u32 % (HOSTILE - 1));
    if hog.connections.is_empty() {
        hog.connections.extend(hog.client.connect(Addr(PEER + peer), to_process(0), 0));
    }
    let connection = hog.connections[0];
    for _ in 0..64 {
        let receive = Receive { buffer: Buffer::Virtual(64), from: None, matching: tagged(1), context: 0 };
        if hog.client.send(connection, extent(64), Some(1), 0, 0).is_err() {
            break;
        }
        net.peers[peer as usize].post_receive(receive).expect("it has room");
    }
}

/// As many as do the same, with the one that is there.
fn join_many(net: &mut Net) {
    while net.hogs.len() < MANY {
        assert!(net.hog(1 << 12, 8), "there is room");
    }
}

fn receives(net: &mut Net) {
    post_receives(net, 0, 60_000);
}

fn many_receives(net: &mut Net) {
    join_many(net);
    (0..MANY).for_each(|hog| post_receives(net, hog, 3_000));
}

fn post_receives(net: &mut Net, hog: usize, count: usize) {
    net.hog_does(hog, |hog| {
        let receive = hog.client.receive(extent(1), None, tagged(u64::MAX), 0)?;
        hog.operations.push(receive);
        Ok(hog.operations.len() == count)
    });
}

/// Cancels the oldest receives, and posts as many.
fn cancels(net: &mut Net) {
    cancel(&mut net.hogs[0], net.count, 1);
    net.count = net.count.wrapping_add(1);
}

/// Cancels receives of any age, and posts as many.
fn many_cancels(net: &mut Net) {
    net.hogs.iter_mut().for_each(|hog| cancel(hog, net.count, 1_597));
    net.count = net.count.wrapping_add(1);
}

/// Sixteen receives of `hog`, each so many places behind the one before.
fn cancel(hog: &mut Hog, n: u32, stride: usize) {
    for at in 0..16 {
        let at = (n as usize * 16 + at) * stride % hog.operations.len();
        // One that could not be posted again for want of room in the ring is not there, and is posted now.
        let _ = hog.client.cancel(hog.operations[at]);
        if let Ok(receive) = hog.client.receive(extent(1), None, tagged(u64::MAX), 0) {
            hog.operations[at] = receive;
        }
    }
}

fn waiting(net: &mut Net) {
    leave_waiting(net, HOSTILE, 0, 60_000 / HOSTILE, 1);
    net.until_full(1_000);
}

fn masked(net: &mut Net) {
    let matching = Matching::Tagged { tag: 0xff, ignore: !0xff };
    let client = &mut net.hogs[0].client;
    while let Ok(receive) = client.receive(extent(1), None, matching, 0) {
        if client.cancel(receive).is_err() {
            break;
        }
    }
}

fn many(net: &mut Net) {
    leave_waiting(net, HOSTILE, 0, 100_000 / HOSTILE, 1);
    net.until_full(1_000);
}

fn long(net: &mut Net) {
    leave_waiting(net, 4, 0, 8, 2 << 20);
    net.until_full(1);
}

/// Whether an attack that comes to an end begins now.
fn strikes(net: &mut Net) -> bool {
    std::mem::replace(&mut net.count, 1) == 0
}

fn take_long(net: &mut Net) {
    if strikes(net) {
        for n in 0..32 {
            let every = Matching::Tagged { tag: 0, ignore: u64::MAX };
            net.hogs[0].client.receive(extent(2 << 20), None, every, n).expect("it has room");
        }
    }
}

/// The application says that it wants all of them at once.
fn take_many(net: &mut Net) {
    if strikes(net) {
        let all = Matching::Tagged { tag: 0, ignore: u64::MAX };
        let client = &mut net.hogs[0].client;
        client.receive_many(extent(1 << 20), None, all, NonZeroU32::MIN, 0).expect("it has room");
    }
}

/// The application leaves.
fn leave(net: &mut Net) {
    if strikes(net) {
        net.hogs.clear();
    }
}

fn joins(net: &mut Net) {
    net.let_join(session(1 << 16, MOST_CONNECTIONS));
}

fn silent(net: &mut Net) {
    net.let_connect(200);
}
