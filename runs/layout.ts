import { firstLineage, versionNumber } from '../core/names.ts';
import { present } from '../core/present.ts';
import { chunkIn } from '../core/rl/sampling/chunks.ts';

/**
 * Keys of objects in a run's folder, the same in every store. They are relative to the run, so a copied run resumes.
 */
export const layout = {
  run: () => 'run.json',
  spec: (digest: string) => `${layout.allSpecs()}${digest.slice(0, 16)}.json`,
  allSpecs: () => 'specs/',
  /** Which file and settings a spec was read from. */
  source: (specKey: string) => specKey.replace(/\.json$/, '.source.json'),
  /** Origins of lineage 2, 3, … */
  origin: (number: number) => `${layout.origins()}lineage_${number}.json`,
  origins: () => 'origins/',
  claim: (number: number) => `claims/claim_${number}.json`,
  claims: () => 'claims/claim_',
  trainerClaim: (epoch: number) => `${layout.trainerClaims()}epoch_${epoch}.json`,
  trainerClaims: () => 'claims/trainer/',
  commit: (lineage: string, step: number) => `${layout.commits(lineage)}step_${step}.json`,
  allLineages: () => 'lineages/',
  commits: (lineage: string) => `lineages/${lineage}/steps/`,
  round: (lineage: string, step: number, first: number, last: number) =>
    `${layout.allRounds(lineage)}step_${step}/groups_${first}-${last}/`,
  /** Written before anything of a round is generated. */
  leases: (lineage: string, { step, first, last }: Pick<RoundPlace, 'step' | 'first' | 'last'>) =>
    `${layout.round(lineage, step, first, last)}leases.json`,
  isLeases: (key: string) => key.endsWith('/leases.json'),
  /** Groups of a chunk with their rewards: the one place where rollouts are kept. */
  scored: (lineage: string, { step, first, last }: Pick<RoundPlace, 'step' | 'first' | 'last'>, chunk: string) =>
    `${layout.round(lineage, step, first, last)}${chunk}.scored.jsonl.gz`,
  isScored: (key: string) => key.endsWith('.scored.jsonl.gz') || isOlderScored(key),
  /** Selects the keys to read scored groups from. An older object of the whole round is skipped if the chunks have their own. */
  scoredIn: (keys: readonly string[]): string[] => {
    const scored = keys.filter((key) => layout.isScored(key));
    const ofChunks = new Set(scored.filter((key) => !isOlderScored(key)).map(folderOf));
    return scored.filter((key) => !isOlderScored(key) || !ofChunks.has(folderOf(key)));
  },
  /** Fates of the groups in a part of a chunk, beside their objects; `part` comes from `partName`. */
  playedPart: (lineage: string, { step, first, last }: Pick<RoundPlace, 'step' | 'first' | 'last'>, part: string) =>
    `${layout.round(lineage, step, first, last)}${part}.json`,
  isPlayedPart: (key: string) => /\/chunk_[^/]+_from_\d{1,16}\.json$/.test(key),
  /** Named by content, across lineages: many commits may refer to the same object. */
  pools: (digest: string) => `${layout.allPools()}${digest.slice(0, 16)}.json`,
  allPools: () => 'pools/',
  /** What an attempt at a chunk says of it while it plays it, for people who look; each writes and removes its own. */
  inPlay: (of: ChunkPlace, { beganAtMs, name }: { readonly beganAtMs: number; readonly name: string }) =>
    `${layout.attemptsInPlay(of)}${beganAtMs}-${name.slice(0, 8)}.json`,
  /** Begins the keys of all attempts at a chunk. */
  attemptsInPlay: ({ lineage, step, first, last, chunk }: ChunkPlace) =>
    `${layout.allInPlay(lineage)}step_${step}.groups_${first}-${last}.${chunk}.`,
  allInPlay: (lineage: string) => `${branch(lineage)}in_play/`,
  allRounds: (lineage: string) => `${branch(lineage)}rollouts/`,
  /** All rounds of a step. */
  rounds: (lineage: string, step: number) => `${layout.allRounds(lineage)}step_${step}/`,
  allBatches: (lineage: string) => `${branch(lineage)}batches/`,
  /** Part of a batch's rows, named by content. */
  batchPart: (lineage: string, step: number, digest: string) =>
    `${layout.allBatches(lineage)}step_${step}.${digest.slice(0, 16)}.rows`,
  isBatchPart: (key: string) => /(?:^|\/)batches\/step_\d+\.[^/]+\.rows$/.test(key),
  isNamedBy: (key: string, digest: string) => key.endsWith(`.${digest.slice(0, 16)}.rows`),
  packed: (lineage: string, step: number, digest: string) =>
    `${layout.allBatches(lineage)}step_${step}.${digest.slice(0, 8)}.json`,
  /** Which parts a teacher's log probabilities of a packed batch are in. */
  taught: (lineage: string, step: number, packedDigest: string) =>
    `${layout.allBatches(lineage)}step_${step}.${packedDigest.slice(0, 8)}.teacher.json`,
  /** Those of the rows from `first` on. */
  taughtPart: (lineage: string, step: number, packedDigest: string, first: number) =>
    `${layout.allBatches(lineage)}step_${step}.${packedDigest.slice(0, 8)}.teacher_from_${first}.logprobs`,
  isTaughtPart: (key: string) => /(?:^|\/)batches\/step_\d+\.[^/]+\.logprobs$/.test(key),
  /** The trainer's values for each token of a step, for the rows from `first` on. */
  tokenScores: (lineage: string, step: number, first: number) =>
    `${layout.tokenScoresOf(lineage, step)}${String(first).padStart(6, '0')}.scores`,
  tokenScoresOf: (lineage: string, step: number) => `${layout.allTokenScores(lineage)}step_${step}.from_`,
  allTokenScores: (lineage: string) => `${branch(lineage)}tokens/`,
  isTokenScores: (key: string) => /(?:^|\/)tokens\/step_\d+\.from_\d+\.scores$/.test(key),
  plan: (lineage: string, step: number, attempt: number, packedDigest: string, fromReplay = 0) =>
    `${layout.allBatches(lineage)}step_${step}.${attempt === 1 ? '' : `attempt_${attempt}.`}${packedDigest.slice(0, 8)}${fromReplay === 0 ? '' : `.onto.r${fromReplay}`}.plan.json`,
  /** `replay` as in `PolicyVersion`. */
  weights: (lineage: string, step: number, replay = 0) =>
    `${branch(lineage)}weights/step_${versionNumber(step, replay)}/`,
  /** Place where a version waits for its commit, in a store that is a folder: `attempt` identifies the writer. */
  pending: (lineage: string, step: number, attempt: string) => `${layout.allPending(lineage)}step_${step}.${attempt}/`,
  allPending: (lineage: string) => `${branch(lineage)}pending/`,
  /** The folder's name until 24 November 2026. */
  olderPending: (lineage: string) => `${branch(lineage)}staged/`,
  /** The newest version that servers hold. */
  served: (lineage: string) => `${branch(lineage)}served.json`,
  canary: (lineage: string, step: number, replay = 0) =>
    `${layout.allCanaries(lineage)}step_${versionNumber(step, replay)}.json`,
  /** Servers that hold other weights under the version's name, as its canary found. */
  quarantinedServers: (lineage: string, step: number, replay = 0) =>
    `${layout.allCanaries(lineage)}step_${versionNumber(step, replay)}.quarantined.json`,
  allCanaries: (lineage: string) => `${branch(lineage)}canaries/`,
  allWeights: (lineage: string) => `${branch(lineage)}weights/`,
  checkpoint: (lineage: string, step: number) => `${branch(lineage)}checkpoints/step_${step}/`,
  allCheckpoints: (lineage: string) => `${branch(lineage)}checkpoints/`,
  warmUp: (step: number) => `checkpoints/warm_up/step_${step}/`,
  allWarmUps: () => 'checkpoints/warm_up/',
  /** `replay` as in `PolicyVersion`; `variant` distinguishes evaluations of one version. */
  evaluation: (lineage: string, environment: string, model: string, step: number, { replay = 0, variant = '' } = {}) =>
    `${layout.evaluations(lineage, environment, model)}step_${versionNumber(step, replay)}${variant === '' ? '' : `.${variant}`}/`,
  /** All of one environment. */
  evaluations: (lineage: string, environment: string, model: string) =>
    `${layout.allEvaluations(lineage)}${environment}--${model.replaceAll('/', '--')}/`,
  allEvaluations: (lineage: string) => `${branch(lineage)}evals/`,
  /**
   * Results of a chunk in one environment, in verifiers' format (`metadata.json`), with the rows of rollouts that the
   * environment writes itself (`records.jsonl.gz`). All other rows are generated from the scored chunk on demand.
   */
  resultsOfChunk: (
    lineage: string,
    round: Pick<RoundPlace, 'step' | 'first' | 'last'>,
    { environment, run, chunk }: { readonly environment: string; readonly run: string; readonly chunk: string },
  ) => `${results(lineage, environment, run)}step_${round.step}.groups_${round.first}-${round.last}.${chunk}/`,
  /** Results of all rounds. */
  allResults: (lineage: string) => `${branch(lineage)}results/evals/`,
  /** The rows of `[sft] data`, or of `[data] name`. */
  sftData: () => 'sft/data.jsonl',
  /** Log probabilities of each pair of `[sft] data` under the weights before the warm-up. */
  sftReference: () => 'sft/reference.json',
  /** The text of `[tokenizer] chat_template`. */
  chatTemplate: () => 'chat_template.jinja',
  /** A search for a better prompt of one environment that began from a version. */
  promptBranch: (lineage: string, environment: string, model: string, version: Parameters<typeof versionNumber>) =>
    `${layout.allPromptBranches(lineage)}${environment}--${model.replaceAll('/', '--')}/step_${versionNumber(...version)}/`,
  allPromptBranches: (lineage: string) => `${branch(lineage)}gepa/`,
  /** The text of a system prompt in use, by content. */
  prompt: (digest: string) => `prompts/${digest.slice(0, 16)}.txt`,
  /** Objects that `ratchet fsck --repair` moved away, by their sha256. */
  quarantined: (key: string, digest: string) => `${layout.allQuarantined()}${key}.${digest.slice(0, 8)}`,
  allQuarantined: () => 'quarantine/',
  /** Index of rollouts for the pages of `ratchet ui`; made of commits and scored chunks, and rebuilt when missing. */
  rolloutIndex: (lineage: string) => `${branch(lineage)}index/rollouts/`,
  /** Rollouts of groups that ended in these steps: `columns` holds numbers, `text` the texts. */
  indexBlock: (lineage: string, first: number, last: number, what: 'columns' | 'text') =>
    `${layout.rolloutIndex(lineage)}steps_${first}-${last}.${what}`,
  /** People's notes on the run, and its own notices. */
  notice: (id: string) => `${layout.notices()}${id}.json`,
  notices: () => 'notices/',
  /** That a notice was sent to the run's webhook. */
  sentNotice: (id: string) => `${layout.sentNotices()}${id}.json`,
  sentNotices: () => `${layout.notices()}sent/`,
  /** Why the run's webhook accepts no notices at present. */
  webhook: () => `${layout.notices()}webhook/state.json`,
  /** A state of a budget, of the run itself or below the prefix of an evaluation or a search. */
  budgetEntry: (prefix: string, entry: number) => `${prefix}budget/entry_${entry}.json`,
  /** A change that a person asked of this execution; `digest` is of its id, `prefix` as in `changes`. */
  change: (execution: string, digest: string, prefix = '') =>
    `${layout.changes(prefix)}${execution}.${digest.slice(0, 16)}.json`,
  /** Changes of a run; below a prefix those of a sweep, a pool, a search or an evaluation. */
  changes: (prefix = '') => `${prefix}changes/`,
  /** Why somebody wants the run to stay, whatever its retention says. */
  kept: () => 'kept.json',
  metrics: () => 'metrics.jsonl',
  /**
   * Order in which rows of metrics were sent, one row's key a line: a row keeps its number even if the file is
   * rewritten.
   */
  metricsOrder: () => 'sinks/order.jsonl',
  /** Progress of each sink. */
  sinks: () => 'sinks/state.json',
  /** Files of TensorBoard, which has a run for each lineage. */
  eventFile: (lineage: string, seconds: number, part: number) =>
    `${layout.allEventFiles(lineage)}events.out.tfevents.${String(seconds).padStart(10, '0')}.${String(part).padStart(3, '0')}.ratchet`,
  allEventFiles: (lineage: string) => `tensorboard/${lineage}/`,
  wandb: () => 'wandb/',
  /** Which archive is being imported, while its run is not whole; see `runs/archive/import-run.ts`. */
  unfinishedImport: () => 'unfinished_import.txt',
  allLogs: () => 'logs/',
  log: (attempt: number, role: string) => `logs/attempt_${attempt}/${role}.log`,
} as const;

