// What a chat has of its own: how full its context is, presets of parameters, and personas.
import { tick } from 'svelte';
import { fireEvent, screen, within } from '@testing-library/svelte';
import { expect, test } from 'vitest';
import { runCommand } from '../commands';
import { CallError } from '../platform/platform';
import type {
  ChatContext,
  Command,
  Document,
  DocumentReading,
  Message,
  Persona,
  Preset,
  Reply,
  Settings,
  SettingScope,
} from '../platform/wire';
import {
  bootstrap,
  conversation,
  FakePlatform,
  gate,
  message,
  model,
  saved,
  settings as values,
  settle,
  stats,
  textDocument,
} from '../testing/fake';
import { table } from '../settings/table';
import { strings } from '../text';
import { drawn, openWindow, useWindow } from '../testing/window';
import { ContextStore, cutOf, roomOf } from './context.svelte';

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

const preset: Preset = { id: 'p', name: 'Exact', values: { temperature: 0, top_k: 1 } };
const persona: Persona = {
  id: 's',
  name: 'Stone',
  system_prompt: 'You are a stone.',
  model: 'owner/other',
  values: { top_k: 7 },
};

const resolved = (change: Partial<Settings>, scope: SettingScope = 'chat'): Reply => ({
  type: 'settings',
  resolved: {
    settings: { ...values, ...change },
    from: Object.fromEntries(Object.keys(change).map((key) => [key, scope])),
    thinking: null,
  },
});

interface Given {
  /** What is attached to the draft. */
  documents?: Document[];
  reading?: DocumentReading;
  context?: Partial<ChatContext> | null;
  own?: Reply;
  messages?: ReturnType<typeof message>[];
  change?: Parameters<typeof conversation>[1];
}

const attached = (documents: Document[], reading: DocumentReading = { type: 'unread' }) => ({
  of: { type: 'conversation' as const, id: 'a' },
  beginning: [],
  documents,
  reading,
});

async function open({ context: known = {}, own = resolved({}), messages, change, documents, reading }: Given = {}) {
  const platform = new FakePlatform();
  const row = conversation('a', { cache: saved({ cached_tokens: 1000 }), ...change });
  const rows = messages ?? [
    message('q', { role: 'user', text: 'Why?' }),
    message('w', { parent_id: 'q', text: 'Because.' }),
  ];
  platform.answers = {
    bootstrap: bootstrap({
      conversations: [row],
      models: [model('owner/model'), model('owner/other')],
      presets: [preset],
      personas: [persona],
    }),
    get_conversation: { type: 'conversation', conversation: row, messages: rows },
    get_context: { type: 'context', context: known && context(known) },
    get_settings: own,
    get_documents: { type: 'documents', attached: attached(documents ?? [], reading) },
  };
  const { app } = await openWindow(platform);
  app.navigation.show('inspector', true);
  await drawn();
  await settle();
  await drawn();
  const inspector = () => screen.getByRole('complementary', { name: 'This chat' });
  const asked = (type: Command['type']) => platform.asked.filter((command) => command.type === type);
  return { app, asked, inspector, platform };
}

test.each([
  [{ used_tokens: 0 }, 4096, 'enough'],
  [{ used_tokens: 3072 }, 1024, 'enough'],
  [{ used_tokens: 3073 }, 1023, 'tight'],
  [{ used_tokens: 3680, answer_tokens: 8 }, 416, 'enough'],
  [{ used_tokens: 3690, answer_tokens: 8 }, 406, 'tight'],
  [{ used_tokens: 4096 }, 0, 'full'],
  [{ used_tokens: 5000 }, 0, 'full'],
] as const)('with %o, what is left is told', (change, left, state) => {
  expect(roomOf(context(change))).toEqual({ left, state });
});

