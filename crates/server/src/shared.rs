//! The state that all request handlers share.

use std::sync::Arc;

use cairn_app::App;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::api::AnsweredPrompts;
use crate::parsing::Parser;
use crate::request_guard::RequestGuard;

/// State shared by all request handlers.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) app: Arc<App>,
    pub(crate) guard: RequestGuard,
    pub(crate) serves_interface: bool,
    /// Cancelled at shutdown. Ends the event streams, which would otherwise stay open for ever.
    pub(crate) closing: CancellationToken,
    /// A permit for each answer that may run for a program.
    pub(crate) answers: Arc<Semaphore>,
    pub(crate) parser: Parser,
    pub(crate) answered: AnsweredPrompts,
}
