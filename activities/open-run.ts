import path from 'node:path';
import { RatchetError } from '../core/errors.ts';
import { layout } from '../runs/layout.ts';
import { firstLineage, workflowIdPattern } from '../core/names.ts';
import type { AskedOfRun, ObjectRef, RunHandle, StepCommit } from '../core/rl/run-state.ts';
import { settingsWithoutResume } from '../config/resume-words.ts';
import type { EnvironmentSpec, RunSpec } from '../config/run-spec.ts';
import { checkOwnCode } from '../backends/configs/check-own-code.ts';
import { environmentsOf, grantByFile, keysApart, namedByEnvironments, serversIn } from '../backends/configs/grant.ts';
import type { SpecSource } from '../runs/spec-source.ts';
import { type ConfigLayer, loadRunConfig } from '../backends/configs/load-run-config.ts';
import type { SentFiles } from '../backends/configs/sent-files.ts';
import { whyNoDemonstrations } from '../backends/environments/demonstrations.ts';
import { openEnvironment } from '../backends/environments/index.ts';
import { sha256 } from '../backends/store/file-store.ts';
import { checkStore, openRunStore, type Store } from '../backends/store/index.ts';
import { encodeJson } from '../backends/store/objects.ts';
import { type Curves, curvesOf } from '../runs/curves.ts';
import { beginLineage, completeLineage, isWholeHere } from '../runs/lineages.ts';
import { recordMissing } from '../runs/record-metrics.ts';
import { claimIn, runRecordIn } from '../runs/record-shapes.ts';
import { refuseOtherIdentity } from '../runs/run-identity.ts';
import { refuseUnfinishedFork } from '../runs/unfinished-fork.ts';
import {
  begunLineages,
  committedSteps,
  isLastStep,
  type LineagePlace,
  readHead,
  requireCommit,
  type RunPlace,
  specOf,
} from '../runs/run-access.ts';

/** What `trainRun` is started with: a path, or a path with what the command line adds. */
export type TrainRunInput =
  | string
  | {
      readonly config: string;
      /** Further files that are laid over it, from left to right. */
      readonly over?: readonly ConfigLayer[];
      /** The name of the dialect they are written in; missing = the one that their keys show. */
      readonly dialect?: string;
      /** Dotted keys as on the command line, values as typed. */
      readonly overrides?: Readonly<Record<string, string>>;
      /** The text of these files, and what lay beside them; what is typed by hand is a path alone, read where the run is opened. */
      readonly sent?: SentFiles;
      /** The run's name; the config's own, or its file's stem, when missing. */
      readonly run?: string;
      /** Begins a lineage at this committed step, wherever the run stands. */
      readonly rewind?: number;
      /** Nobody types this: code that an upgrade brought goes on with what other code began (`workers/take-over.ts`). */
      readonly takesOver?: TakenOver;
    };

/** A run as the execution that worked on it left it. */
export interface TakenOver {
  /** As it had been opened; null when it had not come to that. */
  readonly handle: RunHandle | null;
  /** Null when it noted nothing: nothing was asked of it that its commits do not say. */
  readonly asked: AskedOfRun | null;
  /** Under which name that execution began a lineage where its input asked for one. */
  readonly request: string;
}

export interface OpenedRun {
  readonly handle: RunHandle;
  readonly spec: RunSpec;
  /** The newest commit, when the run has been here before. */
  readonly head: { readonly commit: StepCommit; readonly sha256: string } | null;
  /** Whether the run had made all the steps it was to make, at the head. */
  readonly hadEnded?: boolean;
  /** Whether a run that is taken over has been rewound, as was asked of it. */
  readonly isRewound?: boolean;
  /** Whether the weights that a lineage begins with are gone, by retention, or damaged: they are made again. */
  readonly weightsAreGone: boolean;
  readonly datasets: readonly { readonly name: string; readonly weight: number; readonly datasetLength: number }[];
  readonly warnings: readonly string[];
  /** Of a run that has been here before. */
  readonly curves?: Curves;
  /** Whether the search attributes RatchetRun, RatchetStep and RatchetReward exist in this namespace. */
  readonly hasSearchAttributes: boolean;
}

