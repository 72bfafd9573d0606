//! Tests of `weft plot` as its users see it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn weft(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weft")).args(args).output().expect("weft starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

/// An empty directory of this test's own.
fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("plot-{name}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("the scratch directory is writable");
    path
}

fn refusal(args: &[&str]) -> String {
    let output = weft(&[&["plot"], args].concat());
    assert!(!output.status.success(), "{args:?}");
    text(&output.stderr).to_owned()
}

#[test]
fn every_kind_of_file_becomes_a_figure_on_a_page_that_needs_nothing_else() {
    let dir = scratch("all");
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    for cc in ["nscc", "dctcp"] {
        let (json, flows, samples) = (at(&format!("{cc}.json")), at(&format!("{cc}.csv")), at(cc));
        let small = ["run", "--workload", "incast:4", "--size", "300KB", "--cc", cc, "--sample", "5us"];
        let output =
            weft(&[&small[..], &["--json", &json, "--flows", &flows, "--sample-file", &samples]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let sweep = "[run]\nworkload = 'permutation'\nhosts = 8\nsize = '16KiB'\n\
                 [vary]\nlb = ['mixed', 'ecmp']\ncc = ['nscc', 'smartt']\nseed = [1, 2]\n";
    fs::write(dir.join("s.toml"), sweep).unwrap();
    let output = weft(&["sweep", &at("s.toml")]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(
        text(&output.stdout).contains("fct_us_p99") && text(&output.stdout).contains(" ± "),
        "{}",
        text(&output.stdout)
    );

    let names = [
        "nscc.json",
        "dctcp.json",
        "nscc.csv",
        "dctcp.csv",
        "nscc.flows.parquet",
        "nscc.ports.parquet",
        "s.jsonl",
    ];
    let (files, out) = (names.map(at), at("page.html"));
    let mut args = vec!["plot"];
    args.extend(files.iter().map(String::as_str));
    args.extend(["-o", &out]);
    let output = weft(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = fs::read_to_string(&out).unwrap();
    // Bars of times and queues; distributions of times and slowdowns; goodput, window, RTT and fairness; two of ports; two
    // of the sweep.
    assert_eq!(
        page.matches("<svg").count(),
        12,
        "{:?}",
        page.lines().filter(|l| l.contains("<title>")).collect::<Vec<_>>()
    );
    for title in
        ["Flow completion times", "Data queues", "Congestion window", "Smoothed RTT", "fct_us_max by lb, cc"]
    {
        assert!(page.contains(&format!("<title>{title}")), "{title}");
    }
    assert!(page.contains("window, kB") && page.contains("share of the flows"), "axes have units");
    assert!(!page.contains("NaN") && !page.contains("inf\"") && !page.contains("<script"), "{out}");
    let outside = page.replace("http://www.w3.org/2000/svg", "");
    assert!(!outside.contains("http:") && !outside.contains("https:"), "it needs no network");
    assert!(weft(&args).status.success());
    assert_eq!(fs::read_to_string(&out).unwrap(), page, "the same files give the same bytes");
}

#[test]
fn flows_and_samples_of_all_runs_are_drawn_by_the_varied_options() {
    let dir = scratch("runs");
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let sweep = "[run]\nworkload = 'permutation'\nhosts = 8\nsize = '64KiB'\nflows = 'f.parquet'\nsample = '2us'\n\
                 [vary]\nlb = ['mixed', 'ecmp']\nmtu = [2048, 4096]\nseed = [1, 2]\n";
    fs::write(dir.join("s.toml"), sweep).unwrap();
    let output = weft(&["sweep", &at("s.toml")]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let single = ["run", "--workload", "incast:4", "--size", "64KiB", "--flows", &at("one.parquet")];
    assert!(weft(&single).status.success());
    let files = ["f.parquet", "s.flows.parquet", "s.ports.parquet", "one.parquet"].map(at);
    let mut args = vec!["plot", "-o"];
    let out = at("page.html");
    args.push(&out);
    args.extend(files.iter().map(String::as_str));
    let output = weft(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = fs::read_to_string(&out).unwrap();
    let titles: Vec<&str> =
        page.split("<title>").skip(2).map(|rest| rest.split('<').next().unwrap_or_default()).collect();
    let expected = [
        "Flow completion times",
        "Slowdown",
        "Goodput of all flows by lb, mtu",
        "Bytes in flight of all flows by lb, mtu",
        "Longest data queue by lb, mtu",
        "Utilisation of the busiest link by lb, mtu",
    ];
    assert_eq!(titles, expected);
    for curve in ["mixed, 2048", "mixed, 4096", "ecmp, 2048", "ecmp, 4096"] {
        // With the name of the file where there are several, as in the figures of flows.
        let named = page.matches(&format!(">{curve}<")).count();
        assert_eq!((named, page.matches(&format!(">f: {curve}<")).count()), (4, 2), "{curve}");
    }
    assert!(page.contains(">one<") && !page.contains("NaN"));
    let refused = refusal(&["--metric", "jain", &files[0]]);
    assert!(refused.contains("--metric: has no effect without a table of a sweep"), "{refused}");
}

#[test]
fn a_file_that_cannot_be_drawn_is_refused_with_its_name_and_what_was_expected() {
    let dir = scratch("refused");
    let file = |name: &str, contents: &str| {
        fs::write(dir.join(name), contents).unwrap();
        dir.join(name).to_str().unwrap().to_owned()
    };
    assert!(refusal(&["no-such-file"]).contains("no-such-file"));
    let notes = file("notes.txt", "my notes\n");
    assert!(refusal(&[&notes]).contains("notes.txt:1: expected a JSON report, a table of flows"));
    let other = file("other.json", "{\n  \"a\": 1\n}\n");
    assert!(refusal(&[&other]).contains("other.json: no fct_us.max; expected the JSON report of weft run"));
    let damaged = file("damaged.json", "{\n  \"a\": \n");
    assert!(refusal(&[&damaged]).contains("damaged.json:3: not a JSON report"), "{}", refusal(&[&damaged]));
    let flows = file("flows.csv", "id,fct_us\n1,2.0\n2,soon\n");
    assert!(refusal(&[&flows]).contains("flows.csv:3: fct_us is 'soon'; expected a number"));
    let flows = file("short.csv", "id,fct_us\n1\n");
    assert!(refusal(&[&flows]).contains("short.csv:2: 1 values; expected 2"));
    let cut = file("cut.parquet", "PAR1 and no more");
    assert!(refusal(&[&cut]).contains("cut.parquet"));
    let table = file("t.jsonl", "{\"cc\":\"nscc\",\"flows_total\":1,\"fct_us_max\":2.0}\n");
    assert!(
        refusal(&[&table, "--metric", "speed"])
            .contains("has no column 'speed'; expected one of: flows_total, fct_us_max")
    );
    assert!(
        refusal(&[&flows, "--metric", "fct_us_max"])
            .contains("--metric: has no effect without a table of a sweep")
    );
    assert!(!dir.join("report.html").exists());
}

#[test]
fn a_page_does_not_take_the_place_of_a_file_that_it_is_drawn_from() {
    let dir = scratch("own");
    let flows = dir.join("flows.csv");
    let contents = "id,fct_us\n1,100\n2,100\n";
    fs::write(&flows, contents).unwrap();
    let link = dir.join("page.html");
    std::os::unix::fs::symlink(&flows, &link).unwrap();
    for out in [&flows, &link, &dir.join("../plot-own/flows.csv")] {
        let said = refusal(&[flows.to_str().unwrap(), "-o", out.to_str().unwrap()]);
        assert!(said.contains("flows.csv is one of the files to draw; expected another name"), "{said}");
        assert_eq!(fs::read_to_string(&flows).unwrap(), contents);
    }
    // Flows that end together have a curve.
    let page = dir.join("new.html");
    assert!(weft(&["plot", flows.to_str().unwrap(), "-o", page.to_str().unwrap()]).status.success());
    assert!(!fs::read_to_string(&page).unwrap().contains("NaN"));
}
