//! Search over all conversations: which messages have the words of a query, and the conversations
//! they are in. Documents are searched beside them. Deleted conversations are never found.

use std::collections::{HashMap, HashSet};

use cairn_chat::Role;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use crate::messages::role_named;
use crate::search_documents::FoundDocuments;
use crate::search_results::{EXCERPT_WORDS, MARKS, MAX_RANKED, newness, pieces};
use crate::search_text::{has_words, query};
use crate::{FoundConversation, Store, StoreError};

/// How many messages of a common word are looked through for other conversations.
const MAX_READ: usize = 20 * MAX_RANKED;

/// A message that has the words.
struct Hit {
    seq: i64,
    id: String,
    conversation_id: String,
    role: Role,
    created_at_ms: i64,
    /// Greater is better.
    score: f64,
}

impl Store {
    /// The conversations with all words of `text` in one message of any branch, or in a document, the
    /// best first, at most `limit`. The last word may be a beginning, unless white space follows it;
    /// words in quotation marks stand beside each other. Case and accents do not matter. Only whole words
    /// of scripts with spaces are found, and any characters of others.
    ///
    /// Conversations with a document whose name has the words come first, the newest before older ones;
    /// then the best messages and documents, two of those for one of these. A message that has the words
    /// more often and is shorter is better, and a new one up to twice as good as an old one. Of words in
    /// more than 1,000 messages or passages the newest come first. A conversation is there once for the
    /// names of its documents or for its messages, and a document once.
    pub async fn search_messages(
        &self,
        text: &str,
        limit: usize,
        now_ms: i64,
    ) -> Result<Vec<FoundConversation>, StoreError> {
        let documents = async {
            let found = self.search_documents(text, limit, now_ms).await;
            found.map_err(|error| self.failed(error))
        };
        let by_words = self.search_words(text, limit, now_ms);
        let (documents, by_words) = tokio::try_join!(documents, by_words)?;
        Ok(together_with(documents, by_words, limit))
    }

    /// The conversations with all words in one message, the best first.
    async fn search_words(
        &self,
        text: &str,
        limit: usize,
        now_ms: i64,
    ) -> Result<Vec<FoundConversation>, StoreError> {
        let Some(query) = query(text) else { return Ok(Vec::new()) };
        let ranked = self.ranked(&query, now_ms).await.map_err(|error| self.failed(error))?;
        let hits = match ranked {
            Some(ranked) => ranked,
            None => self.newest(&query, limit).await.map_err(|error| self.failed(error))?,
        };
        let mut best = best_of_each(hits);
        best.truncate(limit);
        self.with_excerpts(&query, best).await.map_err(|error| self.failed(error))
    }

    /// All messages with the words, the best first; none if they are too many.
    async fn ranked(&self, query: &str, now_ms: i64) -> Result<Option<Vec<Hit>>, sqlx::Error> {
        let num_found: i64 = sqlx::query_scalar(
            "select count(*) from (select 1 from message_search where message_search match ? limit ?)",
        )
        .bind(query)
        .bind(MAX_RANKED as i64 + 1)
        .fetch_one(&self.readers)
        .await?;
        if num_found > MAX_RANKED as i64 {
            return Ok(None);
        }
        let rows = sqlx::query(
            "select messages.seq, messages.id, conversation_id, role, messages.created_at_ms, score
             from (select rowid as hit, bm25(message_search) as score
                   from message_search where message_search match ?)
             cross join messages on messages.seq = hit and messages.deletion_id is null
             cross join conversations on conversations.id = conversation_id and deleted_at_ms is null",
        )
        .bind(query)
        .fetch_all(&self.readers)
        .await?;
        let mut hits = rows.iter().map(|row| hit(row, now_ms)).collect::<Result<Vec<_>, _>>()?;
        hits.sort_by(|a, b| b.score.total_cmp(&a.score).then(b.seq.cmp(&a.seq)));
        Ok(Some(hits))
    }

    /// The newest messages with the words, until they are in enough conversations.
    async fn newest(&self, query: &str, limit: usize) -> Result<Vec<Hit>, sqlx::Error> {
        let mut hits: Vec<Hit> = Vec::new();
        let mut conversations = HashSet::new();
        let (mut before, mut num_read) = (i64::MAX, 0);
        while conversations.len() < limit && num_read < MAX_READ {
            let seqs: Vec<i64> = sqlx::query_scalar(
                "select rowid from message_search where message_search match ? and rowid < ?
                 order by rowid desc limit ?",
            )
            .bind(query)
            .bind(before)
            .bind(MAX_RANKED as i64)
            .fetch_all(&self.readers)
            .await?;
            let Some(last) = seqs.last() else { break };
            let rows = sqlx::query(
                "select messages.seq, messages.id, conversation_id, role, messages.created_at_ms, 0.0 as score
                 from json_each(?)
                 cross join messages on messages.seq = value and messages.deletion_id is null
                 cross join conversations on conversations.id = conversation_id and deleted_at_ms is null
                 order by messages.seq desc",
            )
            .bind(serde_json::to_string(&seqs).unwrap_or_default())
            .fetch_all(&self.readers)
            .await?;
            for row in &rows {
                let hit = hit(row, 0)?;
                conversations.insert(hit.conversation_id.clone());
                hits.push(hit);
            }
            (before, num_read) = (*last, num_read + seqs.len());
        }
        Ok(hits)
    }

