//! Chat templates of families of models, as Python's Jinja renders them.
//!
//! `tests/goldens/templates/` holds the templates; `tests/goldens/templates.py` has rendered them. The
//! variable TEMPLATES names another folder of that form, to compare templates that are not there.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use cairn_chat::{
    AnswerFormat, CallArguments, ChatError, ChatTemplate, Date, MadeCall, Message, PromptEnd, Role,
    SpecialTokens, Turn, TurnsPrompt, assemble_turns,
};
use serde_json::Value;

use self::bytes::Bytes;

mod bytes;

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A message in OpenAI's form as a turn.
fn turn(message: &Value) -> Turn {
    let content = text(&message["content"]);
    let plain = |role| Turn::Message(Message { role, content: content.clone(), token_ids: None });
    let call = |call: &Value| MadeCall {
        id: text(&call["id"]),
        name: text(&call["function"]["name"]),
        arguments: CallArguments::Object(
            call["function"]["arguments"].as_object().unwrap().clone(),
        ),
    };
    match message["role"].as_str().unwrap() {
        "system" => plain(Role::System),
        "user" => plain(Role::User),
        "tool" => Turn::Result {
            call_id: text(&message["tool_call_id"]),
            name: Some(text(&message["name"])),
            content,
        },
        "assistant" => Turn::Answer {
            content,
            reasoning: message.get("reasoning_content").map(text),
            calls: message["tool_calls"].as_array().into_iter().flatten().map(call).collect(),
        },
        role => panic!("{role}"),
    }
}

fn date(day: &Value) -> Option<Date> {
    let day = day.as_str()?;
    let mut parts = day.split('-').map(|part| part.parse::<i64>().unwrap());
    let mut next = || parts.next().unwrap();
    Some(Date { year: next(), month: next() as u8, day: next() as u8 })
}

fn rendered(source: &str, special: &Value, conversation: &Value) -> Result<String, ChatError> {
    let special = SpecialTokens {
        bos: Some(text(&special["bos_token"])),
        eos: Some(text(&special["eos_token"])),
    };
    let mut template = ChatTemplate::parse(source, special)?;
    template = template.with_clock(|| Date { year: 2026, month: 3, day: 9 });
    if let Some(day) = date(&conversation["day"]) {
        template = template.dated(day);
    }
    if let Some(variables) = conversation["variables"].as_object() {
        template = template.with_variables(variables.clone())?;
    }
    let prompt = TurnsPrompt {
        turns: conversation["messages"].as_array().unwrap().iter().map(turn).collect(),
        tools: conversation["tools"].as_array().cloned().unwrap_or_default(),
        end: PromptEnd::NewAnswer,
        breakpoints: Vec::new(),
    };
    assemble_turns(&template, &prompt, &Bytes::default()).map(|prompt| prompt.text)
}

/// Where two texts first differ.
fn difference(found: &str, expected: &str) -> String {
    let same = found.chars().zip(expected.chars()).take_while(|(a, b)| a == b).count();
    let at = |text: &str| text.chars().skip(same.saturating_sub(40)).take(100).collect::<String>();
    format!("character {same}: {:?} in place of {:?}", at(found), at(expected))
}

fn check(expected: &Value, result: Result<String, ChatError>) -> Result<(), String> {
    match (expected, result) {
        (Value::String(expected), Ok(found)) if *expected == found => Ok(()),
        (Value::String(expected), Ok(found)) => Err(difference(&found, expected)),
        (Value::String(_), Err(error)) => Err(error.to_string()),
        (expected, Err(ChatError::TemplateRefused { message }))
            if expected["refused"] == message =>
        {
            Ok(())
        }
        // Where Python fails, an answer does no harm.
        (expected, _) if expected.get("fails").is_some() => Ok(()),
        (expected, result) => Err(format!("{result:?} in place of {expected}")),
    }
}

#[test]
fn templates_render_as_in_python() {
    let folder = std::env::var("TEMPLATES").unwrap_or("../../tests/goldens/templates".into());
    let folder = Path::new(&folder);
    let golden: Value =
        serde_json::from_str(&fs::read_to_string(folder.join("expected.json")).unwrap()).unwrap();
    let mut different = Vec::new();
    for (name, of_template) in golden["rendered"].as_object().unwrap() {
        let source = fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap();
        for (case, expected) in of_template.as_object().unwrap() {
            let conversation = &golden["conversations"][case];
            // Python leaves tools out that the template does not take.
            if conversation["tools"].is_array() && !source.contains("tools") {
                continue;
            }
            let result = rendered(&source, &golden["special"], conversation);
            if let Err(difference) = check(expected, result) {
                different.push(format!("{name}, {case}: {difference}"));
            }
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[test]
fn a_template_says_how_its_model_marks_answers() {
    let formats = [
        ("deepseek-r1", "<think>", "deepseek-v3"),
        ("deepseek-v3.1", "<think>", "deepseek-v3.1"),
        ("gemma4", "<|channel>thought", "gemma4"),
        ("glm-4.6", "<think>", "glm-4.5"),
        ("glm-4.7-flash", "<think>", "glm-4.5"),
        ("gpt-oss", "<|channel|>analysis", "harmony"),
        ("granite-3.3", "<think>", "phi4"),
        ("granite-4.0", "", "hermes"),
        ("kimi-k2", "", "kimi-k2"),
        ("minimax-m2", "<think>", "minimax-m2"),
        ("ministral-3", "[THINK]", "mistral"),
        ("mistral-nemo", "", "mistral"),
        ("mistral-small-3.2", "", "mistral"),
        ("own-command-r", "<|START_THINKING|>", "command"),
        ("own-exaone4", "<think>", "hermes"),
        ("own-gemma3", "", "gemma3"),
        ("own-lfm2", "<think>", "lfm2"),
        ("own-llama3", "", "llama3"),
        ("own-nemotron", "<think>", "nemotron"),
        // It shows calls as text, without a marker.
        ("own-olmo", "", ""),
        ("phi-3.5", "", ""),
        ("qwen2.5", "", "hermes"),
        ("qwen3", "<think>", "hermes"),
        ("qwen3-coder", "", "qwen3-coder"),
        ("qwen3.5", "<think>", "qwen3-coder"),
        ("seed-oss", "<seed:think>", "seed-oss"),
        // Its tools are shown by the system prompt, which says how to call them.
        ("smollm3", "<think>", ""),
    ];
    let folder = Path::new("../../tests/goldens/templates");
    for (name, reasoning, calls) in formats {
        let source = fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap();
        assert_eq!(AnswerFormat::of(&source, |_| false).names(), (reasoning, calls), "{name}");
    }
    let is_template =
        |entry: &std::fs::DirEntry| entry.path().extension() == Some("jinja".as_ref());
    let files = fs::read_dir(folder).unwrap().map(Result::unwrap).filter(is_template);
    assert_eq!(files.count(), formats.len(), "a template is missing in the table");
}
