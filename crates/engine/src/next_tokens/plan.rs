//! Which rows are computed together next, and what each of them continues. Pure.

use std::collections::BTreeMap;

use super::kv_tree::num_common;

/// A row to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowPlan {
    /// How many tokens it has to read, at least one.
    pub(super) num_new: usize,
    /// How many tokens are found.
    pub(super) num_found: usize,
    /// The number of the live batch in which they are.
    pub(super) found_in: Option<u64>,
    /// The live row that it continues; `None` for any other beginning.
    pub(super) live: Option<LiveRow>,
    /// The same number for rows that continue the same tokens, found in the same place.
    pub(super) alike: usize,
    /// Whether it failed together with others, so that it is computed alone now.
    pub(super) is_alone: bool,
}

/// A row of the caches of an earlier batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LiveRow {
    /// The number of the batch.
    pub(super) batch: u64,
    pub(super) row: usize,
}

/// The rows of one pass, in the order in which they stand in its caches.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// First those that continue no live row, then those that do, by batch and row. Those that
    /// begin alike stand side by side.
    pub(super) rows: Vec<usize>,
    /// The batch whose caches become those of the group as they are: the group continues each of
    /// its rows once, by as many tokens each, and no other row needs it.
    pub(super) moves: Option<u64>,
}

/// Rows of at most so many tokens together share a pass, however much of it is padding: it costs
/// little more than reading the weights.
const SMALL_PASS: usize = 64;

/// The rows that are computed next: the longest one, and those at least half as long, as many as
/// can be read in one pass of `most_tokens`, padding included, and for which there is memory:
/// `fits` says it of rows that are more than one. `num_live_rows` are the rows of the live batches
/// by their numbers.
pub(super) fn next_group(
    rows: &[RowPlan],
    num_live_rows: &BTreeMap<u64, usize>,
    most_tokens: usize,
    fits: impl Fn(&[usize]) -> bool,
) -> Option<Group> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    // A stable order: rows of equal length stay as they came.
    order.sort_by_key(|&row| (rows[row].is_alone, std::cmp::Reverse(rows[row].num_new)));
    let first = *order.first()?;
    let mut group = vec![first];
    let longest = rows[first].num_new;
    for &row in &order[1..] {
        let num_new = rows[row].num_new;
        let padded = longest * (group.len() + 1);
        if padded > most_tokens || rows[first].is_alone || rows[row].is_alone {
            break;
        }
        if num_new * 2 >= longest || padded <= SMALL_PASS {
            group.push(row);
            if !fits(&group) {
                group.pop();
                break;
            }
        }
    }
    group.sort_by_key(|&row| (rows[row].live, rows[row].alike, row));
    let moves = moved_batch(&group, rows, num_live_rows);
    Some(Group { rows: group, moves })
}

fn moved_batch(
    group: &[usize],
    rows: &[RowPlan],
    num_live_rows: &BTreeMap<u64, usize>,
) -> Option<u64> {
    let batch = rows[*group.first()?].live?.batch;
    let num_new = rows[group[0]].num_new;
    let continues = |(index, &row): (usize, &usize)| {
        rows[row].live == Some(LiveRow { batch, row: index }) && rows[row].num_new == num_new
    };
    let of_batch = |row: &&RowPlan| row.live.is_some_and(|live| live.batch == batch);
    let is_whole = num_live_rows.get(&batch) == Some(&group.len())
        && group.iter().enumerate().all(continues)
        && rows.iter().filter(of_batch).count() == group.len();
    is_whole.then_some(batch)
}

/// A pass over a prefix that several rows share pays if it saves so many tokens: it reads the
/// weights once more.
const MIN_SAVED_TOKENS: usize = 128;

