//! Checks that the work on an input grows no faster than the input.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// How much larger the larger input is. Quadratic work becomes this squared.
const FACTOR: usize = 16;
/// Allowance for caches, fresh memory, logarithms and a busy machine. It is half of what quadratic
/// work takes, and more than larger inputs cost where they no longer fit into a cache.
const TOLERANCE: u32 = FACTOR as u32 / 2;
/// The smaller input is read again until this has passed, so that neither the clock's steps nor the
/// first touch of memory count.
const LEAST_TIME: Duration = Duration::from_millis(5);

/// Fails if `read` takes much more than 16 times as long for 16 times as many items.
///
/// Measures the time that the processor spends on this thread, so other threads and programs do not
/// count, and takes the least of three, in which the machine was quietest. `make` is not measured.
pub fn check_linear<I>(what: &str, num_items: usize, make: impl Fn(usize) -> I, read: impl Fn(I)) {
    check_growth(what, num_items, |num_items| {
        let input = make(num_items);
        let start = processor_time();
        read(input);
        processor_time().saturating_sub(start)
    });
}

fn check_growth(what: &str, num_items: usize, cost: impl Fn(usize) -> Duration) {
    let small = (0..3).map(|_| mean_cost(|| cost(num_items))).min().unwrap_or_default();
    let large = (0..3).map(|_| cost(FACTOR * num_items)).min().unwrap_or_default();
    let most = small * FACTOR as u32 * TOLERANCE;
    assert!(large <= most, "{what}: {small:?} of {num_items}, {large:?} of {FACTOR} times as many");
}

/// The mean cost of as many repetitions as fill [`LEAST_TIME`].
fn mean_cost(cost: impl Fn() -> Duration) -> Duration {
    let (mut took, mut num_times) = (Duration::ZERO, 0);
    while took < LEAST_TIME {
        took += cost();
        num_times += 1;
    }
    took / num_times
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cost of `steps` of 10 ns.
    fn steps(steps: usize) -> Duration {
        Duration::from_nanos(10 * steps as u64)
    }

    #[test]
    fn passes_linear_work_that_leaves_a_cache() {
        let cost = |num_items| steps(if num_items > 100 { 5 * num_items } else { num_items });
        check_growth("out of a cache", 100, cost);
    }

    #[test]
    #[should_panic = "quadratic: 10µs of 1000, 2.56ms of 16 times as many"]
    fn fails_quadratic_work_of_microseconds() {
        check_growth("quadratic", 1000, |num_items| steps(num_items * num_items / 1000));
    }
}
