import { startedWith } from './kinds/inference.ts';

/** Names that several processes must agree on. */

/** Task queues by required resources: orchestration (CPU, store), rollouts (environments), training (one GPU). */
export const taskQueues = {
  orchestrator: 'ratchet',
  rollout: 'ratchet-rollout',
  train: 'ratchet-train',
} as const satisfies Record<WorkerRole, string>;

/** How the label of a wait begins in which a run has no trainer. */
export const trainerWaits = { alone: 'a GPU worker', ofPool: 'a trainer of the pool' } as const;

/** Failure type of a chunk that a worker gave back before it began, so that another one gets it. */
export const passedOnType = 'PassedOn';

/** Failure type that Temporal uses when a worker does not have an activity. */
export const notRegisteredType = 'NotFoundError';

/** Roles of worker processes: one task queue each. */
export const workerRoles = ['orchestrator', 'rollout', 'train'] as const;
export type WorkerRole = (typeof workerRoles)[number];

/**
 * The queues of one GPU process, served by no other: one to hold it again, one for training, one for uploads. `holder`
 * is unique to the process. A name reserves nothing: `leaseTrainer` does.
 */
export function trainerQueues(holder: string): {
  readonly hold: string;
  readonly steps: string;
  readonly uploads: string;
} {
  const steps = `${taskQueues.train}-${holder}`;
  return { hold: `${steps}-hold`, steps, uploads: `${steps}-upload` };
}

/** The queue of the workers of a pool: each pool has its own, and work of no pool the plain one. */
export function queueOfPool(queue: string, pool: string | null | undefined): string {
  return pool == null ? queue : `${queue}@${pool}`;
}

/** Names of pools, teams and labels become parts of queues and workflow ids. */
export const poolNamePattern = /^[A-Za-z0-9][\w.-]{0,63}$/;

/** The workflow that gives out the trainers of a pool. */
export function poolWorkflowId(pool: string): string {
  return `${poolWorkflowPrefix}${pool}`;
}

export const poolWorkflowPrefix = 'ratchet-pool-';

/** Signals to a pool, with `RunStanding` from a run and `TrainerStanding` from a GPU worker; and from it to a run, with `TurnNotice`. */
export const runStandingSignalName = 'run-standing';
export const trainerStandingSignalName = 'trainer-standing';
export const turnSignalName = 'turn';
/** Query of a pool: whom it has as the holder of a trainer. */
export const poolHolderQueryName = 'who-has';
/** Query of a pool: why a run waits. */
export const poolWhyQueryName = 'why-waits';
/** Query of a pool: `PoolStatus`. */
export const poolStatusQueryName = 'status';

export const poolSharesQueryName = 'shares';
/** Query of a pool: the newest `RunChange`s. */
export const poolChangesQueryName = 'changes';

/** Signal from a GPU worker's activity: it holds the run. */
export const trainerLeasedSignalName = 'trainer-leased';

/**
 * Signal with `RoundsPlayed`, from the workflow that generates a run's rounds; and the signal that this workflow waits
 * for a person.
 */
export const roundsPlayedSignalName = 'rounds-played';
export const rolloutsWaitSignalName = 'rollouts-wait';

/** Signal with `PartsNotice`, from a rollout worker: groups of chunks in flight have ended. */
export const groupsEndedSignalName = 'groups-ended';

/** Signal by which a worker reports that it does not see a run's store, or sees it again; it carries `StoreMissed`. */
export const storeMissedSignalName = 'store-missed';

/**
 * Signal from a rollout worker to an evaluation: few rollouts of a chunk are left. Payload: the chunk's number and
 * their count.
 */
export const chunkLeftSignalName = 'chunk-left';

/** Signal with `EvaluationNotice`: an evaluation of a run has ended. */
export const evaluationEndedSignalName = 'evaluation-ended';

/** Signal with `PromptSearchNotice`: a prompt search of a run has ended. */
export const promptBranchEndedSignalName = 'prompt-branch-ended';

