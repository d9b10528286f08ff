//! Rotary position embeddings (Su et al. 2021) with the scalings that llama checkpoints use.

use mlx_rs::error::Exception;
use mlx_rs::{Array, fast, ops};
use serde_json::Value;

use crate::LmError;
use crate::cache::RopeOffset;

/// config.json's `rope_scaling`, checked.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    Default,
    /// Positions are divided by a factor.
    Linear {
        /// The divisor.
        factor: f32,
    },
    /// Llama 3's: long wavelengths are scaled by a factor, short ones are not, those between are
    /// interpolated.
    Llama3 {
        /// The factor for long wavelengths.
        factor: f32,
        /// Wavelengths above `original / low` are long.
        low_freq_factor: f32,
        /// Wavelengths below `original / high` are short.
        high_freq_factor: f32,
        /// The context length of the original training.
        original_max_position_embeddings: f32,
    },
}

impl RopeScaling {
    /// Reads `rope_scaling`; `None` and null mean the default. Fails on types and values that are
    /// not supported.
    pub fn parse(scaling: Option<&Value>) -> Result<Self, LmError> {
        let Some(scaling) = scaling.filter(|scaling| !scaling.is_null()) else {
            return Ok(RopeScaling::Default);
        };
        let refuse = |allowed: &str| LmError::Config {
            name: "rope_scaling",
            value: scaling.to_string().chars().take(120).collect(),
            allowed: allowed.to_owned(),
        };
        let positive = |name: &str| {
            let number = scaling.get(name).and_then(Value::as_f64).map(|number| number as f32);
            number
                .filter(|number| number.is_finite() && *number > 0.0)
                .ok_or_else(|| refuse(&format!("'{name}' must be a number above 0")))
        };
        let kind = scaling.get("rope_type").or_else(|| scaling.get("type")).and_then(Value::as_str);
        match kind {
            Some("default") => Ok(RopeScaling::Default),
            Some("linear") => Ok(RopeScaling::Linear { factor: positive("factor")? }),
            Some("llama3") => {
                // The reference implementation's defaults for keys that the config leaves out.
                let or = |name: &str, default: f32| {
                    if scaling.get(name).is_some() { positive(name) } else { Ok(default) }
                };
                let low_freq_factor = or("low_freq_factor", 1.0)?;
                let high_freq_factor = or("high_freq_factor", 4.0)?;
                if high_freq_factor <= low_freq_factor {
                    return Err(refuse("high_freq_factor must be above low_freq_factor"));
                }
                Ok(RopeScaling::Llama3 {
                    factor: positive("factor")?,
                    low_freq_factor,
                    high_freq_factor,
                    original_max_position_embeddings: or(
                        "original_max_position_embeddings",
                        8192.0,
                    )?,
                })
            }
            _ => Err(refuse(
                "only the types default, linear and llama3 are supported for this architecture",
            )),
        }
    }
}

/// Rotates queries and keys by their position.
#[derive(Debug)]
pub struct Rope {
    dimensions: i32,
    traditional: bool,
    base: Option<f32>,
    scale: f32,
    freqs: Option<Array>, // [D / 2]
}

impl Rope {
    /// Rotary embeddings over the first `dimensions` of each head.
    pub fn new(dimensions: i32, base: f32, traditional: bool, scaling: &RopeScaling) -> Self {
        let mut rope = Rope { dimensions, traditional, base: Some(base), scale: 1.0, freqs: None };
        match *scaling {
            RopeScaling::Default => {}
            RopeScaling::Linear { factor } => rope.scale = 1.0 / factor,
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => {
                let low_wavelength = original_max_position_embeddings / low_freq_factor;
                let high_wavelength = original_max_position_embeddings / high_freq_factor;
                let freqs: Vec<f32> = (0..dimensions / 2)
                    .map(|pair| {
                        let freq = base.powf((2 * pair) as f32 / dimensions as f32);
                        let wavelength = 2.0 * std::f32::consts::PI * freq;
                        if wavelength > low_wavelength {
                            freq * factor
                        } else if wavelength < high_wavelength {
                            freq
                        } else {
                            let smooth = (original_max_position_embeddings / wavelength
                                - low_freq_factor)
                                / (high_freq_factor - low_freq_factor);
                            freq / ((1.0 - smooth) / factor + smooth)
                        }
                    })
                    .collect();
                rope.base = None;
                rope.freqs = Some(Array::from_slice(&freqs, &[dimensions / 2]));
            }
        }
        rope
    }

    /// The rotation angle per position of each pair of dimensions, f32 `[D / 2]`, and whether pairs
    /// are neighbours (traditional RoPE).
    pub fn angles(&self) -> Result<(Array, bool), Exception> {
        let pairs = self.dimensions / 2;
        let freqs = match (&self.freqs, self.base) {
            (Some(freqs), _) => freqs.clone(),
            (None, base) => {
                let base = base.unwrap_or(10_000.0);
                let freqs: Vec<f32> =
                    (0..pairs).map(|pair| base.powf(pair as f32 / pairs as f32)).collect();
                Array::from_slice(&freqs, &[pairs])
            }
        };
        let angles = ops::divide(Array::from_f32(self.scale), freqs)?;
        angles.eval()?;
        Ok((angles, self.traditional))
    }

    /// Rotates `x` `[B, H, L, D]`, whose first token has the position `offset`.
    pub fn forward(&self, x: &Array, offset: &RopeOffset) -> Result<Array, Exception> {
        let (dimensions, traditional, scale, freqs) =
            (self.dimensions, self.traditional, self.scale, self.freqs.as_ref());
        match offset {
            RopeOffset::Same(offset) => {
                fast::rope(x, dimensions, traditional, self.base, scale, *offset, freqs)
            }
            RopeOffset::PerRow(offsets) => {
                fast::rope_dynamic(x, dimensions, traditional, self.base, scale, offsets, freqs)
            }
        }
    }
}
