//! Passes over many rows keep within the engine's memory limit. This test runs in its own process,
//! because MLX's counters cover all threads.

use std::time::Duration;

use cairn_engine::{
    AsyncLm, AsyncLmOptions, ClassifyEvent, ClassifyRequest, ClassifyRow, Engine, EngineError,
    EngineOptions, GenerateEvent, GenerateRequest, PromptInput,
};
use cairn_lm::{LoadOptions, ModelMemory, PassSizes, memory};

/// So many rows of so many tokens.
const NUM_ROWS: u32 = 120;
const ROW_TOKENS: u32 = 200;

struct Model {
    folder: tempfile::TempDir,
}

impl Model {
    /// A tiny model with a context of 4,000 tokens.
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        cairn_tests::copy_tiny_model("llama/dense-tied", &folder.path().join("tiny"))
            .expect("copied");
        let file = folder.path().join("tiny/config.json");
        let text = std::fs::read_to_string(&file).expect("a config");
        let mut config: serde_json::Value = serde_json::from_str(&text).expect("a config");
        config["max_position_embeddings"] = 4000.into();
        std::fs::write(&file, config.to_string()).expect("is written");
        Model { folder }
    }

    async fn engine(&self, limit: Option<u64>) -> Engine {
        let options = EngineOptions { memory_limit_bytes: limit, ..EngineOptions::default() };
        let (engine, _events) = Engine::start(options);
        engine.load("tiny", &self.folder.path().join("tiny")).await.expect("loads");
        engine
    }

    fn weight_bytes(&self) -> u64 {
        let options = LoadOptions::new();
        let memory = ModelMemory::read(&self.folder.path().join("tiny"), options);
        memory.expect("is estimated").weight_bytes
    }
}

fn row(number: u32, num_tokens: u32) -> Vec<u32> {
    (0..num_tokens).map(|index| (number * 7 + index * (number + 3)) % 120).collect()
}

fn rows() -> Vec<Vec<u32>> {
    (0..NUM_ROWS).map(|number| row(number, ROW_TOKENS)).collect()
}

/// The first log-probability of each row.
async fn asked(engine: &Engine) -> Vec<f32> {
    let options =
        AsyncLmOptions { batch_size: 60, cache_size: 100_000, ..AsyncLmOptions::default() };
    let lm = AsyncLm::of_engine(engine, "tiny", options);
    let mut found = Vec::new();
    for _ in 0..2 {
        let mut rows = rows();
        rows.iter_mut().for_each(|row| row.push(5));
        let all = lm.batch_next_token_logprobs(&rows).await.expect("answers");
        found = all.iter().map(|row| row[0]).collect();
    }
    found
}

async fn scored(engine: &Engine) -> Vec<f32> {
    let prompts = rows().into_iter().map(PromptInput::Tokens).collect();
    let scores = engine.score_all(prompts, 1).await.expect("scores");
    scores.iter().map(|score| score.next[0].1).collect()
}

async fn classified(engine: &Engine) -> Vec<f32> {
    classified_behind(engine, row(1000, 300)).await
}

async fn classified_behind(engine: &Engine, prefix: Vec<u32>) -> Vec<f32> {
    let of_row = |row: Vec<u32>| ClassifyRow {
        prompt: PromptInput::Tokens([prefix.as_slice(), &row[..20]].concat()),
        options: [].into(),
    };
    let rows = rows().into_iter().map(of_row).collect();
    let prefix = Some(PromptInput::Tokens(prefix.clone()));
    let request = ClassifyRequest { prefix, ..ClassifyRequest::new(rows) };
    let mut events = engine.classify(request);
    let mut found = vec![0.0; NUM_ROWS as usize];
    while let Some(event) = events.recv().await {
        match event {
            ClassifyEvent::Row { index, answer } => found[index] = answer.expect("a row").logprob,
            ClassifyEvent::Failed(error) => panic!("{error}"),
            ClassifyEvent::Prefix { .. } | ClassifyEvent::Finished => {}
        }
    }
    found
}

