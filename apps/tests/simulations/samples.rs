//! `weft run --sample` as its users see it.

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    let small = ["run", "--workload", "incast:4", "--size", "100KB"];
    Command::new(env!("CARGO_BIN_EXE_weft")).args(small).args(args).output().expect("weft starts")
}

/// A path of this test's own.
fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("samples-{name}"))
}

/// The first column of a file, which is the time.
fn times(path: &Path) -> Vec<f64> {
    let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    reader.get_row_iter(None).unwrap().map(|row| row.unwrap().get_double(0).unwrap()).collect()
}

fn refusal(args: &[&str]) -> String {
    let output = run(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn samples_are_taken_at_equal_intervals_and_change_nothing() {
    let prefix = scratch("incast");
    let (plain, sampled) = (scratch("plain.csv"), scratch("sampled.csv"));
    let text = |path: &PathBuf| path.to_str().unwrap().to_owned();
    assert!(run(&["--flows", &text(&plain)]).status.success());
    let args = ["--sample", "5us", "--sample-file", &text(&prefix), "--flows", &text(&sampled)];
    let output = run(&args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |path| std::fs::read_to_string(path).unwrap();
    assert_eq!(read(&plain), read(&sampled));
    for table in ["ports", "flows"] {
        let times = times(&scratch(&format!("incast.{table}.parquet")));
        assert!(times.is_sorted() && times[0] == 5.0, "{table}: {times:?}");
        let last = times[times.len() - 1];
        // 400 kB over a link of 100 Gbit/s take 32 µs.
        assert!(last > 32.0, "{table}: {last}");
        assert!(times.iter().filter(|&&t| t < last).all(|t| t % 5.0 == 0.0), "{table}: {times:?}");
    }
}

#[test]
fn a_run_reports_even_if_its_samples_cannot_be_written() {
    let (prefix, flows) = (scratch("full"), scratch("full.csv"));
    let table = scratch("full.flows.parquet");
    let _ = std::fs::remove_file(&table);
    std::os::unix::fs::symlink("/dev/full", &table).unwrap();
    let args =
        ["--sample", "5us", "--sample-file", prefix.to_str().unwrap(), "--flows", flows.to_str().unwrap()];
    for (more, status) in [(&[][..], 1), (&["--until", "10us"], 3)] {
        let _ = std::fs::remove_file(&flows);
        let output = run(&[&args[..], more].concat());
        let (stdout, stderr) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(status), "{stderr}");
        assert!(stderr.starts_with(&format!("weft: {}: ", table.display())), "{stderr}");
        assert!(stdout.contains("\n  FCT ") && stdout.contains("of 4 "), "{stdout}");
        assert_eq!(std::fs::read_to_string(&flows).unwrap().lines().count(), 5);
    }
}

#[test]
fn sample_options_that_make_no_sense_are_refused() {
    assert!(refusal(&["--sample-file", "x"]).contains("--sample <TIME>"));
    assert!(refusal(&["--sample", "0"]).contains("--sample"));
    assert!(
        refusal(&["--sample", "5us", "--on", "loopback"]).contains("--sample: has no effect on a loopback")
    );
    let nowhere = scratch("no-such-directory").join("x");
    let output = run(&["--sample", "5us", "--sample-file", nowhere.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("no-such-directory/x.ports.parquet: "), "{text}");
}
