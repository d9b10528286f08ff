//! The crash record: a file that exists while Cairn runs and says what it is doing. A start that
//! finds one knows that the run before ended without being closed.
//!
//! ```text
//! CAIRN_HOME/running.json    {"build", "starts_ms": [...], "steps": [{"kind", "model", "job_id", "conversation_id"}, ...]}
//! ```
//!
//! A start puts it in place through a temporary file. Each step overwrites it when it begins and
//! when it ends, with one write of a page: if the process dies, the system takes that write whole
//! or not at all. (A new file and a rename for each step took 1.4 ms on ext4, which allocates and
//! submits at once a file that replaces another; the write takes microseconds.) Nothing is synced
//! to the disk: a write that has returned outlives the process in the system's memory, and a
//! machine that loses its power did not crash because of a model. The record contains no text that
//! a person wrote, and no private chat.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// Bytes that one write takes whole or not at all. A longer record, of many steps at once, may be
/// torn, and then says only that there was a run.
const PAGE_BYTES: usize = 4096;

/// The record of a running process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The version of Cairn.
    pub(crate) build: String,
    /// Starts of the runs before this one that ended uncleanly in a row, then of this run, in
    /// milliseconds since the Unix epoch. The oldest are left out.
    pub(crate) starts_ms: Vec<i64>,
    /// The steps in flight, in the order in which they began.
    pub(crate) steps: Vec<Step>,
}

impl Record {
    /// Reads the record that a run has left. `None` if the run was closed. A record that cannot be
    /// read, as a crash of the machine leaves it, says only that there was a run.
    pub(crate) fn left_at(path: &Path) -> Option<Record> {
        let text = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            text => text.unwrap_or_default(),
        };
        Some(serde_json::from_slice(&text).unwrap_or_default())
    }
}

/// Work in which native code may end the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    pub(crate) kind: StepKind,
    /// The model that computes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) job_id: Option<String>,
    /// `None` for a private chat, which is never written to disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) conversation_id: Option<String>,
}

impl Step {
    pub(crate) fn new(kind: StepKind, model: impl Into<Option<String>>) -> Step {
        Step { kind, model: model.into(), job_id: None, conversation_id: None }
    }

    /// A window of a job's rows.
    pub(crate) fn of_job(id: &str, model: &str) -> Step {
        Step { job_id: Some(id.to_owned()), ..Step::new(StepKind::Job, model.to_owned()) }
    }
}

/// The kind of work of a step. The first are the likeliest to have ended the process: loading takes
/// the most memory, and what a person waits for comes before background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StepKind {
    Loading,
    ImportingModel,
    ImportingContext,
    Answering,
    Comparing,
    /// A request over the API.
    Program,
    Job,
    Probabilities,
    ReadingAhead,
    Title,
    /// Turning a chat into tokens, to say how long it is or what of it is saved.
    Counting,
    /// In a process of its own, which may take all memory.
    Measuring,
    /// A kind that another version wrote.
    #[serde(other)]
    Unknown,
}

/// The record of this run, in memory and on the disk. Shared by the steps in flight.
#[derive(Debug)]
pub(crate) struct RunningRecord {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    record: Record,
    /// The record of the run before, until it is counted.
    left: Option<Record>,
    /// The id of each of the record's steps.
    ids: Vec<u64>,
    next_id: u64,
    /// The models of the steps that have succeeded.
    used: BTreeSet<String>,
    /// None if it could not be written.
    file: Option<File>,
    /// How long the file is: spaces follow the record.
    num_bytes: usize,
    /// Nothing is written any more.
    is_closed: bool,
}

impl RunningRecord {
    /// Begins the record of a run after one that has `left` a record. Until
    /// [`RunningRecord::forget_left`] is called, the steps in `left` are in flight in this run too:
    /// a start may end before it has counted them.
    pub(crate) fn begin(path: PathBuf, record: Record, left: Option<Record>) -> RunningRecord {
        let own = left.iter().filter(|left| left.build == record.build);
        let steps: Vec<Step> = own.flat_map(|left| left.steps.clone()).collect();
        let ids: Vec<u64> = (0..).take(steps.len()).collect();
        let next_id = ids.len() as u64;
        let record = Record { steps, ..record };
        let (file, num_bytes) = match replace(&path, &record) {
            Ok((file, num_bytes)) => (Some(file), num_bytes),
            Err(error) => {
                tracing::warn!("{} cannot be written: {error}", path.display());
                (None, 0)
            }
        };
        let used = BTreeSet::new();
        let state = State { record, left, ids, next_id, used, file, num_bytes, is_closed: false };
        RunningRecord { path, state: Mutex::new(state) }
    }

