//! The tokenizer of a model folder: encoding, decoding, and streaming detokenization.

use std::any::Any;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::iter;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use cairn_chat::{ChatError, ChatTemplate, Date, Encode, SpecialTokens};
use cairn_formats::{byte_letters, check_growth, check_normalizer, read_file, tiktoken};
use serde_json::Value;
use tokenizers::{Decoder, DecoderWrapper, Tokenizer as Inner};

use crate::error::read_json;
use crate::{LmError, byte_level, chat_templates};

/// Limit for tokenizer files; vocabularies of 256k tokens with their merges are smaller.
pub(crate) const MAX_TOKENIZER_BYTES: u64 = 64 << 20;

/// The most tokens of a line that are decoded again with each new one.
const MAX_TAIL_TOKENS: usize = 64;

/// A tokenizer with its special tokens and chat template.
#[derive(Debug)]
pub struct Tokenizer {
    /// The file that it was read from.
    path: PathBuf,
    inner: Inner,
    /// The same tokenizer, but it encodes special tokens in a text as ordinary text.
    plain: Inner,
    decoding: Decoding,
    /// `None` if tokens do not say which bytes they stand for.
    token_form: Option<TokenForm>,
    special_tokens: Vec<(String, u32)>, // by id
    special: SpecialTokens,
    template: Option<ChatTemplate>,
    /// Whether tokenizer_config.json asks for the end-of-sequence token after a text, which
    /// tokenizer.json may not do itself.
    adds_eos: bool,
}

impl Tokenizer {
    /// Reads tokenizer.json, or a file of tiktoken in its place, tokenizer_config.json and the
    /// files of chat templates.
    pub fn load(folder: &Path) -> Result<Self, LmError> {
        let path = tokenizer_path(folder);
        let refuse = |reason: String| LmError::Tokenizer { path: path.clone(), reason };
        let config = tokenizer_config(folder)?;
        let mut json = tokenizer_json(&path, &config)?;
        if let Some(fields) = json.as_object_mut() {
            // These change what encoding returns, and a hostile file could ask for gigabytes of
            // padding.
            fields.remove("padding");
            fields.remove("truncation");
        }
        byte_level::complete(&mut json);
        check_normalizer(&json["normalizer"]).map_err(refuse)?;
        check_growth(&json).map_err(refuse)?;
        let inner = caught(|| Inner::from_bytes(json.to_string())).map_err(refuse)?;
        let decoding = Decoding::of(&inner);
        let token_form = TokenForm::of(&inner);
        let mut plain = inner.clone();
        plain.set_encode_special_tokens(true);
        let mut special_tokens: Vec<(String, u32)> = inner
            .get_added_tokens_decoder()
            .into_iter()
            .filter(|(_, token)| token.special)
            .map(|(id, token)| (token.content, id))
            .collect();
        special_tokens.sort_by_key(|(_, id)| *id);

        let special = SpecialTokens::from_tokenizer_config_value(&config);
        let template = chat_template(folder, &config)?;
        let adds_eos = config.get("add_eos_token").and_then(Value::as_bool).unwrap_or(false);
        Ok(Tokenizer {
            path,
            inner,
            plain,
            decoding,
            token_form,
            special_tokens,
            special,
            template,
            adds_eos,
        })
    }

    /// Reads the chat template of a model folder without its vocabulary; `None` for folders without
    /// one, such as base models.
    pub fn read_chat_template(folder: &Path) -> Result<Option<ChatTemplate>, LmError> {
        chat_template(folder, &tokenizer_config(folder)?)
    }

    /// The id of a token, special or not.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The beginning-of-sequence token, if the model has one.
    pub fn bos_token(&self) -> Option<&str> {
        self.special.bos.as_deref()
    }

    /// The end-of-sequence token that tokenizer_config.json names.
    pub fn eos_token(&self) -> Option<&str> {
        self.special.eos.as_deref()
    }

