//! `POST /v1/messages`: Anthropic's form of a chat, and `POST /v1/messages/count_tokens`: how long
//! its prompt is.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use cairn_app::completion::{CallArguments, FinishReason, MadeCall, PromptEnd, Role, Turn};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::answer::{
    Answer, AnswerRequest, BegunPrompt, Ending, FinishedAnswer, Part, Piece, TokenText, new_id,
};
use super::body::{self, Body, Fields};
use super::conversation::{Conversation, Said};
use super::diagnosis::{Diagnosis, earlier_answer};
use super::error::{ApiError, Vendor};
use super::sampling::{VendorSampling, checked_stops};
use super::stream::{self, StreamFormat};
use super::tools::{self, Tool, ToolChoice, Tools};
use crate::shared::Shared;

#[derive(Deserialize)]
struct MessagesRequest {
    /// Not of a prompt that is only counted.
    max_tokens: Option<u32>,
    messages: Vec<RequestMessage>,
    #[serde(default)]
    system: Option<Content>,
    #[serde(default)]
    stop_sequences: Vec<String>,
    #[serde(default)]
    stream: bool,
    temperature: Option<f32>,
    top_p: Option<f32>,
    #[serde(default)]
    tools: Vec<RequestTool>,
    tool_choice: Option<RequestChoice>,
    output_format: Option<OutputFormat>,
    output_config: Option<OutputConfig>,
    diagnostics: Option<Value>,
}

#[derive(Deserialize)]
struct OutputConfig {
    format: Option<OutputFormat>,
}

#[derive(Deserialize)]
struct OutputFormat {
    r#type: String,
    schema: Option<Value>,
}

#[derive(Deserialize)]
struct RequestTool {
    /// `custom`, where it is said. Others are Anthropic's own tools.
    r#type: Option<String>,
    /// Not of every tool that Anthropic runs.
    #[serde(default)]
    name: String,
    description: Option<String>,
    input_schema: Option<Value>,
    strict: Option<bool>,
}

#[derive(Deserialize)]
struct RequestChoice {
    r#type: String,
    name: Option<String>,
    disable_parallel_tool_use: Option<bool>,
}

#[derive(Deserialize)]
struct RequestMessage {
    role: RequestRole,
    content: Content,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum RequestRole {
    User,
    Assistant,
    /// Instructions after the first question, which agents send.
    System,
}

/// A text, or blocks of which each says what it is.
#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Blocks(Vec<Map<String, Value>>),
}

/// What a message's blocks say.
#[derive(Default)]
struct Blocks {
    said: Said,
    reasoning: Option<String>,
    calls: Vec<MadeCall>,
    /// Ids and texts.
    results: Vec<(String, Said)>,
}

/// Begins a block of telemetry that Claude Code puts before its instructions. It differs in each session,
/// and would have all that follows read again.
const BILLING_HEADER: &str = "x-anthropic-billing-header:";

impl Content {
    /// Removes the blocks that are telemetry, which means nothing to a model.
    fn without_billing_header(self) -> Content {
        let Content::Blocks(mut blocks) = self else { return self };
        let is_header = |text: &str| text.trim_start().starts_with(BILLING_HEADER);
        blocks.retain(|block| !kind_and_text(block).1.is_some_and(is_header));
        Content::Blocks(blocks)
    }

    fn is_empty(&self) -> bool {
        matches!(self, Content::Blocks(blocks) if blocks.is_empty())
    }

    /// The text; what is not text is refused by its place.
    fn text(self, place: &str) -> Result<Said, ApiError> {
        let blocks = match self {
            Content::Text(text) => return Ok(text.into()),
            Content::Blocks(blocks) => blocks,
        };
        let mut said = Said::default();
        for (index, block) in blocks.iter().enumerate() {
            let (Some("text"), Some(text)) = kind_and_text(block) else {
                let kind = kind_and_text(block).0.unwrap_or_default();
                return Err(ApiError::no_text(kind, format!("{place}[{index}]")));
            };
            said.add(text, ends_prefix(block));
        }
        Ok(said)
    }

    /// The text of a result, with a note in place of each block that is no text.
    fn result(self) -> Said {
        let blocks = match self {
            Content::Text(text) => return text.into(),
            Content::Blocks(blocks) => blocks,
        };
        let mut said = Said::default();
        for block in &blocks {
            match kind_and_text(block) {
                (Some("text"), Some(text)) => said.add(text, ends_prefix(block)),
                (kind, _) => {
                    said.add(&tools::left_out(kind.unwrap_or_default()), ends_prefix(block));
                }
            }
        }
        said
    }

