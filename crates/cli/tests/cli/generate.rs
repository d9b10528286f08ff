//! `cairn generate`: prompts, templates, limits, statistics.

use cairn_tiny_models::copy_tiny_model;
use serde_json::{Value, json};

use crate::program::{MODEL, Program};

/// Generates a few tokens with the tiny model and returns the JSON object.
fn generate(program: &Program, flags: &[&str]) -> Value {
    generate_with(program, MODEL, flags)
}

fn generate_with(program: &Program, model: &str, flags: &[&str]) -> Value {
    let command = ["generate", "--model", model, "--max-tokens", "8", "--json"];
    program.json(&[&command, flags].concat())
}

/// Checks that two ways to give the prompt lead to the same prompt and tokens.
fn check_same(program: &Program, flags: &[&str], expected: &[&str]) {
    let [found, expected_object] = [flags, expected].map(|flags| {
        let object = generate(program, flags);
        (object["prompt_tokens"].clone(), object["tokens"].clone())
    });
    assert_eq!(found, expected_object, "{flags:?} should be as {expected:?}");
}

#[tokio::test]
async fn escapes_in_the_prompt_are_replaced() {
    let program = Program::new().await;
    check_same(&program, &["--prompt", r"one\n\ttwo"], &["--prompt", "one\n\ttwo"]);
    let plain = "--ignore-chat-template";
    check_same(&program, &["--prompt", r"a\nb", plain], &["--prompt", "a\nb", plain]);
}

/// A model with a head, and the answer with each way to propose.
#[tokio::test]
async fn a_head_proposes_and_changes_no_token() {
    let program = Program::new().await;
    let head = program.home().join("models/head");
    copy_tiny_model("qwen3_next/head", &head).unwrap();
    let tokens = |flags: &[&str]| {
        let prompt = ["--prompt-tokens", "5,6,7,5,6,7,5,6,7"];
        generate_with(&program, "head", &[&prompt, flags].concat())["tokens"].clone()
    };
    let plain = tokens(&["--speculate", "off"]);
    assert_eq!(tokens(&[]), plain, "what happens without the flag");
    for flags in [&["mtp"][..], &["mtp", "--num-mtp-tokens", "3"], &["auto"], &["lookup"]] {
        assert_eq!(tokens(&[&["--speculate"], flags].concat()), plain, "{flags:?}");
    }
    let without = ["generate", "--model", MODEL, "--prompt", "a", "--speculate", "mtp", "--json"];
    let refused = program.run(&without);
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("has no prediction head"), "{}", refused.stderr);
}

#[tokio::test]
async fn a_prompt_from_stdin_is_used_verbatim() {
    let program = Program::new().await;
    let prompt_tokens = |text: &str| {
        let flags = ["generate", "--model", MODEL, "--max-tokens", "1", "--json"];
        let stdin = ["--ignore-chat-template", "--prompt", "-"];
        let object = program.json_with_stdin(&[&flags[..], &stdin].concat(), text);
        object["prompt_tokens"].clone()
    };
    // The tiny tokenizer has one token for each byte.
    assert_eq!(prompt_tokens(r"a\nb"), 4);
    assert_eq!(prompt_tokens("a\nb"), 3);
}

/// Copies the tiny model without its chat template.
fn copy_base_model(program: &Program) -> &'static str {
    let path = program.copy_model("base").join("tokenizer_config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config.as_object_mut().unwrap().remove("chat_template").unwrap();
    std::fs::write(&path, config.to_string()).unwrap();
    "base"
}

