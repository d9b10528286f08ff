//! The messages table: a tree for each conversation, and the stages of an answer in it.

use cairn_chat::{GenerationStats, Role};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{FromRow, Row};
use uuid::Uuid;

use crate::conversations::no_conversation;
use crate::error::unknown;
use crate::title::title_from;
use crate::{Store, StoreError, token_ids};

/// The state of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageStatus {
    /// Being generated.
    Streaming,
    /// Finished: a user message, or an answer that was completed.
    Complete,
    /// Stopped by the user; the text until then is saved.
    Stopped,
    /// The program ended during the answer; the text saved last remains.
    Interrupted,
    /// Failed; the message's `error` is the reason, the text until then is saved.
    Failed,
}

impl MessageStatus {
    /// The name in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            MessageStatus::Streaming => "streaming",
            MessageStatus::Complete => "complete",
            MessageStatus::Stopped => "stopped",
            MessageStatus::Interrupted => "interrupted",
            MessageStatus::Failed => "failed",
        }
    }
}

/// A message of a conversation's tree.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// UUID v7.
    pub id: String,
    /// The conversation it belongs to.
    pub conversation_id: String,
    /// The message it follows; none for the first.
    pub parent_id: Option<String>,
    /// The role of its author.
    pub role: Role,
    /// Its state.
    pub status: MessageStatus,
    /// The text, verbatim: what later prompts are made of.
    pub text: String,
    /// What a person is shown of an answer, as a JSON text of the app's; none where that is the text
    /// and nothing else.
    pub segments: Option<String>,
    /// Its token ids, where they are known; see [`cairn_chat::Message::token_ids`].
    pub token_ids: Option<Vec<u32>>,
    /// Why it failed, in words.
    pub error: Option<String>,
    /// The figures of an answer that has ended.
    pub stats: Option<GenerationStats>,
    /// In milliseconds since the Unix epoch. Not usable for ordering: clocks jump.
    pub created_at_ms: i64,
    /// The order of messages: greater than that of every message saved before.
    pub seq: i64,
}

/// The outcome of an answer; replaces everything saved while it was streaming.
#[derive(Debug, Clone, PartialEq)]
pub struct FinishedMessage {
    /// Any but `Streaming`, which would leave the answer open.
    pub status: MessageStatus,
    /// The whole text; see [`Message::text`].
    pub text: String,
    /// What is shown of it; see [`Message::segments`].
    pub segments: Option<String>,
    /// The sampled token ids, if they are to be used again.
    pub token_ids: Option<Vec<u32>>,
    /// Why it failed, in words.
    pub error: Option<String>,
    /// The figures.
    pub stats: Option<GenerationStats>,
}

impl FromRow<'_, SqliteRow> for Message {
    fn from_row(row: &SqliteRow) -> Result<Message, sqlx::Error> {
        let stats: Option<&str> = row.try_get("stats")?;
        Ok(Message {
            id: row.try_get("id")?,
            conversation_id: row.try_get("conversation_id")?,
            parent_id: row.try_get("parent_id")?,
            role: role_named(row.try_get("role")?)?,
            status: status_named(row.try_get("status")?)?,
            text: row.try_get("text")?,
            segments: row.try_get("segments")?,
            token_ids: token_ids::from_row(row, "token_ids")?,
            error: row.try_get("error")?,
            // Figures that cannot be parsed (JSON has no NaN) must not hide the text of the answer.
            stats: stats.and_then(|stats| serde_json::from_str(stats).ok()),
            created_at_ms: row.try_get("created_at_ms")?,
            seq: row.try_get("seq")?,
        })
    }
}

fn role_named(name: &str) -> Result<Role, sqlx::Error> {
    let roles = [Role::System, Role::User, Role::Assistant];
    roles.into_iter().find(|role| role.as_str() == name).ok_or_else(|| unknown("role", name))
}

fn status_named(name: &str) -> Result<MessageStatus, sqlx::Error> {
    use MessageStatus::{Complete, Failed, Interrupted, Stopped, Streaming};
    let statuses = [Streaming, Complete, Stopped, Interrupted, Failed];
    statuses
        .into_iter()
        .find(|status| status.as_str() == name)
        .ok_or_else(|| unknown("status", name))
}

/// The message at the end of a branch, as far as a new one needs it.
struct Leaf {
    id: String,
    parent_id: Option<String>,
    role: Role,
}

/// The messages from a conversation's first to its leaf. A parent is always older than its child;
/// with that condition the recursion ends even in a damaged file. SQLite keeps the order of a cross
/// join; with another join it would read the messages of all conversations to have them sorted.
pub(crate) const BRANCH: &str = "with recursive line (seq, parent_id) as (
    select messages.seq, messages.parent_id from conversations
    join messages on messages.id = conversations.leaf_message_id
    where conversations.id = ?
    union all
    select messages.seq, messages.parent_id from line
    join messages on messages.id = line.parent_id and messages.seq < line.seq
)
select messages.* from line cross join messages on messages.seq = line.seq order by messages.seq";

