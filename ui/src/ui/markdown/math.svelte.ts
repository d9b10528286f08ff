// Formulas as MathML. KaTeX is fetched with the first formula; its output is a tree from which only known parts are taken, so
// that nothing it is told to write (links, images, styles, classes) gets on the page.

/** An element of a formula, or a text in it. */
export type MathPart = string | { tag: string; attributes: [name: string, value: string][]; children: MathPart[] };

/** A node of KaTeX's tree, as far as it is read here. */
interface TreeNode {
  type?: string;
  text?: string;
  attributes?: Record<string, unknown>;
  children?: TreeNode[];
  toNode?: () => Node;
}

interface Katex {
  __renderToDomTree: (tex: string, options: Record<string, unknown>) => TreeNode;
}

const TAGS = new Set(
  'math mrow mi mn mo mtext mspace msqrt mroot mfrac msub msup msubsup munder mover munderover mtable mtr mlabeledtr mtd mstyle mpadded mphantom menclose'.split(
    ' ',
  ),
);
const ATTRIBUTES = new Set(
  'accent accentunder columnalign columnlines columnspacing depth display displaystyle fence height largeop linethickness lspace mathbackground mathcolor maxsize minsize movablelimits notation rowlines rowspacing rspace scriptlevel separator stretchy symmetric voffset width'.split(
    ' ',
  ),
);
/** Lengths, numbers, names and colours: nothing with parentheses or a colon. */
const PLAIN_VALUE = /^[\w#.%+\- ]{0,60}$/;
/** Larger formulas are shown as they are written. */
const MAX_CHARS = 8000;
const MAX_KEPT = 400;

let katex = $state.raw<Katex | null>(null);
let isAsked = false;
const kept = new Map<string, MathPart | null>();

/** Has KaTeX fetched, once. */
export function needMath(): void {
  if (isAsked) return;
  isAsked = true;
  import('katex').then(
    (module) => (katex = module.default as unknown as Katex),
    (error: unknown) => {
      isAsked = false;
      console.error('formulas cannot be drawn', error);
    },
  );
}

/** The formula as a `math` element; null if it is no TeX that KaTeX knows, undefined while that is being fetched. */
export function drawMath(tex: string, isDisplay: boolean): MathPart | null | undefined {
  if (katex === null) return undefined;
  const key = `${isDisplay ? 'd' : 'i'}${tex}`;
  const known = kept.get(key);
  if (known !== undefined) return known;
  const drawn = draw(katex, tex, isDisplay);
  if (kept.size >= MAX_KEPT) kept.clear();
  kept.set(key, drawn);
  return drawn;
}

function draw({ __renderToDomTree }: Katex, tex: string, displayMode: boolean): MathPart | null {
  if (tex.length > MAX_CHARS) return null;
  try {
    const options = {
      displayMode,
      output: 'mathml',
      throwOnError: true,
      strict: 'ignore',
      trust: false,
      maxSize: 20,
      maxExpand: 500,
    };
    const root = find(__renderToDomTree(tex, options));
    const [formula] = root ? known(root, '') : [];
    // A formula of definitions and space alone would look like nothing.
    return formula !== undefined && /\S/.test(textOf(formula)) ? formula : null;
  } catch {
    return null;
  }
}

function textOf(part: MathPart): string {
  return typeof part === 'string' ? part : part.children.map(textOf).join('');
}

function find(node: TreeNode): TreeNode | undefined {
  if (node.type === 'math') return node;
  for (const child of node.children ?? []) {
    const found = find(child);
    if (found) return found;
  }
  return undefined;
}

/** What is known of a node; of an unknown element, what is known inside of it. */
function known(node: TreeNode, variant: string): MathPart[] {
  if (typeof node.text === 'string') return [styled(node.text, variant)];
  // The source in TeX, which would be found and read out a second time.
  if (node.type === 'annotation') return [];
  if (node.type === undefined) return space(node);
  const attributes = node.attributes ?? {};
  const own = typeof attributes.mathvariant === 'string' ? attributes.mathvariant : variant;
  const children = (node.children ?? []).flatMap((child) => known(child, own));
  if (!TAGS.has(node.type)) return children;
  const taken = Object.entries(attributes).flatMap(([name, value]): [string, string][] =>
    ATTRIBUTES.has(name) && PLAIN_VALUE.test(String(value)) ? [[name, String(value)]] : [],
  );
  // The only variant that browsers still know; the others are letters of their own.
  if (own === 'normal' && node.type === 'mi') taken.push(['mathvariant', 'normal']);
  return [{ tag: node.type, attributes: taken, children }];
}

/** KaTeX's spaces are nodes of their own kind. */
function space(node: TreeNode & { width?: number; character?: string }): MathPart[] {
  if (node.character) return [node.character];
  if (typeof node.width !== 'number') return (node.children ?? []).flatMap((child) => known(child, ''));
  return [{ tag: 'mspace', attributes: [['width', `${node.width}em`]], children: [] }];
}

/** Where the letters of a variant begin in Unicode: capitals, small letters, digits; 0 where there are none. */
const VARIANTS: Record<string, [capital: number, small: number, digit: number]> = {
  bold: [0x1d400, 0x1d41a, 0x1d7ce],
  'bold-italic': [0x1d468, 0x1d482, 0x1d7ce],
  'double-struck': [0x1d538, 0x1d552, 0x1d7d8],
  fraktur: [0x1d504, 0x1d51e, 0],
  'bold-fraktur': [0x1d56c, 0x1d586, 0],
  script: [0x1d49c, 0x1d4b6, 0],
  'sans-serif': [0x1d5a0, 0x1d5ba, 0x1d7e2],
  'bold-sans-serif': [0x1d5d4, 0x1d5ee, 0x1d7ec],
  'sans-serif-italic': [0x1d608, 0x1d622, 0],
  'sans-serif-bold-italic': [0x1d63c, 0x1d656, 0],
  monospace: [0x1d670, 0x1d68a, 0x1d7f6],
};
/** Letters that Unicode had before the others of their variant. */
const EARLIER: Record<string, string> = {
  '\u{1d53a}': 'ℂ',
  '\u{1d53f}': 'ℍ',
  '\u{1d545}': 'ℕ',
  '\u{1d547}': 'ℙ',
  '\u{1d548}': 'ℚ',
  '\u{1d549}': 'ℝ',
  '\u{1d551}': 'ℤ',
  '\u{1d506}': 'ℭ',
  '\u{1d50b}': 'ℌ',
  '\u{1d50c}': 'ℑ',
  '\u{1d515}': 'ℜ',
  '\u{1d51d}': 'ℨ',
  '\u{1d49d}': 'ℬ',
  '\u{1d4a0}': 'ℰ',
  '\u{1d4a1}': 'ℱ',
  '\u{1d4a3}': 'ℋ',
  '\u{1d4a4}': 'ℐ',
  '\u{1d4a7}': 'ℒ',
  '\u{1d4a8}': 'ℳ',
  '\u{1d4ad}': 'ℛ',
  '\u{1d4ba}': 'ℯ',
  '\u{1d4bc}': 'ℊ',
  '\u{1d4c4}': 'ℴ',
};

function styled(text: string, variant: string): string {
  const starts = VARIANTS[variant];
  if (!starts) return text;
  const from = (start: number, offset: number, letter: string) => {
    if (start === 0) return letter;
    const mapped = String.fromCodePoint(start + offset);
    return EARLIER[mapped] ?? mapped;
  };
  return text.replaceAll(/[A-Za-z0-9]/g, (letter) => {
    const code = letter.charCodeAt(0);
    if (code < 58) return from(starts[2], code - 48, letter);
    return code < 91 ? from(starts[0], code - 65, letter) : from(starts[1], code - 97, letter);
  });
}

/** A formula that is still being written, without what is half written and with what is open closed. */
export function withLikelyTex(tex: string): string {
  let text = tex
    .replace(/\\(?:begin|end)(?:\{[^}]*)?$/, '')
    .replace(/\\[a-zA-Z]*$/, '')
    .replace(/[\^_&\s]+$/, '')
    .replace(/\\$/, '');
  const open: string[] = [];
  for (const match of text.matchAll(/\\begin\{([^}]*)\}|\\end\{[^}]*\}|\\left(?![a-z])|\\right(?![a-z])|\\.|[{}]/g)) {
    const [sign, name] = match;
    if (name !== undefined) open.push(`\\end{${name}}`);
    else if (sign === '\\left') open.push('\\right.');
    else if (sign === '{') open.push('}');
    else if (sign === '}' || sign.startsWith('\\end') || sign === '\\right') open.pop();
  }
  // A command that takes two groups, and has one.
  if (/\\(?:[dt]?frac|binom)\{[^{}]*\}?$/.test(text)) text += `${text.endsWith('}') ? '' : (open.pop() ?? '')}{}`;
  text = text.replace(/\\left\s*$/, () => (open.pop(), ''));
  return text + open.reverse().join('');
}