/** Signal with `FoundRegression`: a scheduled evaluation of a run got worse. */
export const regressionFoundSignalName = 'regression-found';

/**
 * Keys of the memo of a run's workflow: `AskedOfRun`, the execution from which an upgrade took over, and by environment
 * the newest evaluations that were worse than the best before them. A pool's has its settings, and that of a run's evaluations and searches the run's pool,
 * and its priority unless that is 0. Evaluations and searches that were taken over have a memo as well.
 */
export const memoKeys = {
  asked: 'asked',
  takenOverFrom: 'taken_over_from',
  regression: 'regression',
  poolSettings: 'pool_settings',
  pool: 'pool',
  priority: 'priority',
} as const;

/** Key of the memo of a schedule: the absolute URI of the folder of runs where its changes are kept. */
export const scheduleStoreMemo = 'ratchet_store';

/** One lineage is one unbroken chain of commits; rewind and fork start another. */
export const firstLineage = 'main';

/** A run is named once and its workflow id is that name. The pattern also keeps it safe as a folder name. */
export const runNamePattern = /^[a-z0-9][a-z0-9._-]{0,63}$/;

/**
 * Folders beside the runs: of evaluations and searches on demand, and of records of pools, sandboxes, schedules and sweeps.
 * No run begins under such a name: its files would mix with theirs, and whoever removed the run would remove them, too.
 */
export const namesBesideRuns = ['evals', 'gepa', 'pools', 'sandboxes', 'schedules', 'sweeps'] as const;
export type NameBesideRuns = (typeof namesBesideRuns)[number];

/** The run name nearest to a text: `Reverse Text` → `reverse-text`; undefined if no character remains. */
export function asRunName(text: string): string | undefined {
  const name = text
    .toLowerCase()
    .replaceAll(/[^a-z0-9._-]+/g, '-')
    .replace(/^[^a-z0-9]+/, '')
    .slice(0, 64)
    .replace(/(?<![^a-z0-9])[^a-z0-9]+$/, '');
  return runNamePattern.test(name) ? name : undefined;
}

/**
 * Allowed ids of a workflow that drives a run: ids are shown, copied into commands and stored, so nothing that reads as
 * a path.
 */
export const workflowIdPattern = /^[A-Za-z0-9][\w.:+@-]{0,254}$/;

/** The lineage started as number 2, 3, …; number 1 is the first. */
export function lineageName(number: number): string {
  return number === 1 ? firstLineage : `l${number}`;
}

export function lineageNumber(name: string): number {
  return name === firstLineage ? 1 : Number(/^l(\d+)$/.exec(name)?.[1]);
}

/** The name under which an inference server holds one version of a run's policy. `replay` as in `PolicyVersion`. */
export function policyName(run: string, lineage: string, step: number, replay = 0): string {
  return `${run}:${lineage}:${versionNumber(step, replay)}`;
}

/** `12`, and `12.r1` for the first replay of step 12 with other weights. */
export function versionNumber(step: number, replay = 0): string {
  return replay === 0 ? `${step}` : `${step}.r${replay}`;
}

/** `v12`, and `v12.r1`: the form for people. */
export function versionName({ step, replay = 0 }: { readonly step: number; readonly replay?: number }): string {
  return `v${versionNumber(step, replay)}`;
}

/**
 * The workflow that evaluates one version of a run on one environment: `RUN.eval.ENV.v12`, in a later lineage
 * `RUN.eval.ENV.l2.v12`, with `variant` behind it if there are several.
 */
export function evaluationWorkflowId(
  run: string,
  environment: string,
  { lineage, ...version }: { readonly lineage: string; readonly step: number; readonly replay?: number | undefined },
  variant = '',
): string {
  const { step, replay = 0 } = version;
  const place = lineage === firstLineage ? '' : `${lineage}.`;
  return `${run}.eval.${environment}.${place}${versionName({ step, replay })}${variant === '' ? '' : `.${variant}`}`;
}

