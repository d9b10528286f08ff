//! What a person has set about the hub: its address, the folder for downloads, the proxy. Each counts
//! instead of the environment, which an app of the desktop does not see, and each counts at once.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_hub::{Hub, HubOptions, check_cache_folder};

use super::{catalog, hub};
use crate::app::App;
use crate::settings::Settings;
use crate::wire::Failure;

const ENDPOINT: &str = "hub_endpoint";
const FOLDER: &str = "download_folder";
const PROXY: &str = "hub_proxy";

/// The environment's options with what the settings say instead, without a token: to whom that is
/// sent depends on the address.
pub(super) fn options(environment: &HubOptions, settings: &Settings) -> HubOptions {
    let Settings { hub_endpoint, hub_proxy, .. } = settings;
    let is_set = |text: &&String| !text.trim().is_empty();
    let endpoint = Some(hub_endpoint).filter(is_set).unwrap_or(&environment.endpoint);
    let proxy = Some(hub_proxy).filter(is_set).or(environment.proxy.as_ref());
    HubOptions {
        endpoint: endpoint.trim().to_owned(),
        proxy: proxy.map(|proxy| proxy.trim().to_owned()),
        cache: folder(settings).unwrap_or_else(|| environment.cache.clone()),
        token: None,
        ..environment.clone()
    }
}

/// The folder that was chosen for downloads.
pub(crate) fn folder(settings: &Settings) -> Option<PathBuf> {
    let folder = &settings.download_folder;
    (!folder.is_empty()).then(|| PathBuf::from(folder))
}

/// Refuses a value of one of these settings that could not be used, before it is saved.
pub(crate) async fn check(app: &App, key: &str, wanted: &Settings) -> Result<(), Failure> {
    // Nothing is asked or written by this: the folder is checked apart.
    let unset = HubOptions::new(PathBuf::new());
    let wanted_options = options(&unset, wanted);
    match key {
        ENDPOINT => {
            Hub::new(HubOptions { proxy: None, ..wanted_options })?;
        }
        PROXY => {
            Hub::new(HubOptions { endpoint: unset.endpoint, ..wanted_options })?;
        }
        FOLDER => {
            let Some(folder) = folder(wanted) else { return Ok(()) };
            // A disk may take its time.
            let checked = app.blocking(move || check_cache_folder(&folder)).await;
            let fault = || Failure::fault("The folder could not be checked.");
            checked.ok_or_else(fault)??;
        }
        _ => {}
    }
    Ok(())
}

/// Uses the settings as they are now: what is asked and downloaded from now on follows them.
pub(crate) async fn apply(app: &Arc<App>, key: &str) {
    if ![ENDPOINT, FOLDER, PROXY].contains(&key) {
        return;
    }
    let settings = app.settings();
    hub::follow_settings(app, &settings).await;
    if key == FOLDER {
        app.model_folders.set_chosen_cache(folder(&settings));
        catalog::emit(app).await;
    }
}

/// How a folder is written on the wire.
pub(super) fn shown(folder: &Path) -> String {
    folder.to_string_lossy().into_owned()
}
