//! Decides which kind of slice runs next, and how many prompt tokens it may read. Pure: it sees
//! counts and measured costs.
//!
//! - Nobody decodes: prompts are read in full steps.
//! - Somebody decodes: a prefill slice takes about [`SlicePolicy::target`], and as much time is given
//!   to decoding before the next one, or less where that is enough for [`ENOUGH_PER_SECOND`] tokens:
//!   beyond what people can read, tokens are cheaper once all sequences share the steps. Where much of
//!   a slice is the fixed cost of a pass, decoding gets more, so that these costs take little of the
//!   device's time.
//! - What is left to read takes less than one slice: it is read after one step, so that its sequence
//!   joins the batch early.
//! - More prompts wait than sequences decode, and they are short: they are read first, so that all
//!   share the steps that follow.

use std::time::Duration;

/// How long a prefill slice takes while somebody decodes.
const TARGET: Duration = Duration::from_millis(100);

/// The gap between two tokens of a writer for which a slice may exceed its target, so that most of
/// it is not the fixed cost of a pass. Below half a second, because a slice may take longer than
/// those before it: the longer a prompt, the more each of its tokens costs.
const MAX_GAP: Duration = Duration::from_millis(460);

/// The tokens of each answer in a second that are enough while prompts are read: some three times as
/// many as people can read.
const ENOUGH_PER_SECOND: f64 = 20.0;

/// Decoding gets so much time beside prefill slices that their fixed costs take at most one part in
/// this many of the device's time.
const FIXED_COST_DIVISOR: u32 = 11;

/// The most time for decoding between two prefill slices, as a multiple of the last one's. It comes
/// before [`FIXED_COST_DIVISOR`], so that prompts are read on devices with slow steps too.
const MAX_DECODE_RATIO: f64 = 1.6;

/// How many targets decoding sequences wait at most while short prompts are read first.
const TARGETS_IN_A_ROW: u32 = 3;

/// The first slice that reads beside a decoding sequence whose cost is not known either.
const FIRST_SLICE_TOKENS: usize = 16;

/// A slice reads at most this many times the tokens of the longest one that was measured, because
/// long slices may cost more for each token than short ones.
const MAX_GROWTH: usize = 4;

/// What runs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slice {
    /// One token for every row of a batch, or one step of an unbatched sequence.
    Decode,
    /// At most so many prompt tokens.
    Prefill { max_tokens: usize },
    /// Nothing is to be done.
    Idle,
}

/// What there is to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct QueueCounts {
    /// Batches and unbatched sequences that decode; each gets a step in turn.
    pub(crate) num_decoding: usize,
    /// Batches, unbatched sequences and tasks that read.
    pub(crate) num_reading: usize,
    /// Rows that decode, and sequences and tasks that are read or wait for it.
    pub(crate) num_decoding_rows: usize,
    pub(crate) num_waiting_rows: usize,
    /// The tokens that all of them have yet to read.
    pub(crate) num_unread_tokens: usize,
    /// The tokens that the next reader takes at once when nobody decodes.
    pub(crate) full_step_tokens: usize,
}

/// The rules, and how the device's time was divided lately.
#[derive(Debug)]
pub(crate) struct SlicePolicy {
    target: Duration,
    /// Reads all waiting prompts before anyone decodes: more throughput, longer pauses.
    prefer_prefill_when_pending: bool,
    /// The time of the last prefill slice beside decoding sequences, and of all decode steps since.
    last_prefill: Duration,
    decoded_since: Duration,
    num_decoded_since: usize,
    /// The time of a decode step, whichever model's; newer ones count more. `None` before the first.
    decode_step: Option<Duration>,
    /// The time of the prefill slices since the last decode step.
    read_since: Duration,
}

/// The measured speed of one model. Newer slices count more.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SliceCosts {
    num_tokens: f64,
    seconds: f64,
    num_slices: f64,
    longest_tokens: usize,
    decode: Option<Duration>,
}

impl SlicePolicy {
    pub(crate) fn new(prefer_prefill_when_pending: bool) -> Self {
        SlicePolicy {
            target: TARGET,
            prefer_prefill_when_pending,
            last_prefill: Duration::ZERO,
            decoded_since: Duration::ZERO,
            num_decoded_since: 0,
            decode_step: None,
            read_since: Duration::ZERO,
        }
    }

