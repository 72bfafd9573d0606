//! Stale sockets of killed processes: a driver that serves a socket refuses to start if its file exists.

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;

use super::interface::argument;

/// Removes the socket that the device `name` is to serve, if no process has it open any more. If it cannot be removed,
/// the driver reports the error.
pub(super) fn remove_socket(name: &str, arguments: &str) {
    let server = !matches!(argument(arguments, "role"), Some("client" | "slave"));
    let (path, is_stale): (_, fn(&Path) -> bool) = if name.starts_with("net_memif") {
        if !server || argument(arguments, "socket-abstract") != Some("no") {
            return;
        }
        (argument(arguments, "socket"), |path| refuses(UnixStream::connect(path)))
    } else if name.starts_with("net_vhost") && argument(arguments, "client") != Some("1") {
        (argument(arguments, "iface"), |path| {
            refuses(UnixDatagram::unbound().and_then(|own| own.connect(path)))
        })
    } else {
        return;
    };
    let Some(path) = path.map(Path::new) else { return };
    let is_socket = path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket());
    if is_socket && is_stale(path) {
        let _ = std::fs::remove_file(path);
    }
}

/// Whether no process has the socket open. The probe connects with another socket type than the driver's, so that a
/// process that has it open, even if bound and not listening yet, is not disturbed: it answers with another error.
fn refuses<T>(connected: std::io::Result<T>) -> bool {
    connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}
