// Picks the platform: the desktop shell when it is there, otherwise the server that handed out this page.
import type { Platform } from './platform';

export async function openPlatform(): Promise<Platform> {
  if ('__TAURI_INTERNALS__' in window) {
    const { TauriPlatform } = await import('./tauri');
    return new TauriPlatform();
  }
  const [{ HttpPlatform }, { takeToken }] = await Promise.all([import('./http'), import('./token')]);
  // A fresh address pasted into this tab changes only the fragment, which loads nothing by itself.
  window.addEventListener('hashchange', () => location.reload());
  return new HttpPlatform(takeToken(location, history, sessionStorage));
}