    /// Forgets the record that the run before has left, because it is counted now.
    pub(crate) fn forget_left(&self) {
        let mut state = self.state();
        state.left = None;
        state.record.steps.clear();
        state.ids.clear();
        self.write(&mut state);
    }

    /// Notes a step until the result is dropped.
    pub(crate) fn step(self: &Arc<Self>, step: Step) -> RunningStep {
        let mut state = self.state();
        let id = state.next_id;
        state.next_id += 1;
        state.record.steps.push(step);
        state.ids.push(id);
        self.write(&mut state);
        RunningStep { record: self.clone(), id }
    }

    fn end(&self, id: u64) {
        let mut state = self.state();
        let Some(index) = state.ids.iter().position(|&other| other == id) else { return };
        state.ids.remove(index);
        state.record.steps.remove(index);
        self.write(&mut state);
    }

    fn succeeded(&self, id: u64) {
        let mut state = self.state();
        let Some(index) = state.ids.iter().position(|&other| other == id) else { return };
        let Step { kind, model, .. } = state.record.steps[index].clone();
        if runs_model(kind) && !state.is_closed {
            state.used.extend(model);
        }
    }

    /// Returns the models that have completed an answer, or other work that runs a whole model, in
    /// this run.
    pub(crate) fn used_models(&self) -> BTreeSet<String> {
        self.state().used.clone()
    }

