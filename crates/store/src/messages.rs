//! The messages table: a tree for each conversation, and the stages of an answer in it.

use std::collections::HashSet;

use cairn_chat::{GenerationStats, Role};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{FromRow, Row};

use crate::error::{no_conversation, no_message, unknown};
use crate::new_id;
use crate::search_text::search_text;
use crate::title::title_from;
use crate::{Store, StoreError, savings, token_ids};

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
    /// The same as a JSON text of the app's, where it is common.
    pub error_kind: Option<String>,
    /// The figures of an answer that has ended.
    pub stats: Option<GenerationStats>,
    /// The model that wrote an answer, where that is known.
    pub model: Option<String>,
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
    /// The same as a JSON text of the app's; see [`Message::error_kind`].
    pub error_kind: Option<String>,
    /// The figures.
    pub stats: Option<GenerationStats>,
    /// The model that wrote it; none: the one that was saved with its progress.
    pub model: Option<String>,
}

impl FromRow<'_, SqliteRow> for Message {
    fn from_row(row: &SqliteRow) -> Result<Message, sqlx::Error> {
        let stats: Option<&str> = row.try_get("stats")?;
        // Figures that cannot be parsed (JSON has no NaN) must not hide the text of the answer.
        let stats: Option<GenerationStats> =
            stats.and_then(|stats| serde_json::from_str(stats).ok());
        let model: Option<String> = row.try_get("model")?;
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
            error_kind: row.try_get("error_kind")?,
            model: model.or_else(|| stats.as_ref().map(|stats| stats.model.clone())),
            stats,
            created_at_ms: row.try_get("created_at_ms")?,
            seq: row.try_get("seq")?,
        })
    }
}

pub(crate) fn role_named(name: &str) -> Result<Role, sqlx::Error> {
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

/// A message as far as a new one beside or behind it needs it.
pub(crate) struct Place {
    pub(crate) id: String,
    pub(crate) role: Role,
}

/// The messages from a conversation's first to its leaf, without deleted ones. A parent is always older than its child;
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
select messages.* from line cross join messages on messages.seq = line.seq
where messages.deletion_id is null order by messages.seq";

/// As [`BRANCH`], up to a message.
const BRANCH_TO: &str = "with recursive line (seq, parent_id) as (
    select seq, parent_id from messages where id = ?
    union all
    select messages.seq, messages.parent_id from line
    join messages on messages.id = line.parent_id and messages.seq < line.seq
)
select messages.* from line cross join messages on messages.seq = line.seq
where messages.deletion_id is null order by messages.seq";

impl Store {
    /// As [`Store::begin_turn_with`] all documents of the draft.
    pub async fn begin_turn(
        &self,
        conversation_id: &str,
        user_text: &str,
        now_ms: i64,
    ) -> Result<(Message, Message), StoreError> {
        self.begin_turn_with(conversation_id, user_text, None, now_ms).await
    }

    /// Appends a question to the current branch and, after it, an answer that is still empty and
    /// streaming. These documents of the draft, or all, are the question's from then on, and those of the folder
    /// stay the conversation's. The branch then ends in the answer. A conversation without a title is
    /// named after the question.
    pub async fn begin_turn_with(
        &self,
        conversation_id: &str,
        user_text: &str,
        documents: Option<&[String]>,
        now_ms: i64,
    ) -> Result<(Message, Message), StoreError> {
        let mut tx = self.begin().await?;
        let leaf = self.leaf(&mut tx, conversation_id).await?;
        let parent_id = leaf.map(|leaf| leaf.id);
        let turn = self.append_turn(&mut tx, conversation_id, parent_id, user_text, now_ms).await?;
        self.send_draft_documents(&mut tx, conversation_id, &turn.0.id, documents).await?;
        self.commit(tx).await?;
        Ok(turn)
    }

    /// As [`Store::begin_turn`], with the question beside an earlier one, which stays in the tree with
    /// all that follows it. It has the documents of the earlier one, or else these: each of the
    /// conversation's messages or of its draft, which keeps the others.
    pub async fn begin_edited_turn(
        &self,
        conversation_id: &str,
        question_id: &str,
        user_text: &str,
        documents: Option<&[String]>,
        now_ms: i64,
    ) -> Result<(Message, Message), StoreError> {
        let mut tx = self.begin().await?;
        self.leaf(&mut tx, conversation_id).await?;
        let question = self.place(&mut tx, conversation_id, question_id).await?;
        if question.role != Role::User {
            return Err(StoreError::NotAQuestion { message_id: question.id });
        }
        let tree = self.tree(&mut tx, conversation_id).await?;
        let parent_id = tree.live_parent(question_id).map(str::to_owned);
        let turn = self.append_turn(&mut tx, conversation_id, parent_id, user_text, now_ms).await?;
        match documents {
            None => self.share_documents(&mut tx, question_id, &turn.0.id).await?,
            Some(ids) => self.give_documents(&mut tx, conversation_id, &turn.0.id, ids).await?,
        }
        self.commit(tx).await?;
        Ok(turn)
    }