    /// What the message of one side says; what it cannot say is refused by its place.
    fn read(self, role: &RequestRole, place: &str) -> Result<Blocks, ApiError> {
        let mut read = Blocks::default();
        let blocks = match self {
            Content::Text(text) => return Ok(Blocks { said: text.into(), ..read }),
            Content::Blocks(blocks) => blocks,
        };
        for (index, block) in blocks.into_iter().enumerate() {
            let place = format!("{place}[{index}]");
            match (kind_and_text(&block), role) {
                ((Some("text"), Some(text)), _) => read.said.add(text, ends_prefix(&block)),
                ((Some("thinking"), _), RequestRole::Assistant) => {
                    let thought = block.get("thinking").and_then(Value::as_str).unwrap_or_default();
                    read.reasoning.get_or_insert_default().push_str(thought);
                }
                // What cannot be read is no part of what was said.
                ((Some("redacted_thinking"), _), RequestRole::Assistant) => {}
                ((Some("tool_use"), _), RequestRole::Assistant) => {
                    read.calls.push(call(block, place)?);
                }
                ((Some("tool_result"), _), RequestRole::User) => {
                    read.results.push(result(block, &place)?);
                }
                ((kind, _), _) => {
                    return Err(ApiError::no_text(kind.unwrap_or_default(), place));
                }
            }
        }
        Ok(read)
    }
}

/// Whether later prompts are said to begin with all that comes up to this block.
fn ends_prefix(block: &Map<String, Value>) -> bool {
    block.get("cache_control").is_some_and(Value::is_object)
}

fn kind_and_text(block: &Map<String, Value>) -> (Option<&str>, Option<&str>) {
    let field = |name: &str| block.get(name).and_then(Value::as_str);
    (field("type"), field("text"))
}

fn call(mut block: Map<String, Value>, place: String) -> Result<MadeCall, ApiError> {
    match (block.remove("id"), block.remove("name"), block.remove("input")) {
        (Some(Value::String(id)), Some(Value::String(name)), Some(Value::Object(arguments))) => {
            Ok(MadeCall { id, name, arguments: CallArguments::Object(arguments) })
        }
        _ => {
            let message = format!("`{place}` needs an id, a name and an input, an object.");
            Err(ApiError::invalid(place, message))
        }
    }
}

/// The id and the text of a result.
fn result(mut block: Map<String, Value>, place: &str) -> Result<(String, Said), ApiError> {
    let Some(Value::String(id)) = block.remove("tool_use_id") else {
        let message = format!("`{place}` needs a tool_use_id.");
        return Err(ApiError::invalid(place, message));
    };
    let refused = || ApiError::unsupported(format!("{place}.content"));
    let mut said = match block.remove("content") {
        None | Some(Value::Null) => Said::default(),
        Some(content) => {
            let content: Content = serde_json::from_value(content).map_err(|_| refused())?;
            content.result()
        }
    };
    said.add("", ends_prefix(&block));
    Ok((id, said))
}

pub(super) async fn create(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    match answer(&shared, request).await {
        Ok(response) => response,
        Err(error) => error.response(Vendor::Anthropic),
    }
}

async fn answer(shared: &Arc<Shared>, request: Request) -> Result<Response, ApiError> {
    let read = body::read(shared, request, &FIELDS, |body: Body<MessagesRequest>| {
        if body.fields.max_tokens.is_none() {
            let message = "`max_tokens` is missing: say how long the answer may become.";
            return Err(ApiError::invalid("max_tokens", message));
        }
        let (streams, is_diagnosed) = (body.fields.stream, body.fields.diagnostics.is_some());
        Ok((question(body)?, streams, is_diagnosed))
    });
    let (question, streams, is_diagnosed) = read.await?;
    let answer = Answer::begin(shared, question).await?;
    if streams {
        let message = message(&answer.id, &answer.model);
        let events = Events { message, is_diagnosed, open: None, num_closed: 0 };
        return stream::response(answer, events).await;
    }
    let FinishedAnswer { id, model, parts, end, .. } = answer.whole().await?;
    let mut message = message(&id, &model);
    if is_diagnosed {
        message["diagnostics"] = diagnostics(end.diagnosis.as_ref());
    }
    let mut blocks: Vec<Value> = parts.into_iter().filter_map(block).collect();
    if blocks.is_empty() {
        blocks.push(json!({ "type": "text", "text": "" }));
    }
    message["content"] = blocks.into();
    message["stop_reason"] = stop_reason(&end).into();
    message["stop_sequence"] = end.stop_string.clone().into();
    message["usage"] = usage(&end);
    Ok(Json(message).into_response())
}

