//! A model's config.json: what is said of it before anything is downloaded or loaded. It is counted
//! or refused in one readable sentence, and neither takes memory to speak of.
//!
//! An input that begins with `{` is a config. Any other is lines: the name of a golden model, and
//! then changes of its config, each a JSON pointer and a value, which stands for itself where it is
//! no JSON. A pointer alone takes the key away.
//! ```text
//! llama/dense-tied
//! /num_hidden_layers 3
//! /rope_scaling {"rope_type": "yarn", "factor": 4.0}
//! /head_dim
//! ```
//! A name or a pointer that is none, as mutations make them, stands for one of those that are.
#![no_main]

use std::sync::LazyLock;

use cairn_formats::python_json;
use cairn_fuzz::{GoldenConfigs, check_sentence, one_of};
use cairn_lm::ModelMemory;
use cairn_lm::device::ComputeDevice;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

static GOLDENS: LazyLock<GoldenConfigs> = LazyLock::new(GoldenConfigs::read);

fuzz_target!(|input: &[u8]| {
    let config = match input {
        [b'{', ..] => python_json(input).ok(),
        _ => std::str::from_utf8(input).ok().and_then(changed),
    };
    let Some(config) = config else { return };
    for device in [ComputeDevice::Cpu, ComputeDevice::Gpu] {
        match ModelMemory::before_download_on(device, &config, 1 << 30) {
            Ok(memory) => check_memory(&memory),
            Err(refusal) => check_sentence(&refusal.to_string()),
        }
    }
});

/// More tokens and rows never take less; sums saturate.
fn check_memory(memory: &ModelMemory) {
    let one = memory.peak_bytes(1, 1, 1);
    let more = memory.peak_bytes(memory.context_length.min(4096), 4, 512);
    assert!(more >= one, "{more} for many and {one} for one");
    assert!(memory.kv_bytes(memory.context_length) >= memory.kv_bytes(1));
}

/// The config that lines describe.
fn changed(text: &str) -> Option<Value> {
    let mut lines = text.lines();
    let (_, mut config) = one_of(&GOLDENS.configs, lines.next()?, |(name, _)| name).clone();
    for line in lines.take(64) {
        let (pointer, value) = line.split_once(' ').map_or((line, None), |(p, v)| (p, Some(v)));
        let pointer: &String = one_of(&GOLDENS.pointers, pointer, |known| known);
        change(&mut config, pointer, value);
    }
    Some(config)
}

/// Puts a value where a pointer leads to, or takes away what is there.
fn change(config: &mut Value, pointer: &str, value: Option<&str>) {
    let Some((parent, key)) = pointer.rsplit_once('/') else { return };
    if !parent.is_empty() && config.pointer(parent).is_none() {
        change(config, parent, Some("{}"));
    }
    let Some(entries) = config.pointer_mut(parent).and_then(Value::as_object_mut) else { return };
    let parsed = |text: &str| {
        python_json(text.as_bytes()).unwrap_or_else(|_| Value::String(text.to_owned()))
    };
    match value.map(parsed) {
        Some(value) => drop(entries.insert(key.to_owned(), value)),
        None => drop(entries.remove(key)),
    }
}
