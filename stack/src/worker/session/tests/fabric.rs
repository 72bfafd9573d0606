//! An endpoint with applications, its peers, and a channel between them that may lose packets.

use core::net::IpAddr;
use core::num::NonZeroU32;
use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use weft_cc::Time;

use super::*;
use crate::buffer::Buffer;
use crate::fep::{Completion, ConnectionId, FepConfig, Limits};
use crate::packet::{Packet, Payload};
use crate::wire::pds::{ControlKind, Pds};
use crate::worker::session::world::{Peers, Side};

/// The peers are endpoints 1 to this.
pub(super) const PEERS: usize = 3;
/// Packets that an endpoint can send in a turn: those of a window to each of two peers, so that what one peer does to the
/// others is not that it uses their link.
const PACKETS: usize = 32;
/// Applications that there may be at a time.
pub(super) const APPLICATIONS: usize = 4;
/// Entries that the address book has for peers which applications add.
pub(super) const BOOK_ROOM: usize = 16;
/// Bytes of the memory that an application sends from; behind it lies that of receives.
pub(super) const MEMORY: u32 = 8192;
/// Bytes of a receive of one message.
pub(super) const ROOM: u32 = 100;
/// Receives of one message that have memory of their own: more than there are at a time.
const ROOMS: u64 = 40;
/// Receives for many messages of an application at a time. Each has as much memory as the application sends from.
const GATHERERS: usize = 2;

/// An application, and what it knows of its connections and operations. Some of that has ended.
pub(super) struct Guest {
    pub(super) client: Client,
    /// The process that it belongs to; 0 is the server's own.
    tenant: u32,
    pub(super) config: SessionConfig,
    pub(super) connections: Vec<ConnectionHandle>,
    pub(super) operations: Vec<OperationHandle>,
    /// Peers that it has got from the address book.
    pub(super) added: Vec<Addr>,
    /// Whether it reads its reports.
    pub(super) reads: bool,
    /// What its memory for sending holds.
    pub(super) seed: u64,
    /// Receives of one message so far.
    receives: u64,
    /// Which parts of its memory receives for many messages have.
    gatherers: [bool; GATHERERS],
}

impl Guest {
    fn new(client: Client, tenant: u32, config: SessionConfig, seed: u64) -> Guest {
        client.write(0, &content(seed, MEMORY as usize)).unwrap();
        Guest {
            client,
            tenant,
            config,
            connections: Vec::new(),
            operations: Vec::new(),
            added: Vec::new(),
            reads: true,
            seed,
            receives: 0,
            gatherers: [false; GATHERERS],
        }
    }

    /// Posts a receive of one message. Its context says where its memory is.
    pub(super) fn receive(&mut self, matching: Matching) {
        let at = u64::from(MEMORY) + self.receives % ROOMS * u64::from(ROOM);
        self.receives += 1;
        self.operations.extend(self.client.receive(extent(at, ROOM), None, matching, at));
    }

    /// Cancels its operations and aborts its connections, as many as it has room for commands.
    fn take_back(&mut self) {
        let Guest { client, connections, operations, .. } = self;
        operations.retain(|operation| client.cancel(*operation) == Err(ClientError::Full));
        connections.retain(|connection| client.abort(*connection) == Err(ClientError::Full));
    }

    /// Posts a receive of one datagram, as [`Guest::receive`].
    pub(super) fn receive_datagram(&mut self) {
        let at = u64::from(MEMORY) + self.receives % ROOMS * u64::from(ROOM);
        self.receives += 1;
        self.operations.extend(self.client.receive_datagram(extent(at, ROOM), at));
    }

    /// Posts a receive for many messages, if there is memory. Its context says where that is.
    pub(super) fn receive_many(&mut self, matching: Matching, least: NonZeroU32) {
        let Some(free) = self.gatherers.iter().position(|taken| !taken) else { return };
        let at = (free as u64 + 2) * u64::from(MEMORY);
        if let Ok(receive) = self.client.receive_many(extent(at, MEMORY), None, matching, least, at) {
            self.operations.push(receive);
            self.gatherers[free] = true;
        }
    }

