//! The `.graph` file format: any fabric, line by line. [`parse_graph`] documents it.

use core::fmt;
use core::ops::Range;
use std::collections::BTreeMap;

use thiserror::Error;
use weft_cc::units::{parse_bytes, parse_rate, parse_span};
use weft_cc::{Rate, Span};

use super::graph::{A_NAME, is_class, is_name};
use super::shape::{MAX_HOSTS, MAX_PORTS};
use super::{CableSpec, GraphError, GraphPart, GraphSpec, HostId, Node, SwitchId, SwitchSpec, Topology};

/// Why a `.graph` file is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file}:{line}: {reason}")]
pub struct GraphFileError {
    /// The file's name, as the caller gave it.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The wrong word, and what was expected.
    pub reason: String,
}

/// Parses the text of a `.graph` file. `file` names it in errors and becomes the topology's name.
///
/// Each line declares something. `#` starts a comment; blank lines are ignored.
///
/// | line | meaning |
/// |---|---|
/// | `switch NAME [latency=TIME] [group=GROUP]` | a switch; numbers follow the order of lines |
/// | `host NAME` | a host; its number, which workloads use, follows the order of lines |
/// | `link A B [rate=RATE] [latency=TIME] [count=N] [class=C] [queue=BYTES] [ecn=LOW,HIGH]` | N links, of which each carries packets in both directions |
/// | `default [rate=RATE] [latency=TIME] [switch-latency=TIME]` | what later lines leave out; at first 100G, 1us and 0 |
///
/// - A name consists of letters, digits, `_` and `.`, and begins with a letter. It may contain one range of numbers:
///   `tor[0-3]` stands for `tor0`, `tor1`, `tor2` and `tor3`. A link with ranges joins each node of the first name to
///   each of the second.
/// - Each host has one link, to a switch. The links of all hosts have one rate.
/// - Hosts of switches of one group are near each other: `intra` in the options that tell zones apart. The hosts of a
///   switch without a group are a group.
/// - `class` names the ports of switches at both ends, for options such as `--queue`; without it ports are of class
///   `host` if they lead to a host, and `switch` otherwise. `queue` is the size of these ports' data queues, and `ecn` where
///   marking begins and from where every packet is marked, in bytes. Each of the three can have a value for either
///   end: `class=up/down` is `up` at A and `down` at B, and `queue=1MiB/-` says nothing of the queue at B.
///
/// # Errors
/// [`GraphFileError`] names the line, the word, and what was expected; for instance if there is no path between two hosts.
pub fn parse_graph(file: &str, text: &str) -> Result<Topology, GraphFileError> {
    let mut draft = Draft::new();
    let fail = |line, reason| GraphFileError { file: file.to_owned(), line, reason };
    let mut last = 1;
    for (index, line) in text.lines().enumerate() {
        last = index + 1;
        let code = line.split('#').next().unwrap_or_default();
        draft.line(index + 1, code).map_err(|reason| fail(index + 1, reason))?;
    }
    let Draft { spec, lines, .. } = draft;
    Topology::from_graph(file, spec).map_err(|GraphError { part, reason }| {
        let line = match part {
            GraphPart::Whole => None,
            GraphPart::Host(index) => lines.hosts.get(index),
            GraphPart::Switch(index) => lines.switches.get(index),
            GraphPart::Cable(index) => lines.cables.get(index),
        };
        fail(line.copied().unwrap_or(last), reason)
    })
}

/// The parts of a graph that have been read, and the lines that declare them.
struct Draft {
    spec: GraphSpec,
    lines: Lines,
    nodes: BTreeMap<String, Node>,
    rate: Rate,
    latency: Span,
    switch_latency: Span,
}

#[derive(Default)]
struct Lines {
    hosts: Vec<usize>,
    switches: Vec<usize>,
    cables: Vec<usize>,
}

/// The `key=value` words of a line.
struct Settings<'a> {
    allowed: &'static [&'static str],
    given: Vec<(&'a str, &'a str)>,
}

