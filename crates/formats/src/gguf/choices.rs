//! What a file would become for each thing that its weights without an exact form can be rounded to:
//! its size and how far the weights would be from the file's, before anything is written.

use std::path::Path;

use serde_json::Value;

use super::affine::{NotFinite, RoundTo, Rounding};
use super::import::{convert, new_folder, num_bytes, problem_of, row_count, unit_rows};
use super::model::{Model, PlannedTensor};
use super::tokenizer::SpecialIds;
use super::{GgufError, GgufFile, GgufProblem};

/// Bytes of each tensor that are rounded to see how much that changes: some 80,000 weights of Q6_K,
/// 150,000 of Q3_K, 200,000 of Q2_K.
const SAMPLE_BYTES: usize = 64 << 10;

/// One way to import a file.
#[derive(Debug, Clone, PartialEq)]
pub struct RoundingChoice {
    /// What its weights without an exact form become.
    pub round_to: RoundTo,
    /// The model's `config.json`, as far as it does not come from the tokenizer.
    pub config: Value,
    /// Of all its weights, in the new file.
    pub weight_bytes: u64,
    /// [`Rounding::relative_error`], estimated from a part of each tensor that is rounded.
    pub relative_error: f64,
}

impl RoundingChoice {
    /// The ways to import `file` into `models_dir` under `name`, or the name that an import takes
    /// without one; the smallest first. There are none for a file all of whose weights have an exact form.
    ///
    /// Reads the header and little of each tensor. A file that cannot be imported fails as in
    /// [`import_gguf`](super::import_gguf), unless the fault is in its tokenizer or among the weights.
    pub fn all(
        file: &Path,
        models_dir: &Path,
        name: Option<&str>,
    ) -> Result<Vec<RoundingChoice>, GgufError> {
        let gguf = GgufFile::open(file)?;
        new_folder(&gguf, models_dir, name)?;
        let usual = Model::read(&gguf, RoundTo::default()).map_err(problem_of(&gguf))?;
        if usual.tensors.iter().all(|planned| planned.form.is_exact()) {
            return Ok(Vec::new());
        }
        let choice = |round_to| {
            let model = Model::read(&gguf, round_to).map_err(problem_of(&gguf))?;
            Ok(RoundingChoice {
                round_to,
                config: model.config(&SpecialIds::default()),
                weight_bytes: model.tensors.iter().map(num_bytes).sum(),
                relative_error: estimate(&gguf, &model.tensors)?,
            })
        };
        RoundTo::ALL.into_iter().map(choice).collect()
    }
}

fn estimate(gguf: &GgufFile, plan: &[PlannedTensor]) -> Result<f64, GgufError> {
    let mut rounding = Rounding::default();
    for planned in plan.iter().filter(|planned| !planned.form.is_exact()) {
        let source = planned.source;
        let (rows, unit) = (row_count(planned), unit_rows(planned));
        let row_bytes = ((source.bytes.end - source.bytes.start) / rows as u64) as usize;
        let count = ((SAMPLE_BYTES / (row_bytes * unit)).max(1) * unit).min(rows);
        // Not the first rows: those of an embedding are of tokens that no text has.
        let first = (rows - count) / 2 / unit * unit;
        let mut chunk = vec![0; count * row_bytes];
        gguf.read_at(source, &mut chunk, (first * row_bytes) as u64).map_err(problem_of(gguf))?;
        let mut of_sample = Rounding::default();
        convert(planned, &mut chunk, row_bytes, &mut of_sample).map_err(|NotFinite| {
            problem_of(gguf)(GgufProblem::NotFinite { tensor: source.name.clone() })
        })?;
        rounding.add_times(&of_sample, rows as f64 / count as f64);
    }
    Ok(rounding.relative_error())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::gguf::{GgmlType, GgufImport, import_gguf};
    use crate::test_files::gguf::{TestGguf, file_with};

    #[test]
    fn each_choice_says_what_its_import_becomes() {
        let mut file = TestGguf::with_k_quants();
        file.store_as("blk.0.ffn_up.weight", GgmlType::Q3K);
        file.store_as("blk.0.attn_v.weight", GgmlType::Q4K);
        let (_folder, path) = file_with(&file.bytes());
        let models = tempfile::tempdir().unwrap();
        let choices = RoundingChoice::all(&path, models.path(), Some("wide")).unwrap();
        assert_eq!(choices.iter().map(|choice| choice.round_to).collect::<Vec<_>>(), RoundTo::ALL);
        assert!(choices.windows(2).all(|pair| pair[0].weight_bytes < pair[1].weight_bytes));
        for choice in choices {
            let name = format!("{:?}", choice.round_to);
            let options = GgufImport { name: Some(&name), round_to: choice.round_to };
            let imported =
                import_gguf(&path, models.path(), options, &mut |_, _| ControlFlow::Continue(()))
                    .unwrap();
            let weights = imported.folder.join("model.safetensors");
            let bytes = std::fs::read(weights).unwrap();
            let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            assert_eq!(choice.weight_bytes, bytes.len() as u64 - 8 - header, "{choice:?}");
            let config = std::fs::read_to_string(imported.folder.join("config.json")).unwrap();
            let config: Value = serde_json::from_str(&config).unwrap();
            assert_eq!(choice.config.get("quantization"), config.get("quantization"));
            // These tensors are small enough to be rounded whole, or random enough for a part to do.
            let expected = imported.rounding.relative_error();
            let ratio = if expected > 0.0 { choice.relative_error / expected } else { 1.0 };
            assert!((ratio - 1.0).abs() < 0.05, "{choice:?}: {expected}");
            assert_eq!(choice.relative_error == 0.0, choice.round_to == RoundTo::Float32);
        }
        let refused = RoundingChoice::all(&path, models.path(), Some("Bits8"));
        assert!(matches!(refused, Err(GgufError::AlreadyExists { .. })), "{refused:?}");
    }

    #[test]
    fn there_is_nothing_to_choose_where_every_weight_is_kept() {
        let (folder, path) = file_with(&TestGguf::tiny().bytes());
        assert_eq!(RoundingChoice::all(&path, folder.path(), None).unwrap(), []);
        let (folder, path) = file_with(b"no model");
        assert!(RoundingChoice::all(&path, folder.path(), None).is_err());
    }
}