    /// The chat template; `None` for folders without one, such as base models.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    /// Encodes a plain prompt as mlx-lm does: special tokens are added unless the text begins with
    /// the beginning-of-sequence token itself.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, LmError> {
        let begins_itself =
            self.bos_token().is_some_and(|bos| !bos.is_empty() && text.starts_with(bos));
        self.encode_with(&self.inner, text, !begins_itself)
    }

    /// Encodes a text to be embedded as transformers does: with all special tokens that the
    /// tokenizer adds, the end-of-sequence token included where its files ask for one.
    pub fn encode_whole(&self, text: &str) -> Result<Vec<u32>, LmError> {
        let mut tokens = self.encode_with(&self.inner, text, true)?;
        let eos = self.eos_token().filter(|_| self.adds_eos);
        let eos = eos.and_then(|token| self.token_to_id(token));
        if eos.is_some() && tokens.last().copied() != eos {
            tokens.extend(eos);
        }
        Ok(tokens)
    }

    fn encode_with(
        &self,
        tokenizer: &Inner,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, LmError> {
        let encoding = caught(|| tokenizer.encode_fast(text, add_special_tokens));
        Ok(encoding.map_err(|reason| self.failed(reason))?.get_ids().to_vec())
    }

    fn failed(&self, reason: String) -> LmError {
        let name = |path: Option<&OsStr>| path.unwrap_or_default().to_string_lossy().into_owned();
        let model = name(self.path.parent().and_then(Path::file_name));
        LmError::Encoding { model, file: name(self.path.file_name()), reason }
    }

    /// The text of a token within a text. Decoders strip the leading space of the first token that
    /// they decode, so the text is what a second one adds.
    pub fn token_text(&self, token: u32) -> Result<String, LmError> {
        let once = self.decode_tail(&[token], false)?;
        let twice = self.decode_tail(&[token, token], false)?;
        Ok(twice.strip_prefix(once.as_str()).map_or(once.clone(), str::to_owned))
    }

    /// Returns the bytes of a token with this [`text`](Self::token_text). They are not UTF-8 if the
    /// token ends within a character. `None` if they are unknown.
    pub fn token_bytes(&self, token: u32, text: &str) -> Option<Vec<u8>> {
        let is_whole = !text.contains('\u{FFFD}');
        let is_added = self.inner.get_added_vocabulary().simple_id_to_token(token).is_some();
        let written = self.inner.id_to_token(token).filter(|_| !is_added);
        let own =
            written.zip(self.token_form.as_ref()).and_then(|(token, form)| form.bytes(&token));
        let own = own.filter(|own| !is_whole || std::str::from_utf8(own).is_err());
        own.or_else(|| is_whole.then(|| text.as_bytes().to_vec()))
    }

    /// The bytes of the first `num_tokens` tokens, by id; none for ids that are not used. Those of
    /// special tokens are behind `special_mark`.
    pub(crate) fn vocabulary(
        &self,
        num_tokens: usize,
        special_mark: u8,
    ) -> Result<Vec<Vec<u8>>, LmError> {
        let Some(form) = &self.token_form else {
            let reason = "its tokens do not say which bytes they stand for".to_owned();
            return Err(LmError::Grammar { reason });
        };
        let added = self.inner.get_added_tokens_decoder();
        let bytes = |id: u32| -> Vec<u8> {
            if let Some(token) = added.get(&id) {
                let mark = token.special.then_some(special_mark);
                return mark.into_iter().chain(token.content.bytes()).collect();
            }
            let token = self.inner.id_to_token(id);
            token.and_then(|token| form.bytes(&token)).unwrap_or_default()
        };
        Ok((0..num_tokens as u32).map(bytes).collect())
    }

    /// A detokenizer for one answer.
    pub fn stream(self: &Arc<Self>) -> Detokenizer {
        Detokenizer {
            tokenizer: Arc::clone(self),
            ids: Vec::new(),
            text: Tail::default(),
            visible: None,
            special_end: 0,
        }
    }

    fn is_special(&self, token: u32) -> bool {
        self.special_tokens.binary_search_by_key(&token, |(_, id)| *id).is_ok()
    }

    pub(crate) fn decode_tail(
        &self,
        ids: &[u32],
        skip_special_tokens: bool,
    ) -> Result<String, LmError> {
        caught(|| self.decoding.decode(&self.inner, ids, skip_special_tokens))
            .map_err(|reason| self.failed(reason))
    }
}

/// The file that holds a model's tokens: tokenizer.json, unless only tiktoken's is there.
pub(crate) fn tokenizer_path(folder: &Path) -> PathBuf {
    let names = iter::once("tokenizer.json").chain(tiktoken::file_names());
    let mut paths = names.map(|name| folder.join(name));
    paths.find(|path| path.exists()).unwrap_or_else(|| folder.join("tokenizer.json"))
}

/// The contents of tokenizer.json, from the file that [`tokenizer_path`] says.
pub(crate) fn tokenizer_json(path: &Path, config: &Value) -> Result<Value, LmError> {
    let contents = read_file(path, MAX_TOKENIZER_BYTES)?;
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if name == "tokenizer.json" {
        let json = serde_json::from_slice(&contents);
        return json.map_err(|source| LmError::Json { path: path.to_owned(), source });
    }
    let json = tiktoken::tokenizer_json(name, &contents, config);
    json.map_err(|error| LmError::Tokenizer { path: path.to_owned(), reason: error.to_string() })
}

fn chat_template(folder: &Path, config: &Value) -> Result<Option<ChatTemplate>, LmError> {
    let special = SpecialTokens::from_tokenizer_config_value(config);
    let template = chat_templates::read(folder, config, special)?;
    Ok(template.map(|template| template.with_clock(today)))
}