test('what is typed and attached counts, and so does an answer while it is written', async () => {
  const { app, inspector, platform } = await open({ documents: [textDocument('d', { tokens: 500 })] });
  const used = () => within(inspector()).getByRole('meter', { name: 'Context' }).getAttribute('aria-valuenow');
  expect(used()).toBe('1700');
  expect(within(inspector()).getByText('500 tokens')).toBeTruthy();
  app.chat.draft = 'x'.repeat(400);
  await tick();
  expect(used()).toBe('1800');
  app.chat.draft = '';
  platform.emit({ type: 'documents', attached: attached([]) });
  await tick();
  expect(used()).toBe('1200');
  const asked = message('q2', { role: 'user', parent_id: 'w', text: 'x'.repeat(40) });
  const documents = [textDocument('d', { tokens: 500 })];
  platform.emit({ type: 'message', message: { ...asked, documents } });
  platform.emit({ type: 'message', message: message('w2', { parent_id: 'q2', status: 'streaming' }) });
  const segment = { kind: 'text' as const, text: 'x'.repeat(800) };
  platform.emit({ type: 'segment', conversation_id: 'a', message_id: 'w2', index: 0, segment });
  await drawn();
  await drawn();
  expect(used()).toBe('1910');
});

const TOO_LONG: DocumentReading = { type: 'too_long', exceeds_by: 4901, model: 'owner/model' };
const big = textDocument('big', { tokens: 8000 });
const send = () => screen.getByRole('button', { name: 'Send' });

test('documents that are longer than the context are not sent, and nothing is offered that does not help', async () => {
  const { app, asked } = await open({ documents: [big], reading: TOO_LONG });
  app.chat.draft = 'What is in it?';
  await tick();
  expect(send()).toHaveProperty('disabled', true);
  expect(screen.getByText(/^Exceeds the context of model by 4,901 tokens\. Remove a document/)).toBeTruthy();
  expect(screen.queryByRole('button', { name: 'Forget the oldest messages' })).toBeNull();
  await fireEvent.keyDown(screen.getByRole('textbox', { name: 'Message' }), { key: 'Enter' });
  expect(asked('send_message')).toEqual([]);
});

test('where forgetting makes room for documents, it is offered, and then they can be sent', async () => {
  const documents = [textDocument('d', { tokens: 3000 })];
  const given = { documents, reading: { ...TOO_LONG, exceeds_by: 104 } };
  const { app, platform } = await open(given);
  app.chat.draft = 'What is in it?';
  await tick();
  expect(send()).toHaveProperty('disabled', true);
  expect(screen.getByText(/Let the oldest messages be forgotten, or remove a document/)).toBeTruthy();
  expect(screen.getByRole('button', { name: 'Forget the oldest messages' })).toBeTruthy();
  platform.answers.get_context = { type: 'context', context: context({ at_overflow: 'forget' }) };
  await app.context.refresh('a', app.chat.thread?.messages);
  await tick();
  expect(send()).toHaveProperty('disabled', false);
  expect(screen.queryByText(/Let the oldest messages be forgotten/)).toBeNull();
});

test('of a first question that was too long it is said what helps, and it can be asked without its document', async () => {
  const question = message('q', { role: 'user', text: 'What is in it?', documents: [big] });
  const error_kind = { type: 'context_full' as const, tokens: 8500, context_length: 4096 };
  const failed = message('w', { parent_id: 'q', status: 'failed', text: '', error: 'Too long', error_kind });
  // The core counts what is read with the next question.
  const known = { used_tokens: 100, document_tokens: 0 };
  const { app } = await open({ context: known, messages: [question, { ...failed, segments: [] }] });
  expect(screen.queryByRole('button', { name: 'Forget the oldest messages' })).toBeNull();
  expect(screen.queryByRole('button', { name: 'Regenerate' })).toBeNull();
  expect(screen.getByText(/is read without this question and its document:/)).toBeTruthy();
  expect(app.room.room?.state).toBe('enough');
  await fireEvent.click(screen.getByRole('button', { name: 'Ask without the document' }));
  expect(app.chat.draft).toBe('What is in it?');
  await tick();
  expect(send()).toHaveProperty('disabled', false);
});

