//! The models that Cairn suggests, and which of them to offer first on this machine.
//!
//! They are data, `recommended.json`, the best of them first: conversions that mlx-community and
//! LM Studio's community publish. `config` is the part of a model's config.json that the estimator of
//! memory reads, as its maker published it. `download_bytes` stands for the weights too, so the
//! estimate on a GPU is too high by a tokenizer and by the parts for images and sound, which are not
//! loaded. [`CLASSES`] says which model is offered for what, by the memory of the machine: the largest
//! model that fits is not the best one any more.

use cairn_engine::{ComputeDevice, ModelMemory};
use serde::Deserialize;
use serde_json::Value;

use super::check_child::CheckedFacts;
use crate::wire::{Fit, ModelChoice, RecommendedModel};

const RECOMMENDED: &str = include_str!("recommended.json");
const CHOICES: [ModelChoice; 3] = [ModelChoice::Start, ModelChoice::Better, ModelChoice::Code];

/// A model in the file.
#[derive(Debug, Clone, Deserialize)]
struct Entry {
    name: String,
    title: String,
    maker: String,
    licence: String,
    download_bytes: u64,
    config: Value,
}

/// The models to offer on machines from this memory up to the next class's.
struct MemoryClass {
    gigabytes: u64,
    /// Answers soon. From 8 GB on it thinks only if asked.
    start: &'static str,
    /// Slower, and scores higher.
    better: &'static str,
    code: Option<&'static str>,
}

/// Sorted by memory. A machine between two classes is of the lower one.
const CLASSES: [MemoryClass; 7] = [
    // For computers without a GPU too, where weights take four bytes each and larger models are slow.
    MemoryClass {
        gigabytes: 0,
        start: "mlx-community/Qwen3-0.6B-4bit",
        better: "mlx-community/Qwen3-1.7B-4bit",
        code: None,
    },
    MemoryClass {
        gigabytes: 8,
        start: "mlx-community/gemma-4-e2b-it-4bit",
        better: "mlx-community/Qwen3.5-4B-MLX-4bit",
        code: Some("mlx-community/Qwen3.5-4B-MLX-4bit"),
    },
    MemoryClass {
        gigabytes: 16,
        start: "mlx-community/gemma-4-e4b-it-4bit",
        better: "mlx-community/Qwen3.5-9B-4bit",
        code: Some("mlx-community/Qwen3.5-9B-4bit"),
    },
    MemoryClass {
        gigabytes: 24,
        start: "mlx-community/gemma-4-12B-it-4bit",
        better: "mlx-community/gpt-oss-20b-MXFP4-Q8",
        code: Some("mlx-community/Qwen3.5-9B-6bit"),
    },
    // Agents read much for each answer: a model with few active weights reads it several times faster.
    MemoryClass {
        gigabytes: 36,
        start: "mlx-community/gemma-4-26B-A4B-it-qat-4bit",
        better: "mlx-community/Qwen3.8-27B-4bit",
        code: Some("mlx-community/Qwen3-Coder-30B-A3B-Instruct-4bit"),
    },
    MemoryClass {
        gigabytes: 64,
        start: "mlx-community/gemma-4-26B-A4B-it-qat-4bit",
        better: "mlx-community/Qwen3.8-27B-8bit",
        code: Some("mlx-community/Qwen3-Coder-Next-4bit"),
    },
    MemoryClass {
        gigabytes: 128,
        start: "mlx-community/gemma-4-26B-A4B-it-qat-4bit",
        better: "mlx-community/Qwen3.8-27B-8bit",
        code: Some("lmstudio-community/Qwen3-Coder-Next-MLX-8bit"),
    },
];
/// The class of a machine without a GPU, however much memory it has.
const MOST_GIGABYTES_ON_CPU: u64 = 8;

impl MemoryClass {
    fn name_for(&self, choice: ModelChoice) -> Option<&'static str> {
        match choice {
            ModelChoice::Start => Some(self.start),
            ModelChoice::Better => Some(self.better),
            ModelChoice::Code => self.code,
        }
    }
}

/// Returns the models to suggest on a machine with `memory_bytes`, of which models may take
/// `budget_bytes`: first those with a choice, in the order of [`ModelChoice`], then the others that fit
/// well and then those that fit tightly, the best first. A model that is too large is none of them.
pub(crate) fn recommended(memory_bytes: u64, budget_bytes: u64) -> Vec<RecommendedModel> {
    recommend(ComputeDevice::current(), memory_bytes, budget_bytes)
}

