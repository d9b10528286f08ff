//! Restored conversations equal the computed ones: the same tokens with the same log-probabilities
//! from every tier, and nothing is missing.

use std::path::Path;
use std::sync::LazyLock;

use cairn_chat::SamplingParams;
use cairn_engine::{
    Engine, EngineOptions, ExportRequest, GenerateRequest, Import, KvCacheOptions, KvQuantization,
    PromptFileLayout, PromptKind, Speculation,
};
use cairn_prompt_cache::{ChunkRecord, Owner};
use cairn_sweeps::sweep;
use tempfile::TempDir;

use crate::client::{Answer, finish};
use crate::test_engine::{
    Budgets, CacheRows, IN_MEMORY, ON_DISK, ROOMY, Talk, TestEngine, ask, chat_model,
    chat_model_with_window, fresh_folder, num_in_caches, owner,
};

static OWNER: LazyLock<Owner> = LazyLock::new(|| owner("conversation/1"));
static NEIGHBOUR: LazyLock<Owner> = LazyLock::new(|| owner("conversation/2"));
const QUESTIONS: [&str; 3] = ["LEAD ME HOME", "A MILE NO MAN CAN FIND", "AND HOME IN A CALM LAND"];

/// Longer than a chunk, and far longer than the windows.
fn system() -> String {
    "AID ME, MIND ME, LEAD ME HOME. ".repeat(10)
}

struct Case {
    model: &'static str,
    /// A sliding window instead of the model's own.
    window: Option<usize>,
    quantization: Option<KvQuantization>,
    speculation: Speculation,
    /// Whether a conversation can be restored at each of its tokens.
    can_go_back: bool,
}

impl Case {
    fn ask(&self, talk: &Talk, words: &str, owner: &Owner) -> GenerateRequest {
        let kv_cache =
            KvCacheOptions { max_size: None, quantization: self.quantization, snapkv: None };
        let speculation = self.speculation;
        let asked = ask(talk.asking(words), owner);
        GenerateRequest { kv_cache, speculation, num_top_logprobs: Some(5), ..asked }
    }

    fn model_folder(&self) -> TempDir {
        chat_model_with_window(self.model, self.window)
    }

    fn name(&self) -> String {
        format!(
            "{} {:?} {:?} {:?}",
            self.model,
            self.window,
            self.quantization.map(|quantization| quantization.start),
            self.speculation
        )
    }
}

fn cases() -> Vec<Case> {
    let case = |model, can_go_back| Case {
        model,
        window: None,
        quantization: None,
        speculation: Speculation::Off,
        can_go_back,
    };
    let looked_up = |case| Case { speculation: Speculation::Lookup { num_tokens: 3 }, ..case };
    let quantized = |start| Case {
        quantization: Some(KvQuantization { bits: 8, group_size: 32, start }),
        ..case("qwen3_moe/quant4", true)
    };
    vec![
        case("llama/dense-tied", true),
        case("qwen3_moe/dense", true),
        // A window of 5 tokens, and one that fills up during the second question.
        case("gemma3_text/long-prompt", false),
        Case { window: Some(350), ..case("gemma3_text/pattern3", false) },
        case("gpt_oss/dense", false),
        case("qwen3_next/dense", false),
        // States alone, and beside keys and values of the same layer.
        case("mamba2/dense", false),
        case("falcon_h1/dense", false),
        case("lfm2/dense", false),
        case("granitemoehybrid/dense", false),
        case("jamba/dense", false),
        case("nemotron_h/dense", false),
        case("deepseek_v3/dense", true),
        case("gemma4_text/dense", false),
        quantized(0),
        // Quantization starts in the second question.
        quantized(350),
        looked_up(case("llama/dense-tied", true)),
        looked_up(Case { window: Some(350), ..case("gemma3_text/pattern3", false) }),
        looked_up(case("qwen3_next/dense", false)),
        looked_up(quantized(0)),
    ]
}

/// The answers of an engine without saved chunks: computed from the start each time or, since
/// quantization changes what follows, continued from the resident conversation.
async fn reference(case: &Case, model: &Path) -> Vec<Answer> {
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("model", model).await.expect("loads");
    let mut talk = Talk::new(&system());
    let mut answers = Vec::new();
    for words in QUESTIONS {
        let request = GenerateRequest {
            use_prompt_cache: case.quantization.is_some(),
            speculation: Speculation::Off,
            ..case.ask(&talk, words, &OWNER)
        };
        let answer = finish(&mut engine.generate(request)).await.expect("an answer");
        talk.add(words, &answer);
        answers.push(answer);
    }
    answers
}

