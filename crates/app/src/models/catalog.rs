//! What is known of the models on this machine.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cairn_engine::default_memory_limit_bytes;
use cairn_hub::{FilesIdentity, ModelFolder};
use cairn_store::Store;

use super::check::{CheckLimits, Checker};
use super::check_child::ModelVerdict;
use crate::convert;
use crate::wire::Model;

/// Precedes an identity in the database: another version of Cairn may open what this one cannot.
const CHECKED_BY: &str = concat!(env!("CARGO_PKG_VERSION"), ":");

/// What is known of models by opening their files once, and which models are hidden. Owned by
/// [`crate::App`].
#[derive(Debug)]
pub(crate) struct Catalog {
    /// None: models are listed without a check.
    pub(super) checker: Option<Checker>,
    /// By the identity of a model's files, as in the database; none for a model that could not be
    /// checked, which is tried again in the next run.
    verdicts: Mutex<HashMap<String, Option<ModelVerdict>>>,
    /// Locked while a model is checked, so that one is at a time.
    pub(super) checking: tokio::sync::Mutex<()>,
    /// Names of models whose deletion can still be undone, with the time of the deletion.
    hidden: Mutex<HashMap<String, i64>>,
    /// Locked while a list is made and sent.
    pub(super) sending: tokio::sync::Mutex<()>,
    /// The list that was sent last.
    sent: Mutex<Option<Vec<Model>>>,
}

impl Catalog {
    /// Reads the verdicts of earlier runs. Those that cannot be read are made again.
    pub(crate) async fn load(store: &Store, program: Option<PathBuf>) -> Catalog {
        let rows = store.model_checks().await.unwrap_or_else(|error| {
            tracing::warn!("the models are checked again: {error}");
            Vec::new()
        });
        let verdicts = rows.into_iter().filter_map(|(identity, verdict)| {
            let identity = identity.strip_prefix(CHECKED_BY)?.to_owned();
            Some((identity, Some(ModelVerdict::from_json(verdict.as_bytes())?)))
        });
        Catalog {
            checker: program.map(|program| Checker { program, limits: CheckLimits::default() }),
            verdicts: Mutex::new(verdicts.collect()),
            checking: tokio::sync::Mutex::default(),
            hidden: Mutex::default(),
            sending: tokio::sync::Mutex::default(),
            sent: Mutex::default(),
        }
    }

    /// The program that checks and measures models.
    pub(crate) fn program(&self) -> Option<&Path> {
        self.checker.as_ref().map(|checker| checker.program.as_path())
    }

    /// None for files that were never opened.
    pub(super) fn verdict(&self, identity: &FilesIdentity) -> Option<Option<ModelVerdict>> {
        self.verdicts().get(identity.as_str()).cloned()
    }

    /// Remembers what a check of these files has shown.
    pub(super) fn know(&self, identity: &FilesIdentity, verdict: Option<ModelVerdict>) {
        self.verdicts().insert(identity.as_str().to_owned(), verdict);
    }

    /// Forgets what a check of these files has shown.
    pub(super) fn forget(&self, identity: &FilesIdentity) {
        self.verdicts().remove(identity.as_str());
    }

    fn verdicts(&self) -> MutexGuard<'_, HashMap<String, Option<ModelVerdict>>> {
        self.verdicts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn hidden(&self) -> MutexGuard<'_, HashMap<String, i64>> {
        self.hidden.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a list that is sent, and returns whether its names differ from the names before.
    pub(super) fn remember_sent(&self, models: &[Model]) -> bool {
        let names = |models: &[Model]| -> HashSet<String> {
            models.iter().map(|model| model.name.clone()).collect()
        };
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let before = sent.replace(models.to_vec());
        before.is_none_or(|before| names(&before) != names(models))
    }

    /// Whether this list equals the last one sent.
    pub(super) fn is_sent(&self, models: &[Model]) -> bool {
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.as_deref() == Some(models)
    }

    /// Hides a model that was deleted at this time.
    pub(crate) fn hide(&self, name: &str, deleted_at_ms: i64) {
        self.hidden().insert(name.to_owned(), deleted_at_ms);
    }

    /// Shows a hidden model again; false if it was not hidden.
    pub(crate) fn show(&self, name: &str) -> bool {
        self.hidden().remove(name).is_some()
    }

    /// Whether a model is hidden since this time.
    pub(crate) fn is_hidden_since(&self, name: &str, deleted_at_ms: i64) -> bool {
        self.hidden().get(name) == Some(&deleted_at_ms)
    }

    /// The names of all hidden models.
    pub(crate) fn all_hidden(&self) -> Vec<String> {
        self.hidden().keys().cloned().collect()
    }

    /// A model's row.
    pub(super) fn describe(&self, folder: ModelFolder) -> Model {
        // Nothing can be remembered of files that cannot be identified, so they are not checked.
        let can_be_checked = self.checker.is_some() && folder.identity.is_some();
        let verdict = folder.identity.as_ref().and_then(|identity| self.verdict(identity));
        let mut model = convert::model(folder);
        if model.problem.is_some() {
            return model;
        }
        match verdict {
            Some(Some(ModelVerdict::Usable(facts))) => {
                model.facts = Some(facts.within(default_memory_limit_bytes()));
            }
            Some(Some(ModelVerdict::Problem(problem))) => model.problem = Some(problem),
            Some(None) => {}
            None => model.is_being_checked = can_be_checked,
        }
        model
    }
}

/// The identity as the database has it.
pub(super) fn key(identity: &FilesIdentity) -> String {
    format!("{CHECKED_BY}{identity}")
}
