// The gauge and the chips show the truth while documents are read or a model is loaded, and after a reload in mid-answer.
import { tick } from 'svelte';
import { screen, within } from '@testing-library/svelte';
import { expect, test } from 'vitest';
import type { ChatContext, ChatOutlook, Command, Document, DocumentReading, Message } from '../platform/wire';
import {
  bootstrap,
  conversation,
  FakePlatform,
  message,
  model,
  saved,
  settle,
  status,
  textDocument,
} from '../testing/fake';
import { drawn, openWindow, useWindow } from '../testing/window';

useWindow();

const context = (change: Partial<ChatContext> = {}): ChatContext => ({
  model: 'owner/model',
  limit_tokens: 4096,
  used_tokens: 1200,
  beginning_tokens: 200,
  document_tokens: 0,
  summary_tokens: 0,
  answer_tokens: 1024,
  at_overflow: 'stop',
  system_prompt: '',
  own_system_prompt: null,
  ...change,
});

interface Given {
  context?: Partial<ChatContext> | null;
  messages?: Message[];
  change?: Parameters<typeof conversation>[1];
  documents?: Document[];
  reading?: DocumentReading;
  outlook?: Partial<ChatOutlook>;
}

const ROWS = [message('q', { role: 'user', text: 'Why?' }), message('w', { parent_id: 'q', text: 'Because.' })];

async function open({ context: known = {}, messages = ROWS, change, documents = [], reading, outlook }: Given = {}) {
  const platform = new FakePlatform();
  const row = conversation('a', { cache: saved({ cached_tokens: 1000 }), ...change });
  let attached = { of: { type: 'conversation' as const, id: 'a' }, beginning: [] as Document[], documents };
  const found: ChatOutlook = { model: 'owner/model', known_tokens: 1200, cached_tokens: 1000, miss: null, ...outlook };
  platform.answers = {
    bootstrap: bootstrap({ conversations: [row], models: [model('owner/model'), model('owner/other')] }),
    get_conversation: { type: 'conversation', conversation: row, messages },
    get_context: { type: 'context', context: known && context(known) },
    get_outlook: { type: 'outlook', outlook: found },
    get_documents: () => ({ type: 'documents', attached: { ...attached, reading: reading ?? { type: 'unread' } } }),
  };
  const { app } = await openWindow(platform);
  app.navigation.show('inspector', true);
  await drawn();
  await drawn();
  const inspector = () => screen.getByRole('complementary', { name: 'This chat' });
  const meter = () => within(inspector()).getByRole('meter', { name: 'Context' });
  return {
    app,
    platform,
    inspector,
    meter,
    asked: (type: Command['type']) => platform.asked.filter((command) => command.type === type),
    read: async (state: DocumentReading) => {
      attached = { ...attached };
      platform.emit({ type: 'documents_reading', of: attached.of, reading: state });
      await drawn();
    },
  };
}

const streaming = (text: string) => [
  message('q', { role: 'user', text: 'Why?' }),
  message('w', { parent_id: 'q', text, status: 'streaming' }),
];

test('counts a document of another model in bytes', async () => {
  const documents = [textDocument('d', { tokens: 1846, counted_by: 'owner/other' })];
  const { platform } = await open({ documents });
  const chip = () => within(screen.getByRole('region', { name: 'Documents' })).getByRole('button', { name: /: open$/ });
  expect(chip().textContent).toContain('4 kB');
  const counted = [textDocument('d', { tokens: 1861 })];
  const attached = { of: { type: 'conversation' as const, id: 'a' }, beginning: [], documents: counted };
  platform.emit({ type: 'documents', attached: { ...attached, reading: { type: 'unread' } } });
  await tick();
  expect(chip().textContent).toContain('1,861 tokens');
});

test('gives a document one size on chip, status and gauge', async () => {
  const reading: DocumentReading = { type: 'read', tokens: 1885, document_tokens: 1861, model: 'owner/model' };
  const given = {
    documents: [textDocument('d', { tokens: 1861 })],
    reading,
    context: { used_tokens: 24, beginning_tokens: 24 },
  };
  const { inspector } = await open(given);
  const area = screen.getByRole('region', { name: 'Documents' });
  expect(within(area).getByRole('button', { name: 'd.txt, 1,861 tokens: open' })).toBeTruthy();
  expect(within(area).getByRole('status').textContent).toContain('1,861 tokens');
  expect(within(inspector()).getByText('1,861 tokens')).toBeTruthy();
});

test('asks the core what a new chat begins with', async () => {
  const known = { used_tokens: 664, beginning_tokens: 24, document_tokens: 640, system_prompt: 'Be exact.' };
  const { app, asked, inspector, meter, platform } = await open({ context: known });
  app.folders.items = [{ id: 'f', name: 'Contracts', system_prompt: '', model: null }];
  platform.answers.get_documents = {
    type: 'documents',
    attached: {
      of: { type: 'folder', id: 'f' },
      beginning: [],
      documents: [textDocument('rules.md', { tokens: 640 })],
      reading: { type: 'unread' },
    },
  };
  app.newChatIn('f');
  app.navigation.show('inspector', true);
  await drawn();
  await drawn();
  const of = { type: 'new', folder_id: 'f', system_prompt: null, model: 'owner/model' };
  expect(asked('get_context').at(-1)).toEqual({ type: 'get_context', of });
  expect(meter().getAttribute('aria-valuenow')).toBe('664');
  expect(inspector().textContent).toContain('Be exact.');
  expect(within(inspector()).getByText('System prompt', { selector: 'dt' })).toBeTruthy();
});

