import {
  decodeForm,
  decodeFormRow,
  decodeFormRows,
  decodeFormTexts,
  encodeForm,
  encodeFormRows,
  presentVersion,
  type Shape,
  type StoredForm,
} from '../../store/objects.ts';
import {
  chunksOf24November,
  keptInSizes,
  planOf24November,
  requestedOfLater,
  turnsOfTextAlone,
  turnsWithoutRefusals,
} from './older-forms.ts';
import { sharingPrompts, withPrompts } from './rows-of-turns.ts';

type Loose = Readonly<Record<string, unknown>>;

interface FormOfKeys extends StoredForm {
  /** Matches keys relative to the folder of a run, an evaluation or a search. */
  readonly keys: RegExp;
  /** The form is a list or a map by name. It carries no version until it has a second one. */
  readonly saysNone?: true;
  /** Rows have turns, whose prompts repeat one another: each token is stored once. */
  readonly sharesPrompts?: true;
}

const round = String.raw`rollouts\/step_\d+\/groups_[^/]+\/`;
const chunk = String.raw`chunk_[^/]+?_of_\d+(?:_from_\d+)?`;
/** Evaluations also store rollouts in chunk folders. */
const ofChunk = String.raw`(?:${round}${chunk}|rollouts\/chunk_\d+)`;

/** A version that only adds fields that may be missing. */
const withNewOptions = (value: Loose): Loose => value;

/**
 * All forms in which a run, an evaluation or a search stores JSON, with their present versions and upgrades from older ones. Objects carry
 * their version as `schemaVersion`; without one they are version 1. The first form whose `keys` match an object's key applies. To change a
 * form, raise its version, add the upgrade from the version before, and keep a sample of that version. CONTRIBUTING.md lists the steps;
 * `test/runs/stored-forms.test.ts` fails until they are done.
 */
