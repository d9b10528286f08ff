//! Which hub is asked, and with what token.

use std::sync::{PoisonError, RwLock};

use cairn_hub::{Hub, HubOptions, origin};

use super::hub_options;
use super::token_store::{SavedToken, TokenStore};
use crate::convert;
use crate::settings::Settings;
use crate::wire::{Failure, FailureCode, FailureKind, HubAccess, TokenPlace};

/// The hub that is asked now, and the token that was saved.
///
/// A token goes to the hub that it belongs to and to no other: a saved one to the hub that it was
/// entered for, that of the environment to the environment's hub. Owned by [`crate::App`].
#[derive(Debug)]
pub(crate) struct HubAccount {
    /// None where no folder for models is known.
    environment: Option<HubOptions>,
    current: RwLock<Current>,
    pub(super) tokens: TokenStore,
    /// Locked while the hub or the token is changed, here and in the queue of downloads.
    pub(super) changing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Clone)]
pub(super) struct Current {
    /// Or why none can be asked.
    pub(super) hub: Result<Hub, Failure>,
    /// Of the token that is sent.
    pub(super) token_place: Option<TokenPlace>,
    /// Whether or not it belongs to this hub.
    pub(super) saved: Option<SavedToken>,
}

impl HubAccount {
    /// The hub of the settings, else of the environment, with the token that belongs to it.
    pub(crate) async fn load(
        environment: Option<HubOptions>,
        settings: &Settings,
        tokens: TokenStore,
    ) -> HubAccount {
        // With a token of the environment the keychain need not be asked, which may ask the person.
        let has_token = environment.as_ref().is_some_and(|options| options.token.is_some());
        let is_other_hub = !settings.hub_endpoint.is_empty();
        let saved = match has_token && !is_other_hub {
            true => None,
            false => {
                let tokens = tokens.clone();
                // A keychain may take its time.
                tokio::task::spawn_blocking(move || tokens.read()).await.ok().flatten()
            }
        };
        let current = RwLock::new(connect(environment.as_ref(), settings, saved));
        HubAccount { environment, current, tokens, changing: tokio::sync::Mutex::default() }
    }

    /// The hub as it is set up now.
    pub(crate) fn hub(&self) -> Result<Hub, Failure> {
        self.current().hub
    }

    /// Whether this is the hub that the environment names.
    pub(super) fn is_of_environment(&self, asked: &str) -> bool {
        let environment = self.environment.as_ref();
        environment.and_then(|found| origin(&found.endpoint)).as_deref() == Some(asked)
    }

    pub(super) fn current(&self) -> Current {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn put(&self, current: Current) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = current;
    }

    /// Asks the hub that the settings name from now on, with the token that belongs to it.
    pub(super) fn follow(
        &self,
        settings: &Settings,
        saved: Option<SavedToken>,
    ) -> Result<Hub, Failure> {
        let current = connect(self.environment.as_ref(), settings, saved);
        self.put(current.clone());
        current.hub
    }

    /// Which hub is asked, and with what token.
    pub(super) fn access(&self) -> Result<HubAccess, Failure> {
        let Current { hub, token_place, saved } = self.current();
        let hub = hub?;
        let environment = self.environment.as_ref();
        let is_offline = environment.is_some_and(|options| options.is_offline);
        let is_sent = matches!(token_place, Some(TokenPlace::Keychain | TokenPlace::File));
        Ok(HubAccess {
            endpoint: hub.endpoint().trim_end_matches('/').to_owned(),
            folder: convert::path(hub.cache()),
            default_endpoint: environment.map_or_else(String::new, |found| found.endpoint.clone()),
            default_folder: environment
                .map_or_else(String::new, |found| convert::path(&found.cache)),
            token_place,
            other_token_hub: saved.filter(|_| !is_sent).map(|saved| saved.origin),
            is_offline,
        })
    }
}

/// The hub that the settings name, else the environment's, with the token that belongs to it.
fn connect(
    environment: Option<&HubOptions>,
    settings: &Settings,
    saved: Option<SavedToken>,
) -> Current {
    let Some(environment) = environment else {
        let why = "Models cannot be downloaded: the folder for them is not known. Set HF_HOME.";
        let why = Failure::new(FailureCode::Storage, why).of_kind(FailureKind::NoModelFolder);
        let hub = Err(why);
        return Current { hub, token_place: None, saved };
    };
    let hub = match Hub::new(hub_options::options(environment, settings)) {
        Ok(hub) => hub,
        Err(error) => return Current { hub: Err(error.into()), token_place: None, saved },
    };
    let wanted = hub.origin();
    let is_environments = origin(&environment.endpoint).as_ref() == Some(&wanted);
    let from_environment = environment.token.clone().filter(|_| is_environments);
    let from_environment = from_environment.map(|token| (token, TokenPlace::Environment));
    let is_its = |saved: &&SavedToken| saved.origin == wanted;
    let from_saved = saved.as_ref().filter(is_its).map(|saved| (saved.token.clone(), saved.place));
    let (token, token_place) = from_environment.or(from_saved).unzip();
    Current { hub: Ok(hub.with_token(token)), token_place, saved }
}
