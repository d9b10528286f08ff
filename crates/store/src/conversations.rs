//! The conversations table: the list of conversations, and the end of each one's current branch.

use std::sync::LazyLock;

use cairn_prompt_cache::{KvFormat, Provenance};
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, FromRow, Row};

use crate::deletion::Deletable;
use crate::error::no_conversation;
use crate::new_id;
use crate::title::title_from;
use crate::{NamedCacheKind, Persona, Store, StoreError, token_ids};

/// A conversation, without its messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversation {
    /// UUID v7.
    pub id: String,
    /// Empty until the first message names it.
    pub title: String,
    /// Empty when there is none.
    pub system_prompt: String,
    /// The last message of the current branch; none before the first.
    pub leaf_message_id: Option<String>,
    /// In milliseconds since the Unix epoch.
    pub created_at_ms: i64,
    /// When a turn was last begun, in milliseconds since the Unix epoch.
    pub updated_at_ms: i64,
    /// Set while the deletion can still be undone.
    pub deleted_at_ms: Option<i64>,
    /// The folder it is in, which may be deleted.
    pub folder_id: Option<String>,
    /// The persona it was begun with, which may be deleted.
    pub persona_id: Option<String>,
    /// What the chat was called of which it is a branch, while its own title says that.
    pub branch_of: Option<String>,
    /// The model that was chosen in it, which may be gone; none: none was.
    pub model: Option<String>,
    /// The model of the last answer on the current branch, which may be gone. None without an answer,
    /// and where nothing says who wrote the last one.
    pub answered_model: Option<String>,
    /// Whether `model` was chosen after the last message of the current branch, so that nothing was asked of it.
    pub is_choice_newer: bool,
    /// The model of its folder, which may be gone.
    pub folder_model: Option<String>,
    /// Whether it stands above the others.
    pub is_pinned: bool,
    /// When it was taken out of the list, in milliseconds since the Unix epoch; none: it is in it.
    pub archived_at_ms: Option<i64>,
    /// The named prompt cache that it starts from.
    pub prefix: Option<Prefix>,
}

/// The named prompt cache that a conversation starts from, as it was at the start: it may be
/// renamed or deleted later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix {
    /// The id of the named prompt cache.
    pub named_id: String,
    /// Its name.
    pub name: String,
    /// Where its tokens end.
    pub kind: NamedCacheKind,
    /// How its keys and values are stored.
    pub kv_format: KvFormat,
    /// Who computed them.
    pub provenance: Provenance,
    /// How many tokens it has.
    pub num_tokens: i64,
    /// Those tokens; none if an imported file did not name them, and in the list of
    /// [`Store::conversations`].
    pub token_ids: Option<Vec<u32>>,
    /// The beginning of its text, to show.
    pub start_text: String,
    /// The end of its text, to show.
    pub end_text: String,
    /// Whether it was imported from a file.
    pub is_imported: bool,
}

impl FromRow<'_, SqliteRow> for Conversation {
    fn from_row(row: &SqliteRow) -> Result<Conversation, sqlx::Error> {
        Ok(Conversation {
            id: row.try_get("id")?,
            title: row.try_get("title")?,
            system_prompt: row.try_get("system_prompt")?,
            leaf_message_id: row.try_get("leaf_message_id")?,
            created_at_ms: row.try_get("created_at_ms")?,
            updated_at_ms: row.try_get("updated_at_ms")?,
            deleted_at_ms: row.try_get("deleted_at_ms")?,
            folder_id: row.try_get("folder_id")?,
            persona_id: row.try_get("persona_id")?,
            branch_of: row.try_get("branch_of")?,
            model: row.try_get("model")?,
            answered_model: row.try_get("answered_model")?,
            is_choice_newer: row.try_get("is_choice_newer")?,
            folder_model: row.try_get("folder_model")?,
            is_pinned: row.try_get("is_pinned")?,
            archived_at_ms: row.try_get("archived_at_ms")?,
            prefix: prefix_from_row(row)?,
        })
    }
}

fn prefix_from_row(row: &SqliteRow) -> Result<Option<Prefix>, sqlx::Error> {
    let Some(named_id) = row.try_get("prefix_named_id")? else { return Ok(None) };
    Ok(Some(Prefix {
        named_id,
        name: row.try_get("prefix_name")?,
        kind: NamedCacheKind::named("prefix_kind", row.try_get("prefix_kind")?)?,
        // A text that no version writes means tokens that are computed again.
        kv_format: row.try_get::<&str, _>("prefix_kv_format")?.parse().unwrap_or_default(),
        provenance: row.try_get::<&str, _>("prefix_provenance")?.parse().unwrap_or_default(),
        num_tokens: row.try_get("prefix_num_tokens")?,
        token_ids: token_ids::from_row(row, "prefix_token_ids")?,
        start_text: row.try_get("prefix_start_text")?,
        end_text: row.try_get("prefix_end_text")?,
        is_imported: row.try_get("prefix_is_imported")?,
    }))
}

