//! What a prompt-cache file says about itself beside its caches: written with every export,
//! believed only as far as it can be checked. Knows neither files nor MLX, so that it can be fuzzed
//! alone.

use std::collections::BTreeMap;

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

/// What a file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imprint {
    /// The string that its model was given as; mlx-lm compares it with what its user names.
    pub model: String,
    /// Where its tokens end; one that does not say is taken as a prompt.
    pub kind: PromptKind,
    /// The tokens; none where it does not say them.
    pub token_ids: Option<Vec<u32>>,
    /// What it was called where it was made.
    pub title: Option<String>,
    /// What wrote it.
    pub made_by: Option<String>,
    /// When it was made, in milliseconds since the Unix epoch.
    pub created_at_ms: Option<i64>,
    /// By what it was made; none where it does not say.
    pub origin: Option<Origin>,
}

/// Which model made a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// It, as it lies on one computer.
    pub fingerprint: String,
    /// Hashes of its parts, by which it is known elsewhere; none in files of earlier versions, and
    /// in exports made while another model was loaded.
    pub parts: Option<Parts>,
}

/// Hashes of a model's parts, and what it is computed in.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // as on `cairn_lm::ModelIdentity`
pub struct Parts {
    pub config: String,
    pub weights: String,
    pub tokenizer: String,
    pub template: String,
    pub precision: String,
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
/// What is taken over of a file's texts.
const MAX_TEXT_CHARS: usize = 200;
const MAX_HASH_CHARS: usize = 80;

impl Imprint {
    /// What is stored in the file. Texts are stored as they are.
    pub fn to_metadata(&self, num_tokens: usize) -> BTreeMap<String, String> {
        let mut entries = vec![
            (MODEL, self.model.clone()),
            (TOKENIZER_CONFIG, "{}".to_owned()),
            (FORMAT, FORMAT_VERSION.to_owned()),
            (KIND, self.kind.as_str().to_owned()),
            (TOKEN_COUNT, num_tokens.to_string()),
        ];
        if let Some(Origin { fingerprint, parts }) = &self.origin {
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

    /// Reads what is stored in a file of `num_tokens` tokens, for a model of `vocab_size` ones.
    /// Fails in words where it contradicts the file or the model, or does not make sense. Keys that
    /// are not known are left alone.
    pub fn parse(
        metadata: &BTreeMap<String, String>,
        num_tokens: usize,
        vocab_size: usize,
    ) -> Result<Imprint, String> {
        let get = |key: &str| metadata.get(key).map(String::as_str);
        if let Some(format) = get(FORMAT).filter(|format| *format != FORMAT_VERSION) {
            return Err(format!(
                "it is of format {:?}, and this version of Cairn reads {FORMAT_VERSION}: update Cairn",
                line(format, 20)
            ));
        }
        let kind = match get(KIND) {
            None | Some("prompt") => PromptKind::Prompt,
            Some("conversation") => PromptKind::Conversation,
            Some(kind) => {
                return Err(format!(
                    "it is a {:?}, but only a prompt or a conversation can be read: {ANEW}",
                    line(kind, 20)
                ));
            }
        };
        if let Some(count) = get(TOKEN_COUNT).filter(|count| count.parse() != Ok(num_tokens)) {
            return Err(format!(
                "it says that it has {:?} tokens, but it holds {num_tokens}: {ANEW}",
                line(count, 20)
            ));
        }
        let token_ids =
            get(TOKEN_IDS).map(|ids| token_ids(ids, num_tokens, vocab_size)).transpose()?;
        let (origin, model) = Imprint::origin_of(metadata);
        let text = |key: &str| {
            get(key).map(|text| line(text, MAX_TEXT_CHARS)).filter(|text| !text.is_empty())
        };
        Ok(Imprint {
            model,
            kind,
            token_ids,
            title: text(TITLE),
            made_by: text(MADE_BY),
            created_at_ms: get(CREATED_AT_MS).and_then(|at_ms| at_ms.parse().ok()),
            origin,
        })
    }

    /// By which model a file says that it was made, and what it calls it: also where nothing else
    /// in it makes sense.
    pub fn origin_of(metadata: &BTreeMap<String, String>) -> (Option<Origin>, String) {
        let get = |key: &str| metadata.get(key).map(|value| line(value, MAX_HASH_CHARS));
        let parts =
            match [CONFIG_HASH, WEIGHTS_HASH, TOKENIZER_HASH, TEMPLATE_HASH, PRECISION].map(get) {
                [Some(config), Some(weights), Some(tokenizer), Some(template), Some(precision)] => {
                    Some(Parts { config, weights, tokenizer, template, precision })
                }
                _ => None,
            };
        let origin = match (get(FINGERPRINT), parts) {
            (None, None) => None,
            (fingerprint, parts) => {
                Some(Origin { fingerprint: fingerprint.unwrap_or_default(), parts })
            }
        };
        (origin, metadata.get(MODEL).map_or_else(String::new, |model| line(model, MAX_TEXT_CHARS)))
    }
}

/// What to do about a file that is no good.
const ANEW: &str = "make the file anew";

fn token_ids(text: &str, num_tokens: usize, vocab_size: usize) -> Result<Vec<u32>, String> {
    // Counted before anything is made of them.
    let num_ids =
        if text.is_empty() { 0 } else { text.bytes().filter(|byte| *byte == b',').count() + 1 };
    if num_ids != num_tokens {
        return Err(format!(
            "it names {num_ids} token ids, but it holds {num_tokens} tokens: {ANEW}"
        ));
    }
    let mut ids = Vec::with_capacity(num_ids);
    for text in text.split(',') {
        // Not "+1" or "01": whatever else reads the file must see the same tokens.
        let id = text.parse::<u32>().ok().filter(|id| id.to_string() == text);
        let id = id.ok_or_else(|| {
            format!("among its token ids is {:?}, which is no number: {ANEW}", line(text, 20))
        })?;
        if id as usize >= vocab_size {
            return Err(format!(
                "among its token ids is {id}, but the model's vocabulary has {vocab_size}: choose the model of the file"
            ));
        }
        ids.push(id);
    }
    Ok(ids)
}

impl Origin {
    /// Why a file with this origin is none of the model that is loaded, as which `model` names it;
    /// `loaded` is that one's own origin and name. None where it is the same.
    pub fn difference(&self, model: &str, loaded: &Origin, loaded_name: &str) -> Option<String> {
        if self.fingerprint == loaded.fingerprint {
            return None;
        }
        let what = match (&self.parts, &loaded.parts) {
            (Some(file), Some(own)) => {
                let differing = [
                    ("its configuration differs", file.config != own.config),
                    ("its weights differ", file.weights != own.weights),
                    ("its tokenizer differs", file.tokenizer != own.tokenizer),
                ];
                let differing: Vec<&str> = differing
                    .into_iter()
                    .filter(|(_, differs)| *differs)
                    .map(|(what, _)| what)
                    .collect();
                if differing.is_empty() {
                    // The same model; its template shapes only what comes after.
                    return (file.precision != own.precision).then(|| {
                        let (file, own) = (&file.precision, &own.precision);
                        format!("it was made in another precision ({file}; here the model is computed in {own}): {ANEW}")
                    });
                }
                differing.join(", ")
            }
            _ => "its fingerprint differs".to_owned(),
        };
        Some(match (model.is_empty(), last_name(model) == last_name(loaded_name)) {
            (true, _) => format!(
                "it was made with another model than {loaded_name} ({what}): load that one, or {ANEW}"
            ),
            (false, true) => format!(
                "it was made with another revision of {loaded_name} ({what}): load that one, or {ANEW}"
            ),
            (false, false) => format!(
                "it was made with another model ({model}; {loaded_name} is loaded): load that one, or {ANEW}"
            ),
        })
    }
}

/// A model is named by its folder here and by its owner and name there.
fn last_name(name: &str) -> &str {
    name.trim_end_matches('/').rsplit('/').next().unwrap_or(name)
}

/// A file's text as one line without what changes how other text is shown: control characters, and
/// marks of direction and joining.
fn line(text: &str, max_chars: usize) -> String {
    let is_mark = |char: char| matches!(char, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}');
    // Not more of it is looked at than may be shown, with some marks between.
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
        let message = Imprint::parse(&metadata, 3, 100)
            .err()
            .unwrap_or_else(|| format!("{key} = {value} is read"));
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
            let imprint = Imprint::parse(&metadata, 0, 0).expect("is read");
            assert_eq!(
                [
                    imprint.title.as_deref(),
                    imprint.made_by.as_deref(),
                    Some(imprint.model.as_str())
                ],
                [Some(expected); 3]
            );
        }
        for text in ["ä".repeat(1 << 20), "\u{202e}".repeat(1 << 20)] {
            let imprint =
                Imprint::parse(&BTreeMap::from([(TITLE.to_owned(), text)]), 0, 0).expect("is read");
            assert!(imprint.title.unwrap_or_default().chars().count() <= MAX_TEXT_CHARS);
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let parts = |precision: &str| Parts {
            config: "c".to_owned(),
            weights: "w".to_owned(),
            tokenizer: "t".to_owned(),
            template: "m".to_owned(),
            precision: precision.to_owned(),
        };
        for parts in [None, Some(parts("float32"))] {
            let imprint = Imprint {
                model: "some/model".to_owned(),
                kind: PromptKind::Conversation,
                token_ids: Some(vec![0, 7, 99]),
                title: Some("A title".to_owned()),
                made_by: Some("Cairn 0.1.0".to_owned()),
                created_at_ms: Some(5),
                origin: Some(Origin { fingerprint: "f".to_owned(), parts }),
            };
            assert_eq!(Imprint::parse(&imprint.to_metadata(3), 3, 100), Ok(imprint));
        }
    }

    #[test]
    fn the_difference_to_the_loaded_model_is_named() {
        let origin = |fingerprint: &str, parts: Option<[&str; 5]>| Origin {
            fingerprint: fingerprint.to_owned(),
            parts: parts.map(|parts| {
                let [config, weights, tokenizer, template, precision] = parts.map(str::to_owned);
                Parts { config, weights, tokenizer, template, precision }
            }),
        };
        let own = ["c", "w", "t", "m", "float32"];
        let loaded = origin("f", Some(own));
        let check = |file: Origin, model: &str, expected: Option<&str>| {
            let found = file.difference(model, &loaded, "org/Stone-1B");
            assert_eq!(found.is_some(), expected.is_some(), "{found:?}");
            assert!(
                found.clone().unwrap_or_default().contains(expected.unwrap_or_default()),
                "{found:?}"
            );
        };
        check(origin("f", None), "other", None);
        // The same files on another computer, whatever its template has become.
        check(origin("g", Some(own)), "/elsewhere/Stone-1B", None);
        check(origin("g", Some(["c", "w", "t", "n", "float32"])), "org/Stone-1B", None);
        check(
            origin("g", Some(["c", "w", "t", "m", "as stored"])),
            "org/Stone-1B",
            Some("in another precision (as stored; here"),
        );
        check(
            origin("g", Some(["c", "v", "t", "m", "float32"])),
            "org/Stone-1B",
            Some("another revision of org/Stone-1B (its weights differ)"),
        );
        check(
            origin("g", Some(["d", "w", "u", "m", "float32"])),
            "x/Stone-1B",
            Some("its configuration differs, its tokenizer differs"),
        );
        check(
            origin("g", None),
            "Stone-1B",
            Some("another revision of org/Stone-1B (its fingerprint differs)"),
        );
        check(
            origin("g", Some(["d", "v", "u", "m", "float32"])),
            "Rock-2B",
            Some("another model (Rock-2B; org/Stone-1B is loaded)"),
        );
        check(origin("g", None), "", Some("another model than org/Stone-1B"));
    }
}