test('of a later question that was too long, forgetting is offered where the rest fits', async () => {
  const error_kind = { type: 'context_full' as const, tokens: 4500, context_length: 4096 };
  const documents = [textDocument('d', { tokens: 2000 })];
  const rows = [
    message('q', { role: 'user', text: 'Why?' }),
    message('w', { parent_id: 'q', text: 'Because.' }),
    message('q2', { role: 'user', parent_id: 'w', text: 'And this?', documents }),
    message('w2', { parent_id: 'q2', status: 'failed', text: '', segments: [], error: 'Too long', error_kind }),
  ];
  const given = { context: { used_tokens: 2500, document_tokens: 0 }, messages: rows };
  const { app, asked, platform } = await open(given);
  const again = () => screen.getAllByRole('button', { name: 'Regenerate' });
  expect(again()).toHaveLength(1);
  expect(screen.getByText(/^With this question there were 4,500 tokens to read, and .* 4,096 at most\.$/)).toBeTruthy();
  expect(screen.getByText('To ask the last question again, make room for it.')).toBeTruthy();
  expect(screen.getAllByRole('button', { name: strings.probabilities.title })).toHaveLength(1);
  await fireEvent.click(screen.getByRole('button', { name: 'Forget the oldest messages' }));
  await settle();
  const scope = { type: 'chat', id: 'a' };
  expect(asked('set_setting')).toEqual([{ type: 'set_setting', scope, key: 'at_overflow', value: 'forget' }]);
  expect(asked('regenerate')).toEqual([{ type: 'regenerate', conversation_id: 'a', message_id: 'w2', model: null }]);
  const change = { used_tokens: 2500, at_overflow: 'forget' as const };
  platform.answers.get_context = { type: 'context', context: context(change) };
  await app.context.refresh('a', app.chat.thread?.messages);
  await tick();
  expect(again()).toHaveLength(2);
});

test('a context that an answer has filled is said to be full where the choice is', async () => {
  const rows = [
    message('q', { role: 'user', text: 'Why?' }),
    message('w', { parent_id: 'q', text: 'Because', stats: stats({ finish_reason: 'context' }) }),
  ];
  const { app } = await open({ context: { used_tokens: 4096 }, messages: rows });
  const line = screen.getByText('The context is full: 4,096 of 4,096 tokens.').closest('p') as HTMLElement;
  expect(within(line).getByRole('button', { name: 'Summarize them' })).toBeTruthy();
  expect(screen.getByText('This answer ended because the context of the model is full.')).toBeTruthy();
  app.chat.draft = 'And this?';
  await tick();
  expect(screen.getByText('This message no longer fits into the context of the model.')).toBeTruthy();
});

test('of several cuts the last one counts', () => {
  const rows = [
    message('a', { role: 'user', cut: { summary: null } }),
    message('b'),
    message('c', { role: 'user', cut: { summary: 'S' } }),
    message('d'),
  ];
  expect(cutOf(rows)).toEqual({ index: 2, id: 'c', cut: { summary: 'S' } });
  expect(cutOf(rows.slice(0, 2))?.index).toBe(0);
  expect(cutOf([message('a')])).toBeNull();
});

test('only the newest answer about the context counts', async () => {
  const platform = new FakePlatform();
  const store = new ContextStore(platform, () => undefined);
  const [slow, fast] = [gate<Reply>(), gate<Reply>()];
  platform.answers.get_context = () => slow.promise;
  const first = store.refresh('a');
  platform.answers.get_context = () => fast.promise;
  const second = store.refresh('b');
  fast.open({ type: 'context', context: context({ used_tokens: 2 }) });
  slow.open({ type: 'context', context: context({ used_tokens: 1 }) });
  await Promise.all([first, second]);
  expect(store.current?.used_tokens).toBe(2);
});

test('the gauge counts as saved what the engine would find for the prompt as it is now', async () => {
  const { inspector, platform, app } = await open();
  const outlook = { model: 'owner/model', known_tokens: 1200, cached_tokens: 40, miss: null };
  platform.answers.get_outlook = { type: 'outlook', outlook };
  await app.cache.lookAhead('a');
  await tick();
  const meter = within(inspector()).getByRole('meter', { name: 'Context' });
  expect(meter.getAttribute('aria-valuetext')).toBe('1,200 of 4,096 tokens used, 40 of them saved');
});

test('the gauge tells what is used, saved and left, by part', async () => {
  const { inspector } = await open({ change: { system_prompt: 'Be brief.' }, context: { summary_tokens: 100 } });
  const meter = within(inspector()).getByRole('meter', { name: 'Context' });
  expect(meter.getAttribute('aria-valuetext')).toBe('1,200 of 4,096 tokens used, 1,000 of them saved');
  const read = (cell: Element) => cell.querySelector('.visually-hidden')?.textContent ?? cell.textContent;
  const rows = [...(meter.nextElementSibling?.children ?? [])].map(read);
  expect(rows).toEqual([
    'System prompt',
    '200 tokens',
    'Summary',
    '100 tokens',
    'Messages',
    '900 tokens',
    'Left',
    '2,896 tokens',
  ]);
});

