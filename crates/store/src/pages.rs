//! The pages of an SQLite file, read without SQLite: a recovery finds rows in them that no tree leads
//! to any more. The format is <https://www.sqlite.org/fileformat2.html>.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The first byte of a page in a table's tree: for a page with rows, and for one with the numbers
/// of other pages.
const TABLE_LEAF: u8 = 13;
const TABLE_INTERIOR: u8 = 5;
/// The first page has the file's header before its own.
const FILE_HEADER: usize = 100;
/// The header of a write-ahead log, and of each page in it.
const LOG_HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
const LOG_MAGIC: u32 = 0x377f_0682;

/// The pages of a database and of its write-ahead log. Numbers begin with 1.
#[derive(Debug)]
pub(crate) struct Pages {
    file: File,
    page_size: usize,
    num_pages: u32,
    log: Option<Log>,
}

/// The pages that are newer in the write-ahead log.
#[derive(Debug)]
struct Log {
    file: File,
    /// Where the newest committed content of a page begins.
    offsets: HashMap<u32, u64>,
}

/// A page of a table's tree.
#[derive(Debug)]
pub(crate) enum TablePage {
    /// It has rows.
    Leaf(Vec<Cell>),
    /// It leads to these pages, as far as it is sound.
    Interior(Vec<u32>),
}

/// A row of a leaf, whose content may continue on other pages.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) rowid: i64,
    num_bytes: usize,
    local: Vec<u8>,
    /// The page on which the content continues.
    overflow: Option<u32>,
}

impl Pages {
    /// Opens a file that no connection has open: closing it would drop SQLite's locks.
    pub(crate) fn open(path: &Path, page_size: usize) -> io::Result<Pages> {
        let file = File::open(path)?;
        let log = Log::open(path, page_size).filter(|log| !log.offsets.is_empty());
        let in_file = file.metadata()?.len() / page_size as u64;
        let in_log = log.as_ref().and_then(|log| log.offsets.keys().copied().max()).unwrap_or(0);
        let num_pages = u32::try_from(in_file).unwrap_or(u32::MAX).max(in_log);
        Ok(Pages { file, page_size, num_pages, log })
    }

    /// The number of the last page.
    pub(crate) fn last(&self) -> u32 {
        self.num_pages
    }

    /// The numbers of all pages.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + use<> {
        1..=self.num_pages
    }

    /// The bytes of a page; none if there is no such page or the system cannot read it.
    fn read(&self, number: u32) -> Option<Vec<u8>> {
        if number == 0 || number > self.num_pages {
            return None;
        }
        let mut page = vec![0; self.page_size];
        let newer = self.log.as_ref().and_then(|log| Some((&log.file, *log.offsets.get(&number)?)));
        let in_file = (&self.file, u64::from(number - 1) * self.page_size as u64);
        let (file, offset) = newer.unwrap_or(in_file);
        file.read_exact_at(&mut page, offset).ok()?;
        Some(page)
    }

    /// A page of a table's tree; none for any other page. Cells that contradict their page are left out.
    pub(crate) fn table_page(&self, number: u32) -> Option<TablePage> {
        let page = self.read(number)?;
        let start = if number == 1 { FILE_HEADER } else { 0 };
        let header = page.get(start..)?;
        let num_cells = usize::from(be16(header, 3)?);
        let (kind, first) = (header[0], if header[0] == TABLE_INTERIOR { 12 } else { 8 });
        let pointers = header.get(first..first + 2 * num_cells)?.chunks(2);
        let cells = pointers.filter_map(|at| page.get(usize::from(be16(at, 0)?)..));
        match kind {
            TABLE_LEAF => Some(TablePage::Leaf(cells.filter_map(|at| self.cell(at)).collect())),
            TABLE_INTERIOR => {
                let mut children: Vec<u32> = cells.filter_map(|at| be32(at, 0)).collect();
                children.push(be32(header, 8)?);
                Some(TablePage::Interior(children))
            }
            _ => None,
        }
    }

    fn cell(&self, at: &[u8]) -> Option<Cell> {
        let (num_bytes, after) = varint(at)?;
        let (rowid, content) = varint(after)?;
        let num_bytes = usize::try_from(num_bytes).ok()?;
        if num_bytes as u64 > u64::from(self.num_pages) * self.page_size as u64 {
            return None;
        }
        let num_local = self.num_local_bytes(num_bytes);
        let local = content.get(..num_local)?.to_vec();
        let overflow = if num_local < num_bytes { Some(be32(content, num_local)?) } else { None };
        Some(Cell { rowid: rowid.cast_signed(), num_bytes, local, overflow })
    }

    /// How much of a row's content is on its leaf.
    fn num_local_bytes(&self, num_bytes: usize) -> usize {
        let usable = self.page_size;
        let (max, min) = (usable - 35, (usable - 12) * 32 / 255 - 23);
        if num_bytes <= max {
            return num_bytes;
        }
        let even = min + (num_bytes - min) % (usable - 4);
        if even <= max { even } else { min }
    }

    /// The whole content of a row; none if a page of it is lost.
    pub(crate) fn content(&self, cell: &Cell) -> Option<Vec<u8>> {
        let mut content = cell.local.clone();
        let mut next = cell.overflow;
        while content.len() < cell.num_bytes {
            let page = self.read(next?)?;
            let num_bytes = (cell.num_bytes - content.len()).min(self.page_size - 4);
            content.extend_from_slice(&page[4..4 + num_bytes]);
            next = be32(&page, 0);
        }
        Some(content)
    }

    /// The pages that are in no use, as far as the list of them can be read.
    pub(crate) fn free(&self) -> Vec<u32> {
        let mut free = Vec::new();
        let mut next = self.read(1).and_then(|page| be32(&page, 32));
        while let Some(number) = next.filter(|_| free.len() < self.num_pages as usize) {
            let Some(trunk) = self.read(number) else { break };
            free.push(number);
            let num_leaves = be32(&trunk, 4).unwrap_or(0) as usize;
            let leaves = trunk.get(8..8 + 4 * num_leaves).unwrap_or_default().chunks(4);
            free.extend(leaves.filter_map(|leaf| be32(leaf, 0)));
            next = be32(&trunk, 0);
        }
        free
    }
}

