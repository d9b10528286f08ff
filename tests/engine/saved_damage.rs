//! Damaged chunk files and a disk that cannot be written: answers stay the same, and the reason is
//! reported.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use cairn_engine::{GenerateRequest, KvCacheOptions, KvQuantization, Repaired};
use cairn_prompt_cache::{
    ChunkFile, ChunkProblem, ChunkRecord, LossReason, Miss, MissReason, Owner,
};
use cairn_sweeps::sweep;
use tempfile::TempDir;

use crate::file_parts::{Parts, Tensor, with_header};
use crate::scripted::Scripted;
use crate::test_engine::{
    BOTH, Budgets, CacheRows, IN_MEMORY, ON_DISK, Random, Talk, TestEngine, ask, chat_model,
    fresh_folder, num_in_caches, owner,
};

static OWNER: LazyLock<Owner> = LazyLock::new(|| owner("conversation/1"));

/// A conversation whose files are damaged one by one, and the answer to its next question.
struct Damaged {
    harness: TestEngine,
    next: GenerateRequest,
    /// The most tokens of the next question that can come from the cache.
    limit: usize,
    expected: Vec<u32>,
    folder: PathBuf,
    can_go_back: bool,
}

impl Damaged {
    async fn new(model: &Path, folder: &Path, can_go_back: bool) -> Damaged {
        let harness = TestEngine::start(model, folder, ON_DISK, CacheRows::default()).await;
        let mut talk = Talk::new("AID ME AND LEAD ME HOME");
        let first = harness.answer(ask(talk.asking("FIND A MILE"), &OWNER)).await;
        talk.add("FIND A MILE", &first);
        let next = GenerateRequest { max_tokens: 4, ..ask(talk.asking("AND A CALM LAND"), &OWNER) };
        let answer = harness.answer(next.clone()).await;
        let (limit, expected) =
            (answer.finished.stats.num_prompt_tokens - 1, answer.finished.token_ids);
        harness.engine.flush_cache().await;
        Damaged { harness, next, limit, expected, folder: folder.to_owned(), can_go_back }
    }

    /// The chunks of the conversation, the next question and its answer. A chunk that
    /// was lost is stored again by the next answer.
    fn chunks(&self) -> Vec<ChunkRecord> {
        self.harness.handle().path(&OWNER)
    }

    fn file(&self, record: &ChunkRecord) -> PathBuf {
        self.folder
            .join(record.namespace.model.as_str())
            .join(format!("{}.safetensors", record.key))
    }

    /// Asks with a damaged file: either a miss with its reason, or a hit that does not need the
    /// file; the answer is the same.
    async fn check(&mut self, index: usize, damage: impl FnOnce(&mut Vec<u8>), what: &str) {
        self.harness.engine.forget_conversations().await;
        let record = self.chunks().swap_remove(index);
        let path = self.file(&record);
        let whole = std::fs::read(&path).expect("the chunk");
        let mut bytes = whole.clone();
        damage(&mut bytes);
        std::fs::write(&path, bytes).expect("written");
        let answer = self.harness.answer(self.next.clone()).await.finished;
        let what = format!("chunk {index}, {what}");
        assert_eq!(answer.token_ids, self.expected, "{what}");
        let cached = answer.stats.num_cached_tokens;
        match answer.miss {
            Some(Miss { reason, .. }) => {
                let is_damage = matches!(reason, MissReason::Unusable(ChunkProblem::Damaged(_)));
                assert!(is_damage, "{what}: {reason:?}");
                assert!(
                    cached == record.start || (cached < record.start && !self.can_go_back),
                    "{what}: {cached} tokens"
                );
            }
            None => {
                // The file was not needed, so the damage was not noticed.
                assert!(
                    cached <= record.start && (record.start >= self.limit || !self.can_go_back),
                    "{what}: {cached} tokens"
                );
                std::fs::write(&path, &whole).expect("written");
            }
        }
        self.harness.settle().await;
        assert!(
            self.chunks().last().is_some_and(|record| record.stop() > self.limit),
            "{what}: the lost chunks are not stored again"
        );
        for record in self.chunks() {
            assert_eq!(
                self.file(&record).metadata().map_or(0, |file| file.len()),
                record.num_file_bytes(),
                "{what}"
            );
        }
    }

