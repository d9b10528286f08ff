// The probability view: what is asked, the walk through the tokens, branches, and what stands there when there is nothing to show.
import { fireEvent, screen } from '@testing-library/svelte';
import { expect, test, vi } from 'vitest';
import { runCommand } from '../commands';
import { CallError } from '../platform/platform';
import type { Message, Reply, TokenProbability } from '../platform/wire';
import { bootstrap, conversation, FakePlatform, gate, message, model, stats } from '../testing/fake';
import { drawn, openWindow, useWindow } from '../testing/window';
import { lowest, unsureness, visible } from './probabilities.svelte';

useWindow();

const question = message('u', { role: 'user', text: 'Why?' });
const answer = message('m', { parent_id: 'u', text: 'It is so.', stats: stats(), model: 'owner/model' });

function token(id: number, text: string, probability: number, change: Partial<TokenProbability> = {}) {
  const other = (id: number, text: string, probability: number) => ({
    token: id,
    text,
    probability,
    ends_answer: false,
  });
  const likeliest = [other(id, text, probability), other(id + 100, ' other', 0.1), other(id + 200, ' third', 0.01)];
  likeliest.sort((a, b) => b.probability - a.probability);
  return { token: id, text, probability, rank: 0, entropy_bits: 1.25, ends_answer: false, likeliest, ...change };
}

const TOKENS = [
  token(1, 'It', 0.8),
  token(2, ' is', 0.3),
  token(3, ' so', 0.95),
  token(4, '.', 0.001, { rank: 40, likeliest: [{ token: 9, text: '', probability: 0.7, ends_answer: true }] }),
];
const read = (tokens = TOKENS): Reply => ({
  type: 'probabilities',
  probabilities: { type: 'read', model: 'owner/model', tokens, num_tokens: tokens.length },
});

async function open(reply: Reply | Error | Promise<Reply> = read(), messages: Message[] = [question, answer]) {
  vi.spyOn(window, 'matchMedia').mockImplementation(
    (query) =>
      ({
        matches: false,
        media: query,
        addEventListener: () => undefined,
        removeEventListener: () => undefined,
      }) as never,
  );
  const platform = new FakePlatform();
  platform.answers = {
    bootstrap: bootstrap({ conversations: [conversation('a')], models: [model('owner/model')] }),
    get_conversation: { type: 'conversation', conversation: conversation('a'), messages },
    get_probabilities: reply,
  };
  const { app } = await openWindow(platform);
  await press('Probability');
  return { platform, app, view: app.chat.probabilities };
}

const press = async (name: string) => {
  await fireEvent.click(screen.getAllByRole('button', { name })[0] as HTMLElement);
  await drawn();
};
const tokens = () => screen.getByRole('listbox', { name: 'Tokens of this answer' });
const key = async (key: string, more = {}) => {
  await fireEvent.keyDown(document.activeElement ?? document.body, { key, ...more });
  await drawn();
};
const current = () => screen.getByRole('option', { selected: true }).getAttribute('aria-label');
const choice = () => document.querySelector('.choice[aria-current="true"]')?.getAttribute('aria-label');

test('the arrow keys walk the tokens and their alternatives', async () => {
  const { platform, view } = await open();
  expect(platform.asked.at(-1)).toMatchObject({ conversation_id: 'a', message_id: 'm', loads_model: false });
  expect(document.activeElement).toBe(tokens());
  expect(current()).toBe('“is”, 30%, 2 alternatives');
  await key('ArrowLeft');
  await key('ArrowLeft');
  expect([view.at, current()]).toEqual([0, '“It”, 80%, 2 alternatives']);
  await key('End');
  expect(current()).toBe('“.”, < 1%, 1 alternative');
  expect(choice()).toBe('“.”, < 1%, in this answer');
  await key('ArrowLeft', { metaKey: true });
  expect(view.at).toBe(1);
  await key('ArrowRight', { ctrlKey: true });
  expect(view.at).toBe(3);
  await key('Home');
  await key('ArrowDown');
  expect(choice()).toBe('Branch with “other”, 10%');
  expect(screen.getByText('“other”, 10%.')).toBeTruthy();
  await key('ArrowUp');
  await key('ArrowUp');
  expect(choice()).toBe('“It”, 80%, in this answer');
  await fireEvent.click(screen.getAllByRole('option')[2] as HTMLElement);
  expect(view.at).toBe(2);
});

test('Return branches with the choice; the answer as it is and its end are none', async () => {
  const { platform, app, view } = await open();
  const begun = message('n', { parent_id: 'u', status: 'streaming', versions: ['m', 'n'] });
  platform.answers.write_from_token = { type: 'sent', conversation: conversation('a'), messages: [begun] };
  const count = platform.asked.length;
  await key('Enter');
  await key('End');
  await key('ArrowUp');
  await key('Enter');
  expect(platform.asked).toHaveLength(count);
  expect(screen.getByText(/The answer would end here\./)).toBeTruthy();
  await key('ArrowLeft', { ctrlKey: true });
  await key('ArrowDown');
  await key('Enter');
  expect(platform.asked).toContainEqual({
    type: 'write_from_token',
    conversation_id: 'a',
    message_id: 'm',
    position: 1,
    token: 102,
  });
  expect(view.message).toBeNull();
  expect(app.chat.thread?.messages.map(({ id }) => id)).toEqual(['u', 'n']);
  expect(document.activeElement).toBe(screen.getByRole('textbox', { name: 'Message' }));
});