test('the gauge counts what an answer that goes on has written', async () => {
  const { app } = await open();
  const text = 'Because. '.repeat(100);
  const growing = message('w', { parent_id: 'q', text, status: 'streaming' });
  app.chat.thread?.receive({ type: 'message', message: growing });
  await drawn();
  expect(app.room.context?.used_tokens).toBeGreaterThan(1400);
});

test('a new chat in a folder says where it will be, and what it begins with', async () => {
  const { app, inspector } = await open({ context: { system_prompt: 'Answer from the files.' } });
  app.folders.items = [{ id: 'f', name: 'Contracts', system_prompt: 'Answer from the files.', model: null }];
  app.newChatIn('f');
  await drawn();
  expect(screen.getByRole('heading', { name: 'A chat in “Contracts”' })).toBeTruthy();
  app.navigation.show('inspector', true);
  await drawn();
  expect(inspector().textContent).toContain('Answer from the files.');
  expect(inspector().textContent).toContain('From the folder “Contracts”');
});

test('without a model the gauge says how to see it', async () => {
  const { inspector } = await open({ context: null });
  expect(within(inspector()).queryByRole('meter')).toBeNull();
  expect(inspector().textContent).toContain('How much room is left is known once the model is loaded.');
});

test('the system prompt of the model is shown as inherited', async () => {
  const { inspector } = await open({ context: { own_system_prompt: 'You are Qwen.' } });
  expect(inspector().textContent).toContain('You are Qwen.');
  expect(inspector().textContent).toContain('From the model, as long as this chat has none of its own');
});

test('before the context is full a choice is offered, and taken for this chat', async () => {
  const { asked } = await open({ context: { used_tokens: 3500 } });
  const warning = screen.getByText(/About 596 tokens are left/).closest('p') as HTMLElement;
  await fireEvent.click(within(warning).getByRole('button', { name: 'Forget the oldest messages' }));
  expect(asked('set_setting')).toEqual([
    { type: 'set_setting', scope: { type: 'chat', id: 'a' }, key: 'at_overflow', value: 'forget' },
  ]);
});

test('where a choice was made the warning says what happens next', async () => {
  await open({ context: { used_tokens: 3500, at_overflow: 'summarize' } });
  const warning = screen.getByText(/the model summarizes the oldest messages/).closest('p') as HTMLElement;
  expect(within(warning).queryByRole('button')).toBeNull();
});

test('with enough room there is no warning', async () => {
  await open();
  expect(screen.queryByText(/are left in this chat/)).toBeNull();
});

const longChat = (summary: string | null) => [
  message('q1', { role: 'user', text: 'First question' }),
  message('w1', { parent_id: 'q1', text: 'First answer' }),
  message('q2', { parent_id: 'w1', role: 'user', text: 'Second question', cut: { summary } }),
  message('w2', { parent_id: 'q2', text: 'Second answer' }),
];

test('what is forgotten stays in sight, and can be read again', async () => {
  const { asked } = await open({ messages: longChat(null) });
  expect(document.querySelector('[data-message="q1"]')?.classList).toContain('forgotten');
  expect(document.querySelector('[data-message="q2"]')?.classList).not.toContain('forgotten');
  const line = screen.getByRole('region', { name: 'The model no longer reads what is above.' });
  await fireEvent.click(within(line).getByRole('button', { name: 'Read it again' }));
  expect(asked('read_again')).toEqual([{ type: 'read_again', conversation_id: 'a', message_id: 'q2' }]);
});

test('a summary stands for what it replaces, which unfolds', async () => {
  await open({ messages: longChat('They spoke of **stones**.') });
  const summary = screen.getByRole('region', { name: 'Summary of the earlier messages' });
  expect(summary.querySelector('strong')?.textContent).toBe('stones');
  expect(screen.queryByText('First question')).toBeNull();
  const unfold = within(summary).getByRole('button', { name: 'Show 2 earlier messages' });
  expect(unfold.getAttribute('aria-expanded')).toBe('false');
  await fireEvent.click(unfold);
  await drawn();
  expect(screen.getByText('First question')).toBeTruthy();
});

