// The languages of code: how they are called, and how their files end.

/** By the name that models write behind a fence, or an alias of it: the name to show, and the ending of a file. */
const LANGUAGES: Record<string, [name: string, ending: string]> = {
  bash: ['Bash', 'sh'],
  c: ['C', 'c'],
  cpp: ['C++', 'cpp'],
  csharp: ['C#', 'cs'],
  css: ['CSS', 'css'],
  csv: ['CSV', 'csv'],
  dart: ['Dart', 'dart'],
  diff: ['Diff', 'diff'],
  dockerfile: ['Dockerfile', 'dockerfile'],
  elixir: ['Elixir', 'ex'],
  go: ['Go', 'go'],
  haskell: ['Haskell', 'hs'],
  html: ['HTML', 'html'],
  ini: ['INI', 'ini'],
  java: ['Java', 'java'],
  javascript: ['JavaScript', 'js'],
  json: ['JSON', 'json'],
  jsx: ['JSX', 'jsx'],
  julia: ['Julia', 'jl'],
  kotlin: ['Kotlin', 'kt'],
  latex: ['LaTeX', 'tex'],
  lua: ['Lua', 'lua'],
  makefile: ['Makefile', 'mk'],
  markdown: ['Markdown', 'md'],
  mermaid: ['Mermaid', 'mmd'],
  perl: ['Perl', 'pl'],
  php: ['PHP', 'php'],
  powershell: ['PowerShell', 'ps1'],
  python: ['Python', 'py'],
  r: ['R', 'r'],
  ruby: ['Ruby', 'rb'],
  rust: ['Rust', 'rs'],
  scala: ['Scala', 'scala'],
  sql: ['SQL', 'sql'],
  svelte: ['Svelte', 'svelte'],
  svg: ['SVG', 'svg'],
  swift: ['Swift', 'swift'],
  toml: ['TOML', 'toml'],
  tsx: ['TSX', 'tsx'],
  typescript: ['TypeScript', 'ts'],
  vue: ['Vue', 'vue'],
  xml: ['XML', 'xml'],
  yaml: ['YAML', 'yaml'],
  zig: ['Zig', 'zig'],
};

const ALIASES: Record<string, string> = {
  'c++': 'cpp',
  'c#': 'csharp',
  console: 'bash',
  cs: 'csharp',
  docker: 'dockerfile',
  golang: 'go',
  hs: 'haskell',
  htm: 'html',
  js: 'javascript',
  jl: 'julia',
  kt: 'kotlin',
  make: 'makefile',
  md: 'markdown',
  mjs: 'javascript',
  patch: 'diff',
  pl: 'perl',
  ps1: 'powershell',
  py: 'python',
  py3: 'python',
  python3: 'python',
  rb: 'ruby',
  rs: 'rust',
  sh: 'bash',
  shell: 'bash',
  tex: 'latex',
  ts: 'typescript',
  yml: 'yaml',
  zsh: 'bash',
};

export interface Language {
  /** As the highlighter knows it, which has aliases of its own; empty if none is named. */
  id: string;
  /** To show; a language that is not in the table is called as it was written. */
  name: string;
  /** Of a file, without the dot. */
  ending: string;
}

export function languageOf(written: string): Language {
  const id = written.toLowerCase();
  const known = Object.hasOwn(ALIASES, id) ? (ALIASES[id] ?? id) : id;
  const [name, ending] = (Object.hasOwn(LANGUAGES, known) ? LANGUAGES[known] : undefined) ?? [written, 'txt'];
  return { id: known, name, ending };
}
