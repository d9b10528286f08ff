//! The random keys of one request, computed on the host.
//!
//! The sequence for a seed is that of MLX's `KeySequence` and mlx_rs's `RandomState` (Threefry-2x32
//! of Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011). Splitting a key in MLX
//! would add five graph nodes per token.

use std::hash::{BuildHasher, RandomState};

use mlx_rs::Array;

/// A sequence of keys for MLX's random functions.
#[derive(Debug, Clone)]
pub struct RandomKeys {
    state: [u32; 2],
}

impl RandomKeys {
    /// The sequence for `seed`; without one, a random sequence.
    pub fn new(seed: Option<u64>) -> Self {
        // The keys of the standard library's hashers come from the operating system's randomness.
        let seed = seed.unwrap_or_else(|| RandomState::new().hash_one("sampling"));
        RandomKeys { state: [(seed >> 32) as u32, seed as u32] }
    }

    /// The next key, `[2]` u32.
    pub fn next_key(&mut self) -> Array {
        Array::from_slice(&self.advance(), &[2])
    }

    /// The number in [0, 1) that MLX's `uniform` makes from the next key.
    pub fn next_uniform(&mut self) -> f32 {
        let bits = threefry(self.advance(), [0, 0])[0];
        (bits as f32 / u32::MAX as f32).min(1.0 - f32::EPSILON / 2.0)
    }

    /// MLX writes the two words of each hash half an array apart: the first words become the new
    /// state, the second words the key.
    fn advance(&mut self) -> [u32; 2] {
        let first = threefry(self.state, [0, 2]);
        let second = threefry(self.state, [1, 3]);
        self.state = [first[0], second[0]];
        [first[1], second[1]]
    }
}

fn threefry(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
    let keys = [key[0], key[1], key[0] ^ key[1] ^ 0x1BD1_1BDA];
    let mut left = counter[0].wrapping_add(keys[0]);
    let mut right = counter[1].wrapping_add(keys[1]);
    for round in 0..5 {
        for rotation in ROTATIONS[round % 2] {
            left = left.wrapping_add(right);
            right = right.rotate_left(rotation) ^ left;
        }
        left = left.wrapping_add(keys[(round + 1) % 3]);
        right = right.wrapping_add(keys[(round + 2) % 3]).wrapping_add(round as u32 + 1);
    }
    [left, right]
}

#[cfg(test)]
mod tests {
    use mlx_rs::random::{RandomState, uniform};

    use super::*;

    fn check(seed: u64) {
        let mut keys = RandomKeys::new(Some(seed));
        let mut numbers = RandomKeys::new(Some(seed));
        let mut mlx = RandomState::with_seed(seed).expect("state");
        for position in 0..50 {
            let expected = mlx.next_key().expect("key");
            expected.eval().expect("eval");
            assert_eq!(
                keys.next_key().as_slice::<u32>(),
                expected.as_slice::<u32>(),
                "key {position} of {seed}"
            );
            let number = uniform::<_, f32>(0.0f32, 1.0f32, None, &expected)
                .expect("uniform")
                .item_exact::<f32>();
            assert_eq!(numbers.next_uniform(), number, "number {position} of {seed}");
        }
    }

    #[test]
    fn keys_and_numbers_are_those_of_mlx() {
        for seed in [0, 1, 7, 1 << 32, u64::MAX] {
            check(seed);
        }
    }

    #[test]
    fn without_a_seed_sequences_differ() {
        let key = || RandomKeys::new(None).advance();
        assert_ne!(key(), key());
    }
}
