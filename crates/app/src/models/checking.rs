//! Opens models' files once, in a child process, and keeps what that has shown.

use std::path::{Path, PathBuf};

use cairn_formats::gguf::{PerplexityChange, RoundedWeights};
use cairn_hub::FilesIdentity;
use cairn_store::StoreError;

use super::catalog;
use super::check::CheckVerdict;
use super::check_child::ModelVerdict;
use crate::app::App;
use crate::clock::now_ms;
use crate::convert;
use crate::wire::{Failure, FailureCode, FailureKind, ModelProblem};

/// Opens a model's files in a child process and remembers what that showed; none where nothing was
/// learned.
pub(super) async fn check_now(app: &App, folder: &Path) -> Option<ModelVerdict> {
    let checker = app.catalog.checker.as_ref()?;
    // Read before the check: of files that change meanwhile nothing is known.
    let identity = FilesIdentity::of(folder).ok()?;
    let verdict = match checker.check(folder).await {
        CheckVerdict::Usable(facts) => Some(ModelVerdict::Usable(facts)),
        CheckVerdict::Problem(problem) => Some(ModelVerdict::Problem(problem)),
        CheckVerdict::NotChecked(reason) => {
            tracing::warn!("{} was not checked: {reason}", folder.display());
            None
        }
    };
    remember(app, folder, &identity, verdict.clone()).await;
    verdict
}

/// Writes what was measured of a model beside its files. That changes what identifies them, and
/// nothing else that a check has found: they are not opened again.
pub(crate) async fn keep_perplexity(app: &App, folder: PathBuf, change: PerplexityChange) {
    let before = FilesIdentity::of(&folder).ok();
    let target = folder.clone();
    if let Some(Err(error)) = app.blocking(move || change.write(&target)).await {
        tracing::warn!("what rounding costs {} is not kept: {error}", folder.display());
    }
    let known = before.and_then(|identity| app.catalog.verdict(&identity)).flatten();
    let (Some(ModelVerdict::Usable(mut facts)), Ok(after)) = (known, FilesIdentity::of(&folder))
    else {
        return;
    };
    facts.rounded_weights = RoundedWeights::read(&folder).map(convert::rounded_weights);
    remember(app, &folder, &after, Some(ModelVerdict::Usable(facts))).await;
}

/// Keeps what a check of these files has shown, for the next run too.
async fn remember(
    app: &App,
    folder: &Path,
    identity: &FilesIdentity,
    verdict: Option<ModelVerdict>,
) {
    app.catalog.know(identity, verdict.clone());
    if let Some(verdict) = &verdict {
        let (identity, json) = (catalog::key(identity), verdict.to_json().to_string());
        match app.store.save_model_check(&identity, &json, now_ms()).await {
            // Cairn was quit meanwhile, which is nothing that anyone has to know.
            Ok(()) | Err(StoreError::Closed { .. }) => {}
            Err(error) => {
                tracing::warn!("{} is checked again at the next start: {error}", folder.display());
            }
        }
    }
}

/// Fails unless the model in this folder was checked and can be used; an unknown one is checked now.
pub(crate) async fn require_usable(app: &App, name: &str, folder: &Path) -> Result<(), Failure> {
    let known = FilesIdentity::of(folder).ok().and_then(|found| app.catalog.verdict(&found));
    let verdict = match known {
        Some(verdict) => verdict,
        None => {
            let _checking = app.catalog.checking.lock().await;
            check_now(app, folder).await
        }
    };
    match verdict {
        Some(ModelVerdict::Problem(ModelProblem { detail, .. })) => {
            let kind = FailureKind::ModelUnusable {
                model: name.to_owned(),
                detail: convert::sentence(&detail),
            };
            let why = format!("{name} cannot be used: {detail}.");
            Err(Failure::new(FailureCode::Engine, why).of_kind(kind))
        }
        Some(ModelVerdict::Usable(_)) | None => Ok(()),
    }
}
