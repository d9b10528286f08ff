//! The tools that a request offers, which are the same in every vendor's form but for their fields.

use cairn_app::completion::{
    AnswerForm, CallArguments, CallSchema, OfferedTool, SegmentOptions, TextForm, Turn,
};
use serde_json::{Map, Value, json};

use super::error::ApiError;

/// Bounds of a tool's name. Letters, digits, `_`, `-` and `.` stand for themselves in every model's
/// form of a call.
const MAX_NAME_BYTES: usize = 128;

/// A tool.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tool {
    pub(super) name: String,
    pub(super) description: Option<String>,
    /// The JSON Schema of its arguments.
    pub(super) parameters: Value,
    /// Whether its calls keep to the schema.
    pub(super) is_strict: bool,
}

/// What a request says of tools.
#[derive(Debug, Default)]
pub(super) struct Tools {
    /// Those that the model may call; empty if it may call none.
    offered: Vec<Tool>,
    /// Whether the answer is a call.
    is_required: bool,
    /// The one that has to be called.
    named: Option<String>,
    /// Whether the answer ends behind its first call.
    is_one_call: bool,
}

/// Which tools an answer calls.
#[derive(Debug, Default, PartialEq)]
pub(super) enum ToolChoice {
    /// None: the model is not told of them.
    None,
    /// Those that the model chooses.
    #[default]
    Auto,
    /// One at least.
    Required,
    /// This one.
    Named(String),
}

impl Tools {
    /// Checks the tools of a request.
    pub(super) fn new(
        tools: Vec<Tool>,
        choice: ToolChoice,
        is_parallel: Option<bool>,
    ) -> Result<Self, ApiError> {
        for (index, tool) in tools.iter().enumerate() {
            let param = format!("tools[{index}]");
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
            if tool.name.is_empty()
                || tool.name.len() > MAX_NAME_BYTES
                || !tool.name.chars().all(is_plain)
            {
                let message = format!(
                    "`{param}` needs a name of at most {MAX_NAME_BYTES} letters, digits, `_`, `-` \
                     and `.`."
                );
                return Err(ApiError::invalid(param, message));
            }
            if tools[..index].iter().any(|earlier| earlier.name == tool.name) {
                let message = format!("`{param}` has the name of an earlier one: {}.", tool.name);
                return Err(ApiError::invalid(param, message));
            }
            if !tool.parameters.is_object() {
                let message = format!("The parameters of `{param}` are a JSON Schema, an object.");
                return Err(ApiError::invalid(param, message));
            }
        }
        let is_required = matches!(choice, ToolChoice::Required | ToolChoice::Named(_));
        let named = match &choice {
            ToolChoice::Named(name) => Some(name.clone()),
            _ => None,
        };
        let is_known = |name: &String| tools.iter().any(|tool| tool.name == *name);
        if is_required && tools.is_empty() || named.as_ref().is_some_and(|name| !is_known(name)) {
            let message = "`tool_choice` asks for a call of a tool that `tools` does not have.";
            return Err(ApiError::invalid("tool_choice", message));
        }
        let offered = if choice == ToolChoice::None { Vec::new() } else { tools };
        let is_one_call = is_parallel == Some(false) || named.is_some();
        Ok(Tools { offered, is_required, named, is_one_call })
    }

