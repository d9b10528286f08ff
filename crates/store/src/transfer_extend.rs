//! Takes what a chat has become elsewhere into the tree that it has here. Nothing that is here changes.

use std::collections::{HashMap, HashSet, VecDeque};

use sqlx::{FromRow, SqliteConnection};
use uuid::Uuid;

use crate::new_id;
use crate::transfer::insert_message;
use crate::{ImportedConversation, ImportedMessage, Store, StoreError};

/// A message that is here, one that was deleted included: until its deletion is final it does not come
/// back.
#[derive(FromRow)]
struct StoredMessage {
    id: String,
    parent_id: Option<String>,
    role: String,
    text: String,
    deletion_id: Option<String>,
}

impl Store {
    /// Inserts the messages that are not here, and returns how many of them are seen. What follows a
    /// deleted message is deleted with it, so that undoing the deletion brings both. The branch on screen
    /// goes on to them only where nothing else follows its end.
    pub(crate) async fn extend_conversation(
        &self,
        tx: &mut SqliteConnection,
        id: &str,
        given: &ImportedConversation,
    ) -> Result<usize, StoreError> {
        let failed = |error| self.failed(error);
        let stored: Vec<StoredMessage> = sqlx::query_as(
            "select id, parent_id, role, text, deletion_id from messages
             where conversation_id = ? order by seq",
        )
        .bind(id)
        .fetch_all(&mut *tx)
        .await
        .map_err(failed)?;
        let mut ids = matches(&stored, &given.messages);
        let mut deletions: HashMap<String, String> = stored
            .into_iter()
            .filter_map(|message| Some((message.id, message.deletion_id?)))
            .collect();
        let mut num_seen = 0;
        for (index, message) in given.messages.iter().enumerate() {
            if ids[index].is_some() {
                continue;
            }
            let parent = parent_of(message, index).and_then(|parent| ids[parent].clone());
            let new = free_id(tx, message).await.map_err(failed)?;
            insert_message(tx, message, id, &new, parent.as_deref()).await.map_err(failed)?;
            match parent.and_then(|parent| deletions.get(&parent).cloned()) {
                Some(deletion) => {
                    hide(tx, &new, &deletion).await.map_err(failed)?;
                    deletions.insert(new.clone(), deletion);
                }
                None => num_seen += 1,
            }
            ids[index] = Some(new);
        }
        if num_seen > 0 {
            self.advance_leaf(tx, id, given, &ids).await?;
            self.advance_activity(tx, id, given.updated_at_ms).await?;
        }
        Ok(num_seen)
    }

    /// Moves the end of the branch on screen on, if the given branch continues it and nothing between
    /// them is deleted; else to the end of what has come in behind it.
    async fn advance_leaf(
        &self,
        tx: &mut SqliteConnection,
        id: &str,
        given: &ImportedConversation,
        ids: &[Option<String>],
    ) -> Result<(), StoreError> {
        let leaf: Option<String> =
            sqlx::query_scalar("select leaf_message_id from conversations where id = ?")
                .bind(id)
                .fetch_one(&mut *tx)
                .await
                .map_err(|error| self.failed(error))?;
        let tree = self.tree(tx, id).await?;
        let is_live = |place: usize| ids[place].as_deref().is_some_and(|id| tree.is_live(id));
        let last = given.messages.len() - 1;
        let end = given.leaf.filter(|leaf| *leaf <= last).unwrap_or(last);
        let mut branch = Some(end);
        while let Some(place) = branch.filter(|place| ids[*place] != leaf && is_live(*place)) {
            branch = parent_of(&given.messages[place], place);
        }
        // Without a branch on screen, any that is whole continues it.
        let continues = branch.map_or(leaf.is_none(), |place| ids[place] == leaf);
        let new = match continues {
            true => ids[end].as_deref(),
            false => tree.leaf_below(leaf.as_deref()),
        };
        match new {
            Some(new) if Some(new) != leaf.as_deref() => self.set_leaf(tx, id, Some(new)).await,
            _ => Ok(()),
        }
    }

    /// Moves the conversation up to where its last change puts it.
    async fn advance_activity(
        &self,
        tx: &mut SqliteConnection,
        id: &str,
        updated_at_ms: i64,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "update conversations set updated_at_ms = max(updated_at_ms, ?2),
                 activity_seq = max(activity_seq, coalesce((
                     select activity_seq from conversations where updated_at_ms <= ?2
                     order by activity_seq desc limit 1), 0))
             where id = ?1",
        )
        .bind(id)
        .bind(updated_at_ms)
        .execute(tx)
        .await
        .map(drop)
        .map_err(|error| self.failed(error))
    }
}

/// Makes a message part of a deletion.
async fn hide(tx: &mut SqliteConnection, id: &str, deletion: &str) -> Result<(), sqlx::Error> {
    let hide = sqlx::query("update messages set deletion_id = ? where id = ?");
    hide.bind(deletion).bind(id).execute(tx).await.map(drop)
}

fn parent_of(message: &ImportedMessage, place: usize) -> Option<usize> {
    message.parent.filter(|parent| *parent < place)
}

/// The ids that the given messages have here; none: they are new. The same id is the same message,
/// unless it has become longer elsewhere; under other ids the one at the same place with the same text.
fn matches(stored: &[StoredMessage], given: &[ImportedMessage]) -> Vec<Option<String>> {
    let by_id: HashMap<&str, &StoredMessage> =
        stored.iter().map(|row| (row.id.as_str(), row)).collect();
    let mut ids: Vec<Option<String>> = given
        .iter()
        .map(|message| {
            let row = by_id.get(message.id.as_deref()?)?;
            row.text.starts_with(&message.text).then(|| row.id.clone())
        })
        .collect();
    let mut taken: HashSet<String> = ids.iter().flatten().cloned().collect();
    let mut by_place: HashMap<(Option<&str>, &str, &str), usize> = HashMap::new();
    let mut same_place: Vec<VecDeque<&str>> = Vec::new();
    for row in stored {
        let place = (row.parent_id.as_deref(), row.role.as_str(), row.text.as_str());
        let group = *by_place.entry(place).or_insert(same_place.len());
        same_place.resize_with(same_place.len().max(group + 1), VecDeque::new);
        same_place[group].push_back(&row.id);
    }
    for (index, message) in given.iter().enumerate() {
        if ids[index].is_some() {
            continue;
        }
        let parent = parent_of(message, index);
        let parent_id = parent.and_then(|parent| ids[parent].as_deref());
        // What follows a new message is new.
        if parent.is_some() && parent_id.is_none() {
            continue;
        }
        let place = (parent_id, message.role.as_str(), message.text.as_str());
        // What is taken stays taken, so each id is looked at once, however many have the same text.
        let same = by_place.get(&place).and_then(|group| {
            let group = &mut same_place[*group];
            std::iter::from_fn(|| group.pop_front()).find(|id| !taken.contains(*id))
        });
        let same = same.map(str::to_owned);
        taken.extend(same.clone());
        ids[index] = same;
    }
    ids
}

/// The id that a message is to have, unless it is in use.
async fn free_id(
    tx: &mut SqliteConnection,
    message: &ImportedMessage,
) -> Result<String, sqlx::Error> {
    if let Some(id) = message.id.as_ref().filter(|id| Uuid::parse_str(id).is_ok()) {
        let is_used: bool =
            sqlx::query_scalar("select exists (select 1 from messages where id = ?)")
                .bind(id)
                .fetch_one(tx)
                .await?;
        if !is_used {
            return Ok(id.clone());
        }
    }
    Ok(new_id().to_string())
}
