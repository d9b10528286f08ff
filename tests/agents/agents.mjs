// Coding agents against `cairn serve`, set up as the window says and with no flag beyond that (`make interop`): each answers a question
// for which it reads a file with a tool of its own (aider, which has no tools, edits the file), a second one in the same session, and a
// third after a restart of Cairn. The model says fixed texts, so nothing is learned about how well a trained model does the work.
// `node agents.mjs codex aider` runs these only; AIDER names the folder of aider's program.
import assert from 'node:assert/strict';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Home, root, run, target } from '../e2e/core.mjs';
import { ANSWERS, FACT, QUESTIONS, addModel, toolCall } from './model.mjs';

const here = fileURLToPath(new URL('.', import.meta.url));
const MODEL = 'agent';
/** How long one question of an agent may take; they ask their makers' servers for news first. */
const LIMIT_S = 300;

const bin = (name) => join(here, 'node_modules/.bin', name);

/** The window's own texts. They are TypeScript, which Node does not run. */
async function setUps() {
  const typescript = createRequire(join(root, 'ui/package.json'))('typescript');
  const source = await readFile(join(root, 'ui/src/server/setUps.ts'), 'utf8');
  const { outputText } = typescript.transpileModule(source, {
    compilerOptions: { module: typescript.ModuleKind.ESNext, target: typescript.ScriptTarget.ES2022 },
  });
  return import(`data:text/javascript,${encodeURIComponent(outputText)}`);
}

/** `export NAME=value` lines as an environment. */
function exported(text) {
  return Object.fromEntries(
    text.split('\n').map((line) => {
      const [, name, value] = /^export (\w+)=(.*)$/.exec(line);
      return [name, value];
    }),
  );
}

/** Writes what the window says for a program; returns the environment that it names. */
async function follow(parts, files) {
  let env = {};
  for (const { place, text } of parts) {
    if (place.endsWith('_terminal')) env = { ...env, ...exported(text) };
    else await writeFile(files[place], text);
  }
  return env;
}

const read = (name, argument, path) => toolCall({ name, arguments: { [argument]: path } });

/** How each agent is set up and asked, what the model says `first`, and what the agent shows when it has done that. */
const AGENTS = {
  'claude-code': {
    first: (project) => read('Read', 'file_path', join(project, 'README.md')),
    shows: ANSWERS.read,
    setUp: (parts) => follow(parts('claude_code'), {}),
    ask: (question, isFirst) => [bin('claude'), ['-p', ...(isFirst ? [] : ['--continue']), question]],
  },
  codex: {
    first: () => read('exec_command', 'cmd', 'cat README.md'),
    shows: ANSWERS.read,
    async setUp(parts, user) {
      await mkdir(join(user, '.codex'));
      return follow(parts('codex'), { codex_file: join(user, '.codex/config.toml') });
    },
    ask: (question, isFirst) => [bin('codex'), ['exec', ...(isFirst ? [] : ['resume', '--last']), question]],
  },
  continue: {
    first: () => read('Read', 'filepath', 'README.md'),
    shows: ANSWERS.read,
    async setUp(parts, user) {
      await mkdir(join(user, '.continue'));
      return follow(parts('continue'), { continue_file: join(user, '.continue/config.yaml') });
    },
    ask: (question, isFirst) => [bin('cn'), ['-p', ...(isFirst ? [] : ['--resume']), question]],
  },
  // The window has no set-up for it; this is what its documentation says of servers like OpenAI's.
  opencode: {
    first: (project) => read('read', 'filePath', join(project, 'README.md')),
    shows: ANSWERS.read,
    async setUp(_parts, user, { address, key, model }) {
      const options = { baseURL: `${address}/v1`, apiKey: key };
      const provider = { cairn: { npm: '@ai-sdk/openai-compatible', options, models: { [model]: {} } } };
      await mkdir(join(user, '.config/opencode'), { recursive: true });
      const config = JSON.stringify({ provider, model: `cairn/${model}` });
      await writeFile(join(user, '.config/opencode/opencode.json'), config);
      return {};
    },
    ask: (question, isFirst) => [bin('opencode'), ['run', ...(isFirst ? [] : ['--continue']), question]],
  },
  // As its documentation says; the window has no set-up for it either.
  aider: {
    first: () =>
      `README.md\n\`\`\`\n<<<<<<< SEARCH\n${FACT}\n=======\n${FACT} So is the fourth.\n>>>>>>> REPLACE\n\`\`\`\n`,
    shows: 'Applied edit to README.md',
    setUp: (_parts, _user, { address, key }) => ({ OPENAI_API_BASE: `${address}/v1`, OPENAI_API_KEY: key }),
    ask: (question, isFirst) => [
      join(process.env.AIDER ?? '', 'aider'),
      [
        ...['--model', `openai/${MODEL}`, '--edit-format', 'diff', '--yes-always', '--no-git', '--no-check-update'],
        ...(isFirst ? [] : ['--restore-chat-history']),
        ...['--message', question, 'README.md'],
      ],
    ],
  },
};

async function check(name, { first, shows, setUp, ask }) {
  const ended = [];
  const home = await Home.make({ after: (end) => ended.push(end) }, []);
  try {
    const project = join(home.folder, 'project');
    await mkdir(project);
    await writeFile(join(project, 'README.md'), `# Stones\n\n${FACT}\n`);
    // As people have it. Codex asks for one, and aider would write its history into the one around this folder.
    assert.equal((await run('git', ['init', '--quiet'], process.env, project)).code, 0);
    await addModel(home, MODEL, first(project));
    let core = await home.start();
    const { port, token } = core;
    const access = { address: `http://127.0.0.1:${port}`, key: token, model: MODEL, contextTokens: 2_000_000 };
    const texts = await setUps();
    const user = home.env.HOME;
    const own = await setUp((program) => texts.setUp(program, access), user, access);
    const env = { PATH: process.env.PATH, HOME: user, TERM: 'dumb', LANG: 'C.UTF-8', ...own };

    for (const [index, answer] of [shows, ANSWERS.second, ANSWERS.third].entries()) {
      if (index === 2) {
        await core.end('SIGTERM');
        core = await home.start({ port, token });
      }
      const [command, args] = ask(QUESTIONS[index], index === 0);
      const line = ['--kill-after=5', String(LIMIT_S), command, ...args];
      const { code, stdout, stderr } = await run('timeout', line, env, project);
      const said = `${stdout}\n${stderr}`;
      console.log(`$ ${name} ${args.join(' ')}\n${stdout.trim()}\n`);
      assert.equal(code, 0, `${name} ended with ${code}: ${said}`);
      assert.ok(said.includes(answer), `${name} did not show ${JSON.stringify(answer)}: ${said}`);
    }
  } finally {
    for (const end of ended) await end();
  }
}

// Codex keeps no programs of its own below the system's temporary folder, and reads no file without them.
process.env.TMPDIR = join(target, 'interop');
await mkdir(process.env.TMPDIR, { recursive: true });
const names = process.argv.slice(2);
const unknown = names.filter((name) => !(name in AGENTS));
assert.deepEqual(unknown, [], `no agent is called so; there are ${Object.keys(AGENTS)}`);
for (const name of names.length > 0 ? names : Object.keys(AGENTS)) await check(name, AGENTS[name]);
