//! Chat templates: the Jinja programs that render a conversation as the text a model was trained
//! on.

use crate::limits::TimeLimit;
use crate::sandbox::{self, Budget, MAX_STEPS, MAX_TEXT_BYTES, MAX_WORK_BYTES, Stop};
use crate::thinking::{self, Thinking, ThinkingChoices};
use crate::{Cancel, ChatError, Date, Message, Role, builtins};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value, context, machinery};
use serde_json::{Map, Value as Json};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const MAX_SOURCE_BYTES: usize = 256 << 10;
const MAX_RECURSION: usize = 100;

/// The token texts that templates refer to by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// `bos_token`, which precedes the text.
    pub bos: Option<String>,
    /// `eos_token`, which ends the text.
    pub eos: Option<String>,
}

impl SpecialTokens {
    /// Reads `bos_token` and `eos_token`, each a string or an object with `content`, from the value
    /// of a `tokenizer_config.json`.
    pub fn from_tokenizer_config_value(config: &Json) -> SpecialTokens {
        let text = |name: &str| {
            let token = config.get(name)?;
            token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_owned)
        };
        SpecialTokens { bos: text("bos_token"), eos: text("eos_token") }
    }
}

/// The sources of a model's chat templates, as files name them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TemplateSources {
    /// `default`, the template for conversations.
    pub default: Option<String>,
    /// `tool_use`, the template for requests with tools; `None` if the other shows them too.
    pub tool_use: Option<String>,
}

impl TemplateSources {
    /// Reads the value of the key `chat_template` in the file called `file`: a text, a list of
    /// named texts, or an object of them. Fails on anything else; null has no sources.
    pub fn from_value(value: &Json, file: &str) -> Result<TemplateSources, ChatError> {
        let text = |value: &Json| value.as_str().map(str::to_owned);
        let named = |name: &str| match value {
            Json::Array(list) => {
                let is_named =
                    |entry: &&Json| entry.get("name").and_then(Json::as_str) == Some(name);
                list.iter().find(is_named).and_then(|entry| text(entry.get("template")?))
            }
            _ => value.get(name).and_then(text),
        };
        match value {
            Json::Null => Ok(TemplateSources::default()),
            Json::String(source) => {
                Ok(TemplateSources { default: Some(source.clone()), tool_use: None })
            }
            Json::Array(_) | Json::Object(_) => {
                Ok(TemplateSources { default: named("default"), tool_use: named("tool_use") })
            }
            _ => Err(ChatError::TemplateSyntax {
                reason: format!("chat_template in {file} is neither a text nor a list"),
            }),
        }
    }

    /// The template that these sources make; [`ChatError::NoTemplate`] if there is no `default`.
    pub fn parse(&self, special: SpecialTokens) -> Result<ChatTemplate, ChatError> {
        let default = self.default.as_deref().ok_or(ChatError::NoTemplate)?;
        let mut template = ChatTemplate::parse(default, special)?;
        template.for_tools = self.tool_use.as_deref().map(Program::parse).transpose()?;
        Ok(template)
    }
}

/// A template's source, checked.
#[derive(Debug, Clone)]
struct Program {
    source: Arc<str>,
    prepared: Arc<str>,
}

impl Program {
    fn parse(source: &str) -> Result<Program, ChatError> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(ChatError::TemplateTooLong {
                bytes: source.len(),
                limit_bytes: MAX_SOURCE_BYTES,
            });
        }
        let check = || -> Result<String, Error> {
            let syntax = syntax()?;
            let prepared = sandbox::prepare(source, &syntax)?;
            sandbox::compile(&prepared, &syntax)?;
            Ok(prepared)
        };
        let prepared =
            check().map_err(|error| ChatError::TemplateSyntax { reason: error.to_string() })?;
        Ok(Program { source: source.into(), prepared: prepared.into() })
    }

    /// Whether it calls `strftime_now` without asking whether it is defined, as gpt-oss's does.
    fn needs_clock(&self) -> bool {
        let asks = ["strftime_now is defined", "strftime_now is not defined"];
        self.source.contains("strftime_now") && !asks.iter().any(|ask| self.source.contains(ask))
    }
}

