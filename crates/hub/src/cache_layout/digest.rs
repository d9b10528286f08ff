//! Hashes a file while it comes.

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use crate::hub_api::ContentHash;

/// The running hash of a content whose length is known.
#[derive(Clone)]
pub(crate) enum Digest {
    Sha256(Sha256),
    GitSha1(Sha1),
}

impl Digest {
    /// Of the kind of `hash`. Git hashes the length first.
    pub fn new(hash: &ContentHash, length: u64) -> Digest {
        match hash {
            ContentHash::Sha256(_) => Digest::Sha256(Sha256::new()),
            ContentHash::GitSha1(_) => {
                Digest::GitSha1(Sha1::new().chain_update(format!("blob {length}\0")))
            }
        }
    }

    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Digest::Sha256(hash) => hash.update(bytes),
            Digest::GitSha1(hash) => hash.update(bytes),
        }
    }

    /// In lower-case hexadecimal.
    pub fn finish(self) -> String {
        let bytes = match self {
            Digest::Sha256(hash) => hash.finalize().to_vec(),
            Digest::GitSha1(hash) => hash.finalize().to_vec(),
        };
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_sha256sum_and_of_git() {
        let check = |hash: ContentHash| {
            let mut digest = Digest::new(&hash, 6);
            digest.update(b"hel");
            digest.update(b"lo\n");
            assert_eq!(digest.finish(), hash.as_str());
        };
        // `printf 'hello\n' | sha256sum` and `printf 'hello\n' | git hash-object --stdin`.
        let sha256 = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        check(ContentHash::sha256(sha256).unwrap());
        check(ContentHash::git_sha1("ce013625030ba8dba906f756967f9e9ca394464a").unwrap());
    }
}
