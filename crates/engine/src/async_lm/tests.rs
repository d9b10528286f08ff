//! What is computed for an `AsyncLm`, without a thread.

use std::cell::RefCell;
use std::rc::Rc;

use cairn_lm::batch::BatchOptions;
use cairn_lm::models::Model;
use cairn_lm::{LoadOptions, LoadedModel};
use mlx_rs::{Array, Dtype};
use tokio::sync::watch;

use super::*;
use crate::clock::{EngineClock, VirtualClock, Work};
use crate::generate_job::{AnswerChannels, GenerateJob};
use crate::next_tokens::LmState;
use crate::scheduler::Scheduler;
use crate::slice_limits::SliceLimits;
use crate::task::Task;
use crate::{GenerateEvent, GenerateRequest, PromptInput};

const LIMITS: LmLimits = LmLimits { cache_size: 400, prefill_step_size: 2048 };

/// One of the tiny models, and what asks it.
struct Asker {
    model: Model,
    state: LmState,
    numbers: u64,
}

impl Asker {
    fn new(model: &str, limits: LmLimits) -> Self {
        let options = LoadOptions::new().keep_quantized(true);
        Asker::of(Model::load(&cairn_tiny_models::tiny_model(model), options).unwrap().0, limits)
    }

    fn of(model: Model, limits: LmLimits) -> Self {
        Asker { state: LmState::new(&model, limits), model, numbers: 7 }
    }

    /// A number below `limit`, the same in every run.
    fn below(&mut self, limit: usize) -> usize {
        self.numbers = self.numbers.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.numbers >> 33) as usize % limit
    }

    fn tokens(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(self.model.vocab_size()) as u32).collect()
    }

    fn push(&mut self, sequences: &[Vec<u32>], stores: bool) -> Vec<AnswerReceiver> {
        let sent = sequences.iter().map(|ids| query(ids, stores));
        let (queries, answers) = sent.unzip();
        self.state.push(queries);
        answers
    }

    fn advance(&mut self, max_tokens: usize) {
        self.state.advance(SliceLimits { max_tokens, memory: None });
    }

    fn run(&mut self, max_tokens: usize) {
        while !self.state.is_idle() {
            self.advance(max_tokens);
        }
    }

    fn answers(&mut self, sequences: &[Vec<u32>], max_tokens: usize) -> Vec<Arc<[f32]>> {
        let answers = self.push(sequences, false);
        self.run(max_tokens);
        answers.into_iter().map(|mut answer| answer.try_recv().unwrap().unwrap()).collect()
    }

    /// Computes all tokens at once with fresh caches.
    fn expected(&self, ids: &[u32]) -> Vec<f32> {
        let tokens = Array::from_slice(ids, &[1, ids.len() as i32]);
        let hidden = self.model.forward(&tokens, &mut self.model.make_cache()).unwrap();
        let logits = self.model.logits(&hidden).unwrap().as_dtype(Dtype::Float32).unwrap();
        let logits = logits.contiguous().unwrap();
        let all = logits.try_as_slice::<f32>().unwrap();
        let last = &all[all.len() - self.model.vocab_size()..];
        let total = last.iter().map(|logit| f64::from(*logit).exp()).sum::<f64>().ln() as f32;
        last.iter().map(|logit| logit - total).collect()
    }

    fn check(&mut self, sequences: &[Vec<u32>], max_tokens: usize) {
        let answers = self.answers(sequences, max_tokens);
        for (ids, found) in sequences.iter().zip(answers) {
            let expected = self.expected(ids);
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(expected) {
                // Sums of a batch are computed in another order.
                assert!((found - expected).abs() < 1e-4, "{found} is not {expected} after {ids:?}");
            }
        }
    }
}

/// One for each kind of cache: plain, windows, recurrent states.
const MODELS: &[&str] = &[
    "llama/dense-tied",
    "llama/gqa",
    "gemma3_text/dense",
    "gemma3_text/pattern3",
    "qwen3_next/dense",
    "qwen3_next/interval",
];

