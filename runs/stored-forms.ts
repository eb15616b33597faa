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
} from '../backends/store/objects.ts';
import { chunksOf24November, keptInSizes, planOf24November } from './older-forms.ts';

type Loose = Readonly<Record<string, unknown>>;

interface FormOfKeys extends StoredForm {
  /** Below the folder of a run, an evaluation or a search. */
  readonly keys: RegExp;
  /** A list, or a map by name: it says no version before it has a second one. */
  readonly saysNone?: true;
}

const round = String.raw`rollouts\/step_\d+\/groups_[^/]+\/`;
const chunk = String.raw`chunk_[^/]+?_of_\d+(?:_from_\d+)?`;
/** An evaluation has its rollouts in folders of chunks as well. */
const ofChunk = String.raw`(?:${round}${chunk}|rollouts\/chunk_\d+)`;

/**
 * Every form in which a run, an evaluation or a search stores JSON, its present version, and how older versions are read. An object says its
 * version as `schemaVersion`; one that says none has version 1. The first whose `keys` fit is that of an object.
 *
 * To change a form: raise its version, add the upgrade from the version before, and keep a sample of that version. CONTRIBUTING.md has the
 * steps; `test/runs/stored-forms.test.ts` fails until they are done.
 */
export const storedForms = {
  runRecord: form('the record of a run', /run\.json$/),
  specSource: form('the place that settings were read from', /specs\/[^/]+\.source\.json$/),
  spec: form('the settings of a run', /specs\/[^/]+\.json$/, { tellsVersion: true }),
  lineage: form('the record of a lineage', /origins\/lineage_\d+\.json$/, { tellsVersion: true }),
  trainerClaim: form('the claim of a GPU worker', /claims\/trainer\/epoch_\d+\.json$/),
  claim: form('the claim of a workflow', /claims\/claim_\d+\.json$/),
  /** Kept groups said `tokens` until 27 November 2026, and say `sizes` since. */
  commit: form('a commit', /lineages\/[^/]+\/steps\/step_\d+\.json$/, {
    tellsVersion: true,
    uncounted: ({ state, ...commit }: Loose) => ({ ...commit, state: keptInSizes(state) }),
  }),
  manifest: form('the manifest of a checkpoint', /checkpoints\/step_\d+\/manifest\.json$/, { tellsVersion: true }),
  warmUp: form('the state of a warm-up', /checkpoints\/warm_up\/step_\d+\/state\.json$/),
  /** Version 1 says no chunks: the groups of each environment were divided in two. */
  leases: form('the leases of a round', new RegExp(`${round}leases\\.json$`), { upgrades: [chunksOf24November] }),
  playedPart: form('what became of a part of a chunk', new RegExp(`${round}chunk_[^/]+_from_\\d{1,16}\\.json$`), {
    uncounted: ({ filtered, ...part }: Loose) => ({ ...part, filtered: keptInSizes(filtered) }),
  }),
  /** Until 24 November 2026 an attempt was a sitting. */
  leftChunk: form('what an attempt at a chunk left', new RegExp(`${round}${chunk}\\/(?:attempt|sitting)_\\d+\\.json$`)),
  /** Until 25 November 2026 of a whole round. */
  scoredGroup: form('a scored group', new RegExp(`${round}(?:${chunk}\\.)?scored\\.jsonl(?:\\.gz)?$`)),
  turn: form('a turn', new RegExp(`${ofChunk}(?:\\/attempt_\\d+)?\\/turns_\\d+\\.jsonl$`)),
  unfinished: form(
    'an unfinished rollout',
    new RegExp(`${ofChunk}\\/(?:attempt|sitting)_\\d+\\.unfinished\\.[^/]+\\.jsonl$`),
  ),
  evaluatedExample: form('an example of an evaluation', /rollouts\/chunk_\d+\/attempt_\d+\/rows_\d+\.jsonl$/),
  rollout: form(
    'a rollout',
    new RegExp(
      `${ofChunk}(?:(?:\\/attempt_\\d+)?\\/part_\\d+|\\/(?:attempt|sitting)_\\d+\\.finished\\.[^/]+)?\\.jsonl$`,
    ),
  ),
  pools: form('difficulty pools', /pools\/[^/]+\.json$/, { saysNone: true }),
  plan: form('the plan of a step', /batches\/step_\d+\.[^/]+\.plan\.json$/, { upgrades: [planOf24November] }),
  /** Version 1 was JSON lines: `readTaught` knows them by their name. */
  taught: form('the log probabilities of a teacher', /batches\/step_\d+\.[^/]+\.teacher\.json$/, {
    upgrades: [(taught: Loose) => taught],
  }),
  /** Version 1 names JSON lines of all rows: `readPacked` reads them to say what version 2 says of its rows. */
  packed: form('a packed batch', /batches\/step_\d+\.[^/.]+\.json$/, { upgrades: [(packed: Loose) => packed] }),
  /** Rows of version 1 of a packed batch, and of a teacher's. Later ones are binary columns, which begin with the name of their form. */
  batchRow: form('a row of a batch', /batches\/step_\d+\.[^/.]+\.jsonl$/),
  quarantinedServers: form('servers in quarantine', /canaries\/[^/]+\.(?:quarantined|aside)\.json$/, {
    saysNone: true,
  }),
  canary: form('a canary', /canaries\/[^/]+\.json$/),
  servedVersion: form('the version that servers hold', /served\.json$/),
  referenceSums: form('the sums of the reference', /sft\/reference\.json$/),
  sentNotice: form('that a notice was sent', /notices\/sent\/[^/]+\.json$/),
  webhook: form('the state of the webhook', /notices\/webhook\/state\.json$/),
  notice: form('a notice', /notices\/[^/]+\.json$/),
  sinks: form('how far sinks are', /sinks\/state\.json$/, { saysNone: true }),
  evaluation: form('an evaluation', /evaluation\/attempt_\d+\.json$/, { tellsVersion: true }),
  evaluationSummary: form('what came of an evaluation', /evaluation\/summary_\d+\.json$/),
  checkpointSubject: form('how checkpoints are evaluated', /evals\/checkpoints\.json$/),
  search: form('a search for a prompt', /search\/search\.json$/, { tellsVersion: true }),
  searchSummary: form('what came of a search', /search\/summary\.json$/),
  answer: form('an answer of a search', /search\/answers\/part_\d+\.jsonl$/),
  promptTrial: form('the trial of a prompt', /trial\.json$/),
} as const satisfies Readonly<Record<string, FormOfKeys>>;

