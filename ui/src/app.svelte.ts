// Connects the stores to one platform: asks for the state at the start and after a reconnect, and passes events on.
import { createContext } from 'svelte';
import { CacheStore } from './cache/cache.svelte';
import { ImportStore } from './cache/import.svelte';
import { ChatStore } from './chat/chat.svelte';
import { ChatModelStore } from './chat/chatModel.svelte';
import { titleOf } from './chat/conversations.svelte';
import { ChatFiles } from './chat/files.svelte';
import { Find } from './chat/find.svelte';
import { ContextStore } from './chat/context.svelte';
import { ChatRoom } from './chat/room.svelte';
import { FolderStore } from './chat/folders.svelte';
import { PersonaStore } from './chat/personas.svelte';
import { DocumentStore, ofConversation, ofFolder } from './documents/documents.svelte';
import { listFolder, ofFile, type Drop } from './documents/sources';
import { failureActions, noticeOptions } from './frame/notices';
import { SearchStore } from './frame/search.svelte';
import { JobStore } from './jobs/jobs.svelte';
import { DiscoverStore } from './models/discover.svelte';
import { DownloadStore } from './models/downloads.svelte';
import { ModelImportStore } from './models/modelImport.svelte';
import { problemSentence } from './models/problems';
import { ModelStore, type ModelsTab } from './models/models.svelte';
import { RevisionStore } from './models/revisions.svelte';
import { MonitorStore } from './monitor/monitor.svelte';
import { Navigation } from './navigation.svelte';
import { callModels, noticeSentence } from './platform/failures';
import {
  CallError,
  beginsAsChats,
  fileName,
  isChatFile,
  runOrReport,
  sentenceOf,
  type Connection,
  type Dropped,
  type MenuBar,
  type Platform,
} from './platform/platform';
import type { Event, FoundDocument, ModelProblem, NamedCache, Persona } from './platform/wire';
import { ServerStore } from './server/server.svelte';
import { HubAccessStore } from './settings/hubAccess.svelte';
import { PresetStore } from './settings/presets.svelte';
import { SettingsStore } from './settings/settings.svelte';
import { shortModelName } from './status/engine';
import { StatusStore } from './status/status.svelte';
import { strings } from './text';
import type { After } from './ui/clock';
import { MenuState } from './ui/menu.svelte';
import { Toasts } from './ui/toasts.svelte';
import { UndoStack } from './ui/undo';

/** How much of a JSON file is looked at to tell whether it is one of chats. */
const LOOK_BYTES = 65_536;
/** How long a message offers to start a chat from what was imported. */
const OFFER_MS = 20_000;

/** Owns the stores and the connection. */
export class App {
  readonly toasts = new Toasts();
  readonly undo = new UndoStack();
  readonly menu = new MenuState();
  readonly status = new StatusStore();
  readonly navigation: Navigation;
  readonly models: ModelStore;
  readonly downloads: DownloadStore;
  readonly discover: DiscoverStore;
  readonly modelImport: ModelImportStore;
  readonly revisions: RevisionStore;
  readonly hub: HubAccessStore;
  readonly settings: SettingsStore;
  readonly server: ServerStore;
  readonly jobs: JobStore;
  readonly chat: ChatStore;
  readonly chatModel: ChatModelStore;
  readonly context: ContextStore;
  readonly documents: DocumentStore;
  readonly room: ChatRoom;
  readonly folders: FolderStore;
  readonly personas: PersonaStore;
  readonly presets: PresetStore;
  readonly chatFiles: ChatFiles;
  readonly search: SearchStore;
  readonly find = new Find();
  readonly cache: CacheStore;
  readonly monitor: MonitorStore;
  readonly imports: ImportStore;

  connection = $state<Connection>('connecting');
  isReady = $state(false);
  /** Why the app could not start. */
  problem = $state<string | null>(null);

  /** Models that have come and are not in the list yet, or still being checked. */
  #arrivals: (string | null)[] = [];
  /** Events that arrive while the state is being fetched. They may be newer than the reply, so they are applied after it. */
  #pending: Event[] | null = null;

