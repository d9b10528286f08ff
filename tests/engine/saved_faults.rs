//! One random fault in the saved state, a row or a file: the next start neither panics nor answers
//! otherwise, leaves foreign files alone, keeps to the budget, and the start after it finds rows and
//! files in agreement.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use cairn_engine::GenerateRequest;
use cairn_prompt_cache::{
    CacheRef, ChunkFile, ChunkKey, ChunkKind, ChunkRecord, FileHash, KvFormat, Loss, LossReason,
    ModelFingerprint, Namespace, Provenance, RefName, Tokens,
};
use cairn_sweeps::sweep;
use tempfile::TempDir;

use crate::scripted::Scripted;
use crate::test_engine::{
    Budgets, CacheRows, ON_DISK, ROOMY, Random, Talk, TestEngine, ask, chat_model, fresh_folder,
    owner,
};

const OWNERS: [&str; 2] = ["conversation/1", "conversation/2"];

/// A saved state with two conversations that share a system prompt, and the answers to their next
/// questions. Each case damages a copy.
struct Saved {
    model: TempDir,
    folder: TempDir,
    cached: CacheRows,
    next: Vec<GenerateRequest>,
    expected: Vec<Vec<u32>>,
}

impl Saved {
    async fn new(model: TempDir) -> Saved {
        let folder = fresh_folder();
        let engine =
            TestEngine::start(model.path(), folder.path(), ON_DISK, CacheRows::default()).await;
        let mut next = Vec::new();
        for (owner, questions) in
            OWNERS.map(owner).iter().zip([&["FIND A MILE", "AND"][..], &["NO"]])
        {
            // The system prompt takes two chunks.
            let mut talk = Talk::new(&"AID ME AND LEAD ME HOME. ".repeat(11));
            for words in questions {
                let answer = engine.answer(ask(talk.asking(words), owner)).await;
                talk.add(words, &answer);
            }
            let messages = talk.asking("GO ON");
            next.push(GenerateRequest { max_tokens: 4, ..ask(messages, owner) });
        }
        let cached = engine.close().await;
        let elsewhere = fresh_folder();
        let engine =
            TestEngine::start(model.path(), elsewhere.path(), ON_DISK, CacheRows::default()).await;
        let mut expected = Vec::new();
        for request in &next {
            let cold = GenerateRequest { use_prompt_cache: false, ..request.clone() };
            let answer = engine.answer(cold).await.finished;
            assert_eq!(answer.stats.num_cached_tokens, 0);
            expected.push(answer.token_ids);
        }
        engine.close().await;
        Saved { model, folder, cached, next, expected }
    }

    /// Damages a copy at random and checks two starts on it.
    async fn check(&self, seed: u64) {
        let mut random = Random::new(seed);
        let mut case = Case::new(self, &mut random);
        case.damage(&mut random);
        let what = case.fault.clone();
        for start in ["the first start", "the second start"] {
            case.check_start(self, &format!("{what}, {start}")).await;
        }
    }
}

/// A damaged copy.
struct Case {
    folder: TempDir,
    cached: CacheRows,
    budgets: Budgets,
    /// What was done to it.
    fault: String,
    /// Files that are not Cairn's, in the prompt cache's folder or elsewhere.
    foreign: BTreeMap<PathBuf, Vec<u8>>,
    /// Something that is not Cairn's is where a chunk's file belongs, and stays there.
    is_blocked: bool,
    elsewhere: TempDir,
}

impl Case {
    fn new(saved: &Saved, random: &mut Random) -> Case {
        let folder = fresh_folder();
        copy_folder(saved.folder.path(), folder.path());
        let num_bytes = saved.cached.num_bytes();
        // Half of the cases leave no room for more, or not even for what is there.
        let disk = [ROOMY, ROOMY, num_bytes, num_bytes * 2 / 3][random.below(4)];
        Case {
            folder,
            cached: saved.cached.clone(),
            budgets: Budgets { disk, memory: 0 },
            fault: String::new(),
            foreign: BTreeMap::new(),
            is_blocked: false,
            elsewhere: fresh_folder(),
        }
    }

    fn damage(&mut self, random: &mut Random) {
        self.fault = match random.below(3) {
            0 => self.damage_row(random),
            1 => self.damage_file(random),
            _ if random.below(3) == 0 => self.damage_ref(random),
            _ => self.add_foreign(random),
        };
    }

