import { writtenLike } from '../../../core/exact-json.ts';
import { setTimeout as delay } from 'node:timers/promises';
import { RatchetError } from '../../../core/errors.ts';
import { judgeAttemptsMax, judgeRetryMs } from '../../../core/limits.ts';
import type { JsonValue } from '../../../config/run-spec.ts';
import { present } from '../../../core/present.ts';
import type {
  AgentTrace,
  Example,
  Judgement,
  Outcome,
  Rollout,
  RolloutRow,
  ToolSchema,
  Turn,
} from '../../../core/rl/rollout/rollout.ts';
import { outcomeOfFailure } from '../../../core/rl/failures.ts';
import { withoutSecrets } from '../../../config/toml/secrets.ts';
import { tookLonger, tracebackOf } from '../score.ts';
import { secretsHere } from '../variables.ts';
import type { Environment, JudgeOptions, Policy, RolloutPlace, RolloutRecord } from '../types.ts';
import { BridgedConversation } from './conversation.ts';
import { GroupScores } from './group-scores.ts';
import type { Inputs } from './inputs.ts';
import type { Bridge, RolloutOptions } from './bridge.ts';
import { ChildEnded, ChildRefused, TooLate } from './child.ts';
import type { LoadedEnvironment, WirePlayedRow, RolloutRequest, SampledTurn, Score, TurnRequest } from './protocol.ts';
import { notedStates, rolloutNotes } from './rollout-notes.ts';
import type { Suspects } from './suspects.ts';

/** The part of a bridge that a loaded environment needs. */
export type PlayingBridge = Pick<Bridge, 'rollout' | 'score' | 'release'>;

type WireTrace = NonNullable<Extract<Score, { readonly reward: number }>['traces']>[number];

/** Name of a state that a child keeps alive. */
type Live = string;

/** A verifiers environment that a child of the bridge has loaded, and its datasets. */
export interface LoadedVerifiers {
  readonly bridge: PlayingBridge;
  readonly loaded: LoadedEnvironment;
  readonly dataset: Inputs;
  readonly evalDataset: Inputs;
  /** Differences to the environment's own data, for people. */
  readonly notes?: readonly string[];
  /** Shared by all handles of this loaded environment, whose groups have their own names. */
  readonly groups: GroupScores<Live, Score>;
  /** Columns of a rollout's state to add to its row. Scoring fills them, so it happens while the state is alive. */
  readonly columns?: readonly string[];
  /** Shared like `groups`. */
  readonly suspects: Suspects;
}

/** Time for a truncated rollout to end and be scored, added to its own duration. */
const scoringS = 10;

/** Kept characters of a reward function's error. */
const raisedCharsMax = 200;

/** Name of the model for the environment. */
const modelName = 'policy';

/**
 * A verifiers environment in Ratchet: Python builds the messages and scores; every turn of the model is sampled here,
 * as for environments in TypeScript. The same turns need not lead to the same rollout: an unfinished one goes on from
 * its state where that can be written down, and else begins anew.
 */
