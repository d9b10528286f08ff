// How answers are written: while they come and when they are whole, with formulas, code, tables and footnotes; and the bar that finds
// text in a chat.

const STREAMING = `## Two ways to cross

The ferry takes **40 minutes**, the bridge 25. Prices as of *spring*:

| Way | Time | Price | Note |
|:----|-----:|------:|:-----|
| Ferry | 40 min | $12 | runs **only in summ`;
const RICH = `The force of the wind on a cairn of height $h$ grows with its square:[^1]

$$
M = \\int_0^{h} \\tfrac{1}{2} \\rho\\, v(z)^2\\, b(z)\\, z \\, dz \\;\\le\\; m g \\frac{b_0}{2}
$$

So for \\(v = 25\\,\\mathrm{m/s}\\) the widest base $b_0 \\ge \\sqrt{2M / mg}$ costs $40, or $55 with transport. In $\\mathbb{R}^3$:

\\[
A = \\begin{pmatrix} \\cos\\theta & -\\sin\\theta \\\\ \\sin\\theta & \\cos\\theta \\end{pmatrix}, \\qquad f(x) = \\begin{cases} x^2 & \\text{if } x > 0 \\\\ 0 & \\text{otherwise} \\end{cases}
\\]

- [x] Measure the place
- [ ] Carry H<sub>2</sub>O, press <kbd>⌘</kbd><kbd>F</kbd> to find it
- [ ] Read https://example.org/a/very/long/path/that/goes/on/and/on/without/any/end/in/sight/index.html?with=a&query=too

> Whoever adds a stone takes the way on.

[^1]: See *Mountain Cairns*, 1976, with \`stability.py\`.
[^2]: Measured on the ridge.`;
const CODE = `Run this first:

1. Make the folder:

   \`\`\`bash
   mkdir -p ~/cairns && cd ~/cairns
   \`\`\`
2. Then the program. It is short:

   \`\`\`python
   def stability_of(stone: Stone, others: list[Stone]) -> float:
       """How far the centre of mass is inside of the base, in metres, and a line that is longer than the column is wide."""
       base = [other for other in others if other.touches(stone)]
       return 0.0 if len(base) < 3 else min(edge.distance(stone.centre) for edge in hull(base))
   \`\`\`
   - it needs \`hull\`
   - and patience

\`\`\`rust
fn main() {
    let stones: Vec<Stone> = read("stones.json"); // all of them
    println!("{} stones`;
const SCRIPTS = `هذا نص **مهم** مع \`code\` ورقم 42:

1. أولاً
2. ثانياً

これは**「重要」**です。请**注意：**这里，$x^2$。

| الاسم | العدد |
|---|---:|
| حجر | 12 |`;

export async function answers(stage) {
  const core = await stage.fakeCore();
  const chats = { table: STREAMING, rich: RICH, code: CODE, scripts: SCRIPTS };
  for (const [id, text] of Object.entries(chats)) {
    core.addChat(id, `Chat ${id}`, [`Tell me about ${id}`, text]);
    core.conversations.get(id).messages[1].status = ['table', 'code'].includes(id) ? 'streaming' : 'complete';
  }
  const many = Array.from({ length: 400 }, (_, index) =>
    index % 40 === 1 ? 'The ridge is **windy** today.' : `Line ${index} of a long chat.`,
  );
  core.addChat('long', 'Chat long', many);
  const page = await stage.open(core.url);
  for (const id of Object.keys(chats)) {
    await page.row(`Chat ${id}`).click();
    await page.shows(`Tell me about ${id}`);
    if (id === 'rich') await page.driver.locator('math').first().waitFor();
    await stage.look(page, id);
  }
  await page.row('Chat long').click();
  await page.shows('Line 399');
  await page.driver.keyboard.press('Control+f');
  await page.box('Find in this chat').fill('WINDY');
  await page.shows('of 10');
  await page.button('Previous match').click();
  await stage.look(page, 'find');
  await page.box('Find in this chat').fill('a word that is nowhere');
  await page.shows('Nothing found');
  await stage.look(page, 'find-none');
}
