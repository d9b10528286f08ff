// What models write beyond CommonMark: maths, footnotes, and the few tags that Markdown has no sign for.
import type { MarkdownIt, StateBlock, StateInline } from 'markdown-it';

/** What a parse knows of the text before it, and adds to. */
export interface Definitions {
  /** Link definitions (`[name]: address`), in the parser's own form. */
  links: Record<string, { title: string; href: string }>;
  /** The labels of the footnotes (`[^label]: text`). */
  notes: Set<string>;
}

/** The environment that the rules below find in the parser's state. */
export interface Environment {
  references: Definitions['links'];
  notes: Set<string>;
  /** More text may follow: a formula that is not closed yet is one. */
  isGrowing: boolean;
}

const NOTE = /^\[\^([^\s[\]]{1,40})\]:[ \t]*/;
const TAGS = /^<(\/?)(sub|sup|kbd)>/i;
const BREAK = /^<br\s*\/?>/i;
/** Environments of LaTeX that models write without any sign around them. */
const BARE = /^\\begin\{((?:equation|align|aligned|gather|gathered|multline|cases|alignat|eqnarray)\*?)\}/;

export function addSyntax(parser: MarkdownIt): void {
  const interrupts = { alt: ['paragraph', 'reference', 'blockquote', 'list'] };
  parser.block.ruler.before('fence', 'math', mathBlock, interrupts);
  parser.block.ruler.before('reference', 'note', noteBlock, { alt: ['paragraph', 'reference'] });
  parser.inline.ruler.before('escape', 'math', mathInline);
  parser.inline.ruler.before('link', 'note', noteReference);
  parser.inline.ruler.before('autolink', 'tag', tag);
}

/**
 * The end of a formula that is opened by a dollar sign at `start`, which is the index of the closing one; -1 if there is none.
 * Prices, shell variables and regular expressions are no formulas: the signs stand close to what they enclose, no letter or digit
 * stands outside of them, and a number followed by words is an amount.
 */
export function endOfDollars(text: string, start: number): number {
  if (/[\p{L}\p{N}$\\]/u.test(text[start - 1] ?? '') || /[\s$]/.test(text[start + 1] ?? ' ')) return -1;
  for (let at = start + 1; at < text.length; at++) {
    const sign = text[at];
    if (sign === '`') return -1;
    if (sign === '\\') at++;
    else if (sign === '\n' && /^\s*\n/.test(text.slice(at + 1))) return -1;
    else if (sign === '$') {
      if (/\s/.test(text[at - 1] ?? '') || /[\p{L}\p{N}$]/u.test(text[at + 1] ?? '')) return -1;
      return isAmount(text.slice(start + 1, at)) ? -1 : at;
    }
  }
  return -1;
}

/** Whether what stands behind a dollar sign is an amount of money or prose. */
export function isAmount(content: string): boolean {
  if (/[\\^_={}]/.test(content)) return false;
  const words = content.match(/(?<=^|[\s(/])\p{L}{2,}(?=$|[\s,.;:)])/gu)?.length ?? 0;
  return /^[\d.,]/.test(content) ? words > 0 : words > 1;
}

function environmentOf(state: { env: unknown }): Environment {
  return state.env as Environment;
}

function mathInline(state: StateInline, silent: boolean): boolean {
  const { src, pos } = state;
  const rest = src.slice(pos, pos + 2);
  let end = -1;
  let width = 2;
  if (rest === '\\(' || rest === '\\[') end = src.indexOf(rest === '\\(' ? '\\)' : '\\]', pos + 2);
  else if (rest === '$$') end = src.indexOf('$$', pos + 2);
  else if (rest[0] === '$') {
    width = 1;
    end = endOfDollars(src, pos);
  }
  if (end < 0 || end + width > state.posMax) return false;
  const content = src.slice(pos + width, end).trim();
  if (content === '') return false;
  if (!silent) {
    const token = state.push('math', '', 0);
    token.content = content;
    token.meta = { isDisplay: rest === '\\[' || rest === '$$' };
  }
  state.pos = end + width;
  return true;
}