/// An empty conversation, which has no row yet.
fn new(now_ms: i64) -> Conversation {
    Conversation {
        id: new_id().to_string(),
        title: String::new(),
        system_prompt: String::new(),
        leaf_message_id: None,
        created_at_ms: now_ms,
        updated_at_ms: now_ms,
        deleted_at_ms: None,
        folder_id: None,
        persona_id: None,
        branch_of: None,
        model: None,
        answered_model: None,
        is_choice_newer: false,
        folder_model: None,
        is_pinned: false,
        archived_at_ms: None,
        prefix: None,
    }
}

/// What of a conversation stands in other tables, beside its messages.
const BESIDE: &str = "(select persona_id from conversation_personas
        where conversation_id = conversations.id) as persona_id,
    (select of_title from conversation_branches
        where conversation_id = conversations.id
            and conversation_branches.title = conversations.title) as branch_of,
    (select model from folders
        where folders.id = conversations.folder_id and folders.deleted_at_ms is null) as folder_model";

/// The model of the last answer: nearly always that of the branch's end, which an index has. Else messages
/// are looked through from the end on, up to an answer that has not failed.
const ANSWERED_MODEL: &str = "coalesce(
    (select messages.model from messages indexed by messages_with_model
        where messages.id = conversations.leaf_message_id and messages.model is not null),
    (with recursive line (seq, parent_id, model, is_last) as (
        select seq, parent_id, iif(deletion_id is null, messages.model, null),
            deletion_id is null and role = 'assistant' and status in ('complete', 'stopped', 'interrupted')
        from messages where messages.id = conversations.leaf_message_id
        union all
        select above.seq, above.parent_id, iif(above.deletion_id is null, above.model, null),
            above.deletion_id is null and above.role = 'assistant'
                and above.status in ('complete', 'stopped', 'interrupted')
        from line join messages as above on above.id = line.parent_id and above.seq < line.seq
        where line.model is null and not line.is_last
    )
    select line.model from line where line.model is not null limit 1))";

/// Whether the model was chosen after the branch's end was written.
const IS_CHOICE_NEWER: &str =
    "iif(model_chosen_after_seq is null, 0, model_chosen_after_seq >= coalesce(
    (select messages.seq from messages where messages.id = conversations.leaf_message_id), 0))";

/// One conversation, by its id.
pub(crate) static CONVERSATION: LazyLock<String> = LazyLock::new(|| {
    format!(
        "select *, {BESIDE}, {ANSWERED_MODEL} as answered_model, {IS_CHOICE_NEWER} as is_choice_newer
         from conversations where id = ?"
    )
});

/// All conversations that are not deleted, without the token ids of their prefixes.
fn listing([answered_model, is_choice_newer]: [&str; 2]) -> String {
    format!(
        "select id, title, system_prompt, leaf_message_id, created_at_ms, updated_at_ms, deleted_at_ms,
             folder_id, is_pinned, archived_at_ms, model, {BESIDE}, {answered_model} as answered_model,
             {is_choice_newer} as is_choice_newer, prefix_named_id, prefix_name, prefix_kind, prefix_kv_format, prefix_provenance,
             prefix_num_tokens, null as prefix_token_ids, prefix_start_text, prefix_end_text,
             prefix_is_imported
         from conversations where deleted_at_ms is null
         order by activity_seq desc, updated_at_ms desc, id desc"
    )
}

impl Store {
    /// Creates an empty conversation.
    pub async fn create_conversation(&self, now_ms: i64) -> Result<Conversation, StoreError> {
        self.create_conversation_with(now_ms, "").await
    }

    /// Creates an empty conversation with a system prompt.
    pub async fn create_conversation_with(
        &self,
        now_ms: i64,
        system_prompt: &str,
    ) -> Result<Conversation, StoreError> {
        let system_prompt = system_prompt.to_owned();
        self.insert_conversation(Conversation { system_prompt, ..new(now_ms) }).await
    }

    /// Creates an empty conversation with the system prompt of a persona and its model, if it has one.
    pub async fn create_conversation_as(
        &self,
        now_ms: i64,
        persona_id: &str,
    ) -> Result<Conversation, StoreError> {
        let Persona { system_prompt, model, .. } = self.persona(persona_id).await?;
        let persona_id = Some(persona_id.to_owned());
        let begun = Conversation { persona_id, system_prompt, model, ..new(now_ms) };
        self.insert_conversation(begun).await
    }

