//! Numbers as the wire has them: counts of tokens, and measured figures.

/// A number of tokens; no context reaches 2^32.
pub(crate) fn tokens(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// A measured figure that JSON can represent: JSON has neither infinity nor NaN, which a division
/// by zero time yields. Rounded, because digits beyond precision may not survive a round trip
/// through text.
pub(crate) fn figure(value: f64) -> f64 {
    if value.is_finite() { (value * 1000.0).round() / 1000.0 } else { 0.0 }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    #[test]
    fn figures_are_rounded_and_those_that_json_cannot_hold_become_zero() {
        fn check(value: f64, expected: f64) {
            assert_eq!(figure(value), expected);
            assert_eq!(
                serde_json::from_str::<f64>(&serde_json::to_string(&figure(value)).unwrap())
                    .unwrap(),
                expected
            );
        }
        check(1.5, 1.5);
        check(1069.603668126722, 1069.604);
        check(f64::NAN, 0.0);
        check(f64::INFINITY, 0.0);
    }
}
