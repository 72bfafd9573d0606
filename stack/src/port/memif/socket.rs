//! The Unix socket of the control channel: whole messages, with descriptors. Nothing here waits.
//!
//! A server that is killed leaves its socket's file behind; the next one finds that no process listens there and
//! removes it. If two servers start at the same moment at such a file, both can find no listener: then the second
//! removes the file that the first has just made, and gets all clients. Abstract sockets leave no file behind and
//! have no such race.
#![forbid(unsafe_code)]

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recvmsg, sendmsg, socket_with,
};

use super::config::{MemifError, SocketName};
use super::handshake_error::HandshakeError;
use super::message::{MESSAGE, Message};

/// The most clients that wait to be accepted.
const BACKLOG: i32 = 16;

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Socket(OwnedFd);

/// The result of [`Socket::receive`].
#[derive(Debug)]
pub(super) enum Received {
    /// Nothing so far.
    Nothing,
    /// The other end is gone.
    Closed,
    /// A message, with its descriptor if it carries one; or why a packet is no message.
    Packet(Result<(Message, Option<OwnedFd>), HandshakeError>),
}

impl Socket {
    /// Connects to the server that listens at `name`.
    pub(super) fn connect(name: &SocketName) -> rustix::io::Result<Socket> {
        let socket = new()?;
        connect(&socket, &address(name)?)?;
        Ok(Socket(socket))
    }

    /// Sends a message. Fails if the socket's buffer is full because the peer does not read.
    pub(super) fn send(&self, message: &Message, file: Option<BorrowedFd<'_>>) -> rustix::io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = file.map(|file| [file]);
        if let Some(files) = &files {
            control.push(SendAncillaryMessage::ScmRights(files));
        }
        let bytes = message.encode();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // Sockets of this kind take a message whole or not at all.
        sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, flags).map(drop)
    }

    /// Sends a DISCONNECT with this reason. If that fails the peer notices when the socket is closed.
    pub(super) fn part(&self, reason: &str) {
        let _ = self.send(&Message::disconnect(reason), None);
    }

    /// Checks that the peer of a link is there and sends nothing: once there is a link, the only message is DISCONNECT.
    ///
    /// # Errors
    /// Why there is no link any more.
    pub(super) fn check_peer(&self) -> Result<(), String> {
        let error = match self.receive() {
            Received::Nothing => return Ok(()),
            Received::Closed => return Err("the peer is gone".to_owned()),
            Received::Packet(Ok((Message::Disconnect { reason, .. }, _))) => {
                return Err(format!("the peer has left: {reason}"));
            }
            Received::Packet(Ok((other, _))) => {
                HandshakeError::Order { came: other.name(), expected: "DISCONNECT" }
            }
            Received::Packet(Err(error)) => error,
        };
        let why = error.to_string();
        self.part(&why);
        Err(format!("the peer makes no sense: {why}"))
    }

    /// The next message.
    pub(super) fn receive(&self) -> Received {
        let mut bytes = [0; MESSAGE];
        // Room for more descriptors than are allowed, so that extra ones are noticed and closed.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let mut got = recvmsg(&self.0, &mut parts, &mut control, flags);
        if got.as_ref().is_err_and(|&error| error == Errno::CONNRESET) {
            // The peer has closed without reading everything. The kernel reports that once, before the peer's last
            // message.
            got = recvmsg(&self.0, &mut parts, &mut control, flags);
        }
        let got = match got {
            Ok(got) if got.bytes == 0 => return Received::Closed,
            Ok(got) => got,
            Err(Errno::AGAIN | Errno::INTR) => return Received::Nothing,
            Err(_) => return Received::Closed,
        };
        let mut files = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                files.extend(some);
            }
        }
        let cut = got.flags.contains(ReturnFlags::CTRUNC);
        Received::Packet(if got.flags.contains(ReturnFlags::TRUNC) {
            Err(HandshakeError::TooLong)
        } else {
            open(&bytes[..got.bytes], files, cut)
        })
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Reads a message and checks that it comes with just the descriptor that belongs to it. `cut`: the kernel has closed
/// some descriptors for lack of room.
fn open(
    bytes: &[u8],
    mut files: Vec<OwnedFd>,
    cut: bool,
) -> Result<(Message, Option<OwnedFd>), HandshakeError> {
    let message = Message::decode(bytes)?;
    let file = files.pop();
    let name = message.name();
    match &file {
        _ if cut || !files.is_empty() => Err(HandshakeError::Files(name)),
        Some(_) if !message.has_file() => Err(HandshakeError::Files(name)),
        None if message.has_file() => Err(HandshakeError::NoFile(name)),
        _ => Ok((message, file)),
    }
}

