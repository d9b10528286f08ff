//! Errors in the form that each vendor's clients read.

use axum::Json;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cairn_app::completion::{EngineError, StartError};
use cairn_app::wire::{Failure, FailureCode, FailureKind};
use serde_json::{Value, json};

use crate::request_guard::Refusal;

/// Whose form a route's answers have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vendor {
    OpenAi,
    Anthropic,
}

impl Vendor {
    /// The vendor whose route this path is.
    pub(crate) fn of(path: &str) -> Vendor {
        if path.starts_with("/v1/messages") { Vendor::Anthropic } else { Vendor::OpenAi }
    }

    /// The vendor whose client asks, on a route that both have: Anthropic's names its version.
    pub(super) fn of_client(headers: &HeaderMap) -> Vendor {
        match headers.contains_key("anthropic-version") {
            true => Vendor::Anthropic,
            false => Vendor::OpenAi,
        }
    }
}

/// Why a request was refused, or failed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ApiError {
    status: StatusCode,
    message: String,
    /// The field at fault.
    param: Option<String>,
    /// OpenAI's word for it, where clients act on one.
    code: Option<&'static str>,
    /// How long a prompt is that does not fit into the context.
    overflow: Option<Overflow>,
}

/// A prompt that does not fit. Clients shorten the conversation and ask again if the message has the
/// words of their vendor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Overflow {
    num_tokens: u64,
    context_length: u64,
}

impl Overflow {
    fn message(self, vendor: Vendor) -> String {
        let Overflow { num_tokens, context_length } = self;
        match vendor {
            Vendor::OpenAi => format!(
                "This model's maximum context length is {context_length} tokens. However, your prompt has \
                 {num_tokens} tokens: shorten it."
            ),
            Vendor::Anthropic => {
                format!("prompt is too long: {num_tokens} tokens > {context_length} maximum")
            }
        }
    }
}

impl ApiError {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        ApiError { status, message: message.into(), param: None, code: None, overflow: None }
    }

    /// A field has a value that it cannot have.
    pub(super) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        let param = Some(param.into()).filter(|param| !param.is_empty());
        ApiError { param, ..Self::new(StatusCode::BAD_REQUEST, message) }
    }

    /// A field is known, and Cairn cannot do what it asks for.
    pub(super) fn unsupported(param: impl Into<String>) -> Self {
        let param = param.into();
        let message = format!("Cairn does not support `{param}` yet: leave it out.");
        ApiError { code: Some("unsupported_parameter"), ..Self::invalid(param, message) }
    }

    /// A part of a message is not text. `kind` is the vendor's word for it.
    pub(super) fn no_text(kind: &str, place: impl Into<String>) -> Self {
        let place = place.into();
        let what = match kind {
            "image" | "image_url" | "input_image" => "Images",
            "audio" | "input_audio" => "Sounds",
            "document" | "file" | "input_file" => "Files",
            _ => return Self::unsupported(place),
        };
        let message = format!("{what} are not supported: `{place}` may have only text.");
        ApiError { code: Some("unsupported_parameter"), ..Self::invalid(place, message) }
    }

    /// The same, about a field.
    pub(super) fn about(self, param: impl Into<String>) -> Self {
        ApiError { param: Some(param.into()), ..self }
    }

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    pub(super) fn wrong_method(message: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, message)
    }

    pub(super) fn no_model(name: &str) -> Self {
        let message =
            format!("There is no model {name} on this machine: GET /v1/models lists them.");
        ApiError {
            param: Some("model".to_owned()),
            code: Some("model_not_found"),
            ..Self::not_found(message)
        }
    }

    pub(super) fn too_large(limit_bytes: usize) -> Self {
        let message = format!("The request has more than {} MiB.", limit_bytes >> 20);
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    }

    /// The body is encoded, and Cairn decodes none.
    pub(super) fn encoded(encoding: &str) -> Self {
        let message = format!("The body is encoded as `{encoding}`: send it as it is.");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message)
    }

    pub(super) fn busy(limit: usize) -> Self {
        let message = format!("{limit} answers are asked for already: try again in a moment.");
        let code = Some("rate_limit_exceeded");
        ApiError { code, ..Self::new(StatusCode::TOO_MANY_REQUESTS, message) }
    }

    pub(super) fn refused(refusal: Refusal) -> Self {
        let (code, sentence) = match refusal {
            Refusal::Token => (
                Some("invalid_api_key"),
                "The key is missing, wrong or revoked: make one in Cairn’s settings, under Server, \
                 or use the token of the address that Cairn printed.",
            ),
            Refusal::Revoked => (Some("invalid_api_key"), refusal.sentence()),
            Refusal::ContentType => (None, "The content type must be application/json."),
            refusal => (None, refusal.sentence()),
        };
        ApiError { code, ..Self::new(refusal.status(), sentence) }
    }

    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    /// The response, in a vendor's form.
    pub(crate) fn response(&self, vendor: Vendor) -> Response {
        let mut response = (self.status, Json(self.body(vendor))).into_response();
        match self.status {
            StatusCode::TOO_MANY_REQUESTS => {
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            StatusCode::UNAUTHORIZED => {
                let scheme = HeaderValue::from_static("Bearer");
                response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
            }
            _ => {}
        }
        response
    }

    /// The object that says it: the body of a response, or an event of a stream.
    pub(super) fn body(&self, vendor: Vendor) -> Value {
        let kind = self.kind(vendor);
        let message = match self.overflow {
            Some(overflow) => overflow.message(vendor),
            None => self.message.clone(),
        };
        match vendor {
            Vendor::OpenAi => json!({ "error": {
                "message": message, "type": kind, "param": self.param, "code": self.code,
            } }),
            Vendor::Anthropic => {
                json!({ "type": "error", "error": { "type": kind, "message": message } })
            }
        }
    }

    fn kind(&self, vendor: Vendor) -> &'static str {
        match (self.status, vendor) {
            (StatusCode::UNAUTHORIZED, _) => "authentication_error",
            (StatusCode::FORBIDDEN, _) => "permission_error",
            (StatusCode::TOO_MANY_REQUESTS, _) => "rate_limit_error",
            (StatusCode::NOT_FOUND, Vendor::Anthropic) => "not_found_error",
            (StatusCode::PAYLOAD_TOO_LARGE, Vendor::Anthropic) => "request_too_large",
            (status, Vendor::OpenAi) if status.is_server_error() => "server_error",
            (status, Vendor::Anthropic) if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        }
    }
}

