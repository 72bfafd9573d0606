//! The handshake of a client: a state machine that takes a message and returns an answer, without I/O.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};

use super::config::{MAX_LOG2_RING, MemifConfig};
use super::handshake_error::HandshakeError;
use super::link_layout::{LinkLayout, MAX_REGIONS, MakeOffer, Offer, RingPlace};
use super::message::{
    APPLICATION, AddRing, ETHERNET, Hello, Init, Message, TO_SERVER, Text, VERSION, peer_name,
};

/// The handshake with one server, from the connection to the link.
#[derive(Debug)]
pub(super) struct Handshake {
    config: MemifConfig,
    /// The offer and the server's name, once the server has sent HELLO.
    offer: Option<(Offer, Text<32>)>,
    /// How many messages have been sent.
    sent: usize,
}

/// The client's reaction to a message.
#[derive(Debug)]
pub(super) enum Answer<'a> {
    /// Send this message, with this descriptor.
    Send(Message, Option<BorrowedFd<'a>>),
    /// There is a link.
    Link(LinkLayout),
    /// The server has left, and said why.
    Left(String),
}

impl Handshake {
    pub(super) fn new(config: &MemifConfig) -> Handshake {
        Handshake { config: config.clone(), offer: None, sent: 0 }
    }

    /// Takes a message. Calls `make_offer` for the memory once the server has told its limits.
    ///
    /// # Errors
    /// Why there will be no link.
    pub(super) fn take(
        &mut self,
        message: Message,
        make_offer: &MakeOffer,
    ) -> Result<Answer<'_>, HandshakeError> {
        match message {
            Message::Disconnect { reason, .. } => return Ok(Answer::Left(reason.to_string())),
            Message::Hello(hello) if self.offer.is_none() => {
                self.offer = Some((self.make_offer(&hello, make_offer)?, hello.name));
            }
            Message::Ack if (1..self.last()).contains(&self.sent) => {}
            Message::Connected { interface } if self.sent == self.last() => {
                return self.conclude(&interface);
            }
            other => return Err(HandshakeError::Order { came: other.name(), expected: self.expected() }),
        }
        self.sent += 1;
        self.message(self.sent)
    }

    fn make_offer(&mut self, hello: &Hello, make_offer: &MakeOffer) -> Result<Offer, HandshakeError> {
        let &Hello { min_version: lowest, max_version: highest, .. } = hello;
        if !(lowest..=highest).contains(&VERSION) {
            return Err(HandshakeError::Version { lowest, highest });
        }
        if hello.max_log2_ring == 0 {
            return Err(HandshakeError::Slots(hello.max_log2_ring));
        }
        self.config.log2_ring = self.config.log2_ring.min(hello.max_log2_ring).min(MAX_LOG2_RING);
        let offer = make_offer(&self.config).map_err(|error| HandshakeError::Offer(error.to_string()))?;
        if offer.files.len() != offer.layout.regions.len() {
            return Err(HandshakeError::Offer("not a descriptor for each region".to_owned()));
        }
        let (needed, allowed) =
            (offer.layout.regions.len(), (usize::from(hello.max_region) + 1).min(MAX_REGIONS));
        if needed > allowed {
            return Err(HandshakeError::TooFewRegions { needed, allowed });
        }
        offer.layout.to_server.check(&offer.layout.regions)?;
        offer.layout.to_client.check(&offer.layout.regions)?;
        offer.layout.to_server.check_apart(&offer.layout.to_client)?;
        Ok(offer)
    }

    /// The number of the last message: INIT, the regions, two rings, CONNECT.
    fn last(&self) -> usize {
        self.offer.as_ref().map_or(0, |(offer, _)| offer.files.len() + 4)
    }

    fn expected(&self) -> &'static str {
        match self.sent {
            0 => "HELLO",
            sent if sent == self.last() => "CONNECTED",
            _ => "ACK",
        }
    }

    /// The `number`th message, counted from 1. The client sends one at a time and waits for the answer.
    fn message(&self, number: usize) -> Result<Answer<'_>, HandshakeError> {
        let Some((offer, _)) = &self.offer else {
            return Err(HandshakeError::Order { came: "nothing", expected: self.expected() });
        };
        let Offer { layout, files } = offer;
        let (message, file) = match number.checked_sub(2) {
            None => (self.init(), None),
            Some(at) if at < files.len() => {
                let size = layout.regions.get(at).map_or(0, |region| region.len() as u64);
                (Message::AddRegion { index: at as u16, size }, Some(files[at].as_fd()))
            }
            Some(at) if at == files.len() => add_ring(&layout.to_server, TO_SERVER),
            Some(at) if at == files.len() + 1 => add_ring(&layout.to_client, 0),
            Some(_) => (Message::Connect { interface: Text::new(&self.config.name) }, None),
        };
        Ok(Answer::Send(message, file))
    }

    fn init(&self) -> Message {
        Message::Init(Init {
            version: VERSION,
            id: self.config.id,
            mode: ETHERNET,
            secret: Text::filled(self.config.secret.as_bytes()),
            name: Text::new(APPLICATION),
        })
    }

    fn conclude(&mut self, interface: &Text<32>) -> Result<Answer<'static>, HandshakeError> {
        let expected = self.expected();
        let (offer, server) =
            self.offer.take().ok_or(HandshakeError::Order { came: "CONNECTED", expected })?;
        let peer = peer_name(&server, interface);
        Ok(Answer::Link(LinkLayout { peer, ..offer.layout }))
    }
}

fn add_ring(place: &RingPlace, flags: u16) -> (Message, Option<BorrowedFd<'_>>) {
    let &RingPlace { region, offset, log2_size, .. } = place;
    let ring = AddRing { flags, index: 0, region, offset, log2_size, private_header: 0 };
    (Message::AddRing(ring), Some(place.event.as_fd()))
}
