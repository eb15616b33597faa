import { speechSettingsOf } from '../config/models/speech-settings.ts';
import type { GroupLease, RecordedTurn, Rollout } from '../core/rl/rollout/rollout.ts';
import type { SamplingSettings } from '../core/settings/rollouts.ts';
import type { EnvironmentSpec, RunSpec } from '../config/run-spec.ts';
import type { Prompts, RunHandle, ServedPolicy } from '../core/rl/run-state.ts';
import { textsOfPrompts } from '../runs/rollouts/prompts-in-use.ts';
import type { RolloutJournal } from '../runs/rollouts/rollout-journal.ts';
import { specOf } from '../runs/run-access.ts';
import { newestServed } from './served-version.ts';
import { policyTokenizer } from './policy/policy-tokenizer.ts';
import { environmentsOfRun } from './environment-users.ts';
import type { Inference } from '../backends/inference/index.ts';
import { failpoint } from '../store/failpoints.ts';
import { sha256 } from '../store/file-store.ts';
import type { GenerateDependencies } from './policy/asked-model.ts';
import { keepsTurns } from './after-death.ts';
import type { AroundRollouts, RolloutBudget } from './budget/rollout-budget.ts';
import { type LastCall, playRollout } from './play-rollout.ts';
import { timeoutFateOf } from './rollout-limits.ts';
import type { Together } from './generate-groups.ts';
import { RolloutAges } from './rollout-age.ts';
import type { ChunkProgress } from './progress/chunk-progress.ts';
import { leaseAttempt } from './sandboxes/lease-owner.ts';
import type { LeasedTo } from './sandboxes/rollout-sandboxes.ts';
import { type OnTurn, samplePlace, samplePolicy, turnSeed } from './policy/sample-policy.ts';
import { openSpeaker, type Speak } from './teacher/teacher.ts';

export type Place = Pick<Rollout, 'group' | 'index' | 'exampleId'>;

/** Counts requests under way, and observes whether the servers answer. */
export interface PlayObserver {
  watch(inference: Inference): Pick<Inference, 'sample'>;
  look<T>(ask: () => Promise<T>): Promise<T>;
  begin(place: Place): void;
  sampled(place: Place, tokens: number): void;
}

interface PlayersAround {
  readonly journal: RolloutJournal;
  readonly observer: PlayObserver;
  /** See {@link leaseAttempt}. */
  readonly attempt: { readonly ofChunk: number; readonly retry: number };
  readonly signal: AbortSignal;
  readonly prompts: Prompts | undefined;
  /** A turn is sampled from the newest version; else all are from `served`. */
  readonly takesNewest: boolean;
  readonly lastCall?: LastCall | undefined;
  readonly budgets: AroundRollouts;
  readonly progress: ChunkProgress;
}

interface Players {
  play(lease: GroupLease, place: Place, together: Together): Promise<Rollout>;
  /** Whether the environment of this name scores a group while all of its rollouts are alive. */
  scoresGroups(environment: string): Promise<boolean>;
}

