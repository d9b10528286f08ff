// Why a model cannot be loaded, in the language of the window.
import type { ModelProblem, ModelProblemWhat } from '../platform/wire';
import { shortModelName } from '../status/engine';
import { strings } from '../text';

/** Why a model that is set aside is not loaded. */
export function setAsideSentence(name: string): string {
  return strings.failures.model_set_aside({ type: 'model_set_aside', model: shortModelName(name) });
}

export function problemSentence({ kind, what, detail }: ModelProblem): string {
  const { problems, problemWhats, problemBehind } = strings.models;
  // A newer core may know more of them than this window.
  const words = what && (problemWhats[what.type] as ((what: ModelProblemWhat) => string) | undefined);
  return words ? `${problems[kind]}: ${words(what)}.` : problemBehind(problems[kind], detail);
}
