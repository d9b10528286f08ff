// Models: on this machine, on the hub, and on their way from there.
import { costOf, type RoundingCost } from '../../models/rounding';
import type { ModelProblemKind, ModelProblemWhat, PerplexityChange } from '../../platform/wire';
import { f, machine, tokens } from './formats';

/** What exactly is wrong with a model, as a clause. */
export type ProblemWords = {
  [Type in ModelProblemWhat['type']]: (what: Extract<ModelProblemWhat, { type: Type }>) => string;
};

const problemWhats: ProblemWords = {
  no_snapshot: () => 'its download did not finish',
  file_missing: (what) => `${what.file} is missing`,
  no_weights: () => 'it has no .safetensors file',
  file_unreadable: (what) => `${what.file} cannot be read (${what.reason})`,
  folder_unreadable: (what) => `its folder cannot be read (${what.reason})`,
  no_model_type: () => 'config.json does not say what architecture it is of',
  architecture: (what) =>
    `its architecture ${f.quote(what.model_type)} is not known here${what.nearest === null ? '' : ` (the nearest is ${f.quote(what.nearest)})`}`,
  too_much_memory: (what) => `opening them takes more than ${f.bytes(what.limit_bytes)} of memory`,
  too_slow: (what) => `opening them takes more than ${f.plural(what.seconds, 'second', 'seconds')}`,
  crashed: (what) => `the process that opened them crashed (${what.status})`,
};

const problems: Record<ModelProblemKind, string> = {
  incomplete: 'It is not complete',
  unsupported: 'This version of Cairn cannot run it',
  broken: 'One of its files is damaged',
  unreadable: 'It cannot be read now',
  unsafe: 'Its files are not opened again, because that was not safe',
};

const costs: Record<RoundingCost, string> = {
  none: 'Answers as well as the original',
  hardly: 'Answers about as well as the original',
  some: 'Answers a little less well than the original',
  much: 'Answers worse than the original',
};

/** What is more says no more: the perplexity of random weights has 177 digits. */
export const MOST_PERPLEXITY = 1e6;

const perplexity = (value: number): string =>
  value > MOST_PERPLEXITY ? `more than ${f.count(MOST_PERPLEXITY)}` : f.rate(value);

