import type { InferenceSpec } from '../config/run-spec.ts';

/** Names that several processes must agree on. */

/** Task queues by what the machine needs: orchestration (CPU, store), rollouts (environments), training (one GPU). */
export const taskQueues = {
  orchestrator: 'ratchet',
  rollout: 'ratchet-rollout',
  train: 'ratchet-train',
} as const satisfies Record<WorkerRole, string>;

/** Failure type that Temporal uses when a worker does not have an activity. */
export const notRegisteredType = 'NotFoundError';

/** What a worker process may work on: one queue each. */
export const workerRoles = ['orchestrator', 'rollout', 'train'] as const;
export type WorkerRole = (typeof workerRoles)[number];

/**
 * The queues of one GPU process, which no other process serves: one to hold it once more, one for what trains, one for
 * what uploads. `holder` is unique to the process. A name that was handed out reserves nothing: `leaseTrainer` does.
 */
export function trainerQueues(holder: string): {
  readonly hold: string;
  readonly steps: string;
  readonly uploads: string;
} {
  const steps = `${taskQueues.train}-${holder}`;
  return { hold: `${steps}-hold`, steps, uploads: `${steps}-upload` };
}

/** How a GPU worker tells a run that it holds it: a signal, from an activity to the workflow. */
export const trainerLeasedSignalName = 'trainer-leased';

/** How the workflow that plays a run's rounds tells it what it does not know: a signal, `RoundsPlayed`; and that a person is waited for. */
export const roundsPlayedSignalName = 'rounds-played';
export const rolloutsWaitSignalName = 'rollouts-wait';

/** How a rollout worker tells a run that groups have ended whose chunks are in play: a signal, `PartsNotice`. */
export const groupsEndedSignalName = 'groups-ended';

/** Signal by which a worker reports that it does not see a run's store, or sees it again; it carries `StoreMissed`. */
export const storeMissedSignalName = 'store-missed';

/** How a rollout worker tells an evaluation that few rollouts of a chunk are left: a signal, with the chunk's number and how many. */
export const chunkLeftSignalName = 'chunk-left';

/** How an evaluation that a run asked for tells it of its end: a signal, `EvaluationNotice`. */
export const evaluationEndedSignalName = 'evaluation-ended';

/** How a branch that looks for a better prompt tells its run of its end: a signal, `PromptSearchNotice`. */
export const promptBranchEndedSignalName = 'prompt-branch-ended';

/** How an evaluation on a schedule tells a run that it got worse: a signal, `FoundRegression`. */
export const regressionFoundSignalName = 'regression-found';

/**
 * What the memo of a run's workflow holds: `AskedOfRun`, the execution that an upgrade took it over from, and by environment
 * the newest evaluations that were worse than the best before them. Evaluations and searches that were taken over say so as well.
 */
export const memoKeys = { asked: 'asked', takenOverFrom: 'taken_over_from', regression: 'regression' } as const;

/** One lineage is one unbroken chain of commits; rewind and fork open another. */
export const firstLineage = 'main';

/** A run is named once and its workflow id is that name. The pattern also keeps it safe as a folder name. */
export const runNamePattern = /^[a-z0-9][a-z0-9._-]{0,63}$/;

/** The run name nearest to a text: `Reverse Text` → `reverse-text`; undefined where nothing of it can stay. */
export function asRunName(text: string): string | undefined {
  const name = text
    .toLowerCase()
    .replaceAll(/[^a-z0-9._-]+/g, '-')
    .replace(/^[^a-z0-9]+/, '')
    .slice(0, 64)
    .replace(/(?<![^a-z0-9])[^a-z0-9]+$/, '');
  return runNamePattern.test(name) ? name : undefined;
}

/** What a workflow that drives a run may be called: it is shown, copied into commands and stored, so nothing that reads as a path. */
export const workflowIdPattern = /^[A-Za-z0-9][\w.:+@-]{0,254}$/;

/** The lineage begun as number 2, 3, …; number 1 is the first. */
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

/** `12`, and `12.r1` for the first replay of step 12 that gave other weights. */
export function versionNumber(step: number, replay = 0): string {
  return replay === 0 ? `${step}` : `${step}.r${replay}`;
}

/** `v12`, and `v12.r1`: a version as people are told of it. */
export function versionName({ step, replay = 0 }: { readonly step: number; readonly replay?: number }): string {
  return `v${versionNumber(step, replay)}`;
}

/**
 * The workflow that evaluates one version of a run on one environment: `RUN.eval.ENV.v12`, of a later lineage `RUN.eval.ENV.l2.v12`, with
 * `variant` behind it where there are several.
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

/** Who plays a run's rounds, for an execution of the run: `RUN.rollouts.1a2b3c4d`, and with a number from 2 where one was lost. */
export function rolloutsWorkflowId(run: string, execution: string, number: number): string {
  return `${rolloutsWorkflowPrefix(run)}${execution.slice(-12)}${number === 1 ? '' : `.${number}`}`;
}

export function rolloutsWorkflowPrefix(run: string): string {
  return `${run}.rollouts.`;
}

