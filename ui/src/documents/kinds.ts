// What a document is made of, by the name of its file.
import type { DocumentKind } from '../platform/wire';

const KINDS: Record<Exclude<DocumentKind, 'code' | 'text'>, string> = {
  markdown: 'md markdown mdx',
  csv: 'csv tsv',
  html: 'html htm xhtml',
  pdf: 'pdf',
};

const CODE = new Set(
  (
    'ada asm awk bash bat c cc cfg clj cljs cmake coffee conf cpp cs css cu cue cxx d dart diff dockerfile el elm erl ex exs f90 ' +
    'fish fs fsx gd glsl go gql gradle graphql groovy h hcl hh hpp hrl hs hxx ini ipynb java jl js json json5 jsonc jsonl jsx ' +
    'kt kts less lisp lua m makefile metal mjs cjs ml mli mm nim nix ndjson odin pas patch php pl pm proto ps1 py pyi qml r rb ' +
    'rego rkt rs sass scala scm scss sh sol sql star svelte swift tcl tex tf thrift toml ts cts mts tsx v vb vhd vim vue wat ' +
    'wgsl xml xsd xsl yaml yml zig zsh'
  ).split(' '),
);

/** Endings of files that are no text: that is said without reading them. */
const BINARY = new Set(
  (
    '7z a aac ai aiff apk app avi avif bin blend bmp bz2 class dat db dbf deb dll dmg doc docx dylib eot eps epub exe flac fla gguf ' +
    'gif gz heic ico img ipa iso jar jpeg jpg key lib lz4 m4a m4v mkv mov mp3 mp4 mpeg mpg npy npz numbers o odp ods odt ogg otf ' +
    'pages parquet pkl png ppt pptx psd pt pth pyc rar rpm rtf safetensors so sqlite sqlite3 svgz tar tgz tif tiff ttf wasm wav ' +
    'webm webp woff woff2 xls xlsx xz zip zst'
  ).split(' '),
);

/** Those of them that have text, which the program that wrote them can save in a form that is read here. */
const OFFICE = new Set('doc docx epub numbers odp ods odt pages ppt pptx rtf xls xlsx'.split(' '));

/** The ending of a name without its dot, in small letters; a name without one is its own. */
export function endingOf(name: string): string {
  const last = name.split(/[/\\]/).at(-1) ?? name;
  const dot = last.lastIndexOf('.');
  return last.slice(dot + 1).toLowerCase();
}

export function kindOf(name: string): DocumentKind {
  const ending = endingOf(name);
  for (const [kind, endings] of Object.entries(KINDS))
    if (endings.split(' ').includes(ending)) return kind as DocumentKind;
  return CODE.has(ending) ? 'code' : 'text';
}

/** Whether a file has text that its program has to save in another form. */
export function isOfficeName(name: string): boolean {
  return isBinaryName(name) && OFFICE.has(endingOf(name));
}

/** Whether a file is no text, by its name alone. */
export function isBinaryName(name: string): boolean {
  return /\.[^./\\]+$/.test(name) && BINARY.has(endingOf(name));
}
