//! Conversations that start from a stored prompt cache: each answer equals the one to the whole
//! prompt, and nothing is computed twice.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cairn_chat::{Message, Role};
use cairn_engine::{
    CachePromptRequest, Engine, GenerateRequest, Import, KvCacheOptions, KvQuantization,
    PromptInput, PromptKind, PromptPrefix, Speculation,
};
use cairn_lm::cache::{PromptFileLayout, load_prompt_cache, save_prompt_cache};
use cairn_prompt_cache::{KvFormat, Provenance};
use serde_json::json;
use tempfile::TempDir;

use crate::client::{Answer, Failure, finish, request};
use crate::scripted::{Scripted, models, text_ids};
use crate::test_engine::{BOTH, CacheRows, TestEngine, owner};

/// An engine with both tiers of the prompt cache, which can be restarted.
struct App {
    harness: TestEngine,
    model: PathBuf,
    folder: TempDir,
}

impl App {
    async fn start(model: &Path) -> App {
        let folder = tempfile::tempdir().expect("a folder");
        let harness =
            TestEngine::start(model, &folder.path().join("cache"), BOTH, CacheRows::default())
                .await;
        App { harness, model: model.to_owned(), folder }
    }

    async fn restart(self) -> App {
        let App { harness, model, folder } = self;
        let rows = harness.close().await;
        let harness = TestEngine::start(&model, &folder.path().join("cache"), BOTH, rows).await;
        App { harness, model, folder }
    }

    fn engine(&self) -> &Engine {
        &self.harness.engine
    }

    async fn answer(&self, request: GenerateRequest) -> Result<Answer, Failure> {
        finish(&mut self.engine().generate(request)).await
    }

    /// Imports a file of `tokens` as mlx-lm writes it, without the token ids.
    async fn import(&self, tokens: &[u32], kv_cache: KvCacheOptions) -> PromptPrefix {
        let file = self.folder.path().join("foreign");
        self.cache_prompt(tokens, kv_cache, &file).await;
        let (caches, _) = load_prompt_cache(&file).expect("reads");
        save_prompt_cache(&file, &caches, &BTreeMap::new(), PromptFileLayout::V0_32)
            .expect("saves");
        self.import_file(&file).await
    }

    async fn cache_prompt(&self, tokens: &[u32], kv_cache: KvCacheOptions, file: &Path) {
        let prompt = PromptInput::Tokens(tokens.to_vec());
        let request = CachePromptRequest {
            prompt,
            kv_cache,
            prefill_step_size: 64,
            file: file.to_owned(),
            layout: PromptFileLayout::default(),
            model_name: "model".to_owned(),
        };
        self.engine().cache_prompt(request, |_, _| {}).await.expect("written");
    }

    async fn import_file(&self, file: &Path) -> PromptPrefix {
        let info = self
            .engine()
            .import_prompt_file(file, Import { owner: owner("named/1"), check: false })
            .await
            .expect("imports");
        PromptPrefix {
            token_ids: info.token_ids,
            num_tokens: info.num_tokens,
            kind: info.kind,
            kv_format: info.namespace.kv_format,
            provenance: info.namespace.provenance,
        }
    }
}

fn message(role: Role, content: &str) -> Message {
    Message { role, content: content.to_owned(), token_ids: None }
}

fn ask(prefix: &PromptPrefix, messages: &[Message]) -> GenerateRequest {
    let prompt = PromptInput::After { prefix: prefix.clone(), messages: messages.to_vec() };
    GenerateRequest { max_tokens: 12, kv_cache: prefix.kv_cache(), ..GenerateRequest::new(prompt) }
}

fn question(words: &str) -> Vec<Message> {
    vec![message(Role::User, words)]
}

fn known(token_ids: &[u32], kind: PromptKind) -> PromptPrefix {
    PromptPrefix {
        num_tokens: token_ids.len(),
        token_ids: Some(token_ids.to_vec()),
        kind,
        kv_format: KvFormat::Plain,
        provenance: Provenance::Computed,
    }
}

async fn tokenize(engine: &Engine, text: &str) -> Vec<u32> {
    engine.tokenize(text).await.expect("tokens")
}

