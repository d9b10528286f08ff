//! Times the masks of constrained answers: what a grammar takes to compile, and each token's mask, which
//! the engine computes while the device works.
//!
//! usage: mask_speed MODEL_FOLDER [VOCABULARY_SIZE]...
//!
//! Needs no weights. A larger vocabulary than the folder's has pairs of its tokens besides, because the
//! cost depends on how many tokens there are and how they begin.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cairn_chat::Encode;
use cairn_lm::{Constraint, GrammarCompiler, LoadOptions, LoadedModel};
use serde_json::{Value, json};

/// How often each document is written; the first time is told apart.
const NUM_ROUNDS: usize = 20;
const RANDOM_TOKENS: usize = 100;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().context("usage: mask_speed MODEL_FOLDER [VOCABULARY_SIZE]...")?;
    let sizes: Vec<usize> = arguments.map(|size| size.parse()).collect::<Result<_, _>>()?;
    for vocab_size in sizes {
        let made = tempfile::tempdir()?;
        write_model(Path::new(&folder), made.path(), vocab_size)?;
        let model = LoadedModel::load(made.path(), LoadOptions::new().keep_quantized(true))?;
        let compiler = model.grammar_compiler();
        let began = Instant::now();
        compiler.compile("start: \"a\"")?;
        println!("{{\"vocab_size\": {vocab_size}, \"vocabulary_ms\": {:.1}}}", ms(began.elapsed()));
        for (name, schema, document) in cases() {
            time(&model, &compiler, name, &schema, &document)?;
            time_random(&model, &compiler, name, &schema)?;
        }
    }
    Ok(())
}

fn time(
    model: &LoadedModel,
    compiler: &GrammarCompiler,
    name: &str,
    schema: &Value,
    document: &Value,
) -> Result<()> {
    let began = Instant::now();
    let grammar = compiler.compile(&format!("start: %json {schema}"))?;
    let compiled = began.elapsed();
    let began = Instant::now();
    drop(grammar.constraint(0));
    let copied = began.elapsed();
    let tokens = model.tokenizer.encode(&document.to_string(), false)?;
    let mut allowed = vec![0; Constraint::num_words(model.model.vocab_size())];
    let (mut first, mut later) = (Vec::new(), Vec::new());
    for round in 0..NUM_ROUNDS {
        let mut constraint = grammar.constraint(0);
        for position in 0..tokens.len() {
            // The answer's first token follows a prompt, of which the grammar knows nothing.
            let all = [&[0], &tokens[..position]].concat();
            let (last, before) = all.split_last().context("a token")?;
            let began = Instant::now();
            constraint.allowed(before, *last, &mut allowed)?;
            let took = began.elapsed();
            ensure!(
                is_allowed(&allowed, tokens[position]),
                "{name}: token {position} is not allowed"
            );
            if round == 0 { &mut first } else { &mut later }.push(took);
        }
    }
    println!(
        "{{\"schema\": \"{name}\", \"schema_bytes\": {}, \"compile_ms\": {:.2}, \"copy_us\": {:.0}, \"tokens\": {}, \
         \"mask_us\": {:.1}, \"median_us\": {:.1}, \"p99_us\": {:.1}, \"most_us\": {:.1}, \"first_time_us\": {:.1}}}",
        schema.to_string().len(),
        ms(compiled),
        ms(copied) * 1e3,
        tokens.len(),
        mean_us(&later),
        percentile_us(&mut later, 0.5),
        percentile_us(&mut later, 0.99),
        percentile_us(&mut later, 1.0),
        mean_us(&first),
    );
    Ok(())
}

fn is_allowed(mask: &[u32], token: u32) -> bool {
    mask[(token / u32::BITS) as usize] >> (token % u32::BITS) & 1 == 1
}

/// Times answers of which each token is drawn from all that are allowed: what a model of random
/// weights writes.
fn time_random(
    model: &LoadedModel,
    compiler: &GrammarCompiler,
    name: &str,
    schema: &Value,
) -> Result<()> {
    let grammar = compiler.compile(&format!("start: %json {schema}"))?;
    let mut allowed = vec![0; Constraint::num_words(model.model.vocab_size())];
    let (mut times, mut state) = (Vec::new(), 1u64);
    for _ in 0..NUM_ROUNDS {
        let mut constraint = grammar.constraint(0);
        let mut tokens = vec![0];
        for _ in 0..RANDOM_TOKENS {
            let began = Instant::now();
            let (last, before) = tokens.split_last().context("a token")?;
            constraint.allowed(before, *last, &mut allowed)?;
            times.push(began.elapsed());
            let vocabulary = 0..model.model.vocab_size() as u32;
            let choices: Vec<u32> =
                vocabulary.filter(|&token| is_allowed(&allowed, token)).collect();
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            tokens.push(choices[(state >> 33) as usize % choices.len()]);
        }
    }
    println!(
        "{{\"schema\": \"{name}\", \"answers\": \"random\", \"mask_us\": {:.1}, \"median_us\": {:.1}, \"p99_us\": {:.1}}}",
        mean_us(&times),
        percentile_us(&mut times, 0.5),
        percentile_us(&mut times, 0.99),
    );
    Ok(())
}

