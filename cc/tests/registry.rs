//! Choosing algorithms by name and setting their parameters from text.

mod table;

use std::sync::Arc;

use weft_cc::constant::{Constant, ConstantConfig};
use weft_cc::rccc::{Rccc, RcccConfig};
use weft_cc::registry::ALGORITHMS;
use weft_cc::{CcChoice, CcParams, CcSetError, NackCause, NackSample, Rate, SenderCc, Span, Time, Window};

const PARAMS: CcParams = CcParams {
    mtu: 4096,
    overhead: 64,
    link_rate: Rate::from_gbps(100),
    network_rtt: Span::from_us(12),
    trimming: true,
};

fn choice(name: &str) -> CcChoice {
    CcChoice::parse(name).unwrap()
}

#[test]
fn the_table_is_well_formed() {
    table::check_rows(ALGORITHMS);
    for row in ALGORITHMS {
        table::check_settings(row.part.sender);
        row.part.receiver.into_iter().for_each(table::check_settings);
    }
}

#[test]
fn every_name_makes_its_algorithms() {
    for row in ALGORITHMS {
        let choice = choice(row.name);
        assert_eq!(choice.name(), row.name);
        let credit = row.name.contains("rccc");
        assert_eq!(choice.uses_credit(), credit);
        assert_eq!(choice.receiver(&PARAMS).is_some(), credit);
        assert_eq!(choice.sender_credit(&PARAMS).is_some(), credit);
        assert_eq!(choice.sender(&PARAMS).window() == Window::UNLIMITED, row.name == "rccc");
    }
    assert_eq!(ALGORITHMS.len(), 6);
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
fn an_unknown_name_is_refused_with_the_known_ones() {
    let error = CcChoice::parse("ncc").unwrap_err();
    assert_eq!(
        error.to_string(),
        "unknown congestion control 'ncc'; there are: nscc, smartt, constant, rccc, nscc+rccc, smartt+rccc"
    );
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
    assert!(matches!(unknown, CcSetError::UnknownKey { .. }));
    let text = unknown.to_string();
    for part in ["nscc", "windw", "'3'", "target", "gamma", "qa_gate"] {
        assert!(text.contains(part), "{part} in: {text}");
    }
    let bad = nscc.set("gamma", "lots").unwrap_err();
    assert!(matches!(bad, CcSetError::BadValue { .. }));
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
