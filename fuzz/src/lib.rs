//! What the fuzz targets share: a file that every input becomes, and the rules for sentences.
//!
//! ```text
//! cargo xtask fuzz                            every target, a minute each
//! cargo xtask fuzz --seconds 600 gguf         one target, ten minutes
//! cargo run --manifest-path fuzz/Cargo.toml --bin seeds      writes the seeds that are binary
//! ```
//! The target `config` links MLX: on Linux `cargo xtask mlx` comes first. Its first hour, with 51
//! million inputs, found one thing: sentences that repeated control characters of a config.
//!
//! Each target states its property in its first lines. Inputs that were found stay in
//! `fuzz/corpus`, one that ends a run goes to `fuzz/artifacts`; neither is committed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

/// Values that are made up for a header are at most this long.
const MAX_DATA_BYTES: u64 = 1 << 20;

/// A file that is overwritten by every input; in memory where the system has a folder for that.
pub struct ScratchFile {
    path: PathBuf,
    file: File,
}

impl ScratchFile {
    /// A file whose name ends so.
    pub fn new(suffix: &str) -> ScratchFile {
        let path = scratch_folder().join(format!("cairn-fuzz-{}{suffix}", std::process::id()));
        let file = File::create(&path).expect("a file");
        ScratchFile { path, file }
    }

    /// The file, holding these bytes.
    pub fn holding(&self, bytes: &[u8]) -> &Path {
        self.file.set_len(0).expect("shortens");
        self.file.write_all_at(bytes, 0).expect("writes");
        &self.path
    }
}

/// Where scratch files go.
pub fn scratch_folder() -> PathBuf {
    let in_memory = PathBuf::from("/dev/shm");
    if in_memory.is_dir() { in_memory } else { std::env::temp_dir() }
}

/// The safetensors file that an input stands for.
///
/// An input that begins with `{` is a header, and behind a NUL the bytes of its tensors; offsets
/// and lengths are put right, so that what is mutated reaches the checks behind them. Any other
/// input is a file as it stands.
pub fn safetensors_file(input: &[u8]) -> Vec<u8> {
    let made = input.starts_with(b"{").then(|| file_of(input)).flatten();
    made.unwrap_or_else(|| input.to_vec())
}

/// The file of a header and bytes; none where the header is not even JSON.
fn file_of(input: &[u8]) -> Option<Vec<u8>> {
    let end = input.iter().position(|byte| *byte == 0).unwrap_or(input.len());
    let (header, tail) = (&input[..end], input.get(end + 1..).unwrap_or_default());
    let Value::Object(entries) = serde_json::from_slice(header).ok()? else { return None };
    let mut position = 0;
    let entries: Map<String, Value> = entries
        .into_iter()
        .map(|(name, mut entry)| {
            if let (Some(size), Some(fields)) = (size_of(&entry), entry.as_object_mut()) {
                fields.insert("data_offsets".to_owned(), json!([position, position + size]));
                position += size;
            }
            (name, entry)
        })
        .collect();
    let header = Value::Object(entries).to_string();
    let mut bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), tail].concat();
    bytes.resize(8 + header.len() + position.min(MAX_DATA_BYTES) as usize, 0);
    Some(bytes)
}

fn size_of(entry: &Value) -> Option<u64> {
    let item_bytes = match entry.get("dtype")?.as_str()? {
        "F32" | "U32" | "I32" => 4,
        "F16" | "BF16" | "U16" | "I16" => 2,
        "I64" | "U64" => 8,
        _ => 1,
    };
    let shape = entry.get("shape")?.as_array()?;
    let size = shape
        .iter()
        .try_fold(item_bytes, |size: u64, length| size.checked_mul(length.as_u64()?))?;
    Some(size).filter(|size| *size <= MAX_DATA_BYTES)
}

/// Fails unless `words` are one line that a person can read.
pub fn check_sentence(words: &str) {
    assert!(words.len() < 4000, "{} bytes of words", words.len());
    assert!(!words.chars().any(|char| char.is_control()), "{words:?}");
}

/// The configs of the tiny models that mlx-lm computed.
pub struct GoldenConfigs {
    /// Each with its name: `family/case`.
    pub configs: Vec<(String, Value)>,
    /// Where any of them has a value, in order.
    pub pointers: Vec<String>,
}

impl GoldenConfigs {
    /// Reads them from the repository.
    pub fn read() -> GoldenConfigs {
        let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/goldens");
        let mut configs: Vec<(String, Value)> = folders(&goldens)
            .iter()
            .flat_map(|family| folders(family))
            .filter_map(|case| {
                let text = std::fs::read(case.join("config.json")).ok()?;
                let name = case.strip_prefix(&goldens).expect("a case").to_str().expect("a name");
                Some((name.to_owned(), cairn_formats::python_json(&text).expect("JSON")))
            })
            .collect();
        configs.sort_by(|(one, _), (other, _)| one.cmp(other));
        assert!(!configs.is_empty(), "no goldens in {}", goldens.display());
        let mut pointers = Vec::new();
        configs.iter().for_each(|(_, config)| find_pointers(config, "", &mut pointers));
        pointers.sort();
        pointers.dedup();
        GoldenConfigs { configs, pointers }
    }
}

fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// Every path of objects to a value.
fn find_pointers(value: &Value, path: &str, found: &mut Vec<String>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        let path = format!("{path}/{key}");
        find_pointers(value, &path, found);
        found.push(path);
    }
}

/// The one of this name, or where there is none, whichever the name's letters add up to.
pub fn one_of<'a, T>(known: &'a [T], name: &str, name_of: impl Fn(&T) -> &String) -> &'a T {
    let sum = || {
        name.bytes()
            .fold(0, |sum: usize, byte| sum.wrapping_mul(31).wrapping_add(usize::from(byte)))
    };
    let found = known.iter().find(|one| name_of(one) == name);
    found.unwrap_or_else(|| &known[sum() % known.len()])
}