export interface OpenRunDependencies {
  readonly projectFolder: string;
  readonly hasSearchAttributes: () => Promise<boolean>;
  readonly isWorkflowRunning: (workflowId: string) => Promise<boolean>;
}

const searchAttributesMissing =
  'This Temporal namespace has no search attributes RatchetRun, RatchetStep and RatchetReward; the run tells its progress in its memo instead. ' +
  'To create them: temporal operator search-attribute create --name RatchetRun --type Keyword --name RatchetStep --type Int --name RatchetReward --type Double';

export const createOpenRun =
  (dependencies: OpenRunDependencies) =>
  /**
   * Loads, validates and stores the spec, and finds where the run stands, or begins a lineage where it is to go on from.
   * Twice does the same as once: a lineage is begun once per execution of the workflow (`executionId`). A run that is
   * taken over goes on with the settings it has: its config is not read again.
   */
  async (input: TrainRunInput, workflowId: string, executionId: string): Promise<OpenedRun> => {
    refuseWorkflowId(workflowId);
    const asked: Exclude<TrainRunInput, string> = typeof input === 'string' ? { config: input } : input;
    const { takesOver } = asked;
    const request = takesOver?.request ?? `${workflowId}/${executionId}`;
    const settings = await readSettings(dependencies, asked);
    const { spec } = settings;
    const isAsItStands = !takesOver?.handle && Object.keys(asked.overrides ?? {}).length === 0;
    grantByFile(namedByEnvironments(environmentsOf(spec)), isAsItStands);
    // Of several files each may be meant, and the key of one at the server of another is not.
    const { keys, rest } = keysApart(serversIn(spec));
    grantByFile(rest, isAsItStands);
    grantByFile(keys, isAsItStands && (asked.over ?? []).length === 0);
    await checkStore(spec.store.uri);
    const store = openRunStore(spec.store.uri, spec.name);
    const place = { name: spec.name, store: spec.store.uri };
    await refuseUnfinishedFork(place);
    await claimRun(dependencies, spec, workflowId);

    // Before the run's identity is written: what is refused may be corrected.
    const { datasets, warnings: told } = await openDatasets(spec);
    if (!takesOver?.handle) await checkOwnCode(spec);
    const attempt = await nextAttempt(store);
    const recorded = takesOver?.handle ? null : await recordSettings(dependencies, asked, { ...settings, attempt });
    const ref = recorded?.ref ?? takesOver!.handle!.spec;
    const { lineage, refused } = takesOver?.handle
      ? await openLineageAsAsked(place, takesOver.asked)
      : { lineage: await openLineage(place, { ...settings, rewind: asked.rewind, request }), refused: [] };
    const warnings = [...settings.warnings, ...told, ...(recorded?.changed ?? []), ...refused];
    const hasSearchAttributes = await dependencies.hasSearchAttributes();
    const handle: RunHandle = {
      ...place,
      lineage,
      spec: ref,
      attempt,
    };
    const head = await readHead(handle);
    await recordMissing(place);
    return {
      handle,
      spec,
      head,
      hadEnded: head !== null && (await isLastStep(store, head.commit)),
      ...(takesOver?.asked?.rewind && refused.length === 0 ? { isRewound: true } : {}),
      weightsAreGone: head?.commit.origin !== undefined && !(await isWholeHere(place, head.commit)),
      ...(head === null ? {} : { curves: await curvesOf(handle, head.commit.step) }),
      datasets,
      warnings: hasSearchAttributes ? warnings : [...warnings, searchAttributesMissing],
      hasSearchAttributes,
    };
  };

interface Settings {
  readonly spec: RunSpec;
  readonly warnings: readonly string[];
  /** The rows of `[sft] data`, unless they are stored. */
  readonly sftRows: Uint8Array | null;
  /** The text of `[tokenizer] chat_template`, unless it is stored. */
  readonly chatTemplate: string | null;
  /** `[ckpt] resume_step` */
  readonly resumeStep: number | null;
}

