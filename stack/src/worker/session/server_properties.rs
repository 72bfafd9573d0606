//! Properties of what passes between an application and a server that do not trust each other: requests to join and their
//! replies, reports, and a server that writes anything into the rings. Property tests and a fuzz target share them.

use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use super::join::{Asked, Joined, REPLY, REQUEST, read_reply, read_request, request};
use super::report::REQUESTS;
use super::{
    Client, ClientError, ConnectionHandle, Extent, Found, OperationHandle, Report, Request, SessionConfig,
    Slot,
};
use crate::choices::Choices;
use crate::fep::{CallError, ConnectOptions, Failure, ReceiveError, SendError};
use crate::packet::Addr;
use crate::region::Region;
use crate::ses::{Claim, Matching, Source, Waiting};
use crate::wire::pds::{NackCode, PdcId, Psn};
use crate::wire::ses::ReturnCode;
use crate::worker::ring::Producer;
use crate::worker::session::link::Link;
use crate::worker::session::world::SMALL;

/// Any bytes are a request that asks for what it would be written for again, or refused with the reason; and what it asks
/// for is laid out in memory, or refused as well.
pub fn any_bytes_are_a_request_or_refused(bytes: &[u8]) {
    let message: [u8; REQUEST] = Choices(bytes).bytes();
    match read_request(&message) {
        Ok(Asked::Facts) => assert_eq!(read_request(&request(&Asked::Facts)), Ok(Asked::Facts)),
        Ok(asked @ Asked::Session(config, process)) => {
            assert_eq!(read_request(&request(&asked)), Ok(asked));
            assert!(process.is_some() || message[12..16] == [0; 4]);
            let within = config.within(&SessionConfig::default());
            if let Ok(layout) = config.layout() {
                assert!(layout.reports < layout.memory && layout.memory < layout.total);
                assert_eq!(layout.total - layout.memory, config.memory as usize);
            } else {
                let is_ring = |slots: u32| slots > 1 && slots.is_power_of_two();
                assert!(within.is_err() || !is_ring(config.commands) || !is_ring(config.reports));
            }
        }
        Err(why) => assert!(!why.is_empty()),
    }
}

/// Any bytes are a server's reply, or an error that names the server's path in one line of text.
pub fn any_bytes_are_a_reply_or_an_error(bytes: &[u8]) {
    let message: [u8; REPLY] = Choices(bytes).bytes();
    match read_reply(Path::new("a.sock"), &message) {
        Ok(Joined { host, .. }) => assert!(host.is_none() || message[32] != 0),
        Err(error) => assert!(error.to_string().starts_with("a.sock: ")),
    }
}

/// Words are a report in its only form, or none.
pub fn any_words_are_a_report_in_its_only_form_or_none(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let slot: Slot = choices.words();
    if let Ok(report) = Report::decode(&slot) {
        assert_eq!(report.encode(), slot);
        let _ = format!("{report:?}");
        if let Report::Refused { error, .. } = report {
            assert!(!error.to_string().is_empty());
        }
    }
}

/// A server that writes any reports, and anything else into the rings: the application's calls return, each of its operations
/// and connections ends once, and it hears of nothing that it has not asked for.
pub fn a_server_that_writes_anything_is_survived(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let mut bad = Bad::new();
    while let Some(choice) = choices.next() {
        match choice % 8 {
            0 | 1 => bad.report(&mut choices),
            2 => bad.scribble(&mut choices),
            3 | 4 => bad.ask(&mut choices),
            5 => bad.end(&mut choices),
            6 => drop(bad.client.wait(Duration::ZERO)),
            _ => bad.listen(),
        }
    }
    bad.listen();
}

/// An application, and all that it has asked for of a server that is played by the bytes.
struct Bad {
    client: Client,
    region: Region,
    reports: Producer<8>,
    _link: Link,
    /// By context.
    asked: Vec<Pending>,
}

#[derive(Clone, Copy)]
enum Pending {
    Operation(OperationHandle),
    Connection(ConnectionHandle),
    Ended,
}

