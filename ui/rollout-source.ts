import { setTimeout as delay } from 'node:timers/promises';
import { rowsOfEpisode } from '../core/rl/rollout/agents.ts';
import type { AgentTrace, ScoredGroup, ScoredRollout, Turn } from '../core/rl/rollout/rollout.ts';
import { RatchetError } from '../core/errors.ts';
import { present } from '../core/present.ts';
import { tokenizerOf } from '../play/policy/stored-tokenizer.ts';
import { orIfDamaged } from '../store/objects.ts';
import { decodeStoredRows } from '../runs/forms/stored-forms.ts';
import type { ChatTokenizer } from '../engine/index.ts';
import { type RunPlace, storeOf } from '../runs/run-access.ts';
import { type Looked, RolloutIndex, type RolloutFilter } from '../runs/rollout-index/search.ts';
import { indexRun } from '../runs/rollout-index/write-index.ts';
import { scoredShape } from '../runs/rollouts/scored-groups.ts';
import { readTokenScores } from '../runs/rollouts/token-scores.ts';
import { newestSpec } from '../runs/forms/stored-spec.ts';
import type {
  ExampleAnswer,
  GroupAnswer,
  HistogramAnswer,
  RolloutAnswer,
  RolloutLine,
  RolloutsAnswer,
  RunOverview,
  TokensAnswer,
  TurnAnswer,
} from './answers.ts';
import { Advantages, type ShownAdvantages } from './advantages.ts';
import { tokensOf } from './tokens.ts';

/** Which group, of the lineages that led to where the run stands. */
interface GroupPlace {
  readonly step: number;
  readonly group: number;
}

/** Cache for objects with scored groups: siblings are looked at one after another. */
const objectsHeld = 3;

/** Objects with expected answers that are read for one list, and cached for the next. */
const expectedReadsMax = 8;
const expectedHeld = 256;
const expectedCharsMax = 240;

const firstLookMs = 2_000;
const histogramColumns = 80;
const histogramBins = 20;

/** Rollouts of a run, from the index beside its data, which is updated where it can be written. */
export class RolloutSource {
  readonly #place: RunPlace;
  readonly #index: RolloutIndex;
  readonly #advantages: Advantages;
  readonly #objects = new Map<string, Promise<ScoredGroup[]>>();
  readonly #expected = new Map<string, ReadonlyMap<number, string>>();
  #indexing: Promise<void> | null = null;
  #error: string | null = null;
  #tokenizer: Promise<ChatTokenizer | null> | null = null;
  #scores: { readonly of: string; readonly scores: ReturnType<typeof readTokenScores> } | null = null;

  constructor(place: RunPlace) {
    this.#place = place;
    this.#index = new RolloutIndex(place);
    this.#advantages = new Advantages(place);
  }

