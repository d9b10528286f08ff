// The page of models and the first launch, used with a keyboard.
import { fireEvent, screen, within } from '@testing-library/svelte';
import { expect, test, vi } from 'vitest';
import { CallError } from '../platform/platform';
import type { Reply, ResolvedSettings, Settings } from '../platform/wire';
import {
  bootstrap,
  conversation,
  download,
  facts,
  FakePlatform,
  found,
  gate,
  hubAccess,
  hubModel,
  memory,
  message,
  model,
  recommended,
  saved,
  settings as values,
  stats,
  status,
} from '../testing/fake';
import { drawn, openWindow, useWindow } from '../testing/window';

useWindow();

const choices = [
  recommended('o/Balanced-4B-4bit', { choices: ['start'] }),
  recommended('o/Small-1B-4bit', { choices: ['better', 'code'] }),
  recommended('o/Strong-12B-4bit'),
];
const empty = { ...status, engine: { state: 'empty' as const }, model_fingerprint: null };
const nothing = { models: [], conversations: [], status: empty };

async function open(change: Parameters<typeof bootstrap>[0] = {}, platform = new FakePlatform()) {
  platform.answers = {
    ...platform.answers,
    bootstrap: bootstrap(change),
    get_recommended_models: { type: 'recommended_models', memory_bytes: 2 ** 34, models: choices },
  };
  return { ...(await openWindow(platform)), platform };
}

const button = (name: string | RegExp) => screen.getByRole('button', { name });
const press = async (name: string | RegExp) => {
  await fireEvent.click(button(name));
  await drawn();
};
const composer = () => screen.getByRole<HTMLTextAreaElement>('textbox', { name: 'Message' });

test('the first launch: choose a model, watch it come, write', async () => {
  const { platform } = await open(nothing);
  const group = within(screen.getByRole('radiogroup', { name: 'Model' }));
  const radio = (name: RegExp) => group.getByRole<HTMLInputElement>('radio', { name });
  expect(radio(/^Start here/).checked).toBe(true);
  expect(group.getAllByRole('radio').length).toBe(2);
  expect(group.getByText('Slower · For programming and coding agents')).toBeTruthy();
  expect(screen.getByText(/^Of the 16 GB/).textContent).toContain('models may take');
  await fireEvent.click(radio(/^Better answers/));
  await drawn();
  await press('Download and start');
  expect(platform.asked).toContainEqual({ type: 'download_model', name: 'o/Small-1B-4bit' });

  platform.emit({ type: 'downloads', downloads: [download('o/Small-1B-4bit')] });
  await drawn();
  expect(screen.getByRole('heading', { name: 'Your model is on its way' })).toBeTruthy();
  const card = within(screen.getByRole('article', { name: 'Small 1B' }));
  expect(card.getByText('1 of 2 files, 25 MB/s, about 1 min left')).toBeTruthy();
  expect(card.getByRole('progressbar').getAttribute('aria-valuenow')).toBe('40');
  expect([composer().disabled, composer().placeholder]).toEqual([true, 'You can write once the model is here']);

  platform.emit({ type: 'downloads', downloads: [download('o/Small-1B-4bit', { state: 'paused' })] });
  await drawn();
  expect(screen.getByRole('heading', { name: 'Your model is not here yet' })).toBeTruthy();

  platform.emit({ type: 'downloads', downloads: [download('o/Small-1B-4bit', { state: 'done' })] });
  platform.emit({ type: 'models', models: [model('o/Small-1B-4bit')] });
  await drawn();
  expect(platform.asked.at(-1)).toEqual({ type: 'load_model', name: 'o/Small-1B-4bit' });
  expect([composer().disabled, document.activeElement]).toEqual([false, composer()]);
});

test('the first launch without a connection says so calmly', async () => {
  const failure = { code: 'offline' as const, message: 'No route.' };
  const { app, platform } = await open({
    ...nothing,
    downloads: [download('o/Small-1B-4bit', { state: 'offline', failure })],
  });
  expect(screen.getByText('Waiting for the connection to the hub')).toBeTruthy();
  expect([screen.queryByRole('alert'), app.toasts.items]).toEqual([null, []]);
  await press('Try again, Small 1B');
  expect(platform.askedTypes()).toContain('retry_downloads');
});

test('the first launch with a hub that does not answer says so after a moment, and goes on by itself', async () => {
  const asking = download('o/Small-1B-4bit', { bytes: 0, total_bytes: 0, files: [], seconds_left: null });
  const { clock, platform } = await open({ ...nothing, downloads: [asking] });
  const heading = () => screen.getByRole('region', { name: 'Welcome' }).querySelector('h2')?.textContent?.trim();
  expect([heading(), screen.queryByText('Asking the hub…') !== null]).toEqual(['Your model is on its way', true]);
  clock.run();
  await drawn();
  expect(heading()).toBe('Waiting for the hub');
  expect(screen.getByText('The hub does not answer yet')).toBeTruthy();
  platform.emit({ type: 'downloads', downloads: [{ ...asking, state: 'offline' }] });
  await drawn();
  expect(heading()).toBe('Waiting for the hub');
  platform.emit({ type: 'downloads', downloads: [download('o/Small-1B-4bit')] });
  await drawn();
  expect(heading()).toBe('Your model is on its way');
});

