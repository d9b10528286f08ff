//! The first paragraphs of a model's description as plain text. A description is Markdown that
//! anyone may have written.

use pulldown_cmark::{Event, LinkType, Options, Parser, Tag, TagEnd};

/// The beginning of a description that is looked at; what is shown of it is shorter still.
const MAX_PARSED_BYTES: usize = 64 << 10;
/// Of a text that has to be cut, a whole sentence is kept if it has at least this share of the space.
const LEAST_SENTENCE_SHARE: f64 = 0.5;

/// The first paragraphs of a model's `README.md`, of at most `max_chars` characters: the text and
/// the inline code of them, and nothing else of the Markdown. Paragraphs are separated by an empty
/// line. None if there is no such text.
///
/// Left out are front matter, headings, lists, tables, code blocks, HTML, pictures, the addresses of
/// links, paragraphs that consist of links, and characters that are not seen or change the
/// direction of others. A longer text ends with a sentence, or with a word and an ellipsis.
pub fn plain_description(markdown: &str, max_chars: usize) -> Option<String> {
    let markdown = without_front_matter(markdown.trim_start_matches('\u{feff}'))?;
    let markdown = &markdown[..markdown.floor_char_boundary(MAX_PARSED_BYTES)];
    let options = Options::ENABLE_TABLES
        | Options::ENABLE_FOOTNOTES
        | Options::ENABLE_STRIKETHROUGH
        | Options::ENABLE_GFM
        | Options::ENABLE_MATH;
    let (mut text, mut paragraph) = (String::new(), Paragraph::default());
    for event in Parser::new_ext(markdown, options) {
        let Some(finished) = paragraph.read(event) else { continue };
        if !text.is_empty() {
            text.push_str("\n\n");
        }
        text.push_str(&finished);
        if text.chars().nth(max_chars).is_some() {
            text = cut(&text, max_chars);
            break;
        }
    }
    (!text.is_empty()).then_some(text)
}

/// The text after the YAML between two lines of dashes at its beginning; none if that has no end.
fn without_front_matter(markdown: &str) -> Option<&str> {
    let mut lines = markdown.split_inclusive('\n');
    let first = lines.next()?;
    if first.trim_end() != "---" {
        return Some(markdown);
    }
    let mut end = first.len();
    for (index, line) in lines.enumerate() {
        end += line.len();
        match line.trim_end() {
            // A rule, as Markdown has it.
            "" if index == 0 => return Some(markdown),
            "---" | "..." => return Some(&markdown[end..]),
            _ => {}
        }
    }
    None
}

/// The paragraph that is being read.
#[derive(Default)]
struct Paragraph {
    text: String,
    /// Blocks around it whose text is left out.
    num_left_out: usize,
    /// Links and pictures around the text; the text of a picture is left out.
    num_links: usize,
    num_pictures: usize,
    is_open: bool,
    /// Whether it says something outside of its links.
    has_own_words: bool,
}

impl Paragraph {
    /// Takes the next event. Returns the paragraph's text if it ends here and has any.
    fn read(&mut self, event: Event) -> Option<String> {
        match event {
            Event::Start(Tag::Paragraph) => {
                let (num_left_out, is_open) = (self.num_left_out, self.num_left_out == 0);
                *self = Paragraph { num_left_out, is_open, ..Paragraph::default() };
            }
            Event::End(TagEnd::Paragraph) => {
                self.is_open = false;
                let text = std::mem::take(&mut self.text);
                return Some(text).filter(|_| self.has_own_words);
            }
            Event::Start(tag) => match tag {
                // An address in angle brackets has itself as its text.
                Tag::Image { .. }
                | Tag::Link { link_type: LinkType::Autolink | LinkType::Email, .. } => {
                    self.num_pictures += 1;
                }
                Tag::Link { .. } => self.num_links += 1,
                Tag::BlockQuote(_) | Tag::Emphasis | Tag::Strong | Tag::Strikethrough => {}
                _ => self.num_left_out += 1,
            },
            Event::End(tag) => match tag {
                TagEnd::Image => self.num_pictures = self.num_pictures.saturating_sub(1),
                // One in angle brackets contains no other.
                TagEnd::Link if self.num_pictures > 0 && self.num_links == 0 => {
                    self.num_pictures -= 1;
                }
                TagEnd::Link => self.num_links = self.num_links.saturating_sub(1),
                TagEnd::BlockQuote(_)
                | TagEnd::Emphasis
                | TagEnd::Strong
                | TagEnd::Strikethrough => {}
                _ => self.num_left_out = self.num_left_out.saturating_sub(1),
            },
            Event::Text(text) | Event::Code(text) => self.add(&text),
            Event::SoftBreak | Event::HardBreak => self.add(" "),
            // Formulas, HTML, footnotes, rules and check boxes.
            _ => {}
        }
        None
    }

