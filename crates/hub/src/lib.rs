//! Models: lists, checks, downloads, imports and deletes them.
//!
//! Imported models are in the data folder. Downloaded ones are in the cache that Hugging Face's
//! tools share, so that mlx-lm finds Cairn's models and Cairn finds mlx-lm's. LM Studio's folder and
//! folders that a person adds are read and never changed.
//!
//! - [`ModelFolders`] knows the models on this machine. [`ModelFolders::list`] returns every folder
//!   as a [`ModelFolder`], with the [`ModelProblem`] of one that cannot be loaded;
//!   [`ModelFolders::resolve`] turns a path or a name into the folder to load;
//!   [`ModelFolders::import_folder`] copies one, [`ModelFolders::delete`] deletes one.
//!   [`ModelFolders::old_revisions`] says what of a model no branch names any more.
//! - [`FilesIdentity`] says whether a model's files are still those that were checked.
//! - [`Hub`] asks a hub: [`Hub::search_models`] finds models, [`Hub::text_file`] reads what one says
//!   about itself ([`plain_description`] takes the text out of it), [`Hub::plan`] says what a download
//!   will fetch, and [`Hub::download`] fetches it. Every file is counted and hashed before it can be
//!   seen, and whatever interrupts a download, the next one continues.
//!   `docs/decisions/0009-model-downloads.md` has the states of a file, the files on disk and what
//!   happens on each failure.
//! - [`Downloads`] is a queue of downloads that can be paused, resumed and cancelled; [`Rate`] says
//!   how fast one is.
//!
//! ```text
//! ModelFolders ──┬── $CAIRN_HOME/models/<name>                         imported
//!                ├── ~/.lmstudio/models/<owner>/<name>                 LM Studio's
//!                ├── any folder that was added                         read like LM Studio's
//!                └── hub/models--<owner>--<name>/snapshots/<commit>    downloaded, shared with mlx-lm
//!                                   ▲
//! Hub ── plan ── download ── files ─┘   hub_api/ ◀── download/ ──▶ cache_layout/
//! ```
//!
//! # Example
//!
//! ```
//! use cairn_hub::{CacheVariables, Hub, HubOptions, ModelFolders};
//!
//! let home = tempfile::tempdir()?;
//! let variables = CacheVariables::from_lookup(|_| None);
//! let folders = ModelFolders::new(home.path(), &variables);
//! assert!(folders.resolve("owner/a-model-that-is-not-here").is_err());
//!
//! let hub = Hub::new(HubOptions::new(home.path().join("hub")))?;
//! let progress = tokio::sync::watch::Sender::default();
//! let download = async {
//!     let plan = hub.plan(&"owner/name".parse()?, &"main".parse()?).await?;
//!     println!("{} files, {} bytes", plan.files.len(), plan.bytes_missing);
//!     hub.download(&plan, &progress).await
//! };
//! # drop(download);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`starter`] names the model that the set-up fetches.

mod cache_layout;
mod delete_model;
mod description;
mod download;
mod error;
mod files_identity;
mod hub_api;
mod import_folder;
mod model_folders;
mod revisions;
pub mod starter;
mod unique_name;

pub use cache_layout::{CacheVariables, check_cache_folder};
pub use delete_model::ModelDeletion;
pub use description::plain_description;
pub use download::{
    DownloadId, DownloadPlan, DownloadProgress, DownloadRequest, DownloadState, DownloadedModel,
    Downloads, FileProgress, FileState, QueuedDownload, Rate, is_model_file,
};
pub use error::HubError;
pub use files_identity::FilesIdentity;
pub use hub_api::{
    Commit, ContentHash, DEFAULT_ENDPOINT, DownloadError, FoundModel, Hub, HubLimits, HubOptions,
    ModelPage, RepoFile, RepoId, Revision, SearchQuery, Token, origin,
};
pub use import_folder::ImportedModel;
pub use model_folders::{ModelFolder, ModelFolders, ModelProblem, ModelProblemKind, ModelSource};
pub use revisions::{DownloadedCommit, OldRevisions};
