// What prevents a miss is really done, and said.
import { beforeEach, expect, test } from 'vitest';
import { App } from '../app.svelte';
import type { Command } from '../platform/wire';
import { bootstrap, conversation, FakePlatform, model, settle } from '../testing/fake';
import type { Remedy } from './misses';
import { carryOut, circumstances } from './remedies';

let platform: FakePlatform;
let app: App;

beforeEach(async () => {
  platform = new FakePlatform();
  platform.answers.bootstrap = bootstrap({
    conversations: [conversation('a', { system_prompt: 'Be verbose.' })],
    models: [model('owner/model'), model('owner/other')],
  });
  app = new App(platform, { nextFrame: (run) => run() });
  app.start();
  platform.connect('open');
  await settle();
  app.chat.select('a');
});

const said = () => app.toasts.items.map(({ tone, text }) => `${tone}: ${text}`);

test.each<[remedy: Remedy, command: Partial<Command>, words: RegExp]>([
  [{ type: 'pin' }, { type: 'pin_conversation', id: 'a', is_pinned: true }, /^info: This chat is pinned/],
  [
    { type: 'disk_limit', bytes: 10e9 },
    { type: 'set_setting', scope: { type: 'app' }, key: 'cache_budget_bytes', value: 10e9 },
    /^info: .*10 GB on disk/,
  ],
  [
    { type: 'memory_limit', bytes: 4e9 },
    { type: 'set_setting', scope: { type: 'app' }, key: 'cache_ram_budget_bytes', value: 4e9 },
    /^info: .*4 GB of memory/,
  ],
  [
    { type: 'system_prompt', text: 'Be brief.' },
    { type: 'set_system_prompt', id: 'a', system_prompt: 'Be brief.' },
    /^info: The system prompt is as it was before/,
  ],
  [
    { type: 'model', name: 'owner/other' },
    { type: 'choose_model', id: 'a', model: 'owner/other' },
    /^info: other answers from now on/,
  ],
  [
    { type: 'kv_bits', model: 'owner/model', value: 'eight_bits' },
    { type: 'set_setting', scope: { type: 'model', name: 'owner/model' }, key: 'kv_bits', value: 'eight_bits' },
    /^info: model stores its memory as before/,
  ],
])('%o', async (remedy, command, words) => {
  await carryOut(app, remedy);
  expect(platform.asked).toContainEqual(command);
  expect(said()).toHaveLength(1);
  expect(said()[0]).toMatch(words);
});

test.each<[remedy: Remedy, command: Command['type']]>([
  [{ type: 'pin' }, 'pin_conversation'],
  [{ type: 'disk_limit', bytes: 10e9 }, 'set_setting'],
  [{ type: 'system_prompt', text: 'x' }, 'set_system_prompt'],
  [{ type: 'model', name: 'owner/other' }, 'load_model'],
])('what fails is an error and nothing else: %o', async (remedy, command) => {
  platform.answers[command] = new Error('No.');
  await carryOut(app, remedy);
  expect(said()).toEqual(['error: No.']);
});

test('what holds now', () => {
  expect(circumstances(app)).toMatchObject({
    isPinned: false,
    isPrivate: false,
    systemPrompt: 'Be verbose.',
    models: ['owner/model', 'owner/other'],
  });
});
