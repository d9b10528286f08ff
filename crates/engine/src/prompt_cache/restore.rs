//! Restores caches from stored chunks, a chunk at a time. Other threads read and check the files
//! while the engine's thread assembles the caches, and gives others their turns.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cairn_lm::cache::chunk_state::CacheAssembler;
use cairn_lm::cache::{CacheSpec, LayerCache};
use cairn_prompt_cache::{ChunkKey, ChunkRecord};

use super::blocking::Blocking;
use super::chunk_file::{ChunkContents, ChunkError, ChunkReader, ReadTimes, timed};
use crate::guard::panic_message;

/// A chunk to restore from, with its contents if they are in memory.
pub(super) struct Source {
    pub(super) record: ChunkRecord,
    pub(super) contents: Option<Arc<ChunkContents>>,
}

/// A chunk that cannot be used, with the reason.
#[derive(Debug)]
pub(super) struct Unusable {
    pub(super) key: ChunkKey,
    /// Position of its first token.
    pub(super) start: usize,
    pub(super) error: ChunkError,
}

impl Unusable {
    fn new(record: &ChunkRecord, error: impl Into<ChunkError>) -> Unusable {
        Unusable { key: record.key, start: record.start, error: error.into() }
    }
}

/// The most reader threads: more would only wait for the disk or for memory.
const MAX_READERS: usize = 4;

/// A file that a reader has read.
struct ReadChunk {
    record: ChunkRecord,
    contents: Result<ChunkContents, ChunkError>,
    times: ReadTimes,
}

/// What a restore has taken.
struct RestoreTimes {
    began: Instant,
    /// All readers together, beside each other and beside the rest.
    readers: ReadTimes,
    /// Waiting for the readers.
    wait: Duration,
    /// Bringing chunks into the caches.
    add: Duration,
}

impl RestoreTimes {
    fn begin() -> Self {
        let began = Instant::now();
        RestoreTimes {
            began,
            readers: ReadTimes::default(),
            wait: Duration::ZERO,
            add: Duration::ZERO,
        }
    }

    /// Logs the times, once the caches of `num_tokens` tokens are complete.
    fn report(&self, num_tokens: usize) {
        let RestoreTimes { began, readers: ReadTimes { read, check, decode }, wait, add } = self;
        let total = began.elapsed();
        tracing::debug!(
            num_tokens,
            ?read,
            ?check,
            ?decode,
            ?wait,
            ?add,
            ?total,
            "a prompt cache is restored"
        );
    }
}

/// The caches of the first tokens of a prompt while they are restored. Its reader threads end when
/// it is dropped.
///
/// A file's contents are used only after their hash has been compared with the one taken when the
/// file was written. Contents in memory need no check.
pub(super) struct Restore {
    /// None where there is no chunk.
    assembler: Option<CacheAssembler>,
    /// Every chunk, from the root on.
    keys: Vec<ChunkKey>,
    in_memory: VecDeque<(ChunkRecord, Arc<ChunkContents>)>,
    folder: PathBuf,
    /// The chunks that are not in memory, until their files are read.
    unread: Vec<ChunkRecord>,
    /// Reads them from the first time that one is wanted: who takes its caches from another
    /// restore never reads.
    on_disk: Option<OnDisk>,
    /// How many chunks are not in the caches yet.
    num_left: usize,
    last: Option<ChunkRecord>,
    times: RestoreTimes,
}

impl Restore {
    /// Begins to restore the caches of the first `num_tokens` tokens from `sources`, which are in
    /// order from the root.
    pub(super) fn new(
        folder: &Path,
        sources: Vec<Source>,
        spec: &CacheSpec,
        num_tokens: usize,
    ) -> Result<Self, Unusable> {
        let keys = sources.iter().map(|source| source.record.key).collect();
        let wanted = sources.into_iter().filter(|source| source.record.start < num_tokens);
        let (mut in_memory, mut unread, mut last) = (VecDeque::new(), Vec::new(), None);
        for Source { record, contents } in wanted {
            last = Some(record.clone());
            match contents {
                Some(contents) => in_memory.push_back((record, contents)),
                None => unread.push(record),
            }
        }
        let num_left = in_memory.len() + unread.len();
        let assembler = last.as_ref().map(|last| {
            CacheAssembler::new(spec, num_tokens).map_err(|error| Unusable::new(last, error))
        });
        let assembler = assembler.transpose()?;
        let (folder, times) = (folder.to_owned(), RestoreTimes::begin());
        let on_disk = None;
        Ok(Restore { assembler, keys, in_memory, folder, unread, on_disk, num_left, last, times })
    }