    fn add(&mut self, text: &str) {
        if !self.is_open || self.num_left_out > 0 || self.num_pictures > 0 {
            return;
        }
        for c in text.chars() {
            if c.is_whitespace() {
                if !self.text.is_empty() && !self.text.ends_with(' ') {
                    self.text.push(' ');
                }
            } else if is_shown(c) {
                self.text.push(c);
                self.has_own_words |= self.num_links == 0 && c.is_alphanumeric();
            }
        }
    }
}

/// Whether a character is seen itself and leaves the others where they are.
fn is_shown(c: char) -> bool {
    !c.is_control()
        && !matches!(c,
            // Soft hyphen, Arabic letter mark, Mongolian separator.
            '\u{ad}' | '\u{61c}' | '\u{180e}'
            // Spaces without width and direction marks; joiners are parts of words and emoji.
            | '\u{200b}' | '\u{200e}' | '\u{200f}'
            // Embedding, overriding and isolating of directions; invisible operators.
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            // Tags, which spell invisible text.
            | '\u{e0000}'..='\u{e007f}')
}

/// At most `max_chars` characters of a text that has more.
fn cut(text: &str, max_chars: usize) -> String {
    let byte =
        |num_chars: usize| text.char_indices().nth(num_chars).map_or(text.len(), |(at, _)| at);
    // One character more, which says whether the last word is whole.
    let (head, next) = (&text[..byte(max_chars)], &text[..byte(max_chars + 1)]);
    let least = byte((max_chars as f64 * LEAST_SENTENCE_SHARE) as usize);
    if let Some(end) = sentence_end(next).filter(|&end| end >= least && end <= head.len()) {
        return head[..end].to_owned();
    }
    let short = &text[..byte(max_chars.saturating_sub(1))];
    let word = short.rfind(char::is_whitespace).filter(|&end| end >= least);
    let short = &short[..word.unwrap_or(short.len())];
    let kept = short.trim_end_matches(|c: char| c.is_whitespace() || ",;:–-(".contains(c));
    if max_chars == 0 { String::new() } else { format!("{kept}…") }
}