  constructor(
    private readonly platform: Platform,
    options: { storage?: Storage; nextFrame?: (run: () => void) => void; after?: After } = {},
  ) {
    const { toasts, undo } = this;
    callModels(shortModelName);
    this.navigation = new Navigation(options.storage);
    const report = (error: unknown) => this.report(error);
    this.models = new ModelStore({ platform, status: this.status, toasts, undo, report });
    this.revisions = new RevisionStore({
      platform,
      toasts,
      undo,
      report,
      isFromHub: () => this.models.items.some(({ source }) => source === 'hub_cache'),
    });
    const onDone = (name: string) => {
      this.revisions.arrived(name);
      this.#arrived(name);
    };
    this.downloads = new DownloadStore({ platform, toasts, undo, report, onDone, after: options.after });
    this.discover = new DiscoverStore({ platform, after: options.after });
    this.modelImport = new ModelImportStore({
      platform,
      toasts,
      onDone: () => this.#arrived(null),
      startChatting: (name) => void this.startChatting(name),
    });
    this.hub = new HubAccessStore(platform, toasts);
    this.settings = new SettingsStore(platform, report, (name) => this.models.ownMemory.renew(name));
    this.server = new ServerStore(platform, toasts, report);
    this.jobs = new JobStore({
      platform,
      models: this.models,
      status: this.status,
      storage: options.storage,
      toasts,
      undo,
      report,
    });
    this.chat = new ChatStore({ platform, toasts, undo, report, ...options });
    this.context = new ContextStore(platform, report);
    const startChat = (persona: Persona) => this.newChatAs(persona);
    this.personas = new PersonaStore({ platform, toasts, undo, report, startChat });
    this.presets = new PresetStore({ platform, settings: this.settings, toasts, undo, report });
    this.documents = new DocumentStore({ platform, chat: this.chat, toasts, undo, report });
    this.folders = new FolderStore({ platform, toasts, undo, report, storage: options.storage });
    this.chat.unsent.isHere = (what, id) =>
      (what === 'folder' ? this.folders.get(id) : this.personas.get(id)) !== undefined;
    this.chat.selection.isFolded = (row) => this.folders.hides(row);
    this.chat.actions.hasFolder = (id) => this.folders.get(id) !== undefined;
    this.chat.unsent.promptOfFolder = (id) => this.folders.get(id)?.system_prompt ?? '';
    this.chatModel = new ChatModelStore({
      platform,
      chat: this.chat,
      folders: this.folders,
      models: this.models,
      status: this.status,
      report,
    });
    this.room = new ChatRoom({
      chat: this.chat,
      chatModel: this.chatModel,
      context: this.context,
      documents: this.documents,
      models: this.models,
    });
    const openConversation = (id: string) => this.openConversation(id);
    const removeChats = (ids: readonly string[]) => this.chat.actions.remove(ids);
    const updatedAtMs = (id: string) => this.chat.list.get(id)?.updated_at_ms ?? null;
    this.chatFiles = new ChatFiles({ platform, toasts, undo, openConversation, removeChats, updatedAtMs });
    this.search = new SearchStore({ platform, after: options.after });
    const isWanted = () => this.navigation.page === 'saved';
    this.cache = new CacheStore({ platform, chat: this.chat, toasts, undo, report, isWanted });
    this.monitor = new MonitorStore(platform, options.after);
    this.imports = new ImportStore({
      platform,
      toasts,
      onImported: (point, isHidden) => this.#imported(point, isHidden),
    });
  }