impl Store {
    /// Appends a question to the current branch and, after it, an answer that is still empty and
    /// streaming. The branch then ends in the answer. A conversation without a title is named after
    /// the question.
    pub async fn begin_turn(
        &self,
        conversation_id: &str,
        user_text: &str,
        now_ms: i64,
    ) -> Result<(Message, Message), StoreError> {
        let mut tx = self.begin().await?;
        let leaf = self.leaf(&mut tx, conversation_id).await?;
        let parent_id = leaf.map(|leaf| leaf.id);
        let mut user =
            new_message(conversation_id, parent_id, Role::User, MessageStatus::Complete, now_ms);
        user.text = user_text.to_owned();
        let mut assistant = new_message(
            conversation_id,
            Some(user.id.clone()),
            Role::Assistant,
            MessageStatus::Streaming,
            now_ms,
        );
        self.append(&mut tx, &mut user).await?;
        self.append(&mut tx, &mut assistant).await?;
        sqlx::query("update conversations set title = ? where id = ? and title = ''")
            .bind(title_from(user_text))
            .bind(conversation_id)
            .execute(&mut *tx)
            .await
            .map_err(|error| self.failed(error))?;
        self.commit(tx).await?;
        Ok((user, assistant))
    }

    /// Starts another answer to the last question: a streaming sibling of the answer at the end of
    /// the branch. The branch then ends in the new one; the earlier one stays in the tree.
    pub async fn begin_sibling_answer(
        &self,
        conversation_id: &str,
        now_ms: i64,
    ) -> Result<Message, StoreError> {
        let mut tx = self.begin().await?;
        let question = match self.leaf(&mut tx, conversation_id).await? {
            Some(Leaf { role: Role::User, id, .. }) => Some(id),
            Some(Leaf { role: Role::Assistant, parent_id, .. }) => parent_id,
            Some(Leaf { role: Role::System, .. }) | None => None,
        };
        let Some(question) = question else {
            return Err(StoreError::NothingToAnswer {
                conversation_id: conversation_id.to_owned(),
            });
        };
        let mut assistant = new_message(
            conversation_id,
            Some(question),
            Role::Assistant,
            MessageStatus::Streaming,
            now_ms,
        );
        self.append(&mut tx, &mut assistant).await?;
        self.commit(tx).await?;
        Ok(assistant)
    }

    /// Saves the text so far, which replaces what was saved before. A message that has ended
    /// meanwhile keeps its text.
    pub async fn save_progress(
        &self,
        message_id: &str,
        text: &str,
        segments: Option<&str>,
        token_ids: &[u32],
    ) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query(
            "update messages set text = ?, segments = ?, token_ids = ?
             where id = ? and status = 'streaming'",
        )
        .bind(text)
        .bind(segments)
        .bind(token_ids::to_blob(token_ids))
        .bind(message_id)
        .execute(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        self.commit(tx).await
    }