impl Log {
    /// Reads a log up to its last whole transaction, as SQLite does; none if there is no log.
    fn open(database: &Path, page_size: usize) -> Option<Log> {
        let mut name = OsString::from(database);
        name.push("-wal");
        let file = File::open(name).ok()?;
        let mut reader = BufReader::new(&file);
        let mut header = [0; LOG_HEADER];
        reader.read_exact(&mut header).ok()?;
        let magic = be32(&header, 0)?;
        if magic & !1 != LOG_MAGIC || be32(&header, 8)? as usize != page_size {
            return None;
        }
        let words = if magic & 1 == 1 { u32::from_be_bytes } else { u32::from_le_bytes };
        let mut sum = checksum(words, [0, 0], &header[..24]);
        if sum != [be32(&header, 24)?, be32(&header, 28)?] {
            return None;
        }
        let (mut offsets, mut uncommitted) = (HashMap::new(), Vec::new());
        let mut frame = vec![0; FRAME_HEADER + page_size];
        let mut offset = LOG_HEADER as u64;
        while reader.read_exact(&mut frame).is_ok() {
            sum = checksum(words, sum, &frame[..8]);
            sum = checksum(words, sum, &frame[FRAME_HEADER..]);
            // Frames of an earlier use of the file have another salt.
            let is_current = frame[8..16] == header[16..24];
            if !is_current || sum != [be32(&frame, 16)?, be32(&frame, 20)?] {
                break;
            }
            uncommitted.push((be32(&frame, 0)?, offset + FRAME_HEADER as u64));
            if be32(&frame, 4)? > 0 {
                offsets.extend(uncommitted.drain(..));
            }
            offset += frame.len() as u64;
        }
        drop(reader);
        Some(Log { file, offsets })
    }
}

fn checksum(words: fn([u8; 4]) -> u32, [mut a, mut b]: [u32; 2], bytes: &[u8]) -> [u32; 2] {
    let word = |bytes: &[u8]| words([bytes[0], bytes[1], bytes[2], bytes[3]]);
    for pair in bytes.chunks_exact(8) {
        a = a.wrapping_add(word(&pair[..4])).wrapping_add(b);
        b = b.wrapping_add(word(&pair[4..])).wrapping_add(a);
    }
    [a, b]
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A number of one to nine bytes, and what follows it.
pub(crate) fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0;
    for (place, byte) in bytes.iter().enumerate().take(9) {
        if place == 8 {
            return Some((number << 8 | u64::from(*byte), &bytes[9..]));
        }
        number = number << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some((number, &bytes[place + 1..]));
        }
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    #[test]
    fn reads_numbers_of_one_to_nine_bytes() {
        fn check(bytes: &[u8], expected: Option<u64>) {
            assert_eq!(varint(bytes).map(|(number, _)| number), expected, "{bytes:?}");
        }
        check(&[0x00], Some(0));
        check(&[0x7f, 0xff], Some(0x7f));
        check(&[0x81, 0x00], Some(0x80));
        check(&[0xff; 9], Some(u64::MAX));
        check(&[0x80], None);
        check(&[], None);
    }
}
