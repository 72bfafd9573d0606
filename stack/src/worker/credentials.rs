//! Who is at the other end of a Unix socket.
//!
//! The kernel says 0 for a process that lives where this one cannot see it: in a PID namespace that is not below its own.
//! rustix has a type for process numbers that cannot be 0, so that the kernel is asked here without it.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// The user and the process that have connected, or listened, at the other end of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) user: u32,
    /// `None` for one that this process cannot see.
    pub(super) process: Option<u32>,
}

impl Credentials {
    /// Those of the other end of `stream`.
    ///
    /// # Errors
    /// Those of `getsockopt`.
    pub(super) fn of_peer(stream: &UnixStream) -> io::Result<Credentials> {
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: `peer` and `len` live until the call returns, and the kernel writes no more than `len` bytes, which `peer`
        // has. Its fields are integers, for which any bytes are valid.
        let result = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut peer).cast(),
                &raw mut len,
            )
        };
        match result {
            0 => Ok(Credentials {
                user: peer.uid,
                process: u32::try_from(peer.pid).ok().filter(|process| *process > 0),
            }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};
    use std::process::Command;

    use super::*;

    /// Set for the copy of this program that runs in a PID namespace of its own.
    const INSIDE: &str = "WEFT_TEST_INSIDE_PID_NAMESPACE";

    #[test]
    fn a_process_that_this_one_can_see_has_a_number() {
        let (own, _other) = UnixStream::pair().unwrap();
        let known = Credentials::of_peer(&own).unwrap();
        assert_eq!(known.process, Some(std::process::id()));
        assert_eq!(known.user, rustix::process::geteuid().as_raw());
    }

    /// The test runs itself once more in a new PID namespace, with a socket whose other end is this process.
    #[test]
    fn a_process_in_a_pid_namespace_that_this_one_cannot_see_is_nobody() {
        if std::env::var_os(INSIDE).is_some() {
            let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
            assert_eq!(Credentials::of_peer(&socket).unwrap().process, None);
            return;
        }
        let namespaces = ["--user", "--map-root-user", "--pid", "--fork"];
        match Command::new("unshare").args(namespaces).arg("true").output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => return crate::skipped::skipped(&String::from_utf8_lossy(&output.stderr)),
            Err(error) => return crate::skipped::skipped(&format!("unshare: {error}")),
        }
        let (_own, other) = UnixStream::pair().unwrap();
        let output = Command::new("unshare")
            .args(namespaces)
            .arg(std::env::current_exe().unwrap())
            .arg("a_process_in_a_pid_namespace_that_this_one_cannot_see_is_nobody")
            .env(INSIDE, "1")
            .stdin(OwnedFd::from(other))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
}
