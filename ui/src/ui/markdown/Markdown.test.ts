// Model output may only put text on the page, never anything that loads or runs.
import { render } from '@testing-library/svelte';
import { tick } from 'svelte';
import { expect, test, vi } from 'vitest';
import hostile from '../../testing/hostile.json';
import { drawMath, needMath } from './math.svelte';
import Markdown from './Markdown.svelte';

function draw(text: string): HTMLElement {
  return render(Markdown, { text, isDone: true }).container;
}

/** All elements that an answer may consist of; those of formulas besides. */
const ELEMENTS = new Set(
  (
    'a bdi blockquote br button code div em h3 h4 h5 h6 hr kbd li ol p path pre polyline line rect circle s span strong sub sup svg table ' +
    'tbody td th thead tr ul'
  ).split(' '),
);
const FORMULAS =
  'math menclose mfrac mi mn mo mover mpadded mphantom mroot mrow mspace msqrt mstyle msub msubsup msup mtable mtd mtext mtr munder munderover';
const MATHML = 'http://www.w3.org/1998/Math/MathML';
/** Attributes with a value that comes from the text. `class` is of the highlighter's own names. */
const FREE = new Set(['href', 'title', 'aria-label', 'data-note', 'class']);
const SIMPLE_VALUE = /^[\w#.%+\- ,()/:]*$/;

/** What of this page is nothing that an answer may consist of. */
function strangers(page: Element): string[] {
  const formulas = new Set(FORMULAS.split(' '));
  return [...page.querySelectorAll('*')].flatMap((element) => {
    const name = element.localName;
    const isKnown = element.namespaceURI === MATHML ? formulas.has(name) : ELEMENTS.has(name);
    const attributes = element.getAttributeNames().filter((attribute) => {
      const value = element.getAttribute(attribute) ?? '';
      if (attribute === 'href') return !/^(https?|mailto):/.test(value) || name !== 'a';
      if (attribute === 'class') return !/^[\w\- ]*$/.test(value);
      return (
        /^(on|style$|src|id$|name$|action$|formaction$|ping$|target$)/.test(
          attribute.replace(/^target$/, value === '_blank' ? '' : 'target'),
        ) ||
        (!FREE.has(attribute) && !SIMPLE_VALUE.test(value))
      );
    });
    return isKnown ? attributes.map((attribute) => `${name} ${attribute}`) : [name];
  });
}

const texts = Object.entries(hostile).flatMap(([category, all]) =>
  all.map((text): [string, string] => [category, text]),
);

test('the corpus is large and its texts differ', () => {
  expect(new Set(texts.map(([, text]) => text)).size).toBeGreaterThanOrEqual(300);
});

test.each(texts)('%s: %j is drawn as text', async (_, text) => {
  needMath();
  await vi.waitFor(() => expect(drawMath('x', false)).toBeTruthy());
  const ran = vi.fn();
  vi.stubGlobal('ran', ran);
  const page = draw(text);
  expect(strangers(page)).toEqual([]);
  expect(page.textContent).not.toBe('');
  for (const end of [1, 2, 3]) {
    const part = text.slice(0, Math.ceil((text.length * end) / 4));
    expect(strangers(render(Markdown, { text: part, isDone: false }).container)).toEqual([]);
  }
  expect(ran).not.toHaveBeenCalled();
  vi.unstubAllGlobals();
});

test('formulas are MathML', async () => {
  needMath();
  await vi.waitFor(() => expect(drawMath('x', false)).toBeTruthy());
  const page = draw('$\\frac{a}{\\mathbb{R}}$ and $$\\begin{matrix}1&2\\end{matrix}$$ and $\\nonsense{$');
  expect(page.querySelectorAll('math')).toHaveLength(2);
  expect(page.querySelector('mfrac')?.textContent).toBe('aℝ');
  expect(page.querySelector('math[display=block] mtable')).toBeTruthy();
  expect(page.textContent).toContain('\\nonsense{');
  expect(page.querySelector('annotation')).toBeNull();
});

test('a formula that is being written shows its last whole state', async () => {
  needMath();
  await vi.waitFor(() => expect(drawMath('x', false)).toBeTruthy());
  const source = '$$\n\\begin{cases} \\frac{a_1}{\\sqrt{b}} & \\text{if } x \\left( 3 \\right) \\\\ 2 \\end{cases}\n$$';
  const { container, rerender } = render(Markdown, { text: source.slice(0, 20), isDone: false });
  for (let end = 21; end < source.length; end++) {
    await rerender({ text: source.slice(0, end), isDone: false });
    expect(container.querySelectorAll('math'), source.slice(0, end)).toHaveLength(1);
  }
});

test('a link opens elsewhere and tells nothing about this page', () => {
  const link = draw('[a](https://example.org/b)').querySelector('a');
  expect(link?.getAttribute('href')).toBe('https://example.org/b');
  expect(link?.target).toBe('_blank');
  expect(link?.rel).toBe('noopener noreferrer');
});

test('an image is a chip with its address', () => {
  expect(draw('![a map](https://example.org/m.png)').textContent).toContain('a map · https://example.org/m.png');
});

test('code is coloured and can be copied', () => {
  const page = draw('```rust\nfn main() {}\n```');
  expect(page.querySelector('pre')?.textContent).toBe('fn main() {}');
  expect(page.querySelector('.hljs-keyword')?.textContent).toBe('fn');
  expect(page.querySelector('.language')?.textContent).toBe('Rust');
  const buttons = [...page.querySelectorAll('button')].map((button) => button.getAttribute('aria-label'));
  expect(buttons).toEqual(['Wrap long lines', 'Copy code']);
});

test('a footnote is reached from its number', async () => {
  const page = draw('a[^1]\n\n[^1]: The source.');
  const number = page.querySelector<HTMLElement>('sup button');
  expect(number?.getAttribute('aria-label')).toBe('Footnote 1');
  number?.click();
  expect(document.activeElement?.textContent).toContain('The source.');
});

test('a task says whether it is done', () => {
  const boxes = draw('- [ ] a\n- [x] b').querySelectorAll('[role=img]');
  expect([...boxes].map((box) => box.getAttribute('aria-label'))).toEqual(['To do', 'Done']);
});

test('long lines of code are wrapped on demand', async () => {
  const page = draw('```\nx\n```');
  const button = page.querySelector<HTMLElement>('[aria-label="Wrap long lines"]');
  expect(button?.getAttribute('aria-pressed')).toBe('false');
  button?.click();
  await tick();
  expect(page.querySelector('pre')?.classList.contains('wrapped')).toBe(true);
  expect(button?.getAttribute('aria-pressed')).toBe('true');
});

test('inline pieces stand next to each other without gaps', () => {
  expect(draw('a**b**c`d`e [f](https://g.test)h').textContent?.trim()).toBe('abcde fh');
});
