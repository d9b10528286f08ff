//! `cargo xtask bench-server`: `cairn serve` against `mlx_lm.server`. Clients ask at once, with one
//! system prompt and a question each; both servers have the same weights in float32 and take turns.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::bench_table::{median, row};
use crate::{oracle, process, root, starter};

/// What is asked.
#[derive(Clone, Copy)]
pub struct Load {
    pub num_clients: usize,
    /// Characters of the system prompt, which all questions begin with.
    pub system_chars: usize,
    /// Characters of a question.
    pub question_chars: usize,
    pub answer_tokens: usize,
    pub num_trials: usize,
}

impl Load {
    /// About 512 and 128 tokens for a tokenizer of bytes.
    pub const TINY: Load = Load {
        num_clients: 32,
        system_chars: 384,
        question_chars: 100,
        answer_tokens: 128,
        num_trials: 3,
    };
    /// The same for a tokenizer of words.
    pub const WORDS: Load = Load { system_chars: 2100, question_chars: 480, ..Load::TINY };
    /// Fewer clients: a CPU takes a minute for these.
    pub const STARTER: Load = Load { num_clients: 8, num_trials: 1, ..Load::WORDS };
}

/// Measures `cairn serve` against `mlx_lm.server`, with `model` or a tiny model and the starter model.
/// `target/release/cairn` is there.
pub fn run() -> Result<()> {
    let home = root().join("target/bench-home");
    let python = oracle::python()?;
    let tiny = float32(&python, &cairn_tiny_models::tiny_model("llama/tiny-chat"), &home, "tiny")?;
    compare(&python, &home, "a model of two layers", &tiny, Load::TINY)?;
    let model = float32(&python, &starter::import(&home)?, &home, "starter-f32")?;
    compare(&python, &home, "SmolLM2-135M f32", &model, Load::STARTER)
}

/// Measures a model folder as it is, with 32 clients. Its tokenizer is one of words.
pub fn run_model(model: &Path, python: Option<PathBuf>) -> Result<()> {
    let home = root().join("target/bench-home");
    let python = python.map_or_else(oracle::python, Ok)?;
    let (model, name) = linked(&home, model)?;
    compare(&python, &home, &name, &model, Load::WORDS)
}

/// The folder among the models of `home`, and its name.
fn linked(home: &Path, model: &Path) -> Result<(PathBuf, String)> {
    let model = model.canonicalize().with_context(|| format!("no folder {}", model.display()))?;
    let name = model.file_name().context("a folder")?.to_string_lossy().into_owned();
    let link = home.join("models").join(&name);
    fs::create_dir_all(home.join("models"))?;
    if link.is_symlink() {
        fs::remove_file(&link)?;
    }
    std::os::unix::fs::symlink(&model, &link)?;
    Ok((link, name))
}

/// A model's weights in float32, in a folder that both servers load.
fn float32(python: &Path, model: &Path, home: &Path, name: &str) -> Result<PathBuf> {
    let folder = home.join("models").join(name);
    if !folder.exists() {
        let mut convert = Command::new(python);
        convert.args(["-m", "mlx_lm", "convert", "--dequantize", "--dtype", "float32"]);
        process::run(convert.arg("--hf-path").arg(model).arg("--mlx-path").arg(&folder))?;
    }
    Ok(folder)
}

