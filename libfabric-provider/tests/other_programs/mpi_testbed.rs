//! MPI programs across the software testbed: each rank is at a host of its own of an emulated leaf-spine, whose switches trim packets
//! at random.

use std::process::{Command, Output};

use crate::common::mpi::{Library, RANKS, exchange, exchange_of, exchange_once, one_sided};
use crate::common::weft;

/// Two leaves and two spines, with so many hosts, which trim one packet in a hundred on every link.
fn fabric(hosts: usize) -> String {
    let to_hosts = (0..hosts).map(|host| format!("host={host} dir=down"));
    let between = [(0, 0), (0, 1), (1, 0), (1, 1)];
    let between = between.into_iter().map(|(leaf, link)| format!("tier=0 switch={leaf} link={link}"));
    let events: String =
        to_hosts.chain(between).map(|link| format!("    \"0us {link} trim=0.01\",\n")).collect();
    format!(
        "topology = \"leaf-spine:hosts={hosts},leaves=2,spines=2\"\nslow = 500\nlink-event = [\n{events}]\n"
    )
}

/// A testbed with servers, which ends when this is dropped.
struct Testbed {
    directory: tempfile::TempDir,
    weft: String,
}

impl Testbed {
    /// The testbed with so many hosts, whose ports are of this kind, if the command `weft` was built; else says that the test is skipped,
    /// or fails if `CI` is set.
    fn up(hosts: usize, kind: &str) -> Option<Testbed> {
        let weft = weft()?;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("bed.toml");
        std::fs::write(&file, fabric(hosts)).unwrap();
        let bed = Testbed { directory, weft: weft.to_str().unwrap().to_owned() };
        let output = bed.run(&["up", file.to_str().unwrap(), "--serve", "--detach", "--hosts", kind]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(bed)
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new(&self.weft);
        command.arg("testbed").args(words).env("XDG_RUNTIME_DIR", self.directory.path());
        command.output().unwrap()
    }

    /// The number of frames that the switches have trimmed.
    fn trimmed(&self) -> u64 {
        let output = self.run(&["status", "--json"]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let (_, rest) = said.split_once("\"trimmed\":").unwrap_or_else(|| panic!("{said}"));
        rest.split(',').next().unwrap().parse().unwrap()
    }

    /// Runs the job of `run` with a rank at each host.
    fn carries(&self, run: impl FnOnce(&[&str]) -> bool) {
        let (runtime, before) =
            (format!("XDG_RUNTIME_DIR={}", self.directory.path().display()), self.trimmed());
        if run(&["env", &runtime, &self.weft, "testbed", "exec", "--"]) {
            let trimmed = self.trimmed() - before;
            assert!(trimmed > 10, "one packet in a hundred of thousands: {trimmed}");
        }
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        drop(self.run(&["down"]));
    }
}

#[test]
fn mpich_exchanges_reduces_and_accesses_windows_across_switches_that_trim_at_random() {
    if let Some(bed) = Testbed::up(RANKS, "memif") {
        bed.carries(|before| exchange(Library::Mpich, before));
        bed.carries(|before| one_sided(Library::Mpich, before));
    }
}

#[test]
fn open_mpi_exchanges_and_reduces_across_switches_that_trim_at_random() {
    if let Some(bed) = Testbed::up(RANKS, "udp") {
        bed.carries(|before| exchange(Library::OpenMpi, before));
    }
}

#[test]
fn two_and_eight_ranks_of_both_libraries_exchange_and_reduce_across_switches_that_trim_at_random() {
    for (ranks, exchange) in [(2, exchange_of as fn(_, _, &[&str]) -> _), (8, exchange_once)] {
        let Some(bed) = Testbed::up(ranks, "memif") else { return };
        for library in [Library::Mpich, Library::OpenMpi] {
            bed.carries(|before| exchange(ranks, library, before));
        }
    }
}