    async fn check_flip(&mut self, seed: u64) {
        let mut random = Random::new(seed);
        let chunks = self.chunks();
        let index = random.below(chunks.len());
        let bit = random.below(chunks[index].num_file_bytes() as usize * 8);
        self.check(index, |bytes| bytes[bit / 8] ^= 1 << (bit % 8), &format!("bit {bit}")).await;
    }
}

#[tokio::test]
async fn a_file_cut_anywhere_is_a_miss_with_its_reason() {
    let (model, temp) = (Scripted::endless(), fresh_folder());
    let mut damaged = Damaged::new(model.folder(), temp.path(), true).await;
    // System prompt, two questions and two answers; the first answer's last token may be a chunk of
    // its own.
    assert!((5..=6).contains(&damaged.chunks().len()));
    for index in 0..5 {
        damaged.check(index, |bytes| bytes.clear(), "empty").await;
        damaged.check(index, |bytes| bytes.truncate(bytes.len() - 1), "a byte less").await;
        damaged.check(index, |bytes| bytes.push(0), "a byte more").await;
    }
    for seed in sweep("a chunk's file is cut", 20) {
        let mut random = Random::new(seed);
        let index = random.below(5);
        let length = random.below(damaged.chunks()[index].num_file_bytes() as usize);
        damaged.check(index, |bytes| bytes.truncate(length), &format!("{length} bytes")).await;
    }
}

#[tokio::test]
async fn a_flipped_bit_is_a_miss_with_its_reason() {
    let (model, temp) = (Scripted::endless(), fresh_folder());
    let mut damaged = Damaged::new(model.folder(), temp.path(), true).await;
    for seed in sweep("a bit of a chunk's file is flipped", 60) {
        damaged.check_flip(seed).await;
    }
}

#[tokio::test]
async fn a_flipped_bit_is_a_miss_with_windows_and_states() {
    for case in ["gemma3_text/dense", "qwen3_next/dense"] {
        let (model, folder) = (chat_model(case), fresh_folder());
        let mut damaged = Damaged::new(model.path(), folder.path(), false).await;
        for seed in sweep("a bit is flipped where windows and states are saved", 12) {
            damaged.check_flip(seed).await;
        }
    }
}

#[tokio::test]
async fn repair_takes_the_row_of_a_sound_file_from_the_file() {
    let (model, temp) = (Scripted::endless(), fresh_folder());
    let Damaged { harness, next, limit, expected, .. } =
        Damaged::new(model.folder(), temp.path(), true).await;
    let mut rows = harness.close().await;
    let num_chunks = rows.chunks.len();
    // All others continue the first chunk, so their rows go with its row.
    let first = rows.chunks.values_mut().find(|row| row.start == 0).expect("a first chunk");
    let file = first.file.as_mut().expect("a file");
    file.hash = "0".repeat(64).as_str().into();
    let harness = TestEngine::start(model.folder(), temp.path(), ON_DISK, rows).await;
    let repair = async || harness.handle().repair().await.expect("runs");
    let sound = Repaired { num_checked: num_chunks, ..Repaired::default() };
    assert_eq!(repair().await, Repaired { num_adopted: num_chunks, ..sound });
    assert_eq!(repair().await, sound, "every row is right now");
    let answer = harness.answer(next).await.finished;
    assert_eq!((answer.token_ids, answer.stats.num_cached_tokens), (expected, limit));
    assert_eq!(answer.miss, None);
    harness.close().await;
}

/// A forged chunk with the right hash: its contents are refused, and the answer is the same.
struct Forger {
    model: TempDir,
    folder: TempDir,
    rows: CacheRows,
    next: GenerateRequest,
    expected: Vec<u32>,
}

