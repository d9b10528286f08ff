// What a comparison says of its answers.
import type { CompareColumn, Message, MessageStats } from '../platform/wire';
import { strings } from '../text';
import { statusLine, type StatusLine } from './stats';

/** The settings of a column that are not those of the chat. */
export function settingsWords({ temperature, seed, thinking }: CompareColumn): string {
  const { compare, settings } = strings;
  const parts = [
    temperature === null ? '' : compare.withTemperature(temperature),
    seed === null ? '' : compare.withSeed(seed),
    thinking === null ? '' : compare.withThinking(settings.rows.thinking.choices?.[thinking] ?? thinking),
  ];
  return parts.filter((part) => part !== '').join(', ');
}

/** The pill of an answer. `branch`: the chat, which ends in one of the answers, or what stands before its question. */
export function compareStatus(answer: Message & { stats: MessageStats }, branch: readonly Message[]): StatusLine {
  const end = branch.findIndex(({ id }) => id === answer.parent_id);
  const before = end === -1 ? branch : branch.slice(0, end + 1);
  const line = statusLine(answer, [...before, answer], false);
  if (answer.stats.miss?.cause !== 'other_model') return line;
  // Nothing was lost: this model reads the chat for the comparison.
  return { ...line, kind: 'read', words: strings.stats.firstReading };
}

/** The figures under an answer, which can be compared at a glance. */
export function compareFigures(stats: MessageStats): [name: string, value: string][] {
  const { compare } = strings;
  const rows: [string, string][] = [];
  if (stats.time_to_first_token_ms > 0) rows.push([compare.firstToken, compare.after(stats.time_to_first_token_ms)]);
  if (stats.generation_tokens > 0) {
    if (stats.generation_tps > 0) rows.push([compare.writing, compare.rate(stats.generation_tps)]);
    rows.push([compare.length, strings.common.tokens(stats.generation_tokens)]);
  }
  return rows;
}
