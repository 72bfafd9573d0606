//! `weft list` prints the algorithms, load balancers, topologies and workloads that the options accept.

use crate::Failure;
use clap::ValueEnum;
use weft_cc::CcChoice;
use weft_cc::grammar::FORMS;
use weft_cc::registry::{RECEIVERS, SENDERS};
use weft_cc::table::{ListSettings, Row as TableRow};
use weft_stack::spray::registry::BALANCERS;
use weft_testbed::topology::TopologySpec;
use weft_testbed::workload::{BUILT_IN_SIZES, GENERATORS, Parameter};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Catalogue {
    /// Congestion control, for --cc.
    Cc,
    /// Load balancers, for --lb.
    Lb,
    /// Topology generators, for --topology.
    Topologies,
    /// Workload generators, for --workload.
    Workloads,
}

/// One thing to choose.
struct Row {
    name: String,
    about: String,
    source: String,
    /// Further lines: parameters, or the grammar.
    details: Vec<String>,
}

/// The text of the catalogue `what`, or of its entry `name` with all its details.
pub(crate) fn list(what: Catalogue, name: Option<&str>) -> Result<String, Failure> {
    let mut rows = match what {
        Catalogue::Cc => congestion_controls(),
        Catalogue::Lb => table(BALANCERS),
        Catalogue::Topologies => topologies(),
        Catalogue::Workloads => workloads(),
    };
    if let (Catalogue::Cc, Some(name)) = (what, name) {
        CcChoice::parse(name).map_err(|error| Failure::Usage(error.to_string()))?;
        rows.retain(|row| is_part(&row.name, name));
    } else if let Some(name) = name {
        let known: Vec<String> = rows.iter().map(|row| row.name.clone()).collect();
        rows.retain(|row| row.name == name);
        if rows.is_empty() {
            let known = known.join(", ");
            return Err(Failure::Usage(format!("no '{name}' in this list; expected one of: {known}")));
        }
    } else if matches!(what, Catalogue::Cc | Catalogue::Lb | Catalogue::Workloads) {
        // Dozens of parameters would hide the one line that each algorithm is to have.
        rows.iter_mut().for_each(|row| row.details.clear());
    }
    let name_width = rows.iter().map(|r| r.name.chars().count()).max().unwrap_or(0);
    let about_width = rows.iter().map(|r| r.about.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for Row { name, about, source, details } in &rows {
        text += &format!("{name:name_width$}  {about:about_width$}  [{source}]\n");
        text.extend(details.iter().map(|line| format!("    {line}\n")));
    }
    Ok(text)
}

fn row(name: &str, about: &str, source: &str) -> Row {
    Row { name: name.to_owned(), about: about.to_owned(), source: source.to_owned(), details: Vec::new() }
}

/// Senders, receivers, and how they are put together.
fn congestion_controls() -> Vec<Row> {
    let forms = FORMS.iter().map(|(form, about, source)| row(form, about, source));
    table(SENDERS).into_iter().chain(table(RECEIVERS)).chain(forms).collect()
}

/// Whether the row called `row` describes a part of the congestion control called `name`.
fn is_part(row: &str, name: &str) -> bool {
    let mut words = name.split(['(', ')', '+']);
    words.any(|word| row == word || (word == "median" && row.starts_with("median(")))
}

fn table<P: ListSettings>(rows: &[TableRow<P>]) -> Vec<Row> {
    let details = |part: &P| part.settings().iter().map(ToString::to_string).collect();
    rows.iter().map(|r| Row { details: details(&r.part), ..row(r.name, r.about, r.source) }).collect()
}

fn topologies() -> Vec<Row> {
    let files = [
        row("FILE.topo", "two or three tiers, described in a file", "format of uet-htsim"),
        row("FILE.graph", "any hosts, switches and links, described in a file", "docs/topologies.md"),
    ];
    let generators = TopologySpec::GRAMMAR.iter().map(|(name, grammar)| {
        let (about, source) = match *name {
            "leaf-spine" => ("two tiers, every leaf joined to every spine", "the usual pod of a data centre"),
            "fat-tree" => ("three tiers of switches with K ports", "Al-Fares et al., SIGCOMM 2008"),
            "two-dc" => ("two data centres, joined by border switches", "Uno, SC 2025, section 5.1"),
            "dumbbell" => ("hosts on two sides of one link, hosts=N on each", "the usual bottleneck"),
            "parking-lot" => ("a chain of links with cross traffic over each", "the usual test of fairness"),
            _ => ("a generator", "weft"),
        };
        Row { details: vec![(*grammar).to_owned()], ..row(name, about, source) }
    });
    files.into_iter().chain(generators).collect()
}

fn workloads() -> Vec<Row> {
    let file = row("FILE.cm", "a connection matrix, given with --matrix", "format of uet-htsim");
    let program = row("goal:FILE", "a program for ranks on the hosts (docs/goal.md)", "GOAL, ICPP 2009");
    let generators = GENERATORS.iter().map(|generator| {
        let mut details = vec![generator.form.to_owned()];
        details.extend(generator.parameters.iter().map(parameter));
        if generator.parameters.iter().any(|parameter| parameter.key == "sizes") {
            let known = BUILT_IN_SIZES.iter().map(|sizes| format!("  {}: {}", sizes.name, sizes.about));
            details
                .push("distributions of sizes (a FILE has lines with a size and a percentage):".to_owned());
            details.extend(known);
        }
        Row { details, ..row(generator.name, generator.about, generator.source) }
    });
    [file, program].into_iter().chain(generators).collect()
}

fn parameter(parameter: &Parameter) -> String {
    let Parameter { key, values, default, about } = parameter;
    let default = if default.is_empty() { String::new() } else { format!(" [default: {default}]") };
    format!("{key}={values}: {about}{default}")
}
