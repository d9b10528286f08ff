//! Whole conversations, to be taken out and in: the tree with all its branches.

use std::collections::HashMap;

use cairn_chat::{GenerationStats, Role};
use sqlx::SqliteConnection;
use uuid::Uuid;

use crate::context_cuts::insert_cut;
use crate::documents::{insert_draft_document, insert_sent_document};
use crate::folder_documents::insert_beginning_document;
use crate::new_id;
use crate::personas::insert_persona;
use crate::search_text::search_text;
use crate::title::title_from;
use crate::{
    ContextCut, Message, MessageStatus, NewDocument, Persona, Prefix, Store, StoreError, token_ids,
};

/// A conversation that comes from elsewhere.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ImportedConversation {
    /// The program it comes from, its id there and when it last changed: a conversation with the same
    /// three is there already.
    pub origin: String,
    /// The id that it is to have, unless that is in use; none: a new one.
    pub id: Option<String>,
    /// Empty: it is named after its first question.
    pub title: String,
    /// Empty when there is none.
    pub system_prompt: String,
    /// A JSON text of the app's; see [`Store::set_conversation_settings`].
    pub settings: Option<String>,
    /// In milliseconds since the Unix epoch.
    pub created_at_ms: i64,
    /// In milliseconds since the Unix epoch.
    pub updated_at_ms: i64,
    /// Whether it stands above the others.
    pub is_pinned: bool,
    /// Whether it is out of the list.
    pub is_archived: bool,
    /// The name of the folder it is in, which is made where there is none; none: in no folder.
    pub folder: Option<String>,
    /// The persona it was begun with, whose id does not matter: the one that is the same in everything
    /// else, or else a new one.
    pub persona: Option<Persona>,
    /// The model that was chosen in it, which need not be here; none: none was.
    pub model: Option<String>,
    /// The named prompt cache that it begins with, which need not be here.
    pub prefix: Option<Prefix>,
    /// The documents of a folder that it has begun with.
    pub beginning: Vec<NewDocument>,
    /// The documents of its draft.
    pub draft: Vec<NewDocument>,
    /// Every message after the one that it follows.
    pub messages: Vec<ImportedMessage>,
    /// The place of the last message of the branch on screen; none: the last message.
    pub leaf: Option<usize>,
}

/// A message of an [`ImportedConversation`].
#[derive(Debug, Clone, PartialEq)]
pub struct ImportedMessage {
    /// The id that it is to have, unless that is in use; none: a new one.
    pub id: Option<String>,
    /// The place of the message it follows, before its own; none for a first one.
    pub parent: Option<usize>,
    /// The role of its author.
    pub role: Role,
    /// Not `Streaming`.
    pub status: MessageStatus,
    /// The text, verbatim.
    pub text: String,
    /// See [`Message::segments`].
    pub segments: Option<String>,
    /// Why it failed, in words.
    pub error: Option<String>,
    /// The same as a JSON text of the app's; see [`Message::error_kind`].
    pub error_kind: Option<String>,
    /// The figures of an answer.
    pub stats: Option<GenerationStats>,
    /// The model that wrote an answer, where that is known.
    pub model: Option<String>,
    /// What stands before a question.
    pub documents: Vec<NewDocument>,
    /// The branch is read from it on.
    pub cut: Option<ContextCut>,
    /// In milliseconds since the Unix epoch.
    pub created_at_ms: i64,
}

impl ImportedMessage {
    /// A whole message with nothing but its text.
    pub fn new(parent: Option<usize>, role: Role, text: String, created_at_ms: i64) -> Self {
        ImportedMessage {
            id: None,
            parent,
            role,
            status: MessageStatus::Complete,
            text,
            segments: None,
            error: None,
            error_kind: None,
            stats: None,
            model: None,
            documents: Vec::new(),
            cut: None,
            created_at_ms,
        }
    }
}

/// What became of an [`ImportedConversation`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Imported {
    /// It has this id now.
    Added(String),
    /// It was there already, with this id, and all of its messages too, but for those that follow a
    /// deleted one: these are deleted with it.
    AlreadyHere(String),
    /// It was there already, and so many of its messages were not: they are in the same tree now.
    Extended {
        /// The id that it has here.
        id: String,
        /// How many messages are new, without those that follow a deleted one.
        num_messages: usize,
    },
}

impl Store {
    /// All messages of a conversation, of every branch, in the order in which they were written. Those
    /// that were deleted are left out: what follows one of them follows the message before it.
    pub async fn all_messages(&self, conversation_id: &str) -> Result<Vec<Message>, StoreError> {
        let mut connection = self.readers.acquire().await.map_err(|error| self.failed(error))?;
        let tree = self.tree(&mut connection, conversation_id).await?;
        let mut messages: Vec<Message> = sqlx::query_as(
            "select * from messages where conversation_id = ? and deletion_id is null order by seq",
        )
        .bind(conversation_id)
        .fetch_all(&mut *connection)
        .await
        .map_err(|error| self.failed(error))?;
        for message in &mut messages {
            message.parent_id = tree.live_parent(&message.id).map(str::to_owned);
        }
        Ok(messages)
    }

