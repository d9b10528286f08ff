//! Completions that begin with their prompt, whose tokens have log-probabilities.

use serde_json::{Value, json};

use crate::api::{MODEL, ask, events, start_with};

const PATH: &str = "/v1/completions";

fn list<'a>(choice: &'a Value, name: &str) -> &'a [Value] {
    choice["logprobs"][name].as_array().unwrap()
}

/// Each token is compared with what a prompt that ends before it would be continued with.
#[tokio::test(flavor = "multi_thread")]
async fn scores_prompts_as_they_are_continued() {
    let running = start_with(&[MODEL]).await;
    let text = "A cairn is";
    let ids: Vec<u32> = text.bytes().map(u32::from).collect();
    let scored = json!({
        "model": MODEL, "prompt": [ids, ids[..4]], "max_tokens": 0, "logprobs": 5, "echo": true,
    });
    let answer = ask(&running, PATH, &scored).await;
    let choice = &answer["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(text), &json!("length")));
    assert_eq!(answer["usage"]["prompt_tokens"], ids.len() + 4);
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    let characters: Vec<String> = text.chars().map(String::from).collect();
    assert_eq!(choice["logprobs"]["tokens"], json!(characters));
    let places: Vec<usize> = (0..ids.len()).collect();
    assert_eq!(choice["logprobs"]["text_offset"], json!(places));
    let (own, top) = (list(choice, "token_logprobs"), list(choice, "top_logprobs"));
    assert_eq!((own.len(), top.len()), (ids.len(), ids.len()));
    assert_eq!((&own[0], &top[0]), (&Value::Null, &Value::Null));

    let near = |a: &Value, b: &Value| (a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 1e-3;
    for place in 1..ids.len() {
        let body = json!({
            "model": MODEL, "prompt": ids[..place], "max_tokens": 1, "temperature": 0,
            "logprobs": 5, "ignore_eos": true,
        });
        let next = &ask(&running, PATH, &body).await["choices"][0];
        let expected = list(next, "top_logprobs")[0].as_object().unwrap();
        let found = top[place].as_object().unwrap();
        assert_eq!(found.len(), expected.len(), "{place}");
        for (token, logprob) in found {
            assert!(near(logprob, &expected[token]), "{place}: {found:?}, {expected:?}");
        }
        assert!(own[place].as_f64().unwrap() <= 0.0);
        if let Some(logprob) = found.get(&characters[place]) {
            assert!(near(&own[place], logprob), "{place}");
        }
    }
    // A shorter prompt in the same passes has the same numbers.
    for (a, b) in list(&answer["choices"][1], "token_logprobs").iter().zip(own).skip(1) {
        assert!(near(a, b), "{answer}");
    }
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_one_more_token_than_the_prompt() {
    let running = start_with(&[MODEL]).await;
    // The model would end each answer at once. Programs drop the last token.
    let body = json!({
        "model": MODEL, "prompt": "A cairn", "max_tokens": 1, "temperature": 0, "logprobs": 1,
        "echo": true, "logit_bias": { "258": 1000 },
    });
    let answer = ask(&running, PATH, &body).await;
    let choice = &answer["choices"][0];
    assert_eq!(list(choice, "tokens").len(), "A cairn".len() + 1);
    assert_eq!(list(choice, "token_logprobs").len(), "A cairn".len() + 1);
    assert_eq!(answer["usage"]["completion_tokens"], 1);
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn echoes_without_logprobs_and_in_streams() {
    let running = start_with(&[MODEL]).await;
    let mut body = json!({
        "model": MODEL, "prompt": "A cairn is", "max_tokens": 5, "temperature": 0, "echo": true,
    });
    let whole = &ask(&running, PATH, &body).await["choices"][0];
    let text = whole["text"].as_str().unwrap();
    assert!(text.starts_with("A cairn is") && text.len() > "A cairn is".len(), "{whole}");
    assert!(whole["logprobs"].is_null(), "{whole}");
    body["stream"] = true.into();
    body["logprobs"] = 1.into();
    let events = events(&running, PATH, &body).await;
    let choices: Vec<Value> = events
        .iter()
        .filter_map(|(_, data)| serde_json::from_str::<Value>(data).ok())
        .map(|chunk| chunk["choices"][0].clone())
        .collect();
    let streamed: String = choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect();
    assert_eq!(streamed, text);
    let offsets: Vec<u64> = choices
        .iter()
        .flat_map(|choice| choice["logprobs"]["text_offset"].as_array().cloned())
        .flatten()
        .map(|offset| offset.as_u64().unwrap())
        .collect();
    assert_eq!(offsets.len(), 15);
    assert!(offsets.iter().zip(0..=10).all(|(found, expected)| *found == expected));
    running.end().await;
}