/**
 * Id of the workflow that generates rounds for an execution of a run: `RUN.rollouts.1a2b3c4d`, with a number from 2
 * after a loss.
 */
export function rolloutsWorkflowId(run: string, execution: string, number: number): string {
  return `${rolloutsWorkflowPrefix(run)}${execution.slice(-12)}${number === 1 ? '' : `.${number}`}`;
}

export function rolloutsWorkflowPrefix(run: string): string {
  return `${run}.rollouts.`;
}

/**
 * Whether the id belongs to a workflow that generates this run's rounds; ids of runs with a longer name do not match.
 */
export function isRolloutsWorkflowOf(run: string, workflowId: string): boolean {
  const prefix = rolloutsWorkflowPrefix(run);
  return workflowId.startsWith(prefix) && /^[0-9a-f]{12}(?:\.\d+)?$/.test(workflowId.slice(prefix.length));
}

/** A separate prompt search, by the names of its environments (with `+` between several) and its id: `gepa.ENV.ID`. */
export function promptSearchWorkflowId(environments: string, id: string): string {
  return `gepa.${environments}.${id}`;
}

/**
 * A run's prompt search for one environment, from a version: `RUN.gepa.ENV.v12`, in a later lineage
 * `RUN.gepa.ENV.l2.v12`.
 */
export function promptBranchWorkflowId(
  run: string,
  environment: string,
  lineage: string,
  version: { readonly step: number; readonly replay?: number },
): string {
  return `${run}.gepa.${environment}.${lineage === firstLineage ? '' : `${lineage}.`}${versionName(version)}`;
}

/** The workflow of a sweep: `NAME.sweep`. Its runs have ids of their own, which are their names. */
export function sweepWorkflowId(name: string): string {
  return `${name}.sweep`;
}

/** Whether an environment id is a path of the user's: `./my-env.ts`, relative to the config, or absolute. */
export function isEnvironmentFile(id: string): boolean {
  return environmentFilePattern.test(id);
}

/** Whether a model's name is one on the Hugging Face Hub: `Qwen/Qwen3-4B`. A folder may have such a name as well. */
export function isHubId(model: string): boolean {
  return /^[A-Za-z0-9][\w.-]*\/[A-Za-z0-9][\w.-]*$/.test(model);
}

const ofPackage = /(?:^|[\\/])packaged--([\w.-]+)--([0-9a-f]{8})[\\/]?$/;
const inHubCache = /(?:^|[\\/])models--([\w.-]+?)--([\w.-]+)[\\/]snapshots[\\/]([0-9a-f]{40})[\\/]?$/;

/**
 * A model's name for people: `Qwen/Qwen3-0.6B@1a2b3c4d…` for its folder in a Hugging Face cache, or ours, on any
 * machine; else unchanged.
 */
export function modelName(model: string): string {
  const [, packaged, digest] = ofPackage.exec(model) ?? [];
  if (digest !== undefined) return `${packaged}@${digest}`;
  const [, owner, name, commit] = inHubCache.exec(model) ?? [];
  return commit === undefined ? model : `${owner}/${name}@${commit}`;
}

/** The name without its location: a preset's name, a package's, `OWNER/NAME` of the Hub, the last part of a path. */
export function shortModelName(model: string): string {
  const named = modelName(model);
  if (named !== model) return named.replace(/@[0-9a-f]+$/, '');
  const isPath = /^(?:\/|\.{1,2}[\\/]|~|[A-Za-z]:[\\/]|file:)/.test(model);
  return isPath ? (model.split(/[\\/]/).findLast((part) => part !== '') ?? model) : model.replace(/^preset:/, '');
}

const environmentFilePattern = /^(?:\.{1,2}\/|\/).*[^/]\.m?[jt]s$/;

/**
 * The folder of an environment id: without owner and version, dashes where Python packages have underscores. A file's
 * id becomes its name without the ending, or its folder's name if it is an index.
 */
