//! Scripts: reading them, and refusing those that make no sense. README.md describes the language.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use weft_stack::Span;
use weft_stack::cc::units::parse_span;

use super::fields::{AMOS, Field, Form, Group, KINDS, Kind};
use super::packet::field;
use super::settings::Settings;

/// What is wrong with a script, or with what an endpoint did in it.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) line: usize,
    pub(crate) text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.text)
    }
}

pub(crate) struct Script {
    pub(crate) settings: Settings,
    pub(crate) lines: Vec<Line>,
}

/// A line and when it happens.
pub(crate) struct Line {
    pub(crate) number: usize,
    pub(crate) at: Span,
    pub(crate) action: Action,
}

pub(crate) enum Action {
    /// Packets arrive.
    Arrive(Packets),
    /// The endpoint sends packets.
    Leave(Packets),
    Call(Call),
    /// Nothing happens before, at or between the lines around it.
    Silence,
}

/// Packets that differ in the values of their ranges.
pub(crate) struct Packets {
    pub(crate) kind: &'static Kind,
    pub(crate) fields: Vec<(&'static Field, Operand)>,
}

pub(crate) enum Operand {
    Flag(bool),
    /// The values from one to another, one for each packet.
    Range(Expression, Expression),
    Set(Vec<(Expression, Expression)>),
    Content(Content),
    Hex(Vec<u8>),
}

/// A number, or a variable and a number to add to it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expression {
    pub(crate) variable: Option<String>,
    pub(crate) number: i128,
}

/// Bytes of the content that a name stands for, from `from` on or from where the packet says.
#[derive(Clone, Debug)]
pub(crate) struct Content {
    pub(crate) name: String,
    pub(crate) from: Option<usize>,
}

/// A call of the application, or what it learns.
pub(crate) struct Call {
    pub(crate) verb: Verb,
    /// What the call is about.
    pub(crate) name: String,
    /// What it creates, or the length or number that it names.
    pub(crate) new: String,
    pub(crate) number: u64,
    pub(crate) options: BTreeMap<&'static str, u64>,
    pub(crate) content: Option<Content>,
    /// It is refused, or has failed, with an error that contains this.
    pub(crate) error: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Connect,
    Send,
    Read,
    Receive,
    SendDatagram,
    ReceiveDatagram,
    Expose,
    Withdraw,
    Accessed,
    Written,
    Write,
    Atomic,
    SetJob,
    OnlyDatagrams,
    Hold,
    Release,
    Claim,
    ReceiveClaimed,
    Discard,
    OpenProcess,
    CloseProcess,
    AskToClose,
    GiveUp,
    Announcements,
    Cancel,
    Close,
    Abort,
    Done,
    Check,
}

/// A word that a call needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    Connection,
    NewConnection,
    /// A message, an access, a receive or a claim.
    Operation,
    NewOperation,
    /// Either.
    Known,
    Content,
    /// What an atomic request does.
    Amo,
    Number,
}

/// The beginning of names that stand for a number: `u64:5`.
pub(crate) const NUMBERS: &str = "u64:";

/// A call's name, the words that it needs, and the options that it may have.
type Grammar = (&'static str, Verb, &'static [Word], &'static [&'static str]);

