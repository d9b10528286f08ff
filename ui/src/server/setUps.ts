// What a person copies into a program so that it asks Cairn: file or terminal lines, as each program documents them.

export const programs = ['codex', 'claude_code', 'continue', 'zed'] as const;
export type Program = (typeof programs)[number];

/** Stands where no key is known: a key is shown only when it is made. */
export const KEY_PLACEHOLDER = 'YOUR_KEY';

export interface Access {
  /** `http://` and where the server listens, without a path. */
  address: string;
  key: string;
  model: string;
  /** How many tokens the model reads. */
  contextTokens: number;
}

/** Where a text belongs. */
export type Place = 'codex_file' | 'codex_terminal' | 'claude_code_terminal' | 'continue_file' | 'zed_file';

export interface Part {
  place: Place;
  text: string;
}

const codex = ({ address, key, model }: Access): Part[] => [
  {
    place: 'codex_file',
    text: `model = ${JSON.stringify(model)}
model_provider = "cairn"

[model_providers.cairn]
name = "Cairn"
base_url = "${address}/v1"
env_key = "CAIRN_API_KEY"
wire_api = "responses"`,
  },
  { place: 'codex_terminal', text: `export CAIRN_API_KEY=${key}` },
];

// Claude Code asks a smaller model for small things, which is the same one here.
const claudeCode = ({ address, key, model }: Access): Part[] => [
  {
    place: 'claude_code_terminal',
    text: `export ANTHROPIC_BASE_URL=${address}
export ANTHROPIC_AUTH_TOKEN=${key}
export ANTHROPIC_API_KEY=
export ANTHROPIC_MODEL=${shellQuoted(model)}
export ANTHROPIC_DEFAULT_HAIKU_MODEL=${shellQuoted(model)}`,
  },
];

const continueDev = ({ address, key, model }: Access): Part[] => [
  {
    place: 'continue_file',
    text: `name: Cairn
version: 0.0.1
schema: v1
models:
  - name: Cairn
    provider: openai
    model: ${JSON.stringify(model)}
    apiBase: ${address}/v1
    apiKey: ${key}`,
  },
];

const zed = ({ address, model, contextTokens }: Access): Part[] => {
  const capabilities = { tools: true, images: false, parallel_tool_calls: false, prompt_cache_key: true };
  const available_models = [{ name: model, max_tokens: contextTokens, capabilities }];
  const provider = { api_url: `${address}/v1`, available_models };
  const settings = { language_models: { openai_compatible: { Cairn: provider } } };
  return [{ place: 'zed_file', text: JSON.stringify(settings, null, 2) }];
};

const writers: Record<Program, (access: Access) => Part[]> = {
  codex,
  claude_code: claudeCode,
  continue: continueDev,
  zed,
};

/** What is to be copied for a program, in this order. */
export function setUp(program: Program, access: Access): Part[] {
  return writers[program](access);
}

/** A word for a shell. A folder's name may have any sign in it. */
function shellQuoted(word: string): string {
  return /^[\w./:@-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}
