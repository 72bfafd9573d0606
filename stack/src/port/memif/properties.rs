//! Properties that hold for any bytes on the control channel. Property tests and a fuzz target share these functions.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::client;
use super::config::{MemifConfig, Role, SocketName};
use super::handshake_error::HandshakeError;
use super::link::offer;
use super::link_layout::{LinkLayout, MakeOffer};
use super::message::{AddRing, ETHERNET, Hello, Init, Message, TO_SERVER, Text, VERSION};
use super::ring::ring_bytes;
use super::server;
use crate::choices::Choices;
use crate::region::Region;

/// Bytes of the memory that peers show.
const MEMORY: u64 = 16 << 10;

/// Bytes are a message that can be written again, or none.
pub fn any_bytes_are_a_message_or_none(bytes: &[u8]) {
    let read = Message::decode(bytes);
    assert!(read.is_err() || bytes.len() == 128);
    if let Ok(message) = read {
        assert_eq!(
            Message::decode(&message.encode()),
            Ok(message),
            "what was read is all that there is to it"
        );
        assert!(!message_text(&message).chars().any(char::is_control));
    }
}

/// The text of a message that logs and errors show.
fn message_text(message: &Message) -> String {
    match message {
        Message::Disconnect { reason, .. } => reason.to_string(),
        Message::Connect { interface } | Message::Connected { interface } => interface.to_string(),
        Message::Init(init) => init.name.to_string(),
        Message::Hello(hello) => hello.name.to_string(),
        other => other.name().to_owned(),
    }
}

/// Messages that are nearly right, in any order, with any descriptors: a server answers each or refuses it, and a link
/// is one that its port can trust.
pub fn a_server_makes_no_link_that_it_cannot_trust(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let files = Files::new();
    let secret = if choices.byte() & 1 == 0 { "" } else { "secret" };
    let config = MemifConfig { secret: secret.to_owned(), ..MemifConfig::server(nowhere()) };
    let mut handshake = server::Handshake::new(&config);
    while let Some(choice) = choices.next() {
        let Ok(message) = choices.altered(&right_message(choice)) else { continue };
        let (file, is_free) = (files.any(choices.byte()), choices.byte() != 0);
        let (had_place, had_file) = (handshake.has_place(), file.is_some());
        match handshake.take(message, file, is_free) {
            Ok(server::Answer::Reply(reply)) => {
                assert_eq!(reply, Message::Ack);
                assert!(handshake.has_place() && (had_place || is_free));
                assert!(had_file || !message.has_file());
                if let Message::Init(init) = message {
                    assert!(!had_place && (init.version, init.id, init.mode) == (VERSION, 0, ETHERNET));
                    assert!(secret.is_empty() || init.secret == Text::filled(secret.as_bytes()));
                }
            }
            Ok(server::Answer::Link(reply, layout)) => {
                assert!(had_place && matches!(reply, Message::Connected { .. }));
                return assert_trustworthy(&layout, Role::Server);
            }
            Ok(server::Answer::Left(_)) => {
                return assert!(matches!(message, Message::Disconnect { .. }));
            }
            Err(error) => return assert!(!error.to_string().is_empty()),
        }
    }
}

fn assert_trustworthy(layout: &LinkLayout, role: Role) {
    let LinkLayout { to_server, to_client, regions, .. } = layout;
    assert_eq!(layout.role, role);
    for ring in [to_server, to_client] {
        assert!((1..=14).contains(&ring.log2_size) && ring.offset.is_multiple_of(64));
        let end = u64::from(ring.offset) + ring_bytes(ring.log2_size) as u64;
        assert!(end <= regions[usize::from(ring.region)].len() as u64);
        // Neither who writes to it nor who reads it waits.
        assert!(rustix::io::write(&ring.event, &u64::to_ne_bytes(1)).is_ok());
        while rustix::io::read(&ring.event, &mut [0; 8]).is_ok() {}
    }
    let [first, second] =
        if to_server.offset < to_client.offset { [to_server, to_client] } else { [to_client, to_server] };
    let is_apart = first.offset as usize + ring_bytes(first.log2_size) <= second.offset as usize;
    assert!(first.region != second.region || is_apart);
    for region in regions {
        let len = region.len() as u32;
        region.slice(0, len).unwrap().write(len - 1, &[1]);
    }
}

/// Messages that are nearly right, in any order: a client sends what the protocol says, in its order, and has a link
/// only when it has sent all and been told so.
pub fn a_client_sends_each_message_once_in_order(bytes: &[u8]) {
    const ORDER: [&str; 5] = ["INIT", "ADD_REGION", "ADD_RING", "ADD_RING", "CONNECT"];
    let mut choices = Choices(bytes);
    let config = MemifConfig { log2_ring: 4, buffer_size: Some(64), ..MemifConfig::client(nowhere()) };
    let make_offer: MakeOffer = Box::new(|config| offer(config, &[]));
    let mut handshake = client::Handshake::new(&config);
    let mut sent = 0;
    while let Some(choice) = choices.next() {
        let Ok(message) = choices.altered(&right_message(choice)) else { continue };
        match handshake.take(message, &make_offer) {
            Ok(client::Answer::Send(reply, file)) => {
                assert_eq!(reply.name(), ORDER[sent]);
                assert_eq!(file.is_some(), reply.has_file());
                assert_eq!(message.name(), if sent == 0 { "HELLO" } else { "ACK" });
                sent += 1;
            }
            Ok(client::Answer::Link(layout)) => {
                assert!(sent == ORDER.len() && matches!(message, Message::Connected { .. }));
                return assert_trustworthy(&layout, Role::Client);
            }
            Ok(client::Answer::Left(_)) => {
                return assert!(matches!(message, Message::Disconnect { .. }));
            }
            Err(error) => {
                assert!(
                    !matches!(error, HandshakeError::Offer(_) | HandshakeError::Place(_)),
                    "its own memory"
                );
                return;
            }
        }
    }
}

