// A model that says what an agent's run needs: first what makes the agent do something, then what came of it.
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

/** A sentence that is only in the file that the agent is to read. */
export const FACT = 'The third stone is granite.';

/** The questions of a person in turn; the model tells them apart by their first word. */
export const QUESTIONS = ['First: what does README.md say?', 'Second: anything else?', 'Third: are you still there?'];

/** The answers of the model, by the end of its prompt. */
export const ANSWERS = {
  read: 'I have read the file.',
  unread: 'The file did not come back.',
  second: 'There is nothing else.',
  third: 'I am still here, after a restart.',
};

// The words stand for prompts of letters: the number of letters says what the model is to say.
const TEMPLATE = `{#- tools <tool_call> -#}
{%- set last = messages[-1] -%}
{%- set asked = messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list -%}
{%- if last.role == 'tool' -%}
{%- if ${JSON.stringify(FACT)} in last.content %}READ{% else %}UNREAD{% endif -%}
{%- elif 'Third:' in asked[-1] -%}THIRD
{%- elif 'Second:' in asked[-1] -%}SECOND
{%- else -%}FIRST
{%- endif -%}`;

const END = 258;

/** How a model of this kind calls a tool. */
export const toolCall = (call) => `<tool_call>\n${JSON.stringify(call)}\n</tool_call>`;

/** Adds a model without weights that says this at first; see `cairn_lm::models::scripted`. */
export async function addModel(home, name, first) {
  await home.addTinyModel(name, 'tiny-chat');
  const { prompts, script } = written({ FIRST: first, ...upperCase(ANSWERS) });
  const template = TEMPLATE.replace(/\b(FIRST|READ|UNREAD|SECOND|THIRD)(?=\n|{%)/g, (word) => prompts[word]);
  const config = { model_type: 'scripted', vocab_size: 259, script, max_position_embeddings: 2_000_000 };
  await writeFile(join(home.modelFolder(name), 'config.json'), JSON.stringify(config));
  const file = join(home.modelFolder(name), 'tokenizer_config.json');
  const tokenizer = JSON.parse(await readFile(file, 'utf8'));
  await writeFile(file, JSON.stringify({ ...tokenizer, chat_template: template }));
}

const upperCase = (texts) => Object.fromEntries(Object.entries(texts).map(([key, text]) => [key.toUpperCase(), text]));

/**
 * One script of several texts, and the prompt that begins each. The next token depends on the sum of all before it, so a prompt
 * is as many letters as it takes for its text's sums to be its own.
 */
function written(texts) {
  const next = new Map();
  const prompts = {};
  for (const [name, text] of Object.entries(texts)) {
    const tokens = [...Buffer.from(text), END];
    for (let prompt = 'A'; ; prompt += 'A') {
      const sums = [];
      let sum = 65 * prompt.length;
      for (const token of tokens) {
        sums.push(sum);
        sum += token;
      }
      if (sums.some((at) => next.has(at))) continue;
      sums.forEach((at, index) => next.set(at, tokens[index]));
      prompts[name] = prompt;
      break;
    }
  }
  const script = Array(Math.max(...next.keys()) + END + 1).fill(END);
  for (const [at, token] of next) script[at] = token;
  return { prompts, script };
}
