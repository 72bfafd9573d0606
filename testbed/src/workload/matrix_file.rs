//! The `.cm` connection matrix of uet-htsim. [`CmReader`] documents the format.

use core::num::NonZeroU16;
use core::str::FromStr;
use std::collections::BTreeSet;

use thiserror::Error;
use weft_cc::{Rate, Time};
use weft_stack::wire::class::Priority;

use super::numbering::Numbering;
use super::{
    Background, BackgroundIdx, Connection, Flow, LinkFailure, MAX_BACKGROUNDS, MAX_FLOW_BYTES, MessageNumber,
    Start, Subject, Trigger, TriggerIdx, TriggerKind, Workload, WorkloadReason,
};
use crate::topology::{HostId, MAX_HOSTS};
use weft_cc::units::scaled;

/// Latest start in picoseconds: 53 days, well within the range in which instants can be compared.
const MAX_START: u64 = 1 << 62;

/// The unit of `start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum StartUnit {
    /// Microseconds.
    #[default]
    Microseconds,
    /// Picoseconds, as uet-htsim's generators write them.
    Picoseconds,
}

/// Options for reading a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CmOptions {
    /// Number of hosts in place of the file's `Nodes`, because some public files declare too few.
    pub hosts: Option<u32>,
    /// The unit of `start`.
    pub start_unit: StartUnit,
    /// Whether `prio` is ignored, as by uet-htsim's UEC program: all flows have the lowest priority.
    pub ignore_prio: bool,
}

/// Why a `.cm` file is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file}:{line}: {reason}")]
pub struct MatrixError {
    /// The file's name, as the caller gave it.
    pub file: String,
    /// The line, counted from 1.
    pub line: u32,
    /// The reason why the line is refused.
    pub reason: CmReason,
}

