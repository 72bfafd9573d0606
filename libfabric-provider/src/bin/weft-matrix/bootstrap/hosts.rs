//! Jobs without a launcher: each process is told all hosts, and which of them it is.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

use super::{Launcher, Meeting};
use crate::Failure;

/// The list of hosts, one for each rank, and this process's rank.
pub(crate) struct HostList {
    hosts: Vec<String>,
    rank: u32,
    port: u16,
}

impl HostList {
    pub(crate) fn new(hosts: Vec<String>, rank: u32, port: u16) -> Result<HostList, Failure> {
        if rank as usize >= hosts.len() {
            let last = hosts.len() - 1;
            return Err(Failure::Usage(format!(
                "--rank {rank}: expected 0 to {last}, as --hosts has {}",
                last + 1
            )));
        }
        Ok(HostList { hosts, rank, port })
    }
}

impl Launcher for HostList {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.hosts.len() as u32
    }

    /// The meeting at rank 0's host. All jobs have the same token, and the port tells them apart.
    fn meet(&mut self) -> Result<(Meeting, u64), Failure> {
        let place = (self.hosts[0].as_str(), self.port);
        let failed = |error| Failure::Run(format!("rank 0 at {}:{}: {error}", place.0, place.1));
        if self.rank == 0 {
            return Ok((Meeting::Here(TcpListener::bind(place).map_err(failed)?), 0));
        }
        let addresses: Vec<SocketAddr> = place.to_socket_addrs().map_err(failed)?.collect();
        Ok((Meeting::There(addresses), 0))
    }
}
