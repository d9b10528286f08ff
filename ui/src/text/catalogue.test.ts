// Every word that the window shows is in the catalogue: components contain no text of their own, stores no sentences.
import { parse, type AST } from 'svelte/compiler';
import ts from 'typescript';
import { expect, test } from 'vitest';

const components = import.meta.glob<string>('../**/*.svelte', { query: '?raw', import: 'default', eager: true });
const modules = import.meta.glob<string>(['../**/*.ts', '!../**/*.test.ts', '!../testing/**', '!./**'], {
  query: '?raw',
  import: 'default',
  eager: true,
});

/** Attributes and properties whose value a person sees or hears. */
const SHOWN =
  /^(aria-(label|description|valuetext|roledescription|placeholder)|title|placeholder|alt|label|note|unit|question|action|words)$/;
/** What looks like a sentence and is part of a protocol. */
const NOT_SHOWN = ['Bearer x'];
const COMPARISONS = new Set(['==', '===', '!=', '!==', 'in']);

type Node = { type: string } & Record<string, unknown>;
const isNode = (value: unknown): value is Node => typeof value === 'object' && value !== null && 'type' in value;
const childrenOf = (node: Node) =>
  Object.values(node)
    .flatMap((value) => (Array.isArray(value) ? value : [value]))
    .filter(isNode);
const hasLetters = (text: unknown): text is string => typeof text === 'string' && /\p{L}/u.test(text);

/** The strings that an expression can give, without those that it only compares with, calls with or looks up. */
function stringsOf(node: Node): string[] {
  if (node.type === 'Literal') return hasLetters(node.value) ? [node.value] : [];
  if (node.type === 'TemplateElement') {
    const { cooked } = node.value as { cooked: string };
    return hasLetters(cooked) ? [cooked] : [];
  }
  if (node.type === 'BinaryExpression' && COMPARISONS.has(node.operator as string)) return [];
  if (node.type === 'CallExpression' || node.type === 'MemberExpression') return [];
  return childrenOf(node).flatMap(stringsOf);
}

/** What a component would show that does not come from the catalogue. */
function literalsIn(source: string): string[] {
  const found: string[] = [];
  const visit = (node: Node) => {
    if (node.type === 'Text' && hasLetters(node.data)) found.push(node.data.trim());
    else if (node.type === 'ExpressionTag') found.push(...stringsOf(node.expression as Node));
    else if (node.type === 'Attribute') {
      if (!SHOWN.test(node.name as string)) return;
      const values = (Array.isArray(node.value) ? node.value : [node.value]).filter(isNode);
      values.forEach(visit);
    } else if (!['Comment', 'StyleDirective', 'ClassDirective', 'OnDirective', 'SvelteOptions'].includes(node.type)) {
      childrenOf(node).forEach(visit);
    }
  };
  const root: AST.Root = parse(source, { modern: true });
  visit(root.fragment as unknown as Node);
  return found;
}

/** What looks like a sentence in a module: several words, of which the first begins with a capital or a quotation mark. */
function sentencesIn(source: string): string[] {
  const found: string[] = [];
  const visit = (node: ts.Node) => {
    const whole = ts.isStringLiteralLike(node) ? node.text : ts.isTemplateExpression(node) ? templateText(node) : '';
    if (/^[\p{Lu}“][^<>{}]*[\p{L}”] +[\p{L}“]/u.test(whole) && !NOT_SHOWN.includes(whole)) found.push(whole);
    ts.forEachChild(node, visit);
  };
  visit(ts.createSourceFile('module.ts', source, ts.ScriptTarget.Latest));
  return found;
}

/** A template with `x` for each of its values. */
function templateText({ head, templateSpans }: ts.TemplateExpression): string {
  return head.text + templateSpans.map(({ literal }) => `x${literal.text}`).join('');
}

test.each(Object.entries(components))('%s takes its words from the catalogue', (_, source) => {
  const script = /<script[^>]*>(.*?)<\/script>/s.exec(source)?.[1] ?? '';
  expect([...literalsIn(source), ...sentencesIn(script)]).toEqual([]);
});

test.each(Object.entries(modules))('%s contains no sentence', (_, source) => {
  expect(sentencesIn(source)).toEqual([]);
});

test.each<[source: string, found: string[]]>([
  ['<p>Text</p>', ['Text']],
  ['<p>{count} · {unit}</p>', []],
  ['<p title="Title" class="name">{a}</p>', ['Title']],
  ['<Dialog label={`Delete ${name}`} {...rest} />', ['Delete ']],
  ['<p aria-label={isOn ? "On" : strings.off}></p>', ['On']],
  ["<p>{state === 'ready' ? strings.ready : ' soon'}</p>", [' soon']],
  ["<p>{format('short', rows['name'])}</p>", []],
  ["{#if state === 'ready'}{#each rows as row (row.id)}<b>Row</b>{/each}{/if}", ['Row']],
  ['<svelte:boundary>{#snippet failed()}<p>Failed</p>{/snippet}</svelte:boundary>', ['Failed']],
])('in %j it finds %j', (source, found) => {
  expect(literalsIn(source)).toEqual(found);
});