    /// Checks the bytes of a message that it has received, and returns whether it is one. The header data says what they
    /// must be.
    fn compare(&mut self, event: &Event) -> bool {
        let (goes_on, message) = match event.report {
            Report::Received { header_data, len, offset, more, result, .. } => match result {
                Ok(()) => (more, Some((header_data, offset, len))),
                Err(ReceiveError::Truncated { room, .. }) => (more, Some((header_data, offset, room))),
                Err(_) => (more, None),
            },
            Report::Refused { request: Request::Receive, .. } => (false, None),
            // One may also be that the receive could not be cancelled.
            _ => (true, None),
        };
        if let Some(gatherer) = (event.context / u64::from(MEMORY)).checked_sub(2)
            && !goes_on
        {
            self.gatherers[gatherer as usize] = false;
        }
        let Some((seed, offset, len)) = message else { return false };
        let mut bytes = vec![0; len as usize];
        self.client.read(event.context + u64::from(offset), &mut bytes).unwrap();
        assert_eq!(bytes, content(seed, len as usize), "{event:?}");
        true
    }
}

/// The IP address of a peer that applications add, of which there are several kinds.
pub(super) fn added_ip(kind: u8, number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    [10, kind, high, low].into()
}

/// An endpoint with applications, which is number 0, and its peers.
pub(super) struct Fabric {
    pub(super) feps: Vec<Fep>,
    pub(super) sessions: Sessions,
    pub(super) guests: Vec<Guest>,
    /// The connections of each peer.
    pub(super) connections: Vec<Vec<ConnectionId>>,
    pub(super) now: Time,
    rng: Rng,
    /// Packets that are lost, beside those that [`Fabric::turn`] loses at random.
    pub(super) lost: Vec<fn(&Packet) -> bool>,
    /// Packets that [`Fabric::turn`] does not lose at random.
    pub(super) spared: fn(&Packet) -> bool,
    /// What applications and peers have heard in the last turn, by the number of each.
    pub(super) events: Vec<(usize, Event)>,
    pub(super) completions: Vec<(usize, Completion)>,
    /// Whether all messages have the bytes that their header data says.
    pub(super) compares: bool,
    /// Messages whose bytes have been compared.
    pub(super) compared: u64,
    /// Which peers the worker can reach: all, but for those that are named here; and its address book.
    pub(super) peers: Peers,
    /// Packets that have arrived, and their payload, bytes.
    pub(super) arrived: (u64, u64),
    /// The packet that has left last.
    pub(super) overheard: Option<Packet>,
    /// Turns after which a receive for many messages had to go on.
    pub(super) unfinished: u64,
    /// Joins that were refused because others need the place.
    pub(super) joins_refused: u64,
    /// Connections that were refused to an application whose process has another one, because others may need what a peer takes.
    pub(super) connections_refused: u64,
    /// Peers that applications got from the address book, and that were refused because others may need their places.
    pub(super) peers_added: u64,
    pub(super) peers_refused: u64,
    /// Packets of credit that have left.
    pub(super) credits: u64,
    /// What somebody does before each turn of [`Fabric::go_on`].
    pub(super) meanwhile: Option<fn(&mut Fabric)>,
    seed: u64,
}

impl Fabric {
    pub(super) fn with(config: FepConfig) -> Fabric {
        let config = Arc::new(config);
        let fep = |n| Fep::new(Addr(n), config.clone(), Rng::new(5, n.into()), Time::ZERO).unwrap();
        let mut feps: Vec<Fep> = (0..=PEERS as u32).map(fep).collect();
        feps[0].close_process(0).unwrap();
        feps[0].watch_peers();
        Fabric {
            feps,
            sessions: Sessions::new(APPLICATIONS),
            guests: Vec::new(),
            connections: vec![Vec::new(); PEERS + 1],
            now: Time::ZERO,
            rng: Rng::new(6, 6),
            lost: Vec::new(),
            spared: |_| false,
            events: Vec::new(),
            completions: Vec::new(),
            compares: false,
            compared: 0,
            peers: Peers::with_book(PEERS as u32, BOOK_ROOM),
            arrived: (0, 0),
            overheard: None,
            unfinished: 0,
            joins_refused: 0,
            connections_refused: 0,
            peers_added: 0,
            peers_refused: 0,
            credits: 0,
            meanwhile: None,
            seed: 0,
        }
    }

