//! `POST /v1/responses`: OpenAI's newer form of a chat. Nothing is stored: each request has the
//! whole conversation.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use cairn_app::completion::{CallArguments, FinishReason, MadeCall, PromptEnd, Role};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::answer::{
    Answer, AnswerRequest, BegunPrompt, Ending, FinishedAnswer, Part, Piece, TokenText, new_id,
    now_s,
};
use super::body::{self, Body, Fields};
use super::conversation::{Conversation, Said};
use super::diagnosis::compared_answer;
use super::error::{ApiError, Vendor};
use super::namespaces::{Function, Namespaces};
use super::sampling::VendorSampling;
use super::stream::{self, StreamFormat};
use super::tools::{self, Tool, ToolChoice, Tools};
use crate::shared::Shared;

#[derive(Deserialize)]
struct ResponsesRequest {
    input: Input,
    instructions: Option<String>,
    max_output_tokens: Option<u32>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    tools: Vec<RequestTool>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    text: Option<TextOptions>,
    #[serde(default)]
    metadata: Map<String, Value>,
    prompt_cache_options: Option<Value>,
}

#[derive(Deserialize)]
struct TextOptions {
    format: Option<TextFormat>,
}

#[derive(Deserialize, Serialize)]
struct TextFormat {
    r#type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<Value>,
    /// What has no effect, and is repeated.
    #[serde(flatten)]
    more: Map<String, Value>,
}

#[derive(Deserialize, Serialize)]
struct RequestTool {
    r#type: String,
    #[serde(default)]
    name: String,
    description: Option<String>,
    parameters: Option<Value>,
    strict: Option<bool>,
    /// The functions of a `namespace`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tools: Vec<RequestTool>,
}

/// A question, or a conversation.
#[derive(Deserialize)]
#[serde(untagged)]
enum Input {
    Text(String),
    Items(Vec<Item>),
}

#[derive(Deserialize)]
struct Item {
    /// A message, where it is not said.
    r#type: Option<String>,
    role: Option<ItemRole>,
    content: Option<Content>,
    /// Of a call and of its result.
    call_id: Option<String>,
    name: Option<String>,
    /// The namespace of the called function.
    namespace: Option<String>,
    arguments: Option<String>,
    /// The text that a custom tool was called with.
    input: Option<String>,
    output: Option<Content>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum ItemRole {
    System,
    Developer,
    User,
    Assistant,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Map<String, Value>>),
}

pub(super) async fn create(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    match answer(&shared, request).await {
        Ok(response) => response,
        Err(error) => error.response(Vendor::OpenAi),
    }
}

async fn answer(shared: &Arc<Shared>, request: Request) -> Result<Response, ApiError> {
    let read = body::read(shared, request, &FIELDS, |body: Body<ResponsesRequest>| {
        let (streams, repeated) = (body.fields.stream, repeated(&body.fields));
        let namespaces = namespaces(&body.fields.tools);
        Ok((question(body)?, streams, repeated, namespaces))
    });
    let (question, streams, repeated, namespaces) = read.await?;
    let answer = Answer::begin(shared, question).await?;
    let state = ResponseState::new(answer.id.clone(), answer.model.clone(), repeated, namespaces);
    if streams {
        return stream::response(answer, Events::new(state)).await;
    }
    let FinishedAnswer { parts, end, .. } = answer.whole().await?;
    let mut state = state;
    for part in parts {
        state.add(part);
    }
    state.fill();
    Ok(Json(state.response(Some(&end))).into_response())
}

pub(super) const FIELDS: Fields = Fields {
    schema: "ResponsesRequest",
    read: &[
        "input",
        "instructions",
        "max_output_tokens",
        "temperature",
        "top_p",
        "stream",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "text",
        "metadata",
        "prompt_cache_options",
    ],
    refused,
};

