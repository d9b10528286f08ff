// Which language the window has, and that its strings follow it.
import { afterEach, expect, test, vi } from 'vitest';
import { problemSentence } from '../models/problems';
import { language, strings, type LanguageChoice } from '.';
import { languageOf } from './language.svelte';

afterEach(() => language.choose('system', localStorage));

test.each<[choice: LanguageChoice, system: string[], expected: string]>([
  ['system', ['de-AT', 'en'], 'de'],
  ['system', ['fr-FR', 'de'], 'de'],
  ['system', ['fr-FR'], 'en'],
  ['system', [], 'en'],
  ['en', ['de-DE'], 'en'],
  ['de', ['en-US'], 'de'],
])('%s on a system with %j is %s', (choice, system, expected) => {
  expect(languageOf(choice, system)).toBe(expected);
});

test('the strings follow the choice, which outlives a restart', () => {
  expect(strings.common.cancel).toBe('Cancel');
  language.choose('de', localStorage);
  expect(strings.common.cancel).toBe('Abbrechen');
  language.choice = 'system';
  language.restore(localStorage);
  expect(strings.common.cancel).toBe('Abbrechen');
});

test('a choice that no version knows is the system’s language', () => {
  localStorage.setItem('cairn.language', 'xx');
  language.restore(localStorage);
  expect(language.choice).toBe('system');
});

test('the strings follow a system whose language changes', () => {
  const languages = vi.spyOn(navigator, 'languages', 'get').mockReturnValue(['de-DE']);
  window.dispatchEvent(new Event('languagechange'));
  expect(strings.common.cancel).toBe('Abbrechen');
  languages.mockRestore();
  window.dispatchEvent(new Event('languagechange'));
  expect(strings.common.cancel).toBe('Cancel');
});

test('what a core says in English stands behind a sentence of the language, as one of its own', () => {
  language.choose('de', localStorage);
  const detail = 'the tokenizer has no vocabulary';
  expect(problemSentence({ kind: 'broken', detail })).toBe(
    'Eine seiner Dateien ist beschädigt. The tokenizer has no vocabulary.',
  );
  const missing = { type: 'file_missing' as const, file: 'tokenizer.json' };
  expect(problemSentence({ kind: 'incomplete', what: missing, detail })).toBe(
    'Es ist nicht vollständig: tokenizer.json fehlt.',
  );
});
