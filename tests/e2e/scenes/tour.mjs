// What Cairn is, in ten pictures for the README: one person's chats about a flat. Everything in it is made up, the figures too.
import { fakes } from '../fake-core.mjs';

const QWEN = 'mlx-community/Qwen3-4B-4bit';
const GEMMA = 'mlx-community/gemma-3-4b-it-4bit';
const HOUR_MS = 3_600_000;
const GB = 1e9;
const NOW_MS = Date.now();

const LEASE = { id: 'd1', name: 'Lease 2024.pdf', kind: 'pdf', num_bytes: 412_000, tokens: 11_930, counted_by: QWEN };
const CLAUSES = `Three clauses differ from what is common in Berlin. The second one matters most, because it is enforceable as written.

| Clause | What it says | Cost |
|:--|:--|--:|
| § 7 (3) | Small repairs up to €150 each, 8% of the yearly rent | up to €998 a year |
| § 11 | Index-linked rent, adjusted each January | about €23 a month |
| § 16 (2) | Painting on a fixed schedule | void, courts say |`;
const FORMULA = `The contract ties the rent to the consumer price index of the year before:

\`\`\`python
def new_rent(rent, index_now, index_then):
    # § 11 (1): rounded to full euros, never below today's rent
    return max(rent, round(rent * index_now / index_then))
\`\`\``;
const DOG = `Yes, if the landlord agrees. § 9 (2) asks for consent, and it may only be refused for a reason that concerns **your** case.

Write to them before the dog moves in. Name the breed and size, and that you are insured.`;
const OTHER_DOG = `You need permission first. The lease lists dogs under “animals that need consent” in § 9 (2).

Your letter should hold three things:

1. the breed,
2. proof of liability insurance,
3. a line that neighbours were asked.`;

const RISE = `In §§ 557 to 561 of the Civil Code. Three ways are common:

- **Local comparison** (§ 558): up to what similar flats cost, at most 20% in three years.
- **Steps** (§ 557a): fixed in the contract, each at least a year after the one before.
- **Index** (§ 557b): with the consumer price index, once a year.

Attach the commentary, and I can say which of them your contract uses.`;

const CHATS = [
  ['lease', 'Lease for the Berlin flat', 0.2],
  ['dog', 'A dog in the flat', 0.5],
  ['rent', 'When may rent rise?', 1],
  ['bread', 'Names for a sourdough', 2],
  ['garden', 'Plan for the garden in spring', 26],
  ['sinks', 'Explain attention sinks', 28],
  ['letter', 'Cover letter, second try', 31],
  ['light', 'A story about a lighthouse', 24 * 40],
  ['parser', 'Refactor the parser', 24 * 41],
];
/** Those whose context was deleted, or is there in part. */
const CACHES = { garden: { is_whole: false, cached_tokens: 900 }, letter: null };
const PERSONAS = [
  {
    id: 'p1',
    name: 'Editor',
    system_prompt: 'You edit letters. Short sentences, no flattery.',
    model: null,
    values: {},
  },
];
const FOLDERS = [{ id: 'f1', name: 'Moving house', system_prompt: 'You know German tenancy law.', model: null }];
const RUST = {
  start_text: 'The Rust Reference. This book is the primary reference for',
  end_text: 'and the linkage section.',
};
const STYLE = {
  start_text: 'Letters of this house are short. They begin with',
  end_text: 'and end without a flourish.',
};
const PRESETS = [{ id: 'x1', name: 'Exact', values: { temperature: 0 } }];
const REVIEWS = [
  ['The zip broke on the second day.', 0, 0.94],
  ['Came a week late and the box was wet.', 1, 0.88],
  ['Nice, but I saw it for half elsewhere.', 2, 0.91],
  ['Wrong size, nobody answers the phone.', 3, 0.48],
  ['Soft, warm, washes well.', 0, 0.97],
  ['Arrived the next morning, well packed.', 1, 0.95],
  ['Not worth what they ask for it.', 2, 0.83],
  ['Exchange took two calls, then it was fast.', 3, 0.72],
  ['Colour is not what the picture shows.', 0, 0.66],
  ['Cheap, and it feels cheap.', 2, 0.44],
];
const LABELS = ['Quality', 'Delivery', 'Price', 'Service'];