test('a file is offered only where it can be chosen', async () => {
  const platform = new FakePlatform();
  platform.chooseModelFile = vi.fn(async () => null);
  await open(nothing, platform);
  await press('Choose a file…');
  expect(platform.chooseModelFile).toHaveBeenCalledOnce();
  expect(screen.queryByText(/drop a GGUF file/)).toBeNull();
});

test('the first launch with a download that stopped leads to other models, too', async () => {
  const failure = { code: 'hub' as const, message: 'The hub failed.' };
  const { app } = await open({ ...nothing, downloads: [download('o/Small-1B-4bit', { state: 'failed', failure })] });
  expect(screen.getByRole('heading', { name: 'Your model is not here yet' })).toBeTruthy();
  await press('Other models…');
  expect([app.navigation.page, app.models.tab]).toEqual(['models', 'discover']);
});

test('a download that ended with the connection says so calmly and can go on', async () => {
  const failure = { code: 'offline' as const, message: 'The connection was cut again and again.' };
  const { app, platform } = await open({ downloads: [download('o/Small-1B-4bit', { state: 'failed', failure })] });
  app.openModels();
  await drawn();
  const card = within(screen.getByRole('article', { name: 'Small 1B' }));
  expect(card.getByText(/^The connection was cut. What has come is kept/)).toBeTruthy();
  expect(card.queryByRole('alert')).toBeNull();
  await press('Try again, Small 1B');
  expect(platform.asked).toContainEqual({ type: 'download_model', name: 'o/Small-1B-4bit' });
});

test('several downloads that have failed take a line each where models are looked for', async () => {
  const failure = { code: 'hub' as const, message: 'The hub failed.' };
  const failed = (name: string) => download(name, { state: 'failed', failure });
  const { app, platform } = await open({ downloads: [failed('o/Small-1B-4bit'), download('o/Balanced-4B-4bit')] });
  app.openModels('discover');
  await drawn();
  const card = (name: string) => within(screen.getByRole('article', { name }));
  expect(card('Small 1B').getByText('Files')).toBeTruthy();
  platform.emit({
    type: 'downloads',
    downloads: [failed('o/Small-1B-4bit'), download('o/Balanced-4B-4bit'), failed('o/Strong-12B-4bit')],
  });
  await drawn();
  const hasFiles = () =>
    ['Small 1B', 'Balanced 4B', 'Strong 12B'].map((name) => card(name).queryByText('Files') !== null);
  expect(hasFiles()).toEqual([false, true, false]);
  expect(card('Small 1B').getByText('The hub failed.').title).toBe('The hub failed.');
  await press('Details of Strong 12B');
  expect([hasFiles(), document.activeElement]).toEqual([[false, true, true], button('Try again, Strong 12B')]);
  await press('Try again, Small 1B');
  expect(platform.asked).toContainEqual({ type: 'download_model', name: 'o/Small-1B-4bit' });
  app.models.tab = 'here';
  await drawn();
  expect(hasFiles()).toEqual([true, true, true]);
});

test('arrow keys go through the tabs', async () => {
  const { app } = await open();
  app.openModels();
  await drawn();
  const tab = (name: string) => screen.getByRole('tab', { name });
  tab('On this computer').focus();
  await fireEvent.keyDown(tab('On this computer'), { key: 'ArrowRight' });
  await drawn();
  expect([app.models.tab, document.activeElement]).toEqual(['discover', tab('Discover')]);
  expect(screen.getByRole('tabpanel', { name: 'Discover' })).toBeTruthy();
  expect([tab('Discover').tabIndex, tab('On this computer').tabIndex]).toEqual([0, -1]);
});

test('a model says what it is, whether it fits, and the figures behind that', async () => {
  const tight = memory({ fit: 'tight', total_bytes: 13.6e9 });
  const { app } = await open({ models: [model('o/big', { facts: facts({ memory: tight }) })] });
  app.openModels();
  await drawn();
  const row = within(screen.getByRole('list', { name: 'Models' }));
  expect(row.getByText('4.0 B')).toBeTruthy();
  expect(row.getByText('4-bit')).toBeTruthy();
  expect(row.getByRole('meter', { name: 'Memory of big' }).getAttribute('aria-valuetext')).toBe(
    '13.6 GB of 14 GB, tight',
  );
  const figures = row.getByRole('button', { expanded: false });
  await fireEvent.click(figures);
  await drawn();
  expect(row.getByText('A chat of 32,768 tokens').nextElementSibling?.textContent).toBe('900 MB');
  expect(row.getByText(/In the Hugging Face cache/)).toBeTruthy();
});

