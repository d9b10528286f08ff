//! The vendors' own clients against `cairn serve`: what they send and get is recorded for `make
//! test`, and schemathesis looks for requests that break the server.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use cairn_api_recordings::Recorder;

use crate::{node, oracle, process, root};

/// The key of the server.
const KEY: &str = "a-key-of-the-interop-chore";
const SEED: &str = "1";
/// How long schemathesis may look for more.
const SECONDS: &str = "180";
/// What the server may grow by while schemathesis runs: freed memory stays with its allocator.
const MAX_GROWTH_KB: u64 = 64 << 10;

/// Records the clients, then runs schemathesis.
pub fn run(cairn: &Path) -> Result<()> {
    let folder = root().join("tests/api-recordings/clients");
    let python = oracle::clients_python()?;
    let server = Server::start(cairn)?;
    for (client, script) in
        [("openai-python", "openai_client.py"), ("anthropic-python", "anthropic_client.py")]
    {
        record(client, server.address, Command::new(&python).arg(folder.join(script)))?;
    }
    node::install(&folder)?;
    record("openai-node", server.address, node::program()?.arg(folder.join("openai_client.mjs")))?;
    drop(server);
    // Another process, so that its memory is what schemathesis has made of it.
    check_with_schemathesis(&Server::start(cairn)?)
}

fn record(client: &str, server: SocketAddr, command: &mut Command) -> Result<()> {
    eprintln!("{client}");
    let recorder = Recorder::start(server, KEY)?;
    let address = format!("http://{}", recorder.address());
    process::run(command.env("CAIRN_URL", address).env("CAIRN_KEY", KEY))?;
    recorder.recording(client).write()?;
    Ok(())
}

fn check_with_schemathesis(server: &Server) -> Result<()> {
    let folder = root().join("tests/api-recordings/schemathesis");
    let schemathesis = oracle::schemathesis()?;
    let run = |phases: &str| {
        let document = format!("http://{}/openapi.json", server.address);
        process::run(
            Command::new(&schemathesis)
                // Where it leaves its files.
                .current_dir(root().join("target/interop"))
                .env("SCHEMATHESIS_HOOKS", "hooks")
                .env("PYTHONPATH", &folder)
                .arg("--config-file")
                .arg(folder.join("schemathesis.toml"))
                .args(["run", &document, "--header", &format!("Authorization: Bearer {KEY}")])
                .args(["--seed", SEED, "--max-time", SECONDS, "--phases", phases]),
        )
    };
    // The first run fills caches and pools.
    run("coverage")?;
    let before = server.resident_kb()?;
    run("fuzzing,stateful")?;
    let grown = server.resident_kb()?.saturating_sub(before);
    if grown > MAX_GROWTH_KB {
        bail!("`cairn serve` has grown by {grown} KiB under schemathesis");
    }
    eprintln!("cairn serve has grown by {grown} KiB");
    Ok(())
}

/// `cairn serve` with the models of the recordings, until it is dropped.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(cairn: &Path) -> Result<Server> {
        let home = root().join("target/interop/api-home");
        if home.exists() {
            fs::remove_dir_all(&home)?;
        }
        cairn_tiny_models::copy_api_models(&home.join("models"))?;
        let mut command = Command::new(cairn);
        command
            .env("CAIRN_HOME", &home)
            .env("HF_HUB_CACHE", home.join("hub"))
            .args(["serve", "--port", "0", "--token", KEY, "--model", "tiny-chat"])
            .stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start `cairn serve`")?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("no stdout")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let address = line.strip_prefix("http://").and_then(|line| line.split('/').next());
        let address = address.and_then(|address| address.parse().ok());
        let Some(address) = address else {
            let _ = child.kill();
            bail!("`cairn serve` printed no address: {line:?}");
        };
        Ok(Server { child, address })
    }

    /// How much memory it has, as the system counts it.
    fn resident_kb(&self) -> Result<u64> {
        let id = self.child.id().to_string();
        let text = process::output(Command::new("ps").args(["-o", "rss=", "-p", &id]))?;
        text.trim().parse().with_context(|| format!("`ps` printed {text:?}: has the server ended?"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It keeps nothing that has to be saved.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
