//! Tells a package the revision of its sources and the version of DPDK. Shared by the build scripts of the packages
//! that show them.

use std::env;
use std::path::Path;
use std::process::Command;

/// Sets `WEFT_GIT_REVISION` and `WEFT_DPDK_VERSION`, each empty if unknown, and `WEFT_VERSION`: the release and both
/// of these in one line. `root` is the workspace's directory.
pub(crate) fn stamp(root: &Path) {
    let revision = git_revision(root).unwrap_or_default();
    let dpdk = dpdk_version().unwrap_or_default();
    let release = env::var("CARGO_PKG_VERSION").expect("cargo sets CARGO_PKG_VERSION");
    let or = |text: &str, absent: &str| if text.is_empty() { absent.to_owned() } else { text.to_owned() };
    println!("cargo::rustc-env=WEFT_GIT_REVISION={revision}");
    println!("cargo::rustc-env=WEFT_DPDK_VERSION={dpdk}");
    println!(
        "cargo::rustc-env=WEFT_VERSION={release} (git {}, DPDK {})",
        or(&revision, "unknown"),
        or(&dpdk, "none")
    );
}

/// The commit that is checked out.
fn git_revision(root: &Path) -> Option<String> {
    // Sources unpacked inside another repository must not report that repository's revision.
    if !root.join(".git").exists() {
        return None;
    }
    // HEAD changes when another branch is checked out; its log also changes with every commit. A missing file must not
    // be named: cargo would run the script each time.
    for file in ["HEAD", "logs/HEAD"] {
        let path = git(root, &["rev-parse", "--git-path", file]).map(|path| root.join(path));
        if let Some(path) = path.filter(|path| path.exists()) {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    git(root, &["rev-parse", "--short=12", "HEAD"])
}

fn git(root: &Path, args: &[&str]) -> Option<String> {
    first_line(Command::new("git").arg("-C").arg(root).args(args))
}

/// The version of the linked libdpdk; `None` without the feature `dpdk`.
fn dpdk_version() -> Option<String> {
    // Naming one thing to watch also keeps cargo from watching the whole package.
    println!("cargo::rerun-if-env-changed=PKG_CONFIG");
    println!("cargo::rerun-if-env-changed=PKG_CONFIG_PATH");
    env::var_os("CARGO_FEATURE_DPDK")?;
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    first_line(Command::new(program).args(["--modversion", "libdpdk"]))
}

/// The first line that `command` prints, if it succeeds.
fn first_line(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().next().map(str::to_owned)
}
