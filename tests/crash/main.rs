//! SIGKILL while an answer is written and while its prompt cache is written: whatever was
//! acknowledged is there afterwards, whole.
//!
//! A victim process works on a data folder and prints what has happened (see `crash_victim.rs`). It
//! is killed at an event, never at a time: when it has printed a certain line, or when a certain
//! row or file has appeared. A fixed sequence of pseudo-random numbers chooses the event. All kills
//! of a test share one data folder, so that each one meets the state that the earlier ones left
//! behind. The tests in `steps.rs` kill at each single system call of writing instead.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

mod acknowledged;
mod home;
mod jobs;
mod repeats;
#[cfg(target_os = "linux")]
mod steps;
mod victim;

use std::collections::{BTreeMap, BTreeSet};
use std::iter::successors;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use acknowledged::{Acknowledged, Turn, next_turn};
use cairn_prompt_cache::{ChunkKey, ChunkRecord};
use cairn_store::Store;
use cairn_sweeps::long_case;
use home::{ChunkFiles, TestHome, check_row};
use victim::{Line, Victim};

/// How many times a test kills its victim, unless `CAIRN_SOAK` asks for more.
const NUM_KILLS: u64 = 12;
/// Longer than anything here takes; only a failing test waits for it.
const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn an_answer_that_is_killed_loses_nothing_that_was_acknowledged() {
    let (seed, num_kills) = long_case(NUM_KILLS);
    let home = TestHome::new();
    let mut random = Random::new(0x5eed_0001, seed);
    let mut acknowledged = Acknowledged::default();
    let mut conversation = "new".to_owned();
    let mut num_interrupted_with_text = 0;
    for round in 0..num_kills {
        if round % 4 == 0 {
            conversation = "new".to_owned();
        }
        let victim =
            Victim::start(home.path(), "answer", &conversation, 500, "Tell me about stones.");
        conversation = victim.conversation();
        let turns = acknowledged.turns.entry(conversation.clone()).or_default();
        kill_while_answering(victim, &home, turns, &mut random);

        home.run(async {
            let app = home.open().await;
            assert_eq!(home.integrity().await, "ok", "kill {round}");
            num_interrupted_with_text += acknowledged.check(&app).await;
            let turn = next_turn(&app, &conversation).await.0;
            acknowledged.turns.get_mut(&conversation).unwrap().push(turn);
            app.close().await;
        });
    }
    assert!(
        num_interrupted_with_text >= 2,
        "only {num_interrupted_with_text} answers were interrupted with text"
    );
}

/// Kills a victim at a random event of its answers. Adds what it acknowledged to `turns`.
fn kill_while_answering(
    victim: Victim,
    home: &TestHome,
    turns: &mut Vec<Turn>,
    random: &mut Random,
) {
    let mut listen = || {
        let line = victim.next().expect("the victim prints another line");
        Turn::note(turns, &line);
        line
    };
    match random.below(4) {
        0 => until(&mut listen, |line| matches!(line, Line::Sent { .. })),
        1 => {
            let mut num_deltas = 1 + random.below(12);
            until(&mut listen, |line| {
                num_deltas -= u64::from(matches!(line, Line::Delta(..)));
                num_deltas == 0
            });
        }
        2 => until(&mut listen, |line| matches!(line, Line::Complete(..))),
        _ => until(&mut listen, |line| match line {
            Line::Delta(id, _) => !home.saved_text(id).is_empty(),
            _ => false,
        }),
    }
    // What another process has read in the database must survive the kill.
    let seen = turns.last().map(|turn| (turn.answer_id.clone(), home.saved_text(&turn.answer_id)));
    for line in victim.kill() {
        Turn::note(turns, &line);
    }
    if let (Some((id, text)), Some(turn)) = (seen, turns.last_mut())
        && id == turn.answer_id
    {
        turn.seen_saved = text;
    }
}

#[test]
fn a_kill_while_chunks_are_written_leaves_whole_files_and_true_rows() {
    let home = TestHome::new();
    check_kills_while_writing(&home, 0x5eed_0002);
    assert_eq!(home.num_coded_files(), 0);
}

#[test]
fn a_kill_while_coded_chunks_are_written_leaves_whole_files_and_true_rows() {
    let home = TestHome::new_coded();
    check_kills_while_writing(&home, 0x5eed_0004);
    let (num_coded, num_files) = (home.num_coded_files(), home.chunk_files().whole.len());
    assert!(2 * num_coded > num_files, "{num_coded} of {num_files} files are coded");
}

