//! The queue: turns, pause, resume, cancel, and what happens while the hub is away.

use cairn_fake_hub::{Asked, FakeFile, FakeRepo, Fault, Misdeed};
use cairn_hub::{
    DownloadError, DownloadRequest, DownloadState, Downloads, Hub, QueuedDownload, Revision, Token,
};

use crate::support::{MODEL, NOBODY, Setting, WEIGHT_BYTES, WEIGHTS, options};

const BYTES: Asked = Asked::Bytes(WEIGHTS);

fn request(name: &str) -> DownloadRequest {
    DownloadRequest { repo: name.parse().unwrap(), revision: Revision::default(), cache: None }
}

/// Waits until the queue is as wanted.
fn wait(setting: &Setting, downloads: &Downloads, is_it: impl Fn(&[QueuedDownload]) -> bool) {
    setting.runtime.block_on(async {
        let mut changes = downloads.changes();
        while !is_it(&downloads.list()) {
            changes.changed().await.unwrap();
        }
    });
}

fn is_done(download: &QueuedDownload) -> bool {
    matches!(download.state, DownloadState::Done(_))
}

#[test]
fn two_run_at_a_time_and_the_others_follow_in_order() {
    let names = ["a/a", "b/b", "c/c", "d/d"];
    let setting = Setting::new();
    setting.hub.change(|repos| {
        *repos = names
            .iter()
            .enumerate()
            .map(|(i, name)| FakeRepo::model(name, 9000 + i as u64))
            .collect();
    });
    setting.hub.add_fault(Fault::always(BYTES, Misdeed::StallAfter(10)));
    let downloads = Downloads::new(Hub::new(setting.options()).unwrap());
    let _entered = setting.runtime.enter();
    let ids: Vec<u64> = names.iter().map(|name| downloads.add(request(name))).collect();
    assert_eq!(downloads.add(request("b/b")), ids[1], "it is in the queue already");
    let states = |list: &[QueuedDownload]| -> Vec<bool> {
        list.iter().map(|download| download.state == DownloadState::Running).collect()
    };
    wait(&setting, &downloads, |list| states(list) == [true, true, false, false]);
    assert_eq!(downloads.list()[2].state, DownloadState::Queued);
    // One that is paused gives its turn to the next.
    downloads.pause(ids[0]);
    wait(&setting, &downloads, |list| states(list) == [false, true, true, false]);
    setting.hub.clear_faults();
    downloads.resume(ids[0]);
    wait(&setting, &downloads, |list| list.iter().all(is_done));
}

#[test]
fn a_paused_download_continues_and_a_cancelled_one_leaves_nothing() {
    let repo = FakeRepo::model(MODEL, WEIGHT_BYTES);
    let setting = Setting::with(repo.clone());
    let partial = setting.partial(repo.file(WEIGHTS).unwrap());
    let downloads = Downloads::new(Hub::new(setting.options()).unwrap());
    let _entered = setting.runtime.enter();
    let stall = |bytes| {
        setting.hub.add_fault(Fault::always(BYTES, Misdeed::StallAfter(bytes)));
        let id = downloads.add(request(MODEL));
        while downloads.list()[0].progress.bytes() < bytes {
            std::thread::yield_now();
        }
        id
    };
    let id = stall(100_000);
    downloads.pause(id);
    assert_eq!(downloads.list()[0].state, DownloadState::Paused);
    setting.check_nothing_visible();
    setting.hub.clear_faults();
    setting.hub.forget_requests();
    downloads.resume(id);
    wait(&setting, &downloads, |list| is_done(&list[0]));
    setting.check_whole(&repo);
    assert_eq!(setting.weight_starts(), [100_000]);
    setting.runtime.block_on(downloads.cancel(id));
    assert!(downloads.list().is_empty());
    setting.check_whole(&repo);

    std::fs::remove_dir_all(setting.cache()).unwrap();
    let id = stall(50_000);
    assert!(partial.exists());
    setting.runtime.block_on(downloads.cancel(id));
    assert!(!partial.exists() && downloads.list().is_empty());
    setting.check_nothing_visible();
}

#[test]
fn a_failed_download_says_why_and_can_be_tried_again() {
    let setting = Setting::new();
    let missing = Fault::always(Asked::Info, Misdeed::Status(404, Vec::new()));
    setting.hub.add_fault(missing);
    let downloads = Downloads::new(Hub::new(setting.options()).unwrap());
    let _entered = setting.runtime.enter();
    let id = downloads.add(request(MODEL));
    let is_missing = |list: &[QueuedDownload]| {
        matches!(&list[0].state, DownloadState::Failed(DownloadError::NotFound { .. }))
    };
    wait(&setting, &downloads, is_missing);
    downloads.pause(id);
    assert!(is_missing(&downloads.list()), "what has failed is not paused");
    setting.hub.clear_faults();
    downloads.resume(id);
    wait(&setting, &downloads, |list| is_done(&list[0]));
}

#[test]
fn without_the_hub_downloads_wait_and_ask_seldom() {
    let setting = Setting::new();
    let mut options = options(NOBODY, &setting.cache());
    options.limits.tries = 2;
    let downloads = Downloads::new(Hub::new(options).unwrap());
    let _entered = setting.runtime.enter();
    for name in ["a/a", "b/b", "c/c"] {
        downloads.add(request(name));
    }
    let is_offline = |download: &QueuedDownload| download.state == DownloadState::Offline;
    wait(&setting, &downloads, |list| list.iter().filter(|one| is_offline(one)).count() == 2);
    assert_eq!(downloads.list()[2].state, DownloadState::Queued, "two look for the hub, not all");
    // Looking again finds nobody, and they wait on.
    let before = *downloads.changes().borrow();
    downloads.look_again();
    wait(&setting, &downloads, |list| {
        *downloads.changes().borrow() >= before + 4
            && list.iter().filter(|one| is_offline(one)).count() == 2
    });
}

