//! Where the results of `cairn classify` go: to stdout, or into a file that a later run continues.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use cairn_engine::{EngineError, RowAnswer};
use serde_json::Value;

use super::{failed, object, plain};
use crate::arguments;
use crate::output::{self, note};

/// The results that are written already, and those to come.
pub(super) struct Results {
    target: Target,
    labels: Vec<String>,
    num_done: usize,
    num_failed: usize,
}

enum Target {
    Lines { as_json: bool },
    File(Output),
}

struct Output {
    path: PathBuf,
    /// So many bytes of an earlier run's results are continued; what is behind them goes.
    num_kept_bytes: u64,
    num_bytes_before: u64,
    /// None until [`Results::begin`].
    file: Option<File>,
}

impl Results {
    /// Reads what is to be continued with `--resume`. The output file is changed by
    /// [`Results::begin`]: a run that cannot begin leaves it as it was.
    pub(super) fn open(arguments: &arguments::Classify, num_rows: usize) -> Result<Self> {
        let labels = arguments.labels.clone();
        let Some(path) = &arguments.output else {
            let target = Target::Lines { as_json: arguments.json };
            return Ok(Results { target, labels, num_done: 0, num_failed: 0 });
        };
        let file = match OpenOptions::new().read(true).write(true).open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            file => Some(file.with_context(|| format!("cannot write {}", path.display()))?),
        };
        let is_regular = |file: &File| file.metadata().is_ok_and(|metadata| metadata.is_file());
        ensure!(
            file.as_ref().is_none_or(is_regular),
            "cannot write {}: it is not a regular file: choose another",
            path.display()
        );
        let num_bytes_before = match &file {
            Some(file) => file.metadata().map_or(0, |metadata| metadata.len()),
            None => 0,
        };
        let done = match file.filter(|_| arguments.resume) {
            Some(file) => read_done(file, path, &labels)?,
            None => Done::default(),
        };
        ensure!(
            done.num_rows <= num_rows,
            "{} has {} rows, but the input only {num_rows}: it belongs to another input",
            path.display(),
            done.num_rows
        );
        let (num_done, num_failed) = (done.num_rows, done.num_failed);
        let (path, num_kept_bytes) = (path.clone(), done.num_bytes);
        let target = Target::File(Output { path, num_kept_bytes, num_bytes_before, file: None });
        Ok(Results { target, labels, num_done, num_failed })
    }

    /// Whether the results of an earlier run go, and none of them is continued.
    pub(super) fn replaces_earlier(&self) -> bool {
        matches!(&self.target, Target::File(output) if output.num_kept_bytes < output.num_bytes_before)
            && self.num_done == 0
    }

    /// Cuts off what is not continued, before rows are asked: were this run ended then, the next
    /// one would take results about other rows for its own.
    pub(super) fn begin(&mut self) -> Result<()> {
        if let Target::File(Output { path, num_kept_bytes, file, .. }) = &mut self.target {
            let begun = truncated(path, *num_kept_bytes);
            *file = Some(begun.with_context(|| format!("cannot write {}", path.display()))?);
        }
        Ok(())
    }

    /// How many rows have a result.
    pub(super) fn num_done(&self) -> usize {
        self.num_done
    }

    /// Writes the next results. Those in a file are on disk when this returns.
    pub(super) fn write(&mut self, answers: Vec<Result<RowAnswer, EngineError>>) -> Result<()> {
        let mut lines = String::new();
        for answer in answers {
            let index = self.num_done;
            let row = match (&self.target, &answer) {
                (Target::Lines { as_json: false }, Ok(answer)) => plain(index, answer),
                (Target::Lines { as_json: false }, Err(_)) => String::new(),
                _ => object(index, &answer, &self.labels).to_string(),
            };
            if let Err(error) = &answer {
                note!("cairn: row {}: {error}", index + 1);
                self.num_failed += 1;
            }
            if !row.is_empty() {
                lines += &row;
                lines.push('\n');
            }
            self.num_done += 1;
        }
        match &mut self.target {
            Target::Lines { .. } => output::text(lines),
            Target::File(Output { path, file, .. }) => file
                .as_mut()
                .map_or(Ok(()), |file| append(file, lines.as_bytes()))
                .with_context(|| format!("cannot write {}", path.display())),
        }
    }

    /// Fails if rows have failed.
    pub(super) fn end(self) -> Result<()> {
        failed(self.num_failed, self.num_done)
    }
}

/// Opens a file of which so many bytes are kept.
fn truncated(path: &Path, num_kept_bytes: u64) -> io::Result<File> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    file.set_len(num_kept_bytes)?;
    file.seek(SeekFrom::End(0))?;
    Ok(file)
}

fn append(file: &mut File, lines: &[u8]) -> io::Result<()> {
    file.write_all(lines)?;
    file.sync_data()
}

#[derive(Default)]
struct Done {
    num_rows: usize,
    num_failed: usize,
    /// Of their lines; behind them is only a line that was not finished.
    num_bytes: u64,
}

/// The results that an earlier run has written.
fn read_done(mut file: File, path: &Path, labels: &[String]) -> Result<Done> {
    let mut text = String::new();
    let refuse = || format!("cannot continue {}", path.display());
    file.read_to_string(&mut text).with_context(refuse)?;
    let end = text.rfind('\n').map_or(0, |at| at + 1);
    let mut done = Done { num_bytes: end as u64, ..Done::default() };
    for line in text[..end].lines() {
        let row: Value = serde_json::from_str(line).unwrap_or_default();
        if row["index"].as_u64() != Some(done.num_rows as u64) {
            bail!("{}: line {} is not row {}", refuse(), done.num_rows + 1, done.num_rows + 1);
        }
        if row.get("error").is_some() {
            done.num_failed += 1;
        } else {
            let known = row["labels"].as_object().into_iter().flat_map(|labels| labels.keys());
            let mut known: Vec<&String> = known.collect();
            let mut asked: Vec<&String> = labels.iter().collect();
            known.sort();
            asked.sort();
            ensure!(known == asked, "{}: it was written with other labels", refuse());
        }
        done.num_rows += 1;
    }
    Ok(done)
}