/// A model's chat template, with another for requests with tools if the model has one.
///
/// Templates are programs that come with a model. They see the messages, `add_generation_prompt`,
/// `bos_token`, `eos_token`, and `tools` and `documents` as none; they reach no file, and of the time
/// only the date that they are given.
/// Hugging Face's whitespace rules and additions hold: `raise_exception`, `tojson`, `strftime_now`,
/// `{% generation %}`, Python's methods on strings, lists and dictionaries. The source, the steps,
/// the memory and the text of a rendering are bounded, and all renderings for one prompt end after two
/// seconds: a hostile template is an error.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    program: Program,
    /// The template that requests with tools take.
    for_tools: Option<Program>,
    special: SpecialTokens,
    day: Day,
    variables: Arc<Map<String, Json>>,
    /// Levels of thinking that the template takes, once someone has asked; clones share them.
    thinking: Arc<OnceLock<ThinkingChoices>>,
    time: TimeLimit,
}

/// Where the date of a template comes from.
#[derive(Debug, Clone, Copy)]
enum Day {
    Unknown,
    Is(Date),
    /// By a clock, for a template that cannot be rendered without a date.
    Of(fn() -> Date),
}

impl Day {
    fn today(self, program: &Program) -> Option<Date> {
        match self {
            Day::Unknown => None,
            Day::Is(date) => Some(date),
            Day::Of(today) => program.needs_clock().then(today),
        }
    }
}

impl ChatTemplate {
    /// Checks a template's source, at most 256 KiB.
    pub fn parse(source: &str, special: SpecialTokens) -> Result<ChatTemplate, ChatError> {
        Ok(ChatTemplate {
            program: Program::parse(source)?,
            for_tools: None,
            special,
            day: Day::Unknown,
            variables: Arc::default(),
            thinking: Arc::default(),
            time: TimeLimit::default(),
        })
    }

    /// Extracts the template from the value of a `tokenizer_config.json`, where `chat_template` is
    /// what [`TemplateSources::from_value`] reads. A model without one is
    /// [`ChatError::NoTemplate`].
    pub fn from_tokenizer_config_value(config: &Json) -> Result<ChatTemplate, ChatError> {
        let value = config.get("chat_template").unwrap_or(&Json::Null);
        TemplateSources::from_value(value, "tokenizer_config.json")?
            .parse(SpecialTokens::from_tokenizer_config_value(config))
    }

    /// Sets the date for `strftime_now`.
    ///
    /// Without a date the function is undefined, and templates that ask for it first fall back to a
    /// date of their own; that keeps the start of every prompt the same from day to day, so that it
    /// can be cached.
    pub fn dated(mut self, today: Date) -> ChatTemplate {
        self.day = Day::Is(today);
        self
    }

    /// Sets the clock for a template that calls `strftime_now` without asking whether it is defined,
    /// as gpt-oss's does: without a date it could not be rendered. Others have no clock.
    pub fn with_clock(mut self, today: fn() -> Date) -> ChatTemplate {
        self.day = Day::Of(today);
        self
    }

    /// Sets more variables for the template, such as `enable_thinking`. They replace those of the
    /// same name, except `messages` and `add_generation_prompt`, which are refused.
    pub fn with_variables(mut self, variables: Map<String, Json>) -> Result<Self, ChatError> {
        for name in ["messages", "add_generation_prompt"] {
            if variables.contains_key(name) {
                return Err(ChatError::ReservedVariable { name });
            }
        }
        self.variables = Arc::new(variables);
        Ok(self)
    }

    /// How much a model with this template can be told to think. The first call renders a small
    /// chat with each value; clones remember the result.
    pub fn thinking(&self) -> &ThinkingChoices {
        self.thinking.get_or_init(|| {
            // A prompt that no one waits for any more must not decide this for the next one.
            let (variables, time) = (Arc::default(), TimeLimit::default());
            let plain = ChatTemplate { variables, time, ..self.clone() };
            thinking::probe(&plain.with_time_limit(self.time.limit))
        })
    }