impl<'a> Settings<'a> {
    fn read(
        words: impl Iterator<Item = &'a str>,
        allowed: &'static [&'static str],
    ) -> Result<Settings<'a>, String> {
        let mut given: Vec<(&str, &str)> = Vec::new();
        for word in words {
            let known = word.split_once('=').filter(|(key, _)| allowed.contains(key));
            let (key, value) = known.ok_or_else(|| {
                let keys: Vec<String> = allowed.iter().map(|key| format!("{key}=…")).collect();
                format!("`{word}`: expected {} or the end of the line", keys.join(", "))
            })?;
            if given.iter().any(|(other, _)| *other == key) {
                return Err(format!("`{word}`: expected {key} once"));
            }
            given.push((key, value));
        }
        Ok(Settings { allowed, given })
    }

    /// The value of `key` as `parse` reads it, which otherwise says what it expects.
    fn get<T>(
        &self,
        key: &str,
        parse: impl FnOnce(&'a str) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        debug_assert!(self.allowed.contains(&key));
        let Some((_, value)) = self.given.iter().find(|(other, _)| *other == key) else { return Ok(None) };
        parse(value).map(Some).map_err(|expected| format!("`{key}={value}`: expected {expected}"))
    }

    /// As [`Settings::get`], for a value that may differ at the two ends of a link.
    fn ends<T: Clone>(
        &self,
        key: &str,
        parse: impl Fn(&'a str) -> Result<T, String>,
    ) -> Result<[Option<T>; 2], String> {
        let one = |value| if value == "-" { Ok(None) } else { parse(value).map(Some) };
        let both = self.get(key, |value| match value.split_once('/') {
            Some((a, b)) => Ok([one(a)?, one(b)?]),
            None => parse(value).map(|value| [Some(value.clone()), Some(value)]),
        })?;
        Ok(both.unwrap_or([None, None]))
    }
}

fn rate(text: &str) -> Result<Rate, String> {
    parse_rate(text).map_err(|e| e.expected().to_owned())
}

fn span(text: &str) -> Result<Span, String> {
    parse_span(text).map_err(|e| e.expected().to_owned())
}

fn bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text).map_err(|e| e.expected().to_owned())
}

fn thresholds(text: &str) -> Result<(u64, u64), String> {
    let both = text.split_once(',').and_then(|(low, high)| Some((bytes(low).ok()?, bytes(high).ok()?)));
    let form = "LOW,HIGH in bytes with LOW not above HIGH, such as 256KiB,768KiB";
    both.filter(|(low, high)| low <= high).ok_or_else(|| form.to_owned())
}

fn class(text: &str) -> Result<String, String> {
    match is_class(text) {
        true => Ok(text.to_owned()),
        false => Err("a name: a letter, then letters, digits, `_`, `.` and `-`".to_owned()),
    }
}

fn count(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "a number above zero".to_owned())
}

/// A name that may stand for several.
struct Names<'a> {
    before: &'a str,
    /// The numbers of the range; `None` for a single name.
    numbers: Option<Range<u64>>,
    after: &'a str,
}

impl<'a> Names<'a> {
    fn read(word: &'a str) -> Result<Names<'a>, String> {
        let wrong = |expected: &str| format!("`{word}`: expected {expected}");
        let names = match word.split_once('[') {
            None => Names { before: word, numbers: None, after: "" },
            Some((before, rest)) => {
                let number =
                    |text: &str| text.parse::<u64>().ok().filter(|n| *n < MAX_HOSTS && n.to_string() == text);
                let parts = rest.split_once(']').and_then(|(range, after)| {
                    let (first, last) = range.split_once('-')?;
                    Some((number(first)?, number(last)?, after))
                });
                let (first, last, after) = parts
                    .filter(|(first, last, _)| first <= last)
                    .ok_or_else(|| wrong("a range such as [0-15], with the lower number first"))?;
                Names { before, numbers: Some(first..last + 1), after }
            }
        };
        let sample =
            format!("{}{}{}", names.before, if names.numbers.is_some() { "0" } else { "" }, names.after);
        if is_name(&sample) { Ok(names) } else { Err(wrong(A_NAME)) }
    }

    fn len(&self) -> u64 {
        self.numbers.as_ref().map_or(1, |range| range.end - range.start)
    }

    fn each(&self) -> impl Iterator<Item = String> + '_ {
        let single = self.numbers.is_none().then(|| self.before.to_owned());
        let many = self.numbers.clone().into_iter().flatten();
        single.into_iter().chain(many.map(|n| format!("{}{n}{}", self.before, self.after)))
    }
}