/// Asks four questions after a prefix of `tokens`; `before` is the text that the template puts
/// between the prefix and the first question.
async fn check_conversation(
    mut app: App,
    tokens: &[u32],
    prefix: &PromptPrefix,
    before: &str,
    restarts: bool,
) {
    let is_opaque = prefix.token_ids.is_none();
    let mut messages = Vec::new();
    let (mut read, mut num_in_caches) = (tokens.to_vec(), if is_opaque { tokens.len() } else { 0 });
    for words in ["And then?", " Why? ", "<|im_end|>", &"again ".repeat(80)] {
        messages.push(message(Role::User, words));
        let Answer { text, finished, .. } =
            app.answer(ask(prefix, &messages)).await.expect("an answer");
        let prompt = [&read[..], &finished.new_prompt_ids].concat();
        let whole = GenerateRequest { use_prompt_cache: false, ..request(&prompt, 12) };
        let expected = app.answer(whole).await.expect("an answer").finished;
        assert_eq!(finished.token_ids, expected.token_ids, "{words}");
        assert_eq!(
            (finished.stats.num_prompt_tokens, finished.stats.num_cached_tokens),
            (prompt.len(), num_in_caches),
            "{words}"
        );
        // A prefix that is no longer saved is computed again, and the note says so.
        assert_eq!(finished.miss.is_some(), num_in_caches == 0, "{words}");
        if messages.len() == 1 {
            let new = app
                .engine()
                .decode(None, vec![finished.new_prompt_ids.clone()])
                .await
                .expect("a text")
                .remove(0);
            assert_eq!(new, format!("{before}{words}<|im_end|>\n<|im_start|>assistant\n"));
        }
        // The last token before the limit is sampled and not run.
        num_in_caches = prompt.len() + finished.token_ids.len().min(11);
        read = [&prompt[..], &finished.token_ids].concat();
        messages.last_mut().expect("a question").token_ids = Some(finished.new_prompt_ids);
        messages.push(Message {
            token_ids: Some(finished.token_ids),
            ..message(Role::Assistant, &text)
        });
        if restarts {
            app = app.restart().await;
        } else if is_opaque {
            // From the chunks in memory.
            app.engine().forget_conversations().await;
        }
    }
}

#[tokio::test]
async fn answers_after_a_prefix_equal_those_to_the_whole_prompt_and_reuse_every_turn() {
    let (_models, folders) = models();
    let document = "A long text. ".repeat(40);
    let closed = "Who?<|im_end|>\n<|im_start|>assistant\nA mason.";
    let cases = [
        (document.clone(), PromptKind::Prompt, ""),
        (closed.to_owned(), PromptKind::Conversation, "<|im_end|>\n<|im_start|>user\n"),
        (format!("{closed}<"), PromptKind::Conversation, "<|im_end|>\n<|im_start|>user\n"),
        (format!("{closed}<|im_end|>"), PromptKind::Conversation, "\n<|im_start|>user\n"),
        (format!("{closed}<|im_end|>\n"), PromptKind::Conversation, "<|im_start|>user\n"),
    ];
    for model in &folders {
        for (restarts, (text, kind, before)) in [false, true]
            .into_iter()
            .flat_map(|restarts| cases.iter().map(move |case| (restarts, case)))
        {
            let app = App::start(model).await;
            let tokens = tokenize(app.engine(), &format!("<|im_start|>user\n{text}")).await;
            check_conversation(app, &tokens, &known(&tokens, *kind), before, restarts).await;
        }
    }
}

#[tokio::test]
async fn a_file_without_token_ids_can_be_continued() {
    let (_models, folders) = models();
    for model in &folders {
        for restarts in [false, true] {
            let app = App::start(model).await;
            // Longer than a chunk.
            let open = tokenize(
                app.engine(),
                &format!("<|im_start|>user\n{}", "A long text. ".repeat(40)),
            )
            .await;
            let prefix = app.import(&open, KvCacheOptions::default()).await;
            assert_eq!(
                (prefix.token_ids.as_ref(), prefix.num_tokens, prefix.kind),
                (None, open.len(), PromptKind::Prompt)
            );
            check_conversation(app, &open, &prefix, "", restarts).await;
        }
    }
}

