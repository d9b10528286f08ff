// What a core says has failed, in the language of the window.
import { strings } from '../text';
import type { FailureKind } from './wire';

/** What a model is called. Whoever knows it says so with {@link callModels}. */
let titleOf = (name: string): string => name;

/** Has sentences call models as `title` does. */
export function callModels(title: (name: string) => string): void {
  titleOf = title;
}

/** The sentence of a kind, else the core's own, which has none for what is rare. */
export function failureSentence({ message, kind }: { message: string; kind?: FailureKind | null }): string {
  if (!kind) return message;
  // A newer core may know more kinds than this window.
  const words = strings.failures[kind.type] as ((kind: FailureKind) => string) | undefined;
  return words?.(withTitles(kind)) ?? message;
}

function withTitles(kind: FailureKind): FailureKind {
  if ('model' in kind) return { ...kind, model: titleOf(kind.model) };
  if (kind.type !== 'not_enough_memory') return kind;
  const what = typeof kind.what === 'string' ? kind.what : { model: titleOf(kind.what.model) };
  return { ...kind, what, in_use: kind.in_use.map(titleOf), pinned: kind.pinned.map(titleOf) };
}
