//! Measures what a full data folder costs when the app opens, and what its list costs afterwards:
//! `cargo run --release -p cairn-app --example startup`
//!
//! Prints one JSON object for each folder: `empty`; `chunks`, 1,000 conversations of ten chunks
//! each; `shared`, 10,000 conversations that begin with one system prompt of eight chunks and go on
//! with one chunk each. Milliseconds, medians of several runs: `open` until the app answers
//! commands, `swept` until the prompt cache has been compared with its folder too, `list` for all
//! conversations with what is saved of them, `change` from renaming one to its event, `index` for
//! building the index of chunks and references from their rows, `lookup` for one prompt in it.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use cairn_app::wire::{Command, Event, Reply};
use cairn_app::{App, DataFolder, Options};
use cairn_prompt_cache::{
    Budgets, CacheChange, CacheRef, ChunkFile, ChunkIndex, ChunkKey, ChunkKind, ChunkRecord,
    KvFormat, Namespace, Owner, PromptTokens, RestoreNeeds, Tokens,
};
use cairn_store::Store;
use sqlx::ConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;

const RUNS: usize = 7;
const CHANGES: usize = 20;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Result<()> {
    let empty = tempfile::tempdir()?;
    measure("empty", empty.path(), 0).await?;
    let chunks = tempfile::tempdir()?;
    fill(chunks.path(), &CONVERSATIONS_OF_TEN_CHUNKS).await?;
    measure("chunks", chunks.path(), 1_000).await?;
    let shared = tempfile::tempdir()?;
    fill(shared.path(), &CONVERSATIONS_ON_ONE_PROMPT).await?;
    measure("shared", shared.path(), 10_000).await
}

/// The model that computed everything: a fingerprint is 64 hexadecimal digits.
const FINGERPRINT: &str = "5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e";
const CHUNK_TOKENS: usize = 256;

/// What a data folder holds.
struct Contents {
    num_conversations: usize,
    /// Chunks that all conversations begin with.
    num_shared_chunks: usize,
    /// Chunks that each conversation has after those.
    num_own_chunks: usize,
}

const CONVERSATIONS_OF_TEN_CHUNKS: Contents =
    Contents { num_conversations: 1_000, num_shared_chunks: 0, num_own_chunks: 10 };

const CONVERSATIONS_ON_ONE_PROMPT: Contents =
    Contents { num_conversations: 10_000, num_shared_chunks: 8, num_own_chunks: 1 };

/// Makes a data folder whose chunk files are small; everything else about them is as it would be.
async fn fill(home: &Path, contents: &Contents) -> Result<()> {
    let data_folder = DataFolder::new(home);
    data_folder.create()?;
    let store = Store::open(&data_folder.database()).await?;
    let model = data_folder.prompt_cache().join(FINGERPRINT);
    fs::create_dir_all(&model)?;

    let (mut changes, mut end) = (Vec::new(), None);
    for _ in 0..contents.num_shared_chunks {
        end = Some(add_chunk(&model, end, &mut changes)?);
    }
    for index in 0..contents.num_conversations {
        let mut end = end.clone();
        for _ in 0..contents.num_own_chunks {
            end = Some(add_chunk(&model, end, &mut changes)?);
        }
        changes.push(CacheChange::RefSet(reference(index, end)));
    }
    store.change_cache(&changes).await?;
    store.close().await?;
    insert_conversations(&data_folder, contents.num_conversations).await
}

/// Writes the file of one more chunk behind `parent` and answers the chunk's key.
fn add_chunk(
    model: &Path,
    parent: Option<ChunkRecord>,
    changes: &mut Vec<CacheChange>,
) -> Result<ChunkRecord> {
    let number = u32::try_from(changes.len())?;
    let start = parent.as_ref().map_or(0, ChunkRecord::stop);
    let mut record = ChunkRecord {
        key: ChunkKey::from_bytes([0; 16]),
        parent: parent.map(|parent| parent.key),
        namespace: Namespace::computed(FINGERPRINT, KvFormat::Plain),
        kind: ChunkKind::User,
        start,
        tokens: Tokens::known([number; CHUNK_TOKENS]),
        held_from: start,
        has_state: false,
        file: Some(ChunkFile { num_bytes: 4, hash: format!("{number:064x}").into() }),
        hits: 0,
        created_at_ms: i64::from(number),
        last_used_at_ms: i64::from(number),
    };
    record.key = record.expected_key();
    fs::write(model.join(format!("{}.safetensors", record.key)), number.to_le_bytes())?;
    changes.push(CacheChange::Written(record.clone()));
    Ok(record)
}

