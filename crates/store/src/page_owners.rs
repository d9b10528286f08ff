//! Finds the table that each page with rows belongs to, in a file whose trees are damaged.
//!
//! A tree that is whole says it. Where a page of a tree is lost, the pages below it have no owner any
//! more; they go to the one damaged table whose columns their rows fit. Pages in no use are left out:
//! rows that were deleted must not come back.

use std::collections::HashMap;

use crate::pages::{Cell, Pages, TablePage};
use crate::records::{Layout, Value, values};

/// How many pages of a part without an owner are compared with the tables.
const MAX_SAMPLED: usize = 8;

/// The pages with rows of each table that has any.
pub(crate) fn page_owners<'a>(
    pages: &Pages,
    layouts: &'a [Layout],
    roots: &HashMap<String, u32>,
) -> HashMap<&'a str, Vec<u32>> {
    let mut walk = Walk::new(pages);
    let mut owners: HashMap<&str, Vec<u32>> = HashMap::new();
    let mut damaged = Vec::new();
    for layout in layouts {
        let root = roots.get(&layout.table);
        let found = root.map(|root| walk.leaves(*root, |cells| walk_fits(pages, layout, cells)));
        if found.as_ref().is_none_or(|found| !found.is_whole) {
            damaged.push(layout);
        }
        owners.insert(&layout.table, found.map(|found| found.leaves).unwrap_or_default());
    }
    if damaged.is_empty() {
        return owners;
    }
    walk.leave_out(&pages.free());
    for top in walk.tops() {
        let found = walk.leaves(top, |_| true);
        let rows = sample(pages, &found.leaves);
        let mut fitting = damaged.iter().filter(|layout| rows.iter().all(|row| layout.fits(row)));
        if let (Some(layout), None) = (fitting.next(), fitting.next())
            && !rows.is_empty()
        {
            owners.entry(&layout.table).or_default().extend(found.leaves);
        }
    }
    owners
}

/// The first page of each table, as far as the list of tables can still be read.
pub(crate) fn listed_roots(pages: &Pages) -> HashMap<String, u32> {
    let is_list = |cells: &[Cell]| cells.iter().any(|cell| listed(pages, cell).is_some());
    let mut walk = Walk::new(pages);
    let list = walk.leaves(1, is_list);
    let mut leaves = list.leaves;
    if !list.is_whole {
        walk.leave_out(&pages.free());
        for top in walk.tops() {
            leaves.extend(walk.leaves(top, is_list).leaves);
        }
    }
    let mut roots = HashMap::new();
    for leaf in leaves {
        let Some(TablePage::Leaf(cells)) = pages.table_page(leaf) else { continue };
        roots.extend(cells.iter().filter_map(|cell| listed(pages, cell)).flatten());
    }
    roots
}

/// Reads a row of the list of tables. `None` if it is no such row, `Some(None)` if it is not a
/// table's.
fn listed(pages: &Pages, cell: &Cell) -> Option<Option<(String, u32)>> {
    use Value::{Integer, Null, Text};
    match &values(&pages.content(cell)?)?[..] {
        [Text(kind), Text(name), Text(_), Integer(root), Text(_) | Null] => match kind.as_str() {
            "table" => Some(u32::try_from(*root).ok().map(|root| (name.clone(), root))),
            "index" | "view" | "trigger" => Some(None),
            _ => None,
        },
        _ => None,
    }
}

/// The greatest version among the rows of the table of migrations, wherever they are.
pub(crate) fn migrated_to(pages: &Pages) -> Option<i64> {
    let version = |cell: Cell| match &values(&pages.content(&cell)?)?[..] {
        // The number, a name, a time, success, a checksum of 48 bytes and a duration.
        [Value::Integer(version), Value::Text(_), _, _, Value::Blob(sum), Value::Integer(_)] => {
            (sum.len() == 48).then_some(*version)
        }
        _ => None,
    };
    let leaves = pages.numbers().filter_map(|number| match pages.table_page(number)? {
        TablePage::Leaf(cells) => Some(cells),
        TablePage::Interior(_) => None,
    });
    leaves.flatten().filter_map(version).max()
}

/// Whether any row of a page is one of this table. Single rows may be damaged.
fn walk_fits(pages: &Pages, layout: &Layout, cells: &[Cell]) -> bool {
    cells.is_empty()
        || cells.iter().filter_map(|cell| row(pages, cell)).any(|row| layout.fits(&row))
}

/// The rows of some of these pages that can be read.
fn sample(pages: &Pages, leaves: &[u32]) -> Vec<Vec<Value>> {
    let mut rows = Vec::new();
    for leaf in leaves.iter().take(MAX_SAMPLED) {
        if let Some(TablePage::Leaf(cells)) = pages.table_page(*leaf) {
            rows.extend(cells.iter().filter_map(|cell| row(pages, cell)));
        }
    }
    rows
}

/// The values of a row; none if a part of it is lost.
pub(crate) fn row(pages: &Pages, cell: &Cell) -> Option<Vec<Value>> {
    values(&pages.content(cell)?)
}

/// Goes down trees. No page is in two of them.
struct Walk<'a> {
    pages: &'a Pages,
    is_claimed: Vec<bool>,
}

/// The leaves of a tree.
struct Found {
    leaves: Vec<u32>,
    /// No page of the tree is missing.
    is_whole: bool,
}

impl<'a> Walk<'a> {
    fn new(pages: &'a Pages) -> Walk<'a> {
        Walk { pages, is_claimed: vec![false; pages.last() as usize + 1] }
    }

    /// The pages with rows below this one that are accepted, from the first to the last.
    fn leaves(&mut self, root: u32, accepts: impl Fn(&[Cell]) -> bool) -> Found {
        let mut found = Found { leaves: Vec::new(), is_whole: true };
        let mut open = vec![root];
        while let Some(number) = open.pop() {
            let is_free = self.is_claimed.get(number as usize) == Some(&false);
            let page = if is_free { self.pages.table_page(number) } else { None };
            match page {
                Some(TablePage::Interior(children)) => open.extend(children.into_iter().rev()),
                Some(TablePage::Leaf(cells)) if accepts(&cells) => found.leaves.push(number),
                _ => {
                    found.is_whole = false;
                    continue;
                }
            }
            self.is_claimed[number as usize] = true;
        }
        found
    }

    fn leave_out(&mut self, numbers: &[u32]) {
        for number in numbers {
            if let Some(is_claimed) = self.is_claimed.get_mut(*number as usize) {
                *is_claimed = true;
            }
        }
    }

    /// The pages of tables to which no page leads and that are in no tree.
    fn tops(&self) -> Vec<u32> {
        let mut has_parent = vec![false; self.is_claimed.len()];
        let mut tables = Vec::new();
        for number in self.pages.numbers().filter(|number| !self.is_claimed[*number as usize]) {
            let Some(page) = self.pages.table_page(number) else { continue };
            tables.push(number);
            let TablePage::Interior(children) = page else { continue };
            for child in children {
                if let Some(has_parent) = has_parent.get_mut(child as usize) {
                    *has_parent = true;
                }
            }
        }
        tables.retain(|number| !has_parent[*number as usize]);
        tables
    }
}
