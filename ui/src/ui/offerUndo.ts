// A message that tells what was done, with the button that takes it back.
import { strings } from '../text';
import type { Toasts } from './toasts.svelte';
import { UNDO_MS, type UndoStack } from './undo';

/**
 * Lets the last thing be taken back: at once by the shortcut, and by the button of a message that says what was done.
 * The message of something under way waits until it `isDone`. Returns whether it was done. `onOffered` gets what takes the
 * offer away again.
 */
export async function offerUndo(
  { toasts, undo }: { toasts: Toasts; undo: UndoStack },
  text: string,
  takeBack: () => void,
  isDone?: Promise<boolean>,
  onOffered?: (withdraw: () => void) => void,
): Promise<boolean> {
  let toast = 0;
  const step = undo.push(() => {
    toasts.dismiss(toast);
    takeBack();
  }, isDone);
  if (isDone && !(await isDone)) return false;
  toast = toasts.show('info', text, { milliseconds: UNDO_MS, actions: [{ label: strings.common.undo, run: step }] });
  onOffered?.(() => {
    undo.forget(step);
    toasts.dismiss(toast);
  });
  return true;
}
