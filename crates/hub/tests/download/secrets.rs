//! The access token reaches the hub and nobody else: no other host, file, error or log record.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use cairn_fake_hub::{Asked, FakeHub, FakeRepo, Fault, Misdeed, Side};
use cairn_hub::{Hub, HubOptions, Token};
use tracing_subscriber::fmt::MakeWriter;

use crate::support::{MODEL, Setting, WEIGHTS, options};

const CANARY: &str = "hf_canaryTokenThatMustNotLeak";
const SIGNATURE: &str = "secret-signature";

/// Everything that is logged, at the most talkative level.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;

    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

fn with_token(options: HubOptions) -> HubOptions {
    HubOptions { token: Some(Token::new(CANARY).unwrap()), ..options }
}

#[test]
fn the_token_is_in_no_file_error_or_log() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter("trace")
        .with_writer(log.clone())
        .with_ansi(false)
        .finish();
    // Of all threads: this is the only test in the program that looks at the log.
    tracing::subscriber::set_global_default(subscriber).unwrap();

    let repo = FakeRepo { token: Some(CANARY.to_owned()), ..FakeRepo::model(MODEL, 5000) };
    let setting = Setting::with(repo.clone());
    let options = with_token(setting.options());
    let mut said = format!("{options:?} {:?}", Hub::new(options.clone()).unwrap());
    let mut num_cases = 0;
    for misdeed in [
        Misdeed::Status(403, Vec::new()),
        Misdeed::Status(500, Vec::new()),
        Misdeed::CutBeforeAnswer,
        Misdeed::Redirect("ftp://x/?signature=secret-signature".to_owned()),
        Misdeed::Instead("text/html", CANARY.as_bytes().to_vec()),
    ] {
        for asked in [Asked::Info, Asked::File("config.json"), Asked::Bytes(WEIGHTS)] {
            setting.hub.add_fault(Fault::always(asked, misdeed.clone()));
            // What an earlier case has fetched must not spare this one the request.
            num_cases += 1;
            let cache = setting.folder.path().join(num_cases.to_string());
            let options = HubOptions { cache, ..options.clone() };
            let error = setting.download_with(options).unwrap_err();
            said += &format!("{error} {error:?}");
            setting.hub.clear_faults();
        }
    }
    let model = setting.download_with(options).unwrap();
    setting.check_whole(&repo);
    said += &format!("{model:?}");
    said += &String::from_utf8_lossy(&log.0.lock().unwrap());
    assert!(said.contains("127.0.0.1"), "the log was written");
    assert!(!said.contains(CANARY) && !said.contains(SIGNATURE));
    check_files(setting.folder.path());
}

fn check_files(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        assert!(!path.to_string_lossy().contains(CANARY));
        if path.is_dir() {
            check_files(&path);
        } else if let Ok(bytes) = fs::read(&path) {
            let is_there =
                |text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
            assert!(!is_there(CANARY) && !is_there(SIGNATURE), "{}", path.display());
        }
    }
}

#[test]
fn the_token_goes_to_the_hub_and_to_no_other_host() {
    let repo = FakeRepo { token: Some(CANARY.to_owned()), ..FakeRepo::model(MODEL, 5000) };
    let setting = Setting::with(repo);
    let elsewhere = FakeHub::start(vec![FakeRepo::model(MODEL, 5000)]);
    setting.download_with(with_token(setting.options())).unwrap();
    for asked in setting.hub.requests() {
        let token = asked.header("authorization");
        let expected = format!("Bearer {CANARY}");
        let expected = (asked.side == Side::Hub).then_some(expected.as_str());
        assert_eq!(token, expected, "{}", asked.target);
        assert!(!asked.target.contains(CANARY));
    }

    // A redirect to another host, and from there back to the hub: both without it.
    let address = format!("{}/api/models/{MODEL}/revision/main", elsewhere.endpoint());
    setting.hub.add_fault(Fault::always(Asked::Info, Misdeed::Redirect(address)));
    let back = format!("{}/api/models/{MODEL}/revision/main", setting.hub.endpoint());
    elsewhere.add_fault(Fault::always(Asked::Info, Misdeed::Redirect(back)));
    setting.hub.forget_requests();
    let mut options = with_token(setting.options());
    options.limits.tries = 1;
    setting.download_with(options).unwrap_err();
    assert!(elsewhere.requests().iter().all(|asked| asked.header("authorization").is_none()));
    let tokens = setting.hub.requests();
    let tokens: Vec<bool> =
        tokens.iter().map(|asked| asked.header("authorization").is_some()).collect();
    assert_eq!(tokens, [true, false, false]);
}

#[test]
fn a_wrong_token_and_none_are_told_apart() {
    let repo = FakeRepo { token: Some("hf_right".to_owned()), ..FakeRepo::model(MODEL, 5000) };
    let setting = Setting::with(repo);
    let none = setting.download_with(options(&setting.hub.endpoint(), &setting.cache()));
    assert!(none.unwrap_err().to_string().contains("set an access token"));
    let wrong = setting.download_with(with_token(setting.options())).unwrap_err();
    assert!(wrong.to_string().contains("is not valid"), "{wrong}");
    let gated = FakeRepo { is_gated: true, ..FakeRepo::model(MODEL, 5000) };
    let setting = Setting::with(gated);
    let refused = setting.download().unwrap_err().to_string();
    let page = format!("{}/{MODEL}", setting.hub.endpoint());
    assert!(refused.contains(&page), "{refused}");
}