    /// How many chunks are not in the caches yet.
    pub(super) fn num_left(&self) -> usize {
        self.num_left
    }

    /// How many chunks are in the caches.
    pub(super) fn num_added(&self) -> usize {
        self.keys.len() - self.num_left
    }

    /// Every chunk, from the root on.
    pub(super) fn keys(&self) -> &[ChunkKey] {
        &self.keys
    }

    /// Adds the next chunk to the caches; without blocking only if one has been read.
    pub(super) fn advance(&mut self, blocking: Blocking) -> Result<(), Unusable> {
        if let Some((record, contents)) = self.in_memory.pop_front() {
            return self.add(&record, &contents);
        }
        let on_disk = self.on_disk.get_or_insert_with(|| {
            OnDisk::new(&self.folder, std::mem::take(&mut self.unread), start_reader)
        });
        let next = timed(&mut self.times.wait, || on_disk.next(blocking));
        let ReadChunk { record, contents, times } = match next {
            Ok(read) => read,
            Err(TryRecvError::Empty) => return Ok(()),
            Err(TryRecvError::Disconnected) => {
                // A reader has ended early. Which file is missing cannot be told, so no chunk is
                // used.
                self.num_left = 0;
                let error = ChunkError::Bug("its reader has ended".to_owned());
                let last = self.last.as_ref().map(|last| last.key);
                return last.map_or(Ok(()), |key| Err(Unusable { key, start: 0, error }));
            }
        };
        self.times.readers.add(times);
        let contents = contents.map_err(|error| Unusable::new(&record, error))?;
        self.add(&record, &contents)?;
        if let Some(on_disk) = &self.on_disk {
            on_disk.files().give_back(contents);
        }
        Ok(())
    }

    fn add(&mut self, record: &ChunkRecord, contents: &ChunkContents) -> Result<(), Unusable> {
        self.num_left -= 1;
        let Some(assembler) = &mut self.assembler else { return Ok(()) };
        let added = timed(&mut self.times.add, || {
            assembler.add(record.start, record.stop(), |name| contents.tensor(name))
        });
        added.map_err(|error| Unusable::new(record, error))
    }

    /// The caches, and the keys of the chunks.
    pub(super) fn finish(self) -> Result<(Vec<LayerCache>, Vec<ChunkKey>), Unusable> {
        let (Some(last), Some(assembler)) = (&self.last, self.assembler) else {
            return Ok((Vec::new(), self.keys));
        };
        let caches = assembler.finish().map_err(|error| Unusable::new(last, error))?;
        self.times.report(caches.first().map_or(0, LayerCache::offset));
        Ok((caches, self.keys))
    }

    /// Restores at once.
    pub(super) fn run(mut self) -> Result<(Vec<LayerCache>, Vec<ChunkKey>), Unusable> {
        while self.num_left > 0 {
            self.advance(Blocking::Allowed)?;
        }
        self.finish()
    }
}

/// The chunks that are not in memory, while their files are read.
enum OnDisk {
    ByThreads(Arc<Files>, Receiver<ReadChunk>),
    /// The system gives no thread now, so whoever wants a chunk reads it.
    InPlace(Arc<Files>, ChunkReader),
}

