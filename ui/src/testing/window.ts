// The whole window on a platform without a core, and the parts of a browser that the test environment lacks.
import { render } from '@testing-library/svelte';
import { tick } from 'svelte';
import { afterEach, beforeEach, vi } from 'vitest';
import { App } from '../app.svelte';
import Root from '../Root.svelte';
import { FakeClock } from './clock';
import { settle, type FakePlatform } from './fake';

/** Before each test of a file: nothing is stored, and what has no layout here does nothing. */
export function useWindow(): void {
  beforeEach(() => {
    localStorage.clear();
    vi.stubGlobal(
      'ResizeObserver',
      class {
        observe() {}
        disconnect() {}
      },
    );
    HTMLElement.prototype.showPopover ??= () => undefined;
    HTMLElement.prototype.hidePopover ??= () => undefined;
    const matches = Element.prototype.matches;
    vi.spyOn(Element.prototype, 'matches').mockImplementation(function (this: Element, selector: string) {
      return selector === ':popover-open' ? false : matches.call(this, selector);
    });
  });
  afterEach(() => vi.unstubAllGlobals());
}

/** Shows the window with what the platform answers. */
export async function openWindow(platform: FakePlatform): Promise<{ app: App; clock: FakeClock }> {
  const clock = new FakeClock();
  const app = new App(platform, { storage: localStorage, nextFrame: (run) => run(), after: clock.after });
  render(Root, { app });
  app.start();
  platform.connect('open');
  await drawn();
  return { app, clock };
}

/** Lets what is ready run, and the page show it. */
export async function drawn(): Promise<void> {
  await settle();
  await tick();
}
