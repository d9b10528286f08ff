//! Log files: five of five megabytes at most, without secrets.
//!
//! ```text
//! logs/cairn.log      the newest lines
//! logs/cairn.1.log    those before, and so on up to cairn.4.log
//! ```
//!
//! No text of a conversation is ever logged. Whatever looks like a token, a key or a password is
//! masked before it is written, whichever crate logs it.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::data_folder::DataFolder;
use crate::platform;

/// The filter for the files: warnings of every crate, and what Cairn's own crates do.
pub const LOG_FILTER: &str =
    "warn,cairn_app=info,cairn_engine=info,cairn_hub=info,cairn_lm=info,cairn_store=info";

const MAX_FILE_BYTES: u64 = 5 << 20;
const NUM_FILES: usize = 5;
/// Longer lines are cut: they are lists that something printed whole.
const MAX_LINE_BYTES: usize = 8 << 10;
const MASK: &str = "[hidden]";

/// The writer of the log files. Each call of `write` takes one whole line, as
/// `tracing_subscriber::fmt` writes them.
///
/// Writing never fails: a program does not stop because its log cannot be written.
#[derive(Debug)]
pub struct LogFile {
    folder: PathBuf,
    file: Option<File>,
    num_bytes: u64,
    max_file_bytes: u64,
}

impl LogFile {
    /// Appends to the newest file in the data folder's `logs`.
    pub fn new(data_folder: &DataFolder) -> Self {
        LogFile::with_limit(data_folder.logs(), MAX_FILE_BYTES)
    }

    fn with_limit(folder: PathBuf, max_file_bytes: u64) -> Self {
        LogFile { folder, file: None, num_bytes: 0, max_file_bytes }
    }

    fn append(&mut self, line: &str) -> io::Result<()> {
        if self.file.is_some() && self.num_bytes + line.len() as u64 > self.max_file_bytes {
            self.file = None;
            rotate(&self.folder)?;
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                platform::create_private_folder(&self.folder)?;
                let file = File::options().create(true).append(true).open(path(&self.folder, 0))?;
                self.num_bytes = file.metadata()?.len();
                self.file.insert(file)
            }
        };
        file.write_all(line.as_bytes())?;
        self.num_bytes += line.len() as u64;
        Ok(())
    }
}

