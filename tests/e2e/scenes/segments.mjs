// Answers with reasoning and tool calls, one that is held, and messages that wait. They need the build for tests, whose models say what
// they are told to.

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

export async function segments(stage) {
  const home = await stage.home();
  await home.addScripted('thinker', ANSWER);
  await home.addScripted('parrot', 'abcdefghijklmnopq rstuvwxyz,.', { isEndless: true });
  await home.addTinyModel('slow', 'tiny-chat');
  await home.setTemplate('slow', 'Q<think>{# </think> #}');
  const core = await home.start();
  await core.set({ temperature: 0, max_tokens: 1_000_000 });
  await core.call({ type: 'load_model', name: 'thinker' });
  const page = await stage.open(core.url);
  await page.button('Model: thinker').waitFor();
  await page.ask('Can we walk the ridge at the weekend?');
  await stage.look(page, 'folded');
  await page.answer.getByRole('button', { name: /^Thought for/ }).click();
  await stage.look(page, 'reasoning');
  await core.call({ type: 'load_model', name: 'parrot' });
  await page.button('New chat').click();
  await page.send('Say something');
  await page.driver.getByRole('group', { name: 'This answer repeats itself.' }).waitFor();
  await stage.look(page, 'held');
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
  await stage.look(page, 'waiting');
  await page.stop.click();
  await page.finished();
  await stage.look(page, 'stays');
}