export function verifiersEnvironment(name: string, loadedVerifiers: LoadedVerifiers): Environment {
  const { bridge, loaded, dataset, evalDataset, columns = [], groups } = loadedVerifiers;
  const inPlace = loaded.scoring === 'in_place' || columns.length > 0;
  const inGroups = inPlace && (loaded.requires_group || ofGroups(columns));

  async function rollout(example: Example, policy: Policy, place = alone()): Promise<RolloutRecord> {
    const teller = new Teller(example, policy);
    const input = (place.dataset === 'dataset' ? dataset : evalDataset).lineAt(example.id);
    const request = {
      env: loaded.env,
      input,
      model: modelName,
      sampling: place.sampling ?? {},
      score: inPlace && !inGroups,
      keep: inGroups,
      with_tokens: false,
      ...present({ columns: columns.length === 0 ? undefined : columns }),
      ...deadlineOf(place),
      ...present({ noted: loaded.says_state === true ? await notedStates(place.notes) : undefined }),
      ...present({ group: inGroups ? place.group : undefined, system_prompt: place.systemPrompt }),
    };
    const options = {
      onSample: (wanted: TurnRequest) => teller.sample(wanted),
      onNote: place.notes && rolloutNotes(place.notes),
      signal: place.signal,
    };
    const played = await playApart(loadedVerifiers, request, options, place).catch((reason: unknown) => {
      if (place.timeLimit && isDeadline(reason)) return null;
      throw asInfrastructure(reason);
    });
    // Turns after the cancellation are dropped.
    const turns = teller.turns(played);
    if (played === null) return { turns, outcome: 'timeout', error: tookLonger(place.timeLimit!.seconds) };
    const outcome = outcomeOf(played, turns.length);
    const record = played.row['error'] == null ? played.row : withoutSecretsIn(played.row);
    if (teller.failure !== undefined && outcomeOfFailure(teller.failure) !== 'overlong_prompt') {
      await letGo(played.live);
      throw teller.failure; // the policy did not say it, whatever the environment made of it
    }
    if (outcome === 'infra_failure' || outcome === 'overlong_prompt') {
      await letGo(played.live);
      return { turns, outcome, error: errorText(played), record };
    }
    if (outcome === 'policy_failure' && place.givesBackEmpty === true && isEmptyReply(played)) {
      await letGo(played.live);
      return { turns, outcome, error: errorText(played), isEmptyReply: true };
    }
    const late = played.timed_out === true ? { isTimedOut: true as const } : {};
    if (!inPlace) return { turns, outcome, record, ...late };
    const score = inGroups ? await scoredWithGroup(place, played.live) : (played.judged ?? notScored);
    const fromState = 'columns' in score && score.columns ? { state_columns: score.columns } : {};
    const whole = writtenLike({ ...record, ...fromState }, record);
    return { turns, outcome, record: whole, judged: judgementOf(score, turns), ...late };
  }

  async function scoredWithGroup(place: RolloutPlace, live: Live | null): Promise<Score | { readonly error: string }> {
    if (live === null) throw new Error(`The child of ${name} kept no state of the rollout, which its group needs.`);
    try {
      return await groups.wait(place, live);
    } catch (error) {
      await letGo(live);
      throw place.signal.aborted || place.brokenOff?.aborted ? error : asInfrastructure(error);
    }
  }

  const letGo = (live: Live | null): Promise<void> => release(bridge, loaded.env, live);

  return {
    name,
    dataset,
    evalDataset,
    rubric: { functions: loaded.reward_names.map((reward, i) => namedOnly(reward, loaded.weights[i] ?? 1)) },
    scoring: inPlace ? 'in_place' : 'stored',
    scoresGroups: inGroups,
    isComparing: loaded.requires_group,
    sampling: loaded.sampling,
    ...resumingOf(loaded),
    warnings: warningsOf(name, loadedVerifiers),
    ...present({ tools: loaded.tools === null ? undefined : (loaded.tools as unknown as readonly ToolSchema[]) }),
    rollout,
    withdraw: (place) => inGroups && groups.withdraw(place),
    judge: (_, rollouts, options) => judgeRows(name, loadedVerifiers, inPlace, rollouts, options),
  };
}

/** How its rollouts continue after a death. The same turns need not lead to the same rollout. */
export function resumingOf({
  is_single_turn: isSingleTurn,
  says_state: saysState = false,
}: Pick<LoadedEnvironment, 'is_single_turn' | 'says_state'>): Pick<
  Environment,
  'isDeterministic' | 'saysState' | 'isSingleTurn'
> {
  return { isDeterministic: false, saysState, isSingleTurn };
}

/**
 * verifiers ends a truncated rollout and then scores it; one that is not done long after that has failed like any
 * other.
 */
function deadlineOf({ timeLimit }: RolloutPlace): Pick<RolloutRequest, 'deadline_s' | 'truncate_s'> {
  if (timeLimit === undefined) return {};
  const { seconds, fate } = timeLimit;
  return fate === 'drop' ? { deadline_s: seconds } : { truncate_s: seconds, deadline_s: 2 * seconds + scoringS };
}

async function judgeRows(
  name: string,
  { bridge, loaded }: LoadedVerifiers,
  inPlace: boolean,
  rollouts: readonly Rollout[],
  { signal }: JudgeOptions,
): Promise<readonly Judgement[]> {
  if (inPlace) return rollouts.map(() => ({ error: `${name} scores in place, and this rollout was not scored.` }));
  const rows = rollouts.map(({ record }) => {
    if (record) return { row: record };
    throw new Error(`A rollout of ${name} is in the store without the row that it is scored from.`);
  });
  const scores = await bridge.score({ env: loaded.env, rollouts: rows }, { signal });
  return scores.map((score, i) => judgementOf(score, rollouts[i]!.turns));
}

/** Best effort: a child that is gone keeps nothing. */
async function release(bridge: PlayingBridge, env: string, live: Live | null): Promise<void> {
  if (live !== null) await bridge.release({ env, live: [live] }).catch(() => undefined);
}

