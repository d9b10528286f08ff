// What a chat has of its own: the context with its warning, what is forgotten or summarized, parameters, presets and personas.
import { fakes } from '../fake-core.mjs';
import { NARROW, WIDE } from '../stage.mjs';

const QUESTION = 'Which stones are good for the base of a wall on a slope, and how deep has its trench to be?';
const ANSWER =
  'Flat, heavy ones with a rough face: **gneiss**, **granite** or slate. Dig to firm ground, at least 30 cm, and let the trench lean into the slope.';
const SUMMARY =
  'They plan a dry-stone wall of 12 m on a slope. Decided: gneiss from the quarry in Vals, trench 40 cm. Still open: who carries the stones up, and whether the wall needs a drain.';
const PRESETS = [
  { id: 'p1', name: 'Exact', values: { temperature: 0, top_k: 1 } },
  { id: 'p2', name: 'Bold ideas', values: { temperature: 1.3, min_p: 0.05, xtc_probability: 0.5 } },
];
const PERSONAS = [
  {
    id: 's1',
    name: 'Stonemason',
    system_prompt:
      'You are a stonemason with forty years in the Alps. You answer in short sentences and name the risks first.',
    model: null,
    values: { temperature: 0.4 },
  },
  {
    id: 's2',
    name: 'Editor for letters to the authorities',
    system_prompt: 'You edit letters.',
    model: null,
    values: {},
  },
];

/** A chat with turns about stones; `cut` is of its third question. */
function chat(core, id, title, change = {}, cut = undefined) {
  core.addChat(id, title, [QUESTION, ANSWER, 'And who carries them?', ANSWER, 'Does it need a drain?', ANSWER]);
  const known = core.conversations.get(id);
  Object.assign(known.conversation, change);
  if (cut) known.messages[4].cut = cut;
}

const context = (change) => ({
  type: 'context',
  context: {
    model: 'owner/model',
    limit_tokens: 8192,
    used_tokens: 2310,
    beginning_tokens: 140,
    document_tokens: 0,
    summary_tokens: 0,
    answer_tokens: 2048,
    at_overflow: 'stop',
    system_prompt: '',
    own_system_prompt: null,
    ...change,
  },
});

export async function perChat(stage) {
  const core = await stage.fakeCore();
  const cache = {
    cached_tokens: 2190,
    cached_bytes: 143e6,
    own_bytes: 12e6,
    tier: 'memory',
    is_pinned: false,
    model: 'owner/model',
    fingerprint: 'f',
    is_whole: true,
    shared_with: [],
    loss: null,
  };
  chat(core, 'plain', 'A wall on a slope', { cache, persona_id: 's1', system_prompt: PERSONAS[0].system_prompt });
  chat(core, 'own', 'The model’s own prompt');
  chat(core, 'tight', 'A chat that is nearly full', { cache });
  chat(core, 'full', 'A chat that is full', { cache });
  chat(core, 'forgets', 'A chat that forgets', {}, { summary: null });
  chat(core, 'summary', 'A chat with a summary', {}, { summary: SUMMARY });
  chat(core, 'empty', 'A chat without a model');
  core.bootstrap = { presets: PRESETS, personas: PERSONAS };
  const contexts = {
    plain: context({}),
    own: context({ own_system_prompt: 'You are a helpful AI assistant named SmolLM, trained by Hugging Face' }),
    tight: context({ used_tokens: 7600 }),
    full: context({ used_tokens: 8600 }),
    forgets: context({ used_tokens: 3050, at_overflow: 'forget' }),
    summary: context({ used_tokens: 6600, summary_tokens: 210, at_overflow: 'summarize' }),
    empty: { type: 'context', context: null },
  };
  core.replies = {
    get_context: ({ of }) => contexts[of.id ?? 'own'],
    get_settings: ({ scope }) => settings(scope),
  };
  const page = await stage.open(core.url);
  const { driver } = page;
  const open = async (title) => {
    await page.row(title).click();
    await page.region('Messages').getByText('Does it need a drain?').waitFor();
  };
  await open('A wall on a slope');
  const inspector = await page.inspector();
  await inspector.getByRole('meter').waitFor();
  await stage.look(page, 'context');
  await driver.setViewportSize(NARROW);
  await page.inspector();
  await inspector.getByRole('meter').waitFor();
  await stage.look(page, 'drawer', { isNarrow: true });
  await driver.keyboard.press('Escape');
  await driver.setViewportSize(WIDE);
  await inspector.getByText('Presets').scrollIntoViewIfNeeded();
  await inspector.getByText('Advanced').click();
  await inspector.getByText('Top-p').scrollIntoViewIfNeeded();
  await stage.look(page, 'parameters', { isWide: true });
  await inspector.getByRole('textbox', { name: 'Top-p' }).fill('3');
  await inspector.getByRole('textbox', { name: 'Top-p' }).press('Tab');
  await inspector.getByRole('button', { name: 'Save as preset…' }).click();
  await stage.look(page, 'naming', { isWide: true });
  await page.button('Model: model').click();
  await driver.getByRole('dialog').getByLabel('Thinking').waitFor();
  await stage.look(page, 'thinking');
  await driver.keyboard.press('Escape');
  await open('The model’s own prompt');
  await stage.look(page, 'own-prompt', { isWide: true });
  await open('A chat without a model');
  await stage.look(page, 'no-model', { isWide: true });
  await page.button('Show the inspector').click();
  for (const [title, name] of [
    ['A chat that is nearly full', 'tight'],
    ['A chat that is full', 'full'],
    ['A chat that forgets', 'forgets'],
    ['A chat with a summary', 'summary'],
  ]) {
    await open(title);
    await stage.look(page, name);
  }
  await page.button('Stonemason').click();
  await stage.look(page, 'new-chat');
  await page.choose(page.button('Stonemason'), 'Edit persona…');
  await page.dialog('Edit persona').getByText('Parameters').click();
  await stage.look(page, 'persona');
}

function settings(scope) {
  const from = {
    temperature: scope.type === 'chat' ? 'persona' : scope.type,
    top_p: 'generation_config',
    top_k: 'app',
  };
  if (scope.type === 'chat') Object.assign(from, { min_p: 'chat', stop: 'chat' });
  const values = { temperature: 0.4, top_k: 40, min_p: 0.05, stop: 'END\\n\\n', at_overflow: 'stop' };
  const thinking = { levels: ['off', 'low', 'medium', 'xhigh'], automatic: 'medium' };
  return { type: 'settings', resolved: { settings: { ...fakes.settings, ...values }, from, thinking } };
}
