//! The property that an application can write anything into the memory that it shares with its worker, and harms only
//! itself. A property test and a fuzz target share it.

use core::net::IpAddr;

use weft_cc::Span;

use super::command::{KINDS, meaningful};
use super::link::Link;
use super::world::{SMALL, World, content, extent};
use super::{
    Client, ClientError, Command, ConnectionHandle, Ended, Report, SessionConfig, SessionId, Sessions, Slot,
};
use crate::choices::Choices;
use crate::fep::{ConnectOptions, Unreachable};
use crate::packet::Addr;
use crate::region::Region;
use crate::ses::{Matching, Source};

/// Processes of the well-behaved applications. Messages and datagrams from another application would be legitimate, so none
/// sends to them.
const GOOD: [u16; 2] = [4000, 4001];
/// Processes of the hostile applications.
const BAD: [u16; 2] = [1, 2];
/// Sessions with no more memory than the messages need: each run makes many, and all of it is written with zeros.
const LITTLE: SessionConfig = SessionConfig { memory: 64 << 10, ..SMALL };
/// Where messages are received, behind the longest that is sent.
const LANDING: u64 = 32 << 10;
/// Where a datagram is sent from, and where one is received, behind all messages.
const DATAGRAM: u64 = 60 << 10;
const DATAGRAM_LANDING: u64 = 62 << 10;
/// Steps after which a message between the well-behaved applications has certainly arrived.
const LONG: usize = 200_000;

/// Any words in the ring of commands, any bytes in the rings' own memory, at any time, from two processes at both ends:
/// the worker goes on, messages and datagrams between other applications arrive whole meanwhile and afterwards, and nothing
/// leaks. Some hostile applications are for datagrams only, and some of their datagrams wait for a peer.
pub fn arbitrary_writes_harm_no_other_application(bytes: &[u8]) {
    arbitrary_writes(bytes);
}

/// The property. Returns how many datagrams were held at most, and how many hostile applications for datagrams only there were.
pub(super) fn arbitrary_writes(bytes: &[u8]) -> [usize; 2] {
    let mut choices = Choices(bytes);
    let mut world = World::new();
    // Connections to it are held until its state changes.
    let hop = IpAddr::from([10, 0, 0, 3]);
    for peers in &mut world.peers {
        peers.set(Addr(2), Err(Unreachable::Resolving { hop, asked: 0 }));
    }
    let mut good = Good::new(&mut world);
    let mut bad = [0, 1].map(|side| Bad::new(&mut world, side, false));
    let [mut held, mut only] = [0; 2];
    while let Some(choice) = choices.next() {
        let who = &mut bad[usize::from(choice & 1)];
        match choice >> 1 & 15 {
            0..=6 => who.ask(&choices.command()),
            7 => who.scribble(&mut choices),
            8 => who.client.link().ring(),
            9 => who.listen(),
            10 => only += usize::from(who.come_again(&mut world, choices.byte() & 1 == 1)),
            11 => world.sessions[who.side].check(&mut world.feps[who.side], world.now),
            12 => (0..choices.byte()).for_each(|_| world.step(2)),
            13 => choices.change_a_peer(&mut world),
            14 => who.send_datagrams(&mut choices),
            _ => world.step(usize::from(choice >> 5)),
        }
        good.go_on(&mut world);
        held = held.max(world.sessions.iter().map(Sessions::held_datagrams).sum());
    }
    good.finish(&mut world);
    drop(bad);
    // Once more, without the hostile application.
    good.finish(&mut world);
    drop(good);
    world.assert_nothing_is_left();
    [held, only]
}

impl Choices<'_> {
    /// Changes the state, at one side, of a peer with which the well-behaved applications have nothing to do.
    fn change_a_peer(&mut self, world: &mut World) {
        let [side, peer, choice] = self.bytes();
        let (peer, hop) = (Addr(2 + u32::from(peer % 3)), IpAddr::from([10, 0, 0, choice]));
        let result = match choice % 4 {
            0 => Ok(()),
            1 => Err(Unreachable::NoAnswer { hop }),
            2 => Err(Unreachable::Unknown(peer)),
            _ => Err(Unreachable::Resolving { hop, asked: u32::from(choice) }),
        };
        world.peers[usize::from(side & 1)].set(peer, result);
    }

    /// Words that are a command, or nearly so, or anything.
    fn command(&mut self) -> Slot {
        let style = self.byte();
        if style >= 240 {
            return std::array::from_fn(|_| u64::from_le_bytes(self.bytes()));
        }
        let [kind, flags, name] = self.bytes();
        let flags = if style & 1 == 0 { 0 } else { flags };
        let name = if style & 4 == 0 { name % 4 } else { name % 24 };
        let mut slot = [0; 8];
        slot[0] = u64::from(kind % KINDS) | u64::from(flags) << 8 | u64::from(name) << 32;
        let words = if style & 2 == 0 { 1..4 } else { 1..8 };
        for word in &mut slot[words] {
            *word = self.word();
        }
        // Otherwise hardly any of them would be obeyed.
        if style & 8 == 0
            && let Some(meaningful) = meaningful(kind % KINDS)
        {
            slot.iter_mut().zip(meaningful).for_each(|(word, bits)| *word &= bits);
        }
        slot
    }

    /// Often small, or large only in one place.
    fn word(&mut self) -> u64 {
        let [form, value] = self.bytes();
        let value = u64::from(value);
        match form % 8 {
            0..=2 => value % 5,
            3 => value << 32,
            4 => value << 32 | u64::from(self.byte()),
            5 => value << (form >> 3 << 1),
            6 => u64::MAX - value,
            _ => u64::from_le_bytes(self.bytes()),
        }
    }
}