  /** Connects; the returned function disconnects. */
  start(): () => void {
    const forgetDrops = this.platform.onFileDrop?.(
      (dropped) => void this.#dropped(dropped),
      (isOver) => (this.imports.isOver = isOver),
    );
    const disconnect = this.platform.subscribe(
      (event) => (this.#pending ? void this.#pending.push(event) : this.#receive(event)),
      (connection) => {
        this.connection = connection;
        if (connection === 'open') void this.bootstrap();
      },
    );
    return () => {
      forgetDrops?.();
      disconnect();
    };
  }

  /** Asks for the whole state. */
  async bootstrap(): Promise<void> {
    if (this.#pending) return;
    this.#pending = [];
    this.chat.asksForList();
    try {
      const reply = await this.platform.call({ type: 'bootstrap' });
      if (reply.type !== 'bootstrap') throw new Error(strings.connection.unexpectedReply);
      this.models.receive(reply.models);
      this.downloads.receive(reply.downloads);
      this.modelImport.restore(reply.model_import);
      this.settings.receive(reply.settings);
      this.monitor.reconnected();
      this.status.receive(reply.status);
      this.folders.receive(reply.folders);
      this.presets.receive(reply.presets);
      this.personas.receive(reply.personas);
      this.chat.start(reply.conversations, !this.isReady, reply.interrupted);
      this.isReady = true;
      this.problem = null;
      this.cache.receive({ type: 'named_caches', named: reply.named });
      if (this.cache.isOpen) void this.cache.refresh();
      if (this.server.current) void this.server.load();
      if (this.jobs.items) void this.jobs.load();
      // The titles of recommended models are their names on every page.
      void this.discover.loadRecommended();
      void this.discover.reconnected();
    } catch (error) {
      this.problem = sentenceOf(error);
    } finally {
      const pending = this.#pending;
      this.#pending = null;
      for (const event of pending) this.#receive(event);
    }
  }

  /** Whether the page itself has to take files that are dropped on it. */
  get takesDrops(): boolean {
    return this.isReady && this.platform.onFileDrop === undefined;
  }

  /** Gives the focus to what a person goes on with, where nothing else has it. */
  focusPage(): void {
    if (this.navigation.page === 'chat') this.chat.numFocusRequests++;
    else document.querySelector<HTMLElement>('#page h1')?.focus();
  }

  /** Whether a dialog or a menu covers the page; Escape closes that first. */
  get isCovered(): boolean {
    const { cache, imports } = this;
    const isFileDialogOpen = imports.isOpen || cache.exporting !== null;
    const isEditing = this.folders.editing !== null || this.personas.editing !== null;
    const isAboutChats = this.chatFiles.exporting !== null || isEditing;
    const isAboutDocuments = this.documents.shown !== null || this.documents.folder !== null;
    const isAsking =
      isAboutChats ||
      isAboutDocuments ||
      this.chat.isPromptOpen ||
      cache.savingId !== null ||
      this.models.isAsking ||
      this.modelImport.isAsked ||
      this.server.isAsking;
    return (
      isAsking || isFileDialogOpen || this.navigation.isPaletteOpen || this.models.isMenuOpen || this.menu.open !== null
    );
  }

  /** The shell has a menu bar, which listens to the shortcuts itself. */
  get hasMenuBar(): boolean {
    return this.platform.showMenus !== undefined;
  }

  showMenus(bar: MenuBar): void {
    this.platform.showMenus?.(bar);
  }

  /** Runs what is chosen in the shell's menus; the returned function ends it. */
  onCommand(run: (id: string) => void): (() => void) | undefined {
    return this.platform.onCommand?.(run);
  }

  /** The bar above the page belongs to the window, so that it is dragged there. */
  get hasOwnTitleBar(): boolean {
    return this.platform.hasOwnTitleBar ?? false;
  }

  newChat(): void {
    this.navigation.go('chat');
    this.chat.newChat();
  }

  /** A new chat in a folder, with the folder's model. */
  newChatIn(folderId: string): void {
    this.navigation.go('chat');
    this.chat.newChat(folderId);
    this.#useModel(this.folders.get(folderId)?.model ?? null);
  }

  /** A new chat with a persona, with its model. */
  newChatAs(persona: Persona): void {
    this.navigation.go('chat');
    this.chat.newChat(null, persona);
    this.#useModel(persona.model);
  }

  /** Asks for the name of a persona that is as the open chat, with this system prompt. */
  editPersonaFromChat(system_prompt = this.chat.systemPrompt): void {
    const { chat, chatModel, settings } = this;
    const { target } = settings;
    const isNew = target.type === 'draft' && target.scope === 'chat' && chat.selectedId === null;
    const isOpen = isNew || (target.type === 'chat' && target.id === chat.selectedId);
    const values = isOpen ? settings.parameters(true) : {};
    this.personas.edit({ system_prompt, model: chatModel.current?.name ?? null, values });
  }

  #useModel(name: string | null): void {
    if (name !== null && this.models.get(name) && !this.models.isLoaded(name)) void this.models.load(name);
  }

  newPrivateChat(): void {
    this.navigation.go('chat');
    void this.chat.newPrivateChat();
  }

  openConversation(id: string): void {
    this.navigation.go('chat');
    this.chat.select(id);
  }

  /** Opens a chat, with the focus on what is saved of it. */
  showSavedContext(id: string): void {
    this.openConversation(id);
    this.cache.panelAskedFor = id;
    this.navigation.show('inspector', true);
  }

  /** Opens a chat at a message that was found. */
  openMessage(id: string, messageId: string): void {
    this.navigation.go('chat');
    void this.chat.showMessage(id, messageId);
  }

  /** Opens a chat at the message that a document stands before, and the document where it has these words. */
  openDocument(id: string, messageId: string, { document, at_utf16 }: FoundDocument, words: string[]): void {
    this.openMessage(id, messageId);
    const place = at_utf16 === null ? null : { at: at_utf16, words };
    void this.documents.show(document, ofConversation(id), place);
  }

  /** Opens the chat above (-1) or below (1) the open one. */
  stepThroughChats(step: number): void {
    const { listed } = this.chat.list;
    const index = listed.findIndex(({ id }) => id === this.chat.selectedId);
    const goal = listed[index < 0 ? 0 : index + step];
    if (goal) this.openConversation(goal.id);
  }

  /** Shows or hides the inspector; in the place of the probabilities, if they are there. */
  toggleInspector(): void {
    const hasOther = this.chat.probabilities.hasPanel && !this.navigation.isNarrow('inspector');
    if (hasOther) this.chat.closeProbabilities();
    this.navigation.show('inspector', hasOther || !this.navigation.isShown('inspector'));
  }

  /** Whether there is a model to compare with, and nothing is written in the open chat. */
  get canCompare(): boolean {
    return this.models.loadable.length > 0 && this.chat.whyBusy === null;
  }

  /** Shows the choice of what is compared: for a message, for the draft, or for the last question. */
  compare(messageId: string | null = null): void {
    const own = this.chatModel.current?.name;
    const names = this.models.loadable.map(({ name }) => name);
    this.chat.openCompare(
      [...names].sort((a, b) => Number(b === own) - Number(a === own)),
      messageId,
    );
  }

  /** Shows the choice of what is compared, or closes the comparison. */
  toggleCompare(): void {
    const { chat } = this;
    if (!chat.compare.isOpenIn(chat.selectedId)) return this.compare();
    chat.compare.close();
    chat.numFocusRequests++;
  }

  /** Shows the field for the title of a chat, in its row. */
  rename(id: string): void {
    this.navigation.show('sidebar', true);
    this.chat.actions.renamingId = id;
  }

  /** Opens a new chat that begins with a starting point. */
  async startFrom(pointId: string): Promise<void> {
    if (await this.cache.start(pointId)) this.navigation.go('chat');
  }

  openPalette(): void {
    this.search.look('');
    this.navigation.isPaletteOpen = true;
    void this.discover.loadRecommended();
  }

  openModels(tab: ModelsTab = 'here'): void {
    this.models.tab = tab;
    this.navigation.go('models');
  }

  /** Shows what is set for one model. */
  openModelSettings(name: string): void {
    this.openModels();
    this.models.settingsName = name;
  }

  /** Opens a new chat with a model, which is loaded for it. */
  async startChatting(name: string): Promise<void> {
    this.newChat();
    if (!this.models.isLoaded(name)) await this.models.load(name);
    this.chat.numFocusRequests++;
  }

  /** Takes what was dropped on the page: a prompt cache, a model, chats, texts to ask about, or documents. */
  async dropFiles(files: File[], folder: FileSystemDirectoryEntry | null): Promise<void> {
    this.imports.isOver = false;
    const [file] = files;
    if (folder) return this.#dropFolder(folder);
    if (!file) return;
    if (files.length > 1) return this.#attach({ folder: null, files: files.map((one) => ofFile(one)), isCut: false });
    if (this.navigation.page === 'ask' && /\.(csv|tsv|jsonl|ndjson|txt)$/i.test(file.name)) this.jobs.take(file);
    else if (isChatFile(file.name) && beginsAsChats(await file.slice(0, LOOK_BYTES).text()))
      void this.chatFiles.drop(file);
    else if (/\.gguf$/i.test(file.name)) void this.modelImport.drop(file);
    else if (/\.safetensors$/i.test(file.name)) void this.imports.drop(file);
    else await this.#attach({ folder: null, files: [ofFile(file)], isCut: false });
  }

  /** The files of a folder are documents, unless it is a model's: such a folder cannot be handed over by a page. */
  async #dropFolder(folder: FileSystemDirectoryEntry): Promise<void> {
    const drop = await listFolder(folder);
    const names = new Set(drop.files.map(({ name }) => name));
    if (names.has('config.json') && [...names].some((name) => name.endsWith('.safetensors')))
      this.toasts.show('info', strings.models.import.folderInBrowser);
    else await this.#attach(drop);
  }

