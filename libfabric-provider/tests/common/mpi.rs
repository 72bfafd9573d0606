//! MPI programs over the provider, as their libraries launch them.

use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{PATIENCE, Provider, target};

/// Programs that spin while they wait need the processors for themselves.
static SPINNING: Mutex<()> = Mutex::new(());

pub(crate) fn alone() -> MutexGuard<'static, ()> {
    SPINNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ranks of an MPI job.
const RANKS: &str = "4";

/// An MPI library.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Library {
    /// Debian's.
    OpenMpi,
    /// MPICH as `scripts/setup.sh` installs it. It brings a libfabric 2 of its own.
    Mpich,
}

impl Library {
    fn compiler(self) -> String {
        match self {
            Library::OpenMpi => "mpicc.openmpi".to_owned(),
            Library::Mpich => Library::of_mpich("mpicc"),
        }
    }

    fn of_mpich(program: &str) -> String {
        target().join("mpich/bin").join(program).to_str().unwrap().to_owned()
    }

    /// Adds the words before those of the program, and variables.
    fn launch(self, command: &mut Command) {
        match self {
            Library::OpenMpi => {
                command.args(["mpirun.openmpi", "-n", RANKS, "--oversubscribe", "--mca", "pml", "cm"]);
                command.args(["--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", "weft"]);
                // Others of its one-sided components would look for a network of their own.
                command.args(["--mca", "osc", "pt2pt", "--mca", "btl", "self", "-x", "FI_PROVIDER_PATH"]);
                command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
            }
            Library::Mpich => {
                command.args([&Library::of_mpich("mpiexec"), "-n", RANKS]);
                // Ranks of one host would exchange messages through memory that they share.
                command.env("MPIR_CVAR_CH4_NETMOD", "ofi").env("MPIR_CVAR_NOLOCAL", "1");
                command.env("FI_PROVIDER", "weft");
            }
        }
    }
}

/// Builds the program that exchanges messages, and runs it behind the words of `before`. False if it was skipped.
pub(crate) fn exchange(library: Library, before: &[&str]) -> bool {
    let Some(provider) = Provider::get(&library.compiler()) else { return false };
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("exchange");
    let program = program.to_str().unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/exchange.c");
    provider.run(&[&library.compiler(), "-O1", "-o", program, source]);
    let mut command = provider.command("timeout");
    library.launch(command.arg(PATIENCE));
    let output = command.args(before).arg(program).output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let right = said.contains(&format!("{RANKS} ranks: all values are right"));
    assert!(output.status.success() && right, "{said} {errors}");
    true
}
