//! The invariants of [`ChunkIndex`], as tests check them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::{Children, Chunk, ChunkIndex, continues};
use crate::{ChunkKey, RefName};

impl ChunkIndex {
    /// Panics where the index contradicts itself. `when` says after what.
    pub(crate) fn check(&self, when: &str) {
        self.check_chunks(when);
        self.check_order(when);
        self.check_refs(when);
    }

    fn check_chunks(&self, when: &str) {
        let mut children: HashMap<ChunkKey, Children> = HashMap::new();
        for (key, chunk) in &self.chunks {
            let record = &chunk.record;
            assert_eq!((record.key, record.contradiction()), (*key, None), "{when}: {record:?}");
            assert!(chunk.is_on_disk() || chunk.is_in_memory(), "{when}: {record:?} is nowhere");
            assert!(!chunk.is_pending || chunk.is_in_memory(), "{when}: {record:?} left memory");
            let is_twice = self.resident.contains(key) && chunk.is_on_disk();
            assert!(!is_twice || !chunk.is_in_memory(), "{when}: {record:?} is in memory twice");
            if let Some(parent) = record.parent {
                let parent = self.get(&parent).unwrap_or_else(|| panic!("{when}: {record:?}"));
                assert!(continues(&parent.record, record), "{when}: {record:?}");
                assert!(parent.is_on_disk() || !chunk.is_on_disk(), "{when}: {record:?}");
            }
            children.entry(record.parent_or_root()).or_default().insert(record);
        }
        assert_eq!(self.children, children, "{when}");
    }

    fn check_order(&self, when: &str) {
        let mut leaves: [BTreeSet<_>; 3] = Default::default();
        for chunk in self.chunks.values().filter(|chunk| !self.children.contains_key(&chunk.key()))
        {
            leaves[chunk.record.kind as usize].insert(chunk.rank());
        }
        assert_eq!(self.leaves, leaves, "{when}");
        let in_memory = self.chunks.values().filter(|chunk| chunk.is_in_memory());
        let in_memory: BTreeSet<_> = in_memory.map(Chunk::rank).collect();
        assert_eq!(self.in_memory, in_memory, "{when}");
        let sums = self.chunks.values().fold((0, 0), |(disk, memory), chunk| {
            let in_memory = chunk.memory_bytes.unwrap_or(0);
            (disk + chunk.record.num_file_bytes(), memory + in_memory)
        });
        assert_eq!((self.disk_bytes, self.memory_bytes), sums, "{when}");
    }

    fn check_refs(&self, when: &str) {
        let mut refs_through: HashMap<ChunkKey, BTreeSet<Arc<RefName>>> = HashMap::new();
        for (name, cache_ref) in &self.refs {
            assert_eq!(*name, cache_ref.name, "{when}");
            assert!(!name.is_stale() || !cache_ref.is_pinned, "{when}: {name} is pinned");
            assert!(!name.is_stale() || cache_ref.target.is_some(), "{when}: {name} has nothing");
            let target = cache_ref.target.map(|key| {
                self.get(&key).unwrap_or_else(|| panic!("{when}: {name} refers to no chunk"))
            });
            let num_tokens = target.map_or(0, |chunk| chunk.record.stop());
            assert_eq!(cache_ref.num_tokens, num_tokens, "{when}: {name}");
            for chunk in cache_ref.target.map_or(Vec::new(), |key| self.path(&key)) {
                refs_through.entry(chunk.key()).or_default().insert(Arc::new(name.clone()));
            }
        }
        assert_eq!(self.refs_through, refs_through, "{when}");
        assert!(self.changed_refs.is_empty(), "{when}: {:?} not reported", self.changed_refs);
    }
}
