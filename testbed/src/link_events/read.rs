//! Parsing of link events.

use weft_cc::{Span, Time};

use super::LinkEventError;
use crate::sim::{BlockLosses, CorrelatedLoss, GilbertElliott, LinkChange, LinkDirections, LinkEvent};
use crate::topology::{Direction, HostId, PortId, Topology};
use weft_cc::units::{parse_rate, parse_span};

/// Parses all events of `text` for the links of `fabric`, in the order of the lines.
///
/// Errors name the text `source_name`.
///
/// # Errors
/// The first line that is malformed or names a link that `fabric` does not have.
pub fn parse_link_events(
    source_name: &str,
    text: &str,
    fabric: &Topology,
) -> Result<Vec<LinkEvent>, LinkEventError> {
    let mut events = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let code = line.split('#').next().unwrap_or_default();
        if code.trim().is_empty() {
            continue;
        }
        events.push(parse_line(code, fabric).map_err(|wrong| wrong.at(source_name, index + 1, code))?);
    }
    Ok(events)
}

/// Parses a change of a link that happens now: a line of the same form without the time.
///
/// Errors name the text `source_name`.
///
/// # Errors
/// The text is malformed or names a link that `fabric` does not have.
pub fn parse_link_change(
    source_name: &str,
    text: &str,
    fabric: &Topology,
) -> Result<(LinkDirections, LinkChange), LinkEventError> {
    let mut words = Words { line: text, at: 0 };
    let read = change_of_link(&mut words, fabric);
    read.map_err(|wrong| wrong.at(source_name, 1, text))
}

struct WordError {
    offset: usize,
    word: String,
    expected: String,
}

impl WordError {
    fn at(self, source_name: &str, line: usize, text: &str) -> LinkEventError {
        LinkEventError {
            source_name: source_name.into(),
            line,
            column: text[..self.offset].chars().count() + 1,
            word: self.word,
            expected: self.expected,
        }
    }
}

/// The words of a line, each with its byte offset.
struct Words<'a> {
    line: &'a str,
    at: usize,
}

#[derive(Clone, Copy)]
struct Word<'a> {
    text: &'a str,
    offset: usize,
}

impl<'a> Word<'a> {
    fn wrong(self, expected: impl Into<String>) -> WordError {
        WordError { offset: self.offset, word: self.text.into(), expected: expected.into() }
    }

    fn number(self, key: &str, expected: &str) -> Result<u32, WordError> {
        let value = self.text.strip_prefix(key).and_then(|rest| rest.strip_prefix('='));
        let digits = value.filter(|v| v.bytes().all(|b| b.is_ascii_digit()));
        digits.and_then(|v| v.parse().ok()).ok_or_else(|| self.wrong(expected))
    }
}

impl<'a> Words<'a> {
    fn next(&mut self) -> Word<'a> {
        let rest = &self.line[self.at..];
        let offset = self.at + rest.len() - rest.trim_start().len();
        let word = &self.line[offset..];
        let text = &word[..word.find(char::is_whitespace).unwrap_or(word.len())];
        self.at = offset + text.len();
        Word { text, offset }
    }

    fn end(&mut self) -> Result<(), WordError> {
        let rest = self.next();
        if rest.text.is_empty() { Ok(()) } else { Err(rest.wrong("the end of the line")) }
    }
}

fn parse_line(line: &str, fabric: &Topology) -> Result<LinkEvent, WordError> {
    let mut words = Words { line, at: 0 };
    let at = time(words.next())?;
    let (link, change) = change_of_link(&mut words, fabric)?;
    Ok(LinkEvent { at, link, change })
}

/// The rest of a line: the link, perhaps the direction, and the change.
fn change_of_link(
    words: &mut Words<'_>,
    fabric: &Topology,
) -> Result<(LinkDirections, LinkChange), WordError> {
    let mut link = link(words, fabric)?;
    let mut word = words.next();
    if let Some(value) = word.text.strip_prefix("dir=") {
        link = LinkDirections::From(sender(word, direction(word, value)?, link, fabric)?);
        word = words.next();
    }
    let change = change(word)?;
    words.end()?;
    Ok((link, change))
}