async function readSettings(
  { projectFolder }: OpenRunDependencies,
  { config, over = [], dialect, overrides = {}, run, sent, takesOver }: Exclude<TrainRunInput, string>,
): Promise<Settings> {
  if (takesOver?.handle) {
    const spec = await specOf(takesOver.handle);
    return { spec, warnings: [], sftRows: null, chatTemplate: null, resumeStep: null };
  }
  const options = {
    projectFolder,
    over,
    overrides,
    sent,
    reachesStore: true,
    ...(dialect === undefined ? {} : { dialect }),
  };
  return loadRunConfig(config, { ...options, ...(run === undefined ? {} : { run }) });
}

/** Stores the settings and what they were read from, if they are of the run that is there. */
async function recordSettings(
  { projectFolder }: OpenRunDependencies,
  { config, over = [], dialect, overrides = {} }: Exclude<TrainRunInput, string>,
  { spec, sftRows, chatTemplate, attempt }: Settings & { readonly attempt: number },
): Promise<{ readonly ref: ObjectRef; readonly changed: readonly string[] }> {
  const store = openRunStore(spec.store.uri, spec.name);
  const first = await store.putIfAbsent(layout.run(), encodeJson({ schemaVersion: 1, name: spec.name, spec }));
  const begun = runRecordIn(first.bytes, store.uri + layout.run());
  refuseOtherIdentity(spec, begun, store.uri);
  // They are what the identity says.
  if (sftRows) await store.put(layout.sftData(), sftRows);
  if (chatTemplate !== null) await store.put(layout.chatTemplate(), Buffer.from(chatTemplate));
  const bytes = encodeJson(spec);
  const ref = await store.put(layout.spec(sha256(bytes)), bytes);
  const source: SpecSource = {
    config: path.resolve(projectFolder, config),
    ...(over.length === 0
      ? {}
      : { over: over.map((layer) => ({ ...layer, file: path.resolve(projectFolder, layer.file) })) }),
    ...(dialect === undefined ? {} : { dialect }),
    overrides: settingsWithoutResume(overrides),
    attempt,
  };
  await store.put(layout.source(ref.key), encodeJson(source));
  return { ref, changed: changedEnvironments(spec, begun) };
}

/** What to say of environments whose files, or packages, are not what they were when the run began. */
function changedEnvironments(now: RunSpec, begun: RunSpec): string[] {
  return now.environments.flatMap((entry) => {
    const before = begun.environments.find(({ name }) => name === entry.name);
    const [was, is] = [before && madeOf(before), madeOf(entry)];
    if (was === is || !was || !is) return [];
    return `the environment ${entry.name} was changed since this run began: ${entry.id} had ${was}, now ${is}. The run continues with it as it is now; rewards before and after may not compare.`;
  });
}

/** What an environment that is not built in was made of, for people. */
function madeOf({ sha256, python }: EnvironmentSpec): string | undefined {
  if (sha256 !== undefined) return `sha256 ${sha256.slice(0, 12)}…`;
  if (python === undefined) return undefined;
  const files = python.sha256 === undefined ? '' : ` (sha256 ${python.sha256.slice(0, 12)}…)`;
  return `version ${python.version}${files} with verifiers ${python.verifiers}`;
}

function refuseWorkflowId(workflowId: string): void {
  if (workflowIdPattern.test(workflowId)) return;
  throw new RatchetError(
    'ConfigInvalid',
    `The workflow id ${JSON.stringify(workflowId)} cannot drive a run: expected up to 255 letters, digits and . _ : + @ -, beginning with a letter or digit. Start it again with another --workflow-id; the run's name is the best one.`,
  );
}

/** The lineage to go on in: the current one, or one that begins where the caller or the config asks for it. */
async function openLineage(
  run: RunPlace,
  asked: { readonly rewind: number | undefined; readonly resumeStep: number | null; readonly request: string },
): Promise<string> {
  const { rewind, resumeStep, request } = asked;
  const begun = await begunLineages(run);
  const newest = begun.at(-1);
  if (newest) await completeLineage(run, newest);
  const lineage = newest?.lineage ?? firstLineage;
  if (begun.some((record) => record.request === request)) return lineage; // done: what came since is not thrown away
  if (rewind !== undefined) return (await beginLineage({ run, step: rewind, request })).lineage;
  if (resumeStep === null || resumeStep === -1) return lineage;
  // Asked again, as when an interrupted command is typed again, it has been done: what came since is not thrown away.
  const head = await readHead({ ...run, lineage });
  if (head?.commit.step === resumeStep || (await firstStep({ ...run, lineage })) === resumeStep) return lineage;
  return (await beginLineage({ run, step: resumeStep, request })).lineage;
}