fn compare(python: &Path, home: &Path, what: &str, model: &Path, load: Load) -> Result<()> {
    let ours = Server::cairn(home, model)?;
    let theirs = Server::mlx_lm(python, model)?;
    let mut trials = Vec::new();
    // The first answers allocate, and do not count.
    for server in [&ours, &theirs] {
        measure(server, Load { num_clients: 2, ..load }, 1000)?;
    }
    for trial in 0..load.num_trials {
        trials.push((measure(&ours, load, trial)?, measure(&theirs, load, trial)?));
    }
    let (first, _) = trials.first().context("a trial")?;
    let what = format!(
        "{what}, {} clients, {} + {} tokens",
        load.num_clients,
        first.num_prompt_tokens / load.num_clients,
        first.num_tokens / load.num_clients
    );
    let figures: [(&str, Figure); 3] = [
        ("tokens/s", |of| of.num_tokens as f64 / of.seconds),
        ("first token p50, ms", |of| percentile(&of.first_token_ms, 0.5)),
        ("first token p95, ms", |of| percentile(&of.first_token_ms, 0.95)),
    ];
    for (unit, figure) in figures {
        let of = |side: fn(&(Measured, Measured)) -> &Measured| -> Vec<f64> {
            trials.iter().map(|trial| figure(side(trial))).collect()
        };
        let (our, their) = (of(|trial| &trial.0), of(|trial| &trial.1));
        let ratios = our.iter().zip(&their).map(|(our, their)| our / their).collect();
        row(
            &format!("{what}: {unit}"),
            format!("{:.1}", median(our)),
            format!("mlx_lm.server {:.1}", median(their)),
            median(ratios),
        );
    }
    let own = |(ours, _): &(Measured, Measured)| ours.protocol_us / ours.num_tokens as f64;
    let protocol_us = median(trials.iter().map(own).collect());
    row(
        &format!("{what}: CPU for HTTP, µs a token"),
        format!("{protocol_us:.1}"),
        format!("goal {PROTOCOL_GOAL_US:.0}"),
        protocol_us / PROTOCOL_GOAL_US,
    );
    Ok(())
}

/// What the clients of one trial have seen.
struct Measured {
    seconds: f64,
    num_prompt_tokens: usize,
    num_tokens: usize,
    /// In order.
    first_token_ms: Vec<f64>,
    /// CPU time of the threads that speak HTTP, where they have names; otherwise 0.
    protocol_us: f64,
}

/// A figure of a trial.
type Figure = fn(&Measured) -> f64;

/// Asks from many clients at once.
fn measure(server: &Server, load: Load, trial: usize) -> Result<Measured> {
    let protocol_before = server.protocol_us();
    let began = Instant::now();
    let asked = |client: usize| {
        let server = (server.port, server.model.clone());
        thread::spawn(move || ask_until_heard(server.0, &server.1, load, trial * 1000 + client))
    };
    let clients: Vec<_> = (0..load.num_clients).map(asked).collect();
    let (mut first_token_ms, mut num_tokens, mut num_prompt_tokens) = (Vec::new(), 0, 0);
    for client in clients {
        let answer = client.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
        first_token_ms.push(answer.first_token.as_secs_f64() * 1e3);
        num_tokens += answer.num_tokens;
        num_prompt_tokens += answer.num_prompt_tokens;
    }
    first_token_ms.sort_by(f64::total_cmp);
    Ok(Measured {
        seconds: began.elapsed().as_secs_f64(),
        num_prompt_tokens,
        num_tokens,
        first_token_ms,
        protocol_us: server.protocol_us() - protocol_before,
    })
}

struct Answered {
    first_token: Duration,
    num_tokens: usize,
    num_prompt_tokens: usize,
}

/// Python's server listens for five connections at a time and resets those beyond. These ask again;
/// the time since they asked first counts.
fn ask_until_heard(port: u16, model: &str, load: Load, seed: usize) -> Result<Answered> {
    let began = Instant::now();
    loop {
        match ask(port, model, load, seed, began) {
            Err(error) if is_reset(&error) && began.elapsed() < Duration::from_secs(60) => {
                thread::sleep(Duration::from_millis(2));
            }
            answered => return answered,
        }
    }
}

fn is_reset(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    matches!(kind, Some(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe))
}