/** Until 25 November 2026 all groups of a round were scored together. Until 24 November these files were not compressed. */
export const olderScoredNames = ['scored.jsonl.gz', 'scored.jsonl'] as const;

function isOlderScored(key: string): boolean {
  return olderScoredNames.some((name) => key.endsWith(`/${name}`));
}

function folderOf(key: string): string {
  return key.slice(0, key.lastIndexOf('/') + 1);
}

/** Rows that an environment wrote itself, below `layout.resultsOfChunk`. */
export const recordsName = 'records.jsonl.gz';

/** Which round an object below `layout.round` is of. */
interface RoundPlace {
  readonly lineage: string;
  readonly step: number;
  readonly first: number;
  readonly last: number;
  /** Name of the chunk; absent for an object of the whole round. */
  readonly chunk?: string;
}

export type ChunkPlace = Required<RoundPlace>;

/** Null for a key that is of no round. */
export function roundOf(key: string): RoundPlace | null {
  const match = /^(?:lineages\/([^/]+)\/)?rollouts\/step_(\d+)\/groups_(\d+)-(\d+)\//.exec(key);
  if (!match) return null;
  const [folder, lineage = firstLineage, step, first, last] = match;
  const chunk = chunkIn(key.slice(folder.length));
  return { lineage, step: Number(step), first: Number(first), last: Number(last), ...present({ chunk }) };
}