impl Forger {
    async fn new(case: &str, kv_cache: KvCacheOptions) -> Forger {
        let (model, folder) = (chat_model(case), fresh_folder());
        let harness =
            TestEngine::start(model.path(), folder.path(), ON_DISK, CacheRows::default()).await;
        let mut talk = Talk::new("AID ME AND LEAD ME HOME");
        let first = harness
            .answer(GenerateRequest { kv_cache, ..ask(talk.asking("FIND A MILE"), &OWNER) })
            .await;
        talk.add("FIND A MILE", &first);
        let rows = harness.close().await;
        let next = GenerateRequest {
            max_tokens: 4,
            kv_cache,
            ..ask(talk.asking("AND A CALM LAND"), &OWNER)
        };
        let elsewhere = fresh_folder();
        let harness =
            TestEngine::start(model.path(), elsewhere.path(), ON_DISK, CacheRows::default()).await;
        let answer = harness.answer(next.clone()).await;
        harness.close().await;
        Forger { model, folder, rows, next, expected: answer.finished.token_ids }
    }

    /// Forges the second chunk.
    async fn check(&self, forge: impl FnOnce(&Path) -> Vec<u8>, what: &str) {
        let second = self.rows.chunks.values().filter(|row| row.start > 0);
        let start = second.map(|row| row.start).min().expect("a second chunk");
        let mut forge = Some(forge);
        let forge_second = |row: &ChunkRecord, path: &Path| {
            (row.start == start).then(|| forge.take().map(|forge| forge(path))).flatten()
        };
        self.check_forged(forge_second, what).await;
    }

    /// Forges all chunks alike, so that they agree with each other.
    async fn check_all(&self, forge: impl Fn(&mut Parts), what: &str) {
        let forge = |_: &ChunkRecord, path: &Path| {
            let mut parts = Parts::read(path);
            forge(&mut parts);
            Some(parts.bytes())
        };
        self.check_forged(forge, what).await;
    }

    async fn check_forged(
        &self,
        mut forge: impl FnMut(&ChunkRecord, &Path) -> Option<Vec<u8>>,
        what: &str,
    ) {
        let (temp, mut rows) = (fresh_folder(), self.rows.clone());
        let file = |folder: &Path, row: &ChunkRecord| {
            folder.join(row.namespace.model.as_str()).join(format!("{}.safetensors", row.key))
        };
        for row in rows.chunks.values() {
            let copy = file(temp.path(), row);
            std::fs::create_dir_all(copy.parent().expect("a folder")).expect("a folder");
            std::fs::copy(file(self.folder.path(), row), copy).expect("copies");
        }
        for row in rows.chunks.values_mut() {
            let Some(bytes) = forge(row, &file(temp.path(), row)) else { continue };
            let hash = blake3::hash(&bytes).to_hex().as_str().into();
            row.file = Some(ChunkFile { num_bytes: bytes.len() as u64, hash });
            std::fs::write(file(temp.path(), row), bytes).expect("written");
        }
        let harness = TestEngine::start(self.model.path(), temp.path(), ON_DISK, rows).await;
        let answer = harness.answer(self.next.clone()).await.finished;
        assert_eq!(answer.token_ids, self.expected, "{what}");
        let reason = answer.miss.map(|miss| miss.reason);
        let Some(MissReason::Unusable(problem)) = reason else { panic!("{what}: {reason:?}") };
        assert_ne!(problem, ChunkProblem::Damaged(None), "{what}");
        harness.close().await;
    }

    async fn check_parts(&self, forge: impl FnOnce(&mut Parts), what: &str) {
        let forge = |path: &Path| {
            let mut parts = Parts::read(path);
            forge(&mut parts);
            parts.bytes()
        };
        self.check(forge, what).await;
    }

