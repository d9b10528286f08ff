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

impl Store {
    /// Waits until documents may have been added since this was called last.
    pub async fn documents_added(&self) {
        self.new_documents.notified().await;
    }

    /// Indexes a part of a document for search; returns whether more is left to index. To be called
    /// again until nothing is.
    pub async fn index_documents(&self) -> Result<bool, StoreError> {
        let failed = |error| self.failed(error);
        let mut tx = self.begin().await?;
        // The newest first: it is what a person looks for next.
        let next: Option<Unindexed> = sqlx::query_as(
            "select document_id, indexed_bytes, indexed_utf16 from documents_to_index
             order by seq desc limit 1",
        )
        .fetch_optional(&mut *tx)
        .await
        .map_err(failed)?;
        let Some(Unindexed { document_id, indexed_bytes, indexed_utf16 }) = next else {
            return Ok(false);
        };
        let text: Option<String> = sqlx::query_scalar(
            "select text from documents where id = ?1
             union all select text from folder_documents where id = ?1",
        )
        .bind(&document_id)
        .fetch_optional(&mut *tx)
        .await
        .map_err(failed)?;
        let text = text.unwrap_or_default();
        let from = text.floor_char_boundary(usize::try_from(indexed_bytes).unwrap_or(text.len()));
        let (mut begin, mut begin_utf16) = (from, indexed_utf16);
        while begin < text.len() && begin - from < PART_BYTES {
            let end = passage_end(&text, begin);
            let passage = &text[begin..word_end(&text, end + OVERLAP_BYTES)];
            if !passage.trim().is_empty() {
                let own = search_text(passage, None);
                sqlx::query(
                    "insert into document_passages (document_id, begin_utf16, text) values (?, ?, ?)",
                )
                .bind(&document_id)
                .bind(begin_utf16)
                .bind(own.as_deref().unwrap_or(passage))
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
            }
            begin_utf16 += num_utf16(&text[begin..end]);
            begin = end;
        }
        let statement = if begin < text.len() {
            "update documents_to_index set indexed_bytes = ?2, indexed_utf16 = ?3 where document_id = ?1"
        } else {
            "delete from documents_to_index where document_id = ?1"
        };
        let progress = sqlx::query(statement).bind(&document_id);
        let progress = match begin < text.len() {
            true => progress.bind(i64::try_from(begin).unwrap_or(i64::MAX)).bind(begin_utf16),
            false => progress,
        };
        progress.execute(&mut *tx).await.map_err(failed)?;
        self.commit(tx).await?;
        Ok(true)
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
