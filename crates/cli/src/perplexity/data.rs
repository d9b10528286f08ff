//! The data that a perplexity is measured on: rows of a file, and the samples that are cut from
//! them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use cairn_chat::{ChatError, Encode};
use cairn_hub::RepoId;
use cairn_lm::Tokenizer;
use serde::Deserialize;
use serde_json::{Value, json};

use super::numpy_order::permutation;
use crate::input::read_text;
use crate::json_lines;

/// The rows of a file, in its order.
pub(super) struct DataSet {
    path: PathBuf,
    rows: Vec<Row>,
}

enum Row {
    Text(String),
    Chat { messages: Vec<Value>, tools: Vec<Value> },
}

/// A row as a file has it, in one of the forms that mlx-lm reads. Data sets have other fields too.
#[derive(Deserialize)]
struct Line {
    text: Option<String>,
    messages: Option<Vec<Value>>,
    prompt: Option<String>,
    completion: Option<String>,
    tools: Option<Vec<Value>>,
}

impl Row {
    fn parse(line: &str) -> Result<Row> {
        let Line { text, messages, prompt, completion, tools } = json_lines::object(line)?;
        let tools = tools.unwrap_or_default();
        // In mlx-lm's order, if a row has several forms.
        if let (Some(prompt), Some(completion)) = (prompt, completion) {
            let message = |role, content| json!({ "role": role, "content": content });
            let messages = vec![message("user", prompt), message("assistant", completion)];
            return Ok(Row::Chat { messages, tools });
        }
        match (messages, text) {
            (Some(messages), _) => Ok(Row::Chat { messages, tools }),
            (None, Some(text)) => Ok(Row::Text(text)),
            (None, None) => bail!("give text, messages, or prompt and completion"),
        }
    }

    /// The tokens, as mlx-lm has them to train on: a text ends with an end-of-sequence token, and a
    /// chat as its template ends it.
    fn tokens(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
        match self {
            Row::Text(text) => {
                let mut tokens = tokenizer.encode(text, true)?;
                let eos = tokenizer.eos_token().and_then(|eos| tokenizer.token_to_id(eos));
                tokens.extend(eos.filter(|eos| tokens.last() != Some(eos)));
                Ok(tokens)
            }
            Row::Chat { messages, tools } => {
                let template = tokenizer.chat_template().ok_or(ChatError::NoTemplate)?;
                Ok(tokenizer.encode(&template.render_json(messages, tools)?, false)?)
            }
        }
    }
}

impl DataSet {
    /// Reads a file of rows, a folder that has it as `train.jsonl`, or a `.txt` file, which is one
    /// text. Fails on the name of a data set on the hub.
    pub(super) fn read(path: &Path) -> Result<DataSet> {
        let has_extension = |wanted: &str| path.extension().is_some_and(|found| found == wanted);
        let is_name = path.to_str().is_some_and(|path| path.parse::<RepoId>().is_ok());
        if is_name && !path.exists() && !has_extension("jsonl") && !has_extension("txt") {
            bail!(
                "cannot read the data set {}: Cairn downloads models only, so name a file on this \
                 machine with --data-path",
                path.display()
            );
        }
        let path = if path.is_dir() { path.join("train.jsonl") } else { path.to_owned() };
        let rows = if has_extension("txt") {
            vec![Row::Text(read_text(&path)?)]
        } else {
            json_lines::read(&path, Row::parse)?
        };
        Ok(DataSet { path, rows })
    }

    /// At most `limit` samples of `length` tokens: the rows in the order of the seed, one after the
    /// other, cut into equal parts. What is left at the end is not used.
    pub(super) fn samples(
        &self,
        tokenizer: &Tokenizer,
        length: usize,
        limit: usize,
        seed: u32,
    ) -> Result<Vec<Vec<u32>>> {
        let num_wanted = limit.saturating_mul(length);
        let mut tokens: Vec<u32> = Vec::new();
        for index in permutation(seed, u32::try_from(self.rows.len())?) {
            if tokens.len() >= num_wanted {
                break;
            }
            let row = self.rows[index as usize].tokens(tokenizer);
            tokens.extend(row.with_context(|| {
                format!("cannot encode row {} of {}", index + 1, self.path.display())
            })?);
        }
        ensure!(
            tokens.len() >= length,
            "{} has {} tokens, which is less than a sample: give a smaller --sequence-length than \
             {length}",
            self.path.display(),
            tokens.len()
        );
        Ok(tokens.chunks_exact(length).take(limit).map(<[u32]>::to_vec).collect())
    }
}
