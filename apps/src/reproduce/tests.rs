//! Tests of the parts of `weft reproduce`.

use super::judge::{Judgement, Verdict, judge};
use super::pattern::Pattern;
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
        samples: None,
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
    for value in ["[]", "true", "[1, [2]]"] {
        let message = refused(&SMALL.replace("hosts = 8", &format!("hosts = {value}")));
        assert_eq!(
            message,
            "s.toml: [run]: 'hosts' has another value; expected text, a number, or a list of them"
        );
    }
    let claim = "[[figure.claim]]\nsays = 'so'\nbecause = 'y'\nmeasure = { column = 'x' }\n";
    assert!(refused(&format!("{SMALL}{claim}")).contains("the claim 'so' has no limit"));
    let claim = "[[figure.claim]]\nsays = 'so'\nbecause = 'y'\nat_most = 1\nmeasure = { column = 'x', of = { lb = 'reps' } }\n";
    assert!(refused(&format!("{SMALL}{claim}")).contains("a claim is of runs with 'lb'"));
}

#[test]
fn the_suite_of_experiments_is_the_whole_validation_of_uet_htsim() {
    let (_, suite) = super::find("htsim").unwrap();
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
fn the_interval_of_a_quotient_or_a_difference_follows_from_the_pairs_of_one_seed() {
    let (smartt, nscc) = ([10.0, 20.0, 30.0], [5.0, 10.0, 15.0]);
    let times: Vec<(&str, String, f64)> = (1..=3)
        .flat_map(|seed| {
            let at = seed as usize - 1;
            [("smartt", seed.to_string(), smartt[at]), ("nscc", seed.to_string(), nscc[at])]
        })
        .collect();
    let times: Vec<(&str, &str, f64)> = times.iter().map(|(cc, seed, time)| (*cc, &**seed, *time)).collect();
    let measured = |with: &str| {
        let suite = with_claim(&format!(
            "at_most = 9\nmeasure = {{ column = 'fct_us_max', of = {{ cc = 'smartt' }} }}\n\
             {with} = {{ column = 'fct_us_max', of = {{ cc = 'nscc' }} }}\n"
        ));
        let json = judge(&suite.figure[0], &runs(&times), false)[0].json();
        (json["measured"].as_f64().unwrap(), json["half_interval"].as_f64())
    };
    assert_eq!(measured("over"), (2.0, Some(0.0)), "each seed has the same quotient");
    let (mean, half) = measured("less");
    // Differences of 5, 10 and 15: a standard deviation of 5, and t = 4.303 of two degrees of freedom.
    assert!(mean == 10.0 && (half.unwrap() - 4.303 * 5.0 / 3f64.sqrt()).abs() < 1e-9, "{half:?}");
}

#[test]
fn runs_with_unfinished_flows_prove_nothing_but_how_many_are_unfinished() {
    let mut times = runs(&[("nscc", "1", 10.0), ("nscc", "2", 12.0)]);
    times[1].columns.extend([("unfinished".to_owned(), 1.0), ("flows_total".to_owned(), 4.0)]);
    let judgement = |claim: &str, check: &dyn Fn(&Judgement<'_>)| {
        let suite = with_claim(claim);
        check(&judge(&suite.figure[0], &times, false)[0]);
    };
    judgement("at_most = 400\nmeasure = { column = 'fct_us_max', of = { cc = 'nscc' } }\n", &|judgement| {
        assert_eq!(judgement.verdict, Verdict::Fails);
        let text = judgement.text();
        assert!(text.contains("Not measured: 1 of 4 flows did not finish with cc nscc, seed 2"), "{text}");
        assert!(judgement.json()["not_measured"].as_str().unwrap().starts_with("1 of 4 flows"));
    });
    judgement(
        "at_most = 1\nmeasure = { column = 'unfinished', of = { cc = 'nscc', seed = 2 } }\n",
        &|judgement| {
            assert_eq!(judgement.verdict, Verdict::Holds, "{}", judgement.text());
        },
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
    for (with, whole, quick) in [
        ("all", Verdict::Deviates, Verdict::Deviates),
        ("whole", Verdict::Deviates, Verdict::Fails),
        ("quick", Verdict::Fails, Verdict::Deviates),
    ] {
        let more = format!("deviates = 'the reason'\ndeviates_with = '{with}'");
        assert_eq!((verdict(&more, false), verdict(&more, true)), (whole, quick), "{with}");
    }
    assert_eq!(verdict("slow = true", false), Verdict::Fails);
    assert_eq!(verdict("slow = true", true), Verdict::NotJudged);
}

#[test]
fn flows_across_the_cores_are_a_permutation_between_halves() {
    let across = Pattern::parse("across:16,2MiB,4MiB").unwrap().unwrap();
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
    assert!(Pattern::parse("perm.cm").is_none());
    for wrong in ["across:", "across:15,1MiB", "across:16", "across:16,x", "across:16,1,2,3"] {
        assert!(
            Pattern::parse(wrong).unwrap().unwrap_err().contains("expected across:HOSTS,SIZE"),
            "{wrong}"
        );
    }
}

#[test]
fn elephants_take_the_places_of_flows_of_a_permutation() {
    let pattern = Pattern::parse("elephants:50,20MB,6,50G,5ms").unwrap().unwrap();
    let text = pattern.matrix(3);
    let (mut targets, mut elephants) = (BTreeSet::new(), 0);
    for (line, host) in text.lines().skip(2).zip(0_u32..) {
        let (source, rest) = line.split_once("->").unwrap();
        let target: u32 = rest.split(' ').next().unwrap().parse().unwrap();
        assert!(source == host.to_string() && target != host && target < 50, "{line}");
        targets.insert(target);
        let elephant = line.ends_with(" start 0 size 31250000 rate 50000000000");
        assert!(elephant || line.ends_with(" start 0 size 20000000"), "{line}");
        elephants += u32::from(elephant);
    }
    assert_eq!((targets.len(), elephants), (50, 6));
    assert_eq!(pattern.matrix(3), text);
    assert_ne!(pattern.matrix(4), text);
    for wrong in ["elephants:1,20MB,0,50G,5ms", "elephants:50,20MB,51,50G,5ms", "elephants:50,20MB,6,50G"] {
        assert!(Pattern::parse(wrong).unwrap().unwrap_err().contains("expected elephants:HOSTS"), "{wrong}");
    }
}

#[test]
fn a_case_stands_for_several_options() {
    let text = SMALL
        .replace("[run]\nhosts = 8\n", "[case.small]\nhosts = 8\nlb = 'reps'\n")
        .replace("[figure.run]\n", "[figure.run]\ncase = ['small']\n");
    let out = tempfile::tempdir().unwrap();
    std::fs::create_dir(out.path().join("runs")).unwrap();
    let jobs = |text: &str| {
        let suite = Suite::parse("s.toml", text)?;
        super::jobs_of(&suite, &suite.figure[0], true, out.path())
    };
    let arguments = format!("{:?}", jobs(&text).unwrap());
    assert!(arguments.contains("\"--hosts=8\"") && arguments.contains("\"--lb=reps\""), "{arguments}");
    assert!(!arguments.contains("--case"), "{arguments}");
    let refused = |text: String| jobs(&text).unwrap_err().to_string();
    assert_eq!(refused(text.replace("['small']", "['smal']")), "figure 1: there is no [case.smal]");
    let message = refused(text.replace("lb = 'reps'", "lb = ['reps']"));
    assert_eq!(message, "s.toml: [case.small]: 'lb' is varied; expected text or a number");
}
