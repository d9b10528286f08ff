//! `cairn convert` writes a whole model or nothing, and says what it cannot do.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cairn_tiny_models::copy_tiny_model;
use serde_json::{Value, json};

use crate::program::{MODEL, Output, Program};

/// A dense model in a folder beside the data folder.
fn dense(program: &Program) -> String {
    let folder = program.file("dense");
    copy_tiny_model("llama/dense-tied", Path::new(&folder)).unwrap();
    folder
}

#[tokio::test]
async fn a_model_is_converted_and_answers() {
    let program = Program::new().await;
    let numbers = program.file("numbers");
    let convert = ["convert", "--hf-path", MODEL, "--mlx-path", &numbers];
    let printed = program.stdout_of(&[&convert[..], &["--dequantize"]].concat());
    assert_eq!(printed.trim_end(), numbers);
    let answer = |model: &str| {
        let flags = ["--model", model, "--prompt", "Hello", "--max-tokens", "12", "--json"];
        program.json(&[&["generate"], &flags[..]].concat())["tokens"].clone()
    };
    assert_eq!(answer(&numbers), answer(MODEL));

    let small = program.file("small");
    let output = program.run(&["convert", "--model", &numbers, "--mlx-path", &small, "-q"]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert!(output.stderr.contains(" of weights, "), "{}", output.stderr);
    let config = fs::read(Path::new(&small).join("config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let settings = json!({ "group_size": 64, "bits": 4, "mode": "affine" });
    assert_eq!(config["quantization"], settings);
    assert_eq!(answer(&small).as_array().unwrap().len(), 12);
}

#[tokio::test]
async fn what_cannot_be_asked_for_is_said_before_anything_is_read() {
    let program = Program::new().await;
    let out = program.file("out");
    let check = |flags: &[&str], code: i32, expected: &str| {
        let convert = ["convert", "--hf-path", "nobody/knows-it", "--mlx-path", &out];
        program.check_fails(&[&convert[..], flags].concat(), code, expected);
        assert!(!Path::new(&out).exists());
    };
    check(&["--q-bits", "4"], 2, "--quantize");
    check(&["-q", "-d"], 2, "--dequantize");
    check(&["-q", "--q-bits", "7"], 2, "--q-mode affine: group_size must be 32, 64 or 128");
    check(&["-q", "--q-mode", "nvfp4", "--q-group-size", "32"], 2, "group_size must be 16");
    check(&["-q", "--q-mode", "int4"], 2, "affine, mxfp4, mxfp8, nvfp4");
    let recipe = ["--quant-predicate", "mixed_2_6"];
    check(&[&["-q", "--q-mode", "mxfp4"], &recipe[..]].concat(), 2, "--q-mode affine alone");
    check(&["--dtype", "int8"], 2, "float16, bfloat16, float32");
    check(&["-q"], 1, "nobody/knows-it");
    fs::create_dir(&out).unwrap();
    let convert = ["convert", "--hf-path", "nobody/knows-it", "--mlx-path", &out];
    program.check_fails(&convert, 1, "choose another folder with --mlx-path");
}

#[tokio::test]
async fn a_model_that_is_quantized_already_is_not_quantized_again() {
    let program = Program::new().await;
    let out = program.file("out");
    let convert = ["convert", "--hf-path", MODEL, "--mlx-path", &out, "-q"];
    program.check_fails(&convert, 1, "already quantized");
    let dense = dense(&program);
    let convert = ["convert", "--hf-path", &dense, "--mlx-path", &out, "-d"];
    program.check_fails(&convert, 1, "there is nothing to dequantize");
    assert!(!Path::new(&out).exists());
}

/// Gives the model in `folder` so many tokens. All numbers of its embeddings are zero, and take no
/// space on the disk.
fn widen(folder: &Path, num_tokens: u64) {
    let path = folder.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["vocab_size"] = json!(num_tokens);
    fs::write(&path, config.to_string()).unwrap();
    let path = folder.join("model.safetensors");
    let old = fs::read(&path).unwrap();
    let start = 8 + u64::from_le_bytes(old[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&old[8..start]).unwrap();
    let mut data = Vec::new();
    let (mut end, mut widened) = (0, json!({}));
    for (name, entry) in header.as_object_mut().unwrap() {
        let Some(offsets) = entry.get("data_offsets").cloned() else { continue };
        let [first, stop] = [0, 1].map(|at| offsets[at].as_u64().unwrap() as usize);
        if name == "model.embed_tokens.weight" {
            entry["shape"][0] = json!(num_tokens);
            widened = entry.clone();
            continue;
        }
        data.extend_from_slice(&old[start + first..start + stop]);
        entry["data_offsets"] = json!([end, data.len()]);
        end = data.len();
    }
    let row_bytes = 4 * widened["shape"][1].as_u64().unwrap();
    let num_bytes = num_tokens * row_bytes;
    widened["data_offsets"] = json!([end, end as u64 + num_bytes]);
    header["model.embed_tokens.weight"] = widened;
    let header = header.to_string().into_bytes();
    let length = (header.len() as u64).to_le_bytes();
    fs::write(&path, [&length[..], &header, &data].concat()).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len((8 + header.len() + data.len()) as u64 + num_bytes).unwrap();
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Converts a model and sends the signal once a folder for the new one is there. The model is as large
/// as it takes for the conversion not to be done before.
fn converted_with_signal(program: &Program, target: &Path, signal: &str) -> Output {
    let source = PathBuf::from(dense(program));
    let out = target.display().to_string();
    for exponent in 16..22 {
        widen(&source, 1 << exponent);
        let source = source.display().to_string();
        let convert = ["convert", "--hf-path", &source, "--mlx-path", &out, "-q"];
        let mut command = program.command(&[&convert[..], &["--q-group-size", "32"]].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let parent = target.parent().unwrap();
        while names_in(parent).is_empty() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(sent.unwrap().success());
        let output = Output::of(child.wait_with_output().unwrap());
        if output.code != Some(0) {
            return output;
        }
        fs::remove_dir_all(target).unwrap();
    }
    panic!("each conversion was done before the signal came");
}

#[tokio::test]
async fn a_signal_ends_a_conversion_and_nothing_of_it_is_left() {
    let program = Program::new().await;
    let parent = PathBuf::from(program.file("converted"));
    fs::create_dir(&parent).unwrap();
    for signal in ["-INT", "-TERM"] {
        let output = converted_with_signal(&program, &parent.join("new"), signal);
        let stopped = output.stderr.ends_with("was stopped, and nothing of it is left\n");
        assert!(output.code == Some(1) && stopped, "{signal}: {}", output.stderr);
        assert_eq!((output.stdout.as_str(), names_in(&parent)), ("", Vec::new()));
    }
}