test('while the model summarizes, the answer that waits says how far it is, and can be stopped', async () => {
  const { platform } = await open({
    messages: [...longChat(null).slice(0, 3), message('w2', { parent_id: 'q2', status: 'streaming' })],
  });
  const emit = async (processed_tokens: number, written_tokens: number) => {
    const counts = { processed_tokens, total_tokens: 2000, written_tokens, limit_tokens: 1024 };
    platform.emit({ type: 'summarizing', conversation_id: 'a', message_id: 'w2', ...counts });
    await drawn();
  };
  const bar = () => screen.getByRole('progressbar', { name: strings.reading.label });
  const said = () => bar().textContent?.replaceAll(/\s+/g, ' ').trim();
  await emit(500, 0);
  expect(said()).toBe('Summarizing the earlier messages… read 500 of 2,000 tokens');
  await emit(2000, 256);
  expect(said()).toBe('Summarizing the earlier messages… written 256 of at most 1,024 tokens');
  expect(bar().getAttribute('aria-valuenow')).toBe('25');
  await fireEvent.click(screen.getByRole('button', { name: 'Stop' }));
  expect(platform.askedTypes()).toContain('stop');
  platform.emit({
    type: 'prefill',
    conversation_id: 'a',
    message_id: 'w2',
    processed_tokens: 5,
    total_tokens: 10,
    cached_tokens: 0,
  });
  await drawn();
  expect(screen.queryByText('Summarizing the earlier messages…')).toBeNull();
});

test('a preset gives its values to the chat, which can be taken back', async () => {
  const { app, asked, inspector, platform } = await open({ own: resolved({ min_p: 0.2 }) });
  platform.answers.set_parameters = resolved({ temperature: 0, top_k: 1 });
  const button = within(inspector()).getByRole('button', { name: 'Use the preset Exact' });
  expect(button.getAttribute('aria-pressed')).toBe('false');
  await fireEvent.click(button);
  await drawn();
  expect(asked('set_parameters')).toEqual([
    { type: 'set_parameters', conversation_id: 'a', values: { temperature: 0, top_k: 1 } },
  ]);
  expect(button.getAttribute('aria-pressed')).toBe('true');
  app.undo.undo();
  await settle();
  expect(asked('set_parameters').at(-1)).toEqual({
    type: 'set_parameters',
    conversation_id: 'a',
    values: { min_p: 0.2 },
  });
});

test('the values of a chat are saved as a preset; what is refused stands beside the name', async () => {
  const { asked, inspector, platform } = await open({ own: resolved({ min_p: 0.2 }) });
  await fireEvent.click(within(inspector()).getByRole('button', { name: 'Save as preset…' }));
  await drawn();
  const field = within(inspector()).getByRole('textbox', { name: 'Name of the preset' });
  await fireEvent.input(field, { target: { value: ' Exact ' } });
  platform.answers.create_preset = new CallError('invalid', 'There is already a preset with the name “Exact”.');
  await fireEvent.submit(field.closest('form') as HTMLFormElement);
  await drawn();
  expect(within(inspector()).getByRole('alert').textContent).toContain('There is already a preset');
  expect(field.getAttribute('aria-invalid')).toBe('true');
  delete platform.answers.create_preset;
  await fireEvent.submit(field.closest('form') as HTMLFormElement);
  await drawn();
  expect(asked('create_preset').at(-1)).toEqual({ type: 'create_preset', name: 'Exact', values: { min_p: 0.2 } });
  expect(within(inspector()).queryByRole('textbox', { name: 'Name of the preset' })).toBeNull();
});

test('a chat that sets nothing has nothing to save as a preset', async () => {
  const { inspector } = await open({ own: resolved({ top_p: 0.5 }, 'app') });
  const save = within(inspector()).getByRole('button', { name: 'Save as preset…' });
  expect((save as HTMLButtonElement).disabled).toBe(true);
  expect(inspector().textContent).toContain('Change a value first');
});

test('every chat offers presets of the app; the one that it has is marked', async () => {
  const { asked, inspector } = await open({ own: resolved({ temperature: 0.2, top_p: 0.9 }) });
  const button = (name: string) => within(inspector()).getByRole('button', { name: `Use the preset ${name}` });
  const pressed = () => ['Default', 'Precise', 'Lively'].map((name) => button(name).getAttribute('aria-pressed'));
  expect(pressed()).toEqual(['false', 'true', 'false']);
  await fireEvent.click(button('Default'));
  expect(asked('set_parameters').at(-1)).toMatchObject({ values: {} });
});

