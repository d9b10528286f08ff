//! `make bench`: measures every number that the README claims, as ratios from one run.
//!
//! mlx-lm runs in target/oracle, a Python environment with the same MLX and the same BLAS. The two
//! take turns, trial by trial, so that a machine that slows down affects both.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::bench_table::{median, row};
use crate::{bench_server, bench_ui, mlx, oracle, process, root, starter, system, ui};

const TRIALS: usize = 5;

/// Builds, measures and prints a table in Markdown.
pub fn run() -> Result<()> {
    mlx::make()?;
    system::ensure(system::Part::Desktop)?;
    system::ensure(system::Part::Test)?;
    ui::build()?;
    starter::fetch()?;
    // In one call: cargo picks features by the packages selected, and would build much twice.
    let packages = ["-p", "cairn-cli", "-p", "cairn-desktop", "-p", "cairn-engine"];
    process::run(
        process::cargo()
            .args(["build", "--release", "--bins", "--example", "resume"])
            .args(packages),
    )?;
    let home = root().join("target/bench-home");
    let model = starter::import(&home)?;
    let python = oracle::python()?;

    let commit = process::output(Command::new("git").current_dir(root()).args([
        "rev-parse",
        "--short",
        "HEAD",
    ]))?;
    println!("`make bench` at {} on {}\n", commit.trim(), machine());
    println!("| measured | Cairn | against | ratio |\n|---|---|---|---|");
    throughput(&python, &model, 1)?;
    throughput(&python, &model, 8)?;
    bench_server::run()?;
    resume(&model)?;
    app(&home)?;
    bench_ui::run()
}

/// Decode and prefill against mlx-lm in turns; medians of the trials' ratios.
fn throughput(python: &Path, model: &Path, batch_size: usize) -> Result<()> {
    let batch = ["--batch-size".to_owned(), batch_size.to_string()];
    let mut ours = Side::start(
        Command::new(process::release("cairn"))
            .args(["bench", "--interactive"])
            .args(&batch)
            .arg("--model")
            .arg(model),
    )?;
    let script = root().join("xtask/bench/mlx_lm_side.py");
    let mut theirs =
        Side::start(Command::new(python).arg(script).arg(model).args(&batch).arg("--interactive"))?;
    let mut trials = Vec::new();
    // A trial of eight streams takes as long as several of one, so there are fewer.
    for _ in 0..if batch_size == 1 { TRIALS } else { 3 } {
        trials.push((ours.trial()?, theirs.trial()?));
    }
    for (what, key) in [
        ("decode, tokens/s", "generation_tps"),
        ("prefill, tokens/s", "prompt_tps"),
        ("peak memory, GB", "peak_memory_gb"),
    ] {
        let number = |value: &Value| value[key].as_f64().unwrap_or(f64::NAN);
        let our_median = median(trials.iter().map(|(ours, _)| number(ours)).collect());
        let their_median = median(trials.iter().map(|(_, theirs)| number(theirs)).collect());
        let ratio =
            median(trials.iter().map(|(ours, theirs)| number(ours) / number(theirs)).collect());
        let streams =
            if batch_size == 1 { String::new() } else { format!("{batch_size} at once, ") };
        row(
            &format!("SmolLM2-135M f32, {streams}512 + 128 tokens: {what}"),
            format!("{our_median:.2}"),
            format!("mlx-lm {their_median:.2}"),
            ratio,
        );
    }
    Ok(())
}

/// A program that runs one trial for each line it reads.
struct Side {
    child: Child,
    answers: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Side {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        let mut side = Side { child, answers: BufReader::new(stdout).lines() };
        let ready = side.answer()?;
        ensure!(ready["ready"] == true, "{command:?} did not get ready: {ready}");
        Ok(side)
    }

    fn trial(&mut self) -> Result<Value> {
        self.child.stdin.as_mut().context("stdin is piped")?.write_all(b"trial\n")?;
        self.answer()
    }

