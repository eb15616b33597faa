import type { ChunkResult, EvaluationHandle, StoredEvaluation } from '../core/eval/evaluation.ts';
import type { Rollout } from '../core/rl/rollout/rollout.ts';
import type { Environments } from '../backends/environments/index.ts';
import { failedRollout } from '../backends/environments/score.ts';
import { storeOf } from '../runs/run-access.ts';
import { storedEvaluation } from '../runs/evaluations/evaluation-store.ts';
import { environmentsOfEvaluation } from './environment-users.ts';
import { enterBudgets, type EnteredBudgets } from './budget/budgets-around.ts';
import { EvaluatedExamples } from './evaluated-examples.ts';
import { generateGroups, type Together } from './generate-groups.ts';
import { byGroup } from './groups-in-play.ts';
import { forgetSnapshots, type LeasedTo } from './sandboxes/rollout-sandboxes.ts';
import { playRollout } from './play-rollout.ts';
import { type AskDependencies, silentServers } from './policy/asked-model.ts';
import { keepVersion, openModel } from './policy/evaluated-policy.ts';
import { Slots, workerSlots } from './slots.ts';
import { Standstill } from './standstill.ts';
import { type Place, recordTurn } from './training-players.ts';

export interface EvaluateChunkInput {
  readonly handle: EvaluationHandle;
  readonly chunk: number;
}

/** Progress in an attempt's heartbeats, shown by `ratchet eval`. */
export interface ChunkProgress {
  /** Rollouts that are finished, of those of the chunk. */
  readonly done: number;
  readonly of: number;
  readonly failed: number;
  /** Sum of the rewards of scored rollouts, and their number. */
  readonly rewards: number;
  readonly rewarded: number;
  /** Servers of which none answers at the moment; null while one does. */
  readonly waitsFor: string | null;
}

/** Shares of a chunk's rollouts in flight; the evaluation is told when no more than such a share is left. */
const leftTold = [1 / 2, 1 / 4, 1 / 8];

interface Opened extends EvaluateChunkInput {
  readonly dependencies: AskDependencies;
  readonly environments: Environments;
  readonly input: StoredEvaluation['input'];
  readonly scoresGroups: boolean;
  readonly systemPrompt: string | undefined;
  readonly examples: EvaluatedExamples;
  readonly cancelled: AbortSignal;
  /** See `leaseAttempt`. */
  readonly attempt: number;
  /** Id of the workflow that it is for; undefined without one. */
  readonly workflow: string | undefined;
  /** Tells the evaluation that no more than so many rollouts of the chunk are left. */
  readonly tellLeft: (chunk: number, left: number) => Promise<void>;
}

/** A chunk of an evaluation in the hands of one attempt. */
export class EvaluatedChunk {
  readonly #startedAt = performance.now();
  readonly #of: Opened;

  private constructor(opened: Opened) {
    this.#of = opened;
  }

  static async open(
    dependencies: AskDependencies,
    { handle, chunk }: EvaluateChunkInput,
    { cancelled, tellLeft, attempt, workflow }: Pick<Opened, 'cancelled' | 'tellLeft' | 'attempt' | 'workflow'>,
  ): Promise<EvaluatedChunk> {
    const { input } = await storedEvaluation(handle);
    const environments = environmentsOfEvaluation(dependencies.environments, handle);
    const environment = await environments.open(input.environment);
    const { systemPrompt: ref } = input;
    const systemPrompt = ref && Buffer.from(await storeOf(handle.place).get(ref)).toString('utf8');
    const scoresGroups = environment.scoresGroups === true && !input.independentScoring;
    const of = { handle, chunk, input, scoresGroups, systemPrompt, cancelled };
    const examples = await EvaluatedExamples.open({ ...of, environment });
    return new EvaluatedChunk({ ...of, dependencies, environments, examples, tellLeft, attempt, workflow });
  }

  progress(): ChunkProgress {
    const { dependencies, input, examples } = this.#of;
    const { finished, failed, count, rewards } = examples;
    return {
      done: finished,
      of: count,
      failed,
      rewards: rewards.reduce((sum, reward) => sum + reward, 0),
      rewarded: rewards.length,
      waitsFor: silentServers(dependencies, input.model),
    };
  }

