//! MPI programs over the provider, as their libraries launch them.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::fabric::BOUND;
use super::{PATIENCE, Provider, target, weft};

/// Programs that spin while they wait need the processors for themselves.
static SPINNING: Mutex<()> = Mutex::new(());

pub(crate) fn alone() -> MutexGuard<'static, ()> {
    SPINNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Longer than the bounds of docs/libfabric.md, on a machine that is busy with other tests.
const IN_TIME: Duration = Duration::from_secs(60);
/// Ranks of a job, unless it says otherwise.
pub(crate) const RANKS: usize = 4;

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
    fn launch(self, ranks: usize, command: &mut Command) {
        let number = ranks.to_string();
        let ranks = number.as_str();
        match self {
            Library::OpenMpi => {
                command.args(["mpirun.openmpi", "-n", ranks, "--oversubscribe", "--mca", "pml", "cm"]);
                command.args(["--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", "weft"]);
                // Others of its one-sided components would look for a network of their own.
                command.args(["--mca", "osc", "pt2pt", "--mca", "btl", "self", "-x", "FI_PROVIDER_PATH"]);
                command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
            }
            Library::Mpich => {
                command.args([&Library::of_mpich("mpiexec"), "-n", ranks]);
                // Ranks of one host would exchange messages through memory that they share.
                command.env("MPIR_CVAR_CH4_NETMOD", "ofi").env("MPIR_CVAR_NOLOCAL", "1");
                command.env("FI_PROVIDER", "weft");
            }
        }
    }
}

/// Builds the program that exchanges messages, and runs it behind the words of `before`. False if it was skipped.
pub(crate) fn exchange(library: Library, before: &[&str]) -> bool {
    exchange_of(RANKS, library, before)
}

/// The same with so many ranks.
pub(crate) fn exchange_of(ranks: usize, library: Library, before: &[&str]) -> bool {
    is_right(ranks, library, "exchange", before, &[])
}

/// The same in one round, where many ranks take long.
pub(crate) fn exchange_once(ranks: usize, library: Library, before: &[&str]) -> bool {
    is_right(ranks, library, "exchange", before, &["1"])
}

/// The same of the program that accesses windows of memory.
pub(crate) fn one_sided(library: Library, before: &[&str]) -> bool {
    is_right(RANKS, library, "one_sided", before, &[])
}

fn is_right(ranks: usize, library: Library, program: &str, before: &[&str], arguments: &[&str]) -> bool {
    let Some(said) = run(ranks, library, program, &[], before, arguments) else { return false };
    assert!(said.contains(&format!("{ranks} ranks: all values are right")), "{said}");
    true
}

/// The exit status that a shell reports for a process that SIGKILL has ended.
const KILLED: &str = "137";

/// A rank that has ended.
struct Ended {
    /// Its standard output and standard error.
    said: String,
    /// The exit status that the shell reports.
    status: String,
    at: SystemTime,
}

/// Runs the program of whose ranks the last one kills itself. Returns how each rank ends, unless it was skipped.
fn killed(library: Library, before: &[&str]) -> Option<Vec<Ended>> {
    let directory = tempfile::tempdir().unwrap();
    // The launchers do not see how a rank ends, cannot kill it, and cannot lose what it says: MPICH's one fails now and then when
    // a rank goes away, and takes the output of the others with it.
    let apart = format!(
        "cd {} && rank=${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} && timeout {PATIENCE} \"$0\" >said.$rank 2>&1
         echo $? >ended.$rank",
        directory.path().display()
    );
    let before: Vec<&str> = before.iter().copied().chain(["setsid", "--wait", "sh", "-c", &apart]).collect();
    run(RANKS, library, "killed", library.outlives(), &before, &[])?;
    let ranks = (0..RANKS).map(|rank| {
        let [said, ended] = ["said", "ended"].map(|name| directory.path().join(format!("{name}.{rank}")));
        // It may outlive its launcher, but not its own time limit.
        let end = Instant::now() + Duration::from_secs(PATIENCE.parse::<u64>().unwrap() + 5);
        while !ended.exists() {
            assert!(Instant::now() < end, "rank {rank} was not started, or its end was not written down");
            std::thread::sleep(Duration::from_millis(20));
        }
        let said = std::fs::read_to_string(said).unwrap();
        let at = ended.metadata().and_then(|file| file.modified()).unwrap();
        let status = std::fs::read_to_string(ended).unwrap().trim().to_owned();
        assert_ne!(status, "124", "rank {rank} hangs: {said}");
        Ended { said, status, at }
    });
    Some(ranks.collect())
}

/// As [`killed`]: the others have begun the exchange in the middle of which that happens, and end within [`MARGIN`] times `bound` with
/// an error that `is_error` knows. False if it was skipped.
pub(crate) fn outlive(
    library: Library,
    before: &[&str],
    bound: Duration,
    is_error: fn(&str) -> bool,
) -> bool {
    let begin = Instant::now();
    let Some(ranks) = killed(library, before) else { return false };
    assert!(begin.elapsed() < IN_TIME, "the job took {:?}", begin.elapsed());
    let (victim, others) = ranks.split_last().expect("there are several ranks");
    assert_eq!(victim.status, KILLED, "the last rank was to be killed: {}", victim.said);
    for (rank, Ended { said, at, .. }) in others.iter().enumerate() {
        assert!(said.contains(&format!("rank {rank}: round 20 begins")), "rank {rank} ended before: {said}");
        assert!(is_error(said), "rank {rank}: {said}");
        // A rank may get its error before the end of the one that was killed is written down.
        let took = at.duration_since(victim.at).unwrap_or(Duration::ZERO);
        assert!(took <= MARGIN * bound, "rank {rank} ended {took:?} after the one that was killed: {said}");
    }
    true
}

