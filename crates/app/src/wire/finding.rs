//! Wire types of search, of folders, and of chats as files.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::chat::Role;
use super::documents::Document;

/// A conversation with the words of a search in its messages, or in a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct FoundMessage {
    pub conversation_id: String,
    /// The message that fits best.
    pub message_id: String,
    pub role: Role,
    #[ts(type = "number")]
    pub created_at_ms: i64,
    /// How many messages of the conversation have the words.
    pub num_messages: u32,
    /// A part of the message or of the document; empty if the words are in the document's name.
    pub excerpt: Vec<ExcerptPiece>,
    /// The document that has the words; the message is the one that it stands before.
    pub document: Option<FoundDocument>,
}

/// A document with the words of a search.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct FoundDocument {
    pub document: Document,
    /// Where the words stand in its text, in UTF-16 code units; none: they are in its name.
    pub at_utf16: Option<u32>,
}

/// A piece of an excerpt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct ExcerptPiece {
    pub text: String,
    /// It is what was searched for.
    pub is_match: bool,
}

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

/// The form of a file of chats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum ChatFileFormat {
    /// Everything, to be taken in again.
    Json,
    /// To be read.
    Markdown,
    /// A line of JSON for each chat, with messages as OpenAI's API takes them.
    Openai,
}

/// What became of a file of chats.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct ChatsImported {
    /// Chats that are new.
    pub num_added: u32,
    /// Their ids, in the order of the file.
    pub added_ids: Vec<String>,
    /// Chats that are here, with all their messages.
    pub num_here: u32,
    /// Chats that are here and went on elsewhere: their new messages are in the same trees now.
    pub num_extended: u32,
    /// How many messages these are.
    pub num_new_messages: u32,
    /// Chats that could not be imported.
    pub num_refused: u32,
    /// The first 20 of these.
    pub refused: Vec<RefusedChat>,
    /// Why the file could not be read to its end.
    pub problem: Option<String>,
    /// The first chat that is new or has new messages.
    pub first_id: Option<String>,
}

/// A chat of a file that could not be imported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct RefusedChat {
    /// Its place among the chats of the file: 1 is the first.
    pub number: u32,
    /// Empty where it has none.
    pub title: String,
    /// A sentence.
    pub why: String,
}
