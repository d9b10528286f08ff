//! State of runs that ended uncleanly, and of this run so that the next one knows.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cairn_store::{Store, StoreError, UncleanEnds, UncleanSubject};
use tokio_util::sync::CancellationToken;

use super::consequences::{Consequences, Counts, consequences};
use super::notice::notice_for;
use super::record::{Record, RunningRecord, RunningStep, Step};
use crate::clock::now_ms;
use crate::data_folder::DataFolder;
use crate::wire::{Event, Failure, FailureCode, FailureKind};

/// The version of Cairn that counts. As with the checks of models, another one may not have the
/// fault.
const BUILD: &str = env!("CARGO_PKG_VERSION");

/// Counts of runs that ended uncleanly. Owned by [`crate::App`].
///
/// A run ends uncleanly if its process is gone before anything has asked the app to close: an abort
/// in native code, a kill, a machine that ran out of memory or power. The next start adds one to
/// the count
///
/// - of each job that had rows at work, and
/// - of each model that was being loaded or was computing, for any caller. A model that was only in
///   memory does not count, nor does one for which saved context was being imported.
///
/// After two unclean ends a model or a job is **set aside**: nothing uses it until a person says
/// so. A count is forgotten
///
/// - when a person uses the model anyway, or continues the job, which allows its model too;
/// - for a job, when a window of its rows is saved;
/// - for a model, when a run in which it has completed an answer, or other work that runs the whole
///   model, is closed; loading it or counting tokens is not enough;
/// - when another version of Cairn starts.
///
/// After three unclean starts within a minute the next one is **quiet**: it neither loads nor resumes
/// anything by itself until a person says so, or it is closed.
#[derive(Debug)]
pub(crate) struct Crashes {
    record: Arc<RunningRecord>,
    counts: Mutex<Counts>,
    /// False if the stored counts could not be read: saving replaces all of them.
    may_save: bool,
    /// Locked while counts are saved, so that the database ends up with the newest.
    saving: tokio::sync::Mutex<()>,
    /// The notice for the first interface that asks for the state.
    notice: Mutex<Option<Event>>,
    /// Cancelled unless the start is quiet.
    quiet: CancellationToken,
}

/// A start that has not counted yet how the run before ended.
pub(crate) struct Start {
    record: Arc<RunningRecord>,
    left: Option<Record>,
    now_ms: i64,
}

impl Start {
    /// Begins the record of this run. The caller has locked the data folder.
    pub(crate) fn begin(data_folder: &DataFolder) -> Start {
        let (path, now_ms) = (data_folder.running(), now_ms());
        let left = Record::left_at(&path);
        let Consequences { starts_ms, .. } =
            consequences(left.as_ref(), Counts::default(), BUILD, now_ms);
        let record = Record { build: BUILD.to_owned(), starts_ms, steps: Vec::new() };
        let record = Arc::new(RunningRecord::begin(path, record, left.clone()));
        Start { record, left, now_ms }
    }

    /// Counts how the run before ended.
    pub(crate) async fn settle(self, store: &Store) -> Crashes {
        let Start { record, left, now_ms } = self;
        let read = read_counts(store).await;
        let may_save = read.is_some();
        let before = read.unwrap_or_default();
        let found = consequences(left.as_ref(), before.clone(), BUILD, now_ms);
        if may_save && found.counts != before {
            save(store, &found.counts).await.unwrap_or_else(|error| {
                tracing::warn!("how often Cairn quit unexpectedly is not saved: {error}");
            });
        }
        record.forget_left();
        let notice = match found.crash {
            Some(crash) => Some(notice_for(&crash, found.is_quiet, store).await),
            None => None,
        };
        if let Some(Event::Notice { text, .. }) = &notice {
            tracing::warn!("{text}");
        }
        let quiet = CancellationToken::new();
        if !found.is_quiet {
            quiet.cancel();
        }
        Crashes {
            record,
            counts: Mutex::new(found.counts),
            may_save,
            saving: tokio::sync::Mutex::default(),
            notice: Mutex::new(notice),
            quiet,
        }
    }
}

impl Crashes {
    /// Notes a step in the crash record until the result is dropped.
    pub(crate) fn begin(&self, step: Step) -> RunningStep {
        self.record.step(step)
    }

    /// Returns the notice for the first interface that asks, and for all of them while the start is quiet:
    /// no other place says how to end that.
    pub(crate) fn take_notice(&self) -> Option<Event> {
        let mut notice = self.notice.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_quiet() { notice.clone() } else { notice.take() }
    }

    pub(crate) fn is_model_set_aside(&self, name: &str) -> bool {
        self.counts().is_set_aside(&UncleanSubject::Model(name.to_owned()))
    }

    pub(crate) fn is_job_set_aside(&self, id: &str) -> bool {
        self.counts().is_set_aside(&UncleanSubject::Job(id.to_owned()))
    }

    /// Refuses a model that is set aside.
    pub(crate) fn require(&self, model: &str) -> Result<(), Failure> {
        if self.is_model_set_aside(model) { Err(set_aside(model)) } else { Ok(()) }
    }

    /// Forgets the counts of these subjects, and returns whether any of them had one. If that
    /// cannot be saved, the next start has the old counts again.
    pub(crate) async fn forgive(
        &self,
        store: &Store,
        subjects: impl IntoIterator<Item = UncleanSubject>,
    ) -> bool {
        let forgiven = {
            let mut counts = self.counts();
            let mut has_removed = false;
            for subject in subjects {
                has_removed |= counts.0.remove(&subject).is_some();
            }
            has_removed
        };
        if forgiven && self.may_save {
            let _saving = self.saving.lock().await;
            let counts = self.counts().clone();
            match save(store, &counts).await {
                Ok(()) | Err(StoreError::Closed { .. }) => {}
                Err(error) => tracing::warn!("an unexpected end of Cairn stays counted: {error}"),
            }
        }
        forgiven
    }

