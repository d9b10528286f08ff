//! Model folders on this machine: where they lie, what is wrong with them, and which one a name
//! means.
//!
//! Models come from two places. Imported ones lie in the data folder; downloaded ones lie in the
//! cache that Hugging Face's tools share, so that mlx-lm sees Cairn's models and Cairn sees
//! mlx-lm's. [`ModelFolders`] looks into both:
//!
//! - [`ModelFolders::list`] gives every folder as a [`ModelFolder`]; what keeps one from being
//!   loaded is its [`ModelProblem`].
//! - [`ModelFolders::resolve`] turns what a person typed, a path or a name, into the folder to
//!   load.
//! - [`ModelFolders::import_folder`] copies a model folder into the data folder; nothing else here
//!   changes the disk.
//!
//! ```text
//! ModelFolders ──┬── $CAIRN_HOME/models/<name>                         imported
//!                └── hub/models--<owner>--<name>/snapshots/<revision>  downloaded, shared with mlx-lm
//! ```
//!
//! # Example
//!
//! ```
//! use cairn_hub::{CacheVariables, ModelFolders};
//!
//! let home = tempfile::tempdir().unwrap();
//! let variables = CacheVariables::from_lookup(|_| None);
//! let folders = ModelFolders::new(home.path(), &variables);
//! assert!(folders.resolve("owner/a-model-that-is-not-here").is_err());
//! ```
//!
//! [`starter`] names the model that the set-up fetches.

mod error;
mod hub_cache;
mod import_folder;
mod model_folders;
pub mod starter;

pub use error::HubError;
pub use hub_cache::CacheVariables;
pub use model_folders::{MAX_CONFIG_BYTES, ModelFolder, ModelFolders, ModelProblem};