export function environmentName(id: string): string {
  if (isEnvironmentFile(id)) return nameOfFile(id);
  const withoutOwner = /^[A-Za-z0-9][\w.-]*\/([^/]+)$/.exec(id)?.[1] ?? id;
  return withoutOwner.split('@', 1)[0]!.replaceAll('_', '-');
}

/** The name without the number that distinguishes equal ids in one file. */
export function unnumberedName(name: string, id: string): string {
  const own = environmentName(id);
  return name.startsWith(`${own}-`) && /^\d+$/.test(name.slice(own.length + 1)) ? own : name;
}

function nameOfFile(file: string): string {
  const parts = file.replace(/\.m?[jt]s$/, '').split('/');
  const last = parts.at(-1)!;
  const name = last === 'index' ? (parts.at(-2) ?? last) : last;
  // The same spelling as environments: names become folders and metrics.
  const spelt = name
    .replaceAll(/[^\w.-]+/g, '-')
    .replace(/^[^A-Za-z0-9]+/, '')
    .slice(0, 64);
  return spelt === '' || spelt === 'agg' ? 'environment' : spelt;
}

type NamedTrainer =
  | { readonly kind: 'onnx'; readonly provider: string }
  | { readonly kind: 'torch' | 'prime-rl'; readonly ranks: number }
  | { readonly kind: 'tinker'; readonly url: string }
  | { readonly kind: 'module'; readonly import: { readonly path: string } };

/** Who trains, for people. */
export function trainerName(trainer: NamedTrainer): string {
  switch (trainer.kind) {
    case 'onnx':
      return `the embedded engine on ${trainer.provider}`;
    case 'torch':
      return `PyTorch on ${trainer.ranks} ${trainer.ranks === 1 ? 'rank' : 'ranks'}`;
    case 'prime-rl':
      return `prime-rl’s trainer on ${trainer.ranks} ${trainer.ranks === 1 ? 'rank' : 'ranks'}`;
    case 'tinker':
      return `the Tinker server at ${trainer.url}`;
    case 'module':
      return trainer.import.path;
    default:
      return trainer satisfies never;
  }
}

type SaidServers =
  | { readonly kind: 'module' }
  | { readonly kind: 'tinker'; readonly url: string }
  | {
      readonly kind: 'embedded' | 'openai' | 'vllm';
      readonly url: string | readonly string[] | null;
      readonly endpoints: { readonly path: string; readonly id: string } | null;
    };

/** The servers that a run file names, for people; null if they are Ratchet's own. */
export function namedServers(inference: SaidServers): string | null {
  if (!('url' in inference)) return null;
  if (!('endpoints' in inference)) return `the Tinker server at ${inference.url}`;
  const { url, endpoints } = inference;
  if (endpoints) return `the servers of "${endpoints.id}" in ${endpoints.path}`;
  if (url === null) return startedWith(inference) === 'vllm' ? 'the vLLM that is started with it' : null;
  const urls = [url].flat();
  return urls.length === 1 ? `the server at ${urls[0]}` : `${urls.length} servers: ${urls.join(', ')}`;
}

/** The environment variable with the key of weights agents that listen to other machines. */
export const weightsAgentKeyVar = 'RATCHET_WEIGHTS_AGENT_KEY';

/** The environment variable with the key of a codec server: who sends it may read encrypted payloads. */
export const codecKeyVar = 'RATCHET_CODEC_KEY';

/** Whether a file's name stays below the work folder of a sandbox: spelt without detours, and as file systems take it. */
export function isInsideWorkFolder(name: string): boolean {
  const parts = name.split('/');
  const isStraight = parts.every((part) => part !== '' && part !== '.' && part !== '..');
  const isShort = parts.every((part) => new TextEncoder().encode(part).length <= namePartBytesMax);
  return isStraight && isShort && !/[\0\\]/.test(name) && isUnicode(name);
}

const namePartBytesMax = 255;

/** Half of a surrogate pair has no form in UTF-8: it would be written as another character. */
export function isUnicode(text: string): boolean {
  return !/\p{Surrogate}/u.test(text);
}