const stats = (change) => fakes.stats({ model: QWEN, prompt_tokens: 12_480, cached_tokens: 12_431, ...change });

export async function tour(stage) {
  const core = await stage.fakeCore();
  furnish(core);
  const page = await stage.open(core.url);
  const { driver } = page;

  await page.row('Lease for the Berlin flat').click();
  await page.shows('The contract ties the rent');
  const inspector = await page.inspector();
  await inspector.getByRole('meter').waitFor();
  await driver.mouse.move(600, 700);
  await stage.look(page, 'chat', { to: 'chat', toDark: 'chat-dark' });
  await inspector.getByText('Context', { exact: true }).evaluate((head) => head.scrollIntoView({ block: 'start' }));
  await stage.look(page, 'per-chat', { to: 'per-chat' });
  await page.button('Show the inspector').click();

  await driver.keyboard.press('Control+k');
  await driver.keyboard.type('lease');
  await page.dialog('Search').getByText('may end early').waitFor();
  await stage.look(page, 'search', { to: 'search' });
  await driver.keyboard.press('Escape');

  await page.row('A dog in the flat').click();
  await page.shows('May I keep a dog');
  await page.button('Compare').click();
  await page.button('Ask both').click();
  await page.button('Compare again').waitFor();
  await page.shows('a line that neighbours were asked.');
  await stage.look(page, 'compare', { to: 'compare' });
  await page.button('Close').click();

  await page.row('When may rent rise\\?').click();
  await page.shows('Reading 6,120');
  await stage.look(page, 'document', { to: 'document' });

  await page.row('Names for a sourdough').click();
  await page.answer.waitFor();
  await page.button('Probability').click();
  await driver.getByText('Likeliest').or(driver.getByText('Whole answer')).first().waitFor();
  await stage.look(page, 'probability', { to: 'probability' });
  await driver.keyboard.press('Escape');

  await page.openPage('Models');
  await driver.getByRole('tab', { name: 'Discover', exact: true }).click();
  await driver
    .getByRole('button', { name: /^Download / })
    .first()
    .waitFor();
  await stage.look(page, 'models', { to: 'models' });

  await page.openPage('Saved context');
  await driver.getByTestId('time-saved').waitFor();
  await stage.look(page, 'saved', { to: 'saved' });

  await page.openPage('Monitor');
  await driver.getByTestId('time-saved').waitFor();
  await driver.getByTestId('rate').waitFor();
  await stage.look(page, 'monitor', { to: 'monitor' });

  await page.openPage('Ask many');
  await driver
    .getByRole('button', { name: /reviews/ })
    .first()
    .click();
  await driver.locator('tbody tr').first().waitFor();
  await stage.look(page, 'ask', { to: 'ask' });
}

