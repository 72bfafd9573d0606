//! Tests of `weft reproduce` as its users see it.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// An incast is bound by its last link, so that the claim can only hold; and one that cannot.
const SUITE: &str = "title = 'A small suite'\nsource = 'Arithmetic'\n\
    [[figure]]\nid = '1'\ntitle = 'Incast'\nsection = 'Section 1'\ndraw = 'fct-cdf'\nseries = 'cc'\n\
    [figure.run]\nworkload = 'incast:4'\nsize = '1MiB'\ncc = ['nscc', 'smartt']\nseed = [1, 2]\n\
    [figure.quick]\nsize = '64KiB'\nseed = [1]\n\
    [[figure.claim]]\nsays = 'No incast beats its last link.'\nmeasure = { column = 'slowdown_max', pick = 'least' }\n\
    at_least = 1.0\nbecause = 'Arithmetic.'\n\
    [[missing]]\nwhat = 'Figure 2'\nwhy = 'It is a photograph.'\n";

fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("reproduce-{name}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("the scratch directory is writable");
    path
}

fn reproduce(dir: &Path, suite: &str, args: &[&str]) -> Output {
    fs::write(dir.join("s.toml"), suite).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.current_dir(dir).args(["reproduce", "s.toml"]).args(args).output().expect("weft starts")
}

/// Runs the quick form of `suite`, which judges at least `judged` claims. A claim that is said to deviate, and holds, fails too:
/// the reason that the suite gives would be wrong.
fn only_named_claims_deviate(suite: &str, judged: usize) {
    let out = scratch(suite).join("out");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    let output = command.args(["reproduce", suite, "--quick", "--out"]).arg(&out).output();
    let output = output.expect("weft starts");
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let lines = fs::read_to_string(out.join("results.jsonl")).unwrap();
    let rows = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let claims: Vec<Value> =
        rows.filter(|row| !row["claim"].is_null() && row["verdict"] != "not judged").collect();
    assert!(claims.len() >= judged, "{lines}");
    for claim in claims {
        let expected = if claim["deviates"].is_null() { "holds" } else { "deviates" };
        assert_eq!(claim["verdict"], expected, "{claim}");
    }
}

#[test]
fn the_claims_that_deviate_in_the_quick_form_are_those_that_the_smartt_suite_names() {
    only_named_claims_deviate("smartt", 11);
}

#[test]
fn the_claims_that_deviate_in_the_quick_form_are_those_that_the_swift_suite_names() {
    only_named_claims_deviate("swift", 15);
}

