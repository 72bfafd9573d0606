//! A bounded list of messages for people.

use core::fmt::{self, Display};
use core::ops::Deref;

/// Keeps the first lines as text and only counts the remaining lines, because there may be as many as flows.
/// Dereferences to the lines that are kept.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Lines {
    kept: Vec<String>,
    others: u64,
}

impl Lines {
    /// Maximum number of lines that are kept.
    pub const KEPT: usize = 50;

    /// Counts `others` more lines, whose text is not known.
    pub fn count_others(&mut self, others: u64) {
        self.others += others;
    }

    /// Number of lines that were counted but not kept.
    pub fn others(&self) -> u64 {
        self.others
    }
}

impl Deref for Lines {
    type Target = [String];

    fn deref(&self) -> &[String] {
        &self.kept
    }
}

impl<T: Display> Extend<T> for Lines {
    /// Formats only the lines that are kept.
    fn extend<I: IntoIterator<Item = T>>(&mut self, lines: I) {
        for line in lines {
            match self.kept.len() < Lines::KEPT {
                true => self.kept.push(line.to_string()),
                false => self.others += 1,
            }
        }
    }
}

impl<T: Display> FromIterator<T> for Lines {
    fn from_iter<I: IntoIterator<Item = T>>(lines: I) -> Lines {
        let mut all = Lines::default();
        all.extend(lines);
        all
    }
}

impl Display for Lines {
    /// Writes each kept line indented on a line of its own, each after a line break, then the number of the
    /// others.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kept.iter().try_for_each(|line| write!(f, "\n  {line}"))?;
        match self.others {
            0 => Ok(()),
            others => write!(f, "\n  … and {others} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    /// Counts how often it is formatted.
    struct Watched<'a>(usize, &'a Cell<usize>);

    impl Display for Watched<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.1.set(self.1.get() + 1);
            write!(f, "line {}", self.0)
        }
    }

    #[test]
    fn lines_beyond_the_limit_are_counted_but_not_formatted() {
        let written = Cell::new(0);
        let mut lines: Lines = ["the very first"].into_iter().collect();
        lines.extend((0..1_000_000).map(|n| Watched(n, &written)));
        assert_eq!((lines.len(), written.get()), (Lines::KEPT, Lines::KEPT - 1));
        assert_eq!(lines.others(), 1_000_000 - (Lines::KEPT as u64 - 1));
        let text = lines.to_string();
        assert!(text.starts_with("\n  the very first\n  line 0\n"), "{text}");
        assert!(text.ends_with("\n  line 48\n  … and 999951 more"), "{text}");
    }

    #[test]
    fn few_lines_are_all_kept() {
        let lines: Lines = ["a", "b"].into_iter().collect();
        assert_eq!((&lines[..], lines.others()), (&["a".to_owned(), "b".to_owned()][..], 0));
        assert_eq!(lines.to_string(), "\n  a\n  b");
        assert_eq!(Lines::default().to_string(), "");
    }
}