/** Runs a rollout whose child died before apart from the others; the states of a group must be in one child. */
async function playApart(
  { bridge, suspects }: Pick<LoadedVerifiers, 'bridge' | 'suspects'>,
  request: RolloutRequest,
  options: RolloutOptions & { readonly signal: AbortSignal },
  { group, index }: RolloutPlace,
): Promise<WirePlayedRow> {
  const place = `${group}/${index}`;
  try {
    const isSuspect = !request.keep && suspects.has(place);
    const played = isSuspect
      ? await suspects.inTurn(place, options.signal, () => bridge.rollout({ ...request, isSuspect }, options))
      : await bridge.rollout(request, options);
    suspects.acquit(place);
    return played;
  } catch (error) {
    if (error instanceof ChildEnded && error.atWork > 1) suspects.accuse(place);
    throw error;
  }
}

/** Columns that verifiers fills when it scores a group, even for rubrics that do not compare. */
function ofGroups(columns: readonly string[]): boolean {
  return columns.includes('trajectory') || columns.includes('advantage');
}

/** Scores of one loaded environment's rollouts that are scored together while their states are alive. */
export function groupScores(
  bridge: PlayingBridge,
  env: string,
  columns: readonly string[] = [],
): GroupScores<Live, Score> {
  return new GroupScores(async (live) => {
    const rollouts = live.map((handle) => ({ live: handle }));
    try {
      for (let attempt = 1; ; attempt++) {
        const scores = await bridge.score({ env, rollouts, ...(columns.length === 0 ? {} : { columns }) });
        const isGood = scores.every((score) => !('error' in score));
        if (isGood || attempt === judgeAttemptsMax) return scores;
        await delay(judgeRetryMs * 2 ** (attempt - 1));
      }
    } finally {
      await bridge.release({ env, live }).catch(() => undefined);
    }
  });
}

/**
 * Supplies the child's turns, each agent in a conversation of its own, and remembers the failure of an agent's latest
 * request.
 */
class Teller {
  readonly #example: Example;
  readonly #policy: Policy;
  /** Keyed by the agent's name. */
  readonly #conversations = new Map<string, BridgedConversation>();
  readonly #failures = new Map<string, unknown>();
  readonly #turns: { readonly turn: Turn; readonly of: string }[] = [];

  constructor(example: Example, policy: Policy) {
    this.#example = example;
    this.#policy = policy;
  }

