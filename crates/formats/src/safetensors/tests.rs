//! Headers and weight files that break a rule are refused with a sentence.

use super::*;
use crate::test_files::growth::check_linear;

/// A file of this header and this many bytes of values.
fn file_of(header: &str, data_bytes: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data_bytes]].concat()
}

fn open(bytes: &[u8], limits: Limits) -> Result<SafetensorsFile, SafetensorsError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, bytes).unwrap();
    SafetensorsFile::open(&path, limits)
}

fn refused(bytes: &[u8], expected: &str) {
    let found =
        open(bytes, Limits::MODEL).err().map_or("no refusal".into(), |error| error.to_string());
    assert!(found.contains(expected), "expected {expected:?}, found {found:?}");
    assert!(found.contains("model.safetensors"), "{found:?} names no file");
}

fn tensor(name: &str, dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#"{name:?}:{{"dtype":{dtype:?},"shape":{shape},"data_offsets":{offsets}}}"#)
}

/// One tensor `w` of two bytes a value, claimed to fill the bytes that its offsets say.
fn one(shape: &str, offsets: &str, data_bytes: usize) -> Vec<u8> {
    file_of(&format!("{{{}}}", tensor("w", "F16", shape, offsets)), data_bytes)
}

#[test]
fn a_file_is_read_as_the_crate_wrote_it() {
    let values: Vec<u8> = (0..24).collect();
    let view = |shape: &[usize], data: &'static [u8]| {
        safetensors::tensor::TensorView::new(safetensors::Dtype::BF16, shape.into(), data)
    };
    let long: &'static [u8] = values.clone().leak();
    let tensors = [
        ("b", view(&[2, 6], long).unwrap()),
        ("a", view(&[], &[1, 2]).unwrap()),
        ("c", view(&[1], &[3, 4]).unwrap()),
    ];
    let metadata = HashMap::from([("format".to_string(), "mlx".to_string())]);
    let file =
        open(&safetensors::serialize(tensors, Some(metadata)).unwrap(), Limits::CACHE).unwrap();
    assert_eq!(file.metadata().get("format").unwrap(), "mlx");
    let found: Vec<_> = file
        .tensors()
        .iter()
        .map(|tensor| (tensor.name.as_str(), tensor.shape.as_slice()))
        .collect();
    assert_eq!(found, [("a", &[][..]), ("b", &[2, 6]), ("c", &[1])]);
    assert_eq!((file.tensor("b").unwrap().dtype, file.data_bytes()), (Dtype::Bf16, 28));
    assert_eq!(file.read_tensor("a").unwrap(), [1, 2]);
    assert_eq!(file.read_tensor("b").unwrap(), values);
    assert!(matches!(file.read_tensor("d"), Err(SafetensorsError::NoSuchTensor { .. })));
}

#[test]
fn every_allowed_dtype_has_the_size_that_the_format_gives_it() {
    for (dtype, name) in Dtype::ALL {
        let known: safetensors::Dtype = serde_json::from_str(&format!("{name:?}")).unwrap();
        assert_eq!(known.bitsize() as u64, 8 * dtype.size_bytes(), "{name}");
        assert_eq!(dtype.name(), *name);
    }
    for name in ["F64", "C64", "F8_E5M2", "F4", "f32", ""] {
        let header = format!("{{{}}}", tensor("w", name, "[2]", "[0,16]"));
        refused(
            &file_of(&header, 16),
            &format!("tensor \"w\" has dtype {name:?}; allowed are F32, F16, BF16"),
        );
    }
}

