//! Tokenizers in GGUF files: what is accepted becomes a tokenizer.json that loads, and that turns
//! text into ids of the vocabulary.
//!
//! An input is lines, each a letter, a space and a value, from which a GGUF file is made:
//! ```text
//! t c u   a token: normal, control, user-defined      m   a merge, its two parts separated by a space
//! g p     the kind of model, and of words             b e x   ids: begin, end, end of turn
//! B E     whether begin and end are added: 0 or 1     T   the chat template
//! ```
#![no_main]

use std::sync::LazyLock;

use cairn_formats::gguf::{GgufFile, TokenizerFiles};
use cairn_formats::test_files::gguf::TestGguf;
use cairn_fuzz::{ScratchFile, check_sentence};
use libfuzzer_sys::fuzz_target;
use tokenizers::Tokenizer;

/// More tokens than an input may name.
const NUM_EMBEDDINGS: usize = 1024;
const INT32: u32 = 5;
const FLOAT32: u32 = 6;

static SCRATCH: LazyLock<ScratchFile> = LazyLock::new(|| ScratchFile::new(".gguf"));

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let path = SCRATCH.holding(&gguf_of(text).bytes());
    let gguf = match GgufFile::open(path) {
        Ok(gguf) => gguf,
        Err(refusal) => return check_sentence(&refusal.to_string()),
    };
    match TokenizerFiles::read(&gguf, NUM_EMBEDDINGS, 128) {
        Ok(files) => check_tokenizer(&files),
        Err(problem) => check_sentence(&problem.to_string()),
    }
});

fn gguf_of(text: &str) -> TestGguf {
    let mut file = TestGguf { version: 3, keys: Vec::new(), tensors: Vec::new() };
    let (mut tokens, mut kinds, mut merges) = (Vec::new(), Vec::new(), Vec::new());
    file.set_text("tokenizer.ggml.model", "gpt2");
    for line in text.split('\n') {
        let Some((command, value)) = line.split_once(' ') else { continue };
        let mut token = |kind: i32| {
            tokens.push(value.to_owned());
            kinds.push(kind);
        };
        let number = value.parse().unwrap_or(0);
        match command {
            "t" => token(1),
            "c" => token(3),
            "u" => token(4),
            "m" => merges.push(value.to_owned()),
            "g" => file.set_text("tokenizer.ggml.model", value),
            "p" => file.set_text("tokenizer.ggml.pre", value),
            "b" => file.set_u32("tokenizer.ggml.bos_token_id", number),
            "e" => file.set_u32("tokenizer.ggml.eos_token_id", number),
            "x" => file.set_u32("tokenizer.ggml.eot_token_id", number),
            "B" => file.set_flag("tokenizer.ggml.add_bos_token", number != 0),
            "E" => file.set_flag("tokenizer.ggml.add_eos_token", number != 0),
            "T" => file.set_text("tokenizer.chat_template", value),
            _ => {}
        }
    }
    file.set_texts("tokenizer.ggml.tokens", &tokens);
    file.set_texts("tokenizer.ggml.merges", &merges);
    let scores = (0..tokens.len()).flat_map(|id| (-(id as f32)).to_le_bytes()).collect();
    file.set_array("tokenizer.ggml.scores", FLOAT32, tokens.len(), scores);
    let bytes = kinds.iter().flat_map(|kind| kind.to_le_bytes()).collect();
    file.set_array("tokenizer.ggml.token_type", INT32, kinds.len(), bytes);
    file
}

fn check_tokenizer(files: &TokenizerFiles) {
    let tokenizer =
        Tokenizer::from_bytes(files.tokenizer.to_string()).expect("an accepted tokenizer loads");
    let vocab_size = tokenizer.get_vocab_size(true);
    for text in ["", "hello 12\n", "<|begin|>é\u{1f642}  it's<|end|>", "\0\u{202e}"] {
        let encoding = tokenizer.encode(text, true).expect("text becomes ids");
        assert!(encoding.get_ids().iter().all(|id| (*id as usize) < vocab_size));
        tokenizer.decode(encoding.get_ids(), false).expect("ids become text");
    }
}
