//! Search in documents: in their names, and in their texts for the place that has the words.

use std::collections::{HashMap, HashSet};

use cairn_chat::Role;
use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row};

use crate::document_passages::num_utf16;
use crate::messages::role_named;
use crate::search_results::{EXCERPT_WORDS, MARKS, MAX_RANKED, newness, pieces};
use crate::search_text::{Phrase, has_phrases, has_words, phrases, together};
use crate::{Document, FoundConversation, FoundDocument, Store};

/// Of a word in more passages the newest are taken.
const MAX_PASSAGES: i64 = 10_000;
/// What a passage gets for a word that is in very many: as good as nothing beside one for a rare word.
const COMMON: f64 = 1e-6;

/// Documents of a list of ids, with the message that each stands before: those of questions, and those
/// that a conversation begins with, which stand before its first one. The newest first.
const ATTACHED: &str = "
    select documents.id, name, kind, num_bytes, num_tokens, counted_by, documents.created_at_ms,
        messages.conversation_id, messages.id as message_id, role, messages.created_at_ms as asked_at_ms,
        messages.seq as asked_seq
    from message_documents
    join documents on documents.id = document_id
    join messages on messages.id = message_id and messages.deletion_id is null
    join conversations on conversations.id = messages.conversation_id and deleted_at_ms is null
    where document_id in (select value from json_each(?1))
    union all
    select folder_documents.id, name, kind, num_bytes, num_tokens, counted_by,
        folder_documents.created_at_ms,
        messages.conversation_id, messages.id, role, messages.created_at_ms,
        messages.seq
    from conversation_documents
    join folder_documents on folder_documents.id = document_id
    join conversations on conversations.id = conversation_documents.conversation_id
        and deleted_at_ms is null
    join messages on messages.seq = (
        select min(first.seq) from messages as first
        where first.conversation_id = conversations.id and role = 'user' and deletion_id is null)
    where document_id in (select value from json_each(?1))
    order by asked_at_ms desc, asked_seq desc";

/// A document, and the message that it stands before.
struct Attached {
    document: Document,
    conversation_id: String,
    message_id: String,
    role: Role,
    /// Of the message.
    created_at_ms: i64,
}

impl FromRow<'_, SqliteRow> for Attached {
    fn from_row(row: &SqliteRow) -> Result<Attached, sqlx::Error> {
        Ok(Attached {
            document: Document::from_row(row)?,
            conversation_id: row.try_get("conversation_id")?,
            message_id: row.try_get("message_id")?,
            role: role_named(row.try_get("role")?)?,
            created_at_ms: row.try_get("asked_at_ms")?,
        })
    }
}

impl Attached {
    fn found(self, excerpt: Vec<(String, bool)>, at_utf16: Option<u32>) -> FoundConversation {
        FoundConversation {
            conversation_id: self.conversation_id,
            message_id: self.message_id,
            role: self.role,
            created_at_ms: self.created_at_ms,
            num_messages: 1,
            excerpt,
            document: Some(FoundDocument { document: self.document, at_utf16 }),
        }
    }
}

/// Conversations that were found by their documents.
#[derive(Default)]
pub(crate) struct FoundDocuments {
    /// Those with a document whose name has the words, each once, the newest first.
    pub named: Vec<FoundConversation>,
    /// One for each other document whose text has them, the best first.
    pub with_words: Vec<FoundConversation>,
}

/// The documents that have all that is looked for, by their ids.
#[derive(Default)]
struct Matches {
    /// Those that have it in their names.
    named: HashSet<String>,
    /// The best passages of those that have some of it in their texts.
    places: HashMap<String, Place>,
}

/// The passage of a document that fits best.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    seq: i64,
    /// Greater is better.
    score: f64,
}

impl Store {
    /// The documents with all words of `text`. The words may be far apart, and some in the name.
    pub(crate) async fn search_documents(
        &self,
        text: &str,
        limit: usize,
        now_ms: i64,
    ) -> Result<FoundDocuments, sqlx::Error> {
        let mut all = FoundDocuments::default();
        let phrases = phrases(text);
        let Matches { named, places } = self.matches(text, &phrases).await?;
        let attached = self.attached(named.iter().chain(places.keys())).await?;
        let (mut conversations, mut documents) = (HashSet::new(), HashSet::new());
        let mut best = Vec::new();
        let is_named = |attached: &Attached| named.contains(&attached.document.id);
        let (named, others): (Vec<Attached>, Vec<Attached>) =
            attached.into_iter().partition(is_named);
        for attached in named {
            documents.insert(attached.document.id.clone());
            if conversations.insert(attached.conversation_id.clone()) {
                all.named.push(attached.found(Vec::new(), None));
            }
        }
        for attached in others {
            let Some(place) = places.get(&attached.document.id) else { continue };
            if documents.insert(attached.document.id.clone()) {
                let score = place.score * newness(attached.created_at_ms, now_ms);
                best.push((Place { score, ..*place }, attached));
            }
        }
        best.sort_by(|(a, _), (b, _)| b.score.total_cmp(&a.score));
        best.truncate(limit);
        all.with_words = self.with_places(&phrases, best).await?;
        Ok(all)
    }

