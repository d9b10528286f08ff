// The tree of links, fences, images, tables and lists.
import { expect, test } from 'vitest';
import { highlight } from './highlight';
import { safeHref } from './links';
import { parseBlocks, type Block } from './parse';

const blocks = (source: string): (Block | null)[] => parseBlocks(source).map(({ block }) => block);
const text = (value: string) => ({ kind: 'text', text: value });

test.each<[target: string, href: string | null]>([
  ['https://example.org/a?b=c#d', 'https://example.org/a?b=c#d'],
  ['http://localhost:8080/', 'http://localhost:8080/'],
  ['HTTPS://EXAMPLE.ORG', 'https://example.org/'],
  ['mailto:someone@example.org', 'mailto:someone@example.org'],
  ['https://xn--pple-43d.com', 'https://xn--pple-43d.com/'],
  ['https://аpple.com', 'https://xn--pple-43d.com/'],
  ['javascript:alert(1)', null],
  ['JaVaScRiPt:alert(1)', null],
  [' javascript:alert(1)', null],
  ['java\nscript:alert(1)', null],
  ['java\tscript:alert(1)', null],
  ['data:text/html,<script>1</script>', null],
  ['data:image/png;base64,AAAA', null],
  ['vbscript:x', null],
  ['file:///etc/passwd', null],
  ['tauri://localhost', null],
  ['ipc://localhost/call', null],
  ['asset://localhost/x', null],
  ['blob:https://example.org/1', null],
  ['about:blank', null],
  ['ftp://example.org', null],
  ['cairn:open', null],
  ['//example.org/x', null],
  ['/api/call', null],
  ['relative', null],
  ['#token=x', null],
  ['', null],
  ['https://', null],
])('the link target %j leads to %j', (target, href) => {
  expect(safeHref(target)).toBe(href);
});

test.each<[name: string, source: string, expected: unknown]>([
  [
    'a refused link keeps its words',
    '[a](javascript:b)',
    { kind: 'link', href: null, target: 'javascript:b', children: [text('a')] },
  ],
  [
    'an image is only named',
    '![a *b*](https://c.test/d.png)',
    { kind: 'image', target: 'https://c.test/d.png', alt: 'a *b*' },
  ],
  [
    'an image in a link',
    '[![a](b)](https://c.test)',
    {
      kind: 'link',
      href: 'https://c.test/',
      target: 'https://c.test',
      children: [{ kind: 'image', target: 'b', alt: 'a' }],
    },
  ],
  ['tags are text', '<i onclick=x>', text('<i onclick=x>')],
  ['entities are characters', '&lt;b&gt; &amp;', text('<b> &')],
  [
    'a whole address is a link',
    'https://example.org/a',
    {
      kind: 'link',
      href: 'https://example.org/a',
      target: 'https://example.org/a',
      children: [text('https://example.org/a')],
    },
  ],
  ['names of hosts, files and people are text', 'example.org main.rs a@b.test', text('example.org main.rs a@b.test')],
  [
    'no other scheme is recognized',
    'ftp://a.test //b.test mailto:c@d.test',
    text('ftp://a.test //b.test mailto:c@d.test'),
  ],
  ['emphasis in emphasis', '***a***', { kind: 'em', children: [{ kind: 'strong', children: [text('a')] }] }],
])('%s', (_, source, expected) => {
  expect(blocks(source)).toEqual([{ kind: 'paragraph', isTight: false, children: [expected] }]);
});

test('a line break is a line break', () => {
  expect(blocks('a\nb')).toEqual([
    { kind: 'paragraph', isTight: false, children: [text('a'), { kind: 'break' }, text('b')] },
  ]);
});

test('a list knows its numbers and whether it is tight', () => {
  const item = (value: string, isTight: boolean) => ({
    isDone: null,
    children: [{ kind: 'paragraph', isTight, children: [text(value)] }],
  });
  expect(blocks('3. a\n4. b')).toEqual([{ kind: 'list', start: 3, items: [item('a', true), item('b', true)] }]);
  expect(blocks('- a\n\n- b')).toEqual([{ kind: 'list', start: null, items: [item('a', false), item('b', false)] }]);
});

const math = (value: string, isDisplay = false) => ({ kind: 'math', text: value, isDisplay });

test.each<[source: string, expected: unknown[]]>([
  ['$x$', [math('x')]],
  ['a $x^2$, b', [text('a '), math('x^2'), text(', b')]],
  ['so $$x$$ it is', [text('so '), math('x', true), text(' it is')]],
  ['\\(a+b\\) and \\[c\\] on', [math('a+b'), text(' and '), math('c', true), text(' on')]],
  ['$5$ balls', [math('5'), text(' balls')]],
  ['$\\text{cost is } 5$', [math('\\text{cost is } 5')]],
  ['$3 \\times 4$', [math('3 \\times 4')]],
  ['**$a$**', [{ kind: 'strong', children: [math('a')] }]],
  ['$a$-axis', [math('a'), text('-axis')]],
  ['`$x$`', [{ kind: 'code', text: '$x$' }]],
])('%s has a formula', (source, expected) => {
  expect(blocks(source)).toEqual([{ kind: 'paragraph', isTight: false, children: expected }]);
});

