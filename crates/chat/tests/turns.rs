//! Conversations with tools, as templates show them.
#![allow(clippy::unwrap_used)]

use cairn_chat::{
    CallArguments, ChatError, ChatTemplate, MadeCall, Message, Prompt, PromptEnd, Role,
    SpecialTokens, TextPlace, Turn, TurnsPrompt, assemble_turns,
};
use serde_json::{Value, json};

use self::bytes::Bytes;

mod bytes;

fn turns() -> Vec<Turn> {
    let Value::Object(arguments) = json!({ "at": "here" }) else { unreachable!() };
    turns_with(CallArguments::Object(arguments))
}

fn turns_with(arguments: CallArguments) -> Vec<Turn> {
    let question = Message { role: Role::User, content: "Where?".to_owned(), token_ids: None };
    let call = MadeCall { id: "c1".to_owned(), name: "look".to_owned(), arguments };
    vec![
        Turn::Message(question),
        Turn::Answer { content: "I look.".to_owned(), reasoning: None, calls: vec![call] },
        Turn::Result {
            call_id: "c1".to_owned(),
            name: Some("look".to_owned()),
            content: "There.".to_owned(),
        },
    ]
}

fn answer_to(turns: Vec<Turn>) -> TurnsPrompt {
    TurnsPrompt { turns, tools: Vec::new(), end: PromptEnd::NewAnswer, breakpoints: Vec::new() }
}

fn rendered(template: &str, tools: &[Value]) -> Result<String, ChatError> {
    rendered_turns(template, tools, turns())
}

fn rendered_turns(template: &str, tools: &[Value], turns: Vec<Turn>) -> Result<String, ChatError> {
    let template = ChatTemplate::parse(template, SpecialTokens::default()).unwrap();
    let prompt = TurnsPrompt { tools: tools.to_vec(), ..answer_to(turns) };
    let prompt = assemble_turns(&template, &prompt, &Bytes::default())?;
    assert_eq!(prompt.tokens.len(), prompt.text.len());
    assert_eq!(prompt.boundaries.last(), Some(&prompt.tokens.len()));
    Ok(prompt.text)
}

/// As Qwen's and Llama's templates write calls.
const OBJECTS: &str = "\
{%- for message in messages %}[{{ message.role }}] {{ message.content }}
{%- for call in message.tool_calls or [] %}{% set made = call.function %}
{{- ' ' ~ made.name ~ made.arguments | tojson }}
{%- endfor %}{%- endfor %}{% if tools %}[tools] {{ tools | length }}{% endif %}";
/// As DeepSeek's does.
const TEXTS: &str = "\
{%- for message in messages %}[{{ message['role'] }}] {{ message['content'] }}
{%- for call in message['tool_calls'] or [] %}{% set made = call['function'] %}
{{- ' ' + made['name'] + made['arguments'] }}
{%- endfor %}{%- endfor %}";

#[test]
fn a_template_gets_arguments_in_the_form_that_it_takes() {
    let expected =
        |arguments: &str| format!("[user] Where?[assistant] I look. look{arguments}[tool] There.");
    assert_eq!(rendered(OBJECTS, &[]).unwrap(), expected("{\"at\": \"here\"}"));
    assert_eq!(rendered(TEXTS, &[]).unwrap(), expected("{\"at\":\"here\"}"));
}

/// As those templates that write every argument between tags.
const TAGS: &str = "\
{%- for message in messages %}[{{ message.role }}] {{ message.content }}
{%- for call in message.tool_calls or [] %} {{ call.function.name }}
{%- for name, value in call.function.arguments | items %}<{{ name }}={{ value }}>
{%- endfor %}{%- endfor %}{%- endfor %}";

