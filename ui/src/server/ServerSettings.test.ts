// The page of settings about the server, used as a person does.
import { fireEvent, screen, within } from '@testing-library/svelte';
import { expect, test } from 'vitest';
import { CallError } from '../platform/platform';
import type { ApiOverview } from '../platform/wire';
import { api, apiKey, apiRequest, bootstrap, facts, FakePlatform, model, settings } from '../testing/fake';
import { drawn, openWindow, useWindow } from '../testing/window';

useWindow();

const ADDRESS = 'http://127.0.0.1:11435';
const running = { state: 'running', address: ADDRESS, is_switched: true } as const;

async function open(overview: Partial<ApiOverview> = {}) {
  const platform = new FakePlatform();
  platform.answers = {
    bootstrap: bootstrap(),
    get_api: api(overview),
    get_settings: { type: 'settings', resolved: { settings, from: {}, thinking: null } },
    set_setting: {
      type: 'settings',
      resolved: { settings: { ...settings, api_is_on: true }, from: {}, thinking: null },
    },
    make_api_key: { type: 'api_key_made', key: apiKey('n', { name: 'Editor' }), secret: 'cairn-beef' },
  };
  const { app } = await openWindow(platform);
  app.navigation.goToSettings('server');
  await drawn();
  return { app, platform };
}

const theSwitch = () => screen.getByRole<HTMLInputElement>('switch', { name: 'Serve other programs' });
const button = (name: string) => screen.getByRole<HTMLButtonElement>('button', { name });
const setUpText = () => screen.getByRole('tabpanel').textContent ?? '';

test('switching on sets the setting, and the address comes with the server', async () => {
  const { platform } = await open();
  expect(theSwitch().checked).toBe(false);
  await fireEvent.click(theSwitch());
  expect(platform.asked).toContainEqual({
    type: 'set_setting',
    scope: { type: 'app' },
    key: 'api_is_on',
    value: true,
  });
  platform.emit({ type: 'api_server', server: running });
  await drawn();
  expect(screen.getByText(ADDRESS)).toBeTruthy();
  expect(button('Copy the address')).toBeTruthy();
});

test('a server that could not be started says why, and the switch is off again', async () => {
  const { platform } = await open();
  await fireEvent.click(theSwitch());
  await drawn();
  expect(theSwitch().checked).toBe(true);
  const problem = 'Port 11435 is in use by another program: choose another port.';
  platform.emit(
    { type: 'settings', settings: { ...settings, api_is_on: false } },
    { type: 'api_server', server: { state: 'off', problem } },
  );
  await drawn();
  expect(theSwitch().checked).toBe(false);
  expect(screen.getByRole('alert').textContent).toBe(problem);
});

test('a server that cairn serve has started cannot be switched', async () => {
  await open({ server: { ...running, is_switched: false } });
  expect(screen.queryByRole('switch', { name: 'Serve other programs' })).toBeNull();
  expect(screen.getByText(/already runs/)).toBeTruthy();
  expect(screen.getByText(ADDRESS)).toBeTruthy();
});

test('says of a model whose template takes no tools that they are generic', async () => {
  const { platform } = await open({ server: running });
  expect(setUpText()).toContain('Model: model');
  expect(setUpText()).not.toContain('takes no tools');
  platform.emit({ type: 'models', models: [model('owner/model', { facts: facts({ takes_tools: false }) })] });
  await drawn();
  const name = within(screen.getByRole('tabpanel')).getByText('Model: model');
  expect(name.nextElementSibling?.textContent).toMatch(/takes no tools.*x-cairn-tools: generic/);
  // An earlier version has not looked.
  platform.emit({ type: 'models', models: [model('owner/model', { facts: facts({ takes_tools: null }) })] });
  await drawn();
  expect(setUpText()).not.toContain('takes no tools');
});

test('a new key is shown once, and stands in the set-ups until then', async () => {
  const { platform } = await open({ server: running });
  expect(setUpText()).toContain('CAIRN_API_KEY=YOUR_KEY');
  await fireEvent.click(button('Make key…'));
  const dialog = within(screen.getByRole('dialog', { name: 'Make a key', hidden: true }));
  const name = dialog.getByRole('textbox', { name: 'Name', hidden: true });
  await fireEvent.input(name, { target: { value: 'Editor' } });
  await fireEvent.click(dialog.getByRole('button', { name: 'Make key', hidden: true }));
  await drawn();
  expect(platform.asked).toContainEqual({ type: 'make_api_key', name: 'Editor' });
  const field = screen.getByRole<HTMLInputElement>('textbox', { name: 'The new key' });
  expect([field.value, document.activeElement]).toEqual(['cairn-beef', field]);
  expect(setUpText()).toContain('CAIRN_API_KEY=cairn-beef');
  await fireEvent.click(button('Done'));
  await drawn();
  expect(screen.queryByRole('textbox', { name: 'The new key' })).toBeNull();
  expect(document.activeElement).toBe(button('Make key…'));
  expect(setUpText()).not.toContain('cairn-beef');
});

test('a name that is taken is said in the dialog', async () => {
  const { app, platform } = await open();
  platform.answers.make_api_key = new CallError('invalid', 'There is already a key with the name “Editor”.');
  await fireEvent.click(button('Make key…'));
  await app.server.make('Editor');
  await drawn();
  expect(screen.getByText('There is already a key with the name “Editor”.')).toBeTruthy();
  expect(app.server.isNaming).toBe(true);
});

test.each([false, true])(
  'a key is revoked after a question; what was saved goes if asked: %s',
  async (deletes_saved) => {
    const { platform } = await open({ keys: [apiKey('a'), apiKey('b')] });
    await fireEvent.click(button('Revoke Key a…'));
    const dialog = within(screen.getByRole('dialog', { name: 'Revoke “Key a”?', hidden: true }));
    if (deletes_saved) await fireEvent.click(dialog.getByRole('checkbox', { hidden: true }));
    expect(platform.askedTypes()).not.toContain('revoke_api_key');
    await fireEvent.click(dialog.getByRole('button', { name: 'Revoke key', hidden: true }));
    await drawn();
    expect(platform.asked).toContainEqual({ type: 'revoke_api_key', id: 'a', deletes_saved });
    expect(screen.queryByText('Key a')).toBeNull();
    expect(document.activeElement).toBe(button('Make key…'));
    expect(screen.getByText('Key b')).toBeTruthy();
  },
);

test('requests are listed with who asked, the newest first, at most a hundred', async () => {
  const { platform } = await open({
    requests: [apiRequest(2, { key: null, status: 401, model: null, figures: null }), apiRequest(1)],
  });
  const rows = () => screen.getAllByRole('row').slice(1);
  const cells = (row: HTMLElement) => [...row.querySelectorAll('td')].map((cell) => cell.textContent?.trim());
  expect(rows().length).toBe(2);
  expect(cells(rows()[0] as HTMLElement).slice(1)).toEqual([
    'Unknown',
    'POST /v1/chat/completions',
    '–',
    '–',
    '–',
    '–',
    '401',
  ]);
  const text = rows()[1]?.textContent ?? '';
  for (const figure of ['Editor', 'model', '1,236', '1,204 cached', '312', '312 ms', '42.1', '200'])
    expect(text).toContain(figure);
  for (let number = 3; number <= 103; number++)
    platform.emit({ type: 'api_request', request: apiRequest(number, { key: null }) });
  await drawn();
  expect(rows().length).toBe(100);
  expect(rows()[0]?.textContent).toContain('Start-up token');
});
