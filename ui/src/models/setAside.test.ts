// A model that is set aside after unexpected quits: where the window says so, and what using it anyway does.
import { fireEvent, screen, within } from '@testing-library/svelte';
import { beforeEach, expect, test } from 'vitest';
import type { App } from '../app.svelte';
import type { Model } from '../platform/wire';
import { bootstrap, conversation, FakePlatform, message, model, status } from '../testing/fake';
import { drawn, openWindow, useWindow } from '../testing/window';

useWindow();

let platform: FakePlatform;
let app: App;

const SENTENCE = 'other is set aside because Cairn quit unexpectedly twice while using it.';
const ASIDE = model('owner/other', { is_set_aside: true });
const unloaded = { ...status, engine: { state: 'empty' as const }, model_fingerprint: null, models: [] };

beforeEach(() => {
  platform = new FakePlatform();
});

/** Opens a chat of the model that is set aside, in which an answer was interrupted. */
async function open(models: Model[] = [ASIDE]): Promise<void> {
  const row = conversation('a', { model: { name: 'owner/other', source: 'answer', missing: null } });
  const answer = message('w', { parent_id: 'q', text: 'Because', status: 'interrupted', can_continue: true });
  platform.answers.bootstrap = bootstrap({ conversations: [row], models, status: unloaded });
  platform.answers.list_models = { type: 'models', models };
  platform.answers.get_conversation = {
    type: 'conversation',
    conversation: row,
    messages: [message('q', { role: 'user', text: 'Why?' }), answer],
  };
  ({ app } = await openWindow(platform));
  app.openConversation('a');
  await drawn();
}

const messages = () => within(screen.getByRole('region', { name: 'Notifications' }));
const press = async (name: string | RegExp, place: Pick<typeof screen, 'getByRole'> = screen) => {
  await fireEvent.click(place.getByRole('button', { name }));
  await drawn();
};
const used = () =>
  platform.asked.filter(({ type }) => ['use_model_anyway', 'choose_model', 'load_model'].includes(type));
const USED_AND_LOADED = [
  { type: 'use_model_anyway', name: 'owner/other' },
  { type: 'load_model', name: 'owner/other' },
];

test('an answer that cannot continue offers its model', async () => {
  await open();
  await press('Continue');
  await press('Continue');
  expect(platform.askedTypes()).not.toContain('continue_answer');
  expect(messages().getAllByRole('listitem')).toHaveLength(1);
  messages().getByText(SENTENCE);
  await press('Use it anyway', messages());
  expect(used()).toEqual(USED_AND_LOADED);
  expect(app.toasts.items).toEqual([]);
});

test('the field names the model that is set aside', async () => {
  await open();
  expect(screen.getByRole('textbox', { name: 'Message' }).getAttribute('placeholder')).toBe('other is set aside');
});

test('the model menu offers the model that is set aside', async () => {
  await open([model('owner/model'), ASIDE]);
  app.models.isMenuOpen = true;
  await drawn();
  const menu = within(screen.getByRole('dialog', { name: 'Models' }));
  menu.getByText(SENTENCE);
  await press('Use it anyway, other', menu);
  expect(used()).toEqual([
    { type: 'use_model_anyway', name: 'owner/other' },
    { type: 'choose_model', id: 'a', model: 'owner/other' },
    { type: 'load_model', name: 'owner/other' },
  ]);
});

test('without another model the menu says why once', async () => {
  await open();
  app.models.isMenuOpen = true;
  await drawn();
  const menu = within(screen.getByRole('dialog', { name: 'Models' }));
  expect(menu.getAllByText(SENTENCE)).toHaveLength(1);
});

test('using the model anyway dismisses the notice that asks', async () => {
  await open();
  const quit = { during: 'answering' as const, job_id: null, job: null, conversation_id: 'a', is_set_aside: true };
  const kind = { type: 'quit_unexpectedly' as const, quit: { ...quit, model: 'owner/other' } };
  platform.emit({ type: 'notice', level: 'info', text: 'What the core says.', kind });
  await drawn();
  messages().getByText(/isn’t used until you say so/);
  await press('Use it anyway', within(document.querySelector('form p.line') as HTMLElement));
  expect(app.toasts.items).toEqual([]);
  expect(used()).toEqual(USED_AND_LOADED);
});

test('a model of another chat is not loaded', async () => {
  await open([model('owner/model'), ASIDE]);
  app.newChat();
  app.chat.unsent.model = 'owner/model';
  await drawn();
  await app.chatModel.useAnyway('owner/other');
  expect(used()).toEqual([{ type: 'use_model_anyway', name: 'owner/other' }]);
});
