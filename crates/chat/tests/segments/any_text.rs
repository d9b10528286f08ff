//! What holds for any text of any family.

use cairn_chat::{AnswerFormat, SegmentEvent};

use crate::kit::{check_rules, parser, segments};

/// A small generator of numbers (xorshift), so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }
}

/// Markers, parts of markers, JSON and text, in any order.
fn soup(format: AnswerFormat, random: &mut Random) -> String {
    let (markers, long) = (format.markers(), "aö".repeat(40));
    let snippets = [
        long.as_str(),
        "a",
        " ",
        "\n",
        "\n\n",
        "<",
        "<|",
        "[",
        "]",
        "{",
        "}",
        "ö",
        "｜",
        ",",
        ";",
        ":",
        "\"",
        "\\",
        "{\"name\": \"time\", \"parameters\": ",
        "{\"name\":\"f\",\"arguments\":{\"a\":\"",
        "\"}}",
        "weather",
        "time(a=1)",
        "call:f{",
        "f",
        "<function=f>",
        "<parameter=a>",
        "</parameter>",
        "</function>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "</tool_call>",
        "[ARGS]",
        "```",
        "```json\n",
        "{\"name\":\"time\",\"arguments\":{\"a\":\"\n\\d\"}}",
        "<think>",
        "{}",
        "to=functions.f",
        "<|im_end|>",
        "<|eot|>",
        "<escape>",
        "<|\"|>",
        "'",
    ];
    let mut text = String::new();
    for _ in 0..random.below(14) {
        let marker = (!markers.is_empty()).then(|| markers[random.below(markers.len())]);
        match (random.below(10), marker) {
            (0..4, Some(marker)) => text.push_str(marker),
            (4, Some(marker)) => {
                let cuts: Vec<usize> = marker.char_indices().map(|(at, _)| at).collect();
                let cut = cuts[random.below(cuts.len())];
                text.push_str(if random.below(2) == 0 { &marker[..cut] } else { &marker[cut..] });
            }
            _ => text.push_str(snippets[random.below(snippets.len())]),
        }
    }
    text
}

#[test]
fn the_rules_hold_for_any_text_of_any_family() {
    let mut random = Random(0x5eed);
    for format in AnswerFormat::all() {
        for prompt in ["", "…<think>\n", "…<|start|>assistant"] {
            let parser = parser(format, prompt);
            for _ in 0..60 {
                let answer = soup(format, &mut random);
                let whole = segments(&parser, &[&answer]);
                check_rules(format, &answer, &whole);
                let characters: Vec<&str> = answer.split_inclusive(|_: char| true).collect();
                let mut pieces = Vec::new();
                let mut rest = answer.as_str();
                while !rest.is_empty() {
                    let num_characters = 1 + random.below(6);
                    let end =
                        rest.char_indices().nth(num_characters).map_or(rest.len(), |(at, _)| at);
                    pieces.push(&rest[..end]);
                    rest = &rest[end..];
                }
                for pieces in [characters, pieces] {
                    let cut = segments(&parser, &pieces);
                    assert_eq!(cut, whole, "{:?}: {pieces:?}", format.names());
                }
            }
        }
    }
}

#[test]
fn what_is_held_back_is_bounded() {
    // Every piece is a character; what has not come out in any form must stay small.
    let check = |calls: &str, answer: &str, limit: usize| {
        let mut parser = parser(AnswerFormat::named("<think>", calls), "");
        let (mut given, mut taken) = (0, 0);
        for piece in answer.split_inclusive(|_: char| true) {
            taken += piece.len();
            for event in parser.push(piece) {
                given += match event {
                    SegmentEvent::Text(text)
                    | SegmentEvent::Reasoning(text)
                    | SegmentEvent::Markup(text) => text.len(),
                    SegmentEvent::CallArguments { json, .. } => json.len(),
                    SegmentEvent::CallEnded { .. }
                    | SegmentEvent::CallStarted { .. }
                    | SegmentEvent::Ended { .. } => 0,
                };
            }
            assert!(taken - given <= limit, "{} bytes held at {taken}", taken - given);
        }
    };
    let lines = "\n".repeat(1000);
    let words = "word < [ { \n".repeat(1000);
    check("hermes", &format!("a{lines}<think>{words}{lines}"), 16);
    check("llama3", &format!("{{{}", " ".repeat(1000)), 520);
    let json = format!("<tool_call>{{\"name\":\"f\",\"arguments\":{{\"a\":\"{}", "x".repeat(1000));
    check("hermes", &json, 64);
}
