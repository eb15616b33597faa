/** A run whose activities are fakes of a few lines: they keep what a store would keep, in memory, and each can be given another one in its place. */
import { createHash } from 'node:crypto';
import { Context } from '@temporalio/activity';
import type { PlayedPart } from '../../core/rl/rollout/played-part.ts';
import type { LeasedChunk } from '../../core/rl/sampling/chunks.ts';
import type {
  LeaseActivities,
  OrchestratorActivities,
  RolloutActivities,
  TrainActivities,
  UploadActivities,
} from '../../activities/index.ts';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import type { RunEvent, RunStatus } from '../../workflows/control/messages.ts';
import type {
  LineageOrigin,
  ObjectRef,
  PolicyVersion,
  RunHandle,
  SamplingRound,
  StepCommit,
} from '../../core/rl/run-state.ts';

export type Activities = OrchestratorActivities &
  RolloutActivities &
  LeaseActivities &
  TrainActivities &
  UploadActivities;
export type ActivityName = keyof Activities;
export type Input<Name extends ActivityName> = Parameters<Activities[Name]>[0];
export type Output<Name extends ActivityName> = Awaited<ReturnType<Activities[Name]>>;

/** One time that an activity is asked. */
export interface Call<Name extends ActivityName> {
  /** The fake's default behaviour. */
  readonly usual: (input?: Input<Name>) => Promise<Output<Name>>;
  /** How often it was asked by this run, from 1. */
  readonly nth: number;
}

/** In place of the default fakes. */
export type Fakes = {
  readonly [Name in ActivityName]?: (input: Input<Name>, call: Call<Name>) => Output<Name> | Promise<Output<Name>>;
};

export type DefaultFakes = {
  readonly [Name in ActivityName]: (input: Input<Name>) => Output<Name> | Promise<Output<Name>>;
};

const configText = `
model = "preset:reverse-text-0.2m"
max_steps = 3
batch_size = 8
rollouts_per_example = 4
max_async_level = 0
[[env]]
id = "reverse-text"
[checkpoints]
interval = 2
keep_last = 2
`;

/** 2 groups of 4 rollouts a step, 3 steps, no evaluations. */
/**
 * On a busy machine the fakes, which share one process with everything else, may miss heartbeats for seconds without
 * being lost.
 */
const heartbeatTimeoutS = 20;

export function specWith(name: string, settings: Partial<RunSpec>): RunSpec {
  const parsed = parseRunConfig(configText, { file: `${name}.toml`, overrides: {} });
  if (!parsed.ok) throw new Error(JSON.stringify(parsed.problems));
  return { ...parsed.spec, store: { uri: 'file:///nowhere/' }, heartbeatTimeoutS, ...settings, name };
}

export function refOf(key: string, what: unknown = key): ObjectRef {
  const text = JSON.stringify(what);
  return { key, sha256: createHash('sha256').update(text).digest('hex'), bytes: text.length };
}

/** Weights are what they were trained from and on: another batch, or another order, gives another digest. */
export function versionAfter(step: number, lineage: string, ...madeOf: readonly unknown[]): PolicyVersion {
  const { sha256: digest } = refOf('weights', [step, ...madeOf]);
  const weights = `${lineage === 'main' ? '' : `lineages/${lineage}/`}weights/step_${step}/`;
  return {
    step,
    digest,
    weights,
    file: refOf(`${weights}model.safetensors`, digest),
    sums: refOf(`${weights}SHA256SUMS`, digest),
  };
}

export interface FoundCommit {
  readonly commit: StepCommit;
  readonly sha256: string;
}

/** A point where something waits until the test opens it. */
export class Gate {
  readonly reached: Promise<void>;
  readonly #opened: Promise<void>;
  #reach: () => void = () => undefined;
  open: () => void = () => undefined;
  isOpen = false;