  get standing(): RunOverview['index'] {
    return { step: this.#index.lastStep, error: this.#error };
  }

  /** Indexes new commits. Callers that ask meanwhile share the same update. */
  bringUpToDate(): Promise<void> {
    this.#indexing ??= this.#indexNew().finally(() => (this.#indexing = null));
    return this.#indexing;
  }

  async #indexNew(): Promise<void> {
    try {
      await this.#index.refresh();
      let steps = 0;
      for await (const _ of indexRun(this.#place)) if (++steps % 64 === 0) await this.#index.refresh();
      await this.#index.refresh();
      this.#error = null;
    } catch (error) {
      // The rows already indexed stay readable; a full disk, or a folder of another user's, is reported beside them.
      this.#error = error instanceof Error ? error.message : String(error);
    }
  }

  /** The first request waits only for a first part of the index: all of it may take minutes. */
  async #ready(): Promise<void> {
    if (this.#index.lastStep === null)
      await Promise.race([this.bringUpToDate(), delay(firstLookMs, undefined, { ref: false })]);
  }

  async find(filter: RolloutFilter, looked: Looked): Promise<RolloutsAnswer> {
    await this.#ready();
    const found = await this.#index.find(filter, looked);
    return { ...found, rollouts: await this.#withExpected(found.rollouts) };
  }

  /** The index has no expected answers: they come from the objects of the first rollouts, each read once. */
  async #withExpected(lines: readonly (RolloutLine & { readonly object: string })[]): Promise<RolloutLine[]> {
    const objects = [...new Set(lines.map(({ object }) => object))];
    let reads = 0;
    for (const object of objects) {
      if (this.#expected.has(object) || reads === expectedReadsMax) continue;
      reads += 1;
      this.#expected.set(object, await this.#expectedIn(object));
      if (this.#expected.size > expectedHeld) this.#expected.delete(this.#expected.keys().next().value!);
    }
    return lines.map((line) => {
      const expected = this.#expected.get(line.object)?.get(line.group);
      return expected === undefined ? line : { ...line, expected };
    });
  }

  /**
   * Correct answers by the group's ordinal. Empty if the object was removed or cannot be read: opening a group reports
   * that.
   */
  async #expectedIn(object: string): Promise<ReadonlyMap<number, string>> {
    const groups = await orIfDamaged<readonly ScoredGroup[]>(
      async () => {
        const bytes = await storeOf(this.#place).read(object);
        return bytes === null
          ? []
          : decodeStoredRows<ScoredGroup>(bytes, storeOf(this.#place).uri + object, scoredShape);
      },
      () => Promise.resolve([]),
    );
    return new Map(
      groups.flatMap(({ ordinal, example }) => {
        const answer = example?.answer ?? '';
        return answer === '' ? [] : [[ordinal, answer.slice(0, expectedCharsMax)] as const];
      }),
    );
  }

  async example(environment: string, exampleId: number): Promise<ExampleAnswer> {
    await this.#ready();
    return { attempts: await this.#index.ofExample(environment, exampleId) };
  }

  async histogram(environment: string | null): Promise<HistogramAnswer> {
    await this.#ready();
    return this.#index.histogram(environment === null ? {} : { environment }, histogramColumns, histogramBins);
  }

  async group(place: GroupPlace): Promise<GroupAnswer> {
    const { group, spec, at } = await this.#open(place);
    const tokenizer = await this.#openTokenizer();
    const advantages = await this.#advantages.of(group, at, spec);
    return {
      lineage: at.lineage,
      step: at.step,
      group: group.ordinal,
      environment: group.environment,
      exampleId: group.exampleId,
      epoch: group.epoch,
      end: at.end,
      why: whyEnded(at.end),
      version: group.policyStep,
      answer: group.example?.answer ?? null,
      object: at.object,
      withoutAdvantages: advantages.missing,
      rollouts: group.rollouts.map((rollout) => answerOf(group, rollout, { tokenizer, advantages })),
    };
  }

  async tokens(place: GroupPlace, index: number): Promise<TokensAnswer> {
    const { group, spec, at } = await this.#open(place);
    const rollout = group.rollouts.find((one) => one.index === index);
    const tokenizer = await this.#openTokenizer();
    if (!rollout || !tokenizer) throw notThere(`rollout ${index} of group ${place.group} with its tokens`);
    const advantages = await this.#advantages.of(group, at, spec);
    const agents = agentsOf(rollout.traces, advantages.ofAgents.get(index));
    const { rows, isMasked } = rowsOfEpisode(rollout, spec);
    return tokensOf(rollout, tokenizer, {
      rows,
      scoresOf: await this.#scoresOf(at),
      creditOf: ({ trace }) => {
        const own = trace === undefined ? undefined : agents[trace];
        if (own) return { agent: own.name, advantage: own.advantage };
        return { advantage: advantageOf(rollout, advantages) };
      },
      unmaskedBecause:
        rollout.reward === null
          ? 'it has no reward'
          : at.end !== 'trained'
            ? `its group is not in a batch: ${whyEnded(at.end)}`
            : isMasked
              ? 'it was cut, and such rollouts carry no loss in this run'
              : null,
    });
  }

  async #open({ step, group: ordinal }: GroupPlace) {
    await this.#ready();
    const found = await this.#index.find({ step: [step, step], group: ordinal }, { limit: 1 });
    const at = found.rollouts[0];
    if (!at) throw notThere(`group ${ordinal} of step ${step}`);
    const groups = await this.#groupsIn(at.object);
    const group = groups.find((one) => one.ordinal === ordinal);
    if (!group) throw notThere(`group ${ordinal} of step ${step}`);
    return { group, at, spec: await newestSpec(this.#place) };
  }

  #groupsIn(key: string): Promise<ScoredGroup[]> {
    const held = this.#objects.get(key) ?? this.#read(key);
    this.#objects.delete(key);
    this.#objects.set(key, held);
    held.catch(() => this.#objects.delete(key));
    if (this.#objects.size > objectsHeld) this.#objects.delete(this.#objects.keys().next().value!);
    return held;
  }

  async #read(key: string): Promise<ScoredGroup[]> {
    const bytes = await storeOf(this.#place).read(key);
    if (bytes === null) throw notThere(`${key}, which retention has removed`);
    return decodeStoredRows<ScoredGroup>(bytes, storeOf(this.#place).uri + key, scoredShape);
  }

  /** The trainer's values for a group in the step it ended with. Siblings are read one after another. */
  #scoresOf({
    lineage,
    step,
  }: {
    readonly lineage: string;
    readonly step: number;
  }): ReturnType<typeof readTokenScores> {
    const of = `${lineage} ${step}`;
    if (this.#scores?.of !== of) this.#scores = { of, scores: readTokenScores({ ...this.#place, lineage }, step) };
    const { scores } = this.#scores;
    scores.catch(() => (this.#scores = null));
    return scores;
  }

  #openTokenizer(): Promise<ChatTokenizer | null> {
    this.#tokenizer ??= tokenizerOf(this.#place);
    this.#tokenizer.catch(() => (this.#tokenizer = null));
    return this.#tokenizer;
  }
}

function answerOf(
  group: ScoredGroup,
  rollout: ScoredRollout,
  { tokenizer, advantages }: { readonly tokenizer: ChatTokenizer | null; readonly advantages: ShownAdvantages },
): RolloutAnswer {
  const { index, outcome, reward, metrics, flags = [], error = null, turns, traces } = rollout;
  const agents = agentsOf(traces, advantages.ofAgents.get(index));
  return {
    index,
    outcome,
    reward,
    parts: metrics,
    advantage: advantageOf(rollout, advantages),
    flags: flags.map(({ name, isEnforced }) => (isEnforced ? name : `${name} (only noted)`)),
    error,
    turns: turns.map((turn, i) => {
      const agent = turn.trace === undefined ? undefined : agents[turn.trace]?.name;
      // The first agent's question may differ from the example's.
      const isAsked = i === 0 && (agent === undefined || turn.heard === undefined);
      return { ...turnOf(turn, isAsked ? group : null, tokenizer), ...present({ agent }) };
    }),
  };
}

/** Mean of the advantages that are not 0, for several agents. */
function advantageOf({ index, reward }: ScoredRollout, { ofRollouts }: ShownAdvantages): number | null {
  return reward === null ? null : (ofRollouts.get(index) ?? null);
}

/** Each agent, numbered if several have its role, with its reward and known advantage. */
function agentsOf(
  traces: readonly AgentTrace[] = [],
  advantages: readonly number[] = [],
): readonly { readonly name: string; readonly advantage: number | null }[] {
  const ofTrained = advantages.values();
  return traces.map(({ agent, isTrained, reward }, i) => {
    const same = traces.filter((one) => one.agent === agent);
    const number = same.length === 1 ? '' : ` ${traces.slice(0, i + 1).filter((one) => one.agent === agent).length}`;
    if (!isTrained) return { name: `${agent}${number}, not trained`, advantage: null };
    const advantage = ofTrained.next().value ?? null;
    const credit = advantage === null ? '' : `, advantage ${short(advantage)}`;
    return { name: `${agent}${number}, reward ${short(reward)}${credit}`, advantage };
  });
}

function short(value: number): string {
  return String(Number(value.toPrecision(4)));
}

function turnOf(turn: Turn, first: ScoredGroup | null, tokenizer: ChatTokenizer | null): TurnAnswer {
  const { promptTokenIds, tokenIds, text, heard = [], toolCalls = [], finishReason, policyStep, said } = turn;
  const asked = first ? (first.example?.prompt ?? null) : heard;
  return {
    heard: asked ?? heard,
    prompt: asked === null && tokenizer ? tokenizer.decode(promptTokenIds, { skipSpecialTokens: false }) : null,
    text,
    reasoning: said?.reasoning ?? null,
    toolCalls,
    finishReason,
    version: policyStep,
    versionEnd: turn.policyStepEnd ?? policyStep,
    promptTokens: promptTokenIds.length,
    tokens: tokenIds.length,
  };
}

/** Words for the reasons of `filtered:…`; other fates are words already. */
const reasons: Readonly<Record<string, string>> = {
  trained: 'trained',
  stale: 'sampled from a policy that was too old by the time it was done',
  refused: 'its batch was refused: the loss or the gradient was not finite',
  superseded: 'left behind by a rewind or a fork',
  'filtered:too_easy': 'filtered: its mean reward is above the limit',
  'filtered:too_hard': 'filtered: its mean reward is below the limit',
  'filtered:low_variance': 'filtered: its rewards differ too little to teach anything',
  'filtered:no_signal': 'filtered: all of its advantages are 0',
  'filtered:non_finite': 'filtered: a reward was no finite number',
  'filtered:surplus': 'filtered: the batch was full',
};

function whyEnded(end: string): string {
  return reasons[end] ?? end.replace(':', ': ').replaceAll('_', ' ');
}

function notThere(what: string): RatchetError {
  return new RatchetError('RunNotFound', `There is no ${what} in this run's store (any more).`);
}