/// A field that asks for what Cairn cannot do.
fn refused(fields: &Map<String, Value>) -> Option<String> {
    let asks = |name: &str| match (name, fields.get(name)) {
        (_, None) => false,
        ("background", Some(background)) => *background != false,
        _ => true,
    };
    ["previous_response_id", "conversation", "prompt", "background", "top_logprobs"]
        .into_iter()
        .find(|name| asks(name))
        .map(str::to_owned)
}

/// What a response repeats of its request, as OpenAI's does, with what holds where it says nothing.
fn repeated(fields: &ResponsesRequest) -> Value {
    let text = fields.text.as_ref().and_then(|text| text.format.as_ref());
    json!({
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "metadata": fields.metadata,
        "parallel_tool_calls": fields.parallel_tool_calls.unwrap_or(true),
        "temperature": fields.temperature,
        "text": { "format": text.map_or(json!({ "type": "text" }), |format| json!(format)) },
        "tool_choice": fields.tool_choice.clone().unwrap_or("auto".into()),
        "tools": fields.tools,
        "top_p": fields.top_p,
    })
}

fn question(body: Body<ResponsesRequest>) -> Result<AnswerRequest, ApiError> {
    let Body { model, own, admitted, fields } = body;
    let tools = tools(fields.tools, fields.tool_choice, fields.parallel_tool_calls)?;
    let format = fields.text.and_then(|text| text.format);
    let (kind, schema) = format.map(|format| (format.r#type, format.schema)).unzip();
    let schema = tools::schema(kind.as_deref(), schema.flatten(), "text.format")?;
    let mut conversation = Conversation::default();
    if let Some(instructions) = fields.instructions {
        conversation.add_message(Role::System, instructions.into());
    }
    match fields.input {
        Input::Text(text) => conversation.add_message(Role::User, text.into()),
        Input::Items(items) => {
            for (index, item) in items.into_iter().enumerate() {
                conversation.begin_message();
                add_item(&mut conversation, index, item)?;
            }
        }
    }
    if conversation.turns().is_empty() {
        return Err(ApiError::invalid("input", "`input` is empty: ask something."));
    }
    Ok(AnswerRequest {
        id: new_id("resp_"),
        shape: Some(conversation.shape(&tools)),
        earlier: compared_answer(fields.prompt_cache_options.as_ref())?,
        model,
        admitted,
        prompt: conversation.prompt(&tools, PromptEnd::NewAnswer),
        tools: Some(tools),
        schema,
        sampling: VendorSampling {
            temperature: fields.temperature,
            top_p: fields.top_p,
            ..VendorSampling::default()
        },
        own,
        max_tokens: fields.max_output_tokens,
        stops: Vec::new(),
        num_top_logprobs: None,
        prediction: None,
    })
}

fn tools(
    tools: Vec<RequestTool>,
    choice: Option<Value>,
    is_parallel: Option<bool>,
) -> Result<Tools, ApiError> {
    let mut offered = Vec::new();
    for (index, tool) in tools.into_iter().enumerate() {
        match tool.r#type.as_str() {
            "function" => offered.push(function(tool.name.clone(), tool)),
            "namespace" => {
                let functions = tool.tools.into_iter().filter(|inner| inner.r#type == "function");
                offered.extend(functions.map(|inner| {
                    let (namespace, name) = (tool.name.clone(), inner.name.clone());
                    function(Function { namespace, name }.shown_name(), inner)
                }));
            }
            kind if IGNORED_TOOLS.contains(&kind) => {}
            _ => return Err(ApiError::unsupported(format!("tools[{index}]"))),
        }
    }
    let named = choice.as_ref().filter(|choice| choice["type"] == "function");
    let named = named.and_then(|choice| choice["name"].as_str()).map(str::to_owned);
    let choice = match (choice.as_ref().map(|choice| choice.as_str()), named) {
        (_, Some(name)) => ToolChoice::Named(name),
        (None | Some(Some("auto")), _) => ToolChoice::Auto,
        (Some(Some("none")), _) => ToolChoice::None,
        (Some(Some("required")), _) => ToolChoice::Required,
        (Some(_), _) => return Err(ApiError::unsupported("tool_choice")),
    };
    Tools::new(offered, choice, is_parallel)
}

/// Kinds of tools that the model is not told of: OpenAI's servers run them, or their calls are no JSON.
/// Agents send them whatever the model is, and do without.
const IGNORED_TOOLS: [&str; 9] = [
    "web_search",
    "web_search_preview",
    "file_search",
    "code_interpreter",
    "image_generation",
    "mcp",
    "tool_search",
    "local_shell",
    "custom",
];

fn function(name: String, tool: RequestTool) -> Tool {
    Tool {
        name,
        description: tool.description,
        parameters: tool.parameters.unwrap_or_else(tools::no_parameters),
        is_strict: tool.strict.unwrap_or(false),
    }
}

/// The functions of the namespaces among tools.
fn namespaces(tools: &[RequestTool]) -> Namespaces {
    let mut namespaces = Namespaces::default();
    for namespace in tools.iter().filter(|tool| tool.r#type == "namespace") {
        for tool in namespace.tools.iter().filter(|tool| tool.r#type == "function") {
            namespaces.add(Function { namespace: namespace.name.clone(), name: tool.name.clone() });
        }
    }
    namespaces
}

/// Adds an item of the conversation; one that cannot be told is refused by its place.
fn add_item(conversation: &mut Conversation, index: usize, item: Item) -> Result<(), ApiError> {
    let refused = |what: &str| ApiError::unsupported(format!("input[{index}]{what}"));
    let said = |content: Option<Content>, what: &str| match content {
        None => Ok(Said::default()),
        Some(Content::Text(text)) => Ok(text.into()),
        Some(Content::Parts(parts)) => {
            said(&parts).map_err(|kind| ApiError::no_text(kind, format!("input[{index}]{what}")))
        }
    };
    match item.r#type.as_deref() {
        None | Some("message") => {
            let role = match item.role.ok_or_else(|| refused(""))? {
                ItemRole::System | ItemRole::Developer => Role::System,
                ItemRole::User => Role::User,
                ItemRole::Assistant => Role::Assistant,
            };
            conversation.add_message(role, said(item.content, ".content")?);
        }
        Some("reasoning") => {
            let thought = said(item.content, ".content")?.text;
            let reasoning = Some(thought).filter(|thought| !thought.is_empty());
            conversation.add_reasoning(reasoning);
        }
        Some("function_call") => {
            let Some((id, name)) = item.call_id.zip(item.name) else {
                return Err(needs_call(index));
            };
            let name = match item.namespace.filter(|namespace| !namespace.is_empty()) {
                Some(namespace) => Function { namespace, name }.shown_name(),
                None => name,
            };
            let param = format!("input[{index}].arguments");
            let arguments = tools::arguments(&item.arguments.unwrap_or_default(), &param)?;
            conversation.add_call(MadeCall { id, name, arguments });
        }
        // Another model may have made it; what it was called with is no JSON.
        Some("custom_tool_call") => {
            let Some((id, name)) = item.call_id.zip(item.name) else {
                return Err(needs_call(index));
            };
            let input = Map::from_iter([("input".to_owned(), item.input.into())]);
            conversation.add_call(MadeCall { id, name, arguments: CallArguments::Object(input) });
        }
        Some("function_call_output" | "custom_tool_call_output") => {
            let call_id = item.call_id.ok_or_else(|| refused(".call_id"))?;
            conversation.add_result(call_id, result(item.output));
        }
        // Tools that OpenAI ran, whose answers are in the text that follows.
        Some(
            "web_search_call"
            | "file_search_call"
            | "code_interpreter_call"
            | "image_generation_call"
            | "tool_search_call"
            | "tool_search_output",
        ) => {}
        Some(_) => return Err(refused("")),
    }
    Ok(())
}

fn needs_call(index: usize) -> ApiError {
    let message = format!("`input[{index}]` needs a call_id and a name.");
    ApiError::invalid(format!("input[{index}]"), message)
}

/// The text of a call's result, with a note in place of each part that is no text.
fn result(content: Option<Content>) -> Said {
    let parts = match content {
        None => return Said::default(),
        Some(Content::Text(text)) => return text.into(),
        Some(Content::Parts(parts)) => parts,
    };
    let mut result = Said::default();
    for part in parts {
        match said(std::slice::from_ref(&part)) {
            Ok(part) => result.join(part),
            Err(kind) => result.add(&tools::left_out(kind), false),
        }
    }
    result
}

/// The text of parts. Fails with what one is that is no text.
fn said(parts: &[Map<String, Value>]) -> Result<Said, &str> {
    let mut said = Said::default();
    for part in parts {
        let field = |name: &str| part.get(name).and_then(Value::as_str);
        let kind = field("type").unwrap_or_default();
        let text = match (kind, field("text"), field("refusal")) {
            ("input_text" | "output_text" | "reasoning_text" | "text", Some(text), _) => text,
            ("refusal", _, Some(text)) => text,
            _ => return Err(kind),
        };
        said.add(text, part.get("prompt_cache_breakpoint").is_some_and(Value::is_object));
    }
    Ok(said)
}

/// What has been written of an answer.
struct ResponseState {
    id: String,
    created_at: u32,
    model: String,
    /// The fields of the request that the response repeats.
    repeated: Value,
    namespaces: Namespaces,
    output: Vec<Output>,
}

/// An item of the answer.
struct Output {
    id: String,
    part: Part,
    /// The function that a call is of, if it has a namespace.
    function: Option<Function>,
}

impl Output {
    fn new(part: Part, namespaces: &Namespaces) -> Self {
        let (prefix, function) = match &part {
            Part::Text(_) => ("msg_", None),
            Part::Reasoning(_) => ("rs_", None),
            Part::Call { name, .. } => ("fc_", namespaces.called(name).cloned()),
        };
        Output { id: new_id(prefix), part, function }
    }

    /// Its one part of content, if it has parts.
    fn content(&self) -> Option<Value> {
        match &self.part {
            Part::Text(text) => Some(json!({
                "type": "output_text", "text": text, "annotations": [], "logprobs": [],
            })),
            Part::Reasoning(text) => Some(json!({ "type": "reasoning_text", "text": text })),
            Part::Call { .. } => None,
        }
    }

    /// The item; without content before it has ended.
    fn item(&self, status: &str, has_ended: bool) -> Value {
        let content: Vec<Value> = self.content().into_iter().filter(|_| has_ended).collect();
        match &self.part {
            Part::Text(_) => json!({
                "type": "message", "id": self.id, "role": "assistant", "status": status,
                "content": content,
            }),
            Part::Reasoning(_) => json!({
                "type": "reasoning", "id": self.id, "status": status, "summary": [],
                "content": content,
            }),
            Part::Call { id, name, arguments } => {
                let mut item = json!({
                    "type": "function_call", "id": self.id, "call_id": id, "name": name,
                    "arguments": if has_ended { arguments } else { "" }, "status": status,
                });
                if let Some(Function { namespace, name }) = &self.function {
                    item["namespace"] = namespace.as_str().into();
                    item["name"] = name.as_str().into();
                }
                item
            }
        }
    }
}

impl ResponseState {
    fn new(id: String, model: String, repeated: Value, namespaces: Namespaces) -> Self {
        ResponseState { id, created_at: now_s(), model, repeated, namespaces, output: Vec::new() }
    }

    fn add(&mut self, part: Part) {
        self.output.push(Output::new(part, &self.namespaces));
    }

    /// An answer without anything is an empty message.
    fn fill(&mut self) {
        if self.output.is_empty() {
            self.add(Part::Text(String::new()));
        }
    }

    /// The response; without output before it has ended.
    fn response(&self, end: Option<&Ending>) -> Value {
        let items = self.output.iter().enumerate().filter(|_| end.is_some());
        // Only the last item can have been cut.
        let last = self.output.len().saturating_sub(1);
        let items = items.map(|(index, item)| {
            item.item(if index == last { status(end) } else { "completed" }, true)
        });
        let output: Vec<Value> = items.collect();
        let is_cut = end.is_some_and(|end| status(Some(end)) == "incomplete");
        let mut response = json!({
            "id": self.id, "object": "response", "created_at": self.created_at,
            "model": self.model, "status": status(end), "error": null,
            "incomplete_details": is_cut.then(|| json!({ "reason": "max_output_tokens" })),
            "output": output, "usage": end.map(usage), "background": false,
            "previous_response_id": null, "store": false,
        });
        if let Some(diagnosis) = end.and_then(|end| end.diagnosis.as_ref()) {
            response["prompt_cache_diagnostics"] = diagnosis.of_response("input");
        }
        // Both are objects.
        if let (Value::Object(all), Value::Object(repeated)) = (&mut response, &self.repeated) {
            all.extend(repeated.clone());
        }
        response
    }
}

fn status(end: Option<&Ending>) -> &'static str {
    match end.map(|end| end.reason) {
        None => "in_progress",
        Some(FinishReason::Length | FinishReason::Context) => "incomplete",
        Some(FinishReason::Stop | FinishReason::Cancelled) => "completed",
    }
}

