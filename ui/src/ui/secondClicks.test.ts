// Second clicks: those that hit what the first one hit count, others do not.
import { afterEach, expect, test } from 'vitest';
import { ignoreStraySecondClicks } from './secondClicks';

let stop = () => {};
afterEach(() => {
  stop();
  document.body.replaceChildren();
});

function buttons() {
  const pressed: string[] = [];
  const [one, two] = ['one', 'two'].map((name) => {
    const button = document.createElement('button');
    button.addEventListener('click', () => pressed.push(name));
    document.body.append(button);
    return button;
  });
  stop = ignoreStraySecondClicks(window);
  const click = (button: HTMLElement | undefined, detail: number) =>
    button?.dispatchEvent(new MouseEvent('click', { detail, bubbles: true, cancelable: true }));
  return { pressed, one, two, click };
}

test('a double click on one button reaches it twice', () => {
  const { pressed, one, click } = buttons();
  click(one, 1);
  click(one, 2);
  expect(pressed).toEqual(['one', 'one']);
});

test('the second click of a double click hits no other button, a click after it does', () => {
  const { pressed, one, two, click } = buttons();
  click(one, 1);
  click(two, 2);
  click(two, 1);
  expect(pressed).toEqual(['one', 'two']);
});
