//! Headers that break a rule are refused with a sentence, and values are read by their kind.

use super::*;
use crate::gguf::GgmlType;
use crate::test_files::gguf::{TestGguf, TestTensor, file_with, text};
use crate::test_files::growth::check_linear;

/// Opens a spoiled sample and compares the sentence of the refusal, which follows the path.
fn check(spoil: impl FnOnce(&mut TestGguf), expected: &str) {
    let mut sample = TestGguf::tiny();
    spoil(&mut sample);
    check_bytes(&sample.bytes(), expected);
}

fn check_bytes(bytes: &[u8], expected: &str) {
    let (_folder, path) = file_with(bytes);
    let found = GgufFile::open(&path).err().map_or("no refusal".into(), |error| error.to_string());
    assert!(found.contains(expected), "expected {expected:?}, found {found:?}");
}

#[test]
fn values_are_read_by_kind() {
    let mut sample = TestGguf::tiny();
    sample.version = 2;
    sample.set("a.signed", 11, (-5_i64).to_le_bytes().into());
    sample.set("a.big", 10, u64::MAX.to_le_bytes().into());
    sample.set_array(
        "a.nested",
        9,
        1,
        [&4_u32.to_le_bytes()[..], &1_u64.to_le_bytes(), &9_u32.to_le_bytes()].concat(),
    );
    let (_folder, path) = file_with(&sample.bytes());
    let gguf = GgufFile::open(&path).unwrap();
    assert_eq!(gguf.text("general.architecture").unwrap(), Some("llama"));
    assert_eq!(gguf.text("general.absent").unwrap(), None);
    assert_eq!(gguf.count("llama.embedding_length").unwrap(), Some(32));
    assert_eq!(gguf.number("llama.attention.layer_norm_rms_epsilon").unwrap(), Some(1e-5));
    assert_eq!(gguf.texts("tokenizer.ggml.merges").unwrap().unwrap()[2], "he ll");
    assert_eq!(gguf.integers("tokenizer.ggml.token_type").unwrap().unwrap().len(), 263);
    for key in ["a.signed", "a.big", "a.nested", "general.architecture"] {
        assert!(gguf.count(key).is_err(), "{key} is not a count");
    }
    assert!(gguf.texts("a.nested").is_err() && gguf.integers("tokenizer.ggml.tokens").is_err());
    let down = gguf.tensor("blk.0.ffn_down.weight").unwrap();
    assert_eq!((down.shape.as_slice(), down.ggml_type), (&[32, 64][..], GgmlType::Q4_1));
    assert_eq!(down.bytes.end - down.bytes.start, 32 * 2 * 20);
}

/// The sample in three files of a folder, the keys in the first of them.
fn split_sample() -> (tempfile::TempDir, [std::path::PathBuf; 3]) {
    let folder = tempfile::tempdir().unwrap();
    let mut whole = TestGguf::tiny();
    let num_tensors = whole.tensors.len();
    let rest = whole.tensors.split_off(num_tensors / 2);
    // A part may have no tensors at all.
    let parts = [whole.tensors, Vec::new(), rest];
    let mut keys = whole.keys;
    let paths =
        std::array::from_fn(|part| folder.path().join(format!("m-{:05}-of-00003.gguf", part + 1)));
    for (number, (tensors, path)) in parts.into_iter().zip(&paths).enumerate() {
        let mut part = TestGguf { version: 3, keys: std::mem::take(&mut keys), tensors };
        part.set_u32("split.no", number as u32);
        part.set_u32("split.count", 3);
        part.set_u32("split.tensors.count", num_tensors as u32);
        std::fs::write(path, part.bytes()).unwrap();
    }
    (folder, paths)
}

