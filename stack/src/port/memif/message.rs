//! The messages of the control channel: 128 bytes each, in the processor's byte order, without gaps.
//!
//! | type | name | from | fields |
//! |---|---|---|---|
//! | 1 | ACK | server | |
//! | 2 | HELLO | server | name 32, lowest version u16, highest version u16, highest region u16, highest ring to the client u16, highest ring to the server u16, log₂ of most slots u8 |
//! | 3 | INIT | client | version u16, interface u32, mode u8, secret 24, name 32 |
//! | 4 | ADD_REGION | client | index u16, bytes u64; a descriptor of the memory |
//! | 5 | ADD_RING | client | flags u16, index u16, region u16, offset u32, log₂ of slots u8, bytes of private header u16; an eventfd |
//! | 6 | CONNECT | client | name of the interface 32 |
//! | 7 | CONNECTED | server | name of the interface 32 |
//! | 8 | DISCONNECT | both | code u32, reason 96 |
//!
//! Facts from the protocol's definition in DPDK, `drivers/net/memif/memif.h`.
#![forbid(unsafe_code)]

use std::fmt;

use super::handshake_error::HandshakeError;

/// Bytes of a message.
pub(super) const MESSAGE: usize = 128;
/// Version 2.0, the only one there is.
pub(super) const VERSION: u16 = 0x0200;
/// The mode of an interface that carries Ethernet frames.
pub(super) const ETHERNET: u8 = 0;
/// The flag of a ring from the client to the server.
pub(super) const TO_SERVER: u16 = 1;

/// The name that this side tells its peers.
pub(super) const APPLICATION: &str = concat!("weft ", env!("CARGO_PKG_VERSION"));

/// A message, its strings as they are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Ack,
    Hello(Hello),
    Init(Init),
    AddRegion { index: u16, size: u64 },
    AddRing(AddRing),
    Connect { interface: Text<32> },
    Connected { interface: Text<32> },
    Disconnect { code: u32, reason: Text<96> },
}

/// The limits of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) name: Text<32>,
    pub(super) min_version: u16,
    pub(super) max_version: u16,
    /// The highest index of a region.
    pub(super) max_region: u16,
    /// The highest index of a ring from the server to the client.
    pub(super) max_to_client: u16,
    /// The highest index of a ring from the client to the server.
    pub(super) max_to_server: u16,
    pub(super) max_log2_ring: u8,
}

/// The request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Init {
    pub(super) version: u16,
    pub(super) id: u32,
    pub(super) mode: u8,
    pub(super) secret: Text<24>,
    pub(super) name: Text<32>,
}

/// Where a ring lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddRing {
    pub(super) flags: u16,
    pub(super) index: u16,
    pub(super) region: u16,
    pub(super) offset: u32,
    pub(super) log2_size: u8,
    pub(super) private_header: u16,
}

/// A string in a field of `N` bytes; all bytes after its first zero are zero.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Text<const N: usize>([u8; N]);

impl<const N: usize> Text<N> {
    /// As much of `text` as fits with a zero after it.
    pub(super) fn new(text: &str) -> Text<N> {
        let mut len = text.len().min(N - 1);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        Text::filled(&text.as_bytes()[..len])
    }

    /// As much of `bytes` as fits; they may fill the field to its end.
    pub(super) fn filled(bytes: &[u8]) -> Text<N> {
        let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len()).min(N);
        let mut field = [0; N];
        field[..len].copy_from_slice(&bytes[..len]);
        Text(field)
    }

    /// Whether the string is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.0[0] == 0
    }

    fn bytes(&self) -> &[u8] {
        let len = self.0.iter().position(|&byte| byte == 0).unwrap_or(N);
        &self.0[..len]
    }
}