impl OnDisk {
    /// Starts threads that read the files of `records`, about in their order.
    fn new(
        folder: &Path,
        records: Vec<ChunkRecord>,
        start: impl Fn(Reader) -> io::Result<()>,
    ) -> Self {
        let num_readers = std::thread::available_parallelism()
            .map_or(1, usize::from)
            .min(MAX_READERS)
            .min(records.len());
        // At most one chunk per reader is read ahead, to bound the memory.
        let (sender, receiver) = mpsc::sync_channel(num_readers);
        let files = Arc::new(Files {
            folder: folder.to_owned(),
            records,
            num_taken: AtomicUsize::new(0),
            spare: Mutex::default(),
        });
        for num_started in 0..num_readers {
            let (taken, sender) = (Arc::clone(&files), sender.clone());
            match start(Box::new(move || taken.read_all(&sender))) {
                Ok(()) => {}
                Err(error) if num_started == 0 => {
                    tracing::warn!(%error, "no thread can be had to read the prompt cache");
                    return OnDisk::InPlace(files, ChunkReader::default());
                }
                // Those that run read everything.
                Err(_) => break,
            }
        }
        OnDisk::ByThreads(files, receiver)
    }

    /// The next file. Where blocking is forbidden, none while threads read and have read none.
    fn next(&mut self, blocking: Blocking) -> Result<ReadChunk, TryRecvError> {
        match self {
            OnDisk::ByThreads(_, read) => match blocking {
                Blocking::Allowed => read.recv().map_err(|_| TryRecvError::Disconnected),
                Blocking::Forbidden => read.try_recv(),
            },
            OnDisk::InPlace(files, reader) => {
                files.read_next(reader).ok_or(TryRecvError::Disconnected)
            }
        }
    }

    fn files(&self) -> &Files {
        match self {
            OnDisk::ByThreads(files, _) | OnDisk::InPlace(files, _) => files,
        }
    }
}

/// What a reader thread runs.
type Reader = Box<dyn FnOnce() + Send>;

fn start_reader(reader: Reader) -> io::Result<()> {
    std::thread::Builder::new().name("cairn-reader".to_owned()).spawn(reader).map(drop)
}

/// The files to read.
#[derive(Default)]
struct Files {
    folder: PathBuf,
    records: Vec<ChunkRecord>,
    /// How many of them a reader has begun with.
    num_taken: AtomicUsize,
    /// The memory of chunks that are in the caches, for those that are read next.
    spare: Mutex<Vec<Vec<u8>>>,
}

impl Files {
    /// Reads the next file; none when every one has its reader.
    fn read_next(&self, reader: &mut ChunkReader) -> Option<ReadChunk> {
        let record = self.records.get(self.num_taken.fetch_add(1, Ordering::Relaxed))?;
        let spare = self.spare().pop().unwrap_or_default();
        let contents = caught(|| reader.read(&self.folder, record, spare));
        let (record, times) = (record.clone(), reader.take_times());
        Some(ReadChunk { record, contents, times })
    }

    /// Takes the memory of a chunk that is in the caches.
    fn give_back(&self, contents: ChunkContents) {
        self.spare().push(contents.into_bytes());
    }

    fn spare(&self) -> std::sync::MutexGuard<'_, Vec<Vec<u8>>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads files until none is left, or nobody wants them any more.
    fn read_all(&self, sender: &SyncSender<ReadChunk>) {
        let mut reader = ChunkReader::default();
        while let Some(read) = self.read_next(&mut reader) {
            if sender.send(read).is_err() {
                return;
            }
        }
    }
}

