// Parses the text of a number field: into a value, or into the sentence that says what is allowed.
import { strings } from '../text';
import type { SettingKind } from './table';

export type Parsed<T> = { value: T } | { problem: string };

/** The kinds of settings that have a number field. */
export type NumberKind = Extract<SettingKind, { type: 'number' | 'count' | 'optional_count' | 'bytes' }>;

interface Range {
  least: number;
  most: number;
  isWhole?: boolean;
}

const GB = 1e9;

/** A setting's value as its field shows it: sizes in gigabytes, small ones with as many decimals as they need. */
export function toField(kind: NumberKind, value: unknown): number | null {
  if (typeof value !== 'number') return null;
  if (kind.type !== 'bytes') return value;
  const size = value / GB;
  return size < 0.1 ? Number(size.toPrecision(2)) : Math.round(size * 100) / 100;
}

/** What its field shows, as the language writes numbers; only whole ones are long enough for groups of digits. */
export function fieldText(kind: NumberKind, shown: number): string {
  const { number, decimalSign } = strings.common;
  return kind.type === 'number' || kind.type === 'bytes' ? String(shown).replace('.', decimalSign) : number(shown);
}

/** The setting's value for what its field shows. */
export function fromField(kind: NumberKind, shown: number | null): number | null {
  return kind.type === 'bytes' && shown !== null ? Math.round(shown * GB) : shown;
}

/** The same kind with a lower upper end. */
export function boundedBy(kind: NumberKind, most: number | null): NumberKind {
  return most === null || kind.type === 'bytes' ? kind : { ...kind, max: Math.min(kind.max, most) };
}

/** What was typed into the field of a setting; an empty one means no value where that is allowed. */
export function parseField(kind: NumberKind, text: string): Parsed<number | null> {
  if (kind.type === 'number') return parseNumber(text, { least: kind.min, most: kind.max });
  if (kind.type === 'bytes') return parseNumber(text, { least: 0, most: Math.floor(kind.max / GB) });
  if (kind.type === 'optional_count' && text.trim() === '') return { value: null };
  return parseNumber(text, { least: kind.min, most: kind.max, isWhole: true });
}

function parseNumber(text: string, { least, most, isWhole = false }: Range): Parsed<number> {
  const { groupSign } = strings.common;
  const groups = text.trim().split(groupSign);
  const isGrouped =
    isWhole && groups.every((group, index) => /^\d+$/.test(group) && (index === 0 || group.length === 3));
  const value = isGrouped ? Number(groups.join('')) : Number(text.trim().replace(',', '.'));
  const isAllowed =
    text.trim() !== '' &&
    Number.isFinite(value) &&
    value >= least &&
    value <= most &&
    (!isWhole || Number.isInteger(value));
  if (isAllowed) return { value };
  const problem = isWhole ? strings.settings.enterWhole : strings.settings.enterNumber;
  return { problem: problem(strings.common.number(least), strings.common.number(most)) };
}