    /// Sets how much the model thinks, or the nearest level that the template has. Variables that
    /// say so themselves count instead; see [`ThinkingChoices::variables`].
    pub fn with_thinking(mut self, wanted: Thinking) -> ChatTemplate {
        let given = Arc::unwrap_or_clone(std::mem::take(&mut self.variables));
        self.variables = Arc::new(self.thinking().variables(wanted, given));
        self
    }

    /// Sets how much of a processor's time the renderings for one prompt may take together; two
    /// seconds by default.
    pub fn with_time_limit(mut self, limit: Duration) -> ChatTemplate {
        self.time.limit = limit;
        self
    }

    /// Ends a rendering with [`ChatError::Cancelled`] as soon as no one waits for it.
    pub fn with_cancel(mut self, cancel: Cancel) -> ChatTemplate {
        self.time.cancel = Some(cancel);
        self
    }

    /// The template for one prompt, which may be rendered several times. Its time begins now, unless
    /// it runs already.
    pub(crate) fn for_one_prompt(&self) -> ChatTemplate {
        ChatTemplate { time: self.time.begun(), ..self.clone() }
    }

    /// The template for conversations without tools, as its author wrote it.
    pub fn source(&self) -> &str {
        &self.program.source
    }

    /// The sources of all templates, one after the other.
    pub fn all_sources(&self) -> String {
        let for_tools = self.for_tools.iter();
        let sources: Vec<&str> =
            for_tools.chain([&self.program]).map(|program| &*program.source).collect();
        sources.join("\n")
    }

    /// The system prompt that the template writes itself where a conversation has none; none where it
    /// writes none either.
    pub fn own_system_prompt(&self) -> Option<String> {
        /// Text that no template treats in a way of its own: a character for private use.
        const MARK: &str = "\u{e000}";
        let message =
            |role, content: &str| Message { role, content: content.to_owned(), token_ids: None };
        let question = || message(Role::User, "?");
        let template = self.for_one_prompt();
        let without = template.render(&[question()], false).ok()?;
        let with = template.render(&[message(Role::System, MARK), question()], false).ok()?;
        // What stands where a conversation's own would.
        let (before, after) = with.split_once(MARK)?;
        let own = without.strip_prefix(before)?.strip_suffix(after)?.trim();
        (!own.is_empty()).then(|| own.to_owned())
    }

