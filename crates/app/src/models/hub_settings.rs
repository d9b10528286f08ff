//! What a person has set about the hub: its address, the folder for downloads, the proxy. Each counts
//! instead of the environment, which an app of the desktop does not see, and each counts at once.

use std::path::PathBuf;
use std::sync::Arc;

use cairn_hub::{Hub, HubOptions, check_cache_folder};

use super::hub_options::{folder, options};
use super::{hub, list};
use crate::app::App;
use crate::settings::Settings;
use crate::wire::Failure;

pub(crate) const ENDPOINT: &str = "hub_endpoint";
pub(crate) const FOLDER: &str = "download_folder";
pub(crate) const PROXY: &str = "hub_proxy";

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
        list::emit(app).await;
    }
}