    fn damage_row(&mut self, random: &mut Random) -> String {
        let key = *nth(self.cached.chunks.keys(), random);
        let record = self.cached.chunks.remove(&key).expect("a row");
        let (start, kind) = (record.start, record.kind);
        let (record, field) = damaged_record(record, random);
        // A row that cannot be parsed is not given to the engine.
        if let Some(record) = record {
            self.cached.chunks.insert(record.key, record);
        }
        format!("{field} of the {kind:?} chunk at {start}")
    }

    fn damage_ref(&mut self, random: &mut Random) -> String {
        let name = nth(self.cached.refs.keys(), random).clone();
        let cache_ref = self.cached.refs.remove(&name).expect("a reference");
        let (cache_ref, field) = damaged_ref(cache_ref, random);
        if cache_ref.as_ref().is_some_and(|cache_ref| cache_ref.is_pinned) {
            // A pinned conversation may exceed the budget.
            self.budgets.disk = ROOMY;
        }
        if let Some(cache_ref) = cache_ref {
            self.cached.refs.insert(cache_ref.name.clone(), cache_ref);
        }
        format!("{field} of the reference of {name}")
    }

    fn damage_file(&mut self, random: &mut Random) -> String {
        let path = self.random_file(random);
        let bytes = fs::read(&path).expect("a chunk");
        let fault = match random.below(10) {
            0..3 => {
                let bit = random.below(bytes.len() * 8);
                let mut bytes = bytes;
                bytes[bit / 8] ^= 1 << (bit % 8);
                fs::write(&path, bytes).expect("written");
                format!("bit {bit} flipped")
            }
            3 => {
                fs::remove_file(&path).expect("removed");
                "removed".to_owned()
            }
            4 => {
                let other = self.random_file(random);
                let others = fs::read(&other).expect("a chunk");
                fs::write(&path, others).expect("written");
                fs::write(&other, bytes).expect("written");
                format!("swapped with {}", other.display())
            }
            5 => {
                let length = random.below(bytes.len());
                fs::write(&path, &bytes[..length]).expect("written");
                format!("cut to {length} bytes")
            }
            6 => {
                // As long as before, in half of the cases.
                let length = if random.below(2) == 0 { bytes.len() } else { 100 };
                fs::write(&path, vec![b'x'; length]).expect("written");
                format!("replaced by {length} foreign bytes")
            }
            7 => {
                fs::remove_file(&path).expect("removed");
                let contents = if random.below(2) == 0 { bytes } else { b"mine".to_vec() };
                let target = self.foreign_elsewhere("target", contents);
                symlink(&target, &path).expect("a link");
                "replaced by a link to a foreign file".to_owned()
            }
            8 => {
                fs::remove_file(&path).expect("removed");
                fs::create_dir(&path).expect("a folder");
                self.foreign_file(path.join("notes.txt"), b"mine");
                self.is_blocked = true;
                "replaced by a folder".to_owned()
            }
            _ => self.link_model_folder(&path, random),
        };
        format!("{}: {fault}", path.display())
    }

    /// Puts a link in place of the model's folder: to a copy of it that is not Cairn's, or to a
    /// folder with something else.
    fn link_model_folder(&mut self, chunk: &Path, random: &mut Random) -> String {
        let model = chunk.parent().expect("a model's folder");
        let target = self.elsewhere.path().join("folder");
        fs::create_dir(&target).expect("a folder");
        if random.below(2) == 0 {
            for file in files_in(model) {
                let copy = target.join(file.file_name().expect("a name"));
                self.foreign_file(copy, &fs::read(file).expect("a chunk"));
            }
        }
        self.foreign_file(target.join("notes.txt"), b"mine");
        fs::remove_dir_all(model).expect("removed");
        symlink(&target, model).expect("a link");
        self.is_blocked = true;
        "its folder replaced by a link".to_owned()
    }

