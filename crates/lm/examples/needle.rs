//! Asks for a number that stands somewhere in a long text, with the whole context and with what SnapKV
//! keeps of it.
//!
//! ```console
//! $ cargo run --release -p cairn-lm --example needle -- MODEL [LENGTH]...
//! ```
//!
//! Each text is read once; then each way answers from a copy of its caches. A row counts, over nine
//! depths, how many answers contain the number.

use std::error::Error;
use std::path::Path;

use cairn_chat::Encode;
use cairn_lm::cache::{LayerCache, SnapKv, compress};
use cairn_lm::{GenerateOptions, LoadOptions, LoadedModel, PromptReader, Sampler};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const LENGTHS: [usize; 3] = [2000, 4000, 7500];
const KEPT: [usize; 4] = [256, 512, 1024, 2048];
const NUM_DEPTHS: usize = 9;
const NUM_ANSWER_TOKENS: usize = 24;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: needle MODEL [LENGTH]...")?;
    let lengths: Vec<usize> =
        arguments.map(|length| length.parse()).collect::<std::result::Result<_, _>>()?;
    let lengths = if lengths.is_empty() { LENGTHS.to_vec() } else { lengths };
    let options = LoadOptions::new();
    let loaded = LoadedModel::load(Path::new(&folder), options)?;
    let kept = KEPT.map(|kept| format!(" {kept} kept |")).concat();
    println!("| tokens | whole |{kept}");
    println!("|---|---|{}", "---|".repeat(KEPT.len()));
    for length in lengths {
        let mut num_found = [0; KEPT.len() + 1];
        for depth in 1..=NUM_DEPTHS {
            let number = 1000 + (depth * 7919 + length) % 9000;
            let tokens = prompt(&loaded, length, depth, number)?;
            let caches = read(&loaded, &tokens)?;
            let ways = std::iter::once(None).chain(KEPT.map(Some));
            for (found, keep_tokens) in num_found.iter_mut().zip(ways) {
                let answer = answer(&loaded, &tokens, caches.clone(), keep_tokens)?;
                *found += usize::from(answer.contains(&number.to_string()));
            }
        }
        let found = num_found.map(|found| format!(" {found} of {NUM_DEPTHS} |")).concat();
        println!("| {length} |{found}");
    }
    Ok(())
}

/// A text of about `length` tokens with the number behind `depth` tenths of it, and the question.
fn prompt(loaded: &LoadedModel, length: usize, depth: usize, number: usize) -> Result<Vec<u32>> {
    let who = ["A baker", "The old captain", "My neighbour", "A young teacher", "The gardener"];
    let what = ["walked slowly along", "painted a picture of", "told a story about", "cleaned"];
    let whom = ["the harbour", "a wooden boat", "the market square", "the green hills", "a bridge"];
    let sentence = |index: usize| {
        let (who, what) = (who[index % who.len()], what[index / 3 % what.len()]);
        format!("{who} {what} {} before the rain came. ", whom[index / 7 % whom.len()])
    };
    let num_sentences = length / loaded.tokenizer.encode(&sentence(0), false)?.len();
    let mut text = String::from("<|im_start|>user\nRead this text.\n\n");
    for index in 0..num_sentences {
        if index == num_sentences * depth / (NUM_DEPTHS + 1) {
            text += &format!("The secret number is {number}. ");
        }
        text += &sentence(index);
    }
    text += "\n\nWhat is the secret number?<|im_end|>\n<|im_start|>assistant\nThe secret number is";
    Ok(loaded.tokenizer.encode(&text, false)?)
}

/// The caches of all but the last token, with the queries to choose by.
fn read(loaded: &LoadedModel, tokens: &[u32]) -> Result<Vec<LayerCache>> {
    let snapkv = SnapKv { keep_tokens: KEPT[0], min_context: 0 };
    let options = GenerateOptions {
        snapkv: Some(snapkv),
        prefill_step_size: 512,
        ..GenerateOptions::default()
    };
    let (caches, sampler) = (Vec::new(), Sampler::Greedy);
    let mut reader =
        PromptReader::new(&loaded.model, tokens.to_vec(), &[], caches, sampler, options)?;
    reader.read(reader.num_left())?;
    Ok(reader.into_caches())
}

fn answer(
    loaded: &LoadedModel,
    tokens: &[u32],
    mut caches: Vec<LayerCache>,
    keep_tokens: Option<usize>,
) -> Result<String> {
    if let Some(keep_tokens) = keep_tokens {
        compress(&mut caches, &SnapKv { keep_tokens, min_context: 0 })?;
    }
    let options = GenerateOptions { max_tokens: NUM_ANSWER_TOKENS, ..GenerateOptions::default() };
    let (read, last) = tokens.split_at(tokens.len() - 1);
    let reader =
        PromptReader::new(&loaded.model, last.to_vec(), read, caches, Sampler::Greedy, options)?;
    let (mut stream, mut answer) = (reader.start()?, Vec::new());
    while let Some(sampled) = stream.next_token()? {
        if loaded.eos_token_ids.contains(&sampled.token) {
            break;
        }
        answer.push(sampled.token);
    }
    Ok(loaded.tokenizer.decode(&answer)?)
}