    /// Starts two answers to one question, beside each other: to a new question with this text, or else
    /// as [`Store::begin_sibling_answer`] does. The branch then ends in the first. Returns the new
    /// question, and both answers.
    pub async fn begin_comparison(
        &self,
        conversation_id: &str,
        message_id: Option<&str>,
        user_text: Option<&str>,
        now_ms: i64,
    ) -> Result<(Option<Message>, [Message; 2]), StoreError> {
        let mut tx = self.begin().await?;
        let (user, mut first) = match user_text {
            Some(text) => {
                let leaf = self.leaf(&mut tx, conversation_id).await?;
                let parent_id = leaf.map(|leaf| leaf.id);
                let (user, first) =
                    self.append_turn(&mut tx, conversation_id, parent_id, text, now_ms).await?;
                self.send_draft_documents(&mut tx, conversation_id, &user.id, None).await?;
                (Some(user), Some(first))
            }
            None => (None, None),
        };
        let question = match &user {
            Some(user) => user.id.clone(),
            None => self.question_of(&mut tx, conversation_id, message_id).await?,
        };
        let mut another = async || {
            let mut answer = new_answer(conversation_id, &question, now_ms);
            self.append(&mut tx, &mut answer).await.map(|()| answer)
        };
        let first = match first.take() {
            Some(first) => first,
            None => another().await?,
        };
        let second = another().await?;
        self.set_leaf(&mut tx, conversation_id, Some(&first.id)).await?;
        self.commit(tx).await?;
        Ok((user, [first, second]))
    }

    /// Asks the same question behind two answers that were compared, each on its own branch, and starts
    /// an answer to both. The branch then ends in the first. Both questions have the documents of the
    /// draft. Returns the questions and the answers.
    pub async fn begin_question_to_both(
        &self,
        conversation_id: &str,
        answer_ids: [&str; 2],
        user_text: &str,
        now_ms: i64,
    ) -> Result<([Message; 2], [Message; 2]), StoreError> {
        let mut tx = self.begin().await?;
        self.leaf(&mut tx, conversation_id).await?;
        let mut turns = Vec::with_capacity(2);
        for id in answer_ids {
            let answer = self.place(&mut tx, conversation_id, id).await?;
            if answer.role != Role::Assistant {
                return Err(no_message(id));
            }
            let parent_id = Some(answer.id);
            turns.push(
                self.append_turn(&mut tx, conversation_id, parent_id, user_text, now_ms).await?,
            );
        }
        let [first, second] =
            <[(Message, Message); 2]>::try_from(turns).map_err(|_| no_message(answer_ids[0]))?;
        self.send_draft_documents(&mut tx, conversation_id, &first.0.id, None).await?;
        self.share_documents(&mut tx, &first.0.id, &second.0.id).await?;
        self.set_leaf(&mut tx, conversation_id, Some(&first.1.id)).await?;
        self.commit(tx).await?;
        Ok(([first.0, second.0], [first.1, second.1]))
    }

    /// The question that another answer belongs to: of the answer `message_id`, the question
    /// `message_id` itself, or without one the last of the branch.
    async fn question_of(
        &self,
        tx: &mut SqliteConnection,
        conversation_id: &str,
        message_id: Option<&str>,
    ) -> Result<String, StoreError> {
        let leaf = self.leaf(tx, conversation_id).await?;
        let asked = match message_id {
            Some(id) => Some(self.place(tx, conversation_id, id).await?),
            None => leaf,
        };
        let question = match asked {
            Some(Place { role: Role::User, id, .. }) => Some(id),
            Some(Place { role: Role::Assistant, id, .. }) => {
                let tree = self.tree(tx, conversation_id).await?;
                tree.live_parent(&id).map(str::to_owned)
            }
            Some(Place { role: Role::System, .. }) | None => None,
        };
        question.ok_or_else(|| StoreError::NothingToAnswer {
            conversation_id: conversation_id.to_owned(),
        })
    }

