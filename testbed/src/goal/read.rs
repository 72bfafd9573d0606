//! Reads GOAL programs from text.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use rustc_hash::FxHasher;
use thiserror::Error;

use super::cycle;
use super::words::Words;
use super::{Action, Dependency, Event, MAX_COMPUTATION, MAX_OPERATIONS, MAX_RANKS, Program, RankProgram};

/// The longest label, bytes.
const MAX_LABEL: usize = 255;
/// Characters of a word that an error repeats.
const SHOWN: usize = 60;
/// Words that cannot be labels, because statements would become ambiguous.
const KEYWORDS: [&str; 5] = ["calc", "send", "recv", "requires", "irequires"];

/// Why a GOAL program is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file}:{line}: `{word}`: expected {expected}")]
pub struct GoalError {
    /// The file's name, as the caller gave it.
    pub file: String,
    /// The line, counted from 1.
    pub line: u32,
    /// The word that is wrong; `end of line` or `end of file` where there is none.
    pub word: String,
    /// What was expected in its place.
    pub expected: String,
}

/// A line, a word of it, and what was expected instead.
type Fault = (u32, String, String);

/// Reads a GOAL program line by line, without keeping the text. Memory is proportional to the operations and
/// dependencies, of which there may be [`MAX_OPERATIONS`] each.
///
/// ```text
/// num_ranks 2
/// rank 0 {
/// a: calc 1000
/// b: send 8b to 1 tag 7
/// b requires a
/// }
/// rank 1 { recv 8b from 0 tag 7 }
/// ```
///
/// - A file begins with `num_ranks N`. A block `rank R { … }` follows for each of the ranks 0 to N - 1, in any order.
///   Blanks separate words; `//` starts a comment that ends with its line, `/* */` encloses one.
/// - **`[LABEL:] calc T [cpu C]`** computes for T nanoseconds.
/// - **`[LABEL:] send Sb to RANK [tag T] [cpu C] [nic I]`** sends S bytes, at most 2³² - 1. `b` belongs to the number.
/// - **`[LABEL:] recv Sb from RANK [tag T] [cpu C] [nic I]`** receives. RANK -1 is any rank, and T -1 any tag.
/// - **`LABEL requires LABEL2`**: LABEL starts when LABEL2 has finished. **`LABEL irequires LABEL2`**: LABEL starts when
///   LABEL2 has started. Labels belong to their rank, and may be used before they are defined.
/// - Without a word for it, the tag, the processor and the interface are 0. Tags have 32 bits, processors and interfaces
///   16. `nic` has no effect, because hosts have one interface.
/// - A statement is on one line, and a line in a block has one statement. A label is a letter and then letters, digits and
///   `_`, at most 255 in all; `calc`, `send`, `recv`, `requires` and `irequires` are no labels.
///
/// Everything else is refused, as are labels that are used but not defined or defined twice, ranks that are not
/// there or appear twice, and dependencies that form a cycle.
pub struct GoalReader {
    file: String,
    number: u32,
    in_comment: bool,
    place: Place,
    /// Number of ranks that the header states.
    count: u32,
    /// The ranks read so far.
    ranks: Vec<(u32, RankProgram)>,
    seen: Vec<bool>,
    /// Operations and dependencies read so far.
    operations: usize,
    dependencies: usize,
}

/// What comes next.
enum Place {
    Header,
    Count,
    /// A block or the end.
    Between,
    Number,
    Brace(u32),
    Inside(Box<Block>),
}

/// A block that has begun.
struct Block {
    rank: u32,
    /// Its line.
    line: u32,
    program: RankProgram,
    names: HashMap<Box<str>, u32, BuildHasherDefault<FxHasher>>,
    /// By number of the name.
    labels: Vec<Label>,
    waits: Vec<Wait>,
}

/// A name that was used or defined.
struct Label {
    operation: Option<u32>,
    /// The line of its first use.
    line: u32,
}

/// A dependency between labels.
struct Wait {
    later: u32,
    earlier: u32,
    event: Event,
    line: u32,
}

/// Reads the program `text`; `file` is its name in errors.
///
/// # Errors
/// [`GoalError`] says which word of which line is wrong.
pub fn parse_goal(file: &str, text: &str) -> Result<Program, GoalError> {
    let mut reader = GoalReader::new(file);
    text.lines().try_for_each(|line| reader.line(line))?;
    reader.finish()
}