/** Columns of numbers with a head of JSON. They begin with a name of eight letters, which a new version changes. */
export const formsOfColumns = {
  /** Version 1 was JSON lines. */
  batchColumns: { name: 'the rows of a batch', version: 2 },
  taughtColumns: { name: 'the log probabilities of a teacher', version: 2 },
  scoreColumns: { name: 'what a trainer computed of tokens', version: 1 },
} as const;

/**
 * What others defined, or what is made again from the forms above: it has no versions of ours. Verifiers' and GEPA's files, Hugging Face's,
 * rows of `[sft]` and `[data]`, metrics and what sinks make of them.
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
];

/** The form of an object by its key, or by its key below a store's URI. Null for what is in none of ours. */
export function formOf(key: string): (FormOfKeys & { readonly id: keyof typeof storedForms }) | null {
  const found = Object.entries(storedForms).find(([, { keys }]) => keys.test(key));
  return found ? { id: found[0] as keyof typeof storedForms, ...found[1] } : null;
}

/** An object as it is stored there, in the present version of its form. */
export function encodeStored(key: string, value: object): Uint8Array {
  const known = requireForm(key);
  if (known.saysNone) throw new Error(`${key}: a form that says no version is no object`);
  return encodeForm(known, value);
}

export function encodeStoredRows(key: string, rows: readonly object[]): Uint8Array {
  return encodeFormRows(requireForm(key), rows);
}

/**
 * What is stored there, in any version that was on main, as the present one has it. One that is found by its key alone, and not by a sha256,
 * may have been edited: `key` names it in the refusal, and `shape` says what is relied on beyond its being an object.
 */
export function decodeStored<T>(bytes: Uint8Array, key: string, shape?: Shape): T {
  return decodeForm(formOf(key) ?? unnamed, bytes, key, shape);
}

export function decodeStoredRows<T>(bytes: Uint8Array, key: string, shape?: Shape): T[] {
  return decodeFormRows(formOf(key) ?? unnamed, bytes, key, shape);
}

/** One of them; `line` counts from 1. */
export function decodeStoredRow<T>(bytes: Uint8Array, key: string, line: number, shape?: Shape): T {
  return decodeFormRow(formOf(key) ?? unnamed, bytes, `${key}, line ${line}`, shape);
}

/** Settings, which are named by their content. */
export function encodeSettings(spec: object): Uint8Array {
  return encodeForm(storedForms.spec, spec);
}

/** The settings that lie inside of another object. */
export function presentSettings(value: unknown, where: string): unknown {
  return presentVersion(storedForms.spec, value, where);
}

/** A list of texts. */
export function decodeStoredTexts(bytes: Uint8Array, key: string): string[] {
  return decodeFormTexts(formOf(key) ?? unnamed, bytes, key);
}

/** What lies under a key that no form has is read as it is. It is not written. */
const unnamed: StoredForm = { name: 'an object', version: 1, upgrades: [] };

function requireForm(key: string): FormOfKeys {
  const known = formOf(key);
  if (known) return known;
  throw new Error(`${key}: no form is stored there; runs/stored-forms.ts has all of them`);
}

function form(
  name: string,
  keys: RegExp,
  { upgrades = [], ...rest }: Partial<Pick<FormOfKeys, 'upgrades' | 'uncounted' | 'saysNone' | 'tellsVersion'>> = {},
): FormOfKeys {
  const anchored = new RegExp(`(?:^|\\/)${keys.source}`);
  return { name, keys: anchored, version: upgrades.length + 1, upgrades, ...rest };
}