fn usage(end: &Ending) -> Value {
    json!({
        "input_tokens": end.num_prompt_tokens,
        "input_tokens_details": { "cached_tokens": end.num_cached_tokens },
        "output_tokens": end.num_answer_tokens,
        "output_tokens_details": { "reasoning_tokens": end.num_reasoning_tokens },
        "total_tokens": end.num_prompt_tokens.saturating_add(end.num_answer_tokens),
    })
}

/// An answer as events, which are numbered.
struct Events {
    state: ResponseState,
    num_sent: u32,
    /// Whether the last item of the output goes on.
    is_open: bool,
}

impl Events {
    fn new(state: ResponseState) -> Self {
        Events { state, num_sent: 0, is_open: false }
    }

    fn event(&mut self, name: &str, more: Value) -> Event {
        let mut data = json!({ "type": name, "sequence_number": self.num_sent });
        self.num_sent += 1;
        // Every caller gives an object.
        if let (Value::Object(data), Value::Object(more)) = (&mut data, more) {
            data.extend(more);
        }
        stream::json(&data).event(name)
    }

    /// An event about the last item.
    fn item_event(&mut self, name: &str, key: &str, value: Value) -> Event {
        let Some(item) = self.state.output.last() else { return self.event(name, json!({})) };
        let index = self.state.output.len() - 1;
        let mut more = json!({ "item_id": item.id, "output_index": index });
        if !matches!(item.part, Part::Call { .. }) {
            more["content_index"] = 0.into();
        }
        more[key] = value;
        if name.starts_with("response.output_text") {
            more["logprobs"] = json!([]);
        }
        self.event(name, more)
    }

