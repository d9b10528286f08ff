//! Runs the fuzz targets with the stable compiler: cargo-fuzz asks for a nightly one, but only for
//! its address sanitizer, and the code under test has no `unsafe`.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process::{cargo, output, run};
use crate::root;

/// Flags that let libFuzzer see which edges a program took and what it compared.
const COVERAGE: [&str; 7] = [
    "--cfg=fuzzing",
    "-Ccodegen-units=1",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];
/// Longer inputs take more time and rarely find more.
const MAX_INPUT_BYTES: usize = 70_000;
/// Folders of goldens that are seeds too, by target.
const GOLDENS: &[(&str, &str)] = &[("prompt_file", "tests/goldens/caches")];

/// Builds the targets and runs each for so many seconds; fails at the first that finds something.
pub fn run_targets(seconds: u64, targets: &[String]) -> Result<()> {
    let known = known_targets()?;
    if let Some(unknown) = targets.iter().find(|target| !known.contains(target)) {
        bail!("there is no fuzz target {unknown:?}: choose from {}", known.join(", "));
    }
    let targets = if targets.is_empty() { &known } else { targets };
    let host = host()?;
    eprintln!("xtask: building the fuzz targets");
    // Flags for a named target leave build scripts alone, which cannot link with coverage.
    run(cargo()
        .args(["build", "--release", "--manifest-path", "fuzz/Cargo.toml", "--target", &host])
        .args(targets.iter().flat_map(|target| ["--bin", target]))
        .env("RUSTFLAGS", flags())
        .env_remove("CARGO_TARGET_DIR"))?;
    targets.iter().try_for_each(|target| run_target(target, &host, seconds))
}

/// They replace those of `.cargo/config.toml`, so the place of a prebuilt MLX is said again.
fn flags() -> String {
    let library = root().join("target/mlx/wheel/mlx/lib");
    let rpath = format!("-Clink-arg=-Wl,-rpath,{}", library.display());
    COVERAGE
        .into_iter()
        .chain(library.is_dir().then_some(rpath.as_str()))
        .collect::<Vec<_>>()
        .join(" ")
}

fn run_target(target: &str, host: &str, seconds: u64) -> Result<()> {
    let fuzz = root().join("fuzz");
    let (corpus, artifacts) = (fuzz.join("corpus").join(target), fuzz.join("artifacts"));
    for folder in [&corpus, &artifacts] {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let goldens = GOLDENS.iter().filter(|(owner, _)| *owner == target);
    eprintln!("xtask: fuzzing {target} for {seconds} s");
    run(Command::new(fuzz.join("target").join(host).join("release").join(target))
        .arg(corpus)
        .arg(fuzz.join("seeds").join(target))
        .args(goldens.map(|(_, folder)| root().join(folder)))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-max_len={MAX_INPUT_BYTES}"))
        .arg(format!("-artifact_prefix={}/{target}-", artifacts.display()))
        .args(["-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0"]))
    .with_context(|| format!("{target} found something; the input is in fuzz/artifacts"))
}

/// The targets, by the names of their files.
fn known_targets() -> Result<Vec<String>> {
    let folder = root().join("fuzz/fuzz_targets");
    let entries =
        fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let stem = |entry: fs::DirEntry| entry.path().file_stem()?.to_str().map(str::to_owned);
    let mut names: Vec<String> = entries.flatten().filter_map(stem).collect();
    names.sort();
    Ok(names)
}

/// The triple of this machine.
fn host() -> Result<String> {
    let version = output(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("`rustc -vV` names no host")
}
