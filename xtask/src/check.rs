//! `make test`, `make pictures` and `make lint`: set up what they need, then run every check in one build of the
//! workspace.

use anyhow::Result;

use crate::{mlx, node, process, root, starter, system, ui};

/// Every test: Rust, interface, browser and window.
pub fn test() -> Result<()> {
    set_up()?;
    system::ensure(system::Part::Test)?;
    starter::fetch()?;
    node::npm(&ui::folder(), &["test"])?;

    // Both commands select the same packages: cargo unifies features by selection, and would
    // otherwise build many crates twice. No test runs the examples, but they have to compile.
    process::run(process::cargo().args(["build", "--workspace", "--all-targets"]))?;
    let mut tests = process::cargo();
    tests.args(["test", "--workspace", "--lib", "--bins", "--tests"]);
    // Tests fill the cores, and threads of OpenBLAS that find none free wait for one by spinning.
    process::run(tests.env("OPENBLAS_NUM_THREADS", "1"))?;
    process::run(process::cargo().args(["test", "--workspace", "--doc"]))?;

    let flows = root().join("tests/e2e");
    if flows.exists() {
        write_tiny_models();
        node::install(&flows)?;
        node::npm(&flows, &["test"])?;
    }
    Ok(())
}

/// A picture of every state of the interface into target/pictures, and the README's into assets/.
pub fn pictures() -> Result<()> {
    set_up()?;
    system::ensure(system::Part::Test)?;
    starter::fetch()?;
    // The same packages as for the tests, so that nothing is built twice.
    process::run(process::cargo().args(["build", "--workspace", "--bins", "--tests"]))?;
    write_tiny_models();
    let flows = root().join("tests/e2e");
    node::install(&flows)?;
    node::npm(&flows, &["run", "--silent", "pictures"])
}

/// Writes every tiny random model, for flows that read them outside Rust.
pub fn write_tiny_models() {
    for name in cairn_tiny_models::tiny_models() {
        cairn_tiny_models::tiny_model(&name);
    }
}

/// Formatting and lints of Rust and of the interface; a warning fails.
pub fn lint(with_clippy: bool) -> Result<()> {
    set_up()?;
    process::run(process::cargo().args(["fmt", "--all", "--check"]))?;
    if with_clippy {
        let clippy = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
        process::run(process::cargo().args(clippy))?;
    }
    node::npm(&ui::folder(), &["run", "--silent", "lint"])
}

/// The desktop shell embeds the built interface, so that comes before any Rust.
fn set_up() -> Result<()> {
    mlx::make()?;
    system::ensure(system::Part::Desktop)?;
    ui::build()
}
