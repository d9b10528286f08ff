//! The order in which mlx_lm.perplexity reads a data set: `numpy.random.permutation` after
//! `numpy.random.seed`, which NumPy promises not to change.

/// Words of the generator's state.
const NUM_WORDS: usize = 624;

/// The Mersenne Twister MT19937 (Matsumoto and Nishimura 1998), seeded by one word.
struct MersenneTwister {
    words: [u32; NUM_WORDS],
    next: usize,
}

impl MersenneTwister {
    fn new(seed: u32) -> Self {
        let mut words = [seed; NUM_WORDS];
        for index in 1..NUM_WORDS {
            let before = words[index - 1];
            words[index] =
                (before ^ (before >> 30)).wrapping_mul(1_812_433_253).wrapping_add(index as u32);
        }
        MersenneTwister { words, next: NUM_WORDS }
    }

    fn refill(&mut self) {
        for index in 0..NUM_WORDS {
            let following = self.words[(index + 1) % NUM_WORDS];
            let mixed = (self.words[index] & 0x8000_0000) | (following & 0x7fff_ffff);
            let twist = if mixed & 1 == 1 { 0x9908_b0df } else { 0 };
            self.words[index] = self.words[(index + 397) % NUM_WORDS] ^ (mixed >> 1) ^ twist;
        }
        self.next = 0;
    }

    fn word(&mut self) -> u32 {
        if self.next == NUM_WORDS {
            self.refill();
        }
        let mut word = self.words[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    /// A number from 0 to `max`, both included. Numbers above it are drawn again.
    fn up_to(&mut self, max: u32) -> u32 {
        let mask = u32::MAX.checked_shr(max.leading_zeros()).unwrap_or(0);
        loop {
            let number = self.word() & mask;
            if number <= max {
                return number;
            }
        }
    }
}

/// The numbers below `count` in the order of `numpy.random.permutation(count)` after
/// `numpy.random.seed(seed)`.
pub(super) fn permutation(seed: u32, count: u32) -> Vec<u32> {
    let mut generator = MersenneTwister::new(seed);
    let mut order: Vec<u32> = (0..count).collect();
    for last in (1..count).rev() {
        order.swap(last as usize, generator.up_to(last) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::permutation;

    #[test]
    fn permutes_as_numpy_does() {
        // Printed by NumPy 2.4.6.
        assert_eq!(permutation(123, 10), [4, 0, 7, 5, 8, 3, 1, 6, 9, 2]);
        assert_eq!(permutation(0, 1), [0]);
        assert!(permutation(0, 0).is_empty());
        // More numbers than the state has words.
        for (seed, first, last) in [
            (0, [993, 859, 298, 553, 672], [835, 192, 629, 559, 684]),
            (u32::MAX, [94, 405, 819, 632, 217], [948, 71, 12, 290, 419]),
        ] {
            let order = permutation(seed, 1000);
            assert_eq!((&order[..5], &order[995..]), (&first[..], &last[..]), "seed {seed}");
        }
    }
}