/// The reference of conversation `index` to its last chunk.
fn reference(index: usize, end: Option<ChunkRecord>) -> CacheRef {
    CacheRef {
        name: Owner::Conversation(format!("{index:036x}")).into(),
        namespace: Namespace::computed(FINGERPRINT, KvFormat::Plain),
        model_name: "a model".to_owned(),
        num_tokens: end.as_ref().map_or(0, ChunkRecord::stop),
        target: end.map(|end| end.key),
        is_pinned: false,
        loss: None,
    }
}

/// Straight into the table: each of the store's own insertions waits for the disk.
async fn insert_conversations(data_folder: &DataFolder, count: usize) -> Result<()> {
    let insert = "with recursive numbers(i) as (values (0) union all select i + 1 from numbers where i + 1 < ?)
         insert into conversations (id, title, system_prompt, activity_seq, created_at_ms, updated_at_ms)
         select printf('%036x', i), 'Conversation ' || i, '', i, i, i from numbers";
    let mut connection =
        SqliteConnectOptions::new().filename(data_folder.database()).connect().await?;
    sqlx::query(insert).bind(i64::try_from(count)?).execute(&mut connection).await?;
    Ok(sqlx::Connection::close(connection).await?)
}

async fn measure(name: &str, home: &Path, num_conversations: usize) -> Result<()> {
    let (mut open, mut swept, mut list, mut change) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let start = Instant::now();
        let options = Options::new(DataFolder::new(home));
        let app = App::open(options).await?;
        open.push(start.elapsed());
        let is_swept = || {
            fs::File::open(DataFolder::new(home).prompt_cache_lock())
                .is_ok_and(|lock| lock.try_lock_shared().is_ok())
        };
        while !is_swept() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        swept.push(start.elapsed());

        let start = Instant::now();
        let Reply::Bootstrap { conversations, .. } =
            app.call(Command::Bootstrap).await.map_err(|failure| failure.message)?
        else {
            return Err("no list".into());
        };
        list.push(start.elapsed());
        let num_saved = conversations
            .iter()
            .filter(|row| row.cache.as_ref().is_some_and(|cache| cache.cached_tokens > 0))
            .count();
        if num_saved != num_conversations {
            return Err("the list does not say what is saved of the conversations".into());
        }
        let mut events = app.subscribe();
        for row in conversations.iter().take(CHANGES) {
            let start = Instant::now();
            let rename =
                Command::RenameConversation { id: row.id.clone(), title: "Renamed".to_owned() };
            app.call(rename).await.map_err(|failure| failure.message)?;
            while !matches!(events.recv().await?, Event::Conversation { conversation } if conversation.id == row.id)
            {
            }
            change.push(start.elapsed());
        }
        app.close().await;
    }
    let [open, swept, list] = [open, swept, list].map(median);
    let mut figures =
        serde_json::json!({ "folder": name, "open_ms": open, "swept_ms": swept, "list_ms": list });
    if !change.is_empty() {
        figures["change_ms"] = median(change).into();
        let (index, lookup) = measure_index(home).await?;
        figures["index_ms"] = index.into();
        figures["lookup_ms"] = lookup.into();
    }
    println!("{figures}");
    Ok(())
}

/// Milliseconds to build the index, and to look up a conversation with one more token.
async fn measure_index(home: &Path) -> Result<(f64, f64)> {
    let store = Store::open(&DataFolder::new(home).database()).await?;
    let (chunks, refs) = (store.chunks().await?, store.cache_refs().await?);
    store.close().await?;
    let budgets = Budgets { disk_bytes: u64::MAX, memory_bytes: 0 };
    let namespace = Namespace::computed(FINGERPRINT, KvFormat::Plain);
    let (mut build, mut lookup) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let (chunks, refs) = (chunks.clone(), refs.clone());
        let start = Instant::now();
        let (index, _) = ChunkIndex::new(budgets, chunks, refs);
        build.push(start.elapsed());
        for cache_ref in index.refs().step_by(10) {
            let path = cache_ref.target.map_or(Vec::new(), |key| index.path(&key));
            let ids = path.iter().flat_map(|chunk| chunk.record().tokens.known_ids()).copied();
            let prompt = PromptTokens::known(ids.chain([0]).collect::<Vec<u32>>());
            let start = Instant::now();
            let plan = index.restore_plan(&namespace, &prompt, RestoreNeeds::default());
            lookup.push(start.elapsed());
            if plan.num_tokens != cache_ref.num_tokens {
                return Err("a conversation was not found".into());
            }
        }
    }
    Ok((median(build), median(lookup)))
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    (times[times.len() / 2].as_secs_f64() * 1e5).round() / 100.0
}
