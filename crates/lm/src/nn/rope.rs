//! Rotary position embeddings (Su et al. 2021), and how they are scaled to longer contexts.

use std::cell::OnceCell;
use std::f64::consts::PI;

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};
use serde_json::Value;

use crate::LmError;
use crate::cache::RopeOffset;
use crate::config::check_positive;
use crate::nn::{Elementwise, fused, scalar};

/// A rotation as config.json describes it, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSpec {
    /// How many numbers of a head's vector MLX's operation is told to rotate, the first ones.
    dimensions: i32,
    /// How many of those it leaves as they are, by infinite wavelengths: the first ones.
    num_unrotated: i32,
    /// Whether pairs are neighbours, instead of half of the dimensions apart.
    traditional: bool,
    /// What positions are multiplied by.
    position_scale: f32,
    wavelengths: Wavelengths,
    /// What the rotated numbers are multiplied by.
    input_scale: f32,
}

/// The positions after which each pair has turned by one radian.
#[derive(Debug, Clone, PartialEq)]
enum Wavelengths {
    /// Powers of a base.
    Base(f32),
    /// One for each pair.
    Each(Vec<f32>),
}

impl RopeSpec {
    /// The rotation of `dimensions` with the config's `rope_theta` and `rope_scaling`, in a model
    /// with a context of `context` tokens. Fails on kinds and values that are not supported.
    pub fn check(
        dimensions: i32,
        rope_theta: f64,
        traditional: bool,
        scaling: Option<&Value>,
        context: i32,
    ) -> Result<Self, LmError> {
        let base = check_positive("rope_theta", rope_theta)?;
        if dimensions < 2 || dimensions % 2 != 0 {
            return Err(LmError::Config {
                name: "partial_rotary_factor",
                value: format!("{dimensions} rotated numbers"),
                allowed: "a whole number of pairs of a head's numbers is rotated".to_owned(),
            });
        }
        let mut rope = RopeSpec {
            dimensions,
            num_unrotated: 0,
            traditional,
            position_scale: 1.0,
            wavelengths: Wavelengths::Base(base),
            input_scale: 1.0,
        };
        let Some(value) = scaling.filter(|scaling| !scaling.is_null()) else { return Ok(rope) };
        let keys = Keys { value, base };
        match keys.kind() {
            // What mlx-lm calls dynamic changes the base only beyond the context; with mrope, parts
            // of a head are rotated by other positions only where there are images.
            Some("default" | "dynamic" | "mrope") => {}
            Some("linear") => rope.position_scale = 1.0 / keys.positive("factor")?,
            Some("llama3") => rope.wavelengths = keys.llama3(dimensions)?,
            Some("yarn" | "deepseek_yarn") => {
                (rope.wavelengths, rope.input_scale) = keys.yarn(dimensions)?;
            }
            Some("proportional") => rope.wavelengths = keys.proportional(dimensions)?,
            Some("longrope" | "su") => {
                (rope.wavelengths, rope.input_scale) = keys.longrope(dimensions, context)?;
            }
            _ => {
                return Err(keys.refused(
                    "the types default, linear, dynamic, llama3, yarn, longrope and proportional are \
                     supported",
                ));
            }
        }
        // A pair with an infinite one does not turn.
        let may_be_infinite = keys.kind() == Some("proportional");
        let is_allowed =
            |wavelength: &f32| *wavelength > 0.0 && (may_be_infinite || wavelength.is_finite());
        if let Wavelengths::Each(each) = &rope.wavelengths
            && !each.iter().all(is_allowed)
        {
            return Err(keys.refused("its numbers must give wavelengths above 0"));
        }
        Ok(rope)
    }

    /// Whether rotated numbers are scaled too.
    pub fn scales_input(&self) -> bool {
        self.input_scale != 1.0
    }

    fn each_wavelength(&self) -> Vec<f32> {
        let pairs = self.dimensions / 2;
        match &self.wavelengths {
            Wavelengths::Each(each) => each.clone(),
            Wavelengths::Base(base) => {
                (0..pairs).map(|pair| base.powf(pair as f32 / pairs as f32)).collect()
            }
        }
    }
}