    /// The ids of conversations with a document that has all words of `text`.
    pub(crate) async fn conversations_with_documents(
        &self,
        text: &str,
    ) -> Result<HashSet<String>, sqlx::Error> {
        let Matches { named, places } = self.matches(text, &phrases(text)).await?;
        let attached = self.attached(named.iter().chain(places.keys())).await?;
        Ok(attached.into_iter().map(|found| found.conversation_id).collect())
    }

    /// The documents that have all that is looked for; of an empty text none.
    async fn matches(&self, text: &str, phrases: &[Phrase]) -> Result<Matches, sqlx::Error> {
        if text.trim().is_empty() {
            return Ok(Matches::default());
        }
        let names: Vec<(String, String)> = sqlx::query_as(
            "select id, name from documents union all select id, name from folder_documents",
        )
        .fetch_all(&self.readers)
        .await?;
        let places = self.places(phrases, &names).await?;
        let named = names.into_iter().filter(|(_, name)| is_named(name, text, phrases));
        Ok(Matches { named: named.map(|(id, _)| id).collect(), places })
    }

    /// The messages that these documents stand before, the newest first.
    async fn attached(
        &self,
        ids: impl Iterator<Item = &String>,
    ) -> Result<Vec<Attached>, sqlx::Error> {
        let ids: Vec<&String> = ids.collect();
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let ids = serde_json::to_string(&ids).unwrap_or_default();
        sqlx::query_as(ATTACHED).bind(ids).fetch_all(&self.readers).await
    }

    /// The documents in whose text and name all phrases are, and their best passages, by their ids.
    /// `names`: of all documents, with their ids.
    async fn places(
        &self,
        phrases: &[Phrase],
        names: &[(String, String)],
    ) -> Result<HashMap<String, Place>, sqlx::Error> {
        let mut all: Option<HashMap<String, HashMap<i64, f64>>> = None;
        for phrase in phrases {
            let mut with_phrase = self.passages_with(&phrase.query).await?;
            for (id, name) in names {
                if has_words(name, &phrase.words) {
                    with_phrase.entry(id.clone()).or_default();
                }
            }
            all = Some(match all {
                None => with_phrase,
                Some(before) => in_both(before, with_phrase),
            });
        }
        let best = |passages: HashMap<i64, f64>| {
            let places = passages.into_iter().map(|(seq, score)| Place { seq, score });
            // Of equal ones the first in the text.
            places.max_by(|a, b| a.score.total_cmp(&b.score).then(b.seq.cmp(&a.seq)))
        };
        let places = all.unwrap_or_default().into_iter();
        Ok(places.filter_map(|(id, passages)| Some((id, best(passages)?))).collect())
    }

    /// The passages with a phrase and how good they are, by the document's id.
    async fn passages_with(
        &self,
        query: &str,
    ) -> Result<HashMap<String, HashMap<i64, f64>>, sqlx::Error> {
        let num_found: i64 = sqlx::query_scalar(
            "select count(*) from (select 1 from document_search where document_search match ? limit ?)",
        )
        .bind(query)
        .bind(MAX_RANKED as i64 + 1)
        .fetch_one(&self.readers)
        .await?;
        if num_found > MAX_RANKED as i64 {
            return self.newest_passages_with(query).await;
        }
        let rows: Vec<(String, i64, f64)> = sqlx::query_as(
            "select document_id, seq, score
             from (select rowid as hit, -bm25(document_search) as score from document_search
                   where document_search match ?)
             cross join document_passages on seq = hit",
        )
        .bind(query)
        .fetch_all(&self.readers)
        .await?;
        let mut by_document: HashMap<String, HashMap<i64, f64>> = HashMap::new();
        for (id, seq, score) in rows {
            by_document.entry(id).or_default().insert(seq, score);
        }
        Ok(by_document)
    }