    /// Creates an empty conversation in a folder, with a system prompt.
    pub async fn create_conversation_in(
        &self,
        now_ms: i64,
        folder_id: &str,
        system_prompt: &str,
    ) -> Result<Conversation, StoreError> {
        let (folder_id, system_prompt) = (Some(folder_id.to_owned()), system_prompt.to_owned());
        self.insert_conversation(Conversation { folder_id, system_prompt, ..new(now_ms) }).await
    }

    /// Creates a conversation that starts from a named prompt cache. With an empty title the first
    /// turn names it.
    pub async fn create_conversation_from(
        &self,
        now_ms: i64,
        prefix: &Prefix,
        title: &str,
    ) -> Result<Conversation, StoreError> {
        let (title, prefix) = (title.to_owned(), Some(prefix.clone()));
        self.insert_conversation(Conversation { title, prefix, ..new(now_ms) }).await
    }

    /// Writes all of a new conversation at once.
    async fn insert_conversation(
        &self,
        conversation: Conversation,
    ) -> Result<Conversation, StoreError> {
        let prefix = conversation.prefix.as_ref();
        let mut tx = self.begin().await?;
        sqlx::query(
            "insert into conversations
                 (id, title, system_prompt, activity_seq, created_at_ms, updated_at_ms, prefix_named_id, prefix_name, prefix_kind,
                  prefix_kv_format, prefix_provenance, prefix_num_tokens, prefix_token_ids, prefix_start_text, prefix_end_text, prefix_is_imported, folder_id, model)
             values (?, ?, ?, (select coalesce(max(activity_seq), 0) + 1 from conversations), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(&conversation.id)
        .bind(&conversation.title)
        .bind(&conversation.system_prompt)
        .bind(conversation.created_at_ms)
        .bind(conversation.updated_at_ms)
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
        .bind(&conversation.folder_id)
        .bind(&conversation.model)
        .execute(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        if let Some(persona_id) = &conversation.persona_id {
            sqlx::query(
                "insert into conversation_personas (conversation_id, persona_id) values (?, ?)",
            )
            .bind(&conversation.id)
            .bind(persona_id)
            .execute(&mut *tx)
            .await
            .map_err(|error| self.failed(error))?;
        }
        let row =
            sqlx::query_as(CONVERSATION.as_str()).bind(&conversation.id).fetch_one(&mut *tx).await;
        let row = row.map_err(|error| self.failed(error))?;
        self.commit(tx).await?;
        Ok(row)
    }

    /// The conversations that are not deleted, the one with the newest turn first. Those that were imported
    /// share the number of the turn before them, and only the times order them. The token ids of
    /// their prefixes are left out: a hundred conversations about one long document would otherwise
    /// carry it a hundred times.
    pub async fn conversations(&self) -> Result<Vec<Conversation>, StoreError> {
        let list = async |of_messages: [&str; 2]| {
            sqlx::query_as(AssertSqlSafe(listing(of_messages))).fetch_all(&self.readers).await
        };
        match list([ANSWERED_MODEL, IS_CHOICE_NEWER]).await.map_err(|error| self.failed(error)) {
            // Damage among the messages must not hide the list.
            Err(StoreError::Corrupt { .. }) => {
                list(["null", "0"]).await.map_err(|error| self.failed(error))
            }
            listed => listed,
        }
    }

    /// One conversation, also when it is deleted but not purged yet.
    pub async fn conversation(&self, id: &str) -> Result<Option<Conversation>, StoreError> {
        sqlx::query_as(CONVERSATION.as_str())
            .bind(id)
            .fetch_optional(&self.readers)
            .await
            .map_err(|error| self.failed(error))
    }

    /// A conversation that is not deleted; otherwise [`StoreError::NoConversation`].
    pub async fn listed_conversation(&self, id: &str) -> Result<Conversation, StoreError> {
        let row = self.conversation(id).await?.filter(|row| row.deleted_at_ms.is_none());
        row.ok_or_else(|| no_conversation(id))
    }

    /// The title of one conversation, unless it is deleted.
    pub async fn conversation_title(&self, id: &str) -> Result<Option<String>, StoreError> {
        sqlx::query_scalar("select title from conversations where id = ? and deleted_at_ms is null")
            .bind(id)
            .fetch_optional(&self.readers)
            .await
            .map_err(|error| self.failed(error))
    }

    /// Sets the title that a person wrote, verbatim. With an empty one the next turn names the
    /// conversation again.
    pub async fn rename_conversation(&self, id: &str, title: &str) -> Result<(), StoreError> {
        let change = sqlx::query(
            "update conversations set title = ?1, title_by = case ?1 when '' then null else 'person' end
             where id = ?2",
        );
        self.change_row(change.bind(title).bind(id), || no_conversation(id)).await
    }

    /// Whether a conversation still has the title that its first question gave it, so that a model may
    /// write a better one. `question` is its first one.
    pub async fn has_first_line_title(&self, id: &str, question: &str) -> Result<bool, StoreError> {
        sqlx::query_scalar(
            "select exists (select 1 from conversations where id = ? and title_by is null
                 and title = ? and deleted_at_ms is null)",
        )
        .bind(id)
        .bind(title_from(question))
        .fetch_one(&self.readers)
        .await
        .map_err(|error| self.failed(error))
    }

    /// Sets the title that a model wrote, as [`Store::begin_turn`] would make one of it, in the place
    /// of the one that the first question gave. False where a person has written one meanwhile, and
    /// where nothing of it can be a title.
    pub async fn set_written_title(
        &self,
        id: &str,
        question: &str,
        written: &str,
    ) -> Result<bool, StoreError> {
        let title = title_from(written);
        if title.is_empty() {
            return Ok(false);
        }
        let mut tx = self.begin().await?;
        let done = sqlx::query(
            "update conversations set title = ?, title_by = 'model'
             where id = ? and title_by is null and title = ? and deleted_at_ms is null",
        )
        .bind(title)
        .bind(id)
        .bind(title_from(question))
        .execute(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        self.commit(tx).await?;
        Ok(done.rows_affected() > 0)
    }

    /// Sets the system prompt, verbatim.
    pub async fn set_system_prompt(&self, id: &str, system_prompt: &str) -> Result<(), StoreError> {
        let change = sqlx::query("update conversations set system_prompt = ? where id = ?")
            .bind(system_prompt)
            .bind(id);
        self.change_row(change, || no_conversation(id)).await
    }

    /// Sets the model that is chosen in a conversation, or takes the choice away.
    pub async fn set_conversation_model(
        &self,
        id: &str,
        model: Option<&str>,
    ) -> Result<(), StoreError> {
        let change = sqlx::query(
            "update conversations set model = ?1, model_chosen_after_seq =
                 iif(?1 is null, null, (select coalesce(max(seq), 0) from messages))
             where id = ?2",
        );
        self.change_row(change.bind(model).bind(id), || no_conversation(id)).await
    }

    /// The settings of a conversation, as they were given to [`Store::set_conversation_settings`].
    pub async fn conversation_settings(&self, id: &str) -> Result<Option<String>, StoreError> {
        let overrides: Option<Option<String>> =
            sqlx::query_scalar("select setting_overrides from conversations where id = ?")
                .bind(id)
                .fetch_optional(&self.readers)
                .await
                .map_err(|error| self.failed(error))?;
        overrides.ok_or_else(|| no_conversation(id))
    }

    /// Stores the settings of a conversation: a JSON text, or none.
    pub async fn set_conversation_settings(
        &self,
        id: &str,
        overrides: Option<&str>,
    ) -> Result<(), StoreError> {
        let change = sqlx::query("update conversations set setting_overrides = ? where id = ?")
            .bind(overrides)
            .bind(id);
        self.change_row(change, || no_conversation(id)).await
    }

    /// Removes conversations from the list. They are purged when the file is opened after this
    /// program has closed it; until then [`Store::restore_conversations`] restores them. Deleting them
    /// again changes nothing. Passes over those that do not exist; fails if none does.
    pub async fn delete_conversations(
        &self,
        ids: &[impl AsRef<str>],
        now_ms: i64,
    ) -> Result<(), StoreError> {
        self.delete_rows(Deletable::Conversations, ids, now_ms).await
    }

    /// Undoes [`Store::delete_conversations`]; they return to their positions in the list. Passes over
    /// those that do not exist; fails if none does.
    pub async fn restore_conversations(&self, ids: &[impl AsRef<str>]) -> Result<(), StoreError> {
        self.restore_rows(Deletable::Conversations, ids).await
    }

    /// Removes conversations for good that were deleted at `deleted_at_ms`, and returns their ids:
    /// without those that were restored meanwhile, deleted again, or do not exist.
    pub async fn purge_conversations(
        &self,
        ids: &[impl AsRef<str>],
        deleted_at_ms: i64,
    ) -> Result<Vec<String>, StoreError> {
        self.purge_rows(Deletable::Conversations, ids, deleted_at_ms).await
    }
}
