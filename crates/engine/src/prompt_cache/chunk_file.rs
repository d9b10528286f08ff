//! A file can be verified on its own: its metadata contains everything that its key is a hash of,
//! and a hash of the tensors. So the records of a lost database can be rebuilt from the files
//! ([`prove`]). Its tensors may be coded ([`super::byte_planes`]); hashes are of the bytes in the file.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cairn_formats::{FileError, read_file, read_file_into};
use cairn_lm::cache::chunk_state::{CacheLayout, ChunkState, StateTensor, TensorSlice};
use cairn_prompt_cache::{
    ChunkFile, ChunkKey, ChunkKind, ChunkProblem, ChunkRecord, FileHash, LossReason,
    MAX_CHUNK_BYTES, MAX_CHUNK_TOKENS, ModelFingerprint, Namespace, Provenance,
};
use mlx_rs::Dtype;
use safetensors::tensor::{Metadata, SafeTensors, TensorInfo};

use super::byte_planes::{Decoder, Encoder, Numbers};

/// The reason why a stored chunk cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChunkError {
    #[error("the chunk's file cannot be read: {0}")]
    Read(#[from] io::Error),
    #[error("the chunk's contents have changed since it was written")]
    Damaged,
    #[error("the chunk's file is no safetensors file: {0}")]
    Format(#[from] safetensors::SafeTensorError),
    #[error("the chunk could not be brought back into memory: {0}")]
    Lm(#[from] cairn_lm::LmError),
    #[error("the chunk has numbers of a type that no cache has")]
    Dtype,
    #[error("reading the chunk hit a bug: {0}")]
    Bug(String),
}

impl From<FileError> for ChunkError {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Io { source, .. } => ChunkError::Read(source),
            FileError::NotAFile { .. } | FileError::TooLong { .. } => ChunkError::Damaged,
        }
    }
}

impl ChunkError {
    /// Whether a later attempt will fail too, so that the chunk is of no use.
    pub(super) fn is_lasting(&self) -> bool {
        match self {
            ChunkError::Read(error) => error.kind() == io::ErrorKind::NotFound,
            ChunkError::Lm(error) => matches!(error, cairn_lm::LmError::ChunkState { .. }),
            ChunkError::Damaged | ChunkError::Format(_) | ChunkError::Dtype => true,
            // It says nothing about the file.
            ChunkError::Bug(_) => false,
        }
    }

    /// What a lookup reports of it.
    pub(super) fn problem(&self) -> ChunkProblem {
        match self {
            ChunkError::Read(error) if error.kind() == io::ErrorKind::NotFound => {
                ChunkProblem::Missing
            }
            ChunkError::Read(error) => ChunkProblem::Unreadable(error.to_string()),
            ChunkError::Bug(_) => ChunkProblem::NotRestorable(self.to_string()),
            ChunkError::Damaged => ChunkProblem::Damaged(None),
            ChunkError::Format(error) => ChunkProblem::Damaged(Some(error.to_string())),
            ChunkError::Lm(error) => ChunkProblem::NotRestorable(error.to_string()),
            ChunkError::Dtype => ChunkProblem::Damaged(Some(self.to_string())),
        }
    }

    /// Why references lose the chunk, where it is of no use any more.
    pub(super) fn loss(&self) -> LossReason {
        match self.problem() {
            ChunkProblem::Missing => LossReason::FileMissing,
            _ => LossReason::FileDamaged,
        }
    }
}

/// The tensors of a chunk. Immutable once made, so that the memory tier, the writer and restoring
/// share them.
#[derive(Debug)]
pub(super) struct ChunkContents {
    bytes: Vec<u8>,
    /// In the order of the bytes.
    tensors: Vec<StateTensor>,
    by_name: HashMap<String, usize>,
}

/// Far more than the header of any chunk takes.
const MAX_HEADER_BYTES: u64 = 8 << 20;
const CONTENTS_HASH: &str = "contents_hash";
const FORMAT: &str = "cairn-chunk-2";
/// The format of a file with coded tensors.
const CODED_FORMAT: &str = "cairn-chunk-3";
/// In a file with coded tensors: the one tensor that has them all, and the metadata that says what they
/// are.
const CODED: &str = "coded";
const TENSORS: &str = "tensors";
/// The format of the first version, whose files cannot be verified on their own.
const OLD_FORMAT: &str = "cairn-chunk-1";
const SUFFIX: &str = ".safetensors";
const TEMPORARY_PREFIXES: [&str; 2] = [".writing-", ".filing-"];
const TEMPORARY_SUFFIX: &str = ".tmp";

