//! What a download says of itself, and how it is cancelled.

use std::fs;

use cairn_fake_hub::{Asked, FakeRepo, Fault, Misdeed};
use cairn_hub::{DownloadProgress, FileState, Hub};
use tokio::sync::watch;

use crate::support::{MODEL, Setting, WEIGHT_BYTES, WEIGHTS};

const BYTES: Asked = Asked::Bytes(WEIGHTS);

#[test]
fn a_file_is_whole_only_when_it_is_in_place() {
    let repo = FakeRepo::model(MODEL, WEIGHT_BYTES);
    let setting = Setting::with(repo.clone());
    // All bytes come, and the hash is wrong: that must never have looked like the end.
    setting.hub.add_fault(Fault::once(BYTES, Misdeed::Damage(7)));
    setting.hub.add_fault(Fault::once(BYTES, Misdeed::CutAfter(100_000)));
    let plan = setting.plan().unwrap();
    let hub = Hub::new(setting.options()).unwrap();
    let blob = setting.blob(repo.file(WEIGHTS).unwrap());
    let (progress, mut watched) = watch::channel(DownloadProgress::default());
    let watching = setting.runtime.spawn(async move {
        let mut seen = Vec::new();
        while watched.changed().await.is_ok() {
            let progress = watched.borrow_and_update().clone();
            for file in &progress.files {
                let is_done = file.state == FileState::Done;
                assert_eq!(file.bytes == file.total, is_done, "{file:?}");
                if is_done && file.path == WEIGHTS {
                    assert!(blob.exists());
                }
            }
            assert!(progress.bytes() <= progress.total());
            seen.push(progress);
        }
        seen
    });
    setting.runtime.block_on(hub.download(&plan, &progress)).unwrap();
    drop(progress);
    let seen = setting.runtime.block_on(watching).unwrap();
    let last = seen.last().unwrap();
    assert_eq!((last.bytes(), last.total()), (plan.bytes, plan.bytes));
    let small = plan.bytes - WEIGHT_BYTES;
    assert_eq!(last.bytes_fetched, small + 2 * WEIGHT_BYTES, "the damaged body came too");
}

#[test]
fn dropping_a_download_ends_it_and_keeps_what_has_come() {
    let repo = FakeRepo::model(MODEL, WEIGHT_BYTES);
    let setting = Setting::with(repo.clone());
    let weights = repo.file(WEIGHTS).unwrap();
    setting.hub.add_fault(Fault::always(BYTES, Misdeed::StallAfter(123_456)));
    let (hub, plan) = (Hub::new(setting.options()).unwrap(), setting.plan().unwrap());
    let (progress, mut watched) = watch::channel(DownloadProgress::default());
    let download = setting.runtime.spawn(async move { hub.download(&plan, &progress).await });
    let has_come = |progress: &DownloadProgress| {
        progress.files.iter().any(|file| file.path == WEIGHTS && file.bytes == 123_456)
    };
    setting.runtime.block_on(watched.wait_for(has_come)).unwrap();
    download.abort();
    assert!(setting.runtime.block_on(download).unwrap_err().is_cancelled());
    setting.check_nothing_visible();
    setting.hub.clear_faults();
    setting.hub.forget_requests();
    // The next one waits until the writer of the first has released the file.
    setting.download().unwrap();
    setting.check_whole(&repo);
    assert_eq!(setting.weight_starts(), [123_456], "nothing came twice");
    assert!(!fs::exists(setting.partial(weights)).unwrap());
}
