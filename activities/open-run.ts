import { RatchetError } from '../core/errors.ts';
import type { RunOwner } from '../core/roles.ts';
import { workflowIdPattern } from '../core/names.ts';
import type { AskedOfRun, RunHandle, StepCommit } from '../core/rl/run-state.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { checkOwnCode } from '../load/checks/check-own-code.ts';
import {
  environmentsOf,
  grantByFile,
  keysApart,
  namedByEnvironments,
  serversIn,
  sinksIn,
} from '../load/grants/grant.ts';
import { loadRunConfig } from '../load/load-run-config.ts';
import type { ConfigLayer } from '../core/config-layer.ts';
import type { SentFiles } from '../load/sent-files.ts';
import { checkStore, openRunStore } from '../store/index.ts';
import { type Curves, curvesOf, rememberedOf } from '../runs/metrics/curves.ts';
import { isWholeHere } from '../runs/lineages/lineages.ts';
import { recordMissing } from '../runs/metrics/record-metrics.ts';
import { refuseUnfinished } from '../runs/archive/unfinished-import.ts';
import { begunAtOf, isLastStep, readHead, specOf } from '../runs/run-access.ts';
import { openLineage, openLineageAsAsked } from '../runs/lineages/open-lineage.ts';
import { recordSettings, type Settings } from '../runs/forms/record-settings.ts';
import { openDatasets } from '../backends/environments/open-datasets.ts';
import { nextAttempt, claimRun } from '../runs/claim-run.ts';

/** Input of `trainRun`: a path, or a path with the command line's additions. */
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
      /**
       * Text of these files, and of files beside them; a path typed by hand has none, and is read where the run is
       * opened.
       */
      readonly sent?: SentFiles;
      /** The run's name; the config's own, or its file's stem, when missing. */
      readonly run?: string;
      /** Begins a lineage at this committed step, wherever the run's position is. */
      readonly rewind?: number;
      /** The last step of this time, as `ratchet set RUN stop_after=…`: schedules stay those of `max_steps`. */
      readonly stopAfter?: number;
      /** Set only by an upgrade, whose code continues a run that other code began (`workers/stack/take-over.ts`). */
      readonly takesOver?: TakenOver;
    };

/** A run as the execution that worked on it left it. */
export interface TakenOver {
  /** Handle of the previous execution; null if it was never opened, or if the settings are to be read anew. */
  readonly handle: RunHandle | null;
  /** null when it recorded nothing: its commits have all requests. */
  readonly asked: AskedOfRun | null;
  /** Request id under which that execution began a lineage, if its input asked for one. */
  readonly request: string;
  /** Its own code could not replay that execution's history. */
  readonly isBroken?: boolean;
}

export interface OpenedRun {
  readonly handle: RunHandle;
  readonly spec: RunSpec;
  /** The newest commit, when the run has been here before. */
  readonly head: { readonly commit: StepCommit; readonly sha256: string } | null;
  /** Whether the run had made all the steps it was to make, at the head. */
  readonly hadEnded?: boolean;
  /** Whether a run that is taken over was rewound as requested. */
  readonly isRewound?: boolean;
  /** Whether the weights that a lineage begins with are gone, by retention, or damaged: they are made again. */
  readonly weightsAreGone: boolean;
  readonly datasets: readonly { readonly name: string; readonly weight: number; readonly datasetLength: number }[];
  readonly warnings: readonly string[];
  /** Absent where nobody is known to have started it. */
  readonly owner?: RunOwner;
  /** Curves of a run that already has steps. */
  readonly curves?: Curves;
  /** Whether the search attributes RatchetRun, RatchetStep and RatchetReward exist in this namespace. */
  readonly hasSearchAttributes: boolean;
}

export interface OpenRunDependencies {
  readonly projectFolder: string;
  /** A warning with what to do where the namespace lacks search attributes; null where it has them. */
  readonly whatSearchAttributesLack: () => Promise<string | null>;
  readonly isWorkflowRunning: (workflowId: string) => Promise<boolean>;
}

