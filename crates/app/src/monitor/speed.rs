//! When a speed may be shown: a quotient of few tokens, or of a moment, says nothing.

use std::time::Duration;

use cairn_engine::{LEAST_TIMED_TOKENS, TimedTokens};

use crate::convert::figure;

/// With less time the clock and the launch of a pass are a large part of it.
const LEAST_TIME: Duration = Duration::from_millis(10);

/// A kind of speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpeedOf {
    Reading,
    Writing,
}

impl SpeedOf {
    /// The fewest tokens that tell a speed. A pass may read a few tokens as fast as one.
    fn least_tokens(self) -> u64 {
        match self {
            SpeedOf::Reading => 16,
            SpeedOf::Writing => LEAST_TIMED_TOKENS as u64,
        }
    }

    /// Returns tokens a second. `None` if there are too few tokens or too little time.
    pub(crate) fn rate(self, TimedTokens { num_tokens, took }: TimedTokens) -> Option<f64> {
        let tells = num_tokens >= self.least_tokens() && took >= LEAST_TIME;
        tells.then(|| figure(num_tokens as f64 / took.as_secs_f64()))
    }

    /// A speed in the figures of an answer; 0 where it comes from too few tokens, or too little time.
    pub(crate) fn of_answer(self, num_tokens: usize, tps: f64) -> f64 {
        let seconds = if tps > 0.0 { num_tokens as f64 / tps } else { 0.0 };
        let took = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let timed = TimedTokens { num_tokens: num_tokens as u64, took };
        if self.rate(timed).is_some() { figure(tps) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hides_speed_of_few_tokens_or_moment() {
        let check = |of: SpeedOf, num_tokens, ms, expected: Option<f64>| {
            let took = Duration::from_millis(ms);
            assert_eq!(
                of.rate(TimedTokens { num_tokens, took }),
                expected,
                "{num_tokens} in {ms} ms"
            );
        };
        check(SpeedOf::Reading, 0, 1000, None);
        check(SpeedOf::Reading, 1, 1000, None);
        check(SpeedOf::Reading, 15, 1000, None);
        check(SpeedOf::Reading, 16, 1000, Some(16.0));
        check(SpeedOf::Reading, 2000, 9, None);
        check(SpeedOf::Writing, 7, 1000, None);
        check(SpeedOf::Writing, 8, 1000, Some(8.0));
        check(SpeedOf::Writing, 8, 9, None);
        for (num_tokens, tps, expected) in
            [(1, 26_895.0, 0.0), (100, 50.0, 50.0), (100, 0.0, 0.0), (8, 330.0, 330.0)]
        {
            assert_eq!(SpeedOf::Reading.of_answer(num_tokens * 2, tps), expected, "{tps}");
        }
        assert_eq!(SpeedOf::Writing.of_answer(8, 1e300), 0.0);
    }
}