test('a row counts the memory with the settings of its model', async () => {
  const platform = new FakePlatform();
  const own = memory({ fit: 'well', total_bytes: 3e9, context_tokens: 4096, longest_tokens: 4096 });
  platform.answers.get_model_memory = { type: 'model_memory', memory: own, takes_bf16_state: false };
  const large = facts({ memory: memory({ fit: 'too_large', total_bytes: 20e9 }) });
  const { app } = await open({ models: [model('o/big', { facts: large })] }, platform);
  app.openModels();
  await drawn();
  const figure = () => screen.getByRole('meter', { name: 'Memory of big' }).getAttribute('aria-valuetext');
  expect(figure()).toBe('3 GB, fits well');
  // Its settings are changed.
  platform.answers.get_model_memory = {
    type: 'model_memory',
    memory: { ...own, total_bytes: 5e9 },
    takes_bf16_state: false,
  };
  app.openModelSettings('o/big');
  await drawn();
  await drawn();
  expect(figure()).toBe('5 GB, fits well');
  app.models.settingsName = null;
  app.models.isMenuOpen = true;
  app.navigation.go('chat');
  await drawn();
  expect(screen.getByText('Fits well')).toBeTruthy();
});

test('shows the memory of a usual and of the longest chat everywhere', async () => {
  const need = memory({ context_tokens: 8192, total_bytes: 1.1e9, longest_tokens: 40960, longest_bytes: 5.2e9 });
  const own = facts({ memory: need });
  const both = '1.1 GB in a usual chat, 5.2 GB in the longest';
  const platform = new FakePlatform();
  platform.answers.get_recommended_models = {
    type: 'recommended_models',
    memory_bytes: 2 ** 34,
    models: [recommended('o/New-1B-4bit', { choices: ['start'], facts: own })],
  };
  platform.answers.get_model_memory = { type: 'model_memory', memory: need, takes_bf16_state: false };
  platform.answers.search_models = { type: 'found_models', models: [found('o/Found-1B-4bit')] };
  platform.answers.get_model_facts = { type: 'model_facts', facts: own };
  platform.answers = { bootstrap: bootstrap(nothing), ...platform.answers };
  const { app } = await openWindow(platform);
  await drawn();
  // The cards of the first launch, and the download of one of them.
  expect(screen.getByText(`Memory: about ${both}`)).toBeTruthy();
  platform.emit({ type: 'downloads', downloads: [download('o/New-1B-4bit')] });
  await drawn();
  expect(screen.getByText(`Memory: about ${both}`)).toBeTruthy();

  // The menu, and a row with its figures.
  platform.emit({ type: 'downloads', downloads: [] }, { type: 'models', models: [model('o/here', { facts: own })] });
  await drawn();
  app.models.isMenuOpen = true;
  await drawn();
  expect(screen.getByText(both)).toBeTruthy();
  app.models.isMenuOpen = false;
  app.openModels();
  await drawn();
  expect(screen.getByRole('meter', { name: 'Memory of here' }).getAttribute('aria-valuetext')).toBe(
    '1.1 GB, fits well, 5.2 GB in the longest chat',
  );
  await fireEvent.click(within(screen.getByRole('list', { name: 'Models' })).getByRole('button', { expanded: false }));
  await drawn();
  expect(screen.getByText('In all with the longest chat, 40,960 tokens').nextElementSibling?.textContent).toBe(
    '5.2 GB',
  );

  // What was suggested, and what was found.
  app.openModels('discover');
  await drawn();
  expect(screen.getByText('5.2 GB in the longest chat')).toBeTruthy();
  app.discover.type('found');
  void app.discover.search();
  await drawn();
  await drawn();
  expect(screen.getByText(both)).toBeTruthy();
});

test('a model that is being loaded says how far it is, and can be stopped without a message', async () => {
  const engine = { state: 'loading' as const, model: 'owner/model', bytes_read: 1e9, total_bytes: 4e9 };
  const { app, platform } = await open({ status: { ...status, engine } });
  app.openModels();
  await drawn();
  expect(screen.getByRole('progressbar', { name: 'Loading model' }).getAttribute('aria-valuenow')).toBe('25');
  const loading = gate<Reply>();
  platform.answers.load_model = () => loading.promise.then(() => Promise.reject(new Error('It was stopped.')));
  const isLoaded = app.models.load('owner/model');
  await press('Stop loading model');
  expect(platform.askedTypes()).toContain('stop_loading');
  loading.open({ type: 'done' });
  expect([await isLoaded, app.toasts.items]).toEqual([false, []]);
});