test('a deleted preset is brought back by undo', async () => {
  const { app, asked, inspector } = await open();
  void app.presets.remove(preset);
  await drawn();
  expect(within(inspector()).queryByRole('button', { name: 'Use the preset Exact' })).toBeNull();
  app.undo.undo();
  await settle();
  expect(asked('restore_preset')).toEqual([{ type: 'restore_preset', id: 'p' }]);
});

test('a persona of the sidebar begins a chat, with its model and its prompt', async () => {
  const { app, asked, platform } = await open();
  const row = conversation('b', { title: '', persona_id: 's', system_prompt: 'You are a stone.' });
  platform.answers.new_conversation_as = { type: 'conversation', conversation: row, messages: [] };
  platform.answers.send_message = { type: 'sent', conversation: { ...row, is_streaming: true }, messages: [] };
  const list = screen.getByRole('region', { name: 'Personas' });
  await fireEvent.click(within(list).getByRole('button', { name: 'Stone' }));
  await drawn();
  expect(asked('load_model')).toEqual([{ type: 'load_model', name: 'owner/other' }]);
  expect(app.chat.systemPrompt).toBe('You are a stone.');
  expect(screen.getByRole('heading', { name: 'A chat with Stone' })).toBeTruthy();
  app.chat.draft = 'Hello';
  await app.chat.send();
  expect(asked('new_conversation_as')).toEqual([{ type: 'new_conversation_as', persona_id: 's' }]);
  expect(asked('set_system_prompt')).toEqual([]);
  expect(app.chat.unsent.persona).toBeNull();
});

test('a persona is made from a chat with what the chat sets itself', async () => {
  const { app, asked, platform } = await open({
    own: resolved({ top_k: 5 }),
    change: { system_prompt: 'Be brief.' },
  });
  platform.answers.create_persona = { type: 'persona', persona: { ...persona, id: 'n', name: 'Brief' } };
  runCommand('persona_from_chat', app);
  await drawn();
  const dialog = screen.getByRole('dialog', { name: 'New persona' });
  await fireEvent.input(within(dialog).getByLabelText('Name'), { target: { value: 'Brief' } });
  await fireEvent.submit(dialog.querySelector('form') as HTMLFormElement);
  await drawn();
  expect(asked('create_persona')).toEqual([
    {
      type: 'create_persona',
      name: 'Brief',
      system_prompt: 'Be brief.',
      model: 'owner/model',
      values: { top_k: 5 },
    },
  ]);
  expect(app.personas.items.map(({ name }) => name)).toEqual(['Stone', 'Brief']);
});

test('a persona is made from the dialog of the system prompt, with what is written there', async () => {
  const { app } = await open({ own: resolved({ top_k: 5 }), change: { system_prompt: 'Be brief.' } });
  app.chat.isPromptOpen = true;
  await drawn();
  const prompt = screen.getByRole('dialog', { name: 'System prompt' });
  await fireEvent.input(within(prompt).getByRole('textbox'), { target: { value: 'Be formal. ' } });
  await fireEvent.click(within(prompt).getByRole('button', { name: 'New persona…' }));
  await drawn();
  expect(app.personas.editing).toEqual({ system_prompt: 'Be formal.', model: 'owner/model', values: { top_k: 5 } });
  app.personas.editing = null;
  await drawn();
  expect(within(prompt).getByRole<HTMLTextAreaElement>('textbox').value).toBe('Be formal. ');
  expect(app.chat.isPromptOpen).toBe(true);
});

test('no persona is made from a private chat', async () => {
  const { app } = await open({ change: { is_private: true } });
  app.chat.isPromptOpen = true;
  await drawn();
  const prompt = screen.getByRole('dialog', { name: 'System prompt' });
  expect(within(prompt).queryByRole('button', { name: 'New persona…' })).toBeNull();
});

