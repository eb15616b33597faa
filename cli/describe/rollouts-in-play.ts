import { amountText, countsOf } from '../../core/rl/budget.ts';
import { describeEffects } from '../../core/rl/rollout/effects.ts';
import type { BudgetInPlay } from '../../core/rl/rollout/in-play.ts';
import { onOneLine } from '../../core/steering.ts';
import { budgetUnits } from '../../core/settings/budgets.ts';
import type {
  ListedRollout,
  ListedRollouts,
  RolloutProgress,
  TurnFrom,
  TurnProgress,
} from '../../core/rl/rollout/progress.ts';
import { inColumns } from '../output/in-columns.ts';
import { secondOf } from '../output/second-of.ts';

/** The rollouts of a run that are in play, for `ratchet status RUN --rollouts`. */
export function describeList(run: string, list: ListedRollouts, nowMs: number): string[] {
  const { rollouts, matches, inPlay, silent, left: ofDead, byEnvironment, waiting, ended, workers, turns, tokens, sandboxes } = list; // prettier-ignore
  if (inPlay + ofDead === 0) {
    return [`${run}: no rollout is in play (a worker writes down which are after some seconds)`];
  }
  const environments = Object.entries(byEnvironment).map(([name, count]) => `${name} ${count}`);
  const all = [
    inPlay === 0
      ? `${run}: none in play`
      : `${run}: ${inPlay} in play (${environments.join(' · ')}) on ${counted(workers, 'worker')}`,
    ...(silent === 0 ? [] : [`${silent} of them on a worker that is overdue: it hangs, or has ended`]),
    ...(ofDead === 0 ? [] : [`${ofDead} left by a worker that has ended: the next attempt goes on with them`]),
    `${ended} ended, ${waiting} not begun`,
    `${counted(turns, 'turn')}, ${tokens} sampled tokens`,
    ...(sandboxes === 0 ? [] : [counted(sandboxes, 'sandbox', 'sandboxes')]),
  ];
  const heading = ['ROLLOUT', 'ENVIRONMENT', 'VERSION', 'FOR', 'LAST TURN', 'TURNS', 'STORE', 'TOKENS', 'TOOLS', 'SANDBOX', 'WORKER', 'HEARD', '']; // prettier-ignore
  const left = matches - rollouts.length;
  if (matches === 0) return [all.join('; '), 'none of them is of this environment (--env)'];
  return [
    all.join('; '),
    '',
    ...inColumns([heading, ...rollouts.map((one) => rowOf(one, nowMs))].map((row) => row.map(onOneLine))),
    ...(left > 0 ? ['', `${left} more: --limit, --env`] : []),
    '',
    `one of them, turn by turn: npx ratchet-rl status ${run} --rollout ${rollouts[0]!.group}/${rollouts[0]!.index}`,
  ];
}

function rowOf(one: ListedRollout, nowMs: number): string[] {
  const { group, index, environment, exampleId, version, versionEnd, turns, promptTokens, tokens, toolCalls } = one;
  const { sandbox, worker, attempt, tries, effects, budget } = one;
  const more = [
    ...(effects ? [`effects ${describeEffects(effects).replaceAll('in doubt', 'open')}`] : []),
    ...(budget ? [`budget ${usedText(budget)}`] : []),
  ];
  return [
    `${group}/${index}`,
    `${environment} ${exampleId}`,
    versions(version, versionEnd),
    ago(nowMs, one.begunAtMs),
    one.lastTurnAtMs === undefined ? '–' : `${ago(nowMs, one.lastTurnAtMs)} ago`,
    String(turns),
    String(one.fromStore),
    `${promptTokens}+${tokens}`,
    String(toolCalls),
    sandbox ? sandbox.provider : '–',
    `${worker}${attempt > 1 || tries > 1 ? `, attempt ${attempt}.${tries}` : ''}`,
    heard(one, nowMs),
    more.join('; '),
  ];
}

/** One rollout turn by turn, for `ratchet status RUN --rollout GROUP/INDEX`. */
export function describeRollout(run: string, progress: RolloutProgress, nowMs: number): string[] {
  const { group, index, environment, exampleId, step, lineage, version, versionEnd, played, result } = progress;
  const { turns, turnsOf, effects, effectCounts, sandbox, budget, setAside } = progress;
  const standing = played
    ? playedText(played, nowMs)
    : `${result!.outcome}${result!.reward === null ? '' : `, reward ${figure(result!.reward)}`}`;
  const lines = [
    `${run}: rollout ${group}/${index}, ${environment} example ${exampleId}, leased for step ${step} of lineage ${lineage}, ${versions(version, versionEnd)}`,
    `state         ${standing}`,
    ...(sandbox ? [`sandbox       ${sandboxText(sandbox, nowMs)}`] : []),
    ...(budget ? [`budget        ${usedText(budget)}`] : []),
    ...effectLines(effects, effectCounts, played !== null),
    ...(setAside ? [`set aside     ${counted(setAside.turns, 'turn')} of an earlier attempt, ${setAside.tokens} tokens${setAside.was === undefined ? '' : `: ${setAside.was} became ${setAside.is}`}`] : []), // prettier-ignore
    ...(result?.error ? [`error         ${result.error}`] : []),
  ].map(onOneLine);
  if (turns.length === 0) return [...lines, noTurns(progress)];
  const heading = ['TURN', 'CALL', 'AFTER', 'FROM', 'PROMPT', 'SAMPLED', 'SECONDS', 'VERSION', 'TOOL CALLS'];
  const rows = turns.map((turn) => turnRow(turn).map(onOneLine));
  const left = turnsOf - turns.length;
  return [...lines, '', ...(left > 0 ? [`the newest ${turns.length} of ${turnsOf} turns:`] : []), ...inColumns([heading, ...rows])]; // prettier-ignore
}

