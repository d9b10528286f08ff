//! Where the hub's access token is kept: in the system's keychain, else in a file of the data folder
//! that only its owner can read. The only file that knows the keychain.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use cairn_hub::{DEFAULT_ENDPOINT, Token};
use keyring::{Entry, Error};

use crate::wire::TokenPlace;

/// How the keychain's own window lists the entry.
const SERVICE: &str = "Cairn";
const ACCOUNT: &str = "Hugging Face access token";

/// A token that was entered, and the hub that it was entered for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SavedToken {
    pub(crate) token: Token,
    /// Scheme, host and port of the hub.
    pub(crate) origin: String,
    pub(crate) place: TokenPlace,
}

impl SavedToken {
    /// From one text, so that a token and its hub can never be of different times. An earlier version
    /// did not write the hub; whichever the environment names by now, such a token goes only to
    /// Hugging Face, whose token the field asked for.
    fn parse(text: &str, place: TokenPlace) -> Option<SavedToken> {
        let (origin, token) = text.split_once(' ').unwrap_or((DEFAULT_ENDPOINT, text));
        Some(SavedToken { token: Token::new(token).ok()?, origin: origin.to_owned(), place })
    }
}

/// Keeps one token. Its calls block: a keychain may ask the person first.
#[derive(Debug, Clone)]
pub(crate) struct TokenStore {
    uses_keychain: bool,
    file: PathBuf,
}

impl TokenStore {
    pub(crate) fn new(file: PathBuf, uses_keychain: bool) -> TokenStore {
        TokenStore { uses_keychain, file }
    }

    /// The token and where it is kept; none if there is none, or none that can be read.
    pub(crate) fn read(&self) -> Option<SavedToken> {
        let from_keychain = || {
            let text = self.entry()?.get_password().inspect_err(report).ok()?;
            SavedToken::parse(&text, TokenPlace::Keychain)
        };
        let from_file =
            || SavedToken::parse(&fs::read_to_string(&self.file).ok()?, TokenPlace::File);
        from_keychain().or_else(from_file)
    }

    /// Keeps a token for the hub of this origin instead of the one before.
    pub(crate) fn save(&self, token: &str, origin: &str) -> io::Result<TokenPlace> {
        let text = format!("{origin} {token}");
        if let Some(entry) = self.entry()
            && entry.set_password(&text).inspect_err(report).is_ok()
        {
            // The keychain is read first, so what stays in a file is not used.
            if let Err(error) = remove(&self.file) {
                tracing::warn!("an older access token stays in its file: {error}");
            }
            return Ok(TokenPlace::Keychain);
        }
        write_private(&self.file, &text)?;
        Ok(TokenPlace::File)
    }

    /// Removes the token from wherever it is, from the file also if the keychain refuses.
    pub(crate) fn remove(&self) -> io::Result<()> {
        remove(&self.file)?;
        if let Some(entry) = self.entry() {
            match entry.delete_credential() {
                Ok(()) | Err(Error::NoEntry) => {}
                Err(error) => return Err(io::Error::other(error.to_string())),
            }
        }
        Ok(())
    }

    /// None where the system has no keychain that answers.
    fn entry(&self) -> Option<Entry> {
        self.uses_keychain.then(|| Entry::new(SERVICE, ACCOUNT).inspect_err(report).ok())?
    }
}

/// The errors of a keychain name no secret.
fn report(error: &Error) {
    if !matches!(error, Error::NoEntry) {
        tracing::info!("the system's keychain is not used: {error}");
    }
}

fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Writes a file that nobody else could read at any moment.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let partial = path.with_extension("partial");
    remove(&partial)?;
    let mut options = fs::File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&partial)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(partial, path)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    #[test]
    fn without_a_keychain_a_token_is_in_a_file_that_only_its_owner_can_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hub-token");
        let store = TokenStore::new(file.clone(), false);
        assert!(store.read().is_none());
        fs::write(&file, "hf_of_an_earlier_version\n").unwrap();
        let earlier = store.read().unwrap();
        assert_eq!(earlier.token, Token::new("hf_of_an_earlier_version").unwrap());
        assert_eq!(earlier.origin, "https://huggingface.co", "it belongs to no other hub");
        assert_eq!(store.save("hf_first", "https://hub.example").unwrap(), TokenPlace::File);
        assert_eq!(store.save("hf_second", "https://hub.example").unwrap(), TokenPlace::File);
        let saved = store.read().unwrap();
        assert_eq!(saved.token, Token::new("hf_second").unwrap());
        assert_eq!(saved.origin, "https://hub.example");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        }
        store.remove().unwrap();
        store.remove().unwrap();
        assert!(store.read().is_none());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