fn check_same(found: &Answer, expected: &Answer, what: &str) {
    assert_eq!(found.finished.token_ids, expected.finished.token_ids, "{what}");
    assert_eq!(found.logprobs.len(), expected.logprobs.len(), "{what}");
    for (found, expected) in found.logprobs.iter().zip(&expected.logprobs) {
        let numbers = |token: &cairn_engine::TokenLogprob| -> Vec<f32> {
            std::iter::once(token.logprob).chain(token.top.iter().map(|top| top.logprob)).collect()
        };
        for (found, expected) in numbers(found).into_iter().zip(numbers(expected)) {
            assert!((found - expected).abs() <= 1e-4, "{what}: {found} is not {expected}");
        }
    }
}

/// How the next turn gets the conversation back: from memory, where it stayed resident; from a tier
/// of the prompt cache; from an exported file; or after another conversation lost its chunks.
#[derive(Debug, Clone, Copy)]
enum Restore {
    Resident,
    Memory,
    Disk,
    Export,
    NeighbourPurged,
    NeighbourEvicted,
}

/// Does between two turns what `restore` names.
async fn between(
    restore: Restore,
    case: &Case,
    model: &Path,
    folder: &Path,
    mut harness: TestEngine,
) -> TestEngine {
    match restore {
        Restore::Memory => {
            harness.drop_residents().await;
            harness
        }
        Restore::Resident => {
            // A conversation with the same beginning, and one without.
            harness.answer(case.ask(&Talk::new(&system()), "NO MAN CAN", &NEIGHBOUR)).await;
            let other = owner("conversation/3");
            harness.answer(case.ask(&Talk::new("KNEEL"), "NO MAN CAN", &other)).await;
            harness
        }
        Restore::Disk => TestEngine::start(model, folder, ON_DISK, harness.close().await).await,
        Restore::Export => {
            harness.settle().await;
            move_by_file(model, folder, harness).await.0
        }
        Restore::NeighbourPurged | Restore::NeighbourEvicted => {
            let mut neighbour = Talk::new(&system());
            for words in ["LEAD A KIND MAN", "NO"] {
                let answer = harness.answer(case.ask(&neighbour, words, &NEIGHBOUR)).await;
                neighbour.add(words, &answer);
            }
            harness.settle().await;
            if matches!(restore, Restore::NeighbourPurged) {
                assert!(harness.handle().purge(&NEIGHBOUR) > 0);
            } else {
                let bytes =
                    harness.handle().path(&OWNER).iter().map(ChunkRecord::num_file_bytes).sum();
                harness.handle().pin(&OWNER, true);
                harness.engine.set_cache_budgets(bytes, 0);
                harness.settle().await;
                harness.handle().pin(&OWNER, false);
                harness.engine.set_cache_budgets(ROOMY, 0);
            }
            harness.settle().await;
            let cache_ref = &harness.rows.ref_of(&NEIGHBOUR);
            assert!(
                cache_ref.loss.is_some()
                    && cache_ref.num_tokens
                        < cache_ref.loss.as_ref().map_or(0, |loss| loss.num_tokens)
            );
            harness
        }
    }
}

/// Exports the conversation and imports it into an empty prompt cache; also returns its number of
/// tokens.
async fn move_by_file(model: &Path, folder: &Path, harness: TestEngine) -> (TestEngine, usize) {
    let temp = fresh_folder();
    let file = temp.path().join("exported.safetensors");
    let request = ExportRequest {
        owner: OWNER.clone(),
        file: file.clone(),
        layout: PromptFileLayout::default(),
        kind: PromptKind::Conversation,
        title: "Home".to_owned(),
        made_by: "a test".to_owned(),
        created_at_ms: 1,
    };
    let exported = harness.engine.export_prompt(request).await.expect("exports");
    harness.close().await;
    let _ = std::fs::remove_dir_all(folder);
    let harness = TestEngine::start(model, folder, ON_DISK, CacheRows::default()).await;
    let import = Import { owner: owner("named/1"), check: true };
    let imported = harness.engine.import_prompt_file(&file, import).await.expect("imports");
    assert_eq!(imported.num_tokens, exported.num_tokens);
    (harness, exported.num_tokens)
}