impl Bad {
    fn new() -> Bad {
        let config = SessionConfig { memory: 4 << 10, ..SMALL };
        let layout = config.layout().expect("possible");
        let region = Region::allocate(layout.total).expect("memory");
        let (own, link) = Link::pair().expect("sockets");
        let client = Client::new(&config, &region, own, None, Addr(0), 1).expect("it fits");
        let reports = Producer::at(&region, layout.reports, config.reports).expect("it fits");
        Bad { client, region, reports, _link: link, asked: Vec::new() }
    }

    /// Writes a report, or words that are none.
    fn report(&mut self, choices: &mut Choices<'_>) {
        let words = match choices.byte() {
            255 => choices.words(),
            kind => choices.report(kind).encode(),
        };
        let _ = self.reports.push(&words);
    }

    /// Writes a small number where the rings keep theirs.
    fn scribble(&mut self, choices: &mut Choices<'_>) {
        let [ring, line, value] = choices.bytes();
        let config = SessionConfig { memory: 4 << 10, ..SMALL };
        let ring = if ring & 1 == 0 { 0 } else { config.layout().expect("possible").reports as u64 };
        let at = ring + 128 * u64::from(line % 3) + 4 * u64::from(line >> 7);
        let value = value as i8 as u32;
        self.region.slice(at, 4).expect("within").write(0, &value.to_ne_bytes());
    }

    fn ask(&mut self, choices: &mut Choices<'_>) {
        let context = self.asked.len() as u64;
        let extent = Extent { region: 0, offset: 0, len: 16 };
        let connection = self.asked.iter().rev().find_map(|asked| match asked {
            Pending::Connection(connection) => Some(*connection),
            _ => None,
        });
        let client = &mut self.client;
        let asked = match (choices.byte() % 8, connection) {
            (0, _) => client.connect(Addr(1), ConnectOptions::default(), context).map(Pending::Connection),
            (1, Some(connection)) => {
                client.send(connection, extent, None, 0, context).map(Pending::Operation)
            }
            (2, _) => client
                .receive_many(extent, None, Matching::Untagged, NonZeroU32::MIN, context)
                .map(Pending::Operation),
            (3, _) => {
                client.peek(None, Matching::Untagged, Found::IsClaimed, context).map(Pending::Operation)
            }
            (4, _) => client.peer([10, 0, 0, 9].into(), None, context).map(Pending::Operation),
            (5, _) => client.send_datagram(Addr(1).into(), extent, 0, context).map(Pending::Operation),
            (6, _) => client.receive_datagram(extent, context).map(Pending::Operation),
            _ => client.receive(extent, None, Matching::Untagged, context).map(Pending::Operation),
        };
        self.asked.extend(asked.ok());
    }

    /// Cancels or closes something.
    fn end(&mut self, choices: &mut Choices<'_>) {
        let [which, how] = choices.bytes();
        let _ = match self.asked.get(usize::from(which)) {
            Some(Pending::Operation(operation)) => self.client.cancel(*operation),
            Some(Pending::Connection(connection)) if how & 1 == 0 => self.client.close(*connection),
            Some(Pending::Connection(connection)) => self.client.abort(*connection),
            Some(Pending::Ended) | None => Ok(()),
        };
    }

    fn listen(&mut self) {
        loop {
            let event = match self.client.poll() {
                Ok(Some(event)) => event,
                Err(ClientError::Nonsense(why)) => {
                    assert!(!why.to_string().is_empty());
                    continue;
                }
                Ok(None) | Err(_) => return,
            };
            let ended = match event.report {
                Report::Connected { .. } | Report::Received { more: true, .. } => false,
                Report::Refused { request, .. } => !matches!(
                    request,
                    Request::Cancel | Request::Close | Request::Abort | Request::Discard | Request::Unknown
                ),
                _ => true,
            };
            // A refused cancel may have been of something that has ended.
            let Some(asked) = self.asked.get_mut(event.context as usize) else {
                assert_eq!(event.context, 0, "{event:?}");
                continue;
            };
            if ended {
                assert!(!matches!(asked, Pending::Ended), "ended twice: {event:?}");
                *asked = Pending::Ended;
            }
        }
    }
}