/// Safe to print whatever the peer has written: control characters are escaped.
impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in String::from_utf8_lossy(self.bytes()).chars() {
            if letter.is_control() {
                write!(f, "{}", letter.escape_default())
            } else {
                write!(f, "{letter}")
            }?;
        }
        Ok(())
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl Message {
    /// The message that ends a link or a handshake.
    pub(super) fn disconnect(reason: &str) -> Message {
        Message::Disconnect { code: 0, reason: Text::new(reason) }
    }

    /// The name of the message in the protocol.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Message::Ack => "ACK",
            Message::Hello(_) => "HELLO",
            Message::Init(_) => "INIT",
            Message::AddRegion { .. } => "ADD_REGION",
            Message::AddRing(_) => "ADD_RING",
            Message::Connect { .. } => "CONNECT",
            Message::Connected { .. } => "CONNECTED",
            Message::Disconnect { .. } => "DISCONNECT",
        }
    }

    /// Whether the message carries a descriptor.
    pub(super) fn has_file(&self) -> bool {
        matches!(self, Message::AddRegion { .. } | Message::AddRing(_))
    }

    /// The bytes of the message.
    pub(super) fn encode(&self) -> [u8; MESSAGE] {
        let mut to = Writer { bytes: [0; MESSAGE], at: 0 };
        match *self {
            Message::Ack => to.u16(1),
            Message::Hello(hello) => {
                to.u16(2).put(&hello.name.0).u16(hello.min_version).u16(hello.max_version);
                to.u16(hello.max_region).u16(hello.max_to_client).u16(hello.max_to_server);
                to.put(&[hello.max_log2_ring])
            }
            Message::Init(init) => {
                to.u16(3).u16(init.version).u32(init.id).put(&[init.mode]);
                to.put(&init.secret.0).put(&init.name.0)
            }
            Message::AddRegion { index, size } => to.u16(4).u16(index).put(&size.to_ne_bytes()),
            Message::AddRing(ring) => {
                to.u16(5).u16(ring.flags).u16(ring.index).u16(ring.region).u32(ring.offset);
                to.put(&[ring.log2_size]).u16(ring.private_header)
            }
            Message::Connect { interface } => to.u16(6).put(&interface.0),
            Message::Connected { interface } => to.u16(7).put(&interface.0),
            Message::Disconnect { code, reason } => to.u16(8).u32(code).put(&reason.0),
        };
        to.bytes
    }

    /// Reads a message. Bytes behind its fields are ignored.
    ///
    /// # Errors
    /// `bytes` have another length than [`MESSAGE`], or the type is unknown.
    pub(super) fn decode(bytes: &[u8]) -> Result<Message, HandshakeError> {
        let bytes = bytes.try_into().map_err(|_| HandshakeError::Length(bytes.len()))?;
        let mut from = Reader { bytes, at: 0 };
        Ok(match from.u16() {
            1 => Message::Ack,
            2 => Message::Hello(Hello {
                name: from.text(),
                min_version: from.u16(),
                max_version: from.u16(),
                max_region: from.u16(),
                max_to_client: from.u16(),
                max_to_server: from.u16(),
                max_log2_ring: from.u8(),
            }),
            3 => Message::Init(Init {
                version: from.u16(),
                id: from.u32(),
                mode: from.u8(),
                secret: from.text(),
                name: from.text(),
            }),
            4 => Message::AddRegion { index: from.u16(), size: u64::from_ne_bytes(from.take()) },
            5 => Message::AddRing(AddRing {
                flags: from.u16(),
                index: from.u16(),
                region: from.u16(),
                offset: from.u32(),
                log2_size: from.u8(),
                private_header: from.u16(),
            }),
            6 => Message::Connect { interface: from.text() },
            7 => Message::Connected { interface: from.text() },
            8 => Message::Disconnect { code: from.u32(), reason: from.text() },
            other => return Err(HandshakeError::Type(other)),
        })
    }
}

/// How a peer is shown: its application and its interface.
pub(super) fn peer_name(application: &Text<32>, interface: &Text<32>) -> String {
    format!("{application} ({interface})")
}

/// Writes fields one after the other. The longest message has 102 bytes, so no field lies beyond the end.
struct Writer {
    bytes: [u8; MESSAGE],
    at: usize,
}

impl Writer {
    fn put(&mut self, field: &[u8]) -> &mut Writer {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
        self
    }

    fn u16(&mut self, value: u16) -> &mut Writer {
        self.put(&value.to_ne_bytes())
    }

    fn u32(&mut self, value: u32) -> &mut Writer {
        self.put(&value.to_ne_bytes())
    }
}

