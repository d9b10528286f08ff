//! The import of a model that runs.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::wire::{ModelImport, RoundingChoice, RoundingForm};

/// The import that runs; one at a time. Owned by [`crate::App`].
#[derive(Debug, Default)]
pub(crate) struct RunningImport(Mutex<Option<Running>>);

#[derive(Debug)]
struct Running {
    cancelled: CancellationToken,
    /// How far it is.
    progress: ModelImport,
    /// Takes what a person chooses, while it waits for that.
    chosen: Option<oneshot::Sender<RoundingForm>>,
}

impl RunningImport {
    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// None while another import runs.
    pub(super) fn begin(&self, file_name: &str) -> Option<CancellationToken> {
        let mut running = self.running();
        let file_name = file_name.to_owned();
        let progress = ModelImport { file_name, bytes: 0, total_bytes: 0, choices: Vec::new() };
        let new = Running { cancelled: CancellationToken::new(), progress, chosen: None };
        running.is_none().then(|| running.insert(new).cancelled.clone())
    }

    /// Notes how far it is, and returns that.
    pub(super) fn is_at(&self, bytes: u64, total_bytes: u64) -> Option<ModelImport> {
        let mut running = self.running();
        let progress = &mut running.as_mut()?.progress;
        (progress.bytes, progress.total_bytes) = (bytes, total_bytes);
        Some(progress.clone())
    }

    /// Notes that it waits for a choice, and returns what takes that and how far it is.
    pub(super) fn waits(
        &self,
        choices: Vec<RoundingChoice>,
    ) -> Option<(oneshot::Receiver<RoundingForm>, ModelImport)> {
        let mut running = self.running();
        let running = running.as_mut()?;
        let (sender, chosen) = oneshot::channel();
        (running.chosen, running.progress.choices) = (Some(sender), choices);
        Some((chosen, running.progress.clone()))
    }

    /// Goes on with what was chosen, if it waits for that.
    pub(crate) fn choose(&self, form: RoundingForm) {
        if let Some(running) = &mut *self.running()
            && let Some(chosen) = running.chosen.take()
        {
            running.progress.choices = Vec::new();
            // An import that has been cancelled listens no more.
            let _ = chosen.send(form);
        }
    }

    /// Notes that it has ended.
    pub(super) fn end(&self) {
        self.running().take();
    }

    /// How far the import under way is; none if there is none.
    pub(crate) fn progress(&self) -> Option<ModelImport> {
        self.running().as_ref().map(|running| running.progress.clone())
    }

    /// Ends the import under way, if there is one.
    pub(crate) fn cancel(&self) {
        if let Some(Running { cancelled, .. }) = &*self.running() {
            cancelled.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_import_under_way_says_how_far_it_is_until_it_ends() {
        let importing = RunningImport::default();
        assert_eq!((importing.progress(), importing.is_at(1, 2)), (None, None));
        let token = importing.begin("a.gguf");
        let at = |bytes, total_bytes| {
            let (file_name, choices) = ("a.gguf".to_owned(), Vec::new());
            Some(ModelImport { file_name, bytes, total_bytes, choices })
        };
        assert_eq!(importing.progress(), at(0, 0));
        assert!(importing.begin("b.gguf").is_none(), "one at a time");
        assert_eq!(importing.is_at(5, 10), at(5, 10));
        assert_eq!(importing.progress(), at(5, 10));
        importing.cancel();
        assert!(token.is_some_and(|token| token.is_cancelled()));
        importing.end();
        assert_eq!(importing.progress(), None);
    }
}