test('deleting says what goes, hides the row, and can be undone', async () => {
  const { app, platform } = await open({ models: [model('o/first'), model('o/second')] });
  const deletion = { name: 'o/first', bytes: 2.3e9, is_shared: true, num_revisions: 2 };
  platform.answers.get_model_deletion = { type: 'model_deletion', deletion };
  app.openModels();
  await drawn();
  await fireEvent.contextMenu(screen.getByText('first'), { clientX: 9, clientY: 9 });
  await drawn();
  await fireEvent.click(screen.getByRole('menuitem', { name: 'Delete…', hidden: true }));
  await drawn();
  const dialog = within(screen.getByRole('dialog', { name: 'Delete first' }));
  expect(dialog.getByText(/^This frees 2.3 GB/)).toBeTruthy();
  expect(dialog.getByText(/^It deletes all 2 versions/)).toBeTruthy();
  expect(dialog.getByText(/^Other programs on this computer may use these files too/)).toBeTruthy();
  platform.answers.delete_model = new Error('It is in use.');
  await fireEvent.click(dialog.getByRole('button', { name: 'Delete' }));
  await drawn();
  expect(dialog.getByRole('alert').textContent).toBe('It is in use.');
  delete platform.answers.delete_model;
  await fireEvent.click(dialog.getByRole('button', { name: 'Delete' }));
  await drawn();
  expect([screen.queryByText('first'), app.models.deletingName]).toEqual([null, null]);
  expect(document.activeElement).toBe(button('Actions for second'));
  platform.answers.list_models = { type: 'models', models: [model('o/first'), model('o/second')] };
  await press('Undo');
  await drawn();
  expect(platform.asked).toContainEqual({ type: 'restore_model', name: 'o/first' });
  expect(document.activeElement).toBe(button('Actions for first'));
});

test('deleting a model that answers says what becomes of the answer', async () => {
  const engine = { state: 'generating' as const, model: 'o/first', generation_tokens: 3, generation_tps: 9 };
  const { app, platform } = await open({
    models: [model('o/first'), model('o/second')],
    status: { ...status, engine },
  });
  const deletion = { name: 'o/first', bytes: 2.3e9, is_shared: false, num_revisions: 1 };
  platform.answers.get_model_deletion = { type: 'model_deletion', deletion };
  const says = () => screen.queryByText(/^It is answering now\./) !== null;
  await app.models.askForDeletion('o/first');
  await drawn();
  expect(says()).toBe(true);
  await app.models.askForDeletion('o/second');
  await drawn();
  expect(says()).toBe(false);

  // Other chats answer beside the one that the pill tells of.
  const name = { name: 'o/second', source: 'chat' as const, missing: null };
  platform.emit({ type: 'conversation', conversation: conversation('b', { is_streaming: true, model: name }) });
  await drawn();
  expect(says()).toBe(true);
});

test('a reply that a newer list has overtaken does not bring back a check that has ended', async () => {
  const { app, platform } = await open({ models: [] });
  const listed = gate<Reply>();
  platform.answers.list_models = listed.promise;
  const refreshed = app.models.refresh();
  platform.emit({ type: 'models', models: [model('o/Small-1B-4bit')] });
  platform.answers.list_models = { type: 'models', models: [model('o/Small-1B-4bit')] };
  listed.open({ type: 'models', models: [model('o/Small-1B-4bit', { is_being_checked: true })] });
  await refreshed;
  expect(app.models.items.map(({ is_being_checked }) => is_being_checked)).toEqual([false]);
});

test('models that Cairn only reads cannot be deleted, and their settings can be shown', async () => {
  const { app, platform } = await open({ models: [model('owner/model'), model('o/other', { source: 'lm_studio' })] });
  app.openModels();
  await drawn();
  await press('Actions for other');
  const items = screen.getAllByRole('menuitem', { hidden: true }).map(({ textContent }) => textContent);
  expect(items).toEqual(['Load', 'Start chatting', 'Settings…', 'Check again']);
  await fireEvent.click(screen.getByRole('menuitem', { name: 'Settings…', hidden: true }));
  await drawn();
  expect(platform.asked.filter(({ type }) => type === 'get_settings').at(-1)).toEqual({
    type: 'get_settings',
    scope: { type: 'model', name: 'o/other' },
  });
  expect(screen.getByRole('heading', { name: 'Settings of other', hidden: true })).toBeTruthy();
});

test('a model has one name everywhere, and its whole name beside it', async () => {
  const { app } = await open({
    models: [model('o/Small-1B-4bit')],
    status: { ...status, engine: { state: 'ready', model: 'o/Small-1B-4bit' } },
  });
  expect(screen.getByRole('button', { name: 'Model: Small 1B' })).toBeTruthy();
  app.openModels();
  await drawn();
  expect(screen.getByRole('heading', { name: 'Small 1B' })).toBeTruthy();
  expect(screen.getByText('o/Small-1B-4bit')).toBeTruthy();
  expect(screen.getByTestId('engine-state').closest('button')?.title).toMatch(/^o\/Small-1B-4bit\nReady/);
});

test('a model is called by its alias wherever it is named, and says that it is pinned', async () => {
  const { app } = await open({ models: [model('owner/model', { alias: 'Helper', is_pinned: true })] });
  app.openModels();
  await drawn();
  expect(screen.getByRole('heading', { name: 'Helper' })).toBeTruthy();
  expect(screen.getByText('Pinned')).toBeTruthy();
  app.navigation.go('chat');
  await drawn();
  expect(screen.getByRole('button', { name: 'Model: Helper' })).toBeTruthy();
});

