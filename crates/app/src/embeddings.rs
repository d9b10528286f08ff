//! Vectors of texts for other programs. Nothing of them is stored.

use std::sync::Arc;

pub use cairn_engine::{EmbedInput, EmbedRequest, Embeddings};
pub use cairn_formats::base64_text;

use cairn_engine::EngineError;

use crate::app::App;
use crate::crashes::record::{Step, StepKind};
use crate::models::loading;
use crate::wire::Failure;

/// Why there are no vectors.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// There is no such model, or it could not be loaded.
    #[error("{}", .0.message)]
    Model(Failure),
    /// The engine could not make them.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl App {
    /// Makes the vectors of a request, with the name of the model that made them. The model is loaded
    /// if need be; without a name the loaded one makes them. Dropping the future cancels the work.
    pub async fn embed(
        self: &Arc<Self>,
        request: EmbedRequest,
    ) -> Result<(String, Embeddings), EmbedError> {
        self.titles.stop();
        let model = loading::ensure_answers(self, request.model.as_deref()).await;
        let model = model.map_err(EmbedError::Model)?;
        let step = self.crashes.begin(Step::new(StepKind::Program, model.clone()));
        let request = EmbedRequest { model: Some(model.clone()), ..request };
        let embeddings = self.engine.embed(request).await?;
        step.succeeded();
        Ok((model, embeddings))
    }
}
