//! A TCP connection between two ranks that carries words, each a line of JSON. Neither end ever waits for the other one.

use std::io::{ErrorKind, Read, Write};
use std::marker::PhantomData;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Both ends say a word so often at least.
const BREATH: Duration = Duration::from_secs(1);
/// An end that is silent for so long is given up.
const SILENCE: Duration = Duration::from_secs(20);
/// The most bytes of a word: what a rank has to say about ten million flows.
const LONGEST: usize = 1 << 30;
const CHUNK: usize = 1 << 16;

/// One end of a connection, at which words of type `I` arrive and words of type `O` leave.
#[derive(Debug)]
pub(crate) struct Line<I, O> {
    stream: TcpStream,
    arrived: Vec<u8>,
    /// How many of the bytes that have arrived are known to have no end of a line.
    searched: usize,
    leaving: Vec<u8>,
    heard: Instant,
    said: Instant,
    words: PhantomData<(I, O)>,
}

impl<I: DeserializeOwned, O: Serialize> Line<I, O> {
    pub(crate) fn new(stream: TcpStream) -> std::io::Result<Line<I, O>> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let now = Instant::now();
        let (arrived, leaving) = (Vec::new(), Vec::new());
        Ok(Line { stream, arrived, searched: 0, leaving, heard: now, said: now, words: PhantomData })
    }

    /// Sends a word, as soon as the connection takes it.
    pub(crate) fn say(&mut self, word: &O) -> Result<(), String> {
        serde_json::to_writer(&mut self.leaving, word).map_err(|error| error.to_string())?;
        self.leaving.push(b'\n');
        self.flush()
    }

    fn flush(&mut self) -> Result<(), String> {
        while !self.leaving.is_empty() {
            match self.stream.write(&self.leaving) {
                Ok(count) => drop(self.leaving.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("its connection: {error}")),
            }
            self.said = Instant::now();
        }
        Ok(())
    }

    /// Sends what is left, for a moment.
    pub(crate) fn linger(&mut self) {
        let end = Instant::now() + BREATH;
        while self.flush().is_ok() && !self.leaving.is_empty() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The next word, if one has arrived. `breath` is what is said if nothing has been said for long.
    ///
    /// # Errors
    /// The other end has ended, is silent, or says what is no word.
    pub(crate) fn next(&mut self, breath: &O) -> Result<Option<I>, String> {
        if self.said.elapsed() > BREATH {
            self.say(breath)?;
        }
        self.flush()?;
        if let Some(word) = self.word()? {
            return Ok(Some(word));
        }
        self.read()?;
        self.word()
    }

    fn read(&mut self) -> Result<(), String> {
        let mut chunk = [0; CHUNK];
        match self.stream.read(&mut chunk) {
            Ok(0) => return Err("has ended before the run was over".to_owned()),
            Ok(count) => {
                self.arrived.extend_from_slice(&chunk[..count]);
                self.heard = Instant::now();
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                return Err("has ended before the run was over".to_owned());
            }
            Err(error) => return Err(format!("its connection: {error}")),
        }
        if self.arrived.len() > LONGEST {
            return Err("says more than fits a word".to_owned());
        }
        if self.heard.elapsed() > SILENCE {
            return Err(format!("has said nothing for {} s", SILENCE.as_secs()));
        }
        Ok(())
    }

    fn word(&mut self) -> Result<Option<I>, String> {
        let Some(at) = self.arrived[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.arrived.len();
            return Ok(None);
        };
        let line: Vec<u8> = self.arrived.drain(..=self.searched + at).collect();
        self.searched = 0;
        serde_json::from_slice(&line).map(Some).map_err(|error| format!("says what is no word: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    type End = Line<Vec<u32>, Vec<u32>>;

    fn pair() -> (End, End) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let other = listener.accept().unwrap().0;
        (Line::new(one).unwrap(), Line::new(other).unwrap())
    }

    fn heard(end: &mut End) -> Result<Vec<u32>, String> {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(60) {
            if let Some(word) = end.next(&Vec::new())? {
                return Ok(word);
            }
        }
        panic!("nothing within a minute");
    }

    #[test]
    fn words_arrive_in_order_and_long_ones_whole() {
        let (mut one, mut other) = pair();
        let long: Vec<u32> = (0..1_000_000).collect();
        one.say(&vec![1]).unwrap();
        one.say(&long).unwrap();
        one.say(&vec![2]).unwrap();
        let sender = std::thread::spawn(move || {
            while !one.leaving.is_empty() {
                one.flush().unwrap();
            }
        });
        assert_eq!(heard(&mut other).unwrap(), [1]);
        assert_eq!(heard(&mut other).unwrap(), long);
        assert_eq!(heard(&mut other).unwrap(), [2]);
        sender.join().unwrap();
        assert!(heard(&mut other).unwrap_err().contains("has ended"));
    }

    #[test]
    fn what_is_no_word_is_an_error() {
        let (mut one, mut other) = pair();
        one.leaving.extend(b"[1, 2, x]\n");
        one.flush().unwrap();
        assert!(heard(&mut other).unwrap_err().contains("no word"));
    }
}
