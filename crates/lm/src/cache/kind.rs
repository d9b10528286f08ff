//! What every kind of cache answers, each kind in its own file.
//!
//! A new kind is a file that implements [`CacheKind`] and [`KindSpec`], and one arm each in
//! [`LayerCache`] and [`LayerCacheSpec`]. Methods with a body here are for what only some kinds do:
//! the body is right for a kind that does not.

use std::fmt::{self, Debug};

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use super::chunk_state::ChunkForm;
use super::prompt_file::{FileForm, FileReading, LayerState};
use super::{
    ArraysCache, AttentionStep, DecodeSlot, KeysValues, LayerCache, LayerCacheSpec, TracedSlot,
};
use crate::LmError;

/// The cache of one layer.
pub(crate) trait CacheKind: Debug {
    /// The kind, for error messages.
    fn name(&self) -> &'static str;

    /// What the cache is, with the sizes of its arrays unless it is empty; `None` for a kind with
    /// several rows.
    fn spec(&self) -> Option<LayerCacheSpec>;

    /// How many tokens the cache has read; with several rows, those of the longest.
    fn offset(&self) -> usize;

    /// Whether no token was ever appended.
    fn is_empty(&self) -> bool {
        self.arrays().is_empty()
    }

    /// The arrays that the cache consists of, capacity included.
    fn arrays(&self) -> Vec<&Array>;

    /// See [`LayerCache::attention_step`].
    fn attention_step(
        &self,
        _length: i32,
        _window: Option<i32>,
    ) -> Result<AttentionStep, Exception> {
        Err(self.is_not_for("attention"))
    }

    /// How many columns come before those of the next tokens: such as all rows share, and the rows'
    /// own. `None` for a kind that drops tokens or holds none.
    fn columns(&self) -> Option<[i32; 2]> {
        None
    }

    /// See [`LayerCache::update_and_fetch`].
    fn append(&mut self, _keys: Array, _values: Array) -> Result<KeysValues, Exception> {
        Err(self.is_not_for("attention"))
    }

    /// See [`LayerCache::decode_slot`].
    fn decode_slot(&mut self, _length: i32) -> Result<Option<DecodeSlot>, Exception> {
        Ok(None)
    }

    /// See [`LayerCache::fill_decode_slot`].
    fn fill_decode_slot(&mut self, _newest_keys: Array, _newest_values: Array, _length: i32) {}

    /// Where the next token of a traced step goes; `None` for kinds that are not traced, and for an
    /// empty cache.
    fn traced_slot(&mut self) -> Result<Option<TracedSlot>, Exception> {
        Ok(None)
    }

    /// Takes the buffers of [`CacheKind::traced_slot`] with one token more.
    fn fill_traced_slot(&mut self, _keys: Array, _values: Array) {}

    /// The recurrent state; `None` for every other kind.
    fn state(&self) -> Option<&ArraysCache> {
        None
    }

    /// The entries of a list; `None` for every other kind.
    fn entries(&self) -> Option<&[LayerCache]> {
        None
    }

    /// Whether tokens can be removed from the end.
    fn is_trimmable(&self) -> bool {
        false
    }

    /// Removes the last `num_tokens` and returns how many it removed: 0 if it cannot.
    fn trim(&mut self, _num_tokens: usize) -> usize {
        0
    }

    /// Whether tokens can still be removed after `num_ahead` more.
    fn trims_after(&self, _num_ahead: usize) -> bool {
        false
    }

    /// Whether the cache of one row changes nothing that it holds when it reads more. Its number of
    /// tokens is then a snapshot of it.
    fn only_appends(&self) -> bool {
        false
    }

    /// The arrays of a state that is valid at one position only; `None` for a cache whose tokens are
    /// stored one by one.
    fn state_arrays(&self) -> Result<Option<Vec<Option<Array>>>, Exception> {
        let slots = |state: &ArraysCache| {
            (0..state.num_slots()).map(|slot| state.get(slot).cloned()).collect()
        };
        Ok(self.state().map(slots))
    }

