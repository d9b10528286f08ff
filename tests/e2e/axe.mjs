// What axe finds on a page. Its rules see names, roles, contrast and structure; what only a person notices is in the flows.
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';

const source = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** Rules that are not in axe's default set, and were broken once. */
const MORE_RULES = {
  'label-content-name-mismatch': { enabled: true },
  'focus-order-semantics': { enabled: true },
};

/** Rules that depend on colours. */
export const COLOUR_RULES = ['color-contrast', 'link-in-text-block'];

/** Serious findings, one line each: the rule, and where it is broken. Checks all rules, or only those that are given. */
export async function findings(driver, only = []) {
  if (!(await driver.evaluate(() => 'axe' in window))) await driver.evaluate(source);
  const options = only.length > 0 ? { runOnly: only } : { rules: MORE_RULES };
  const violations = await driver.evaluate(async (options) => {
    // A dialog that fades in has too little contrast until it is there.
    const ends = (animation) =>
      animation.playState === 'running' && animation.effect.getComputedTiming().endTime < Infinity;
    await Promise.allSettled(
      document
        .getAnimations()
        .filter(ends)
        .map(({ finished }) => finished),
    );
    const found = await window.axe.run(document, { resultTypes: ['violations'], ...options });
    return found.violations.map(({ id, impact, nodes }) => ({
      id,
      impact,
      nodes: nodes.map(({ html }) => html),
    }));
  }, options);
  const serious = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
  return serious.flatMap(({ id, nodes }) => nodes.map((html) => `${id}: ${html.slice(0, 160)}`));
}
