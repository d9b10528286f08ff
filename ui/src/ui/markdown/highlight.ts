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

// Longer blocks stay plain: colouring happens on the main thread.
const LONGEST = 40_000;

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

/** The coloured runs; their texts joined are `code` exactly; one plain run when the language is unknown or the code too long. */
export function highlight(code: string, language: string): Run[] {
  const plain = [{ text: code, scope: '' }];
  if (code.length > LONGEST || !lowlight.registered(language.toLowerCase())) return plain;
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
