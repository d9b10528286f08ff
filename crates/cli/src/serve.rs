//! `cairn serve`: the app's commands over HTTP on this machine, with `--ui` its interface too.

use anyhow::{Context, Result, bail};
use cairn_app::wire::Command;
use cairn_app::{App, DataFolder, Options};
use cairn_server::{ServeOptions, Server};

use crate::arguments::Serve;
use crate::output::{self, Usage};
use crate::session::hub_variables;

pub async fn run(arguments: Serve) -> Result<()> {
    let token = match (arguments.token, arguments.token_file) {
        (Some(token), _) => Some(token),
        (None, Some(file)) => {
            let text = std::fs::read_to_string(&file)
                .with_context(|| format!("cannot read the token from {}", file.display()))?;
            Some(text.trim().to_owned())
        }
        (None, None) => None,
    };
    let data_folder = DataFolder::from_environment()?;
    let app = App::open(Options {
        data_folder,
        autoload: arguments.model.is_none(),
        hub_variables: hub_variables(),
    })
    .await?;
    let has_interface = arguments.ui;
    let options =
        ServeOptions { host: arguments.host, port: arguments.port, token, ui: arguments.ui };
    let server = match Server::bind(app.clone(), options).await {
        Ok(server) => server,
        Err(error) => {
            app.close().await;
            return Err(match error.is_usage() {
                true => Usage(error.to_string()).into(),
                false => error.into(),
            });
        }
    };
    if let Some(name) = arguments.model
        && let Err(failure) = app.call(Command::LoadModel { name }).await
    {
        app.close().await;
        bail!(failure.message);
    }
    output::line(server.url())?;
    let note = if has_interface {
        "Open the address above in a browser."
    } else {
        "The app's commands are served at the address above; --ui adds the interface."
    };
    eprintln!("{note} Ctrl-C stops the server.");
    let result = server.run(shutdown_signal()).await;
    app.close().await;
    Ok(result?)
}

/// Resolves on Ctrl-C (SIGINT) or SIGTERM.
async fn shutdown_signal() {
    let mut terminate =
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(terminate) => terminate,
            Err(_) => return std::future::pending().await,
        };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}
