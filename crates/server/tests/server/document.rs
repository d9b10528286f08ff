//! The API's OpenAPI document, and whether requests and answers are as it says.

use cairn_api_recordings::{Reply, Sent};
use serde_json::{Value, json};

use crate::api::post;
use crate::running::{Running, start};

/// The document that a server gives.
pub struct Document(Value);

impl Document {
    pub async fn of(running: &Running) -> Document {
        let head = "GET /openapi.json HTTP/1.0\r\nhost: HOST";
        let (status, headers, text) = running.send(head, b"").await;
        assert_eq!(status, 200, "{text}");
        assert!(headers.contains("content-type: application/json"), "{headers}");
        Document(serde_json::from_str(&text).unwrap())
    }

    /// The operation of a request; none if the document has no such path.
    fn operation(&self, method: &str, path: &str) -> Option<&Value> {
        let path = if path.starts_with("/v1/models/") { "/v1/models/{name}" } else { path };
        self.0["paths"].get(path)?.get(method.to_lowercase())
    }

    /// Checks a request that was granted and its answer, or one that was not and its error.
    pub fn check_reply(&self, sent: &Sent, reply: &Reply, about: &str) {
        let Some(operation) = self.operation(&sent.method, &sent.path) else {
            assert_eq!(reply.status, 404, "{about}: the document has no {}", sent.path);
            return;
        };
        if let (200, Some(body)) = (reply.status, &sent.body) {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            self.check(schema, body, about);
        }
        let responses = &operation["responses"];
        let response = responses.get(reply.status.to_string()).unwrap_or(&responses["default"]);
        let content = &response["content"];
        match reply.events() {
            None => {
                let schema = &content["application/json"]["schema"];
                self.check(schema, &reply.json().expect(about), about);
            }
            Some(events) => {
                let data = &content["text/event-stream"]["schema"]["properties"]["data"];
                // What ends a chat's stream is not JSON, so it is another kind of data.
                let (json, last) = match &data["anyOf"] {
                    Value::Array(kinds) => (&kinds[0], &kinds[1]["const"]),
                    _ => (data, &Value::Null),
                };
                for event in events.iter().filter(|event| *last != event.data.as_str()) {
                    let event = serde_json::from_str(&event.data).expect(about);
                    self.check(&json["contentSchema"], &event, about);
                }
            }
        }
    }

    fn check(&self, schema: &Value, value: &Value, about: &str) {
        assert!(schema.is_object(), "{about}: the document has no schema for {value}");
        let mut schema = schema.clone();
        schema["components"] = self.0["components"].clone();
        let validator = jsonschema::validator_for(&schema).unwrap();
        if let Err(error) = validator.validate(value) {
            panic!("{about}: {error} at {}: {value}", error.instance_path());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_documented_operation_is_answered() {
    let running = start(false).await;
    let Document(document) = Document::of(&running).await;
    assert_eq!(document["openapi"], "3.1.0");
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            let head =
                post(&path.replace("{name}", "x")).replacen("POST", &method.to_uppercase(), 1);
            let is_open = operations[method]["security"] == json!([]);
            let (with_key, _, answer) = running.send(&head, b"").await;
            assert!(![401, 405].contains(&with_key), "{method} {path}: {answer}");
            let (without, _, answer) = running.send(&head.replace("Bearer TOKEN", "x"), b"").await;
            assert_eq!(without == 401, !is_open, "{method} {path}: {answer}");
        }
    }
    running.end().await;
}
