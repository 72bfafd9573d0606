//! The documents show what the command prints: each block that begins with `$ weft list` or with a simulation is compared with
//! the output of that command.

use crate::lab::{Lab, Process};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// In a block, such a line stands for any number of lines.
const LEFT_OUT: &str = "…";

/// A command of a document and the lines below it.
struct Example {
    /// `README.md:57`.
    place: String,
    args: Vec<String>,
    shown: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The words of a command line. Single quotes hold words with blanks together.
fn words(line: &str) -> Vec<String> {
    line.split('\'')
        .enumerate()
        .flat_map(|(number, part)| match number % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect(),
            _ => vec![part.to_owned()],
        })
        .collect()
}

/// The examples of a document whose output depends on nothing but the program: lists, and runs in virtual time.
fn examples(document: &Path) -> Vec<Example> {
    let name = document.file_name().expect("a document has a name").to_string_lossy();
    let text = fs::read_to_string(document).expect("the document can be read");
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let command = line.trim_start();
        let indent = line.len() - command.len();
        let Some(args) = command.strip_prefix("$ weft ").filter(|_| indent >= 4).map(words) else { continue };
        let simulates = args[0] == "run" && !args.iter().any(|arg| arg == "--on" || arg == LEFT_OUT);
        if args[0] == "list" || simulates {
            let block = lines[number + 1..].iter().take_while(|line| !line.is_empty());
            let shown = block.map(|line| line.get(indent..).expect("the block is indented").to_owned());
            found.push(Example { place: format!("{name}:{}", number + 1), args, shown: shown.collect() });
        }
    }
    found
}

/// The lines of a report that are the same on every machine and after every build: those on the time and the memory that the
/// simulation took are not.
fn kept<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let is_cost = |line: &str| {
        let line = line.trim_start();
        line.starts_with("took ")
            || line.starts_with("state ")
            || line.contains(" B for each flow of the workload")
    };
    lines.filter(|line| !is_cost(line)).map(str::trim_end).collect()
}

/// Whether `printed` is what `shown` says, in which [`LEFT_OUT`] stands for any number of lines.
fn agree(shown: &[&str], printed: &[&str]) -> bool {
    match shown {
        [] => printed.is_empty(),
        [first, rest @ ..] if first.trim() == LEFT_OUT => {
            (0..=printed.len()).any(|skipped| agree(rest, &printed[skipped..]))
        }
        [first, rest @ ..] => printed.first() == Some(first) && agree(rest, &printed[1..]),
    }
}

#[test]
fn documents_show_what_the_command_prints() {
    let lab = Lab::new();
    // Runs write files into this directory, and find their input in it.
    symlink(root().join("testbed"), lab.path().join("testbed")).expect("a link can be made");
    let mut documents = vec![root().join("README.md")];
    let others = fs::read_dir(root().join("docs")).expect("there are documents");
    documents.extend(others.map(|entry| entry.expect("it can be read").path()));
    documents.retain(|path| path.extension().is_some_and(|end| end == "md"));
    documents.sort();
    let all: Vec<Example> = documents.iter().flat_map(|document| examples(document)).collect();
    for example in &all {
        let args: Vec<&str> = example.args.iter().map(String::as_str).collect();
        let mut command = lab.command(&args);
        command.current_dir(lab.path());
        let output = Process::start(command).output();
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8(printed).expect("UTF-8");
        let (shown, printed) = (kept(example.shown.iter().map(String::as_str)), kept(printed.lines()));
        assert!(
            agree(&shown, &printed),
            "{}: weft {} prints\n{}\n\nbut the document shows\n{}",
            example.place,
            args.join(" "),
            printed.join("\n"),
            shown.join("\n")
        );
    }
    // The README shows these; if they were not found, nothing would have been compared.
    for list in ["cc", "lb", "topologies", "workloads"] {
        let is_shown =
            |example: &Example| example.args == ["list", list] && example.place.starts_with("README.md:");
        assert!(all.iter().any(is_shown), "README.md shows `weft list {list}`");
    }
    assert!(all.iter().filter(|example| example.args[0] == "run").count() >= 5, "the documents show runs");
}

#[test]
fn a_block_that_differs_from_the_output_is_found() {
    let printed = ["one", "  two", "three"];
    for (shown, expected) in [
        (&["one", "  two", "three"][..], true),
        (&["one", "…"], true),
        (&["one", "  …", "three"], true),
        (&["…", "three"], true),
        (&["one", "  two"], false),
        (&["one", "two", "three"], false),
        (&["one", "…", "two"], false),
        (&["one", "  two", "three", "four"], false),
    ] {
        assert_eq!(agree(shown, &printed), expected, "{shown:?}");
    }
}
