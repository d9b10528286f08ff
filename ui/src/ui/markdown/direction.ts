// The direction of a text, by its first letter that has one.
import type { Attachment } from 'svelte/attachments';

/** As `dir="auto"`, which Svelte would set again, and the browser restyle all of the element, whenever something in it changes. */
export const ownDirection: Attachment<HTMLElement> = (element) => {
  element.dir = 'auto';
};
