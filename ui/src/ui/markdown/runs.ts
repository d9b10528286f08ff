// Coloured runs of code as elements, without a component for each: a page of code has hundreds.
import type { Attachment } from 'svelte/attachments';
import type { Run } from './highlight';

/** Draws the runs into an element. What stands there already stays, with what a person selected in it. */
export function drawRuns(runs: readonly Run[]): Attachment<HTMLElement> {
  return (element) => {
    for (const [index, run] of runs.entries()) {
      const known = element.childNodes[index];
      if (!known) element.append(nodeOf(run));
      else if (!isOf(known, run)) known.replaceWith(nodeOf(run));
    }
    while (element.childNodes.length > runs.length) element.lastChild?.remove();
  };
}

function nodeOf({ text, scope }: Run): Node {
  if (scope === '') return document.createTextNode(text);
  const span = document.createElement('span');
  span.className = scope;
  span.textContent = text;
  return span;
}

function isOf(node: Node, { text, scope }: Run): boolean {
  return node.textContent === text && (node instanceof Element ? node.className : '') === scope;
}