impl ChunkContents {
    pub(super) fn new(state: ChunkState) -> Self {
        let by_name = state
            .tensors
            .iter()
            .enumerate()
            .map(|(index, tensor)| (tensor.name.clone(), index))
            .collect();
        ChunkContents { bytes: state.bytes, tensors: state.tensors, by_name }
    }

    pub(super) fn num_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub(super) fn tensor(&self, name: &str) -> Option<TensorSlice<'_>> {
        let tensor = &self.tensors[*self.by_name.get(name)?];
        Some(TensorSlice {
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            bytes: &self.bytes[tensor.range.clone()],
        })
    }

    /// The bytes, whose memory can be used again.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The file of `record` with these contents, coded as asked for.
    pub(super) fn to_file(
        &self,
        record: &ChunkRecord,
        layout: &CacheLayout,
        coding: FileCoding,
    ) -> Result<FileParts<'_>, ChunkError> {
        let mut text = self_description(record, layout)?;
        let (infos, bytes) = match coding {
            FileCoding::Plain => (self.infos()?, Cow::Borrowed(self.bytes.as_slice())),
            FileCoding::BytePlanes => {
                let bytes = self.coded()?;
                text.insert("format".to_owned(), CODED_FORMAT.to_owned());
                text.insert(TENSORS.to_owned(), described_tensors(&self.infos()?)?);
                let (dtype, shape) = (safetensors::Dtype::U8, vec![bytes.len()]);
                let info = TensorInfo { dtype, shape, data_offsets: (0, bytes.len()) };
                (vec![(CODED.to_owned(), info)], Cow::Owned(bytes))
            }
        };
        let tensors = infos.iter().map(|(name, info)| (name.as_str(), info));
        let hash = contents_hash(&text, tensors, &bytes);
        text.insert(CONTENTS_HASH.to_owned(), hash);
        let metadata = Metadata::new(Some(text), infos)?;
        let mut json = serde_json::to_vec(&metadata).map_err(io::Error::from)?;
        json.resize(json.len().next_multiple_of(8), b' ');
        let mut header = (json.len() as u64).to_le_bytes().to_vec();
        header.append(&mut json);
        Ok(FileParts { header, bytes })
    }

    /// What the header of a plain file says of the tensors.
    fn infos(&self) -> Result<Vec<(String, TensorInfo)>, ChunkError> {
        let infos = self.tensors.iter().map(|tensor| {
            let info = TensorInfo {
                dtype: to_safetensors(tensor.dtype)?,
                shape: tensor.shape.clone(),
                data_offsets: (tensor.range.start, tensor.range.end),
            };
            Ok((tensor.name.clone(), info))
        });
        infos.collect()
    }

    /// The tensors' bytes, coded.
    fn coded(&self) -> Result<Vec<u8>, ChunkError> {
        let (mut encoder, mut coded) = (Encoder::new()?, Vec::with_capacity(self.bytes.len()));
        for tensor in &self.tensors {
            let bytes = &self.bytes[tensor.range.clone()];
            encoder.encode(Numbers { bytes, width: width(tensor.dtype) }, &mut coded)?;
        }
        Ok(coded)
    }
}

/// How a chunk's tensors are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FileCoding {
    /// As they are, one after the other.
    #[default]
    Plain,
    /// Coded without loss, which makes files smaller and costs time when they are written.
    BytePlanes,
}

/// A chunk's file that is to be written: everything before the tensors' bytes, and those.
pub(super) struct FileParts<'a> {
    header: Vec<u8>,
    bytes: Cow<'a, [u8]>,
}

