//! Prompt-cache files of mlx-lm, committed in goldens/prompts: continued directly, imported, and
//! exported again. Each time the answer must be mlx-lm's.

use std::path::{Path, PathBuf};

use cairn_engine::{
    CacheOptions, Engine, EngineOptions, ExportRequest, GenerateRequest, Import, PromptFileLayout,
    PromptKind,
};
use serde::Deserialize;

use crate::client::{finish, request};
use crate::file_parts::Parts;

/// `<case>.json`
#[derive(Deserialize)]
struct Expected {
    prompt: Vec<u32>,
    more: Vec<u32>,
    greedy: Vec<u32>,
}

const OWNER: &str = "named/from-mlx-lm";

struct Exchange {
    engine: Engine,
    folder: tempfile::TempDir,
    expected: Expected,
}

impl Exchange {
    async fn of(model: &str, case: &str) -> Exchange {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().join("model");
        std::fs::create_dir(&place).expect("a folder");
        cairn_tests::copy_tiny_model(model, &place).expect("copies");
        let cache = CacheOptions {
            folder: folder.path().join("stored"),
            disk_budget_bytes: 1 << 30,
            memory_budget_bytes: 0,
            chunks: Vec::new(),
            refs: Vec::new(),
            old_folders: Vec::new(),
            cleanup_lock: None,
        };
        let (engine, _) =
            Engine::start(EngineOptions { cache: Some(cache), ..EngineOptions::default() });
        engine.load("goldens/model", &place).await.expect("loads");
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
            found.finished.stats.cache_note
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
    async fn check(&self, file: &Path, says_tokens: bool) {
        let what = file.file_name().expect("a name").display().to_string();
        let Expected { prompt, more, .. } = &self.expected;
        self.check_answer(self.after_file(file), &what).await;

        let import = Import { owner: OWNER.to_owned(), check: says_tokens };
        let info = self
            .engine
            .import_prompt_file(file, import)
            .await
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(
            (info.num_tokens, info.token_ids.is_some(), info.can_check),
            (prompt.len(), says_tokens, says_tokens),
            "{what}"
        );
        if says_tokens {
            assert_eq!(info.token_ids.as_ref(), Some(prompt), "{what}");
            self.engine.forget_conversations().await;
            self.check_answer(
                request(&[&prompt[..], more].concat(), 1),
                &format!("{what}, imported"),
            )
            .await;
        }

        let exported = self.folder.path().join("exported.safetensors");
        let export = ExportRequest {
            owner: OWNER.to_owned(),
            file: exported.clone(),
            layout: PromptFileLayout::default(),
            kind: info.kind,
            title: "A title".to_owned(),
            made_by: "a test".to_owned(),
            created_at_ms: 7,
        };
        self.engine.export_prompt(export).await.expect("exports");
        self.check_answer(self.after_file(&exported), &format!("{what}, exported")).await;
        let metadata = Parts::read(&exported).metadata;
        let get = |key: &str| metadata.get(&format!("0.{key}")).map(String::as_str);
        // mlx-lm requires it.
        assert_eq!(
            (get("model"), get("tokenizer_config")),
            (Some("goldens/model"), Some("{}")),
            "{what}"
        );
        assert_eq!(get("cairn_token_ids").is_some(), says_tokens, "{what}");
        assert_eq!(get("cairn_kind"), Some(info.kind.as_str()), "{what}");
        let again = self.engine.inspect_prompt_file(&exported).await.expect("is one of ours");
        assert!(
            again.is_model_proven
                && again.title.as_deref() == Some("A title")
                && again.created_at_ms == Some(7),
            "{again:?}"
        );

        let window = self.engine.cache().expect("caches are stored");
        self.engine.forget_conversations().await;
        window.purge(OWNER);
        window.remove_ref(OWNER);
        window.clear();
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
