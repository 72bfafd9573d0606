//! Programs of libfabric's and Open MPI's packages run over the provider, unchanged.

mod common;

use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::{Provider, free_port, target};

/// Seconds that a program may take on a machine that is busy with other tests.
const PATIENCE: &str = "120";

#[test]
fn fi_info_lists_the_provider_and_what_it_can_do() {
    let Some(provider) = Provider::get("fi_info") else { return };
    let brief = provider.run(&["fi_info", "-p", "weft"]);
    assert!(brief.contains("provider: weft") && brief.contains("type: FI_EP_RDM"), "{brief}");
    let long = provider.run(&["fi_info", "-p", "weft", "-v", "-d", "lo"]);
    for line in [
        "src_addr: fi_sockaddr_in://127.0.0.1:0",
        "FI_MSG, FI_RMA, FI_TAGGED, FI_ATOMIC",
        "inject_size: 4096",
        "FI_ORDER_SAS",
        "threading: FI_THREAD_SAFE",
        "cq_data_size: 4",
        "max_msg_size: 4294967295",
    ] {
        assert!(long.contains(line), "{line}: {long}");
    }
    let variables = provider.run(&["fi_info", "-e"]);
    for name in [
        "FI_WEFT_CC",
        "FI_WEFT_LB",
        "FI_WEFT_IFACE",
        "FI_WEFT_ENTROPIES",
        "FI_WEFT_MTU",
        "FI_WEFT_BUSY_TIMEOUT",
    ] {
        assert!(variables.contains(name), "{name}: {variables}");
    }
}

#[test]
fn capabilities_that_are_not_there_are_refused() {
    let Some(provider) = Provider::get("fi_info") else { return };
    for hints in [["-c", "FI_HMEM"], ["-c", "FI_RMA_EVENT"], ["-t", "FI_EP_MSG"], ["-t", "FI_EP_DGRAM"]] {
        let output = provider.output(&["fi_info", "-p", "weft", hints[0], hints[1]]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("-61"), "{hints:?}: {said}");
    }
}

/// Programs that spin while they wait need the processors for themselves.
static SPINNING: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    SPINNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Two processes of `fi_pingpong`, with contents compared.
fn ping_pong(with: &[&str]) {
    let Some(provider) = Provider::get("fi_pingpong") else { return };
    let _alone = alone();
    let port = free_port().to_string();
    let common = ["-p", "weft", "-e", "rdm", "-c", "-I", "10", "-S", "all"];
    let command = |port_option: &str| {
        let mut command = provider.command("timeout");
        command.args([PATIENCE, "fi_pingpong"]).args(common).args(with).args([port_option, &port]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let mut server = command("-B").spawn().unwrap();
    let client = loop {
        // The server may not listen yet.
        let output = command("-P").arg("127.0.0.1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_over = server.try_wait().unwrap().is_some();
        if output.status.success() || is_over || !said.contains("onnection refused") {
            break output;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    };
    let server = server.wait_with_output().unwrap();
    for (who, output) in [("client", &client), ("server", &server)] {
        let (table, said) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{who}: {table} {said}");
        assert!(table.contains("1m      10      =10"), "{who}: {table}");
    }
}

#[test]
fn fi_pingpong_exchanges_messages() {
    ping_pong(&["-m", "msg"]);
}

#[test]
fn fi_pingpong_exchanges_tagged_messages() {
    ping_pong(&["-m", "tagged"]);
}

/// Ranks of an MPI job.
const RANKS: &str = "4";

/// Builds the program that exchanges messages with the compiler `cc` of an MPI library, and runs it by `launch`.
fn exchange(provider: &Provider, cc: &str, launch: impl FnOnce(&mut Command, &str)) {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("exchange");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/exchange.c");
    provider.run(&[cc, "-O1", "-o", program.to_str().unwrap(), source]);
    let mut command = provider.command("timeout");
    launch(command.arg(PATIENCE), program.to_str().unwrap());
    let output = command.output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let right = said.contains(&format!("{RANKS} ranks: all values are right"));
    assert!(output.status.success() && right, "{said} {errors}");
}

/// MPICH as `scripts/setup.sh` installs it. It brings a libfabric 2 of its own.
#[test]
fn mpich_exchanges_and_reduces() {
    let prefix = target().join("mpich/bin");
    let place = |program: &str| prefix.join(program).to_str().unwrap().to_owned();
    let Some(provider) = Provider::get(&place("mpicc")) else { return };
    exchange(&provider, &place("mpicc"), |command, program| {
        command.args([&place("mpiexec"), "-n", RANKS, program]);
        // Ranks of one host would exchange messages through memory that they share.
        command.env("MPIR_CVAR_CH4_NETMOD", "ofi").env("MPIR_CVAR_NOLOCAL", "1").env("FI_PROVIDER", "weft");
        // Without a capability of the provider, MPICH needs to be told so.
        command.env("MPIR_CVAR_CH4_OFI_ENABLE_RMA", "0").env("MPIR_CVAR_CH4_OFI_ENABLE_ATOMICS", "0");
    });
}

#[test]
fn open_mpi_exchanges_and_reduces() {
    let Some(provider) = Provider::get("mpicc.openmpi") else { return };
    exchange(&provider, "mpicc.openmpi", open_mpi);
}

fn open_mpi(command: &mut Command, program: &str) {
    command.args(["mpirun.openmpi", "-n", RANKS, "--oversubscribe"]);
    // The one-sided component would ask the provider for remote memory access.
    command.args(["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", "weft"]);
    command.args(["--mca", "osc", "^rdma", "--mca", "btl", "self"]);
    command.args(["-x", "FI_PROVIDER_PATH", program]);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
}
