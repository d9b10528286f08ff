// Read by the Svelte plugin and by svelte-check: runes everywhere, styles in files because the CSP forbids inline ones.
/** @type {import('@sveltejs/vite-plugin-svelte').SvelteConfig} */
export default {
  compilerOptions: {
    runes: true,
    css: 'external',
  },
};