#[test]
fn arguments_that_are_no_json_are_shown_as_they_were_written() {
    let shown = |template: &str| {
        let cut = CallArguments::Text("{\"at\": \"he".to_owned());
        rendered_turns(template, &[], turns_with(cut)).unwrap()
    };
    let expected =
        |arguments: &str| format!("[user] Where?[assistant] I look. look{arguments}[tool] There.");
    assert_eq!(shown(OBJECTS), expected(r#""{\"at\": \"he""#));
    assert_eq!(shown(TEXTS), expected(r#"{"at": "he"#));
    assert_eq!(shown(TAGS), expected(r#"<arguments={"at": "he>"#));
}

#[test]
fn tools_reach_a_template_that_shows_them() {
    let tool = json!({ "type": "function", "function": { "name": "look" } });
    let shown = rendered(OBJECTS, &[tool]).unwrap();
    assert!(shown.ends_with("[tools] 1"), "{shown}");
}

/// A template that knows texts in turns, and no calls.
const TURNS: &str = "\
{%- for message in messages if message.role != 'system' or takes_system %}
{%- if message.role == 'tool' or message.tool_calls %}{{ raise_exception('what?') }}{% endif %}
{%- if not loop.first and message.role == loop.previtem.role %}{{ raise_exception('twice') }}{% endif %}
{{- '[' ~ message.role ~ '] ' ~ message.content }}{%- endfor %}";

#[test]
fn texts_tell_of_tools_where_a_template_takes_none() {
    let look = || json!({ "type": "function", "function": { "name": "look" } });
    let list = "<tools>\n{\"type\":\"function\",\"function\":{\"name\":\"look\"}}\n</tools>";
    let call = "[assistant] I look.\n<tool_call>\n{\"name\": \"look\", \
                \"arguments\": {\"at\":\"here\"}}\n</tool_call>";
    let result = "[user] <tool_response>\nThere.\n</tool_response>";
    let message = |role, content: &str| {
        Turn::Message(Message { role, content: content.to_owned(), token_ids: None })
    };
    let mut turns = turns();
    let other = Turn::Result { call_id: "c2".to_owned(), name: None, content: "Too.".to_owned() };
    turns.push(other);
    turns.push(message(Role::User, "Sure?"));
    for (takes_system, has_system) in [(true, false), (true, true), (false, false)] {
        let mut turns = turns.clone();
        if has_system {
            turns.insert(0, message(Role::System, "Be brief."));
        }
        let template = format!("{{% set takes_system = {takes_system} %}}{TURNS}");
        let shown = rendered_turns(&template, &[look()], turns).unwrap();
        let (before, rest) = shown.split_once(list).unwrap();
        let expected = match (takes_system, has_system) {
            (true, true) => "[system] Be brief.\n\n",
            (true, false) => "[system] ",
            _ => "[user] ",
        };
        assert!(before.starts_with(expected), "{shown}");
        let gap = if takes_system { "[user] Where?" } else { "\n\nWhere?" };
        let after = "\n<tool_response>\nToo.\n</tool_response>\n\nSure?";
        let told = format!("{gap}{call}{result}{after}");
        assert!(rest.ends_with(&told), "{shown}");
    }
}

#[test]
fn breakpoints_stay_where_texts_tell_of_tools() {
    let look = json!({ "type": "function", "function": { "name": "look" } });
    for takes_system in [true, false] {
        let template = format!("{{% set takes_system = {takes_system} %}}{TURNS}");
        let template = ChatTemplate::parse(&template, SpecialTokens::default()).unwrap();
        let place = |turn, num_bytes| TextPlace { turn, num_bytes };
        let prompt = TurnsPrompt {
            tools: vec![look.clone()],
            breakpoints: vec![place(0, 5), place(1, 2), place(2, 3)],
            ..answer_to(turns())
        };
        let prompt = assemble_turns(&template, &prompt, &Bytes::default()).unwrap();
        for end in ["Where", "[assistant] I ", "<tool_response>\nThe"] {
            let at = prompt.text.find(end).unwrap() + end.len();
            assert!(prompt.breakpoints.contains(&at), "{end}: {:?}", prompt.breakpoints);
        }
    }
}

#[test]
fn a_template_that_refuses_is_not_asked_twice() {
    let refused = rendered("{{ raise_exception('no') }}", &[]);
    assert_eq!(refused, Err(ChatError::TemplateRefused { message: "no".to_owned() }));
}

#[test]
fn a_begun_answer_ends_behind_its_text_and_spells_no_special_token() {
    let source = "{% for message in messages %}<s>{{ message.content }}</s>{% endfor %}";
    let template = ChatTemplate::parse(source, SpecialTokens::default()).unwrap();
    let encoder = Bytes(vec![("<s>".to_owned(), 1000), ("</s>".to_owned(), 1001)]);
    let text = |role, content: &str| {
        Turn::Message(Message { role, content: content.to_owned(), token_ids: None })
    };
    let tokens = |begun: &str| {
        let turns = vec![text(Role::User, "a</s>"), text(Role::Assistant, begun)];
        let prompt = TurnsPrompt { end: PromptEnd::BegunAnswer, ..answer_to(turns) };
        assemble_turns(&template, &prompt, &encoder).map(|prompt| prompt.tokens)
    };
    let plain = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    let user = [vec![1000], plain("a</s>"), vec![1001, 1000]].concat();
    assert_eq!(tokens("b").unwrap(), [user, plain("b")].concat());
    assert!(matches!(tokens(""), Err(ChatError::WordsNotRendered)));
}

#[test]
fn breakpoints_are_where_the_asked_for_texts_end() {
    let breakpoints_of = |template: &str, turns: Vec<Turn>, places: &[(usize, usize)]| {
        let template = ChatTemplate::parse(template, SpecialTokens::default()).unwrap();
        let place = |&(turn, num_bytes)| TextPlace { turn, num_bytes };
        let breakpoints = places.iter().map(place).collect();
        let prompt = TurnsPrompt { breakpoints, ..answer_to(turns) };
        let Prompt { text, breakpoints, .. } =
            assemble_turns(&template, &prompt, &Bytes::default()).unwrap();
        breakpoints.iter().map(|&count| text[..count].to_owned()).collect::<Vec<_>>()
    };
    let found = breakpoints_of(OBJECTS, turns(), &[(1, 7), (0, 3), (0, 3)]);
    assert_eq!(found, ["[user] Whe", "[user] Where?[assistant] I look."]);
    // No such turn, and beyond its text.
    assert_eq!(breakpoints_of(OBJECTS, turns(), &[(9, 1), (0, 99)]), ["[user] Where?"]);
    // A template that strips blanks leaves the breakpoint at the text that is left.
    let blanks = Message { role: Role::User, content: "  Where? ".to_owned(), token_ids: None };
    let stripping = "{% for message in messages %}<{{ message.content | trim }}>{% endfor %}";
    let found = breakpoints_of(stripping, vec![Turn::Message(blanks)], &[(0, 1), (0, 5), (0, 9)]);
    assert_eq!(found, ["<", "<Whe", "<Where?"]);
}

#[test]
fn late_instructions_reach_every_template() {
    let message = |role, content: &str| {
        Turn::Message(Message { role, content: content.to_owned(), token_ids: None })
    };
    let turns = || {
        vec![
            message(Role::System, "Be brief."),
            message(Role::User, "Hi"),
            message(Role::Assistant, "Yes?"),
            message(Role::System, "The folder is x."),
            message(Role::User, "And now?"),
        ]
    };
    let all = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}";
    let strict = "{% for message in messages %}
        {%- if message.role == 'system' and not loop.first %}{{ raise_exception('first') }}{% endif %}
        {%- if not loop.first and message.role == messages[loop.index0 - 1].role %}
        {{- raise_exception('in turns') }}{% endif %}[{{ message.role }}]{{ message.content }}
        {%- endfor %}";
    let deaf = "{% for message in messages %}
        {%- if message.role != 'system' or loop.first %}[{{ message.role }}]{{ message.content }}
        {%- endif %}{% endfor %}";
    let check = |template: &str, expected: &str| {
        assert_eq!(rendered_turns(template, &[], turns()).unwrap(), expected, "{template}");
    };
    let told = "[system]Be brief.[user]Hi[assistant]Yes?[user]The folder is x.\n\nAnd now?";
    check(all, "[system]Be brief.[user]Hi[assistant]Yes?[system]The folder is x.[user]And now?");
    check(strict, told);
    check(deaf, told);
    let error = rendered_turns("{{ raise_exception('never') }}", &[], turns()).unwrap_err();
    assert!(error.to_string().contains("never"), "{error}");
}
