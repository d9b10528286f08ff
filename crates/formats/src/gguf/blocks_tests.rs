//! Blocks are read as the `gguf` package reads them (goldens of `tests/goldens/gguf_blocks.py`), and
//! so that MLX's arithmetic gives the same weights.

use serde_json::Value;

use super::super::affine::tests::affine_weights;
use super::super::affine::{Form, RoundTo, to_affine, to_mxfp4};
use super::*;

const GOLDENS: &str = include_str!("../../../../tests/goldens/gguf_blocks.json");

fn with_name(name: &str) -> GgmlType {
    let types = (0..64).map(GgmlType::from_id);
    let mut named = types.filter(|ggml_type| ggml_type.name() == name);
    named.next().unwrap_or_else(|| panic!("no type {name}"))
}

fn bytes_of(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// A zero's sign is the one thing that may differ.
fn bits_of(weights: &[f32]) -> Vec<u32> {
    weights.iter().map(|weight| (weight + 0.0).to_bits()).collect()
}

#[test]
fn every_type_is_read_as_the_gguf_package_reads_it() {
    let goldens: Value = serde_json::from_str(GOLDENS).unwrap();
    let goldens = goldens.as_object().unwrap();
    assert_eq!(goldens.len(), 13, "one of each type with blocks");
    for (name, golden) in goldens {
        let ggml_type = with_name(name);
        let bytes = bytes_of(golden["bytes"].as_str().unwrap());
        let expected: Vec<f32> = golden["weights"]
            .as_array()
            .unwrap()
            .iter()
            .map(|bits| f32::from_bits(bits.as_u64().unwrap() as u32))
            .collect();

        let (weights, block_bytes) = ggml_type.block().unwrap();
        let Grouping { group_size, bits } = grouping(ggml_type).unwrap();
        let mut block = Block::default();
        let mut found = Vec::new();
        for bytes in bytes.chunks_exact(block_bytes) {
            block.read(ggml_type, bytes);
            assert!(block.numbers[..weights].iter().all(|number| *number >> (bits - 1) < 2));
            found.extend((0..weights).map(|index| block.weight(index, group_size)));
        }
        assert_eq!(bits_of(&found), bits_of(&expected), "{name}");

        if let Form::Affine { bits, is_exact: true } = Form::of(ggml_type, RoundTo::Bits8).unwrap()
        {
            let affine = to_affine(ggml_type, bits, &bytes).unwrap();
            assert_eq!(bits_of(&affine_weights(&affine, bits)), bits_of(&expected), "{name}");
        }
    }
}

#[test]
fn an_f16_keeps_its_value() {
    for bits in 0..=u16::MAX {
        let found = f16_to_f32(bits.to_le_bytes());
        let (exponent, mantissa) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
        let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
        match exponent {
            0x1f => assert_eq!(
                (found.is_nan(), found.is_infinite()),
                (mantissa != 0.0, mantissa == 0.0),
                "{bits:#x}"
            ),
            0 => assert_eq!(f64::from(found), sign * mantissa * 2f64.powi(-24), "{bits:#x}"),
            _ => assert_eq!(
                f64::from(found),
                sign * (1.0 + mantissa / 1024.0) * 2f64.powi(exponent - 15),
                "{bits:#x}"
            ),
        }
    }
}

/// A code's sign, two bits of exponent and one of mantissa, as the format's description has them.
fn e2m1(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 1 & 3), f32::from(code & 1));
    let magnitude = match exponent {
        0 => mantissa / 2.0,
        _ => (1.0 + mantissa / 2.0) * 2f32.powi(exponent - 1),
    };
    if code & 8 == 0 { magnitude } else { -magnitude }
}

#[test]
fn mxfp4_is_taken_apart_into_the_same_weights() {
    let goldens: Value = serde_json::from_str(GOLDENS).unwrap();
    let bytes = bytes_of(goldens["MXFP4"]["bytes"].as_str().unwrap());
    let [words, exponents] = to_mxfp4(&bytes).unwrap();
    assert_eq!((words.len(), exponents.len()), (bytes.len() / 17 * 16, bytes.len() / 17));
    let codes = words.iter().flat_map(|byte| [byte & 15, byte >> 4]);
    let scale = |at: usize| 2f64.powi(i32::from(exponents[at / 32]) - 127);
    let found: Vec<f32> =
        codes.enumerate().map(|(at, code)| (f64::from(e2m1(code)) * scale(at)) as f32).collect();
    let expected = goldens["MXFP4"]["weights"].as_array().unwrap().iter();
    let expected: Vec<f32> =
        expected.map(|bits| f32::from_bits(bits.as_u64().unwrap() as u32)).collect();
    assert_eq!(bits_of(&found), bits_of(&expected));
    let mut spoiled = bytes;
    spoiled[0] = u8::MAX;
    assert!(to_mxfp4(&spoiled).is_err(), "the exponent that is no number");
}