const CALLS: &[Grammar] = &[
    ("connect", Verb::Connect, &[Word::NewConnection], &["to", "process", "class", "rod", "patient"]),
    ("send", Verb::Send, &[Word::Connection, Word::NewOperation, Word::Number], &["tag", "header_data"]),
    ("read", Verb::Read, &[Word::Connection, Word::NewOperation, Word::Number], &["key", "offset"]),
    (
        "write",
        Verb::Write,
        &[Word::Connection, Word::NewOperation, Word::Number],
        &["key", "offset", "announce"],
    ),
    (
        "atomic",
        Verb::Atomic,
        &[Word::Connection, Word::NewOperation, Word::Amo],
        &["operand", "compare", "fetch", "key", "offset"],
    ),
    (
        "receive",
        Verb::Receive,
        &[Word::NewOperation, Word::Number],
        &["from", "tag", "ignore", "process", "many"],
    ),
    ("claim", Verb::Claim, &[Word::NewOperation], &["from", "tag", "ignore", "process"]),
    ("receive_claimed", Verb::ReceiveClaimed, &[Word::Operation, Word::Number], &[]),
    ("discard", Verb::Discard, &[Word::Operation], &[]),
    (
        "send_datagram",
        Verb::SendDatagram,
        &[Word::NewOperation, Word::Number],
        &["to", "process", "source", "header_data"],
    ),
    ("receive_datagram", Verb::ReceiveDatagram, &[Word::NewOperation, Word::Number], &["process"]),
    (
        "expose",
        Verb::Expose,
        &[Word::Content, Word::Number],
        &["key", "process", "from", "write", "atomic", "limited"],
    ),
    ("accessed", Verb::Accessed, &[], &["key", "process", "reads", "writes", "fetches"]),
    ("written", Verb::Written, &[], &["key", "process", "from", "offset", "len", "header_data"]),
    ("withdraw", Verb::Withdraw, &[], &["key", "process"]),
    ("job", Verb::SetJob, &[Word::Number], &["process"]),
    ("only_datagrams", Verb::OnlyDatagrams, &[Word::Number], &[]),
    ("open_process", Verb::OpenProcess, &[Word::Number], &[]),
    ("close_process", Verb::CloseProcess, &[Word::Number], &[]),
    ("ask_to_close", Verb::AskToClose, &[], &[]),
    ("give_up", Verb::GiveUp, &[], &["from", "silence"]),
    ("announcements", Verb::Announcements, &[Word::Number], &[]),
    ("cancel", Verb::Cancel, &[Word::Operation], &[]),
    ("hold", Verb::Hold, &[Word::Connection], &[]),
    ("release", Verb::Release, &[Word::Connection], &[]),
    ("close", Verb::Close, &[Word::Connection], &[]),
    ("abort", Verb::Abort, &[Word::Connection], &[]),
    (
        "done",
        Verb::Done,
        &[Word::Known],
        &["len", "from", "process", "tag", "header_data", "retransmissions", "more"],
    ),
    (
        "check",
        Verb::Check,
        &[],
        &[
            "pdcs",
            "malformed",
            "strangers",
            "misdirected",
            "ignored",
            "dropped",
            "retransmitted",
            "leaks",
            "memory_below",
            "forgotten",
        ],
    ),
];

/// The names that a script has introduced so far.
#[derive(Default)]
struct Names {
    connections: BTreeSet<String>,
    operations: BTreeSet<String>,
    variables: BTreeSet<String>,
}

impl Script {
    /// Reads a script.
    pub(crate) fn parse(text: &str) -> Result<Script, Fault> {
        let mut script = Script { settings: Settings::default(), lines: Vec::new() };
        let (mut names, mut now) = (Names::default(), Span::ZERO);
        if !text.starts_with("# ") {
            let text = "a script begins with a comment that says what it tests: \"# …\"".into();
            return Err(Fault { line: 1, text });
        }
        for (number, line) in (1..).zip(text.lines()) {
            let at_line = |text| Fault { line: number, text };
            let words = split(line).map_err(at_line)?;
            match words.first().map(String::as_str) {
                None => {}
                Some("set") if script.lines.is_empty() => {
                    words[1..].iter().try_for_each(|word| script.settings.set(word)).map_err(at_line)?;
                }
                Some("set") => return Err(at_line("\"set\" stands before everything that happens".into())),
                Some(_) => {
                    let line = parse_line(number, now, &words, &mut names).map_err(at_line)?;
                    now = line.at;
                    script.lines.push(line);
                }
            }
        }
        if script.lines.is_empty() {
            return Err(Fault { line: text.lines().count(), text: "nothing happens in this script".into() });
        }
        Ok(script)
    }
}

/// The words of a line, without its comment. A text in quotation marks is one word, which begins with one.
fn split(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() && !rest.starts_with('#') {
        let end = match rest.strip_prefix('"') {
            Some(quoted) => 1 + quoted.find('"').ok_or_else(|| format!("no end of {rest}"))?,
            None => rest.find(char::is_whitespace).unwrap_or(rest.len()),
        };
        words.push(rest[..end].to_owned());
        rest = rest[end..].trim_start_matches('"').trim_start();
    }
    Ok(words)
}

fn parse_line(number: usize, now: Span, words: &[String], names: &mut Names) -> Result<Line, String> {
    let (at, words) = match words[0].strip_prefix('+') {
        Some(later) => (now.plus(span(later)?), &words[1..]),
        None if words[0].starts_with(|c: char| c.is_ascii_digit()) => (span(&words[0])?, &words[1..]),
        None => (now, words),
    };
    if at < now {
        return Err(format!("{at} is before the line above, which is at {now}"));
    }
    let Some((first, rest)) = words.split_first() else { return Err("nothing happens at this time".into()) };
    let action = match first.as_str() {
        "<" => Action::Arrive(parse_packets(rest, names, false)?),
        ">" => Action::Leave(parse_packets(rest, names, true)?),
        "silence" if rest.is_empty() => Action::Silence,
        _ => Action::Call(parse_call(first, rest, names)?),
    };
    Ok(Line { number, at, action })
}

fn span(word: &str) -> Result<Span, String> {
    parse_span(word).map_err(|_| format!("{word:?} is no time, such as 10us or +1.5ms"))
}

