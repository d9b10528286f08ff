// How the interface is built and tested: one static folder that both the desktop shell and the HTTP server hand out.
import { svelte } from '@sveltejs/vite-plugin-svelte';
import { svelteTesting } from '@testing-library/svelte/vite';
import { defineConfig } from 'vitest/config';

// Where `npm run dev` finds a running `cairn serve --ui`.
const core = process.env.CAIRN_URL ?? 'http://127.0.0.1:11435';

export default defineConfig({
  plugins: [svelte(), svelteTesting()],
  clearScreen: false,
  build: {
    outDir: 'dist',
    emptyOutDir: true,
    target: ['safari17.5', 'chrome123'],
    // The CSP allows no data: scripts and no inline code, so nothing may be folded into the page.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  server: {
    port: 1420,
    strictPort: true,
    proxy: { '/api': { target: core, changeOrigin: true } },
  },
  test: {
    environment: 'happy-dom',
    // Read by the test of the contrasts; other style sheets are left out.
    css: { include: [/tokens\.css/] },
    include: ['src/**/*.test.ts'],
    restoreMocks: true,
    // Slow only where the machine builds something else meanwhile.
    testTimeout: 30_000,
  },
});
