//! Answers, prompts and log-probabilities against `goldens/starter.json`, made by mlx-lm; with the
//! KV cache empty, in memory and on disk.

use std::sync::Arc;
use std::sync::OnceLock;

use cairn_chat::{Message, Role, assemble};
use cairn_engine::{
    CacheOptions, Engine, EngineOptions, FinishedGeneration, GenerateEvent, GenerateRequest,
    PromptInput, Score, TokenLogprob,
};
use cairn_lm::Tokenizer;
use cairn_prompt_cache::{CacheChange, ChunkRecord};
use serde_json::Value;

/// Rounding in the golden, and another order of summation.
const TOLERANCE: f32 = 2e-3;

/// A turn of the golden.
struct Turn {
    messages: Vec<Message>,
    prompt_tokens: Vec<u32>,
    tokens: Vec<u32>,
    text: String,
    /// How far the best log-probability is ahead of the second, per token.
    gaps: Vec<f32>,
}

fn turns() -> [Turn; 2] {
    let json = std::fs::read(cairn_tests::goldens().join("starter.json")).expect("starter.json");
    let json: Value = serde_json::from_slice(&json).expect("JSON");
    let ids = |value: &Value| {
        value.as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
    };
    [0, 1].map(|index| {
        let turn = &json["turns"][index];
        let messages =
            turn["messages"].as_array().expect("messages").iter().map(|message| Message {
                role: if message["role"] == "user" { Role::User } else { Role::Assistant },
                content: message["content"].as_str().expect("words").to_owned(),
                token_ids: None,
            });
        Turn {
            messages: messages.collect(),
            prompt_tokens: ids(&turn["prompt_tokens"]),
            tokens: ids(&turn["tokens"]),
            text: turn["text"].as_str().expect("text").to_owned(),
            gaps: turn["gaps"]
                .as_array()
                .expect("gaps")
                .iter()
                .map(|gap| gap.as_f64().expect("a number") as f32)
                .collect(),
        }
    })
}

struct Answer {
    text: String,
    logprobs: Vec<TokenLogprob>,
    finished: FinishedGeneration,
}

/// The results that the tests check. They are computed once, because loading the model takes long.
struct Observed {
    first: Answer,
    /// The second turn, right after the first.
    from_memory: Answer,
    /// The second turn in a new engine that has the first turn's files.
    from_disk: Answer,
    /// The first turn's prompt and answer, in the new engine.
    score: Score,
    /// The first turn's prompt.
    prompt_score: Score,
}

fn observed() -> &'static Observed {
    static OBSERVED: OnceLock<Observed> = OnceLock::new();
    OBSERVED.get_or_init(|| {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime")
            .block_on(observe())
    })
}

async fn observe() -> Observed {
    let [turn, second] = turns();
    let folder = tempfile::tempdir().expect("a folder");
    let start = async |chunks: Vec<ChunkRecord>| {
        let cache = CacheOptions {
            folder: folder.path().to_owned(),
            disk_budget_bytes: 1 << 30,
            memory_budget_bytes: 0,
            chunks,
            refs: Vec::new(),
            old_folders: Vec::new(),
            cleanup_lock: None,
        };
        let (engine, events) =
            Engine::start(EngineOptions { cache: Some(cache), ..EngineOptions::default() });
        engine.load("starter", cairn_tests::starter_model()).await.expect("loads");
        (engine, events)
    };

    let (engine, mut events) = start(Vec::new()).await;
    let first = answer(&engine, &turn.messages, turn.tokens.len()).await;
    engine.flush_cache().await;
    let mut rows = Vec::new();
    while let Ok(event) = events.try_recv() {
        let CacheChange::Written(row) = event else { panic!("{event:?} of an empty cache") };
        rows.push(row);
    }
    let mut messages = second.messages.clone();
    messages[0].token_ids = Some(first.finished.new_prompt_ids.clone());
    messages[1].token_ids = Some(first.finished.token_ids.clone());
    let from_memory = answer(&engine, &messages, second.tokens.len()).await;
    engine.shutdown().await;

    // The second turn's files have no rows here, as if the app had crashed after the first.
    let (engine, _events) = start(rows).await;
    let from_disk = answer(&engine, &messages, second.tokens.len()).await;
    let score = async |tokens: Vec<u32>| {
        engine.score(PromptInput::Tokens(tokens), 2).await.expect("a score")
    };
    let prompt_score = score(turn.prompt_tokens.clone()).await;
    let score = score([turn.prompt_tokens, turn.tokens].concat()).await;
    engine.shutdown().await;
    Observed { first, from_memory, from_disk, score, prompt_score }
}

