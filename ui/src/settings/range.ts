// Between which numbers a setting may be.
import { table } from './table';

/** The smallest and the largest value of the setting with this key; null: it is no number, or no setting. */
export function rangeOf(key: string): readonly [number, number] | null {
  const kind = table.find((row) => row.key === key)?.kind;
  if (!kind || !('max' in kind)) return null;
  return ['min' in kind ? kind.min : 0, kind.max];
}
