//! The words of documents, for search. A document is cut into passages, which are indexed a part at a
//! time behind the one that adds it, so that a book neither holds up other writers nor its own chat.

use crate::search_text::search_text;
use crate::{Store, StoreError};

/// About a page. What is found in it is shown as the place.
const PASSAGE_BYTES: usize = 2000;
/// A passage goes on into the next one by this much, so that words beside each other are in one of them.
const OVERLAP_BYTES: usize = 100;
/// How far before the end of a passage a space is looked for, so that no word is cut.
const WORD_BYTES: usize = 100;
/// A part of this size is written in some milliseconds; other writers wait that long.
const PART_BYTES: usize = 128 << 10;

/// A document that is not indexed to its end.
#[derive(sqlx::FromRow)]
struct Unindexed {
    document_id: String,
    indexed_bytes: i64,
    indexed_utf16: i64,
}

/// A text that is being indexed.
struct Indexed {
    document_id: String,
    text: String,
}

/// A part of a document, cut into passages.
struct Part {
    /// Where each begins in UTF-16 code units, and its words.
    passages: Vec<(i64, String)>,
    /// Where the part ends.
    end: usize,
    end_utf16: i64,
}

impl Store {
    /// Waits until documents may have been added since this was called last.
    pub async fn documents_added(&self) {
        self.new_documents.notified().await;
    }
}

/// Indexes documents for search, a part at a time. It owns the text of the one that it is at: a long
/// text is read once, and never while other writers wait.
pub struct DocumentIndexer<'a> {
    store: &'a Store,
    current: Option<Indexed>,
}

impl<'a> DocumentIndexer<'a> {
    /// Goes on where the last one has ended.
    pub fn new(store: &'a Store) -> Self {
        DocumentIndexer { store, current: None }
    }

    /// Indexes a part of a document; returns whether there may be more to index. To be called again
    /// until there is not.
    ///
    /// # Errors
    /// The database's. The part is then tried again.
    pub async fn index_part(&mut self) -> Result<bool, StoreError> {
        let store = self.store;
        let next = self.next().await.map_err(|error| store.failed(error))?;
        let Some(next) = next else {
            self.current = None;
            return Ok(false);
        };
        let text = self.text(&next.document_id).await.map_err(|error| store.failed(error))?;
        let part = Part::of(text, &next);
        let is_whole = part.end == text.len();
        self.save(&next, part, is_whole).await?;
        if is_whole {
            self.current = None;
        }
        Ok(true)
    }

    /// The newest first: it is what a person looks for next.
    async fn next(&self) -> Result<Option<Unindexed>, sqlx::Error> {
        let newest = "select document_id, indexed_bytes, indexed_utf16 from documents_to_index
             order by seq desc limit 1";
        sqlx::query_as(newest).fetch_optional(&self.store.readers).await
    }

    /// The text of a document; empty if it has gone meanwhile.
    async fn text(&mut self, document_id: &str) -> Result<&str, sqlx::Error> {
        let is_other = |current: &Indexed| current.document_id != document_id;
        if self.current.as_ref().is_none_or(is_other) {
            let text: Option<String> = sqlx::query_scalar(
                "select text from documents where id = ?1
                 union all select text from folder_documents where id = ?1",
            )
            .bind(document_id)
            .fetch_optional(&self.store.readers)
            .await?;
            let text = text.unwrap_or_default();
            self.current = Some(Indexed { document_id: document_id.to_owned(), text });
        }
        Ok(self.current.as_ref().map_or("", |current| &current.text))
    }

    /// Saves a part, unless its document has gone since it was read.
    async fn save(&self, at: &Unindexed, part: Part, is_whole: bool) -> Result<(), StoreError> {
        let failed = |error| self.store.failed(error);
        let mut tx = self.store.begin().await?;
        let progress = match is_whole {
            true => sqlx::query("delete from documents_to_index where document_id = ?1"),
            false => sqlx::query(
                "update documents_to_index set indexed_bytes = ?2, indexed_utf16 = ?3
                 where document_id = ?1",
            ),
        };
        let mut progress = progress.bind(&at.document_id);
        if !is_whole {
            progress = progress.bind(i64::try_from(part.end).unwrap_or(i64::MAX));
            progress = progress.bind(part.end_utf16);
        }
        if progress.execute(&mut *tx).await.map_err(failed)?.rows_affected() == 0 {
            return Ok(());
        }
        for (begin_utf16, words) in part.passages {
            sqlx::query(
                "insert into document_passages (document_id, begin_utf16, text) values (?, ?, ?)",
            )
            .bind(&at.document_id)
            .bind(begin_utf16)
            .bind(words)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        }
        self.store.commit(tx).await
    }
}

impl Part {
    /// The part of a text behind what is indexed of it.
    fn of(text: &str, at: &Unindexed) -> Part {
        let from = usize::try_from(at.indexed_bytes).unwrap_or(text.len());
        let from = text.floor_char_boundary(from);
        let mut part = Part { passages: Vec::new(), end: from, end_utf16: at.indexed_utf16 };
        while part.end < text.len() && part.end - from < PART_BYTES {
            let begin = part.end;
            let end = passage_end(text, begin);
            let passage = &text[begin..word_end(text, end + OVERLAP_BYTES)];
            if !passage.trim().is_empty() {
                let own = search_text(passage, None).unwrap_or_else(|| passage.to_owned());
                part.passages.push((part.end_utf16, own));
            }
            part.end_utf16 += num_utf16(&text[begin..end]);
            part.end = end;
        }
        part
    }
}

/// Where the passage that begins at `begin` ends, which is before the next one: behind a line, where
/// its second half has one.
fn passage_end(text: &str, begin: usize) -> usize {
    let end = word_end(text, begin + PASSAGE_BYTES);
    if end == text.len() {
        return end;
    }
    let half = text.floor_char_boundary(begin + PASSAGE_BYTES / 2);
    match text[half..end].rfind('\n') {
        Some(line) => half + line + 1,
        None => end,
    }
}

/// The last end of a word before `at`; `at` itself where no space is near.
fn word_end(text: &str, at: usize) -> usize {
    if at >= text.len() {
        return text.len();
    }
    let (at, from) = (text.floor_char_boundary(at), text.floor_char_boundary(at - WORD_BYTES));
    match text[from..at].rfind(char::is_whitespace) {
        Some(space) => text.ceil_char_boundary(from + space + 1),
        None => at,
    }
}

/// The length of a text as the window counts it.
pub(crate) fn num_utf16(text: &str) -> i64 {
    i64::try_from(text.encode_utf16().count()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passages_are_a_text_without_a_gap_and_cut_no_word() {
        fn check(text: &str, expected: usize) {
            let (mut begin, mut num_passages) = (0, 0);
            while begin < text.len() {
                let end = passage_end(text, begin);
                assert!(end > begin && end - begin <= PASSAGE_BYTES, "{begin} to {end}");
                let is_cut = text[..end].ends_with('x') && text[end..].starts_with('x');
                assert!(!is_cut || !text.contains(' '), "a word is cut at {end}");
                (begin, num_passages) = (end, num_passages + 1);
            }
            assert_eq!(num_passages, expected);
        }
        check("", 0);
        check("short", 1);
        check(&"xxx ".repeat(1000), 2);
        check(&format!("{}\n", "xxx ".repeat(400)).repeat(2), 2);
        check(&"x".repeat(4000), 2);
        check(&"模型".repeat(1000), 4);
        check(&"\u{2003}".repeat(1000), 2);
    }
}
