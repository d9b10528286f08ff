//! Answers in a form that a request asks for: a random model, whose tokens a grammar chooses.

use cairn_chat::{
    AnswerForm, CallSchema, FinishReason, Message, Role, Segment, SegmentEvent, TextForm,
};
use cairn_engine::{
    Engine, EngineError, EngineOptions, GenerateEvent, GenerateRequest, PromptInput, SegmentOptions,
};
use serde_json::{Value, json};

use crate::client::{Answer, finish, request};
use crate::scripted::{EOS, Scripted, text_ids};

const MAX_TOKENS: usize = 400;

/// A random model; its answers would hardly be words.
async fn engine() -> Engine {
    let (engine, _) = Engine::start(EngineOptions::default());
    let folder = cairn_tests::tiny_model("llama/tiny-chat");
    engine.load("tiny", &folder).await.expect("loads");
    engine
}

fn constrained(form: AnswerForm, seed: u64) -> GenerateRequest {
    let mut request = request(&text_ids("Answer: "), MAX_TOKENS);
    request.form = Some(form);
    request.use_prompt_cache = false;
    request.sampling.temperature = 1.0;
    request.sampling.seed = Some(seed);
    // What ends strings, lists and objects comes more often, and blanks less.
    let bias = |bytes: &'static [u8], bias| bytes.iter().map(move |&byte| (u32::from(byte), bias));
    request.sampling.logit_bias =
        bias(b"\"}]", 3.0).chain(bias(b" \n\t\r", -4.0)).chain([(EOS, 3.0)]).collect();
    request
}

fn of_schema(schema: &Value, seed: u64) -> GenerateRequest {
    let form = AnswerForm { text: TextForm::Json(schema.clone()), calls: Vec::new() };
    constrained(form, seed)
}

fn object(properties: Value) -> Value {
    let names: Vec<&String> = properties.as_object().expect("an object").keys().collect();
    json!({
        "type": "object", "properties": properties, "required": names,
        "additionalProperties": false,
    })
}

