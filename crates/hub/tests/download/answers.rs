//! Every answer that is not the right one: the model arrives all the same, or a sentence says why
//! not, and nothing wrong is visible.

use std::time::{Duration, Instant};

use cairn_fake_hub::{Asked, FakeFile, FakeRepo, Fault, Misdeed};
use cairn_hub::DownloadError;
use serde_json::json;

use crate::support::{MODEL, NOBODY, Setting, WEIGHT_BYTES, WEIGHTS, options};

/// What a download is expected to end with: a model, or an error with these words.
type Expected = Result<(), &'static str>;

fn check(faults: Vec<Fault>, expected: Expected) {
    let setting = Setting::new();
    let shown = format!("{faults:?}");
    faults.into_iter().for_each(|fault| setting.hub.add_fault(fault));
    let result = setting.download();
    match (&result, expected) {
        (Ok(_), Ok(())) => setting.check_whole(&FakeRepo::model(MODEL, WEIGHT_BYTES)),
        (Err(error), Err(words)) => {
            assert!(error.to_string().contains(words), "{shown}: {error}");
            assert!(!error.to_string().contains("secret"), "{error}");
            setting.check_nothing_visible();
            // Once the hub behaves, the same download succeeds.
            setting.hub.clear_faults();
            setting.download().unwrap();
            setting.check_whole(&FakeRepo::model(MODEL, WEIGHT_BYTES));
        }
        (result, expected) => panic!("{shown}: {result:?} is not {expected:?}"),
    }
}

fn status(status: u16) -> Misdeed {
    Misdeed::Status(status, Vec::new())
}

const BYTES: Asked = Asked::Bytes(WEIGHTS);

#[test]
fn statuses_that_may_pass_are_asked_again() {
    for code in [408, 429, 500, 502, 503, 504] {
        check(vec![Fault::once(Asked::Info, status(code))], Ok(()));
        check(vec![Fault::once(Asked::Tree, status(code))], Ok(()));
        check(vec![Fault::once(Asked::File("config.json"), status(code))], Ok(()));
        check(vec![Fault::once(BYTES, status(code))], Ok(()));
    }
    for code in [408, 500, 502, 503, 504] {
        check(vec![Fault::always(BYTES, status(code))], Err("try again later"));
    }
    check(vec![Fault::always(Asked::Info, status(500))], Err("error 500"));
    // The other host's refusal may mean that the signed address has expired: the hub gives another.
    for code in [401, 403, 404, 410, 416] {
        check(vec![Fault { asked: BYTES, times: 3, misdeed: status(code) }], Ok(()));
        check(vec![Fault::always(BYTES, status(code))], Err("try again later"));
    }
}

#[test]
fn refusals_of_the_hub_are_final_and_say_what_to_do() {
    let code =
        |status, code: &str| Misdeed::Status(status, vec![("X-Error-Code", code.to_owned())]);
    let config = Asked::File("config.json");
    for (asked, misdeed, words) in [
        (Asked::Info, status(401), "set an access token"),
        (Asked::Info, status(403), "refuses access"),
        (Asked::Info, code(404, "RepoNotFound"), "there is no model owner/name"),
        (Asked::Info, status(410), "there is no model owner/name"),
        (Asked::Info, code(404, "RevisionNotFound"), "no revision \"main\""),
        (Asked::Info, code(403, "GatedRepo"), "accept them at http://127.0.0.1"),
        (Asked::Tree, status(404), "there is no model"),
        (config.clone(), status(401), "set an access token"),
        (config.clone(), code(403, "GatedRepo"), "/owner/name"),
        (config.clone(), code(404, "EntryNotFound"), "no longer has the file \"config.json\""),
        (config.clone(), status(410), "no longer has the file"),
        (config.clone(), status(418), "error 418"),
        (config, status(204), "status 204"),
    ] {
        check(vec![Fault::always(asked, misdeed)], Err(words));
    }
}

#[test]
fn the_servers_own_times_are_kept() {
    let after =
        |header: &'static str, value: &str| Misdeed::Status(429, vec![(header, value.to_owned())]);
    let start = Instant::now();
    check(vec![Fault::once(BYTES, after("Retry-After", "1"))], Ok(()));
    assert!(start.elapsed() >= Duration::from_secs(1));
    check(vec![Fault::once(Asked::Info, after("RateLimit", "\"api\";r=0;t=0"))], Ok(()));
    // Longer than a download waits by itself.
    check(vec![Fault::once(BYTES, after("Retry-After", "86400"))], Err("try again in 86400 s"));
    check(
        vec![Fault::once(Asked::Tree, after("RateLimit", "\"api\";r=0;t=900"))],
        Err("try again in 900 s"),
    );
}

