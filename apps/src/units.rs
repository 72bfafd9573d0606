//! The syntax of option values other than plain quantities, which [`weft_cc::units`] parses.

use core::str::FromStr;
use thiserror::Error;
use weft_cc::units::{UnitError, parse_bytes, parse_rate, parse_span};
use weft_cc::{Rate, Span};
use weft_stack::fep::BusyTimeout;
use weft_testbed::sim::HostModel;

/// A value that an option cannot have. Its text says what was expected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("expected {0}")]
pub(crate) struct ValueError(String);

impl ValueError {
    /// The complaint that something else was expected, namely `what`.
    pub(crate) fn expected(what: impl Into<String>) -> ValueError {
        ValueError(what.into())
    }
}

fn expected<T>(what: &str) -> Result<T, ValueError> {
    Err(ValueError(what.to_owned()))
}

impl From<UnitError> for ValueError {
    fn from(error: UnitError) -> ValueError {
        ValueError(error.expected().to_owned())
    }
}

/// A size in bytes.
pub(crate) fn bytes(text: &str) -> Result<u64, ValueError> {
    Ok(parse_bytes(text)?)
}

/// The bytes after which a receiver acknowledges.
pub(crate) fn ack_every(text: &str) -> Result<u32, ValueError> {
    let bytes = parse_bytes(text).ok().and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
    bytes.map_or_else(|| expected("1 byte to below 4GiB, such as 16KiB"), Ok)
}

/// A rate, above zero.
pub(crate) fn rate(text: &str) -> Result<Rate, ValueError> {
    Ok(parse_rate(text)?)
}

/// A time, above zero.
pub(crate) fn span(text: &str) -> Result<Span, ValueError> {
    match parse_span(text)? {
        Span::ZERO => expected("a time above zero"),
        span => Ok(span),
    }
}

/// How long a connection may be without progress: a time above zero, or `endless`.
pub(crate) fn busy_timeout(text: &str) -> Result<BusyTimeout, ValueError> {
    match text {
        "endless" => Ok(BusyTimeout::Endless),
        time => {
            span(time).map(BusyTimeout::After).map_err(|ValueError(what)| ValueError(what + ", or endless"))
        }
    }
}

/// What a host needs to process what it receives: `rate=RATE,per-packet=TIME,queue=BYTES`, with at least one of the first
/// two.
pub(crate) fn host(text: &str) -> Result<HostModel, ValueError> {
    const FORM: &str = "rate=RATE,per-packet=TIME,queue=BYTES, each at most once and one of the first two at least, such \
                        as per-packet=500ns or rate=80G,per-packet=100ns,queue=256KiB";
    let (mut rate_of, mut time, mut queue) = (None, None, None);
    for word in text.split(',') {
        let given_twice = match word.split_once('=') {
            Some(("rate", value)) => rate_of.replace(rate(value)?).is_some(),
            Some(("per-packet", value)) => time.replace(span(value)?).is_some(),
            Some(("queue", value)) => queue.replace(bytes(value)?).is_some(),
            _ => return expected(FORM),
        };
        if given_twice {
            return expected(FORM);
        }
    }
    // Longer times would let sums of many packets' leave the range of virtual time.
    if time.is_some_and(|time| time > Span::from_ms(1_000)) {
        return expected("per-packet=TIME of at most 1s");
    }
    if rate_of.is_none() && time.is_none() {
        return expected(FORM);
    }
    let queue_bytes = queue.unwrap_or(HostModel::QUEUE_BYTES);
    Ok(HostModel { rate: rate_of, per_packet: time.unwrap_or(Span::ZERO), queue_bytes })
}

/// How large the data queue of a switch port is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Queue {
    /// Multiples of the network's bandwidth-delay product.
    Bdp(f64),
    /// A number of full packets.
    Packets(u32),
    /// A number of bytes.
    Bytes(u64),
}