#[test]
fn lies_about_the_header_are_refused() {
    refused(b"", "it has 0 bytes, but should have at least 8; download or import it again");
    refused(b"1234567", "it has 7 bytes, but should have at least 8");
    refused(
        &u64::MAX.to_le_bytes(),
        "its header claims 18446744073709551615 bytes, at most 67108864 are allowed",
    );
    refused(&(64_u64 << 20).to_le_bytes(), "it has 8 bytes, but should have at least 67108872");
    refused(
        &[&99_u64.to_le_bytes()[..], b"{}"].concat(),
        "it has 10 bytes, but should have at least 107",
    );
    refused(&file_of("", 0), "unreadable header");
    refused(&file_of("[]", 0), "unreadable header");
    refused(&file_of("{} {}", 0), "unreadable header");
    refused(
        &file_of(&format!("{}{}", "[".repeat(10_000), "]".repeat(10_000)), 0),
        "unreadable header",
    );
    refused(&file_of(r#"{"__metadata__":{"a":1}}"#, 0), "unreadable header");
    refused(&[&4_u64.to_le_bytes()[..], &[b'{', 0xff, b'"', b'}']].concat(), "unreadable header");
    let long = format!(r#"{{"__metadata__":{{"a":"{}"}}}}"#, "x".repeat(9 << 20));
    assert!(matches!(
        open(&file_of(&long, 0), Limits::CACHE),
        Err(SafetensorsError::Header { problem: HeaderProblem::TooLong { .. }, .. })
    ));
    assert!(open(&file_of(&long, 0), Limits::MODEL).is_ok());
}

#[test]
fn shapes_are_positive_and_bounded() {
    refused(
        &one("[0]", "[0,0]", 0),
        r#"tensor "w" has shape [0]; each dimension must be from 1 to 2147483647"#,
    );
    refused(&one("[0,4611686018427387904]", "[0,0]", 0), "has shape [0, 4611686018427387904]");
    refused(&one("[1,0,1]", "[0,0]", 0), "has shape [1, 0, 1]");
    refused(&one("[4294967297]", "[0,8589934594]", 0), "has shape [4294967297]");
    refused(&one("[2147483647,2147483647,2147483647]", "[0,2]", 2), "has shape [2147483647");
    refused(&one("[2147483647,2147483647]", "[0,9223372028264841218]", 2), "has shape [2147483647");
    refused(&one("[-1]", "[0,2]", 2), "unreadable header");
    refused(&one("[1.5]", "[0,2]", 2), "unreadable header");
    refused(&one(&format!("{:?}", [1; 17]), "[0,2]", 2), "with 16 dimensions at most");
    assert!(open(&one("[]", "[0,2]", 2), Limits::CACHE).is_ok());
    assert!(open(&one("[0]", "[0,0]", 0), Limits::CACHE).is_ok());
    assert!(
        open(&file_of(r#"{"__metadata__":null}"#, 0), Limits::MODEL).unwrap().metadata().is_empty()
    );
    assert!(open(&one("[0,4294967296]", "[0,0]", 0), Limits::CACHE).is_err());
    assert!(open(&one(&format!("{:?}", [1; 16]), "[0,2]", 2), Limits::CACHE).is_ok());
}

#[test]
fn tensors_fill_the_file_end_to_end() {
    refused(
        &one("[2]", "[0,4]", 3),
        "it has 65 bytes, but should have at least 66; download or import it again",
    );
    refused(&one("[2]", "[0,4]", 5), "67 bytes, but its last tensor ends at 66");
    refused(&one("[2]", "[0,5]", 5), "lies at bytes (0, 5), expected (0, 4)");
    refused(&one("[2]", "[1,5]", 5), "lies at bytes (1, 5), expected (0, 4)");
    refused(&one("[2]", "[4,0]", 4), "lies at bytes (4, 0)");
    refused(
        &one("[2]", "[18446744073709551612,18446744073709551615]", 4),
        "lies at bytes (18446744073709551612",
    );
    let overlapping =
        format!("{{{},{}}}", tensor("a", "U8", "[4]", "[0,4]"), tensor("b", "U8", "[4]", "[2,6]"));
    refused(&file_of(&overlapping, 6), r#"tensor "b" lies at bytes (2, 6), expected (4, 8)"#);
    refused(&file_of("{}", 1), "11 bytes, but its last tensor ends at 10");
}

#[test]
fn names_occur_once() {
    let twice =
        format!("{{{},{}}}", tensor("w", "U8", "[4]", "[0,4]"), tensor("w", "U8", "[4]", "[4,8]"));
    refused(&file_of(&twice, 8), r#"the name "w" occurs twice"#);
    refused(&file_of(r#"{"__metadata__":{"k":"1","k":"2"}}"#, 0), r#"the name "k" occurs twice"#);
    refused(
        &file_of(r#"{"__metadata__":{},"__metadata__":{}}"#, 0),
        r#"the name "__metadata__" occurs twice"#,
    );
}

#[test]
fn a_truncated_or_altered_file_is_refused_without_a_panic() {
    let header = format!(
        "{{{},{}}}",
        tensor("a", "F32", "[4,4]", "[0,64]"),
        tensor("b", "U8", "[64]", "[64,128]")
    );
    let mut bytes = file_of(&header, 128);
    for part in 0..64 {
        let end = bytes.len() * part / 64;
        assert!(
            matches!(
                open(&bytes[..end], Limits::MODEL),
                Err(SafetensorsError::Header { problem: HeaderProblem::Truncated { .. }, .. })
            ),
            "at {end}"
        );
    }
    for at in 0..bytes.len() - 128 {
        for bit in 0..8 {
            bytes[at] ^= 1 << bit;
            // What is still accepted must be accepted by the format's own reader too.
            if open(&bytes, Limits::MODEL).is_ok() {
                assert!(
                    safetensors::SafeTensors::deserialize(&bytes).is_ok(),
                    "byte {at}, bit {bit}"
                );
            }
            bytes[at] ^= 1 << bit;
        }
    }
}

#[test]
fn tensors_come_from_the_file_that_was_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, one("[1]", "[0,2]", 2)).unwrap();
    let file = SafetensorsFile::open(&path, Limits::MODEL).unwrap();
    std::fs::rename(&path, folder.path().join("old")).unwrap();
    std::fs::write(&path, "another file").unwrap();
    assert_eq!(file.read_tensor("w").unwrap(), [0, 0]);
    assert!(matches!(
        SafetensorsFile::open(folder.path(), Limits::MODEL),
        Err(SafetensorsError::File(FileError::NotAFile { .. }))
    ));
}

/// Writes a folder of (file, contents) and checks its weights: the number of files, or the
/// sentence of the refusal.
fn check_folder(contents: &[(&str, Vec<u8>)], expected: Result<usize, &str>) {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in contents {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    match (check_weight_files(folder.path()), expected) {
        (Ok(files), Ok(count)) => assert_eq!(files.len(), count),
        (Err(error), Err(part)) => {
            assert!(error.to_string().contains(part), "expected {part:?}, found {error}")
        }
        (found, expected) => panic!("expected {expected:?}, found {found:?}"),
    }
}

#[test]
fn a_models_files_are_found_and_must_agree() {
    let shard = |name: &str| file_of(&format!("{{{}}}", tensor(name, "U8", "[4]", "[0,4]")), 4);
    let index = |file: &str| {
        (
            "model.safetensors.index.json",
            format!(r#"{{"metadata":{{}},"weight_map":{{"a":{file:?}}}}}"#).into_bytes(),
        )
    };
    let (one, two) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
    check_folder(&[], Err("has no model.safetensors or model*.safetensors"));
    check_folder(&[("adapters.safetensors", shard("a"))], Err("has no model.safetensors"));
    check_folder(
        &[("model.safetensors", shard("a")), ("adapters.safetensors", b"not read".to_vec())],
        Ok(1),
    );
    check_folder(&[(one, shard("a")), (two, shard("b"))], Ok(2));
    check_folder(&[(one, shard("a")), (two, shard("b")), index(one)], Ok(2));
    check_folder(&[("weights.safetensors", shard("a")), index("weights.safetensors")], Ok(1));
    check_folder(&[(one, shard("a")), (two, shard("a"))], Err(r#"tensor "a" is in "#));
    check_folder(
        &[(one, shard("a")), index(two)],
        Err(r#"names "model-00002-of-00002.safetensors", which is not in the folder"#),
    );
    check_folder(
        &[(one, shard("a")), index("../model.safetensors")],
        Err(r#"names "../model.safetensors""#),
    );
    // An index of other weights, which were replaced.
    let old = index("model-00001-of-00009.safetensors");
    check_folder(&[("model.safetensors", shard("a")), old.clone()], Ok(1));
    check_folder(&[("model.safetensors", shard("a")), index(one)], Ok(1));
    check_folder(&[(one, shard("a")), (two, shard("b")), old.clone()], Ok(2));
    check_folder(&[(one, shard("a")), old.clone()], Err("model-00001-of-00009"));
    check_folder(&[old], Err("model-00001-of-00009"));
    check_folder(&[(one, shard("a")), index("model.bin")], Err(r#"names "model.bin""#));
    check_folder(
        &[(one, shard("a")), ("model.safetensors.index.json", b"{}".to_vec())],
        Err("is no index of weight files: missing field"),
    );
    check_folder(
        &[(one, shard("a")), (two, b"12".to_vec())],
        Err("model-00002-of-00002.safetensors is incomplete: it has 2 bytes"),
    );
}

/// A file with `num_tensors` tensors of one value each.
fn file_of_many(num_tensors: usize) -> Vec<u8> {
    let tensors: Vec<String> = (0..num_tensors)
        .map(|at| tensor(&format!("layers.{at}.w"), "U8", "[1]", &format!("[{at},{}]", at + 1)))
        .collect();
    file_of(&format!("{{{}}}", tensors.join(",")), num_tensors)
}

#[test]
fn refuses_more_tensors_than_the_limit() {
    let found = open(&file_of_many(header::MAX_TENSORS + 1), Limits::MODEL).unwrap_err();
    let expected = "is no file of a model that Cairn knows: it has more than 131072 tensors";
    assert!(found.to_string().contains(expected), "{found}");
}

#[test]
fn reads_headers_in_linear_time() {
    let write = |bytes: Vec<u8>| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        folder
    };
    let check = |folder: tempfile::TempDir| {
        check_weight_files(folder.path()).unwrap();
    };
    check_linear("tensors", 1000, |count| write(file_of_many(count)), check);
    let with_metadata = |count: usize| {
        let entries: Vec<String> = (0..count).map(|at| format!(r#""key {at}":"value""#)).collect();
        let header = format!(
            r#"{{"__metadata__":{{{}}},"w":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#,
            entries.join(",")
        );
        write(file_of(&header, 1))
    };
    check_linear("metadata", 1000, with_metadata, check);
    let with_index = |count: usize| {
        let folder = write(file_of_many(1));
        let map: Vec<String> =
            (0..count).map(|at| format!(r#""layers.{at}.w":"model.safetensors""#)).collect();
        let index = format!(r#"{{"weight_map":{{{}}}}}"#, map.join(","));
        std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
        folder
    };
    check_linear("index", 1000, with_index, check);
}
