// What has the focus after what had it is gone.
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { keepFocus } from './focus';

const otherwise = vi.fn();
let stop = () => {};

beforeEach(() => {
  vi.useFakeTimers();
  document.body.innerHTML = `
    <nav><button id="chat">A chat</button></nav>
    <main>
      <ul>
        <li id="row"><input id="field"><p id="source"><button id="reset">Reset</button></p></li>
        <li><button id="other">Other</button></li>
      </ul>
    </main>
    <aside><p id="alone"><button id="lone">Alone</button></p></aside>`;
  stop = keepFocus(otherwise);
});
afterEach(() => {
  stop();
  vi.useRealTimers();
  otherwise.mockClear();
  document.body.replaceChildren();
});

const get = (id: string) => document.getElementById(id) as HTMLButtonElement;
const idOfFocused = () => document.activeElement?.id;

/** Lets the observers see what has changed, and everything that waits happen. */
async function settle() {
  await Promise.resolve();
  await vi.runAllTimersAsync();
}

test('a button that goes leaves the focus to the control beside it', async () => {
  get('reset').focus();
  get('source').remove();
  await settle();
  expect(idOfFocused()).toBe('field');
});

test('a row that goes leaves the focus to a control of the next row', async () => {
  get('reset').focus();
  get('row').remove();
  await settle();
  expect(idOfFocused()).toBe('other');
});

test('the focus stays in its part of the window; the page takes it where nothing is left there', async () => {
  get('lone').focus();
  get('alone').remove();
  await settle();
  expect(otherwise).toHaveBeenCalledOnce();
  expect(idOfFocused()).toBe('');
});

test('a button that is disabled for a while has the focus again', async () => {
  get('reset').focus();
  get('reset').disabled = true;
  // Browsers take the focus away when they draw next.
  get('reset').blur();
  await Promise.resolve();
  get('reset').disabled = false;
  await settle();
  expect(idOfFocused()).toBe('reset');
});

test('what takes the focus itself keeps it', async () => {
  get('reset').focus();
  get('source').remove();
  await Promise.resolve();
  get('chat').focus();
  await settle();
  expect(idOfFocused()).toBe('chat');
});

test('who pressed beside all controls keeps the focus nowhere', async () => {
  get('reset').focus();
  get('reset').blur();
  await settle();
  get('source').remove();
  await settle();
  expect(idOfFocused()).toBe('');
  expect(otherwise).not.toHaveBeenCalled();
});
