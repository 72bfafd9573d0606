//! The example of a user's own congestion control runs, and its algorithm does control congestion.

use crate::example;
use std::sync::Arc;
use weft::cc::CcChoice;

#[test]
fn the_example_of_a_custom_algorithm_runs() {
    example::main().expect("the example ends well");
}

#[test]
fn a_custom_algorithm_shares_a_link_as_well_as_nscc() {
    let own = example::incast(CcChoice::custom("scalable", Arc::new(example::scalable))).expect("a run");
    let nscc = example::incast(CcChoice::parse("nscc").expect("known")).expect("a run");
    assert_eq!((own.len(), nscc.len()), (8, 8), "every flow completes");
    // Eight times 2 MB, without headers, take 1280 µs on the receiver's link.
    assert!((1280.0..1450.0).contains(&own[7]), "{own:?}");
    assert!((1280.0..1450.0).contains(&nscc[7]), "{nscc:?}");
    assert_ne!(own, nscc, "the example ran its own algorithm");
    assert!(own[0] > 0.5 * own[7], "flows that ran one after the other would begin with an eighth: {own:?}");
}
