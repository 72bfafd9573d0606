//! MPI programs over the provider, as their libraries launch them.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weft::Endpoint;

use super::server::Server;
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

    /// Words that let the other ranks of a job outlive one that is killed.
    fn outlives(self) -> &'static [&'static str] {
        match self {
            Library::OpenMpi => &["--mca", "orte_enable_recovery", "1"],
            Library::Mpich => &["-disable-auto-cleanup"],
        }
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
    is_right(library, "exchange", before)
}

/// The same of the program that accesses windows of memory.
pub(crate) fn one_sided(library: Library, before: &[&str]) -> bool {
    is_right(library, "one_sided", before)
}

fn is_right(library: Library, program: &str, before: &[&str]) -> bool {
    let Some(said) = run(library, program, &[], before) else { return false };
    assert!(said.contains(&format!("{RANKS} ranks: all values are right")), "{said}");
    true
}

/// Runs the program of whose ranks the last one kills itself. Returns what each of the others says, unless it was skipped.
pub(crate) fn killed(library: Library, before: &[&str]) -> Option<Vec<String>> {
    let directory = tempfile::tempdir().unwrap();
    // The launchers do not see how a rank ends, cannot kill it, and cannot lose what it says: MPICH's one fails now and then when
    // a rank goes away, and takes the output of the others with it.
    let apart = format!(
        "cd {} && rank=${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} && timeout {PATIENCE} \"$0\" >said.$rank 2>&1
         echo $? >ended.$rank",
        directory.path().display()
    );
    let before: Vec<&str> = before.iter().copied().chain(["setsid", "--wait", "sh", "-c", &apart]).collect();
    run(library, "killed", library.outlives(), &before)?;
    let ranks: usize = RANKS.parse().unwrap();
    let others = (0..ranks).map(|rank| {
        let [said, ended] = ["said", "ended"].map(|name| directory.path().join(format!("{name}.{rank}")));
        // It may outlive its launcher, but not its own time limit.
        let end = Instant::now() + Duration::from_secs(PATIENCE.parse::<u64>().unwrap() + 5);
        while !ended.exists() {
            assert!(Instant::now() < end, "rank {rank} was not started, or its end was not written down");
            std::thread::sleep(Duration::from_millis(20));
        }
        let said = std::fs::read_to_string(said).unwrap();
        assert_ne!(std::fs::read_to_string(ended).unwrap().trim(), "124", "rank {rank} hangs: {said}");
        said
    });
    Some(others.take(ranks - 1).collect())
}

/// Builds a program of this directory's, and runs it behind the words of `before`, with further words for its launcher.
fn run(library: Library, name: &str, words: &[&str], before: &[&str]) -> Option<String> {
    let provider = Provider::get(&library.compiler())?;
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join(name);
    let program = program.to_str().unwrap();
    let source = format!("{}/tests/{name}.c", env!("CARGO_MANIFEST_DIR"));
    provider.run(&[&library.compiler(), "-O1", "-o", program, &source]);
    let mut command = provider.command("timeout");
    library.launch(command.arg(PATIENCE));
    let output = command.args(words).args(before).arg(program).output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // Launchers say by their status that a rank was killed.
    assert!(output.status.success() || !words.is_empty(), "{said} {errors}");
    assert!(output.status.code() != Some(124), "the job hangs: {said} {errors}");
    Some(format!("{said} {errors}"))
}

/// Two servers that memif joins, and a program that runs another one with the ranks of an MPI job at them in turn.
pub(crate) struct Served {
    pub(crate) servers: [Server; 2],
    pub(crate) in_turn: String,
    _directory: tempfile::TempDir,
}

impl Served {
    pub(crate) fn over_memif() -> Served {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("memif").display().to_string();
        let servers = [("server", 0), ("client", 1)].map(|(role, number)| {
            let builder = Endpoint::builder(format!("memif:{link},role={role},ip=10.9.0.{}", number + 1));
            Server::start(builder, &directory.path().join(number.to_string()))
        });
        let path = directory.path().join("in-turn");
        let script = format!(
            "#!/bin/sh\nrank=${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}\n\
             export FI_WEFT_PORT=serve:{}/$((rank % 2))\nexec \"$@\"\n",
            directory.path().display()
        );
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let in_turn = path.to_str().unwrap().to_owned();
        Served { servers, in_turn, _directory: directory }
    }

    /// Whether ranks have joined both.
    pub(crate) fn were_used(&self) -> bool {
        self.servers.iter().all(|server| server.joined() >= 2)
    }
}