async fn check_restored(restore: Restore, case: &Case, model: &Path, reference: &[Answer]) {
    let temp = fresh_folder();
    let folder = temp.path().join("cache");
    // Without an export, the first turn is only in memory.
    let budgets = if matches!(restore, Restore::Resident | Restore::Memory | Restore::Export) {
        IN_MEMORY
    } else {
        ON_DISK
    };
    let mut harness = TestEngine::start(model, &folder, budgets, CacheRows::default()).await;
    let mut talk = Talk::new(&system());
    let mut held = 0;
    for (words, expected) in QUESTIONS.into_iter().zip(reference) {
        let what = format!("{} by {restore:?}: {words}", case.name());
        let answer = harness.answer(case.ask(&talk, words, &OWNER)).await;
        let found = (answer.finished.stats.num_cached_tokens, &answer.finished.miss);
        assert_eq!(found, (held, &None), "{what}");
        check_same(&answer, expected, &what);
        held = num_in_caches(&answer);
        talk.add(words, &answer);
        harness = between(restore, case, model, &folder, harness).await;
    }
    if matches!(restore, Restore::Resident) {
        // Chunks of a resident conversation count as used too, or they would be evicted as if
        // nobody returned to them.
        let hits = harness.handle().view(1).nodes[0].hits;
        assert!(
            hits >= QUESTIONS.len() as u64 - 1,
            "{}: its beginning was used {hits} times",
            case.name()
        );
    }
}

#[tokio::test]
async fn restored_caches_equal_the_computed_ones() {
    let restores = [
        Restore::Resident,
        Restore::Memory,
        Restore::Disk,
        Restore::Export,
        Restore::NeighbourPurged,
        Restore::NeighbourEvicted,
    ];
    let cases = cases();
    // Two ways for each case; three times as many are all ways.
    for seed in sweep("restored caches", 2 * cases.len() as u64) {
        let (round, number) = (seed as usize / cases.len(), seed as usize % cases.len());
        let restore = restores[(number + round % 2 * 3 + round / 2) % restores.len()];
        let case = &cases[number];
        let model = case.model_folder();
        let reference = reference(case, model.path()).await;
        check_restored(restore, case, model.path(), &reference).await;
    }
}

#[tokio::test]
async fn a_repeated_question_and_another_one_reuse_what_they_share() {
    let cases = cases();
    // One budget for each case; twice as many are both.
    for seed in sweep("repeated questions", cases.len() as u64) {
        let (round, number) = (seed as usize / cases.len(), seed as usize % cases.len());
        let case = &cases[number];
        let budgets = [ON_DISK, IN_MEMORY][(number + round) % 2];
        let model = case.model_folder();
        let reference = reference(case, model.path()).await;
        let temp = fresh_folder();
        let harness =
            TestEngine::start(model.path(), temp.path(), budgets, CacheRows::default()).await;
        let mut talk = Talk::new(&system());
        harness.answer(case.ask(&talk, QUESTIONS[0], &OWNER)).await;
        for turn in 0..2 {
            harness.drop_residents().await;
            let what = format!("{}, {budgets:?}, turn {turn}", case.name());
            let again = harness.answer(case.ask(&talk, QUESTIONS[turn], &OWNER)).await;
            let stats = &again.finished.stats;
            let num_reread = stats.num_prompt_tokens - stats.num_cached_tokens;
            assert!(
                num_reread <= if case.can_go_back { 1 } else { 11 },
                "{what}: {num_reread} tokens were read again"
            );
            if case.quantization.is_none() {
                check_same(&again, &reference[turn], &what);
            }
            // Another question after the same beginning: the system prompt with the template's
            // text around it.
            harness.drop_residents().await;
            let other = harness.answer(case.ask(&Talk::new(&system()), "KNEEL", &NEIGHBOUR)).await;
            let shared = "0:".len() + system().len() + ".\n1:".len();
            let expected = if turn == 0 || !case.can_go_back {
                shared
            } else {
                other.finished.stats.num_prompt_tokens - 1
            };
            let cached = other.finished.stats.num_cached_tokens;
            let fits = if turn == 0 { cached == expected } else { cached + 11 > expected };
            assert!(fits, "{what}: {cached} tokens of {expected}");
            talk.add(QUESTIONS[turn], &again);
            harness.drop_residents().await;
            let next = harness.answer(case.ask(&talk, QUESTIONS[turn + 1], &OWNER)).await;
            assert_eq!(next.finished.stats.num_cached_tokens, num_in_caches(&again), "{what}");
        }
    }
}

