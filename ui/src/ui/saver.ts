// How a text that is shown can be saved as a file. The window provides it; where nobody does, nothing offers it.
import { getContext, hasContext, setContext } from 'svelte';

/** Saves a text as a file with this ending, under a name that the user chooses or the place for downloads has. */
export type Saver = (text: string, ending: string) => void;

const KEY = Symbol('saver');

export function setSaver(save: Saver): void {
  setContext(KEY, save);
}

export function getSaver(): Saver | undefined {
  return hasContext(KEY) ? getContext<Saver>(KEY) : undefined;
}