#[test]
fn rows_are_computed_as_if_each_were_alone() {
    for model in MODELS {
        let mut asker = Asker::new(model, LIMITS);
        let rows: Vec<Vec<u32>> =
            [12, 1, 9, 30, 30, 17].map(|length| asker.tokens(length)).to_vec();
        asker.check(&rows, 2048);
        // One row, and slices of every size.
        asker.state.clear();
        asker.check(&rows[2..3], 2);
        for max_tokens in 1..20 {
            asker.state.clear();
            asker.check(&rows, max_tokens);
        }
    }
}

/// Random particles: they go on by one token or several, fork, drop, and are joined by others.
#[test]
fn rows_that_go_on_fork_and_drop_are_computed_right() {
    for model in MODELS {
        let mut asker = Asker::new(model, LIMITS);
        let prefix = asker.tokens(11);
        let mut rows = vec![prefix.clone(); 4];
        for step in 0..25 {
            let kind = asker.below(4);
            let survivors = rows.clone();
            for row in &mut rows {
                if kind == 0 {
                    *row = survivors[asker.below(survivors.len())].clone();
                }
                let num_new = if kind == 1 { 1 + asker.below(3) } else { 1 };
                row.extend(asker.tokens(num_new));
            }
            if kind == 2 && step % 2 == 0 {
                let last = rows.len() - 1;
                rows[last] = [prefix.clone(), asker.tokens(3)].concat();
            }
            if kind == 3 && rows.len() > 2 {
                rows.pop();
            } else if rows.len() < 4 {
                rows.push(asker.tokens(5));
            }
            let max_tokens = [1, 3, 64][asker.below(3)];
            asker.check(&rows, max_tokens);
        }
        let LmCounts { num_moved, num_found, .. } = asker.state.counts();
        assert!(num_moved > 0 && num_found > 500, "{model}: {:?}", asker.state.counts());
    }
}

#[test]
fn rows_that_go_on_alike_compute_one_token_each_and_move() {
    for model in MODELS {
        let mut asker = Asker::new(model, LIMITS);
        let mut rows: Vec<Vec<u32>> = (0..6).map(|_| asker.tokens(20)).collect();
        asker.check(&rows, 2048);
        let before = asker.state.counts();
        for _ in 0..5 {
            for row in &mut rows {
                row.extend(asker.tokens(1));
            }
            rows.rotate_left(1);
            asker.check(&rows, 2048);
        }
        let after = asker.state.counts();
        assert_eq!(after.num_tokens - before.num_tokens, 30, "{model}");
        assert_eq!(after.num_moved - before.num_moved, 5, "{model}");
        // After resampling too.
        let survivors = rows.clone();
        for row in &mut rows {
            *row = survivors[asker.below(3)].clone();
            row.extend(asker.tokens(1));
        }
        rows.sort();
        rows.dedup();
        asker.check(&rows, 2048);
        assert_eq!(asker.state.counts().num_tokens - after.num_tokens, rows.len(), "{model}");
    }
}

#[test]
fn a_prefix_that_was_read_in_is_found_by_every_row() {
    for model in MODELS {
        let mut asker = Asker::new(model, LIMITS);
        let prefix = asker.tokens(50);
        let mut stored = asker.push(std::slice::from_ref(&prefix), true);
        asker.run(16);
        assert!(stored.remove(0).try_recv().unwrap().is_ok());
        // Other batches come between, until only what is stored is left of it.
        for batch in 0..70 {
            let others: Vec<Vec<u32>> = (0..2).map(|_| asker.tokens(30)).collect();
            asker.answers(&others, 2048);
            if batch % 5 == 0 {
                let row = [prefix.clone(), asker.tokens(1)].concat();
                asker.check(&[row], 2048);
            }
        }
        let rows: Vec<Vec<u32>> =
            [3, 2, 7].map(|length| [prefix.clone(), asker.tokens(length)].concat()).to_vec();
        let other = asker.tokens(4);
        let before = asker.state.counts();
        // At least: a token that was drawn before may follow.
        assert!(rows.iter().all(|row| asker.state.num_found(row) >= 50), "{model}");
        asker.check(&[&rows[..], &[other]].concat(), 2048);
        assert!(asker.state.counts().num_found - before.num_found >= 150, "{model}");
    }
}

