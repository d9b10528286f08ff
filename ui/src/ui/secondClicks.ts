// The second click of a double click must not hit what appeared under the pointer after the first.

/** Listens on a window until the returned function is called. */
export function ignoreStraySecondClicks(target: Window): () => void {
  let pressed: Element | null = null;
  const controlOf = ({ target: hit }: MouseEvent) =>
    hit instanceof Element ? hit.closest('button, a, summary, label, input, textarea') : null;
  const isStray = (event: MouseEvent) => event.detail > 1 && controlOf(event) !== pressed;

  /** Pressing what cannot have the focus would take it away from what has it. */
  const onmousedown = (event: MouseEvent) => {
    if (isStray(event)) event.preventDefault();
  };
  const onclick = (event: MouseEvent) => {
    if (!isStray(event)) return void (pressed = controlOf(event));
    event.preventDefault();
    event.stopImmediatePropagation();
  };

  target.addEventListener('mousedown', onmousedown, { capture: true });
  target.addEventListener('click', onclick, { capture: true });
  return () => {
    target.removeEventListener('mousedown', onmousedown, { capture: true });
    target.removeEventListener('click', onclick, { capture: true });
  };
}
