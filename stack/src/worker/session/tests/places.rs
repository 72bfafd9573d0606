//! Places and memory for applications, and the processes that ask for several of each.

use super::*;
use crate::fep::{FepConfig, Limits};
use crate::packet::Packet;
use crate::worker::session::attention::PERIOD;

/// A server, to which no answers of its peer come, and the applications that are there.
struct Server {
    world: World,
    clients: Vec<(u32, Client)>,
}

/// The memory of an application, bytes.
const MEMORY: u32 = 4096;

fn config_of(memory: u32) -> SessionConfig {
    SessionConfig { operations: 1, connections: 1, memory, ..SMALL }
}

/// What an application has of the memory of all, bytes.
fn memory_of(memory: u32) -> u64 {
    config_of(memory).layout().unwrap().total as u64
}

impl Server {
    /// One with so many places, and as much memory as the applications need that have them.
    fn new(places: u16) -> Server {
        let limits = Limits { processes: usize::from(places) + 1, ..Limits::default() };
        let mut world = World::with(&Arc::new(FepConfig { limits, ..(*config()).clone() }));
        world.sessions[0] = Sessions::new(places.into());
        world.sessions[0].limit_memory(u64::from(places) * memory_of(MEMORY));
        Server { world, clients: Vec::new() }
    }

    /// A process joins. The system tells of some processes which they are.
    fn join_as(&mut self, tenant: Option<u32>, memory: u32) -> Result<(), OpenError> {
        let config = config_of(memory);
        let client = self.world.sessions[0].join_of(&mut self.world.feps[0], tenant, &config)?;
        self.clients.push((tenant.unwrap_or(0), client));
        Ok(())
    }

    /// Process `n`, which is not the server's own, joins.
    fn join(&mut self, n: u32) -> Result<(), OpenError> {
        self.join_as(Some(process(n)), MEMORY)
    }

    /// Process `n` joins until it is refused. Returns how often it did.
    fn join_over_and_over(&mut self, n: u32) -> usize {
        let before = self.clients.len();
        let refused = loop {
            if let Err(error) = self.join(n) {
                break error;
            }
        };
        assert!(matches!(refused, OpenError::Share { .. } | OpenError::Full(_)), "{refused}");
        self.clients.len() - before
    }

    /// The applications of process `n` leave. Each has sent a message that is not acknowledged, so that it has its place still.
    fn leave_with_messages_under_way(&mut self, n: u32) {
        for (_, client) in self.clients.iter_mut().filter(|(tenant, _)| *tenant == process(n)) {
            let connection = client.connect(Addr(1), ConnectOptions::default(), 0).unwrap();
            client.send(connection, extent(0, 1), None, 0, 0).unwrap();
        }
        self.period();
        let taken = self.world.sessions[0].len();
        self.clients.retain(|(tenant, _)| *tenant != process(n));
        self.period();
        assert_eq!(self.world.sessions[0].len(), taken, "their places are not free yet");
    }

    fn turn(&mut self) {
        self.world.step_through(16, |packet: &Packet| packet.net.src == Addr(0));
    }

    /// As many turns as it takes until all applications have been looked at.
    fn period(&mut self) {
        (0..PERIOD).for_each(|_| self.turn());
    }

    /// All leave, and their places get free.
    fn clear(&mut self) {
        self.clients.clear();
        for _ in 0..100_000 {
            if self.world.sessions[0].is_empty() {
                return;
            }
            self.turn();
        }
        panic!("their places are never free: {:?}", self.world.feps[0].explain(self.world.now));
    }
}

/// The number of a process that is not this one.
fn process(n: u32) -> u32 {
    std::process::id() + 1 + n
}

#[test]
fn processes_of_a_job_that_have_all_places_and_all_memory_between_them_can_join() {
    for (processes, each, places) in [(32, 2, 64), (16, 4, 64), (1, 2, 2), (2, 2, 4), (5, 3, 16), (20, 3, 64)]
    {
        let mut server = Server::new(places);
        let what = format!("{processes} processes with {each} of {places} places each");
        // One after the other, and in turns.
        for n in 0..processes {
            (0..each).for_each(|_| server.join(n).unwrap_or_else(|error| panic!("{what}: {error}")));
        }
        server.clear();
        for _ in 0..each {
            (0..processes).for_each(|n| server.join(n).unwrap_or_else(|error| panic!("{what}: {error}")));
        }
    }
}

#[test]
fn a_process_that_joins_over_and_over_leaves_half_of_the_places_to_others() {
    let mut server = Server::new(16);
    assert_eq!(server.join_over_and_over(0), 8);
    (1..=8).for_each(|n| server.join(n).unwrap());
    assert!(matches!(server.join(9), Err(OpenError::Full(16))));
    server.clear();
    // Beside others that are there it gets as much as it leaves.
    (1..=8).for_each(|n| server.join(n).unwrap());
    assert_eq!(server.join_over_and_over(0), 4);
    let refused = server.join(0).unwrap_err().to_string();
    let share = "this process would have 5 of 16 applications, and leave 3: \
                 it may have 1, and else as many as it leaves to others";
    assert_eq!(refused, share);
    (9..=12).for_each(|n| server.join(n).unwrap());
}

/// The places of those that leave are taken for as long as their connections are not closed.
#[test]
fn a_process_that_joins_and_leaves_over_and_over_leaves_a_place_to_others() {
    let mut server = Server::new(16);
    let rounds = [(); 5].map(|()| {
        let joined = server.join_over_and_over(0);
        server.leave_with_messages_under_way(0);
        joined
    });
    assert_eq!(rounds, [8, 4, 2, 1, 0]);
    server.join(1).unwrap();
    server.clear();
}

#[test]
fn processes_whose_former_applications_are_leaving_can_join_again_where_there_is_room() {
    let mut server = Server::new(64);
    for n in 0..8 {
        (0..4).for_each(|_| server.join(n).unwrap());
    }
    (0..8).for_each(|n| server.leave_with_messages_under_way(n));
    for n in 0..8 {
        (0..4).for_each(|_| server.join(n).unwrap());
    }
    server.clear();
}

#[test]
fn a_process_that_joins_over_and_over_leaves_half_of_the_memory_to_others() {
    let mut server = Server::new(16);
    server.world.sessions[0].limit_memory(6 * memory_of(MEMORY));
    assert_eq!(server.join_over_and_over(0), 3);
    let refused = server.join(0).unwrap_err();
    assert!(matches!(refused, OpenError::Share { what: "bytes of memory", .. }), "{refused}");
    // One that joins once may have all that is left.
    let left = (3 * memory_of(MEMORY) - (memory_of(MEMORY) - u64::from(MEMORY))) as u32;
    server.join_as(Some(process(1)), left).unwrap();
    server.clear();
}

#[test]
fn the_servers_own_process_and_those_that_the_system_does_not_tell_apart_have_all_places() {
    let mut server = Server::new(16);
    for tenant in [Some(std::process::id()), None] {
        (0..16).for_each(|_| server.join_as(tenant, MEMORY).unwrap());
        assert!(matches!(server.join_as(tenant, MEMORY), Err(OpenError::Full(16))));
        server.clear();
    }
}
