//! A model loaded for one command.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use cairn_chat::Thinking;
use cairn_engine::{Engine, EngineOptions, ModelInfo, ModelOptions};

use crate::arguments::{ModelFlags, SpeculationFlags};
use crate::download::{Questions, find_or_download};
use crate::output;

/// An engine with the given model loaded. It uses no stored prompt caches.
pub struct Session {
    pub engine: Engine,
    pub model: ModelInfo,
    /// The model's folder.
    pub folder: PathBuf,
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
        let folder = find_or_download(&flags.model, flags.yes, questions).await?;
        let (engine, _) =
            Engine::start(EngineOptions { keep_quantized: flags.keep_quantized, ..options });
        let options =
            ModelOptions { bf16_state: flags.bf16_state, traces_steps: flags.trace_steps };
        let spinner = output::spinner(format!("loading {}", flags.model));
        let model = engine.load_with(&flags.model, &folder, options).await?;
        spinner.finish_and_clear();
        Ok(Session { engine, model, folder })
    }

    /// Fails unless the model can be told to think so much.
    pub async fn require_thinking(&self, level: Thinking) -> Result<()> {
        let choices = self.engine.thinking(None).await?;
        let name = &self.model.name;
        if choices.levels().len() == 0 {
            bail!("cannot use --thinking {level}: the chat template of {name} has no such choice");
        }
        if level != Thinking::Automatic && !choices.levels().any(|known| known == level) {
            let known: Vec<_> = choices.levels().map(Thinking::name).collect();
            bail!("cannot use --thinking {level}: {name} allows {}", known.join(", "));
        }
        Ok(())
    }

    /// Loads the draft model that the flags name, if they do.
    pub async fn load_draft(
        &self,
        flags: &SpeculationFlags,
        model: &ModelFlags,
        questions: Questions,
    ) -> Result<()> {
        let Some(draft) = &flags.draft_model else { return Ok(()) };
        let folder = find_or_download(draft, model.yes, questions).await?;
        let loaded = self.engine.load_draft(draft, &folder).await;
        loaded.with_context(|| format!("cannot use {draft} as the draft model"))
    }
}