test('personas are made and changed in the settings too', async () => {
  const { app } = await open();
  app.navigation.goToSettings('generation');
  await drawn();
  await fireEvent.click(screen.getByRole('button', { name: 'New persona…' }));
  expect(app.personas.editing).toEqual({});
  app.personas.editing = null;
  await drawn();
  await fireEvent.click(screen.getByRole('button', { name: 'Edit the persona Stone…' }));
  expect(app.personas.editing).toMatchObject({ id: 's', name: 'Stone' });
});

test('the dialog of a persona sets its parameters, and the inspector shows those of the chat again', async () => {
  const { app, asked } = await open();
  app.personas.edit(persona);
  await drawn();
  await settle();
  await drawn();
  expect(app.settings.target).toEqual({ type: 'persona', id: 's' });
  await app.settings.set('top_k', 9);
  expect(asked('set_setting').at(-1)).toMatchObject({ scope: { type: 'persona', id: 's' }, key: 'top_k', value: 9 });
  await app.personas.save('Stone', 'You are a pebble.', null);
  await drawn();
  expect(asked('change_persona')).toEqual([
    { type: 'change_persona', id: 's', name: 'Stone', system_prompt: 'You are a pebble.', model: null },
  ]);
  expect(app.settings.target).toEqual({ type: 'chat', id: 'a' });
});

test('a persona gets its parameters in the dialog that makes it, without anything being set before', async () => {
  const { app, asked, platform } = await open({ own: resolved({ top_k: 5 }) });
  platform.answers.create_persona = { type: 'persona', persona: { ...persona, id: 'n', name: 'Brief' } };
  app.personas.edit({ values: { top_k: 5 } });
  await drawn();
  await settle();
  await drawn();
  const row = table.find(({ key }) => key === 'top_k') as (typeof table)[number];
  expect([app.settings.valueOf(row), app.settings.sourceOf(row)]).toEqual([5, 'persona']);
  await app.settings.set('top_k', 9);
  await app.settings.set('temperature', 0.3);
  await app.settings.set('temperature', null);
  expect(app.settings.valueOf(row)).toBe(9);
  expect(asked('set_setting')).toEqual([]);
  await app.personas.save('Brief', '', null);
  expect(asked('create_persona')).toMatchObject([{ values: { top_k: 9 } }]);
  await drawn();
  expect(app.settings.target).toEqual({ type: 'chat', id: 'a' });
});

test('what is set before the first message is stored with it', async () => {
  const { app, asked, platform } = await open();
  const opened = async () => {
    await drawn();
    await settle();
    await drawn();
  };
  app.newChatAs({ ...persona, model: null });
  app.navigation.show('inspector', true);
  await opened();
  expect(asked('get_settings').at(-1)).toEqual({ type: 'get_settings', scope: { type: 'persona', id: 's' } });
  await app.settings.set('temperature', 0.3);
  await opened();
  expect(screen.getByRole<HTMLInputElement>('textbox', { name: 'Temperature' }).value).toBe('0.3');
  expect(asked('set_setting')).toEqual([]);

  const row = conversation('b', { title: '' });
  platform.answers.new_conversation_as = { type: 'conversation', conversation: row, messages: [] };
  platform.answers.send_message = {
    type: 'sent',
    conversation: { ...row, title: 'Hello', is_streaming: true },
    messages: [],
  };
  app.chat.draft = 'Hello';
  await app.chat.send();
  const scope = { type: 'chat', id: 'b' };
  expect(asked('set_setting')).toEqual([{ type: 'set_setting', scope, key: 'temperature', value: 0.3 }]);
  const types = platform.asked.map(({ type }) => type);
  expect(types.indexOf('set_setting')).toBeLessThan(types.indexOf('send_message'));
  // The next one begins without.
  app.newChat();
  app.navigation.show('inspector', true);
  await opened();
  expect(app.chat.unsent.values).toEqual({});
  expect(app.settings.target).toMatchObject({ type: 'draft', values: {} });
});

