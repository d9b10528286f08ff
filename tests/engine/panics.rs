//! A panic ends the sequence or job that it happened in, and nothing else.

use std::time::Duration;

use cairn_engine::{Engine, EngineOptions, EngineState, Generation, PromptInput};
use serde_json::{Value, json};

use crate::client::{Answer, Failure, finish, request};
use crate::scripted::{Scripted, text_ids};
use crate::test_engine::Random;

/// A bound for what should take milliseconds; only a hang gets near it.
const SOON: Duration = Duration::from_secs(60);

async fn ended(generation: &mut Generation) -> Result<Answer, Failure> {
    tokio::time::timeout(SOON, finish(generation)).await.expect("ends")
}

/// Lets the tokenizer panic while it decodes many `x`: the pattern takes exponential time, and the
/// tokenizer panics where its regular expression gives up.
fn booby_trap(model: &Scripted) {
    let file = model.folder().join("tokenizer.json");
    let mut tokenizer: Value =
        serde_json::from_slice(&std::fs::read(&file).expect("tokenizer.json")).expect("JSON");
    let decoder = tokenizer["decoder"].take();
    let trap = json!({ "type": "Replace", "pattern": { "Regex": "(x+x+)+[^x]" }, "content": "" });
    tokenizer["decoder"] = json!({ "type": "Sequence", "decoders": [decoder, trap] });
    std::fs::write(&file, tokenizer.to_string()).expect("written");
}

/// The sentence for the tokenizer's failure.
fn blamed(model: &Scripted) -> String {
    let name = model.folder().file_name().unwrap_or_default().to_string_lossy();
    format!("tokenizer.json of the model {name} cannot handle this text: Onig: Regex search error")
}

/// A script that answers a prompt whose sum is a multiple of 120 with `x` for ever, and others with
/// `d`.
fn two_answers() -> Scripted {
    let mut script = vec![u32::from(b'd'); 120];
    script[0] = u32::from(b'x');
    Scripted::new(&script)
}

#[tokio::test]
async fn blames_tokenizer_whose_regex_gives_up() {
    let model = two_answers();
    booby_trap(&model);
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("trapped", model.folder()).await.expect("loads");
    for is_with_others in [false, true] {
        let mut others: Vec<_> = (0..if is_with_others { 3 } else { 0 })
            .map(|number| (number, engine.generate(request(&[7, number * 20], 60))))
            .collect();
        let failure = ended(&mut engine.generate(request(&[120], 200))).await.err().expect("fails");
        assert!(failure.message.starts_with(&blamed(&model)), "{failure:?}");
        for (number, generation) in &mut others {
            let answer = ended(generation).await.expect("goes on");
            assert_eq!(answer.finished.token_ids, model.answer(&[7, *number * 20], 60));
        }
    }
    // Decoding outside of an answer fails too.
    let decoded = engine.decode(None, vec![vec![u32::from(b'x'); 60]]).await.expect_err("fails");
    assert!(decoded.to_string().starts_with(&blamed(&model)), "{decoded}");
    assert!(!decoded.is_bad_request());
    let answer = ended(&mut engine.generate(request(&[7], 5))).await.expect("an answer");
    assert_eq!(answer.finished.token_ids, model.answer(&[7], 5));
    engine.flush_cache().await;
    assert_eq!(engine.status().borrow().state, EngineState::Ready { model: "trapped".to_owned() });
}

/// The position at which the script panics.
const PANICS_AT: usize = 90;

/// A job that panics, or one that does not.
enum Started {
    Panicking(Generation),
    Calm(Vec<u32>, usize, Generation),
}

#[tokio::test]
async fn two_hundred_panics_at_random_points_end_nothing_else() {
    let fields = json!({ "panic_at": PANICS_AT });
    let model = Scripted::with(&text_ids("abcdefghijklmnopq rstuvwxyz,."), fields);
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("brittle", model.folder()).await.expect("loads");
    let (seed, num_panics) = cairn_sweeps::long_case(200);
    let mut random = Random::new(seed);
    let (mut running, mut num_panicked) = (Vec::<Started>::new(), 0);
    while num_panicked < num_panics {
        let is_calm = random.below(3) > 0;
        // A panicking one runs the position in its prompt, or some tokens later.
        let num_prompt = if is_calm { 1 + random.below(30) } else { 60 + random.below(60) };
        let prompt: Vec<u32> = (0..num_prompt).map(|_| random.below(256) as u32).collect();
        let max_tokens = if is_calm { 1 + random.below(40) } else { 100 };
        let mut asked = request(&prompt, max_tokens);
        asked.use_prompt_cache = random.below(2) == 0;
        asked.kv_cache.max_size = (random.below(8) == 0).then_some(200);
        let generation = engine.generate(asked);
        running.push(match is_calm {
            true => Started::Calm(prompt, max_tokens, generation),
            false => Started::Panicking(generation),
        });
        if random.below(10) == 0 {
            let tokens = PromptInput::Tokens(vec![1; PANICS_AT + 1]);
            let error = engine.score(tokens, 1).await.expect_err("fails").to_string();
            assert!(error.starts_with("the engine hit a bug while scoring"), "{error}");
            num_panicked += 1;
        }
        if running.len() < 8 {
            continue;
        }
        match running.swap_remove(random.below(running.len())) {
            Started::Panicking(mut generation) => {
                let failure = ended(&mut generation).await.err().expect("fails");
                assert!(failure.message.starts_with("the engine hit a bug"), "{failure:?}");
                num_panicked += 1;
            }
            Started::Calm(prompt, max_tokens, mut generation) => {
                let answer = ended(&mut generation).await.expect("goes on");
                let expected = model.answer(&prompt, max_tokens);
                assert_eq!(answer.finished.token_ids, expected, "{prompt:?}");
            }
        }
    }
}
