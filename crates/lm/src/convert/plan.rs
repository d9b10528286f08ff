//! The tensors of the new model by mlx-lm's names, and where in the old one each comes from.

use crate::LmError;
use crate::config::QuantizationConfig;
use crate::nn::StoredExperts;
use crate::nn::stored_experts::{BLOCKS, Joined, single_names};
use crate::tensor_list::{Kind, Needed};

use super::choices::Choices;
use super::rows::{HeadPart, PackedRows, Place, Rows, Source, Tensors};

/// A matrix of the new model, one for each of several experts, or another tensor.
#[derive(Debug)]
pub(super) struct Part {
    /// The path of a matrix, whose tensors' names begin with it, or a tensor's whole name.
    pub(super) path: String,
    /// The same name in a model of text alone, with `.weight` behind a matrix's path.
    pub(super) text_name: String,
    /// The axes before the last.
    pub(super) lead: Vec<usize>,
    /// The last axis, before it is packed.
    pub(super) columns: usize,
    pub(super) is_matrix: bool,
    pub(super) source: Source,
}

impl Part {
    pub(super) fn num_numbers(&self) -> usize {
        self.lead.iter().product::<usize>() * self.columns
    }
}

/// Plans the parts of a model whose headers were checked.
pub(super) struct Planner<'a> {
    pub(super) tensors: &'a Tensors,
    pub(super) quantization: &'a QuantizationConfig,
    pub(super) choices: Choices<'a>,
}