#[test]
fn the_first_part_takes_the_others() {
    let (_folder, [first, ..]) = split_sample();
    let (split, mut whole) = (GgufFile::open(&first).unwrap(), TestGguf::tiny());
    assert_eq!(split.tensors().len(), whole.tensors.len());
    for tensor in split.tensors() {
        let mut found = vec![0; (tensor.bytes.end - tensor.bytes.start) as usize];
        split.read_at(tensor, &mut found, 0).unwrap();
        assert!(found == whole.tensor(&tensor.name).data, "{}", tensor.name);
    }
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let check = |change: fn(&[std::path::PathBuf; 3]) -> std::path::PathBuf, expected: &str| {
        let (_folder, paths) = split_sample();
        let opened = GgufFile::open(&change(&paths));
        let found = opened.err().map_or("no refusal".into(), |error| error.to_string());
        assert!(found.ends_with(expected), "expected {expected:?}, found {found:?}");
    };
    check(
        |paths| {
            std::fs::remove_file(&paths[2]).unwrap();
            paths[0].clone()
        },
        "m-00001-of-00003.gguf cannot be imported: it is the first of 3 parts, and \
         m-00003-of-00003.gguf is not beside it; put all parts into one folder",
    );
    check(
        |paths| paths[1].clone(),
        "it is part 2 of 3; choose the first, m-00001-of-00003.gguf, which takes the others with it",
    );
    check(
        |paths| {
            let renamed = paths[0].with_file_name("received.gguf");
            std::fs::rename(&paths[0], &renamed).unwrap();
            renamed
        },
        "it is one of 3 parts, which must lie in one folder, the first named like \
         NAME-00001-of-00003.gguf",
    );
    check(
        |paths| {
            std::fs::copy(&paths[1], &paths[2]).unwrap();
            paths[0].clone()
        },
        "m-00003-of-00003.gguf cannot be imported: it is not part 3 of 3: split.no is 1, expected 2; \
         download it again",
    );
    check(
        |paths| with_second(paths, |part| part.set_u32("split.count", 4)),
        "m-00002-of-00003.gguf cannot be imported: it is not part 2 of 3: split.count is 4, expected \
         3; download it again",
    );
    check(
        |paths| with_second(paths, |part| part.set_u32("split.tensors.count", 12)),
        "it is not part 2 of 3: split.tensors.count is 12, expected 11; download it again",
    );
    check(
        |paths| with_second(paths, |part| part.keys.clear()),
        "it is not part 2 of 3: split.no is absent, expected 1; download it again",
    );
    check(
        |paths| with_second(paths, |part| part.tensors = TestGguf::tiny().tensors.split_off(10)),
        "occurs twice; download it again",
    );
    check(
        |paths| {
            let mut more = TestGguf::tiny().tensors.split_off(10);
            more[0].name = "blk.1.more.weight".into();
            with_second(paths, |part| part.tensors = more)
        },
        "its parts have 12 tensors, expected 11; download them again",
    );
}

/// Writes another second part, and returns the first.
fn with_second(
    paths: &[std::path::PathBuf; 3],
    change: impl FnOnce(&mut TestGguf),
) -> std::path::PathBuf {
    let mut part = TestGguf { version: 3, keys: Vec::new(), tensors: Vec::new() };
    part.set_u32("split.no", 1);
    part.set_u32("split.count", 3);
    part.set_u32("split.tensors.count", 11);
    change(&mut part);
    std::fs::write(&paths[1], part.bytes()).unwrap();
    paths[0].clone()
}

#[test]
fn a_model_has_a_bounded_number_of_parts_and_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let part = |number: u32, count: u32, tensors| {
        let mut part = TestGguf { version: 3, keys: Vec::new(), tensors };
        part.set_u32("split.no", number - 1);
        part.set_u32("split.count", count);
        let path = folder.path().join(format!("m-{number:05}-of-{count:05}.gguf"));
        std::fs::write(&path, part.bytes()).unwrap();
        path
    };
    let check = |path: &Path, expected: &str| {
        let found = GgufFile::open(path).err().map_or("no refusal".into(), |e| e.to_string());
        assert!(found.ends_with(expected), "expected {expected:?}, found {found:?}");
    };
    let first = part(1, 257, Vec::new());
    check(&first, "split.count is 257; allowed is at most 256; download it again");
    // All tensors but one are in the first part.
    let tensor = |index: u64| TestTensor {
        name: format!("t{index}"),
        shape: vec![1],
        type_id: 0,
        data: vec![0; 4],
    };
    let first = part(1, 2, (1..=MAX_TENSORS).map(tensor).collect());
    part(2, 2, vec![tensor(0)]);
    check(&first, "the number of tensors is 65537; allowed is at most 65536; download it again");
}

