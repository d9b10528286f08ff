// What axe finds on a page. Its rules see names, roles, contrast and structure; what only a person notices is in the flows.
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';

const source = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** Rules that are not in axe's default set, and were broken once. */
const MORE_RULES = {
  'label-content-name-mismatch': { enabled: true },
  'focus-order-semantics': { enabled: true },
};

/** The serious findings, one line each: the rule, and where it is broken. */
export async function findings(driver) {
  await driver.evaluate(source);
  const violations = await driver.evaluate(async (rules) => {
    // A dialog that fades in has too little contrast until it is there.
    const ends = (animation) =>
      animation.playState === 'running' && animation.effect.getComputedTiming().endTime < Infinity;
    await Promise.allSettled(
      document
        .getAnimations()
        .filter(ends)
        .map(({ finished }) => finished),
    );
    const found = await window.axe.run(document, {
      resultTypes: ['violations'],
      rules,
    });
    return found.violations.map(({ id, impact, nodes }) => ({
      id,
      impact,
      nodes: nodes.map(({ html }) => html),
    }));
  }, MORE_RULES);
  const serious = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
  return serious.flatMap(({ id, nodes }) => nodes.map((html) => `${id}: ${html.slice(0, 160)}`));
}