impl GoalReader {
    /// A reader that calls the file `file` in errors.
    pub fn new(file: &str) -> GoalReader {
        GoalReader {
            file: file.to_owned(),
            number: 0,
            in_comment: false,
            place: Place::Header,
            count: 0,
            ranks: Vec::new(),
            seen: Vec::new(),
            operations: 0,
            dependencies: 0,
        }
    }

    /// Reads the next line.
    ///
    /// # Errors
    /// [`GoalError`] says what is wrong; the reader is of no use then.
    pub fn line(&mut self, line: &str) -> Result<(), GoalError> {
        let Some(number) = self.number.checked_add(1) else {
            return Err(self.error((self.number, "end of line".into(), "at most 2³² - 1 lines".into())));
        };
        self.number = number;
        let mut words = Words::new(line, self.in_comment);
        while words.peek().is_some() {
            self.step(&mut words).map_err(|fault| self.error(fault))?;
        }
        self.in_comment = words.in_comment;
        Ok(())
    }

    /// The program.
    ///
    /// # Errors
    /// The file ends too early.
    pub fn finish(mut self) -> Result<Program, GoalError> {
        let missing = self.seen.iter().position(|seen| !seen);
        let expected = match (&self.place, missing) {
            _ if self.in_comment => "`*/`, which ends a comment".into(),
            (Place::Header, _) => "`num_ranks`".into(),
            (Place::Count, _) => COUNT.into(),
            (Place::Number, _) => "the number of a rank".into(),
            (Place::Brace(_), _) => "`{`".into(),
            (Place::Inside(block), _) => {
                format!("`}}` at the end of rank {}, which begins in line {}", block.rank, block.line)
            }
            (Place::Between, Some(rank)) => format!("a block of rank {rank}"),
            (Place::Between, None) => {
                self.ranks.sort_unstable_by_key(|(rank, _)| *rank);
                return Ok(Program { ranks: self.ranks.into_iter().map(|(_, program)| program).collect() });
            }
        };
        Err(self.error((self.number.max(1), "end of file".into(), expected)))
    }

    fn error(&self, (line, word, expected): Fault) -> GoalError {
        GoalError { file: self.file.clone(), line, word, expected }
    }

    /// Reads the next word, or the next statement.
    fn step(&mut self, words: &mut Words<'_>) -> Result<(), Fault> {
        let line = self.number;
        match &mut self.place {
            Place::Header => {
                keyword(words, line, "num_ranks")?;
                self.place = Place::Count;
            }
            Place::Count => {
                self.count = value(words, line, COUNT, |text| number(text, 1, u64::from(MAX_RANKS)))? as u32;
                self.seen = vec![false; self.count as usize];
                self.place = Place::Between;
            }
            Place::Between => {
                keyword(words, line, "rank")?;
                self.place = Place::Number;
            }
            Place::Number => {
                let expected = format!("the number of a rank, 0 to {}", self.count - 1);
                let rank = value(words, line, &expected, |text| rank(text, self.count))?;
                if std::mem::replace(&mut self.seen[rank as usize], true) {
                    return Err((line, rank.to_string(), "a rank that has no block yet".into()));
                }
                self.place = Place::Brace(rank);
            }
            Place::Brace(rank) => {
                let rank = *rank;
                keyword(words, line, "{")?;
                self.place = Place::Inside(Box::new(Block::new(rank, line)));
            }
            Place::Inside(block) => {
                if !words.take_if("}") {
                    let is_operation = block.statement(words, line, self.count)?;
                    return self.count(is_operation);
                }
                let Place::Inside(block) = std::mem::replace(&mut self.place, Place::Between) else {
                    return Ok(());
                };
                self.ranks.push((block.rank, block.finish()?));
            }
        }
        Ok(())
    }

    /// Counts a statement.
    fn count(&mut self, is_operation: bool) -> Result<(), Fault> {
        let count = if is_operation { &mut self.operations } else { &mut self.dependencies };
        *count += 1;
        if *count <= MAX_OPERATIONS {
            return Ok(());
        }
        let expected = format!("at most {MAX_OPERATIONS} operations and as many dependencies");
        Err((self.number, "end of line".into(), expected))
    }
}

const COUNT: &str = "the number of ranks, 1 to 1048576";

impl Block {
    fn new(rank: u32, line: u32) -> Block {
        Block {
            rank,
            line,
            program: RankProgram::default(),
            names: HashMap::default(),
            labels: Vec::new(),
            waits: Vec::new(),
        }
    }

