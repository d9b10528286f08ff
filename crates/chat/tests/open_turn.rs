//! A turn rendered in two parts, open and continued: joined they are the text of the whole turn.

use cairn_chat::{ChatError, ChatTemplate, Message, Role, SpecialTokens};

const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
const TRIMMING: &str = "{% for message in messages %}[{{ message.content | trim }}]{% endfor %}{% if add_generation_prompt %}>{% endif %}";
const UPPERCASE: &str = "{% for message in messages %}{{ message.content | upper }}{% endfor %}";

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::parse(source, SpecialTokens::default()).expect("a template")
}

fn user(content: &str) -> Vec<Message> {
    vec![Message { role: Role::User, content: content.to_owned(), token_ids: None }]
}

#[test]
fn an_open_turn_ends_with_the_message() {
    fn check(source: &str, content: &str, expected: &str) {
        assert_eq!(template(source).render_open(&user(content)).expect("a text"), expected);
    }
    check(CHATML, "Read this.", "<|im_start|>user\nRead this.");
    check(CHATML, "user", "<|im_start|>user\nuser");
    check(CHATML, "end", "<|im_start|>user\nend");
    check(CHATML, " two spaces  ", "<|im_start|>user\n two spaces  ");
    check(TRIMMING, " trimmed \n", "[trimmed");
}

#[test]
fn a_continuation_begins_with_the_message() {
    fn check(source: &str, content: &str, expected: &str) {
        assert_eq!(template(source).render_continuation(&user(content)).expect("a text"), expected);
    }
    check(CHATML, "And now?", "And now?<|im_end|>\n<|im_start|>assistant\n");
    check(TRIMMING, " And now?", "And now?]>");
}

#[test]
fn earlier_messages_do_not_move_the_cut() {
    let content = ["Is <query> a tag?", "And <query>?"];
    let messages: Vec<Message> = content.iter().flat_map(|content| user(content)).collect();
    let template = template(CHATML);
    let open = template.render_open(&messages).expect("a text");
    assert_eq!(
        open,
        "<|im_start|>user\nIs <query> a tag?<|im_end|>\n<|im_start|>user\nAnd <query>?"
    );
    let continuation = template.render_continuation(&messages).expect("a text");
    assert_eq!(continuation, "And <query>?<|im_end|>\n<|im_start|>assistant\n");
}

#[test]
fn a_message_that_is_not_rendered_cannot_be_cut() {
    for content in ["hidden", "", " \n"] {
        assert_eq!(
            template(UPPERCASE).render_open(&user(content)),
            Err(ChatError::WordsNotRendered),
            "{content:?}"
        );
        assert_eq!(
            template(UPPERCASE).render_continuation(&user(content)),
            Err(ChatError::WordsNotRendered),
            "{content:?}"
        );
    }
}