  constructor() {
    this.reached = new Promise((resolve) => (this.#reach = resolve));
    this.#opened = new Promise((resolve) => (this.open = resolve));
    void this.#opened.then(() => (this.isOpen = true));
  }

  /** Waits in an activity; a cancelled one goes no further. */
  async pass(): Promise<void> {
    this.#reach();
    await Promise.race([this.#opened, Context.current().cancelled]);
  }
}

/** A run's answers about itself. */
export interface RunView {
  readonly status: RunStatus;
  readonly events: readonly RunEvent[];
}

/** Stored results of a run, and the activities that it has asked for. */
export class FakeRun {
  readonly spec: RunSpec;
  readonly asked: { readonly name: ActivityName; readonly input: unknown }[] = [];
  /** Lineages in the order of their beginning. */
  readonly lineages = new Map<string, FoundCommit[]>([['main', []]]);
  readonly origins = new Map<string, LineageOrigin>();
  /** Objects stored besides the commits, by key. */
  readonly stored = new Map<string, unknown>();
  /** Leased rounds, by lineage and first ordinal. */
  readonly rounds = new Map<string, SamplingRound & { readonly chunks: readonly LeasedChunk[] }>();
  /** Stored parts of chunks whose groups were scored as they ended, by lineage and round. */
  readonly parts = new Map<string, PlayedPart[]>();

  keepParts(
    { run: { lineage }, round, tells }: Input<'playGroups'>,
    { parts }: { readonly parts: readonly PlayedPart[] },
  ) {
    if (tells === undefined) return;
    const key = `${lineage}/${round.first}`;
    this.parts.set(key, [...(this.parts.get(key) ?? []), ...parts]);
  }
  readonly served: PolicyVersion[] = [];
  readonly sealed: number[] = [];
  readonly recorded = new Set<string>();
  epoch = 0;
  attempts = 0;
  /** The GPU worker is gone: its heartbeats are not heard of any more. */
  loseTrainer: () => void = () => undefined;
  /** Ends the hold of the GPU worker, as the run has asked for it. */
  giveBackTrainer: () => void = () => undefined;
  /** The one GPU worker there is was slow, when it was not heard of: it takes the run again. */
  isSlow = false;
  /** How the run stood when its audit was asked for, right before its end. */
  lastView: RunView | null = null;
  /** Whether an activity sends no heartbeats, by how often it was asked. */
  isSilent: (name: ActivityName, nth: number) => boolean = () => false;

  constructor(spec: RunSpec) {
    this.spec = spec;
  }

  get name(): string {
    return this.spec.name;
  }

  /** The newest lineage. */
  get lineage(): string {
    return [...this.lineages.keys()].at(-1)!;
  }

  get handle(): RunHandle {
    const { name, lineage, attempts: attempt } = this;
    return { name, store: this.spec.store.uri, lineage, spec: refOf('specs/fake.json'), attempt };
  }

  /** Commits of a lineage, the newest when it is not said. */
  commits(lineage = this.lineage): StepCommit[] {
    return this.lineages.get(lineage)!.map(({ commit }) => commit);
  }

  head(): FoundCommit | null {
    return this.lineages.get(this.lineage)!.at(-1) ?? null;
  }

  /** The commit of a step, in this lineage or one that it began in. */
  commitOf(step: number, lineage = this.lineage): StepCommit | undefined {
    const own = this.commits(lineage).find((commit) => commit.step === step);
    const origin = this.origins.get(lineage);
    return own ?? (origin === undefined ? undefined : this.commitOf(step, origin.lineage));
  }

  /** Inputs of an activity, in order. */
  inputs<Name extends ActivityName>(name: Name): Input<Name>[] {
    return this.asked.filter((one) => one.name === name).map(({ input }) => input as Input<Name>);
  }

  /** Names of the activities that were asked for, in order, of those that are looked for. */
  order(...names: readonly ActivityName[]): ActivityName[] {
    return this.asked.map(({ name }) => name).filter((name) => names.includes(name));
  }

  keep(key: string, what: unknown): ObjectRef {
    this.stored.set(key, what);
    return refOf(key, what);
  }

  /** Adds to the commit's lineage, as the store would. */
  add(commit: StepCommit): FoundCommit {
    const found = { commit, sha256: refOf('commit', commit).sha256 };
    const { lineage } = commit;
    this.lineages.set(lineage, [...(this.lineages.get(lineage) ?? []), found]);
    return found;
  }
}

/** Holds the training of a step until it is released. */
export function holdingStep(gate: Gate, step = 1): Fakes {
  return {
    trainBatch: async (asked, { usual }) => {
      if (asked.step === step) await gate.pass();
      return usual();
    },
  };
}