/** A formula in lines of its own: `$$`, `\[` or a bare environment at the start of a line, up to its end at the end of one. */
function mathBlock(state: StateBlock, startLine: number, endLine: number, silent: boolean): boolean {
  if ((state.sCount[startLine] ?? 0) - state.blkIndent >= 4) return false;
  const first = lineOf(state, startLine);
  const bare = BARE.exec(first)?.[1];
  const opening = bare !== undefined ? '' : ['$$', '\\['].find((sign) => first.startsWith(sign));
  if (opening === undefined) return false;
  const closing = bare !== undefined ? `\\end{${bare}}` : opening === '$$' ? '$$' : '\\]';
  const lines: string[] = [];
  let line = startLine;
  for (; line < endLine; line++) {
    const text = line === startLine ? first.slice(opening.length) : lineOf(state, line);
    if (line > startLine && text !== '' && (state.sCount[line] ?? 0) < state.blkIndent) break;
    const end = text.indexOf(closing);
    if (end < 0) {
      lines.push(text);
      continue;
    }
    // With words behind it, it stands within a paragraph.
    if (!/^[\s.,;]*$/.test(text.slice(end + closing.length))) return false;
    lines.push(text.slice(0, end + (bare === undefined ? 0 : closing.length)));
    return pushMath(state, startLine, line + 1, lines, silent);
  }
  return environmentOf(state).isGrowing && pushMath(state, startLine, line, lines, silent);
}

function pushMath(state: StateBlock, from: number, to: number, lines: string[], silent: boolean): boolean {
  if (silent) return true;
  const token = state.push('math_block', '', 0);
  token.content = lines.join('\n').trim();
  token.map = [from, to];
  state.line = to;
  return true;
}

function lineOf(state: StateBlock, line: number): string {
  return state.src.slice((state.bMarks[line] ?? 0) + (state.tShift[line] ?? 0), state.eMarks[line]);
}

/** A footnote: its text, and paragraphs behind it that are indented. */
function noteBlock(state: StateBlock, startLine: number, endLine: number, silent: boolean): boolean {
  if ((state.sCount[startLine] ?? 0) - state.blkIndent >= 4) return false;
  const first = lineOf(state, startLine);
  const match = NOTE.exec(first);
  if (!match?.[1]) return false;
  if (silent) return true;
  const paragraphs = [[first.slice(match[0].length)]];
  let line = startLine + 1;
  for (; line < endLine; line++) {
    const text = lineOf(state, line);
    const indent = (state.sCount[line] ?? 0) - state.blkIndent;
    const isAfterBlank = state.isEmpty(line - 1);
    if (text === '') continue;
    if (indent < 0 || NOTE.test(text) || (isAfterBlank && indent < 2)) break;
    if (isAfterBlank) paragraphs.push([]);
    paragraphs[paragraphs.length - 1]?.push(text);
  }
  while (state.isEmpty(line - 1)) line--;
  environmentOf(state).notes.add(match[1]);
  const open = state.push('note_open', '', 1);
  open.meta = { label: match[1] };
  open.map = [startLine, line];
  for (const lines of paragraphs) {
    state.push('paragraph_open', 'p', 1).map = [startLine, line];
    const inline = state.push('inline', '', 0);
    inline.content = lines.join('\n').trim();
    inline.children = [];
    state.push('paragraph_close', 'p', -1);
  }
  state.push('note_close', '', -1);
  state.line = line;
  return true;
}

/** A number is always taken for a footnote, since its text usually comes last; another label only if there is such a footnote. */
function noteReference(state: StateInline, silent: boolean): boolean {
  const match = /^\[\^([^\s[\]]{1,40})\](?!:)/.exec(state.src.slice(state.pos, state.pos + 48));
  const label = match?.[1];
  if (!match || label === undefined) return false;
  if (!/^\d{1,3}$/.test(label) && !environmentOf(state).notes.has(label)) return false;
  if (!silent) state.push('note_reference', '', 0).content = label;
  state.pos += match[0].length;
  return true;
}

/** Line breaks in cells, indices and keys. Every other tag is text. */
function tag(state: StateInline, silent: boolean): boolean {
  const rest = state.src.slice(state.pos, state.pos + 12);
  const broken = BREAK.exec(rest);
  if (broken) {
    if (!silent) state.push('hardbreak', 'br', 0);
    state.pos += broken[0].length;
    return true;
  }
  const [whole, slash, name = ''] = TAGS.exec(rest) ?? [];
  if (whole === undefined) return false;
  const kind = name.toLowerCase();
  const isClosing = slash === '/';
  const isPaired = isClosing
    ? state.tokens.filter(({ type }) => type === `${kind}_open`).length >
      state.tokens.filter(({ type }) => type === `${kind}_close`).length
    : state.src.toLowerCase().indexOf(`</${kind}>`, state.pos) >= 0;
  if (!isPaired) return false;
  if (!silent) state.push(isClosing ? `${kind}_close` : `${kind}_open`, kind, isClosing ? -1 : 1);
  state.pos += whole.length;
  return true;
}
