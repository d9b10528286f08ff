// The levels of thinking that a person can choose from, and where they stand.
import { fireEvent, screen, within } from '@testing-library/svelte';
import { expect, test } from 'vitest';
import type { Reply, Settings, Thinking, ThinkingChoices } from '../platform/wire';
import { bootstrap, conversation, FakePlatform, message, model, settings as values, settle } from '../testing/fake';
import { drawn, openWindow, useWindow } from '../testing/window';
import { shownLevels, thinkingLabel } from './thinking';

useWindow();

const efforts: ThinkingChoices = { levels: ['off', 'low', 'medium', 'xhigh'], automatic: 'medium' };
const onOff: ThinkingChoices = { levels: ['off', 'on'], automatic: null };
const none: ThinkingChoices = { levels: [], automatic: null };

test.each<[ThinkingChoices | null, Thinking | null, Thinking[]]>([
  [efforts, null, ['automatic', 'off', 'low', 'medium', 'xhigh']],
  [efforts, 'max', ['automatic', 'off', 'low', 'medium', 'xhigh', 'max']],
  [onOff, 'on', ['automatic', 'off', 'on']],
  [none, 'high', []],
  [null, null, ['automatic', 'off', 'on', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max']],
])('of %o with %s chosen, %o are shown', (choices, chosen, expected) => {
  expect(shownLevels(choices, chosen)).toEqual(expected);
});

test('automatic says which level that is', () => {
  expect(thinkingLabel('automatic', efforts)).toBe('Automatic (Medium)');
  expect(thinkingLabel('automatic', onOff)).toBe('Automatic');
  expect(thinkingLabel('xhigh', efforts)).toBe('Very high');
});

async function open(thinking: ThinkingChoices | null, change: Partial<Settings> = {}) {
  const platform = new FakePlatform();
  const reply = (more: Partial<Settings>): Reply => ({
    type: 'settings',
    resolved: { settings: { ...values, ...change, ...more }, from: {}, thinking },
  });
  const messages = [message('q', { role: 'user', text: 'Why?' }), message('w', { parent_id: 'q' })];
  platform.answers = {
    bootstrap: bootstrap({ conversations: [conversation('a')], models: [model('owner/model'), model('owner/other')] }),
    get_conversation: { type: 'conversation', conversation: conversation('a'), messages },
    get_settings: reply({}),
    set_setting: (command) => (command.type === 'set_setting' ? reply({ [command.key]: command.value }) : reply({})),
  };
  const { app } = await openWindow(platform);
  await drawn();
  await settle();
  return { app, platform };
}

const chosen = (platform: FakePlatform) =>
  platform.asked.flatMap((command) =>
    command.type === 'set_setting' ? [[command.scope, command.key, command.value]] : [],
  );

test('the inspector offers what the model of the chat can', async () => {
  const { app, platform } = await open(efforts);
  app.navigation.show('inspector', true);
  await drawn();
  await settle();
  await drawn();
  const inspector = screen.getByRole('complementary', { name: 'This chat' });
  const list = within(inspector).getByRole<HTMLSelectElement>('combobox', { name: 'Thinking' });
  expect([...list.options].map(({ text }) => text)).toEqual([
    'Automatic (Medium)',
    'Off',
    'Low',
    'Medium',
    'Very high',
  ]);
  await fireEvent.change(list, { target: { value: 'low' } });
  expect(chosen(platform)).toEqual([[{ type: 'chat', id: 'a' }, 'thinking', 'low']]);
});

test('a model without a choice has no such field', async () => {
  const { app } = await open(none);
  app.navigation.show('inspector', true);
  await drawn();
  await settle();
  await drawn();
  expect(screen.getByRole('complementary', { name: 'This chat' }).textContent).toContain('Temperature');
  app.models.isMenuOpen = true;
  await drawn();
  await settle();
  expect(screen.queryByLabelText('Thinking')).toBeNull();
});

test('the menu of models sets it for the chat', async () => {
  const { app, platform } = await open(onOff, { thinking: 'off' });
  app.models.isMenuOpen = true;
  await drawn();
  await settle();
  await drawn();
  const list = screen.getByRole<HTMLSelectElement>('combobox', { name: 'Thinking' });
  expect(list.value).toBe('off');
  await fireEvent.change(list, { target: { value: 'on' } });
  await settle();
  expect(chosen(platform)).toEqual([[{ type: 'chat', id: 'a' }, 'thinking', 'on']]);
  expect(list.value).toBe('on');
});

test('a comparison has it for each answer', async () => {
  const { app } = await open(onOff);
  app.chat.openCompare(['owner/model', 'owner/other']);
  await drawn();
  await settle();
  await drawn();
  const [list] = screen.getAllByRole<HTMLSelectElement>('combobox', { name: 'Thinking' });
  if (!list) throw new Error('no field');
  expect([...list.options].map(({ text }) => text)).toEqual(['As in this chat', 'Automatic', 'Off', 'On']);
  await fireEvent.change(list, { target: { value: 'off' } });
  expect(app.chat.compare.columns.map(({ thinking }) => thinking)).toEqual(['off', null]);
  expect(app.chat.compare.isSame).toBe(false);
});