impl Choices<'_> {
    fn words(&mut self) -> Slot {
        std::array::from_fn(|_| u64::from_le_bytes(self.bytes()))
    }

    /// A report in its form, which may be one on nothing that there is.
    fn report(&mut self, kind: u8) -> Report {
        let [number, how, more] = self.bytes();
        let number = u32::from(number % 18);
        let failure = Failure::Refused { pdc: PdcId(1), peer: Addr(1), psn: Psn(2), code: NackCode(more) };
        let source = (how & 1 == 0).then_some(Source { peer: Addr(1), process: more.into() });
        let message = Waiting { source: Source::from(Addr(1)), tag: None, header_data: 0, len: more.into() };
        match kind % 7 {
            0 => Report::Connected { connection: number },
            1 => Report::Sent {
                operation: number,
                retransmissions: 1,
                result: match how % 3 {
                    0 => Ok(()),
                    1 => Err(SendError::Failed(failure)),
                    _ => Err(SendError::Answered(ReturnCode(more))),
                },
            },
            2 => Report::Received {
                operation: number,
                source,
                tag: (how & 2 == 0).then_some(7),
                header_data: 0,
                len: more.into(),
                offset: 0,
                more: how & 4 == 0,
                result: if how & 8 == 0 { Ok(()) } else { Err(ReceiveError::PeerLost) },
            },
            3 => Report::Peeked {
                operation: number,
                message: (how & 1 == 0).then_some(message),
                claim: (how & 2 == 0).then_some(Claim::from_bits(more.into())),
            },
            4 => Report::Closed {
                connection: number,
                peer: Addr(1),
                result: if how & 1 == 0 { Ok(()) } else { Err(failure) },
            },
            5 => Report::Peer { operation: number, addr: Addr(more.into()) },
            _ => Report::Refused {
                request: REQUESTS[usize::from(how) % REQUESTS.len()],
                number,
                error: CallError::NotOpen,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::worker::session::join::reply;

    /// The seeds of the fuzz target: requests, replies and reports as they are sent, and a server that reports what it was asked
    /// for.
    #[test]
    fn the_seeds_are_requests_replies_and_reports() {
        let replied = |outcome, text: &str| {
            let (own, mut other) = std::os::unix::net::UnixStream::pair().unwrap();
            reply(&own, outcome, [7, 5, 1024], text, None).unwrap();
            drop(own);
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut other, &mut bytes).unwrap();
            bytes
        };
        let report = |kind: u8| {
            let words = Choices(&[1, 1, 0]).report(kind).encode();
            words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>()
        };
        let for_datagrams = SessionConfig { only_datagrams: true, ..SMALL };
        let seeds = [
            ("request_of_a_process", request(&Asked::Session(SMALL, Some(5))).to_vec()),
            ("request_for_datagrams", request(&Asked::Session(for_datagrams, None)).to_vec()),
            ("request_for_facts", request(&Asked::Facts).to_vec()),
            ("reply", replied(0, "10.0.0.1")),
            ("refusal", replied(1, "no place is left")),
            ("report_0", report(0)),
            ("report_1", report(1)),
            ("report_2", report(2)),
            // A connection, a message on it, and reports of each kind.
            (
                "server",
                [[3, 0], [3, 1]]
                    .concat()
                    .into_iter()
                    .chain((0..8).flat_map(|kind| [0, kind, 0, 0, 0, 7]))
                    .collect(),
            ),
        ];
        crate::seeds::check("joining", &seeds, |bytes| {
            any_bytes_are_a_request_or_refused(bytes);
            any_bytes_are_a_reply_or_an_error(bytes);
            any_words_are_a_report_in_its_only_form_or_none(bytes);
            a_server_that_writes_anything_is_survived(bytes);
        });
    }

    proptest! {
        #[test]
        fn requests_and_replies(bytes in prop::collection::vec(any::<u8>(), 0..300), change in (0usize..64, any::<u8>())) {
            any_bytes_are_a_request_or_refused(&bytes);
            any_bytes_are_a_reply_or_an_error(&bytes);
            let mut nearly = request(&Asked::Session(SMALL, Some(5)));
            nearly[change.0] = change.1;
            any_bytes_are_a_request_or_refused(&nearly);
        }

        #[test]
        fn servers(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            a_server_that_writes_anything_is_survived(&bytes);
        }
    }
}
