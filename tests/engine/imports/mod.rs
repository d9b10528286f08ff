//! Imports of prompt-cache files that are damaged or forged.

mod refusals;
mod verification;

use std::path::PathBuf;
use std::sync::LazyLock;

use cairn_engine::{
    CachePromptRequest, Engine, Import, KvCacheOptions, KvQuantization, PromptFileLayout,
    PromptInput,
};
use cairn_prompt_cache::Owner;
use tempfile::TempDir;

use crate::file_parts::Parts;
use crate::test_engine::{engine_with_disk_cache, owner};

static OWNER: LazyLock<Owner> = LazyLock::new(|| owner("named/import"));

/// An engine with a prompt cache on disk, a model, and a prompt-cache file that this model made.
struct ImportFixture {
    engine: Engine,
    folder: TempDir,
    file: PathBuf,
    /// The tokens whose caches the file holds.
    tokens: Vec<u32>,
    /// The undamaged file.
    parts: Parts,
}

impl ImportFixture {
    async fn of(case: &str, num_tokens: u32, kv_cache: KvCacheOptions) -> ImportFixture {
        let folder = tempfile::tempdir().expect("a folder");
        let model = folder.path().join("model");
        std::fs::create_dir(&model).expect("a folder");
        cairn_tests::copy_tiny_model(case, &model).expect("copies");
        let engine = engine_with_disk_cache(&folder.path().join("stored"));
        engine.load("org/model", &model).await.expect("loads");
        // Different tokens, so that their keys and values differ.
        let tokens: Vec<u32> = (0..num_tokens).map(|index| 2 + index * 37 % 71).collect();
        let file = folder.path().join("file.safetensors");
        let request = CachePromptRequest {
            prompt: PromptInput::Tokens(tokens.clone()),
            kv_cache,
            prefill_step_size: 16,
            file: file.clone(),
            layout: PromptFileLayout::default(),
            model_name: "org/model".to_owned(),
        };
        engine.cache_prompt(request, |_, _| {}).await.expect("written");
        let parts = Parts::read(&file);
        ImportFixture { engine, folder, file, tokens, parts }
    }

    /// Imports the file; returns its number of tokens, or why it was refused.
    async fn import(&self, verify: bool) -> Result<usize, String> {
        let import = Import { owner: OWNER.clone(), check: verify };
        self.engine
            .import_prompt_file(&self.file, import)
            .await
            .map(|info| info.num_tokens)
            .map_err(|error| error.to_string())
    }

    /// Checks that the prompt cache and its folder are empty.
    async fn check_is_empty(&self, what: &str) {
        self.engine.flush_cache().await;
        let cache = self.engine.cache().expect("a prompt cache");
        assert_eq!(
            (cache.view(10).num_chunks, cache.ref_usages().len()),
            (0, 0),
            "{what} leaves something behind"
        );
        let stored = self.folder.path().join("stored");
        let files = std::fs::read_dir(stored)
            .into_iter()
            .flatten()
            .flatten()
            .flat_map(|model| std::fs::read_dir(model.path()));
        assert_eq!(files.flatten().count(), 0, "{what} leaves files behind");
    }

    /// Removes the imported chunks and checks that nothing of them is left.
    async fn clear(&self) {
        self.engine.forget_conversations().await;
        let cache = self.engine.cache().expect("a prompt cache");
        cache.purge(&OWNER);
        cache.remove_ref(&OWNER);
        cache.clear();
        self.check_is_empty("clearing").await;
    }

    /// Checks that the file is refused, both inspected and imported, with one sentence that
    /// contains `expected`.
    async fn check_refused(&self, expected: &str) {
        let refusal =
            self.engine.inspect_prompt_file(&self.file).await.err().map(|error| error.to_string());
        assert_sentence(
            refusal.unwrap_or_else(|| format!("it is shown, but should be refused: {expected}")),
            expected,
        );
        self.check_not_imported(expected).await;
    }

    /// Checks that the file is refused with `expected` after its arrays are damaged. Inspecting it
    /// succeeds, because that reads only the header.
    async fn check_damaged_arrays(&self, damage: impl FnOnce(&mut Parts), expected: &str) {
        let mut parts = self.parts.clone();
        damage(&mut parts);
        parts.write(&self.file);
        self.engine.inspect_prompt_file(&self.file).await.expect("the header is intact");
        self.check_not_imported(expected).await;
    }

    async fn check_not_imported(&self, expected: &str) {
        assert_sentence(
            self.import(false).await.err().unwrap_or_else(|| format!("it is imported: {expected}")),
            expected,
        );
        self.check_is_empty(expected).await;
    }

    /// Checks that a file of these bytes is refused with `expected`.
    async fn check_bytes(&self, bytes: impl AsRef<[u8]>, expected: &str) {
        std::fs::write(&self.file, bytes).expect("written");
        self.check_refused(expected).await;
    }

    /// Checks that the file is refused with `expected` after `damage`.
    async fn check_damaged(&self, damage: impl FnOnce(&mut Parts), expected: &str) {
        let mut parts = self.parts.clone();
        damage(&mut parts);
        self.check_bytes(parts.bytes(), expected).await;
    }
}

/// Checks that an error names the file, says what to do, and fits one line.
fn assert_sentence(message: String, expected: &str) {
    assert!(message.contains(expected), "expected {expected:?}, found {message:?}");
    assert!(message.contains("file.safetensors"), "{message:?} names no file");
    assert!(
        message.len() < 700 && !message.chars().any(char::is_control),
        "{message:?} is no sentence"
    );
    let advice = [
        "make the file anew",
        "make a shorter one",
        "load that one",
        "download or import it again",
        "choose",
        "cannot read",
        "update Cairn",
        "as `cairn generate",
    ];
    assert!(
        advice.iter().any(|advice| message.contains(advice)),
        "{message:?} does not say what to do"
    );
}

fn plain() -> KvCacheOptions {
    KvCacheOptions::default()
}

fn quantized(bits: i32, group_size: i32) -> KvCacheOptions {
    KvCacheOptions {
        max_size: None,
        quantization: Some(KvQuantization { bits, group_size, start: 0 }),
        snapkv: None,
    }
}
