// Parses the text of a number field: into a value, or into the sentence that says what is allowed.
import { strings } from '../text';
import { formatNumber } from '../text/format';

export type Parsed<T> = { value: T } | { problem: string };

interface Range {
  least: number;
  most: number;
  isWhole?: boolean;
}

export function parseNumber(text: string, { least, most, isWhole = false }: Range): Parsed<number> {
  const value = Number(text.trim().replace(',', '.'));
  const isAllowed =
    text.trim() !== '' &&
    Number.isFinite(value) &&
    value >= least &&
    value <= most &&
    (!isWhole || Number.isInteger(value));
  if (isAllowed) return { value };
  const problem = isWhole ? strings.settings.enterWhole : strings.settings.enterNumber;
  return { problem: problem(formatNumber(least), formatNumber(most)) };
}

/** An empty seed means a new one for every answer. */
export function parseSeed(text: string): Parsed<number | null> {
  if (text.trim() === '') return { value: null };
  return parseNumber(text, { least: 0, most: Number.MAX_SAFE_INTEGER, isWhole: true });
}