    /// Saves a conversation that comes from elsewhere, all of it or nothing. It stands in the list
    /// where its last change puts it.
    ///
    /// A parent that is no earlier message, and a leaf that is none, are a mistake of the caller's:
    /// the message is then a first one, and the leaf the last message.
    pub async fn import_conversation(
        &self,
        given: &ImportedConversation,
    ) -> Result<Imported, StoreError> {
        let mut tx = self.begin().await?;
        let failed = |error| self.failed(error);
        if let Some(id) = imported_before(&mut tx, given).await.map_err(failed)? {
            return Ok(Imported::AlreadyHere(id));
        }
        if let Some(id) = same_chat(&mut tx, given).await.map_err(failed)? {
            let num_messages = self.extend_conversation(&mut tx, &id, given).await?;
            self.commit(tx).await?;
            self.new_documents.notify_one();
            if num_messages == 0 {
                return Ok(Imported::AlreadyHere(id));
            }
            return Ok(Imported::Extended { id, num_messages });
        }
        let ids = ids(&mut tx, given).await.map_err(failed)?;
        insert_conversation(&mut tx, given, &ids).await.map_err(failed)?;
        for (index, message) in given.messages.iter().enumerate() {
            let parent = message.parent.filter(|parent| *parent < index);
            let parent = parent.map(|parent| ids.messages[parent].as_str());
            insert_message(&mut tx, message, &ids.conversation, &ids.messages[index], parent)
                .await
                .map_err(failed)?;
        }
        for document in &given.beginning {
            let (id, at_ms) = (&ids.conversation, given.created_at_ms);
            insert_beginning_document(&mut tx, id, document, at_ms).await.map_err(failed)?;
        }
        for document in &given.draft {
            let (id, at_ms) = (&ids.conversation, given.updated_at_ms);
            insert_draft_document(&mut tx, id, document, at_ms).await.map_err(failed)?;
        }
        if let Some(persona) = &given.persona {
            let persona_id = persona_like(&mut tx, persona).await.map_err(failed)?;
            sqlx::query(
                "insert into conversation_personas (conversation_id, persona_id) values (?, ?)",
            )
            .bind(&ids.conversation)
            .bind(persona_id)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        }
        let last = given.messages.len().checked_sub(1);
        let leaf = given.leaf.filter(|leaf| *leaf < given.messages.len()).or(last);
        sqlx::query("update conversations set leaf_message_id = ? where id = ?")
            .bind(leaf.map(|leaf| &ids.messages[leaf]))
            .bind(&ids.conversation)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        self.commit(tx).await?;
        self.new_documents.notify_one();
        Ok(Imported::Added(ids.conversation))
    }
}

/// A conversation that came from the same state of the same chat.
async fn imported_before(
    tx: &mut SqliteConnection,
    given: &ImportedConversation,
) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar(
        "select id from conversations where deleted_at_ms is null and imported_from = ?",
    )
    .bind(&given.origin)
    .fetch_optional(tx)
    .await
}

/// The conversation that a Cairn's chat is here: the one with its id, or one that came from another
/// state of it and has an id of its own.
async fn same_chat(
    tx: &mut SqliteConnection,
    given: &ImportedConversation,
) -> Result<Option<String>, sqlx::Error> {
    let Some(id) = &given.id else { return Ok(None) };
    // The time of its last change is behind the last colon.
    let chat = given.origin.rsplit_once(':').map(|(chat, _)| chat);
    let chat = chat.filter(|chat| chat.ends_with(id.as_str()));
    sqlx::query_scalar(
        "select id from conversations
         where deleted_at_ms is null
             and (id = ?1 or substr(imported_from, 1, length(?2) + 1) = ?2 || ':')
         order by id = ?1 desc, updated_at_ms desc limit 1",
    )
    .bind(id)
    .bind(chat)
    .fetch_optional(tx)
    .await
}

/// The ids of a conversation and of its messages.
struct Ids {
    conversation: String,
    messages: Vec<String>,
}

/// The given ids where none of them is in use, else new ones.
async fn ids(tx: &mut SqliteConnection, given: &ImportedConversation) -> Result<Ids, sqlx::Error> {
    let new = || new_id().to_string();
    let own = |id: &Option<String>| id.clone().filter(|id| Uuid::parse_str(id).is_ok());
    let messages: Option<Vec<String>> =
        given.messages.iter().map(|message| own(&message.id)).collect();
    if let (Some(conversation), Some(messages)) = (own(&given.id), messages) {
        let distinct: HashMap<&String, ()> = messages.iter().map(|id| (id, ())).collect();
        let are_used: bool = sqlx::query_scalar(
            "select exists (select 1 from conversations where id = ?)
                 or exists (select 1 from messages where id in (select value from json_each(?)))",
        )
        .bind(&conversation)
        .bind(serde_json::to_string(&messages).unwrap_or_default())
        .fetch_one(tx)
        .await?;
        if !are_used && distinct.len() == messages.len() {
            return Ok(Ids { conversation, messages });
        }
    }
    Ok(Ids { conversation: new(), messages: given.messages.iter().map(|_| new()).collect() })
}

