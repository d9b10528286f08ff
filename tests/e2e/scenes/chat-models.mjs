// The figures of an answer, and which model answers a chat, where that is to be said: one that is gone, cannot be loaded, or
// is only proposed.
import { fakes } from '../fake-core.mjs';

const { model, problem, stats, status } = fakes;

const QUESTION = 'Which stones are good for the base of a wall on a slope?';
const ANSWER = 'Flat, heavy ones with a rough face: gneiss, granite or slate. Dig to firm ground, at least 30 cm.';
const OWN = 'mlx-community/Qwen3-4B-4bit';
const OTHER = 'mlx-community/Llama-3.2-3B-Instruct-4bit';
const GONE = 'mlx-community/Mistral-Small-24B-Instruct-2501-4bit';
const INCOMPLETE = problem('incomplete', 'tokenizer.json is missing');
INCOMPLETE.problem.what = { type: 'file_missing', file: 'tokenizer.json' };
const UNSAFE = problem('unsafe', 'opening its files takes more than 60 s');

const NOTHING_LOADED = { ...status, engine: { state: 'empty' }, model_fingerprint: null, models: [] };
const loaded = (name) => ({
  ...status,
  engine: { state: 'ready', model: name },
  models: [{ name, fingerprint: 'f', bytes: 2.3e9, draft: null }],
});
const of = (change) => ({ name: null, source: 'app', missing: null, ...change });

export async function chatModels(stage) {
  const core = await stage.fakeCore();
  core.addChat('a', 'A wall on a slope', [QUESTION, ANSWER]);
  const { conversation: own, messages } = core.conversations.get('a');
  messages[1].stats = stats({ model: OTHER, prompt_tokens: 2860, cached_tokens: 2048 });
  const models = [model(OWN), model(OTHER, { is_proposed: true })];
  core.bootstrap = { models, status: loaded(OTHER) };
  const page = await stage.open(core.url);
  await page.shows(/^Flat, heavy ones/);
  await page.statusLine.click();
  await stage.look(page, 'figures');
  await page.statusLine.click();
  /** What is told of the chat, and of the models. */
  const tell = async (name, said, { rule, list = models, engine = loaded(OTHER) }) => {
    own.model = of(rule);
    core.emit({ type: 'models', models: list });
    core.emit({ type: 'status', status: engine });
    core.emit({ type: 'conversation', conversation: own });
    await page.driver.locator('form').getByText(said).waitFor();
    await stage.look(page, name);
  };
  await tell('waits', /will be loaded/, { rule: { name: OWN, source: 'answer' } });
  await tell('gone', /is not here/, { rule: { name: OTHER, source: 'answer', missing: GONE } });
  await tell('gone-proposed', /is not here/, { rule: { missing: GONE }, engine: NOTHING_LOADED });
  const broken = [model(GONE, INCOMPLETE), model(OTHER, { is_proposed: true })];
  await tell('broken', /cannot be loaded/, { rule: { name: GONE, source: 'chat' }, list: broken });
  // Who has no model reads that alone.
  core.emit({ type: 'models', models: [] });
  core.emit({ type: 'status', status: NOTHING_LOADED });
  await page.shows('There is no model on this computer yet.');
  await stage.look(page, 'nobody');
  core.emit({ type: 'models', models });
  await page.button('New chat').click();
  await page.shows(/will be loaded when you ask/);
  await stage.look(page, 'proposed');
  // A real check of tiny models is over before a page shows it, and no file is known that crashes one.
  const checked = [model(OWN), model(OTHER, { is_being_checked: true }), model(GONE, UNSAFE)];
  core.emit({ type: 'models', models: checked });
  await page.openPage('Models');
  await page.shows('Checking…');
  await page.shows(/Its files are not opened again/);
  await stage.look(page, 'checks');
}
