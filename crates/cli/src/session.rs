//! A model loaded for one command, and where models are found.

use std::path::PathBuf;

use anyhow::{Context, Result};
use cairn_app::DataFolder;
use cairn_engine::{Engine, EngineOptions, ModelInfo, ModelOptions};
use cairn_formats::{MAX_CONFIG_BYTES, python_json, read_file};
use cairn_hub::{CacheVariables, ModelFolders};

use crate::arguments::{ModelFlags, SpeculationFlags};
use crate::download::{Questions, find_or_download};
use crate::output;

/// An engine with the given model loaded. It uses no stored prompt caches.
pub struct Session {
    pub engine: Engine,
    pub model: ModelInfo,
}

impl Session {
    pub async fn open(flags: &ModelFlags, questions: Questions) -> Result<Self> {
        Session::open_with(flags, questions, EngineOptions::default()).await
    }

    pub async fn open_with(
        flags: &ModelFlags,
        questions: Questions,
        options: EngineOptions,
    ) -> Result<Self> {
        let folder = find_or_download(&flags.model, flags, questions).await?;
        let (engine, _) =
            Engine::start(EngineOptions { keep_quantized: flags.keep_quantized, ..options });
        let options =
            ModelOptions { bf16_state: flags.bf16_state, traces_steps: flags.trace_steps };
        let spinner = output::spinner(format!("loading {}", flags.model));
        let model = engine.load_with(&flags.model, &folder, options).await?;
        spinner.finish_and_clear();
        Ok(Session { engine, model })
    }

    /// Loads the draft model that the flags name, if they do.
    pub async fn load_draft(
        &self,
        flags: &SpeculationFlags,
        model: &ModelFlags,
        questions: Questions,
    ) -> Result<()> {
        let Some(draft) = &flags.draft_model else { return Ok(()) };
        let folder = find_or_download(draft, model, questions).await?;
        let loaded = self.engine.load_draft(draft, &folder).await;
        loaded.with_context(|| format!("cannot use {draft} as the draft model"))
    }
}

/// The folders in which models are looked up.
pub fn model_folders() -> Result<ModelFolders> {
    Ok(ModelFolders::new(DataFolder::from_environment()?.home(), &hub_variables()))
}

/// The environment's variables for the location of the shared Hugging Face cache.
pub fn hub_variables() -> CacheVariables {
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