export const storedForms = {
  runRecord: form('the record of a run', /run\.json$/),
  specSource: form('the place that settings were read from', /specs\/[^/]+\.source\.json$/),
  /** Until 29 November 2026 settings had `later` instead of `requested`. */
  spec: form('the settings of a run', /specs\/[^/]+\.json$/, { tellsVersion: true, uncounted: requestedOfLater }),
  lineage: form('the record of a lineage', /origins\/lineage_\d+\.json$/, { tellsVersion: true }),
  trainerClaim: form('the claim of a GPU worker', /claims\/trainer\/epoch_\d+\.json$/),
  claim: form('the claim of a workflow', /claims\/claim_\d+\.json$/),
  /** Until 27 November 2026 kept groups had `tokens` instead of `sizes`. */
  commit: form('a commit', /lineages\/[^/]+\/steps\/step_\d+\.json$/, {
    tellsVersion: true,
    uncounted: ({ state, ...commit }: Loose) => ({ ...commit, state: keptInSizes(state) }),
    upgrades: [withNewOptions, withNewOptions],
  }),
  manifest: form('the manifest of a checkpoint', /checkpoints\/step_\d+\/manifest\.json$/, { tellsVersion: true }),
  optimizerFiles: form(
    'the files of an optimizer state',
    /checkpoints\/(?:warm_up\/)?step_\d+\/optimizer\/optimizer\.json$/,
  ),
  warmUp: form('the state of a warm-up', /checkpoints\/warm_up\/step_\d+\/state\.json$/),
  /** Version 1 has no chunks: the groups of each environment were divided in two. */
  leases: form('the leases of a round', new RegExp(`${round}leases\\.json$`), { upgrades: [chunksOf24November] }),
  playedPart: form('the result of a part of a chunk', new RegExp(`${round}chunk_[^/]+_from_\\d{1,16}\\.json$`), {
    uncounted: ({ filtered, ...part }: Loose) => ({ ...part, filtered: keptInSizes(filtered) }),
    upgrades: [withNewOptions],
  }),
  /** Attempts were called sittings until 24 November 2026. */
  leftChunk: form('partial results of a chunk', new RegExp(`${round}${chunk}\\/(?:attempt|sitting)_\\d+\\.json$`), {
    upgrades: [withNewOptions],
  }),
  /** Until 25 November 2026 one object had the groups of a whole round. */
  scoredGroup: form('a scored group', new RegExp(`${round}(?:${chunk}\\.)?scored\\.jsonl(?:\\.gz)?$`), {
    upgrades: [turnsOfTextAlone, turnsWithoutRefusals, withNewOptions],
    sharesPrompts: true,
  }),
  turn: form('a turn', new RegExp(`${ofChunk}(?:\\/attempt_\\d+(?:\\/groups)?)?\\/turns_\\d+\\.jsonl$`), {
    upgrades: [turnsOfTextAlone, turnsWithoutRefusals, withNewOptions],
  }),
  unfinished: form(
    'an unfinished rollout',
    new RegExp(`${ofChunk}\\/(?:attempt|sitting)_\\d+\\.unfinished\\.[^/]+\\.jsonl$`),
  ),
  evaluatedExample: form('an example of an evaluation', /rollouts\/chunk_\d+\/attempt_\d+\/rows_\d+\.jsonl$/),
  rollout: form(
    'a rollout',
    new RegExp(
      `${ofChunk}(?:(?:\\/attempt_\\d+(?:\\/groups)?)?\\/part_\\d+|\\/(?:attempt|sitting)_\\d+\\.finished\\.[^/]+)?\\.jsonl$`,
    ),
    {
      upgrades: [turnsOfTextAlone, turnsWithoutRefusals, withNewOptions],
      sharesPrompts: true,
    },
  ),
  notes: form('notes of rollouts', new RegExp(`(?:${ofChunk}|search\\/notes\\/[^/]+)\\/notes_\\d+\\.json$`)),
  chunkInPlay: form('a chunk in play', /in_play\/step_\d+\.groups_[^/]+\.json$/),
  pools: form('difficulty pools', /pools\/[^/]+\.json$/, { saysNone: true }),
  plan: form('the plan of a step', /batches\/step_\d+\.[^/]+\.plan\.json$/, { upgrades: [planOf24November] }),
  /** Version 1 was JSON lines, which `readTaught` recognizes by their name. */
  taught: form('the log probabilities of a teacher', /batches\/step_\d+\.[^/]+\.teacher\.json$/, {
    upgrades: [(taught: Loose) => taught],
  }),
  /** Version 1 refers to JSON lines with all rows. `readPacked` reads these to fill in the fields of version 2. */
  packed: form('a packed batch', /batches\/step_\d+\.[^/.]+\.json$/, { upgrades: [(packed: Loose) => packed] }),
  /**
   * Rows of version 1 of packed batches and of teachers' log probabilities. Later versions are binary columns, which start with the name of
   * their form.
   */
  batchRow: form('a row of a batch', /batches\/step_\d+\.[^/.]+\.jsonl$/),
  quarantinedServers: form('servers in quarantine', /canaries\/[^/]+\.(?:quarantined|aside)\.json$/, {
    saysNone: true,
  }),
  canary: form('a canary', /canaries\/[^/]+\.json$/),
  servedVersion: form('the version that servers hold', /served\.json$/),
  referenceSums: form('the sums of the reference', /sft\/reference\.json$/),
  sentNotice: form('the record of a sent notice', /notices\/sent\/[^/]+\.json$/),
  webhook: form('the state of the webhook', /notices\/webhook\/state\.json$/),
  notice: form('a notice', /notices\/[^/]+\.json$/),
  change: form('a change that somebody asked for', /changes\/[^/]+\.[0-9a-f]{16}\.json$/),
  keptRun: form('why a run is kept', /kept\.json$/),
  sinks: form('the progress of sinks', /sinks\/state\.json$/, { saysNone: true }),
  evaluation: form('an evaluation', /evaluation\/attempt_\d+\.json$/, {
    tellsVersion: true,
    upgrades: [withNewOptions, withNewOptions],
  }),
  evaluationSummary: form('the summary of an evaluation', /evaluation\/summary_\d+\.json$/),
  rescore: form('a rescore', /rescores\/[^/]+\/rescore\.json$/, { tellsVersion: true }),
  rescoredChunk: form('a chunk of a rescore', /rescores\/[^/]+\/chunks\/chunk_\d+\.json$/),
  rescoredGroup: form('a group with other rewards', /rescores\/[^/]+\/chunks\/chunk_\d+\/scores\.[^/]+\.jsonl\.gz$/),
  journaledGroup: form('a group of a rescore under way', /rescores\/[^/]+\/chunks\/chunk_\d+\/scored_\d+\.jsonl$/),
  rescoreSummary: form('the summary of a rescore', /rescores\/[^/]+\/summary\.json$/),
  checkpointSubject: form('the evaluation of checkpoints', /evals\/checkpoints\.json$/, {
    upgrades: [withNewOptions, withNewOptions],
  }),
  /** Version 1 may lack `settings.final`: such a search still scores its start on the screen alone. */
  search: form('a search for a prompt', /search\/search\.json$/, {
    tellsVersion: true,
    upgrades: [withNewOptions, withNewOptions],
  }),
  searchSummary: form('the summary of a search', /search\/summary\.json$/, { upgrades: [withNewOptions] }),
  answer: form('an answer of a search', /search\/answers\/part_\d+\.jsonl$/, {
    upgrades: [turnsOfTextAlone, turnsWithoutRefusals, withNewOptions],
    sharesPrompts: true,
  }),
  promptTrial: form('the trial of a prompt', /trial\.json$/),
  budget: form('a state of a budget', /budget\/entry_\d+\.json$/),
  sandboxProject: form('the name of a project of sandboxes', /sandboxes\.json$/),
  sandboxPool: form('a provider of sandboxes', /providers\/[0-9a-f]+\.json$/),
  sandboxLease: form('the lease of a sandbox', /open\/[^/]+\/lease\.json$/),
  sandboxCreating: form('the request for a sandbox', /open\/[^/]+\/creating\.json$/),
  sandboxLive: form('who has a sandbox', /open\/[^/]+\/live\.json$/),
  endedSandbox: form('the account of a sandbox', /ended\/[^/]+\/[^/]+\.json$/),
  sandboxPlace: form('a place in a quota of sandboxes', /place_\d+\/turn_\d+\.json$/),
} as const satisfies Readonly<Record<string, FormOfKeys>>;

