//! The file that describes a testbed: a `.topo` file, or TOML whose keys are options of `weft run`.

use crate::choices::HostsBy;
use crate::options::RunArgs;
use crate::resolve::{Plan, resolve};
use crate::{Failure, text};
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// The options that describe the fabric, and the one that may be a boolean.
const KEYS: &[&str] = &[
    "topology",
    "link",
    "slow",
    "mtu",
    "queue",
    "ecn",
    "phantom",
    "priorities",
    "routing",
    "trim",
    "degrade",
    "link-events",
    "link-event",
    "seed",
];

/// The fabric that the file `path` describes, or the default fabric, for hosts attached `by` some kind of port.
///
/// # Errors
/// The file is wrong: the error names the line and says what was expected.
pub(super) fn plan(file: Option<&Path>, by: HostsBy) -> Result<Plan, Failure> {
    let mut args: Vec<String> =
        ["--on", "soft", "--workload", "permutation", "--size", "1"].map(String::from).into();
    args.push(format!("--processes={}", by.word()));
    match file {
        None => {}
        Some(path) if path.extension().is_some_and(|extension| extension == "toml") => {
            args.extend(options(path)?);
        }
        Some(path) => args.push(format!("--topology={}", path.display())),
    }
    let run = RunArgs::parse(args).map_err(|failure| match file {
        Some(path) => Failure::Usage(format!("{}: {failure}", path.display())),
        None => failure,
    })?;
    resolve(&run)
}

/// The options in the TOML file `path`. Names of files in it are relative to its directory.
fn options(path: &Path) -> Result<Vec<String>, Failure> {
    let name = path.display().to_string();
    let bytes = text::read(path).map_err(|error| Failure::Run(format!("{name}: {error}")))?;
    let text = String::from_utf8(bytes).map_err(|_| Failure::Run(format!("{name}: not UTF-8 text")))?;
    read(&name, &text, path.parent().unwrap_or(Path::new(""))).map_err(Failure::Usage)
}

fn read(name: &str, text: &str, directory: &Path) -> Result<Vec<String>, String> {
    let line = |at: usize| 1 + text.as_bytes()[..at.min(text.len())].iter().filter(|&&b| b == b'\n').count();
    let table = DeTable::parse(text).map_err(|error| {
        let words: Vec<&str> = error.message().split_whitespace().collect();
        format!("{name}:{}: {}", line(error.span().map_or(0, |span| span.start)), words.join(" "))
    })?;
    let mut entries: Vec<_> = table.get_ref().iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let mut options = Vec::new();
    for (key, value) in entries {
        let refuse = |what: String| format!("{name}:{}: {what}", line(key.span().start));
        let option = key.get_ref().as_ref();
        if !KEYS.contains(&option) {
            return Err(refuse(format!("unknown key '{option}'; expected one of: {}", KEYS.join(", "))));
        }
        let one = |value: &DeValue<'_>| match value {
            DeValue::String(text) => Ok(found(option, text, directory)),
            DeValue::Integer(number) => Ok(number.as_str().to_owned()),
            DeValue::Boolean(on) if option == "trim" => Ok(if *on { "on" } else { "off" }.to_owned()),
            other => Err(refuse(format!("'{option}' is a {}; expected text or a number", other.type_str()))),
        };
        match value.get_ref() {
            DeValue::Array(list) if ["degrade", "link-event"].contains(&option) => {
                for value in list {
                    options.push(format!("--{option}={}", one(value.get_ref())?));
                }
            }
            value => options.push(format!("--{option}={}", one(value)?)),
        }
    }
    Ok(options)
}

/// Makes the names of files relative to the directory of the file that names them.
fn found(option: &str, value: &str, directory: &Path) -> String {
    let is_file = match option {
        "topology" => !weft_testbed::topology::TopologySpec::looks_like_one(value),
        "link-events" => true,
        _ => false,
    };
    if is_file { directory.join(value).display().to_string() } else { value.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_options_of_a_run() {
        let text = "topology = \"a.topo\"\nlink = \"1G\"\ntrim = false\nseed = 7\n\
                    link-event = [\"1ms host=0 fail\", \"2ms host=0 restore\"]\nmtu = 1024\n";
        let options = read("bed.toml", text, Path::new("/beds")).unwrap();
        let expected = [
            "--topology=/beds/a.topo",
            "--link=1G",
            "--trim=off",
            "--seed=7",
            "--link-event=1ms host=0 fail",
            "--link-event=2ms host=0 restore",
            "--mtu=1024",
        ];
        assert_eq!(options, expected);
        let spec = "topology = \"leaf-spine:hosts=4,leaves=2\"\n";
        assert_eq!(read("b", spec, Path::new("/beds")).unwrap(), ["--topology=leaf-spine:hosts=4,leaves=2"]);
    }

    #[test]
    fn refusals_name_the_line_and_the_expected_value() {
        let refusal = |text: &str| read("b.toml", text, Path::new("")).unwrap_err();
        assert!(
            refusal("mtu = 1024\nhosts = 3\n")
                .starts_with("b.toml:2: unknown key 'hosts'; expected one of: ")
        );
        assert_eq!(refusal("mtu = [1]\n"), "b.toml:1: 'mtu' is a array; expected text or a number");
        assert!(refusal("\n\nmtu\n").starts_with("b.toml:3: "));
    }

    #[test]
    fn the_default_fabric_needs_no_file() {
        let plan = plan(None, HostsBy::Udp).unwrap();
        assert_eq!((plan.config.topology.hosts(), plan.slow), (16, 2_000));
        assert_eq!(plan.config.topology.host_rate(), weft_cc::Rate::from_bps(50_000_000));
    }
}