    /// An event with the whole last item.
    fn whole_item_event(&mut self, name: &str, status: &str, has_ended: bool) -> Option<Event> {
        let item = self.state.output.last()?.item(status, has_ended);
        let index = self.state.output.len() - 1;
        Some(self.event(name, json!({ "output_index": index, "item": item })))
    }

    /// Begins an item.
    fn open(&mut self, part: Part) -> Vec<Event> {
        let mut events = self.close("completed");
        self.state.add(part);
        self.is_open = true;
        events.extend(self.whole_item_event("response.output_item.added", "in_progress", false));
        if let Some(part) = self.state.output.last().and_then(Output::content) {
            events.push(self.item_event("response.content_part.added", "part", part));
        }
        events
    }

    /// Ends the item that is open.
    fn close(&mut self, status: &str) -> Vec<Event> {
        let Some(item) = self.state.output.last().filter(|_| self.is_open) else {
            return Vec::new();
        };
        self.is_open = false;
        let (name, key, text) = match &item.part {
            Part::Text(text) => ("response.output_text.done", "text", text.clone()),
            Part::Reasoning(text) => ("response.reasoning_text.done", "text", text.clone()),
            Part::Call { arguments, .. } => {
                ("response.function_call_arguments.done", "arguments", arguments.clone())
            }
        };
        let part = item.content();
        let mut events = vec![self.item_event(name, key, text.into())];
        if let Some(part) = part {
            events.push(self.item_event("response.content_part.done", "part", part));
        }
        events.extend(self.whole_item_event("response.output_item.done", status, true));
        events
    }

