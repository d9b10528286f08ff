//! Recurrent states in bf16 by option: nothing changes without it, and with it a state is a state like
//! any other.

use std::path::PathBuf;

use cairn_lm::batch::{BatchOptions, BatchRequest, batch_generate_tokens};
use cairn_lm::cache::LayerCache;
use cairn_lm::models::Model;
use cairn_lm::{LoadOptions, LoadedModel, ModelMemory, OwnDrafter, Sampler, compare_state};
use cairn_tests::tiny_model;
use mlx_rs::transforms::eval;
use mlx_rs::{Array, Dtype};

use crate::golden::{collect, golden, never_cancel, options, plain, tokens};

const MODELS: [&str; 3] = ["qwen3_next/dense", "qwen3_next/quant4", "qwen3_5/dense"];
const OPTIONS: LoadOptions = LoadOptions::new().keep_quantized(true);

fn load(name: &str, bf16_state: bool) -> LoadedModel {
    LoadedModel::load(&tiny_model(name), OPTIONS.bf16_state(bf16_state)).expect("loads")
}

fn prompt(name: &str) -> Vec<u32> {
    golden(name).prompt
}

/// Reads tokens and returns the logits behind the last one, as bits.
fn read(model: &Model, tokens: &[u32], caches: &mut [LayerCache]) -> Vec<u32> {
    let hidden = model
        .forward(&Array::from_slice(tokens, &[1, tokens.len() as i32]), caches)
        .expect("a pass");
    let logits = model.logits(&hidden).expect("logits").as_dtype(Dtype::Float32).expect("f32");
    eval([&logits]).expect("evaluates");
    let numbers = logits.as_slice::<f32>();
    numbers[numbers.len() - model.vocab_size()..].iter().map(|number| number.to_bits()).collect()
}

/// The types of the states that are not the convolution's.
fn state_types(caches: &[LayerCache]) -> Vec<Dtype> {
    caches
        .iter()
        .filter_map(|cache| match cache {
            LayerCache::Arrays(cache) => Some(cache.get(1).expect("a state").dtype()),
            _ => None,
        })
        .collect()
}

#[test]
fn states_are_of_the_type_that_was_asked_for() {
    for name in MODELS {
        for (bf16_state, expected) in [(false, Dtype::Float32), (true, Dtype::Bfloat16)] {
            let model = load(name, bf16_state).model;
            let mut caches = model.make_cache();
            let tokens = prompt(name);
            // Several tokens at once, and one.
            for part in [&tokens[..tokens.len() - 1], &tokens[tokens.len() - 1..]] {
                read(&model, part, &mut caches);
                let types = state_types(&caches);
                assert!(
                    !types.is_empty() && types.iter().all(|&found| found == expected),
                    "{name}"
                );
            }
            assert_eq!(model.cache_spec().has_bf16_state(), bf16_state, "{name}");
        }
    }
}

#[test]
fn the_option_leaves_other_models_what_they_are() {
    for name in ["llama/gqa", "mamba2/dense"] {
        let [without, with] = [false, true].map(|bf16_state| load(name, bf16_state));
        assert_eq!(without.fingerprint, with.fingerprint, "{name}");
        assert_eq!(without.identity, with.identity, "{name}");
        let logits = |model: &Model| read(model, &prompt(name), &mut model.make_cache());
        assert_eq!(logits(&without.model), logits(&with.model), "{name}");
        assert!(compare_state(&tiny_model(name), OPTIONS, &prompt(name)).unwrap().is_none());
        assert!(!ModelMemory::read(&tiny_model(name), OPTIONS).unwrap().takes_bf16_state);
    }
}

#[test]
fn saved_context_of_one_type_is_not_that_of_the_other() {
    for name in MODELS {
        let [without, with] = [false, true].map(|bf16_state| load(name, bf16_state));
        assert_ne!(without.fingerprint, with.fingerprint, "{name}");
        assert_ne!(without.identity.precision, with.identity.precision, "{name}");
        let memory = |bf16_state| {
            let memory = ModelMemory::read(&tiny_model(name), OPTIONS.bf16_state(bf16_state));
            memory.expect("its headers")
        };
        assert!(memory(false).takes_bf16_state);
        assert!(memory(true).peak_bytes(100, 8, 100) < memory(false).peak_bytes(100, 8, 100));
    }
}