#[tokio::test]
async fn a_shorter_question_stays_restorable_beside_a_longer_one_with_the_same_beginning() {
    for case in cases().into_iter().filter(|case| case.quantization.is_none()) {
        let model = case.model_folder();
        let temp = fresh_folder();
        let harness =
            TestEngine::start(model.path(), temp.path(), ON_DISK, CacheRows::default()).await;
        harness
            .answer(case.ask(
                &Talk::new(&system()),
                "LEAD ME HOME IN A CALM LAND, A MILE NO MAN CAN FIND",
                &NEIGHBOUR,
            ))
            .await;
        let mut talk = Talk::new(&system());
        let shorter = harness.answer(case.ask(&talk, "LEAD ME HOME IN A CALM LAND", &OWNER)).await;
        harness.drop_residents().await;
        let again = harness.answer(case.ask(&talk, "LEAD ME HOME IN A CALM LAND", &OWNER)).await;
        let stats = &again.finished.stats;
        assert!(
            stats.num_prompt_tokens - stats.num_cached_tokens <= 11,
            "{}: {} tokens",
            case.name(),
            stats.num_cached_tokens
        );
        check_same(&again, &shorter, &case.name());
        talk.add("LEAD ME HOME IN A CALM LAND", &shorter);
        harness.drop_residents().await;
        let next = harness.answer(case.ask(&talk, "AND", &OWNER)).await;
        assert_eq!(
            next.finished.stats.num_cached_tokens,
            num_in_caches(&shorter),
            "{}",
            case.name()
        );
        assert_eq!(next.finished.miss, None, "{}", case.name());
    }
}

#[tokio::test]
async fn an_earlier_answer_can_be_regenerated_after_all_turns_were_prefilled_at_once() {
    for case in cases().into_iter().filter(|case| case.quantization.is_none()) {
        let model = case.model_folder();
        let reference = reference(&case, model.path()).await;
        let (mut talk, mut before) = (Talk::new(&system()), Vec::new());
        for (words, answer) in QUESTIONS.into_iter().zip(&reference) {
            before.push(talk.clone());
            talk.add(words, answer);
        }
        let temp = fresh_folder();
        let mut harness =
            TestEngine::start(model.path(), temp.path(), ON_DISK, CacheRows::default()).await;
        // All three turns at once, as after a change of the model.
        harness.answer(case.ask(&talk, "ONE MAN", &OWNER)).await;
        for turn in [1, 2, 0] {
            harness.drop_residents().await;
            harness.answer(case.ask(&before[turn], QUESTIONS[turn], &OWNER)).await;
        }
        harness.settle().await;
        let num_chunks = harness.rows.chunks.len();
        for turn in [0, 1, 2] {
            harness.drop_residents().await;
            let again = harness.answer(case.ask(&before[turn], QUESTIONS[turn], &OWNER)).await;
            check_same(&again, &reference[turn], &case.name());
            let held = num_in_caches(&again);
            let stats = again.finished.stats;
            let num_reread = stats.num_prompt_tokens - stats.num_cached_tokens;
            assert!(
                num_reread <= if case.can_go_back { 1 } else { 11 },
                "{} turn {turn}: {num_reread} tokens were read again",
                case.name()
            );
            harness.settle().await;
            assert_eq!(harness.rows.ref_of(&OWNER).num_tokens, held, "{}", case.name());
        }
        assert_eq!(
            harness.rows.chunks.len(),
            num_chunks,
            "{}: nothing is stored twice",
            case.name()
        );
    }
}

