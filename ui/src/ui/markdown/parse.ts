// Markdown to a small tree of plain data that components can draw without ever touching HTML.
import MarkdownIt, { type Token } from 'markdown-it';
import cjkFriendly from 'markdown-it-cjk-friendly';
import { safeHref } from './links';
import { addSyntax, type Definitions, type Environment } from './syntax';

export type Inline =
  | { kind: 'text'; text: string }
  | { kind: 'code'; text: string }
  | { kind: 'em' | 'strong' | 'strike' | 'sub' | 'sup' | 'kbd'; children: Inline[] }
  | { kind: 'math'; text: string; isDisplay: boolean }
  | { kind: 'note'; label: string }
  | { kind: 'link'; href: string | null; target: string; children: Inline[] }
  | { kind: 'image'; target: string; alt: string }
  | { kind: 'break' };

export type Align = 'left' | 'center' | 'right' | null;

/** An item of a list; of a list of tasks it says whether that is done. */
export interface Item {
  isDone: boolean | null;
  children: Block[];
}

export type Block =
  | { kind: 'paragraph'; isTight: boolean; children: Inline[] }
  | { kind: 'heading'; level: number; children: Inline[] }
  | { kind: 'code'; text: string; language: string }
  | { kind: 'quote'; children: Block[] }
  | { kind: 'list'; start: number | null; items: Item[] }
  | { kind: 'table'; align: Align[]; head: Inline[][]; rows: Inline[][][] }
  | { kind: 'math'; text: string }
  | { kind: 'note'; label: string; children: Block[] }
  | { kind: 'rule' }
  | { kind: 'plain'; text: string };

/** A top-level block and the line it starts on; null if it nests too deeply, so that only its source text is shown. */
export interface Placed {
  block: Block | null;
  line: number;
  /** The lines on which the items of a list start. */
  itemLines: number[];
}

// Deeper nesting is shown as source text: it is never intended, and each level costs a component.
const DEEPEST = 24;

// `validateLink` accepts every link, so that refused ones are still shown as text; `safeHref` decides what may be followed.
const parser = new MarkdownIt({ html: false, linkify: true, typographer: false });
parser.validateLink = () => true;
// In Chinese, Japanese and Korean, emphasis begins and ends beside letters and marks that have no spaces around them.
parser.use(cjkFriendly);
parser.use(addSyntax);
// Only whole addresses become links: names of files and modules look like hosts.
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });
for (const scheme of ['ftp:', '//', 'mailto:']) parser.linkify.add(scheme, null);

export function noDefinitions(): Definitions {
  return { links: {}, notes: new Set() };
}

/** Parses text into top-level blocks. `definitions` are read and added to. `isGrowing`: more text may follow. */
export function parseBlocks(source: string, definitions = noDefinitions(), isGrowing = false): Placed[] {
  const environment: Environment = { references: definitions.links, notes: definitions.notes, isGrowing };
  const cursor = new Cursor(parser.parse(source, { ...environment }));
  const placed: Placed[] = [];
  while (!cursor.isAtEnd) {
    const line = cursor.peek.map?.[0] ?? 0;
    const end = cursor.endOfBlock();
    const itemLines = cursor.itemLines(end);
    let block: Block | null = null;
    try {
      block = readBlock(cursor, 0);
    } catch {
      // Shown as source text.
    }
    cursor.moveTo(end);
    placed.push({ block, line, itemLines });
  }
  return placed;
}

class Cursor {
  #index = 0;
  constructor(private readonly tokens: Token[]) {}

  get isAtEnd(): boolean {
    return this.#index >= this.tokens.length;
  }

