//! Connections that are cut midway: each resumes where it was cut, and the hash is right.

use std::fs;

use cairn_fake_hub::{Asked, FakeRepo, Fault, Misdeed};
use cairn_sweeps::sweep;

use crate::support::{MODEL, Random, Setting, WEIGHT_BYTES, WEIGHTS};

const BYTES: Asked = Asked::Bytes(WEIGHTS);

#[test]
fn a_body_cut_at_every_sixteenth_resumes_there() {
    let repo = FakeRepo::model(MODEL, WEIGHT_BYTES);
    let setting = Setting::with(repo.clone());
    let step = WEIGHT_BYTES / 16;
    setting.hub.add_fault(Fault { asked: BYTES, times: 16, misdeed: Misdeed::CutAfter(step) });
    setting.download().unwrap();
    setting.check_whole(&repo);
    let expected: Vec<u64> = (0..=16).map(|sixteenth| sixteenth * step).collect();
    assert_eq!(setting.weight_starts(), expected);
    let requests = setting.hub.requests();
    let num_known = requests.iter().filter(|asked| asked.header("if-range").is_some()).count();
    assert_eq!(num_known, 32, "the hub and the other host are told which file is wanted");
}

#[test]
fn cuts_at_seeded_places_end_with_the_right_hash() {
    for seed in sweep("cut downloads", 12) {
        let mut random = Random::new(seed);
        let repo = FakeRepo::model(MODEL, 1 + random.below(400_000));
        let setting = Setting::with(repo.clone());
        let length = repo.file(WEIGHTS).unwrap().content.length();
        let mut num_rounds = 0;
        for _ in 0..1 + random.below(4) {
            // Each round is a new download, as after a restart; it is cut until it gives up.
            let misdeed = match random.below(6) {
                0 => Misdeed::CutBeforeAnswer,
                1 => Misdeed::IgnoreRange,
                2 => Misdeed::Status(503, Vec::new()),
                _ => Misdeed::CutAfter(random.below(length + 1)),
            };
            let times = 1 + random.below(8) as u32;
            setting.hub.add_fault(Fault { asked: BYTES, times, misdeed });
            if setting.download().is_ok() {
                break;
            }
            setting.check_nothing_visible();
            num_rounds += 1;
        }
        setting.hub.clear_faults();
        setting.download().unwrap();
        setting.check_whole(&repo);
        assert!(num_rounds <= 4);
    }
}

#[test]
fn a_download_after_a_restart_continues_from_the_partial_file() {
    let repo = FakeRepo::model(MODEL, WEIGHT_BYTES);
    let setting = Setting::with(repo.clone());
    let weights = repo.file(WEIGHTS).unwrap();
    setting.hub.add_fault(Fault::once(BYTES, Misdeed::CutAfter(200_000)));
    setting.hub.add_fault(Fault::always(BYTES, Misdeed::CutBeforeAnswer));
    setting.download().unwrap_err();
    assert_eq!(fs::metadata(setting.partial(weights)).unwrap().len(), 200_000);
    // The small files may still have been on their way when the weights failed.
    let num_bytes: u64 = repo.files.iter().map(|file| file.content.length()).sum();
    let missing = WEIGHT_BYTES - 200_000..=num_bytes - 200_000;
    assert!(missing.contains(&setting.plan().unwrap().bytes_missing));
    setting.hub.clear_faults();
    setting.hub.forget_requests();
    setting.download().unwrap();
    setting.check_whole(&repo);
    assert_eq!(setting.weight_starts(), [200_000]);
    assert!(!setting.partial(weights).exists());
}

#[test]
fn a_partial_file_that_is_damaged_or_too_long_is_fetched_anew() {
    let repo = FakeRepo::model(MODEL, WEIGHT_BYTES);
    let weights = repo.file(WEIGHTS).unwrap();
    let whole = weights.content.bytes();
    let mut damaged = whole[..200_000].to_vec();
    damaged[100_000] ^= 1;
    let mut long = whole.clone();
    long.push(0);
    for (left, expected) in [
        (damaged, vec![200_000, 0]),
        (long, vec![0]),
        (vec![0; whole.len()], vec![0]),
        // All bytes came, and the process was killed before the rename.
        (whole.clone(), vec![]),
        (whole[..whole.len() - 1].to_vec(), vec![WEIGHT_BYTES - 1]),
    ] {
        let setting = Setting::with(repo.clone());
        fs::create_dir_all(setting.repo_folder().join("blobs")).unwrap();
        fs::write(setting.partial(weights), left).unwrap();
        setting.download().unwrap();
        setting.check_whole(&repo);
        assert_eq!(setting.weight_starts(), expected);
    }
}

#[test]
fn another_program_that_takes_the_partial_file_away_costs_another_fetch() {
    let repo = FakeRepo::model(MODEL, WEIGHT_BYTES);
    let setting = Setting::with(repo.clone());
    let partial = setting.partial(repo.file(WEIGHTS).unwrap());
    setting.hub.add_fault(Fault::once(BYTES, Misdeed::StallAfter(150_000)));
    let mut options = setting.options();
    options.limits.tries = 30;
    let download = setting.runtime.spawn(crate::support::download(options));
    setting.hub.wait_for_stall(|| download.is_finished());
    while !partial.exists() {
        std::thread::yield_now();
    }
    fs::remove_file(&partial).unwrap();
    setting.hub.clear_faults();
    setting.runtime.block_on(download).unwrap().unwrap();
    setting.check_whole(&repo);
}

#[test]
fn a_download_waits_for_another_of_the_same_files() {
    let repo = FakeRepo::model(MODEL, WEIGHT_BYTES);
    let setting = Setting::with(repo.clone());
    setting.hub.add_fault(Fault::once(BYTES, Misdeed::StallAfter(150_000)));
    let first = setting.runtime.spawn(crate::support::download(setting.options()));
    setting.hub.wait_for_stall(|| first.is_finished());
    let second = setting.runtime.spawn(crate::support::download(setting.options()));
    setting.hub.clear_faults();
    setting.runtime.block_on(first).unwrap().unwrap();
    setting.runtime.block_on(second).unwrap().unwrap();
    setting.check_whole(&repo);
    let num_whole = setting.weight_starts().iter().filter(|start| **start == 0).count();
    assert_eq!(num_whole, 1, "the second took the first one's file");
}