    /// Renders the messages as text, at most 4 MiB; with `add_generation_prompt` it ends where the
    /// assistant's answer begins.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        let messages = messages.iter().map(
            |message| context! { role => message.role.as_str(), content => message.content.as_str() },
        );
        self.run(messages.collect(), add_generation_prompt, &[]).map_err(|error| explain(&error))
    }

    /// Renders messages and tools as a file has them, with every field, and without the beginning
    /// of a further answer; see [`ChatTemplate::render`].
    pub fn render_json(&self, messages: &[Json], tools: &[Json]) -> Result<String, ChatError> {
        let messages = messages.iter().map(|message| Value::from(Serde(message)));
        self.render_values(messages.collect(), tools, false)
    }

    /// Renders messages that are more than role and text, with the tools that they may call; see
    /// [`ChatTemplate::render`].
    pub(crate) fn render_values(
        &self,
        messages: Vec<Value>,
        tools: &[Json],
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        self.run(messages.into(), add_generation_prompt, tools).map_err(|error| explain(&error))
    }

    /// Whether the template shows the tools that a request offers.
    pub fn takes_tools(&self) -> bool {
        self.for_tools.is_some() || self.program.source.contains("tools")
    }

    /// The template for a request with these tools.
    fn program(&self, tools: &[Json]) -> &Program {
        let for_tools = self.for_tools.as_ref().filter(|_| !tools.is_empty());
        for_tools.unwrap_or(&self.program)
    }

    fn run(
        &self,
        messages: Value,
        add_generation_prompt: bool,
        tools: &[Json],
    ) -> Result<String, Error> {
        let budget = Arc::new(Budget::new(self.time.begun()));
        let mut env = Environment::empty();
        env.set_fuel(Some(MAX_STEPS));
        env.set_recursion_limit(MAX_RECURSION);
        // In debug mode an error would copy the variables.
        env.set_debug(false);
        sandbox::install(&mut env, &budget);
        let program = self.program(tools);
        builtins::install(&mut env, &budget, self.day.today(program));
        // Compiling again each time is cheaper than one decoded token, and keeps this type free of
        // self-references.
        let program = sandbox::compile(&program.prepared, &syntax()?)?;
        // Templates test for none.
        let tools = if tools.is_empty() { Value::from(()) } else { Value::from(Serde(tools)) };
        let mut context = BTreeMap::from([
            ("messages", messages),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
            ("tools", tools),
            ("documents", Value::from(())),
        ]);
        // A token that a model lacks is undefined, not none: templates test for that.
        context.extend(self.special.bos.as_deref().map(|bos| ("bos_token", Value::from(bos))));
        context.extend(self.special.eos.as_deref().map(|eos| ("eos_token", Value::from(eos))));
        let variables = self.variables.iter();
        context.extend(variables.map(|(name, value)| (name.as_str(), Value::from(Serde(value)))));
        let mut text = String::new();
        let mut out = machinery::make_string_output(&mut text);
        machinery::eval(
            &env,
            &program.instructions,
            Value::from(context),
            &program.blocks,
            &mut out,
            AutoEscape::None,
        )?;
        drop(out);
        if text.len() > MAX_TEXT_BYTES { Err(Stop::TextTooLong.into()) } else { Ok(text) }
    }
}

/// The rules of Hugging Face's template environment.
fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

fn explain(error: &Error) -> ChatError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(this) = cause {
        match this.downcast_ref::<Stop>() {
            Some(Stop::Refused(message)) => {
                return ChatError::TemplateRefused { message: message.clone() };
            }
            Some(Stop::TextTooLong) => {
                return ChatError::OutputTooLong { limit_bytes: MAX_TEXT_BYTES };
            }
            Some(Stop::TooMuchWork) => {
                return ChatError::TemplateTooLarge { limit_bytes: MAX_WORK_BYTES };
            }
            Some(Stop::TimeOver(limit)) => return ChatError::TemplateTimeOver { limit: *limit },
            Some(Stop::Cancelled) => return ChatError::Cancelled,
            None => cause = this.source(),
        }
    }
    match error.kind() {
        ErrorKind::OutOfFuel => ChatError::TemplateTooSlow { limit_steps: MAX_STEPS },
        _ => ChatError::TemplateFailed { reason: error.to_string() },
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    #[test]
    fn a_template_may_have_a_system_prompt_of_its_own() {
        fn check(source: &str, expected: Option<&str>) {
            let template = ChatTemplate::parse(source, SpecialTokens::default()).unwrap();
            assert_eq!(template.own_system_prompt().as_deref(), expected, "{source}");
        }
        const TURNS: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}";
        const OWN: &str =
            "{% if messages[0].role != 'system' %}<system>You are a stone.\n{% endif %}";
        check(TURNS, None);
        check(&format!("{OWN}{TURNS}"), Some("You are a stone."));
        // One that refuses system prompts, and one that writes them into the first question.
        let refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}";
        check(&format!("{refuses}{TURNS}"), None);
        let joins = "{% set system = messages[0].content if messages[0].role == 'system' %}\
            <user>{{ system + '\\n\\n' if system }}{{ messages[-1].content }}";
        check(joins, None);
        // What both begin with is no system prompt.
        let dated = "<system>Today is Monday.{{ messages[0].content if messages[0].role == 'system' }}\n\
            <user>{{ messages[-1].content }}";
        check(dated, None);
    }
}