  async finish(): Promise<ChunkResult> {
    const { dependencies, handle, chunk, input, scoresGroups, examples, cancelled } = this.#of;
    const standstill = new Standstill(input.standstillS * 1000);
    const stop = AbortSignal.any([cancelled, standstill.signal]);
    const kept = await keepVersion(dependencies, `${handle.place.prefix}chunk_${chunk}`, input);
    examples.onRewarded = (place) => forgetSnapshots(input.environment, this.#leasedTo(place));
    const { missing, scoring } = examples.begin();
    const adopted = examples.finished;
    let left = missing.length;
    const leave = workerSlots.enter(left);
    const budgets = await enterBudgets('evaluation', handle.place, input);
    try {
      await scoring;
      const generate = await this.#generator(stop, budgets);
      await generateGroups({
        groups: scoresGroups ? byGroup(missing, ({ group }) => group) : missing.map((place) => [place]),
        nameOf: ({ group, index }) => (scoresGroups ? group : `${group}/${index}`),
        room: new Slots(handle.atOnce),
        stop,
        flush: () => examples.flush(), // done again at the end
        generate: async (place, together) => {
          const rollout = await generate(place, together);
          standstill.moved();
          this.#tellLeft(--left);
          await examples.add(rollout);
          standstill.moved();
        },
      });
      cancelled.throwIfAborted();
      if (standstill.isOver) await this.#giveUp(missing);
    } finally {
      leave();
      standstill.end();
      await kept.release();
      await budgets.leave();
      await examples.flush();
    }
    examples.forget();
    return { chunk, tally: examples.tally(), adopted, seconds: (performance.now() - this.#startedAt) / 1000 };
  }

  async #generator(
    signal: AbortSignal,
    budgets: EnteredBudgets,
  ): Promise<(place: Place, together: Together) => Promise<Rollout>> {
    const { dependencies, environments, handle, input, systemPrompt, examples, attempt } = this.#of;
    const { environment: entry, model, seed } = input;
    const asking = { kind: 'eval', name: handle.place.name, model, environment: entry, seed, signal } as const;
    const open = await openModel(dependencies, asking);
    const attemptsMax = input.maxRetries + 1;
    const around = { environments, entry, dataset: 'evalDataset', systemPrompt, signal, attemptsMax, budgets } as const;
    return (place, together) => {
      const { group, index, exampleId } = place;
      const policy = open({
        session: exampleId,
        index,
        exampleId,
        recorded: () => examples.journal.turnsOf(place),
        onTurn: (turn, position, onRecord) =>
          recordTurn(examples.journal, { group, index, turn: position, ...turn }, { onRecord, until: signal }),
      });
      return playRollout({
        ...around,
        place,
        together,
        asksEmptyAgain: true,
        notes: examples.journal.notes.of(place),
        leasedTo: { ...this.#leasedTo(place), attempt },
        recorded: () => examples.journal.turnsOf(place),
        ...policy,
      });
    };
  }

  #leasedTo({ group, index }: Pick<Place, 'group' | 'index'>): Omit<LeasedTo, 'attempt'> {
    const { store, name, prefix } = this.#of.handle.place;
    const { workflow } = this.#of;
    return { store, run: name, workflow, lineage: `evaluation ${prefix}`, group: String(group), index };
  }

  /** Few rollouts are left: the evaluation may begin as many of other chunks. One that is not told does so when this one has ended. */
  #tellLeft(left: number): void {
    const { handle, chunk, tellLeft } = this.#of;
    const { atOnce, chunks } = handle;
    if (chunks === 1 || left === 0 || !leftTold.some((share) => left === Math.floor(atOnce * share))) return;
    void tellLeft(chunk, left).catch(() => undefined);
  }

  /** Unfinished rollouts are a `timeout`; the next attempt generates them again. */
  async #giveUp(missing: readonly Place[]): Promise<void> {
    const { examples, input } = this.#of;
    const error = `Not finished when the evaluation timed out: none of its rollouts had ended for ${input.standstillS} s.`;
    const late = missing.filter((place) => !examples.has(place));
    await Promise.all(late.map((place) => examples.add(failedRollout({ ...place, turns: [] }, 'timeout', error))));
    await examples.scoreRest(missing);
  }
}
