// How a text that is still being written will most likely go on, so that nothing that is drawn changes its kind a moment later.
import { endOfDollars, isAmount } from './syntax';

const FENCE = /^(`{3,}|~{3,})(.*)$/;
/** What stands before a line's own text: indentation, quotes, and the signs of list items. */
const PREFIX = /^(?:[ \t]*(?:>|(?:[-*+]|\d{1,9}[.)])(?=[ \t]+)))*[ \t]*/;
/** Signs that may begin a list, a heading, a rule, a fence, a table or a formula, and say nothing yet. */
const UNDECIDED =
  /^(?:[-*_=+]+|#{1,6}|`+|~+|>|\d{1,3}[.)]?|\||\$+|\\|\[\^[^\]\s]*\]?:?|\[[ xX]?\]?|\[[^\]^][^\]]*\]:.*)\s*$/;
const DELIMITERS = /^[|:\-\s]*$/;
/** The start of a tag that is drawn, and of an entity. */
const PARTIAL = /(?:<\/?[a-z]{0,3}\s*\/?|&(?:#\w*|l|lt|g|gt|a|am|amp|q|qu|quo|quot|n|nb|nbs|nbsp)?)$/i;

/** The text with its last line completed: what is open is closed, and what could still become anything is left out. */
export function withLikelyEnd(source: string): string {
  const lines = source.split('\n');
  const fence = openFence(lines);
  if (fence === 'none') return lines.length > 0 ? endOfText(lines) : source;
  // The line of a fence may be its end.
  const last = stripped(lines[lines.length - 1] ?? '');
  if (last !== '' && fence.startsWith(last)) return lines.slice(0, -1).join('\n') + '\n';
  return source;
}

/** Whether a fence or a formula is open at the end of a text. */
export function isFenceOpen(source: string): boolean {
  return openFence(source.split('\n')) !== 'none';
}

/** The sign of the fence that is open at the end, or `math`-like signs of a formula; `none` if nothing is. */
function openFence(lines: string[]): string {
  let open = '';
  for (const line of lines) {
    const text = stripped(line);
    if (open.startsWith('$') || open.startsWith('\\')) {
      if (text.includes(open)) open = '';
      continue;
    }
    const match = FENCE.exec(text);
    const [, sign = '', info = ''] = match ?? [];
    if (open !== '') {
      if (sign[0] === open[0] && sign.length >= open.length && info.trim() === '') open = '';
    } else if (match && !(sign[0] === '`' && info.includes('`'))) open = sign;
    else if (text.startsWith('$$') && !text.includes('$$', 2)) open = '$$';
    else if (text.startsWith('\\[') && !text.includes('\\]')) open = '\\]';
  }
  return open || 'none';
}

function stripped(line: string): string {
  return line.slice(PREFIX.exec(line)?.[0].length ?? 0);
}

function endOfText(lines: string[]): string {
  const last = lines[lines.length - 1] ?? '';
  const before = lines.slice(0, -1);
  const prefix = PREFIX.exec(last)?.[0] ?? '';
  const text = last.slice(prefix.length);
  const above = stripped(before[before.length - 1] ?? '');

  if (above.startsWith('|') && DELIMITERS.test(text) && !isTableBody(before)) {
    return [...before, indentOf(before[before.length - 1] ?? '') + delimiterRow(above, text)].join('\n');
  }
  if (UNDECIDED.test(text) && !/^\[[ xX]\]/.test(text)) {
    // The sign of a list item is there; its own text is not.
    return /^\[/.test(text) && /[-*+]\s+$/.test(prefix) ? [...before, `${prefix}[ ]`].join('\n') : before.join('\n');
  }
  if (text.startsWith('|')) {
    const cell = lastCell(text);
    const row = text.slice(0, text.length - cell.length) + closed(cell);
    if (above.startsWith('|')) return [...before, prefix + row].join('\n');
    const head = row.endsWith('|') ? row : `${row} |`;
    return [...before, prefix + head, indentOf(last) + delimiterRow(head, '')].join('\n');
  }
  const start = startOfRun(lines);
  const run = [...lines.slice(start, -1), last].join('\n');
  const runPrefix = PREFIX.exec(run)?.[0] ?? '';
  return [...lines.slice(0, start), runPrefix + closed(run.slice(runPrefix.length))].join('\n');
}

/** What a line begins with that stands in the same quotes and items as this one. */
function indentOf(line: string): string {
  return (PREFIX.exec(line)?.[0] ?? '').replaceAll(/[^>\s]/g, ' ');
}

/** Whether the last of these lines, which begins with `|`, is not the head of its table. */
function isTableBody(lines: string[]): boolean {
  return stripped(lines[lines.length - 2] ?? '').startsWith('|');
}

/** The row under a table's head, with the alignments that are written already. */
function delimiterRow(head: string, written: string): string {
  const columns = cellsOf(head).length;
  const known = written.trim() === '' ? [] : cellsOf(written);
  const cells = Array.from({ length: columns }, (_, column) => {
    const cell = known[column]?.trim() ?? '';
    return /^:?-+:?$/.test(cell) ? cell : '---';
  });
  return `| ${cells.join(' | ')} |`;
}

function cellsOf(row: string): string[] {
  const inner = row
    .trim()
    .replace(/^\|/, '')
    .replace(/(?<!\\)\|$/, '');
  return inner.split(/(?<!\\)\|/);
}

function lastCell(row: string): string {
  return /(?:\\.|[^|\\]|\\$)*$/.exec(row)?.[0] ?? '';
}

/** The line in which the text begins that the last line goes on with: a paragraph, an item, a heading. */
function startOfRun(lines: string[]): number {
  let start = lines.length - 1;
  const isStart = (line: string) => /^\s*(?:>|#{1,6}\s|[-*+]\s|\d{1,9}[.)]\s|\||$)/.test(line);
  while (start > 0 && !isStart(lines[start] ?? '') && (lines[start - 1] ?? '').trim() !== '') start--;
  return start;
}

/** Closes what is open at the end of a run of text. */
function closed(run: string): string {
  const text = run
    .replace(PARTIAL, '')
    .replace(/(?<!\\)\\$/, '')
    .replace(/(?<=^|\s)!$/, '');
  /** Signs of emphasis that are open. */
  let open: string[] = [];
  let bracket = -1;
  let openAtBracket: string[] = [];
  const isInLink = () => bracket >= 0 && isLikelyLink(text, bracket);
  const leave = (end: number, completed: () => string) => {
    if (isInLink()) return words(text, bracket, text.length, openAtBracket);
    return end < text.length ? close(text.slice(0, end), open) : completed();
  };
  for (let at = 0; at < text.length; at++) {
    const sign = text[at] ?? '';
    const rest = text.slice(at, at + 44);
    if (sign === '\\') {
      const closing = rest.startsWith('\\(') ? '\\)' : rest.startsWith('\\[') ? '\\]' : '';
      const end = closing === '' ? at : text.indexOf(closing, at + 2);
      if (end < 0) return leave(text.length, () => finish(text, at, 2, closing, open));
      at = end + 1;
    } else if (sign === '`') {
      const ticks = /^`+/.exec(rest)?.[0] ?? '`';
      const { length } = ticks;
      const end = endOfCode(text, at, ticks);
      if (end < 0)
        return leave(text.length, () => finish(withoutPartial(text, at + length, ticks), at, length, ticks, open));
      at = end + length - 1;
    } else if (sign === '$') {
      const isDouble = rest.startsWith('$$');
      const end = isDouble ? text.indexOf('$$', at + 2) : endOfDollars(text, at);
      if (end >= 0) at = end + (isDouble ? 1 : 0);
      else if (isDouble) return leave(text.length, () => finish(withoutPartial(text, at + 2, '$$'), at, 2, '$$', open));
      else if (rest === '$') return leave(at, () => '');
      else if (isLikelyMath(text, at)) return leave(text.length, () => finish(text, at, 1, '$', open));
    } else if (rest === '~') {
      return leave(at, () => '');
    } else if (sign === '[') {
      if (/^\[\^[^\s\]]*$/.test(rest)) return leave(at, () => '');
      bracket = at;
      openAtBracket = [...open];
    } else if (sign === ']' && bracket >= 0) {
      const target = endOfTarget(text, at + 1);
      const isAtEnd = target === 'none' && at === text.length - 1;
      // A link shows its words only; where it leads to is not known yet.
      if (target === 'open' || (isAtEnd && isInLink())) return words(text, bracket, at, openAtBracket);
      if (typeof target === 'number') at = target;
      bracket = -1;
    } else if (sign === '*' || sign === '_' || rest.startsWith('~~')) {
      const width = /^(\*+|_+|~~)/.exec(rest)?.[0].length ?? 1;
      const marked = mark(open, sign, width, text, at);
      if (marked === null) return leave(at, () => '');
      open = marked;
      at += width - 1;
    }
  }
  return leave(text.length, () => close(text, open));
}

/** Where a code span ends; -1 if it is open. */
function endOfCode(text: string, start: number, ticks: string): number {
  for (const match of text.slice(start + ticks.length).matchAll(/`+/g)) {
    if (match[0].length === ticks.length) return start + ticks.length + match.index;
  }
  return -1;
}

/** Without the first signs of a closing that is longer. */
function withoutPartial(text: string, from: number, closing: string): string {
  let end = text.length;
  while (end > from && text[end - 1] === closing[0] && text.length - end < closing.length - 1) end--;
  return text.slice(0, end);
}

/** Closes code or a formula that began at `start`; one without content is left out. */
function finish(text: string, start: number, width: number, closing: string, open: string[]): string {
  const content = text.slice(start + width).trimEnd();
  if (content.trim() === '') return close(text.slice(0, start), open);
  // More of the closing sign would be another one.
  if (content.endsWith('`')) return close(`${text.slice(0, start + width)}${content} ${closing}`, open);
  return close(text.slice(0, start + width) + content + closing, open);
}

/** Whether a dollar sign begins a formula that is not closed yet. */
function isLikelyMath(text: string, start: number): boolean {
  const content = text.slice(start + 1);
  if (/[\p{L}\p{N}$]/u.test(text[start - 1] ?? '') || !/^[\p{L}\\({|-]/u.test(content)) return false;
  return !/[`$]|\n\s*\n/.test(content) && !isAmount(content) && !/^\p{L}{2,}(?![\\^_={}\p{L}])/u.test(`${content} `);
}

/** Whether a bracket begins a link: words that are not a number, a box or a footnote. */
function isLikelyLink(text: string, bracket: number): boolean {
  const isImage = text[bracket - 1] === '!';
  if (!isImage && /[\p{L}\p{N}\])]/u.test(text[bracket - 1] ?? '')) return false;
  const inside = text.slice(bracket + 1);
  return (
    isImage || inside === '' || (/^[\p{L}*_`"“‘]/u.test(inside) && !/^[xX]\]?$/.test(inside) && !inside.includes('\n'))
  );
}

/** Where the target of a link ends: an index, `open` if it is being written, `none` if there is none. */
function endOfTarget(text: string, start: number): number | 'open' | 'none' {
  if (text[start] === '[') {
    const end = text.indexOf(']', start);
    return end < 0 ? 'open' : end;
  }
  if (text[start] !== '(') return 'none';
  let depth = 0;
  for (let at = start; at < text.length; at++) {
    if (text[at] === '\\') at++;
    else if (text[at] === '(') depth++;
    else if (text[at] === ')' && --depth === 0) return at;
    else if (text[at] === '\n' && text[at + 1] === '\n') return 'none';
  }
  return 'open';
}

/** The words of a link whose target is being written; of an image, its description. */
function words(text: string, bracket: number, end: number, open: string[]): string {
  const inside = text.slice(bracket + 1, end);
  if (text[bracket - 1] === '!') return close(`${text.slice(0, bracket)}[${inside}]()`, open);
  return close(text.slice(0, bracket) + closed(inside), open);
}

/** The signs that are open behind one of emphasis; null if it ends the text and says nothing yet. */
function mark(before: string[], sign: string, width: number, text: string, at: number): string[] | null {
  const open = [...before];
  const left = text[at - 1] ?? ' ';
  const right = text[at + width] ?? '';
  let rest = width;
  while (rest > 0 && !/\s/.test(left)) {
    const top = open[open.length - 1];
    if (top?.[0] !== sign) break;
    if (top.length > rest) return right === '' ? null : open;
    open.pop();
    rest -= top.length;
  }
  if (right === '') return rest === 0 ? open : null;
  const isInWord = sign === '_' && /[\p{L}\p{N}]/u.test(left);
  if (rest > 0 && rest <= 3 && !/\s/.test(right) && !isInWord) {
    if (rest >= 2) open.push(sign + sign);
    if (rest !== 2) open.push(sign);
  }
  return open;
}

function close(text: string, open: string[]): string {
  const tags = ['sub', 'sup', 'kbd'].flatMap((name) => {
    const count = (sign: string) => text.split(sign).length - 1;
    return Array<string>(Math.max(0, count(`<${name}>`) - count(`</${name}>`))).fill(`</${name}>`);
  });
  if (open.length === 0) return text + tags.join('');
  const last = open[open.length - 1] ?? '';
  const end = text.trimEnd();
  // Emphasis without a letter in it would be signs.
  if (end.endsWith(last) && end === text) return close(end.slice(0, -last.length), open.slice(0, -1));
  return end + tags.join('') + [...open].reverse().join('');
}
