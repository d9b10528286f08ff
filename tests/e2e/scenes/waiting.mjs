// What a model waits for: a hub that does not answer, and a measurement after an import.
import { fakes } from '../fake-core.mjs';

const { download, facts, model, recommended, status } = fakes;

const OTHER = 'mlx-community/Llama-3.2-3B-Instruct-4bit';

const NOTHING_LOADED = { ...status, engine: { state: 'empty' }, model_fingerprint: null, models: [] };
const loaded = (name) => ({
  ...status,
  engine: { state: 'ready', model: name },
  models: [{ name, fingerprint: 'f', bytes: 2.3e9, draft: null }],
});

export async function waiting(stage) {
  const core = await stage.fakeCore();
  const name = 'mlx-community/Qwen3-4B-4bit';
  const asking = download(name, { bytes: 0, total_bytes: 0, files: [], seconds_left: null, bytes_per_second: 0 });
  core.bootstrap = { models: [], status: NOTHING_LOADED, downloads: [asking] };
  core.replies.get_recommended_models = {
    type: 'recommended_models',
    memory_bytes: 2 ** 34,
    models: [recommended(name)],
  };
  const page = await stage.open(core.url);
  await page.shows('The hub does not answer yet');
  await stage.look(page, 'hub-silent');

  const rounded = { num_tensors: 30, relative_error: 0.0034, perplexity: null };
  const imported = (change) => model('Tiny-Llama', { source: 'imported', ...change });
  core.emit({ type: 'downloads', downloads: [] });
  core.emit({ type: 'status', status: loaded(OTHER) });
  core.emit({
    type: 'models',
    models: [model(OTHER), imported({ is_being_measured: true, facts: facts({ rounded_weights: rounded }) })],
  });
  await page.openPage('Models');
  await page.button('Cancel, Comparison of Tiny-Llama with the original').waitFor();
  await stage.look(page, 'measuring');
  const perplexity = { before: 12.1, after: 12.4 };
  core.emit({
    type: 'models',
    models: [model(OTHER), imported({ facts: facts({ rounded_weights: { ...rounded, perplexity } }) })],
  });
  await page.shows(/Answers about as well/);
  await stage.look(page, 'measured');
}
