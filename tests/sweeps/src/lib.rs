//! The size of sweeps: tests that check one rule in many pseudo-random cases.
//!
//! `make test` runs a slice of each, the same one every time; `make soak` runs more of them, with
//! other seeds, for as long as asked. Two environment variables control them, and only
//! this crate reads them:
//!
//! - `CAIRN_SOAK`: how many times as many cases as `make test` runs; 1 where it is not set.
//! - `CAIRN_SEED`: the first case's seed; 0 where it is not set.
//!
//! A sweep that fails names the seed of its case. `CAIRN_SEED=<that> cargo test …` begins with it.
//!
//! ```
//! for seed in cairn_sweeps::sweep("sums", 3) {
//!     assert_eq!(seed + 1, 1 + seed);
//! }
//! ```

use std::fmt::Display;
use std::str::FromStr;

/// The seeds of a sweep over `usual` cases, or as many more as `CAIRN_SOAK` asks for.
pub fn sweep(name: &'static str, usual: u64) -> Sweep {
    Sweep::new(name, usual, number("CAIRN_SOAK", 1), first_seed())
}

/// The seed of a test that is one long case, and `usual` or as many times that as `CAIRN_SOAK` asks
/// for: how many steps it takes.
pub fn long_case(usual: u64) -> (u64, u64) {
    (first_seed(), usual.saturating_mul(number("CAIRN_SOAK", 1)))
}

fn first_seed() -> u64 {
    number("CAIRN_SEED", 0)
}

/// Seeds one after another. Dropped by a panic, it says which one failed.
#[derive(Debug)]
pub struct Sweep {
    name: &'static str,
    current: Option<u64>,
    next: u64,
    num_left: u64,
}

impl Sweep {
    fn new(name: &'static str, usual: u64, factor: u64, first: u64) -> Sweep {
        Sweep { name, current: None, next: first, num_left: usual.saturating_mul(factor) }
    }

    /// How to repeat the case that was running.
    fn failure(&self) -> Option<String> {
        let seed = self.current?;
        Some(format!(
            "sweep \"{}\" failed; to begin with this case, set CAIRN_SEED={seed}",
            self.name
        ))
    }
}

impl Iterator for Sweep {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.current = None;
        self.num_left = self.num_left.checked_sub(1)?;
        let seed = self.next;
        self.next = seed.wrapping_add(1);
        self.current = Some(seed);
        Some(seed)
    }
}

impl Drop for Sweep {
    fn drop(&mut self) {
        if let Some(failure) = self.failure().filter(|_| std::thread::panicking()) {
            eprintln!("{failure}");
        }
    }
}

/// The number in an environment variable. A value that is none fails the test: a sweep of another
/// size than asked for would say nothing.
fn number<T: FromStr<Err: Display>>(variable: &str, otherwise: T) -> T {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|error| panic!("{variable}={text}: {error}")),
        Err(_) => otherwise,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_gives_as_many_seeds_as_asked_from_the_first() {
        assert_eq!(Sweep::new("x", 3, 1, 0).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(Sweep::new("x", 2, 2, 40).collect::<Vec<_>>(), [40, 41, 42, 43]);
        assert_eq!(Sweep::new("x", 2, 1, u64::MAX).collect::<Vec<_>>(), [u64::MAX, 0]);
        assert_eq!(Sweep::new("x", 2, 0, 0).count(), 0);
    }

    #[test]
    fn a_failure_names_the_seed_of_its_case() {
        let mut sweep = Sweep::new("cuts", 3, 1, 40);
        assert_eq!(sweep.failure(), None);
        sweep.nth(1);
        let failure = sweep.failure().expect("a case is running");
        assert!(failure.contains("\"cuts\"") && failure.contains("CAIRN_SEED=41"), "{failure}");
        assert_eq!((sweep.by_ref().count(), sweep.failure()), (1, None));
    }
}