  /** The first agent's failure, if any. */
  get failure(): unknown {
    return [...this.#failures.values()].find((failure) => failure !== undefined);
  }

  /**
   * Turns in order of arrival, with the index of their agent if there are several; those of a repeated agent are left
   * out.
   */
  turns(played: Pick<WirePlayedRow, 'judged' | 'heard_turns' | 'row'> | null): Turn[] {
    if (played === null) return this.#turns.map(({ turn }) => turn);
    const { judged, heard_turns: heard = Infinity, row } = played;
    const several = judged && 'traces' in judged ? judged.traces?.map(({ trace }) => trace) : undefined;
    const one = (row['info'] as Readonly<Record<string, JsonValue>> | null | undefined)?.['trace'];
    const names = several ?? (typeof one === 'string' && this.#conversations.has(one) ? [one] : undefined);
    const said = names === undefined ? this.#turns : this.#turns.filter(({ of }) => names.includes(of));
    return said
      .slice(0, heard)
      .map(({ turn, of }) => (several === undefined ? turn : { ...turn, trace: several.indexOf(of) }));
  }

  async sample({ messages: sent, tools: offered, sampling, signal, trace = '' }: TurnRequest): Promise<SampledTurn> {
    this.#failures.delete(trace);
    const conversation = this.#conversations.get(trace) ?? new BridgedConversation(this.#example.prompt);
    this.#conversations.set(trace, conversation);
    try {
      const { messages, heard } = conversation.read(sent);
      const tools = offered === null ? undefined : (offered as unknown as readonly ToolSchema[]);
      const turn = await this.#policy.sample(messages, { sampling, ...present({ tools }) });
      signal.throwIfAborted();
      const told = conversation.add(turn, heard, tools);
      this.#turns.push({ turn: conversation.turns.at(-1)!, of: trace });
      return told;
    } catch (error) {
      this.#failures.set(trace, error);
      throw error;
    }
  }
}

/** A prompt that outgrew the model ends a rollout in progress; an overlong first prompt never reaches it. */
function outcomeOf({ outcome }: WirePlayedRow, turns: number): Outcome {
  return outcome === 'overlong_prompt' && turns > 0 ? 'truncated' : outcome;
}

const notScored = { error: 'The child did not score it.' };

function judgementOf(score: Score | { readonly error: string }, turns: readonly unknown[]): Judgement {
  if ('error' in score) return { error: textOf(score.error) };
  const { reward, metrics, raised, turn_rewards: ofTurns, scored_s: scoredS, traces } = score;
  return {
    reward,
    metrics,
    ...(ofTurns && { turnRewards: turns.map((_, k) => ofTurns[k] ?? 0) }),
    ...(raised && { raised: lastLines(raised) }),
    ...(scoredS && { scoredS }),
    ...(traces && { traces: traces.map(agentTrace) }),
  };
}

function agentTrace({ agent, trained, truncated, reward, metrics }: WireTrace): AgentTrace {
  return { agent, isTrained: trained, ...present({ isTruncated: truncated ? true : undefined }), reward, metrics };
}

/** A reply without text and calls, by verifiers' error. */
function isEmptyReply({ error }: WirePlayedRow): boolean {
  return error?.type === 'EmptyModelResponseError';
}

/** Keeps the error without its position: a row stores it, possibly for every rollout. */
function lastLines(tracebacks: Readonly<Record<string, string>>): Record<string, string> {
  const last = (text: string) => text.trim().split('\n').at(-1) ?? '';
  return Object.fromEntries(
    Object.entries(tracebacks).map(([name, text]) => [name, tracebackOf(last(text)).slice(0, raisedCharsMax)]),
  );
}

function errorText({ error, row }: WirePlayedRow): string {
  return textOf(error ?? row['error'] ?? 'The environment gave no reason.');
}

/** A failure reported by the child: its traceback, or else its message. */
function textOf(error: unknown): string {
  if (typeof error === 'string') return error;
  const { traceback, message, type, error_chain_str: chain } = error as Partial<Record<string, unknown>>;
  const words = [type, message].filter((part) => typeof part === 'string').join(': ');
  const known = [traceback, words, chain].find((part) => typeof part === 'string' && part !== '');
  return tracebackOf(known ?? JSON.stringify(error));
}

/** Messages of a failing library may contain a key. */
function withoutSecretsIn(row: RolloutRow): RolloutRow {
  const secrets = secretsHere();
  // Each text by itself: in their joined JSON, an apparent secret might span two of them.
  const cleaned = (value: unknown): unknown => {
    if (typeof value === 'string') return withoutSecrets(value, secrets);
    if (typeof value !== 'object' || value === null) return value;
    if (Array.isArray(value)) return value.map(cleaned);
    return Object.fromEntries(
      Object.entries(value).map(([name, inside]) => [withoutSecrets(name, secrets), cleaned(inside)]),
    );
  };
  return cleaned(row) as RolloutRow;
}

/** The child reports a missed deadline, or its parent does if it cannot. */
function isDeadline(reason: unknown): boolean {
  if (!(reason instanceof RatchetError)) return false;
  const { cause } = reason;
  return reason instanceof TooLate || (cause instanceof ChildRefused && cause.error.type === 'Deadline');
}

/** A child's failure is the rollout's own misfortune, to be repeated: it must not stop the others. */
function asInfrastructure(reason: unknown): unknown {
  if (!(reason instanceof RatchetError)) return reason;
  return new Error(reason.message, { cause: reason });
}

function namedOnly(name: string, weight: number) {
  return {
    name,
    weight,
    score(): never {
      throw new Error(`${name} is scored in Python, with the others of its rubric.`);
    },
  };
}

function alone(): RolloutPlace {
  return { group: 'alone', index: 0, size: 1, dataset: 'dataset', signal: new AbortController().signal };
}

function warningsOf(name: string, { loaded, dataset, evalDataset, notes = [] }: LoadedVerifiers): string[] {
  const { sampling, scoring, scoring_why: why, requires_group: inGroups, agents = [] } = loaded;
  const settings = Object.keys(sampling);
  return [
    ...notes,
    ...(settings.length === 0
      ? []
      : [`${name} sets ${settings.join(', ')} for sampling, which has no effect: the run's [sampling] decides.`]),
    ...(scoring === 'stored'
      ? []
      : [
          `${name} is scored in place, in the process that plays it${why ? ` (${why})` : ''}: ${inGroups ? 'groups' : 'rollouts'} that were not scored when it dies are played again.`,
        ]),
    ...(agents.length <= 1
      ? []
      : [
          `${name}: the policy plays ${agents.join(', ')}. Each of them that is trained is a sample, which batch_size counts where [trainer.advantage] type is "rae" or "hierarchical_grpo"; else it counts episodes.`,
        ]),
    ...(isSame(dataset, evalDataset)
      ? [`${name} has no held-out examples: it is evaluated on those that it is trained on.`]
      : []),
  ];
}

/**
 * verifiers returns the training examples if there are none for evaluation; comparing both ends of the lists is enough
 * to notice.
 */
function isSame(dataset: Inputs, evalDataset: Inputs): boolean {
  if (dataset.isMissing || evalDataset.isMissing || dataset.length !== evalDataset.length) return false;
  return [0, dataset.length - 1].every((i) => dataset.length === 0 || dataset.lineAt(i) === evalDataset.lineAt(i));
}
