//! PMI-1, which MPICH's mpiexec speaks over a descriptor: lines of `key=value` pairs, each with an answer.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use super::{Launcher, Meeting, PATIENCE, meet_by_word};
use crate::Failure;

/// The key of rank 0's word.
const KEY: &str = "weft-matrix";
/// The longest line that is read.
const LONGEST: usize = 4096;

pub(crate) struct Pmi1 {
    server: UnixStream,
    rank: u32,
    size: u32,
}

impl Pmi1 {
    /// The server that the environment names, if it names one.
    pub(crate) fn from_environment() -> Result<Option<Pmi1>, Failure> {
        let Ok(fd) = std::env::var("PMI_FD") else { return Ok(None) };
        let number = |name: &str, text: &str| {
            text.parse::<u32>().map_err(|_| Failure::Run(format!("{name}={text}: expected a number")))
        };
        let variable = |name: &str| number(name, &std::env::var(name).unwrap_or_default());
        let (fd, rank, size) = (number("PMI_FD", &fd)?, variable("PMI_RANK")?, variable("PMI_SIZE")?);
        // SAFETY: the launcher has opened the descriptor for this process, and nothing else here uses it.
        let server = UnixStream::from(unsafe { OwnedFd::from_raw_fd(fd as i32) });
        server.set_read_timeout(Some(PATIENCE)).map_err(|error| Failure::Run(format!("PMI_FD: {error}")))?;
        let mut pmi = Pmi1 { server, rank, size };
        pmi.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")?;
        Ok(Some(pmi))
    }

    /// Sends a line, and returns the answer, whose command must be `expected`.
    fn ask(&mut self, line: &str, expected: &str) -> Result<String, Failure> {
        let failed = |what: &str| Failure::Run(format!("PMI: `{line}`: {what}"));
        self.server.write_all(format!("{line}\n").as_bytes()).map_err(|error| failed(&error.to_string()))?;
        let answer = self.line().map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => failed(&format!("no answer within {} s", PATIENCE.as_secs())),
            _ => failed(&error.to_string()),
        })?;
        let refused = value(&answer, "rc").is_some_and(|rc| rc != "0");
        if refused || value(&answer, "cmd") != Some(expected) {
            return Err(failed(&format!("the answer is `{answer}`; expected cmd={expected} rc=0")));
        }
        Ok(answer)
    }

    /// Byte by byte: the server sends nothing unasked, so nothing is lost, and there are few.
    fn line(&mut self) -> std::io::Result<String> {
        let (mut line, mut byte) = (Vec::new(), [0]);
        while line.len() < LONGEST {
            self.server.read_exact(&mut byte)?;
            if byte == *b"\n" {
                break;
            }
            line.push(byte[0]);
        }
        String::from_utf8(line).map_err(|_| ErrorKind::InvalidData.into())
    }

    fn broadcast(&mut self, word: Option<&str>) -> Result<String, Failure> {
        let answer = self.ask("cmd=get_my_kvsname", "my_kvsname")?;
        let space = value(&answer, "kvsname").unwrap_or_default().to_owned();
        if let Some(word) = word {
            self.ask(&format!("cmd=put kvsname={space} key={KEY} value={word}"), "put_result")?;
        }
        self.ask("cmd=barrier_in", "barrier_out")?;
        let answer = self.ask(&format!("cmd=get kvsname={space} key={KEY}"), "get_result")?;
        Ok(value(&answer, "value").unwrap_or_default().to_owned())
    }
}

impl Launcher for Pmi1 {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn meet(&mut self) -> Result<(Meeting, u64), Failure> {
        meet_by_word(self.rank, |word| self.broadcast(word))
    }
}

impl Drop for Pmi1 {
    /// The launcher takes a process that ends without it for one that has failed.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = self.ask("cmd=finalize", "finalize_ack");
        }
    }
}

/// The value of a key in a line.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_whitespace()
        .find_map(|pair| pair.split_once('=').filter(|(k, _)| *k == key))
        .map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_pairs_of_keys_and_values() {
        let line = "cmd=get_result rc=0 msg=success value=2a@127.0.0.1:80";
        assert_eq!(value(line, "value"), Some("2a@127.0.0.1:80"));
        assert_eq!((value(line, "rc"), value(line, "alue")), (Some("0"), None));
    }
}