fn parse_packets(words: &[String], names: &mut Names, leaves: bool) -> Result<Packets, String> {
    let Some((first, rest)) = words.split_first() else {
        return Err("the type of a packet is missing".into());
    };
    let kind = KINDS.iter().find(|kind| kind.name == first);
    let kind = kind.ok_or_else(|| {
        let names: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
        format!("{first:?} is no type of packets; there are {}", names.join(", "))
    })?;
    if leaves && kind.groups.contains(&Group::Raw) {
        return Err(format!("{first} is for packets that arrive: name the fields of one that leaves"));
    }
    let mut packets = Packets { kind, fields: Vec::new() };
    for word in rest {
        let (field, operand) = parse_field(kind, word, names, leaves)?;
        if packets.fields.iter().any(|(other, _)| other.name == field.name) {
            return Err(format!("{:?} is there twice", field.name));
        }
        packets.fields.push((field, operand));
    }
    Ok(packets)
}

fn parse_field(
    kind: &Kind,
    word: &str,
    names: &mut Names,
    leaves: bool,
) -> Result<(&'static Field, Operand), String> {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word.strip_prefix('!').unwrap_or(word), None),
    };
    let known = field(name).filter(|field| field.groups.iter().any(|group| kind.groups.contains(group)));
    let field = known.ok_or_else(|| format!("{word:?}: {} has no field {name:?}", kind.name))?;
    let one_way = match name {
        "from" | "cut" if leaves => Some("packets that arrive"),
        "to" if !leaves => Some("packets that leave"),
        _ => None,
    };
    if let Some(these) = one_way {
        return Err(format!("{word:?}: {name} is for {these}"));
    }
    let operand = match (field.form, value) {
        (Form::Flag, None) => Operand::Flag(!word.starts_with('!')),
        (Form::Flag, Some(_)) => return Err(format!("{word:?}: {name} is a flag: {name} or !{name}")),
        (_, None) => return Err(format!("{word:?} lacks a value: {name}=…")),
        (Form::Psns, Some("none")) => Operand::Set(Vec::new()),
        (Form::Psns, Some(value)) => {
            let ranges = value.split(',').map(|range| parse_range(word, range, &[], names, false));
            Operand::Set(ranges.collect::<Result<_, _>>()?)
        }
        (Form::Content, Some(value)) => Operand::Content(parse_content(word, value)?),
        (Form::Hex, Some(value)) => Operand::Hex(parse_hex(value)?),
        (form, Some(value)) => {
            let (bits, named) = match form {
                Form::Named(bits, named) => (bits, named),
                Form::Number(bits) => (bits, &[][..]),
                _ => (32, &[][..]),
            };
            let (first, last) = parse_range(word, value, named, names, leaves)?;
            for end in [&first, &last] {
                if end.variable.is_none() && (end.number < 0 || end.number >> bits != 0) {
                    return Err(format!("{word:?}: {name} has {bits} bits"));
                }
            }
            Operand::Range(first, last)
        }
    };
    Ok((field, operand))
}

/// One value, or two with `..` between them. The first may be a variable that is not known yet, if it `binds` it.
fn parse_range(
    word: &str,
    text: &str,
    named: &[(&str, u64)],
    names: &mut Names,
    binds: bool,
) -> Result<(Expression, Expression), String> {
    if let Some((_, value)) = named.iter().find(|(name, _)| *name == text) {
        let value = Expression { variable: None, number: i128::from(*value) };
        return Ok((value.clone(), value));
    }
    let parse = |text: &str| {
        Expression::parse(text).ok_or_else(|| match named.is_empty() {
            true => format!("{word:?}: {text:?} is no number and no variable, such as 5, 0x1f, $s or $s+1"),
            false => {
                let names: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
                format!("{word:?}: {text:?} is no number and none of {}", names.join(", "))
            }
        })
    };
    let (first, last) = match text.split_once("..") {
        Some((first, last)) => (parse(first)?, parse(last)?),
        None => (parse(text)?, parse(text)?),
    };
    for end in [&first, &last] {
        let Some(variable) = end.variable.as_ref().filter(|name| !names.variables.contains(*name)) else {
            continue;
        };
        if !binds || end.number != 0 {
            return Err(format!(
                "{word:?}: ${variable} has no value yet; a packet that leaves can give it one"
            ));
        }
        names.variables.insert(variable.clone());
    }
    Ok((first, last))
}

impl Expression {
    fn parse(text: &str) -> Option<Expression> {
        let Some(rest) = text.strip_prefix('$') else {
            return Some(Expression { variable: None, number: number(text)? });
        };
        let end = rest.find(['+', '-']).unwrap_or(rest.len());
        let (name, sum) = rest.split_at(end);
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let sign = if sum.starts_with('-') { -1 } else { 1 };
        let added = if sum.is_empty() { 0 } else { sign * number(&sum[1..])? };
        is_name.then(|| Expression { variable: Some(name.to_owned()), number: added })
    }
}