    fn add_foreign(&mut self, random: &mut Random) -> String {
        let chunk = self.random_file(random);
        let model = chunk.parent().expect("a model's folder").to_owned();
        let mut key: String =
            (0..32).map(|_| char::from(b"0123456789abcdef"[random.below(16)])).collect();
        let path = match random.below(7) {
            0 => model.join(format!("{key}.safetensors")),
            1 => model.join("notes.txt"),
            2 => model.join(".hidden"),
            3 => self.folder.path().join("notes.txt"),
            4 => self.folder.path().join(&key).join(format!("{key}.safetensors")),
            5 => self.folder.path().join("my models").join("model.safetensors"),
            // A name one letter away from a chunk's.
            _ => {
                key = chunk.file_stem().expect("a name").to_string_lossy().into_owned();
                key.replace_range(31.., if key.ends_with('0') { "1" } else { "0" });
                model.join(format!("{key}.safetensors"))
            }
        };
        // Also what is a chunk, but not of this name.
        let contents = match random.below(3) {
            0 => fs::read(&chunk).expect("a chunk"),
            1 => Vec::new(),
            _ => b"mine".to_vec(),
        };
        self.foreign_file(path.clone(), &contents);
        format!("a foreign file {} of {} bytes", path.display(), contents.len())
    }

    fn random_file(&self, random: &mut Random) -> PathBuf {
        nth(self.cached.chunks.values().map(|row| self.file(row)), random)
    }

    fn file(&self, row: &ChunkRecord) -> PathBuf {
        let model = self.folder.path().join(row.namespace.model.as_str());
        model.join(format!("{}.safetensors", row.key))
    }

    fn foreign_elsewhere(&mut self, name: &str, contents: Vec<u8>) -> PathBuf {
        let path = self.elsewhere.path().join(name);
        self.foreign_file(path.clone(), &contents);
        path
    }

    fn foreign_file(&mut self, path: PathBuf, contents: &[u8]) {
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, contents).expect("written");
        self.foreign.insert(path, contents.to_vec());
    }

    /// Starts, continues both conversations, and closes.
    async fn check_start(&mut self, saved: &Saved, what: &str) {
        let cached = std::mem::take(&mut self.cached);
        let mut engine =
            TestEngine::start(saved.model.path(), self.folder.path(), self.budgets, cached).await;
        for (request, expected) in saved.next.iter().zip(&saved.expected) {
            let answer = engine.answer(request.clone()).await.finished;
            assert_eq!(answer.token_ids, *expected, "{what}: {:?}", request.owner);
            engine.settle().await;
            // What is taken from the cache comes from files.
            engine.drop_residents().await;
        }
        engine.settle().await;
        self.check_files(&engine.rows, what);
        if self.budgets.disk == ROOMY && !self.is_blocked {
            for request in &saved.next {
                let answer = engine.answer(request.clone()).await.finished;
                engine.drop_residents().await;
                // Near the end states are stored, not at every token.
                let num_expected = answer.stats.num_prompt_tokens - 16;
                assert!(
                    answer.stats.num_cached_tokens >= num_expected && answer.miss.is_none(),
                    "{what}: what was lost is stored again, {answer:?}"
                );
            }
        }
        self.cached = engine.close().await;
        self.check_files(&self.cached, what);
        assert_eq!(num_writer_panics(), 0, "{what}");
    }

    /// Foreign files are untouched, every chunk's file has a row, and the budget holds.
    fn check_files(&self, cached: &CacheRows, what: &str) {
        for (path, contents) in &self.foreign {
            let found = fs::read(path);
            assert!(
                found.is_ok_and(|found| found == *contents),
                "{what}: the foreign file {} is not as it was",
                path.display()
            );
        }
        let rows: Vec<PathBuf> = cached.chunks.values().map(|row| self.file(row)).collect();
        let mut num_bytes = 0;
        for model in files_in(self.folder.path()).into_iter().filter(|path| is_plain_folder(path)) {
            for file in files_in(&model) {
                if self.foreign.contains_key(&file) || !is_regular(&file) {
                    continue;
                }
                num_bytes += file.metadata().expect("a file").len();
                assert!(rows.contains(&file), "{what}: {} has no row", file.display());
            }
        }
        assert!(
            num_bytes <= self.budgets.disk,
            "{what}: {num_bytes} bytes are on disk, {} may be",
            self.budgets.disk
        );
        let row_bytes = cached.num_bytes();
        assert!(row_bytes <= self.budgets.disk, "{what}: the rows speak of {row_bytes} bytes");
    }
}