fn schemas() -> Vec<Value> {
    let short = json!({ "type": "string", "maxLength": 8 });
    let number = json!({ "type": "integer", "minimum": 0, "maximum": 99 });
    let tree = json!({
        "$ref": "#/$defs/tree",
        "$defs": { "tree": object(json!({
            "value": number, "rest": { "anyOf": [{ "$ref": "#/$defs/tree" }, { "type": "null" }] },
        })) },
    });
    let person = object(json!({ "name": short, "age": number }));
    vec![
        json!({ "type": "boolean" }),
        json!({ "type": "null" }),
        json!({ "type": "integer", "minimum": -3, "maximum": 12 }),
        json!({ "type": "number", "minimum": 0, "maximum": 1 }),
        json!({ "type": "integer", "exclusiveMinimum": 10, "exclusiveMaximum": 20 }),
        json!({ "enum": ["red", "green", 3, null, true] }),
        json!({ "const": { "a": [1, "é"] } }),
        short.clone(),
        json!({ "type": "string", "minLength": 2, "maxLength": 5 }),
        json!({ "type": "string", "pattern": "^[a-c]{2,4}$" }),
        json!({ "type": "string", "pattern": "^(\\+49|0)[0-9]{3,6}$" }),
        json!({ "type": "string", "format": "date" }),
        json!({ "type": "string", "format": "uuid" }),
        json!({ "type": ["string", "null"], "maxLength": 6 }),
        json!({ "type": "array", "items": number, "maxItems": 4 }),
        json!({ "type": "array", "items": short, "minItems": 2, "maxItems": 3 }),
        json!({ "type": "array", "prefixItems": [number, { "type": "boolean" }],
            "items": false, "minItems": 2 }),
        json!({ "type": "array", "maxItems": 2,
            "items": { "type": "array", "items": number, "maxItems": 2 } }),
        object(json!({})),
        person.clone(),
        object(json!({ "person": person, "ok": { "type": "boolean" } })),
        object(json!({ "people": { "type": "array", "items": person, "maxItems": 2 } })),
        object(json!({ "a": object(json!({ "b": object(json!({ "c": { "type": "null" } })) })) })),
        json!({ "type": "object", "properties": { "a": number, "b": short }, "required": ["b"],
            "additionalProperties": false }),
        json!({ "type": "object", "properties": { "a": number }, "required": ["a"],
            "maxProperties": 2, "additionalProperties": { "type": "boolean" } }),
        object(json!({ "kind": { "enum": ["circle", "square"] }, "size": number })),
        json!({ "anyOf": [number, { "type": "string", "enum": ["none"] }] }),
        json!({ "anyOf": [
            object(json!({ "type": { "const": "a" }, "x": number })),
            object(json!({ "type": { "const": "b" }, "y": short })),
        ] }),
        json!({ "oneOf": [{ "type": "boolean" }, { "type": "null" }] }),
        json!({ "allOf": [
            { "type": "object", "properties": { "a": number }, "required": ["a"] },
            { "properties": { "b": { "type": "boolean" } }, "required": ["b"] },
        ], "additionalProperties": false, "properties": { "a": true, "b": true } }),
        json!({ "$defs": { "n": number }, "type": "array", "items": { "$ref": "#/$defs/n" },
            "minItems": 1, "maxItems": 3 }),
        tree,
        json!({ "type": "object", "patternProperties": { "^x": { "type": "integer" } },
            "additionalProperties": false, "maxProperties": 2 }),
        json!({ "type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100 }),
        json!({ "type": "object" }),
    ]
}

async fn answered(engine: &Engine, request: GenerateRequest) -> Answer {
    finish(&mut engine.generate(request)).await.expect("an answer")
}

#[tokio::test]
async fn an_answer_that_ends_by_itself_is_of_its_schema() {
    let engine = engine().await;
    let schemas = schemas();
    assert!(schemas.len() >= 30, "{}", schemas.len());
    let (mut num_ended, mut num_cut) = (0, 0);
    for (index, schema) in schemas.iter().enumerate() {
        let validator = jsonschema::validator_for(schema).expect("a schema");
        // Four at once, which share a batch.
        let mut running: Vec<_> = (0..4)
            .map(|seed| engine.generate(of_schema(schema, 100 * index as u64 + seed)))
            .collect();
        for generation in &mut running {
            let answer = finish(generation).await.unwrap_or_else(|failure| {
                panic!("{schema}: {}", failure.message);
            });
            match answer.finished.stats.finish_reason {
                FinishReason::Stop => {
                    let value: Value = serde_json::from_str(&answer.text)
                        .unwrap_or_else(|error| panic!("{schema}: {error}: {}", answer.text));
                    assert!(validator.is_valid(&value), "{schema}: {}", answer.text);
                    num_ended += 1;
                }
                _ => num_cut += 1,
            }
        }
    }
    println!("{num_ended} answers ended, {num_cut} were cut");
    assert!(num_ended > 3 * num_cut, "{num_ended} answers ended, {num_cut} were cut");
}

#[tokio::test]
async fn a_schema_that_cannot_be_kept_to_is_refused_before_the_first_token() {
    let engine = engine().await;
    let check = async |schema: Value, named: &str| {
        let mut generation = engine.generate(of_schema(&schema, 1));
        match generation.recv().await {
            Some(GenerateEvent::Failed(error @ EngineError::Form { .. })) => {
                assert!(error.is_bad_request());
                assert!(error.to_string().contains(named), "{schema}: {error}");
            }
            other => panic!("{schema}: {other:?}"),
        }
    };
    check(json!({ "type": "array", "uniqueItems": true }), "uniqueItems").await;
    check(json!({ "not": { "type": "null" } }), "not").await;
    check(json!({ "type": "word" }), "word").await;
    check(json!({ "$ref": "https://example.org/schema" }), "https://example.org/schema").await;
    check(json!({ "type": "string", "pattern": "(" }), "").await;
    // The next answer is as if nothing had been.
    let answer = answered(&engine, of_schema(&json!({ "type": "null" }), 1)).await;
    assert_eq!(answer.text.trim(), "null");
}

#[tokio::test]
async fn other_answers_of_a_batch_are_as_without_it() {
    let engine = engine().await;
    let free = || GenerateRequest {
        use_prompt_cache: false,
        ..request(&text_ids("What is a cairn?"), 60)
    };
    let alone = answered(&engine, free()).await;
    let schema = schemas().remove(21);
    let mut beside = engine.generate(of_schema(&schema, 3));
    let mut shared = engine.generate(free());
    let mut more = engine.generate(of_schema(&schema, 4));
    let shared = finish(&mut shared).await.expect("an answer");
    assert_eq!(shared.tokens, alone.tokens);
    for generation in [&mut beside, &mut more] {
        finish(generation).await.expect("an answer");
    }
}

/// A random model with a template that has markers.
async fn engine_with(template: &str) -> (Engine, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    cairn_tests::copy_tiny_model("llama/tiny-chat", folder.path()).expect("copied");
    Scripted::set_template(folder.path(), template);
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("tiny", folder.path()).await.expect("loads");
    (engine, folder)
}

#[tokio::test]
async fn calls_that_are_required_are_made_and_keep_to_their_schemas() {
    let schema = object(json!({ "at": { "type": "string", "maxLength": 6 } }));
    let call = |name: &str| CallSchema { name: name.to_owned(), arguments: schema.clone() };
    let form = AnswerForm { text: TextForm::None, calls: vec![call("look"), call("go")] };
    for template in [
        "Q{# tools <tool_call> #}",
        "Q{# tools <think> <tool_call> #}",
        "Q{# tools <tool_call> <function= #}",
        "Q{# tools [TOOL_CALLS] #}",
        "Q{# <|channel|> <|message|> #}",
    ] {
        let (engine, _folder) = engine_with(template).await;
        let mut num_ended = 0;
        for seed in 0..4 {
            let mut request = constrained(form.clone(), seed);
            // Reasoning, which only `think` and `analysis` begin here, would have no end.
            request.sampling.logit_bias.extend([b'h', b'a'].map(|byte| (u32::from(byte), -100.0)));
            let segments =
                SegmentOptions { reads_calls: true, ends_after_call: true, ..Default::default() };
            request.segments = Some(segments);
            let answer = answered(&engine, request).await;
            if answer.finished.stats.finish_reason != FinishReason::Stop {
                continue;
            }
            num_ended += 1;
            assert_eq!(
                answer.segments.last(),
                Some(&SegmentEvent::Ended { num_complete_calls: 1 }),
                "{template}: {}",
                answer.text
            );
            for segment in Segment::collect(answer.segments) {
                match segment {
                    Segment::ToolCall(call) => {
                        assert!(["look", "go"].contains(&call.name.as_deref().unwrap_or_default()));
                        let value = serde_json::from_str(&call.arguments).expect("JSON");
                        assert!(jsonschema::is_valid(&schema, &value), "{}", call.arguments);
                    }
                    Segment::Text(text) => panic!("{template}: {text:?} beside a call"),
                    Segment::Reasoning(_) | Segment::Markup(_) => {}
                }
            }
        }
        assert!(num_ended > 0, "{template}: every answer was cut");
    }
}

/// The answer of a scripted model in a form; it writes the likeliest tokens of those allowed.
async fn said(template: &str, text: &str, form: AnswerForm) -> Answer {
    let rendered = template.split("{#").next().unwrap_or_default();
    let model = Scripted::saying(&text_ids(rendered), &text_ids(text)).with_template(template);
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("scripted", model.folder()).await.expect("loads");
    let segments = SegmentOptions { reads_calls: true, ..SegmentOptions::default() };
    let question = Message { role: Role::User, content: "Q".to_owned(), token_ids: None };
    let prompt = PromptInput::Messages(vec![question]);
    let mut request = GenerateRequest { prompt, ..request(&[], MAX_TOKENS) };
    (request.form, request.segments) = (Some(form), Some(segments));
    answered(&engine, request).await
}

#[tokio::test]
async fn a_form_leaves_what_keeps_to_it_as_it_is() {
    let schema = object(json!({ "at": { "type": "string" } }));
    let json_form = || AnswerForm { text: TextForm::Json(schema.clone()), calls: Vec::new() };
    let call = CallSchema { name: "look".to_owned(), arguments: schema.clone() };
    let call_form = |text| AnswerForm { text, calls: vec![call.clone()] };
    let think = "Q{# tools <think> <tool_call> #}";
    let called = "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": \"x\"}}\n</tool_call>";
    let before = "<think>\nHm, <tool_call>?\n</think>\n\n";
    // A marker in a string is a part of the string.
    let odd = "{\"at\": \"a <think> b\"}";
    for (text, form) in [
        (format!("{before}{odd}"), json_form()),
        (odd.to_owned(), json_form()),
        (format!("{before}{called}"), call_form(TextForm::None)),
        (format!("{before}I look. {called}\n{called} Done."), call_form(TextForm::Free)),
        ("I know < that.".to_owned(), call_form(TextForm::Free)),
        (format!("{before}{odd}"), call_form(TextForm::Json(schema.clone()))),
        (called.to_owned(), call_form(TextForm::Json(schema.clone()))),
    ] {
        let is_json = matches!(form.text, TextForm::Json(_));
        let answer = said(think, &text, form).await;
        assert_eq!(answer.text, text);
        assert_eq!(answer.finished.stats.finish_reason, FinishReason::Stop);
        let segments = Segment::collect(answer.segments);
        let told = segments.iter().filter_map(|segment| match segment {
            Segment::Text(text) => Some(text.as_str()),
            _ => None,
        });
        if is_json && text.ends_with(odd) {
            assert_eq!(told.collect::<String>(), odd);
        }
    }
    let opened = "Q<think>{# tools <tool_call> #}";
    let text = format!("Hm</think>{odd}");
    assert_eq!(said(opened, &text, json_form()).await.text, text);
    // Text is not JSON: what is not allowed is not written.
    let answer = said(think, "Sure, here it is!", json_form()).await;
    assert!(!answer.text.starts_with('S'), "{}", answer.text);
}
