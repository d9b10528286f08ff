//! A fake hub, an empty cache, and what must hold of the cache at any time.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cairn_fake_hub::{Content, FakeFile, FakeHub, FakeRepo, Request, Side};
use cairn_hub::{
    DownloadError, DownloadPlan, DownloadProgress, DownloadedModel, Hub, HubLimits, HubOptions,
    RepoId, Revision, is_model_file,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// The model that most tests download.
pub const MODEL: &str = "owner/name";
pub const WEIGHTS: &str = "model.safetensors";
/// Its weights: long enough for many chunks, short enough to be downloaded a hundred times.
pub const WEIGHT_BYTES: u64 = 300_007;

/// A fake hub and a cache that begins empty.
pub struct Setting {
    pub hub: FakeHub,
    pub folder: TempDir,
    pub runtime: Runtime,
}

impl Setting {
    pub fn new() -> Setting {
        Setting::with(FakeRepo::model(MODEL, WEIGHT_BYTES))
    }

    pub fn with(repo: FakeRepo) -> Setting {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let hub = FakeHub::start(vec![repo]);
        Setting { hub, folder: tempfile::tempdir().unwrap(), runtime }
    }

    pub fn cache(&self) -> PathBuf {
        self.folder.path().join("hub")
    }

    pub fn repo_folder(&self) -> PathBuf {
        self.cache().join("models--owner--name")
    }

    pub fn blob(&self, file: &FakeFile) -> PathBuf {
        self.repo_folder().join("blobs").join(&file.hash)
    }

    pub fn partial(&self, file: &FakeFile) -> PathBuf {
        self.repo_folder().join("blobs").join(format!("{}.cairn.incomplete", file.hash))
    }

    /// For this hub and cache, with waits that cost a test nothing.
    pub fn options(&self) -> HubOptions {
        options(&self.hub.endpoint(), &self.cache())
    }

    pub fn plan(&self) -> Result<DownloadPlan, DownloadError> {
        self.plan_of("main")
    }

    pub fn plan_of(&self, revision: &str) -> Result<DownloadPlan, DownloadError> {
        let hub = Hub::new(self.options())?;
        let (repo, revision): (RepoId, Revision) = (MODEL.parse()?, revision.parse()?);
        self.runtime.block_on(hub.plan(&repo, &revision))
    }

    pub fn download(&self) -> Result<DownloadedModel, DownloadError> {
        self.download_with(self.options())
    }

    pub fn download_with(&self, options: HubOptions) -> Result<DownloadedModel, DownloadError> {
        self.runtime.block_on(download(options))
    }

    /// Where each request for the weights' bytes began.
    pub fn weight_starts(&self) -> Vec<u64> {
        let start = |asked: &Request| {
            let range = asked.header("range")?;
            range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
        };
        let requests = self.hub.requests();
        let bytes = requests.iter().filter(|asked| asked.side == Side::Bytes);
        bytes.map(|asked| start(asked).unwrap_or(0)).collect()
    }

    /// The snapshot of the repository as it is now: every file right, and the ref on it.
    pub fn check_whole(&self, repo: &FakeRepo) {
        let snapshot = self.repo_folder().join("snapshots").join(&repo.commit);
        let main = fs::read_to_string(self.repo_folder().join("refs/main")).unwrap();
        assert_eq!(main, repo.commit);
        for file in &repo.files {
            let path = snapshot.join(&file.path);
            if is_model_file(&file.path) {
                let found = fs::read(&path).unwrap();
                assert_eq!(found.len() as u64, file.content.length(), "{}", file.path);
                assert!(found == file.content.bytes(), "{} is damaged", file.path);
            } else {
                assert!(!path.exists(), "{} was not wanted", file.path);
            }
        }
    }

    /// No snapshot, no ref; and a blob only with the content that its name says.
    pub fn check_nothing_visible(&self) {
        assert!(names(&self.repo_folder().join("snapshots")).is_empty());
        assert!(names(&self.repo_folder().join("refs")).is_empty());
        self.check_blobs();
    }

    /// Every blob has the content that its name says.
    pub fn check_blobs(&self) {
        for name in names(&self.repo_folder().join("blobs")) {
            if name.ends_with(".cairn.incomplete") {
                continue;
            }
            let bytes = fs::read(self.repo_folder().join("blobs").join(&name)).unwrap();
            let content = Content::Given(bytes.into());
            let hash = if name.len() == 64 { content.sha256() } else { content.git_sha1() };
            assert_eq!(name, hash, "a blob that is not what its name says");
        }
    }
}

pub async fn download(options: HubOptions) -> Result<DownloadedModel, DownloadError> {
    let hub = Hub::new(options)?;
    let plan = hub.plan(&MODEL.parse()?, &Revision::default()).await?;
    let (progress, watched) = watch::channel(DownloadProgress::default());
    let model = hub.download(&plan, &progress).await?;
    assert_eq!(watched.borrow().bytes(), plan.bytes);
    Ok(model)
}

/// An address at which nobody answers. The port of a hub that has ended would soon be that of another
/// test's hub; the system gives away only ports far above this one.
pub const NOBODY: &str = "http://127.0.0.1:9";

pub fn options(endpoint: &str, cache: &Path) -> HubOptions {
    let limits = HubLimits {
        connect_timeout: Duration::from_secs(20),
        answer_timeout: Duration::from_secs(20),
        stall_timeout: Duration::from_secs(20),
        first_wait: Duration::from_millis(1),
        longest_wait: Duration::from_millis(1),
        longest_server_wait: Duration::from_secs(5),
        reserve_bytes: 0,
        ..HubLimits::default()
    };
    HubOptions { endpoint: endpoint.to_owned(), limits, ..HubOptions::new(cache.to_owned()) }
}

/// The names in a folder; none if there is no such folder.
pub fn names(folder: &Path) -> BTreeSet<String> {
    let Ok(entries) = fs::read_dir(folder) else { return BTreeSet::new() };
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Pseudo-random numbers that a seed decides.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed_cafe)
    }

    /// Below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
