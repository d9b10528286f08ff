// From a footnote's number to its text.

/** Shows the footnote with this label in the same answer, and gives it the focus. */
export function goToNote(from: HTMLElement, label: string): void {
  const notes = from.closest('.markdown')?.querySelectorAll<HTMLElement>('[data-note]') ?? [];
  const note = [...notes].find(({ dataset }) => dataset.note === label);
  note?.scrollIntoView({ block: 'nearest' });
  note?.focus({ preventScroll: true });
}