fn recommend(device: ComputeDevice, memory_bytes: u64, budget_bytes: u64) -> Vec<RecommendedModel> {
    let entries: Vec<Entry> = match serde_json::from_str(RECOMMENDED) {
        Ok(entries) => entries,
        Err(error) => {
            tracing::error!("no model is suggested, recommended.json is not valid: {error}");
            return Vec::new();
        }
    };
    let usable = entries.into_iter().filter_map(|entry| describe(device, entry, budget_bytes));
    let mut models: Vec<RecommendedModel> = usable.collect();
    // The system keeps a little of what the maker counts.
    let gigabytes = memory_bytes.div_ceil(1 << 30);
    let gigabytes = match device {
        ComputeDevice::Cpu => gigabytes.min(MOST_GIGABYTES_ON_CPU),
        ComputeDevice::Gpu => gigabytes,
    };
    for choice in CHOICES {
        if let Some(index) = chosen(&models, gigabytes, choice) {
            models[index].choices.push(choice);
        }
    }
    models.sort_by_key(|model| {
        let choice = CHOICES.iter().position(|choice| model.choices.contains(choice));
        (choice.unwrap_or(CHOICES.len()), model.facts.memory.fit != Fit::Well)
    });
    models
}

/// Describes a model on this device; `None` if the app would refuse to load it, or if it is too large.
fn describe(device: ComputeDevice, entry: Entry, budget_bytes: u64) -> Option<RecommendedModel> {
    let Entry { name, title, maker, licence, download_bytes, config } = entry;
    let memory = ModelMemory::before_download_on(device, &config, download_bytes)
        .inspect_err(|error| tracing::error!("{name} is not suggested: {error}"))
        .ok()?;
    let facts = CheckedFacts::of(&memory).within(budget_bytes);
    let fits = facts.memory.fit != Fit::TooLarge;
    let choices = Vec::new();
    fits.then_some(RecommendedModel { name, title, maker, licence, download_bytes, facts, choices })
}

