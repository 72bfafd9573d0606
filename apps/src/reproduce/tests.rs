//! Tests of the parts of `weft reproduce`.

use super::judge::{Verdict, judge};
use super::pattern::Across;
use super::runs::Finished;
use super::suite::{Suite, combinations};
use std::collections::{BTreeMap, BTreeSet};

const SMALL: &str = "title = 'T'\nsource = 'S'\n[run]\nhosts = 8\n[[figure]]\nid = '1'\ntitle = 'F'\nsection = '§1'\n\
    draw = 'bars'\nseries = 'cc'\n[figure.run]\nworkload = 'permutation'\ncc = ['nscc', 'smartt', 'dctcp']\nseed = [1, 2]\n\
    [figure.quick]\nseed = [1]\n";

fn refused(text: &str) -> String {
    Suite::parse("s.toml", text).expect_err("it must be refused").to_string()
}

fn with_claim(claim: &str) -> Suite {
    Suite::parse("s.toml", &format!("{SMALL}[[figure.claim]]\nsays = 'so'\nbecause = 'why'\n{claim}"))
        .unwrap()
}

/// Runs of figure 1 whose last flows took `times`, by algorithm and seed.
fn runs(times: &[(&str, &str, f64)]) -> Vec<Finished> {
    let run = |(cc, seed, time): &(&str, &str, f64)| Finished {
        figure: "1".to_owned(),
        point: [("cc", *cc), ("seed", *seed)].map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        columns: BTreeMap::from([("fct_us_max".to_owned(), *time)]),
        fct_us: vec![*time],
    };
    times.iter().map(run).collect()
}

#[test]
fn suites_of_this_program_are_well_formed_and_their_runs_make_sense() {
    let out = tempfile::tempdir().unwrap();
    std::fs::create_dir(out.path().join("runs")).unwrap();
    for (name, text) in super::SUITES {
        let suite = Suite::parse(name, text).unwrap_or_else(|failure| panic!("{failure}"));
        for figure in &suite.figure {
            super::jobs_of(&suite, figure, true, out.path())
                .unwrap_or_else(|failure| panic!("{name}: {failure}"));
            assert!(!figure.claim.is_empty(), "{name}: figure {} claims nothing", figure.id);
        }
    }
}

#[test]
fn a_malformed_suite_is_refused_with_the_place_and_what_was_expected() {
    let lines = SMALL.matches('\n').count();
    let message = refused(&format!("{SMALL}[[figure.claim]]\nsays = 'so'\nbecause = 'y'\nlimit = 3\n"));
    assert!(message.starts_with(&format!("s.toml:{}: unknown field `limit`", lines + 4)), "{message}");
    assert!(refused(&SMALL.replace("'bars'", "'pie'")).contains("s.toml:9: unknown variant `pie`"));
    assert!(
        refused(&SMALL.replace("series = 'cc'", "series = 'lb'")).contains("'lb' is drawn, but not varied")
    );
    assert!(
        refused(&SMALL.replace("[figure.quick]\nseed", "[figure.quick]\nlb"))
            .contains("'lb' has a value with --quick only")
    );
    let claim = "[[figure.claim]]\nsays = 'so'\nbecause = 'y'\nmeasure = { column = 'x' }\n";
    assert!(refused(&format!("{SMALL}{claim}")).contains("the claim 'so' has no limit"));
    let claim = "[[figure.claim]]\nsays = 'so'\nbecause = 'y'\nat_most = 1\nmeasure = { column = 'x', of = { lb = 'reps' } }\n";
    assert!(refused(&format!("{SMALL}{claim}")).contains("a claim is of runs with 'lb'"));
}

#[test]
fn the_suite_of_experiments_is_the_whole_validation_of_uet_htsim() {
    let suite = Suite::parse("htsim", super::SUITES[1].1).unwrap();
    let experiments = suite.figure.iter().map(|figure| figure.experiments.len()).sum::<usize>();
    let limits = suite.figure.iter().map(|figure| figure.claim.len()).sum::<usize>();
    assert_eq!((suite.figure.len(), experiments, limits), (8, 95, 193));
}

