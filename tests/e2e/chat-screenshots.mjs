// Pictures of answers with reasoning and tool calls, of one that is held, and of messages that wait, into e2e/ of the target folder. Unlike
// the README's pictures they need the build for tests, whose models say what they are told to.
import { mkdir, mkdtemp } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Home, target } from './core.mjs';
import { launchBrowser, Page } from './page.mjs';

const SIZES = { '': { width: 1240, height: 900 }, '-narrow': { width: 420, height: 800 } };
const ANSWER = `<think>
The person plans a walk on the ridge, so the wind at 2,000 metres matters most.

1. Look up the forecast for the hut.
2. Compare it with the rule of thumb: *above 60 km/h nobody walks a ridge*.
</think>

I look up the forecast for both days.

<tool_call>
{"name": "look_up_forecast", "arguments": {"place": "Rotwandhaus", "days": ["Saturday", "Sunday"], "altitude_m": 1737, "with_wind": true}}
</tool_call>
<tool_call>
{"name": "look_up_forecast", "arguments": {"place": Rotwandhaus}}
</tool_call>

On **Saturday** the wind stays below 40 km/h; on Sunday a front comes from the west. Walk on Saturday, and be off the ridge by three in the afternoon.`;

const home = new Home(await mkdtemp(join(tmpdir(), 'cairn-pictures-')));
const folder = join(target, 'e2e');
const browser = await launchBrowser();
try {
  await mkdir(folder, { recursive: true });
  await home.addScripted('thinker', ANSWER);
  await home.addScripted('parrot', 'abcdefghijklmnopq rstuvwxyz,.', { isEndless: true });
  await home.addTinyModel('slow', 'tiny-chat');
  await home.setTemplate('slow', 'Q<think>{# </think> #}');
  const core = await home.start();
  await core.set({ temperature: 0, max_tokens: 1_000_000 });
  await core.call({ type: 'load_model', name: 'thinker' });
  const page = new Page(await browser.newPage());
  const look = async (name) => {
    for (const [suffix, size] of Object.entries(SIZES)) {
      await page.driver.setViewportSize(size);
      for (const colorScheme of ['light', 'dark']) {
        await page.driver.emulateMedia({ colorScheme });
        await page.driver.mouse.move(5, 400);
        const path = join(folder, `chat-${name}${suffix}-${colorScheme}.png`);
        await page.driver.screenshot({ path, animations: 'disabled' });
      }
    }
    await page.driver.setViewportSize(SIZES['']);
  };
  await page.driver.setViewportSize(SIZES['']);
  await page.open(core.url);
  await page.button('Model: thinker').waitFor();
  await page.ask('Can we walk the ridge at the weekend?');
  await look('segments');
  await page.answer.getByRole('button', { name: /^Thought for/ }).click();
  await look('reasoning');
  await core.call({ type: 'load_model', name: 'parrot' });
  await page.button('New chat').click();
  await page.send('Say something');
  await page.driver.getByRole('group', { name: 'This answer repeats itself.' }).waitFor();
  await look('held');
  await page.button('Stop').last().click();
  await core.call({ type: 'load_model', name: 'slow' });
  await core.set({ holds_loops: false });
  await page.button('New chat').click();
  await page.send('How high is it?');
  await page.answer.getByRole('button', { name: /^Thinking…/ }).waitFor();
  for (const text of [
    'And how long does it take from the valley?',
    'Write a list of what to take along, for two people and a dog',
  ]) {
    await page.message.fill(text);
    await page.message.press('Enter');
  }
  await look('waiting');
  await page.stop.click();
  await page.finished();
  await look('stays');
  await page.driver.evaluate(() => localStorage.setItem('cairn.language', 'de'));
} finally {
  await browser.close();
  await home.remove();
}
