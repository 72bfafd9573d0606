//! MPI programs whose ranks share servers, as `weft serve` is one, over memif.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::mpi::{Library, exchange};
use common::server::Server;
use weft::Endpoint;

/// A program that runs another one, with the ranks of an MPI job at the servers `0` and `1` in turn.
fn in_turn(directory: &Path) -> String {
    let path = directory.join("in-turn");
    let script = format!(
        "#!/bin/sh\nrank=${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}\n\
         export FI_WEFT_PORT=serve:{}/$((rank % 2))\nexec \"$@\"\n",
        directory.display()
    );
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Ranks at two servers that memif joins: each exchanges messages with one of its own server, and with two of the other.
fn over_memif(library: Library) {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("memif").display().to_string();
    let servers = [("server", 0), ("client", 1)].map(|(role, number)| {
        let builder = Endpoint::builder(format!("memif:{link},role={role},ip=10.9.0.{}", number + 1));
        Server::start(builder, &directory.path().join(number.to_string()))
    });
    let done = exchange(library, &[&in_turn(directory.path())]);
    assert!(!done || servers.iter().all(|server| server.joined() >= 2), "ranks were elsewhere");
}

#[test]
fn mpich_exchanges_and_reduces_through_servers_over_memif() {
    over_memif(Library::Mpich);
}

#[test]
fn open_mpi_exchanges_and_reduces_through_servers_over_memif() {
    over_memif(Library::OpenMpi);
}
