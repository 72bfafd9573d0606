//! The runtime directory of a testbed: its sockets, and the list of what must be removed if it is killed.
//!
//! It is `$XDG_RUNTIME_DIR/weft/NAME`, or `/tmp/weft-UID/NAME`, and only this user has access. The process that holds
//! the lock in it owns the testbed; the kernel releases the lock when the process ends. Everything that exists outside
//! of the directory is listed in `state.json` before it is created.

use super::ip;
use crate::Failure;
use rustix::fs::{FlockOperation, flock};
use rustix::process::getuid;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// How often to try to lock a directory that other processes keep removing.
const MAX_TRIES: u32 = 100;

/// The prefix of directories of `weft run`; the rest of the name is the process number.
pub(super) const RUN_PREFIX: &str = "p";

/// The runtime directory of a testbed.
#[derive(Clone, Debug)]
pub(crate) struct RunDir(PathBuf);

/// Ownership of the directory and of everything that belongs to the testbed.
#[derive(Debug)]
pub(crate) struct Owned {
    pub(crate) dir: RunDir,
    _lock: File,
}

/// The contents of `state.json`: the process, namespaces and interfaces to remove after the testbed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    /// The process number of the switches.
    pub(crate) pid: u32,
    /// Network namespaces, by name.
    pub(crate) namespaces: Vec<String>,
    /// Interfaces in the namespace of the switches.
    pub(crate) links: Vec<String>,
}

/// The owner of a directory.
#[derive(Debug)]
pub(crate) enum Claim {
    /// This process.
    Ours(Owned),
    /// Another process, with its number if it has written it.
    Theirs(Option<u32>),
}

impl RunDir {
    /// The directory of the testbed `name`, which need not exist.
    ///
    /// # Errors
    /// The parent directory cannot be created, or other users have access to it.
    pub(crate) fn of(name: &str) -> Result<RunDir, Failure> {
        Ok(RunDir(RunDir::base()?.join(name)))
    }

    /// Removes the remains of runs that were killed.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub(crate) fn clean_runs() -> Result<(), Failure> {
        let base = RunDir::base()?;
        let entries = fs::read_dir(&base).map_err(|error| Failure::at(&base, &error))?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let is_run =
            |name: &String| name.strip_prefix(RUN_PREFIX).is_some_and(|pid| pid.parse::<u32>().is_ok());
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
        private_directory(&base).map_err(|error| Failure::at(&base, &error))?;
        Ok(base)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// The control socket, at which the switches listen.
    pub(crate) fn control(&self) -> PathBuf {
        self.0.join("control.sock")
    }

    /// The log of switches that run in the background.
    pub(crate) fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    /// The contents of `state.json`; `None` if there is no testbed, or one that has just started.
    pub(crate) fn state(&self) -> Option<State> {
        serde_json::from_slice(&fs::read(self.0.join("state.json")).ok()?).ok()
    }

    /// Creates and locks the directory, unless another process has the lock.
    ///
    /// # Errors
    /// The directory or its lock cannot be created.
    pub(crate) fn claim(&self) -> Result<Claim, Failure> {
        let complain = |error: io::Error| Failure::at(&self.0, &error);
        for _ in 0..MAX_TRIES {
            private_directory(&self.0).map_err(complain)?;
            let path = self.0.join("lock");
            let lock = match OpenOptions::new().create(true).truncate(false).write(true).open(&path) {
                Ok(lock) => lock,
                // Its owner has removed the directory between the two calls.
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
    /// Writes `state.json`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn note(&self, state: &State) -> Result<(), Failure> {
        let (path, new) = (self.dir.0.join("state.json"), self.dir.0.join("state.json.new"));
        let text = serde_json::to_vec(state).unwrap_or_default();
        let written = File::create(&new).and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&new, &path)
        });
        written.map_err(|error| Failure::at(&path, &error))
    }

    /// Removes the remains of a testbed, but keeps the directory. Returns whether there were any.
    ///
    /// # Errors
    /// Something cannot be removed.
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
        let entries = fs::read_dir(&self.dir.0).map_err(|error| Failure::at(&self.dir.0, &error))?;
        for entry in entries.flatten().filter(|entry| entry.file_name() != "lock") {
            fs::remove_file(entry.path()).map_err(|error| Failure::at(&entry.path(), &error))?;
        }
        Ok(true)
    }

    /// Removes the remains and the directory.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub(crate) fn remove(self) -> Result<(), Failure> {
        self.clean()?;
        // The lock file goes too, and the lock is released after that: see `is_file`.
        fs::remove_dir_all(&self.dir.0).map_err(|error| Failure::at(&self.dir.0, &error))
    }
}

/// Whether `path` still leads to the open file. A process that removes the directory holds the lock while it does so.
fn is_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(there)) => (open.dev(), open.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

/// Creates a directory to which only this user has access, or checks that an existing one is such.
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
    fn a_directory_has_one_owner_until_its_process_ends() {
        let base = tempfile::tempdir().unwrap();
        let dir = RunDir(base.path().join("bed"));
        let owned = ours(&dir);
        owned.note(&State { pid: 7, ..State::default() }).unwrap();
        assert!(matches!(dir.claim().unwrap(), Claim::Theirs(Some(7))));
        // The kernel does the same for a process that is killed.
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
    fn a_directory_that_other_users_can_read_is_refused() {
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