    /// Reads a statement. Returns whether it is an operation, not a dependency.
    fn statement(&mut self, words: &mut Words<'_>, line: u32, ranks: u32) -> Result<bool, Fault> {
        let first = words.take().unwrap_or_default();
        if words.take_if(":") {
            let label = self.label(first, line)?;
            if self.labels[label as usize].operation.is_some() {
                return Err((line, shown(first), "a label that is not defined yet".into()));
            }
            let word = words.take();
            let index = self.operation(word, first, words, line, ranks)?;
            self.labels[label as usize].operation = Some(index);
            return Ok(true);
        }
        if matches!(first, "calc" | "send" | "recv") {
            self.operation(Some(first), "", words, line, ranks)?;
            return Ok(true);
        }
        let later = self.label(first, line)?;
        let event = match words.take() {
            Some("requires") => Event::Finish,
            Some("irequires") => Event::Start,
            other => return Err(fault(line, other, "`:`, `requires` or `irequires` after a label")),
        };
        let Some(word) = words.take() else { return Err(fault(line, None, "a label")) };
        let earlier = self.label(word, line)?;
        end(words, line, "the end of the line")?;
        self.waits.push(Wait { later, earlier, event, line });
        Ok(false)
    }

    /// The number of a name.
    fn label(&mut self, name: &str, line: u32) -> Result<u32, Fault> {
        let mut bytes = name.bytes();
        let is_label = bytes.next().is_some_and(|b| b.is_ascii_alphabetic())
            && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
            && name.len() <= MAX_LABEL
            && !KEYWORDS.contains(&name);
        if !is_label {
            let expected = "a statement: calc, send, recv, or a label (a letter, then letters, digits and _)";
            return Err((line, shown(name), expected.into()));
        }
        if let Some(number) = self.names.get(name) {
            return Ok(*number);
        }
        let number = self.labels.len() as u32;
        self.labels.push(Label { operation: None, line });
        self.names.insert(name.into(), number);
        Ok(number)
    }

    /// Reads an operation after its first word.
    fn operation(
        &mut self,
        word: Option<&str>,
        label: &str,
        words: &mut Words<'_>,
        line: u32,
        ranks: u32,
    ) -> Result<u32, Fault> {
        let action = match word {
            Some("calc") => {
                Action::Calc { ns: value(words, line, NANOSECONDS, |text| number(text, 0, MAX_COMPUTATION))? }
            }
            Some("send") => {
                let bytes = value(words, line, SIZE, size)?;
                keyword(words, line, "to")?;
                let expected = format!("a rank, 0 to {}", ranks - 1);
                Action::Send { bytes, to: value(words, line, &expected, |text| rank(text, ranks))?, tag: 0 }
            }
            Some("recv") => {
                let bytes = value(words, line, SIZE, size)?;
                keyword(words, line, "from")?;
                let expected = format!("a rank, 0 to {}, or -1 for any", ranks - 1);
                let from = value(words, line, &expected, |text| or_any(text, |text| rank(text, ranks)))?;
                Action::Recv { bytes, from, tag: Some(0) }
            }
            other => return Err(fault(line, other, "calc, send or recv")),
        };
        let (action, place) = attributes(action, words, line)?;
        if self.program.labels.len() + label.len() > u32::MAX as usize {
            return Err((line, shown(label), "labels of at most 4 GiB in a rank".into()));
        }
        self.program.lines.push(line);
        Ok(self.program.push(action, place, label))
    }

    /// The rank's program, whose labels must all be defined and whose dependencies must not form a cycle.
    fn finish(self) -> Result<RankProgram, Fault> {
        let Block { rank, mut program, names, labels, waits, .. } = self;
        let undefined = labels.iter().enumerate().filter(|(_, label)| label.operation.is_none());
        if let Some((number, label)) = undefined.min_by_key(|(number, label)| (label.line, *number)) {
            let name = names.iter().find(|(_, other)| **other as usize == number);
            let name = name.map_or("", |(name, _)| name);
            return Err((label.line, shown(name), format!("a label that rank {rank} defines")));
        }
        let operation = |label: u32| labels[label as usize].operation.unwrap_or(0);
        let of = |wait: &Wait| Dependency {
            earlier: operation(wait.earlier),
            later: operation(wait.later),
            event: wait.event,
        };
        program.depend(waits.iter().map(of).collect());
        let Some(cycle) = cycle::find(&program) else { return Ok(program) };
        // The statement that closes the cycle is the last of those that form it.
        let following = cycle.iter().skip(1).chain(cycle.first());
        let next: HashMap<u32, u32, BuildHasherDefault<FxHasher>> =
            cycle.iter().copied().zip(following.copied()).collect();
        let forms = |wait: &&Wait| {
            let Dependency { earlier, later, .. } = of(wait);
            next.get(&later) == Some(&earlier)
        };
        let last = waits.iter().rev().find(forms);
        let labels: Vec<&str> =
            cycle.iter().take(8).filter_map(|index| program.label(*index as usize)).collect();
        let more = if cycle.len() > labels.len() { " …" } else { "" };
        let word = last.and_then(|wait| program.label(operation(wait.later) as usize)).unwrap_or_default();
        let expected = format!(
            "no cycle: each of {}{more} waits for the next, the last for the first",
            labels.join(", ")
        );
        Err((last.map_or(self.line, |wait| wait.line), shown(word), expected))
    }
}

