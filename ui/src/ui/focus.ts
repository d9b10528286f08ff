// The focus goes with what had it: a button that its own press takes away, say. Then the next key would do nothing.

const CONTROLS = ['a[href]', 'button', 'input', 'select', 'textarea', 'summary', '[tabindex="0"]']
  .map((control) => `${control}:not(:disabled, [tabindex="-1"])`)
  .join();
/** The focus does not leave these. */
const AREAS = 'nav, main, aside, dialog, [popover]';
/** What takes the focus itself has this long; it may wait for the core's answer. */
const OTHERS_MS = 500;

/** True while nothing on the page has the focus. */
export function isFocusLost(): boolean {
  return document.activeElement === null || document.activeElement === document.body;
}

/**
 * Until the returned function is called: when what has the focus is removed or disabled, and nothing else takes the focus, the nearest
 * control does. `otherwise` is called where no control is near.
 */
export function keepFocus(otherwise: () => void): () => void {
  let last: HTMLElement | null = null;
  /** What the last one stands in, from the inside out: it cannot be asked once it is gone. */
  let around: Element[] = [];
  let waiting: number | undefined;

  function onfocusin({ target }: FocusEvent) {
    last = target as HTMLElement;
    around = [];
    for (let element = last.parentElement; element && element !== document.body; element = element.parentElement) {
      around.push(element);
      if (element.matches(AREAS)) break;
    }
  }

  /** Who presses beside all controls wants none to have the focus. Some engines say the same when a control is removed, before it is. */
  function onfocusout() {
    setTimeout(() => {
      if (isFocusLost() && last && canHaveFocus(last)) last = null;
    });
  }

  function restore() {
    waiting = undefined;
    if (!last || !isFocusLost()) return;
    if (canHaveFocus(last)) return last.focus({ preventScroll: true });
    for (const element of around) {
      const near = [...element.querySelectorAll<HTMLElement>(CONTROLS)].find(canHaveFocus);
      if (near) return near.focus({ preventScroll: true });
    }
    if (!document.querySelector('dialog[open]')) otherwise();
  }

  const observer = new MutationObserver(() => {
    if (last && !canHaveFocus(last)) waiting ??= window.setTimeout(restore, OTHERS_MS);
  });
  observer.observe(document.body, { subtree: true, childList: true, attributes: true, attributeFilter: ['disabled'] });
  document.addEventListener('focusin', onfocusin);
  document.addEventListener('focusout', onfocusout);
  return () => {
    clearTimeout(waiting);
    observer.disconnect();
    document.removeEventListener('focusin', onfocusin);
    document.removeEventListener('focusout', onfocusout);
  };
}

function canHaveFocus(element: HTMLElement): boolean {
  return element.isConnected && !element.matches(':disabled') && !element.closest('[inert], [hidden]');
}
