//! Cairn's own form: everything of a conversation but the token ids of its messages and saved context.

use std::collections::HashMap;

use cairn_chat::{GenerationStats, Role};
use cairn_engine::SnapKv;
use cairn_prompt_cache::{KvFormat, Provenance};
use cairn_store::{
    ContextCut, Conversation, DocumentKind, ImportedConversation, ImportedMessage, Message,
    MessageStatus, NamedCacheKind, NewDocument, Persona, Prefix, Store,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::content_hash;
use crate::answer_segment::AnswerSegment;
use crate::documents::limits::{MAX_DOCUMENTS, checked_document};
use crate::settings::{SettingOverrides, SettingScope};
use crate::wire::Failure;

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
    /// The persona that it was begun with.
    #[serde(default)]
    persona: Option<ChatPersona>,
    /// The model that was chosen in it.
    #[serde(default)]
    model: Option<String>,
    /// The starting point that it begins with.
    #[serde(default)]
    starting_point: Option<StartingPoint>,
    /// The files of a folder that it has begun with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    begins_with: Vec<ChatDocument>,
    /// What the next message will be sent with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    draft_documents: Vec<ChatDocument>,
    /// The end of the branch on screen.
    #[serde(default)]
    leaf_message_id: Option<String>,
    messages: Vec<ChatMessage>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ChatPersona {
    name: String,
    #[serde(default)]
    system_prompt: String,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    settings: Option<Map<String, Value>>,
    #[serde(default)]
    created_at_ms: i64,
}

/// Files of earlier versions have its name, size and texts only, from which no chat can begin.
#[derive(Debug, Serialize, Deserialize)]
struct StartingPoint {
    #[serde(default)]
    id: Option<String>,
    name: String,
    /// Where its tokens end.
    #[serde(default)]
    kind: Option<String>,
    /// How its keys and values are stored.
    #[serde(default)]
    kv_format: String,
    /// Who computed them.
    #[serde(default)]
    provenance: String,
    tokens: i64,
    /// None where an imported file did not name them.
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
    start_text: String,
    end_text: String,
    #[serde(default)]
    is_imported: bool,
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
    /// The same, where the interface says it in its own language.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error_kind: Option<Value>,
    /// The model that wrote an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(default)]
    stats: Option<Value>,
    /// The branch is read from this message on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cut: Option<Cut>,
    #[serde(default)]
    created_at_ms: i64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Cut {
    /// What is read in the place of what is before it.
    #[serde(default)]
    summary: Option<String>,
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
    pub(crate) async fn of(store: &Store, row: Conversation) -> Result<Chat, Failure> {
        let id = row.id.as_str();
        let settings = store.conversation_settings(id).await?;
        let folders = store.folders().await?.into_iter();
        let folder = folders.into_iter().find(|folder| Some(&folder.id) == row.folder_id.as_ref());
        let persona = match &row.persona_id {
            Some(persona_id) => store.persona(persona_id).await.ok(),
            None => None,
        };
        let tree = store.all_messages(id).await?;
        let mut documents = store.document_texts_of(id).await?;
        let mut cuts = store.context_cuts(id).await?;
        let draft = store.draft_texts(id).await?.into_iter();
        let draft = draft.map(|(document, text)| NewDocument {
            name: document.name,
            kind: document.kind,
            text,
        });
        // Before its first question a chat begins with whatever its folder has then.
        let begins_with = match tree.is_empty() {
            true => Vec::new(),
            false => store.beginning_texts(id).await?,
        };
        let message = |row: Message| {
            let documents = documents.remove(&row.id).unwrap_or_default();
            let cut = cuts.remove(&row.id);
            ChatMessage::of(row, documents, cut)
        };
        Ok(Chat {
            settings: settings.as_deref().and_then(object),
            folder: folder.map(|folder| folder.name),
            persona: persona.map(ChatPersona::of),
            model: row.model,
            begins_with: begins_with.into_iter().map(ChatDocument::of).collect(),
            draft_documents: draft.map(ChatDocument::of).collect(),
            messages: tree.into_iter().map(message).collect(),
            starting_point: row.prefix.map(StartingPoint::of),
            id: Some(row.id),
            title: row.title,
            system_prompt: row.system_prompt,
            created_at_ms: row.created_at_ms,
            updated_at_ms: row.updated_at_ms,
            is_pinned: row.is_pinned,
            is_archived: row.archived_at_ms.is_some(),
            leaf_message_id: row.leaf_message_id,
        })
    }

    /// The conversation that a value of a file is, or why it is none.
    pub(crate) fn read(value: Value) -> Result<ImportedConversation, String> {
        let hash = content_hash(&value);
        let mut chat: Chat = serde_json::from_value(value)
            .map_err(|error| format!("it is not as Cairn writes it ({error})"))?;
        chat.id = chat.id.filter(|id| !id.is_empty());
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
        let prefix = chat.starting_point.map(StartingPoint::read).transpose()?;
        Ok(ImportedConversation {
            persona: chat.persona.map(ChatPersona::read),
            model: chat.model.filter(|name| !name.is_empty()),
            prefix: prefix.flatten(),
            beginning: ChatDocument::read_all(chat.begins_with)?,
            draft: ChatDocument::read_all(chat.draft_documents)?,
            origin: match (&chat.id, chat.updated_at_ms) {
                (Some(id), 0) => format!("cairn:{id}:{hash}"),
                (Some(id), updated_at_ms) => format!("cairn:{id}:{updated_at_ms}"),
                (None, updated_at_ms) => format!("cairn:{hash}:{updated_at_ms}"),
            },
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

/// A stored JSON object.
fn object(text: &str) -> Option<Map<String, Value>> {
    serde_json::from_str(text).ok()
}

impl ChatPersona {
    fn of(row: Persona) -> ChatPersona {
        ChatPersona {
            name: row.name,
            system_prompt: row.system_prompt,
            model: row.model,
            settings: row.setting_overrides.as_deref().and_then(object),
            created_at_ms: row.created_at_ms,
        }
    }

    fn read(self) -> Persona {
        let settings = self
            .settings
            .map(|settings| SettingOverrides::of_values(SettingScope::Persona, settings).to_json());
        Persona {
            id: String::new(),
            name: self.name,
            system_prompt: self.system_prompt,
            model: self.model,
            setting_overrides: settings.flatten(),
            created_at_ms: self.created_at_ms,
        }
    }
}

impl StartingPoint {
    fn of(row: Prefix) -> StartingPoint {
        StartingPoint {
            id: Some(row.named_id),
            name: row.name,
            kind: Some(row.kind.as_str().to_owned()),
            kv_format: row.kv_format.to_string(),
            provenance: row.provenance.to_string(),
            tokens: row.num_tokens,
            token_ids: row.token_ids,
            start_text: row.start_text,
            end_text: row.end_text,
            is_imported: row.is_imported,
        }
    }

    /// None where the file does not say with what the chat begins. Keys and values that are not on this
    /// machine are computed again from the tokens.
    fn read(self) -> Result<Option<Prefix>, String> {
        let kinds = [NamedCacheKind::Prompt, NamedCacheKind::Conversation];
        let kind = kinds.into_iter().find(|kind| Some(kind.as_str()) == self.kind.as_deref());
        let (Some(kind), Some(named_id)) = (kind, self.id) else { return Ok(None) };
        let num_tokens = usize::try_from(self.tokens).unwrap_or(0);
        if num_tokens == 0 || self.token_ids.as_ref().is_some_and(|ids| ids.len() != num_tokens) {
            return Err("its starting point has another number of tokens than it says".to_owned());
        }
        let unknown = |what: &str| format!("the {what} of its starting point is not known");
        let provenance: Provenance = self.provenance.parse().map_err(|_| unknown("provenance"))?;
        if self.token_ids.is_none() && !provenance.is_opaque() {
            return Err(unknown("text"));
        }
        let kv_format: KvFormat = self.kv_format.parse().map_err(|_| unknown("KV format"))?;
        if let KvFormat::Quantized { bits, group_size } = kv_format
            && !([4, 8].contains(&bits) && [32, 64, 128].contains(&group_size))
        {
            return Err(unknown("KV format"));
        }
        if let KvFormat::Compressed { keep_tokens } = kv_format
            && (keep_tokens as usize) < SnapKv::MIN_TOKENS
        {
            return Err(unknown("KV format"));
        }
        Ok(Some(Prefix {
            named_id,
            name: self.name,
            kind,
            kv_format,
            provenance,
            num_tokens: self.tokens,
            token_ids: self.token_ids,
            start_text: self.start_text,
            end_text: self.end_text,
            is_imported: self.is_imported,
        }))
    }
}

impl ChatMessage {
    fn of(row: Message, documents: Vec<NewDocument>, cut: Option<ContextCut>) -> ChatMessage {
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
            error_kind: row.error_kind.and_then(|kind| serde_json::from_str(&kind).ok()),
            model: row.model,
            cut: cut.map(|cut| Cut { summary: cut.summary }),
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
            documents: ChatDocument::read_all(self.documents)?,
            error: self.error,
            error_kind: self.error_kind.map(|kind| kind.to_string()),
            model: self.model,
            cut: self.cut.map(|cut| ContextCut { summary: cut.summary }),
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

    /// Within the limits of what can be attached.
    fn read_all(documents: Vec<ChatDocument>) -> Result<Vec<NewDocument>, String> {
        if documents.len() > MAX_DOCUMENTS {
            return Err(format!("it has more than {MAX_DOCUMENTS} documents in one place"));
        }
        documents.into_iter().map(ChatDocument::read).collect()
    }

    fn read(self) -> Result<NewDocument, String> {
        // A kind that this version does not know changes nothing but the sign beside the name.
        let kind = DocumentKind::named(&self.kind).unwrap_or(DocumentKind::Text);
        checked_document(NewDocument { name: self.name, kind, text: self.text })
            .map_err(|failure| failure.message)
    }
}