/** Gives the core what it is asked for. */
function furnish(core) {
  for (const [id, title, hours] of CHATS.toReversed()) {
    core.addChat(id, title, ['What about it?', 'It depends on the place.']);
    const saved = CACHES[id] === null ? null : fakes.saved({ ...CACHES[id], model: QWEN, tier: 'disk' });
    const model = { name: QWEN, source: 'answer', missing: null };
    const change = { updated_at_ms: NOW_MS - hours * HOUR_MS, cache: saved, model };
    Object.assign(core.conversations.get(id).conversation, change);
  }
  const lease = core.conversations.get('lease');
  const texts = [
    'Which clauses are unusual, and what do they cost me?',
    CLAUSES,
    'Write the index formula as a function, please.',
    FORMULA,
  ];
  lease.messages = texts.map((text, index) => core.message('lease', index, text));
  lease.messages[0].documents = [LEASE];
  lease.messages[3].stats = stats({ saved_ms: 51_000 });
  lease.messages[3].versions = ['lease-old', 'lease-3'];
  lease.conversation.cache = fakes.saved({
    model: QWEN,
    cached_tokens: 12_480,
    cached_bytes: 1.8 * GB,
    own_bytes: 1.8 * GB,
  });
  lease.conversation.folder_id = 'f1';
  for (const id of ['dog', 'rent']) core.conversations.get(id).conversation.folder_id = 'f1';
  const dog = core.conversations.get('dog');
  dog.messages[0].text = 'May I keep a dog, and what do I have to tell the landlord?';
  core.conversations.get('bread').messages[0].text = 'Suggest a name for a sourdough that never rises.';
  core.conversations.get('bread').messages[1] = core.message('bread', 1, wordsOf(NAME_TOKENS));
  const rent = core.conversations.get('rent');
  rent.messages = ['Where is it written how far a rent may rise?', RISE].map((text, index) =>
    core.message('rent', index, text),
  );
  const commentary = {
    id: 'd2',
    name: 'Tenancy law commentary.pdf',
    kind: 'pdf',
    num_bytes: 2_100_000,
    tokens: 9_600,
    counted_by: QWEN,
  };
  const reading = {
    type: 'reading',
    processed_tokens: 6_144,
    total_tokens: 9_624,
    cached_tokens: 5_120,
    document_tokens: 9_600,
  };
  core.drafts.set('rent', { documents: [commentary], reading });

  core.modelNames = [QWEN, GEMMA];
  const status = { ...fakes.status, engine: { state: 'ready', model: QWEN }, device: 'gpu', process_bytes: 4.3 * GB };
  status.models = [{ ...fakes.status.models[0], name: QWEN, bytes: 2.3 * GB }];
  Object.assign(status, { process_peak_bytes: 4.6 * GB, mlx_active_bytes: 3.9 * GB, cache_disk_bytes: 12.6 * GB });
  const points = [
    fakes.startingPoint('n1', {
      name: 'Rust reference 1.94',
      model: QWEN,
      tokens: 24_100,
      bytes: 3.6 * GB,
      num_conversations: 7,
      ...RUST,
    }),
    fakes.startingPoint('n2', {
      name: 'House style for letters',
      model: QWEN,
      tokens: 2310,
      bytes: 0.1 * GB,
      ...STYLE,
    }),
  ];
  core.bootstrap = { status, presets: PRESETS, personas: PERSONAS, folders: FOLDERS, named: points };
  const timeSaved = {
    all_ms: 16_260_000,
    since_ms: NOW_MS - 1400 * HOUR_MS,
    chats: [{ conversation_id: 'lease', saved_ms: 252_000 }],
  };
  core.replies = {
    get_context: {
      type: 'context',
      context: {
        model: QWEN,
        limit_tokens: 32_768,
        used_tokens: 12_480,
        beginning_tokens: 24,
        document_tokens: 11_930,
        summary_tokens: 0,
        answer_tokens: 2048,
        at_overflow: 'stop',
        system_prompt: '',
        own_system_prompt: 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.',
      },
    },
    get_settings: {
      type: 'settings',
      resolved: {
        settings: fakes.settings,
        from: { top_p: 'generation_config', temperature: 'chat' },
        thinking: { levels: ['off', 'on'], automatic: 'on' },
      },
    },
    search_messages: {
      type: 'found_messages',
      indexed_share: 1,
      found: [
        found('lease', 'assistant', ['The ', '*lease', ' may end early if both agree']),
        found('letter', 'user', ['free from March, when my ', '*lease', ' ends']),
      ],
    },
    compare: () => ({ type: 'compared', conversation: dog.conversation, messages: compared(core) }),
    get_versions: ({ message_ids }) => ({
      type: 'versions',
      messages: compared(core).filter(({ id }) => message_ids.includes(id)),
    }),
    get_probabilities: {
      type: 'probabilities',
      probabilities: { type: 'read', model: QWEN, tokens: NAME_TOKENS, num_tokens: NAME_TOKENS.length },
    },
    get_recommended_models: { type: 'recommended_models', memory_bytes: 16 * 2 ** 30, models: recommended() },
    get_cache: {
      type: 'cache',
      cache: fakes.overview({
        disk_bytes: 12.6 * GB,
        disk_budget_bytes: 40 * GB,
        memory_bytes: 1.4 * GB,
        memory_budget_bytes: 2 * GB,
        lookups: 210,
        prompt_tokens: 1_204_000,
        cached_tokens: 1_108_000,
        named: points,
        time_saved: timeSaved,
      }),
    },
    get_monitor_now: { type: 'monitor_now', machine_bytes: 16e9, points: lastMinutes() },
    get_monitor_day: {
      type: 'monitor_day',
      day: fakes.monitorDay({ until_ms: NOW_MS, time_saved: timeSaved, models: [day(QWEN)] }),
    },
    list_jobs: { type: 'jobs', jobs: [JOB] },
    get_job_rows: { type: 'job_rows', rows: jobRows() },
    get_job_charts: { type: 'job_charts', charts: fakes.charts && { ...fakes.charts, histogram: HISTOGRAM } },
  };
}

