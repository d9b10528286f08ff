//! Conversations in which tools are offered and called.
//!
//! Chat templates read OpenAI's form: `tools` beside the messages, `tool_calls` in an answer, and a
//! message of the role `tool` for each result.

use minijinja::Value;
use minijinja::value::Serde;
use serde_json::{Map, Value as Json, json};

use crate::generic_tools::{LIST_MARKER, ListedBy, told_in_text};
use crate::late_instructions::{late_instructions, told_by_user};
use crate::open_turn::up_to_last_words;
use crate::prompt::{Encode, Prompt, Rendering, TextPlace, lay_out};
use crate::{ChatError, ChatTemplate, Message, Role};

/// A turn of a conversation with tools.
#[derive(Debug, Clone, PartialEq)]
pub enum Turn {
    /// A text.
    Message(Message),
    /// An answer that is more than text.
    Answer {
        /// Its text, which may be empty.
        content: String,
        /// What the model thought.
        reasoning: Option<String>,
        /// The calls that it made.
        calls: Vec<MadeCall>,
    },
    /// The result of a call.
    Result {
        /// The call's id.
        call_id: String,
        /// The tool's name, where it is known.
        name: Option<String>,
        /// What the tool has returned.
        content: String,
    },
}

/// A call that an earlier answer made.
#[derive(Debug, Clone, PartialEq)]
pub struct MadeCall {
    /// Its id.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments.
    pub arguments: CallArguments,
}

/// The arguments of a call that an earlier answer made.
#[derive(Debug, Clone, PartialEq)]
pub enum CallArguments {
    /// As they should be.
    Object(Map<String, Json>),
    /// No JSON: what the model wrote, or began to write.
    Text(String),
}

/// Where the prompt of a conversation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptEnd {
    /// Where the answer begins.
    NewAnswer,
    /// Behind the text of the last turn, an answer that was begun and that the model continues.
    BegunAnswer,
}

/// How a template wants the arguments of calls. Those that are no JSON stay a text, which only a
/// template that reads the names of arguments does not take.
#[derive(Debug, Clone, Copy)]
enum ArgumentsForm {
    Object,
    /// As the argument of this name, if they are no JSON.
    ObjectAlways,
    JsonText,
}

/// The name that arguments get which have none, because they are no JSON.
const UNNAMED: &str = "arguments";

/// A conversation in which tools are offered and called, as a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnsPrompt {
    /// The conversation.
    pub turns: Vec<Turn>,
    /// The tools, in OpenAI's form: `{"type": "function", "function": {"name", …}}`.
    pub tools: Vec<Json>,
    /// Whether the last turn is an answer that is continued.
    pub end: PromptEnd,
    /// The ends of what later prompts are said to begin with too.
    pub breakpoints: Vec<TextPlace>,
}

/// Assembles the prompt of a conversation with tools, as [`crate::assemble`] does for messages of
/// text.
///
/// Most templates write a call's arguments with `tojson`, so they get them as an object. One that
/// fails on that gets them as JSON text, as DeepSeek's does. Arguments that are no JSON are a text,
/// or an object that has it where the template fails on a text. A system message after the first question
/// becomes the user's where the template refuses it or leaves it out. If the template takes no tools, the
/// texts tell of them. [`ChatError::WordsNotRendered`] if the answer was begun with nothing, or
/// the template does not show it.
pub fn assemble_turns<E: Encode + ?Sized>(
    template: &ChatTemplate,
    prompt: &TurnsPrompt,
    encoder: &E,
) -> Result<Prompt, ChatError> {
    if prompt.tools.is_empty() || template.takes_tools() {
        return assemble_offered(template, prompt, encoder);
    }
    let told_by = |listed_by| assemble_offered(template, &told_in_text(prompt, listed_by), encoder);
    match told_by(ListedBy::System) {
        Ok(told) if told.text.contains(LIST_MARKER) => Ok(told),
        Err(error) if error.is_interruption() => Err(error),
        _ => told_by(ListedBy::User),
    }
}

/// Assembles a prompt whose tools the template takes.
fn assemble_offered<E: Encode + ?Sized>(
    template: &ChatTemplate,
    prompt: &TurnsPrompt,
    encoder: &E,
) -> Result<Prompt, ChatError> {
    let given = assemble_given(template, prompt, encoder);
    let is_shown = |prompt: &Prompt, text: &str| prompt.text.contains(text.trim());
    let needs_user = match &given {
        Ok(given) => late_instructions(&prompt.turns).any(|text| !is_shown(given, text)),
        Err(ChatError::TemplateFailed { .. } | ChatError::TemplateRefused { .. }) => {
            late_instructions(&prompt.turns).next().is_some()
        }
        Err(_) => false,
    };
    if needs_user { assemble_given(template, &told_by_user(prompt), encoder) } else { given }
}