/// Reads what may follow an operation, and the end of its line.
fn attributes(mut action: Action, words: &mut Words<'_>, line: u32) -> Result<(Action, (u16, u16)), Fault> {
    let (mut has_tag, mut cpu, mut nic) = (false, None, None);
    let is_calc = matches!(action, Action::Calc { .. });
    loop {
        let word = words.peek();
        match (word, &mut action) {
            (Some("tag"), Action::Send { tag, .. }) if !has_tag => {
                words.take();
                *tag = value(words, line, TAG, |text| number(text, 0, u64::from(u32::MAX)))? as u32;
                has_tag = true;
            }
            (Some("tag"), Action::Recv { tag, .. }) if !has_tag => {
                words.take();
                let read = |text: &str| number(text, 0, u64::from(u32::MAX)).map(|tag| tag as u32);
                *tag = value(words, line, ANY_TAG, |text| or_any(text, read))?;
                has_tag = true;
            }
            (Some("cpu"), _) if cpu.is_none() => cpu = Some(unit(words, line)?),
            (Some("nic"), _) if nic.is_none() && !is_calc => nic = Some(unit(words, line)?),
            _ => {
                let expected = match is_calc {
                    true => "`cpu`, once, or the end of the line",
                    false => "`tag`, `cpu` or `nic`, each once, or the end of the line",
                };
                end(words, line, expected)?;
                return Ok((action, (cpu.unwrap_or(0), nic.unwrap_or(0))));
            }
        }
    }
}

const NANOSECONDS: &str = "whole nanoseconds, at most 53 days";
const SIZE: &str = "a number of bytes from 0b to 4294967295b, with its b";
const TAG: &str = "a tag, 0 to 4294967295";
const ANY_TAG: &str = "a tag, 0 to 4294967295, or -1 for any";

/// Reads the number of a processor or an interface, after its word.
fn unit(words: &mut Words<'_>, line: u32) -> Result<u16, Fault> {
    words.take();
    let read = |text: &str| number(text, 0, u64::from(u16::MAX)).map(|unit| unit as u16);
    value(words, line, "a number, 0 to 65535", read)
}

fn fault(line: u32, word: Option<&str>, expected: &str) -> Fault {
    (line, word.map_or("end of line".into(), shown), expected.to_owned())
}

/// The beginning of a word.
fn shown(word: &str) -> String {
    match word.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &word[..end]),
        None => word.to_owned(),
    }
}

fn keyword(words: &mut Words<'_>, line: u32, expected: &str) -> Result<(), Fault> {
    match words.take() {
        Some(word) if word == expected => Ok(()),
        other => Err(fault(line, other, &format!("`{expected}`"))),
    }
}

/// Nothing follows in the line, except the end of the block.
fn end(words: &Words<'_>, line: u32, expected: &str) -> Result<(), Fault> {
    match words.peek() {
        None | Some("}") => Ok(()),
        other => Err(fault(line, other, expected)),
    }
}

fn value<T>(
    words: &mut Words<'_>,
    line: u32,
    expected: &str,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<T, Fault> {
    let word = words.take();
    word.and_then(read).ok_or_else(|| fault(line, word, expected))
}

fn number(text: &str, least: u64, most: u64) -> Option<u64> {
    let is_plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let value = text.parse().ok().filter(|_| is_plain)?;
    (least..=most).contains(&value).then_some(value)
}

fn rank(text: &str, ranks: u32) -> Option<u32> {
    number(text, 0, u64::from(ranks) - 1).map(|rank| rank as u32)
}

fn size(text: &str) -> Option<u32> {
    number(text.strip_suffix('b')?, 0, u64::from(u32::MAX)).map(|bytes| bytes as u32)
}

/// `None` for -1.
fn or_any<T>(text: &str, read: impl FnOnce(&str) -> Option<T>) -> Option<Option<T>> {
    if text == "-1" { Some(None) } else { read(text).map(Some) }
}
