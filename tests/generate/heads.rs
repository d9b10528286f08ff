//! Heads that predict further tokens propose what the formula says, the answer stays the plain one, and
//! a model answers without a head too.

use std::collections::BTreeMap;
use std::path::Path;

use cairn_chat::SamplingParams;
use cairn_lm::models::Model;
use cairn_lm::{
    GenerateOptions, Input, LmError, LoadOptions, LoadedModel, OwnDrafter, Sampler, Sampling,
    SpeculativeStream, speculative_generate_step,
};
use cairn_tests::{copy_tiny_model, tiny_model};
use mlx_rs::Array;
use mlx_rs::ops::indexing::argmax_axis;
use safetensors::tensor::TensorView;
use safetensors::{SafeTensors, serialize_to_file};

use crate::golden::{
    Golden, collect, golden, never_cancel, offset, options, plain, rest, start, tokens,
};

const HEADS: [&str; 4] =
    ["qwen3_next/head", "qwen3_next/head-quant4", "qwen3_5/head", "qwen3_5_moe/head-published"];
const DRAFTERS: [OwnDrafter; 4] = [
    OwnDrafter::MtpHead(1),
    OwnDrafter::MtpHead(2),
    OwnDrafter::MtpHead(4),
    OwnDrafter::WhereItPays,
];

fn begin(
    golden: &Golden,
    drafter: OwnDrafter,
    sampling: impl Into<Sampling>,
    options: GenerateOptions,
) -> Result<SpeculativeStream, LmError> {
    speculative_generate_step(
        &golden.model,
        drafter,
        Input::from(&golden.prompt),
        &mut Vec::new(),
        sampling,
        options,
        &mut never_cancel,
    )
}

#[test]
fn answers_are_those_without_a_head() {
    for name in HEADS {
        let golden = golden(name);
        // At a high temperature the shared random numbers decide, so that many proposals are right.
        for temperature in [0.0, 0.8, 30.0] {
            let params = SamplingParams { temperature, seed: Some(3), ..SamplingParams::default() };
            let sampler = || Sampler::new(&params, &[]);
            let mut alone =
                start(&golden.model, &golden.prompt, &mut Vec::new(), sampler(), options(60))
                    .expect("start");
            let alone = rest(&mut alone);
            for drafter in DRAFTERS {
                let mut stream = begin(&golden, drafter, sampler(), options(60)).expect("start");
                let sampled = collect(&mut stream);
                let case = format!("{name}, {drafter:?}, {temperature}");
                assert_eq!(tokens(&sampled), alone, "{case}");
                let acceptance = stream.acceptance();
                let num_drafted = sampled.iter().filter(|step| step.from_draft).count();
                assert_eq!(acceptance.num_accepted, num_drafted, "{case}");
                if temperature > 1.0 && drafter == OwnDrafter::MtpHead(1) {
                    assert!(3 * acceptance.num_accepted > acceptance.num_drafted, "{case}");
                }
            }
        }
    }
}

/// Which tokens of an answer a head proposes, one at a time, computed from the whole sequence at once.
fn proposed(golden: &Golden, answer: &[u32]) -> Vec<bool> {
    let sequence = [&golden.prompt, answer].concat();
    let ids = |tokens: &[u32]| Array::from_slice(tokens, &[1, tokens.len() as i32]);
    let before = ids(&sequence[..sequence.len() - 1]);
    let hidden = golden.model.forward(&before, &mut golden.model.make_cache()).expect("forward");
    let mut caches = golden.model.make_mtp_cache().expect("a head");
    let predicted = golden.model.forward_mtp(&ids(&sequence[1..]), &hidden, &mut caches);
    let logits = golden.model.logits(&predicted.expect("the head")).expect("logits");
    // Behind the tokens t and t + 1, that is what is proposed for the place t + 2.
    let likeliest = argmax_axis(logits, -1, false).expect("tokens");
    let likeliest = likeliest.as_slice::<u32>();
    let mut place = golden.prompt.len();
    let mut from_draft = Vec::new();
    while from_draft.len() < answer.len() {
        let is_right = likeliest[place - 2] == sequence[place];
        from_draft.push(is_right);
        if is_right && from_draft.len() < answer.len() {
            // The token behind a right proposal is the model's own.
            from_draft.push(false);
        }
        place = golden.prompt.len() + from_draft.len();
    }
    from_draft
}

#[test]
fn proposals_are_those_of_a_head_that_has_read_everything() {
    let mut num_right = 0;
    for name in HEADS {
        let golden = golden(name);
        let answer = plain(&golden.model, &golden.prompt, options(100));
        let expected = proposed(&golden, &answer);
        num_right += expected.iter().filter(|&&is_right| is_right).count();
        for prefill_step_size in [2048, 3, 1] {
            let options = GenerateOptions { prefill_step_size, ..options(100) };
            let mut stream =
                begin(&golden, OwnDrafter::MtpHead(1), Sampler::Greedy, options).expect("start");
            let sampled = collect(&mut stream);
            let found: Vec<bool> = sampled.iter().map(|step| step.from_draft).collect();
            assert_eq!(found, expected, "{name}, {prefill_step_size} tokens at once");
        }
    }
    assert!(num_right > 5, "{num_right}");
}