impl FromStr for Queue {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Queue, ValueError> {
        let queue = if let Some(number) = text.strip_suffix("bdp") {
            decimal(number).map(Queue::Bdp)
        } else if let Some(number) = text.strip_suffix("pkt") {
            number.parse().ok().filter(|n| *n > 0).map(Queue::Packets)
        } else {
            parse_bytes(text).ok().filter(|n| *n > 0).map(Queue::Bytes)
        };
        queue.map_or_else(|| expected("a size above zero, such as 1bdp, 100pkt, 64KiB or 178450"), Ok)
    }
}

/// Where marking begins and where every packet is marked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Ecn {
    /// Parts of the bandwidth-delay product.
    Bdp(f64, f64),
    /// Full packets.
    Packets(u32, u32),
    /// Bytes.
    Bytes(u64, u64),
}

impl FromStr for Ecn {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Ecn, ValueError> {
        let Some((low, high)) = text.split_once(',') else { return expected(ECN) };
        let both = |word: &str| {
            let packets = word.strip_suffix("pkt").and_then(|n| n.parse::<u32>().ok());
            let has_unit = word.ends_with(|c: char| c.is_ascii_alphabetic());
            (decimal(word), packets, parse_bytes(word).ok().filter(|_| has_unit))
        };
        let ((low, low_packets, low_bytes), (high, high_packets, high_bytes)) = (both(low), both(high));
        let bdp = low.zip(high).map(|(low, high)| (Ecn::Bdp(low, high), low <= high));
        let packets = low_packets.zip(high_packets).map(|(low, high)| (Ecn::Packets(low, high), low <= high));
        let bytes = low_bytes.zip(high_bytes).map(|(low, high)| (Ecn::Bytes(low, high), low <= high));
        match bdp.or(packets).or(bytes) {
            Some((Ecn::Packets(_, 0) | Ecn::Bytes(_, 0), _)) => expected(ECN),
            Some((ecn, true)) => Ok(ecn),
            Some((_, false)) => expected("LOW,HIGH with LOW not above HIGH, such as 0.2,0.8"),
            None => expected(ECN),
        }
    }
}

const ECN: &str = "LOW,HIGH as parts of the bandwidth-delay product above zero, such as 0.2,0.8, or both in packets, \
     such as 9pkt,36pkt, or bytes with a unit, such as 40KB,150KB";

/// Phantom queues, as `--phantom` has them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Phantom {
    /// The part of the link's rate at which they drain.
    pub(crate) drain: f64,
    pub(crate) ecn: Option<Ecn>,
}

impl FromStr for Phantom {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Phantom, ValueError> {
        let (drain, ecn) = match text.split_once(',') {
            Some((drain, ecn)) => (drain, Some(ecn.parse()?)),
            None => (text, None),
        };
        match decimal(drain) {
            Some(drain) if drain <= 1.0 => Ok(Phantom { drain, ecn }),
            _ => expected(
                "DRAIN or DRAIN,LOW,HIGH with DRAIN above zero and not above 1, such as 0.9 or 0.9,0.1,0.4",
            ),
        }
    }
}

/// A value for the ports of each class that an option names, and one for all others: `VALUE`, `CLASS=VALUE,…` or
/// `VALUE,CLASS=VALUE,…`, as zones have it. Words without `=` continue the value before them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ByClass<T> {
    pub(crate) others: Option<T>,
    pub(crate) named: Vec<(String, T)>,
}

impl<T> ByClass<T> {
    /// The value for `class` alone, if it is named.
    pub(crate) fn of(&self, class: &str) -> Option<&T> {
        self.named.iter().find(|(name, _)| name == class).map(|(_, value)| value)
    }
}

impl<T: FromStr<Err = ValueError>> FromStr for ByClass<T> {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<ByClass<T>, ValueError> {
        // Each class with the text of its value; no class for the value of all others.
        let mut parts: Vec<(Option<&str>, String)> = Vec::new();
        for word in text.split(',') {
            match (word.split_once('='), parts.last_mut()) {
                (Some((class, value)), _) => parts.push((Some(class), value.to_owned())),
                (None, None) => parts.push((None, word.to_owned())),
                (None, Some((_, value))) => *value += &format!(",{word}"),
            }
        }
        let mut by_class = ByClass { others: None, named: Vec::new() };
        for (class, value) in parts {
            let value = value.parse()?;
            match class {
                None => by_class.others = Some(value),
                Some("") => return expected("the name of a class of ports before `=`"),
                Some(class) if by_class.of(class).is_some() => {
                    return Err(ValueError(format!("{class} once")));
                }
                Some(class) => by_class.named.push((class.to_owned(), value)),
            }
        }
        Ok(by_class)
    }
}

