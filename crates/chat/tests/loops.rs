//! What counts as an answer that repeats itself, and what does not.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

use cairn_chat::LoopDetector;

/// How many characters of a text are read before it is said to repeat itself.
fn noticed_after(text: &str, mut detector: LoopDetector) -> Option<usize> {
    text.chars().enumerate().find_map(|(index, letter)| {
        detector.push(letter.encode_utf8(&mut [0; 4])).then_some(index + 1)
    })
}

/// A text of rounds, each made from its number.
fn rounds(count: usize, mut round: impl FnMut(usize) -> String) -> String {
    (1..=count).map(&mut round).collect()
}

const STONES: &str = "The stones on the hill were put there by people who wanted others to find \
    the way, and each of them added one more before they went on.\n\n";
const RIVERS: &str = "A river that has no bridge is crossed where it is wide, because there it is \
    shallow, and the ground between the channels carries a person.\n\n";
const WINDS: &str = "When the wind comes from the east the snow is dry, does not stick to the \
    rocks, and the path can be seen for most of the day.\n\n";

#[test]
fn ordinary_answers_are_left_alone() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ordinary");
    let mut num_texts = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(noticed_after(&text, LoopDetector::new()), None, "{}", path.display());
        num_texts += 1;
    }
    assert!(num_texts >= 16, "only {num_texts} texts");
}

#[test]
fn all_ordinary_answers_in_one_are_left_alone() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ordinary");
    let files = std::fs::read_dir(folder).unwrap();
    let texts = files.map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap());
    let all: String = texts.flat_map(|text| [text, "\n\n".to_owned()]).collect();
    assert_eq!(noticed_after(&all, LoopDetector::new()), None);
}

#[test]
fn loops_are_noticed_soon() {
    fn check(name: &str, text: &str, within: usize) {
        let prelude = "An answer begins well, with a sentence that says something.\n\n";
        let noticed = noticed_after(&format!("{prelude}{text}"), LoopDetector::new());
        let noticed = noticed.unwrap_or_else(|| panic!("{name} is not noticed"));
        let noticed = noticed - prelude.len();
        assert!(noticed <= within, "{name}: after {noticed} characters");
    }
    check("a letter", &"a".repeat(1000), 700);
    check("a word", &"really ".repeat(200), 700);
    check("a sentence", &"I am sorry, I cannot help with that. ".repeat(40), 700);
    check("a paragraph", &STONES.repeat(9), 800);
    let items = ["Be kind", "Be honest about what you do not know", "Listen first"];
    check("a numbered list", &rounds(90, |n| format!("{n}. {}.\n", items[n % 3])), 800);
    check("paragraphs in turn", &format!("{STONES}{RIVERS}{WINDS}").repeat(5), 1700);
    check("a long round", &format!("{STONES}{RIVERS}{WINDS}{STONES}").repeat(4), 1700);
    let varied = |n| STONES.replace("hill", ["hill", "ridge", "pass"][n % 3]);
    check("a paragraph that varies", &rounds(9, varied), 1200);
    let counted = |n| {
        format!(
            "Step {n}: take one stone from the heap, carry it to the top of the hill, put it on the pile, and walk back down to the heap again.\n"
        )
    };
    check("steps that are counted", &rounds(20, counted), 1200);
    let row = "| the same row | of the same table | again |\n";
    check("a row of words", &row.repeat(40), 700);
    let line = "    total += values.iter().map(|value| value.weight()).sum::<u32>();\n";
    check("a line of code", &format!("```rust\n{}", line.repeat(40)), 1700);
    check("a line of dashes", &"-".repeat(3000), 2600);
}

/// A line of phrases in an order that never becomes a period.
fn phrases(count: usize, phrase: impl Fn(usize) -> String) -> String {
    let mut state = 7;
    rounds(count, |_| {
        state = (state * 75 + 74) % 65_537;
        phrase(state)
    })
}

#[test]
fn phrases_that_come_again_in_one_line_are_noticed() {
    fn check(name: &str, phrase: impl Fn(usize) -> String) {
        let noticed = noticed_after(&phrases(80, phrase), LoopDetector::new());
        let noticed = noticed.unwrap_or_else(|| panic!("{name} is not noticed"));
        assert!(noticed <= 2500, "{name}: after {noticed} characters");
    }
    const ENDS: [&str; 5] = [
        "the path",
        "the path is long",
        "stones, stones, stones",
        "the hill",
        "the old hill there",
    ];
    check("a stage direction", |n| {
        format!("(the guide lowers his voice a little) And then {}... ", ENDS[n % 5])
    });
    check("without sentences", |n| {
        let tries = ["again", "once more", "and again and again"];
        format!("and we put a stone on the pile {} ", tries[n % 3])
    });
}

#[test]
fn lines_that_repeat_words_and_say_something_are_left_alone() {
    fn check(name: &str, text: &str) {
        assert_eq!(noticed_after(text, LoopDetector::new()), None, "{name}");
    }
    let verses = ["the moss", "a lark", "my boots", "the rain", "no road", "cold tea"];
    let verse = |n: usize| {
        format!("I went up on {} and came down by {}, / ", verses[n % 6], verses[n / 6 % 6])
    };
    check("a song in one line", &rounds(12, verse));
    let stone =
        |n: usize| format!("stone {n} weighs {} kilograms and stands on stone {}, ", n * n, n - 1);
    check("an enumeration", &rounds(60, stone));
    let object =
        |n: usize| format!("{{\"id\": {n}, \"kind\": \"cairn\", \"height\": {}}}, ", n * 7 % 31);
    check("data in one line", &rounds(60, object));
    let row = |n: usize| format!("the height of the stone on the hill is {} | ", n * n);
    check("a row of a table", &format!("| {}", rounds(40, row)));
    let essay = |n: usize| format!("{}{} ", [STONES, RIVERS, WINDS][n % 3].trim_end(), n * n);
    check("three rounds", &rounds(9, essay));
}

#[test]
fn what_is_code_may_repeat_itself_for_longer() {
    let line = "{\"name\": \"look\", \"at\": \"the same place\"},";
    let text = line.repeat(60);
    let (in_text, in_code) = (LoopDetector::new(), LoopDetector::of_code());
    let in_text = noticed_after(&text, in_text).unwrap();
    assert!(noticed_after(&text, in_code).unwrap() > in_text);
}

#[test]
fn a_loop_that_was_allowed_is_noticed_again_later() {
    let text = "again and ".repeat(400);
    let first = noticed_after(&text, LoopDetector::new()).unwrap();
    let mut detector = LoopDetector::new();
    assert!(detector.push(&text[..first]));
    detector.allow();
    let second = noticed_after(&text, detector).unwrap();
    assert!((2 * first - 200..2 * first + 200).contains(&second), "{second} after {first}");
}

#[test]
fn the_pieces_of_a_text_do_not_matter() {
    let text = format!("{STONES}{RIVERS}{WINDS}").repeat(5);
    let expected = noticed_after(&text, LoopDetector::new()).unwrap();
    for size in [3, 50, 400] {
        let mut detector = LoopDetector::new();
        let letters: Vec<char> = text.chars().collect();
        let mut pieces = letters.chunks(size).map(String::from_iter);
        let at = pieces.position(|piece| detector.push(&piece)).unwrap();
        assert_eq!(at, (expected - 1) / size, "pieces of {size}");
    }
}
