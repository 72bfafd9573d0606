//! Programs of libfabric's and Open MPI's packages run over the provider, unchanged.

use std::path::Path;
use std::process::Stdio;

use crate::common::fabric::{QUESTIONS, SILENCE};
use crate::common::mpi::{
    Library, Served, alone, exchange, exchange_of, mpi4py, open_mpi_returns_an_error, outlive,
};
use crate::common::{PATIENCE, Provider, free_port, target};

#[test]
fn fi_info_lists_the_provider_and_what_it_can_do() {
    let Some(provider) = Provider::get("fi_info") else { return };
    let brief = provider.run(&["fi_info", "-p", "weft"]);
    assert!(brief.contains("provider: weft") && brief.contains("type: FI_EP_RDM"), "{brief}");
    assert!(brief.contains("type: FI_EP_DGRAM"), "{brief}");
    assert!(!brief.contains("ofi_rxd"), "libfabric builds no reliable endpoints on datagrams: {brief}");
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
        "FI_WEFT_JOB",
        "FI_WEFT_PORT",
        "FI_WEFT_MEMORY",
    ] {
        assert!(variables.contains(name), "{name}: {variables}");
    }
}

#[test]
fn capabilities_that_are_not_there_are_refused() {
    let Some(provider) = Provider::get("fi_info") else { return };
    for hints in [["-c", "FI_HMEM"], ["-c", "FI_TRIGGER"], ["-t", "FI_EP_MSG"]] {
        let output = provider.output(&["fi_info", "-p", "weft", hints[0], hints[1]]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("-61"), "{hints:?}: {said}");
    }
}

/// Mounts an empty file system over libfabric's directory, which shows what is there but keeps no change, installs the provider in it,
/// exchanges messages, and removes it again. Packages that are missing are not installed.
const INSTALL: &str = r#"
libraries=$(pkg-config --variable=libdir libfabric) && mount -t tmpfs tmpfs "$1" && mkdir "$1/new" "$1/work" "$1/bin" &&
    mount -t overlay overlay -o "lowerdir=$libraries,upperdir=$1/new,workdir=$1/work" "$libraries" || exit 77
rm -f "$libraries/libfabric/libweft-fi.so"
if fi_info -p weft; then echo "the provider was there before"; exit 1; fi
printf '#!/bin/sh
exit 77
' >"$1/bin/apt-get" && chmod +x "$1/bin/apt-get" || exit 1
PATH=$1/bin:$PATH "$2/scripts/setup.sh" --system || exit
fi_info -p weft || exit 1
ping_pong() { timeout "$4" fi_pingpong -p weft -e rdm -m msg -c -I 10 -S all "$5" "$3" $6 >"$1/$5" 2>&1; }
ping_pong "$@" -B &
server=$!
# It may not listen yet.
until ping_pong "$@" -P 127.0.0.1; do
    grep -q "onnection refused" "$1/-P" && kill -0 $server || { cat "$1/-P" "$1/-B"; exit 1; }
    sleep 0.05
done
wait $server || { cat "$1/-B"; exit 1; }
cat "$1/-P"
rm "$libraries/libfabric/libweft-fi.so"
! fi_info -p weft
"#;

#[test]
fn setup_installs_the_provider_where_libfabric_finds_it_by_itself() {
    let mpich = target().join("mpich/bin/mpiexec");
    let Some(provider) = Provider::get(mpich.to_str().unwrap()) else { return };
    let directory = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let _alone = alone();
    let mut command = provider.command("timeout");
    command.args([PATIENCE, "unshare", "--map-root-user", "--mount", "sh", "-c", INSTALL, "sh"]);
    command.arg(directory.path()).arg(root).args([&free_port().to_string(), PATIENCE]);
    command.env("PROVIDER", provider.file()).env("CARGO_TARGET_DIR", target());
    // It is not to be told where the provider is.
    let output = command.env_remove("FI_PROVIDER_PATH").env_remove("SUDO_USER").output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.code() == Some(77) || errors.contains("unshare failed") {
        assert!(std::env::var_os("CI").is_none(), "{said} {errors}");
        return eprintln!(
            "skipped: no file system over libfabric's directory, or packages are missing: {errors}"
        );
    }
    assert!(output.status.success(), "{said} {errors}");
    let listed =
        said.split_once("setup.sh: installed ").and_then(|(_, rest)| rest.split_once("provider: weft"));
    assert!(listed.is_some_and(|(_, rest)| rest.contains(LAST_OF_ALL)), "{said} {errors}");
}

/// In a network namespace of its own: an interface without a carrier, and behind it one with a carrier.
const INTERFACES: &str = r#"
set -eu
ip link set lo up
for pair in dead live; do ip link add $pair type veth peer name $pair-peer; done
ip address add 192.0.2.1/24 dev dead
ip address add 198.51.100.1/24 dev live
for end in dead live live-peer; do ip link set $end up; done
for _ in $(seq 100); do
    if ip -o link show live | grep -q "state UP"; then break; fi
    sleep 0.05
done
fi_info -p weft -t FI_EP_RDM | grep domain: | sort -u
echo named
fi_info -p weft -t FI_EP_RDM -d dead | grep domain: | sort -u
FI_WEFT_IFACE=dead fi_info -p weft -t FI_EP_RDM | grep domain: | sort -u
echo alone
ip link del live
fi_info -p weft -t FI_EP_RDM | grep domain: | sort -u
"#;