/// The value of tokenizer_config.json; null for folders without one.
pub(crate) fn tokenizer_config(folder: &Path) -> Result<Value, LmError> {
    let path = folder.join("tokenizer_config.json");
    if path.exists() { read_json(&path, MAX_TOKENIZER_BYTES) } else { Ok(Value::Null) }
}

/// The day in UTC.
fn today() -> Date {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Date::from_unix_seconds(since_1970.map_or(0, |elapsed| elapsed.as_secs() as i64))
}

/// How the vocabulary writes the bytes of a token.
#[derive(Debug)]
enum TokenForm {
    /// A letter for each byte.
    Letters(HashMap<char, u8>),
    /// Text with `▁` for a space, or `<0xE2>` for a byte.
    ByteFallback,
}

impl TokenForm {
    fn of(tokenizer: &Inner) -> Option<Self> {
        let decoder = serde_json::to_string(&tokenizer.get_decoder()).unwrap_or_default();
        if decoder.contains("\"ByteLevel\"") {
            return Some(TokenForm::Letters(byte_letters().into_iter().zip(0..=u8::MAX).collect()));
        }
        decoder.contains("\"ByteFallback\"").then_some(TokenForm::ByteFallback)
    }

    /// `None` if the token has a letter that stands for no byte.
    fn bytes(&self, token: &str) -> Option<Vec<u8>> {
        match self {
            TokenForm::Letters(letters) => {
                token.chars().map(|char| letters.get(&char).copied()).collect()
            }
            TokenForm::ByteFallback => Some(match byte_of(token) {
                Some(byte) => vec![byte],
                None => token.replace('▁', " ").into_bytes(),
            }),
        }
    }
}

/// How tokens become text.
#[derive(Debug)]
enum Decoding {
    /// As tokenizer.json says.
    AsStored,
    /// As it says too, but for tokens of single bytes, with the decoders before these and behind.
    ///
    /// `tokenizers` puts U+FFFD in the place of each byte of a run of which any part is broken, so that a
    /// character which has been shown would become unreadable with a later token. Here what is whole
    /// stays, as in mlx-lm.
    ByteFallback { before: Vec<DecoderWrapper>, after: Vec<DecoderWrapper> },
}

impl Decoding {
    fn of(tokenizer: &Inner) -> Self {
        let is_bytes =
            |decoder: &DecoderWrapper| matches!(decoder, DecoderWrapper::ByteFallback(_));
        let decoders = match tokenizer.get_decoder() {
            Some(DecoderWrapper::Sequence(sequence)) => sequence.get_decoders(),
            Some(single) => std::slice::from_ref(single),
            None => &[],
        };
        match decoders.iter().position(is_bytes) {
            None => Decoding::AsStored,
            Some(index) => Decoding::ByteFallback {
                before: decoders[..index].to_vec(),
                after: decoders[index + 1..].to_vec(),
            },
        }
    }

    fn decode(
        &self,
        tokenizer: &Inner,
        ids: &[u32],
        skip_special_tokens: bool,
    ) -> tokenizers::Result<String> {
        let Decoding::ByteFallback { before, after } = self else {
            return tokenizer.decode(ids, skip_special_tokens);
        };
        let added = tokenizer.get_added_vocabulary();
        let is_shown = |token: &String| !skip_special_tokens || !added.is_special_token(token);
        let token = |id: &u32| tokenizer.id_to_token(*id).filter(is_shown);
        let mut tokens: Vec<String> = ids.iter().filter_map(token).collect();
        for decoder in before {
            tokens = decoder.decode_chain(tokens)?;
        }
        let mut tokens = with_bytes_joined(tokens);
        for decoder in after {
            tokens = decoder.decode_chain(tokens)?;
        }
        Ok(tokens.concat())
    }
}

/// Each run of bytes (`<0xE2>`) as one text, with U+FFFD for what is no character.
fn with_bytes_joined(tokens: Vec<String>) -> Vec<String> {
    let mut joined = Vec::with_capacity(tokens.len());
    let mut bytes: Vec<u8> = Vec::new();
    for token in tokens {
        match byte_of(&token) {
            Some(byte) => bytes.push(byte),
            None => {
                if !bytes.is_empty() {
                    joined.push(String::from_utf8_lossy(&bytes).into_owned());
                    bytes.clear();
                }
                joined.push(token);
            }
        }
    }
    if !bytes.is_empty() {
        joined.push(String::from_utf8_lossy(&bytes).into_owned());
    }
    joined
}

/// The byte that a token such as `<0xE2>` stands for.
fn byte_of(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>').filter(|hex| hex.len() == 2)?;
    u8::from_str_radix(hex, 16).ok()
}