/** Whether a workflow's id is that of one that plays this run's rounds, and not those of a run with a longer name. */
export function isRolloutsWorkflowOf(run: string, workflowId: string): boolean {
  const prefix = rolloutsWorkflowPrefix(run);
  return workflowId.startsWith(prefix) && /^[0-9a-f]{12}(?:\.\d+)?$/.test(workflowId.slice(prefix.length));
}

/** A search of its own, by the names of its environments (with `+` between several) and its id: `gepa.ENV.ID`. */
export function promptSearchWorkflowId(environments: string, id: string): string {
  return `gepa.${environments}.${id}`;
}

/** The branch of a run that looks for a better prompt of one environment, from a version: `RUN.gepa.ENV.v12`, of a later lineage `RUN.gepa.ENV.l2.v12`. */
export function promptBranchWorkflowId(
  run: string,
  environment: string,
  lineage: string,
  version: { readonly step: number; readonly replay?: number },
): string {
  return `${run}.gepa.${environment}.${lineage === firstLineage ? '' : `${lineage}.`}${versionName(version)}`;
}

/** Whether an environment id names a file of the user's: `./my-env.ts`, from where the config lies, or an absolute path. */
export function isEnvironmentFile(id: string): boolean {
  return environmentFilePattern.test(id);
}

/** Whether a model's name is one on the Hugging Face Hub: `Qwen/Qwen3-4B`. A folder may have such a name as well. */
export function isHubId(model: string): boolean {
  return /^[A-Za-z0-9][\w.-]*\/[A-Za-z0-9][\w.-]*$/.test(model);
}

const ofPackage = /(?:^|[\\/])packaged--([\w.-]+)--([0-9a-f]{8})[\\/]?$/;
const inHubCache = /(?:^|[\\/])models--([\w.-]+?)--([\w.-]+)[\\/]snapshots[\\/]([0-9a-f]{40})[\\/]?$/;

/** What people call a model: `Qwen/Qwen3-0.6B@1a2b3c4d…` for its folder in a Hugging Face cache, or ours, on whatever machine; else as it is. */
export function modelName(model: string): string {
  const [, packaged, digest] = ofPackage.exec(model) ?? [];
  if (digest !== undefined) return `${packaged}@${digest}`;
  const [, owner, name, commit] = inHubCache.exec(model) ?? [];
  return commit === undefined ? model : `${owner}/${name}@${commit}`;
}

/** Without where its files are: a preset's name, a package's, `OWNER/NAME` of the Hub, the last part of a path. */
export function shortModelName(model: string): string {
  const named = modelName(model);
  if (named !== model) return named.replace(/@[0-9a-f]+$/, '');
  const isPath = /^(?:\/|\.{1,2}[\\/]|~|[A-Za-z]:[\\/]|file:)/.test(model);
  return isPath ? (model.split(/[\\/]/).findLast((part) => part !== '') ?? model) : model.replace(/^preset:/, '');
}

const environmentFilePattern = /^(?:\.{1,2}\/|\/).*[^/]\.m?[jt]s$/;

/**
 * The folder an environment id stands for: without owner and version, dashes where Python packages have underscores. Of a file its
 * name without the ending, or its folder's where it is an index.
 */
export function environmentName(id: string): string {
  if (isEnvironmentFile(id)) return nameOfFile(id);
  const withoutOwner = /^[A-Za-z0-9][\w.-]*\/([^/]+)$/.exec(id)?.[1] ?? id;
  return withoutOwner.split('@', 1)[0]!.replaceAll('_', '-');
}

/** As people named it: without the number that tells it from others of its id in one file. */
export function unnumberedName(name: string, id: string): string {
  const own = environmentName(id);
  return name.startsWith(`${own}-`) && /^\d+$/.test(name.slice(own.length + 1)) ? own : name;
}

function nameOfFile(file: string): string {
  const parts = file.replace(/\.m?[jt]s$/, '').split('/');
  const last = parts.at(-1)!;
  const name = last === 'index' ? (parts.at(-2) ?? last) : last;
  // As names of environments are spelt: they become those of folders and metrics.
  const spelt = name
    .replaceAll(/[^\w.-]+/g, '-')
    .replace(/^[^A-Za-z0-9]+/, '')
    .slice(0, 64);
  return spelt === '' || spelt === 'agg' ? 'environment' : spelt;
}

type PoolSpec = Exclude<InferenceSpec, { readonly kind: 'module' | 'tinker' }>;
type SaidServers =
  | { readonly kind: 'module' }
  | { readonly kind: 'tinker'; readonly url: string }
  | Pick<PoolSpec, 'kind' | 'url' | 'endpoints'>;

/** The servers that a run file asks for, for people; null where those are Ratchet's own. */
export function namedServers(inference: SaidServers): string | null {
  if (inference.kind === 'module') return null;
  if (inference.kind === 'tinker') return `the Tinker server at ${inference.url}`;
  const { url, endpoints } = inference;
  if (endpoints) return `the servers of "${endpoints.id}" in ${endpoints.path}`;
  if (url === null) return inference.kind === 'vllm' ? 'the vLLM that is started with it' : null;
  const urls = [url].flat();
  return urls.length === 1 ? `the server at ${urls[0]}` : `${urls.length} servers: ${urls.join(', ')}`;
}

/** The environment variable with the key of weights agents that listen to other machines. */
export const weightsAgentKeyVar = 'RATCHET_WEIGHTS_AGENT_KEY';
