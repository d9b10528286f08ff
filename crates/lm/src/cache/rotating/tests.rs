//! What a ring holds, in which order, and what a step attends to.

use super::*;

fn tokens(positions: &[i32]) -> Array {
    let numbers: Vec<f32> =
        positions.iter().flat_map(|&token| [token as f32, -token as f32]).collect();
    Array::from_slice(&numbers, &[1, 1, positions.len() as i32, 2])
}

fn positions(array: &Array) -> Vec<i32> {
    let array = array.contiguous().expect("contiguous");
    let numbers: &[f32] = array.as_slice();
    numbers.chunks(2).map(|pair| pair[0] as i32).collect()
}

/// Appends steps of the given lengths (trims where negative), and compares what the last one
/// attends to.
fn check(max_size: i32, keep: i32, steps: &[i32], expected: &[i32]) {
    let mut cache = RotatingKvCache::new(max_size, keep);
    let mut last = Vec::new();
    for &step in steps {
        let offset = cache.offset() as i32;
        if step < 0 {
            assert_eq!(
                cache.trim(-step as usize) as i32,
                if offset < max_size { (-step).min(offset) } else { 0 },
                "trim in {steps:?}"
            );
            continue;
        }
        let new: Vec<i32> = (offset..offset + step).collect();
        let (keys, values) = cache.update_and_fetch(tokens(&new), tokens(&new)).expect("update");
        last = positions(&keys);
        assert_eq!(positions(&values), last);
    }
    assert_eq!(last, expected, "ring of {max_size} that keeps {keep}, after {steps:?}");
}

#[test]
fn a_ring_holds_what_the_reference_holds() {
    check(4, 0, &[1, 1, 1], &[0, 1, 2]);
    check(4, 0, &[1, 1, 1, 1, 1], &[4, 1, 2, 3]);
    check(4, 0, &[3, 1, 1, 1], &[4, 5, 2, 3]);
    check(4, 0, &[6], &[0, 1, 2, 3, 4, 5]);
    check(4, 0, &[6, 1], &[6, 3, 4, 5]);
    check(4, 0, &[6, 1, 1, 2], &[5, 6, 7, 8, 9]);
    check(4, 0, &[6, 3], &[3, 4, 5, 6, 7, 8]);
    check(4, 0, &[2, 3, 1], &[5, 2, 3, 4]);
    check(8, 4, &[8, 1, 1], &[0, 1, 2, 3, 8, 9, 6, 7]);
    check(8, 4, &[8, 1, 1, 1, 1, 1], &[0, 1, 2, 3, 12, 9, 10, 11]);
    check(8, 4, &[8, 1, 1, 2], &[0, 1, 2, 3, 7, 8, 9, 10, 11]);
    check(8, 2, &[20, 5], &[0, 1, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24]);
    check(8, 2, &[20, 5, 1], &[0, 1, 25, 20, 21, 22, 23, 24]);
    check(300, 0, &[256, 1, 1], &(0..258).collect::<Vec<_>>());
}

#[test]
fn tokens_are_trimmed_until_the_ring_is_full() {
    check(8, 0, &[5, -2, 1, 1], &[0, 1, 2, 3, 4]);
    check(8, 0, &[5, -2, 3], &[0, 1, 2, 3, 4, 5]);
    check(8, 0, &[5, -9, 1], &[0]);
    check(8, 0, &[8, -2, 1], &[8, 1, 2, 3, 4, 5, 6, 7]);
    check(8, 0, &[7, 1, -2, 2], &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
}