/// By how much queries and keys of latent attention are longer each, so that scores are sharper where
/// positions are scaled: DeepSeek's use of YaRN's `mscale_all_dim`. Without that key, 1.
pub fn yarn_magnitude(scaling: Option<&Value>) -> Result<f32, LmError> {
    let Some(value) = scaling.filter(|value| value.get("mscale_all_dim").is_some()) else {
        return Ok(1.0);
    };
    let keys = Keys { value, base: 1.0 };
    let magnitude = keys.magnitude("mscale_all_dim", 0.0, keys.positive_or("factor", 1.0)?);
    match magnitude.is_finite() && magnitude > 0.0 && (magnitude * magnitude).is_normal() {
        true => Ok(magnitude),
        false => Err(keys.refused("mscale_all_dim must give a scale above 0")),
    }
}

/// The keys of `rope_scaling`, with the base.
struct Keys<'a> {
    value: &'a Value,
    base: f32,
}

impl Keys<'_> {
    fn refused(&self, allowed: &str) -> LmError {
        LmError::Config {
            name: "rope_scaling",
            value: self.value.to_string().chars().take(120).collect(),
            allowed: allowed.to_owned(),
        }
    }

    fn kind(&self) -> Option<&str> {
        let kind = self.value.get("rope_type").or_else(|| self.value.get("type"));
        kind.and_then(Value::as_str)
    }

    fn positive(&self, name: &str) -> Result<f32, LmError> {
        let number = self.value.get(name).and_then(Value::as_f64).map(|number| number as f32);
        number
            .filter(|number| number.is_finite() && *number > 0.0)
            .ok_or_else(|| self.refused(&format!("'{name}' must be a number above 0")))
    }

    /// As [`Keys::positive`], with the reference implementation's default for a key that is not
    /// there.
    fn positive_or(&self, name: &str, default: f32) -> Result<f32, LmError> {
        match self.value.get(name) {
            Some(value) if !value.is_null() => self.positive(name),
            _ => Ok(default),
        }
    }

    /// The wavelength of each pair without scaling.
    fn unscaled(&self, dimensions: i32) -> impl Iterator<Item = f32> {
        let base = self.base;
        (0..dimensions / 2).map(move |pair| base.powf((2 * pair) as f32 / dimensions as f32))
    }

    /// Llama 3's: long wavelengths are scaled by a factor, short ones are not, those between are
    /// interpolated.
    fn llama3(&self, dimensions: i32) -> Result<Wavelengths, LmError> {
        let factor = self.positive("factor")?;
        let low_factor = self.positive_or("low_freq_factor", 1.0)?;
        let high_factor = self.positive_or("high_freq_factor", 4.0)?;
        if high_factor <= low_factor {
            return Err(self.refused("high_freq_factor must be above low_freq_factor"));
        }
        let original = self.positive_or("original_max_position_embeddings", 8192.0)?;
        let scaled = |wavelength: f32| {
            // In positions of a whole turn.
            let turn = 2.0 * PI as f32 * wavelength;
            if turn > original / low_factor {
                wavelength * factor
            } else if turn < original / high_factor {
                wavelength
            } else {
                let smooth = (original / turn - low_factor) / (high_factor - low_factor);
                wavelength / ((1.0 - smooth) / factor + smooth)
            }
        };
        Ok(Wavelengths::Each(self.unscaled(dimensions).map(scaled).collect()))
    }

    /// YaRN's (Peng et al. 2023): pairs that turn often within the original context are not scaled,
    /// those that turn seldom are by a factor, those between are interpolated. Rotated numbers are
    /// scaled too.
    fn yarn(&self, dimensions: i32) -> Result<(Wavelengths, f32), LmError> {
        let factor = self.positive("factor")?;
        let original = self.positive_or("original_max_position_embeddings", 4096.0)?;
        let pair_with_turns = |turns: f32| {
            let turn = f64::from(original) / (f64::from(turns) * 2.0 * PI);
            f64::from(dimensions) * turn.ln() / (2.0 * f64::from(self.base).ln())
        };
        let first = pair_with_turns(self.positive_or("beta_fast", 32.0)?).floor().max(0.0);
        let last = pair_with_turns(self.positive_or("beta_slow", 1.0)?).ceil();
        let last = last.min(f64::from(dimensions - 1));
        let span = if first == last { 0.001 } else { last - first };
        let scaled = |(pair, wavelength): (usize, f32)| {
            let share = ((pair as f64 - first) / span).clamp(0.0, 1.0) as f32; // of the scaled one
            let all = factor * wavelength;
            all * wavelength / (all * (1.0 - share) + wavelength * share)
        };
        let each = self.unscaled(dimensions).enumerate().map(scaled).collect();
        let magnitude = |name, default| self.magnitude(name, default, factor);
        let input_scale = magnitude("mscale", 1.0) / magnitude("mscale_all_dim", 0.0);
        if !(input_scale.is_finite() && input_scale > 0.0) {
            return Err(self.refused("mscale and mscale_all_dim must give a scale above 0"));
        }
        Ok((Wavelengths::Each(each), input_scale))
    }

    /// Gemma 4's: of all pairs the first turn as they would if all did, and the others do not.
    fn proportional(&self, dimensions: i32) -> Result<Wavelengths, LmError> {
        let share = self.positive_or("partial_rotary_factor", 1.0)?;
        let rotated = (f64::from(dimensions) * f64::from(share)) as i32;
        if rotated > dimensions || rotated % 2 != 0 {
            return Err(self.refused("'partial_rotary_factor' must give pairs of a head's numbers"));
        }
        let factor = self.positive_or("factor", 1.0)?;
        let of_pair = |(pair, wavelength): (usize, f32)| {
            if pair < rotated as usize / 2 { factor * wavelength } else { f32::INFINITY }
        };
        Ok(Wavelengths::Each(self.unscaled(dimensions).enumerate().map(of_pair).collect()))
    }

    /// By how much YaRN scales what it rotates, for its key `name`.
    fn magnitude(&self, name: &str, default: f64, factor: f32) -> f32 {
        let number = self.value.get(name).and_then(Value::as_f64).unwrap_or(default) as f32;
        if factor <= 1.0 { 1.0 } else { 0.1 * number * factor.ln() + 1.0 }
    }

    /// LongRoPE's (Ding et al. 2024): a factor for each pair. Those for long contexts are used for
    /// all, as in the reference, so that what was cached stays right when a context becomes long.
    fn longrope(&self, dimensions: i32, context: i32) -> Result<(Wavelengths, f32), LmError> {
        let original = self.positive("original_max_position_embeddings")?;
        if original <= 1.0 {
            return Err(self.refused("'original_max_position_embeddings' must be above 1"));
        }
        let pairs = dimensions as usize / 2;
        let factors: Vec<f32> = match self.value.get("long_factor") {
            Some(Value::Array(list)) => {
                list.iter().filter_map(Value::as_f64).map(|factor| factor as f32).collect()
            }
            _ => Vec::new(),
        };
        if factors.len() != pairs {
            let allowed = format!("'long_factor' must be a list of {pairs} numbers");
            return Err(self.refused(&allowed));
        }
        let scaled = self.unscaled(dimensions).zip(factors);
        let each = scaled.map(|(wavelength, factor)| wavelength * factor).collect();
        let factor = context as f32 / original;
        let usual = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() };
        let input_scale = self.positive_or("long_mscale", usual)?;
        Ok((Wavelengths::Each(each), input_scale))
    }
}

