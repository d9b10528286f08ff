// The parts of an answer, as they are seen.
import { fireEvent, screen, within } from '@testing-library/svelte';
import { expect, onTestFinished, test, vi } from 'vitest';
import type { AnswerSegment, Message } from '../platform/wire';
import { bootstrap, conversation, FakePlatform, message } from '../testing/fake';
import { drawn, openWindow, useWindow } from '../testing/window';

useWindow();

async function open(change: Partial<Message>) {
  const platform = new FakePlatform();
  platform.answers = {
    bootstrap: bootstrap({ conversations: [conversation('a')] }),
    get_conversation: {
      type: 'conversation',
      conversation: conversation('a'),
      messages: [message('u', { role: 'user', text: 'Why?' }), message('m', { parent_id: 'u', ...change })],
    },
  };
  await openWindow(platform);
  return { platform, answer: within(screen.getByRole('article', { name: 'Answer' })) };
}

const thought = (duration_ms: number | null): AnswerSegment => ({
  kind: 'reasoning',
  text: 'Let me *see*.',
  began_at_ms: Date.now() - 12_300,
  duration_ms,
});
const call = (change: Partial<Extract<AnswerSegment, { kind: 'tool_call' }>> = {}): AnswerSegment => ({
  kind: 'tool_call',
  name: 'look_up',
  arguments: '{"at": [1, 2]}',
  outcome: 'complete',
  raw: '{"name": "look_up", "arguments": {"at": [1, 2]}}',
  ...change,
});

test('thoughts end when an answer is wanted now, and only while they go on', async () => {
  const { answer, platform } = await open({ status: 'streaming', segments: [thought(null)] });
  await fireEvent.click(answer.getByRole('button', { name: 'Answer now' }));
  const command = { type: 'answer_now', conversation_id: 'a', message_id: 'm' };
  expect(platform.asked.at(-1)).toEqual(command);
  const segment = thought(2000);
  platform.emit({ type: 'segment', conversation_id: 'a', message_id: 'm', index: 0, segment });
  await drawn();
  expect(answer.queryByRole('button', { name: 'Answer now' })).toBeNull();
});

test('reasoning is one line that opens', async () => {
  const { answer } = await open({ segments: [thought(61_000), { kind: 'text', text: 'Because.' }] });
  const line = answer.getByRole('button', { name: 'Thought for 61 s' });
  expect(line.getAttribute('aria-expanded')).toBe('false');
  expect(answer.queryByText('see')).toBeNull();
  await fireEvent.click(line);
  expect(line.getAttribute('aria-expanded')).toBe('true');
  expect(document.getElementById(line.getAttribute('aria-controls') ?? '')?.textContent).toContain('Let me see.');
  await fireEvent.click(line);
  expect(answer.queryByText('see')).toBeNull();
});

test('the answer and its reasoning are copied apart', async () => {
  const writeText = vi.fn(async () => undefined);
  vi.stubGlobal('navigator', { ...navigator, clipboard: { writeText } });
  const said: AnswerSegment[] = [
    { kind: 'text', text: 'Because' },
    { kind: 'text', text: 'of it.' },
  ];
  const { answer } = await open({ segments: [thought(900), said[0]!, call(), said[1]!] });
  await fireEvent.click(answer.getByRole('button', { name: 'Copy answer' }));
  expect(writeText).toHaveBeenLastCalledWith('Because\n\nof it.');
  await fireEvent.click(answer.getByRole('button', { name: 'Thought for 1 s' }));
  await fireEvent.click(answer.getByRole('button', { name: 'Copy reasoning' }));
  expect(writeText).toHaveBeenLastCalledWith('Let me *see*.');
});

test('open reasoning counts its seconds, and says how many there were', async () => {
  vi.useFakeTimers({ toFake: ['Date'] });
  onTestFinished(() => void vi.useRealTimers());
  const { answer, platform } = await open({ status: 'streaming', segments: [thought(null)] });
  expect(answer.getByRole('button', { name: 'Thinking… 12 s' })).toBeTruthy();
  const segment = thought(15_000);
  platform.emit({ type: 'segment', conversation_id: 'a', message_id: 'm', index: 0, segment });
  await drawn();
  expect(answer.getByRole('button', { name: 'Thought for 15 s' })).toBeTruthy();
});

test.each<[name: string, segment: AnswerSegment, status: Message['status'], note: RegExp, body: string]>([
  ['whole', call(), 'complete', /^Cairn shows tool calls and runs none\.$/, '{\n  "at": [\n    1,\n    2\n  ]\n}'],
  ['being written', call({ outcome: null, arguments: '{"at": [1' }), 'streaming', /^Being written$/, '{"at": [1'],
  [
    'cut off',
    call({ outcome: 'unfinished', arguments: '{"at": [1' }),
    'stopped',
    /^Unfinished: .* none\.$/,
    '{"at": [1',
  ],
  ['malformed', call({ outcome: 'malformed', raw: 'look_up(1' }), 'complete', /^Malformed: .* none\.$/, 'look_up(1'],
])('a tool call that is %s', async (_, segment, status, note, body) => {
  const { answer } = await open({ status, segments: [segment] });
  const block = within(answer.getByRole('group', { name: 'Tool call: look_up' }));
  expect(block.getByText(note)).toBeTruthy();
  expect(answer.getByRole('group').querySelector('pre')?.textContent).toBe(body);
});

test('a call without a name says so', async () => {
  const { answer } = await open({ segments: [call({ name: null, arguments: '', outcome: 'malformed', raw: '{' })] });
  expect(answer.getByRole('group', { name: 'Tool call: without a name' })).toBeTruthy();
});

test('an answer that repeats itself asks what becomes of it', async () => {
  const { answer, platform } = await open({ status: 'streaming', is_held: true, text: 'Again and again' });
  const choice = within(answer.getByRole('group', { name: 'This answer repeats itself.' }));
  await fireEvent.click(choice.getByRole('button', { name: 'Go on' }));
  expect(platform.asked.at(-1)).toEqual({ type: 'go_on', conversation_id: 'a' });
  await fireEvent.click(choice.getByRole('button', { name: 'Stop' }));
  expect(platform.asked.at(-1)).toEqual({ type: 'stop', conversation_id: 'a' });
});

test('a message that is sent while an answer is written is shown as waiting', async () => {
  await open({ status: 'streaming', text: 'So' });
  const composer = screen.getByRole<HTMLTextAreaElement>('textbox', { name: 'Message' });
  await fireEvent.input(composer, { target: { value: 'And then?' } });
  await fireEvent.keyDown(composer, { key: 'Enter' });
  await drawn();
  const waiting = within(screen.getByRole('region', { name: 'Waiting messages' }));
  expect(waiting.getByText('And then?')).toBeTruthy();
  expect(composer.value).toBe('');
  await fireEvent.click(waiting.getByRole('button', { name: 'Edit this message' }));
  await drawn();
  expect(composer.value).toBe('And then?');
  expect(screen.queryByRole('region', { name: 'Waiting messages' })).toBeNull();
});
