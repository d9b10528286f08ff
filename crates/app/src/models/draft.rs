//! The draft model of the loaded model.

use super::locating::{NamedBy, locate_as, usable_folder};
use crate::app::App;
use crate::crashes::record::{Step, StepKind};
use crate::options::ForcedSpeculation;
use crate::wire::{Failure, NoticeKind};

impl App {
    /// Fails where the draft model that the program was started with is not on this machine or cannot
    /// be used; models would answer without it.
    pub async fn check_forced_draft(&self) -> Result<(), Failure> {
        let forced = self.forced_speculation.as_ref();
        let Some(draft) = forced.and_then(ForcedSpeculation::draft_model) else {
            return Ok(());
        };
        locate_as(self, draft, NamedBy::NameOrPath).await.map(drop)
    }
}

/// Loads the draft model that is set for the loaded model, or drops the one that no longer is. The
/// caller has locked [`App::loading`]. Without its draft model a model still answers, so a failure
/// is only a warning.
pub(super) async fn load(app: &App, name: &str) {
    let draft_model = app.draft_model(&app.settings.of_model(name));
    let loaded = match draft_model.is_empty() {
        true => app.engine.unload_draft().await.map_err(Failure::from),
        false => load_named(app, &draft_model).await,
    };
    if let Err(why) = loaded {
        let (model, message) = (name.to_owned(), why.message.clone());
        let (text, kind) = match draft_model.is_empty() {
            true => (
                format!("The draft model of {name} stays in memory. {message}"),
                NoticeKind::DraftStays { model, why },
            ),
            false => (
                format!("{name} answers without its draft model {draft_model}. {message}"),
                NoticeKind::DraftUnused { model, draft: draft_model, why },
            ),
        };
        app.emit_warning(text, kind);
    }
}

async fn load_named(app: &App, draft: &str) -> Result<(), Failure> {
    let folder = match &app.forced_speculation {
        Some(_) => locate_as(app, draft, NamedBy::NameOrPath).await?.1,
        None => usable_folder(app, draft).await?,
    };
    app.crashes.require(draft)?;
    let _step = app.crashes.begin(Step::new(StepKind::Loading, draft.to_owned()));
    Ok(app.engine.load_draft(draft, &folder).await?)
}