/** The same for a run that is taken over. What was asked of it and cannot be done any more must not end it. */
async function openLineageAsAsked(
  run: RunPlace,
  asked: AskedOfRun | null,
): Promise<{ readonly lineage: string; readonly refused: readonly string[] }> {
  const current = { rewind: undefined, resumeStep: null, request: '' };
  const rewind = asked?.rewind;
  try {
    const wanted = rewind ? { ...current, rewind: rewind.step, request: rewind.request } : current;
    return { lineage: await openLineage(run, wanted), refused: [] };
  } catch (error) {
    if (!(error instanceof RatchetError && error.code === 'Unsupported')) throw error;
    return { lineage: await openLineage(run, current), refused: [error.message] };
  }
}

/** Where a lineage took over; null when it began with a model. */
async function firstStep(run: LineagePlace): Promise<number | null> {
  const [first] = await committedSteps(run);
  return first === undefined ? null : ((await requireCommit(run, first)).commit.origin?.step ?? null);
}

/** Settings without those that say where to go on from: they are for one start, not for the run. */
async function openDatasets(spec: RunSpec): Promise<Pick<OpenedRun, 'datasets' | 'warnings'>> {
  const { environments, eval: evaluation } = spec;
  const warnings = new Set<string>();
  const open = async (entry: Parameters<typeof openEnvironment>[0]) => {
    const environment = await openEnvironment(entry);
    for (const warning of environment.warnings ?? []) warnings.add(warning);
    return environment;
  };
  for (const entry of evaluation?.environments ?? []) {
    if ((await open(entry)).evalDataset.length === 0) throw withoutExamples(entry, 'held-out examples');
  }
  const datasets = [];
  const opened = [];
  for (const entry of environments) {
    const environment = await open(entry);
    opened.push(environment);
    const datasetLength = environment.dataset.length;
    if (datasetLength === 0) throw withoutExamples(entry, 'examples');
    datasets.push({ name: entry.name, weight: entry.weight, datasetLength });
  }
  const noWarmUp = whyNoDemonstrations(spec, opened);
  if (noWarmUp) throw new RatchetError('ConfigInvalid', `[sft]: expected ${noWarmUp.expected}; ${noWarmUp.received}.`);
  return { datasets, warnings: [...warnings] };
}

function withoutExamples({ name, args }: Pick<EnvironmentSpec, 'name' | 'args'>, what: string): RatchetError {
  return new RatchetError(
    'ConfigInvalid',
    `The environment ${name} has no ${what} with args = ${JSON.stringify(args)}; expected at least one.`,
  );
}

async function nextAttempt(store: Store): Promise<number> {
  const keys = await store.list(layout.allLogs());
  return 1 + Math.max(0, ...keys.map((key) => Number(/attempt_(\d+)\//.exec(key)?.[1] ?? 0)));
}

/** One workflow drives a run at a time. The claim of a workflow that has ended is taken over. */
async function claimRun(dependencies: OpenRunDependencies, spec: RunSpec, workflowId: string): Promise<void> {
  const store = openRunStore(spec.store.uri, spec.name);
  for (;;) {
    const claims = await store.list(layout.claims());
    const newest = claims.length > 0 ? await store.read(layout.claim(claims.length)) : null;
    const holder = newest && claimIn(newest, store.uri + layout.claim(claims.length)).workflowId;
    if (holder === workflowId) return;
    if (holder && (await dependencies.isWorkflowRunning(holder))) {
      throw new RatchetError(
        'ConfigInvalid',
        `The run ${spec.name} is being driven by the workflow ${holder}, which is running. Look at that one (npx ratchet status ${spec.name}), or give this one another name: --name NAME.`,
      );
    }
    const { stored } = await store.putIfAbsent(layout.claim(claims.length + 1), encodeJson({ workflowId }));
    if (stored) return;
  }
}
