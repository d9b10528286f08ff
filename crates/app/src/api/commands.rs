//! The commands about the API.

use super::keys;
use crate::app::App;
use crate::wire::{ApiOverview, Command, Failure, Reply};

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