/// Kills victims that ask questions of many chunks, and checks after each kill.
fn check_kills_while_writing(home: &TestHome, test: u64) {
    let (seed, num_kills) = long_case(NUM_KILLS);
    let mut random = Random::new(test, seed);
    let mut acknowledged = Acknowledged::default();
    let mut num_without_row = 0;
    for round in 0..num_kills {
        // Nine chunks or more, all of them new: the conversations differ from their first word on.
        let question = format!("{round}: {}", "granite, basalt, slate and marble; ".repeat(60));
        let event = random.below(4);
        let work = if event == 1 { "rows" } else { "once" };
        // A start gives every file a row before the victim prints how many there are.
        let num_known = home.chunk_files().whole.len();
        let victim = Victim::start(home.path(), work, "new", 16, &question);
        let conversation = victim.conversation();
        let turns = acknowledged.turns.entry(conversation.clone()).or_default();
        let num_new_chunks = 1 + random.below(7) as usize;
        kill_while_writing(victim, home, turns, event, num_known, num_new_chunks);

        let kill = format!("kill {round}");
        num_without_row +=
            check_after_kill(home, &mut acknowledged, &conversation, &question, &kill);
    }
    assert!(num_without_row >= 2, "only {num_without_row} files were found without their row");
    home.forget_what_was_read();
    home.run(check_rows(home, "after all kills"));
}

/// Kills a victim at one of four events after `num_new_chunks` chunks, beyond the `num_known` from
/// before, were written. Adds what it acknowledged to `turns`.
fn kill_while_writing(
    victim: Victim,
    home: &TestHome,
    turns: &mut Vec<Turn>,
    event: u64,
    num_known: usize,
    num_new_chunks: usize,
) {
    let num_wanted = num_known + num_new_chunks;
    let mut listen = || {
        let line = victim.next().expect("the victim prints another line");
        Turn::note(turns, &line);
        line
    };
    match event {
        0 => until(&mut listen, |line| matches!(line, Line::Complete(..))),
        1 => until(&mut listen, |line| matches!(line, Line::Rows(count) if *count >= num_wanted)),
        2 => {
            until(&mut listen, |line| matches!(line, Line::Sent { .. }));
            until(&mut || home.chunk_files(), |files| files.whole.len() >= num_wanted);
        }
        _ => {
            until(&mut listen, |line| matches!(line, Line::Sent { .. }));
            // While a file is being written; if that is never seen, when the last one is whole.
            until(&mut || home.chunk_files(), |files| {
                (files.whole.len() >= num_wanted && !files.temporary.is_empty())
                    || files.whole.len() >= num_known + 9
            });
        }
    }
    for line in victim.kill() {
        Turn::note(turns, &line);
    }
}

#[test]
fn rows_that_an_earlier_start_left_unwritten_are_no_loss_of_the_next_conversation() {
    let home = TestHome::new();
    let words = "granite, basalt, slate and marble; ".repeat(60);
    let mut victim = Victim::start(home.path(), "steps", "new", 8, &format!("34: {words}"));
    victim.conversation();
    victim.begin();
    while victim.next().is_some() {}
    victim.child.wait().unwrap();
    let num_files = home.chunk_files().whole.len();
    home.run(home.lose_last_rows());

    // This one is killed before it asks anything. Its start gives the other's last file a row again.
    let question = format!("35: {words}");
    let victim = Victim::start(home.path(), "steps", "new", 8, &question);
    let conversation = victim.conversation();
    home.run(home.wait_until_every_file_has_a_row());
    assert_eq!(home.run(home.rows()).len(), num_files);
    victim.kill();
    let mut acknowledged = Acknowledged::default();
    acknowledged.turns.insert(conversation.clone(), Vec::new());
    check_after_kill(
        &home,
        &mut acknowledged,
        &conversation,
        &question,
        "a kill before a question",
    );
}

