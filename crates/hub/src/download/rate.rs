//! How fast bytes come, and how long the rest takes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The time that a rate is an average of.
const WINDOW: Duration = Duration::from_secs(10);
/// A rate of less time says little.
const LEAST_TIME: Duration = Duration::from_secs(2);
/// Samples that follow sooner replace the one before, so that there are never many.
const LEAST_INTERVAL: Duration = Duration::from_millis(100);
/// Times left are multiples of this, and how long one is shown before it may grow.
const STEP_SECONDS: u64 = 5;

/// The rate of the last ten seconds, from samples of
/// [`DownloadProgress::bytes_fetched`](crate::DownloadProgress::bytes_fetched). It reads no clock.
#[derive(Debug, Clone, Default)]
pub struct Rate {
    samples: VecDeque<(Instant, u64)>,
    /// The last time left, and since when it is that.
    left: Option<(Instant, u32)>,
}

impl Rate {
    /// Adds how many bytes have come until now. A lower number than before begins anew.
    pub fn add(&mut self, now: Instant, bytes_fetched: u64) {
        if self.samples.back().is_some_and(|&(time, bytes)| bytes_fetched < bytes || now < time) {
            *self = Rate::default();
        }
        if let [.., (before, _), (last, _)] = self.samples.make_contiguous()
            && *last - *before < LEAST_INTERVAL
        {
            self.samples.pop_back();
        }
        self.samples.push_back((now, bytes_fetched));
        // The last one outside of the window is where the window begins.
        while self.samples.get(1).is_some_and(|(time, _)| now - *time >= WINDOW) {
            self.samples.pop_front();
        }
    }

    /// None until two seconds have been seen.
    pub fn bytes_per_second(&self) -> Option<f64> {
        let ((start, before), (end, after)) = (self.samples.front()?, self.samples.back()?);
        let time = *end - *start;
        (time >= LEAST_TIME).then(|| (after - before) as f64 / time.as_secs_f64())
    }

    /// The time that so many bytes take at this rate, at the last sample, rounded up to five seconds.
    /// None while nothing comes. It shrinks at any time, and grows only after it has been the same
    /// for five seconds.
    pub fn seconds_left(&mut self, missing_bytes: u64) -> Option<u32> {
        let rate = self.bytes_per_second().filter(|rate| *rate > 0.0);
        let (Some(rate), Some(&(now, _))) = (rate, self.samples.back()) else {
            self.left = None;
            return None;
        };
        let steps = (missing_bytes as f64 / rate / STEP_SECONDS as f64).ceil();
        // A cast of a number that is too large is the largest.
        let seconds = (steps as u32).saturating_mul(STEP_SECONDS as u32);
        let may_change = |&(since, shown): &(Instant, u32)| {
            seconds < shown || now - since >= Duration::from_secs(STEP_SECONDS)
        };
        match self.left {
            Some((_, shown)) if shown == seconds => {}
            Some(shown) if !may_change(&shown) => {}
            _ => self.left = Some((now, seconds)),
        }
        self.left.map(|(_, seconds)| seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rate to which bytes come by a virtual clock.
    struct Setting {
        start: Instant,
        rate: Rate,
    }

    impl Setting {
        fn new() -> Setting {
            Setting { start: Instant::now(), rate: Rate::default() }
        }

        fn add(&mut self, millis: u64, bytes: u64) {
            self.rate.add(self.start + Duration::from_millis(millis), bytes);
        }
    }

    #[test]
    fn the_rate_is_that_of_the_last_ten_seconds() {
        let mut setting = Setting::new();
        assert_eq!(setting.rate.bytes_per_second(), None);
        setting.add(0, 0);
        setting.add(1000, 5000);
        assert_eq!(setting.rate.bytes_per_second(), None, "one second says little");
        setting.add(2000, 10_000);
        assert_eq!(setting.rate.bytes_per_second(), Some(5000.0));
        for second in 3..=20 {
            setting.add(second * 1000, 10_000);
        }
        assert_eq!(setting.rate.bytes_per_second(), Some(0.0));
        // Without samples for long, the average is that of all the time since the last.
        setting.add(120_000, 60_000);
        assert_eq!(setting.rate.bytes_per_second(), Some(500.0));
        setting.add(130_000, 70_000);
        assert_eq!(setting.rate.bytes_per_second(), Some(1000.0));
        // It was paused or failed, and began anew.
        setting.add(131_000, 0);
        assert_eq!(setting.rate.bytes_per_second(), None);
    }

    #[test]
    fn many_samples_take_little_memory() {
        let mut setting = Setting::new();
        for milli in 0..30_000 {
            setting.add(milli, milli);
        }
        assert_eq!(setting.rate.bytes_per_second().map(f64::round), Some(1000.0));
        assert!(setting.rate.samples.len() <= 102, "{}", setting.rate.samples.len());
    }

    #[test]
    fn the_time_left_is_rounded_up_and_seldom_grows() {
        let mut setting = Setting::new();
        for second in 0..=2 {
            setting.add(second * 1000, second * 1000);
        }
        assert_eq!(setting.rate.seconds_left(0), Some(0));
        let mut setting = Setting::new();
        assert_eq!(setting.rate.seconds_left(1000), None);
        for second in 0..=10 {
            setting.add(second * 1000, second * 1000);
        }
        assert_eq!(setting.rate.seconds_left(21_000), Some(25));
        setting.add(11_000, 11_000);
        assert_eq!(setting.rate.seconds_left(20_000), Some(20));
        // More to fetch: it waits until what is shown is five seconds old.
        for (second, expected) in [(12, 20), (15, 20), (16, 60), (17, 60)] {
            setting.add(second * 1000, second * 1000);
            assert_eq!(setting.rate.seconds_left(60_000), Some(expected), "at {second} s");
        }
        assert_eq!(setting.rate.seconds_left(10_000), Some(10), "less is said at once");
        for (second, expected) in [(18, 10), (21, 10), (22, 15)] {
            setting.add(second * 1000, second * 1000);
            assert_eq!(setting.rate.seconds_left(11_000), Some(expected), "at {second} s");
        }
        assert_eq!(setting.rate.seconds_left(u64::MAX).unwrap() % 5, 0);
        for second in 23..=40 {
            setting.add(second * 1000, 22_000);
        }
        assert_eq!(setting.rate.seconds_left(11_000), None, "nothing comes");
    }
}