/// Rotates queries and keys by their position.
#[derive(Debug)]
pub struct Rope {
    spec: RopeSpec,
    base: Option<f32>,
    wavelengths: Option<Array>, // [R / 2]
    /// What a head's numbers are multiplied by before they are rotated: a scalar, or `[D]`.
    input_scales: OnceCell<Array>,
    scaled: Elementwise<2>,
}

impl Rope {
    /// The rotation of `spec`.
    pub fn new(spec: RopeSpec) -> Self {
        let (base, wavelengths) = match &spec.wavelengths {
            Wavelengths::Base(base) => (Some(*base), None),
            Wavelengths::Each(each) => (None, Some(Array::from_slice(each, &[each.len() as i32]))),
        };
        let scaled = Elementwise::new(|[x, scales]| ops::multiply(x, scales));
        Rope { spec, base, wavelengths, input_scales: OnceCell::new(), scaled }
    }

    /// The same rotation of vectors whose first `count` numbers are left as they are: one operation in
    /// place of cutting, rotating a part, and joining. `None` unless pairs are neighbours and `count` is
    /// even.
    pub fn after_unrotated(&self, count: i32) -> Option<Self> {
        if !self.spec.traditional || count % 2 != 0 {
            return None;
        }
        let unrotated = (0..count / 2).map(|_| f32::INFINITY);
        let wavelengths = unrotated.chain(self.spec.each_wavelength()).collect();
        Some(Rope::new(RopeSpec {
            dimensions: count + self.spec.dimensions,
            num_unrotated: count,
            wavelengths: Wavelengths::Each(wavelengths),
            ..self.spec
        }))
    }

