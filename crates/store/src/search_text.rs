//! What the search index is made of: the words of a message, and those of a query.

use serde::Deserialize;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// Stands between characters of scripts without spaces, so that each is a word of the index and a word
/// of such a script a phrase. The index takes it for white space; nobody sees it.
const APART: char = '\u{200B}';
/// The least length of the last word of a query that is also taken for a beginning: a single letter
/// begins too many words.
const MIN_BEGINNING: usize = 2;

/// A segment of an answer, as far as search reads it.
#[derive(Deserialize)]
struct Segment {
    kind: String,
    #[serde(default)]
    text: String,
}

/// What is searched in place of a message's text: of an answer what it says, without reasoning and tool
/// calls. None if that is the text itself.
pub(crate) fn search_text(text: &str, segments: Option<&str>) -> Option<String> {
    let said = segments.and_then(said);
    let read = said.as_deref().unwrap_or(text);
    if read.contains(is_unspaced) { Some(apart(read)) } else { said }
}

/// The text segments; none where they cannot be read.
fn said(segments: &str) -> Option<String> {
    let segments: Vec<Segment> = serde_json::from_str(segments).ok()?;
    let texts = segments.into_iter().filter(|segment| segment.kind == "text");
    Some(texts.map(|segment| segment.text).collect::<Vec<_>>().join("\n\n"))
}

/// A text of the index without what sets its characters apart.
pub(crate) fn together(text: &str) -> String {
    text.replace(APART, "")
}

/// Sets characters of scripts without spaces apart.
fn apart(text: &str) -> String {
    let mut all = String::with_capacity(text.len() * 2);
    let mut was_unspaced = false;
    for character in text.chars() {
        let is_unspaced = is_unspaced(character);
        if is_unspaced || was_unspaced {
            all.push(APART);
        }
        all.push(character);
        was_unspaced = is_unspaced;
    }
    all
}

/// Whether a script is written without spaces between words: Chinese, Japanese, Thai, Lao, Burmese and
/// Khmer; and Korean, whose particles are written to the word.
fn is_unspaced(character: char) -> bool {
    matches!(u32::from(character),
        0x0E00..=0x0EFF | 0x1000..=0x109F | 0x1100..=0x11FF | 0x1780..=0x17FF
        | 0x2E80..=0x2FDF | 0x3005..=0x3007 | 0x3040..=0x318F | 0x31A0..=0x31BF | 0x31F0..=0x31FF
        | 0x3400..=0x4DBF | 0x4E00..=0x9FFF | 0xA960..=0xA97F | 0xAC00..=0xD7FF | 0xF900..=0xFAFF
        | 0xFF66..=0xFFDC | 0x1B000..=0x1B16F | 0x20000..=0x3FFFF)
}

/// A word or a phrase of a query.
pub(crate) struct Phrase {
    /// As it was typed.
    pub words: String,
    /// In FTS5's language.
    pub query: String,
}

/// A query in FTS5's language; none without a letter or digit.
pub(crate) fn query(text: &str) -> Option<String> {
    let queries: Vec<String> = phrases(text).into_iter().map(|phrase| phrase.query).collect();
    (!queries.is_empty()).then(|| queries.join(" "))
}

/// What is looked for: each word, in any order; what stands in quotation marks as it stands there; the
/// last word is also taken for the beginning of one.
pub(crate) fn phrases(text: &str) -> Vec<Phrase> {
    let is_quote = |character| matches!(character, '"' | '“' | '”' | '„' | '«' | '»');
    let mut phrases = Vec::new();
    let num_parts = text.split(is_quote).count();
    for (index, part) in text.split(is_quote).enumerate() {
        if index % 2 == 1 {
            phrases.extend(phrase(part, false));
            continue;
        }
        let words: Vec<&str> = part.split_whitespace().collect();
        let is_open = index + 1 == num_parts && !part.ends_with(char::is_whitespace);
        let last = words.len().saturating_sub(1);
        let word = |(place, word): (usize, &&str)| phrase(word, is_open && place == last);
        phrases.extend(words.iter().enumerate().filter_map(word));
    }
    phrases
}

fn phrase(words: &str, is_beginning: bool) -> Option<Phrase> {
    if !words.contains(char::is_alphanumeric) {
        return None;
    }
    let words = words.replace('\0', " ");
    let end = words.chars().rev().take_while(|character| character.is_alphanumeric());
    let length = end.take_while(|character| !is_unspaced(*character)).count();
    let star = if is_beginning && length >= MIN_BEGINNING { "*" } else { "" };
    let query = format!("\"{}\"{star}", apart(&words));
    Some(Phrase { words, query })
}

/// Whether a title has all words of a query, in any order; case and accents do not matter.
pub(crate) fn has_words(title: &str, query: &str) -> bool {
    let (title, query) = (folded(title), folded(query));
    query.split_whitespace().all(|word| title.contains(word))
}

/// Whether a title has the words of every phrase of a query; not, if it has none.
pub(crate) fn has_phrases(title: &str, phrases: &[Phrase]) -> bool {
    !phrases.is_empty() && phrases.iter().all(|phrase| has_words(title, &phrase.words))
}

fn folded(text: &str) -> String {
    text.nfkd()
        .filter(|character| !is_combining_mark(*character))
        .flat_map(char::to_lowercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_becomes_phrases() {
        fn check(text: &str, expected: Option<&str>) {
            assert_eq!(query(text).as_deref(), expected, "for {text:?}");
        }
        check("", None);
        check(" -- % ", None);
        check("granite", Some("\"granite\"*"));
        check("granite ", Some("\"granite\""));
        check("a", Some("\"a\""));
        check("old granite", Some("\"old\" \"granite\"*"));
        check("\"old granite\" gr", Some("\"old granite\" \"gr\"*"));
        check("„alter Granit“", Some("\"alter Granit\""));
        check("\"old gra", Some("\"old gra\""));
        check("x-y", Some("\"x-y\""));
        check("NOT OR", Some("\"NOT\" \"OR\"*"));
        check("text:gra*", Some("\"text:gra*\""));
        check("模型", Some("\"\u{200B}模\u{200B}型\""));
        check("GPU模", Some("\"GPU\u{200B}模\""));
        check("模GPU", Some("\"\u{200B}模\u{200B}GPU\"*"));
    }

    #[test]
    fn an_answer_is_searched_without_its_reasoning() {
        let segments = r#"[{"kind":"reasoning","text":"Hm","began_at_ms":1,"duration_ms":2},{"kind":"text","text":"No."}]"#;
        assert_eq!(search_text("<think>Hm</think>No.", Some(segments)).as_deref(), Some("No."));
        assert_eq!(search_text("No.", None), None);
        assert_eq!(search_text("No.", Some("{")), None);
        let apart = search_text("看模型。", None).unwrap_or_default();
        assert_eq!(apart, "\u{200B}看\u{200B}模\u{200B}型\u{200B}。");
        assert_eq!(together(&apart), "看模型。");
    }

    #[test]
    fn a_title_has_words_whatever_their_case_and_accents() {
        assert!(has_words("Crème brûlée for two", "TWO creme"));
        assert!(!has_words("Crème brûlée", "creme caramel"));
        assert!(has_words("看模型", "模型"));
    }
}
