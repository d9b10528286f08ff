// After Cairn quit unexpectedly: what the window says, and what can be done about it.
import { fireEvent, screen, within } from '@testing-library/svelte';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import type { App } from '../app.svelte';
import { CallError } from '../platform/platform';
import type { NoticeKind, UnexpectedQuit } from '../platform/wire';
import { bootstrap, conversation, FakePlatform, model, status } from '../testing/fake';
import { charts, job } from '../testing/jobs';
import { drawn, openWindow, useWindow } from '../testing/window';

useWindow();

let platform: FakePlatform;
let app: App;

const quit: UnexpectedQuit = {
  during: 'answering',
  model: 'owner/other',
  job_id: null,
  job: null,
  conversation_id: null,
  is_set_aside: false,
};
const unloaded = { ...status, engine: { state: 'empty' as const }, model_fingerprint: null, models: [] };

beforeEach(() => {
  platform = new FakePlatform();
});

afterEach(() => vi.useRealTimers());

async function open(change: Parameters<typeof bootstrap>[0] = {}): Promise<void> {
  const row = conversation('a', { model: { name: 'owner/other', source: 'answer', missing: null } });
  platform.answers.bootstrap = bootstrap({
    conversations: [row],
    models: [model('owner/model'), model('owner/other', { is_set_aside: true })],
    ...change,
  });
  platform.answers.get_conversation = { type: 'conversation', conversation: row, messages: [] };
  platform.answers.list_jobs = {
    type: 'jobs',
    jobs: [job('j', { state: 'paused', is_set_aside: true, reason: 'No.' })],
  };
  platform.answers.get_job_rows = { type: 'job_rows', rows: [] };
  platform.answers.get_job_charts = { type: 'job_charts', charts };
  ({ app } = await openWindow(platform));
}

async function tell(kind: NoticeKind): Promise<void> {
  platform.emit({ type: 'notice', level: 'info', text: 'What the core says.', kind });
  await drawn();
}

const messages = () => within(screen.getByRole('region', { name: 'Notifications' }));
const press = async (name: string | RegExp, place: Pick<typeof screen, 'getByRole'> = screen) => {
  await fireEvent.click(place.getByRole('button', { name }));
  await drawn();
};
const asked = (type: string) => platform.asked.filter((command) => command.type === type);

test('the chat in which Cairn quit can be opened', async () => {
  await open();
  await tell({ type: 'quit_unexpectedly', quit: { ...quit, conversation_id: 'a' } });
  messages().getByText('Cairn quit unexpectedly while answering with other; your chat is saved.');
  // It is open already.
  expect(messages().queryByRole('button', { name: 'Open chat' })).toBeNull();
  app.newChat();
  await drawn();
  await press('Open chat', messages());
  expect(app.chat.selectedId).toBe('a');
});

test('a model that is set aside is used anyway', async () => {
  await open();
  await tell({ type: 'quit_unexpectedly', quit: { ...quit, conversation_id: 'a', is_set_aside: true } });
  messages().getByText(
    'Cairn quit unexpectedly again while answering with other, so other isn’t used until you say so.',
  );
  await press('Use it anyway', messages());
  expect(asked('use_model_anyway')).toEqual([{ type: 'use_model_anyway', name: 'owner/other' }]);
});

test('the questions that are paused can be opened and continued', async () => {
  await open();
  await tell({
    type: 'quit_unexpectedly',
    quit: { ...quit, during: 'job', job_id: 'j', job: 'Job j', is_set_aside: true },
  });
  messages().getByText(/^Cairn quit unexpectedly again while .* “Job j” with other, so they are paused\.$/);
  await press('Open questions', messages());
  screen.getByText('Paused because Cairn quit unexpectedly twice while asking.');
  expect(screen.queryByText('No.')).toBeNull();
  await press('Continue');
  expect(asked('continue_job')).toEqual([{ type: 'continue_job', id: 'j' }]);
});

