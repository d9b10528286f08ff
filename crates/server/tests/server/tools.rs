//! Tools over the API, with a model that says what it is told to.

use cairn_tiny_models::{
    ANSWER, SHOWS_NOTHING, copy_scripted_model, copy_tiny_model, set_template,
};
use serde_json::{Value, json};

use crate::api::{ask, events, post};
use crate::running::{Running, start};

/// A template that refuses every conversation, and says what it was given.
pub const SHOWS_ALL: &str =
    "{{ raise_exception(messages | tojson ~ (tools | tojson if tools)) }}{# <tool_call> #}";

/// A server with a random model, whose form of calls is Hermes's.
async fn start_random() -> Running {
    let running = start(false).await;
    let folder = running.home.path().join("models/random");
    copy_tiny_model("llama/tiny-chat", &folder).unwrap();
    // It would never end reasoning.
    set_template(&folder, "Q{# tools <tool_call> #}").unwrap();
    running
}

/// A server with a model that gives this answer to the one prompt of [`SHOWS_NOTHING`].
pub async fn start_saying(answer: &str, template: &str) -> Running {
    start_continuing("Q", answer, template).await
}

/// A server with a model that gives this answer to this prompt.
async fn start_continuing(prompt: &str, answer: &str, template: &str) -> Running {
    let running = start(false).await;
    let folder = running.home.path().join("models/scripted");
    copy_scripted_model(&folder, prompt, answer, template).unwrap();
    running
}

const MALFORMED: &str =
    "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": oops}}\n</tool_call>";

fn schema() -> Value {
    json!({ "type": "object", "properties": { "at": { "type": "string" } } })
}

fn chat(more: Value) -> Value {
    let tool = |name: &str| {
        let function = json!({ "name": name, "parameters": schema() });
        json!({ "type": "function", "function": function })
    };
    let mut body = json!({
        "model": "scripted", "temperature": 0, "max_tokens": 400,
        "messages": [{ "role": "user", "content": "Where is it?" }],
        "tools": [tool("look"), tool("go")],
    });
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

const CHAT: &str = "/v1/chat/completions";

/// The message of a chat's chunks, joined as clients do, and its finish reason.
fn joined(events: &[(String, String)]) -> (Value, Value) {
    let (mut content, mut reasoning) = (String::new(), String::new());
    let mut calls: Vec<Value> = Vec::new();
    let mut finish = Value::Null;
    for (_, data) in events.iter().filter(|(_, data)| data != "[DONE]") {
        let chunk: Value = serde_json::from_str(data).unwrap();
        let choice = &chunk["choices"][0];
        if !choice["finish_reason"].is_null() {
            finish = choice["finish_reason"].clone();
        }
        let delta = &choice["delta"];
        content.push_str(delta["content"].as_str().unwrap_or_default());
        reasoning.push_str(delta["reasoning_content"].as_str().unwrap_or_default());
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            if index == calls.len() {
                let name = &call["function"]["name"];
                calls.push(json!({ "type": call["type"], "name": name, "arguments": "" }));
                assert!(call["id"].as_str().is_some_and(|id| id.len() == 9), "{call}");
            }
            let more = call["function"]["arguments"].as_str().unwrap_or_default();
            let arguments = format!("{}{more}", calls[index]["arguments"].as_str().unwrap());
            calls[index]["arguments"] = arguments.into();
        }
    }
    (json!({ "content": content, "reasoning": reasoning, "calls": calls }), finish)
}