/// The port of `link` that sends in the direction `wanted`.
fn sender(
    word: Word<'_>,
    wanted: Direction,
    link: LinkDirections,
    fabric: &Topology,
) -> Result<PortId, WordError> {
    let LinkDirections::Both(port) = link else {
        return Err(word.wrong("a change of the link, whose name says the direction already"));
    };
    let reverse = fabric.port(port).reverse;
    [port, reverse]
        .into_iter()
        .find(|port| fabric.port(*port).direction == wanted)
        .ok_or_else(|| word.wrong("a change of the link; links between switches of a graph do not lead up or down: A>B names a direction"))
}

fn direction(word: Word<'_>, value: &str) -> Result<Direction, WordError> {
    match value {
        "up" => Ok(Direction::Up),
        "down" => Ok(Direction::Down),
        _ => Err(word.wrong("dir=up (away from the hosts) or dir=down (towards them)")),
    }
}

fn time(word: Word<'_>) -> Result<Time, WordError> {
    let expected = "a time with a unit since the start of the run (such as 100us)";
    // `parse_span` accepts a bare zero, but here every time needs a unit.
    let unit = word.text.ends_with('s');
    let span = parse_span(word.text).ok().filter(|_| unit).ok_or_else(|| word.wrong(expected))?;
    // Time is circular: only half of its range lies ahead of the start.
    if span > Span::from_ps(u64::MAX / 2) {
        return Err(word.wrong("a time of at most 2^63 - 1 ps"));
    }
    Ok(Time::ZERO + span)
}

fn link(words: &mut Words<'_>, fabric: &Topology) -> Result<LinkDirections, WordError> {
    let first = words.next();
    if let Some(name) = first.text.strip_prefix("link=") {
        let named = fabric.link_named(name).map_err(|e| first.wrong(e.expected()))?;
        return Ok(match named.one_way {
            true => LinkDirections::From(named.port),
            false => LinkDirections::Both(named.port),
        });
    }
    numbered_link(first, words, fabric).map(LinkDirections::Both)
}

/// A link of a host, or of a switch named by its tier.
fn numbered_link(first: Word<'_>, words: &mut Words<'_>, fabric: &Topology) -> Result<PortId, WordError> {
    if first.text.starts_with("host=") {
        let host = first.number("host", "host=N")?;
        let known = host < fabric.hosts();
        return if known {
            Ok(fabric.nic(HostId(host)))
        } else {
            Err(first.wrong(format!("a host below {}", fabric.hosts())))
        };
    }
    if fabric.is_graph() {
        return Err(first.wrong("link=A-B or host=N, as the switches of a graph have names and no tiers"));
    }
    let tier = first.number("tier", "tier=N, host=N or link=A-B")?;
    let switch_word = words.next();
    let switch = switch_word.number("switch", "switch=N")?;
    let link_word = words.next();
    let link = link_word.number("link", "link=N")?;
    let tiers = fabric.tiers().len();
    let tier = u8::try_from(tier).ok().filter(|tier| usize::from(*tier) < tiers);
    let tier = tier.ok_or_else(|| first.wrong(format!("a tier below {tiers}")))?;
    let place = fabric.switch_at(tier, switch).ok_or_else(|| {
        switch_word.wrong(format!("a switch of tier {tier} below {}", fabric.switches_in(tier)))
    })?;
    fabric.link_at(tier, switch, link).ok_or_else(|| {
        let (way, count) = match fabric.up_ports(place).count {
            0 => ("down", fabric.down_ports(place).count),
            up => ("up", up),
        };
        link_word.wrong(format!("a link {way} from switch {switch} of tier {tier} below {count}"))
    })
}

const CHANGES: &str = "fail or down, restore or up, rate=R, delay=TIME, drop=P, drop-over=BYTES, ber=P, corrupt=P, \
                       gilbert=P,R[,BAD[,GOOD]], block-loss=N:P1[,P2…], or trim=P";

