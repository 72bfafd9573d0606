//! Finds libdpdk, compiles the shim over its inline functions and generates the bindings.

use std::env;
use std::path::PathBuf;
use std::process::exit;

/// The oldest DPDK whose names and structures the bindings rely on.
const OLDEST_DPDK: &str = "22.11";

/// The libraries that weft calls. Linking only these keeps the dozens that libdpdk.pc lists, and their load time, out
/// of every program.
const LIBRARIES: [&str; 6] = ["rte_eal", "rte_ethdev", "rte_mbuf", "rte_mempool", "rte_ring", "rte_net_ring"];

const FUNCTIONS: &str = "weft_rte_.*\
    |rte_eal_(init|hotplug_add|hotplug_remove)\
    |rte_(strerror|version|socket_id|log_set_global_level)\
    |rte_thread_(register|unregister)\
    |rte_mempool_(avail_count|free)\
    |rte_pktmbuf_(pool_create|free_bulk)\
    |rte_ring_(create|free)\
    |rte_eth_from_rings\
    |rte_eth_dev_(configure|start|stop|close|info_get|adjust_nb_rx_tx_desc|get_port_by_name)\
    |rte_eth_dev_(socket_id|set_mtu|get_mtu)\
    |rte_eth_(macaddr_get|promiscuous_enable|allmulticast_enable|stats_get|stats_reset|rx_queue_setup|tx_queue_setup)\
    |rte_eth_dev_rss_hash_conf_get\
    |rte_eth_dev_rx_intr_(enable|disable|ctl_q_get_fd)";

const TYPES: &str = "rte_(mbuf|mempool|ring|ether_addr|eth_conf|eth_dev_info|eth_stats|eth_rss_conf)";

fn main() {
    for file in ["c/wrapper.h", "c/shim.h", "c/shim.c"] {
        println!("cargo::rerun-if-changed={file}");
    }
    let (version, cflags) = find_dpdk();
    compile_shim(&cflags);
    generate_bindings(&cflags);
    for library in LIBRARIES {
        println!("cargo::rustc-link-lib=dylib={library}");
    }
    println!("cargo::rustc-env=WEFT_DPDK_VERSION={version}");
    println!("cargo::metadata=version={version}");
}

/// The installed version, and the flags that its headers need. Prints the directories of its libraries.
fn find_dpdk() -> (String, Vec<String>) {
    let found = pkg_config::Config::new()
        .atleast_version(OLDEST_DPDK)
        .cargo_metadata(false)
        .env_metadata(true)
        .probe("libdpdk");
    let library = match found {
        Ok(library) => library,
        Err(error) => fail(&format!("libdpdk {OLDEST_DPDK} or later was not found ({})", brief(&error))),
    };
    for path in &library.link_paths {
        println!("cargo::rustc-link-search=native={}", path.display());
    }
    (library.version.clone(), cflags())
}

/// The compiler flags as they stand in libdpdk.pc. The `pkg_config` crate understands only some of
/// them; `-include rte_config.h` and `-march=` are essential to DPDK's headers.
fn cflags() -> Vec<String> {
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let output = std::process::Command::new(program).args(["--cflags", "libdpdk"]).output();
    match output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect()
        }
        Ok(output) => {
            fail(&format!("pkg-config --cflags libdpdk failed: {}", String::from_utf8_lossy(&output.stderr)))
        }
        Err(error) => fail(&format!("pkg-config could not be run: {error}")),
    }
}

fn compile_shim(cflags: &[String]) {
    let mut build = cc::Build::new();
    build.file("c/shim.c").include("c").opt_level(3).warnings(true);
    for flag in cflags {
        build.flag(flag);
    }
    if let Err(error) = build.try_compile("weft_dpdk_shim") {
        fail(&format!("the C shim did not compile: {error}"));
    }
}

fn generate_bindings(cflags: &[String]) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("bindings.rs");
    let builder = bindgen::Builder::default()
        .header("c/wrapper.h")
        .clang_args(cflags)
        .allowlist_function(FUNCTIONS)
        .allowlist_type(TYPES)
        .allowlist_var("WEFT_.*")
        // Only used by address.
        .opaque_type("rte_mempool|rte_ring|rte_device|rte_mempool_.*|rte_mbuf_ext_shared_info")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .derive_debug(false)
        .generate_comments(false)
        .layout_tests(true);
    // Without libclang, bindgen panics instead of returning an error.
    let bindings = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.generate()))
        .unwrap_or_else(|_| fail("bindgen could not load libclang"))
        .unwrap_or_else(|error| fail(&format!("bindgen failed: {error}")));
    bindings.write_to_file(&out).unwrap_or_else(|error| fail(&format!("{}: {error}", out.display())));
}

/// The line of pkg-config's report that names the error.
fn brief(error: &pkg_config::Error) -> String {
    match error {
        pkg_config::Error::ProbeFailure { .. } | pkg_config::Error::Failure { .. } => {
            "pkg-config finds none".to_owned()
        }
        other => other.to_string().lines().next().unwrap_or_default().to_owned(),
    }
}

/// Ends the build with an error and advice. Cargo fails the build for the error; a failing exit status would only add
/// the whole output of this script.
fn fail(what: &str) -> ! {
    println!("cargo::error={}", what.replace('\n', " "));
    println!(
        "cargo::error=run scripts/setup.sh, or on Debian and Ubuntu: \
         apt-get install libdpdk-dev libclang-dev clang pkg-config build-essential"
    );
    println!("cargo::error=to build without DPDK: cargo build --no-default-features");
    exit(0)
}
