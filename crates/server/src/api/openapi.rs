//! `GET /openapi.json`: the API as an OpenAPI document, which is written by hand in `openapi.json`.
//! It says what Cairn accepts, which is less than the vendors' own documents do. Tests hold it to
//! the routes, to their fields and to what they answer.

use std::sync::LazyLock;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

const DOCUMENT: &str = include_str!("openapi.json");

/// The document, in which a fault of a request is looked up; it is read for the first one.
pub(super) fn document() -> &'static Value {
    static READ: LazyLock<Value> = LazyLock::new(|| {
        // A test reads it too.
        serde_json::from_str(DOCUMENT).unwrap_or_default()
    });
    &READ
}

/// As `/health` without a key: it says nothing about this machine.
pub(super) async fn show() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT).into_response()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::api::body::Fields;
    use crate::api::own_fields::OWN_FIELDS;
    use crate::api::{
        chat, completions, decisions, embeddings, messages, responses, routes_by_path,
    };

    fn document() -> Value {
        serde_json::from_str(DOCUMENT).unwrap()
    }

    #[test]
    fn it_has_every_route() {
        let document = document();
        let paths: BTreeSet<&str> =
            document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
        let routes = routes_by_path().map(|(path, _)| path.replace("{*name}", "{name}"));
        let routes: BTreeSet<&str> = routes.iter().map(String::as_str).collect();
        assert_eq!(paths, routes);
    }

    #[test]
    fn it_has_the_fields_that_are_read() {
        fn check(path: &str, fields: &Fields) {
            let document = document();
            let request = &document["paths"][path]["post"]["requestBody"]["content"];
            let schema = request["application/json"]["schema"]["$ref"].as_str().unwrap();
            let schema = document.pointer(&schema[1..]).unwrap();
            let documented: BTreeSet<&str> =
                schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
            let read = fields.read.iter().chain(&OWN_FIELDS).chain(&["model"]);
            let read: BTreeSet<&str> = read.copied().collect();
            assert_eq!(documented, read, "{path}");
            let name = request["application/json"]["schema"]["$ref"].as_str().unwrap();
            assert_eq!(name.rsplit('/').next(), Some(fields.schema), "{path}");
        }
        check("/v1/chat/completions", &chat::FIELDS);
        check("/v1/completions", &completions::FIELDS);
        check("/v1/responses", &responses::FIELDS);
        check("/v1/messages", &messages::FIELDS);
        check("/v1/messages/count_tokens", &messages::COUNTED_FIELDS);
        check("/v1/decisions", &decisions::FIELDS);
        check("/v1/embeddings", &embeddings::FIELDS);
    }
}