struct Reader<'a> {
    bytes: &'a [u8; MESSAGE],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        field.copy_from_slice(&self.bytes[self.at..self.at + N]);
        self.at += N;
        field
    }

    fn u8(&mut self) -> u8 {
        u8::from_ne_bytes(self.take())
    }

    fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    fn text<const N: usize>(&mut self) -> Text<N> {
        Text::filled(&self.take::<N>())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text<const N: usize>() -> impl Strategy<Value = Text<N>> {
        prop::collection::vec(any::<u8>(), 0..=N).prop_map(|bytes| Text::filled(&bytes))
    }

    fn hello() -> impl Strategy<Value = Message> {
        let numbers = (any::<[u16; 5]>(), any::<u8>());
        (text(), numbers).prop_map(|(name, ([min, max, region, client, server], log2))| {
            Message::Hello(Hello {
                name,
                min_version: min,
                max_version: max,
                max_region: region,
                max_to_client: client,
                max_to_server: server,
                max_log2_ring: log2,
            })
        })
    }

    fn message() -> impl Strategy<Value = Message> {
        let init = (any::<(u16, u32, u8)>(), text(), text());
        let init = init.prop_map(|((version, id, mode), secret, name)| {
            Message::Init(Init { version, id, mode, secret, name })
        });
        let ring = any::<(u16, u16, u16, u32, u8, u16)>();
        let ring = ring.prop_map(|(flags, index, region, offset, log2_size, private_header)| {
            Message::AddRing(AddRing { flags, index, region, offset, log2_size, private_header })
        });
        prop_oneof![
            Just(Message::Ack),
            hello(),
            init,
            any::<(u16, u64)>().prop_map(|(index, size)| Message::AddRegion { index, size }),
            ring,
            text().prop_map(|interface| Message::Connect { interface }),
            text().prop_map(|interface| Message::Connected { interface }),
            (any::<u32>(), text()).prop_map(|(code, reason)| Message::Disconnect { code, reason }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(message in message()) {
            prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
        }

        #[test]
        fn any_bytes_are_a_message_or_none(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            kind in 0u16..10,
        ) {
            let mut bytes = bytes;
            if let Some(start) = bytes.first_chunk_mut() {
                *start = kind.to_ne_bytes();
            }
            let is_known = bytes.len() == MESSAGE && (1..=8).contains(&kind);
            let read = Message::decode(&bytes);
            prop_assert_eq!(read.is_ok(), is_known);
            if let Ok(message) = read {
                // The message holds everything that the bytes say.
                prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
            }
        }
    }

    /// By hand, from the structures in DPDK's `memif.h`.
    #[test]
    fn fields_lie_where_other_implementations_have_them() {
        let bytes = Message::Hello(Hello {
            name: Text::new("vpp"),
            min_version: 0x0102,
            max_version: 0x0304,
            max_region: 0x0506,
            max_to_client: 0x0708,
            max_to_server: 0x090a,
            max_log2_ring: 14,
        })
        .encode();
        assert_eq!((&bytes[..2], &bytes[2..6]), (&2u16.to_ne_bytes()[..], &b"vpp\0"[..]));
        let words: Vec<u16> = bytes[34..44].chunks(2).map(|w| u16::from_ne_bytes([w[0], w[1]])).collect();
        assert_eq!(words, [0x0102, 0x0304, 0x0506, 0x0708, 0x090a]);
        assert_eq!((bytes[44], &bytes[45..]), (14, &[0; 83][..]));

        let init = Init { version: 0x0200, id: 7, mode: 0, secret: Text::filled(b"s"), name: Text::new("n") };
        let bytes = Message::Init(init).encode();
        assert_eq!(bytes[..4], [3u16.to_ne_bytes(), 0x0200u16.to_ne_bytes()].concat());
        assert_eq!((&bytes[4..8], bytes[8]), (&7u32.to_ne_bytes()[..], 0));
        assert_eq!((bytes[9], bytes[33], bytes[65]), (b's', b'n', 0));

        let bytes = Message::AddRegion { index: 1, size: 0x1_0000_0002 }.encode();
        assert_eq!(
            (&bytes[2..4], &bytes[4..12]),
            (&1u16.to_ne_bytes()[..], &0x1_0000_0002u64.to_ne_bytes()[..])
        );

        let ring = AddRing { flags: 1, index: 2, region: 3, offset: 4, log2_size: 5, private_header: 6 };
        let bytes = Message::AddRing(ring).encode();
        let words: Vec<u16> = bytes[..8].chunks(2).map(|w| u16::from_ne_bytes([w[0], w[1]])).collect();
        assert_eq!((words, &bytes[8..12]), (vec![5, 1, 2, 3], &4u32.to_ne_bytes()[..]));
        assert_eq!((bytes[12], &bytes[13..15]), (5, &6u16.to_ne_bytes()[..]));

        let bytes = Message::Disconnect { code: 9, reason: Text::new("why") }.encode();
        assert_eq!((&bytes[2..6], &bytes[6..10]), (&9u32.to_ne_bytes()[..], &b"why\0"[..]));
        assert_eq!(
            Message::Connect { interface: Text::new("x") }.encode()[..3],
            [6u16.to_ne_bytes().as_slice(), b"x"].concat()
        );
        assert_eq!(Message::Connected { interface: Text::new("x") }.encode()[0..2], 7u16.to_ne_bytes());
        assert_eq!(Message::Ack.encode()[0..2], 1u16.to_ne_bytes());
    }

    #[test]
    fn strings_are_cut_between_letters_and_shown_harmlessly() {
        let long = Text::<32>::new(&"ä".repeat(40));
        assert_eq!(long.to_string(), "ä".repeat(15), "31 bytes hold 15 letters of two");
        let secret = Text::<24>::filled(&[b's'; 30]);
        assert_eq!(secret.to_string(), "s".repeat(24), "no zero is needed at the end");
        let rude = Text::<32>::filled(b"\x1b[2Jx\nok\xff");
        assert_eq!(rude.to_string(), "\\u{1b}[2Jx\\nok\u{fffd}");
        assert!(Text::<32>::filled(b"\0hidden").is_empty());
    }
}
