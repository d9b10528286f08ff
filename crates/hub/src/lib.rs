//! Model folders on this machine: lists and checks them, finds one by its name, and imports others.
//!
//! Imported models are in the data folder. Downloaded ones are in the cache that Hugging Face's
//! tools share, so that mlx-lm finds Cairn's models and Cairn finds mlx-lm's. [`ModelFolders`]
//! searches both:
//!
//! - [`ModelFolders::list`] returns every folder as a [`ModelFolder`], with the [`ModelProblem`] of
//!   one that cannot be loaded.
//! - [`ModelFolders::resolve`] turns a path or a name into the folder to load.
//! - [`ModelFolders::import_folder`] copies a model folder into the data folder, and
//!   [`ModelFolders::remove_leftovers`] removes the unfinished copies of earlier processes. Nothing
//!   else here changes the disk.
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