pub(super) async fn count_tokens(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    match count(&shared, request).await {
        Ok(response) => response,
        Err(error) => error.response(Vendor::Anthropic),
    }
}

async fn count(shared: &Arc<Shared>, request: Request) -> Result<Response, ApiError> {
    let read = body::read(shared, request, &COUNTED_FIELDS, question);
    let AnswerRequest { model, prompt, own, .. } = read.await?;
    let model = model.as_deref();
    let generate = shared.app.completion(model, prompt).await;
    let mut generate = generate.map_err(|failure| ApiError::of_model(failure, model))?;
    own.apply_to_template(&mut generate);
    let model = generate.model.clone().unwrap_or_default();
    let num_tokens = shared.app.num_prompt_tokens(generate).await;
    let num_tokens = num_tokens.map_err(|error| ApiError::of_answer(error, &model))?;
    Ok(Json(json!({ "input_tokens": num_tokens })).into_response())
}

/// A part as a block of content; none for a call whose arguments are no object, because the answer
/// broke off in it or the model wrote them wrongly.
fn block(part: Part) -> Option<Value> {
    Some(match part {
        Part::Text(text) => json!({ "type": "text", "text": text }),
        Part::Reasoning(text) => json!({ "type": "thinking", "thinking": text, "signature": "" }),
        Part::Call { id, name, arguments } => {
            let input: Map<String, Value> = serde_json::from_str(&arguments).ok()?;
            json!({ "type": "tool_use", "id": id, "name": name, "input": input })
        }
    })
}

pub(super) const FIELDS: Fields = Fields {
    schema: "MessagesRequest",
    read: &[
        "max_tokens",
        "messages",
        "system",
        "stop_sequences",
        "stream",
        "temperature",
        "top_p",
        "tools",
        "tool_choice",
        "output_format",
        "output_config",
        "diagnostics",
    ],
    refused,
};

/// Those that the length of a prompt depends on.
pub(super) const COUNTED_FIELDS: Fields = Fields {
    schema: "MessagesCountRequest",
    read: &["messages", "system", "tools", "tool_choice"],
    refused,
};

/// A field that asks for what Cairn cannot do.
fn refused(fields: &Map<String, Value>) -> Option<String> {
    let asks = |name: &str| match (name, fields.get(name)) {
        (_, None) => false,
        ("mcp_servers", Some(Value::Array(servers))) => !servers.is_empty(),
        _ => true,
    };
    let names = ["mcp_servers", "container"];
    names.into_iter().find(|name| asks(name)).map(str::to_owned)
}