impl ApiError {
    /// Why a model does not answer that was asked for by this name. What the server's disk has, and
    /// where, is nothing that programs are told.
    pub(super) fn of_model(failure: Failure, wanted: Option<&str>) -> Self {
        match (failure.kind.as_deref(), wanted) {
            (Some(FailureKind::NoSuchModel { .. }), Some(name)) => Self::no_model(name),
            (
                Some(
                    FailureKind::IncompleteModel { detail, .. }
                    | FailureKind::UnreadableModel { detail, .. },
                ),
                Some(name),
            ) => {
                let message = format!("{name} cannot be used. {detail}");
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
            }
            _ => failure.into(),
        }
    }

    /// Why the model of this name gives no answer.
    pub(super) fn of_answer(error: EngineError, model: &str) -> Self {
        if !error.lacks_template() {
            return error.into();
        }
        let message = format!(
            "{model} has no chat template, so it can't take messages: ask /v1/completions with a text, put \
             the chat_template.jinja of its original model into its folder and load it again, or choose \
             another model."
        );
        Self::invalid("model", message)
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        match failure.code {
            FailureCode::NotFound => ApiError {
                param: Some("model".to_owned()),
                code: Some("model_not_found"),
                ..Self::not_found(failure.message)
            },
            FailureCode::Invalid => Self::new(StatusCode::BAD_REQUEST, failure.message),
            FailureCode::NoModel => ApiError {
                code: Some("model_not_found"),
                ..Self::new(StatusCode::SERVICE_UNAVAILABLE, failure.message)
            },
            FailureCode::SetAside => ApiError {
                code: Some("model_set_aside"),
                ..Self::new(StatusCode::SERVICE_UNAVAILABLE, failure.message)
            },
            _ => Self::new(StatusCode::INTERNAL_SERVER_ERROR, failure.message),
        }
    }
}

impl From<StartError> for ApiError {
    fn from(error: StartError) -> Self {
        let param = "cairn.start_from";
        match error {
            StartError::Engine(error) => error.into(),
            StartError::Store(failure) => failure.into(),
            StartError::NoStartingPoint { .. } => ApiError {
                status: StatusCode::NOT_FOUND,
                ..Self::invalid(param, error.to_string())
            },
            StartError::UnknownTokens { .. } | StartError::Differs { .. } => {
                Self::invalid(param, error.to_string())
            }
        }
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let status = match &error {
            error if error.is_bad_request() => StatusCode::BAD_REQUEST,
            EngineError::Closed | EngineError::NotLoaded { .. } => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let code = error.is_too_long().then_some("context_length_exceeded");
        let param = error.parameter().map(str::to_owned);
        let failure = Failure::from(error);
        let overflow = match failure.kind.as_deref() {
            Some(&FailureKind::ContextFull { tokens, context_length }) => {
                Some(Overflow { num_tokens: tokens, context_length })
            }
            _ => None,
        };
        ApiError { code, param, overflow, ..Self::new(status, failure.message) }
    }
}