fn change(word: Word<'_>) -> Result<LinkChange, WordError> {
    match word.text.split_once('=') {
        None if matches!(word.text, "fail" | "down") => Ok(LinkChange::Fail),
        None if matches!(word.text, "restore" | "up") => Ok(LinkChange::Restore),
        Some(("rate", rate)) => parse_rate(rate)
            .map(LinkChange::Degrade)
            .map_err(|_| word.wrong("a rate above zero (such as rate=25G)")),
        Some(("drop", p)) => probability(word, p).map(LinkChange::Drop),
        Some(("drop-over", _)) => word.number("drop-over", "a number of bytes").map(LinkChange::DropOver),
        Some(("ber", p)) => probability(word, p).map(LinkChange::BitErrors),
        Some(("trim", p)) => probability(word, p).map(LinkChange::Trim),
        Some(("corrupt", p)) => probability(word, p).map(LinkChange::Corrupt),
        Some(("delay", time)) => delay(word, time).map(LinkChange::Delay),
        Some(("gilbert", values)) => gilbert(word, values).map(LinkChange::Correlated),
        Some(("block-loss", values)) => block_loss(word, values).map(LinkChange::Correlated),
        _ => Err(word.wrong(CHANGES)),
    }
}

fn probability(word: Word<'_>, text: &str) -> Result<f64, WordError> {
    let p = text.parse::<f64>().ok().filter(|p| (0.0..=1.0).contains(p));
    p.ok_or_else(|| word.wrong("a probability from 0 to 1"))
}

/// The longest extra delay: arrival times stay far from the end of virtual time.
const LONGEST_DELAY: Span = Span::from_ms(3_600_000);

fn delay(word: Word<'_>, text: &str) -> Result<Span, WordError> {
    let span = parse_span(text).ok().filter(|span| text.ends_with('s') && *span <= LONGEST_DELAY);
    span.ok_or_else(|| word.wrong("a time with a unit of at most an hour (such as delay=10us)"))
}

/// Probabilities that are separated by commas; `None` if one of them is none.
fn probabilities(text: &str) -> Option<Vec<f64>> {
    let each = text.split(',').map(|p| p.parse::<f64>().ok().filter(|p| (0.0..=1.0).contains(p)));
    each.collect()
}

fn gilbert(word: Word<'_>, text: &str) -> Result<CorrelatedLoss, WordError> {
    let given = probabilities(text);
    let (to_bad, to_good, loss_bad, loss_good) = match given.as_deref() {
        Some(&[to_bad, to_good]) => (to_bad, to_good, 1.0, 0.0),
        Some(&[to_bad, to_good, bad]) => (to_bad, to_good, bad, 0.0),
        Some(&[to_bad, to_good, bad, good]) => (to_bad, to_good, bad, good),
        _ => {
            return Err(word.wrong(
                "two to four probabilities: good to bad, bad to good, loss while bad [1], loss while good [0] \
                 (such as gilbert=0.001,0.2)",
            ));
        }
    };
    Ok(CorrelatedLoss::GilbertElliott(GilbertElliott { to_bad, to_good, loss_bad, loss_good }))
}

fn block_loss(word: Word<'_>, text: &str) -> Result<CorrelatedLoss, WordError> {
    let blocks = match text {
        "uno-65ms" => Some(BlockLosses::uno_65ms()),
        "uno-33ms" => Some(BlockLosses::uno_33ms()),
        _ => text.split_once(':').and_then(|(packets, chances)| {
            let packets = packets.bytes().all(|b| b.is_ascii_digit()).then(|| packets.parse().ok())?;
            BlockLosses::new(packets?, &probabilities(chances)?)
        }),
    };
    blocks.map(CorrelatedLoss::Blocks).ok_or_else(|| {
        word.wrong(format!(
            "uno-65ms, uno-33ms, or N:P1[,P2…], the packets of a block (1 to {}) and the probabilities that it loses \
             1, 2 … of them, at most {} and together at most 1 (such as block-loss=10:3e-4,7.5e-5)",
            BlockLosses::MOST_PACKETS,
            BlockLosses::MOST_LOSSES
        ))
    })
}
