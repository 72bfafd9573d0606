//! Which applications are let in, and what a process may have: what an application asks for is reserved for it when it joins.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::{SessionId, Sessions};
use crate::fep::{Fep, Limits, MAX_PROCESS, Resource};
use crate::region::Region;
use crate::worker::ring::{Consumer, Producer};
use crate::worker::session::application::Application;
use crate::worker::session::client::Client;
use crate::worker::session::config::{OpenError, SessionConfig};
use crate::worker::session::held_peers::LOOKS;
use crate::worker::session::link::Link;
use crate::worker::session::operations::Operations;
use crate::worker::session::put_off::{BYTES_PER_TURN, PutOff};
use crate::worker::session::sealing::Sealing;
use crate::worker::session::unmapper::Kept;

/// The sessions that a process may have whatever it leaves to others: one for each direction, or for each of two threads.
pub(in crate::worker::session) const ALWAYS: u64 = 2;

/// What some sessions have together.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::worker::session) struct Share {
    pub(in crate::worker::session) places: u64,
    /// Bytes of memory.
    pub(in crate::worker::session) memory: u64,
}

impl Share {
    pub(in crate::worker::session) fn one(memory: u64) -> Share {
        Share { places: 1, memory }
    }

    pub(in crate::worker::session) fn with(self, other: Share) -> Share {
        Share { places: self.places + other.places, memory: self.memory.saturating_add(other.memory) }
    }
}

impl Sessions {
    /// Opens a session for an application in this process, which may hand the client to another thread. Peers know it
    /// as `process`, which may be 0 if the endpoint's own process 0 is closed, or else as one of 1 to [`MAX_PROCESS`]
    /// that has been free for longest.
    ///
    /// # Errors
    /// A number in `config` is out of range, all sessions are in use, the endpoint has less left than `config` asks for
    /// ([`OpenError::NotLeft`]), or of the peers that are reserved for a process ([`OpenError::PeersInUse`]), the process is open, or
    /// the system has no memory or socket left.
    pub fn open(
        &mut self,
        fep: &mut Fep,
        config: &SessionConfig,
        process: Option<u16>,
    ) -> Result<Client, OpenError> {
        let region = Region::allocate(config.layout()?.total)?;
        let (own, other) = Link::pair()?;
        let other = other.waking(self.waker.clone());
        let id = self.admit(fep, config, process, &region, own, Some(std::process::id()))?;
        let process = self.process(id).unwrap_or(0);
        let client = Client::new(config, &region, other, self.host, fep.addr(), process)?;
        Ok(client.with_longest_datagram(fep.config().mtu))
    }

    /// Opens a session whose rings and memory lie in `region`, and whose application is at the other end of `link`, in the
    /// operating system's process `tenant`, if that is known.
    pub(in crate::worker::session) fn admit(
        &mut self,
        fep: &mut Fep,
        config: &SessionConfig,
        process: Option<u16>,
        region: &Region,
        link: Link,
        tenant: Option<u32>,
    ) -> Result<SessionId, OpenError> {
        self.admit_with(fep, config, process, |_| Ok(region.clone()), link, tenant)
    }