impl Write for LogFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut text = mask(&String::from_utf8_lossy(line));
        if text.len() > MAX_LINE_BYTES {
            text.truncate(text.floor_char_boundary(MAX_LINE_BYTES));
            text.push_str("…\n");
        }
        if self.append(&text).is_err() {
            // The next line opens the file again: the folder may be writable by then.
            self.file = None;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Renames each file to the next older name, so that a new one can begin; the oldest is replaced.
fn rotate(folder: &Path) -> io::Result<()> {
    for age in (0..NUM_FILES - 1).rev() {
        match fs::rename(path(folder, age), path(folder, age + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// The file that is the `age`th newest.
fn path(folder: &Path, age: usize) -> PathBuf {
    match age {
        0 => folder.join("cairn.log"),
        age => folder.join(format!("cairn.{age}.log")),
    }
}

/// The last lines of the log, the oldest first.
pub(crate) fn last_lines(data_folder: &DataFolder, num_lines: usize) -> Vec<String> {
    let folder = data_folder.logs();
    let mut lines = Vec::new();
    for age in 0..NUM_FILES {
        let Ok(text) = end_of(&path(&folder, age), num_lines * MAX_LINE_BYTES / 8) else { break };
        let older: Vec<String> = text.lines().map(mask).collect();
        lines.splice(0..0, older);
        if lines.len() >= num_lines {
            break;
        }
    }
    lines.split_off(lines.len().saturating_sub(num_lines))
}

fn end_of(file: &Path, max_bytes: usize) -> io::Result<String> {
    let mut file = File::open(file)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(max_bytes as u64)))?;
    let mut bytes = Vec::new();
    file.take(max_bytes as u64).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// How much of the text after a marker is hidden.
#[derive(Clone, Copy)]
enum Extent {
    Word,
    Line,
}

/// Texts that precede secrets, in lower case.
const MARKERS: [(&str, Extent); 11] = [
    ("authorization", Extent::Line),
    ("x-api-key", Extent::Line),
    ("cookie", Extent::Line),
    ("bearer ", Extent::Word),
    ("hf_", Extent::Word),
    ("sk-", Extent::Word),
    ("token=", Extent::Word),
    ("api_key=", Extent::Word),
    ("password=", Extent::Word),
    ("secret=", Extent::Word),
    ("signature=", Extent::Word),
];

/// A text with everything that looks like a secret hidden.
pub(crate) fn mask(text: &str) -> String {
    // Offsets in it are offsets in `text`: only ASCII letters are changed.
    let lower = text.to_ascii_lowercase();
    let mut masked = String::with_capacity(text.len());
    let mut rest = 0;
    while let Some((start, marker, extent)) = next_marker(&lower, rest) {
        let value = start + marker.len();
        let is_end = |char: char| match extent {
            Extent::Line => char == '\n',
            Extent::Word => char.is_whitespace() || "\"'`,;&)}]<>".contains(char),
        };
        let end = text[value..].find(is_end).map_or(text.len(), |length| value + length);
        masked.push_str(&text[rest..value]);
        if end > value {
            masked.push_str(MASK);
        }
        rest = end;
    }
    masked.push_str(&text[rest..]);
    masked
}

/// The first marker at or after `from` that begins a word.
fn next_marker(lower: &str, from: usize) -> Option<(usize, &'static str, Extent)> {
    let first = |&(marker, extent): &(&'static str, Extent)| {
        let begins_word = |&(start, _): &(usize, &str)| {
            !lower[..start].ends_with(|char: char| char.is_ascii_alphanumeric())
        };
        let found = lower[from..].match_indices(marker).map(|(at, found)| (from + at, found));
        found.into_iter().find(begins_word).map(|(start, _)| (start, marker, extent))
    };
    MARKERS.iter().filter_map(first).min_by_key(|&(start, ..)| start)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_and_the_rest_stays() {
        fn check(text: &str, expected: &str) {
            assert_eq!(mask(text), expected);
        }
        check("the model m is loaded", "the model m is loaded");
        check("a tokenizer of 5 tokens", "a tokenizer of 5 tokens");
        check("half_done and a task-list", "half_done and a task-list");
        check("Bearer abc.def-1 and more", "Bearer [hidden] and more");
        check("with hf_AbC123, twice hf_x.", "with hf_[hidden], twice hf_[hidden]");
        check("Authorization: Basic a b c\nnext", "Authorization[hidden]\nnext");
        check("{\"x-api-key\": \"k\"}", "{\"x-api-key[hidden]");
        check("https://h/?token=abc&x=1", "https://h/?token=[hidden]&x=1");
        check("TOKEN=abc", "TOKEN=[hidden]");
        check("ünïcode Bearer ÄÖ \u{1f4a7}", "ünïcode Bearer [hidden] \u{1f4a7}");
        check("", "");
    }

    #[test]
    fn the_newest_lines_are_in_five_files_of_limited_size() {
        let folder = tempfile::tempdir().unwrap();
        let data_folder = DataFolder::new(folder.path());
        let mut log = LogFile::with_limit(data_folder.logs(), 1_000);
        for number in 0..1_000 {
            log.write_all(format!("line {number:04} Bearer secret\n").as_bytes()).unwrap();
            if number % 100 == 0 {
                // As the next start does.
                log = LogFile::with_limit(data_folder.logs(), 1_000);
            }
        }
        let files: Vec<_> = fs::read_dir(data_folder.logs()).unwrap().flatten().collect();
        assert_eq!(files.len(), NUM_FILES);
        for file in &files {
            assert!(file.metadata().unwrap().len() <= 1_000);
            assert!(!fs::read_to_string(file.path()).unwrap().contains("secret"));
        }
        let lines = last_lines(&data_folder, 50);
        assert_eq!(lines.len(), 50);
        let numbers: Vec<usize> = lines.iter().map(|line| line[5..9].parse().unwrap()).collect();
        assert_eq!(numbers, (950..1_000).collect::<Vec<_>>());
        assert!(last_lines(&DataFolder::new("/no/such/folder"), 5).is_empty());
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_not_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let data_folder = DataFolder::new(folder.path());
        fs::write(data_folder.logs(), "a file").unwrap();
        let mut log = LogFile::new(&data_folder);
        assert_eq!(log.write(b"a line\n").unwrap(), 7);
        fs::remove_file(data_folder.logs()).unwrap();
        log.write_all(b"another\n").unwrap();
        assert_eq!(last_lines(&data_folder, 5), ["another"]);
    }
}