#[test]
fn an_early_stop_returns_caches_without_refused_tokens() {
    for name in HEADS {
        let golden = golden(name);
        let answer = plain(&golden.model, &golden.prompt, options(16));
        for num_taken in 0..=9 {
            let mut stream = begin(&golden, OwnDrafter::MtpHead(2), Sampler::Greedy, options(16))
                .expect("start");
            for expected in &answer[..num_taken] {
                let sampled = stream.next_token().expect("step").expect("token");
                assert_eq!(sampled.token, *expected, "{name}");
            }
            let (mut caches, draft_caches) = stream.into_caches().expect("caches");
            assert!(draft_caches.is_none());
            let sequence = [&golden.prompt, &answer[..num_taken]].concat();
            let held = offset(&caches);
            assert!((golden.prompt.len() - 1..sequence.len()).contains(&held), "{name}");
            let left = options(16 - num_taken);
            let mut others =
                start(&golden.model, &sequence[held..], &mut caches, Sampler::Greedy, left)
                    .expect("start");
            assert_eq!(rest(&mut others), answer[num_taken..], "{name}, {num_taken}");
        }
    }
}

/// Writes the model's tensors as `change` gives their names and files.
fn rewrite(folder: &Path, change: impl Fn(&str) -> (&'static str, String)) {
    let path = folder.join("model.safetensors");
    let bytes = std::fs::read(&path).expect("weights");
    std::fs::remove_file(&path).expect("removes");
    let stored = SafeTensors::deserialize(&bytes).expect("tensors");
    let mut files: BTreeMap<&str, BTreeMap<String, TensorView<'_>>> = BTreeMap::new();
    for (name, tensor) in stored.tensors() {
        let (file, name) = change(&name);
        files.entry(file).or_default().insert(name, tensor);
    }
    for (file, tensors) in files {
        serialize_to_file(tensors, None, &folder.join(file)).expect("writes");
    }
}

fn load(folder: &Path) -> LoadedModel {
    LoadedModel::load(folder, LoadOptions::new().keep_quantized(true)).expect("loads")
}

#[test]
fn a_head_may_stand_in_a_file_of_its_own() {
    let name = "qwen3_next/head-quant4";
    let answer = |model: Model| {
        let golden = Golden { model, ..golden(name) };
        let params =
            SamplingParams { temperature: 30.0, seed: Some(3), ..SamplingParams::default() };
        let sampler = Sampler::new(&params, &[]);
        let mut stream =
            begin(&golden, OwnDrafter::MtpHead(1), sampler, options(40)).expect("start");
        (tokens(&collect(&mut stream)), stream.acceptance())
    };
    let expected = answer(golden(name).model);
    for (file, prefix) in [
        ("mtp.safetensors", "mtp."),
        ("head-mtp.safetensors", "language_model.mtp."),
        ("mtp.safetensors", ""),
    ] {
        let folder = tempfile::tempdir().expect("folder");
        copy_tiny_model(name, folder.path()).expect("copies");
        rewrite(folder.path(), |name| match name.strip_prefix("mtp.") {
            Some(rest) => (file, format!("{prefix}{rest}")),
            None => ("model.safetensors", name.to_owned()),
        });
        let with_head = load(folder.path());
        assert_eq!(answer(with_head.model), expected, "{file}, {prefix}");
        // What was saved of conversations stays valid whether or not there is a head.
        std::fs::remove_file(folder.path().join(file)).expect("removes");
        let without = load(folder.path());
        assert_eq!(without.fingerprint, with_head.fingerprint);
        assert!(without.weight_bytes < with_head.weight_bytes);
    }
}

#[test]
fn a_model_without_a_usable_head_answers_and_says_why_it_cannot_propose() {
    let refusal = |model: Model| {
        let golden = Golden { model, ..golden("qwen3_next/head") };
        let plain = plain(&golden.model, &golden.prompt, options(5));
        assert_eq!(plain.len(), 5);
        let mut measured =
            begin(&golden, OwnDrafter::WhereItPays, Sampler::Greedy, options(5)).expect("start");
        assert_eq!(tokens(&collect(&mut measured)), plain);
        let refused = begin(&golden, OwnDrafter::MtpHead(1), Sampler::Greedy, options(5));
        refused.expect_err("is refused").to_string()
    };
    let without = load(&tiny_model("qwen3_next/hugging-face"));
    assert_eq!(
        refusal(without.model),
        "this model has no prediction head (its files hold no mtp.* weights): choose another way \
         to propose tokens"
    );
    let folder = tempfile::tempdir().expect("folder");
    copy_tiny_model("qwen3_next/head", folder.path()).expect("copies");
    rewrite(folder.path(), |name| match name {
        "mtp.norm.weight" => ("model.safetensors", "mtp.other.weight".to_owned()),
        name => ("model.safetensors", name.to_owned()),
    });
    let broken = refusal(load(folder.path()).model);
    assert!(broken.starts_with("the prediction head of this model"), "{broken}");
    assert!(broken.contains("mtp.norm.weight"), "{broken}");
}