/** Both answers to the question about a dog. */
function compared(core) {
  const answer = (index, text, change) => ({
    ...core.message('dog', 1, text),
    id: `compared-${index}`,
    versions: ['compared-0', 'compared-1'],
    model: core.modelNames[index],
    stats: stats({ model: core.modelNames[index], ...change }),
  });
  return [
    answer(0, DOG, { saved_ms: 49_000, time_to_first_token_ms: 412, generation_tps: 44.1 }),
    answer(1, OTHER_DOG, { cached_tokens: 0, time_to_first_token_ms: 57_000, generation_tps: 39 }),
  ];
}

/** A message that was found; what begins with a star was searched for. */
function found(conversation_id, role, pieces) {
  const excerpt = pieces.map((piece) => ({ text: piece.replace(/^\*/, ''), is_match: piece.startsWith('*') }));
  const message_id = `${conversation_id}-1`;
  return { conversation_id, message_id, role, created_at_ms: NOW_MS, num_messages: 1, excerpt, document: null };
}

function recommended() {
  const model = (name, maker, gigabytes, [usual, longest], context, choices = []) =>
    fakes.recommended(`mlx-community/${name}`, {
      maker,
      download_bytes: gigabytes * GB,
      choices,
      facts: fakes.facts({
        context_length: context * 1024,
        memory: fakes.memory({
          context_tokens: 8192,
          total_bytes: usual * GB,
          longest_tokens: context * 1024,
          longest_bytes: longest * GB,
          budget_bytes: 12e9,
        }),
      }),
    });
  return [
    model('gemma-4-e4b-it-4bit', 'Google', 5.18, [5.3, 5.7], 128, ['start']),
    model('Qwen3.5-9B-4bit', 'Alibaba', 5.98, [6.3, 14.6], 256, ['better', 'code']),
    model('gemma-4-12B-it-4bit', 'Google', 6.77, [7.2, 11.2], 256),
    model('Qwen3.5-4B-MLX-4bit', 'Alibaba', 3.06, [3.4, 11.7], 256),
    model('gemma-4-e2b-it-4bit', 'Google', 3.58, [3.6, 4.1], 128),
    model('Qwen3-1.7B-4bit', 'Alibaba', 0.98, [2.1, 5.9], 40),
  ];
}

/** Five minutes: two answers, and a short one between. */
function lastMinutes() {
  return Array.from({ length: 300 }, (_, second) => {
    const writes = (second > 40 && second < 95) || (second > 150 && second < 172) || (second > 236 && second < 290);
    const begins = [41, 151, 237].includes(second);
    return fakes.monitorPoint(second, {
      at_ms: NOW_MS - (300 - second) * 1000,
      process_bytes: (3.6 + 0.7 * (second / 300)) * GB,
      mlx_active_bytes: (3.1 + 0.7 * (second / 300)) * GB,
      machine_used_bytes: 9.8 * GB,
      writing_tps: writes ? 43 + 2 * Math.sin(second / 5) : null,
      reading_tps: begins ? 250 : null,
      first_token_ms: begins ? 310 + second : null,
      prompt_tokens: begins ? 6000 : 0,
      cached_tokens: begins ? 5520 : 0,
    });
  });
}