test('what is set for a model is shown with its source and its memory, changed, and taken back', async () => {
  const platform = new FakePlatform();
  const own = (change: Partial<Settings>, from: ResolvedSettings['from']): Reply => ({
    type: 'settings',
    resolved: { settings: { ...values, ...change }, from, thinking: null },
  });
  platform.answers.get_settings = own({ temperature: 0.6 }, { temperature: 'generation_config' });
  platform.answers.get_model_memory = {
    type: 'model_memory',
    memory: memory({ context_tokens: 8192 }),
    takes_bf16_state: false,
  };
  const { app } = await open({ models: [model('owner/model'), model('o/Small-1B-4bit')] }, platform);
  app.openModelSettings('owner/model');
  await drawn();
  expect(screen.getByText('From the model')).toBeTruthy();
  expect(screen.getByText('A chat of 8,192 tokens')).toBeTruthy();
  expect(screen.queryByLabelText('State in 16 bits')).toBeNull();

  platform.answers.set_setting = own({ context_length: 4096 }, { context_length: 'model' });
  platform.answers.get_model_memory = {
    type: 'model_memory',
    memory: memory({ context_tokens: 4096 }),
    takes_bf16_state: true,
  };
  await fireEvent.change(screen.getByLabelText('Context length'), { target: { value: '4096' } });
  await drawn();
  const scope = { type: 'model', name: 'owner/model' };
  expect(platform.asked).toContainEqual({ type: 'set_setting', scope, key: 'context_length', value: 4096 });
  expect(screen.getByText('A chat of 4,096 tokens')).toBeTruthy();
  // Offered for models that have such a state.
  expect(screen.getByLabelText('State in 16 bits')).toBeTruthy();
  expect(screen.getByText('Set for this model')).toBeTruthy();
  await fireEvent.click(screen.getByRole('button', { name: 'Reset Context length', hidden: true }));
  expect(platform.asked).toContainEqual({ type: 'set_setting', scope, key: 'context_length', value: null });

  platform.answers.set_setting = own({}, {});
  await fireEvent.click(screen.getByLabelText('Load at start'));
  expect(platform.asked).toContainEqual({
    type: 'set_setting',
    scope: { type: 'app' },
    key: 'default_model',
    value: 'owner/model',
  });
  await fireEvent.click(screen.getByLabelText('Pinned'));
  await fireEvent.change(screen.getByLabelText('Unload when idle'), { target: { value: 'one_hour' } });
  await drawn();
  expect(platform.asked).toContainEqual({ type: 'set_setting', scope, key: 'is_pinned', value: true });
  expect(platform.asked).toContainEqual({ type: 'set_setting', scope, key: 'idle_unload', value: 'one_hour' });

  // The core's sentence stands where it was caused.
  const words = 'small cannot draft for model, because it has another tokenizer.';
  platform.answers.set_setting = new CallError('invalid', words);
  await fireEvent.change(screen.getByLabelText('Speed'), { target: { value: 'draft:o/Small-1B-4bit' } });
  await drawn();
  expect(screen.getByText(words).getAttribute('role')).toBe('alert');
  expect(app.toasts.items).toEqual([]);
});

test('the context of a model is bounded by what it reads, and the field says so', async () => {
  const platform = new FakePlatform();
  platform.answers.get_settings = { type: 'settings', resolved: { settings: values, from: {}, thinking: null } };
  const { app } = await open({}, platform);
  app.openModelSettings('owner/model');
  await drawn();
  expect(screen.getByText(/This model reads at most 32,768 tokens/)).toBeTruthy();
  await fireEvent.change(screen.getByLabelText('Context length'), { target: { value: '40000' } });
  await drawn();
  expect(screen.getByText('Enter a whole number from 256 to 32,768.').getAttribute('role')).toBe('alert');
  expect(platform.askedTypes()).not.toContain('set_setting');
});

test('a pinned model says that it is not unloaded when idle', async () => {
  const platform = new FakePlatform();
  const resolved = (is_pinned: boolean): Reply => ({
    type: 'settings',
    resolved: {
      settings: { ...values, is_pinned, idle_unload: 'one_hour' },
      from: { is_pinned: 'model' },
      thinking: null,
    },
  });
  platform.answers.get_settings = resolved(true);
  const { app } = await open({}, platform);
  app.openModelSettings('owner/model');
  await drawn();
  expect(screen.getByText('Without effect while the model is pinned: it stays in memory.')).toBeTruthy();
  platform.answers.set_setting = resolved(false);
  await fireEvent.click(screen.getByLabelText('Pinned'));
  await drawn();
  expect(screen.queryByText(/Without effect/)).toBeNull();
});