    /// Forges the header, with one text in place of another.
    async fn check_words(&self, from: &str, to: &str) {
        let forge = |path: &Path| {
            let bytes = std::fs::read(path).expect("the chunk");
            let (length, rest) = bytes.split_first_chunk::<8>().expect("a length");
            let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
            let header = std::str::from_utf8(header).expect("JSON");
            assert!(header.contains(from), "{header}");
            with_header(&header.replacen(from, to, 1), data)
        };
        self.check(forge, &format!("{to} instead of {from}")).await;
    }
}

/// A shape from heads, tokens and numbers per head.
type Reshape = fn(u64, u64, u64) -> Vec<u64>;

#[tokio::test]
async fn a_chunk_with_the_right_hash_and_wrong_tensors_is_refused() {
    let plain = Forger::new("llama/dense-tied", KvCacheOptions::default()).await;
    let name = "keys.0";
    plain.check_parts(|parts| parts.tensor(name).name = "keys.9".to_owned(), "a name").await;
    plain.check_parts(|parts| parts.tensors.clear(), "nothing").await;
    for dtype in ["I32", "U32", "F16", "BOOL", "F99"] {
        plain.check_parts(|parts| parts.tensor(name).dtype = dtype.to_owned(), dtype).await;
    }
    let shapes: [Reshape; 7] = [
        |heads, tokens, width| vec![heads, tokens, width],
        |heads, tokens, width| vec![heads, 1, tokens, width],
        |heads, tokens, width| vec![1, tokens, heads, width],
        |heads, tokens, width| vec![1, heads * 2, tokens, width / 2],
        |heads, tokens, width| vec![1, heads / 2, tokens, width * 2],
        |heads, tokens, width| vec![1, heads, tokens * 2, width / 2],
        |heads, tokens, width| vec![1, heads, tokens, width, u64::MAX],
    ];
    for shape in shapes {
        let forge = |parts: &mut Parts| {
            let tensor = parts.tensor(name);
            tensor.shape = shape(tensor.shape[1], tensor.shape[2], tensor.shape[3]);
        };
        plain.check_parts(forge, &format!("{:?}", shape(2, 3, 5))).await;
    }
    let resize = |edit: fn(&mut Vec<u64>)| {
        move |parts: &mut Parts| {
            let tensor = parts.tensor(name);
            let mut shape = tensor.shape.clone();
            edit(&mut shape);
            tensor.zeros("F32", &shape);
        }
    };
    plain.check_parts(resize(|shape| shape[2] -= 1), "a token less").await;
    plain.check_parts(resize(|shape| shape[2] += 1), "a token more").await;
    plain.check_parts(resize(|shape| shape[2] = 0), "no token").await;
    plain.check_parts(resize(|shape| shape[3] -= 1), "a number less").await;
    plain.check_parts(|parts| parts.tensor(name).bytes.truncate(4), "fewer bytes").await;
}

#[tokio::test]
async fn a_chunk_with_the_right_hash_and_a_wrong_header_is_refused() {
    let plain = Forger::new("llama/dense-tied", KvCacheOptions::default()).await;
    for (from, to) in [
        ("\"data_offsets\":[0,", "\"data_offsets\":[4,"),
        ("\"data_offsets\":[0,", "\"data_offsets\":[18446744073709551615,"),
        ("\"data_offsets\":[0,", "\"data_offsets\":[-1,"),
        ("\"data_offsets\":[0,", "\"data_offsets\":[0,9"),
        ("\"shape\":[1,", "\"shape\":[18446744073709551615,"),
        ("\"shape\":[1,", "\"shape\":[-1,"),
        ("\"dtype\":", "\"type\":"),
        ("{", "["),
    ] {
        plain.check_words(from, to).await;
    }
    for length in [0, 1, 8, 1 << 20, 1 << 40, u64::MAX] {
        let forge = |path: &Path| {
            [&u64::to_le_bytes(length)[..], &std::fs::read(path).expect("the chunk")[8..]].concat()
        };
        plain.check(forge, &format!("a header of {length} bytes")).await;
    }
    for length in [0, 7, 8, 100] {
        let forge = |path: &Path| std::fs::read(path).expect("the chunk")[..length].to_vec();
        plain.check(forge, &format!("{length} bytes")).await;
    }
}