impl FileParts<'_> {
    /// The length of the file.
    pub(super) fn num_bytes(&self) -> u64 {
        (self.header.len() + self.bytes.len()) as u64
    }

    /// Writes the file atomically: temporary name, fsync, rename, fsync of the folder.
    ///
    /// Another program may have written this chunk meanwhile and recorded its hash, so a valid file
    /// of this chunk is not replaced. Any other file of this name is.
    pub(super) fn write(&self, path: &Path) -> io::Result<ChunkFile> {
        let folder = path.parent().unwrap_or(Path::new("."));
        make_own_folder(folder)?;
        if let Some(file) = prove(path).ok().and_then(|record| record.file) {
            File::open(folder)?.sync_all()?;
            return Ok(file);
        }
        let mut hasher = blake3::Hasher::new();
        let mut file = tempfile::Builder::new()
            .prefix(TEMPORARY_PREFIXES[0])
            .suffix(TEMPORARY_SUFFIX)
            .tempfile_in(folder)?;
        for part in [self.header.as_slice(), &self.bytes] {
            file.write_all(part)?;
            hasher.update(part);
        }
        file.as_file().sync_all()?;
        file.persist(path)?;
        if let Err(error) = File::open(folder).and_then(|folder| folder.sync_all()) {
            // It counts as not written, so nothing else would remove it.
            let _ = std::fs::remove_file(path);
            return Err(error);
        }
        Ok(ChunkFile {
            num_bytes: self.num_bytes(),
            hash: hasher.finalize().to_hex().as_str().into(),
        })
    }
}

/// Reads chunk files, one after the other. Keeps what the next one can use: memory that the system
/// gives anew costs as much time as reading does.
#[derive(Default)]
pub(super) struct ChunkReader {
    file: Vec<u8>,
    decoder: Option<Decoder>,
    times: ReadTimes,
}

/// What reading chunk files has taken.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ReadTimes {
    /// From the disk, or from the system's copies of it, to memory.
    pub(super) read: Duration,
    /// Comparing hashes.
    pub(super) check: Duration,
    /// Of coded tensors.
    pub(super) decode: Duration,
}

impl ReadTimes {
    pub(super) fn add(&mut self, other: ReadTimes) {
        self.read += other.read;
        self.check += other.check;
        self.decode += other.decode;
    }
}

/// Runs `run` and adds the time that it took to `total`.
pub(super) fn timed<T>(total: &mut Duration, run: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let value = run();
    *total += began.elapsed();
    value
}

impl ChunkReader {
    /// Reads the file of `record`; its size and hash must be those in the record. The contents take
    /// the memory of `spare`.
    pub(super) fn read(
        &mut self,
        folder: &Path,
        record: &ChunkRecord,
        spare: Vec<u8>,
    ) -> Result<ChunkContents, ChunkError> {
        let file = record.file.as_ref().ok_or(ChunkError::Damaged)?;
        let path = path(folder, &record.namespace.model, &record.key);
        let mut bytes = spare;
        let ReadTimes { read, check, .. } = &mut self.times;
        timed(read, || read_file_into(&path, file.num_bytes, &mut bytes))?;
        let is_whole = bytes.len() as u64 == file.num_bytes;
        if !is_whole || timed(check, || hash(&bytes)) != file.hash {
            return Err(ChunkError::Damaged);
        }
        // The hash shows that this program wrote the bytes; the assembler of the caches checks
        // whether they fit the model.
        let (header_bytes, metadata) = SafeTensors::read_metadata(&bytes)?;
        let start = header_bytes + size_of::<u64>();
        let text = metadata.metadata().as_ref();
        let tensors = match text.filter(|text| is_of_format(text, CODED_FORMAT)) {
            None => stored_tensors(&metadata, start)?,
            Some(text) => {
                let tensors = coded_tensors(text)?;
                std::mem::swap(&mut self.file, &mut bytes);
                let began = Instant::now();
                self.decode(start, &tensors, &mut bytes)?;
                self.times.decode += began.elapsed();
                tensors
            }
        };
        if tensors.iter().any(|tensor| tensor.range.end > bytes.len()) {
            return Err(ChunkError::Damaged);
        }
        Ok(ChunkContents::new(ChunkState {
            tensors,
            bytes,
            held_from: record.held_from,
            has_state: record.has_state,
        }))
    }

    /// What reading has taken since the last call.
    pub(super) fn take_times(&mut self) -> ReadTimes {
        std::mem::take(&mut self.times)
    }