function playedText(played: NonNullable<RolloutProgress['played']>, nowMs: number): string {
  const { standing, worker, attempt, tries, begunAtMs } = played;
  const at = `${worker}, attempt ${attempt}${tries > 1 ? `, try ${tries}` : ''}`;
  if (standing === 'left') return `left by ${at}, which has ended: the next attempt goes on with it`;
  return `in play for ${ago(nowMs, begunAtMs)} on ${at} (heard of ${heard(played, nowMs)})`;
}

/** `12 s ago`; of a worker that is overdue, or has ended, that too. */
function heard({ standing, writtenAtMs }: Pick<ListedRollout, 'standing' | 'writtenAtMs'>, nowMs: number): string {
  const when = `${ago(nowMs, writtenAtMs)} ago`;
  if (standing === 'in play') return when;
  return `${when}, ${standing === 'left' ? 'has ended' : 'overdue'}`;
}

function noTurns({ turnsOf }: RolloutProgress): string {
  if (turnsOf === 0) return 'turns         none has finished yet';
  return `turns         ${turnsOf} finished; its environment begins anew after a death, so they are stored when it ends`;
}

const froms: Readonly<Record<TurnFrom, string>> = {
  sampled: 'sampled',
  store: 'the store',
  snapshot: 'before the snapshot',
  earlier: 'earlier, not asked for again',
};

function turnRow({ number, call, from, promptTokens, tokens, seconds, version, isCut, tools }: TurnProgress): string[] {
  return [
    String(number),
    call ? callName(call.id) : '–',
    call?.after ? callName(call.after) : '–',
    froms[from],
    String(promptTokens),
    `${tokens}${isCut ? ' (cut)' : ''}`,
    seconds === null ? '–' : figure(seconds),
    `v${version}`,
    tools.map((tool) => `${tool.name} ${tool.arguments}`).join(' · '),
  ];
}

/** Ids begin with a digest; its beginning tells the calls of one rollout apart. */
function callName(id: string): string {
  const at = id.lastIndexOf('-');
  return `${id.slice(0, Math.min(6, at))}${id.slice(at)}`;
}

function sandboxText(sandbox: NonNullable<RolloutProgress['sandbox']>, nowMs: number): string {
  const { provider, name, sinceMs, deadlineAtMs, seconds } = sandbox;
  const time = seconds === null ? `for ${ago(nowMs, sinceMs ?? nowMs)}` : `${figure(seconds)} s`;
  const ends = deadlineAtMs === null ? '' : `, ends at ${secondOf(deadlineAtMs)}`;
  return `${provider} ${name}, ${time}${ends}`;
}

function effectLines(
  effects: RolloutProgress['effects'],
  counts: RolloutProgress['effectCounts'],
  isInPlay: boolean,
): string[] {
  if (effects.length > 0)
    return effects.map(({ kind, name, outcome }) => `effect        ${outcome}: ${name} (${kind})`);
  if (counts === null) return [];
  const said = describeEffects(counts);
  return [`effects       ${isInPlay ? said.replaceAll('in doubt', 'open') : said}`];
}

/** `tokens 412 of 2,000 · tool calls 3`. */
function usedText({ used, limits }: BudgetInPlay): string {
  const counts = countsOf(used);
  const said = budgetUnits.flatMap((unit) => {
    const limit = limits[unit];
    if (limit === undefined && counts[unit] === 0) return [];
    const of = limit === undefined ? '' : ` of ${limit.toLocaleString('en')}`;
    return [`${amountText(unit, Math.max(0, counts[unit]))}${of}`];
  });
  return said.length === 0 ? 'nothing used' : said.join(' · ');
}

function versions(first: number, last: number): string {
  return last > first ? `v${first}–v${last}` : `v${first}`;
}

function figure(value: number): string {
  return String(Math.round(value * 1000) / 1000);
}

function counted(count: number, one: string, many = `${one}s`): string {
  return `${count} ${count === 1 ? one : many}`;
}

/** `41 s`, `12 min`, `3 h 05 min`. */
function ago(nowMs: number, atMs: number): string {
  const seconds = Math.max(0, Math.round((nowMs - atMs) / 1000));
  if (seconds < 90) return `${seconds} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return `${minutes} min`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, '0')} min`;
}