/// As zod writes records and ids, and pydantic sets and unions with defaults.
#[tokio::test(flavor = "multi_thread")]
async fn schemas_of_validators_are_kept_to_as_far_as_they_can_be() {
    let running = start_random().await;
    let object = |of: Value| {
        json!({ "type": "object", "properties": { "a": of }, "required": ["a"],
            "additionalProperties": false })
    };
    let id = json!({ "type": "string", "format": "nanoid", "pattern": "^[a-c]{2}$" });
    let record = json!({ "type": "object", "propertyNames": { "type": "string" },
        "additionalProperties": { "type": "boolean" } });
    let set =
        json!({ "type": "array", "items": { "enum": [1, 2] }, "uniqueItems": true, "maxItems": 2 });
    let kind = |kind: &str| {
        json!({ "type": "object", "properties": { "kind": { "const": kind, "default": kind } },
            "additionalProperties": false })
    };
    let union = json!({ "oneOf": [kind("cat"), kind("dog")] });
    for of in [id, record, set, union] {
        let form = json!({ "type": "json_schema", "json_schema": {
            "name": "form", "strict": true, "schema": object(of.clone()),
        } });
        let body = json!({ "model": "random", "max_tokens": 40, "seed": 1, "response_format": form,
            "messages": [{ "role": "user", "content": "Go." }] });
        let answer = ask(&running, "/v1/chat/completions", &body).await;
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(text.trim_start().starts_with('{'), "{of}: {text}");
    }
    // A tool that need not be kept to strictly may say more than a grammar can.
    let tool = |is_strict: bool| {
        json!({ "type": "function", "function": { "name": "look", "strict": is_strict,
            "parameters": object(json!({ "type": "integer", "not": { "const": 3 } })) } })
    };
    let body = |is_strict: bool| {
        json!({ "model": "random", "max_tokens": 40, "seed": 1, "tools": [tool(is_strict)],
            "tool_choice": "required", "messages": [{ "role": "user", "content": "Go." }] })
    };
    let answer = ask(&running, "/v1/chat/completions", &body(false)).await;
    assert!(answer["choices"][0]["finish_reason"].is_string(), "{answer}");
    let asked = body(true).to_string();
    let (status, _, answer) = running.send(&post("/v1/chat/completions"), asked.as_bytes()).await;
    assert_eq!(status, 400, "{answer}");
    assert!(answer.contains("not"), "{answer}");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_has_reasoning_text_and_calls_whole_and_as_it_is_written() {
    let running = start_saying(ANSWER, SHOWS_NOTHING).await;
    let whole = ask(&running, CHAT, &chat(json!({}))).await;
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    let message = &choice["message"];
    assert_eq!(message["content"], "I look.");
    assert_eq!(message["reasoning_content"], "Where?");
    let calls = message["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0]["type"], "function");
    assert_eq!(calls[0]["function"], json!({ "name": "look", "arguments": "{\"at\": \"é\"}" }));
    assert_eq!(calls[1]["function"], json!({ "name": "go", "arguments": "{}" }));
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    let reasoning = whole["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64();
    assert!(reasoning.unwrap() >= "Where?".len() as u64, "{whole}");

    let streamed = events(&running, CHAT, &chat(json!({ "stream": true }))).await;
    let (message, finish) = joined(&streamed);
    assert_eq!(finish, "tool_calls");
    let call = |name: &str, arguments: &str| {
        let kind = "function";
        json!({ "type": kind, "name": name, "arguments": arguments })
    };
    let calls = [call("look", "{\"at\": \"é\"}"), call("go", "{}")];
    assert_eq!(message, json!({ "content": "I look.", "reasoning": "Where?", "calls": calls }));

    let one = ask(&running, CHAT, &chat(json!({ "parallel_tool_calls": false }))).await;
    assert_eq!(one["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 1);
    assert_eq!(one["choices"][0]["finish_reason"], "tool_calls");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tools_calls_are_text() {
    let running = start_saying(ANSWER, SHOWS_NOTHING).await;
    for body in [chat(json!({ "tools": null })), chat(json!({ "tool_choice": "none" }))] {
        let answer = ask(&running, CHAT, &body).await;
        let message = &answer["choices"][0]["message"];
        assert!(message["content"].as_str().unwrap().contains("<tool_call>"), "{message}");
        assert_eq!(message.get("tool_calls"), None);
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_call_is_no_text_and_ends_no_turn() {
    let running = start_saying(MALFORMED, SHOWS_NOTHING).await;
    let whole = ask(&running, CHAT, &chat(json!({}))).await;
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(choice["message"]["content"], Value::Null);
    let (message, finish) = joined(&events(&running, CHAT, &chat(json!({ "stream": true }))).await);
    assert_eq!((&finish, &message["content"]), (&json!("stop"), &json!("")));
    let arguments = &choice["message"]["tool_calls"][0]["function"]["arguments"];
    assert_eq!(message["calls"][0]["arguments"], *arguments);
    assert!(serde_json::from_str::<Value>(arguments.as_str().unwrap()).is_err());
    // Programs send back what they got.
    let user = json!({ "role": "user", "content": "Go on." });
    let echo = json!([choice["message"], { "role": "tool", "tool_call_id": "1", "content": "?" }]);
    let mut messages = vec![user.clone()];
    messages.extend(echo.as_array().unwrap().iter().cloned());
    ask(&running, CHAT, &chat(json!({ "messages": messages }))).await;
    let call = json!({ "type": "function_call", "call_id": "1", "name": "look",
        "arguments": arguments });
    let body = json!({ "model": "scripted", "input": [user, call] });
    ask(&running, "/v1/responses", &body).await;
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn anthropics_form_has_thinking_and_tool_use() {
    let running = start_saying(ANSWER, SHOWS_NOTHING).await;
    let mut body = json!({
        "model": "scripted", "temperature": 0, "max_tokens": 400,
        "messages": [{ "role": "user", "content": "Where is it?" }],
        "tools": [
            { "name": "look", "input_schema": schema() },
            { "name": "go", "input_schema": {} },
        ],
    });
    let whole = ask(&running, "/v1/messages", &body).await;
    assert_eq!(whole["stop_reason"], "tool_use");
    let mut blocks = whole["content"].as_array().unwrap().clone();
    for block in &mut blocks {
        block.as_object_mut().unwrap().remove("id");
    }
    let expected = json!([
        { "type": "thinking", "thinking": "Where?", "signature": "" },
        { "type": "text", "text": "I look." },
        { "type": "tool_use", "name": "look", "input": { "at": "é" } },
        { "type": "tool_use", "name": "go", "input": {} },
    ]);
    assert_eq!(json!(blocks), expected);

    body["stream"] = true.into();
    let mut streamed: Vec<Value> = Vec::new();
    let mut json_text = String::new();
    for (name, data) in events(&running, "/v1/messages", &body).await {
        let data: Value = serde_json::from_str(&data).unwrap();
        assert_eq!(data["type"], *name);
        let delta = &data["delta"];
        match name.as_str() {
            "content_block_start" => {
                assert_eq!(data["index"], streamed.len());
                let mut block = data["content_block"].clone();
                block.as_object_mut().unwrap().remove("id");
                streamed.push(block);
            }
            "content_block_delta" => {
                assert_eq!(data["index"], streamed.len() - 1);
                let block = streamed.last_mut().unwrap();
                for field in ["text", "thinking"] {
                    if let Some(more) = delta[field].as_str() {
                        let all = format!("{}{more}", block[field].as_str().unwrap());
                        block[field] = all.into();
                    }
                }
                json_text.push_str(delta["partial_json"].as_str().unwrap_or_default());
            }
            "content_block_stop" => {
                assert_eq!(data["index"], streamed.len() - 1);
                if !json_text.is_empty() {
                    let input: Value = serde_json::from_str(&json_text).unwrap();
                    streamed.last_mut().unwrap()["input"] = input;
                    json_text.clear();
                }
            }
            "message_delta" => assert_eq!(delta["stop_reason"], "tool_use"),
            _ => {}
        }
    }
    assert_eq!(json!(streamed), expected);
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_has_reasoning_messages_and_function_calls() {
    let running = start_saying(ANSWER, SHOWS_NOTHING).await;
    let mut body = json!({
        "model": "scripted", "temperature": 0, "max_output_tokens": 400, "input": "Where is it?",
        "tools": [{ "type": "function", "name": "look", "parameters": schema() },
            { "type": "function", "name": "go" }],
    });
    let without_ids = |output: &Value| {
        let mut output = output.as_array().unwrap().clone();
        for item in &mut output {
            for field in ["id", "call_id"] {
                item.as_object_mut().unwrap().remove(field);
            }
        }
        output
    };
    let whole = ask(&running, "/v1/responses", &body).await;
    assert_eq!(whole["status"], "completed");
    let output = without_ids(&whole["output"]);
    let kinds: Vec<&str> = output.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call", "function_call"]);
    assert_eq!(output[0]["content"][0]["text"], "Where?");
    assert_eq!(output[1]["content"][0]["text"], "I look.");
    assert_eq!(
        (&output[2]["name"], &output[2]["arguments"]),
        (&json!("look"), &json!("{\"at\": \"é\"}"))
    );

    body["stream"] = true.into();
    let (mut done, mut arguments, mut last) = (Vec::new(), String::new(), Value::Null);
    for (number, (name, data)) in events(&running, "/v1/responses", &body).await.iter().enumerate()
    {
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(number)));
        match name.as_str() {
            "response.output_item.added" => assert_eq!(data["output_index"], done.len()),
            "response.output_item.done" => {
                assert_eq!(data["output_index"], done.len());
                done.push(data["item"].clone());
            }
            "response.function_call_arguments.delta" => {
                arguments.push_str(data["delta"].as_str().unwrap());
            }
            _ => last = data["response"].clone(),
        }
    }
    assert_eq!(without_ids(&json!(done)), output);
    assert_eq!(without_ids(&last["output"]), output);
    assert_eq!(arguments, "{\"at\": \"é\"}{}");
    running.end().await;
}

/// What the template was given, as JSON text.
pub async fn given(running: &Running, path: &str, body: Value) -> String {
    let (status, _, answer) = running.send(&post(path), body.to_string().as_bytes()).await;
    assert_eq!(status, 400, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    answer["error"]["message"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_and_results_of_every_form_are_the_same_to_the_template() {
    let running = start_saying("", SHOWS_ALL).await;
    let call = json!({ "id": "call_1", "type": "function", "function": {
        "name": "look", "arguments": "{\"at\":\"é\"}",
    } });
    let chat = json!({
        "model": "scripted",
        "messages": [
            { "role": "user", "content": "Where?" },
            { "role": "assistant", "content": null, "tool_calls": [call] },
            { "role": "tool", "tool_call_id": "call_1", "content": "There." },
        ],
        "tools": [{ "type": "function", "function": {
            "name": "look", "description": "Looks.", "parameters": schema(),
        } }],
    });
    let anthropic = json!({
        "model": "scripted", "max_tokens": 10,
        "messages": [
            { "role": "user", "content": "Where?" },
            { "role": "assistant", "content": [
                { "type": "tool_use", "id": "call_1", "name": "look", "input": { "at": "é" } },
            ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "call_1", "content": [
                    { "type": "text", "text": "There." },
                ] },
            ] },
        ],
        "tools": [{ "name": "look", "description": "Looks.", "input_schema": schema() }],
    });
    let responses = json!({
        "model": "scripted",
        "input": [
            { "role": "user", "content": "Where?" },
            { "type": "function_call", "call_id": "call_1", "name": "look",
                "arguments": "{\"at\":\"é\"}" },
            { "type": "function_call_output", "call_id": "call_1", "output": "There." },
        ],
        "tools": [{
            "type": "function", "name": "look", "description": "Looks.", "parameters": schema(),
        }],
    });
    let of_chat = given(&running, CHAT, chat).await;
    for part in [
        r#"{"role": "user", "content": "Where?"}"#,
        r#""tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "look""#,
        r#""arguments": {"at": "é"}}}]"#,
        r#"{"role": "tool", "content": "There.", "tool_call_id": "call_1", "name": "look"}"#,
        r#""function": {"name": "look", "description": "Looks.", "parameters""#,
    ] {
        assert!(of_chat.contains(part), "{part} is not in {of_chat}");
    }
    assert_eq!(given(&running, "/v1/messages", anthropic).await, of_chat);
    assert_eq!(given(&running, "/v1/responses", responses).await, of_chat);
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_model_thought_earlier_reaches_the_template_in_every_form() {
    let running = start_saying("", SHOWS_ALL).await;
    let asked = json!({ "role": "user", "content": "Where?" });
    let again = json!({ "role": "user", "content": "Sure?" });
    let answer = json!({ "role": "assistant", "content": "There.", "reasoning_content": "Hm." });
    let chat = json!({ "model": "scripted", "messages": [asked, answer, again] });
    let answer = json!({ "role": "assistant", "content": [
        { "type": "thinking", "thinking": "Hm.", "signature": "" },
        { "type": "text", "text": "There." },
    ] });
    let messages =
        json!({ "model": "scripted", "max_tokens": 9, "messages": [asked, answer, again] });
    let reasoning = json!({ "type": "reasoning", "id": "rs_1", "summary": [], "content": [
        { "type": "reasoning_text", "text": "Hm." },
    ] });
    let answer = json!({ "type": "message", "role": "assistant", "content": [
        { "type": "output_text", "text": "There." },
    ] });
    let responses = json!({ "model": "scripted", "input": [asked, reasoning, answer, again] });
    let of_chat = given(&running, CHAT, chat).await;
    let answer = r#"{"role": "assistant", "content": "There.", "reasoning_content": "Hm."}"#;
    assert!(of_chat.contains(answer), "{of_chat}");
    assert_eq!(given(&running, "/v1/messages", messages).await, of_chat);
    assert_eq!(given(&running, "/v1/responses", responses).await, of_chat);
    running.end().await;
}

/// A template whose every message ends in a mark.
const MARKS_ENDS: &str = "{% for message in messages %}{{ message.content }}~{% endfor %}\
    {% if add_generation_prompt %}>{% endif %}{# tools <tool_call> #}";

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_begun_goes_on_behind_its_text() {
    let running = start_continuing("Q~I lo", "ok.", MARKS_ENDS).await;
    let messages = |begun: Value| {
        let begun = json!({ "role": "assistant", "content": begun });
        json!({ "model": "scripted", "max_tokens": 9, "temperature": 0,
            "messages": [{ "role": "user", "content": "Q" }, begun] })
    };
    let tools = json!([{ "name": "look", "input_schema": schema() }]);
    let blocks = json!([{ "type": "text", "text": "I lo" }]);
    for mut body in [messages("I lo".into()), messages(blocks)] {
        for tools in [json!([]), tools.clone()] {
            body["tools"] = tools;
            let answer = ask(&running, "/v1/messages", &body).await;
            assert_eq!(answer["content"], json!([{ "type": "text", "text": "ok." }]), "{body}");
            assert_eq!(answer["stop_reason"], "end_turn");
        }
    }
    let refused = async |body: &Value, named: &str| {
        let message = given(&running, "/v1/messages", body.clone()).await;
        assert!(message.contains(named), "{body}: {message}");
    };
    refused(&messages("I lo ".into()), "ends in a blank").await;
    refused(&messages("".into()), "without text").await;
    let call = json!([{ "type": "tool_use", "id": "1", "name": "look", "input": {} }]);
    refused(&messages(call), "with calls").await;
    let mut required = messages("I lo".into());
    required["tools"] = tools;
    required["tool_choice"] = json!({ "type": "any" });
    refused(&required, "form is prescribed").await;
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_repeats_what_its_request_asked_for() {
    let running = start_saying("Yes.", SHOWS_NOTHING).await;
    let tool = json!({ "type": "function", "name": "look", "description": "Looks.",
        "parameters": schema(), "strict": false });
    let format = json!({ "type": "text" });
    let mut body = json!({
        "model": "scripted", "input": "Where?", "instructions": "Be brief.", "temperature": 0.5,
        "top_p": 0.25, "max_output_tokens": 50, "metadata": { "a": "b" }, "tools": [tool],
        "tool_choice": "none", "parallel_tool_calls": false, "text": { "format": format },
    });
    let repeats = |response: &Value| {
        for field in [
            "instructions",
            "temperature",
            "top_p",
            "max_output_tokens",
            "metadata",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "text",
        ] {
            assert_eq!(response[field], body[field], "{field}");
        }
    };
    repeats(&ask(&running, "/v1/responses", &body).await);
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    for (_, data) in events(&running, "/v1/responses", &streamed).await {
        let data: Value = serde_json::from_str(&data).unwrap();
        if data["response"].is_object() {
            repeats(&data["response"]);
        }
    }
    body = json!({ "model": "scripted", "input": "Where?" });
    let response = ask(&running, "/v1/responses", &body).await;
    assert_eq!((&response["tools"], &response["tool_choice"]), (&json!([]), &json!("auto")));
    assert_eq!(response["text"]["format"]["type"], "text");
    running.end().await;
}

/// A schema whose answers are short.
fn short_schema() -> Value {
    json!({
        "type": "object", "required": ["color"], "additionalProperties": false,
        "properties": { "color": { "enum": ["red", "green"] } },
    })
}

/// What turns blanks away, of which a random model writes many.
fn few_blanks() -> Value {
    json!({ "32": -100, "10": -100, "13": -100, "9": -100 })
}

fn is_color(text: &str) -> bool {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    ["red", "green"].into_iter().any(|color| value == json!({ "color": color }))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_is_kept_to_in_every_vendors_form() {
    let running = start_random().await;
    let schema = short_schema();
    let user = json!([{ "role": "user", "content": "Which?" }]);
    let bias = few_blanks();
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    let mut body = json!({ "model": "random", "messages": user, "max_tokens": 200, "seed": 1,
        "logit_bias": bias, "response_format": format });
    let whole = ask(&running, CHAT, &body).await;
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    assert!(is_color(whole["choices"][0]["message"]["content"].as_str().unwrap()));
    body["stream"] = true.into();
    let (message, _) = joined(&events(&running, CHAT, &body).await);
    assert!(is_color(message["content"].as_str().unwrap()));

    let body = json!({ "model": "random", "input": "Which?", "logit_bias": bias,
        "text": { "format": { "type": "json_schema", "name": "x", "schema": schema } } });
    let response = ask(&running, "/v1/responses", &body).await;
    assert!(is_color(response["output"][0]["content"][0]["text"].as_str().unwrap()));

    let body = json!({ "model": "random", "messages": user, "max_tokens": 200, "logit_bias": bias,
        "output_config": { "format": { "type": "json_schema", "schema": schema } } });
    let message = ask(&running, "/v1/messages", &body).await;
    assert!(is_color(message["content"][0]["text"].as_str().unwrap()));
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_required_tool_is_called_with_arguments_of_its_schema() {
    let running = start_random().await;
    let tool = |name: &str| {
        let function = json!({ "name": name, "parameters": short_schema(), "strict": true });
        json!({ "type": "function", "function": function })
    };
    let named = json!({ "type": "function", "function": { "name": "look" } });
    for choice in [json!("required"), named.clone()] {
        let body = json!({ "model": "random", "max_tokens": 300, "seed": 2,
            "messages": [{ "role": "user", "content": "Which?" }], "logit_bias": few_blanks(),
            "tools": [tool("look"), tool("go")], "tool_choice": choice,
            "parallel_tool_calls": false });
        let answer = ask(&running, CHAT, &body).await;
        let choice_made = &answer["choices"][0];
        assert_eq!(choice_made["finish_reason"], "tool_calls", "{answer}");
        let function = &choice_made["message"]["tool_calls"][0]["function"];
        assert!(is_color(function["arguments"].as_str().unwrap()));
        if choice == named {
            assert_eq!(function["name"], "look");
        }
    }
    let body = json!({ "model": "random", "max_tokens": 300,
        "messages": [{ "role": "user", "content": "Which?" }], "logit_bias": few_blanks(),
        "tools": [{ "name": "look", "input_schema": short_schema() }],
        "tool_choice": { "type": "any", "disable_parallel_tool_use": true } });
    let message = ask(&running, "/v1/messages", &body).await;
    assert_eq!(message["stop_reason"], "tool_use", "{message}");
    assert!(is_color(&message["content"][0]["input"].to_string()));
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_whose_values_never_end_is_refused_before_the_first_event() {
    let running = start_random().await;
    let endless = json!({ "type": "object", "required": ["next"],
        "properties": { "next": { "$ref": "#" } } });
    let user = json!([{ "role": "user", "content": "Which?" }]);
    let format =
        json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": endless } });
    let tool = json!({ "type": "function", "function": { "name": "look", "parameters": endless } });
    for (more, param, named) in [
        (json!({ "response_format": format }), "response_format", "its schema"),
        (json!({ "tools": [tool], "tool_choice": "required" }), "tools", "the tool look"),
    ] {
        for streams in [false, true] {
            let mut body = json!({ "model": "random", "messages": user, "stream": streams });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let (status, _, answer) = running.send(&post(CHAT), body.to_string().as_bytes()).await;
            assert_eq!(status, 400, "{answer}");
            let error = &serde_json::from_str::<Value>(&answer).unwrap()["error"];
            assert_eq!(error["type"], "invalid_request_error");
            assert_eq!(error["param"], param);
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(named), "{message}");
            assert!(message.contains("`#` always contains another `#`"), "{message}");
        }
    }
    running.end().await;
}

/// Each byte of an answer is a token of its own.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_within_characters_have_bytes() {
    let answer = "a 👩é";
    let running = start_saying(answer, SHOWS_NOTHING).await;
    let mut asked = json!({
        "model": "scripted", "temperature": 0, "max_tokens": 400, "logprobs": true,
        "top_logprobs": 2, "messages": [{ "role": "user", "content": "Where is it?" }],
    });
    let whole = ask(&running, CHAT, &asked).await;
    let tokens = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let texts = ["a", " ", r"\xf0", r"\x9f", r"\x91", r"\xa9", r"\xc3", r"\xa9"];
    assert_eq!(tokens.len(), texts.len());
    for ((token, byte), text) in tokens.iter().zip(answer.bytes()).zip(texts) {
        assert_eq!((&token["token"], &token["bytes"]), (&json!(text), &json!([byte])));
        let top = &token["top_logprobs"][0];
        assert_eq!((&top["token"], &top["bytes"]), (&token["token"], &token["bytes"]));
    }
    asked["stream"] = true.into();
    let mut streamed = Vec::new();
    for (_, data) in events(&running, CHAT, &asked).await {
        let chunk: Value = serde_json::from_str(&data).unwrap_or_default();
        let content = chunk["choices"][0]["logprobs"]["content"].as_array().cloned();
        streamed.extend(content.unwrap_or_default());
    }
    assert_eq!(&streamed, tokens);

    let asked = json!({
        "model": "scripted", "temperature": 0, "max_tokens": 400, "logprobs": 1, "prompt": "Q",
    });
    let whole = ask(&running, "/v1/completions", &asked).await;
    let logprobs = &whole["choices"][0]["logprobs"];
    assert_eq!(
        (&logprobs["tokens"][1], &logprobs["tokens"][2]),
        (&json!(" "), &json!(r"bytes:\xf0"))
    );
    assert!(logprobs["top_logprobs"][2][r"bytes:\xf0"].is_number(), "{logprobs}");
    running.end().await;
}