export const createOpenRun =
  (dependencies: OpenRunDependencies) =>
  /**
   * Loads, validates and stores the spec, finds the run's position, and begins a lineage if the run is to continue from
   * another step. Idempotent: a lineage is begun once per execution of the workflow (`executionId`). A run that is
   * taken over keeps its settings: its config is not read again.
   */
  async (input: TrainRunInput, workflowId: string, executionId: string): Promise<OpenedRun> => {
    refuseWorkflowId(workflowId);
    const asked: Exclude<TrainRunInput, string> = typeof input === 'string' ? { config: input } : input;
    const { takesOver } = asked;
    const request = takesOver?.request ?? `${workflowId}/${executionId}`;
    const settings = await readSettings(dependencies, asked);
    const { spec } = settings;
    const isAsItStands = !takesOver?.handle && Object.keys(asked.overrides ?? {}).length === 0;
    // Several files are granted one by one, so that no key of one goes to a server of another.
    const named = [...namedByEnvironments(environmentsOf(spec)), ...serversIn(spec), ...sinksIn(spec)];
    const { keys, rest } = keysApart(named);
    grantByFile(rest, isAsItStands);
    grantByFile(keys, isAsItStands && (asked.over ?? []).length === 0);
    await checkStore(spec.store.uri);
    const store = openRunStore(spec.store.uri, spec.name);
    const place = { name: spec.name, store: spec.store.uri };
    await refuseUnfinished(place);
    await claimRun(spec, workflowId, dependencies.isWorkflowRunning);

    // Before the run's identity is written, so that a refusal can still be corrected.
    const { datasets, warnings: told } = await openDatasets(spec);
    if (!takesOver?.handle) await checkOwnCode(spec);
    const attempt = await nextAttempt(store);
    const recorded = takesOver?.handle
      ? null
      : await recordSettings(dependencies.projectFolder, asked, { ...settings, attempt });
    const ref = recorded?.ref ?? takesOver!.handle!.spec;
    const pending = takesOver?.asked?.rewind && (takesOver.handle || asked.rewind === undefined);
    const { lineage, refused } =
      takesOver?.handle || pending
        ? await openLineageAsAsked(place, takesOver.asked)
        : { lineage: await openLineage(place, { ...settings, rewind: asked.rewind, request }), refused: [] };
    const isAskedBack = pending || (!takesOver?.handle && asked.rewind !== undefined);
    const warnings = [...settings.warnings, ...told, ...(recorded?.changed ?? []), ...refused];
    const lack = await dependencies.whatSearchAttributesLack();
    const handle: RunHandle = {
      ...place,
      lineage,
      spec: ref,
      attempt,
      ...(await begunAtOf(place)),
    };
    const head = await readHead(handle);
    await recordMissing(place);
    return {
      handle,
      spec,
      head,
      hadEnded: head !== null && (await isLastStep(store, head.commit)),
      ...(takesOver && isAskedBack && refused.length === 0 ? { isRewound: true } : {}),
      weightsAreGone: head?.commit.origin !== undefined && !(await isWholeHere(place, head.commit)),
      ...(head === null ? {} : { curves: rememberedOf(await curvesOf(handle, head.commit.step)) }),
      datasets,
      warnings: lack === null ? warnings : [...warnings, lack],
      hasSearchAttributes: lack === null,
    };
  };

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

function refuseWorkflowId(workflowId: string): void {
  if (workflowIdPattern.test(workflowId)) return;
  throw new RatchetError(
    'ConfigInvalid',
    `The workflow id ${JSON.stringify(workflowId)} cannot drive a run: expected up to 255 letters, digits and . _ : + @ -, beginning with a letter or digit. Start it again with another --workflow-id; the run's name is the best one.`,
  );
}
