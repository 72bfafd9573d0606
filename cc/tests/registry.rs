//! Choosing algorithms by name and setting their parameters from text.

mod table;

use std::sync::Arc;

use weft_cc::constant::{Constant, ConstantConfig};
use weft_cc::rccc::{Rccc, RcccConfig};
use weft_cc::registry::{RECEIVERS, SENDERS, all_names};
use weft_cc::{
    CcChoice, CcParams, Delays, NackCause, NackSample, Rate, SenderCc, SetError, Span, Time, Window,
};

const PARAMS: CcParams = CcParams {
    mtu: 4096,
    overhead: 64,
    link_rate: Rate::from_gbps(100),
    network_rtt: Span::from_us(12),
    trimming: true,
    delays: Delays::Known,
};

fn choice(name: &str) -> CcChoice {
    CcChoice::parse(name).unwrap()
}

#[test]
fn the_table_is_well_formed() {
    table::check_rows(SENDERS);
    table::check_rows(RECEIVERS);
    SENDERS.iter().for_each(|row| table::check_settings(row.part.build));
    RECEIVERS.iter().for_each(|row| table::check_settings(row.part));
}

#[test]
fn every_name_makes_its_algorithms() {
    for name in all_names() {
        let choice = choice(&name);
        assert_eq!(choice.name(), name);
        let credit = name.contains("rccc");
        assert_eq!(choice.uses_credit(), credit);
        assert_eq!(choice.receiver(&PARAMS).is_some(), credit);
        assert_eq!(choice.sender_credit(&PARAMS).is_some(), credit);
        assert_eq!(choice.sender(&PARAMS).window() == Window::UNLIMITED, name == "rccc");
    }
    assert_eq!(
        all_names().join(" "),
        "nscc smartt dctcp swift lswift mswift constant rccc nscc+rccc smartt+rccc dctcp+rccc swift+rccc lswift+rccc \
         mswift+rccc constant+rccc median(nscc) median(smartt) median(swift) median(lswift)"
    );
}

#[test]
fn algorithms_that_judge_single_packets_have_each_acknowledged() {
    let asking: Vec<String> = all_names().into_iter().filter(|name| choice(name).needs().ack_each).collect();
    let expected = [
        "dctcp",
        "swift",
        "lswift",
        "mswift",
        "dctcp+rccc",
        "swift+rccc",
        "lswift+rccc",
        "mswift+rccc",
        "median(nscc)",
        "median(smartt)",
        "median(swift)",
        "median(lswift)",
    ];
    assert_eq!(asking, expected);
    let measuring: Vec<String> = all_names().into_iter().filter(|name| choice(name).needs().hops).collect();
    assert!(measuring.iter().all(|name| name.contains("swift")) && measuring.len() == 8, "{measuring:?}");
}

#[test]
fn a_median_has_its_senders_settings_and_may_have_a_receiver() {
    let mut filtered = choice("median(nscc)+rccc");
    filtered.set("target", "5us").unwrap();
    filtered.set("pull", "32KiB").unwrap();
    assert_eq!(filtered.sender(&PARAMS).snapshot().target, Span::from_us(5));
    assert!(filtered.uses_credit() && filtered.needs().ack_each);
    let refused = filtered.set("window", "1").unwrap_err().to_string();
    assert!(refused.starts_with("median(nscc)+rccc has no parameter 'window'"), "{refused}");
}

#[test]
fn nscc_knows_whether_its_row_has_a_credit_scheduler() {
    let trimmed_at_the_last_hop = NackSample {
        bytes: PARAMS.wire_mtu(),
        cause: NackCause::TrimmedLastHop,
        ecn: false,
        rtt: None,
        in_flight: 0,
    };
    for (name, reduced) in [("nscc", true), ("nscc+rccc", false)] {
        let mut sender = choice(name).sender(&PARAMS);
        let before = sender.window();
        sender.on_nack(Time::ZERO, &trimmed_at_the_last_hop);
        assert_eq!(sender.window() < before, reduced, "{name}: with credit, the last hop is the receiver's");
    }
}

#[test]
fn a_wrong_name_is_refused_with_its_place_and_what_could_stand_there() {
    let refused = |name: &str| CcChoice::parse(name).unwrap_err().to_string();
    let senders = "nscc, smartt, dctcp, swift, lswift, mswift, constant";
    assert_eq!(
        refused("ncc"),
        format!(
            "unknown congestion control 'ncc' at character 1 of 'ncc'; expected one of: {senders}, rccc, \
             median(SENDER), SENDER+RECEIVER"
        )
    );
    assert_eq!(
        refused("median(ncc)"),
        format!("unknown sender 'ncc' at character 8 of 'median(ncc)'; expected one of: {senders}")
    );
    assert_eq!(refused("nscc+rcc"), "unknown receiver 'rcc' at character 6 of 'nscc+rcc'; expected rccc");
    assert_eq!(refused("median(nscc"), "the end at character 12 of 'median(nscc'; expected ')'");
    assert_eq!(refused("nscc)"), "')' at character 5 of 'nscc)'; expected '+' or the end");
    assert_eq!(
        refused("median(constant)"),
        "constant does not react to single RTTs, which median filters, at character 8 of 'median(constant)'; \
         expected one of: nscc, smartt, swift, lswift"
    );
    for wrong in
        ["", "median", "median()", "median(median(nscc))", "rccc+nscc", "nscc+rccc+rccc", "nscc+", "µ("]
    {
        assert!(CcChoice::parse(wrong).is_err(), "{wrong}");
    }
    assert_eq!("nscc+rccc".parse::<CcChoice>().unwrap().name(), "nscc+rccc");
}