/// The record with one field changed as a flipped bit in the database would; none where the text
/// then says nothing.
fn damaged_record(
    mut record: ChunkRecord,
    random: &mut Random,
) -> (Option<ChunkRecord>, &'static str) {
    let field = random.below(14);
    let (result, name) = match field {
        0 => (flip(&mut record.key, random), "the key"),
        1 => {
            let (parent, parsed) = match (record.parent, random.below(4)) {
                (Some(_), 0) => (None, Some(())),
                (None, _) => (Some(record.key), Some(())),
                (Some(mut parent), _) => {
                    let parsed = flip(&mut parent, random);
                    (Some(parent), parsed)
                }
            };
            record.parent = parent;
            (parsed, "the parent")
        }
        2 => (flip_number(&mut record.start, random), "the start"),
        3 => {
            let mut ids = record.tokens.stored_ids();
            let index = random.below(ids.len());
            ids[index] ^= 1 << random.below(32);
            record.tokens = Tokens::known(ids);
            (Some(()), "a token id")
        }
        4 => {
            let mut ids = record.tokens.stored_ids();
            ids.truncate(random.below(ids.len()));
            record.tokens = Tokens::known(ids);
            (Some(()), "the number of token ids")
        }
        5 => (flip_number(&mut record.held_from, random), "held_from"),
        6 | 7 => (flip_number(&mut file_of(&mut record).num_bytes, random), "the bytes"),
        8 => (flip(&mut file_of(&mut record).hash, random), "the hash"),
        9 => (flip_namespace(&mut record.namespace, random), "the namespace"),
        10 => {
            record.kind = ChunkKind::ALL[random.below(3)];
            (Some(()), "the kind")
        }
        11 => {
            record.has_state = !record.has_state;
            (Some(()), "has_state")
        }
        12 => (flip_number(&mut record.hits, random), "the hits"),
        _ => {
            record.last_used_at_ms = flipped(record.last_used_at_ms, random);
            (Some(()), "the last use")
        }
    };
    (result.map(|()| record), name)
}

/// As [`damaged_record`], for a reference.
fn damaged_ref(mut cache_ref: CacheRef, random: &mut Random) -> (Option<CacheRef>, &'static str) {
    let (result, name) = match random.below(7) {
        0 => (flip(&mut cache_ref.name, random), "the owner"),
        1 => (flip_namespace(&mut cache_ref.namespace, random), "the namespace"),
        2 => (flip(&mut cache_ref.model_name, random), "the model"),
        3 => {
            let parsed = cache_ref.target.as_mut().map_or(Some(()), |key| flip(key, random));
            (parsed, "the target")
        }
        4 => (flip_number(&mut cache_ref.num_tokens, random), "the number of tokens"),
        5 => {
            cache_ref.is_pinned = !cache_ref.is_pinned;
            (Some(()), "the pin")
        }
        _ => {
            let at_ms = flipped(0, random);
            let mut num_tokens = cache_ref.num_tokens;
            let parsed = flip_number(&mut num_tokens, random);
            cache_ref.loss = Some(Loss { num_tokens, reason: LossReason::DiskBudget, at_ms });
            (parsed, "the loss")
        }
    };
    (result.map(|()| cache_ref), name)
}

fn file_of(record: &mut ChunkRecord) -> &mut ChunkFile {
    record.file.as_mut().expect("a chunk on disk")
}

/// Flips a bit of a value's text; none where it then says nothing.
fn flip<T: ToString + Parsed>(value: &mut T, random: &mut Random) -> Option<()> {
    let mut bytes = value.to_string().into_bytes();
    let index = random.below(bytes.len());
    bytes[index] ^= 1 << random.below(8);
    *value = T::parsed(&String::from_utf8(bytes).ok()?)?;
    Some(())
}

/// What a column's text stands for.
trait Parsed: Sized {
    fn parsed(text: &str) -> Option<Self>;
}

macro_rules! parsed {
    ($($type:ty),*) => {
        $(impl Parsed for $type {
            fn parsed(text: &str) -> Option<Self> {
                text.parse().ok()
            }
        })*
    };
}

parsed!(ChunkKey, KvFormat, Provenance, RefName, String);

impl Parsed for FileHash {
    fn parsed(text: &str) -> Option<Self> {
        Some(text.into())
    }
}

impl Parsed for ModelFingerprint {
    fn parsed(text: &str) -> Option<Self> {
        Some(text.into())
    }
}

/// Flips a bit of a number as SQLite stores it; none where it is negative then.
fn flip_number<T: TryFrom<i64> + Copy>(number: &mut T, random: &mut Random) -> Option<()>
where
    i64: TryFrom<T>,
{
    let stored = i64::try_from(*number).ok()?;
    *number = T::try_from(flipped(stored, random)).ok()?;
    Some(())
}

