//! Wire types of documents: files that stand before a question, as text.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::failures::FailureKind;

/// What a document was made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum DocumentKind {
    Text,
    /// Source code, and data in a form for programs.
    Code,
    Markdown,
    Csv,
    /// A web page; its text.
    Html,
    /// A PDF; its text.
    Pdf,
}

/// A document that is to be attached: the interface makes the text of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct NewDocument {
    pub name: String,
    pub kind: DocumentKind,
    pub text: String,
}

/// A document without its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct Document {
    pub id: String,
    pub name: String,
    pub kind: DocumentKind,
    /// The length of its text.
    #[ts(type = "number")]
    pub num_bytes: u64,
    /// Tokens that it adds to a prompt, the marks around it included; none if not counted yet.
    pub tokens: Option<u32>,
    /// The name of the model that counted `tokens`; none if not counted yet.
    pub counted_by: Option<String>,
}

/// What has documents.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum DocumentsOf {
    /// A conversation: its next message.
    Conversation { id: String },
    /// A folder: the conversations that are begun in it.
    Folder { id: String },
}

impl DocumentsOf {
    pub fn conversation(id: &str) -> DocumentsOf {
        DocumentsOf::Conversation { id: id.to_owned() }
    }

    pub fn folder(id: &str) -> DocumentsOf {
        DocumentsOf::Folder { id: id.to_owned() }
    }
}

/// What the next message of a conversation will be sent with, or what the conversations of a folder
/// begin with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct AttachedDocuments {
    pub of: DocumentsOf,
    /// Of a conversation: what it begins with, as its folder had it when its first question was asked;
    /// before that, what its folder has now.
    pub beginning: Vec<Document>,
    /// In the order in which they stand in the prompt.
    pub documents: Vec<Document>,
    pub reading: DocumentReading,
}

/// How far documents have been read before there is a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum DocumentReading {
    /// Nobody has begun since the app was started, or it was stopped.
    Unread,
    /// It waits for an answer to end, for a model, or for the tokens to be counted.
    Waiting,
    /// The prompt up to their end is being read; what was saved of it counts as read. Its last
    /// `document_tokens` are the documents.
    Reading { processed_tokens: u32, total_tokens: u32, cached_tokens: u32, document_tokens: u32 },
    /// The next question continues from their end, with the model of this name. `tokens` are of the
    /// prompt up to there; its last `document_tokens` are the documents.
    Read { tokens: u32, document_tokens: u32, model: String },
    /// They cannot be read ahead in this conversation, and are read with the question.
    WithQuestion,
    /// The prompt up to their end is longer than the context of the model of this name.
    TooLong { exceeds_by: u32, model: String },
    Failed {
        why: String,
        /// What `why` says.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[ts(optional)]
        kind: Option<Box<FailureKind>>,
    },
}
