// Where the model and the system prompt of a chat come from.
import { expect, test } from 'vitest';
import type { Folder, Persona } from '../platform/wire';
import { sourceOfModel, sourceOfPrompt } from './sources';

const editor: Persona = { id: 'e', name: 'Editor', system_prompt: 'Correct it.', model: 'owner/small', values: {} };
const moving: Folder = { id: 'm', name: 'Moving', system_prompt: 'Be brief.', model: 'owner/large' };
const nothing = { persona: null, folder: null };
const all = { persona: editor, folder: moving };

test.each([
  ['owner/small', all, 'From the persona'],
  ['owner/large', all, 'From the folder “Moving”'],
  ['owner/other', all, 'Loaded for all chats'],
  ['owner/small', nothing, 'Loaded for all chats'],
  [null, all, null],
])('the model %j', (model, begun, words) => expect(sourceOfModel(model, begun)).toBe(words));

test.each([
  ['Correct it.', all, 'From the persona'],
  ['Be brief.', all, 'From the folder “Moving”'],
  ['Be long.', all, 'From this chat'],
  ['Be brief.', nothing, 'From this chat'],
  ['', nothing, 'From the model, as long as this chat has none of its own'],
])('the system prompt %j', (prompt, begun, words) => expect(sourceOfPrompt(prompt, 'You are.', begun)).toBe(words));

test('no system prompt comes from nowhere', () => expect(sourceOfPrompt('', null, all)).toBeNull());
