//! Bodies: given bytes, or as many made-up ones as are wanted.

use std::fmt::Write as _;
use std::sync::Arc;

use sha1::Sha1;
use sha2::{Digest, Sha256};

const PAGE_BYTES: usize = 4096;

/// A file's bytes. A made-up one takes no memory.
#[derive(Debug, Clone)]
pub enum Content {
    /// These.
    Given(Arc<[u8]>),
    /// `length` bytes that follow from their positions.
    MadeUp {
        /// Their number.
        length: u64,
    },
}

impl Content {
    /// The number of bytes.
    pub fn length(&self) -> u64 {
        match self {
            Content::Given(bytes) => bytes.len() as u64,
            Content::MadeUp { length } => *length,
        }
    }

    /// Writes the bytes from `start` on into `buffer` and returns how many there are.
    pub fn read_at(&self, start: u64, buffer: &mut [u8]) -> usize {
        let left = self.length().saturating_sub(start);
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        match self {
            Content::Given(bytes) => {
                let start = usize::try_from(start).unwrap_or(usize::MAX).min(bytes.len());
                buffer[..count].copy_from_slice(&bytes[start..start + count]);
            }
            Content::MadeUp { .. } => {
                // No two neighbouring pages of 4 KiB are alike, so a hole or an exchange changes
                // the hash.
                let (mut position, mut rest) = (start, &mut buffer[..count]);
                while !rest.is_empty() {
                    let until_page_end = PAGE_BYTES - (position as usize % PAGE_BYTES);
                    let (page, after) = rest.split_at_mut(until_page_end.min(rest.len()));
                    let number = ((position / PAGE_BYTES as u64) as u8).wrapping_mul(0x9d);
                    for (index, byte) in page.iter_mut().enumerate() {
                        *byte = (position as u8).wrapping_add(index as u8) ^ number;
                    }
                    position += page.len() as u64;
                    rest = after;
                }
            }
        }
        count
    }

    /// All bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.length()).unwrap_or(0)];
        self.read_at(0, &mut bytes);
        bytes
    }

    /// SHA-256 in hexadecimal.
    pub fn sha256(&self) -> String {
        let mut hash = Sha256::new();
        self.for_each_chunk(|chunk| hash.update(chunk));
        hex(&hash.finalize())
    }

    /// The SHA-1 that git gives a blob of these bytes, in hexadecimal.
    pub fn git_sha1(&self) -> String {
        let mut hash = Sha1::new().chain_update(format!("blob {}\0", self.length()));
        self.for_each_chunk(|chunk| hash.update(chunk));
        hex(&hash.finalize())
    }

    fn for_each_chunk(&self, mut use_chunk: impl FnMut(&[u8])) {
        let (mut buffer, mut position) = (vec![0; 1 << 20], 0);
        loop {
            let count = self.read_at(position, &mut buffer);
            if count == 0 {
                return;
            }
            use_chunk(&buffer[..count]);
            position += count as u64;
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_bytes_follow_from_their_positions() {
        let content = Content::MadeUp { length: 10_000 };
        let whole = content.bytes();
        for start in [0, 1, 4095, 4096, 5000, 9999, 10_000] {
            let mut buffer = vec![0; 20_000];
            let count = content.read_at(start, &mut buffer);
            assert_eq!(buffer[..count], whole[start as usize..]);
        }
        assert_ne!(whole[..4096], whole[4096..8192]);
    }
}
