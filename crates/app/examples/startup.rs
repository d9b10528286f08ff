//! Measures what a full data folder costs when the app opens, and what its list costs afterwards:
//! `cargo run --release -p cairn-app --example startup`
//!
//! Prints one JSON object for each folder: `empty`; `chunks`, 1,000 conversations of ten chunks
//! each; `shared`, 10,000 conversations that begin with one system prompt of eight chunks and go on
//! with one chunk each. Milliseconds, medians of several runs: `open` until the app answers
//! commands, `swept` until the prompt cache has been compared with its folder too, `list` for all
//! conversations with what is kept of them, `change` from renaming one to its event.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use cairn_app::wire::{Command, Event, Reply};
use cairn_app::{App, CacheVariables, DataFolder, Options};
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

/// A chunk as `i`, its place in the prompt as `own_file`, what it continues as `parent`, for the
/// number `i` of each.
struct Shape {
    /// Numbers of chunks: from 0.
    num_chunks: i64,
    own_file: &'static str,
    parent: &'static str,
    num_conversations: i64,
    /// The last chunk of conversation `i`, and its tokens.
    end: &'static str,
    num_tokens: &'static str,
}

const CONVERSATIONS_OF_TEN_CHUNKS: Shape = Shape {
    num_chunks: 10_000,
    own_file: "i % 10 * 256",
    parent: "case when i % 10 > 0 then i - 1 end",
    num_conversations: 1_000,
    end: "i * 10 + 9",
    num_tokens: "2560",
};

const CONVERSATIONS_ON_ONE_PROMPT: Shape = Shape {
    num_chunks: 10_008,
    own_file: "min(i, 8) * 256",
    parent: "case when i > 0 then min(i - 1, 7) end",
    num_conversations: 10_000,
    end: "i + 8",
    num_tokens: "2304",
};

/// Makes a data folder with small files. Straight into the tables: saving so many rows one by one
/// would take minutes.
async fn fill(home: &Path, shape: &Shape) -> Result<()> {
    let data_folder = DataFolder::new(home);
    data_folder.create()?;
    Store::open(&data_folder.database()).await?.close().await?;
    let model = data_folder.prompt_cache().join("model");
    fs::create_dir(&model)?;
    for index in 0..shape.num_chunks {
        fs::write(model.join(format!("{index:032x}.safetensors")), index.to_le_bytes())?;
    }
    let Shape { num_chunks, own_file, parent, num_conversations, end, num_tokens } = shape;
    let numbers = |count: &i64| {
        format!(
            "with recursive numbers(i) as (values (0) union all select i + 1 from numbers where i + 1 < {count})"
        )
    };
    let statements = [
        "begin".to_owned(),
        format!(
            "{} insert into chunks (key, parent_key, fingerprint, start, held_from, token_ids, bytes, file_hash, created_at_ms, last_used_at_ms)
             select printf('%032x', i), iif({parent} is null, null, printf('%032x', {parent})), 'model', {own_file}, {own_file},
                 randomblob(1024), 8, printf('%064x', i), i, i from numbers",
            numbers(num_chunks)
        ),
        format!(
            "{} insert into conversations (id, title, system_prompt, activity_seq, created_at_ms, updated_at_ms)
             select printf('%036x', i), 'Conversation ' || i, '', i, i, i from numbers",
            numbers(num_conversations)
        ),
        format!(
            "{} insert into cache_refs (owner, fingerprint, kv_format, provenance, model, chunk_key, num_tokens, is_pinned, lost_tokens)
             select 'conversation/' || printf('%036x', i), 'model', '', 'a model', printf('%032x', {end}), {num_tokens}, 0, 0 from numbers",
            numbers(num_conversations)
        ),
        "commit".to_owned(),
    ];
    let mut connection =
        SqliteConnectOptions::new().filename(data_folder.database()).connect().await?;
    for statement in statements {
        sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&mut connection).await?;
    }
    Ok(sqlx::Connection::close(connection).await?)
}

async fn measure(name: &str, home: &Path, num_conversations: usize) -> Result<()> {
    let (mut open, mut swept, mut list, mut change) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let start = Instant::now();
        let options = Options {
            data_folder: DataFolder::new(home),
            hub_variables: CacheVariables::default(),
            autoload: false,
        };
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
        if conversations.len() < num_conversations
            || conversations.iter().filter(|row| row.cache.is_some()).count() != num_conversations
        {
            return Err("the list does not say what is kept".into());
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
    }
    println!("{figures}");
    Ok(())
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    (times[times.len() / 2].as_secs_f64() * 1e5).round() / 100.0
}