  async #attach(drop: Drop): Promise<void> {
    // The dialog of a folder takes what is dropped while it is open.
    if (this.folders.editing) {
      const id = await this.folders.make();
      return id === null ? undefined : this.documents.drop(drop, ofFolder(id));
    }
    this.navigation.go('chat');
    await this.documents.drop(drop);
  }

  async #dropped(dropped: Dropped): Promise<void> {
    if (dropped.type === 'cache') return this.imports.dropped(dropped.preview);
    this.imports.isOver = false;
    if (dropped.type === 'chats') return this.chatFiles.dropped(dropped.name, dropped.imported);
    if (dropped.type === 'model') return this.modelImport.dropped(dropped.imported);
    try {
      await this.#attach(await dropped.dropped);
    } catch (error) {
      this.report(error);
    }
  }

  /** A model has come; without a name it is the one that is new in the list. */
  #arrived(name: string | null): void {
    this.#arrivals = [...this.#arrivals, name];
    this.#greetArrivals();
  }

  /** Once a model that has come can be loaded, the first one is, and others are offered. */
  #greetArrivals(): void {
    const { models, status } = this;
    this.#arrivals = this.#arrivals.filter((name) => {
      const model = name === null ? models.loadable[0] : models.get(name);
      if (!model || model.is_being_checked) return true;
      const isOnly = models.loadable.length === 1 && model.problem === null;
      if (isOnly && status.model === null) void this.#useFirst(model.name);
      else if (name !== null) this.#offer(name, model.problem);
      return false;
    });
  }

  async #useFirst(name: string): Promise<void> {
    if (await this.models.load(name)) this.chat.numFocusRequests++;
  }

  #offer(name: string, problem: ModelProblem | null): void {
    const title = shortModelName(name);
    if (problem) {
      const sentence = problemSentence(problem);
      return void this.toasts.show('warning', strings.models.notReady(title, sentence));
    }
    this.toasts.show('info', strings.models.ready(title), {
      milliseconds: OFFER_MS,
      actions: [{ label: strings.models.startChatting, run: () => void this.startChatting(name) }],
    });
  }

  /** Saves code of an answer as a file that is called as the chat. */
  async saveText(text: string, ending: string): Promise<void> {
    const { selected } = this.chat;
    const name = fileName(selected ? titleOf(selected) : '', ending, strings.content.code);
    await this.platform.saveText(text, name).catch((error: unknown) => this.report(error));
  }

  openSaved(highlightedId: string | null = null): void {
    this.navigation.go('saved');
    this.cache.open(highlightedId);
  }

  /** Lets a quiet start load and resume what an ordinary one does. */
  async endQuietStart(): Promise<void> {
    const report = (error: unknown) => this.report(error);
    await runOrReport({ platform: this.platform, report }, { type: 'end_quiet_start' });
  }

  /** Opens the page of jobs at one of them. */
  openJob(id: string): void {
    this.navigation.go('ask');
    this.jobs.show(id);
  }

  /** Back to the chat that was open. */
  closePage(): void {
    this.navigation.go('chat');
    this.chat.numFocusRequests++;
  }

  #imported(point: NamedCache, isHidden: boolean): void {
    // The user who closed the dialog is doing something else by now.
    if (!isHidden) this.openSaved(point.id);
    this.toasts.show('info', strings.imports.imported(point.name), {
      milliseconds: OFFER_MS,
      actions: [{ label: strings.startingPoints.start, run: () => void this.startFrom(point.id) }],
    });
  }

  report(error: unknown): void {
    this.toasts.show('error', sentenceOf(error), { actions: failureActions(this, error) });
    if (!(error instanceof CallError) || error.code !== 'no_model') return;
    // Whoever has models stays where the question is: once they are listed anew, it says there what can be done.
    if (this.models.items.length === 0) this.openModels('discover');
    else void this.models.refresh();
  }

  #receive(event: Event): void {
    switch (event.type) {
      case 'models':
        this.models.receive(event.models);
        return this.#greetArrivals();
      case 'downloads':
        return this.downloads.receive(event.downloads);
      case 'model_import':
        return this.modelImport.receive(event.import);
      case 'folders':
        return this.folders.receive(event.folders);
      case 'presets':
        return this.presets.receive(event.presets);
      case 'personas':
        return this.personas.receive(event.personas);
      case 'conversations_changed':
        return void this.bootstrap();
      case 'settings':
        return this.settings.receive(event.settings);
      case 'job':
      case 'job_deleted':
        return this.jobs.receive(event);
      case 'api_server':
      case 'api_keys':
      case 'api_request':
        return this.server.receive(event);
      case 'status':
        return this.status.receive(event.status);
      case 'message':
        if (event.message.stats) this.monitor.answered();
        return this.chat.receive(event);
      case 'notice':
        return void this.toasts.show(event.level, noticeSentence(event), noticeOptions(this, event.kind));
      case 'documents':
      case 'documents_reading':
        return this.documents.receive(event);
      case 'cache_changed':
      case 'named_caches':
        return this.cache.receive(event);
      default:
        this.chat.receive(event);
    }
  }
}

export const [getApp, setApp] = createContext<App>();