    /// Decodes the tensors in `self.file` from `start` on into `bytes`.
    fn decode(
        &mut self,
        start: usize,
        tensors: &[StateTensor],
        bytes: &mut Vec<u8>,
    ) -> Result<(), ChunkError> {
        let length = tensors.last().map_or(0, |tensor| tensor.range.end);
        bytes.try_reserve_exact(length.saturating_sub(bytes.len())).map_err(io::Error::from)?;
        // What is there already is overwritten.
        bytes.resize(length, 0);
        let decoder = match &mut self.decoder {
            Some(decoder) => decoder,
            decoder => decoder.insert(Decoder::new()?),
        };
        let mut coded = &self.file[start..];
        for tensor in tensors {
            let numbers = &mut bytes[tensor.range.clone()];
            let decoded = decoder.decode(&mut coded, numbers, width(tensor.dtype));
            decoded.map_err(|_| ChunkError::Damaged)?;
        }
        if coded.is_empty() { Ok(()) } else { Err(ChunkError::Damaged) }
    }
}

/// The tensors of a plain file, whose bytes begin at `start`.
fn stored_tensors(metadata: &Metadata, start: usize) -> Result<Vec<StateTensor>, ChunkError> {
    let names = metadata.offset_keys();
    let infos = names.into_iter().filter_map(|name| Some((metadata.info(&name)?, name)));
    let tensors = infos.map(|(info, name)| {
        let range = start + info.data_offsets.0..start + info.data_offsets.1;
        Ok(StateTensor { name, dtype: to_mlx(info.dtype)?, shape: info.shape.clone(), range })
    });
    tensors.collect()
}

/// A tensor in the metadata of a file with coded ones.
type DescribedTensor = (String, safetensors::Dtype, Vec<usize>);

/// What coded tensors are, as JSON in the order of their bytes.
fn described_tensors(infos: &[(String, TensorInfo)]) -> Result<String, ChunkError> {
    let described = infos.iter().map(|(name, info)| (name, info.dtype, &info.shape));
    Ok(serde_json::to_string(&described.collect::<Vec<_>>()).map_err(io::Error::from)?)
}

/// The tensors that a file's metadata names, with their places once they are decoded.
fn coded_tensors(text: &HashMap<String, String>) -> Result<Vec<StateTensor>, ChunkError> {
    let described: Vec<DescribedTensor> = text
        .get(TENSORS)
        .and_then(|tensors| serde_json::from_str(tensors).ok())
        .ok_or(ChunkError::Damaged)?;
    let mut stop = 0_usize;
    let tensors = described.into_iter().map(|(name, dtype, shape)| {
        let dtype = to_mlx(dtype)?;
        let mut lengths = shape.iter();
        let num_bytes = lengths.try_fold(width(dtype), |bytes, &length| bytes.checked_mul(length));
        let start = stop;
        stop = num_bytes.and_then(|bytes| start.checked_add(bytes)).ok_or(ChunkError::Damaged)?;
        if stop as u64 > MAX_CHUNK_BYTES {
            return Err(ChunkError::Damaged);
        }
        Ok(StateTensor { name, dtype, shape, range: start..stop })
    });
    tensors.collect()
}

/// The bytes of a number of a type that a chunk may have.
fn width(dtype: Dtype) -> usize {
    match dtype {
        Dtype::Float32 | Dtype::Uint32 => 4,
        _ => 2,
    }
}

/// The path of a chunk's file.
pub(super) fn path(folder: &Path, model: &ModelFingerprint, key: &ChunkKey) -> PathBuf {
    folder.join(model.as_str()).join(format!("{key}{SUFFIX}"))
}

fn hash(bytes: &[u8]) -> FileHash {
    blake3::hash(bytes).to_hex().as_str().into()
}

/// Whether a text has the form of a fingerprint or key: only then may it be part of a path.
pub(super) fn is_hex(text: &str) -> bool {
    (16..=128).contains(&text.len())
        && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// What a file in the prompt-cache folder is, judged by its name alone.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FileName {
    /// `<key>.safetensors`
    Chunk,
    /// An unfinished file.
    Temporary,
    /// A file of another program.
    Foreign,
}