    /// A number for bytes that nobody has sent yet.
    pub(super) fn new_seed(&mut self) -> u64 {
        self.seed += 1;
        self.seed
    }

    pub(super) fn guest(&mut self, index: proptest::sample::Index) -> Option<&mut Guest> {
        let count = self.guests.len();
        (count > 0).then(|| &mut self.guests[index.index(count)])
    }

    fn limits(&self) -> Limits {
        self.feps[0].config().limits
    }

    /// Checks that what is counted is there, and within the limits.
    pub(super) fn check(&self) {
        self.sessions.check_accounts(&self.limits());
        self.sessions.check_peers();
        let mut users = BTreeMap::new();
        for (peer, _) in self.sessions.holders() {
            *users.entry(peer).or_default() += 1;
        }
        assert_eq!(self.peers.users(), users, "entries that the address book keeps for applications");
        self.sessions.check_connected(|peer| !self.peers.is_lent(peer));
        for fep in &self.feps {
            fep.check_accounts();
            fep.check_datagrams();
        }
    }

    pub(super) fn join(&mut self, operations: u32, connections: u32) {
        self.join_as(SessionConfig { operations, connections, ..SMALL });
    }

    /// An application of the server's own process joins with what `config` asks for, but for its memory.
    pub(super) fn join_as(&mut self, config: SessionConfig) {
        self.join_of(0, config);
    }

    /// The same for an application of process `tenant`.
    pub(super) fn join_of(&mut self, tenant: u32, config: SessionConfig) {
        // Receives whose bytes are compared have memory of their own.
        let memory = if self.compares { 4 * MEMORY } else { MEMORY };
        let config = SessionConfig { memory, ..config };
        let SessionConfig { operations, connections, .. } = config;
        let reserved = |of: fn(&SessionConfig) -> u32| -> usize {
            self.guests.iter().map(|guest| of(&guest.config) as usize).sum()
        };
        let fits = reserved(|config| config.operations) + operations as usize <= self.limits().sends
            && reserved(|config| config.connections) + connections as usize <= self.limits().connections
            && self.guests.len() < APPLICATIONS
            && self.leaves_places(tenant);
        // Those that have left may have their places still.
        match self.admit(tenant, &config) {
            Ok(client) => {
                assert!(fits, "more is promised than there is");
                let seed = self.new_seed();
                self.guests.push(Guest::new(client, tenant, config, seed));
            }
            Err(error) => {
                // Processes before it may have left too much of the address book in use.
                let is_in_use = matches!(error, OpenError::PeersInUse { .. });
                assert!(!fits || is_in_use || self.sessions.len() > self.guests.len(), "{error}");
                self.joins_refused += u64::from(matches!(error, OpenError::Share { .. }));
            }
        }
    }

    fn admit(&mut self, tenant: u32, config: &SessionConfig) -> Result<Client, OpenError> {
        if tenant == 0 {
            return self.sessions.open(&mut self.feps[0], config, None);
        }
        self.sessions.join_of(&mut self.feps[0], Some(std::process::id() + tenant), config)
    }

    /// Whether process `tenant` may have an application more: two in any case, and beyond that an even part among the processes
    /// that are there, or as many as it leaves. Applications of the server's own count as processes, and need leave nothing.
    fn leaves_places(&self, tenant: u32) -> bool {
        let tenants = || self.guests.iter().map(|guest| guest.tenant);
        let wanted = 1 + tenants().filter(|other| *other == tenant).count();
        let others: BTreeSet<u32> = tenants().filter(|other| ![0, tenant].contains(other)).collect();
        let processes = 1 + others.len() + tenants().filter(|other| *other == 0).count();
        let left = APPLICATIONS.saturating_sub(self.guests.len() + 1);
        tenant == 0 || wanted <= 2 || wanted <= left || wanted <= APPLICATIONS / processes.max(2)
    }