/**
 * Finds the chunk whose results are in a folder, from the folder's key. Until 25 November 2026 results belonged to a whole round. Null for
 * other folders.
 */
export function chunkOfResults(folder: string): RoundPlace | null {
  const match = /(?:^|\/)step_(\d+)\.groups_(\d+)-(\d+)(?:\.([^/]+))?\/$/.exec(folder);
  if (!match) return null;
  const [, step, first, last, chunk] = match;
  const place = { lineage: lineageOf(folder), step: Number(step), first: Number(first), last: Number(last) };
  return { ...place, ...present({ chunk }) };
}

function results(lineage: string, environment: string, run: string): string {
  return `${layout.allResults(lineage)}${environment}--${run.replaceAll('/', '--')}/`;
}

/** The chunk that a key of `layout.inPlay` is of, and when its attempt began; null for another key. */
export function chunkInPlayOf(key: string): (ChunkPlace & { readonly beganAtMs: number }) | null {
  // Until 30 November 2026 all attempts at a chunk had one key.
  const match = /(?:^|\/)in_play\/step_(\d+)\.groups_(\d+)-(\d+)\.([^/]+?)(?:\.(\d+)-[^./]+)?\.json$/.exec(key);
  if (!match) return null;
  const [, step, first, last, chunk, beganAtMs = 0] = match;
  return {
    lineage: lineageOf(key),
    step: Number(step),
    first: Number(first),
    last: Number(last),
    chunk: chunk!,
    beganAtMs: Number(beganAtMs),
  };
}

/** Null for a key that is of no notice. */
export function noticeIdOf(key: string): string | null {
  return /^notices\/([^/]+)\.json$/.exec(key)?.[1] ?? null;
}

/** The steps that a block of the index is of; null for another key. */
export function stepsOfBlock(key: string): { readonly first: number; readonly last: number } | null {
  const match = /(?:^|\/)index\/rollouts\/steps_(\d+)-(\d+)\.columns$/.exec(key);
  return match && { first: Number(match[1]), last: Number(match[2]) };
}

/** Lineage that an object belongs to, from its key. */
export function lineageOf(key: string): string {
  return /^lineages\/([^/]+)\//.exec(key)?.[1] ?? firstLineage;
}

/** The first lineage is at the top of the run's folder, where users of other trainers look; later ones are below it. */
function branch(lineage: string): string {
  return lineage === firstLineage ? '' : `lineages/${lineage}/`;
}

/** The number after `step_` in a key, or null. */
export function stepOf(key: string): number | null {
  const match = /(?:^|\/)step_(\d+)(?:[./]|$)/.exec(key);
  return match ? Number(match[1]) : null;
}
