//! What is sampled has the model's distribution, whatever proposes.

use cairn_chat::SamplingParams;
use cairn_lm::{
    Draft, Drafter, GenerateOptions, Input, OwnDrafter, PromptLookup, Sampler,
    speculative_generate_step,
};
use mlx_rs::Array;
use mlx_rs::ops::softmax_axis;

use crate::golden::{Golden, golden, never_cancel, options};

/// Tokens of each answer. The usual sweep has ten answers of each drafter; `CAIRN_SOAK=4` makes 20,000
/// draws of each.
const NUM_TOKENS: usize = 500;
const NUM_BINS: usize = 20;
/// Chi-squared of 19 degrees of freedom exceeds this once in a thousand times.
const LIMIT: f64 = 43.82;
/// And this once in 100,000 times: who chooses other seeds every night sees each of them fail.
const LIMIT_OF_OTHER_SEEDS: f64 = 57.37;

/// Where each token of an answer lies between 0 and 1, if the tokens of its place lie there side by side,
/// each as wide as it is likely: evenly, if tokens have their probabilities. Within a token `spread`
/// chooses.
fn places(golden: &Golden, answer: &[u32], mut spread: impl FnMut() -> f64) -> Vec<f64> {
    let sequence = [&golden.prompt, answer].concat();
    let read = &sequence[..sequence.len() - 1];
    let ids = Array::from_slice(read, &[1, read.len() as i32]);
    let hidden = golden.model.forward(&ids, &mut golden.model.make_cache()).expect("forward");
    let logits = golden.model.logits(&hidden).expect("logits");
    let all = softmax_axis(&logits, -1, None).expect("probabilities");
    let vocab_size = golden.model.vocab_size();
    let all = all.as_slice::<f32>();
    let of_token = |(index, &token): (usize, &u32)| {
        let row = &all[(golden.prompt.len() - 1 + index) * vocab_size..][..vocab_size];
        let before: f64 = row[..token as usize].iter().map(|&share| f64::from(share)).sum();
        (before + spread() * f64::from(row[token as usize])).min(1.0 - f64::EPSILON)
    };
    answer.iter().enumerate().map(of_token).collect()
}

#[test]
fn tokens_come_as_often_as_they_are_likely() {
    let (golden, draft) = (golden("qwen3_5/head"), golden("qwen3_5/dense"));
    let own = |drafter| (Drafter::Own(drafter), format!("{drafter:?}"));
    let mut bins = vec![[0u32; NUM_BINS]; 4];
    let mut names = vec![String::new(); 4];
    for seed in cairn_sweeps::sweep("draws", 5) {
        let mut caches = Vec::new();
        let model = Draft { model: &draft.model, caches: &mut caches };
        let drafters = [
            (Drafter::Model(model), "a draft model".to_owned()),
            own(OwnDrafter::PromptLookup(PromptLookup::Always(3))),
            own(OwnDrafter::MtpHead(2)),
            own(OwnDrafter::WhereItPays),
        ];
        for (index, (drafter, name)) in drafters.into_iter().enumerate() {
            // Drafters that got the same numbers would be tested once.
            let seed = 4 * seed + index as u64;
            let params =
                SamplingParams { temperature: 1.0, seed: Some(seed), ..Default::default() };
            let mut stream = speculative_generate_step(
                &golden.model,
                drafter,
                Input::from(&golden.prompt),
                &mut Vec::new(),
                Sampler::new(&params, &[]),
                GenerateOptions { num_draft_tokens: 3, ..options(NUM_TOKENS) },
                &mut never_cancel,
            )
            .expect("start");
            let mut answer = Vec::new();
            while let Some(step) = stream.next_token().expect("step") {
                answer.push(step.token);
            }
            let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            let spread = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 11) as f64 / (1u64 << 53) as f64
            };
            for place in places(&golden, &answer, spread) {
                bins[index][(place * NUM_BINS as f64) as usize] += 1;
            }
            names[index] = name;
        }
    }
    // The usual draws are the same every time, and known to be within the limit.
    let is_usual = std::env::var_os("CAIRN_SEED").is_none();
    let limit = if is_usual { LIMIT } else { LIMIT_OF_OTHER_SEEDS };
    for (bins, name) in bins.iter().zip(names) {
        let expected = f64::from(bins.iter().sum::<u32>()) / NUM_BINS as f64;
        let squares = bins.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected);
        let chi_squared: f64 = squares.sum();
        println!("{name}: {chi_squared:.1} of {} draws", expected * NUM_BINS as f64);
        assert!(chi_squared < limit, "{name}: {chi_squared}, {bins:?}");
    }
}
