//! Keys and values are in memory once: in a resident conversation, or as contents of chunks that are
//! not on disk yet. Added up by the engine's own counters.

use cairn_engine::{
    ExportRequest, GenerateRequest, Import, MemoryPressure, PromptFileLayout, PromptKind,
};
use cairn_prompt_cache::Owner;
use tempfile::TempDir;

use crate::scripted::Scripted;
use crate::test_engine::{
    BOTH, CacheRows, IN_MEMORY, Talk, TestEngine, ask, fresh_folder, num_in_caches, owner,
};

/// What the scripted model stores of a token: 32 keys and 32 values of four bytes.
const TOKEN_BYTES: u64 = 256;
/// The buffers of a cache grow by so many tokens.
const GROWTH_TOKENS: u64 = 256;

/// A text of several chunks.
fn long_system_prompt(first: &str) -> String {
    format!("{first} {}", "You answer briefly. ".repeat(40))
}

struct Setup {
    engine: TestEngine,
    model: Scripted,
    folder: TempDir,
}

impl Setup {
    async fn new() -> Setup {
        let (model, folder) = (Scripted::endless(), fresh_folder());
        let engine =
            TestEngine::start(model.folder(), folder.path(), BOTH, CacheRows::default()).await;
        Setup { engine, model, folder }
    }

    /// Answers, waits until everything is on disk, and returns how many tokens the caches hold, and
    /// how many came from cache.
    async fn turn(&mut self, talk: &mut Talk, words: &str, owner: &Owner) -> (usize, usize) {
        let answer = self.engine.answer(ask(talk.asking(words), owner)).await;
        assert_eq!(answer.finished.miss, None, "{words}");
        talk.add(words, &answer);
        self.engine.settle().await;
        (num_in_caches(&answer), answer.finished.stats.num_cached_tokens)
    }

    /// Checks that the counted memory is that of resident conversations of so many tokens; the one
    /// that ran last does not count.
    fn check_memory(&self, residents: &[usize], what: &str) {
        let (found, _) = self.engine.handle().view(0).memory;
        let least: u64 = residents.iter().map(|&tokens| tokens as u64 * TOKEN_BYTES).sum();
        let most = least + residents.len() as u64 * 2 * GROWTH_TOKENS * TOKEN_BYTES;
        assert!((least..=most).contains(&found), "{what}: {found}, not {least} to {most}");
        assert_eq!(found, self.engine.engine.status().borrow().cache_memory_bytes, "{what}");
    }

    fn is_in_memory(&self, owner: &Owner) -> bool {
        self.engine.handle().ref_usage(owner).expect("is saved").is_in_memory
    }
}

#[tokio::test]
async fn chunks_of_a_resident_conversation_have_no_contents_in_memory() {
    let mut setup = Setup::new().await;
    let (a, b) = (owner("conversation/a"), owner("conversation/b"));
    let mut talk = Talk::new(&long_system_prompt("A"));
    for words in ["What is a cairn?", "Who builds them?", "How high are they?"] {
        setup.turn(&mut talk, words, &a).await;
        setup.check_memory(&[], words);
        assert!(setup.is_in_memory(&a));
    }
    // A branch: the second question again, in other words.
    let mut branch = Talk(talk.0[..3].to_vec());
    setup.turn(&mut branch, "Why are they built?", &a).await;
    setup.check_memory(&[], "a branch");

    // Another conversation with the same beginning takes a copy of what it shares.
    let (num_a, _) = setup.turn(&mut branch, "And when?", &a).await;
    let mut other = Talk::new(&long_system_prompt("A"));
    let (_, num_cached) = setup.turn(&mut other, "Where are they?", &b).await;
    assert!(num_cached as u64 * TOKEN_BYTES > 100_000, "{num_cached} tokens are shared");
    setup.check_memory(&[num_a], "two conversations");
    assert!(setup.is_in_memory(&a) && setup.is_in_memory(&b));

    // A private chat leaves nothing.
    let before = setup.engine.handle().view(0).num_chunks;
    let private = Talk::new(&long_system_prompt("P")).asking("Who am I?");
    let request = GenerateRequest { use_prompt_cache: false, owner: None, ..ask(private, &a) };
    setup.engine.answer(request).await;
    setup.engine.settle().await;
    setup.check_memory(&[num_a], "a private chat");
    assert_eq!(setup.engine.handle().view(0).num_chunks, before);
    setup.engine.close().await;
}

