//! The prompts of a job: its question with a text in it. Pure.
//!
//! Rows that begin alike are read once up to where they differ, so the text comes as late as the
//! question lets it: without a placeholder behind the instructions and the options.

use crate::decisions::{Question, Wording};

/// Where a text goes within the instructions.
pub(crate) const PLACEHOLDER: &str = "{text}";

/// The question about one text, once for each order of its options.
pub(crate) fn about(question: &Question, text: &str) -> Vec<Wording> {
    let (instructions, behind) = match question.instructions.contains(PLACEHOLDER) {
        true => (question.instructions.replace(PLACEHOLDER, text.trim()), String::new()),
        false => (question.instructions.clone(), format!("\n\n{}", text.trim())),
    };
    let mut wordings = Question { instructions, kind: question.kind.clone() }.wordings();
    for one in &mut wordings {
        one.text = format!("{}\n{}{behind}", one.text, one.how);
    }
    wordings
}

/// A word in braces that looks like a place for the text and is none, if there is one and no place
/// for the text: a misspelt placeholder would be asked about as it stands.
pub(crate) fn misspelt_placeholder(instructions: &str) -> Option<&str> {
    if instructions.contains(PLACEHOLDER) {
        return None;
    }
    let opens = instructions.match_indices('{').map(|(at, _)| &instructions[at..]);
    let in_braces = opens.filter_map(|rest| Some(&rest[..=rest.find('}')?]));
    let is_word = |braces: &&str| {
        let word = braces[1..braces.len() - 1].trim();
        !word.is_empty() && word.chars().all(|char| char.is_alphanumeric() || char == '_')
    };
    let mut words = in_braces.filter(is_word);
    words.next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decisions::{Described, QuestionKind};

    fn question(instructions: &str, kind: QuestionKind) -> Question {
        Question { instructions: instructions.to_owned(), kind }
    }

    #[test]
    fn a_text_stands_in_its_place_or_behind_the_question() {
        let answer = "Answer Yes or No.";
        for (instructions, text, expected) in [
            ("Is it a stone?", " granite\n", format!("Is it a stone?\n{answer}\n\ngranite")),
            ("Is “{text}” a stone?", "granite", format!("Is “granite” a stone?\n{answer}")),
            ("{text} or {text}?", "a", format!("a or a?\n{answer}")),
            // A text that has the placeholder itself is a text.
            ("Is it “{text}”?", "{text}", format!("Is it “{{text}}”?\n{answer}")),
            ("Is it a stone?", "{text}", format!("Is it a stone?\n{answer}\n\n{{text}}")),
        ] {
            let wordings = about(&question(instructions, QuestionKind::Predicate), text);
            assert_eq!(wordings.len(), 1);
            assert_eq!(wordings[0].text, expected);
        }
    }

    #[test]
    fn a_misspelt_placeholder_is_noticed() {
        for (instructions, expected) in [
            ("Is it a stone?", None),
            ("Is “{text}” a {stone}?", None),
            ("Is “{Text}” a stone?", Some("{Text}")),
            ("Is “{ text }” a stone?", Some("{ text }")),
            ("Is {} or {a b} or { a stone?", None),
            ("Answer as {\"a\": {review}}.", Some("{review}")),
        ] {
            assert_eq!(misspelt_placeholder(instructions), expected, "{instructions}");
        }
    }

    #[test]
    fn rows_begin_alike_up_to_their_texts() {
        let label = |label: &str| Described { label: label.to_owned(), description: None };
        let kind = QuestionKind::Choice(vec![label("red {text}"), label("green")]);
        let question = question("Which colour?", kind);
        let (first, second) = (about(&question, "grass"), about(&question, "brick"));
        for (first, second) in std::iter::zip(&first, &second) {
            assert_eq!(first.text.strip_suffix("grass"), second.text.strip_suffix("brick"));
            assert_eq!(first.answers, second.answers);
            assert!(first.text.contains("red {text}"), "an option is never filled in");
        }
    }
}