#[test]
fn bodies_that_are_not_the_file_never_become_one() {
    let html = || Misdeed::Instead("text/html; charset=utf-8", b"<html>Sign in</html>".to_vec());
    let json = || Misdeed::Instead("application/json", b"{".to_vec());
    for asked in [Asked::Info, Asked::Tree, Asked::File("config.json"), BYTES] {
        check(vec![Fault::always(asked.clone(), html())], Err("sign-in page"));
        check(vec![Fault::always(asked, Misdeed::Gzip)], Err("compressed"));
    }
    for asked in [Asked::Info, Asked::Tree] {
        check(vec![Fault::always(asked, json())], Err("JSON"));
    }
    for length in [0, 1, WEIGHT_BYTES - 1, WEIGHT_BYTES + 1, u64::MAX / 2] {
        check(vec![Fault::once(BYTES, Misdeed::Length(length))], Ok(()));
        check(vec![Fault::always(BYTES, Misdeed::Length(length))], Err("were announced"));
    }
    check(vec![Fault::always(BYTES, Misdeed::NoLength)], Ok(()));
    // Nothing after the file's length is read, and its hash is right.
    check(vec![Fault::always(BYTES, Misdeed::Endless)], Ok(()));
    check(vec![Fault::always(Asked::File("config.json"), Misdeed::Endless)], Ok(()));
    check(vec![Fault::always(Asked::Tree, Misdeed::Endless)], Err("32 MB"));
    for position in [0, WEIGHT_BYTES / 2, WEIGHT_BYTES - 1] {
        check(vec![Fault::once(BYTES, Misdeed::Damage(position))], Ok(()));
        check(vec![Fault::always(BYTES, Misdeed::Damage(position))], Err("damaged twice"));
    }
    check(
        vec![Fault::always(Asked::File("config.json"), Misdeed::Damage(3))],
        Err("damaged twice"),
    );
}

#[test]
fn ranges_that_were_not_asked_for_lead_to_the_whole_file() {
    let cut = || Fault::once(BYTES, Misdeed::CutAfter(100_000));
    check(vec![cut(), Fault::once(BYTES, Misdeed::IgnoreRange)], Ok(()));
    check(vec![cut(), Fault::once(BYTES, Misdeed::OtherRange)], Ok(()));
    check(vec![cut(), Fault::once(BYTES, status(416))], Ok(()));
    check(vec![Fault::always(BYTES, Misdeed::OtherRange)], Err("another range"));
    // The rest of another file: its ETag differs, so the whole comes, and its hash decides.
    let other = || Misdeed::Headers(vec![("ETag", "\"another\"".to_owned())]);
    check(vec![Fault::once(BYTES, other()), cut()], Ok(()));
}

#[test]
fn a_commit_or_content_that_changes_midway_is_noticed() {
    let headers =
        |name: &'static str, value: &str| Misdeed::Headers(vec![(name, value.to_owned())]);
    let weights = Asked::File(WEIGHTS);
    let other = "a".repeat(64);
    for misdeed in [
        headers("X-Repo-Commit", &"d".repeat(40)),
        headers("X-Linked-ETag", &format!("\"{other}\"")),
        headers("X-Linked-ETag", "../../../../ESCAPED"),
    ] {
        check(vec![Fault::always(weights.clone(), misdeed)], Err("changed on the hub"));
    }
    // An ETag is no path: whatever it says, the blob has the name of its content.
    let escape = headers("ETag", "\"../../../../ESCAPED\"");
    check(vec![Fault::always(BYTES, escape), Fault::once(BYTES, Misdeed::CutAfter(9))], Ok(()));

    // A push between plan and download: the plan's commit is what comes, or nothing.
    let setting = Setting::new();
    let hub = cairn_hub::Hub::new(setting.options()).unwrap();
    let plan = setting.plan().unwrap();
    let mut pushed = FakeRepo::model(MODEL, 1234);
    pushed.commit = "feed0000".repeat(5);
    setting.hub.change(|repos| repos[0] = pushed.clone());
    let progress = tokio::sync::watch::Sender::default();
    let refused = setting.runtime.block_on(hub.download(&plan, &progress)).unwrap_err();
    assert!(matches!(refused, DownloadError::FileGone { .. }), "{refused}");
    setting.check_nothing_visible();
    setting.download().unwrap();
    setting.check_whole(&pushed);
}

#[test]
fn redirects_are_followed_where_they_may_lead() {
    let to = |address: &str| Misdeed::Redirect(address.to_owned());
    check(vec![Fault::once(Asked::Info, to("/api/models/owner/name/revision/main"))], Ok(()));
    check(
        vec![Fault::always(Asked::Info, to("/api/models/owner/name/revision/main"))],
        Err("in circles"),
    );
    for address in ["file:///etc/passwd", "ftp://127.0.0.1/x", "", "http://"] {
        check(vec![Fault::always(BYTES, to(address))], Err("cannot be right"));
    }
}

#[test]
fn connections_that_end_or_stop_are_made_again() {
    for asked in [Asked::Info, Asked::Tree, Asked::File("config.json"), BYTES] {
        check(vec![Fault::once(asked.clone(), Misdeed::CutBeforeAnswer)], Ok(()));
        check(vec![Fault::always(asked.clone(), Misdeed::CutBeforeAnswer)], Err("again and again"));
        check(vec![Fault::once(asked.clone(), Misdeed::CutAfter(1))], Ok(()));
    }
    check(vec![Fault::always(BYTES, Misdeed::CutAfter(0))], Err("again and again"));
}