test('counts what reading ahead has saved', async () => {
  const documents = [textDocument('d', { tokens: 696 })];
  const given: Given = {
    documents,
    context: { used_tokens: 24, beginning_tokens: 24 },
    outlook: { known_tokens: 0, cached_tokens: 24 },
  };
  const { asked, inspector, meter, platform, read } = await open({ ...given, messages: [], change: { cache: null } });
  const said = () => meter().getAttribute('aria-valuetext');
  await read({ type: 'reading', processed_tokens: 360, total_tokens: 720, cached_tokens: 24, document_tokens: 696 });
  expect(said()).toContain('360 of them saved');
  expect(within(inspector()).getByText('Reading, 50% done')).toBeTruthy();
  expect(inspector().textContent).not.toContain('Not saved');
  const before = asked('get_outlook').length;
  platform.answers.get_outlook = {
    type: 'outlook',
    outlook: { model: 'owner/model', known_tokens: 0, cached_tokens: 720, miss: null },
  };
  await read({ type: 'read', tokens: 720, document_tokens: 696, model: 'owner/model' });
  await settle();
  expect(asked('get_outlook').length).toBeGreaterThan(before);
  expect(said()).toBe('720 of 4,096 tokens used, 720 of them saved');
  expect(within(inspector()).getByText('Ready to continue')).toBeTruthy();
});

test.each([
  { cached_tokens: 540, processed_tokens: 540, said: 'Reading, 31% done' },
  { cached_tokens: 1700, processed_tokens: 1700, said: 'Ready to continue' },
])('a question with $cached_tokens of 1,724 tokens saved: $said', async ({ said, ...counts }) => {
  const { inspector, platform } = await open({ messages: streaming(''), change: { is_streaming: true } });
  const prefill = { type: 'prefill' as const, conversation_id: 'a', message_id: 'w', total_tokens: 1724 };
  platform.emit({ ...prefill, ...counts });
  await drawn();
  within(inspector()).getByRole('heading', { name: said });
  expect(within(inspector()).queryAllByText(/^Ready/)).toHaveLength(said.startsWith('Ready') ? 1 : 0);
});

test('shows the context once the answering model is loaded', async () => {
  const rows = streaming('');
  const { asked, inspector, platform } = await open({ context: null, messages: rows, change: { is_streaming: true } });
  platform.emit({ type: 'status', status: { ...status, model_fingerprint: null, models: [] } });
  await drawn();
  expect(within(inspector()).queryByRole('meter')).toBeNull();
  expect(within(inspector()).queryByText('None')).toBeNull();
  const before = asked('get_context').length;
  const known = context({ own_system_prompt: 'You are a helpful model.' });
  platform.answers.get_context = { type: 'context', context: known };
  platform.emit({ type: 'status', status });
  await drawn();
  await drawn();
  expect(asked('get_context').length).toBeGreaterThan(before);
  expect(within(inspector()).getByRole('meter')).toBeTruthy();
  expect(inspector().textContent).toContain('You are a helpful model.');
});

test('follows an answer after a reload in its middle', async () => {
  const text = 'x'.repeat(400);
  const rows = streaming(text);
  const { meter, platform } = await open({
    context: { used_tokens: 38, beginning_tokens: 30 },
    messages: rows,
    change: { is_streaming: true },
  });
  const used = () => Number(meter().getAttribute('aria-valuenow'));
  expect(used()).toBe(138);
  const segment = { kind: 'text' as const, text: 'x'.repeat(800) };
  platform.emit({ type: 'segment', conversation_id: 'a', message_id: 'w', index: 0, segment });
  await drawn();
  await drawn();
  expect(used()).toBe(238);
});

test('never calls a full context ready to continue', async () => {
  const { inspector } = await open({ context: { used_tokens: 1960, limit_tokens: 300 } });
  expect(inspector().textContent).not.toContain('Ready to continue');
  expect(within(inspector()).getByText('Saved, but the context is full')).toBeTruthy();
});

const number = (cell: Element | null | undefined) => Number(cell?.textContent?.replaceAll(/\D/g, ''));

test.each<[change: Partial<ChatContext>, last: string]>([
  [{ document_tokens: 658, summary_tokens: 100 }, 'Left'],
  [{ used_tokens: 0, beginning_tokens: 0 }, 'Left'],
  [{ used_tokens: 1960, limit_tokens: 300 }, 'Over the limit'],
])('adds the parts up to the limit: %o', async (change, last) => {
  const { inspector, meter } = await open({ context: change, change: { system_prompt: 'Be brief.' } });
  const names = within(inspector()).getAllByRole('term');
  const rows = names.filter((name) => meter().parentElement?.contains(name));
  const figures = rows.map((name) => number(name.nextElementSibling?.querySelector('[aria-hidden]')));
  expect(rows.at(-1)?.textContent).toBe(last);
  const left = figures.pop() ?? NaN;
  const sum = figures.reduce((all, one) => all + one, 0);
  expect(last === 'Left' ? sum + left : sum - left).toBe(change.limit_tokens ?? 4096);
  expect(rows.map((name) => name.textContent)).not.toContain('Already saved');
});

test('says apart from the sum what is saved', async () => {
  const { inspector } = await open();
  expect(within(inspector()).getByText('1,000 of them saved')).toBeTruthy();
});
