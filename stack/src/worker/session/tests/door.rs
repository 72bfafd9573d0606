//! Applications that come in through a socket.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::*;
use crate::worker::{Clock, Waker};

/// Far longer than anything here takes.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// Two endpoints with a door each, driven by a thread.
pub(super) struct House {
    doors: [PathBuf; 2],
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _dir: tempfile::TempDir,
}

impl House {
    pub(super) fn new() -> House {
        let dir = tempfile::tempdir().unwrap();
        let doors = [dir.path().join("left"), dir.path().join("right")];
        let (stop, paths) = (Arc::new(AtomicBool::new(false)), doors.clone());
        let stopped = stop.clone();
        let (ready, opened) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let mut world = World::new();
            let mut doors = paths.map(|path| Door::open(&path, SMALL, Waker::new().unwrap()).unwrap());
            ready.send(()).unwrap();
            let clock = Clock::new();
            while !stopped.load(Ordering::Acquire) {
                // Guests have real time.
                let now = clock.now();
                if now.is_at_or_after(world.now) {
                    world.now = now;
                }
                for (side, door) in doors.iter_mut().enumerate() {
                    door.attend(&mut world.sessions[side], &mut world.feps[side], world.now);
                }
                world.step(8);
                thread::yield_now();
            }
        });
        opened.recv().unwrap();
        House { doors, stop, thread: Some(thread), _dir: dir }
    }

    pub(super) fn door(&self, side: usize) -> &std::path::Path {
        &self.doors[side]
    }

    pub(super) fn join(
        &self,
        side: usize,
        config: &SessionConfig,
        process: Option<u16>,
    ) -> Result<Client, JoinError> {
        Client::join(&self.doors[side], config, process, LIMIT)
    }

    fn refusal(&self, config: &SessionConfig, process: Option<u16>) -> String {
        match self.join(0, config, process) {
            Err(JoinError::Refused(_, why)) => why,
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let outcome = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || matches!(outcome, Some(Ok(()))));
    }
}

pub(super) fn event(client: &mut Client) -> Result<Event, ClientError> {
    let started = Instant::now();
    loop {
        if let Some(event) = client.poll()? {
            return Ok(event);
        }
        assert!(started.elapsed() < LIMIT, "no event");
        client.wait(Duration::from_millis(10))?;
    }
}

#[test]
fn applications_share_memory_with_their_servers() {
    let house = House::new();
    let mut alice = house.join(0, &SMALL, None).unwrap();
    let mut bob = house.join(1, &SMALL, Some(77)).unwrap();
    assert_eq!((alice.addr(), bob.addr(), bob.process()), (Addr(0), Addr(1), 77));
    let bytes = content(8, 200_000);
    alice.write(0, &bytes).unwrap();
    bob.receive(extent(0, 200_000), None, Matching::Untagged, 1).unwrap();
    let connection = alice.connect(Addr(1), to(&bob), 2).unwrap();
    alice.send(connection, extent(0, 200_000), None, 0, 3).unwrap();
    let received = event(&mut bob).unwrap();
    assert!(matches!(received.report, Report::Received { status: Status::Ok, len: 200_000, .. }));
    let mut copy = vec![0; 200_000];
    bob.read(0, &mut copy).unwrap();
    assert!(copy == bytes);
    assert_eq!(event(&mut alice).unwrap().context, 2);
    assert_eq!(event(&mut alice).unwrap().context, 3);
    let process = alice.process();
    drop(alice);
    // Its place is free again, under the same name.
    let started = Instant::now();
    while house.join(0, &SMALL, Some(process)).is_err() {
        assert!(started.elapsed() < LIMIT);
    }
    drop(house);
    assert_eq!(event(&mut bob), Err(ClientError::Gone));
}