/// Where the last whole sentence ends.
fn sentence_end(text: &str) -> Option<usize> {
    let mut chars = text.char_indices().peekable();
    let mut end = None;
    while let Some((at, c)) = chars.next() {
        let is_end = match c {
            '.' | '!' | '?' => chars.peek().is_some_and(|(_, next)| next.is_whitespace()),
            '。' | '！' | '？' => true,
            _ => false,
        };
        if is_end {
            end = Some(at + c.len_utf8());
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(markdown: &str, expected: Option<&str>) {
        assert_eq!(plain_description(markdown, 200).as_deref(), expected, "{markdown:.200?}");
    }

    #[test]
    fn paragraphs_become_plain_text() {
        check("A model.", Some("A model."));
        check(
            "# Title\n\nA model\nof *two* lines.\n\n## More\n\nAnd more.\n",
            Some("A model of two lines.\n\nAnd more."),
        );
        check(
            "**Bold**, ~~no~~, `code` and [a link](https://x.example/y \"title\").",
            Some("Bold, no, code and a link."),
        );
        check("> [!NOTE]\n> Quoted.", Some("Quoted."));
        check("Run it:\n\n```sh\nrm -rf /\n```\n\n    indented\n\nDone.", Some("Run it:\n\nDone."));
        check("Before.\n\n| a | b |\n|---|---|\n| c | d |\n\nAfter.", Some("Before.\n\nAfter."));
        check("Before.\n\n- a\n\n  b\n- c\n\n1. d\n\nAfter.", Some("Before.\n\nAfter."));
        check("Costs $x^2$ and a note[^1].\n\n[^1]: The note.", Some("Costs and a note."));
        check("Title\n=====\n\nText.", Some("Text."));
        check("A &amp; B &lt;c&gt;&nbsp;&#x64;", Some("A & B <c> d"));
        check("", None);
        check("# Only a title", None);
    }

    #[test]
    fn front_matter_is_no_text() {
        check("---\nlicense: mit\ntags:\n- mlx\n---\n\nText.", Some("Text."));
        check("\u{feff}---\r\nlicense: mit\r\n---\r\nText.\r\n", Some("Text."));
        check("---\na: b\n...\nText.", Some("Text."));
        check("---\nlicense: mit\nText without an end.", None);
        check("---\n---\nText.", Some("Text."));
        check("---\n\nA rule, then text.", Some("A rule, then text."));
        check("---", None);
        check("----\n\nText.", Some("Text."));
    }

    #[test]
    fn html_pictures_and_addresses_are_left_out() {
        check("<div align=\"center\">\n<b>Hello</b>\n</div>\n\nText.", Some("Text."));
        check("<script>alert(1)</script>\n\nText.", Some("Text."));
        check("A <b onclick=\"x()\">bold</b> word<!-- hidden -->.", Some("A bold word."));
        check("![a picture](https://x.example/p.png) Text.", Some("Text."));
        check("[![badge](b.svg)](https://x.example)\n\nText.", Some("Text."));
        check(
            "[Paper](https://a) | [Code](https://b) | [Blog][c]\n\n[c]: https://c\n\nText.",
            Some("Text."),
        );
        check(
            "See <https://x.example/y> or <me@x.example>, then [here][h].\n\n[h]: javascript:x()",
            Some("See or , then here."),
        );
        check("[**deep** ![p](q) text](javascript:alert(1)) and more", Some("deep text and more"));
    }

    #[test]
    fn hidden_characters_are_left_out() {
        check(
            "a\u{202e}b\u{2066}c\u{2069}d\u{200b}e\u{feff}f\u{7}g\0h\u{1b}[31m",
            Some("abcdefgh[31m"),
        );
        check("a&#x202e;b&#8206;c&#x1b;d", Some("abcd"));
        check("x\u{e0041}\u{e0042}y\u{2028}z", Some("xy z"));
        check("\u{200b}\u{202e}", None);
        let family = "👨\u{200d}👩\u{200d}👧 family";
        check(family, Some(family));
    }

    #[test]
    fn a_long_text_ends_with_a_sentence_or_a_word() {
        let cut_to = |text: &str, max_chars, expected: &str| {
            let found = plain_description(text, max_chars).unwrap();
            assert_eq!(found, expected);
            assert!(found.chars().count() <= max_chars);
        };
        cut_to("One two. Three four five six.", 16, "One two.");
        cut_to("One two. Three four five six.", 8, "One two.");
        cut_to("One two three.", 14, "One two three.");
        cut_to("One two three.", 13, "One two…");
        cut_to("Version 2.5 of the model", 20, "Version 2.5 of the…");
        cut_to("One, two, three", 10, "One, two…");
        cut_to("First.\n\nSecond paragraph.", 10, "First.");
        cut_to("一二三四五六七八", 5, "一二三四…");
        cut_to("一二三。四五六七八", 5, "一二三。");
        cut_to(&"x".repeat(1000), 10, "xxxxxxxxx…");
        cut_to("anything", 1, "…");
        assert_eq!(plain_description("anything", 0), None);
    }

    #[test]
    fn hostile_markdown_ends_soon_as_short_plain_text() {
        let deep = |part: &str| part.repeat(100_000 / part.len());
        let texts = [
            deep(">"),
            deep("> "),
            deep("- "),
            deep("1. "),
            deep("["),
            deep("]"),
            deep("!["),
            deep("[a]("),
            deep("[a]["),
            deep("*"),
            deep("**a "),
            deep("_a*"),
            deep("`"),
            deep("``a`"),
            deep("<"),
            deep("<!--"),
            deep("<a "),
            deep("<![CDATA["),
            deep("<?"),
            deep("&"),
            deep("&#x"),
            deep("|"),
            deep("a|\n-|\n"),
            deep("~"),
            deep("$"),
            deep("$$a"),
            deep("\\"),
            deep("#"),
            deep("---\n"),
            deep("***\n"),
            deep("\t"),
            deep("\r"),
            deep("\0"),
            deep("[^a]"),
            deep("[^a]: "),
            deep("[a]: b\n"),
            deep("  \n"),
            deep("a\n=\n"),
            deep("😀\u{200d}"),
            deep("e\u{301}\u{301}"),
            deep("x [a](b) "),
            format!("{}a{}", deep("["), deep("](b)")),
            format!("{}text{}", deep("*"), deep("*")),
            format!("---\n{}", deep("a: b\n")),
        ];
        for text in &texts {
            for start in ["", "Text. ", "# a\n\n", "---\na: b\n---\n"] {
                let markdown = format!("{start}{text}");
                if let Some(found) = plain_description(&markdown, 300) {
                    assert!((1..=300).contains(&found.chars().count()), "{markdown:.40?}");
                    assert!(found.chars().all(|c| c == '\n' || is_shown(c)), "{markdown:.40?}");
                }
            }
        }
        // Any mixture of what means something.
        let parts = [
            "*", "_", "`", "[", "]", "(", ")", "<", ">", "!", "#", "-", "|", "\n", "\n\n", " ",
            "    ", "a", "ä", "&amp;", "$", "~~", "---", "```", "[^", ":", "\u{202e}", "\\",
        ];
        let mut seed = 0x5eed_u64;
        for _ in 0..2000 {
            let mut markdown = String::new();
            for _ in 0..60 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                markdown += parts[(seed >> 33) as usize % parts.len()];
            }
            if let Some(found) = plain_description(&markdown, 50) {
                assert!((1..=50).contains(&found.chars().count()), "{markdown:?}");
                assert!(found.chars().all(|c| c == '\n' || is_shown(c)), "{markdown:?}");
            }
        }
    }
}