impl Draft {
    fn new() -> Draft {
        Draft {
            spec: GraphSpec::default(),
            lines: Lines::default(),
            nodes: BTreeMap::new(),
            rate: Rate::from_gbps(100),
            latency: Span::from_us(1),
            switch_latency: Span::ZERO,
        }
    }

    fn line(&mut self, line: usize, code: &str) -> Result<(), String> {
        let mut words = code.split_whitespace();
        let Some(word) = words.next() else { return Ok(()) };
        let mut name =
            |what: &str| words.next().ok_or_else(|| format!("`{word}`: expected {what} behind it"));
        match word {
            "switch" => {
                let names = Names::read(name("the name of a switch")?)?;
                self.switches(line, &names, &Settings::read(words, &["latency", "group"])?)
            }
            "host" => {
                let names = Names::read(name("the name of a host")?)?;
                Settings::read(words, &[])
                    .map_err(|_| "expected the end of the line behind a host's name".to_owned())?;
                self.hosts(line, &names)
            }
            "link" => {
                let first = Names::read(name("the names of two nodes")?)?;
                let second = Names::read(name("the names of two nodes")?)?;
                let keys = &["rate", "latency", "count", "class", "queue", "ecn"];
                self.links(line, &first, &second, &Settings::read(words, keys)?)
            }
            "default" => self.defaults(&Settings::read(words, &["rate", "latency", "switch-latency"])?),
            _ => Err(format!("`{word}`: expected switch, host, link or default")),
        }
    }

    /// Refuses more of anything than a fabric can have, before it is allocated.
    fn check_room(&self, present: usize, more: u64, what: &str) -> Result<(), String> {
        match (present as u64).saturating_add(more) <= MAX_PORTS {
            true => Ok(()),
            false => Err(format!("more than {MAX_PORTS} {what}")),
        }
    }

    fn declare(&mut self, name: &str, node: Node) -> Result<(), String> {
        match self.nodes.insert(name.to_owned(), node) {
            None => Ok(()),
            Some(_) => Err(format!("`{name}`: expected a name that no other host or switch has")),
        }
    }

    fn switches(&mut self, line: usize, names: &Names<'_>, settings: &Settings<'_>) -> Result<(), String> {
        self.check_room(self.spec.switches.len(), names.len(), "switches")?;
        let latency = settings.get("latency", span)?.unwrap_or(self.switch_latency);
        let group = settings.get("group", |text| match is_name(text) {
            true => Ok(text),
            false => Err(A_NAME.to_owned()),
        })?;
        let group = group.map(|name| {
            let known = self.spec.groups.iter().position(|other| other == name);
            known.unwrap_or_else(|| {
                self.spec.groups.push(name.to_owned());
                self.spec.groups.len() - 1
            }) as u32
        });
        for name in names.each() {
            self.declare(&name, Node::Switch(SwitchId(self.spec.switches.len() as u32)))?;
            self.spec.switches.push(SwitchSpec { name, latency, group });
            self.lines.switches.push(line);
        }
        Ok(())
    }

    fn hosts(&mut self, line: usize, names: &Names<'_>) -> Result<(), String> {
        self.check_room(self.spec.hosts.len(), names.len(), "hosts")?;
        for name in names.each() {
            self.declare(&name, Node::Host(HostId(self.spec.hosts.len() as u32)))?;
            self.spec.hosts.push(name);
            self.lines.hosts.push(line);
        }
        Ok(())
    }

