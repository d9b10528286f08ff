//! The API of other programs, with a tiny model.

use cairn_app::wire::{Command, EngineState, Reply, SettingTarget};
use cairn_tiny_models::copy_tiny_model;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::running::{Running, TIMEOUT, start};

pub const MODEL: &str = "tiny-chat";
/// More tokens than any machine writes during a test.
pub const ENDLESS: u32 = 1_000_000;

/// A server whose data folder has these models, and none loaded.
pub async fn start_with(models: &[&str]) -> Running {
    let running = start(false).await;
    add_models(&running.home, models);
    running
}

/// Adds models to a data folder. Their contexts are longer than any answer.
pub fn add_models(home: &TempDir, models: &[&str]) {
    for name in models {
        let folder = home.path().join("models").join(name);
        copy_tiny_model("llama/tiny-chat", &folder).unwrap();
        let file = folder.join("config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        config["max_position_embeddings"] = (2 * ENDLESS).into();
        std::fs::write(&file, config.to_string()).unwrap();
    }
}

/// The head of a request with a JSON body. HTTP/1.0, so that bodies come as they are.
pub fn post(path: &str) -> String {
    format!(
        "POST {path} HTTP/1.0\r\nhost: HOST\r\nauthorization: Bearer TOKEN\r\n\
         content-type: application/json"
    )
}

pub async fn ask(running: &Running, path: &str, body: &Value) -> Value {
    let (status, _, answer) = running.send(&post(path), body.to_string().as_bytes()).await;
    assert_eq!(status, 200, "{answer}");
    serde_json::from_str(&answer).unwrap()
}

/// The data of a stream's events, with their names.
pub async fn events(running: &Running, path: &str, body: &Value) -> Vec<(String, String)> {
    let (status, headers, answer) = running.send(&post(path), body.to_string().as_bytes()).await;
    assert_eq!(status, 200, "{answer}");
    assert!(headers.contains("content-type: text/event-stream"), "{headers}");
    let blocks = answer.split("\n\n").filter(|block| !block.is_empty());
    blocks
        .filter(|block| !block.starts_with(':'))
        .map(|block| {
            let field = |name: &str| {
                let mut lines = block.lines().filter_map(|line| line.strip_prefix(name));
                lines.next().unwrap_or_default().trim().to_owned()
            };
            (field("event:"), field("data:"))
        })
        .collect()
}

pub fn chat(more: Value) -> Value {
    let mut body = json!({
        "model": MODEL, "temperature": 0, "max_tokens": 12,
        "messages": [
            { "role": "developer", "content": "You are brief." },
            { "role": "user", "content": [{ "type": "text", "text": "What is a cairn?" }] },
        ],
    });
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_is_answered_the_same_whole_and_as_it_is_written() {
    let running = start_with(&[MODEL]).await;
    let path = "/v1/chat/completions";
    let whole = ask(&running, path, &chat(json!({}))).await;
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(whole["model"], MODEL);
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["usage"]["completion_tokens"], 12);
    assert_eq!(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(!text.is_empty());

    let streamed = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let mut events = events(&running, path, &chat(streamed)).await;
    assert_eq!(events.pop().unwrap().1, "[DONE]");
    let chunks: Vec<Value> =
        events.iter().map(|(_, data)| serde_json::from_str(data).unwrap()).collect();
    let content =
        |chunk: &Value| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned);
    assert_eq!(chunks.iter().filter_map(content).collect::<String>(), text);
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let [.., last, usage] = chunks.as_slice() else { panic!("{chunks:?}") };
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    // The same question is in the prompt cache now, but for its last token.
    let (prompt, cached) = (
        usage["usage"]["prompt_tokens"].as_u64().unwrap(),
        usage["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap(),
    );
    assert!(cached > 0 && cached < prompt, "{usage}");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_come_with_their_log_probabilities() {
    let running = start_with(&[MODEL]).await;
    let asked = chat(json!({ "logprobs": true, "top_logprobs": 3, "max_completion_tokens": 4 }));
    let answer = ask(&running, "/v1/chat/completions", &asked).await;
    let choice = &answer["choices"][0];
    let tokens = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(tokens.len(), 4);
    for token in tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        // Greedily the likeliest one is chosen.
        assert_eq!((&top[0]["token"], &top[0]["logprob"]), (&token["token"], &token["logprob"]));
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
        assert_eq!(token["bytes"], json!(token["token"].as_str().unwrap().as_bytes()));
    }
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn text_and_tokens_are_continued() {
    let running = start_with(&[MODEL]).await;
    let body = json!({ "prompt": "A cairn is", "max_tokens": 5, "temperature": 0, "logprobs": 2 });
    let answer = ask(&running, "/v1/completions", &body).await;
    let choice = &answer["choices"][0];
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap().len(), 5);
    let text = choice["text"].as_str().unwrap();

    let ids: Vec<u32> = "A cairn is".bytes().map(u32::from).collect();
    let body = json!({ "prompt": ids, "max_tokens": 5, "temperature": 0, "stream": true });
    let mut events = events(&running, "/v1/completions", &body).await;
    assert_eq!(events.pop().unwrap().1, "[DONE]");
    let text_of = |data: &String| -> String {
        let chunk: Value = serde_json::from_str(data).unwrap();
        chunk["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let streamed: String = events.iter().map(|(_, data)| text_of(data)).collect();
    assert_eq!(streamed, text);
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn anthropics_clients_are_answered_in_their_form() {
    let running = start_with(&[MODEL]).await;
    let mut body = json!({
        "model": MODEL, "max_tokens": 9, "temperature": 0, "system": "You are brief.",
        "messages": [{ "role": "user", "content": "What is a cairn?" }],
    });
    let whole = ask(&running, "/v1/messages", &body).await;
    assert_eq!((&whole["type"], &whole["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!(whole["stop_reason"], "max_tokens");
    assert_eq!(whole["usage"]["output_tokens"], 9);
    let text = whole["content"][0]["text"].as_str().unwrap();
    // Counting takes the same body, and needs no length of an answer.
    let counted = ask(&running, "/v1/messages/count_tokens", &body).await;
    let read = ["input_tokens", "cache_read_input_tokens"].map(|of| whole["usage"][of].as_u64());
    assert_eq!(counted["input_tokens"].as_u64(), read.into_iter().sum());
    let body_without = |name: &str| {
        let mut body = body.clone();
        body.as_object_mut().unwrap().remove(name);
        body
    };
    let unbounded = body_without("max_tokens");
    assert_eq!(ask(&running, "/v1/messages/count_tokens", &unbounded).await, counted);
    let refused = running.send(&post("/v1/messages"), unbounded.to_string().as_bytes()).await;
    assert_eq!(refused.0, 400);
    assert!(refused.2.contains("`max_tokens` is missing"), "{}", refused.2);

    body["stream"] = true.into();
    let events = events(&running, "/v1/messages", &body).await;
    let names: Vec<&str> =
        events.iter().map(|(name, _)| name.as_str()).filter(|name| *name != "ping").collect();
    assert_eq!(names[..2], ["message_start", "content_block_start"]);
    let end = ["content_block_stop", "message_delta", "message_stop"];
    assert_eq!(names[names.len() - 3..], end);
    let data = |data: &String| serde_json::from_str::<Value>(data).unwrap();
    let streamed: String = events
        .iter()
        .filter(|(name, _)| name == "content_block_delta")
        .map(|(_, text)| data(text)["delta"]["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(streamed, text);
    for (name, text) in &events {
        assert_eq!(data(text)["type"], **name);
    }
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_is_the_same_whole_and_as_it_is_written() {
    let running = start_with(&[MODEL]).await;
    let mut body = json!({
        "model": MODEL, "instructions": "You are brief.", "max_output_tokens": 9, "temperature": 0,
        "input": [{ "role": "user", "content": [{ "type": "input_text", "text": "A cairn?" }] }],
    });
    let whole = ask(&running, "/v1/responses", &body).await;
    assert_eq!((&whole["object"], &whole["status"]), (&json!("response"), &json!("incomplete")));
    assert_eq!(whole["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(whole["usage"]["output_tokens"], 9);

    body["stream"] = true.into();
    let events: Vec<Value> = events(&running, "/v1/responses", &body)
        .await
        .iter()
        .map(|(name, data)| {
            let data: Value = serde_json::from_str(data).unwrap();
            assert_eq!(data["type"], **name);
            data
        })
        .collect();
    let numbers = events.iter().map(|event| event["sequence_number"].as_u64().unwrap());
    assert!(numbers.eq(0..events.len() as u64));
    let is_delta = |event: &&Value| event["type"] == "response.output_text.delta";
    let text: String =
        events.iter().filter(is_delta).map(|event| event["delta"].as_str().unwrap()).collect();
    let last = &events.last().unwrap()["response"];
    assert_eq!(last["output"][0]["content"], whole["output"][0]["content"]);
    assert_eq!(last["output"][0]["content"][0]["text"], *text);
    assert_eq!(last["status"], "incomplete");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_done_is_refused_by_its_name() {
    let running = start_with(&[MODEL]).await;
    let check = async |path: &str, body: Value, status: u16, named: &str| {
        let (found, _, answer) = running.send(&post(path), body.to_string().as_bytes()).await;
        assert_eq!(found, status, "{body}: {answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(named), "{body}: {message}");
        answer["error"].clone()
    };
    let path = "/v1/chat/completions";
    let tool = |name: &str| json!({ "type": "function", "function": { "name": name } });
    let tools = |names: &[&str]| {
        let tools: Vec<Value> = names.iter().map(|name| tool(name)).collect();
        chat(json!({ "tools": tools }))
    };
    check(path, tools(&["look", "look"]), 400, "`tools[1]`").await;
    check(path, tools(&["look at"]), 400, "`tools[0]`").await;
    let custom = json!([{ "type": "custom", "custom": { "name": "x", "format": null } }]);
    check(path, chat(json!({ "tools": custom })), 400, "tools[0]").await;
    check(path, chat(json!({ "n": 2 })), 400, "`n`").await;
    let format = |schema: Value| {
        let schema = json!({ "name": "x", "schema": schema });
        chat(json!({ "response_format": { "type": "json_schema", "json_schema": schema } }))
    };
    let some_null = json!({ "type": "array", "contains": { "type": "null" } });
    let error = check(path, format(some_null.clone()), 400, "contains").await;
    assert_eq!(error["param"], "response_format");
    let mut streamed = format(some_null.clone());
    streamed["stream"] = true.into();
    check(path, streamed, 400, "contains").await;
    check(path, format(json!(5)), 400, "`response_format`").await;
    let format = json!({ "format": { "type": "json_schema", "name": "x", "schema": some_null } });
    check("/v1/responses", json!({ "input": "x", "text": format }), 400, "contains").await;
    let body = json!({ "max_tokens": 1, "messages": [{ "role": "user", "content": "x" }],
        "output_config": { "format": { "type": "json_schema", "schema": some_null } } });
    check("/v1/messages", body, 400, "contains").await;
    check(path, chat(json!({ "tool_choice": "required" })), 400, "`tool_choice`").await;
    let error = check(path, chat(json!({ "temperature": -1 })), 400, "temperature").await;
    assert_eq!(error["param"], "temperature");
    check(path, chat(json!({ "temperature": "hot" })), 400, "`temperature`").await;
    check(path, chat(json!({ "top_logprobs": 2 })), 400, "logprobs").await;
    check(path, chat(json!({ "stop": [""] })), 400, "`stop`").await;
    check(path, chat(json!({ "logit_bias": { "x": 1 } })), 400, "logit_bias").await;
    check(path, chat(json!({ "messages": [] })), 400, "`messages`").await;
    check(path, json!({ "model": MODEL }), 400, "messages").await;
    let image = json!([{ "role": "user", "content": [
        { "type": "image_url", "image_url": { "url": "data:image/png;base64," } },
    ] }]);
    check(path, chat(json!({ "messages": image })), 400, "`messages[0].content`").await;
    let error = check(path, chat(json!({ "model": "nobody/none" })), 404, "nobody/none").await;
    assert_eq!(error["code"], "model_not_found");
    // A prompt whose length is known before a stream sends its first sign of life.
    let short = running.home.path().join("models/short-context");
    copy_tiny_model("llama/tiny-chat", &short).unwrap();
    let question = json!([{ "role": "user", "content": "x".repeat(10_000) }]);
    let long = chat(json!({ "model": "short-context", "messages": question }));
    // In the words that each vendor's clients look for.
    let error = check(path, long.clone(), 400, "maximum context length is 4096 tokens").await;
    assert_eq!(error["code"], "context_length_exceeded");
    let (_, error) = refused(&running, "/v1/messages", &long).await;
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with("prompt is too long: "), "{message}");
    assert!(message.ends_with(" tokens > 4096 maximum"), "{message}");
    // As long as nothing was sent, a stream's status says it too.
    let mut streamed = long;
    streamed["stream"] = true.into();
    check(path, streamed, 400, "context").await;
    // So does a token that only the loaded model can tell to be none of its own.
    let bias = json!({ "logit_bias": { "999999": 1 }, "stream": true, "max_tokens": 1 });
    check(path, chat(bias.clone()), 400, "999999").await;
    for (path, name, value) in [
        ("/v1/completions", "prompt", json!("x".repeat(1_000))),
        ("/v1/responses", "input", json!("x".repeat(1_000))),
        ("/v1/messages", "messages", json!([{ "role": "user", "content": "x".repeat(1_000) }])),
    ] {
        let mut biased = bias.clone();
        biased["model"] = MODEL.into();
        biased[name] = value;
        check(path, biased, 400, "999999").await;
    }
    check(path, chat(json!({ "model": 5 })), 400, "`model`").await;
    check("/v1/completions", json!({ "prompt": vec!["a"; 65] }), 400, "`prompt`").await;
    let several = json!({ "prompt": ["a", "b"], "stream": true });
    check("/v1/completions", several, 400, "`stream`").await;
    let earlier = json!({ "input": "x", "previous_response_id": "resp_1" });
    check("/v1/responses", earlier, 400, "`previous_response_id`").await;
    let call = json!({ "input": [{ "type": "function_call", "name": "look" }] });
    check("/v1/responses", call, 400, "`input[0]`").await;
    let item = json!({ "input": [{ "type": "item_reference", "id": "msg_1" }] });
    check("/v1/responses", item, 400, "`input[0]`").await;
    for field in ["guided_choice", "structured_outputs", "grammar", "best_of", "adapters"] {
        check(path, chat(json!({ field: ["yes", "no"] })), 400, &format!("`{field}`")).await;
    }
    let call = json!({ "id": "1", "type": "function", "function": {
        "name": "look", "arguments": "[]",
    } });
    let made = json!([{ "role": "assistant", "tool_calls": [call] }]);
    let place = "`messages[0].tool_calls[0].function.arguments`";
    check(path, chat(json!({ "messages": made })), 400, place).await;
    let image = json!({ "role": "user", "content": [{ "type": "input_image" }] });
    check("/v1/responses", json!({ "input": [image] }), 400, "`input[0].content`").await;
    check("/v1/audio/speech", json!({}), 404, "/v1/audio/speech").await;
    // Unknown fields and nulls are ignored.
    let answer = ask(&running, path, &chat(json!({ "whatever": 1, "tools": null, "n": 1 }))).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    // Anthropic's clients read another form.
    let (status, _, answer) = running.send(&post("/v1/messages"), b"{}").await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((status, &answer["type"]), (400, &json!("error")));
    assert_eq!(answer["error"]["type"], "invalid_request_error");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_ends_as_late_as_it_is_asked_to() {
    let running = start_with(&[MODEL]).await;
    // The model would end each answer at once.
    let ends = json!({ "258": 1000 });
    let (path, ask_for) = ("/v1/chat/completions", |mut more: Value| {
        more["logit_bias"] = ends.clone();
        chat(more)
    });
    let mut lengths = Vec::new();
    for more in [json!({}), json!({ "min_tokens": 0 }), json!({ "min_tokens": 5 })] {
        let answer = ask(&running, path, &ask_for(more)).await;
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
        lengths.push(answer["usage"]["completion_tokens"].as_u64().unwrap());
    }
    assert_eq!(lengths[1..], [lengths[0], lengths[0] + 5]);
    let answer = ask(&running, path, &ask_for(json!({ "ignore_eos": true }))).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "length", "{answer}");
    assert_eq!(answer["usage"]["completion_tokens"], 12);
    let form = json!({ "type": "json_schema", "json_schema": {
        "name": "form", "schema": { "type": "object" },
    } });
    for (more, param) in [
        (json!({ "min_tokens": 13 }), "min_tokens"),
        (json!({ "min_tokens": -1 }), "min_tokens"),
        (json!({ "min_tokens": 1, "response_format": form }), "min_tokens"),
        (json!({ "ignore_eos": true, "response_format": form }), "ignore_eos"),
        (json!({ "ignore_eos": "yes" }), "ignore_eos"),
    ] {
        let (status, error) = refused(&running, path, &chat(more)).await;
        assert_eq!((status, &error["param"]), (400, &json!(param)), "{error}");
    }
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_are_read_as_other_servers_read_them() {
    let running = start(false).await;
    // A context that ends soon.
    copy_tiny_model("llama/tiny-chat", &running.home.path().join("models").join(MODEL)).unwrap();
    let path = "/v1/chat/completions";
    let answer = ask(&running, path, &chat(json!({ "max_tokens": 8.0, "seed": 1.0 }))).await;
    assert_eq!(answer["usage"]["completion_tokens"], 8, "{answer}");
    let answer = ask(&running, path, &chat(json!({ "max_tokens": -1, "ignore_eos": true }))).await;
    assert!(answer["usage"]["completion_tokens"].as_u64() > Some(3_000), "{}", answer["usage"]);
    for max_tokens in [json!(8.5), json!(-2), json!(1e300)] {
        let (status, error) =
            refused(&running, path, &chat(json!({ "max_tokens": max_tokens }))).await;
        assert_eq!((status, &error["param"]), (400, &json!("max_tokens")), "{error}");
    }
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_prompts_are_continued_as_each_alone() {
    let running = start_with(&[MODEL]).await;
    let path = "/v1/completions";
    let body = |prompt: Value| json!({ "prompt": prompt, "max_tokens": 9, "temperature": 0 });
    for prompts in [json!(["A cairn", "is", "a heap of stones"]), json!([[65, 66], [67]])] {
        let whole = ask(&running, path, &body(prompts.clone())).await;
        let (mut num_read, mut num_written) = (0, 0);
        for (index, prompt) in prompts.as_array().unwrap().iter().enumerate() {
            let alone = ask(&running, path, &body(prompt.clone())).await;
            let choice = &whole["choices"][index];
            assert_eq!(choice["index"], index);
            for field in ["text", "finish_reason"] {
                assert_eq!(choice[field], alone["choices"][0][field], "{prompt}");
            }
            num_read += alone["usage"]["prompt_tokens"].as_u64().unwrap();
            num_written += alone["usage"]["completion_tokens"].as_u64().unwrap();
        }
        assert_eq!(whole["usage"]["prompt_tokens"], num_read);
        assert_eq!(whole["usage"]["completion_tokens"], num_written);
        assert_eq!(whole["usage"]["total_tokens"], num_read + num_written);
    }
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_more_messages_than_the_limit() {
    // Refused before a model is looked for: there is none.
    let running = start(false).await;
    let question = json!({ "role": "user", "content": "x" });
    let many = vec![question; 100_001];
    for (path, name, what) in [
        ("/v1/chat/completions", "messages", "messages"),
        ("/v1/messages", "messages", "messages"),
        ("/v1/messages/count_tokens", "messages", "messages"),
        ("/v1/responses", "input", "items"),
    ] {
        let (status, error) =
            refused(&running, path, &json!({ name: many, "max_tokens": 1 })).await;
        let expected = format!("`{name}` has 100001 {what}, and may have 100000.");
        assert_eq!((status, &error["message"]), (400, &json!(expected)), "{path}");
    }
    running.end().await;
}

/// The model's chat template takes no tools.
#[tokio::test(flavor = "multi_thread")]
async fn every_model_is_told_of_tools() {
    let running = start_with(&[MODEL]).await;
    let function = json!({ "name": "look", "parameters": { "type": "object", "properties": {} } });
    let tools = json!([{ "type": "function", "function": function }]);
    let body = chat(json!({ "tools": tools, "tool_choice": "required", "max_tokens": 200 }));
    let path = "/v1/chat/completions";
    let (status, headers, answer) = running.send(&post(path), body.to_string().as_bytes()).await;
    assert_eq!(status, 200, "{answer}");
    assert!(headers.contains("x-cairn-tools: generic"), "{headers}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let call = &answer["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "look", "{answer}");
    // What it called and got is part of the next prompt.
    let mut messages = body["messages"].clone();
    let result = json!({ "role": "tool", "tool_call_id": call["id"], "content": "There." });
    let turns = [json!({ "role": "assistant", "tool_calls": [call] }), result];
    messages.as_array_mut().unwrap().extend(turns);
    let next = ask(&running, path, &chat(json!({ "tools": tools, "messages": messages }))).await;
    let num_tokens = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(num_tokens(&next) > num_tokens(&answer) + 30, "{next}");
    // Without tools nothing is told.
    let (_, headers, _) = running.send(&post(path), chat(json!({})).to_string().as_bytes()).await;
    assert!(!headers.contains("x-cairn-tools"), "{headers}");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_refused_by_its_head() {
    let running = start_with(&[MODEL]).await;
    let path = "/v1/chat/completions";
    for encoding in ["gzip", "zstd"] {
        let head = format!("{}\r\ncontent-encoding: {encoding}", post(path));
        let (status, _, answer) = running.send(&head, b"{}").await;
        assert_eq!(status, 415, "{answer}");
        assert!(answer.contains(encoding), "{answer}");
    }
    let (status, _, answer) = running.send(&post(path), b"{}").await;
    assert_eq!(status, 400, "{answer}");
    // No byte of it is sent.
    let (status, _, _) = running.send_bytes(&post(path), 99_999_999_999, b"").await;
    assert_eq!(status, 413);
    running.end().await;
}

/// The error of a request that is refused.
async fn refused(running: &Running, path: &str, body: &Value) -> (u16, Value) {
    let (status, _, answer) = running.send(&post(path), body.to_string().as_bytes()).await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    (status, answer["error"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_names_no_model_by_its_path() {
    let running = start_with(&[MODEL]).await;
    let elsewhere = TempDir::new().unwrap();
    let folder = elsewhere.path().join("elsewhere");
    copy_tiny_model("llama/tiny-chat", &folder).unwrap();
    let folder = folder.to_str().unwrap();
    let head = "GET /v1/models/nope HTTP/1.0\r\nhost: HOST\r\nx-api-key: TOKEN";
    let expected = running.send(head, b"").await.2;
    for model in [folder, elsewhere.path().to_str().unwrap(), "/tmp", "../tmp", "nope"] {
        let user = json!([{ "role": "user", "content": "x" }]);
        let question = json!({ "type": "predicate", "instructions": "Is it?" });
        for (path, fields) in [
            ("/v1/chat/completions", json!({ "messages": user })),
            ("/v1/completions", json!({ "prompt": "x" })),
            ("/v1/responses", json!({ "input": "x" })),
            ("/v1/messages", json!({ "messages": user, "max_tokens": 1 })),
            ("/v1/messages/count_tokens", json!({ "messages": user })),
            ("/v1/decisions", json!({ "input": "x", "questions": [question] })),
            ("/v1/embeddings", json!({ "input": "x" })),
        ] {
            let mut body = fields;
            body["model"] = model.into();
            let (status, error) = refused(&running, path, &body).await;
            assert_eq!(status, 404, "{path} {model}: {error}");
            let shown: Value = serde_json::from_str(&expected).unwrap();
            let message = shown["error"]["message"].as_str().unwrap().replace("nope", model);
            assert_eq!(error["message"], message);
        }
    }
    // The person who starts the server may load it, and then it has a name, also after it was unloaded.
    running.app.load_model(folder).await.unwrap();
    for _ in 0..2 {
        let answer =
            ask(&running, "/v1/chat/completions", &chat(json!({ "model": "elsewhere" }))).await;
        assert_eq!(answer["model"], "elsewhere");
        running.ask(Command::UnloadModel).await;
    }
    let shown = get(&running, "/v1/models").await;
    let ids: Vec<&Value> =
        shown["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, ["elsewhere", MODEL]);
    running.end().await;
}

/// The body of an answer with the status 200.
async fn get(running: &Running, path: &str) -> Value {
    let head = format!("GET {path} HTTP/1.0\r\nhost: HOST\r\nx-api-key: TOKEN");
    let (status, _, answer) = running.send(&head, b"").await;
    assert_eq!(status, 200, "{path}: {answer}");
    serde_json::from_str(&answer).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_without_a_template_is_named() {
    let running = start_with(&[MODEL]).await;
    let folder = running.home.path().join("models").join(MODEL);
    let path = folder.join("tokenizer_config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["chat_template"] = Value::Null;
    std::fs::write(&path, config.to_string()).unwrap();
    let says =
        format!("{MODEL} has no chat template, so it can't take messages: ask /v1/completions");
    let user = json!([{ "role": "user", "content": "x" }]);
    for (path, fields) in [
        ("/v1/chat/completions", json!({ "messages": user })),
        ("/v1/responses", json!({ "input": "x" })),
        ("/v1/messages", json!({ "messages": user, "max_tokens": 1 })),
        ("/v1/messages/count_tokens", json!({ "messages": user })),
    ] {
        let mut body = fields;
        body["model"] = MODEL.into();
        let (status, error) = refused(&running, path, &body).await;
        let message = error["message"].as_str().unwrap();
        assert!(status == 400 && message.starts_with(&says), "{path}, {status}: {message}");
    }
    let text = json!({ "model": MODEL, "prompt": "x", "max_tokens": 1 });
    ask(&running, "/v1/completions", &text).await;
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_said_in_plain_sentences() {
    let running = start_with(&[MODEL]).await;
    let check = async |path: &str, body: &Value, param: &str, message: &str| {
        let (status, error) = refused(&running, path, body).await;
        assert_eq!(status, 400, "{body}: {error}");
        assert_eq!(error["message"], message, "{body}");
        let param = if param.is_empty() { Value::Null } else { param.into() };
        // Anthropic's errors have none.
        assert!(error["param"] == param || path == "/v1/messages", "{body}: {error}");
    };
    let path = "/v1/chat/completions";
    let says =
        |content: Value| chat(json!({ "messages": [{ "role": "user", "content": content }] }));
    let content = "messages[0].content";
    let expected = "`messages[0].content` must be a text or a list, not 5.";
    check(path, &says(5.into()), content, expected).await;
    let image = json!([{ "type": "image_url", "image_url": { "url": "data:image/png;base64," } }]);
    let expected = "Images are not supported: `messages[0].content` may have only text.";
    check(path, &says(image), content, expected).await;
    let expected = "`messages[0].content[0].type` must be \"text\", not \"poem\".";
    check(path, &says(json!([{ "type": "poem" }])), "messages[0].content[0].type", expected).await;
    let roles = "\"developer\", \"system\", \"user\", \"assistant\" or \"tool\"";
    let expected = format!("`messages[0].role` must be {roles}, not \"poet\".");
    let poet = chat(json!({ "messages": [{ "role": "poet", "content": "x" }] }));
    check(path, &poet, "messages[0].role", &expected).await;
    let unnamed = chat(json!({ "messages": [{ "role": "user" }] }));
    check(path, &unnamed, "messages[0].content", "`messages[0].content` is missing.").await;
    check(path, &json!({}), "messages", "`messages` is missing.").await;
    check(path, &json!([]), "", "The body is not a JSON object.").await;
    let more = |name: &str, value: Value| chat(json!({ name: value }));
    let expected = "`cairn` must be an object, not 5.";
    check(path, &more("cairn", 5.into()), "cairn", expected).await;
    let expected = "`top_k` must be a whole number from 0 to 18446744073709551615, not -1.";
    check(path, &more("top_k", (-1).into()), "top_k", expected).await;
    let expected = "`stream` must be true or false, not \"yes\".";
    check(path, &more("stream", "yes".into()), "stream", expected).await;
    let expected = "temperature is above 3.4e38, but must be 0 or more.";
    check(path, &more("temperature", 3.5e38.into()), "temperature", expected).await;
    // Also where a top_p of 0 takes the likeliest token at any temperature.
    let expected = "temperature is -1, but must be 0 or more.";
    let cold = chat(json!({ "temperature": -1, "top_p": 0 }));
    check(path, &cold, "temperature", expected).await;
    let seeds = "-9223372036854775808 to 9223372036854775807";
    let expected = format!("`seed` must be a whole number from {seeds}, not 9223372036854775808.");
    check(path, &more("seed", (1_u64 << 63).into()), "seed", &expected).await;
    // What only the loaded model can tell names its field too.
    for (name, value) in [("top_k", json!(999_999)), ("logit_bias", json!({ "999999": 1 }))] {
        let (status, error) = refused(&running, path, &more(name, value)).await;
        assert_eq!((status, &error["param"]), (400, &json!(name)), "{error}");
    }
    for prompt in [json!([]), json!([[]])] {
        let expected = "`prompt` is empty: send a text, or token ids, to be continued.";
        check("/v1/completions", &json!({ "prompt": prompt }), "prompt", expected).await;
    }
    let (status, error) = refused(&running, path, &says("x".repeat(5 << 20).into())).await;
    assert_eq!((status, &error["code"]), (400, &json!("context_length_exceeded")));
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("more than 4 MiB: shorten"), "{message}");
    let image = json!([{ "type": "image", "source": {} }]);
    let body = json!({ "max_tokens": 1, "messages": [{ "role": "user", "content": image }] });
    let expected = "Images are not supported: `messages[0].content[0]` may have only text.";
    check("/v1/messages", &body, "", expected).await;
    let expected = "`input` must be a text or a list, not 5.";
    check("/v1/responses", &json!({ "input": 5 }), "input", expected).await;
    let question = json!({ "type": "choice", "instructions": "Which?" });
    let body = json!({ "input": "x", "questions": [question] });
    let expected = "`questions[0].choices` is missing.";
    check("/v1/decisions", &body, "questions[0].choices", expected).await;
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_address_is_named() {
    let running = start_with(&[MODEL]).await;
    let check = async |head: &str, body: &[u8], expected: (u16, &str)| {
        let (status, _, answer) = running.send(head, body).await;
        assert_eq!(status, expected.0, "{head}: {answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.starts_with(expected.1), "{head}: {message}");
    };
    check(&post("/v1"), b"{}", (404, "Cairn has no POST /v1:")).await;
    check(&post("/v1/"), b"{}", (404, "Cairn has no POST /v1:")).await;
    let expected = (405, "/chat/completions does not take POST: the API is under /v1.");
    check(&post("/chat/completions"), b"{}", expected).await;
    check(&post("/health"), b"{}", (405, "/health does not take POST.")).await;
    check(&post("/v1/chat/completions"), b"", (400, "The body is empty")).await;
    let broken = "GET /v1/models/%ff HTTP/1.0\r\nhost: HOST\r\nx-api-key: TOKEN";
    check(broken, b"", (404, "There is no model")).await;
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_shown_by_its_name_and_its_alias() {
    let running = start_with(&[MODEL]).await;
    let scope = SettingTarget::Model { name: MODEL.to_owned() };
    let (key, value) = ("alias".to_owned(), json!("stone"));
    running.ask(Command::SetSetting { scope, key, value }).await;
    for name in [MODEL, "stone"] {
        let shown = get(&running, &format!("/v1/models/{name}")).await;
        let names = [&shown["id"], &shown["name"], &shown["aliases"]];
        assert_eq!(names, [&json!(MODEL), &json!("stone"), &json!(["stone"])]);
    }
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn models_have_the_windows_titles_and_times() {
    let name = "Qwen3-4B-Instruct-4bit";
    let running = start_with(&[name]).await;
    let folder = std::fs::File::open(running.home.path().join("models").join(name)).unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_790_000_000);
    folder.set_modified(time).unwrap();
    let shown = get(&running, "/v1/models").await["data"][0].clone();
    assert_eq!(shown["name"], "Qwen3 4B");
    assert_eq!((&shown["id"], &shown["created"]), (&json!(name), &json!(1_790_000_000)));
    assert_eq!((&shown["owned_by"], &shown["aliases"]), (&json!("cairn"), &Value::Null));
    let head = "GET /v1/models HTTP/1.0\r\nhost: HOST\r\nx-api-key: TOKEN\r\nanthropic-version: 1";
    let theirs: Value = serde_json::from_str(&running.send(head, b"").await.2).unwrap();
    let theirs = &theirs["data"][0];
    assert_eq!(theirs["display_name"], "Qwen3 4B");
    assert_eq!(theirs["created_at"], "2026-09-21T14:13:20Z");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_but_health_asks_for_the_key() {
    let running = start_with(&[MODEL]).await;
    let check = async |head: &str, status: u16| {
        let (found, headers, answer) = running.send(head, b"").await;
        assert_eq!(found, status, "{head}: {answer}");
        assert!(!headers.contains("access-control-allow"), "{headers}");
        answer
    };
    check("GET /health HTTP/1.0\r\nhost: HOST", 200).await;
    let models = "GET /v1/models HTTP/1.0\r\nhost: HOST";
    let refused = check(models, 401).await;
    assert!(refused.contains("authentication_error"), "{refused}");
    check(&format!("{models}\r\nauthorization: Bearer wrong"), 401).await;
    check(&format!("{models}\r\nauthorization: Bearer TOKEN"), 200).await;
    let listed = check(&format!("{models}\r\nx-api-key: TOKEN"), 200).await;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["data"][0]["id"], MODEL);
    // Anthropic's clients name a version of their own, and read another form.
    let theirs = check(&format!("{models}\r\nx-api-key: TOKEN\r\nanthropic-version: 1"), 200).await;
    let theirs: Value = serde_json::from_str(&theirs).unwrap();
    assert_eq!((&theirs["data"][0]["type"], &theirs["first_id"]), (&json!("model"), &json!(MODEL)));
    let refused = check(&format!("{models}\r\nanthropic-version: 1"), 401).await;
    assert!(refused.contains("\"type\":\"error\""), "{refused}");
    let one = "GET /v1/models/tiny-chat HTTP/1.0\r\nhost: HOST\r\nx-api-key: TOKEN";
    check(one, 200).await;
    check(&one.replace("tiny-chat", "owner/none"), 404).await;
    check("GET /v1/models HTTP/1.0\r\nhost: evil.test", 403).await;
    check("GET /v1/models HTTP/1.0\r\nhost: evil.test\r\nx-api-key: other", 401).await;
    let form = post("/v1/chat/completions").replace("application/json", "text/plain");
    check(&form, 415).await;
    for route in ["chat/completions", "completions", "responses", "messages"] {
        let head = post(&format!("/v1/{route}"));
        check(&head.replace("Bearer TOKEN", "Bearer wrong"), 401).await;
        check(&head.replace("POST", "GET"), 405).await;
    }
    running.end().await;
}

/// The model of the chats, and whether an answer is written.
pub async fn engine(running: &Running) -> (Option<String>, bool) {
    match running.ask(Command::GetStatus).await {
        Reply::Status { status } => match status.engine {
            EngineState::Ready { model } => (Some(model), false),
            EngineState::Prefilling { model, .. } | EngineState::Generating { model, .. } => {
                (Some(model), true)
            }
            _ => (None, false),
        },
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_model_is_loaded_beside_that_of_the_chats() {
    let running = start_with(&[MODEL, "another"]).await;
    running.ask(Command::LoadModel { name: MODEL.to_owned() }).await;
    let path = "/v1/chat/completions";
    let answer = ask(&running, path, &chat(json!({ "model": "another" }))).await;
    assert_eq!(answer["model"], "another");
    assert_eq!(engine(&running).await.0.as_deref(), Some(MODEL));
    // Chats keep their model when another one cannot be loaded.
    let weights = running.home.path().join("models/broken/model.safetensors");
    copy_tiny_model("llama/tiny-chat", weights.parent().unwrap()).unwrap();
    std::fs::OpenOptions::new().write(true).open(&weights).unwrap().set_len(5000).unwrap();
    let broken = chat(json!({ "model": "broken" })).to_string();
    let (status, _, answer) = running.send(&post(path), broken.as_bytes()).await;
    assert!(status >= 400, "{answer}");
    assert_eq!(engine(&running).await.0.as_deref(), Some(MODEL));
    // Without a name the loaded one answers.
    let answer = ask(&running, path, &chat(json!({ "model": null }))).await;
    assert_eq!(answer["model"], MODEL);
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instructions_in_several_messages_are_one_and_a_stop_text_ends_an_answer() {
    let running = start_with(&[MODEL]).await;
    let path = "/v1/chat/completions";
    let user = json!({ "role": "user", "content": "What is a cairn?" });
    let of = |system: &[&str]| {
        let system = system.iter().map(|text| json!({ "role": "system", "content": text }));
        chat(json!({ "messages": system.chain([user.clone()]).collect::<Vec<_>>() }))
    };
    let text = |answer: &Value| answer["choices"][0]["message"]["content"].clone();
    let joined = ask(&running, path, &of(&["Be brief.\n\nBe kind."])).await;
    let apart = ask(&running, path, &of(&["Be brief.", "Be kind."])).await;
    assert_eq!(text(&joined), text(&apart));

    let whole = text(&joined).as_str().unwrap().to_owned();
    let (at, stop) = whole.char_indices().nth(3).unwrap();
    let body = json!({
        "model": MODEL, "max_tokens": 12, "temperature": 0, "stop_sequences": [stop],
        "system": [{ "type": "text", "text": "Be brief.\n\nBe kind." }], "messages": [user],
    });
    let stopped = ask(&running, "/v1/messages", &body).await;
    let first = whole.find(stop).unwrap_or(at);
    assert_eq!(stopped["content"][0]["text"], whole[..first]);
    assert_eq!(stopped["stop_reason"], "stop_sequence");
    assert_eq!(stopped["stop_sequence"], stop.to_string());
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_with_an_error_when_the_server_closes() {
    let running = start_with(&[MODEL]).await;
    let body = chat(json!({ "stream": true, "max_tokens": ENDLESS })).to_string();
    let mut client = running.begin(&post("/v1/chat/completions"), body.len() as u64).await;
    client.write_all(body.as_bytes()).await.unwrap();
    let mut lines = BufReader::new(client).lines();
    while !lines.next_line().await.unwrap().unwrap().starts_with("data:") {}
    running.end().await;
    let mut last = String::new();
    while let Ok(Some(line)) = lines.next_line().await {
        if line.starts_with("data:") {
            last = line;
        }
    }
    assert!(last.contains("\"error\""), "{last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_ends_its_answer_and_too_many_are_told_to_wait() {
    let running = start_with(&[MODEL]).await;
    let path = "/v1/chat/completions";
    let body = chat(json!({ "stream": true, "max_tokens": ENDLESS })).to_string();
    let client = async || {
        let mut client = running.begin(&post(path), body.len() as u64).await;
        client.write_all(body.as_bytes()).await.unwrap();
        let mut lines = BufReader::new(client).lines();
        while !lines.next_line().await.unwrap().unwrap().starts_with("data:") {}
        lines
    };
    let clients = futures_util::future::join_all((0..64).map(|_| client()));
    let clients = tokio::time::timeout(TIMEOUT, clients).await.unwrap();
    let (status, headers, answer) = running.send(&post(path), body.as_bytes()).await;
    assert_eq!(status, 429, "{answer}");
    assert!(headers.contains("retry-after: 1"), "{headers}");
    drop(clients);
    let ended = async { while engine(&running).await.1 {} };
    tokio::time::timeout(TIMEOUT, ended).await.expect("the answers end with their clients");
    assert_eq!(ask(&running, path, &chat(json!({}))).await["object"], "chat.completion");
    running.end().await;
}
