//! What a prompt-cache file says about itself beside its caches: written with every export, and
//! believed only as far as it can be checked. Knows keys and strings, but no file.

use std::collections::BTreeMap;

use super::origin::{ModelOrigin, ModelParts};

/// Where the tokens of a prompt-cache file end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptKind {
    /// In an open user turn.
    Prompt,
    /// After an assistant's turn.
    Conversation,
}

impl PromptKind {
    /// Its name in files.
    pub fn as_str(self) -> &'static str {
        match self {
            PromptKind::Prompt => "prompt",
            PromptKind::Conversation => "conversation",
        }
    }
}

/// The user metadata that Cairn writes into a prompt-cache file.
///
/// - `token_ids`, where the file has them, are as many as the caches hold, each within the
///   vocabulary.
/// - Texts are single lines of bounded length, without marks that reorder what is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheFileMetadata {
    /// The string that its model was given as; mlx-lm compares it with what its user names.
    pub model: String,
    /// Where its tokens end; a file that does not say is taken as a prompt.
    pub kind: PromptKind,
    /// The tokens; none where the file does not list them.
    pub token_ids: Option<Vec<u32>>,
    /// What it was called where it was made.
    pub title: Option<String>,
    /// The program that wrote it.
    pub made_by: Option<String>,
    /// When it was made, in milliseconds since the Unix epoch.
    pub created_at_ms: Option<i64>,
    /// The model that made it; none where the file does not say.
    pub origin: Option<ModelOrigin>,
}

/// Why the metadata of a prompt-cache file was refused: what contradicts the file or the model, and
/// what to do. Follows the name of the file in a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// A later version of Cairn wrote it.
    #[error(
        "it is of format {found:?}, and this version of Cairn reads {FORMAT_VERSION}: update Cairn"
    )]
    UnknownFormat {
        /// The format that it names.
        found: String,
    },
    /// It ends neither in an open user turn nor after an assistant's turn.
    #[error(
        "it is a {found:?}, but only a prompt or a conversation can be read: make the file anew"
    )]
    UnknownKind {
        /// The kind that it names.
        found: String,
    },
    /// Its number of tokens is not that of its caches.
    #[error("it says that it has {found:?} tokens, but it holds {num_tokens}: make the file anew")]
    TokenCount {
        /// The number that it names.
        found: String,
        /// Tokens in the caches.
        num_tokens: usize,
    },
    /// It lists more or fewer token ids than its caches have tokens.
    #[error("it names {num_ids} token ids, but it holds {num_tokens} tokens: make the file anew")]
    TokenIdCount {
        /// Ids in the list.
        num_ids: usize,
        /// Tokens in the caches.
        num_tokens: usize,
    },
    /// A token id is not written as a number is.
    #[error("among its token ids is {found:?}, which is no number: make the file anew")]
    TokenId {
        /// The id as written.
        found: String,
    },
    /// A token id lies outside the model's vocabulary.
    #[error(
        "among its token ids is {id}, but the model's vocabulary has {vocab_size}: choose the model of the file"
    )]
    OutsideVocabulary {
        /// The id.
        id: u32,
        /// Ids are below this.
        vocab_size: usize,
    },
}

// Flat names: mlx-lm takes a dot for a level of its own.
const MODEL: &str = "model";
const TOKENIZER_CONFIG: &str = "tokenizer_config";
const FORMAT: &str = "cairn_format";
const KIND: &str = "cairn_kind";
const FINGERPRINT: &str = "cairn_model_fingerprint";
const CONFIG_HASH: &str = "cairn_config_hash";
const WEIGHTS_HASH: &str = "cairn_weights_hash";
const TOKENIZER_HASH: &str = "cairn_tokenizer_hash";
const TEMPLATE_HASH: &str = "cairn_template_hash";
const PRECISION: &str = "cairn_precision";
const TOKEN_IDS: &str = "cairn_token_ids";
const TOKEN_COUNT: &str = "cairn_token_count";
const TITLE: &str = "cairn_title";
const MADE_BY: &str = "cairn_made_by";
const CREATED_AT_MS: &str = "cairn_created_at_ms";

/// The format that this version writes and reads.
const FORMAT_VERSION: &str = "1";
/// The most that is kept of a text, of a hash, and of a value in an error.
const MAX_TEXT_CHARS: usize = 200;
const MAX_HASH_CHARS: usize = 80;
const MAX_SHOWN_CHARS: usize = 20;

