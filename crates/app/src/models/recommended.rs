//! The models that Cairn recommends, and which of them to offer first on this machine.
//!
//! They are data, `recommended.json`: conversions to 4 bits that mlx-community publishes. `config` is
//! the part of a model's config.json that the estimator of memory reads, as its maker published it.
//! The lengths follow from it: `weight_file_bytes` is 4.5 bits for each number of a matrix (4, and a
//! scale and a bias of 16 bits for each group of 64) and 16 for each other one, to the megabyte;
//! `download_bytes` adds the family's tokenizer. Gemma's conversion has its embeddings a second time,
//! as an output layer.

use cairn_engine::{ComputeDevice, ModelMemory};
use serde::Deserialize;
use serde_json::Value;

use super::check_child::CheckedFacts;
use crate::wire::{Fit, ModelChoice, RecommendedModel};

const RECOMMENDED: &str = include_str!("recommended.json");

/// One of them in the file.
#[derive(Debug, Clone, Deserialize)]
struct Entry {
    name: String,
    title: String,
    maker: String,
    licence: String,
    weight_file_bytes: u64,
    download_bytes: u64,
    /// A model for programmers is listed, but is not anybody's first.
    #[serde(default)]
    is_for_code: bool,
    config: Value,
}

/// The recommended models where models may take so much: first those that fit well, the largest and
/// so the best of them first; then those that fit tightly, and then those that are too large, of
/// both the smallest first.
pub(crate) fn recommended(budget_bytes: u64) -> Vec<RecommendedModel> {
    recommend(ComputeDevice::current(), budget_bytes)
}

fn recommend(device: ComputeDevice, budget_bytes: u64) -> Vec<RecommendedModel> {
    let entries: Vec<Entry> = match serde_json::from_str(RECOMMENDED) {
        Ok(entries) => entries,
        Err(error) => {
            tracing::error!("no model is recommended, recommended.json is not valid: {error}");
            return Vec::new();
        }
    };
    let mut listed: Vec<(Entry, RecommendedModel)> = Vec::with_capacity(entries.len());
    for entry in entries {
        match ModelMemory::before_download_on(device, &entry.config, entry.weight_file_bytes) {
            Ok(memory) => {
                let facts = CheckedFacts::of(&memory).within(budget_bytes);
                let model = RecommendedModel {
                    name: entry.name.clone(),
                    title: entry.title.clone(),
                    maker: entry.maker.clone(),
                    licence: entry.licence.clone(),
                    download_bytes: entry.download_bytes,
                    facts,
                    choice: None,
                };
                listed.push((entry, model));
            }
            Err(error) => tracing::error!("{} is not recommended: {error}", entry.name),
        }
    }
    listed.sort_by_key(|(_, model)| {
        // Of models of one kind, the one with more weights knows more.
        let bytes = model.facts.memory.weight_bytes;
        match model.facts.memory.fit {
            Fit::Well => (0, u64::MAX - bytes),
            Fit::Tight => (1, bytes),
            Fit::TooLarge => (2, bytes),
        }
    });
    choose(&mut listed, budget_bytes);
    listed.into_iter().map(|(_, model)| model).collect()
}