test('in modules it finds sentences, not keys', () => {
  const source = `
    show('Deleted it.', \`“\${name}” is gone\`, \`Deleted “\${name}”\`);
    on('cache_changed', 'Escape'); get('Content-Type', \`/models/\${name}\`, 'hljs one two');`;
  expect(sentencesIn(source)).toEqual(['Deleted it.', '“x” is gone', 'Deleted “x”']);
});

/** The parts of a catalogue by path: its texts, and of its functions the names of the values and whether each is used. */
function entriesOf(files: Record<string, string>): Map<string, { text: string; placeholders: string }> {
  const entries = new Map<string, { text: string; placeholders: string }>();
  const visit = (node: ts.Node, path: string) => {
    if (ts.isObjectLiteralExpression(node)) {
      for (const property of node.properties) {
        if (ts.isPropertyAssignment(property)) visit(property.initializer, `${path}.${property.name.getText()}`);
        else entries.set(`${path}.${property.name?.getText()}`, { text: '', placeholders: '' });
      }
    } else if (ts.isAsExpression(node)) visit(node.expression, path);
    else if (ts.isArrayLiteralExpression(node)) node.elements.forEach((item, index) => visit(item, `${path}.${index}`));
    else if (ts.isArrowFunction(node)) {
      const names = node.parameters.map((parameter) => parameter.name.getText());
      const body = node.body.getText();
      const used = names.map((name) => new RegExp(`\\b${name}\\b`).test(body));
      const placeholders = names.map((name, index) => `${name}${used[index] ? '' : ' (unused)'}`).join(', ');
      entries.set(path, { text: ts.isNumericLiteral(node.body) ? '' : body, placeholders });
    } else entries.set(path, { text: node.getText(), placeholders: '' });
  };
  for (const source of Object.values(files)) {
    const file = ts.createSourceFile('catalogue.ts', source, ts.ScriptTarget.Latest, true);
    file.forEachChild((statement) => {
      if (!ts.isVariableStatement(statement)) return;
      for (const { name, initializer } of statement.declarationList.declarations) {
        const isPart = initializer && ts.isObjectLiteralExpression(initializer);
        if (isPart) visit(initializer, name.getText().replace('settingRows', 'rows'));
      }
    });
  }
  return entries;
}

const english = entriesOf(
  import.meta.glob<string>(['./en/*.ts', '!./en/index.ts'], { query: '?raw', import: 'default', eager: true }),
);
const german = entriesOf(
  import.meta.glob<string>(['./de/*.ts', '!./de/index.ts'], { query: '?raw', import: 'default', eager: true }),
);

/** What both languages write alike: names, terms of the field, signs, and texts that are made elsewhere. */
const ALIKE =
  /^(personas\.(title|one)|palette\.personas|common\.(appName|bytes|decimalSign|groupSign|name|number|time|tokens)|chats\.(label|month)|chatFiles\.formats|palette\.chats|menus\.chat|commands\.show_monitor|keys\.none|saved\.chats|models\.context|downloads\.(label|labelOf|list|rate|share)|discover\.mlx|hub\.(title|tokenPlaceholder)|monitor\.(title|milliseconds|none|memoryOfMlx|share|chart|atTime|clock|chat|count|duration)|stats\.(prompt)|failures\.gone|probabilities\.(choice|share)|content\.(code|codeIn|speakers\.system)|models\.current|pieces\.(columns\.(text|tokens)|tokens|facts|stored|positions|columns)|imports\.date|settings\.(languages|version|title|sections\.(hub|server)|pages\.server)|jobs\.(share|number)|server\.(programs|count|milliseconds|rate|columns\.(rate|status))|kinds\.(text|code|markdown)|documents\.(amount|facts|folder\.(bytes|sum))|rows\.(api_port\.label|appearance\.choices\.system|top_p\.label|top_k\.label|min_p\.label|cache_budget_bytes\.unit|cache_ram_budget_bytes\.unit)|saved\.(pinned|usage|amount)|settings\.rows|startingPoints\.numChats)/;

test('every language has every text, with the same values in it', () => {
  const shapeOf = (entries: typeof english) =>
    [...entries].map(([path, { placeholders }]) => `${path}(${placeholders})`).sort();
  expect(english.size).toBeGreaterThan(250);
  expect(shapeOf(german)).toEqual(shapeOf(english));
});

test('no text of another language is still English', () => {
  const alike = [...german].filter(([path, { text }]) => /\p{L}{2}/u.test(text) && english.get(path)?.text === text);
  expect(alike.map(([path]) => path).filter((path) => !ALIKE.test(path))).toEqual([]);
});

test('no placeholder of a text is unused', () => {
  expect([...english].filter(([, { placeholders }]) => placeholders.includes('unused'))).toEqual([]);
});