    /// As [`Sessions::admit`], with the region of so many bytes that `share` returns. It is called only if nothing else keeps the
    /// session from being opened, as the system takes longer for it than a turn of the worker's loop.
    pub(in crate::worker::session) fn admit_with(
        &mut self,
        fep: &mut Fep,
        config: &SessionConfig,
        process: Option<u16>,
        share: impl FnOnce(usize) -> std::io::Result<Region>,
        link: Link,
        tenant: Option<u32>,
    ) -> Result<SessionId, OpenError> {
        let layout = config.layout()?;
        let slot = self.slots.iter().position(Option::is_none).ok_or(OpenError::Full(self.slots.len()))?;
        // Those that are not in use any more are no reason to choose another account.
        let is_in_use = |peer| fep.standing(peer).may_be_in_use();
        self.connections.held_peers.look_at_left(LOOKS, is_in_use);
        let peers = config.peers.into();
        let account = self.choose_account(tenant, peers).ok_or(OpenError::Full(self.slots.len()))?;
        self.check_left(&fep.config().limits, config)?;
        self.check_share(tenant, account, Share::one(layout.total as u64))?;
        let changes_hands = self.connections.accounts.changes_hands(account, tenant);
        let lack = self.connections.held_peers.lack(account, peers).filter(|_| changes_hands);
        if let Some((part, left)) = lack {
            return Err(OpenError::PeersInUse { part, left });
        }
        // Last, as nothing else passes while an application waits for it.
        self.check_memory(layout.total as u64)?;
        let process = self.open_process(fep, process)?;
        let region = &share(layout.total).inspect_err(|_| {
            // It has just been opened.
            let _ = fep.close_process(process);
        })?;
        let commands = Consumer::at(region, 0, config.commands)?;
        let reports = Producer::at(region, layout.reports, config.reports)?;
        let memory = region.carve(layout.memory, config.memory as usize)?;
        fep.spread_failures();
        fep.spread_copies(BYTES_PER_TURN as u32);
        fep.set_job(process, config.job)?;
        if config.only_datagrams {
            fep.receive_only_datagrams(process)?;
        }
        self.serial += 1;
        let id = SessionId { slot: slot as u32, serial: self.serial };
        let (operations, connections) = (config.operations as usize, config.connections as usize);
        if changes_hands {
            self.connections.take_over(account);
        }
        self.connections.accounts.begin(slot as u32, account, tenant, config.peers);
        self.attention.begin(slot);
        self.slots[slot] = Some(Application {
            id,
            process,
            commands,
            reports,
            regions: vec![memory],
            operations: Operations::new(config.operations),
            connections: vec![None; connections],
            memory: layout.total as u64,
            in_use: 0,
            peers: config.peers,
            held_peers: BTreeSet::new(),
            connected_peers: BTreeMap::new(),
            named: BTreeSet::new(),
            backlog: VecDeque::with_capacity(Application::most_unread(operations, connections)),
            holds_many: false,
            allows_many: false,
            news: false,
            link,
            broken: None,
            leaving: false,
            clears_away: false,
            cleared: 0,
            put_off: PutOff::default(),
            kept: None,
            sealing: None,
        });
        Ok(id)
    }

    /// The shared memory of session `id` ends with it, and is left alone until it is sealed.
    pub(in crate::worker::session) fn keep(&mut self, id: SessionId, kept: Kept, sealing: Arc<Sealing>) {
        if let Some(session) = self.at(id.slot).filter(|session| session.id == id) {
            session.kept = Some(kept);
            session.sealing = Some(sealing);
        }
    }

    /// The account of a session of `tenant`, which may add so many `peers`: of those that are free, and that it has not had before, one
    /// that has its part of the address book, if there is one; of these, the one to which the fewest PDCs count that earlier
    /// applications have left behind at peers, and entries of the address book, and then the fewest peers lately. See [`Accounts::choose`].
    ///
    /// [`Accounts::choose`]: crate::worker::session::accounts::Accounts::choose
    fn choose_account(&self, tenant: Option<u32>, peers: u64) -> Option<u32> {
        let all = &self.connections;
        let rank = |account| {
            let left = u64::from(all.left_behind(account as usize)) + all.held_peers.used(account);
            (all.held_peers.lack(account, peers).is_some(), left, all.peer_costs.count(self.now, account))
        };
        all.accounts.choose(tenant, rank)
    }

    /// Checks that there is left what a session with `config` can come to use, apart from memory: what sessions may have is
    /// reserved for them, whether they use it or not.
    fn check_left(&self, limits: &Limits, config: &SessionConfig) -> Result<(), OpenError> {
        // Each operation may be a message.
        let operations = self.reserved(|session| session.operations.count().into());
        check_left(Resource::Operations, limits.sends as u64, operations, config.operations.into())?;
        let connections = self.reserved(|session| session.connections.len() as u64);
        let most = limits.most_connections() as u64;
        check_left(Resource::Connections, most, connections, config.connections.into())
    }

    /// Checks that there are `memory` bytes left for a session. Memory is reserved by its number only: the system provides each
    /// page when it is used. That of a session which is gone counts until it is unmapped: otherwise one that joins and leaves
    /// over and over would have more at a time than there is.
    fn check_memory(&self, memory: u64) -> Result<(), OpenError> {
        let reserved = self.reserved_memory().saturating_add(self.unmapping.bytes());
        check_left(Resource::SessionMemory, self.memory, reserved, memory)
    }

