//! Imports of damaged and forged prompt-cache files: each is refused with one sentence, and leaves
//! nothing in the prompt cache.

use std::path::{Path, PathBuf};

use cairn_chat::{Message, Role};
use cairn_engine::{
    CacheOptions, CachePromptRequest, Engine, EngineOptions, GenerateRequest, Import,
    KvCacheOptions, KvQuantization, PromptFileInfo, PromptFileLayout, PromptInput, PromptPrefix,
    Provenance,
};
use tempfile::TempDir;

use crate::client::{finish, request};
use crate::file_parts::{Parts, with_header};

const ROOMY: u64 = 1 << 30;
const OWNER: &str = "named/import";

/// An engine with stored caches, a model, and a file that this model made of `tokens`.
struct ImportFixture {
    engine: Engine,
    folder: TempDir,
    file: PathBuf,
    tokens: Vec<u32>,
    /// The tokens of the undamaged file.
    parts: Parts,
}

impl ImportFixture {
    async fn of(case: &str, num_tokens: u32, kv_cache: KvCacheOptions) -> ImportFixture {
        let folder = tempfile::tempdir().expect("a folder");
        let model = folder.path().join("model");
        std::fs::create_dir(&model).expect("a folder");
        cairn_tests::copy_tiny_model(case, &model).expect("copies");
        let cache = CacheOptions {
            folder: folder.path().join("stored"),
            disk_budget_bytes: ROOMY,
            memory_budget_bytes: 0,
            chunks: Vec::new(),
            refs: Vec::new(),
            old_folders: Vec::new(),
            cleanup_lock: None,
        };
        let (engine, _) =
            Engine::start(EngineOptions { cache: Some(cache), ..EngineOptions::default() });
        engine.load("org/model", &model).await.expect("loads");
        // Not the same token repeated.
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

    async fn import(&self, check: bool) -> Result<usize, String> {
        let import = Import { owner: OWNER.to_owned(), check };
        self.engine
            .import_prompt_file(&self.file, import)
            .await
            .map(|info| info.num_tokens)
            .map_err(|error| error.to_string())
    }

    /// Checks that the prompt cache and its folder are empty.
    async fn check_is_empty(&self, what: &str) {
        self.engine.flush_cache().await;
        let window = self.engine.cache().expect("caches are stored");
        assert_eq!(
            (window.view(10).num_chunks, window.ref_usages().len()),
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

    /// Checks that the file is refused, both inspected and imported, with one sentence that
    /// contains `expected`.
    async fn check_refused(&self, expected: &str) {
        let seen =
            self.engine.inspect_prompt_file(&self.file).await.err().map(|error| error.to_string());
        assert_sentence(
            seen.unwrap_or_else(|| format!("it is shown, but should be refused: {expected}")),
            expected,
        );
        self.check_not_imported(expected).await;
    }

    /// Checks the same for a file with an intact header: its arrays are read only when it is
    /// imported.
    async fn check_numbers(&self, damage: impl FnOnce(&mut Parts), expected: &str) {
        let mut parts = self.parts.clone();
        damage(&mut parts);
        parts.write(&self.file);
        self.engine
            .inspect_prompt_file(&self.file)
            .await
            .expect("a header says nothing of numbers");
        self.check_not_imported(expected).await;
    }

    async fn check_not_imported(&self, expected: &str) {
        assert_sentence(
            self.import(false).await.err().unwrap_or_else(|| format!("it is imported: {expected}")),
            expected,
        );
        self.check_is_empty(expected).await;
    }

    /// Checks the same for a file of these bytes.
    async fn check_bytes(&self, bytes: impl AsRef<[u8]>, expected: &str) {
        std::fs::write(&self.file, bytes).expect("written");
        self.check_refused(expected).await;
    }

    /// Checks the same for the file after `damage`.
    async fn check_damaged(&self, damage: impl FnOnce(&mut Parts), expected: &str) {
        let mut parts = self.parts.clone();
        damage(&mut parts);
        self.check_bytes(parts.bytes(), expected).await;
    }
}

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
    }
}

#[tokio::test]
async fn files_of_another_model_are_refused_with_the_difference() {
    let fixture = ImportFixture::of("llama/tiny-chat", 30, plain()).await;
    let other_revision = |parts: &mut Parts| {
        parts.say("cairn_model_fingerprint", "0".repeat(32));
        parts.say("cairn_weights_hash", "1".repeat(32));
    };
    fixture
        .check_damaged(
            other_revision,
            "made with another revision of org/model (its weights differ)",
        )
        .await;
    let renamed = |parts: &mut Parts| {
        other_revision(parts);
        parts.say("model", "org/other\u{202e}\n-1B");
    };
    fixture
        .check_damaged(renamed, "made with another model (org/other -1B; org/model is loaded)")
        .await;
    let precision = |parts: &mut Parts| {
        parts.say("cairn_model_fingerprint", "0".repeat(32));
        parts.say("cairn_precision", "bfloat16");
    };
    fixture
        .check_damaged(
            precision,
            "made in another precision (bfloat16; here the model is computed in float32)",
        )
        .await;
    let halves = |parts: &mut Parts| {
        for name in ["0.0", "0.1", "1.0", "1.1"] {
            parts.tensor(name).zeros("F16", &[1, 2, 30, 16]);
        }
    };
    fixture
        .check_damaged(
            halves,
            "its layer 0 holds float16 numbers, but the model computes with float32",
        )
        .await;

    let shapes = [("0.0", [1, 2, 30, 32]), ("0.1", [1, 2, 30, 32])];
    let resize = |parts: &mut Parts| {
        shapes.iter().for_each(|(name, shape)| parts.tensor(name).zeros("F32", shape))
    };
    let expected = "its layer 0 is a cache of keys and values with 2 heads of 32 numbers, but the model's is a cache of keys and values with 2";
    fixture.check_damaged(resize, expected).await;
    let heads = |parts: &mut Parts| {
        for name in ["0.0", "0.1"] {
            parts.tensor(name).zeros("F32", &[1, 1, 30, 16]);
        }
    };
    fixture
        .check_damaged(
            heads,
            "its layer 0 is a cache of keys and values with 1 heads of 16 numbers",
        )
        .await;
    let batch = |parts: &mut Parts| {
        for name in ["0.0", "0.1", "1.0", "1.1"] {
            parts.tensor(name).zeros("F32", &[2, 2, 30, 16]);
        }
    };
    fixture.check_damaged(batch, "its layer 0 is a cache of keys and values").await;
    let shorter = |parts: &mut Parts| {
        parts.metadata.remove("1.1");
        parts.tensors.retain(|tensor| !tensor.name.starts_with("1."));
    };
    fixture.check_damaged(shorter, "are for 1 layers, but the model has 2").await;
    let uneven = |parts: &mut Parts| parts.number("1.2", 29);
    fixture.check_damaged(uneven, "its layer 1 has read 29 tokens, but others 30").await;
    let longer = |parts: &mut Parts| {
        for layer in 0..2 {
            for part in 0..2 {
                parts.tensor(&format!("{layer}.{part}")).zeros("F32", &[1, 2, 4096, 16]);
            }
            parts.number(&format!("{layer}.2"), 4096);
        }
        parts.say_nothing();
    };
    fixture
        .check_damaged(longer, "its 4096 tokens leave no room in the 4096 that the model can read")
        .await;

    // Equal weights in another folder are the same model, although their files are newer.
    let mut elsewhere = fixture.parts.clone();
    elsewhere.say("cairn_model_fingerprint", "0".repeat(32));
    elsewhere.say("cairn_template_hash", "1".repeat(32));
    elsewhere.say("model", "/home/somebody/models/model");
    elsewhere.write(&fixture.file);
    assert_eq!(fixture.import(true).await, Ok(30));
}

#[tokio::test]
async fn false_metadata_is_refused() {
    let fixture = ImportFixture::of("llama/tiny-chat", 30, plain()).await;
    let metadata = async |key: &str, value: String, expected: &str| {
        fixture.check_damaged(|parts| parts.say(key, value), expected).await;
    };
    for class in ["BatchKVCache", "os.system", "__class__", ""] {
        fixture
            .check_damaged(
                |parts| drop(parts.metadata.insert("1.0".to_owned(), class.to_owned())),
                "only KVCache, RotatingKVCache",
            )
            .await;
    }
    fixture
        .check_damaged(
            |parts| drop(parts.metadata.insert("1.0".to_owned(), "x".repeat(1 << 20))),
            "layer 0 is a \"xxx",
        )
        .await;
    fixture
        .check_damaged(
            |parts| drop(parts.metadata.insert("1.0".to_owned(), "ArraysCache".to_owned())),
            "layer 0 is the padded state of a batch",
        )
        .await;
    fixture
        .check_damaged(
            |parts| parts.number("0.2", 31),
            "layer 0 has offset = 31, but it must be from 0 to 30",
        )
        .await;
    fixture.check_damaged(|parts| parts.number("0.2", -1), "layer 0 has offset = -1").await;
    fixture
        .check_damaged(|parts| parts.number("0.2", i32::MAX), "layer 0 has offset = 2147483647")
        .await;
    let nothing = |parts: &mut Parts| {
        parts.number("0.2", 0);
        parts.number("1.2", 0);
        parts.say_nothing();
    };
    fixture.check_damaged(nothing, "it has no tokens").await;

    metadata("cairn_format", "7".to_owned(), "it is of format \"7\"").await;
    metadata("cairn_kind", "\u{202e}novel".to_owned(), "it is a \"novel\"").await;
    for count in ["31", "-1", "0", "thirty", "1e9", ""] {
        metadata("cairn_token_count", count.to_owned(), "but it holds 30").await;
    }
    let ids = |last: &str| [vec!["1"; 29], vec![last]].concat().join(",");
    for id in ["259", "4294967295"] {
        metadata(
            "cairn_token_ids",
            ids(id),
            &format!("is {id}, but the model's vocabulary has 259"),
        )
        .await;
    }
    for id in ["4294967296", "-1", "1.5", "x", "", " 1"] {
        metadata("cairn_token_ids", ids(id), "which is no number").await;
    }
    metadata("cairn_token_ids", "1,2,3".to_owned(), "it names 3 token ids, but it holds 30 tokens")
        .await;
    metadata("cairn_token_ids", String::new(), "it names 0 token ids").await;
    metadata("cairn_token_ids", "1,".repeat(2 << 20), "it names 2097153 token ids").await;
    metadata("note", "x".repeat(9 << 20), "at most 8388608 are allowed").await;

    let layers = |parts: &mut Parts| {
        parts
            .metadata
            .extend((2..100_000).map(|layer| (format!("1.{layer}"), "KVCache".to_owned())))
    };
    fixture.check_damaged(layers, "it names 100000 layers, but there must be from 1 to 1024").await;
    fixture.check_damaged(|parts| parts.metadata.clear(), "it names 0 layers").await;
}

#[tokio::test]
async fn tensors_of_a_wrong_shape_or_type_are_refused() {
    let fixture = ImportFixture::of("llama/tiny-chat", 30, plain()).await;
    for (what, number) in
        [("NaN", f32::NAN), ("infinite", f32::INFINITY), ("infinite", f32::NEG_INFINITY)]
    {
        for (name, at) in [("0.0", 0), ("1.1", 959)] {
            fixture
                .check_numbers(
                    |parts| parts.tensor(name).edit(|numbers| numbers[at] = number),
                    what,
                )
                .await;
        }
    }
    fixture
        .check_damaged(
            |parts| parts.tensor("0.0").dtype = "I32".to_owned(),
            "layer 0 has keys of I32",
        )
        .await;
    fixture
        .check_damaged(|parts| parts.tensor("0.0").dtype = "F64".to_owned(), "has dtype \"F64\"")
        .await;
    fixture
        .check_damaged(|parts| parts.tensor("0.0").shape = vec![1, 2, 30, 17], "lies at bytes")
        .await;
    fixture
        .check_damaged(|parts| parts.tensor("0.0").shape = vec![1, 60, 16], "both need four axes")
        .await;
    fixture
        .check_damaged(
            |parts| parts.tensor("0.0").shape = vec![1, 2, 16, 30],
            "both need four axes",
        )
        .await;
    fixture
        .check_damaged(
            |parts| parts.tensor("0.0").shape = vec![4_294_967_297],
            "each dimension must be",
        )
        .await;
    let empty = |shape: &'static [u64]| {
        move |parts: &mut Parts| {
            let tensor = parts.tensor("0.0");
            (tensor.shape, tensor.bytes) = (shape.to_vec(), Vec::new());
        }
    };
    fixture.check_damaged(empty(&[0, 1 << 62]), "each dimension must be").await;
    fixture.check_damaged(empty(&[1, 2, 0, 16]), "tensor \"0.0\" is no array").await;
    fixture
        .check_damaged(
            |parts| parts.tensor("0.0").name = "0.9".to_owned(),
            "it lacks the tensor \"0.0\"",
        )
        .await;
    let stranger = |parts: &mut Parts| {
        let mut tensor = parts.tensor("0.0").clone();
        tensor.name = "\u{202e}".repeat(1 << 16);
        parts.tensors.push(tensor);
    };
    fixture.check_damaged(stranger, "no layer uses its tensor").await;

