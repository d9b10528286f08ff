//! Several caches of one layer: for layers that attend more than once, or combine attention with a
//! recurrent state.

use std::fmt;

use mlx_rs::error::Result;
use mlx_rs::{Array, Dtype};

use super::chunk_state::ChunkForm;
use super::kind::{CacheKind, KindSpec};
use super::prompt_file::{CacheClass, FileForm, FileReading, FileTensors, LayerState};
use super::{AttentionStep, LayerCache, LayerCacheSpec, batch};
use crate::LmError;

/// The caches of one layer, in the order that its architecture gives them. As mlx-lm's CacheList.
#[derive(Debug, Clone)]
pub struct CacheList {
    entries: Vec<LayerCache>,
}

impl CacheList {
    /// A list of `entries`.
    ///
    /// Panics if it is empty.
    pub fn new(entries: Vec<LayerCache>) -> Self {
        assert!(!entries.is_empty(), "a list of caches has at least one");
        CacheList { entries }
    }

    /// The entries.
    pub fn entries(&self) -> &[LayerCache] {
        &self.entries
    }

    /// The entries, for the layer to update.
    pub fn entries_mut(&mut self) -> &mut [LayerCache] {
        &mut self.entries
    }
}

const NAME: &str = CacheClass::List.kind();

impl CacheKind for CacheList {
    fn name(&self) -> &'static str {
        NAME
    }

    fn spec(&self) -> Option<LayerCacheSpec> {
        let entries = self.entries.iter().map(LayerCache::spec).collect::<Option<_>>()?;
        Some(LayerCacheSpec::List(ListSpec { entries }))
    }

    fn offset(&self) -> usize {
        self.entries.iter().map(LayerCache::offset).max().unwrap_or(0)
    }

    fn is_empty(&self) -> bool {
        self.entries.iter().all(LayerCache::is_empty)
    }

    fn arrays(&self) -> Vec<&Array> {
        self.entries.iter().flat_map(LayerCache::arrays).collect()
    }

    /// The step of the first entry.
    fn attention_step(&self, length: i32, window: Option<i32>) -> Result<AttentionStep> {
        self.entries[0].attention_step(length, window)
    }

    fn entries(&self) -> Option<&[LayerCache]> {
        Some(&self.entries)
    }

    fn is_trimmable(&self) -> bool {
        self.entries.iter().all(LayerCache::is_trimmable)
    }

    /// The smallest number that an entry removed.
    fn trim(&mut self, num_tokens: usize) -> usize {
        if !self.is_trimmable() {
            return 0;
        }
        self.entries.iter_mut().map(|cache| cache.trim(num_tokens)).min().unwrap_or(0)
    }

    fn trims_after(&self, num_ahead: usize) -> bool {
        self.entries.iter().all(|cache| cache.trims_after(num_ahead))
    }

    fn extend(&mut self, other: LayerCache) -> std::result::Result<(), LmError> {
        let LayerCache::List(other) = other else { return Err(LmError::MixedCaches) };
        batch::extend(&mut self.entries, other.entries)
    }

    fn filter(&mut self, kept: &[usize]) -> std::result::Result<(), LmError> {
        batch::filter(&mut self.entries, kept)
    }

    fn extract(&self, row: usize) -> std::result::Result<LayerCache, LmError> {
        Ok(LayerCache::List(CacheList::new(batch::extract(&self.entries, row)?)))
    }

    fn continued_by_rows(&self, num_rows: usize) -> std::result::Result<LayerCache, LmError> {
        let entries = batch::continued_by_rows(&self.entries, num_rows)?;
        Ok(LayerCache::List(CacheList::new(entries)))
    }

    fn prepare(&mut self, lengths: &[i32]) -> std::result::Result<(), LmError> {
        batch::prepare(&mut self.entries, lengths)
    }

    fn finalize(&mut self) -> std::result::Result<(), LmError> {
        batch::finalize(&mut self.entries)
    }

    fn to_file(&self) -> Result<FileForm> {
        let entries = self.entries.iter().map(|entry| entry.as_kind().to_file());
        Ok(FileForm {
            class: CacheClass::List,
            tensors: FileTensors::Entries(entries.collect::<Result<_>>()?),
            numbers: Vec::new(),
            numbers_v0_30: Err("that layout does not record the kinds of its entries"),
        })
    }

    fn count_as_read(&mut self, num_tokens: usize) {
        self.entries.iter_mut().for_each(|entry| entry.as_kind_mut().count_as_read(num_tokens));
    }
}

