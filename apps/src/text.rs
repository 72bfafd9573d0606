//! Reading text files that the command line names. Such a name may lead to a device that never ends, so
//! everything has a bound.

use std::fs::File;
use std::io::{self, BufRead, Read};
use std::path::Path;

/// The longest line that is read, bytes without its end: thousands of times what a line holds in earnest.
const MAX_LINE: usize = 1 << 20;
/// The longest text that is read as a whole, bytes.
const MAX_TEXT: usize = 256 << 20;

/// Reads the next line into `line`, with its end if it has one, in place of what is there. False if there
/// is no further line; [`io::ErrorKind::InvalidData`] if it is longer than 1 MiB.
pub(crate) fn next_line(file: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let read = file.take(MAX_LINE as u64 + 1).read_until(b'\n', line)?;
    if read > MAX_LINE && !line.ends_with(b"\n") {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "this line is longer than 1 MiB"));
    }
    Ok(read > 0)
}

/// Reads the file at `path`, if it has at most 256 MiB.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_TEXT as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > MAX_TEXT {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "this file is longer than 256 MiB"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_one_by_one_and_long_ones_refused() {
        let longest = "x".repeat(MAX_LINE);
        let text = format!("a\n\n{longest}\n{longest}");
        let (mut file, mut line) = (text.as_bytes(), Vec::new());
        for expected in ["a\n", "\n", &format!("{longest}\n"), &longest] {
            assert!(next_line(&mut file, &mut line).unwrap());
            assert!(line == expected.as_bytes(), "{} bytes", line.len());
        }
        assert!(!next_line(&mut file, &mut line).unwrap());
        assert!(line.is_empty());

        let too_long = format!("{longest}x\n");
        let refused = next_line(&mut too_long.as_bytes(), &mut line).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    }
}
