// Picks the platform: the desktop shell if the page runs in it, otherwise the server that sent the page.
import type { Platform } from './platform';

export async function openPlatform(): Promise<Platform> {
  if ('__TAURI_INTERNALS__' in window) {
    const { TauriPlatform } = await import('./tauri');
    return new TauriPlatform();
  }
  const [{ HttpPlatform }, { takeToken }] = await Promise.all([import('./http'), import('./token')]);
  // A new link pasted into this tab changes only the fragment, which alone does not reload the page.
  window.addEventListener('hashchange', () => location.reload());
  return new HttpPlatform(takeToken(location, history, sessionStorage));
}
