//! The tensors that an architecture takes from a model's weight files: names and shapes. With them,
//! a model is counted before it is downloaded, and the headers of its files are checked without a
//! weight being read.

use std::collections::BTreeMap;
use std::path::Path;

use cairn_formats::safetensors::TensorEntry;

use crate::LmError;
use crate::config::{Quantization, QuantizationConfig};
use crate::nn::stored_experts::{BLOCK_BYTES, BLOCKS, Joined, single_names};
use crate::nn::{ExpertForm, SharedExpertKind, SharedForm, StoredExperts};

/// What an architecture takes, as its `load` does. Tests compare the two.
#[derive(Debug, Clone, Default)]
pub(crate) struct TensorList {
    needed: Vec<Needed>,
    left: Vec<Left>,
}

/// Tensors that files may hold, and that are not taken.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Left {
    /// Of the layers from this number on, those whose names in the layer begin so.
    OfLayersFrom(usize, &'static str),
    /// Those with this in their names.
    Containing(&'static str),
}

impl Left {
    fn is(self, name: &str) -> bool {
        match self {
            Left::Containing(part) => name.contains(part),
            Left::OfLayersFrom(first, beginning) => {
                let layer = name.strip_prefix("model.layers.");
                let Some((number, rest)) = layer.and_then(|layer| layer.split_once('.')) else {
                    return false;
                };
                number.parse::<usize>().is_ok_and(|number| number >= first)
                    && rest.starts_with(beginning)
            }
        }
    }
}

/// A tensor, or several of one kind.
#[derive(Debug, Clone)]
pub(crate) struct Needed {
    /// The path of the layer, such as "model.layers.0.mlp.up_proj", or the tensor's whole name.
    pub(crate) path: String,
    pub(crate) kind: Kind,
}

#[derive(Debug, Clone)]
pub(crate) enum Kind {
    /// `weight` `[outputs, inputs]`, dense or packed.
    Matrix { inputs: i32, outputs: i32 },
    /// As a matrix; files without it are complete too.
    OptionalMatrix { inputs: i32, outputs: i32 },
    /// A matrix below this path, under its usual name or its number, see [`single_names`].
    Numbered { name: &'static str, inputs: i32, outputs: i32 },
    /// A matrix of a gated network below this path, or two matrices below another: `input_linear` of
    /// gate and rest, and `output_linear`.
    OrLinears { name: &'static str, linears: String, inputs: i32, outputs: i32 },
    /// A matrix for each expert.
    Experts { name: &'static str, stored: StoredExperts, count: i32, inputs: i32, outputs: i32 },
    /// The biases of these matrices.
    ExpertBiases { name: &'static str, stored: StoredExperts, count: i32, outputs: i32 },
    /// A matrix for each head, `weight` `[heads, outputs, inputs]` in `embed_q` or `unembed_out`, or
    /// both as one, `kv_b_proj` `[rows, rank]`.
    Heads { name: &'static str, heads: i32, inputs: i32, outputs: i32, joined: [i32; 2] },
    /// A tensor that is never packed, in one of these shapes, which have the same numbers.
    Plain { shapes: Vec<Vec<i32>>, is_optional: bool },
}

impl TensorList {
    /// Adds a matrix, `weight` `[outputs, inputs]` at `path`.
    pub(crate) fn matrix(&mut self, path: impl Into<String>, inputs: i32, outputs: i32) {
        self.needed.push(Needed { path: path.into(), kind: Kind::Matrix { inputs, outputs } });
    }

    /// Adds a matrix that files may lack.
    pub(crate) fn optional_matrix(&mut self, path: impl Into<String>, inputs: i32, outputs: i32) {
        self.needed
            .push(Needed { path: path.into(), kind: Kind::OptionalMatrix { inputs, outputs } });
    }

    /// Adds the gated experts of the block at `path`, and the router before them.
    pub(crate) fn experts(
        &mut self,
        path: &str,
        hidden: i32,
        intermediate: i32,
        count: i32,
        form: ExpertForm,
    ) {
        let ExpertForm { router, router_has_bias, stored, has_bias, .. } = form;
        self.matrix(format!("{path}.{router}"), hidden, count);
        if router_has_bias {
            self.plain(format!("{path}.{router}.bias"), &[count]);
        }
        let up = (hidden, intermediate);
        let all = [("gate_proj", up), ("up_proj", up), ("down_proj", (intermediate, hidden))];
        let has_no_gate = stored == StoredExperts::Ungated;
        for (name, (inputs, outputs)) in all.into_iter().skip(usize::from(has_no_gate)) {
            // Before the matrices, whose names tell how both are stored.
            let biases = Kind::ExpertBiases { name, stored, count, outputs };
            let matrices = Kind::Experts { name, stored, count, inputs, outputs };
            for kind in has_bias.then_some(biases).into_iter().chain([matrices]) {
                self.needed.push(Needed { path: path.to_owned(), kind });
            }
        }
    }

    /// Adds an expert that all tokens use to the block or layer at `path`, where its form says.
    pub(crate) fn shared_expert(&mut self, path: &str, hidden: i32, kind: SharedExpertKind) {
        let expert = format!("{path}.{}", kind.name);
        if kind.form == SharedForm::LinearsInLayer {
            self.matrix(format!("{expert}.input_linear"), hidden, 2 * kind.intermediate);
            self.matrix(format!("{expert}.output_linear"), kind.intermediate, hidden);
            return;
        }
        match kind.form {
            SharedForm::Ungated => {
                self.matrix(format!("{expert}.up_proj"), hidden, kind.intermediate);
                self.matrix(format!("{expert}.down_proj"), kind.intermediate, hidden);
            }
            _ => self.gated_mlp(&expert, hidden, kind.intermediate),
        }
        if kind.has_bias {
            if kind.form != SharedForm::Ungated {
                self.plain(format!("{expert}.gate_proj.bias"), &[kind.intermediate]);
            }
            self.plain(format!("{expert}.up_proj.bias"), &[kind.intermediate]);
            self.plain(format!("{expert}.down_proj.bias"), &[hidden]);
        }
        if let Some(share) = kind.share {
            self.matrix(format!("{path}.{share}"), hidden, 1);
        }
    }

    /// Adds a gated feed-forward network at `path`.
    pub(crate) fn gated_mlp(&mut self, path: &str, hidden: i32, intermediate: i32) {
        self.matrix(format!("{path}.gate_proj"), hidden, intermediate);
        self.matrix(format!("{path}.up_proj"), hidden, intermediate);
        self.matrix(format!("{path}.down_proj"), intermediate, hidden);
    }

    /// As [`TensorList::gated_mlp`], of a network whose matrices may be called `w1`, `w3` and `w2`.
    pub(crate) fn numbered_mlp(&mut self, path: &str, hidden: i32, intermediate: i32) {
        let up = (hidden, intermediate);
        for (name, (inputs, outputs)) in
            [("gate_proj", up), ("up_proj", up), ("down_proj", (intermediate, hidden))]
        {
            let kind = Kind::Numbered { name, inputs, outputs };
            self.needed.push(Needed { path: path.to_owned(), kind });
        }
    }

    /// As [`TensorList::gated_mlp`], of a network that files may have as two matrices at `linears`.
    pub(crate) fn mlp_or_linears(
        &mut self,
        path: &str,
        linears: &str,
        hidden: i32,
        intermediate: i32,
    ) {
        let up = (hidden, intermediate);
        for (name, (inputs, outputs)) in
            [("gate_proj", up), ("up_proj", up), ("down_proj", (intermediate, hidden))]
        {
            let linears = linears.to_owned();
            let kind = Kind::OrLinears { name, linears, inputs, outputs };
            self.needed.push(Needed { path: path.to_owned(), kind });
        }
    }

    /// Adds the matrices of latent attention at `path`: for each head `embed_q`, `[rank, keys]`, and
    /// `unembed_out`, `[values, rank]`.
    pub(crate) fn latent_heads(
        &mut self,
        path: &str,
        heads: i32,
        rank: i32,
        [keys, values]: [i32; 2],
    ) {
        let joined = [heads * (keys + values), rank];
        for (name, inputs, outputs) in [("embed_q", keys, rank), ("unembed_out", rank, values)] {
            let kind = Kind::Heads { name, heads, inputs, outputs, joined };
            self.needed.push(Needed { path: path.to_owned(), kind });
        }
    }

    /// Takes out what is at `path`.
    pub(crate) fn remove(&mut self, path: &str) {
        self.needed.retain(|needed| needed.path != path);
    }

    /// Files may hold these.
    pub(crate) fn leave(&mut self, left: Left) {
        self.left.push(left);
    }

    /// Whether the tensor `name` is one of those that files may hold and that are not taken.
    pub(crate) fn leaves(&self, name: &str) -> bool {
        self.left.iter().any(|left| left.is(name))
    }

    /// Adds a tensor of this name, which is never packed.
    pub(crate) fn plain(&mut self, name: impl Into<String>, shape: &[i32]) {
        self.plain_in(name, vec![shape.to_vec()]);
    }

    /// As [`TensorList::plain`], for a tensor that checkpoints store in one of several shapes.
    pub(crate) fn plain_in(&mut self, name: impl Into<String>, shapes: Vec<Vec<i32>>) {
        self.plain_or_none(name, shapes, false);
    }

    /// As [`TensorList::plain_in`], for a tensor that files may lack if it `is_optional`.
    pub(crate) fn plain_or_none(
        &mut self,
        name: impl Into<String>,
        shapes: Vec<Vec<i32>>,
        is_optional: bool,
    ) {
        self.needed.push(Needed { path: name.into(), kind: Kind::Plain { shapes, is_optional } });
    }

    /// All of it, in the order of the layers.
    pub(crate) fn needed(&self) -> &[Needed] {
        &self.needed
    }

    /// How many layers have tensors of their own.
    pub(crate) fn num_layers(&self) -> usize {
        let number = |needed: &Needed| {
            let (_, layer) = needed.path.split_once(".layers.")?;
            layer.split('.').next()?.parse::<usize>().ok()
        };
        self.needed.iter().filter_map(number).max().map_or(0, |last| last + 1)
    }

    /// The numbers that were trained, with those that files may lack or without.
    pub(crate) fn num_parameters(&self, with_optional: bool) -> u64 {
        self.sum(with_optional, |_, numbers| numbers)
    }

    /// Bytes of these tensors in files, if every matrix that can be packed is, and all other numbers
    /// have `float_bytes`. A group takes two floating-point numbers, its scale and bias, or one byte.
    pub(crate) fn stored_bytes(
        &self,
        quantization: &QuantizationConfig,
        float_bytes: u64,
        with_optional: bool,
    ) -> u64 {
        self.sum(with_optional, |needed, numbers| match needed.packing(quantization) {
            None => numbers.saturating_mul(float_bytes),
            Some(Quantization { mode, group_size, bits }) => {
                let packed = numbers / 8 * bits as u64;
                let group_bytes = if mode.has_biases() { 2 * float_bytes } else { 1 };
                packed.saturating_add(numbers / group_size as u64 * group_bytes)
            }
        })
    }

    /// The sum over all tensors of a function of each and its numbers. Settings are so bounded that
    /// one tensor fits; the sum of a hostile config's may not.
    fn sum(&self, with_optional: bool, of: impl Fn(&Needed, u64) -> u64) -> u64 {
        let counted = self.needed.iter().filter(|needed| with_optional || !needed.is_optional());
        counted
            .map(|needed| of(needed, needed.num_numbers()))
            .fold(0, |sum, one| sum.saturating_add(one))
    }

    /// Compares all tensors of the weight files of `folder` with this list. Fails, as loading does,
    /// on a tensor that is missing or has another shape, and on one that is not `is_ignored` and
    /// that the architecture does not take.
    pub(crate) fn check<'a>(
        &self,
        folder: &Path,
        model_type: &str,
        entries: impl Iterator<Item = &'a TensorEntry>,
        quantization: &QuantizationConfig,
        is_ignored: impl Fn(&str) -> bool,
    ) -> Result<(), LmError> {
        let remaining = entries
            .filter(|tensor| !is_ignored(&tensor.name))
            .map(|tensor| (tensor.name.as_str(), tensor))
            .collect();
        let mut headers = Headers { folder, remaining, quantization };
        for needed in &self.needed {
            needed.check(&mut headers)?;
        }
        match headers.remaining.keys().next() {
            None => Ok(()),
            Some(first) => Err(LmError::UnusedWeights {
                model_type: model_type.to_owned(),
                count: headers.remaining.len(),
                first: (*first).to_owned(),
            }),
        }
    }
}

impl Needed {
    fn is_optional(&self) -> bool {
        matches!(self.kind, Kind::OptionalMatrix { .. } | Kind::Plain { is_optional: true, .. })
    }

    fn num_numbers(&self) -> u64 {
        let product = |lengths: &[i32]| lengths.iter().map(|&length| length as u64).product();
        match &self.kind {
            Kind::Matrix { inputs, outputs }
            | Kind::OptionalMatrix { inputs, outputs }
            | Kind::Numbered { inputs, outputs, .. }
            | Kind::OrLinears { inputs, outputs, .. } => product(&[*inputs, *outputs]),
            Kind::Experts { count: each, inputs, outputs, .. }
            | Kind::Heads { heads: each, inputs, outputs, .. } => {
                product(&[*each, *inputs, *outputs])
            }
            Kind::ExpertBiases { count, outputs, .. } => product(&[*count, *outputs]),
            Kind::Plain { shapes, .. } => shapes.first().map_or(0, |shape| product(shape)),
        }
    }

    /// How this tensor is packed, as far as config.json and its shape tell.
    fn packing(&self, quantization: &QuantizationConfig) -> Option<Quantization> {
        let (path, inputs) = match &self.kind {
            Kind::Matrix { inputs, .. } | Kind::OptionalMatrix { inputs, .. } => {
                (self.path.clone(), *inputs)
            }
            Kind::Experts { name, stored, inputs, .. } => {
                (format!("{}.{}", self.path, stored.stacked_matrix(name)), *inputs)
            }
            Kind::Heads { name, inputs, .. }
            | Kind::Numbered { name, inputs, .. }
            | Kind::OrLinears { name, inputs, .. } => (format!("{}.{name}", self.path), *inputs),
            Kind::ExpertBiases { .. } | Kind::Plain { .. } => return None,
        };
        quantization.layer(&path).filter(|settings| inputs % settings.group_size == 0)
    }

    fn check(&self, headers: &mut Headers) -> Result<(), LmError> {
        let path = &self.path;
        match &self.kind {
            Kind::Matrix { inputs, outputs } => headers.take_matrix(path, &[*outputs], *inputs),
            Kind::OptionalMatrix { inputs, outputs } => {
                match headers.remaining.contains_key(format!("{path}.weight").as_str()) {
                    true => headers.take_matrix(path, &[*outputs], *inputs),
                    false => Ok(()),
                }
            }
            &Kind::OrLinears { name, ref linears, inputs, outputs } => {
                let output = format!("{linears}.output_linear");
                // The last of them to be taken.
                if !headers.remaining.contains_key(format!("{output}.weight").as_str()) {
                    return headers.take_matrix(&format!("{path}.{name}"), &[outputs], inputs);
                }
                match name {
                    "gate_proj" => {
                        let input = format!("{linears}.input_linear");
                        headers.take_matrix(&input, &[2 * outputs], inputs)
                    }
                    "up_proj" => Ok(()),
                    _ => headers.take_matrix(&output, &[outputs], inputs),
                }
            }
            &Kind::Numbered { name, inputs, outputs } => {
                let is_held = |name: &&str| {
                    headers.remaining.contains_key(format!("{path}.{name}.weight").as_str())
                };
                let held = single_names(name).into_iter().find(is_held).unwrap_or(name);
                headers.take_matrix(&format!("{path}.{held}"), &[outputs], inputs)
            }
            &Kind::Experts { name, stored, count, inputs, outputs } => {
                let has =
                    |name: &str| headers.remaining.contains_key(format!("{path}.{name}").as_str());
                let Joined { gate_up, down } = stored.joined();
                // The last of the three to be taken.
                if has(down) {
                    let (joined, outputs) = match name {
                        "gate_proj" => (gate_up, 2 * outputs),
                        "up_proj" => return Ok(()),
                        _ => (down, outputs),
                    };
                    let joined = format!("{path}.{joined}");
                    return match stored {
                        StoredExperts::Blocks => {
                            headers.take_blocks(&joined, &[count, outputs], inputs)
                        }
                        StoredExperts::Turned => {
                            headers.take(&joined, &[&[count, inputs, outputs]])
                        }
                        _ => headers.take(&joined, &[&[count, outputs, inputs]]),
                    };
                }
                let Some(single) = stored.single(name, has) else {
                    let stacked = format!("{path}.{}", stored.stacked_matrix(name));
                    return headers.take_matrix(&stacked, &[count, outputs], inputs);
                };
                (0..count).try_for_each(|expert| {
                    let own = format!("{path}.experts.{expert}.{single}");
                    headers.take_matrix(&own, &[outputs], inputs)
                })
            }
            Kind::Heads { name, heads, inputs, outputs, joined: [rows, rank] } => {
                let joined = format!("{path}.kv_b_proj");
                if !headers.remaining.contains_key(format!("{joined}.weight").as_str()) {
                    let own = format!("{path}.{name}");
                    return headers.take_matrix(&own, &[*heads, *outputs], *inputs);
                }
                // The second of the two to be taken.
                match *name {
                    "embed_q" => Ok(()),
                    _ => headers.take_matrix(&joined, &[*rows], *rank),
                }
            }
            &Kind::ExpertBiases { name, stored, count, outputs } => {
                let has =
                    |name: &str| headers.remaining.contains_key(format!("{path}.{name}").as_str());
                if stored == StoredExperts::Blocks && has(stored.joined().down) {
                    return match name {
                        "gate_proj" => headers.take(
                            &format!("{path}.experts.gate_up_proj_bias"),
                            &[&[count, 2 * outputs]],
                        ),
                        "up_proj" => Ok(()),
                        _ => headers
                            .take(&format!("{path}.experts.{name}_bias"), &[&[count, outputs]]),
                    };
                }
                let Some(single) = stored.single(name, has) else {
                    let bias = format!("{path}.{}.bias", stored.stacked_matrix(name));
                    return headers.take(&bias, &[&[count, outputs]]);
                };
                (0..count).try_for_each(|expert| {
                    let bias = format!("{path}.experts.{expert}.{single}.bias");
                    headers.take(&bias, &[&[outputs]])
                })
            }
            Kind::Plain { is_optional: true, .. }
                if !headers.remaining.contains_key(path.as_str()) =>
            {
                Ok(())
            }
            Kind::Plain { shapes, .. } => {
                headers.take(path, &shapes.iter().map(Vec::as_slice).collect::<Vec<_>>())
            }
        }
    }
}

/// The headers of a folder's weight files, without those that were taken.
struct Headers<'a> {
    folder: &'a Path,
    remaining: BTreeMap<&'a str, &'a TensorEntry>,
    quantization: &'a QuantizationConfig,
}

impl Headers<'_> {
    /// Takes the matrix at `path`, with its scales and, in affine mode, biases if it is packed.
    fn take_matrix(&mut self, path: &str, rows: &[i32], inputs: i32) -> Result<(), LmError> {
        let shape = |columns: i32| [rows, &[columns]].concat();
        let weight = format!("{path}.weight");
        let scales = format!("{path}.scales");
        if !self.remaining.contains_key(scales.as_str()) {
            return self.take(&weight, &[&shape(inputs)]);
        }
        let Quantization { mode, group_size, bits } = self.quantization.of_packed(path)?;
        check_groups(path, inputs, group_size)?;
        self.take(&weight, &[&shape(inputs * bits / 32)])?;
        let groups = shape(inputs / group_size);
        self.take(&scales, &[&groups])?;
        match mode.has_biases() {
            true => self.take(&format!("{path}.biases"), &[&groups]),
            false => Ok(()),
        }
    }

    /// Takes the `mxfp4` blocks `name`, see [`StoredExperts::Blocks`], and their scales.
    fn take_blocks(&mut self, name: &str, rows: &[i32], inputs: i32) -> Result<(), LmError> {
        check_groups(name, inputs, BLOCKS.group_size)?;
        let groups = inputs / BLOCKS.group_size;
        self.take(name, &[&[rows, &[groups, BLOCK_BYTES]].concat()])?;
        let path = name.strip_suffix("blocks").unwrap_or(name);
        self.take(&format!("{path}scales"), &[&[rows, &[groups]].concat()])
    }

    fn take(&mut self, name: &str, shapes: &[&[i32]]) -> Result<(), LmError> {
        let tensor = self.remaining.remove(name).ok_or_else(|| LmError::MissingWeight {
            folder: self.folder.to_owned(),
            name: name.to_owned(),
        })?;
        // No overflow: the header check limits every length to less than 2^31.
        let found: Vec<i32> = tensor.shape.iter().map(|&length| length as i32).collect();
        if shapes.contains(&found.as_slice()) {
            return Ok(());
        }
        let expected = shapes.first().map(|shape| shape.to_vec()).unwrap_or_default();
        Err(LmError::WrongShape { name: name.to_owned(), found, expected })
    }
}

/// Fails unless whole groups make up the inputs of the packed matrix at `path`: MLX packs no others.
pub(crate) fn check_groups(path: &str, inputs: i32, group_size: i32) -> Result<(), LmError> {
    if inputs % group_size == 0 {
        return Ok(());
    }
    Err(LmError::Config {
        name: "quantization",
        value: format!("group_size {group_size}"),
        allowed: format!("it must divide the {inputs} inputs of '{path}'"),
    })
}
