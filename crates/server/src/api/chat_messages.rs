//! The messages and tools of `POST /v1/chat/completions`, from OpenAI's types into Cairn's.

use async_openai::types::chat::{
    ChatCompletionMessageToolCalls, ChatCompletionRequestAssistantMessage,
    ChatCompletionRequestAssistantMessageContent, ChatCompletionRequestAssistantMessageContentPart,
    ChatCompletionRequestDeveloperMessageContent, ChatCompletionRequestDeveloperMessageContentPart,
    ChatCompletionRequestMessage, ChatCompletionRequestMessageContentPartText,
    ChatCompletionRequestSystemMessageContent, ChatCompletionRequestSystemMessageContentPart,
    ChatCompletionRequestToolMessageContent, ChatCompletionRequestToolMessageContentPart,
    ChatCompletionRequestUserMessageContent, ChatCompletionRequestUserMessageContentPart,
    ChatCompletionToolChoiceOption, ChatCompletionTools, ResponseFormat, ToolChoiceOptions,
};
use cairn_app::completion::{MadeCall, Role};
use serde_json::{Map, Value};

use super::conversation::{Conversation, Said};
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

/// A conversation, with the reasoning of each message; what is no text and no call is refused by
/// its place.
pub(super) fn conversation(
    messages: Vec<ChatCompletionRequestMessage>,
    reasoning: Vec<Option<String>>,
) -> Result<Conversation, ApiError> {
    let mut conversation = Conversation::default();
    let reasoning = reasoning.into_iter().chain(std::iter::repeat(None));
    for (index, (message, reasoning)) in messages.into_iter().zip(reasoning).enumerate() {
        conversation.begin_message();
        add_message(&mut conversation, index, message, reasoning)?;
    }
    Ok(conversation)
}

fn add_message(
    conversation: &mut Conversation,
    index: usize,
    message: ChatCompletionRequestMessage,
    reasoning: Option<String>,
) -> Result<(), ApiError> {
    use ChatCompletionRequestMessage as Request;
    let refused = |what: &str| ApiError::unsupported(format!("messages[{index}].{what}"));
    match message {
        Request::Developer(message) => {
            conversation.add_message(Role::System, developer(message.content));
        }
        Request::System(message) => {
            conversation.add_message(Role::System, system(message.content));
        }
        Request::User(message) => {
            let place = format!("messages[{index}].content");
            let said = user(message.content).map_err(|kind| ApiError::no_text(kind, place))?;
            conversation.add_message(Role::User, said);
        }
        Request::Assistant(message) => {
            let calls = calls(index, &message)?;
            let said = message.content.map_or(Said::default(), assistant);
            conversation.add_answer(said, reasoning, calls);
        }
        Request::Tool(message) => {
            conversation.add_result(message.tool_call_id, tool(message.content));
        }
        Request::Function(_) => return Err(refused("role")),
    }
    Ok(())
}

/// The calls of an answer.
fn calls(
    index: usize,
    message: &ChatCompletionRequestAssistantMessage,
) -> Result<Vec<MadeCall>, ApiError> {
    #[expect(deprecated, reason = "clients still send it")]
    if message.function_call.is_some() {
        return Err(ApiError::unsupported(format!("messages[{index}].function_call")));
    }
    let call = |(number, call): (usize, &ChatCompletionMessageToolCalls)| {
        let place = format!("messages[{index}].tool_calls[{number}]");
        match call {
            ChatCompletionMessageToolCalls::Function(call) => Ok(MadeCall {
                id: call.id.clone(),
                name: call.function.name.clone(),
                arguments: tools::arguments(
                    &call.function.arguments,
                    &format!("{place}.function.arguments"),
                )?,
            }),
            ChatCompletionMessageToolCalls::Custom(_) => Err(ApiError::unsupported(place)),
        }
    };
    message.tool_calls.iter().flatten().enumerate().map(call).collect()
}

fn developer(content: ChatCompletionRequestDeveloperMessageContent) -> Said {
    match content {
        ChatCompletionRequestDeveloperMessageContent::Text(text) => text.into(),
        ChatCompletionRequestDeveloperMessageContent::Array(parts) => {
            let part = |ChatCompletionRequestDeveloperMessageContentPart::Text(part)| part;
            said(parts.into_iter().map(part))
        }
    }
}

fn system(content: ChatCompletionRequestSystemMessageContent) -> Said {
    match content {
        ChatCompletionRequestSystemMessageContent::Text(text) => text.into(),
        ChatCompletionRequestSystemMessageContent::Array(parts) => {
            let part = |ChatCompletionRequestSystemMessageContentPart::Text(part)| part;
            said(parts.into_iter().map(part))
        }
    }
}

/// Fails with what a part is that is no text.
fn user(content: ChatCompletionRequestUserMessageContent) -> Result<Said, &'static str> {
    use ChatCompletionRequestUserMessageContentPart as Part;
    let parts = match content {
        ChatCompletionRequestUserMessageContent::Text(text) => return Ok(text.into()),
        ChatCompletionRequestUserMessageContent::Array(parts) => parts,
    };
    let text = |part| match part {
        Part::Text(part) => Ok(part),
        Part::ImageUrl(_) => Err("image_url"),
        Part::InputAudio(_) => Err("input_audio"),
        Part::File(_) => Err("file"),
    };
    let texts: Vec<_> = parts.into_iter().map(text).collect::<Result<_, _>>()?;
    Ok(said(texts))
}

fn assistant(content: ChatCompletionRequestAssistantMessageContent) -> Said {
    let parts = match content {
        ChatCompletionRequestAssistantMessageContent::Text(text) => return text.into(),
        ChatCompletionRequestAssistantMessageContent::Array(parts) => parts,
    };
    let mut said = Said::default();
    for part in parts {
        match part {
            ChatCompletionRequestAssistantMessageContentPart::Text(part) => {
                said.add(&part.text, part.prompt_cache_breakpoint.is_some());
            }
            ChatCompletionRequestAssistantMessageContentPart::Refusal(part) => {
                said.add(&part.refusal, false);
            }
        }
    }
    said
}

fn tool(content: ChatCompletionRequestToolMessageContent) -> Said {
    match content {
        ChatCompletionRequestToolMessageContent::Text(text) => text.into(),
        ChatCompletionRequestToolMessageContent::Array(parts) => {
            let part = |ChatCompletionRequestToolMessageContentPart::Text(part)| part;
            said(parts.into_iter().map(part))
        }
    }
}

fn said(parts: impl IntoIterator<Item = ChatCompletionRequestMessageContentPartText>) -> Said {
    let mut said = Said::default();
    for part in parts {
        said.add(&part.text, part.prompt_cache_breakpoint.is_some());
    }
    said
}