    fn reserved(&self, of: fn(&Application) -> u64) -> u64 {
        self.slots.iter().flatten().map(of).sum()
    }

    fn reserved_memory(&self) -> u64 {
        self.reserved(|session| session.memory)
    }

    /// Bytes of memory that a session could have now.
    pub(in crate::worker::session) fn free_memory(&self) -> u64 {
        self.memory.saturating_sub(self.reserved_memory().saturating_add(self.unmapping.bytes()))
    }

    /// An even part of the memory among the processes that are there, of which at least two are counted, bytes.
    pub(in crate::worker::session) fn part_of_memory(&self) -> u64 {
        self.memory / self.connections.accounts.there().max(2) as u64
    }

    /// Whether a session could have `memory` bytes if those that are leaving were gone, and all that is to be unmapped was.
    pub(in crate::worker::session) fn will_have_memory(&self, memory: u64) -> bool {
        let reserved = self.reserved(|session| if session.leaving { 0 } else { session.memory });
        check_left(Resource::SessionMemory, self.memory, reserved, memory).is_ok()
    }

    /// Checks that the process `tenant` takes no more places and memory than it may if it is given what its applications ask for that
    /// wait, and one `more`.
    ///
    /// # Errors
    /// [`OpenError::Share`].
    pub(in crate::worker::session) fn check_waiting(
        &self,
        tenant: Option<u32>,
        waiting: Share,
        more: Share,
    ) -> Result<(), OpenError> {
        // Where no account is free there is no place, which it hears in its turn.
        let Some(account) = self.choose_account(tenant, 0) else { return Ok(()) };
        self.check_share(tenant, account, waiting.with(more))
    }

    /// Checks that the process `tenant`, whose sessions have `account`, takes no more places and memory than it may with what it has
    /// `more`. It may have [`ALWAYS`] sessions in any case, and as much as it leaves to others, and an even part
    /// among the processes that are there, of which at least two are counted: so a job whose processes have all places between
    /// them can join, and a process that joins over and over leaves half of everything.
    ///
    /// Sessions that are leaving are no fault of a process, so they do not count where there is room. Where there is none, they do:
    /// otherwise one that joins and leaves over and over could have all.
    ///
    /// The owner's own process is trusted, and one that is not known can be told from no other.
    fn check_share(&self, tenant: Option<u32>, account: u32, more: Share) -> Result<(), OpenError> {
        if tenant.is_none() || tenant == Some(std::process::id()) {
            return Ok(());
        }
        let (mut open, mut held, mut taken) = (more, more, more);
        for session in self.slots.iter().flatten() {
            let share = Share::one(session.memory);
            taken = taken.with(share);
            if self.connections.account(session.id.slot) == account {
                held = held.with(share);
                if !session.leaving {
                    open = open.with(share);
                }
            }
        }
        if held.places <= ALWAYS {
            return Ok(());
        }
        let processes = self.connections.accounts.there_with(account).max(2) as u64;
        let check = |what, limit: u64, of: fn(Share) -> u64| {
            let (part, left) = (limit / processes, limit.saturating_sub(of(taken)));
            match of(open) <= left || of(held) <= part {
                true => Ok(()),
                false => Err(OpenError::Share { what, wanted: of(held), part, left, limit }),
            }
        };
        check("applications", self.slots.len() as u64, |share| share.places)?;
        check("bytes of memory", self.memory, |share| share.memory)
    }

    fn open_process(&mut self, fep: &mut Fep, wanted: Option<u16>) -> Result<u16, OpenError> {
        if let Some(process) = wanted {
            fep.open_process(process)?;
            return Ok(process);
        }
        // In turn, so that a number rests as long as possible: a peer may still send to the process that had it.
        let after_last = (1..=MAX_PROCESS).map(|n| (self.last_process + n - 1) % MAX_PROCESS + 1);
        for process in after_last {
            if fep.open_process(process).is_ok() {
                self.last_process = process;
                return Ok(process);
            }
        }
        Err(OpenError::Full(usize::from(MAX_PROCESS)))
    }
}

fn check_left(what: Resource, limit: u64, reserved: u64, asked: u64) -> Result<(), OpenError> {
    let left = limit.saturating_sub(reserved);
    if asked <= left { Ok(()) } else { Err(OpenError::NotLeft { what, asked, left, limit }) }
}