    /// Starts another answer: beside the answer `message_id`, to the question `message_id`, or without
    /// one to the last question of the branch. The branch then ends in the new one; what was there
    /// stays in the tree.
    pub async fn begin_sibling_answer(
        &self,
        conversation_id: &str,
        message_id: Option<&str>,
        now_ms: i64,
    ) -> Result<Message, StoreError> {
        let mut tx = self.begin().await?;
        let question = self.question_of(&mut tx, conversation_id, message_id).await?;
        let mut assistant = new_answer(conversation_id, &question, now_ms);
        self.append(&mut tx, &mut assistant).await?;
        self.commit(tx).await?;
        Ok(assistant)
    }

    /// Lets the answer at the end of the branch stream again, with what it has. Returns it as it was.
    pub async fn resume_answer(
        &self,
        conversation_id: &str,
        message_id: &str,
    ) -> Result<Message, StoreError> {
        let mut tx = self.begin().await?;
        let leaf = self.leaf(&mut tx, conversation_id).await?;
        let is_last =
            leaf.is_some_and(|leaf| leaf.id == message_id && leaf.role == Role::Assistant);
        if !is_last {
            return Err(StoreError::NotTheLastAnswer { message_id: message_id.to_owned() });
        }
        let before: Message = sqlx::query_as("select * from messages where id = ?")
            .bind(message_id)
            .fetch_one(&mut *tx)
            .await
            .map_err(|error| self.failed(error))?;
        let resume =
            sqlx::query("update messages set status = 'streaming', run_id = ? where id = ?");
        let done = resume.bind(&self.run.id).bind(message_id).execute(&mut *tx).await;
        self.changed_a_row(done, || no_message(message_id))?;
        self.commit(tx).await?;
        Ok(before)
    }

    /// Appends a question and the answer that begins.
    async fn append_turn(
        &self,
        tx: &mut SqliteConnection,
        conversation_id: &str,
        parent_id: Option<String>,
        user_text: &str,
        now_ms: i64,
    ) -> Result<(Message, Message), StoreError> {
        self.begin_with_folder(tx, conversation_id).await?;
        let mut user =
            new_message(conversation_id, parent_id, Role::User, MessageStatus::Complete, now_ms);
        user.text = user_text.to_owned();
        let mut assistant = new_answer(conversation_id, &user.id, now_ms);
        self.append(tx, &mut user).await?;
        self.append(tx, &mut assistant).await?;
        sqlx::query("update conversations set title = ? where id = ? and title = ''")
            .bind(title_from(user_text))
            .bind(conversation_id)
            .execute(tx)
            .await
            .map_err(|error| self.failed(error))?;
        Ok((user, assistant))
    }

    /// Saves the text so far, which replaces what was saved before, and the model that writes it. A
    /// message that has ended meanwhile keeps its text.
    pub async fn save_progress(
        &self,
        message_id: &str,
        text: &str,
        segments: Option<&str>,
        token_ids: &[u32],
        model: Option<&str>,
    ) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query(
            "update messages set text = ?, segments = ?, token_ids = ?, model = coalesce(?, model)
             where id = ? and status = 'streaming'",
        )
        .bind(text)
        .bind(segments)
        .bind(token_ids::to_blob(token_ids))
        .bind(model)
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

    /// The messages from a conversation's first to one of any branch, without deleted ones.
    pub async fn branch_to(&self, message_id: &str) -> Result<Vec<Message>, StoreError> {
        sqlx::query_as(BRANCH_TO)
            .bind(message_id)
            .fetch_all(&self.readers)
            .await
            .map_err(|error| self.failed(error))
    }

    /// The ids of the answers that were being written when Cairn was killed, and have not gone on
    /// since.
    pub async fn broken_off_answers(&self) -> Result<HashSet<String>, StoreError> {
        let select = "select messages.id from broken_off_answers
             join messages on messages.seq = message_seq";
        let ids = sqlx::query_scalar::<_, String>(select).fetch_all(&self.readers).await;
        Ok(ids.map_err(|error| self.failed(error))?.into_iter().collect())
    }

    /// One message.
    pub async fn message(&self, message_id: &str) -> Result<Option<Message>, StoreError> {
        sqlx::query_as("select * from messages where id = ?")
            .bind(message_id)
            .fetch_optional(&self.readers)
            .await
            .map_err(|error| self.failed(error))
    }