export const models = {
  actions: (name: string) => `Actions for ${name}`,
  all: 'All models…',
  atLongest: (bytes: number) => `${f.bytes(bytes)} in the longest chat`,
  backTo: (name: string) => `Back to ${name}`,
  backToNote: (count: number) => `Continues with ${tokens(count)} saved`,
  backToUnsaved: 'It wrote the last answer',
  bits: (bits: number) => `${bits}-bit`,
  checkAgain: 'Check again',
  checking: 'Checking…',
  choose: 'Choose a model',
  chooseFile: 'Choose a file…',
  columns: { model: 'Model', size: 'Size', context: 'Context', memory: 'Memory in a usual chat', download: 'Download' },
  context: (count: number) => `${f.count(count / 1024)} k`,
  current: (name: string) => `Model: ${name}`,
  delete: 'Delete…',
  deletion: {
    title: (name: string) => `Delete ${name}`,
    answering: 'It is answering now. What it has begun is written to its end; nothing new begins with it.',
    asking: 'Looking at its files…',
    frees: (bytes: number) => `This frees ${f.bytes(bytes)}. Chats stay, and other models can continue them.`,
    revisions: (count: number) => `It deletes all ${f.plural(count, 'version', 'versions')} of the model.`,
    shared: `Other programs on ${machine} may use these files too. They would have to download them again.`,
    done: (name: string) => `Deleted ${name}.`,
  },
  discover: 'Discover',
  downloadFirst: 'Download a model…',
  downloadMore: 'Download more…',
  downloadRest: 'Download the rest',
  empty: `There is no model on ${machine} yet`,
  facts: {
    budget: `What models may take on ${machine}`,
    kv: (count: number) => `A chat of ${tokens(count)}`,
    total: 'In all, at most',
    longest: (count: number) => `In all with the longest chat, ${tokens(count)}`,
    weights: 'Weights',
    work: 'While it works',
  },
  fit: {
    well: (bytes: number) => `${f.bytes(bytes)}, fits well`,
    tight: (bytes: number, budget: number) => `${f.bytes(bytes)} of ${f.bytes(budget)}, tight`,
    tooLarge: (bytes: number) => `${f.bytes(bytes)} too large`,
  },
  fits: { well: 'Fits well', tight: 'Tight', too_large: 'Too large' },
  folders: {
    title: 'Folders',
    note: 'Models in these folders are listed too. Cairn never writes to them.',
    add: 'Add folder…',
    remove: 'Remove',
    removeOf: (path: string) => `Remove ${path}`,
    removed: 'Removed the folder. Its files stay.',
  },
  help: `Models that other MLX programs have downloaded to ${machine} are found too.`,
  import: {
    cancelOf: (file: string) => `Cancel the import of ${file}`,
    copied: (bytes: number, total: number) => `${f.doneBytes(bytes, total)} of ${f.bytes(total)}`,
    done: (file: string) => `Imported “${file}”.`,
    folderInBrowser: 'A folder can be added in the app only. Drop a GGUF file instead.',
    importing: 'Importing',
    noTemplate:
      'It has no chat template, so it can’t chat. Put the chat_template.jinja of its original model into its folder.',
    notHere: 'Models can be imported in the app only.',
    oneAtATime: 'Another model is being imported: wait, or cancel that import.',
    rounding: {
      title: (file: string) => `Import ${file}`,
      why: 'MLX has no form of the same size for some of this file’s weights. They can be rounded, or kept in 32 bits. The others stay as they are.',
      label: 'Round to',
      forms: { bits4: '4 bits', bits8: '8 bits', bfloat16: '16 bits (bf16)', float32: '32 bits' },
      proposed: '(recommended)',
      onDisk: (bytes: number) => `${f.bytes(bytes)} on the disk`,
      inMemory: (fit: string) => `memory ${fit}`,
      differs: (error: number) => `weights differ by about ${f.smallShare(error)}`,
      same: 'no weight changes',
      again: 'To choose otherwise later, delete the model and import its file again.',
      action: 'Import',
      waits: 'Waits for you to choose how weights are rounded',
      choose: 'Choose…',
    },
    /** How a model whose weights were rounded answers, by the perplexity of a short text. */
    perplexity: (change: PerplexityChange) =>
      `${costs[costOf(change)]}: perplexity ${perplexity(change.before)} → ${perplexity(change.after)} on a short text.`,
    measuring: 'Being compared with the original whenever nothing is answered',
    comparison: (name: string) => `Comparison of ${name} with the original`,
    measured: (name: string, cost: string) => `Compared “${name}” with its original. ${cost}`,
    rounded: (count: number, error: number) =>
      `${f.plural(count, 'tensor', 'tensors')} had to be rounded: the weights differ from the file’s by ${f.smallShare(error)} on average.`,
  },
  label: 'Models',
  load: 'Load',
  loadModel: (name: string) => `Load ${name}`,
  loaded: 'Loaded',
  loading: 'Loading…',
  loadingBytes: (read: number, total: number) => `${f.doneBytes(read, total)} of ${f.bytes(total)}`,
  loadingLabel: (name: string) => `Loading ${name}`,
  memoryOf: (name: string) => `Memory of ${name}`,
  name: 'Model',
  /** The memory of a usual chat and of the longest one. */
  need: (usual: number, longest: number) => `${f.bytes(usual)} in a usual chat, ${f.bytes(longest)} in the longest`,
  /** What happens to the model of a chat when it is asked. */
  offer: {
    whenAsked: (name: string) => `${name} will be loaded when you ask.`,
    instead: (name: string) => `Answer with ${name} instead`,
    /** Of the one that answers instead of one that is not here. */
    keep: (name: string) => `Keep ${name}`,
    /** Of one that would, and is not in memory. */
    load: (name: string) => `Load ${name}`,
    notHere: (name: string, answering: string) => `${name} is not here; ${answering} answers.`,
    /** Of one that cannot be loaded, and why. */
    broken: (name: string, problem: string) => `${name} cannot be loaded. ${problem}`,
    answers: (name: string) => `${name} answers instead.`,
    chooseAnother: 'Choose another model.',
    nobodyInstead: (name: string) => `${name} is not here. Choose another model.`,
  },
  on: `On ${machine}`,
  onThisComputer: (count: number, bytes: number) =>
    `${f.plural(count, 'model', 'models')} on ${machine}, ${f.bytes(bytes)}`,
  /** The settings of one model. */
  own: { title: (name: string) => `Settings of ${name}`, answers: 'Answers', memory: 'Memory' },
  parameters: (count: number) => (count >= 1e9 ? `${f.rate(count / 1e9)} B` : `${f.count(count / 1e6)} M`),
  problems,
  problemWhats,
  /** `detail`: what a reader of its files has said, in English. */
  problemBehind: (problem: string, detail: string) => `${problem}: ${detail}.`,
  ready: (name: string) => `${name} is ready`,
  notReady: (name: string, problem: string) => `${name} was downloaded and cannot be loaded. ${problem}`,
  refresh: 'Refresh',
  /** The button of a model that is set aside. */
  useAnyway: 'Use it anyway',
  settings: 'Settings…',
  sources: {
    imported: 'Imported into Cairn',
    hub_cache: 'In the Hugging Face cache',
    lm_studio: 'In LM Studio’s folder',
    added: 'In an added folder',
  },
  startChatting: 'Start chatting',
  startChattingWith: (name: string) => `Start chatting with ${name}`,
  /** Where the model of a chat comes from, in the inspector. */
  chatSources: {
    chat: 'Chosen in this chat',
    answer: 'Of the last answer',
    folder: 'From the folder',
    app: 'Loaded',
    proposed: 'Not loaded yet',
  },
  stopLoading: 'Stop loading',
  stopLoadingOf: (name: string) => `Stop loading ${name}`,
  unload: 'Unload',
  unloadModel: (name: string) => `Unload ${name}`,
  versions: {
    asking: 'Asking the hub…',
    check: 'Check for updates',
    newer: 'Newer version available',
    none: 'No newer versions were found.',
    nothingToCheck: `No model on ${machine} comes from the hub, so there is nothing to check.`,
    older: (count: number) => `${f.plural(count, 'older version', 'older versions')} on ${machine}`,
    remove: (bytes: number) => `Remove older versions (frees ${f.bytes(bytes)})`,
    removed: (name: string) => `Removed the older versions of ${name}.`,
    update: (bytes: number) => `Update (${f.bytes(bytes)})`,
  },
};

