//! The state of the API.

use super::clients::Clients;
use super::requests::Requests;
use super::server::ServerState;
use crate::settings::Settings;

/// The state of the API. Owned by [`crate::App`].
#[derive(Debug)]
pub(crate) struct Api {
    pub(super) server: ServerState,
    pub(super) clients: Clients,
    pub(super) requests: Requests,
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