test.each([
  'It costs $5, or $10 with tea.',
  'From $5-$10.',
  'Between $20k and $30k',
  '$5/mo to $6/mo',
  'US$5 and A$6',
  '$1,000 is more than $999.99.',
  '$HOME and $PATH',
  'echo $HOME/$USER',
  'a $ b $ c',
  'only $x',
  '$ x$',
  '$5 for you and 10$ for me',
  '\\$x\\$',
  '$a\n\nb$',
])('%s has none', (source) => {
  expect(JSON.stringify(blocks(source))).not.toContain('"math"');
});

test.each<[source: string, expected: unknown]>([
  ['$$\nx\n$$', { kind: 'math', text: 'x' }],
  ['\\[\nx\n\ny\n\\].', { kind: 'math', text: 'x\n\ny' }],
  ['$$x$$', { kind: 'math', text: 'x' }],
  ['```math\nx\n```', { kind: 'math', text: 'x' }],
  ['\\begin{align*}\na &= b\n\\end{align*}', { kind: 'math', text: '\\begin{align*}\na &= b\n\\end{align*}' }],
])('%j is a formula by itself', (source, expected) => {
  expect(blocks(source)).toEqual([expected]);
});

test('a formula ends with the list item that it stands in', () => {
  const [list, paragraph] = blocks('1. a\n\n   $$\n   x\n   $$\n\nb');
  expect(JSON.stringify(list)).toContain('{"kind":"math","text":"x"}');
  expect(paragraph).toMatchObject({ kind: 'paragraph' });
  expect(JSON.stringify(blocks('$$ is no formula'))).not.toContain('"math"');
});

test('tasks know whether they are done', () => {
  const [list] = blocks('- [ ] a\n- [x] b\n- c\n- [y] d');
  const items = list?.kind === 'list' ? list.items : [];
  expect(items.map(({ isDone }) => isDone)).toEqual([false, true, null, null]);
  expect(items.map(({ children }) => JSON.stringify(children)).join()).not.toContain('[ ]');
});

test('footnotes have labels, and texts of several paragraphs', () => {
  const note = (label: string) => ({ kind: 'note', label });
  expect(blocks('a[^1] b[^n] c[^other]\n\n[^1]: One *two*\nthree\n\n  four\n[^n]: five\n\nsix')).toEqual([
    { kind: 'paragraph', isTight: false, children: [text('a'), note('1'), text(' b'), note('n'), text(' c[^other]')] },
    {
      kind: 'note',
      label: '1',
      children: [
        {
          kind: 'paragraph',
          isTight: false,
          children: [text('One '), { kind: 'em', children: [text('two')] }, { kind: 'break' }, text('three')],
        },
        { kind: 'paragraph', isTight: false, children: [text('four')] },
      ],
    },
    { kind: 'note', label: 'n', children: [{ kind: 'paragraph', isTight: false, children: [text('five')] }] },
    { kind: 'paragraph', isTight: false, children: [text('six')] },
  ]);
});

test('the tags that models write in cells and formulas are drawn, those with attributes and others are text', () => {
  const [paragraph] = blocks('a<br>b<br/>H<sub>2</sub>O <kbd>Esc</kbd> <sub onclick=x>c</sub> <b>d</b> <sup>e');
  expect(paragraph?.kind === 'paragraph' ? paragraph.children : []).toEqual([
    text('a'),
    { kind: 'break' },
    text('b'),
    { kind: 'break' },
    text('H'),
    { kind: 'sub', children: [text('2')] },
    text('O '),
    { kind: 'kbd', children: [text('Esc')] },
    text(' <sub onclick=x>c</sub> <b>d</b> <sup>e'),
  ]);
});

test('emphasis works beside letters and marks of Chinese, Japanese and Korean', () => {
  for (const source of ['これは**「重要」**です', '**한국어(Korean)**는', '请**注意：**这里'])
    expect(JSON.stringify(blocks(source)), source).toContain('"strong"');
});

test('a table knows its columns', () => {
  expect(blocks('a | b | c | d\n--|:-:|--:|:--\n1 | 2\n')).toEqual([
    {
      kind: 'table',
      align: [null, 'center', 'right', 'left'],
      head: [[text('a')], [text('b')], [text('c')], [text('d')]],
      rows: [[[text('1')], [text('2')], [], []]],
    },
  ]);
});

test.each<[language: string, code: string, scope: string | null]>([
  ['rust', 'fn main() {}', 'hljs-keyword'],
  ['Python', 'def a(): pass', 'hljs-keyword'],
  ['sh', 'echo "a"', 'hljs-built_in'],
  ['json', '{"a": [1, true]}', 'hljs-attr'],
  ['html', '<b onclick="x">&amp;</b>', 'hljs-tag'],
  ['nonsense', '<b>', null],
  ['__proto__', 'x', null],
  ['', 'x', null],
])('code in %j keeps its text and has the scope %3$s', (language, code, scope) => {
  const runs = highlight(code, language);
  expect(runs.map((run) => run.text).join('')).toBe(code);
  if (scope === null) expect(runs).toEqual([{ text: code, scope: '' }]);
  else expect(runs.some((run) => run.scope.split(' ').includes(scope))).toBe(true);
});
