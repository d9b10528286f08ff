//! Notices that an answer repeats itself, while it is written.
//!
//! Three signs, because loops are of several kinds:
//!
//! - *The end of the text is one unit again and again*, but for numbers at the beginning of lines. That
//!   finds loops of words, sentences and list items.
//! - *Paragraphs come for the third time*, one after another, but for a few words: compared by their
//!   sets of word trigrams. That finds loops whose units are long, or vary.
//! - *The end of a line has almost no three words that did not stand in the line several times before.*
//!   That finds loops of phrases that come in changing order, in a paragraph without an end.
//!
//! Code, tables and blank forms repeat themselves by nature, so more of them is needed for the first
//! sign, and they do not count for the others.

mod phrases;

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use phrases::Phrases;

/// How much of the end is searched for a unit, in characters.
const WINDOW_CHARS: usize = 4096;
/// After how many characters the end is searched again.
const CHARS_BETWEEN_SEARCHES: usize = 64;
/// How often a unit stands at the end of a text that repeats itself.
const NUM_UNITS: usize = 4;
/// How long these are together, in characters: in prose, in code, and where less than half of the
/// unit is letters.
const PROSE_CHARS: usize = 600;
const CODE_CHARS: usize = 1500;
const FORM_CHARS: usize = 2400;

/// A line of so many words is a paragraph; shorter ones are part of one, like those of a stanza.
const PARAGRAPH_WORDS: usize = 12;
/// A paragraph has so many different trigrams; one with fewer is a table in disguise, or a single word
/// again and again.
const LEAST_TRIGRAMS: usize = 8;
/// How many trigrams two paragraphs share that say the same, of those that either has.
const SAME_OVERLAP: f64 = 0.7;
/// How often a paragraph was there before. Once may be a draft, or a refrain.
const NUM_EARLIER: usize = 2;
/// How many such paragraphs stand one after another in a text that repeats itself...
const NUM_PARAGRAPHS: usize = 3;
/// ...and how long they are together, in characters.
const PARAGRAPHS_CHARS: usize = 600;
/// How many paragraphs are remembered.
const MOST_PARAGRAPHS: usize = 256;

/// Reads a text as it grows, and says when it repeats itself.
///
/// The time is linear in the text, the memory bounded.
#[derive(Debug, Default)]
pub struct LoopDetector {
    end: VecDeque<char>,
    num_unsearched: usize,
    line: String,
    phrases: Phrases,
    is_in_number: bool,
    is_code: bool,
    is_in_fence: bool,
    paragraph: String,
    earlier: VecDeque<Vec<u64>>,
    num_repeated: usize,
    repeated_chars: usize,
    /// How often a person has let it go on.
    num_allowed: u32,
}

impl LoopDetector {
    /// For text.
    pub fn new() -> Self {
        LoopDetector::default()
    }

    /// For code, such as the arguments of a tool call.
    pub fn of_code() -> Self {
        LoopDetector { is_code: true, ..LoopDetector::default() }
    }

    /// Takes the next piece of the text. Returns whether the text repeats itself.
    pub fn push(&mut self, piece: &str) -> bool {
        let mut repeats = false;
        for letter in piece.chars() {
            self.remember(letter);
            if letter == '\n' {
                repeats |= self.end_line();
            } else {
                self.line.push(letter);
                repeats |= self.line_repeats(letter);
            }
            self.num_unsearched += 1;
            if self.num_unsearched >= CHARS_BETWEEN_SEARCHES {
                self.num_unsearched = 0;
                repeats |= self.ends_in_units();
            }
        }
        repeats
    }

    /// Lets it go on: what was said so far does not count any more, and it takes twice as much for the
    /// text to repeat itself.
    pub fn allow(&mut self) {
        let (is_code, is_in_fence) = (self.is_code, self.is_in_fence);
        let num_allowed = (self.num_allowed + 1).min(8);
        *self = LoopDetector { is_code, is_in_fence, num_allowed, ..LoopDetector::default() };
    }

    /// Adds a character to the end; a number at the beginning of a line is one digit.
    fn remember(&mut self, letter: char) {
        let is_digit = letter.is_ascii_digit();
        if is_digit && self.is_in_number {
            return;
        }
        self.is_in_number = is_digit && !self.line.contains(char::is_alphanumeric);
        self.end.push_back(if self.is_in_number { '0' } else { letter });
        let most = WINDOW_CHARS << self.num_allowed;
        if self.end.len() > most {
            self.end.pop_front();
        }
    }