#[test]
fn another_hub_holds_for_what_starts_next() {
    let repo = FakeRepo { token: Some("hf_right".to_owned()), ..FakeRepo::model(MODEL, 5000) };
    let setting = Setting::with(repo.clone());
    let hub = Hub::new(setting.options()).unwrap();
    let downloads = Downloads::new(hub.clone());
    let _entered = setting.runtime.enter();
    let id = downloads.add(request(MODEL));
    let is_refused = |list: &[QueuedDownload]| {
        matches!(&list[0].state, DownloadState::Failed(DownloadError::Unauthorized { .. }))
    };
    wait(&setting, &downloads, is_refused);
    downloads.set_hub(hub.with_token(Some(Token::new("hf_right").unwrap())));
    assert!(is_refused(&downloads.list()), "it is resumed by a person");
    downloads.resume(id);
    wait(&setting, &downloads, |list| is_done(&list[0]));
    setting.check_whole(&repo);
}

#[test]
fn another_hub_is_asked_by_those_that_wait() {
    let setting = Setting::new();
    let mut options = options(NOBODY, &setting.cache());
    options.limits.tries = 1;
    let downloads = Downloads::new(Hub::new(options).unwrap());
    let _entered = setting.runtime.enter();
    downloads.add(request(MODEL));
    wait(&setting, &downloads, |list| list[0].state == DownloadState::Offline);
    downloads.set_hub(Hub::new(setting.options()).unwrap());
    wait(&setting, &downloads, |list| is_done(&list[0]));
}

#[test]
fn what_is_done_begins_anew_when_it_is_added_again() {
    let mut repo = FakeRepo::model(MODEL, WEIGHT_BYTES);
    let setting = Setting::with(repo.clone());
    let downloads = Downloads::new(Hub::new(setting.options()).unwrap());
    let _entered = setting.runtime.enter();
    let id = downloads.add(request(MODEL));
    wait(&setting, &downloads, |list| is_done(&list[0]));
    setting.check_whole(&repo);

    // A newer commit, in which one file is another.
    repo.commit = "0ddba11f".repeat(5);
    repo.files.retain(|file| file.path != "tokenizer.json");
    repo.files.push(FakeFile::small("tokenizer.json", r#"{"new": true}"#));
    setting.hub.change(|repos| *repos = vec![repo.clone()]);
    setting.hub.forget_requests();
    assert_eq!(downloads.add(request(MODEL)), id);
    assert!(!is_done(&downloads.list()[0]), "it runs again");
    wait(&setting, &downloads, |list| is_done(&list[0]));
    assert_eq!(downloads.list().len(), 1);
    let DownloadState::Done(model) = &downloads.list()[0].state else { unreachable!() };
    assert_eq!(model.commit.as_str(), repo.commit);
    assert!(!model.is_in_use(), "the commit before is used until somebody has looked at this one");
    model.put_to_use(&Revision::default()).unwrap();
    assert!(model.is_in_use());
    setting.check_whole(&repo);
    assert!(setting.weight_starts().is_empty(), "what is here already is not fetched");
}

#[test]
fn a_second_version_is_not_used_before_its_check_although_no_ref_names_the_first() {
    let mut repo = FakeRepo::model(MODEL, WEIGHT_BYTES);
    let setting = Setting::with(repo.clone());
    let first = setting.download().unwrap();
    // As a download of one commit leaves it.
    std::fs::remove_file(setting.repo_folder().join("refs/main")).unwrap();
    repo.commit = "0ddba11f".repeat(5);
    setting.hub.change(|repos| *repos = vec![repo.clone()]);
    let _entered = setting.runtime.enter();
    // The second queue is that of a program that was killed before it had looked at the version.
    for _ in 0..2 {
        let downloads = Downloads::new(Hub::new(setting.options()).unwrap());
        downloads.add(request(MODEL));
        wait(&setting, &downloads, |list| is_done(&list[0]));
        let DownloadState::Done(model) = &downloads.list()[0].state else { unreachable!() };
        assert_eq!(model.commit.as_str(), repo.commit);
        assert!(!model.is_in_use() && first.is_in_use());
    }
}

#[test]
fn a_queue_comes_back_in_its_order_and_what_was_paused_stays_paused() {
    let names = ["a/a", "b/b", "c/c"];
    let setting = Setting::new();
    setting.hub.change(|repos| {
        *repos = (0..).zip(names).map(|(i, name)| FakeRepo::model(name, 9000 + i)).collect();
    });
    let downloads = Downloads::new(Hub::new(setting.options()).unwrap());
    let _entered = setting.runtime.enter();
    let mut changes = downloads.changes();
    let paused = downloads.add_paused(request("a/a"));
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    let ids = [paused, downloads.add(request("b/b")), downloads.add(request("c/c"))];
    wait(&setting, &downloads, |list| list[1..].iter().all(is_done));
    let list = downloads.list();
    assert_eq!(list.iter().map(|one| one.id).collect::<Vec<_>>(), ids);
    assert_eq!(list[0].state, DownloadState::Paused);
    assert!(setting.hub.requests().iter().all(|asked| !asked.target.contains("a/a")));
    // One that is there already stays as it is.
    assert_eq!(downloads.add_paused(request("b/b")), ids[1]);
    assert!(is_done(&downloads.list()[1]));
    downloads.resume(paused);
    wait(&setting, &downloads, |list| list.iter().all(is_done));
}