fn nowhere() -> SocketName {
    SocketName::parse("nowhere")
}

/// One of the messages of a handshake that succeeds.
fn right_message(choice: u8) -> Message {
    let ring = |flags, offset| {
        Message::AddRing(AddRing { flags, index: 0, region: 0, offset, log2_size: 4, private_header: 0 })
    };
    let interface = Text::new("far");
    match choice % 10 {
        0 => Message::Ack,
        1 => Message::Hello(Hello {
            name: Text::new("peer"),
            min_version: VERSION,
            max_version: VERSION,
            max_region: 0,
            max_to_client: 0,
            max_to_server: 0,
            max_log2_ring: 14,
        }),
        2 => Message::Init(Init {
            version: VERSION,
            id: 0,
            mode: ETHERNET,
            secret: Text::filled(if choice < 128 { b"secret" } else { b"" }),
            name: Text::new("peer"),
        }),
        3 => Message::AddRegion { index: 0, size: MEMORY },
        4 => Message::AddRegion { index: 1, size: MEMORY },
        5 => ring(TO_SERVER, 0),
        6 => ring(0, ring_bytes(4) as u32),
        7 => Message::Connect { interface },
        8 => Message::Connected { interface },
        _ => Message::disconnect("enough"),
    }
}

/// Descriptors that peers send.
struct Files {
    memory: OwnedFd,
    event: OwnedFd,
    loose: OwnedFd,
    pipe: OwnedFd,
}

impl Files {
    fn new() -> Files {
        let (_, memory) = Region::share(MEMORY as usize).unwrap();
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let loose = memfd_create("loose", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&loose, MEMORY).unwrap();
        let pipe = std::io::pipe().unwrap().1.into();
        Files { memory, event, loose, pipe }
    }

    /// One of the descriptors, or none. The kinds that a handshake needs are drawn more often than the others.
    fn any(&self, choice: u8) -> Option<OwnedFd> {
        let file = match choice % 8 {
            0 => return None,
            1..=3 => &self.memory,
            4 => &self.loose,
            5 => &self.pipe,
            _ => &self.event,
        };
        Some(file.as_fd().try_clone_to_owned().unwrap())
    }
}

impl Choices<'_> {
    /// The message with up to three of its bytes changed, if it is still one: half of all as they are.
    fn altered(&mut self, message: &Message) -> Result<Message, HandshakeError> {
        let mut bytes = message.encode();
        for _ in 0..self.byte().saturating_sub(128) % 4 {
            bytes[usize::from(self.byte() % 128)] = self.byte();
        }
        any_bytes_are_a_message_or_none(&bytes);
        Message::decode(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn servers(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            a_server_makes_no_link_that_it_cannot_trust(&bytes);
        }

        #[test]
        fn clients(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            a_client_sends_each_message_once_in_order(&bytes);
        }

        /// From a handshake that succeeds, with a few bytes changed.
        #[test]
        fn nearly_right(
            server in changed(RIGHT_FOR_SERVERS),
            client in changed(RIGHT_FOR_CLIENTS),
        ) {
            a_server_makes_no_link_that_it_cannot_trust(&server);
            a_client_sends_each_message_once_in_order(&client);
        }
    }

    /// Whether the server requires a secret; then the message, changes, descriptor and free buffers of each step.
    const RIGHT_FOR_SERVERS: &[u8] = &[0, 2, 0, 0, 1, 3, 0, 1, 1, 5, 0, 6, 1, 6, 0, 6, 1, 7, 0, 0, 1];
    /// Message and changes of each step.
    const RIGHT_FOR_CLIENTS: &[u8] = &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0];

    fn changed(right: &'static [u8]) -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3).prop_map(|changes| {
            let mut bytes = right.to_vec();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes
        })
    }

    /// Else nothing would have been tried above.
    #[test]
    fn a_correct_handshake_makes_a_link() {
        let config = MemifConfig::server(nowhere());
        let (files, mut handshake) = (Files::new(), server::Handshake::new(&config));
        let mut last = None;
        for step in RIGHT_FOR_SERVERS[1..].chunks(4) {
            last = Some(handshake.take(right_message(step[0]), files.any(step[2]), true).unwrap());
        }
        assert!(matches!(last, Some(server::Answer::Link(..))));

        let mut handshake = client::Handshake::new(&MemifConfig::client(nowhere()));
        let make_offer: MakeOffer = Box::new(|config| offer(config, &[]));
        let linked = RIGHT_FOR_CLIENTS.chunks(2).any(|step| {
            let answer = handshake.take(right_message(step[0]), &make_offer).unwrap();
            matches!(answer, client::Answer::Link(_))
        });
        assert!(linked);
    }
}
