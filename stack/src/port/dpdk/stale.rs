//! Sockets that killed processes have left behind: drivers that serve at one refuse to begin where a file is.

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;

use super::interface::argument;

/// Removes the socket at which the device `name` is to serve, if nobody has it open any more. What cannot be removed
/// is the driver's to complain about.
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

/// Whether nobody has the socket open. It was asked for as one of another type than the driver's, so that whoever
/// has it, bound and not listening yet included, is not disturbed: that is another error.
fn refuses<T>(connected: std::io::Result<T>) -> bool {
    connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}