  get peek(): Token {
    const token = this.tokens[this.#index];
    if (!token) throw new Error('markdown: a block is not closed');
    return token;
  }

  next(): Token {
    const token = this.peek;
    this.#index++;
    return token;
  }

  /** The index behind the block that starts here. */
  endOfBlock(): number {
    let depth = 0;
    let index = this.#index;
    do {
      depth += this.tokens[index]?.nesting ?? 0;
      index++;
    } while (depth > 0 && index < this.tokens.length);
    return index;
  }

  /** The lines of the items of the list that starts here, without those of lists in it. */
  itemLines(end: number): number[] {
    const level = this.peek.level + 1;
    const items = this.tokens.slice(this.#index, end);
    return items
      .filter((token) => token.type === 'list_item_open' && token.level === level)
      .map(({ map }) => map?.[0] ?? 0);
  }

  moveTo(index: number): void {
    this.#index = index;
  }
}

function readBlock(cursor: Cursor, depth: number): Block {
  if (depth > DEEPEST) throw new Error('markdown: nested too deeply');
  const token = cursor.next();
  switch (token.type) {
    case 'paragraph_open': {
      const children = inlineOf(cursor.next());
      cursor.next();
      return { kind: 'paragraph', isTight: token.hidden, children };
    }
    case 'heading_open': {
      const children = inlineOf(cursor.next());
      cursor.next();
      return { kind: 'heading', level: Number(token.tag.slice(1)), children };
    }
    case 'fence': {
      const text = token.content.replace(/\n$/, '');
      const language = token.info.trim().split(/\s+/)[0] ?? '';
      return language === 'math' ? { kind: 'math', text } : { kind: 'code', text, language };
    }
    case 'code_block':
      return { kind: 'code', text: token.content.replace(/\n$/, ''), language: '' };
    case 'blockquote_open':
      return { kind: 'quote', children: readUntil(cursor, 'blockquote_close', depth) };
    case 'bullet_list_open':
      return { kind: 'list', start: null, items: readItems(cursor, 'bullet_list_close', depth) };
    case 'ordered_list_open':
      return {
        kind: 'list',
        start: Number(token.attrGet('start') ?? 1),
        items: readItems(cursor, 'ordered_list_close', depth),
      };
    case 'table_open':
      return readTable(cursor);
    case 'math_block':
      return { kind: 'math', text: token.content };
    case 'note_open':
      return { kind: 'note', label: String(token.meta?.label), children: readUntil(cursor, 'note_close', depth) };
    case 'hr':
      return { kind: 'rule' };
    default:
      return { kind: 'plain', text: token.content };
  }
}

function readUntil(cursor: Cursor, closing: string, depth: number): Block[] {
  const children: Block[] = [];
  while (cursor.peek.type !== closing) children.push(readBlock(cursor, depth + 1));
  cursor.next();
  return children;
}

function readItems(cursor: Cursor, closing: string, depth: number): Item[] {
  const items: Item[] = [];
  while (cursor.next().type !== closing) items.push(asItem(readUntil(cursor, 'list_item_close', depth)));
  return items;
}

/** Takes the box of a task (`[ ]`, `[x]`) from the start of an item. */
function asItem(children: Block[]): Item {
  const paragraph = children[0]?.kind === 'paragraph' ? children[0].children : [];
  const text = paragraph[0];
  const box = text?.kind === 'text' ? /^\[([ xX])\](?:\s+|$)/.exec(text.text) : null;
  if (text?.kind !== 'text' || !box) return { isDone: null, children };
  text.text = text.text.slice(box[0].length);
  return { isDone: box[1] !== ' ', children };
}

function readTable(cursor: Cursor): Block {
  const table: Block & { kind: 'table' } = { kind: 'table', align: [], head: [], rows: [] };
  let row: Inline[][] = table.head;
  for (let token = cursor.next(); token.type !== 'table_close'; token = cursor.next()) {
    if (token.type === 'th_open') table.align.push(alignOf(token));
    else if (token.type === 'inline') row.push(inlineOf(token));
    else if (token.type === 'tr_open' && table.head.length > 0) table.rows.push((row = []));
  }
  return table;
}

function alignOf(token: Token): Align {
  const match = /text-align:(left|center|right)/.exec(String(token.attrGet('style') ?? ''));
  return (match?.[1] as Align) ?? null;
}

function inlineOf(token: Token): Inline[] {
  const root: Inline[] = [];
  const open: Inline[][] = [root];
  const add = (node: Inline) => {
    const siblings = open[open.length - 1] ?? root;
    const before = siblings[siblings.length - 1];
    // Neighbouring pieces of text become one node, so that equal texts have equal trees.
    if (node.kind === 'text' && before?.kind === 'text') before.text += node.text;
    else if (node.kind !== 'text' || node.text !== '') siblings.push(node);
  };
  const enter = (node: Inline & { children: Inline[] }) => {
    if (open.length > DEEPEST) throw new Error('markdown: nested too deeply');
    add(node);
    open.push(node.children);
  };
  for (const child of token.children ?? []) {
    switch (child.type) {
      case 'code_inline':
        add({ kind: 'code', text: child.content });
        break;
      // Models break lines on purpose (verse, addresses), so a single newline is a line break.
      case 'softbreak':
      case 'hardbreak':
        add({ kind: 'break' });
        break;
      case 'math':
        add({ kind: 'math', text: child.content, isDisplay: child.meta?.isDisplay === true });
        break;
      case 'note_reference':
        add({ kind: 'note', label: child.content });
        break;
      case 'sub_open':
      case 'sup_open':
      case 'kbd_open':
        enter({ kind: child.tag as 'sub' | 'sup' | 'kbd', children: [] });
        break;
      case 'em_open':
        enter({ kind: 'em', children: [] });
        break;
      case 'strong_open':
        enter({ kind: 'strong', children: [] });
        break;
      case 's_open':
        enter({ kind: 'strike', children: [] });
        break;
      case 'link_open': {
        const target = String(child.attrGet('href') ?? '');
        enter({ kind: 'link', href: safeHref(target), target, children: [] });
        break;
      }
      case 'image':
        add({ kind: 'image', target: String(child.attrGet('src') ?? ''), alt: child.content });
        break;
      case 'em_close':
      case 'strong_close':
      case 's_close':
      case 'link_close':
      case 'sub_close':
      case 'sup_close':
      case 'kbd_close':
        open.pop();
        break;
      default:
        add({ kind: 'text', text: child.content });
    }
  }
  return root;
}
