//! What is done with the branches of a conversation: showing another one, copying one, and deletions
//! of messages that can be undone. No text, author or order of a message ever changes here.

use std::collections::HashMap;

use sqlx::Row;
use sqlx::sqlite::SqliteConnection;

use crate::conversations::CONVERSATION;
use crate::error::{no_conversation, no_message};
use crate::messages::{BRANCH, MessageStatus};
use crate::new_id;
use crate::tree::{Tree, TreeRow};
use crate::{Conversation, Message, Store, StoreError, Versions};

/// Messages that were deleted together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageDeletion {
    /// For [`Store::restore_messages`].
    pub id: String,
    /// How many messages.
    pub num_messages: usize,
}

impl Store {
    /// Returns which messages of a conversation are versions of each other.
    pub async fn versions(&self, conversation_id: &str) -> Result<Versions, StoreError> {
        let mut connection = self.readers.acquire().await.map_err(|error| self.failed(error))?;
        Ok(self.tree(&mut connection, conversation_id).await?.into_versions())
    }

    /// Puts the branch with a message on screen, up to where it was last: its end becomes the end of
    /// the conversation's branch.
    pub async fn show_version(
        &self,
        conversation_id: &str,
        message_id: &str,
    ) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        self.leaf(&mut tx, conversation_id).await?;
        let tree = self.tree(&mut tx, conversation_id).await?;
        let leaf = tree.leaf_below(Some(message_id)).ok_or_else(|| no_message(message_id))?;
        self.set_leaf(&mut tx, conversation_id, Some(leaf)).await?;
        self.commit(tx).await
    }

    /// As [`Store::show_version`], of an answer that may still be written while it is compared.
    pub async fn show_compared(
        &self,
        conversation_id: &str,
        message_id: &str,
    ) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let tree = self.tree(&mut tx, conversation_id).await?;
        let leaf = tree.leaf_below(Some(message_id)).ok_or_else(|| no_message(message_id))?;
        self.set_leaf(&mut tx, conversation_id, Some(leaf)).await?;
        self.commit(tx).await
    }

    /// Hides a message, with all that follows it or alone, until [`Store::restore_messages`] or until
    /// this program has closed the database. What follows a message that is deleted alone then follows
    /// the one before it.
    pub async fn delete_messages(
        &self,
        conversation_id: &str,
        message_id: &str,
        with_following: bool,
    ) -> Result<MessageDeletion, StoreError> {
        let mut tx = self.begin().await?;
        let leaf = self.leaf(&mut tx, conversation_id).await?;
        let tree = self.tree(&mut tx, conversation_id).await?;
        if !tree.is_live(message_id) {
            return Err(no_message(message_id));
        }
        let ids = match with_following {
            true => tree.following(message_id),
            false => vec![message_id],
        };
        let id = new_id().to_string();
        sqlx::query(
            "insert into message_deletions (id, conversation_id, leaf_before, deleted_by_run_id)
             values (?, ?, ?, ?)",
        )
        .bind(&id)
        .bind(conversation_id)
        .bind(leaf.as_ref().map_or("", |leaf| &leaf.id))
        .bind(&self.run.id)
        .execute(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        let mut num_messages = 0;
        for message in ids {
            // What an earlier deletion hides stays its own.
            let hide = "update messages set deletion_id = ? where id = ? and deletion_id is null";
            let hide = sqlx::query(hide).bind(&id).bind(message);
            let done = hide.execute(&mut *tx).await.map_err(|error| self.failed(error))?;
            num_messages += done.rows_affected() as usize;
        }
        let after = self.tree(&mut tx, conversation_id).await?;
        if leaf.is_some_and(|leaf| !after.is_live(&leaf.id)) {
            let leaf = after.leaf_instead(message_id);
            self.set_leaf(&mut tx, conversation_id, leaf).await?;
        }
        self.commit(tx).await?;
        Ok(MessageDeletion { id, num_messages })
    }

    /// Undoes a [`Store::delete_messages`]. The branch that was on screen then is shown again, unless
    /// the conversation is being answered or what was deleted was not its end.
    pub async fn restore_messages(
        &self,
        conversation_id: &str,
        deletion_id: &str,
    ) -> Result<(), StoreError> {
        let no_deletion = || StoreError::NoDeletion { id: deletion_id.to_owned() };
        let mut tx = self.begin().await?;
        let row = sqlx::query(
            "select leaf_before,
                 exists (select 1 from messages where id = leaf_before and deletion_id = ?1) as hides_leaf
             from message_deletions where id = ?1 and conversation_id = ?2",
        )
        .bind(deletion_id)
        .bind(conversation_id)
        .fetch_optional(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?
        .ok_or_else(no_deletion)?;
        let read = || -> Result<(String, bool), sqlx::Error> {
            Ok((row.try_get("leaf_before")?, row.try_get("hides_leaf")?))
        };
        let (leaf_before, hides_leaf) = read().map_err(|error| self.failed(error))?;
        for statement in [
            "update messages set deletion_id = null where deletion_id = ?",
            "delete from message_deletions where id = ?",
        ] {
            let done = sqlx::query(statement).bind(deletion_id).execute(&mut *tx).await;
            done.map_err(|error| self.failed(error))?;
        }
        let leaf = match self.leaf(&mut tx, conversation_id).await {
            Err(StoreError::AlreadyStreaming { .. }) => return self.commit(tx).await,
            leaf => leaf?,
        };
        let tree = self.tree(&mut tx, conversation_id).await?;
        // What was restored may follow the end that was shown meanwhile.
        let shown = match (hides_leaf, leaf) {
            (true, _) => tree.leaf_below(Some(&leaf_before)),
            (false, Some(leaf)) => tree.leaf_below(Some(&leaf.id)),
            (false, None) => tree.leaf_below(None),
        };
        self.set_leaf(&mut tx, conversation_id, shown).await?;
        self.commit(tx).await
    }

    /// Copies the branch from its first message up to one of its messages into a new conversation,
    /// with system prompt, prefix, settings, model, persona, folder and documents, and with what its last answer
    /// was written with. Texts and token ids are the same, ids are new.
    pub async fn copy_branch(
        &self,
        conversation_id: &str,
        message_id: &str,
        title: &str,
        now_ms: i64,
    ) -> Result<Conversation, StoreError> {
        let mut tx = self.begin().await?;
        let messages: Vec<Message> = sqlx::query_as(BRANCH)
            .bind(conversation_id)
            .fetch_all(&mut *tx)
            .await
            .map_err(|error| self.failed(error))?;
        let end = messages
            .iter()
            .position(|message| message.id == message_id)
            .ok_or_else(|| no_message(message_id))?;
        if messages[end].status == MessageStatus::Streaming {
            return Err(StoreError::AlreadyStreaming {
                conversation_id: conversation_id.to_owned(),
            });
        }
        let id = new_id().to_string();
        let done = sqlx::query(
            "insert into conversations
                 (id, title, system_prompt, activity_seq, created_at_ms, updated_at_ms, setting_overrides, model, prefix_named_id, prefix_name,
                  prefix_kind, prefix_kv_format, prefix_provenance, prefix_num_tokens, prefix_token_ids, prefix_start_text,
                  prefix_end_text, prefix_is_imported, answered_system_prompt, answered_template, folder_id)
             select ?, ?, system_prompt, (select max(activity_seq) + 1 from conversations), ?, ?, setting_overrides, model, prefix_named_id,
                  prefix_name, prefix_kind, prefix_kv_format, prefix_provenance, prefix_num_tokens, prefix_token_ids,
                  prefix_start_text, prefix_end_text, prefix_is_imported, answered_system_prompt, answered_template, folder_id
             from conversations where id = ? and deleted_at_ms is null",
        )
        .bind(&id)
        .bind(title)
        .bind(now_ms)
        .bind(now_ms)
        .bind(conversation_id)
        .execute(&mut *tx)
        .await;
        self.changed_a_row(done, || no_conversation(conversation_id))?;
        sqlx::query(
            "insert into conversation_branches (conversation_id, title, of_title)
             select ?1, ?3, coalesce(
                 (select of_title from conversation_branches
                     where conversation_id = ?2 and conversation_branches.title = conversations.title),
                 title)
             from conversations where id = ?2",
        )
        .bind(&id)
        .bind(conversation_id)
        .bind(title)
        .execute(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        sqlx::query(
            "insert into conversation_personas (conversation_id, persona_id)
             select ?, persona_id from conversation_personas where conversation_id = ?",
        )
        .bind(&id)
        .bind(conversation_id)
        .execute(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        sqlx::query(
            "insert into conversation_documents (conversation_id, document_id)
             select ?, document_id from conversation_documents where conversation_id = ?",
        )
        .bind(&id)
        .bind(conversation_id)
        .execute(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        let mut parent: Option<String> = None;
        for message in &messages[..=end] {
            let copy = new_id().to_string();
            sqlx::query(
                "insert into messages
                     (id, conversation_id, parent_id, role, status, text, search_text, segments, token_ids, error, error_kind, stats, model, created_at_ms)
                 select ?, ?, ?, role, status, text, search_text, segments, token_ids, error, error_kind, stats, model, created_at_ms
                 from messages where id = ?",
            )
            .bind(&copy)
            .bind(&id)
            .bind(&parent)
            .bind(&message.id)
            .execute(&mut *tx)
            .await
            .map_err(|error| self.failed(error))?;
            sqlx::query(
                "insert into context_cuts (message_id, summary, created_at_ms)
                 select ?, summary, created_at_ms from context_cuts where message_id = ?",
            )
            .bind(&copy)
            .bind(&message.id)
            .execute(&mut *tx)
            .await
            .map_err(|error| self.failed(error))?;
            self.copy_documents(&mut tx, &message.id, &id, &copy).await?;
            parent = Some(copy);
        }
        self.set_leaf(&mut tx, &id, parent.as_deref()).await?;
        // The copies are newer than the choice also where nothing was asked since.
        sqlx::query(
            "update conversations set model_chosen_after_seq = (select max(seq) from messages)
             where id = ?1 and (select model_chosen_after_seq from conversations where id = ?2) >= ?3",
        )
        .bind(&id)
        .bind(conversation_id)
        .bind(messages[end].seq)
        .execute(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        let conversation: Conversation = sqlx::query_as(CONVERSATION.as_str())
            .bind(&id)
            .fetch_one(&mut *tx)
            .await
            .map_err(|error| self.failed(error))?;
        self.commit(tx).await?;
        self.new_documents.notify_one();
        Ok(conversation)
    }

    /// The tree of a conversation.
    pub(crate) async fn tree(
        &self,
        connection: &mut SqliteConnection,
        conversation_id: &str,
    ) -> Result<Tree, StoreError> {
        let rows: Vec<TreeRow> = sqlx::query_as(TREE)
            .bind(conversation_id)
            .fetch_all(connection)
            .await
            .map_err(|error| self.failed(error))?;
        Ok(Tree::new(rows))
    }

    /// Makes a message the end of its conversation's branch.
    pub(crate) async fn set_leaf(
        &self,
        tx: &mut SqliteConnection,
        conversation_id: &str,
        message_id: Option<&str>,
    ) -> Result<(), StoreError> {
        sqlx::query("update conversations set leaf_message_id = ? where id = ?")
            .bind(message_id)
            .bind(conversation_id)
            .execute(&mut *tx)
            .await
            .map_err(|error| self.failed(error))?;
        sqlx::query(
            "update messages set shown_seq =
                 (select coalesce(max(shown_seq), 0) + 1 from messages where conversation_id = ?)
             where id = ?",
        )
        .bind(conversation_id)
        .bind(message_id)
        .execute(tx)
        .await
        .map_err(|error| self.failed(error))?;
        Ok(())
    }
}

/// The rows of a conversation's tree, which the index has without the texts.
pub(crate) const TREE: &str = "select id, parent_id, shown_seq, deletion_id from messages
    where conversation_id = ? order by seq";

/// Removes for good the messages that a run has deleted. What follows one that was deleted alone then
/// follows the one before it.
pub(crate) async fn purge_messages(
    tx: &mut SqliteConnection,
    run: &str,
) -> Result<(), sqlx::Error> {
    const GONE: &str = "select messages.id from message_deletions
        join messages on messages.deletion_id = message_deletions.id
        where message_deletions.deleted_by_run_id = ?1";
    show_what_stays(tx, GONE, run).await?;
    let conversations =
        "select distinct conversation_id from message_deletions where deleted_by_run_id = ?";
    let conversations: Vec<String> =
        sqlx::query_scalar(conversations).bind(run).fetch_all(&mut *tx).await?;
    for conversation in conversations {
        lift(tx, &conversation, GONE, run).await?;
    }
    let delete = format!("delete from messages where id in ({GONE})");
    sqlx::query(sqlx::AssertSqlSafe(delete)).bind(run).execute(&mut *tx).await?;
    sqlx::query("delete from message_deletions where deleted_by_run_id = ?")
        .bind(run)
        .execute(tx)
        .await?;
    Ok(())
}

/// Moves the messages after removed ones to the nearest message before them that stays.
async fn lift(
    tx: &mut SqliteConnection,
    conversation_id: &str,
    gone: &str,
    run: &str,
) -> Result<(), sqlx::Error> {
    let select = format!(
        "select id, parent_id, id in ({gone}) from messages where conversation_id = ?2 order by seq"
    );
    let rows: Vec<(String, Option<String>, bool)> = sqlx::query_as(sqlx::AssertSqlSafe(select))
        .bind(run)
        .bind(conversation_id)
        .fetch_all(&mut *tx)
        .await?;
    // The new parent of the messages after each removed message.
    let mut instead: HashMap<String, Option<String>> = HashMap::new();
    for (id, parent, is_gone) in rows {
        let lifted = parent.as_ref().and_then(|parent| instead.get(parent).cloned());
        match lifted {
            _ if is_gone => drop(instead.insert(id, lifted.unwrap_or(parent))),
            Some(parent) => {
                let lift = sqlx::query("update messages set parent_id = ? where id = ?");
                lift.bind(parent).bind(id).execute(&mut *tx).await?;
            }
            None => {}
        }
    }
    Ok(())
}

/// Moves the ends of branches that are to be removed to what stays.
async fn show_what_stays(
    tx: &mut SqliteConnection,
    gone: &str,
    run: &str,
) -> Result<(), sqlx::Error> {
    let ends =
        format!("select id, leaf_message_id from conversations where leaf_message_id in ({gone})");
    let ends: Vec<(String, String)> =
        sqlx::query_as(sqlx::AssertSqlSafe(ends)).bind(run).fetch_all(&mut *tx).await?;
    for (conversation, leaf) in ends {
        let rows: Vec<TreeRow> =
            sqlx::query_as(TREE).bind(&conversation).fetch_all(&mut *tx).await?;
        let tree = Tree::new(rows);
        sqlx::query("update conversations set leaf_message_id = ? where id = ?")
            .bind(tree.leaf_instead(&leaf))
            .bind(&conversation)
            .execute(&mut *tx)
            .await?;
    }
    Ok(())
}
