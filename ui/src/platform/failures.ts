// What a core says has failed, in the language of the window.
import { strings, type SaidNotice } from '../text';
import type { FailureKind, NoticeKind } from './wire';

/** What a model is called. Whoever knows it says so with {@link callModels}. */
let titleOf = (name: string): string => name;

/** Has sentences call models as `title` does. */
export function callModels(title: (name: string) => string): void {
  titleOf = title;
}

/** The sentence of a kind, else one around the core's own. */
export function failureSentence({ message, kind }: { message: string; kind?: FailureKind | null }): string {
  if (!kind) return strings.failedOtherwise(message);
  // A newer core may know more kinds than this window.
  const words = strings.failures[kind.type] as ((kind: FailureKind) => string) | undefined;
  return words?.(withTitles(kind)) ?? strings.failedOtherwise(message);
}

/** What the core tells without having been asked. */
export function noticeSentence({ text, kind }: { text: string; kind?: NoticeKind | null }): string {
  if (!kind) return text;
  if (kind.type === 'failed') return failureSentence(kind.why);
  const words = strings.notices[kind.type] as ((kind: SaidNotice) => string) | undefined;
  const titled = withTitles(kind);
  const said = 'why' in titled ? { ...titled, why: failureSentence(titled.why) } : titled;
  return words?.(said as SaidNotice) ?? text;
}

/** Their models may not exist: whoever looks for the mistake needs the name as it was asked for. */
const WITH_WHOLE_NAME = new Set(['no_such_model', 'not_on_hub', 'no_revision', 'unauthorized']);

function withTitles<Kind extends FailureKind | NoticeKind>(kind: Kind): Kind {
  if (WITH_WHOLE_NAME.has(kind.type)) return kind;
  if ('draft' in kind) return { ...kind, model: titleOf(kind.model), draft: titleOf(kind.draft) };
  if ('model' in kind && kind.model !== null) return { ...kind, model: titleOf(kind.model) };
  if (kind.type === 'quit_unexpectedly' && kind.quit.model !== null) {
    return { ...kind, quit: { ...kind.quit, model: titleOf(kind.quit.model) } };
  }
  if (kind.type !== 'not_enough_memory') return kind;
  const what = typeof kind.what === 'string' ? kind.what : { model: titleOf(kind.what.model) };
  return { ...kind, what, in_use: kind.in_use.map(titleOf), pinned: kind.pinned.map(titleOf) };
}