/// What the work gives without a limit, it gives within one of so many percent of what it took then.
async fn check(model: &Model, name: &str, percent: u64, work: impl AsyncFn(&Engine) -> Vec<f32>) {
    let run = async |limit: Option<u64>| {
        let engine = model.engine(limit).await;
        memory::clear_cache();
        memory::reset_peak();
        let found = work(&engine).await;
        let peak = memory::peak_bytes();
        engine.shutdown().await;
        (found, peak)
    };
    let (expected, unlimited) = run(None).await;
    let weights = model.weight_bytes();
    let limit = weights + (unlimited - weights) * percent / 100;
    let (found, peak) = run(Some(limit)).await;
    println!("{name}: {unlimited} bytes without a limit, {peak} with one of {limit}");
    assert!(peak <= limit, "{name}: {peak} bytes, over {limit}");
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() < 1e-4, "{name}: {found}, not {expected}");
    }
}

/// A row for which there is no memory is refused by name, and an answer gets what is held.
async fn what_cannot_fit_is_refused_and_what_is_held_goes(model: &Model) {
    let options = LoadOptions::new();
    let memory = ModelMemory::read(&model.folder.path().join("tiny"), options).expect("is read");
    let limit = memory.peak_bytes(600, 1, 256) + (1 << 16);
    let engine = model.engine(Some(limit)).await;
    let options = AsyncLmOptions { cache_size: 100_000, ..AsyncLmOptions::default() };
    let lm = AsyncLm::of_engine(&engine, "tiny", options);
    let error = lm.next_token_logprobs(&row(1, 3900)).await.expect_err("does not fit");
    assert!(matches!(error, EngineError::DoesNotFit { .. }), "{error}");
    for number in 0..40 {
        lm.next_token_logprobs(&row(number, 200)).await.expect("fits");
    }
    let mut request = GenerateRequest::new(PromptInput::Tokens(row(3, 550)));
    request.max_tokens = 20;
    let mut answer = engine.generate(request);
    while let Some(event) = answer.recv().await {
        match event {
            GenerateEvent::Failed(error) => panic!("{error}"),
            GenerateEvent::Finished(_) => break,
            GenerateEvent::SoFar(_)
            | GenerateEvent::Prefill { .. }
            | GenerateEvent::Delta { .. } => {}
        }
    }
    assert_eq!(lm.counts().await.expect("counts").live_tokens, 0, "it has gone");
    engine.shutdown().await;
}

/// Of two prefixes there is room for one: the second waits for the first, and both end.
async fn prefixes_that_do_not_fit_together_are_read_in_turn(model: &Model) {
    let prefixes = || [row(1, 2816), row(2, 2816)];
    let unlimited = model.engine(None).await;
    let [first, second] = prefixes();
    let expected =
        [classified_behind(&unlimited, first).await, classified_behind(&unlimited, second).await];
    unlimited.shutdown().await;

    let memory = ModelMemory::read(&model.folder.path().join("tiny"), LoadOptions::new());
    let memory = memory.expect("is estimated");
    let (num_before, num_new) = (2560, 256);
    let last = PassSizes { num_rows: 1, num_before, num_new, shares: false, num_logits: 0 };
    let limit = memory.weight_bytes + memory.pass_bytes(&last) + memory.kv_bytes(2560 * 3 / 2);
    let engine = model.engine(Some(limit)).await;
    let [first, second] = prefixes();
    let both = async {
        tokio::join!(classified_behind(&engine, first), classified_behind(&engine, second))
    };
    let found = tokio::time::timeout(Duration::from_secs(300), both).await.expect("both end");
    for (found, expected) in std::iter::zip([found.0, found.1], &expected) {
        for (found, expected) in std::iter::zip(&found, expected) {
            assert!((found - expected).abs() < 1e-4, "{found}, not {expected}");
        }
    }
    engine.shutdown().await;
}

#[tokio::test]
async fn passes_over_many_rows_keep_within_the_limit() {
    let model = Model::new();
    check(&model, "next_token_logprobs", 60, asked).await;
    check(&model, "score_all", 60, scored).await;
    // A pass of its rows takes little more than reading the prefix does.
    check(&model, "classify", 150, classified).await;
    what_cannot_fit_is_refused_and_what_is_held_goes(&model).await;
    prefixes_that_do_not_fit_together_are_read_in_turn(&model).await;
}