/** Models that come from the hub. */
export const downloads = {
  addToken: 'Add a token…',
  amount: (bytes: number, total: number) => `${f.doneBytes(bytes, total)} of ${f.bytes(total)}`,
  cancel: 'Cancel the download',
  cancelOf: (name: string) => `Cancel the download of ${name}`,
  cancelled: (name: string) => `Cancelled the download of ${name}.`,
  cut: 'The connection was cut. What has come is kept, and the download goes on from there.',
  details: 'Details',
  detailsOf: (name: string) => `Details of ${name}`,
  download: 'Download',
  downloadOf: (name: string) => `Download ${name}`,
  downloadSize: (bytes: number) => `Download ${f.bytes(bytes)}`,
  downloading: 'Downloading',
  fileStates: {
    waiting: 'Waiting',
    locked: 'Another program downloads it',
    checking: 'Checking',
    running: 'Downloading',
    done: 'Done',
  },
  files: (done: number, total: number) => `${f.count(done)} of ${f.plural(total, 'file', 'files')}`,
  filesLabel: 'Files',
  filesOf: (name: string) => `Files of ${name}`,
  label: 'Downloads',
  labelOf: (action: string, name: string) => `${action}, ${name}`,
  left: (seconds: number) => `about ${f.timeLeft(seconds)} left`,
  list: (parts: string[]) => parts.join(', '),
  offline: 'Waiting for the connection to the hub',
  openPage: 'Open its page',
  pause: 'Pause',
  pauseOf: (name: string) => `Pause the download of ${name}`,
  paused: 'Paused',
  privateHelp: 'There is no such model, or it is private. If you may read it, add an access token of your account.',
  unanswered: 'The hub does not answer yet',
  preparing: 'Asking the hub…',
  queued: 'Others come first',
  rate: (perSecond: number) => `${f.bytes(perSecond)}/s`,
  resume: 'Resume',
  resumeOf: (name: string) => `Resume the download of ${name}`,
  running: (share: number) => `Downloading ${f.share(share)}`,
  stalled: 'nothing is coming just now',
  timeLeft: (seconds: number) => `${f.timeLeft(seconds)} left`,
  share: f.share,
};

