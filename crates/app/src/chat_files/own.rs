//! Cairn's own form: everything of a conversation but token ids and saved context.

use std::collections::HashMap;

use cairn_chat::{GenerationStats, Role};
use cairn_store::{
    Conversation, DocumentKind, ImportedConversation, ImportedMessage, Message, MessageStatus,
    NewDocument,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::chat::segments::AnswerSegment;
use crate::settings::{SettingOverrides, SettingScope};

/// What a file says that it is.
pub(crate) const FORMAT: &str = "cairn-chats";
/// The version that is written; a file of a later one is refused.
pub(crate) const VERSION: u64 = 1;

/// A conversation in a file. What a file leaves out has its default.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Chat {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    title: String,
    #[serde(default)]
    system_prompt: String,
    #[serde(default)]
    created_at_ms: i64,
    #[serde(default)]
    updated_at_ms: i64,
    #[serde(default)]
    is_pinned: bool,
    #[serde(default)]
    is_archived: bool,
    /// The name of its folder.
    #[serde(default)]
    folder: Option<String>,
    #[serde(default)]
    settings: Option<Map<String, Value>>,
    /// The starting point that it begins with, which is not in the file.
    #[serde(default)]
    starting_point: Option<StartingPoint>,
    /// The end of the branch on screen.
    #[serde(default)]
    leaf_message_id: Option<String>,
    messages: Vec<ChatMessage>,
}

#[derive(Debug, Serialize, Deserialize)]
struct StartingPoint {
    name: String,
    tokens: i64,
    start_text: String,
    end_text: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct ChatMessage {
    id: String,
    #[serde(default)]
    parent_id: Option<String>,
    role: String,
    #[serde(default)]
    status: Option<String>,
    text: String,
    #[serde(default)]
    segments: Option<Vec<AnswerSegment>>,
    /// What stands before a question.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    documents: Vec<ChatDocument>,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    stats: Option<Value>,
    #[serde(default)]
    created_at_ms: i64,
}

#[derive(Debug, Serialize, Deserialize)]
struct ChatDocument {
    name: String,
    #[serde(default)]
    kind: String,
    text: String,
}

impl Chat {
    /// A conversation as it is written.
    pub(crate) fn of(
        row: Conversation,
        settings: Option<&str>,
        folder: Option<String>,
        tree: Vec<Message>,
        mut documents: HashMap<String, Vec<NewDocument>>,
    ) -> Chat {
        let message = |row: Message| {
            let documents = documents.remove(&row.id).unwrap_or_default();
            ChatMessage::of(row, documents)
        };
        Chat {
            id: Some(row.id),
            title: row.title,
            system_prompt: row.system_prompt,
            created_at_ms: row.created_at_ms,
            updated_at_ms: row.updated_at_ms,
            is_pinned: row.is_pinned,
            is_archived: row.archived_at_ms.is_some(),
            folder,
            settings: settings.and_then(|settings| serde_json::from_str(settings).ok()),
            starting_point: row.prefix.map(|prefix| StartingPoint {
                name: prefix.name,
                tokens: prefix.num_tokens,
                start_text: prefix.start_text,
                end_text: prefix.end_text,
            }),
            leaf_message_id: row.leaf_message_id,
            messages: tree.into_iter().map(message).collect(),
        }
    }

    /// The conversation that a value of a file is, or why it is none.
    pub(crate) fn read(value: Value) -> Result<ImportedConversation, String> {
        let chat: Chat = serde_json::from_value(value)
            .map_err(|error| format!("it is not as Cairn writes it ({error})"))?;
        let mut places: HashMap<String, usize> = HashMap::new();
        let mut messages = Vec::with_capacity(chat.messages.len());
        for (index, message) in chat.messages.into_iter().enumerate() {
            let id = message.id.clone();
            let parent = match &message.parent_id {
                Some(parent) => Some(*places.get(parent).ok_or_else(|| {
                    "a message follows one that does not stand before it".to_owned()
                })?),
                None => None,
            };
            messages.push(message.read(parent)?);
            places.insert(id, index);
        }
        let settings = chat
            .settings
            .map(|settings| SettingOverrides::of_values(SettingScope::Chat, settings).to_json());
        Ok(ImportedConversation {
            origin: format!("cairn:{}:{}", chat.id.as_deref().unwrap_or("-"), chat.updated_at_ms),
            id: chat.id,
            title: chat.title,
            system_prompt: chat.system_prompt,
            settings: settings.flatten(),
            created_at_ms: chat.created_at_ms,
            updated_at_ms: chat.updated_at_ms,
            is_pinned: chat.is_pinned,
            is_archived: chat.is_archived,
            folder: chat.folder,
            leaf: chat.leaf_message_id.and_then(|leaf| places.get(&leaf).copied()),
            messages,
        })
    }
}

impl ChatMessage {
    fn of(row: Message, documents: Vec<NewDocument>) -> ChatMessage {
        let status = match row.status {
            // What it has so far; an answer in a file is not written any more.
            MessageStatus::Streaming => MessageStatus::Interrupted,
            ended => ended,
        };
        let segments = row.segments.as_deref();
        ChatMessage {
            id: row.id,
            parent_id: row.parent_id,
            role: row.role.as_str().to_owned(),
            status: Some(status.as_str().to_owned()),
            segments: segments.map(|segments| AnswerSegment::stored(Some(segments), &row.text)),
            text: row.text,
            documents: documents.into_iter().map(ChatDocument::of).collect(),
            error: row.error,
            // Plain numbers and texts always serialize.
            stats: row.stats.and_then(|stats| serde_json::to_value(stats).ok()),
            created_at_ms: row.created_at_ms,
        }
    }

    fn read(self, parent: Option<usize>) -> Result<ImportedMessage, String> {
        let roles = [Role::System, Role::User, Role::Assistant];
        let role = roles.into_iter().find(|role| role.as_str() == self.role);
        let role = role.ok_or_else(|| format!("a message is of “{}”", self.role))?;
        use MessageStatus::{Complete, Failed, Interrupted, Stopped};
        let status = match self.status.as_deref() {
            None => Complete,
            Some(name) => [Complete, Stopped, Interrupted, Failed]
                .into_iter()
                .find(|status| status.as_str() == name)
                .unwrap_or(Interrupted),
        };
        let segments = self.segments.map(|segments| serde_json::to_string(&segments));
        Ok(ImportedMessage {
            id: Some(self.id),
            parent,
            role,
            status,
            text: self.text,
            segments: segments.and_then(Result::ok),
            documents: self.documents.into_iter().map(ChatDocument::read).collect(),
            error: self.error,
            // Figures that this version does not know are left out; the text matters.
            stats: self
                .stats
                .and_then(|stats| serde_json::from_value::<GenerationStats>(stats).ok()),
            created_at_ms: self.created_at_ms,
        })
    }
}

impl ChatDocument {
    fn of(NewDocument { name, kind, text }: NewDocument) -> ChatDocument {
        ChatDocument { name, kind: kind.as_str().to_owned(), text }
    }

    fn read(self) -> NewDocument {
        // A kind that this version does not know changes nothing but the sign beside the name.
        let kind = DocumentKind::named(&self.kind).unwrap_or(DocumentKind::Text);
        NewDocument { name: self.name, kind, text: self.text }
    }
}
