import { speechSettingsOf } from '../config/models/speech-settings.ts';
import type { GroupLease, RecordedTurn, Rollout } from '../core/rl/rollout/rollout.ts';
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
import type { AroundRollouts } from './budget/rollout-budget.ts';
import { type LastCall, playRollout } from './play-rollout.ts';
import { timeoutFateOf } from './rollout-limits.ts';
import type { Together } from './generate-groups.ts';
import { RolloutAges } from './rollout-age.ts';
import type { LeasedTo } from './sandboxes/rollout-sandboxes.ts';
import { samplePlace, samplePolicy, turnSeed } from './policy/sample-policy.ts';
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
  readonly attempt: number;
  readonly signal: AbortSignal;
  readonly prompts: Prompts | undefined;
  /** A turn is sampled from the newest version; else all are from `served`. */
  readonly takesNewest: boolean;
  readonly lastCall?: LastCall | undefined;
  readonly budgets: AroundRollouts;
}

/** Everything a rollout needs: its environment, the tokenizer of the policy, and a server to sample from. */
export async function openPlayers(
  dependencies: GenerateDependencies,
  run: RunHandle,
  served: ServedPolicy,
  around: PlayersAround,
): Promise<{ play(lease: GroupLease, place: Place, together: Together): Promise<Rollout> }> {
  const { journal, observer, signal, budgets } = around;
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
    async play(lease, place, together) {
      const { group, index } = place;
      const systemPrompt = systemPrompts.get(lease.environment);
      const entry = entries.get(lease.environment)!;
      const onTimeout = timeoutFateOf(entry, spec);
      const fallback = entry.sampling ?? spec.sampling;
      const own = lease.temperature === undefined ? fallback : { ...fallback, temperature: lease.temperature };
      const sampling = isTaught && spec.teacher ? taughtSampling(spec.teacher.sampling, own) : own;
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
        leasedTo: leasedTo(run, place, around.attempt),
        recorded: () => journal.turnsOf(place),
        openPolicy(environment, until, budget) {
          observer.begin(place);
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
              recorded: environment.isSingleTurn === true ? [] : journal.turnsOf(place),
              onBegin: (step) => age?.began(step),
              onTurn(turn, position) {
                observer.sampled(place, turn.tokenIds.length);
                return recordTurn(journal, { group, index, turn: position, ...turn }, { onRecord, until });
              },
            },
            (turn) => turnSeed(sampling.seed ?? spec.seed, run.lineage, group, index, turn),
          );
        },
      });
      const rollout = await (age ? playing.finally(() => age.end()) : playing);
      journal.notes.release(place);
      return systemPrompt === undefined ? rollout : { ...rollout, prompt: sha256(Buffer.from(systemPrompt)) };
    },
  };
}

function leasedTo({ name, store, lineage }: RunHandle, { group, index }: Place, attempt: number): LeasedTo {
  return { store, run: name, workflow: name, lineage, group: String(group), index, attempt };
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

/** The teacher's sampling. The prompt is rendered for the policy, so its template arguments are the policy's. */
function taughtSampling<Sampling extends { readonly templateArguments: unknown }>(
  teacher: Sampling,
  { templateArguments }: Pick<Sampling, 'templateArguments'>,
): Sampling {
  return { ...teacher, templateArguments };
}