/// Finds the model for a choice: that of the machine's class, or of the next lower one whose model
/// fits well. If none does, one that fits tightly will do to start with.
fn chosen(models: &[RecommendedModel], gigabytes: u64, choice: ModelChoice) -> Option<usize> {
    let classes = CLASSES.iter().rev().filter(|class| class.gigabytes <= gigabytes);
    let named = classes.filter_map(|class| class.name_for(choice));
    let fitting: Vec<usize> =
        named.filter_map(|name| models.iter().position(|model| model.name == name)).collect();
    let fits_well = |index: &&usize| models[**index].facts.memory.fit == Fit::Well;
    let tight = fitting.last().filter(|_| choice == ModelChoice::Start);
    fitting.iter().find(fits_well).or(tight).copied()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    const DEVICES: [ComputeDevice; 2] = [ComputeDevice::Cpu, ComputeDevice::Gpu];
    const GIB: u64 = 1 << 30;

    fn entries() -> Vec<Entry> {
        serde_json::from_str(RECOMMENDED).unwrap()
    }

    /// Suggests for a machine of which models may take three quarters.
    fn suggest(device: ComputeDevice, gigabytes: u64) -> Vec<RecommendedModel> {
        recommend(device, gigabytes * GIB, gigabytes * GIB / 4 * 3)
    }

    #[test]
    fn sizes_follow_from_each_config() {
        /// The maker's number of parameters in billions, without parts for images and sound.
        const PARAMETERS: &[(&str, f64)] = &[
            ("Qwen3.8-27B", 27.0),
            ("Qwen3.6-35B-A3B", 35.0),
            ("Qwen3-Coder-Next", 80.0),
            ("gemma-4-26B-A4B", 25.2),
            ("Qwen3-Coder-30B-A3B", 30.5),
            ("gpt-oss-20b", 21.0),
            ("gemma-4-12B", 12.0),
            ("Qwen3.5-9B", 9.0),
            ("gemma-4-e4b", 7.5),
            ("Qwen3.5-4B", 4.2),
            ("gemma-4-e2b", 4.65),
            ("Qwen3-1.7B", 1.7),
            ("Qwen3-0.6B", 0.6),
        ];
        for entry in entries() {
            let name = entry.name.as_str();
            let is_of_name = |(part, _): &&(&str, f64)| name.contains(part);
            let (_, billions) = PARAMETERS.iter().find(is_of_name).unwrap();
            for device in DEVICES {
                let memory =
                    ModelMemory::before_download_on(device, &entry.config, entry.download_bytes);
                let memory = memory.unwrap();
                let parameters = memory.num_parameters as f64;
                assert!((parameters / billions / 1e9 - 1.0).abs() < 0.06, "{name}: {parameters}");
                let (bits, group_size) = memory.quantization.unwrap();
                // A group of 64 has a scale and a bias of 16 bits; one of mxfp4 a scale of 8.
                let overhead = if group_size == 64 { 32.0 / 64.0 } else { 8.0 / 32.0 };
                let weights = parameters * (f64::from(bits) + overhead) / 8.0;
                let share = entry.download_bytes as f64 / weights;
                // Other parts, and layers with more bits.
                assert!((0.97..1.40).contains(&share), "{name}: {share}");
            }
        }
    }

    #[test]
    fn each_class_names_models_of_the_file() {
        let entries = entries();
        assert!(CLASSES.is_sorted_by_key(|class| class.gigabytes));
        assert_eq!(CLASSES[0].gigabytes, 0, "every machine has a class");
        for class in &CLASSES {
            for name in CHOICES.into_iter().filter_map(|choice| class.name_for(choice)) {
                assert!(entries.iter().any(|entry| entry.name == name), "{name}");
            }
        }
    }

    #[test]
    fn never_suggests_what_would_be_refused() {
        for device in DEVICES {
            for gigabytes in [1, 2, 4, 8, 16, 18, 24, 32, 36, 48, 64, 96, 128, 512] {
                for model in suggest(device, gigabytes) {
                    let entry =
                        entries().into_iter().find(|entry| entry.name == model.name).unwrap();
                    let model_type = entry.config["model_type"].as_str().unwrap();
                    assert!(cairn_engine::is_supported(model_type), "{}", model.name);
                    assert_ne!(model.facts.memory.fit, Fit::TooLarge, "{gigabytes} {model:?}");
                }
            }
        }
        assert_eq!(recommend(ComputeDevice::Gpu, 8 * GIB, 0), []);
        let unknown = Entry {
            config: serde_json::json!({ "model_type": "prism_hadamard_qwen35" }),
            ..entries().remove(0)
        };
        assert_eq!(describe(ComputeDevice::Gpu, unknown, u64::MAX), None);
    }

    #[test]
    fn choices_come_first_and_tight_fits_last() {
        for device in DEVICES {
            for gigabytes in [2, 8, 16, 24, 36, 64, 128] {
                let models = suggest(device, gigabytes);
                let roles: Vec<ModelChoice> =
                    models.iter().flat_map(|model| model.choices.clone()).collect();
                let in_order: Vec<_> =
                    CHOICES.into_iter().filter(|choice| roles.contains(choice)).collect();
                assert_eq!(roles, in_order, "{device:?} {gigabytes}");
                let others = models.iter().skip_while(|model| !model.choices.is_empty());
                assert!(others.clone().all(|model| model.choices.is_empty()));
                assert!(others.is_sorted_by_key(|model| model.facts.memory.fit != Fit::Well));
            }
        }
    }

    /// Checks the names, without owner, of the models to start with, the better one and the one for
    /// code. All of them fit well.
    #[track_caller]
    fn check(device: ComputeDevice, gigabytes: u64, expected: [&str; 3]) {
        let models = suggest(device, gigabytes);
        let found = CHOICES.map(|choice| {
            let model = models.iter().find(|model| model.choices.contains(&choice));
            model.map_or("", |model| {
                assert_eq!(model.facts.memory.fit, Fit::Well, "{}", model.name);
                model.name.split_once('/').unwrap().1
            })
        });
        assert_eq!(found, expected, "{gigabytes} GB");
    }

    #[test]
    fn larger_machines_get_better_models() {
        const E2B: &str = "gemma-4-e2b-it-4bit";
        const E4B: &str = "gemma-4-e4b-it-4bit";
        const QWEN_4B: &str = "Qwen3.5-4B-MLX-4bit";
        const QWEN_9B: &str = "Qwen3.5-9B-4bit";
        const GEMMA_26B: &str = "gemma-4-26B-A4B-it-qat-4bit";
        const CODER_30B: &str = "Qwen3-Coder-30B-A3B-Instruct-4bit";
        let gpu = |gigabytes, expected| check(ComputeDevice::Gpu, gigabytes, expected);
        gpu(8, [E2B, QWEN_4B, QWEN_4B]);
        gpu(16, [E4B, QWEN_9B, QWEN_9B]);
        gpu(18, [E4B, QWEN_9B, QWEN_9B]);
        let of_24 = ["gemma-4-12B-it-4bit", "gpt-oss-20b-MXFP4-Q8", "Qwen3.5-9B-6bit"];
        gpu(24, of_24);
        gpu(32, of_24);
        gpu(36, [GEMMA_26B, "Qwen3.8-27B-4bit", CODER_30B]);
        gpu(48, [GEMMA_26B, "Qwen3.8-27B-4bit", CODER_30B]);
        // Qwen3 Coder Next would be tight.
        gpu(64, [GEMMA_26B, "Qwen3.8-27B-8bit", CODER_30B]);
        gpu(128, [GEMMA_26B, "Qwen3.8-27B-8bit", "Qwen3-Coder-Next-4bit"]);
    }

    #[test]
    fn computers_without_gpu_get_small_models() {
        let cpu = |gigabytes, expected| check(ComputeDevice::Cpu, gigabytes, expected);
        cpu(24, ["Qwen3-0.6B-4bit", "Qwen3-1.7B-4bit", ""]);
        cpu(512, ["gemma-4-e2b-it-4bit", "Qwen3.5-4B-MLX-4bit", "Qwen3.5-4B-MLX-4bit"]);
    }
}