/// One question over a connection of its own. The answer is read line by line: what chunked encoding
/// puts between two events is no event.
fn ask(port: u16, model: &str, load: Load, seed: usize, began: Instant) -> Result<Answered> {
    let body = json!({
        "model": model, "stream": true, "stream_options": { "include_usage": true },
        "temperature": 0, "max_tokens": load.answer_tokens,
        "messages": [
            { "role": "system", "content": text(1, load.system_chars) },
            { "role": "user", "content": text(100 + seed, load.question_chars) },
        ],
    })
    .to_string();
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    write!(
        stream,
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\
         Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut first_token = None;
    let mut read = String::new();
    for line in BufReader::new(stream).lines() {
        let line = line?;
        if first_token.is_none() {
            read = format!("{read}{line}\n");
        }
        let Some(data) = line.strip_prefix("data: ") else { continue };
        let is_last = data.contains("\"usage\"") && !data.contains("\"usage\":null");
        if first_token.is_some() && !is_last {
            continue;
        }
        let Ok(data) = serde_json::from_str::<Value>(data) else { continue };
        let content = data["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
        if !content.is_empty() && first_token.is_none() {
            first_token = Some(began.elapsed());
        }
        let count = |name: &str| data["usage"][name].as_u64().map(|count| count as usize);
        if let (Some(num_tokens), Some(num_prompt_tokens)) =
            (count("completion_tokens"), count("prompt_tokens"))
        {
            let first_token = first_token.context("an answer without text")?;
            return Ok(Answered { first_token, num_tokens, num_prompt_tokens });
        }
    }
    bail!("no whole answer: {read}")
}

/// Made-up words, the same for the same seed.
fn text(seed: usize, num_chars: usize) -> String {
    const WORDS: [&str; 12] = [
        "river", "stone", "and", "path", "over", "hill", "the", "cairn", "marks", "way", "of",
        "night",
    ];
    let mut state = seed as u64;
    let mut text = String::new();
    while text.len() < num_chars {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(WORDS[(state >> 33) as usize % WORDS.len()]);
        text.push(' ');
    }
    text.truncate(num_chars);
    text
}

/// 3 % of a token at a model of 1B, which one stream on an H200 decodes in 0.89 ms.
const PROTOCOL_GOAL_US: f64 = 27.0;

const TOKEN: &str = "bench-token-bench-token-bench-token";

/// A server of either kind, which ends when it is dropped.
struct Server {
    child: Child,
    port: u16,
    /// How requests name the model.
    model: String,
}

impl Server {
    fn cairn(home: &Path, model: &Path) -> Result<Self> {
        let name = model.file_name().context("a folder")?.to_string_lossy().into_owned();
        let mut command = Command::new(process::release("cairn"));
        command.env("CAIRN_HOME", home).args(["serve", "--port", "18435", "--token", TOKEN]);
        command.args(["--model", &name]);
        Server::start(command, 18435, name)
    }

    fn mlx_lm(python: &Path, model: &Path) -> Result<Self> {
        let mut command = Command::new(python);
        command.arg(root().join("xtask/bench/mlx_lm_server.py"));
        command.args(["--port", "18436", "--log-level", "ERROR"]);
        command.arg("--model").arg(model);
        Server::start(command, 18436, model.to_string_lossy().into_owned())
    }

    fn start(mut command: Command, port: u16, model: String) -> Result<Self> {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let mut server = Server { child, port, model };
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = server.child.try_wait()?;
            ensure!(ended.is_none(), "{command:?} has ended: {ended:?}");
            ensure!(began.elapsed() < Duration::from_secs(120), "{command:?} does not answer");
            thread::sleep(Duration::from_millis(100));
        }
        Ok(server)
    }

    /// The CPU time of its threads for HTTP, by their name: tokio's.
    fn protocol_us(&self) -> f64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let threads = tasks.into_iter().flatten().flatten().map(|task| task.path());
        let nanoseconds = |thread: PathBuf| -> Option<f64> {
            let name = fs::read_to_string(thread.join("comm")).ok()?;
            let time = fs::read_to_string(thread.join("schedstat")).ok()?;
            let time: f64 = time.split(' ').next()?.parse().ok()?;
            name.starts_with("tokio").then_some(time)
        };
        threads.filter_map(nanoseconds).sum::<f64>() / 1e3
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn percentile(ordered: &[f64], share: f64) -> f64 {
    let index = (ordered.len() as f64 * share).ceil() as usize;
    ordered.get(index.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}
