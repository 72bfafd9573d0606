//! Where a testbed that runs keeps its sockets, and what must be cleaned up after one that was killed.
//!
//! `$XDG_RUNTIME_DIR/weft/NAME`, or `/tmp/weft-UID/NAME`, for this user alone. Who holds the lock in it owns the
//! testbed; the kernel lets go of it with the process, however that ends. What exists outside of the directory is
//! written down in `state.json` before it is made.

use super::ip;
use crate::Failure;
use rustix::fs::{FlockOperation, flock};
use rustix::process::getuid;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Tries to lock a directory that others keep removing.
const TRIES: u32 = 100;

/// What names of runs begin with; the rest is the number of their process.
pub(super) const RUN: &str = "p";

/// A testbed's directory.
#[derive(Clone, Debug)]
pub(crate) struct RunDir(PathBuf);

/// The right to the directory, and to all that belongs to the testbed.
#[derive(Debug)]
pub(crate) struct Owned {
    pub(crate) dir: RunDir,
    _lock: File,
}

/// What is to be removed when the testbed is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    /// The process of the switches.
    pub(crate) pid: u32,
    /// Network namespaces, by name.
    pub(crate) namespaces: Vec<String>,
    /// Interfaces of the namespace of the switches.
    pub(crate) links: Vec<String>,
}

/// Whose the directory is.
#[derive(Debug)]
pub(crate) enum Claim {
    /// This process's.
    Ours(Owned),
    /// That of the process with this number, if it has said so.
    Theirs(Option<u32>),
}

impl RunDir {
    /// The directory of the testbed `name`, which need not exist.
    ///
    /// # Errors
    /// There is no place for it that is this user's alone.
    pub(crate) fn of(name: &str) -> Result<RunDir, Failure> {
        Ok(RunDir(RunDir::base()?.join(name)))
    }

    /// Removes what runs have left that were killed.
    ///
    /// # Errors
    /// What cannot be removed.
    pub(crate) fn clean_runs() -> Result<(), Failure> {
        let base = RunDir::base()?;
        let entries = fs::read_dir(&base).map_err(|error| failed(&base, &error))?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let is_run = |name: &String| name.strip_prefix(RUN).is_some_and(|pid| pid.parse::<u32>().is_ok());
        for name in names.filter(is_run) {
            if let Claim::Ours(owned) = RunDir(base.join(name)).claim()? {
                owned.remove()?;
            }
        }
        Ok(())
    }

    fn base() -> Result<PathBuf, Failure> {
        let base = match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_dir()) {
            Some(dir) => dir.join("weft"),
            None => PathBuf::from(format!("/tmp/weft-{}", getuid().as_raw())),
        };
        private_directory(&base).map_err(|error| failed(&base, &error))?;
        Ok(base)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Where the switches listen.
    pub(crate) fn control(&self) -> PathBuf {
        self.0.join("control.sock")
    }

    /// What the switches say, if they run in the background.
    pub(crate) fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    /// What is to be removed; none if there is no testbed, or one that has just begun.
    pub(crate) fn state(&self) -> Option<State> {
        serde_json::from_slice(&fs::read(self.0.join("state.json")).ok()?).ok()
    }

    /// Makes the directory this process's own, if it is nobody's.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn claim(&self) -> Result<Claim, Failure> {
        let complain = |error: io::Error| failed(&self.0, &error);
        for _ in 0..TRIES {
            private_directory(&self.0).map_err(complain)?;
            let path = self.0.join("lock");
            let lock = match OpenOptions::new().create(true).truncate(false).write(true).open(&path) {
                Ok(lock) => lock,
                // Removed by its owner between the two calls.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(complain(error)),
            };
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    return Ok(Claim::Theirs(self.state().map(|state| state.pid)));
                }
                Err(errno) => return Err(complain(errno.into())),
            }
            if is_file(&lock, &path) {
                return Ok(Claim::Ours(Owned { dir: self.clone(), _lock: lock }));
            }
        }
        Err(complain(io::Error::other("others keep removing it")))
    }
}

impl Owned {
    /// Writes down what is going to be made.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn note(&self, state: &State) -> Result<(), Failure> {
        let (path, new) = (self.dir.0.join("state.json"), self.dir.0.join("state.json.new"));
        let text = serde_json::to_vec(state).unwrap_or_default();
        let written = File::create(&new).and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&new, &path)
        });
        written.map_err(|error| failed(&path, &error))
    }

    /// Removes what a testbed has left, but keeps the directory. Returns whether there was anything.
    ///
    /// # Errors
    /// What cannot be removed.
    pub(crate) fn clean(&self) -> Result<bool, Failure> {
        let Some(state) = self.dir.state() else { return Ok(false) };
        for link in &state.links {
            if Path::new("/sys/class/net").join(link).exists() {
                ip::run(&["link", "delete", link])?;
            }
        }
        for namespace in &state.namespaces {
            if Path::new("/run/netns").join(namespace).exists() {
                ip::run(&["netns", "delete", namespace])?;
            }
        }
        let entries = fs::read_dir(&self.dir.0).map_err(|error| failed(&self.dir.0, &error))?;
        for entry in entries.flatten().filter(|entry| entry.file_name() != "lock") {
            fs::remove_file(entry.path()).map_err(|error| failed(&entry.path(), &error))?;
        }
        Ok(true)
    }

    /// Removes everything.
    ///
    /// # Errors
    /// What cannot be removed.
    pub(crate) fn remove(self) -> Result<(), Failure> {
        self.clean()?;
        // With the lock in it, which is let go of after that: see `is_file`.
        fs::remove_dir_all(&self.dir.0).map_err(|error| failed(&self.dir.0, &error))
    }
}

/// Whether `path` still leads to the open file: whoever has removed the directory did so with its lock held.
fn is_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(there)) => (open.dev(), open.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

/// Makes a directory that is this user's alone, or makes sure that it is.
fn private_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        made => return made,
    }
    let there = fs::symlink_metadata(path)?;
    if there.is_dir() && there.uid() == getuid().as_raw() && there.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(io::Error::new(ErrorKind::PermissionDenied, "expected a directory of this user, with mode 700"))
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::Run(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(dir: &RunDir) -> Owned {
        match dir.claim().unwrap() {
            Claim::Ours(owned) => owned,
            Claim::Theirs(pid) => panic!("{pid:?} has it"),
        }
    }

    #[test]
    fn one_owns_it_until_it_ends() {
        let base = tempfile::tempdir().unwrap();
        let dir = RunDir(base.path().join("bed"));
        let owned = ours(&dir);
        owned.note(&State { pid: 7, ..State::default() }).unwrap();
        assert!(matches!(dir.claim().unwrap(), Claim::Theirs(Some(7))));
        // As the kernel does it for a process that is killed.
        drop(owned);
        let next = ours(&dir);
        fs::write(dir.path().join("h0.sock"), "").unwrap();
        assert!(next.clean().unwrap());
        assert!(dir.state().is_none() && !dir.path().join("h0.sock").exists());
        assert!(!next.clean().unwrap(), "nothing is left");
        next.remove().unwrap();
        assert!(!dir.path().exists());
        ours(&dir).remove().unwrap();
    }

    #[test]
    fn a_directory_of_others_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let base = tempfile::tempdir().unwrap();
        let open = base.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(private_directory(&open).unwrap_err().kind(), ErrorKind::PermissionDenied);
        let file = base.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(private_directory(&file).is_err());
    }
}