#[test]
fn a_body_that_stops_or_drips_is_asked_for_again() {
    let setting = Setting::new();
    let mut options = setting.options();
    options.limits.stall_timeout = Duration::from_millis(300);
    options.limits.tries = 3;
    for misdeed in [Misdeed::StallAfter(0), Misdeed::Drip(Duration::from_millis(30))] {
        setting.hub.add_fault(Fault::always(BYTES, misdeed));
        let refused = setting.download_with(options.clone()).unwrap_err();
        assert!(matches!(refused, DownloadError::Stalled { .. }), "{refused}");
        setting.check_nothing_visible();
        setting.hub.clear_faults();
    }
    setting.hub.add_fault(Fault::once(BYTES, Misdeed::StallAfter(1000)));
    options.limits.tries = 30;
    setting.download_with(options).unwrap();
    setting.check_whole(&FakeRepo::model(MODEL, WEIGHT_BYTES));
}

#[test]
fn lists_with_hostile_names_hashes_or_lengths_are_refused() {
    let sha1 = "a".repeat(40);
    let entry = |path: &str| json!({ "type": "file", "path": path, "oid": sha1, "size": 3 });
    let check = |entry: serde_json::Value| {
        let mut repo = FakeRepo::model(MODEL, 5000);
        repo.more_entries.push(entry.clone());
        let setting = Setting::with(repo);
        let refused = setting.download().unwrap_err();
        assert!(
            matches!(
                refused,
                DownloadError::HostileListing { .. } | DownloadError::UnexpectedAnswer { .. }
            ),
            "{entry}: {refused}"
        );
        assert!(!setting.cache().exists(), "{entry}: nothing is written for a refused list");
    };
    for path in ["../x.json", "a/../../x.json", "/etc/x.json", "C:\\x.json", "x\n.json", "", "."]
        .into_iter()
        .chain(["a//b.json", "C:x.json", "model:1.safetensors", "Config.json", "config.json"])
    {
        check(entry(path));
    }
    check(json!({ "type": "file", "path": "x.json", "oid": "../../../x", "size": 3 }));
    check(json!({ "type": "file", "path": "x.json", "oid": sha1, "size": -3 }));
    let lfs = json!({ "oid": sha1, "size": 3 });
    check(json!({ "type": "file", "path": "x.json", "oid": sha1, "size": 3, "lfs": lfs }));
    let lfs = json!({ "oid": "b".repeat(64), "size": u64::MAX });
    check(json!({ "type": "file", "path": "x.json", "oid": sha1, "size": 3, "lfs": lfs }));
    check(json!({ "type": "file" }));
}

#[test]
fn a_length_in_the_list_that_is_not_the_files_is_refused() {
    for listed in [0, 1, 4999, 5001, 1 << 20] {
        let mut repo = FakeRepo::model(MODEL, 5000);
        repo.files.iter_mut().find(|file| file.path == WEIGHTS).unwrap().listed_bytes = listed;
        let setting = Setting::with(repo);
        let refused = setting.download().unwrap_err();
        assert!(
            matches!(
                refused,
                DownloadError::UnexpectedAnswer { .. } | DownloadError::Corrupt { .. }
            ),
            "{listed}: {refused}"
        );
        setting.check_nothing_visible();
    }
}

#[test]
fn a_list_that_goes_on_at_another_host_is_refused() {
    let link = "<http://127.0.0.2:1/api/next>; rel=\"next\"".to_owned();
    let misdeed = Misdeed::Headers(vec![("Link", link)]);
    check(vec![Fault::always(Asked::Tree, misdeed)], Err("goes on at another host"));
}

#[test]
fn a_list_without_end_is_refused() {
    let mut repo = FakeRepo { page_length: 60_000, ..FakeRepo::model(MODEL, 5000) };
    repo.files.extend((0..100_001).map(|index| {
        let content = cairn_fake_hub::Content::MadeUp { length: 0 };
        let (path, hash) = (format!("{index}.bin"), "a".repeat(40));
        FakeFile { path, content, is_lfs: false, hash, listed_bytes: 0 }
    }));
    let setting = Setting::with(repo);
    let refused = setting.download().unwrap_err();
    assert!(refused.to_string().contains("without end"), "{refused}");
}

#[test]
fn nobody_at_the_address_means_offline() {
    let setting = Setting::new();
    let refused = setting.download_with(options(NOBODY, &setting.cache())).unwrap_err();
    assert!(matches!(refused, DownloadError::Offline { .. }), "{refused}");
    let options = options("https://cairn.invalid", &setting.cache());
    let refused = setting.download_with(options).unwrap_err();
    let is_clear = matches!(refused, DownloadError::Offline { .. } | DownloadError::NoTls { .. });
    assert!(is_clear, "{refused}");
}