test('a branch that could not begin leaves the view open', async () => {
  const { platform, view } = await open();
  platform.answers.write_from_token = new CallError('storage', 'The disk is full.');
  await press('Branch with “other”, 10%');
  expect(view.isOf('m')).toBe(true);
  expect(screen.getByText('The disk is full.')).toBeTruthy();
});

test('Escape closes it, and ends what is still read', async () => {
  const reading = gate<Reply>();
  const { platform, view, app } = await open(reading.promise);
  const { read_id } = platform.asked.at(-1) as { read_id: string };
  platform.emit({ type: 'probabilities_read', read_id: 'another', processed_tokens: 9, total_tokens: 10 });
  platform.emit({ type: 'probabilities_read', read_id, processed_tokens: 5, total_tokens: 20 });
  expect(view.state).toEqual({ type: 'reading', processed: 5, total: 20 });
  await drawn();
  expect(document.querySelector('aside .reading')?.textContent).toMatch(/\b5 of 20\b/);
  await key('Escape');
  expect(platform.asked.at(-1)).toEqual({ type: 'stop_probabilities', read_id });
  expect(document.activeElement).toBe(screen.getByRole('button', { name: 'Probability' }));
  reading.open(read());
  await drawn();
  expect(view.message).toBeNull();
  platform.answers.get_probabilities = read();
  runCommand('show_probabilities', app);
  await drawn();
  expect(document.activeElement).toBe(tokens());
  runCommand('show_probabilities', app);
  await drawn();
  expect(screen.queryByRole('listbox')).toBeNull();
});

test('another version on screen closes it', async () => {
  const { platform, view } = await open();
  platform.emit({ type: 'message', message: answer });
  expect(view.isOf('m')).toBe(true);
  platform.emit({ type: 'branch', conversation_id: 'a', after: 'u', messages: [message('n', { parent_id: 'u' })] });
  await drawn();
  expect(view.message).toBeNull();
});

test('the inspector takes its place', async () => {
  const { app, view } = await open();
  expect(screen.getByRole('complementary', { name: 'Probability' })).toBeTruthy();
  runCommand('toggle_inspector', app);
  await drawn();
  expect(view.message).toBeNull();
  expect(screen.getByRole('complementary', { name: 'This chat' })).toBeTruthy();
});

test('of an answer without text there are none, by the shortcut neither', async () => {
  const failed = message('f', { parent_id: 'v', text: '', segments: [], status: 'failed', error: 'No.' });
  const { app, platform, view } = await open(read(), [
    question,
    answer,
    message('v', { role: 'user', parent_id: 'm', text: 'And?' }),
    failed,
  ]);
  app.chat.closeProbabilities();
  const numAsked = platform.asked.length;
  runCommand('show_probabilities', app);
  app.chat.toggleProbabilities('f');
  await drawn();
  expect([view.message, platform.asked.length]).toEqual([null, numAsked]);
});

test('the model that wrote it is loaded when asked', async () => {
  const notLoaded: Reply = { type: 'probabilities', probabilities: { type: 'not_loaded', model: 'owner/model' } };
  const { platform } = await open(notLoaded);
  expect(screen.getByText('This answer was written by model, which is not loaded.')).toBeTruthy();
  platform.answers.get_probabilities = read();
  await press('Load model');
  expect(platform.asked.at(-1)).toMatchObject({ type: 'get_probabilities', loads_model: true });
  expect(document.activeElement).toBe(tokens());
});

test.each<[Reply | Error, RegExp]>([
  [{ type: 'probabilities', probabilities: { type: 'no_tokens' } }, /are not saved/],
  [{ type: 'probabilities', probabilities: { type: 'no_model', model: 'gone' } }, /written by gone, which is not on/],
  [new CallError('engine', 'It does not fit.'), /It does not fit\./],
])('what cannot be shown says why: %o', async (reply, why) => {
  await open(reply);
  expect(screen.getByText(why)).toBeTruthy();
  await press('Close');
  expect(document.activeElement).toBe(screen.getByRole('button', { name: 'Probability' }));
});

test('how unsure a token was has four steps, every text can be seen, and bars tell the least of many', () => {
  expect([1, 0.9, 0.5, 0.2, 0.1].map(unsureness)).toEqual([0, 0, 1, 2, 3]);
  expect(['\n', ' ', ' so', ''].map(visible)).toEqual(['↵', '␣', ' so', '·']);
  expect(lowest(TOKENS, 2)).toEqual([0.3, 0.001]);
  expect(lowest(TOKENS, 9)).toEqual([0.8, 0.3, 0.95, 0.001]);
});
