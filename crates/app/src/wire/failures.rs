//! What goes wrong often, in a form that the interface says in its own language.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

/// What failed, where that is common. The interface has a sentence for each kind; what is rarer has the
/// core's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FailureKind {
    /// There is no model to answer with.
    NoModel,
    /// A model that is named is not loaded.
    NotLoaded { model: String },
    /// Something needs more memory than there may be.
    NotEnoughMemory {
        what: MemoryUser,
        #[ts(type = "number")]
        needed_bytes: u64,
        #[ts(type = "number")]
        free_bytes: u64,
        /// What all models and answers may take.
        #[ts(type = "number")]
        limit_bytes: u64,
        /// The models in use, which would have to go.
        in_use: Vec<String>,
        /// The pinned models that are not in use.
        pinned: Vec<String>,
    },
    /// The load of a model was cancelled.
    LoadCancelled { model: String },
    /// The prompt is longer than what the model can read.
    ContextFull {
        #[ts(type = "number")]
        tokens: u64,
        #[ts(type = "number")]
        context_length: u64,
    },
    /// Another answer failed, and this one with it.
    Interrupted,
    /// A fault in the engine.
    EngineFault,
    /// Cairn is closing.
    Closing,
    /// The hub cannot be reached.
    Offline { host: String, reason: String },
    /// The hub asks to be left alone for a while.
    TooManyRequests {
        host: String,
        /// After how long it can be asked again.
        #[ts(type = "number")]
        seconds: u64,
    },
    /// The disk is full.
    DiskFull,
    /// The disk has no room for a model.
    NoRoomForModel {
        /// Where models go.
        folder: String,
        #[ts(type = "number")]
        needed_bytes: u64,
        #[ts(type = "number")]
        free_bytes: u64,
    },
    /// A file or folder cannot be written.
    NotWritable { path: String },
    /// A file cannot be read.
    NotReadable { name: String },
    /// A file is not one of chats.
    NoChats { name: String },
    /// The chat is still being answered.
    StillAnswering,
    /// What a command is about does not exist, or no longer.
    Gone { what: Gone },
    /// A name is taken already.
    NameTaken { name: String },
    /// A name or title has no letters.
    NoName,
    /// A message has no text.
    EmptyMessage,
    /// Nothing of a chat is saved yet.
    NothingSaved,
}

/// What needs memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum MemoryUser {
    /// The model of this name.
    Model(String),
    Answer,
    /// Several texts that are read at once.
    Texts,
}

/// What no longer exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum Gone {
    Chat,
    Message,
    Deletion,
    Document,
    StartingPoint,
    Folder,
    Preset,
    Persona,
    Key,
    Job,
}