/** Columns of numbers with a JSON head. They start with a name of eight letters, which changes with the version. */
export const formsOfColumns = {
  /** Version 1 was JSON lines. */
  batchColumns: { name: 'the rows of a batch', version: 2 },
  taughtColumns: { name: 'the log probabilities of a teacher', version: 2 },
  scoreColumns: { name: 'the token scores of a trainer', version: 1 },
} as const;

/**
 * Formats that others define, and files that can be rebuilt from the forms above. They have no version of ours: files
 * of verifiers, GEPA and Hugging Face, rows of `[sft]` and `[data]`, metrics, and the output of sinks.
 */
export const formsOfOthers: readonly RegExp[] = [
  /(?:^|\/)metrics\.jsonl$/,
  /^sinks\/order\.jsonl$/,
  /(?:^|\/)(?:results|pareto_frontier)\.jsonl$/,
  /(?:^|\/)(?:metadata|candidates|best_components)\.json$/,
  /(?:^|\/)weights\/[^/]+\/[^/]+\.json$/,
  /(?:^|\/)checkpoints\/warm_up\/step_\d+\/(?:weights\/)?[^/]*(?:config|tokenizer)[^/]*\.json$/,
  /^sft\/data\.jsonl$/,
  /(?:^|\/)records\.jsonl\.gz$/,
  /(?:^|\/)rescores\/[^/]+\/chunks\/chunk_\d+\/rows\.[^/]+\.jsonl\.gz$/,
];

/** Finds the form of an object from its key, relative or with a store's URI. Null if none matches. */
export function formOf(key: string): (FormOfKeys & { readonly id: keyof typeof storedForms }) | null {
  const found = Object.entries(storedForms).find(([, { keys }]) => keys.test(key));
  return found ? { id: found[0] as keyof typeof storedForms, ...found[1] } : null;
}

/** Encodes an object in the present version of the form that its key has. */
export function encodeStored(key: string, value: object): Uint8Array {
  const known = requireForm(key);
  if (known.saysNone) throw new Error(`${key}: a form that says no version is no object`);
  return encodeForm(known, value);
}

export function encodeStoredRows(key: string, rows: readonly object[]): Uint8Array {
  const known = requireForm(key);
  return encodeFormRows(known, known.sharesPrompts ? rows.map(sharingPrompts) : rows);
}

/**
 * Decodes an object of any version that was on main to the present one. An object that is found by its key alone may have been edited,
 * because no sha256 protects it: `key` names it in errors, and `shape` lists the fields the caller relies on.
 */
export function decodeStored<T>(bytes: Uint8Array, key: string, shape?: Shape): T {
  return decodeForm(formOf(key) ?? unnamed, bytes, key, shape);
}

export function decodeStoredRows<T>(bytes: Uint8Array, key: string, shape?: Shape): T[] {
  const known: Partial<FormOfKeys> & StoredForm = formOf(key) ?? unnamed;
  const rows = decodeFormRows<T>(known, bytes, key, shape);
  return known.sharesPrompts ? rows.map((row, i) => withPrompts(row, `${key}, line ${i + 1}`)) : rows;
}

/** Decodes one row; `line` counts from 1. */
export function decodeStoredRow<T>(bytes: Uint8Array, key: string, line: number, shape?: Shape): T {
  const known: Partial<FormOfKeys> & StoredForm = formOf(key) ?? unnamed;
  const where = `${key}, line ${line}`;
  const row = decodeFormRow<T>(known, bytes, where, shape);
  return known.sharesPrompts ? withPrompts(row, where) : row;
}

/** Encodes settings, which are named by their content. */
export function encodeSettings(spec: object): Uint8Array {
  return encodeForm(storedForms.spec, spec);
}

/** Upgrades settings that are embedded in another object. */
export function presentSettings(value: unknown, where: string): unknown {
  return presentVersion(storedForms.spec, value, where);
}

/** Decodes a list of texts. */
export function decodeStoredTexts(bytes: Uint8Array, key: string): string[] {
  return decodeFormTexts(formOf(key) ?? unnamed, bytes, key);
}

/** Objects whose key has no form are read unchanged. They are never written. */
const unnamed: StoredForm = { name: 'an object', version: 1, upgrades: [] };

function requireForm(key: string): FormOfKeys {
  const known = formOf(key);
  if (known) return known;
  throw new Error(`${key}: no form is stored there; runs/forms/stored-forms.ts has all of them`);
}

function form(
  name: string,
  keys: RegExp,
  {
    upgrades = [],
    ...rest
  }: Partial<Pick<FormOfKeys, 'upgrades' | 'uncounted' | 'saysNone' | 'tellsVersion' | 'sharesPrompts'>> = {},
): FormOfKeys {
  const anchored = new RegExp(`(?:^|\\/)${keys.source}`);
  return { name, keys: anchored, version: upgrades.length + 1, upgrades, ...rest };
}
