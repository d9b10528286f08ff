//! Where models are found on this machine.

use std::path::PathBuf;

use anyhow::{Context, Result};
use cairn_app::DataFolder;
use cairn_formats::{MAX_CONFIG_BYTES, python_json, read_file};
use cairn_hub::{CacheVariables, ModelFolders};

/// The folders in which models are looked up.
pub fn model_folders() -> Result<ModelFolders> {
    Ok(ModelFolders::new(DataFolder::from_environment()?.home(), &hub_variables()))
}

/// The environment's variables for the location of the shared Hugging Face cache.
fn hub_variables() -> CacheVariables {
    CacheVariables::from_lookup(std::env::var_os)
}

/// The folder of a model given on the command line.
pub fn find_model(name: &str) -> Result<PathBuf> {
    Ok(model_folders()?.resolve(name)?)
}

/// The architecture of a model given on the command line, as its config.json names it.
pub fn model_type(name: &str) -> Result<String> {
    let config = read_file(&find_model(name)?.join("config.json"), MAX_CONFIG_BYTES)?;
    let config =
        python_json(&config).with_context(|| format!("config.json of {name} is not JSON"))?;
    let model_type = config.get("model_type").and_then(|model_type| model_type.as_str());
    Ok(model_type.unwrap_or_default().to_owned())
}