/// An application that writes anything into its rings.
struct Bad {
    side: usize,
    id: SessionId,
    client: Client,
    region: Region,
}

impl Bad {
    fn new(world: &mut World, side: usize, only_datagrams: bool) -> Bad {
        let config = SessionConfig { only_datagrams, ..LITTLE };
        let region = Region::allocate(config.layout().expect("possible").total).expect("memory");
        let (own, other) = Link::pair().expect("sockets");
        let (sessions, fep) = (&mut world.sessions[side], &mut world.feps[side]);
        let id = sessions.admit(fep, &config, Some(BAD[side]), &region, own, None).expect("room");
        let client =
            Client::new(&config, &region, other, None, Addr(side as u32), BAD[side]).expect("it fits");
        Bad { side, id, client, region }
    }

    fn ask(&mut self, words: &Slot) {
        match Command::decode(words) {
            Ok(Command::Connect { options, .. }) if GOOD.contains(&options.process) => return,
            Ok(Command::SendDatagram { to, .. }) if GOOD.contains(&to.process) => return,
            _ => {}
        }
        // Full, or broken by itself.
        let _ = self.client.submit_words(words);
    }

    /// Posts datagrams, and takes some of them back, to a peer that may not be known yet.
    fn send_datagrams(&mut self, choices: &mut Choices<'_>) {
        let [count, peer, first, cancels] = choices.bytes();
        let to = Source { peer: Addr(2 + u32::from(peer % 3)), process: 1 };
        for operation in (u32::from(first % 16)..16).take(usize::from(count % 8)) {
            let datagram = Command::SendDatagram { operation, to, extent: extent(0, 10), header_data: 0 };
            self.ask(&datagram.encode());
            if cancels >> (operation % 8) & 1 == 1 {
                self.ask(&Command::Cancel { operation }.encode());
            }
        }
    }

    /// Writes a small number where the rings keep theirs.
    fn scribble(&mut self, choices: &mut Choices<'_>) {
        let [ring, line, value] = choices.bytes();
        let ring = if ring & 1 == 0 { 0 } else { LITTLE.layout().expect("possible").reports as u64 };
        // Tail, head and sleep stand 128 bytes apart, with the flags of ends that have left behind the first two.
        let at = ring + 128 * u64::from(line % 3) + 4 * u64::from(line >> 7);
        let value = value as i8 as u32;
        self.region.slice(at, 4).expect("within").write(0, &value.to_ne_bytes());
    }

    /// Takes reports, if it has not spoilt its ring.
    fn listen(&mut self) {
        while matches!(self.client.poll(), Ok(Some(_)) | Err(ClientError::Nonsense(_))) {}
    }

    /// If its session has ended and nothing is left of it, another one comes, under the same number. Returns whether it is one
    /// for datagrams only.
    fn come_again(&mut self, world: &mut World, only_datagrams: bool) -> bool {
        self.client.hang_up();
        let (sessions, fep) = (&mut world.sessions[self.side], &mut world.feps[self.side]);
        sessions.check(fep, world.now);
        assert!(sessions.process(self.id).is_none(), "its socket is closed");
        while let Some((_, process, how)) = sessions.poll_ended() {
            assert!(process == BAD[self.side] && how != Ended::Closed, "{process}: {how:?}");
        }
        // Sessions that are not closed yet take a place too, of which each side has four, and their numbers.
        let comes = sessions.len() < 4 && fep.open_process(BAD[self.side]).is_ok();
        if comes {
            fep.close_process(BAD[self.side]).expect("it has just been opened");
            *self = Bad::new(world, self.side, only_datagrams);
        }
        comes && only_datagrams
    }
}

/// Alice at one end and Bob at the other exchange messages, with a datagram beside each, and expect all to arrive.
struct Good {
    clients: [Client; 2],
    connections: [ConnectionHandle; 2],
    /// The number of each one's message that is under way.
    under_way: [u64; 2],
    /// Of each one's message and datagram: sent and received.
    reported: [[bool; 4]; 2],
    /// Whether each one's datagram is still to be sent: there may be no receive for it before the next step.
    due: [bool; 2],
}