    /// Whether another position than the last can be continued only from a copy that was made there.
    fn needs_checkpoints(&self) -> bool {
        !self.only_appends() || self.spec().is_some_and(|spec| spec.as_kind().has_state())
    }

    /// Whether `length` tokens must be read one by one, because a pass over all of them would
    /// attend to other tokens.
    fn reads_one_by_one(&self, _length: usize) -> bool {
        false
    }

    /// A quantized copy; `None` for a kind that stays as it is.
    fn quantized(&self, _group_size: i32, _bits: i32) -> Result<Option<LayerCache>, LmError> {
        Ok(None)
    }

    /// Whether a model with such a cache cannot have the others quantized.
    fn forbids_quantization(&self) -> bool {
        false
    }

    /// Appends the rows of `other`, a batch of the same kind.
    fn extend(&mut self, _other: LayerCache) -> Result<(), LmError> {
        Err(LmError::MixedCaches)
    }

    /// Keeps only the rows `kept`, in that order.
    fn filter(&mut self, _kept: &[usize]) -> Result<(), LmError> {
        Err(self.is_not_for("several rows").into())
    }

    /// The cache of one row, as if its request had run without a batch.
    fn extract(&self, _row: usize) -> Result<LayerCache, LmError> {
        Err(self.is_not_for("several rows").into())
    }

    /// The cache of `num_rows` rows that continue this one, which has one row. Shares its tokens
    /// with it.
    fn continued_by_rows(&self, _num_rows: usize) -> Result<LayerCache, LmError> {
        Err(LmError::NotBatchable { kind: self.name() })
    }

    /// Announces how many tokens of the coming steps belong to each row.
    fn prepare(&mut self, _lengths: &[i32]) -> Result<(), LmError> {
        Err(self.is_not_for("several rows").into())
    }

    /// Ends the steps that [`CacheKind::prepare`] announced.
    fn finalize(&mut self) -> Result<(), LmError> {
        Err(self.is_not_for("several rows").into())
    }

    /// The tokens that the cache holds; `None` for an empty cache, and for kinds whose tokens are
    /// neither stored in chunks nor compared.
    fn held_tokens(&self) -> Result<Option<HeldTokens>, Exception> {
        Ok(None)
    }

    /// What a prompt-cache file stores of the cache. Fails for kinds that have no place in one.
    fn to_file(&self) -> Result<FileForm, Exception> {
        Err(self.is_not_for("a prompt-cache file"))
    }

    /// Sets the number of tokens read, where a file does not record it.
    fn count_as_read(&mut self, _num_tokens: usize) {}

    /// The error of a use that this kind does not have.
    fn is_not_for(&self, user: &str) -> Exception {
        Exception::custom(format!("a {} cannot be used for {user}", self.name()))
    }
}

/// The tokens of one row, oldest first.
#[derive(Debug)]
pub(crate) struct HeldTokens {
    /// `[1, H, capacity, D]`
    pub(crate) tokens: KeysValues,
    /// The position of the first column.
    pub(crate) first: usize,
    /// How many of the columns after it hold the sequence's first tokens instead of those at their
    /// positions.
    pub(crate) num_kept: usize,
    /// Whether tokens before `first` have been dropped, or will be.
    pub(crate) is_window: bool,
}

/// What a layer's cache is, before it holds anything.
pub(crate) trait KindSpec: Debug {
    /// The kind, for error messages: that of [`CacheKind::name`].
    fn name(&self) -> &'static str;

    /// An empty cache.
    fn make(&self) -> LayerCache;

    /// Bytes of the cache after `num_tokens`, with the room that its buffers grow by; `float_bytes`
    /// is the size of a number whose type is not known yet.
    fn num_bytes(&self, num_tokens: u64, float_bytes: u64) -> u64;