async fn answer(engine: &Engine, messages: &[Message], max_tokens: usize) -> Answer {
    let prompt = PromptInput::Messages(messages.to_vec());
    let mut generation = engine.generate(GenerateRequest {
        max_tokens,
        num_top_logprobs: Some(2),
        ..GenerateRequest::new(prompt)
    });
    let (mut text, mut logprobs) = (String::new(), Vec::new());
    loop {
        match generation.recv().await.expect("an event") {
            GenerateEvent::SoFar(_) | GenerateEvent::Prefill { .. } => {}
            GenerateEvent::Delta { text: piece, logprob, .. } => {
                text.push_str(&piece);
                logprobs.extend(logprob);
            }
            GenerateEvent::Finished(finished) => {
                text.push_str(&finished.text);
                return Answer { text, logprobs, finished: *finished };
            }
            GenerateEvent::Failed(error) => panic!("{error}"),
        }
    }
}

/// An answer's tokens, text and lead of each token are the golden's; `num_cached` tokens of its
/// prompt were not computed.
fn check(answer: &Answer, turn: &Turn, num_cached: usize) {
    assert_eq!(answer.finished.token_ids, turn.tokens);
    assert_eq!(answer.text, turn.text);
    assert_eq!(answer.logprobs.len(), turn.gaps.len());
    for (index, (logprob, gap)) in answer.logprobs.iter().zip(&turn.gaps).enumerate() {
        assert_eq!((logprob.token, logprob.top[0].token), (turn.tokens[index], turn.tokens[index]));
        let found = logprob.top[0].logprob - logprob.top[1].logprob;
        assert!((found - gap).abs() < TOLERANCE, "token {index} leads by {found}, not {gap}");
    }
    let stats = &answer.finished.stats;
    assert_eq!(
        (stats.num_prompt_tokens, stats.num_cached_tokens, &answer.finished.miss),
        (turn.prompt_tokens.len(), num_cached, &None)
    );
}

#[test]
fn the_first_answer_is_mlx_lms() {
    let [turn, _] = turns();
    check(&observed().first, &turn, 0);
    assert_eq!(observed().first.finished.new_prompt_ids, turn.prompt_tokens);
}

#[test]
fn the_second_answer_is_mlx_lms_with_the_first_turn_in_memory_or_on_disk() {
    let [first, second] = turns();
    // The last token of the first answer was sampled and not run.
    let num_cached = first.prompt_tokens.len() + first.tokens.len() - 1;
    check(&observed().from_memory, &second, num_cached);
    check(&observed().from_disk, &second, num_cached);
}

#[test]
fn prompts_are_those_of_hugging_face() {
    let folder = cairn_tests::starter_model();
    let tokenizer = Tokenizer::load(folder).expect("the tokenizer");
    let template = tokenizer.chat_template().expect("a template");
    for turn in turns() {
        let prompt = assemble(template, &turn.messages, &tokenizer).expect("a prompt");
        assert_eq!(prompt.tokens, turn.prompt_tokens);
    }
}

#[test]
fn streamed_text_is_the_decoded_text() {
    let tokenizer = Arc::new(Tokenizer::load(cairn_tests::starter_model()).expect("the tokenizer"));
    // A prompt with emoji, code and broken lines, and every token once.
    let text = "Naïve 👩‍👧 — 日本語\r\n\tfn main() { println!(\"…\"); }\n\n  two  spaces ";
    let all: Vec<u32> = (17..49_152).collect();
    for ids in [tokenizer.encode_prompt(text).expect("encodes"), all] {
        let mut stream = tokenizer.stream();
        let mut pieces: String =
            ids.iter().map(|&id| stream.push(id).expect("a piece").text).collect();
        pieces.push_str(&stream.finish().expect("the rest").text);
        let whole = cairn_chat::Encode::decode(tokenizer.as_ref(), &ids).expect("decodes");
        assert!(pieces == whole, "{} ids", ids.len());
    }
}

#[test]
fn scores_are_finite_and_agree_with_the_answer() {
    let [turn, _] = turns();
    let Observed { first, score, prompt_score, .. } = observed();
    let num_prompt = turn.prompt_tokens.len();
    assert_eq!(score.tokens[num_prompt..], turn.tokens);
    assert_eq!((score.logprobs.len(), score.logprobs[0]), (score.tokens.len(), None));
    assert!(
        score.logprobs[1..]
            .iter()
            .all(|logprob| logprob.is_some_and(|logprob| logprob.is_finite() && logprob <= 0.0))
    );
    for (scored, sampled) in score.logprobs[num_prompt..].iter().zip(&first.logprobs) {
        let scored = scored.expect("a number");
        assert!(
            (scored - sampled.logprob).abs() < TOLERANCE,
            "{scored} scored, {} sampled",
            sampled.logprob
        );
    }
    assert_eq!(prompt_score.next.len(), 2);
    assert_eq!((prompt_score.next[0].0, first.logprobs[0].token), (turn.tokens[0], turn.tokens[0]));
    assert!((prompt_score.next[0].1 - first.logprobs[0].logprob).abs() < TOLERANCE);
    for (prompt_only, with_answer) in prompt_score.logprobs.iter().zip(&score.logprobs).skip(1) {
        assert!(
            (prompt_only.expect("a number") - with_answer.expect("a number")).abs() < TOLERANCE,
            "{prompt_only:?} without the answer, {with_answer:?} with it"
        );
    }
}