function day(name) {
  return fakes.monitorRow(name, {
    num_answers: 41,
    read_tokens: 21_000,
    cached_tokens: 242_000,
    written_tokens: 18_200,
    saved_ms: 1_940_000,
  });
}

const JOB = fakes.job('reviews', {
  name: 'reviews.csv',
  model: QWEN,
  question: {
    instructions: 'What is this review mainly about?',
    kind: 'choice',
    options: LABELS.map((label) => ({ label, description: null })),
  },
  num_rows: 1200,
  num_answered: 742,
  rows_per_second: 4,
});
const HISTOGRAM = [0, 0, 0, 0, 0, 2, 6, 9, 14, 20, 24, 30, 38, 44, 60, 72, 90, 104, 118, 111];

function jobRows() {
  return REVIEWS.map(([text, at, probability], position) => {
    const rest = [0.7, 0.2, 0.1].map((share) => share * (1 - probability));
    const probabilities = LABELS.map((_, index) => (index === at ? probability : rest.pop()));
    return fakes.jobRow(position, { text, probabilities });
  });
}

/** An answer as its tokens, with what else could have stood there. */
const NAME_TOKENS = [
  [
    'Call',
    0.62,
    [
      ['How', 0.14],
      ['“', 0.11],
      ['Maybe', 0.06],
    ],
  ],
  [' it', 0.97, [[' him', 0.02]]],
  [
    ' **',
    0.81,
    [
      [' “', 0.15],
      [' Flat', 0.02],
    ],
  ],
  [
    'Flat',
    0.23,
    [
      ['Bread', 0.31],
      ['Dough', 0.19],
      ['Loaf', 0.08],
      ['Pete', 0.05],
    ],
  ],
  [
    ' Eric',
    0.34,
    [
      [' Stanley', 0.21],
      [' Earth', 0.12],
      [' Bread', 0.07],
    ],
  ],
  [
    '**.',
    0.88,
    [
      ['**', 0.07],
      ['**,', 0.03],
    ],
  ],
  [
    ' It',
    0.44,
    [
      [' He', 0.22],
      [' The', 0.13],
      [' A', 0.06],
    ],
  ],
  [
    ' stays',
    0.18,
    [
      [' will', 0.24],
      [' never', 0.17],
      [' is', 0.15],
      [' has', 0.07],
    ],
  ],
  [
    ' down',
    0.41,
    [
      [' flat', 0.33],
      [' low', 0.11],
    ],
  ],
  [
    ' to',
    0.57,
    [
      [',', 0.2],
      [' and', 0.12],
    ],
  ],
  [' earth', 0.93, [[' the', 0.04]]],
  [
    ',',
    0.71,
    [
      ['.', 0.22],
      [' and', 0.05],
    ],
  ],
  [
    ' and',
    0.66,
    [
      [' but', 0.12],
      [' so', 0.1],
    ],
  ],
  [
    ' forgives',
    0.12,
    [
      [' never', 0.28],
      [' it', 0.16],
      [' tastes', 0.09],
      [' keeps', 0.07],
    ],
  ],
  [
    ' you',
    0.78,
    [
      [' a', 0.08],
      [' everything', 0.06],
    ],
  ],
  [
    '.',
    0.64,
    [
      [' for', 0.21],
      [' when', 0.06],
    ],
  ],
].map(([text, probability, others], index) => {
  const all = [[text, probability], ...others].toSorted((one, other) => other[1] - one[1]);
  const bits = -all.reduce((sum, [, share]) => sum + share * Math.log2(share), 0);
  return {
    token: index,
    text,
    probability,
    rank: all.findIndex(([name]) => name === text),
    entropy_bits: bits,
    ends_answer: false,
    likeliest: all.map(([name, share], place) => ({
      token: name === text ? index : 1000 + 100 * index + place,
      text: name,
      probability: share,
      ends_answer: false,
    })),
  };
});

function wordsOf(tokens) {
  return tokens.map(({ text }) => text).join('');
}
