//! What the app knows of the API that other programs ask: whether a server serves it, which keys
//! it takes, and what was asked last. The server itself is the shell's (`cairn_server`).
//!
//! ```text
//! setting api_is_on ─► App::api_wanted ─► the shell's server
//!                   ─► App::api_started, App::api_stopped ─► Event::ApiServer
//! key of a request  ─► App::api_client ─► ApiClient: its name, its owner in the prompt cache
//! request that ends ─► App::add_api_request ─► Event::ApiRequest
//! ```

mod clients;
mod keys;
mod requests;
mod server;

use crate::app::App;
use crate::settings::Settings;
use crate::wire::{ApiOverview, Command, Failure, Reply};

pub use clients::ApiClient;
pub use requests::EndedRequest;

use clients::Clients;
use requests::Requests;
use server::ServerState;
pub(crate) use server::{follow_setting, is_about_server};

/// The state of the API. Owned by [`App`].
#[derive(Debug)]
pub(crate) struct Api {
    server: ServerState,
    clients: Clients,
    requests: Requests,
}

impl Api {
    pub(crate) fn new(settings: &Settings) -> Api {
        Api {
            server: ServerState::new(settings),
            clients: Clients::default(),
            requests: Requests::default(),
        }
    }
}

/// Runs one command about the API; every other command is a fault of the caller.
pub(crate) async fn run(app: &App, command: Command) -> Result<Reply, Failure> {
    match command {
        Command::MakeApiKey { name } => keys::make(app, &name).await,
        Command::RevokeApiKey { id, deletes_saved } => keys::revoke(app, &id, deletes_saved).await,
        _ => {
            let (server, requests) = (app.api.server.now(), app.api.requests.list());
            Ok(Reply::Api { api: ApiOverview { server, keys: keys::list(app).await?, requests } })
        }
    }
}
