//! Which names and titles people can give to things, and how the others are refused.

use crate::convert::tokens;
use crate::wire::{Failure, FailureKind};

/// A title is one line in a list; longer ones are a mistake.
const MAX_TITLE_CHARS: usize = 500;
/// What the name of a starting point, a key of the API or a job has at most.
const MAX_NAME_CHARS: usize = 200;
/// What the name of a folder, a preset or a persona has at most: it is one line in a list.
const MAX_SHORT_NAME_CHARS: usize = 100;

/// A title that a conversation can have, without white space around it.
pub(crate) fn checked_title(title: &str) -> Result<&str, Failure> {
    checked_line("title", title, MAX_TITLE_CHARS)
}

/// A name that a starting point, a key of the API or a job can have, without white space around it.
pub(crate) fn checked_name(name: &str) -> Result<&str, Failure> {
    checked_line("name", name, MAX_NAME_CHARS)
}

/// A name that a folder, a preset or a persona can have, without white space around it.
pub(crate) fn checked_name_of<'a>(what: &str, name: &'a str) -> Result<&'a str, Failure> {
    let name = name.trim();
    if name.is_empty()
        || name.chars().count() > MAX_SHORT_NAME_CHARS
        || name.contains(char::is_control)
    {
        let why =
            format!("A {what}’s name is one line of at most {MAX_SHORT_NAME_CHARS} characters.");
        let kind = match name.is_empty() {
            true => FailureKind::NoName,
            false => FailureKind::NameTooLong { most: tokens(MAX_SHORT_NAME_CHARS) },
        };
        return Err(Failure::invalid(why).of_kind(kind));
    }
    Ok(name)
}

/// One line of 1 to `most` characters, without white space around it.
fn checked_line<'a>(what: &str, text: &'a str, most: usize) -> Result<&'a str, Failure> {
    let text = text.trim();
    if text.is_empty() {
        let why = format!("A {what} cannot be empty.");
        return Err(Failure::invalid(why).of_kind(FailureKind::NoName));
    }
    if text.chars().count() > most || text.contains(char::is_control) {
        let why = format!("A {what} is one line of at most {most} characters.");
        let kind = FailureKind::NameTooLong { most: tokens(most) };
        return Err(Failure::invalid(why).of_kind(kind));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_line_that_is_not_empty() {
        fn check(name: &str, expected: Option<&str>) {
            assert_eq!(checked_name(name).ok(), expected, "for {name:?}");
        }
        check(" My book ", Some("My book"));
        check("", None);
        check(" \t", None);
        check("a\nb", None);
        check(&"x".repeat(200), Some(&"x".repeat(200)));
        check(&"x".repeat(201), None);
    }
}
