//! `/v1/decisions`: probabilities for the options of questions about one text.

use serde_json::{Value, json};

use crate::api::{MODEL, ask, post, start_with};
use crate::keys::requests;
use crate::running::Running;

async fn refused(running: &Running, body: &Value) -> Value {
    let (status, _, answer) =
        running.send(&post("/v1/decisions"), body.to_string().as_bytes()).await;
    assert_eq!(status, 400, "{answer}");
    serde_json::from_str::<Value>(&answer).unwrap()["error"].clone()
}

fn questions() -> Value {
    json!([
        { "type": "predicate", "name": "late", "instructions": "The parcel was late." },
        { "type": "choice", "instructions": "What came?", "choices": [
            { "value": "a parcel", "description": "in paper" },
            { "value": "a letter" },
            { "value": true },
        ] },
        { "type": "score", "name": "mood", "instructions": "How glad is the writer?", "levels": [
            { "label": "angry" }, { "label": "calm" }, { "label": "glad", "description": "smiles" },
        ] },
    ])
}

fn sum(probabilities: &Value) -> f64 {
    let all = probabilities.as_array().unwrap();
    all.iter().map(|one| one["probability"].as_f64().unwrap()).sum()
}

#[tokio::test]
async fn each_question_gets_a_probability_for_each_option() {
    let running = start_with(&[MODEL]).await;
    let text = "The parcel left on Monday and arrived on Friday, wet but whole, and I am glad.";
    let whole = ask(
        &running,
        "/v1/decisions",
        &json!({ "model": MODEL, "input": text, "questions": questions() }),
    )
    .await;
    assert_eq!(whole["model"], MODEL);
    let [predicate, choice, score] = &whole["answers"].as_array().unwrap()[..] else { panic!() };
    assert_eq!((&predicate["type"], &predicate["name"]), (&json!("predicate"), &json!("late")));
    let probability = predicate["probability"].as_f64().unwrap();
    assert!((0.0..=1.0).contains(&probability), "{predicate}");

    assert_eq!((&choice["type"], &choice["name"]), (&json!("choice"), &Value::Null));
    let values = choice["probabilities"].as_array().unwrap();
    let best = values
        .iter()
        .max_by(|a, b| {
            let [a, b] = [a, b].map(|one| one["probability"].as_f64().unwrap());
            a.total_cmp(&b)
        })
        .unwrap();
    assert_eq!((&choice["choice"], &choice["confidence"]), (&best["value"], &best["probability"]));
    assert_eq!(values[2]["value"], true);
    assert!((sum(&choice["probabilities"]) - 1.0).abs() < 1e-6, "{choice}");

    assert_eq!(score["probabilities"][2]["label"], "glad");
    let expected: f64 = (0..3)
        .map(|level| level as f64 * score["probabilities"][level]["probability"].as_f64().unwrap())
        .sum();
    assert!((score["score"].as_f64().unwrap() - expected).abs() < 1e-9, "{score}");
    let usage = &whole["usage"];
    assert!(usage["input_tokens_details"]["cached_tokens"].as_u64().unwrap() > 200);
    let figures = requests(&running).await[0].figures.clone().unwrap();
    assert_eq!(
        (u64::from(figures.prompt_tokens), u64::from(figures.cached_tokens)),
        (
            usage["input_tokens"].as_u64().unwrap(),
            usage["input_tokens_details"]["cached_tokens"].as_u64().unwrap()
        )
    );

    // Alone each question has the same answer: no question sees another.
    for (index, question) in questions().as_array().unwrap().iter().enumerate() {
        let alone = ask(
            &running,
            "/v1/decisions",
            &json!({ "model": MODEL, "input": text, "questions": [question] }),
        )
        .await;
        let numbers = |answer: &Value| -> Vec<f64> {
            match answer["probabilities"].as_array() {
                Some(all) => all.iter().map(|one| one["probability"].as_f64().unwrap()).collect(),
                None => vec![answer["probability"].as_f64().unwrap()],
            }
        };
        let (found, expected) = (numbers(&alone["answers"][0]), numbers(&whole["answers"][index]));
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-4, "question {index}: {found}, {expected}");
        }
    }
}

#[tokio::test]
async fn a_conversation_is_judged_as_a_text() {
    let running = start_with(&[MODEL]).await;
    let conversation = json!([
        { "type": "message", "role": "user", "content": "Where is my parcel?" },
        { "type": "function_call", "call_id": "1", "name": "find", "arguments": "{\"id\":7}" },
        { "type": "function_call_output", "call_id": "1", "output": "on its way" },
        { "type": "message", "role": "assistant", "content": [
            { "type": "output_text", "text": "It is on its way." }
        ] },
        { "type": "message", "role": "user", "content": [
            { "type": "input_text", "text": "Good." }, { "type": "input_json", "data": { "a": 1 } }
        ] },
    ]);
    let text = "User:\nWhere is my parcel?\n\nCall of find:\n{\"id\":7}\n\nResult:\non its way\n\n\
                Assistant:\nIt is on its way.\n\nUser:\nGood.\n{\"a\":1}";
    let predicate = json!([{ "type": "predicate", "instructions": "The user is angry." }]);
    let mut answers = Vec::new();
    for input in [conversation, json!(text)] {
        let body = json!({ "model": MODEL, "input": input, "questions": predicate });
        answers.push(ask(&running, "/v1/decisions", &body).await["answers"].clone());
    }
    assert_eq!(answers[0], answers[1]);
}

#[tokio::test]
async fn what_cannot_be_asked_is_refused_by_its_place() {
    let running = start_with(&[MODEL]).await;
    let body = |questions: Value| json!({ "model": MODEL, "input": "x", "questions": questions });
    let error = refused(&running, &body(json!([]))).await;
    assert_eq!(error["message"], "A request has 1 to 400 questions, not 0.");
    let one = json!([
        { "type": "predicate", "instructions": "x" },
        { "type": "choice", "instructions": "x", "choices": [{ "value": "a" }] },
    ]);
    let error = refused(&running, &body(one)).await;
    assert_eq!(error["param"], "questions[1]");
    assert_eq!(
        error["message"],
        "`questions[1]` cannot be asked: a choice has 2 to 255 options, not 1."
    );
    let image = json!([{ "type": "predicate", "instructions": [
        { "type": "input_image", "image_url": "data:," }
    ] }]);
    let error = refused(&running, &body(image)).await;
    assert_eq!(error["code"], "unsupported_parameter");
    assert_eq!(error["param"], "questions[0].instructions.input_image");
    let error = refused(&running, &json!({ "model": MODEL, "input": "x" })).await;
    assert!(error["message"].as_str().unwrap().contains("questions"), "{error}");
}