#[test]
fn what_cannot_be_had_is_said() {
    let house = House::new();
    assert_eq!(
        house.refusal(&SessionConfig { memory: SMALL.memory + 1, ..SMALL }, None),
        "262145 bytes of memory: expected 1 to 262144"
    );
    let _kept = house.join(0, &SMALL, Some(5)).unwrap();
    assert!(house.refusal(&SMALL, Some(5)).contains("process 5"));
    assert!(house.refusal(&SMALL, Some(5000)).contains("process 5000"));
    let _others: Vec<Client> = (0..3).map(|_| house.join(0, &SMALL, None).unwrap()).collect();
    assert!(house.refusal(&SMALL, None).contains("there are 4 sessions"));
    assert!(matches!(house.join(0, &SessionConfig { memory: 0, ..SMALL }, None), Err(JoinError::Config(_))));
    let nobody = Client::join(std::path::Path::new("/nonexistent"), &SMALL, None, LIMIT);
    assert!(matches!(nobody, Err(JoinError::System(..))));
}

/// A message of version `version`, the rest of which is empty.
fn message<const LEN: usize>(version: u32) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[..8].copy_from_slice(b"weft-ses");
    bytes[8..12].copy_from_slice(&version.to_ne_bytes());
    bytes
}

/// Servers of another version, and what is no server.
#[test]
fn who_answers_otherwise_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let answer = |reply: [u8; 256]| {
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                stream.read_exact(&mut [0; 64]).unwrap();
                stream.write_all(&reply).unwrap();
            });
            Client::join(&path, &SMALL, None, LIMIT).unwrap_err().to_string()
        })
    };
    let text = |what: &str| format!("{}: {what}", path.display());
    assert_eq!(answer(message(1)), text("it speaks version 1, this is version 2: use the same weft"));
    assert_eq!(answer([0xaa; 256]), text("no server of weft: it does not answer as one"));
    assert_eq!(answer(message(2)), text("no server of weft: no memory came with it"));
}

/// Those who say nothing, or nonsense, are turned away, and others come in meanwhile.
#[test]
fn strange_guests_do_not_block_the_door() {
    let house = House::new();
    let mut silent: Vec<UnixStream> =
        (0..40).map(|_| UnixStream::connect(&house.doors[0]).unwrap()).collect();
    let mut mad = UnixStream::connect(&house.doors[0]).unwrap();
    mad.write_all(&[0xaa; 64]).unwrap();
    let client = house.join(0, &SMALL, None).unwrap();
    let mut answer = Vec::new();
    mad.read_to_end(&mut answer).unwrap();
    assert_eq!(answer.len(), 256);
    assert!(String::from_utf8_lossy(&answer).contains("expected a request of version 2"));
    let mut old = UnixStream::connect(&house.doors[0]).unwrap();
    old.write_all(&message::<64>(1)).unwrap();
    answer.clear();
    old.read_to_end(&mut answer).unwrap();
    let text = "the request is of version 1, this server of version 2";
    assert!(String::from_utf8_lossy(&answer).contains(text));
    for guest in &mut silent {
        guest.set_read_timeout(Some(LIMIT)).unwrap();
        assert_eq!(guest.read(&mut [0; 1]).unwrap(), 0, "shown out without a word");
    }
    drop(client);
}

#[test]
fn only_one_serves_and_the_dead_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let open = || Door::open(&path, SMALL, Waker::new().unwrap());
    // Left by somebody who was killed.
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let door = open().unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(open(), Err(DoorError::Taken(_))));
    assert!(path.exists(), "who is refused takes nothing away");
    drop(door);
    assert!(!path.exists());
    // Somebody who knows no locks.
    let other = UnixListener::bind(&path).unwrap();
    assert!(matches!(open(), Err(DoorError::Taken(_))));
    drop(other);
    drop(open().unwrap());
}

#[test]
fn a_file_of_somebody_elses_stays_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, "precious").unwrap();
    let opened = Door::open(&path, SMALL, Waker::new().unwrap());
    assert!(matches!(opened, Err(DoorError::NoSocket(_))));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    let names: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["file"], "who is refused leaves nothing");
}
