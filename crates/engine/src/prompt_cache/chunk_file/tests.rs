//! Chunk files are read as they were written, and refused where anything of them changed.

use super::*;
use cairn_prompt_cache::{KvFormat, Tokens};

const MODEL: &str = "0123456789abcdef0123456789abcdef";

fn record() -> ChunkRecord {
    let mut record = ChunkRecord {
        key: ChunkKey::from_bytes([0; 16]),
        parent: None,
        namespace: Namespace::computed(MODEL, KvFormat::Plain),
        kind: ChunkKind::User,
        start: 0,
        tokens: Tokens::known([5, 6, 7]),
        held_from: 0,
        has_state: false,
        file: None,
        hits: 0,
        created_at_ms: 0,
        last_used_at_ms: 0,
    };
    record.key = record.expected_key();
    record
}

fn contents(bytes: &[u8]) -> ChunkContents {
    let tensor = StateTensor {
        name: "keys.0".to_owned(),
        dtype: Dtype::Uint32,
        shape: vec![bytes.len() / 4],
        range: 0..bytes.len(),
    };
    ChunkContents::new(ChunkState {
        tensors: vec![tensor],
        bytes: bytes.to_vec(),
        held_from: 0,
        has_state: false,
    })
}

/// The bytes of the file of a chunk with these contents.
fn file(bytes: &[u8]) -> Vec<u8> {
    file_of(&record(), bytes)
}

fn file_of(record: &ChunkRecord, bytes: &[u8]) -> Vec<u8> {
    coded_file_of(record, bytes, FileCoding::Plain)
}

fn coded_file_of(record: &ChunkRecord, bytes: &[u8], coding: FileCoding) -> Vec<u8> {
    let contents = contents(bytes);
    let file = contents.to_file(record, &layout(), coding).unwrap();
    [file.header, file.bytes.into_owned()].concat()
}

fn layout() -> CacheLayout {
    cairn_lm::cache::CacheSpec::new(Vec::new()).layout().unwrap()
}

/// Writes the chunk "ours" over an existing file; returns whether that file stayed.
fn keeps_existing(there: &[u8]) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let path = path(folder.path(), &MODEL.into(), &record().key);
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    std::fs::write(&path, there).unwrap();
    let contents = contents(b"ours");
    let file = contents.to_file(&record(), &layout(), FileCoding::Plain).unwrap();
    let ours = [&file.header, &*file.bytes].concat();
    let written = file.write(&path).unwrap();
    let found = std::fs::read(&path).unwrap();
    assert_eq!(written.hash, hash(&found));
    assert_eq!(written.num_bytes, found.len() as u64);
    assert!(found == there || found == ours);
    found == there
}

#[test]
fn a_valid_file_of_the_chunk_stays_and_any_other_is_replaced() {
    let theirs = file(b"them");
    assert!(keeps_existing(&theirs));
    // Damaged files of the same length.
    for at in [theirs.len() - 1, 20] {
        let mut damaged = theirs.clone();
        damaged[at] ^= 1;
        assert!(!keeps_existing(&damaged), "byte {at}");
    }
    assert!(!keeps_existing(&theirs[..theirs.len() - 1]));
    assert!(!keeps_existing(b"foreign"));
}

#[test]
fn a_record_is_rebuilt_from_its_file_and_any_changed_byte_is_noticed() {
    for coding in [FileCoding::Plain, FileCoding::BytePlanes] {
        check_changed_bytes(&coded_file_of(&record(), &b"ours".repeat(20), coding));
    }
}

fn check_changed_bytes(whole: &[u8]) {
    let folder = tempfile::tempdir().unwrap();
    let path = path(folder.path(), &MODEL.into(), &record().key);
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    std::fs::write(&path, whole).unwrap();
    let proven = prove(&path).unwrap();
    let expected = |bytes: &[u8], found: &ChunkRecord| ChunkRecord {
        file: Some(ChunkFile { num_bytes: bytes.len() as u64, hash: hash(bytes) }),
        created_at_ms: found.created_at_ms,
        last_used_at_ms: found.last_used_at_ms,
        ..record()
    };
    assert_eq!(proven, expected(whole, &proven));
    for at in 0..whole.len() {
        let mut changed = whole.to_vec();
        changed[at] ^= 1;
        std::fs::write(&path, &changed).unwrap();
        // Some bytes of JSON have no meaning, such as the spaces at its end.
        let means_the_same = prove(&path).is_ok_and(|found| found == expected(&changed, &found));
        let is_refused = prove(&path).is_err_and(|error| error.is_lasting());
        assert!(means_the_same || is_refused, "byte {at}");
    }
    std::fs::write(&path, whole).unwrap();
    assert!(is_own(&path));
    let link = path.with_file_name("fedcba9876543210fedcba9876543210.safetensors");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(prove(&link).is_err() && !is_own(&link));
}

/// Writes the chunk's file with `change`d bytes and reads it, as its record says that it was
/// written.
fn read_changed(
    bytes: &[u8],
    coding: FileCoding,
    change: impl Fn(&mut Vec<u8>),
) -> Result<ChunkContents, ChunkError> {
    let folder = tempfile::tempdir().unwrap();
    let mut record = record();
    let mut file = coded_file_of(&record, bytes, coding);
    change(&mut file);
    record.file = Some(ChunkFile { num_bytes: file.len() as u64, hash: hash(&file) });
    let path = path(folder.path(), &MODEL.into(), &record.key);
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    std::fs::write(&path, &file).unwrap();
    ChunkReader::default().read(folder.path(), &record, vec![1; 7])
}

