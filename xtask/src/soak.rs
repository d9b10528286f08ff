//! `make soak`: the sweeps of which `make test` runs a part, with new seeds each time, for as long as
//! asked; then a fuzz target, if cargo-fuzz is installed.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use crate::{mlx, process, root, starter, system};

/// A pass runs this many times the cases of `make test`.
const FACTOR: u64 = 5;
/// Seeds of a pass are below those of the next one.
const SEEDS_OF_A_PASS: u64 = 1 << 20;
/// The tests with sweeps.
const SWEEPS: [&[&str]; 7] = [
    &["-p", "cairn-tests", "--test", "crash"],
    &["-p", "cairn-tests", "--test", "engine", "--", "saved_damage", "saved_load"],
    &["-p", "cairn-tests", "--test", "batching", "--", "any_schedule"],
    &["-p", "cairn-lm", "--lib", "--", "cache"],
    &["-p", "cairn-hub", "--test", "download", "--", "cuts", "kills"],
    &["-p", "cairn-prompt-cache", "--lib", "--", "sequences"],
    &["-p", "cairn-app", "--test", "figures"],
];

/// Runs passes over the sweeps until `minutes` are over; the first pass always ends.
pub fn run(minutes: u64, seed: Option<u64>) -> Result<()> {
    mlx::make()?;
    system::ensure(system::Part::Test)?;
    starter::fetch()?;
    let first = match seed {
        Some(seed) => seed,
        None => SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() * SEEDS_OF_A_PASS,
    };
    let (began, limit) = (Instant::now(), Duration::from_secs(minutes * 60));
    // The last quarter is for the fuzz target.
    let sweeping = if has_fuzz() { limit * 3 / 4 } else { limit };
    let mut num_passes = 0;
    while num_passes == 0 || began.elapsed() < sweeping {
        let seed = first.wrapping_add(num_passes * SEEDS_OF_A_PASS);
        eprintln!("soak: pass {}, CAIRN_SEED={seed} CAIRN_SOAK={FACTOR}", num_passes + 1);
        for sweep in SWEEPS {
            if num_passes > 0 && began.elapsed() >= sweeping {
                break;
            }
            let mut test = process::cargo();
            test.args(["test", "--quiet"]).args(sweep);
            test.env("CAIRN_SEED", seed.to_string()).env("CAIRN_SOAK", FACTOR.to_string());
            let again = format!("repeat the pass with `cargo xtask soak --seed {seed}`");
            process::run(&mut test).context(again)?;
        }
        num_passes += 1;
    }
    fuzz(limit.saturating_sub(began.elapsed()))?;
    eprintln!("soak: {num_passes} passes in {} min", began.elapsed().as_secs() / 60);
    Ok(())
}

fn has_fuzz() -> bool {
    process::exists("cargo-fuzz")
}

/// Fuzzes prompt-cache files from the seeds that are committed.
fn fuzz(time: Duration) -> Result<()> {
    if !has_fuzz() {
        eprintln!(
            "soak: skipping the fuzz target, which needs a nightly Rust and `cargo install cargo-fuzz`"
        );
        return Ok(());
    }
    let mut fuzz = std::process::Command::new("cargo");
    fuzz.current_dir(root()).args(["+nightly", "fuzz", "run", "prompt_file"]);
    fuzz.args(["fuzz/corpus/prompt_file", "fuzz/seeds/prompt_file", "tests/goldens/caches"]);
    fuzz.args(["--", "-max_len=70000"]).arg(format!("-max_total_time={}", time.as_secs().max(60)));
    std::fs::create_dir_all(root().join("fuzz/corpus/prompt_file"))?;
    process::run(&mut fuzz)
}
