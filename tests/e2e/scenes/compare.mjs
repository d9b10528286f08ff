// Comparisons, answers that had to be read again, and the time that was saved.

const QUESTION = 'May I keep a dog, and what do I have to tell the landlord?';
const FIRST = `Yes, if the landlord agrees. § 9 (2) asks for consent, and it may only be refused for a reason that concerns **your** case.

Write to them before the dog moves in. Name the breed and size, and that you are insured.`;
const SECOND = `You need permission first. The lease lists dogs under “animals that need consent” in § 9 (2).

Your letter should hold three things:

1. the breed,
2. proof of liability insurance,
3. a line that neighbours were asked.`;

const stats = (change) => ({
  model: 'mlx-community/Qwen3-4B-4bit',
  finish_reason: 'stop',
  prompt_tokens: 6236,
  cached_tokens: 6204,
  cache_note: null,
  miss: null,
  saved_ms: 49_000,
  generation_tokens: 212,
  queue_ms: 0,
  prompt_tps: 126,
  generation_tps: 44.1,
  time_to_first_token_ms: 412,
  process_bytes: 4.3e9,
  process_peak_bytes: 4.6e9,
  mlx_active_bytes: 4.1e9,
  mlx_peak_bytes: 4.4e9,
  ...change,
});
const OTHER = 'mlx-community/gemma-3-4b-it-4bit';
const MISSES = {
  prompt: { tokens: 2460, cause: 'system_prompt_changed', detail: 'Answer in short sentences.', at_ms: null },
  disk: { tokens: 6110, cause: 'disk_limit', detail: null, at_ms: -2 * 86_400_000 },
  model: { tokens: 3100, cause: 'other_model', detail: OTHER, at_ms: null },
  message: { tokens: 1240, cause: 'message_changed', detail: null, at_ms: null },
};

export async function compare(stage) {
  const core = await stage.fakeCore();
  core.modelNames = ['mlx-community/Qwen3-4B-4bit', OTHER];
  for (const [id, miss] of Object.entries(MISSES)) {
    core.addChat(id, `Miss of ${id}`, ['What about the notice period?', FIRST]);
    core.conversations.get(id).messages[1].stats = stats({ cached_tokens: 100, saved_ms: null, miss });
  }
  core.addChat('lease', 'Lease for the Berlin flat', [
    'What is in this lease?',
    'Twelve pages about a flat.',
    QUESTION,
    FIRST,
  ]);
  const answer = (index, change = {}) => ({
    ...core.message('lease', 3, change.text ?? ''),
    id: `compared-${index}`,
    versions: ['compared-0', 'compared-1'],
    status: 'streaming',
    model: core.modelNames[index],
    can_continue: false,
    ...change,
  });
  let answers = [answer(0), answer(1)];
  core.replies.compare = () => ({
    type: 'compared',
    conversation: { ...core.conversations.get('lease').conversation, is_streaming: true },
    messages: answers,
  });
  core.replies.get_versions = ({ message_ids }) => ({
    type: 'versions',
    messages: answers.filter(({ id }) => message_ids.includes(id)),
  });
  const timeSaved = {
    all_ms: 8_040_000,
    since_ms: 1_772_500_000_000,
    chats: [
      { conversation_id: 'lease', saved_ms: 4_980_000 },
      { conversation_id: 'disk', saved_ms: 49_000 },
    ],
  };
  core.replies.get_cache = {
    type: 'cache',
    cache: {
      disk_bytes: 6.2e9,
      disk_budget_bytes: 20e9,
      memory_bytes: 0.4e9,
      memory_budget_bytes: 1e9,
      num_chunks: 40,
      lookups: 30,
      prompt_tokens: 90_000,
      cached_tokens: 81_000,
      nodes: [],
      num_hidden_nodes: 0,
      named: [],
      problem: null,
      time_saved: timeSaved,
    },
  };
  core.replies.get_monitor_now = { type: 'monitor_now', machine_bytes: 16e9, points: [] };
  core.replies.get_monitor_day = {
    type: 'monitor_day',
    day: {
      until_ms: Date.now(),
      span_ms: 600_000,
      spans: [],
      models: [],
      chats: [],
      num_more_chats: 0,
      private: null,
      time_saved: timeSaved,
    },
  };
  for (const id of ['lease', 'disk']) {
    core.conversations.get(id).conversation.cache = {
      cached_tokens: 6400,
      cached_bytes: 900e6,
      own_bytes: 900e6,
      tier: 'disk',
      is_pinned: false,
      model: core.modelNames[0],
      fingerprint: 'f',
      is_whole: true,
      shared_with: [],
      loss: null,
    };
  }

  const page = await stage.open(core.url);
  for (const id of Object.keys(MISSES)) {
    await page.row(`Miss of ${id}`).click();
    await page.shows('What about the notice period?');
    await stage.look(page, `miss-${id}`);
  }
  await page.row('Lease for the Berlin flat').click();
  await page.shows('Twelve pages about a flat.');
  await page.button('Compare').click();
  await page.button('Ask both').waitFor();
  await stage.look(page, 'choice');
  await page.button('Ask both').click();
  await page.button('Compare again').waitFor();
  answers = [answer(0, { text: FIRST, segments: [{ kind: 'text', text: FIRST.slice(0, 150) }] }), answer(1)];
  core.emit({ type: 'message', message: answers[0] });
  await page.shows('Yes, if the landlord agrees.');
  await stage.look(page, 'waits');
  answers = [
    answer(0, { status: 'complete', text: FIRST, stats: stats(), segments: [{ kind: 'text', text: FIRST }] }),
    answer(1, { text: SECOND, segments: [{ kind: 'text', text: SECOND.slice(0, 170) }] }),
  ];
  core.emit({ type: 'message', message: answers[0] });
  core.emit({ type: 'beside', event: { type: 'message', message: answers[1] } });
  await page.shows('You need permission first.');
  await stage.look(page, 'writing');
  const miss = { ...MISSES.model, detail: core.modelNames[0] };
  const later = { model: OTHER, cached_tokens: 0, saved_ms: null, miss, time_to_first_token_ms: 57_000 };
  answers[1] = {
    ...answers[1],
    status: 'complete',
    segments: [{ kind: 'text', text: SECOND }],
    stats: stats({ ...later, generation_tps: 39 }),
  };
  core.emit({ type: 'beside', event: { type: 'message', message: answers[1] } });
  await page.shows('a line that neighbours were asked.');
  await stage.look(page, 'done');
  answers[1] = { ...answers[1], status: 'failed', stats: null, error: 'The model failed: out of memory.' };
  core.emit({ type: 'beside', event: { type: 'message', message: answers[1] } });
  await page.shows('out of memory');
  await stage.look(page, 'failed');
  await page.openPage('Saved context');
  await page.driver.getByTestId('time-saved').waitFor();
  await stage.look(page, 'saved');
  await page.openPage('Monitor');
  await page.driver.getByTestId('time-saved').waitFor();
  await stage.look(page, 'monitor');
}
