//! A thread prints what `weft serve` reports on standard output, so that the worker never blocks on a pipe that nobody reads.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

/// Lines that may wait to be printed.
const LINES: usize = 1024;
/// How long the last lines may take to be printed when the server ends.
const FAREWELL: Duration = Duration::from_secs(1);

/// Prints lines, in their order and from a thread of its own, for the user who started the server. If nobody reads them, those
/// that have no room are dropped, and counted. A closed standard output is no reason to stop.
pub(super) struct Speaker {
    lines: SyncSender<String>,
    /// How many lines were dropped since the last one that had room.
    dropped: u64,
    /// Closed once all lines are printed.
    end: Receiver<()>,
}

impl Speaker {
    /// Starts the thread, which runs on the same processors as this one may now.
    pub(super) fn start() -> io::Result<Speaker> {
        Speaker::printing(LINES, |line| {
            let _ = crate::print(format!("{line}\n").as_bytes());
        })
    }

    fn printing(room: usize, print: impl Fn(&str) + Send + 'static) -> io::Result<Speaker> {
        let (lines, to_print) = sync_channel::<String>(room);
        let (printing, end) = sync_channel(0);
        thread::Builder::new().name("weft-speaker".to_owned()).spawn(move || {
            to_print.iter().for_each(|line| print(&line));
            drop(printing);
        })?;
        Ok(Speaker { lines, dropped: 0, end })
    }

    /// Prints a line soon, or drops it if too many wait. Does not wait itself.
    pub(super) fn say(&mut self, line: String) {
        if self.dropped > 0 {
            let dropped = format!("{} lines were not printed: nobody read the ones before", self.dropped);
            if let Err(TrySendError::Full(_)) = self.lines.try_send(dropped) {
                self.dropped += 1;
                return;
            }
            self.dropped = 0;
        }
        if let Err(TrySendError::Full(_)) = self.lines.try_send(line) {
            self.dropped += 1;
        }
    }

    /// Waits until all lines are printed, or for a second.
    pub(super) fn finish(self) {
        drop(self.lines);
        let _ = self.end.recv_timeout(FAREWELL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn lines_that_nobody_reads_are_dropped_counted_and_nobody_waits_for_them() {
        let (go, wait) = sync_channel::<()>(0);
        let (printed, lines) = channel();
        let mut speaker = Speaker::printing(4, move |line| {
            let _ = wait.recv();
            let _ = printed.send(line.to_owned());
        })
        .unwrap();
        (0..20).for_each(|n| speaker.say(n.to_string()));
        // Four lines fit, and one that the thread may have taken.
        let dropped = speaker.dropped;
        assert!((15..=16).contains(&dropped), "{dropped}");
        let kept = 20 - dropped;
        // Nobody keeps the thread from printing any more.
        drop(go);
        let mut all: Vec<String> = lines.iter().take(kept as usize).collect();
        assert_eq!(all, (0..kept).map(|n| n.to_string()).collect::<Vec<_>>());
        speaker.say("20".to_owned());
        speaker.say("21".to_owned());
        speaker.finish();
        all = lines.iter().collect();
        assert_eq!(
            all,
            [&format!("{dropped} lines were not printed: nobody read the ones before"), "20", "21"]
        );
    }
}