    /// The end of the branch on screen, of a conversation that exists and is not being answered.
    pub(crate) async fn leaf(
        &self,
        tx: &mut SqliteConnection,
        conversation_id: &str,
    ) -> Result<Option<Place>, StoreError> {
        let leaf: Option<Option<String>> = sqlx::query_scalar(
            "select leaf_message_id from conversations where id = ? and deleted_at_ms is null",
        )
        .bind(conversation_id)
        .fetch_optional(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        let Some(leaf) = leaf.ok_or_else(|| no_conversation(conversation_id))? else {
            return Ok(None);
        };
        // Only the end of the branch on screen is ever streaming, and an answer that is compared with
        // one beside it.
        let is_streaming: bool = sqlx::query_scalar(
            "select exists (select 1 from messages where run_id is not null and conversation_id = ?)",
        )
        .bind(conversation_id)
        .fetch_one(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        if is_streaming {
            let conversation_id = conversation_id.to_owned();
            return Err(StoreError::AlreadyStreaming { conversation_id });
        }
        self.place(tx, conversation_id, &leaf).await.map(Some)
    }

    /// A message of a conversation that is not deleted.
    pub(crate) async fn place(
        &self,
        tx: &mut SqliteConnection,
        conversation_id: &str,
        message_id: &str,
    ) -> Result<Place, StoreError> {
        let row = sqlx::query(
            "select id, role from messages
             where id = ? and conversation_id = ? and deletion_id is null",
        )
        .bind(message_id)
        .bind(conversation_id)
        .fetch_optional(tx)
        .await
        .map_err(|error| self.failed(error))?
        .ok_or_else(|| no_message(message_id))?;
        let read = || -> Result<Place, sqlx::Error> {
            Ok(Place { id: row.try_get("id")?, role: role_named(row.try_get("role")?)? })
        };
        read().map_err(|error| self.failed(error))
    }

    /// Saves a new message, gives it its number, and makes it the end of its conversation's branch.
    async fn append(
        &self,
        tx: &mut SqliteConnection,
        message: &mut Message,
    ) -> Result<(), StoreError> {
        let run_id = (message.status == MessageStatus::Streaming).then_some(&self.run.id);
        let done = sqlx::query(
            "insert into messages (id, conversation_id, parent_id, role, status, run_id, text, search_text, created_at_ms) values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(&message.id)
        .bind(&message.conversation_id)
        .bind(&message.parent_id)
        .bind(message.role.as_str())
        .bind(message.status.as_str())
        .bind(run_id)
        .bind(&message.text)
        .bind(search_text(&message.text, None))
        .bind(message.created_at_ms)
        .execute(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        message.seq = done.last_insert_rowid();
        sqlx::query(
            "update conversations set updated_at_ms = ?, activity_seq = (select max(activity_seq) + 1 from conversations)
             where id = ?",
        )
        .bind(message.created_at_ms)
        .bind(&message.conversation_id)
        .execute(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        self.set_leaf(tx, &message.conversation_id, Some(&message.id)).await
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
                 text = ?2, segments = ?3, token_ids = ?4, error = ?5, stats = ?6, search_text = ?7,
                 model = coalesce(?9, model), error_kind = ?10
             where id = ?8",
        )
        .bind(finished.status.as_str())
        .bind(&finished.text)
        .bind(&finished.segments)
        .bind(finished.token_ids.as_deref().map(token_ids::to_blob))
        .bind(&finished.error)
        // Plain numbers and texts always serialize; if that ever changes, an answer is saved
        // without figures.
        .bind(finished.stats.as_ref().and_then(|stats| serde_json::to_string(stats).ok()))
        .bind(search_text(&finished.text, finished.segments.as_deref()))
        .bind(message_id)
        .bind(&finished.model)
        .bind(&finished.error_kind)
        .execute(&mut *tx)
        .await;
        self.changed_a_row(done, || no_message(message_id))?;
        let forget = sqlx::query(
            "delete from broken_off_answers
             where message_seq = (select seq from messages where id = ?)",
        );
        forget.bind(message_id).execute(&mut *tx).await.map_err(|error| self.failed(error))?;
        match &finished.stats {
            Some(stats) => {
                savings::write(tx, message_id, stats).await.map_err(|error| self.failed(error))
            }
            None => Ok(()),
        }
    }
}

/// An answer that begins.
fn new_answer(conversation_id: &str, question: &str, now_ms: i64) -> Message {
    let question = Some(question.to_owned());
    new_message(conversation_id, question, Role::Assistant, MessageStatus::Streaming, now_ms)
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
        id: new_id().to_string(),
        conversation_id: conversation_id.to_owned(),
        parent_id,
        role,
        status,
        text: String::new(),
        segments: None,
        token_ids: None,
        error: None,
        error_kind: None,
        stats: None,
        model: None,
        created_at_ms: now_ms,
        seq: 0,
    }
}