    /// Whether the app neither loads nor resumes anything by itself.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.quiet.is_cancelled()
    }

    /// Returns when the app may load and resume by itself: at once, unless the start is quiet.
    pub(crate) async fn not_quiet(&self) {
        self.quiet.cancelled().await;
    }

    /// Lets the app load and resume what a quiet start has not.
    pub(crate) fn end_quiet(&self) {
        self.quiet.cancel();
        self.notice.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Removes the crash record, because the app was asked to close.
    pub(crate) fn close(&self) {
        self.record.close();
    }

    /// Forgets the counts of the models that have completed an answer, or other work that runs a
    /// whole model, in this run.
    pub(crate) async fn forgive_used(&self, store: &Store) {
        let used = self.record.used_models().into_iter().map(UncleanSubject::Model);
        self.forgive(store, used).await;
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the failure of a request for a model that is set aside.
pub(crate) fn set_aside(model: &str) -> Failure {
    let why = format!("{model} is set aside because Cairn quit unexpectedly twice while using it.");
    Failure::new(FailureCode::SetAside, why)
        .of_kind(FailureKind::ModelSetAside { model: model.to_owned() })
}

/// Returns the counts of this version, except for jobs that are gone. `None` if they cannot be
/// read.
async fn read_counts(store: &Store) -> Option<Counts> {
    let rows = store.unclean_ends().await.inspect_err(|error| {
        tracing::warn!("how often Cairn quit unexpectedly is not known: {error}");
    });
    let rows = rows.ok()?;
    // Without the jobs, counts of jobs that are gone stay, which does no harm.
    let jobs = store.jobs().await.inspect_err(|error| {
        tracing::warn!("the jobs that Cairn quit unexpectedly with are not known: {error}");
    });
    let jobs = jobs.ok();
    let is_there = |subject: &UncleanSubject| match (subject, &jobs) {
        (UncleanSubject::Job(id), Some(jobs)) => jobs.iter().any(|job| job.id == *id),
        _ => true,
    };
    let own = rows.into_iter().filter(|row| row.build == BUILD && is_there(&row.subject));
    Some(Counts(own.map(|row| (row.subject, row.num_ends)).collect()))
}

async fn save(store: &Store, counts: &Counts) -> Result<(), StoreError> {
    let rows = counts.0.iter().map(|(subject, &num_ends)| UncleanEnds {
        subject: subject.clone(),
        build: BUILD.to_owned(),
        num_ends,
    });
    store.set_unclean_ends(&rows.collect::<Vec<_>>()).await
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use std::path::Path;

    use sqlx::Connection;

    use super::super::record::StepKind;
    use super::*;

    /// Runs SQL that no version of Cairn would, as on a damaged database.
    async fn damage(database: &Path, sql: &'static str) {
        let address = format!("sqlite://{}", database.display());
        let mut connection = sqlx::SqliteConnection::connect(&address).await.unwrap();
        let unchecked = "pragma ignore_check_constraints = on";
        sqlx::raw_sql(unchecked).execute(&mut connection).await.unwrap();
        sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    }

    /// Settles a start after a run that died while this model answered.
    async fn settle_after_crash(folder: &Path, store: &Store, model: &str) -> Crashes {
        let data_folder = DataFolder::new(folder);
        let steps = vec![Step::new(StepKind::Answering, model.to_owned())];
        let left = Record { build: BUILD.to_owned(), starts_ms: vec![0], steps };
        std::fs::write(data_folder.running(), serde_json::to_vec(&left).unwrap()).unwrap();
        Start::begin(&data_folder).settle(store).await
    }

    fn ends(name: &str, num_ends: u32) -> UncleanEnds {
        let subject = UncleanSubject::Model(name.to_owned());
        UncleanEnds { subject, build: BUILD.to_owned(), num_ends }
    }

    #[tokio::test]
    async fn keeps_counts_if_jobs_are_unreadable() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("cairn.db");
        let store = Store::open(&database).await.unwrap();
        store.set_unclean_ends(&[ends("m", 2)]).await.unwrap();
        damage(&database, "alter table jobs rename to damaged_jobs").await;
        assert!(store.jobs().await.is_err());
        let crashes = settle_after_crash(folder.path(), &store, "n").await;
        assert!(crashes.is_model_set_aside("m"));
        assert_eq!(store.unclean_ends().await.unwrap(), [ends("m", 2), ends("n", 1)]);
    }

    #[tokio::test]
    async fn does_not_replace_unreadable_counts() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("cairn.db");
        let store = Store::open(&database).await.unwrap();
        store.set_unclean_ends(&[ends("m", 2)]).await.unwrap();
        damage(&database, "insert into unclean_ends values ('sheep', 's', '1', 1)").await;
        assert!(store.unclean_ends().await.is_err());
        let crashes = settle_after_crash(folder.path(), &store, "n").await;
        assert!(crashes.forgive(&store, [UncleanSubject::Model("n".to_owned())]).await);
        damage(&database, "delete from unclean_ends where subject = 'sheep'").await;
        assert_eq!(store.unclean_ends().await.unwrap(), [ends("m", 2)]);
    }
}
