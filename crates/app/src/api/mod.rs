//! What the app knows of the API that other programs ask: which keys it takes, and what was asked
//! last. The server itself is `cairn_server`.
//!
//! ```text
//! key of a request  ─► App::api_client ─► ApiClient: its name, its owner in the prompt cache
//! request that ends ─► App::add_api_request ─► Event::ApiRequest
//! ```

mod clients;
mod keys;
mod requests;

use crate::app::App;
use crate::wire::{ApiOverview, Command, Failure, Reply};

pub use clients::ApiClient;
pub use requests::EndedRequest;

use clients::Clients;
pub(crate) use clients::is_of_key;
use requests::Requests;

/// The state of the API. Owned by [`App`].
#[derive(Debug, Default)]
pub(crate) struct Api {
    clients: Clients,
    requests: Requests,
}

/// Runs one command about the API; every other command is a fault of the caller.
pub(crate) async fn run(app: &App, command: Command) -> Result<Reply, Failure> {
    match command {
        Command::MakeApiKey { name } => keys::make(app, &name).await,
        Command::RevokeApiKey { id, deletes_saved } => keys::revoke(app, &id, deletes_saved).await,
        _ => {
            let requests = app.api.requests.list();
            Ok(Reply::Api { api: ApiOverview { keys: keys::list(app).await?, requests } })
        }
    }
}
