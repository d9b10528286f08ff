//! How a model's texts become vectors, as the files say that sentence-transformers writes:
//!
//! ```text
//! modules.json                        Transformer ─▶ Pooling ─▶ Normalize
//! 1_Pooling/config.json               which hidden states make the vector
//! sentence_bert_config.json           the most tokens of a text
//! config_sentence_transformers.json   what is put before each text
//! ```

use std::path::{Component, Path};

use cairn_formats::{MAX_CONFIG_BYTES, read_file};
use serde_json::Value;

/// The final hidden states that make a text's vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The first token's.
    First,
    /// The last token's.
    Last,
    /// The mean over all tokens.
    Mean,
    /// The mean over all tokens, each weighted with its position from 1.
    WeightedMean,
}

impl Pooling {
    /// The share of the token at `index` in the vector of a text of `num_tokens`; 0 for padding.
    pub(crate) fn weight(self, index: usize, num_tokens: usize) -> f32 {
        if index >= num_tokens {
            return 0.0;
        }
        let count = num_tokens as f64;
        let weight = match self {
            Pooling::First => f64::from(index == 0),
            Pooling::Last => f64::from(index + 1 == num_tokens),
            Pooling::Mean => 1.0 / count,
            Pooling::WeightedMean => 2.0 * (index + 1) as f64 / (count * (count + 1.0)),
        };
        weight as f32
    }

    /// The pooling that a pooling module's config.json asks for.
    fn parse(config: &Value) -> Result<Self, String> {
        const PREFIX: &str = "pooling_mode_";
        let fields = config.as_object().into_iter().flatten();
        let chosen = fields.filter(|(_, value)| **value == true);
        let mut modes: Vec<&str> =
            chosen.filter_map(|(name, _)| name.strip_prefix(PREFIX)).collect();
        // Newer files name the mode itself.
        modes.extend(config.get("pooling_mode").and_then(Value::as_str));
        match modes.as_slice() {
            ["cls_token" | "cls"] => Ok(Pooling::First),
            ["lasttoken"] => Ok(Pooling::Last),
            ["mean_tokens" | "mean"] => Ok(Pooling::Mean),
            ["weightedmean_tokens" | "weightedmean"] => Ok(Pooling::WeightedMean),
            [] => Err("its pooling module names no mode".to_owned()),
            several => Err(format!("the pooling mode {} is not supported", several.join(" + "))),
        }
    }
}

/// How a model's texts become vectors.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbeddingSettings {
    /// The hidden states that make the vector.
    pub pooling: Pooling,
    /// Whether vectors are scaled to length 1.
    pub normalizes: bool,
    /// A prompt that is put before each text.
    pub prompt: Option<String>,
    /// The most tokens of a text, if the files have a limit of their own.
    pub max_tokens: Option<usize>,
}

impl Default for EmbeddingSettings {
    /// The last token's hidden state, scaled to length 1: for models whose files say nothing.
    fn default() -> Self {
        EmbeddingSettings {
            pooling: Pooling::Last,
            normalizes: true,
            prompt: None,
            max_tokens: None,
        }
    }
}

