//! What the app's list says of a request. It is added when the last holder of the record drops it:
//! the request's handler, or an answer that is still written after that.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use cairn_app::completion::GenerationStats;
use cairn_app::wire::ApiFigures;
use cairn_app::{App, EndedRequest};

use crate::shared::Shared;

/// The status of a request whose client went away before its end, as nginx calls it.
const CLIENT_GONE: u16 = 499;

/// Says `generic` where texts tell the model of tools, because its chat template takes none.
const TOOLS_HEADER: HeaderName = HeaderName::from_static("x-cairn-tools");

/// The tokens of texts that were read.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadTokens {
    pub(super) num_tokens: usize,
    /// How many of these were not computed again.
    pub(super) num_cached: usize,
}

/// A request under way.
#[derive(Debug)]
pub(super) struct RequestRecord {
    app: Arc<App>,
    request: Mutex<EndedRequest>,
    has_generic_tools: AtomicBool,
}

impl RequestRecord {
    fn begin(app: &Arc<App>, request: &Request) -> Arc<RequestRecord> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let request = EndedRequest {
            at_ms: i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            key: None,
            route: format!("{} {}", request.method(), request.uri().path()),
            model: None,
            figures: None,
            // What is dropped before its response was dropped by its client.
            status: CLIENT_GONE,
        };
        Arc::new(RequestRecord {
            app: app.clone(),
            request: Mutex::new(request),
            has_generic_tools: AtomicBool::new(false),
        })
    }

    /// That of a request which [`keep`] has let through.
    pub(super) fn of(extensions: &axum::http::Extensions) -> Option<Arc<RequestRecord>> {
        extensions.get::<Arc<RequestRecord>>().cloned()
    }

    pub(super) fn set_key(&self, name: Option<&str>) {
        self.guard().key = name.map(str::to_owned);
    }

    pub(super) fn set_model(&self, name: &str) {
        self.guard().model = Some(name.to_owned());
    }

    /// Its model is told of tools in texts, because the chat template takes none.
    pub(super) fn set_generic_tools(&self) {
        self.has_generic_tools.store(true, Ordering::Relaxed);
    }

    /// An answer of it has ended as it should. Of several answers the tokens are added up, and their
    /// times are those of the first that ends.
    pub(super) fn finish(&self, stats: &GenerationStats) {
        self.add(ApiFigures {
            prompt_tokens: count(stats.num_prompt_tokens),
            cached_tokens: count(stats.num_cached_tokens),
            generation_tokens: count(stats.num_generation_tokens),
            time_to_first_token_ms: stats.time_to_first_token_ms,
            generation_tps: stats.generation_tps,
        });
    }

    /// A prompt of it has been scored, for which nothing is written.
    pub(super) fn scored(&self, prompt_tokens: u32) {
        self.add(ApiFigures {
            prompt_tokens,
            cached_tokens: 0,
            generation_tokens: 0,
            time_to_first_token_ms: 0.0,
            generation_tps: 0.0,
        });
    }

    fn add(&self, figures: ApiFigures) {
        let mut request = self.guard();
        request.figures = Some(match request.figures.take() {
            None => figures,
            Some(before) => ApiFigures {
                prompt_tokens: before.prompt_tokens.saturating_add(figures.prompt_tokens),
                cached_tokens: before.cached_tokens.saturating_add(figures.cached_tokens),
                generation_tokens: before
                    .generation_tokens
                    .saturating_add(figures.generation_tokens),
                ..before
            },
        });
        drop(request);
        self.end(StatusCode::OK);
    }

    /// A model has read its texts, which writes no tokens.
    pub(super) fn read(&self, model: &str, input: ReadTokens, took: Duration) {
        let mut request = self.guard();
        request.model = Some(model.to_owned());
        request.figures = Some(ApiFigures {
            prompt_tokens: count(input.num_tokens),
            cached_tokens: count(input.num_cached),
            generation_tokens: 0,
            time_to_first_token_ms: took.as_secs_f64() * 1e3,
            generation_tps: 0.0,
        });
    }

    /// It has ended with this status, unless it had ended before.
    pub(super) fn end(&self, status: StatusCode) {
        let request = &mut *self.guard();
        if request.status == CLIENT_GONE {
            request.status = status.as_u16();
        }
    }

    fn guard(&self) -> MutexGuard<'_, EndedRequest> {
        self.request.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn count(tokens: usize) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        self.app.add_api_request(self.guard().clone());
    }
}

/// Gives each request of the API its record.
pub(super) async fn keep(
    State(shared): State<Arc<Shared>>,
    mut request: Request,
    next: Next,
) -> Response {
    let record = RequestRecord::begin(&shared.app, &request);
    request.extensions_mut().insert(record.clone());
    let mut response = next.run(request).await;
    if record.has_generic_tools.load(Ordering::Relaxed) {
        response.headers_mut().insert(TOOLS_HEADER, HeaderValue::from_static("generic"));
    }
    // If somebody else still holds it, its stream has only begun.
    if Arc::strong_count(&record) == 1 {
        record.end(response.status());
    }
    response
}
