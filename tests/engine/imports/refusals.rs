//! Damaged files: each is refused with one sentence, and leaves nothing in the prompt cache.

use std::path::Path;

use cairn_engine::KvCacheOptions;

use super::{ImportFixture, plain, quantized};
use crate::file_parts::{Parts, with_header};

#[tokio::test]
async fn files_of_another_model_are_refused_with_the_difference() {
    let fixture = ImportFixture::of("llama/tiny-chat", 30, plain()).await;
    let other_revision = |parts: &mut Parts| {
        parts.set_metadata("cairn_model_fingerprint", "0".repeat(32));
        parts.set_metadata("cairn_weights_hash", "1".repeat(32));
    };
    fixture
        .check_damaged(
            other_revision,
            "made with another revision of org/model (its weights differ)",
        )
        .await;
    let renamed = |parts: &mut Parts| {
        other_revision(parts);
        parts.set_metadata("model", "org/other\u{202e}\n-1B");
    };
    fixture
        .check_damaged(renamed, "made with another model (org/other -1B; org/model is loaded)")
        .await;
    let precision = |parts: &mut Parts| {
        parts.set_metadata("cairn_model_fingerprint", "0".repeat(32));
        parts.set_metadata("cairn_precision", "bfloat16");
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
    let uneven = |parts: &mut Parts| parts.set_scalar("1.2", 29);
    fixture.check_damaged(uneven, "its layer 1 has read 29 tokens, but others 30").await;
    let longer = |parts: &mut Parts| {
        for layer in 0..2 {
            for part in 0..2 {
                parts.tensor(&format!("{layer}.{part}")).zeros("F32", &[1, 2, 4096, 16]);
            }
            parts.set_scalar(&format!("{layer}.2"), 4096);
        }
        parts.remove_cairn_metadata();
    };
    fixture
        .check_damaged(longer, "its 4096 tokens leave no room in the 4096 that the model can read")
        .await;

    // Equal weights in another folder are the same model, although their files are newer.
    let mut elsewhere = fixture.parts.clone();
    elsewhere.set_metadata("cairn_model_fingerprint", "0".repeat(32));
    elsewhere.set_metadata("cairn_template_hash", "1".repeat(32));
    elsewhere.set_metadata("model", "/home/somebody/models/model");
    elsewhere.write(&fixture.file);
    assert_eq!(fixture.import(true).await, Ok(30));
}

#[tokio::test]
async fn false_metadata_is_refused() {
    let fixture = ImportFixture::of("llama/tiny-chat", 30, plain()).await;
    let metadata = async |key: &str, value: String, expected: &str| {
        fixture.check_damaged(|parts| parts.set_metadata(key, value), expected).await;
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
            |parts| parts.set_scalar("0.2", 31),
            "layer 0 has offset = 31, but it must be from 0 to 30",
        )
        .await;
    fixture.check_damaged(|parts| parts.set_scalar("0.2", -1), "layer 0 has offset = -1").await;
    fixture
        .check_damaged(|parts| parts.set_scalar("0.2", i32::MAX), "layer 0 has offset = 2147483647")
        .await;
    let nothing = |parts: &mut Parts| {
        parts.set_scalar("0.2", 0);
        parts.set_scalar("1.2", 0);
        parts.remove_cairn_metadata();
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
                .check_damaged_arrays(
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
async fn cache_kinds_that_the_model_does_not_store_are_refused_and_the_others_fit() {
    let ring = KvCacheOptions { max_size: Some(16), quantization: None, snapkv: None };
    let fixture = ImportFixture::of("llama/tiny-chat", 30, ring).await;
    fixture.check_refused("as `cairn generate --prompt-cache-file` does").await;
    let gemma = ImportFixture::of("gemma3_text/long-prompt", 30, plain()).await;
    let window = |parts: &mut Parts| {
        for name in ["0.0", "0.1"] {
            parts.tensor(name).zeros("F32", &[1, 2, 6, 8]);
        }
        parts.set_scalar("0.4", 6);
        parts.set_scalar("0.5", 6);
    };
    gemma
        .check_damaged(
            window,
            "is a rotating cache of 6 tokens with 2 heads of 8 numbers, but the model's",
        )
        .await;
    gemma
        .check_damaged(
            |parts| parts.set_scalar("0.5", 0),
            "no sequence of tokens produces such a cache",
        )
        .await;
    let keep = |parts: &mut Parts| {
        parts.set_scalar("0.3", 1);
        parts.set_scalar("0.5", 5);
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
        |parts| parts.set_scalar("0.4", 7),
        "kv_bits = 7, but it must be one of [2, 3, 4, 6, 8]",
    )
    .await;
    moe.check_damaged(|parts| parts.set_scalar("0.4", 4), "quantized in groups of 32 to 4 bits")
        .await;
    moe.check_damaged_arrays(
        |parts| parts.tensor("0.0.1").edit(|scales| scales[0] = f32::NAN),
        "NaN or infinite",
    )
    .await;
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
    fixture.check_refused("cannot read").await;
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
    parts.set_metadata("cairn_title", format!("\u{202e}evil\u{7}\n{}", "x".repeat(1 << 20)));
    parts.set_metadata("cairn_made_by", "\u{1b}[31m<script>");
    parts.set_metadata("model", "m\u{0}\u{2066}o");
    parts.set_metadata("cairn_created_at_ms", "99999999999999999999999");
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
