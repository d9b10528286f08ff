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
    let title = title.trim();
    if title.is_empty() {
        return Err(Failure::invalid("A title cannot be empty.").of_kind(FailureKind::NoName));
    }
    if title.chars().count() > MAX_TITLE_CHARS || title.contains(char::is_control) {
        return Err(name_too_long("title", MAX_TITLE_CHARS));
    }
    Ok(title)
}

/// A name that a starting point, a key of the API or a job can have, without white space around it.
pub(crate) fn checked_name(name: &str) -> Result<&str, Failure> {
    let name = name.trim();
    if name.is_empty() {
        return Err(Failure::invalid("A name cannot be empty.").of_kind(FailureKind::NoName));
    }
    if name.chars().count() > MAX_NAME_CHARS || name.contains(char::is_control) {
        return Err(name_too_long("name", MAX_NAME_CHARS));
    }
    Ok(name)
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

/// The refusal of a name or title that has more characters, or several lines.
fn name_too_long(what: &str, most: usize) -> Failure {
    Failure::invalid(format!("A {what} is one line of at most {most} characters."))
        .of_kind(FailureKind::NameTooLong { most: tokens(most) })
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