fn assemble_given<E: Encode + ?Sized>(
    template: &ChatTemplate,
    prompt: &TurnsPrompt,
    encoder: &E,
) -> Result<Prompt, ChatError> {
    let TurnsPrompt { turns, tools, end, breakpoints } = prompt;
    let template = template.for_one_prompt();
    let with_form = |form| {
        let render_to = |messages: &[Message], add_generation_prompt| {
            let turns = turns.iter().zip(messages);
            let values = turns.map(|(turn, message)| turn.value(&message.content, form));
            template.render_values(values.collect(), tools, add_generation_prompt)
        };
        let render = |messages: &[Message]| match end {
            PromptEnd::NewAnswer => render_to(messages, true),
            PromptEnd::BegunAnswer => {
                up_to_last_words(messages, &|messages| render_to(messages, false))
            }
        };
        let messages: Vec<Message> = turns.iter().map(Turn::message).collect();
        let rendering = Rendering { render: &render, has_beginning: true };
        lay_out(&rendering, &messages, breakpoints, encoder)
    };
    with_form(ArgumentsForm::Object).or_else(|error| match error {
        ChatError::TemplateFailed { .. } => {
            for form in other_forms(turns) {
                match with_form(*form) {
                    Ok(prompt) => return Ok(prompt),
                    Err(interruption) if interruption.is_interruption() => {
                        return Err(interruption);
                    }
                    Err(_) => {}
                }
            }
            Err(error)
        }
        error => Err(error),
    })
}

/// The forms of arguments that are tried if a template fails on objects.
fn other_forms(turns: &[Turn]) -> &'static [ArgumentsForm] {
    let calls = || turns.iter().flat_map(Turn::calls);
    let is_text = |call: &MadeCall| matches!(call.arguments, CallArguments::Text(_));
    match (calls().any(is_text), calls().next()) {
        (true, _) => &[ArgumentsForm::ObjectAlways, ArgumentsForm::JsonText],
        (false, Some(_)) => &[ArgumentsForm::JsonText],
        (false, None) => &[],
    }
}

impl Turn {
    /// Its text.
    pub fn content(&self) -> &str {
        match self {
            Turn::Message(message) => &message.content,
            Turn::Answer { content, .. } | Turn::Result { content, .. } => content,
        }
    }

    fn calls(&self) -> &[MadeCall] {
        match self {
            Turn::Answer { calls, .. } => calls,
            _ => &[],
        }
    }

    /// The turn as a message of text: what is not the model's is the user's.
    fn message(&self) -> Message {
        let (role, content) = match self {
            Turn::Message(message) => return message.clone(),
            Turn::Answer { content, .. } => (Role::Assistant, content),
            Turn::Result { content, .. } => (Role::User, content),
        };
        Message { role, content: content.clone(), token_ids: None }
    }

    /// The turn as templates read it, with this text. What a turn lacks is undefined, because
    /// templates test for that.
    fn value(&self, content: &str, form: ArgumentsForm) -> Value {
        let role = match self {
            Turn::Message(message) => message.role.as_str(),
            Turn::Answer { .. } => Role::Assistant.as_str(),
            Turn::Result { .. } => "tool",
        };
        let mut fields = Map::new();
        let mut set = |name: &str, value: Json| fields.insert(name.to_owned(), value);
        set("role", role.into());
        set("content", content.into());
        match self {
            Turn::Message(_) => {}
            Turn::Answer { reasoning, calls, .. } => {
                if let Some(reasoning) = reasoning {
                    set("reasoning_content", reasoning.as_str().into());
                }
                if !calls.is_empty() {
                    set("tool_calls", calls.iter().map(|call| call.value(form)).collect());
                }
            }
            Turn::Result { call_id, name, .. } => {
                set("tool_call_id", call_id.as_str().into());
                if let Some(name) = name {
                    set("name", name.as_str().into());
                }
            }
        }
        Value::from(Serde(fields))
    }
}

impl MadeCall {
    fn value(&self, form: ArgumentsForm) -> Json {
        let arguments = match (&self.arguments, form) {
            (CallArguments::Object(object), ArgumentsForm::JsonText) => {
                Json::Object(object.clone()).to_string().into()
            }
            (CallArguments::Object(object), _) => Json::Object(object.clone()),
            (CallArguments::Text(text), ArgumentsForm::ObjectAlways) => json!({ UNNAMED: text }),
            (CallArguments::Text(text), _) => text.as_str().into(),
        };
        let function = json!({ "name": self.name, "arguments": arguments });
        json!({ "id": self.id, "type": "function", "function": function })
    }
}