    let header = |text: &str| with_header(text, &[0; 4]);
    let tensor = |start: u64| {
        format!(r#""a":{{"dtype":"F32","shape":[1],"data_offsets":[{start},{}]}}"#, start + 4)
    };
    fixture
        .check_bytes(
            with_header(&format!("{{{},{}}}", tensor(0), tensor(4)), &[0; 8]),
            "the name \"a\" occurs twice",
        )
        .await;
    fixture
        .check_bytes(
            header(r#"{"__metadata__":{"1.0":"KVCache","1.0":"KVCache"}}"#),
            "the name \"1.0\" occurs twice",
        )
        .await;
    fixture
        .check_bytes(
            header(&format!(
                r#"{{"a":{{"dtype":"{}","shape":[1],"data_offsets":[0,4]}}}}"#,
                "x".repeat(1 << 20)
            )),
            "dtype",
        )
        .await;
    fixture
        .check_bytes(
            header(&format!(r#"{{"a":{{"dtype":"F32","shape":"{}"}}}}"#, "x".repeat(1 << 20))),
            "unreadable header",
        )
        .await;
    fixture.check_bytes(header(&"[".repeat(1 << 20)), "unreadable header").await;
    let names: Vec<String> = (0..100_000)
        .map(|index| format!(r#""{index}":{{"dtype":"F32","shape":[],"data_offsets":[0,4]}}"#))
        .collect();
    fixture.check_bytes(header(&format!("{{{}}}", names.join(","))), "lies at bytes").await;
}

#[tokio::test]
async fn files_of_a_wrong_length_or_format_are_refused() {
    let fixture = ImportFixture::of("llama/tiny-chat", 30, plain()).await;
    let honest = fixture.parts.bytes();
    for part in 0..64 {
        fixture.check_bytes(&honest[..honest.len() * part / 64], "is incomplete").await;
    }
    fixture.check_bytes([&honest[..], &[0]].concat(), "is damaged").await;
    for length in [u64::MAX, 99_000_000, 8_388_609] {
        fixture
            .check_bytes(
                [&length.to_le_bytes()[..], &honest[8..]].concat(),
                "at most 8388608 are allowed",
            )
            .await;
    }
    for length in [0_u64, 1, 8, 100] {
        fixture
            .check_bytes([&length.to_le_bytes()[..], &honest[8..]].concat(), "unreadable header")
            .await;
    }
    fixture.check_bytes("", "is incomplete").await;
    fixture
        .check_bytes("a text and no prompt cache at all", "is damaged or no safetensors file")
        .await;

    std::fs::remove_file(&fixture.file).expect("removed");
    fixture.check_refused("cannot read").await; // it was removed meanwhile
    std::fs::create_dir(&fixture.file).expect("a folder");
    fixture.check_refused("is not a regular file").await;
    std::fs::remove_dir(&fixture.file).expect("removed");
    for (target, expected) in
        [(Path::new("/dev/zero"), "is not a regular file"), (&fixture.file, "cannot read")]
    {
        std::os::unix::fs::symlink(target, &fixture.file).expect("links");
        fixture.check_refused(expected).await;
        std::fs::remove_file(&fixture.file).expect("removed");
    }
}

#[tokio::test]
async fn a_false_token_count_allocates_no_memory() {
    let fixture = ImportFixture::of("llama/tiny-chat", 30, plain()).await;
    // A sparse file with room for a quarter of a billion tokens, of which thirty are in use.
    let parts = &fixture.parts;
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".to_owned(), serde_json::json!(parts.metadata));
    let (mut end, mut numbers) = (0_u64, Vec::new());
    for tensor in &parts.tensors {
        let shape =
            if tensor.shape.len() == 4 { vec![1, 2, 1 << 28, 16] } else { tensor.shape.clone() };
        let bytes = shape.iter().product::<u64>() * 4;
        header
            .insert(tensor.name.clone(), serde_json::json!({ "dtype": tensor.dtype, "shape": shape, "data_offsets": [end, end + bytes] }));
        if tensor.shape.len() != 4 {
            numbers.push((end, tensor.bytes.clone()));
        }
        end += bytes;
    }
    let header = with_header(&serde_json::Value::Object(header).to_string(), &[]);
    std::fs::write(&fixture.file, &header).expect("written");
    let file = std::fs::File::options().write(true).open(&fixture.file).expect("opens");
    file.set_len(header.len() as u64 + end).expect("grows");
    for (start, bytes) in numbers {
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes, header.len() as u64 + start)
            .expect("written");
    }
    let before = peak_resident_bytes();
    assert_eq!(fixture.import(false).await, Ok(30));
    assert!(
        fixture
            .import(true)
            .await
            .is_err_and(|message| message.contains("not what the model computes")),
        "zeros are no keys"
    );
    let grown = peak_resident_bytes() - before;
    assert!(grown < 256 << 20, "{grown} bytes were taken");
}

/// The peak of this process's resident memory; zero if the system does not report it.
fn peak_resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()).unwrap_or(0)
        << 10
}

#[tokio::test]
async fn the_texts_of_a_file_are_shown_short_and_without_control_characters() {
    let fixture = ImportFixture::of("llama/tiny-chat", 30, plain()).await;
    let mut parts = fixture.parts.clone();
    parts.say("cairn_title", format!("\u{202e}evil\u{7}\n{}", "x".repeat(1 << 20)));
    parts.say("cairn_made_by", "\u{1b}[31m<script>");
    parts.say("model", "m\u{0}\u{2066}o");
    parts.say("cairn_created_at_ms", "99999999999999999999999");
    parts.write(&fixture.file);
    let info = fixture.engine.inspect_prompt_file(&fixture.file).await.expect("is shown");
    let title = info.title.expect("a title");
    assert!(title.starts_with("evil  xxx") && title.len() == 200, "{title}");
    assert_eq!(
        (info.made_by.as_deref(), info.model.as_str(), info.created_at_ms),
        (Some("[31m<script>"), "m o", None)
    );
    assert_eq!(
        (info.token_ids.as_ref(), info.is_model_proven, info.can_check),
        (Some(&fixture.tokens), true, true)
    );
}

#[tokio::test]
async fn cache_kinds_that_the_model_does_not_store_are_refused_and_the_others_fit() {
    let ring = KvCacheOptions { max_size: Some(16), quantization: None };
    let fixture = ImportFixture::of("llama/tiny-chat", 30, ring).await;
    fixture.check_refused("as `cairn generate --prompt-cache-file` does").await;
    let gemma = ImportFixture::of("gemma3_text/long-prompt", 30, plain()).await;
    let window = |parts: &mut Parts| {
        for name in ["0.0", "0.1"] {
            parts.tensor(name).zeros("F32", &[1, 2, 6, 8]);
        }
        parts.number("0.4", 6);
        parts.number("0.5", 6);
    };
    gemma
        .check_damaged(
            window,
            "is a rotating cache of 6 tokens with 2 heads of 8 numbers, but the model's",
        )
        .await;
    gemma.check_damaged(|parts| parts.number("0.5", 0), "no sequence of tokens leads there").await;
    let keep = |parts: &mut Parts| {
        parts.number("0.3", 1);
        parts.number("0.5", 5);
    };
    gemma.check_damaged(keep, "that keeps the first 1").await;
    let next = ImportFixture::of("qwen3_next/dense", 30, plain()).await;
    let slot = |parts: &mut Parts| {
        let state = parts.tensor("0.0.0");
        let item_bytes = state.bytes.len() as u64 / state.shape.iter().product::<u64>();
        state.shape = vec![1, state.bytes.len() as u64 / item_bytes];
    };
    next.check_damaged(slot, "its layer 0 is a recurrent state").await;
    let moe = ImportFixture::of("qwen3_moe/quant4", 30, quantized(8, 32)).await;
    moe.check_damaged(
        |parts| parts.number("0.4", 7),
        "kv_bits = 7, but it must be one of [2, 3, 4, 6, 8]",
    )
    .await;
    moe.check_damaged(|parts| parts.number("0.4", 4), "quantized in groups of 32 to 4 bits").await;
    moe.check_numbers(
        |parts| parts.tensor("0.0.1").edit(|scales| scales[0] = f32::NAN),
        "NaN or infinite",
    )
    .await;
}

/// An undamaged file passes verification and can be continued; each damaged one fails it, and
/// without verification is accepted.
async fn check_recomputed(case: &str, num_tokens: u32, kv_cache: KvCacheOptions) {
    let fixture = ImportFixture::of(case, num_tokens, kv_cache).await;
    let other = ImportFixture::of(case, num_tokens + 1, kv_cache).await;
    assert_eq!(fixture.import(true).await, Ok(num_tokens as usize), "{case}, honest");
    let prompt = [&fixture.tokens[..], &[5, 6, 7]].concat();
    let ask = |use_prompt_cache| GenerateRequest {
        kv_cache,
        use_prompt_cache,
        ignore_eos: true,
        ..request(&prompt, 8)
    };
    let found = finish(&mut fixture.engine.generate(ask(true))).await.expect("an answer").finished;
    assert_eq!(
        found.stats.num_cached_tokens, num_tokens as usize,
        "{case}: {:?}",
        found.stats.cache_note
    );
    if kv_cache == plain() {
        let cold =
            finish(&mut fixture.engine.generate(ask(false))).await.expect("an answer").finished;
        assert_eq!(found.token_ids, cold.token_ids, "{case}: the answer after an import");
    }
    let window = fixture.engine.cache().expect("caches are stored");
    fixture.engine.forget_conversations().await;
    window.purge(OWNER);
    window.remove_ref(OWNER);
    window.clear();
    fixture.check_is_empty("what was purged").await;

    // Every array of numbers in the first and the last layer, by name.
    let arrays: Vec<String> = fixture
        .parts
        .tensors
        .iter()
        .filter(|tensor| tensor.dtype == "F32")
        .map(|tensor| tensor.name.clone())
        .collect();
    for name in &arrays {
        let mut altered = fixture.parts.clone();
        altered.tensor(name).edit(|numbers| numbers.reverse());
        check_caught(&fixture, altered, &format!("{case}: all of {name}")).await;
        // In quantized caches after the first layer, a change of one number of one token is within
        // rounding.
        if kv_cache != plain() && !name.starts_with("0.") {
            continue;
        }
        let mut altered = fixture.parts.clone();
        altered.tensor(name).edit(|numbers| {
            let (middle, largest) = (
                numbers.len() / 2,
                numbers.iter().fold(0.0_f32, |largest, number| largest.max(number.abs())),
            );
            numbers[middle] += largest;
        });
        check_caught(&fixture, altered, &format!("{case}: one number of {name}")).await;
    }
    let mut swapped = fixture.parts.clone();
    let mut tokens = fixture.tokens.clone();
    tokens.swap(1, num_tokens as usize - 2);
    swapped.say(
        "cairn_token_ids",
        tokens.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
    );
    check_caught(&fixture, swapped, &format!("{case}: tokens swapped")).await;
    // The arrays of another prompt with these token ids.
    let mut foreign = ImportFixture::of(case, num_tokens, kv_cache).await.parts;
    let ids: Vec<String> = other.tokens[1..].iter().map(ToString::to_string).collect();
    foreign.say("cairn_token_ids", ids.join(","));
    check_caught(&fixture, foreign, &format!("{case}: another prompt")).await;
}

async fn check_caught(fixture: &ImportFixture, parts: Parts, what: &str) {
    parts.write(&fixture.file);
    let message =
        fixture.import(true).await.err().unwrap_or_else(|| panic!("{what} is not noticed"));
    assert!(
        message.contains("its contents are not what the model computes from its tokens"),
        "{what}: {message}"
    );
    fixture.check_is_empty(what).await;
}

/// A request for the same tokens without the import reuses only what was computed here; one that
/// continues the import reuses the file's contents.
async fn check_namespaces(case: &str, kv_cache: KvCacheOptions) -> (ImportFixture, PromptFileInfo) {
    let fixture = ImportFixture::of(case, 40, kv_cache).await;
    let prompt = [&fixture.tokens[..], &[5, 6, 7]].concat();
    let ask = |use_prompt_cache| GenerateRequest {
        kv_cache,
        use_prompt_cache,
        ignore_eos: true,
        ..request(&prompt, 8)
    };
    let expected =
        finish(&mut fixture.engine.generate(ask(false))).await.expect("an answer").finished;
    let mut altered = fixture.parts.clone();
    let arrays: Vec<String> = fixture
        .parts
        .tensors
        .iter()
        .filter(|tensor| tensor.dtype == "F32")
        .map(|tensor| tensor.name.clone())
        .collect();
    arrays.iter().for_each(|name| altered.tensor(name).edit(|numbers| numbers.reverse()));
    altered.write(&fixture.file);
    let import = Import { owner: OWNER.to_owned(), check: false };
    let imported = fixture.engine.import_prompt_file(&fixture.file, import).await.expect("imports");
    assert!(
        matches!(imported.namespace.provenance, Provenance::Import(_)),
        "{case}: {:?}",
        imported.namespace
    );
    for turn in 0..2 {
        fixture.engine.forget_conversations().await;
        let found =
            finish(&mut fixture.engine.generate(ask(true))).await.expect("an answer").finished;
        assert_eq!(found.stats.num_cached_tokens, turn * (prompt.len() - 1), "{case}, {turn}");
        assert_eq!(found.token_ids, expected.token_ids, "{case}, {turn}");
    }
    (fixture, imported)
}

/// A conversation continues the import, and continues again after its own first turn.
async fn check_after(fixture: &ImportFixture, imported: PromptFileInfo) {
    let question = Message { role: Role::User, content: "AND".to_owned(), token_ids: None };
    let prefix = PromptPrefix {
        num_tokens: imported.num_tokens,
        token_ids: imported.token_ids,
        kind: imported.kind,
        kv_format: imported.namespace.kv_format,
        provenance: imported.namespace.provenance,
    };
    let after = PromptInput::After { prefix, messages: vec![question] };
    let mut held = imported.num_tokens;
    for turn in 0..2 {
        fixture.engine.forget_conversations().await;
        let ask = GenerateRequest {
            max_tokens: 4,
            ignore_eos: true,
            ..GenerateRequest::new(after.clone())
        };
        let found = finish(&mut fixture.engine.generate(ask)).await.expect("an answer").finished;
        assert_eq!(
            found.stats.num_cached_tokens, held,
            "turn {turn}: {:?}",
            found.stats.cache_note
        );
        held = found.stats.num_prompt_tokens - 1;
    }
}

#[tokio::test]
async fn an_unverified_import_is_reused_only_by_conversations_that_start_from_it() {
    let (fixture, imported) = check_namespaces("llama/tiny-chat", plain()).await;
    check_after(&fixture, imported).await;
    check_namespaces("qwen3_moe/quant4", quantized(8, 32)).await;
}

#[tokio::test]
async fn verification_detects_altered_keys_and_values() {
    check_recomputed("llama/tiny-chat", 40, plain()).await;
    check_recomputed("llama/dense-bf16", 40, plain()).await;
    check_recomputed("llama/quant4-tied", 40, plain()).await;
}

#[tokio::test]
async fn verification_detects_altered_windows_and_states() {
    // Longer than the window, and shorter.
    check_recomputed("gemma3_text/long-prompt", 40, plain()).await;
    check_recomputed("gemma3_text/long-prompt", 5, plain()).await;
    check_recomputed("qwen3_next/dense", 40, plain()).await;
}

#[tokio::test]
async fn verification_detects_altered_quantized_keys_and_values() {
    check_recomputed("qwen3_moe/quant4", 40, quantized(8, 32)).await;
    check_recomputed("qwen3_moe/quant4", 40, quantized(4, 32)).await;
}

#[tokio::test]
async fn verification_accepts_rounding_but_not_another_token_s_entries() {
    async fn check(case: &str, num_tokens: u32, kv_cache: KvCacheOptions) {
        let fixture = ImportFixture::of(case, num_tokens, kv_cache).await;
        assert_eq!(fixture.import(true).await, Ok(num_tokens as usize), "{case}, honest");
        let window = fixture.engine.cache().expect("caches are stored");
        window.purge(OWNER);
        window.remove_ref(OWNER);
        window.clear();
        // One token among many, and only after the first layer, where a few numbers may differ.
        let mut altered = fixture.parts.clone();
        let is_row = |parts: &Parts, index: usize| {
            let tensor = &parts.tensors[index];
            !tensor.name.starts_with("0.")
                && tensor.shape.len() == 4
                && tensor.shape[2] == u64::from(num_tokens)
        };
        let rows: Vec<usize> =
            (0..altered.tensors.len()).filter(|&index| is_row(&fixture.parts, index)).collect();
        assert!(rows.len() >= 2, "{case}");
        for index in rows {
            altered.tensors[index].copy_token(7, num_tokens as usize - 9);
        }
        check_caught(
            &fixture,
            altered,
            &format!("{case}, {kv_cache:?}: one token of {num_tokens}"),
        )
        .await;
    }
    check("llama/tiny-chat", 400, plain()).await;
    check("llama/dense-bf16", 100, plain()).await;
    check("qwen3_moe/dense", 400, plain()).await;
    check("qwen3_moe/quant4", 100, quantized(8, 32)).await;
}

#[tokio::test]
async fn a_cancelled_verification_ends_and_imports_nothing() {
    // With recurrent states all tokens are computed again.
    let fixture = ImportFixture::of("qwen3_next/dense", 1500, plain()).await;
    let import = Import { owner: OWNER.to_owned(), check: true };
    tokio::select! {
        biased;
        imported = fixture.engine.import_prompt_file(&fixture.file, import) => panic!("it has not even begun: {imported:?}"),
        () = std::future::ready(()) => {}
    }
    fixture.check_is_empty("a cancelled import").await;
    assert_eq!(fixture.import(true).await, Ok(1500));
}

#[tokio::test]
async fn the_namespace_of_an_unverified_import_is_the_hash_of_its_contents() {
    let fixture = ImportFixture::of("llama/tiny-chat", 30, plain()).await;
    let provenance = async |parts: &Parts| {
        parts.write(&fixture.file);
        let import = Import { owner: OWNER.to_owned(), check: false };
        fixture
            .engine
            .import_prompt_file(&fixture.file, import)
            .await
            .expect("imports")
            .namespace
            .provenance
    };
    for says_tokens in [true, false] {
        let mut honest = fixture.parts.clone();
        if !says_tokens {
            honest.say_nothing();
        }
        let name = provenance(&honest).await;
        let mut roomy = honest.clone();
        for tensor in roomy.tensors.iter_mut().filter(|tensor| tensor.shape.len() == 4) {
            let head = tensor.bytes.len() / 2;
            tensor.bytes = tensor
                .bytes
                .chunks(head)
                .flat_map(|head| [head, &[1; 5 * 16 * 4]].concat())
                .collect();
            tensor.shape[2] += 5;
        }
        assert_eq!(provenance(&roomy).await, name, "the room for more is not part of it");
        let mut titled = honest.clone();
        titled.say("cairn_title", "Another");
        assert_ne!(provenance(&titled).await, name);
        let mut altered = honest.clone();
        altered.tensor("1.1").edit(|numbers| numbers[5] += 1.0);
        assert_ne!(provenance(&altered).await, name);
        let mut swapped = honest.clone();
        let keys = swapped.tensor("0.0").bytes.clone();
        let values = std::mem::replace(&mut swapped.tensor("0.1").bytes, keys);
        swapped.tensor("0.0").bytes = values;
        assert_ne!(provenance(&swapped).await, name);
    }
}

#[tokio::test]
async fn every_token_of_a_long_file_is_verified() {
    let fixture = ImportFixture::of("llama/tiny-chat", 3000, plain()).await;
    assert_eq!(fixture.import(true).await, Ok(3000));
    let window = fixture.engine.cache().expect("caches are stored");
    window.purge(OWNER);
    window.remove_ref(OWNER);
    window.clear();
    for token in [0, 1234, 2999] {
        let mut altered = fixture.parts.clone();
        let head_dim = altered.tensor("1.1").shape[3] as usize;
        let row = token * head_dim..(token + 1) * head_dim;
        altered
            .tensor("1.1")
            .edit(|numbers| numbers[row].iter_mut().for_each(|number| *number += 20.0));
        check_caught(&fixture, altered, &format!("token {token}")).await;
    }
}