    /// The next slice; `costs` are those of the model that reads next.
    pub(crate) fn next(&self, counts: &QueueCounts, costs: &SliceCosts) -> Slice {
        let full_step = counts.full_step_tokens.max(1);
        match (counts.num_decoding, counts.num_reading) {
            (0, 0) => return Slice::Idle,
            (_, 0) => return Slice::Decode,
            (0, _) => return Slice::Prefill { max_tokens: full_step },
            _ => {}
        }
        if self.prefer_prefill_when_pending {
            return Slice::Prefill { max_tokens: full_step };
        }
        let max_tokens = costs.tokens_within(self.target).clamp(1, full_step);
        let is_short = counts.num_unread_tokens <= max_tokens && self.num_decoded_since > 0;
        let pause = (self.target * TARGETS_IN_A_ROW).saturating_sub(self.read_since);
        let are_many_short = counts.num_waiting_rows > counts.num_decoding_rows
            && counts.num_unread_tokens <= costs.tokens_within(pause);
        let has_decoded = self.num_decoded_since >= counts.num_decoding
            && self.decoded_since >= self.decode_time(counts, costs);
        if is_short || are_many_short || has_decoded {
            Slice::Prefill { max_tokens }
        } else {
            Slice::Decode
        }
    }

    /// How long sequences decode after the last prefill slice before the next one.
    fn decode_time(&self, counts: &QueueCounts, costs: &SliceCosts) -> Duration {
        let wanted = (costs.fixed() * FIXED_COST_DIVISOR).saturating_sub(self.last_prefill);
        let most = self.last_prefill.mul_f64(MAX_DECODE_RATIO);
        wanted.clamp(self.time_for_enough(counts), most)
    }

    /// How long decoding takes, of the time from the last slice's begin to the next one's, if each answer
    /// is to get [`ENOUGH_PER_SECOND`] tokens a second; at most as long as that slice. Those that
    /// decode take turns, and each step is one of theirs.
    fn time_for_enough(&self, counts: &QueueCounts) -> Duration {
        let Some(step) = self.decode_step else { return self.last_prefill };
        let decode_share = ENOUGH_PER_SECOND * step.as_secs_f64() * counts.num_decoding as f64;
        match decode_share < 0.5 {
            true => self.last_prefill.mul_f64(decode_share / (1.0 - decode_share)),
            false => self.last_prefill,
        }
    }

    /// Notes that a decode step took so long.
    pub(crate) fn decoded(&mut self, took: Duration) {
        self.decoded_since += took;
        self.num_decoded_since += 1;
        self.decode_step = Some(mean_with(self.decode_step, took));
        self.read_since = Duration::ZERO;
    }

    /// Notes that a prefill slice took so long while others were decoding, or alone.
    pub(crate) fn prefilled(&mut self, took: Duration, beside_decoding: bool) {
        self.last_prefill = if beside_decoding { took } else { Duration::ZERO };
        self.read_since = if beside_decoding { self.read_since + took } else { Duration::ZERO };
        self.decoded_since = Duration::ZERO;
        self.num_decoded_since = 0;
    }
}

/// The mean of a new time and what was known before.
fn mean_with(before: Option<Duration>, took: Duration) -> Duration {
    before.map_or(took, |before| (before + took) / 2)
}

impl SliceCosts {
    pub(crate) fn decoded(&mut self, took: Duration) {
        self.decode = Some(mean_with(self.decode, took));
    }

    pub(crate) fn prefilled(&mut self, num_tokens: usize, took: Duration) {
        if num_tokens > 0 {
            self.num_tokens = self.num_tokens / 2.0 + num_tokens as f64;
            self.seconds = self.seconds / 2.0 + took.as_secs_f64();
            self.num_slices = self.num_slices / 2.0 + 1.0;
            self.longest_tokens = (self.longest_tokens / 2).max(num_tokens);
        }
    }

    /// What a pass costs however few tokens it reads: about what a decode step does, because both
    /// read all weights.
    fn fixed(&self) -> Duration {
        self.decode.unwrap_or_default()
    }

