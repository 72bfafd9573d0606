//! uet-htsim's own validation, experiment by experiment, through `weft reproduce htsim`.
//!
//! `apps/suites/htsim.toml` has the experiments and their limits, and says which weft misses. The experiments of 1024
//! hosts run only on request:
//!
//! ```text
//! cargo test --release -p weft-apps --no-default-features --test simulations htsim_validation:: -- --include-ignored --nocapture
//! ```

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The lines of the suite's results that are claims.
fn claims(name: &str, args: &[&str]) -> Vec<Value> {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("htsim_validation-{name}"));
    let _ = fs::remove_dir_all(&out);
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    let output = command.args(["reproduce", "htsim", "--out"]).arg(&out).args(args).output();
    let output = output.expect("weft starts");
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(out.join("runs/matrices/LICENSE").is_file(), "matrices are copied with their notice");
    let lines = fs::read_to_string(out.join("results.jsonl")).expect("results");
    let rows = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    rows.filter(|row| !row["claim"].is_null()).collect()
}

fn count(claims: &[Value], verdict: &str) -> usize {
    claims.iter().filter(|claim| claim["verdict"] == verdict).count()
}

#[test]
fn experiments_of_up_to_128_hosts_meet_the_limits_of_uet_htsim() {
    let claims = claims("htsim-quick", &["--quick"]);
    assert_eq!(claims.len(), 81);
    // Those that are known to miss a limit do so: otherwise the reasons that docs/htsim.md gives are wrong.
    assert_eq!((count(&claims, "holds"), count(&claims, "deviates")), (77, 4));
}

#[test]
#[ignore = "takes minutes of CPU: 56 experiments of 1024 hosts"]
fn experiments_of_1024_hosts_meet_the_limits_of_uet_htsim() {
    let claims = claims("htsim-whole", &[]);
    assert_eq!(claims.len(), 193);
    assert_eq!((count(&claims, "holds"), count(&claims, "deviates")), (177, 16));
}
