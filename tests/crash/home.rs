//! The data folder that all kills of a test share, and what its chunk files hold.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_app::{App, DataFolder, Options, wire};
use cairn_prompt_cache::{ChunkFile, ChunkRecord};
use cairn_store::Store;
use safetensors::{Dtype, SafeTensors};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};
use tempfile::TempDir;

use crate::TIMEOUT;
use crate::acknowledged::call;

/// A data folder with a tiny model.
pub struct TestHome {
    folder: TempDir,
    runtime: tokio::runtime::Runtime,
    /// What was read of each chunk file, by path, with the file's identity at that time.
    chunks_read: RefCell<BTreeMap<PathBuf, ([u64; 4], ChunkContents)>>,
}

/// The files in the prompt cache.
pub struct ChunkFiles {
    /// With a final name.
    pub whole: BTreeSet<PathBuf>,
    /// Being written, or left by a kill.
    pub temporary: BTreeSet<PathBuf>,
}

impl TestHome {
    pub fn new() -> TestHome {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("models").join("tiny-chat");
        cairn_tests::copy_tiny_model("llama/tiny-chat", &model).unwrap();
        // Conversations grow with every kill.
        let config = fs::read_to_string(model.join("config.json")).unwrap();
        let with_long_context = config
            .replace(r#""max_position_embeddings": 4096"#, r#""max_position_embeddings": 1000000"#);
        assert_ne!(with_long_context, config);
        fs::write(model.join("config.json"), with_long_context).unwrap();
        TestHome {
            folder,
            runtime: tokio::runtime::Runtime::new().unwrap(),
            chunks_read: RefCell::default(),
        }
    }

    /// As [`TestHome::new`], with chunk files that are coded.
    pub fn new_coded() -> TestHome {
        let home = TestHome::new();
        home.run(async {
            let app = home.open().await;
            call(&app, wire::Command::set_for_all("compresses_cache", true)).await;
            app.close().await;
        });
        home
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn data_folder(&self) -> DataFolder {
        DataFolder::new(self.path())
    }

    pub fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    pub async fn open(&self) -> Arc<App> {
        App::open(Options::new(self.data_folder())).await.unwrap()
    }

    pub async fn query(&self, statement: &'static str, id: &str) -> Option<String> {
        let options =
            SqliteConnectOptions::new().filename(self.data_folder().database()).read_only(true);
        let mut connection = options.connect().await.unwrap();
        let found =
            sqlx::query_scalar(statement).bind(id).fetch_optional(&mut connection).await.unwrap();
        // Closed before the next kill: the next program recovers the database only if nobody has it
        // open.
        connection.close().await.unwrap();
        found
    }

    /// The text of an answer in the database at this moment; empty if it has none.
    pub fn saved_text(&self, message_id: &str) -> String {
        self.run(self.query("select text from messages where id = ?", message_id))
            .unwrap_or_default()
    }

    pub async fn integrity(&self) -> String {
        self.query("select group_concat(integrity_check, '; ') from pragma_integrity_check where ?1 is not null", "").await.unwrap()
    }

    /// Waits until the program that has just opened the folder has looked at all chunk files.
    pub async fn wait_until_files_are_checked(&self) {
        let path = self.data_folder().prompt_cache_lock();
        // A start holds this lock until it has removed and adopted files.
        let wait = move || {
            let lock = File::options().append(true).open(path)?;
            lock.lock()?;
            lock.unlock()
        };
        tokio::task::spawn_blocking(wait).await.unwrap().unwrap();
    }

    /// Waits until the program that has just opened the folder has looked at all chunk files, and the
    /// database has what it found.
    pub async fn wait_until_every_file_has_a_row(&self) {
        self.wait_until_files_are_checked().await;
        let ChunkFiles { whole, temporary } = self.chunk_files();
        let num_files = whole.len() + temporary.len();
        let count = "select cast(count(*) as text) from chunks where ?1 is not null";
        self.wait_for_number(count, "", |num_rows| num_rows == num_files).await;
    }

    /// Waits until the files and rows of a conversation cover at least `num_tokens`. Its reference
    /// gets there last.
    pub async fn wait_until_saved(&self, conversation: &str, num_tokens: usize) {
        let saved =
            "select cast(num_tokens as text) from cache_refs where owner = 'conversation/' || ?1";
        self.wait_for_number(saved, conversation, |num_saved| num_saved >= num_tokens).await;
    }

    /// Asks the database until it has the wanted number. Panics after [`TIMEOUT`].
    async fn wait_for_number(
        &self,
        statement: &'static str,
        id: &str,
        is_wanted: impl Fn(usize) -> bool,
    ) {
        let asking = async {
            loop {
                let found = self.query(statement, id).await;
                if found.is_some_and(|number| is_wanted(number.parse().unwrap())) {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        let waited = tokio::time::timeout(TIMEOUT, asking).await;
        assert!(waited.is_ok(), "the expected number does not come: {statement}, {id:?}");
    }

    /// Removes the rows of the last chunks and of all references, as a close leaves them that gives
    /// up while they wait to be written.
    pub async fn lose_last_rows(&self) {
        self.change("delete from cache_refs").await;
        self.change("delete from chunks where start = (select max(start) from chunks)").await;
    }

    /// Removes all rows of the prompt cache, as the loss of the database does.
    pub async fn lose_all_rows(&self) {
        self.change("delete from cache_refs").await;
        self.change("delete from chunks").await;
    }

    async fn change(&self, statement: &'static str) {
        let options = SqliteConnectOptions::new().filename(self.data_folder().database());
        let mut connection = options.connect().await.unwrap();
        sqlx::query(statement).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    }

    pub async fn rows(&self) -> Vec<ChunkRecord> {
        let store = Store::open(&self.data_folder().database()).await.unwrap();
        let rows = store.chunks().await.unwrap();
        store.close().await.unwrap();
        rows
    }

    pub fn chunk_file(&self, row: &ChunkRecord) -> PathBuf {
        self.data_folder()
            .prompt_cache()
            .join(row.namespace.model.as_str())
            .join(format!("{}.safetensors", row.key))
    }

    /// What a chunk file holds. A file that is still the one that was read is not read again:
    /// otherwise each kill would cost more than the one before.
    pub fn read_chunk(&self, path: &Path) -> ChunkContents {
        let now = identity(path);
        let mut chunks_read = self.chunks_read.borrow_mut();
        match chunks_read.get(path) {
            Some((then, contents)) if *then == now => contents.clone(),
            _ => {
                let contents = ChunkContents::read(path);
                chunks_read.insert(path.to_owned(), (now, contents.clone()));
                contents
            }
        }
    }

    pub fn num_coded_files(&self) -> usize {
        let is_coded = |path: &&PathBuf| self.read_chunk(path).is_coded;
        self.chunk_files().whole.iter().filter(is_coded).count()
    }

    pub fn forget_what_was_read(&self) {
        self.chunks_read.borrow_mut().clear();
    }

    pub fn chunk_files(&self) -> ChunkFiles {
        let paths = |folder: &Path| {
            fs::read_dir(folder)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path())
                .collect::<Vec<_>>()
        };
        let files =
            paths(&self.data_folder().prompt_cache()).into_iter().flat_map(|model| paths(&model));
        let (whole, temporary) = files
            .partition(|path| path.extension().is_some_and(|extension| extension == "safetensors"));
        ChunkFiles { whole, temporary }
    }
}

/// What a chunk file holds.
#[derive(Clone, PartialEq, Debug)]
pub struct ChunkContents {
    file: ChunkFile,
    num_tokens: usize,
    pub is_coded: bool,
}

impl ChunkContents {
    /// Reads a file with a final name: it holds a whole chunk, which is the one that the name says.
    pub fn read(path: &Path) -> ChunkContents {
        let bytes = fs::read(path)
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
        let whole = SafeTensors::read_metadata(&bytes)
            .and_then(|(_, header)| Ok((header, SafeTensors::deserialize(&bytes)?)));
        let (header, tensors) =
            whole.unwrap_or_else(|error| panic!("{} is torn: {error}", path.display()));
        let metadata = header.metadata().as_ref().unwrap();
        assert_eq!(metadata["key"], path.file_stem().unwrap().to_str().unwrap());
        let folder = path.parent().unwrap().file_name().unwrap();
        assert_eq!(metadata["fingerprint"], folder.to_str().unwrap());

        // What coded tensors are stands there.
        let described = metadata.get("tensors").map(|described| {
            serde_json::from_str::<Vec<(String, Dtype, Vec<usize>)>>(described).unwrap()
        });
        let lengths: BTreeSet<usize> = match &described {
            Some(described) => described.iter().map(|(_, _, shape)| shape[2]).collect(),
            None => tensors.tensors().iter().map(|(_, tensor)| tensor.shape()[2]).collect(),
        };
        assert_eq!(lengths.len(), 1, "tokens of the tensors in {}", path.display());
        let hash = blake3::hash(&bytes).to_hex().as_str().into();
        ChunkContents {
            file: ChunkFile { num_bytes: bytes.len() as u64, hash },
            num_tokens: lengths.into_iter().next().unwrap(),
            is_coded: described.is_some(),
        }
    }
}

/// What changes whenever a program writes a file or puts another in its place: inode and the time
/// that the kernel keeps of its last change.
pub fn identity(path: &Path) -> [u64; 4] {
    let file = fs::metadata(path)
        .unwrap_or_else(|error| panic!("a row names {}: {error}", path.display()));
    [file.ino(), file.size(), file.ctime() as u64, file.ctime_nsec() as u64]
}

/// The file of a row is there and has the size, hash and number of tokens of the row.
pub fn check_row(home: &TestHome, row: &ChunkRecord) {
    let path = home.chunk_file(row);
    let contents = home.read_chunk(&path);
    assert_eq!(row.file.as_ref(), Some(&contents.file), "{}", path.display());
    assert_eq!(row.num_tokens(), contents.num_tokens, "tokens of {}", path.display());
}