fn flipped(number: i64, random: &mut Random) -> i64 {
    number ^ 1_i64.rotate_left(random.below(64) as u32)
}

fn flip_namespace(namespace: &mut Namespace, random: &mut Random) -> Option<()> {
    match random.below(3) {
        0 => flip(&mut namespace.model, random),
        1 => flip(&mut namespace.kv_format, random),
        _ => flip(&mut namespace.provenance, random),
    }
}

fn nth<T>(items: impl Iterator<Item = T>, random: &mut Random) -> T {
    let mut items: Vec<T> = items.collect();
    items.swap_remove(random.below(items.len()))
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn is_plain_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

fn is_regular(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file())
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for path in files_in(from) {
        let copy = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy_folder(&path, &copy);
        } else {
            fs::copy(path, copy).expect("copies");
        }
    }
}

/// How often a writer thread has panicked in this process; nobody else hears of it. Counts from the
/// first call on.
fn num_writer_panics() -> usize {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if std::thread::current().name() == Some("cairn-writer") {
                COUNT.fetch_add(1, Ordering::SeqCst);
            }
            before(panic);
        }));
    });
    COUNT.load(Ordering::SeqCst)
}

#[tokio::test]
async fn one_fault_in_the_saved_state_costs_no_answer_and_no_foreign_file() {
    assert_eq!(num_writer_panics(), 0);
    let scripted = Scripted::endless();
    let model = tempfile::tempdir().expect("a folder");
    copy_folder(scripted.folder(), model.path());
    // Plain keys and values, sliding windows, and recurrent states.
    let saved = [
        Saved::new(model).await,
        Saved::new(chat_model("gemma3_text/dense")).await,
        Saved::new(chat_model("qwen3_next/dense")).await,
    ];
    for seed in sweep("a fault in the saved state", 24) {
        // The scripted model is the quickest.
        saved[[0, 1, 0, 2][seed as usize % 4]].check(seed).await;
    }
}

/// Starts with one row changed, for each row in turn: from its file it gets back what it was,
/// nothing else is lost, and the conversations continue from there.
async fn check_rebuilt(edit: impl Fn(&mut ChunkRecord), what: &str) {
    let saved = Saved::new(chat_model("gemma3_text/dense")).await;
    let rows = &saved.cached.chunks;
    let num_bytes = saved.cached.num_bytes();
    for key in rows.keys() {
        let folder = fresh_folder();
        copy_folder(saved.folder.path(), folder.path());
        let mut cached = saved.cached.clone();
        edit(cached.chunks.get_mut(key).expect("a row"));
        let budgets = Budgets { disk: num_bytes * 2, memory: 0 };
        let mut engine =
            TestEngine::start(saved.model.path(), folder.path(), budgets, cached).await;
        engine.settle().await;
        let found_rows: Vec<ChunkRecord> = engine
            .rows
            .chunks
            .values()
            .map(|row| ChunkRecord {
                hits: rows[&row.key].hits,
                created_at_ms: rows[&row.key].created_at_ms,
                last_used_at_ms: rows[&row.key].last_used_at_ms,
                ..row.clone()
            })
            .collect();
        assert_eq!(found_rows, rows.values().cloned().collect::<Vec<_>>(), "{what}");
        assert_eq!(engine.rows.refs, saved.cached.refs, "{what}");
        for request in &saved.next {
            let answer = engine.answer(request.clone()).await.finished;
            assert!(
                answer.stats.num_cached_tokens > 256 && answer.miss.is_none(),
                "{what}: {answer:?}"
            );
        }
        engine.close().await;
    }
}

#[tokio::test]
async fn a_row_that_names_another_length_is_rebuilt_from_its_file() {
    // The one would evict everything else.
    check_rebuilt(|record| file_of(record).num_bytes ^= 1 << 35, "more bytes").await;
    check_rebuilt(|record| file_of(record).num_bytes = 1, "one byte").await;
}

#[tokio::test]
async fn a_row_that_names_another_model_is_rebuilt_from_its_file() {
    let edit = |record: &mut ChunkRecord| {
        let mut text = record.namespace.model.to_string();
        let last = text.pop().expect("a fingerprint");
        text.push(if last == '0' { '1' } else { '0' });
        record.namespace.model = text.into();
    };
    check_rebuilt(edit, "another model").await;
}