    fn answer(&mut self) -> Result<Value> {
        let line = self.answers.next().context("the program ended early")??;
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Continuing a conversation from its saved context, by `crates/engine/examples/resume.rs`.
fn resume(model: &Path) -> Result<()> {
    let program = root().join("target/release/examples/resume");
    let text = process::output(Command::new(program).arg(model).args(["1000", "4000", "8000"]))?;
    for line in text.lines() {
        let times: Value = serde_json::from_str(line)?;
        match times["writing_over_idle"].as_f64() {
            Some(ratio) => row(
                "decode while chunks of another conversation are written",
                format!("{:.1} %", ratio * 100.0),
                "not writing 100 %".to_owned(),
                ratio,
            ),
            None => resume_rows(&times),
        }
    }
    Ok(())
}

/// The rows of one length of history.
fn resume_rows(times: &Value) {
    let number = |key: &str| times[key].as_f64().unwrap_or(f64::NAN);
    let ms = |key: &str| format!("{:.0} ms", number(key));
    let history = format!("{} tokens of history", number("history_tokens"));
    let tiers = [
        ("from disk after a restart", "disk_1"),
        ("evicted from memory", "evicted_1"),
        ("resident beside another conversation", "memory_1"),
    ];
    for (what, key) in tiers {
        let against = format!("cold {}", ms("cold"));
        row(
            &format!("{history} {what}, 1 new: first token"),
            ms(key),
            against,
            number("cold") / number(key),
        );
    }
    let against = format!("KV still in memory {}", ms("ram_24"));
    row(
        &format!("{history} from disk, 24 new: first token"),
        ms("disk_24"),
        against,
        number("disk_24") / number("ram_24"),
    );
    let (bytes, kv_bytes) = (number("bytes_per_token"), number("kv_bytes_per_token"));
    row(
        &format!("{history}: bytes on disk a token"),
        format!("{bytes:.0}"),
        format!("keys and values {kv_bytes:.0}"),
        bytes / kv_bytes,
    );
}

/// The desktop app without a model: time until its interface has drawn its first state, memory and
/// CPU at rest.
fn app(home: &Path) -> Result<()> {
    let empty = home.join("empty");
    let mut starts = Vec::new();
    let (mut bytes, mut cpu) = (0, 0.0);
    // The first start fills the system's file cache and does not count.
    for round in 0..4 {
        let began = Instant::now();
        let mut child = start_app(&empty)?;
        if round > 0 {
            starts.push(began.elapsed().as_secs_f64());
        }
        if round == 3 {
            std::thread::sleep(Duration::from_secs(5)); // lets start-up work end
            let before = tree_ticks(child.id());
            std::thread::sleep(Duration::from_secs(20));
            cpu = (tree_ticks(child.id()) - before) as f64 / 100.0 / 20.0 * 100.0;
            bytes = tree_pss(child.id());
        }
        for pid in app_pids(child.id()) {
            let _ = Command::new("kill").arg(pid.to_string()).status();
        }
        let _ = child.wait();
    }
    let start = median(starts);
    row(
        "warm start to an interface that answers",
        format!("{start:.2} s"),
        "goal 2 s".to_owned(),
        start / 2.0,
    );
    row("idle CPU of all its processes", format!("{cpu:.2} %"), "goal 1 %".to_owned(), cpu);
    let megabytes = bytes as f64 / 1e6;
    row(
        "memory without a model (PSS of all its processes)",
        format!("{megabytes:.0} MB"),
        "goal 400 MB".to_owned(),
        megabytes / 400.0,
    );
    Ok(())
}

/// Starts the desktop app on a virtual display and waits until its interface is ready.
fn start_app(home: &Path) -> Result<Child> {
    let mut xvfb = Command::new("dbus-run-session");
    xvfb.args(["--", "xvfb-run", "-a", "-s", "-screen 0 1280x860x24"])
        .arg(process::release("cairn-app"));
    xvfb.envs([
        ("WEBKIT_DISABLE_COMPOSITING_MODE", "1"),
        ("WEBKIT_DISABLE_DMABUF_RENDERER", "1"),
        ("LIBGL_ALWAYS_SOFTWARE", "1"),
    ]);
    xvfb.env("CAIRN_HOME", home).env("HF_HUB_CACHE", home.join("hub")).env("CAIRN_LOG", "info");
    let mut child = xvfb
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start the app under Xvfb")?;
    let log = BufReader::new(child.stderr.take().context("stderr is piped")?);
    let drawn = log.lines().map_while(Result::ok).find(|line| line.contains("interface ready"));
    ensure!(drawn.is_some(), "the app ended before its interface was ready");
    Ok(child)
}

/// The app and WebKit's processes below `root`; not the display server or the session bus.
fn app_pids(root: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut pending = vec![root];
    let processes: Vec<(u32, u32, String)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
            Some((pid, rest.split_whitespace().nth(1)?.parse().ok()?, name.to_owned()))
        })
        .collect();
    while let Some(parent) = pending.pop() {
        for (pid, _, name) in processes.iter().filter(|(_, ppid, _)| *ppid == parent) {
            pending.push(*pid);
            if name.starts_with("cairn-app") || name.starts_with("WebKit") {
                found.push(*pid);
            }
        }
    }
    found
}

/// CPU ticks (hundredths of a second) used by the app's processes.
fn tree_ticks(root: u32) -> u64 {
    let ticks = |pid: u32| -> Option<u64> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
    };
    app_pids(root).into_iter().filter_map(ticks).sum()
}

fn tree_pss(root: u32) -> u64 {
    let pss = |pid: u32| -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let line = text.lines().find(|line| line.starts_with("Pss:"))?;
        Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
    };
    app_pids(root).into_iter().filter_map(pss).sum()
}

fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, |count| count.get());
    format!("{cores} cores of {}", model.trim_start_matches([' ', '\t', ':']))
}
