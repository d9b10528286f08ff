// What a core says has failed, in the language of the window.
import { shortModelName } from '../status/engine';
import { strings } from '../text';
import type { FailureKind } from './wire';

/** The sentence of a kind, else the core's own, which has none for what is rare. */
export function failureSentence({ message, kind }: { message: string; kind?: FailureKind | null }): string {
  if (!kind) return message;
  // A newer core may know more kinds than this window.
  const words = strings.failures[kind.type] as ((kind: FailureKind) => string) | undefined;
  return words?.(withTitles(kind)) ?? message;
}

/** Models are called as everywhere else. */
function withTitles(kind: FailureKind): FailureKind {
  if (!('model' in kind)) return kind;
  if (kind.type !== 'not_enough_memory') return { ...kind, model: shortModelName(kind.model) };
  return {
    ...kind,
    model: kind.model === null ? null : shortModelName(kind.model),
    in_use: kind.in_use.map(shortModelName),
    pinned: kind.pinned.map(shortModelName),
  };
}