#[test]
fn the_claims_that_deviate_in_the_quick_form_are_those_that_the_mswift_suite_names() {
    only_named_claims_deviate("mswift", 12);
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn a_suite_prints_paper_and_measurement_and_goes_on_where_it_stopped() {
    let dir = scratch("whole");
    let output = reproduce(&dir, SUITE, &["--quick"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    for word in [
        "A small suite",
        "No incast beats its last link.",
        "at least 1",
        "holds",
        "Figure 2: It is a photograph.",
    ] {
        assert!(said.contains(word), "{word}: {said}");
    }
    let out = dir.join("reproduce-s-quick");
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("<svg") && page.contains(">nscc<") && page.contains("Not reproduced"), "{page}");
    let lines = fs::read_to_string(out.join("results.jsonl")).unwrap();
    let rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((rows.len(), &rows[0]["verdict"]), (3, &"holds".into()));
    assert!(rows[0]["measured"].as_f64().unwrap() >= 1.0 && rows[1]["results"]["fct_us_max"].is_number());

    // Of two runs one is gone: only that one is made again, and the results are the same.
    let results: Vec<PathBuf> =
        fs::read_dir(out.join("runs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let mut reports: Vec<&PathBuf> =
        results.iter().filter(|path| path.extension().unwrap() == "json").collect();
    reports.sort();
    let [gone, kept] = reports[..] else { panic!("{reports:?}") };
    fs::remove_file(gone).unwrap();
    let before = fs::metadata(kept).unwrap().modified().unwrap();
    assert!(reproduce(&dir, SUITE, &["--quick"]).status.success());
    assert!(gone.exists());
    assert_eq!(fs::metadata(kept).unwrap().modified().unwrap(), before);
    assert_eq!(fs::read_to_string(out.join("results.jsonl")).unwrap(), lines);
}

#[test]
fn a_figure_of_goodputs_is_drawn_from_samples_of_a_matrix_of_the_suite() {
    let dir = scratch("goodputs");
    let suite = "title = 'Two flows'\nsource = 'Arithmetic'\n\
        [matrix]\nshared = \"Nodes 4\\nConnections 2\\n1->0 id 1 start 0 size 4000000\\n2->0 id 2 start 100 size 4000000\\n\"\n\
        [[figure]]\nid = '1'\ntitle = 'Two flows, one link'\nsection = 'Section 1'\ndraw = 'goodputs'\nseries = 'cc'\n\
        [figure.run]\nmatrix = 'shared'\nsample = '50us'\nwindows = 'flow'\ncc = ['nscc', 'swift']\nseed = [1, 2]\n\
        [[figure.claim]]\nsays = 'They share.'\nmeasure = { column = 'shares_fair', pick = 'least' }\n\
        at_least = 0.0\nbecause = 'Arithmetic.'\n";
    let output = reproduce(&dir, suite, &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = fs::read_to_string(dir.join("reproduce-s/report.html")).unwrap();
    // A chart for each algorithm, of one seed.
    assert_eq!(page.matches("<svg").count(), 2);
    for word in ["Two flows, one link, nscc", "Two flows, one link, swift", ">flow 2<", "goodput, Gbit/s"] {
        assert!(page.contains(word), "{word}");
    }
    assert!(dir.join("reproduce-s/runs/shared.cm").exists());

    let output = reproduce(&dir, &suite.replace("sample = '50us'\n", ""), &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("expected 'sample' in [figure.run]"), "{}", text(&output.stderr));
}

#[test]
fn a_claim_that_does_not_hold_fails_the_suite_unless_the_reason_is_known() {
    let dir = scratch("fails");
    let wrong = SUITE.replace("at_least = 1.0", "at_most = 0.5");
    let output = reproduce(&dir, &wrong, &["--quick"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("FAILS"), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("1 of 1 claims do not hold"), "{}", text(&output.stderr));
    assert!(fs::read_to_string(dir.join("reproduce-s-quick/report.html")).unwrap().contains("class=\"bad\""));
    let known = wrong.replace("at_most = 0.5", "at_most = 0.5\ndeviates = 'Light is too slow.'");
    let output = reproduce(&dir, &known, &["--quick"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(
        text(&output.stdout).contains("deviates. Arithmetic. Light is too slow."),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn a_claim_on_runs_that_are_cut_off_fails_and_says_why() {
    let dir = scratch("cut");
    let cut = SUITE.replace("[figure.run]\n", "[figure.run]\nuntil = '20us'\n");
    let output = reproduce(&dir, &cut, &["--quick"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("Not measured: ") && said.contains(" of 4 flows did not finish with cc "),
        "{said}"
    );
    let page = fs::read_to_string(dir.join("reproduce-s-quick/report.html")).unwrap();
    assert!(page.contains("figures are of those that did"), "{page}");
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_runs() {
    let dir = scratch("refused");
    let refusal = |suite: &str, args: &[&str]| {
        let output = reproduce(&dir, suite, args);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        text(&output.stderr).to_owned()
    };
    assert!(
        refusal(SUITE, &["--figure", "7"]).contains("--figure: there is no figure '7'; expected one of: 1")
    );
    assert!(refusal(&SUITE.replace("incast:4", "incats:4"), &[]).contains("figure 1: --workload"));
    assert!(
        refusal(&SUITE.replace("size = '1MiB'", "sizes = 3"), &[])
            .contains("'size' has a value with --quick only")
    );
    let matrix =
        SUITE.replace("workload = 'incast:4'\nsize = '1MiB'", "matrix = 'across:7,1MiB'\nsize = '1MiB'");
    assert!(refusal(&matrix, &[]).contains("expected across:HOSTS,SIZE"));
    let output = Command::new(env!("CARGO_BIN_EXE_weft")).args(["reproduce", "smart"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr)
            .contains("unknown suite 'smart'; expected smartt, swift, mswift, htsim, or a file FILE.toml")
    );
}