#[tokio::test]
async fn a_quantized_chunk_with_the_right_hash_and_wrong_tensors_is_refused() {
    let quantization = Some(KvQuantization { bits: 8, group_size: 32, start: 0 });
    let kv_cache = KvCacheOptions { max_size: None, quantization, snapkv: None };
    let quantized = Forger::new("qwen3_moe/quant4", kv_cache).await;
    let check = async |name: &str, forge: &dyn Fn(&mut Tensor), what: &str| {
        quantized.check_parts(|parts| forge(parts.tensor(name)), what).await;
    };
    for name in ["keys_packed.0", "values_scales.1"] {
        check(name, &|tensor| tensor.name = "keys.0".to_owned(), "a name").await;
        check(name, &|tensor| tensor.shape.swap(1, 2), "a shape").await;
    }
    check("keys_packed.0", &|tensor| tensor.dtype = "F32".to_owned(), "packed floats").await;
    check("keys_scales.0", &|tensor| tensor.dtype = "U32".to_owned(), "whole scales").await;
}

/// Chunks that agree with each other, but not with the model: its next step would fail on them.
#[tokio::test]
async fn forged_chunks_of_one_shape_are_a_miss() {
    let plain = Forger::new("llama/dense-tied", KvCacheOptions::default()).await;
    let reshape = |name: &'static str, shape: Reshape| {
        move |parts: &mut Parts| {
            for tensor in parts.tensors.iter_mut().filter(|tensor| tensor.name.starts_with(name)) {
                tensor.shape = shape(tensor.shape[1], tensor.shape[2], tensor.shape[3]);
            }
        }
    };
    let fewer_heads: Reshape = |heads, tokens, width| vec![1, heads / 2, tokens, width * 2];
    plain.check_all(reshape("keys.", fewer_heads), "fewer heads in all keys").await;
    plain.check_all(reshape("values.1", fewer_heads), "fewer heads in a layer's values").await;
    let halves = |parts: &mut Parts| {
        for tensor in parts.tensors.iter_mut().filter(|tensor| tensor.name == "keys.0") {
            (tensor.dtype, tensor.shape[3]) = ("F16".to_owned(), tensor.shape[3] * 2);
        }
    };
    plain.check_all(halves, "halves of numbers").await;

    let linear = Forger::new("qwen3_next/dense", KvCacheOptions::default()).await;
    let flat = |parts: &mut Parts| {
        for tensor in parts.tensors.iter_mut().filter(|tensor| tensor.name.starts_with("state_0")) {
            tensor.shape = vec![1, tensor.shape.iter().product()];
        }
    };
    linear.check_all(flat, "a state of another shape").await;
}

/// Two turns that cannot be written, for the expected reason; the second is answered from memory.
/// Returns the conversation and its number of tokens.
async fn check_unwritten(harness: &mut TestEngine, expected: &str) -> (Talk, usize) {
    // Longer than a chunk: a chunk whose parent is not written is not written either.
    let mut talk = Talk::new(&"AID ME AND LEAD ME HOME. ".repeat(20));
    let mut held = 0;
    for words in ["FIND A MILE", "AND A CALM LAND"] {
        let answer = harness.answer(ask(talk.asking(words), &OWNER)).await;
        assert_eq!((answer.finished.stats.num_cached_tokens, &answer.finished.miss), (held, &None));
        held = num_in_caches(&answer);
        talk.add(words, &answer);
        harness.settle().await;
        let view = harness.handle().view(10);
        assert!(
            view.problem.as_ref().is_some_and(|problem| problem.contains(expected)),
            "{:?}",
            view.problem
        );
        harness.drop_residents().await;
    }
    (talk, held)
}