    fn links(
        &mut self,
        line: usize,
        first: &Names<'_>,
        second: &Names<'_>,
        settings: &Settings<'_>,
    ) -> Result<(), String> {
        let count = settings.get("count", count)?.unwrap_or(1);
        let links = first.len().saturating_mul(second.len()).saturating_mul(u64::from(count));
        self.check_room(self.spec.cables.len(), links, "links")?;
        let cable = CableSpec {
            // Replaced below.
            ends: [Node::Host(HostId(0)); 2],
            rate: settings.get("rate", rate)?.unwrap_or(self.rate),
            latency: settings.get("latency", span)?.unwrap_or(self.latency),
            classes: settings.ends("class", class)?,
            queues: settings.ends("queue", bytes)?,
            ecn: settings.ends("ecn", thresholds)?,
        };
        let node = |name: &str| {
            let node = self.nodes.get(name).copied();
            node.ok_or_else(|| format!("`{name}`: expected a host or switch that an earlier line declares"))
        };
        for a in first.each() {
            let a = node(&a)?;
            for b in second.each() {
                let ends = [a, node(&b)?];
                self.spec.cables.extend((0..count).map(|_| CableSpec { ends, ..cable.clone() }));
                self.lines.cables.extend((0..count).map(|_| line));
            }
        }
        Ok(())
    }

    fn defaults(&mut self, settings: &Settings<'_>) -> Result<(), String> {
        if settings.given.is_empty() {
            return Err("`default`: expected rate=…, latency=… or switch-latency=… behind it".to_owned());
        }
        self.rate = settings.get("rate", rate)?.unwrap_or(self.rate);
        self.latency = settings.get("latency", span)?.unwrap_or(self.latency);
        self.switch_latency = settings.get("switch-latency", span)?.unwrap_or(self.switch_latency);
        Ok(())
    }
}

/// Writes a graph as the text of a `.graph` file, one line for each switch, host and link. Parsing it gives the same
/// graph.
///
/// # Errors
/// `out` refuses the text, or a cable ends at a node that does not exist.
pub fn write_graph(graph: &GraphSpec, out: &mut impl fmt::Write) -> fmt::Result {
    for SwitchSpec { name, latency, group } in &graph.switches {
        write!(out, "switch {name} latency={}ps", latency.as_ps())?;
        if let Some(group) = group.and_then(|group| graph.groups.get(group as usize)) {
            write!(out, " group={group}")?;
        }
        writeln!(out)?;
    }
    for host in &graph.hosts {
        writeln!(out, "host {host}")?;
    }
    let name = |node: Node| match node {
        Node::Host(host) => graph.hosts.get(host.0 as usize),
        Node::Switch(switch) => graph.switches.get(switch.0 as usize).map(|switch| &switch.name),
    };
    for cable in &graph.cables {
        let [Some(a), Some(b)] = cable.ends.map(name) else { return Err(fmt::Error) };
        write!(out, "link {a} {b} rate={}bps latency={}ps", cable.rate.as_bps(), cable.latency.as_ps())?;
        write_ends(out, "class", &cable.classes, |class| class.clone())?;
        write_ends(out, "queue", &cable.queues, |bytes| bytes.to_string())?;
        write_ends(out, "ecn", &cable.ecn, |(low, high)| format!("{low},{high}"))?;
        writeln!(out)?;
    }
    Ok(())
}

/// Writes a setting of the two ends of a link.
fn write_ends<T: PartialEq>(
    out: &mut impl fmt::Write,
    key: &str,
    ends: &[Option<T>; 2],
    text: impl Fn(&T) -> String,
) -> fmt::Result {
    match ends {
        [None, None] => Ok(()),
        [Some(a), Some(b)] if a == b => write!(out, " {key}={}", text(a)),
        ends => {
            let [a, b] = ends.each_ref().map(|end| end.as_ref().map_or("-".to_owned(), &text));
            write!(out, " {key}={a}/{b}")
        }
    }
}
