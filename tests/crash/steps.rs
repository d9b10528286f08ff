//! SIGKILL at every write, fsync and rename with which a chunk is written, and at every fsync of the
//! database meanwhile: the kernel kills the victim as the thread that does it enters the n-th of
//! them, for every n until one is never reached. strace says so to the kernel.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use super::{Desk, Facts, Line, Turn, Victim, check_what_is_left};

/// Far more than writing a few chunks takes.
const MAX_RUNS: usize = 60;

/// A thread of the victim, and the files that it is watched at.
#[derive(Clone, Copy)]
struct Place {
    thread: &'static str,
    /// A part of their paths.
    files: &'static str,
}

const WRITER: Place = Place { thread: "cairn-writer", files: "prompt-cache-v2" };
/// The first of the database's threads is the one that writes. The kernel keeps fifteen letters of
/// a name.
const DATABASE: Place = Place { thread: "sqlx-sqlite-wor", files: "cairn.db" };

#[test]
fn a_kill_at_any_write_of_a_chunk_leaves_whole_files_and_true_rows() {
    // Twice for each chunk: its header, and its tensors.
    check(WRITER, "write", 8);
}

#[test]
fn a_kill_at_any_fsync_of_a_chunk_leaves_whole_files_and_true_rows() {
    // Once for the model's new folder, then for each chunk its file and its folder.
    check(WRITER, "fsync", 9);
}

#[test]
fn a_kill_at_any_rename_of_a_chunk_leaves_whole_files_and_true_rows() {
    // Which of them there are depends on the processor.
    check(WRITER, "?rename,renameat,renameat2", 4);
}

#[test]
fn a_kill_at_any_fsync_of_the_database_leaves_whole_files_and_true_rows() {
    // The question, the answer, and the row of each chunk.
    check(DATABASE, "fsync", 6);
}

/// Kills at each of the `calls` of a place, of which there are at least `num_least`.
fn check(place: Place, calls: &str, num_least: usize) {
    let mut met = BTreeSet::new();
    let mut when = 1;
    for _ in 0..MAX_RUNS {
        let (num_done, is_killed) = run(place, calls, when);
        let wanted = (0..).find(|num_done| !met.contains(num_done)).unwrap_or(0);
        if !is_killed && num_done <= wanted {
            assert!(num_done >= num_least, "only {num_done} of {calls} were met");
            return;
        }
        if is_killed {
            met.insert(num_done);
        }
        // The thread also writes to wake others, now and then. strace counts such a call too, so
        // that one of ours may be passed over.
        when = if is_killed && num_done <= wanted { when + 1 } else { when - 1 };
    }
    panic!("not every one of {calls} was met in {MAX_RUNS} runs, only those after {met:?} others");
}

/// Lets a victim write the chunks of a conversation in a fresh folder, to be killed as it enters the
/// n-th of `calls`, and checks what is left. Returns how many of those at the place were done, and
/// whether it was killed.
fn run(place: Place, calls: &str, when: usize) -> (usize, bool) {
    let desk = Desk::new();
    let question = "granite, basalt, slate and marble; ".repeat(8);
    let mut victim = Victim::start(desk.home(), "steps", "new", 8, &question);
    let Some(Line::Conversation(conversation)) = victim.next() else {
        panic!("the victim names its conversation")
    };
    let log = desk.home().join("strace.log");
    let mut strace = attach(
        thread(&victim, place.thread),
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
    let mut facts = Facts::default();
    let turns = facts.0.entry(conversation.clone()).or_default();
    while let Some(line) = victim.next() {
        Turn::note(turns, &line);
    }
    let status = victim.child.wait().unwrap();
    strace.wait().unwrap();
    let is_killed = status.signal() == Some(9);
    assert!(is_killed || status.success(), "the victim ended with {status}");

    let log = fs::read_to_string(log).unwrap();
    let is_done = |line: &&str| line.contains(place.files) && !line.ends_with("= ?");
    let num_done = log.lines().filter(is_done).count();
    let kill = format!("a kill at {calls} number {when}, after {num_done} of {}", place.files);
    check_what_is_left(&desk, &mut facts, &conversation, &question, &mut BTreeSet::new(), &kill);
    (num_done, is_killed)
}

/// The first of the victim's threads with this name.
fn thread(victim: &Victim, name: &str) -> String {
    let tasks = fs::read_dir(format!("/proc/{}/task", victim.child.id())).unwrap();
    let tasks = tasks.map(|task| task.unwrap().path());
    let ids = tasks.filter(|task| {
        fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    });
    let ids = ids.map(|task| task.file_name().unwrap().to_str().unwrap().parse::<u32>().unwrap());
    ids.min().unwrap_or_else(|| panic!("the victim has no thread {name}")).to_string()
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
    let mut said = String::new();
    let mut stderr = BufReader::new(strace.stderr.take().unwrap());
    while !said.contains(" attached") {
        let num_read = stderr.read_line(&mut said).unwrap();
        assert!(
            num_read > 0,
            "this test needs the right to trace its own processes (ptrace), which this system refuses: {said}"
        );
    }
    // What it says later must not stop it.
    std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
    strace
}