    /// The rotation angle per position of each pair of dimensions, f32 `[R / 2]`, and whether pairs
    /// are neighbours. `None` if more is done than to rotate.
    pub fn angles(&self) -> Result<Option<(Array, bool)>, Exception> {
        if self.spec.scales_input() {
            return Ok(None);
        }
        let wavelengths = self.spec.each_wavelength();
        let wavelengths = Array::from_slice(&wavelengths, &[wavelengths.len() as i32]);
        let angles = ops::divide(Array::from_f32(self.spec.position_scale), wavelengths)?;
        angles.eval()?;
        Ok(Some((angles, self.spec.traditional)))
    }

    /// Rotates `x` `[B, H, L, D]`, whose first token has the position `offset`.
    pub fn forward(&self, x: &Array, offset: &RopeOffset) -> Result<Array, Exception> {
        let &RopeSpec { dimensions, traditional, position_scale: scale, .. } = &self.spec;
        let (base, freqs) = (self.base, self.wavelengths.as_ref());
        let scaled;
        let x = match self.spec.scales_input() {
            true => {
                scaled = self.scaled(x)?;
                &scaled
            }
            false => x,
        };
        match offset {
            RopeOffset::Same(offset) => {
                fused::rope(x, dimensions, traditional, base, scale, *offset, freqs)
            }
            RopeOffset::PerRow(offsets) => {
                fused::rope_dynamic(x, dimensions, traditional, base, scale, offsets, freqs)
            }
        }
    }