    /// Closes an answer. Doing it again replaces the outcome.
    pub async fn finish(
        &self,
        message_id: &str,
        finished: &FinishedMessage,
    ) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        self.write_finished(&mut tx, message_id, finished).await?;
        self.commit(tx).await
    }

    /// Closes an answer and saves the token ids of its question, both or neither.
    pub async fn finish_turn(
        &self,
        user_message_id: &str,
        user_token_ids: &[u32],
        assistant_message_id: &str,
        finished: &FinishedMessage,
    ) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        self.write_token_ids(&mut tx, user_message_id, user_token_ids).await?;
        self.write_finished(&mut tx, assistant_message_id, finished).await?;
        self.commit(tx).await
    }

    /// Saves the token ids of a message.
    pub async fn set_token_ids(
        &self,
        message_id: &str,
        token_ids: &[u32],
    ) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        self.write_token_ids(&mut tx, message_id, token_ids).await?;
        self.commit(tx).await
    }

    /// The current branch of a conversation, from its first message to its last.
    pub async fn branch(&self, conversation_id: &str) -> Result<Vec<Message>, StoreError> {
        let messages: Vec<Message> = sqlx::query_as(BRANCH)
            .bind(conversation_id)
            .fetch_all(&self.readers)
            .await
            .map_err(|error| self.failed(error))?;
        if messages.is_empty() && self.conversation(conversation_id).await?.is_none() {
            return Err(no_conversation(conversation_id));
        }
        Ok(messages)
    }

    /// One message.
    pub async fn message(&self, message_id: &str) -> Result<Option<Message>, StoreError> {
        sqlx::query_as("select * from messages where id = ?")
            .bind(message_id)
            .fetch_optional(&self.readers)
            .await
            .map_err(|error| self.failed(error))
    }

    /// The end of a branch to which a message can be appended: the conversation exists and is not
    /// being answered.
    async fn leaf(
        &self,
        tx: &mut SqliteConnection,
        conversation_id: &str,
    ) -> Result<Option<Leaf>, StoreError> {
        let row = sqlx::query(
            "select messages.id, messages.parent_id, messages.role, messages.status from conversations
             left join messages on messages.id = conversations.leaf_message_id
             where conversations.id = ? and conversations.deleted_at_ms is null",
        )
        .bind(conversation_id)
        .fetch_optional(tx)
        .await
        .map_err(|error| self.failed(error))?
        .ok_or_else(|| no_conversation(conversation_id))?;
        let read = || -> Result<Option<(Leaf, MessageStatus)>, sqlx::Error> {
            let Some(id) = row.try_get("id")? else { return Ok(None) };
            let leaf = Leaf {
                id,
                parent_id: row.try_get("parent_id")?,
                role: role_named(row.try_get("role")?)?,
            };
            Ok(Some((leaf, status_named(row.try_get("status")?)?)))
        };
        match read().map_err(|error| self.failed(error))? {
            Some((_, MessageStatus::Streaming)) => {
                Err(StoreError::AlreadyStreaming { conversation_id: conversation_id.to_owned() })
            }
            leaf => Ok(leaf.map(|(leaf, _)| leaf)),
        }
    }

    /// Saves a new message, gives it its number, and makes it the end of its conversation's branch.
    async fn append(
        &self,
        tx: &mut SqliteConnection,
        message: &mut Message,
    ) -> Result<(), StoreError> {
        let run_id = (message.status == MessageStatus::Streaming).then_some(&self.run.id);
        let done = sqlx::query(
            "insert into messages (id, conversation_id, parent_id, role, status, run_id, text, created_at_ms) values (?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(&message.id)
        .bind(&message.conversation_id)
        .bind(&message.parent_id)
        .bind(message.role.as_str())
        .bind(message.status.as_str())
        .bind(run_id)
        .bind(&message.text)
        .bind(message.created_at_ms)
        .execute(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        message.seq = done.last_insert_rowid();
        sqlx::query(
            "update conversations set
                 leaf_message_id = ?, updated_at_ms = ?, activity_seq = (select max(activity_seq) + 1 from conversations)
             where id = ?",
        )
        .bind(&message.id)
        .bind(message.created_at_ms)
        .bind(&message.conversation_id)
        .execute(tx)
        .await
        .map_err(|error| self.failed(error))?;
        Ok(())
    }

    async fn write_token_ids(
        &self,
        tx: &mut SqliteConnection,
        message_id: &str,
        token_ids: &[u32],
    ) -> Result<(), StoreError> {
        let done = sqlx::query("update messages set token_ids = ? where id = ?")
            .bind(token_ids::to_blob(token_ids))
            .bind(message_id)
            .execute(tx)
            .await;
        self.changed_a_row(done, || no_message(message_id))
    }

    async fn write_finished(
        &self,
        tx: &mut SqliteConnection,
        message_id: &str,
        finished: &FinishedMessage,
    ) -> Result<(), StoreError> {
        let done = sqlx::query(
            "update messages set status = ?1, run_id = case ?1 when 'streaming' then run_id end,
                 text = ?2, segments = ?3, token_ids = ?4, error = ?5, stats = ?6
             where id = ?7",
        )
        .bind(finished.status.as_str())
        .bind(&finished.text)
        .bind(&finished.segments)
        .bind(finished.token_ids.as_deref().map(token_ids::to_blob))
        .bind(&finished.error)
        // Plain numbers and texts always serialize; if that ever changes, an answer is saved
        // without figures.
        .bind(finished.stats.as_ref().and_then(|stats| serde_json::to_string(stats).ok()))
        .bind(message_id)
        .execute(tx)
        .await;
        self.changed_a_row(done, || no_message(message_id))
    }
}

fn no_message(id: &str) -> StoreError {
    StoreError::NoMessage { id: id.to_owned() }
}

/// A message without text, before it has its number.
fn new_message(
    conversation_id: &str,
    parent_id: Option<String>,
    role: Role,
    status: MessageStatus,
    now_ms: i64,
) -> Message {
    Message {
        id: Uuid::now_v7().to_string(),
        conversation_id: conversation_id.to_owned(),
        parent_id,
        role,
        status,
        text: String::new(),
        segments: None,
        token_ids: None,
        error: None,
        stats: None,
        created_at_ms: now_ms,
        seq: 0,
    }
}
