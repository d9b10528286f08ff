// What can be done with a model on this machine, by the menu of its row.
import type { App } from '../app.svelte';
import type { Model } from '../platform/wire';
import { strings } from '../text';
import type { MenuItem } from '../ui/menu.svelte';

export function modelMenuItems(app: App, model: Model): MenuItem[] {
  const { models } = app;
  const { name } = model;
  const items: MenuItem[] = [];
  if (models.isLoaded(name)) items.push({ label: strings.models.unload, run: () => void models.unload() });
  else if (models.isBusy(name)) items.push({ label: strings.models.stopLoading, run: () => void models.stopLoading() });
  else if (model.problem === null && !model.is_set_aside) {
    const isDisabled = models.asked !== null || model.is_being_checked;
    items.push({ label: strings.models.load, run: () => void models.load(name), isDisabled });
    items.push({ label: strings.models.startChatting, run: () => void app.startChatting(name), isDisabled });
  }
  if (model.problem === null) {
    items.push({ label: strings.models.settings, run: () => app.openModelSettings(name) });
  }
  items.push({
    label: strings.models.checkAgain,
    run: () => void models.check(name),
    isDisabled: model.is_being_checked,
  });
  if (model.can_delete) {
    items.push({ label: strings.models.delete, run: () => void models.askForDeletion(name), isDestructive: true });
  }
  return items;
}