    /// How many of these events say that an application whose process has another one may have no connection more to a peer.
    fn count_refused_connections(&self) -> u64 {
        let has_another = |tenant| self.guests.iter().filter(|guest| guest.tenant == tenant).count() > 1;
        let is_refusal = |(guest, event): &&(usize, Event)| {
            let limit = CallError::Limit {
                what: Resource::PeerConnections,
                limit: self.limits().pdcs_per_peer as usize,
            };
            let tenant = self.guests[*guest].tenant;
            matches!(event.report, Report::Refused { error, .. } if error == limit)
                && tenant > 0
                && has_another(tenant)
        };
        self.events.iter().filter(is_refusal).count() as u64
    }

    /// Notes the peers that applications have got, and how many were refused.
    fn note_peers(&mut self) {
        for (n, Event { report, .. }) in &self.events {
            match *report {
                Report::Peer { addr, .. } => {
                    self.guests[*n].added.push(addr);
                    self.peers_added += 1;
                }
                Report::Refused { error: CallError::Limit { what: Resource::Peers, .. }, .. } => {
                    self.peers_refused += 1;
                }
                _ => {}
            }
        }
    }

    /// A turn without losses, before which somebody may do something.
    pub(super) fn go_on(&mut self) {
        if let Some(act) = self.meanwhile {
            act(self);
        }
        self.turn(false);
    }

    /// A microsecond.
    pub(super) fn turn(&mut self, loses: bool) {
        self.events.clear();
        self.completions.clear();
        self.now += Span::from_us(1);
        self.serve();
        for n in 0..self.feps.len() {
            if self.feps[n].poll_timeout().is_some_and(|at| self.now.is_at_or_after(at)) {
                self.feps[n].on_timeout(self.now);
            }
            for _ in 0..PACKETS {
                let Some(transmit) = self.feps[n].poll_transmit(self.now) else { break };
                let payload = self.feps[n].payload(&transmit.payload);
                let mut bytes = vec![0; payload.len() as usize];
                payload.copy_to(&mut bytes);
                self.overheard = Some(transmit.packet);
                let is_credit = matches!(&transmit.packet.pds, Pds::Control(control) if control.kind == ControlKind::Credit);
                self.credits += u64::from(is_credit);
                if !(loses && self.rng.next_u64().is_multiple_of(8) && !(self.spared)(&transmit.packet)
                    || self.lost.iter().any(|is_lost| is_lost(&transmit.packet)))
                {
                    self.arrive(&transmit.packet, &bytes);
                }
            }
            if n > 0 {
                self.completions.extend(iter::from_fn(|| self.feps[n].poll_completion()).map(|c| (n, c)));
            }
        }
        self.serve();
        for (n, guest) in self.guests.iter_mut().enumerate().filter(|(_, guest)| guest.reads) {
            self.events.extend(iter::from_fn(|| guest.client.poll().ok().flatten()).map(|event| (n, event)));
        }
        self.unfinished += self.sessions.gatherers();
        self.connections_refused += self.count_refused_connections();
        self.note_peers();
        if self.compares {
            self.compare();
        }
    }

    /// A packet arrives at its destination, if there is such an endpoint.
    pub(super) fn arrive(&mut self, packet: &Packet, payload: &[u8]) {
        let Some(to) = self.feps.get_mut(packet.net.dst.0 as usize) else { return };
        to.on_packet(self.now, packet, Payload::Bytes(payload));
        self.arrived.0 += 1;
        self.arrived.1 += payload.len() as u64;
    }

    fn serve(&mut self) {
        self.sessions.serve(&mut Side(&mut self.feps[0], &mut self.peers), self.now);
    }

