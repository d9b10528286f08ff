// Splits code into coloured runs of text. The highlighter returns a tree, so no HTML has to be trusted.
import bash from 'highlight.js/lib/languages/bash';
import c from 'highlight.js/lib/languages/c';
import cpp from 'highlight.js/lib/languages/cpp';
import csharp from 'highlight.js/lib/languages/csharp';
import css from 'highlight.js/lib/languages/css';
import diff from 'highlight.js/lib/languages/diff';
import go from 'highlight.js/lib/languages/go';
import ini from 'highlight.js/lib/languages/ini';
import java from 'highlight.js/lib/languages/java';
import javascript from 'highlight.js/lib/languages/javascript';
import json from 'highlight.js/lib/languages/json';
import kotlin from 'highlight.js/lib/languages/kotlin';
import lua from 'highlight.js/lib/languages/lua';
import markdown from 'highlight.js/lib/languages/markdown';
import php from 'highlight.js/lib/languages/php';
import python from 'highlight.js/lib/languages/python';
import r from 'highlight.js/lib/languages/r';
import ruby from 'highlight.js/lib/languages/ruby';
import rust from 'highlight.js/lib/languages/rust';
import sql from 'highlight.js/lib/languages/sql';
import swift from 'highlight.js/lib/languages/swift';
import typescript from 'highlight.js/lib/languages/typescript';
import xml from 'highlight.js/lib/languages/xml';
import yaml from 'highlight.js/lib/languages/yaml';
import { createLowlight } from 'lowlight';

export interface Run {
  text: string;
  /** Class names of all enclosing scopes, such as `hljs-string`. */
  scope: string;
}

const lowlight = createLowlight({
  bash,
  c,
  cpp,
  csharp,
  css,
  diff,
  go,
  ini,
  java,
  javascript,
  json,
  kotlin,
  lua,
  markdown,
  php,
  python,
  r,
  ruby,
  rust,
  sql,
  swift,
  typescript,
  xml,
  yaml,
});

/** Lines of code that are drawn, and drawn again, together. */
export interface Chunk {
  text: string;
  runs: Run[];
}

/** A chunk ends at the first empty line behind this many characters, or after twice as many anyway. */
const CHUNK = 2_000;

/**
 * Colours code that grows at its end. Chunks before the last do not change any more, so that each step costs what one chunk costs,
 * however long the code is. A chunk begins where no string, comment or other language is open, as far as that can be seen.
 */
export class HighlightStream {
  #language = '';
  #source = '';
  #settled: Chunk[] = [];
  #settledLength = 0;

  update(source: string, language: string): Chunk[] {
    if (language !== this.#language || !source.startsWith(this.#source)) this.#restart(language);
    this.#source = source;
    for (;;) {
      const rest = source.slice(this.#settledLength);
      const isLast = rest.length <= CHUNK;
      const runs = highlight(isLast ? rest : rest.slice(0, 2 * CHUNK), language);
      const end = isLast ? 0 : endOfChunk(rest, runs);
      if (end === 0)
        return rest === '' && this.#settled.length > 0 ? this.#settled : [...this.#settled, { text: rest, runs }];
      this.#settled = [...this.#settled, { text: rest.slice(0, end), runs: firstRuns(runs, end) }];
      this.#settledLength += end;
    }
  }

  #restart(language: string): void {
    this.#language = language;
    this.#settled = [];
    this.#settledLength = 0;
  }
}

/** Where the first chunk of a text ends: behind a line end; 0 if that is not to be seen yet. */
function endOfChunk(text: string, runs: Run[]): number {
  let start = 0;
  for (const run of runs) {
    for (const match of run.scope === '' ? run.text.matchAll(/\n[ \t]*\n(?=\S)/g) : []) {
      const end = start + match.index + match[0].length;
      if (end >= CHUNK / 2) return end;
    }
    start += run.text.length;
  }
  if (text.length < 2 * CHUNK) return 0;
  return text.lastIndexOf('\n', 2 * CHUNK - 1) + 1 || 2 * CHUNK;
}

/** The runs of the first `length` characters. */
function firstRuns(runs: Run[], length: number): Run[] {
  const first: Run[] = [];
  for (const run of runs) {
    if (length <= 0) break;
    first.push({ ...run, text: run.text.slice(0, length) });
    length -= run.text.length;
  }
  return first;
}

/** The coloured runs; their texts joined are `code` exactly; one plain run when the language is unknown. */
export function highlight(code: string, language: string): Run[] {
  const plain = [{ text: code, scope: '' }];
  if (code === '' || !lowlight.registered(language.toLowerCase())) return plain;
  try {
    const runs: Run[] = [];
    flatten(lowlight.highlight(language.toLowerCase(), code).children, '', runs);
    return runs.map((run) => run.text).join('') === code ? runs : plain;
  } catch {
    return plain;
  }
}

type Node = ReturnType<typeof lowlight.highlight>['children'][number];

function flatten(nodes: Node[], scope: string, runs: Run[]): void {
  for (const node of nodes) {
    if (node.type === 'text') runs.push({ text: node.value, scope });
    else if (node.type === 'element') {
      const own = node.properties.className;
      const names = Array.isArray(own) ? own.join(' ') : '';
      flatten(node.children as Node[], scope ? `${scope} ${names}` : names, runs);
    }
  }
}