/// The beginning that is worth reading once before the rows that share it: the first `num_tokens`
/// of the row at this index. `rows` are their tokens, and how many of the first are found.
pub(super) fn shared_prefix(rows: &[(&[u32], usize)]) -> Option<(usize, usize)> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|&row| rows[row].0);
    // Rows that share a prefix follow each other. Each has a token left behind it.
    let shared = order.windows(2).map(|pair| {
        let [one, other] = [rows[pair[0]].0, rows[pair[1]].0];
        num_common(one, other).min(one.len().min(other.len()).saturating_sub(1))
    });
    let shared: Vec<usize> = shared.collect();
    let best = (0..shared.len()).map(|at| {
        let num_tokens = shared[at];
        let shares = |shared: &&usize| **shared >= num_tokens;
        let first = at - shared[..at].iter().rev().take_while(shares).count();
        let last = at + shared[at..].iter().take_while(shares).count();
        let found = order[first..=last].iter().map(|&row| rows[row].1.min(num_tokens));
        let (most_found, sum_found) = (found.clone().max().unwrap_or(0), found.sum::<usize>());
        let saved = (last - first + 1) * num_tokens - sum_found;
        (saved.saturating_sub(num_tokens - most_found), order[at], num_tokens)
    });
    let (saved, row, num_tokens) = best.max()?;
    (saved >= MIN_SAVED_TOKENS).then_some((row, num_tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(num_new: usize) -> RowPlan {
        RowPlan { num_new, num_found: 0, found_in: None, live: None, alike: 0, is_alone: false }
    }

    fn live(batch: u64, row: usize, num_new: usize) -> RowPlan {
        RowPlan { live: Some(LiveRow { batch, row }), ..new(num_new) }
    }

    /// The groups that follow each other until all rows are computed. The live batches are 1, of
    /// three rows, and 2, of one.
    fn check(rows: &[RowPlan], most_tokens: usize, expected: &[(&[usize], Option<u64>)]) {
        let num_live_rows = BTreeMap::from([(1, 3), (2, 1)]);
        let mut left: Vec<usize> = (0..rows.len()).collect();
        let mut found = Vec::new();
        while !left.is_empty() {
            let plans: Vec<RowPlan> = left.iter().map(|&row| rows[row]).collect();
            let group = next_group(&plans, &num_live_rows, most_tokens, |_| true);
            let group = group.expect("rows are left");
            let members: Vec<usize> = group.rows.iter().map(|&row| left[row]).collect();
            left.retain(|row| !members.contains(row));
            found.push((members, group.moves));
        }
        let expected: Vec<_> =
            expected.iter().map(|(rows, moves)| (rows.to_vec(), *moves)).collect();
        assert_eq!(found, expected, "{rows:?}");
    }

    #[test]
    fn rows_of_similar_length_are_computed_together() {
        check(&[new(40), new(40), new(40)], 120, &[(&[0, 1, 2], None)]);
        check(&[new(40), new(40), new(40)], 119, &[(&[0, 1], None), (&[2], None)]);
        check(&[new(40), new(40)], 0, &[(&[0], None), (&[1], None)]);
        // Little is lost among few tokens.
        check(&[new(1), new(12), new(3)], 100, &[(&[0, 1, 2], None)]);
        check(&[new(1), new(500), new(2), new(300)], 1000, &[(&[1, 3], None), (&[0, 2], None)]);
        assert_eq!(next_group(&[], &BTreeMap::new(), 100, |_| true), None);
        // Those that begin alike stand side by side.
        let [one, other] = [0, 1].map(|alike| RowPlan { alike, ..new(5) });
        check(&[one, other, one, other], 100, &[(&[0, 2, 1, 3], None)]);
    }

    #[test]
    fn a_pass_has_as_many_rows_as_there_is_memory_for() {
        let rows = [new(5), new(5), new(5)];
        let group = |most_rows: usize| {
            let fits = |rows: &[usize]| rows.len() <= most_rows;
            next_group(&rows, &BTreeMap::new(), 100, fits).expect("rows").rows
        };
        assert_eq!([group(0).len(), group(1).len(), group(2).len(), group(9).len()], [1, 1, 2, 3]);
    }

    #[test]
    fn a_row_that_failed_with_others_is_computed_alone_and_last() {
        let alone = RowPlan { is_alone: true, ..new(4) };
        check(&[alone, new(4), alone, new(4)], 100, &[(&[1, 3], None), (&[0], None), (&[2], None)]);
    }

    #[test]
    fn a_batch_moves_only_if_all_its_rows_go_on_alike() {
        let all = [live(1, 0, 1), live(1, 1, 1), live(1, 2, 1)];
        check(&all, 100, &[(&[0, 1, 2], Some(1))]);
        // In any order.
        check(&[all[2], all[0], all[1]], 100, &[(&[1, 2, 0], Some(1))]);
        // Rows fork, drop, go on by different lengths, or have others beside them.
        check(&[all[0], all[1], all[1], all[2]], 100, &[(&[0, 1, 2, 3], None)]);
        check(&all[..2], 100, &[(&[0, 1], None)]);
        check(&[all[0], all[1], live(1, 2, 2)], 100, &[(&[0, 1, 2], None)]);
        check(&[all[0], all[1], all[2], new(1)], 100, &[(&[3, 0, 1, 2], None)]);
        check(&[live(2, 0, 1), all[1], all[0], all[2]], 100, &[(&[2, 1, 3, 0], None)]);
        check(&[live(2, 0, 5)], 100, &[(&[0], Some(2))]);
        // A later pass needs the batch too.
        check(&[all[0], all[1], all[2], all[0]], 3, &[(&[0, 1, 2], None), (&[3], None)]);
        let long = live(2, 0, 500);
        check(&[long, live(2, 0, 1)], 100, &[(&[0], None), (&[1], Some(2))]);
    }

    #[test]
    fn a_prefix_that_many_rows_share_is_read_once() {
        /// Rows of `first` repeated, then their own tokens; `found` of them are found.
        fn check(rows: &[(usize, &[u32], usize)], expected: Option<usize>) {
            let row = |&(shared, own, found): &(usize, &[u32], usize)| {
                let ids = (0..shared as u32).chain(own.iter().map(|token| token + 1000));
                (ids.collect::<Vec<u32>>(), found)
            };
            let rows: Vec<(Vec<u32>, usize)> = rows.iter().map(row).collect();
            let borrowed: Vec<(&[u32], usize)> =
                rows.iter().map(|(ids, found)| (ids.as_slice(), *found)).collect();
            let prefix =
                shared_prefix(&borrowed).map(|(row, num_tokens)| &rows[row].0[..num_tokens]);
            let whole: Vec<u32> = (0..expected.unwrap_or(0) as u32).collect();
            assert_eq!(prefix, expected.map(|_| whole.as_slice()), "{rows:?}");
        }
        check(&[(200, &[1], 0), (200, &[2], 0)], Some(200));
        check(&[(200, &[1], 0), (0, &[7, 8], 0), (200, &[2, 3], 0), (200, &[3], 0)], Some(200));
        // Each row has a token of its own.
        check(&[(200, &[], 0), (200, &[2], 0), (200, &[], 0)], Some(199));
        // The longest is not the best if fewer share it.
        check(&[(300, &[1], 0), (300, &[2], 0), (150, &[3], 0), (150, &[4], 0)], Some(150));
        // It saves too little, or is found.
        check(&[(100, &[1], 0), (100, &[2], 0)], None);
        check(&[(200, &[1], 200), (200, &[2], 200), (200, &[3], 200)], None);
        check(&[(200, &[1], 200), (200, &[2], 0), (200, &[3], 0)], Some(200));
        check(&[(200, &[1], 100), (200, &[2], 100)], None);
        check(&[(500, &[1], 0)], None);
        check(&[], None);
        check(&[(0, &[], 0), (0, &[], 0)], None);
    }
}