#[test]
fn a_malformed_suite_of_experiments_is_refused_with_the_place_and_what_was_expected() {
    let text = "title = 'T'\nsource = 'S'\nprogram = 'P'\n[[file]]\nname = 'f'\n[[file.experiment]]\nname = 'E'\n\
                matrix = 'one.cm'\narguments = '-sender_cc_only'\ntail_us = 190\n";
    let job = |text: &str| {
        let out = tempfile::tempdir().unwrap();
        let suite = Suite::parse("s.toml", text)?;
        super::jobs_of(&suite, &suite.figure[0], false, out.path()).map(|jobs| jobs.len())
    };
    assert_eq!(job(text).unwrap(), 1);
    let refused = |text: &str| job(text).unwrap_err().to_string();
    assert!(refused(&text.replace("tail_us", "tail")).starts_with("s.toml:10: unknown field `tail`"));
    assert!(refused(&text.replace("program = 'P'\n", "")).contains("missing field `program`"));
    let message = refused(&text.replace("-sender_cc_only", "-planes 2"));
    assert!(message.starts_with("f: E: -planes"), "{message}");
    let message = refused(&text.replace("one.cm", "none.cm"));
    assert!(message.starts_with("f: E: ") && message.contains("none.cm"), "{message}");
}

#[test]
fn quick_values_take_the_place_of_the_others() {
    let suite = Suite::parse("s.toml", SMALL).unwrap();
    let points = |quick| combinations(&suite.figure[0].options(&suite, quick));
    assert_eq!((points(false).len(), points(true).len()), (6, 3));
    assert!(points(true).iter().all(|point| point["hosts"] == "8" && point["seed"] == "1"));
}

#[test]
fn a_claim_compares_means_over_seeds() {
    let suite = with_claim(
        "at_most = 0.9\nmeasure = { column = 'fct_us_max', of = { cc = 'smartt' } }\n\
         over = { column = 'fct_us_max', of = { cc = ['nscc', 'dctcp'] }, pick = 'least' }\n",
    );
    let verdict = |smartt: f64, quick| {
        let times = [
            ("smartt", "1", smartt - 1.0),
            ("smartt", "2", smartt + 1.0),
            ("nscc", "1", 10.0),
            ("dctcp", "1", 20.0),
        ];
        judge(&suite.figure[0], &runs(&times), quick)[0].verdict
    };
    assert_eq!(verdict(9.0, false), Verdict::Holds);
    assert_eq!(verdict(9.1, false), Verdict::Fails);
    assert_eq!(verdict(9.1, true), Verdict::Fails);
    assert_eq!(
        judge(&suite.figure[0], &[], false)[0].verdict,
        Verdict::Fails,
        "nothing measured proves nothing"
    );
}

#[test]
fn a_claim_of_several_runs_must_say_which() {
    let claim =
        |pick: &str| with_claim(&format!("at_least = 20\nmeasure = {{ column = 'fct_us_max'{pick} }}\n"));
    let times = runs(&[("nscc", "1", 10.0), ("dctcp", "1", 20.0)]);
    let verdict = |pick: &str| judge(&claim(pick).figure[0], &times, false)[0].verdict;
    assert_eq!(verdict(""), Verdict::Fails);
    assert_eq!(verdict(", pick = 'greatest'"), Verdict::Holds);
    assert_eq!(verdict(", pick = 'least'"), Verdict::Fails);
}

#[test]
fn what_is_known_to_deviate_or_is_not_judged_does_not_fail() {
    let base = "at_most = 5\nmeasure = { column = 'fct_us_max', of = { cc = 'nscc' } }\n";
    let times = runs(&[("nscc", "1", 10.0)]);
    let verdict =
        |more: &str, quick| judge(&with_claim(&format!("{base}{more}")).figure[0], &times, quick)[0].verdict;
    assert_eq!(verdict("", false), Verdict::Fails);
    assert_eq!(verdict("deviates = 'the reason'", false), Verdict::Deviates);
    assert_eq!(verdict("slow = true", false), Verdict::Fails);
    assert_eq!(verdict("slow = true", true), Verdict::NotJudged);
}

#[test]
fn flows_across_the_cores_are_a_permutation_between_halves() {
    let across = Across::parse("across:16,2MiB,4MiB").unwrap().unwrap();
    let text = across.matrix(3);
    let (mut sources, mut targets) = (BTreeSet::new(), BTreeSet::new());
    for line in text.lines().skip(2) {
        let (source, rest) = line.split_once("->").unwrap();
        let source: u32 = source.parse().unwrap();
        let target: u32 = rest.split(' ').next().unwrap().parse().unwrap();
        assert_ne!(source < 8, target < 8, "{line}");
        assert!(line.ends_with(if source == 0 { " 4194304" } else { " 2097152" }), "{line}");
        sources.insert(source);
        targets.insert(target);
    }
    assert_eq!((sources.len(), targets.len()), (16, 16));
    assert_eq!(across.matrix(3), text);
    assert_ne!(across.matrix(4), text);
    assert!(Across::parse("perm.cm").is_none());
    for wrong in ["across:", "across:15,1MiB", "across:16", "across:16,x", "across:16,1,2,3"] {
        assert!(Across::parse(wrong).unwrap().unwrap_err().contains("expected across:HOSTS,SIZE"), "{wrong}");
    }
}
