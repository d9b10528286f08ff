//! Asks the person before a command of the page changes where models come from or are. Script in the
//! page could send such a command by itself, so the question is a dialog of the system.

use cairn_app::wire::{Failure, FailureCode, FailureKind};
use cairn_app::{Consent, readable};
use tauri::{Url, WebviewWindow};
use tauri_plugin_dialog::{DialogExt, MessageDialogButtons, MessageDialogKind};
use tokio::sync::oneshot;

use crate::offered::{Offered, refused};

/// The most characters of a text of the page in a question.
const MAX_SHOWN_CHARS: usize = 200;

/// A question in a dialog.
#[derive(Debug, PartialEq, Eq)]
struct Question {
    title: &'static str,
    text: String,
    /// The button that allows it.
    allow: &'static str,
}

/// Fails unless the person allows it, now or because they have chosen the folder before.
///
/// # Errors
/// The failure to show.
pub async fn require(
    consent: &Consent,
    window: &WebviewWindow,
    offered: &Offered,
) -> Result<(), Failure> {
    let Some(question) = question(consent, offered)? else { return Ok(()) };
    let (sender, answer) = oneshot::channel();
    let dialog = window.dialog().message(question.text).parent(window).title(question.title);
    let buttons = MessageDialogButtons::OkCancelCustom(question.allow.into(), "Cancel".into());
    dialog.kind(MessageDialogKind::Warning).buttons(buttons).show(move |is_allowed| {
        // Fails only if the window is gone.
        let _ = sender.send(is_allowed);
    });
    if answer.await.unwrap_or(false) { Ok(()) } else { Err(declined()) }
}

/// Returns the question to ask; `None` if the folder was chosen. Fails for a folder of models that was not.
fn question(consent: &Consent, offered: &Offered) -> Result<Option<Question>, Failure> {
    Ok(Some(match consent {
        Consent::ModelFolder(path) if offered.has_model_folder(path) => return Ok(None),
        Consent::DownloadFolder(path) if offered.has_model_folder(path) => return Ok(None),
        // The page has a button that chooses a folder, and no field to write one.
        Consent::ModelFolder(path) => return Err(refused(path, "it was not chosen here")),
        Consent::DownloadFolder(path) => Question {
            title: "Change the folder for downloads?",
            text: format!("Cairn will download models to {}.", shown(&path.to_string_lossy())),
            allow: "Change folder",
        },
        Consent::HubAddress(address) => Question {
            title: "Change where models come from?",
            text: format!(
                "Cairn will search for models at {host} and download them from there. {host} sees what you search for.",
                host = host(address)
            ),
            allow: "Change address",
        },
        Consent::HubProxy(address) => Question {
            title: "Change the proxy?",
            text: format!(
                "Cairn will reach the model hub through {}, which sees which models you look for.",
                host(address)
            ),
            allow: "Change proxy",
        },
    }))
}

/// The host of an address, and its port if it has one; the text itself if it is no address.
fn host(address: &str) -> String {
    let url = Url::parse(address).ok();
    let named = url.as_ref().and_then(|url| {
        let host = url.host_str()?;
        Some(url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}")))
    });
    shown(named.as_deref().unwrap_or(address))
}

/// A text of the page in one line, with escapes for characters that are not seen or turn the order
/// of others.
fn shown(text: &str) -> String {
    let escaped = readable(text);
    match escaped.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &escaped[..end]),
        None => escaped,
    }
}

fn declined() -> Failure {
    Failure::new(FailureCode::Invalid, "Nothing was changed.").of_kind(FailureKind::Declined)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[track_caller]
    fn asks(consent: &Consent) -> String {
        question(consent, &Offered::default()).unwrap().unwrap().text
    }

    #[test]
    fn names_host_before_hub_changes() {
        for (address, host) in [
            ("https://hub.example", "at hub.example and"),
            ("https://hub.example:8443/path?huggingface.co", "at hub.example:8443 and"),
            ("https://huggingface.co@evil.example/", "at evil.example and"),
            ("https://аpple.example", "at xn--pple-43d.example and"),
            (
                "huggingface.co\u{202e}\nelpmaxe.live",
                r"at huggingface.co\u{202e}\nelpmaxe.live and",
            ),
            ("a\u{61c}b\u{feff}c\u{ad}d\u{e0041}", r"at a\u{61c}b\u{feff}c\u{ad}d\u{e0041} and"),
        ] {
            let text = asks(&Consent::HubAddress(address.to_owned()));
            assert!(text.contains(host), "{address}: {text}");
        }
        let text = asks(&Consent::HubProxy("socks5://proxy.example:1080".to_owned()));
        assert!(text.contains("through proxy.example:1080,"), "{text}");
        let long = asks(&Consent::HubAddress("x".repeat(9999)));
        assert!(long.chars().count() < 600, "{long}");
        let escaped = asks(&Consent::HubAddress("\u{202e}".repeat(9999)));
        assert!(escaped.chars().count() < 600, "{escaped}");
    }

    #[test]
    fn asks_about_folder_unless_chosen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let consents = [Consent::ModelFolder(path.clone()), Consent::DownloadFolder(path.clone())];
        let offered = Offered::default();
        let refused = question(&consents[0], &offered).unwrap_err();
        assert!(refused.message.contains("it was not chosen here"), "{refused:?}");
        assert!(asks(&consents[1]).contains(&path.display().to_string()));
        for path in ["/etc", "/proc/self/root"] {
            assert!(question(&Consent::ModelFolder(PathBuf::from(path)), &offered).is_err());
        }
        offered.add_model_folder(&path);
        for consent in consents {
            assert_eq!(question(&consent, &offered), Ok(None));
        }
    }
}
