//! What is checked and measured: the model in a folder.

use std::path::Path;

use serde_json::Value;

use crate::Failure;

/// What is known of the model from its config.json.
pub struct Subject {
    /// As its results are called.
    pub name: String,
    pub hidden: usize,
    pub vocab: usize,
    /// Whether a router leaves some experts out.
    pub chooses_experts: bool,
    /// What another implementation's logits of single tokens differ by from those of all at once, as a
    /// part of their norm; 0 where that is not known.
    pub rounding: f32,
}

impl Subject {
    pub fn new(name: &str, folder: &Path, rounding: f32) -> Result<Self, Failure> {
        let config: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json"))?)?;
        let config = config.get("text_config").unwrap_or(&config);
        let number = |names: &[&str]| {
            let found = names.iter().find_map(|name| config.get(name)?.as_u64());
            found.map(|number| number as usize)
        };
        let needed = |name: &str| number(&[name]).ok_or_else(|| format!("no {name} in {config}"));
        let experts = number(&["num_experts", "num_local_experts", "n_routed_experts"]);
        let chosen = number(&["num_experts_per_tok", "top_k_experts"]);
        Ok(Self {
            name: name.to_owned(),
            hidden: needed("hidden_size")?,
            vocab: needed("vocab_size")?,
            chooses_experts: experts > chosen,
            rounding,
        })
    }
}
