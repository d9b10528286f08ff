// The text of a web page, as somebody would copy it: headings, lists and tables stay recognisable.
import { inert } from './trusted';

/** Nothing of these is read on a page. */
const SKIPPED = 'script, style, template, noscript, head, svg, iframe, object, canvas, video, audio, select, [hidden]';
const BLOCKS = new Set(
  (
    'address article aside blockquote body caption dd details dialog div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 ' +
    'h5 h6 header hr li main nav ol p pre section summary table tbody tfoot thead tr ul'
  ).split(' '),
);
const CELLS = new Set(['td', 'th']);
/** Deeper pages are cut there: nobody writes them. */
const MAX_DEPTH = 500;

export function htmlText(markup: string): string {
  const page = inert(markup);
  const lines: string[] = [];
  let line = '';
  const end = () => {
    if (line.trim() !== '') lines.push(line.trim());
    line = '';
  };
  const apart = () => {
    end();
    if (lines.length > 0 && lines.at(-1) !== '') lines.push('');
  };
  const visit = (node: Node, depth: number): void => {
    if (node.nodeType === Node.TEXT_NODE) {
      const text = (node.nodeValue ?? '').replaceAll(/\s+/g, ' ');
      line += line === '' || line.endsWith(' ') ? text.trimStart() : text;
      return;
    }
    if (node.nodeType !== Node.ELEMENT_NODE || depth > MAX_DEPTH) return;
    const element = node as Element;
    if (element.matches(SKIPPED)) return;
    const name = element.localName;
    if (name === 'br') return end();
    if (name === 'pre') {
      apart();
      lines.push((element.textContent ?? '').replace(/^\n|\n$/g, ''), '');
      return;
    }
    const isBlock = BLOCKS.has(name);
    const level = /^h([1-6])$/.exec(name)?.[1];
    const isApart = level !== undefined || name === 'p' || name === 'ul' || name === 'ol' || name === 'table';
    if (isApart) apart();
    else if (isBlock) end();
    if (level !== undefined) line = `${'#'.repeat(Number(level))} `;
    if (name === 'li') line = '- ';
    if (CELLS.has(name) && line.trim() !== '') line = `${line.trimEnd()} | `;
    for (const child of element.childNodes) visit(child, depth + 1);
    if (isApart) apart();
    else if (isBlock) end();
  };
  const title = page.title.trim();
  if (page.body) visit(page.body, 0);
  end();
  const text = lines
    .join('\n')
    .replaceAll(/\n{3,}/g, '\n\n')
    .trim();
  if (title === '' || text.startsWith(title) || text.startsWith(`# ${title}`)) return text;
  return text === '' ? '' : `${title}\n\n${text}`;
}
