//! Lines of JSON from a pipe, without waiting unless asked to.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};

/// A pipe that lines are read from.
pub(super) struct Lines {
    pipe: File,
    /// The bytes after the last whole line.
    part: Vec<u8>,
    whole: VecDeque<Vec<u8>>,
}

impl Lines {
    pub(super) fn new(fd: BorrowedFd<'_>) -> io::Result<Lines> {
        let pipe = File::from(fd.try_clone_to_owned()?);
        Ok(Lines { pipe, part: Vec::new(), whole: VecDeque::new() })
    }

    /// The next line, if it is there.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        if self.whole.is_empty() && self.is_readable()? {
            self.read()?;
        }
        self.whole.pop_front().map(|line| serde_json::from_slice(&line).map_err(io::Error::from)).transpose()
    }

    /// The next line, however long it takes.
    pub(super) fn wait<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        while self.whole.is_empty() {
            self.read()?;
        }
        self.next()?.ok_or_else(|| ErrorKind::UnexpectedEof.into())
    }

    fn is_readable(&self) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.pipe, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        Ok(poll(&mut fds, Some(&now))? > 0)
    }

    fn read(&mut self) -> io::Result<()> {
        let mut bytes = [0; 4096];
        let count = self.pipe.read(&mut bytes)?;
        if count == 0 {
            return Err(io::Error::new(ErrorKind::UnexpectedEof, "it has ended"));
        }
        for byte in &bytes[..count] {
            match byte {
                b'\n' => self.whole.push_back(std::mem::take(&mut self.part)),
                byte => self.part.push(*byte),
            }
        }
        Ok(())
    }
}

/// Becomes readable when there may be another line.
impl AsFd for Lines {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn lines_come_whole_and_the_end_is_an_error() {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut lines = Lines::new(reader.as_fd()).unwrap();
        drop(reader);
        assert!(lines.next::<u32>().unwrap().is_none());
        writer.write_all(b"1\n2").unwrap();
        assert_eq!(lines.next::<u32>().unwrap(), Some(1));
        assert!(lines.next::<u32>().unwrap().is_none(), "half a line");
        writer.write_all(b"3\n\"x\"\n").unwrap();
        assert_eq!(lines.wait::<u32>().unwrap(), 23);
        assert!(lines.wait::<u32>().is_err(), "no number");
        drop(writer);
        assert_eq!(lines.wait::<u32>().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
}