#[test]
fn the_distributions_are_nearly_the_same() {
    for name in MODELS {
        let tokens: Vec<u32> = prompt(name).into_iter().cycle().take(96).collect();
        let found = compare_state(&tiny_model(name), OPTIONS, &tokens).expect("reads");
        let found = found.expect("gated delta layers");
        assert_eq!(found.num_tokens, 96, "{name}");
        assert!(found.num_same_top >= 91, "{name}: {found:?}");
        assert!(found.max_divergence > 0.0, "{name}: nothing was rounded");
        assert!(found.max_divergence <= 0.0068, "{name}: {found:?}");
        assert!(found.mean_divergence <= found.max_divergence, "{name}");
    }
}

/// What is refused leaves no trace: the state is that before, bit for bit.
#[test]
fn a_state_is_rolled_back_exactly() {
    for name in MODELS {
        let model = load(name, true).model;
        let tokens = prompt(name);
        let (beginning, rest) = tokens.split_at(tokens.len() / 2);
        let mut expected = model.make_cache();
        read(&model, beginning, &mut expected);
        let mut caches = model.make_cache();
        read(&model, beginning, &mut caches);
        let before: Vec<_> = caches.iter().map(LayerCache::snap).collect();
        read(&model, &[1, 2, 3, 4], &mut caches);
        for (cache, before) in caches.iter_mut().zip(before) {
            cache.restore(before).expect("restores");
        }
        for token in rest {
            let token = [*token];
            assert_eq!(
                read(&model, &token, &mut caches),
                read(&model, &token, &mut expected),
                "{name}"
            );
        }
    }
}

/// Right padding and neighbours do not reach a row's state.
#[test]
fn a_batch_answers_as_single_requests() {
    for name in MODELS {
        let model = load(name, true).model;
        let whole = prompt(name);
        let prompts = [&whole[..], &whole[..whole.len() / 2], &whole[1..]];
        let requests = prompts.iter().map(|prompt| BatchRequest::new(prompt.to_vec(), 8)).collect();
        let (found, _) =
            batch_generate_tokens(&model, requests, BatchOptions::default()).expect("answers");
        for (answer, prompt) in found.into_iter().zip(prompts) {
            let answer = answer.expect("an answer");
            assert_eq!(answer.tokens, plain(&model, prompt, options(8)), "{name}");
        }
    }
}

/// What is proposed from the answer itself and checked several tokens at once.
#[test]
fn speculation_ends_with_a_state_that_goes_on() {
    for name in ["qwen3_next/head", "qwen3_5/head"] {
        let model = load(name, true).model;
        let prompt = prompt(name);
        let mut caches = Vec::new();
        let mut stream = cairn_lm::speculative_generate_step(
            &model,
            OwnDrafter::MtpHead(2),
            cairn_lm::Input::from(&prompt),
            &mut caches,
            Sampler::Greedy,
            options(24),
            &mut never_cancel,
        )
        .expect("start");
        let found = tokens(&collect(&mut stream));
        assert!(stream.acceptance().num_drafted > 0, "{name}");
        assert_eq!(found, plain(&model, &prompt, options(24)), "{name}");
    }
}

/// Caches of either type continue under either setting.
#[test]
fn a_state_of_the_other_type_is_cast() {
    let name = "qwen3_next/dense";
    let folder: PathBuf = tiny_model(name);
    let tokens = prompt(name);
    let (beginning, rest) = tokens.split_at(tokens.len() / 2);
    for bf16_state in [false, true] {
        let of = |bf16_state| Model::load(&folder, OPTIONS.bf16_state(bf16_state)).unwrap().0;
        let (before, after) = (of(!bf16_state), of(bf16_state));
        for part in [rest, &rest[..1]] {
            let mut caches = before.make_cache();
            read(&before, beginning, &mut caches);
            read(&after, part, &mut caches);
            let expected = if bf16_state { Dtype::Bfloat16 } else { Dtype::Float32 };
            assert!(state_types(&caches).iter().all(|&found| found == expected));
        }
    }
}