pub(super) fn file_name(name: &str) -> FileName {
    let is_temporary = TEMPORARY_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        && name.ends_with(TEMPORARY_SUFFIX);
    match name.strip_suffix(SUFFIX) {
        Some(key) if is_hex(key) => FileName::Chunk,
        _ if is_temporary => FileName::Temporary,
        _ => FileName::Foreign,
    }
}

/// Verifies the file at `path` and returns its chunk's record: a regular file in a folder named by
/// the model, whose key is the hash of its metadata, with the tensors that it was written with.
/// Fails for any other file, and where the system cannot read it now, which proves nothing.
pub(super) fn prove(path: &Path) -> Result<ChunkRecord, ChunkError> {
    // Nor a link to one, which may be outside of the folder.
    if !std::fs::symlink_metadata(path)?.is_file() {
        return Err(ChunkError::Damaged);
    }
    let bytes = read_file(path, MAX_CHUNK_BYTES)?;
    let (header_bytes, metadata) = SafeTensors::read_metadata(&bytes)?;
    let contents = &bytes[header_bytes + size_of::<u64>()..];
    let file = ChunkFile { num_bytes: bytes.len() as u64, hash: hash(&bytes) };
    proven(path, &metadata, contents, file).ok_or(ChunkError::Damaged)
}

/// The record in a file's `metadata`, if that and the `contents` after it are what was written.
fn proven(
    path: &Path,
    metadata: &Metadata,
    contents: &[u8],
    file: ChunkFile,
) -> Option<ChunkRecord> {
    let text = metadata.metadata().as_ref().filter(|text| is_current(text))?;
    let record = described(text, file)?.checked().ok()?;
    let model = path.parent().and_then(Path::file_name)?;
    let names = metadata.offset_keys();
    let tensors = names.iter().filter_map(|name| Some((name.as_str(), metadata.info(name)?)));
    let is_proven = path.file_stem()?.to_str() == Some(&record.key.to_string())
        && model.to_str() == Some(record.namespace.model.as_str())
        && text.get(CONTENTS_HASH) == Some(&contents_hash(text, tensors, contents));
    is_proven.then_some(record)
}

/// Whether the header of the file at `path` says that Cairn wrote it, as the chunk of this name:
/// then it may be removed when it is of no use.
pub(super) fn is_own(path: &Path) -> bool {
    let is_regular = std::fs::symlink_metadata(path).is_ok_and(|file| file.is_file());
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    let Some(metadata) = is_regular.then(|| read_header(path).ok()).flatten() else { return false };
    metadata.metadata().as_ref().is_some_and(|text| {
        (is_current(text) || is_of_format(text, OLD_FORMAT))
            && text.get("key").map(String::as_str) == stem
    })
}

/// The cache layout that the chunk at `path` names in its metadata.
pub(super) fn layout(path: &Path) -> Result<CacheLayout, ChunkError> {
    let metadata = read_header(path)?;
    let text = metadata.metadata().as_ref().and_then(|text| text.get("layout"));
    text.and_then(|layout| serde_json::from_str(layout).ok()).ok_or(ChunkError::Damaged)
}

/// Whether a file's metadata is of a format that is read.
fn is_current(text: &HashMap<String, String>) -> bool {
    [FORMAT, CODED_FORMAT].iter().any(|format| is_of_format(text, format))
}

fn is_of_format(text: &HashMap<String, String>, format: &str) -> bool {
    text.get("format").is_some_and(|found| found == format)
}

fn read_header(path: &Path) -> Result<Metadata, ChunkError> {
    // Opening a pipe would wait for a writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(ChunkError::Damaged);
    }
    let mut file = File::open(path)?;
    let mut length = [0; size_of::<u64>()];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        return Err(ChunkError::Damaged);
    }
    let mut json = Vec::new();
    file.take(length).read_to_end(&mut json)?;
    serde_json::from_slice(&json).map_err(|_| ChunkError::Damaged)
}

/// Creates the folder of a model's chunks; fails if it is a symbolic link, which would lead out of
/// the prompt cache.
fn make_own_folder(folder: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(folder) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::NotADirectory,
            format!("{} is not a folder", folder.display()),
        )),
        Err(_) => {
            std::fs::create_dir_all(folder)?;
            folder.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
        }
    }
}