impl Planner<'_> {
    /// What `needed` becomes; nothing if files may lack it and do.
    pub(super) fn parts(&self, needed: &Needed) -> Result<Option<Part>, LmError> {
        let path = needed.path.as_str();
        Ok(Some(match needed.kind {
            Kind::Matrix { inputs, outputs } => {
                self.matrix(path, Place::Whole(path.to_owned()), inputs, outputs)?
            }
            Kind::OptionalMatrix { inputs, outputs } => {
                let stored = match self.tensors.holds(&format!("{path}.weight")) {
                    true => path,
                    false if self.choices.copies_embeddings() => "model.embed_tokens",
                    false => return Ok(None),
                };
                self.matrix(path, Place::Whole(stored.to_owned()), inputs, outputs)?
            }
            Kind::Numbered { name, inputs, outputs } => {
                let is_held = |name: &&str| self.tensors.holds(&format!("{path}.{name}.weight"));
                let held = single_names(name).into_iter().find(is_held).unwrap_or(name);
                let new = if self.choices.keeps_numbered_names() { held } else { name };
                let place = Place::Whole(format!("{path}.{held}"));
                self.matrix(&format!("{path}.{new}"), place, inputs, outputs)?
            }
            Kind::OrLinears { name, ref linears, inputs, outputs } => {
                let place = match self.tensors.holds(&format!("{linears}.output_linear.weight")) {
                    false => Place::Whole(format!("{path}.{name}")),
                    true if name == "down_proj" => Place::Whole(format!("{linears}.output_linear")),
                    true => Place::Half {
                        tensor: format!("{linears}.input_linear"),
                        second: name == "up_proj",
                    },
                };
                self.matrix(&format!("{path}.{name}"), place, inputs, outputs)?
            }
            Kind::Experts { name, stored, count, inputs, outputs } => {
                self.experts(path, name, stored, [count, outputs, inputs])?
            }
            Kind::ExpertBiases { name, stored, count, outputs } => {
                self.expert_biases(path, name, stored, [count, outputs])
            }
            Kind::Heads { name, heads, inputs, outputs, joined: [rows, rank] } => {
                self.heads(path, name, [heads, outputs, inputs], [rows, rank])?
            }
            Kind::Plain { is_optional: true, .. } if !self.tensors.holds(path) => return Ok(None),
            Kind::Plain { ref shapes, .. } => self.plain(path, &shapes[0]),
        }))
    }

    /// An output layer `[outputs, inputs]` that nobody uses, if there is one.
    pub(super) fn output(
        &self,
        (outputs, inputs): (usize, usize),
    ) -> Result<Option<Part>, LmError> {
        match self.tensors.shape("lm_head.weight").is_some_and(|shape| shape == [outputs, inputs]) {
            false => Ok(None),
            true => {
                let place = Place::Whole("lm_head".to_owned());
                self.matrix("lm_head", place, inputs as i32, outputs as i32).map(Some)
            }
        }
    }

    fn part(&self, text_path: &str, shape: &[usize], is_matrix: bool, source: Source) -> Part {
        let (&columns, lead) = shape.split_last().unwrap_or((&1, &[]));
        Part {
            path: self.choices.stored_path(text_path),
            text_name: if is_matrix { format!("{text_path}.weight") } else { text_path.to_owned() },
            lead: lead.to_owned(),
            columns,
            is_matrix,
            source,
        }
    }

    /// The rows of matrices `[experts, each, inputs]`, packed if the files hold scales.
    fn source(&self, place: Place, shape: [usize; 3]) -> Result<Source, LmError> {
        let path = match &place {
            Place::Singles(paths) => paths.first(),
            Place::Whole(path)
            | Place::Half { tensor: path, .. }
            | Place::Interleaved { tensor: path, .. }
            | Place::Transposed { tensor: path, .. } => Some(path),
        };
        match path.filter(|path| self.tensors.holds(&format!("{path}.scales"))) {
            Some(path) => {
                let settings = self.quantization.of_packed(path)?;
                Ok(Source::Packed(PackedRows::new(self.tensors, &place, shape, settings)?))
            }
            None => Ok(Source::Dense(Rows::new(self.tensors, place.ending(".weight"), shape))),
        }
    }

    fn matrix(
        &self,
        new_path: &str,
        place: Place,
        inputs: i32,
        outputs: i32,
    ) -> Result<Part, LmError> {
        let shape = [outputs, inputs].map(|length| length as usize);
        let source = self.source(place, [1, shape[0], shape[1]])?;
        Ok(self.part(new_path, &shape, true, source))
    }

    fn experts(
        &self,
        path: &str,
        name: &'static str,
        stored: StoredExperts,
        shape: [i32; 3],
    ) -> Result<Part, LmError> {
        let shape = shape.map(|length| length as usize);
        let [count, outputs, _] = shape;
        let new_path = format!("{path}.{}", stored.stacked_matrix(name));
        let holds = |name: &str| self.tensors.holds(&format!("{path}.{name}"));
        let Joined { gate_up, down } = stored.joined();
        let second = name == "up_proj";
        let source = if holds(down) {
            let is_down = name == "down_proj";
            let tensor = format!("{path}.{}", if is_down { down } else { gate_up });
            match stored {
                StoredExperts::Blocks => {
                    let tensor = tensor.trim_end_matches("_blocks").to_owned();
                    let place = match is_down {
                        true => Place::Whole(tensor),
                        false => Place::Interleaved { tensor, second },
                    };
                    Source::Packed(PackedRows::of_blocks(self.tensors, &place, shape, BLOCKS))
                }
                StoredExperts::Turned => {
                    let all = if is_down { outputs } else { 2 * outputs };
                    let first = if second { outputs } else { 0 };
                    let place = Place::Transposed { tensor, all, first };
                    Source::Dense(Rows::new(self.tensors, place, shape))
                }
                _ => {
                    let place = match is_down {
                        true => Place::Whole(tensor),
                        false => Place::Half { tensor, second },
                    };
                    Source::Dense(Rows::new(self.tensors, place, shape))
                }
            }
        } else {
            let place = match stored.single(name, holds) {
                None => Place::Whole(new_path.clone()),
                Some(single) => Place::Singles(
                    (0..count).map(|expert| format!("{path}.experts.{expert}.{single}")).collect(),
                ),
            };
            self.source(place, shape)?
        };
        Ok(self.part(&new_path, &shape, true, source))
    }

    fn expert_biases(
        &self,
        path: &str,
        name: &'static str,
        stored: StoredExperts,
        shape: [i32; 2],
    ) -> Part {
        let [count, outputs] = shape.map(|length| length as usize);
        let new_name = format!("{path}.{}.bias", stored.stacked_matrix(name));
        let holds = |name: &str| self.tensors.holds(&format!("{path}.{name}"));
        let (place, rows) = if stored == StoredExperts::Blocks && holds(stored.joined().down) {
            match name {
                "down_proj" => {
                    (Place::Whole(format!("{path}.experts.down_proj_bias")), [1, count, outputs])
                }
                // Single numbers by turns.
                _ => {
                    let tensor = format!("{path}.experts.gate_up_proj_bias");
                    let place = Place::Interleaved { tensor, second: name == "up_proj" };
                    (place, [count, outputs, 1])
                }
            }
        } else {
            match stored.single(name, holds) {
                None => (Place::Whole(new_name.clone()), [1, count, outputs]),
                Some(single) => {
                    let bias = |expert| format!("{path}.experts.{expert}.{single}.bias");
                    (Place::Singles((0..count).map(bias).collect()), [count, 1, outputs])
                }
            }
        };
        let source = Source::Dense(Rows::new(self.tensors, place, rows));
        self.part(&new_name, &[count, outputs], false, source)
    }

    fn heads(
        &self,
        path: &str,
        name: &str,
        shape: [i32; 3],
        joined: [i32; 2],
    ) -> Result<Part, LmError> {
        let shape @ [heads, outputs, inputs] = shape.map(|length| length as usize);
        let [rows, rank] = joined.map(|length| length as usize);
        let new_path = format!("{path}.{name}");
        let joined = format!("{path}.kv_b_proj");
        if !self.tensors.holds(&format!("{joined}.weight")) {
            let source = self.source(Place::Whole(new_path.clone()), shape)?;
            return Ok(self.part(&new_path, &shape, true, source));
        }
        let are_keys = name == "embed_q";
        let keys = if are_keys { inputs } else { rows / heads - outputs };
        let part = HeadPart { keys, are_keys };
        let from = self.source(Place::Whole(joined), [heads, rows / heads, rank])?;
        let source = match from {
            Source::Packed(from) => Source::PackedHeads { from, part },
            Source::Dense(from) => Source::DenseHeads { from, part },
            heads => heads,
        };
        Ok(self.part(&new_path, &shape, true, source))
    }

    fn plain(&self, name: &str, shape: &[i32]) -> Part {
        let shape: Vec<usize> = shape.iter().map(|&length| length as usize).collect();
        let rows = [1, 1, shape.iter().product()];
        let source = Source::Dense(Rows::new(self.tensors, Place::Whole(name.to_owned()), rows));
        self.part(name, &shape, false, source)
    }
}