    /// Bytes of the cache during a pass over `length` tokens, the last of which is the
    /// `num_tokens`-th.
    fn num_bytes_while_reading(&self, num_tokens: u64, _length: u64, float_bytes: u64) -> u64 {
        self.num_bytes(num_tokens, float_bytes)
    }

    /// To how many tokens one attends during a pass over `length` of them, the last of which is the
    /// `num_tokens`-th.
    fn num_keys_while_reading(&self, num_tokens: u64, _length: u64) -> u64 {
        num_tokens
    }

    /// Bytes that one more token takes while nothing is dropped.
    fn num_bytes_per_token(&self, float_bytes: u64) -> u64;

    /// Whether caches can be trimmed to any earlier position, whatever they have read.
    fn is_trimmable(&self) -> bool {
        false
    }

    /// How many of the last tokens must be there to continue; `None` where all are held.
    fn window(&self) -> Option<usize> {
        None
    }

    /// Whether there is a state that is valid at one position only.
    fn has_state(&self) -> bool {
        false
    }

    /// The kind that holds at most `max_size` tokens, of which it keeps the first `keep`; `None`
    /// for a kind that decides by itself what it keeps.
    fn bounded(&self, _max_size: i32, _keep: i32) -> Option<LayerCacheSpec> {
        None
    }

    /// The kind after its keys and values have been quantized; `None` for one that stays as it is.
    fn quantized(&self, _group_size: i32, _bits: i32) -> Option<LayerCacheSpec> {
        None
    }

    /// The kind after tokens have been dropped by [`compress`](super::compress); `None` for one of
    /// which none are.
    fn compressed(&self) -> Option<LayerCacheSpec> {
        None
    }

    /// Group size and bits, if keys and values are quantized.
    fn quantization(&self) -> Option<(i32, i32)> {
        None
    }

    /// Fails if `group_size` does not divide what would be quantized.
    fn check_group_size(&self, _group_size: i32) -> Result<(), LmError> {
        Ok(())
    }

    /// The cache of several rows; fails for a kind that has no batched form.
    fn merge(&self, _rows: Vec<LayerCache>) -> Result<LayerCache, LmError> {
        self.check_batch().and(Err(LmError::MixedCaches))
    }

    /// Fails for a kind that has no batched form.
    fn check_batch(&self) -> Result<(), LmError> {
        Err(LmError::NotBatchable { kind: self.name() })
    }

    /// The kind and its settings alone.
    fn without_sizes(&self) -> LayerCacheSpec;

    /// The types of its arrays, in the order in which a file has them; `None` for types that are
    /// not known yet.
    fn types(&self) -> Vec<Option<Dtype>>;

    /// Whether a layer of this spec can continue from a cache of the spec `given`. Of an empty cache
    /// only the kind must fit.
    fn admits(&self, given: &LayerCacheSpec) -> bool;

    /// What chunk states store of the cache after `num_tokens`; `None` for a kind that is not
    /// stored in chunks.
    fn chunk_form(&self, num_tokens: usize) -> Option<ChunkForm>;

    /// The cache after `num_tokens`, from the arrays that [`KindSpec::chunk_form`] names.
    fn join_chunks(&self, _arrays: Vec<Array>, _num_tokens: i32) -> Result<LayerCache, LmError> {
        Err(self.is_not_in_chunks())
    }

    /// Reads a cache from a prompt-cache file. `state` is of this kind.
    fn read_from_file(
        &self,
        state: &LayerState,
        reading: &mut FileReading<'_>,
    ) -> Result<LayerCache, LmError>;

    /// Writes the settings and sizes behind the kind's name, for error messages.
    fn describe(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// The error of a kind that is not stored in chunks.
    fn is_not_in_chunks(&self) -> LmError {
        LmError::ChunkState { what: format!("a {} cannot be stored in chunks", self.name()) }
    }
}