    async fn with_excerpts(
        &self,
        query: &str,
        best: Vec<(Hit, u32)>,
    ) -> Result<Vec<FoundConversation>, sqlx::Error> {
        let seqs: Vec<i64> = best.iter().map(|(hit, _)| hit.seq).collect();
        let rows: Vec<(i64, String)> = sqlx::query_as(
            "select rowid, snippet(message_search, 0, ?, ?, '…', ?) from message_search
             where message_search match ? and rowid in (select value from json_each(?))",
        )
        .bind(MARKS[0].to_string())
        .bind(MARKS[1].to_string())
        .bind(EXCERPT_WORDS)
        .bind(query)
        .bind(serde_json::to_string(&seqs).unwrap_or_default())
        .fetch_all(&self.readers)
        .await?;
        let mut excerpts: HashMap<i64, String> = rows.into_iter().collect();
        let found = best.into_iter().map(|(hit, num_messages)| FoundConversation {
            conversation_id: hit.conversation_id,
            message_id: hit.id,
            role: hit.role,
            created_at_ms: hit.created_at_ms,
            num_messages,
            excerpt: pieces(&excerpts.remove(&hit.seq).unwrap_or_default()),
            document: None,
        });
        Ok(found.collect())
    }

    /// The ids of the conversations that have messages and all words of `text` in their title, in one
    /// of their messages or in a document, as [`Store::search_messages`] finds them; the one with the
    /// newest turn first. An empty text finds all.
    pub async fn search_conversations(&self, text: &str) -> Result<Vec<String>, StoreError> {
        let is_all = text.trim().is_empty();
        let with_documents = self.conversations_with_documents(text).await;
        let with_documents = with_documents.map_err(|error| self.failed(error))?;
        // A query without a letter is found in no message.
        let query = query(text).filter(|_| !is_all).unwrap_or_else(|| "\"\"".to_owned());
        let rows: Vec<(String, String, bool)> = sqlx::query_as(
            "select id, title, id in (
                 select conversation_id from message_search
                 cross join messages
                     on messages.seq = message_search.rowid and messages.deletion_id is null
                 where message_search match ?)
             from conversations where deleted_at_ms is null and leaf_message_id is not null
             order by activity_seq desc, updated_at_ms desc, id desc",
        )
        .bind(query)
        .fetch_all(&self.readers)
        .await
        .map_err(|error| self.failed(error))?;
        let found = rows.into_iter().filter(|(id, title, is_found)| {
            *is_found || has_words(title, text) || with_documents.contains(id)
        });
        Ok(found.map(|(id, _, _)| id).collect())
    }
}

fn hit(row: &SqliteRow, now_ms: i64) -> Result<Hit, sqlx::Error> {
    let created_at_ms: i64 = row.try_get("created_at_ms")?;
    // FTS5 counts the other way round: the best is the least.
    let relevance = -row.try_get::<f64, _>("score")?;
    Ok(Hit {
        seq: row.try_get("seq")?,
        id: row.try_get("id")?,
        conversation_id: row.try_get("conversation_id")?,
        role: role_named(row.try_get("role")?)?,
        created_at_ms,
        score: relevance * newness(created_at_ms, now_ms),
    })
}

/// The first message of each conversation, and how many it has.
fn best_of_each(hits: Vec<Hit>) -> Vec<(Hit, u32)> {
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut best: Vec<(Hit, u32)> = Vec::new();
    for hit in hits {
        match places.get(&hit.conversation_id) {
            Some(place) => best[*place].1 += 1,
            None => {
                places.insert(hit.conversation_id.clone(), best.len());
                best.push((hit, 1));
            }
        }
    }
    best
}

/// Names before the others: they take a third of the places, and more only where the others leave them.
fn together_with(
    documents: FoundDocuments,
    by_words: Vec<FoundConversation>,
    limit: usize,
) -> Vec<FoundConversation> {
    let FoundDocuments { mut named, with_words } = documents;
    let num_others = by_words.len() + with_words.len();
    named.truncate((limit / 3).max(limit.saturating_sub(num_others)));
    let is_named: HashSet<String> = named.iter().map(|one| one.conversation_id.clone()).collect();
    let mut messages = by_words.into_iter().filter(|one| !is_named.contains(&one.conversation_id));
    let mut documents = with_words.into_iter();
    loop {
        let before = named.len();
        named.extend(messages.by_ref().take(2));
        named.extend(documents.next());
        if named.len() == before || named.len() >= limit {
            break;
        }
    }
    named.truncate(limit);
    named
}
