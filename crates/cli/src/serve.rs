//! `cairn serve`: serves the app's commands over HTTP on this machine, with `--ui` its interface
//! too.

use anyhow::{Context, Result, anyhow};
use cairn_app::{App, Closed, Options};
use cairn_server::{ServeError, ServeOptions, Server};

use crate::arguments::Serve;
use crate::input::read_text;
use crate::output::{self, Usage, note};
use crate::signals::Signals;

pub async fn run(arguments: Serve) -> Result<()> {
    cairn_app::raise_file_limit();
    cairn_app::log_panics();
    let token = match (arguments.token, arguments.token_file) {
        (Some(token), _) => Some(token),
        (None, Some(file)) => {
            let text = read_text(&file).context("cannot read the token")?;
            Some(text.trim().to_owned())
        }
        (None, None) => None,
    };
    let has_interface = arguments.ui;
    let speculation = arguments.speculation.asked().map_err(|error| Usage(error.to_string()))?;
    let options = ServeOptions {
        host: arguments.host,
        port: arguments.port,
        token,
        ui: arguments.ui,
        allowed_hosts: arguments.allowed_hosts,
        allowed_origins: arguments.allowed_origins,
    };
    // Before the engine starts: closing it right after its start may take longer than `close`
    // waits.
    options.check().map_err(to_error)?;
    let from_environment = Options::from_environment()?;
    let app = App::open(Options {
        autoload: arguments.model.is_none(),
        speculation,
        snapkv: arguments.snapkv.snapkv(),
        kv_quantization: arguments.kv.quantization(),
        answer_defaults: arguments.answers.defaults(),
        completion_batch_size: arguments.batches.decode_concurrency.map(|size| size as usize),
        prefill_batch_size: arguments.batches.prompt_concurrency.map(|size| size as usize),
        saved_context: arguments.saved_context.options(),
        compresses_cache: arguments.saved_context.compress_cache,
        ..from_environment
    })
    .await?;
    if let Err(failure) = app.check_forced_draft().await {
        return close(&app, Err(anyhow!("{}", failure.message))).await;
    }
    let server = match Server::bind(app.clone(), options).await {
        Ok(server) => server,
        Err(error) => return close(&app, Err(to_error(error))).await,
    };
    if let Some(name) = arguments.model
        && let Err(failure) = app.load_model(&name).await
    {
        return close(&app, Err(anyhow!(failure.message))).await;
    }
    let signals = Signals::listen()?;
    output::line(server.url())?;
    let note = if has_interface {
        "Open the address above in a browser."
    } else {
        "The API is served under /v1 at this address, with the token as its key; --ui adds the app's interface."
    };
    note!("{note} Ctrl-C stops the server.");
    server.run(shutdown(signals)).await;
    close(&app, Ok(())).await
}

fn to_error(error: ServeError) -> anyhow::Error {
    if error.is_usage() { Usage(error.to_string()).into() } else { error.into() }
}

/// Closes the app and returns `result`. If the engine does not end in time, this ends the process
/// with the exit status of `result`: returning from `main` would run MLX's exit handlers, which
/// abort while MLX is busy.
async fn close(app: &App, result: Result<()>) -> Result<()> {
    if app.close().await == Closed::Completely {
        return result;
    }
    note!(
        "The engine was still busy, so Cairn ended without waiting for it. The newest context may not be saved; it is then read again once."
    );
    let status = result.map_or_else(|error| output::report(&error), |()| 0);
    cairn_app::exit_now(status.into())
}

/// Resolves on the first signal, and then lets a second one end the program at once.
async fn shutdown(mut signals: Signals) {
    signals.recv().await;
    note!("Stopping. Ctrl-C again ends the program at once.");
    signals.end_at_next();
}
