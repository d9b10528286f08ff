//! The cache settings of a kit, and LM Studio's rules for combining them.

use crate::cache::KvQuantization;
use crate::generate::check_prefill_step_size;
use crate::{GenerateOptions, LmError};

/// Settings of a [`ModelKit`](super::ModelKit).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelKitOptions {
    /// Bounds the caches to this many tokens. Ignored with `kv_bits`, because a quantized cache
    /// cannot rotate.
    pub max_kv_size: Option<usize>,
    /// Quantizes keys and values to 2, 3, 4, 6 or 8 bits.
    pub kv_bits: Option<i32>,
    /// How many numbers share a scale: 32, 64 or 128; `None` for 64. Only with `kv_bits`.
    pub kv_group_size: Option<i32>,
    /// How many tokens a cache holds before it is quantized; `None` for 0. Only with `kv_bits`.
    pub quantized_kv_start: Option<usize>,
    /// Prompt tokens per forward pass, at least 1; `None` for 2048.
    pub prefill_step_size: Option<usize>,
}

impl ModelKitOptions {
    /// mlx-engine's `kv_group_size`.
    pub const DEFAULT_KV_GROUP_SIZE: i32 = 64;

    /// The options in effect. Fails on values outside their ranges, and on settings of quantization
    /// without `kv_bits`.
    pub(super) fn checked(mut self) -> Result<Self, LmError> {
        check_prefill_step_size(self.prefill_step_size())?;
        match self.kv_quantization() {
            Some(quantization) => {
                quantization.check()?;
                self.max_kv_size = None;
            }
            None => {
                let refuse = |name, value: String| {
                    Err(LmError::OutOfRange {
                        name,
                        value,
                        allowed: "left out unless kv_bits is given".to_owned(),
                    })
                };
                if let Some(group_size) = self.kv_group_size {
                    return refuse("kv_group_size", group_size.to_string());
                }
                if let Some(start) = self.quantized_kv_start {
                    return refuse("quantized_kv_start", start.to_string());
                }
            }
        }
        Ok(self)
    }

    pub(super) fn kv_quantization(&self) -> Option<KvQuantization> {
        Some(KvQuantization {
            bits: self.kv_bits?,
            group_size: self.kv_group_size.unwrap_or(Self::DEFAULT_KV_GROUP_SIZE),
            start: self.quantized_kv_start.unwrap_or(0),
        })
    }

    pub(super) fn prefill_step_size(&self) -> usize {
        self.prefill_step_size.unwrap_or(GenerateOptions::DEFAULT_PREFILL_STEP_SIZE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        options: ModelKitOptions,
        expected: Result<(Option<usize>, Option<KvQuantization>), &str>,
    ) {
        let found = options
            .clone()
            .checked()
            .map(|options| (options.max_kv_size, options.kv_quantization()));
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{options:?}"),
            (Err(error), Err(name)) => {
                assert!(error.to_string().contains(name), "{options:?}: {error}")
            }
            (found, expected) => panic!("{options:?}: {found:?} instead of {expected:?}"),
        }
    }

    fn quantized(bits: i32) -> ModelKitOptions {
        ModelKitOptions { kv_bits: Some(bits), ..ModelKitOptions::default() }
    }

    #[test]
    fn without_settings_nothing_is_bounded_or_quantized() {
        check(ModelKitOptions::default(), Ok((None, None)));
        check(
            ModelKitOptions { max_kv_size: Some(100), ..ModelKitOptions::default() },
            Ok((Some(100), None)),
        );
    }

    #[test]
    fn quantization_has_defaults_and_switches_the_bound_off() {
        let defaults = KvQuantization { bits: 4, group_size: 64, start: 0 };
        check(quantized(4), Ok((None, Some(defaults))));
        check(
            ModelKitOptions { max_kv_size: Some(100), ..quantized(4) },
            Ok((None, Some(defaults))),
        );
        let options = ModelKitOptions {
            kv_group_size: Some(32),
            quantized_kv_start: Some(7),
            ..quantized(8)
        };
        check(options, Ok((None, Some(KvQuantization { bits: 8, group_size: 32, start: 7 }))));
    }

    #[test]
    fn settings_outside_their_range_are_refused_by_name() {
        for bits in [0, 1, 5, 7, 16] {
            check(quantized(bits), Err("kv_bits"));
        }
        for group_size in [0, 16, 48, 256] {
            check(
                ModelKitOptions { kv_group_size: Some(group_size), ..quantized(4) },
                Err("kv_group_size"),
            );
        }
        check(
            ModelKitOptions { prefill_step_size: Some(0), ..ModelKitOptions::default() },
            Err("prefill_step_size"),
        );
    }

    #[test]
    fn settings_of_quantization_need_kv_bits() {
        check(
            ModelKitOptions { kv_group_size: Some(64), ..ModelKitOptions::default() },
            Err("kv_group_size"),
        );
        check(
            ModelKitOptions { quantized_kv_start: Some(0), ..ModelKitOptions::default() },
            Err("quantized_kv_start"),
        );
    }
}
