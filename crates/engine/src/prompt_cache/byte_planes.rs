//! Codes tensors without loss, so that their files are smaller.
//!
//! The high bytes of floating-point numbers (sign and exponent) take few values, the low ones nearly
//! all. So the bytes of each kind are put beside each other, a *plane*, and each plane is compressed by
//! itself, with Zstandard's entropy coder in the main. A plane that this does not shorten stays as it
//! is.
//!
//! ```text
//! tensor ▶ pieces of at most 131,072 numbers, the last one shorter
//! piece  ▶ a plane for each byte of a number, the least significant first
//! plane  ▶ u32, little-endian: the length that follows; then a Zstandard frame, or the plane itself
//!          where the length is the number of numbers
//! ```
//! Pieces fit in a core's cache, in which planes are put together again.

use std::io;

use zstd::bulk::{Compressor, Decompressor};

/// The most numbers of a piece: a Zstandard frame of one block.
const PIECE_LEN: usize = 1 << 17;
/// Higher levels look for repetitions, which keys and values do not have: slower, and no smaller.
const LEVEL: i32 = 1;

/// A tensor's bytes while it is coded: `width` bytes for each number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Numbers<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) width: usize,
}

/// Codes tensors, one after the other. Keeps what the next one can use.
pub(super) struct Encoder {
    compressor: Compressor<'static>,
    plane: Vec<u8>,
    frame: Vec<u8>,
}

impl Encoder {
    pub(super) fn new() -> io::Result<Self> {
        let mut compressor = Compressor::new(LEVEL)?;
        // The file's own hash covers every byte, and the pieces say how long they are.
        compressor.include_contentsize(false)?;
        compressor.include_checksum(false)?;
        Ok(Encoder { compressor, plane: Vec::new(), frame: Vec::new() })
    }

    /// Appends the coded tensor to `coded`.
    pub(super) fn encode(&mut self, numbers: Numbers<'_>, coded: &mut Vec<u8>) -> io::Result<()> {
        let Numbers { bytes, width } = numbers;
        for piece in bytes.chunks(PIECE_LEN * width) {
            for byte in 0..width {
                self.plane.clear();
                self.plane.extend(piece.iter().skip(byte).step_by(width));
                self.append_plane(coded)?;
            }
        }
        Ok(())
    }

    fn append_plane(&mut self, coded: &mut Vec<u8>) -> io::Result<()> {
        self.frame.clear();
        // One that would not be shorter does not fit, which is no failure.
        self.frame.reserve(self.plane.len());
        let compressed = self.compressor.compress_to_buffer(&self.plane, &mut self.frame);
        let stored = match compressed {
            Ok(length) if length < self.plane.len() => &self.frame[..length],
            _ => &self.plane,
        };
        // At most the numbers of a piece.
        coded.extend((stored.len() as u32).to_le_bytes());
        coded.extend(stored);
        Ok(())
    }
}

/// Decodes tensors, one after the other. Keeps what the next one can use.
pub(super) struct Decoder {
    decompressor: Decompressor<'static>,
    planes: Vec<Vec<u8>>,
}

impl Decoder {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Decoder { decompressor: Decompressor::new()?, planes: Vec::new() })
    }

    /// Fills `bytes` with the tensor, of `width` bytes for each number, that `coded` begins with, and
    /// moves `coded` behind it. Fails if that is no tensor of this length.
    pub(super) fn decode(
        &mut self,
        coded: &mut &[u8],
        bytes: &mut [u8],
        width: usize,
    ) -> io::Result<()> {
        self.planes.resize_with(width.max(self.planes.len()), Vec::new);
        for piece in bytes.chunks_mut(PIECE_LEN * width) {
            let planes = self.planes.iter_mut().take(width);
            let planes: Vec<&[u8]> = planes
                .map(|plane| next_plane(&mut self.decompressor, coded, plane, piece.len() / width))
                .collect::<io::Result<_>>()?;
            join(&planes, piece);
        }
        Ok(())
    }
}