    /// `x` with the numbers to be rotated scaled.
    fn scaled(&self, x: &Array) -> Result<Array, Exception> {
        if let Some(scales) = self.input_scales.get() {
            return self.scaled.call([x, scales]);
        }
        let rotated = self.spec.num_unrotated..self.spec.dimensions;
        let all = x.dim(-1);
        let scale = |index| if rotated.contains(&index) { self.spec.input_scale } else { 1.0 };
        let scales: Vec<f32> = (0..all).map(scale).collect();
        // The type is that of the first vectors, as all have it.
        let scales = match rotated.len() == all as usize {
            true => scalar(self.spec.input_scale, x.dtype())?,
            false => Array::from_slice(&scales, &[all]).as_dtype(x.dtype())?,
        };
        scales.eval()?;
        self.scaled.call([x, self.input_scales.get_or_init(|| scales)])
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ffi;

    fn refused(scaling: Value) -> String {
        let spec = RopeSpec::check(8, 10_000.0, false, Some(&scaling), 4096);
        spec.expect_err("refused").to_string()
    }

    #[test]
    fn what_scales_nothing_is_the_plain_rotation() {
        let plain = RopeSpec::check(8, 10_000.0, true, None, 4096).expect("a rotation");
        for scaling in [
            json!(null),
            json!({"type": "default"}),
            json!({"rope_type": "dynamic", "factor": 4.0}),
            json!({"type": "linear", "factor": 1.0}),
        ] {
            let found = RopeSpec::check(8, 10_000.0, true, Some(&scaling), 4096);
            assert_eq!(found.expect("a rotation"), plain, "{scaling}");
        }
    }

    #[test]
    fn what_is_unknown_or_gives_no_rotation_is_refused() {
        for (scaling, named) in [
            (json!({"type": "spiral", "factor": 2.0}), "spiral"),
            (json!({"factor": 2.0}), "are supported"),
            (json!("linear"), "are supported"),
            (json!({"type": "linear", "factor": 0}), "'factor' must be"),
            (json!({"type": "linear", "factor": "2"}), "'factor' must be"),
            (json!({"type": "llama3", "factor": 1e300}), "'factor' must be"),
            (json!({"type": "yarn", "factor": 2.0, "mscale_all_dim": -1e9}), "mscale"),
            (json!({"type": "yarn"}), "'factor' must be"),
            (json!({"type": "proportional", "partial_rotary_factor": 0.4}), "pairs of a head"),
            (json!({"type": "proportional", "partial_rotary_factor": 1.5}), "pairs of a head"),
            (json!({"type": "longrope", "long_factor": [1, 1, 1, 1]}), "original_max"),
            (
                json!({"type": "longrope", "original_max_position_embeddings": 16,
                       "long_factor": [1, 1, 1, 1], "long_mscale": 0}),
                "'long_mscale' must be",
            ),
            (
                json!({"type": "su", "original_max_position_embeddings": 16, "long_factor": [1]}),
                "a list of 4 numbers",
            ),
            (
                json!({"type": "longrope", "original_max_position_embeddings": 16,
                       "long_factor": [1, -2, 1, 1]}),
                "wavelengths above 0",
            ),
        ] {
            let found = refused(scaling.clone());
            assert!(found.contains(named), "{scaling}: {found}");
        }
        for dimensions in [0, 7] {
            let found = RopeSpec::check(dimensions, 10_000.0, false, None, 4096);
            assert!(found.is_err(), "{dimensions}");
        }
        let yarn = json!({"type": "yarn", "factor": 2.0});
        RopeSpec::check(8, 1.0, false, Some(&yarn), 4096).expect_err("a base without a logarithm");
    }

    #[test]
    fn numbers_before_a_rotation_stay_as_they_are() {
        let scaling = json!({"type": "yarn", "factor": 4.0, "mscale": 2.0, "mscale_all_dim": 1.0});
        let x = mlx_rs::random::uniform::<_, f32>(-1.0, 1.0, &[2, 2, 5, 14], None).expect("x");
        let parts = [(0, 6), (6, 14)]
            .map(|(from, to)| ffi::slice(&x, &[0, 0, 0, from], &[2, 2, 5, to]).expect("a part"));
        let per_row = RopeOffset::PerRow(Array::from_slice(&[900, 3], &[2]));
        for offset in [RopeOffset::Same(900), per_row] {
            for scaling in [None, Some(&scaling)] {
                let spec = RopeSpec::check(8, 10_000.0, true, scaling, 4096).expect("a rotation");
                let rope = Rope::new(spec);
                let rotated = rope.forward(&parts[1], &offset).expect("rotated");
                let expected = ops::concatenate(&[&parts[0], &rotated], -1).expect("joined");
                let whole = rope.after_unrotated(6).expect("whole pairs");
                let found = whole.forward(&x, &offset).expect("rotated");
                let is_equal = found.all_close(&expected, 1e-5, 1e-5, None).expect("compared");
                assert!(is_equal, "{offset:?}, {scaling:?}");
                assert!(rope.after_unrotated(5).is_none(), "a pair would be half rotated");
            }
        }
    }
}
