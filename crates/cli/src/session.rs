//! A model loaded for one command.

use std::path::PathBuf;

use anyhow::Result;
use cairn_app::DataFolder;
use cairn_engine::{Engine, EngineOptions, ModelInfo};
use cairn_hub::{CacheVariables, ModelFolders};

use crate::arguments::ModelChoice;
use crate::output;

/// An engine that holds the chosen model, without stored prompt caches.
pub struct Session {
    pub engine: Engine,
    pub model: ModelInfo,
}

impl Session {
    pub async fn open(choice: &ModelChoice) -> Result<Self> {
        Session::open_with(choice, EngineOptions::default()).await
    }

    pub async fn open_with(choice: &ModelChoice, options: EngineOptions) -> Result<Self> {
        let folder = find_model(&choice.model)?;
        let (engine, _) =
            Engine::start(EngineOptions { keep_quantized: choice.keep_quantized, ..options });
        let spinner = output::spinner(format!("loading {}", choice.model));
        let model = engine.load(&choice.model, &folder).await?;
        spinner.finish_and_clear();
        Ok(Session { engine, model })
    }
}

/// Where models are looked for.
pub fn model_folders() -> Result<ModelFolders> {
    Ok(ModelFolders::new(DataFolder::from_environment()?.home(), &hub_variables()))
}

/// Where the environment puts the shared Hugging Face cache.
pub fn hub_variables() -> CacheVariables {
    CacheVariables::from_lookup(std::env::var_os)
}

/// The folder of a model that was named on the command line.
pub fn find_model(name: &str) -> Result<PathBuf> {
    Ok(model_folders()?.resolve(name)?)
}