/// The spec of a [`CacheList`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListSpec {
    /// Its caches, at least one.
    pub entries: Vec<LayerCacheSpec>,
}

impl ListSpec {
    fn kinds(&self) -> impl Iterator<Item = &dyn KindSpec> {
        self.entries.iter().map(LayerCacheSpec::as_kind)
    }
}

impl KindSpec for ListSpec {
    fn name(&self) -> &'static str {
        NAME
    }

    fn make(&self) -> LayerCache {
        LayerCache::List(CacheList::new(self.kinds().map(KindSpec::make).collect()))
    }

    fn num_bytes(&self, num_tokens: u64, float_bytes: u64) -> u64 {
        self.kinds().map(|kind| kind.num_bytes(num_tokens, float_bytes)).sum()
    }

    fn num_bytes_while_reading(&self, num_tokens: u64, length: u64, float_bytes: u64) -> u64 {
        self.kinds().map(|kind| kind.num_bytes_while_reading(num_tokens, length, float_bytes)).sum()
    }

    fn num_keys_while_reading(&self, num_tokens: u64, length: u64) -> u64 {
        let keys = self.kinds().map(|kind| kind.num_keys_while_reading(num_tokens, length));
        keys.max().unwrap_or(0)
    }

    fn num_bytes_per_token(&self, float_bytes: u64) -> u64 {
        self.kinds().map(|kind| kind.num_bytes_per_token(float_bytes)).sum()
    }

    fn is_trimmable(&self) -> bool {
        self.kinds().all(KindSpec::is_trimmable)
    }

    fn window(&self) -> Option<usize> {
        self.kinds().filter_map(KindSpec::window).max()
    }

    fn has_state(&self) -> bool {
        self.kinds().any(KindSpec::has_state)
    }

    fn compressed(&self) -> Option<LayerCacheSpec> {
        let entries: Vec<_> = self.kinds().map(KindSpec::compressed).collect();
        entries.iter().any(Option::is_some).then(|| {
            let own = std::iter::zip(entries, &self.entries);
            let entries = own.map(|(entry, own)| entry.unwrap_or_else(|| own.clone())).collect();
            LayerCacheSpec::List(ListSpec { entries })
        })
    }

    fn merge(&self, rows: Vec<LayerCache>) -> std::result::Result<LayerCache, LmError> {
        let own = |row| if let LayerCache::List(list) = row { Some(list.entries) } else { None };
        let rows: Option<Vec<Vec<LayerCache>>> = rows.into_iter().map(own).collect();
        let merged = batch::merge(rows.ok_or(LmError::MixedCaches)?)?;
        Ok(LayerCache::List(CacheList::new(merged)))
    }

    fn check_batch(&self) -> std::result::Result<(), LmError> {
        self.kinds().try_for_each(KindSpec::check_batch)
    }

    fn without_sizes(&self) -> LayerCacheSpec {
        LayerCacheSpec::List(ListSpec {
            entries: self.kinds().map(KindSpec::without_sizes).collect(),
        })
    }

    fn types(&self) -> Vec<Option<Dtype>> {
        self.kinds().flat_map(KindSpec::types).collect()
    }

    fn admits(&self, given: &LayerCacheSpec) -> bool {
        let LayerCacheSpec::List(given) = given else { return false };
        self.entries.len() == given.entries.len()
            && std::iter::zip(self.kinds(), &given.entries).all(|(own, given)| own.admits(given))
    }

    fn chunk_form(&self, _num_tokens: usize) -> Option<ChunkForm> {
        Some(ChunkForm::Entries(self.entries.clone()))
    }

    fn read_from_file(
        &self,
        state: &LayerState,
        reading: &mut FileReading<'_>,
    ) -> std::result::Result<LayerCache, LmError> {
        Ok(LayerCache::List(CacheList::new(reading.entries(state)?)))
    }

    fn describe(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, " of {}", self.entries.len())
    }
}