impl EmbeddingSettings {
    /// Reads the settings of the model in `folder`, with [`EmbeddingSettings::default`] for a model
    /// without such files. Fails with a clause that says what is not supported or is broken.
    pub(crate) fn read(folder: &Path, config: &Value) -> Result<Self, String> {
        check_is_causal(config)?;
        let Some(modules) = json(&folder.join("modules.json"))? else { return Ok(Self::default()) };
        let modules = modules.as_array().ok_or("its modules.json is not a list")?;
        let (mut pooling, mut normalizes) = (None, false);
        for module in modules {
            let text = |name: &str| module.get(name).and_then(Value::as_str).unwrap_or_default();
            // "sentence_transformers.models.Pooling"
            match text("type").rsplit('.').next().unwrap_or_default() {
                "Transformer" => {}
                "Pooling" if pooling.is_none() => {
                    pooling = Some(read_pooling(folder, text("path"))?)
                }
                "Normalize" => normalizes = true,
                other => return Err(format!("its module {other:?} is not supported")),
            }
        }
        let pooling = pooling.ok_or("its modules.json names no pooling")?;
        let limits = json(&folder.join("sentence_bert_config.json"))?.unwrap_or_default();
        let max_tokens = limits.get("max_seq_length").and_then(Value::as_u64);
        let prompt = default_prompt(folder)?;
        if prompt.is_some() && !pooling.includes_prompt {
            return Err("it leaves its prompt out of the vector, which is not supported".to_owned());
        }
        Ok(EmbeddingSettings {
            pooling: pooling.pooling,
            normalizes,
            prompt,
            max_tokens: max_tokens.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)),
        })
    }

    /// Scales a vector to length 1 if the model's are. Zeros stay zeros.
    pub fn finish(&self, vector: &mut [f32]) {
        if self.normalizes {
            let squares: f64 = vector.iter().map(|&number| f64::from(number).powi(2)).sum();
            let length = squares.sqrt().max(1e-12);
            vector.iter_mut().for_each(|number| *number = (f64::from(*number) / length) as f32);
        }
    }
}

/// Whether a folder holds a model that makes embeddings only, which may lack an output layer.
pub(crate) fn is_embedding_model(folder: &Path, config: &Value) -> bool {
    // "Qwen3Model" is the decoder alone, "Qwen3ForCausalLM" has an output layer.
    let class = config.get("architectures").and_then(|classes| classes.get(0)?.as_str());
    class.is_some_and(|class| class.ends_with("Model")) || folder.join("modules.json").exists()
}

/// Settings in the config.json of a pooling module.
struct PoolingModule {
    pooling: Pooling,
    /// Whether the tokens of the prompt count too.
    includes_prompt: bool,
}

fn read_pooling(folder: &Path, path: &str) -> Result<PoolingModule, String> {
    let mut components = Path::new(path).components();
    let is_inside =
        matches!((components.next(), components.next()), (Some(Component::Normal(_)), None));
    if !is_inside {
        return Err(format!("its modules.json names the folder {path:?}"));
    }
    let config = json(&folder.join(path).join("config.json"))?;
    let config =
        config.ok_or_else(|| format!("{path}/config.json is missing: download it again"))?;
    let includes_prompt = config.get("include_prompt").and_then(Value::as_bool).unwrap_or(true);
    Ok(PoolingModule { pooling: Pooling::parse(&config)?, includes_prompt })
}

/// The prompt that config_sentence_transformers.json names as the default.
fn default_prompt(folder: &Path) -> Result<Option<String>, String> {
    let settings = json(&folder.join("config_sentence_transformers.json"))?.unwrap_or_default();
    let Some(name) = settings.get("default_prompt_name").and_then(Value::as_str) else {
        return Ok(None);
    };
    let prompt = settings.get("prompts").and_then(|prompts| prompts.get(name)?.as_str());
    Ok(prompt.filter(|prompt| !prompt.is_empty()).map(str::to_owned))
}

/// Fails if tokens are to see those after them, which the decoders here never do.
fn check_is_causal(config: &Value) -> Result<(), String> {
    let sees_all = |value: &Value| *value == true || *value == "all";
    let is_causal = config.get("is_causal") != Some(&Value::Bool(false))
        && !config.get("use_bidirectional_attention").is_some_and(sees_all);
    match is_causal {
        true => Ok(()),
        false => Err("its tokens see those after them too, and only decoders run here".to_owned()),
    }
}