#[tokio::test]
async fn the_remainder_after_an_eviction_can_be_exported() {
    for case in cases().into_iter().filter(|case| case.quantization.is_none()) {
        let (model, temp) = (case.model_folder(), fresh_folder());
        let folder = temp.path().join("cache");
        let mut harness =
            TestEngine::start(model.path(), &folder, ON_DISK, CacheRows::default()).await;
        let talk = Talk::new(&system());
        let first = harness.answer(case.ask(&talk, QUESTIONS[0], &OWNER)).await;
        harness.settle().await;
        let end = harness.handle().path(&OWNER).pop().expect("a chunk").key;
        assert!(harness.handle().remove(&end).is_some());
        let (harness, num_tokens) = move_by_file(model.path(), &folder, harness).await;
        let again = harness.answer(case.ask(&talk, QUESTIONS[0], &OWNER)).await;
        check_same(&again, &first, &case.name());
        let stats = again.finished.stats;
        let num_reread = stats.num_prompt_tokens - num_tokens;
        assert!(
            num_reread <= if case.can_go_back { 0 } else { 11 },
            "{}: {num_tokens} tokens",
            case.name()
        );
        assert_eq!(
            stats.num_cached_tokens,
            num_tokens.min(stats.num_prompt_tokens - 1),
            "{}",
            case.name()
        );
    }
}

#[tokio::test]
async fn the_caches_of_batched_sequences_are_saved_separately() {
    for case in cases().into_iter().filter(|case| case.quantization.is_none()) {
        let (model, temp) = (case.model_folder(), fresh_folder());
        let harness =
            TestEngine::start(model.path(), temp.path(), ON_DISK, CacheRows::default()).await;
        let owners = [0, 1, 2].map(|number| Owner::Conversation(number.to_string()));
        let mut talks = [Talk::new(&system()), Talk::new("AID ME"), Talk::new(&system()[..200])];
        let mut held = [0; 3];
        for turn in 0..3 {
            // Each asks something else at the same time, and reuses all of its earlier turns.
            let asked: Vec<&str> = (0..3).map(|number| QUESTIONS[(number + turn) % 3]).collect();
            let request = |number: usize| case.ask(&talks[number], asked[number], &owners[number]);
            let mut answers: Vec<_> =
                (0..3).map(|number| harness.engine.generate(request(number))).collect();
            for (number, generation) in answers.iter_mut().enumerate() {
                let answer = finish(generation).await.expect("an answer");
                let unbatched = harness
                    .answer(GenerateRequest {
                        use_prompt_cache: false,
                        ..case.ask(&talks[number], asked[number], &OWNER)
                    })
                    .await;
                let what = format!("{} turn {turn} of {number}", case.name());
                check_same(&answer, &unbatched, &what);
                let stats = &answer.finished.stats;
                // A row that ends while others continue has run its last token too.
                let expected = held[number]..=held[number] + 1;
                assert!(
                    turn == 0
                        || expected.contains(&stats.num_cached_tokens)
                            && answer.finished.miss.is_none(),
                    "{what}: {stats:?}"
                );
                held[number] = num_in_caches(&answer);
                talks[number].add(asked[number], &answer);
            }
        }
    }
}

/// Sampled turns of a conversation that stays resident, but is dropped from memory every third
/// time.
async fn check_sampled(model: &Path, logit_bias: &[(u32, f32)], num_turns: usize) {
    let temp = fresh_folder();
    let mut harness = TestEngine::start(
        model,
        temp.path(),
        Budgets { disk: ROOMY, memory: 1 << 16 },
        CacheRows::default(),
    )
    .await;
    let mut talk = Talk::new("AID ME AND LEAD ME HOME");
    let mut held = 0;
    for turn in 0..num_turns {
        let words = QUESTIONS[turn % 3];
        let sampling = SamplingParams {
            temperature: 1.0,
            seed: Some(turn as u64),
            logit_bias: logit_bias.iter().copied().collect(),
            ..SamplingParams::default()
        };
        let answer =
            harness.answer(GenerateRequest { sampling, ..ask(talk.asking(words), &OWNER) }).await;
        let found = (answer.finished.stats.num_cached_tokens, &answer.finished.miss);
        let what = format!("{} turn {turn}: {:?}", model.display(), answer.text);
        assert_eq!(found, (held, &None), "{what}");
        held = num_in_caches(&answer);
        talk.add(words, &answer);
        if turn % 3 == 0 {
            harness.engine.forget_conversations().await;
        }
    }
    harness.settle().await;
    assert_eq!(harness.rows.ref_of(&OWNER).num_tokens, held);
}

#[tokio::test]
async fn reuse_survives_sampling() {
    // Its two other special tokens would end an answer or occur in it without text.
    check_sampled(&cairn_tests::tiny_model("llama/tiny-chat"), &[(256, -100.0), (257, -100.0)], 50)
        .await;
    for case in ["gemma3_text/dense", "qwen3_next/dense"] {
        check_sampled(chat_model(case).path(), &[], 20).await;
    }
}