#[tokio::test]
async fn a_model_without_a_chat_template_gets_the_plain_prompt() {
    let program = Program::new().await;
    let base = copy_base_model(&program);
    let plain = generate(&program, &["--prompt", "Stones", "--ignore-chat-template"]);
    assert_eq!(plain["prompt_tokens"], 6);

    let found = generate_with(&program, base, &["--prompt", "Stones"]);
    assert_eq!((&found["prompt_tokens"], &found["tokens"]), (&6.into(), &plain["tokens"]));

    let requests = program.file("requests.jsonl");
    std::fs::write(&requests, r#"{"prompt": "Stones", "max_tokens": 8}"#).unwrap();
    let found = program.json(&["batch", "--model", base, "--input", &requests, "--json"]);
    assert_eq!((&found["prompt_tokens"], &found["tokens"]), (&6.into(), &plain["tokens"]));

    let file = program.file("prompt.safetensors");
    let flags = ["--model", base, "--prompt", "Sto", "--prompt-cache-file", &file];
    program.stdout_of(&[&["cache-prompt"], &flags[..]].concat());
    let found = generate_with(&program, base, &["--prompt", "nes", "--prompt-cache-file", &file]);
    assert_eq!((&found["prompt_tokens"], &found["cached_tokens"]), (&6.into(), &3.into()));
    assert_eq!(found["tokens"], plain["tokens"]);
}

#[tokio::test]
async fn a_system_prompt_without_a_chat_template_is_ignored_with_a_note() {
    let program = Program::new().await;
    let base = copy_base_model(&program);
    let flags = ["--prompt", "Stones", "--max-tokens", "1", "--system-prompt", "Be brief."];
    let output = program.run(&[&["generate", "--model", base], &flags[..]].concat());
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert!(output.stderr.contains("--system-prompt"), "{}", output.stderr);
}

#[tokio::test]
async fn kv_flags_that_contradict_a_quantized_prompt_cache_file_are_refused() {
    let program = Program::new().await;
    program.copy_quantizable_model("quantizable");
    let file = program.file("quantized.safetensors");
    let flags = ["--model", "quantizable", "--ignore-chat-template", "--prompt", "Stones"];
    let flags = [&flags[..], &["--prompt-cache-file", &file]].concat();
    let kv_flags = ["--kv-bits", "8", "--kv-group-size", "32", "--quantized-kv-start", "0"];
    program.stdout_of(&[&["cache-prompt"], &flags[..], &kv_flags].concat());

    let check_refused = |kv_flags: &[&str], expected: &[&str]| {
        let arguments = [&["generate"], &flags[..], kv_flags].concat();
        for expected in expected {
            program.check_fails(&arguments, 1, expected);
        }
    };
    check_refused(&["--kv-bits", "4"], &["--kv-bits 4", "8 bits", "quantized.safetensors"]);
    check_refused(&["--kv-bits", "8", "--kv-group-size", "64"], &["--kv-group-size 64", "of 32"]);
    check_refused(&["--kv-group-size", "64"], &["--kv-group-size 64", "of 32"]);
    check_refused(&["--snapkv", "64"], &["--snapkv 64", "8 bits", "quantized.safetensors"]);

    for kv_flags in [&[][..], &["--kv-bits", "8"], &["--kv-bits", "8", "--kv-group-size", "32"]] {
        let found = program.json(&[&["generate", "--json"], &flags[..], kv_flags].concat());
        assert!(found["cached_tokens"].as_u64() > Some(0), "{kv_flags:?}: {found}");
    }
}

#[tokio::test]
async fn a_bounded_prompt_cache_file_is_not_continued_with_snapkv() {
    let program = Program::new().await;
    let file = program.file("bounded.safetensors");
    let flags = ["--model", MODEL, "--ignore-chat-template", "--prompt", "Stones"];
    let flags = [&flags[..], &["--prompt-cache-file", &file]].concat();
    program.stdout_of(&[&["cache-prompt"], &flags[..], &["--max-kv-size", "6"]].concat());
    let arguments = [&["generate"], &flags[..], &["--snapkv", "64"]].concat();
    for expected in ["--snapkv 64", "holds all tokens", "bounded.safetensors"] {
        program.check_fails(&arguments, 1, expected);
    }
}

#[tokio::test]
async fn batch_and_chat_take_the_kv_flags_of_generate() {
    let program = Program::new().await;
    program.copy_quantizable_model("quantizable");
    let prompt = "Many stones lie on a long beach.";
    let requests = program.file("requests.jsonl");
    std::fs::write(&requests, json!({"prompt": prompt, "max_tokens": 8}).to_string()).unwrap();

    let check = |model: &str, kv_flags: &[&str]| {
        let flags = [&["--model", model], kv_flags].concat();
        let generate = ["generate", "--prompt", prompt, "--max-tokens", "8", "--json"];
        let expected = program.json(&[&generate[..], &flags].concat());
        let plain = generate_with(&program, model, &["--prompt", prompt]);
        assert_ne!(expected["tokens"], plain["tokens"], "{kv_flags:?} should change the tokens");

        let batch = ["batch", "--input", &requests, "--json"];
        let found = program.json(&[&batch[..], &flags].concat());
        assert_eq!(found["tokens"], expected["tokens"], "batch {kv_flags:?}");
        let chat = ["chat", "--max-tokens", "8", "--prefill-step-size", "512"];
        let reply = program.stdout_with_stdin(&[&chat[..], &flags].concat(), prompt);
        assert_eq!(reply.strip_suffix('\n'), expected["text"].as_str(), "chat {kv_flags:?}");
    };
    check(MODEL, &["--max-kv-size", "6"]);
    let quantized = ["--kv-bits", "2", "--kv-group-size", "32", "--quantized-kv-start", "0"];
    check("quantizable", &quantized);
}

#[tokio::test]
async fn a_prefilled_response_is_continued() {
    let program = Program::new().await;
    let plain = concat!(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nStones<|im_end|>\n",
        "<|im_start|>assistant\nOnce"
    );
    check_same(
        &program,
        &["--system-prompt", "Be brief.", "--prompt", "Stones", "--prefill-response", "Once"],
        &["--prompt", plain, "--ignore-chat-template"],
    );
}

#[tokio::test]
async fn a_chat_template_config_sets_the_templates_variables() {
    let program = Program::new().await;
    let path = program.copy_model("variables").join("tokenizer_config.json");
    let template =
        "{{ messages[0]['content'] }}{{ ' thinks' if enable_thinking else '' }}{{ end }}";
    std::fs::write(path, json!({ "chat_template": template }).to_string()).unwrap();

    let check = |config: &[&str], expected: &str| {
        let flags = [&["--prompt", "Stones"], config].concat();
        let found = generate_with(&program, "variables", &flags);
        let plain = generate(&program, &["--prompt", expected, "--ignore-chat-template"]);
        assert_eq!(found["prompt_tokens"], plain["prompt_tokens"], "{config:?}");
        assert_eq!(found["tokens"], plain["tokens"], "{config:?}");
    };
    check(&[], "Stones");
    let config = r#"{"enable_thinking": true, "end": "!"}"#;
    check(&["--chat-template-config", config], "Stones thinks!");
    check(&["--chat-template-config", config, "--use-default-chat-template"], "Stones thinks!");

    let flags = ["generate", "--model", "variables", "--prompt", "x", "--chat-template-config"];
    program.check_fails(&[&flags[..], &["[1]"]].concat(), 2, "JSON object");
    program.check_fails(&[&flags[..], &["{"]].concat(), 2, "JSON object");
    program.check_fails(&[&flags[..], &[r#"{"messages": []}"#]].concat(), 1, "messages");
}

#[tokio::test]
async fn thinking_is_rendered_as_template_allows() {
    let program = Program::new().await;
    let path = program.copy_model("thinking").join("tokenizer_config.json");
    let template = "{{ messages[-1]['content'] }}{{ ' thinks' if enable_thinking else '' }}";
    std::fs::write(path, json!({ "chat_template": template }).to_string()).unwrap();

    let check = |level: &str, expected: &str| {
        let flags = ["--prompt", "Stones", "--thinking", level];
        let found = generate_with(&program, "thinking", &flags);
        let plain = generate(&program, &["--prompt", expected, "--ignore-chat-template"]);
        assert_eq!(found["tokens"], plain["tokens"], "{level}");
    };
    check("on", "Stones thinks");
    check("off", "Stones");
    check("automatic", "Stones");

    let flags = |model| ["generate", "--model", model, "--prompt", "x", "--thinking", "high"];
    program.check_fails(&flags("thinking"), 1, "thinking allows off, on");
    program.check_fails(&flags(MODEL), 1, "no such choice");
    let flags = ["chat", "--model", "thinking", "--thinking"];
    program.check_fails(&[&flags[..], &["xhigh"]].concat(), 1, "allows off, on");
    program.check_fails(&[&flags[..], &["much"]].concat(), 2, "minimal, low, medium");
}

#[tokio::test]
async fn verbose_prints_the_statistics_to_stderr() {
    let program = Program::new().await;
    let has_stats = |flags: &[&str]| {
        let command = ["generate", "--model", MODEL, "--prompt", "x", "--max-tokens", "2"];
        let output = program.run(&[&command, flags].concat());
        assert_eq!(output.code, Some(0), "{}", output.stderr);
        output.stderr.contains("tokens/s")
    };
    assert!(!has_stats(&[]), "stderr is not a terminal");
    assert!(has_stats(&["--verbose"]));
    assert!(has_stats(&["--verbose", "True"]));
    assert!(has_stats(&["--verbose", "--json"]));
    assert!(!has_stats(&["--verbose", "F"]));
}

#[tokio::test]
async fn without_a_token_limit_only_the_context_ends_generation() {
    let program = Program::new().await;
    let path = program.copy_model("short").join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["max_position_embeddings"] = 280.into();
    std::fs::write(path, config.to_string()).unwrap();

    let check = |found: Value| {
        assert_eq!(
            (&found["finish_reason"], &found["prompt_tokens"]),
            (&"length".into(), &6.into())
        );
        assert_eq!(found["tokens"].as_array().unwrap().len(), 274);
    };
    let flags =
        ["--prompt", "Stones", "--ignore-chat-template", "--logit-bias", "256:-inf,258:-inf"];
    let command = ["generate", "--model", "short", "--json", "--max-tokens", "-1"];
    check(program.json(&[&command, &flags[..]].concat()));

    let ids: Vec<u8> = b"Stones".to_vec();
    let bias = json!({"256": -1e9, "258": -1e9});
    let line = json!({"prompt_tokens": ids, "max_tokens": -1, "logit_bias": bias});
    let requests = program.file("requests.jsonl");
    std::fs::write(&requests, line.to_string()).unwrap();
    check(program.json(&["batch", "--model", "short", "--input", &requests, "--json"]));
    program.check_fails(&[&command[..4], &["--max-tokens", "-2"]].concat(), 2, "-1");
}

#[tokio::test]
async fn generation_tokens_counts_the_tokens_however_generation_ends() {
    let program = Program::new().await;
    let check = |flags: &[&str], reason: &str, stop_string: Value| {
        let command = ["--prompt", "Stones", "--ignore-chat-template", "--logprobs", "0"];
        let found = generate(&program, &[&command, flags].concat());
        assert_eq!(
            (&found["finish_reason"], &found["stop_string"]),
            (&reason.into(), &stop_string)
        );
        let num_tokens = found["tokens"].as_array().unwrap().len();
        assert_eq!(found["generation_tokens"], num_tokens, "{flags:?}");
        assert_eq!(found["logprobs"].as_array().unwrap().len(), num_tokens, "{flags:?}");
        found
    };
    let plain = check(&[], "length", Value::Null);
    let tokens: Vec<u32> = serde_json::from_value(plain["tokens"].clone()).unwrap();
    assert_eq!(tokens.len(), 8);

    // The tiny tokenizer has one token for each byte.
    let text = |tokens: &[u32]| -> String {
        tokens.iter().map(|&token| char::from(u8::try_from(token).unwrap())).collect()
    };
    let third = text(&tokens[2..3]);
    let num_before = tokens.iter().position(|token| *token == tokens[2]).unwrap();
    let stopped = check(&["--stop", &third], "stop", third.clone().into());
    assert_eq!(stopped["tokens"].as_array().unwrap().len(), num_before + 1);
    assert_eq!(stopped["text"], text(&tokens[..num_before]));
    let ended = check(&["--extra-eos-token", &third], "stop", Value::Null);
    assert_eq!(ended["tokens"].as_array().unwrap().len(), num_before);
    check(&["--max-tokens", "0"], "length", Value::Null);
}