#[test]
fn what_is_stored_of_sequences_that_part_is_continued() {
    for model in MODELS {
        let mut asker = Asker::new(model, LIMITS);
        let prefix = asker.tokens(20);
        let row = |length: usize| [&prefix[..], &asker.tokens(length)].concat();
        let mut rows: Vec<Vec<u32>> = [5, 4, 0].map(row).to_vec();
        let num_tokens: usize = rows.iter().map(Vec::len).sum();
        for row in &rows {
            let answers = asker.push(std::slice::from_ref(row), true);
            asker.run(2048);
            drop(answers);
        }
        let before = asker.state.counts();
        assert_eq!(before.stored_tokens, 29, "{model}");
        for row in &mut rows {
            asker.state.drop_live();
            assert_eq!(asker.state.num_found(row), row.len(), "{model}");
            row.extend(asker.tokens(3));
            asker.check(std::slice::from_ref(row), 2048);
        }
        assert_eq!(asker.state.counts().num_found - before.num_found, num_tokens, "{model}");
    }
}

/// However they part, and in whatever order they come.
#[test]
fn whatever_was_stored_is_found_whole() {
    for model in MODELS {
        let limits = LmLimits { cache_size: 100_000, ..LIMITS };
        let mut asker = Asker::new(model, limits);
        let text = asker.tokens(40);
        let mut stored: Vec<Vec<u32>> = Vec::new();
        for _ in 0..30 {
            let (shared, own) = (asker.below(41), asker.below(12));
            let row = [&text[..shared], &asker.tokens(own.max(usize::from(shared == 0)))].concat();
            let answer = asker.push(std::slice::from_ref(&row), true);
            asker.run(2048);
            drop(answer);
            stored.push(row);
        }
        asker.state.drop_live();
        for row in &stored {
            assert_eq!(asker.state.num_found(row), row.len(), "{model}: {} tokens", row.len());
        }
        let longer: Vec<Vec<u32>> =
            stored.iter().map(|row| [&row[..], &asker.tokens(2)].concat()).collect();
        asker.check(&longer, 2048);
    }
}

#[test]
fn a_prefix_that_rows_share_is_read_once() {
    for model in MODELS {
        let mut asker = Asker::new(model, LIMITS);
        let prefix = asker.tokens(60);
        let rows: Vec<Vec<u32>> = [1, 4, 1, 2]
            .map(|length| [&prefix[..], &asker.tokens(length)].concat())
            .into_iter()
            .chain([asker.tokens(30)])
            .collect();
        // Slices end in the prefix.
        asker.check(&rows, 16);
        let LmCounts { num_tokens, num_found, .. } = asker.state.counts();
        assert!(num_found >= 4 * 60 && num_tokens < 130, "{model}: {:?}", asker.state.counts());
        // Whoever drops the rows drops the prefix.
        let prefix = asker.tokens(60);
        let rows: Vec<Vec<u32>> =
            (0..5).map(|_| [&prefix[..], &asker.tokens(3)].concat()).collect();
        let answers = asker.push(&rows, false);
        asker.advance(8);
        assert!(!asker.state.drop_abandoned());
        drop(answers);
        assert!(asker.state.drop_abandoned());
    }
    for field in ["fail_at", "panic_at"] {
        let mut asker = failing(field);
        let rows: Vec<Vec<u32>> = (0..9).map(|row| [vec![7; 60], vec![row]].concat()).collect();
        let answers = asker.push(&rows, false);
        asker.run(64);
        let failed = |mut answer: AnswerReceiver| answer.try_recv().unwrap().is_err();
        assert!(answers.into_iter().all(failed), "{field}");
    }
}