/// A golden whose vocabulary contains only the digits of the tokenizer's ids.
fn golden(case: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    cairn_tests::copy_tiny_model(case, folder.path()).expect("copies");
    let template = "{% for m in messages %}{{ '(' if m.role == 'user' else '>' }}{{ m.content }}){% endfor %}{{ '>' if add_generation_prompt }}";
    std::fs::write(
        folder.path().join("tokenizer_config.json"),
        json!({ "chat_template": template }).to_string(),
    )
    .expect("writes");
    folder
}

#[tokio::test]
async fn imports_with_windows_and_states_can_be_continued() {
    for case in ["gemma3_text/long-prompt", "gpt_oss/dense", "qwen3_next/dense", "llama/dense-tied"]
    {
        let folder = golden(case);
        let mut app = App::start(folder.path()).await;
        // Longer than the window, and than a chunk.
        let open = tokenize(app.engine(), &format!("({}", "1 + 2 = 3. ".repeat(40))).await;
        for prefix in
            [known(&open, PromptKind::Prompt), app.import(&open, KvCacheOptions::default()).await]
        {
            let mut num_in_caches = if prefix.token_ids.is_some() { 0 } else { open.len() };
            let (mut messages, mut read) = (Vec::new(), open.clone());
            for words in ["4?", "5 + 6?", "7"] {
                messages.push(message(Role::User, words));
                // The template does not show how an answer ended.
                let asked = GenerateRequest { ignore_eos: true, ..ask(&prefix, &messages) };
                let Answer { text, finished, .. } = app.answer(asked).await.expect("an answer");
                let prompt = [&read[..], &finished.new_prompt_ids].concat();
                let whole = GenerateRequest {
                    ignore_eos: true,
                    use_prompt_cache: false,
                    ..request(&prompt, 12)
                };
                let expected = app.answer(whole).await.expect("an answer").finished;
                assert_eq!(finished.token_ids, expected.token_ids, "{case}: {words}");
                let stats = &finished.stats;
                assert_eq!(
                    (stats.num_prompt_tokens, stats.num_cached_tokens),
                    (prompt.len(), num_in_caches),
                    "{case}: {words}"
                );
                num_in_caches = prompt.len() + 11;
                read = [&prompt[..], &finished.token_ids].concat();
                messages.last_mut().expect("a question").token_ids = Some(finished.new_prompt_ids);
                messages.push(Message {
                    token_ids: Some(finished.token_ids),
                    ..message(Role::Assistant, &text)
                });
                app = app.restart().await;
            }
        }
    }
}

#[tokio::test]
async fn quantized_files_stay_quantized_and_can_be_continued() {
    let folder = golden("qwen3_moe/quant4");
    let kv_cache = KvCacheOptions {
        max_size: None,
        quantization: Some(KvQuantization { bits: 8, group_size: 32, start: 0 }),
        snapkv: None,
    };
    for is_known in [true, false] {
        let mut app = App::start(folder.path()).await;
        let open = tokenize(app.engine(), &format!("({}", "1 + 2 = 3. ".repeat(30))).await;
        let file = app.folder.path().join(if is_known { "own" } else { "foreign" });
        let prefix = match is_known {
            true => {
                app.cache_prompt(&open, kv_cache, &file).await;
                app.import_file(&file).await
            }
            false => app.import(&open, kv_cache).await,
        };
        assert_eq!(
            (prefix.token_ids.is_some(), prefix.kv_cache().quantization.is_some()),
            (is_known, is_known)
        );
        let asked = ask(&prefix, &question("4?"));
        let first = app.answer(asked.clone()).await.expect("an answer").finished;
        assert_eq!(first.new_prompt_ids, text_ids("4?)>"));
        assert_eq!(first.stats.num_cached_tokens, open.len());
        let of_file = GenerateRequest {
            prompt_cache_file: Some(file),
            kv_cache,
            ..request(&text_ids("4?)>"), 12)
        };
        assert_eq!(
            first.token_ids,
            app.answer(of_file).await.expect("an answer").finished.token_ids
        );
        app = app.restart().await;
        let second = app.answer(asked).await.expect("an answer").finished;
        assert_eq!(second.token_ids, first.token_ids);
        assert_eq!(
            second.stats.num_cached_tokens,
            open.len() + "4?)>".len() - 1,
            "all but what is sampled from"
        );
    }
}