/// A positive decimal number without exponent, up to a million.
fn decimal(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.parse().ok().filter(|n| plain && *n > 0.0 && *n <= 1e6)
}

/// The bytes that each packet takes on the wire beside its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WireOverhead {
    /// The true headers, preamble and gap.
    Auto,
    /// This many bytes.
    Bytes(u32),
}

impl FromStr for WireOverhead {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<WireOverhead, ValueError> {
        if text == "auto" {
            return Ok(WireOverhead::Auto);
        }
        // A control packet costs just this, and nothing can cross a link in no time.
        let bytes = parse_bytes(text).ok().filter(|n| (1..=1024).contains(n));
        bytes.map_or_else(|| expected("auto or 1 to 1024 bytes"), |n| Ok(WireOverhead::Bytes(n as u32)))
    }
}

/// `KEY=VALUE`.
pub(crate) fn key_value(text: &str) -> Result<(String, String), ValueError> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => expected("KEY=VALUE"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities() {
        assert_eq!(bytes("2MiB"), Ok(2 << 20));
        assert_eq!(bytes("100KB"), Ok(100_000));
        assert_eq!(bytes("2000000"), Ok(2_000_000));
        assert_eq!(rate("100G"), Ok(Rate::from_gbps(100)));
        assert_eq!(span("10us"), Ok(Span::from_us(10)));
        assert_eq!(span("1ms"), Ok(Span::from_ms(1)));
        for wrong in ["", "two", "-1", "1.5", "2MX"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        for wrong in ["100", "0G", "-5G", "G"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
        for wrong in ["10", "0us", "0", "-1us", "1h"] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            span("10").unwrap_err().to_string(),
            "expected a time in whole picoseconds with its unit (ps, ns, us, ms or s, such as 10us or 1.5ms)"
        );
        assert_eq!(span("0us").unwrap_err().to_string(), "expected a time above zero");
    }

    #[test]
    fn waits_for_busy_peers() {
        assert_eq!(busy_timeout("2s"), Ok(BusyTimeout::After(Span::from_ms(2_000))));
        assert_eq!(busy_timeout("endless"), Ok(BusyTimeout::Endless));
        let refusal = |text| busy_timeout(text).unwrap_err().to_string();
        assert_eq!(refusal("0ms"), "expected a time above zero, or endless");
        assert!(refusal("never").ends_with("such as 10us or 1.5ms), or endless"));
    }

    #[test]
    fn queues() {
        assert_eq!("1bdp".parse(), Ok(Queue::Bdp(1.0)));
        assert_eq!("0.5bdp".parse(), Ok(Queue::Bdp(0.5)));
        assert_eq!("178450".parse(), Ok(Queue::Bytes(178_450)));
        assert_eq!("64KiB".parse(), Ok(Queue::Bytes(65_536)));
        assert_eq!("100pkt".parse(), Ok(Queue::Packets(100)));
        for wrong in
            ["", "bdp", "0bdp", "-1bdp", "NaNbdp", "infbdp", "1e3bdp", "0", "0pkt", "1.5pkt", "pkt", "1bpd"]
        {
            assert!(wrong.parse::<Queue>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn marking_thresholds() {
        assert_eq!("0.2,0.8".parse(), Ok(Ecn::Bdp(0.2, 0.8)));
        assert_eq!("1,1".parse(), Ok(Ecn::Bdp(1.0, 1.0)));
        assert_eq!("9pkt,36pkt".parse(), Ok(Ecn::Packets(9, 36)));
        assert_eq!("40KB,150000B".parse(), Ok(Ecn::Bytes(40_000, 150_000)));
        assert_eq!(
            "0.8,0.2".parse::<Ecn>().unwrap_err().to_string(),
            "expected LOW,HIGH with LOW not above HIGH, such as 0.2,0.8"
        );
        for wrong in ["", "0.2", "0.2,", ",", "a,b", "-0.1,0.5", "0,0.5", "0.1,inf", "0.1,0.2,0.3"] {
            assert!(wrong.parse::<Ecn>().is_err(), "{wrong}");
        }
        assert_eq!("0pkt,9pkt".parse(), Ok(Ecn::Packets(0, 9)));
        for wrong in ["0pkt,0pkt", "9pkt,8pkt", "9pkt,0.8", "9pkt,40KB", "-1pkt,9pkt", "0B,0B", "2kB,1kB"] {
            assert!(wrong.parse::<Ecn>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn hosts_need_a_rate_or_a_time_for_each_packet() {
        let all = host("queue=64KiB,rate=80G,per-packet=1us").unwrap();
        let wanted =
            HostModel { rate: Some(Rate::from_gbps(80)), per_packet: Span::from_us(1), queue_bytes: 65_536 };
        assert_eq!(all, wanted);
        let bare = host("per-packet=500ns").unwrap();
        assert_eq!((bare.rate, bare.queue_bytes), (None, HostModel::QUEUE_BYTES));
        for text in [
            "",
            "queue=1MiB",
            "rate=0G",
            "rate=80",
            "per-packet=0s",
            "per-packet=2s",
            "rate=1G,rate=2G",
            "cost=1us",
        ] {
            assert!(host(text).is_err(), "{text}");
        }
    }

    #[test]
    fn phantom_queues() {
        assert_eq!("0.9".parse(), Ok(Phantom { drain: 0.9, ecn: None }));
        assert_eq!("1,0.1,0.4".parse(), Ok(Phantom { drain: 1.0, ecn: Some(Ecn::Bdp(0.1, 0.4)) }));
        for wrong in ["", "0", "1.1", "-0.9", "0.9,", "0.9,0.5", "0.9,0.5,0.1", "x"] {
            assert!(wrong.parse::<Phantom>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_value_is_for_all_classes_of_ports_or_for_those_that_it_names() {
        let queues: ByClass<Queue> = "1bdp,border=64MiB,host=9pkt".parse().unwrap();
        assert_eq!(queues.others, Some(Queue::Bdp(1.0)));
        assert_eq!(
            (queues.of("border"), queues.of("host")),
            (Some(&Queue::Bytes(64 << 20)), Some(&Queue::Packets(9)))
        );
        let ecn: ByClass<Ecn> = "border=256KiB,768KiB,host=0.1,0.2".parse().unwrap();
        assert_eq!((ecn.others, ecn.of("host")), (None, Some(&Ecn::Bdp(0.1, 0.2))));
        assert_eq!(ecn.of("border"), Some(&Ecn::Bytes(256 << 10, 768 << 10)));
        let phantom: ByClass<Phantom> = "0.95,border=0.9,0.1,0.4".parse().unwrap();
        assert_eq!(phantom.others, Some(Phantom { drain: 0.95, ecn: None }));
        assert_eq!(phantom.of("border").unwrap().ecn, Some(Ecn::Bdp(0.1, 0.4)));
        for wrong in ["", "border=", "=1bdp", "border=1bdp,border=2bdp", "1bdp,2bdp"] {
            assert!(wrong.parse::<ByClass<Queue>>().is_err(), "{wrong}");
        }
        assert_eq!("a=1bdp,a=2bdp".parse::<ByClass<Queue>>().unwrap_err().to_string(), "expected a once");
    }

    #[test]
    fn overheads_and_settings() {
        assert_eq!("auto".parse(), Ok(WireOverhead::Auto));
        assert_eq!("64".parse(), Ok(WireOverhead::Bytes(64)));
        for wrong in ["", "0", "1025", "-4", "automatic"] {
            assert!(wrong.parse::<WireOverhead>().is_err(), "{wrong}");
        }
        assert_eq!(key_value("eta=0.1=x"), Ok(("eta".into(), "0.1=x".into())));
        assert!(key_value("eta").is_err() && key_value("=1").is_err());
    }
}
