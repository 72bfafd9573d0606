//! A thread that unmaps the memory of applications that are gone, in the worker's stead: the system frees the pages that nobody
//! else has then, which takes it up to tens of milliseconds.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use crate::region::Region;

/// When it is looked again whether memory is in use that frames on their way refer to.
const RETRY: Duration = Duration::from_millis(10);

/// Whoever has one can give memory to the thread, which ends with the last of them and of what they have [kept](Kept).
#[derive(Clone, Debug)]
pub(super) struct Unmapper(Sender<Region>);

/// Memory that the thread unmaps some time after this is dropped: as soon as nobody else has it.
#[derive(Debug)]
pub(super) struct Kept {
    region: Option<Region>,
    unmapper: Unmapper,
}

impl Unmapper {
    /// Starts the thread.
    pub(super) fn start() -> io::Result<Unmapper> {
        let (unmap, regions) = channel();
        thread::Builder::new().name("weft-unmapper".to_owned()).spawn(move || run(&regions))?;
        Ok(Unmapper(unmap))
    }

    /// Keeps `region`.
    pub(super) fn keep(&self, region: Region) -> Kept {
        Kept { region: Some(region), unmapper: self.clone() }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(region) = self.region.take() {
            // The thread does not end as long as it may get one.
            let _ = self.unmapper.0.send(region);
        }
    }
}

/// Unmaps what comes, until nothing can come any more.
fn run(regions: &Receiver<Region>) {
    let mut in_use: Vec<Region> = Vec::new();
    loop {
        let next = match in_use.is_empty() {
            true => regions.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => regions.recv_timeout(RETRY),
        };
        match next {
            Ok(region) => in_use.push(region),
            Err(RecvTimeoutError::Timeout) => {}
            // The worker is gone, and so are its frames.
            Err(RecvTimeoutError::Disconnected) => return,
        }
        in_use.retain(|region| region.holders() > 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::test_region;

    /// Longer than anything here takes.
    const LIMIT: Duration = Duration::from_secs(30);

    #[test]
    fn memory_is_unmapped_by_the_thread_once_nobody_has_it() {
        let unmapper = Unmapper::start().unwrap();
        let (unmapped, threads) = channel();
        let region = test_region(move || {
            let _ = unmapped.send(thread::current().name().map(str::to_owned));
        });
        let frame = region.slice(1, 2).unwrap();
        let kept = unmapper.keep(region.clone());
        drop(region);
        drop(kept);
        // Others do not wait for it.
        let (unmapped, others) = channel();
        drop(unmapper.keep(test_region(move || {
            let _ = unmapped.send(());
        })));
        others.recv_timeout(LIMIT).expect("it is unmapped");
        assert!(threads.try_recv().is_err(), "a frame refers to it");
        drop(frame);
        let thread = threads.recv_timeout(LIMIT).expect("it is unmapped");
        assert_eq!(thread.as_deref(), Some("weft-unmapper"));
    }
}
