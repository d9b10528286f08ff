//! The request for an answer to a branch.

use std::sync::Arc;

use cairn_engine::{GenerateRequest, SegmentOptions, Speculation};
use cairn_store::{NewDocument, Store};

use crate::app::App;
use crate::cache::owners::conversation_owner;
use crate::chat::beginning::{Beginning, ReadPart};
use crate::convert;
use crate::documents::prompt::WithDocuments;
use crate::models::loaded::loaded_status;
use crate::settings::sampling::sampling;
use crate::settings::{Settings, stop_strings};
use crate::wire::Failure;

/// A branch that ends in an answer, and the model that writes it.
pub(crate) struct BranchToAnswer<'a> {
    pub(crate) store: &'a Arc<Store>,
    pub(crate) conversation_id: &'a str,
    /// Up to the answer, which is its end.
    pub(crate) branch: &'a [cairn_store::Message],
    pub(crate) model: Option<&'a str>,
    /// Documents that the question at its end would be sent with.
    pub(crate) draft: &'a [NewDocument],
}

impl BranchToAnswer<'_> {
    /// The request for an answer that has nothing yet, to whichever model is loaded.
    pub(crate) async fn request(
        &self,
        app: &App,
        settings: &Settings,
    ) -> Result<GenerateRequest, Failure> {
        let BranchToAnswer { store, conversation_id, branch, model, draft } = *self;
        let cuts = store.context_cuts(conversation_id).await?;
        let loaded = model.and_then(|name| loaded_status(app, name));
        let branch = WithDocuments::with_draft(store, conversation_id, branch, draft).await?;
        let beginning = Beginning::of(app, store, conversation_id, loaded.as_ref()).await?;
        let prompt = branch.prompt(&beginning, ReadPart::of(branch.rows(), &cuts));
        let (kv_cache, speculation) = match &beginning {
            Beginning::StartingPoint(prefix) => {
                let speculation = match app.speculation(settings, loaded.as_ref()) {
                    // The starting point may not say which tokens a draft model would have to read.
                    Speculation::Draft { .. } => Speculation::Off,
                    speculation => speculation,
                };
                (prefix.kv_cache(), speculation)
            }
            Beginning::Own { .. } => app.decoding(settings, loaded.as_ref()),
        };
        let is_private = app.is_private_store(store);
        Ok(GenerateRequest {
            sampling: sampling(settings),
            thinking: Some(convert::thinking(settings.thinking)),
            stop: stop_strings(&settings.stop),
            max_tokens: settings.max_tokens as usize,
            context_length: settings.context_length.map(|length| length as usize),
            // What a private conversation computes must not come near the prompt cache's files.
            use_prompt_cache: !is_private,
            owner: (!is_private).then(|| conversation_owner(conversation_id)),
            kv_cache,
            speculation,
            // No tools are offered, but a model that was trained on some may call them all the same.
            segments: Some(SegmentOptions { reads_calls: true, ..SegmentOptions::default() }),
            ..GenerateRequest::new(prompt)
        })
    }
}