#[test]
fn what_is_held_stays_within_the_limits_after_many_batches() {
    for model in ["llama/dense-tied", "gemma3_text/dense", "qwen3_next/dense"] {
        let limits = LmLimits { cache_size: 40, ..LIMITS };
        let mut asker = Asker::new(model, limits);
        for _ in 0..300 {
            let num_rows = 1 + asker.below(3);
            let rows: Vec<Vec<u32>> = (0..num_rows)
                .map(|_| {
                    let length = 1 + asker.below(15);
                    asker.tokens(length)
                })
                .collect();
            let answers = asker.push(&rows, false);
            asker.run(64);
            drop(answers);
            let LmCounts { live_tokens, stored_tokens, .. } = asker.state.counts();
            assert!(live_tokens <= 40 * 8, "{model}: {live_tokens}");
            assert!(stored_tokens <= 40, "{model}: {stored_tokens}");
        }
        assert!(asker.state.counts().stored_tokens > 20, "{model}");
        // Nothing is stored where nothing may be.
        let mut asker = Asker::new(model, LmLimits { cache_size: 0, ..LIMITS });
        for length in [5, 9, 4] {
            let rows = vec![asker.tokens(length), asker.tokens(length)];
            asker.check(&rows, 64);
            let counts = asker.state.counts();
            assert_eq!((counts.stored_tokens, counts.live_tokens), (0, 2 * length), "{model}");
        }
    }
}

#[test]
fn equal_queries_are_computed_once_and_known_ones_not_again() {
    let mut asker = Asker::new("llama/dense-tied", LIMITS);
    let (one, other) = (asker.tokens(6), asker.tokens(6));
    let rows = [one.clone(), other.clone(), one.clone(), one.clone()];
    let answers = asker.answers(&rows, 64);
    assert_eq!(asker.state.counts().num_rows, 2);
    assert!(Arc::ptr_eq(&answers[0], &answers[2]) && Arc::ptr_eq(&answers[0], &answers[3]));
    asker.answers(&[other, one], 64);
    assert_eq!(asker.state.counts().num_passes, 1);
}

#[test]
fn queries_that_cannot_be_computed_fail_alone() {
    let mut asker = Asker::new("llama/dense-tied", LIMITS);
    let fine = asker.tokens(4);
    let too_long = vec![1; asker.model.context_length() + 1];
    let mut answers = asker.push(&[fine, vec![1, 1 << 20], too_long, Vec::new()], false);
    asker.run(64);
    let errors = answers.iter_mut().map(|answer| match answer.try_recv().unwrap() {
        Ok(_) => "computed".to_owned(),
        Err(error) => error.to_string().split(' ').next().unwrap().to_owned(),
    });
    let errors: Vec<String> = errors.collect();
    assert_eq!(errors[0], "computed");
    assert!(errors[1..].iter().all(|error| error != "computed"), "{errors:?}");
}

