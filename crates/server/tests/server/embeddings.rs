//! `/v1/embeddings`: every form of its input and its answer, and one clear error for each mistake.

use cairn_tiny_models::{copy_tiny_model, save_decoder_alone};
use serde_json::{Value, json};

use crate::api::{MODEL, ask, chat, post, start_with};
use crate::keys::requests;
use crate::running::Running;

const PATH: &str = "/v1/embeddings";

fn body(input: Value) -> Value {
    json!({ "model": MODEL, "input": input })
}

fn vectors(answer: &Value) -> Vec<Vec<f32>> {
    let entries = answer["data"].as_array().unwrap().iter().enumerate();
    let vector = |(index, entry): (usize, &Value)| {
        assert_eq!((&entry["object"], &entry["index"]), (&json!("embedding"), &json!(index)));
        serde_json::from_value(entry["embedding"].clone()).unwrap()
    };
    entries.map(vector).collect()
}

fn length(vector: &[f32]) -> f32 {
    vector.iter().map(|number| number * number).sum::<f32>().sqrt()
}

/// The numbers of a vector in base64.
fn decoded(text: &str) -> Vec<f32> {
    let digit = |letter: u8| match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u32> =
        text.trim_end_matches('=').bytes().map(|letter| digit(letter).into()).collect();
    let bytes = digits.chunks(4).flat_map(|part| {
        let bits = (0..4).fold(0, |bits, at| bits << 6 | part.get(at).copied().unwrap_or(0));
        [bits >> 16, bits >> 8, bits].map(|bits| bits as u8).into_iter().take(part.len() - 1)
    });
    let bytes: Vec<u8> = bytes.collect();
    bytes.chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

async fn refused(running: &Running, body: &Value) -> (u16, Value) {
    let (status, _, answer) = running.send(&post(PATH), body.to_string().as_bytes()).await;
    (status, serde_json::from_str::<Value>(&answer).unwrap()["error"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_form_of_input_gets_its_vectors() {
    let running = start_with(&[MODEL]).await;
    let answer = ask(&running, PATH, &body(json!(["ab", "c"]))).await;
    assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!(MODEL)));
    assert_eq!(answer["usage"], json!({ "prompt_tokens": 3, "total_tokens": 3 }));
    let both = vectors(&answer);
    assert_eq!(both.len(), 2);
    assert!(both.iter().all(|vector| (length(vector) - 1.0).abs() < 1e-5), "{answer}");
    let figures = requests(&running).await[0].figures.clone().unwrap();
    assert_eq!((figures.prompt_tokens, figures.generation_tokens), (3, 0));

    for (input, expected) in [
        (json!("ab"), &both[..1]),
        (json!([97, 98]), &both[..1]),
        (json!([[97, 98], [99]]), &both[..]),
        (json!(["c"]), &both[1..]),
    ] {
        let found = vectors(&ask(&running, PATH, &body(input.clone())).await);
        assert_eq!(found.len(), expected.len(), "{input}");
        for (found, expected) in found.iter().zip(expected) {
            let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
            assert!(differences.fold(0.0, f32::max) < 1e-5, "{input}");
        }
    }
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn vectors_are_cut_and_encoded_as_asked() {
    let running = start_with(&[MODEL]).await;
    let mut asked = body(json!("abc"));
    let whole = vectors(&ask(&running, PATH, &asked).await).remove(0);
    asked["encoding_format"] = "float".into();
    asked["user"] = "someone".into();
    assert_eq!(vectors(&ask(&running, PATH, &asked).await), std::slice::from_ref(&whole));
    asked["encoding_format"] = "base64".into();
    let answer = ask(&running, PATH, &asked).await;
    assert_eq!(decoded(answer["data"][0]["embedding"].as_str().unwrap()), whole);
    asked["encoding_format"] = "float".into();
    asked["dimensions"] = 5.into();
    let cut = vectors(&ask(&running, PATH, &asked).await).remove(0);
    assert_eq!(cut.len(), 5);
    assert!((length(&cut) - 1.0).abs() < 1e-5);
    let ratio = cut[0] / whole[0];
    assert!(cut.iter().zip(&whole).all(|(cut, whole)| (cut - ratio * whole).abs() < 1e-5));
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_mistake_gets_one_clear_error() {
    let running = start_with(&[MODEL]).await;
    let folder = running.home.path().join("models/short");
    copy_tiny_model("llama/tiny-chat", &folder).unwrap();
    std::fs::create_dir(folder.join("1_Pooling")).unwrap();
    for (name, contents) in [
        ("modules.json", json!([{ "type": "models.Pooling", "path": "1_Pooling" }])),
        ("1_Pooling/config.json", json!({ "pooling_mode_lasttoken": true })),
        ("sentence_bert_config.json", json!({ "max_seq_length": 8 })),
    ] {
        std::fs::write(folder.join(name), contents.to_string()).unwrap();
    }
    let size = vectors(&ask(&running, PATH, &body(json!("a"))).await)[0].len();
    let of = |mut body: Value, name: &str, value: Value| {
        body[name] = value;
        body
    };
    let short = |input: Value| of(body(input), "model", "short".into());
    let many: Vec<&str> = vec!["a"; 2049];
    for (asked, status, param, message) in [
        (json!({ "model": MODEL }), 400, "input", "`input` is missing.".to_owned()),
        (body(json!(5)), 400, "input", "`input` must be a text or a list, not 5.".to_owned()),
        (body(json!([])), 400, "input", "`input` is empty: send a text, or token ids.".to_owned()),
        (
            body(json!(["a", ""])),
            400,
            "input",
            "`input[1]` is empty: send a text, or token ids.".to_owned(),
        ),
        (
            body(json!([[]])),
            400,
            "input",
            "`input[0]` is empty: send a text, or token ids.".to_owned(),
        ),
        (body(json!(many)), 400, "input", "`input` has 2049 inputs, and may have 2048.".to_owned()),
        (
            short(json!(["a", "123456789"])),
            400,
            "input",
            "`input[1]` has 9 tokens, but the model takes 8: cut it into parts.".to_owned(),
        ),
        (
            body(json!([[1], [999_999]])),
            400,
            "input",
            "`input[1]` has the token id 999999, which is outside the vocabulary of 259."
                .to_owned(),
        ),
        (
            of(body(json!("a")), "dimensions", (size + 1).into()),
            400,
            "dimensions",
            format!(
                "Dimensions is {}, but must be from 1 to {size}, the length of this model's vectors.",
                size + 1
            ),
        ),
        (
            of(body(json!("a")), "encoding_format", "int8".into()),
            400,
            "encoding_format",
            "`encoding_format` must be \"float\" or \"base64\", not \"int8\".".to_owned(),
        ),
        (
            of(body(json!("a")), "model", "absent".into()),
            404,
            "model",
            "There is no model absent on this machine: GET /v1/models lists them.".to_owned(),
        ),
    ] {
        let (found, error) = refused(&running, &asked).await;
        assert_eq!((found, error["message"].as_str()), (status, Some(message.as_str())));
        assert_eq!(error["param"], param, "{error}");
    }
    let (_, error) = refused(&running, &short(json!("123456789"))).await;
    assert_eq!(error["code"], "context_length_exceeded");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn embedding_model_without_output_layer_writes_no_text() {
    let running = start_with(&[MODEL]).await;
    let folder = running.home.path().join("models/embedder");
    copy_tiny_model("llama/dense-untied", &folder).unwrap();
    save_decoder_alone(&folder);
    let file = folder.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    config["architectures"] = json!(["LlamaModel"]);
    std::fs::write(&file, config.to_string()).unwrap();
    let asked = json!({ "model": "embedder", "input": ["a", "b"] });
    assert_eq!(vectors(&ask(&running, PATH, &asked).await).len(), 2);

    let asked = json!({ "model": "embedder", "prompt": "ab" }).to_string();
    let (status, _, answer) = running.send(&post("/v1/completions"), asked.as_bytes()).await;
    assert_eq!(status, 400, "{answer}");
    assert!(answer.contains("has no output layer"), "{answer}");

    // An encoder is named as what it is.
    config["model_type"] = "bert".into();
    let folder = running.home.path().join("models/encoder");
    copy_tiny_model("llama/dense-untied", &folder).unwrap();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let asked = json!({ "model": "encoder", "input": "a" });
    let (_, error) = refused(&running, &asked).await;
    assert!(error["message"].as_str().unwrap().contains("encoder"), "{error}");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_that_leaves_ends_the_work() {
    let running = start_with(&[MODEL]).await;
    let texts: Vec<String> = (0..2000).map(|index| format!("{index} ").repeat(100)).collect();
    let asked = body(json!(texts)).to_string();
    let question = chat(json!({}));
    {
        let head = post(PATH);
        let left = running.send(&head, asked.as_bytes());
        tokio::pin!(left);
        // Other answers are written meanwhile.
        tokio::select! {
            _ = &mut left => panic!("the texts were read first"),
            answer = ask(&running, "/v1/chat/completions", &question) => {
                assert_eq!(answer["usage"]["completion_tokens"], 12);
            }
        }
    }
    assert_eq!(vectors(&ask(&running, PATH, &body(json!("a"))).await).len(), 1);
    running.end().await;
}
