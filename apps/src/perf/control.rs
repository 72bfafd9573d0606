//! The control messages between client and server: JSON over weft itself, each with the version of this
//! protocol.
//!
//! ```text
//!   client ── request ─▶ server        the test, in a datagram
//!          ◀─ cookie ───               in a datagram without payload: the server keeps nothing of the request
//!          ── request ─▶               the same, with the cookie: it was not made in the client's name by another host
//!          ◀─ ready ────               the number of its session, or refused, and why
//!          ══ messages ═▶              tagged with the session and the connection (latency: and back)
//!          ── finished ─▶              their number, tagged with the session
//!          ◀─ report ───               the server's figures
//! ```
//!
//! The cookie is header data of its datagram. As datagrams may be lost, a client asks again as long as it has no answer. A datagram is
//! there in full or not at all, so that nobody can hold a receive for requests; other messages reach a server only with a session.

use super::plan::Test;
use super::report::EndReport;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use weft::{
    Addr, CallError, ConnectionId, Endpoint, Error, OperationId, ReceiveOptions, SendBuffer, SendOptions,
};

/// Changes with every change of these messages.
const VERSION: u32 = 5;
/// Bytes of the longest control message.
pub(super) const LONGEST: usize = 4096;
/// The tag of the server's control messages. Tags of data messages have the session in their upper half.
pub(super) const TAG: u64 = u64::from_be_bytes(*b"weftperf");
/// The context of control messages; data messages have others.
pub(super) const CONTROL: u64 = u64::MAX;
/// The context of datagrams with cookies, and of those with requests where they are sent.
pub(super) const COOKIE: u64 = u64::MAX - 1;
/// Sessions count from 1 to this, which is below the upper half of [`TAG`].
pub(super) const LAST_SESSION: u32 = 0x3fff_ffff;

/// The tag of messages of a connection.
pub(super) fn data_tag(session: u32, lane: u32) -> u64 {
    u64::from(session) << 32 | u64::from(lane)
}

/// The tag of the message that says that the client of a session has finished: no connection has this number.
pub(super) fn finished_tag(session: u32) -> u64 {
    data_tag(session, u32::MAX)
}

/// A control message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Message {
    /// The client wants this to be run.
    Request {
        /// The test.
        test: Test,
        /// The cookie that the server has sent to the client's host, if that has arrived.
        cookie: Option<u64>,
        /// A number that the client has drawn: when the same request comes again, it begins no other test.
        number: u64,
    },
    /// The server has posted its receives for it.
    Ready { session: u32 },
    /// The server will not run it.
    Refused { reason: String },
    /// All messages of the test have been delivered.
    Finished { messages: u64 },
    /// The server's figures.
    Report(EndReport),
}

#[derive(Serialize, Deserialize)]
struct Envelope {
    weft_perf: u32,
    message: Message,
}

#[derive(Deserialize)]
struct Version {
    weft_perf: u32,
}

/// Why a control message is not understood.
#[derive(Debug, Error)]
pub(super) enum ControlError {
    /// Another version of this protocol.
    #[error(
        "it speaks version {0} of weft perf's protocol, and this weft version {VERSION}: use the same weft"
    )]
    Version(u32),
    /// It is no control message.
    #[error("it sent a malformed control message: {0}")]
    Malformed(serde_json::Error),
}

/// The bytes of `message`.
pub(super) fn encode(message: Message) -> Vec<u8> {
    let envelope = Envelope { weft_perf: VERSION, message };
    // Only maps whose keys are no strings fail.
    serde_json::to_vec(&envelope).unwrap_or_default()
}

/// The message that `bytes` are.
pub(super) fn decode(bytes: &[u8]) -> Result<Message, ControlError> {
    // The version first: the rest of another version's messages may look different.
    let version: Version = serde_json::from_slice(bytes).map_err(ControlError::Malformed)?;
    if version.weft_perf != VERSION {
        return Err(ControlError::Version(version.weft_perf));
    }
    let envelope: Envelope = serde_json::from_slice(bytes).map_err(ControlError::Malformed)?;
    Ok(envelope.message)
}

/// Posts a receive for a control message of `peer`.
pub(super) fn post_receive(
    endpoint: &mut Endpoint,
    peer: Addr,
    tag: u64,
    context: u64,
) -> Result<OperationId, Error> {
    let options = ReceiveOptions::default().tag(tag).from(peer).context(context);
    endpoint.receive_with(vec![0; LONGEST], options).map_err(|refused| refused.error)
}

