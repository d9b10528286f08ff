// The tree as rows, and where its keys go.
import { expect, test } from 'vitest';
import { node } from '../testing/fake';
import { treeRows, TreeState } from './tree.svelte';

// a ─ b ─ c
//   └ d
// e
const nodes = [
  node('a'),
  node('b', { parent_key: 'a' }),
  node('c', { parent_key: 'b' }),
  node('d', { parent_key: 'a' }),
  node('e'),
];

const drawn = (folded: string[], of = nodes) =>
  treeRows(of, new Set(folded)).map(
    ({ node, depth, isExpanded }) => `${'  '.repeat(depth)}${node.key}${isExpanded ? ' ▾' : ''}`,
  );

test.each<[name: string, rows: string[], expected: string[]]>([
  ['all of it', drawn([]), ['a ▾', '  b ▾', '    c', '  d', 'e']],
  ['a branch folded', drawn(['b']), ['a ▾', '  b', '  d', 'e']],
  ['a root folded hides all below it', drawn(['a']), ['a', 'e']],
  ['a leaf cannot be folded', drawn(['e']), ['a ▾', '  b ▾', '    c', '  d', 'e']],
  [
    'a row whose parent was left out',
    drawn([], [node('x', { parent_key: 'gone' }), node('y', { parent_key: 'x' })]),
    ['x ▾', '  y'],
  ],
  ['nothing', drawn([], []), []],
])('%s', (_, rows, expected) => {
  expect(rows).toEqual(expected);
});

test.each<[keys: string, active: string, rows: string]>([
  ['', 'a', 'abcde'],
  ['ArrowDown ArrowDown', 'c', 'abcde'],
  ['End ArrowDown', 'e', 'abcde'],
  ['End Home ArrowUp', 'a', 'abcde'],
  ['ArrowRight ArrowRight ArrowRight', 'c', 'abcde'],
  ['ArrowRight ArrowRight ArrowLeft ArrowLeft', 'b', 'abde'],
  ['ArrowDown ArrowDown ArrowDown ArrowLeft', 'a', 'abcde'],
  ['ArrowLeft ArrowDown', 'e', 'ae'],
  ['ArrowLeft ArrowRight', 'a', 'abcde'],
  ['End ArrowLeft', 'e', 'abcde'],
])('%s leads to %s', (keys, active, rows) => {
  const tree = new TreeState();
  tree.nodes = nodes;
  for (const key of keys.split(' ').filter(Boolean)) expect(tree.press(key)).toBe(true);
  expect(tree.activeKey).toBe(active);
  expect(tree.rows.map(({ node }) => node.key).join('')).toBe(rows);
});

test('Enter opens a row and closes it, other keys mean nothing', () => {
  const tree = new TreeState();
  expect(tree.press('Enter')).toBe(false);
  tree.nodes = nodes;
  tree.press('Enter');
  expect(tree.openKey).toBe('a');
  tree.press('ArrowDown');
  tree.press(' ');
  expect(tree.openKey).toBe('b');
  tree.press('Enter');
  expect(tree.openKey).toBeNull();
  expect(tree.press('x')).toBe(false);
});

test('what was folded stays so when the tree is asked for again; a row that is gone is not in the tab order', () => {
  const tree = new TreeState();
  tree.nodes = nodes;
  tree.press('End');
  tree.fold('b', true);
  tree.nodes = nodes.slice(0, 4);
  expect(tree.rows.map(({ node }) => node.key)).toEqual(['a', 'b', 'd']);
  expect(tree.activeKey).toBe('a');
});
