import { RatchetError } from '../../core/errors.ts';
import { decodeRanges } from '../../core/rl/ledger.ts';
import type { RolloutInPlay } from '../../core/rl/rollout/in-play.ts';
import type { RolloutProgress, TurnFrom, TurnProgress } from '../../core/rl/rollout/progress.ts';
import type { ScoredGroup, ScoredRollout, Turn } from '../../core/rl/rollout/rollout.ts';
import { layout, roundOf } from '../layout.ts';
import { scoredGroupsIn } from '../rollouts/scored-groups.ts';
import { currentLineage, type RunPlace, storeOf, stretchesOf } from '../run-access.ts';
import { chunksInPlay, type FollowedChunk, playedBy } from './listed-rollouts.ts';
import { type FoundTurn, notedEffects, storedTurns } from './running-rollout.ts';

/** Most turns and effects of one rollout that are read and sent: the newest. */
const turnsShown = 200;
const effectsShown = 100;
const argumentCharsMax = 120;

interface RolloutPlace {
  readonly group: number;
  readonly index: number;
}

/** Reads what one rollout has, whatever else is in play. Throws `RunNotFound` where it is neither in play nor scored. */
export async function progressOf(place: RunPlace, at: RolloutPlace): Promise<RolloutProgress> {
  const chunks = await chunksInPlay(place);
  for (const chunk of chunks) {
    const rollout = chunk.rollouts.find((one) => one.group === at.group && one.index === at.index);
    if (rollout) return inPlay(place, chunk, rollout);
  }
  const ended = await endedRollout(place, at);
  if (ended !== null) return ended;
  const isLeased = chunks.some(({ ordinals }) => decodeRanges(ordinals).includes(at.group));
  const why = isLeased
    ? 'It has not begun, or it has ended and waits for the rest of its group, with which it is scored.'
    : 'Rollouts in play are listed by npx ratchet-rl status RUN --rollouts; a worker says which these are after some seconds.';
  throw new RatchetError('RunNotFound', `Rollout ${at.group}/${at.index} is neither in play nor scored. ${why}`);
}

async function inPlay(place: RunPlace, chunk: FollowedChunk, rollout: RolloutInPlay): Promise<RolloutProgress> {
  const store = storeOf(place);
  const { newest, notes, group, index, environment, exampleId, version, versionEnd } = rollout;
  const { lineage, step, prefix, standing } = chunk;
  const of = { group, index };
  const turns = newest ? await storedTurns(store, `${prefix}turns_`, newest, turnsShown) : [];
  const effects = notes ? await notedEffects(store, `${prefix}notes_`, { ...of, ...notes }, effectsShown) : [];
  const fromOf = originOf(rollout);
  return {
    state: standing,
    lineage,
    step,
    ...of,
    environment,
    exampleId,
    version,
    versionEnd,
    played: { ...playedBy(chunk), tries: rollout.tries, begunAtMs: rollout.begunAtMs },
    result: null,
    turns: turns.map((turn) => told(turn, { from: fromOf(turn.position), seconds: turn.seconds })),
    turnsOf: Math.max(rollout.turns, turns.length, (turns.at(-1)?.position ?? -1) + 1),
    effects,
    effectCounts: rollout.effects ?? null,
    sandbox: rollout.sandbox ? { ...rollout.sandbox, seconds: null } : null,
    budget: rollout.budget ?? null,
    setAside: null,
  };
}

function originOf({ earlier, recalled, kept = '' }: RolloutInPlay): (position: number) => TurnFrom {
  const [again, before] = [new Set(decodeRanges(recalled)), new Set(decodeRanges(kept))];
  return (position) => {
    if (position >= earlier) return 'sampled';
    if (!again.has(position)) return 'earlier';
    return before.has(position) ? 'snapshot' : 'store';
  };
}

async function endedRollout(place: RunPlace, at: RolloutPlace): Promise<RolloutProgress | null> {
  const found = await scoredGroup(place, at.group);
  const rollout = found?.group.rollouts.find(({ index }) => index === at.index);
  return found && rollout ? ended(found, rollout) : null;
}

/** The scored group of an ordinal, in the lineages that led to where the run stands. Reads the objects of its round alone. */
async function scoredGroup(
  place: RunPlace,
  ordinal: number,
): Promise<{ readonly group: ScoredGroup; readonly lineage: string; readonly step: number } | null> {
  const store = storeOf(place);
  for (const { lineage, upTo } of await stretchesOf({ ...place, lineage: await currentLineage(place) })) {
    const keys = (await store.list(layout.allRounds(lineage))).filter((key) => {
      const round = roundOf(key);
      return round !== null && round.step <= upTo && round.first <= ordinal && ordinal <= round.last;
    });
    for (const key of layout.scoredIn(keys)) {
      const bytes = await store.read(key);
      if (bytes === null) continue; // retention was faster
      for await (const group of scoredGroupsIn(bytes, store.uri + key))
        if (group.ordinal === ordinal) return { group, lineage, step: roundOf(key)!.step };
    }
  }
  return null;
}

function ended(
  { group, lineage, step }: { readonly group: ScoredGroup; readonly lineage: string; readonly step: number },
  { index, outcome, reward, error, turns, effects, program }: ScoredRollout,
): RolloutProgress {
  const { ordinal, environment, exampleId, policyStep: version } = group;
  const { seconds = [], recalled = '' } = program?.turns ?? {};
  const { kept = 0 } = program?.calls ?? {};
  const again = new Set(decodeRanges(recalled));
  const fromOf = (i: number): TurnFrom => (i < kept ? 'snapshot' : again.has(i) ? 'store' : 'sampled');
  const shown = turns.map((turn, i) =>
    told({ ...found(turn), position: i }, { from: fromOf(i), seconds: seconds[i] ?? null }),
  );
  const { sandbox, used } = program ?? {};
  return {
    state: 'ended',
    lineage,
    step,
    group: ordinal,
    index,
    environment,
    exampleId,
    version,
    versionEnd: Math.max(version, ...turns.map(({ policyStep, policyStepEnd }) => policyStepEnd ?? policyStep)),
    played: null,
    result: { outcome, reward, error: error ?? null },
    turns: shown.slice(-turnsShown),
    turnsOf: turns.length,
    effects: [],
    effectCounts: effects ?? null,
    sandbox: sandbox ? { ...sandbox, sinceMs: null, deadlineAtMs: null } : null,
    budget: used ? { used, limits: {} } : null,
    setAside: program?.setAside ?? null,
  };
}

function found({ promptTokenIds, tokenIds, ...turn }: Turn): Omit<FoundTurn, 'position' | 'seconds'> {
  return { ...turn, promptTokens: promptTokenIds.length, tokens: tokenIds.length };
}

function told(
  turn: Omit<FoundTurn, 'seconds'>,
  { from, seconds }: Pick<TurnProgress, 'from' | 'seconds'>,
): TurnProgress {
  const { position, call, promptTokens, tokens, policyStep, policyStepEnd, finishReason, toolCalls = [] } = turn;
  return {
    number: position + 1,
    call: call ?? null,
    from,
    promptTokens,
    tokens,
    seconds,
    version: policyStepEnd ?? policyStep,
    isCut: finishReason === 'length',
    tools: toolCalls.map((one) => ({ name: cut(one.name), arguments: cut(one.arguments) })),
  };
}

function cut(text: string): string {
  return text.length > argumentCharsMax ? `${text.slice(0, argumentCharsMax)}…` : text;
}