    /// Lets `span` pass, from timer to timer where nothing is to be sent.
    pub(super) fn rest(&mut self, span: Span) {
        let end = self.now + span;
        while self.now.is_before(end) {
            self.turn(false);
            self.skip_to_next_timer();
        }
    }

    /// Goes to the next timer, unless something is to be sent before.
    pub(super) fn skip_to_next_timer(&mut self) {
        let next = self.feps.iter().filter_map(Fep::poll_timeout);
        let next = next.reduce(|a, b| if b.is_before(a) { b } else { a });
        if let Some(next) = next.filter(|at| !self.now.is_at_or_after(*at))
            && !self.feps.iter().any(Fep::wants_to_transmit)
        {
            self.now = next;
        }
    }

    /// Checks the bytes of all messages that were received in the last turn.
    fn compare(&mut self) {
        for (n, event) in &self.events {
            self.compared += u64::from(self.guests[*n].compare(event));
        }
        for (_, completion) in &self.completions {
            let Completion::Received { header_data, len, buffer: Buffer::Heap(bytes), result, .. } =
                completion
            else {
                continue;
            };
            if let Ok(()) | Err(ReceiveError::Truncated { .. }) = result {
                let len = bytes.len().min(*len as usize);
                assert_eq!(bytes[..len], content(*header_data, len), "{completion:?}");
                self.compared += 1;
            }
        }
    }

    /// Goes on until all commands of applications have been executed, which no application can put off for ever.
    pub(super) fn obey_all(&mut self) {
        for _ in 0..20_000 {
            if self.sessions.have_obeyed() {
                return;
            }
            self.turn(false);
        }
        panic!("commands are not executed");
    }

    /// Applications take back all that they have asked for, the last of it ends, and they hear of nothing more.
    pub(super) fn calm_down(&mut self) {
        for _ in 0..200_000 {
            self.guests.iter_mut().for_each(Guest::take_back);
            self.turn(false);
            let has_ended = |guest: &Guest| guest.connections.is_empty() && guest.operations.is_empty();
            let is_connected = self.feps[0].leaks().any(|line| line.ends_with(" connections"));
            if self.guests.iter().all(has_ended)
                && self.events.is_empty()
                && !is_connected
                && self.sessions.are_idle()
                && self.sessions.have_obeyed()
            {
                return;
            }
            self.skip_to_next_timer();
        }
        panic!("something never ends: {:?}", self.explain());
    }

    /// The first report that application `guest` gets from now on: commands may have to wait for copies.
    pub(super) fn next_report(&mut self, guest: usize) -> Report {
        for _ in 0..1_000 {
            self.turn(false);
            if let Some((_, event)) = self.events.iter().find(|(n, _)| *n == guest) {
                return event.report;
            }
        }
        panic!("no report comes: {:?}", self.explain());
    }

    /// What each endpoint waits for.
    pub(super) fn explain(&self) -> Vec<Vec<String>> {
        self.feps.iter().map(|fep| fep.explain(self.now)).collect()
    }

    /// Everybody leaves. Whatever was waiting ends, at the latest by a timer.
    pub(super) fn end(&mut self) {
        self.guests.clear();
        self.lost.clear();
        for peer in 1..=PEERS {
            for id in std::mem::take(&mut self.connections[peer]) {
                let _ = self.feps[peer].abort(self.now, id);
            }
            self.feps[peer].close_process(0).unwrap();
        }
        for _ in 0..200_000 {
            self.turn(false);
            if self.sessions.is_empty() && self.feps.iter().all(|fep| fep.leaks().next().is_none()) {
                break;
            }
            self.skip_to_next_timer();
        }
        self.check();
        for fep in &self.feps {
            assert_eq!(fep.leaks().collect::<Vec<_>>(), [""; 0], "{:?}", self.explain());
            assert_eq!(fep.check_accounts(), (0, 0, 0), "endpoint {}", fep.addr().0);
        }
        assert!(self.sessions.is_empty());
    }
}
