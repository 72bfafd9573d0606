//! Requests for exposed memory that say anything.

use crate::access_model;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn hostile_accesses_are_answered_and_stay_inside(bytes in prop::collection::vec(any::<u8>(), 0..2_000)) {
        access_model::hostile_accesses_stay_inside(&bytes);
    }
}
