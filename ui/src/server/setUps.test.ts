// What is copied into programs has address, key and model where each program looks for them.
import { expect, test } from 'vitest';
import { setUp, type Access, type Program } from './setUps';

const access: Access = {
  address: 'http://127.0.0.1:11435',
  key: 'cairn-beef',
  model: 'owner/model',
  contextTokens: 4096,
};

/** All lines that a person copies. */
const linesOf = (program: Program, of = access) => setUp(program, of).flatMap(({ text }) => text.split('\n'));

test('Codex has a provider in its file, and the key in the environment', () => {
  const lines = linesOf('codex');
  expect(lines).toContain('model = "owner/model"');
  expect(lines).toContain('base_url = "http://127.0.0.1:11435/v1"');
  expect(lines).toContain('wire_api = "responses"');
  expect(lines).toContain('env_key = "CAIRN_API_KEY"');
  expect(setUp('codex', access).at(-1)).toEqual({
    place: 'codex_terminal',
    text: 'export CAIRN_API_KEY=cairn-beef',
  });
});

test('Claude Code has the address without /v1', () => {
  const lines = linesOf('claude_code');
  expect(lines).toContain('export ANTHROPIC_BASE_URL=http://127.0.0.1:11435');
  expect(lines).toContain('export ANTHROPIC_AUTH_TOKEN=cairn-beef');
  expect(lines).toContain('export ANTHROPIC_MODEL=owner/model');
});

test('Continue has a model of an OpenAI provider', () => {
  const text = linesOf('continue').join('\n');
  expect(text).toContain('    provider: openai\n    model: "owner/model"\n    apiBase: http://127.0.0.1:11435/v1\n');
  expect(text).toMatch(/ {4}apiKey: cairn-beef$/);
});

test('Zed has settings as JSON, without the key, which it asks for itself', () => {
  const text = linesOf('zed').join('\n');
  const { Cairn } = JSON.parse(text).language_models.openai_compatible;
  expect(Cairn.api_url).toBe('http://127.0.0.1:11435/v1');
  expect(Cairn.available_models[0]).toMatchObject({ name: 'owner/model', max_tokens: 4096 });
  expect(text).not.toContain('cairn-beef');
});

test('a name with any sign in it stays one word', () => {
  const odd = { ...access, model: `it's "a" model` };
  expect(linesOf('claude_code', odd)).toContain(`export ANTHROPIC_MODEL='it'\\''s "a" model'`);
  expect(linesOf('codex', odd)).toContain(`model = "it's \\"a\\" model"`);
  expect(linesOf('continue', odd)).toContain(`    model: "it's \\"a\\" model"`);
});
