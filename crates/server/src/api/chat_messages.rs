//! The messages and tools of `POST /v1/chat/completions`, from OpenAI's types into Cairn's.

use async_openai::types::chat::{
    ChatCompletionMessageToolCalls, ChatCompletionRequestAssistantMessage,
    ChatCompletionRequestAssistantMessageContent, ChatCompletionRequestAssistantMessageContentPart,
    ChatCompletionRequestDeveloperMessageContent, ChatCompletionRequestDeveloperMessageContentPart,
    ChatCompletionRequestMessage, ChatCompletionRequestSystemMessageContent,
    ChatCompletionRequestSystemMessageContentPart, ChatCompletionRequestToolMessageContent,
    ChatCompletionRequestToolMessageContentPart, ChatCompletionRequestUserMessageContent,
    ChatCompletionRequestUserMessageContentPart, ChatCompletionToolChoiceOption,
    ChatCompletionTools, ResponseFormat, ToolChoiceOptions,
};
use cairn_app::completion::{MadeCall, Message, Role, Turn};
use serde_json::{Map, Value};

use super::error::ApiError;
use super::tools::{self, Tool, ToolChoice, Tools};

/// The tools of a request.
pub(super) fn tools(
    tools: Option<Vec<ChatCompletionTools>>,
    choice: Option<ChatCompletionToolChoiceOption>,
    is_parallel: Option<bool>,
) -> Result<Tools, ApiError> {
    let tool = |(index, tool)| match tool {
        ChatCompletionTools::Function(tool) => Ok(Tool {
            name: tool.function.name,
            description: tool.function.description,
            parameters: tool.function.parameters.unwrap_or_else(tools::no_parameters),
            is_strict: tool.function.strict.unwrap_or(false),
        }),
        ChatCompletionTools::Custom(_) => Err(ApiError::unsupported(format!("tools[{index}]"))),
    };
    let tools = tools.into_iter().flatten().enumerate().map(tool).collect::<Result<_, _>>()?;
    let choice = match choice {
        None | Some(ChatCompletionToolChoiceOption::Mode(ToolChoiceOptions::Auto)) => {
            ToolChoice::Auto
        }
        Some(ChatCompletionToolChoiceOption::Mode(ToolChoiceOptions::None)) => ToolChoice::None,
        Some(ChatCompletionToolChoiceOption::Mode(ToolChoiceOptions::Required)) => {
            ToolChoice::Required
        }
        Some(ChatCompletionToolChoiceOption::Function(named)) => {
            ToolChoice::Named(named.function.name)
        }
        Some(_) => return Err(ApiError::unsupported("tool_choice")),
    };
    Tools::new(tools, choice, is_parallel)
}

/// The schema of the answer's text.
pub(super) fn schema(
    format: Option<ResponseFormat>,
) -> Result<Option<(Value, &'static str)>, ApiError> {
    let (kind, schema) = match format {
        None | Some(ResponseFormat::Text) => (None, None),
        Some(ResponseFormat::JsonObject) => (Some("json_object"), None),
        Some(ResponseFormat::JsonSchema { json_schema }) => {
            (Some("json_schema"), Some(json_schema.schema))
        }
    };
    tools::schema(kind, schema, "response_format")
}

/// Takes the reasoning of each message, in DeepSeek's field, which OpenAI's types do not have.
pub(super) fn take_reasoning(fields: &mut Map<String, Value>) -> Vec<Option<String>> {
    let messages = fields.get_mut("messages").and_then(Value::as_array_mut);
    let reasoning = |message: &mut Value| match message.as_object_mut()?.remove("reasoning_content")
    {
        Some(Value::String(text)) => Some(text).filter(|text| !text.is_empty()),
        _ => None,
    };
    messages.into_iter().flatten().map(reasoning).collect()
}

/// The turns of a conversation, with the reasoning of each; what is no text and no call is refused
/// by its place.
pub(super) fn turns(
    messages: Vec<ChatCompletionRequestMessage>,
    reasoning: Vec<Option<String>>,
) -> Result<Vec<Turn>, ApiError> {
    let mut turns: Vec<Turn> = Vec::with_capacity(messages.len());
    let reasoning = reasoning.into_iter().chain(std::iter::repeat(None));
    for (index, (message, reasoning)) in messages.into_iter().zip(reasoning).enumerate() {
        let turn = turn(index, message, reasoning, &turns)?;
        turns.push(turn);
    }
    Ok(turns)
}