/// BLAKE3, in hex, of everything in the file except this hash: the metadata by key, the tensors'
/// descriptions in the order of their bytes, and the bytes.
fn contents_hash<'a>(
    text: &HashMap<String, String>,
    tensors: impl Iterator<Item = (&'a str, &'a TensorInfo)>,
    bytes: &[u8],
) -> String {
    let mut hasher = blake3::Hasher::new();
    let described: BTreeMap<&String, &String> =
        text.iter().filter(|(key, _)| *key != CONTENTS_HASH).collect();
    for (key, value) in described {
        hasher.update(format!("{key}={value}\n").as_bytes());
    }
    for (name, TensorInfo { dtype, shape, data_offsets }) in tensors {
        hasher.update(format!("{name} {dtype} {shape:?} {data_offsets:?}\n").as_bytes());
    }
    hasher.update(bytes);
    hasher.finalize().to_hex().to_string()
}

/// The metadata of a chunk's file, from which its record can be rebuilt.
fn self_description(
    record: &ChunkRecord,
    layout: &CacheLayout,
) -> Result<HashMap<String, String>, ChunkError> {
    let token_ids: Vec<String> = record.tokens.stored_ids().iter().map(u32::to_string).collect();
    let mut entries = vec![
        ("format", FORMAT.to_owned()),
        ("fingerprint", record.namespace.model.to_string()),
        ("kv_format", record.namespace.kv_format.to_string()),
        ("provenance", record.namespace.provenance.to_string()),
        ("key", record.key.to_string()),
        ("kind", record.kind.as_str().to_owned()),
        ("start", record.start.to_string()),
        ("token_ids", token_ids.join(",")),
        ("held_from", record.held_from.to_string()),
        ("has_state", record.has_state.to_string()),
        ("layout", serde_json::to_string(layout).map_err(io::Error::from)?),
    ];
    entries.extend(record.parent.map(|parent| ("parent_key", parent.to_string())));
    Ok(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

/// The record in the metadata of a file.
fn described(text: &HashMap<String, String>, file: ChunkFile) -> Option<ChunkRecord> {
    let get = |key: &str| text.get(key).map(String::as_str);
    let token_ids = get("token_ids")?.split(',').map(|id| id.parse().ok());
    // One more than allowed suffices to notice that there are too many.
    let token_ids: Vec<u32> = token_ids.take(MAX_CHUNK_TOKENS + 1).collect::<Option<_>>()?;
    let namespace = Namespace {
        model: get("fingerprint")?.into(),
        kv_format: get("kv_format")?.parse().ok()?,
        provenance: get("provenance")?.parse::<Provenance>().ok()?,
    };
    let kind = ChunkKind::named(get("kind")?)?;
    let parent = get("parent_key").map(str::parse).transpose().ok()?;
    let now_ms = super::unix_time::now_ms();
    Some(ChunkRecord {
        key: get("key")?.parse().ok()?,
        parent,
        tokens: ChunkRecord::stored_tokens(&namespace, kind, token_ids),
        namespace,
        kind,
        start: get("start")?.parse().ok()?,
        held_from: get("held_from")?.parse().ok()?,
        has_state: get("has_state")?.parse().ok()?,
        file: Some(file),
        hits: 0,
        created_at_ms: now_ms,
        last_used_at_ms: now_ms,
    })
}

fn to_safetensors(dtype: Dtype) -> Result<safetensors::Dtype, ChunkError> {
    Ok(match dtype {
        Dtype::Float32 => safetensors::Dtype::F32,
        Dtype::Float16 => safetensors::Dtype::F16,
        Dtype::Bfloat16 => safetensors::Dtype::BF16,
        Dtype::Uint32 => safetensors::Dtype::U32,
        _ => return Err(ChunkError::Dtype),
    })
}

fn to_mlx(dtype: safetensors::Dtype) -> Result<Dtype, ChunkError> {
    Ok(match dtype {
        safetensors::Dtype::F32 => Dtype::Float32,
        safetensors::Dtype::F16 => Dtype::Float16,
        safetensors::Dtype::BF16 => Dtype::Bfloat16,
        safetensors::Dtype::U32 => Dtype::Uint32,
        _ => return Err(ChunkError::Dtype),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests;
