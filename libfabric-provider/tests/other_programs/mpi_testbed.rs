//! MPI programs across the software testbed: ranks at four hosts of an emulated leaf-spine, whose switches trim packets at
//! random.

use std::process::{Command, Output};

use crate::common::mpi::{Library, exchange, one_sided};
use crate::common::weft;

/// Two leaves and two spines, which trim one packet in a hundred on every link.
const FABRIC: &str = r#"
topology = "leaf-spine:hosts=4,leaves=2,spines=2"
slow = 500
link-event = [
    "0us host=0 dir=down trim=0.01", "0us host=1 dir=down trim=0.01",
    "0us host=2 dir=down trim=0.01", "0us host=3 dir=down trim=0.01",
    "0us tier=0 switch=0 link=0 trim=0.01", "0us tier=0 switch=0 link=1 trim=0.01",
    "0us tier=0 switch=1 link=0 trim=0.01", "0us tier=0 switch=1 link=1 trim=0.01",
]
"#;

/// A testbed with servers, which ends when this is dropped.
struct Testbed {
    directory: tempfile::TempDir,
    weft: String,
}

impl Testbed {
    /// The testbed, if the command `weft` was built; else says that the test is skipped, or fails if `CI` is set.
    fn up(hosts: &str) -> Option<Testbed> {
        let weft = weft()?;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("bed.toml");
        std::fs::write(&file, FABRIC).unwrap();
        let bed = Testbed { directory, weft: weft.to_str().unwrap().to_owned() };
        let output = bed.run(&["up", file.to_str().unwrap(), "--serve", "--detach", "--hosts", hosts]);
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
    if let Some(bed) = Testbed::up("memif") {
        bed.carries(|before| exchange(Library::Mpich, before));
        bed.carries(|before| one_sided(Library::Mpich, before));
    }
}

#[test]
fn open_mpi_exchanges_and_reduces_across_switches_that_trim_at_random() {
    if let Some(bed) = Testbed::up("udp") {
        bed.carries(|before| exchange(Library::OpenMpi, before));
    }
}
