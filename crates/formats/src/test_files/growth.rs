//! Checks that the work on an input grows no faster than the input.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// How much larger the larger input is. Quadratic work becomes this squared.
const FACTOR: usize = 8;
/// Allowance for caches, logarithms and a busy machine: half of what quadratic work takes.
const TOLERANCE: u32 = 4;

/// Fails if `read` takes much more than eight times as long for eight times as many items.
///
/// Counts the time that the processor spends on this thread, so other threads and programs do not
/// count, and takes the least of three, in which the machine was quietest. `make` is not measured.
pub fn check_linear<I>(what: &str, num_items: usize, make: impl Fn(usize) -> I, read: impl Fn(I)) {
    let least = |num_items: usize| {
        let once = |_| {
            let input = make(num_items);
            let start = processor_time();
            read(input);
            processor_time().saturating_sub(start)
        };
        (0..3).map(once).min().unwrap_or_default()
    };
    let (small, large) = (least(num_items), least(FACTOR * num_items));
    // Below this the clock's own steps count.
    let small = small.max(Duration::from_micros(200));
    let most = small * FACTOR as u32 * TOLERANCE;
    assert!(large <= most, "{what}: {small:?} of {num_items}, {large:?} of {FACTOR} times as many");
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}