/// What `read` returns; a panic in it is an error that says nothing about the file.
fn caught<T>(read: impl FnOnce() -> Result<T, ChunkError>) -> Result<T, ChunkError> {
    catch_unwind(AssertUnwindSafe(read))
        .unwrap_or_else(|panic| Err(ChunkError::Bug(panic_message(panic.as_ref()))))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use cairn_lm::cache::KvCache;
    use cairn_lm::cache::chunk_state::EvaluatedLayers;
    use cairn_prompt_cache::{ChunkKind, KvFormat, Namespace, Tokens};
    use mlx_rs::Array;

    use super::super::chunk_file::{self, FileCoding};
    use super::*;

    const MODEL: &str = "0123456789abcdef0123456789abcdef";

    /// Caches of this many tokens.
    fn caches(num_tokens: usize) -> Vec<LayerCache> {
        let shape = [1, 1, i32::try_from(num_tokens).unwrap(), 4];
        let rows = Array::full::<f32>(&shape, &Array::from_f32(7.0)).unwrap();
        let cache =
            KvCache::from_parts(std::slice::from_ref(&rows), std::slice::from_ref(&rows)).unwrap();
        vec![LayerCache::Kv(cache)]
    }

    /// Every other chunk's file is coded.
    fn coding(index: usize) -> FileCoding {
        if index % 2 == 1 { FileCoding::BytePlanes } else { FileCoding::Plain }
    }

    /// Writes chunks of two tokens each, and returns what their caches are and their records.
    fn stored(folder: &Path, num_chunks: usize) -> (CacheSpec, Vec<ChunkRecord>) {
        let caches = caches(2 * num_chunks);
        let spec = CacheSpec::of(&caches).unwrap();
        let layers = EvaluatedLayers::of(&caches).unwrap();
        let mut records: Vec<ChunkRecord> = Vec::new();
        for index in 0..num_chunks {
            let start = 2 * index;
            let state = layers.chunk_state(&[], start, start + 2).unwrap();
            let mut record = ChunkRecord {
                key: ChunkKey::from_bytes([0; 16]),
                parent: records.last().map(|parent| parent.key),
                namespace: Namespace::computed(MODEL, KvFormat::Plain),
                kind: ChunkKind::User,
                start,
                tokens: Tokens::known([5, 6]),
                held_from: state.held_from,
                has_state: state.has_state,
                file: None,
                hits: 0,
                created_at_ms: 0,
                last_used_at_ms: 0,
            };
            record.key = record.expected_key();
            let contents = ChunkContents::new(state);
            let path = chunk_file::path(folder, &record.namespace.model, &record.key);
            let file = contents.to_file(&record, &spec.layout().unwrap(), coding(index)).unwrap();
            record.file = Some(file.write(&path).unwrap());
            records.push(record);
        }
        (spec, records)
    }

    #[test]
    fn a_reader_that_ends_early_says_nothing_against_a_chunk() {
        let folder = tempfile::tempdir().unwrap();
        let (spec, records) = stored(folder.path(), 1);
        let source = Source { record: records[0].clone(), contents: None };
        let mut restore = Restore::new(folder.path(), vec![source], &spec, 2).unwrap();
        restore.on_disk = Some(OnDisk::ByThreads(Arc::default(), mpsc::sync_channel(1).1));
        let unusable = restore.run().err().unwrap();
        assert!(!unusable.error.is_lasting(), "{unusable:?}");
        assert_eq!(unusable.start, 0, "no chunk is used");
    }

    #[test]
    fn a_panic_while_a_file_is_read_says_nothing_against_it() {
        let panicked: Result<(), ChunkError> = caught(|| panic!("a bug"));
        let error = panicked.unwrap_err();
        assert!(!error.is_lasting() && error.to_string().contains("a bug"), "{error}");
    }

    #[test]
    fn files_are_read_without_a_thread_or_with_fewer_than_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let (spec, records) = stored(folder.path(), 5);
        for num_threads in 0..=2 {
            let num_started = AtomicUsize::new(0);
            let start = |reader: Reader| {
                if num_started.fetch_add(1, Ordering::Relaxed) < num_threads {
                    return start_reader(reader);
                }
                Err(io::ErrorKind::WouldBlock.into())
            };
            let source = |record: &ChunkRecord| Source { record: record.clone(), contents: None };
            let sources = records.iter().map(source).collect();
            let mut restore = Restore::new(folder.path(), sources, &spec, 10).unwrap();
            restore.on_disk = Some(OnDisk::new(folder.path(), records.clone(), start));
            let (caches, keys) = restore.run().ok().unwrap();
            assert_eq!(caches[0].offset(), 10, "{num_threads} threads");
            assert_eq!(keys.len(), 5);
        }
    }
}
