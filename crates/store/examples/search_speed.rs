//! Measures the list of conversations and search in a large database.
//!
//! ```text
//! cargo run --release -p cairn-store --example search_speed [CONVERSATIONS] [FOLDER]
//! ```
//!
//! Fills a new database with conversations of 50 messages, 10,000 unless another number is given, in a
//! temporary folder or the one that is named (which is used again if it has a database). Texts are words
//! drawn by Zipf's law from 50,000, 8 to 250 a message; beside them "rarestone" is in one message
//! of 500. Before the first question of each fifth conversation stands a document of 7,000 words, about
//! 20 passages, with "rarestone" in one document of 10 and "raregem" in one of 100, and in no message.
//! Prints the median and the longest of 20 runs each.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cairn_chat::Role;
use cairn_store::{
    DocumentIndexer, DocumentKind, ImportedConversation, ImportedMessage, NewDocument, Store,
};

const MESSAGES: usize = 50;
/// One conversation of so many has a document.
const WITH_DOCUMENT: usize = 5;
const DOCUMENT_WORDS: usize = 7000;
const NUM_WORDS: u64 = 50_000;
const RUNS: usize = 20;
const DAY_MS: i64 = 24 * 3600 * 1000;
const NOW_MS: i64 = 1_800_000_000_000;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let num_conversations = arguments.next().map_or(Ok(10_000), |count| count.parse())?;
    let temporary = tempfile::tempdir()?;
    let folder = arguments.next().map_or(temporary.path().to_owned(), PathBuf::from);
    let path = folder.join("cairn.db");
    if !path.exists() {
        fill(&path, num_conversations).await?;
    }
    println!("{} MB on disk", std::fs::metadata(&path)?.len() / 1_000_000);
    let began = Instant::now();
    let store = Store::open(&path).await?;
    println!("open: {:.1} ms", ms(began.elapsed()));
    measure("list", async || Ok(store.conversations().await?.len())).await?;
    for (what, query) in [
        ("a word in 1 of 500 messages", "rarestone"),
        ("its beginning", "rareston"),
        ("two words", "rarestone w10"),
        ("the most common word", "w0"),
        ("a common word", "w7"),
        ("the beginning of many words", "w1"),
        ("the beginning of very many words", "w12"),
        ("two common words beside each other", "\"w0 w1\""),
        ("a word that is nowhere", "nowhere"),
        ("a word in documents only", "raregem"),
        ("its beginning", "rareg"),
        ("the name of a document", "report 250"),
        ("the name that all documents have", "report"),
    ] {
        let search = async || Ok(store.search_messages(query, 30, NOW_MS).await?.len());
        measure(what, search).await?;
    }
    for query in ["rarestone", "raregem", "w7"] {
        let search = async || Ok(store.search_conversations(query).await?.len());
        measure(&format!("conversations with {query}"), search).await?;
    }
    index_again(&store, &path).await
}

/// Indexes all messages as those of an earlier version are.
async fn index_again(store: &Store, path: &Path) -> Outcome<()> {
    let pool = sqlx::SqlitePool::connect(&format!("sqlite://{}", path.display())).await?;
    sqlx::raw_sql(
        "insert into message_search (message_search) values ('delete-all');
         update search_progress set indexed_from = (select max(seq) + 1 from messages);
         update search_progress set began_from = indexed_from;",
    )
    .execute(&pool)
    .await?;
    pool.close().await;
    let began = Instant::now();
    let mut parts = Vec::new();
    loop {
        let part = Instant::now();
        let share = store.index_older().await?;
        parts.push(part.elapsed());
        if share >= 1.0 {
            break;
        }
    }
    parts.sort();
    println!(
        "indexing all: {:.1} s in {} parts, the longest {:.0} ms, the median {:.0} ms",
        began.elapsed().as_secs_f64(),
        parts.len(),
        ms(parts[parts.len() - 1]),
        ms(parts[parts.len() / 2]),
    );
    Ok(store.close().await?)
}

async fn fill(path: &Path, num_conversations: usize) -> Outcome<()> {
    let store = Store::open(path).await?;
    let began = Instant::now();
    let mut random = Random(1);
    for number in 0..num_conversations {
        let at_ms = NOW_MS - (num_conversations - number) as i64 * DAY_MS / 10;
        let message = |place: usize, random: &mut Random| {
            let role = if place.is_multiple_of(2) { Role::User } else { Role::Assistant };
            let mut message = ImportedMessage::new(place.checked_sub(1), role, text(random), at_ms);
            if role == Role::Assistant {
                message.model = Some(format!("owner/model-{}", number % 3));
            }
            if place == 0 && number.is_multiple_of(WITH_DOCUMENT) {
                message.documents = vec![document(number / WITH_DOCUMENT, random)];
            }
            message
        };
        let conversation = ImportedConversation {
            origin: format!("speed:{number}"),
            title: format!("Conversation {number}"),
            created_at_ms: at_ms,
            updated_at_ms: at_ms,
            messages: (0..MESSAGES).map(|place| message(place, &mut random)).collect(),
            ..ImportedConversation::default()
        };
        store.import_conversation(&conversation).await?;
    }
    println!("filled in {:.1} s", began.elapsed().as_secs_f64());
    index_documents(&store).await?;
    Ok(store.close().await?)
}

async fn index_documents(store: &Store) -> Outcome<()> {
    let (began, mut parts) = (Instant::now(), Vec::new());
    let mut indexer = DocumentIndexer::new(store);
    loop {
        let part = Instant::now();
        if !indexer.index_part().await? {
            break;
        }
        parts.push(part.elapsed());
    }
    parts.sort();
    let longest = parts.last().copied().unwrap_or_default();
    println!(
        "indexing all documents: {:.1} s in {} parts, the longest {:.0} ms",
        began.elapsed().as_secs_f64(),
        parts.len(),
        ms(longest),
    );
    Ok(())
}

/// The document of this number.
fn document(number: usize, random: &mut Random) -> NewDocument {
    let mut text = String::new();
    while text.len() < DOCUMENT_WORDS * 6 {
        text.push_str(&words(random, 60));
        text.push('\n');
    }
    for (word, one_of) in [("rarestone", 10), ("raregem", 100)] {
        if number.is_multiple_of(one_of) {
            text.push_str(word);
            text.push('\n');
        }
    }
    NewDocument { name: format!("report {number}.txt"), kind: DocumentKind::Text, text }
}

fn text(random: &mut Random) -> String {
    let length = [8, 15, 30, 60, 120, 250][random.below(6) as usize];
    let mut text = words(random, length);
    if random.below(500) == 0 {
        text.push_str("rarestone");
    }
    text
}

fn words(random: &mut Random, length: usize) -> String {
    let mut text = String::new();
    for _ in 0..length {
        // The logarithm of an evenly drawn number is a rank of Zipf's law.
        let even = random.below(1 << 30) as f64 / (1u64 << 30) as f64;
        let rank = ((NUM_WORDS as f64).powf(even) - 1.0) as u64;
        text.push_str(&format!("w{rank} "));
    }
    text
}

/// Prints how long work takes.
async fn measure(what: &str, work: impl AsyncFn() -> Outcome<usize>) -> Outcome<()> {
    let mut times = Vec::new();
    let mut count = 0;
    for _ in 0..RUNS {
        let began = Instant::now();
        count = work().await?;
        times.push(began.elapsed());
    }
    times.sort();
    println!(
        "{what}: {:.1} ms, at most {:.1} ms ({count})",
        ms(times[RUNS / 2]),
        ms(times[RUNS - 1])
    );
    Ok(())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// A linear congruential generator: the same texts every time.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}