/// Makes room for a request.
pub(super) fn post_request_receive(endpoint: &mut Endpoint) -> Result<(), Error> {
    endpoint.receive_datagram(vec![0; LONGEST], CONTROL).map_err(|refused| refused.error)?;
    Ok(())
}

/// Sends a request. It may be lost, also because there is no room or no way for it now.
///
/// # Errors
/// Packets of the endpoint are too short for it.
pub(super) fn send_request(endpoint: &mut Endpoint, peer: Addr, message: Message) -> Result<(), Error> {
    match endpoint.send_datagram(peer, encode(message), 0, COOKIE) {
        Err(refused) if matches!(refused.error, Error::Refused(CallError::DatagramTooLong { .. })) => {
            Err(refused.error)
        }
        _ => Ok(()),
    }
}

/// Sends `buffer` to `peer` on the connection that is there, or on a new one: a connection closes by itself when it is
/// silent for long.
#[inline]
pub(super) fn send_to(
    endpoint: &mut Endpoint,
    peer: Addr,
    connection: &mut Option<ConnectionId>,
    buffer: SendBuffer,
    options: SendOptions,
) -> Result<(), Error> {
    let buffer = match *connection {
        None => buffer,
        Some(present) => match endpoint.send_with(present, buffer, options) {
            Ok(_) => return Ok(()),
            Err(refused) if refused.error == Error::Refused(CallError::NotOpen) => refused.buffer,
            Err(refused) => return Err(refused.error),
        },
    };
    let new = endpoint.connect(peer)?;
    *connection = Some(new);
    endpoint.send_with(new, buffer, options).map_err(|refused| refused.error)?;
    Ok(())
}

/// Sends a control message, as [`send_to`].
pub(super) fn send(
    endpoint: &mut Endpoint,
    peer: Addr,
    connection: &mut Option<ConnectionId>,
    tag: u64,
    message: Message,
) -> Result<(), Error> {
    let options = SendOptions::default().tag(tag).context(CONTROL);
    send_to(endpoint, peer, connection, encode(message).into(), options)
}

#[cfg(test)]
mod tests {
    use super::super::mode::Mode;
    use super::super::plan::Limit;
    use super::*;
    use proptest::prelude::*;

    fn any_test() -> impl Strategy<Value = Test> {
        let mode = prop::sample::select(vec![Mode::Throughput, Mode::Rate, Mode::Latency]);
        let limit =
            prop_oneof![any::<u64>().prop_map(Limit::Messages), any::<u64>().prop_map(Limit::Microseconds)];
        (mode, any::<u64>(), limit, any::<u16>(), any::<u32>(), any::<bool>(), ".{0,20}").prop_map(
            |(mode, size, limit, connections, depth, verify, cc)| Test {
                mode,
                size,
                limit,
                warmup_us: size / 3,
                connections,
                depth,
                verify,
                payload: depth / 2,
                room: depth / 3,
                cc,
                credit: verify,
            },
        )
    }

    proptest! {
        #[test]
        fn messages_survive_the_wire(test in any_test(), session: u32, cookie: Option<u64>, number: u64, reason in ".{0,40}") {
            let report = Message::Report(EndReport { messages: test.size, ..EndReport::default() });
            let others = [
                Message::Ready { session },
                Message::Refused { reason },
                Message::Finished { messages: 3 },
            ];
            for message in others.into_iter().chain([Message::Request { test, cookie, number }, report]) {
                let bytes = encode(message.clone());
                prop_assert!(bytes.len() <= LONGEST);
                prop_assert_eq!(decode(&bytes).unwrap(), message);
            }
        }

        #[test]
        fn whatever_arrives_is_an_error_at_worst(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(decode(&bytes).is_err());
        }
    }

    #[test]
    fn other_versions_are_named() {
        let error = decode(br#"{"weft_perf":7,"message":{"what":1}}"#).unwrap_err();
        assert!(error.to_string().starts_with("it speaks version 7 of weft perf's protocol"), "{error}");
        let error = decode(br#"{"weft_perf":5,"message":{"what":1}}"#).unwrap_err();
        assert!(matches!(error, ControlError::Malformed(_)), "{error}");
        let extra = br#"{"weft_perf":5,"message":{"ready":{"session":1,"more":2}}}"#;
        assert!(decode(extra).is_err());
    }

    #[test]
    fn tags_of_data_are_never_those_of_control() {
        assert!(finished_tag(LAST_SESSION) < TAG);
    }
}