    /// Removes the file: the app was asked to close, so however the process ends now, it is no
    /// crash. If the record of the run before has not been counted yet, it is put back.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        if std::mem::replace(&mut state.is_closed, true) {
            return;
        }
        let closed = match state.left.take() {
            Some(left) => replace(&self.path, &left).map(drop),
            None => fs::remove_file(&self.path),
        };
        if let Err(error) = closed {
            tracing::debug!("{} is left as it is: {error}", self.path.display());
        }
    }

    /// Writes the file. If that fails, Cairn works all the same: only the next crash goes
    /// unnoticed.
    fn write(&self, state: &mut State) {
        let Some(file) = state.file.as_mut().filter(|_| !state.is_closed) else { return };
        match overwrite(file, &state.record, state.num_bytes) {
            Ok(num_bytes) => state.num_bytes = num_bytes,
            Err(error) => {
                tracing::warn!("{} cannot be written: {error}", self.path.display());
                // The file's content is out of date.
                state.file = None;
                let _ = fs::remove_file(&self.path);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RunningRecord {
    /// Removes the file: a start that fails with a reason, or an app that is dropped, is no crash.
    fn drop(&mut self) {
        self.close();
    }
}

/// Whether an unclean end in a step of this kind counts for its model. A measurement has a count of
/// its own, which ends it after a few tries. An import of saved context more likely died of its
/// file than of the model that happens to be loaded.
pub(super) fn counts_for_model(kind: StepKind) -> bool {
    !matches!(kind, StepKind::Measuring | StepKind::ImportingContext)
}

/// Whether a step of this kind, if it succeeds, shows that its model can be used, because it runs
/// the whole model. Loading does not: each start loads a model by itself. Counting only runs the
/// tokenizer.
fn runs_model(kind: StepKind) -> bool {
    match kind {
        StepKind::Answering
        | StepKind::Comparing
        | StepKind::Program
        | StepKind::Job
        | StepKind::Probabilities
        | StepKind::ReadingAhead
        | StepKind::Title => true,
        StepKind::Loading
        | StepKind::ImportingModel
        | StepKind::ImportingContext
        | StepKind::Counting
        | StepKind::Measuring
        | StepKind::Unknown => false,
    }
}

/// A step in flight, noted until this is dropped.
#[derive(Debug)]
pub(crate) struct RunningStep {
    record: Arc<RunningRecord>,
    id: u64,
}

impl RunningStep {
    /// Notes that its model has computed what was asked for. Call it for a step that has neither
    /// failed nor been cancelled: its model's unclean ends are forgotten when the app is closed.
    pub(crate) fn succeeded(&self) {
        self.record.succeeded(self.id);
    }
}

impl Drop for RunningStep {
    fn drop(&mut self) {
        self.record.end(self.id);
    }
}

/// Replaces the record with a new file, which only its owner can read from the start. Returns the
/// file and its length.
fn replace(path: &Path, record: &Record) -> io::Result<(File, usize)> {
    let partial = path.with_extension("partial");
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&partial)?;
    let num_bytes = overwrite(&mut file, record, 0);
    let replaced = num_bytes.and_then(|bytes| fs::rename(&partial, path).map(|()| bytes));
    match replaced {
        Ok(num_bytes) => Ok((file, num_bytes)),
        Err(error) => {
            let _ = fs::remove_file(&partial);
            Err(error)
        }
    }
}

/// Overwrites the record in a file of `num_bytes`, and fills the rest with spaces. Returns the new
/// length of the file.
fn overwrite(file: &mut File, record: &Record, num_bytes: usize) -> io::Result<usize> {
    let mut bytes = serde_json::to_vec(record)?;
    let num_bytes = bytes.len().next_multiple_of(PAGE_BYTES).max(num_bytes);
    bytes.resize(num_bytes, b' ');
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&bytes)?;
    Ok(num_bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    fn record(steps: &[Step]) -> Record {
        Record { build: "1".to_owned(), starts_ms: vec![5], steps: steps.to_vec() }
    }

    fn begun(folder: &tempfile::TempDir, left: Option<Record>) -> Arc<RunningRecord> {
        let path = folder.path().join("running.json");
        Arc::new(RunningRecord::begin(path, record(&[]), left))
    }

    #[test]
    fn names_steps_in_flight_until_they_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("running.json");
        let left = || Record::left_at(&path).unwrap().steps;
        assert_eq!(Record::left_at(&path), None);
        let earlier = Step::new(StepKind::Loading, "m".to_owned());
        let running = begun(&folder, Some(record(std::slice::from_ref(&earlier))));
        assert_eq!(left(), [earlier], "of the run before, until it is counted");
        running.forget_left();
        let steps = [Step::of_job("j", "m"), Step::new(StepKind::Measuring, "n".to_owned())];
        let [job, measuring] = steps.clone().map(|step| running.step(step));
        assert_eq!(left(), steps);
        drop(job);
        assert_eq!(left(), steps[1..]);
        drop(measuring);
        assert_eq!(left(), []);
    }

    #[test]
    fn notes_models_of_successful_steps_only() {
        #[track_caller]
        fn check(kind: StepKind, succeeds: bool, is_used: bool) {
            let folder = tempfile::tempdir().unwrap();
            let running = begun(&folder, None);
            let step = running.step(Step::new(kind, "m".to_owned()));
            if succeeds {
                step.succeeded();
            }
            drop(step);
            assert_eq!(running.used_models().contains("m"), is_used, "{kind:?}");
        }
        check(StepKind::Answering, false, false);
        check(StepKind::Answering, true, true);
        check(StepKind::Job, true, true);
        check(StepKind::Program, true, true);
        check(StepKind::Loading, true, false);
        check(StepKind::Counting, true, false);
        check(StepKind::ImportingContext, true, false);
        check(StepKind::Measuring, true, false);
    }

    #[test]
    fn names_more_steps_than_fit_into_a_page() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("running.json");
        let running = begun(&folder, None);
        let steps: Vec<Step> = (0..200).map(|job| Step::of_job(&job.to_string(), "m")).collect();
        let mut running: Vec<RunningStep> =
            steps.iter().map(|step| running.step(step.clone())).collect();
        assert_eq!(Record::left_at(&path).unwrap().steps, steps);
        running.truncate(1);
        assert_eq!(Record::left_at(&path).unwrap().steps, steps[..1]);
    }

    #[test]
    fn a_start_that_fails_leaves_earlier_record() {
        let folder = tempfile::tempdir().unwrap();
        let left = record(&[Step::new(StepKind::Loading, "m".to_owned())]);
        drop(begun(&folder, Some(left.clone())));
        assert_eq!(Record::left_at(&folder.path().join("running.json")), Some(left));
    }

    #[test]
    fn leaves_nothing_when_closed_or_dropped() {
        for is_closed in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let running = begun(&folder, None);
            let step = running.step(Step::new(StepKind::Answering, None));
            if is_closed {
                running.close();
                drop(step);
                drop(running.step(Step::new(StepKind::Title, None)));
            } else {
                drop(step);
            }
            drop(running);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn reads_damaged_and_newer_records() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("running.json");
        for damaged in ["", "{", "[]", "{\"build\": 1}"] {
            fs::write(&path, damaged).unwrap();
            assert_eq!(Record::left_at(&path), Some(Record::default()), "{damaged}");
        }
        let newer = r#"{"build":"9","starts_ms":[1],"steps":[{"kind":"dreaming","of":"sheep"}]}"#;
        fs::write(&path, newer).unwrap();
        let steps = vec![Step::new(StepKind::Unknown, None)];
        let expected = Record { build: "9".to_owned(), starts_ms: vec![1], steps };
        assert_eq!(Record::left_at(&path), Some(expected));
    }

    #[cfg(unix)]
    #[test]
    fn is_readable_by_its_owner_only() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let _running = begun(&folder, None);
        let file = fs::metadata(folder.path().join("running.json")).unwrap();
        assert_eq!(file.permissions().mode() & 0o777, 0o600);
    }
}
