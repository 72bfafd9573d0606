//! The plan of a test: chosen by the client, checked by both ends.

use super::args::TestArgs;
use super::mode::Mode;
use serde::{Deserialize, Serialize};
use weft_cc::{CcChoice, Span};

/// The longest message of a test, bytes.
const LONGEST_MESSAGE: u64 = 1 << 30;
/// Most connections of a test.
pub(super) const MOST_CONNECTIONS: u16 = 1024;
/// Most messages of a connection that are under way.
pub(super) const MOST_DEPTH: u32 = 1 << 16;
/// The longest test.
const LONGEST_US: u64 = 24 * 3600 * 1_000_000;
/// The time for a byte of the messages under way at the slowest client that is waited for: 100 kB/s.
const SLOWEST_BYTE: Span = Span::from_us(10);

/// When a test ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Limit {
    /// After so many messages in all.
    Messages(u64),
    /// After so many microseconds.
    Microseconds(u64),
}

/// Bytes that a posted receive takes besides its memory, generously.
const RECEIVE: u64 = 512;

/// A test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Test {
    pub(super) mode: Mode,
    /// Bytes of a message.
    pub(super) size: u64,
    pub(super) limit: Limit,
    /// Microseconds at the beginning that are not measured.
    pub(super) warmup_us: u64,
    pub(super) connections: u16,
    /// Messages under way on each connection.
    pub(super) depth: u32,
    /// Whether each byte is checked.
    pub(super) verify: bool,
    /// Bytes of payload of a full packet that the client sends.
    pub(super) payload: u32,
    /// Bytes of payload of the longest packet that the client's port takes.
    pub(super) room: u32,
    /// The client's congestion control.
    pub(super) cc: String,
    /// Whether that uses credit, which both ends must.
    pub(super) credit: bool,
}

impl Test {
    /// The test that the options describe, with packets of `payload` bytes from a port that takes `room`, under `cc`.
    pub(super) fn new(args: &TestArgs, payload: u32, room: u32, cc: &CcChoice) -> Result<Test, String> {
        let (size, depth) = match args.mode {
            Mode::Throughput => (1 << 20, 4),
            Mode::Rate => (64, 256),
            Mode::Latency => (64, 1),
        };
        let us = |span: Span| span.as_ps() / 1_000_000;
        let test = Test {
            mode: args.mode,
            size: args.size.unwrap_or(size),
            limit: match (args.count, args.duration) {
                (Some(count), _) => Limit::Messages(count),
                (None, duration) => Limit::Microseconds(us(duration.unwrap_or(Span::from_ms(5000)))),
            },
            warmup_us: args.warmup.map_or(0, us),
            connections: args.connections,
            depth: args.depth.unwrap_or(depth),
            verify: args.verify,
            payload,
            room,
            cc: cc.name().to_owned(),
            credit: cc.uses_credit(),
        };
        test.check().map(|()| test)
    }