test('folders are added and removed', async () => {
  const platform = new FakePlatform();
  platform.chooseFolder = async () => '/models';
  platform.answers.get_model_folders = { type: 'model_folders', paths: ['/models'] };
  const { app } = await open({}, platform);
  app.openModels();
  await drawn();
  await press('Add folder…');
  expect(platform.asked).toContainEqual({ type: 'add_model_folder', path: '/models' });
  await press('Remove /models');
  expect(platform.asked).toContainEqual({ type: 'remove_model_folder', path: '/models' });
  expect(screen.queryByText('/models')).toBeNull();
});

test('a download is paused and cancelled from its card, which leaves its space under the pointer', async () => {
  const { app, platform } = await open({ downloads: [download('o/Small-1B-4bit')] });
  app.openModels();
  await drawn();
  expect(screen.getByTestId('engine-state').textContent).toBe('Downloading 40%');
  expect(screen.getByTestId('engine-state').parentElement?.textContent).toMatch(/1 min left\s*$/);
  expect(within(screen.getByRole('list', { name: 'Pages' })).getByText('40%')).toBeTruthy();
  await press('Pause the download of Small 1B');
  platform.emit({ type: 'downloads', downloads: [download('o/Small-1B-4bit', { state: 'paused' })] });
  await drawn();
  expect(screen.getByTestId('engine-state').textContent).toBe('Ready');
  await press('Resume the download of Small 1B');
  expect(platform.asked.map(({ type }) => type).filter((type) => /download/.test(type))).toEqual([
    'pause_download',
    'download_model',
  ]);
  const card = screen.getByRole('article', { name: 'Small 1B' });
  await fireEvent.pointerEnter(card.closest('ul') as HTMLElement);
  await press('Cancel the download of Small 1B');
  expect(document.activeElement).toBe(screen.getByRole('heading', { level: 1, name: 'Models' }));
  expect(card.closest('li')?.inert).toBe(true);
  await fireEvent.pointerLeave(card.closest('ul') as HTMLElement);
  await drawn();
  expect(card.isConnected).toBe(false);
});

test('a card that comes waits until the pointer has left the list below it', async () => {
  const { app, platform } = await open();
  app.openModels('discover');
  await drawn();
  const panel = screen.getByRole('tabpanel');
  await fireEvent.pointerEnter(panel);
  await press('Download Small 1B');
  platform.emit({ type: 'downloads', downloads: [download('o/Small-1B-4bit')] });
  await drawn();
  expect(within(panel).getByText('Downloading 40%')).toBeTruthy();
  expect(screen.queryByRole('article', { name: 'Small 1B' })).toBeNull();
  await fireEvent.pointerLeave(panel);
  await drawn();
  expect(screen.getByRole('article', { name: 'Small 1B' })).toBeTruthy();
});

test('a model that has come can be written to from its row', async () => {
  const { app, platform } = await open({
    models: [model('owner/model'), model('o/Small-1B-4bit')],
    downloads: [download('o/Small-1B-4bit', { state: 'done' })],
  });
  app.openModels('discover');
  await drawn();
  expect(screen.getByText('On this computer', { selector: '.visually-hidden' })).toBeTruthy();
  await press('Start chatting with Small 1B');
  expect(platform.asked).toContainEqual({ type: 'load_model', name: 'o/Small-1B-4bit' });
  expect([app.navigation.page, document.activeElement]).toEqual(['chat', composer()]);
});

test('a gated download leads to its page and to the token', async () => {
  const failure = { code: 'gated' as const, message: 'Set a variable of the environment.' };
  const page = 'https://huggingface.co/o/Small-1B-4bit';
  const { app } = await open({ downloads: [download('o/Small-1B-4bit', { state: 'failed', failure, page })] });
  app.openModels();
  await drawn();
  const card = within(screen.getByRole('article', { name: 'Small 1B' }));
  expect(card.getByRole('alert').textContent).toMatch(/^Its makers want you to accept their terms first/);
  const link = card.getByRole<HTMLAnchorElement>('link', { name: 'Open its page' });
  expect([link.href, link.target, link.rel]).toEqual([page, '_blank', 'noopener noreferrer']);
  await fireEvent.click(card.getByRole('button', { name: 'Add a token…' }));
  expect([app.navigation.page, app.navigation.settingsPage]).toEqual(['settings', 'models']);
});

test('a download of which nothing has come is not listed as a broken model, too', async () => {
  const nothingHere = { bytes: 0, problem: { kind: 'incomplete' as const, detail: 'no snapshot' } };
  const { app } = await open({
    models: [model('o/first'), model('o/Small-1B-4bit', nothingHere)],
    downloads: [download('o/Small-1B-4bit', { state: 'failed', failure: { code: 'hub', message: 'No.' } })],
  });
  app.openModels();
  await drawn();
  expect(screen.getByText(/^1 model on this computer/)).toBeTruthy();
  expect(screen.queryByText(/It is not complete/)).toBeNull();
});

test('a private download asks for a token, not for a variable of the environment', async () => {
  const failure = { code: 'needs_token' as const, message: 'Set an access token (HF_TOKEN).' };
  const { app } = await open({ downloads: [download('o/Small-1B-4bit', { state: 'failed', failure })] });
  app.openModels();
  await drawn();
  const card = within(screen.getByRole('article', { name: 'Small 1B' }));
  expect(card.getByRole('alert').textContent).toMatch(/private.*access token/);
  expect(card.getByRole('button', { name: 'Add a token…' })).toBeTruthy();
});

