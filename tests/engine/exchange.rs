//! Prompt-cache files of mlx-lm, committed in goldens/prompts: continued directly, imported, and
//! exported again. Each time the answer must be mlx-lm's.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use cairn_engine::{Engine, ExportRequest, GenerateRequest, Import, PromptFileLayout, PromptKind};
use cairn_prompt_cache::Owner;
use serde::Deserialize;

use crate::client::{finish, request};
use crate::file_parts::Parts;
use crate::test_engine::{engine_with_disk_cache, owner};

/// `<case>.json`: the tokens in the file, a continuation, and mlx-lm's greedy answer to both.
#[derive(Deserialize)]
struct Expected {
    prompt: Vec<u32>,
    more: Vec<u32>,
    greedy: Vec<u32>,
}

static OWNER: LazyLock<Owner> = LazyLock::new(|| owner("named/from-mlx-lm"));

/// An engine with the model of a case.
struct Exchange {
    engine: Engine,
    folder: tempfile::TempDir,
    expected: Expected,
}

impl Exchange {
    async fn of(model: &str, case: &str) -> Exchange {
        let folder = tempfile::tempdir().expect("a folder");
        let model_folder = folder.path().join("model");
        std::fs::create_dir(&model_folder).expect("a folder");
        cairn_tests::copy_tiny_model(model, &model_folder).expect("copies");
        let engine = engine_with_disk_cache(&folder.path().join("stored"));
        engine.load("goldens/model", &model_folder).await.expect("loads");
        let expected = std::fs::read(golden(&format!("{case}.json"))).expect("the golden");
        Exchange { engine, folder, expected: serde_json::from_slice(&expected).expect("reads") }
    }

    /// Checks the answer to the case's question after the file or the imported prompt.
    async fn check_answer(&self, request: GenerateRequest, what: &str) {
        let request =
            GenerateRequest { max_tokens: self.expected.greedy.len(), ignore_eos: true, ..request };
        let found = finish(&mut self.engine.generate(request))
            .await
            .unwrap_or_else(|failure| panic!("{what}: {}", failure.message));
        assert_eq!(found.finished.token_ids, self.expected.greedy, "{what}");
        assert_eq!(
            found.finished.stats.num_cached_tokens,
            self.expected.prompt.len(),
            "{what}: {:?}",
            found.finished.miss
        );
    }

    fn after_file(&self, file: &Path) -> GenerateRequest {
        GenerateRequest {
            prompt_cache_file: Some(file.to_owned()),
            use_prompt_cache: false,
            ..request(&self.expected.more, 1)
        }
    }

    /// Continues `file`, imports it, continues that, exports it and continues the export.
    async fn check(&self, file: &Path, lists_tokens: bool) {
        let what = file.file_name().expect("a name").display().to_string();
        self.check_answer(self.after_file(file), &what).await;
        let kind = self.check_import(file, lists_tokens, &what).await;

        let exported = self.export(kind).await;
        self.check_answer(self.after_file(&exported), &format!("{what}, exported")).await;
        self.check_metadata(&exported, kind, lists_tokens, &what).await;
        self.clear().await;
    }

    /// Imports `file` and continues the imported prompt; returns its kind.
    async fn check_import(&self, file: &Path, lists_tokens: bool, what: &str) -> PromptKind {
        let Expected { prompt, more, .. } = &self.expected;
        let import = Import { owner: OWNER.clone(), check: lists_tokens };
        let info = self
            .engine
            .import_prompt_file(file, import)
            .await
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(
            (info.num_tokens, info.token_ids.is_some(), info.can_check),
            (prompt.len(), lists_tokens, lists_tokens),
            "{what}"
        );
        if lists_tokens {
            assert_eq!(info.token_ids.as_ref(), Some(prompt), "{what}");
            self.engine.forget_conversations().await;
            let whole = [&prompt[..], more].concat();
            self.check_answer(request(&whole, 1), &format!("{what}, imported")).await;
        }
        info.kind
    }

    async fn export(&self, kind: PromptKind) -> PathBuf {
        let file = self.folder.path().join("exported.safetensors");
        let export = ExportRequest {
            owner: OWNER.clone(),
            file: file.clone(),
            layout: PromptFileLayout::default(),
            kind,
            title: "A title".to_owned(),
            made_by: "a test".to_owned(),
            created_at_ms: 7,
        };
        self.engine.export_prompt(export).await.expect("exports");
        file
    }

    /// Checks what an exported file says about itself.
    async fn check_metadata(
        &self,
        exported: &Path,
        kind: PromptKind,
        lists_tokens: bool,
        what: &str,
    ) {
        let metadata = Parts::read(exported).metadata;
        let get = |key: &str| metadata.get(&format!("0.{key}")).map(String::as_str);
        // mlx-lm does not load a file without these two.
        assert_eq!(
            (get("model"), get("tokenizer_config")),
            (Some("goldens/model"), Some("{}")),
            "{what}"
        );
        assert_eq!(get("cairn_token_ids").is_some(), lists_tokens, "{what}");
        assert_eq!(get("cairn_kind"), Some(kind.as_str()), "{what}");
        let info = self.engine.inspect_prompt_file(exported).await.expect("is one of ours");
        assert!(
            info.is_model_proven
                && info.title.as_deref() == Some("A title")
                && info.created_at_ms == Some(7),
            "{info:?}"
        );
    }

    /// Empties the prompt cache.
    async fn clear(&self) {
        self.engine.forget_conversations().await;
        let cache = self.engine.cache().expect("a prompt cache");
        cache.purge(&OWNER);
        cache.remove_ref(&OWNER);
        cache.clear();
    }
}

fn golden(name: &str) -> PathBuf {
    cairn_tests::goldens().join("prompts").join(name)
}

#[tokio::test]
async fn files_of_mlx_lm_are_continued_as_mlx_lm_does() {
    for (model, case, has_old) in [
        ("llama/tiny-chat", "tiny-chat", true),
        ("gemma3_text/long-prompt", "gemma3_text", true),
        ("qwen3_next/dense", "qwen3_next", false),
        ("deepseek_v3/dense", "deepseek_v3", false),
    ] {
        let exchange = Exchange::of(model, case).await;
        let plain = golden(&format!("{case}.safetensors"));
        let info = exchange.engine.inspect_prompt_file(&plain).await.expect("is read");
        assert_eq!(
            (info.kind, info.is_model_proven, info.title),
            (PromptKind::Prompt, false, None),
            "what says nothing is a prompt"
        );
        assert_eq!(info.model, format!("goldens/{case}"));
        exchange.check(&plain, false).await;

        let told = golden(&format!("{case}-told.safetensors"));
        let info = exchange.engine.inspect_prompt_file(&told).await.expect("is read");
        assert_eq!(info.kind, PromptKind::Conversation);
        assert_eq!(
            (info.title, info.made_by.as_deref()),
            (Some(format!("What {case} was told")), Some("mlx-lm 0.32.0"))
        );
        exchange.check(&told, true).await;

        if has_old {
            exchange.check(&golden(&format!("old-{case}.safetensors")), false).await;
        }
    }
}
