//! SIGKILL while a model is downloaded: what is left shows no model or the right one, and the next
//! download completes it.
//!
//! The victim is this test program again, started for one test with a variable. It is killed at an
//! event, never at a time: when the hub has sent so many bytes and stalls, or when a file appears.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cairn_fake_hub::{Asked, FakeRepo, Fault, Misdeed};
use cairn_sweeps::sweep;

use crate::support::{MODEL, Random, Setting, WEIGHT_BYTES, WEIGHTS, download, names, options};

const ENDPOINT: &str = "CAIRN_TEST_ENDPOINT";
const CACHE: &str = "CAIRN_TEST_CACHE";

/// Not a test of its own: what a victim does.
#[test]
fn victim() {
    let (Ok(endpoint), Ok(cache)) = (std::env::var(ENDPOINT), std::env::var(CACHE)) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(download(options(&endpoint, Path::new(&cache)))).unwrap();
}

struct Victim(Child);

impl Victim {
    fn start(setting: &Setting) -> Victim {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "kills::victim", "--nocapture"]);
        command.env(ENDPOINT, setting.hub.endpoint()).env(CACHE, setting.cache());
        Victim(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Where a victim is killed.
enum Event {
    /// The hub has sent so many bytes of the weights and stalls.
    Bytes(u64),
    /// Another answer has stalled.
    Answer(Asked),
    /// A path that matches has appeared in the repository's folder.
    Path(&'static str, fn(&str) -> bool),
}

fn event(random: &mut Random) -> Event {
    match random.below(10) {
        0 => Event::Answer(Asked::Info),
        1 => Event::Answer(Asked::Tree),
        2 => Event::Answer(Asked::File("config.json")),
        3 => Event::Path("blobs", |name| !name.ends_with(".incomplete")),
        4 => Event::Path("", |name| name.starts_with(".cairn-snapshot-")),
        5 => Event::Path("snapshots", |_| true),
        6 => Event::Path("refs", |name| name == "main"),
        _ => Event::Bytes(random.below(WEIGHT_BYTES)),
    }
}

fn kill_at(setting: &Setting, event: &Event) {
    let stall = |asked, bytes| {
        setting.hub.add_fault(Fault::always(asked, Misdeed::StallAfter(bytes)));
    };
    match event {
        Event::Bytes(bytes) => stall(Asked::Bytes(WEIGHTS), *bytes),
        Event::Answer(asked) => stall(asked.clone(), 3),
        Event::Path(..) => {}
    }
    let mut victim = Victim::start(setting);
    match event {
        Event::Path(folder, is_it) => {
            let folder: PathBuf = setting.repo_folder().join(folder);
            while !victim.has_ended() && !names_now(&folder).iter().any(|name| is_it(name)) {
                std::thread::yield_now();
            }
        }
        _ => setting.hub.wait_for_stall(|| victim.has_ended()),
    }
    victim.kill();
    setting.hub.clear_faults();
}

/// As [`names`], where entries may vanish meanwhile.
fn names_now(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[test]
fn a_killed_download_shows_no_model_or_the_right_one() {
    for seed in sweep("killed downloads", 6) {
        let mut random = Random::new(seed);
        let repo = FakeRepo::model(MODEL, WEIGHT_BYTES);
        let setting = Setting::with(repo.clone());
        for _ in 0..1 + random.below(3) {
            kill_at(&setting, &event(&mut random));
            setting.check_blobs();
            let snapshots = setting.repo_folder().join("snapshots");
            if !names(&snapshots).is_empty() {
                // It appeared with all its links; the ref may still be missing.
                let files = names(&snapshots.join(&repo.commit));
                assert_eq!(files.len(), 3, "{files:?}");
            }
            if setting.repo_folder().join("refs/main").exists() {
                setting.check_whole(&repo);
            }
        }
        setting.download().unwrap();
        setting.check_whole(&repo);
        let left = names(&setting.repo_folder());
        assert!(!left.iter().any(|name| name.starts_with(".cairn")), "{left:?}");
    }
}

#[test]
fn a_killed_download_fetches_at_most_a_chunk_again() {
    const CHUNK_BYTES: u64 = 1 << 20;
    let length = 8 * CHUNK_BYTES;
    let repo = FakeRepo::model(MODEL, length);
    let setting = Setting::with(repo.clone());
    let sent = 5 * CHUNK_BYTES + 77;
    kill_when_written(&setting, &repo, sent);
    setting.hub.forget_requests();
    setting.download().unwrap();
    setting.check_whole(&repo);
    let start = setting.weight_starts()[0];
    assert!(start <= sent && sent - start <= CHUNK_BYTES, "{start} of {sent} bytes were kept");
}

/// Kills a victim to which `sent` bytes were sent, once it has had the time to write them: when its
/// partial file no longer lacks more than a chunk.
fn kill_when_written(setting: &Setting, repo: &FakeRepo, sent: u64) {
    let stall = Misdeed::StallAfter(sent);
    setting.hub.add_fault(Fault::always(Asked::Bytes(WEIGHTS), stall));
    let partial = setting.partial(repo.file(WEIGHTS).unwrap());
    let mut victim = Victim::start(setting);
    setting.hub.wait_for_stall(|| victim.has_ended());
    let written = || std::fs::metadata(&partial).map_or(0, |found| found.len());
    while written() + (1 << 20) < sent && !victim.has_ended() {
        std::thread::yield_now();
    }
    victim.kill();
    setting.hub.clear_faults();
}