test('of several quits only the newest is told', async () => {
  await open();
  for (const is_set_aside of [false, true])
    await tell({ type: 'quit_unexpectedly', quit: { ...quit, conversation_id: 'a', is_set_aside } });
  await tell({ type: 'started_quietly' });
  expect(messages().getAllByRole('listitem')).toHaveLength(1);
  messages().getByText(/three times in a row/);
});

test('a chat whose model is set aside says so once', async () => {
  const aside = [model('owner/other', { is_set_aside: true })];
  await open({ models: aside, status: unloaded });
  app.openConversation('a');
  await drawn();
  const sentence = 'other is set aside because Cairn quit unexpectedly twice while using it.';
  const seen = screen.getAllByText(sentence).filter((element) => !element.classList.contains('visually-hidden'));
  expect(seen).toHaveLength(1);
});

test('a quiet start says so until it is ended', async () => {
  await open();
  await tell({ type: 'started_quietly' });
  messages().getByText(/three times in a row/);
  await press('Continue normally', messages());
  expect(asked('end_quiet_start')).toHaveLength(1);
  expect(messages().queryByText(/three times in a row/)).toBeNull();
});

test('a database that is taken away stays said, by the newest notice', async () => {
  await open();
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  await tell({ type: 'database_gone', why: { code: 'no_space', message: 'The disk is full.' } });
  await vi.advanceTimersByTimeAsync(60_000);
  messages().getByText(/can’t save it again yet/);
  await tell({ type: 'database_saved', path: '/a/cairn.db', is_in_place: true });
  await vi.advanceTimersByTimeAsync(60_000);
  expect(messages().getAllByRole('listitem')).toHaveLength(1);
  messages().getByText(/All chats are saved in/);
});

test('nothing can be done about an end without a cause', async () => {
  await open();
  await tell({ type: 'quit_unexpectedly', quit: { ...quit, during: null, model: null } });
  const message = messages().getByText('Cairn quit unexpectedly.').closest('li') as HTMLElement;
  expect(
    within(message)
      .getAllByRole('button')
      .map((button) => button.getAttribute('aria-label')),
  ).toEqual(['Dismiss']);
});

test('the composer says why nothing is asked, and how to ask', async () => {
  await open();
  app.chat.select('a');
  await drawn();
  screen.getByText('other is set aside because Cairn quit unexpectedly twice while using it.');
  app.chat.draft = 'Hello';
  await app.chat.send();
  expect(asked('send_message')).toEqual([]);
  expect(app.chat.draft).toBe('Hello');
  await press('Use it anyway');
  expect(asked('use_model_anyway')).toEqual([{ type: 'use_model_anyway', name: 'owner/other' }]);
  platform.emit({ type: 'models', models: [model('owner/model'), model('owner/other')] });
  await drawn();
  expect(screen.queryByRole('button', { name: 'Use it anyway' })).toBeNull();
});

test('without another model the composer offers the only one', async () => {
  await open({ conversations: [], models: [model('owner/other', { is_set_aside: true })], status: unloaded });
  expect(app.models.whyNotReady).toBe('other is set aside because Cairn quit unexpectedly twice while using it.');
  await press('Use it anyway');
  expect(asked('use_model_anyway')).toHaveLength(1);
});

test('the row of a model that is set aside has no other button', async () => {
  await open();
  app.openModels('here');
  await drawn();
  const row = within(screen.getByRole('heading', { name: 'other' }).closest('li') as HTMLElement);
  row.getByText('other is set aside because Cairn quit unexpectedly twice while using it.');
  expect(row.queryByRole('button', { name: /^Load/ })).toBeNull();
  await press(/^Use it anyway/, row);
  expect(asked('use_model_anyway')).toEqual([{ type: 'use_model_anyway', name: 'owner/other' }]);
});

test('a command that the core refuses offers to use the model anyway', async () => {
  const kind = { type: 'model_set_aside' as const, model: 'owner/other' };
  platform.answers.load_model = CallError.of({ code: 'set_aside', message: 'No.', kind });
  await open();
  await app.models.load('owner/other');
  await drawn();
  await press('Use it anyway', messages());
  expect(asked('use_model_anyway')).toEqual([{ type: 'use_model_anyway', name: 'owner/other' }]);
});