/// Checks the state after a kill while chunks were written: files with final names are whole, rows
/// are true, the next start rebuilds the rows of files without one, no conversation lost anything,
/// and the one that asked `question` continues from its stored chunks. Returns how many files had no
/// row.
///
/// An app is closed only when it has nothing left to write. Otherwise, on a busy machine, it gives up
/// and its threads go on working on the folder, which in a program ends with the process.
fn check_after_kill(
    home: &TestHome,
    acknowledged: &mut Acknowledged,
    conversation: &str,
    question: &str,
    kill: &str,
) -> usize {
    let files = home.chunk_files();
    for file in &files.whole {
        home.read_chunk(file);
    }
    home.run(async {
        let rows = check_rows(home, kill).await;

        let app = home.open().await;
        assert_eq!(home.integrity().await, "ok", "{kill}");
        acknowledged.check(&app).await;
        home.wait_until_every_file_has_a_row().await;
        app.close().await;
        check_every_file_has_a_row(home, kill).await;

        let app = home.open().await;
        let (turn, stats) = next_turn(&app, conversation).await;
        acknowledged.turns.get_mut(conversation).unwrap().push(turn);
        // A byte is a token. Only the question's tokens are required: the answer may end within a
        // character, and then encodes differently.
        let expected = num_stored(&rows, question).min(question.len());
        assert!(
            stats.cached_tokens as usize >= expected,
            "{kill}: {} tokens were read from the cache, but {expected} are in files with rows; {:?}",
            stats.cached_tokens,
            stats.cache_note
        );
        // The last token of an answer is sampled and not read.
        let num_read = stats.prompt_tokens + stats.generation_tokens - 1;
        home.wait_until_saved(conversation, num_read as usize).await;
        app.close().await;

        files.temporary.len() + files.whole.len() - rows.len()
    })
}

/// How many tokens of a prompt that begins with `question` are in `rows`. Those of other prompts do
/// not count, however new they are: a start may have left their rows unwritten, and the next one
/// writes them.
fn num_stored(rows: &[ChunkRecord], question: &str) -> usize {
    let by_key: BTreeMap<ChunkKey, &ChunkRecord> = rows.iter().map(|row| (row.key, row)).collect();
    let parent = |row: &&ChunkRecord| by_key.get(&row.parent?).copied();
    let own = rows.iter().filter(|row| {
        let path: Vec<&ChunkRecord> = successors(Some(*row), parent).collect();
        let ids = path.iter().rev().flat_map(|chunk| chunk.tokens.known_ids());
        // A byte is a token. The question begins on the template's second line.
        let mut ids = ids.skip_while(|id| **id != u32::from(b'\n'));
        ids.next();
        ids.zip(question.bytes()).all(|(id, byte)| *id == u32::from(byte))
    });
    own.map(ChunkRecord::stop).max().unwrap_or(0)
}

/// Every row names a file that is there and unchanged, and every reference a chunk that has a row.
async fn check_rows(home: &TestHome, kill: &str) -> Vec<ChunkRecord> {
    let store = Store::open(&home.data_folder().database()).await.unwrap();
    let (rows, refs) = (store.chunks().await.unwrap(), store.cache_refs().await.unwrap());
    store.close().await.unwrap();
    rows.iter().for_each(|row| check_row(home, row));
    for key in refs.iter().filter_map(|cache_ref| cache_ref.target) {
        assert!(
            rows.iter().any(|row| row.key == key),
            "{kill}: a conversation refers to a chunk without a row"
        );
    }
    rows
}

/// After a start at which nothing was asked, files without a row have got it back or are gone.
async fn check_every_file_has_a_row(home: &TestHome, kill: &str) {
    let rows = home.rows().await;
    rows.iter().for_each(|row| check_row(home, row));
    let expected: BTreeSet<PathBuf> = rows.iter().map(|row| home.chunk_file(row)).collect();
    let ChunkFiles { whole, temporary } = home.chunk_files();
    let found: BTreeSet<PathBuf> = whole.union(&temporary).cloned().collect();
    assert_eq!(found, expected, "{kill}: files, and files with rows, after the next start");
}

/// Calls `pull` until `is_wanted` holds for its result. Panics after [`TIMEOUT`].
fn until<T>(pull: &mut impl FnMut() -> T, mut is_wanted: impl FnMut(&T) -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_wanted(&pull()) {
        assert!(Instant::now() < deadline, "the expected event does not come");
    }
}

/// Pseudo-random numbers, the same in every run (xorshift64*, Vigna 2016).
struct Random(u64);

impl Random {
    fn new(test: u64, seed: u64) -> Random {
        Random(test.wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % limit
    }
}
