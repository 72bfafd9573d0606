//! Random calls between two endpoints whose datagrams are lost, copied, reordered and trimmed: every operation ends once, and as
//! a model says.

use crate::common::inside_with;
use crate::common::lossy::Faults;
use crate::common::model::{play_over_relay, seeds};

#[test]
fn random_calls_end_as_a_model_says_whatever_happens_to_datagrams() {
    let name = "random_calls_end_as_a_model_says_whatever_happens_to_datagrams";
    if !inside_with(name, &[("FI_WEFT_MTU", "1500")]) {
        return;
    }
    let faults = Faults { lost: 20, copied: 20, late: 50, trimmed: 100 };
    for seed in seeds(4) {
        play_over_relay(seed, faults);
    }
}