    /// What the answer may consist of, with the field that asks for it; none if it is free. Its
    /// text is JSON of `schema`, if there is one.
    pub(super) fn form(
        &self,
        schema: Option<(Value, &'static str)>,
    ) -> Option<(AnswerForm, &'static str)> {
        let is_strict = self.offered.iter().any(|tool| tool.is_strict);
        if schema.is_none() && !self.is_required && !is_strict {
            return None;
        }
        let is_allowed = |tool: &&Tool| self.named.as_ref().is_none_or(|name| tool.name == *name);
        let call = |tool: &Tool| CallSchema {
            name: tool.name.clone(),
            arguments: match tool.is_strict || self.is_required {
                true => tool.parameters.clone(),
                false => json!({ "type": "object" }),
            },
            is_strict: tool.is_strict,
        };
        let calls = self.offered.iter().filter(is_allowed).map(call).collect();
        let (text, param) = match schema {
            _ if self.is_required => (TextForm::None, "tools"),
            Some((schema, param)) => (TextForm::Json(schema), param),
            None => (TextForm::Free, "tools"),
        };
        Some((AnswerForm { text, calls }, param))
    }

    /// Whether the answer has to be a call.
    pub(super) fn is_call_required(&self) -> bool {
        self.is_required
    }

    /// The tools as chat templates read them.
    pub(super) fn for_template(&self) -> Vec<Value> {
        let function = |tool: &Tool| {
            let mut function = Map::from_iter([("name".to_owned(), tool.name.clone().into())]);
            if let Some(description) = &tool.description {
                function.insert("description".to_owned(), description.clone().into());
            }
            function.insert("parameters".to_owned(), tool.parameters.clone());
            json!({ "type": "function", "function": function })
        };
        self.offered.iter().map(function).collect()
    }

    /// How the answer is cut into segments.
    pub(super) fn segments(&self) -> SegmentOptions {
        let offered = |tool: &Tool| OfferedTool {
            name: tool.name.clone(),
            parameters: tool.parameters.clone(),
        };
        SegmentOptions {
            reads_calls: !self.offered.is_empty(),
            tools: self.offered.iter().map(offered).collect(),
            ends_after_call: self.is_one_call,
        }
    }
}

/// The schema of a tool without arguments.
pub(super) fn no_parameters() -> Value {
    json!({ "type": "object", "properties": {} })
}

/// The arguments of a call in an earlier answer, which are JSON text: an object, or text
/// that is no JSON. A model wrote that, and programs send its answers back as they came.
pub(super) fn arguments(text: &str, param: &str) -> Result<CallArguments, ApiError> {
    // Some clients send nothing for a call without arguments.
    let text = if text.trim().is_empty() { "{}" } else { text };
    match serde_json::from_str(text) {
        Ok(Value::Object(arguments)) => Ok(CallArguments::Object(arguments)),
        Ok(_) => {
            let message = format!("`{param}` is JSON, but no object.");
            Err(ApiError::invalid(param, message))
        }
        Err(_) => Ok(CallArguments::Text(text.to_owned())),
    }
}

/// The note in place of a part of a result that is no text. `kind` is the vendor's word for it.
pub(super) fn left_out(kind: &str) -> String {
    let what = match kind {
        "image" | "image_url" | "input_image" => "A picture",
        "audio" | "input_audio" => "A sound",
        "document" | "file" | "input_file" => "A file",
        _ => "A part",
    };
    format!("[{what} is left out: this model reads text only.]")
}

/// The name of the tool that an earlier call with this id has called.
pub(super) fn called(earlier: &[Turn], call_id: &str) -> Option<String> {
    let calls = earlier.iter().rev().filter_map(|turn| match turn {
        Turn::Answer { calls, .. } => Some(calls),
        _ => None,
    });
    let mut calls = calls.flatten();
    calls.find(|call| call.id == call_id).map(|call| call.name.clone())
}

/// The schema that a format asks for, with its field; none for text. `schema` is that of
/// `json_schema`.
pub(super) fn schema(
    kind: Option<&str>,
    schema: Option<Value>,
    param: &'static str,
) -> Result<Option<(Value, &'static str)>, ApiError> {
    match (kind, schema) {
        (None | Some("text"), _) => Ok(None),
        (Some("json_object"), _) => Ok(Some((json!({ "type": "object" }), param))),
        (Some("json_schema"), Some(schema @ (Value::Object(_) | Value::Bool(_)))) => {
            Ok(Some((schema, param)))
        }
        (Some("json_schema"), _) => {
            let message = format!("`{param}` needs a `schema`, a JSON Schema.");
            Err(ApiError::invalid(param, message))
        }
        (Some(_), _) => Err(ApiError::unsupported(param)),
    }
}