/** Everything a rollout needs: its environment, the tokenizer of the policy, and a server to sample from. */
export async function openPlayers(
  dependencies: GenerateDependencies,
  run: RunHandle,
  served: ServedPolicy,
  around: PlayersAround,
): Promise<Players> {
  const { journal, observer, signal, budgets, progress } = around;
  const spec = await specOf(run);
  const inference = observer.watch(dependencies.inference(spec));
  const tokenizer = await policyTokenizer(run, spec, { folder: served.folder, open: dependencies.tokenizer });
  const played = { tokenizer, folder: served.folder, at: served.version.step };
  const isTaught = spec.teacher?.role === 'samples';
  const say = isTaught ? await openSpeaker(dependencies, spec, played) : null;
  const speak: Speak | undefined = say ? (...turn) => observer.look(() => say(...turn)) : undefined;
  const newest = around.takesNewest ? newestServed(run, served) : undefined;
  const ages = newest && new RolloutAges(newest, spec.maxOffPolicySteps);
  const systemPrompts = await textsOfPrompts(run, around.prompts);
  const entries = new Map(spec.environments.map((entry) => [entry.name, entry]));
  const environments = environmentsOfRun(dependencies.environments, run);
  return {
    scoresGroups: async (name) => (await environments.open(entries.get(name)!)).scoresGroups === true,
    async play(lease, place, together) {
      const { group, index } = place;
      const systemPrompt = systemPrompts.get(lease.environment);
      const entry = entries.get(lease.environment)!;
      const onTimeout = timeoutFateOf(entry, spec);
      const sampling = samplingOf(lease, entry, spec);
      const age = ages?.begin();
      const playing = playRollout({
        environments,
        entry,
        dataset: 'dataset',
        place,
        together,
        systemPrompt,
        signal,
        tooOld: age?.signal,
        onTimeout,
        budgets,
        lastCall: onTimeout === 'truncate' ? around.lastCall : undefined,
        notes: journal.notes.of(place),
        leasedTo: leasedTo(run, place, around),
        recorded: () => journal.turnsOf(place),
        openPolicy(environment, until, budget) {
          observer.begin(place);
          const recorded = environment.isSingleTurn === true ? [] : journal.turnsOf(place);
          progress.begin(place, begunTry(lease, recorded, budget));
          const onRecord = keepsTurns(environment);
          return samplePolicy(
            {
              inference,
              tokenizer,
              served,
              newest,
              sampling,
              parsers: speechSettingsOf(spec),
              isTrained: !isTaught,
              learnedRoles: new Set(Object.keys(entry.echo ?? {})),
              signal: until,
              budget,
              speak,
              promptTokensMax: spec.maxPromptTokens,
              place: samplePlace([run.name, run.lineage, group], index),
              recorded,
              onRecall: (turn, isKept) => progress.turn(place, turn, { at: recorded.indexOf(turn), isKept }),
              onBegin: (step) => age?.began(step),
              onTurn: onTurnOf(around, place, { onRecord, until }),
            },
            (turn) => turnSeed(sampling.seed ?? spec.seed, run.lineage, group, index, turn),
          );
        },
      });
      const rollout = await (age ? playing.finally(() => age.end()) : playing);
      progress.end(place);
      journal.notes.release(place);
      return systemPrompt === undefined ? rollout : { ...rollout, prompt: sha256(Buffer.from(systemPrompt)) };
    },
  };
}

function onTurnOf(
  { journal, observer, progress }: PlayersAround,
  { group, index, exampleId }: Place,
  recording: Parameters<typeof recordTurn>[2],
): OnTurn {
  return (turn, position, seconds) => {
    const place = { group, index, exampleId };
    observer.sampled(place, turn.tokenIds.length);
    progress.turn(place, turn, null);
    return recordTurn(
      journal,
      { group, index, turn: position, ...(seconds === undefined ? {} : { seconds }), ...turn },
      recording,
    );
  };
}

function begunTry(
  { environment, exampleId, policyStep: version }: GroupLease,
  { length: earlier }: readonly unknown[],
  budget: RolloutBudget | undefined,
): Parameters<ChunkProgress['begin']>[1] {
  return { environment, exampleId, version, earlier, budget };
}

function leasedTo(
  { name, store, lineage }: RunHandle,
  place: Place,
  { attempt: { ofChunk, retry }, progress }: PlayersAround,
): LeasedTo {
  return {
    store,
    run: name,
    workflow: name,
    lineage,
    group: String(place.group),
    index: place.index,
    attempt: leaseAttempt(ofChunk, retry),
    onTaken: (sandbox) => progress.sandbox(place, sandbox),
  };
}

/** Turns of a deterministic environment are stored with the next part of the chunk; a call waits until it is stored. */
export function recordTurn(
  journal: RolloutJournal,
  turn: RecordedTurn,
  { onRecord, until }: { readonly onRecord: boolean; readonly until: AbortSignal },
): void | Promise<void> {
  const isCall = turn.call !== undefined;
  if (until.aborted || !(onRecord || isCall)) return;
  journal.addTurn(turn);
  return isCall ? storeCall(journal, until) : undefined;
}

async function storeCall(journal: RolloutJournal, until: AbortSignal): Promise<void> {
  await journal.settle(until);
  await failpoint('call.stored');
}

function samplingOf(
  { temperature }: GroupLease,
  entry: Pick<EnvironmentSpec, 'sampling'>,
  { sampling, teacher }: Pick<RunSpec, 'sampling' | 'teacher'>,
): SamplingSettings {
  const fallback = entry.sampling ?? sampling;
  const own = temperature === undefined ? fallback : { ...fallback, temperature };
  return teacher?.role === 'samples' ? taughtSampling(teacher.sampling, own) : own;
}

/** The teacher's sampling. The prompt is rendered for the policy, so its template arguments are the policy's. */
function taughtSampling<Sampling extends { readonly templateArguments: unknown }>(
  teacher: Sampling,
  { templateArguments }: Pick<Sampling, 'templateArguments'>,
): Sampling {
  return { ...teacher, templateArguments };
}