#[tokio::test]
async fn a_conversation_that_left_memory_comes_back_from_disk() {
    let mut setup = Setup::new().await;
    let (a, b) = (owner("conversation/a"), owner("conversation/b"));
    let (mut one, mut two) =
        (Talk::new(&long_system_prompt("A")), Talk::new(&long_system_prompt("B")));
    let (num_a, _) = setup.turn(&mut one, "What is a cairn?", &a).await;
    let (num_b, _) = setup.turn(&mut two, "What is a cairn?", &b).await;
    setup.check_memory(&[num_a], "both");
    // Room for no conversation but the last.
    setup.engine.engine.set_cache_budgets(BOTH.disk, TOKEN_BYTES);
    setup.engine.settle().await;
    setup.check_memory(&[], "with a small budget");
    assert!(!setup.is_in_memory(&a) && setup.is_in_memory(&b));
    setup.engine.engine.set_cache_budgets(BOTH.disk, BOTH.memory);
    let (num_again, num_cached) = setup.turn(&mut one, "Who builds them?", &a).await;
    assert_eq!(num_cached, num_a, "all of it came back");
    setup.check_memory(&[num_b], "after it came back");

    // A restart finds the same.
    let rows = setup.engine.close().await;
    setup.engine = TestEngine::start(setup.model.folder(), setup.folder.path(), BOTH, rows).await;
    let (_, num_cached) = setup.turn(&mut one, "How high are they?", &a).await;
    assert_eq!(num_cached, num_again);
    setup.engine.close().await;
}

/// Adds a starting point from a file: its contents stay in memory, because no conversation holds
/// them. Returns how many tokens it has.
async fn import(setup: &Setup, of: &Owner) -> usize {
    let engine = &setup.engine.engine;
    let file = setup.folder.path().join("exported.safetensors");
    let export = ExportRequest {
        owner: of.clone(),
        file: file.clone(),
        layout: PromptFileLayout::V0_32,
        kind: PromptKind::Prompt,
        title: "A title".to_owned(),
        made_by: "a test".to_owned(),
        created_at_ms: 7,
    };
    engine.export_prompt(export).await.expect("exports");
    let import = Import { owner: owner("named/imported"), check: false };
    engine.import_prompt_file(&file, import).await.expect("imports").num_tokens
}

#[tokio::test]
async fn memory_pressure_frees_first_what_costs_least() {
    let mut setup = Setup::new().await;
    let (a, b) = (owner("conversation/a"), owner("conversation/b"));
    let (mut one, mut two) =
        (Talk::new(&long_system_prompt("A")), Talk::new(&long_system_prompt("B")));
    let (num_a, _) = setup.turn(&mut one, "What is a cairn?", &a).await;
    let num_imported = import(&setup, &a).await;
    setup.turn(&mut two, "What is a cairn?", &b).await;
    setup.check_memory(&[num_a, num_imported], "before");
    let relieved = async |pressure, contents: usize, num_models: usize| {
        setup.engine.engine.relieve_memory(pressure);
        setup.engine.engine.flush_cache().await;
        let (found, _) = setup.engine.handle().view(0).memory;
        let num_loaded = setup.engine.engine.status().borrow().models.len();
        let expected = (contents as u64 * TOKEN_BYTES, num_models);
        assert_eq!((found, num_loaded), expected, "{pressure:?}");
    };
    setup.engine.engine.relieve_memory(MemoryPressure::Normal);
    setup.check_memory(&[num_a, num_imported], "without pressure");
    // Resident conversations go, and contents of chunks, whose next use would read the disk, stay.
    relieved(MemoryPressure::Warning, num_imported, 1).await;
    relieved(MemoryPressure::Critical, 0, 0).await;
    // Nothing is lost.
    setup.engine.engine.load("model", setup.model.folder()).await.expect("loads");
    let (_, num_cached) = setup.turn(&mut one, "Who builds them?", &a).await;
    assert_eq!(num_cached, num_a);
    setup.engine.close().await;
}

#[tokio::test]
async fn memory_pressure_keeps_conversations_that_are_not_on_disk() {
    let (model, folder) = (Scripted::endless(), fresh_folder());
    let engine =
        TestEngine::start(model.folder(), folder.path(), IN_MEMORY, CacheRows::default()).await;
    let mut talk = Talk::new(&long_system_prompt("A"));
    let a = owner("conversation/a");
    let first = engine.answer(ask(talk.asking("What is a cairn?"), &a)).await;
    talk.add("What is a cairn?", &first);
    engine.engine.relieve_memory(MemoryPressure::Critical);
    engine.engine.load("model", model.folder()).await.expect("loads");
    let next = engine.answer(ask(talk.asking("Who builds them?"), &a)).await;
    assert_eq!(next.finished.stats.num_cached_tokens, num_in_caches(&first));
    engine.close().await;
}