test('a whole name that is not found may be that of a private model', async () => {
  const { app, platform } = await open({ models: [model('owner/model')] });
  platform.answers = {
    ...platform.answers,
    get_hub_model: new CallError('not_found', 'There is no such model.'),
    search_models: { type: 'found_models', models: [] },
  };
  app.openModels('discover');
  for (const [text, isOffered] of [
    ['nothing', false],
    ['owner/secret', true],
  ] as const) {
    app.discover.type(text, true);
    await drawn();
    expect(screen.getByText(new RegExp(`^Nothing found for “${text}”`))).toBeTruthy();
    expect(screen.queryByRole('button', { name: 'Add a token…' }) !== null).toBe(isOffered);
  }
  await press('Add a token…');
  expect([app.navigation.page, app.navigation.settingsPage]).toEqual(['settings', 'models']);
});

test('a search shows what it found, and a row opens the card of a model', async () => {
  const { app, clock, platform } = await open();
  platform.answers.search_models = {
    type: 'found_models',
    models: [found('o/llama', { is_gated: true }), found('owner/model')],
  };
  platform.answers.get_hub_model = {
    type: 'hub_model',
    model: hubModel('o/llama', { is_gated: true, description: '<b>Plain</b>' }),
  };
  app.openModels('discover');
  await drawn();
  const field = screen.getByRole('textbox', { name: 'Search models' });
  await fireEvent.input(field, { target: { value: 'llama' } });
  clock.run();
  await drawn();
  expect(screen.getByText('2 models found')).toBeTruthy();
  expect(screen.getByText('Needs your consent')).toBeTruthy();
  await press('llama');
  expect(button('llama').getAttribute('aria-expanded')).toBe('true');
  expect(screen.getByText('<b>Plain</b>')).toBeTruthy();
  expect(screen.getByText(/^Its makers want you to accept their terms first/)).toBeTruthy();
  await press('Download 2.3 GB, llama');
  expect(platform.asked).toContainEqual({ type: 'download_model', name: 'o/llama' });
  field.focus();
  await fireEvent.keyDown(field, { key: 'Escape' });
  await drawn();
  expect([app.discover.text, app.navigation.page]).toEqual(['', 'models']);
});

test('without a connection the search says so and can be tried again', async () => {
  const { app, platform } = await open();
  platform.answers.search_models = new CallError('offline', 'No route.');
  app.openModels('discover');
  await drawn();
  await fireEvent.input(screen.getByRole('textbox', { name: 'Search models' }), {
    target: { value: 'llama' },
    inputType: 'insertFromPaste',
  });
  await drawn();
  expect(screen.getByText(/^The hub cannot be reached/)).toBeTruthy();
  expect([screen.queryByRole('alert'), app.toasts.items]).toEqual([null, []]);
  await press('Try again');
  expect(platform.askedTypes().filter((type) => type === 'search_models')).toHaveLength(2);
});

test('without Cairn the search says so calmly, and is repeated when it is back', async () => {
  const { app, platform } = await open();
  platform.answers.search_models = new CallError('unreachable', 'Cairn does not answer.');
  app.openModels('discover');
  app.discover.type('llama', true);
  await drawn();
  expect(screen.getByText(/^Cairn does not answer/)).toBeTruthy();
  expect(screen.queryByRole('alert')).toBeNull();
  platform.answers.search_models = { type: 'found_models', models: [found('o/llama')] };
  platform.connect('reconnecting');
  platform.connect('open');
  await drawn();
  await drawn();
  expect(screen.getByText('1 model found')).toBeTruthy();
});

test('a connection that the hub cuts is told calmly, with what the core says of it', async () => {
  const { app, platform } = await open();
  const sentence = 'The connection to hub was cut again and again: try again to continue.';
  platform.answers.search_models = new CallError('hub', sentence);
  app.openModels('discover');
  app.discover.type('llama', true);
  await drawn();
  expect(screen.getByText(/^The hub gave no answer/).textContent).toContain(sentence);
  expect(screen.queryByRole('alert')).toBeNull();
  platform.answers.search_models = new CallError('invalid', 'It is too long.');
  await press('Try again');
  expect(screen.getByRole('alert').textContent).toContain('It is too long.');
});

test('facts that could not be asked for are asked for again by the next search', async () => {
  const { app, platform } = await open();
  platform.answers.search_models = { type: 'found_models', models: [found('o/llama')] };
  platform.answers.get_model_facts = new Error('The connection was cut.');
  app.openModels('discover');
  app.discover.type('llama', true);
  await drawn();
  await drawn();
  expect(screen.queryByText('Fits well')).toBeNull();
  platform.answers.get_model_facts = { type: 'model_facts', facts: facts() };
  platform.answers.search_models = { type: 'found_models', models: [found('o/llama')] };
  await fireEvent.keyDown(screen.getByRole('textbox', { name: 'Search models' }), { key: 'Enter' });
  await drawn();
  await drawn();
  expect(screen.getByText('Fits well')).toBeTruthy();
});

