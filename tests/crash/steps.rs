//! SIGKILL at every write, fsync and rename of the thread that writes chunks, and at every fsync of
//! the database meanwhile. strace makes the kernel kill the victim as that thread enters its n-th
//! call; the test runs for n = 1, 2, … until the victim makes no n-th call and ends by itself.
//! Another test lets strace fail one read.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::acknowledged::{Acknowledged, Turn};
use crate::check_after_kill;
use crate::home::TestHome;
use crate::victim::Victim;

/// Far more than writing a few chunks takes.
const MAX_RUNS: usize = 60;
/// Far more than a thread takes to begin.
const LONGEST_START: Duration = Duration::from_secs(60);

/// The calls that are counted: those of one thread of the victim, on certain files.
#[derive(Clone, Copy)]
struct Watched {
    thread: &'static str,
    /// What the files' paths contain.
    path_part: &'static str,
}

const WRITER: Watched = Watched { thread: "cairn-writer", path_part: "prompt-cache-v2" };
/// The first of the database's threads is the one that writes. The kernel cuts thread names to 15
/// bytes.
const DATABASE: Watched = Watched { thread: "sqlx-sqlite-wor", path_part: "cairn.db" };

#[test]
fn a_kill_at_any_write_of_a_chunk_leaves_whole_files_and_true_rows() {
    // Two for each chunk: its header and its tensors.
    check(WRITER, "write", 8);
}

#[test]
fn a_kill_at_any_fsync_of_a_chunk_leaves_whole_files_and_true_rows() {
    // One for the model's new folder, then two for each chunk: its file and its folder.
    check(WRITER, "fsync", 9);
}

#[test]
fn a_kill_at_any_rename_of_a_chunk_leaves_whole_files_and_true_rows() {
    // Which of these calls exist depends on the processor.
    check(WRITER, "?rename,renameat,renameat2", 4);
}

#[test]
fn a_kill_at_any_fsync_of_the_database_leaves_whole_files_and_true_rows() {
    // One each for the question, the answer, and the row of each chunk.
    check(DATABASE, "fsync", 6);
}

#[test]
fn a_file_that_one_start_cannot_read_is_there_at_the_next() {
    let home = TestHome::new();
    let question = "granite, basalt, slate and marble; ".repeat(8);
    let mut victim = Victim::start(home.path(), "steps", "new", 8, &question);
    victim.begin();
    while victim.next().is_some() {}
    assert!(victim.child.wait().unwrap().success());
    let files = home.chunk_files().whole;
    assert!(files.len() >= 2, "a chunk and one that continues it");
    for unreadable in &files {
        home.run(home.lose_all_rows());
        start_with_a_failing_read(&home, unreadable);
        assert_eq!(home.chunk_files().whole, files, "without {}", unreadable.display());
        assert!(home.run(home.rows()).len() < files.len(), "a read has failed");
    }
    home.run(async {
        let app = home.open().await;
        home.wait_until_every_file_has_a_row().await;
        app.close().await;
    });
    assert_eq!(home.run(home.rows()).len(), files.len());
}