/// The server's socket. Its file, if it has one, is removed when this is dropped.
#[derive(Debug)]
pub(super) struct ListenSocket {
    socket: OwnedFd,
    file: Option<SocketFile>,
}

/// The file of a socket that this process has made.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl ListenSocket {
    /// Listens at `name`.
    ///
    /// # Errors
    /// Another server listens there, or the system refuses.
    pub(super) fn open(name: &SocketName) -> Result<ListenSocket, MemifError> {
        let failed = |what| move |error: Errno| system(what, name, error.into());
        let socket = new().map_err(failed("open a socket for"))?;
        let address = address(name).map_err(failed("listen at"))?;
        let mut bound = bind(&socket, &address);
        if bound == Err(Errno::ADDRINUSE) {
            make_way(name)?;
            bound = bind(&socket, &address);
        }
        match bound {
            Err(Errno::ADDRINUSE) => return Err(MemifError::Taken(name.clone())),
            bound => bound.map_err(failed("listen at"))?,
        }
        let file = match name {
            SocketName::Path(path) => {
                identity(path).map(|identity| SocketFile { path: path.clone(), identity })
            }
            SocketName::Abstract(_) => None,
        };
        let listener = ListenSocket { socket, file };
        listen(&listener.socket, BACKLOG).map_err(failed("listen at"))?;
        Ok(listener)
    }

    /// The next client, if one is waiting.
    pub(super) fn accept(&self) -> rustix::io::Result<Option<Socket>> {
        match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(Socket(socket))),
            // CONNABORTED: the client has left before it was accepted.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for ListenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for ListenSocket {
    fn drop(&mut self) {
        // Another server may have taken the file for one left behind, and made its own.
        if let Some(file) = &self.file
            && identity(&file.path) == Some(file.identity)
        {
            let _ = fs::remove_file(&file.path);
        }
    }
}

/// Removes the file of a socket at which no process listens.
fn make_way(name: &SocketName) -> Result<(), MemifError> {
    let SocketName::Path(path) = name else { return Err(MemifError::Taken(name.clone())) };
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => return Err(MemifError::NoSocket(path.clone())),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(system("look at", name, error)),
    }
    match Socket::connect(name) {
        // A process listens, even if its queue is full or its socket is of another kind.
        Ok(_) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(MemifError::Taken(name.clone())),
        Err(Errno::NOENT) => Ok(()),
        Err(Errno::CONNREFUSED) => match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(system("remove what a dead server has left at", name, error))
            }
            _ => Ok(()),
        },
        Err(error) => Err(system("find out who listens at", name, error.into())),
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

fn new() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Abstract names are not padded with zeros, as DPDK's driver does it too.
fn address(name: &SocketName) -> rustix::io::Result<SocketAddrUnix> {
    match name {
        SocketName::Path(path) => SocketAddrUnix::new(path),
        SocketName::Abstract(name) => SocketAddrUnix::new_abstract_name(name.as_bytes()),
    }
}

fn system(what: &'static str, socket: &SocketName, error: io::Error) -> MemifError {
    MemifError::System { what, socket: socket.clone(), error }
}