#[test]
fn a_model_is_not_named_by_the_number_of_its_part() {
    assert_eq!(model_name("Big-Q4-00001-of-00003"), "Big-Q4");
    for whole in ["Big-1-of-3", "Big-0000x-of-00003", "00001-of-00003", "Big"] {
        assert_eq!(model_name(whole), whole);
    }
}

#[test]
fn what_is_no_gguf_is_named() {
    check_bytes(b"", "expected at least 4 bytes, found 0");
    check_bytes(b"GGU", "expected at least 4 bytes");
    check_bytes(b"GGML and more", "is not a GGUF file");
    check(
        |sample| sample.version = 1,
        "GGUF version 1; Cairn imports little-endian versions 2 and 3",
    );
    check(|sample| sample.version = 3_u32.swap_bytes(), "GGUF version 50331648");
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(
        GgufFile::open(folder.path()),
        Err(GgufError::File(FileError::NotAFile { .. }))
    ));
}

#[test]
fn lying_counts_and_lengths_are_refused_before_anything_is_reserved() {
    const HUGE: usize = usize::MAX;
    let preamble = |tensors: u64, keys: u64| {
        [b"GGUF\x03\0\0\0".to_vec(), tensors.to_le_bytes().into(), keys.to_le_bytes().into()]
            .concat()
    };
    check_bytes(
        &preamble(u64::MAX, 0),
        "the number of tensors is 18446744073709551615; allowed is at most 65536",
    );
    check_bytes(&preamble(0, u64::MAX), "the number of keys is 18446744073709551615");
    check_bytes(&preamble(65_536, 4_096), "expected at least 32 bytes, found 24");
    check_bytes(&preamble(65_536, 0), "expected at least 32 bytes, found 24");
    check(|sample| sample.set_array("a", 8, HUGE, vec![]), "expected at least");
    check(
        |sample| sample.set_array("a", 4, HUGE, vec![]),
        "expected at least 18446744073709551615 bytes",
    );
    check(
        |sample| sample.set_array("a", 0, HUGE, vec![]),
        "expected at least 18446744073709551615 bytes",
    );
    check(
        |sample| sample.set_array("a", 9, HUGE, vec![]),
        "the kind of \"a\" is 17; allowed is 0 to 12",
    );
    check(|sample| sample.set_array("a", 77, 1, vec![]), "the kind of \"a\" is 77");
    check(|sample| sample.set("a", 13, vec![]), "the kind of \"a\" is 13; allowed is 0 to 12");
    check(
        |sample| sample.set("a", 8, u64::MAX.to_le_bytes().into()),
        "expected at least 18446744073709551615 bytes",
    );
    check(|sample| sample.set("a", 7, vec![2]), "\"a\" is 2; allowed is 0 or 1 for a boolean");
    check(
        |sample| sample.set_text(&"k".repeat(1025), ""),
        "the length of a key is 1025; allowed is at most 1024 bytes",
    );
    let nested =
        (0..8).flat_map(|_| [&9_u32.to_le_bytes()[..], &1_u64.to_le_bytes()].concat()).collect();
    check(
        move |sample| sample.set_array("a", 9, 1, nested),
        "the nesting of \"a\" is 3; allowed is at most 3",
    );
}

#[test]
fn names_are_texts_that_occur_once() {
    check(
        |sample| sample.keys.push(("general.name".into(), 8, text("again"))),
        r#"the name "general.name" occurs twice"#,
    );
    check(
        |sample| sample.tensors[2].name = "token_embd.weight".into(),
        r#"the name "token_embd.weight" occurs twice"#,
    );
    let mut bytes = TestGguf::tiny().bytes();
    let at = bytes.windows(12).position(|window| window == b"general.name").unwrap();
    bytes[at] = 0xff;
    check_bytes(&bytes, "a key is not UTF-8");
}

