//! What every request is answered with.

use std::sync::Arc;

use cairn_app::App;
use tokio_util::sync::CancellationToken;

use crate::door::Door;

/// What all requests share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) app: Arc<App>,
    pub(crate) door: Door,
    pub(crate) serves_interface: bool,
    /// Ends the streams of subscribers, which would otherwise keep their connections for ever.
    pub(crate) closing: CancellationToken,
}