#[tokio::test]
async fn a_lost_prefix_without_token_ids_is_an_error() {
    let (_models, folders) = models();
    let loss = "this conversation starts from a file that was imported without its tokens and is no longer saved: import the file again";
    let mut app = App::start(&folders[2]).await;
    let open = tokenize(app.engine(), "<|im_start|>user\nA text. ").await;
    let prefix = app.import(&open, KvCacheOptions::default()).await;
    let asked = ask(&prefix, &question("And then?"));
    let expected = app.answer(asked.clone()).await.expect("an answer").finished.token_ids;

    // Requests that save nothing, or save in another format, still reuse the prefix and leave it
    // unchanged.
    let unsaved = GenerateRequest { use_prompt_cache: false, ..asked.clone() };
    assert_eq!(app.answer(unsaved).await.expect("an answer").finished.token_ids, expected);
    let draft =
        GenerateRequest { speculation: Speculation::Draft { num_tokens: 2 }, ..asked.clone() };
    assert!(
        app.answer(draft)
            .await
            .err()
            .expect("is refused")
            .message
            .contains("a draft model cannot continue")
    );
    let score =
        app.engine().score(asked.prompt.clone(), 1).await.expect_err("is refused").to_string();
    assert_eq!(score, loss);
    app = app.restart().await;
    let again = app.answer(asked.clone()).await.expect("an answer").finished;
    assert_eq!(
        (again.token_ids, again.stats.num_cached_tokens > open.len()),
        (expected.clone(), true)
    );

    // Another file of as many tokens has another namespace, and so has a conversation that begins
    // with the placeholder ids.
    app.answer(request(&vec![0; open.len() + 1], 1)).await.expect("an answer");
    let other_file = Provenance::OpaqueImport("0".into());
    let quantized = KvFormat::Quantized { bits: 8, group_size: 64 };
    for lost in [
        PromptPrefix { provenance: other_file, ..prefix.clone() },
        PromptPrefix { provenance: Provenance::Computed, ..prefix.clone() },
        PromptPrefix { kv_format: quantized, provenance: Provenance::Computed, ..prefix.clone() },
        PromptPrefix { num_tokens: usize::MAX, ..prefix.clone() },
    ] {
        let failure = app.answer(ask(&lost, &question("And then?"))).await.err();
        assert_eq!(failure.expect("is lost").message, loss, "{lost:?}");
    }

    app.engine().forget_conversations().await;
    let cache = app.harness.handle();
    cache.purge(&owner("named/1"));
    cache.remove_ref(&owner("named/1"));
    cache.clear();
    assert_eq!(app.answer(asked).await.err().expect("is lost").message, loss);
    // A prefix of known tokens is only computed again.
    let known = app
        .answer(ask(&known(&open, PromptKind::Prompt), &question("And then?")))
        .await
        .expect("an answer");
    assert_eq!((known.finished.token_ids, known.finished.stats.num_cached_tokens), (expected, 0));
}

#[tokio::test]
async fn a_batch_failure_interrupts_sequences_that_cannot_be_retried() {
    let model = Scripted::with(&text_ids("abcdefg"), json!({ "fail_at": 200 }));
    let app = App::start(model.folder()).await;
    let open = tokenize(app.engine(), "<|im_start|>user\nA text. ").await;
    let prefix = app.import(&open, KvCacheOptions::default()).await;
    let asked = GenerateRequest { max_tokens: 140, ..ask(&prefix, &question("Why?")) };
    let mut interrupted = app.engine().generate(asked.clone());
    let mut failing = app.engine().generate(request(&[1; 190], 100));
    assert!(finish(&mut failing).await.is_err());
    let message = finish(&mut interrupted).await.err().expect("is interrupted").message;
    assert_eq!(message, "the answer was interrupted because another answer failed: ask again");
    let answer = app.answer(asked).await.expect("an answer").finished;
    assert_eq!(answer.token_ids, model.answer(&[&open[..], &answer.new_prompt_ids].concat(), 140));
}
