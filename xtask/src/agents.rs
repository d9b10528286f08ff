//! Coding agents against `cairn serve`: the real programs, set up as the window says.

use anyhow::Result;

use crate::{check, node, oracle, process, root, ui};

/// Installs the agents and lets each answer, use a tool, and go on after a restart.
pub fn run() -> Result<()> {
    let folder = root().join("tests/agents");
    check::write_tiny_models();
    // The set-ups are the window's own texts, and its TypeScript reads them.
    node::install(&ui::folder())?;
    // Not `npm ci`: the lock lacks an agent's packages for other systems where a registry has only this one's.
    node::npm(&folder, &["install", "--no-save", "--no-audit", "--no-fund"])?;
    let aider = oracle::aider()?;
    process::run(node::program()?.arg(folder.join("agents.mjs")).env("AIDER", aider))
}