/// Reasons to refuse a `.cm` file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CmReason {
    /// A word has no meaning at its position.
    #[error("unknown word `{0}`")]
    UnknownWord(String),
    /// A word that needs a value is the last of its line.
    #[error("`{0}` needs a value")]
    NoValue(&'static str),
    /// A word has a value that is not allowed.
    #[error("`{word}` cannot be `{value}`")]
    BadValue {
        /// The word in front of the value.
        word: &'static str,
        /// The value as the file states it.
        value: String,
    },
    /// A word is given twice on a line or in the header.
    #[error("`{0}` is given twice")]
    Repeated(&'static str),
    /// A word of the header comes after the header.
    #[error("`{0}` belongs in the header")]
    Misplaced(&'static str),
    /// A line lacks a word.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// A flow does not begin with two host numbers around an arrow.
    #[error("`{0}` is not of the form SRC->DST")]
    BadArrow(String),
    /// A flow has neither start time nor trigger.
    #[error("the flow has neither `start` nor `trigger`")]
    NoStart,
    /// A flow has both a start time and a trigger.
    #[error("the flow has both `start` and `trigger`")]
    TwoStarts,
    /// A count of the header differs from that of the file.
    #[error("the header states {stated} {what}, the file has {found}")]
    Count {
        /// The header's word.
        what: &'static str,
        /// The stated count; 0 if the word is missing.
        stated: u32,
        /// The count in the file.
        found: usize,
    },
    /// The file has more hosts than a topology may have.
    #[error("{0} hosts are too many: a topology has at most {MAX_HOSTS}")]
    TooManyHosts(u32),
    /// Two flows have the same id, and the second is not marked as a message.
    #[error("flow {0} is defined already; further messages of its connection need `msg`")]
    RepeatedFlow(u32),
    /// Two flows of the same id are between different hosts.
    #[error("flow {id} goes from host {src} to host {dst} in an earlier line")]
    OtherHosts {
        /// The flow's number.
        id: u32,
        /// The sender in the earlier line.
        src: u32,
        /// The receiver in the earlier line.
        dst: u32,
    },
    /// Two messages of a connection have the same number.
    #[error("message {message} of flow {id} is defined already")]
    RepeatedMessage {
        /// The flow's number.
        id: u32,
        /// The message's number.
        message: u32,
    },
    /// Two triggers have the same number.
    #[error("trigger {0} is defined twice")]
    RepeatedTrigger(u32),
    /// A trigger is named but not defined.
    #[error("trigger {0} is not defined")]
    UndefinedTrigger(u32),
    /// A flow has another `prio` than the flows before it, and one of the two is not the number of a priority.
    #[error(
        "`prio` is {found} here and {others} before: expected 0 to 7, or the same for all flows (without `prio` it is \
         {DEFAULT_PRIORITY}, which means 0)"
    )]
    Priority {
        /// The number here.
        found: u32,
        /// The number of the first flow.
        others: u32,
    },
    /// Two messages of a connection differ in what is said of their connection.
    #[error("the messages of flow {0} differ; expected the same `prio`, `rate`, `path` and `pool` on each")]
    OtherTreatment(u32),
    /// There is background traffic of too many rates and paths.
    #[error("flows of more than {MAX_BACKGROUNDS} different rates and paths")]
    TooManyBackgrounds,
    /// The flows and triggers do not make a workload.
    #[error(transparent)]
    Workload(#[from] WorkloadReason),
}

/// Reads a `.cm` file line by line. Besides the flows it keeps only an index of the ids: a few bytes if ids
/// rise by one, as generators write them, otherwise an entry for each id.
///
/// Words are separated by blanks; `#` starts a comment. The header comes first (`Nodes`, `Connections`,
/// `Triggers`, `Failures`, each with a number; the last two default to 0), then in any order:
///
/// ```text
/// SRC->DST [id N] [msg [N]] start TIME | trigger N  size BYTES
///          [send_done_trigger N] [recv_done_trigger N] [prio N] [rate N [path N]] [pool N]
/// trigger id N oneshot | multishot | barrier count N  [at TIME] [delay TIME] [then N]
/// failure switch_type TOR|AGG|CORE switch_id N link_id N
/// ```
///
/// - **start** is in microseconds ([`StartUnit`]) and may have decimals. uet-htsim is inconsistent: a comment
///   in its loader and its generators use picoseconds, but its UEC program reads microseconds, and the
///   matrices published with Uno are in microseconds too.
/// - **id** is above 0. Flows with the same id are messages of one connection: they have the same hosts, and
///   all but the first are marked with `msg`. (uet-htsim accepts them only in its connection-reuse mode.)
/// - **send_done_trigger** is activated when the sender knows that all of the flow has arrived,
///   **recv_done_trigger** when the receiver has all of it.
///
/// - **at**, **delay** and **then** are not known to uet-htsim: a trigger with `at` is activated at a time, one with
///   `delay` starts its flows so long after its activation, as after a computation, and `then` names a trigger that it
///   activates when it starts its flows. Times are in the unit of **start**.
/// - **prio** is the flow's [`Priority`] in switches, 0 to 7; 0 without it. Matrices written for uet-htsim may have any other
///   number if it is the same for all flows: it then says nothing. (uet-htsim's UEC program reads the word and does not
///   use it; its NDP program grants credit in that order.) [`CmOptions::ignore_prio`] ignores the word.
/// - **rate** and **path** make the flow [`Background`] traffic of so many bits per second, with this entropy. uet-htsim does
///   not know them.
///
/// - **pool** is the number of connections behind an id: each message takes the least loaded one ([`Connection::pool`]).
///   uet-htsim does not know it.
///
/// The reader is stricter than uet-htsim: sizes must be given, counts must be right, the
/// header must have no unknown words, and every flow must be able to start.
pub struct CmReader {
    file: String,
    draft: Draft,
}

impl CmReader {
    /// A reader at the start of a file. `file` names the file in errors.
    pub fn new(file: &str, options: CmOptions) -> CmReader {
        CmReader { file: file.to_owned(), draft: Draft { options, ..Draft::default() } }
    }

    /// Reads the next line, with or without its line break.
    ///
    /// # Errors
    /// The line is wrong or contradicts an earlier one. No further line can be read.
    pub fn line(&mut self, text: &str) -> Result<(), MatrixError> {
        self.draft.line(text).map_err(|fault| refusal(&self.file, fault))
    }

    /// Checks the file as a whole and makes the workload.
    ///
    /// # Errors
    /// A count differs from the header's, a trigger is not defined, or a flow can never start.
    pub fn finish(self) -> Result<Workload, MatrixError> {
        self.draft.finish().map_err(|fault| refusal(&self.file, fault))
    }
}

/// Reads the text of a `.cm` file; see [`CmReader`]. `file` names it in errors.
///
/// # Errors
/// The first line that is wrong.
pub fn parse_cm(file: &str, text: &str, options: CmOptions) -> Result<Workload, MatrixError> {
    let mut reader = CmReader::new(file, options);
    text.lines().try_for_each(|line| reader.line(line))?;
    reader.finish()
}

fn refusal(file: &str, (line, reason): Fault) -> MatrixError {
    MatrixError { file: file.to_owned(), line, reason }
}

/// The line of an error, and the reason.
type Fault = (u32, CmReason);

/// The priority of flows without `prio`, as in uet-htsim.
const DEFAULT_PRIORITY: u32 = 2_000_000;

/// The priority of this number, if there is one; [`DEFAULT_PRIORITY`] stands for the lowest.
fn numbered(prio: u32) -> Option<Priority> {
    match prio {
        DEFAULT_PRIORITY => Some(Priority::LOWEST),
        _ => u8::try_from(prio).ok().and_then(Priority::new),
    }
}

/// The words of the header.
const HEADER: [&str; 4] = ["Nodes", "Connections", "Triggers", "Failures"];

/// The parsed file, before it is checked as a whole.
#[derive(Default)]
struct Draft {
    options: CmOptions,
    /// Value and line of each word of the header.
    header: [Option<(u32, u32)>; 4],
    in_body: bool,
    flows: Vec<Flow>,
    backgrounds: Vec<Background>,
    /// The `prio` of the first flow.
    priority: Option<u32>,
    /// The line of each flow.
    flow_lines: Numbering,
    connections: Vec<Connection>,
    /// The connection index of each id.
    connection_of: Numbering,
    /// Connection and number of the messages that have a number.
    messages: BTreeSet<(u32, u32)>,
    triggers: TriggerTable,
    failures: Vec<LinkFailure>,
    last_line: u32,
}

/// Triggers in the order in which the file mentions them, defined or not.
#[derive(Default)]
struct TriggerTable {
    index_of: Numbering,
    mentioned: Vec<Mentioned>,
    /// Indices into `mentioned`, in the order of the definitions.
    defined: Vec<u32>,
}

struct Mentioned {
    id: u32,
    line: u32,
    /// `None` if it is not defined; its number and the next trigger are not final.
    definition: Option<Trigger>,
}

impl TriggerTable {
    fn mention(&mut self, id: u32, line: u32) -> TriggerIdx {
        let index = self.index_of.get(id).unwrap_or_else(|| {
            let next = self.mentioned.len() as u32;
            self.index_of.insert(id, next);
            self.mentioned.push(Mentioned { id, line, definition: None });
            next
        });
        TriggerIdx::new(index).expect("fewer triggers than bytes of text")
    }

    fn define(&mut self, trigger: Trigger, line: u32) -> Result<(), Fault> {
        let index = self.mention(trigger.id, line).index();
        let slot = &mut self.mentioned[index];
        if slot.definition.is_some() {
            return Err((line, CmReason::RepeatedTrigger(trigger.id)));
        }
        (slot.definition, slot.line) = (Some(trigger), line);
        self.defined.push(index as u32);
        Ok(())
    }
}

impl Draft {
    fn line(&mut self, text: &str) -> Result<(), Fault> {
        self.last_line = self.last_line.saturating_add(1);
        let line = self.last_line;
        let content = text.split('#').next().unwrap_or_default();
        let mut words = Words { line, words: content.split_ascii_whitespace(), pending: None };
        let Some(first) = words.next() else { return Ok(()) };
        if let Some(i) = HEADER.iter().position(|&word| word == first) {
            return self.header_line(i, &mut words);
        }
        self.in_body = true;
        match first {
            "trigger" => self.trigger_line(&mut words),
            "failure" => self.failure_line(&mut words),
            _ if first.contains("->") => self.flow_line(first, &mut words),
            _ => Err((line, CmReason::UnknownWord(first.to_owned()))),
        }
    }

    fn header_line(&mut self, i: usize, words: &mut Words<'_>) -> Result<(), Fault> {
        let value = words.number(HEADER[i])?;
        words.end()?;
        if self.in_body {
            return Err((words.line, CmReason::Misplaced(HEADER[i])));
        }
        if self.header[i].replace((value, words.line)).is_some() {
            return Err((words.line, CmReason::Repeated(HEADER[i])));
        }
        Ok(())
    }

    fn flow_line(&mut self, arrow: &str, words: &mut Words<'_>) -> Result<(), Fault> {
        let line = words.line;
        let (src, dst) = arrow
            .split_once("->")
            .and_then(|(src, dst)| Some((HostId(number(src)?), HostId(number(dst)?))))
            .ok_or_else(|| (line, CmReason::BadArrow(arrow.to_owned())))?;
        let words = FlowWords::read(words, self.options.start_unit)?;
        let priority =
            self.priority(words.priority.unwrap_or(DEFAULT_PRIORITY)).map_err(|reason| (line, reason))?;
        let mut mention = |id: Option<u32>| id.map(|id| self.triggers.mention(id, line));
        let start = match (words.start, mention(words.trigger)) {
            (Some(time), None) => Start::At(time),
            (None, Some(trigger)) => Start::Trigger(trigger),
            (None, None) => return Err((line, CmReason::NoStart)),
            (Some(_), Some(_)) => return Err((line, CmReason::TwoStarts)),
        };
        let (on_sent, on_received) = (mention(words.send_done), mention(words.recv_done));
        let bytes = words.size.ok_or((line, CmReason::Missing("size")))?;
        let background = self.background(&words).map_err(|reason| (line, reason))?;
        let connection = Connection {
            priority,
            background,
            pool: words.pool.unwrap_or(NonZeroU16::MIN),
            ..Connection::new(words.id.unwrap_or(0), src, dst)
        };
        let connection = self.connection(line, words.id, words.message, connection)?;
        self.flow_lines.insert(self.flows.len() as u32, line);
        self.flows.push(Flow {
            id: words.id.unwrap_or(0),
            connection,
            src,
            dst,
            bytes,
            start,
            on_sent,
            on_received,
            message: words.message,
        });
        Ok(())
    }

    /// The background traffic that a flow is, which is added if it is new.
    fn background(&mut self, words: &FlowWords) -> Result<Option<BackgroundIdx>, CmReason> {
        let rate = match (words.rate, words.path) {
            (Some(rate), _) => Rate::from_bps(rate),
            (None, None) => return Ok(None),
            (None, Some(_)) => return Err(CmReason::Missing("rate")),
        };
        let kind = Background { rate, path: words.path };
        let known = self.backgrounds.iter().position(|other| *other == kind);
        let index = BackgroundIdx::new(known.unwrap_or(self.backgrounds.len()));
        let index = index.ok_or(CmReason::TooManyBackgrounds)?;
        if known.is_none() {
            self.backgrounds.push(kind);
        }
        Ok(Some(index))
    }

    /// The priority of a flow whose `prio` is `found`.
    fn priority(&mut self, found: u32) -> Result<Priority, CmReason> {
        if self.options.ignore_prio {
            return Ok(Priority::LOWEST);
        }
        let others = *self.priority.get_or_insert(found);
        match (numbered(found), numbered(others)) {
            (Some(priority), Some(_)) => Ok(priority),
            _ if found == others => Ok(Priority::LOWEST),
            _ => Err(CmReason::Priority { found, others }),
        }
    }

    /// The index of the flow's connection, which is added if it is new.
    fn connection(
        &mut self,
        line: u32,
        id: Option<u32>,
        message: Option<MessageNumber>,
        new: Connection,
    ) -> Result<u32, Fault> {
        let next = self.connections.len() as u32;
        let known = id.and_then(|id| self.connection_of.get(id));
        if let (Some(id), None) = (id, known) {
            self.connection_of.insert(id, next);
        }
        let (id, index) = (new.id, known.unwrap_or(next));
        match self.connections.get(index as usize) {
            None => self.connections.push(new),
            Some(old) if (old.src, old.dst) != (new.src, new.dst) => {
                return Err((line, CmReason::OtherHosts { id, src: old.src.0, dst: old.dst.0 }));
            }
            Some(_) if message.is_none() => return Err((line, CmReason::RepeatedFlow(id))),
            Some(old)
                if (old.priority, old.background, old.pool) != (new.priority, new.background, new.pool) =>
            {
                return Err((line, CmReason::OtherTreatment(id)));
            }
            Some(_) => {}
        }
        if let Some(message) = message.map(MessageNumber::get).filter(|&m| m > 0)
            && !self.messages.insert((index, message))
        {
            return Err((line, CmReason::RepeatedMessage { id, message }));
        }
        Ok(index)
    }

    fn trigger_line(&mut self, words: &mut Words<'_>) -> Result<(), Fault> {
        let unit = self.options.start_unit;
        let (mut id, mut kind, mut count, mut at, mut delay, mut then) = (None, None, None, None, None, None);
        while let Some(word) = words.next() {
            match word {
                "id" => words.once("id", &mut id, Words::positive)?,
                "at" => words.once("at", &mut at, |w, name| w.start(name, unit))?,
                "delay" => words.once("delay", &mut delay, |w, name| w.start(name, unit))?,
                "then" => words.once("then", &mut then, Words::positive)?,
                "count" => words.once("count", &mut count, Words::positive)?,
                "oneshot" => words.once("type", &mut kind, |_, _| Ok("oneshot"))?,
                "multishot" => words.once("type", &mut kind, |_, _| Ok("multishot"))?,
                "barrier" => words.once("type", &mut kind, |_, _| Ok("barrier"))?,
                _ => return Err(words.unknown(word)),
            }
        }
        let line = words.line;
        let id = id.ok_or((line, CmReason::Missing("id")))?;
        let kind = match (kind, count) {
            (Some("barrier"), Some(count)) => TriggerKind::Barrier(count),
            (Some("barrier"), None) => return Err((line, CmReason::Missing("count"))),
            (Some(_), Some(_)) => return Err((line, CmReason::UnknownWord("count".to_owned()))),
            (Some("oneshot"), None) => TriggerKind::Oneshot,
            (Some(_), None) => TriggerKind::Multishot,
            (None, _) => return Err((line, CmReason::Missing("oneshot, multishot or barrier"))),
        };
        let trigger = Trigger {
            at,
            delay: delay.unwrap_or(Time::ZERO).since(Time::ZERO),
            then: then.map(|then| self.triggers.mention(then, line)),
            ..Trigger::new(id, kind)
        };
        self.triggers.define(trigger, line)
    }

    fn failure_line(&mut self, words: &mut Words<'_>) -> Result<(), Fault> {
        let (mut tier, mut switch, mut link) = (None, None, None);
        while let Some(word) = words.next() {
            match word {
                "switch_type" => words.once("switch_type", &mut tier, Words::switch_type)?,
                "switch_id" => words.once("switch_id", &mut switch, Words::number)?,
                "link_id" => words.once("link_id", &mut link, Words::number)?,
                _ => return Err(words.unknown(word)),
            }
        }
        let missing = |word| (words.line, CmReason::Missing(word));
        self.failures.push(LinkFailure {
            tier: tier.ok_or(missing("switch_type"))?,
            switch: switch.ok_or(missing("switch_id"))?,
            link: link.ok_or(missing("link_id"))?,
        });
        Ok(())
    }

    fn finish(mut self) -> Result<Workload, Fault> {
        self.check_counts()?;
        let hosts = match (self.options.hosts, self.header[0]) {
            (Some(hosts), _) => hosts,
            (None, Some((nodes, line))) if u64::from(nodes) > MAX_HOSTS => {
                return Err((line, CmReason::TooManyHosts(nodes)));
            }
            (None, Some((nodes, _))) => nodes,
            (None, None) => return Err((1, CmReason::Missing(HEADER[0]))),
        };
        let triggers = self.order_triggers()?;
        self.number_flows();
        let Draft { flows, connections, failures, flow_lines, triggers: table, backgrounds, .. } = self;
        let workload = Workload::new(hosts, flows, connections, triggers, failures);
        workload.and_then(|workload| workload.with_backgrounds(backgrounds)).map_err(|error| {
            let line = match error.subject {
                Subject::Whole => 1,
                Subject::Flow(i) => flow_lines.get(i as u32).unwrap_or(1),
                Subject::Trigger(i) => table.mentioned[table.defined[i] as usize].line,
            };
            (line, CmReason::Workload(error.reason))
        })
    }

    fn check_counts(&self) -> Result<(), Fault> {
        let found = [self.flows.len(), self.triggers.defined.len(), self.failures.len()];
        for (i, found) in (1..).zip(found) {
            let (stated, line) = self.header[i].unwrap_or((0, self.last_line.max(1)));
            if stated as usize != found {
                return Err((line, CmReason::Count { what: HEADER[i], stated, found }));
            }
        }
        Ok(())
    }

    /// Sorts the triggers by their definitions, and changes the indices in the flows accordingly.
    fn order_triggers(&mut self) -> Result<Vec<Trigger>, Fault> {
        let mut triggers = Vec::with_capacity(self.triggers.defined.len());
        let mut place = vec![None; self.triggers.mentioned.len()];
        if let Some(undefined) = self.triggers.mentioned.iter().find(|t| t.definition.is_none()) {
            return Err((undefined.line, CmReason::UndefinedTrigger(undefined.id)));
        }
        for &index in &self.triggers.defined {
            let Some(trigger) = self.triggers.mentioned[index as usize].definition else { continue };
            place[index as usize] = TriggerIdx::new(triggers.len() as u32);
            triggers.push(trigger);
        }
        let renumber = |t: TriggerIdx| place[t.index()].unwrap_or(t);
        triggers.iter_mut().for_each(|trigger| trigger.then = trigger.then.map(renumber));
        for flow in &mut self.flows {
            if let Start::Trigger(t) = &mut flow.start {
                *t = renumber(*t);
            }
            flow.on_sent = flow.on_sent.map(renumber);
            flow.on_received = flow.on_received.map(renumber);
        }
        Ok(triggers)
    }

    /// Assigns unused numbers to the flows without a number.
    fn number_flows(&mut self) {
        let mut free = (1u32..).filter(|&id| self.connection_of.get(id).is_none());
        for flow in self.flows.iter_mut().filter(|flow| flow.id == 0) {
            flow.id = free.next().unwrap_or(u32::MAX);
            self.connections[flow.connection as usize].id = flow.id;
        }
    }
}

/// The words that may follow the arrow.
#[derive(Default)]
struct FlowWords {
    id: Option<u32>,
    message: Option<MessageNumber>,
    start: Option<Time>,
    trigger: Option<u32>,
    size: Option<u64>,
    send_done: Option<u32>,
    recv_done: Option<u32>,
    priority: Option<u32>,
    /// Bits per second.
    rate: Option<u64>,
    path: Option<u16>,
    pool: Option<NonZeroU16>,
}

impl FlowWords {
    fn read(words: &mut Words<'_>, unit: StartUnit) -> Result<FlowWords, Fault> {
        let mut found = FlowWords::default();
        while let Some(word) = words.next() {
            match word {
                "id" => words.once("id", &mut found.id, Words::positive)?,
                "msg" => words.once("msg", &mut found.message, Words::message)?,
                "start" => words.once("start", &mut found.start, |w, name| w.start(name, unit))?,
                "trigger" => words.once("trigger", &mut found.trigger, Words::positive)?,
                "size" => words.once("size", &mut found.size, Words::size)?,
                "send_done_trigger" => {
                    words.once("send_done_trigger", &mut found.send_done, Words::positive)?;
                }
                "recv_done_trigger" => {
                    words.once("recv_done_trigger", &mut found.recv_done, Words::positive)?;
                }
                "prio" => words.once("prio", &mut found.priority, Words::number)?,
                "rate" => words.once("rate", &mut found.rate, Words::rate)?,
                "path" => words.once("path", &mut found.path, Words::path)?,
                "pool" => words.once("pool", &mut found.pool, |w, name| w.value(name, number_of))?,
                _ => return Err(words.unknown(word)),
            }
        }
        Ok(found)
    }
}

/// The words of a line.
struct Words<'a> {
    line: u32,
    words: core::str::SplitAsciiWhitespace<'a>,
    /// A word that was read ahead.
    pending: Option<&'a str>,
}

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a str> {
        self.pending.take().or_else(|| self.words.next())
    }

    fn unknown(&self, word: &str) -> Fault {
        (self.line, CmReason::UnknownWord(word.to_owned()))
    }

    fn end(&mut self) -> Result<(), Fault> {
        self.next().map_or(Ok(()), |word| Err(self.unknown(word)))
    }

    /// Reads the value of `name` into `slot`, which must be empty.
    fn once<T>(
        &mut self,
        name: &'static str,
        slot: &mut Option<T>,
        read: impl FnOnce(&mut Self, &'static str) -> Result<T, Fault>,
    ) -> Result<(), Fault> {
        let value = read(self, name)?;
        if slot.replace(value).is_some() { Err((self.line, CmReason::Repeated(name))) } else { Ok(()) }
    }

    /// Reads the value of `name` with `read`.
    fn value<T>(&mut self, name: &'static str, read: impl FnOnce(&str) -> Option<T>) -> Result<T, Fault> {
        let text = self.next().ok_or((self.line, CmReason::NoValue(name)))?;
        read(text).ok_or_else(|| (self.line, CmReason::BadValue { word: name, value: text.to_owned() }))
    }

    fn number(&mut self, name: &'static str) -> Result<u32, Fault> {
        self.value(name, number)
    }

    fn rate(&mut self, name: &'static str) -> Result<u64, Fault> {
        self.value(name, |text| number_of(text).filter(|&bps| bps > 0))
    }

    fn path(&mut self, name: &'static str) -> Result<u16, Fault> {
        self.value(name, |text| number_of(text).filter(|&path| path < 1 << 14))
    }

    fn positive(&mut self, name: &'static str) -> Result<u32, Fault> {
        self.value(name, |text| number(text).filter(|&n| n > 0))
    }

    fn size(&mut self, name: &'static str) -> Result<u64, Fault> {
        let bytes = self.value(name, |text| if text.contains('.') { None } else { scaled(text, 1) })?;
        if bytes > MAX_FLOW_BYTES {
            return Err((self.line, CmReason::Workload(WorkloadReason::TooLarge(bytes))));
        }
        Ok(bytes)
    }

    fn start(&mut self, name: &'static str, unit: StartUnit) -> Result<Time, Fault> {
        let factor = match unit {
            StartUnit::Microseconds => 1_000_000,
            StartUnit::Picoseconds => 1,
        };
        self.value(name, |text| scaled(text, factor).filter(|&ps| ps <= MAX_START).map(Time::from_ps))
    }

    /// Reads the optional number of a message.
    fn message(&mut self, name: &'static str) -> Result<MessageNumber, Fault> {
        let following = self.next();
        self.pending = following;
        match following {
            Some(text) if text.starts_with(|c: char| c.is_ascii_digit() || c == '-') => {
                self.value(name, |text| number(text).filter(|&n| n > 0).and_then(MessageNumber::new))
            }
            _ => Ok(MessageNumber::UNNUMBERED),
        }
    }

    fn switch_type(&mut self, name: &'static str) -> Result<u8, Fault> {
        self.value(name, |text| match text {
            "TOR" => Some(0),
            "AGG" => Some(1),
            "CORE" => Some(2),
            _ => None,
        })
    }
}

/// Parses an unsigned whole number of 32 bits.
fn number(text: &str) -> Option<u32> {
    number_of(text)
}

/// A number without a sign.
fn number_of<N: FromStr>(text: &str) -> Option<N> {
    if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}
