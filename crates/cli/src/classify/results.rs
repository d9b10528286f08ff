//! Where the results of `cairn classify` go: to stdout, or into a file that a later run continues.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use cairn_engine::{EngineError, RowAnswer};
use serde_json::Value;

use super::{failed, object, plain};
use crate::{arguments, output};

/// The results that are written already, and those to come.
pub(super) struct Results {
    target: Target,
    labels: Vec<String>,
    num_done: usize,
    num_failed: usize,
}

enum Target {
    Lines { as_json: bool },
    File { file: File, path: PathBuf },
}

impl Results {
    /// Opens the output file if there is one. Without `--resume` an existing one is replaced.
    pub(super) fn open(arguments: &arguments::Classify, num_rows: usize) -> Result<Self> {
        let labels = arguments.labels.clone();
        let Some(path) = &arguments.output else {
            let target = Target::Lines { as_json: arguments.json };
            return Ok(Results { target, labels, num_done: 0, num_failed: 0 });
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(!arguments.resume)
            .open(path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        let done = read_done(&mut file, path, &labels)?;
        ensure!(
            done.num_rows <= num_rows,
            "{} has {} rows, but the input only {num_rows}: it belongs to another input",
            path.display(),
            done.num_rows
        );
        let (num_done, num_failed) = (done.num_rows, done.num_failed);
        let target = Target::File { file, path: path.clone() };
        Ok(Results { target, labels, num_done, num_failed })
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
                eprintln!("cairn: row {}: {error}", index + 1);
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
            Target::File { file, path } => file
                .write_all(lines.as_bytes())
                .and_then(|()| file.sync_data())
                .with_context(|| format!("cannot write {}", path.display())),
        }
    }

    /// Fails if rows have failed.
    pub(super) fn end(self) -> Result<()> {
        failed(self.num_failed, self.num_done)
    }
}

struct Done {
    num_rows: usize,
    num_failed: usize,
}

/// The results that an earlier run has written. A last line that was not finished is removed.
fn read_done(file: &mut File, path: &Path, labels: &[String]) -> Result<Done> {
    let mut text = String::new();
    let refuse = || format!("cannot continue {}", path.display());
    file.read_to_string(&mut text).with_context(refuse)?;
    let end = text.rfind('\n').map_or(0, |at| at + 1);
    let mut done = Done { num_rows: 0, num_failed: 0 };
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
    file.set_len(end as u64).with_context(refuse)?;
    file.seek(SeekFrom::End(0)).with_context(refuse)?;
    Ok(done)
}