/// Runs a part of the tokenizer. Its regular expressions come with the model; where one takes too many
/// steps, the library panics. Nothing of the tokenizer changes while it runs.
fn caught<T>(part: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(part)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => Err(panic_message(panic.as_ref())),
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "the tokenizer panicked".to_owned())
}

impl Encode for Tokenizer {
    fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, ChatError> {
        self.encode_with(&self.inner, text, add_special_tokens)
            .map_err(|error| ChatError::Encode { reason: error.to_string() })
    }

    fn encode_plain(&self, text: &str) -> Result<Vec<u32>, ChatError> {
        self.encode_with(&self.plain, text, false)
            .map_err(|error| ChatError::Encode { reason: error.to_string() })
    }

    fn decode(&self, ids: &[u32]) -> Result<String, ChatError> {
        self.decode_tail(ids, false)
            .map_err(|error| ChatError::Decode { reason: error.to_string() })
    }

    fn special_tokens(&self) -> &[(String, u32)] {
        &self.special_tokens
    }
}

/// The text that a token completes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextPiece {
    /// The text with special tokens, as in mlx-lm.
    pub text: String,
    /// The text without special tokens, to be shown.
    pub visible: String,
}

/// Decodes the tokens of an answer as they arrive. The pieces concatenate to the decoded whole.
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    ids: Vec<u32>,
    text: Tail,
    /// The text without special tokens; `None` while it is the same as `text`.
    visible: Option<Tail>,
    /// The index behind the last special token.
    special_end: usize,
}

impl Detokenizer {
    /// The text that `token` completes: empty while a character is incomplete.
    pub fn push(&mut self, token: u32) -> Result<TextPiece, LmError> {
        if self.tokenizer.is_special(token) {
            self.special_end = self.ids.len() + 1;
            self.visible.get_or_insert_with(|| self.text.clone());
        }
        self.ids.push(token);
        let text = self.text.push(&self.ids, |ids| self.tokenizer.decode_tail(ids, false))?;
        let visible = match &mut self.visible {
            None => text.clone(),
            Some(tail) => tail.push(&self.ids, |ids| self.tokenizer.decode_tail(ids, true))?,
        };
        // Without a special token in the tail both decode the same ids to the same text.
        if self.visible.as_ref() == Some(&self.text) && self.special_end <= self.text.start {
            self.visible = None;
        }
        Ok(TextPiece { text, visible })
    }

    /// The withheld text, when the answer has ended: an incomplete character becomes U+FFFD.
    pub fn finish(self) -> Result<TextPiece, LmError> {
        let text = self.text.finish(&self.ids, |ids| self.tokenizer.decode_tail(ids, false))?;
        let visible = match &self.visible {
            None => text.clone(),
            Some(tail) => tail.finish(&self.ids, |ids| self.tokenizer.decode_tail(ids, true))?,
        };
        Ok(TextPiece { text, visible })
    }
}

/// The last tokens of an answer, which are decoded again with each new one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Tail {
    /// The index of the first token that is decoded again.
    start: usize,
    /// The part of the tail's text that has been returned.
    emitted: String,
}

impl Tail {
    /// The text that the last of `ids` completes.
    fn push(
        &mut self,
        ids: &[u32],
        decode: impl Fn(&[u32]) -> Result<String, LmError>,
    ) -> Result<String, LmError> {
        let text = decode(&ids[self.start..])?;
        // An incomplete character decodes to U+FFFD at the end, which is withheld.
        let complete = text.trim_end_matches('\u{FFFD}');
        let piece = after(complete, &self.emitted).to_owned();
        self.emitted.push_str(&piece);
        // A new tail begins at line ends and in long lines, so that the cost of a token does not
        // grow with the answer. The last token stays in the tail as context, because some
        // tokenizers strip a leading space from the first token that they decode; so it must be
        // one that decodes to text by itself.
        let is_long = ids.len() - self.start > MAX_TAIL_TOKENS && !piece.is_empty();
        if (is_long || piece.ends_with('\n')) && complete.len() == text.len() {
            let last = ids.len() - 1;
            let context = decode(&ids[last..])?;
            if !context.contains('\u{FFFD}') {
                *self = Tail { start: last, emitted: context };
            }
        }
        Ok(piece)
    }

    fn finish(
        &self,
        ids: &[u32],
        decode: impl Fn(&[u32]) -> Result<String, LmError>,
    ) -> Result<String, LmError> {
        Ok(after(&decode(&ids[self.start..])?, &self.emitted).to_owned())
    }
}

/// The part of `text` that follows `emitted`, with which it begins: characters that are whole do not
/// change with later tokens.
fn after<'t>(text: &'t str, emitted: &str) -> &'t str {
    text.strip_prefix(emitted).unwrap_or_else(|| {
        // A decoder that does otherwise loses no text.
        text.char_indices().nth(emitted.chars().count()).map_or("", |(index, _)| &text[index..])
    })
}