test('the menu of the composer leads back to the model that answered, and says what that saves', async () => {
  const platform = new FakePlatform();
  const cache = saved({ model: 'o/before', fingerprint: 'other', cached_tokens: 1200 });
  platform.answers.get_conversation = {
    type: 'conversation',
    conversation: conversation('a'),
    messages: [message('m', { stats: stats({ model: 'o/before' }) })],
  };
  const models = [model('owner/model'), model('o/before')];
  const chosen = { name: 'owner/model', source: 'chat' as const, missing: null };
  const { app } = await open({ models, conversations: [conversation('a', { cache, model: chosen })] }, platform);
  app.models.isMenuOpen = true;
  await drawn();
  const back = screen.getByText('Back to before').closest('button') as HTMLElement;
  expect(back.textContent).toContain('Continues with 1,200 tokens saved');
  await fireEvent.click(back);
  await drawn();
  expect(platform.asked.slice(-2)).toEqual([
    { type: 'choose_model', id: 'a', model: 'o/before' },
    { type: 'load_model', name: 'o/before' },
  ]);
  app.models.isMenuOpen = true;
  await drawn();
  await fireEvent.click(screen.getByText('Download more…'));
  expect([app.navigation.page, app.models.tab]).toEqual(['models', 'discover']);
});

test('the palette finds models to download', async () => {
  const { app, platform } = await open();
  await fireEvent.keyDown(window, { key: 'k', metaKey: true });
  await drawn();
  const field = screen.getByRole('combobox', { name: 'Search' });
  await fireEvent.input(field, { target: { value: 'download strong' } });
  await drawn();
  await fireEvent.keyDown(field, { key: 'Enter' });
  await drawn();
  expect(platform.asked).toContainEqual({ type: 'download_model', name: 'o/Strong-12B-4bit' });
  expect([app.navigation.page, app.models.tab]).toEqual(['models', 'discover']);
});

test('a token is typed, sent and forgotten; a file as its place is a warning', async () => {
  const platform = new FakePlatform();
  const access = hubAccess();
  platform.answers.get_hub_access = { type: 'hub_access', access };
  platform.answers.set_hub_token = (command) => ({
    type: 'hub_access',
    access: { ...access, token_place: command.type === 'set_hub_token' && command.token ? 'file' : null },
  });
  const { app } = await open({}, platform);
  app.navigation.goToSettings('models');
  await drawn();
  const field = screen.getByLabelText<HTMLInputElement>('New token');
  expect(field.type).toBe('password');
  await fireEvent.input(field, { target: { value: ' hf_secret ' } });
  await press('Save token');
  expect(platform.asked).toContainEqual({ type: 'set_hub_token', token: 'hf_secret' });
  expect(field.value).toBe('');
  expect(screen.getByText(/^There is no keychain/)).toBeTruthy();
  await press('Remove the access token');
  expect(platform.asked).toContainEqual({ type: 'set_hub_token', token: '' });
  expect(screen.queryByText(/^There is no keychain/)).toBeNull();
});

test('the hub’s settings are refused at their field, and say to whom a token belongs', async () => {
  const platform = new FakePlatform();
  platform.chooseFolder = async () => '/disk/models';
  const access = hubAccess({ other_token_hub: 'https://huggingface.co' });
  platform.answers.get_hub_access = { type: 'hub_access', access };
  platform.answers.set_setting = new CallError('invalid', '“hub” cannot be the hub’s address.');
  const { app } = await open({}, platform);
  app.navigation.goToSettings('models');
  await drawn();
  const address = screen.getByLabelText<HTMLInputElement>('Address of the hub');
  expect([address.value, address.placeholder]).toEqual(['', 'https://huggingface.co']);
  await fireEvent.change(address, { target: { value: 'hub' } });
  await drawn();
  expect([address.value, screen.getByRole('alert').textContent]).toEqual(['hub', '“hub” cannot be the hub’s address.']);
  expect(screen.getByText(/^The saved token belongs to https:\/\/huggingface.co and is not sent/)).toBeTruthy();

  platform.answers.set_setting = {
    type: 'settings',
    resolved: { settings: { ...values, hub_endpoint: '' }, from: {}, thinking: null },
  };
  await fireEvent.change(address, { target: { value: ' ' } });
  await drawn();
  expect(screen.queryByRole('alert')).toBeNull();
  expect(platform.asked.filter(({ type }) => type === 'set_setting').at(-1)).toMatchObject({ value: null });
  await press('Choose…');
  expect(platform.asked.filter(({ type }) => type === 'set_setting').at(-1)).toEqual({
    type: 'set_setting',
    scope: { type: 'app' },
    key: 'download_folder',
    value: '/disk/models',
  });
});
