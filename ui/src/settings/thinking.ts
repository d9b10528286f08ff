// The levels of thinking that a model can be given, and what they are called.
import type { Thinking, ThinkingChoices } from '../platform/wire';
import { strings } from '../text';
import { table } from './table';

const kind = table.find(({ key }) => key === 'thinking')?.kind;
const all = (kind?.type === 'choice' ? kind.values : []) as readonly Thinking[];

/**
 * The levels to choose from, with one that is chosen although the model lacks it. None if there is nothing to
 * choose, and all while the model is not known (null).
 */
export function shownLevels(choices: ThinkingChoices | null, chosen: Thinking | null): readonly Thinking[] {
  if (choices === null) return all;
  if (choices.levels.length === 0) return [];
  return all.filter((level) => level === 'automatic' || level === chosen || choices.levels.includes(level));
}

/** Names a level; for `automatic` also the level that it stands for. */
export function thinkingLabel(level: Thinking, choices: ThinkingChoices | null): string {
  const names = strings.settings.rows.thinking.choices;
  const name = (known: Thinking) => names?.[known] ?? known;
  const own = level === 'automatic' ? choices?.automatic : null;
  return own ? strings.settings.automaticThinking(name(own)) : name(level);
}