/// The contents of a small JSON file; `None` if there is none.
fn json(path: &Path) -> Result<Option<Value>, String> {
    if !path.exists() {
        return Ok(None);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let bytes = read_file(path, MAX_CONFIG_BYTES).map_err(|error| error.to_string())?;
    let value = serde_json::from_slice(&bytes);
    value.map(Some).map_err(|error| format!("its {name} is not valid: {error}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    /// Reads the settings of a folder with these files.
    fn read(config: Value, files: &[(&str, Value)]) -> Result<EmbeddingSettings, String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, contents) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, contents.to_string()).unwrap();
        }
        EmbeddingSettings::read(folder.path(), &config)
    }

    fn modules(types: &[&str]) -> Value {
        let module = |(index, kind): (usize, &&str)| {
            let path = if index == 0 { String::new() } else { format!("{index}_{kind}") };
            json!({ "idx": index, "path": path, "type": format!("sentence_transformers.models.{kind}") })
        };
        types.iter().enumerate().map(module).collect()
    }

    #[test]
    fn reads_each_pooling_mode() {
        for (mode, expected) in [
            (
                json!({ "pooling_mode_lasttoken": true, "pooling_mode_mean_tokens": false }),
                Pooling::Last,
            ),
            (json!({ "pooling_mode_mean_tokens": true }), Pooling::Mean),
            (json!({ "pooling_mode_weightedmean_tokens": true }), Pooling::WeightedMean),
            (
                json!({ "pooling_mode_cls_token": true, "word_embedding_dimension": 8 }),
                Pooling::First,
            ),
            (json!({ "pooling_mode": "lasttoken" }), Pooling::Last),
        ] {
            let files = [
                ("modules.json", modules(&["Transformer", "Pooling"])),
                ("1_Pooling/config.json", mode.clone()),
            ];
            let found = read(json!({}), &files).unwrap();
            assert_eq!((found.pooling, found.normalizes), (expected, false), "{mode}");
        }
    }

    #[test]
    fn reads_limit_prompt_and_normalization() {
        let prompts = json!({ "prompts": { "query": "q: ", "document": "" }, "default_prompt_name": "query" });
        let files = [
            ("modules.json", modules(&["Transformer", "Pooling", "Normalize"])),
            ("1_Pooling/config.json", json!({ "pooling_mode_lasttoken": true })),
            ("sentence_bert_config.json", json!({ "max_seq_length": 512 })),
            ("config_sentence_transformers.json", prompts),
        ];
        let expected = EmbeddingSettings {
            prompt: Some("q: ".to_owned()),
            max_tokens: Some(512),
            ..EmbeddingSettings::default()
        };
        assert_eq!(read(json!({}), &files), Ok(expected));
        assert_eq!(read(json!({ "is_causal": true }), &[]), Ok(EmbeddingSettings::default()));
    }

    #[test]
    fn refuses_what_is_not_supported() {
        let pooled = |types: &[&str], mode: Value| {
            read(json!({}), &[("modules.json", modules(types)), ("1_Pooling/config.json", mode)])
        };
        let last = json!({ "pooling_mode_lasttoken": true });
        for (found, part) in [
            (pooled(&["Transformer", "Pooling", "Dense"], last.clone()), "module \"Dense\""),
            (
                pooled(&["Transformer", "Pooling"], json!({ "pooling_mode_max_tokens": true })),
                "max_tokens",
            ),
            (
                pooled(
                    &["Transformer", "Pooling"],
                    json!({ "pooling_mode_lasttoken": true, "pooling_mode_mean_tokens": true }),
                ),
                "lasttoken + mean_tokens",
            ),
            (pooled(&["Transformer"], last), "names no pooling"),
            (
                read(json!({}), &[("modules.json", modules(&["Transformer", "Pooling"]))]),
                "is missing",
            ),
            (read(json!({ "is_causal": false }), &[]), "see those after them"),
            (read(json!({ "use_bidirectional_attention": true }), &[]), "see those after them"),
        ] {
            let reason = found.unwrap_err();
            assert!(reason.contains(part), "{reason}");
        }
        let outside = json!([{ "type": "models.Pooling", "path": "../1_Pooling" }]);
        assert!(read(json!({}), &[("modules.json", outside)]).is_err());
    }

    #[test]
    fn weights_of_a_text_add_up_to_one() {
        for pooling in [Pooling::First, Pooling::Last, Pooling::Mean, Pooling::WeightedMean] {
            let sum: f32 = (0..9).map(|index| pooling.weight(index, 7)).sum();
            assert!((sum - 1.0).abs() < 1e-6, "{pooling:?}");
        }
    }
}
