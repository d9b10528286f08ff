// Why a model cannot be loaded, in the language of the window.
import type { ModelProblem, ModelProblemWhat } from '../platform/wire';
import { strings } from '../text';

export function problemSentence({ kind, what, detail }: ModelProblem): string {
  const { problems, problemWhats, problemBehind } = strings.models;
  // A newer core may know more of them than this window.
  const words = what && (problemWhats[what.type] as ((what: ModelProblemWhat) => string) | undefined);
  return words ? `${problems[kind]}: ${words(what)}.` : problemBehind(problems[kind], detail);
}
