//! `/api/chats/export` and `POST /api/chats/import`: download and upload of chats.

use std::sync::Arc;

use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use cairn_app::wire::{ChatFileFormat, Reply};

use crate::cache::{query_value, send};
use crate::call::{done, failed, refuse};
use crate::shared::Shared;
use crate::upload;

/// What a request for an export may have: the ids of a hundred thousand chats.
const MAX_QUERY_BYTES: usize = 4 << 20;

/// Sends chats as a file. A POST has its query in the body, where the ids of many chats would be
/// too long for an address.
pub(crate) async fn export(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    if let Err(refusal) = shared.guard.check_token(request.headers()) {
        return refuse(refusal.status(), refusal.sentence());
    }
    let Some((ids, format)) = query(request).await.and_then(|query| parse_query(&query)) else {
        return refuse(
            StatusCode::BAD_REQUEST,
            "The query must say which chats, as ids=ID,ID or ids=all, and format=json, markdown or openai.",
        );
    };
    match shared.app.download_chats(ids, format).await {
        Ok(download) => send(download, "chats"),
        Err(failure) => failed(failure),
    }
}

/// None if it is too long or no text.
async fn query(request: Request) -> Option<String> {
    if request.method() != Method::POST {
        return Some(request.uri().query().unwrap_or_default().to_owned());
    }
    let body = to_bytes(request.into_body(), MAX_QUERY_BYTES).await.ok()?;
    String::from_utf8(body.into()).ok()
}

/// Receives a file of chats and answers with what became of each.
pub(crate) async fn import(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (upload, name) = match upload::receive(&shared, request).await {
        Ok(received) => received,
        Err(refusal) => return refusal,
    };
    match shared.app.import_uploaded_chats(upload, &name).await {
        Ok(imported) => done(Reply::ChatsImported { imported }),
        Err(failure) => failed(failure),
    }
}

/// Parses a query such as `ids=…,…&format=json`; no ids stand for all chats.
fn parse_query(query: &str) -> Option<(Vec<String>, ChatFileFormat)> {
    let ids = match query_value(query, "ids")?.as_str() {
        "" => return None,
        "all" => Vec::new(),
        ids => ids.split(',').map(str::to_owned).collect(),
    };
    let format = match query_value(query, "format")?.as_str() {
        "json" => ChatFileFormat::Json,
        "markdown" => ChatFileFormat::Markdown,
        "openai" => ChatFileFormat::Openai,
        _ => return None,
    };
    Some((ids, format))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_chats_and_a_form() {
        fn check(query: &str, expected: Option<(&[&str], ChatFileFormat)>) {
            let expected = expected
                .map(|(ids, format)| (ids.iter().map(|id| (*id).to_owned()).collect(), format));
            assert_eq!(parse_query(query), expected, "for {query:?}");
        }
        check("ids=a,b&format=json", Some((&["a", "b"], ChatFileFormat::Json)));
        check("format=markdown&ids=a", Some((&["a"], ChatFileFormat::Markdown)));
        check("ids=all&format=openai", Some((&[], ChatFileFormat::Openai)));
        check("ids=&format=json", None);
        check("format=json", None);
        check("ids=a&format=pdf", None);
        check("ids=a", None);
    }
}