    /// Checks that the test makes sense: a peer may ask for anything.
    pub(super) fn check(&self) -> Result<(), String> {
        let within = |what: &str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                Ok(())
            } else {
                Err(format!("{what}: expected {least} to {most} instead of {value}"))
            }
        };
        within("bytes of a message", self.size, 0, LONGEST_MESSAGE)?;
        within("connections", self.connections.into(), 1, MOST_CONNECTIONS.into())?;
        within("messages under way", self.depth.into(), 1, MOST_DEPTH.into())?;
        within("microseconds of warm-up", self.warmup_us, 0, LONGEST_US)?;
        within("bytes of a packet's payload", self.payload.into(), 1, 16_383)?;
        match self.limit {
            Limit::Messages(count) => within("messages", count, 1, u64::MAX)?,
            Limit::Microseconds(us) => within("microseconds", us, 1, LONGEST_US)?,
        }
        if self.mode == Mode::Rate && self.size > u64::from(self.payload) {
            let (size, payload) = (self.size, self.payload);
            return Err(format!(
                "a message of {size} bytes is more than one packet, which carries {payload}"
            ));
        }
        if self.mode == Mode::Latency && (self.connections, self.depth) != (1, 1) {
            return Err("latency is measured with one connection and one message under way".to_owned());
        }
        Ok(())
    }

    /// Receives that the receiving end keeps posted for each connection: one for each message under
    /// way, and one for each that can arrive in one burst before the last ones are posted again.
    pub(super) fn receives(&self) -> u64 {
        let packets = self.packets_per_message();
        u64::from(self.depth) + (32 / packets).clamp(1, 32)
    }

    /// Packets that a message takes.
    pub(super) fn packets_per_message(&self) -> u64 {
        self.size.div_ceil(u64::from(self.payload)).max(1)
    }

    /// Bytes that the receiving end holds, for messages and what it knows of them.
    pub(super) fn receive_memory(&self) -> u64 {
        self.receives().saturating_mul(self.size + RECEIVE).saturating_mul(self.connections.into())
    }

    /// How long the messages under way take at the slowest client that is waited for. One of them is over by then.
    pub(super) fn slowest(&self) -> Span {
        let under_way = u64::from(self.connections) * u64::from(self.depth);
        let us = self.size.saturating_mul(under_way).saturating_mul(SLOWEST_BYTE.as_ps() / 1_000_000);
        Span::from_us(us.min(LONGEST_US))
    }

    /// How long messages of the test are sent at most.
    pub(super) fn longest(&self) -> Span {
        match self.limit {
            Limit::Messages(_) => Span::from_us(LONGEST_US),
            Limit::Microseconds(us) => self.warmup() + Span::from_us(us),
        }
    }

    /// Bytes of a message on the wire, when a packet costs `overhead` beyond its payload.
    pub(super) fn wire_bytes(&self, overhead: u64) -> u64 {
        self.size + self.packets_per_message() * overhead
    }

    pub(super) fn warmup(&self) -> Span {
        Span::from_ps(self.warmup_us * 1_000_000)
    }

    /// In a few words, for people.
    pub(super) fn describe(&self) -> String {
        let limit = match self.limit {
            Limit::Messages(count) => format!("{count} messages"),
            Limit::Microseconds(us) => format!("{} s", us as f64 / 1e6),
        };
        let (size, depth) = (self.size, self.depth);
        let checked = if self.verify { ", checked byte for byte" } else { "" };
        match self.mode {
            Mode::Latency => format!("latency: {size}-byte messages there and back, {limit}{checked}"),
            mode => {
                let what = if mode == Mode::Rate { "message rate" } else { "throughput" };
                let connections = match self.connections {
                    1 => "one connection".to_owned(),
                    n => format!("{n} connections"),
                };
                format!(
                    "{what}: {size}-byte messages, {connections}, {depth} under way on each, {limit}{checked}"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(mode: Mode) -> TestArgs {
        TestArgs {
            mode,
            size: None,
            count: None,
            duration: None,
            warmup: None,
            connections: 1,
            depth: None,
            verify: false,
        }
    }

    fn test(change: impl FnOnce(&mut TestArgs)) -> Result<Test, String> {
        let mut args = args(Mode::Throughput);
        change(&mut args);
        Test::new(&args, 4096, 4096, &CcChoice::default())
    }

    #[test]
    fn each_mode_has_defaults_that_are_allowed() {
        for mode in [Mode::Throughput, Mode::Rate, Mode::Latency] {
            let test = Test::new(&args(mode), 4096, 4096, &CcChoice::default()).unwrap();
            assert_eq!(test.limit, Limit::Microseconds(5_000_000));
            assert!(test.receive_memory() <= 64 << 20);
        }
    }

    #[test]
    fn nonsense_is_refused_with_what_was_expected() {
        let refusal = |change: fn(&mut TestArgs)| test(change).unwrap_err();
        assert_eq!(refusal(|a| a.connections = 0), "connections: expected 1 to 1024 instead of 0");
        assert_eq!(refusal(|a| a.depth = Some(0)), "messages under way: expected 1 to 65536 instead of 0");
        assert_eq!(
            refusal(|a| a.count = Some(0)),
            format!("messages: expected 1 to {} instead of 0", u64::MAX)
        );
        assert!(refusal(|a| a.size = Some(2 << 30)).starts_with("bytes of a message"));
        assert_eq!(
            refusal(|a| (a.mode, a.size) = (Mode::Rate, Some(5000))),
            "a message of 5000 bytes is more than one packet, which carries 4096"
        );
        assert!(refusal(|a| (a.mode, a.connections) = (Mode::Latency, 2)).starts_with("latency"));
    }

    #[test]
    fn the_wire_carries_headers_for_each_packet() {
        let test = test(|a| a.size = Some(10_000)).unwrap();
        assert_eq!((test.packets_per_message(), test.wire_bytes(100)), (3, 10_300));
        assert_eq!(test.receives(), 4 + 10);
        let empty = Test { size: 0, ..test };
        assert_eq!((empty.packets_per_message(), empty.wire_bytes(100)), (1, 100));
        let many = Test { connections: MOST_CONNECTIONS, depth: MOST_DEPTH, ..empty };
        assert!(many.receive_memory() > 1 << 30, "receives cost memory even if messages have no bytes");
    }
}