/// Schemas, with a document of each as a model would write it.
fn cases() -> Vec<(&'static str, Value, Value)> {
    let person = json!({ "type": "object", "properties": {
        "name": { "type": "string" }, "age": { "type": "integer", "minimum": 0 },
        "email": { "type": ["string", "null"] },
    }, "required": ["name", "age", "email"], "additionalProperties": false });
    let ada = json!({ "name": "Ada King, Countess of Lovelace", "age": 36, "email": null });
    let order = json!({ "type": "object", "properties": {
        "id": { "type": "string", "format": "uuid" },
        "date": { "type": "string", "format": "date" },
        "customer": person,
        "status": { "enum": ["open", "paid", "sent", "returned"] },
        "items": { "type": "array", "minItems": 1, "maxItems": 40, "items": {
            "type": "object", "properties": {
                "sku": { "type": "string", "pattern": "^[A-Z]{2}-[0-9]{4,6}$" },
                "title": { "type": "string", "maxLength": 120 },
                "price": { "type": "number", "minimum": 0 },
            }, "required": ["sku", "title", "price"], "additionalProperties": false,
        } },
        "note": { "type": "string" },
    }, "required": ["id", "date", "customer", "status", "items", "note"],
       "additionalProperties": false });
    let items: Vec<Value> = (0..6)
        .map(|number| {
            json!({ "sku": format!("AB-{}", 1000 + 37 * number), "price": 4.25 + f64::from(number),
                "title": "A lantern of brass for long nights on the hill path" })
        })
        .map(|item| json!({ "sku": item["sku"], "title": item["title"], "price": item["price"] }))
        .collect();
    let note = "Please leave the parcel with the neighbours, who are at home until the evening. \
                The bell does not work; knock twice, and mind the second step. Thank you!";
    let ordered = json!({
        "id": "7f1c9a52-3d4e-4b6a-9c8d-0e1f2a3b4c5d", "date": "2026-11-23",
        "customer": ada.clone(), "status": "paid", "items": items, "note": note,
    });
    let (large, filled) = large(&order, &ordered);
    vec![("small", person, ada), ("order", order, ordered), ("large", large, filled)]
}

/// An object of 200 properties, each of its own kind, behind references.
fn large(order: &Value, ordered: &Value) -> (Value, Value) {
    let (mut properties, mut values) = (serde_json::Map::new(), serde_json::Map::new());
    for number in 0..200 {
        let name = format!("field_{number}_of_the_record");
        let words: Vec<String> = (0..40).map(|word| format!("choice {number} {word}")).collect();
        let (schema, value) = match number % 5 {
            0 => (json!({ "$ref": "#/$defs/order" }), ordered.clone()),
            1 => (json!({ "enum": words }), json!(words[17])),
            2 => (json!({ "type": "string", "maxLength": 200 }), json!("some text of a few words")),
            3 => (json!({ "type": "integer", "minimum": -number, "maximum": 10_000 }), json!(77)),
            _ => (
                json!({ "anyOf": [{ "$ref": "#/$defs/order" }, { "type": "null" },
                    { "type": "array", "items": { "type": "number" } }] }),
                json!([1.5, 2, 3]),
            ),
        };
        // A document of some thousand tokens has a tenth of them.
        if number < 20 {
            values.insert(name.clone(), value);
        }
        properties.insert(name, schema);
    }
    let schema = json!({ "type": "object", "properties": properties,
        "additionalProperties": false, "$defs": { "order": order } });
    (schema, Value::Object(values))
}

/// A model without weights, with the tokenizer of `folder` and pairs of its tokens.
fn write_model(folder: &Path, made: &Path, vocab_size: usize) -> Result<()> {
    let read = |name: &str| std::fs::read(folder.join(name)).with_context(|| name.to_owned());
    let mut tokenizer: Value = serde_json::from_slice(&read("tokenizer.json")?)?;
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut().context("a vocabulary")?;
    let mut words: Vec<(String, u64)> =
        vocabulary.iter().filter_map(|(word, id)| Some((word.clone(), id.as_u64()?))).collect();
    words.sort_by_key(|(_, id)| *id);
    let words: Vec<String> = words.into_iter().map(|(word, _)| word).collect();
    let mut next = words.len();
    // A word that begins with a blank (Ġ), and one that does not.
    let begins = words.iter().filter(|word| word.starts_with('Ġ') && word.len() > 4);
    let ends = words.iter().filter(|word| word.chars().all(|char| char.is_ascii_lowercase()));
    let ends: Vec<&String> = ends.collect();
    for (index, begin) in begins.cycle().enumerate() {
        if next >= vocab_size {
            break;
        }
        let end = ends[(index * 7919 + index / 1000) % ends.len()];
        let pair = format!("{begin}{end}");
        if !vocabulary.contains_key(&pair) {
            vocabulary.insert(pair, next.into());
            next += 1;
        }
    }
    let config = json!({ "model_type": "scripted", "vocab_size": vocab_size.max(words.len()),
        "script": [0] });
    std::fs::write(made.join("tokenizer.json"), tokenizer.to_string())?;
    std::fs::write(made.join("tokenizer_config.json"), read("tokenizer_config.json")?)?;
    std::fs::write(made.join("config.json"), config.to_string())?;
    Ok(())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn mean_us(times: &[Duration]) -> f64 {
    ms(times.iter().sum()) * 1e3 / times.len() as f64
}

fn percentile_us(times: &mut [Duration], share: f64) -> f64 {
    times.sort();
    let index = (times.len() as f64 * share).ceil() as usize;
    times.get(index.saturating_sub(1)).map_or(f64::NAN, |&time| ms(time) * 1e3)
}