/** The page on which models are looked for. */
export const discover = {
  checkedTitle: (memory: number) => `Good on ${machine} (${f.memory(memory)})`,
  title: 'Models to start with',
  note: `Memory is shown for a usual chat (${tokens(8192)}, about 15 pages) and for the longest one that a model can take.`,
  noneFits: `None of these fits ${machine}.`,
  card: (name: string) => `About ${name}`,
  asking: 'Asking the hub…',
  downloads: (count: number) => `${f.count(count)} downloads a month`,
  files: (count: number, bytes: number) => `${f.plural(count, 'file', 'files')}, ${f.bytes(bytes)}`,
  filter: 'Show',
  fits: `Fits ${machine}`,
  fitsAll: 'All',
  gated: 'Needs your consent',
  gatedHelp:
    'Its makers want you to accept their terms first. Open its page, accept them, and add a token of your account in the settings.',
  hidden: (count: number) =>
    `${f.plural(count, 'model is', 'models are')} not shown: the weights alone are too large for ${machine}.`,
  hubFailed: 'The hub gave no answer',
  licence: 'Licence',
  licenceUnknown: 'Not stated',
  memory: 'Memory',
  memoryUnknown: 'Not known before it is downloaded',
  mlx: 'MLX',
  mlxNote: 'Converted for MLX',
  notFoundHelp: 'If it is private and you may read it, add an access token of your account.',
  noneFound: (text: string) => `Nothing found for “${text}”. Try fewer words, or a whole name such as owner/model.`,
  numFound: (count: number) => f.plural(count, 'model found', 'models found'),
  offline: 'The hub cannot be reached',
  switchedOff:
    'HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set, so no models can be found or downloaded. Unset it, then start Cairn again.',
  offlineHelp: 'Models that are here already can be used without it.',
  search: 'Search Hugging Face, or paste a name',
  searchLabel: 'Search models',
  searching: 'Searching…',
  showAll: 'Show all',
  sort: 'Order',
  sorts: { match: 'Best match', downloads: 'Most downloaded', newest: 'Newest', smallest: 'Smallest' },
  updated: (milliseconds: number, now: number) => `updated ${f.ago(milliseconds, now) ?? 'just now'}`,
  upTo: (count: number) => `up to ${tokens(count)}`,
};

/** The first launch: no model can be loaded yet. */
export const firstModel = {
  title: 'Choose a model to start',
  promise: `It runs on ${machine}, and nothing you write leaves it. A conversation keeps its place: what was read once is not read again, not even after a restart.`,
  choices: 'Model',
  choice: {
    start: { name: 'Start here', note: 'Quick, for everyday questions' },
    better: { name: 'Better answers', note: 'Slower' },
    code: { name: 'For code', note: 'For programming and coding agents' },
  },
  download: (bytes: number) => `${f.bytes(bytes)} to download`,
  /** `memory`: of a usual chat and of the longest one. */
  needs: (memory: string) => `Memory: about ${memory}`,
  budget: (budget: number, memory: number) =>
    `Of the ${f.memory(memory)} of ${machine}, models may take ${f.bytes(budget)}; the rest is for the system and other apps.`,
  start: 'Download and start',
  drop: 'or drop a GGUF file or a model folder here',
  dropFile: 'or drop a GGUF file here',
  coming: 'Your model is on its way',
  comingNote: 'It starts by itself when it is here. You can leave this page meanwhile.',
  waiting: 'Your model is not here yet',
  waitingNote: 'Resume the download, or try it again. The model starts by itself when it is here.',
  unanswered: 'Waiting for the hub',
  unansweredNote: `It does not answer: check the network of ${machine}. The download goes on by itself once it does.`,
  checking: 'Looking at the model…',
  more: 'Other models…',
};

/** The settings of the hub. */
export const hub = {
  title: 'Hugging Face',
  chooseFolder: 'Choose…',
  offline: 'HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set, so Cairn asks no hub.',
  otherHub: (hub: string) =>
    `The saved token belongs to ${hub} and is not sent to this hub. A new one takes its place.`,
  token: 'Access token',
  tokenNote: 'For private models, and for those whose terms you had to accept.',
  tokenField: 'New token',
  tokenPlaceholder: 'hf_…',
  places: {
    keychain: 'Kept in the keychain',
    file: 'Kept in a file that only you can read',
    environment: 'From the environment, or from the Hugging Face tools',
  },
  none: 'None',
  remove: 'Remove',
  removeLabel: 'Remove the access token',
  save: 'Save token',
  saved: 'Saved the access token.',
  removed: 'Removed the access token.',
  fileWarning:
    'There is no keychain, so the token lies in a file in Cairn’s data folder. Other programs that you run can read it.',
};
