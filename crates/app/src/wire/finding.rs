//! Wire types of folders.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

/// A folder of conversations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct Folder {
    pub id: String,
    pub name: String,
    /// What conversations that are begun in it begin with; empty when there is none.
    pub system_prompt: String,
    /// The model of conversations that are begun in it; none: the one that is loaded.
    pub model: Option<String>,
}
