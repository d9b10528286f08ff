//! Titles of models, for the menu bar and the API: “Qwen3 4B” for `mlx-community/Qwen3-4B-4bit`. The
//! window has the same rule (`ui/src/models/titles.ts`); both are held to the same table.

use crate::wire::Model;

/// What a word of a model's name says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    /// Which model it is.
    Model,
    /// How many parameters it has, which is said of the model too.
    Size,
    /// How many bits a weight has.
    Bits,
    /// Another way in which its weights are stored.
    Quantization,
    /// For which programs its files are.
    Packing,
    /// How it was tuned, and in which month.
    Tuning,
}

/// The title of the model with this name among those on this machine: its alias, or the shortest title
/// that no other has.
pub fn model_title(name: &str, models: &[Model]) -> String {
    let alias =
        models.iter().find(|model| model.name == name).and_then(|model| model.alias.clone());
    let others = models.iter().map(|model| model.alias.as_deref().unwrap_or(&model.name));
    alias.unwrap_or_else(|| title_among(name, others))
}

/// The shortest title of a model that is none of the others'.
fn title_among<'a>(name: &str, others: impl Iterator<Item = &'a str>) -> String {
    let taken: Vec<Vec<String>> = others.filter(|other| *other != name).map(titles_of).collect();
    let is_free = |level: usize, title: &String| {
        !taken.iter().any(|other| other.get(level).or(other.last()) == Some(title))
    };
    let titles = titles_of(name).into_iter().enumerate();
    let mut free = titles.filter(|(level, title)| is_free(*level, title)).map(|(_, title)| title);
    free.next().unwrap_or_else(|| name.to_owned())
}

/// What a model can be called, the shortest first and its whole name last. A name without a size or a
/// quantization is one that a person gave to a folder, and stays as it is.
fn titles_of(name: &str) -> Vec<String> {
    use Word::{Bits, Model, Quantization, Size, Tuning};
    let last = name.rsplit('/').find(|part| !part.is_empty()).unwrap_or(name);
    let words: Vec<(&str, Word)> = words_of(last).map(|text| (text, kind_of(text))).collect();
    let of = |kinds: &'static [Word]| words.iter().filter(|(_, kind)| kinds.contains(kind));
    let model: Vec<String> = of(&[Model, Size])
        .enumerate()
        .map(|(index, (text, kind))| match kind {
            Size => size_words(text),
            _ if *text == "gpt" => "GPT".to_owned(),
            _ if index == 0 => capitalized(text),
            _ => (*text).to_owned(),
        })
        .collect();
    if model.is_empty() || of(&[Size, Bits, Quantization]).next().is_none() {
        return vec![last.to_owned(), name.to_owned()];
    }
    let stored: Vec<String> = of(&[Bits, Quantization])
        .map(|(text, _)| match bits(&text.to_ascii_lowercase()) {
            Some(bits) => format!("{bits}-bit"),
            None => (*text).to_owned(),
        })
        .collect();
    let tuned = of(&[Tuning]).map(|(text, _)| capitalized(text));
    let details: Vec<String> = tuned.chain(stored.iter().cloned()).collect();
    let title = model.join(" ");
    let with = |details: &[String]| match details {
        [] => title.clone(),
        details => format!("{title} ({})", details.join(", ")),
    };
    vec![title.clone(), with(&stored), with(&details), last.to_owned(), name.to_owned()]
}

/// The parts between hyphens; that of a GGUF file's quantization stands behind a dot.
fn words_of(name: &str) -> impl Iterator<Item = &str> {
    name.split('-')
        .flat_map(|word| match word.rsplit_once('.') {
            Some((start, end)) if kind_of(end) == Word::Quantization => [start, end],
            _ => [word, ""],
        })
        .filter(|word| !word.is_empty())
}

fn kind_of(word: &str) -> Word {
    let lower = word.to_ascii_lowercase();
    match lower.as_str() {
        "mlx" | "gguf" | "hf" => Word::Packing,
        "instruct" | "it" | "chat" => Word::Tuning,
        "bf16" | "f16" | "f32" | "nvfp4" | "dwq" | "awq" | "gptq" | "qat" => Word::Quantization,
        lower if [4, 6].contains(&lower.len()) && is_number(lower) => Word::Tuning,
        lower if bits(lower).is_some() => Word::Bits,
        lower if is_quantization(lower) => Word::Quantization,
        lower if is_size(lower) => Word::Size,
        _ => Word::Model,
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The number in `4bit`.
fn bits(word: &str) -> Option<&str> {
    let number = word.strip_suffix("bits").or_else(|| word.strip_suffix("bit"))?;
    is_number(number).then_some(number)
}

/// `q8`, `iq2_xs`, `fp8`, `mxfp4`, `int4`.
fn is_quantization(lower: &str) -> bool {
    let q = lower.strip_prefix("iq").or_else(|| lower.strip_prefix('q'));
    let has_digit = |rest: &str| rest.starts_with(|first: char| first.is_ascii_digit());
    let is_plain =
        |rest: &str| rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    q.is_some_and(|rest| has_digit(rest) && is_plain(rest))
        || ["fp", "mxfp", "int"].iter().any(|kind| lower.strip_prefix(kind).is_some_and(is_number))
}

/// `4b`, `1.5b`, `a3b`, `8x7b`, `135m`.
fn is_size(lower: &str) -> bool {
    let Some(number) = lower.strip_suffix(['b', 'm']) else { return false };
    let number = number.strip_prefix(['a', 'e']).unwrap_or(number);
    let number = match number.split_once('x') {
        Some((experts, number)) if is_number(experts) => number,
        _ => number,
    };
    match number.split_once('.') {
        Some((whole, rest)) => is_number(whole) && is_number(rest),
        None => is_number(number),
    }
}

/// `8x7B` for `8x7b`, `A3B` for `a3b`.
fn size_words(text: &str) -> String {
    let is_end = |index: usize| index == 0 || index + 1 == text.len();
    let letters = text.char_indices();
    letters
        .map(|(at, letter)| if is_end(at) { letter.to_ascii_uppercase() } else { letter })
        .collect()
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    #[test]
    fn models_are_called_as_in_the_window() {
        let table: serde_json::Value =
            serde_json::from_str(include_str!("../../../../ui/src/models/titles.json")).unwrap();
        let cases: Vec<(Vec<String>, Vec<String>)> =
            serde_json::from_value(table["cases"].clone()).unwrap();
        assert!(cases.len() > 10);
        for (names, titles) in cases {
            let others = || names.iter().map(String::as_str);
            let found: Vec<String> = names.iter().map(|name| title_among(name, others())).collect();
            assert_eq!(found, titles, "{names:?}");
        }
    }
}