/// Marks three of the models that fit well, which are sorted with the largest first: the strongest,
/// the one that leaves most of the budget to longer conversations and a second model, and one that
/// is much quicker. Where fewer fit, fewer are marked, the balanced one always.
fn choose(listed: &mut [(Entry, RecommendedModel)], budget_bytes: u64) {
    let sizes: Vec<(usize, u64)> = listed
        .iter()
        .enumerate()
        .filter(|(_, (entry, model))| model.facts.memory.fit == Fit::Well && !entry.is_for_code)
        .map(|(index, (_, model))| (index, model.facts.memory.total_bytes))
        .collect();
    let largest_within = |bytes: u64| sizes.iter().find(|(_, total)| *total <= bytes).copied();
    let Some(&strong) = sizes.first() else { return };
    // On a tiny budget, the one that takes least.
    let least = sizes.iter().copied().min_by_key(|(_, total)| *total).unwrap_or(strong);
    let balanced = largest_within(budget_bytes / 5 * 2).unwrap_or(least);
    let small = largest_within(balanced.1 / 5 * 3);
    // The weaker claim first: a model has one mark, and the balanced one is there in any case.
    let chosen = [
        (Some(strong), ModelChoice::Strong),
        (small, ModelChoice::Small),
        (Some(balanced), ModelChoice::Balanced),
    ];
    for (model, choice) in chosen {
        if let Some((index, _)) = model {
            listed[index].1.choice = Some(choice);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;
    use crate::wire::MemoryNeed;

    const DEVICES: [ComputeDevice; 2] = [ComputeDevice::Cpu, ComputeDevice::Gpu];

    fn entries() -> Vec<Entry> {
        serde_json::from_str(RECOMMENDED).unwrap()
    }

    #[test]
    fn every_model_can_be_loaded_and_has_its_makers_number_of_parameters() {
        /// In billions, of which Gemma's has its embeddings twice.
        const PARAMETERS: &[(&str, f64)] = &[
            ("Qwen3 0.6B", 0.6),
            ("Gemma 3 1B", 1.0 + 0.302),
            ("Llama 3.2 1B", 1.23),
            ("Qwen3 1.7B", 1.7),
            ("Llama 3.2 3B", 3.21),
            ("Qwen3 4B", 4.0),
            ("Qwen2.5 Coder 7B", 7.61),
            ("Qwen3 8B", 8.2),
            ("Qwen3 14B", 14.8),
            ("Qwen3 30B A3B", 30.5),
            ("Qwen3 32B", 32.8),
            ("Llama 3.3 70B", 70.6),
            ("Qwen3 Next 80B A3B", 80.0),
        ];
        let entries = entries();
        let titles: Vec<&str> = entries.iter().map(|entry| entry.title.as_str()).collect();
        assert_eq!(titles, PARAMETERS.iter().map(|(title, _)| *title).collect::<Vec<_>>());
        for (entry, (title, billions)) in entries.iter().zip(PARAMETERS) {
            let model_type = entry.config["model_type"].as_str().unwrap();
            assert!(cairn_engine::is_supported(model_type), "{title}");
            assert!(entry.name.starts_with("mlx-community/"), "{title}");
            let bytes = entry.weight_file_bytes;
            for device in DEVICES {
                let memory = ModelMemory::before_download_on(device, &entry.config, bytes).unwrap();
                let parameters = memory.num_parameters as f64;
                let advertised = billions * 1e9;
                assert!((parameters / advertised - 1.0).abs() < 0.06, "{title}: {parameters}");
                assert!((bytes as f64 / (parameters * 4.5 / 8.0) - 1.0).abs() < 0.01, "{title}");
                assert_eq!(memory.quantization, Some((4, 64)), "{title}");
            }
            let tokenizer = entry.download_bytes - bytes;
            assert!((5_000_000..50_000_000).contains(&tokenizer), "{title}: {tokenizer}");
        }
    }

    #[test]
    fn what_fits_well_comes_first_and_what_is_too_large_last() {
        for device in DEVICES {
            for gigabytes in [0, 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 512] {
                let models = recommend(device, gigabytes * 1_000_000_000);
                assert_eq!(models.len(), entries().len());
                let places: Vec<u8> = models
                    .iter()
                    .map(|model| match model.facts.memory.fit {
                        Fit::Well => 0,
                        Fit::Tight => 1,
                        Fit::TooLarge => 2,
                    })
                    .collect();
                assert!(places.is_sorted(), "{device:?} {gigabytes}: {places:?}");
                let of = |choice| -> Vec<&MemoryNeed> {
                    let chosen = models.iter().filter(|model| model.choice == Some(choice));
                    chosen.map(|model| &model.facts.memory).collect()
                };
                let (small, strong) = (of(ModelChoice::Small), of(ModelChoice::Strong));
                let balanced = of(ModelChoice::Balanced);
                let is_any_well = places.contains(&0);
                assert_eq!(balanced.len(), usize::from(is_any_well), "{device:?} {gigabytes}");
                assert!(small.len() <= 1 && strong.len() <= 1);
                let balanced = balanced.first();
                for small in small {
                    assert!(small.total_bytes / 3 <= balanced.unwrap().total_bytes / 5);
                }
                for strong in strong {
                    assert!(strong.weight_bytes > balanced.unwrap().weight_bytes);
                }
                for model in models.iter().filter(|model| model.choice.is_some()) {
                    assert_eq!(model.facts.memory.fit, Fit::Well, "{}", model.name);
                }
            }
        }
    }

    /// The titles of the small, the balanced and the strong one, and of those that fit well, where
    /// models may take so many gigabytes of a GPU's memory.
    fn check(gigabytes: u64, chosen: [&str; 3], fit_well: &[&str]) {
        let models = recommend(ComputeDevice::Gpu, gigabytes * 1_000_000_000);
        let title_of = |choice| {
            let model = models.iter().find(|model| model.choice == Some(choice));
            model.map_or("", |model| model.title.as_str())
        };
        let found = [ModelChoice::Small, ModelChoice::Balanced, ModelChoice::Strong].map(title_of);
        assert_eq!(found, chosen, "{gigabytes} GB");
        let well = models.iter().filter(|model| model.facts.memory.fit == Fit::Well);
        let well: Vec<&str> = well.map(|model| model.title.as_str()).collect();
        assert_eq!(well, fit_well, "{gigabytes} GB");
    }

    #[test]
    fn a_larger_machine_is_offered_better_models() {
        const SMALL: [&str; 5] =
            ["Llama 3.2 3B", "Qwen3 1.7B", "Gemma 3 1B", "Llama 3.2 1B", "Qwen3 0.6B"];
        check(1, ["", "", ""], &[]);
        check(2, ["", "Llama 3.2 1B", "Gemma 3 1B"], &["Gemma 3 1B", "Llama 3.2 1B", "Qwen3 0.6B"]);
        check(
            8,
            ["", "Qwen3 1.7B", "Qwen3 4B"],
            &[&["Qwen2.5 Coder 7B", "Qwen3 4B"], &SMALL[..]].concat(),
        );
        check(
            16,
            ["Qwen3 1.7B", "Qwen3 4B", "Qwen3 14B"],
            &[&["Qwen3 14B", "Qwen3 8B", "Qwen2.5 Coder 7B", "Qwen3 4B"], &SMALL[..]].concat(),
        );
        const LARGE: [&str; 6] =
            ["Qwen3 32B", "Qwen3 30B A3B", "Qwen3 14B", "Qwen3 8B", "Qwen2.5 Coder 7B", "Qwen3 4B"];
        check(32, ["Qwen3 4B", "Qwen3 14B", "Qwen3 32B"], &[&LARGE[..], &SMALL[..]].concat());
        check(
            64,
            ["Qwen3 14B", "Qwen3 32B", "Qwen3 Next 80B A3B"],
            &[&["Qwen3 Next 80B A3B", "Llama 3.3 70B"], &LARGE[..], &SMALL[..]].concat(),
        );
    }
}