test('a preset is used before the first message, and stored with it', async () => {
  const { app, asked, platform } = await open();
  app.newChat();
  app.navigation.show('inspector', true);
  for (let turn = 0; turn < 3; turn++) await drawn();
  await app.settings.set('temperature', 1.5);
  await app.settings.set('seed', 7);
  const preset = await screen.findByRole('button', { name: 'Use the preset Precise' });
  await fireEvent.click(preset);
  await drawn();
  expect(preset.getAttribute('aria-pressed')).toBe('true');
  expect(app.chat.unsent.values).toEqual({ temperature: 0.2, top_p: 0.9 });
  expect([asked('set_parameters'), app.toasts.items]).toEqual([[], []]);

  const row = conversation('b', { title: '' });
  platform.answers.new_conversation = { type: 'conversation', conversation: row, messages: [] };
  app.chat.draft = 'Hello';
  await app.chat.send();
  const scope = { type: 'chat', id: 'b' };
  expect(asked('set_setting')).toEqual([
    { type: 'set_setting', scope, key: 'temperature', value: 0.2 },
    { type: 'set_setting', scope, key: 'top_p', value: 0.9 },
  ]);
});

test('a deleted persona is brought back by undo, and the focus stays on the page', async () => {
  const { app, asked } = await open();
  app.navigation.show('inspector', false);
  await drawn();
  const row = screen.getByRole('button', { name: 'Stone' });
  row.focus();
  await fireEvent.keyDown(row, { key: 'Delete' });
  await drawn();
  expect(document.activeElement?.getAttribute('aria-label')).toBe('Message');
  expect(screen.queryByRole('region', { name: 'Personas' })).toBeNull();
  app.undo.undo();
  await settle();
  expect(asked('restore_persona')).toEqual([{ type: 'restore_persona', id: 's' }]);
});

test('a number of a chat has a line beside its field, and what the core refuses stands there', async () => {
  const { asked, inspector, platform } = await open();
  const line = within(inspector()).getByRole('slider', { name: 'Temperature' });
  await fireEvent.change(line, { target: { value: '1.2' } });
  expect(asked('set_setting').at(-1)).toMatchObject({ key: 'temperature', value: 1.2 });
  platform.answers.set_setting = new CallError('storage', 'The disk is full.');
  await fireEvent.change(line, { target: { value: '1.4' } });
  await drawn();
  expect(within(inspector()).getByRole('alert').textContent).toContain('The disk is full.');
});

test('what is unfolded in the inspector stays so in the next chat', async () => {
  const { app, inspector, platform } = await open();
  const details = () => within(inspector()).getByText('Advanced').closest('details') as HTMLDetailsElement;
  expect(details().open).toBe(false);
  details().open = true;
  await fireEvent(details(), new Event('toggle'));
  platform.emit({ type: 'conversation', conversation: conversation('b') });
  app.chat.select('b');
  await drawn();
  await settle();
  await drawn();
  expect(details().open).toBe(true);
});

test('while two answers are compared, the longer one and the shorter context count', async () => {
  const messages = [message('q', { role: 'user', text: 'Why?' }), message('w', { parent_id: 'q', text: 'Because.' })];
  const { app, inspector, platform } = await open({ messages });
  const { facts } = model('owner/other');
  const other = model('owner/other', { facts: facts && { ...facts, context_length: 2048 } });
  platform.emit({ type: 'models', models: [model('owner/model'), other] });
  const of = (id: string, change: Partial<Message>) => {
    const segments = [{ kind: 'text' as const, text: 'x'.repeat(40) }];
    return message(id, { parent_id: 'q', versions: ['w', 'v'], segments, ...change });
  };
  // What a model has counted is not estimated.
  const answers = [of('w', { status: 'streaming' }), of('v', { stats: stats({ generation_tokens: 110 }) })];
  platform.answers.compare = { type: 'compared', conversation: conversation('a'), messages: answers };
  platform.answers.get_versions = (command) => {
    const ids = command.type === 'get_versions' ? command.message_ids : [];
    return { type: 'versions', messages: answers.filter(({ id }) => ids.includes(id)) };
  };
  app.chat.openCompare(['owner/model', 'owner/other']);
  await app.chat.compare.start();
  await settle();
  await drawn();
  expect(app.room.isComparing).toBe(true);
  expect(
    within(inspector()).getByText('The longer of the two answers is counted, against the shorter of the two contexts.'),
  ).toBeTruthy();
  const { used_tokens: longer = 0, limit_tokens: shorter } = app.room.context ?? {};
  app.chat.compare.close();
  await tick();
  const { used_tokens = 0, limit_tokens } = app.room.context ?? {};
  expect([longer - used_tokens, shorter, limit_tokens]).toEqual([100, 2048, 4096]);
});