#[test]
fn contents_come_back_from_plain_and_from_coded_files() {
    let bytes: Vec<u8> = (0..40_000_u32).flat_map(|index| (index % 977).to_le_bytes()).collect();
    for coding in [FileCoding::Plain, FileCoding::BytePlanes] {
        let read = read_changed(&bytes, coding, |_| {}).unwrap();
        let tensor = read.tensor("keys.0").unwrap();
        assert_eq!((tensor.dtype, tensor.shape), (Dtype::Uint32, vec![40_000]), "{coding:?}");
        assert!(tensor.bytes == bytes, "{coding:?}");
    }
    let lengths = [FileCoding::Plain, FileCoding::BytePlanes]
        .map(|coding| coded_file_of(&record(), &bytes, coding).len());
    assert!(lengths[1] * 3 < lengths[0] * 2, "{lengths:?}");
}

#[test]
fn one_reader_reads_plain_and_coded_files_by_turns() {
    let folder = tempfile::tempdir().unwrap();
    let (mut reader, mut spare) = (ChunkReader::default(), Vec::new());
    for (index, length) in [400, 4000, 40, 80_000, 4].into_iter().enumerate() {
        let mut record = record();
        record.tokens = Tokens::known([index as u32]);
        record.key = record.expected_key();
        let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8 + index as u8).collect();
        let coding = [FileCoding::BytePlanes, FileCoding::Plain][index % 2];
        let written = contents(&bytes);
        let file = written.to_file(&record, &layout(), coding).unwrap();
        let path = path(folder.path(), &MODEL.into(), &record.key);
        record.file = Some(file.write(&path).unwrap());
        let read = reader.read(folder.path(), &record, spare).unwrap();
        assert!(read.tensor("keys.0").unwrap().bytes == bytes, "{length} bytes");
        spare = read.into_bytes();
    }
}

#[test]
fn a_coded_file_that_says_something_else_than_it_holds_is_damaged() {
    let bytes = [7; 4000];
    let replace = |from: &'static str, to: &'static str| {
        assert_eq!(from.len(), to.len());
        move |file: &mut Vec<u8>| {
            let at = file.windows(from.len()).position(|bytes| bytes == from.as_bytes());
            let at = at.unwrap();
            file[at..at + from.len()].copy_from_slice(to.as_bytes());
        }
    };
    let is_damaged = |change: &dyn Fn(&mut Vec<u8>)| {
        let read = read_changed(&bytes, FileCoding::BytePlanes, change);
        read.is_err_and(|error| error.is_lasting())
    };
    assert!(!is_damaged(&|_| {}));
    assert!(is_damaged(&replace("[1000]", "[1001]")), "longer");
    assert!(is_damaged(&replace("[1000]", "[ 999]")), "shorter");
    assert!(is_damaged(&replace("[1000]", "[1e19]")), "no length");
    assert!(is_damaged(&replace("\\\"U32\\\"", "\\\"F16\\\"")), "another type");
    assert!(is_damaged(&replace("\\\"U32\\\"", "\\\"I32\\\"")), "no type of a cache");
    assert!(is_damaged(&replace("\"tensors\"", "\"tensorz\"")), "undescribed");
}

#[test]
fn a_pipe_in_the_place_of_a_chunk_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut record = record();
    record.file = Some(ChunkFile { num_bytes: 1, hash: hash(b"?") });
    let path = path(folder.path(), &MODEL.into(), &record.key);
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let (sender, refused) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let read = ChunkReader::default().read(folder.path(), &record, Vec::new());
        let read_errors = [read.err(), super::layout(&path).err()];
        sender.send(read_errors.map(|error| error.is_some_and(|error| error.is_lasting())))
    });
    // Only a failing test waits so long.
    let refused = refused.recv_timeout(std::time::Duration::from_secs(60));
    assert_eq!(refused, Ok([true, true]), "it is damaged, which a later attempt cannot change");
}

#[test]
fn a_file_that_describes_an_impossible_chunk_proves_no_record() {
    fn check(change: impl Fn(&mut ChunkRecord), is_proven: bool) {
        let mut record = record();
        change(&mut record);
        record.key = record.expected_key();
        let folder = tempfile::tempdir().unwrap();
        let path = path(folder.path(), &MODEL.into(), &record.key);
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        std::fs::write(&path, file_of(&record, b"ours")).unwrap();
        assert_eq!(prove(&path).is_ok(), is_proven, "{record:?}");
    }
    check(|_| {}, true);
    check(|record| record.tokens = Tokens::known([1; MAX_CHUNK_TOKENS]), true);
    check(|record| record.tokens = Tokens::known([1; MAX_CHUNK_TOKENS + 1]), false);
    check(|record| record.held_from = record.stop() + 1, false);
    check(|record| (record.start, record.held_from) = (usize::MAX, usize::MAX), false);
}

#[test]
fn files_are_recognized_by_their_names() {
    let check = |name: &str, expected: FileName| assert_eq!(file_name(name), expected, "{name}");
    check("0123456789abcdef0123456789abcdef.safetensors", FileName::Chunk);
    check(".writing-a1B2c3.tmp", FileName::Temporary);
    check(".filing-a1B2c3.tmp", FileName::Temporary);
    for name in ["model.safetensors", "notes.txt", ".lock", "0123.safetensors", "a.tmp", ""] {
        check(name, FileName::Foreign);
    }
}
