//! `POST /api/call`: takes one command and answers with frames.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use cairn_app::Consent;
use cairn_app::wire::{
    Command, Failure, FailureCode, FailureKind, Frame, MAX_COMMAND_BYTES, Reply,
};
use futures_util::{StreamExt, stream};
use tokio::sync::broadcast::error::RecvError;

use crate::shared::Shared;

/// Handles one command.
pub(crate) async fn call(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    if let Err(refusal) = shared.guard.check_command(&parts.headers) {
        return refuse(refusal.status(), refusal.sentence());
    }
    let Ok(body) = to_bytes(body, MAX_COMMAND_BYTES).await else {
        return refuse(StatusCode::PAYLOAD_TOO_LARGE, "A command may have at most 64 MiB.");
    };
    let num_bytes = body.len();
    let parse = move || serde_json::from_slice::<Command>(&body);
    match shared.parser.run(num_bytes, parse).await {
        Ok(Command::Subscribe) => subscribe(&shared),
        Ok(command) => match shared.app.needed_consent(&command) {
            Some(consent) => failed(without_consent(&consent)),
            None => shared.app.call(command).await.map_or_else(failed, done),
        },
        Err(error) => {
            refuse(StatusCode::BAD_REQUEST, &format!("The body is not a valid command: {error}."))
        }
    }
}

/// Returns why a command that needs consent is refused. No one can be asked here: whatever a page
/// in a browser shows, its script could have written.
fn without_consent(consent: &Consent) -> Failure {
    let (what, variable) = match consent {
        Consent::ModelFolder(_) => ("Folders of models are added", None),
        Consent::DownloadFolder(_) => ("The folder for downloads is chosen", Some("HF_HUB_CACHE")),
        Consent::HubAddress(_) => ("The hub's address is changed", Some("HF_ENDPOINT")),
        Consent::HubProxy(_) => ("The proxy is changed", Some("HTTPS_PROXY")),
    };
    let remedy =
        variable.map_or_else(String::new, |name| format!(", or with {name} before `cairn serve`"));
    let variable = variable.map(str::to_owned);
    Failure::new(FailureCode::Invalid, format!("{what} in the app{remedy}."))
        .of_kind(FailureKind::OnlyInApp { variable })
}

/// The response to an invalid request.
pub(crate) fn refuse(status: StatusCode, sentence: &str) -> Response {
    fail(status, Failure { code: FailureCode::Invalid, message: sentence.to_owned(), kind: None })
}

/// The response to a command that failed.
pub(crate) fn failed(failure: Failure) -> Response {
    fail(status_of(failure.code), failure)
}

/// The response to a command that succeeded.
pub(crate) fn done(reply: Reply) -> Response {
    frames(StatusCode::OK, Body::from(line(&Frame::Reply(reply))))
}

fn fail(status: StatusCode, failure: Failure) -> Response {
    frames(status, Body::from(line(&Frame::Failure(failure))))
}

fn status_of(code: FailureCode) -> StatusCode {
    match code {
        FailureCode::Invalid => StatusCode::BAD_REQUEST,
        FailureCode::NotFound => StatusCode::NOT_FOUND,
        FailureCode::NoModel
        | FailureCode::SetAside
        | FailureCode::Gated
        | FailureCode::NeedsToken
        | FailureCode::Unauthorized => StatusCode::CONFLICT,
        FailureCode::Storage | FailureCode::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
        FailureCode::Engine => StatusCode::INTERNAL_SERVER_ERROR,
        // The hub behind this server failed, not the server.
        FailureCode::Offline | FailureCode::Hub => StatusCode::BAD_GATEWAY,
    }
}

fn subscribe(shared: &Shared) -> Response {
    let first = stream::iter([Frame::Reply(Reply::Done)]);
    let rest = stream::unfold(shared.app.subscribe(), |mut events| async move {
        let frame = match events.recv().await {
            Ok(event) => Frame::Event(event),
            // This subscriber was too slow and has missed events. Like the first `Done`, another
            // one makes the interface fetch everything again.
            Err(RecvError::Lagged(_)) => Frame::Reply(Reply::Done),
            Err(RecvError::Closed) => return None,
        };
        Some((frame, events))
    });
    let frames_until_closing =
        first.chain(rest).take_until(shared.closing.clone().cancelled_owned());
    frames(
        StatusCode::OK,
        Body::from_stream(frames_until_closing.map(|frame| Ok::<_, Infallible>(line(&frame)))),
    )
}

fn frames(status: StatusCode, body: Body) -> Response {
    (
        status,
        [(header::CONTENT_TYPE, "application/x-ndjson"), (header::CACHE_CONTROL, "no-store")],
        body,
    )
        .into_response()
}

/// One frame as one line. JSON escapes line breaks, so a frame never spans two.
fn line(frame: &Frame) -> Bytes {
    // Serializing cannot fail: wire types have string keys and finite numbers only.
    let mut line = serde_json::to_vec(frame).unwrap_or_default();
    line.push(b'\n');
    line.into()
}
