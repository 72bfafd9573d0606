//! The handshake of a server: a state machine that takes a message and returns an answer, without I/O.
#![forbid(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::config::{MAX_LOG2_RING, MemifConfig, Role};
use super::handshake_error::HandshakeError;
use super::link_layout::{LinkLayout, MAX_REGIONS, RingPlace};
use super::message::{
    APPLICATION, AddRing, ETHERNET, Hello, Init, Message, TO_SERVER, Text, VERSION, peer_name,
};
use crate::region::Region;

/// The handshake with one client, from its connection to its link.
pub(super) struct Handshake {
    id: u32,
    secret: Text<24>,
    interface: Text<32>,
    /// The client's name, once it has sent INIT.
    client: Option<Text<32>>,
    regions: Vec<Region>,
    to_server: Option<RingPlace>,
    to_client: Option<RingPlace>,
}

/// The server's reaction to a message.
#[derive(Debug)]
pub(super) enum Answer {
    /// Send this message; the handshake goes on.
    Reply(Message),
    /// Send this message; there is a link.
    Link(Message, LinkLayout),
    /// Send nothing: the client has left, and said why.
    Left(String),
}

impl Handshake {
    pub(super) fn new(config: &MemifConfig) -> Handshake {
        Handshake {
            id: config.id,
            secret: Text::filled(config.secret.as_bytes()),
            interface: Text::new(&config.name),
            client: None,
            regions: Vec::new(),
            to_server: None,
            to_client: None,
        }
    }

    /// The first message to a client.
    pub(super) fn hello(&self) -> Message {
        Message::Hello(Hello {
            name: Text::new(APPLICATION),
            min_version: VERSION,
            max_version: VERSION,
            max_region: MAX_REGIONS as u16 - 1,
            max_to_client: 0,
            max_to_server: 0,
            max_log2_ring: MAX_LOG2_RING,
        })
    }

    /// Whether the interface has been promised to this client.
    pub(super) fn has_place(&self) -> bool {
        self.client.is_some()
    }

    /// Takes a message and the descriptor that came with it. `is_free`: no other client has the interface.
    ///
    /// # Errors
    /// Why the client is refused.
    pub(super) fn take(
        &mut self,
        message: Message,
        file: Option<OwnedFd>,
        is_free: bool,
    ) -> Result<Answer, HandshakeError> {
        match (message, self.client) {
            (Message::Disconnect { reason, .. }, _) => return Ok(Answer::Left(reason.to_string())),
            (Message::Init(init), None) => self.take_place(&init, is_free)?,
            (Message::AddRegion { index, size }, Some(_)) => {
                self.add_region(index, size, &need(file, &message)?)?;
            }
            (Message::AddRing(ring), Some(_)) => self.add_ring(&ring, need(file, &message)?)?,
            (Message::Connect { interface }, Some(client)) => {
                let link = self.conclude(peer_name(&client, &interface))?;
                return Ok(Answer::Link(Message::Connected { interface: self.interface }, link));
            }
            (other, client) => {
                let expected = if client.is_none() { "INIT" } else { "ADD_REGION, ADD_RING or CONNECT" };
                return Err(HandshakeError::Order { came: other.name(), expected });
            }
        }
        Ok(Answer::Reply(Message::Ack))
    }

    fn take_place(&mut self, init: &Init, is_free: bool) -> Result<(), HandshakeError> {
        if init.version != VERSION {
            return Err(HandshakeError::Version { lowest: init.version, highest: init.version });
        }
        if init.id != self.id {
            return Err(HandshakeError::Id(init.id));
        }
        if init.mode != ETHERNET {
            return Err(HandshakeError::Mode(init.mode));
        }
        // A server without a secret accepts any secret, as DPDK's does.
        if !self.secret.is_empty() && init.secret != self.secret {
            return Err(if init.secret.is_empty() {
                HandshakeError::NoSecret
            } else {
                HandshakeError::Secret
            });
        }
        if !is_free {
            return Err(HandshakeError::Taken(self.id));
        }
        self.client = Some(init.name);
        Ok(())
    }

    fn add_region(&mut self, index: u16, size: u64, file: &OwnedFd) -> Result<(), HandshakeError> {
        let expected = self.regions.len();
        if expected == MAX_REGIONS {
            return Err(HandshakeError::Regions);
        }
        if usize::from(index) != expected {
            return Err(HandshakeError::RegionIndex { came: index, expected });
        }
        let len = u32::try_from(size).ok().filter(|&len| len != 0).ok_or(HandshakeError::RegionSize(size))?;
        let region = Region::map(file, len as usize);
        self.regions.push(region.map_err(|error| HandshakeError::Memory(error.to_string()))?);
        Ok(())
    }

    fn add_ring(&mut self, ring: &AddRing, event: OwnedFd) -> Result<(), HandshakeError> {
        if ring.flags & !TO_SERVER != 0 {
            return Err(HandshakeError::RingFlags(ring.flags));
        }
        if ring.index != 0 {
            return Err(HandshakeError::RingIndex(ring.index));
        }
        if ring.private_header != 0 {
            return Err(HandshakeError::PrivateHeader(ring.private_header));
        }
        let to_server = ring.flags == TO_SERVER;
        let (this, other) = if to_server {
            (&mut self.to_server, &self.to_client)
        } else {
            (&mut self.to_client, &self.to_server)
        };
        if this.is_some() {
            return Err(HandshakeError::RingTwice);
        }
        check_event(&event)?;
        let AddRing { region, offset, log2_size, .. } = *ring;
        let place = RingPlace { region, offset, log2_size, event };
        place.check(&self.regions)?;
        if let Some(other) = other {
            place.check_apart(other)?;
        }
        *this = Some(place);
        Ok(())
    }

    fn conclude(&mut self, peer: String) -> Result<LinkLayout, HandshakeError> {
        let to_server = self.to_server.take().ok_or(HandshakeError::NoRing("to the server"))?;
        let to_client = self.to_client.take().ok_or(HandshakeError::NoRing("to the client"))?;
        let regions = std::mem::take(&mut self.regions);
        Ok(LinkLayout { role: Role::Server, regions, to_server, to_client, peer })
    }
}

fn need(file: Option<OwnedFd>, message: &Message) -> Result<OwnedFd, HandshakeError> {
    file.ok_or(HandshakeError::NoFile(message.name()))
}

/// Checks that `file` is an eventfd, and makes it non-blocking. Other files, such as pipes, could block a writer.
fn check_event(file: &OwnedFd) -> Result<(), HandshakeError> {
    let failed = |error: rustix::io::Errno| HandshakeError::Event(error.to_string());
    // The kernel's own name for the file. Asking the file itself could block, if it is on a network file system.
    let name = rustix::fs::readlink(format!("/proc/self/fd/{}", file.as_raw_fd()), Vec::new());
    let name = name.map_err(failed)?;
    if name.as_bytes() != b"anon_inode:[eventfd]" {
        return Err(HandshakeError::Event(Text::<32>::new(&name.to_string_lossy()).to_string()));
    }
    let flags = fcntl_getfl(file).map_err(failed)?;
    fcntl_setfl(file, flags | OFlags::NONBLOCK).map_err(failed)
}