    fn piece(&mut self, piece: Piece) -> Vec<Event> {
        let last = self.state.output.last().filter(|_| self.is_open).map(|item| &item.part);
        let begun = match (&piece, last) {
            (Piece::CallEnd, _) => return self.close("completed"),
            (Piece::Text(_), Some(Part::Text(_)))
            | (Piece::Reasoning(_), Some(Part::Reasoning(_)))
            | (Piece::Arguments(_), _) => None,
            (Piece::Text(_), _) => Some(Part::Text(String::new())),
            (Piece::Reasoning(_), _) => Some(Part::Reasoning(String::new())),
            (Piece::Call { id, name }, _) => {
                Some(Part::Call { id: id.clone(), name: name.clone(), arguments: String::new() })
            }
        };
        let mut events = begun.map_or(Vec::new(), |part| self.open(part));
        let Some(item) = self.state.output.last_mut() else { return events };
        let (name, delta) = match (piece, &mut item.part) {
            (Piece::Text(text), Part::Text(all)) => {
                all.push_str(&text);
                ("response.output_text.delta", text)
            }
            (Piece::Reasoning(text), Part::Reasoning(all)) => {
                all.push_str(&text);
                ("response.reasoning_text.delta", text)
            }
            (Piece::Arguments(json), Part::Call { arguments, .. }) => {
                arguments.push_str(&json);
                ("response.function_call_arguments.delta", json)
            }
            _ => return events,
        };
        events.push(self.item_event(name, "delta", delta.into()));
        events
    }
}