/// Bytes of message `number`.
fn length(number: u64) -> usize {
    [3000, 0, 1024, 1, 20_000][(number % 5) as usize]
}

/// Bytes of the datagram beside message `number`.
fn length_of_datagram(number: u64) -> usize {
    [1024, 0, 1, 700][(number % 4) as usize]
}

impl Good {
    fn new(world: &mut World) -> Good {
        let mut clients = [0, 1].map(|side| {
            world.sessions[side].open(&mut world.feps[side], &LITTLE, Some(GOOD[side])).expect("room")
        });
        let connections = [0, 1].map(|side| {
            let there = ConnectOptions { process: GOOD[1 - side], ..ConnectOptions::default() };
            clients[side].connect(Addr(1 - side as u32), there, 0).expect("room")
        });
        let mut good =
            Good { clients, connections, under_way: [0; 2], reported: [[false; 4]; 2], due: [false; 2] };
        (0..2).for_each(|side| good.begin(side));
        good
    }

    /// Posts the next message of `side` and the receive for it.
    fn begin(&mut self, side: usize) {
        self.under_way[side] += 1;
        self.reported[side] = [false; 4];
        let number = self.under_way[side];
        let bytes = content(number, length(number));
        let tag = Matching::Tagged { tag: number, ignore: 0 };
        let room = extent(LANDING, bytes.len() as u32);
        self.clients[1 - side].receive(room, None, tag, 2).expect("room");
        self.clients[side].write(0, &bytes).expect("room");
        let whence = extent(0, bytes.len() as u32);
        self.clients[side].send(self.connections[side], whence, Some(number), !number, 1).expect("room");
        let room = extent(DATAGRAM_LANDING, length_of_datagram(number) as u32);
        self.clients[1 - side].receive_datagram(room, 4).expect("room");
        self.due[side] = true;
    }

    /// Sends the datagram beside the message of `side`, for which there is a receive.
    fn send_datagram(&mut self, side: usize) {
        let number = self.under_way[side];
        let datagram = content(!number, length_of_datagram(number));
        self.clients[side].write(DATAGRAM, &datagram).expect("room");
        let to = Source { peer: Addr(1 - side as u32), process: GOOD[1 - side] };
        let whence = extent(DATAGRAM, datagram.len() as u32);
        self.clients[side].send_datagram(to, whence, number, 3).expect("room");
    }

    /// Checks new reports.
    fn go_on(&mut self, world: &mut World) {
        world.step(4);
        for side in 0..2 {
            if std::mem::take(&mut self.due[side]) {
                self.send_datagram(side);
            }
        }
        for side in 0..2 {
            while let Some(event) = self.clients[side].poll().expect("a worker that is in order") {
                match event.report {
                    Report::Connected { .. } if event.context == 0 => {}
                    Report::Sent { result: Ok(()), .. } if event.context == 1 => {
                        self.reported[side][0] = true;
                    }
                    Report::Received { result: Ok(()), len, header_data, .. } if event.context == 2 => {
                        let number = self.under_way[1 - side];
                        let bytes = content(number, length(number));
                        self.check(side, (LANDING, len), &bytes);
                        assert_eq!(header_data, !number);
                        self.reported[1 - side][1] = true;
                    }
                    Report::Sent { result: Ok(()), .. } if event.context == 3 => {
                        self.reported[side][2] = true;
                    }
                    Report::Received { result: Ok(()), source, len, header_data, .. }
                        if event.context == 4 =>
                    {
                        let number = self.under_way[1 - side];
                        let bytes = content(!number, length_of_datagram(number));
                        self.check(side, (DATAGRAM_LANDING, len), &bytes);
                        let whence = Source { peer: Addr(1 - side as u32), process: GOOD[1 - side] };
                        assert_eq!((source, header_data), (Some(whence), number));
                        self.reported[1 - side][3] = true;
                    }
                    _ => panic!("{event:?}"),
                }
            }
        }
        for side in 0..2 {
            if self.reported[side] == [true; 4] {
                self.begin(side);
            }
        }
    }

    fn check(&mut self, side: usize, (place, len): (u64, u32), expected: &[u8]) {
        assert_eq!(len as usize, expected.len());
        let mut bytes = vec![0; expected.len()];
        self.clients[side].read(place, &mut bytes).expect("within");
        assert!(bytes == expected, "the message or the datagram has changed");
    }

    /// Until one more message each way is through.
    fn finish(&mut self, world: &mut World) {
        let wanted = self.under_way.map(|number| number + 2);
        for _ in 0..LONG {
            if (0..2).all(|side| self.under_way[side] >= wanted[side]) {
                return;
            }
            self.go_on(world);
        }
        let explained = world.feps.each_ref().map(|fep| fep.explain(world.now));
        panic!("{:?} of {wanted:?} after {}: {explained:?}", self.under_way, Span::from_us(LONG as u64));
    }
}