#[tokio::test]
async fn unwritten_chunks_stay_in_memory_until_they_can_be_written() {
    let (model, temp) = (Scripted::endless(), fresh_folder());
    let blocked = temp.path().join("blocked");
    std::fs::write(&blocked, "mine").expect("written");
    let folder = blocked.join("cache");
    let mut harness = TestEngine::start(model.folder(), &folder, BOTH, CacheRows::default()).await;
    let (mut talk, _) = check_unwritten(&mut harness, "the disk could not be written").await;
    assert!(
        harness.rows.chunks.is_empty()
            && std::fs::read(&blocked).is_ok_and(|bytes| bytes == b"mine")
    );

    // The disk works again: the next turn writes the whole conversation.
    std::fs::remove_file(&blocked).expect("removed");
    let answer = harness.answer(ask(talk.asking("NO"), &OWNER)).await;
    talk.add("NO", &answer);
    harness.settle().await;
    assert_eq!(harness.handle().view(10).problem, None);
    let harness = TestEngine::start(model.folder(), &folder, ON_DISK, harness.close().await).await;
    let next = harness.answer(ask(talk.asking("GO ON"), &OWNER)).await;
    assert_eq!(
        (next.finished.stats.num_cached_tokens, next.finished.miss),
        (num_in_caches(&answer), None)
    );
}

#[tokio::test]
async fn chunks_only_in_memory_are_lost_at_shutdown_with_the_reason() {
    async fn check(folder: &Path, budgets: Budgets, is_expected: fn(&LossReason) -> bool) {
        let (model, temp) = (Scripted::endless(), fresh_folder());
        let harness =
            TestEngine::start(model.folder(), folder, budgets, CacheRows::default()).await;
        let mut talk = Talk::new("AID ME");
        let answer = harness.answer(ask(talk.asking("FIND A MILE"), &OWNER)).await;
        talk.add("FIND A MILE", &answer);
        let rows = harness.close().await;
        let harness = TestEngine::start(model.folder(), temp.path(), ON_DISK, rows).await;
        let next = harness.answer(ask(talk.asking("NO"), &OWNER)).await.finished;
        let Some(Miss { num_tokens, reason: MissReason::Lost { reason, .. } }) = next.miss else {
            panic!("{:?}", next.miss);
        };
        assert_eq!(num_tokens, next.stats.num_prompt_tokens);
        assert!(is_expected(&reason), "{reason:?}");
    }
    let temp = fresh_folder();
    check(temp.path(), IN_MEMORY, |reason| *reason == LossReason::OnlyInMemory).await;
    let file = temp.path().join("file");
    std::fs::write(&file, "mine").expect("written");
    let is_unwritten = |reason: &LossReason| {
        let start = "the disk could not be written: ";
        matches!(reason, LossReason::NotWritten(problem) if problem.starts_with(start))
    };
    check(&file.join("cache"), BOTH, is_unwritten).await;
}

#[tokio::test]
async fn a_full_disk_is_reported_and_answers_continue() {
    let (model, temp) = (Scripted::endless(), fresh_folder());
    let size = "size=80k";
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", size, "tmpfs"])
        .arg(temp.path())
        .stderr(Stdio::null())
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        println!("this process may not mount a tmpfs, so a full disk is not tried here");
        return;
    }
    let mut harness =
        TestEngine::start(model.folder(), temp.path(), BOTH, CacheRows::default()).await;
    check_unwritten(&mut harness, "No space left").await;
    assert!(!harness.rows.chunks.is_empty(), "what had room is there");
    let files = std::fs::read_dir(temp.path())
        .expect("the folder")
        .flatten()
        .flat_map(|model| std::fs::read_dir(model.path()));
    let unfinished = files
        .flatten()
        .flatten()
        .filter(|file| file.path().extension().is_some_and(|extension| extension != "safetensors"));
    assert_eq!(unfinished.count(), 0, "unfinished files are removed");
    harness.close().await;
    let _ = Command::new("umount").arg("-l").arg(temp.path()).status();
}
