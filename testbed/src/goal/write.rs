//! Writes programs as text.

use core::fmt;

use super::{Action, Event, Program, RankProgram};

impl Program {
    /// Writes the program in its text form. Reading the text gives an equal program.
    pub fn write_goal(&self, out: &mut impl fmt::Write) -> fmt::Result {
        writeln!(out, "num_ranks {}", self.ranks.len())?;
        for (number, rank) in self.ranks.iter().enumerate() {
            writeln!(out, "rank {number} {{")?;
            rank.write(out)?;
            writeln!(out, "}}")?;
        }
        Ok(())
    }
}

impl RankProgram {
    fn write(&self, out: &mut impl fmt::Write) -> fmt::Result {
        for (index, operation) in self.operations().iter().enumerate() {
            if let Some(label) = self.label(index) {
                write!(out, "{label}: ")?;
            }
            write!(out, "{}", operation.action)?;
            if operation.cpu != 0 {
                write!(out, " cpu {}", operation.cpu)?;
            }
            if operation.nic != 0 {
                write!(out, " nic {}", operation.nic)?;
            }
            writeln!(out)?;
        }
        for dependency in self.dependencies() {
            let label = |index: u32| self.label(index as usize).ok_or(fmt::Error);
            let word = match dependency.event {
                Event::Finish => "requires",
                Event::Start => "irequires",
            };
            writeln!(out, "{} {word} {}", label(dependency.later)?, label(dependency.earlier)?)?;
        }
        Ok(())
    }
}

/// The statement without its label, its processor and its interface.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Action::Calc { ns } => write!(f, "calc {ns}"),
            Action::Send { bytes, to, tag: 0 } => write!(f, "send {bytes}b to {to}"),
            Action::Send { bytes, to, tag } => write!(f, "send {bytes}b to {to} tag {tag}"),
            Action::Recv { bytes, from, tag } => {
                write!(f, "recv {bytes}b from ")?;
                match from {
                    Some(rank) => write!(f, "{rank}")?,
                    None => write!(f, "-1")?,
                }
                match tag {
                    Some(0) => Ok(()),
                    Some(tag) => write!(f, " tag {tag}"),
                    None => write!(f, " tag -1"),
                }
            }
        }
    }
}