pub(crate) fn number(text: &str) -> Option<i128> {
    let value = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None if text.starts_with('+') => return None,
        None => text.parse().ok()?,
    };
    Some(value.into())
}

fn parse_content(word: &str, text: &str) -> Result<Content, String> {
    let (name, from) = match text.split_once('@') {
        Some((name, from)) => (name, Some(from)),
        None => (text, None),
    };
    let from = from.map(|from| from.parse().map_err(|_| format!("{word:?}: {from:?} is no offset")));
    match name {
        "" => Err(format!("{word:?} names no content")),
        _ if name.strip_prefix(NUMBERS).is_some_and(|text| number(text).is_none()) => {
            Err(format!("{word:?}: {name:?} is no number, such as {NUMBERS}5"))
        }
        _ => Ok(Content { name: name.to_owned(), from: from.transpose()? }),
    }
}

fn parse_hex(text: &str) -> Result<Vec<u8>, String> {
    let digit = |c: char| {
        c.to_digit(16).map(|digit| digit as u8).ok_or_else(|| format!("{c:?} is no hexadecimal digit"))
    };
    let digits: Vec<u8> = text.chars().filter(|c| *c != '_').map(digit).collect::<Result<_, _>>()?;
    match digits.len() % 2 {
        0 => Ok(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()),
        _ => Err(format!("{} hexadecimal digits, an odd number", digits.len())),
    }
}

fn parse_call(first: &str, words: &[String], names: &mut Names) -> Result<Call, String> {
    let found = CALLS.iter().find(|(name, ..)| *name == first);
    let &(_, verb, needed, options) = found.ok_or_else(|| {
        let names: Vec<&str> = CALLS.iter().map(|(name, ..)| *name).collect();
        format!("{first:?} is none of <, >, silence, {}", names.join(", "))
    })?;
    let mut call = Call {
        verb,
        name: String::new(),
        new: String::new(),
        number: 0,
        options: BTreeMap::new(),
        content: None,
        error: None,
    };
    let mut words = words.iter();
    for need in needed {
        let word = words.next().ok_or_else(|| format!("{first:?} lacks {}", need.describe()))?;
        take_word(&mut call, *need, word, names)?;
    }
    for word in words {
        if let Some(error) = word.strip_prefix('"') {
            call.error = Some(error.to_owned());
            continue;
        }
        let (name, value) =
            word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
        if name == "data" && [Verb::Done, Verb::Withdraw].contains(&verb) {
            call.content = Some(parse_content(word, value.unwrap_or_default())?);
            continue;
        }
        let known = options.iter().find(|option| **option == name);
        let name = known.ok_or_else(|| match options {
            [] => format!("{word:?}: {first} has no options"),
            _ => format!("{word:?}: the options of {first} are {}", options.join(", ")),
        })?;
        let value = value.map_or(Some(1), number).and_then(|value| u64::try_from(value).ok());
        let value = value.ok_or_else(|| format!("{word:?}: no number"))?;
        call.options.insert(name, value);
    }
    Ok(call)
}

impl Word {
    fn describe(self) -> &'static str {
        match self {
            Word::Connection => "the name of a connection",
            Word::NewConnection => "a name for the connection",
            Word::Operation => "the name of a message, an access, a receive or a claim",
            Word::NewOperation => "a name for it",
            Word::Known => "the name of a connection, a message, an access or a receive",
            Word::Content => "the name of its content",
            Word::Amo => "an atomic operation",
            Word::Number => "a number",
        }
    }
}

fn take_word(call: &mut Call, need: Word, word: &str, names: &mut Names) -> Result<(), String> {
    let (is_connection, is_operation) = (names.connections.contains(word), names.operations.contains(word));
    let holds = match need {
        Word::Connection => is_connection,
        Word::Operation => is_operation,
        Word::Known => is_connection || is_operation,
        _ => true,
    };
    if !holds {
        return Err(format!("{word:?} is not {}", need.describe()));
    }
    match need {
        Word::Amo => {
            let found = AMOS.iter().find(|(name, _)| *name == word);
            let names = || AMOS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
            call.number = found.ok_or_else(|| format!("{word:?} is none of {}", names()))?.1;
        }
        Word::Number => {
            let value = number(word).and_then(|value| u64::try_from(value).ok());
            call.number = value.ok_or_else(|| format!("{word:?} is no number"))?;
        }
        Word::NewConnection | Word::NewOperation => {
            if is_connection || is_operation {
                return Err(format!("the name {word:?} is taken"));
            }
            if word.contains('=') || word.starts_with('"') {
                return Err(format!("{word:?} is not {}", need.describe()));
            }
            let set =
                if need == Word::NewConnection { &mut names.connections } else { &mut names.operations };
            set.insert(word.to_owned());
            call.new = word.to_owned();
        }
        _ => call.name = word.to_owned(),
    }
    Ok(())
}
