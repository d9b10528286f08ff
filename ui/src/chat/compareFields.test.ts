// The fields in which a comparison is set up: what they refuse, and that nothing is asked meanwhile.
import { fireEvent, screen, within } from '@testing-library/svelte';
import { expect, test } from 'vitest';
import { bootstrap, conversation, FakePlatform, message, model } from '../testing/fake';
import { drawn, openWindow, useWindow } from '../testing/window';

useWindow();

async function open() {
  const platform = new FakePlatform();
  const messages = [message('q', { role: 'user', text: 'Which?' }), message('a', { parent_id: 'q', text: 'Both.' })];
  platform.answers = {
    bootstrap: bootstrap({ conversations: [conversation('a')], models: [model('m'), model('n')] }),
    get_conversation: { type: 'conversation', conversation: conversation('a'), messages },
  };
  const { app } = await openWindow(platform);
  app.chat.openCompare(['m', 'n']);
  await drawn();
  return { app, platform };
}

const field = (column: string, name: string) =>
  within(screen.getByRole('article', { name: new RegExp(column) })).getByRole<HTMLInputElement>('textbox', { name });
const askBoth = () => screen.getByRole<HTMLButtonElement>('button', { name: 'Ask both' });

async function type(input: HTMLInputElement, value: string) {
  await fireEvent.input(input, { target: { value } });
  await fireEvent.change(input);
  await drawn();
}

test.each([
  ['Temperature', '99', 'Enter a number from 0 to 2.', '0.5', 0.5],
  ['Seed', '-3.5', 'Enter a whole number from 0 to 9,007,199,254,740,991.', '7', 7],
])('%s %s is refused, and nothing is asked until it is put right', async (name, wrong, sentence, right, value) => {
  const { app, platform } = await open();
  const { compare } = app.chat;
  const input = field('Answer 1', name);
  expect(askBoth().disabled).toBe(false);
  await type(input, wrong);
  expect(screen.getByRole('alert').textContent).toBe(sentence);
  expect([input.getAttribute('aria-invalid'), askBoth().disabled]).toEqual(['true', true]);
  await compare.start();
  expect(platform.askedTypes()).not.toContain('compare');

  // The button can be pressed before the field is left.
  await fireEvent.input(input, { target: { value: right } });
  expect([screen.queryByRole('alert'), askBoth().disabled]).toEqual([null, false]);
  await fireEvent.change(input);
  expect(compare.columns[0]?.[name === 'Seed' ? 'seed' : 'temperature']).toBe(value);
  await type(input, '');
  expect(compare.columns[0]).toEqual({ model: 'm', temperature: null, seed: null, thinking: null });
});

test('what was refused stops no other comparison', async () => {
  const { app } = await open();
  await type(field('Answer 2', 'Temperature'), 'warm');
  expect(app.chat.compare.isRefused).toBe(true);
  await fireEvent.click(screen.getByRole('button', { name: 'Cancel' }));
  await drawn();
  expect(app.chat.compare.isRefused).toBe(false);
});