#[test]
fn parameters_reach_the_algorithms() {
    let mut constant = choice("constant");
    constant.set("window", "64KiB").unwrap();
    assert_eq!(constant.sender(&PARAMS).window(), Window(65_536));
    let mut nscc = choice("nscc");
    nscc.set("max_window_bdp", "2").unwrap();
    nscc.set("target", "5us").unwrap();
    assert_eq!(nscc.sender(&PARAMS).window(), Window(300_000));
    assert_eq!(nscc.sender(&PARAMS).snapshot().target, Span::from_us(5));
    let mut both = choice("smartt+rccc");
    both.set("k", "3").unwrap();
    both.set("max_credit_bdp", "2").unwrap();
    assert_eq!(both.sender_credit(&PARAMS).unwrap().balance(), 300_000);
}

#[test]
fn a_wrong_parameter_is_refused_with_the_expected_values() {
    let mut nscc = choice("nscc");
    let unknown = nscc.set("windw", "3").unwrap_err();
    assert!(matches!(unknown, SetError::UnknownKey { .. }));
    let text = unknown.to_string();
    for part in ["nscc", "windw", "'3'", "target", "gamma", "qa_gate"] {
        assert!(text.contains(part), "{part} in: {text}");
    }
    let bad = nscc.set("gamma", "lots").unwrap_err();
    assert!(matches!(bad, SetError::BadValue { .. }));
    let text = bad.to_string();
    for part in ["nscc", "gamma", "'lots'", "a number from 0 to 1000", "max_md_jump"] {
        assert!(text.contains(part), "{part} in: {text}");
    }
    assert!(choice("rccc").set("gamma", "0.5").unwrap_err().to_string().contains("pull_rate"));
}

#[test]
fn settings_take_the_units_that_options_take() {
    let window = |text: &str| {
        let mut constant = choice("constant");
        constant.set("window", text).map(|()| constant.sender(&PARAMS).window().0)
    };
    assert_eq!(window("64k"), Ok(64_000));
    assert_eq!(window("64KiB"), Ok(65_536));
    assert_eq!(window(" 1.5MB "), Ok(1_500_000));
    let target = |text: &str| {
        let mut nscc = choice("nscc");
        nscc.set("target", text).map(|()| nscc.sender(&PARAMS).snapshot().target)
    };
    assert_eq!(target("9µs"), Ok(Span::from_us(9)));
    assert_eq!(target("9us"), Ok(Span::from_us(9)));
    let refused = target("9").unwrap_err().to_string();
    assert!(
        refused.contains("target is '9', expected a time from 1ps to 600s, such as 9us or 750ns"),
        "{refused}"
    );
}

#[test]
fn users_plug_in_their_own_algorithms() {
    let sender = Arc::new(|params: &CcParams| {
        let config = ConstantConfig { window_bdp: 0.5, ..ConstantConfig::default() };
        Box::new(Constant::new(&config, params)) as Box<dyn SenderCc + Send>
    });
    let mut mine = CcChoice::custom("mine", sender);
    assert_eq!((mine.name(), mine.uses_credit()), ("mine", false));
    assert_eq!(mine.clone().sender(&PARAMS).window(), Window(75_000));
    assert!(mine.set("window", "1").unwrap_err().to_string().contains("it has: none"));
    let receiver = Arc::new(|params: &CcParams| {
        Box::new(Rccc::new(&RcccConfig::default(), params)) as Box<dyn weft_cc::ReceiverCc + Send>
    });
    let mine = mine.with_custom_receiver(receiver);
    assert!(mine.uses_credit() && mine.receiver(&PARAMS).is_some());
    assert!(format!("{mine:?}").contains("mine"));
}

#[test]
fn all_contexts_of_an_endpoint_have_the_same_parameters() {
    let prepared = choice("nscc").prepare(&PARAMS);
    let senders: Vec<_> = (0..3).map(|_| prepared.sender()).collect();
    assert!(senders.iter().all(|s| s.window() == Window(225_000)));
    // A choice can move to a worker's thread.
    fn is_send<T: Send + Clone>(_: &T) {}
    is_send(&prepared);
}