fn turn(
    index: usize,
    message: ChatCompletionRequestMessage,
    reasoning: Option<String>,
    earlier: &[Turn],
) -> Result<Turn, ApiError> {
    use ChatCompletionRequestMessage as Request;
    let refused = |what: &str| ApiError::unsupported(format!("messages[{index}].{what}"));
    let (role, content) = match message {
        Request::Developer(message) => (Role::System, developer(message.content)),
        Request::System(message) => (Role::System, system(message.content)),
        Request::User(message) => {
            (Role::User, user(message.content).ok_or_else(|| refused("content"))?)
        }
        Request::Assistant(message) => return answer(index, message, reasoning),
        Request::Tool(message) => {
            let call_id = message.tool_call_id;
            let name = tools::called(earlier, &call_id);
            return Ok(Turn::Result { call_id, name, content: tool(message.content) });
        }
        Request::Function(_) => return Err(refused("role")),
    };
    Ok(Turn::Message(Message { role, content, token_ids: None }))
}

fn answer(
    index: usize,
    message: ChatCompletionRequestAssistantMessage,
    reasoning: Option<String>,
) -> Result<Turn, ApiError> {
    #[expect(deprecated, reason = "clients still send it")]
    if message.function_call.is_some() {
        return Err(ApiError::unsupported(format!("messages[{index}].function_call")));
    }
    let content = message.content.map_or(String::new(), assistant);
    let calls = message.tool_calls.unwrap_or_default();
    if calls.is_empty() && reasoning.is_none() {
        return Ok(Turn::Message(Message { role: Role::Assistant, content, token_ids: None }));
    }
    let call = |(number, call)| {
        let place = format!("messages[{index}].tool_calls[{number}]");
        match call {
            ChatCompletionMessageToolCalls::Function(call) => Ok(MadeCall {
                id: call.id,
                name: call.function.name,
                arguments: tools::arguments(
                    &call.function.arguments,
                    &format!("{place}.function.arguments"),
                )?,
            }),
            ChatCompletionMessageToolCalls::Custom(_) => Err(ApiError::unsupported(place)),
        }
    };
    let calls = calls.into_iter().enumerate().map(call).collect::<Result<_, _>>()?;
    Ok(Turn::Answer { content, reasoning, calls })
}

fn developer(content: ChatCompletionRequestDeveloperMessageContent) -> String {
    match content {
        ChatCompletionRequestDeveloperMessageContent::Text(text) => text,
        ChatCompletionRequestDeveloperMessageContent::Array(parts) => parts
            .into_iter()
            .map(|ChatCompletionRequestDeveloperMessageContentPart::Text(part)| part.text)
            .collect(),
    }
}

fn system(content: ChatCompletionRequestSystemMessageContent) -> String {
    match content {
        ChatCompletionRequestSystemMessageContent::Text(text) => text,
        ChatCompletionRequestSystemMessageContent::Array(parts) => parts
            .into_iter()
            .map(|ChatCompletionRequestSystemMessageContentPart::Text(part)| part.text)
            .collect(),
    }
}

/// None if a part is no text.
fn user(content: ChatCompletionRequestUserMessageContent) -> Option<String> {
    match content {
        ChatCompletionRequestUserMessageContent::Text(text) => Some(text),
        ChatCompletionRequestUserMessageContent::Array(parts) => parts
            .into_iter()
            .map(|part| match part {
                ChatCompletionRequestUserMessageContentPart::Text(part) => Some(part.text),
                _ => None,
            })
            .collect(),
    }
}

fn assistant(content: ChatCompletionRequestAssistantMessageContent) -> String {
    match content {
        ChatCompletionRequestAssistantMessageContent::Text(text) => text,
        ChatCompletionRequestAssistantMessageContent::Array(parts) => parts
            .into_iter()
            .map(|part| match part {
                ChatCompletionRequestAssistantMessageContentPart::Text(part) => part.text,
                ChatCompletionRequestAssistantMessageContentPart::Refusal(part) => part.refusal,
            })
            .collect(),
    }
}

fn tool(content: ChatCompletionRequestToolMessageContent) -> String {
    match content {
        ChatCompletionRequestToolMessageContent::Text(text) => text,
        ChatCompletionRequestToolMessageContent::Array(parts) => parts
            .into_iter()
            .map(|ChatCompletionRequestToolMessageContentPart::Text(part)| part.text)
            .collect(),
    }
}
