//! How the hub is reached by the settings and the environment.

use std::path::PathBuf;

use cairn_hub::HubOptions;

use crate::settings::Settings;

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
