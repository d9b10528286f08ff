// Why a model cannot be loaded is said in the language of the window.
import { expect, test } from 'vitest';
import type { ModelProblem, ModelProblemWhat } from '../platform/wire';
import { language } from '../text';
import { problemSentence } from './problems';

const whats: { [Type in ModelProblemWhat['type']]: Extract<ModelProblemWhat, { type: Type }> } = {
  no_snapshot: { type: 'no_snapshot' },
  file_missing: { type: 'file_missing', file: 'tokenizer.json' },
  no_weights: { type: 'no_weights' },
  file_unreadable: { type: 'file_unreadable', file: 'config.json', reason: 'EOF' },
  folder_unreadable: { type: 'folder_unreadable', reason: 'EACCES' },
  no_model_type: { type: 'no_model_type' },
  architecture: { type: 'architecture', model_type: 'granit', nearest: 'granite' },
  too_much_memory: { type: 'too_much_memory', limit_bytes: 3e9 },
  too_slow: { type: 'too_slow', seconds: 30 },
  crashed: { type: 'crashed', status: 'signal 11' },
};

/** Nothing is near to it. */
const unknown: ModelProblemWhat = { type: 'architecture', model_type: 'zzz', nearest: null };

test.each([...Object.values(whats), unknown])('%j is said in both languages', (what) => {
  const problem: ModelProblem = { kind: 'incomplete', what, detail: 'in English' };
  const [english, german] = (['en', 'de'] as const).map((chosen) => {
    language.choose(chosen, localStorage);
    return problemSentence(problem);
  });
  language.choose('en', localStorage);
  expect(english).toMatch(/^It is not complete: .+\.$/);
  expect(german).toMatch(/^Es ist nicht vollständig: .+\.$/);
  for (const sentence of [english, german]) {
    expect(sentence).not.toContain('in English');
    // What stands for a value must have become one, also inside a string.
    expect(sentence).not.toMatch(/what\.|undefined|null|\$\{/);
    for (const value of Object.values(what).filter((value) => value !== what.type && typeof value === 'string'))
      expect(sentence).toContain(value);
  }
});