impl CacheFileMetadata {
    /// The entries that are stored in a file of `num_tokens` tokens. Texts are stored as they are.
    pub fn to_entries(&self, num_tokens: usize) -> BTreeMap<String, String> {
        let mut entries = vec![
            (MODEL, self.model.clone()),
            (TOKENIZER_CONFIG, "{}".to_owned()),
            (FORMAT, FORMAT_VERSION.to_owned()),
            (KIND, self.kind.as_str().to_owned()),
            (TOKEN_COUNT, num_tokens.to_string()),
        ];
        if let Some(ModelOrigin { fingerprint, parts }) = &self.origin {
            entries.push((FINGERPRINT, fingerprint.clone()));
            if let Some(parts) = parts {
                entries.extend([
                    (CONFIG_HASH, parts.config.clone()),
                    (WEIGHTS_HASH, parts.weights.clone()),
                    (TOKENIZER_HASH, parts.tokenizer.clone()),
                    (TEMPLATE_HASH, parts.template.clone()),
                    (PRECISION, parts.precision.clone()),
                ]);
            }
        }
        if let Some(ids) = &self.token_ids {
            entries.push((
                TOKEN_IDS,
                ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
            ));
        }
        entries.extend(self.title.clone().map(|title| (TITLE, title)));
        entries.extend(self.made_by.clone().map(|made_by| (MADE_BY, made_by)));
        entries.extend(self.created_at_ms.map(|at_ms| (CREATED_AT_MS, at_ms.to_string())));
        entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// How many tokens a file says that it has, if no more than a buffer may have.
    pub(super) fn named_count(metadata: &BTreeMap<String, String>) -> Option<usize> {
        let count = metadata.get(TOKEN_COUNT)?.parse().ok();
        count.filter(|&count: &usize| count <= i32::MAX as usize)
    }

    /// Reads the entries of a file of `num_tokens` tokens, for a model with a vocabulary of
    /// `vocab_size`. Unknown keys are ignored.
    pub fn parse(
        metadata: &BTreeMap<String, String>,
        num_tokens: usize,
        vocab_size: usize,
    ) -> Result<CacheFileMetadata, MetadataError> {
        let get = |key: &str| metadata.get(key).map(String::as_str);
        let shown = |text: &str| line(text, MAX_SHOWN_CHARS);
        if let Some(format) = get(FORMAT).filter(|format| *format != FORMAT_VERSION) {
            return Err(MetadataError::UnknownFormat { found: shown(format) });
        }
        let kind = match get(KIND) {
            None | Some("prompt") => PromptKind::Prompt,
            Some("conversation") => PromptKind::Conversation,
            Some(kind) => return Err(MetadataError::UnknownKind { found: shown(kind) }),
        };
        if let Some(count) = get(TOKEN_COUNT).filter(|count| count.parse() != Ok(num_tokens)) {
            return Err(MetadataError::TokenCount { found: shown(count), num_tokens });
        }
        let token_ids =
            get(TOKEN_IDS).map(|ids| parse_token_ids(ids, num_tokens, vocab_size)).transpose()?;
        let (origin, model) = CacheFileMetadata::origin_and_model(metadata);
        let text = |key: &str| {
            get(key).map(|text| line(text, MAX_TEXT_CHARS)).filter(|text| !text.is_empty())
        };
        Ok(CacheFileMetadata {
            model,
            kind,
            token_ids,
            title: text(TITLE),
            made_by: text(MADE_BY),
            created_at_ms: get(CREATED_AT_MS).and_then(|at_ms| at_ms.parse().ok()),
            origin,
        })
    }

    /// The model that made a file, and the name that the file gives it. Cannot fail, so that a file
    /// of another model can be told from a broken one.
    pub fn origin_and_model(metadata: &BTreeMap<String, String>) -> (Option<ModelOrigin>, String) {
        let get = |key: &str| metadata.get(key).map(|value| line(value, MAX_HASH_CHARS));
        let parts =
            match [CONFIG_HASH, WEIGHTS_HASH, TOKENIZER_HASH, TEMPLATE_HASH, PRECISION].map(get) {
                [Some(config), Some(weights), Some(tokenizer), Some(template), Some(precision)] => {
                    Some(ModelParts { config, weights, tokenizer, template, precision })
                }
                _ => None,
            };
        let origin = match (get(FINGERPRINT), parts) {
            (None, None) => None,
            (fingerprint, parts) => {
                Some(ModelOrigin { fingerprint: fingerprint.unwrap_or_default(), parts })
            }
        };
        (origin, metadata.get(MODEL).map_or_else(String::new, |model| line(model, MAX_TEXT_CHARS)))
    }
}

fn parse_token_ids(
    text: &str,
    num_tokens: usize,
    vocab_size: usize,
) -> Result<Vec<u32>, MetadataError> {
    // Counted first, so that a long list costs no memory.
    let num_commas = text.bytes().filter(|byte| *byte == b',').count();
    let num_ids = if text.is_empty() { 0 } else { num_commas + 1 };
    if num_ids != num_tokens {
        return Err(MetadataError::TokenIdCount { num_ids, num_tokens });
    }
    let mut ids = Vec::with_capacity(num_ids);
    for text in text.split(',') {
        // Not "+1" or "01": whatever else reads the file must see the same tokens.
        let id = text.parse::<u32>().ok().filter(|id| id.to_string() == text);
        let id = id.ok_or_else(|| MetadataError::TokenId { found: line(text, MAX_SHOWN_CHARS) })?;
        if id as usize >= vocab_size {
            return Err(MetadataError::OutsideVocabulary { id, vocab_size });
        }
        ids.push(id);
    }
    Ok(ids)
}

/// A file's text as one line without what changes how other text is shown: control characters, and
/// marks of direction and joining.
fn line(text: &str, max_chars: usize) -> String {
    let is_mark = |char: char| matches!(char, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}');
    // Bounds the work too: no more is looked at than may be shown, with some marks between.
    let shown = text.chars().take(8 * max_chars).filter(|char| !is_mark(*char));
    let line: String =
        shown.map(|char| if char.is_control() { ' ' } else { char }).take(max_chars).collect();
    line.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(key: &str, value: &str, expected: &str) {
        let metadata = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let message = CacheFileMetadata::parse(&metadata, 3, 100)
            .err()
            .map_or_else(|| format!("{key} = {value} is read"), |error| error.to_string());
        assert!(message.contains(expected), "{key} = {value}: {message}");
        assert!(message.len() < 300 && message.ends_with(['w', 'n', 'e']), "{message}");
    }

    #[test]
    fn what_contradicts_the_file_or_the_model_is_refused() {
        refused(FORMAT, "2", "it is of format \"2\"");
        refused(KIND, "novel", "it is a \"novel\"");
        for count in ["4", "-3", "", "3.0", "99999999999999999999"] {
            refused(
                TOKEN_COUNT,
                count,
                &format!("it says that it has {count:?} tokens, but it holds 3"),
            );
        }
        for (ids, expected) in [("", 0), ("1,2", 2), ("1,2,3,4", 4), (",,,,", 5)] {
            refused(TOKEN_IDS, ids, &format!("it names {expected} token ids, but it holds 3"));
        }
        for id in ["x", "", "+1", "01", " 1", "-1", "1.0", "4294967296", "NaN", "\u{202e}1"] {
            refused(TOKEN_IDS, &format!("1,{id},2"), "which is no number");
        }
        refused(TOKEN_IDS, "1,100,2", "is 100, but the model's vocabulary has 100");
        refused(TOKEN_IDS, &"9".repeat(4 << 20), "it names 1 token ids");
        refused(TOKEN_IDS, &format!("1,{},2", "9".repeat(4 << 20)), "which is no number");
    }

    #[test]
    fn texts_become_short_lines_without_marks() {
        for (text, expected) in [
            ("A title", "A title"),
            ("two\nlines\r\u{7}\0", "two lines"),
            ("evil\u{202e}gpj.exe\u{2066}", "evilgpj.exe"),
            ("zero\u{200b}width\u{feff}", "zerowidth"),
            ("\u{1b}[31mred", "[31mred"),
            ("<b>ätsch</b>", "<b>ätsch</b>"),
        ] {
            let metadata = BTreeMap::from(
                [TITLE, MADE_BY, MODEL].map(|key| (key.to_owned(), text.to_owned())),
            );
            let metadata = CacheFileMetadata::parse(&metadata, 0, 0).expect("is read");
            assert_eq!(
                [
                    metadata.title.as_deref(),
                    metadata.made_by.as_deref(),
                    Some(metadata.model.as_str())
                ],
                [Some(expected); 3]
            );
        }
        for text in ["ä".repeat(1 << 20), "\u{202e}".repeat(1 << 20)] {
            let metadata =
                CacheFileMetadata::parse(&BTreeMap::from([(TITLE.to_owned(), text)]), 0, 0)
                    .expect("is read");
            assert!(metadata.title.unwrap_or_default().chars().count() <= MAX_TEXT_CHARS);
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let parts = |precision: &str| ModelParts {
            config: "c".to_owned(),
            weights: "w".to_owned(),
            tokenizer: "t".to_owned(),
            template: "m".to_owned(),
            precision: precision.to_owned(),
        };
        for parts in [None, Some(parts("float32"))] {
            let metadata = CacheFileMetadata {
                model: "some/model".to_owned(),
                kind: PromptKind::Conversation,
                token_ids: Some(vec![0, 7, 99]),
                title: Some("A title".to_owned()),
                made_by: Some("Cairn 0.1.0".to_owned()),
                created_at_ms: Some(5),
                origin: Some(ModelOrigin { fingerprint: "f".to_owned(), parts }),
            };
            assert_eq!(CacheFileMetadata::parse(&metadata.to_entries(3), 3, 100), Ok(metadata));
        }
    }
}
