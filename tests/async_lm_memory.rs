//! Memory over many batches of log-probabilities: what is held for later stays within its limits, and
//! what was read in stays as it is. This test runs in its own process, because MLX's counters cover
//! all threads.

use std::sync::Arc;

use cairn_engine::{AsyncLm, AsyncLmOptions, LmCounts};
use cairn_lm::memory;
use cairn_sweeps::long_case;
use cairn_tests::tiny_model;

/// `make test` runs a quarter of them.
const MAX_BATCHES: u64 = 10_000;

/// Log-probabilities of so many bytes are stored: those of a few batches.
const LOGPROB_BYTES: usize = 256 << 10;

/// What is held after a batch.
#[derive(Debug, Clone, Copy)]
struct Held {
    mlx_bytes: u64,
    logprob_bytes: usize,
    counts: LmCounts,
}

async fn held(lm: &AsyncLm) -> Held {
    let counts = lm.counts().await.expect("counts");
    let (_, logprob_bytes) = lm.stored_logprobs();
    Held { mlx_bytes: memory::active_bytes(), logprob_bytes, counts }
}

fn prefix() -> Vec<u32> {
    (0..40).map(|index| index * 31 % 128).collect()
}

/// Four rows behind the prefix, others in each batch; each third batch continues the one before it.
fn rows(batch: u32) -> Vec<Vec<u32>> {
    let continues = batch % 3 == 2;
    let begun = if continues { batch - 1 } else { batch };
    let row = |row: u32| {
        let own = [begun % 100, begun / 100, row, row + 4];
        [prefix().as_slice(), &own[..if continues { 4 } else { 3 }]].concat()
    };
    (0..4).map(row).collect()
}

async fn batch(lm: &AsyncLm, batch: u32) -> Vec<Arc<[f32]>> {
    lm.batch_next_token_logprobs(&rows(batch)).await.expect("a batch")
}

async fn check(model: &str) {
    let folder = tiny_model(model);
    let options =
        AsyncLmOptions { batch_size: 4, logprob_bytes: LOGPROB_BYTES, ..AsyncLmOptions::default() };
    let name = folder.to_str().expect("a name");
    let lm = AsyncLm::from_name(name, options).await.expect("loads");
    lm.cache_kv(&prefix()).await.expect("is read in");
    let first = batch(&lm, 0).await;
    let (mut early, mut late) = (Vec::new(), Vec::new());
    let num_batches = long_case(MAX_BATCHES / 4).1.min(MAX_BATCHES) as u32;
    for number in 1..num_batches {
        batch(&lm, number).await;
        match number {
            100..400 => early.push(held(&lm).await),
            _ if number >= num_batches - 300 => late.push(held(&lm).await),
            _ => {}
        }
    }
    let most = |held: &[Held], of: fn(&Held) -> u64| held.iter().map(of).max().expect("held");
    let of: [fn(&Held) -> u64; 4] = [
        |held| held.mlx_bytes,
        |held| held.logprob_bytes as u64,
        |held| held.counts.stored_tokens as u64,
        |held| held.counts.live_tokens as u64,
    ];
    for of in of {
        let (late, early) = (most(&late, of), most(&early, of));
        assert!(late <= early, "{model}: {late} in the end, {early} at first");
    }
    assert!(most(&late, of[1]) <= LOGPROB_BYTES as u64, "{model}");
    // The prefix is still found by every row, and gives what it gave at first.
    let walk = lm.walk_cache(&rows(0)[0]).await.expect("a walk");
    assert!(walk.num_kv_tokens >= prefix().len(), "{model}: {walk:?}");
    let before = lm.counts().await.expect("counts");
    let last = batch(&lm, 0).await;
    let after = lm.counts().await.expect("counts");
    assert_eq!(after.num_rows - before.num_rows, 4, "{model}: it is computed again");
    // The first batch filled arrays of the prefix's size, the last finds a tree of what all batches
    // have left of it, so sums are rounded in another order.
    for (first, last) in first.iter().zip(&last).flat_map(|(a, b)| a.iter().zip(b.iter())) {
        assert!((first - last).abs() < 1e-4, "{model}: {last} in the end, {first} at first");
    }
}

#[tokio::test]
async fn thousands_of_batches_leave_no_memory_behind_and_the_prefix_as_it_was() {
    check("llama/dense-tied").await;
}
