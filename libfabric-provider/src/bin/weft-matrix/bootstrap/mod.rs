//! Who takes part in a job: this process's rank, how many there are, and where rank 0 is to be met.

mod hosts;
mod pmi1;
mod pmix;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use crate::Failure;

pub(crate) use hosts::HostList;
use pmi1::Pmi1;
use pmix::Pmix;

/// How long ranks wait for each other before the run. A job of many ranks does not start everywhere at once.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A launcher of jobs, as a process of the job sees it.
pub(crate) trait Launcher {
    fn rank(&self) -> u32;
    fn size(&self) -> u32;

    /// Where the ranks meet, and a number that those of this job know each other by.
    fn meet(&mut self) -> Result<(Meeting, u64), Failure>;
}

/// The launcher that has started this process.
pub(crate) fn launcher(hosts: Option<HostList>) -> Result<Box<dyn Launcher>, Failure> {
    if let Some(hosts) = hosts {
        return Ok(Box::new(hosts));
    }
    if let Some(pmi) = Pmi1::from_environment()? {
        return Ok(Box::new(pmi));
    }
    match Pmix::from_environment()? {
        Some(pmix) => Ok(Box::new(pmix)),
        None => Err(Failure::Usage(
            "no launcher of jobs has started this process: expected mpirun of Open MPI (PMIx), mpiexec of MPICH (PMI-1), \
             srun --mpi=pmix, or --hosts and --rank"
                .to_owned(),
        )),
    }
}

/// Where rank 0 is met.
pub(crate) enum Meeting {
    /// This is rank 0, and listens here.
    Here(TcpListener),
    /// Rank 0 is at one of these.
    There(Vec<SocketAddr>),
}

/// The meeting at a port that rank 0 has chosen. `broadcast` carries rank 0's word to all: rank 0 hands it in, and each gets
/// it.
fn meet_by_word(
    rank: u32,
    broadcast: impl FnOnce(Option<&str>) -> Result<String, Failure>,
) -> Result<(Meeting, u64), Failure> {
    if rank > 0 {
        let word = broadcast(None)?;
        let (token, addresses) = parse(&word)
            .ok_or_else(|| Failure::Run(format!("rank 0 says `{word}` instead of its addresses")))?;
        return Ok((Meeting::There(addresses), token));
    }
    let failed = |error: std::io::Error| Failure::Run(format!("a TCP port to listen at: {error}"));
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    let token = token();
    let addresses: Vec<String> =
        own_addresses().iter().map(|ip| SocketAddr::new(*ip, port).to_string()).collect();
    broadcast(Some(&format!("{token:x}@{}", addresses.join(","))))?;
    Ok((Meeting::Here(listener), token))
}

/// A number that no other job has.
fn token() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

/// Addresses at which this host may be reached. The loopback address is among them: a rank of another host finds
/// another program there, or none, and goes on to the next one.
fn own_addresses() -> Vec<IpAddr> {
    let found = if_addrs::get_if_addrs().unwrap_or_default();
    let mut ips: Vec<IpAddr> = found.iter().map(|interface| interface.ip()).filter(IpAddr::is_ipv4).collect();
    ips.sort_by_key(|ip| !ip.is_loopback());
    ips.dedup();
    ips
}

fn parse(word: &str) -> Option<(u64, Vec<SocketAddr>)> {
    let (token, addresses) = word.split_once('@')?;
    let addresses: Option<Vec<SocketAddr>> = addresses.split(',').map(|text| text.parse().ok()).collect();
    Some((u64::from_str_radix(token, 16).ok()?, addresses?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_of_rank_0_is_a_token_and_addresses() {
        let parsed = parse("2a@127.0.0.1:80,192.0.2.1:80").unwrap();
        assert_eq!(parsed.0, 42);
        assert_eq!(parsed.1, ["127.0.0.1:80".parse().unwrap(), "192.0.2.1:80".parse().unwrap()]);
        for wrong in ["", "2a", "x@127.0.0.1:80", "2a@", "2a@127.0.0.1", "2a@127.0.0.1:80,"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
