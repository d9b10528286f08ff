//! Commands that a page cannot run by itself: script in it could send these commands without a person.
//!
//! A shell that shows a page calls [`App::needed_consent`] before it runs a command, and asks a
//! person if consent is needed. `App::call` does not ask: its callers in this process are trusted.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::app::App;
use crate::models::hub_settings::{ENDPOINT, FOLDER, PROXY};
use crate::wire::{Command, SettingTarget};

/// The consent that a command needs before it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Consent {
    /// The models of this folder are listed and loaded.
    ModelFolder(PathBuf),
    /// Models are downloaded to this folder.
    DownloadFolder(PathBuf),
    /// The hub at this address is searched, and models come from it.
    HubAddress(String),
    /// The hub is reached through this proxy.
    HubProxy(String),
}

/// Folders of models that a person has taken off the list. Adding one again needs no consent.
#[derive(Debug, Default)]
pub(crate) struct RemovedFolders(Mutex<HashSet<String>>);

impl RemovedFolders {
    pub(crate) fn add(&self, path: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned());
    }

    fn has(&self, path: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(path)
    }
}

impl App {
    /// Returns the consent that a page's command needs; `None` if it may run at once.
    pub fn needed_consent(&self, command: &Command) -> Option<Consent> {
        match command {
            Command::AddModelFolder { path } if !self.removed_folders.has(path) => {
                Some(Consent::ModelFolder(PathBuf::from(path)))
            }
            Command::SetSetting { scope: SettingTarget::App, key, value } => {
                // Without a text the environment's value holds, and the page cannot change that
                // one.
                let text = value.as_str().map(str::trim).filter(|text| !text.is_empty())?;
                let settings = self.settings();
                let (current, consent) = match key.as_str() {
                    ENDPOINT => (settings.hub_endpoint, Consent::HubAddress(text.to_owned())),
                    PROXY => (settings.hub_proxy, Consent::HubProxy(text.to_owned())),
                    FOLDER => (settings.download_folder, Consent::DownloadFolder(text.into())),
                    _ => return None,
                };
                (current.trim() != text).then_some(consent)
            }
            _ => None,
        }
    }
}