/// A scripted model that fails or panics at a position.
fn failing(field: &str) -> Asker {
    let folder = tempfile::tempdir().unwrap();
    crate::scripted_model::write_scripted(
        folder.path(),
        &format!(r#"{{"script": [97, 98, 99], "{field}": 8}}"#),
    );
    let options = LoadOptions::new().keep_quantized(true);
    let loaded = LoadedModel::load(folder.path(), options).unwrap();
    Asker::of(loaded.model.clone(), LIMITS)
}

#[test]
fn a_row_that_fails_does_not_take_the_others_with_it() {
    for field in ["fail_at", "panic_at"] {
        let mut asker = failing(field);
        let rows: Vec<Vec<u32>> = [5, 9, 6, 7].map(|length| vec![length; length as usize]).to_vec();
        let mut answers = asker.push(&[&rows[..], &rows[1..2]].concat(), false);
        asker.run(2048);
        let failed: Vec<bool> =
            answers.iter_mut().map(|answer| answer.try_recv().unwrap().is_err()).collect();
        assert_eq!(failed, [false, true, false, false, true], "{field}");
        // It goes on.
        assert_eq!(asker.answers(&rows[..1], 64).len(), 1);
    }
}

#[test]
fn queries_that_are_reset_fail_wherever_they_are() {
    let mut asker = Asker::new("llama/dense-tied", LIMITS);
    let rows: Vec<Vec<u32>> = [40, 3, 40].map(|length| asker.tokens(length)).to_vec();
    let mut answers = asker.push(&rows[..2], false);
    answers.extend(asker.push(&rows[2..], false));
    asker.advance(8);
    asker.state.fail_all(|| EngineError::QueryReset);
    for mut answer in answers {
        assert!(matches!(answer.try_recv().unwrap(), Err(EngineError::QueryReset)));
    }
    assert!(asker.state.is_idle());
    asker.check(&rows, 8);
}

#[test]
fn a_query_that_nobody_waits_for_is_not_computed() {
    let mut asker = Asker::new("llama/dense-tied", LIMITS);
    let rows: Vec<Vec<u32>> = (0..4).map(|_| asker.tokens(40)).collect();
    let mut kept = asker.push(&rows[..2], false).remove(1);
    drop(asker.push(&rows[2..], false));
    assert!(!asker.state.drop_abandoned());
    asker.run(64);
    assert!(kept.try_recv().unwrap().is_ok());
    assert_eq!(asker.state.counts().num_rows, 1);
    // Nor is it computed to its end.
    let row = asker.tokens(40);
    let answers = asker.push(&[row], false);
    asker.advance(8);
    drop(answers);
    assert!(!asker.state.is_idle() && asker.state.drop_abandoned());
}

/// A device that decodes in 14 ms, and reads with 8 ms for each slice and 2 ms for each token:
/// about a model of 135M parameters on a CPU.
fn virtual_clock() -> Rc<VirtualClock> {
    Rc::new(VirtualClock::new(|work| match work {
        Work::Decode { .. } => Duration::from_millis(14),
        Work::Prefill { num_tokens } => Duration::from_millis(8 + 2 * num_tokens as u64),
    }))
}

/// An answer without an end, and what stops it.
fn writer() -> (GenerateJob, AnswerChannels) {
    let request = GenerateRequest::new(PromptInput::Tokens(vec![7]));
    GenerateJob::new(
        GenerateRequest { max_tokens: 100_000, ..request },
        None,
        watch::channel(false).1,
    )
}

#[test]
fn a_writer_waits_for_one_slice_at_most() {
    let clock = virtual_clock();
    let mut scheduler = Scheduler::new(BatchOptions::default(), clock.clone());
    let fields = r#"{"script": [97], "max_position_embeddings": 1000000}"#;
    let mut worker = crate::scripted_model::worker_with(fields);
    let (job, (mut events, _stop)) = writer();
    scheduler.begin(&mut worker, job);
    let loaded = worker.models.get(None).unwrap();
    let state = Rc::new(RefCell::new(LmState::new(&loaded.model.model, LIMITS)));
    // Batches of 64 rows, each of which takes a second alone.
    let mut answers = Vec::new();
    for batch in 0..10 {
        let rows = (0..64u32).map(|row| query(&[batch, row, 3, 4, 5, 6, 7, 8], false));
        let (queries, waits): (Vec<LmQuery>, Vec<AnswerReceiver>) = rows.unzip();
        state.borrow_mut().push(queries);
        answers.extend(waits);
    }
    scheduler.begin_task(Task::next_tokens(&worker, loaded, None, Rc::clone(&state)));
    let (mut last, mut longest, mut num_tokens) = (clock.now(), Duration::ZERO, 0);
    while !state.borrow().is_idle() {
        scheduler.turn(&mut worker);
        while let Ok(event) = events.try_recv() {
            if let GenerateEvent::Delta { .. } = event {
                longest = longest.max(clock.now() - last);
                (last, num_tokens) = (clock.now(), num_tokens + 1);
            }
        }
    }
    assert!(answers.iter_mut().all(|answer| answer.try_recv().unwrap().is_ok()));
    assert!(longest < Duration::from_millis(500) && num_tokens > 50, "{longest:?}, {num_tokens}");
}
