//! The cache that Hugging Face's tools share, as folders and files.
//!
//! ```text
//! <cache>/
//!   .locks/models--owner--name/<hash>.lock     held while that blob is made, also by other tools
//!   models--owner--name/
//!     blobs/<hash>                             a verified file, named by its content
//!     blobs/<hash>.cairn.incomplete            ours: its beginning
//!     snapshots/<commit>/<path>                the files of a commit, links into blobs/
//!     refs/<revision>                          the commit of a branch at the last download
//! ```

mod digest;
mod location;
mod lock;
mod partial;
mod repo_folder;
mod snapshot;

pub(crate) use digest::Digest;
pub use location::{CacheVariables, check_cache_folder};
pub(crate) use location::{MAX_REF_BYTES, main_snapshot, model_name};
pub(crate) use lock::BlobLock;
pub(crate) use partial::{Partial, blob_is_right};
pub(crate) use repo_folder::RepoFolder;
pub(crate) use snapshot::PREFIX as UNFINISHED_PREFIX;