async fn insert_conversation(
    tx: &mut SqliteConnection,
    given: &ImportedConversation,
    ids: &Ids,
) -> Result<(), sqlx::Error> {
    let question = given.messages.iter().find(|message| message.role == Role::User);
    let title = match given.title.trim() {
        "" => title_from(question.map_or("", |question| &question.text)),
        title => title_from(title),
    };
    let folder = match &given.folder {
        Some(name) => Some(folder(tx, name, given.created_at_ms).await?),
        None => None,
    };
    let prefix = given.prefix.as_ref();
    sqlx::query(
        "insert into conversations
             (id, title, system_prompt, setting_overrides, activity_seq, created_at_ms, updated_at_ms,
              is_pinned, archived_at_ms, imported_from, folder_id, prefix_named_id, prefix_name,
              prefix_kind, prefix_kv_format, prefix_provenance, prefix_num_tokens, prefix_token_ids,
              prefix_start_text, prefix_end_text, prefix_is_imported, model)
         values (?1, ?2, ?3, ?4, coalesce((
             select activity_seq from conversations where updated_at_ms <= ?6
             order by activity_seq desc limit 1), 0), ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14,
             ?15, ?16, ?17, ?18, ?19, ?20, ?21)",
    )
    .bind(&ids.conversation)
    .bind(title)
    .bind(&given.system_prompt)
    .bind(&given.settings)
    .bind(given.created_at_ms)
    .bind(given.updated_at_ms)
    .bind(given.is_pinned)
    .bind(given.is_archived.then_some(given.updated_at_ms))
    .bind(&given.origin)
    .bind(folder)
    .bind(prefix.map(|prefix| &prefix.named_id))
    .bind(prefix.map(|prefix| &prefix.name))
    .bind(prefix.map(|prefix| prefix.kind.as_str()))
    .bind(prefix.map(|prefix| prefix.kv_format.to_string()))
    .bind(prefix.map(|prefix| prefix.provenance.to_string()))
    .bind(prefix.map(|prefix| prefix.num_tokens))
    .bind(prefix.and_then(|prefix| prefix.token_ids.as_deref()).map(token_ids::to_blob))
    .bind(prefix.map(|prefix| &prefix.start_text))
    .bind(prefix.map(|prefix| &prefix.end_text))
    .bind(prefix.map(|prefix| prefix.is_imported))
    .bind(&given.model)
    .execute(tx)
    .await
    .map(drop)
}

/// The id of a folder with this name.
async fn folder(tx: &mut SqliteConnection, name: &str, now_ms: i64) -> Result<String, sqlx::Error> {
    let known: Option<String> =
        sqlx::query_scalar("select id from folders where name = ? and deleted_at_ms is null")
            .bind(name)
            .fetch_optional(&mut *tx)
            .await?;
    if let Some(id) = known {
        return Ok(id);
    }
    let id = new_id().to_string();
    sqlx::query(
        "insert into folders (id, name, system_prompt, created_at_ms) values (?, ?, '', ?)",
    )
    .bind(&id)
    .bind(name)
    .bind(now_ms)
    .execute(tx)
    .await?;
    Ok(id)
}

/// With its documents, and the cut before it.
pub(crate) async fn insert_message(
    tx: &mut SqliteConnection,
    message: &ImportedMessage,
    conversation_id: &str,
    id: &str,
    parent: Option<&str>,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "insert into messages
             (id, conversation_id, parent_id, role, status, text, segments, search_text, error, error_kind, stats,
              model, created_at_ms)
         values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(id)
    .bind(conversation_id)
    .bind(parent)
    .bind(message.role.as_str())
    .bind(message.status.as_str())
    .bind(&message.text)
    .bind(&message.segments)
    .bind(search_text(&message.text, message.segments.as_deref()))
    .bind(&message.error)
    .bind(&message.error_kind)
    .bind(message.stats.as_ref().and_then(|stats| serde_json::to_string(stats).ok()))
    .bind(&message.model)
    .bind(message.created_at_ms)
    .execute(&mut *tx)
    .await?;
    let at_ms = message.created_at_ms;
    for document in &message.documents {
        insert_sent_document(tx, conversation_id, id, document, at_ms).await?;
    }
    match &message.cut {
        Some(cut) => insert_cut(tx, id, cut, at_ms).await,
        None => Ok(()),
    }
}

/// The id of a persona that is like this one, which is made where there is none.
async fn persona_like(tx: &mut SqliteConnection, persona: &Persona) -> Result<String, sqlx::Error> {
    let known: Option<String> = sqlx::query_scalar(
        "select id from personas where name = ? and system_prompt = ? and model is ?
             and setting_overrides is ? and deleted_at_ms is null",
    )
    .bind(&persona.name)
    .bind(&persona.system_prompt)
    .bind(&persona.model)
    .bind(&persona.setting_overrides)
    .fetch_optional(&mut *tx)
    .await?;
    match known {
        Some(id) => Ok(id),
        None => insert_persona(tx, persona).await,
    }
}
