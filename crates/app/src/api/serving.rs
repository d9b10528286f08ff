//! What the shell's server of the API asks the app and tells it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::sync::watch;

use super::clients::ApiClient;
use super::keys;
use super::requests::EndedRequest;
use super::switch::{self, IS_ON};
use crate::app::App;
use crate::clock::now_ms;
use crate::monitor::speed::SpeedOf;
use crate::settings::commands as settings;
use crate::wire::{ApiServer, Event, Failure, SettingTarget};

/// How often the last use of a key is saved.
const USE_INTERVAL_MS: i64 = 60_000;

impl App {
    /// On which port of this machine the shell is to serve the API, as the settings say; none: it
    /// is switched off.
    pub fn api_wanted(&self) -> watch::Receiver<Option<u16>> {
        self.api.server.wanted()
    }

    /// The API is served at this address from now on. `is_switched`: because the settings say so.
    pub fn api_started(&self, mut address: SocketAddr, is_switched: bool) {
        if address.ip().is_unspecified() {
            address.set_ip(Ipv4Addr::LOCALHOST.into());
        }
        switch::set(self, ApiServer::Running { address: format!("http://{address}"), is_switched });
    }

    /// The API is no longer served. With a problem it is switched off: at the next start it would
    /// most likely fail again.
    pub async fn api_stopped(self: &Arc<Self>, problem: Option<String>) {
        let has_failed = problem.is_some();
        if !has_failed {
            return switch::set(self, ApiServer::Off { problem });
        }
        // First, so that the server is not started again even if the setting cannot be saved.
        self.api.server.switch_off();
        let switched_off = settings::set(self, SettingTarget::App, IS_ON, false.into()).await;
        if let Err(failure) = switched_off {
            tracing::warn!("the API stays switched on in the settings: {}", failure.message);
        }
        switch::set(self, ApiServer::Off { problem });
    }

    /// Who has this key; none if nobody does.
    pub async fn api_client(self: &Arc<Self>, key: &str) -> Result<Option<ApiClient>, Failure> {
        let find = async { Ok(self.store.api_key_with_hash(&keys::hash(key)).await?) };
        let Some((client, row)) = self.api.clients.with_key(find).await? else { return Ok(None) };
        let now_ms = now_ms();
        if row.last_used_at_ms.is_none_or(|used_at_ms| now_ms - used_at_ms >= USE_INTERVAL_MS) {
            let app = self.clone();
            self.spawn(async move { keys::note_use(&app, &row.id, now_ms).await });
        }
        Ok(Some(client))
    }

    /// Adds a request to the list of the last ones.
    pub fn add_api_request(&self, mut ended: EndedRequest) {
        if let Some(figures) = &mut ended.figures {
            let num_tokens = figures.generation_tokens as usize;
            figures.generation_tps = SpeedOf::Writing.of_answer(num_tokens, figures.generation_tps);
        }
        let request = self.api.requests.add(ended);
        self.emit(Event::ApiRequest { request });
    }
}
