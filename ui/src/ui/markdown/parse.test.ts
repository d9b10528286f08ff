// The tree of links, fences, images, tables and lists.
import { expect, test } from 'vitest';
import { highlight } from './highlight';
import { safeHref } from './links';
import { parseBlocks, type Block } from './parse';

const blocks = (source: string): (Block | null)[] => parseBlocks(source, {}).map(({ block }) => block);
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

test.each<[source: string, isClosed: boolean]>([
  ['```\na\n```', true],
  ['```\na\n```\n', true],
  ['```\n```', true],
  ['```\n\n```', true],
  ['> ```\n> a\n> ```', true],
  ['- ```\n  a\n  ```', true],
  ['```', false],
  ['```js\n', false],
  ['```\na', false],
  ['```\na\n', false],
  ['```\na\n\n', false],
  ['````\na\n```', false],
  ['```\na\n``', false],
  ['> ```\n> a', false],
])('whether the fence %j is closed: %s', (source, isClosed) => {
  const found = JSON.stringify(blocks(source));
  expect(found).toContain(`"isClosed":${isClosed}`);
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
  ['addresses alone are text', 'https://example.org', text('https://example.org')],
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
  const item = (value: string, isTight: boolean) => [{ kind: 'paragraph', isTight, children: [text(value)] }];
  expect(blocks('3. a\n4. b')).toEqual([{ kind: 'list', start: 3, items: [item('a', true), item('b', true)] }]);
  expect(blocks('- a\n\n- b')).toEqual([{ kind: 'list', start: null, items: [item('a', false), item('b', false)] }]);
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
  ['js', 'x'.repeat(50_000), null],
])('code in %j keeps its text and has the scope %3$s', (language, code, scope) => {
  const runs = highlight(code, language);
  expect(runs.map((run) => run.text).join('')).toBe(code);
  if (scope === null) expect(runs).toEqual([{ text: code, scope: '' }]);
  else expect(runs.some((run) => run.scope.split(' ').includes(scope))).toBe(true);
});