/// The plane of `length` bytes that `coded` begins with: in it, or decoded into `plane`.
fn next_plane<'a, 'b: 'a>(
    decompressor: &mut Decompressor<'_>,
    coded: &mut &'b [u8],
    plane: &'a mut Vec<u8>,
    length: usize,
) -> io::Result<&'a [u8]> {
    let (num_stored, rest) = coded.split_first_chunk().ok_or_else(damaged)?;
    let num_stored = u32::from_le_bytes(*num_stored) as usize;
    let (stored, rest) = rest.split_at_checked(num_stored).ok_or_else(damaged)?;
    *coded = rest;
    if num_stored == length {
        return Ok(stored);
    }
    plane.clear();
    // Bounds what is decoded too: a frame that holds more fails.
    plane.reserve_exact(length);
    plane.resize(length, 0);
    match decompressor.decompress_to_buffer(stored, plane.as_mut_slice())? {
        decoded if decoded == length => Ok(plane),
        _ => Err(damaged()),
    }
}

/// Puts the numbers of a piece together from their planes, each as long as there are numbers.
fn join(planes: &[&[u8]], piece: &mut [u8]) {
    match planes {
        [low, high] => {
            let planes = low.iter().zip(*high);
            for (number, (low, high)) in piece.as_chunks_mut().0.iter_mut().zip(planes) {
                *number = [*low, *high];
            }
        }
        [first, second, third, fourth] => {
            let planes = first.iter().zip(*second).zip(third.iter().zip(*fourth));
            for (number, planes) in piece.as_chunks_mut().0.iter_mut().zip(planes) {
                let ((first, second), (third, fourth)) = planes;
                *number = [*first, *second, *third, *fourth];
            }
        }
        planes => {
            for (byte, plane) in planes.iter().enumerate() {
                let numbers = piece.iter_mut().skip(byte).step_by(planes.len());
                numbers.zip(*plane).for_each(|(number, plane)| *number = *plane);
            }
        }
    }
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a coded tensor is not as long as it should be")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    /// Numbers whose high bytes take few values, from a fixed sequence.
    fn numbers(count: usize, width: usize) -> Vec<u8> {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let byte =
            |at: usize, random: u8| if at % width == width - 1 { random & 7 } else { random };
        (0..count * width).map(|at| byte(at, next())).collect()
    }

    fn coded(bytes: &[u8], width: usize) -> Vec<u8> {
        let mut coded = Vec::new();
        Encoder::new().unwrap().encode(Numbers { bytes, width }, &mut coded).unwrap();
        coded
    }

    fn decoded(mut coded: &[u8], length: usize, width: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![7; length];
        Decoder::new().unwrap().decode(&mut coded, &mut bytes, width).ok()?;
        coded.is_empty().then_some(bytes)
    }

    #[test]
    fn numbers_of_every_width_and_length_come_back_as_they_were() {
        for width in [1, 2, 3, 4] {
            for count in [0, 1, 100, PIECE_LEN, PIECE_LEN + 1, 2 * PIECE_LEN + 77] {
                let bytes = numbers(count, width);
                let coded = coded(&bytes, width);
                assert_eq!(decoded(&coded, bytes.len(), width), Some(bytes), "{count} of {width}");
            }
        }
    }

    #[test]
    fn high_bytes_of_few_values_are_shortened_and_random_ones_cost_next_to_nothing() {
        let bytes = numbers(50_000, 2);
        assert!(
            coded(&bytes, 2).len() * 4 < bytes.len() * 3,
            "three bits are left of one in two bytes"
        );
        assert!(coded(&bytes, 1).len() < bytes.len());
        let random: Vec<u8> = bytes.iter().step_by(2).copied().collect();
        assert!(coded(&random, 1).len() <= random.len() + 4);
        assert!(coded(&[0; 100_000], 4).len() < 200);
    }

    #[test]
    fn what_is_no_tensor_of_this_length_is_refused() {
        let bytes = numbers(1000, 2);
        let whole = coded(&bytes, 2);
        for length in [0, 3, 4, 5, whole.len() - 1] {
            assert_eq!(decoded(&whole[..length], bytes.len(), 2), None, "{length} bytes");
        }
        for other in [bytes.len() - 2, bytes.len() + 2, 0] {
            assert_eq!(decoded(&whole, other, 2), None, "for {other} bytes");
        }
        let zeros = coded(&[0; 4000], 2);
        assert_eq!(decoded(&zeros, 2000, 2), None, "frames that hold more");
    }
}