/// How many times the bound of docs/libfabric.md an error may take on a machine that is busy with other tests.
const MARGIN: u32 = 3;

/// Whether a rank of `killed.c` over Open MPI says that it has got its error.
pub(crate) fn open_mpi_returns_an_error(said: &str) -> bool {
    said.contains(": an error in round 2")
}

/// Builds a program of this directory's, and runs it behind the words of `before`, with further words for its launcher.
fn run(
    ranks: usize,
    library: Library,
    name: &str,
    words: &[&str],
    before: &[&str],
    arguments: &[&str],
) -> Option<String> {
    let provider = Provider::get(&library.compiler())?;
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join(name);
    let program = program.to_str().unwrap();
    let source = format!("{}/tests/{name}.c", env!("CARGO_MANIFEST_DIR"));
    provider.run(&[&library.compiler(), "-O1", "-o", program, &source]);
    let mut command = provider.command("timeout");
    library.launch(ranks, command.arg(PATIENCE));
    let output = command.args(words).args(before).arg(program).args(arguments).output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // Launchers say by their status that a rank was killed.
    assert!(output.status.success() || !words.is_empty(), "{said} {errors}");
    assert!(output.status.code() != Some(124), "the job hangs: {said} {errors}");
    Some(format!("{said} {errors}"))
}

/// Runs the files of mpi4py's own suite whose names match on two ranks over MPICH, without tests whose names have one of these parts.
/// Returns how many each has run, unless it was skipped.
pub(crate) fn mpi4py(files: &str, without: &[&str]) -> Option<Vec<usize>> {
    const PYTHON_RANKS: usize = 2;
    let suite = target().join("mpich/mpi4py/test/main.py");
    let provider = Provider::get(&Library::of_mpich("python"))?;
    if !suite.exists() {
        assert!(std::env::var_os("CI").is_none(), "{} is missing: run scripts/setup.sh", suite.display());
        eprintln!("skipped: {} is missing; scripts/setup.sh installs it", suite.display());
        return None;
    }
    let _alone = alone();
    let mut command = provider.command("timeout");
    Library::Mpich.launch(PYTHON_RANKS, command.arg(PATIENCE));
    command.arg(Library::of_mpich("python")).arg(suite).args(["-i", files]);
    let output = command.args(without.iter().flat_map(|part| ["-x", part])).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let ran = said.lines().filter_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse().ok());
    let ran: Vec<usize> = ran.collect();
    assert!(ran.len() == PYTHON_RANKS && said.matches("\nOK").count() == PYTHON_RANKS, "{said}");
    Some(ran)
}

/// Two processes of `weft serve` that memif joins, and a program that runs another one with the ranks of an MPI job at them in
/// turn.
pub(crate) struct Served {
    servers: Vec<Child>,
    pub(crate) in_turn: String,
    directory: tempfile::TempDir,
}

impl Served {
    /// The servers, if the command `weft` was built; else says that the test is skipped, or fails if `CI` is set.
    pub(crate) fn over_memif() -> Option<Served> {
        Served::over_memif_with(&[])
    }

    /// The same of servers that have room for one job of [`RANKS`] ranks at a time, and no more: neither for another application nor
    /// for its memory.
    pub(crate) fn for_one_job() -> Option<Served> {
        const EACH: usize = RANKS / 2;
        // The provider asks for 256 MiB for each rank, and some for its rings.
        let memory = format!("{}MiB", 256 * EACH + 128);
        Served::over_memif_with(&["--applications", &EACH.to_string(), "--memory-total", &memory])
    }

    fn over_memif_with(options: &[&str]) -> Option<Served> {
        let weft = weft()?;
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("memif").display().to_string();
        let mut served = Served { servers: Vec::new(), in_turn: String::new(), directory };
        for (number, role) in ["server", "client"].into_iter().enumerate() {
            let socket = served.directory.path().join(number.to_string());
            let said = File::create(served.said(number)).unwrap();
            let mut command = Command::new(&weft);
            command.arg("serve").arg("--socket").arg(&socket);
            command.args(["--port", &format!("memif:{link},role={role}"), "--ip"]);
            command.arg(format!("10.9.0.{}", number + 1)).args(options);
            command.stdout(said.try_clone().unwrap()).stderr(said);
            served.servers.push(command.spawn().unwrap());
            let begin = Instant::now();
            while !socket.exists() {
                let ended = served.servers[number].try_wait().unwrap();
                assert!(ended.is_none(), "it ended: {}", served.says(number));
                assert!(begin.elapsed() < BOUND, "it does not listen: {}", served.says(number));
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let path = served.directory.path().join("in-turn");
        let script = format!(
            "#!/bin/sh\nrank=${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}\n\
             export FI_WEFT_PORT=serve:{}/$((rank % 2))\nexec \"$@\"\n",
            served.directory.path().display()
        );
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        served.in_turn = path.to_str().unwrap().to_owned();
        Some(served)
    }

    /// The name of a server's place, for the provider.
    pub(crate) fn place(&self, server: usize) -> String {
        format!("serve:{}/{server}", self.directory.path().display())
    }

    fn said(&self, server: usize) -> PathBuf {
        self.directory.path().join(format!("said.{server}"))
    }

    /// What a server has said.
    fn says(&self, server: usize) -> String {
        std::fs::read_to_string(self.said(server)).unwrap()
    }

    /// How many ranks have come to each server.
    pub(crate) fn came(&self) -> [usize; 2] {
        [0, 1].map(|server| self.says(server).lines().filter(|line| line.ends_with(": come")).count())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        for server in &mut self.servers {
            // One that has ended cannot be killed.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
