//! The title that a conversation gets from its first message.

const MAX_CHARS: usize = 60;
/// The least length at which the title ends at a word; a shorter one would drop too much, so a long
/// word is cut.
const MIN_CHARS: usize = 30;

/// The first line that is not blank, with single spaces, cut at the end of a word to 60 characters
/// at most. Empty if there is no such line.
pub(crate) fn title_from(text: &str) -> String {
    let line = text.lines().map(words_of).find(|line| !line.is_empty()).unwrap_or_default();
    if line.chars().count() <= MAX_CHARS {
        return line;
    }
    // One character is reserved for the ellipsis. A cut before a space is at the end of a word.
    let end = line.char_indices().nth(MAX_CHARS - 1).map_or(line.len(), |(end, _)| end);
    let next = line[end..].chars().next().map_or(end, |next| end + next.len_utf8());
    let cut = match line[..next].rfind(' ') {
        Some(space) if line[..space].chars().count() >= MIN_CHARS => &line[..space],
        _ => &line[..end],
    };
    format!("{}…", cut.trim_end_matches([' ', ',', ';', ':', '.', '-', '–', '—']))
}

/// The words of a line, joined by single spaces. Control characters other than white space are
/// dropped, because a title is one line.
fn words_of(line: &str) -> String {
    let mut words = String::new();
    for word in line.split_whitespace() {
        let visible = word.chars().filter(|character| !character.is_control());
        let length = words.len();
        if length > 0 {
            words.push(' ');
        }
        let before = words.len();
        words.extend(visible);
        if words.len() == before {
            words.truncate(length);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::title_from;

    #[test]
    fn the_title_is_the_first_line_cut_at_a_word() {
        fn check(text: &str, expected: &str) {
            let title = title_from(text);
            assert_eq!(title, expected, "for {text:?}");
            assert!(title.chars().count() <= 60, "{title:?} is too long");
        }
        check("", "");
        check(" \n\t\r\n ", "");
        check("Hello", "Hello");
        check("  Hello,\tworld  \nsecond line", "Hello, world");
        check("\n\nafter empty lines\r\nmore", "after empty lines");
        check("a\0b \u{1b} c\u{7}", "ab c");
        check(&"x".repeat(60), &"x".repeat(60));
        check(&"x".repeat(61), &format!("{}…", "x".repeat(59)));
        check(&"語".repeat(80), &format!("{}…", "語".repeat(59)));
        check(&"🪨".repeat(61), &format!("{}…", "🪨".repeat(59)));
        // Exactly 60 characters need no cut; a word that ends right before the ellipsis is not cut.
        check(
            &format!("{} {}", "a".repeat(40), "b".repeat(19)),
            &format!("{} {}", "a".repeat(40), "b".repeat(19)),
        );
        check(
            &format!("{} {} c", "a".repeat(40), "b".repeat(18)),
            &format!("{} {}…", "a".repeat(40), "b".repeat(18)),
        );
        check(&format!("{} {} c", "a".repeat(40), "b".repeat(19)), &format!("{}…", "a".repeat(40)));
        // The only end of a word comes too early.
        check(&format!("Look: {}", "z".repeat(80)), &format!("Look: {}…", "z".repeat(53)));
        check(
            &format!("{}, and then {}", "a".repeat(42), "b".repeat(30)),
            &format!("{}, and then…", "a".repeat(42)),
        );
        check(
            &format!("{} word, {}", "a".repeat(40), "b".repeat(30)),
            &format!("{} word…", "a".repeat(40)),
        );
    }
}
