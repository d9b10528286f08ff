//! Phrases that come again and again in one line, whatever stands between them.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// How often three words stood in the line before where they are old.
const NUM_EARLIER: usize = 3;
/// The share of the words that are old in a text that repeats itself.
const OLD_SHARE: f64 = 0.9;
/// How many words of the line are remembered.
const MOST_WORDS: usize = 1024;

/// Reads a line letter by letter. The time is linear, the memory bounded.
#[derive(Debug, Default)]
pub(super) struct Phrases {
    /// The word that has begun, in lower case.
    word: String,
    /// Since the end of the word before.
    num_chars: usize,
    num_letters: usize,
    /// The two words before.
    before: [Option<u64>; 2],
    /// Of three words each, those of the words that are remembered, and how often each occurs in them.
    trigrams: VecDeque<u64>,
    counts: HashMap<u64, usize>,
    end: End,
}

/// The last words, as many as have the characters that are looked at.
#[derive(Debug, Default)]
struct End {
    words: VecDeque<Word>,
    num_old: usize,
    num_chars: usize,
    num_letters: usize,
}

/// A word with what stands before it.
#[derive(Debug)]
struct Word {
    is_old: bool,
    num_chars: usize,
    num_letters: usize,
}

impl Phrases {
    /// Takes the next letter. Returns whether the last `needed_chars` of the line are old: almost all of
    /// them words that stood there in this order several times before. Numbers and signs are not: tables
    /// have them.
    pub(super) fn push(&mut self, letter: char, needed_chars: usize) -> bool {
        self.num_chars += 1;
        self.num_letters += usize::from(letter.is_alphabetic());
        if letter.is_alphanumeric() || letter == '\'' {
            self.word.extend(letter.to_lowercase());
            return false;
        }
        if self.word.is_empty() {
            return false;
        }
        self.end_word();
        self.end.shorten(needed_chars);
        self.end.is_old(needed_chars)
    }

    fn end_word(&mut self) {
        let word = hash(&self.word);
        self.word.clear();
        let trigram = match self.before {
            [Some(first), Some(second)] => Some(hash(&[first, second, word])),
            _ => None,
        };
        self.before = [self.before[1], Some(word)];
        let is_old = trigram.is_some_and(|trigram| self.remember(trigram) >= NUM_EARLIER);
        let (num_chars, num_letters) =
            (std::mem::take(&mut self.num_chars), std::mem::take(&mut self.num_letters));
        self.end.add(Word { is_old, num_chars, num_letters });
    }

    /// Returns how often the trigram is remembered already.
    fn remember(&mut self, trigram: u64) -> usize {
        if self.trigrams.len() >= MOST_WORDS
            && let Some(oldest) = self.trigrams.pop_front()
            && let Some(count) = self.counts.get_mut(&oldest)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&oldest);
            }
        }
        self.trigrams.push_back(trigram);
        let count = self.counts.entry(trigram).or_default();
        *count += 1;
        *count - 1
    }
}

impl End {
    fn add(&mut self, word: Word) {
        self.num_old += usize::from(word.is_old);
        self.num_chars += word.num_chars;
        self.num_letters += word.num_letters;
        self.words.push_back(word);
    }

    /// Leaves no more words than have so many characters.
    fn shorten(&mut self, needed_chars: usize) {
        while let Some(first) = self.words.front()
            && self.num_chars - first.num_chars >= needed_chars
        {
            self.num_old -= usize::from(first.is_old);
            self.num_chars -= first.num_chars;
            self.num_letters -= first.num_letters;
            self.words.pop_front();
        }
    }

    fn is_old(&self, needed_chars: usize) -> bool {
        self.num_chars >= needed_chars
            && 2 * self.num_letters >= self.num_chars
            && self.num_old as f64 >= OLD_SHARE * self.words.len() as f64
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
