// The shell's menu bar: the list of commands by menu, in the words of the window.
import { commands } from './commands';
import type { MenuBar, MenuCommand } from './platform/platform';
import { strings } from './text';
import { accelerator } from './ui/shortcuts';

export function menuBar(): MenuBar {
  const menus: Record<string, MenuCommand[]> = {};
  for (const { id, menu, shortcut } of commands) {
    (menus[menu] ??= []).push({
      id,
      label: strings.commands[id],
      accelerator: shortcut ? accelerator(shortcut) : null,
    });
  }
  return { commands: menus, words: strings.menus };
}
