//! Memory over many requests: all memory of an answer is freed when it ends. This test runs in its
//! own process, because MLX's counters cover all threads.

use cairn_engine::{
    Engine, EngineOptions, GenerateEvent, GenerateRequest, Generation, MemoryPressure, PromptInput,
    Speculation,
};
use cairn_lm::memory;

/// Answers `count` requests of varied lengths, up to ten at once.
async fn answer(engine: &Engine, count: usize) {
    let mut running = Vec::new();
    for number in 0..count {
        let prompt =
            (0..1 + number * 7 % 40).map(|index| (index * 31 + number) as u32 % 256).collect();
        let mut request = GenerateRequest::new(PromptInput::Tokens(prompt));
        request.max_tokens = 1 + number * 3 % 17;
        request.use_prompt_cache = false;
        request.ignore_eos = true;
        request.num_top_logprobs = number.is_multiple_of(4).then_some(2);
        // Some requests cannot share a batch with the others.
        if number % 11 == 5 {
            request.speculation = Speculation::Draft { num_tokens: 2 };
        }
        request.kv_cache.max_size = (number % 13 == 7).then_some(16);
        // Some requests are cancelled by dropping their stream.
        let generation = engine.generate(request);
        if !number.is_multiple_of(9) {
            running.push(generation);
        }
        if running.len() < 10 && number + 1 < count {
            continue;
        }
        for mut generation in running.drain(..) {
            loop {
                match generation.recv().await.expect("an answer ends with Finished or Failed") {
                    GenerateEvent::Finished(_) => break,
                    GenerateEvent::Failed(error) => panic!("{error}"),
                    GenerateEvent::SoFar(_)
                    | GenerateEvent::Prefill { .. }
                    | GenerateEvent::Delta { .. } => {}
                }
            }
        }
    }
}

/// The peak of a small answer that begins after a large prompt was read beside it does not include
/// that prompt.
async fn an_answer_has_a_peak_of_its_own(engine: &Engine) {
    let request = |num_tokens: usize, max_tokens| {
        let tokens = (0..num_tokens).map(|index| index as u32 * 31 % 256).collect();
        let mut request = GenerateRequest::new(PromptInput::Tokens(tokens));
        request.max_tokens = max_tokens;
        request.use_prompt_cache = false;
        request.ignore_eos = true;
        request
    };
    let finished = async |generation: &mut Generation| {
        while let Some(event) = generation.recv().await {
            if let GenerateEvent::Finished(finished) = event {
                return finished.stats.mlx_peak_bytes;
            }
        }
        panic!("no answer");
    };
    let mut large = engine.generate(request(1500, 400));
    while !matches!(large.recv().await, Some(GenerateEvent::Delta { .. })) {}
    let small = finished(&mut engine.generate(request(2, 2))).await;
    large.stop();
    let large = finished(&mut large).await;
    assert!(small < large, "{small} and {large}");
}

#[tokio::test]
async fn a_thousand_requests_leave_no_memory_behind() {
    let (engine, _events) = Engine::start(EngineOptions::default());
    engine.load("tiny-chat", &cairn_tests::tiny_model("llama/tiny-chat")).await.expect("loads");
    engine
        .load_draft("tiny-chat", &cairn_tests::tiny_model("llama/tiny-chat"))
        .await
        .expect("loads");
    // Jobs run in order: when this score is answered, everything before it has ended.
    let settled = async || {
        engine.score(PromptInput::Tokens(vec![1, 2]), 0).await.expect("a score");
        engine.status().borrow().mlx_active_bytes
    };
    an_answer_has_a_peak_of_its_own(&engine).await;
    let loaded = settled().await;
    for hundred in 1..=10 {
        answer(&engine, 100).await;
        assert_eq!(settled().await, loaded, "after {hundred} times 100 requests");
    }
    pressure_frees_what_mlx_holds_for_reuse(&engine).await;
    engine.shutdown().await;
    an_engine_gives_its_limit_to_mlx().await;
}

async fn pressure_frees_what_mlx_holds_for_reuse(engine: &Engine) {
    let array = mlx_rs::Array::zeros::<f32>(&[1 << 20]).expect("an array");
    array.eval().expect("is computed");
    drop(array);
    assert!(memory::cache_bytes() >= 4 << 20, "{} bytes", memory::cache_bytes());
    engine.relieve_memory(MemoryPressure::Warning);
    engine.flush_cache().await;
    assert_eq!(memory::cache_bytes(), 0);
}

/// MLX's own limits follow from the engine's.
async fn an_engine_gives_its_limit_to_mlx() {
    const LIMIT_BYTES: usize = 3 << 30;
    let options =
        EngineOptions { memory_limit_bytes: Some(LIMIT_BYTES as u64), ..EngineOptions::default() };
    let (engine, _events) = Engine::start(options);
    assert_eq!(mlx_rs::memory::memory_limit().expect("a limit"), LIMIT_BYTES);
    // Setting one is the only way to see it.
    let cache_limit = mlx_rs::memory::set_cache_limit(LIMIT_BYTES).expect("a limit");
    assert_eq!(cache_limit, LIMIT_BYTES / 8);
    engine.shutdown().await;
}
