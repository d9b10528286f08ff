// The tree of stored pieces as rows: which are shown, how deep they are, and where the arrow keys go.
import type { CacheNode } from '../platform/wire';

export interface TreeRow {
  node: CacheNode;
  /** 0 for a root. */
  depth: number;
  numChildren: number;
  isExpanded: boolean;
}

/** Rows in the order of `nodes` (depth first), without the descendants of folded ones. */
export function treeRows(nodes: CacheNode[], folded: ReadonlySet<string>): TreeRow[] {
  const numChildren = new Map<string, number>();
  for (const { parent_key } of nodes) {
    if (parent_key !== null) numChildren.set(parent_key, (numChildren.get(parent_key) ?? 0) + 1);
  }
  const shown = new Map<string, TreeRow>();
  const known = new Set(nodes.map(({ key }) => key));
  for (const node of nodes) {
    // A node whose parent is missing from the answer becomes a root.
    const hasParent = node.parent_key !== null && known.has(node.parent_key);
    const parent = hasParent ? shown.get(node.parent_key ?? '') : undefined;
    if (hasParent && !parent?.isExpanded) continue;
    const children = numChildren.get(node.key) ?? 0;
    const isExpanded = children > 0 && !folded.has(node.key);
    shown.set(node.key, { node, depth: parent ? parent.depth + 1 : 0, numChildren: children, isExpanded });
  }
  return [...shown.values()];
}

/** Owns which rows are folded, open and in the tab order; by key, so that a refresh does not change it. */
export class TreeState {
  nodes = $state.raw<CacheNode[]>([]);
  #folded = $state.raw<ReadonlySet<string>>(new Set());
  /** The row whose details are shown. */
  openKey = $state<string | null>(null);
  #activeKey = $state<string | null>(null);

  readonly rows = $derived(treeRows(this.nodes, this.#folded));
  /** The one row in the tab order. */
  readonly activeKey = $derived(
    this.rows.some(({ node }) => node.key === this.#activeKey) ? this.#activeKey : (this.rows[0]?.node.key ?? null),
  );

  activate(key: string): void {
    this.#activeKey = key;
  }

  fold(key: string, isFolded: boolean): void {
    const folded = new Set(this.#folded);
    if (isFolded) folded.add(key);
    else folded.delete(key);
    this.#folded = folded;
  }

  toggleDetails(key: string): void {
    this.activate(key);
    this.openKey = this.openKey === key ? null : key;
  }

  /** Handles a key as trees do; returns whether it did anything. */
  press(key: string): boolean {
    const index = this.rows.findIndex(({ node }) => node.key === this.activeKey);
    const row = this.rows[index];
    if (!row) return false;
    const { node, numChildren, isExpanded, depth } = row;
    const go = (goal: TreeRow | undefined) => goal && this.activate(goal.node.key);
    switch (key) {
      case 'ArrowDown':
        go(this.rows[index + 1]);
        break;
      case 'ArrowUp':
        go(this.rows[index - 1]);
        break;
      case 'Home':
        go(this.rows[0]);
        break;
      case 'End':
        go(this.rows.at(-1));
        break;
      case 'ArrowRight':
        if (isExpanded) go(this.rows[index + 1]);
        else if (numChildren > 0) this.fold(node.key, false);
        break;
      case 'ArrowLeft':
        if (isExpanded) this.fold(node.key, true);
        else go(this.rows.slice(0, index).findLast((above) => above.depth < depth));
        break;
      case 'Enter':
      case ' ':
        this.toggleDetails(node.key);
        break;
      default:
        return false;
    }
    return true;
  }
}