    /// The prompt tokens that are read in about `target`, or in six times a decode step if that is
    /// longer and leaves gaps under [`MAX_GAP`], but in no less than twice a step.
    ///
    /// A pass has its fixed cost, and something for each token. Without the first part a slice of one
    /// token would look like the speed of the device where a step takes as long as `target`.
    fn tokens_within(&self, target: Duration) -> usize {
        let fixed = self.fixed().as_secs_f64();
        let within_gap = (6.0 * fixed).min(MAX_GAP.as_secs_f64() - fixed);
        let seconds = target.as_secs_f64().max(within_gap).max(2.0 * fixed);
        if self.num_tokens > 0.0 {
            let per_token = (self.seconds - fixed * self.num_slices).max(0.0) / self.num_tokens;
            let by_cost = ((seconds - fixed) / per_token.max(1e-9)) as usize;
            return by_cost.min(self.longest_tokens.saturating_mul(MAX_GROWTH)).max(1);
        }
        // A pass over several tokens costs at most as much as they would one by one.
        if fixed > 0.0 { (seconds / fixed) as usize } else { FIRST_SLICE_TOKENS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn counts(num_decoding: usize, num_reading: usize, num_unread_tokens: usize) -> QueueCounts {
        QueueCounts {
            num_decoding,
            num_reading,
            num_decoding_rows: num_decoding,
            num_waiting_rows: num_reading,
            num_unread_tokens,
            full_step_tokens: 2048,
        }
    }

    /// Costs of a device that reads so many tokens a millisecond, in slices as long as any.
    fn costs(tokens_per_ms: usize) -> SliceCosts {
        let mut costs = SliceCosts::default();
        costs.prefilled(2048 * tokens_per_ms, 2048 * MS);
        costs
    }

    #[test]
    fn the_next_slice_depends_on_who_decodes_and_who_reads() {
        fn check(counts: QueueCounts, expected: Slice) {
            let policy = SlicePolicy::new(false);
            assert_eq!(policy.next(&counts, &costs(1)), expected, "{counts:?}");
        }
        check(counts(0, 0, 0), Slice::Idle);
        check(counts(1, 0, 0), Slice::Decode);
        check(counts(0, 1, 10), Slice::Prefill { max_tokens: 2048 });
        // Somebody has waited for a token longest: it comes first.
        check(counts(1, 1, 5000), Slice::Decode);
        check(counts(1, 1, 10), Slice::Decode);
    }

    #[test]
    fn decoding_gets_as_much_time_as_the_last_prefill_slice_took() {
        let mut policy = SlicePolicy::new(false);
        let busy = counts(2, 1, 5000);
        policy.prefilled(80 * MS, true);
        for (num_steps, expected) in [(1, false), (2, false), (3, false), (4, true)] {
            policy.decoded(20 * MS);
            let is_prefill = matches!(policy.next(&busy, &costs(1)), Slice::Prefill { .. });
            assert_eq!(is_prefill, expected, "after {num_steps} steps of 20 ms");
        }
        // However slow a step is, everyone who decodes gets one.
        policy.prefilled(80 * MS, true);
        policy.decoded(500 * MS);
        assert_eq!(policy.next(&busy, &costs(1)), Slice::Decode);
        policy.decoded(500 * MS);
        assert_eq!(policy.next(&busy, &costs(1)), Slice::Prefill { max_tokens: 100 });
    }

    #[test]
    fn decoding_gets_no_more_time_than_enough_tokens_take() {
        /// Of a slice of 100 ms, and steps of those that decode in turns.
        fn check(num_decoding: usize, step: Duration, expected_steps: usize) {
            let mut policy = SlicePolicy::new(false);
            policy.prefilled(100 * MS, true);
            let mut num_steps = 0;
            // The one that reads has never decoded: its model may be another.
            while policy.next(&counts(num_decoding, 1, 1_000_000), &costs(1)) == Slice::Decode {
                policy.decoded(step);
                num_steps += 1;
            }
            assert_eq!(num_steps, expected_steps, "steps of {step:?} for {num_decoding}");
        }
        // 3 in 103 ms or in 115 are more than 20 a second, 2 are fewer.
        check(1, MS, 3);
        check(1, 5 * MS, 3);
        check(4, MS, 9);
        // Half of the time is less.
        check(1, 25 * MS, 4);
        check(4, 10 * MS, 10);
        let mut slow = costs(1);
        slow.decoded(20 * MS);
        let mut policy = SlicePolicy::new(false);
        policy.prefilled(100 * MS, true);
        for _ in 0..5 {
            policy.decoded(20 * MS);
            // A pass costs a fifth of a slice, however few tokens it reads: decoding gets more.
            assert_eq!(policy.next(&counts(1, 1, 1_000_000), &slow), Slice::Decode);
        }
    }

    #[test]
    fn a_slice_beside_others_is_sized_to_a_tenth_of_a_second() {
        fn check(costs: SliceCosts, full_step_tokens: usize, expected: usize) {
            let mut policy = SlicePolicy::new(false);
            policy.decoded(MS);
            let counts = QueueCounts { full_step_tokens, ..counts(1, 1, 1_000_000) };
            let slice = policy.next(&counts, &costs);
            assert_eq!(slice, Slice::Prefill { max_tokens: expected }, "{costs:?}");
        }
        check(costs(1), 2048, 100);
        check(costs(5), 2048, 500);
        check(costs(5), 256, 256);
        check(costs(1000), 2048, 2048);
        // Nothing was measured, or only how long a decode step takes.
        check(SliceCosts::default(), 2048, FIRST_SLICE_TOKENS);
        let mut slow = SliceCosts::default();
        slow.decoded(25 * MS);
        check(slow, 2048, 6);
        slow.decoded(10_000 * MS);
        check(slow, 2048, 2);
        // A short slice says little about long ones.
        let mut short = SliceCosts::default();
        short.prefilled(8, MS);
        check(short, 2048, 32);
    }

    #[test]
    fn what_takes_less_than_a_slice_is_read_after_one_step() {
        let mut policy = SlicePolicy::new(false);
        policy.prefilled(100 * MS, true);
        assert_eq!(policy.next(&counts(1, 1, 60), &costs(1)), Slice::Decode);
        policy.decoded(MS);
        assert_eq!(policy.next(&counts(1, 1, 60), &costs(1)), Slice::Prefill { max_tokens: 100 });
        assert_eq!(policy.next(&counts(1, 1, 600), &costs(1)), Slice::Decode);
    }

    #[test]
    fn many_short_prompts_are_read_before_few_sequences_go_on() {
        let many = |num_unread_tokens| QueueCounts {
            num_waiting_rows: 8,
            ..counts(1, 1, num_unread_tokens)
        };
        let mut policy = SlicePolicy::new(false);
        for (num_unread_tokens, expected) in [
            (300, Slice::Prefill { max_tokens: 100 }),
            (200, Slice::Prefill { max_tokens: 100 }),
            // Others have come meanwhile, and the pause would exceed three targets.
            (250, Slice::Decode),
        ] {
            let next = policy.next(&many(num_unread_tokens), &costs(1));
            assert_eq!(next, expected, "{num_unread_tokens}");
            policy.prefilled(100 * MS, true);
        }
        let mut policy = SlicePolicy::new(false);
        assert_eq!(policy.next(&many(301), &costs(1)), Slice::Decode);
        // Not more wait than decode.
        assert_eq!(policy.next(&counts(1, 1, 200), &costs(1)), Slice::Decode);
        policy.prefilled(100 * MS, true);
        policy.decoded(MS);
        assert_eq!(policy.next(&many(300), &costs(1)), Slice::Prefill { max_tokens: 100 });
    }

    #[test]
    fn with_prefer_prefill_prompts_are_read_first() {
        let policy = SlicePolicy::new(true);
        let slice = policy.next(&counts(4, 1, 5000), &costs(1));
        assert_eq!(slice, Slice::Prefill { max_tokens: 2048 });
    }

    /// The longest gap between two tokens of a writer, and the relative speeds of a reader of
    /// `num_tokens` and the writer while both run, on a device with these costs.
    fn simulate(
        num_tokens: usize,
        prefill: fn(usize) -> Duration,
        decode: Duration,
    ) -> (Duration, f64) {
        let (mut policy, mut costs) = (SlicePolicy::new(false), SliceCosts::default());
        let (mut now, mut last_token, mut longest_gap) =
            (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        let (mut num_left, mut num_decoded) = (num_tokens, 0);
        while num_left > 0 {
            match policy.next(&counts(1, 1, num_left), &costs) {
                Slice::Decode => {
                    now += decode;
                    num_decoded += 1;
                    longest_gap = longest_gap.max(now - last_token);
                    last_token = now;
                    policy.decoded(decode);
                    costs.decoded(decode);
                }
                Slice::Prefill { max_tokens } => {
                    let num_read = max_tokens.min(num_left);
                    let took = prefill(num_read);
                    now += took;
                    num_left -= num_read;
                    policy.prefilled(took, true);
                    costs.prefilled(num_read, took);
                }
                Slice::Idle => panic!("there is work"),
            }
        }
        let mut alone = Duration::ZERO;
        let mut to_read = num_tokens;
        while to_read > 0 {
            alone += prefill(to_read.min(2048));
            to_read -= to_read.min(2048);
        }
        let reader = alone.as_secs_f64() / now.as_secs_f64();
        let writer = f64::from(num_decoded) * decode.as_secs_f64() / now.as_secs_f64();
        (longest_gap, reader + writer)
    }

    #[test]
    fn a_reader_and_a_writer_lose_little_to_each_other() {
        fn check(name: &str, prefill: fn(usize) -> Duration, decode: Duration) {
            check_speeds(name, prefill, decode, 0.9);
        }
        fn check_speeds(name: &str, prefill: fn(usize) -> Duration, decode: Duration, least: f64) {
            let (gap, speeds) = simulate(5000, prefill, decode);
            assert!(gap < Duration::from_millis(500), "{name}: a gap of {gap:?}");
            assert!(speeds >= least, "{name}: relative speeds sum to {speeds}");
        }
        // A pass costs what its weights cost to read, and something for each token.
        check("a small model on a CPU", |n| 8 * MS + 2 * MS * n as u32, 14 * MS);
        check("a large model on a GPU", |n| 12 * MS + MS / 5 * n as u32, 20 * MS);
        check("a small model on a GPU", |n| 2 * MS + MS / 100 * n as u32, 3 * MS);
        // A pass costs more than the target however short it is: slices within half a second read
        // the weights often.
        check("few tokens a slice", |n| 60 * MS + 3 * MS * n as u32, 60 * MS);
        check("slow steps", |n| 92 * MS + 5 * MS * n as u32, 92 * MS);
        check_speeds("a slow device", |n| 150 * MS + MS * n as u32, 150 * MS, 0.8);
    }

    /// How long three requests take, each of which comes when the one before it begins to write.
    fn time_of_three_staggered_requests(
        prefers_prefill: bool,
        prefill: fn(usize) -> Duration,
        decode: fn(usize) -> Duration,
    ) -> Duration {
        const PROMPT_TOKENS: usize = 8192;
        let (mut policy, mut costs) = (SlicePolicy::new(prefers_prefill), SliceCosts::default());
        // What the one that reads has left to read, what those that write have left to write.
        let (mut num_unread, mut unwritten) = (PROMPT_TOKENS, Vec::new());
        let (mut num_coming, mut now) = (2, Duration::ZERO);
        while num_unread > 0 || !unwritten.is_empty() {
            let num_decoding = usize::from(!unwritten.is_empty());
            let counts = QueueCounts {
                num_decoding_rows: unwritten.len(),
                ..counts(num_decoding, usize::from(num_unread > 0), num_unread)
            };
            match policy.next(&counts, &costs) {
                Slice::Decode => {
                    let took = decode(unwritten.len());
                    now += took;
                    unwritten.iter_mut().for_each(|left| *left -= 1);
                    unwritten.retain(|&left| left > 0);
                    policy.decoded(took);
                    costs.decoded(took);
                }
                Slice::Prefill { max_tokens } => {
                    let num_read = max_tokens.min(num_unread);
                    let took = prefill(num_read);
                    now += took;
                    num_unread -= num_read;
                    policy.prefilled(took, num_decoding > 0);
                    costs.prefilled(num_read, took);
                    if num_unread == 0 {
                        unwritten.push(256);
                        num_unread = if num_coming > 0 { PROMPT_TOKENS } else { 0 };
                        num_coming = usize::saturating_sub(num_coming, 1);
                    }
                }
                Slice::Idle => panic!("there is work"),
            }
        }
        now
    }

    #[test]
    fn prompts_that_arrive_during_answers_are_read_almost_as_fast_as_prompts_first() {
        const US: Duration = Duration::from_micros(1);
        fn check(name: &str, prefill: fn(usize) -> Duration, decode: fn(usize) -> Duration) {
            let [adaptive, prefill_first] = [false, true]
                .map(|prefers| time_of_three_staggered_requests(prefers, prefill, decode));
            let ratio = prefill_first.as_secs_f64() / adaptive.as_secs_f64();
            assert!(ratio >= 0.95, "{name}: {ratio} of the speed with all prompts first");
        }
        // As measured on an H200: a pass over tokens, and a step of so many rows.
        check("1B", |n| MS + 17 * US * n as u32, |rows| 300 * US + 300 * US * rows as u32);
        check("0.6B", |n| MS + 15 * US * n as u32, |rows| 700 * US + 100 * US * rows as u32);
        check("8B", |n| 3 * MS + 110 * US * n as u32, |rows| 2600 * US + 200 * US * rows as u32);
    }
}
