//! A thread that unmaps the memory of applications that are gone, in the worker's stead: the system frees the pages that nobody
//! else has then, which takes it up to tens of milliseconds.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use crate::region::Region;

/// When it is looked again whether memory is in use that frames on their way refer to.
const RETRY: Duration = Duration::from_millis(10);

/// Whoever has one can give memory to the thread, which ends with the last of them and of what they have [kept](Kept).
#[derive(Clone, Debug)]
pub(super) struct Unmapper(Sender<Gone>);

/// Memory that the thread unmaps some time after this is dropped: as soon as nobody else has it.
#[derive(Debug)]
pub(super) struct Kept {
    region: Option<Region>,
    unmapper: Unmapper,
    unmapping: Unmapping,
}

/// How many bytes of memory have been given to the thread, and are not unmapped yet. Clones share the count.
#[derive(Clone, Debug, Default)]
pub(super) struct Unmapping(Arc<AtomicU64>);

impl Unmapping {
    pub(super) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn count(&self, bytes: u64) -> Counted {
        self.0.fetch_add(bytes, Ordering::AcqRel);
        Counted { bytes, all: self.clone() }
    }
}

/// Bytes that count until this is dropped.
#[derive(Debug)]
struct Counted {
    bytes: u64,
    all: Unmapping,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// Memory to unmap.
// Fields are dropped in this order, so that the memory counts until it is unmapped.
#[derive(Debug)]
struct Gone {
    region: Region,
    _counted: Counted,
}

impl Unmapper {
    /// Starts the thread.
    pub(super) fn start() -> io::Result<Unmapper> {
        let (unmap, regions) = channel();
        thread::Builder::new().name("weft-unmapper".to_owned()).spawn(move || run(&regions))?;
        Ok(Unmapper(unmap))
    }

    /// Keeps `region`, which counts in `unmapping` from when that is over until it is unmapped.
    pub(super) fn keep(&self, region: Region, unmapping: Unmapping) -> Kept {
        Kept { region: Some(region), unmapper: self.clone(), unmapping }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(region) = self.region.take() {
            let counted = self.unmapping.count(region.len() as u64);
            // The thread does not end as long as it may get one.
            let _ = self.unmapper.0.send(Gone { region, _counted: counted });
        }
    }
}

/// Unmaps what comes, until nothing can come any more.
fn run(regions: &Receiver<Gone>) {
    let mut in_use: Vec<Gone> = Vec::new();
    loop {
        let next = match in_use.is_empty() {
            true => regions.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => regions.recv_timeout(RETRY),
        };
        match next {
            Ok(gone) => in_use.push(gone),
            Err(RecvTimeoutError::Timeout) => {}
            // The worker is gone, and so are its frames.
            Err(RecvTimeoutError::Disconnected) => return,
        }
        in_use.retain(|gone| gone.region.holders() > 1);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

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
        let (unmapping, len) = (Unmapping::default(), region.len() as u64);
        let kept = unmapper.keep(region.clone(), unmapping.clone());
        drop(region);
        assert_eq!(unmapping.bytes(), 0, "its session is there");
        drop(kept);
        // Others do not wait for it.
        let (unmapped, others) = channel();
        drop(unmapper.keep(
            test_region(move || {
                let _ = unmapped.send(());
            }),
            Unmapping::default(),
        ));
        others.recv_timeout(LIMIT).expect("it is unmapped");
        assert!(threads.try_recv().is_err(), "a frame refers to it");
        assert_eq!(unmapping.bytes(), len, "it counts as long");
        drop(frame);
        let name = threads.recv_timeout(LIMIT).expect("it is unmapped");
        assert_eq!(name.as_deref(), Some("weft-unmapper"));
        let started = Instant::now();
        while unmapping.bytes() > 0 {
            assert!(started.elapsed() < LIMIT, "it counts for ever");
            thread::yield_now();
        }
    }
}