    async fn newest_passages_with(
        &self,
        query: &str,
    ) -> Result<HashMap<String, HashMap<i64, f64>>, sqlx::Error> {
        // A row for each document takes a third of the time that one for each passage takes.
        let rows: Vec<(String, String)> = sqlx::query_as(
            "select document_id, json_group_array(seq)
             from (select rowid as hit from document_search
                   where document_search match ? order by rowid desc limit ?)
             cross join document_passages on seq = hit
             group by document_id",
        )
        .bind(query)
        .bind(MAX_PASSAGES)
        .fetch_all(&self.readers)
        .await?;
        let scored = |seqs: String| {
            let seqs: Vec<i64> = serde_json::from_str(&seqs).unwrap_or_default();
            seqs.into_iter().map(|seq| (seq, COMMON)).collect()
        };
        Ok(rows.into_iter().map(|(id, seqs)| (id, scored(seqs))).collect())
    }

    /// Adds excerpts, and where the words stand in the texts.
    async fn with_places(
        &self,
        phrases: &[Phrase],
        best: Vec<(Place, Attached)>,
    ) -> Result<Vec<FoundConversation>, sqlx::Error> {
        let any: Vec<&str> = phrases.iter().map(|phrase| phrase.query.as_str()).collect();
        let seqs: Vec<i64> = best.iter().map(|(place, _)| place.seq).collect();
        let rows: Vec<(i64, String, String, i64)> = sqlx::query_as(
            "select seq, snippet(document_search, 0, ?, ?, '', ?), document_passages.text, begin_utf16
             from document_search cross join document_passages on seq = document_search.rowid
             where document_search match ? and document_search.rowid in (select value from json_each(?))",
        )
        .bind(MARKS[0].to_string())
        .bind(MARKS[1].to_string())
        .bind(EXCERPT_WORDS)
        .bind(any.join(" OR "))
        .bind(serde_json::to_string(&seqs).unwrap_or_default())
        .fetch_all(&self.readers)
        .await?;
        let mut excerpts: HashMap<i64, _> = rows
            .into_iter()
            .map(|(seq, marked, text, begin)| (seq, (marked, text, begin)))
            .collect();
        let found = best.into_iter().filter_map(|(place, attached)| {
            let (marked, text, begin_utf16) = excerpts.remove(&place.seq)?;
            let at = begin_utf16 + place_in(&text, &marked);
            Some(attached.found(in_the_middle(&text, &marked), u32::try_from(at).ok()))
        });
        Ok(found.collect())
    }
}

/// Whether the name alone has all that is looked for: as it was typed, signs too, or each phrase.
fn is_named(name: &str, text: &str, phrases: &[Phrase]) -> bool {
    has_words(name, text) || has_phrases(name, phrases)
}

/// The documents that are in both, with the scores of each passage together.
fn in_both(
    mut before: HashMap<String, HashMap<i64, f64>>,
    with_phrase: HashMap<String, HashMap<i64, f64>>,
) -> HashMap<String, HashMap<i64, f64>> {
    before.retain(|id, _| with_phrase.contains_key(id));
    for (id, passages) in with_phrase {
        let Some(together) = before.get_mut(&id) else { continue };
        for (seq, score) in passages {
            *together.entry(seq).or_default() += score;
        }
    }
    before
}

/// Where the first word of an excerpt stands in the passage that it is of, in UTF-16 code units.
fn place_in(passage: &str, marked: &str) -> i64 {
    let Some(begin) = passage.find(&marked.replace(MARKS, "")) else { return 0 };
    let before_word = marked.split(MARKS[0]).next().unwrap_or_default();
    num_utf16(&together(&passage[..begin])) + num_utf16(&together(before_word))
}

/// The pieces of an excerpt, with dots where the passage goes on.
fn in_the_middle(passage: &str, marked: &str) -> Vec<(String, bool)> {
    let plain = marked.replace(MARKS, "");
    let before = if passage.trim_start().starts_with(plain.trim_start()) { "" } else { "…" };
    let after = if passage.trim_end().ends_with(plain.trim_end()) { "" } else { "…" };
    pieces(&format!("{before}{}{after}", marked.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_placed_where_its_excerpt_stands() {
        let passage = "A stone.\n𝄞 The \u{200B}石\u{200B} stone lies.";
        let check = |marked: &str, expected: i64| assert_eq!(place_in(passage, marked), expected);
        check("A \u{1}stone\u{2}.", 2);
        check("The \u{200B}石\u{200B} \u{1}stone\u{2} lies.", 18);
        check("elsewhere", 0);
        let excerpt = in_the_middle(passage, "\u{1}The\u{2} \u{200B}石");
        let piece = |text: &str, is_word| (text.to_owned(), is_word);
        assert_eq!(excerpt, [piece("…", false), piece("The", true), piece(" 石…", false)]);
    }
}
