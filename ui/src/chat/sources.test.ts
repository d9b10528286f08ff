// Where the model and the system prompt of a chat come from.
import { expect, test } from 'vitest';
import type { ChatModel, Folder, Persona } from '../platform/wire';
import { sourceOfModel, sourceOfPrompt } from './sources';

const editor: Persona = { id: 'e', name: 'Editor', system_prompt: 'Correct it.', model: 'owner/small', values: {} };
const moving: Folder = { id: 'm', name: 'Moving', system_prompt: 'Be brief.', model: 'owner/large' };
const nothing = { persona: null, folder: null };
const all = { persona: editor, folder: moving };

test.each<[string, ChatModel['source'], typeof all | typeof nothing, string]>([
  ['owner/small', 'chat', all, 'From the persona'],
  ['owner/small', 'chat', nothing, 'Chosen in this chat'],
  ['owner/other', 'chat', all, 'Chosen in this chat'],
  ['owner/small', 'answer', all, 'Of the last answer'],
  ['owner/large', 'folder', all, 'From the folder “Moving”'],
  ['owner/large', 'app', all, 'Loaded'],
])('the model %j of %s', (name, source, begun, words) =>
  expect(sourceOfModel({ name, source, missing: null }, begun)).toBe(words),
);

test.each([
  ['Correct it.', all, 'From the persona'],
  ['Be brief.', all, 'From the folder “Moving”'],
  ['Be long.', all, 'From this chat'],
  ['Be brief.', nothing, 'From this chat'],
  ['', nothing, 'From the model, as long as this chat has none of its own'],
])('the system prompt %j', (prompt, begun, words) => expect(sourceOfPrompt(prompt, 'You are.', begun)).toBe(words));

test('no system prompt comes from nowhere', () => expect(sourceOfPrompt('', null, all)).toBeNull());
