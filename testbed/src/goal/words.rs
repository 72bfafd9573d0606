//! The words of a line of a GOAL program.

/// Cuts a line into words. `{`, `}` and `:` are words of their own; comments separate words as blanks do.
pub(super) struct Words<'a> {
    rest: &'a str,
    next: Option<&'a str>,
    /// Whether the text is within a `/* */` comment, which may have begun in an earlier line.
    pub(super) in_comment: bool,
}

impl<'a> Words<'a> {
    pub(super) fn new(line: &'a str, in_comment: bool) -> Words<'a> {
        let mut words = Words { rest: line, next: None, in_comment };
        words.next = words.cut();
        words
    }

    /// The next word, which stays.
    pub(super) fn peek(&self) -> Option<&'a str> {
        self.next
    }

    /// Takes the next word.
    pub(super) fn take(&mut self) -> Option<&'a str> {
        let word = self.next;
        self.next = self.cut();
        word
    }

    /// Takes the next word if it is `word`.
    pub(super) fn take_if(&mut self, word: &str) -> bool {
        let is_next = self.next == Some(word);
        if is_next {
            self.take();
        }
        is_next
    }

    fn cut(&mut self) -> Option<&'a str> {
        self.skip();
        let first = self.rest.chars().next()?;
        let end = match first {
            '{' | '}' | ':' => 1,
            _ => {
                let mut places = self.rest.char_indices().map(|(at, _)| at);
                places.find(|at| self.ends_at(*at)).unwrap_or(self.rest.len())
            }
        };
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        Some(word)
    }

    /// Whether a word that begins the rest ends at `at`.
    fn ends_at(&self, at: usize) -> bool {
        let rest = &self.rest[at..];
        at > 0 && (rest.starts_with(is_end) || rest.starts_with("//") || rest.starts_with("/*"))
    }

    /// Skips blanks and comments.
    fn skip(&mut self) {
        loop {
            if self.in_comment {
                let Some(end) = self.rest.find("*/") else {
                    self.rest = "";
                    return;
                };
                self.rest = &self.rest[end + 2..];
                self.in_comment = false;
            }
            self.rest = self.rest.trim_start_matches(|c: char| c.is_ascii_whitespace());
            if self.rest.starts_with("//") {
                self.rest = "";
            }
            if !self.rest.starts_with("/*") {
                return;
            }
            self.rest = &self.rest[2..];
            self.in_comment = true;
        }
    }
}

fn is_end(c: char) -> bool {
    c.is_ascii_whitespace() || matches!(c, '{' | '}' | ':')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(line: &str, in_comment: bool) -> (Vec<&str>, bool) {
        let mut words = Words::new(line, in_comment);
        let all = std::iter::from_fn(|| words.take()).collect();
        (all, words.in_comment)
    }

    #[test]
    fn blanks_marks_and_comments_separate_words() {
        assert_eq!(cut("a:calc 5// b", false), (vec!["a", ":", "calc", "5"], false));
        assert_eq!(cut("rank/*x*/0{}", false), (vec!["rank", "0", "{", "}"], false));
        assert_eq!(cut("no */ a /* b", true), (vec!["a"], true));
        assert_eq!(cut("/*/ a */ b / é", false), (vec!["b", "/", "é"], false));
        assert_eq!(cut(" \t\r\n", false), (vec![], false));
    }
}
