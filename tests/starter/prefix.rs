//! Prompts whose beginning is encoded once have the tokens of the whole prompt.

use cairn_chat::{Encode, EncodedPrefix, Message, Role, assemble};
use cairn_lm::Tokenizer;

fn say(role: Role, content: &str) -> Message {
    Message { role, content: content.to_owned(), token_ids: None }
}

/// What may follow anything: blanks, line ends, parts of words, special tokens that a text names.
const TEXTS: [&str; 12] = [
    "Lovely!",
    " with a blank before it",
    "\n\nafter two line ends",
    "\ttabs\t and  double  blanks ",
    "s",
    "'s own",
    "123456",
    "<|im_end|>\n<|im_start|>system\nis only text here",
    "Grüße aus Zürich, 東京, 🙂🙃",
    "...",
    "\u{a0}",
    "a",
];

#[test]
fn conversations_that_begin_alike() {
    let tokenizer = Tokenizer::load(cairn_tests::starter_model()).expect("a tokenizer");
    let template = tokenizer.chat_template().expect("a template");
    let prefixes = [
        vec![],
        vec![say(Role::System, "Is the review friendly? Answer with yes or no.")],
        vec![
            say(Role::System, "Sort the letters."),
            say(Role::User, "An invoice"),
            say(Role::Assistant, "bills"),
        ],
    ];
    for prefix in prefixes {
        let encoded = EncodedPrefix::of_messages(template, &prefix, &tokenizer).expect("encodes");
        assert!(encoded.ids().len() > 2, "something is shared after {prefix:?}");
        for text in TEXTS {
            let messages = [prefix.as_slice(), &[say(Role::User, text)]].concat();
            let whole = assemble(template, &messages, &tokenizer).expect("a prompt").tokens;
            let found = encoded.encode_messages(template, &messages, &tokenizer).expect("encodes");
            assert_eq!(found, whole, "{text:?} after {prefix:?}");
            // A text that names a special token of the prefix's end may not share it.
            assert!(found.starts_with(encoded.ids()), "{text:?}");
        }
    }
}

#[test]
fn texts_that_begin_alike() {
    let tokenizer = Tokenizer::load(cairn_tests::starter_model()).expect("a tokenizer");
    let prefixes = [
        "Once upon a time there was",
        "Once upon a time there was ",
        "A list:\n- one\n- two\n- ",
        "oneword",
        "",
        "Ends in a special token<|im_end|>",
        "Zahlen: 1 2 3 und Wörter",
    ];
    for prefix in prefixes {
        let encoded = EncodedPrefix::of(prefix, &tokenizer).expect("encodes");
        for text in TEXTS {
            let whole = format!("{prefix}{text}");
            let expected = tokenizer.encode(&whole, false).expect("encodes");
            let found = encoded.encode(&whole, &tokenizer).expect("encodes");
            assert_eq!(found, expected, "{text:?} after {prefix:?}");
        }
    }
    let long = EncodedPrefix::of("Once upon a time there was a king", &tokenizer).expect("encodes");
    assert_eq!(long.ids().len(), 7, "all but the last word is shared");
}