#[test]
fn tensors_lie_inside_the_file_apart_from_each_other() {
    let q = "blk.0.attn_q.weight";
    check(
        |sample| sample.tensor(q).shape = vec![],
        "the rank of \"blk.0.attn_q.weight\" is 0; allowed is 1 to 4",
    );
    check(|sample| sample.tensor(q).shape = vec![1; 5], "the rank of \"blk.0.attn_q.weight\" is 5");
    check(
        |sample| sample.tensor(q).shape = vec![0, 32],
        "a dimension of \"blk.0.attn_q.weight\" is 0; allowed is 1 to 2147483647",
    );
    check(
        |sample| sample.tensor(q).shape = vec![1 << 31, 32],
        "a dimension of \"blk.0.attn_q.weight\" is 2147483648",
    );
    check(
        |sample| sample.tensor(q).shape = vec![1 << 30; 4],
        "expected at least 18446744073709551615 bytes",
    );
    check(
        |sample| sample.tensor(q).shape = vec![32, 33],
        "the row length of \"blk.0.attn_q.weight\" is 33; allowed is a multiple of 32",
    );
    check(|sample| sample.tensor("output_norm.weight").shape = vec![1 << 20], "expected at least");
    check(
        |sample| sample.tensor(q).shape = vec![64, 32],
        r#"tensors "blk.0.attn_q.weight" and "blk.0.attn_k.weight" overlap"#,
    );
    check(
        |sample| sample.set_u32("general.alignment", 3),
        "general.alignment is 3; allowed is a power of two from 8",
    );
    check(|sample| sample.set_u32("general.alignment", 0), "general.alignment is 0");
    check(
        |sample| sample.set_u32("general.alignment", 512),
        "is 8960; allowed is a multiple of 512",
    );
    check(
        |sample| sample.set_text("general.alignment", "32"),
        "general.alignment is not an integer",
    );
}

#[test]
fn a_refusal_is_one_line_whatever_the_file_says() {
    let name = "w\n\u{1b}[31m\u{202e}".repeat(100);
    let spoilt = |spoil: &dyn Fn(&mut TestGguf)| {
        let mut file = TestGguf::tiny();
        spoil(&mut file);
        let (_folder, path) = file_with(&file.bytes());
        GgufFile::open(&path).err().map_or("no refusal".into(), |error| error.to_string())
    };
    for refusal in [
        spoilt(&|file| {
            file.tensors[1].name = name.clone();
            file.tensors[1].shape = Vec::new();
        }),
        spoilt(&|file| {
            file.tensors[1].name = name.clone();
            file.tensors[2].name = name.clone();
        }),
        spoilt(&|file| file.set(&name, 99, Vec::new())),
        spoilt(&|file| file.set(&name, 7, vec![2])),
    ] {
        assert!(refusal.contains(r"w\n\u{1b}[31m\u{202e}w"), "{refusal:?}");
        assert!(!refusal.contains(['\n', '\u{1b}', '\u{202e}']), "{refusal:?}");
        assert!(refusal.chars().count() < 600, "{refusal:?}");
    }
}

#[test]
fn reads_names_and_texts_in_linear_time() {
    let opens = |(_folder, path): (tempfile::TempDir, PathBuf)| {
        GgufFile::open(&path).unwrap();
    };
    let with_tensors = |count: usize| {
        let tensor = |at: usize| TestTensor {
            name: format!("blk.{at}.w"),
            shape: vec![8],
            type_id: 0,
            data: vec![0; 32],
        };
        let tensors = (0..count).map(tensor).collect();
        file_with(&TestGguf { version: 3, keys: Vec::new(), tensors }.bytes())
    };
    check_linear("tensors", 1000, with_tensors, opens);
    let with_keys = |count: usize| {
        let mut file = TestGguf::tiny();
        for at in 0..count {
            file.keys.push((format!("key.{at}"), 4, vec![0; 4]));
        }
        file_with(&file.bytes())
    };
    check_linear("keys", 250, with_keys, opens);
    let with_tokens = |count: usize| {
        let mut file = TestGguf::tiny();
        let tokens: Vec<String> = (0..count).map(|at| format!("token {at}")).collect();
        file.set_texts("tokenizer.ggml.tokens", &tokens);
        file_with(&file.bytes())
    };
    check_linear("texts", 2000, with_tokens, |(_folder, path)| {
        let file = GgufFile::open(&path).unwrap();
        file.texts("tokenizer.ggml.tokens").unwrap().unwrap();
    });
}