impl StreamFormat for Events {
    fn begin(&mut self, _prompt: Option<&BegunPrompt>) -> Vec<Event> {
        let response = self.state.response(None);
        vec![
            self.event("response.created", json!({ "response": response })),
            self.event("response.in_progress", json!({ "response": response })),
        ]
    }

    fn token(&mut self, pieces: Vec<Piece>, _logprobs: Option<TokenText>) -> Vec<Event> {
        pieces.into_iter().flat_map(|piece| self.piece(piece)).collect()
    }

    fn end(&mut self, pieces: Vec<Piece>, end: &Ending) -> Vec<Event> {
        let mut events = self.token(pieces, None);
        if self.state.output.is_empty() {
            events.extend(self.open(Part::Text(String::new())));
        }
        events.extend(self.close(status(Some(end))));
        let response = self.state.response(Some(end));
        let last = match end.reason {
            FinishReason::Length | FinishReason::Context => "response.incomplete",
            FinishReason::Stop | FinishReason::Cancelled => "response.completed",
        };
        events.push(self.event(last, json!({ "response": response })));
        events
    }

    fn failed(&mut self, error: &ApiError) -> Event {
        let mut response = self.state.response(None);
        response["status"] = "failed".into();
        response["error"] = error.body(Vendor::OpenAi)["error"].take();
        self.event("response.failed", json!({ "response": response }))
    }
}