    /// Whether one unit stands at the end often enough.
    fn ends_in_units(&self) -> bool {
        let end: Vec<char> = self.end.iter().rev().copied().collect();
        let borders = borders(&end);
        // Of a text of `length` whose longest border is `border`, the shortest period is the rest.
        borders.iter().enumerate().any(|(last, &border)| {
            let (length, period) = (last + 1, last + 1 - border);
            length >= NUM_UNITS * period && length >= self.needed_chars(&end[..period])
        })
    }

    fn needed_chars(&self, unit: &[char]) -> usize {
        let num_letters = unit.iter().filter(|letter| letter.is_alphabetic()).count();
        let needed = if 2 * num_letters < unit.len() {
            FORM_CHARS
        } else if self.is_code || self.is_in_fence {
            CODE_CHARS
        } else {
            PROSE_CHARS
        };
        needed << self.num_allowed
    }

    /// Adds a letter to the phrases of its line. Returns whether they repeat themselves.
    fn line_repeats(&mut self, letter: char) -> bool {
        let is_prose = !(self.is_code || self.is_in_fence || is_row(self.line.trim_start()));
        is_prose && self.phrases.push(letter, PROSE_CHARS << self.num_allowed)
    }

    /// Adds the line to its paragraph. Returns whether paragraphs repeat themselves.
    fn end_line(&mut self) -> bool {
        let line = std::mem::take(&mut self.line);
        self.phrases = Phrases::default();
        let text = line.trim();
        let is_fence = text.starts_with("```") || text.starts_with("~~~");
        let is_prose = !(is_fence || self.is_code || self.is_in_fence || is_row(text));
        self.is_in_fence ^= is_fence;
        let is_paragraph = is_prose && text.split_whitespace().count() >= PARAGRAPH_WORDS;
        if is_paragraph || !is_prose || text.is_empty() {
            let before = std::mem::take(&mut self.paragraph);
            let repeats = self.end_paragraph(&before);
            return repeats | (is_paragraph && self.end_paragraph(text));
        }
        self.paragraph.push_str(text);
        self.paragraph.push('\n');
        false
    }

    fn end_paragraph(&mut self, text: &str) -> bool {
        let Some(trigrams) = trigrams(text) else { return false };
        let same =
            self.earlier.iter().filter(|earlier| overlap(earlier, &trigrams) >= SAME_OVERLAP);
        if same.take(NUM_EARLIER).count() == NUM_EARLIER {
            self.num_repeated += 1;
            self.repeated_chars += text.chars().count();
        } else {
            (self.num_repeated, self.repeated_chars) = (0, 0);
        }
        self.earlier.push_back(trigrams);
        if self.earlier.len() > MOST_PARAGRAPHS {
            self.earlier.pop_front();
        }
        self.num_repeated >= NUM_PARAGRAPHS << self.num_allowed
            && self.repeated_chars >= PARAGRAPHS_CHARS << self.num_allowed
    }
}

/// Whether a line is a row of a table.
fn is_row(line: &str) -> bool {
    line.starts_with('|')
}

/// For each beginning of a text the length of its longest border: a proper beginning that is its end
/// too (Knuth, Morris and Pratt).
fn borders(text: &[char]) -> Vec<usize> {
    let mut borders = vec![0; text.len()];
    for at in 1..text.len() {
        let mut border: usize = borders[at - 1];
        while border > 0 && text[border] != text[at] {
            border = borders[border - 1];
        }
        borders[at] = border + usize::from(text[border] == text[at]);
    }
    borders
}

/// The trigrams of a paragraph's words, each as a hash, ascending; none if it has too few of them.
fn trigrams(text: &str) -> Option<Vec<u64>> {
    let words: Vec<String> = text
        .split(|letter: char| !letter.is_alphanumeric() && letter != '\'')
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    if words.len() < PARAGRAPH_WORDS {
        return None;
    }
    let hash = |words: &[String]| {
        let mut hasher = DefaultHasher::new();
        words.hash(&mut hasher);
        hasher.finish()
    };
    let mut trigrams: Vec<u64> = words.windows(3).map(hash).collect();
    trigrams.sort_unstable();
    trigrams.dedup();
    (trigrams.len() >= LEAST_TRIGRAMS).then_some(trigrams)
}

/// The share of the trigrams of either that both have.
fn overlap(a: &[u64], b: &[u64]) -> f64 {
    let num_shared = a.iter().filter(|trigram| b.binary_search(trigram).is_ok()).count();
    num_shared as f64 / (a.len() + b.len() - num_shared) as f64
}