/// Opens the app in another process, where the first read of a file fails, and closes it.
fn start_with_a_failing_read(home: &TestHome, file: &Path) {
    let mut strace = Command::new("strace")
        .args(["-f", "-qq", "-e", "trace=read", "-e", "inject=read:error=EIO:when=1", "-o"])
        .args([Path::new("/dev/null"), Path::new("-P"), file])
        .args([Path::new(env!("CARGO_BIN_EXE_crash_victim")), home.path(), Path::new("own")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("this test needs strace: {error}"));
    let mut line = String::new();
    BufReader::new(strace.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line.trim_end(), r#"["owner"]"#);
    home.run(home.wait_until_files_are_checked());
    drop(strace.stdin.take());
    assert!(strace.wait().unwrap().success());
}

/// Kills at each of the `calls` that `watched` counts, of which there must be at least `num_least`.
fn check(watched: Watched, calls: &str, num_least: usize) {
    // Numbers of calls that were done before a kill.
    let mut covered = BTreeSet::new();
    let mut when = 1;
    for _ in 0..MAX_RUNS {
        let (num_done, is_killed) = run(watched, calls, when);
        let wanted = (0..).find(|num_done| !covered.contains(num_done)).unwrap_or(0);
        if !is_killed && num_done <= wanted {
            assert!(num_done >= num_least, "the victim made only {num_done} calls of {calls}");
            return;
        }
        if is_killed {
            covered.insert(num_done);
        }
        // strace counts every call of the thread. Now and then it also writes to wake another thread;
        // then a counted call is skipped, and has to be tried again with a smaller n.
        when = if is_killed && num_done <= wanted { when + 1 } else { when - 1 };
    }
    panic!("{MAX_RUNS} runs did not kill at every one of {calls}, only after {covered:?} calls");
}

/// Lets a victim write the chunks of a conversation in a new data folder, kills it as it enters the
/// call number `when`, and checks the state after that. Returns how many of the counted calls were
/// done, and whether it was killed.
fn run(watched: Watched, calls: &str, when: usize) -> (usize, bool) {
    let home = TestHome::new();
    let question = "granite, basalt, slate and marble; ".repeat(8);
    let mut victim = Victim::start(home.path(), "steps", "new", 8, &question);
    let conversation = victim.conversation();
    let log = home.path().join("strace.log");
    let mut strace = attach(
        thread(&victim, watched.thread),
        &[
            "-e".to_owned(),
            format!("trace={calls}"),
            "-e".to_owned(),
            format!("inject={calls}:signal=SIGKILL:when={when}"),
            "-o".to_owned(),
            log.to_str().unwrap().to_owned(),
        ],
    );
    victim.begin();
    let mut acknowledged = Acknowledged::default();
    let turns = acknowledged.turns.entry(conversation.clone()).or_default();
    while let Some(line) = victim.next() {
        Turn::note(turns, &line);
    }
    let status = victim.child.wait().unwrap();
    strace.wait().unwrap();
    let is_killed = status.signal() == Some(9);
    assert!(is_killed || status.success(), "the victim ended with {status}");

    let log = fs::read_to_string(log).unwrap();
    let is_done = |line: &&str| line.contains(watched.path_part) && !line.ends_with("= ?");
    let num_done = log.lines().filter(is_done).count();
    let kill =
        format!("a kill at {calls} number {when}, after {num_done} of {}", watched.path_part);
    check_after_kill(&home, &mut acknowledged, &conversation, &question, &kill);
    (num_done, is_killed)
}

/// The first of the victim's threads with this name. A thread names itself as it begins, which may be
/// after its maker has gone on.
fn thread(victim: &Victim, name: &str) -> String {
    let start = Instant::now();
    loop {
        if let Some(id) = thread_now(victim, name) {
            return id.to_string();
        }
        assert!(start.elapsed() < LONGEST_START, "the victim has no thread {name}");
        std::thread::yield_now();
    }
}

fn thread_now(victim: &Victim, name: &str) -> Option<u32> {
    let tasks = fs::read_dir(format!("/proc/{}/task", victim.child.id())).unwrap();
    let tasks = tasks.map(|task| task.unwrap().path());
    let ids = tasks.filter(|task| {
        fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    });
    let ids = ids.map(|task| task.file_name().unwrap().to_str().unwrap().parse::<u32>().unwrap());
    ids.min()
}

/// Starts strace, and waits until it follows the thread.
fn attach(thread: String, arguments: &[String]) -> Child {
    let mut command = Command::new("strace");
    command
        .args(["-y", "-s", "0", "-p", &thread])
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    let mut strace = command.spawn().unwrap_or_else(|error| {
        panic!("this test needs strace (`apt-get install strace`): {error}")
    });
    let mut output = String::new();
    let mut stderr = BufReader::new(strace.stderr.take().unwrap());
    while !output.contains(" attached") {
        let num_read = stderr.read_line(&mut output).unwrap();
        assert!(
            num_read > 0,
            "this test needs the right to trace its own processes (ptrace), which this system refuses: {output}"
        );
    }
    // If nobody read its later output, strace would block.
    std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
    strace
}