#[test]
fn interfaces_without_a_carrier_are_offered_only_if_they_are_named_or_there_is_no_other() {
    let Some(provider) = Provider::get("fi_info") else { return };
    let mut command = provider.command("timeout");
    command.args([PATIENCE, "unshare", "--map-root-user", "--net", "sh", "-c", INTERFACES]);
    let output = command.output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if errors.contains("unshare failed") || errors.contains("Operation not permitted") {
        assert!(std::env::var_os("CI").is_none(), "{said} {errors}");
        return eprintln!("skipped: no network namespace can be made: {errors}");
    }
    assert!(output.status.success(), "{said} {errors}");
    let lines: Vec<_> = said.lines().map(|line| line.trim().trim_start_matches("domain: ")).collect();
    assert_eq!(lines, ["live", "named", "dead", "dead", "alone", "dead"], "{errors}");
}

/// What `fi_pingpong` says of the longest messages that it tries.
const LAST_OF_ALL: &str = "1m      10      =10";

/// Two processes of `fi_pingpong`, with contents compared.
fn ping_pong(endpoint: &str, with: &[&str], last: &str) {
    ping_pong_at(endpoint, with, last, None);
}

/// The same, the server and the client at `places` if there are any.
fn ping_pong_at(endpoint: &str, with: &[&str], last: &str, places: Option<[String; 2]>) {
    let Some(provider) = Provider::get("fi_pingpong") else { return };
    let _alone = alone();
    let port = free_port().to_string();
    let common = ["-p", "weft", "-e", endpoint, "-c", "-I", "10", "-S", "all"];
    let command = |port_option: &str| {
        let mut command = provider.command("timeout");
        command.args([PATIENCE, "fi_pingpong"]).args(common).args(with).args([port_option, &port]);
        if let Some(places) = &places {
            command.env("FI_WEFT_PORT", &places[usize::from(port_option == "-P")]);
        }
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
        assert!(table.contains(last), "{who}: {table}");
    }
}

#[test]
fn fi_pingpong_exchanges_messages() {
    ping_pong("rdm", &["-m", "msg"], LAST_OF_ALL);
}

#[test]
fn fi_pingpong_exchanges_tagged_messages() {
    ping_pong("rdm", &["-m", "tagged"], LAST_OF_ALL);
}

#[test]
fn fi_pingpong_exchanges_datagrams() {
    // Of the sizes that it tries, the longest that a datagram has on every Ethernet. Which interface it takes depends on the
    // machine.
    ping_pong("dgram", &["-m", "msg"], "1k      10      =10");
}

/// Of one server, and of two that memif joins.
#[test]
fn fi_pingpong_exchanges_datagrams_through_servers() {
    let Some(served) = Served::over_memif() else { return };
    for servers in [[0, 0], [0, 1], [1, 0]] {
        let places = servers.map(|server| served.place(server));
        ping_pong_at("dgram", &["-m", "msg"], "4k      10      =10", Some(places));
    }
}

#[test]
fn fi_pingpong_exchanges_tagged_messages_through_servers() {
    let Some(served) = Served::over_memif() else { return };
    let places = [0, 1].map(|server| served.place(server));
    ping_pong_at("rdm", &["-m", "tagged"], LAST_OF_ALL, Some(places));
}

#[test]
fn fi_pingpong_exchanges_messages_over_memif_ports_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("memif").display().to_string();
    let place = |(role, host)| format!("memif:{link},role={role},ip=10.9.0.{host}");
    let places = [("server", 1), ("client", 2)].map(place);
    ping_pong_at("rdm", &["-m", "msg"], LAST_OF_ALL, Some(places));
}

#[test]
fn mpich_exchanges_and_reduces() {
    exchange(Library::Mpich, &[]);
}

#[test]
fn open_mpi_exchanges_and_reduces() {
    exchange(Library::OpenMpi, &[]);
}

/// Two of these ranks have the processors of a small machine for themselves, and eight do not.
#[test]
fn two_and_eight_ranks_of_both_libraries_exchange_and_reduce() {
    for library in [Library::Mpich, Library::OpenMpi] {
        for ranks in [2, 8] {
            exchange_of(ranks, library, &[]);
        }
    }
}

/// Messages, collective operations, and puts and gets with all kinds of synchronisation, between two ranks. All of the suite, with
/// accumulates, and with what a rank does with itself, takes too long here: `scripts/test-mpi.sh` runs it.
#[test]
fn a_part_of_the_suite_of_mpi4py_passes_over_mpich() {
    let without = ["Self", "Dup", "Accumulate", "FetchAndOp", "CompareAndSwap"];
    let Some(ran) = mpi4py("test_(p2p_buf|cco_buf|rma)[.]py$", &without) else { return };
    assert!(ran.iter().all(|count| *count >= 48), "{ran:?} tests");
}

/// The last rank kills itself in the middle of an all-to-all, which the others find out as it is silent.
#[test]
fn ranks_of_mpich_over_udp_get_errors_when_another_is_killed() {
    // MPICH ends a rank whose network reports an error.
    outlive(Library::Mpich, &[], SILENCE + QUESTIONS, |said| {
        said.contains("MPIDI_OFI_handle_cq_error") && said.contains("timed out")
    });
}

#[test]
fn ranks_of_open_mpi_over_udp_get_errors_when_another_is_killed() {
    outlive(Library::OpenMpi, &[], SILENCE + QUESTIONS, open_mpi_returns_an_error);
}