fn question(body: Body<MessagesRequest>) -> Result<AnswerRequest, ApiError> {
    let Body { model, own, admitted, fields } = body;
    if fields.messages.is_empty() {
        return Err(ApiError::invalid("messages", "`messages` is empty: ask something."));
    }
    let tools = tools(fields.tools, fields.tool_choice)?;
    let format = fields.output_config.and_then(|config| config.format).or(fields.output_format);
    let (kind, schema) = format.map(|format| (format.r#type, format.schema)).unzip();
    let schema = tools::schema(kind.as_deref(), schema.flatten(), "output_format")?;
    let end = match fields.messages.last() {
        Some(RequestMessage { role: RequestRole::Assistant, .. }) => PromptEnd::BegunAnswer,
        _ => PromptEnd::NewAnswer,
    };
    let mut conversation = Conversation::default();
    let system = fields.system.map(Content::without_billing_header);
    if let Some(system) = system.filter(|system| !system.is_empty()) {
        conversation.add_message(Role::System, system.text("system")?);
    }
    for (index, RequestMessage { role, content }) in fields.messages.into_iter().enumerate() {
        conversation.begin_message();
        let said = content.read(&role, &format!("messages[{index}].content"))?;
        add_turns(&mut conversation, &role, said);
    }
    if end == PromptEnd::BegunAnswer {
        check_begun(conversation.turns(), schema.is_some() || tools.is_call_required())?;
    }
    let diagnostics = fields.diagnostics.as_ref();
    Ok(AnswerRequest {
        id: new_id("msg_"),
        shape: Some(conversation.shape(&tools)),
        earlier: earlier_answer(diagnostics, "diagnostics", "previous_message_id")?,
        model,
        admitted,
        prompt: conversation.prompt(&tools, end),
        tools: Some(tools),
        schema,
        sampling: VendorSampling {
            temperature: fields.temperature,
            top_p: fields.top_p,
            ..VendorSampling::default()
        },
        own,
        max_tokens: fields.max_tokens,
        stops: checked_stops(fields.stop_sequences, "stop_sequences")?,
        num_top_logprobs: None,
        prediction: None,
    })
}

/// Checks that the last message begins an answer that can be continued.
fn check_begun(turns: &[Turn], has_form: bool) -> Result<(), ApiError> {
    let begun = match turns.last() {
        Some(Turn::Answer { calls, .. }) if !calls.is_empty() => Err("with calls of tools"),
        _ if has_form => Err("whose form is prescribed"),
        Some(turn) if turn.content().trim_end() != turn.content() => Err("that ends in a blank"),
        Some(turn) if turn.content().is_empty() => Err("without text"),
        _ => Ok(()),
    };
    begun.map_err(|which| {
        let message = format!("The last message begins an answer {which}: it cannot be continued.");
        ApiError::invalid("messages", message)
    })
}

fn tools(tools: Vec<RequestTool>, choice: Option<RequestChoice>) -> Result<Tools, ApiError> {
    let tool = |(index, tool): (usize, RequestTool)| match tool.r#type.as_deref() {
        None | Some("custom") => Ok(Tool {
            name: tool.name,
            description: tool.description,
            parameters: tool.input_schema.unwrap_or_else(tools::no_parameters),
            is_strict: tool.strict.unwrap_or(false),
        }),
        Some(_) => Err(ApiError::unsupported(format!("tools[{index}]"))),
    };
    let is_ours = |(_, tool): &(usize, RequestTool)| !is_hosted(tool);
    let tools = tools.into_iter().enumerate().filter(is_ours).map(tool);
    let tools = tools.collect::<Result<_, _>>()?;
    let is_one_call = choice.as_ref().and_then(|choice| choice.disable_parallel_tool_use);
    let named = choice.as_ref().and_then(|choice| choice.name.clone());
    let choice = match (choice.as_ref().map(|choice| choice.r#type.as_str()), named) {
        (None | Some("auto"), _) => ToolChoice::Auto,
        (Some("none"), _) => ToolChoice::None,
        (Some("any"), _) => ToolChoice::Required,
        (Some("tool"), Some(name)) => ToolChoice::Named(name),
        (Some(_), _) => return Err(ApiError::unsupported("tool_choice")),
    };
    Tools::new(tools, choice, is_one_call.map(|is_one| !is_one))
}

/// Whether Anthropic's servers run a tool. The model is not told of it; the program's own tools that
/// have no schema, such as `bash_20250124`, are refused, because the program waits for their calls.
fn is_hosted(tool: &RequestTool) -> bool {
    const HOSTED: [&str; 5] =
        ["web_search", "web_fetch", "code_execution", "tool_search_tool", "mcp_toolset"];
    let kind = tool.r#type.as_deref().unwrap_or_default();
    HOSTED.iter().any(|hosted| kind.starts_with(hosted))
}

/// Adds the turns of a message. Results come before what the user says to them.
fn add_turns(conversation: &mut Conversation, role: &RequestRole, blocks: Blocks) {
    let Blocks { said, reasoning, calls, results } = blocks;
    match role {
        RequestRole::Assistant => conversation.add_answer(said, reasoning, calls),
        RequestRole::System => conversation.add_message(Role::System, said),
        RequestRole::User => {
            let has_results = !results.is_empty();
            for (call_id, result) in results {
                conversation.add_result(call_id, result);
            }
            if !has_results || !said.text.is_empty() {
                conversation.add_message(Role::User, said);
            }
        }
    }
}

/// A message without content, as a stream begins with.
fn message(id: &str, model: &str) -> Value {
    json!({
        "id": id, "type": "message", "role": "assistant", "model": model,
        "content": [], "stop_reason": null, "stop_sequence": null,
        "usage": counted(0, 0, 0),
    })
}

/// Why the prompt was read again; null if it was not, or there was nothing to compare it with.
fn diagnostics(diagnosis: Option<&Diagnosis>) -> Value {
    diagnosis.map_or(Value::Null, Diagnosis::of_message)
}

/// An answer as events with names: its blocks one after the other.
struct Events {
    /// The message without content.
    message: Value,
    is_diagnosed: bool,
    open: Option<BlockKind>,
    num_closed: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockKind {
    Text,
    Thinking,
    ToolUse,
}

/// An event whose name is its type.
fn named(data: &Value) -> Event {
    let name = data["type"].as_str().unwrap_or_default();
    stream::json(data).event(name)
}

impl Events {
    /// Closes the block that is open.
    fn close(&mut self) -> Option<Event> {
        self.open.take()?;
        self.num_closed += 1;
        Some(named(&json!({ "type": "content_block_stop", "index": self.num_closed - 1 })))
    }

    /// Opens a block, unless one of its kind is open that goes on.
    fn open(&mut self, kind: BlockKind, block: Value) -> Vec<Event> {
        if self.open == Some(kind) && kind != BlockKind::ToolUse {
            return Vec::new();
        }
        let mut events: Vec<Event> = self.close().into_iter().collect();
        self.open = Some(kind);
        events.push(named(&json!({
            "type": "content_block_start", "index": self.num_closed, "content_block": block,
        })));
        events
    }

    fn delta(&self, delta: Value) -> Event {
        named(&json!({ "type": "content_block_delta", "index": self.num_closed, "delta": delta }))
    }

    fn piece(&mut self, piece: Piece) -> Vec<Event> {
        let (mut events, delta) = match piece {
            Piece::Text(text) => {
                let block = json!({ "type": "text", "text": "" });
                let delta = json!({ "type": "text_delta", "text": text });
                (self.open(BlockKind::Text, block), delta)
            }
            Piece::Reasoning(text) => {
                let block = json!({ "type": "thinking", "thinking": "", "signature": "" });
                let delta = json!({ "type": "thinking_delta", "thinking": text });
                (self.open(BlockKind::Thinking, block), delta)
            }
            Piece::Call { id, name } => {
                let block = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                return self.open(BlockKind::ToolUse, block);
            }
            Piece::Arguments(json) => {
                (Vec::new(), json!({ "type": "input_json_delta", "partial_json": json }))
            }
            Piece::CallEnd => return self.close().into_iter().collect(),
        };
        events.push(self.delta(delta));
        events
    }
}

impl StreamFormat for Events {
    fn begin(&mut self, prompt: Option<&BegunPrompt>) -> Vec<Event> {
        let mut message = self.message.take();
        if let Some(prompt) = prompt {
            message["usage"] = counted(prompt.num_tokens, prompt.num_cached, 0);
        }
        if self.is_diagnosed {
            // A null reason says that it is not known yet.
            message["diagnostics"] = match prompt {
                Some(prompt) => diagnostics(prompt.diagnosis.as_ref()),
                None => json!({ "cache_miss_reason": null }),
            };
        }
        vec![named(&json!({ "type": "message_start", "message": message }))]
    }

    fn prefill(&mut self) -> Vec<Event> {
        vec![named(&json!({ "type": "ping" }))]
    }

    fn token(&mut self, pieces: Vec<Piece>, _logprobs: Option<TokenText>) -> Vec<Event> {
        pieces.into_iter().flat_map(|piece| self.piece(piece)).collect()
    }

    fn end(&mut self, pieces: Vec<Piece>, end: &Ending) -> Vec<Event> {
        let mut events = self.token(pieces, None);
        if self.open.is_none() && self.num_closed == 0 {
            events.extend(self.open(BlockKind::Text, json!({ "type": "text", "text": "" })));
        }
        events.extend(self.close());
        let delta = json!({ "stop_reason": stop_reason(end), "stop_sequence": end.stop_string });
        events.push(named(&json!({
            "type": "message_delta", "delta": delta, "usage": usage(end),
        })));
        events.push(named(&json!({ "type": "message_stop" })));
        events
    }

    fn failed(&mut self, error: &ApiError) -> Event {
        named(&error.body(Vendor::Anthropic))
    }
}

fn stop_reason(end: &Ending) -> &'static str {
    match (end.reason, &end.stop_string) {
        (FinishReason::Length | FinishReason::Context, _) => "max_tokens",
        (_, Some(_)) => "stop_sequence",
        (_, None) if end.calls_tools => "tool_use",
        (_, None) => "end_turn",
    }
}

fn usage(end: &Ending) -> Value {
    counted(end.num_prompt_tokens, end.num_cached_tokens, end.num_answer_tokens)
}

/// Anthropic counts what came from the cache apart.
fn counted(num_prompt: u32, num_cached: u32, num_written: u32) -> Value {
    json!({
        "input_tokens": num_prompt.saturating_sub(num_cached),
        "cache_read_input_tokens": num_cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": num_written,
    })
}
