//! Causes that may occur with every packet are logged once, and then at powers of ten.

/// Whether an occurrence is logged that raises a cause's count to `count`: the 1st, the 10th, the 100th, and so on.
pub(crate) fn is_logged(count: u64) -> bool {
    crosses_power_of_ten(count.saturating_sub(1), count)
}

/// Whether occurrences are logged that raise a cause's count from `before` to `after`: if a power of ten lies above
/// `before` and not above `after`.
pub(crate) fn crosses_power_of_ten(before: u64, after: u64) -> bool {
    after > before && (before == 0 || after.ilog10() > before.ilog10())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_occurrence_and_powers_of_ten_are_logged() {
        let logged: Vec<u64> = (0..=12_345).filter(|count| is_logged(*count)).collect();
        assert_eq!(logged, [1, 10, 100, 1_000, 10_000]);
        assert!(!is_logged(u64::MAX));
    }

    #[test]
    fn occurrences_that_come_together_are_logged_once() {
        assert!(crosses_power_of_ten(0, 32) && crosses_power_of_ten(9, 12) && crosses_power_of_ten(5, 2_000));
        assert!(!crosses_power_of_ten(10, 99) && !crosses_power_of_ten(7, 7) && !crosses_power_of_ten(0, 0));
    }
}
